package loopback_test

import (
	"testing"

	"verbena/ib"
)

// TestAddressHandleDomain checks that a datagram fails if its address handle belongs to another domain (IBA 10.2.3).
func TestAddressHandleDomain(t *testing.T) {
	w := newConnectedPair(t, ib.QPTypeUD, false, 64, nil)
	defer w.close(t)
	pd := must(w.dev.AllocPD())(t)
	route := must(w.dev.Local(1))(t)
	attr := route.AddressTo(route.GID)
	ah := must(pd.CreateAH(&attr))(t)
	w.free = append(w.free, pd.Dealloc, ah.Destroy)
	_, send, wc := w.newRequests()
	send[0].AH = ah
	must(w.qps[0].PostSend(send...))(t)
	if n := must(w.cq.Poll(wc))(t); n != 1 || wc[0].Status != ib.WCLocQPOpErr {
		t.Fatalf("Poll: got %d completions, status %v, want %v", n, wc[0].Status, ib.WCLocQPOpErr)
	}
}
