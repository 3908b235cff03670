// Package middleware_in_memory: the completion handler is wrapped twice by what is cheap; the connection is flushed by a worker.
package middleware_in_memory

import (
	"bufio"
	"net"

	"verbena/ib"
)

type handler = func(*ib.CQ)

type middleware func(next handler) handler

func chain(h handler, ms ...middleware) handler {
	for _, m := range ms {
		h = m(h)
	}
	return h
}

func counted(n *int) middleware {
	return func(next handler) handler {
		return func(cq *ib.CQ) {
			*n++
			next(cq)
		}
	}
}

func mirrored(dirty chan struct{}) middleware {
	return func(next handler) handler {
		return func(cq *ib.CQ) {
			next(cq)
			select {
			case dirty <- struct{}{}:
			default:
			}
		}
	}
}

// Open makes the queue.
func Open(d *ib.Device, c net.Conn) (*ib.CQ, error) {
	var n int
	dirty := make(chan struct{}, 1)
	w := bufio.NewWriter(c)
	go func() {
		for range dirty {
			_ = w.Flush()
		}
	}()
	h := chain(func(cq *ib.CQ) { _, _ = cq.ReqNotify(ib.NotifyNextComp) }, mirrored(dirty), counted(&n))
	return d.CreateCQ(ib.CQInit{Entries: 4, Handler: h})
}
