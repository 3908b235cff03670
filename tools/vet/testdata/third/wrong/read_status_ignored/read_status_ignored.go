// Package read_status_ignored waits for a READ, and uses the data whatever its status is.
package read_status_ignored

import (
	"verbena/ib"
	"verbena/ib/completion"
)

// Fetch returns the memory of a peer.
func Fetch(qp *completion.QP, mr *ib.MR, b []byte, addr uint64, key uint32) ([]byte, error) {
	done := make(chan struct{})
	err := qp.PostSend(ib.SendWR{Opcode: ib.WRRDMARead, RemoteAddr: addr, RKey: key, // want "status: .*Fetch waits for data"
		SGList: []ib.SGE{{Addr: mr.Addr(), Length: uint32(len(b)), LKey: mr.LKey()}}}, func(*ib.WC) { close(done) })
	if err != nil {
		return nil, err
	}
	<-done
	return b, nil
}
