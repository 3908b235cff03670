// Package kept_completion copies completions that other threads use.
package kept_completion

import (
	"log"
	"sync"

	"verbena/ib"
	"verbena/ib/completion"
)

type job struct {
	slot   int
	status ib.WCStatus
	wc     ib.WC
}

type peer struct {
	cq   *completion.CQ
	qp   *completion.QP
	jobs chan job
	last ib.WC
	qps  chan *ib.QP
	once sync.Once
}

func open(d *ib.Device) (*completion.CQ, error) {
	return completion.New(d, completion.Init{Entries: 8, Context: completion.Worker})
}

func (p *peer) post(slot int) {
	p.qp.PostRecv(ib.RecvWR{}, func(wc *ib.WC) {
		select {
		case p.jobs <- job{slot, wc.Status, *wc}:
		default:
		}
		log.Printf("%+v", wc)
	})
	p.qp.PostRecv(ib.RecvWR{}, func(wc *ib.WC) {
		p.last = *wc
		p.once.Do(func() { p.handle(wc) })
		select {
		case p.qps <- wc.QP:
		default:
		}
	})
	p.qp.PostRecv(ib.RecvWR{}, func(wc *ib.WC) {
		c := *wc
		go p.handle(&c)
	})
	p.qp.PostRecv(ib.RecvWR{}, p.done)
}

// done waits until the goroutine no longer uses the completion.
func (p *peer) done(wc *ib.WC) {
	used := make(chan struct{})
	go func() {
		p.handle(wc)
		close(used)
	}()
	<-used
}

func (p *peer) handle(wc *ib.WC) { _ = wc.ByteLen }
