package afterfunc_stop

import (
	"context"

	"verbena/ib"
)

type watch struct {
	stop func() bool
	done chan struct{}
}

func arm(ctx context.Context) *watch {
	w := &watch{done: make(chan struct{})}
	w.stop = context.AfterFunc(ctx, func() { close(w.done) })
	return w
}

func (w *watch) disarm() {
	if !w.stop() {
		<-w.done // want "nosleep: .*may sleep: it receives from a channel"
	}
}

func Make(ctx context.Context, d *ib.Device) {
	w := arm(ctx)
	d.CreateCQ(ib.CQInit{Handler: func(*ib.CQ) { w.disarm() }})
}
