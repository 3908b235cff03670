// Package done_function_worker: the function of a completion tells a goroutine, which deregisters the memory.
package done_function_worker

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type sender struct {
	qp   *completion.QP
	pd   *ib.PD
	done chan *ib.MR // as long as the queue
}

// Open makes a sender.
func Open(d *ib.Device, pd *ib.PD) (*sender, error) {
	cq, err := completion.New(d, completion.Init{Entries: 8, Context: completion.Callback})
	if err != nil {
		return nil, err
	}
	qp, err := cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC, Cap: ib.QPCap{MaxSendWR: 8, MaxSendSGE: 1}})
	s := &sender{qp, pd, make(chan *ib.MR, 8)}
	go s.free()
	return s, err
}

func (s *sender) free() {
	for mr := range s.done {
		_ = mr.Dereg()
	}
}

// Send sends b.
func (s *sender) Send(b []byte) error {
	mr, err := s.pd.RegBytes(b, 0)
	if err != nil {
		return err
	}
	sgl := []ib.SGE{{Addr: mr.Addr(), Length: uint32(len(b)), LKey: mr.LKey()}}
	return s.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: sgl}, func(*ib.WC) {
		select {
		case s.done <- mr:
		default: // cannot be: there is room for each
		}
	})
}
