package ring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/internal/queuedir"
	"verbena/uapi"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// process is a file that a service and its process share, with the memory allocated in the file.
type process struct {
	t     testing.TB
	path  string
	file  *os.File
	end   int
	freed int
	maps  [][]byte
}

func newProcess(t testing.TB) *process {
	t.Helper()
	p := &process{t: t, path: filepath.Join(t.TempDir(), "queues")}
	var err error
	p.file, err = os.Create(p.path)
	check(t, err)
	t.Cleanup(func() {
		for _, m := range p.maps {
			check(t, syscall.Munmap(m))
		}
		check(t, p.file.Close())
	})
	return p
}

// alloc implements Alloc.
func (p *process) alloc(size int) (Memory, error) {
	page := os.Getpagesize()
	n, at := (size+page-1)/page*page, p.end
	p.end += n
	if err := syscall.Fallocate(int(p.file.Fd()), 0, int64(at), int64(n)); err != nil {
		return Memory{}, err
	}
	return Memory{Mem: p.mmap(at, n), Offset: uint64(at), Free: func() { p.freed++ }}, nil
}

func (p *process) mmap(offset, n int) []byte {
	p.t.Helper()
	m, err := syscall.Mmap(int(p.file.Fd()), int64(offset), n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	check(p.t, err)
	p.maps = append(p.maps, m)
	return m
}

func (p *process) newRing(entries, slotBytes int) *Ring {
	p.t.Helper()
	r, err := New(entries, slotBytes, p.alloc)
	check(p.t, err)
	return r
}

// both runs f with a ring in memory of this process, and with a shared ring.
func both(t *testing.T, entries, slotBytes int, f func(t *testing.T, r *Ring)) {
	t.Run("private", func(t *testing.T) {
		r, err := New(entries, slotBytes, nil)
		check(t, err)
		f(t, r)
	})
	t.Run("shared", func(t *testing.T) { f(t, newProcess(t).newRing(entries, slotBytes)) })
}

// push and peek check that the memory is there.
func push(t *testing.T, r *Ring, i uint32, b []byte) bool {
	t.Helper()
	pushed, ok := r.Push(i, b)
	if !ok {
		t.Fatal("Push: memory is gone")
	}
	return pushed
}

func peek(t *testing.T, r *Ring, i uint32, b []byte) bool {
	t.Helper()
	filled, ok := r.Peek(i, b)
	if !ok {
		t.Fatal("Peek: memory is gone")
	}
	return filled
}

func TestGeometry(t *testing.T) {
	for _, c := range []struct{ entries, slotBytes, capacity, slot int }{
		{0, 0, 1, 64}, {1, 1, 1, 64}, {2, 64, 3, 64}, {3, 65, 3, 128}, {4, 128, 7, 128}, {7, 720, 7, 1024},
		{1 << 10, 40, 1<<11 - 1, 64},
	} {
		p := newProcess(t)
		r := p.newRing(c.entries, c.slotBytes)
		if got := r.Capacity(); got != c.capacity {
			t.Errorf("%d entries of %d bytes: got capacity %d, want %d", c.entries, c.slotBytes, got, c.capacity)
		}
		size := uapi.RXEQueueDataOffset + (c.capacity+1)*c.slot
		if got := Size(c.entries, c.slotBytes); got != size {
			t.Errorf("Size(%d, %d): got %d, want %d", c.entries, c.slotBytes, got, size)
		}
		if got, want := r.Info(), (uapi.MMInfo{Size: uint32(size)}); got != want {
			t.Errorf("Info: got %+v, want %+v", got, want)
		}
		h, _ := uapi.Decode[uapi.RXEQueueBuf](p.maps[0])
		if 1<<h.Log2ElemSize != c.slot || int(h.IndexMask) != c.capacity || h.ProducerIndex|h.ConsumerIndex != 0 {
			t.Errorf("header: got %+v, want slots of %d bytes and mask %d", h, c.slot, c.capacity)
		}
		second := p.newRing(c.entries, c.slotBytes)
		if got, want := second.Info().Offset, uint64(len(p.maps[0])); got != want {
			t.Errorf("Info: got offset %d, want %d", got, want)
		}
		want := queuedir.Location{Offset: second.Info().Offset, Mask: h.IndexMask, Shift: h.Log2ElemSize}
		if got := second.Location(); got != want {
			t.Errorf("Location: got %+v, want %+v", got, want)
		}
		second.Free()
		if p.freed != 1 {
			t.Errorf("Free: got %d calls of Memory.Free, want 1", p.freed)
		}
	}
}

// TestNotShared: a ring that is not shared, and a nil ring, have no location and no memory to free.
func TestNotShared(t *testing.T) {
	r, err := New(5, 64, nil)
	check(t, err)
	for _, r := range []*Ring{r, nil} {
		if got := r.Info(); got != (uapi.MMInfo{}) {
			t.Errorf("Info: got %+v, want zero", got)
		}
		if got := r.Location(); got != (queuedir.Location{}) {
			t.Errorf("Location: got %+v, want zero", got)
		}
		r.Free()
	}
}

func TestNewErrors(t *testing.T) {
	full := func(int) (Memory, error) { return Memory{}, fmt.Errorf("full: %w", syscall.ENOSPC) }
	p := newProcess(t)
	gone := func(size int) (Memory, error) {
		m, err := p.alloc(size)
		check(t, p.file.Truncate(0))
		return m, err
	}
	for _, c := range []struct {
		entries int
		alloc   Alloc
		is      error
		want    string
	}{
		{1 << 25, full, syscall.ENOMEM, "queue of 33554432 entries of 64 bytes: cannot allocate memory"},
		{100, full, syscall.ENOSPC, "queue of 100 entries of 64 bytes: full: no space left on device"},
		{100, gone, syscall.EFAULT, "queue of 100 entries: its memory was taken away: bad address"},
	} {
		r, err := New(c.entries, 64, c.alloc)
		if r != nil || !errors.Is(err, c.is) || err.Error() != c.want {
			t.Errorf("New(%d): got %v, %v, want %q", c.entries, r, err, c.want)
		}
	}
	if p.freed != 1 {
		t.Errorf("ring without memory: got %d calls of Memory.Free, want 1", p.freed)
	}
}

// TestPushPeek: elements leave the ring in their order of entry, also around its end. Push to a full ring and Peek of
// an empty ring report it.
func TestPushPeek(t *testing.T) {
	both(t, 3, 100, func(t *testing.T, r *Ring) {
		var prod, cons, in, out uint32
		var got, want [100]byte
		for round := range 5 {
			for range r.Capacity() {
				in++
				binary.LittleEndian.PutUint32(want[96:], in)
				if !push(t, r, prod, want[:]) {
					t.Fatalf("round %d: ring of %d elements is full", round, r.Between(cons, prod))
				}
				prod = r.Next(prod)
				if i, ok := r.Producer(); i != prod || !ok {
					t.Fatalf("Producer: got %d, %v, want %d", i, ok, prod)
				}
			}
			if push(t, r, prod, want[:]) {
				t.Fatal("Push: pushed to a full ring")
			}
			if i, _ := r.Producer(); i != prod {
				t.Fatalf("Producer after Push to a full ring: got %d, want %d", i, prod)
			}
			if got := r.Between(cons, prod); int(got) != r.Capacity() {
				t.Fatalf("Between: got %d, want %d", got, r.Capacity())
			}
			for range r.Capacity() {
				out++
				for range 2 { // the element stays until SetConsumer
					if !peek(t, r, cons, got[:]) {
						t.Fatal("Peek: got nothing")
					}
				}
				binary.LittleEndian.PutUint32(want[96:], out)
				if got != want {
					t.Fatalf("Peek: got %x, want %x", got, want)
				}
				cons = r.Next(cons)
				r.SetConsumer(cons)
				if i, ok := r.Consumer(); i != cons || !ok {
					t.Fatalf("Consumer: got %d, %v, want %d", i, ok, cons)
				}
			}
			if peek(t, r, cons, got[:]) {
				t.Fatal("Peek: got an element of an empty ring")
			}
			if !push(t, r, prod, want[:50]) || !peek(t, r, cons, got[:10]) || !bytes.Equal(got[:10], want[:10]) {
				t.Fatal("a part of a slot differs")
			}
			in, out = in+1, out+1
			prod, cons = r.Next(prod), r.Next(cons)
			r.SetConsumer(cons)
		}
	})
}

// TestTwoEnds: a consumer that sees an index sees the slot, and a producer overwrites no slot that is being read. The
// race detector checks the order of the accesses.
func TestTwoEnds(t *testing.T) {
	both(t, 7, 64, func(t *testing.T, r *Ring) {
		const n = 20_000
		var stop atomic.Bool
		done := make(chan struct{})
		defer func() {
			stop.Store(true)
			<-done
		}()
		go func() {
			defer close(done)
			var slot [64]byte
			prod := uint32(0)
			for i := range uint64(n) {
				for at := 0; at < len(slot); at += 8 {
					binary.LittleEndian.PutUint64(slot[at:], i)
				}
				for pushed := false; !pushed; pushed, _ = r.Push(prod, slot[:]) {
					if stop.Load() {
						return
					}
					runtime.Gosched()
				}
				prod = r.Next(prod)
			}
		}()
		var slot [64]byte
		cons := uint32(0)
		for i := range uint64(n) {
			for began := time.Now(); !peek(t, r, cons, slot[:]); runtime.Gosched() {
				if time.Since(began) > time.Minute {
					t.Fatalf("element %d does not come", i)
				}
			}
			for at := 0; at < len(slot); at += 8 {
				if got := binary.LittleEndian.Uint64(slot[at:]); got != i {
					t.Fatalf("element %d: got %d at byte %d", i, got, at)
				}
			}
			cons = r.Next(cons)
			r.SetConsumer(cons)
		}
	})
}

// TestDistrust: the process writes any index and any geometry, and no access is outside the ring.
func TestDistrust(t *testing.T) {
	p := newProcess(t)
	first, r, last := p.newRing(3, 64), p.newRing(3, 64), p.newRing(3, 64)
	mem := p.mmap(int(r.Info().Offset), int(r.Info().Size))
	word := func(at int, v uint32) { binary.NativeEndian.PutUint32(mem[at:], v) }
	neighbours := [2][]byte{bytes.Clone(first.mem), bytes.Clone(last.mem)}
	for _, v := range []uint32{0, 1, 3, 4, 5, 63, 1 << 16, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
		word(0, v)
		word(4, v)
		word(uapi.RXEQueueProducerOffset, v)
		word(uapi.RXEQueueConsumerOffset, v)
		if got, ok := r.Producer(); got != v&3 || !ok {
			t.Errorf("Producer: got %d, %v, want %d", got, ok, v&3)
		}
		if got, ok := r.Consumer(); got != v&3 || !ok {
			t.Errorf("Consumer: got %d, %v, want %d", got, ok, v&3)
		}
		if got := r.Capacity(); got != 3 {
			t.Errorf("Capacity: got %d, want 3", got)
		}
		if got := r.Location(); got.Mask != 3 || got.Shift != 6 {
			t.Errorf("Location: got %+v, want mask 3 and shift 6", got)
		}
		var slot [64]byte
		for i := range uint32(4) {
			if got, want := peek(t, r, i, slot[:]), i != v&3; got != want {
				t.Errorf("Peek(%d) of producer %#x: got %v, want %v", i, v, got, want)
			}
		}
		for i := range uint32(4) {
			word(uapi.RXEQueueConsumerOffset, v)
			if got, want := push(t, r, i, slot[:]), (i+1)&3 != v&3; got != want {
				t.Errorf("Push(%d) of consumer %#x: got %v, want %v", i, v, got, want)
			}
		}
		if !bytes.Equal(first.mem, neighbours[0]) || !bytes.Equal(last.mem, neighbours[1]) {
			t.Fatalf("index %#x: a neighbour has changed", v)
		}
	}
}

// TestConsumed: a consumer that has emptied more slots than were filled has emptied the ring. Any other index is
// accepted.
func TestConsumed(t *testing.T) {
	both(t, 7, 64, func(t *testing.T, r *Ring) {
		for from := range uint32(8) {
			for filled := range uint32(8) {
				prod := (from + filled) & r.mask
				for claimed := range uint32(8) {
					for _, high := range []uint32{0, 0xfffffff8} { // only the bits within the ring count
						*r.cons = (from+claimed)&r.mask | high
						raw := *r.cons
						i, repaired, ok := r.Consumed(from, prod)
						want, wantRaw := (from+claimed)&r.mask, raw
						if claimed > filled {
							want, wantRaw = prod, prod
						}
						if i != want || repaired != (claimed > filled) || !ok || *r.cons != wantRaw {
							t.Fatalf("from %d, %d filled, consumer %#x: got %d, %v, %v, and %#x in memory, want %d, %#x", from, filled, raw, i, repaired, ok, *r.cons, want, wantRaw)
						}
					}
				}
			}
		}
	})
}

// TestFill: Fill publishes the slot.
func TestFill(t *testing.T) {
	both(t, 3, 64, func(t *testing.T, r *Ring) {
		var slot [64]byte
		for i := range uint32(3) {
			if !r.Fill(i, []byte{byte(i + 1)}) || !peek(t, r, i, slot[:]) || slot[0] != byte(i+1) || *r.prod != i+1 {
				t.Fatalf("slot %d: %v, producer %d", i, slot[0], *r.prod)
			}
		}
	})
}

// TestMemoryGone: every access to removed memory reports it, and restores the setting of the goroutine.
func TestMemoryGone(t *testing.T) {
	p := newProcess(t)
	r := p.newRing(1<<8, 64)
	check(t, p.file.Truncate(0))
	var slot [64]byte
	for name, f := range map[string]func() bool{
		"Producer":    func() bool { _, ok := r.Producer(); return ok },
		"Consumer":    func() bool { _, ok := r.Consumer(); return ok },
		"SetConsumer": func() bool { return r.SetConsumer(1) },
		"Peek":        func() bool { _, ok := r.Peek(0, slot[:]); return ok },
		"Consumed":    func() bool { _, _, ok := r.Consumed(0, 0); return ok },
		"Fill":        func() bool { return r.Fill(0, slot[:]) },
		"Push":        func() bool { _, ok := r.Push(0, slot[:]); return ok },
	} {
		if f() {
			t.Errorf("%s: got ok, want the memory gone", name)
		}
		if debug.SetPanicOnFault(false) {
			t.Errorf("%s: left the goroutine with panics on faults", name)
		}
	}
	// The slots are removed, but the indices are not.
	check(t, p.file.Truncate(4096))
	*r.prod, *r.cons = 0, 200
	if _, ok := r.Peek(100, slot[:]); ok {
		t.Error("Peek of a slot that is gone: got ok")
	}
	if pushed, ok := r.Push(100, slot[:]); pushed || ok || atomic.LoadUint32(r.prod) != 0 {
		t.Errorf("Push to a slot that is gone: got %v, %v, producer %d, want nothing published", pushed, ok, *r.prod)
	}
}

// TestOtherPanics: a panic of the service itself is not taken for removed memory.
func TestOtherPanics(t *testing.T) {
	r := newProcess(t).newRing(3, 64)
	r.mem = r.mem[:uapi.RXEQueueDataOffset:uapi.RXEQueueDataOffset]
	*r.prod = 1
	defer func() {
		if recover() == nil {
			t.Error("Peek outside the memory: got no panic")
		}
	}()
	var slot [64]byte
	r.Peek(0, slot[:])
}

func TestRingDoesNotAllocate(t *testing.T) {
	both(t, 3, 64, func(t *testing.T, r *Ring) {
		var i uint32
		if n := testing.AllocsPerRun(100, func() {
			var slot [64]byte
			r.Push(i, slot[:])
			r.Peek(i, slot[:])
			i = r.Next(i)
			r.SetConsumer(i)
		}); n != 0 {
			t.Errorf("got %v allocations, want 0", n)
		}
	})
}
