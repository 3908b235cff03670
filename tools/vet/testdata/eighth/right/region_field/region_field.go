// Package region_field registers the memory of each request by a work request.
package region_field

import (
	"fmt"
	"sync"

	"verbena/ib"
	"verbena/ib/completion"
)

type mrPool struct {
	mu   sync.Mutex
	list []*ib.MR
}

func (p *mrPool) get() *ib.MR {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.list) == 0 {
		return nil
	}
	mr := p.list[len(p.list)-1]
	p.list = p.list[:len(p.list)-1]
	return mr
}

func (p *mrPool) put(mr *ib.MR) {
	p.mu.Lock()
	p.list = append(p.list, mr)
	p.mu.Unlock()
}

// Queue executes requests of a remote disk.
type Queue struct {
	qp   *completion.QP
	pool mrPool
}

type request struct {
	q    *Queue
	mr   *ib.MR
	done func(error)
}

// Submit takes a region for a request. The caller maps it and sends the command.
func (q *Queue) Submit(done func(error)) (*request, error) {
	mr := q.pool.get()
	if mr == nil {
		return nil, fmt.Errorf("no region")
	}
	return &request{q, mr, done}, nil
}

// response is called when the peer has answered.
func (r *request) response(err error) {
	inv := ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: r.mr.RKey()}
	e := r.q.qp.PostSend(inv, func(wc *ib.WC) {
		if wc.Status != ib.WCSuccess && wc.Status != ib.WCWRFlushErr {
			_ = r.q.qp.QP.State()
		}
		r.finish(err)
	})
	if e != nil {
		r.finish(e)
	}
}

func (r *request) finish(err error) {
	r.q.pool.put(r.mr)
	r.done(err)
}
