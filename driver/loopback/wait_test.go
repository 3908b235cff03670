package loopback_test

import (
	"testing"

	"verbena/ib"
)

// TestPeerFailsWhileBothWait checks that a request that waits for a receive ends when its peer fails. The peer's own
// request had waited too, and failed when it could continue.
func TestPeerFailsWhileBothWait(t *testing.T) {
	w := newWorld(t, ib.QPTypeRC, false, 64, nil)
	defer w.close(t)
	a, b := w.qps[0], w.qps[1]
	bad := w.sgl[0]
	bad.LKey ^= 0x100
	must(b.PostSend(ib.SendWR{ID: 1, Opcode: ib.WRSend}))(t) // waits for a receive of a
	must(a.PostSend(ib.SendWR{ID: 2, Opcode: ib.WRSend}, ib.SendWR{ID: 3, Opcode: ib.WRSend, SGList: []ib.SGE{bad}}))(t)
	must(b.PostRecv(ib.RecvWR{ID: 4}))(t)
	wcs := make([]ib.WC, 8)
	for _, wc := range wcs[:must(w.cq.Poll(wcs))(t)] {
		if wc.ID == 1 && wc.Status == ib.WCRetryExcErr {
			return
		}
	}
	t.Fatal("Poll: got no completion of the SEND whose peer has failed")
}
