// Package generic_range_chan: the completion handler drains a channel by a generic helper that ranges over it.
package generic_range_chan

import (
	"verbena/ib"
)

func each[T any](ch <-chan T, f func(T)) {
	for v := range ch { // want "nosleep"
		f(v)
	}
}

type pool struct {
	free chan uint64
	live map[uint64]bool
}

// Open makes a queue whose handler gives back buffers.
func Open(d *ib.Device) (*ib.CQ, error) {
	p := &pool{free: make(chan uint64, 8), live: map[uint64]bool{}}
	return d.CreateCQ(ib.CQInit{Entries: 8, Handler: func(*ib.CQ) {
		each(p.free, func(id uint64) { delete(p.live, id) })
	}})
}
