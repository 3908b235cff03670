// Package promised: methods of optional interfaces, and functions of handles, that may not sleep.
package promised

import (
	"net"
	"sync"

	"verbena/ib"
)

type driver struct {
	ib.Driver
	credit  chan struct{}
	methods chan []ib.DriverMethod
}

func (d *driver) CreateCQ(h ib.CQHandle, a ib.CQAttr, u *ib.Udata) (ib.DriverCQ, error) {
	return d.Driver.CreateCQ(h.Redirect(func() {
		<-d.credit // want "nosleep: .*Redirect, may sleep: it receives from a channel"
		h.Completed()
	}), a, u)
}

func (d *driver) CreateQP(h ib.QPHandle, i *ib.DriverQPInit, u *ib.Udata) (ib.DriverQP, error) {
	raise := func(e ib.EventType) {
		d.credit <- struct{}{} // want "nosleep: .*Redirect, may sleep: it sends to a channel"
		h.Raise(e)
	}
	if u != nil {
		raise = func(e ib.EventType) { h.Raise(e) }
	}
	return d.Driver.CreateQP(h.Redirect(raise), i, u)
}

func (d *driver) keys(h ib.MRHandle) ib.MRHandle { return h.Redirect(d.set) }

func (d *driver) set(lkey, rkey uint32) {
	d.credit <- struct{}{} // want "nosleep: .*Redirect, may sleep: it sends to a channel"
}

func (d *driver) Methods() []ib.DriverMethod {
	return <-d.methods // want "nosleep: .*implements ib.MethodDriver.Methods, may sleep: it receives from a channel"
}

func (d *driver) stop(h *ib.DeviceHandle) {
	h.AtHandler(func() {
		<-d.credit // want "nosleep: .*AtHandler, may sleep: it receives from a channel"
	})
}

type cq struct {
	ib.DriverCQ
	mu sync.RWMutex
	n  int
	in ib.CQResizer
}

func (c *cq) Waiting() int {
	c.mu.RLock() // want "nosleep: .*implements ib.CQCounter.Waiting, may sleep: it locks promised.cq.mu"
	defer c.mu.RUnlock()
	return c.n
}

func (c *cq) Resize(entries int, u *ib.Udata) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.in.Resize(entries, u)
}

type qp struct {
	ib.UserQP
	ask  chan ib.QPAttr
	send *send
}

func (q *qp) Peek() ib.QPAttr {
	return <-q.ask // want "nosleep: .*implements ib.QPPeeker.Peek, may sleep: it receives from a channel"
}

func (q *qp) Doorbell(h *ib.Hold) {
	q.UserQP.Doorbell(h)
	if h != nil {
		h.OnStall(q.send)
		h.Defer(q.send)
	}
}

type send struct {
	c net.Conn
	b []byte
}

func (s *send) Run() {
	_, _ = s.c.Write(s.b) // want "nosleep: .*implements ib.Work.Run, may sleep"
}

func (s *send) Stalled() {
	_ = s.c.Close() // want "nosleep: .*implements ib.Staller.Stalled, may sleep"
}

type userContext struct {
	ib.UserContext
	faults chan ib.LibraryFault
}

func (c *userContext) LibraryFault(f ib.LibraryFault) {
	c.faults <- f // want "nosleep: .*implements ib.LibraryFaulter.LibraryFault, may sleep: it sends to a channel"
}
