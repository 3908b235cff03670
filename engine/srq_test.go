package engine

import (
	"bytes"
	"errors"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link/simnet"
	"verbena/roce"
	"verbena/uapi"
	"verbena/umem"
)

// shared is a shared receive queue on node b. Queue pairs of b use it, each connected to a queue pair of a.
type shared struct {
	*bench
	srq    *ib.SRQ
	at, to []*ib.QP // queue pairs of a and of b
}

// TestSRQCreate tests that creation ignores the limit, and the size of a receive queue beside a shared one.
func TestSRQCreate(t *testing.T) {
	b := newBench(t, setup{})
	srq, err := b.a.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1, Limit: 3}})
	check(t, err)
	got, err := srq.Query()
	check(t, err)
	if got.Limit != 0 {
		t.Errorf("limit of a new queue: got %d, want 0", got.Limit)
	}
	qp, err := b.a.pd.CreateQP(ib.QPInitAttr{SendCQ: b.a.cq, RecvCQ: b.a.cq, Type: ib.QPTypeRC, SRQ: srq,
		Cap: ib.QPCap{MaxSendWR: 1, MaxSendSGE: 1, MaxRecvWR: 1 << 31, MaxRecvSGE: 1 << 31}})
	check(t, err)
	if c := qp.Init().Cap; c.MaxRecvWR != 0 || c.MaxRecvSGE != 0 {
		t.Errorf("receive queue beside a shared one: got %d of %d, want none", c.MaxRecvWR, c.MaxRecvSGE)
	}
	check(t, qp.Destroy())
	check(t, srq.Destroy())
}

// newShared creates pairs of connected queue pairs. Those of b have a shared receive queue in the domain pd.
func newShared(t *testing.T, s setup, pairs int, pd *ib.PD, c conn) *shared {
	t.Helper()
	x := &shared{bench: newBench(t, s)}
	if pd == nil {
		pd = x.b.pd
	}
	var err error
	x.srq, err = pd.CreateSRQ(ib.SRQInitAttr{
		Attr:  ib.SRQAttr{MaxWR: 16, MaxSGE: 2},
		Event: func(_ *ib.SRQ, e ib.EventType) { x.b.event(e) },
	})
	check(t, err)
	typ := s.typ
	if typ == 0 {
		typ = ib.QPTypeRC
	}
	for range pairs {
		s := setup{typ: typ, cap: ib.QPCap{MaxSendWR: 32, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}
		a := x.a.newQP(s)
		b, err := x.b.pd.CreateQP(ib.QPInitAttr{
			SendCQ: x.b.cq, RecvCQ: x.b.cq, Type: typ, SRQ: x.srq, Cap: ib.QPCap{MaxSendWR: 4, MaxSendSGE: 1},
			Event: func(_ *ib.QP, e ib.EventType) { x.b.event(e) },
		})
		check(t, err)
		connectQPs(t, x.a.dev, a, x.b.dev, b, c)
		x.at, x.to = append(x.at, a), append(x.to, b)
	}
	return x
}

func (x *shared) done() {
	for i := range x.at {
		check(x.t, x.at[i].Destroy())
		check(x.t, x.to[i].Destroy())
	}
	check(x.t, x.srq.Destroy())
}

func (x *shared) recv(id uint64, off, length int) {
	x.t.Helper()
	if _, err := x.srq.PostRecv(ib.RecvWR{ID: id, SGList: x.b.sge(off, length)}); err != nil {
		x.t.Fatal(err)
	}
}

func (x *shared) send(i int, off, length int) {
	x.t.Helper()
	wr := ib.SendWR{ID: uint64(100 + i), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: x.a.sge(off, length)}
	if _, err := x.at[i].PostSend(wr); err != nil {
		x.t.Fatal(err)
	}
}

// TestSRQServices tests that queue pairs of every service with receive queues share the queue.
func TestSRQServices(t *testing.T) {
	for _, typ := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD} {
		for _, shortcut := range []bool{true, false} {
			t.Run(typ.String()+map[bool]string{true: " shortcut", false: " wire"}[shortcut], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					x := newShared(t, setup{typ: typ, shortcut: shortcut}, 3, nil, conn{})
					defer x.done()
					fill(x.a.buf, 1)
					var ah *ib.AH
					skip := 0
					if typ == ib.QPTypeUD {
						ah = newAH(x.a, x.b.dev, 1)
						defer ah.Destroy()
						skip = grhLen
					}
					for i := range 9 {
						x.recv(uint64(i), 2000*i, 2000)
					}
					for i := range 9 {
						n := 100 + 100*i
						wr := ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: x.a.sge(i, n)}
						if ah != nil {
							wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, x.to[i%3].Num(), testQKey
						}
						if _, err := x.at[i%3].PostSend(wr); err != nil {
							t.Fatal(err)
						}
						x.a.poll(1)
						wc := x.b.poll(1)[0]
						if wc.Status != ib.WCSuccess || wc.ID != uint64(i) || wc.QP != x.to[i%3] || int(wc.ByteLen) != skip+n {
							t.Fatalf("message %d: %+v", i, wc)
						}
						if !bytes.Equal(x.b.buf[2000*i+skip:][:n], x.a.buf[i:i+n]) {
							t.Fatalf("message %d arrived changed", i)
						}
					}
				})
			})
		}
	}
}

// TestSRQEmpty tests that a sender waits while the queue is empty, and continues when there is a receive.
func TestSRQEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newShared(t, setup{}, 1, nil, conn{})
		defer x.done()
		x.send(0, 0, 5000)
		testutil.AdvanceTime(50 * time.Millisecond)
		x.a.none()
		x.recv(1, 0, 5000)
		if wc := x.a.poll(1)[0]; wc.Status != ib.WCSuccess {
			t.Fatalf("%+v", wc)
		}
		if wc := x.b.poll(1)[0]; wc.ID != 1 || wc.ByteLen != 5000 {
			t.Fatalf("%+v", wc)
		}
	})
}

// TestSRQDomain tests that the keys of a receive are valid in the domain of the queue, and not in that of the queue
// pair.
func TestSRQDomain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, setup{})
		pd, err := b.b.dev.IB().AllocPD()
		check(t, err)
		defer pd.Dealloc()
		x := &shared{bench: b}
		x.srq, err = pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}})
		check(t, err)
		to, err := b.b.pd.CreateQP(ib.QPInitAttr{SendCQ: b.b.cq, RecvCQ: b.b.cq, Type: ib.QPTypeRC, SRQ: x.srq})
		check(t, err)
		x.at, x.to = []*ib.QP{b.a.newQP(setup{typ: ib.QPTypeRC, cap: ib.QPCap{MaxSendWR: 4, MaxSendSGE: 1}})}, []*ib.QP{to}
		defer x.done()
		connectQPs(t, b.a.dev, x.at[0], b.b.dev, to, conn{})
		mr, err := pd.RegMR(ib.MRInit{Space: b.b.mem, Addr: b.b.addr, Length: 1000, Access: ib.AccessLocalWrite})
		check(t, err)
		defer mr.Dereg()
		_, err = x.srq.PostRecv(ib.RecvWR{ID: 1, SGList: []ib.SGE{{Addr: b.b.addr, Length: 100, LKey: mr.LKey()}}})
		check(t, err)
		x.recv(2, 0, 100) // memory of the queue pair's domain
		for i, want := range []ib.WCStatus{ib.WCSuccess, ib.WCLocProtErr} {
			x.send(0, 0, 100)
			if wc := b.b.poll(1)[0]; wc.Status != want {
				t.Fatalf("receive %d: %v, want %v", i, wc.Status, want)
			}
			b.a.poll(1)
		}
	})
}

// TestSRQError tests that a queue pair in ERR flushes the receive that it has taken, leaves the rest to the others,
// and reports once that it takes no more.
func TestSRQError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newShared(t, setup{}, 2, nil, conn{})
		defer x.done()
		fill(x.a.buf, 1)
		x.recv(1, 0, 2000)
		x.recv(2, 2000, 1000)
		// The first message has two packets. Every transmission of the second is lost.
		x.net.SetFilter(func(p *simnet.Packet) bool { return !roce.BTH(p.Data).Opcode().Has(roce.FlagLast) })

		big := ib.SendWR{ID: 7, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: x.a.sge(0, 1500)}
		if _, err := x.at[0].PostSend(big); err != nil {
			t.Fatal(err)
		}
		testutil.AdvanceTime(time.Millisecond)
		check(t, x.to[0].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
		if wc := x.b.poll(1)[0]; wc.ID != 1 || wc.Status != ib.WCWRFlushErr || wc.QP != x.to[0] {
			t.Fatalf("the receive that was taken: %+v", wc)
		}
		x.b.none()
		x.net.SetFilter(nil)
		x.send(1, 0, 900)
		if wc := x.b.poll(1)[0]; wc.ID != 2 || wc.Status != ib.WCSuccess || wc.QP != x.to[1] {
			t.Fatalf("the receive that was left: %+v", wc)
		}
		synctest.Wait()
		if got := x.b.raised(); !slices.Equal(got, []ib.EventType{ib.EventQPLastWQEReached}) {
			t.Errorf("events %v", got)
		}
		x.a.poll(2) // the successful and the failed message
	})
}

// TestSRQResize tests that the receives in the queue stay in order, and that a queue that is too small for them is
// refused.
func TestSRQResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newShared(t, setup{}, 1, nil, conn{})
		defer x.done()
		for i := range 10 {
			x.recv(uint64(i), 0, 10)
		}
		for i := range 4 { // so that the queue wraps
			x.send(0, 0, 10)
			x.a.poll(1)
			if wc := x.b.poll(1)[0]; wc.ID != uint64(i) {
				t.Fatalf("%+v", wc)
			}
			x.recv(uint64(10+i), 0, 10)
		}
		if err := x.srq.Modify(ib.SRQAttr{MaxWR: 3}, ib.SRQAttrMaxWR); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("10 receives in a queue for 3: %v", err)
		}
		check(t, x.srq.Modify(ib.SRQAttr{MaxWR: 60, Limit: 20}, ib.SRQAttrMaxWR|ib.SRQAttrLimit))
		if a, err := x.srq.Query(); err != nil || a.MaxWR < 60 || a.MaxSGE != 2 || a.Limit != 0 {
			t.Errorf("%+v, %v; the limit has been reached", a, err)
		}
		synctest.Wait()
		if got := x.b.raised(); !slices.Equal(got, []ib.EventType{ib.EventSRQLimitReached}) {
			t.Errorf("events %v", got)
		}
		for i := range 10 {
			x.send(0, 0, 10)
			x.a.poll(1)
			if wc := x.b.poll(1)[0]; wc.ID != uint64(4+i) {
				t.Fatalf("receive %d: %+v", 4+i, wc)
			}
		}
		room := uint32(srqOf(x.srq).queue.Capacity())
		check(t, x.srq.Modify(ib.SRQAttr{Limit: room}, ib.SRQAttrLimit))
		if err := x.srq.Modify(ib.SRQAttr{Limit: room + 1}, ib.SRQAttrLimit); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("modify SRQ with room for %d to a limit of %d: got %v, want EINVAL", room, room+1, err)
		}
	})
}

// TestSRQUser posts into the memory of a program's queue, resizes the queue, and finds the new one at the reported
// location. The program can harm only itself.
func TestSRQUser(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	p := newProgram(t)
	place := make([]byte, 16)
	mem := umem.NewLocal()
	placeAddr, err := mem.Add(place)
	check(t, err)
	check(t, contexter(b.b.dev).AllocUserContext(&ib.Udata{Context: p, Space: mem}))
	defer p.end(b.b.dev)
	data := &ib.Udata{Context: p, Space: mem, Out: make([]byte, 64)}
	var errs atomic.Int32
	s, err := ibuser.CreateSRQ(b.b.pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 5, MaxSGE: 1}, Event: func(_ *ib.SRQ,
		e ib.EventType) {
		if e == ib.EventSRQErr {
			errs.Add(1)
		}
	}}, data)
	check(t, err)
	resp, ok := uapi.Decode[uapi.RXECreateSRQResp](data.Out[:data.N])
	if !ok || resp.SRQNum != s.Num() {
		t.Fatalf("response %+v", resp)
	}
	x := &shared{bench: b, srq: s}
	to, err := b.b.pd.CreateQP(ib.QPInitAttr{SendCQ: b.b.cq, RecvCQ: b.b.cq, Type: ib.QPTypeRC, SRQ: s})
	check(t, err)
	x.at, x.to = []*ib.QP{b.a.newQP(setup{typ: ib.QPTypeRC, cap: ib.QPCap{MaxSendWR: 4, MaxSendSGE: 1}})}, []*ib.QP{to}
	defer x.done()
	connectQPs(t, b.a.dev, x.at[0], b.b.dev, to, conn{})
	wqe := func(id uint64) []byte { return (&user{}).recvWQE(id, b.b.sge(0, 100)...) }
	exchange := func(id uint64) {
		t.Helper()
		x.send(0, 0, 100)
		b.a.poll(1)
		if wc := b.b.poll(1)[0]; wc.ID != id || wc.Status != ib.WCSuccess {
			t.Fatalf("receive %d: %+v", id, wc)
		}
	}
	q := userRing{p.mmap(resp.MI)}
	for i := range 6 {
		q.post(wqe(uint64(i)))
	}
	exchange(0)
	data = &ib.Udata{Context: p, Space: mem, In: uapi.AppendTo(nil, &uapi.RXEModifySRQCmd{MMapInfoAddr: placeAddr})}
	check(t, ibuser.ModifySRQ(s, ib.SRQAttr{MaxWR: 100}, ib.SRQAttrMaxWR, data))
	mi, _ := uapi.Decode[uapi.MMInfo](place)
	q = userRing{p.mmap(mi)}
	if q.mask() < 100 {
		t.Fatalf("the new queue has a mask of %d", q.mask())
	}
	q.post(wqe(6))
	for i := range 6 {
		exchange(uint64(1 + i))
	}
	data.In = uapi.AppendTo(nil, &uapi.RXEModifySRQCmd{MMapInfoAddr: 8})
	if err := ibuser.ModifySRQ(s, ib.SRQAttr{MaxWR: 10}, ib.SRQAttrMaxWR, data); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("the place of the queue at a wild address: %v", err)
	}
	// Post wrong indices, and more elements than a receive has. The owner gets an error, and nothing crashes.
	atomic.StoreUint32(q.word(uapi.RXEQueueConsumerOffset), 0xfffffff0)
	bad := wqe(7)
	bad[uapi.RXERecvWQEDMAOffset+12] = 200
	q.post(bad)
	x.send(0, 0, 100)
	if wc := b.b.poll(1)[0]; wc.Status != ib.WCLocQPOpErr {
		t.Errorf("%+v", wc)
	}
	b.a.poll(1)
	// Remove the memory of the queue.
	check(t, p.file.Truncate(0))
	var w recvWQE
	if _, taken := srqOf(s).take(&w); taken {
		t.Error("a receive out of memory that is gone")
	}
	testutil.Eventually(t, "an error event of the queue", func() bool { return errs.Load() > 0 })
	if errs.Load() != 1 {
		t.Errorf("%d error events of the queue", errs.Load())
	}
}
