package embedded_locker

import (
	"sync"

	"verbena/ib"
)

// conn is a lock itself, by the mutex that it embeds.
type conn struct {
	sync.Mutex
	reply chan int
}

func (c *conn) call() int {
	var l sync.Locker = c
	l.Lock()
	defer l.Unlock()
	return <-c.reply
}

func (c *conn) handle(*ib.CQ) {
	c.Lock() // want "nosleep: .*may sleep: it locks .*Mutex, which is held at"
	c.Unlock()
}

func open(d *ib.Device) (*ib.CQ, error) {
	c := &conn{}
	return d.CreateCQ(ib.CQInit{Entries: 4, Handler: c.handle})
}
