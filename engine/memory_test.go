package engine

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"verbena/driver"
	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/umem"
)

// unsteady is memory that can be unmapped, or slow.
type unsteady struct {
	*umem.Local
	gone    atomic.Bool
	blocks  atomic.Bool
	blocked atomic.Bool   // an access waits for block
	block   chan struct{} // closed to end the waits of accesses
}

func (u *unsteady) access() error {
	if u.blocks.Load() {
		u.blocked.Store(true)
		<-u.block
	}
	if u.gone.Load() {
		return umem.ErrFault
	}
	return nil
}

func (u *unsteady) ReadV(dst [][]byte, addr uint64) error {
	if err := u.access(); err != nil {
		return err
	}
	return u.Local.ReadV(dst, addr)
}

func (u *unsteady) WriteV(src [][]byte, addr uint64) error {
	if err := u.access(); err != nil {
		return err
	}
	return u.Local.WriteV(src, addr)
}

// register registers n's buffer as unsteady memory.
func register(n *node) (*unsteady, *ib.MR) {
	n.t.Helper()
	u := &unsteady{Local: n.mem, block: make(chan struct{})}
	mr, err := n.pd.RegMR(ib.MRInit{Space: u, Addr: n.addr, Length: uint64(len(n.buf)), Access: allAccess})
	check(n.t, err)
	return u, mr
}

// TestMemoryGone unmaps registered memory. Each end must report a protection error, and no request may succeed
// without its data.
func TestMemoryGone(t *testing.T) {
	for _, c := range []struct {
		name             string
		op               ib.WROpcode
		atA              bool // the memory of a is gone, not that of b
		sender, receiver ib.WCStatus
		refused          bool // a request that the receiver refuses follows
	}{
		{"gather of a send", ib.WRSend, true, ib.WCLocProtErr, ib.WCSuccess, false},
		{"gather of a write", ib.WRRDMAWrite, true, ib.WCLocProtErr, ib.WCSuccess, false},
		{"scatter of a read", ib.WRRDMARead, true, ib.WCLocProtErr, ib.WCSuccess, false},
		{"scatter of an atomic", ib.WRAtomicFetchAdd, true, ib.WCLocProtErr, ib.WCSuccess, false},
		{"scatter of a send", ib.WRSend, false, ib.WCRemOpErr, ib.WCLocProtErr, false},
		{"target of a write", ib.WRRDMAWrite, false, ib.WCRemAccessErr, ib.WCWRFlushErr, false},
		{"target of a write with immediate", ib.WRRDMAWriteWithImm, false, ib.WCRemAccessErr, ib.WCWRFlushErr, false},
		{"source of a read", ib.WRRDMARead, false, ib.WCRemAccessErr, ib.WCWRFlushErr, false},
		{"target of an atomic", ib.WRAtomicFetchAdd, false, ib.WCRemAccessErr, ib.WCWRFlushErr, false},
		{"source of a read before a refused request", ib.WRRDMARead, false, ib.WCRemAccessErr, ib.WCWRFlushErr, true},
	} {
		both := func(t *testing.T, size int) {
			eachNetwork(t, func(t *testing.T, s setup) {
				o := &observed{}
				s.observer = o
				b := newBench(t, s)
				b.connect(conn{})
				ua, ma := register(b.a)
				ub, mb := register(b.b)
				if c.op == ib.WRAtomicFetchAdd {
					size = 8
				}
				_, err := b.b.qp.PostRecv(ib.RecvWR{ID: 5, SGList: []ib.SGE{{Addr: b.b.addr, Length: uint32(size),
					LKey: mb.LKey()}}})
				check(t, err)
				if c.atA {
					ua.gone.Store(true)
				} else {
					ub.gone.Store(true)
				}
				wr := ib.SendWR{ID: 1, Opcode: c.op, RemoteAddr: b.b.addr, RKey: mb.RKey(),
					SGList: []ib.SGE{{Addr: b.a.addr, Length: uint32(size), LKey: ma.LKey()}}}
				next := ib.SendWR{ID: 2, Opcode: ib.WRRDMAWrite}
				if c.refused {
					next = ib.SendWR{ID: 2, Opcode: ib.WRAtomicFetchAdd, SGList: b.a.sge(0, 8), RemoteAddr: b.b.addr + 1}
				}
				b.a.send(wr, next)
				b.a.expect(ib.WC{ID: 1, Status: c.sender}, ib.WC{ID: 2, Status: ib.WCWRFlushErr})
				synctest.Wait()
				o.mu.Lock()
				rule := o.failed[0].Violation.Rule
				if !c.atA && len(o.refused) > 0 {
					rule = o.refused[0].Violation.Rule
				}
				o.mu.Unlock()
				if rule != driver.RuleMemory && !c.refused {
					t.Errorf("violated rule: got %d, want %d", rule, driver.RuleMemory)
				}
				if c.receiver == ib.WCSuccess {
					b.b.none()
				} else {
					b.b.expect(ib.WC{ID: 5, Status: c.receiver})
				}
				check(t, ma.Dereg())
				check(t, mb.Dereg())
			})
		}
		t.Run(c.name+", one packet", func(t *testing.T) { both(t, 500) })
		t.Run(c.name+", many", func(t *testing.T) { both(t, 50_000) })
	}
}

// TestRevocationWaits tests that the end of a key's rights waits until no access is in flight. The test runs in real
// time, because a revocation waits for a lock.
func TestRevocationWaits(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(b *bench, mr *ib.MR) error
	}{
		{"dereg", func(_ *bench, mr *ib.MR) error { return mr.Dereg() }},
		{"rereg", func(_ *bench, mr *ib.MR) error {
			return errors.Join(mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: ib.AccessLocalWrite}), mr.Dereg())
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, setup{shortcut: true})
			b.connect(conn{})
			u, mr := register(b.b)
			u.blocks.Store(true)
			var wg sync.WaitGroup
			wg.Go(func() {
				b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: b.a.sge(0, 100),
					RemoteAddr: b.b.addr, RKey: mr.RKey()})
			})
			testutil.Eventually(t, "the memory is being written", u.blocked.Load)
			ended := make(chan error, 1)
			testutil.WaitBlocked(t, func() { ended <- c.end(b, mr) })
			if len(ended) > 0 {
				t.Error("it has ended while the memory is being written")
			}
			close(u.block)
			wg.Wait()
			check(t, <-ended)
			b.a.expect(ib.WC{ID: 1, Opcode: ib.WCRDMAWrite})
		})
	}
}

// slowNet is a network whose Send blocks until the gate opens.
type slowNet struct {
	*simnet.Net
	slow atomic.Bool
	gate chan struct{}
}

type slowEndpoint struct {
	link.Endpoint
	net *slowNet
}

func (n *slowNet) Listen(a netip.Addr, r link.Receiver) (link.Endpoint, error) {
	e, err := n.Net.Listen(a, r)
	return slowEndpoint{e, n}, err
}

func (e slowEndpoint) Send(t *link.Train) error {
	if e.net.slow.Load() {
		<-e.net.gate
	}
	return e.Endpoint.Send(t)
}

// TestDestroyWaits tests that Destroy waits until no thread sends for the queue pair.
func TestDestroyWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		net := &slowNet{Net: simnet.New(simnet.Config{}), gate: make(chan struct{})}
		b := newBench(t, setup{network: net, addrs: [2]netip.Addr{addrA, addrB}})
		a, z := b.a.newQP(setup{typ: ib.QPTypeRC, cap: userCap}), b.b.newQP(setup{typ: ib.QPTypeRC, cap: userCap})
		connectQPs(t, b.a.dev, a, b.b.dev, z, conn{})
		net.slow.Store(true)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := a.PostSend(ib.SendWR{Opcode: ib.WRRDMAWrite}); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		var done atomic.Bool
		wg.Go(func() {
			if err := a.Destroy(); err != nil {
				t.Error(err)
			}
			done.Store(true)
		})
		synctest.Wait()
		if done.Load() {
			t.Error("Destroy has returned while a packet is being sent")
		}
		net.slow.Store(false)
		close(net.gate)
		wg.Wait()
		check(t, z.Destroy())
	})
}

// TestEgressCut tests that the unsent trains stay, in order.
func TestEgressCut(t *testing.T) {
	trains := make([]*train, 5)
	for i := range trains {
		trains[i] = &train{packets: i}
	}
	e := egress{queue: slices.Clone(trains)}
	e.cut(2)
	if !slices.Equal(e.queue, trains[2:]) {
		t.Errorf("after cut(2): got %v, want %v", e.queue, trains[2:])
	}
}

// TestBuilderCut cuts an open train with spans at the beginning of each part.
func TestBuilderCut(t *testing.T) {
	spans := []span{{0, 10, 1, nil}, {10, 60, 5, nil}, {60, 70, 1, nil}}
	for n, want := range map[int]struct{ parts, end int }{0: {0, 0}, 1: {1, 10}, 6: {2, 60}, 7: {3, 70}} {
		b := builder{t: &train{mixed: true, packets: 7, spans: slices.Clone(spans)}, closed: true, middle: true}
		b.t.Buf = make([]byte, 70)
		b.cut(n)
		if len(b.t.spans) != want.parts || b.t.packets != n || n > 0 && len(b.t.Buf) != want.end {
			t.Errorf("cut(%d): got %d parts, %d packets, %d bytes, want %d, %d, %d", n, len(b.t.spans), b.t.packets,
				len(b.t.Buf), want.parts, n, want.end)
		}
	}
}

// TestBuilderCutBack removes packets from the open train and from trains in the egress queue.
func TestBuilderCutBack(t *testing.T) {
	makeOf := func(packets int) *train {
		tr := &train{packets: packets}
		for i := range packets {
			tr.spans = append(tr.spans, span{start: 10 * i, end: 10*i + 10, packets: 1})
		}
		tr.Buf = make([]byte, 10*packets)
		return tr
	}
	for _, tt := range []struct {
		queue    []int // packets of the trains in the egress queue
		open     int   // packets of the open train; 0: there is none
		to       mark
		left     int // trains that stay in the queue
		packets  int // in the open train afterwards
		unopened bool
	}{
		{queue: []int{3, 4}, open: 5, to: mark{trains: 2, packets: 2}, left: 2, packets: 2},
		{queue: []int{3, 4}, open: 5, to: mark{trains: 1, packets: 1}, left: 1, packets: 1},
		{queue: []int{3, 4, 4}, open: 5, to: mark{trains: 0, packets: 2}, packets: 2},
		{queue: []int{3, 4}, to: mark{trains: 1}, left: 1, packets: 0},
		{queue: []int{3}, to: mark{trains: 1}, left: 1, unopened: true},
	} {
		var e egress
		var b builder
		for _, n := range tt.queue {
			e.queue = append(e.queue, makeOf(n))
		}
		if tt.open > 0 {
			b.t = makeOf(tt.open)
		}
		b.cutBack(&e, tt.to)
		if len(e.queue) != tt.left || (b.t == nil) != tt.unopened || b.t != nil && (b.t.packets != tt.packets ||
			len(b.t.spans) != tt.packets || len(b.t.Buf) != 10*tt.packets) {
			t.Errorf("cutBack(%+v): got %d trains and the open train %+v, want %d trains and %d packets", tt.to, len(e.queue),
				b.t, tt.left, tt.packets)
		}
	}
}

// TestZeroBased tests that addresses in a zero-based region count from its first byte, at any offset in a page, for
// local and remote keys and for windows.
func TestZeroBased(t *testing.T) {
	const off, size = 100, 5000
	for _, onDemand := range []ib.AccessFlags{0, ib.AccessOnDemand} {
		eachNetwork(t, func(t *testing.T, s setup) {
			b := newBench(t, s)
			b.connect(conn{})
			zero := func(n *node) *ib.MR {
				mr, err := n.pd.RegMR(ib.MRInit{Space: n.mem, Addr: n.addr + off, Length: size,
					Access: bindable | ib.AccessZeroBased | onDemand})
				check(t, err)
				n.mrs = append(n.mrs, mr)
				return mr
			}
			ma, mb := zero(b.a), zero(b.b)
			if mb.Region().IOVA() != 0 || mb.Region().Addr() != b.b.addr+off {
				t.Errorf("region at %#x from address %#x, want 0 from %#x", mb.Region().IOVA(), mb.Region().Addr(), b.b.addr+off)
			}
			sge := func(mr *ib.MR, at, n int) []ib.SGE {
				return []ib.SGE{{Addr: uint64(at), Length: uint32(n), LKey: mr.LKey()}}
			}
			same := func(what string, a, z int, n int) {
				t.Helper()
				if i := firstDifference(b.a.buf[off+a:][:n], b.b.buf[off+z:][:n]); i >= 0 {
					t.Errorf("%s: byte %d differs", what, i)
				}
			}
			try := func(what string, wr ib.SendWR, want ib.WCStatus) {
				t.Helper()
				if got := b.a.status(wr); got != want {
					t.Errorf("%s: %v, want %v", what, got, want)
				}
			}
			fill(b.a.buf, 1)
			try("write", ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: sge(ma, 0, size), RKey: mb.RKey()}, ib.WCSuccess)
			same("write", 0, 0, size)
			clear(b.a.buf)
			try("read", ib.SendWR{Opcode: ib.WRRDMARead, SGList: sge(ma, 16, 3000), RemoteAddr: 1000, RKey: mb.RKey()},
				ib.WCSuccess)
			same("read", 16, 1000, 3000)
			fill(b.a.buf, 2)
			_, err := b.b.qp.PostRecv(ib.RecvWR{ID: 3, SGList: sge(mb, 8, 2000)})
			check(t, err)
			try("send", ib.SendWR{Opcode: ib.WRSend, SGList: sge(ma, 1, 2000)}, ib.WCSuccess)
			b.b.expect(ib.WC{ID: 3, Opcode: ib.WCRecv, ByteLen: 2000})
			same("send", 1, 8, 2000)
			try("atomic", ib.SendWR{Opcode: ib.WRAtomicFetchAdd, SGList: sge(ma, 0, 8), RemoteAddr: 8, RKey: mb.RKey(),
				CompareAdd: 1}, ib.WCSuccess)
			try("last byte", ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: sge(ma, 0, 1), RemoteAddr: size - 1, RKey: mb.RKey()},
				ib.WCSuccess)
			if onDemand == 0 {
				w := b.b.allocMW(nil, ib.MWType2)
				key := ib.IncRKey(w.RKey())
				if got := b.b.status(ib.SendWR{Opcode: ib.WRBindMW, Bind: &ib.BindMW{
					MW: w, MR: mb, RKey: key, Addr: 64, Length: 64, Access: remoteAccess,
				}}); got != ib.WCSuccess {
					t.Fatalf("bind a window to the region: %v", got)
				}
				try("write by the window", ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: sge(ma, 64, 64), RemoteAddr: 64, RKey: key},
					ib.WCSuccess)
				same("write by the window", 64, 64, 64)
			}
			for _, addr := range []uint64{size, b.b.addr + off, ^uint64(0)} {
				try("outside", ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: sge(ma, 0, 1), RemoteAddr: addr, RKey: mb.RKey()},
					ib.WCRemAccessErr)
				b.reconnect(conn{})
			}
			wr := ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: sge(ma, 0, 1), RKey: mb.RKey()}
			wr.SGList[0].Addr = b.a.addr + off
			try("gather by the address of the memory", wr, ib.WCLocProtErr)
		})
	}
}
