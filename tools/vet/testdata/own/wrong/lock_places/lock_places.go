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

func (l *L) Lock() {
	l.mu.Lock() // want "nosleep: .*may sleep: it locks lock_places.dev.fast.mu, which is held at"
	l.n++
}

func (l *L) Unlock() { l.n--; l.mu.Unlock() }

type dev struct {
	fast, slow L
	other      *L
	m1, m2     sync.Mutex
	shared     *sync.Mutex
	locker     sync.Locker
}

// New makes a device whose pointers lead to its own locks.
func New() *dev {
	d := &dev{}
	d.other, d.shared, d.locker = &d.fast, &d.m1, &d.m2
	return d
}

func with(mu *sync.Mutex, f func()) {
	mu.Lock()
	defer mu.Unlock()
	f()
}

// Sleep holds the locks by other names.
func (d *dev) Sleep() {
	d.other.Lock()
	time.Sleep(1)
	d.other.Unlock()
	d.shared.Lock()
	time.Sleep(1)
	d.shared.Unlock()
	with(&d.m2, func() { time.Sleep(1) })
}

func (d *dev) byMethod(*ib.CQ) {
	d.fast.Lock()
	d.fast.Unlock()
}

func (d *dev) byField(*ib.CQ) {
	d.m1.Lock() // want "nosleep: .*may sleep: it locks lock_places.dev.m1, which is held at"
	d.m1.Unlock()
}

func (d *dev) byLocker(*ib.CQ) {
	d.locker.Lock() // want "nosleep: .*may sleep: it locks lock_places.dev.m2, which is held at"
	d.locker.Unlock()
}

// Open makes queues with all of them.
func (d *dev) Open(on *ib.Device) {
	on.CreateCQ(ib.CQInit{Handler: d.byMethod})
	on.CreateCQ(ib.CQInit{Handler: d.byField})
	on.CreateCQ(ib.CQInit{Handler: d.byLocker})
}
