// Package invalidation waits for the completion of an invalidation.
package invalidation

import (
	"sync"

	"verbena/ib"
	"verbena/ib/completion"
)

type request struct {
	mr   *ib.MR
	qp   *ib.QP
	cq   *ib.CQ
	done chan struct{}
}

func (r *request) invalidate() error {
	_, err := r.qp.PostSend(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: r.mr.RKey()})
	return err
}

// end polls the completion.
func (r *request) end() error {
	if err := r.invalidate(); err != nil {
		return err
	}
	wc := make([]ib.WC, 1)
	for {
		n, err := r.cq.Poll(wc)
		if err != nil {
			return err
		}
		if n == 1 {
			return r.mr.Dereg()
		}
	}
}

func (r *request) await() { <-r.done }

// reuse waits in a helper.
func (r *request) reuse() {
	if r.invalidate() != nil {
		_ = r.mr.Dereg()
		return
	}
	r.await()
	r.mr.UpdateKey(2)
}

type pool struct {
	mu   sync.Mutex
	list []*ib.MR
}

func (p *pool) put(mr *ib.MR) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = append(p.list, mr)
}

type command struct {
	qp   *completion.QP
	pool *pool
	mr   *ib.MR
}

// finish gives the region back in the done function, or if the post has failed.
func (c *command) finish() {
	err := c.qp.PostSend(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: c.mr.RKey()}, func(*ib.WC) { c.pool.put(c.mr) })
	if err != nil {
		c.pool.put(c.mr)
	}
}
