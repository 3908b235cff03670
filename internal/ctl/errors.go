package ctl

import (
	"errors"
	"syscall"
)

// remoteError is an error reported by the other end of a connection. remoteError wraps the errno, if there is one.
type remoteError struct {
	Text  string
	Errno syscall.Errno // 0 without an errno
}

// Error returns the text.
func (e *remoteError) Error() string { return e.Text }

// Unwrap returns the errno.
func (e *remoteError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// ErrorResponse returns the response for an error.
func ErrorResponse(err error) *Response {
	r := &Response{Error: err.Error()}
	errors.As(err, &r.Errno)
	return r
}

// err returns the error of a response, or nil for success.
func (r *Response) err() error {
	if r.Error == "" {
		return nil
	}
	return &remoteError{r.Error, r.Errno}
}

// errorHelpAnswer returns the answer to HelpRequest for an error.
func errorHelpAnswer(err error) *HelpAnswer {
	r := ErrorResponse(err)
	return &HelpAnswer{Error: r.Error, Errno: r.Errno}
}

// Err returns the error of an answer, or nil for success.
func (a *HelpAnswer) Err() error {
	if a.Error == "" {
		return nil
	}
	return &remoteError{a.Error, a.Errno}
}
