package cancel_work_sync

import (
	"time"

	"verbena/ib"
)

type work struct {
	t    *time.Timer
	done chan struct{}
}

func (w *work) cancelSync() {
	if !w.t.Stop() {
		<-w.done // want "nosleep: .*may sleep: it receives from a channel"
	}
}

type conn struct{ keepalive work }

func (c *conn) onEvent(e ib.Event) {
	if e.Type == ib.EventPortErr {
		c.keepalive.cancelSync()
	}
}

func Start(d *ib.Device, c *conn) func() { return d.OnEvent(c.onEvent) }
