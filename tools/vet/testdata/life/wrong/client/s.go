// Package client has the mistakes of other snippets in programs on package verbs.
package client

import (
	"context"
	"fmt"

	"verbena/verbs"
)

type peer struct {
	qp *verbs.QP
	cq *verbs.CQ
	mr *verbs.MR
}

// text uses the length of a failed receive.
func (p *peer) text(ctx context.Context, wcs []verbs.WC) (string, error) {
	n, err := p.cq.Wait(ctx, wcs)
	if err != nil || n == 0 {
		return "", err
	}
	return string(p.mr.Bytes()[:wcs[0].ByteLen]), nil // want "status: .*text slices by WC.ByteLen"
}

func (p *peer) abandon(why error) error {
	if err := p.qp.Close(); err != nil {
		return err
	}
	return fmt.Errorf("abandoned: %w", why)
}

// finish posts on the queue pair that abandon has closed.
func (p *peer) finish(why error) error {
	err := p.abandon(why)
	if e := p.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send}); e != nil { // want "life: .*finish calls QP.PostSend with an object"
		return e
	}
	return err
}

// close closes only the objects that exist, in a wrong order.
func (p *peer) close() {
	if p.cq != nil {
		p.cq.Close()
	}
	if p.qp != nil {
		p.qp.Close() // want "life: .*close ends an object after cq"
	}
}

func connect(pd *verbs.PD, p *peer) (err error) {
	p.qp, err = pd.CreateQP(verbs.QPInit{SendCQ: p.cq})
	return err
}

func (p *peer) announce(pd *verbs.PD, qp *verbs.QP, to verbs.AHAttr) error {
	ah, err := pd.CreateAH(to)
	if err != nil {
		return err
	}
	defer ah.Close() // want "life: .*announce closes an address handle before the datagram"
	return qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: p.mr.SGE(0, 8), To: verbs.Datagram{AH: ah, QPN: 1}})
}

// lengths ignores the errors of the completions.
func (p *peer) lengths(ctx context.Context, max uint32) (n int) {
	for wc := range p.cq.Completions(ctx) {
		if wc.ByteLen > max { // want "status: .*lengths.* decides by WC.ByteLen"
			n++
		}
	}
	return n
}
