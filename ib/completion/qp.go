package completion

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
)

// QP is a queue pair with a completion function for each work request. Every work request generates a completion. All
// methods may be called from any goroutine, even while another goroutine closes the queue pair.
type QP struct {
	*ib.QP
	send, recv *CQ

	posting     atomic.Int64 // number of post calls in progress
	outstanding atomic.Int64 // number of work requests with done functions that have not returned
	draining    atomic.Bool  // posts are rejected
	idle        chan struct{}
	drainToken  chan struct{} // semaphore: full while a Drain or Close is running
	ended       *drainEnd     // set by Close; guarded by drainToken
	destroyed   bool          // guarded by drainToken
	last        chan struct{} // closed at EventQPLastWQEReached; nil if the event cannot occur
}

// drainEnd is the end of the Drain of a Close.
type drainEnd struct{ err error } // nil or errQueueFailed

// CreateQP creates a queue pair that completes on q. CreateQP may sleep.
func (q *CQ) CreateQP(pd *ib.PD, init ib.QPInitAttr) (*QP, error) { return NewQP(pd, init, q, q) }

// NewQP creates a queue pair that completes its sends on send and its receives on recv. send and recv may be the same
// CQ. NewQP returns EINVAL for an XRC target, which has no queues. NewQP may sleep.
func NewQP(pd *ib.PD, init ib.QPInitAttr, send, recv *CQ) (*QP, error) {
	if init.Type == ib.QPTypeXRCTgt {
		return nil, fmt.Errorf("create qp: an XRC target has no queues: %w", syscall.EINVAL)
	}
	init.SendCQ, init.RecvCQ = send.cq, recv.cq
	qp := &QP{send: send, recv: recv, idle: make(chan struct{}, 1), drainToken: make(chan struct{}, 1)}
	if init.SRQ != nil {
		qp.last = make(chan struct{})
		init.Event = qp.wrapEventFunc(init.Event)
	}
	var err error
	if qp.QP, err = pd.CreateQP(init); err != nil {
		return nil, err
	}
	return qp, nil
}

// wrapEventFunc returns an event function that records EventQPLastWQEReached and calls f. f may be nil.
func (qp *QP) wrapEventFunc(f func(*ib.QP, ib.EventType)) func(*ib.QP, ib.EventType) {
	var once sync.Once
	return func(q *ib.QP, e ib.EventType) {
		if e == ib.EventQPLastWQEReached {
			once.Do(func() { close(qp.last) })
		}
		if f != nil {
			f(q, e)
		}
	}
}

// beginPost counts a post call and a work request, and reserves a slot for the request. endPost ends the post call,
// and endRequest ends the request.
func (qp *QP) beginPost(what string, q *CQ, done Done, id uint64) (uint64, error) {
	qp.posting.Add(1)
	qp.outstanding.Add(1)
	if qp.draining.Load() {
		return 0, qp.endFailedPost(fmt.Errorf("%s: qp %d is being drained: %w", what, qp.Num(), syscall.ESHUTDOWN))
	}
	slot, err := q.reserveSlot(qp, done, id)
	if err != nil {
		return 0, qp.endFailedPost(fmt.Errorf("%s: %w", what, err))
	}
	return slot, nil
}

// endFailedPost ends a call that does not post its work request.
func (qp *QP) endFailedPost(err error) error {
	qp.endRequest()
	qp.endPost()
	return err
}

// endRequest is called after the done function of a work request has returned.
func (qp *QP) endRequest() {
	if qp.outstanding.Add(-1) == 0 {
		qp.wakeDrain()
	}
}

// endPost is called when a post call has left the queue pair.
func (qp *QP) endPost() {
	if qp.posting.Add(-1) == 0 {
		qp.wakeDrain()
	}
}

// wakeDrain wakes a Drain to check its condition again.
func (qp *QP) wakeDrain() {
	select {
	case qp.idle <- struct{}{}:
	default:
	}
}

// PostSend posts a work request. When the request completes, also with an error, done is called with the completion.
// done may be nil. PostSend returns ENOMEM while the send queue or the completion queue is full, and ESHUTDOWN after
// Drain, Close or Destroy was called. PostSend may not sleep.
func (qp *QP) PostSend(wr ib.SendWR, done Done) error {
	slot, err := qp.beginPost("post send", qp.send, done, wr.ID)
	if err != nil {
		return err
	}
	wr.ID = slot
	wr.Flags |= ib.SendSignaled
	if _, err := qp.QP.PostSend(wr); err != nil {
		qp.send.freeSlot(slot)
		return qp.endFailedPost(err)
	}
	qp.endPost()
	return nil
}

// PostRecv posts a receive work request, like PostSend. PostRecv may not sleep.
func (qp *QP) PostRecv(wr ib.RecvWR, done Done) error {
	slot, err := qp.beginPost("post receive", qp.recv, done, wr.ID)
	if err != nil {
		return err
	}
	wr.ID = slot
	if _, err := qp.QP.PostRecv(wr); err != nil {
		qp.recv.freeSlot(slot)
		return qp.endFailedPost(err)
	}
	qp.endPost()
	return nil
}

// Drain moves the queue pair to ERR. Drain returns when the done functions of all work requests of the queue pair have
// returned. Requests in flight complete with [ib.WCWRFlushErr]. Later posts fail. Receives of a shared receive queue
// remain there, unless the queue pair has consumed them. With such a queue, Drain waits for EventQPLastWQEReached, up
// to 10 s, if the queue pair was in RTR or a later state. Drain also works on a device in the error state. If ctx ends
// first, Drain returns early. The queue pair is then in ERR, unless another Drain is still moving it there. Done
// functions may still be running, and Drain may be called again. Drain returns EIO if a completion queue has failed.
// Drain may sleep and must not be called by a done function of the CQ. Drain processes a Direct CQ itself.
// (ib_drain_qp)
func (qp *QP) Drain(ctx context.Context) error {
	if err := qp.takeDrainToken(ctx); err != nil {
		return err
	}
	defer qp.releaseDrainToken()
	return qp.drainOnce(ctx)
}

// takeDrainToken rejects further posts, even if ctx has ended, and waits for the end of other Drains.
func (qp *QP) takeDrainToken(ctx context.Context) error {
	qp.draining.Store(true)
	select {
	case qp.drainToken <- struct{}{}:
		return nil
	default:
	}
	select {
	case qp.drainToken <- struct{}{}:
		return nil
	case <-ctx.Done():
		return qp.wrapDrainError(context.Cause(ctx))
	}
}

func (qp *QP) releaseDrainToken() { <-qp.drainToken }

// drainOnce drains the queue pair, unless a Close has done so. The queue pair may then be destroyed.
func (qp *QP) drainOnce(ctx context.Context) error {
	if qp.ended != nil {
		return qp.ended.err
	}
	return qp.wrapDrainError(qp.drainRequests(ctx))
}

func (qp *QP) wrapDrainError(err error) error {
	if err != nil {
		return fmt.Errorf("drain qp %d: %w", qp.Num(), err)
	}
	return nil
}

// drainRequests moves the queue pair to ERR and waits for its completions. The caller has the drainToken.
func (qp *QP) drainRequests(ctx context.Context) error {
	state := qp.State()
	if err := qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState); err != nil {
		return err
	}
	for qp.posting.Load() > 0 || qp.outstanding.Load() > 0 {
		if qp.posting.Load() == 0 && (qp.send.hasFailed() || qp.recv.hasFailed()) {
			return errQueueFailed
		}
		if err := qp.awaitAllCompletions(ctx); err != nil {
			return err
		}
	}
	if qp.last == nil || state < ib.QPRTR {
		return nil
	}
	return qp.drainSRQReceives(ctx)
}

// lastWQETimeout limits the wait for EventQPLastWQEReached. A queue pair that was never connected need not raise this
// event. (__ib_drain_srq)
const lastWQETimeout = 10 * time.Second

// drainSRQReceives waits for the done functions of the receives that the queue pair has consumed from the shared
// receive queue.
func (qp *QP) drainSRQReceives(ctx context.Context) error {
	select {
	case <-qp.last:
	case <-time.After(lastWQETimeout):
	case <-qp.recv.broken:
		return errQueueFailed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	qp.recv.polled.Lock()
	defer qp.recv.polled.Unlock()
	_, err := qp.recv.processCompletions(len(qp.recv.slots))
	return err
}

var errQueueFailed = fmt.Errorf("completion queue failed, remaining completion functions skipped: %w", syscall.EIO)

// directDrainInterval is the interval at which a Direct queue is processed while it is drained.
const directDrainInterval = 50 * time.Microsecond

// awaitAllCompletions waits for completions to be handled.
func (qp *QP) awaitAllCompletions(ctx context.Context) error {
	var direct <-chan time.Time
	for _, q := range [...]*CQ{qp.send, qp.recv} {
		if q.init.Context != Direct {
			continue
		}
		n, err := q.Process(pollBudget)
		if err != nil {
			return err
		}
		if n > 0 {
			return nil
		}
		direct = time.After(directDrainInterval)
	}
	select {
	case <-qp.idle:
	case <-qp.send.broken:
	case <-qp.recv.broken:
	case <-direct:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// Close drains the queue pair, as Drain does, and destroys it. Another Close waits for the destruction, and returns the
// same result. If ctx ends first, Close may be called again, and waits for the rest. If one of its completion queues
// has failed, Close destroys the queue pair without calling the remaining functions, and returns EIO. Close may sleep,
// and must not be called by a done function of the CQ.
func (qp *QP) Close(ctx context.Context) error {
	if err := qp.takeDrainToken(ctx); err != nil {
		return err
	}
	defer qp.releaseDrainToken()
	err := qp.drainOnce(ctx)
	if err != nil && !errors.Is(err, errQueueFailed) {
		return err
	}
	qp.ended = &drainEnd{err}
	if qp.destroyed {
		return err
	}
	refused := qp.QP.DestroyContext(ctx)
	qp.destroyed = refused == nil
	return errors.Join(err, refused)
}

// Destroy is Close without a time limit. Destroy may sleep.
func (qp *QP) Destroy() error { return qp.Close(context.Background()) }
