package check

import (
	"slices"
	"sync"
	"sync/atomic"
)

// watchedSends contains outstanding sends of a program. A request of another queue must not change their memory. It
// does not contain sends that are not sampled. Nor does it contain sends with memory that was the target of an
// outstanding request at the post: such a program does not need the data.
type watchedSends struct {
	posts atomic.Uint64 // number of sends so far
	count atomic.Int64  // length of list

	mu   sync.Mutex // a leaf
	list []watchedSend
}

type watchedSend struct {
	w *workTracker
	r *trackedRequest
}

func (l *watchedSends) add(w *workTracker, r *trackedRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, watchedSend{w, r})
	l.count.Store(int64(len(l.list)))
}

func (l *watchedSends) remove(r *trackedRequest) {
	if l.count.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = slices.DeleteFunc(l.list, func(s watchedSend) bool { return s.r == r })
	l.count.Store(int64(len(l.list)))
}

// overlapping returns the sends with memory that r changes, and that the program has posted before r. A READ or atomic
// operation stores data after the earlier sends of its queue pair were acknowledged.
func (l *watchedSends) overlapping(w *workTracker, r *trackedRequest) (found []watchedSend) {
	if len(r.targets) == 0 || l.count.Load() == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.list {
		if s.r.order <= r.order && !(r.isRead && s.w == w) && overlap(s.r.sent, r.targets) {
			found = append(found, s)
		}
	}
	return found
}

// overlap reports whether a range of a overlaps one of b.
func overlap(a, b []memorySpan) bool {
	return slices.ContainsFunc(a, func(s memorySpan) bool { return slices.ContainsFunc(b, s.overlaps) })
}

// findReusedSource sets r.reusedSource if an outstanding send uses memory that r changes. A completion that the program
// may retrieve ends the use.
func (w *workTracker) findReusedSource(r *trackedRequest) {
	p := w.o.k.program
	for _, s := range p.sends.overlapping(w, r) {
		s.w.mu.Lock()
		outstanding := !s.r.finished && !s.r.visible && !s.w.isInErr()
		s.w.mu.Unlock()
		if outstanding && !w.o.k.isTarget(r.targets) {
			r.reusedSource = s.r
			return
		}
	}
}

// isTarget reports whether an outstanding request changes one of the ranges.
func (k *checker) isTarget(spans []memorySpan) bool {
	for _, w := range k.trackers() {
		if slices.ContainsFunc(spans, w.mayChangeSpan) {
			return true
		}
	}
	return false
}

// SendCount returns the number of sends of the program so far. A receive queue that is then found empty ([NoReceives])
// contains no receive that was posted before one of them.
func (q *userQueue) SendCount() uint64 { return q.p.sends.posts.Load() }

// NoReceives records that the queue had no further receives after a number of sends.
func (q *userQueue) NoReceives(sends uint64) { q.o.work.emptyAt.Store(sends) }
