package one_locker

import (
	"sync"
	"time"

	"verbena/ib"
)

type lock struct{ sync.Mutex }

type inner struct{ lock }

var d struct{ a, b inner }

func locked(l sync.Locker, f func()) {
	l.Lock() // want "nosleep: .*locks .*, which is held at"
	defer l.Unlock()
	f()
}

func Reset() { locked(&d.a, func() { time.Sleep(time.Second) }) }

func handler(cq *ib.CQ) {
	locked(&d.b, func() {})
	locked(&d.a, func() {})
}

func open(d *ib.Device) (*ib.CQ, error) { return d.CreateCQ(ib.CQInit{Entries: 4, Handler: handler}) }
