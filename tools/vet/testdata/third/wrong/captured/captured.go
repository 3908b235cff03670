// Package captured: closures call captured parameters of their enclosing functions.
package captured

import (
	"context"
	"sync"
	"time"

	"verbena/ib"
	"verbena/ib/completion"
	"verbena/umem"
)

func open(d *ib.Device, f func(int)) (*ib.CQ, error) {
	return d.CreateCQ(ib.CQInit{Entries: 16, Handler: func(*ib.CQ) { f(1) }})
}

func openSlow(d *ib.Device) (*ib.CQ, error) {
	return open(d, func(int) { time.Sleep(1) }) // want "nosleep: .*open.1, .* may sleep: it calls time.Sleep"
}

func openQuick(d *ib.Device) (*ib.CQ, error) { return open(d, func(int) {}) }

// onEvent keeps the closure in a variable, and tests the parameter.
func onEvent(d *ib.Device, f func()) func() {
	g := f
	handler := func(ib.Event) {
		if g != nil {
			g()
		}
	}
	return d.OnEvent(handler)
}

func eventSlow(d *ib.Device, c chan int) func() {
	return onEvent(d, func() { c <- 1 }) // want "nosleep: .* may sleep: it sends to a channel"
}

type conn struct{ qp *completion.QP }

func dial(d *ib.Device, pd *ib.PD) (*conn, error) {
	cq, err := completion.New(d, completion.Init{Entries: 8, Context: completion.Callback})
	if err != nil {
		return nil, err
	}
	qp, err := cq.CreateQP(pd, ib.QPInitAttr{})
	return &conn{qp}, err
}

func (c *conn) post(f func(error)) error {
	return c.qp.PostSend(ib.SendWR{}, func(*ib.WC) { f(nil) })
}

func (c *conn) call(out chan error) error {
	return c.post(func(err error) { out <- err }) // want "nosleep: .* may sleep: it sends to a channel"
}

// both runs the closure itself or on a goroutine.
func both(ctx context.Context, f func()) {
	run := func() { f() }
	if ctx.Done() == nil {
		run()
		return
	}
	go func() { run() }()
}

func bothSlow(d *ib.Device) func() {
	return d.OnEvent(func(ib.Event) {
		both(context.Background(), func() { time.Sleep(2) }) // want "nosleep: .* may sleep: it calls time.Sleep"
	})
}

func locked(mu *sync.Mutex, f func() error) func() error {
	return func() error {
		mu.Lock()
		defer mu.Unlock()
		return f() // want "copy: .* with mu held"
	}
}

type qp struct {
	ib.DriverQP
	mu   sync.Mutex
	r    *umem.Region
	head [64]byte
	run  func() error
}

func newQP(d ib.DriverQP, r *umem.Region) *qp {
	q := &qp{DriverQP: d, r: r}
	q.run = locked(&q.mu, func() error { return q.r.ReadV([][]byte{q.head[:]}, 0) })
	return q
}

func (q *qp) PostSend(w []ib.SendWR) (int, error) { return len(w), q.run() }
