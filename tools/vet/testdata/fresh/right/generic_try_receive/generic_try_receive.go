// Package generic_try_receive: the handler takes what there is from a channel by a generic helper; a worker uses the blocking one.
package generic_try_receive

import (
	"verbena/ib"
)

func tryEach[T any](ch <-chan T, f func(T)) {
	for {
		select {
		case v, ok := <-ch:
			if !ok {
				return
			}
			f(v)
		default:
			return
		}
	}
}

func each[T any](ch <-chan T, f func(T)) {
	for v := range ch {
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
		tryEach(p.free, func(id uint64) { delete(p.live, id) })
	}})
}

// Work is a worker.
func Work(jobs chan uint64) (sum uint64) {
	each(jobs, func(j uint64) { sum += j })
	return sum
}
