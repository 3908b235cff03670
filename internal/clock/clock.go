// Package clock is time as a thing that is handed in, so that who needs it can be tested without waiting for it.
//
// [System] is the time of package time. [Virtual] stands still until it is stepped, and then runs what is due, one
// after the other on the caller's thread: what depends on nothing else happens exactly the same each time.
package clock

import (
	"container/heap"
	"sync"
	"time"
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
	seq uint64
	due timers
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
	t := &virtualTimer{clock: v, f: f, index: -1}
	t.Reset(d)
	return t
}

// Next tells when the next call is due, and false if there is none.
func (v *Virtual) Next() (time.Time, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.due) == 0 {
		return time.Time{}, false
	}
	return v.due[0].at, true
}

// Step moves the clock on to the next call and makes it, false if there is none.
func (v *Virtual) Step() bool {
	v.mu.Lock()
	if len(v.due) == 0 {
		v.mu.Unlock()
		return false
	}
	t := heap.Pop(&v.due).(*virtualTimer)
	v.now = t.at
	v.mu.Unlock()
	t.f()
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
	f     func()
	at    time.Time
	seq   uint64
	index int // in due, -1 when it is not there
}

func (t *virtualTimer) Reset(d time.Duration) bool {
	v := t.clock
	v.mu.Lock()
	defer v.mu.Unlock()
	was := t.remove()
	t.at, t.seq = v.now.Add(max(d, 0)), v.seq
	v.seq++
	heap.Push(&v.due, t)
	return was
}

func (t *virtualTimer) Stop() bool {
	v := t.clock
	v.mu.Lock()
	defer v.mu.Unlock()
	return t.remove()
}

func (t *virtualTimer) remove() bool {
	if t.index < 0 {
		return false
	}
	heap.Remove(&t.clock.due, t.index)
	return true
}

// timers is a heap.
type timers []*virtualTimer

func (h timers) Len() int { return len(h) }
func (h timers) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].seq < h[j].seq
}
func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *timers) Push(x any) {
	t := x.(*virtualTimer)
	t.index = len(*h)
	*h = append(*h, t)
}
func (h *timers) Pop() any {
	n := len(*h) - 1
	t := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	t.index = -1
	return t
}
