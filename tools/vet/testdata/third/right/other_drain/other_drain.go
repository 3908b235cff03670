package other_drain

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type links struct{ control, data *completion.QP }

func pair(d *ib.Device, pd *ib.PD) (*completion.QP, error) {
	cq, err := completion.New(d, completion.Init{Entries: 4, Context: completion.Worker})
	if err != nil {
		return nil, err
	}
	return cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC, Cap: ib.QPCap{MaxSendWR: 2, MaxSendSGE: 1}})
}

func (l *links) open(d *ib.Device, pd *ib.PD) (err error) {
	cq, err := completion.New(d, completion.Init{Entries: 4, Context: completion.Worker})
	if err != nil {
		return err
	}
	if l.control, err = cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC}); err != nil {
		return err
	}
	l.data, err = pair(d, pd)
	return err
}

// The end of a control message ends the data's queue pair, which completes elsewhere.
func (l *links) finish() error {
	return l.control.PostSend(ib.SendWR{Opcode: ib.WRSend}, func(*ib.WC) { l.data.Destroy() })
}

// A goroutine may drain the queue pair of the message itself.
func (l *links) fail() error {
	return l.control.PostSend(ib.SendWR{Opcode: ib.WRSend}, func(*ib.WC) { go l.control.Destroy() })
}
