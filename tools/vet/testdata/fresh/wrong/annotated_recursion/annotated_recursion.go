// Package annotated_recursion: a function that says nosleep polls a file descriptor at the bottom of a mutual recursion.
package annotated_recursion

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
	return sum + below(n)
}

func below(n *Node) (sum int) {
	if len(n.children) == 0 {
		fds := []unix.PollFd{{Fd: n.fd, Events: unix.POLLIN}}
		k, _ := unix.Poll(fds, -1) // want "nosleep"
		return k
	}
	for _, c := range n.children {
		sum += visit(c)
	}
	return sum
}

// Visit is for other packages.
func Visit(n *Node) int { return visit(n) }
