// Package status_before_header takes the buffer of a receive, and reads it after the status.
package status_before_header

import (
	"encoding/binary"

	"verbena/ib"
	"verbena/ib/completion"
)

type target struct {
	qp     *completion.QP
	buf    []byte
	free   [][]byte
	counts map[uint16]int
}

func (t *target) put(b []byte) { t.free = append(t.free, b) }

func (t *target) Post(sgl []ib.SGE) error {
	return t.qp.PostRecv(ib.RecvWR{SGList: sgl}, func(wc *ib.WC) {
		b := t.buf[:64]
		if st := wc.Status; st != ib.WCSuccess {
			t.put(b)
			return
		}
		t.counts[binary.BigEndian.Uint16(b)]++
		t.put(b)
	})
}
