package iter_seq

import (
	"iter"

	"verbena/ib"
)

type stream struct{ in chan ib.WC }

func (s *stream) completions() iter.Seq[ib.WC] {
	return func(yield func(ib.WC) bool) {
		for {
			wc, ok := <-s.in // want "nosleep: .*may sleep: it receives from a channel"
			if !ok || !yield(wc) {
				return
			}
		}
	}
}

func Make(d *ib.Device, s *stream) {
	d.CreateCQ(ib.CQInit{Handler: func(*ib.CQ) {
		for wc := range s.completions() {
			if wc.Status != ib.WCSuccess {
				return
			}
		}
	}})
}
