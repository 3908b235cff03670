package engine

import (
	"fmt"
	"sync"
	"syscall"

	"verbena/engine/queue"
	"verbena/ib"
)

// receives posts receive work requests of consumers. The caller is the only producer of its queue.
type receives struct {
	wr queue.Recv // the request that is being posted
}

// post posts receives of up to limit elements. full is true if the queue had no room for the next receive.
func (p *receives) post(q queue.RecvQueue, wrs []ib.RecvWR, limit uint32) (n int, full bool, err error) {
	for ; n < len(wrs); n++ {
		list := wrs[n].SGList
		if len(list) > int(limit) {
			return n, false, fmt.Errorf("%d scatter elements, at most %d: %w", len(list), limit, syscall.EINVAL)
		}
		p.wr = queue.Recv{ID: wrs[n].ID, NumSGE: uint32(len(list)), SGEs: p.wr.SGEs[:0]}
		for _, s := range list {
			p.wr.SGEs = queue.AppendSGE(p.wr.SGEs, s)
		}
		p.wr.Length = queue.Length(p.wr.SGEs)
		if pushed, ok := q.Push(&p.wr); !ok {
			return n, false, errRingGone
		} else if !pushed {
			return n, true, nil
		}
	}
	return n, false, nil
}

// directory holds the queue pairs that are listed in the memory of a program. The list is used after the service's
// death.
type directory struct {
	mu  sync.Mutex // before the locks of completion and shared receive queues
	qps []*QP      // by index; nil: free
}

// list adds a queue pair to the list in the program's memory.
func (c *userContext) list(qp *QP) (err error) {
	d := &c.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if qp.listed, err = c.queues.List(qp.queues()); err != nil {
		return err
	}
	for len(d.qps) <= qp.listed {
		d.qps = append(d.qps, nil)
	}
	d.qps[qp.listed] = qp
	return nil
}

func (c *userContext) unlist(qp *QP) {
	c.dir.mu.Lock()
	defer c.dir.mu.Unlock()
	c.dir.qps[qp.listed] = nil
	c.queues.Unlist(qp.listed)
}

// moved updates the list after a queue has moved to another location.
func (c *userContext) moved() {
	if c == nil {
		return
	}
	c.dir.mu.Lock()
	defer c.dir.mu.Unlock()
	for i, qp := range c.dir.qps {
		if qp != nil {
			c.queues.Update(i, qp.queues())
		}
	}
}

// queues returns the present queues of the queue pair.
func (qp *QP) queues() *queue.Queues {
	q := &queue.Queues{
		QPN: qp.num, Send: qp.sq, Recv: qp.rq, SendCQ: qp.sendCQ.current(), RecvCQ: qp.recvCQ.current(),
	}
	if qp.srq != nil {
		q.Recv = qp.srq.current() // the queue pairs of an SRQ share its receives
	}
	return q
}
