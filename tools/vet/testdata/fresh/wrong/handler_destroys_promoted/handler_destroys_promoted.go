// Package handler_destroys_promoted: the completion handler destroys a queue pair by a method that is promoted through two embeddings.
package handler_destroys_promoted

import (
	"verbena/ib"
)

type base struct{ *ib.QP }

type session struct {
	base
	failed bool
}

// Open makes the session's queue.
func Open(d *ib.Device, qp *ib.QP) (*ib.CQ, error) {
	s := &session{base: base{qp}}
	return d.CreateCQ(ib.CQInit{Entries: 4, Handler: s.done})
}

func (s *session) done(cq *ib.CQ) {
	var wc [4]ib.WC
	n, _ := cq.Poll(wc[:])
	for i := range n {
		if wc[i].Status != ib.WCSuccess {
			s.failed = true
		}
	}
	if s.failed {
		_ = s.Destroy() // want "nosleep"
	}
}
