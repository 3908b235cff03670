package pulled

import (
	"iter"

	"verbena/ib"
)

type stream struct {
	next func() (ib.WC, bool)
	stop func()
}

func completions(c chan ib.WC) iter.Seq[ib.WC] {
	return func(yield func(ib.WC) bool) {
		for wc := range c { // want "nosleep: .*may sleep: it receives from a channel"
			if !yield(wc) {
				return
			}
		}
	}
}

func newStream(c chan ib.WC) *stream {
	s := &stream{}
	s.next, s.stop = iter.Pull(completions(c))
	return s
}

func Make(d *ib.Device, c chan ib.WC) {
	s := newStream(c)
	d.CreateCQ(ib.CQInit{Handler: func(*ib.CQ) { s.next() }})
}
