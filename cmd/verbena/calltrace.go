package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"verbena/internal/ctl"
)

// traceFlag is the value of --trace or --trace=FILE.
type traceFlag struct {
	on   bool
	file string // empty: standard error
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
		return errors.New("--trace= names no file; --trace alone selects the standard error")
	}
	t.file = file
	return nil
}

// open opens the destination of the trace.
func (t *traceFlag) open() (io.WriteCloser, error) {
	if t.file == "" {
		return nopCloser{os.Stderr}, nil
	}
	f, err := os.Create(t.file)
	if err != nil {
		return nil, fmt.Errorf("run --trace: %w", err)
	}
	return f, nil
}

// nopCloser is a file that Close leaves open, such as the standard error.
type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// traceCopier copies a trace to a file. traceCopier reads the trace at once, even if the file or terminal is slow. The
// service's queue for the trace therefore does not fill.
type traceCopier struct {
	from  *ctl.CallTrace
	lines chan string
	// reports receives the lines of the sanitizer; nil if there is none
	reports *reportPrinter
	done    chan struct{}
	err     error // valid once done is closed
	// causes are the explanations of failures; valid once done is closed.
	causes []string
	// unfinished is set if other processes of the program go on, so that the service has not explained its failures.
	unfinished bool
}

// maxTraceLines limits the number of lines that wait for the writer. Beyond this limit the service's queue fills,
// and the service drops trace lines.
const maxTraceLines = 1 << 16

func startTracing(from *ctl.CallTrace, to io.WriteCloser, reports *reportPrinter) *traceCopier {
	t := &traceCopier{from: from, reports: reports, lines: make(chan string, maxTraceLines), done: make(chan struct{})}
	go func() {
		defer close(t.lines)
		for {
			line, err := from.ReadLine()
			if err != nil {
				return
			}
			t.lines <- line
		}
	}()
	go func() {
		defer close(t.done)
		t.err = errors.Join(t.writeQueuedLines(to), to.Close())
	}()
	return t
}

// writeQueuedLines writes queued lines to the file, and flushes the buffer when the queue is empty. It returns the
// first error of the file after the last line, because causes and reports do not depend on the file.
func (t *traceCopier) writeQueuedLines(to io.Writer) error {
	w := bufio.NewWriter(to)
	for line := range t.lines {
		if cause, ok := strings.CutPrefix(line, ctl.CausePrefix); ok {
			t.causes = append(t.causes, replaceControlChars(cause))
			continue
		}
		if report, ok := strings.CutPrefix(line, ctl.ReportPrefix); ok && t.reports != nil {
			t.reports.add(report)
			continue
		}
		if count, ok := strings.CutPrefix(line, ctl.LostReportsPrefix); ok && t.reports != nil {
			t.reports.addLost(count)
			continue
		}
		w.WriteString(replaceControlChars(line))
		w.WriteByte('\n')
		if len(t.lines) == 0 {
			_ = w.Flush() // the last Flush returns the error too
		}
	}
	return w.Flush()
}

// traceEndTimeout limits the time that finish waits for the end of the trace once the program has ended. The service
// ends the trace after the last process of the program.
const traceEndTimeout = time.Second

// finish ends the trace of a program that has ended. The service stops tracing the program's remaining processes.
func (t *traceCopier) finish() error {
	timer := time.NewTimer(traceEndTimeout)
	defer timer.Stop()
	select {
	case <-t.done:
	case <-timer.C:
		t.unfinished = true
	}
	t.from.Close()
	<-t.done
	if t.err != nil {
		return fmt.Errorf("run --trace: %w", t.err)
	}
	return nil
}
