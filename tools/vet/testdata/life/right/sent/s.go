// Package sent changes memory after the completion, other memory, or memory of copied requests.
package sent

import (
	"context"

	"verbena/ib"
	"verbena/verbs"
)

type peer struct {
	mem  []byte
	mr   *ib.MR
	qp   *ib.QP
	sent chan error
}

func open(pd *ib.PD, qp *ib.QP) (*peer, error) {
	p := &peer{mem: make([]byte, 4096), qp: qp, sent: make(chan error, 1)}
	var err error
	p.mr, err = pd.RegBytes(p.mem, ib.AccessLocalWrite)
	return p, err
}

func (p *peer) post(n uint32) error {
	_, err := p.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: []ib.SGE{{Addr: p.mr.Addr(), Length: n, LKey: p.mr.LKey()}}})
	return err
}

// twice waits in between, and changes the memory at once if the post has failed.
func (p *peer) twice() error {
	if err := p.post(5); err != nil {
		copy(p.mem, "error")
		return err
	}
	if err := <-p.sent; err != nil {
		return err
	}
	copy(p.mem, "other")
	return p.post(5)
}

// halves changes the other half.
func (p *peer) halves() error {
	if err := p.post(2048); err != nil {
		return err
	}
	_, err := p.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: []ib.SGE{{Addr: p.mr.Addr(), Length: 64, LKey: p.mr.LKey()}}})
	if err != nil {
		return err
	}
	clear(p.mem[2048:])
	return nil
}

// reply posts inline data, and reads into the memory with its second request.
func reply(qp *verbs.QP, cq *verbs.CQ, mr *verbs.MR, wc []verbs.WC) error {
	if err := qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Inline: mr.Bytes()[:16]}); err != nil {
		return err
	}
	mr.Bytes()[0] = 1
	if err := qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: mr.SGE(0, 16)}); err != nil {
		return err
	}
	if _, err := cq.Wait(context.Background(), wc); err != nil {
		return err
	}
	mr.Bytes()[0] = 2
	return nil
}
