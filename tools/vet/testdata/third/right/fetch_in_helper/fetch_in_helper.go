// Package fetch_in_helper posts requests of several kinds in a helper.
package fetch_in_helper

import (
	"errors"

	"verbena/ib"
	"verbena/ib/completion"
)

func start(qp *completion.QP, wr ib.SendWR) (<-chan struct{}, error) {
	end := make(chan struct{}, 1)
	return end, qp.PostSend(wr, func(*ib.WC) { end <- struct{}{} })
}

// Notify sends a message, and waits until its memory is free.
func Notify(qp *completion.QP, sgl []ib.SGE) error {
	end, err := start(qp, ib.SendWR{Opcode: ib.WRSend, SGList: sgl})
	if err == nil {
		<-end
	}
	return err
}

func fetch(qp *completion.QP, sgl []ib.SGE) (<-chan ib.WCStatus, error) {
	end := make(chan ib.WCStatus, 1)
	return end, qp.PostSend(ib.SendWR{Opcode: ib.WRRDMARead, SGList: sgl}, func(wc *ib.WC) { end <- wc.Status })
}

// First returns the first byte.
func First(qp *completion.QP, b []byte, sgl []ib.SGE) (byte, error) {
	end, err := fetch(qp, sgl)
	if err != nil {
		return 0, err
	}
	if st := <-end; st != ib.WCSuccess {
		return 0, errors.New(st.String())
	}
	return b[0], nil
}
