package slot

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// lostHardware is found lost just before a deadline of one second.
type lostHardware struct{ Hardware }

func (lostHardware) Await(context.Context) error {
	time.Sleep(999 * time.Millisecond)
	return syscall.ENODEV
}

// TestChangeReturnsErrorOfHardware checks that runChange returns the error of a change whose hardware is lost, although
// ctx ends before the change has ended.
func TestChangeReturnsErrorOfHardware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(nil, "lo0", lostHardware{}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.lock(ctx); err != nil {
			t.Fatal(err)
		}
		want := errors.New("the hardware is lost")
		err := s.runChange(ctx, "reset", func() error {
			if err := s.awaitHardware(ctx, syscall.EIO); err == nil {
				t.Error("awaitHardware: got success, want an error")
			}
			time.Sleep(2 * time.Millisecond)
			return want
		})
		if err != want {
			t.Errorf("runChange: got error %v, want %v", err, want)
		}
	})
}
