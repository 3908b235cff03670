package timer_method

import (
	"sync"
	"time"

	"verbena/ib"
)

type conn struct {
	mu sync.Mutex
	n  int
}

//verbena:held mu
func (c *conn) expire() { c.n = 0 }

func (c *conn) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	time.AfterFunc(time.Second, c.expire) // want "held: .*calls .*expire on a goroutine"
	f := c.expire
	f()
}

func handler(cq *ib.CQ) { (&conn{}).start() }

func open(d *ib.Device) (*ib.CQ, error) { return d.CreateCQ(ib.CQInit{Entries: 4, Handler: handler}) }
