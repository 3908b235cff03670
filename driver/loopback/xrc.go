package loopback

import "verbena/ib"

// xrcd is an XRC domain. The only property of an xrcd is its identity.
type xrcd struct{ dev *Device }

func (*xrcd) Dealloc() error { return nil }

// AllocXRCD implements ib.XRCDriver.
func (d *Device) AllocXRCD(*ib.Udata) (ib.DriverXRCD, error) { return &xrcd{d}, nil }

// addXRC assigns a number to an XRC queue. addXRC also sets the domain of the queue, and the completion queue of its
// messages.
//
//verbena:held mu
func (d *Device) addXRC(s *SRQ, init *ib.DriverSRQInit) {
	if init.Type == ib.SRQXRC {
		n := freeNumber(d.srqs, &d.nextSRQ, 1)
		s.rq.xrcd, _ = ib.As[*xrcd](init.XRCD)
		s.rq.cq, _ = ib.As[completer](init.CQ)
		d.srqs[n] = s
		s.obj.SetNum(n)
	}
}

//verbena:held mu
func (d *Device) removeXRC(s *SRQ) {
	if d.srqs[s.obj.Num()] == s {
		delete(d.srqs, s.obj.Num())
	}
}

// xrcQueue returns the receive queue for an XRC message, or nil.
//
//verbena:held q.dev.mu
func (q *QP) xrcQueue(srqn uint32) *recvQueue {
	if s := q.dev.srqs[srqn]; s != nil && s.rq.xrcd == q.xrcd {
		return &s.rq
	}
	return nil
}
