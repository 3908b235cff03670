// Package middleware_chain: the completion handler is wrapped twice, and the inner wrapper writes to a buffered connection.
package middleware_chain

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

func mirrored(w *bufio.Writer) middleware {
	return func(next handler) handler {
		return func(cq *ib.CQ) {
			next(cq)
			_ = w.Flush() // want "nosleep"
		}
	}
}

// Open makes the queue.
func Open(d *ib.Device, c net.Conn) (*ib.CQ, error) {
	var n int
	h := chain(func(cq *ib.CQ) { _, _ = cq.ReqNotify(ib.NotifyNextComp) }, mirrored(bufio.NewWriter(c)), counted(&n))
	return d.CreateCQ(ib.CQInit{Entries: 4, Handler: h})
}
