package ring

import (
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"verbena/internal/queuedir"
	"verbena/uapi"
)

// queuePair holds the rings of a queue pair, as its process uses them, and the index of its entry.
type queuePair struct {
	queuedir.Entry
	listed       int
	sq, rq       *Ring
	send, recv   *Ring // completion queues
	sent, posted uint32
}

// newQueuePair adds a queue pair with a completion queue for each direction.
func (p *process) newQueuePair(d *queuedir.Directory, qpn uint32) *queuePair {
	p.t.Helper()
	q := &queuePair{sq: p.newRing(7, 224), rq: p.newRing(7, 64)}
	q.send, q.recv = p.newRing(15, uapi.RXECQESize), p.newRing(15, uapi.RXECQESize)
	q.Entry = queuedir.Entry{QPN: qpn, SQ: q.sq.Location(), RQ: q.rq.Location()}
	q.SendCQ, q.RecvCQ = q.send.Location(), q.recv.Location()
	var err error
	q.listed, err = d.Add(q.Entry)
	check(p.t, err)
	return q
}

// post posts a work request to a ring of the queue pair.
func post(t *testing.T, r *Ring, at *uint32, id uint64) {
	t.Helper()
	if !push(t, r, *at, binary.NativeEndian.AppendUint64(nil, id)) {
		t.Fatalf("work request %d: the ring is full", id)
	}
	*at = r.Next(*at)
}

// completions removes the completions from a completion queue, and returns them by work request.
func completions(t *testing.T, cq *Ring) map[uint64]uapi.WC {
	t.Helper()
	all := map[uint64]uapi.WC{}
	cons, _ := cq.Consumer()
	var slot [uapi.RXECQESize]byte
	for range cq.Capacity() {
		if !peek(t, cq, cons, slot[:]) {
			break
		}
		wc, _ := uapi.Decode[uapi.WC](slot[:])
		all[wc.WRID] = wc
		cons = cq.Next(cons)
		cq.SetConsumer(cons)
	}
	return all
}

func abandonPath(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return queuedir.Abandon(f, map[queuedir.Kind]queuedir.Flush{queuedir.RXE: Flush})
}

// The layout of the directory.
const dirPerPage = (queuedir.PageSize - 16) / 72

type dirEntry struct {
	Live, QPN              uint32
	SQ, RQ, SendCQ, RecvCQ queuedir.Location
}

func entryOffset(i int) int { return 16 + i*uapi.SizeOf[dirEntry]() }

// flushed returns the completions of Abandon.
func flushed(op uapi.WCOpcode, qpn uint32, ids ...uint64) map[uint64]uapi.WC {
	all := map[uint64]uapi.WC{}
	for _, id := range ids {
		all[id] = uapi.WC{WRID: id, Status: uapi.WCWRFlushErr, Opcode: op, QPNum: qpn}
	}
	return all
}

// TestAbandon: Abandon completes outstanding requests once, with the number of their queue pair.
func TestAbandon(t *testing.T) {
	p := newProcess(t)
	d, err := queuedir.New(queuedir.RXE, p.alloc)
	check(t, err)
	a, b := p.newQueuePair(d, 17), p.newQueuePair(d, 0x20011)
	for id := range uint64(5) {
		post(t, a.sq, &a.sent, id)
		post(t, a.rq, &a.posted, 10+id)
	}
	a.sq.SetConsumer(2) // 0 and 1 have completed
	post(t, b.rq, &b.posted, 20)
	for range 2 {
		check(t, abandonPath(p.path))
		check(t, abandonPath(p.path)) // no request is left
		for _, c := range []struct {
			name string
			cq   *Ring
			want map[uint64]uapi.WC
		}{
			{"sends of 17", a.send, flushed(uapi.WCSend, 17, 2, 3, 4)},
			{"receives of 17", a.recv, flushed(uapi.WCRecv, 17, 10, 11, 12, 13, 14)},
			{"sends of 0x20011", b.send, flushed(uapi.WCSend, 0x20011)},
			{"receives of 0x20011", b.recv, flushed(uapi.WCRecv, 0x20011, 20)},
		} {
			if got := completions(t, c.cq); !maps.Equal(got, c.want) {
				t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
			}
		}
		for id := uint64(2); id < 5; id++ { // again, around the end of the ring
			post(t, a.sq, &a.sent, id)
		}
		for id := range uint64(5) {
			post(t, a.rq, &a.posted, 10+id)
		}
		post(t, b.rq, &b.posted, 20)
	}
}

// TestAbandonFullCQ: a full completion queue gets as many completions as fit. The others follow when there is room.
func TestAbandonFullCQ(t *testing.T) {
	p := newProcess(t)
	d, err := queuedir.New(queuedir.RXE, p.alloc)
	check(t, err)
	q := p.newQueuePair(d, 17)
	cq := p.newRing(3, uapi.RXECQESize)
	q.SendCQ = cq.Location()
	d.Set(q.listed, q.Entry)
	for id := range uint64(7) {
		post(t, q.sq, &q.sent, id)
	}
	for _, want := range [][]uint64{{0, 1, 2}, {3, 4, 5}, {6}, nil} {
		check(t, abandonPath(p.path))
		if got, want := completions(t, cq), flushed(uapi.WCSend, 17, want...); !maps.Equal(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

// TestAbandonLimits: Abandon processes the largest rings, and no larger ones.
func TestAbandonLimits(t *testing.T) {
	for _, c := range []struct {
		entries, slotBytes int
		want               []uint64
	}{
		{MaxSlots - 1, 64, []uint64{5}}, {MaxSlots, 64, nil},
		{1, MaxSlotBytes, []uint64{5}}, {1, MaxSlotBytes + 1, nil},
	} {
		p := newProcess(t)
		d, err := queuedir.New(queuedir.RXE, p.alloc)
		check(t, err)
		sq, cq := p.newRing(c.entries, c.slotBytes), p.newRing(3, uapi.RXECQESize)
		_, err = d.Add(queuedir.Entry{QPN: 17, SQ: sq.Location(), SendCQ: cq.Location()})
		check(t, err)
		post(t, sq, new(uint32), 5)
		check(t, abandonPath(p.path))
		if got, want := completions(t, cq), flushed(uapi.WCSend, 17, c.want...); !maps.Equal(got, want) {
			t.Errorf("%d entries of %d bytes: got %+v, want %+v", c.entries, c.slotBytes, got, want)
		}
	}
}

// TestAbandonDistrusts runs Abandon on files that a program has damaged.
func TestAbandonDistrusts(t *testing.T) {
	p := newProcess(t)
	d, err := queuedir.New(queuedir.RXE, p.alloc)
	check(t, err)
	for qpn := range uint32(3) {
		q := p.newQueuePair(d, 17+qpn)
		for id := range uint64(5) {
			post(t, q.sq, &q.sent, id)
			post(t, q.rq, &q.posted, id)
		}
	}
	whole, err := os.ReadFile(p.path)
	check(t, err)
	damaged := filepath.Join(t.TempDir(), "damaged")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 500 {
		f := slices.Clone(whole)
		for range 1 + r.IntN(20) {
			at := r.IntN(entryOffset(3)) // in the entries
			if r.IntN(4) == 0 {
				at = r.IntN(len(f))
			}
			binary.NativeEndian.PutUint32(f[at&^3:], r.Uint32()>>r.IntN(32))
		}
		if r.IntN(3) == 0 {
			f = f[:r.IntN(len(f))]
		}
		writeFile(t, damaged, f)
		_ = abandonPath(damaged) // must end, and must not crash
	}
	for _, f := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none"), os.DevNull} {
		if abandonPath(f) == nil {
			t.Errorf("Abandon of %s has no error", f)
		}
	}
}

// writeFile creates a file that has memory for all its bytes, like the file of a program.
func writeFile(t *testing.T, path string, b []byte) {
	t.Helper()
	f, err := os.Create(path)
	check(t, err)
	defer f.Close()
	check(t, syscall.Fallocate(int(f.Fd()), 0, 0, int64(max(len(b), 1))))
	_, err = f.WriteAt(b, 0)
	check(t, err)
	check(t, f.Truncate(int64(len(b))))
}

// TestAbandonBounded: Abandon rejects a directory that lists more than the memory of the file can hold, whatever the
// size of the file.
func TestAbandonBounded(t *testing.T) {
	const (
		work, slots = 40, 1024 // rings; each overlaps the next ones
		cqAt        = 256 << 12
		cqSlots     = 1 << 16
	)
	path := filepath.Join(t.TempDir(), "queues")
	f, err := os.Create(path)
	check(t, err)
	defer f.Close()
	page := os.Getpagesize()
	check(t, f.Truncate(1<<40))
	mem, err := syscall.Mmap(int(f.Fd()), 0, 64<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	check(t, err)
	defer func() { check(t, syscall.Munmap(mem)) }()
	listed := func(entries int) {
		uapi.Encode(mem, &struct{ Magic, Next uint64 }{uint64(queuedir.RXE), 0})
		for i := range dirPerPage {
			e := dirEntry{}
			if i < entries {
				e = dirEntry{Live: 1, QPN: 17,
					SQ:     queuedir.Location{Offset: uint64((1 + i) * page), Mask: slots - 1, Shift: 6},
					SendCQ: queuedir.Location{Offset: cqAt, Mask: cqSlots - 1, Shift: 6}}
			}
			uapi.Encode(mem[entryOffset(i):], &e)
		}
	}
	allocated := func(pages int) {
		check(t, syscall.Fallocate(int(f.Fd()), 0, 0, int64(pages*page)))
	}
	allocated(8)
	listed(dirPerPage)
	if err := abandonPath(path); !errors.Is(err, queuedir.ErrNotQueues) {
		t.Errorf("%d queue pairs in 8 pages: got %v, want ErrNotQueues", dirPerPage, err)
	}
	allocated(64)
	listed(work)
	cq := &Ring{mem: mem[cqAt : cqAt+cqSlots<<6+uapi.RXEQueueDataOffset], shift: 6, mask: cqSlots - 1}
	cq.attach()
	cq.format()
	for i := range work {
		r := &Ring{mem: mem[(1+i)*page : (1+i)*page+slots<<6+uapi.RXEQueueDataOffset], shift: 6, mask: slots - 1}
		r.attach()
		r.format()
		*r.prod = slots - 1
	}
	fi, err := f.Stat()
	check(t, err)
	most := uint32(fi.Sys().(*syscall.Stat_t).Blocks * 512 / 16)
	if err := abandonPath(path); !errors.Is(err, queuedir.ErrNotQueues) {
		t.Errorf("%d work requests: got %v, want queuedir.ErrNotQueues", work*(slots-1), err)
	}
	if *cq.prod == 0 || *cq.prod > most {
		t.Errorf("%d work requests: got %d completions, want at most %d", work*(slots-1), *cq.prod, most)
	}
}
