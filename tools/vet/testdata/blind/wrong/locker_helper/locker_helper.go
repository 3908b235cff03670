package locker_helper

import (
	"net"
	"sync"

	"verbena/ib"
)

func guarded(l sync.Locker, f func()) {
	l.Lock() // want "nosleep: .*may sleep: it locks locker_helper.dev.table, which is held at"
	defer l.Unlock()
	f()
}

type dev struct {
	table, stats sync.Mutex
	conn         net.Conn
}

func (d *dev) sync() {
	guarded(&d.table, func() { d.conn.Write([]byte("sync")) })
}

type cq struct {
	ib.DriverCQ
	d *dev
}

func (c *cq) Poll(wc []ib.WC) (n int, err error) {
	guarded(&c.d.table, func() { n = 0 })
	return n, nil
}
