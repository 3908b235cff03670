// Package right has channels with space for each receive, and for one reply.
package right

import (
	"context"

	"verbena/ib"
	"verbena/ib/completion"
)

const receives = 32

type broker struct {
	qp      *completion.QP
	inbox   chan uint32
	reply   chan uint32
	credits chan int
	room    chan struct{}
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
	b := &broker{qp: qp, inbox: make(chan uint32, receives), reply: make(chan uint32, 1), credits: make(chan int, 4),
		room: make(chan struct{}, 4)}
	go b.distribute()
	for range receives {
		b.qp.PostRecv(ib.RecvWR{}, func(wc *ib.WC) {
			if wc.Status != ib.WCSuccess {
				return
			}
			if wc.Flags&ib.WCWithImm != 0 {
				b.inbox <- wc.Imm
				return
			}
			b.reply <- wc.ByteLen
		})
	}
	return b, nil
}

func (b *broker) call() uint32 {
	b.qp.PostSend(ib.SendWR{}, func(*ib.WC) {})
	return <-b.reply
}

func (b *broker) distribute() {
	for m := range b.inbox {
		i := <-b.credits
		b.qp.PostSend(ib.SendWR{Imm: m}, func(*ib.WC) { b.credits <- i })
	}
}

// send takes a place in room, which the function of the completion returns.
func (b *broker) send(ctx context.Context, done func(error)) error {
	select {
	case b.room <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := b.qp.PostSend(ib.SendWR{}, func(*ib.WC) {
		<-b.room
		done(nil)
	})
	if err != nil {
		<-b.room
	}
	return err
}
