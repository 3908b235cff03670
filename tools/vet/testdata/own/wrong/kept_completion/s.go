// Package kept_completion keeps completions after the functions of their work requests.
package kept_completion

import (
	"sync"

	"verbena/ib"
	"verbena/ib/completion"
)

type job struct {
	slot int
	wc   *ib.WC
}

type peer struct {
	qp   *completion.QP
	jobs chan job
	wcs  chan *ib.WC
	last *ib.WC
	all  []*ib.WC
	by   map[uint64]*ib.WC
	wg   sync.WaitGroup
}

func (p *peer) post(slot int) {
	p.qp.PostRecv(ib.RecvWR{}, func(wc *ib.WC) {
		select {
		case p.jobs <- job{slot: slot, wc: wc}: // want "keep: .* sends its completion to a channel"
		default:
		}
	})
	p.qp.PostRecv(ib.RecvWR{}, func(wc *ib.WC) {
		p.last = wc // want "keep: .* stores its completion"
	})
	p.qp.PostRecv(ib.RecvWR{}, func(wc *ib.WC) {
		p.all = append(p.all, wc) // want "keep: .* stores its completion"
	})
	p.qp.PostRecv(ib.RecvWR{}, func(wc *ib.WC) {
		p.by[wc.ID] = wc // want "keep: .* stores its completion"
	})
	p.qp.PostRecv(ib.RecvWR{}, func(wc *ib.WC) {
		go p.handle(wc) // want "keep: .* starts a goroutine with its completion"
	})
	p.qp.PostRecv(ib.RecvWR{}, func(wc *ib.WC) {
		p.wg.Go(func() { p.handle(wc) }) // want "keep: .* starts a goroutine with its completion"
	})
	p.qp.PostRecv(ib.RecvWR{}, p.done)
}

func (p *peer) done(wc *ib.WC) { p.pass(wc) }

func (p *peer) pass(wc *ib.WC) {
	j := &job{wc: wc}
	select {
	case p.wcs <- j.wc: // want "keep: .* sends its completion to a channel"
	default:
	}
}

func (p *peer) handle(wc *ib.WC) { _ = wc.ByteLen }
