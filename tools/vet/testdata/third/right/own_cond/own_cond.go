package own_cond

import (
	"sync"

	"verbena/ib"
)

type box struct {
	mu sync.Mutex
	c  *sync.Cond
	d  sync.Cond
	n  int
}

// wait waits with the lock of its caller, which the condition releases.
func (b *box) wait() {
	for b.n == 0 {
		b.c.Wait()
	}
	for b.n == 1 {
		b.d.Wait()
	}
}

var b = &box{}

func init() {
	b.c = sync.NewCond(&b.mu)
	b.d.L = &b.mu
}

func Run() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wait()
}

func handler(cq *ib.CQ) {
	b.mu.Lock()
	b.n++
	b.mu.Unlock()
	b.c.Signal()
}

func open(d *ib.Device) (*ib.CQ, error) { return d.CreateCQ(ib.CQInit{Entries: 4, Handler: handler}) }
