package ibtest

import (
	"fmt"
	"sync"
	"syscall"

	"verbena/ib"
)

// lateCalls wraps a driver, and can hold a call between the midlayer and the driver. A slow thread has the same effect.
type lateCalls struct {
	ib.Driver
	mu   sync.Mutex
	held string        // name of the call to hold, or ""
	at   chan struct{} // closed once the call is held
	goOn chan struct{} // the call continues when it is closed
}

// Unwrap returns the wrapped driver. See ib.As.
func (d *lateCalls) Unwrap() ib.Driver { return d.Driver }

// hold makes the next call with the name wait. It returns a channel that is closed once a call waits, and a function
// that ends the wait.
func (d *lateCalls) hold(call string) (at <-chan struct{}, release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held, d.at, d.goOn = call, make(chan struct{}), make(chan struct{})
	return d.at, sync.OnceFunc(func() { close(d.goOn) })
}

func (d *lateCalls) enter(call string) {
	d.mu.Lock()
	if d.held != call {
		d.mu.Unlock()
		return
	}
	d.held = ""
	at, goOn := d.at, d.goOn
	d.mu.Unlock()
	close(at)
	<-goOn
}

// CreateQP implements ib.Driver.
func (d *lateCalls) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, u *ib.Udata) (ib.DriverQP, error) {
	d.enter("create")
	q, err := d.Driver.CreateQP(h, init, u)
	if err != nil {
		return nil, err
	}
	return &lateQP{q, d}, nil
}

// lateQP is a queue pair of lateCalls.
type lateQP struct {
	ib.DriverQP
	dev *lateCalls
}

// Unwrap returns the wrapped queue pair. See ib.As.
func (q *lateQP) Unwrap() ib.DriverQP { return q.DriverQP }

// Modify implements ib.DriverQP.
func (q *lateQP) Modify(a *ib.QPAttr, mask ib.QPAttrMask, u *ib.Udata) error {
	q.dev.enter("modify")
	return q.DriverQP.Modify(a, mask, u)
}

// testLateCalls delays each call until EnterError has returned. Afterwards the queue pair must not work. Late posts
// need no test: DeviceError/NoNewWork posts in error.
func testLateCalls(e *testEnv) {
	for _, c := range []struct {
		call string
		from ib.QPState // the queue pair's state
	}{
		{"create", ib.QPReset},
		{"modify", ib.QPReset},
		{"modify", ib.QPInit},
		{"modify", ib.QPRTR},
	} {
		func() {
			s := &cleanupScope{TB: e.TB}
			defer s.runCleanups()
			fresh := newTestEnv(s, e.cfg, e.checked)
			late := &lateCalls{}
			fresh.handle.Wrap(func(d ib.Driver) ib.Driver {
				late.Driver = d
				return late
			})
			fresh.registerDevice()
			testLateCall(fresh, late, c.call, c.from)
		}()
	}
}

func testLateCall(e *testEnv, late *lateCalls, call string, from ib.QPState) {
	what := fmt.Sprintf("a call (%s, in %v) that reached the driver after the device went into error", call, from)
	pd, cq := e.newPD(), e.newCQ(8, nil)
	buf := e.newBuffer(pd, 64, allAccess)
	create := func() (*ib.QP, error) {
		return pd.CreateQP(ib.QPInitAttr{
			SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC,
			Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
		})
	}
	var qp *ib.QP
	modify := func() error {
		s := qp.State() + 1
		return qp.Modify(e.connector.newQPAttr(s, qp.Num()), transitionMask(ib.QPTypeRC, s))
	}
	calls := map[string]func() error{
		"create": func() (err error) {
			qp, err = create()
			return err
		},
		"modify": modify,
	}
	if call != "create" {
		var err error
		qp, err = create()
		e.must("create a queue pair", err)
		for qp.State() != from {
			e.must("modify", modify())
		}
	}
	at, release := late.hold(call)
	result := make(chan error, 1)
	go func() { result <- calls[call]() }()
	select {
	case <-at:
	case err := <-result:
		e.Fatalf("%s: the call did not reach the driver: %v", call, err)
	}
	e.handle.SetError()
	release()
	if err := <-result; err != nil {
		e.wantErrno(what, err, syscall.EIO)
	}
	if qp != nil {
		destroyAtEnd(e, qp, qp.Destroy)
		state := qp.State()
		recvs, _ := qp.PostRecv(ib.RecvWR{ID: 1, SGList: buf.newSGL(0, 8)})
		sends, _ := qp.PostSend(ib.SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: buf.newSGL(8, 8)})
		accepted := recvs + sends
		e.eventually(fmt.Sprintf("%d flush errors after %s; the queue pair is in %v", accepted, what, state), func() bool {
			var wc [2]ib.WC
			n, err := cq.Poll(wc[:])
			e.must("poll", err)
			for _, c := range wc[:n] {
				if c.Status != ib.WCWRFlushErr {
					e.Fatalf("%s: work request completed with %q, want %q", what, c.Status, ib.WCWRFlushErr)
				}
			}
			accepted -= n
			return accepted <= 0
		})
	}
}
