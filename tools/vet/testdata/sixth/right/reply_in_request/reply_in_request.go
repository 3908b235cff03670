// Package reply_in_request waits for requests by a channel in the struct of each request.
package reply_in_request

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type transfer struct {
	list   []ib.SGE
	result chan ib.WCStatus
}

func (t *transfer) finished(wc *ib.WC) { t.report(wc.Status) }

func (t *transfer) report(s ib.WCStatus) { t.result <- s }

func newTransfer(list []ib.SGE) *transfer {
	return &transfer{list, make(chan ib.WCStatus, 1)}
}

// Link sends in one function.
type Link struct{ qp *completion.QP }

func (l *Link) Send(list []ib.SGE) ib.WCStatus {
	t := newTransfer(list)
	if err := l.start(t); err != nil {
		return ib.WCLocQPOpErr
	}
	return <-t.result
}

func (l *Link) start(t *transfer) error {
	return l.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: t.list}, t.finished)
}

// pair waits for two requests.
type pair struct{ results chan *ib.WC }

func (p *pair) done(wc *ib.WC) {
	c := *wc
	p.results <- &c
}

func (l *Link) Both(a, b []ib.SGE) (ok bool) {
	p := &pair{results: make(chan *ib.WC, 2)}
	n := 0
	if l.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: a}, p.done) == nil {
		n++
	}
	if l.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: b}, p.done) == nil {
		n++
	}
	ok = n == 2
	for range n {
		wc := <-p.results
		ok = ok && wc.Status == ib.WCSuccess
	}
	return ok
}

func Open(d *ib.Device, pd *ib.PD) (*Link, error) {
	cq, err := completion.New(d, completion.Init{Entries: 8, Context: completion.Callback})
	if err != nil {
		return nil, err
	}
	qp, err := cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC})
	return &Link{qp}, err
}
