// Package errgroup_wait: the queue pair's event function starts threads and waits for them.
package errgroup_wait

import (
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"verbena/ib"
)

type Mover struct{ paths []string }

// Make makes a queue pair that moves its paths when it fails.
func (m *Mover) Make(pd *ib.PD, cq *ib.CQ) (*ib.QP, error) {
	init := ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC}
	init.Event = m.event
	return pd.CreateQP(init)
}

func (m *Mover) event(qp *ib.QP, e ib.EventType) {
	var g errgroup.Group
	var moved atomic.Int32
	for range m.paths {
		g.Go(func() error {
			moved.Add(1)
			return nil
		})
	}
	_ = g.Wait() // want "nosleep"
}
