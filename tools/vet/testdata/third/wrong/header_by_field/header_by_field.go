// Package header_by_field reads the header of a message by a function in a field, before the status.
package header_by_field

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type codec interface{ kind(b []byte) byte }

type first struct{}

func (first) kind(b []byte) byte { return b[0] }

// Port receives messages.
type Port struct {
	qp    *completion.QP
	codec codec
	size  func(b []byte) int
	kinds [256]int
}

// NewPort returns a port.
func NewPort(qp *completion.QP) *Port {
	return &Port{qp: qp, codec: first{}, size: func(b []byte) int { return int(b[1]) }}
}

// Kind receives a message of a kind.
func (p *Port) Kind(b []byte, sgl []ib.SGE) error {
	return p.qp.PostRecv(ib.RecvWR{SGList: sgl}, func(wc *ib.WC) {
		k := p.codec.kind(b) // want "status: .*reads bytes before the status"
		if wc.Status == ib.WCSuccess {
			p.kinds[k]++
		}
	})
}

// Size receives a message of a size.
func (p *Port) Size(b []byte, sgl []ib.SGE) error {
	return p.qp.PostRecv(ib.RecvWR{SGList: sgl}, func(wc *ib.WC) {
		n := p.size(b) // want "status: .*reads bytes before the status"
		if wc.Status == ib.WCSuccess {
			p.kinds[n&0xff]++
		}
	})
}
