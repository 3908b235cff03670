package weak

import (
	"sync"
	"sync/atomic"

	"verbena/ib"
	"verbena/umem"
)

// A device acknowledges a WRITE when it has accepted the data, which may reach the memory later. A heldWrites holds the
// data of some WRITEs of a queue pair's peer. A later message of the peer, and each read of the device, stores them
// first. If the order is not relaxed, a WRITE that is stored stores the earlier ones first. Driver/loopback holds no
// data.

// The next constants are the limits of the held data. Other data are stored at once.
const (
	maxHeldWrite    = 16 << 10 // bytes of a WRITE
	maxHeldByQP     = 64 << 10 // bytes of all WRITEs to the memory of a queue pair
	maxHeldByDevice = 1 << 20  // bytes of all WRITEs to the memory of a program
)

// The next constants are the delays in steps. One in longWrites held WRITEs has a long delay.
const (
	shortWrite = 32
	longWrite  = 256
	longWrites = 8
)

// heldWrites holds the data of WRITEs, in the order of their arrival.
type heldWrites struct {
	//verbena:program the peers of the program's queue pairs, and the program's own calls
	mu    sync.Mutex
	list  []heldWrite
	bytes int
	count uint64      // number of the WRITEs' stores
	some  atomic.Bool // list is not empty
}

// heldWrite is the data of a WRITE, or of a part of it.
type heldWrite struct {
	region *umem.Region
	iova   uint64
	data   []byte
	wait   int  // remaining steps
	alone  bool // WRITEs before and after may be stored in any order
}

// holdsWrites reports whether the device holds the data of WRITEs.
func (d *driver) holdsWrites() bool { return d.Choices&Of(LateWrite, OutOfOrder, RelaxedOrder) != 0 }

// HoldWrite implements ib.WriteHolder. A byte has held data of at most one WRITE.
func (q *qp) HoldWrite(r *umem.Region, access ib.AccessFlags, iova uint64, data [][]byte) bool {
	n := 0
	for _, b := range data {
		n += len(b)
	}
	q.StoreRange(r, iova, uint64(n))
	h := &q.writes
	h.mu.Lock()
	defer h.mu.Unlock()
	w := heldWrite{region: r, iova: iova, alone: q.d.hasChoice(OutOfOrder) ||
		q.d.hasChoice(RelaxedOrder) && access&ib.AccessRelaxedOrdering != 0}
	h.count++
	w.wait = q.drawWrite(h.count, access&ib.AccessRelaxedOrdering != 0)
	if w.wait > 0 && r.Contiguous() && q.mayHold(n) {
		w.data = make([]byte, n)
		// The driver reports an error for memory that is gone.
		if r.ReadV([][]byte{w.data}, iova) == nil {
			h.hold(w, data)
			q.d.heldBytes.Add(int64(n))
			q.d.scheduleDelayStep()
			return true
		}
	}
	if !w.alone {
		q.store(len(h.list))
	}
	if len(h.list) > 0 {
		q.d.scheduleDelayStep() // a step may have found the lock held
	}
	return false
}

// mayHold reports whether n more bytes are within the limits.
//
//verbena:held writes.mu
func (q *qp) mayHold(n int) bool {
	return n <= maxHeldWrite && q.writes.bytes+n <= maxHeldByQP && q.d.heldBytes.Load()+int64(n) <= maxHeldByDevice
}

// drawWrite decides on the delay of a store. relaxed reports whether the region has relaxed ordering.
func (q *qp) drawWrite(count uint64, relaxed bool) int {
	for _, c := range [...]Choice{OutOfOrder, RelaxedOrder, LateWrite} {
		if !q.d.hasChoice(c) || c == RelaxedOrder && !relaxed {
			continue
		}
		n := 0
		if !q.d.isSpared(c, q.ord, count) {
			n = q.d.drawRandom(c, q.ord, count, shortWrite)
			if n != 0 && n%longWrites == 0 {
				n = longWrite
			}
		}
		if n = q.d.decide(q.point(c, EventWrite, count), n, q.about); n > 0 {
			return n
		}
	}
	return 0
}

// hold adds data at the end.
//
//verbena:held mu
func (h *heldWrites) hold(w heldWrite, data [][]byte) {
	to := w.data
	for _, b := range data {
		to = to[copy(to, b):]
	}
	h.list = append(h.list, w)
	h.bytes += len(w.data)
	h.some.Store(true)
}

// store stores the first n WRITEs.
//
//verbena:held writes.mu
func (q *qp) store(n int) {
	h := &q.writes
	for i := range h.list[:n] {
		q.storeOne(&h.list[i])
	}
	h.remove(n)
}

// storeOne stores data. Memory that is gone needs none.
//
//verbena:held writes.mu
func (q *qp) storeOne(w *heldWrite) {
	_ = w.region.WriteV([][]byte{w.data}, w.iova)
	q.writes.bytes -= len(w.data)
	q.d.heldBytes.Add(-int64(len(w.data)))
}

//verbena:held mu
func (h *heldWrites) remove(n int) {
	if h.list = h.list[n:]; len(h.list) == 0 {
		h.list = nil
		h.some.Store(false)
	}
}

// StoreWrites implements ib.WriteHolder.
func (q *qp) StoreWrites() {
	h := &q.writes
	if !h.some.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	q.store(len(h.list))
}

// stepWrites executes a step, and reports whether more steps are needed. A thread with the lock may wait for the memory
// of the program. It stores all data, or schedules the next step.
func (q *qp) stepWrites() (more bool) {
	h := &q.writes
	if !h.some.Load() || !h.mu.TryLock() {
		return false
	}
	defer h.mu.Unlock()
	due := 0
	for i := range h.list {
		w := &h.list[i]
		if w.wait--; w.wait > 0 {
			continue
		}
		if w.alone {
			q.storeOne(w)
			w.data = nil
		} else {
			due = i + 1
		}
	}
	kept := h.list[:0]
	for i := range h.list {
		switch w := h.list[i]; {
		case w.data == nil:
		case i < due:
			q.storeOne(&w)
		default:
			kept = append(kept, w)
		}
	}
	clear(h.list[len(kept):])
	h.list = kept
	h.remove(0)
	return len(h.list) > 0
}

// StoreRange implements ib.WriteHolder.
func (q *qp) StoreRange(r *umem.Region, iova, n uint64) {
	if r == nil {
		q.d.EndWrites()
		return
	}
	for _, o := range q.d.qpsWithWrites() {
		o.storeFor(r, iova, n)
	}
}

// storeFor stores all data if a part of it is for a range of a region.
func (q *qp) storeFor(r *umem.Region, iova, n uint64) {
	h := &q.writes
	h.mu.Lock()
	defer h.mu.Unlock()
	addr := r.Addr() + iova - r.IOVA()
	for i := range h.list {
		w := &h.list[i]
		at := w.region.Addr() + w.iova - w.region.IOVA()
		if !r.Contiguous() || at < addr+n && addr < at+uint64(len(w.data)) {
			q.store(len(h.list))
			return
		}
	}
}

// EndWrites implements Writes.
func (d *driver) EndWrites() {
	for _, q := range d.qpsWithWrites() {
		q.StoreWrites()
	}
}

// qpsWithWrites returns the queue pairs that hold data.
func (d *driver) qpsWithWrites() (some []*qp) {
	if !d.holdsWrites() {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.qps {
		if q.writes.some.Load() {
			some = append(some, q)
		}
	}
	return some
}

// stepWrites executes one step for the data that queue pairs hold. It reports whether more steps are needed.
func (d *driver) stepWrites() (more bool) {
	for _, q := range d.qpsWithWrites() {
		more = q.stepWrites() || more
	}
	return more
}

// Writes is implemented by a device with a [Relay].
type Writes interface {
	// EndWrites stores the data of the peers' WRITEs that the device holds. EndWrites may wait for the memory of the
	// program.
	EndWrites()
}

var _ ib.WriteHolder = (*qp)(nil)
