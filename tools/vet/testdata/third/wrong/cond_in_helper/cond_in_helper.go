package cond_in_helper

import (
	"sync"

	"verbena/ib"
)

type box struct {
	mu sync.Mutex
	c  *sync.Cond
	n  int
}

func (b *box) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.n == 0 {
		b.c.Wait()
	}
}

func (b *box) on() (stop func()) { return func() { b.end() } }

var first, second sync.Mutex
var b = &box{}

func init() { b.c = sync.NewCond(&b.mu) }

func Slow() {
	first.Lock()
	b.end()
	first.Unlock()
}

func Stop() {
	stop := b.on()
	second.Lock()
	stop()
	second.Unlock()
}

func handler(cq *ib.CQ) {
	first.Lock() // want "nosleep: .*locks cond_in_helper.first, which is held at"
	first.Unlock()
	second.Lock() // want "nosleep: .*locks cond_in_helper.second, which is held at"
	second.Unlock()
}

func open(d *ib.Device) (*ib.CQ, error) { return d.CreateCQ(ib.CQInit{Entries: 4, Handler: handler}) }
