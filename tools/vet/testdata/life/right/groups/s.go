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
	workers sync.WaitGroup
}

func (d *disk) flush(ctx context.Context) error {
	if err := d.post(ctx); err != nil {
		return err
	}
	d.pending.Wait()
	return nil
}

func (d *disk) post(ctx context.Context) error {
	qp, err := d.a.Acquire(ctx)
	if err != nil {
		return err
	}
	defer d.a.Release()
	d.pending.Add(1)
	return qp.PostSend(ib.SendWR{Opcode: ib.WRSend}, func(*ib.WC) { d.pending.Done() })
}

// checksum waits for its own goroutines between Acquire and Release.
func (d *disk) checksum(ctx context.Context, parts [][]byte) error {
	_, err := d.a.Acquire(ctx)
	if err != nil {
		return err
	}
	defer d.a.Release()
	for _, p := range parts {
		d.workers.Add(1)
		go func() {
			defer d.workers.Done()
			clear(p)
		}()
	}
	d.workers.Wait()
	return nil
}

func load(qp *completion.QP, b []byte, wr ib.SendWR) byte {
	var wg sync.WaitGroup
	wg.Add(1)
	ok := false
	wr.Opcode = ib.WRRDMARead
	if err := qp.PostSend(wr, func(wc *ib.WC) { ok = wc.Status == ib.WCSuccess; wg.Done() }); err != nil {
		return 0
	}
	if wg.Wait(); !ok {
		return 0
	}
	return b[0]
}
