package remote

import (
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/internal/quota"
	"verbena/internal/testutil"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/uverbs"
)

// TestReplacedRunner: a thread that is stopped at a file is replaced by another, once, which leaves that file alone; it ends when it comes
// back, and the other looks at the file again.
func TestReplacedRunner(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var core ib.Core
	dev, err := rxe.New(rxe.Config{
		Name: "rxe0", Netdev: netdev.Interface{Name: "lo", Index: 1, MTU: 65536, Up: true, Running: true},
		Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Network: simnet.New(simnet.Config{}), Fabric: &rxe.Fabric{},
	})
	must(err)
	defer dev.Close()
	must(core.Register(dev.Handle()))
	defer core.Unregister(dev.Handle())
	u, err := uverbs.NewServer(&core, uverbs.ServerOptions{})
	must(err)
	defer u.Close()
	ledger := quota.New(quota.Limits{})
	s := New(Config{Uverbs: u, Quota: ledger})
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	must(err)
	f, _, err := s.Open(Client{PID: os.Getpid(), UID: os.Getuid(), Process: os.NewFile(uintptr(pidfd), "pidfd")}, "rxe0")
	must(err)
	user := ledger.User(os.Getuid())
	p := f.poller
	current := func() *runner {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.current
	}
	x := (*p.files.Load())[0]
	testutil.Eventually(t, "the file for the test", func() bool { return x.busy.CompareAndSwap(false, true) })
	old := current()
	x.by = old
	x.Stalled()
	testutil.Eventually(t, "another thread", func() bool { return current() != old })
	replaced := current()
	x.Stalled() // late
	p.mu.Lock()
	p.wakeLocked() // the old thread comes back
	p.mu.Unlock()
	<-old.ended
	testutil.Eventually(t, "one thread to be left", func() bool { return user.Held(quota.Workers) == 1 })
	if current() != replaced {
		t.Error("the thread that has come back was replaced once more")
	}
	x.busy.Store(false)
	p.mu.Lock()
	p.wakeLocked()
	p.mu.Unlock()
	testutil.Eventually(t, "the other thread to look at the file", func() bool {
		if !x.busy.CompareAndSwap(false, true) {
			return false
		}
		by := x.by
		x.busy.Store(false)
		return by == replaced
	})
	f.Close()
	testutil.Eventually(t, "everything to be given back", func() bool {
		for k := range quota.NumKinds {
			if user.Held(k) != 0 {
				return false
			}
		}
		return true
	})
}
