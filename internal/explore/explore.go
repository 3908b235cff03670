// Package explore visits all states of a small system of a few threads, for each order in which the threads can
// run.
//
// A system is a comparable value that holds all relevant state, which is the state shared by the threads and the
// position of each thread. A thread is a function that returns the possible next steps of the thread. A test builds
// the threads from the transition functions of the product itself. A defect in a transition function appears as a
// state that violates a rule. The package reports the shortest path to that state.
package explore

import (
	"fmt"
	"strings"
)

// ThreadStep is an atomic step of a thread.
type ThreadStep[S comparable] struct {
	What string
	To   S
}

// Thread returns the possible steps of a thread in a state. Thread returns no steps if the thread waits or has
// ended, and several steps if the choice is open.
type Thread[S comparable] func(S) []ThreadStep[S]

// System is a system to explore.
type System[S comparable] struct {
	Start   S
	Threads []Thread[S]
	// Check returns an error for a state that violates a rule.
	Check func(S) error
	// End returns an error for a state without a next step that is not a proper end, such as a state with a waiting
	// thread.
	End func(S) error
}

// ExplorationSize is the size of an exploration.
type ExplorationSize struct {
	States, Steps int
	Ends          int // states without a next step
	Depth         int // maximum number of steps to a state
}

func (r ExplorationSize) String() string {
	return fmt.Sprintf("%d states, %d steps, %d ends, depth %d", r.States, r.Steps, r.Ends, r.Depth)
}

// ruleViolation is a violated rule, with the shortest path to a state that violates it.
type ruleViolation struct {
	Err error
	Way []string
}

func (b *ruleViolation) Error() string {
	return fmt.Sprintf("%v, after:\n\t%s", b.Err, strings.Join(b.Way, "\n\t"))
}

func (b *ruleViolation) Unwrap() error { return b.Err }

// Run visits all states, nearest first. Run returns a [broken] for the first state that violates a rule, and an error
// if the number of states exceeds most.
func (s *System[S]) Run(most int) (r ExplorationSize, err error) {
	type origin struct {
		from  S
		what  string
		depth int
	}
	seen := map[S]origin{s.Start: {}}
	way := func(x S) (list []string) {
		for at := seen[x]; at.depth > 0; at = seen[at.from] {
			list = append([]string{at.what}, list...)
		}
		return list
	}
	queue := []S{s.Start}
	for len(queue) > 0 {
		x := queue[0]
		queue = queue[1:]
		depth := seen[x].depth
		r.States++
		r.Depth = max(r.Depth, depth)
		if err := s.Check(x); err != nil {
			return r, &ruleViolation{err, way(x)}
		}
		if r.States > most {
			return r, fmt.Errorf("more than %d states", most)
		}
		stuck := true
		for i, t := range s.Threads {
			for _, n := range t(x) {
				stuck = false
				r.Steps++
				if _, ok := seen[n.To]; !ok {
					seen[n.To] = origin{x, fmt.Sprintf("thread %d %s", i+1, n.What), depth + 1}
					queue = append(queue, n.To)
				}
			}
		}
		if stuck {
			r.Ends++
			if err := s.End(x); err != nil {
				return r, &ruleViolation{err, way(x)}
			}
		}
	}
	return r, nil
}
