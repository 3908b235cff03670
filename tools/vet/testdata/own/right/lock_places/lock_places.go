package lock_places

import (
	"sync"
	"time"

	"verbena/ib"
)

// L is a lock with methods of its own.
type L struct {
	mu sync.Mutex
	n  int
}

func (l *L) Lock()   { l.mu.Lock(); l.n++ }
func (l *L) Unlock() { l.n--; l.mu.Unlock() }

type embedding struct{ sync.Mutex }

type queue struct {
	mu    sync.Mutex
	items []int
}

func (q *queue) push(v int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = append(q.items, v)
}

func (q *queue) drain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	time.Sleep(1)
}

type dev struct {
	fast, slow   L
	efast, eslow embedding
	sq, rq       queue
	pf, ps       *L
	m1, m2       sync.Mutex
	shards       [4]queue
}

var fast, slow L

func with(mu *sync.Mutex, f func()) {
	mu.Lock()
	defer mu.Unlock()
	f()
}

func take(l *L) { l.Lock() }

// New makes a device with two locks that are allocated by themselves.
func New() *dev { return &dev{pf: new(L), ps: &L{}} }

// Sleep holds a lock of each kind.
func (d *dev) Sleep() {
	d.slow.Lock()
	time.Sleep(1)
	d.slow.Unlock()
	d.eslow.Lock()
	time.Sleep(1)
	d.eslow.Unlock()
	d.rq.drain()
	d.ps.Lock()
	time.Sleep(1)
	d.ps.Unlock()
	take(&slow)
	time.Sleep(1)
	slow.Unlock()
	with(&d.m2, func() { time.Sleep(1) })
}

func (d *dev) handler(*ib.CQ) {
	d.fast.Lock()
	d.fast.Unlock()
	d.efast.Lock()
	d.efast.Unlock()
	d.sq.push(1)
	d.pf.Lock()
	d.pf.Unlock()
	take(&fast)
	fast.Unlock()
	with(&d.m1, func() {})
	d.shards[1].push(3)
}

// Open makes a queue.
func (d *dev) Open(on *ib.Device) { on.CreateCQ(ib.CQInit{Handler: d.handler}) }
