package attach_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/attach"
	"verbena/internal/testutil"
	"verbena/umem"
)

// replayStore is a minimal consumer that survives resets through an attachment. Each request writes eight bytes over a
// queue pair that is connected to itself.
type replayStore struct {
	mem *umem.Local
	src []byte
	dst []byte // copy of src
	at  uint64 // address of src
	a   *attach.Attachment[*storeSession]

	mu       sync.Mutex
	held     []int // requests that a session has accepted but not completed
	done     []atomic.Int32
	finished sync.WaitGroup
}

type storeSession struct {
	st     *replayStore
	pd     *ib.PD
	cq     *ib.CQ
	qp     *ib.QP
	mr     *ib.MR
	failed func(error)

	mu          sync.Mutex
	outstanding map[uint64]bool
}

const storeQueueDepth = 64

func (st *replayStore) attach(_ context.Context, d *ib.Device, failed func(error)) (_ *storeSession, err error) {
	s := &storeSession{st: st, failed: failed, outstanding: map[uint64]bool{}}
	defer func() {
		if err != nil {
			s.destroy()
		}
	}()
	if s.pd, err = d.AllocPD(); err != nil {
		return nil, err
	}
	if s.cq, err = d.CreateCQ(ib.CQInit{Entries: 2 * storeQueueDepth, Handler: s.handleCompletion}); err != nil {
		return nil, err
	}
	if _, err = s.cq.ReqNotify(ib.NotifyNextComp); err != nil {
		return nil, err
	}
	whole := uint64(len(st.src) + len(st.dst))
	if s.mr, err = s.pd.RegMR(ib.MRInit{Space: st.mem, Addr: st.at, Length: whole,
		Access: ib.AccessLocalWrite | ib.AccessRemoteWrite}); err != nil {
		return nil, err
	}
	init := ib.QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq, Type: ib.QPTypeRC,
		Cap: ib.QPCap{MaxSendWR: storeQueueDepth, MaxSendSGE: 1}}
	if s.qp, err = s.pd.CreateQP(init); err != nil {
		return nil, err
	}
	gid, err := d.QueryGID(1, 0)
	if err != nil {
		return nil, err
	}
	for _, step := range []struct {
		attr ib.QPAttr
		mask ib.QPAttrMask
	}{
		{ib.QPAttr{State: ib.QPInit, Port: 1, AccessFlags: ib.AccessRemoteWrite},
			ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrAccessFlags},
		{ib.QPAttr{State: ib.QPRTR, PathMTU: ib.MTU1024, DestQPN: s.qp.Num(),
			AH: ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: gid.GID, HopLimit: 1}}},
			ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN | ib.QPAttrMaxDestRdAtomic | ib.QPAttrMinRNRTimer},
		{ib.QPAttr{State: ib.QPRTS},
			ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrSQPSN | ib.QPAttrMaxRdAtomic},
	} {
		if err := s.qp.Modify(step.attr, step.mask|ib.QPAttrState); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *storeSession) destroy() {
	if s.qp != nil {
		_ = s.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)
		s.pollCompletions()
		s.qp.Destroy()
	}
	if s.mr != nil {
		s.mr.Dereg()
	}
	if s.cq != nil {
		s.cq.Destroy()
	}
	if s.pd != nil {
		s.pd.Dealloc()
	}
	// The next session posts the requests that have not completed on this device.
	s.st.mu.Lock()
	defer s.st.mu.Unlock()
	for id := range s.outstanding {
		s.st.held = append(s.st.held, int(id))
	}
}

// handleCompletion is the completion handler.
func (s *storeSession) handleCompletion(*ib.CQ) {
	for again := true; again; {
		s.pollCompletions()
		again, _ = s.cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
	}
}

func (s *storeSession) pollCompletions() {
	var wc [16]ib.WC
	for {
		n, _ := s.cq.Poll(wc[:])
		if n == 0 {
			return
		}
		for _, w := range wc[:n] {
			if w.Status != ib.WCSuccess {
				s.failed(fmt.Errorf("completion: %v", w.Status))
				continue // still outstanding
			}
			s.mu.Lock()
			delete(s.outstanding, w.ID)
			s.mu.Unlock()
			s.st.done[w.ID].Add(1)
			s.st.finished.Done()
		}
	}
}

// submitRequest posts one request together with all held requests. If a request cannot be posted now, submitRequest
// adds it to the held requests.
func (st *replayStore) submitRequest(ctx context.Context, id int) error {
	s, err := st.a.Acquire(ctx)
	if err != nil {
		return err
	}
	defer st.a.Release()
	st.mu.Lock()
	todo := append(st.held, id)
	st.held = nil
	st.mu.Unlock()
	for i, id := range todo {
		if !s.postWrite(id) {
			st.mu.Lock()
			st.held = append(st.held, todo[i:]...)
			st.mu.Unlock()
			break
		}
	}
	return nil
}

func (s *storeSession) postWrite(id int) bool {
	st := s.st
	s.mu.Lock()
	s.outstanding[uint64(id)] = true
	s.mu.Unlock()
	n, _ := s.qp.PostSend(ib.SendWR{
		ID: uint64(id), Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled,
		SGList:     []ib.SGE{{Addr: st.at + uint64(8*id), Length: 8, LKey: s.mr.LKey()}},
		RemoteAddr: st.at + uint64(len(st.src)+8*id), RKey: s.mr.RKey(),
	})
	if n == 0 {
		s.mu.Lock()
		delete(s.outstanding, uint64(id))
		s.mu.Unlock()
	}
	return n == 1
}

// TestReplay sends requests through many resets at random times. No request may be lost or completed twice.
func TestReplay(t *testing.T) {
	const requests, resets = 2000, 60
	core := &ib.Core{}
	buf := make([]byte, 16*requests)
	st := &replayStore{mem: umem.NewLocal(), src: buf[:8*requests], dst: buf[8*requests:], done: make([]atomic.Int32,
		requests)}
	for i := range st.src {
		st.src[i] = byte(i%251 + 1)
	}
	var err error
	st.at, err = st.mem.Add(buf)
	must(t, err)
	st.a, err = attach.New(core, attach.Config[*storeSession]{
		Name: "store", Device: attach.Identity{Name: "lo0"}, Attach: st.attach,
		Detach: func(_ *ib.Device, s *storeSession) { s.destroy() }, RetryDelay: time.Millisecond,
	})
	must(t, err)
	defer st.a.Close()
	over := make(chan struct{})
	var last *ib.DeviceHandle
	go func() {
		defer close(over)
		rnd := rand.New(rand.NewPCG(1, 2))
		for i := range resets {
			d := loopback.New("lo0", nil).Handle()
			if err := core.Register(d); err != nil {
				t.Error(err)
			}
			testutil.PauseRandomly(rnd, 2*time.Millisecond)
			if i == resets-1 {
				last = d
				return // the last device stays registered
			}
			if i%2 == 0 {
				d.SetError()
			}
			if err := core.Unregister(d); err != nil {
				t.Error(err)
			}
		}
	}()
	st.finished.Add(requests)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for id := w; id < requests; id += 4 {
				if err := st.submitRequest(t.Context(), id); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(50 * time.Microsecond)
			}
		})
	}
	wg.Wait()
	<-over
	testutil.Eventually(t, "the requests held by the last reset", func() bool {
		st.mu.Lock()
		n := len(st.held)
		st.mu.Unlock()
		s, err := st.a.Acquire(t.Context())
		must(t, err)
		for range n {
			st.mu.Lock()
			id := st.held[0]
			st.held = st.held[1:]
			st.mu.Unlock()
			if !s.postWrite(id) {
				st.mu.Lock()
				st.held = append(st.held, id)
				st.mu.Unlock()
			}
		}
		st.a.Release()
		return n == 0
	})
	st.finished.Wait()
	for i := range st.done {
		if n := st.done[i].Load(); n != 1 {
			t.Errorf("request %d: got %d completions, want 1", i, n)
		}
	}
	if string(st.src) != string(st.dst) {
		t.Errorf("destination: got %q, want %q", st.dst, st.src)
	}
	st.a.Close()
	must(t, core.Unregister(last))
}
