package rblk

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"verbena/ib"
)

// A login that cannot be is refused with a reason, and the target goes on.
func TestLoginRefused(t *testing.T) {
	w := newWorld(t, NewMemory(4096))
	for _, c := range []struct{ line, says string }{
		{`{"rblk":9,"initiator":"x","export":"disk","depth":1,"max_io":512}`, "version 1, not 9"},
		{`{"rblk":1,"export":"disk","depth":1,"max_io":512}`, "no name"},
		{`{"rblk":1,"initiator":"x","export":"","depth":1,"max_io":512}`, "no export"},
		{`{"rblk":1,"initiator":"x","export":"disk","depth":0,"max_io":512}`, "too small"},
		{`{"rblk":1,"initiator":"x","export":"disk","depth":1,"max_io":-1}`, "too small"},
		{`{"rblk":1,"initiator":"x","export":"disk","depth":1,"max_io":512,"qp":{"mtu":77}}`, "MTU 77"},
		{`{"rblk":1,"initiator":"x","export":"disk","depth":1,"max_io":512,"qp":{"mtu":3}}`, "no destination"},
	} {
		c1, err := net.Dial("tcp", w.addr.Load().(string))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(c1, c.line)
		c1.SetReadDeadline(time.Now().Add(20 * time.Second))
		var got welcome
		if err := readLine(c1, &got); err != nil || !strings.Contains(got.Refused, c.says) {
			t.Errorf("%s: %+v, %v", c.line, got, err)
		}
		c1.Close()
	}
	w.openDefault()
}

// Who does not log in is sent away, also while others work.
func TestLoginTimeout(t *testing.T) {
	w := newWorld(t, NewMemory(4096))
	w.stop()
	w.serve(TargetConfig{Exports: map[string]Store{"disk": NewMemory(4096)}, LoginTimeout: 50 * time.Millisecond})
	c, err := net.Dial("tcp", w.addr.Load().(string))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d := w.openDefault()
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the target waits: %v", err)
	}
	if _, err := d.WriteAt([]byte("x"), 0); err != nil {
		t.Error(err)
	}
}

// The target may go and come back, on another port; the disk's users see delay.
func TestTargetRestart(t *testing.T) {
	store := NewMemory(4096)
	w := newWorld(t, store)
	d := w.openDefault()
	w.stop()
	done := make(chan error, 1)
	go func() {
		_, err := d.WriteAt([]byte("late"), 8)
		done <- err
	}()
	w.serve(TargetConfig{Exports: map[string]Store{"disk": store}})
	if err := <-done; err != nil || string(store.b[8:12]) != "late" {
		t.Errorf("%v, %q", err, store.b[8:12])
	}
	if n := w.target.Sessions(); n != 1 {
		t.Errorf("%d sessions", n)
	}
	d.Close()
	for w.target.Sessions() != 0 { // the target notices
		time.Sleep(time.Millisecond)
	}
}

// An export that comes back smaller is another disk: requests fail in the end rather than hit the wrong thing.
func TestExportChanged(t *testing.T) {
	w := newWorld(t, NewMemory(4096))
	cfg := w.config()
	cfg.Patience = 3 * time.Second
	d := w.open(cfg)
	w.stop()
	w.serve(TargetConfig{Exports: map[string]Store{"disk": NewMemory(2048)}})
	if _, err := d.WriteAt([]byte("x"), 0); err == nil || !strings.Contains(err.Error(), "the export has changed") {
		t.Errorf("write to a disk that is another: %v", err)
	}
}

// Those who come when there are as many sessions as may be are sent away; the others notice nothing.
func TestTooManySessions(t *testing.T) {
	w := newWorld(t, NewMemory(4096))
	w.stop()
	w.serve(TargetConfig{Exports: map[string]Store{"disk": NewMemory(4096)}, Sessions: 1})
	d := w.openDefault()
	c, err := net.Dial("tcp", w.addr.Load().(string))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(4 * time.Second)) // sooner than a login times out
	if _, err := c.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("a second one is not sent away: %v", err)
	}
	if _, err := d.WriteAt([]byte("x"), 0); err != nil {
		t.Error(err)
	}
}

// A login that had to wait for the end of the old session, for longer than logins may take, is welcomed all the same. If
// the initiator has gone by then, nothing is left of it.
func TestLoginWaits(t *testing.T) {
	for _, stays := range []bool{true, false} {
		t.Run(fmt.Sprintf("stays %v", stays), func(t *testing.T) {
			store := &faulty{Memory: NewMemory(4096), gate: make(chan struct{})}
			w := newWorld(t, store)
			w.stop()
			w.serve(TargetConfig{Exports: map[string]Store{"disk": store}, LoginTimeout: 50 * time.Millisecond, Logf: t.Logf})
			d := w.openDefault()
			go d.WriteAt([]byte("old"), 0)
			for store.in.Load() == 0 {
				time.Sleep(time.Millisecond)
			}
			d.Close()
			c, err := net.Dial("tcp", w.addr.Load().(string))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := writeLine(c, login{
				Version: version, Initiator: d.name, Epoch: 100, Export: "disk", Depth: 1, MaxIO: 512,
				QP: qpAddr{GID: ib.GID(netip.MustParseAddr("10.0.0.1").As16()), QPN: 17, MTU: ib.MTU1024},
			}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			if !stays {
				c.(*net.TCPConn).SetLinger(0) // a reset, so that writing to it fails
				c.Close()
			}
			close(store.gate)
			var got welcome
			c.SetDeadline(time.Now().Add(20 * time.Second))
			if err := readLine(c, &got); stays && (err != nil || got.Refused != "") {
				t.Errorf("%+v, %v", got, err)
			}
			c.Close()
			for w.target.Sessions() != 0 {
				time.Sleep(time.Millisecond)
			}
		})
	}
}
