// Package reply_channel waits for work requests by channels with too little space.
package reply_channel

import (
	"verbena/ib"
	"verbena/ib/completion"
)

func both(qp *completion.QP) {
	done := make(chan ib.WCStatus, 1)
	qp.PostRecv(ib.RecvWR{}, func(wc *ib.WC) { done <- wc.Status }) // want "nosleep: .*sends to a channel"
	qp.PostSend(ib.SendWR{}, func(wc *ib.WC) { done <- wc.Status }) // want "nosleep: .*sends to a channel"
	<-done
}

func all(qp *completion.QP, wrs []ib.SendWR) {
	done := make(chan ib.WCStatus, 1)
	for _, wr := range wrs {
		qp.PostSend(wr, func(wc *ib.WC) { done <- wc.Status }) // want "nosleep: .*sends to a channel"
	}
	for range wrs {
		<-done
	}
}

func twice(qp *completion.QP) {
	done := make(chan uint64, 1)
	qp.PostSend(ib.SendWR{}, func(wc *ib.WC) {
		done <- uint64(wc.Status) // want "nosleep: .*sends to a channel"
		done <- wc.ID             // want "nosleep: .*sends to a channel"
	})
	<-done
}

func kept(qp *completion.QP) {
	done := make(chan ib.WCStatus, 1)
	reply := func(wc *ib.WC) { done <- wc.Status } // want "nosleep: .*sends to a channel"
	qp.PostRecv(ib.RecvWR{}, reply)
	qp.PostSend(ib.SendWR{}, reply)
	<-done
}

func unbuffered(qp *completion.QP) {
	done := make(chan ib.WCStatus)
	qp.PostSend(ib.SendWR{}, func(wc *ib.WC) { done <- wc.Status }) // want "nosleep: .*sends to a channel"
	<-done
}

func open(d *ib.Device) (*completion.CQ, error) {
	return completion.New(d, completion.Init{Entries: 8, Context: completion.Callback})
}
