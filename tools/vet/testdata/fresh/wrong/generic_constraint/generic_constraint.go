// Package generic_constraint: the handler works through a generic type whose parameter has a method, which syncs a file.
package generic_constraint

import (
	"os"

	"verbena/ib"
)

type sink interface{ put(id uint64) error }

type journal struct{ f *os.File }

func (j *journal) put(uint64) error {
	return j.f.Sync() // want "nosleep"
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

// Open makes a queue that is journaled.
func Open(d *ib.Device, f *os.File) (*ib.CQ, error) {
	p := &pump[*journal]{to: &journal{f}}
	return d.CreateCQ(ib.CQInit{Entries: 8, Handler: p.handle})
}
