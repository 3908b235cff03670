package destroyed_qp_checked

import (
	"sync/atomic"

	"verbena/ib"
)

// Conn is one of several connections with a common completion queue and shared receive queue.
type Conn struct {
	qp   *ib.QP
	last chan struct{}
	n    atomic.Int64
}

func Open(pd *ib.PD, cq *ib.CQ, srq *ib.SRQ) (*Conn, error) {
	c := &Conn{last: make(chan struct{})}
	var err error
	if c.qp, err = pd.CreateQP(ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, SRQ: srq, Event: c.event}); err != nil {
		return nil, err
	}
	c.qp.UserData = c
	return c, nil
}

func (c *Conn) event(_ *ib.QP, e ib.EventType) {
	if e == ib.EventQPLastWQEReached {
		close(c.last)
	}
}

func handle(cq *ib.CQ) {
	var wc [4]ib.WC
	n, err := cq.Poll(wc[:])
	if err != nil {
		return
	}
	for i := range wc[:n] {
		if wc[i].QP == nil {
			continue // the connection is closed
		}
		c := wc[i].QP.UserData.(*Conn)
		c.n.Add(1)
	}
}

// Queue creates the completion queue.
func Queue(d *ib.Device) (*ib.CQ, error) { return d.CreateCQ(ib.CQInit{Entries: 16, Handler: handle}) }

func (c *Conn) Close() error {
	if err := c.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState); err != nil {
		return err
	}
	<-c.last
	return c.qp.Destroy()
}
