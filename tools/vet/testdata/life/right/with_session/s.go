// Package with_session has a function that calls another one between Acquire and Release.
package with_session

import (
	"context"

	"verbena/ib"
	"verbena/ib/attach"
	"verbena/ib/completion"
)

type disk struct {
	a *attach.Attachment[*completion.QP]
}

func (d *disk) with(ctx context.Context, f func(*completion.QP) error) error {
	qp, err := d.a.Acquire(ctx)
	if err != nil {
		return err
	}
	defer d.a.Release()
	return f(qp)
}

func (d *disk) flush(ctx context.Context) error {
	done := make(chan struct{})
	err := d.with(ctx, func(qp *completion.QP) error {
		if err := qp.PostSend(ib.SendWR{Opcode: ib.WRSend}, func(*ib.WC) { close(done) }); err != nil {
			return err
		}
		return nil
	})
	if err == nil {
		<-done
	}
	return err
}
