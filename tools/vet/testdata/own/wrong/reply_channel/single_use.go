package reply_channel

import (
	"verbena/ib"
	"verbena/ib/completion"
)

// Ring keeps its channel after a send, so a second end waits.
type Ring struct {
	qp  *completion.QP
	end chan error
}

func (r *Ring) finish() {
	r.end <- nil // want "nosleep: .*sends to a channel"
}

func (r *Ring) Run() error {
	end := make(chan error, 1)
	r.end = end
	for range 2 {
		r.qp.PostRecv(ib.RecvWR{}, func(*ib.WC) { r.finish() })
	}
	return <-end
}

// Rendezvous has a channel without space.
type Rendezvous struct {
	qp  *completion.QP
	end chan error
}

func (r *Rendezvous) Run() error {
	end := make(chan error)
	r.end = end
	r.qp.PostRecv(ib.RecvWR{}, func(*ib.WC) {
		r.end <- nil // want "nosleep: .*sends to a channel"
		r.end = nil
	})
	return <-end
}

// Couple takes the channel out of the other field.
type Couple struct {
	qp       *completion.QP
	one, two chan error
}

func (c *Couple) finish() {
	c.one <- nil // want "nosleep: .*sends to a channel"
	c.two = nil
}

func (c *Couple) Run() error {
	end := make(chan error, 1)
	c.one = end
	for range 2 {
		c.qp.PostRecv(ib.RecvWR{}, func(*ib.WC) { c.finish() })
	}
	return <-end
}

// Shared is in two fields, so it can get two elements.
type Shared struct {
	qp       *completion.QP
	one, two chan error
}

func (s *Shared) Run() error {
	end := make(chan error, 1)
	s.one, s.two = end, end
	s.qp.PostRecv(ib.RecvWR{}, func(*ib.WC) {
		s.one <- nil // want "nosleep: .*sends to a channel"
		s.one = nil
	})
	s.qp.PostRecv(ib.RecvWR{}, func(*ib.WC) {
		s.two <- nil // want "nosleep: .*sends to a channel"
		s.two = nil
	})
	return <-end
}

// Table deletes another key.
type Table struct {
	qp      *completion.QP
	pending map[uint64]chan error
}

func (t *Table) finish(done, id uint64) {
	t.pending[done] <- nil // want "nosleep: .*sends to a channel"
	delete(t.pending, id)
}

func (t *Table) Run(id uint64) error {
	end := make(chan error, 1)
	t.pending[id] = end
	for range 2 {
		t.qp.PostRecv(ib.RecvWR{ID: id}, func(wc *ib.WC) { t.finish(wc.ID, id+1) })
	}
	return <-end
}
