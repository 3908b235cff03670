package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/alecthomas/kong"

	"verbena/internal/ctl"
)

// traceFlag is the value of --trace or --trace=FILE.
type traceFlag struct {
	on   bool
	file string // empty: the standard error
}

// IsBool implements kong.BoolMapperValue: the value is optional.
func (*traceFlag) IsBool() bool { return true }

// Decode implements kong.MapperValue.
func (t *traceFlag) Decode(ctx *kong.DecodeContext) error {
	t.on = true
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		return nil
	}
	file, ok := ctx.Scan.Pop().Value.(string)
	if !ok || file == "" {
		return errors.New("--trace= has no file; --trace alone prints to the standard error")
	}
	t.file = file
	return nil
}

// open opens the destination of the trace.
func (t *traceFlag) open() (io.WriteCloser, error) {
	if t.file == "" {
		return keepOpen{os.Stderr}, nil
	}
	f, err := os.Create(t.file)
	if err != nil {
		return nil, fmt.Errorf("run --trace: %w", err)
	}
	return f, nil
}

// keepOpen is a file that stays open after the trace.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }

// tracing copies a trace to a file. It reads the trace at once, even if the file or terminal is slow, so that the
// service's queue does not fill.
type tracing struct {
	from  *ctl.CallTrace
	lines chan string
	done  chan struct{}
	err   error // valid once done is closed
}

// maxTraceLines is the number of lines that wait for the writer. Beyond it the service's queue fills, and calls are
// missing in the trace.
const maxTraceLines = 1 << 16

func startTracing(from *ctl.CallTrace, to io.WriteCloser) *tracing {
	t := &tracing{from: from, lines: make(chan string, maxTraceLines), done: make(chan struct{})}
	go func() {
		defer close(t.lines)
		for {
			line, err := from.Line()
			if err != nil {
				return
			}
			t.lines <- line
		}
	}()
	go func() {
		defer close(t.done)
		t.err = errors.Join(t.write(to), to.Close())
		for range t.lines { // drain after an error
		}
	}()
	return t
}

// write writes the lines, and flushes when no more lines wait.
func (t *tracing) write(to io.Writer) error {
	w := bufio.NewWriter(to)
	for line := range t.lines {
		w.WriteString(printable(line))
		w.WriteByte('\n')
		if len(t.lines) == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
	return w.Flush()
}

// traceEnd is the time that finish waits for the end of the trace after the end of the program. The service ends the
// trace when none of the program's processes is left.
const traceEnd = time.Second

// finish ends the trace of a program that has ended. Remaining processes of the program are no longer traced.
func (t *tracing) finish() error {
	timer := time.NewTimer(traceEnd)
	defer timer.Stop()
	select {
	case <-t.done:
	case <-timer.C:
	}
	t.from.Close()
	<-t.done
	if t.err != nil {
		return fmt.Errorf("run --trace: %w", t.err)
	}
	return nil
}
