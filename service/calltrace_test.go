package service

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/internal/ctl"
)

// TestUnreadTraceDelaysNoCall tests that a launcher that does not read its trace delays no call. Lines that do not fit,
// including the last ones, are counted without waiting.
func TestUnreadTraceDelaysNoCall(t *testing.T) {
	trace, theirs, err := newCallTrace()
	if err != nil {
		t.Fatal(err)
	}
	reader, err := ctl.NewCallTrace(theirs)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	const half = 50000
	done := make(chan struct{})
	full, goOn := make(chan struct{}), make(chan struct{})
	wait := func(c <-chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(20 * time.Second):
			t.Fatal("line while the launcher does not read: got a blocked call, want a return")
		}
	}
	go func() {
		defer close(done)
		for i := range half {
			trace.sendLine(fmt.Sprint("line ", i))
		}
		close(full)
		<-goOn // some lines were read
		for i := range half {
			trace.sendLine(fmt.Sprint("line ", half+i))
		}
		trace.close()
	}()
	var shown, missed, reports int
	next := func() bool {
		line, err := reader.ReadLine()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Errorf("read at the end of the trace: got %v, want io.EOF", err)
			}
			return false
		}
		var n int
		if _, err := fmt.Sscanf(line, "--- %d calls not shown", &n); err == nil {
			missed += n
			reports++
			return true
		}
		if want := fmt.Sprint("line ", shown+missed); line != want {
			t.Fatalf("line of the trace: got %q, want %q", line, want)
		}
		shown++
		return true
	}
	wait(full)
	for range 100 {
		next()
	}
	close(goOn)
	wait(done)
	for next() {
	}
	if shown < 100 || shown+missed != 2*half || reports < 2 {
		t.Errorf("lines: got %d shown, %d missed in %d reports, want the sum %d", shown, missed, reports, 2*half)
	}
}

// TestCallTraceEndsWithReader tests that the launcher's end of the socket cannot send, and that closing it ends the
// trace.
func TestCallTraceEndsWithReader(t *testing.T) {
	trace, theirs, err := newCallTrace()
	if err != nil {
		t.Fatal(err)
	}
	defer trace.close()
	if _, err := theirs.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("send by the launcher: got %v, want EPIPE", err)
	}
	theirs.Close()
	for range 3 {
		trace.sendLine("line")
	}
	if !trace.gone || trace.missed > 1 {
		t.Errorf("trace: got gone %v and %d missed lines, want true and at most 1", trace.gone, trace.missed)
	}
}

// TestCallTraceIsChargedToUser tests that a trace is charged to its user until it ends.
func TestCallTraceIsChargedToUser(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.31"}})
	who := userPeer(4242)
	held := func() (n uint64) {
		for _, u := range s.Users(who.OwnsAccount) {
			for _, h := range u.Holds {
				n += h.Held
			}
		}
		return n
	}
	_, theirs, end, err := s.startTrace(who)
	if err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	if n, want := held(), uint64(traceDescriptors+traceBytes); n != want {
		t.Errorf("charged descriptors and bytes: got %d, want %d", n, want)
	}
	end()
	if n := held(); n != 0 {
		t.Errorf("charged descriptors and bytes after the end: got %d, want none", n)
	}
}

// TestReportsAreNotLost tests that lines of a trace take no room from the reports of the sanitizer. Reports beyond the
// room are counted.
func TestReportsAreNotLost(t *testing.T) {
	for _, reports := range []int{1, maxKeptReports, 5000} {
		trace, theirs, err := newCallTrace()
		if err != nil {
			t.Fatal(err)
		}
		reader, err := ctl.NewCallTrace(theirs)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20000 { // the launcher does not read
			trace.sendLine(fmt.Sprint("line ", i))
		}
		for range reports {
			trace.sendReport(ctl.ReportPrefix + strings.Repeat("x", 900))
		}
		trace.close()
		got, lost := 0, 0
		for {
			line, err := reader.ReadLine()
			if err != nil {
				break
			}
			if strings.HasPrefix(line, ctl.ReportPrefix) {
				got++
			}
			if n, ok := strings.CutPrefix(line, ctl.LostReportsPrefix); ok {
				if lost, err = strconv.Atoi(n); err != nil {
					t.Error(err)
				}
			}
		}
		reader.Close()
		if got < min(reports, maxKeptReports) || got+lost != reports {
			t.Errorf("%d reports behind many lines: got %d and %d lost", reports, got, lost)
		}
	}
}
