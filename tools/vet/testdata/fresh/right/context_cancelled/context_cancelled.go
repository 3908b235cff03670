// Package context_cancelled: the completion handler cancels a context, and looks whether it has ended.
package context_cancelled

import (
	"context"
	"sync/atomic"

	"verbena/ib"
)

type request struct {
	ctx    context.Context
	cancel context.CancelFunc
	late   atomic.Bool
}

// Run makes a queue whose handler ends the request, and waits for that.
func Run(parent context.Context, d *ib.Device) error {
	r := new(request)
	r.ctx, r.cancel = context.WithCancel(parent)
	init := ib.CQInit{Entries: 1}
	init.Handler = func(cq *ib.CQ) { r.finish() }
	cq, err := d.CreateCQ(init)
	if err != nil {
		return err
	}
	<-r.ctx.Done()
	return cq.Destroy()
}

func (r *request) finish() {
	select {
	case <-r.ctx.Done():
		r.late.Store(true)
	default:
	}
}
