package loopback_test

import (
	"testing"

	"verbena/ib"
)

// TestWaitEndsWhenPeerFails checks a request that waits for a receive. The wait must end when the peer fails. The
// peer's own request has also waited, and fails when it can continue.
func TestWaitEndsWhenPeerFails(t *testing.T) {
	w := newConnectedPair(t, ib.QPTypeRC, false, 64, nil)
	defer w.close(t)
	a, b := w.qps[0], w.qps[1]
	bad := w.sgl[0]
	bad.LKey ^= 0x100
	must(b.PostSend(ib.SendWR{ID: 1, Opcode: ib.WRSend}))(t) // waits for a receive of queue pair a
	must(a.PostSend(ib.SendWR{ID: 2, Opcode: ib.WRSend}, ib.SendWR{ID: 3, Opcode: ib.WRSend, SGList: []ib.SGE{bad}}))(t)
	must(b.PostRecv(ib.RecvWR{ID: 4}))(t)
	wcs := make([]ib.WC, 8)
	for _, wc := range wcs[:must(w.cq.Poll(wcs))(t)] {
		if wc.ID == 1 && wc.Status == ib.WCRetryExcErr {
			return
		}
	}
	t.Fatal("Poll: got no completion of the SEND to a failed peer, want one")
}
