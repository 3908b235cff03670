package ibtest

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/ib"
)

// Point 1, measured: these checks find even very short sleeps of a method that may not sleep. They run without checked
// mode, whose own time would be measured as well.

var sleepChecks = []ruleTest{
	{
		name: "Sleep/ContextSwitches",
		rule: "a method that may not sleep keeps its thread: it does not wait for time, another thread, the network or a file",
		test: testNoContextSwitches, plain: true,
	},
	{
		name: "Sleep/Spin",
		rule: "nor does it spin until something happens",
		test: testNoLongSpin, plain: true,
	},
	{
		name: "Sleep/LockHolders",
		rule: "a method that may sleep does not hold a lock meanwhile that one needs that may not",
		test: testNoWaitForLockHolder, plain: true,
	},
	{
		name: "Sleep/VirtualTime",
		rule: "no time passes in a method that may not sleep (see Bubble)",
		test: testNoVirtualTimePasses, plain: true, bubble: true,
	},
}

// atomicCall is a call of a method that may not sleep.
type atomicCall struct {
	what                string
	times               int
	before, call, after func() // before and after are not measured, and may be nil
}

// measurementCount is the number of measurements of a call.
const measurementCount = 100

// NothingBlocked identifies methods of queues shared with a process by the names of these functions.
func doorbell(q ib.UserQP, h *ib.Hold) { q.Doorbell(h) }
func posted(q ib.UserQP)               { q.Posted() }

// atomicCalls returns calls of all methods that may not sleep, except EnterError, which is called once for each device.
func atomicCalls(e *testEnv) []atomicCall {
	e.Helper()
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	recv := func() { p.postRecv(1, 1, 0, 8) }
	send := func() { p.postSend(0, 2, 8) }
	drain := func() {
		e.waitOneCompletion(p.cqs[0], 2, ib.WCSuccess)
		e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
	}
	wc := make([]ib.WC, 1)
	poll := func(cq *ib.CQ) func() { return func() { e.must("poll", errorOf(cq.Poll(wc))) } }
	arm := func() { e.must("request notify", errorOf(p.cqs[0].ReqNotify(ib.NotifyNextComp))) }
	dispatch := func() { e.handle.DispatchEvent(ib.EventClientReregister, 1) }
	message := func() { recv(); send(); e.waitOneCompletion(p.cqs[0], 2, ib.WCSuccess); e.awaitDueCallbacks() }
	calls := []atomicCall{
		{"QP.PostRecv", measurementCount, nil, recv, func() { send(); drain() }},
		{"QP.PostSend", measurementCount, recv, send, drain},
		{"CQ.Poll of an empty queue", measurementCount, nil, poll(p.cqs[0]), nil},
		{"CQ.Poll", measurementCount / 5, message, poll(p.cqs[1]), nil},
		{"CQ.ReqNotify", measurementCount, nil, arm, nil},
		{"QP.State", measurementCount, nil, func() { p.qps[0].State() }, nil},
		{"DeviceHandle.DispatchEvent", measurementCount, nil, dispatch, nil},
	}
	a := e.connector.ownAddress()
	if ah, err := p.pd.CreateAH(&a); err == nil {
		destroyAtEnd(e, ah, ah.Destroy)
		var made *ib.AH
		create := func() { made, err = p.pd.CreateAH(&a) }
		destroy := func() { e.must("destroy ah", made.Destroy()) }
		calls = append(calls,
			atomicCall{"PD.CreateAH", measurementCount, nil, create, func() { e.must("create ah", err); destroy() }},
			atomicCall{"AH.Destroy", measurementCount, func() { create(); e.must("create ah", err) }, destroy, nil},
			atomicCall{"AH.Query", measurementCount, nil, func() { e.must("query ah", errorOf(ah.Query())) }, nil},
			atomicCall{"AH.Modify", measurementCount, nil, func() { e.must("modify ah", ah.Modify(&a)) }, nil},
		)
	}
	if srq, err := p.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 2 * measurementCount, MaxSGE: 1}}); err == nil {
		destroyAtEnd(e, srq, srq.Destroy)
		wr := ib.RecvWR{ID: 1, SGList: p.buf[1].newSGL(0, 8)}
		calls = append(calls, atomicCall{"SRQ.PostRecv", measurementCount, nil, func() { srq.PostRecv(wr) }, nil})
	}
	return append(calls, doorbellCalls(e)...)
}

// doorbellCalls returns calls on the queues of a user context.
func doorbellCalls(e *testEnv) []atomicCall {
	if _, ok := ib.As[ib.Disassociator](userSide.Driver(e.dev)); !ok {
		return nil
	}
	_, _, p := e.newUserPair()
	q, ok := userSide.Queue(p.qps[0])
	if !ok {
		return nil
	}
	var h ib.Hold
	return []atomicCall{
		{"UserQP.Doorbell", measurementCount, nil, func() { doorbell(q, nil) }, nil},
		{"UserQP.Doorbell with a hold", measurementCount, func() { userSide.HoldCallbacks(e.dev, &h) }, func() {
			doorbell(q,
				&h)
		},
			h.Run},
		{"UserQP.Posted", measurementCount, nil, func() { posted(q) }, nil},
	}
}

// runAroundEachCall runs f around each call, and returns the number of calls: fewer than c.times if they take long.
func (c *atomicCall) runAroundEachCall(e *testEnv, f func(call func())) (n int) {
	end := time.Now().Add(e.cfg.timeout / 10)
	for ; n < c.times && (n < 5 || time.Now().Before(end)); n++ {
		if c.before != nil {
			c.before()
		}
		f(c.call)
		if c.after != nil {
			c.after()
		}
	}
	return n
}

// contextSwitches returns the number of voluntary context switches of the calling thread.
func contextSwitches(r *resultChecker) int64 {
	const thread = 1 // RUSAGE_THREAD
	var u syscall.Rusage
	r.must("getrusage", syscall.Getrusage(thread, &u))
	return u.Nvcsw
}

// threadCPUTime returns the processor time of the calling thread.
func threadCPUTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// runOnThread locks the goroutine to its thread, so that each wait of the goroutine is a voluntary context switch of
// the thread.
func runOnThread(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f()
}

// A thread also switches when it waits for a contended lock or for the garbage collector. A method that sleeps does so
// in nearly every call. The check fails if half of many calls switch, three times in a row.
const (
	switchedShare = 2 // one in two
	confirmations = 3
)

func testNoContextSwitches(e *testEnv) {
	for _, c := range atomicCalls(e) {
		runOnThread(func() {
			switched, calls := 0, 0
			for range confirmations {
				switched = 0
				calls = c.runAroundEachCall(e, func(call func()) {
					before := contextSwitches(e.resultChecker)
					call()
					if contextSwitches(e.resultChecker) > before {
						switched++
					}
				})
				if switched*switchedShare < calls {
					return
				}
			}
			e.Errorf("rule sleep-in-method: %s gave up the processor in %d of %d calls: it sleeps, or makes a system call that waits",
				c.what, switched, calls)
		})
	}
}

// spinLimit is a processor time far above that of most calls.
const spinLimit = 500 * time.Microsecond

func testNoLongSpin(e *testEnv) {
	for _, c := range atomicCalls(e) {
		runOnThread(func() {
			var worst time.Duration
			c.times = max(c.times/5, 5)
			for range confirmations {
				times := make([]time.Duration, 0, c.times)
				c.runAroundEachCall(e, func(call func()) {
					before := threadCPUTime()
					call()
					times = append(times, threadCPUTime()-before)
				})
				slices.Sort(times)
				median := times[len(times)/2]
				if median < spinLimit {
					return
				}
				worst = max(worst, median)
			}
			e.Errorf("rule sleep-in-method: half of the calls of %s take %v of the processor or more: it spins", c.what, worst)
		})
	}
}

// threadState is the state of a goroutine, as formatted by runtime.Stack.
type threadState struct {
	state string
	stack string
}

// threadStates returns all goroutines, by number.
func threadStates() map[string]threadState {
	all := map[string]threadState{}
	for _, p := range bytes.Split(allStacks(), []byte("\n\n")) {
		head, body, _ := strings.Cut(string(p), "\n")
		number, state, ok := strings.Cut(strings.TrimPrefix(head, "goroutine "), " [")
		if ok {
			state, _, _ = strings.Cut(strings.TrimRight(state, "]:"), ",")
			all[number] = threadState{state, body}
		}
	}
	return all
}

// isAsleep reports whether the goroutine waits for something other than a lock.
func (s threadState) isAsleep() bool {
	return slices.Contains([]string{
		"sleep", "chan receive", "chan send", "select", "IO wait", "sync.Cond.Wait", "sync.WaitGroup.Wait", "syscall",
	}, s.state)
}

func (s threadState) isWaitingForLock() bool {
	return strings.HasPrefix(s.state, "sync.Mutex") || strings.HasPrefix(s.state, "sync.RWMutex")
}

// isRunning reports whether the goroutine runs or waits only for a processor.
func (s threadState) isRunning() bool { return s.state == "running" || s.state == "runnable" }

// testNoWaitForLockHolder calls methods that may sleep on one thread, and methods that may not on another. If the
// second thread waits for a lock and the first one sleeps, both unchanged between two inspections, the first one sleeps
// with the lock held, unless a third thread holds it and waits for a processor.
func testNoWaitForLockHolder(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	for _, s := range e.sleepingCalls(p) {
		*p = *e.newPair(pairConfig{kind: ib.QPTypeRC, pd: p.pd})
		what := strings.Join(s.methods, " or ")
		var stop atomic.Bool
		var wg sync.WaitGroup
		names := make(chan string, 2)
		thread := func(f func()) {
			wg.Go(func() {
				names <- goroutineID()
				for !stop.Load() {
					f()
					runtime.Gosched()
				}
			})
		}
		thread(func() {
			if err := s.call(); err != nil && !errors.Is(err, syscall.EOPNOTSUPP) && !errors.Is(err, syscall.ENOSYS) {
				e.Errorf("%s: %v", what, err)
				stop.Store(true)
			}
		})
		sleeper := <-names
		wc := make([]ib.WC, 8)
		outstanding := 0
		thread(func() { // messages
			if outstanding == 0 {
				n, _ := p.qps[1].PostRecv(ib.RecvWR{SGList: p.buf[1].newSGL(0, 8)})
				k, _ := p.qps[0].PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8)})
				outstanding = n + k
			}
			for _, cq := range p.cqs {
				n, _ := cq.Poll(wc)
				outstanding -= n
				cq.ReqNotify(ib.NotifyNextComp)
			}
			p.qps[0].State()
		})
		atomically := <-names
		// Without a suspicion a few inspections are enough.
		found, last, own := 0, "", goroutineID()
		for i := 0; i < 8 || (found > 0 || last != "") && i < 400; i++ {
			time.Sleep(300 * time.Microsecond)
			all := threadStates()
			othersRest := true
			for number, s := range all {
				othersRest = othersRest && (number == own || !s.isRunning())
			}
			a, b := all[atomically], all[sleeper]
			now := ""
			if a.isWaitingForLock() && b.isAsleep() && hasMidlayerCall(a.stack) && hasMidlayerCall(b.stack) {
				now = a.stack + b.stack
			}
			if now != "" && now == last && othersRest {
				found++
			}
			if last = now; found >= 5 {
				stop.Store(true)
				e.Errorf("rule sleep-in-method: a method that may not sleep waits for a lock, while %s sleeps (%s):\n%s\n%s",
					what, b.state, a.stack, b.stack)
				break
			}
		}
		stop.Store(true)
		wg.Wait()
		if e.Failed() {
			return
		}
	}
}

// hasMidlayerCall reports whether a stack contains a call of the midlayer.
func hasMidlayerCall(stack string) bool { return strings.Contains(stack, "/ib.(*") }

// goroutineID returns the number of the calling goroutine.
func goroutineID() string {
	var buf [64]byte
	n, _, _ := strings.Cut(strings.TrimPrefix(string(buf[:runtime.Stack(buf[:], false)]), "goroutine "), " ")
	return n
}

// testNoVirtualTimePasses runs in a bubble of package testing/synctest: time advances only when all threads sleep.
func testNoVirtualTimePasses(e *testEnv) {
	for _, c := range atomicCalls(e) {
		slept := map[time.Duration]int{}
		c.runAroundEachCall(e, func(call func()) {
			before := time.Now()
			call()
			if d := time.Since(before); d > 0 {
				slept[d]++
			}
		})
		if len(slept) > 0 {
			e.Errorf("rule sleep-in-method: of %d calls of %s so many slept so long: %v", c.times, c.what, fmt.Sprint(slept))
		}
	}
}
