package verbs

import (
	"errors"
	"fmt"
	"syscall"

	"verbena/uapi"
	"verbena/verbs/internal/transport"
	"verbena/verbs/provider"
)

// ErrClosed is the error of a call on a closed object, or on an object of a closed device.
var ErrClosed = transport.ErrClosed

// ErrQueueFull is the error of a post to a full queue. The program must poll completions to free entries.
var ErrQueueFull = provider.ErrFull

// ErrOverflow is the error of a wait for a completion queue that has lost a completion by an overrun. No more
// completions can arrive.
var ErrOverflow = errors.New("verbs: the CQ has overflowed: create it with as many entries as all queues that " +
	"complete on it together")

// ErrNoDevice is the error of Open if the device does not exist.
var ErrNoDevice = errors.New("verbs: no such device")

// Status is the status of a completed work request (enum ibv_wc_status). As an error, a Status describes itself.
type Status = provider.Status

// The next constants are the statuses that programs distinguish.
const (
	Success            = Status(uapi.WCSuccess)
	LocalLengthError   = Status(uapi.WCLocLenErr)
	LocalQPError       = Status(uapi.WCLocQPOpErr)
	LocalProtection    = Status(uapi.WCLocProtErr)
	Flushed            = Status(uapi.WCWRFlushErr)
	WindowBindError    = Status(uapi.WCMWBindErr)
	BadResponse        = Status(uapi.WCBadRespErr)
	LocalAccessError   = Status(uapi.WCLocAccessErr)
	RemoteInvalid      = Status(uapi.WCRemInvReqErr)
	RemoteAccessError  = Status(uapi.WCRemAccessErr)
	RemoteError        = Status(uapi.WCRemOpErr)
	RetryExceeded      = Status(uapi.WCRetryExcErr)
	RNRRetryExceeded   = Status(uapi.WCRNRRetryExcErr)
	DeviceFatal        = Status(uapi.WCFatalErr)
	UnspecifiedFailure = Status(uapi.WCGeneralErr)
)

// WCError is the error of a failed work request. A WCError wraps its Status.
type WCError struct {
	Status Status
	QPN    uint32
	ID     uint64 // ID of the work request
	Vendor uint32 // vendor-specific error number
}

func (e *WCError) Error() string {
	return fmt.Sprintf("verbs: work request %d of QP %d: %s", e.ID, e.QPN, e.Status.Error())
}

// Unwrap returns the Status.
func (e *WCError) Unwrap() error { return e.Status }

// CompletionError returns the error of a completion. The error is nil if the work request succeeded, otherwise a
// *WCError.
func CompletionError(wc *WC) error {
	if wc.Status == Success {
		return nil
	}
	return &WCError{Status: wc.Status, QPN: wc.QPN, ID: wc.ID, Vendor: wc.VendorErr}
}

// wrapOpError returns the error of an operation on a device, with a description of the operation.
func wrapOpError(what, dev string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("verbs: %s on %s: %w", what, dev, err)
}

func isErrno(err error, e syscall.Errno) bool { return errors.Is(err, e) }

func isClosed(err error) bool { return errors.Is(err, ErrClosed) }
