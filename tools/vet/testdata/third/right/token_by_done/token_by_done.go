// Package token_by_done takes a token from a pool for each request. The function of the completion returns it, or the
// thread does if the post fails.
package token_by_done

import (
	"context"

	"verbena/ib"
	"verbena/ib/completion"
)

type Sender struct {
	qp     *completion.QP
	tokens chan struct{}
}

func New(d *ib.Device, pd *ib.PD, n int) (*Sender, error) {
	cq, err := completion.New(d, completion.Init{Entries: n, Context: completion.Callback})
	if err != nil {
		return nil, err
	}
	s := &Sender{tokens: make(chan struct{}, n)}
	for range n {
		s.tokens <- struct{}{}
	}
	s.qp, err = cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC})
	return s, err
}

func (s *Sender) Send(ctx context.Context) error {
	select {
	case <-s.tokens:
	case <-ctx.Done():
		return ctx.Err()
	}
	give := func() { s.tokens <- struct{}{} }
	if err := s.qp.PostSend(ib.SendWR{Opcode: ib.WRSend}, func(*ib.WC) { give() }); err != nil {
		give()
		return err
	}
	return nil
}
