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

func (w *world) wait() {
	a, b := w.pair(verbs.QPInit{})
	for i := range 50 {
		b.recv(uint64(i), 0, 100)
		done := make(chan verbs.WC)
		go func() {
			var wc [4]verbs.WC
			if n, err := b.cq.Wait(b.ctx(), wc[:]); n != 1 || err != nil {
				b.Errorf("Wait: got %d, %v", n, err)
			}
			done <- wc[0]
		}()
		if i%3 == 0 {
			time.Sleep(2 * time.Millisecond) // so that it sleeps
		}
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: a.mr.SGE(0, 10)})
		if wc := <-done; wc.ID != uint64(i) {
			w.Fatalf("got work request %d, want %d", wc.ID, i)
		}
		a.ok(1)
	}
	if _, err := b.cq.Wait(w.ctx(), nil); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("Wait without room for a completion: got %v, want EINVAL", err)
	}
}

func (w *world) cancel() {
	a, b := w.pair(verbs.QPInit{})
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("enough")
	time.AfterFunc(5*time.Millisecond, func() { cancel(why) })
	var wc [1]verbs.WC
	if n, err := b.cq.Wait(ctx, wc[:]); n != 0 || !errors.Is(err, why) {
		w.Fatalf("Wait: got %d, %v, want 0, %v", n, err, why)
	}
	if _, err := b.cq.Wait(ctx, wc[:]); !errors.Is(err, why) {
		w.Fatalf("Wait again: got %v, want %v", err, why)
	}
	if _, err := w.d.NextEvent(ctx); !errors.Is(err, why) {
		w.Fatalf("NextEvent: got %v, want %v", err, why)
	}
	// Completions that come afterwards are not lost.
	b.recv(1, 0, 100)
	a.post(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: a.mr.SGE(0, 10)})
	b.ok(1)
	a.ok(2)
}

func (w *world) channel() {
	ch, err := w.d.CreateChannel()
	w.must(err)
	pd, err := w.d.AllocPD()
	w.must(err)
	var cqs [2]*verbs.CQ
	for i := range cqs {
		cqs[i], err = w.d.CreateCQ(10, ch)
		w.must(err)
		w.must(cqs[i].Arm(false))
	}
	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cqs[0], RecvCQ: cqs[1]})
	w.must(err)
	me := &end{world: w, pd: pd, cq: cqs[0], qp: qp}
	here, err := qp.LocalVia(w.c.Path)
	w.must(err)
	w.must(qp.ConnectVia(here, w.c.Path)) // to itself
	me.mr, err = pd.Alloc(4096, verbs.LocalWrite)
	w.must(err)
	me.recv(1, 0, 100)
	me.post(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: me.mr.SGE(200, 100)})
	seen := map[*verbs.CQ]bool{}
	for range 2 {
		cq, err := ch.Wait(w.ctx())
		w.must(err)
		seen[cq] = true
	}
	if !seen[cqs[0]] || !seen[cqs[1]] {
		w.Errorf("got events of %v, want both", seen)
	}
	if _, err := cqs[0].Wait(w.ctx(), make([]verbs.WC, 1)); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("Wait on a shared channel: got %v, want EINVAL", err)
	}
	if err := ch.Close(); !errors.Is(err, syscall.EBUSY) {
		w.Errorf("Close of a channel in use: got %v, want EBUSY", err)
	}
	for _, c := range []io.Closer{qp, cqs[0], cqs[1], ch} {
		w.must(c.Close())
	}
}

func (w *world) iterator() {
	a, b := w.pair(verbs.QPInit{})
	const n = 40
	var sender sync.WaitGroup
	defer sender.Wait()
	sender.Go(func() {
		for i := range n {
			b.recv(uint64(i), 0, 100)
			a.post(verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: a.mr.SGE(0, 10)})
			a.ok(1)
		}
	})
	next := uint64(0)
	for wc, err := range b.cq.Completions(w.ctx()) {
		w.must(err)
		if wc.ID != next {
			w.Fatalf("got work request %d, want %d", wc.ID, next)
		}
		if next++; next == n {
			break
		}
	}
	if next != n {
		w.Errorf("got %d completions, want %d", next, n)
	}
}

func (w *world) full() {
	a, _ := w.pair(verbs.QPInit{SendWRs: 4, RecvWRs: 4})
	n := 0
	for ; n < 1000; n++ {
		if err := a.qp.PostRecv(&verbs.RecvWR{Local: a.mr.SGE(0, 10)}); err != nil {
			if !errors.Is(err, verbs.ErrQueueFull) {
				w.Fatalf("PostRecv: got %v, want %v", err, verbs.ErrQueueFull)
			}
			break
		}
	}
	if n < 4 || n == 1000 {
		w.Errorf("%d receives fit, asked for 4", n)
	}
}

func (w *world) resize() {
	a, b := w.pair(verbs.QPInit{})
	for i := range 20 {
		b.recv(uint64(i), 0, 100)
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: a.mr.SGE(0, 10)})
		a.ok(1)
	}
	w.must(b.cq.Resize(3000))
	if n := b.cq.Entries(); n < 3000 {
		w.Errorf("asked for 3000 entries, got %d", n)
	}
	for i := range 20 {
		b.ok(uint64(i))
	}
}

// concurrent: several goroutines post and poll at a time; nothing is lost or seen twice.
func (w *world) concurrent() {
	const threads, each = 4, 200
	a, b := w.pair(verbs.QPInit{SendWRs: 128, RecvWRs: 128})
	credits := make(chan struct{}, 100)
	var mu sync.Mutex
	seen := map[uint64]int{}
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			for j := range each {
				credits <- struct{}{}
				if err := b.qp.PostRecv(&verbs.RecvWR{Local: b.mr.SGE(0, 100)}); err != nil {
					w.Error(err)
					return
				}
				if err := a.qp.PostSend(&verbs.SendWR{ID: uint64(i*each + j), Opcode: verbs.Send, Flags: verbs.Signaled, Local: a.mr.SGE(0, 10)}); err != nil {
					w.Error(err)
					return
				}
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, e := range []*end{a, b} {
		for range 2 {
			wg.Go(func() {
				for wc, err := range e.cq.Completions(ctx) {
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
			w.Errorf("work request %d completed %d times", id, n)
		}
	}
	if len(seen) != threads*each+1 || seen[1<<32] != threads*each {
		w.Errorf("got %d sends and %d receives, want %d of each", len(seen)-1, seen[1<<32], threads*each)
	}
}
