package service

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/ib/slot"
	"verbena/internal/ctl"
	"verbena/internal/quota"
	"verbena/internal/testutil"
)

// TestInvalidDevRequestIsRefused tests that invalid requests to reset or unplug a device are refused, and that the
// error names the remedy.
func TestInvalidDevRequestIsRefused(t *testing.T) {
	s, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.3"}})
	reset := func(r ctl.DevReset) error {
		r.Name = "rxe0"
		_, err := c.Do(&ctl.Request{Op: ctl.OpDevReset, Reset: &r})
		return err
	}
	do := func(op ctl.Op) error {
		_, err := c.Do(&ctl.Request{Op: op, Name: "rxe0"})
		return err
	}
	steps := []struct {
		what string
		do   func() error
		want syscall.Errno
		says string
	}{
		{"reset of none", func() error { return s.DevReset(ctl.DevReset{Name: "rxe9"}) }, syscall.ENODEV, "there are: rxe0"},
		{"two moments", func() error {
			return reset(ctl.DevReset{AtWR: 1, At: ctl.DevCompletion})
		}, syscall.EINVAL, "one moment"},
		{"no such moment", func() error {
			return reset(ctl.DevReset{At: "noon"})
		}, syscall.EINVAL, "registration nor completion"},
		{"second plug", func() error { return do(ctl.OpDevPlug) }, syscall.EBUSY, "plugged in already"},
		{"hang", func() error { return do(ctl.OpDevHang) }, 0, ""},
		{"plug of a device that hangs", func() error { return do(ctl.OpDevPlug) }, syscall.EBUSY, "`verbena dev reset rxe0`"},
		{"its reset", func() error { return reset(ctl.DevReset{}) }, 0, ""},
		{"unplug", func() error { return do(ctl.OpDevUnplug) }, 0, ""},
		{"second unplug", func() error { return do(ctl.OpDevUnplug) }, syscall.ENODEV, "`verbena dev plug rxe0`"},
		{"reset without a device", func() error { return reset(ctl.DevReset{}) }, syscall.ENODEV, "`verbena dev plug rxe0`"},
		{"a moment without a device", func() error {
			return reset(ctl.DevReset{AtWR: 3})
		}, syscall.ENODEV, "`verbena dev plug rxe0`"},
		{"hang without a device", func() error { return do(ctl.OpDevHang) }, syscall.ENODEV, "`verbena dev plug rxe0`"},
		{"plug", func() error { return do(ctl.OpDevPlug) }, 0, ""},
		{"a device that is out of reach", func() error { return reset(ctl.DevReset{Unreachable: true}) }, 0, ""},
		{"which the service knows", func() error {
			testutil.Eventually(t, "the reset to begin", func() bool {
				return s.Devs(managerPeer().SeesAccount)[0].State == slot.Recovering.String()
			})
			return nil
		}, 0, ""},
		{"hang during the reset", func() error { return do(ctl.OpDevHang) }, syscall.EBUSY, "a reset is in progress"},
		{"a second reset", func() error { return reset(ctl.DevReset{}) }, syscall.EBUSY, "`verbena dev plug rxe0`"},
		{"one at a moment", func() error {
			return reset(ctl.DevReset{At: ctl.DevCompletion})
		}, syscall.EBUSY, "`verbena dev plug rxe0`"},
		{"its end", func() error { return do(ctl.OpDevPlug) }, 0, ""},
		{"a reset afterwards", func() error { return reset(ctl.DevReset{}) }, 0, ""},
	}
	for _, x := range steps {
		err := x.do()
		if x.want == 0 && err != nil || x.want != 0 && (!errors.Is(err, x.want) || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%s: got %v, want %v and %q", x.what, err, x.want, x.says)
		}
	}
}

// TestOutageEndsOnce tests that the timer of an outage that ended early does not end the next outage.
func TestOutageEndsOnce(t *testing.T) {
	s, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.4"}})
	hw := s.links.list[0].hw
	const short = 50 * time.Millisecond
	s.links.list[0].outage.begin(hw, short)
	s.links.list[0].outage.finish(hw)
	if _, err := c.Do(&ctl.Request{Op: ctl.OpDevReset,
		Reset: &ctl.DevReset{Name: "rxe0", Unreachable: true}}); err != nil {
		t.Fatal(err)
	}
	testutil.Consistently(t, 2*short, "the device to stay unreachable", func() bool {
		return s.Devs(managerPeer().SeesAccount)[0].Hardware == "unreachable"
	})
	if _, err := c.Do(&ctl.Request{Op: ctl.OpDevPlug, Name: "rxe0"}); err != nil {
		t.Error(err)
	}
}

// TestArmedMomentCanBeCancelled tests that armed moments are shown and can be cancelled.
func TestArmedMomentCanBeCancelled(t *testing.T) {
	_, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.5"}})
	armed := func() string {
		t.Helper()
		r, err := c.Do(&ctl.Request{Op: ctl.OpDevShow})
		if err != nil {
			t.Fatal(err)
		}
		return r.Devs[0].Armed
	}
	for _, r := range []ctl.DevReset{{AtWR: 7}, {At: ctl.DevCompletion}} {
		r.Name = "rxe0"
		if _, err := c.Do(&ctl.Request{Op: ctl.OpDevReset, Reset: &r}); err != nil {
			t.Fatal(err)
		}
	}
	if a := armed(); a != "work request 7, completion handler" {
		t.Errorf("armed moment: got %q, want the requested one", a)
	}
	if _, err := c.Do(&ctl.Request{Op: ctl.OpDevReset, Reset: &ctl.DevReset{Name: "rxe0", Cancel: true}}); err != nil {
		t.Fatal(err)
	}
	if a := armed(); a != "" {
		t.Errorf("armed moment after the cancellation: got %q, want none", a)
	}
}

// TestUserSeesOwnContextsOnly tests that a user other than the service's owner sees the devices, but only the user's
// own contexts.
func TestUserSeesOwnContextsOnly(t *testing.T) {
	other := userPeer(4242)
	for _, op := range []ctl.Op{ctl.OpDevShow, ctl.OpLinkShow} {
		if err := other.authorize(op); err != nil {
			t.Errorf("%s: got %v, want success", op, err)
		}
	}
	for _, op := range []ctl.Op{ctl.OpDevReset, ctl.OpDevPlug, ctl.OpDevUnplug, ctl.OpDevHang, ctl.OpDevEvent,
		ctl.OpLinkSet, ctl.OpFaultAdd, ctl.OpFaultClear, ctl.OpQPShow, ctl.OpQPTrace, ctl.OpStop} {
		if err := other.authorize(op); !errors.Is(err, syscall.EPERM) {
			t.Errorf("%s: got %v, want EPERM", op, err)
		}
	}
	if !other.SeesAccount(quota.ID{UID: 4242}) || other.SeesAccount(quota.ID{}) {
		t.Error("Sees of user 4242: got true for root or false for the user itself, want the opposite")
	}
}

// TestOtherVersionMayOnlyEndService tests that a command of another version can end the service or replace an idle
// service, and can do nothing else. The error names the older version and the remedy.
func TestOtherVersionMayOnlyEndService(t *testing.T) {
	defer func(b string) { ctl.BuildName = b }(ctl.BuildName)
	ctl.BuildName = "verbena v2"
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.6"}})
	for _, r := range []struct {
		ctl.Request
		want string
	}{
		{ctl.Request{Protocol: ctl.ProtocolVersion + 1, Op: ctl.OpDevShow, Build: "verbena v3"},
			"the running service (process PID, verbena v2, control protocol N) is older than this command (verbena v3, control protocol N+1): end it with `verbena stop`, and run this again"},
		{ctl.Request{Protocol: ctl.ProtocolVersion + 1, Op: ctl.OpInfo},
			"is older than this command (of an unnamed version, control protocol N+1): end it with `verbena stop`"},
		{ctl.Request{Protocol: ctl.ProtocolVersion - 1, Op: ctl.OpDevReset},
			"is newer than this command (of an unnamed version, control protocol N-1): use the newer verbena, or end the service with `verbena stop`"},
		{ctl.Request{Protocol: ctl.ProtocolVersion, Op: "new", Build: "verbena v3"},
			"is older than this command (verbena v3, control protocol N): end it with `verbena stop`"},
	} {
		want := strings.NewReplacer("PID", strconv.Itoa(os.Getpid()), "N+1", strconv.Itoa(ctl.ProtocolVersion+1), "N-1",
			strconv.Itoa(ctl.ProtocolVersion-1),
			"N", strconv.Itoa(ctl.ProtocolVersion)).Replace(r.want)
		if _, err := s.executeRequest(peer{}, &r.Request); !errors.Is(err, syscall.EPROTO) || !strings.Contains(err.Error(),
			want) {
			t.Errorf("%s, protocol %d:\n got %v\nwant %v", r.Op, r.Protocol, err, want)
		}
	}
	if _, err := s.executeRequest(peer{}, &ctl.Request{Protocol: ctl.ProtocolVersion + 1,
		Op: ctl.OpYield}); !errors.Is(err,
		syscall.EBUSY) {
		t.Errorf("Yield: got %v, want EBUSY", err)
	}
	if _, err := s.executeRequest(peer{}, &ctl.Request{Protocol: ctl.ProtocolVersion + 1, Op: ctl.OpStop}); err != nil {
		t.Errorf("Stop: got %v, want success", err)
	}
}

func TestDialRefusesLongPath(t *testing.T) {
	_, err := ctl.Dial(ctl.Location{Socket: "/tmp/" + strings.Repeat("x", 200)})
	if !errors.Is(err, syscall.ENAMETOOLONG) || !strings.Contains(err.Error(), "VERBENA_SOCKET") {
		t.Error(err)
	}
}
