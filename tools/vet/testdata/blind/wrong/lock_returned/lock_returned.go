package lock_returned

import (
	"fmt"
	"net"
	"sync"

	"verbena/ib"
)

type shard struct {
	mu sync.Mutex
	m  map[uint32]int
}

type dev struct {
	ib.DriverCQ
	shards [16]shard
	conn   net.Conn
}

func (d *dev) shard(n uint32) *shard { return &d.shards[n%16] }

func (d *dev) dump() {
	for i := range d.shards {
		s := &d.shards[i]
		s.mu.Lock()
		fmt.Fprintln(d.conn, len(s.m))
		s.mu.Unlock()
	}
}

func (d *dev) Poll(wc []ib.WC) (int, error) {
	s := d.shard(3)
	s.mu.Lock() // want "nosleep: .*may sleep: it locks lock_returned.shard.mu, which is held at"
	defer s.mu.Unlock()
	return 0, nil
}
