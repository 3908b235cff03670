package more_spins

import (
	"sync"
	"sync/atomic"

	"verbena/ib"
)

var mu sync.Mutex
var ready bool
var flag atomic.Bool
var other *ib.CQ

func isReady() bool {
	mu.Lock()
	defer mu.Unlock()
	return ready
}

func Set(cq *ib.CQ) {
	mu.Lock()
	defer mu.Unlock()
	ready = true
	flag.Store(true)
	other = cq
}

func wait() {
	if !flag.Load() { // want "nosleep: .*spins until another goroutine"
		wait()
	}
}

func handler(cq *ib.CQ) {
	for !isReady() { // want "nosleep: .*spins until another goroutine"
	}
	var wc [1]ib.WC
	for {
		if n, _ := other.Poll(wc[:]); n > 0 { // want "nosleep: .*spins until another goroutine"
			break
		}
	}
	var again func()
	again = func() {
		if !flag.Load() { // want "nosleep: .*spins until another goroutine"
			again()
		}
	}
	again()
	wait()
}

func open(d *ib.Device) (*ib.CQ, error) { return d.CreateCQ(ib.CQInit{Entries: 4, Handler: handler}) }
