package registration

import (
	"sync"

	"verbena/ib"
)

var mu, nu sync.Mutex

func Stop(d *ib.Device) {
	stop := d.OnEvent(func(ib.Event) {})
	mu.Lock()
	defer mu.Unlock()
	stop()
}

func Start(d *ib.Device) {
	nu.Lock()
	defer nu.Unlock()
	d.OnEvent(func(ib.Event) {})
}

var end func()

func Watch(d *ib.Device) { end = d.OnEvent(event) }

func event(ib.Event) { end() } // want "nosleep: .*may sleep: it calls .*OnEvent"

func handler(cq *ib.CQ) {
	cq.Device().OnEvent(func(ib.Event) {}) // want "nosleep: .*may sleep: it calls .*OnEvent"
	mu.Lock()                              // want "nosleep: .*locks registration.mu, which is held at"
	mu.Unlock()
	nu.Lock() // want "nosleep: .*locks registration.nu, which is held at"
	nu.Unlock()
	ib.ConnectPair(nil, nil, ib.Local{}, ib.Local{}, ib.Path{}) // want "nosleep: .*may sleep: it calls ib.ConnectPair"
}

func open(d *ib.Device) (*ib.CQ, error) { return d.CreateCQ(ib.CQInit{Entries: 4, Handler: handler}) }
