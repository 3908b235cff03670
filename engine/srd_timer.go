package engine

import "container/heap"

// srdTimers holds at most one timer for each flow, in a heap by the times at which they fire. Work for a deadline is
// therefore independent of the number of other flows.
type srdTimers []*srdFlow

func (t srdTimers) Len() int           { return len(t) }
func (t srdTimers) Less(i, j int) bool { return t[i].due < t[j].due }

func (t srdTimers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].at, t[j].at = i+1, j+1
}

// Push adds the timer of a *srdFlow.
func (t *srdTimers) Push(x any) {
	f := x.(*srdFlow)
	*t = append(*t, f)
	f.at = len(*t)
}

// Pop removes the last timer.
func (t *srdTimers) Pop() any {
	i := len(*t) - 1
	f := (*t)[i]
	(*t)[i], *t, f.at = nil, (*t)[:i], 0
	return f
}

// next returns the time of the earliest timer; 0 if there is none.
func (t srdTimers) next() int64 {
	if len(t) == 0 {
		return 0
	}
	return t[0].due
}

// set makes the timer of a flow fire at the deadline of the flow at the latest.
func (t *srdTimers) set(f *srdFlow) {
	switch d := f.snd.Deadline(); {
	case d == 0:
	case f.at == 0:
		f.due = d
		heap.Push(t, f)
	case d < f.due:
		f.due = d
		heap.Fix(t, f.at-1)
	}
}

// stop removes the timer of a flow.
func (t *srdTimers) stop(f *srdFlow) {
	if f.at != 0 {
		heap.Remove(t, f.at-1)
	}
}
