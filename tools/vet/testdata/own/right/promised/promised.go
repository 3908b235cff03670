// Package promised: types with methods that only have the names and signatures of methods that may not sleep, and
// functions of handles that call the midlayer in the callchain of a method.
package promised

import "verbena/ib"

// worker is no ib.Work, although it has the method Run.
type worker struct{ in chan func() }

func (w *worker) Run() {
	for f := range w.in {
		f()
	}
}

// line is no ib.CQCounter and no ib.Staller.
type line struct{ asked chan int }

func (l *line) Waiting() int { return <-l.asked }
func (l *line) Stalled()     { <-l.asked }

// mirror is no driver's queue pair, and so no ib.QPPeeker.
type mirror struct{ attrs chan ib.QPAttr }

func (m *mirror) Peek() ib.QPAttr { return <-m.attrs }

// log reports faults, but is no ib.UserContext.
type log struct{ faults chan ib.LibraryFault }

func (l *log) LibraryFault(f ib.LibraryFault) { l.faults <- f }

type driver struct {
	ib.Driver
	raised chan ib.EventType
}

func (d *driver) CreateCQ(h ib.CQHandle, a ib.CQAttr, u *ib.Udata) (ib.DriverCQ, error) {
	return d.Driver.CreateCQ(h.Redirect(h.Completed), a, u)
}

func (d *driver) CreateQP(h ib.QPHandle, i *ib.DriverQPInit, u *ib.Udata) (ib.DriverQP, error) {
	return d.Driver.CreateQP(h.Redirect(func(e ib.EventType) {
		select {
		case d.raised <- e:
		default:
		}
		h.Raise(e)
	}), i, u)
}

type qp struct {
	ib.DriverQP
	h ib.QPHandle
}

func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	q.h.Raise(ib.EventQPFatal)
	return q.DriverQP.PostSend(wrs)
}

func newQP(h ib.QPHandle, in ib.DriverQP) ib.DriverQP {
	return &qp{in, h.Redirect(func(e ib.EventType) { h.Raise(e) })}
}

type brief struct{ n int }

func (b *brief) Run() { b.n++ }

func deferred(h *ib.Hold, b *brief) { h.Defer(b) }
