package engine

import (
	"bytes"
	"testing"

	"verbena/uapi"
)

// FuzzSendRing puts any work request into a send ring.
func FuzzSendRing(f *testing.F) {
	for op := range uapi.WROpcode(16) {
		h := uapi.RXESendWQE{WR: uapi.RXESendWR{Opcode: op}}
		h.DMA.Length, h.DMA.NumSGE = 8, 1
		f.Add(uapi.AppendTo(uapi.AppendTo(nil, &h), &uapi.RXESGE{Addr: 1, Length: 8, LKey: 0x100}))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		b := newBenchIn(t, setup{shortcut: true, bufLen: 4096})
		defer b.close()
		u := openUser(b, userCap)
		defer u.close()
		b.b.recv(1, 0, 4096)
		qp := qpOf(u.qp)
		slot := make([]byte, uapi.RXESendWQESize+int(qp.cap.MaxInlineData))
		copy(slot, in)
		if !u.sq.post(slot) {
			t.Fatal("send ring is full")
		}
		before := bytes.Clone(b.b.buf)
		qp.Doorbell(nil)
		// The request has completed, with or without success, or waits for a response.
		if op := uapi.WROpcode(slot[12]); op != uapi.WRSend && op != uapi.WRSendWithImm && slot[13]|slot[14]|slot[15] == 0 {
			if h, _ := uapi.Decode[uapi.RXESendWQE](slot); h.WR.RDMA().RKey != b.b.mr.RKey() && h.WR.Atomic().RKey != b.b.mr.RKey() && !bytes.Equal(before, b.b.buf) {
				t.Error("the peer's memory was written without its key")
			}
		}
	})
}
