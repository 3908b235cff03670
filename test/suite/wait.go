package suite

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"verbena/verbs"
)

func (w *Testbed) testWaitForCompletion() {
	a, b := w.NewPair(verbs.QPInit{})
	for i := range 50 {
		b.PostRecv(uint64(i), 0, 100)
		done := make(chan verbs.WC)
		go func() {
			var wc [4]verbs.WC
			if n, err := b.CQ.Wait(b.ShortContext(), wc[:]); n != 1 || err != nil {
				b.Errorf("Wait: got %d, %v", n, err)
			}
			done <- wc[0]
		}()
		if i%3 == 0 {
			time.Sleep(2 * time.Millisecond) // the pause makes the waiter sleep
		}
		a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: a.MR.SGE(0, 10)})
		if wc := <-done; wc.ID != uint64(i) {
			w.Fatalf("completion: got work request %d, want %d", wc.ID, i)
		}
		a.WaitSuccess(1)
	}
	if _, err := b.CQ.Wait(w.ShortContext(), nil); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("Wait without space for a completion: got %v, want EINVAL", err)
	}
}

func (w *Testbed) testCancelWait() {
	a, b := w.NewPair(verbs.QPInit{})
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("enough")
	time.AfterFunc(5*time.Millisecond, func() { cancel(why) })
	var wc [1]verbs.WC
	if n, err := b.CQ.Wait(ctx, wc[:]); n != 0 || !errors.Is(err, why) {
		w.Fatalf("Wait: got %d, %v, want 0, %v", n, err, why)
	}
	if _, err := b.CQ.Wait(ctx, wc[:]); !errors.Is(err, why) {
		w.Fatalf("second Wait: got %v, want %v", err, why)
	}
	if _, err := w.Device.NextEvent(ctx); !errors.Is(err, why) {
		w.Fatalf("NextEvent: got %v, want %v", err, why)
	}
	// Completions that arrive afterwards are not lost.
	b.PostRecv(1, 0, 100)
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: a.MR.SGE(0, 10)})
	b.WaitSuccess(1)
	a.WaitSuccess(2)
}

func (w *Testbed) testCompletionChannel() {
	ch, err := w.Device.CreateChannel()
	w.Must(err)
	pd, err := w.Device.AllocPD()
	w.Must(err)
	var cqs [2]*verbs.CQ
	for i := range cqs {
		cqs[i], err = w.Device.CreateCQ(10, ch)
		w.Must(err)
		w.Must(cqs[i].Arm(false))
	}
	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cqs[0], RecvCQ: cqs[1]})
	w.Must(err)
	me := &End{Testbed: w, PD: pd, CQ: cqs[0], QP: qp}
	here, err := qp.LocalVia(w.Config.Path)
	w.Must(err)
	w.Must(qp.ConnectVia(here, w.Config.Path)) // connected to itself
	me.MR, err = pd.Alloc(4096, verbs.LocalWrite)
	w.Must(err)
	me.PostRecv(1, 0, 100)
	me.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: me.MR.SGE(200, 100)})
	seen := map[*verbs.CQ]bool{}
	for range 2 {
		cq, err := ch.Wait(w.ShortContext())
		w.Must(err)
		seen[cq] = true
	}
	if !seen[cqs[0]] || !seen[cqs[1]] {
		w.Errorf("events: got those of %v, want both", seen)
	}
	if _, err := cqs[0].Wait(w.ShortContext(), make([]verbs.WC, 1)); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("Wait on a shared channel: got %v, want EINVAL", err)
	}
	if err := ch.Close(); !errors.Is(err, syscall.EBUSY) {
		w.Errorf("Close of a channel in use: got %v, want EBUSY", err)
	}
	for _, c := range []io.Closer{qp, cqs[0], cqs[1], ch} {
		w.Must(c.Close())
	}
}

func (w *Testbed) testCompletionIterator() {
	a, b := w.NewPair(verbs.QPInit{})
	const n = 40
	var sender sync.WaitGroup
	defer sender.Wait()
	sender.Go(func() {
		for i := range n {
			b.PostRecv(uint64(i), 0, 100)
			a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: a.MR.SGE(0, 10)})
			a.WaitSuccess(1)
		}
	})
	next := uint64(0)
	for wc, err := range b.CQ.Completions(w.ShortContext()) {
		w.Must(err)
		if wc.ID != next {
			w.Fatalf("completion: got work request %d, want %d", wc.ID, next)
		}
		if next++; next == n {
			break
		}
	}
	if next != n {
		w.Errorf("got %d completions, want %d", next, n)
	}
}

func (w *Testbed) testFullCQ() {
	a, _ := w.NewPair(verbs.QPInit{SendWRs: 4, RecvWRs: 4})
	n := 0
	for ; n < 1000; n++ {
		if err := a.QP.PostRecv(&verbs.RecvWR{Local: a.MR.SGE(0, 10)}); err != nil {
			if !errors.Is(err, verbs.ErrQueueFull) {
				w.Fatalf("PostRecv: got %v, want %v", err, verbs.ErrQueueFull)
			}
			break
		}
	}
	if n < 4 || n == 1000 {
		w.Errorf("posted receives: got %d, want at least 4", n)
	}
}

func (w *Testbed) testResizeCQ() {
	a, b := w.NewPair(verbs.QPInit{})
	for i := range 20 {
		b.PostRecv(uint64(i), 0, 100)
		a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: a.MR.SGE(0, 10)})
		a.WaitSuccess(1)
	}
	w.Must(b.CQ.Resize(3000))
	if n := b.CQ.Entries(); n < 3000 {
		w.Errorf("Resize to 3000 entries: got %d, want at least 3000", n)
	}
	for i := range 20 {
		b.WaitSuccess(uint64(i))
	}
}

// testConcurrentPostAndPoll tests that no completion is lost or duplicated when several goroutines post and poll.
func (w *Testbed) testConcurrentPostAndPoll() {
	const threads, each = 4, 200
	a, b := w.NewPair(verbs.QPInit{SendWRs: 128, RecvWRs: 128})
	credits := make(chan struct{}, 100)
	var mu sync.Mutex
	seen := map[uint64]int{}
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			for j := range each {
				credits <- struct{}{}
				if err := b.QP.PostRecv(&verbs.RecvWR{Local: b.MR.SGE(0, 100)}); err != nil {
					w.Error(err)
					return
				}
				if err := a.QP.PostSend(&verbs.SendWR{ID: uint64(i*each + j), Opcode: verbs.Send, Flags: verbs.Signaled,
					Local: a.MR.SGE(0, 10)}); err != nil {
					w.Error(err)
					return
				}
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), operationTimeout)
	defer cancel()
	for _, e := range []*End{a, b} {
		for range 2 {
			wg.Go(func() {
				for wc, err := range e.CQ.Completions(ctx) {
					if errors.Is(err, context.Canceled) {
						break
					}
					if err != nil {
						w.Errorf("completion: %v", err)
						break
					}
					mu.Lock()
					if e == a {
						seen[wc.ID]++
						<-credits
					} else {
						seen[1<<32]++
					}
					all := len(seen) == threads*each+1 && seen[1<<32] == threads*each
					mu.Unlock()
					if all {
						cancel()
					}
				}
			})
		}
	}
	wg.Wait()
	for id, n := range seen {
		if id != 1<<32 && n != 1 {
			w.Errorf("completions of work request %d: got %d, want 1", id, n)
		}
	}
	if len(seen) != threads*each+1 || seen[1<<32] != threads*each {
		w.Errorf("completions: got %d sends and %d receives, want %d of each", len(seen)-1, seen[1<<32], threads*each)
	}
}
