// Package context_done: the completion handler waits for the end of a context.
package context_done

import (
	"context"

	"verbena/ib"
)

type request struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// Run makes a queue whose handler ends the request.
func Run(parent context.Context, d *ib.Device) (*ib.CQ, error) {
	r := new(request)
	r.ctx, r.cancel = context.WithCancel(parent)
	init := ib.CQInit{Entries: 1}
	init.Handler = func(cq *ib.CQ) { r.finish() }
	return d.CreateCQ(init)
}

func (r *request) finish() {
	if r.ctx.Err() == nil {
		<-r.ctx.Done() // want "nosleep"
	}
	r.cancel()
}
