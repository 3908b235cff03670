// Package annotated_below_sleeper: a function that sleeps calls one that says nosleep, not the other way round.
package annotated_below_sleeper

import (
	"golang.org/x/sys/unix"
	"verbena/ib"
)

type Node struct {
	fd       int32
	children []*Node
	qps      []*ib.QP
}

// visit posts on every queue pair below n.
//
//verbena:nosleep
func visit(n *Node) int {
	sum := 0
	for _, qp := range n.qps {
		k, _ := qp.PostRecv()
		sum += k
	}
	for _, c := range n.children {
		sum += visit(c)
	}
	return sum
}

// Visit waits for what is to come, and visits.
func Visit(n *Node) int {
	fds := []unix.PollFd{{Fd: n.fd, Events: unix.POLLIN}}
	if k, err := unix.Poll(fds, -1); err != nil || k == 0 {
		return 0
	}
	return visit(n)
}
