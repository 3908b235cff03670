package state_spin

import (
	"verbena/ib"
)

func Make(pd *ib.PD, other *ib.QP) {
	pd.CreateQP(ib.QPInitAttr{Event: func(q *ib.QP, e ib.EventType) {
		for other.State() != ib.QPErr { // want "nosleep: .*may sleep: it spins until another goroutine has done something"
		}
	}})
}
