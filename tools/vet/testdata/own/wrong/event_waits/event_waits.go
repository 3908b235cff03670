package event_waits

import (
	"sync"

	"verbena/ib"
)

// Conn closes itself when its queue pair fails, and waits for its goroutine.
type Conn struct {
	wg sync.WaitGroup
	qp *ib.QP
}

func (c *Conn) Open(pd *ib.PD, cq *ib.CQ) (err error) {
	c.qp, err = pd.CreateQP(ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Event: func(*ib.QP, ib.EventType) { c.wg.Wait() }}) // want "nosleep: .*ib.QPInitAttr.Event.* may sleep: it calls .*WaitGroup..Wait"
	return err
}
