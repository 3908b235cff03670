package supervisor

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"verbena/internal/quota"
)

// TestAttachIsChargedFirst tests that Attach charges a session before any access to the launcher's objects that can
// block, and that a refused session leaves no charge.
func TestAttachIsChargedFirst(t *testing.T) {
	var l quota.Limits
	l[quota.Sessions].PerUser = 1
	ledger := quota.New(l)
	w := newFixture(t, func(c *SupervisorConfig) { c.Quota = ledger })
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
		t.Errorf("attach a file other than a listener: got %v, want EINVAL", err)
	}
	user := ledger.User(7)
	for _, c := range sessionCharges {
		if n := user.Held(c.kind); n != 0 {
			t.Errorf("charge after the refusal: got %d %v, want 0", n, c.kind)
		}
	}
	if err := user.Charge(quota.Sessions, 1); err != nil {
		t.Fatal(err)
	}
	if err := attach(); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("attach at the limit: got %v, want EAGAIN", err)
	}
}
