package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"verbena/internal/ctl"
	"verbena/reqtrace"
)

// requestTraceFile is a trace of work requests for a file.
type requestTraceFile struct {
	mem *os.File
	to  *resultFile
}

// startRequestTrace begins a trace on the connection of a client.
func startRequestTrace(client *ctl.Client, name string) (*requestTraceFile, error) {
	t := &requestTraceFile{}
	var err error
	if t.to, err = openResultFile(name); err != nil {
		return nil, fmt.Errorf("trace file: %w", err)
	}
	if t.mem, err = client.TraceRequests(); err != nil {
		t.abandon()
		return nil, err
	}
	return t, nil
}

// abandon ends the trace. A new file is removed.
func (t *requestTraceFile) abandon() {
	t.to.abandon()
	if t.mem != nil {
		t.mem.Close()
	}
}

// write replaces the content of the file, closes it, and prints its summary to messages. If the file system is full,
// the file has the part of the trace for which there was room.
func (t *requestTraceFile) write(messages io.Writer, marks []reqtrace.Mark) error {
	defer t.mem.Close()
	w := &packetWriter{to: t.to}
	sum, err := w.replaceContent(t.mem, marks)
	if err = errors.Join(err, t.to.Close()); err != nil {
		return fmt.Errorf("trace file: %w", err)
	}
	fmt.Fprintf(messages, "verbena: trace: %d events in %s, for https://ui.perfetto.dev", sum.Events, t.to.Name())
	if sum.Lost > 0 {
		fmt.Fprintf(messages, "; %d earlier events were dropped: the trace holds the latest %d", sum.Lost,
			reqtrace.MaxEvents)
	}
	if sum.Untraced > 0 {
		fmt.Fprintf(messages, "; %d queues are not in the trace: it had no room for them", sum.Untraced)
	}
	fmt.Fprintln(messages)
	return nil
}

// packetWriter writes whole packets to a file, through a buffer.
type packetWriter struct {
	to   *resultFile
	buf  []byte
	ends []int // ends of the packets in buf
	size int64 // bytes of the file
}

// packetBuffer is the number of bytes that a packetWriter collects.
const packetBuffer = 256 << 10

func (w *packetWriter) replaceContent(mem io.ReaderAt, marks []reqtrace.Mark) (reqtrace.Summary, error) {
	if err := w.to.clear(); err != nil {
		return reqtrace.Summary{}, err
	}
	sum, err := reqtrace.Write(w, mem, time.Now(), marks)
	if err == nil {
		err = w.flush()
	}
	return sum, err
}

// Write adds a packet.
func (w *packetWriter) Write(packet []byte) (int, error) {
	if len(w.buf)+len(packet) > packetBuffer {
		if err := w.flush(); err != nil {
			return 0, err
		}
	}
	w.buf = append(w.buf, packet...)
	w.ends = append(w.ends, len(w.buf))
	return len(packet), nil
}

// flush writes the buffer. After an error, the file ends after the last whole packet.
func (w *packetWriter) flush() error {
	n, err := w.to.Write(w.buf)
	if err != nil {
		whole := 0
		for _, end := range w.ends {
			if end <= n {
				whole = end
			}
		}
		_ = w.to.Truncate(w.size + int64(whole)) // err has the reason; not a regular file has no end
		return err
	}
	w.size += int64(n)
	w.buf, w.ends = w.buf[:0], w.ends[:0]
	return nil
}
