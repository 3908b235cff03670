// Package fetch_in_helper makes a READ in one helper, and posts it in another.
package fetch_in_helper

import (
	"verbena/ib"
	"verbena/ib/completion"
)

func read(sgl []ib.SGE, addr uint64, key uint32) ib.SendWR {
	wr := ib.SendWR{Opcode: ib.WRRDMARead, SGList: sgl}
	wr.RemoteAddr, wr.RKey = addr, key
	return wr
}

func start(qp *completion.QP, wr ib.SendWR) (<-chan struct{}, error) {
	end := make(chan struct{}, 1)
	return end, qp.PostSend(wr, func(*ib.WC) { end <- struct{}{} }) // want "status: .*waits for data"
}

// Fetch returns the first byte of a peer's memory.
func Fetch(qp *completion.QP, b []byte, sgl []ib.SGE, addr uint64, key uint32) (byte, error) {
	end, err := start(qp, read(sgl, addr, key))
	if err != nil {
		return 0, err
	}
	<-end
	return b[0], nil
}
