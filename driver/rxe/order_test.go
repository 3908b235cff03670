package rxe

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/umem"
)

// defaultOrders returns a number of cases that takes a few seconds.
func defaultOrders() int {
	if raceEnabled {
		return 40
	}
	return 150
}

var (
	ordersFlag     = flag.Int("orders", defaultOrders(), "number of cases of TestRandomOrder")
	firstOrderFlag = flag.Uint64("firstorder", 1, "seed of the first of them")
)

// TestRandomOrder posts random work requests of both ends in virtual time, those of one end all on the same bytes of
// the other. The test compares memory, results, completions and receives with a model that executes the work requests
// one after another (orderModel).
func TestRandomOrder(t *testing.T) {
	for i := range *ordersFlag {
		c := newOrderCase(*firstOrderFlag + uint64(i))
		ok := t.Run(fmt.Sprint(c.seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				x := newOrderRun(t, c)
				defer x.b.close() // also of a case that fails: what is left running in a bubble ends the program
				x.run()
				x.check()
			})
		})
		if !ok {
			t.Fatalf("%v\nrun it again: go test ./driver/rxe -run '^TestRandomOrder$' -orders 1 -firstorder %d",
				c, c.seed)
		}
	}
}

// orderRun is a case that is run.
type orderRun struct {
	*testing.T
	c       *orderCase
	b       *bench
	nodes   [2]*node
	network *link.Faults
	mrs     [2]*ib.MR
	windows [2]uint32 // keys of the arenas' windows
	before  [2][]byte // the buffers, before the operations

	mu       sync.Mutex // guards the fields below
	done     [2][]ib.WC // of the work requests of an end
	received [2][]ib.WC
	results  [2]map[int][]byte // of an end's operations, when they completed
	targets  [2]map[int][]byte // the peer's bytes that an end's operation was to change, when it completed
	arrived  [2]map[int][]byte // the same, when the peer's receive completed
}

const (
	receiveID    = 1 << 40 // added to the ID of a receive
	maxSnapshot  = 1 << 14 // copies of longer operations would take too much of the time
	windowRights = ib.AccessRemoteRead | ib.AccessRemoteWrite | ib.AccessRemoteAtomic
	orderRights  = bindable | ib.AccessFlushGlobal
)

// newOrderRun connects the ends and prepares their memory.
func newOrderRun(t *testing.T, c *orderCase) *orderRun {
	r := c.random(1)
	inner := simnet.New(simnet.Config{
		Latency: time.Duration(1+r.IntN(30)) * time.Microsecond, Bandwidth: 1 << 30, Rand: rand.NewPCG(c.seed, 2),
	})
	x := &orderRun{T: t, c: c, network: link.NewFaults(inner, rand.NewPCG(c.seed, 3))}
	x.b = newBenchIn(t, setup{
		shortcut: c.way != wayWire, network: x.network, addrs: [2]netip.Addr{addrA, addrB}, taps: true,
		typ: c.typ, sigAll: true, bufLen: c.bufLen,
		cap: ib.QPCap{
			MaxSendWR: maxOrderOps, MaxRecvWR: maxOrderOps,
			MaxSendSGE: maxOrderCuts + 1, MaxRecvSGE: 1, MaxInlineData: inlineBytes,
		},
	})
	x.nodes = [2]*node{x.b.a, x.b.b}
	x.b.connect(conn{
		mtu: c.mtu, psn: c.psn, rdAtomic: c.reads, destRdAtomic: c.depth, timeout: c.timeout, rnrTimer: 1,
		access: orderRights,
	})
	for end, n := range x.nodes {
		x.results[end], x.targets[end], x.arrived[end] = map[int][]byte{}, map[int][]byte{}, map[int][]byte{}
		x.register(end)
		if c.way != wayWatched {
			continue
		}
		if r.IntN(2) == 0 {
			n.dev.taps.Add(&readingTap{})
		} else {
			check(t, n.dev.TraceQP(n.qp.Num(), true))
		}
	}
	if c.loss != lossNone {
		check(t, x.network.Add(c.loss.rule()))
	}
	if c.rough {
		check(t, x.network.Add(link.Rule{Duplicate: 0.3, Reorder: 0.1, Behind: 1 + r.IntN(40), Drop: 0.03, Limit: 300}))
	}
	return x
}

// register makes the region and the window of an end, and fills its memory.
func (x *orderRun) register(end int) {
	n := x.nodes[end]
	var space umem.Space = n.mem
	if !x.c.direct[end] {
		space = &holeSpace{Space: n.mem}
	}
	m, err := n.pd.RegMR(ib.MRInit{Space: space, Addr: n.addr, Length: uint64(len(n.buf)), Access: orderRights})
	check(x.T, err)
	n.mrs = append(n.mrs, m)
	x.mrs[end] = m
	x.windows[end] = n.bind(n.allocMW(nil, ib.MWType2), m, 0, x.c.arena, windowRights)
	fill(n.buf, x.c.seed*4+uint64(end))
	x.before[end] = bytes.Clone(n.buf)
	for _, o := range x.c.ops[1-end] {
		if o.op == ib.WRAtomicCmpAndSwp && o.matches {
			o.add = binary.NativeEndian.Uint64(n.buf[o.at:])
		}
	}
}

// arena returns the target of the operations of the other end.
func (x *orderRun) arena(end int) []byte { return x.nodes[end].buf[:x.c.arena] }

// workRequest returns an operation as an end posts it.
func (x *orderRun) workRequest(end, i int) ib.SendWR {
	o, peer := x.c.ops[end][i], 1-end
	wr := ib.SendWR{
		ID: uint64(i), Opcode: o.op, Imm: uint32(i),
		RemoteAddr: x.nodes[peer].addr + uint64(o.at), RKey: x.mrs[peer].RKey(), CompareAdd: o.add, Swap: o.swap,
	}
	if o.window {
		wr.RKey = x.windows[peer]
	}
	if o.fence {
		wr.Flags |= ib.SendFence
	}
	switch {
	case o.op == ib.WRFlush:
		wr.Flush = ib.Flush{Placement: ib.FlushGlobal, Length: uint32(o.size)}
	case o.op == ib.WRAtomicWrite:
		wr.Inline = o.local(x.before[end])
	case o.inline:
		wr.Flags |= ib.SendInline
		wr.Inline = o.local(x.before[end])
	default:
		wr.SGList = x.elements(end, o)
	}
	if o.op == ib.WRSendWithInv {
		wr.InvalidateRKey = x.windows[peer]
	}
	return wr
}

// elements returns the source or result of an operation.
func (x *orderRun) elements(end int, o *orderOp) (list []ib.SGE) {
	at, left := o.slot, o.size
	if o.source >= 0 {
		at = x.c.ops[end][o.source].slot
	}
	for _, k := range o.cuts {
		list = append(list, x.element(end, at, k))
		at, left = at+k, left-k
	}
	return append(list, x.element(end, at, left))
}

func (x *orderRun) element(end, at, size int) ib.SGE {
	return ib.SGE{Addr: x.nodes[end].addr + uint64(at), Length: uint32(size), LKey: x.mrs[end].LKey()}
}

// noError reports an error. Unlike check it may be called on any goroutine.
func (x *orderRun) noError(err error) {
	x.Helper()
	if err != nil {
		x.Error(err)
	}
}

// run posts the work requests of both ends, and waits until the ends are idle.
func (x *orderRun) run() {
	var wg sync.WaitGroup
	for end, ops := range x.c.ops {
		var sends []ib.SendWR
		var receives []ib.RecvWR
		for i, o := range ops {
			sends = append(sends, x.workRequest(end, i))
			if o.takesReceive() {
				e := x.element(1-end, o.at, o.receiveSize)
				receives = append(receives, ib.RecvWR{ID: receiveID + uint64(i), SGList: []ib.SGE{e}})
			}
		}
		if !x.c.late && len(receives) > 0 {
			_, err := x.nodes[1-end].qp.PostRecv(receives...)
			check(x.T, err)
			receives = nil
		}
		wg.Go(func() { x.postReceives(1-end, receives) })
		wg.Go(func() { x.post(end, sends) })
	}
	if x.c.change {
		wg.Go(x.changeWay)
	}
	wg.Wait()
	for deadline := time.Now().Add(2 * time.Minute); !x.poll() && time.Now().Before(deadline); {
		time.Sleep(10 * time.Microsecond)
	}
	time.Sleep(time.Second) // for packets that are late or repeated
	synctest.Wait()
	x.poll()
}

// postReceives posts late receives one by one.
func (x *orderRun) postReceives(end int, receives []ib.RecvWR) {
	r := x.c.random(4 + uint64(end))
	for _, wr := range receives {
		if r.IntN(2) == 0 {
			time.Sleep(time.Duration(r.IntN(200)) * time.Microsecond)
		}
		_, err := x.nodes[end].qp.PostRecv(wr)
		x.noError(err)
	}
}

// post posts the work requests of an end, some of them together.
func (x *orderRun) post(end int, sends []ib.SendWR) {
	r := x.c.random(6 + uint64(end))
	for len(sends) > 0 {
		n := 1 + r.IntN(len(sends))
		_, err := x.nodes[end].qp.PostSend(sends[:n]...)
		x.noError(err)
		sends = sends[n:]
		if r.IntN(2) == 0 {
			x.poll()
		}
		if r.IntN(2) == 0 {
			time.Sleep(time.Duration(r.IntN(100)) * time.Microsecond)
		}
	}
}

// changeWay changes the way of packets at random moments.
func (x *orderRun) changeWay() {
	r := x.c.random(8)
	for range 10 {
		if r.IntN(3) == 0 {
			time.Sleep(time.Duration(r.IntN(100)) * time.Microsecond)
		}
		for range r.IntN(1000) {
			runtime.Gosched() // on the shortcut packets take no virtual time
		}
		n, on := x.nodes[r.IntN(2)], r.IntN(2) == 0
		if r.IntN(3) > 0 {
			n.dev.SetShortcut(on)
		} else {
			x.noError(n.dev.TraceQP(n.qp.Num(), on))
		}
	}
}

// poll polls the completions of both ends, and reports whether all work requests have completed.
func (x *orderRun) poll() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for end, n := range x.nodes {
		wc := make([]ib.WC, 128)
		k, err := n.cq.Poll(wc)
		x.noError(err)
		for _, w := range wc[:k] {
			if w.ID >= receiveID {
				x.received[end] = append(x.received[end], w)
				x.keepTarget(x.arrived[1-end], 1-end, int(w.ID-receiveID))
				continue
			}
			x.done[end] = append(x.done[end], w)
			if w.Status == ib.WCSuccess {
				x.completed(end, int(w.ID))
			}
		}
	}
	return len(x.done[0]) >= len(x.c.ops[0]) && len(x.done[1]) >= len(x.c.ops[1])
}

// completed keeps the memory of an operation that has completed. The source is the consumer's again, which changes it.
func (x *orderRun) completed(end, i int) {
	o, buf := x.c.ops[end][i], x.nodes[end].buf
	switch {
	case o.fetches():
		x.results[end][i] = bytes.Clone(o.local(buf))
	case o.source < 0:
		clear(o.local(buf))
	}
	if o.stores() || o.atomic() {
		x.keepTarget(x.targets[end], end, i)
	}
}

// keepTarget copies the bytes that an operation was to change. With the race detector it does not: other operations
// write them meanwhile, on purpose.
func (x *orderRun) keepTarget(to map[int][]byte, end, i int) {
	if o := x.c.ops[end][i]; !raceEnabled && o.size <= maxSnapshot {
		to[i] = bytes.Clone(o.in(x.arena(1 - end)))
	}
}

// check compares the result of the run with the model.
func (x *orderRun) check() {
	for end := range x.nodes {
		x.checkEnd(end)
	}
}

// checkEnd checks the operations of one end.
func (x *orderRun) checkEnd(end int) {
	executed, known := x.checkCompletions(end)
	ops, peer := x.c.ops[end], 1-end
	m := newOrderModel(ops[:executed], x.before[peer][:x.c.arena], x.before[end], x.nodes[end].buf)
	x.checkReceives(end, executed)
	for i, o := range ops[:known] {
		if o.fetches() {
			x.checkResult(end, i, m)
		}
	}
	if x.c.typ == ib.QPTypeRC { // UC completes what it has sent
		x.checkTargets("its completion", end, m, x.targets[end])
	}
	x.checkTargets("the completion of its receive", end, m, x.arrived[end])
	if got, want := x.arena(peer), m.final(); !bytes.Equal(got, want) {
		i := firstDifference(got, want)
		x.Fatalf("end %d: byte %d of the peer's arena: got %#x, want %#x", end, i, got[i], want[i])
	}
	x.checkRest(end, executed, known)
}

// checkCompletions checks the completions of an end's work requests. It returns the number of operations that the
// peer has executed, and of those whose results are here.
func (x *orderRun) checkCompletions(end int) (executed, known int) {
	ops, done := x.c.ops[end], x.done[end]
	if len(done) != len(ops) {
		x.Fatalf("end %d: got %d completions, want %d", end, len(done), len(ops))
	}
	executed = len(ops)
	if end == 0 && x.c.fails >= 0 {
		executed = x.c.fails // SEND with invalidate has taken its key away
	}
	known = executed
	for i, wc := range done {
		want := ib.WCSuccess
		switch {
		case i < known && x.c.loss != lossNone && executed < len(ops) && wc.Status == ib.WCRetryExcErr:
			// The peer is in ERR once it has refused a request, and does not repeat an earlier answer that was lost.
			known, want = i, ib.WCRetryExcErr
		case i > known:
			want = ib.WCWRFlushErr
		case i == executed && x.c.loss != lossNone && wc.Status == ib.WCRetryExcErr:
			want = ib.WCRetryExcErr // the NAK was lost, and is sent once
		case i == executed:
			want = ib.WCRemAccessErr
		}
		if wc.ID != uint64(i) || wc.Status != want {
			x.Fatalf("end %d: completion %d (%v): got work request %d, %v, want %v",
				end, i, ops[i].op, wc.ID, wc.Status, want)
		}
	}
	return executed, known
}

// checkReceives checks that the operations executed by the peer have taken its receives in order, and no others have.
func (x *orderRun) checkReceives(end, executed int) {
	received := x.received[1-end]
	for i, o := range x.c.ops[end][:executed] {
		if !o.takesReceive() {
			continue
		}
		if len(received) == 0 {
			x.Fatalf("end %d: operation %d (%v): no receive has completed", end, i, o.op)
		}
		wc := received[0]
		received = received[1:]
		if wc.ID != receiveID+uint64(i) || wc.Status != ib.WCSuccess || int(wc.ByteLen) != o.size {
			x.Fatalf("end %d: receive of operation %d (%v, %d bytes): got %+v", end, i, o.op, o.size, wc)
		}
		imm := o.op == ib.WRSendWithImm || o.op == ib.WRRDMAWriteWithImm
		if imm && wc.Imm != uint32(i) {
			x.Fatalf("end %d: receive of operation %d: got immediate data %d", end, i, wc.Imm)
		}
		invalidated := wc.Flags&ib.WCWithInvalidate != 0 && wc.InvalidateRKey == x.windows[1-end]
		if o.op == ib.WRSendWithInv && !invalidated {
			x.Fatalf("end %d: receive of operation %d: got %+v, want key %#x invalidated",
				end, i, wc, x.windows[1-end])
		}
	}
	if i := slices.IndexFunc(received, func(wc ib.WC) bool { return wc.Status == ib.WCSuccess }); i >= 0 {
		x.Fatalf("end %d: receive of no operation: %+v", end, received[i])
	}
}

// checkResult checks the result of a READ or an atomic, and that it has not changed since the completion.
func (x *orderRun) checkResult(end, i int, m *orderModel) {
	o := m.ops[i]
	got, states := o.local(x.nodes[end].buf), m.fetched(i)
	if k := strange(got, o.at, states); k >= 0 {
		x.Fatalf("end %d: operation %d (%v, %d at %d): byte %d: got %#x, want %#x, or newer by %d operations at most",
			end, i, o.op, o.size, o.at, k, got[k], states[0][o.at+k], len(states)-1)
	}
	if before := x.results[end][i]; !bytes.Equal(got, before) {
		x.Fatalf("end %d: operation %d (%v): byte %d of the result changed after the completion",
			end, i, o.op, firstDifference(got, before))
	}
}

// checkTargets checks that operations had taken effect at a moment.
func (x *orderRun) checkTargets(moment string, end int, m *orderModel, targets map[int][]byte) {
	for i, got := range targets {
		o := x.c.ops[end][i]
		if i >= len(m.ops) {
			continue
		}
		if k := strange(got, o.at, m.visible(i)); k >= 0 {
			x.Fatalf("end %d: operation %d (%v, %d bytes at %d): byte %d had not arrived at %s",
				end, i, o.op, o.size, o.at, k, moment)
		}
	}
}

// checkRest checks that the requester's buffer has changed only in its arena, results, and sources that poll cleared.
func (x *orderRun) checkRest(end, executed, known int) {
	buf, want := x.nodes[end].buf, bytes.Clone(x.before[end])
	copy(want, buf[:x.c.arena])
	for i, o := range x.c.ops[end] {
		switch {
		case o.fetches() && i <= known: // a part may be there of the one that failed
			copy(o.local(want), o.local(buf))
		case !o.fetches() && o.source < 0 && i < executed:
			copy(o.local(want), o.local(buf))
		}
	}
	if !bytes.Equal(buf, want) {
		i := firstDifference(buf, want)
		x.Fatalf("end %d: byte %d, of no result: got %#x, want %#x", end, i, buf[i], want[i])
	}
}

// TestAtomicsTogether tests that fetch-and-adds of several queue pairs on one counter are executed exactly once each.
func TestAtomicsTogether(t *testing.T) {
	for l := range numLosses {
		for seed := range uint64(3) {
			bubble(t, func(t *testing.T) { atomicsTogether(t, wayWire, l, seed) })
			if l == lossNone {
				bubble(t, func(t *testing.T) { atomicsTogether(t, wayShortcut, l, seed) })
			}
		}
	}
}

const (
	counterPairs = 4
	counterAdds  = 60 // of each
	counterAt    = 8
)

func atomicsTogether(t *testing.T, w way, l loss, seed uint64) {
	inner := simnet.New(simnet.Config{Latency: 3 * time.Microsecond, Bandwidth: 1 << 30, Rand: rand.NewPCG(seed, 2)})
	network := link.NewFaults(inner, rand.NewPCG(seed, 3))
	s := setup{shortcut: w != wayWire, network: network, addrs: [2]netip.Addr{addrA, addrB}, sigAll: true}
	b := newBenchIn(t, s)
	defer b.close()
	s.typ, s.cap = ib.QPTypeRC, ib.QPCap{MaxSendWR: 64, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}
	var qps [counterPairs]*ib.QP
	for i := range qps {
		from, to := b.a.newQP(s), b.b.newQP(s)
		defer func() {
			check(t, from.Destroy())
			check(t, to.Destroy())
		}()
		connectQPs(t, b.a.dev, from, b.b.dev, to, conn{
			mtu: ib.MTU256, psn: uint32(1<<24 - 20*(i+1)), rdAtomic: 1 + i, destRdAtomic: 1 + i, timeout: 9,
		})
		qps[i] = from
	}
	if l != lossNone {
		check(t, network.Add(l.rule()))
	}
	var wg sync.WaitGroup
	for i, qp := range qps {
		wg.Go(func() {
			for k := range counterAdds {
				id := i*counterAdds + k
				if _, err := qp.PostSend(ib.SendWR{
					ID: uint64(id), Opcode: ib.WRAtomicFetchAdd, SGList: b.a.sge(8*id, 8),
					RemoteAddr: b.b.addr + counterAt, RKey: b.b.mr.RKey(), CompareAdd: 1,
				}); err != nil {
					t.Error(err)
				}
				if k%7 == i {
					time.Sleep(time.Microsecond)
				}
			}
		})
	}
	wg.Wait()
	for _, wc := range b.a.poll(counterPairs * counterAdds) {
		if wc.Status != ib.WCSuccess {
			t.Fatalf("%v, losses %v: operation %d: %v", w, l, wc.ID, wc.Status)
		}
	}
	checkCounter(t, b, fmt.Sprintf("%v, losses %v, seed %d", w, l, seed))
}

// checkCounter checks that each addition has returned another value, and those of one queue pair ascending ones.
func checkCounter(t *testing.T, b *bench, name string) {
	const total = counterPairs * counterAdds
	var seen [total]bool
	for id := range total {
		v := binary.NativeEndian.Uint64(b.a.buf[8*id:])
		if v >= total || seen[v] {
			t.Fatalf("%s: operation %d: got %d again, or out of range", name, id, v)
		}
		seen[v] = true
		if id%counterAdds > 0 && v < binary.NativeEndian.Uint64(b.a.buf[8*(id-1):]) {
			t.Fatalf("%s: operation %d: got %d, less than the one before", name, id, v)
		}
	}
	if v := binary.NativeEndian.Uint64(b.b.buf[counterAt:]); v != total {
		t.Fatalf("%s: counter: got %d, want %d", name, v, total)
	}
}
