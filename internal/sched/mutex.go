package sched

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Mutex is a sync.Mutex for the data path, where critical sections last for some microseconds, the time of copying a
// train, and the threads are locked to their goroutines. To park and wake such a thread takes the Go scheduler three
// changes of thread, each of which may have to wait for a program that spins: so Lock looks for a while first. The zero
// Mutex is unlocked.
type Mutex struct{ mu sync.Mutex }

const (
	// looks times pauses is somewhat more than a critical section lasts, some 20 us. It is counted, not timed, since
	// time may be virtual.
	looks  = 400
	pauses = 200
)

var alone = runtime.NumCPU() == 1

// Lock locks m.
func (m *Mutex) Lock() {
	if m.mu.TryLock() || m.look(nil) {
		return
	}
	m.mu.Lock()
}

// LockUnless sleeps between two tries, first for firstNap and each time twice as long, up to lastNap.
const (
	firstNap = 20 * time.Microsecond
	lastNap  = 2 * time.Millisecond
)

// LockUnless locks m, unless that would take longer than until stop is true. It reports whether m is locked.
func (m *Mutex) LockUnless(stop *atomic.Bool) bool {
	if m.mu.TryLock() || m.look(stop) {
		return true
	}
	// A mutex cannot be waited for and left again, so this polls. It is in the kernel meanwhile, not in the Go scheduler:
	// see Mutex.
	for nap := firstNap; !stop.Load(); nap = min(2*nap, lastNap) {
		ts := unix.NsecToTimespec(nap.Nanoseconds())
		_ = unix.Nanosleep(&ts, nil)
		if m.mu.TryLock() {
			return true
		}
	}
	return false
}

// look tries for a while, or until stop, which may be nil, is true.
func (m *Mutex) look(stop *atomic.Bool) bool {
	if alone {
		return false
	}
	for range looks {
		for range pauses {
		}
		if m.mu.TryLock() {
			return true
		}
		if stop != nil && stop.Load() {
			return false
		}
	}
	return false
}

// TryLock locks m if it is free, and reports whether it was.
func (m *Mutex) TryLock() bool { return m.mu.TryLock() }

// Unlock unlocks m.
func (m *Mutex) Unlock() { m.mu.Unlock() }
