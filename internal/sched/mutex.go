package sched

import (
	"runtime"
	"sync"
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
	if m.mu.TryLock() || m.look() {
		return
	}
	m.mu.Lock()
}

// look tries for a while.
func (m *Mutex) look() bool {
	if alone {
		return false
	}
	for range looks {
		for range pauses {
		}
		if m.mu.TryLock() {
			return true
		}
	}
	return false
}

// TryLock locks m if it is free, and reports whether it was.
func (m *Mutex) TryLock() bool { return m.mu.TryLock() }

// Unlock unlocks m.
func (m *Mutex) Unlock() { m.mu.Unlock() }
