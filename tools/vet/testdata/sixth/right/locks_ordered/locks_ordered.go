// Package locks_ordered locks in one order, or in orders that cannot meet.
package locks_ordered

import "sync"

type table struct {
	gate sync.Mutex
	mu   sync.Mutex
	all  []*line
	sum  int
}

type line struct {
	mu   sync.Mutex
	next *line
	t    *table
	n    int
}

// Sum and Add lock the table first.
func (t *table) Sum() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.all {
		l.mu.Lock()
		n += l.n
		l.mu.Unlock()
	}
	return n
}

func (l *line) Add(n int) {
	l.mu.Lock()
	l.n += n
	l.mu.Unlock()
	l.t.mu.Lock()
	l.t.sum += n
	l.t.mu.Unlock()
}

// Try does not wait for the second lock.
func (l *line) Try() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.t.mu.TryLock() {
		return false
	}
	l.t.sum++
	l.t.mu.Unlock()
	return true
}

// Move locks two lines.
func (l *line) Move() {
	l.mu.Lock()
	l.next.mu.Lock()
	l.next.n, l.n = l.n, 0
	l.next.mu.Unlock()
	l.mu.Unlock()
}

// The gate admits one thread.
type pair struct {
	gate, a, b sync.Mutex
	n          int
}

func (p *pair) Forward() {
	p.gate.Lock()
	defer p.gate.Unlock()
	p.a.Lock()
	p.b.Lock()
	p.n++
	p.b.Unlock()
	p.a.Unlock()
}

func (p *pair) Backward() {
	p.gate.Lock()
	p.back()
	p.gate.Unlock()
}

func (p *pair) back() {
	p.b.Lock()
	p.a.Lock()
	p.n--
	p.a.Unlock()
	p.b.Unlock()
}

// readers only reads.
type readers struct{ x, y sync.RWMutex }

func (r *readers) XY() {
	r.x.RLock()
	r.y.RLock()
	r.y.RUnlock()
	r.x.RUnlock()
}

func (r *readers) YX() {
	r.y.RLock()
	r.x.RLock()
	r.x.RUnlock()
	r.y.RUnlock()
}

// worker is one goroutine.
type worker struct {
	in, out sync.Mutex
	n       int
}

func start() *worker {
	w := &worker{}
	go w.run()
	return w
}

func (w *worker) run() {
	w.in.Lock()
	w.out.Lock()
	w.n++
	w.out.Unlock()
	w.in.Unlock()
	w.out.Lock()
	w.in.Lock()
	w.n--
	w.in.Unlock()
	w.out.Unlock()
}
