package rights

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
)

const (
	// sendTimeout limits the time that a message with descriptors waits for the receipt of earlier messages.
	sendTimeout = 10 * time.Second
	sendPause   = 20 * time.Millisecond
	// firstReceiptLook and lastReceiptLook are the pauses between checks for the receipt of a message.
	firstReceiptLook = 100 * time.Microsecond
	lastReceiptLook  = 100 * time.Millisecond
)

// ChargeInFlightFDs charges n descriptors to the user, before the caller sends them on a socket (quota.InFlight). The
// caller calls sent after the attempt to send. The charge lasts until the user's program has received all data on the
// socket, or has closed its end, even if the caller closes the socket before. The kernel counts descriptors in flight
// against the user ID of the service (unix(7), ETOOMANYREFS). If the user has too many descriptors in flight,
// ChargeInFlightFDs sleeps, and returns a *quota.Error after sendTimeout.
func (q *Queue) ChargeInFlightFDs(c syscall.Conn, n int) (sent func(), err error) {
	if q == nil || n == 0 {
		return func() {}, nil
	}
	fd, err := DuplicateFD(c)
	if err != nil {
		return nil, err
	}
	for began := time.Now(); ; time.Sleep(sendPause) {
		if err = q.user.Charge(quota.InFlight, uint64(n)); err == nil {
			break
		}
		if time.Since(began) > sendTimeout {
			unix.Close(fd)
			return nil, err
		}
	}
	return func() {
		received := func() bool {
			if hasUnreadData(fd) {
				return false
			}
			unix.Close(fd)
			q.user.Release(quota.InFlight, uint64(n))
			return true
		}
		if received() {
			return
		}
		go func() {
			for pause := firstReceiptLook; ; pause = min(2*pause, lastReceiptLook) {
				time.Sleep(pause)
				if received() {
					return
				}
			}
		}()
	}, nil
}

// DuplicateFD returns a descriptor of a socket that stays open when the socket is closed.
func DuplicateFD(c syscall.Conn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	if cerr := raw.Control(func(s uintptr) { fd, err = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) }); cerr != nil {
		return -1, cerr
	}
	return fd, err
}

// hasUnreadData reports whether the other end is open and has not received all data. (SIOCOUTQ of unix(7))
func hasUnreadData(fd int) bool {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	return err == nil && n > 0
}
