package completion_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/completion"
	"verbena/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var contextsByName = map[string]completion.Context{
	"direct": completion.Direct, "callback": completion.Callback, "worker": completion.Worker,
}

// checkedDevice is a device with memory, in checked mode.
type checkedDevice struct {
	t   *testing.T
	dev *ib.Device
	at  ib.Local
	pd  *ib.PD
	mr  *ib.MR
	buf []byte

	allowed check.Rule // rule that the test violates on purpose
}

func newCheckedDevice(t *testing.T) *checkedDevice {
	core := &ib.Core{}
	w := &checkedDevice{t: t}
	check.On(core, check.Config{Report: func(v check.Violation) {
		if v.Rule != w.allowed {
			t.Error(v)
		}
	}})
	d := loopback.New("lo0", nil)
	must(t, core.Register(d.Handle()))
	w.dev, w.buf = d.IB(), make([]byte, 4096)
	var err error
	w.at, err = w.dev.Local(1)
	must(t, err)
	w.pd, err = w.dev.AllocPD()
	must(t, err)
	w.mr, err = w.pd.RegBytes(w.buf, ib.AccessLocalWrite)
	must(t, err)
	t.Cleanup(func() {
		must(t, w.mr.Dereg())
		must(t, w.pd.Dealloc())
		must(t, core.Unregister(d.Handle()))
	})
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *checkedDevice) sglAt(off, n int) []ib.SGE {
	return []ib.SGE{{Addr: w.mr.Addr() + uint64(off), Length: uint32(n), LKey: w.mr.LKey()}}
}

func (w *checkedDevice) newCQ(entries int, c completion.Context) *completion.CQ {
	w.t.Helper()
	cq, err := completion.New(w.dev, completion.Init{Entries: entries, Context: c,
		Failed: func(err error) { w.t.Error(err) }})
	must(w.t, err)
	w.t.Cleanup(func() { must(w.t, cq.Destroy()) })
	return cq
}

func (w *checkedDevice) newQP(cq *completion.CQ, depth uint32) *completion.QP {
	w.t.Helper()
	qp, err := cq.CreateQP(w.pd, ib.QPInitAttr{Type: ib.QPTypeRC, Cap: ib.QPCap{
		MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1,
	}})
	must(w.t, err)
	return qp
}

func (w *checkedDevice) newConnectedPair(cq *completion.CQ, depth uint32) (a, b *completion.QP) {
	w.t.Helper()
	a, b = w.newQP(cq, depth), w.newQP(cq, depth)
	must(w.t, ib.ConnectPair(a.QP, b.QP, w.at, w.at, ib.Path{}))
	return a, b
}

// processUntil handles the completions of a Direct queue until done reports true. For the other contexts process only
// waits, because the queue handles its completions itself.
func processUntil(t *testing.T, cq *completion.CQ, c completion.Context, done func() bool) {
	t.Helper()
	testutil.Eventually(t, "the completions", func() bool {
		if c == completion.Direct && !done() {
			_, err := cq.Process(8)
			must(t, err)
		}
		return done()
	})
}

// TestEachDoneCalledOnceInOrder checks that every done function is called once, in order and with the posted ID. The
// test also checks that done functions may post.
func TestEachDoneCalledOnceInOrder(t *testing.T) {
	const messages, depth = 1000, 4
	for name, c := range contextsByName {
		t.Run(name, func(t *testing.T) {
			w := newCheckedDevice(t)
			cq := w.newCQ(4*depth, c)
			a, b := w.newConnectedPair(cq, depth)
			var sent, received atomic.Uint64
			var recv func(id uint64) error
			recv = func(id uint64) error {
				return b.PostRecv(ib.RecvWR{ID: id, SGList: w.sglAt(8, 8)}, func(wc *ib.WC) {
					n := received.Add(1)
					if wc.ID != n || wc.Status != ib.WCSuccess || wc.Opcode != ib.WCRecv {
						t.Errorf("receive %d: got %+v", n, wc)
					}
					if id += depth; id <= messages {
						if err := recv(id); err != nil {
							t.Error(err)
						}
					}
				})
			}
			for id := range uint64(depth) {
				must(t, recv(id+1))
			}
			var send func(id uint64) error
			send = func(id uint64) error {
				return a.PostSend(ib.SendWR{ID: id, Opcode: ib.WRSend, SGList: w.sglAt(0, 8)}, func(wc *ib.WC) {
					n := sent.Add(1)
					if wc.ID != n || wc.Status != ib.WCSuccess || wc.Opcode != ib.WCSend {
						t.Errorf("send %d: got %+v", n, wc)
					}
					if c == completion.Worker && n%100 == 0 {
						time.Sleep(time.Millisecond) // done functions may sleep here
					}
					if id < messages {
						if err := send(id + 1); err != nil {
							t.Error(err)
						}
					}
				})
			}
			must(t, send(1))
			processUntil(t, cq, c, func() bool { return sent.Load() == messages && received.Load() == messages })
			must(t, a.Close(t.Context()))
			must(t, b.Close(t.Context()))
		})
	}
}

// TestCQDoesNotOverrun checks that a completion queue cannot overrun: if a post exceeds the entries of the queue, the
// post fails until a done function has been called.
func TestCQDoesNotOverrun(t *testing.T) {
	w := newCheckedDevice(t)
	cq := w.newCQ(3, completion.Direct)
	qp := w.newQP(cq, 8)
	must(t, qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	calls := 0
	post := func() error {
		return qp.PostRecv(ib.RecvWR{SGList: w.sglAt(0, 8)}, func(wc *ib.WC) { calls++ })
	}
	for range 3 {
		must(t, post())
	}
	if err := post(); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("got %v, want ENOMEM", err)
	}
	for n := 0; n == 0; { // the device may need some time
		var err error
		n, err = cq.Process(1)
		must(t, err)
	}
	if calls != 1 {
		t.Errorf("got %d calls, want 1", calls)
	}
	must(t, post())
	must(t, qp.Close(t.Context()))
	if calls != 4 {
		t.Errorf("got %d calls, want 4", calls)
	}
}

// TestDrain checks that Drain returns after every function has been called, for every state of the queue pair and for
// full queues.
func TestDrain(t *testing.T) {
	const depth = 8
	for name, c := range contextsByName {
		for _, connected := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,connected=%v", name, connected), func(t *testing.T) {
				w := newCheckedDevice(t)
				cq := w.newCQ(4*depth, c)
				a, b := w.newQP(cq, depth), w.newQP(cq, depth)
				if connected {
					must(t, ib.ConnectPair(a.QP, b.QP, w.at, w.at, ib.Path{}))
				} else {
					must(t, a.Modify(ib.QPAttr{State: ib.QPInit, Port: 1},
						ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags))
				}
				var calls atomic.Int32
				want := int32(0)
				for range depth {
					must(t, a.PostRecv(ib.RecvWR{SGList: w.sglAt(0, 8)}, func(wc *ib.WC) {
						if wc.Status != ib.WCWRFlushErr {
							t.Errorf("receive: got %v", wc.Status)
						}
						calls.Add(1)
					}))
					want++
					if connected { // the peer has posted no receives, and the sends wait
						must(t, a.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: w.sglAt(0, 8)}, func(*ib.WC) { calls.Add(1) }))
						want++
					}
				}
				must(t, a.Drain(t.Context()))
				if n := calls.Load(); n != want {
					t.Errorf("got %d calls, want %d", n, want)
				}
				must(t, a.Drain(t.Context())) // a second time
				must(t, a.Destroy())
				must(t, b.Close(t.Context())) // the state is RESET or RTS
			})
		}
	}
}

// TestDrainWithEndedContext calls Drain with a context that has ended. The queue pair must stop, although Drain does
// not wait.
func TestDrainWithEndedContext(t *testing.T) {
	w := newCheckedDevice(t)
	cq := w.newCQ(16, completion.Worker)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 16 { // Drain chose at random between the context and its work
		a, b := w.newConnectedPair(cq, 2)
		must(t, a.PostRecv(ib.RecvWR{SGList: w.sglAt(0, 8)}, nil))
		if err := a.Drain(ended); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Drain with an ended context: got %v, want success or a cancellation", err)
		}
		if s := a.State(); s != ib.QPErr {
			t.Errorf("state after Drain with an ended context: got %v, want %v", s, ib.QPErr)
		}
		if err := a.PostSend(ib.SendWR{Opcode: ib.WRSend}, nil); !errors.Is(err, syscall.ESHUTDOWN) {
			t.Errorf("PostSend after Drain: got %v, want ESHUTDOWN", err)
		}
		must(t, a.Destroy())
		must(t, b.Destroy())
	}
}

// TestCloseAgain calls Close again after its context has ended, also during the destruction.
func TestCloseAgain(t *testing.T) {
	w := newCheckedDevice(t)
	cq := w.newCQ(16, completion.Worker)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	late := 0
	for range 32 {
		qp := w.newQP(cq, 2)
		must(t, qp.Drain(t.Context()))
		err := qp.Close(ended)
		if err == nil {
			continue
		}
		if late++; !errors.Is(err, context.Canceled) {
			t.Fatalf("Close with an ended context: got %v, want success or a cancellation", err)
		}
		must(t, qp.Close(t.Context()))
	}
	if late == 0 {
		t.Error("Close with an ended context: got only successes, want some cancellations")
	}
}

// TestConcurrentCloses destroys a queue pair on several goroutines. Each call must succeed, and return only after the
// destruction: the completion queue is then unused.
func TestConcurrentCloses(t *testing.T) {
	w := newCheckedDevice(t)
	for range 200 {
		cq, err := completion.New(w.dev, completion.Init{Entries: 16, Context: completion.Worker})
		must(t, err)
		qp := w.newQP(cq, 2)
		var closes sync.WaitGroup
		var first sync.Once
		for range 3 {
			closes.Go(func() {
				if err := qp.Destroy(); err != nil {
					t.Error(err)
				}
				first.Do(func() { must(t, cq.Destroy()) })
			})
		}
		closes.Wait()
		must(t, errors.Join(qp.Drain(t.Context()), qp.Destroy()))
	}
}

// TestConcurrentDrainsAreIndependent calls Drain concurrently. If the context of one caller ends, the other callers
// must continue.
func TestConcurrentDrainsAreIndependent(t *testing.T) {
	w := newCheckedDevice(t)
	cq := w.newCQ(16, completion.Worker)
	a, b := w.newConnectedPair(cq, 4)
	hold := make(chan int)
	must(t, a.PostRecv(ib.RecvWR{SGList: w.sglAt(0, 8)}, func(*ib.WC) { <-hold }))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := a.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Drain with a deadline: got %v, want a deadline error", err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := a.Drain(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	close(hold)
	wg.Wait()
	must(t, a.Destroy())
	must(t, b.Close(t.Context()))
}

// TestSRQReceivesCompleteOnPostingCQ checks that receives of a shared queue complete on the CQ through which they were
// posted. The test also checks that unused receives free their slots.
func TestSRQReceivesCompleteOnPostingCQ(t *testing.T) {
	for name, c := range contextsByName {
		t.Run(name, func(t *testing.T) {
			w := newCheckedDevice(t)
			cq := w.newCQ(6, c)
			srq, err := w.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}})
			must(t, err)
			var pairs [2]*completion.QP
			for i := range pairs {
				pairs[i], err = cq.CreateQP(w.pd, ib.QPInitAttr{Type: ib.QPTypeRC, SRQ: srq,
					Cap: ib.QPCap{MaxSendWR: 1, MaxSendSGE: 1}})
				must(t, err)
			}
			must(t, ib.ConnectPair(pairs[0].QP, pairs[1].QP, w.at, w.at, ib.Path{}))
			var received, sent atomic.Int32
			for id := range uint64(3) {
				must(t, cq.PostSRQ(srq, ib.RecvWR{ID: id, SGList: w.sglAt(8, 8)}, func(wc *ib.WC) {
					if n := received.Add(1); uint64(n) != wc.ID+1 {
						t.Errorf("call %d: got receive %d", n, wc.ID)
					}
				}))
			}
			must(t, pairs[0].PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: w.sglAt(0, 8)}, func(*ib.WC) { sent.Add(1) }))
			processUntil(t, cq, c, func() bool { return sent.Load() == 1 && received.Load() == 1 })
			must(t, errors.Join(pairs[0].Close(t.Context()), pairs[1].Close(t.Context()), cq.DestroySRQ(srq)))
			if n := received.Load(); n != 1 {
				t.Errorf("calls of done functions for receives: got %d, want 1", n)
			}
			qp := w.newQP(cq, 8) // all slots are free again
			must(t, qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			for range 6 {
				must(t, qp.PostRecv(ib.RecvWR{SGList: w.sglAt(0, 8)}, nil))
			}
			must(t, qp.Close(t.Context()))
		})
	}
}

// TestDestroyFailsWhileQPUsesCQ checks that a CQ with a queue pair cannot be destroyed and continues to work.
func TestDestroyFailsWhileQPUsesCQ(t *testing.T) {
	for name, c := range contextsByName {
		t.Run(name, func(t *testing.T) {
			w := newCheckedDevice(t)
			cq := w.newCQ(16, c)
			a, b := w.newConnectedPair(cq, 4)
			if err := cq.Destroy(); !errors.Is(err, syscall.EBUSY) {
				t.Fatalf("got %v, want EBUSY", err)
			}
			var calls atomic.Int32
			must(t, b.PostRecv(ib.RecvWR{SGList: w.sglAt(8, 8)}, func(*ib.WC) { calls.Add(1) }))
			must(t, a.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: w.sglAt(0, 8)}, func(*ib.WC) { calls.Add(1) }))
			processUntil(t, cq, c, func() bool { return calls.Load() == 2 })
			must(t, a.Close(t.Context()))
			must(t, b.Close(t.Context()))
		})
	}
}

// TestMoreCompletionsThanBatchAreHandled checks that the queue handles more completions than one batch.
func TestMoreCompletionsThanBatchAreHandled(t *testing.T) {
	const n = 1000
	for name, c := range contextsByName {
		t.Run(name, func(t *testing.T) {
			w := newCheckedDevice(t)
			cq := w.newCQ(n, c)
			qp := w.newQP(cq, n)
			must(t, qp.Modify(ib.QPAttr{State: ib.QPInit, Port: 1},
				ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags))
			var calls atomic.Int32
			for range n {
				must(t, qp.PostRecv(ib.RecvWR{SGList: w.sglAt(0, 8)}, func(*ib.WC) { calls.Add(1) }))
			}
			must(t, qp.Close(t.Context()))
			if got := calls.Load(); got != n {
				t.Errorf("got %d calls, want %d", got, n)
			}
		})
	}
}

func TestBadArgumentsAreRejected(t *testing.T) {
	w := newCheckedDevice(t)
	for _, init := range []completion.Init{{}, {Entries: -1}, {Entries: 1, Context: completion.Worker + 1}} {
		if _, err := completion.New(w.dev, init); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: got %v, want EINVAL", init, err)
		}
	}
	cq := w.newCQ(1, completion.Direct)
	if _, err := cq.CreateQP(w.pd, ib.QPInitAttr{Type: ib.QPTypeXRCTgt}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("CreateQP of an XRC target: got %v, want EINVAL", err)
	}
	qp, err := completion.NewQP(w.pd, ib.QPInitAttr{Type: ib.QPTypeRC}, cq, w.newCQ(2, completion.Callback))
	must(t, err)
	must(t, qp.Close(t.Context()))
	if err := qp.PostRecv(ib.RecvWR{}, nil); !errors.Is(err, syscall.ESHUTDOWN) {
		t.Errorf("PostRecv after Drain: got %v, want ESHUTDOWN", err)
	}
}

// TestDrainOfFailedQueueReturns checks that Drain and Close do not wait for the lost completions of a failed queue.
func TestDrainOfFailedQueueReturns(t *testing.T) {
	for name, c := range contextsByName {
		t.Run(name, func(t *testing.T) {
			w := newCheckedDevice(t)
			w.allowed = check.RuleCQTooSmall
			failed := make(chan error, 1)
			cq, err := completion.New(w.dev, completion.Init{Entries: 1, Context: c, Failed: func(err error) { failed <- err }})
			must(t, err)
			qp := w.newQP(cq, 8)
			must(t, qp.Prepare(w.at, 0))
			for range 4 { // posts more requests than the queue has entries, through the underlying queue pair
				if _, err := qp.QP.PostRecv(ib.RecvWR{ID: 1 << 40}); err != nil {
					t.Fatal(err)
				}
			}
			must(t, qp.PostRecv(ib.RecvWR{SGList: w.sglAt(0, 8)}, func(*ib.WC) {}))
			if err := qp.Destroy(); !errors.Is(err, syscall.EIO) {
				t.Errorf("got %v, want EIO", err)
			}
			<-failed
			must(t, cq.Destroy())
		})
	}
}

// TestConcurrentPostsEndBeforeClose posts on several threads while another thread closes the queue pair. No thread may
// be inside the queue pair during its destruction. The done function of each accepted request must be called.
func TestConcurrentPostsEndBeforeClose(t *testing.T) {
	rounds := 50
	if testing.Short() {
		rounds = 5
	}
	for name, c := range contextsByName {
		t.Run(name, func(t *testing.T) {
			w := newCheckedDevice(t)
			for range rounds {
				cq := w.newCQ(32, c)
				a, b := w.newConnectedPair(cq, 8)
				var threads sync.WaitGroup
				var taken, called atomic.Int64
				done := func(*ib.WC) { called.Add(1) }
				for _, post := range []func() error{
					func() error { return a.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: w.sglAt(0, 8)}, done) },
					func() error { return b.PostRecv(ib.RecvWR{SGList: w.sglAt(8, 8)}, done) },
					func() error { return a.PostRecv(ib.RecvWR{SGList: w.sglAt(16, 8)}, done) },
				} {
					threads.Go(func() {
						for {
							switch err := post(); {
							case err == nil:
								taken.Add(1)
							case errors.Is(err, syscall.ESHUTDOWN):
								return
							case !errors.Is(err, syscall.ENOMEM) && !errors.Is(err, syscall.EINVAL):
								t.Error("post: ", err)
								return
							}
						}
					})
				}
				processUntil(t, cq, c, func() bool { return called.Load() > 3 })
				must(t, errors.Join(a.Destroy(), b.Destroy()))
				threads.Wait()
				if taken.Load() != called.Load() {
					t.Errorf("done functions called: got %d, want one for each of %d accepted work requests",
						called.Load(), taken.Load())
				}
			}
		})
	}
}
