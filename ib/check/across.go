package check

import (
	"fmt"
	"syscall"
	"time"

	"verbena/ib/internal/observe"
)

// A lock that a thread holds across a call that may sleep must not be taken by a callback. A call that returns quickly
// does not show this mistake. The checker therefore delays the return of such a call while a callback of the device
// waits for a lock. If no other goroutine runs meanwhile, the lock belongs to the caller or to a sleeping goroutine.
const (
	acrossLook = 3 * time.Millisecond
	acrossMost = 40          // looks for one call
	acrossBusy = 5           // looks for one call that find another goroutine running
	acrossAll  = time.Second // total of the delays of one checker
	acrossDump = 2000        // looks for one checker
)

// checkBlockedCallback delays the return of f, a call that may sleep, while a callback waits for a lock, and reports
// the callback if the wait does not end. The delay uses the real time, because in a bubble of package synctest no time
// passes while a goroutine waits for a mutex.
//
//verbena:allow nosleep the call may sleep
func (k *checker) checkBlockedCallback(f *frame) {
	if f.kind != inMethod || f.dev == nil || k.acrossTime.Load() > int64(acrossAll) || k.acrossLooks.Load() > acrossDump {
		return
	}
	x, seq := k.concurrentCallback(f)
	if x == nil {
		return
	}
	self := observe.GoroutineID()
	rest, busy, began := 0, 0, time.Duration(0)
	for n := range acrossMost {
		k.acrossLooks.Add(1)
		all := allGoroutines()
		g := all[x.th.id]
		k.mu.Lock()
		same := !x.left && x.th.seq == seq
		k.mu.Unlock()
		if !same || !g.isWaitingForLock() {
			return
		}
		now := time.Duration(n) * acrossLook // at least this time has passed
		if rest++; rest == 1 {
			began = now
		}
		if !areAllAsleep(all) {
			rest = 0
			if busy++; busy == acrossBusy {
				return
			}
		}
		if rest >= restLooks && now-began >= restTime {
			k.report(Violation{
				Rule: x.kind.ruleForSleep(),
				What: fmt.Sprintf("%s waits for a lock (%s) until %s returns, and no other goroutine was running: the lock is "+
					"held across a call that may sleep", x.what, g.state, f.what),
				Stacks: append([]Stack{{x.what + ", waiting", g.trace}, {f.what + ", returning", all[self].trace}},
					x.raiseStacks()...),
			}, x.dev, x.entry)
			return
		}
		wait := syscall.NsecToTimespec(int64(acrossLook))
		_ = syscall.Nanosleep(&wait, nil)
		k.acrossTime.Add(int64(acrossLook))
	}
}

// concurrentCallback returns a callback of f's device that another thread executes outside of calls, and the number of
// the thread's pushes and pops.
func (k *checker) concurrentCallback(f *frame) (*frame, uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, th := range k.threads {
		if x := th.innermostFrame(); x != nil && x.kind == inCallback && x.dev == f.dev && th != f.th {
			return x, th.seq
		}
	}
	return nil, 0
}
