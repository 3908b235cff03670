package engine

import "verbena/ib"

// RaiseQP raises an event of a queue pair, as if it had happened: its state does not change. It reports false if there is no
// such queue pair. It may not sleep.
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

// RaiseCQ does the same with a completion queue, which must not be destroyed meanwhile.
func (d *Device) RaiseCQ(of *ib.CQ, e ib.EventType) bool {
	c, ok := ib.As[*cq](d.obj.CQ(of))
	if ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.raise(e)
	}
	return ok
}

// RaiseSRQ does the same with a shared receive queue, which must not be destroyed meanwhile.
func (d *Device) RaiseSRQ(of *ib.SRQ, e ib.EventType) bool {
	s, ok := ib.As[*srq](d.obj.SRQ(of))
	if ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.raise(e)
	}
	return ok
}
