package nbd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"verbena/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ramDisk is a disk that counts calls of Sync, and returns injected errors.
type ramDisk struct {
	mu    sync.Mutex
	b     []byte
	syncs int
	err   error
}

func (r *ramDisk) ReadAt(p []byte, off int64) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return 0, r.err
	}
	n := copy(p, r.b[off:])
	if off+int64(n) == r.Size() {
		return n, io.EOF // with io.EOF at the end, as an io.ReaderAt may
	}
	return n, nil
}

func (r *ramDisk) WriteAt(p []byte, off int64) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return 0, r.err
	}
	return copy(r.b[off:], p), nil
}

func (r *ramDisk) Sync() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.syncs++
	return r.err
}

func (r *ramDisk) Size() int64 { return int64(len(r.b)) }

// testClient is the client's side of the protocol, for tests.
type testClient struct {
	t testing.TB
	net.Conn
}

func dial(t testing.TB, s *Server) *testClient {
	ours, theirs := net.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- s.serveConn(theirs)
		theirs.Close()
	}()
	t.Cleanup(func() {
		ours.Close()
		<-done
	})
	ours.SetDeadline(time.Now().Add(20 * time.Second))
	return &testClient{t, ours}
}

func (c *testClient) sendBytes(parts ...[]byte) {
	c.t.Helper()
	if _, err := c.Write(bytes.Join(parts, nil)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *testClient) expectBytes(want ...[]byte) {
	c.t.Helper()
	w := bytes.Join(want, nil)
	got := make([]byte, len(w))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, w) {
		c.t.Fatalf("reply: got %x, %v; want %x", got, err, w)
	}
}

func (c *testClient) expectGreeting(flags uint32) {
	c.t.Helper()
	c.expectBytes([]byte("NBDMAGICIHAVEOPT"), []byte{0, 3})
	c.sendBytes(bigEndian32(flags))
}

func (c *testClient) sendOption(o uint32, data []byte) {
	c.t.Helper()
	c.sendBytes([]byte("IHAVEOPT"), bigEndian32(o), bigEndian32(uint32(len(data))), data)
}

func (c *testClient) expectReply(o, kind uint32, data []byte) {
	c.t.Helper()
	c.expectBytes(bigEndian64(magicReply), bigEndian32(o), bigEndian32(kind), bigEndian32(uint32(len(data))), data)
}

// selectExport sends the option GO for an export.
func (c *testClient) selectExport(name string, size uint64) {
	c.t.Helper()
	c.sendOption(optGo, append(append(bigEndian32(uint32(len(name))), name...), 0, 0))
	c.expectReply(optGo, repInfo, append(append(bigEndian16(infoExport), bigEndian64(size)...), bigEndian16(sendFlags)...))
	c.expectReply(optGo, repInfo, append(append(append(bigEndian16(infoBlockSize), bigEndian32(1)...),
		bigEndian32(4096)...), bigEndian32(maxPayload)...))
	c.expectReply(optGo, repAck, nil)
}

func (c *testClient) sendRequest(flags, kind uint16, handle, off uint64, n uint32, data []byte) {
	c.t.Helper()
	c.sendBytes(bigEndian32(magicReq), bigEndian16(flags), bigEndian16(kind), bigEndian64(handle), bigEndian64(off),
		bigEndian32(n), data)
}

func (c *testClient) expectAnswer(handle uint64, errno syscall.Errno, data []byte) {
	c.t.Helper()
	c.expectBytes(bigEndian32(magicAnswer), bigEndian32(uint32(errno)), bigEndian64(handle), data)
}

// expectConnClosed checks that the server has closed the connection.
func (c *testClient) expectConnClosed() {
	c.t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		c.t.Fatalf("read after the end of the connection: got %d bytes and %v, want 0 and EOF", n, err)
	}
}

func TestNegotiationSelectsExport(t *testing.T) {
	one := &Server{Exports: map[string]Disk{"a": &ramDisk{b: make([]byte, 4096)}}}
	two := &Server{Exports: map[string]Disk{"a": &ramDisk{b: make([]byte, 4096)}, "b": &ramDisk{b: make([]byte, 512)}}}
	t.Run("GO", func(t *testing.T) { c := dial(t, two); c.expectGreeting(3); c.selectExport("b", 512) })
	t.Run("GO without a name, one export", func(t *testing.T) {
		c := dial(t,
			one)
		c.expectGreeting(3)
		c.selectExport("", 4096)
	})
	t.Run("GO without a name, two exports", func(t *testing.T) {
		c := dial(t, two)
		c.expectGreeting(3)
		c.sendOption(optGo, make([]byte, 6))
		c.expectReply(optGo, repErrUnknown, []byte("there is no such export"))
		c.selectExport("a", 4096) // the client may try another option
	})
	t.Run("GO that contradicts itself", func(t *testing.T) {
		c := dial(t, two)
		c.expectGreeting(3)
		for _, data := range [][]byte{nil, {0, 0, 0, 9, 0, 0}, {0, 0, 0, 0, 0, 1}, {255, 255, 255, 255, 0, 0}} {
			c.sendOption(optGo, data)
			c.expectReply(optGo, repErrInvalid, nil)
		}
	})
	t.Run("LIST", func(t *testing.T) {
		c := dial(t, one)
		c.expectGreeting(3)
		c.sendOption(optList, nil)
		c.expectReply(optList, repServer, append(bigEndian32(1), 'a'))
		c.expectReply(optList, repAck, nil)
	})
	t.Run("EXPORT_NAME", func(t *testing.T) {
		c := dial(t, two)
		c.expectGreeting(3)
		c.sendOption(optExportName, []byte("a"))
		c.expectBytes(bigEndian64(4096), bigEndian16(sendFlags))
	})
	t.Run("EXPORT_NAME with zeroes", func(t *testing.T) {
		c := dial(t, two)
		c.expectGreeting(1)
		c.sendOption(optExportName, []byte("a"))
		c.expectBytes(bigEndian64(4096), bigEndian16(sendFlags), make([]byte, 124))
	})
	t.Run("EXPORT_NAME that is not there", func(t *testing.T) {
		c := dial(t, two)
		c.expectGreeting(3)
		c.sendOption(optExportName, []byte("c"))
		c.expectConnClosed()
	})
	t.Run("ABORT", func(t *testing.T) {
		c := dial(t, two)
		c.expectGreeting(3)
		c.sendOption(optAbort, nil)
		c.expectReply(optAbort, repAck, nil)
		c.expectConnClosed()
	})
	t.Run("an option that is not known", func(t *testing.T) {
		c := dial(t, two)
		c.expectGreeting(3)
		c.sendOption(8, nil) // the option of structured replies
		c.expectReply(8, repErrUnsup, nil)
	})
	t.Run("an option that is too long", func(t *testing.T) {
		c := dial(t, two)
		c.expectGreeting(3)
		c.sendBytes([]byte("IHAVEOPT"), bigEndian32(optGo), bigEndian32(maxOption+1))
		c.expectConnClosed()
	})
	t.Run("client flags that are not known", func(t *testing.T) {
		c := dial(t,
			two)
		c.expectGreeting(4)
		c.expectConnClosed()
	})
	t.Run("no option at all", func(t *testing.T) {
		c := dial(t, two)
		c.expectGreeting(3)
		c.sendBytes(make([]byte, 16))
		c.expectConnClosed()
	})
}

func TestTransmissionExecutesRequests(t *testing.T) {
	d := &ramDisk{b: make([]byte, 8192)}
	s := &Server{Exports: map[string]Disk{"": d}}
	c := dial(t, s)
	c.expectGreeting(3)
	c.selectExport("", 8192)
	data := bytes.Repeat([]byte("verbena "), 64)
	c.sendRequest(0, cmdWrite, 1, 100, 512, data)
	c.expectAnswer(1, 0, nil)
	if !bytes.Equal(d.b[100:612], data) || d.syncs != 0 {
		t.Fatal("write: got other data in the disk, or a sync, want the data without a sync")
	}
	c.sendRequest(cmdFlagFUA, cmdWrite, 2, 0, 8, data[:8])
	c.expectAnswer(2, 0, nil)
	if d.syncs != 1 {
		t.Error("write with FUA: got no sync")
	}
	c.sendRequest(0, cmdRead, 3, 100, 512, nil)
	c.expectAnswer(3, 0, data)
	c.sendRequest(0, cmdRead, 3, 8192-8, 8, nil)
	c.expectAnswer(3, 0, make([]byte, 8))
	c.sendRequest(0, cmdFlush, 4, 0, 0, nil)
	c.expectAnswer(4, 0, nil)
	if d.syncs != 2 {
		t.Error("flush: got no sync")
	}
	for _, r := range []struct {
		name        string
		flags, kind uint16
		off         uint64
		n           uint32
		data        []byte
		errno       syscall.Errno
	}{
		{"read over the end", 0, cmdRead, 8000, 512, nil, syscall.EINVAL},
		{"read far away", 0, cmdRead, 1 << 63, 512, nil, syscall.EINVAL},
		{"write over the end", 0, cmdWrite, 8000, 512, data, syscall.ENOSPC},
		{"a command that is not known", 0, 4, 0, 512, nil, syscall.EINVAL},
		{"a flag that is not known", 1 << 2, cmdRead, 0, 8, nil, syscall.EINVAL},
	} {
		c.sendRequest(r.flags, r.kind, 5, r.off, r.n, r.data)
		c.expectAnswer(5, r.errno, nil)
	}
	d.mu.Lock()
	d.err = syscall.EIO
	d.mu.Unlock()
	c.sendRequest(0, cmdRead, 6, 0, 8, nil)
	c.expectAnswer(6, syscall.EIO, nil) // without data
	c.sendRequest(0, cmdFlush, 7, 0, 0, nil)
	c.expectAnswer(7, syscall.EIO, nil)
	c.sendRequest(0, cmdDisc, 8, 0, 0, nil)
	c.expectConnClosed()
}

// TestProtocolViolationEndsConnection checks that a violation of the protocol ends the connection with a reason.
func TestProtocolViolationEndsConnection(t *testing.T) {
	for _, bad := range []struct {
		name string
		send []byte
		says string
	}{
		{"no magic number", make([]byte, 28), "magic"},
		{"a read of everything", bytes.Join([][]byte{bigEndian32(magicReq), bigEndian32(0), bigEndian64(0), bigEndian64(0),
			bigEndian32(1 << 31)}, nil),
			"2147483648 bytes"},
	} {
		t.Run(bad.name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer ours.Close()
			done := make(chan error, 1)
			go func() {
				done <- (&conn{r: newConnReader(theirs), w: theirs}).executeRequests(&ramDisk{b: make([]byte, 512)})
			}()
			ours.Write(bad.send)
			if err := <-done; err == nil || !strings.Contains(err.Error(), bad.says) {
				t.Errorf("transmit: got %v, want an error with the reason", err)
			}
		})
	}
}

// TestServeEndsWithContext checks that Serve and its connections end with the context.
func TestServeEndsWithContext(t *testing.T) {
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := &Server{Exports: map[string]Disk{"": &ramDisk{b: make([]byte, 512)}}, Logf: t.Logf}
	go func() { done <- s.Serve(ctx, l) }()
	nc, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c := &testClient{t, nc}
	c.expectGreeting(3)
	c.selectExport("", 512)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	c.expectConnClosed()
}

// largeDisk is a disk that counts reads.
type largeDisk struct {
	ramDisk
	reads atomic.Int32
}

func (l *largeDisk) ReadAt(p []byte, off int64) (int, error) {
	l.reads.Add(1)
	return len(p), nil
}

func (l *largeDisk) Size() int64 { return 1 << 30 }

// TestSlowReaderIsLimited checks that a client that does not read its replies cannot exceed the server's limits.
func TestSlowReaderIsLimited(t *testing.T) {
	d := &largeDisk{}
	c := dial(t, &Server{Exports: map[string]Disk{"": d}})
	c.expectGreeting(3)
	c.selectExport("", 1<<30)
	const requests, size = 8, maxPayload / 2
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range uint64(requests) {
			c.sendRequest(0, cmdRead, i, i*size, size, nil)
		}
	}()
	testutil.Eventually(t, "two reads", func() bool { return d.reads.Load() >= 2 })
	testutil.Consistently(t, 20*time.Millisecond, "two replies wait, and no more reads begin",
		func() bool { return d.reads.Load() == 2 })
	if _, err := io.CopyN(io.Discard, c, requests*(16+size)); err != nil {
		t.Error(err)
	}
	<-sent
}

// TestRequestsOfGoneClientAreDropped checks that requests of a disconnected client are not executed.
func TestRequestsOfGoneClientAreDropped(t *testing.T) {
	d := &largeDisk{}
	ours, theirs := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- (&conn{r: newConnReader(theirs), w: theirs}).executeRequests(d) }()
	const requests = 1000
	one := bytes.Join([][]byte{bigEndian32(magicReq), bigEndian16(0), bigEndian16(cmdRead), bigEndian64(1),
		bigEndian64(0), bigEndian32(maxPayload)}, nil)
	if _, err := ours.Write(bytes.Repeat(one, requests)); err != nil {
		t.Fatal(err)
	}
	ours.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := d.reads.Load(); n > requests/10 {
		t.Errorf("reads for a disconnected client: got %d, want fewer", n)
	}
}

// TestHandshakeTimeoutDisconnects checks that a client that does not negotiate is disconnected.
func TestHandshakeTimeoutDisconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{Exports: map[string]Disk{"": &ramDisk{b: make([]byte, 512)}}}
		c := dial(t, s)
		c.SetDeadline(time.Time{})
		c.expectGreeting(3)
		c.selectExport("", 512)
		silent := dial(t, s)
		silent.SetDeadline(time.Time{})
		silent.expectGreeting(3)
		testutil.AdvanceTime(time.Hour)
		silent.expectConnClosed()
		c.sendRequest(0, cmdFlush, 1, 0, 0, nil)
		c.expectAnswer(1, 0, nil)
	})
}

// TestConnectionsBeyondLimitAreRefused checks that the server refuses connections beyond the limit, and accepts a new
// one after another has ended.
func TestConnectionsBeyondLimitAreRefused(t *testing.T) {
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := &Server{Exports: map[string]Disk{"": &ramDisk{b: make([]byte, 512)}}}
	go func() { done <- s.Serve(ctx, l) }()
	defer func() {
		cancel()
		<-done
	}()
	connect := func() *testClient {
		nc, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		nc.SetDeadline(time.Now().Add(20 * time.Second))
		return &testClient{t, nc}
	}
	first := connect()
	first.expectGreeting(3)
	for range maxConns - 1 {
		connect().expectGreeting(3)
	}
	connect().expectConnClosed()
	first.Close()
	for again := true; again; {
		c := connect()
		_, err := c.Read(make([]byte, 1))
		again = err != nil
	}
}

// FuzzServe checks that for any input of a client the server does not fail, accesses no data outside the disk, and
// ends.
func FuzzServe(f *testing.F) {
	opt := func(o uint32, data []byte) []byte {
		return bytes.Join([][]byte{[]byte("IHAVEOPT"), bigEndian32(o), bigEndian32(uint32(len(data))), data}, nil)
	}
	req := bytes.Join([][]byte{bigEndian32(magicReq), bigEndian16(0), bigEndian16(cmdRead), bigEndian64(1),
		bigEndian64(0), bigEndian32(512)}, nil)
	f.Add(bytes.Join([][]byte{bigEndian32(3), opt(optList, nil), opt(optGo, make([]byte, 6)), req}, nil))
	f.Add(bytes.Join([][]byte{bigEndian32(1), opt(optExportName, nil), req}, nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		ours, theirs := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			(&Server{Exports: map[string]Disk{"": &ramDisk{b: make([]byte, 1024)}}}).serveConn(theirs)
			theirs.Close()
		}()
		go io.Copy(io.Discard, ours)
		ours.Write(in)
		ours.Close()
		<-done
	})
}
