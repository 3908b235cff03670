// Package undefined_fields uses fields of completions that have failed.
package undefined_fields

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type stats struct {
	bytes  uint64
	kinds  [16]int
	errors int
	byPeer map[uint32]int
}

type port struct {
	cq   *ib.CQ
	qp   *completion.QP
	wcs  [4]ib.WC
	buf  []byte
	last []byte
	st   stats
}

func (p *port) handle(cq *ib.CQ) {
	n, _ := cq.Poll(p.wcs[:])
	for i := range n {
		wc := &p.wcs[i]
		p.st.byPeer[wc.SrcQP]++ // want "status: .*handle .* WC.SrcQP"
		if wc.Status != ib.WCSuccess {
			p.st.errors++
		}
		p.count(wc)
	}
	cq.ReqNotify(ib.NotifyNextComp)
	p.drain(cq)
}

// count is called for all completions.
func (p *port) count(wc *ib.WC) {
	p.st.bytes += uint64(wc.ByteLen) // want "status: .*count stores WC.ByteLen"
}

func (p *port) drain(cq *ib.CQ) {
	for {
		n, err := cq.Poll(p.wcs[:])
		if n == 0 || err != nil {
			return
		}
		for _, wc := range p.wcs[:n] {
			switch wc.Opcode {
			case ib.WCRecv: // want "status: .*drain decides by WC.Opcode"
				p.received(wc)
			default:
				p.st.kinds[0]++
			}
		}
	}
}

func (p *port) received(wc ib.WC) {
	if wc.Status == ib.WCSuccess {
		p.last = p.buf[:wc.ByteLen]
	}
}

func length(wc *ib.WC) int { return int(wc.ByteLen) }

func (p *port) post(sgl []ib.SGE) error {
	return p.qp.PostRecv(ib.RecvWR{SGList: sgl}, func(wc *ib.WC) {
		p.keep(length(wc)) // want "status: .* calls .*keep, which slices by WC.ByteLen"
	})
}

func (p *port) keep(n int) { p.last = p.buf[:n] }

func (p *port) flushed(sgl []ib.SGE) error {
	return p.qp.PostRecv(ib.RecvWR{SGList: sgl}, func(wc *ib.WC) {
		if wc.Status == ib.WCWRFlushErr {
			return
		}
		p.last = p.buf[:wc.ByteLen] // want "status: .* slices by WC.ByteLen"
	})
}

func open(d *ib.Device) (*port, error) {
	p := &port{st: stats{byPeer: map[uint32]int{}}}
	cq, err := d.CreateCQ(ib.CQInit{Entries: 8, Handler: p.handle})
	p.cq = cq
	return p, err
}
