// Package log_by_worker: the completion handler offers a line to a goroutine that logs.
package log_by_worker

import (
	"log"
	"sync/atomic"

	"verbena/ib"
)

type Consumer struct {
	lines chan string
	lost  atomic.Int64
}

// Make makes the queue.
func (c *Consumer) Make(d *ib.Device) (*ib.CQ, error) {
	c.lines = make(chan string, 16)
	go func() {
		for l := range c.lines {
			log.Print(l)
		}
	}()
	return d.CreateCQ(ib.CQInit{Entries: 2, Handler: c.handle})
}

func (c *Consumer) handle(cq *ib.CQ) {
	wc := make([]ib.WC, 2)
	if _, err := cq.Poll(wc); err != nil {
		c.say("poll: failed")
	}
}

func (c *Consumer) say(l string) {
	select {
	case c.lines <- l:
	default:
		c.lost.Add(1)
	}
}
