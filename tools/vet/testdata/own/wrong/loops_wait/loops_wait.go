package loops_wait

import (
	"sync"
	"sync/atomic"

	"verbena/ib"
)

type dev struct {
	flag  atomic.Bool
	n     atomic.Uint32
	stats atomic.Uint64
	mu    sync.Mutex
	done  bool
	ch    chan int
}

func (d *dev) ready() bool { return d.flag.Load() }

func (d *dev) handler(*ib.CQ) {
	for !d.flag.Load() { // want "nosleep: .*may sleep: it spins until another goroutine has done something"
	}
	for !d.n.CompareAndSwap(0, 1) { // want "nosleep: .*may sleep: it spins until another goroutine has done something"
	}
	for {
		old := d.n.Load() // want "nosleep: .*may sleep: it spins until another goroutine has done something"
		if old&1 != 0 {
			continue
		}
		if d.n.CompareAndSwap(old, old|1) {
			break
		}
	}
	for !d.ready() { // want "nosleep: .*may sleep: it spins until another goroutine has done something"
		d.stats.Add(1)
	}
	for {
		if d.mu.TryLock() { // want "nosleep: .*may sleep: it spins until another goroutine has done something"
			d.mu.Unlock()
			break
		}
	}
	for d.n.Swap(1) == 1 { // want "nosleep: .*may sleep: it spins until another goroutine has done something"
	}
	for !d.done { // want "nosleep: .*may sleep: it spins until another goroutine has done something"
	}
}

func (d *dev) event(*ib.CQ, ib.EventType) {
	for {
		d.mu.Lock()
		done := d.done // want "nosleep: .*may sleep: it spins until another goroutine has done something"
		d.mu.Unlock()
		if done {
			break
		}
	}
	for set := false; !set; {
		set = d.flag.Load() // want "nosleep: .*may sleep: it spins until another goroutine has done something"
	}
	for len(d.ch) == 0 { // want "nosleep: .*may sleep: it spins until another goroutine has done something"
	}
	for {
		select { // want "nosleep: .*may sleep: it spins until another goroutine has done something"
		case <-d.ch:
			return
		default:
		}
	}
}

// Open makes a queue.
func (d *dev) Open(on *ib.Device) {
	on.CreateCQ(ib.CQInit{Handler: d.handler, Event: d.event})
}
