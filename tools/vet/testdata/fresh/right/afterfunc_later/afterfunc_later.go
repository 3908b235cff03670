// Package afterfunc_later: the handler has a timer call what sleeps later.
package afterfunc_later

import (
	"time"

	"verbena/ib"
)

type Retrier struct {
	qp *ib.QP
	t  *time.Timer
}

// Open makes the queue.
func (r *Retrier) Open(d *ib.Device) (*ib.CQ, error) {
	return d.CreateCQ(ib.CQInit{Entries: 8, Handler: r.handle})
}

func (r *Retrier) handle(cq *ib.CQ) {
	var wc [8]ib.WC
	if n, _ := cq.Poll(wc[:]); n > 0 && wc[0].Status != ib.WCSuccess {
		r.t = time.AfterFunc(time.Millisecond, r.again)
	}
}

func (r *Retrier) again() {
	_ = r.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState)
	time.Sleep(time.Millisecond)
	_ = r.qp.Modify(ib.QPAttr{State: ib.QPInit}, ib.QPAttrState)
}
