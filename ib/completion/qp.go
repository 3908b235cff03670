package completion

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
)

// QP is a queue pair whose work requests are posted with the functions that their completions call. Every send work request
// makes a completion. Posting on the [ib.QP] that it holds is not for those who use it.
type QP struct {
	*ib.QP
	send, recv *CQ
	receives   bool // has a receive queue of its own

	left atomic.Int32 // marks that have not completed

	turn   chan struct{} // full while Drain runs, which guards what follows
	marks  [2]uint64     // reserved for the marks that Drain posts: of send, of recv
	marked bool          // they are posted
}

// CreateQP makes a queue pair that completes on q; receives of a shared receive queue are posted there, by [CQ.PostSRQ]. It takes two
// of the queue's entries for [QP.Drain]. It may sleep.
func (q *CQ) CreateQP(pd *ib.PD, init ib.QPInitAttr) (*QP, error) { return NewQP(pd, init, q, q) }

// NewQP makes a queue pair that completes its sends and its receives on two queues, which may be one. The capacities have to
// leave room for one more work request of each kind, for [QP.Drain]. EINVAL for an XRC target, which has no queues. It may sleep.
func NewQP(pd *ib.PD, init ib.QPInitAttr, send, recv *CQ) (*QP, error) {
	init.SendCQ, init.RecvCQ = send.cq, recv.cq
	if init.Type == ib.QPTypeXRCTgt {
		return nil, fmt.Errorf("create qp: an XRC target has no queues: %w", syscall.EINVAL)
	}
	qp := &QP{send: send, recv: recv, turn: make(chan struct{}, 1), receives: init.SRQ == nil && init.Type != ib.QPTypeXRCInit}
	init.Cap.MaxSendWR++
	if qp.receives {
		init.Cap.MaxRecvWR++
	}
	var err error
	if qp.marks[0], err = send.get(qp, nil, 0); err == nil {
		qp.marks[1], err = recv.get(qp, nil, 0)
	}
	if err == nil {
		qp.QP, err = pd.CreateQP(init)
	}
	if err != nil {
		qp.forget()
		return nil, err
	}
	return qp, nil
}

// forget gives back what the queue pair has of its completion queues.
func (qp *QP) forget() {
	qp.send.forget(qp)
	qp.recv.forget(qp)
}

// Destroy is Close without a bound. It may sleep.
func (qp *QP) Destroy() error { return qp.Close(context.Background()) }

// PostSend posts a work request; done is called when it has completed, also with an error. ENOMEM while the send queue or the
// completion queue is full. It may not sleep.
func (qp *QP) PostSend(wr ib.SendWR, done Done) error {
	i, err := qp.send.get(qp, done, wr.ID)
	if err != nil {
		return fmt.Errorf("post send: %w", err)
	}
	wr.ID = i
	wr.Flags |= ib.SendSignaled
	if _, err := qp.QP.PostSend(wr); err != nil {
		qp.send.put(i)
		return err
	}
	return nil
}

// PostRecv does the same for a receive. It may not sleep.
func (qp *QP) PostRecv(wr ib.RecvWR, done Done) error {
	i, err := qp.recv.get(qp, done, wr.ID)
	if err != nil {
		return fmt.Errorf("post receive: %w", err)
	}
	wr.ID = i
	if _, err := qp.QP.PostRecv(wr); err != nil {
		qp.recv.put(i)
		return err
	}
	return nil
}

// Drain takes the queue pair to ERR, and returns when the functions of all work requests have been called: those that were
// under way get [ib.WCWRFlushErr]. What is posted afterwards is flushed too, and not waited for. Receives of a shared receive
// queue stay there. If ctx ends first they have not all been called; Drain may be called again. It may sleep, must not be
// called by a function of the queue, and processes a Direct queue itself. (ib_drain_qp)
func (qp *QP) Drain(ctx context.Context) error {
	if err := qp.drain(ctx); err != nil {
		return fmt.Errorf("drain qp %d: %w", qp.Num(), err)
	}
	return nil
}

func (qp *QP) drain(ctx context.Context) error {
	select {
	case qp.turn <- struct{}{}: // one Drain at a time
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-qp.turn }()
	if !qp.marked {
		if err := qp.mark(ctx); err != nil {
			return err
		}
		qp.marked = true
	}
	for qp.left.Load() > 0 {
		if err := qp.step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// mark takes the queue pair to ERR and posts a mark behind everything else in its queues.
func (qp *QP) mark(ctx context.Context) error {
	if err := qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState); err != nil {
		return err
	}
	qp.left.Store(1)
	if qp.receives {
		qp.left.Store(2)
		if err := qp.insist(ctx, qp.recv, &qp.marks[1], func(id uint64) error {
			_, err := qp.QP.PostRecv(ib.RecvWR{ID: id})
			return err
		}); err != nil {
			return err
		}
	}
	return qp.insist(ctx, qp.send, &qp.marks[0], func(id uint64) error {
		_, err := qp.QP.PostSend(ib.SendWR{ID: id, Opcode: ib.WRSend, Flags: ib.SendSignaled})
		return err
	})
}

// drainPause is how often a full queue is tried again, and a Direct queue processed.
const drainPause = 50 * time.Microsecond

// insist posts a mark to a queue that may be full, and gets empty. A mark of an earlier try is not counted.
func (qp *QP) insist(ctx context.Context, q *CQ, mark *uint64, post func(id uint64) error) error {
	for {
		q.put(*mark)
		id, err := q.get(qp, func(*ib.WC) { qp.left.Add(-1) }, 0)
		if err == nil {
			*mark = id
			err = post(id)
		}
		if !errors.Is(err, syscall.ENOMEM) {
			return err
		}
		if err := qp.step(ctx); err != nil {
			return err
		}
	}
}

// step lets completions be handled.
func (qp *QP) step(ctx context.Context) error {
	for _, q := range [...]*CQ{qp.send, qp.recv} {
		if q.init.Context == Direct {
			if _, err := q.Process(batch); err != nil {
				return err
			}
		}
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(drainPause):
		return nil
	}
}

// Close drains the queue pair and destroys it. If ctx ends first it has not been destroyed, and Close may be called again. It may
// sleep, and must not be called by a function of the queue.
func (qp *QP) Close(ctx context.Context) error {
	if err := qp.Drain(ctx); err != nil {
		return err
	}
	if err := qp.QP.Destroy(); err != nil {
		return err
	}
	qp.forget()
	return nil
}
