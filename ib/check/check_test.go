package check_test

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

	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/ibfake"
	"verbena/ib/internal/observe"
	"verbena/internal/testutil"
)

// violationRecorder collects violations.
type violationRecorder struct {
	mu  sync.Mutex
	all []check.Violation
}

func (w *violationRecorder) recordViolation(v check.Violation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, v)
}

func (w *violationRecorder) violations() []check.Violation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.all)
}

// expectRules checks that the reported violations match the rules, and that each has complete stacks.
func (w *violationRecorder) expectRules(t *testing.T, rules ...check.Rule) {
	t.Helper()
	var got []check.Rule
	for _, v := range w.violations() {
		got = append(got, v.Rule)
		for _, s := range v.Stacks {
			if s.Title == "" || !strings.Contains(s.Trace, ".go:") {
				t.Errorf("%v: got stack %q: %q, want a title and a trace", v.Rule, s.Title, s.Trace)
			}
		}
		if len(v.Stacks) == 0 || v.What == "" || v.Device == "" || strings.Contains(v.What, "\n") {
			t.Errorf("violation: got %v, want stacks, a one-line text and a device", v)
		}
	}
	if !slices.Equal(got, rules) {
		t.Errorf("reported %v, want %v", got, rules)
		for _, v := range w.violations() {
			t.Log(v)
		}
	}
}

func newCheckedBench(t *testing.T, handler func(*ib.CQ), qpEvent func(*ib.QP, ib.EventType)) (*testBench,
	*violationRecorder) {
	return newCheckedBenchWithTimeout(t, 100*time.Millisecond, handler, qpEvent)
}

func newCheckedBenchWithTimeout(t *testing.T, timeout time.Duration, handler func(*ib.CQ),
	qpEvent func(*ib.QP, ib.EventType)) (*testBench, *violationRecorder) {
	w := &violationRecorder{}
	core := &ib.Core{}
	check.On(core, check.Config{Report: w.recordViolation, Timeout: timeout})
	return newBenchOn(t, core, handler, qpEvent), w
}

// sleepOneSecond violates the rule against sleeping in callbacks and in methods that may be called from any context.
func sleepOneSecond() { time.Sleep(time.Second) }

// Each test case is a wrong driver or a wrong consumer. The test runs in virtual time.
func TestCheckReportsSleep(t *testing.T) {
	for _, test := range []struct {
		name string
		rule check.Rule
		run  func(t *testing.T, b *testBench)
	}{
		{"driver sleeps in post send", check.RuleSleepInMethod, func(t *testing.T, b *testBench) {
			b.drv.onPost = sleepOneSecond
			b.qp.PostSend(ib.SendWR{})
		}},
		{"driver waits for a goroutine in poll", check.RuleSleepInMethod, func(t *testing.T, b *testBench) {
			b.drv.onPoll = func() {
				done := make(chan int)
				go func() { sleepOneSecond(); close(done) }()
				<-done
			}
			b.cq.Poll(make([]ib.WC, 1))
		}},
		{"driver waits for a condition in request notify", check.RuleSleepInMethod, func(t *testing.T, b *testBench) {
			b.drv.onNotify = func() {
				var wg sync.WaitGroup
				wg.Go(sleepOneSecond)
				wg.Wait()
			}
			b.cq.ReqNotify(ib.NotifyNextComp)
		}},
		{"driver calls a sleeping function from post send", check.RuleSleepInMethod, func(t *testing.T, b *testBench) {
			b.drv.onPost = func() { b.dev.QueryDevice() }
			b.qp.PostSend(ib.SendWR{})
		}},
		{"driver sleeps while it destroys an address handle", check.RuleSleepInMethod, func(t *testing.T, b *testBench) {
			ah, err := b.pd.CreateAH(&ib.AHAttr{})
			must(t, err)
			b.drv.onDestroy = sleepOneSecond
			must(t, ah.Destroy())
			b.drv.onDestroy = nil
		}},
		{"thread sleeps while it holds callbacks", check.RuleHold, func(t *testing.T, b *testBench) {
			b.handle.HoldCallbacks()
			sleepOneSecond()
			b.handle.RunCallbacks()
		}},
		{"thread calls a sleeping function while it holds callbacks", check.RuleHold, func(t *testing.T, b *testBench) {
			b.handle.HoldCallbacks()
			b.dev.QueryDevice()
			b.handle.RunCallbacks()
		}},
		{"thread runs callbacks out of the blue", check.RuleHold, func(t *testing.T, b *testBench) {
			b.handle.HoldCallbacks()
			var wg sync.WaitGroup
			wg.Go(b.handle.RunCallbacks)
			synctest.Wait()
			observe.Of(b.dev).RecordEvent(observe.HoldEnds, (*ib.Hold)(nil)) // ends the hold on this thread
		}},
		{"driver holds callbacks in post send", check.RuleHold, func(t *testing.T, b *testBench) {
			b.drv.onPost = b.handle.HoldCallbacks
			b.qp.PostSend(ib.SendWR{})
			b.handle.RunCallbacks()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, w := newCheckedBench(t, nil, nil)
				test.run(t, b)
				b.destroyAll(t)
				w.expectRules(t, test.rule)
			})
		})
	}
}

// TestCheckReportsSleepingCallsInHandler checks that checked mode reports each function that may sleep when a
// completion handler calls it, and reports no other function.
func TestCheckReportsSleepingCallsInHandler(t *testing.T) {
	for _, test := range []struct {
		name string
		rule check.Rule // 0: allowed
		call func(t *testing.T, b *testBench)
	}{
		{"poll", 0, func(t *testing.T, b *testBench) { errorOf(b.cq.Poll(make([]ib.WC, 1))) }},
		{"request notify", 0, func(t *testing.T, b *testBench) {
			errorOf(b.cq.ReqNotify(ib.NotifyNextComp))
			errorOf(b.cq.Poll(make([]ib.WC, 1)))
		}},
		{"post send", 0, func(t *testing.T, b *testBench) { errorOf(b.qp.PostSend(ib.SendWR{})) }},
		{"post receive", 0, func(t *testing.T, b *testBench) { errorOf(b.qp.PostRecv(ib.RecvWR{})) }},
		{"address handle", 0, func(t *testing.T, b *testBench) {
			ah, err := b.pd.CreateAH(&ib.AHAttr{})
			must(t, err)
			_, err = ah.Query()
			must(t, errors.Join(err, ah.Modify(&ib.AHAttr{}), ah.Destroy()))
		}},
		{"dispatch event", 0, func(t *testing.T, b *testBench) { b.handle.DispatchEvent(ib.EventPortErr, 1) }},
		{"raise", 0, func(t *testing.T, b *testBench) { b.drv.qp.Raise(ib.EventQPFatal) }},
		{"state", 0, func(t *testing.T, b *testBench) { b.qp.State(); b.dev.State() }},
		{"sleep", check.RuleSleepInCallback, func(*testing.T, *testBench) { sleepOneSecond() }},
		{"query device", check.RuleSleepInCallback, func(t *testing.T, b *testBench) { b.dev.QueryDevice() }},
		{"query port", check.RuleSleepInCallback, func(t *testing.T, b *testBench) { b.dev.QueryPort(1) }},
		{"query gid", check.RuleSleepInCallback, func(t *testing.T, b *testBench) { b.dev.QueryGID(1, 0) }},
		{"query pkey", check.RuleSleepInCallback, func(t *testing.T, b *testBench) { b.dev.QueryPKey(1, 0) }},
		{"alloc pd", check.RuleSleepInCallback, func(t *testing.T, b *testBench) {
			pd, err := b.dev.AllocPD()
			must(t, errors.Join(err, pd.Dealloc()))
		}},
		{"modify qp", check.RuleSleepInCallback, func(t *testing.T, b *testBench) {
			b.qp.Modify(ib.QPAttr{},
				ib.QPAttrState)
		}},
		{"query qp", check.RuleSleepInCallback, func(t *testing.T, b *testBench) { b.qp.Query(0) }},
		{"resize cq", check.RuleSleepInCallback, func(t *testing.T, b *testBench) { b.cq.Resize(4) }},
		{"on event", check.RuleSleepInCallback, func(t *testing.T, b *testBench) { b.dev.OnEvent(func(ib.Event) {}) }},
		{"register a client", check.RuleSleepInCallback, func(t *testing.T, b *testBench) {
			b.core.RegisterClient(&ib.Client{Name: "A", Add: func(*ib.Device) (any, error) { return nil, nil },
				Remove: func(*ib.Device, any) {}})
		}},
		{"destroy the queue itself", check.RuleWaitForSelf, func(t *testing.T, b *testBench) {
			if err := b.cq.Destroy(); !errors.Is(err, syscall.EDEADLK) {
				t.Error(err)
			}
		}},
		{"unregister the device", check.RuleWaitForSelf, func(t *testing.T, b *testBench) {
			if err := b.core.Unregister(b.handle); !errors.Is(err, syscall.EDEADLK) {
				t.Error(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var b *testBench
				calls := 0
				b, w := newCheckedBench(t, func(*ib.CQ) {
					if calls++; calls == 1 {
						test.call(t, b)
					}
				}, nil)
				errorOf(b.cq.ReqNotify(ib.NotifyNextComp))
				b.qp.PostSend(ib.SendWR{})
				testutil.AdvanceTime(2 * time.Second)
				b.destroyAll(t)
				if calls == 0 {
					t.Error("handler calls: got none, want at least 1")
				}
				switch seen := w.violations(); {
				case test.rule == 0:
					w.expectRules(t)
				case test.name == "alloc pd": // alloc and dealloc
					w.expectRules(t, test.rule, test.rule)
				case len(seen) == 1 && test.rule != check.RuleSleepInCallback:
					w.expectRules(t, test.rule)
				default:
					w.expectRules(t, test.rule)
					if len(seen) > 0 && !strings.Contains(fmt.Sprint(seen[0].Stacks), "raised at") {
						t.Error("stacks of the report: got no place that raised the completion, want one")
					}
				}
			})
		})
	}
}

func TestCheckReportsCallbackInCallchain(t *testing.T) {
	for _, test := range []struct {
		name string
		hook func(b *testBench) *func() // the driver's hook
		call func(b *testBench)
	}{
		{"post send", func(b *testBench) *func() { return &b.drv.onPost }, func(b *testBench) { b.qp.PostSend(ib.SendWR{}) }},
		{"poll", func(b *testBench) *func() { return &b.drv.onPoll }, func(b *testBench) { b.cq.Poll(make([]ib.WC, 1)) }},
		{"request notify", func(b *testBench) *func() { return &b.drv.onNotify },
			func(b *testBench) { b.cq.ReqNotify(ib.NotifyNextComp) }},
		{"a method that may sleep", func(b *testBench) *func() { return &b.drv.onQuery },
			func(b *testBench) { b.dev.QueryDevice() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			var called atomic.Bool
			b, w := newCheckedBench(t, func(*ib.CQ) { called.Store(true) }, nil)
			errorOf(b.cq.ReqNotify(ib.NotifyNextComp))
			errorOf(b.cq.ReqNotify(ib.NotifyNextComp)) // post send completes again, later and on another thread
			*test.hook(b) = func() {
				b.handle.HoldCallbacks()
				b.drv.cq.Completed()
				b.handle.RunCallbacks()
			}
			test.call(b)
			*test.hook(b) = nil
			if !called.Load() {
				t.Error("handler calls: got none, want at least 1")
			}
			b.destroyAll(t)
			w.expectRules(t, check.RuleHold, check.RuleCallchain)
		})
	}
}

// TestCheckTwoHandlers simulates two handlers that run at the same time. Only a defect of the midlayer could cause
// this.
func TestCheckTwoHandlers(t *testing.T) {
	inside, leave := make(chan int), make(chan int)
	b, w := newCheckedBench(t, nil, nil)
	for range 2 {
		go func() {
			c := &observe.Call{Kind: observe.Handler, What: "the completion handler", Returned: true}
			observe.Of(b.cq).Enter(c)
			inside <- 1
			<-leave
			observe.Of(b.cq).Leave(c)
			inside <- 2
		}()
		<-inside
	}
	close(leave)
	<-inside
	<-inside
	b.destroyAll(t)
	var rules []check.Rule
	for _, v := range w.violations() {
		if v.Rule != check.RuleSleepInCallback { // the handler really sleeps
			rules = append(rules, v.Rule)
		}
	}
	if !slices.Equal(rules, []check.Rule{check.RuleOneHandler}) {
		t.Errorf("rules: got %v, want only one-handler", rules)
	}
}

func TestCheckReportsSecondNotification(t *testing.T) {
	b, w := newCheckedBench(t, func(*ib.CQ) {}, nil)
	for range 2 {
		errorOf(b.cq.ReqNotify(ib.NotifyNextComp))
		b.drv.cq.Completed()
	}
	w.expectRules(t)
	b.drv.cq.Completed()
	b.destroyAll(t)
	w.expectRules(t, check.RuleNotifyOnce)
}

// TestCheckReportsHeldLocks checks that a lock held in the wrong place is reported even if every thread waits for the
// lock. The test releases the lock afterwards.
func TestCheckReportsHeldLocks(t *testing.T) {
	t.Run("callbacks run under the lock of the queue", func(t *testing.T) {
		var lock sync.Mutex
		w, core := &violationRecorder{}, &ib.Core{}
		reported := make(chan int, 1)
		check.On(core, check.Config{Timeout: 100 * time.Millisecond, Report: func(v check.Violation) {
			w.recordViolation(v)
			reported <- 1
		}})
		b := newBenchOn(t, core, func(cq *ib.CQ) { cq.ReqNotify(ib.NotifyNextComp) }, nil)
		errorOf(b.cq.ReqNotify(ib.NotifyNextComp))
		b.drv.onNotify = func() { lock.Lock(); defer lock.Unlock() }
		go func() { <-reported; lock.Unlock() }()
		b.handle.HoldCallbacks()
		lock.Lock()
		b.drv.cq.Completed()
		b.handle.RunCallbacks()
		b.destroyAll(t)
		w.expectRules(t, check.RuleLockAcrossCallback)
	})
	for _, test := range []struct {
		name   string
		client func(b func() *testBench) *ib.Client
	}{
		{"unregister, and Remove calls the driver", func(b func() *testBench) *ib.Client {
			return &ib.Client{Name: "A", Add: func(d *ib.Device) (any, error) { return nil, nil },
				Remove: func(d *ib.Device, _ any) { d.QueryDevice() }}
		}},
		{"unregister, and Remove waits for a thread that calls the driver", func(b func() *testBench) *ib.Client {
			return &ib.Client{Name: "A", Add: func(d *ib.Device) (any, error) { return nil, nil },
				Remove: func(d *ib.Device, _ any) {
					done := make(chan int)
					go func() { b().cq.Poll(make([]ib.WC, 1)); close(done) }()
					<-done
				}}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var lock sync.Mutex
			w, core := &violationRecorder{}, &ib.Core{}
			reported := make(chan int, 1)
			check.On(core, check.Config{Timeout: 100 * time.Millisecond, Report: func(v check.Violation) {
				w.recordViolation(v)
				select {
				case reported <- 1:
				default:
				}
			}})
			var b *testBench
			must(t, core.RegisterClient(test.client(func() *testBench { return b })))
			b = newBenchOn(t, core, nil, nil)
			take := func() { lock.Lock(); defer lock.Unlock() }
			b.drv.onQuery, b.drv.onPoll = take, take
			go func() { <-reported; lock.Unlock() }()
			lock.Lock()
			err := core.Unregister(b.handle)
			if !errors.Is(err, syscall.EBUSY) { // the objects of the bench exist
				t.Error(err)
			}
			for _, v := range w.violations() {
				if v.Rule != check.RuleLockAcrossRegister && v.Rule != check.RuleLeftBehind {
					t.Error(v)
				}
			}
			if seen := w.violations(); len(seen) < 2 || seen[0].Rule != check.RuleLockAcrossRegister {
				t.Errorf("reports: got %v, want at least 2, the first of lock-across-register", seen)
			}
		})
	}
}

func TestCheckReportsWaitForSelf(t *testing.T) {
	h, _ := newDevice("fake0")
	var cl *ib.Client
	core, w := &ib.Core{}, &violationRecorder{}
	check.On(core, check.Config{Report: w.recordViolation})
	cl = &ib.Client{
		Name: "A",
		Add: func(d *ib.Device) (any, error) {
			if err := core.Unregister(h); !errors.Is(err, syscall.EDEADLK) {
				t.Error(err)
			}
			return nil, nil
		},
		Remove: func(d *ib.Device, _ any) { core.UnregisterClient(cl) },
	}
	must(t, core.RegisterClient(cl))
	must(t, core.Register(h))
	must(t, core.Unregister(h))
	core.UnregisterClient(cl)
	w.expectRules(t, check.RuleWaitForSelf, check.RuleWaitForSelf)
}

func TestCheckReportsUseAfterDestroy(t *testing.T) {
	t.Run("destroy", func(t *testing.T) {
		b, w := newCheckedBench(t, func(*ib.CQ) {}, nil)
		ah, err := b.pd.CreateAH(&ib.AHAttr{})
		must(t, errors.Join(err, ah.Destroy()))
		b.destroyAll(t)
		for what, err := range map[string]error{
			"poll":    errorOf(b.cq.Poll(make([]ib.WC, 1))),
			"notify":  errorOf(b.cq.ReqNotify(ib.NotifyNextComp)),
			"send":    errorOf(b.qp.PostSend(ib.SendWR{})),
			"receive": errorOf(b.qp.PostRecv(ib.RecvWR{})),
			"destroy": b.qp.Destroy(),
			"dealloc": b.pd.Dealloc(),
			"ah":      ah.Destroy(),
			"ah2":     ah.Modify(nil),
			"ah3":     errorOf(ah.Query()),
		} {
			if !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%s: %v", what, err)
			}
		}
		b.drv.cq.Completed()
		b.drv.qp.Raise(ib.EventQPFatal)
		for _, v := range w.violations() {
			if v.Rule != check.RuleUseAfterDestroy && v.Rule != check.RuleNotifyOnce {
				t.Error(v)
			}
			if v.Rule == check.RuleUseAfterDestroy && len(v.Stacks) != 3 {
				t.Errorf("stacks: got %d, want 3: the use, the end and the beginning", len(v.Stacks))
			}
		}
		if n := len(w.violations()); n != 12 {
			t.Errorf("reports: got %d, want 12", n)
		}
	})
	t.Run("unregister", func(t *testing.T) {
		b, w := newCheckedBench(t, nil, nil)
		must(t, b.qp.Destroy())
		must(t, b.cq.Destroy())
		must(t, b.pd.Dealloc())
		must(t, b.core.Unregister(b.handle))
		w.expectRules(t)
		b.dev.QueryPort(1)
		b.dev.AllocPD()
		w.expectRules(t, check.RuleUseAfterUnregister, check.RuleUseAfterUnregister)
	})
}

// TestCheckReportsUndestroyedObjects checks that a report names the remaining objects and the places of their creation.
// The report is made when Remove of the owning client returns, if the client is known.
func TestCheckReportsUndestroyedObjects(t *testing.T) {
	core, w := &ib.Core{}, &violationRecorder{}
	check.On(core, check.Config{Report: w.recordViolation})
	keeper := func(name string, fail error) *ib.Client {
		return &ib.Client{
			Name: name,
			Add: func(d *ib.Device) (any, error) {
				pd, err := d.AllocPD()
				must(t, err)
				return pd, fail
			},
			Remove: func(d *ib.Device, data any) { // leaves another object
				_, err := data.(*ib.PD).CreateAH(&ib.AHAttr{})
				must(t, err)
			},
		}
	}
	must(t, core.RegisterClient(keeper("A", nil)))
	must(t, core.RegisterClient(keeper("B", errors.New("changed my mind"))))
	d, _ := newDevice("fake0")
	must(t, core.Register(d))
	_, err := d.Device().CreateCQ(ib.CQInit{Entries: 1}) // without a client
	must(t, err)
	if err := core.Unregister(d); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	w.expectRules(t, check.RuleLeftBehind, check.RuleLeftBehind, check.RuleLeftBehind)
	for i, want := range []string{"Add of client B returned: PD", "Remove of client A returned: PD, AH",
		"Unregister returned: CQ"} {
		if v := w.violations()[i]; !strings.Contains(v.What, want) {
			t.Errorf("%q, want %q", v.What, want)
		}
	}
}

func TestCheckReportsObjectsAtDealloc(t *testing.T) {
	b, w := newCheckedBench(t, nil, nil)
	if err := b.handle.Dealloc(); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	b.destroyAll(t)
	must(t, b.handle.Dealloc())
	must(t, ib.NewDevice("never", ibfake.New(), nil).Dealloc())
	w.expectRules(t, check.RuleFreeBeforeUnregister)
}

func TestCheckReportsInvalidPostResults(t *testing.T) {
	b, w := newCheckedBench(t, nil, nil)
	post := func(n int, err error) {
		b.drv.post = func() (int, error) { return n, err }
		b.qp.PostSend(ib.SendWR{}, ib.SendWR{})
	}
	post(2, nil)
	post(1, syscall.ENOMEM)
	post(0, syscall.EINVAL)
	w.expectRules(t)
	post(1, nil)
	post(2, syscall.ENOMEM)
	post(3, nil)
	post(-1, syscall.EINVAL)
	b.drv.poll = func() (int, error) { return 2, nil }
	b.drv.arm = func() (bool, error) { return true, nil }
	b.cq.Poll(make([]ib.WC, 1))
	b.cq.ReqNotify(ib.NotifyNextComp)
	b.destroyAll(t)
	w.expectRules(t, slices.Repeat([]check.Rule{check.RuleResult}, 6)...)
}

// TestCheckReportsOncePerPlace checks that a violation is reported once for each place in the code.
func TestCheckReportsOncePerPlace(t *testing.T) {
	b, w := newCheckedBench(t, nil, nil)
	b.drv.onPost = func() { b.dev.QueryDevice() }
	for range 5 {
		b.qp.PostSend(ib.SendWR{})
	}
	b.drv.onPost = func() { b.dev.QueryPort(1) }
	b.qp.PostSend(ib.SendWR{})
	b.destroyAll(t)
	w.expectRules(t, check.RuleSleepInMethod, check.RuleSleepInMethod)
}

func TestCheckKeepsNoState(t *testing.T) {
	// On a busy machine, a handler may not run for a long time.
	b, w := newCheckedBenchWithTimeout(t, time.Minute, func(cq *ib.CQ) { cq.Poll(make([]ib.WC, 4)) }, func(*ib.QP,
		ib.EventType) {
	})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				b.cq.ReqNotify(ib.NotifyNextComp)
				b.handle.HoldCallbacks()
				b.qp.PostSend(ib.SendWR{})
				b.drv.qp.Raise(ib.EventCommEst)
				b.handle.RunCallbacks()
				b.dev.QueryDevice()
			}
		})
	}
	wg.Wait()
	b.destroyAll(t)
	w.expectRules(t)
	if threads, objects := check.RemainingState(b.dev); threads != 0 || objects != 0 {
		t.Errorf("checker state: got %d threads, %d objects, want none", threads, objects)
	}
}

func TestRulesHaveNames(t *testing.T) {
	names := map[string]bool{}
	for r := check.RuleSleepInMethod; r.ContractPoint() != 0; r++ {
		if s := r.String(); s == "" || names[s] || r.ContractPoint() > 6 {
			t.Errorf("rule %d: got name %q and point %d, want a new name and at most 6", r, s, r.ContractPoint())
		}
		names[r.String()] = true
	}
	if s := check.Rule(200).String(); s != "Rule(200)" {
		t.Error(s)
	}
}

// TestAbandonedObjectIsNotReported checks that an abandoned object is not reported at the unregistration of the device,
// and can be destroyed afterwards.
func TestAbandonedObjectIsNotReported(t *testing.T) {
	var found []check.Violation
	core := &ib.Core{}
	check.On(core, check.Config{Report: func(v check.Violation) { found = append(found, v) }})
	b := newBenchOn(t, core, nil, nil)
	b.qp.Abandon()
	b.cq.Abandon()
	b.qp.Abandon() // a second call has no effect
	if got, want := b.dev.Objects(), (ib.ObjectCounts{PD: 1}); got != want {
		t.Errorf("Objects after Abandon: got %+v, want %+v", got, want)
	}
	b.pd.Abandon()
	if err := core.Unregister(b.handle); err != nil {
		t.Errorf("Unregister with abandoned objects: got %v, want nil", err)
	}
	must(t, b.qp.Destroy())
	must(t, b.cq.Destroy())
	must(t, b.pd.Dealloc())
	if got, want := b.dev.Objects(), (ib.ObjectCounts{}); got != want {
		t.Errorf("Objects after all destructions: got %+v, want %+v", got, want)
	}
	if len(found) > 0 {
		t.Errorf("violations: got %v, want none", found)
	}
}
