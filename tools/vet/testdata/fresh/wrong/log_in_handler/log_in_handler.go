// Package log_in_handler: the completion handler logs to the standard logger, which the package has set to a file.
package log_in_handler

import (
	"log"
	"os"

	"verbena/ib"
)

// Start sends the log to a file.
func Start(path string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	log.SetOutput(f)
	return nil
}

type Consumer struct{ errs int }

// Make makes the queue.
func (c *Consumer) Make(d *ib.Device) (*ib.CQ, error) {
	return d.CreateCQ(ib.CQInit{Entries: 2, Handler: c.handle, Event: func(cq *ib.CQ, e ib.EventType) { c.errs++ }})
}

func (c *Consumer) handle(cq *ib.CQ) {
	wc := make([]ib.WC, 2)
	if n, err := cq.Poll(wc); err != nil {
		log.Printf("poll: %d %v", n, err) // want "nosleep"
	}
}
