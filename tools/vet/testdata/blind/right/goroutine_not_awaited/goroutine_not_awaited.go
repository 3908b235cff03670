package goroutine_not_awaited

import (
	"sync"
	"time"

	"verbena/ib"
)

type session struct {
	wg sync.WaitGroup
	qp *ib.QP
}

func (s *session) event(q *ib.QP, e ib.EventType) {
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		s.qp.Destroy()
	}()
	s.wg.Go(func() { time.Sleep(time.Second) })
	time.AfterFunc(time.Second, func() { s.qp.Destroy() })
}

func Make(pd *ib.PD, s *session) { pd.CreateQP(ib.QPInitAttr{Event: s.event}) }
