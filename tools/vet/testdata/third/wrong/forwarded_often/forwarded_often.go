// Package forwarded_often passes a done function to helpers that post it more often than its channel has space.
package forwarded_often

import (
	"verbena/ib"
	"verbena/ib/completion"
)

func postTwice(qp *completion.QP, f completion.Done) error {
	if err := qp.PostSend(ib.SendWR{Opcode: ib.WRSend}, f); err != nil {
		return err
	}
	return qp.PostSend(ib.SendWR{Opcode: ib.WRSend}, f)
}

// Two sends two messages.
func Two(qp *completion.QP) error {
	status := make(chan ib.WCStatus, 1)
	if err := postTwice(qp, func(wc *ib.WC) { status <- wc.Status }); err != nil { // want "nosleep: .*sends to a channel"
		return err
	}
	<-status
	<-status
	return nil
}

func sendTo(c chan<- ib.WCStatus) completion.Done {
	return func(wc *ib.WC) { c <- wc.Status } // want "nosleep: .*sends to a channel"
}

// Many sends n messages.
func Many(qp *completion.QP, n int) error {
	status := make(chan ib.WCStatus, 1)
	for range n {
		if err := qp.PostSend(ib.SendWR{Opcode: ib.WRSend}, sendTo(status)); err != nil {
			return err
		}
	}
	for range n {
		<-status
	}
	return nil
}

// Log has the statuses of all messages.
type Log struct{ statuses chan ib.WCStatus }

// NewLog returns a log.
func NewLog() *Log { return &Log{make(chan ib.WCStatus, 8)} }

func (l *Log) done() completion.Done {
	return func(wc *ib.WC) { l.statuses <- wc.Status } // want "nosleep: .*sends to a channel"
}

// Send sends a message.
func (l *Log) Send(qp *completion.QP) error {
	return qp.PostSend(ib.SendWR{Opcode: ib.WRSend}, l.done())
}

// Next returns the next status.
func (l *Log) Next() ib.WCStatus { return <-l.statuses }
