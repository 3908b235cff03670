package check

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"verbena/ib"
)

// The checker inspects a call that may not sleep if the call takes long. The stack of its goroutine shows whether the
// call sleeps or waits for a lock. A call may wait for a lock, but only for a limited time. The interval between
// inspections doubles up to Timeout/longWait. A wait for the same lock in longWait consecutive inspections exceeds
// Timeout.
const (
	firstLook = 500 * time.Microsecond
	longWait  = 20
)

//verbena:held mu
func (k *checker) startWatchTimer(f *frame) {
	if f.kind == inCallback {
		f.late = time.AfterFunc(k.cfg.ClientTimeout, func() { k.checkClientReturned(f, RuleCallbackReturns) })
	}
	switch {
	case f.kind.mayNotSleep():
		f.delay = firstLook
		f.timer = time.AfterFunc(f.delay, func() { k.inspectFrame(f) })
	case f.kind == inRegister:
		f.delay = k.cfg.Timeout / longWait
		f.blocked = map[*frame]int{}
		f.timer = time.AfterFunc(f.delay, func() { k.inspectOtherCalls(f) })
	case f.kind == inClient:
		f.timer = time.AfterFunc(k.cfg.ClientTimeout, func() { k.checkClientReturned(f, RuleClientReturns) })
	}
}

//verbena:held mu
func (k *checker) restartWatchTimer(f *frame) {
	if !f.left {
		f.delay = min(2*f.delay, k.cfg.Timeout/longWait)
		f.timer.Reset(f.delay)
	}
}

// inspectFrame inspects the thread of f, a call that may not sleep.
func (k *checker) inspectFrame(f *frame) {
	k.looking.Lock()
	defer k.looking.Unlock()
	k.mu.Lock()
	th, seq := f.th, f.th.seq
	inside := !f.left && th.innermostFrame() == f // otherwise the inner calls are inspected instead
	k.mu.Unlock()
	var all map[int64]goroutine
	if inside {
		all = allGoroutines()
	}
	k.mu.Lock()
	g, ok := all[th.id]
	if inside && !ok && !f.left && th.seq == seq && f.kind == inHold {
		k.removeFrame(f)
		k.mu.Unlock()
		f.drop()
		begin, end := holdCallNames(f.holder)
		k.report(Violation{
			Rule: RuleHold, What: fmt.Sprintf("the thread that called %s ended without %s", begin, end),
			Stacks: []Stack{{begin + " called at", formatStack(f.entry)}},
		}, f.dev, f.entry)
		return
	}
	if !inside || !ok || f.left || th.seq != seq {
		f.blockedFor, f.ran, f.suspected, f.resting = 0, 0, false, 0
		k.restartWatchTimer(f)
		k.mu.Unlock()
		return
	}
	v := Violation{Rule: f.kind.ruleForSleep()}
	var suspects []Stack
	switch {
	case g.isAsleep() && g.state == ambiguousState && !f.suspected:
		f.suspected = true // confirmed by the next inspection
	case g.isAsleep():
		v.What = fmt.Sprintf("%s sleeps (%s)", f.what, g.state)
	case g.isWaitingForLock() && f.countStuckInspection(all), g.isInLockOrSyscall() && f.delay >= k.cfg.Timeout/longWait:
		if f.blockedFor++; f.blockedFor < longWait && !f.isLockOwnerAsleep() {
			break
		}
		v.What = fmt.Sprintf("%s has waited for long (%s): a deadlock, or the thread that it waits for sleeps",
			f.what, g.state)
		if f.isLockOwnerAsleep() {
			v.What = fmt.Sprintf("%s has waited for long (%s), and no other goroutine was running: the owner of the "+
				"lock sleeps",
				f.what, g.state)
			suspects = g.sleepersInPackage(all)
		}
		switch reg := k.currentRegisterFrame(f.dev); {
		case reg != nil && f.kind == inCallback && reg.clientFrame() != nil:
			// The lock belongs to the client, because the callback is not inside a call of the driver.
			v.What += fmt.Sprintf("; %s is in progress", reg.clientFrame().what)
		case reg != nil:
			v.Rule = RuleLockAcrossRegister
			v.What += fmt.Sprintf("; %s is in progress", reg.what)
		case th.findFrame(func(x *frame) bool { return x.kind == inCallback }) != nil && f.kind == inAtomic:
			v.Rule = RuleLockAcrossCallback
		}
	case !g.isInLockOrSyscall():
		f.blockedFor, f.suspected, f.resting = 0, false, 0
		if f.lastSeq != seq {
			f.ran, f.lastSeq = 0, seq
		}
		if f.delay < k.cfg.Timeout/longWait {
			break
		}
		if f.ran++; f.ran >= longWait {
			v.What = fmt.Sprintf("%s has run for %v without a call that would show progress", f.what, k.cfg.Timeout)
		}
	}
	if v.What == "" {
		k.restartWatchTimer(f)
		k.mu.Unlock()
		return
	}
	v.Stacks = append([]Stack{{f.what + ", waiting", g.trace}}, f.raiseStacks()...)
	if g.isInLockOrSyscall() {
		v.Stacks = append(append(v.Stacks, suspects...), k.otherStacks(f.dev, th, all)...)
	}
	k.mu.Unlock()
	k.report(v, f.dev, f.entry)
}

// inspectOtherCalls reports calls into the driver that wait for a lock while f, a Register or Unregister, is in
// progress.
func (k *checker) inspectOtherCalls(f *frame) {
	k.looking.Lock()
	defer k.looking.Unlock()
	k.mu.Lock()
	candidates := map[*frame]uint64{}
	for _, th := range k.threads {
		if x := th.innermostFrame(); x != f && x.kind.mayWaitForLock() && (f.dev == nil || x.dev == f.dev) {
			candidates[x] = th.seq
		}
	}
	k.mu.Unlock()
	var all map[int64]goroutine
	if len(candidates) > 0 {
		all = allGoroutines()
	}
	k.mu.Lock()
	if f.left {
		k.mu.Unlock()
		return
	}
	seen := map[*frame]int{}
	var stuck *frame
	for x, seq := range candidates {
		if g, ok := all[x.th.id]; ok && !x.left && x.th.seq == seq && g.isWaitingForLock() {
			seen[x] = f.blocked[x] + 1
			if seen[x] == longWait {
				stuck = x
			}
		}
	}
	f.blocked = seen
	k.restartWatchTimer(f)
	if stuck == nil {
		k.mu.Unlock()
		return
	}
	v := Violation{
		Rule: RuleLockAcrossRegister,
		What: fmt.Sprintf("%s has waited long for a lock while %s is in progress: a deadlock", stuck.what, f.what),
		Stacks: append([]Stack{{stuck.what + ", waiting", all[stuck.th.id].trace}, {f.what + " called at",
			formatStack(f.entry)}},
			k.otherStacks(stuck.dev, stuck.th, all)...),
	}
	k.mu.Unlock()
	k.report(v, stuck.dev, stuck.entry)
}

// checkClientReturned reports an Add, Remove or callback that has not returned within ClientTimeout.
func (k *checker) checkClientReturned(f *frame, rule Rule) {
	k.looking.Lock()
	defer k.looking.Unlock()
	all := allGoroutines()
	k.mu.Lock()
	if f.left {
		k.mu.Unlock()
		return
	}
	g := all[f.th.id]
	v := Violation{
		Rule: rule,
		What: fmt.Sprintf("%s has not returned for %v (%s)", f.what, k.cfg.ClientTimeout, g.state),
		Stacks: append([]Stack{{f.what + ", now", g.trace}, {"called at", formatStack(f.entry)}},
			k.otherStacks(f.dev, f.th, all)...),
	}
	k.mu.Unlock()
	k.report(v, f.dev, f.entry)
}

// currentRegisterFrame returns the Register or Unregister call in progress on the device, or nil.
//
//verbena:held mu
func (k *checker) currentRegisterFrame(d *ib.Device) *frame {
	for _, th := range k.threads {
		if f := th.findFrame(func(f *frame) bool { return f.kind == inRegister && f.dev == d }); f != nil {
			return f
		}
	}
	return nil
}

// clientFrame returns the frame of the client's Add or Remove inside the Register or Unregister f, or nil.
//
//verbena:held f.k.mu
func (f *frame) clientFrame() *frame {
	return f.th.findFrame(func(x *frame) bool { return x.kind == inClient })
}

// otherStacks returns the stacks of other threads with calls on the device. k.mu must be held.
func (k *checker) otherStacks(d *ib.Device, but *checkedThread, all map[int64]goroutine) (s []Stack) {
	for _, th := range k.threads {
		if f := th.findFrame(func(f *frame) bool { return f.dev == d }); f != nil && th != but && len(s) < 8 {
			s = append(s, Stack{"another thread, in " + f.what, all[th.id].trace})
		}
	}
	return s
}

// goroutine is one paragraph of runtime.Stack's output.
type goroutine struct {
	state string // such as "chan receive"
	trace string
}

// sleepingStates lists the states of a goroutine that waits for an event without a time limit.
var sleepingStates = []string{
	"chan receive", "chan send", "select", "sleep", "IO wait", "sync.Cond.Wait", "sync.WaitGroup.Wait",
}

// ambiguousState is the one state in sleeping that an allocation can also cause briefly, when it starts a garbage
// collection.
const ambiguousState = "chan receive"

// lockWaitStates lists the states of a goroutine that waits for a lock. A short wait is allowed.
var lockWaitStates = []string{"sync.Mutex.Lock", "sync.RWMutex.Lock", "sync.RWMutex.RLock", "semacquire"}

func (g goroutine) isAsleep() bool          { return slices.Contains(sleepingStates, g.state) }
func (g goroutine) isWaitingForLock() bool  { return slices.Contains(lockWaitStates, g.state) }
func (g goroutine) isInLockOrSyscall() bool { return g.isWaitingForLock() || g.state == "syscall" }

// allGoroutines returns all goroutines by number. allGoroutines stops the world briefly.
func allGoroutines() map[int64]goroutine {
	buf := make([]byte, 64<<10)
	n := runtime.Stack(buf, true)
	for n == len(buf) && n < 16<<20 {
		buf = make([]byte, 2*len(buf))
		n = runtime.Stack(buf, true)
	}
	return parseGoroutines(buf[:n])
}

// parseGoroutines parses paragraphs that begin like "goroutine 7 [select (no cases), 2 minutes]:".
func parseGoroutines(dump []byte) map[int64]goroutine {
	all := map[int64]goroutine{}
	for _, p := range bytes.Split(dump, []byte("\n\n")) {
		head, body, _ := bytes.Cut(p, []byte(":\n"))
		number, state, ok := strings.Cut(strings.TrimPrefix(string(head), "goroutine "), " ")
		id, err := strconv.ParseInt(number, 10, 64)
		if !ok || err != nil {
			continue
		}
		if _, s, ok := strings.Cut(state, "["); ok {
			state = s
		}
		if i := strings.IndexAny(state, ",(]"); i >= 0 {
			state = state[:i]
		}
		all[id] = goroutine{state: strings.TrimSpace(state), trace: string(body)}
	}
	return all
}
