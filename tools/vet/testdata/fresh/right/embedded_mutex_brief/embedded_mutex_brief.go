// Package embedded_mutex_brief: the handler takes an embedded mutex, which is let go before the send on a channel.
package embedded_mutex_brief

import (
	"sync"

	"verbena/ib"
)

type Stats struct {
	sync.Mutex
	n    int
	push chan int
}

func (s *Stats) take() int {
	s.Lock()
	defer s.Unlock()
	n := s.n
	s.n = 0
	return n
}

// Flush sends what was counted.
func (s *Stats) Flush() {
	s.push <- s.take()
}

func (s *Stats) add(n int) {
	s.Lock()
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
