// Package generic_constraint_memory: the handler works through a generic type whose parameter counts; a worker through the same with a file.
package generic_constraint_memory

import (
	"os"
	"time"

	"verbena/ib"
)

type sink interface{ put(id uint64) error }

type journal struct{ f *os.File }

func (j *journal) put(uint64) error { return j.f.Sync() }

type sum struct{ n uint64 }

func (s *sum) put(id uint64) error {
	s.n += id
	return nil
}

type pump[S sink] struct {
	to S
}

func (p *pump[S]) handle(cq *ib.CQ) {
	var wc [8]ib.WC
	n, _ := cq.Poll(wc[:])
	for _, w := range wc[:n] {
		if p.to.put(w.ID) != nil {
			return
		}
	}
}

// Open makes a queue that is summed up.
func Open(d *ib.Device) (*ib.CQ, error) {
	p := &pump[*sum]{to: &sum{}}
	return d.CreateCQ(ib.CQInit{Entries: 8, Handler: p.handle})
}

// Work polls a queue, and has time.
func Work(cq *ib.CQ, f *os.File) {
	p := &pump[*journal]{to: &journal{f}}
	for {
		p.handle(cq)
		time.Sleep(time.Millisecond)
	}
}
