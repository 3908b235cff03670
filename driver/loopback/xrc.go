package loopback

import "verbena/ib"

// xrcd is an XRC domain. Its identity is all that matters.
type xrcd struct{ dev *Device }

func (*xrcd) Dealloc() error { return nil }

// AllocXRCD implements ib.XRCDriver.
func (d *Device) AllocXRCD(*ib.Udata) (ib.DriverXRCD, error) { return &xrcd{d}, nil }

// addXRC gives the queue a number, and the domain and completion queue of its messages, if it is one for XRC.
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

// xrcQueue is the receive queue that an XRC message is for, nil if there is no such.
//
//verbena:held q.dev.mu
func (q *QP) xrcQueue(srqn uint32) *recvQueue {
	if s := q.dev.srqs[srqn]; s != nil && s.rq.xrcd == q.xrcd {
		return &s.rq
	}
	return nil
}
