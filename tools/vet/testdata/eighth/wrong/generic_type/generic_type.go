// Package generic_type has a generic exported type, of which only the constructor is used.
package generic_type

import (
	"time"

	"verbena/ib"
	"verbena/ib/completion"
)

// L is a link.
type L[T any] struct {
	qp *completion.QP
	v  T
}

// New makes a link.
func New(d *ib.Device, pd *ib.PD) (*L[int], error) {
	cq, err := completion.New(d, completion.Init{Entries: 8, Context: completion.Callback})
	if err != nil {
		return nil, err
	}
	qp, err := cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC, Cap: ib.QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
	return &L[int]{qp: qp}, err
}

// Send sends.
func (l *L[T]) Send(s ib.SGE) error {
	return l.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: []ib.SGE{s}}, func(wc *ib.WC) {
		if wc.Status != ib.WCSuccess {
			time.Sleep(time.Second) // want "nosleep: .* calls time.Sleep"
		}
	})
}
