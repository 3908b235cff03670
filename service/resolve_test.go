package service

import (
	"errors"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/internal/testutil"
)

// TestResolveNeedsOneInterface tests that a device must have one interface with an address. The test creates a network
// namespace with two interfaces.
func TestResolveNeedsOneInterface(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to create a network namespace")
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip: apt-get install iproute2")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // without an unlock, the thread and its namespace end with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		testResolveInNamespace(t)
	}()
	<-done
}

func testResolveInNamespace(t *testing.T) {
	for _, args := range []string{
		"link add d0 type veth peer name d1", "link add d2 type veth peer name d3", "addr add 10.9.8.7/24 dev d0",
		"addr add 10.9.8.8/24 dev d0", "addr add 10.9.9.7/24 dev d1",
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Errorf("ip %s: got %v, want success: %s", args, err, out)
			return
		}
	}
	for _, c := range []struct {
		what string
		spec ctl.LinkSpec
		want error
		says string
	}{
		{"an interface", ctl.LinkSpec{Netdev: "d0"}, nil, ""},
		{"an interface without an address", ctl.LinkSpec{Netdev: "d2"}, syscall.EADDRNOTAVAIL, "interface d2 has no address"},
		{"two addresses", ctl.LinkSpec{Addrs: []string{"10.9.8.7", "10.9.8.8"}}, nil, ""},
		{"addresses of two interfaces", ctl.LinkSpec{Addrs: []string{"10.9.8.7", "10.9.9.7"}}, syscall.EINVAL,
			"10.9.8.7 is an address of d0, 10.9.9.7 of d1: a device has one interface"},
	} {
		host, addrs, err := resolveInterface(&c.spec)
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %v and %q", c.what, err, c.want, c.says)
		}
		if err == nil && (host.Name != "d0" || len(addrs) != 2) {
			t.Errorf("%s: got %s, %v, want two addresses of d0", c.what, host.Name, addrs)
		}
	}
}
