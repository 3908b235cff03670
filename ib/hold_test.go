package ib

import (
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"verbena/ib/internal/observe"
	"verbena/internal/gate"
)

// doorbellHookQP is a queue pair with a Doorbell that calls ring.
type doorbellHookQP struct {
	*fakeQP
	ring func(h *Hold)
}

func (q *doorbellHookQP) Doorbell(h *Hold)       { q.ring(h) }
func (q *doorbellHookQP) Posted() (uint32, bool) { return 0, true }
func (q *doorbellHookQP) TakeBack()              {}

// deviceGroup is a core with several devices. The completion handlers record the threads that run them.
type deviceGroup struct {
	*testing.T
	benches []*testBench
	rec     recordingObserver
	queue   UserQP // a queue pair of the first device

	mu         sync.Mutex
	ran        []int // device indexes in the order of handler calls
	threads    []int64
	inDoorbell bool        // a handler ran in the callchain of Doorbell
	handler    func(i int) // additional action of the handlers; may be nil
}

func newDeviceGroup(t *testing.T, devices int, observed bool, ring func(w *deviceGroup, h *Hold)) *deviceGroup {
	w := &deviceGroup{T: t}
	core := &Core{}
	if observed {
		core.setObserver(&w.rec)
	}
	for i := range devices {
		w.benches = append(w.benches, newBenchNamed(t, core, "fake"+strconv.Itoa(i), func(*CQ) {
			w.mu.Lock()
			w.ran, w.threads = append(w.ran, i), append(w.threads, observe.GoroutineID())
			w.inDoorbell = w.inDoorbell || isOnStack(".Doorbell")
			w.mu.Unlock()
			if w.handler != nil {
				w.handler(i)
			}
		}, nil, nil))
		w.armCQ(i)
	}
	qp := w.benches[0].qp
	qp.queue = &doorbellHookQP{qp.drv.(*fakeQP), func(h *Hold) { ring(w, h) }}
	w.queue, _ = ForUser(gate.NewKey()).Queue(qp)
	return w
}

func (w *deviceGroup) armCQ(i int) { errorOf(w.benches[i].cq.ReqNotify(NotifyNextComp)) }

// raiseCompletion makes the handler of device i due.
func (w *deviceGroup) raiseCompletion(i int) { CQHandle{cq: w.benches[i].cq}.Completed() }

// ringDoorbell calls Doorbell in the same way as uverbs: the callbacks of the first device are held from the start.
func (w *deviceGroup) ringDoorbell(h *Hold, run func()) {
	ForUser(gate.NewKey()).HoldCallbacks(w.benches[0].dev, h)
	w.queue.Doorbell(h)
	run()
}

// destroyAll destroys all objects, and checks that no hold remains.
func (w *deviceGroup) destroyAll() {
	w.Helper()
	for i, b := range w.benches {
		if n := b.dev.callbacks.holds.Load(); n != 0 {
			w.Errorf("holds of device %d: got %d, want 0", i, n)
		}
		b.destroyAll(w)
	}
	w.rec.checkAllLeft(w.T)
}

// TestHoldRunsCallbacksOfAllDevices checks the callbacks of the devices that Doorbell adds. The callbacks must run on
// the calling thread, in the order of Add, after Doorbell has returned.
func TestHoldRunsCallbacksOfAllDevices(t *testing.T) {
	for _, observed := range []bool{false, true} {
		t.Run("observed="+strconv.FormatBool(observed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // in a synctest bubble holds do not become stale
				const devices = 6 // more than the initial capacity of a Hold
				w := newDeviceGroup(t, devices, observed, func(w *deviceGroup, h *Hold) {
					for i := devices - 1; i >= 0; i-- {
						h.Add(&w.benches[i].dev.handle)
						h.Add(&w.benches[i].dev.handle)
						w.raiseCompletion(i)
					}
					for i, b := range w.benches {
						if n := b.dev.callbacks.holds.Load(); n != 1 {
							w.Errorf("holds of device %d after two calls of Add: got %d, want 1", i, n)
						}
					}
				})
				var h Hold
				for range 2 { // the Hold can be reused
					w.ran, w.threads = nil, nil
					w.ringDoorbell(&h, func() {
						w.mu.Lock()
						if len(w.ran) != 0 {
							t.Errorf("handlers before Run: got calls for devices %v, want none", w.ran)
						}
						w.mu.Unlock()
						h.Run()
					})
					if want := []int{0, 5, 4, 3, 2, 1}; !slices.Equal(w.ran, want) {
						t.Errorf("handlers after Run: got calls for devices %v, want %v", w.ran, want)
					}
					for _, id := range w.threads {
						if id != observe.GoroutineID() {
							t.Errorf("goroutines of the handlers: got %v, want %d", w.threads, observe.GoroutineID())
							break
						}
					}
					for i := range devices {
						w.armCQ(i)
					}
				}
				if w.inDoorbell {
					t.Error("callchain: got a handler call inside Doorbell, want none")
				}
				w.destroyAll()
			})
		})
	}
}

// TestDoorbellWithoutHoldRunsCallbacks checks that another thread runs the callbacks of a doorbell if there is no Hold.
func TestDoorbellWithoutHoldRunsCallbacks(t *testing.T) {
	w := newDeviceGroup(t, 2, true, func(w *deviceGroup, h *Hold) {
		h.Add(&w.benches[1].dev.handle)
		w.raiseCompletion(1)
	})
	w.queue.Doorbell(nil)
	w.benches[1].dev.callbacks.drainCallbacks()
	if w.inDoorbell || !slices.Equal(w.ran, []int{1}) || w.threads[0] == observe.GoroutineID() {
		t.Errorf("handlers: got devices %v on goroutines %v, in Doorbell %v, want device 1 on another goroutine "+
			"than %d", w.ran,
			w.threads, w.inDoorbell, observe.GoroutineID())
	}
	w.destroyAll()
}

// TestHoldEndsWhenCallbackHangs checks a callback that does not return. The holds of all devices must end, and
// workers must run the remaining callbacks.
func TestHoldEndsWhenCallbackHangs(t *testing.T) {
	for name, end := range map[string]func(){"panics": func() { panic("test") }, "ends its goroutine": runtime.Goexit} {
		for _, observed := range []bool{false, true} {
			t.Run(name+"/observed="+strconv.FormatBool(observed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newDeviceGroup(t, 3, observed, func(w *deviceGroup, h *Hold) {
						for i := range w.benches {
							h.Add(&w.benches[i].dev.handle)
							w.raiseCompletion(i)
						}
					})
					w.handler = func(i int) {
						if i == 1 {
							end()
						}
					}
					var h Hold
					var wg sync.WaitGroup
					wg.Go(func() {
						defer func() { _ = recover() }()
						w.ringDoorbell(&h, h.Run)
					})
					wg.Wait()
					synctest.Wait()
					if want := []int{0, 1, 2}; !slices.Equal(w.ran, want) {
						t.Errorf("handlers: got calls for devices %v, want %v", w.ran, want)
					}
					if w.threads[0] != w.threads[1] || w.threads[1] == w.threads[2] {
						t.Errorf("goroutines of the handlers: got %v, want a different one for the last handler only",
							w.threads)
					}
					if len(h.devices) != 0 {
						t.Errorf("devices of the Hold after Run: got %d, want 0", len(h.devices))
					}
					w.handler = nil
					w.armCQ(2)
					w.ringDoorbell(&h, h.Run)
					if n := len(w.ran); n < 4 {
						t.Errorf("handler calls with the reused Hold: got %d, want at least 4", n)
					}
					synctest.Wait()
					w.destroyAll()
				})
			})
		}
	}
}

// TestHoldDoesNotAllocate checks that a doorbell that adds up to four devices does not allocate. Their callbacks and a
// new Hold must not allocate either.
func TestHoldDoesNotAllocate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in a synctest bubble holds do not become stale
		w := newDeviceGroup(t, 4, false, func(w *deviceGroup, h *Hold) {
			for i, b := range w.benches {
				h.Add(&b.dev.handle)
				w.raiseCompletion(i)
			}
		})
		for i, b := range w.benches {
			b.cq.handler = func(*CQ) { w.ran[i]++ }
		}
		w.ran = make([]int, 4)
		var h Hold
		if n := testing.AllocsPerRun(100, func() {
			h = Hold{}
			ForUser(gate.NewKey()).HoldCallbacks(w.benches[0].dev, &h)
			w.queue.Doorbell(&h)
			h.Run()
		}); n != 0 {
			t.Errorf("got %v allocations, want 0", n)
		}
		if want := []int{101, 101, 101, 101}; !slices.Equal(w.ran, want) {
			t.Errorf("handler calls: got %v, want %v", w.ran, want)
		}
		w.destroyAll()
	})
}

type workFunc func()

func (f workFunc) Run() { f() }

// TestHoldRunsDeferredWorkOnce checks that Run executes deferred work once, after the method has returned and before
// callbacks.
func TestHoldRunsDeferredWorkOnce(t *testing.T) {
	for _, observed := range []bool{false, true} {
		done := 0
		w := newDeviceGroup(t, 2, observed, nil)
		w.benches[0].qp.queue = &doorbellHookQP{w.benches[0].qp.drv.(*fakeQP), func(h *Hold) {
			if h.Deferred() != nil {
				t.Error("Deferred before Defer: got work, want nil")
			}
			h.Defer(workFunc(func() {
				done++
				if isOnStack(".Doorbell") {
					t.Error("callchain: got deferred work inside Doorbell, want none")
				}
				if len(w.ran) != 0 {
					t.Error("order: got deferred work after a callback, want it before")
				}
				h.Add(&w.benches[1].dev.handle)
				w.raiseCompletion(1)
			}))
			if h.Deferred() == nil {
				t.Error("Deferred after Defer: got nil, want work")
			}
		}}
		w.queue, _ = ForUser(gate.NewKey()).Queue(w.benches[0].qp)
		var h Hold
		w.ringDoorbell(&h, func() {
			if done != 0 {
				t.Errorf("deferred work before Run: got %d calls, want none", done)
			}
			h.Run()
		})
		if done != 1 || !slices.Equal(w.ran, []int{1}) || w.threads[0] != observe.GoroutineID() {
			t.Errorf("Run: got deferred work %d times, handlers %v on goroutines %v, want once, device 1 on "+
				"goroutine %d", done, w.ran,
				w.threads, observe.GoroutineID())
		}
		h.Run()
		if done != 1 {
			t.Errorf("deferred work after the second Run: got %d calls in total, want 1", done)
		}
		w.destroyAll()
	}
}

type stallFunc func()

func (f stallFunc) Stalled() { f() }

// TestHoldReportsStalledWork checks that a driver can report blocked deferred work until Run has returned.
func TestHoldReportsStalledWork(t *testing.T) {
	n := 0
	var h Hold
	h.Stalled() // without a Staller, Stalled does nothing
	(*Hold)(nil).Stalled()
	h.OnStall(stallFunc(func() { n++ }))
	h.Defer(workFunc(h.Stalled))
	h.Run()
	if n != 1 {
		t.Errorf("calls of Stalled: got %d, want 1", n)
	}
	h.Stalled()
	if n != 1 {
		t.Errorf("calls of Stalled after Run: got %d, want 1 in total", n)
	}
}

// TestHoldKeepsUnfinishedWork checks that Run stores unfinished work only after Keep, and only one piece of work at a
// time.
func TestHoldKeepsUnfinishedWork(t *testing.T) {
	if (*Hold)(nil).Resume(workFunc(func() {})) {
		t.Error("Resume of a nil Hold: got true, want false")
	}
	var h Hold
	var resumed []bool
	var w Work
	w = workFunc(func() { resumed = append(resumed, h.Resume(w), h.Resume(w)) })
	for _, keep := range []bool{false, true, false} {
		resumed = nil
		h.Defer(w)
		if keep {
			h.Keep()
		}
		h.Run()
		if !slices.Equal(resumed, []bool{keep, false}) {
			t.Errorf("Resume with keep %t: got %v, want %t, then false", keep, resumed, keep)
		}
		if (h.Rest() != nil) != keep || h.Rest() != nil {
			t.Errorf("Rest with keep %t: got the opposite, want work %[1]t, and nil at the second call", keep)
		}
	}
}
