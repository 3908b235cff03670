// Package captured_later: a handler creates closures of slow functions, which another goroutine calls.
package captured_later

import (
	"sync/atomic"
	"time"

	"verbena/ib"
)

type server struct {
	next atomic.Pointer[func()]
	work chan func()
	opts []func(*int)
	n    int
}

func wrap(f func()) func() { return func() { f() } }

func with(f func() int) func(*int) { return func(n *int) { *n = f() } }

// each runs the closure before it returns. Only the functions of its own caller count.
func each(f func()) {
	twice := func() { f() }
	run(twice)
	twice()
}

func run(f func()) { f() }

func spawn(f func()) func() { return func() { go f() } }

func slow() { time.Sleep(time.Second) }

func query() int { time.Sleep(1); return 1 }

func (s *server) handler(cq *ib.CQ) {
	g := wrap(slow)
	s.next.Store(&g)
	s.opts = append(s.opts[:0], with(query))
	select {
	case s.work <- wrap(slow):
	default:
	}
	each(func() { s.n++ })
	spawn(slow)()
}

func (s *server) Run() {
	for f := range s.work {
		f()
		if g := s.next.Swap(nil); g != nil {
			(*g)()
		}
		for _, o := range s.opts {
			o(&s.n)
		}
		each(slow)
	}
}

func open(d *ib.Device, s *server) (*ib.CQ, error) {
	return d.CreateCQ(ib.CQInit{Entries: 16, Handler: s.handler})
}
