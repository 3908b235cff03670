package completion

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/ib/internal/observe"
)

// Context is the context in which completions are handled. (enum ib_poll_context)
type Context uint8

const (
	// Direct handles completions only in [CQ.Process]. (IB_POLL_DIRECT)
	Direct Context = iota
	// Callback handles completions in the completion handler, with the least delay. Done functions may not sleep.
	// (IB_POLL_SOFTIRQ)
	Callback
	// Worker handles completions on a goroutine of the queue. Done functions may sleep, which delays the functions of
	// later completions. (IB_POLL_WORKQUEUE)
	Worker
)

// Done is called with the completion of a work request. The ID of wc is the ID of the posted request. wc is valid until
// Done returns. The Done functions of one CQ do not overlap, and are called in the order of the completions. Done may
// post, and must not destroy the CQ.
type Done func(wc *ib.WC)

// Init holds the parameters of a new queue.
type Init struct {
	Entries int // maximum number of outstanding work requests; Drain needs no entries
	Context Context
	Vector  int // completion vector that reports the completions
	// Failed is called, at most once, when the CQ can no longer be polled. An example is an overrun that the driver has
	// detected. Failed may not sleep. Failed may be nil.
	Failed func(error)
}

// CQ is a completion queue that calls a function for each completion. All methods may be called from any goroutine.
type CQ struct {
	cq     *ib.CQ
	init   Init
	polled sync.Mutex // held while polling
	wc     [16]ib.WC  // under polled

	closing atomic.Bool // polling has ended

	broken chan struct{} // closed, under mu, when the queue fails

	mu    sync.Mutex
	slots []requestSlot
	free  []uint32 // free slots

	wake chan struct{} // Worker: completions may be available; closed by Destroy
	end  sync.WaitGroup
}

// requestSlot is a posted work request. The work request ID on the device consists of index and generation. A
// completion with an unknown ID belongs to another user of the queue.
type requestSlot struct {
	done  Done
	id    uint64 // the caller's ID
	owner any    // the QP or ib.SRQ of the request; nil if the slot is free
	gen   uint32
}

// pollBudget is the number of completions that are handled before other work may run. (IB_POLL_BUDGET_WORKQUEUE)
const pollBudget = 256

// New creates a queue on a device. New may sleep.
func New(d *ib.Device, init Init) (*CQ, error) {
	if init.Entries < 1 || init.Context > Worker {
		return nil, fmt.Errorf("create cq: invalid entries %d or context %d: %w",
			init.Entries, init.Context, syscall.EINVAL)
	}
	q := &CQ{init: init, broken: make(chan struct{}), slots: make([]requestSlot, init.Entries),
		free: make([]uint32, init.Entries)}
	for i := range q.free {
		q.free[i] = uint32(len(q.free) - 1 - i)
	}
	attr := ib.CQInit{Entries: init.Entries, Vector: init.Vector, Event: func(_ *ib.CQ, e ib.EventType) {
		q.failQueue(fmt.Errorf("completion queue: %v: %w", e, syscall.EIO))
	}}
	switch init.Context {
	case Callback:
		attr.Handler = func(*ib.CQ) { q.pollAndArm() }
	case Worker:
		q.wake = make(chan struct{}, 1)
		attr.Handler = func(*ib.CQ) {
			select {
			case q.wake <- struct{}{}:
			default:
			}
		}
	}
	var err error
	if q.cq, err = d.CreateCQ(attr); err != nil {
		return nil, err
	}
	if init.Context == Direct {
		return q, nil
	}
	if _, err = q.cq.ReqNotify(ib.NotifyNextComp); err != nil {
		q.cq.Destroy()
		return nil, err
	}
	if init.Context == Worker {
		q.end.Go(func() {
			for range q.wake {
				q.pollAndArm()
			}
		})
	}
	return q, nil
}

// IB returns the underlying queue, for example to moderate it. The caller must not poll or arm it.
func (q *CQ) IB() *ib.CQ { return q.cq }

// Process handles at most budget completions of a Direct queue and returns their number. Process sleeps if the done
// functions do.
func (q *CQ) Process(budget int) (int, error) {
	q.polled.Lock()
	defer q.polled.Unlock()
	return q.processCompletions(budget)
}

//verbena:held polled
func (q *CQ) processCompletions(budget int) (handled int, err error) {
	for handled < budget {
		n, err := q.cq.Poll(q.wc[:min(len(q.wc), budget-handled)])
		for i := range q.wc[:n] {
			q.callDone(&q.wc[i])
		}
		handled += n
		if err != nil {
			q.failQueue(err)
			return handled, err
		}
		if n == 0 {
			break
		}
	}
	return handled, nil
}

// pollAndArm handles completions until the queue is empty, and then arms the queue.
func (q *CQ) pollAndArm() {
	q.polled.Lock()
	defer q.polled.Unlock()
	for !q.closing.Load() {
		n, err := q.processCompletions(pollBudget)
		if err != nil {
			return
		}
		if n == pollBudget {
			if q.init.Context == Callback { // other callbacks may run first
				q.end.Go(q.pollAndArm)
				return
			}
			runtime.Gosched() //verbena:allow nosleep the goroutine of a Worker queue, which is no callback
			continue
		}
		if missed, err := q.cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed); err != nil || !missed {
			if err != nil {
				q.failQueue(err)
			}
			return
		}
	}
}

func (q *CQ) callDone(wc *ib.WC) {
	s, ok := q.freeSlot(wc.ID)
	if !ok {
		return // the request was posted to the underlying queue pair
	}
	wc.ID = s.id
	if qp, ok := s.owner.(*QP); ok {
		defer qp.endRequest()
	}
	switch {
	case s.done == nil:
	case observe.Of(q.cq) != nil:
		lent := *wc // no other call uses this copy
		s.done(&lent)
		invalidate(&lent)
	default:
		s.done(wc)
	}
}

// invalidate fills a completion with the pattern, in checked mode, for a thread that has kept it. The race detector
// reports such a thread: package ib/ibtest/schedule searches the report for the name of this function.
//
//go:noinline
func invalidate(wc *ib.WC) {
	*wc = ib.WC{ID: observe.Pattern, Status: observe.Pattern, Opcode: observe.Pattern & 0xff,
		VendorErr: observe.Pattern, ByteLen: observe.Pattern, QPNum: observe.Pattern & 0xffffff, Imm: observe.Pattern,
		InvalidateRKey: observe.Pattern, SrcQP: observe.Pattern & 0xffffff, Flags: observe.Pattern & 0xff}
}

func (q *CQ) hasFailed() bool {
	select {
	case <-q.broken:
		return true
	default:
		return false
	}
}

func (q *CQ) failQueue(err error) {
	q.mu.Lock()
	first := !q.hasFailed()
	if first {
		close(q.broken)
	}
	q.mu.Unlock()
	if first && q.init.Failed != nil {
		q.init.Failed(err)
	}
}

// reserveSlot reserves a slot for a work request, and returns the request ID for the device. reserveSlot does not
// sleep.
func (q *CQ) reserveSlot(owner any, done Done, id uint64) (uint64, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.free)
	if n == 0 {
		return 0, fmt.Errorf("all %d entries of the completion queue are in use: %w", len(q.slots), syscall.ENOMEM)
	}
	i := q.free[n-1]
	q.free = q.free[:n-1]
	s := &q.slots[i]
	*s = requestSlot{done: done, id: id, owner: owner, gen: s.gen + 1}
	return uint64(s.gen)<<32 | uint64(i), nil
}

// freeSlot frees the slot of a work request. freeSlot returns false if the request has no slot.
func (q *CQ) freeSlot(id uint64) (requestSlot, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := uint32(id)
	if int(i) >= len(q.slots) || q.slots[i].owner == nil || q.slots[i].gen != uint32(id>>32) {
		return requestSlot{}, false
	}
	return q.releaseSlot(i), true
}

//verbena:held mu
func (q *CQ) releaseSlot(i uint32) requestSlot {
	s := q.slots[i]
	q.slots[i] = requestSlot{gen: s.gen}
	q.free = append(q.free, i)
	return s
}

// freeOwnerSlots frees the slots of a destroyed owner.
func (q *CQ) freeOwnerSlots(owner any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.slots {
		if q.slots[i].owner == owner {
			q.releaseSlot(uint32(i))
		}
	}
}

// PostSRQ posts a receive to a shared receive queue. All queue pairs of the SRQ must complete their receives on q.
// PostSRQ may not sleep.
func (q *CQ) PostSRQ(srq *ib.SRQ, wr ib.RecvWR, done Done) error {
	i, err := q.reserveSlot(srq, done, wr.ID)
	if err != nil {
		return fmt.Errorf("post receive: %w", err)
	}
	wr.ID = i
	if _, err := srq.PostRecv(wr); err != nil {
		q.freeSlot(i)
		return err
	}
	return nil
}

// DestroySRQ destroys a shared receive queue that was used with PostSRQ. DestroySRQ returns EBUSY while a queue pair
// uses the SRQ. DestroySRQ handles remaining completions first. DestroySRQ does not call the done functions of unused
// receives. DestroySRQ may sleep, and must not be called by a done function of the CQ.
func (q *CQ) DestroySRQ(srq *ib.SRQ) error {
	if err := srq.Destroy(); err != nil {
		return err
	}
	q.polled.Lock()
	defer q.polled.Unlock()
	_, err := q.processCompletions(len(q.slots))
	q.freeOwnerSlots(srq)
	return err
}

// awaitPoller waits for the thread that is polling, if any.
func (q *CQ) awaitPoller() {
	q.polled.Lock()
	defer q.polled.Unlock()
}

// Destroy frees the queue. Destroy returns EBUSY while a queue pair uses the queue. After Destroy has returned, no done
// function runs or will be called. Destroy may sleep, and must not be called by a done function of the queue.
func (q *CQ) Destroy() error {
	q.closing.Store(true)
	q.awaitPoller()
	if err := q.cq.Destroy(); err != nil {
		if errors.Is(err, syscall.EINVAL) {
			return err // the queue has been destroyed
		}
		q.closing.Store(false)
		if q.init.Context != Direct {
			q.end.Go(q.pollAndArm) // handles the completions that have arrived meanwhile
		}
		return err
	}
	if q.wake != nil {
		close(q.wake)
	}
	q.end.Wait()
	return nil
}
