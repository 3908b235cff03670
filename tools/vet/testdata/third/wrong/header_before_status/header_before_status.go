// Package header_before_status counts commands by their header, also those that have not arrived.
package header_before_status

import (
	"encoding/binary"

	"verbena/ib"
	"verbena/ib/completion"
)

type target struct {
	qp     *completion.QP
	buf    []byte
	counts map[uint16]int
	bodies chan string
}

func parse(b []byte) (kind uint16, body []byte) { return binary.BigEndian.Uint16(b), b[2:] }

func (t *target) Post(sgl []ib.SGE) error {
	return t.qp.PostRecv(ib.RecvWR{SGList: sgl}, func(wc *ib.WC) {
		kind, body := parse(t.buf[:64]) // want "status: .* reads bytes before the status"
		t.counts[kind]++
		if wc.Status != ib.WCSuccess {
			return
		}
		select {
		case t.bodies <- string(body):
		default:
		}
	})
}
