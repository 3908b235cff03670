// Package limit3 handles the event of package verbs on a thread.
package limit3

import (
	"context"

	"verbena/verbs"
)

type pool struct {
	srq *verbs.SRQ
	wrs []verbs.RecvWR
}

func open(pd *verbs.PD, wrs []verbs.RecvWR) (*pool, error) {
	srq, err := pd.CreateSRQ(64, 1)
	if err != nil {
		return nil, err
	}
	p := &pool{srq, wrs}
	p.fill()
	return p, srq.SetLimit(16) // want "event: .*open arms the limit of a shared receive queue"
}

func (p *pool) fill() {
	for i := range p.wrs {
		if p.srq.PostRecv(&p.wrs[i]) != nil {
			return
		}
	}
}

func (p *pool) handle(e verbs.Event) {
	if e.Type == verbs.EventSRQLimit {
		p.fill()
	}
}

// Serve handles events.
func (p *pool) Serve(ctx context.Context, d *verbs.Device) error {
	for {
		e, err := d.NextEvent(ctx)
		if err != nil {
			return err
		}
		p.handle(e)
	}
}
