package sched

import (
	"runtime"
	"sync"
)

// Mutex is a sync.Mutex for the data path. On the data path, critical sections last some microseconds, the time to
// copy a train, and threads are locked to their goroutines. Parking and waking such a thread takes the Go scheduler
// three context switches, and each switch may wait for a spinning program. Therefore Lock first spins for some
// time. The zero Mutex is unlocked.
type Mutex struct{ mu sync.Mutex }

const (
	// The product of spinRounds and pausesPerRound takes slightly longer than a critical section, about 20 us. Lock
	// counts iterations instead of measuring time, because time may be virtual.
	spinRounds     = 400
	pausesPerRound = 200
)

var singleCPU = runtime.NumCPU() == 1

// Lock locks m.
func (m *Mutex) Lock() {
	if m.mu.TryLock() || m.trySpinLock() {
		return
	}
	m.mu.Lock()
}

// trySpinLock tries to take the mutex for a short time, and reports whether it has taken it.
func (m *Mutex) trySpinLock() bool {
	if singleCPU {
		return false
	}
	for range spinRounds {
		for range pausesPerRound {
		}
		if m.mu.TryLock() {
			return true
		}
	}
	return false
}

// Unlock unlocks m.
func (m *Mutex) Unlock() { m.mu.Unlock() }
