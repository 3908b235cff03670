package ibtest

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/driver/loopback"
	"verbena/ib"
)

// wrongConsumer violates a rule in a way that real upper-level protocols do.
type wrongConsumer struct {
	defect string
	use    func(e *testEnv)
	asleep bool // registers the device itself
	says   string
}

// runInHandler runs f in a completion handler, and waits for it.
func runInHandler(e *testEnv, f func(p *pair, cq *ib.CQ)) {
	var p *pair
	var done atomic.Bool
	p = e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(cq *ib.CQ) {
		f(p, cq)
		done.Store(true)
	}}})
	_, err := p.cqs[1].ReqNotify(ib.NotifyNextComp)
	e.must("request notify", err)
	p.postRecv(1, 1, 0, 8)
	p.postSend(0, 1, 8)
	e.eventually("the handler", done.Load)
}

// registerWithClient registers a client with these functions, then the device.
func registerWithClient(e *testEnv, add func(d *ib.Device) (any, error), remove func(d *ib.Device,
	data any)) *ib.Client {
	cl := &ib.Client{Name: "wrong", Add: add, Remove: remove}
	e.must("register the client", e.core.RegisterClient(cl))
	e.registerDevice()
	return cl
}

var wrongConsumers = slices.Concat(wrongBasicConsumers, wrongWorkConsumers, wrongCallbackConsumers,
	wrongLifeCycleConsumers)

var wrongBasicConsumers = []wrongConsumer{
	{
		defect: "sleeps in a completion handler",
		use: func(e *testEnv) {
			runInHandler(e, func(*pair, *ib.CQ) { sleepFor(inspectableSleep) })
		},
		says: "rule sleep-in-callback",
	},
	{
		defect: "waits in a handler for a reply from another thread",
		use: func(e *testEnv) {
			reply := make(chan int)
			runInHandler(e, func(*pair, *ib.CQ) {
				time.AfterFunc(inspectableSleep, func() { reply <- 1 })
				<-reply
			})
		},
		says: "rule sleep-in-callback",
	},
	{
		defect: "registers memory in a completion handler",
		use: func(e *testEnv) {
			runInHandler(e, func(p *pair, _ *ib.CQ) {
				mr, err := p.pd.RegMR(ib.MRInit{Space: e.mem, Addr: p.buf[0].addr, Length: 8, IOVA: 0, Access: 0})
				e.must("register memory", errors.Join(err, mr.Dereg()))
			})
		},
		says: "PD.RegMR, which may sleep, called in the completion handler",
	},
	{
		defect: "modifies a queue pair in a completion handler",
		use: func(e *testEnv) {
			runInHandler(e, func(p *pair, _ *ib.CQ) { p.qps[0].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState) })
		},
		says: "rule sleep-in-callback",
	},
	{
		defect: "queries the port in the function for events",
		use: func(e *testEnv) {
			var done atomic.Bool
			stop := e.dev.OnEvent(func(ib.Event) { e.dev.QueryPort(1); done.Store(true) })
			defer stop()
			e.handle.DispatchEvent(ib.EventPortErr, 1)
			e.eventually("the event", done.Load)
		},
		says: "Device.QueryPort, which may sleep, called in the function for the event",
	},
	{
		defect: "destroys a CQ in its own completion handler",
		use: func(e *testEnv) {
			runInHandler(e, func(_ *pair, cq *ib.CQ) {
				if err := cq.Destroy(); !errors.Is(err, syscall.EDEADLK) {
					e.Errorf("destroy in the handler: %v", err)
				}
			})
		},
		says: "rule wait-for-self",
	},
	{
		defect: "sends a datagram with a destroyed address handle",
		use: func(e *testEnv) {
			p := e.newPairIfSupported(ib.QPTypeUD, e.newPD())
			a := e.connector.ownAddress()
			ah, err := p.pd.CreateAH(&a)
			e.must("create and destroy an address handle", errors.Join(err, ah.Destroy()))
			if n, err := p.qps[0].PostSend(p.newDatagramRequest(1, ah, 8)); n != 0 || !errors.Is(err, syscall.EINVAL) {
				e.Errorf("PostSend: got %d accepted and error %v, want 0 and EINVAL", n, err)
			}
		},
		says: "QP.PostSend of a work request that names a AH that was destroyed",
	},
	{
		defect: "binds a deallocated window",
		use: func(e *testEnv) {
			p := e.newPair(pairConfig{kind: ib.QPTypeRC})
			o := newWindowBindRequest(p)
			e.destroy(o.gone)
			if n, err := p.qps[0].PostSend(o.wr); n != 0 || !errors.Is(err, syscall.EINVAL) {
				e.Errorf("PostSend: got %d accepted and error %v, want 0 and EINVAL", n, err)
			}
		},
		says: "QP.PostSend of a work request that names a MW that was destroyed",
	},
	{
		defect: "destroys a queue pair in its own event function",
		use: func(e *testEnv) {
			var done atomic.Bool
			p := e.newPair(pairConfig{kind: ib.QPTypeRC, event: func(qp *ib.QP, _ ib.EventType) {
				qp.Destroy()
				done.Store(true)
			}})
			// Cause an access error at the peer.
			p.postSendWR(1, ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: p.buf[1].newSGL(0, 8), RKey: ^uint32(0)})
			e.eventually("the event", done.Load)
		},
		says: "rule wait-for-self",
	},
	{
		defect: "takes a lock in a handler, and holds it during the destruction of the CQ",
		use: func(e *testEnv) {
			var mu sync.Mutex
			var once sync.Once
			unlock := func() { once.Do(mu.Unlock) }
			e.TB.(*recordingTB).onNextFailure(unlock)
			var begun atomic.Bool
			cq := e.newCQ(4, func(*ib.CQ) {
				begun.Store(true)
				mu.Lock()
				defer mu.Unlock()
			})
			_, err := cq.ReqNotify(ib.NotifyNextComp)
			e.must("request notify", err)
			qp := e.newQP(e.newPD(), ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC})
			e.connector.moveQPUpTo(qp, 0, ib.QPInit)
			_, err = qp.PostRecv(ib.RecvWR{})
			e.must("post receive", err)
			mu.Lock()
			e.must("modify to ERR", qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			e.eventually("the handler", begun.Load)
			e.destroy(qp)
			e.destroy(cq)
			unlock()
		},
		says: "rule sleep-in-callback",
	},
	{
		defect: "keeps a queue pair past Remove",
		use: func(e *testEnv) {
			registerWithClient(e, func(d *ib.Device) (any, error) {
				e.connector.selectGID()
				e.newPair(pairConfig{kind: ib.QPTypeRC})
				return nil, nil
			}, func(*ib.Device, any) {})
			e.unregisterDevice()
			e.objects = nil
		},
		asleep: true, says: "objects left when Remove of client wrong returned: PD, CQ, MR, QP, CQ, MR, QP",
	},
	{
		defect: "does not destroy in its Remove an object that another thread created",
		use: func(e *testEnv) {
			registerWithClient(e, func(d *ib.Device) (any, error) {
				made := make(chan error)
				go func() {
					_, err := d.AllocPD()
					made <- err
				}()
				return nil, <-made
			}, func(*ib.Device, any) {})
			e.unregisterDevice()
		},
		asleep: true, says: "objects left when Remove of client wrong returned: PD",
	},
	{
		defect: "leaks a PD in a failed Add",
		use: func(e *testEnv) {
			registerWithClient(e, func(d *ib.Device) (any, error) {
				_, err := d.AllocPD()
				return nil, errors.Join(err, errors.New("something else went wrong"))
			}, func(*ib.Device, any) {})
			e.unregisterDevice()
		},
		asleep: true, says: "objects left when the failing Add of client wrong returned: PD",
	},
	{
		defect: "polls a CQ of a removed device",
		use: func(e *testEnv) {
			cq, err := e.dev.CreateCQ(ib.CQInit{Entries: 4})
			e.must("create cq", err)
			e.unregisterDevice()
			cq.Poll(make([]ib.WC, 1))
		},
		says: "rule use-after-unregister",
	},
	{
		defect: "queries a removed device from a timer",
		use: func(e *testEnv) {
			e.unregisterDevice()
			done := make(chan int)
			time.AfterFunc(0, func() { e.dev.QueryDevice(); close(done) })
			<-done
		},
		says: "rule use-after-unregister",
	},
	{
		defect: "posts on a destroyed queue pair",
		use: func(e *testEnv) {
			p := e.newPair(pairConfig{kind: ib.QPTypeRC})
			e.destroy(p.qps[0])
			p.qps[0].PostSend(ib.SendWR{Opcode: ib.WRSend})
		},
		says: "rule use-after-destroy",
	},
	{
		defect: "frees a PD twice",
		use: func(e *testEnv) {
			pd := e.newPD()
			e.destroy(pd)
			if err := pd.Dealloc(); !errors.Is(err, syscall.EINVAL) {
				e.Errorf("dealloc twice: %v", err)
			}
		},
		says: "rule use-after-destroy",
	},
	{
		defect: "unregisters the device in its Add",
		use: func(e *testEnv) {
			registerWithClient(e, func(*ib.Device) (any, error) { return nil, e.core.Unregister(e.handle) }, func(*ib.Device,
				any) {
			})
		},
		asleep: true, says: "rule wait-for-self",
	},
	{
		defect: "unregisters itself in its Remove",
		use: func(e *testEnv) {
			var cl *ib.Client
			cl = registerWithClient(e, func(d *ib.Device) (any, error) { return nil, nil },
				func(*ib.Device, any) { e.core.UnregisterClient(cl) })
			e.unregisterDevice()
		},
		asleep: true, says: "rule wait-for-self",
	},
	{
		defect: "sleeps while it holds callbacks",
		use: func(e *testEnv) {
			e.handle.HoldCallbacks()
			sleepFor(inspectableSleep)
			e.handle.RunCallbacks()
		},
		says: "rule hold",
	},
	{
		defect: "runs callbacks without having held any",
		use: func(e *testEnv) {
			e.handle.HoldCallbacks()
			var wg sync.WaitGroup
			wg.Go(e.handle.RunCallbacks)
			for !e.Failed() {
				runtime.Gosched()
			}
			wg.Wait()
			e.handle.HoldCallbacks()
			e.handle.RunCallbacks()
		},
		says: "rule hold",
	},
	{
		defect: "runs callbacks in a callback",
		use: func(e *testEnv) {
			runInHandler(e, func(p *pair, _ *ib.CQ) {
				e.handle.HoldCallbacks()
				e.handle.RunCallbacks()
			})
		},
		says: "rule hold",
	},
}

// inspectableSleep is long enough for checked mode to inspect the sleeping thread, also on a busy machine.
const inspectableSleep = 500 * time.Millisecond

// TestWrongConsumers checks that checked mode reports each wrong consumer on a correct driver, and names the rule.
func TestWrongConsumers(t *testing.T) {
	cfg := newConfig(func(t testing.TB) *ib.DeviceHandle { return loopback.New("loop0", nil).Handle() },
		wrongDriverOptions())
	results := make([]*recordingTB, len(wrongConsumers))
	runUnomittedDefects(len(results), func(i int) {
		c := wrongConsumers[i]
		results[i] = recordRun(t, func(r *recordingTB) { ruleTest{test: c.use, asleep: c.asleep}.runOn(r, cfg, true) })
	})
	for i, c := range wrongConsumers {
		if isDefectOmitted(i) {
			continue
		}
		t.Run(c.defect, func(t *testing.T) { checkFailureMentions(t, results[i], c.says) })
	}
}
