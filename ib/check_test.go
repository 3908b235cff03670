package ib

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// witness collects violations.
type witness struct {
	mu  sync.Mutex
	all []Violation
}

func (w *witness) report(v Violation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, v)
}

func (w *witness) seen() []Violation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.all)
}

// expect checks that the violations are those of the rules, each with the stacks of at least so many sides.
func (w *witness) expect(t *testing.T, rules ...Rule) {
	t.Helper()
	var got []Rule
	for _, v := range w.seen() {
		got = append(got, v.Rule)
		for _, s := range v.Stacks {
			if s.Title == "" || !strings.Contains(s.Trace, ".go:") {
				t.Errorf("%v: stack %q: %q", v.Rule, s.Title, s.Trace)
			}
		}
		if len(v.Stacks) == 0 || v.What == "" || v.Device == "" || strings.Contains(v.What, "\n") {
			t.Errorf("incomplete: %v", v)
		}
	}
	if !slices.Equal(got, rules) {
		t.Errorf("reported %v, want %v", got, rules)
		for _, v := range w.seen() {
			t.Log(v)
		}
	}
}

func checkedBench(t *testing.T, handler func(*CQ), qpEvent func(*QP, EventType)) (*bench, *witness) {
	return patientBench(t, 100*time.Millisecond, handler, qpEvent)
}

func patientBench(t *testing.T, patience time.Duration, handler func(*CQ), qpEvent func(*QP, EventType)) (*bench, *witness) {
	w := &witness{}
	core := &Core{}
	core.Check(CheckConfig{Report: w.report, Patience: patience})
	return newBenchOn(t, core, handler, nil, qpEvent), w
}

// Each line is a wrong driver, or a wrong consumer, in virtual time.
func TestCheckSleep(t *testing.T) {
	for _, test := range []struct {
		name string
		rule Rule
		run  func(t *testing.T, b *bench)
	}{
		{"driver sleeps in post send", RuleSleepInMethod, func(t *testing.T, b *bench) {
			b.drv.onPost = func() { time.Sleep(time.Second) }
			b.qp.PostSend(SendWR{})
		}},
		{"driver waits for a goroutine in poll", RuleSleepInMethod, func(t *testing.T, b *bench) {
			b.drv.onPoll = func() {
				done := make(chan int)
				go func() { time.Sleep(time.Second); close(done) }()
				<-done
			}
			b.cq.Poll(make([]WC, 1))
		}},
		{"driver waits for a condition in request notify", RuleSleepInMethod, func(t *testing.T, b *bench) {
			b.drv.onNotify = func() {
				var wg sync.WaitGroup
				wg.Go(func() { time.Sleep(time.Second) })
				wg.Wait()
			}
			b.cq.ReqNotify(NotifyNextComp)
		}},
		{"driver calls what may sleep from post send", RuleSleepInMethod, func(t *testing.T, b *bench) {
			b.drv.onPost = func() { b.dev.QueryDevice() }
			b.qp.PostSend(SendWR{})
		}},
		{"driver sleeps while it destroys an address handle", RuleSleepInMethod, func(t *testing.T, b *bench) {
			ah, err := b.pd.CreateAH(&AHAttr{})
			must(t, err)
			b.drv.onDestroy = func() { time.Sleep(time.Second) }
			must(t, ah.Destroy())
			b.drv.onDestroy = nil
		}},
		{"thread sleeps while it holds callbacks", RuleHold, func(t *testing.T, b *bench) {
			b.dev.handle.HoldCallbacks()
			time.Sleep(time.Second)
			b.dev.handle.RunCallbacks()
		}},
		{"thread calls what may sleep while it holds callbacks", RuleHold, func(t *testing.T, b *bench) {
			b.dev.handle.HoldCallbacks()
			b.dev.QueryDevice()
			b.dev.handle.RunCallbacks()
		}},
		{"thread runs callbacks out of the blue", RuleHold, func(t *testing.T, b *bench) {
			b.dev.handle.HoldCallbacks()
			var wg sync.WaitGroup
			wg.Go(b.dev.handle.RunCallbacks)
			synctest.Wait()
			b.dev.check.Load().endHold(b.dev, nil) // the hold is this thread's
		}},
		{"driver holds callbacks in post send", RuleHold, func(t *testing.T, b *bench) {
			b.drv.onPost = b.dev.handle.HoldCallbacks
			b.qp.PostSend(SendWR{})
			b.dev.handle.RunCallbacks()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, w := checkedBench(t, nil, nil)
				test.run(t, b)
				b.free(t)
				w.expect(t, test.rule)
			})
		})
	}
}

// Every function that may sleep is caught in a completion handler, and none that may not.
func TestCheckCallsInHandler(t *testing.T) {
	for _, test := range []struct {
		name string
		rule Rule // 0: allowed
		call func(t *testing.T, b *bench)
	}{
		{"poll", 0, func(t *testing.T, b *bench) { second(b.cq.Poll(make([]WC, 1))) }},
		{"request notify", 0, func(t *testing.T, b *bench) { second(b.cq.ReqNotify(NotifyNextComp)); second(b.cq.Poll(make([]WC, 1))) }},
		{"post send", 0, func(t *testing.T, b *bench) { second(b.qp.PostSend(SendWR{})) }},
		{"post receive", 0, func(t *testing.T, b *bench) { second(b.qp.PostRecv(RecvWR{})) }},
		{"address handle", 0, func(t *testing.T, b *bench) {
			ah, err := b.pd.CreateAH(&AHAttr{})
			must(t, err)
			_, err = ah.Query()
			must(t, errors.Join(err, ah.Modify(&AHAttr{}), ah.Destroy()))
		}},
		{"dispatch event", 0, func(t *testing.T, b *bench) { b.dev.handle.DispatchEvent(EventPortErr, 1) }},
		{"raise", 0, func(t *testing.T, b *bench) { QPHandle{b.qp}.Raise(EventQPFatal) }},
		{"state", 0, func(t *testing.T, b *bench) { b.qp.State(); b.dev.State() }},
		{"sleep", RuleSleepInCallback, func(t *testing.T, b *bench) { time.Sleep(time.Second) }},
		{"query device", RuleSleepInCallback, func(t *testing.T, b *bench) { b.dev.QueryDevice() }},
		{"query port", RuleSleepInCallback, func(t *testing.T, b *bench) { b.dev.QueryPort(1) }},
		{"query gid", RuleSleepInCallback, func(t *testing.T, b *bench) { b.dev.QueryGID(1, 0) }},
		{"query pkey", RuleSleepInCallback, func(t *testing.T, b *bench) { b.dev.QueryPKey(1, 0) }},
		{"alloc pd", RuleSleepInCallback, func(t *testing.T, b *bench) {
			pd, err := b.dev.AllocPD()
			must(t, errors.Join(err, pd.Dealloc()))
		}},
		{"modify qp", RuleSleepInCallback, func(t *testing.T, b *bench) { b.qp.Modify(QPAttr{}, QPAttrState) }},
		{"query qp", RuleSleepInCallback, func(t *testing.T, b *bench) { b.qp.Query(0) }},
		{"resize cq", RuleSleepInCallback, func(t *testing.T, b *bench) { b.cq.Resize(4) }},
		{"on event", RuleSleepInCallback, func(t *testing.T, b *bench) { b.dev.OnEvent(func(Event) {}) }},
		{"register a client", RuleSleepInCallback, func(t *testing.T, b *bench) { b.core.RegisterClient(new(recorder).client("A")) }},
		{"destroy the queue itself", RuleWaitForSelf, func(t *testing.T, b *bench) {
			if err := b.cq.Destroy(); !errors.Is(err, syscall.EDEADLK) {
				t.Error(err)
			}
		}},
		{"unregister the device", RuleWaitForSelf, func(t *testing.T, b *bench) {
			if err := b.core.Unregister(&b.dev.handle); !errors.Is(err, syscall.EDEADLK) {
				t.Error(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var b *bench
				calls := 0
				b, w := checkedBench(t, func(*CQ) {
					if calls++; calls == 1 {
						test.call(t, b)
					}
				}, nil)
				second(b.cq.ReqNotify(NotifyNextComp))
				b.qp.PostSend(SendWR{})
				synctest.Wait()
				time.Sleep(2 * time.Second)
				b.free(t)
				if calls == 0 {
					t.Error("handler was not called")
				}
				switch seen := w.seen(); {
				case test.rule == 0:
					w.expect(t)
				case test.name == "alloc pd": // and dealloc
					w.expect(t, test.rule, test.rule)
				case len(seen) == 1 && test.rule != RuleSleepInCallback:
					w.expect(t, test.rule)
				default:
					w.expect(t, test.rule)
					if len(seen) > 0 && !strings.Contains(fmt.Sprint(seen[0].Stacks), "raised at") {
						t.Error("nothing says where the completion was raised")
					}
				}
			})
		})
	}
}

func TestCheckCallchain(t *testing.T) {
	for _, test := range []struct {
		name string
		hook func(b *bench) *func() // of the driver
		call func(b *bench)
	}{
		{"post send", func(b *bench) *func() { return &b.drv.onPost }, func(b *bench) { b.qp.PostSend(SendWR{}) }},
		{"poll", func(b *bench) *func() { return &b.drv.onPoll }, func(b *bench) { b.cq.Poll(make([]WC, 1)) }},
		{"request notify", func(b *bench) *func() { return &b.drv.onNotify }, func(b *bench) { b.cq.ReqNotify(NotifyNextComp) }},
		{"a method that may sleep", func(b *bench) *func() { return &b.drv.onQuery }, func(b *bench) { b.dev.QueryDevice() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			var called atomic.Bool
			b, w := checkedBench(t, func(*CQ) { called.Store(true) }, nil)
			second(b.cq.ReqNotify(NotifyNextComp))
			second(b.cq.ReqNotify(NotifyNextComp)) // post send completes once more, later and on another thread
			*test.hook(b) = func() {
				b.dev.handle.HoldCallbacks()
				CQHandle{cq: b.cq}.Completed()
				b.dev.handle.RunCallbacks()
			}
			test.call(b)
			*test.hook(b) = nil
			if !called.Load() {
				t.Error("handler was not called")
			}
			b.free(t)
			w.expect(t, RuleHold, RuleCallchain)
		})
	}
}

// Only a defect of the midlayer itself could do this.
func TestCheckTwoHandlers(t *testing.T) {
	inside, leave := make(chan int), make(chan int)
	b, w := checkedBench(t, func(*CQ) { inside <- 1; <-leave }, nil)
	for range 2 {
		go func() { b.cq.checkedHandler(); inside <- 2 }()
		<-inside
	}
	close(leave)
	<-inside
	<-inside
	b.free(t)
	var rules []Rule
	for _, v := range w.seen() {
		if v.Rule != RuleSleepInCallback { // as it does
			rules = append(rules, v.Rule)
		}
	}
	if !slices.Equal(rules, []Rule{RuleOneHandler}) {
		t.Errorf("reported %v", rules)
	}
}

func TestCheckNotifyOnce(t *testing.T) {
	b, w := checkedBench(t, func(*CQ) {}, nil)
	for range 2 {
		second(b.cq.ReqNotify(NotifyNextComp))
		CQHandle{cq: b.cq}.Completed()
	}
	w.expect(t)
	CQHandle{cq: b.cq}.Completed()
	b.free(t)
	w.expect(t, RuleNotifyOnce)
}

// A lock that is held where it may not be is reported, although everyone waits for it; then the test lets go.
func TestCheckLocks(t *testing.T) {
	t.Run("callbacks run under the lock of the queue", func(t *testing.T) {
		var lock sync.Mutex
		w, core := &witness{}, &Core{}
		reported := make(chan int, 1)
		core.Check(CheckConfig{Patience: 100 * time.Millisecond, Report: func(v Violation) {
			w.report(v)
			reported <- 1
		}})
		b := newBenchOn(t, core, func(cq *CQ) { cq.ReqNotify(NotifyNextComp) }, nil, nil)
		second(b.cq.ReqNotify(NotifyNextComp))
		b.drv.onNotify = func() { lock.Lock(); defer lock.Unlock() }
		go func() { <-reported; lock.Unlock() }()
		b.dev.handle.HoldCallbacks()
		lock.Lock()
		CQHandle{cq: b.cq}.Completed()
		b.dev.handle.RunCallbacks()
		b.free(t)
		w.expect(t, RuleLockAcrossCallback)
	})
	for _, test := range []struct {
		name   string
		client func(b func() *bench) *Client
	}{
		{"unregister, and Remove calls the driver", func(b func() *bench) *Client {
			return &Client{Name: "A", Add: func(d *Device) (any, error) { return nil, nil }, Remove: func(d *Device, _ any) { d.QueryDevice() }}
		}},
		{"unregister, and Remove waits for one who calls the driver", func(b func() *bench) *Client {
			return &Client{Name: "A", Add: func(d *Device) (any, error) { return nil, nil }, Remove: func(d *Device, _ any) {
				done := make(chan int)
				go func() { b().cq.Poll(make([]WC, 1)); close(done) }()
				<-done
			}}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var lock sync.Mutex
			w, core := &witness{}, &Core{}
			reported := make(chan int, 1)
			core.Check(CheckConfig{Patience: 100 * time.Millisecond, Report: func(v Violation) {
				w.report(v)
				select {
				case reported <- 1:
				default:
				}
			}})
			var b *bench
			must(t, core.RegisterClient(test.client(func() *bench { return b })))
			b = newBenchOn(t, core, nil, nil, nil)
			take := func() { lock.Lock(); defer lock.Unlock() }
			b.drv.onQuery, b.drv.onPoll = take, take
			go func() { <-reported; lock.Unlock() }()
			lock.Lock()
			err := core.Unregister(&b.dev.handle)
			if !errors.Is(err, syscall.EBUSY) { // the bench is left
				t.Error(err)
			}
			for _, v := range w.seen() {
				if v.Rule != RuleLockAcrossRegister && v.Rule != RuleLeftBehind {
					t.Error(v)
				}
			}
			if seen := w.seen(); len(seen) < 2 || seen[0].Rule != RuleLockAcrossRegister {
				t.Errorf("reported %v", seen)
			}
		})
	}
}

func TestCheckWaitForSelf(t *testing.T) {
	var cl *Client
	core, w := &Core{}, &witness{}
	core.Check(CheckConfig{Report: w.report})
	cl = &Client{
		Name: "A",
		Add: func(d *Device) (any, error) {
			if err := core.Unregister(&d.handle); !errors.Is(err, syscall.EDEADLK) {
				t.Error(err)
			}
			return nil, nil
		},
		Remove: func(d *Device, _ any) { core.UnregisterClient(cl) },
	}
	must(t, core.RegisterClient(cl))
	d, _ := newDevice("fake0")
	must(t, core.Register(&d.handle))
	must(t, core.Unregister(&d.handle))
	core.UnregisterClient(cl)
	w.expect(t, RuleWaitForSelf, RuleWaitForSelf)
}

func TestCheckUseAfter(t *testing.T) {
	t.Run("destroy", func(t *testing.T) {
		b, w := checkedBench(t, func(*CQ) {}, nil)
		ah, err := b.pd.CreateAH(&AHAttr{})
		must(t, errors.Join(err, ah.Destroy()))
		b.free(t)
		for what, err := range map[string]error{
			"poll":    second(b.cq.Poll(make([]WC, 1))),
			"notify":  second(b.cq.ReqNotify(NotifyNextComp)),
			"send":    second(b.qp.PostSend(SendWR{})),
			"receive": second(b.qp.PostRecv(RecvWR{})),
			"destroy": b.qp.Destroy(),
			"dealloc": b.pd.Dealloc(),
			"ah":      ah.Destroy(),
			"ah2":     ah.Modify(nil),
			"ah3":     second(ah.Query()),
		} {
			if !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%s: %v", what, err)
			}
		}
		CQHandle{cq: b.cq}.Completed()
		QPHandle{b.qp}.Raise(EventQPFatal)
		for _, v := range w.seen() {
			if v.Rule != RuleUseAfterDestroy && v.Rule != RuleNotifyOnce {
				t.Error(v)
			}
			if v.Rule == RuleUseAfterDestroy && len(v.Stacks) != 3 {
				t.Errorf("%d stacks, want those of the use, the end and the beginning", len(v.Stacks))
			}
		}
		if n := len(w.seen()); n != 12 {
			t.Errorf("%d reports", n)
		}
	})
	t.Run("unregister", func(t *testing.T) {
		b, w := checkedBench(t, nil, nil)
		must(t, b.qp.Destroy())
		must(t, b.cq.Destroy())
		must(t, b.pd.Dealloc())
		must(t, b.core.Unregister(&b.dev.handle))
		w.expect(t)
		b.dev.QueryPort(1)
		b.dev.AllocPD()
		w.expect(t, RuleUseAfterUnregister, RuleUseAfterUnregister)
	})
}

// What is left is named with the place where it was made, at the Remove of whose it is, if that is known.
func TestCheckLeftBehind(t *testing.T) {
	core, w := &Core{}, &witness{}
	core.Check(CheckConfig{Report: w.report})
	keeper := func(name string, fail error) *Client {
		return &Client{
			Name: name,
			Add: func(d *Device) (any, error) {
				pd, err := d.AllocPD()
				must(t, err)
				return pd, fail
			},
			Remove: func(d *Device, data any) { // makes it worse
				_, err := data.(*PD).CreateAH(&AHAttr{})
				must(t, err)
			},
		}
	}
	must(t, core.RegisterClient(keeper("A", nil)))
	must(t, core.RegisterClient(keeper("B", errors.New("changed my mind"))))
	d, _ := newDevice("fake0")
	must(t, core.Register(&d.handle))
	_, err := d.CreateCQ(CQInit{Entries: 1}) // nobody's
	must(t, err)
	if err := core.Unregister(&d.handle); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	w.expect(t, RuleLeftBehind, RuleLeftBehind, RuleLeftBehind)
	for i, want := range []string{"Add of client B returned: PD", "Remove of client A returned: PD, AH", "Unregister returned: CQ"} {
		if v := w.seen()[i]; !strings.Contains(v.What, want) {
			t.Errorf("%q, want %q", v.What, want)
		}
	}
}

func TestDeallocDevice(t *testing.T) {
	b, w := checkedBench(t, nil, nil)
	if err := b.dev.handle.Dealloc(); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	b.free(t)
	must(t, b.dev.handle.Dealloc())
	must(t, NewDevice("never", &fakeDriver{}, nil).Dealloc())
	w.expect(t, RuleFreeBeforeUnregister)
}

// badPoster says nonsense.
type badPoster struct {
	DriverQP
	n   int
	err error
}

func (p badPoster) PostSend([]SendWR) (int, error) { return p.n, p.err }

type badPoller struct {
	DriverCQ
	n int
}

func (p badPoller) Poll([]WC) (int, error)              { return p.n, nil }
func (p badPoller) ReqNotify(NotifyFlags) (bool, error) { return true, nil }

func TestCheckResults(t *testing.T) {
	b, w := checkedBench(t, nil, nil)
	drv, cdrv := b.qp.drv, b.cq.drv
	post := func(n int, err error) {
		b.qp.drv = badPoster{drv, n, err}
		b.qp.PostSend(SendWR{}, SendWR{})
	}
	post(2, nil)
	post(1, syscall.ENOMEM)
	post(0, syscall.EINVAL)
	w.expect(t)
	post(1, nil)
	post(2, syscall.ENOMEM)
	post(3, nil)
	post(-1, syscall.EINVAL)
	b.cq.drv = badPoller{cdrv, 2}
	b.cq.Poll(make([]WC, 1))
	b.cq.ReqNotify(NotifyNextComp)
	b.qp.drv, b.cq.drv = drv, cdrv
	b.free(t)
	w.expect(t, slices.Repeat([]Rule{RuleResult}, 6)...)
}

// The same at the same place is reported once.
func TestCheckReportsOnce(t *testing.T) {
	b, w := checkedBench(t, nil, nil)
	b.drv.onPost = func() { b.dev.QueryDevice() }
	for range 5 {
		b.qp.PostSend(SendWR{})
	}
	b.drv.onPost = func() { b.dev.QueryPort(1) }
	b.qp.PostSend(SendWR{})
	b.free(t)
	w.expect(t, RuleSleepInMethod, RuleSleepInMethod)
}

func TestCheckLeavesNoThreads(t *testing.T) {
	// A busy machine may not run a handler for long.
	b, w := patientBench(t, time.Minute, func(cq *CQ) { cq.Poll(make([]WC, 4)) }, func(*QP, EventType) {})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				b.cq.ReqNotify(NotifyNextComp)
				b.dev.handle.HoldCallbacks()
				b.qp.PostSend(SendWR{})
				QPHandle{b.qp}.Raise(EventCommEst)
				b.dev.handle.RunCallbacks()
				b.dev.QueryDevice()
			}
		})
	}
	wg.Wait()
	k := b.dev.check.Load()
	b.free(t)
	w.expect(t)
	if len(k.threads) != 0 || len(k.live) != 0 {
		t.Errorf("left: %d threads, %d objects", len(k.threads), len(k.live))
	}
}

func TestParseGoroutines(t *testing.T) {
	const dump = `goroutine 1 [running]:
main.main()
	/x/main.go:1 +0x1

goroutine 7 [chan receive (nil chan), 2 minutes, locked to thread]:
main.f()
	/x/main.go:2 +0x1

goroutine 12 [select (durable), synctest bubble 3]:
main.g()
	/x/main.go:3 +0x1

goroutine 34 gp=0xc000002380 m=0 mp=0x6b5f00 [sync.RWMutex.RLock]:
main.h()
	/x/main.go:4 +0x1

nonsense
`
	got := parseGoroutines([]byte(dump))
	for id, want := range map[int64]string{1: "running", 7: "chan receive", 12: "select", 34: "sync.RWMutex.RLock"} {
		if got[id].state != want || !strings.Contains(got[id].trace, "main.go") {
			t.Errorf("goroutine %d: %+v", id, got[id])
		}
	}
	if len(got) != 4 {
		t.Errorf("got %v", got)
	}
}

func TestRuleNames(t *testing.T) {
	names := map[string]bool{}
	for r := RuleSleepInMethod; r < numRules; r++ {
		if s := r.String(); s == "" || names[s] || r.Point() < 1 || r.Point() > 6 {
			t.Errorf("%d: %q, point %d", r, s, r.Point())
		}
		names[r.String()] = true
	}
	if s := Rule(200).String(); s != "Rule(200)" {
		t.Error(s)
	}
}

// Whatever the runtime prints some day, the parser survives it.
func FuzzParseGoroutines(f *testing.F) {
	f.Add([]byte("goroutine 7 [chan receive, 2 minutes]:\nmain.f()\n\n"))
	f.Add([]byte("goroutine 9223372036854775808 []:\n"))
	f.Add([]byte("goroutine -1 gp=0 ["))
	f.Fuzz(func(t *testing.T, dump []byte) {
		for id, g := range parseGoroutines(dump) {
			if g.state != strings.TrimSpace(g.state) || strings.ContainsAny(g.state, ",(]") {
				t.Errorf("goroutine %d: state %q", id, g.state)
			}
		}
	})
}

// An abandoned object is not reported when the device goes, and can be destroyed afterwards.
func TestAbandon(t *testing.T) {
	var found []Violation
	core := &Core{}
	core.Check(CheckConfig{Report: func(v Violation) { found = append(found, v) }})
	b := newBenchOn(t, core, nil, nil, nil)
	b.qp.Abandon()
	b.cq.Abandon()
	b.qp.Abandon() // once is enough
	if got, want := b.dev.Objects(), (ObjectCounts{PD: 1}); got != want {
		t.Errorf("Objects after Abandon: got %+v, want %+v", got, want)
	}
	b.pd.Abandon()
	if err := core.Unregister(&b.dev.handle); err != nil {
		t.Errorf("Unregister with abandoned objects: got %v, want nil", err)
	}
	must(t, b.qp.Destroy())
	must(t, b.cq.Destroy())
	must(t, b.pd.Dealloc())
	if got, want := b.dev.Objects(), (ObjectCounts{}); got != want {
		t.Errorf("Objects after the end: got %+v, want %+v", got, want)
	}
	if len(found) > 0 {
		t.Errorf("got violations %v, want none", found)
	}
}
