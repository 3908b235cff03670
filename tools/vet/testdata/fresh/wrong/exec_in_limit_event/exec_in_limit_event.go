// Package exec_in_limit_event: the limit event of a shared receive queue runs a program, through a strategy.
package exec_in_limit_event

import (
	"os/exec"

	"verbena/ib"
)

type strategy interface{ low(srq *ib.SRQ) }

type ignore struct{}

func (ignore) low(*ib.SRQ) {}

type command struct{ name string }

func (c command) low(*ib.SRQ) {
	_ = exec.Command(c.name).Run() // want "nosleep"
}

func choose(name string) strategy {
	if name == "" {
		return ignore{}
	}
	return command{name}
}

// Make makes a shared receive queue that tells when it is low.
func Make(pd *ib.PD, name string) (*ib.SRQ, error) {
	st := choose(name)
	return pd.CreateSRQ(ib.SRQInitAttr{Type: ib.SRQBasic, Attr: ib.SRQAttr{MaxWR: 64, MaxSGE: 1, Limit: 8},
		Event: func(srq *ib.SRQ, e ib.EventType) {
			if e == ib.EventSRQLimitReached {
				st.low(srq)
			}
		}})
}
