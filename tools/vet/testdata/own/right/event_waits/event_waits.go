package event_waits

import (
	"sync"

	"verbena/ib"
)

// Conn tells its goroutine that its queue pair has failed.
type Conn struct {
	wg   sync.WaitGroup
	once sync.Once
	end  chan struct{}
	qp   *ib.QP
}

func (c *Conn) Open(pd *ib.PD, cq *ib.CQ) (err error) {
	c.qp, err = pd.CreateQP(ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Event: func(*ib.QP, ib.EventType) {
		c.once.Do(func() { close(c.end) })
	}})
	return err
}

func (c *Conn) Close() { c.wg.Wait() }
