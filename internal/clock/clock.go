// Package clock provides time as a parameter, so tests do not have to wait.
//
// [System] is the time of package time. [Virtual] advances only in steps, and runs due calls one after another on
// the caller's thread. Code without other inputs then behaves identically in each run.
package clock

import (
	"sync"
	"time"

	"verbena/internal/timeq"
)

// Clock returns the current time and runs calls at later times.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f after d, like time.AfterFunc.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is a pending call of AfterFunc. A *time.Timer is a Timer.
type Timer interface {
	// Reset reschedules the call for d from now, and reports whether it was pending.
	Reset(d time.Duration) bool
	// Stop cancels the call, and reports whether it was pending.
	Stop() bool
}

// System is the time of package time. In a bubble of testing/synctest, System uses the virtual time of the bubble.
var System Clock = systemClock{}

type systemClock struct{}

func (systemClock) Now() time.Time                            { return time.Now() }
func (systemClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// Virtual is a Clock that advances only in Step and Sleep. Calls due at the same time run in the order of their
// AfterFunc or Reset. Virtual is safe for concurrent use, but only one thread at a time may step.
type Virtual struct {
	mu  sync.Mutex
	now time.Time
	due timeq.Queue[func()]
}

// NewVirtual returns a clock set to start.
func NewVirtual(start time.Time) *Virtual { return &Virtual{now: start} }

// Now implements Clock.
func (v *Virtual) Now() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now
}

// AfterFunc implements Clock.
func (v *Virtual) AfterFunc(d time.Duration, f func()) Timer {
	t := &virtualTimer{clock: v, item: timeq.NewItem(f)}
	t.Reset(d)
	return t
}

// Next returns the time of the next call, and false if there is none.
func (v *Virtual) Next() (time.Time, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if first := v.due.First(); first != nil {
		return first.Due(), true
	}
	return time.Time{}, false
}

// Step advances the clock to the next call and runs it. Step returns false if there is no call.
func (v *Virtual) Step() bool {
	v.mu.Lock()
	next := v.due.Pop()
	if next == nil {
		v.mu.Unlock()
		return false
	}
	v.now = next.Due()
	v.mu.Unlock()
	next.Value()
	return true
}

// Sleep advances the clock by d, and runs the calls that become due.
func (v *Virtual) Sleep(d time.Duration) {
	end := v.Now().Add(d)
	for {
		at, ok := v.Next()
		if !ok || at.After(end) {
			break
		}
		v.Step()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.now = end
}

type virtualTimer struct {
	clock *Virtual
	item  *timeq.Item[func()]
}

func (t *virtualTimer) Reset(d time.Duration) bool {
	v := t.clock
	v.mu.Lock()
	defer v.mu.Unlock()
	was := t.item.IsQueued()
	v.due.Put(t.item, v.now.Add(max(d, 0)))
	return was
}

func (t *virtualTimer) Stop() bool {
	v := t.clock
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.due.Remove(t.item)
}
