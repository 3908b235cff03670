package service

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"verbena/driver"
	"verbena/driver/rxe"
	"verbena/internal/ctl"
	"verbena/internal/fault"
)

// rxeDrivers returns the rxe driver.
func rxeDrivers() []driver.Driver { return []driver.Driver{&rxe.Driver{}} }

// newService makes a service with the rxe driver.
func newService(opts Options) (*Service, error) {
	opts.Drivers = rxeDrivers()
	return New(opts)
}

// newServedService returns a service with the links, and a client of it.
func newServedService(t *testing.T, links ...ctl.LinkSpec) (*Service, *ctl.Client) {
	t.Helper()
	s, err := newService(Options{Links: links})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "control")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	go s.ServeConn(ends[0])
	c := ctl.NewClient(ends[1], os.Getpid(), os.Geteuid())
	t.Cleanup(func() { c.Close() })
	return s, c
}

// TestClientEndsCaptureStream tests that a capture is a stream ended by the client, and that the control connection
// serves other requests meanwhile.
func TestClientEndsCaptureStream(t *testing.T) {
	s, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.1"}})
	for _, bad := range []struct {
		capture ctl.Capture
		errno   syscall.Errno
	}{{ctl.Capture{Dev: "rxe7"}, syscall.ENODEV}, {ctl.Capture{Filter: "qp=x"}, syscall.EINVAL}} {
		if _, err := c.Capture(bad.capture); !errors.Is(err, bad.errno) {
			t.Errorf("capture %+v: got %v, want %v", bad.capture, err, bad.errno)
		}
	}
	stream, err := c.Capture(ctl.Capture{Filter: "dir=in"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if err := s.links.createLink(ctl.LinkSpec{Name: "rxe1", Addrs: []string{"127.91.8.2"}}); err != nil {
		t.Fatal(err)
	}
	if r, err := c.Do(&ctl.Request{Op: ctl.OpLinkShow}); err != nil || len(r.Links) != 2 {
		t.Errorf("link show: got %+v and error %v, want 2 links", r, err)
	}
	if !s.links.list[0].taps.On() || !s.links.list[1].taps.On() {
		t.Error("taps: a device has none, want one")
	}
	stream.RequestEnd()
	file, err := io.ReadAll(stream)
	if err != nil || stream.Result() != (ctl.CaptureEnd{}) {
		t.Errorf("end of the capture: got %+v and error %v, want success", stream.Result(), err)
	}
	ng, err := pcapgo.NewNgReader(bytes.NewReader(file), pcapgo.NgReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := ng.ReadPacketData(); !errors.Is(err, io.EOF) {
		t.Errorf("read after the end: got a packet or %v, want io.EOF", err)
	}
	for i, name := range []string{"rxe0", "rxe1"} {
		if f, err := ng.Interface(i); err != nil || f.Name != name || f.Filter != "dir=in" {
			t.Errorf("interface %d: got %+v and error %v, want %s with filter dir=in", i, f, err, name)
		}
	}
	if s.links.list[0].taps.On() || s.links.list[1].taps.On() {
		t.Error("taps: a device still has one after the capture")
	}
}

// TestServiceEndEndsCaptures tests that the end of the service ends its captures.
func TestServiceEndEndsCaptures(t *testing.T) {
	s, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.3"}})
	stream, err := c.Capture(ctl.Capture{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	s.Stop()
	if file, err := io.ReadAll(stream); err != nil || len(file) == 0 {
		t.Errorf("capture at the end of the service: got %d bytes and error %v, want a complete file", len(file), err)
	}
	if _, err := c.Capture(ctl.Capture{}); !errors.Is(err, syscall.ESHUTDOWN) {
		t.Errorf("capture of an ended service: got %v, want ESHUTDOWN", err)
	}
}

// TestFaultRuleNumbersAreUnique tests that rule numbers are unique across devices, and that rules are cleared one by
// one.
func TestFaultRuleNumbersAreUnique(t *testing.T) {
	_, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.4"}},
		ctl.LinkSpec{Name: "rxe1", Addrs: []string{"127.91.8.5"}})
	add := func(dev string, r fault.Rule) int {
		t.Helper()
		a, err := c.Do(&ctl.Request{Op: ctl.OpFaultAdd, Fault: &ctl.FaultRule{Dev: dev, Rule: r}})
		if err != nil {
			t.Fatal(err)
		}
		return a.ID
	}
	ids := []int{add("rxe0", fault.Rule{Drop: 0.5}), add("rxe1", fault.Rule{Stop: true}), add("rxe0", fault.Rule{RNR: 1})}
	if !slices.Equal(ids, []int{1, 2, 3}) {
		t.Errorf("rule numbers: got %v, want unique numbers", ids)
	}
	show := func() (s string) {
		t.Helper()
		a, err := c.Do(&ctl.Request{Op: ctl.OpFaultShow})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range a.Faults {
			s += r.Dev + " " + r.Rule.String() + "; "
		}
		return s
	}
	for _, step := range []struct {
		clear ctl.Request
		errno syscall.Errno
		want  string
	}{
		{ctl.Request{ID: 2}, 0, "rxe0 drop 0.5; rxe0 rnr 1; "},
		{ctl.Request{ID: 2}, syscall.ENOENT, "rxe0 drop 0.5; rxe0 rnr 1; "},
		{ctl.Request{ID: 3, Name: "rxe1"}, syscall.ENOENT, "rxe0 drop 0.5; rxe0 rnr 1; "},
		{ctl.Request{Name: "rxe1"}, 0, "rxe0 drop 0.5; rxe0 rnr 1; "},
		{ctl.Request{Name: "rxe9"}, syscall.ENODEV, "rxe0 drop 0.5; rxe0 rnr 1; "},
		{ctl.Request{ID: 1, Name: "rxe0"}, 0, "rxe0 rnr 1; "},
		{ctl.Request{}, 0, ""},
	} {
		r := step.clear
		r.Op = ctl.OpFaultClear
		_, err := c.Do(&r)
		if step.errno == 0 && err != nil || step.errno != 0 && !errors.Is(err, step.errno) {
			t.Errorf("clear rule %d of device %q: got %v, want %v", r.ID, r.Name, err, step.errno)
		}
		if got := show(); got != step.want {
			t.Errorf("clear rule %d of device %q: got remaining rules %q, want %q", r.ID, r.Name, got, step.want)
		}
	}
	_, err := c.Do(&ctl.Request{Op: ctl.OpFaultAdd,
		Fault: &ctl.FaultRule{Dev: "rxe0", Rule: fault.Rule{Stop: true, Drop: 1}}})
	if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "stop and rnr") {
		t.Errorf("add a rule with stop and drop: got %v, want EINVAL for stop and rnr", err)
	}
}
