// Package client is a program on package verbs.
package client

import (
	"context"

	"verbena/verbs"
)

type peer struct {
	qp *verbs.QP
	cq *verbs.CQ
	ch *verbs.Channel
	mr *verbs.MR
}

func (p *peer) next(ctx context.Context, wcs []verbs.WC) error {
	if err := p.cq.Arm(false); err != nil {
		return err
	}
	if n, err := p.cq.Poll(wcs); err != nil || n > 0 {
		return err
	}
	_, err := p.ch.Wait(ctx)
	return err
}

func (p *peer) text(ctx context.Context) (string, error) {
	for wc, err := range p.cq.Completions(ctx) {
		if err != nil {
			return "", err
		}
		if wc.ByteLen > 0 {
			return string(p.mr.Bytes()[:wc.ByteLen]), nil
		}
	}
	return "", nil
}

func (p *peer) first(ctx context.Context, wcs []verbs.WC) ([]byte, error) {
	if _, err := p.cq.Wait(ctx, wcs); err != nil {
		return nil, err
	}
	if err := verbs.CompletionError(&wcs[0]); err != nil {
		return nil, err
	}
	return p.mr.Bytes()[:wcs[0].ByteLen], nil
}

// restart uses the queue pair only if its end has failed, or after a new one exists.
func (p *peer) restart(pd *verbs.PD) (err error) {
	if err := p.qp.Close(); err != nil {
		return p.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send})
	}
	if p.qp, err = pd.CreateQP(verbs.QPInit{SendCQ: p.cq}); err != nil {
		return err
	}
	return p.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send})
}

func (p *peer) close() {
	if p.qp != nil {
		p.qp.Close()
	}
	if p.cq != nil {
		p.cq.Close()
	}
}

func (p *peer) announce(ctx context.Context, pd *verbs.PD, qp *verbs.QP, to verbs.AHAttr, wcs []verbs.WC) error {
	ah, err := pd.CreateAH(to)
	if err != nil {
		return err
	}
	defer ah.Close()
	err = qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: p.mr.SGE(0, 8), To: verbs.Datagram{AH: ah, QPN: 1}})
	if err != nil {
		return err
	}
	_, err = p.cq.Wait(ctx, wcs)
	return err
}
