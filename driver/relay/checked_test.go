package relay

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/weak"
	"verbena/internal/testutil"
	"verbena/uapi"
	"verbena/umem"
)

// lockedSpace is the memory of a program that the checks read while the program changes it.
type lockedSpace struct {
	*umem.Local
	mu sync.Mutex
	// races is set if the program changes the first byte of each store at once.
	races bool
}

func (s *lockedSpace) ReadV(dst [][]byte, addr uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Local.ReadV(dst, addr)
}

func (s *lockedSpace) WriteV(src [][]byte, addr uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.Local.WriteV(src, addr)
	if s.races && err == nil {
		err = s.Local.WriteV([][]byte{{0xee}}, addr)
	}
	return err
}

// checkedWorld is a world with checks.
type checkedWorld struct {
	*world
	space *lockedSpace
	data  *ib.MR

	mu    sync.Mutex
	found []check.Violation
}

// CheckConfig implements check.User.
func (g *guest) CheckConfig() *check.ProgramConfig { return g.checks }

// IsEnding implements check.User.
func (g *guest) IsEnding() bool { return false }

// longHold is the hold time of the tests, in which a test changes memory.
const longHold = 50 * time.Millisecond

func newCheckedWorld(t *testing.T, c *weak.Config) *checkedWorld {
	t.Helper()
	w := &checkedWorld{space: &lockedSpace{Local: umem.NewLocal()}}
	rules, err := check.ParseProgramRules([]string{check.AllRules})
	must(t, err)
	report := func(v check.Violation) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.found = append(w.found, v)
	}
	w.world = newWorldOf(t, &guest{weak: c,
		checks: &check.ProgramConfig{Rules: rules, Group: &check.ProgramGroup{}, Report: report}})
	w.side(0).p.firstHold = longHold
	w.data = w.registerData(ib.AccessLocalWrite | peerAccess)
	t.Cleanup(func() { must(t, w.data.Dereg()) })
	return w
}

func (w *checkedWorld) registerData(access ib.AccessFlags) *ib.MR {
	w.t.Helper()
	addr, err := w.space.Add(make([]byte, 4096))
	must(w.t, err)
	mr, err := ibuser.RegMR(w.pd, ib.MRInit{Space: w.space, Addr: addr, Length: 4096, IOVA: addr, Access: access},
		w.g.data())
	must(w.t, err)
	return mr
}

// element returns an element of the checked memory.
func (w *checkedWorld) element(at, n int) ib.SGE {
	return ib.SGE{Addr: w.data.Addr() + uint64(at), Length: uint32(n), LKey: w.data.LKey()}
}

// change changes a byte as the program does, without the device.
func (w *checkedWorld) change(at int) {
	w.t.Helper()
	must(w.t, w.space.WriteV([][]byte{{0xee}}, w.data.Addr()+uint64(at)))
}

// post posts a request of 64 bytes from offset 0 of the checked memory to offset 1024.
func (w *checkedWorld) post(op uapi.WROpcode, flags uapi.SendFlags, list ...ib.SGE) {
	if list == nil {
		list = []ib.SGE{w.element(0, 64)}
	}
	w.send(0, queue.Send{ID: 7, Opcode: op, Flags: flags, SGEs: list, NumSGE: 1, Length: uint64(list[0].Length),
		RemoteAddr: w.data.Addr() + 1024, RKey: w.data.RKey()})
}

func (w *checkedWorld) await(n int) {
	w.t.Helper()
	if got := len(w.poll(n, longest)); got != n {
		w.t.Fatalf("completions: got %d, want %d", got, n)
	}
	w.queue().look()
}

// awaitVisible waits until n completions are in the queue, and leaves them there.
func (w *checkedWorld) awaitVisible(n int) {
	w.t.Helper()
	testutil.Eventually(w.t, fmt.Sprintf("%d visible completions", n), func() bool { return w.queue().Waiting() >= n })
}

// rules returns the rules of the violations so far.
func (w *checkedWorld) rules() (list []check.Rule) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, v := range w.found {
		list = append(list, v.Rule)
	}
	return list
}

// TestChecks tests programs with a misuse, on an ordinary and on a weak device. A correct program comes first.
func TestChecks(t *testing.T) {
	const signaled = uapi.SendSignaled
	tests := []struct {
		name string
		run  func(w *checkedWorld)
		want []check.Rule
		// late is set if a weak device may store the data after the change, so that the change is lost.
		late bool
	}{
		{"correct", func(w *checkedWorld) {
			for i := range 3 {
				w.recv(1, 8, w.element(2048, 64))
				w.post(uapi.WRSend, signaled)
				w.await(2)
				w.change(i)
				w.change(2048 + i)
				w.post(uapi.WRRDMARead, signaled)
				w.await(1)
			}
		}, nil, false},
		{"source", func(w *checkedWorld) {
			w.post(uapi.WRRDMAWrite, signaled)
			w.change(63)
			w.await(1)
		}, []check.Rule{check.RuleSourceChanged}, false},
		{"unsignaled source", func(w *checkedWorld) {
			w.post(uapi.WRRDMAWrite, 0)
			w.change(63)
			w.post(uapi.WRRDMAWrite, signaled, w.element(512, 64))
			w.await(1)
		}, []check.Rule{check.RuleSourceChanged}, false},
		{"source after a message", func(w *checkedWorld) {
			w.recv(0, 8, w.element(2048, 64))
			w.post(uapi.WRRDMAWrite, signaled)
			w.send(1, queue.Send{Opcode: uapi.WRSend, Flags: signaled, SGEs: []ib.SGE{w.element(3072, 64)}, NumSGE: 1,
				Length: 64})
			w.change(0)
			w.await(3)
		}, []check.Rule{check.RuleSourceAfterReply}, false},
		{"read target", func(w *checkedWorld) {
			w.post(uapi.WRRDMARead, signaled)
			w.change(5)
			w.await(1)
		}, []check.Rule{check.RuleTargetWritten}, true},
		{"receive target", func(w *checkedWorld) {
			w.recv(1, 8, w.element(2048, 64))
			w.post(uapi.WRSend, signaled)
			w.change(2048)
			w.await(2)
		}, []check.Rule{check.RuleTargetWritten}, true},
		{"target changed at once", func(w *checkedWorld) {
			w.space.races = true
			w.recv(1, 8, w.element(2048, 64))
			w.post(uapi.WRSend, signaled)
			w.await(2)
			w.post(uapi.WRRDMARead, signaled)
			w.await(1)
		}, []check.Rule{check.RuleTargetWritten, check.RuleTargetWritten}, false},
		{"unmapped receive", func(w *checkedWorld) {
			mr := w.registerData(ib.AccessLocalWrite)
			w.recv(1, 8, ib.SGE{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()})
			w.side(1).Doorbell(nil)
			must(w.t, w.space.Remove(mr.Addr()))
			testutil.Eventually(w.t, "report of the receive", func() bool { return len(w.rules()) > 0 })
			must(w.t, w.qps[1].Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
			must(w.t, mr.Dereg())
		}, []check.Rule{check.RuleUnmapped}, false},
		{"unmapped source", func(w *checkedWorld) {
			mr := w.registerData(0)
			must(w.t, w.space.Remove(mr.Addr()))
			w.post(uapi.WRRDMAWrite, signaled, ib.SGE{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()})
			w.await(1)
			must(w.t, mr.Dereg())
		}, []check.Rule{check.RuleUnmapped}, false},
		{"pending source", func(w *checkedWorld) {
			w.post(uapi.WRRDMARead, signaled)
			w.post(uapi.WRRDMAWrite, signaled)
			w.await(2)
		}, []check.Rule{check.RuleSourcePending}, false},
		{"fenced source", func(w *checkedWorld) {
			w.post(uapi.WRRDMARead, signaled)
			w.post(uapi.WRRDMAWrite, signaled|uapi.SendFence)
			w.await(2)
		}, nil, false},
		{"batch", func(w *checkedWorld) { // the index of the queue is published after the batch
			mr := w.registerData(ib.AccessLocalWrite)
			w.recv(1, 8, ib.SGE{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()})
			w.post(uapi.WRSend, signaled)
			w.post(uapi.WRRDMARead, signaled)
			w.awaitVisible(3)
			w.recv(1, 9, w.element(0, 64))
			w.post(uapi.WRRDMAWrite, signaled)
			must(w.t, mr.Dereg())
			w.await(4)
		}, nil, false},
		{"shared receives", func(w *checkedWorld) {
			w.recv(1, 8, w.element(2048, 64))
			w.recv(1, 9, w.element(2100, 64))
			w.post(uapi.WRSend, signaled)
			w.post(uapi.WRSend, signaled)
			w.await(4)
		}, []check.Rule{check.RuleTargetReused}, false},
		{"region in use", func(w *checkedWorld) {
			mr := w.registerData(ib.AccessLocalWrite)
			w.recv(1, 8, ib.SGE{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()})
			w.side(1).Doorbell(nil)
			must(w.t, mr.Dereg())
		}, []check.Rule{check.RuleInFlight}, false},
		{"remote key", func(w *checkedWorld) {
			w.post(uapi.WRRDMAWrite, signaled, ib.SGE{Addr: w.data.Addr(), Length: 8, LKey: w.data.RKey()})
			w.await(1)
		}, []check.Rule{check.RuleKeyKind}, false},
		{"ended key", func(w *checkedWorld) {
			mr := w.registerData(ib.AccessLocalWrite)
			must(w.t, mr.Dereg())
			w.post(uapi.WRRDMAWrite, signaled, ib.SGE{Addr: mr.Addr(), Length: 8, LKey: mr.LKey()})
			w.await(1)
		}, []check.Rule{check.RuleKeyEnded}, false},
		{"no right", func(w *checkedWorld) {
			mr := w.registerData(0)
			w.post(uapi.WRRDMARead, signaled, ib.SGE{Addr: mr.Addr(), Length: 8, LKey: mr.LKey()})
			w.await(1)
			must(w.t, mr.Dereg())
		}, []check.Rule{check.RuleKeyRight}, false},
		{"beyond the region", func(w *checkedWorld) {
			w.post(uapi.WRRDMAWrite, signaled, w.element(4090, 8))
			w.await(1)
		}, []check.Rule{check.RuleKeyRange}, false},
		{"receive in a source", func(w *checkedWorld) {
			w.recv(1, 8, w.element(2048, 64))
			w.post(uapi.WRSend, signaled, w.element(512, 64))
			w.recv(0, 9, w.element(512, 64)) // the completion is held
			w.await(2)
		}, []check.Rule{check.RuleSourceReused}, false},
		{"receive in a polled source", func(w *checkedWorld) {
			w.recv(1, 8, w.element(2048, 64))
			w.post(uapi.WRSend, signaled, w.element(512, 64))
			w.await(2)
			w.recv(0, 9, w.element(512, 64))
			w.post(uapi.WRRDMAWrite, signaled, w.element(1024, 64))
			w.await(1)
		}, nil, false},
		{"source in an earlier receive", func(w *checkedWorld) { // the program does not need the data
			w.recv(1, 8, w.element(2048, 64))
			w.recv(0, 9, w.element(512, 64))
			w.post(uapi.WRSend, signaled, w.element(512, 64))
			w.await(2)
		}, nil, false},
		{"unsignaled region, then a post", func(w *checkedWorld) {
			mr := w.registerData(0)
			w.post(uapi.WRRDMAWrite, 0, ib.SGE{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()})
			must(w.t, mr.Dereg())
			w.post(uapi.WRRDMAWrite, signaled)
			w.await(1)
		}, []check.Rule{check.RuleInFlight}, false},
		{"unsignaled region at the end", func(w *checkedWorld) {
			mr := w.registerData(0)
			w.post(uapi.WRRDMAWrite, 0, ib.SGE{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()})
			must(w.t, mr.Dereg())
			must(w.t, w.qps[0].Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
		}, []check.Rule{check.RuleInFlightUnsignaled}, false},
		{"region of a receive in ERR", func(w *checkedWorld) {
			mr := w.registerData(ib.AccessLocalWrite)
			w.recv(1, 8, ib.SGE{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()})
			must(w.t, w.qps[1].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			must(w.t, mr.Dereg())
			w.await(1)
		}, []check.Rule{check.RuleInFlightUnflushed}, false},
		{"unmapped at the end", func(w *checkedWorld) {
			mr := w.registerData(ib.AccessLocalWrite)
			w.recv(1, 8, ib.SGE{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()})
			must(w.t, w.space.Remove(mr.Addr()))
			must(w.t, w.qps[1].Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
			must(w.t, mr.Dereg())
		}, []check.Rule{check.RuleUnmapped}, false},
		{"key of another device file", func(w *checkedWorld) {
			other := check.NewProgram(check.ProgramConfig{Group: w.g.checks.Group, PID: 5}, w.g)
			mr := w.registerData(0)
			const key = 0x12345
			other.AddMR(mr).SetMemory(nil, nil, 0, key, key+1)
			w.post(uapi.WRRDMAWrite, signaled, ib.SGE{Addr: mr.Addr(), Length: 8, LKey: key})
			w.await(1)
			other.Close()
			w.post(uapi.WRRDMAWrite, signaled) // flushed
			w.await(1)
			must(w.t, mr.Dereg())
		}, []check.Rule{check.RuleKeyDomain}, false},
		{"ended remote key", func(w *checkedWorld) {
			mr := w.registerData(0)
			must(w.t, mr.Dereg())
			w.post(uapi.WRRDMAWrite, signaled, ib.SGE{Addr: mr.Addr(), Length: 8, LKey: mr.RKey()})
			w.await(1)
		}, []check.Rule{check.RuleKeyKind}, false},
		{"posts in ERR", func(w *checkedWorld) {
			must(w.t, w.qps[0].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			for range 20 {
				w.post(uapi.WRRDMAWrite, signaled)
				w.await(1)
			}
		}, []check.Rule{check.RulePostsInErr}, false},
		{"no room", func(w *checkedWorld) {
			for range guestCap.MaxSendWR {
				w.post(uapi.WRRDMAWrite, 0)
			}
			for range 100 { // the library refuses the posts
				w.side(0).Doorbell(nil)
			}
		}, []check.Rule{check.RuleUnsignaledOnly}, false},
	}
	for _, tt := range tests {
		for name, config := range map[string]*weak.Config{"ordinary": nil, "weak": {Seed: 3}} {
			t.Run(tt.name+"/"+name, func(t *testing.T) {
				w := newCheckedWorld(t, config)
				tt.run(w)
				if config != nil && tt.late {
					return
				}
				if got := w.rules(); !slices.Equal(got, tt.want) {
					t.Errorf("violated rules: got %v, want %v", got, tt.want)
				}
			})
		}
	}
}

// TestChangedBytes tests the description of a change.
func TestChangedBytes(t *testing.T) {
	w := newCheckedWorld(t, nil)
	w.post(uapi.WRRDMAWrite, uapi.SendSignaled)
	w.change(40)
	w.change(42)
	w.await(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.found) != 1 || w.found[0].Memory == nil {
		t.Fatalf("violations: got %+v, want one with memory", w.found)
	}
	v := w.found[0]
	m := v.Memory
	if m.Addr != w.data.Addr() || m.Length != 64 || m.Offset != 40 || m.Changed != 2 || len(m.Before) != 16 ||
		m.Before[0] != 0 || m.After[0] != 0xee || m.After[1] != 0 || m.After[2] != 0xee {
		t.Errorf("changed memory: got %+v, want bytes 40 and 42 of %#x", m, w.data.Addr())
	}
	if r := v.Requests[0]; r.ID != 7 || r.QPN != w.qps[0].Num() || r.Peer != w.qps[1].Num() || r.Length != 64 {
		t.Errorf("request: got %+v, want ID 7 on QP %d", r, w.qps[0].Num())
	}
}

// TestCheckedInlineCapacity tests that a program with checks has the inline data that the layout allows beyond the
// request, and no other room that it has not requested.
func TestCheckedInlineCapacity(t *testing.T) {
	w := newCheckedWorld(t, nil)
	init := ib.QPInitAttr{SendCQ: w.cq, RecvCQ: w.cq, Type: ib.QPTypeRC,
		Cap: ib.QPCap{MaxSendWR: 5, MaxRecvWR: 5, MaxSendSGE: 2, MaxRecvSGE: 2}}
	qp, err := ibuser.CreateQP(w.pd, init, w.g.data())
	must(t, err)
	want := init.Cap
	want.MaxInlineData = 2 * 16 // the room of the elements
	if a, _, err := qp.Query(ib.QPAttrCap); err != nil || a.Cap != want {
		t.Errorf("capacities: got %+v and error %v, want %+v", a.Cap, err, want)
	}
	must(t, qp.Destroy())
}

// TestCallbackDoesNotWaitForMemory tests that a callback returns while the memory of a waiting request does not answer.
// The callback may run on a thread of another program.
func TestCallbackDoesNotWaitForMemory(t *testing.T) {
	w := newCheckedWorld(t, nil)
	n := 0
	for ; ; n++ { // the queue of the device becomes full
		wr := ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []ib.SGE{w.element(0, 8)}}
		if _, err := w.qps[0].PostSend(wr); errors.Is(err, syscall.ENOMEM) {
			break
		} else if err != nil || n > 100 {
			t.Fatalf("PostSend %d: got %v, want ENOMEM within 100 requests", n, err)
		}
	}
	w.post(uapi.WRSend, uapi.SendSignaled)
	w.space.mu.Lock()
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		w.dev.Handle().HoldCallbacks()
		w.queue().schedule()
		w.dev.Handle().RunCallbacks()
	}()
	select {
	case <-returned:
	case <-time.After(longest):
		t.Error("RunCallbacks has not returned: it waits for the memory of the program")
	}
	w.space.mu.Unlock()
	<-returned
	for range n + 1 {
		w.recv(1, 8, w.element(2048, 64))
		w.side(1).Doorbell(nil)
		w.await(2)
	}
}

// TestHeldCompletionsAreLimited tests posts by calls, which need no room in the queues of the program, while the
// memory of the program does not answer.
func TestHeldCompletionsAreLimited(t *testing.T) {
	w := newCheckedWorld(t, nil)
	w.post(uapi.WRRDMAWrite, uapi.SendSignaled)
	w.space.mu.Lock()
	unlock := sync.OnceFunc(w.space.mu.Unlock)
	defer unlock()
	time.Sleep(2 * longHold) // the comparison begins
	wr := ib.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, RemoteAddr: w.data.Addr(), RKey: w.data.RKey()}
	c, lost := w.queue(), false
	for i := range 2 * maxHeld {
		if _, err := w.qps[0].PostSend(wr); err != nil && !errors.Is(err, syscall.ENOMEM) {
			t.Fatalf("PostSend %d: %v", i, err)
		}
		c.drain()
		c.mu.Lock()
		n := len(c.held.list)
		lost = c.lost
		c.mu.Unlock()
		if n > maxHeld {
			t.Fatalf("%d held completions, want at most %d", n, maxHeld)
		}
	}
	if !lost {
		t.Error("the queue of the program has not overflowed")
	}
}
