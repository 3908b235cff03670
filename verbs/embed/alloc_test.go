//go:build !race

package embed_test

import (
	"testing"

	"verbena/verbs"
)

// TestDataPathAllocates: posting and polling allocate nothing.
func TestDataPathAllocates(t *testing.T) {
	s, _ := newStack(t)
	dev, err := s.Open("")
	must(t, err)
	defer dev.Close()
	pd, err := dev.AllocPD()
	must(t, err)
	mr, err := pd.Alloc(4096, verbs.LocalWrite|verbs.RemoteWrite)
	must(t, err)
	cq, err := dev.CreateCQ(16, nil)
	must(t, err)
	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq})
	must(t, err)
	here, err := qp.Local()
	must(t, err)
	must(t, qp.Connect(here))
	send := verbs.SendWR{Opcode: verbs.Send, Flags: verbs.Signaled, Local: mr.SGE(0, 64)}
	write := verbs.SendWR{Opcode: verbs.Write, Flags: verbs.Signaled, Local: mr.SGE(0, 64), Remote: verbs.Remote{Addr: mr.Addr() + 64, RKey: mr.RKey()}}
	recv := verbs.RecvWR{Local: mr.SGE(128, 64)}
	wc := make([]verbs.WC, 8)
	n := testing.AllocsPerRun(1000, func() {
		must(t, qp.PostRecv(&recv))
		must(t, qp.PostSend(&send))
		must(t, qp.PostSend(&write))
		for got := 0; got < 3; {
			n, err := cq.Poll(wc)
			must(t, err)
			for i := range n {
				must(t, verbs.CompletionError(&wc[i]))
			}
			got += n
		}
	})
	if n != 0 {
		t.Errorf("a SEND, its receive and a WRITE: %v allocations, want 0", n)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
