// Package fields_after_status uses fields of completions after the status.
package fields_after_status

import (
	"fmt"
	"log/slog"

	"verbena/ib"
	"verbena/ib/completion"
)

type result struct {
	n      int
	status ib.WCStatus
}

type port struct {
	qp     *completion.QP
	buf    []byte
	last   []byte
	bytes  uint64
	lost   [16]int
	peers  map[uint32]int
	log    *slog.Logger
	result result
	wake   chan struct{}
}

func failure(wc *ib.WC) error {
	if wc.Status == ib.WCSuccess {
		return nil
	}
	return fmt.Errorf("opcode %v: %v", wc.Opcode, wc.Status)
}

func (p *port) handle(cq *ib.CQ) {
	cq.ReqNotify(ib.NotifyNextComp)
	var wcs [8]ib.WC
	for {
		n, err := cq.Poll(wcs[:])
		if n == 0 || err != nil {
			return
		}
		for _, wc := range wcs[:n] {
			length := int(wc.ByteLen)
			if err := failure(&wc); err != nil {
				if wc.Status == ib.WCWRFlushErr {
					p.lost[wc.Opcode&15]++
				}
				continue
			}
			p.bytes += uint64(length)
			p.peers[wc.SrcQP]++
			p.take(&wc)
		}
		for i := range wcs[:n] {
			if wcs[i].Opcode == ib.WCRecv && wcs[i].Status == ib.WCSuccess {
				p.last = p.buf[:wcs[i].ByteLen]
			}
		}
	}
}

// take is called for successful completions only.
func (p *port) take(wc *ib.WC) { p.last = p.buf[:wc.ByteLen] }

func (p *port) post(sgl []ib.SGE) error {
	return p.qp.PostRecv(ib.RecvWR{SGList: sgl}, func(wc *ib.WC) {
		p.result = result{int(wc.ByteLen), wc.Status}
		text := fmt.Sprintf("%v bytes of %v", wc.ByteLen, wc.SrcQP)
		_ = text
		select {
		case p.wake <- struct{}{}:
		default:
		}
	})
}

func (p *port) switched(sgl []ib.SGE) error {
	return p.qp.PostRecv(ib.RecvWR{SGList: sgl}, func(wc *ib.WC) {
		switch wc.Status {
		case ib.WCSuccess:
		case ib.WCWRFlushErr:
			return
		default:
			p.lost[0]++
			return
		}
		p.last = p.buf[:wc.ByteLen]
	})
}

func open(d *ib.Device) (*port, error) {
	p := &port{}
	_, err := d.CreateCQ(ib.CQInit{Entries: 8, Handler: p.handle})
	return p, err
}
