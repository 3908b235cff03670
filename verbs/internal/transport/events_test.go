package transport

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newPipeEvents(t *testing.T) (e *Events, w *os.File) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	e, err := EventsOf(fds[0], 7)
	if err != nil {
		t.Fatal(err)
	}
	w = os.NewFile(uintptr(fds[1]), "events")
	t.Cleanup(func() {
		w.Close()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e, w
}

// TestContextEndsRead checks that the end of a context ends the read with this context, and no later read.
func TestContextEndsRead(t *testing.T) {
	e, w := newPipeEvents(t)
	cause := errors.New("cause")
	first, end := context.WithCancelCause(t.Context())
	second, end2 := context.WithCancelCause(t.Context())
	defer end2(nil)
	var b [8]byte
	read := func(ctx context.Context, want error) {
		t.Helper()
		n, err := e.Read(ctx, b[:])
		if !errors.Is(err, want) || want == nil && (n != 8 || string(b[:]) != "eventfd7") {
			t.Errorf("Read: got %d, %q, %v, want %v", n, b[:], err, want)
		}
		clear(b[:])
	}
	event := func() {
		t.Helper()
		if _, err := w.WriteString("eventfd7"); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // uses the same context again
		event()
		read(first, nil)
	}
	time.AfterFunc(10*time.Millisecond, func() { end(cause) })
	read(first, cause)
	read(first, cause)
	event()
	read(second, nil)
	event()
	read(context.Background(), nil)
	// The third context ends while no read uses it, or while a read uses another context.
	third, end3 := context.WithCancelCause(t.Context())
	event()
	read(third, nil)
	end3(cause)
	event()
	read(context.WithValue(second, &b, 1), nil)
	fourth, end4 := context.WithCancelCause(t.Context())
	event()
	read(fourth, nil)
	time.AfterFunc(5*time.Millisecond, func() {
		end4(cause)
		time.AfterFunc(20*time.Millisecond, event)
	})
	read(second, nil)
	read(fourth, cause)
}

// TestCloseWakesReader checks that Close wakes a waiting reader and stops watching the context of the reader.
func TestCloseWakesReader(t *testing.T) {
	e, _ := newPipeEvents(t)
	ctx, end := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { e.Close() })
	var b [8]byte
	for range 2 {
		if _, err := e.Read(ctx, b[:]); !errors.Is(err, ErrClosed) {
			t.Errorf("Read: got %v, want %v", err, ErrClosed)
		}
	}
	if e.stop() {
		t.Error("context after Close: still watched, want the watch stopped")
	}
	end()
}
