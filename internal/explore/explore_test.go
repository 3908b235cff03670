package explore

import (
	"errors"
	"strings"
	"testing"
)

// counterSystem is a system of two threads that each increment a number by a read and a write, optionally under a lock.
type counterSystem struct {
	n, pc    [2]int
	sum      int
	lock     int // 0 if free, otherwise the owner, counted from 1
	useLock  bool
	forgetIt bool // thread 1 does not release the lock
}

func (c counterSystem) threadSteps(i int) []ThreadStep[counterSystem] {
	if c.useLock && c.lock != i+1 && c.pc[i] < 2 {
		if c.lock != 0 {
			return nil
		}
		c.lock = i + 1
		return []ThreadStep[counterSystem]{{"locks", c}}
	}
	switch c.pc[i] {
	case 0:
		c.n[i], c.pc[i] = c.sum, 1
		return []ThreadStep[counterSystem]{{"reads", c}}
	case 1:
		c.sum, c.pc[i] = c.n[i]+1, 2
		if c.lock == i+1 && !(c.forgetIt && i == 0) {
			c.lock = 0
		}
		return []ThreadStep[counterSystem]{{"writes", c}}
	}
	return nil
}

func (c counterSystem) exploreAll() (ExplorationSize, error) {
	s := System[counterSystem]{
		Start: c,
		Threads: []Thread[counterSystem]{
			func(c counterSystem) []ThreadStep[counterSystem] { return c.threadSteps(0) },
			func(c counterSystem) []ThreadStep[counterSystem] { return c.threadSteps(1) },
		},
		Check: func(c counterSystem) error {
			if c.sum > 2 {
				return errors.New("too many")
			}
			return nil
		},
		End: func(c counterSystem) error {
			switch {
			case c.pc != [2]int{2, 2}:
				return errors.New("a thread waits forever")
			case c.sum != 2:
				return errors.New("an increment was lost")
			}
			return nil
		},
	}
	return s.Run(1000)
}

func TestRunFindsViolations(t *testing.T) {
	if r, err := (counterSystem{useLock: true}).exploreAll(); err != nil || r.States != 13 || r.Ends != 2 || r.Depth != 6 {
		t.Errorf("explore with a lock: got %v and error %v, want 13 states and 2 ends", r, err)
	}
	for name, c := range map[string]counterSystem{"an increment was lost": {},
		"a thread waits forever": {useLock: true, forgetIt: true}} {
		_, err := c.exploreAll()
		var b *ruleViolation
		if !errors.As(err, &b) || !strings.Contains(err.Error(), name) || len(b.Way) == 0 {
			t.Errorf("explore: got %v, want %s", err, name)
		}
	}
	s := System[int]{Check: func(int) error {
		return nil
	}, Threads: []Thread[int]{func(n int) []ThreadStep[int] { return []ThreadStep[int]{{"counts", n + 1}} }}}
	if _, err := s.Run(10); err == nil {
		t.Error("Run of an infinite system: got success, want an error")
	}
}
