// Package invalidation changes and releases regions before their invalidation has completed.
package invalidation

import (
	"sync"

	"verbena/ib"
	"verbena/ib/completion"
)

type request struct {
	mr *ib.MR
	qp *ib.QP
}

// end deregisters the region directly after the post.
func (r *request) end() error {
	if _, err := r.qp.PostSend(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: r.mr.RKey()}); err != nil {
		return err
	}
	return r.mr.Dereg() // want "release: .* calls MR.Dereg when the region's invalidation has been posted"
}

func (r *request) invalidate() error {
	_, err := r.qp.PostSend(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: r.mr.RKey()})
	return err
}

// reuse posts in a helper.
func (r *request) reuse() {
	if err := r.invalidate(); err != nil {
		return
	}
	r.mr.UpdateKey(2) // want "release: .* calls MR.UpdateKey when the region's invalidation has been posted"
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

type queue struct {
	qp   *completion.QP
	pool pool
}

type command struct {
	q  *queue
	mr *ib.MR
}

// finish gives the region back in a helper, although the invalidation has a function.
func (c *command) finish() {
	defer c.release()
	_ = c.q.qp.PostSend(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: c.mr.RKey()}, func(*ib.WC) {}) // want "release: .* gives a region back to list when its invalidation has been posted"
}

func (c *command) release() { c.q.pool.put(c.mr) }
