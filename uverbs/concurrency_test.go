package uverbs

import (
	"errors"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/uapi"
)

// TestConcurrentCommands creates, uses and destroys the same objects on several threads while other threads open and
// close files. In the end either the device is removed or the program ends. Only errors that races explain may occur,
// and no objects may remain.
func TestConcurrentCommands(t *testing.T) {
	for _, end := range []string{"removal", "close"} {
		t.Run(end, func(t *testing.T) {
			w := newFixture(t)
			p := w.startProgram(byIoctl)
			var mu sync.Mutex
			shared := map[objectKind][]uint32{}
			put := func(k objectKind, h uint32) {
				mu.Lock()
				defer mu.Unlock()
				shared[k] = append(shared[k], h)
			}
			pick := func(r *rand.Rand, k objectKind) uint32 {
				mu.Lock()
				defer mu.Unlock()
				if len(shared[k]) == 0 {
					return 0
				}
				return shared[k][r.IntN(len(shared[k]))]
			}
			harmless := func(err error) bool {
				for _, e := range []syscall.Errno{syscall.EINVAL, syscall.ENOENT, syscall.EBUSY, syscall.EIO, syscall.EBADF} {
					if errors.Is(err, e) {
						return true
					}
				}
				return err == nil
			}
			step := func(r *rand.Rand) error {
				pd, cq, qp := pick(r, kindPD), pick(r, kindCQ), pick(r, kindQP)
				switch r.IntN(12) {
				case 0:
					resp, err := sendPlain[uapi.AllocPDResp](p, uapi.CmdAllocPD, uapi.AllocPD{})
					if err == nil {
						put(kindPD, resp.PDHandle)
					}
					return err
				case 1:
					resp, err := sendPlain[uapi.CreateCompChannelResp](p, uapi.CmdCreateCompChannel, uapi.CreateCompChannel{})
					if err != nil {
						return err
					}
					cq, err := sendPlain[uapi.CreateCQResp](p, uapi.CmdCreateCQ, uapi.CreateCQ{CQE: 1, CompChannel: int32(resp.FD)})
					if err == nil {
						put(kindCQ, cq.CQHandle)
					}
					p.closeFD(int(resp.FD))
					return err
				case 2:
					resp, err := sendPlain[uapi.CreateQPResp](p, uapi.CmdCreateQP,
						uapi.CreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: pick(r, kindCQ), QPType: uapi.QPTRC})
					if err == nil {
						put(kindQP, resp.QPHandle)
					}
					return err
				case 3:
					return sendWithoutResponse(p, uapi.CmdDeallocPD, uapi.DeallocPD{PDHandle: pd})
				case 4:
					_, err := sendPlain[uapi.DestroyCQResp](p, uapi.CmdDestroyCQ, uapi.DestroyCQ{CQHandle: cq})
					return err
				case 5:
					_, err := sendPlain[uapi.DestroyQPResp](p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: qp})
					return err
				case 6:
					return p.ringDoorbell(qp)
				case 7:
					return sendWithoutResponse(p, uapi.CmdReqNotifyCQ, uapi.ReqNotifyCQ{CQHandle: cq})
				case 8:
					_, err := sendPlain[uapi.ResizeCQResp](p, uapi.CmdResizeCQ, uapi.ResizeCQ{CQHandle: cq, CQE: 1 + r.Uint32N(9)})
					return err
				case 9:
					w.srv.Resources()
				case 10:
					return sendWithoutResponse(p, uapi.CmdModifyQP, uapi.ModifyQP{QPHandle: qp, QPState: uapi.QPSErr,
						AttrMask: uapi.QPAttrState})
				case 11:
					if o := p.f.objects.find(cq); o != nil {
						w.handle.CQ(o.res.(*cqObject).CQ).(*ibfake.CQ).Complete(ib.WC{})
					}
				}
				return nil
			}
			var wg sync.WaitGroup
			for i := range 6 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(3, uint64(i)))
					for range 400 {
						if err := step(r); !harmless(err) {
							t.Error(err)
						}
					}
				})
			}
			for range 2 {
				wg.Go(func() {
					for range 50 {
						f, err := w.srv.Open("uverbs0", p, &unmappedMemory{})
						if errors.Is(err, syscall.ENODEV) {
							return
						}
						if err != nil {
							t.Error(err)
							return
						}
						q := &program{t: t, w: w, f: f, space: p.space, arena: make([]byte, 0), form: byWrite}
						q.arena, err = unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
						if err != nil {
							t.Error(err)
							return
						}
						if _, err := sendPlain[uapi.GetContextResp](q, uapi.CmdGetContext, uapi.GetContext{}); !harmless(err) {
							t.Error(err)
						}
						if _, err := sendPlain[uapi.AllocPDResp](q, uapi.CmdAllocPD, uapi.AllocPD{}); !harmless(err) {
							t.Error(err)
						}
						f.Close()
						for _, fd := range q.fds {
							unix.Close(fd)
						}
						unix.Munmap(q.arena)
					}
				})
			}
			wg.Go(func() {
				r := rand.New(rand.NewPCG(4, 0))
				for range 2000 {
					pick(r, kindQP)
				}
				if end == "close" {
					p.f.Close()
				} else if err := w.core.Unregister(w.handle); err != nil {
					t.Error(err)
				}
			})
			wg.Wait()
			if end == "close" {
				if left := w.dev.Objects().String(); left != "" {
					t.Errorf("remaining objects: got %s, want none", left)
				}
			}
		})
	}
}

// TestUseDuringDestruction checks that an object in use by a command is not destroyed, and that an object being
// destroyed is not found.
func TestUseDuringDestruction(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byWrite)
	pd, cq := p.allocPD(), p.createCQ(-1, 0)
	qp := p.createQP(pd, cq, 0, uapi.QPTRC).QPHandle
	modify := func() error {
		return sendWithoutResponse(p, uapi.CmdModifyQP, uapi.ModifyQP{QPHandle: qp, QPState: uapi.QPSErr,
			AttrMask: uapi.QPAttrState})
	}
	destroy := func() error {
		_, err := sendPlain[uapi.DestroyQPResp](p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: qp})
		return err
	}
	during := func(method ibfake.Method, first func() error, then func()) {
		t.Helper()
		entered, release := w.drv.HoldMethod(method)
		done := make(chan error)
		go func() { done <- first() }()
		select {
		case <-entered:
		case err := <-done:
			release()
			t.Fatalf("%s: returned %v before the call of the driver, want it to return afterwards", method, err)
		}
		then()
		release()
		must(t, <-done)
	}
	during(ibfake.ModifyQP, modify, func() {
		wantErrno(t, "destroy while it is modified", destroy(), syscall.EBUSY)
	})
	during(ibfake.DestroyQP, destroy, func() {
		wantErrno(t, "modify while it is destroyed", modify(), syscall.EBUSY)
		wantErrno(t, "destroy while it is destroyed", destroy(), syscall.EBUSY)
		wantErrno(t, "destroy the queue of one that is being destroyed", func() error {
			_, err := sendPlain[uapi.DestroyCQResp](p, uapi.CmdDestroyCQ, uapi.DestroyCQ{CQHandle: cq})
			return err
		}(), syscall.EBUSY)
		if got := p.f.info(); len(got.QPs) != 0 {
			t.Errorf("Info while the object is destroyed: got %+v, want none", got.QPs)
		}
	})
	wantErrno(t, "destroy again", destroy(), syscall.ENOENT)

	// A failure of the driver leaves the object unchanged.
	w.drv.FailMethod(ibfake.DestroyCQ, syscall.EAGAIN)
	_, err := sendPlain[uapi.DestroyCQResp](p, uapi.CmdDestroyCQ, uapi.DestroyCQ{CQHandle: cq})
	wantErrno(t, "driver refuses", err, syscall.EAGAIN)
	w.drv.FailMethod(ibfake.DestroyCQ, nil)
	qp = p.createQP(pd, cq, 0, uapi.QPTRC).QPHandle
	w.drv.FailMethod(ibfake.DestroyQP, syscall.EAGAIN)
	wantErrno(t, "driver refuses", destroy(), syscall.EAGAIN)
	w.drv.FailMethod(ibfake.DestroyQP, nil)
	p.fakeQP(qp).SetRequestsPosted()
	if !p.f.ringAllPosted(p) || p.fakeQP(qp).DoorbellCount() != 1 {
		t.Error("doorbell after the failed destroy: got no ring, want one")
	}
}

// TestConcurrentGetContextFails checks that a second GET_CONTEXT fails while the first one is in progress. The test
// also checks that no object can be created before the first one has completed.
func TestConcurrentGetContextFails(t *testing.T) {
	w := newFixture(t)
	p := w.open(byWrite)
	waiting, release := make(chan struct{}), make(chan struct{})
	c := &observedCaller{program: p, before: func(what string) {
		if what == "stores the response" {
			close(waiting)
			<-release
		}
	}}
	hdr := uapi.CmdHdr{Command: uint32(uapi.CmdGetContext), InWords: 4, OutWords: 2}
	cmd := append(uapi.AppendTo(nil, &hdr), make([]byte, 8)...)
	putUint64(cmd[8:], addressOf(p.allocMem(8)))
	cmd = p.storeBytes(cmd)
	done := make(chan error)
	go func() {
		_, err := p.f.Write(c, addressOf(cmd), len(cmd))
		done <- err
	}()
	<-waiting
	_, err := sendPlain[uapi.GetContextResp](p, uapi.CmdGetContext, uapi.GetContext{})
	wantErrno(t, "second", err, syscall.EINVAL)
	_, err = sendPlain[uapi.AllocPDResp](p, uapi.CmdAllocPD, uapi.AllocPD{})
	wantErrno(t, "alloc pd", err, syscall.EINVAL)
	close(release)
	must(t, <-done)
	p.allocPD()
	if w.drv.UserContextCount() != 1 || len(p.f.events.async) != 1 {
		t.Errorf("after the race: got %d contexts and %d event files, want 1 and 1", w.drv.UserContextCount(),
			len(p.f.events.async))
	}
}
