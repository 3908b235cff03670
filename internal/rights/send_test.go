package rights

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/internal/testutil"
)

// TestInFlightChargeUntilReceived tests that descriptors are charged until the other end has received them or was
// closed, even after the sender has closed its end.
func TestInFlightChargeUntilReceived(t *testing.T) {
	var limits quota.Limits
	limits[quota.InFlight] = quota.Limit{PerUser: 4}
	for _, tt := range []struct {
		name string
		end  func(ours, theirs *net.UnixConn)
	}{
		{"received", func(_, theirs *net.UnixConn) {
			b, oob := make([]byte, 10), make([]byte, 100)
			_, n, _, _, _ := theirs.ReadMsgUnix(b, oob)
			list, _ := unix.ParseSocketControlMessage(oob[:n])
			fds, _ := unix.ParseUnixRights(&list[0])
			for _, fd := range fds {
				unix.Close(fd)
			}
		}},
		{"closed", func(_, theirs *net.UnixConn) { theirs.Close() }},
		{"both closed", func(ours, theirs *net.UnixConn) { ours.Close(); theirs.Close() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			user := quota.New(limits).User(7)
			var all Queues
			q := all.QueueOf(user)
			ends := testutil.NewUnixPair(t)
			ours, theirs := ends[0], ends[1]
			sent, err := q.ChargeInFlightFDs(ours, 3)
			if err != nil {
				t.Fatal(err)
			}
			null, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			defer null.Close()
			fd := int(null.Fd())
			if _, _, err := ours.WriteMsgUnix([]byte("answer"), unix.UnixRights(fd, fd, fd), nil); err != nil {
				t.Fatal(err)
			}
			sent()
			if tt.name == "both closed" {
				ours.Close()
			}
			testutil.Consistently(t, 10*firstReceiptLook, "three descriptors are charged while they are unread",
				func() bool { return user.Held(quota.InFlight) == 3 })
			tt.end(ours, theirs)
			testutil.Eventually(t, "the charge to end", func() bool { return user.Held(quota.InFlight) == 0 })
		})
	}
}

// TestChargeInFlightWaits tests that a message waits for the receipt of earlier messages, and is refused after a
// timeout.
func TestChargeInFlightWaits(t *testing.T) {
	ours := testutil.NewUnixPair(t)[0]
	synctest.Test(t, func(t *testing.T) { waitForEarlierReceipt(t, ours) })
}

func waitForEarlierReceipt(t *testing.T, ours syscall.Conn) {
	var limits quota.Limits
	limits[quota.InFlight] = quota.Limit{PerUser: 4}
	user := quota.New(limits).User(7)
	var all Queues
	if err := user.Charge(quota.InFlight, 4); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(3*sendPause, func() { user.Release(quota.InFlight, 4) })
	sent, err := all.QueueOf(user).ChargeInFlightFDs(ours, 2)
	if err != nil {
		t.Fatal(err)
	}
	sent() // no message was sent, so the charge ends at once
	if n := user.Held(quota.InFlight); n != 0 {
		t.Errorf("charged descriptors without a send: got %d, want 0", n)
	}
	began := time.Now()
	var refusal *quota.LimitError
	if _, err := all.QueueOf(user).ChargeInFlightFDs(ours, 5); !errors.As(err, &refusal) || !errors.Is(err,
		syscall.EAGAIN) ||
		refusal.Kind != quota.InFlight {
		t.Errorf("Sending: got %v, want a refusal of %v", err, quota.InFlight)
	}
	if d := time.Since(began); d < sendTimeout {
		t.Errorf("duration until the refusal: got %v, want at least %v", d, sendTimeout)
	}
	var none *Queue
	if sent, err := none.ChargeInFlightFDs(ours, 100); err != nil {
		t.Errorf("Sending to a trusted receiver: got %v, want success", err)
	} else {
		sent()
	}
}
