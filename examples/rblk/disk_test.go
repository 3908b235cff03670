package rblk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib/attach"
	"verbena/internal/testutil"
	"verbena/link/simnet"
	"verbena/roce"
)

// TestReadReturnsWrittenData writes and reads back data of sizes below, at and above the limit of one request.
func TestReadReturnsWrittenData(t *testing.T) {
	store := NewMemory(1 << 20)
	d := newTestbed(t, store).openDefaultDisk()
	if d.Size() != 1<<20 {
		t.Fatalf("size %d", d.Size())
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct{ off, n int }{
		{0, 1}, {0, 512}, {511, 3}, {4096, 16 << 10}, {5000, 16<<10 + 1}, {0, 1 << 20}, {1<<20 - 1, 1}, {1 << 20, 0},
	} {
		data := newPattern(rng, c.n)
		if n, err := d.WriteAt(data, int64(c.off)); n != c.n || err != nil {
			t.Fatalf("write %d at %d: %d, %v", c.n, c.off, n, err)
		}
		if !bytes.Equal(store.b[c.off:c.off+c.n], data) {
			t.Fatalf("write %d at %d: the store has other data", c.n, c.off)
		}
		back := make([]byte, c.n)
		if n, err := d.ReadAt(back, int64(c.off)); n != c.n || err != nil || !bytes.Equal(back, data) {
			t.Fatalf("read %d at %d: %d, %v, right: %v", c.n, c.off, n, err, bytes.Equal(back, data))
		}
	}
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
}

func (w *testbed) openDefaultDisk() *Disk { return w.openDisk(w.diskConfig()) }

// TestAccessBeyondDiskEndFails checks accesses at the end of a disk, which must behave as in io.ReaderAt and
// io.WriterAt.
func TestAccessBeyondDiskEndFails(t *testing.T) {
	d := newTestbed(t, NewMemory(1000)).openDefaultDisk()
	buf := make([]byte, 100)
	for _, c := range []struct {
		off  int64
		n    int
		err  error
		what string
	}{
		{900, 100, nil, "up to the end"}, {950, 50, io.EOF, "over the end"}, {1000, 0, io.EOF, "at the end"},
		{1001, 0, syscall.EINVAL, "after the end"}, {-1, 0, syscall.EINVAL, "before the beginning"},
	} {
		if n, err := d.ReadAt(buf, c.off); n != c.n || !errors.Is(err, c.err) {
			t.Errorf("read %s: %d, %v", c.what, n, err)
		}
	}
	for _, off := range []int64{901, 1001, -1} {
		if n, err := d.WriteAt(buf, off); n != 0 || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("write at %d: %d, %v", off, n, err)
		}
	}
}

// eofStore is a store that returns io.EOF with the last byte, as an io.ReaderAt may.
type eofStore struct{ *Memory }

func (s eofStore) ReadAt(p []byte, off int64) (int, error) {
	n, err := s.Memory.ReadAt(p, off)
	if off+int64(n) == s.Size() {
		err = io.EOF
	}
	return n, err
}

func TestEOFWithLastByte(t *testing.T) {
	d := newTestbed(t, eofStore{NewMemory(4096)}).openDefaultDisk()
	if n, err := d.ReadAt(make([]byte, 512), 4096-512); n != 512 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// faultyStore is a store that injects errors and delays.
type faultyStore struct {
	*Memory
	err  atomic.Pointer[error]
	gate chan struct{} // if not nil, writes wait for this channel
	in   atomic.Int32  // writes in progress
}

func (f *faultyStore) injectError(err error) { f.err.Store(&err) }

func (f *faultyStore) WriteAt(p []byte, off int64) (int, error) {
	f.in.Add(1)
	defer f.in.Add(-1)
	if f.gate != nil {
		<-f.gate
	}
	if e := f.err.Load(); e != nil && *e != nil {
		return 0, *e
	}
	return f.Memory.WriteAt(p, off)
}

// TestStoreErrorsReachCaller checks that an error of the store is returned to the caller, and that the disk continues
// to work.
func TestStoreErrorsReachCaller(t *testing.T) {
	store := &faultyStore{Memory: NewMemory(4096)}
	d := newTestbed(t, store).openDefaultDisk()
	for _, c := range []struct{ have, want error }{
		{syscall.ENOSPC, syscall.ENOSPC}, {syscall.EROFS, syscall.EROFS}, {syscall.EIO, syscall.EIO},
		{errors.New("worn out"), syscall.EIO}, {nil, nil},
	} {
		store.injectError(c.have)
		if _, err := d.WriteAt([]byte("x"), 0); !errors.Is(err, c.want) {
			t.Errorf("store says %v, disk %v", c.have, err)
		}
	}
	if s := d.Stats(); s.Sessions != 1 {
		t.Errorf("%d sessions", s.Sessions)
	}
}

// syncFailStore is a store with a failing first Sync. Later calls of Sync succeed, as with fsync.
type syncFailStore struct {
	*Memory
	failed atomic.Bool
}

func (s *syncFailStore) Sync() error {
	if s.failed.Swap(true) {
		return nil
	}
	return syscall.EIO
}

// TestFailedSyncFailsEveryCaller checks that every caller of Sync gets an error after written data was lost.
func TestFailedSyncFailsEveryCaller(t *testing.T) {
	w := newTestbed(t, &syncFailStore{Memory: NewMemory(4096)})
	a, b := w.openDefaultDisk(), w.openDefaultDisk()
	for i, d := range []*Disk{a, b, a} {
		if err := d.Sync(); !errors.Is(err, syscall.EIO) {
			t.Errorf("sync %d: %v", i, err)
		}
	}
}

func TestOpenReturnsRefusalReason(t *testing.T) {
	w := newTestbed(t, NewMemory(4096))
	cfg := w.diskConfig()
	cfg.Export = "other"
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := Open(ctx, &w.init.core, cfg); err == nil || !strings.Contains(err.Error(), `no export "other"`) {
		t.Errorf("open of a missing export: %v", err)
	}
	cfg = w.diskConfig()
	cfg.Device = "rxe7"
	ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, &w.init.core, cfg); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "no RDMA device") {
		t.Errorf("open without a device: %v", err)
	}
}

// TestRequestsFailAfterPatience checks that requests wait while a device is absent, and fail after DiskConfig.Patience.
func TestRequestsFailAfterPatience(t *testing.T) {
	for _, side := range []string{"initiator", "target"} {
		t.Run(side, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestbed(t, NewMemory(4096))
				cfg := w.diskConfig()
				cfg.Patience = 300 * time.Millisecond
				d := w.openDisk(cfg)
				h := w.init
				if side == "target" {
					h = w.targ
				}
				h.unplugAdapter()
				for _, when := range []string{"before", "after"} {
					if _, err := d.WriteAt([]byte("lost"), 0); !errors.Is(err, syscall.EIO) || !errors.Is(err, ErrLost) {
						t.Errorf("write after %s the disk is lost: %v", when, err)
					}
				}
				h.plugAdapter()
				if s := d.Stats(); s.Sessions != 1 || s.State != attach.Lost || s.Failed != 2 || s.Held == 0 {
					t.Errorf("Stats of a lost disk: got %+v, want 1 session and 2 failures", s)
				}
				b := make([]byte, 4)
				if _, err := w.openDisk(cfg).ReadAt(b, 0); err != nil || string(b) == "lost" {
					t.Errorf("the same disk, opened again: got %q, %v", b, err)
				}
			})
		})
	}
}

// TestRequestsFailWithoutDataPath checks that requests fail after DiskConfig.Patience if sessions are established but
// the data of requests does not arrive.
func TestRequestsFailWithoutDataPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestbed(t, NewMemory(4096))
		cfg := w.diskConfig()
		cfg.Patience = 2 * time.Second
		d := w.openDisk(cfg)
		w.network.SetFilter(func(p *simnet.Packet) bool { return roce.BTH(p.Data).Opcode() != roce.RCRDMAReadResponseOnly })
		done := make(chan error, 1)
		go func() {
			_, err := d.WriteAt([]byte("lost"), 0)
			done <- err
		}()
		select {
		case err := <-done:
			if !errors.Is(err, ErrLost) || d.Stats().Sessions < 2 {
				t.Errorf("%v, %+v", err, d.Stats())
			}
		case <-time.After(time.Minute):
			t.Errorf("the write waits: %+v", d.Stats())
		}
	})
}

// TestHungSessionIsReplaced checks that a session without responses is closed and replaced.
func TestHungSessionIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &faultyStore{Memory: NewMemory(4096), gate: make(chan struct{})}
		w := newTestbed(t, store)
		cfg := w.diskConfig()
		cfg.Hang = 100 * time.Millisecond
		d := w.openDisk(cfg)
		done := make(chan error, 1)
		go func() {
			_, err := d.WriteAt([]byte("late"), 0)
			done <- err
		}()
		testutil.Eventually(t, "the session to end", func() bool { return d.Stats().State != attach.Attached })
		close(store.gate)
		if err := <-done; err != nil || string(store.b[:4]) != "late" {
			t.Errorf("%v, %q", err, store.b[:4])
		}
	})
}

// TestOldWritePrecedesNextSession checks that a write in progress for the old session ends before the next session
// begins, so that it cannot overwrite later data.
func TestOldWritePrecedesNextSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &faultyStore{Memory: NewMemory(4096), gate: make(chan struct{})}
		w := newTestbed(t, store)
		d := w.openDefaultDisk()
		old := make(chan error, 1)
		go func() {
			_, err := d.WriteAt([]byte("old"), 0)
			old <- err
		}()
		testutil.Eventually(t, "the write to be in the store", func() bool { return store.in.Load() > 0 })
		w.init.unplugAdapter()
		w.init.plugAdapter()
		testutil.AdvanceTime(time.Second)
		if s := d.Stats(); s.Sessions != 1 {
			t.Fatalf("login: got a session while the store executes a write of the old session")
		}
		close(store.gate)
		if err := <-old; err != nil {
			t.Fatal(err)
		}
		if _, err := d.WriteAt([]byte("new"), 0); err != nil {
			t.Fatal(err)
		}
		if s := d.Stats(); s.Sessions != 2 || s.Replayed != 1 {
			t.Errorf("Stats: got %+v, want 2 sessions and 1 repeated request", s)
		}
		if got := string(store.b[:3]); got != "new" {
			t.Errorf("the store has %q", got)
		}
	})
}

// slowFirstStore is a store in which the first write waits for gate.
type slowFirstStore struct {
	*Memory
	began chan struct{} // capacity 1
	gate  chan struct{}
}

func (s *slowFirstStore) WriteAt(p []byte, off int64) (int, error) {
	select {
	case s.began <- struct{}{}:
		<-s.gate
	default:
	}
	return s.Memory.WriteAt(p, off)
}

// TestDeadInitiatorWriteEndsFirst checks that a write of a dead initiator ends before writes of the next initiator.
func TestDeadInitiatorWriteEndsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowFirstStore{Memory: NewMemory(4096), began: make(chan struct{}, 1), gate: make(chan struct{})}
		w := newTestbed(t, store)
		dead := w.openDefaultDisk()
		old := make(chan error, 1)
		go func() {
			_, err := dead.WriteAt([]byte("old"), 0)
			old <- err
		}()
		testutil.Eventually(t, "the write to be in the store", func() bool { return len(store.began) > 0 })
		dead.Close()
		if err := <-old; !errors.Is(err, net.ErrClosed) {
			t.Fatal(err)
		}
		testutil.AdvanceTime(20 * time.Millisecond) // the target detects the dead initiator
		time.AfterFunc(50*time.Millisecond, func() { close(store.gate) })
		if _, err := w.openDefaultDisk().WriteAt([]byte("new"), 0); err != nil {
			t.Fatal(err)
		}
		testutil.Eventually(t, "one session to be left", func() bool { return w.target.Sessions() == 1 })
		if got := string(store.b[:3]); got != "new" {
			t.Errorf("the store has %q", got)
		}
	})
}

// soakDisk reads and writes at random while faults occur, and checks each read.
func soakDisk(t *testing.T, d *Disk, users int, stop <-chan struct{}) (ios int64) {
	const block = 512
	var total atomic.Int64
	var wg sync.WaitGroup
	per := d.Size() / int64(users) / block * block
	for u := range users {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(u), 7))
			base, have := int64(u)*per, make([]byte, per)
			for {
				select {
				case <-stop:
					back := make([]byte, per)
					if _, err := d.ReadAt(back, base); err != nil || !bytes.Equal(back, have) {
						t.Errorf("user %d: at the end: got %v, data correct: %v", u, err, bytes.Equal(back, have))
					}
					return
				default:
				}
				n := (1 + rng.Int64N(8)) * block * (1 + rng.Int64N(2)*7)
				off := rng.Int64N((per-n)/block+1) * block
				if rng.IntN(2) == 0 {
					data := newPattern(rng, int(n))
					if _, err := d.WriteAt(data, base+off); err != nil {
						t.Errorf("user %d: write: %v", u, err)
						return
					}
					copy(have[off:], data)
				} else {
					back := make([]byte, n)
					if _, err := d.ReadAt(back, base+off); err != nil {
						t.Errorf("user %d: read: %v", u, err)
						return
					}
					if !bytes.Equal(back, have[off:off+n]) {
						t.Errorf("user %d: read of %d at %d: got bytes that differ from the written bytes", u, n, base+off)
						return
					}
				}
				if total.Add(1)%64 == 0 {
					if err := d.Sync(); err != nil {
						t.Errorf("user %d: sync: %v", u, err)
					}
				}
			}
		})
	}
	wg.Wait()
	return total.Load()
}

// TestDeviceResetsDuringIO makes the device of each side fail a hundred times, in every way and at random moments. No
// data may be lost or corrupted, and no user may get an error.
func TestDeviceResetsDuringIO(t *testing.T) {
	failures := 100
	if testing.Short() {
		failures = 14
	}
	w := newTestbed(t, NewMemory(1<<20))
	w.t = quietTB{t}
	d := w.openDefaultDisk()
	stop := make(chan struct{})
	done := make(chan int64)
	go func() { done <- soakDisk(t, d, 8, stop) }()
	rng := rand.New(rand.NewPCG(3, 4))
	ways := slices.Sorted(maps.Keys(deviceFailures))
	for i := range failures {
		testutil.PauseRandomly(rng, 20*time.Millisecond)
		h := []*testHost{w.init, w.targ}[rng.IntN(2)]
		deviceFailures[ways[i%len(ways)]](h, time.Duration(rng.IntN(5))*time.Millisecond)
	}
	close(stop)
	ios := <-done
	s := d.Stats()
	t.Logf("got %d failures, %d reads and writes, %+v", failures, ios, s)
	if s.Failed != 0 || s.Sessions < 2 {
		t.Errorf("Stats: got %+v, want no failures and several sessions", s)
	}
}

// quietTB disables logging.
type quietTB struct{ testing.TB }

func (quietTB) Logf(string, ...any) {}
