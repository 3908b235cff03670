// Package explore visits every state that a few threads can bring a small system into, whatever the order in which they
// run.
//
// A system is a value that can be compared, with everything that matters in it: what the threads share, and where each
// of them is. A thread is a function that says what it can do next. A test writes the threads with the transition
// functions that the product itself calls, so that a defect in one of those shows as a state that breaks a rule, with
// the shortest way there.
package explore

import (
	"fmt"
	"strings"
)

// Step is something that a thread does at once, as nobody else sees it half done.
type Step[S comparable] struct {
	What string
	To   S
}

// Thread returns what a thread can do in a state: nothing if it waits or has ended; more than one step where the system
// leaves open which.
type Thread[S comparable] func(S) []Step[S]

// System is what is explored.
type System[S comparable] struct {
	Start   S
	Threads []Thread[S]
	// Check returns an error for a state that breaks a rule.
	Check func(S) error
	// End returns an error for a state in which nobody can do anything, such as one in which a thread still waits.
	End func(S) error
}

// Result is what an exploration has seen.
type Result struct {
	States, Steps int
	Ends          int // states in which nobody can do anything
	Depth         int // steps to the state that is farthest away
}

func (r Result) String() string {
	return fmt.Sprintf("%d states, %d steps, %d ends, depth %d", r.States, r.Steps, r.Ends, r.Depth)
}

// Broken is a rule that does not hold, with the shortest way to a state where it is broken.
type Broken struct {
	Err error
	Way []string
}

func (b *Broken) Error() string {
	return fmt.Sprintf("%v, after:\n\t%s", b.Err, strings.Join(b.Way, "\n\t"))
}

func (b *Broken) Unwrap() error { return b.Err }

// Run visits all states, nearest first. It returns a [Broken] for the first that breaks a rule, and an error where
// there are more than most states.
func (s *System[S]) Run(most int) (r Result, err error) {
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
			return r, &Broken{err, way(x)}
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
				return r, &Broken{err, way(x)}
			}
		}
	}
	return r, nil
}
