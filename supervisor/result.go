package supervisor

import (
	"errors"
	"syscall"
)

// callResult is the result of a call.
type callResult struct {
	val  int64
	err  error // wraps an errno
	fate resultKind
}

type resultKind uint8

const (
	fateAnswered  resultKind = iota // val and err are the answer
	fateContinued                   // the call continues in the kernel
	fateSent                        // the answer was already sent
)

func failWith(err error) callResult { return callResult{err: err} }

// errnoOf returns the error number for the program.
func errnoOf(err error) syscall.Errno {
	if e, ok := err.(syscall.Errno); ok {
		return e
	}
	var e syscall.Errno
	if errors.As(err, &e) && e != 0 {
		return e
	}
	return syscall.EIO
}
