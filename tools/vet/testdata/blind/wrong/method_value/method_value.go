package method_value

import (
	"verbena/ib"
)

type worker struct{ idle chan struct{} }

func (w *worker) drain() { <-w.idle } // want "nosleep: .*may sleep: it receives from a channel"

type ops struct {
	flush func()
	kick  func()
}

type qp struct {
	ib.DriverQP
	ops *ops
}

func (w *worker) ops() *ops { return &ops{flush: w.drain, kick: func() {}} }

func newQP(w *worker) *qp { return &qp{ops: w.ops()} }

func (q *qp) PostRecv(wrs []ib.RecvWR) (int, error) {
	q.ops.kick()
	q.ops.flush()
	return len(wrs), nil
}
