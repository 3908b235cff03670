package ctl

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// CallTrace is the launcher's end of the trace of a program.
type CallTrace struct{ c net.Conn }

// NewCallTrace takes ownership of the descriptor from the answer to an Attach. NewCallTrace closes f, also on
// failure.
//
//verbena:allow close a client trusts its service
func NewCallTrace(f *os.File) (*CallTrace, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	return &CallTrace{c}, nil
}

// maxTraceLine exceeds the length of any line.
const maxTraceLine = 4096

// ReadLine waits for the next line. ReadLine returns io.EOF after the last line, when no process of the program is left
// or the service has ended. It may sleep.
func (t *CallTrace) ReadLine() (string, error) {
	var b [maxTraceLine]byte
	n, err := t.c.Read(b[:])
	if errors.Is(err, syscall.ECONNRESET) {
		err = io.EOF
	}
	return string(b[:n]), err
}

// Close ends the trace, and the program continues without it. A pending ReadLine returns.
func (t *CallTrace) Close() error { return t.c.Close() }
