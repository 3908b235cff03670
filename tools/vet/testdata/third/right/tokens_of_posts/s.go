package tokens_of_posts

import (
	"context"
	"errors"

	"verbena/ib"
	"verbena/ib/completion"
)

var errClosed = errors.New("closed")

// window limits the requests in flight. The function of a request returns the token that its poster has taken.
type window struct {
	qp     *completion.QP
	tokens chan struct{}
	closed chan struct{}
}

func Open(cq *completion.CQ, pd *ib.PD, init ib.QPInitAttr) (*window, error) {
	qp, err := cq.CreateQP(pd, init)
	if err != nil {
		return nil, err
	}
	return &window{qp, make(chan struct{}, 8), make(chan struct{})}, nil
}

func Start(d *ib.Device) (*completion.CQ, error) {
	return completion.New(d, completion.Init{Entries: 16, Context: completion.Callback})
}

func (w *window) take(ctx context.Context) error {
	select {
	case w.tokens <- struct{}{}:
		return nil
	case <-w.closed:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *window) give() { <-w.tokens }

func (w *window) Send(ctx context.Context, wr *ib.SendWR) error {
	if err := w.take(ctx); err != nil {
		return err
	}
	err := w.qp.PostSend(*wr, w.sent)
	if err != nil {
		w.give()
	}
	return err
}

func (w *window) sent(wc *ib.WC) { w.give() }

func (w *window) Receive(wr *ib.RecvWR) error {
	w.tokens <- struct{}{}
	if err := w.qp.PostRecv(*wr, func(wc *ib.WC) { <-w.tokens }); err != nil {
		<-w.tokens
		return err
	}
	return nil
}
