// Package wrong has a channel with less space than the receives of its queue pair.
package wrong

import (
	"verbena/ib"
	"verbena/ib/completion"
)

const (
	receives = 32
	backlog  = 16
)

type broker struct {
	qp    *completion.QP
	inbox chan uint32
}

func open(d *ib.Device, pd *ib.PD) (*broker, error) {
	cq, err := completion.New(d, completion.Init{Entries: 64, Context: completion.Callback})
	if err != nil {
		return nil, err
	}
	qp, err := cq.CreateQP(pd, ib.QPInitAttr{Cap: ib.QPCap{MaxRecvWR: receives, MaxSendWR: 4}})
	if err != nil {
		return nil, err
	}
	b := &broker{qp: qp, inbox: make(chan uint32, backlog)}
	go b.distribute()
	for range receives {
		b.receive(func(m uint32) {
			b.inbox <- m // want "nosleep: .* sends to a channel"
		})
	}
	return b, nil
}

func (b *broker) receive(arrived func(uint32)) {
	b.qp.PostRecv(ib.RecvWR{}, func(wc *ib.WC) {
		if wc.Status == ib.WCSuccess {
			arrived(wc.Imm)
		}
	})
}

func (b *broker) distribute() {
	for m := range b.inbox {
		sent := make(chan struct{}, 1)
		b.qp.PostSend(ib.SendWR{Imm: m}, func(*ib.WC) { sent <- struct{}{} })
		<-sent
	}
}

func (b *broker) send() error {
	return b.qp.PostSend(ib.SendWR{}, func(*ib.WC) {
		<-b.inbox // want "nosleep: .* receives from a channel"
	})
}
