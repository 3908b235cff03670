package sched

import (
	"runtime"
	"sync"
)

// Mutex is a sync.Mutex for the data path. There, critical sections last some microseconds, the time of copying a
// train, and threads are locked to their goroutines. Parking and waking such a thread takes the Go scheduler three
// context switches, each of which may wait for a spinning program. So Lock spins for a while first. The zero Mutex is
// unlocked.
type Mutex struct{ mu sync.Mutex }

const (
	// looks times pauses is slightly more than the duration of a critical section, some 20 us. Lock counts instead of
	// measuring time, since time may be virtual.
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

// look spins for a while.
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
