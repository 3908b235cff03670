package ctl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"verbena/internal/testutil"

	"golang.org/x/sys/unix"
)

const testTimeout = 10 * time.Second

// TestReceiveClosesSurplusDescriptors tests that Receive returns one of several descriptors in a message, and closes
// the others, which leaktest checks.
func TestReceiveClosesSurplusDescriptors(t *testing.T) {
	ends := testutil.NewUnixPair(t)
	msg := append(binary.LittleEndian.AppendUint32(nil, 2), "{}"...)
	if _, _, err := ends[1].WriteMsgUnix(msg, unix.UnixRights(0, 1, 2), nil); err != nil {
		t.Fatal(err)
	}
	before := countOpenDescriptors(t)
	var r Request
	f, err := Conn{UnixConn: ends[0]}.Receive(&r, MessageLimits{Size: MaxRequest})
	if err != nil || f == nil {
		t.Fatalf("Receive: got %v and error %v, want a descriptor", f, err)
	}
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("received descriptor: got no FD_CLOEXEC or error %v, want FD_CLOEXEC", err)
	}
	if after := countOpenDescriptors(t); after != before+1 {
		t.Errorf("descriptors after Receive: got %d, want one more than %d", after, before)
	}
	f.Close()
}

func countOpenDescriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestReceiveLimitsMessageSize tests the receiver's limit for the size of a message.
func TestReceiveLimitsMessageSize(t *testing.T) {
	for size, want := range map[int]string{100: "", 101: "longer than 100"} {
		ends := testutil.NewUnixPair(t)
		body := append([]byte(`{}`), strings.Repeat(" ", size-2)...)
		if _, err := ends[1].Write(append(binary.LittleEndian.AppendUint32(nil, uint32(size)), body...)); err != nil {
			t.Fatal(err)
		}
		var r Request
		_, err := Conn{UnixConn: ends[0]}.Receive(&r, MessageLimits{Size: 100})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("Receive of %d bytes: got %v, want %q", size, err, want)
		}
	}
}

// TestResponseSizeIsLimited tests that Send and Receive accept a large response, and refuse a response beyond the
// limit.
func TestResponseSizeIsLimited(t *testing.T) {
	ends := testutil.NewUnixPair(t)
	go Conn{UnixConn: ends[0]}.Send(&Response{Error: strings.Repeat("x", 4*MaxRequest)}, nil)
	var a Response
	if _, err := (Conn{UnixConn: ends[1]}).Receive(&a, MessageLimits{Size: MaxResponse}); err != nil ||
		len(a.Error) != 4*MaxRequest {
		t.Errorf("Receive of a large response: got %d bytes and error %v, want %d", len(a.Error), err, 4*MaxRequest)
	}
	ends = testutil.NewUnixPair(t)
	go ends[0].Write(binary.LittleEndian.AppendUint32(nil, MaxResponse+1))
	_, err := Conn{UnixConn: ends[1]}.Receive(&a, MessageLimits{Size: MaxResponse})
	if err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("Receive of a response that is too long: got %v, want an error", err)
	}
	if err := (Conn{UnixConn: ends[0]}).Send(&Response{Error: strings.Repeat("x", MaxResponse)}, nil); err == nil ||
		!strings.Contains(err.Error(), "longer than") {
		t.Errorf("Send of a response that is too long: got %v, want an error", err)
	}
}

// TestReceiveTimesOutWithinMessage tests the deadline for an announced message that does not arrive.
func TestReceiveTimesOutWithinMessage(t *testing.T) {
	for name, l := range map[string]MessageLimits{
		"whole": {Size: 100, Whole: 10 * time.Millisecond}, "rest": {Size: 100, Rest: 10 * time.Millisecond},
	} {
		ends := testutil.NewUnixPair(t)
		if _, err := ends[1].Write([]byte{100, 0, 0, 0, '{'}); err != nil {
			t.Fatal(err)
		}
		if _, err := (Conn{UnixConn: ends[0]}).Receive(new(Request), l); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: got %v, want ErrDeadlineExceeded", name, err)
		}
	}
}

// TestErrnoPassesConnection tests that an error has the same errno at both ends of a connection.
func TestErrnoPassesConnection(t *testing.T) {
	for _, cause := range []error{fmt.Errorf("no device: %w", syscall.ENODEV), errors.New("no errno")} {
		ends := testutil.NewUnixPair(t)
		go func() {
			server := Conn{UnixConn: ends[0]}
			var r Request
			if _, err := server.Receive(&r, MessageLimits{Size: MaxRequest}); err != nil || r.Protocol != ProtocolVersion {
				t.Errorf("Receive: got protocol %d and error %v, want %d", r.Protocol, err, ProtocolVersion)
			}
			_ = server.Send(ErrorResponse(cause), nil)
		}()
		_, err := NewClient(ends[1], 0, 0).Do(&Request{Op: OpInfo})
		var remote *remoteError
		if !errors.As(err, &remote) || err.Error() != cause.Error() ||
			errors.Is(err, syscall.ENODEV) != errors.Is(cause, syscall.ENODEV) {
			t.Errorf("error at the other end: got %v, want %v", err, cause)
		}
	}
}

// fakeHelper is a Helper that opens a file, and records the notices.
type fakeHelper struct{ told chan string }

func (fakeHelper) OpenMem(tid int) (*os.File, error) {
	if tid == 1 {
		return nil, fmt.Errorf("thread 1: %w", syscall.EPERM)
	}
	return os.Open(os.DevNull)
}

func (h fakeHelper) Notice(text string) { h.told <- text }

// TestServeAnswersHelp tests that a launcher answers each HelpRequest with a descriptor or an error, until the service
// closes the connection.
func TestServeAnswersHelp(t *testing.T) {
	ends := testutil.NewUnixPair(t)
	told := make(chan string, 1)
	lost := NewClient(ends[1], 0, 0).Serve(fakeHelper{told})
	server := Conn{UnixConn: ends[0]}
	for _, c := range []struct {
		ask  HelpRequest
		want error
	}{{HelpRequest{Notice: "text"}, nil}, {HelpRequest{MemOf: 2}, nil}, {HelpRequest{MemOf: 1},
		syscall.EPERM}, {HelpRequest{}, syscall.EINVAL}} {
		if err := server.Send(&c.ask, nil); err != nil {
			t.Fatal(err)
		}
		var a HelpAnswer
		f, err := server.Receive(&a, MessageLimits{Size: MaxHelpAnswer})
		if err != nil || !errors.Is(a.Err(), c.want) || (f != nil) != (c.want == nil && c.ask.Notice == "") {
			t.Errorf("Help %+v: got %v, %v, %v, want %v", c.ask, f, a.Err(), err, c.want)
		}
		server.Discard(f)
	}
	if got := <-told; got != "text" {
		t.Errorf("notice: got %q, want %q", got, "text")
	}
	server.Close()
	select {
	case <-lost:
	case <-time.After(testTimeout):
		t.Error("Serve after the end of the connection: got no return, want one")
	}
}

// TestFileInPiecesArrives tests that a file sent in pieces of any size arrives unchanged, followed by its CaptureEnd.
func TestFileInPiecesArrives(t *testing.T) {
	ends := testutil.NewUnixPair(t)
	want := CaptureEnd{Packets: 3, Dropped: 1}
	go func() {
		w := PieceWriter{Conn{UnixConn: ends[0]}}
		for _, piece := range []string{"a", "", "bcd", strings.Repeat("e", 100000)} {
			if n, err := w.Write([]byte(piece)); n != len(piece) || err != nil {
				t.Errorf("Write of %d bytes: got %d and error %v, want all", len(piece), n, err)
			}
		}
		if err := w.SendEnd(&want); err != nil {
			t.Error(err)
		}
	}()
	s := &CaptureStream{c: Conn{UnixConn: ends[1]}}
	b, err := io.ReadAll(s)
	if err != nil || string(b) != "abcd"+strings.Repeat("e", 100000) || s.Result() != want {
		t.Errorf("stream: got %d bytes, %+v and error %v, want %d and %+v", len(b), s.Result(), err, 100004, want)
	}
	ends = testutil.NewUnixPair(t)
	ends[0].Write([]byte{9, 0, 0, 0, 'x'})
	ends[0].Close()
	if _, err := io.ReadAll(&CaptureStream{c: Conn{UnixConn: ends[1]}}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("read of a truncated file: got %v, want ErrUnexpectedEOF", err)
	}
	ends = testutil.NewUnixPair(t)
	ends[0].Close()
	const ended = "capture: the service has ended: unexpected EOF"
	if _, err := io.ReadAll(&CaptureStream{c: Conn{UnixConn: ends[1]}}); err == nil || err.Error() != ended {
		t.Errorf("read of a file without an end: got %v, want %s", err, ended)
	}
}
