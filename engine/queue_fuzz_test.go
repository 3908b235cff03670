package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/uapi"
	"verbena/umem"
)

// queueWorld is two devices with a connection between them. The fuzzed program must not affect the connection.
type queueWorld struct {
	*bench
	round uint64
	base  [2]string // counts of the devices' objects between two rounds
}

func newQueueWorld(t testing.TB) *queueWorld {
	t.Helper()
	w := &queueWorld{bench: newBench(t, setup{shortcut: true})}
	w.connect(conn{timeout: 18}) // a second, so that a slow machine does not cause a failure
	fill(w.a.buf, 1)
	fill(w.b.buf, 2)
	w.base = w.objects()
	return w
}

func (w *queueWorld) objects() [2]string {
	return [2]string{w.a.dev.IB().Objects().String(), w.b.dev.IB().Objects().String()}
}

// tenant returns another consumer on a node's device, with objects of its own.
func (n *node) tenant(t testing.TB) *node {
	t.Helper()
	o := &node{t: t, dev: n.dev, mem: umem.NewLocal(), buf: make([]byte, 1<<14)}
	var err error
	o.pd, err = n.dev.IB().AllocPD()
	check(t, err)
	o.cq, err = n.dev.IB().CreateCQ(ib.CQInit{Entries: 100, Event: func(*ib.CQ, ib.EventType) {}})
	check(t, err)
	o.addr, err = o.mem.Add(o.buf)
	check(t, err)
	o.mr, err = o.pd.RegMR(ib.MRInit{Space: o.mem, Addr: o.addr, Length: uint64(len(o.buf)), Access: allAccess})
	check(t, err)
	o.qp = o.newQP(setup{typ: ib.QPTypeRC, cap: userCap})
	return o
}

func (n *node) evict() {
	check(n.t, n.qp.Destroy())
	check(n.t, n.mr.Dereg())
	check(n.t, n.cq.Destroy())
	check(n.t, n.pd.Dealloc())
}

// check sends a message between the others, and checks that it, and nothing else, has arrived.
func (w *queueWorld) check(t testing.TB) {
	t.Helper()
	w.a.t, w.b.t = t, t
	w.round++
	before := bytes.Clone(w.b.buf)
	from, to := w.a, w.b
	mark := from.buf[w.round%1000*8:][:64]
	to.recv(w.round, 40000, 100)
	from.send(ib.SendWR{ID: w.round, Opcode: ib.WRSend, SGList: from.sge(int(w.round%1000*8), 64), Flags: ib.SendSignaled})
	from.expect(ib.WC{ID: w.round, Opcode: ib.WCSend})
	to.expect(ib.WC{ID: w.round, Opcode: ib.WCRecv, ByteLen: 64})
	copy(before[40000:], mark)
	if !bytes.Equal(before, w.b.buf) {
		t.Fatal("the others' memory has changed")
	}
}

// scripted is a program that executes a script on its rings.
type scripted struct {
	*user
	w      *queueWorld
	script []byte
	rings  []userRing
	shape  [][2]uint32 // shift and mask of each ring
}

// mend restores the geometry in the rings, which the program itself uses.
func (s *scripted) mend() {
	for i, q := range s.rings {
		atomic.StoreUint32(q.word(0), s.shape[i][0])
		atomic.StoreUint32(q.word(4), s.shape[i][1])
	}
}

func (s *scripted) byte() byte {
	if len(s.script) == 0 {
		return 0
	}
	b := s.script[0]
	s.script = s.script[1:]
	return b
}

func (s *scripted) word() (v uint32) {
	for range 4 {
		v = v<<8 | uint32(s.byte())
	}
	return v
}

// value returns a number, which may be a valid key or queue pair number.
func (s *scripted) value() uint32 {
	switch s.byte() % 8 {
	case 0:
		return s.word()
	case 1:
		return 1 << (s.byte() & 31)
	case 2:
		return -uint32(s.byte())
	case 3: // keys and numbers of the others
		return []uint32{s.w.a.mr.LKey(), s.w.b.mr.RKey(), s.w.a.qp.Num(), s.w.b.qp.Num()}[s.byte()%4]
	case 4:
		return s.b.b.mr.RKey()
	}
	return uint32(s.byte())
}

// sge returns an element in the memory of node a, or anywhere.
func (s *scripted) sge() ib.SGE {
	e := ib.SGE{Addr: s.b.a.addr + uint64(s.byte())<<4, Length: uint32(s.byte()) << (s.byte() & 7), LKey: s.b.a.mr.LKey()}
	if s.byte() > 240 {
		e.LKey = s.value()
	}
	if s.byte() > 240 {
		e.Addr = uint64(s.value())<<32 | uint64(s.value())
	}
	return e
}

// step executes one operation of a program on its rings.
func (s *scripted) step() {
	ring := s.rings[int(s.byte())%len(s.rings)]
	what := s.byte() % 10
	if what <= 2 || what == 6 {
		s.mend()
	}
	switch what {
	case 0, 1: // a correct work request, perhaps damaged
		var list []ib.SGE
		for range s.byte() % 4 {
			list = append(list, s.sge())
		}
		w := s.wqe(uint64(s.byte()), uapi.WROpcode(s.byte()%18), uapi.SendFlags(s.byte()&0x1f), list...)
		for range s.byte() % 4 {
			binary.NativeEndian.PutUint32(w[int(s.byte())%(len(w)/4)*4:], s.value())
		}
		if len(w) <= 1<<s.sq.shift() {
			s.sq.post(w)
		}
	case 2:
		w := s.recvWQE(uint64(s.byte()), s.sge())
		for range s.byte() % 3 {
			binary.NativeEndian.PutUint32(w[int(s.byte())%(len(w)/4)*4:], s.value())
		}
		s.rq.post(w)
	case 3: // indices
		atomic.StoreUint32(ring.word(uapi.RXEQueueProducerOffset), s.value())
	case 4:
		atomic.StoreUint32(ring.word(uapi.RXEQueueConsumerOffset), s.value())
	case 5: // any value anywhere, including the geometry
		at := (int(s.byte())<<8 | int(s.byte())) % (len(ring.mem) / 4) * 4
		atomic.StoreUint32(ring.word(at), s.value())
	case 6:
		s.cqueue.poll()
	case 7:
		s.doorbell()
	case 8: // the peer sends
		_, _ = s.b.b.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: s.b.b.sge(0, int(s.byte()))})
	case 9:
		s.modify()
	}
}

// modify changes the state of the program's queue pair, if the state allows it.
func (s *scripted) modify() {
	states := []ib.QPState{ib.QPReset, ib.QPErr, ib.QPSQD, ib.QPRTS}
	_ = s.qp.Modify(ib.QPAttr{State: states[s.byte()%4]}, ib.QPAttrState)
	if s.qp.State() == ib.QPReset {
		check(s.t, s.b.b.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
		connectQPs(s.t, s.b.a.dev, s.qp, s.b.b.dev, s.b.b.qp, conn{timeout: 8, retry: 1})
	}
}

// run runs a program that executes a script.
func (w *queueWorld) run(t testing.TB, script []byte) {
	a, b := w.a.tenant(t), w.b.tenant(t)
	defer a.evict()
	defer b.evict()
	pair := &bench{t: t, a: a, b: b}
	u := openUser(pair, userCap)
	defer u.close()
	u.abuses = true
	s := &scripted{user: u, w: w, script: script, rings: []userRing{u.sq, u.rq, u.cqueue}}
	for _, q := range s.rings {
		s.shape = append(s.shape, [2]uint32{q.shift(), q.mask()})
	}
	for i := range 4 {
		b.recv(uint64(i), 0, 4096)
	}
	for steps := 0; len(s.script) > 0 && steps < 200; steps++ {
		s.step()
	}
	s.doorbell()
}

// FuzzQueues writes into the rings that a program shares with the driver: more or less correct work requests,
// indices, geometry and other values, before, between and after doorbells. At the same time the peer sends. Nothing
// may crash or hang, and all objects of the program must end with it. Other consumers on the same devices, with
// numbers that the program knows, must continue to work, with their memory unchanged.
func FuzzQueues(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 3))
	for range 24 {
		b := make([]byte, 400)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	w := newQueueWorld(f)
	goroutines := runtime.NumGoroutine() + 16
	f.Fuzz(func(t *testing.T, script []byte) {
		watchdog := time.AfterFunc(2*time.Minute, func() {
			buf := make([]byte, 1<<20)
			panic(fmt.Sprintf("a round hangs:\n%s", buf[:runtime.Stack(buf, true)]))
		})
		defer watchdog.Stop()
		defer func() { w.a.t, w.b.t = f, f }()
		w.run(t, script)
		if now := w.objects(); now != w.base {
			t.Errorf("left: %v, expected %v", now, w.base)
		}
		w.check(t)
		if w.round%256 == 0 {
			if !testutil.PollUntil(func() bool { return runtime.NumGoroutine() <= goroutines }) {
				t.Fatalf("%d goroutines, %d at the start", runtime.NumGoroutine(), goroutines-16)
			}
		}
	})
}
