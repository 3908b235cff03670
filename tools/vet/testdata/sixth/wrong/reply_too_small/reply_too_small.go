// Package reply_too_small has reply channels in structs, with less space than the done functions need.
package reply_too_small

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type Link struct {
	qp   *completion.QP
	last *kept
}

// batch gets several results.
type batch struct{ results chan ib.WCStatus }

func (b *batch) done(wc *ib.WC) { b.results <- wc.Status } // want "nosleep: .*done.* sends to a channel"

func (l *Link) SendAll(lists [][]ib.SGE) {
	b := &batch{make(chan ib.WCStatus, 1)}
	for _, list := range lists {
		l.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: list}, b.done)
	}
	<-b.results
}

// twice sends two values for each request.
type twice struct{ results chan string }

func (t *twice) done(wc *ib.WC) {
	t.say("done")
	if wc.Status != ib.WCSuccess {
		t.say("failed")
	}
}

func (t *twice) say(s string) { t.results <- s } // want "nosleep: .* sends to a channel"

func (l *Link) Twice(list []ib.SGE) {
	t := &twice{make(chan string, 1)}
	l.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: list}, t.done)
	<-t.results
}

// kept is one struct for all requests of a link.
type kept struct{ result chan error }

func (k *kept) done(*ib.WC) { k.result <- nil } // want "nosleep: .* sends to a channel"

func (l *Link) Post(list []ib.SGE) error {
	return l.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: list}, l.last.done)
}

func Open(d *ib.Device, pd *ib.PD) (*Link, error) {
	cq, err := completion.New(d, completion.Init{Entries: 8, Context: completion.Callback})
	if err != nil {
		return nil, err
	}
	qp, err := cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC})
	return &Link{qp: qp, last: &kept{make(chan error, 1)}}, err
}
