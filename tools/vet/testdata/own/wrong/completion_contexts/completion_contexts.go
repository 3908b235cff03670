package completion_contexts

import (
	"time"

	"verbena/ib"
	"verbena/ib/completion"
)

type session struct {
	slow, fast *completion.CQ
	qp         *completion.QP
	out        chan int
}

func newCQ(d *ib.Device, in completion.Context) (*completion.CQ, error) {
	init := completion.Init{Entries: 4}
	init.Context = in
	return completion.New(d, init)
}

// Open makes a queue pair that sends on a worker and receives in the handler.
func (s *session) Open(d *ib.Device, pd *ib.PD) {
	s.slow, _ = newCQ(d, completion.Worker)
	s.fast, _ = newCQ(d, completion.Callback)
	s.qp, _ = completion.NewQP(pd, ib.QPInitAttr{}, s.slow, s.fast)
	s.qp.PostSend(ib.SendWR{}, s.sent)
	s.post(s.qp.PostRecv)
	s.direct(d, pd)
}

func (s *session) post(recv func(ib.RecvWR, completion.Done) error) { recv(ib.RecvWR{}, s.received) }

func (s *session) sent(*ib.WC)     { s.out <- 1 }
func (s *session) received(*ib.WC) { s.out <- 2 } // want "nosleep: .*may sleep: it sends to a channel"

func (s *session) direct(d *ib.Device, pd *ib.PD) {
	cq, _ := completion.New(d, completion.Init{Entries: 3, Failed: func(error) { time.Sleep(3) }}) // want "nosleep: .*may sleep: it calls time.Sleep"
	qp, _ := cq.CreateQP(pd, ib.QPInitAttr{})
	qp.PostRecv(ib.RecvWR{}, func(*ib.WC) { s.out <- 3 }) // want "nosleep: .*may sleep: it sends to a channel"
	d.CreateCQ(ib.CQInit{Handler: func(*ib.CQ) { cq.Process(5) }})
}
