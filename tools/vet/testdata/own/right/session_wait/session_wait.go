package session_wait

import (
	"context"
	"os"
	"os/signal"

	"verbena/ib"
	"verbena/ib/attach"
	"verbena/ib/completion"
)

type disk struct {
	a      *attach.Attachment[*completion.QP]
	closed chan struct{}
	kick   chan struct{}
}

// read releases the session before it waits.
func (d *disk) read(wr ib.SendWR) error {
	qp, err := d.a.Acquire(context.Background())
	if err != nil {
		return err
	}
	done := make(chan struct{})
	err = qp.PostSend(wr, func(*ib.WC) { close(done) })
	d.a.Release()
	if err == nil {
		<-done
	}
	return err
}

// readOrEnd also waits for another event, which needs no completion.
func (d *disk) readOrEnd(wr ib.SendWR) {
	qp, ok := d.a.TryAcquire()
	if !ok {
		return
	}
	defer d.a.Release()
	done := make(chan struct{})
	if qp.PostSend(wr, func(*ib.WC) { close(done) }) == nil {
		select {
		case <-done:
		case <-d.closed:
		}
	}
}

// pass waits for a goroutine that completions do not need.
func (d *disk) pass() {
	if _, ok := d.a.TryAcquire(); !ok {
		return
	}
	<-d.kick
	d.a.Release()
}

func (d *disk) produce() { d.kick <- struct{}{} }

// stop waits for a channel to which another package may send, too.
func (d *disk) stop(wr ib.SendWR) {
	qp, ok := d.a.TryAcquire()
	if !ok {
		return
	}
	defer d.a.Release()
	ended := make(chan os.Signal)
	signal.Notify(ended, os.Interrupt)
	if qp.PostSend(wr, func(*ib.WC) { close(ended) }) == nil {
		<-ended
	}
}
