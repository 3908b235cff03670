package embed_test

import (
	"sync"
	"testing"

	"verbena/verbs"
)

// TestMemoryOrderIsRaceFree runs a program and its device under the race detector. The accesses to memory on the
// garbage collector's heap must be ordered. The test can only fail under -race.
func TestMemoryOrderIsRaceFree(t *testing.T) {
	dev := openDevice(t, newSoftwareStack(t), "")
	a, b := newTestEnd(t, dev, verbs.QPInit{}), newTestEnd(t, dev, verbs.QPInit{})
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

// TestResizeIsRaceFree checks the same for queues that are resized during use.
func TestResizeIsRaceFree(t *testing.T) {
	dev := openDevice(t, newSoftwareStack(t), "")
	a := newTestEnd(t, dev, verbs.QPInit{})
	srq, err := a.pd.CreateSRQ(16, 1)
	if err != nil {
		t.Fatal(err)
	}
	b := newTestEnd(t, dev, verbs.QPInit{})
	c := newTestEnd(t, dev, verbs.QPInit{})
	qp, err := a.pd.CreateQP(verbs.QPInit{SendCQ: b.cq, SRQ: srq})
	if err != nil {
		t.Fatal(err)
	}
	if err := verbs.ConnectPair(c.qp, qp); err != nil {
		t.Fatal(err)
	}
	var resizing sync.WaitGroup
	done := make(chan struct{})
	resizing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			for _, err := range []error{b.cq.Resize(256 + i%3*200), c.cq.Resize(256 + i%5*100), srq.Resize(16 + i%7*16)} {
				if err != nil {
					t.Errorf("Resize: %v", err)
				}
			}
		}
	})
	for i := range 2000 {
		if err := srq.PostRecv(&verbs.RecvWR{Local: a.mr.SGE(0, 100)}); err != nil {
			t.Fatal(err)
		}
		if err := c.qp.PostSend(&verbs.SendWR{ID: uint64(i), Opcode: verbs.Send, Flags: verbs.Signaled,
			Local: c.mr.SGE(0, 100)}); err != nil {
			t.Fatal(err)
		}
		for _, cq := range []*verbs.CQ{b.cq, c.cq} {
			var wcs [1]verbs.WC
			if _, err := cq.Wait(t.Context(), wcs[:]); err != nil || wcs[0].Status != verbs.Success {
				t.Fatalf("message %d: got %v, %v", i, wcs[0].Status, err)
			}
		}
	}
	close(done)
	resizing.Wait()
}
