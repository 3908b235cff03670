package service

import (
	"slices"
	"sync"
	"time"

	"verbena/roce"
)

// QPFailure is the entry of a queue pair into ERR.
type QPFailure struct {
	Time   time.Time
	Device string
	QP     uint32
	Why    string // reason, as text for readers
}

// maxFailures limits the failures that a service keeps. Later failures replace the oldest.
const maxFailures = 256

// qpFailures holds the latest failures of queue pairs.
type qpFailures struct {
	mu   sync.Mutex
	n    int // number of failures so far
	ring [maxFailures]QPFailure
}

// add records a failure. add may not sleep: the caller is a driver, which holds locks. add omits the general services
// queue pair, which belongs to the connection manager.
func (f *qpFailures) add(dev string, num uint32, why string) {
	if num == roce.QPNGSI {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ring[f.n%maxFailures] = QPFailure{Time: time.Now(), Device: dev, QP: num, Why: why}
	f.n++
}

// QPFailures returns the latest 256 failures of queue pairs of all users, the latest first.
func (s *Service) QPFailures() []QPFailure {
	f := &s.links.failures
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]QPFailure, 0, min(f.n, maxFailures))
	for i := max(f.n-maxFailures, 0); i < f.n; i++ {
		list = append(list, f.ring[i%maxFailures])
	}
	slices.Reverse(list)
	return list
}
