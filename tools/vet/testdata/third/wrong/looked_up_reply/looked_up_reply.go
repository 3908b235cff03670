// Package looked_up_reply sends to the channel of a waiter, which stays in the map.
package looked_up_reply

import (
	"sync"

	"verbena/ib"
	"verbena/ib/completion"
)

// Client waits for its requests.
type Client struct {
	qp *completion.QP
	mu sync.Mutex
	of map[uint64]chan ib.WCStatus
}

// NewClient returns a client.
func NewClient(qp *completion.QP) *Client { return &Client{qp: qp, of: map[uint64]chan ib.WCStatus{}} }

func (c *Client) find(id uint64) (chan ib.WCStatus, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.of[id]
	return w, ok
}

func (c *Client) add(id uint64) chan ib.WCStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := make(chan ib.WCStatus, 1)
	c.of[id] = w
	return w
}

func (c *Client) done(wc *ib.WC) {
	if w, ok := c.find(wc.ID); ok {
		w <- wc.Status // want "nosleep: .*sends to a channel"
	}
}

// Send sends n messages with one identity, and waits for the first.
func (c *Client) Send(id uint64, n int) error {
	w := c.add(id)
	for range n {
		if err := c.qp.PostSend(ib.SendWR{ID: id, Opcode: ib.WRSend}, c.done); err != nil {
			return err
		}
	}
	<-w
	return nil
}
