// Package region_channel maps memory for requests by fast registration.
package region_channel

import (
	"errors"

	"verbena/ib"
	"verbena/ib/completion"
	"verbena/umem"
)

// Pool is a list of free regions.
type Pool struct{ free chan *ib.MR }

func (p *Pool) get() (*ib.MR, error) {
	select {
	case mr := <-p.free:
		return mr, nil
	default:
		return nil, errors.New("no region")
	}
}

func (p *Pool) put(mr *ib.MR) {
	select {
	case p.free <- mr:
	default:
	}
}

// Node executes requests.
type Node struct {
	qp    *completion.QP
	pool  *Pool
	space umem.Space
}

// Run registers memory, calls f with the key, and ends the registration.
func (n *Node) Run(list []umem.Range, f func(rkey uint32) error) error {
	mr, err := n.pool.get()
	if err != nil {
		return err
	}
	defer n.pool.put(mr)
	if err := mr.Map(n.space, nil, list, 0); err != nil {
		return err
	}
	mr.UpdateKey(uint8(mr.RKey()) + 1)
	key := mr.RKey()
	reg := &ib.FastReg{MR: mr, Key: key, Access: ib.AccessLocalWrite | ib.AccessRemoteWrite}
	if err := n.qp.PostSend(ib.SendWR{Opcode: ib.WRRegMR, Reg: reg}, nil); err != nil {
		return err
	}
	if err := f(key); err != nil {
		return err
	}
	done := make(chan struct{})
	err = n.qp.PostSend(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: key}, func(*ib.WC) { close(done) })
	if err == nil {
		<-done
	}
	return err
}
