package rdmanet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"verbena/verbs"
)

// ConnError is the reason for the failure of a connection. A ConnError wraps Errno and Err.
type ConnError struct {
	// Errno is ETIMEDOUT if the peer does not respond, and ECONNRESET if the peer has ended or refused the connection.
	// Errno is ECONNABORTED if the device of this end was closed, was removed, or rejects the memory of an operation.
	Errno syscall.Errno
	// Err contains the details. Err is the error of the device, or a *verbs.WCError, which wraps the Status of the
	// failed work request.
	Err error
}

func (e *ConnError) Error() string { return fmt.Sprintf("%v: %v", e.Errno, e.Err) }

// Unwrap returns both errors.
func (e *ConnError) Unwrap() []error { return []error{e.Errno, e.Err} }

// Timeout reports whether the reason is that the peer does not respond, as for a TCP connection. All later calls fail
// as well.
func (e *ConnError) Timeout() bool { return e.Errno.Timeout() }

// newStatusError converts a failed completion to the error of the connection.
func newStatusError(wc *verbs.WC) error {
	err := verbs.CompletionError(wc)
	switch wc.Status {
	case verbs.RetryExceeded, verbs.RNRRetryExceeded:
		return &ConnError{syscall.ETIMEDOUT, err}
	case verbs.DeviceFatal, verbs.UnspecifiedFailure:
		return &ConnError{syscall.ECONNABORTED, err}
	case verbs.LocalProtection, verbs.LocalLengthError, verbs.LocalQPError:
		if wc.ID&kindMask != kindReceive { // a SEND of the peer fails, because receives have no memory
			return &ConnError{syscall.ECONNABORTED, err}
		}
	}
	return &ConnError{syscall.ECONNRESET, err}
}

// newDeviceError converts a device error to the error of the connection.
func newDeviceError(err error) error {
	if errors.Is(err, syscall.EPROTO) {
		return &ConnError{syscall.ECONNRESET, err}
	}
	return &ConnError{syscall.ECONNABORTED, err}
}

// newLostDeviceError returns the error of a lost device if err shows that the device is lost. err may come from any
// call on the device. newLostDeviceError returns other errors unchanged. In particular it replaces the io.EOF of a
// completion channel, which does not mean the end of a stream.
func newLostDeviceError(dev *verbs.Device, err error) error {
	var no syscall.Errno
	switch {
	case errors.Is(err, verbs.ErrClosed):
		return fmt.Errorf("device %s was closed: %w", dev.Name(), verbs.ErrClosed)
	case errors.Is(err, io.EOF):
		no = syscall.EIO
	case !isDeviceGone(err) || !errors.As(err, &no):
		return err
	}
	return fmt.Errorf("device %s was reset or removed: %w", dev.Name(), no)
}

var errPeerClosed = fmt.Errorf("the peer has closed the connection: %w", syscall.EPIPE)

func (c *Conn) newOpError(op string, err error) error {
	return &net.OpError{Op: op, Net: networkName, Source: c.local, Addr: c.remote, Err: err}
}
