// Package helper_package: functions that may not sleep use only functions of the helper packages that do not sleep, or
// pass the others to a goroutine.
package helper_package

import (
	"context"

	"verbena/ib"
	"verbena/ib/attach"
	"verbena/ib/completion"
)

type session struct {
	qp  *completion.QP
	a   *attach.Attachment[*ib.QP]
	end chan struct{}
}

func open(d *ib.Device, pd *ib.PD, a *attach.Attachment[*ib.QP]) error {
	cq, err := completion.New(d, completion.Init{Entries: 4, Context: completion.Callback})
	if err != nil {
		return err
	}
	s := &session{a: a, end: make(chan struct{}, 1)}
	if s.qp, err = cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC}); err != nil {
		return err
	}
	go s.close()
	return s.qp.PostSend(ib.SendWR{Opcode: ib.WRSend}, s.done)
}

func (s *session) close() {
	<-s.end
	_ = s.qp.Close(context.Background())
}

func (s *session) done(wc *ib.WC) {
	if wc.Status == ib.WCSuccess {
		_ = s.qp.PostSend(ib.SendWR{Opcode: ib.WRSend}, s.done)
		return
	}
	if _, ok := s.a.TryAcquire(); ok {
		s.a.Release()
	}
	select {
	case s.end <- struct{}{}:
	default:
	}
}
