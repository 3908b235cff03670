// Package timeq provides a queue of values ordered by the time at which they are due, and the goroutine that
// processes the queue. Clocks, networks in memory and fault rules use this package.
package timeq

import (
	"container/heap"
	"iter"
	"time"
)

// Queue holds values by time. Values due at the same time have the order in which they were pushed. The zero value
// is an empty queue. Queue is not safe for concurrent use.
type Queue[T any] struct {
	items itemHeap[T]
	seq   uint64
}

// Item is a value in a Queue.
type Item[T any] struct {
	Value T
	due   time.Time
	seq   uint64
	index int // index in the queue, or -1 outside of a queue
}

// Due returns the time passed to Push or Put.
func (i *Item[T]) Due() time.Time { return i.due }

// Seq returns the item's position in the order of calls of Push and Put.
func (i *Item[T]) Seq() uint64 { return i.seq }

// IsQueued reports whether the item is in its queue.
func (i *Item[T]) IsQueued() bool { return i.index >= 0 }

// before reports whether i comes before j. Both items must have been in the same queue.
func (i *Item[T]) before(j *Item[T]) bool {
	if !i.due.Equal(j.due) {
		return i.due.Before(j.due)
	}
	return i.seq < j.seq
}

// Len returns the number of items.
func (q *Queue[T]) Len() int { return len(q.items) }

// Push adds a value.
func (q *Queue[T]) Push(due time.Time, v T) *Item[T] {
	i := &Item[T]{Value: v, index: -1}
	q.Put(i, due)
	return i
}

// Put sets a new time for an item of this queue, or of no queue. The item comes after other items of that time.
func (q *Queue[T]) Put(i *Item[T], due time.Time) {
	if i.index >= 0 {
		heap.Remove(&q.items, i.index)
	}
	i.due, i.seq = due, q.seq
	q.seq++
	heap.Push(&q.items, i)
}

// NewItem returns an item that is not in a queue yet.
func NewItem[T any](v T) *Item[T] { return &Item[T]{Value: v, index: -1} }

// First returns the first item, or nil. The first item stays in the queue.
func (q *Queue[T]) First() *Item[T] {
	if len(q.items) == 0 {
		return nil
	}
	return q.items[0]
}

// Pop removes and returns the first item, or nil.
func (q *Queue[T]) Pop() *Item[T] {
	if len(q.items) == 0 {
		return nil
	}
	return heap.Pop(&q.items).(*Item[T])
}

// Remove removes an item, and reports whether it was in the queue.
func (q *Queue[T]) Remove(i *Item[T]) bool {
	if i.index < 0 {
		return false
	}
	heap.Remove(&q.items, i.index)
	return true
}

// All yields the items in no particular order. The queue must not change during the iteration.
func (q *Queue[T]) All() iter.Seq[*Item[T]] {
	return func(yield func(*Item[T]) bool) {
		for _, i := range q.items {
			if !yield(i) {
				return
			}
		}
	}
}

// Clear empties the queue.
func (q *Queue[T]) Clear() {
	for _, i := range q.items {
		i.index = -1
	}
	q.items = nil
}

// itemHeap is a heap.
type itemHeap[T any] []*Item[T]

func (h itemHeap[T]) Len() int           { return len(h) }
func (h itemHeap[T]) Less(i, j int) bool { return h[i].before(h[j]) }
func (h itemHeap[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *itemHeap[T]) Push(x any) {
	i := x.(*Item[T])
	i.index = len(*h)
	*h = append(*h, i)
}

func (h *itemHeap[T]) Pop() any {
	n := len(*h) - 1
	i := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	i.index = -1
	return i
}
