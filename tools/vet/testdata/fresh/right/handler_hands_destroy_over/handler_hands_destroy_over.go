// Package handler_hands_destroy_over: the completion handler has a goroutine destroy the queue pair.
package handler_hands_destroy_over

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
		if wc[i].Status != ib.WCSuccess && !s.failed {
			s.failed = true
			go s.end()
		}
	}
}

func (s *session) end() { _ = s.Destroy() }
