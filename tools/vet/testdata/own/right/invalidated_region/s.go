// Package invalidated_region gives regions back to a pool when their invalidation has completed.
package invalidated_region

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type region struct{ mr *ib.MR }

type node struct {
	qp   *completion.QP
	pool chan *region
	room chan int
}

// waits waits for the completion of a later request.
func (n *node) waits() error {
	r := <-n.pool
	defer func() { n.pool <- r }()
	if err := n.qp.PostSend(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: r.mr.RKey()}, nil); err != nil {
		return err
	}
	done := make(chan struct{})
	if err := n.qp.PostSend(ib.SendWR{}, func(*ib.WC) { close(done) }); err != nil {
		return err
	}
	<-done
	return nil
}

// handsOver gives the region back in the function of the completion. The function does not sleep: the pool has space.
func (n *node) handsOver() error {
	r := <-n.pool
	err := n.qp.PostSend(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: r.mr.RKey()}, func(*ib.WC) {
		select {
		case n.pool <- r:
		default:
		}
	})
	if err != nil {
		n.pool <- r
	}
	return err
}

// keeps gives back a place, and not the region.
func (n *node) keeps(r *region) error {
	i := <-n.room
	defer func() { n.room <- i }()
	return n.qp.PostSend(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: r.mr.RKey()}, nil)
}
