// Package locks_crossed locks in different orders.
package locks_crossed

import (
	"sync"

	"verbena/ib"
)

// table and line lock each other.
type table struct {
	mu    sync.Mutex
	lines map[int]*line
	sum   int
}

type line struct {
	mu sync.Mutex
	t  *table
	n  int
}

func (t *table) Sum() (n int) {
	t.each(func(l *line) { n += l.value() })
	return n
}

func (t *table) each(f func(*line)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.lines {
		f(l)
	}
}

func (l *line) value() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

func (l *line) Add(n int) {
	l.mu.Lock()
	l.n += n
	l.publish(n) // want "order: .*Add locks .*table.mu with .*line.mu held, but .*each locks .*line.mu with .*table.mu held"
	l.mu.Unlock()
}

func (l *line) publish(n int) {
	l.t.mu.Lock()
	l.t.sum += n
	l.t.mu.Unlock()
}

// The three variables form a cycle.
var first, second, third sync.Mutex

func One() {
	first.Lock()
	second.Lock() // want "order: .*One locks .*second with .*first held, but .*Two locks .*third with .*second held, and .*Three"
	second.Unlock()
	first.Unlock()
}

func Two() {
	second.Lock()
	defer second.Unlock()
	lockThird()
	third.Unlock()
}

func lockThird() { third.Lock() }

func Three() {
	third.Lock()
	first.Lock()
	first.Unlock()
	third.Unlock()
}

// device and queue are those of a driver. The poll only reads one of the locks.
type device struct {
	ib.Driver
	mu    sync.RWMutex
	polls int
}

type queue struct {
	ib.DriverCQ
	d  *device
	mu sync.RWMutex
	n  int
}

func (q *queue) Poll(wcs []ib.WC) (int, error) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	q.d.count()
	return q.DriverCQ.Poll(wcs)
}

func (d *device) count() {
	d.mu.Lock()
	d.polls++
	d.mu.Unlock()
}

func (d *device) reset(q *queue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q.mu.Lock() // want "order: .*reset locks .*queue.mu with .*device.mu held, but .*Poll locks .*device.mu with .*queue.mu held"
	q.n = 0
	q.mu.Unlock()
}

func (d *device) EnterError() { d.reset(nil) }
