package rdmanet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"verbena/driver/rxe"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/rdmanet"
	"verbena/verbs"
)

// newTestRegion creates a region of connection b. newTestRegion also returns the Remote of connection a for this
// region.
func newTestRegion(t *testing.T, a, b *rdmanet.Conn, size int, access verbs.Access) (*rdmanet.Region, *rdmanet.Remote) {
	t.Helper()
	r, err := b.NewRegion(size, access)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	text, err := r.Descriptor().MarshalBinary()
	must(t, err)
	var d rdmanet.Descriptor
	must(t, d.UnmarshalBinary(text))
	if d != r.Descriptor() || len(text) != rdmanet.DescriptorSize {
		t.Fatalf("descriptor: got %+v, want %+v", d, r.Descriptor())
	}
	return r, a.Remote(d)
}

func TestRemoteReadsAndWrites(t *testing.T) {
	t.Parallel()
	a, b := connectNewPair(t, rdmanet.Config{})
	const size = 1_000_001
	r, m := newTestRegion(t, a, b, size, 0)
	want := randomBytes(1, size)
	var wg sync.WaitGroup
	wg.Go(func() { exchangeData(t, a, b, 1<<20) }) // runs concurrently with a stream
	n, err := m.WriteAt(want, 0)
	if n != size || err != nil {
		t.Fatalf("WriteAt: got %d, %v", n, err)
	}
	if !bytes.Equal(r.Bytes(), want) {
		t.Error("region after WriteAt: got other bytes, want the written ones")
	}
	got, err := io.ReadAll(io.NewSectionReader(m, 0, m.Len()))
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Error("ReadAt: got other bytes, want the bytes of the region")
	}
	wg.Wait()
	for _, x := range []struct {
		off  int64
		len  int
		n    int
		want error
	}{
		{0, 0, 0, nil}, {size - 10, 10, 10, nil}, {size - 10, 11, 10, io.EOF}, {size, 1, 0, io.EOF},
		{size + 5, 1, 0, io.EOF}, {-1, 1, 0, syscall.EINVAL},
	} {
		if n, err := m.ReadAt(got[:x.len], x.off); n != x.n || !errors.Is(err, x.want) {
			t.Errorf("ReadAt of %d bytes at %d: got %d, %v, want %d, %v", x.len, x.off, n, err, x.n, x.want)
		}
	}
	if n, err := m.WriteAt(make([]byte, 2), size-1); n != 0 || err != io.ErrShortWrite {
		t.Errorf("WriteAt past the end: got %d, %v, want 0 and io.ErrShortWrite", n, err)
	}

	// The next operations work without a copy.
	mine, err := a.NewRegion(size, verbs.LocalWrite)
	must(t, err)
	defer mine.Close()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	must(t, m.ReadRegion(ctx, 1, mine, 2, size-2))
	if !bytes.Equal(mine.Bytes()[2:], want[1:size-1]) {
		t.Error("ReadRegion: got other bytes, want the bytes of the peer's region")
	}
	must(t, m.WriteRegion(ctx, 0, mine, 0, size))
	if !bytes.Equal(r.Bytes(), mine.Bytes()) {
		t.Error("WriteRegion: got other bytes in the peer's region, want the written ones")
	}
	if err := m.ReadRegion(ctx, 1, mine, 0, size); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("ReadRegion past the end: got %v, want EINVAL", err)
	}

	// The next part checks deadlines and the end of the connection.
	must(t, a.SetReadDeadline(time.Unix(1, 0)))
	_, err = m.ReadAt(got, 0)
	checkOpError(t, "ReadAt", err, os.ErrDeadlineExceeded)
	must(t, a.Close())
	_, err = m.ReadAt(got, 0)
	checkOpError(t, "ReadAt after Close", err, net.ErrClosed)
	_, err = m.WriteAtContext(ctx, got, 0)
	checkOpError(t, "WriteAt after Close", err, net.ErrClosed)
	_, err = a.NewRegion(1, 0)
	checkOpError(t, "NewRegion after Close", err, net.ErrClosed)
}

// TestRemoteHandlesOddRanges checks odd offsets and lengths. An operation must transfer the available bytes or return
// an error that explains the range. The connection must remain usable.
func TestRemoteHandlesOddRanges(t *testing.T) {
	t.Parallel()
	a, b := connectNewPair(t, rdmanet.Config{})
	const size = 1000
	_, m := newTestRegion(t, a, b, size, 0)
	buf := make([]byte, 100)
	for _, x := range []struct {
		off         int64
		len, n      int
		read, write error // errors of ReadAt and of WriteAt; if WriteAt fails, it must write nothing
	}{
		{0, 100, 100, nil, nil}, {900, 100, 100, nil, nil}, {901, 100, 99, io.EOF, io.ErrShortWrite},
		{999, 2, 1, io.EOF, io.ErrShortWrite}, {size, 0, 0, nil, nil}, {size, 1, 0, io.EOF, io.ErrShortWrite},
		{1 << 32, 1, 0, io.EOF, io.ErrShortWrite}, {math.MaxInt64, 0, 0, nil, nil},
		{math.MaxInt64, 1, 0, io.EOF, io.ErrShortWrite}, {-1, 1, 0, syscall.EINVAL, syscall.EINVAL},
		{math.MinInt64, 1, 0, syscall.EINVAL, syscall.EINVAL},
	} {
		if n, err := m.ReadAt(buf[:x.len], x.off); n != x.n || !errors.Is(err, x.read) {
			t.Errorf("ReadAt of %d bytes at %d: got %d, %v, want %d, %v", x.len, x.off, n, err, x.n, x.read)
		}
		want := x.n
		if x.write != nil {
			want = 0
		}
		if n, err := m.WriteAt(buf[:x.len], x.off); n != want || !errors.Is(err, x.write) {
			t.Errorf("WriteAt of %d bytes at %d: got %d, %v, want %d, %v", x.len, x.off, n, err, want, x.write)
		}
	}
	mine, err := a.NewRegion(size, 0)
	must(t, err)
	t.Cleanup(func() { must(t, mine.Close()) })
	ctx := context.Background()
	for _, x := range []struct {
		off   int64
		at, n int
	}{
		{0, 0, size + 1}, {1, 0, size}, {0, 1, size}, {-1, 0, 1}, {0, -1, 1}, {0, 0, -1}, {math.MaxInt64, 0, 1},
		{math.MinInt64, 0, 1}, {0, math.MaxInt, 1}, {0, math.MinInt, 1}, {0, 0, math.MaxInt}, {0, 0, math.MinInt},
		{0, math.MinInt, math.MinInt}, {0, math.MinInt, math.MaxInt},
	} {
		if err := m.ReadRegion(ctx, x.off, mine, x.at, x.n); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("ReadRegion %+v: got %v, want EINVAL", x, err)
		}
		if err := m.WriteRegion(ctx, x.off, mine, x.at, x.n); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("WriteRegion %+v: got %v, want EINVAL", x, err)
		}
	}
	// An operation with a context that has already ended must not end the connection.
	ended, cancel := context.WithCancel(ctx)
	cancel()
	checkOpError(t, "ReadRegion", m.ReadRegion(ended, 0, mine, 0, size), context.Canceled)
	_, err = m.ReadAtContext(ended, buf, 0)
	checkOpError(t, "ReadAtContext", err, context.Canceled)
	must(t, m.ReadRegion(ctx, 0, mine, 0, size))
	exchangeData(t, a, b, 1000)
}

// TestStaleDescriptorGivesNoAccess checks that the descriptor of a closed Region does not give access to a later
// Region, even at the same address.
func TestStaleDescriptorGivesNoAccess(t *testing.T) {
	t.Parallel()
	a, b := connectNewPair(t, rdmanet.Config{})
	seen := map[rdmanet.Descriptor]bool{}
	var last rdmanet.Descriptor
	for range 500 {
		r, err := b.NewRegion(4096, 0)
		must(t, err)
		last = r.Descriptor()
		if seen[last] {
			t.Fatalf("descriptor %+v: got it again after %d others, want a new one", last, len(seen))
		}
		seen[last] = true
		must(t, r.Close())
	}
	r, err := b.NewRegion(4096, 0)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	_, err = a.Remote(last).WriteAt([]byte("stale"), 0)
	checkOpError(t, "WriteAt", err, verbs.RemoteAccessError, syscall.ECONNRESET)
	if !bytes.Equal(r.Bytes(), make([]byte, 4096)) {
		t.Error("WriteAt with a stale descriptor: got data in another region, want none")
	}
}

// TestRemoteDeadlinesAtManyTimes is a variant of TestTimedOutRemoteLeavesCallerMemory with deadlines at many different
// times of an operation.
func TestRemoteDeadlinesAtManyTimes(t *testing.T) {
	t.Parallel()
	a, b := connectNewPair(t, rdmanet.Config{})
	const size = 1 << 20
	r, m := newTestRegion(t, a, b, size, 0)
	want := randomBytes(1, size)
	copy(r.Bytes(), want)
	buf := make([]byte, size)
	for i := range 25 {
		clear(buf)
		must(t, a.SetReadDeadline(time.Now().Add(time.Duration(i*40)*time.Microsecond)))
		n, err := m.ReadAt(buf, 0)
		if err != nil {
			checkOpError(t, "ReadAt", err, os.ErrDeadlineExceeded)
		}
		if !bytes.Equal(buf[:n], want[:n]) {
			t.Errorf("ReadAt with a deadline: got wrong bytes among %d, want the bytes of the region", n)
		}
		kept := bytes.Clone(buf[n:])
		testutil.Consistently(t, 200*time.Microsecond, "the caller's memory does not change after ReadAt",
			func() bool { return bytes.Equal(kept, buf[n:]) })
	}
	must(t, a.SetReadDeadline(time.Time{}))
	copy(r.Bytes(), bytes.Repeat([]byte{1}, size))
	for i := range 25 {
		copy(buf, r.Bytes())
		must(t, a.SetWriteDeadline(time.Now().Add(time.Duration(i*40)*time.Microsecond)))
		if _, err := m.WriteAt(buf, 0); err != nil {
			checkOpError(t, "WriteAt", err, os.ErrDeadlineExceeded)
		}
		clear(buf)
		_, err := m.ReadAt(buf[:1], 0) // executed after all operations in flight
		must(t, err)
		if bytes.IndexByte(r.Bytes(), 0) >= 0 {
			t.Fatal("WriteAt: got bytes that the caller changed after the return, want the original bytes")
		}
	}
}

// TestTimedOutRemoteLeavesCallerMemory checks that an operation does not access the caller's memory after its return,
// even if the device has not finished at that time.
func TestTimedOutRemoteLeavesCallerMemory(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, nil)
	d := w.openDevice(t)
	cfg := rdmanet.Config{Path: verbs.Path{Timeout: 32 * time.Millisecond}}
	a, b := connectDevices(t, d, d, cfg, cfg)
	r, m := newTestRegion(t, a, b, 200_000, 0)
	copy(r.Bytes(), randomBytes(1, r.Len()))
	mine, err := a.NewRegion(r.Len(), 0)
	must(t, err)
	t.Cleanup(func() { must(t, mine.Close()) })
	// giveUp starts an operation while all packets are dropped. giveUp cancels the context of the operation after the
	// first dropped packet. Later the device retransmits the packets. The operation therefore completes, before any
	// later operation.
	giveUp := func(what string, f func(context.Context) error) {
		t.Helper()
		must(t, w.net.Faults().Add(link.Rule{Drop: 1}))
		ctx, cancel := context.WithCancelCause(context.Background())
		done := make(chan error, 1)
		go func() { done <- f(ctx) }()
		testutil.Eventually(t, "a packet to be lost", func() bool { return w.net.Faults().List()[0].Dropped > 0 })
		cancel(context.DeadlineExceeded)
		checkOpError(t, what, <-done, context.DeadlineExceeded)
		w.net.Faults().Clear()
	}
	// The memory of a cancelled operation must not be used for the next operation.
	got := make([]byte, r.Len())
	giveUp("ReadAt", func(ctx context.Context) error { _, err := m.ReadAtContext(ctx, got, 0); return err })
	if n, err := m.ReadAt(got[:1000], 1000); n != 1000 || err != nil || !bytes.Equal(got[:n], r.Bytes()[1000:][:n]) {
		t.Errorf("ReadAt: got %d bytes, error %v, or wrong contents, want the bytes of the region", n, err)
	}
	clear(got)
	giveUp("ReadAt", func(ctx context.Context) error { _, err := m.ReadAtContext(ctx, got, 0); return err })
	_, err = m.ReadAt(make([]byte, 1), 0)
	must(t, err)
	if !bytes.Equal(got, make([]byte, len(got))) {
		t.Error("caller's memory after the return of ReadAt: got it changed, want it unchanged")
	}
	// The connection must remain usable.
	n, err := m.ReadAt(got, 0)
	if n != len(got) || err != nil || !bytes.Equal(got, r.Bytes()) {
		t.Errorf("ReadAt: got %d bytes, error %v, or wrong contents, want the bytes of the region", n, err)
	}
	// A cancelled operation may be retransmitted with its original data. The memory of the operation must not be reused
	// earlier.
	text := []byte("before")
	giveUp("WriteAt", func(ctx context.Context) error { _, err := m.WriteAtContext(ctx, text, 0); return err })
	copy(text, "after!")
	_, err = m.WriteAt([]byte("other"), 100)
	must(t, err)
	if s, o := string(r.Bytes()[:6]), string(r.Bytes()[100:105]); s != "before" || o != "other" {
		t.Errorf("WriteAt: got %q and %q in the region, want before and other", s, o)
	}
	// Without a copy, a timeout must end the connection. The caller can then use the memory again.
	giveUp("ReadRegion", func(ctx context.Context) error { return m.ReadRegion(ctx, 0, mine, 0, r.Len()) })
	kept := bytes.Clone(mine.Bytes())
	// This period is longer than several timeouts of the device.
	testutil.Consistently(t, 150*time.Millisecond, "the caller's memory does not change after ReadRegion",
		func() bool { return bytes.Equal(kept, mine.Bytes()) })
	_, err = a.Write(text)
	checkOpError(t, "Write", err, syscall.ECONNABORTED)
}

// TestCancelledOperationStopsDevice checks that the cancellation of an operation without a copy stops the device at
// once, although the peer does not respond and retries remain.
func TestCancelledOperationStopsDevice(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, nil)
	d := w.openDevice(t)
	cfg := rdmanet.Config{Path: verbs.Path{Timeout: time.Minute}, Linger: -1}
	a, b := connectDevices(t, d, d, cfg, cfg)
	_, m := newTestRegion(t, a, b, 1000, 0)
	mine, err := a.NewRegion(1000, 0)
	must(t, err)
	t.Cleanup(func() { must(t, mine.Close()) })
	must(t, w.net.Faults().Add(link.Rule{Drop: 1}))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	start := time.Now()
	checkOpError(t, "WriteRegion", m.WriteRegion(ctx, 0, mine, 0, 1000), context.DeadlineExceeded)
	if d := time.Since(start); d > 4*time.Second {
		t.Errorf("it took %v", d)
	}
}

// TestRemoteWithoutRightEndsConn checks that an operation without the required right ends the connection at both ends.
func TestRemoteWithoutRightEndsConn(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, &rxe.Fabric{})
	d := w.openDevice(t)
	a, b := connectDevices(t, d, d, noRNRConfig, noRNRConfig)
	_, m := newTestRegion(t, a, b, 100, verbs.RemoteRead)
	_, err := m.ReadAt(make([]byte, 100), 0)
	must(t, err)
	_, err = m.WriteAt(make([]byte, 100), 0)
	checkOpError(t, "WriteAt", err, verbs.RemoteAccessError, syscall.ECONNRESET)
	for _, c := range []net.Conn{a, b} {
		_, err = c.Read(make([]byte, 1))
		checkOpError(t, "Read", err, syscall.ECONNRESET)
	}
}

// TestClosedRegionFailsOperation checks that an operation with a closed Region of this end fails, and that the
// connection remains usable.
func TestClosedRegionFailsOperation(t *testing.T) {
	t.Parallel()
	a, b := connectNewPair(t, rdmanet.Config{})
	_, m := newTestRegion(t, a, b, 100, 0)
	mine, err := a.NewRegion(100, 0)
	must(t, err)
	must(t, mine.Close())
	mr, err := a.PD().Alloc(100, 0)
	must(t, err)
	must(t, mr.Close())
	ctx := context.Background()
	for _, r := range []*rdmanet.Region{mine, rdmanet.RegionOf(mr)} {
		checkOpError(t, "ReadRegion", m.ReadRegion(ctx, 0, r, 0, 10), net.ErrClosed)
		err := m.WriteRegion(ctx, 0, r, 0, 10)
		checkOpError(t, "WriteRegion", err, net.ErrClosed)
		want := fmt.Sprintf("region of 100 bytes at %#x", r.Descriptor().Addr)
		if !strings.Contains(err.Error(), want) {
			t.Errorf("WriteRegion: got %q, want it to contain %s", err, want)
		}
	}
	_, err = m.ReadAt(make([]byte, 10), 0)
	must(t, err)
	exchangeData(t, a, b, 1000)
}

// TestRegionCloseWaitsForOperation checks that Close of a Region waits for the operation that uses the Region, and
// prevents new operations.
func TestRegionCloseWaitsForOperation(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, nil)
	d := w.openDevice(t)
	cfg := rdmanet.Config{Path: verbs.Path{Timeout: 60 * time.Millisecond}, KeepAlive: -1}
	a, b := connectDevices(t, d, d, cfg, cfg)
	there, m := newTestRegion(t, a, b, 1000, 0)
	mine, err := a.NewRegion(1000, 0)
	must(t, err)
	copy(mine.Bytes(), "used")
	must(t, w.net.Faults().Add(link.Rule{Drop: 1}))
	written, closed := make(chan error, 1), make(chan error, 1)
	go func() { written <- m.WriteRegion(context.Background(), 0, mine, 0, 1000) }()
	testutil.Eventually(t, "a packet to be lost", func() bool { return w.net.Faults().List()[0].Dropped > 0 })
	go func() { closed <- mine.Close() }()
	select {
	case err := <-closed:
		t.Errorf("Close while the memory is in use: returned %v, want it to wait", err)
	case <-time.After(10 * time.Millisecond):
	}
	w.net.Faults().Clear() // the device retransmits the packet
	must(t, <-written)
	must(t, <-closed)
	if !bytes.HasPrefix(there.Bytes(), []byte("used")) {
		t.Error("WriteRegion: got other bytes in the peer's region, want the written ones")
	}
	checkOpError(t, "WriteRegion", m.WriteRegion(context.Background(), 0, mine, 0, 1000), net.ErrClosed)
	exchangeData(t, a, b, 1000)
}

// TestPeerCloseEndsOperations checks that the peer's Close ends pending and later one-sided operations at once.
// CloseWrite must not end them.
func TestPeerCloseEndsOperations(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, nil)
	there := w.newPeerTestbed(t)
	da, db := w.openDevice(t), there.openDevice(t)
	// The retries last longer than the test. The peer's device receives no acknowledgement for CLOSE.
	cfg := rdmanet.Config{Path: verbs.Path{Timeout: time.Minute}, KeepAlive: -1, Linger: 20 * time.Millisecond}
	for _, direct := range []bool{false, true} {
		a, b := connectDevices(t, da, db, cfg, cfg)
		r, m := newTestRegion(t, a, b, 1000, 0)
		mine, err := a.NewRegion(1000, 0)
		must(t, err)
		t.Cleanup(func() { must(t, mine.Close()) })
		copy(r.Bytes(), randomBytes(1, 1000))
		ctx := context.Background()

		must(t, b.CloseWrite())
		if _, err := a.Read(make([]byte, 1)); err != io.EOF {
			t.Fatalf("Read: got %v, want %v", err, io.EOF)
		}
		_, err = a.Write([]byte("answer"))
		must(t, err)
		got := make([]byte, 1000)
		_, err = m.ReadAt(got, 0)
		must(t, err)
		must(t, m.ReadRegion(ctx, 0, mine, 0, 1000))
		if !bytes.Equal(got, r.Bytes()) || !bytes.Equal(mine.Bytes(), r.Bytes()) {
			t.Error("operations after the peer's CloseWrite: got other bytes, want the bytes of the region")
		}
		list := []blockingCall{
			{"ReadRegion", func() error { return m.ReadRegion(ctx, 0, mine, 0, 10) }},
			{"WriteRegion", func() error { return m.WriteRegion(ctx, 0, mine, 0, 10) }},
		}
		if !direct {
			list = []blockingCall{
				{"ReadAt", func() error { _, err := m.ReadAt(make([]byte, 10), 0); return err }},
				{"WriteAt", func() error { _, err := m.WriteAt(make([]byte, 10), 0); return err }},
				{"ReadAtContext", func() error { _, err := m.ReadAtContext(ctx, make([]byte, 10), 0); return err }},
			}
		}
		must(t, w.net.Faults().Add(link.Rule{Drop: 1, Peer: netip.MustParseAddr(there.addr)}))
		expectCallsFail(t, list, func() { _ = b.Close() }, syscall.EPIPE)
		w.net.Faults().Clear()
		_, err = a.Write(make([]byte, 1))
		checkOpError(t, "Write", err, syscall.EPIPE)
		must(t, a.Close())
	}
}

// TestRegionOutlivesConn checks that a Region remains usable after its connection has been closed. When the Region is
// closed, the protection domain must end.
func TestRegionOutlivesConn(t *testing.T) {
	t.Parallel()
	a, b := connectNewPair(t, rdmanet.Config{})
	r, err := b.NewRegion(100, 0)
	must(t, err)
	must(t, a.Close())
	must(t, b.Close())
	mr, err := b.PD().Alloc(100, 0)
	if err != nil {
		t.Fatalf("Alloc after Close of the connection: got %v, want nil because the region still exists", err)
	}
	must(t, mr.Close())
	r.Bytes()[0] = 1
	must(t, r.Close())
	must(t, r.Close())
	if _, err := b.PD().Alloc(100, 0); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Alloc after Close of the region: got %v, want %v", err, verbs.ErrClosed)
	}
}

// TestConnsOfOneDomainShareRegion checks that connections of one protection domain access the same region.
func TestConnsOfOneDomainShareRegion(t *testing.T) {
	t.Parallel()
	d := newTestbed(t, &rxe.Fabric{}).openDevice(t)
	pd, err := d.AllocPD()
	must(t, err)
	mr, err := pd.Alloc(1000, verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite)
	must(t, err)
	r := rdmanet.RegionOf(mr)
	for i := range 2 {
		a, b := connectDevices(t, d, d, rdmanet.Config{}, rdmanet.Config{PD: pd})
		if b.PD() != pd {
			t.Error("PD: got another")
		}
		_, err := a.Remote(r.Descriptor()).WriteAt([]byte{byte(i + 1)}, int64(i))
		must(t, err)
		must(t, a.Close())
		must(t, b.Close())
	}
	if !bytes.Equal(r.Bytes()[:3], []byte{1, 2, 0}) {
		t.Errorf("got %v", r.Bytes()[:3])
	}
	must(t, r.Close())
	must(t, pd.Close())
}

func TestDescriptorRejectsInvalidBytes(t *testing.T) {
	t.Parallel()
	for _, b := range [][]byte{nil, make([]byte, 19), make([]byte, 21), bytes.Repeat([]byte{255}, 20)} {
		if err := new(rdmanet.Descriptor).UnmarshalBinary(b); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: got %v, want EINVAL", b, err)
		}
	}
}
