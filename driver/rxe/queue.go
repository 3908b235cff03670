package rxe

import (
	"fmt"
	"sync"

	"verbena/driver/rxe/ring"
	"verbena/ib"
)

// shared returns the allocator of memory that is shared with the context's program; nil, for memory of this process, if
// there is no context.
func (c *userContext) shared() ring.Alloc {
	if c == nil {
		return nil
	}
	return func(size int) (ring.Memory, error) {
		s, err := c.AllocShared(size)
		return ring.Memory(s), err
	}
}

// postRecv fills slots of r with receives of up to limit elements; full: the next one had no room. The caller is the
// only producer.
func postRecv(r *ring.Ring, wrs []ib.RecvWR, limit uint32) (n int, full bool, err error) {
	var slot [maxRecvWQESize]byte
	prod, ok := r.Producer()
	if !ok {
		return 0, false, errRingGone
	}
	for ; n < len(wrs); n++ {
		size, err := encodeRecv(slot[:], &wrs[n], limit)
		if err != nil {
			return n, false, err
		}
		if pushed, ok := r.Push(prod, slot[:size]); !ok {
			return n, false, errRingGone
		} else if !pushed {
			return n, true, nil
		}
		prod = r.Next(prod)
	}
	return n, false, nil
}

// directory keeps the ring.Directory of a context, and which queue pair has which of its entries.
type directory struct {
	mu  sync.Mutex // before the locks of completion and shared receive queues
	dir *ring.Directory
	qps []*QP // by index; nil is free
}

func (d *directory) open(alloc ring.Alloc) (err error) {
	d.dir, err = ring.NewDirectory(alloc)
	return err
}

func (d *directory) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dir.Free()
}

// add lists a queue pair.
func (d *directory) add(qp *QP) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if qp.listed, err = d.dir.Add(qp.entry()); err != nil {
		return fmt.Errorf("directory of queue pairs: %w", err)
	}
	for len(d.qps) <= qp.listed {
		d.qps = append(d.qps, nil)
	}
	d.qps[qp.listed] = qp
	return nil
}

func (d *directory) remove(qp *QP) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.qps[qp.listed] = nil
	d.dir.Remove(qp.listed)
}

// refresh writes all entries again: a ring has another location.
func (d *directory) refresh() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, qp := range d.qps {
		if qp != nil {
			d.dir.Set(i, qp.entry())
		}
	}
}

// entry returns the entry of the queue pair, with the locations that its rings have now.
func (qp *QP) entry() ring.Entry {
	e := ring.Entry{
		QPN: qp.num, SQ: qp.sq.Location(), RQ: qp.rq.Location(),
		SendCQ: qp.sendCQ.current().Location(), RecvCQ: qp.recvCQ.current().Location(),
	}
	if qp.srq != nil {
		e.RQ = qp.srq.location() // its queue pairs share what is there
	}
	return e
}
