package rdmanet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"verbena/verbs"
)

// ConnError is why a connection has failed. It wraps Errno and Err.
type ConnError struct {
	// Errno is ETIMEDOUT if the peer does not answer, ECONNRESET if it has ended the connection or refuses it,
	// ECONNABORTED if the device of this end was closed or has gone, or refuses the memory of an operation.
	Errno syscall.Errno
	// Err says more: a *verbs.WCError, which wraps the Status of the work request that failed, or what the device said.
	Err error
}

func (e *ConnError) Error() string { return fmt.Sprintf("%v: %v", e.Errno, e.Err) }

// Unwrap returns both errors.
func (e *ConnError) Unwrap() []error { return []error{e.Errno, e.Err} }

// Timeout reports whether the peer does not answer, as of a TCP connection. No later call succeeds.
func (e *ConnError) Timeout() bool { return e.Errno.Timeout() }

// statusError makes the error of a connection of a completion that failed.
func statusError(wc *verbs.WC) error {
	err := verbs.CompletionError(wc)
	switch wc.Status {
	case verbs.RetryExceeded, verbs.RNRRetryExceeded:
		return &ConnError{syscall.ETIMEDOUT, err}
	case verbs.DeviceFatal, verbs.UnspecifiedFailure:
		return &ConnError{syscall.ECONNABORTED, err}
	case verbs.LocalProtection, verbs.LocalLengthError, verbs.LocalQPError:
		if wc.ID&kindMask != kindReceive { // a peer's SEND, for which receives have no memory
			return &ConnError{syscall.ECONNABORTED, err}
		}
	}
	return &ConnError{syscall.ECONNRESET, err}
}

// deviceError makes the error of a connection of one of its device.
func deviceError(err error) error {
	if errors.Is(err, syscall.EPROTO) {
		return &ConnError{syscall.ECONNRESET, err}
	}
	return &ConnError{syscall.ECONNABORTED, err}
}

// lostDevice returns the error of a device that can do no more, which err, of any call on it, has shown; other errors
// as they are. io.EOF of a completion channel is no end of a stream.
func lostDevice(dev *verbs.Device, err error) error {
	var no syscall.Errno
	switch {
	case errors.Is(err, verbs.ErrClosed):
		return fmt.Errorf("device %s was closed: %w", dev.Name(), verbs.ErrClosed)
	case errors.Is(err, io.EOF):
		no = syscall.EIO
	case !deviceGone(err) || !errors.As(err, &no):
		return err
	}
	return fmt.Errorf("device %s was reset or has gone: %w", dev.Name(), no)
}

var errPeerClosed = fmt.Errorf("the peer has closed the connection: %w", syscall.EPIPE)

func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: network, Source: c.local, Addr: c.remote, Err: err}
}
