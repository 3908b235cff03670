// Package groups waits by a sync.WaitGroup or a sync.Cond.
package groups

import (
	"context"
	"sync"

	"verbena/ib"
	"verbena/ib/attach"
	"verbena/ib/completion"
)

type disk struct {
	a       *attach.Attachment[*completion.QP]
	pending sync.WaitGroup
}

func (d *disk) flush(ctx context.Context) error {
	qp, err := d.a.Acquire(ctx)
	if err != nil {
		return err
	}
	defer d.a.Release()
	d.pending.Add(1)
	if err := qp.PostSend(ib.SendWR{Opcode: ib.WRSend}, func(*ib.WC) { d.pending.Done() }); err != nil {
		return err
	}
	d.pending.Wait() // want "session: .*flush waits for completions of a session before Release"
	return nil
}

type request struct {
	mu    sync.Mutex
	ready *sync.Cond
	done  bool
}

func (r *request) finish(wc *ib.WC) {
	r.mu.Lock()
	r.done = true
	r.mu.Unlock()
	r.ready.Signal()
}

func (d *disk) sync(ctx context.Context) error {
	qp, err := d.a.Acquire(ctx)
	if err != nil {
		return err
	}
	defer d.a.Release()
	r := &request{}
	r.ready = sync.NewCond(&r.mu)
	if err := qp.PostSend(ib.SendWR{Opcode: ib.WRSend}, r.finish); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.done {
		r.ready.Wait() // want "session: .*sync waits for completions of a session before Release"
	}
	return nil
}

// load uses the data of a failed READ.
func load(qp *completion.QP, b []byte, wr ib.SendWR) byte {
	var wg sync.WaitGroup
	wg.Add(1)
	wr.Opcode = ib.WRRDMARead
	if err := qp.PostSend(wr, func(*ib.WC) { wg.Done() }); err != nil { // want "status: .*load waits for data"
		return 0
	}
	wg.Wait()
	return b[0]
}
