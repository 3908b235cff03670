// Package iteration waits in each iteration, or replaces the objects.
package iteration

import (
	"context"

	"verbena/ib"
	"verbena/verbs"
)

func stream(qp *verbs.QP, cq *verbs.CQ, mr *verbs.MR, wc []verbs.WC) error {
	for i := range 8 {
		mr.Bytes()[0] = byte(i)
		if err := qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: mr.SGE(0, 64)}); err != nil {
			return err
		}
		if _, err := cq.Wait(context.Background(), wc); err != nil {
			return err
		}
	}
	return nil
}

// batch waits for every second message only, because the halves alternate.
func batch(qp *verbs.QP, cq *verbs.CQ, mr *verbs.MR, wc []verbs.WC) error {
	for i := range 8 {
		half := i % 2 * 32
		mr.Bytes()[half] = byte(i)
		if err := qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: mr.SGE(half, 32)}); err != nil {
			return err
		}
		if i == 0 {
			continue
		}
		if _, err := cq.Wait(context.Background(), wc); err != nil {
			return err
		}
	}
	return nil
}

func retry(pd *ib.PD, qp *ib.QP, init ib.QPInitAttr, wr ib.SendWR) (err error) {
	for range 3 {
		if _, err = qp.PostSend(wr); err == nil {
			return nil
		}
		_ = qp.Destroy()
		if qp, err = pd.CreateQP(init); err != nil {
			return err
		}
	}
	return err
}

type link struct{ qp *ib.QP }

// destroy repeats the end until it succeeds.
func (l *link) destroy() {
	for l.qp.Destroy() != nil {
	}
}

type sender struct {
	qp       *verbs.QP
	cq       *verbs.CQ
	mr       *verbs.MR
	inFlight int
}

// send waits in a loop at the beginning of each iteration.
func (s *sender) send(ctx context.Context, n int) error {
	wcs := make([]verbs.WC, 1)
	for i := range n {
		for s.inFlight > 0 {
			if _, err := s.cq.Wait(ctx, wcs); err != nil {
				return err
			}
			s.inFlight--
		}
		s.mr.Bytes()[0] = byte(i)
		if err := s.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: s.mr.SGE(0, 8)}); err != nil {
			return err
		}
		s.inFlight++
	}
	return nil
}

func (l *link) tryDestroy() bool {
	if err := l.qp.Destroy(); err != nil {
		return false
	}
	return true
}

// salvage uses the queue pair only if its end has failed.
func (l *link) salvage(attr ib.SendWR) error {
	if l.tryDestroy() {
		return nil
	}
	_, err := l.qp.PostSend(attr)
	return err
}
