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

// ram is a disk that counts calls of Sync, and returns injected errors.
type ram struct {
	mu    sync.Mutex
	b     []byte
	syncs int
	err   error
}

func (r *ram) ReadAt(p []byte, off int64) (int, error) {
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

func (r *ram) WriteAt(p []byte, off int64) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return 0, r.err
	}
	return copy(r.b[off:], p), nil
}

func (r *ram) Sync() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.syncs++
	return r.err
}

func (r *ram) Size() int64 { return int64(len(r.b)) }

// client is the client's side of the protocol, for tests.
type client struct {
	t testing.TB
	net.Conn
}

func dial(t testing.TB, s *Server) *client {
	ours, theirs := net.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- s.serve(theirs)
		theirs.Close()
	}()
	t.Cleanup(func() {
		ours.Close()
		<-done
	})
	ours.SetDeadline(time.Now().Add(20 * time.Second))
	return &client{t, ours}
}

func (c *client) send(parts ...[]byte) {
	c.t.Helper()
	if _, err := c.Write(bytes.Join(parts, nil)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) expect(want ...[]byte) {
	c.t.Helper()
	w := bytes.Join(want, nil)
	got := make([]byte, len(w))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, w) {
		c.t.Fatalf("reply: got %x, %v; want %x", got, err, w)
	}
}

func (c *client) greet(flags uint32) {
	c.t.Helper()
	c.expect([]byte("NBDMAGICIHAVEOPT"), []byte{0, 3})
	c.send(u32(flags))
}

func (c *client) option(o uint32, data []byte) {
	c.t.Helper()
	c.send([]byte("IHAVEOPT"), u32(o), u32(uint32(len(data))), data)
}

func (c *client) reply(o, kind uint32, data []byte) {
	c.t.Helper()
	c.expect(u64(magicReply), u32(o), u32(kind), u32(uint32(len(data))), data)
}

// selectExport sends the option GO for an export.
func (c *client) selectExport(name string, size uint64) {
	c.t.Helper()
	c.option(optGo, append(append(u32(uint32(len(name))), name...), 0, 0))
	c.reply(optGo, repInfo, append(append(u16(infoExport), u64(size)...), u16(sendFlags)...))
	c.reply(optGo, repInfo, append(append(append(u16(infoBlockSize), u32(1)...), u32(4096)...), u32(maxPayload)...))
	c.reply(optGo, repAck, nil)
}

func (c *client) request(flags, kind uint16, handle, off uint64, n uint32, data []byte) {
	c.t.Helper()
	c.send(u32(magicReq), u16(flags), u16(kind), u64(handle), u64(off), u32(n), data)
}

func (c *client) answer(handle uint64, errno syscall.Errno, data []byte) {
	c.t.Helper()
	c.expect(u32(magicAnswer), u32(uint32(errno)), u64(handle), data)
}

// expectClosed checks that the server has closed the connection.
func (c *client) expectClosed() {
	c.t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		c.t.Fatalf("read after the end of the connection: got %d bytes and %v, want 0 and EOF", n, err)
	}
}

func TestNegotiation(t *testing.T) {
	one := &Server{Exports: map[string]Disk{"a": &ram{b: make([]byte, 4096)}}}
	two := &Server{Exports: map[string]Disk{"a": &ram{b: make([]byte, 4096)}, "b": &ram{b: make([]byte, 512)}}}
	t.Run("GO", func(t *testing.T) { c := dial(t, two); c.greet(3); c.selectExport("b", 512) })
	t.Run("GO without a name, one export", func(t *testing.T) { c := dial(t, one); c.greet(3); c.selectExport("", 4096) })
	t.Run("GO without a name, two exports", func(t *testing.T) {
		c := dial(t, two)
		c.greet(3)
		c.option(optGo, make([]byte, 6))
		c.reply(optGo, repErrUnknown, []byte("there is no such export"))
		c.selectExport("a", 4096) // the client may try another option
	})
	t.Run("GO that contradicts itself", func(t *testing.T) {
		c := dial(t, two)
		c.greet(3)
		for _, data := range [][]byte{nil, {0, 0, 0, 9, 0, 0}, {0, 0, 0, 0, 0, 1}, {255, 255, 255, 255, 0, 0}} {
			c.option(optGo, data)
			c.reply(optGo, repErrInvalid, nil)
		}
	})
	t.Run("LIST", func(t *testing.T) {
		c := dial(t, one)
		c.greet(3)
		c.option(optList, nil)
		c.reply(optList, repServer, append(u32(1), 'a'))
		c.reply(optList, repAck, nil)
	})
	t.Run("EXPORT_NAME", func(t *testing.T) {
		c := dial(t, two)
		c.greet(3)
		c.option(optExportName, []byte("a"))
		c.expect(u64(4096), u16(sendFlags))
	})
	t.Run("EXPORT_NAME with zeroes", func(t *testing.T) {
		c := dial(t, two)
		c.greet(1)
		c.option(optExportName, []byte("a"))
		c.expect(u64(4096), u16(sendFlags), make([]byte, 124))
	})
	t.Run("EXPORT_NAME that is not there", func(t *testing.T) {
		c := dial(t, two)
		c.greet(3)
		c.option(optExportName, []byte("c"))
		c.expectClosed()
	})
	t.Run("ABORT", func(t *testing.T) {
		c := dial(t, two)
		c.greet(3)
		c.option(optAbort, nil)
		c.reply(optAbort, repAck, nil)
		c.expectClosed()
	})
	t.Run("an option that is not known", func(t *testing.T) {
		c := dial(t, two)
		c.greet(3)
		c.option(8, nil) // the option of structured replies
		c.reply(8, repErrUnsup, nil)
	})
	t.Run("an option that is too long", func(t *testing.T) {
		c := dial(t, two)
		c.greet(3)
		c.send([]byte("IHAVEOPT"), u32(optGo), u32(maxOption+1))
		c.expectClosed()
	})
	t.Run("client flags that are not known", func(t *testing.T) { c := dial(t, two); c.greet(4); c.expectClosed() })
	t.Run("no option at all", func(t *testing.T) {
		c := dial(t, two)
		c.greet(3)
		c.send(make([]byte, 16))
		c.expectClosed()
	})
}

func TestTransmission(t *testing.T) {
	d := &ram{b: make([]byte, 8192)}
	s := &Server{Exports: map[string]Disk{"": d}}
	c := dial(t, s)
	c.greet(3)
	c.selectExport("", 8192)
	data := bytes.Repeat([]byte("verbena "), 64)
	c.request(0, cmdWrite, 1, 100, 512, data)
	c.answer(1, 0, nil)
	if !bytes.Equal(d.b[100:612], data) || d.syncs != 0 {
		t.Fatal("write: got other data in the disk, or a sync, want the data without a sync")
	}
	c.request(cmdFlagFUA, cmdWrite, 2, 0, 8, data[:8])
	c.answer(2, 0, nil)
	if d.syncs != 1 {
		t.Error("write with FUA: got no sync")
	}
	c.request(0, cmdRead, 3, 100, 512, nil)
	c.answer(3, 0, data)
	c.request(0, cmdRead, 3, 8192-8, 8, nil)
	c.answer(3, 0, make([]byte, 8))
	c.request(0, cmdFlush, 4, 0, 0, nil)
	c.answer(4, 0, nil)
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
		c.request(r.flags, r.kind, 5, r.off, r.n, r.data)
		c.answer(5, r.errno, nil)
	}
	d.mu.Lock()
	d.err = syscall.EIO
	d.mu.Unlock()
	c.request(0, cmdRead, 6, 0, 8, nil)
	c.answer(6, syscall.EIO, nil) // without data
	c.request(0, cmdFlush, 7, 0, 0, nil)
	c.answer(7, syscall.EIO, nil)
	c.request(0, cmdDisc, 8, 0, 0, nil)
	c.expectClosed()
}

// TestProtocolViolation checks that a violation of the protocol ends the connection with a reason.
func TestProtocolViolation(t *testing.T) {
	for _, bad := range []struct {
		name string
		send []byte
		says string
	}{
		{"no magic number", make([]byte, 28), "magic"},
		{"a read of everything", bytes.Join([][]byte{u32(magicReq), u32(0), u64(0), u64(0), u32(1 << 31)}, nil),
			"2147483648 bytes"},
	} {
		t.Run(bad.name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer ours.Close()
			done := make(chan error, 1)
			go func() { done <- (&conn{r: newReader(theirs), w: theirs}).transmit(&ram{b: make([]byte, 512)}) }()
			ours.Write(bad.send)
			if err := <-done; err == nil || !strings.Contains(err.Error(), bad.says) {
				t.Errorf("transmit: got %v, want an error with the reason", err)
			}
		})
	}
}

// TestServe checks that Serve and its connections end with the context.
func TestServe(t *testing.T) {
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := &Server{Exports: map[string]Disk{"": &ram{b: make([]byte, 512)}}, Logf: t.Logf}
	go func() { done <- s.Serve(ctx, l) }()
	nc, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c := &client{t, nc}
	c.greet(3)
	c.selectExport("", 512)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	c.expectClosed()
}

// large is a disk that counts reads.
type large struct {
	ram
	reads atomic.Int32
}

func (l *large) ReadAt(p []byte, off int64) (int, error) {
	l.reads.Add(1)
	return len(p), nil
}

func (l *large) Size() int64 { return 1 << 30 }

// TestSlowReader checks that a client that does not read its replies cannot exceed the server's limits.
func TestSlowReader(t *testing.T) {
	d := &large{}
	c := dial(t, &Server{Exports: map[string]Disk{"": d}})
	c.greet(3)
	c.selectExport("", 1<<30)
	const requests, size = 8, maxPayload / 2
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range uint64(requests) {
			c.request(0, cmdRead, i, i*size, size, nil)
		}
	}()
	testutil.Eventually(t, "two reads", func() bool { return d.reads.Load() >= 2 })
	testutil.Stays(t, 20*time.Millisecond, "two replies wait, and no more reads begin",
		func() bool { return d.reads.Load() == 2 })
	if _, err := io.CopyN(io.Discard, c, requests*(16+size)); err != nil {
		t.Error(err)
	}
	<-sent
}

// TestClientGone checks that requests of a disconnected client are not executed.
func TestClientGone(t *testing.T) {
	d := &large{}
	ours, theirs := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- (&conn{r: newReader(theirs), w: theirs}).transmit(d) }()
	const requests = 1000
	one := bytes.Join([][]byte{u32(magicReq), u16(0), u16(cmdRead), u64(1), u64(0), u32(maxPayload)}, nil)
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

// TestHandshakeTimeout checks that a client that does not negotiate is disconnected.
func TestHandshakeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{Exports: map[string]Disk{"": &ram{b: make([]byte, 512)}}}
		c := dial(t, s)
		c.SetDeadline(time.Time{})
		c.greet(3)
		c.selectExport("", 512)
		silent := dial(t, s)
		silent.SetDeadline(time.Time{})
		silent.greet(3)
		testutil.Advance(time.Hour)
		silent.expectClosed()
		c.request(0, cmdFlush, 1, 0, 0, nil)
		c.answer(1, 0, nil)
	})
}

// TestTooManyConnections checks that the server refuses connections beyond the limit, and accepts a new one after
// another has ended.
func TestTooManyConnections(t *testing.T) {
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := &Server{Exports: map[string]Disk{"": &ram{b: make([]byte, 512)}}}
	go func() { done <- s.Serve(ctx, l) }()
	defer func() {
		cancel()
		<-done
	}()
	connect := func() *client {
		nc, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		nc.SetDeadline(time.Now().Add(20 * time.Second))
		return &client{t, nc}
	}
	first := connect()
	first.greet(3)
	for range maxConns - 1 {
		connect().greet(3)
	}
	connect().expectClosed()
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
		return bytes.Join([][]byte{[]byte("IHAVEOPT"), u32(o), u32(uint32(len(data))), data}, nil)
	}
	req := bytes.Join([][]byte{u32(magicReq), u16(0), u16(cmdRead), u64(1), u64(0), u32(512)}, nil)
	f.Add(bytes.Join([][]byte{u32(3), opt(optList, nil), opt(optGo, make([]byte, 6)), req}, nil))
	f.Add(bytes.Join([][]byte{u32(1), opt(optExportName, nil), req}, nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		ours, theirs := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			(&Server{Exports: map[string]Disk{"": &ram{b: make([]byte, 1024)}}}).serve(theirs)
			theirs.Close()
		}()
		go io.Copy(io.Discard, ours)
		ours.Write(in)
		ours.Close()
		<-done
	})
}
