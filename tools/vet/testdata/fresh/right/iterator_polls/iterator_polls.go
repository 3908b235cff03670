// Package iterator_polls: the handler ranges over an iterator that polls its queue, beside an iterator over a connection.
package iterator_polls

import (
	"iter"
	"net"

	"verbena/ib"
)

func completions(cq *ib.CQ) iter.Seq[ib.WC] {
	return func(yield func(ib.WC) bool) {
		var wc [1]ib.WC
		for {
			n, err := cq.Poll(wc[:])
			if n == 0 || err != nil || !yield(wc[0]) {
				return
			}
		}
	}
}

func remote(c net.Conn) iter.Seq[byte] {
	return func(yield func(byte) bool) {
		var b [1]byte
		for {
			if _, err := c.Read(b[:]); err != nil || !yield(b[0]) {
				return
			}
		}
	}
}

// Open makes the queue.
func Open(d *ib.Device) (*ib.CQ, error) {
	var failed int
	return d.CreateCQ(ib.CQInit{Entries: 8, Handler: func(cq *ib.CQ) {
		for wc := range completions(cq) {
			if wc.Status != ib.WCSuccess {
				failed++
			}
		}
	}})
}

// Sum is no callback.
func Sum(c net.Conn) (sum int) {
	for b := range remote(c) {
		sum += int(b)
	}
	return sum
}
