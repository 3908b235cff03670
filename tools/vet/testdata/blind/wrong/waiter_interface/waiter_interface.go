package waiter_interface

import (
	"sync"

	"verbena/ib"
)

type waiter interface{ Wait() }

type session struct {
	pending waiter
}

func newSession() *session {
	var wg sync.WaitGroup
	wg.Add(1)
	return &session{pending: &wg}
}

func (s *session) event(q *ib.QP, e ib.EventType) {
	s.pending.Wait() // want "nosleep: .*may sleep: it calls .*sync.WaitGroup.*Wait"
}

func Make(pd *ib.PD) {
	s := newSession()
	pd.CreateQP(ib.QPInitAttr{Event: s.event})
}
