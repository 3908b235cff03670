package engine

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"verbena/driver"
	"verbena/driver/orphan"
	"verbena/ib"
	ibcheck "verbena/ib/check"
	"verbena/ib/weak"
	"verbena/internal/queuedir"
	"verbena/internal/testutil"
	"verbena/link/simnet"
	"verbena/uapi"
)

// program is a user process: the driver's view of it, and the process itself. Both map one file.
type program struct {
	t    testing.TB
	path string
	file *os.File

	faults [ib.NumLibraryFaults]atomic.Int32 // faults of the library, by kind
	abuses bool                              // the test writes wrong values into the queues

	mu     sync.Mutex
	size   int64 // length of file
	maps   [][]byte
	shared int // areas of AllocShared that are in use
}

func newProgram(t testing.TB) *program {
	t.Helper()
	p := &program{t: t, path: filepath.Join(t.TempDir(), "queues")}
	var err error
	p.file, err = os.OpenFile(p.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	check(t, err)
	t.Cleanup(func() {
		for kind := range p.faults {
			if n := p.faults[kind].Load(); n != 0 && !p.abuses {
				t.Errorf("faults of kind %d of a correct program: got %d, want 0", kind, n)
			}
		}
		p.file.Close()
		for _, m := range p.maps {
			syscall.Munmap(m)
		}
	})
	return p
}

func (p *program) AllocShared(size int) (ib.Shared, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	page := os.Getpagesize()
	n := (size + page - 1) / page * page
	off := p.size
	p.size += int64(n)
	if err := syscall.Fallocate(int(p.file.Fd()), 0, off, int64(n)); err != nil {
		return ib.Shared{}, err
	}
	m := p.mmapLocked(uint64(off), n)
	p.shared++
	return ib.Shared{Mem: m, Offset: uint64(off), Free: func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.shared--
	}}, nil
}

// mmap maps the location in a response, like the library.
func (p *program) mmap(mi uapi.MMInfo) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mmapLocked(mi.Offset, int(mi.Size))
}

func (p *program) mmapLocked(off uint64, n int) []byte {
	m, err := syscall.Mmap(int(p.file.Fd()), int64(off), n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		p.t.Fatal(err)
	}
	p.maps = append(p.maps, m)
	return m
}

// userRing is a ring as used by the rxe library, which takes the geometry from the header.
type userRing struct{ mem []byte }

func (q userRing) word(at int) *uint32 { return (*uint32)(unsafe.Pointer(&q.mem[at])) }

func (q userRing) shift() uint32 { return *q.word(0) }
func (q userRing) mask() uint32  { return *q.word(4) }
func (q userRing) slot(i uint32) []byte {
	return q.mem[uapi.RXEQueueDataOffset+int((i&q.mask())<<q.shift()):][:1<<q.shift()]
}

// post fills the next slot. It returns false if the queue is full.
func (q userRing) post(wqe []byte) bool {
	prod, cons := *q.word(uapi.RXEQueueProducerOffset), atomic.LoadUint32(q.word(uapi.RXEQueueConsumerOffset))
	if cons == (prod+1)&q.mask() {
		return false
	}
	copy(q.slot(prod), wqe)
	atomic.StoreUint32(q.word(uapi.RXEQueueProducerOffset), (prod+1)&q.mask())
	return true
}

// poll takes the next completion.
func (q userRing) poll() (uapi.WC, bool) {
	cons := *q.word(uapi.RXEQueueConsumerOffset)
	if atomic.LoadUint32(q.word(uapi.RXEQueueProducerOffset)) == cons {
		return uapi.WC{}, false
	}
	wc, _ := uapi.Decode[uapi.WC](q.slot(cons))
	atomic.StoreUint32(q.word(uapi.RXEQueueConsumerOffset), (cons+1)&q.mask())
	return wc, true
}

// user is a program with a queue pair on device a of a bench. The queue pair is connected to node b.
type user struct {
	*program
	b      *bench
	cq     *ib.CQ
	qp     *ib.QP
	sq, rq userRing
	cqueue userRing
}

// newUser replaces the queue pair of node a by one of a program, until the end of the test.
func newUser(b *bench, cap ib.QPCap) *user {
	b.t.Helper()
	u := openUser(b, cap)
	b.t.Cleanup(u.close)
	return u
}

// openUser replaces the queue pair of node a by one of a program, until close.
func openUser(b *bench, cap ib.QPCap) *user {
	t := b.t
	t.Helper()
	u := &user{program: newProgram(t), b: b}
	dev := b.a.dev
	check(t, contexter(dev).AllocUserContext(&ib.Udata{Context: u.program}))
	data := &ib.Udata{Context: u.program, Out: make([]byte, 64)}
	var err error
	u.cq, err = ibuser.CreateCQ(dev.IB(), ib.CQInit{Entries: 50, Event: func(_ *ib.CQ, e ib.EventType) { b.a.event(e) }},
		data)
	check(t, err)
	cresp, ok := uapi.Decode[uapi.RXECreateCQResp](data.Out[:data.N])
	if !ok {
		t.Fatal("create cq: short response")
	}
	u.cqueue = userRing{u.mmap(cresp.MI)}
	data = &ib.Udata{Context: u.program, Out: make([]byte, 64)}
	u.qp, err = ibuser.CreateQP(b.a.pd, ib.QPInitAttr{
		SendCQ: u.cq, RecvCQ: u.cq, Cap: cap, Type: b.b.qp.Init().Type, Event: func(_ *ib.QP,
			e ib.EventType) {
			b.a.event(e)
		},
	}, data)
	check(t, err)
	resp, ok := uapi.Decode[uapi.RXECreateQPResp](data.Out[:data.N])
	if !ok {
		t.Fatal("create qp: short response")
	}
	u.sq, u.rq = userRing{u.mmap(resp.SQMI)}, userRing{u.mmap(resp.RQMI)}
	connectQPs(t, dev, u.qp, b.b.dev, b.b.qp, conn{})
	return u
}

func (u *user) close() {
	check(u.t, u.qp.Destroy())
	check(u.t, u.cq.Destroy())
	u.end(u.b.a.dev)
}

// end ends the context of the program on a device, which must free all its areas.
func (p *program) end(dev *Device) {
	contexter(dev).DeallocUserContext(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shared != 0 {
		p.t.Errorf("areas of the program after its end: got %d, want 0", p.shared)
	}
}

func (u *user) doorbell() {
	q, _ := ib.As[ib.UserQP](deviceOf(u.qp).obj.QP(u.qp))
	q.Doorbell(nil)
}

// WeakConfig implements weak.User.
func (p *program) WeakConfig() *weak.Config { return relayed }

// CheckConfig implements check.User.
func (p *program) CheckConfig() *ibcheck.ProgramConfig { return relayChecks }

// IsEnding implements check.User.
func (p *program) IsEnding() bool { return false }

// contexter returns the driver of a device, for user contexts.
func contexter(d *Device) ib.UserContexter {
	c, _ := ib.As[ib.UserContexter](ibuser.Driver(d.IB()))
	return c
}

// wqe returns a send work request in the layout of the library.
func (u *user) wqe(id uint64, op uapi.WROpcode, flags uapi.SendFlags, list ...ib.SGE) []byte {
	h := uapi.RXESendWQE{WR: uapi.RXESendWR{WRID: id, Opcode: op, SendFlags: flags}}
	if op != uapi.WRSend && op != uapi.WRSendWithImm {
		*h.WR.RDMA() = uapi.RXESendWRRDMA{RemoteAddr: u.b.b.addr, RKey: u.b.b.mr.RKey()}
	}
	h.DMA.NumSGE = uint32(len(list))
	for _, s := range list {
		h.DMA.Length += s.Length
	}
	b := uapi.AppendTo(nil, &h)
	for _, s := range list {
		b = uapi.AppendTo(b, &uapi.RXESGE{Addr: s.Addr, Length: s.Length, LKey: s.LKey})
	}
	return b
}

func (u *user) recvWQE(id uint64, list ...ib.SGE) []byte {
	h := uapi.RXERecvWQE{WRID: id}
	h.DMA.NumSGE = uint32(len(list))
	b := uapi.AppendTo(nil, &h)
	for _, s := range list {
		b = uapi.AppendTo(b, &uapi.RXESGE{Addr: s.Addr, Length: s.Length, LKey: s.LKey})
	}
	return b
}

// poll waits for a completion.
func (u *user) poll() (wc uapi.WC) {
	u.t.Helper()
	testutil.Eventually(u.t, "a completion", func() (ok bool) {
		wc, ok = u.cqueue.poll()
		return ok
	})
	return wc
}

// expectError tests that the queue pair is in ERR. With a relay, the state may change a little later.
func (u *user) expectError() {
	u.t.Helper()
	if relayed != nil {
		testutil.Eventually(u.t, "state ERR", func() bool { return u.qp.State() == ib.QPErr })
	}
	if s := u.qp.State(); s != ib.QPErr {
		u.t.Errorf("state: got %v, want ERR", s)
	}
}

func (u *user) expect(want ...uapi.WC) {
	u.t.Helper()
	for i, w := range want {
		wc := u.poll()
		if wc.WRID != w.WRID || wc.Status != w.Status || wc.QPNum != u.qp.Num() {
			u.t.Fatalf("completion %d is %+v, want %+v", i, wc, w)
		}
		if w.Status == uapi.WCSuccess && (wc.Opcode != w.Opcode || wc.ByteLen != w.ByteLen) {
			u.t.Fatalf("completion %d is %+v, want %+v", i, wc, w)
		}
	}
}

var userCap = ib.QPCap{MaxSendWR: 10, MaxRecvWR: 10, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 100}

// TestUserQueues uses the driver through shared memory, like the rxe library.
func TestUserQueues(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	u := newUser(b, userCap)
	init := u.qp.Init().Cap
	for _, c := range []struct {
		name  string
		q     userRing
		least int // bytes per slot
		slots int
	}{
		{"send", u.sq, uapi.RXESendWQESize + int(init.MaxInlineData), int(init.MaxSendWR) + 1},
		{"receive", u.rq, uapi.RXERecvWQESize + 16*int(init.MaxRecvSGE), int(init.MaxRecvWR) + 1},
		{"completion", u.cqueue, uapi.SizeOf[uapi.WC](), u.cq.Entries() + 1},
	} {
		if 1<<c.q.shift() < c.least || int(c.q.mask())+1 != c.slots ||
			len(c.q.mem) != uapi.RXEQueueDataOffset+c.slots<<c.q.shift() {
			t.Errorf("%s queue: %d bytes, 2^%d a slot, mask %#x", c.name, len(c.q.mem), c.q.shift(), c.q.mask())
		}
	}
	// The device must give the capacities that the library checks.
	if init.MaxSendSGE < 2 || init.MaxInlineData < 100 || init.MaxInlineData > 16*init.MaxSendSGE || init.MaxRecvSGE < 2 {
		t.Errorf("capacities: got %+v", init)
	}

	// A thread with a late acknowledgement also reads the send queue. It is excluded while this thread reads the
	// queue.
	q := qpOf(u.qp)
	fill(b.a.buf, 1)
	for i := range 40 { // around the rings several times
		u.rq.post(u.recvWQE(uint64(100+i), b.a.sge(0, 1000)...))
		b.b.recv(1, 0, 1000)
		posted := false
		q.exclusively(func(*pass) {
			u.sq.post(u.wqe(uint64(i), uapi.WRSend, uapi.SendSignaled, b.a.sge(i, 700)...))
			_, posted = q.Posted()
		})
		if !posted {
			t.Fatal("Posted does not see it")
		}
		u.doorbell()
		u.expect(uapi.WC{WRID: uint64(i), Opcode: uapi.WCSend, ByteLen: 700})
		if _, some := q.Posted(); some {
			t.Fatal("Posted reports a processed request")
		}
		b.b.expect(ib.WC{ID: 1, Opcode: ib.WCRecv, ByteLen: 700})
		if !bytes.Equal(b.b.buf[:700], b.a.buf[i:i+700]) {
			t.Fatal("data differ")
		}
		b.b.send(ib.SendWR{Opcode: ib.WRSend, SGList: b.b.sge(0, 500)})
		u.expect(uapi.WC{WRID: uint64(100 + i), Opcode: uapi.WCRecv, ByteLen: 500})
	}
	room := uint32(0)
	q.exclusively(func(*pass) {
		for room <= init.MaxSendWR && u.sq.post(u.wqe(0, uapi.WRRDMAWrite, 0)) {
			room++
		}
	})
	if room != init.MaxSendWR {
		t.Fatalf("send queue takes %d work requests, want %d", room, init.MaxSendWR)
	}
	u.doorbell()
	testutil.Eventually(t, "the send queue is empty", func() bool { return u.sq.post(u.wqe(0, uapi.WRRDMAWrite, 0)) })
}

// TestUserError tests that requests that are posted in ERR without a doorbell are flushed after a while.
func TestUserError(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	u := newUser(b, userCap)
	u.rq.post(u.recvWQE(1))
	check(t, u.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	u.expect(uapi.WC{WRID: 1, Status: uapi.WCWRFlushErr})
	u.rq.post(u.recvWQE(2))
	u.expect(uapi.WC{WRID: 2, Status: uapi.WCWRFlushErr})
	u.sq.post(u.wqe(3, uapi.WRSend, 0))
	u.expect(uapi.WC{WRID: 3, Status: uapi.WCWRFlushErr})
}

// TestUserErrorIdle tests that the checks of an idle queue pair in ERR become rare, and that later requests are
// flushed nevertheless.
func TestUserErrorIdle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBenchIn(t, setup{shortcut: true})
		u := openUser(b, userCap)
		runs := 0
		check(t, u.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
		qp := qpOf(u.qp)
		for at := time.Now(); time.Since(at) < 15*time.Second; testutil.AdvanceTime(time.Millisecond) {
			qp.look(func() {
				if !qp.timer.reflush.IsZero() && time.Until(qp.timer.reflush) <= time.Millisecond {
					runs++
				}
			})
		}
		if runs < 10 || runs > 40 {
			t.Errorf("it was looked at some %d times in 15 s, want about 18", runs)
		}
		u.rq.post(u.recvWQE(1))
		u.rq.post(u.recvWQE(2))
		testutil.AdvanceTime(reflushPeriod<<reflushPatience + time.Millisecond)
		u.expect(uapi.WC{WRID: 1, Status: uapi.WCWRFlushErr}, uapi.WC{WRID: 2, Status: uapi.WCWRFlushErr})
		for _, post := range []func(id uint64){ // either queue shortens the period again
			func(id uint64) { u.rq.post(u.recvWQE(id)) }, func(id uint64) { u.sq.post(u.wqe(id, uapi.WRSend, 0)) },
		} {
			testutil.AdvanceTime(15 * time.Second)
			post(3)
			testutil.AdvanceTime(reflushPeriod<<reflushPatience + time.Millisecond)
			u.expect(uapi.WC{WRID: 3, Status: uapi.WCWRFlushErr})
			post(4)
			testutil.AdvanceTime(reflushPeriod + time.Millisecond)
			u.expect(uapi.WC{WRID: 4, Status: uapi.WCWRFlushErr})
		}
		u.close()
		b.close()
	})
}

// TestSilence tests that programs get no completions from a silent device, not even flush errors. Consumers in the
// process do.
func TestSilence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBenchIn(t, setup{shortcut: true})
		u := openUser(b, userCap)
		toInit(t, b.a.qp, conn{}.withDefaults())
		u.rq.post(u.recvWQE(1))
		b.a.recv(2, 0, 8)
		b.a.dev.Hardware().Silence()
		b.a.dev.Handle().SetError()
		u.rq.post(u.recvWQE(3))
		testutil.AdvanceTime(time.Minute)
		if wc, ok := u.cqueue.poll(); ok {
			t.Errorf("got the completion %+v, want none", wc)
		}
		b.a.expect(ib.WC{ID: 2, Status: ib.WCWRFlushErr})
		u.close()
		b.close()
	})
}

// TestUserErrorOfHungDevice is TestUserError after a timeout has passed on hung hardware.
func TestUserErrorOfHungDevice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBenchIn(t, setup{net: simnet.Config{Latency: 5 * time.Microsecond}})
		u := openUser(b, userCap)
		b.net.SetLink(addrB, false)
		u.sq.post(u.wqe(1, uapi.WRRDMAWrite, 0))
		u.doorbell()
		b.a.dev.Hardware().Hang()
		testutil.AdvanceTime(time.Minute)
		check(t, u.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
		u.expect(uapi.WC{WRID: 1, Status: uapi.WCWRFlushErr})
		u.rq.post(u.recvWQE(2))
		u.expect(uapi.WC{WRID: 2, Status: uapi.WCWRFlushErr})
		u.close()
		b.close()
	})
}

// TestUserAbuse writes values into the rings that no library would write.
func TestUserAbuse(t *testing.T) {
	put := func(b []byte, at int, v uint32) []byte {
		binary.NativeEndian.PutUint32(b[at:], v)
		return b
	}
	const (
		numSGE = uapi.RXESendWQEDMAOffset + 12
		length = uapi.RXESendWQEDMAOffset
		opcode = 12
	)
	for _, c := range []struct {
		name   string
		abuse  func(u *user)
		status uapi.WCStatus // work request 1; success: there must be no completion
	}{
		{"num_sge", func(u *user) { u.sq.post(put(u.wqe(1, uapi.WRSend, 0), numSGE, 1<<31)) }, uapi.WCLocQPOpErr},
		{"num_sge one too many", func(u *user) {
			u.sq.post(put(u.wqe(1, uapi.WRSend, 0), numSGE, u.qp.Init().Cap.MaxSendSGE+1))
		}, uapi.WCLocQPOpErr},
		{"inline length", func(u *user) { u.sq.post(put(u.wqe(1, uapi.WRSend, uapi.SendInline), length, 1<<30)) },
			uapi.WCLocLenErr},
		{"inline read", func(u *user) {
			u.sq.post(put(u.wqe(1, uapi.WRRDMARead, uapi.SendInline, ib.SGE{Addr: 1, Length: 1 << 20, LKey: 1}), length, 8))
		}, uapi.WCLocQPOpErr},
		{"opcode", func(u *user) { u.sq.post(put(u.wqe(1, uapi.WRSend, 0), opcode, 0x7fffffff)) }, uapi.WCLocQPOpErr},
		{"local invalidate", func(u *user) { u.sq.post(u.wqe(1, uapi.WRLocalInv, 0)) }, uapi.WCLocQPOpErr},
		{"lengths that overflow", func(u *user) {
			s := u.b.a.sge(0, 0)[0]
			s.Length = 0xffffffff
			u.sq.post(u.wqe(1, uapi.WRSend, 0, s, s))
		}, uapi.WCLocLenErr},
		{"lkey", func(u *user) { u.sq.post(u.wqe(1, uapi.WRSend, 0, ib.SGE{Addr: 1, Length: 1, LKey: 0xffffffff})) },
			uapi.WCLocProtErr},
		{"short atomic", func(u *user) { u.sq.post(u.wqe(1, uapi.WRAtomicFetchAndAdd, 0, u.b.a.sge(0, 4)...)) },
			uapi.WCLocLenErr},
		{"receive num_sge", func(u *user) {
			u.rq.post(put(u.recvWQE(1), uapi.RXERecvWQEDMAOffset+12, 1<<31))
			u.b.b.send(ib.SendWR{Opcode: ib.WRSend})
		}, uapi.WCLocQPOpErr},
		{"producer index out of range", func(u *user) {
			atomic.StoreUint32(u.sq.word(uapi.RXEQueueProducerOffset), 0x80000000)
		}, uapi.WCSuccess},
		{"geometry", func(u *user) {
			*u.sq.word(0), *u.sq.word(4), *u.cqueue.word(0), *u.cqueue.word(4) = 31, 0xffffffff, 31, 0xffffffff
		}, uapi.WCSuccess},
		{"consumer index", func(u *user) {
			atomic.StoreUint32(u.sq.word(uapi.RXEQueueConsumerOffset), 0xfffffff0)
			atomic.StoreUint32(u.rq.word(uapi.RXEQueueConsumerOffset), 0xfffffff0)
		}, uapi.WCSuccess},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, setup{shortcut: true})
			u := newUser(b, userCap)
			c.abuse(u)
			u.doorbell()
			if c.status != uapi.WCSuccess {
				u.expect(uapi.WC{WRID: 1, Status: c.status})
				u.expectError()
			} else if wc, ok := u.cqueue.poll(); ok && c.name != "geometry" {
				t.Errorf("completion %+v", wc)
			}
			// The other end and the device still work.
			for _, n := range []*node{b.a, b.b} {
				check(t, n.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
				for wc := make([]ib.WC, 8); ; {
					if n, _ := n.cq.Poll(wc); n == 0 {
						break
					}
				}
			}
			b.connect(conn{})
			transfer(b, ib.WRSend, 3000, 1)
		})
	}
}

// LibraryFault implements ib.LibraryFaulter.
func (p *program) LibraryFault(fault ib.LibraryFault) { p.faults[fault].Add(1) }

// TestUserLosesLength posts like wr_set_inline_data_list of rdma-core v34 to v63: with data, but without the length
// of the data.
func TestUserLosesLength(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	u := newUser(b, userCap)
	u.abuses = true
	id, slots := uint64(0), int(u.sq.mask())+1
	send := func(wqe []byte, length uint32) (faults int32) {
		t.Helper()
		before := u.faults[ib.LengthLost].Load()
		b.b.recv(1, 0, 64)
		u.sq.post(wqe)
		u.doorbell()
		u.expect(uapi.WC{WRID: id, Opcode: uapi.WCSend, ByteLen: length})
		b.b.expect(ib.WC{ID: 1, Opcode: ib.WCRecv, ByteLen: length})
		id++
		return u.faults[ib.LengthLost].Load() - before
	}
	lost := func() []byte { // the first slot has one byte of data
		w := u.wqe(id, uapi.WRSend, uapi.SendSignaled)
		return append(w, "inline data"[:1+id%11]...)
	}
	for slot := range slots {
		want := int32(1)
		if slot == slots-1 {
			want = 0
		}
		switch slot % 3 {
		case 0:
			if got := send(lost(), 0); got != want {
				t.Errorf("slot %d, data without a length: reported %d times, want %d", slot, got, want)
			}
		case 1:
			if got := send(u.wqe(id, uapi.WRSend, uapi.SendSignaled), 0); got != 0 {
				t.Errorf("slot %d, an empty message: reported %d times", slot, got)
			}
		case 2:
			if got := send(u.wqe(id, uapi.WRSend, uapi.SendSignaled, b.a.sge(0, 8)...), 8); got != 0 {
				t.Errorf("slot %d, a message: reported %d times", slot, got)
			}
		}
	}
	// Old data in a reused slot do not belong to an empty message.
	for range slots {
		if got := send(u.wqe(id, uapi.WRSend, uapi.SendSignaled), 0); got != 0 {
			t.Errorf("an empty message in a used slot: reported %d times", got)
		}
	}
}

// TestUserOverconsumes drains the completion queue like the provider of rdma-core v34 to v54: at the end it counts
// one completion too many.
func TestUserOverconsumes(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	u := newUser(b, userCap)
	u.abuses = true
	cons := u.cqueue.word(uapi.RXEQueueConsumerOffset)
	id := uint64(0)
	for round := range 2 * (u.cq.Entries() + 1) { // around the ring
		for range 1 + round%3 {
			b.b.recv(1, 0, 8)
			u.sq.post(u.wqe(id, uapi.WRSend, uapi.SendSignaled, b.a.sge(0, 8)...))
			u.doorbell()
			// The first completion of a round meets the index that the round before has left.
			u.expect(uapi.WC{WRID: id, Opcode: uapi.WCSend, ByteLen: 8})
			b.b.expect(ib.WC{ID: 1, Opcode: ib.WCRecv, ByteLen: 8})
			id++
		}
		if wc, ok := u.cqueue.poll(); ok {
			t.Fatalf("round %d: completion %+v, want none", round, wc)
		}
		end := *cons
		atomic.StoreUint32(cons, (end+1)&u.cqueue.mask())
		before := u.faults[ib.Overconsumed].Load()
		switch round % 2 {
		case 0: // a waiter requests an event before it polls again
			if _, err := u.cq.ReqNotify(ib.NotifyNextComp); err != nil {
				t.Fatal(err)
			}
		case 1:
			if n, err := u.cq.Poll(make([]ib.WC, 1)); n != 0 || err != nil {
				t.Fatalf("round %d: Poll: got %d, %v, want 0", round, n, err)
			}
		}
		if got := atomic.LoadUint32(cons); got != end {
			t.Fatalf("round %d: index %d, want %d", round, got, end)
		}
		if got := u.faults[ib.Overconsumed].Load() - before; got != 1 {
			t.Fatalf("round %d: reported %d times, want 1", round, got)
		}
	}
	// Without a call in between, the next completion repairs the index.
	end := *cons
	atomic.StoreUint32(cons, (end+1)&u.cqueue.mask())
	b.b.recv(1, 0, 8)
	u.sq.post(u.wqe(id, uapi.WRSend, uapi.SendSignaled, b.a.sge(0, 8)...))
	u.doorbell()
	testutil.Eventually(t, "the index is put back", func() bool { return atomic.LoadUint32(cons) == end })
	u.expect(uapi.WC{WRID: id, Opcode: uapi.WCSend, ByteLen: 8})
	if e := b.a.raised(); len(e) != 0 {
		t.Errorf("events %v, want none", e)
	}
}

// TestUserScribbles writes random bytes into the rings of a program while the engine works on them.
func TestUserScribbles(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	u := newUser(b, userCap)
	u.abuses = true
	before := bytes.Clone(b.b.buf)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 300 {
		if u.qp.State() != ib.QPRTS {
			check(t, u.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
			check(t, b.b.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
			connectQPs(t, b.a.dev, u.qp, b.b.dev, b.b.qp, conn{})
		}
		for range 20 {
			q := []userRing{u.sq, u.rq, u.cqueue}[r.IntN(3)]
			switch r.IntN(3) {
			case 0:
				atomic.StoreUint32(q.word(uapi.RXEQueueProducerOffset), r.Uint32())
			case 1:
				atomic.StoreUint32(q.word(uapi.RXEQueueConsumerOffset), r.Uint32())
			default:
				binary.NativeEndian.PutUint32(q.mem[r.IntN(len(q.mem)-4):], r.Uint32()>>r.IntN(32))
			}
		}
		u.doorbell()
		if r.IntN(4) == 0 {
			b.b.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: b.b.sge(0, 100)})
		}
	}
	if !bytes.Equal(before, b.b.buf) {
		t.Error("the peer's memory has changed, without a right key")
	}
}

// TestUserTruncates removes the memory of a program's rings. Only the program's own queue pair must fail.
func TestUserTruncates(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	u := newUser(b, userCap)
	b.b.recv(1, 0, 100)
	check(t, u.file.Truncate(0))
	u.doorbell()
	u.expectError()
	if _, err := u.qp.PostRecv(ib.RecvWR{}); err == nil {
		t.Error("PostRecv has no error")
	}
	if _, err := u.qp.PostSend(ib.SendWR{Opcode: ib.WRSend}); err == nil {
		t.Error("PostSend has no error")
	}
	if _, err := u.cq.Poll(make([]ib.WC, 1)); err == nil {
		t.Error("Poll has no error")
	}
	if _, err := u.cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed); err == nil {
		t.Error("ReqNotify has no error")
	}
	check(t, u.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
	check(t, b.b.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
	b.connect(conn{})
	transfer(b, ib.WRSend, 3000, 1)
}

func abandonPath(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return orphan.Flush(f)
}

// TestAbandon tests that after the death of the service the program gets a flush error for each outstanding request.
func TestAbandon(t *testing.T) {
	b := newBench(t, setup{})
	u := newUser(b, userCap)
	b.net.SetLink(addrB, false)
	want := map[uint64]bool{}
	for i := range 6 {
		u.sq.post(u.wqe(uint64(i), uapi.WRRDMAWrite, 0))
		u.rq.post(u.recvWQE(uint64(10 + i)))
		want[uint64(i)], want[uint64(10+i)] = true, true
	}
	u.doorbell()
	u.sq.post(u.wqe(7, uapi.WRRDMAWrite, 0)) // without a doorbell
	want[7] = true
	check(t, abandonPath(u.path))
	for len(want) > 0 {
		wc, ok := u.cqueue.poll()
		if !ok {
			t.Fatalf("no completion of %v", want)
		}
		if wc.Status != uapi.WCWRFlushErr || !want[wc.WRID] || wc.QPNum != u.qp.Num() {
			t.Fatalf("completion %+v", wc)
		}
		delete(want, wc.WRID)
	}
	check(t, abandonPath(u.path))
	if wc, ok := u.cqueue.poll(); ok {
		t.Fatalf("one too many: %+v", wc)
	}
	check(t, u.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState)) // the changes of the rings do no harm
}

// TestAbandonManyAndResized tests a directory of more than one page, and completion queues that have moved.
func TestAbandonManyAndResized(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	u := newUser(b, userCap)
	var more []*ib.QP
	var lastRecv uapi.MMInfo
	for range queuedir.PageSize/uapi.SizeOf[queuedir.Entry]() + 3 {
		data := &ib.Udata{Context: u.program, Out: make([]byte, 64)}
		qp, err := ibuser.CreateQP(b.a.pd, ib.QPInitAttr{SendCQ: u.cq, RecvCQ: u.cq, Cap: userCap, Type: ib.QPTypeRC}, data)
		check(t, err)
		resp, _ := uapi.Decode[uapi.RXECreateQPResp](data.Out[:data.N])
		lastRecv = resp.RQMI
		more = append(more, qp)
	}
	defer func() {
		for _, qp := range more {
			check(t, qp.Destroy())
		}
	}()
	gone := more[0]
	check(t, gone.Destroy())
	more = more[1:]
	last := qpOf(more[len(more)-1])
	data := &ib.Udata{Context: u.program, Out: make([]byte, 64)}
	check(t, ibuser.ResizeCQ(u.cq, 300, data))
	resp, _ := uapi.Decode[uapi.RXEResizeCQResp](data.Out[:data.N])
	u.cqueue = userRing{u.mmap(resp.MI)}
	rq := userRing{u.mmap(lastRecv)}
	rq.post(u.recvWQE(77))
	check(t, abandonPath(u.path))
	wc, ok := u.cqueue.poll()
	if !ok || wc.WRID != 77 || wc.QPNum != last.num {
		t.Errorf("completion %+v, %v", wc, ok)
	}
}

// TestUserReportedLength tests that the report of a failed request has the length of its elements, independently of the
// length that the program writes.
func TestUserReportedLength(t *testing.T) {
	o := &observed{}
	b := newBench(t, setup{shortcut: true, observer: o})
	u := newUser(b, userCap)
	w := u.wqe(1, uapi.WRAtomicFetchAndAdd, uapi.SendSignaled, b.a.sge(0, 4)...)
	h, _ := uapi.Decode[uapi.RXESendWQE](w)
	h.DMA.Length = 100
	uapi.Encode(w, &h)
	u.sq.post(w)
	u.doorbell()
	u.expect(uapi.WC{WRID: 1, Status: uapi.WCLocLenErr})
	want := driver.Violation{Rule: driver.RuleAtomicLength, Length: 4, Limit: 8}
	if len(o.failed) == 0 || o.failed[0].Violation != want {
		t.Errorf("failed completions: got %+v, want the first with %+v", o.failed, want)
	}
}

// TestUserPosted tests that posted requests count only in the states in which the queue pair sends.
func TestUserPosted(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	u := newUser(b, userCap)
	q, _ := ib.As[ib.UserQP](deviceOf(u.qp).obj.QP(u.qp))
	check(t, u.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
	toRTR(t, u.qp, b.b.dev, b.b.qp.Num(), conn{})
	u.sq.post(u.wqe(1, uapi.WRSend, uapi.SendSignaled))
	some := func(want bool) {
		t.Helper()
		if _, got := q.Posted(); got != want {
			t.Errorf("Posted in state %v: got %t, want %t", u.qp.State(), got, want)
		}
	}
	some(false)
	toRTS(t, u.qp, conn{})
	u.doorbell()
	some(false)
	u.sq.post(u.wqe(2, uapi.WRSend, uapi.SendSignaled))
	some(true)
}
