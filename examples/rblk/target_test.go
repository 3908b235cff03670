package rblk

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib/attach"
	"verbena/internal/testutil"
	"verbena/link/simnet"
	"verbena/rdmacm"
)

// TestInvalidOfferIsRefused checks that an invalid offer is rejected with a reason, and that the target continues to
// serve.
func TestInvalidOfferIsRefused(t *testing.T) {
	w := newTestbed(t, NewMemory(4096))
	good := sessionOffer{1, 512}.bytes()
	spoiled := func(i int, v byte) []byte {
		b := bytes.Clone(good)
		b[i] = v
		return b
	}
	for _, c := range []struct {
		offer []byte
		says  string
	}{
		{nil, "not from a disk"},
		{[]byte("rbl"), "not from a disk"},
		{spoiled(0, 'R'), "not from a disk"},
		{spoiled(5, 1), "version 1, want 2"},
		{spoiled(4, 1), "version 258, want 2"},
		{sessionOffer{0, 512}.bytes(), "too small"},
		{sessionOffer{1, 511}.bytes(), "too small"},
	} {
		_, err := w.dialRaw(c.offer)
		var no *rdmacm.RefusedError
		if !errors.As(err, &no) {
			t.Errorf("%x: %v", c.offer, err)
			continue
		}
		if r, ok := parseRefusal(no.Data); !ok || r.retry || !strings.Contains(r.why, c.says) {
			t.Errorf("%x: %q", c.offer, no.Data)
		}
	}
	// The maximum offer is reduced to the target's limits.
	r, err := w.dialRaw(bytes.Join([][]byte{good[:8], bytes.Repeat([]byte{0xff}, 8), []byte("and more")}, nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.ep.sendHandshake(loginMessage{Initiator: "x", Export: "disk"}); err != nil {
		t.Fatal(err)
	}
	if got := r.readWelcome(); got.Depth != 64 || got.MaxIO != 128<<10 {
		t.Errorf("welcome: got %+v, want the limits of the target", got)
	}
	w.openDefaultDisk()
}

// TestInvalidLoginIsRefused checks that an invalid login is rejected with a reason, and that the target continues to
// serve.
func TestInvalidLoginIsRefused(t *testing.T) {
	w := newTestbed(t, NewMemory(4096))
	for _, c := range []struct {
		login loginMessage
		says  string
	}{
		{loginMessage{Export: "disk"}, "no initiator name"},
		{loginMessage{Initiator: "x"}, "has no export"},
		{loginMessage{Initiator: "x", Export: "other"}, "has no export"},
	} {
		r := w.sendLogin(c.login)
		if got := r.readWelcome(); !strings.Contains(got.Refused, c.says) || got.Retry {
			t.Errorf("login %+v: got %+v, want a permanent refusal", c.login, got)
		}
	}
	for _, nonsense := range []any{"text", 7, []int{1}, strings.Repeat("x", maxHandshakeLen-2),
		map[string]int{"epoch": -1}} {
		w.sendLogin(nonsense).awaitClosed()
	}
	// The first message must not be a request, and the second must not be a login.
	r := w.sendLogin(loginMessage{Initiator: "x", Export: "disk"})
	r.readWelcome()
	<-r.sent // both messages use the same memory
	if err := r.ep.sendHandshake(loginMessage{Initiator: "x", Export: "disk", Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	r.awaitClosed()
	w.openDefaultDisk()
}

// TestLoginTimeoutDisconnects checks that an initiator that does not log in is disconnected, also while others are
// active.
func TestLoginTimeoutDisconnects(t *testing.T) {
	w := newTestbed(t, NewMemory(4096))
	w.stopTarget()
	w.serveTarget(TargetConfig{Exports: map[string]Store{"disk": NewMemory(4096)}, LoginTimeout: 50 * time.Millisecond})
	r, err := w.dialRaw(sessionOffer{1, 512}.bytes())
	if err != nil {
		t.Fatal(err)
	}
	d := w.openDefaultDisk()
	r.awaitClosed()
	if _, err := d.WriteAt([]byte("x"), 0); err != nil {
		t.Error(err)
	}
}

// TestDeadPeerIsDetected checks that the target detects a dead initiator, even an idle one, and that the disk detects
// a dead target.
func TestDeadPeerIsDetected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestbed(t, NewMemory(4096))
		w.stopTarget()
		w.serveTarget(TargetConfig{Exports: map[string]Store{"disk": NewMemory(4096)}, Probe: 50 * time.Millisecond})
		cfg := w.diskConfig()
		cfg.Hang = 200 * time.Millisecond
		d := w.openDisk(cfg)
		testutil.AdvanceTime(time.Minute) // the target probes the initiator, which responds
		if s := d.Stats(); s.Sessions != 1 || s.State != attach.Attached {
			t.Errorf("idle: %+v", s)
		}
		w.network.SetFilter(func(*simnet.Packet) bool { return false })
		testutil.Eventually(t, "both ends to end the session", func() bool {
			return w.target.Sessions() == 0 && d.Stats().State != attach.Attached
		})
		w.network.SetFilter(nil)
		if _, err := d.WriteAt([]byte("x"), 0); err != nil {
			t.Error(err)
		}
	})
}

// TestTargetRestartCausesNoError checks that a restart of the target delays the users of the disk, without an error.
func TestTargetRestartCausesNoError(t *testing.T) {
	store := NewMemory(4096)
	w := newTestbed(t, store)
	d := w.openDefaultDisk()
	w.stopTarget()
	done := make(chan error, 1)
	go func() {
		_, err := d.WriteAt([]byte("late"), 8)
		done <- err
	}()
	w.serveTarget(TargetConfig{Exports: map[string]Store{"disk": store}})
	if err := <-done; err != nil || string(store.b[8:12]) != "late" {
		t.Errorf("%v, %q", err, store.b[8:12])
	}
	if n := w.target.Sessions(); n != 1 {
		t.Errorf("%d sessions", n)
	}
	d.Close()
	testutil.Eventually(t, "the target to notice", func() bool { return w.target.Sessions() == 0 })
}

// TestReplacedExportFailsRequests checks that requests fail after an export was replaced by another store.
func TestReplacedExportFailsRequests(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{2048, 4096} {
		t.Run(fmt.Sprint(size, " bytes"), func(t *testing.T) {
			t.Parallel()
			w := newTestbed(t, NewMemory(4096))
			cfg := w.diskConfig()
			cfg.Patience = 3 * time.Second
			d := w.openDisk(cfg)
			w.stopTarget()
			w.serveTarget(TargetConfig{Exports: map[string]Store{"disk": NewMemory(size)}})
			if _, err := d.WriteAt([]byte("x"), 0); err == nil || !strings.Contains(err.Error(), "the export has changed") {
				t.Errorf("write to a disk with a replaced store: got %v, want EIO", err)
			}
		})
	}
}

// crashingStore is a store whose host crashes, which preserves only synced data.
type crashingStore struct {
	*Memory
	mu     sync.Mutex
	safe   []byte
	boot   string
	during func() // called in each Sync after the data was captured
}

func (c *crashingStore) Cache() string { return c.boot }

func (c *crashingStore) Sync() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.safe = bytes.Clone(c.b)
	if c.during != nil {
		c.during()
	}
	return nil
}

// TestDiskFailsIfTargetLosesData checks that a disk continues after a crash of its target's host if no data was lost.
// Otherwise the disk must end, so that users do not read older data.
func TestDiskFailsIfTargetLosesData(t *testing.T) {
	write := func(d *Disk, s string) error { _, err := d.WriteAt([]byte(s), 8); return err }
	for _, c := range []struct {
		name   string
		before func(d *Disk, s *crashingStore) error
		after  string // "": the disk has ended
	}{
		{"nothing written", func(*Disk, *crashingStore) error { return nil }, "\x00\x00\x00"},
		{"synced", func(d *Disk, _ *crashingStore) error { return errors.Join(write(d, "one"), d.Sync()) }, "one"},
		{"not synced", func(d *Disk, _ *crashingStore) error { return write(d, "one") }, ""},
		{"written after the sync", func(d *Disk, _ *crashingStore) error {
			return errors.Join(write(d, "one"), d.Sync(),
				write(d, "two"))
		}, ""},
		{"written during the sync", func(d *Disk, s *crashingStore) error {
			var err error
			s.during = func() { err = write(d, "two") }
			return errors.Join(write(d, "one"), d.Sync(), err)
		}, ""},
		{"refused", func(d *Disk, _ *crashingStore) error {
			_, err := d.WriteAt([]byte("x"), 4096)
			return checkErrorIs(err, syscall.ENOSPC)
		}, "\x00\x00\x00"},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := &crashingStore{Memory: NewMemory(4096), safe: make([]byte, 4096), boot: "first"}
			w := newTestbed(t, store)
			cfg := w.diskConfig()
			cfg.Patience = -1
			d := w.openDisk(cfg)
			if err := c.before(d, store); err != nil {
				t.Fatal(err)
			}
			w.stopTarget()
			store.b, store.boot = store.safe, "second"
			w.serveTarget(TargetConfig{Exports: map[string]Store{"disk": store}})
			var got [3]byte
			_, err := d.ReadAt(got[:], 8)
			switch {
			case c.after != "" && (err != nil || string(got[:]) != c.after):
				t.Errorf("read after the crash: got %q, %v; want %q", got, err, c.after)
			case c.after == "" && (!errors.Is(err, ErrUnsynced) || !errors.Is(err, syscall.EIO)):
				t.Errorf("after the crash: %q, %v", got, err)
			case c.after == "" && (!errors.Is(write(d, "new"), ErrUnsynced) || !errors.Is(d.Sync(), ErrUnsynced)):
				t.Error("the disk is used again")
			}
		})
	}
}

// checkErrorIs returns nil if err matches want.
func checkErrorIs(err, want error) error {
	if errors.Is(err, want) {
		return nil
	}
	return fmt.Errorf("%v, want %v", err, want)
}

// TestReplacedFileHasOtherID checks that a file has the same ID when it is opened again, and that a replacement has a
// different ID.
func TestReplacedFileHasOtherID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	open := func() string {
		f, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte("x"), 100); err != nil {
			t.Fatal(err)
		}
		return storeIDOf(f)
	}
	create := func() {
		if err := os.WriteFile(path, make([]byte, 512), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	create()
	id := open()
	if id == "" {
		t.Skip("the file system stores no birth time")
	}
	if again := open(); again != id {
		t.Errorf("%q, opened again: %q", id, again)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // file systems have coarse timestamps
	create()
	if other := open(); other == id {
		t.Errorf("ID of the replacement: got %q, want a different one", other)
	}
}

// TestSessionsBeyondLimitAreRefused checks that sessions beyond the limit are rejected, without an effect on existing
// sessions.
func TestSessionsBeyondLimitAreRefused(t *testing.T) {
	w := newTestbed(t, NewMemory(4096))
	w.stopTarget()
	w.serveTarget(TargetConfig{Exports: map[string]Store{"disk": NewMemory(4096)}, Sessions: 1})
	d := w.openDefaultDisk()
	var no *rdmacm.RefusedError
	if _, err := w.dialRaw(sessionOffer{1, 512}.bytes()); !errors.As(err, &no) {
		t.Fatalf("second session: got %v, want a refusal", err)
	}
	if r, ok := parseRefusal(no.Data); !ok || !r.retry || !strings.Contains(r.why, "1 sessions are open") {
		t.Errorf("refusal: got %q, want a temporary one with the limit", no.Data)
	}
	if _, err := d.WriteAt([]byte("x"), 0); err != nil {
		t.Error(err)
	}
}

// TestLoginOutlastsTimeout checks that a login succeeds even if the old session takes longer than LoginTimeout to
// end. If the initiator has ended meanwhile, no session may remain.
func TestLoginOutlastsTimeout(t *testing.T) {
	for _, stays := range []bool{true, false} {
		t.Run(fmt.Sprintf("stays %v", stays), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &faultyStore{Memory: NewMemory(4096), gate: make(chan struct{})}
				w := newTestbed(t, store)
				w.stopTarget()
				w.serveTarget(TargetConfig{Exports: map[string]Store{"disk": store}, LoginTimeout: 50 * time.Millisecond,
					Logf: t.Logf})
				d := w.openDefaultDisk()
				go d.WriteAt([]byte("old"), 0)
				testutil.Eventually(t, "the write to be in the store", func() bool { return store.in.Load() > 0 })
				d.Close()
				r := w.sendLogin(loginMessage{Initiator: d.name, Epoch: 100, Export: "disk"})
				testutil.AdvanceTime(100 * time.Millisecond)
				if !stays {
					r.conn.Close()
				}
				close(store.gate)
				if stays {
					if got := r.readWelcome(); got.Refused != "" {
						t.Errorf("login: got %+v, want a welcome", got)
					}
					r.conn.Close()
				}
				testutil.Eventually(t, "no session to be left", func() bool { return w.target.Sessions() == 0 })
			})
		})
	}
}

// TestLoginWithOldEpochIsRejected checks that a login with the epoch of an existing session, or an older epoch, is
// rejected and ends no session.
func TestLoginWithOldEpochIsRejected(t *testing.T) {
	w := newTestbed(t, NewMemory(4096))
	d := w.openDefaultDisk()
	epoch := d.epoch // the disk does not log in again while its path works
	for _, late := range []uint64{epoch, epoch - 1} {
		r := w.sendLogin(loginMessage{Initiator: d.name, Epoch: late, Export: "disk"})
		if got := r.readWelcome(); !strings.Contains(got.Refused, "has passed") {
			t.Errorf("epoch %d after %d: got %+v", late, epoch, got)
		}
	}
	if _, err := d.WriteAt([]byte("x"), 0); err != nil {
		t.Error(err)
	}
	if s := d.Stats(); s.Sessions != 1 {
		t.Errorf("sessions: got %d, want 1", s.Sessions)
	}
}
