package sched

import "time"

// Spin decides whether a thread that waits for work polls for some time before it sleeps. It learns from the waits of
// the thread:
//
//	           polled in vain
//	polling -----------------> sleeping at once
//	   ^                             |
//	   +-----------------------------+
//	    several short sleeps: 1 after the first failure, more after each further one
//
// The zero Spin never polls. A Spin is for one thread.
type Spin struct {
	most time.Duration // longest time to poll
	pass int           // number of short sleeps before the next attempt to poll
	fail int           // value of pass after the next failure
}

const (
	// wakeTime is the approximate time for which a thread wakes. A wait with a sleep is longer by this time.
	wakeTime = 50 * time.Microsecond
	// mostPasses is the largest number of short sleeps before the next attempt to poll.
	mostPasses = 255
)

// NewSpin returns a Spin that allows polling for at most a time. A time of 0 or less never allows polling.
func NewSpin(most time.Duration) Spin { return Spin{most: max(most, 0), pass: 1, fail: 1} }

// Next returns for how long the thread may poll now before it sleeps.
func (s *Spin) Next() time.Duration {
	if s.pass > 0 {
		return 0
	}
	return s.most
}

// Waited records the length of a wait. polled means that the wait began with polling.
func (s *Spin) Waited(d time.Duration, polled bool) {
	switch {
	case polled && d <= s.most:
		s.fail = 1
	case polled:
		s.pass = s.fail
		s.fail = min(2*s.fail+1, mostPasses)
	case s.pass > 0 && d <= s.most+wakeTime:
		s.pass--
	}
}
