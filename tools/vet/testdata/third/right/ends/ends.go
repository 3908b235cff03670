package ends

import (
	"sync/atomic"

	"verbena/ib"
)

var flag atomic.Bool

// tries calls itself a limited number of times.
func tries(n int) {
	if n > 0 && !flag.Load() {
		tries(n - 1)
	}
}

type node struct {
	next *node
	used atomic.Bool
}

// first walks a list.
func first(n *node) *node {
	if n == nil || !n.used.Load() {
		return n
	}
	return first(n.next)
}

var list *node

func handler(cq *ib.CQ) {
	var wc [4]ib.WC
	for {
		n, err := cq.Poll(wc[:])
		if n == 0 || err != nil {
			break
		}
	}
	for n, _ := cq.Poll(wc[:]); n == len(wc); n, _ = cq.Poll(wc[:]) {
	}
	tries(3)
	_ = first(list)
}

func open(d *ib.Device) (*ib.CQ, error) { return d.CreateCQ(ib.CQInit{Entries: 4, Handler: handler}) }
