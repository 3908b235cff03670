package ibtest

import (
	"sync/atomic"

	"verbena/ib"
)

// Point 1: some methods never sleep and may be called from any context.

var noSleepChecks = []ruleTest{
	{
		name: "NoSleep/CallsInHandler",
		rule: "post, poll, request notify, address handles and dispatching events work from a completion handler",
		test: func(e *testEnv) { testCallsInCallback(e, false) },
	},
	{
		name: "NoSleep/CallsInEventHandler",
		rule: "they work from the function for asynchronous events as well",
		test: func(e *testEnv) { testCallsInCallback(e, true) },
	},
	{
		name: "NoSleep/SetErrorInHandler",
		rule: "a device can be put in error from a completion handler",
		test: testSetErrorInHandler,
	},
}

func testCallsInCallback(e *testEnv, onEvent bool) {
	var p *pair
	var ah *ib.AH
	var done atomic.Bool
	body := func() {
		if done.Load() {
			return
		}
		defer done.Store(true)
		expect := func(what string, n, want int, err error) {
			if n != want || err != nil {
				e.Errorf("%s in a callback: %d of %d, %v", what, n, want, err)
			}
		}
		n, err := p.qps[0].PostRecv(ib.RecvWR{ID: 2, SGList: p.buf[0].newSGL(0, 8)})
		expect("post receive", n, 1, err)
		n, err = p.qps[1].PostSend(ib.SendWR{ID: 2, Opcode: ib.WRSend, SGList: p.buf[1].newSGL(0, 8)})
		expect("post send", n, 1, err)
		_, err = p.cqs[1].Poll(make([]ib.WC, 4))
		expect("poll", 0, 0, err)
		_, err = p.cqs[1].ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
		expect("request notify", 0, 0, err)
		if s := p.qps[0].State(); s != ib.QPRTS {
			e.Errorf("state in a callback is %v", s)
		}
		e.handle.DispatchEvent(ib.EventPortActive, 1)
		if ah == nil {
			return
		}
		a := e.connector.ownAddress()
		x, err := p.pd.CreateAH(&a)
		if err != nil {
			e.Errorf("create address handle in a callback: %v", err)
			return
		}
		_, err = x.Query()
		expect("query address handle", 0, 0, err)
		expect("modify address handle", 0, 0, x.Modify(&a))
		expect("destroy address handle", 0, 0, x.Destroy())
	}
	p = e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) {
		if !onEvent {
			body()
		}
	}}})
	a := e.connector.ownAddress()
	if x, err := p.pd.CreateAH(&a); err == nil {
		ah = destroyAtEnd(e, x, x.Destroy)
	}
	if onEvent {
		stop := e.dev.OnEvent(func(ib.Event) { body() })
		defer stop()
		e.handle.DispatchEvent(ib.EventPortActive, 1)
	} else {
		_, err := p.cqs[1].ReqNotify(ib.NotifyNextComp)
		e.must("request notify", err)
		p.postRecv(1, 1, 0, 8)
		p.postSend(0, 1, 8)
	}
	e.eventually("the callback", done.Load)
	e.eventually("the message that it sent", func() bool {
		wc := make([]ib.WC, 1)
		n, err := p.cqs[0].Poll(wc)
		e.must("poll", err)
		return n == 1 && wc[0].Opcode == ib.WCRecv && wc[0].ID == 2
	})
}

func testSetErrorInHandler(e *testEnv) {
	var done atomic.Bool
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) {
		e.handle.SetError()
		done.Store(true)
	}}})
	_, err := p.cqs[1].ReqNotify(ib.NotifyNextComp)
	e.must("request notify", err)
	p.postRecv(1, 1, 0, 8)
	p.postSend(0, 1, 8)
	e.eventually("the handler", done.Load)
	if s := e.dev.State(); s != ib.DeviceError {
		e.Errorf("device is %v", s)
	}
}
