package netdev

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/testutil"
)

// TestWatchReportsChanges changes interfaces in its own network namespace, and waits for the reports.
func TestWatchReportsChanges(t *testing.T) {
	testutil.SkipUnlessRoot(t, "for a network namespace")
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs the command ip: apt-get install iproute2")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // not unlocked: the thread ends together with the goroutine and the namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		watchInNamespace(t)
	}()
	<-done
}

func watchInNamespace(t *testing.T) {
	w, err := Watch()
	if err != nil {
		t.Error(err)
		return
	}
	told := make(chan error)
	go func() {
		for {
			err := w.Wait()
			told <- err
			if err != nil {
				return
			}
		}
	}()
	addr := netip.MustParseAddr("10.9.8.7")
	has := func() bool {
		i, err := ByName("d0")
		return err == nil && slices.Contains(i.Addrs, addr)
	}
	for _, s := range []struct {
		args []string
		want func() bool
	}{
		{[]string{"link", "add", "d0", "type", "veth", "peer", "name", "d1"},
			func() bool { _, err := ByName("d0"); return err == nil }},
		{[]string{"addr", "add", addr.String() + "/24", "dev", "d0"}, has},
		{[]string{"link", "set", "d0", "mtu", "4200", "up"},
			func() bool { i, err := ByName("d0"); return err == nil && i.Up && i.MTU == 4200 }},
		{[]string{"addr", "del", addr.String() + "/24", "dev", "d0"}, func() bool { return !has() }},
		{[]string{"link", "set", "d0", "down"}, func() bool { i, err := ByName("d0"); return err == nil && !i.Up }},
		{[]string{"link", "del", "d0"}, func() bool { _, err := ByName("d0"); return err != nil }},
	} {
		if out, err := exec.Command("ip", s.args...).CombinedOutput(); err != nil {
			t.Errorf("ip %v: %v %s", s.args, err, out)
			return
		}
		for heard := false; !heard || !s.want(); {
			select {
			case err := <-told:
				heard = true
				if err != nil {
					t.Errorf("after ip %v: %v", s.args, err)
					return
				}
			case <-time.After(20 * time.Second):
				t.Errorf("Wait after ip %v: got no return within 20 s, want one", s.args)
				return
			}
		}
	}
	w.Close()
	for {
		select {
		case err := <-told:
			if err == nil {
				continue
			}
			if !errors.Is(err, os.ErrClosed) {
				t.Errorf("closed: %v", err)
			}
			return
		case <-time.After(20 * time.Second):
			t.Error("Wait after Close: got no return within 20 s, want one")
			return
		}
	}
}
