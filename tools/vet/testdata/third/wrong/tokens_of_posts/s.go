package tokens_of_posts

import (
	"context"

	"verbena/ib"
	"verbena/ib/completion"
)

// window counts the requests in flight, but not those of Urgent.
type window struct {
	qp     *completion.QP
	tokens chan struct{}
}

func Open(cq *completion.CQ, pd *ib.PD, init ib.QPInitAttr) (*window, error) {
	qp, err := cq.CreateQP(pd, init)
	if err != nil {
		return nil, err
	}
	return &window{qp, make(chan struct{}, 8)}, nil
}

func Start(d *ib.Device) (*completion.CQ, error) {
	return completion.New(d, completion.Init{Entries: 16, Context: completion.Callback})
}

func (w *window) take(ctx context.Context) error {
	select {
	case w.tokens <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *window) Send(ctx context.Context, wr *ib.SendWR) error {
	if err := w.take(ctx); err != nil {
		return err
	}
	if err := w.qp.PostSend(*wr, w.sent); err != nil {
		<-w.tokens
		return err
	}
	return nil
}

func (w *window) Urgent(wr *ib.SendWR) error { return w.qp.PostSend(*wr, w.sent) }

func (w *window) sent(wc *ib.WC) {
	<-w.tokens // want "nosleep: .*receives from a channel"
}

// retry gives the token back twice if the post has failed after the first one.
type retry struct {
	qp     *completion.QP
	tokens chan struct{}
}

func OpenRetry(cq *completion.CQ, pd *ib.PD, init ib.QPInitAttr) (*retry, error) {
	qp, err := cq.CreateQP(pd, init)
	if err != nil {
		return nil, err
	}
	return &retry{qp, make(chan struct{}, 8)}, nil
}

func (r *retry) Send(wr *ib.SendWR) error {
	r.tokens <- struct{}{}
	err := r.qp.PostSend(*wr, func(wc *ib.WC) {
		<-r.tokens // want "nosleep: .*receives from a channel"
	})
	<-r.tokens
	return err
}
