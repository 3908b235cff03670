// Package taken_reply takes the channel of a waiter out of a map, in a helper.
package taken_reply

import (
	"errors"
	"sync"

	"verbena/ib"
	"verbena/ib/completion"
)

type answer struct{ err error }

type waiters struct {
	mu   sync.Mutex
	last uint64
	of   map[uint64]chan answer
}

func (w *waiters) add() (uint64, <-chan answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	c := make(chan answer, 1)
	w.of[w.last] = c
	return w.last, c
}

func (w *waiters) take(id uint64) chan answer {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.of[id]
	delete(w.of, id)
	return c
}

// Client waits for its requests.
type Client struct {
	qp *completion.QP
	waiters
}

// NewClient returns a client.
func NewClient(qp *completion.QP) *Client {
	return &Client{qp: qp, waiters: waiters{of: map[uint64]chan answer{}}}
}

func (c *Client) done(wc *ib.WC) {
	waiter := c.take(wc.ID)
	if waiter == nil {
		return
	}
	if wc.Status != ib.WCSuccess {
		waiter <- answer{errors.New(wc.Status.String())}
		return
	}
	waiter <- answer{}
}

// Send sends a message, and waits.
func (c *Client) Send() error {
	id, reply := c.add()
	if err := c.qp.PostSend(ib.SendWR{ID: id, Opcode: ib.WRSend}, c.done); err != nil {
		c.take(id)
		return err
	}
	return (<-reply).err
}
