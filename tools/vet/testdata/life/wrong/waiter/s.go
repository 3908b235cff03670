// Package waiter arms a queue of package verbs after its last poll.
package waiter

import (
	"context"

	"verbena/verbs"
)

type peer struct {
	cq *verbs.CQ
	ch *verbs.Channel
}

// next misses a completion that arrives before Arm.
func (p *peer) next(ctx context.Context, wcs []verbs.WC) error {
	if n, err := p.cq.Poll(wcs); err != nil || n > 0 {
		return err
	}
	if err := p.cq.Arm(false); err != nil { // want "arm: .*next arms a completion queue after its last poll"
		return err
	}
	_, err := p.ch.Wait(ctx)
	return err
}

func (p *peer) serve(ctx context.Context) error {
	wcs := make([]verbs.WC, 8)
	for {
		if err := p.next(ctx, wcs); err != nil {
			return err
		}
	}
}
