package engine

import "verbena/ib"

// RaiseQP raises an event of a queue pair without a cause: the state of the queue pair does not change. RaiseQP
// returns false if there is no such queue pair. It may not sleep.
func (d *Device) RaiseQP(num uint32, e ib.EventType) bool {
	qp := d.qp(num)
	if qp == nil {
		return false
	}
	p := d.begin(false)
	defer p.endElsewhere()
	p.post(qp, func(*pass) {
		if qp.life == whole {
			qp.raise(e)
		}
	})
	return true
}

// RaiseCQ raises an event of a completion queue, like RaiseQP. The queue must not be destroyed meanwhile.
func (d *Device) RaiseCQ(of *ib.CQ, e ib.EventType) bool {
	c, ok := ib.As[*cq](d.obj.CQ(of))
	if ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.raise(e)
	}
	return ok
}

// RaiseSRQ raises an event of a shared receive queue, like RaiseQP. The queue must not be destroyed meanwhile.
func (d *Device) RaiseSRQ(of *ib.SRQ, e ib.EventType) bool {
	s, ok := ib.As[*srq](d.obj.SRQ(of))
	if ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.raise(e)
	}
	return ok
}
