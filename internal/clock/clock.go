// Package clock is time as a thing that is handed in, so that who needs it can be tested without waiting for it.
//
// [System] is the time of package time. [Virtual] stands still until it is stepped, and then runs what is due, one
// after the other on the caller's thread: what depends on nothing else happens exactly the same each time.
package clock

import (
	"sync"
	"time"

	"verbena/internal/timeq"
)

// Clock tells the time and calls back.
type Clock interface {
	Now() time.Time
	// AfterFunc has f called after d, as time.AfterFunc does.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is a call that AfterFunc promised. *time.Timer is one.
type Timer interface {
	// Reset has the call come after d from now, and reports whether it was still to come.
	Reset(d time.Duration) bool
	// Stop calls it off, and reports whether it was still to come.
	Stop() bool
}

// System is the time of package time. In a bubble of testing/synctest that is virtual too.
var System Clock = system{}

type system struct{}

func (system) Now() time.Time                            { return time.Now() }
func (system) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// Virtual is a Clock that stands still but for Step and Sleep. Calls that are due at one time come in the order in
// which they were asked for. It is safe for concurrent use; one thread at a time steps.
type Virtual struct {
	mu  sync.Mutex
	now time.Time
	due timeq.Queue[func()]
}

// NewVirtual returns a clock that shows start.
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

// Next tells when the next call is due, and false if there is none.
func (v *Virtual) Next() (time.Time, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if first := v.due.First(); first != nil {
		return first.Due(), true
	}
	return time.Time{}, false
}

// Step moves the clock on to the next call and makes it, false if there is none.
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

// Sleep lets d pass, and makes the calls that come due until then.
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
	was := t.item.Queued()
	v.due.Put(t.item, v.now.Add(max(d, 0)))
	return was
}

func (t *virtualTimer) Stop() bool {
	v := t.clock
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.due.Remove(t.item)
}
