// Package reply_channel waits for work requests by channels with space for each.
package reply_channel

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type result struct {
	n      int
	status ib.WCStatus
}

func roundTrip(pd *ib.PD, cq *completion.CQ) (int, error) {
	qp, err := cq.CreateQP(pd, ib.QPInitAttr{})
	if err != nil {
		return 0, err
	}
	got, sent := make(chan result, 1), make(chan ib.WCStatus, 1)
	if err := qp.PostRecv(ib.RecvWR{}, func(wc *ib.WC) {
		if wc.Status != ib.WCSuccess {
			got <- result{status: wc.Status}
			return
		}
		got <- result{n: int(wc.ByteLen)}
	}); err != nil {
		return 0, err
	}
	if err := qp.PostSend(ib.SendWR{}, func(wc *ib.WC) { sent <- wc.Status }); err != nil {
		return 0, err
	}
	<-sent
	return (<-got).n, nil
}

func all(qp *completion.QP, wrs []ib.SendWR) {
	done := make(chan ib.WCStatus, len(wrs))
	for _, wr := range wrs {
		if qp.PostSend(wr, func(wc *ib.WC) { done <- wc.Status }) != nil {
			done <- ib.WCFatalErr
		}
	}
	for range wrs {
		<-done
	}
}

func oneByOne(qp *completion.QP, wrs []ib.SendWR) {
	for _, wr := range wrs {
		done := make(chan ib.WCStatus, 1)
		if qp.PostSend(wr, func(wc *ib.WC) { done <- wc.Status }) == nil {
			<-done
		}
	}
}

func open(d *ib.Device, pd *ib.PD) (*completion.CQ, error) {
	cq, err := completion.New(d, completion.Init{Entries: 8, Context: completion.Callback})
	if err != nil {
		return nil, err
	}
	_, err = roundTrip(pd, cq)
	return cq, err
}
