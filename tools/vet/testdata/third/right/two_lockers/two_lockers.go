package two_lockers

import (
	"sync"
	"time"

	"verbena/ib"
)

type lock struct{ sync.Mutex }

type inner struct{ lock }

type dev struct {
	fast, slow lock
	a, b       inner
	n          int
}

var d dev

// locked calls f with the lock of one of the fields held. Only two fields are held across a sleep.
func locked(l sync.Locker, f func()) {
	l.Lock()
	defer l.Unlock()
	f()
}

func take(l sync.Locker) { l.Lock() }

func Reset() {
	locked(&d.slow, func() { time.Sleep(time.Second) })
	take(&d.b)
	time.Sleep(time.Second)
	d.b.Unlock()
}

func handler(cq *ib.CQ) {
	locked(&d.fast, func() { d.n++ })
	take(&d.a)
	d.n++
	d.a.Unlock()
}

func open(d *ib.Device) (*ib.CQ, error) { return d.CreateCQ(ib.CQInit{Entries: 4, Handler: handler}) }
