// Package limit2 arms the limit again on a goroutine.
package limit2

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type waking struct {
	cq  *completion.CQ
	srq *ib.SRQ
	low chan struct{}
}

func newWaking(cq *completion.CQ) *waking { return &waking{cq: cq, low: make(chan struct{}, 1)} }

func (w *waking) create(pd *ib.PD) (err error) {
	w.srq, err = pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 16, MaxSGE: 1}, Event: func(_ *ib.SRQ, e ib.EventType) {
		switch e {
		case ib.EventSRQLimitReached:
			select {
			case w.low <- struct{}{}:
			default:
			}
		}
	}})
	return err
}

func (w *waking) arm() error {
	return w.srq.Modify(ib.SRQAttr{Limit: 4}, ib.SRQAttrLimit)
}

func (w *waking) fill() { _ = w.cq.PostSRQ(w.srq, ib.RecvWR{}, nil) }

// open creates and arms the queue in helpers.
func (w *waking) open(pd *ib.PD) error {
	if err := w.create(pd); err != nil {
		return err
	}
	w.fill()
	go func() {
		for range w.low {
			w.fill()
			if w.arm() != nil {
				return
			}
		}
	}()
	return w.arm()
}
