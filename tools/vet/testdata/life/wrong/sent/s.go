// Package sent changes memory that posted requests send.
package sent

import (
	"context"
	"encoding/binary"

	"verbena/ib"
	"verbena/verbs"
)

type peer struct {
	mem []byte
	mr  *ib.MR
	qp  *ib.QP
}

func open(pd *ib.PD, qp *ib.QP) (*peer, error) {
	p := &peer{mem: make([]byte, 4096), qp: qp}
	var err error
	p.mr, err = pd.RegBytes(p.mem, ib.AccessLocalWrite)
	return p, err
}

func (p *peer) post(n uint32) error {
	_, err := p.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: []ib.SGE{{Addr: p.mr.Addr(), Length: n, LKey: p.mr.LKey()}}})
	return err
}

// twice posts in a helper.
func (p *peer) twice() error {
	copy(p.mem, "first")
	if err := p.post(5); err != nil {
		return err
	}
	copy(p.mem, "other") // want "life: .* changes memory that a posted request sends"
	return p.post(5)
}

// count changes a number within the range.
func (p *peer) count() error {
	_, err := p.qp.PostSend(ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: []ib.SGE{{Addr: p.mr.Addr(), Length: 64, LKey: p.mr.LKey()}}})
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(p.mem[8:], 7) // want "life: .* changes memory that a posted request sends"
	return nil
}

// overwrite uses package verbs, and waits too late.
func overwrite(qp *verbs.QP, cq *verbs.CQ, mr *verbs.MR, wc []verbs.WC) error {
	if err := qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: mr.SGE(16, 16)}); err != nil {
		return err
	}
	mr.Bytes()[16] = 1 // want "life: .* changes memory that a posted request sends"
	_, err := cq.Wait(context.Background(), wc)
	return err
}
