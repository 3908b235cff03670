package service

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/ctl"
	"verbena/internal/fault"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/netdev"
)

// subscribePortEvents returns a channel of the port events of a link's device.
func subscribePortEvents(l *rdmaLink) <-chan ib.EventType {
	events := make(chan ib.EventType, 10_000)
	l.dev.Handle().Device().OnEvent(func(e ib.Event) {
		if e.Port != 1 {
			events <- ib.EventDeviceFatal // the event is for the wrong port
		}
		events <- e.Type
	})
	return events
}

func wantEvents(t *testing.T, events <-chan ib.EventType, want ...ib.EventType) {
	t.Helper()
	for _, w := range want {
		select {
		case e := <-events:
			if e != w {
				t.Errorf("event: got %v, want %v", e, w)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("event %v: got none in 20 s, want one", w)
		}
	}
	if len(events) > 0 {
		t.Errorf("got event %v, want no more", <-events)
	}
}

// wantPortFile checks the content of a file of the port in the tree shown to programs.
func wantPortFile(t *testing.T, s *Service, name, want string) {
	t.Helper()
	// The file changes shortly after the event, so wantPortFile waits.
	testutil.Eventually(t, fmt.Sprintf("%s of the port to be %q", name, want), func() bool {
		b, err := os.ReadFile(s.dir.path + "/trees/1/sys/class/infiniband/rxe0/ports/1/" + name)
		return err == nil && string(b) == want
	})
}

// TestLinkDownLooksLikeNoCarrier tests that consumers and programs see a link that is down as a link without a carrier,
// also after a reset.
func TestLinkDownLooksLikeNoCarrier(t *testing.T) {
	s, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.0.30.1"}})
	l := s.links.list[0]
	events := subscribePortEvents(l)
	set := func(r ctl.LinkSet) {
		t.Helper()
		r.Name = "rxe0"
		if _, err := c.Do(&ctl.Request{Op: ctl.OpLinkSet, Set: &r}); err != nil {
			t.Fatal(err)
		}
	}
	set(ctl.LinkSet{State: ctl.LinkDown})
	wantEvents(t, events, ib.EventPortErr)
	wantPortFile(t, s, "state", "1: DOWN\n")
	wantPortFile(t, s, "phys_state", "2: Polling\n")
	if !l.faults.Active() {
		t.Error("path of packets on a link that is down: got the shortcut, want the full path")
	}
	if g, err := l.dev.Handle().Device().QueryGID(1, 1); err != nil || g.GID.IsZero() {
		t.Errorf("GID: got %v, %v, want no change", g, err)
	}
	set(ctl.LinkSet{State: ctl.LinkDown}) // repeating the state changes nothing
	wantEvents(t, events)
	s.links.setInterface(l, []netdev.Interface{*l.host}) // a change of the interface keeps the state
	wantEvents(t, events)

	if err := s.DevReset(ctl.DevReset{Name: "rxe0"}); err != nil {
		t.Fatal(err)
	}
	if p, err := l.hw.Device().Handle().Device().QueryPort(1); err != nil || p.State != ib.PortDown {
		t.Errorf("port state after a reset: got %v and error %v, want down", p.State, err)
	}
	testutil.Eventually(t, "the link to have the new device", func() bool {
		s.links.mu.Lock()
		defer s.links.mu.Unlock()
		return l.dev == l.hw.Device()
	})
	events = subscribePortEvents(l)
	if list, err := s.Links(); err != nil || list[0].Link != ctl.LinkDown || list[0].State != "DOWN" {
		t.Errorf("link show: got %+v and error %v, want link and state down", list, err)
	}
	set(ctl.LinkSet{State: ctl.LinkUp})
	wantEvents(t, events, ib.EventPortActive)
	wantPortFile(t, s, "state", "4: ACTIVE\n")
	wantPortFile(t, s, "phys_state", "5: LinkUp\n")
	if l.faults.Active() {
		t.Error("path of packets on a link that is up: got the full path, want the shortcut")
	}
}

// TestRateChangesSpeed tests that the rate of a link changes the speed of the port, also for programs and after a
// reset, and raises an event of the device.
func TestRateChangesSpeed(t *testing.T) {
	s, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.0.30.1"}})
	l := s.links.list[0]
	events := make(chan ib.Event, 100)
	l.dev.Handle().Device().OnEvent(func(e ib.Event) { events <- e })
	for _, x := range []struct {
		shape fault.Shape
		event bool
		units uint64
		rate  string // file of the port
	}{
		{fault.Shape{Rate: 100e9}, true, 1000, "100 Gb/sec (4X EDR)\n"},
		{fault.Shape{Rate: 100e9, Delay: time.Microsecond}, false, 1000, "100 Gb/sec (4X EDR)\n"},
		{fault.Shape{Rate: 25e9}, true, 250, "25 Gb/sec (1X EDR)\n"},
		{fault.Shape{Delay: time.Microsecond}, true, 25, "2.5 Gb/sec (1X SDR)\n"},
		{fault.Shape{}, false, 25, "2.5 Gb/sec (1X SDR)\n"},
		{fault.Shape{Rate: 800e9}, true, 8000, "800 Gb/sec (4X XDR)\n"},
	} {
		if _, err := c.Do(&ctl.Request{Op: ctl.OpLinkSet, Set: &ctl.LinkSet{Name: "rxe0", Shape: &x.shape}}); err != nil {
			t.Fatal(err)
		}
		if x.event {
			select {
			case e := <-events:
				if e.Type != ib.EventDeviceSpeedChange || e.Port != 0 {
					t.Errorf("%v: got event %v of port %d, want a speed change of the device", x.shape, e.Type, e.Port)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("%v: got no event in 20 s, want one", x.shape)
			}
		}
		if n, err := l.dev.Handle().Device().QueryPortSpeed(1); err != nil || n != x.units {
			t.Errorf("%v: got speed %d and error %v, want %d", x.shape, n, err, x.units)
		}
		wantPortFile(t, s, "rate", x.rate)
	}
	if _, err := c.Do(&ctl.Request{Op: ctl.OpLinkSet, Set: &ctl.LinkSet{Name: "rxe0", MTU: 1024}}); err != nil {
		t.Fatal(err)
	}
	if err := s.DevReset(ctl.DevReset{Name: "rxe0"}); err != nil {
		t.Fatal(err)
	}
	if n, err := l.hw.Device().Handle().Device().QueryPortSpeed(1); err != nil || n != 8000 {
		t.Errorf("speed after a reset: got %d and error %v, want 8000", n, err)
	}
	for len(events) > 0 {
		if e := <-events; e.Type == ib.EventDeviceSpeedChange {
			t.Errorf("change of the MTU, or a reset: got a speed change, want none")
		}
	}
}

// TestLinkFlapRaisesBothEvents tests that a flap raises both events, returns when the link is up, and ends when another
// change replaces it.
func TestLinkFlapRaisesBothEvents(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.0.30.1"}})
	l := s.links.list[0]
	events := subscribePortEvents(l)
	for range 5 {
		if err := s.links.changeLink(ctl.LinkSet{Name: "rxe0", State: ctl.LinkFlap, Down: time.Microsecond}); err != nil {
			t.Fatal(err)
		}
		wantEvents(t, events, ib.EventPortErr, ib.EventPortActive)
	}
	for _, by := range []ctl.LinkState{ctl.LinkUp, ctl.LinkDown, ctl.LinkFlap} {
		done := make(chan error)
		go func() { done <- s.links.changeLink(ctl.LinkSet{Name: "rxe0", State: ctl.LinkFlap, Down: time.Hour}) }()
		wantEvents(t, events, ib.EventPortErr)
		if err := s.links.changeLink(ctl.LinkSet{Name: "rxe0", State: by}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("flap replaced by %s: got %v, want success", by, err)
		}
		want := map[ctl.LinkState]ctl.LinkState{ctl.LinkUp: ctl.LinkUp, ctl.LinkDown: ctl.LinkDown,
			ctl.LinkFlap: ctl.LinkUp}[by]
		if list, err := s.Links(); err != nil || list[0].Link != want {
			t.Errorf("link after %s: got %+v and error %v, want %v", by, list, err, want)
		}
		if err := s.links.changeLink(ctl.LinkSet{Name: "rxe0", State: ctl.LinkUp}); err != nil {
			t.Fatal(err)
		}
		wantEvents(t, events, ib.EventPortActive)
	}
	// After concurrent changes, the link has the state of the last change.
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for range 4 {
				state := []ctl.LinkState{ctl.LinkUp, ctl.LinkDown, ctl.LinkFlap}[i%3]
				down := time.Duration(0)
				if state == ctl.LinkFlap {
					down = 1
				}
				if err := s.links.changeLink(ctl.LinkSet{Name: "rxe0", State: state, Down: down}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := s.links.changeLink(ctl.LinkSet{Name: "rxe0", State: ctl.LinkUp}); err != nil {
		t.Fatal(err)
	}
	if p, err := l.dev.Handle().Device().QueryPort(1); err != nil || p.State != ib.PortActive || l.faults.Active() {
		t.Errorf("concurrent changes: got %v, %v, full path %v, want an active port", p.State, err, l.faults.Active())
	}
	// changeLink with a flap returns when the service ends or the link is deleted.
	done := make(chan error)
	go func() { done <- s.links.changeLink(ctl.LinkSet{Name: "rxe0", State: ctl.LinkFlap, Down: time.Hour}) }()
	testutil.Eventually(t, "the link to go down", func() bool { return l.faults.Active() })
	s.Stop()
	if err := <-done; !errors.Is(err, syscall.ESHUTDOWN) {
		t.Errorf("flap at the end of the service: got %v, want ESHUTDOWN", err)
	}
}

// TestActiveMTUIsMinimum tests that the active MTU is the lower of the requested MTU and the MTU of the interface.
func TestActiveMTUIsMinimum(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.0.30.1"}})
	for _, x := range []struct{ set, want int }{{1024, 1024}, {256, 256}, {4096, 4096}, {ctl.UseInterfaceMTU, 4096}} {
		if err := s.links.changeLink(ctl.LinkSet{Name: "rxe0", MTU: x.set}); err != nil {
			t.Fatal(err)
		}
		p, err := s.links.list[0].dev.Handle().Device().QueryPort(1)
		if err != nil || p.ActiveMTU.Bytes() != x.want || p.State != ib.PortActive {
			t.Errorf("active MTU after %d: got %v and error %v, want %d and an active port", x.set, p, err, x.want)
		}
	}
}

// TestLongestFlapAndLargestMTU tests the longest flap, and the largest MTU for an interface.
func TestLongestFlapAndLargestMTU(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.0.30.2"}})
	// This link is not in the service's list, so the service does not update it.
	l := &rdmaLink{host: &netdev.Interface{Name: "eth7", MTU: 1500}}
	for _, tt := range []struct {
		r    ctl.LinkSet
		want string // "" means no error
	}{
		{ctl.LinkSet{State: ctl.LinkFlap, Down: -1}, "a flap of -1ns is not from 0 to 1h0m0s: invalid argument"},
		{ctl.LinkSet{State: ctl.LinkFlap}, ""},
		{ctl.LinkSet{State: ctl.LinkFlap, Down: ctl.MaxFlap}, ""},
		{ctl.LinkSet{State: ctl.LinkFlap, Down: ctl.MaxFlap + 1},
			"a flap of 1h0m0.000000001s is not from 0 to 1h0m0s: invalid argument"},
		{ctl.LinkSet{MTU: 1024}, ""},
		{ctl.LinkSet{MTU: 2048}, "mtu 2048: the MTU of eth7 is 1500, which leaves 1024: invalid argument"},
	} {
		got := ""
		if err := s.links.checkLinkSet(l, &tt.r); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%+v: got error %q, want %q", tt.r, got, tt.want)
		}
	}
}

// TestInvalidLinkSetIsRefused tests that invalid requests are refused without effect.
func TestInvalidLinkSetIsRefused(t *testing.T) {
	s, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.0.30.1"}})
	good := &fault.Shape{Rate: 1e9}
	for _, x := range []struct {
		r    ctl.LinkSet
		want syscall.Errno
		says string
	}{
		{ctl.LinkSet{Name: "rxe9", State: ctl.LinkUp}, syscall.ENODEV, "there are: rxe0"},
		{ctl.LinkSet{}, syscall.EINVAL, "nothing to change"},
		{ctl.LinkSet{State: "sideways", Shape: good}, syscall.EINVAL, "up, down and flap"},
		{ctl.LinkSet{State: ctl.LinkFlap, Down: -1, Shape: good}, syscall.EINVAL, "from 0 to 1h"},
		{ctl.LinkSet{State: ctl.LinkFlap, Down: 1 << 62, Shape: good}, syscall.EINVAL, "from 0 to 1h"},
		{ctl.LinkSet{State: ctl.LinkDown, Down: 1, Shape: good}, syscall.EINVAL, "flap alone"},
		{ctl.LinkSet{State: ctl.LinkUp, AtWR: 1, Shape: good}, syscall.EINVAL, "down and flap only"},
		{ctl.LinkSet{AtPacket: 1, Shape: good}, syscall.EINVAL, "down and flap only"},
		{ctl.LinkSet{State: ctl.LinkDown, AtPacket: 1, AtWR: 1}, syscall.EINVAL, "one moment"},
		{ctl.LinkSet{State: ctl.LinkDown, Cancel: true}, syscall.EINVAL, "excludes other changes"},
		{ctl.LinkSet{Shape: good, MTU: 1500}, syscall.EINVAL, "256, 512, 1024"},
		{ctl.LinkSet{Shape: good, MTU: -2}, syscall.EINVAL, "256, 512, 1024"},
		{ctl.LinkSet{Shape: good, MTU: 8192}, syscall.EINVAL, "256, 512, 1024"},
		{ctl.LinkSet{MTU: 256, Shape: &fault.Shape{Rate: 1<<64 - 1}}, syscall.EINVAL, "bit/s"},
		{ctl.LinkSet{MTU: 256, Shape: &fault.Shape{Delay: -1}}, syscall.EINVAL, "delay"},
		{ctl.LinkSet{Shape: &fault.Shape{Seed: 1}}, syscall.EINVAL, "for jitter and loss"},
	} {
		if x.r.Name == "" {
			x.r.Name = "rxe0"
		}
		_, err := c.Do(&ctl.Request{Op: ctl.OpLinkSet, Set: &x.r})
		if !errors.Is(err, x.want) || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%+v: got %v, want %v and %q", x.r, err, x.want, x.says)
		}
	}
	if _, err := c.Do(&ctl.Request{Op: ctl.OpLinkSet}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("empty request: got %v, want EINVAL", err)
	}
	list, err := s.Links()
	if err != nil || list[0].Shape != nil || list[0].MaxMTU != 0 || list[0].Armed != "" || list[0].Link != ctl.LinkUp {
		t.Errorf("link after refused requests: got %+v and error %v, want no change", list, err)
	}
	if err := s.DevUnplug("rxe0"); err != nil {
		t.Fatal(err)
	}
	err = s.links.changeLink(ctl.LinkSet{Name: "rxe0", State: ctl.LinkDown, AtWR: 1})
	if !errors.Is(err, syscall.ENODEV) {
		t.Errorf("moment without a device: got %v, want ENODEV", err)
	}
	// changeLink accepts a link that has no device. The next device starts in the new state.
	if err := s.links.changeLink(ctl.LinkSet{Name: "rxe0", State: ctl.LinkDown, Shape: good, MTU: 512}); err != nil {
		t.Fatal(err)
	}
	if err := s.DevPlug("rxe0"); err != nil {
		t.Fatal(err)
	}
	if p, err := s.links.list[0].hw.Device().Handle().Device().QueryPort(1); err != nil || p.State != ib.PortDown ||
		p.ActiveMTU.Bytes() != 512 {
		t.Errorf("plugged device: got %+v and error %v, want MTU 512", p, err)
	}
	if list, err := s.Links(); err != nil || list[0].Shape == nil || *list[0].Shape != *good {
		t.Errorf("link show: got %+v and error %v, want the shape %+v", list, err, *good)
	}
}

// TestArmedLinkMomentIsShown tests that a link shows its armed moment until the moment is reached or cancelled, or the
// device is replaced.
func TestArmedLinkMomentIsShown(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.0.30.1"}})
	armed := func() string {
		t.Helper()
		list, err := s.Links()
		if err != nil {
			t.Fatal(err)
		}
		return list[0].Armed
	}
	set := func(r ctl.LinkSet) {
		t.Helper()
		r.Name = "rxe0"
		if err := s.links.changeLink(r); err != nil {
			t.Fatal(err)
		}
	}
	set(ctl.LinkSet{State: ctl.LinkDown, AtWR: 17})
	if got := armed(); got != "down at send work request 17" {
		t.Errorf("armed moment: got %q, want down at send work request 17", got)
	}
	set(ctl.LinkSet{State: ctl.LinkFlap, AtPacket: 1 << 63})
	if got := armed(); got != "flap at packet 9223372036854775808" {
		t.Errorf("armed moment: got %q, want flap at packet 9223372036854775808", got)
	}
	if !s.links.list[0].faults.Active() {
		t.Error("path of packets with an armed moment: got the shortcut, want the full path")
	}
	set(ctl.LinkSet{Cancel: true})
	if got := armed(); got != "" || s.links.list[0].faults.Active() {
		t.Errorf("armed moment after its end: got %q, want none", got)
	}
	set(ctl.LinkSet{State: ctl.LinkDown, AtWR: 3})
	set(ctl.LinkSet{State: ctl.LinkUp}) // replaces the armed moment
	if got := armed(); got != "" {
		t.Errorf("armed moment after another change: got %q, want none", got)
	}
	set(ctl.LinkSet{State: ctl.LinkDown, AtWR: 3})
	if err := s.DevReset(ctl.DevReset{Name: "rxe0"}); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "the moment to be reached", func() bool { return armed() == "" })

	set(ctl.LinkSet{State: ctl.LinkDown, AtPacket: 1})
	tr := link.Train{Dst: s.links.list[0].addrs[0], Size: 100, Buf: make([]byte, 100)}
	if err := s.links.list[0].hw.Device().Endpoints()[0].Send(&tr); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "the link to go down", func() bool {
		list, _ := s.Links()
		return list[0].State == "DOWN" && list[0].Armed == ""
	})
}
