// Package invalidated_region gives regions back to a pool before their invalidation has completed.
package invalidated_region

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type region struct{ mr *ib.MR }

type node struct {
	qp   *completion.QP
	pool chan *region
	free []*region
}

func (n *node) fetch() error {
	r := <-n.pool
	defer func() { n.pool <- r }()
	r.mr.UpdateKey(1)
	return n.qp.PostSend(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: r.mr.RKey()}, nil) // want "release: .* gives a region back to pool when its invalidation has been posted"
}

func (n *node) fetchFromList() error {
	r := n.free[len(n.free)-1]
	n.free = n.free[:len(n.free)-1]
	err := n.qp.PostSend(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: r.mr.RKey()}, nil) // want "release: .* gives a region back to free"
	n.free = append(n.free, r)
	return err
}
