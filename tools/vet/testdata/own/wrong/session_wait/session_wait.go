package session_wait

import (
	"context"

	"verbena/ib"
	"verbena/ib/attach"
	"verbena/ib/completion"
)

type disk struct {
	a *attach.Attachment[*completion.QP]
}

func (d *disk) read(wr ib.SendWR) error {
	qp, err := d.a.Acquire(context.Background())
	if err != nil {
		return err
	}
	defer d.a.Release()
	done := make(chan ib.WCStatus, 1)
	if err := qp.PostSend(wr, func(wc *ib.WC) { done <- wc.Status }); err != nil {
		return err
	}
	<-done // want "session: .*disk.*read waits for completions of a session before Release"
	return nil
}

func (d *disk) flush(wr ib.SendWR) {
	qp, ok := d.a.TryAcquire()
	if !ok {
		return
	}
	done := make(chan struct{})
	if qp.PostSend(wr, func(*ib.WC) { close(done) }) == nil {
		await(done) // want "session: .*flush waits for completions of a session before Release: it calls .*await"
	}
	d.a.Release()
}

func await(done chan struct{}) {
	select {
	case <-done:
	}
}
