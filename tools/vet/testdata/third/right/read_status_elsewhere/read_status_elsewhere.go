// Package read_status_elsewhere sends a message behind a READ: if the READ fails, the message does too.
package read_status_elsewhere

import (
	"errors"

	"verbena/ib"
	"verbena/ib/completion"
)

// Fetch returns the memory of a peer.
func Fetch(qp *completion.QP, sgl []ib.SGE, addr uint64, key uint32) error {
	done := make(chan ib.WCStatus, 1)
	room := make(chan struct{}, 1)
	err := qp.PostSend(ib.SendWR{Opcode: ib.WRRDMARead, RemoteAddr: addr, RKey: key, SGList: sgl}, func(*ib.WC) { close(room) })
	if err != nil {
		return err
	}
	<-room
	if err := qp.PostSend(ib.SendWR{Opcode: ib.WRSend}, func(wc *ib.WC) { done <- wc.Status }); err != nil {
		return err
	}
	if st := <-done; st != ib.WCSuccess {
		return errors.New(st.String())
	}
	return nil
}

// Add adds to a word of a peer.
func Add(qp *completion.QP, sgl []ib.SGE, addr uint64, key uint32) error {
	done := make(chan ib.WCStatus, 1)
	err := qp.PostSend(ib.SendWR{Opcode: ib.WRAtomicFetchAdd, RemoteAddr: addr, RKey: key, SGList: sgl}, func(wc *ib.WC) {
		done <- wc.Status
	})
	if err != nil {
		return err
	}
	if st := <-done; st != ib.WCSuccess {
		return errors.New(st.String())
	}
	return nil
}
