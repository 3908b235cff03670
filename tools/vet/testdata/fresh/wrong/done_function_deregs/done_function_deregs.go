// Package done_function_deregs: the function of a completion in Callback context deregisters the memory of its message.
package done_function_deregs

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type sender struct {
	qp *completion.QP
	pd *ib.PD
}

// Open makes a sender.
func Open(d *ib.Device, pd *ib.PD) (*sender, error) {
	cq, err := completion.New(d, completion.Init{Entries: 8, Context: completion.Callback})
	if err != nil {
		return nil, err
	}
	qp, err := cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC, Cap: ib.QPCap{MaxSendWR: 8, MaxSendSGE: 1}})
	return &sender{qp, pd}, err
}

// Send sends b.
func (s *sender) Send(b []byte) error {
	mr, err := s.pd.RegBytes(b, 0)
	if err != nil {
		return err
	}
	sgl := []ib.SGE{{Addr: mr.Addr(), Length: uint32(len(b)), LKey: mr.LKey()}}
	return s.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: sgl}, func(*ib.WC) {
		_ = mr.Dereg() // want "nosleep"
	})
}
