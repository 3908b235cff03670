package supervisor

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"verbena/internal/quota"
)

// TestAttachIsChargedFirst: a session is charged before anything of the launcher's is looked at that may make a thread
// wait, and nothing stays charged of one that is refused.
func TestAttachIsChargedFirst(t *testing.T) {
	var l quota.Limits
	l[quota.Sessions].PerUser = 1
	ledger := quota.New(l)
	w := newWorld(t, func(c *SupervisorConfig) { c.Quota = ledger })
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	attach := func() error {
		_, err := w.sup.Attach(null, SessionInfo{LauncherPID: os.Getpid(), Account: quota.ID{UID: 7}})
		return err
	}
	if err := attach(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a file that is no listener: %v, want EINVAL", err)
	}
	user := ledger.User(7)
	for _, c := range sessionCharges {
		if n := user.Held(c.kind); n != 0 {
			t.Errorf("%d %v are charged still", n, c.kind)
		}
	}
	if err := user.Take(quota.Sessions, 1); err != nil {
		t.Fatal(err)
	}
	if err := attach(); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("at the limit: %v, want EAGAIN", err)
	}
}
