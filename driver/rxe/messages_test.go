package rxe

import (
	"bytes"
	"crypto/subtle"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/umem"
)

// defaultCases returns a number of cases that takes about two seconds, or a few more with the race detector.
func defaultCases() int {
	if raceEnabled {
		return 100
	}
	return 400
}

var (
	casesFlag     = flag.Int("messages", defaultCases(), "number of cases of TestRandomMessages")
	firstCaseFlag = flag.Uint64("first", 1, "seed of the first of them")
)

// TestRandomMessages sends random messages in virtual time. Packets are lost, and a fault occurs in the middle of one
// message, the victim. The test compares every byte in the memory of both ends, the status and order of completions,
// and the receives with a model (messageCase.outcome).
func TestRandomMessages(t *testing.T) {
	statuses := map[ib.WCStatus]int{} // of the first work request that failed
	for i := range *casesFlag {
		c := newMessageCase(*firstCaseFlag + uint64(i))
		ok := t.Run(fmt.Sprint(c.seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				x := newMessageRun(t, c)
				defer x.b.close() // also of a case that fails: what is left running in a bubble ends the program
				x.run()
				x.check()
				statuses[x.status]++
			})
		})
		if !ok {
			t.Fatalf("%v\nrun it again: go test ./driver/rxe -run '^TestRandomMessages$' -messages 1 -first %d",
				c, c.seed)
		}
	}
	t.Logf("outcomes: %v", statuses)
	if *casesFlag < 400 {
		return
	}
	for _, s := range []ib.WCStatus{
		ib.WCSuccess, ib.WCLocProtErr, ib.WCRemAccessErr, ib.WCRemOpErr, ib.WCRemInvReqErr, ib.WCWRFlushErr,
		ib.WCRetryExcErr,
	} {
		if statuses[s] == 0 {
			t.Errorf("no case ends with %v: the cases have become too tame", s)
		}
	}
}

// messageRun is a case that is run.
type messageRun struct {
	*testing.T
	c       *messageCase
	b       *bench
	s       setup
	nodes   [2]*node // the requester and its peer
	network *link.Faults
	spaces  [2]*holeSpace
	regions [2][numCaseRegions]*ib.MR
	before  [2][]byte // the buffers, before the messages

	done      []ib.WC // of the work requests
	received  []ib.WC
	succeeded int         // work requests before the first that failed
	status    ib.WCStatus // of that one; success: none failed
}

// holeSpace is memory that is not direct, and of which a part can be unmapped.
type holeSpace struct {
	umem.Space
	from, to atomic.Uint64
}

func (s *holeSpace) unmapped(list [][]byte, addr uint64) bool {
	end := addr
	for _, b := range list {
		end += uint64(len(b))
	}
	return addr < s.to.Load() && end > s.from.Load()
}

func (s *holeSpace) ReadV(dst [][]byte, addr uint64) error {
	if s.unmapped(dst, addr) {
		return umem.ErrFault
	}
	return s.Space.ReadV(dst, addr)
}

func (s *holeSpace) WriteV(src [][]byte, addr uint64) error {
	if s.unmapped(src, addr) {
		return umem.ErrFault
	}
	return s.Space.WriteV(src, addr)
}

// readingTap reads packets, so that the race detector sees it.
type readingTap struct{ sum atomic.Int64 }

func (x *readingTap) Packet(p *link.Tapped) { x.sum.Add(int64(p.Data[0])) }

// newMessageRun connects the ends and prepares their memory.
func newMessageRun(t *testing.T, c *messageCase) *messageRun {
	r := c.random(1)
	inner := simnet.New(simnet.Config{
		Latency: time.Duration(1+r.IntN(30)) * time.Microsecond, Bandwidth: 1 << 30, Rand: rand.NewPCG(c.seed, 2),
	})
	x := &messageRun{T: t, c: c, network: link.NewFaults(inner, rand.NewPCG(c.seed, 3))}
	x.s = setup{
		shortcut: c.way != wayWire, network: x.network, addrs: [2]netip.Addr{addrA, addrB}, taps: true,
		typ: c.typ, sigAll: true, bufLen: c.bufLen,
		cap: ib.QPCap{
			MaxSendWR: maxCaseMessages, MaxRecvWR: maxCaseMessages,
			MaxSendSGE: maxCaseElements, MaxRecvSGE: maxCaseElements, MaxInlineData: inlineBytes,
		},
	}
	x.b = newBenchIn(t, x.s)
	x.nodes = [2]*node{x.b.a, x.b.b}
	x.b.connect(conn{mtu: c.mtu, psn: c.psn, rdAtomic: c.reads, destRdAtomic: 6, timeout: c.timeout, rnrTimer: c.rnr})
	if c.loss != lossNone {
		check(t, x.network.Add(c.loss.rule()))
	}
	for end, n := range x.nodes {
		if c.tapped[end] {
			n.dev.taps.Add(&readingTap{})
		}
		if c.traced[end] {
			check(t, n.dev.TraceQP(n.qp.Num(), true))
		}
		x.register(end)
	}
	x.fillBuffers()
	return x
}

// register makes the regions of an end.
func (x *messageRun) register(end int) {
	n := x.nodes[end]
	x.spaces[end] = &holeSpace{Space: n.mem}
	hole := x.c.fault == fault{faultHole, end}
	if hole {
		x.spaces[end].from.Store(n.addr + uint64(x.c.gone[0]))
		x.spaces[end].to.Store(n.addr + uint64(x.c.gone[1]))
	}
	for i := range x.regions[end] {
		var space umem.Space = n.mem
		if !x.c.direct[end] || hole && i == victimRegion {
			space = x.spaces[end]
		}
		m, err := n.pd.RegMR(ib.MRInit{Space: space, Addr: n.addr, Length: uint64(len(n.buf)), Access: allAccess})
		check(x.T, err)
		n.mrs = append(n.mrs, m)
		x.regions[end][i] = m
	}
}

// ends returns the source and the target of a message.
func (m *message) ends() (from, to int) {
	if m.op == ib.WRRDMARead {
		return 1, 0
	}
	return 0, 1
}

// in returns the bytes of a message in a buffer.
func (m *message) in(buf []byte) []byte { return buf[m.at:][:m.size] }

// fillBuffers gives the messages their contents. Every byte of the target differs from the source's, and so shows whether it
// was transferred.
func (x *messageRun) fillBuffers() {
	for _, n := range x.nodes {
		for i := range n.buf[:messageGuard] {
			n.buf[i] = 0xa5
		}
		for k := messageGuard; k < len(n.buf); k *= 2 {
			copy(n.buf[k:], n.buf[:k])
		}
	}
	for i, m := range x.c.messages {
		from, to := m.ends()
		content := m.in(x.nodes[from].buf)
		fill(content, x.c.seed<<8+uint64(i))
		copy(m.in(x.nodes[to].buf), inverse(content))
	}
	for end, n := range x.nodes {
		x.before[end] = slices.Clone(n.buf)
	}
}

// inverse returns b with every bit inverted.
func inverse(b []byte) []byte {
	x := bytes.Repeat([]byte{0xff}, len(b))
	subtle.XORBytes(x, x, b)
	return x
}

// list returns elements as an end posts them.
func (x *messageRun) list(end int, elements []element) (l []ib.SGE) {
	for _, e := range elements {
		key := x.regions[end][e.region].LKey()
		if e.badKey {
			key ^= wrongKey
		}
		l = append(l, ib.SGE{Addr: x.nodes[end].addr + uint64(e.at), Length: uint32(e.size), LKey: key})
	}
	return l
}

// wrongKey changes a key into one that does not exist.
const wrongKey = 0x4400

// workRequests returns what the first end posts to send, and the other one to receive.
func (x *messageRun) workRequests() (sends []ib.SendWR, receives []ib.RecvWR) {
	for i, m := range x.c.messages {
		wr := ib.SendWR{
			ID: uint64(i), Opcode: m.op, SGList: x.list(0, m.elements), Imm: uint32(i),
			RemoteAddr: x.nodes[1].addr + uint64(m.at), RKey: x.regions[1][m.region].RKey(),
		}
		if m.badRKey {
			wr.RKey ^= wrongKey
		}
		if m.fence {
			wr.Flags |= ib.SendFence
		}
		if m.inline {
			wr.Flags |= ib.SendInline
			wr.Inline = m.in(x.nodes[0].buf)
		}
		sends = append(sends, wr)
		if m.takesReceive() {
			receives = append(receives, ib.RecvWR{ID: uint64(i), SGList: x.list(1, m.receive)})
		}
	}
	return sends, receives
}

// noError reports an error. Unlike check it may be called on any goroutine.
func (x *messageRun) noError(err error) {
	x.Helper()
	if err != nil {
		x.Error(err)
	}
}

// run sends the messages and injects the fault, and waits until both ends are idle.
func (x *messageRun) run() {
	sends, receives := x.workRequests()
	if !x.c.late && len(receives) > 0 {
		_, err := x.nodes[1].qp.PostRecv(receives...)
		check(x.T, err)
		receives = nil
	}
	var wg sync.WaitGroup
	wg.Go(func() { x.postReceives(receives) })
	wg.Go(x.injectFault)
	wg.Go(func() { x.post(sends) })
	wg.Wait()
	if a := x.nodes[0]; x.c.fault.kind == faultDestroy {
		x.pause(x.c.random(4), 3*time.Millisecond)
		check(x.T, a.qp.Destroy())
		a.qp = a.newQP(x.s)
	} else {
		x.done = a.poll(len(sends))
	}
	time.Sleep(time.Second) // for packets that are late or repeated
	synctest.Wait()
	for wc := make([]ib.WC, 64); ; {
		n, err := x.nodes[1].cq.Poll(wc)
		check(x.T, err)
		if n == 0 {
			return
		}
		x.received = append(x.received, wc[:n]...)
	}
}

// pause returns at a random moment within a duration. On the shortcut packets take no virtual time, so it mostly yields
// to the goroutines that send them.
func (x *messageRun) pause(r *rand.Rand, most time.Duration) {
	if x.c.way == wayWire || r.IntN(4) == 0 {
		time.Sleep(time.Duration(r.Int64N(int64(most))))
	}
	for range r.IntN(2000) {
		runtime.Gosched()
	}
}

// postReceives posts late receives one by one.
func (x *messageRun) postReceives(receives []ib.RecvWR) {
	r := x.c.random(5)
	for _, wr := range receives {
		if r.IntN(2) == 0 {
			time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond)
		}
		_, err := x.nodes[1].qp.PostRecv(wr)
		x.noError(err)
	}
}

// post posts the work requests, some of them together.
func (x *messageRun) post(sends []ib.SendWR) {
	r := x.c.random(6)
	for len(sends) > 0 {
		n := 1 + r.IntN(len(sends))
		_, err := x.nodes[0].qp.PostSend(sends[:n]...)
		x.noError(err)
		sends = sends[n:]
		if r.IntN(2) == 0 {
			time.Sleep(time.Duration(r.IntN(100)) * time.Microsecond)
		}
		if r.IntN(3) == 0 {
			x.verify()
		}
	}
}

// verify checks the state of the transport's sender, and returns the number of bytes in flight.
func (x *messageRun) verify() (inFlight int) {
	qp := qpOf(x.nodes[0].qp)
	qp.exclusively(func(*pass) {
		if qp.state == ib.QPRTS && x.c.reliable() {
			x.noError(qp.req.snd.Verify())
			inFlight = qp.req.snd.Status().InFlight
		}
	})
	return inFlight
}

// injectFault injects a fault that occurs at a random moment.
func (x *messageRun) injectFault() {
	r, end := x.c.random(7), x.c.fault.end
	n := x.nodes[end]
	switch x.c.fault.kind {
	case faultDereg:
		x.pause(r, 3*time.Millisecond)
		m := x.regions[end][victimRegion]
		x.noError(m.Dereg())
		n.mrs = slices.DeleteFunc(n.mrs, func(o *ib.MR) bool { return o == m })
	case faultError:
		x.pause(r, 3*time.Millisecond)
		x.noError(n.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	case faultDrain:
		for range 3 {
			if x.c.reliable() {
				x.pause(r, time.Millisecond)
				x.drain(n.qp)
			}
		}
	case faultWay:
		for range 10 {
			x.pause(r, 300*time.Microsecond)
			x.changeWay(r)
		}
		x.network.Clear()
	}
}

// drain takes a queue pair to SQD and, when its messages are done, back to RTS.
func (x *messageRun) drain(qp *ib.QP) {
	x.noError(qp.Modify(ib.QPAttr{State: ib.QPSQD}, ib.QPAttrState))
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Microsecond) {
		a, _, err := qp.Query(ib.QPAttrState)
		x.noError(err)
		if a.State == ib.QPSQD && !a.SQDraining {
			break
		}
		if time.Now().After(deadline) {
			x.Errorf("after a minute in SQD: state %v, draining %t", a.State, a.SQDraining)
			return
		}
	}
	x.noError(qp.Modify(ib.QPAttr{State: ib.QPRTS, CurState: ib.QPSQD}, ib.QPAttrState|ib.QPAttrCurState))
}

// changeWay changes one thing that the way of packets depends on.
func (x *messageRun) changeWay(r *rand.Rand) {
	n, on := x.nodes[r.IntN(2)], r.IntN(2) == 0
	switch r.IntN(6) {
	case 0, 1:
		n.dev.SetShortcut(on)
	case 2:
		if x.c.reliable() {
			x.noError(x.network.Add(link.Rule{Drop: 0.3, Limit: 10}))
		}
	case 3:
		x.network.Clear()
	case 4:
		x.noError(n.dev.TraceQP(n.qp.Num(), on))
	case 5:
		n.dev.taps.Add(&readingTap{})
	}
}

// check compares the result of the run with the model.
func (x *messageRun) check() {
	x.checkCompletions()
	certain := x.checkOutcome()
	for i, m := range x.c.messages {
		x.checkMessage(i, m, certain)
	}
	for end, n := range x.nodes {
		if !bytes.Equal(n.buf, x.before[end]) {
			i := firstDifference(n.buf, x.before[end])
			x.Fatalf("end %d: byte %d, of no message: got %#x, want %#x", end, i, n.buf[i], x.before[end][i])
		}
	}
	if x.c.delivers() {
		x.checkReceives()
	}
	if x.status == ib.WCSuccess {
		if n := x.verify(); n != 0 {
			x.Fatalf("in flight at the end: %d", n)
		}
	}
}

// checkCompletions checks that work requests complete in order: with success, then one with an error, then flushed.
func (x *messageRun) checkCompletions() {
	x.status = ib.WCSuccess
	for i, wc := range x.done {
		if wc.ID != uint64(i) {
			x.Fatalf("completion %d: got work request %d", i, wc.ID)
		}
		switch {
		case x.status != ib.WCSuccess && wc.Status != ib.WCWRFlushErr:
			x.Fatalf("work request %d: got %v after %v", i, wc.Status, x.status)
		case x.status == ib.WCSuccess && wc.Status != ib.WCSuccess:
			x.succeeded, x.status = i, wc.Status
		}
	}
	if x.status == ib.WCSuccess {
		x.succeeded = len(x.done)
	}
}

// checkOutcome checks the status of the first work request that failed. It reports whether that must be the victim.
func (x *messageRun) checkOutcome() (certain bool) {
	statuses, certain := x.c.outcome()
	if !slices.Contains(statuses, x.status) {
		x.Fatalf("work request %d: got %v, want one of %v", x.succeeded, x.status, statuses)
	}
	certain = certain && x.status != ib.WCRetryExcErr
	if certain && x.succeeded != x.c.victim {
		x.Fatalf("work request %d: got %v, want message %d to fail", x.succeeded, x.status, x.c.victim)
	}
	return certain
}

// checkMessage checks the bytes of a message at its target, and restores those that were there before. If certain is
// set, the messages behind the victim must not have arrived.
func (x *messageRun) checkMessage(i int, m *message, certain bool) {
	from, to := m.ends()
	got, before, sent := m.in(x.nodes[to].buf), m.in(x.before[to]), m.in(x.before[from])
	defer copy(got, before)
	if m.scatters() && !x.c.delivers() {
		return // it may have taken the receive of a message that was lost
	}
	arrived := x.compare(i, m, got, before, sent)
	switch {
	case i < x.succeeded && arrived < m.size && x.c.delivers():
		x.Fatalf("message %d (%v): %d bytes arrived, want %d after success", i, m.op, arrived, m.size)
	case certain && i > x.succeeded && arrived > 0 && x.c.messages[x.c.victim].op != ib.WRRDMARead:
		// Behind a READ, whose response cannot be stored, others have been sent.
		x.Fatalf("message %d (%v, %d bytes): %d bytes arrived, want 0 after the failure of %d",
			i, m.op, m.size, arrived, x.succeeded)
	}
}

// compare returns how many bytes of a message have arrived: each is as sent or as before.
func (x *messageRun) compare(i int, m *message, got, before, sent []byte) (arrived int) {
	if bytes.Equal(got, before) {
		return 0
	}
	if !m.fails() && bytes.Equal(got, sent) {
		return m.size
	}
	for k := range got {
		switch {
		case got[k] == before[k]:
		case got[k] != sent[k]:
			x.Fatalf("message %d (%v, %d bytes): byte %d: got %#x, want %#x as before or %#x as sent",
				i, m.op, m.size, k, got[k], before[k], sent[k])
		case k >= m.deliverable:
			x.Fatalf("message %d (%v, %d bytes): byte %d arrived, want %d bytes at most",
				i, m.op, m.size, k, m.deliverable)
		default:
			arrived++
		}
	}
	return arrived
}

// checkReceives checks that receives complete in the order of the messages, and those of messages that succeeded with
// success.
func (x *messageRun) checkReceives() {
	var want, got []int // messages
	succeeded := 0
	for i, m := range x.c.messages {
		if m.takesReceive() {
			if want = append(want, i); i < x.succeeded {
				succeeded++
			}
		}
	}
	for _, wc := range x.received {
		if wc.Status != ib.WCSuccess {
			break // the rest are flushed
		}
		got = append(got, int(wc.ID))
		m := x.c.messages[wc.ID]
		if m.fails() {
			x.Fatalf("receive %d: got success, and only %d of %d bytes can arrive", wc.ID, m.deliverable, m.size)
		}
		if int(wc.ByteLen) != m.size {
			x.Fatalf("receive %d: got %d bytes, want %d", wc.ID, wc.ByteLen, m.size)
		}
		if m.op != ib.WRSend && uint64(wc.Imm) != wc.ID {
			x.Fatalf("receive %d: got immediate data %d", wc.ID, wc.Imm)
		}
	}
	if len(got) < succeeded || len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
		x.Fatalf("receives: got %v, want %v, the first %d at least", got, want, succeeded)
	}
	for _, wc := range x.received[len(got):] {
		if wc.Status == ib.WCSuccess {
			x.Fatalf("receive %d: got %v after an error", wc.ID, wc.Status)
		}
	}
}
