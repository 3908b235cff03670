package rxe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"syscall"

	"verbena/ib"
	"verbena/uapi"
)

// directory lists, in memory that is shared with a user process, where the rings of its queue pairs are, for
// [Abandon]. It is written by the service and never read by it. The first of its pages is the first memory that a
// context allocates, at offset 0; each page names the next.
type directory struct {
	mu      sync.Mutex
	ctx     ib.UserContext
	pages   []ib.Shared
	entries []*QP // by place; nil is free
	free    []int // places
}

// dirHeader starts a page of the directory, dirEntry follows up to its end.
type dirHeader struct {
	Magic uint64
	Next  uint64 // offset of the next page, 0 for none
}

type dirEntry struct {
	Live                   uint32 // 1
	QPN                    uint32
	SQ, RQ, SendCQ, RecvCQ dirRing
}

type dirRing struct {
	Offset uint64
	Mask   uint32
	Shift  uint32
}

const (
	dirMagic    = 0x31726964_65787276 // "vrxedir1"
	dirPageSize = 4096
	dirPerPage  = (dirPageSize - 16) / 72
	maxDirPages = maxQPSlot/dirPerPage + 1
)

// open allocates the first page.
func (d *directory) open(ctx ib.UserContext) error {
	d.ctx = ctx
	return d.grow()
}

func (d *directory) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.pages {
		s.Free()
	}
	d.pages = nil
}

func (d *directory) grow() error {
	s, err := d.ctx.AllocShared(dirPageSize)
	if err != nil {
		return err
	}
	if n := len(d.pages); n > 0 {
		writeShared(d.pages[n-1].Mem, 0, &dirHeader{Magic: dirMagic, Next: s.Offset})
	}
	writeShared(s.Mem, 0, &dirHeader{Magic: dirMagic})
	d.pages = append(d.pages, s)
	d.entries = append(d.entries, make([]*QP, dirPerPage)...)
	for i := range dirPerPage {
		d.free = append(d.free, len(d.entries)-1-i) // the first place is taken first
	}
	return nil
}

// add lists a queue pair.
func (d *directory) add(qp *QP) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.free) == 0 {
		if err := d.grow(); err != nil {
			return fmt.Errorf("directory of queue pairs: %w", err)
		}
	}
	last := len(d.free) - 1
	qp.listed = d.free[last]
	d.free = d.free[:last]
	d.entries[qp.listed] = qp
	d.write(qp.listed)
	return nil
}

func (d *directory) remove(qp *QP) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries[qp.listed] = nil
	d.write(qp.listed)
	d.free = append(d.free, qp.listed)
}

// refresh writes all entries again: a completion queue has a new place.
func (d *directory) refresh() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, o := range d.entries {
		if o != nil {
			d.write(i)
		}
	}
}

func (d *directory) write(i int) {
	if d.pages == nil {
		return
	}
	var e dirEntry
	if qp := d.entries[i]; qp != nil {
		e = dirEntry{
			Live: 1, QPN: qp.num, SQ: qp.sq.place(), RQ: qp.rq.place(),
			SendCQ: qp.sendCQ.current().place(), RecvCQ: qp.recvCQ.current().place(),
		}
		if qp.srq != nil {
			e.RQ = qp.srq.place() // its queue pairs share what is there
		}
	}
	at := uapi.SizeOf[dirHeader]() + i%dirPerPage*uapi.SizeOf[dirEntry]()
	writeShared(d.pages[i/dirPerPage].Mem, at, &e)
}

// place is where the ring is; one that is not shared with the user is nowhere.
func (r *ring) place() dirRing {
	if r == nil || !r.shared {
		return dirRing{}
	}
	return dirRing{Offset: r.offset, Mask: r.mask, Shift: uint32(r.shift)}
}

// writeShared and readShared survive that the memory is taken away; what is lost then nobody can miss.
func writeShared[T any](mem []byte, at int, v *T) (ok bool) {
	defer survive(debug.SetPanicOnFault(true), &ok)
	uapi.Encode(mem[at:], v)
	return true
}

func readShared[T any](mem []byte, at int) (v T, ok bool) {
	defer survive(debug.SetPanicOnFault(true), &ok)
	return uapi.Decode[T](mem[at:])
}

// ErrNotQueues: the file does not hold the queues of a program.
var ErrNotQueues = errors.New("not a file of rxe queues")

// Abandon completes, with a flush error, every work request that is outstanding in the queues of a file, as far as there is
// room in the completion queues: a program that polls gets errors, instead of waiting for ever. It is for when the service
// that owned the queues has died, and must not be called while it lives. The caller has opened the file for reading and
// writing, has seen to it that it is the program's, and closes it. The program may still run; nothing in the file is
// believed, and the work is bounded by the memory that the file has. ErrNotQueues if it holds something else, or more
// queues than there is memory for.
func Abandon(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("abandon queues: %w", err)
	}
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("abandon queues: %s: %w", f.Name(), ErrNotQueues)
	}
	a := abandoned{file: f, size: fi.Size()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		memory := st.Blocks * 512 // of which a queue pair has a page, and a work request a slot
		a.qps, a.requests = memory/int64(os.Getpagesize()), memory/minSlot
	}
	if err := a.run(); err != nil {
		return fmt.Errorf("abandon queues: %s: %w", f.Name(), err)
	}
	return nil
}

// abandoned is a file whose service has died.
type abandoned struct {
	file *os.File
	size int64
	// The queue pairs and work requests that are left to look at: a program can make the directory a cycle, or list a ring
	// any number of times.
	qps, requests int64
}

func (a *abandoned) run() error {
	next := uint64(0)
	for n := 0; n == 0 || next != 0; n++ {
		if n == maxDirPages {
			return ErrNotQueues
		}
		var err error
		if next, err = a.page(next); err != nil {
			return err
		}
	}
	return nil
}

// page completes what is outstanding on the queue pairs of a page of the directory, and returns the offset of the next.
func (a *abandoned) page(at uint64) (next uint64, err error) {
	mem, err := a.mmap(at, dirPageSize)
	if err != nil {
		return 0, err
	}
	defer munmap(mem)
	h, ok := readShared[dirHeader](mem, 0)
	if !ok || h.Magic != dirMagic {
		return 0, ErrNotQueues
	}
	for i := range dirPerPage {
		e, ok := readShared[dirEntry](mem, uapi.SizeOf[dirHeader]()+i*uapi.SizeOf[dirEntry]())
		if !ok || e.Live != 1 {
			continue
		}
		if a.qps--; a.qps < 0 {
			return 0, ErrNotQueues
		}
		a.flush(e.SQ, e.SendCQ, uapi.WCSend, e.QPN)
		a.flush(e.RQ, e.RecvCQ, uapi.WCRecv, e.QPN)
		if a.requests == 0 {
			return 0, ErrNotQueues
		}
	}
	return h.Next, nil
}

// flush completes what is outstanding in a work queue of a queue pair.
func (a *abandoned) flush(queue, completions dirRing, opcode uapi.WCOpcode, qpn uint32) {
	work, err := a.ring(queue)
	if err != nil {
		return
	}
	defer munmap(work.mem)
	cq, err := a.ring(completions)
	if err != nil {
		return
	}
	defer munmap(cq.mem)
	cons, ok1 := work.consumer()
	prod, ok2 := cq.producer()
	if !ok1 || !ok2 {
		return
	}
	for range work.mask {
		var id [8]byte // the first field of both kinds of work requests
		if filled, ok := work.peek(cons, id[:]); !filled || !ok {
			return
		}
		if a.requests <= 0 {
			return
		}
		a.requests--
		wr := binary.NativeEndian.Uint64(id[:])
		slot := make([]byte, uapi.RXECQESize)
		uapi.Encode(slot, &uapi.WC{WRID: wr, Status: uapi.WCWRFlushErr, Opcode: opcode, QPNum: qpn})
		if pushed, ok := cq.push(prod, slot); !pushed || !ok {
			return
		}
		prod, cons = cq.next(prod), work.next(cons)
		work.setConsumer(cons)
	}
}

// ring maps a ring whose place is described in the file. The caller unmaps its memory.
func (a *abandoned) ring(at dirRing) (*ring, error) {
	slots := uint64(at.Mask) + 1
	if slots&(slots-1) != 0 || slots > 2*maxQPWR || at.Shift < 6 || at.Shift > 10 {
		return nil, ErrNotQueues
	}
	r := &ring{shift: uint8(at.Shift), mask: at.Mask, shared: true, offset: at.Offset}
	mem, err := a.mmap(at.Offset, uapi.RXEQueueDataOffset+int(slots)<<at.Shift)
	if err != nil {
		return nil, err
	}
	r.mem = mem
	r.attach()
	return r, nil
}

func (a *abandoned) mmap(offset uint64, n int) ([]byte, error) {
	if offset%uint64(os.Getpagesize()) != 0 || offset > uint64(a.size) || uint64(n) > uint64(a.size)-offset {
		return nil, ErrNotQueues
	}
	m, err := syscall.Mmap(int(a.file.Fd()), int64(offset), n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func munmap(m []byte) { _ = syscall.Munmap(m) }
