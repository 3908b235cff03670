package weak_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/ibtest"
	"verbena/ib/weak"
	"verbena/internal/gendoc"
	"verbena/internal/testutil"
)

// litmus is a pair of consumer programs for a row of the table. One program relies only on the specification; the other
// has the misuse that the row exposes.
type litmus struct {
	choice weak.Choice
	misuse string
	use    func(w *world, wrong bool) error
}

// run runs one of the programs on a device in virtual time.
func (l litmus) run(t *testing.T, d ibtest.NewDevice, wrong bool) (err error) {
	synctest.Test(t, func(t *testing.T) { err = l.use(newWorld(t, d), wrong) })
	return err
}

var litmuses = []litmus{
	{weak.LateCompletion, "polls once when the message must have arrived", pollsOnce},
	{weak.MissedCompletion, "arms an empty queue, and waits for the handler", armsAndWaits},
	{weak.CrossOrder, "treats a completion of one queue pair as proof of an earlier request on another queue pair", ordersQueuePairs},
	{weak.LateFlush, "treats the receives as flushed when Modify has returned", drainsByModify},
	{weak.PoisonedFields, "adds up the lengths of completions, and reads the status afterwards", lengthBeforeStatus},
	{weak.PoisonedFields, "detects immediate data by the value, and not by the flags", immediateWithoutFlag},
	{weak.SplitKeys, "names its own memory by the remote key", remoteKeyForLocal},
	{weak.NewKeys, "sends the remote key to the peer once, and changes the region afterwards", staleRemoteKey},
	{weak.NewKeys, "stores the local key of a region, and changes the region", staleLocalKey},
	{weak.ExactRoom, "signals no request", signalsNothing},
	{weak.EarlyNumbers, "does not remove a destroyed queue pair from a table by number", staleNumbers},
	{weak.LateEvent, "destroys a queue pair with a shared receive queue when its last send has been flushed",
		drainsByMarker},
	{weak.LateSource, "fills the buffer again when the post has returned", reusesSource},
	{weak.LateSource, "fills the buffer of a datagram again when the post has returned", reusesDatagram},
	{weak.LateTarget, "reads the memory of a receive when the sender has its completion", readsTargetEarly},
	{weak.LateTarget, "does the same with memory that has all rights, on a connection without rights",
		readsSharedTargetEarly},
	{weak.LateRead, "uses the data of a READ when the peer has responded to a later message", readsReadEarly},
	{weak.LateRead, "sends the data of a READ on without a fence", unfenced},
	{weak.LateRead, "sends the data of an unsignaled READ on without a fence", unfencedUnsignaled},
	{weak.PoisonedTarget, "posts a receive again, and then reads the message", repostsFirst},
	{weak.LastCallback, "frees the state of a handler, and then destroys its queue", freesHandlerFirst},
	{weak.WriteOrder, "waits for the last byte of a WRITE", pollsLastByte},
	{weak.WriteOrder, "waits for the first byte of a WRITE", pollsFirstByte},
	{weak.WriteOrder, "waits for the first byte, and reads the next words", pollsHeader},
	{weak.WriteOrder, "waits for the last byte, and reads the words before", pollsTrailer},
	{weak.SplitAtomic, "adds to a word that a peer's FETCH_ADD adds to", addsByProcessor},
	{weak.SlowMethods, "waits a fixed time for a thread that queries the device", awaitsByTime},
}

// world is a registered device with pairs of connected queue pairs.
type world struct {
	t   testing.TB
	dev *ib.Device
	pd  *ib.PD
	end []func() error
}

func newWorld(t testing.TB, newDevice ibtest.NewDevice) *world {
	h, core := newDevice(t), &ib.Core{}
	w := &world{t: t, dev: h.Device()}
	must(t, core.Register(h))
	var err error
	w.pd, err = w.dev.AllocPD()
	must(t, err)
	w.later(w.pd.Dealloc)
	t.Cleanup(func() {
		for len(w.end) > 0 {
			f := w.end[len(w.end)-1]
			w.end = w.end[:len(w.end)-1]
			if err := f(); err != nil {
				t.Error(err)
			}
		}
		if err := core.Unregister(h); err != nil {
			t.Error(err)
		}
	})
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) later(f func() error) { w.end = append(w.end, f) }

func (w *world) cq() *ib.CQ {
	cq, err := w.dev.CreateCQ(ib.CQInit{Entries: 64})
	must(w.t, err)
	w.later(cq.Destroy)
	return cq
}

// memory is a registered buffer.
type memory struct {
	b  []byte
	mr *ib.MR
}

func (w *world) memory(access ib.AccessFlags) *memory { return w.buffer(make([]byte, 64), access) }

func (w *world) buffer(b []byte, access ib.AccessFlags) *memory {
	m := &memory{b: b}
	var err error
	m.mr, err = w.pd.RegBytes(m.b, access)
	must(w.t, err)
	w.later(m.mr.Dereg)
	return m
}

func (m *memory) sgl() []ib.SGE { return m.elements(m.mr.LKey()) }

func (m *memory) elements(key uint32) []ib.SGE {
	return []ib.SGE{{Addr: m.mr.Addr(), Length: uint32(len(m.b)), LKey: key}}
}

// to returns a work request for a transfer of from to the whole buffer of a peer.
func (m *memory) to(op ib.WROpcode, from *memory) ib.SendWR {
	return ib.SendWR{Opcode: op, Flags: ib.SendSignaled, SGList: from.sgl(), RemoteAddr: m.mr.Addr(), RKey: m.mr.RKey()}
}

const (
	private = ib.AccessLocalWrite
	shared  = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead
)

// side is a queue pair with its completion queues.
type side struct {
	w          *world
	qp         *ib.QP
	send, recv *ib.CQ
}

const queueLen = 8

func (w *world) side(send, recv *ib.CQ) *side { return w.sideOf(send, recv, 1) }

// sideOf returns a side with receives of up to sges elements.
func (w *world) sideOf(send, recv *ib.CQ, sges uint32) *side {
	qp, err := w.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: send, RecvCQ: recv,
		Cap: ib.QPCap{MaxSendWR: queueLen, MaxRecvWR: queueLen, MaxSendSGE: 1, MaxRecvSGE: sges}})
	must(w.t, err)
	w.later(qp.Destroy)
	return &side{w, qp, send, recv}
}

func (w *world) connect(a, b *side) { w.connectWith(a, b, ib.AccessRemoteWrite|ib.AccessRemoteRead) }

// connectWith connects two sides with rights for each other.
func (w *world) connectWith(a, b *side, rights ib.AccessFlags) {
	here, err := w.dev.Local(1)
	must(w.t, err)
	ea, eb := here.Endpoint(a.qp), here.Endpoint(b.qp)
	path := ib.Path{Access: rights}
	must(w.t, errors.Join(a.qp.Connect(here, ea, eb, path), b.qp.Connect(here, eb, ea, path)))
}

// pair returns two connected sides, each with its own completion queues.
func (w *world) pair() (a, b *side) { return w.pairOf(1) }

// pairOf returns a pair with receives of up to sges elements.
func (w *world) pairOf(sges uint32) (a, b *side) {
	a, b = w.sideOf(w.cq(), w.cq(), sges), w.sideOf(w.cq(), w.cq(), sges)
	w.connect(a, b)
	return a, b
}

func (s *side) post(wr ib.SendWR) {
	s.w.t.Helper()
	_, err := s.qp.PostSend(wr)
	must(s.w.t, err)
}

// done posts a work request and returns an error unless the request succeeds.
func (s *side) done(wr ib.SendWR) error {
	s.w.t.Helper()
	s.post(wr)
	if wc := s.w.wait(s.send, 1)[0]; wc.Status != ib.WCSuccess {
		return fmt.Errorf("opcode %d: %v", wr.Opcode, wc.Status)
	}
	return nil
}

func (s *side) receive(id uint64, m *memory) {
	s.w.t.Helper()
	_, err := s.qp.PostRecv(ib.RecvWR{ID: id, SGList: m.sgl()})
	must(s.w.t, err)
}

// wait polls until it has received n completions.
func (w *world) wait(cq *ib.CQ, n int) (all []ib.WC) {
	w.t.Helper()
	if !testutil.Poll(func() bool {
		var wc [4]ib.WC
		k, err := cq.Poll(wc[:min(len(wc), n-len(all))])
		must(w.t, err)
		all = append(all, wc[:k]...)
		return len(all) == n
	}) {
		w.t.Fatalf("got %d of %d completions", len(all), n)
	}
	return all
}

// settle waits longer than any delay of the device.
func settle() { testutil.Advance(5 * time.Millisecond) }

func fill(b []byte, with byte) {
	for i := range b {
		b[i] = with
	}
}

func pollsOnce(w *world, wrong bool) error {
	a, b := w.pair()
	from, to := w.memory(shared), w.memory(shared)
	for i := range queueLen {
		b.receive(uint64(i), to)
		a.post(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.sgl()})
	}
	if !wrong {
		w.wait(b.recv, queueLen)
		return nil
	}
	settle()
	var wc [queueLen]ib.WC
	if n, err := b.recv.Poll(wc[:]); n < queueLen || err != nil {
		return fmt.Errorf("got %d of %d messages, %v", n, queueLen, err)
	}
	return nil
}

func armsAndWaits(w *world, wrong bool) error {
	calls := make(chan int, 1)
	cq, err := w.dev.CreateCQ(ib.CQInit{Entries: 4, Handler: func(*ib.CQ) {
		select {
		case calls <- 1:
		default:
		}
	}})
	must(w.t, err)
	w.later(cq.Destroy)
	a, b := w.side(cq, w.cq()), w.side(w.cq(), w.cq())
	w.connect(a, b)
	from, to := w.memory(shared), w.memory(shared)
	for i := range 2 * queueLen {
		a.post(to.to(ib.WRRDMAWrite, from))
		settle()
		for done := false; !done; {
			var wc [1]ib.WC
			n, err := cq.Poll(wc[:])
			must(w.t, err)
			if done = n > 0; done {
				break
			}
			flags := ib.NotifyNextComp
			if !wrong {
				flags |= ib.NotifyReportMissed
			}
			missed, err := cq.ReqNotify(flags)
			if must(w.t, err); missed {
				continue
			}
			select {
			case <-calls:
			case <-time.After(time.Second):
				w.wait(cq, 1)
				return fmt.Errorf("completion %d arrived without a handler call", i)
			}
		}
	}
	return nil
}

func ordersQueuePairs(w *world, wrong bool) error {
	cq := w.cq()
	first, second := w.side(cq, w.cq()), w.side(cq, w.cq())
	p, q := w.side(w.cq(), w.cq()), w.side(w.cq(), w.cq())
	w.connect(first, p)
	w.connect(second, q)
	from, to := w.memory(shared), w.memory(shared)
	for i := range uint64(queueLen) {
		for id, s := range []*side{first, second} {
			wr := to.to(ib.WRRDMAWrite, from)
			wr.ID = 2*i + uint64(id)
			s.post(wr)
		}
		settle()
		done := map[uint64]bool{}
		for _, wc := range w.wait(cq, 2) {
			done[wc.ID] = true
			if wrong && wc.ID == 2*i+1 && !done[2*i] {
				return fmt.Errorf("request %d of the second queue pair has completed before the earlier request of the first "+
					"queue pair", i)
			}
		}
	}
	return nil
}

func drainsByModify(w *world, wrong bool) error {
	_, b := w.pair()
	to := w.memory(shared)
	for i := range 4 {
		b.receive(uint64(i), to)
	}
	must(w.t, b.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	if !wrong {
		w.wait(b.recv, 4)
		return nil
	}
	settle()
	var wc [4]ib.WC
	if n, err := b.recv.Poll(wc[:]); n < len(wc) || err != nil {
		return fmt.Errorf("flushed receives: got %d, want %d, error %v", n, len(wc), err)
	}
	return nil
}

func lengthBeforeStatus(w *world, wrong bool) error {
	_, b := w.pair()
	to := w.memory(shared)
	b.receive(1, to)
	must(w.t, b.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	received := 0
	for _, wc := range w.wait(b.recv, 1) {
		if wrong || wc.Status == ib.WCSuccess {
			received += int(wc.ByteLen)
		}
	}
	if received != 0 {
		return fmt.Errorf("received bytes: got %d, want 0 because none were sent", received)
	}
	return nil
}

func immediateWithoutFlag(w *world, wrong bool) error {
	a, b := w.pair()
	from, to := w.memory(shared), w.memory(shared)
	for i, op := range []ib.WROpcode{ib.WRSend, ib.WRSendWithImm} {
		b.receive(uint64(i), to)
		a.post(ib.SendWR{Opcode: op, Flags: ib.SendSignaled, SGList: from.sgl(), Imm: uint32(i)})
		wc := w.wait(b.recv, 1)[0]
		has := wc.Flags&ib.WCWithImm != 0
		if wrong {
			has = wc.Imm != 0
		}
		if has != (op == ib.WRSendWithImm) || has && wc.Imm != uint32(i) {
			return fmt.Errorf("%v: got immediate data %v with value %#x", op, has, wc.Imm)
		}
	}
	return nil
}

func remoteKeyForLocal(w *world, wrong bool) error {
	a, _ := w.pair()
	from, to := w.memory(shared), w.memory(shared)
	wr := to.to(ib.WRRDMAWrite, from)
	if wrong {
		wr.SGList = from.elements(from.mr.RKey())
	}
	return a.done(wr)
}

// changed changes the rights of a region and then restores them.
func (m *memory) changed() error {
	return errors.Join(m.mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: private}),
		m.mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: shared}))
}

func staleRemoteKey(w *world, wrong bool) error {
	a, _ := w.pair()
	from, to := w.memory(shared), w.memory(shared)
	key := to.mr.RKey()
	must(w.t, to.changed())
	wr := to.to(ib.WRRDMAWrite, from)
	if wrong {
		wr.RKey = key
	}
	return a.done(wr)
}

func staleLocalKey(w *world, wrong bool) error {
	a, _ := w.pair()
	from, to := w.memory(shared), w.memory(shared)
	list := from.sgl()
	must(w.t, from.changed())
	wr := to.to(ib.WRRDMAWrite, from)
	if wrong {
		wr.SGList = list
	}
	return a.done(wr)
}

func signalsNothing(w *world, wrong bool) error {
	a, _ := w.pair()
	from, to := w.memory(shared), w.memory(shared)
	for i := range 3 * queueLen {
		wr := to.to(ib.WRRDMAWrite, from)
		signaled := !wrong && i%queueLen == queueLen-1
		if !signaled {
			wr.Flags = 0
		}
		if _, err := a.qp.PostSend(wr); err != nil {
			return err
		}
		if signaled {
			w.wait(a.send, 1)
		}
		if i%queueLen == queueLen-1 {
			settle() // the device has completed all requests
		}
	}
	return nil
}

func staleNumbers(w *world, wrong bool) error {
	peers := map[uint32]int{}
	cq := w.cq()
	for i := range 3 {
		qp, err := w.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: cq, RecvCQ: cq,
			Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1}})
		must(w.t, err)
		if old, ok := peers[qp.Num()]; ok {
			must(w.t, qp.Destroy())
			return fmt.Errorf("queue pair number %d of connection %d is already the number in connection %d", qp.Num(), i, old)
		}
		peers[qp.Num()] = i
		if !wrong {
			delete(peers, qp.Num())
		}
		must(w.t, qp.Destroy())
	}
	return nil
}

func reusesSource(w *world, wrong bool) error {
	a, b := w.pair()
	from := w.memory(shared)
	for i := range queueLen {
		to := w.memory(shared)
		b.receive(uint64(i), to)
		fill(from.b, byte(i+1))
		a.post(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.sgl()})
		if !wrong {
			w.wait(a.send, 1)
		}
		fill(from.b, 0xff)
		if wrong {
			w.wait(a.send, 1)
		}
		w.wait(b.recv, 1)
		if to.b[0] != byte(i+1) {
			return fmt.Errorf("message %d arrived as %#x", i+1, to.b[0])
		}
	}
	return nil
}

func reusesDatagram(w *world, wrong bool) error {
	cap := ib.QPCap{MaxSendWR: queueLen, MaxRecvWR: queueLen, MaxSendSGE: 1, MaxRecvSGE: 1}
	send, recv := w.cq(), w.cq()
	qp, err := w.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeUD, SendCQ: send, RecvCQ: recv, Cap: cap})
	must(w.t, err)
	w.later(qp.Destroy)
	here, err := w.dev.Local(1)
	must(w.t, err)
	must(w.t, qp.ConnectDatagram(here, ib.Endpoint{QKey: 1}))
	address := here.AddressTo(here.GID)
	from := w.memory(private)
	for i := range queueLen {
		to := w.buffer(make([]byte, 40+len(from.b)), private) // the global route header precedes the data
		_, err := qp.PostRecv(ib.RecvWR{SGList: to.sgl()})
		must(w.t, err)
		fill(from.b, byte(i+1))
		ah, err := w.pd.CreateAH(&address)
		must(w.t, err)
		_, err = qp.PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.sgl(), AH: ah,
			RemoteQPN: qp.Num(), RemoteQKey: 1})
		must(w.t, errors.Join(err, ah.Destroy())) // the post does not retain the address handle
		if !wrong {
			w.wait(send, 1)
		}
		fill(from.b, 0xff)
		if wrong {
			w.wait(send, 1)
		}
		w.wait(recv, 1)
		if to.b[40] != byte(i+1) {
			return fmt.Errorf("datagram %d arrived as %#x", i+1, to.b[40])
		}
	}
	return nil
}

func drainsByMarker(w *world, wrong bool) error {
	srq, err := w.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: queueLen, MaxSGE: 1}})
	must(w.t, err)
	w.later(srq.Destroy)
	last := make(chan int, 1)
	cq := w.cq()
	qp, err := w.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: cq, RecvCQ: cq, SRQ: srq,
		Cap: ib.QPCap{MaxSendWR: 1},
		Event: func(_ *ib.QP, e ib.EventType) {
			if e == ib.EventQPLastWQEReached {
				last <- 1
			}
		}})
	must(w.t, err)
	w.later(qp.Destroy)
	here, err := w.dev.Local(1)
	must(w.t, err)
	self := here.Endpoint(qp)
	must(w.t, errors.Join(qp.Connect(here, self, self, ib.Path{}), qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)))
	if !wrong {
		<-last
		return nil
	}
	_, err = qp.PostSend(ib.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled})
	must(w.t, err)
	w.wait(cq, 1)
	select {
	case <-last:
		return nil
	case <-time.After(time.Millisecond):
		return errors.New("EventQPLastWQEReached has not been reported")
	}
}

func readsTargetEarly(w *world, wrong bool) error {
	a, b := w.pair()
	return w.looks(a, b, w.memory(private), wrong)
}

func readsSharedTargetEarly(w *world, wrong bool) error {
	a, b := w.side(w.cq(), w.cq()), w.side(w.cq(), w.cq())
	w.connectWith(a, b, 0)
	return w.looks(a, b, w.memory(shared), wrong)
}

// at reads memory that the device may write at the same time.
//
//go:norace
func at(b []byte, i int) byte { return b[i] }

func pollsLastByte(w *world, wrong bool) error { return pollsByte(w, wrong, 63, 0) }

func pollsFirstByte(w *world, wrong bool) error { return pollsByte(w, wrong, 0, 63) }

func pollsHeader(w *world, wrong bool) error { return pollsByte(w, wrong, 0, 24) }

func pollsTrailer(w *world, wrong bool) error { return pollsByte(w, wrong, 63, 40) }

// increment adds 1 to a word. increment hides the data race with the device from the race detector.
//
//go:norace
func increment(b []byte) { (*[8]byte)(b)[0]++ }

func addsByProcessor(w *world, wrong bool) error {
	a, b := w.side(w.cq(), w.cq()), w.side(w.cq(), w.cq())
	w.connectWith(a, b, ib.AccessRemoteAtomic)
	old, word := w.buffer(make([]byte, 8), private), w.buffer(make([]byte, 8), ib.AccessLocalWrite|ib.AccessRemoteAtomic)
	const n = 16
	for range n {
		add := word.to(ib.WRAtomicFetchAdd, old)
		add.CompareAdd = 1
		a.post(add)
		if wrong {
			settleBriefly()
			increment(word.b)
		}
		if wc := w.wait(a.send, 1)[0]; wc.Status != ib.WCSuccess {
			return fmt.Errorf("atomic: %v", wc.Status)
		}
		if !wrong {
			increment(word.b)
		}
	}
	if got := at(word.b, 0); got != 2*n {
		return fmt.Errorf("word: got %d, want %d", got, 2*n)
	}
	return nil
}

// settleBriefly waits for the execution of a request, but less than a step of the device.
func settleBriefly() { testutil.Advance(50 * time.Microsecond) }

// pollsByte polls one byte of the target of WRITEs, and then reads another one.
func pollsByte(w *world, wrong bool, polled, other int) error {
	a, _ := w.pair()
	from, to := w.memory(shared), w.memory(shared)
	for i := range byte(2 * queueLen) {
		fill(from.b, i+1)
		a.post(to.to(ib.WRRDMAWrite, from))
		early := false
		if wrong && testutil.Poll(func() bool { return at(to.b, polled) == i+1 }) {
			early = at(to.b, other) != i+1
		}
		if wc := w.wait(a.send, 1)[0]; wc.Status != ib.WCSuccess {
			return fmt.Errorf("write: %v", wc.Status)
		}
		if early || bytes.Count(to.b, []byte{i + 1}) != len(to.b) {
			return fmt.Errorf("write %d is not complete", i)
		}
	}
	return nil
}

func freesHandlerFirst(w *world, wrong bool) error {
	var mu sync.Mutex
	freed, used := false, false
	cq, err := w.dev.CreateCQ(ib.CQInit{Entries: 4, Handler: func(cq *ib.CQ) {
		mu.Lock()
		used = used || freed
		mu.Unlock()
		var wc [1]ib.WC
		if _, err := cq.Poll(wc[:]); err != nil {
			w.t.Error(err)
		}
		_, _ = cq.ReqNotify(ib.NotifyNextComp)
	}})
	must(w.t, err)
	_, err = cq.ReqNotify(ib.NotifyNextComp)
	must(w.t, err)
	mu.Lock()
	freed = wrong
	mu.Unlock()
	must(w.t, cq.Destroy())
	if used {
		return errors.New("the handler used freed state")
	}
	return nil
}

// TestPendingEvent tests that a pending event of the device begins before the end of an event function.
func TestPendingEvent(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			h, core := wrapped(newLoopback, weak.Config{Seed: 1})(t), &ib.Core{}
			check.On(core, check.Config{Report: func(v check.Violation) { t.Error(v) }})
			must(t, core.Register(h))
			called := false
			stop := h.Device().OnEvent(func(ib.Event) { called = true })
			h.DispatchEvent(ib.EventGIDChange, 1)
			stop()
			if !called {
				t.Error("event function: got no call before the end, want one")
			}
			must(t, core.Unregister(h))
		})
	}
}

func repostsFirst(w *world, wrong bool) error {
	a, b := w.pair()
	from, to := w.memory(shared), w.memory(private)
	fill(from.b, 7)
	fill(to.b[32:], 9)
	b.receive(1, to)
	short := ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.sgl()}
	short.SGList[0].Length = 32
	a.post(short)
	w.wait(a.send, 1)
	w.wait(b.recv, 1)
	if wrong {
		b.receive(2, to)
	}
	if bytes.Count(to.b, []byte{7}) != 32 {
		return errors.New("the message is not there")
	}
	if !wrong {
		b.receive(2, to)
	}
	must(w.t, b.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	w.wait(b.recv, 1)
	if bytes.Count(to.b, []byte{7}) != 32 || bytes.Count(to.b, []byte{9}) != 32 {
		return errors.New("the receive changed memory, and no message arrived")
	}
	return nil
}

// looks reads the target memory of a receive.
func (w *world) looks(a, b *side, to *memory, wrong bool) error {
	from := w.memory(shared)
	fill(from.b, 7)
	b.receive(1, to)
	a.post(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.sgl()})
	w.wait(a.send, 1)
	if !wrong {
		w.wait(b.recv, 1)
	}
	if !bytes.Equal(to.b, from.b) {
		return errors.New("the message has not arrived")
	}
	w.wait(b.recv, btoi(wrong))
	return nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func readsReadEarly(w *world, wrong bool) error {
	a, b := w.pair()
	remote, target, message := w.memory(shared), w.memory(private), w.memory(shared)
	fill(remote.b, 7)
	a.receive(1, message)
	b.receive(1, message)
	a.post(remote.to(ib.WRRDMARead, target))
	a.post(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: message.sgl()})
	w.wait(b.recv, 1)
	b.post(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: message.sgl()})
	w.wait(a.recv, 1) // the reply
	if !wrong {
		w.wait(a.send, 1)
	}
	if !bytes.Equal(target.b, remote.b) {
		return errors.New("the data of the READ have not arrived")
	}
	return nil
}

func unfenced(w *world, wrong bool) error { return sendsOn(w, wrong, ib.SendSignaled) }

func unfencedUnsignaled(w *world, wrong bool) error { return sendsOn(w, wrong, 0) }

// sendsOn writes data to a peer after reading the same data from the peer.
func sendsOn(w *world, wrong bool, read ib.SendFlags) error {
	a, _ := w.pair()
	remote, buf, to := w.memory(shared), w.memory(private), w.memory(shared)
	fill(remote.b, 7)
	wr := remote.to(ib.WRRDMARead, buf)
	wr.Flags = read
	a.post(wr)
	wr = to.to(ib.WRRDMAWrite, buf)
	if !wrong {
		wr.Flags |= ib.SendFence
	}
	a.post(wr)
	n := 1
	if read&ib.SendSignaled != 0 {
		n = 2
	}
	for _, wc := range w.wait(a.send, n) {
		if wc.Status != ib.WCSuccess {
			return fmt.Errorf("%v", wc.Status)
		}
	}
	if !bytes.Equal(buf.b, remote.b) {
		return errors.New("the data of the READ have not arrived")
	}
	if !bytes.Equal(to.b, remote.b) {
		return errors.New("the data sent on are older than the READ")
	}
	return nil
}

func awaitsByTime(w *world, wrong bool) error {
	done := make(chan int)
	go func() {
		defer close(done)
		for range 200 {
			_, _ = w.dev.QueryPort(1)
		}
	}()
	defer func() { <-done }()
	if !wrong {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-time.After(30 * time.Millisecond):
		return errors.New("the thread has not ended")
	}
}

const litmusSeeds = 5

// TestLitmus runs the incorrect consumer of each row. The consumer must work on a device without the choice and fail on
// a device with the choice. The correct consumer must work on both devices, and on a device with all choices.
func TestLitmus(t *testing.T) {
	for _, l := range litmuses {
		t.Run(weak.Choices[l.choice].Name+"/"+l.misuse, func(t *testing.T) {
			t.Parallel()
			run := func(name string, d ibtest.NewDevice, wrong bool) (err error) {
				t.Run(name, func(t *testing.T) { err = l.run(t, d, wrong) })
				return err
			}
			for _, wrong := range []bool{false, true} {
				if err := run("strong", newLoopback, wrong); err != nil {
					t.Errorf("consumer (incorrect: %v) on a device without the choice: got %v, want nil", wrong, err)
				}
			}
			failed := 0
			for seed := range uint64(litmusSeeds) {
				for _, set := range []weak.Set{weak.Of(l.choice), weak.All} {
					if err := run("right", wrapped(newLoopback, weak.Config{Seed: seed, Choices: set}), false); err != nil {
						t.Errorf("correct consumer with seed %d and choices %b: got %v, want nil", seed, set, err)
					}
				}
				if run("wrong", wrapped(newLoopback, weak.Config{Seed: seed, Choices: weak.Of(l.choice)}), true) != nil {
					failed++
				}
				if err := run("other choices", wrapped(newLoopback,
					weak.Config{Seed: seed, Choices: weak.All &^ weak.Of(l.choice)}), false); err != nil {
					t.Errorf("correct consumer with seed %d without the choice: got %v, want nil", seed, err)
				}
			}
			if failed == 0 {
				t.Errorf("incorrect consumer: got no failure with %d seeds, want at least one", litmusSeeds)
			}
			t.Logf("The incorrect consumer failed with %d of %d seeds.", failed, litmusSeeds)
		})
	}
}

// TestTable checks that each row of the table is complete, has a litmus program, and appears in the documentation.
func TestTable(t *testing.T) {
	names := map[string]bool{}
	var b strings.Builder
	b.WriteString("| choice | the device | permitted by | exposes a consumer that | litmus: the wrong consumer " +
		"|\n|---|---|---|---|---|\n")
	for i, r := range weak.Choices {
		if r.Choice != weak.Choice(i) || r.Name == "" || names[r.Name] || r.Does == "" || r.Permitted == "" ||
			r.Breaks == "" {
			t.Errorf("row %d: got %+v, want all texts present", i, r)
		}
		names[r.Name] = true
		var misuses []string
		for _, l := range litmuses {
			if l.choice == r.Choice {
				misuses = append(misuses, l.misuse)
			}
		}
		if misuses == nil {
			t.Errorf("litmus program for %s: got none, want one", r.Name)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", r.Name, r.Does, r.Permitted, r.Breaks, strings.Join(misuses, "; "))
	}
	gendoc.Check(t, "../../docs/results/weak.md", "weak choices", b.String())
}

// TestReplay checks that the same calls on a device with the same seed have the same results. The test also checks that
// another seed has other results.
func TestReplay(t *testing.T) {
	run := func(seed uint64) (results []string) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, wrapped(newLoopback, weak.Config{Seed: seed}))
			a, b := w.pair()
			from, to := w.memory(shared), w.memory(shared)
			for i := range queueLen {
				b.receive(uint64(i), to)
				a.post(ib.SendWR{ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.sgl()})
			}
			for range 100 {
				for _, cq := range []*ib.CQ{a.send, b.recv} {
					var wc [1]ib.WC
					n, err := cq.Poll(wc[:])
					results = append(results, fmt.Sprint(n, err, wc[0].ID))
				}
				testutil.Advance(time.Microsecond)
			}
		})
		return results
	}
	first := run(1)
	if again := run(1); !slices.Equal(again, first) {
		t.Errorf("second run with the same seed: got %v, want %v", again, first)
	}
	if other := run(2); slices.Equal(other, first) {
		t.Error("run with another seed: got the same choices, want different ones")
	}
}

// TestUnsignaledReadIsNotSeen checks an unsignaled READ with late data. The READ must cause no completion and no
// notification, and occupy no entry of the completion queue.
func TestUnsignaledReadIsNotSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, wrapped(newLoopback, weak.Config{Seed: 1, Choices: weak.Of(weak.LateRead)}))
		calls := make(chan int, queueLen)
		cq, err := w.dev.CreateCQ(ib.CQInit{Entries: queueLen, Handler: func(*ib.CQ) { calls <- 1 }})
		must(t, err)
		w.later(cq.Destroy)
		a, b := w.side(cq, w.cq()), w.side(w.cq(), w.cq())
		w.connect(a, b)
		remote, target := w.memory(shared), w.memory(private)
		fill(remote.b, 7)
		read := remote.to(ib.WRRDMARead, target)
		read.Flags = 0
		arm := func(when string) {
			t.Helper()
			missed, err := cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
			if must(t, err); missed {
				t.Errorf("ReqNotify %s: got missed completions, want none", when)
			}
		}
		a.post(read)
		arm("after a READ")
		a.post(read)
		settle()
		if n := len(calls); n != 0 {
			t.Errorf("calls of the handler: got %d, want 0", n)
		}
		if !bytes.Equal(target.b, make([]byte, len(target.b))) {
			t.Error("data before a completion: got the data of the READ, want zeros")
		}
		a.post(w.memory(shared).to(ib.WRRDMAWrite, remote))
		<-calls
		if wc := w.wait(cq, 1); wc[0].Opcode != ib.WCRDMAWrite {
			t.Errorf("completion: got %v, want %v", wc[0].Opcode, ib.WCRDMAWrite)
		}
		if !bytes.Equal(target.b, remote.b) {
			t.Error("data after the completion of a later request: got other data, want the data of the READ")
		}
		arm("at the end")
	})
}

// TestLitmusOnRXE runs the litmus programs on the driver rxe. The incorrect consumers must fail and the correct
// consumers must work.
func TestLitmusOnRXE(t *testing.T) {
	for _, l := range litmuses {
		if l.choice == weak.EarlyNumbers { // the driver does not implement ib.NumberReuser
			continue
		}
		t.Run(l.misuse, func(t *testing.T) {
			t.Parallel()
			failed := false
			for seed := range uint64(litmusSeeds) {
				t.Run("wrong", func(t *testing.T) {
					err := l.run(t, wrapped(newRXE, weak.Config{Seed: seed, Choices: weak.Of(l.choice)}), true)
					failed = failed || err != nil
				})
			}
			if !failed {
				t.Error("incorrect consumer: got no failure, want one")
			}
			t.Run("right", func(t *testing.T) {
				if err := l.run(t, wrapped(newRXE, weak.Config{Seed: 1}), false); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
