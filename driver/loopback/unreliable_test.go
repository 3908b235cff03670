package loopback_test

import (
	"testing"

	"verbena/ib"
)

// TestUnreliableTooLong checks a message that is longer than its receive. The message must be lost without an error on
// either side, and the receive must remain (class D of IBA 9.9.3).
func TestUnreliableTooLong(t *testing.T) {
	w := newConnectedPair(t, ib.QPTypeUD, false, 64, nil)
	defer w.close(t)
	recv, send, wc := w.newRequests()
	recv[0].SGList[0].Length = grhLen + 63
	must(w.qps[1].PostRecv(recv...))(t)
	must(w.qps[0].PostSend(send...))(t)
	if n := must(w.cq.Poll(wc))(t); n != 1 || wc[0].Opcode != ib.WCSend || wc[0].Status != ib.WCSuccess {
		t.Fatalf("Poll: got %d completions, %+v, want the completion of the send", n, wc[0])
	}
	send[0].SGList[0].Length = 63
	must(w.qps[0].PostSend(send...))(t)
	if n := must(w.cq.Poll(wc))(t); n != 2 {
		t.Fatalf("Poll: got %d completions, want 2 for a message that fits", n)
	}
}
