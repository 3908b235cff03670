package service

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/internal/quota"
	"verbena/internal/testutil"
	"verbena/supervisor"
)

// TestUserRequestsAreAuthorized tests the answer to each request of a user who is not a manager. Requests that affect
// other users or show their objects are refused.
func TestUserRequestsAreAuthorized(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.33"}})
	ends := testutil.NewUnixPair(t)
	go s.serveAndClose(ctl.Conn{UnixConn: ends[0]}, userPeer(4242), 0)
	c := ctl.NewClient(ends[1], os.Getpid(), os.Geteuid())
	for _, op := range []ctl.Op{
		ctl.OpStop, ctl.OpYield, ctl.OpLinkAdd, ctl.OpLinkDel, ctl.OpLinkSet, ctl.OpDevReset, ctl.OpDevUnplug,
		ctl.OpDevPlug, ctl.OpDevHang,
		ctl.OpDevEvent, ctl.OpFaultAdd, ctl.OpFaultShow, ctl.OpFaultClear, ctl.OpQPShow, ctl.OpQPTrace, ctl.OpProfile,
		ctl.OpCapture, "unknown",
	} {
		if _, err := c.Do(&ctl.Request{Op: op, Name: "rxe0"}); !errors.Is(err, syscall.EPERM) {
			t.Errorf("%s by a user: got %v, want EPERM", op, err)
		}
	}
	if _, err := c.Do(&ctl.Request{Op: ctl.OpExplain, Explain: &ctl.Explain{}}); err != nil {
		t.Errorf("%s by a user: got %v, want success", ctl.OpExplain, err)
	}
	for _, op := range []ctl.Op{ctl.OpInfo, ctl.OpLinkShow, ctl.OpResShow, ctl.OpDevShow, ctl.OpStatShow} {
		if _, err := c.Do(&ctl.Request{Op: op}); err != nil {
			t.Errorf("%s by a user: got %v, want success", op, err)
		}
	}
	testutil.Eventually(t, "the answered requests to end", func() bool {
		s.requests.mu.Lock()
		defer s.requests.mu.Unlock()
		return s.requests.users[quota.ID{UID: 4242}] == 0
	})
	for range maxRequests {
		done, ok := s.requests.countItem(quota.ID{UID: 4242}, maxRequests)
		if !ok {
			t.Fatal("begin a request below the limit: got a refusal, want success")
		}
		defer done()
	}
	if _, err := c.Do(&ctl.Request{Op: ctl.OpInfo}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("request beyond the limit of a user: got %v, want EBUSY", err)
	}
}

// TestTraceIsRefusedAtDescriptorLimit tests that a user at the limit of descriptors gets no trace.
func TestTraceIsRefusedAtDescriptorLimit(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.34"}})
	user := s.quota.User(4242)
	n := s.quota.Limits()[quota.Descriptors].UserMaximum()
	for n > 0 && user.Charge(quota.Descriptors, n) != nil {
		n--
	}
	defer user.Release(quota.Descriptors, n)
	if _, theirs, end, err := s.startTrace(userPeer(4242)); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("start a trace without free descriptors: got %v, want EMFILE", err)
		if err == nil {
			theirs.Close()
			end()
		}
	}
}

// TestSharedSocketOwnerAndMode tests the owner and the mode of a control socket for other users. The service does not
// start if it cannot set the owner and mode of the socket.
func TestSharedSocketOwnerAndMode(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		shared *supervisor.Node
		mode   uint32
		gid    int
	}{
		"own":    {nil, 0o600, os.Getegid()},
		"shared": {&supervisor.Node{UID: os.Geteuid(), GID: os.Getegid(), Mode: 0o660}, 0o660, os.Getegid()},
	} {
		loc := ctl.Location{Socket: filepath.Join(dir, name)}
		l, err := Listen(loc, c.shared)
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(loc.Socket, &st); err != nil || st.Mode&0o777 != c.mode || int(st.Uid) != os.Geteuid() ||
			int(st.Gid) != c.gid {
			t.Errorf("%s: got mode %#o, owner %d:%d and error %v", name, st.Mode&0o777, st.Uid, st.Gid, err)
		}
		l.CloseAndUnlock()
	}
}

// TestDeviceNameInUseIsRefused tests that a device name is refused while another link has the name, even if that link
// is incomplete. An ending service accepts no new link.
func TestDeviceNameInUseIsRefused(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.35"}})
	if err := s.links.reserveName(s.ended, "rxe0"); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("reserve the name of a link: got %v, want EEXIST", err)
	}
	if err := s.links.reserveName(s.ended, "rxe1"); err != nil {
		t.Fatal(err)
	}
	defer s.links.releaseName("rxe1")
	if err := s.links.reserveName(s.ended, "rxe1"); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("reserve the name of an incomplete link: got %v, want EEXIST", err)
	}
	s.stop()
	if err := s.links.reserveName(s.ended, "rxe2"); err == nil {
		s.links.releaseName("rxe2")
		t.Error("reserve while the service ends: got success, want an error")
	}
}

// TestProgramAddsOnlyRXELinks tests that a program's `rdma link add` creates devices of type rxe only.
func TestProgramAddsOnlyRXELinks(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.36"}})
	if err := (netlinkLinks{&s.links}).AddLink("rxe1", "siw", "lo"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("add a link of another type: got %v, want EINVAL", err)
	}
}
