// Package goroutines_not_awaited: the queue pair's event function starts threads; another place waits for them.
package goroutines_not_awaited

import (
	"sync"

	"verbena/ib"
)

type Mover struct {
	paths   []string
	running sync.WaitGroup
}

// Make makes a queue pair that moves its paths when it fails.
func (m *Mover) Make(pd *ib.PD, cq *ib.CQ) (*ib.QP, error) {
	init := ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC}
	init.Event = m.event
	return pd.CreateQP(init)
}

func (m *Mover) event(qp *ib.QP, e ib.EventType) {
	for range m.paths {
		m.running.Add(1)
		go func() {
			defer m.running.Done()
			_, _, _ = qp.Query(ib.QPAttrState)
		}()
	}
}

// Close waits for the threads.
func (m *Mover) Close(qp *ib.QP) error {
	m.running.Wait()
	return qp.Destroy()
}
