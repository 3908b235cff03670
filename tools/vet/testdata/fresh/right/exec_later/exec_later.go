// Package exec_later: the limit event of a shared receive queue wakes a worker by a channel of one; the worker runs a program.
package exec_later

import (
	"os/exec"

	"verbena/ib"
)

type strategy interface{ low() }

type wake chan struct{}

func (w wake) low() {
	select {
	case w <- struct{}{}:
	default:
	}
}

func (w wake) work(name string) {
	for range w {
		_ = exec.Command(name).Run()
	}
}

// Make makes a shared receive queue that tells when it is low.
func Make(pd *ib.PD, name string) (*ib.SRQ, error) {
	w := make(wake, 1)
	go w.work(name)
	var st strategy = w
	return pd.CreateSRQ(ib.SRQInitAttr{Type: ib.SRQBasic, Attr: ib.SRQAttr{MaxWR: 64, MaxSGE: 1, Limit: 8},
		Event: func(srq *ib.SRQ, e ib.EventType) {
			if e == ib.EventSRQLimitReached {
				st.low()
			}
		}})
}
