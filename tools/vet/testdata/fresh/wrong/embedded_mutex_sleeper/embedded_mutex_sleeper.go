// Package embedded_mutex_sleeper: the handler takes an embedded mutex that is held elsewhere across a send on a channel.
package embedded_mutex_sleeper

import (
	"sync"

	"verbena/ib"
)

type Stats struct {
	sync.Mutex
	n    int
	push chan int
}

// Flush sends what was counted.
func (s *Stats) Flush() {
	s.Lock()
	defer s.Unlock()
	s.push <- s.n
	s.n = 0
}

func (s *Stats) add(n int) {
	s.Lock() // want "nosleep"
	s.n += n
	s.Unlock()
}

// Open makes a queue that is counted.
func Open(d *ib.Device, s *Stats) (*ib.CQ, error) {
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: func(cq *ib.CQ) {
		var wc [1]ib.WC
		n, _ := cq.Poll(wc[:])
		s.add(n)
	}})
}
