package ibtest

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/ib/check"
)

// Point 5: registration and unregistration of devices and clients. All these tests register the device themselves.

var hotPlugChecks = []ruleTest{
	{
		name: "HotPlug/ReadyAtRegister",
		rule: "a client can use everything of the device as soon as its Add runs",
		test: testDeviceReadyInAdd, asleep: true,
	},
	{
		name: "HotPlug/UsableInRemove",
		rule: "the device is usable until Remove returns, and Remove may call the driver for everything",
		test: testDeviceUsableInRemove, asleep: true,
	},
	{
		name: "HotPlug/ReverseOrder",
		rule: "Remove comes in the reverse order of Add",
		test: testRemoveInReverseOrder, asleep: true,
	},
	{
		name: "HotPlug/LateClient",
		rule: "a client that comes later than the device, or goes earlier, is told as well",
		test: testLateClientIsAttached, asleep: true,
	},
	{
		name: "HotPlug/ClientDuringRegister",
		rule: "a client may be registered while a device is being registered, and gets it once",
		test: testClientDuringRegister, asleep: true,
	},
	{
		name: "HotPlug/UnregisterDuringAdd",
		rule: "a device may be unregistered while a client's Add runs, and waits for it",
		test: testUnregisterDuringAdd, asleep: true,
	},
	{
		name: "HotPlug/UnregisterUnderTraffic",
		rule: "a device may be unregistered while messages are on their way and handlers run",
		test: testUnregisterUnderTraffic, asleep: true, fast: true,
	},
	{
		name: "HotPlug/EventsUntilTheEnd",
		rule: "events that were dispatched before Unregister are delivered before it returns",
		test: testEventsBeforeUnregisterDelivered, asleep: true,
	},
	{
		name: "HotPlug/NoEventsAfterUnregister",
		rule: "when Unregister has returned the driver dispatches no event any more",
		test: testNoEventsAfterUnregister, asleep: true,
	},
	{
		name: "HotPlug/LeftBehindIsNamed",
		rule: "Unregister returns EBUSY and names what a client has left behind",
		test: testRemainingObjectsAreNamed, asleep: true,
	},
	{
		name: "HotPlug/NoUseAfterUnregister",
		rule: "when Unregister has returned nothing can be made on the device (ENODEV)",
		test: testNoUseAfterUnregister, asleep: true,
	},
}

// registerClient registers the client, and unregisters it at the end of the test.
func (e *testEnv) registerClient(cl *ib.Client) {
	e.Helper()
	e.must("register the client", e.core.RegisterClient(cl))
	e.Cleanup(func() { e.core.UnregisterClient(cl) })
}

// useAllObjects creates every object on the device, exchanges a message, and destroys the objects.
func useAllObjects(e *testEnv, when string) {
	e.Helper()
	e.connector.selectGID()
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) {}}})
	_, err := p.cqs[1].ReqNotify(ib.NotifyNextComp)
	e.must("request notify "+when, err)
	p.exchangeMessage(0, 1, 100)
	p.exchangeMessage(1, 2, 100)
	e.destroyPair(p)
}

func (e *testEnv) destroyPair(p *pair) {
	e.Helper()
	for _, x := range []any{p.qps[0], p.qps[1], p.cqs[0], p.cqs[1], p.buf[0].mr, p.buf[1].mr, p.pd} {
		e.destroy(x)
	}
	for _, b := range p.buf {
		e.must("remove memory", e.mem.Remove(b.addr))
	}
}

func testDeviceReadyInAdd(e *testEnv) {
	used := false
	e.registerClient(&ib.Client{
		Name: "first",
		Add: func(d *ib.Device) (any, error) {
			_, err := d.QueryDevice()
			e.must("query device in Add", err)
			useAllObjects(e, "in Add")
			used = true
			return nil, nil
		},
		Remove: func(*ib.Device, any) {},
	})
	e.registerDevice()
	if !used {
		e.Error("Register returned before Add had run")
	}
}

func testDeviceUsableInRemove(e *testEnv) {
	var p *pair
	removed := false
	e.registerClient(&ib.Client{
		Name: "user",
		Add: func(d *ib.Device) (any, error) {
			e.connector.selectGID()
			p = e.newPair(pairConfig{kind: ib.QPTypeRC})
			return p, nil
		},
		Remove: func(d *ib.Device, data any) {
			data.(*pair).exchangeMessage(0, 1, 100)
			useAllObjects(e, "in Remove")
			p.postRecv(1, 5, 0, 8) // outstanding requests do not prevent destruction
			e.destroyPair(p)
			removed = true
		},
	})
	e.registerDevice()
	e.unregisterDevice()
	if !removed {
		e.Error("Unregister returned before Remove had run")
	}
}

// newRecordingClient returns a client that logs its calls.
func newRecordingClient(log *[]string, mu *sync.Mutex, name string) *ib.Client {
	note := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		*log = append(*log, s)
	}
	return &ib.Client{
		Name:   name,
		Add:    func(*ib.Device) (any, error) { note("+" + name); return nil, nil },
		Remove: func(*ib.Device, any) { note("-" + name) },
	}
}

func testRemoveInReverseOrder(e *testEnv) {
	var log []string
	var mu sync.Mutex
	e.registerClient(newRecordingClient(&log, &mu, "A"))
	e.registerClient(newRecordingClient(&log, &mu, "B"))
	e.registerDevice()
	e.registerClient(newRecordingClient(&log, &mu, "C"))
	e.unregisterDevice()
	if got := strings.Join(log, " "); got != "+A +B +C -C -B -A" {
		e.Errorf("calls: %s", got)
	}
}

func testLateClientIsAttached(e *testEnv) {
	e.registerDevice()
	uses := 0
	cl := &ib.Client{
		Name:   "late",
		Add:    func(d *ib.Device) (any, error) { useAllObjects(e, "in a late Add"); uses++; return nil, nil },
		Remove: func(d *ib.Device, _ any) { useAllObjects(e, "in an early Remove"); uses++ },
	}
	e.must("register the client", e.core.RegisterClient(cl))
	if uses != 1 || !e.dev.Attached(cl) {
		e.Errorf("RegisterClient returned before Add had run")
	}
	e.core.UnregisterClient(cl)
	if uses != 2 || e.dev.Attached(cl) {
		e.Errorf("UnregisterClient returned before Remove had run")
	}
	useAllObjects(e, "when the client has gone")
}

func testClientDuringRegister(e *testEnv) {
	var log []string
	var mu sync.Mutex
	second := newRecordingClient(&log, &mu, "B")
	e.registerClient(&ib.Client{
		Name: "A",
		Add: func(d *ib.Device) (any, error) {
			registered := make(chan error, 1)
			go func() { registered <- e.core.RegisterClient(second) }()
			return nil, receiveFrom(e, "the end of RegisterClient while Add of another client runs", registered)
		},
		Remove: func(*ib.Device, any) {},
	})
	e.registerDevice()
	e.unregisterDevice()
	e.core.UnregisterClient(second)
	if !slices.Equal(log, []string{"+B", "-B"}) {
		e.Errorf("calls: %v", log)
	}
}

func testUnregisterDuringAdd(e *testEnv) {
	inAdd, proceed := make(chan struct{}), make(chan struct{})
	var removed atomic.Bool
	e.registerClient(&ib.Client{
		Name: "slow",
		Add: func(d *ib.Device) (any, error) {
			close(inAdd)
			receiveFrom(e, "the test to go on", proceed)
			useAllObjects(e, "in Add while the device is being unregistered")
			return nil, nil
		},
		Remove: func(*ib.Device, any) { removed.Store(true) },
	})
	registered, unregistered := make(chan error, 1), make(chan error, 1)
	go func() {
		defer close(registered) // also if the test fails in Add
		registered <- e.cfg.plug(e.core, e.handle)
	}()
	receiveFrom(e, "Add", inAdd)
	go func() { unregistered <- e.cfg.unplug(e.core, e.handle) }()
	for range 100 {
		yieldBriefly()
		if len(unregistered) > 0 {
			e.Fatal("Unregister returned while Add ran")
		}
	}
	close(proceed)
	e.must("register", receiveFrom(e, "the end of Register", registered))
	e.must("unregister", receiveFrom(e, "the end of Unregister", unregistered))
	if !removed.Load() {
		e.Error("Remove was not called")
	}
}

func testUnregisterUnderTraffic(e *testEnv) {
	var p *pair
	var stop atomic.Bool
	var sent atomic.Int32
	var removing, handled atomic.Bool // handled: a handler has polled since removing
	var using sync.Mutex              // held while the handler uses the queue pair
	var wg sync.WaitGroup
	e.registerClient(&ib.Client{
		Name: "busy",
		Add: func(d *ib.Device) (any, error) {
			e.connector.selectGID()
			p = e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(cq *ib.CQ) {
				var wc [8]ib.WC
				for {
					during := removing.Load()
					n, _ := cq.Poll(wc[:])
					if during {
						handled.Store(true)
					}
					using.Lock()
					for range n {
						if !stop.Load() {
							p.qps[1].PostRecv(ib.RecvWR{SGList: p.buf[1].newSGL(0, 8)})
						}
					}
					using.Unlock()
					if n > 0 {
						continue
					}
					if missed, _ := cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed); !missed {
						return
					}
				}
			}}})
			for range e.queueLen / 2 {
				p.postRecv(1, 0, 0, 8)
			}
			_, err := p.cqs[1].ReqNotify(ib.NotifyNextComp)
			e.must("request notify", err)
			wg.Go(func() {
				outstanding := 0
				for !stop.Load() {
					if outstanding < e.queueLen/2 {
						n, _ := p.qps[0].PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8)})
						outstanding += n
						sent.Add(int32(n))
					}
					n, _ := p.cqs[0].Poll(make([]ib.WC, 8))
					outstanding -= n
				}
			})
			return nil, nil
		},
		Remove: func(d *ib.Device, _ any) {
			removing.Store(true)
			for p := e.newWaitLimit(); !handled.Load(); {
				if p.yieldAndCheckOver() {
					e.Errorf("waited %v for a completion handler that polls while Unregister waits for Remove", e.cfg.timeout)
					break
				}
			}
			using.Lock()
			stop.Store(true)
			using.Unlock()
			wg.Wait()
			e.destroyPair(p)
		},
	})
	e.registerDevice()
	e.eventually("traffic", func() bool { return sent.Load() > 100 })
	e.unregisterDevice()
}

func testEventsBeforeUnregisterDelivered(e *testEnv) {
	e.registerDevice()
	var got atomic.Int32
	stop := e.dev.OnEvent(func(ev ib.Event) {
		if ev.Type == ib.EventPKeyChange {
			got.Add(1)
		}
	})
	defer stop()
	const events = 100
	for range events {
		e.handle.DispatchEvent(ib.EventPKeyChange, 1)
	}
	e.unregisterDevice()
	if n := got.Load(); n != events {
		e.Errorf("%d of %d events had been delivered when Unregister returned", n, events)
	}
}

// testRemainingObjectsAreNamed runs without checked mode, which would report the same.
func testRemainingObjectsAreNamed(e *testEnv) {
	check.Off(e.core)
	e.registerDevice()
	pd, err := e.dev.AllocPD()
	e.must("alloc pd", err)
	e.registered = false
	if err := e.cfg.unplug(e.core, e.handle); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "1 PD") {
		e.Errorf("unregister with a PD left: %v", err)
	}
	e.must("dealloc pd", pd.Dealloc())
}

func testNoUseAfterUnregister(e *testEnv) {
	check.Off(e.core)
	e.registerDevice()
	e.unregisterDevice()
	_, err := e.dev.AllocPD()
	e.wantErrno("alloc pd", err, syscall.ENODEV)
	_, err = e.dev.CreateCQ(ib.CQInit{Entries: 1})
	e.wantErrno("create cq", err, syscall.ENODEV)
	e.wantErrno("unregister again", e.core.Unregister(e.handle), syscall.ENODEV)
	if s := e.dev.State(); s != ib.DeviceGone {
		e.Errorf("device is %v", s)
	}
}

// testNoEventsAfterUnregister relies on checked mode to report events (rule use-after-unregister).
func testNoEventsAfterUnregister(e *testEnv) {
	var got atomic.Int32
	stop := e.dev.OnEvent(func(ib.Event) { got.Add(1) })
	defer stop()
	e.registerDevice()
	useAllObjects(e, "before")
	e.unregisterDevice()
	before := got.Load()
	for range 50 {
		yieldBriefly()
	}
	if n := got.Load(); n != before {
		e.Errorf("%d events when Unregister had returned", n-before)
	}
}
