package embed_test

import (
	"testing"

	"verbena/verbs"
)

// TestOrder tests that the race detector sees a program and its device take turns with memory of the collector's heap. It fails under
// -race alone.
func TestOrder(t *testing.T) {
	dev := open(t, software(t), "")
	a, b := newEnd(t, dev, verbs.QPInit{}), newEnd(t, dev, verbs.QPInit{})
	if err := verbs.ConnectPair(a.qp, b.qp); err != nil {
		t.Fatal(err)
	}
	var ends [2]*verbs.MR
	for i, pd := range []*verbs.PD{a.pd, b.pd} {
		mr, err := pd.RegSlice(make([]byte, 100), verbs.LocalWrite|verbs.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		defer mr.Close()
		ends[i] = mr
	}
	from, to := ends[0], ends[1]
	for i := range 1000 {
		from.Bytes()[0] = byte(i)
		wr := verbs.SendWR{Opcode: verbs.Write, Flags: verbs.Signaled, Local: from.SGE(0, 100), Remote: to.Remote(0)}
		if err := a.qp.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		var wcs [1]verbs.WC
		if _, err := a.cq.Wait(t.Context(), wcs[:]); err != nil || wcs[0].Status != verbs.Success {
			t.Fatalf("Wait: got %v, %v", wcs[0].Status, err)
		}
		if got := to.Bytes()[0]; got != byte(i) {
			t.Fatalf("memory: got %d, want %d", got, byte(i))
		}
		to.Bytes()[0] = 0
	}
}
