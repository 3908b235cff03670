package loopback

import "verbena/ib"

// xrcd is an XRC domain. The only property of an xrcd is its identity.
type xrcd struct{ dev *Device }

func (*xrcd) Dealloc() error { return nil }

// AllocXRCD implements ib.XRCDriver.
func (d *Device) AllocXRCD(*ib.Udata) (ib.DriverXRCD, error) { return &xrcd{d}, nil }

// addXRCSRQ assigns a number to an XRC queue. addXRCSRQ also sets the domain of the queue, and the completion queue of
// its messages.
//
//verbena:held mu
func (d *Device) addXRCSRQ(s *SRQ, init *ib.DriverSRQInit) {
	if init.Type == ib.SRQXRC {
		n := nextFreeNumber(d.srqs, &d.nextSRQ, 1)
		s.rq.xrcd, _ = ib.As[*xrcd](init.XRCD)
		s.rq.cq, _ = ib.As[completionQueue](init.CQ)
		d.srqs[n] = s
		s.obj.SetNum(n)
	}
}

//verbena:held mu
func (d *Device) removeXRCSRQ(s *SRQ) {
	if d.srqs[s.obj.Num()] == s {
		delete(d.srqs, s.obj.Num())
	}
}

// xrcRecvQueue returns the receive queue for an XRC message, or nil.
//
//verbena:held q.dev.mu
func (q *QP) xrcRecvQueue(srqn uint32) *recvQueue {
	if s := q.dev.srqs[srqn]; s != nil && s.rq.xrcd == q.xrcd {
		return &s.rq
	}
	return nil
}
