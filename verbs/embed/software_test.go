package embed_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"verbena/test/suite"
	"verbena/verbs"
	"verbena/verbs/embed"
)

// testEnd is a queue pair with memory.
type testEnd struct {
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  *verbs.MR
}

func newTestEnd(t testing.TB, dev *verbs.Device, init verbs.QPInit) *testEnd {
	t.Helper()
	e := &testEnd{dev: dev}
	var err error
	if e.pd, err = dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if e.cq, err = dev.CreateCQ(256, nil); err != nil {
		t.Fatal(err)
	}
	if e.mr, err = e.pd.Alloc(1<<16, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.RemoteAtomic); err != nil {
		t.Fatal(err)
	}
	init.SendCQ = e.cq
	if e.qp, err = e.pd.CreateQP(init); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *testEnd) remoteMemory() verbs.Remote { return e.mr.Remote(0) }

func openDevice(t testing.TB, s *embed.Stack, name string) *verbs.Device {
	t.Helper()
	d, err := s.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// newSoftwareStack returns a new stack, which is closed at the end of the test.
func newSoftwareStack(t testing.TB, devices ...embed.Software) *embed.Stack {
	t.Helper()
	s, err := embed.NewSoftware(devices...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// TestSRD runs the tests of SRD between two programs, with and without the shortcut, in memory and over UDP.
func TestSRD(t *testing.T) {
	for name, devices := range map[string][]embed.Software{
		"one device": {{}, {}},
		"shortcut":   {{}, {Name: "efa7"}},
		"wire":       {{Wire: true}, {Wire: true, Name: "efa7"}},
		"UDP": {{Addr: netip.MustParseAddr("127.0.0.103"), Wire: true},
			{Addr: netip.MustParseAddr("127.0.0.104"), Wire: true, Name: "efa7"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := embed.NewEFA(devices...)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			to := "efa7"
			if name == "one device" {
				to = "efa0"
			}
			suite.RunSRD(t, suite.SRDConfig{Open: [2]func() (*verbs.Device, error){
				func() (*verbs.Device, error) { return s.Open("efa0") },
				func() (*verbs.Device, error) { return s.Open(to) },
			}, NetworkAllocates: name == "wire"})
		})
	}
}

// TestSoftwareDevicesReachEachOther checks that the devices of a stack reach each other, with and without the shortcut,
// in memory and over UDP.
func TestSoftwareDevicesReachEachOther(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b embed.Software
	}{
		{"memory", embed.Software{}, embed.Software{}},
		{"memory/wire", embed.Software{Wire: true}, embed.Software{Wire: true}},
		{"UDP/wire", embed.Software{Addr: netip.MustParseAddr("127.0.0.101"), Wire: true},
			embed.Software{Addr: netip.MustParseAddr("127.0.0.102"), Wire: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSoftwareStack(t, c.a, c.b)
			a, b := newTestEnd(t, openDevice(t, s, "rxe0"), verbs.QPInit{}), newTestEnd(t, openDevice(t, s, "rxe1"),
				verbs.QPInit{})
			if err := verbs.ConnectPair(a.qp, b.qp); err != nil {
				t.Fatal(err)
			}
			copy(a.mr.Bytes(), "hello")
			err := a.qp.PostSend(&verbs.SendWR{ID: 7, Opcode: verbs.Write, Flags: verbs.Signaled, Local: a.mr.SGE(0, 5),
				Remote: b.mr.Remote(100)})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var wc [1]verbs.WC
			if _, err := a.cq.Wait(ctx, wc[:]); err != nil {
				t.Fatal(err)
			}
			if err := verbs.CompletionError(&wc[0]); err != nil || wc[0].ID != 7 || string(b.mr.Bytes()[100:105]) != "hello" {
				t.Errorf("completion: got %+v with error %v and memory %q, want ID 7 with success and hello", wc[0], err,
					b.mr.Bytes()[100:105])
			}
		})
	}
}

// TestFailedNewSoftwareLeavesNothing checks that a failing NewSoftware leaves no devices behind.
func TestFailedNewSoftwareLeavesNothing(t *testing.T) {
	for _, c := range []struct {
		devices []embed.Software
		want    string
	}{
		{[]embed.Software{{}, {Name: "rxe0"}}, "rxe0"},
		{[]embed.Software{{}, {Addr: netip.MustParseAddr("192.0.2.1")}}, "192.0.2.1"},
	} {
		s, err := embed.NewSoftware(c.devices...)
		if err == nil {
			s.Close()
			t.Fatal("no error")
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("NewSoftware: got %v, want an error that contains %q", err, c.want)
		}
	}
	s := newSoftwareStack(t)
	if _, err := s.Open("rxe7"); !errors.Is(err, verbs.ErrNoDevice) {
		t.Errorf("got %v, want ErrNoDevice", err)
	}
	if got := fmt.Sprint(s.Devices()[0].Name, s.Devices()[0].Path); got != "rxe0this process" {
		t.Errorf("got %s", got)
	}
}
