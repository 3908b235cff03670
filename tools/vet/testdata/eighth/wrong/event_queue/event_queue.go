// Package event_queue waits for completions as ibv_get_cq_event does.
package event_queue

import (
	"fmt"

	"verbena/ib"
)

// Channel is a completion channel.
type Channel struct{ events chan *ib.CQ }

func (c *Channel) notify(cq *ib.CQ) {
	select {
	case c.events <- cq:
	default:
	}
}

// CreateCQ creates a queue that reports to the channel.
func (c *Channel) CreateCQ(d *ib.Device, n int) (*ib.CQ, error) {
	return d.CreateCQ(ib.CQInit{Entries: n, Handler: c.notify})
}

// Get waits for an event.
func (c *Channel) Get() *ib.CQ { return <-c.events }

type worker struct {
	ch *Channel
	cq *ib.CQ
}

func (w *worker) reap(f func(*ib.WC)) error {
	var wcs [4]ib.WC
	for {
		n, err := w.cq.Poll(wcs[:])
		if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		if n == 0 {
			return nil
		}
		for i := range n {
			f(&wcs[i])
		}
	}
}

// Run handles completions until the queue fails.
func (w *worker) Run(f func(*ib.WC)) error {
	for {
		if err := w.reap(f); err != nil {
			return err
		}
		if _, err := w.cq.ReqNotify(ib.NotifyNextComp); err != nil { // want "arm: .* arms a completion queue after its last poll"
			return err
		}
		w.ch.Get()
	}
}

// Start runs a worker with a queue of n entries.
func Start(d *ib.Device, n int, f func(*ib.WC)) error {
	ch := &Channel{make(chan *ib.CQ, 1)}
	cq, err := ch.CreateCQ(d, n)
	if err != nil {
		return err
	}
	go func() { _ = (&worker{ch, cq}).Run(f) }()
	return nil
}
