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

// litmusTest is a pair of consumer programs for a row of the table. One program relies only on the specification; the
// other has the misuse that the row exposes.
type litmusTest struct {
	choice weak.Choice
	misuse string
	use    func(w *connectedDevice, wrong bool) error
}

// run runs one of the programs on a device in virtual time.
func (l litmusTest) run(t *testing.T, d ibtest.NewDevice, wrong bool) (err error) {
	synctest.Test(t, func(t *testing.T) { err = l.use(newConnectedDevice(t, d), wrong) })
	return err
}

var litmusTests = []litmusTest{
	{weak.LateCompletion, "polls once when the message must have arrived", pollOnlyOnce},
	{weak.LateCompletion, "polls once for each reply, and ignores an empty poll", pollOncePerReply},
	{weak.MissedCompletion, "arms an empty queue, and waits for the handler", armWithoutReportMissed},
	{weak.CrossOrder, "treats a completion of one queue pair as proof of an earlier request on another queue pair",
		relyOnCrossQPOrder},
	{weak.LateFlush, "treats the receives as flushed when Modify has returned", drainByModifyToErr},
	{weak.PoisonedFields, "adds up the lengths of completions, and reads the status afterwards", readLengthBeforeStatus},
	{weak.PoisonedFields, "finds the request of a failed completion by its opcode", dispatchByOpcode},
	{weak.PoisonedFields, "detects immediate data by the value, and not by the flags", readImmediateWithoutFlag},
	{weak.SplitKeys, "names its own memory by the remote key", useRemoteKeyAsLocal},
	{weak.NewKeys, "sends the remote key to the peer once, and changes the region afterwards", useStaleRemoteKey},
	{weak.NewKeys, "stores the local key of a region, and changes the region", useStaleLocalKey},
	{weak.NewKeys, "sends the remote key to the peer once, and continues after a reset", useRemoteKeyAfterReset},
	{weak.ExactRoom, "signals no request", postOnlyUnsignaledSends},
	{weak.EarlyNumbers, "does not remove a destroyed queue pair from a table by number", useStaleQPNums},
	{weak.LateEvent, "destroys a queue pair with a shared receive queue when its last send has been flushed",
		drainByMarker},
	{weak.LateEvent, "changes attributes in SQD without waiting for EventSQDrained", changeUndrained},
	{weak.LateSource, "fills the buffer again when the post has returned", reuseSourceEarly},
	{weak.LateSource, "fills the buffer of a datagram again when the post has returned", reuseDatagramEarly},
	{weak.LateTarget, "reads the memory of a receive when the sender has its completion", readTargetEarly},
	{weak.LateTarget, "does the same with memory that has all rights, on a connection without rights",
		readSharedTargetEarly},
	{weak.LateRead, "uses the data of a READ when the peer has responded to a later message", useReadDataEarly},
	{weak.LateRead, "sends the data of a READ on without a fence", forwardReadUnfenced},
	{weak.LateRead, "sends the data of an unsignaled READ on without a fence", forwardUnsignaledReadUnfenced},
	{weak.ReadOrder, "sends the reply behind a READ without a fence", replyBehindRead},
	{weak.ReadOrder, "does the same, with memory that is used again some requests later", replyBehindManyReads},
	{weak.ReadLimit, "keeps more READs in flight than the peer has responder resources", tooManyReads},
	{weak.StrictPeer, "connects with another PSN than the peer has announced", otherPSN},
	{weak.StrictPeer, "sends messages longer than the path MTU of the peer", otherMTU},
	{weak.PoisonedTarget, "posts a receive again, and then reads the message", repostBeforeReadingData},
	{weak.LastCallback, "frees the state of a handler, and then destroys its queue", freeHandlerStateFirst},
	{weak.WriteOrder, "waits for the last byte of a WRITE", pollLastByteOfWrite},
	{weak.WriteOrder, "waits for the first byte of a WRITE", pollFirstByteOfWrite},
	{weak.WriteOrder, "waits for the first byte, and reads the next words", pollHeaderOfWrite},
	{weak.WriteOrder, "waits for the last byte, and reads the words before", pollTrailerOfWrite},
	{weak.SplitAtomic, "adds to a word that a peer's FETCH_ADD adds to", incrementByProcessor},
	{weak.LateWrite, "reads the target of a WRITE when the WRITE has completed", readWrittenEarly},
	{weak.RelaxedOrder, "polls the flag of a second WRITE, and reads the data of the first, in regions with relaxed ordering",
		pollSecondWrite},
	{weak.OutOfOrder, "polls the flag of a second WRITE, and reads the data of the first", pollSecondWrite},
	{weak.LimitsEFA, "requests 3 gather elements, and no fewer", requestCap(ib.QPCap{MaxSendSGE: 3})},
	{weak.LimitsEFA, "requests 33 bytes inline, and no fewer", requestCap(ib.QPCap{MaxInlineData: 33})},
	{weak.LimitsMLX5, "keeps 17 READs in flight, and no fewer", requestReads(17)},
	{weak.LimitsBNXT, "requests 7 gather elements, and no fewer", requestCap(ib.QPCap{MaxSendSGE: 7})},
	{weak.SlowMethods, "waits a fixed time for a thread that queries the device", waitFixedTime},
}

// connectedDevice is a registered device with pairs of connected queue pairs.
type connectedDevice struct {
	t         testing.TB
	newDevice ibtest.NewDevice
	dev       *ib.Device
	pd        *ib.PD
	end       []func() error
}

func newConnectedDevice(t testing.TB, newDevice ibtest.NewDevice) *connectedDevice {
	return newConnectedDeviceIn(t, &ib.Core{}, newDevice)
}

func newConnectedDeviceIn(t testing.TB, core *ib.Core, newDevice ibtest.NewDevice) *connectedDevice {
	h := newDevice(t)
	w := &connectedDevice{t: t, newDevice: newDevice, dev: h.Device()}
	must(t, core.Register(h))
	var err error
	w.pd, err = w.dev.AllocPD()
	must(t, err)
	w.addCleanup(w.pd.Dealloc)
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

func (w *connectedDevice) addCleanup(f func() error) { w.end = append(w.end, f) }

func (w *connectedDevice) newCQ() *ib.CQ {
	cq, err := w.dev.CreateCQ(ib.CQInit{Entries: 64})
	must(w.t, err)
	w.addCleanup(cq.Destroy)
	return cq
}

// registeredBuffer is a registered buffer.
type registeredBuffer struct {
	b  []byte
	mr *ib.MR
}

func (w *connectedDevice) newBuffer(access ib.AccessFlags) *registeredBuffer {
	return w.registerBuffer(make([]byte, 64), access)
}

func (w *connectedDevice) registerBuffer(b []byte, access ib.AccessFlags) *registeredBuffer {
	m := &registeredBuffer{b: b}
	var err error
	m.mr, err = w.pd.RegBytes(m.b, access)
	must(w.t, err)
	w.addCleanup(m.mr.Dereg)
	return m
}

func (m *registeredBuffer) fullSGL() []ib.SGE { return m.elementsWithKey(m.mr.LKey()) }

func (m *registeredBuffer) elementsWithKey(key uint32) []ib.SGE {
	return []ib.SGE{{Addr: m.mr.Addr(), Length: uint32(len(m.b)), LKey: key}}
}

// transferTo returns a work request for a transfer of from to the whole buffer of a peer.
func (m *registeredBuffer) transferTo(op ib.WROpcode, from *registeredBuffer) ib.SendWR {
	return ib.SendWR{Opcode: op, Flags: ib.SendSignaled, SGList: from.fullSGL(), RemoteAddr: m.mr.Addr(),
		RKey: m.mr.RKey()}
}

const (
	private = ib.AccessLocalWrite
	shared  = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead
)

// qpSide is a queue pair with its completion queues.
type qpSide struct {
	w          *connectedDevice
	qp         *ib.QP
	send, recv *ib.CQ
}

const queueDepth = 8

func (w *connectedDevice) newSide(send, recv *ib.CQ) *qpSide { return w.newSideWithSGEs(send, recv, 1) }

// newSideWithSGEs returns a side with receives of up to sges elements.
func (w *connectedDevice) newSideWithSGEs(send, recv *ib.CQ, sges uint32) *qpSide {
	qp, err := w.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: send, RecvCQ: recv,
		Cap: ib.QPCap{MaxSendWR: queueDepth, MaxRecvWR: queueDepth, MaxSendSGE: 1, MaxRecvSGE: sges}})
	must(w.t, err)
	w.addCleanup(qp.Destroy)
	return &qpSide{w, qp, send, recv}
}

func (w *connectedDevice) connectSides(a, b *qpSide) {
	w.connectWithRights(a, b, ib.AccessRemoteWrite|ib.AccessRemoteRead)
}

// connectWithRights connects two sides with rights for each other.
func (w *connectedDevice) connectWithRights(a, b *qpSide, rights ib.AccessFlags) {
	here, err := w.dev.Local(1)
	must(w.t, err)
	ea, eb := here.Endpoint(a.qp), here.Endpoint(b.qp)
	path := ib.Path{Access: rights}
	must(w.t, errors.Join(a.qp.Connect(here, ea, eb, path), b.qp.Connect(here, eb, ea, path)))
}

// newPair returns two connected sides, each with its own completion queues.
func (w *connectedDevice) newPair() (a, b *qpSide) { return w.newPairWithSGEs(1) }

// newPairWithSGEs returns a pair with receives of up to sges elements.
func (w *connectedDevice) newPairWithSGEs(sges uint32) (a, b *qpSide) {
	a, b = w.newSideWithSGEs(w.newCQ(), w.newCQ(), sges), w.newSideWithSGEs(w.newCQ(), w.newCQ(), sges)
	w.connectSides(a, b)
	return a, b
}

func (s *qpSide) postSend(wr ib.SendWR) {
	s.w.t.Helper()
	_, err := s.qp.PostSend(wr)
	must(s.w.t, err)
}

// postAndAwait posts a work request and returns an error unless the request succeeds.
func (s *qpSide) postAndAwait(wr ib.SendWR) error {
	s.w.t.Helper()
	s.postSend(wr)
	if wc := s.w.pollCompletions(s.send, 1)[0]; wc.Status != ib.WCSuccess {
		return fmt.Errorf("opcode %d: %v", wr.Opcode, wc.Status)
	}
	return nil
}

func (s *qpSide) postReceive(id uint64, m *registeredBuffer) {
	s.w.t.Helper()
	_, err := s.qp.PostRecv(ib.RecvWR{ID: id, SGList: m.fullSGL()})
	must(s.w.t, err)
}

// pollCompletions polls until it has received n completions.
func (w *connectedDevice) pollCompletions(cq *ib.CQ, n int) (all []ib.WC) {
	w.t.Helper()
	if !testutil.PollUntil(func() bool {
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

// advancePastDelays waits longer than any delay of the device.
func advancePastDelays() { testutil.AdvanceTime(5 * time.Millisecond) }

func fillBytes(b []byte, with byte) {
	for i := range b {
		b[i] = with
	}
}

func pollOnlyOnce(w *connectedDevice, wrong bool) error {
	a, b := w.newPair()
	from, to := w.newBuffer(shared), w.newBuffer(shared)
	for i := range queueDepth {
		b.postReceive(uint64(i), to)
		a.postSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.fullSGL()})
	}
	if !wrong {
		w.pollCompletions(b.recv, queueDepth)
		return nil
	}
	advancePastDelays()
	var wc [queueDepth]ib.WC
	if n, err := b.recv.Poll(wc[:]); n < queueDepth || err != nil {
		return fmt.Errorf("got %d of %d messages, %v", n, queueDepth, err)
	}
	return nil
}

// pollOncePerReply counts the sends whose completions it has not polled, with one poll for each reply.
func pollOncePerReply(w *connectedDevice, wrong bool) error {
	a, b := w.newPair()
	from, to := w.newBuffer(shared), w.newBuffer(shared)
	outstanding := 0
	for i := range 40 {
		if outstanding == queueDepth {
			return fmt.Errorf("the send queue is full after %d messages", i)
		}
		b.postReceive(1, to)
		a.postSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.fullSGL()})
		outstanding++
		w.pollCompletions(b.recv, 1)
		var wc [1]ib.WC
		for polled := false; !polled; polled = polled || wrong || outstanding == 0 {
			n, err := a.send.Poll(wc[:])
			must(w.t, err)
			outstanding -= n
			testutil.AdvanceTime(time.Millisecond)
		}
	}
	return nil
}

func armWithoutReportMissed(w *connectedDevice, wrong bool) error {
	calls := make(chan int, 1)
	cq, err := w.dev.CreateCQ(ib.CQInit{Entries: 4, Handler: func(*ib.CQ) {
		select {
		case calls <- 1:
		default:
		}
	}})
	must(w.t, err)
	w.addCleanup(cq.Destroy)
	a, b := w.newSide(cq, w.newCQ()), w.newSide(w.newCQ(), w.newCQ())
	w.connectSides(a, b)
	from, to := w.newBuffer(shared), w.newBuffer(shared)
	for i := range 2 * queueDepth {
		a.postSend(to.transferTo(ib.WRRDMAWrite, from))
		advancePastDelays()
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
				w.pollCompletions(cq, 1)
				return fmt.Errorf("completion %d arrived without a handler call", i)
			}
		}
	}
	return nil
}

func relyOnCrossQPOrder(w *connectedDevice, wrong bool) error {
	cq := w.newCQ()
	first, second := w.newSide(cq, w.newCQ()), w.newSide(cq, w.newCQ())
	p, q := w.newSide(w.newCQ(), w.newCQ()), w.newSide(w.newCQ(), w.newCQ())
	w.connectSides(first, p)
	w.connectSides(second, q)
	from, to := w.newBuffer(shared), w.newBuffer(shared)
	for i := range uint64(queueDepth) {
		for id, s := range []*qpSide{first, second} {
			wr := to.transferTo(ib.WRRDMAWrite, from)
			wr.ID = 2*i + uint64(id)
			s.postSend(wr)
		}
		advancePastDelays()
		done := map[uint64]bool{}
		for _, wc := range w.pollCompletions(cq, 2) {
			done[wc.ID] = true
			if wrong && wc.ID == 2*i+1 && !done[2*i] {
				return fmt.Errorf("request %d of the second queue pair has completed before the earlier request of the first "+
					"queue pair", i)
			}
		}
	}
	return nil
}

func drainByModifyToErr(w *connectedDevice, wrong bool) error {
	_, b := w.newPair()
	to := w.newBuffer(shared)
	for i := range 4 {
		b.postReceive(uint64(i), to)
	}
	must(w.t, b.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	if !wrong {
		w.pollCompletions(b.recv, 4)
		return nil
	}
	advancePastDelays()
	var wc [4]ib.WC
	if n, err := b.recv.Poll(wc[:]); n < len(wc) || err != nil {
		return fmt.Errorf("flushed receives: got %d, want %d, error %v", n, len(wc), err)
	}
	return nil
}

func readLengthBeforeStatus(w *connectedDevice, wrong bool) error {
	_, b := w.newPair()
	to := w.newBuffer(shared)
	b.postReceive(1, to)
	must(w.t, b.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	received := 0
	for _, wc := range w.pollCompletions(b.recv, 1) {
		if wrong || wc.Status == ib.WCSuccess {
			received += int(wc.ByteLen)
		}
	}
	if received != 0 {
		return fmt.Errorf("received bytes: got %d, want 0 because none were sent", received)
	}
	return nil
}

func dispatchByOpcode(w *connectedDevice, wrong bool) error {
	cq, from := w.newCQ(), w.newBuffer(private)
	a, b := w.newSide(cq, cq), w.newSide(cq, cq)
	w.connectSides(a, b)
	const receiveID = 1 // flushed when the WRITE has failed
	a.postReceive(receiveID, w.newBuffer(private))
	a.postSend(ib.SendWR{ID: 2, Opcode: ib.WRRDMAWrite, SGList: from.fullSGL(), RemoteAddr: from.mr.Addr()})
	receives := 0
	for _, wc := range w.pollCompletions(cq, 2) {
		if wrong && wc.Opcode == ib.WCRecv || !wrong && wc.ID == receiveID {
			receives++
		}
	}
	if receives != 1 {
		return fmt.Errorf("completed receives: got %d, want 1", receives)
	}
	return nil
}

func readImmediateWithoutFlag(w *connectedDevice, wrong bool) error {
	a, b := w.newPair()
	from, to := w.newBuffer(shared), w.newBuffer(shared)
	for i, op := range []ib.WROpcode{ib.WRSend, ib.WRSendWithImm} {
		b.postReceive(uint64(i), to)
		a.postSend(ib.SendWR{Opcode: op, Flags: ib.SendSignaled, SGList: from.fullSGL(), Imm: uint32(i)})
		wc := w.pollCompletions(b.recv, 1)[0]
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

func useRemoteKeyAsLocal(w *connectedDevice, wrong bool) error {
	a, _ := w.newPair()
	from, to := w.newBuffer(shared), w.newBuffer(shared)
	wr := to.transferTo(ib.WRRDMAWrite, from)
	if wrong {
		wr.SGList = from.elementsWithKey(from.mr.RKey())
	}
	return a.postAndAwait(wr)
}

// changeRights changes the rights of a region and then restores them.
func (m *registeredBuffer) changeRights() error {
	return errors.Join(m.mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: private}),
		m.mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: shared}))
}

// changeUndrained changes an attribute of a queue pair in SQD.
func changeUndrained(w *connectedDevice, wrong bool) error {
	a, _ := w.newPair()
	must(w.t, a.qp.Modify(ib.QPAttr{State: ib.QPSQD}, ib.QPAttrState))
	for !wrong {
		attr, _, err := a.qp.Query(ib.QPAttrState)
		must(w.t, err)
		if !attr.SQDraining {
			break
		}
		time.Sleep(time.Millisecond)
	}
	err := a.qp.Modify(ib.QPAttr{MinRNRTimer: 2}, ib.QPAttrMinRNRTimer)
	return errors.Join(err, a.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
}

// useRemoteKeyAfterReset registers memory on the recovered device. The wrong program names it by the key of the device
// before the reset.
func useRemoteKeyAfterReset(w *connectedDevice, wrong bool) error {
	before := w.newBuffer(shared)
	recovered := newConnectedDevice(w.t, w.newDevice)
	to := recovered.newBuffer(shared)
	a, _ := recovered.newPair()
	wr := to.transferTo(ib.WRRDMAWrite, recovered.newBuffer(shared))
	if wrong {
		wr.RKey = before.mr.RKey()
	}
	return a.postAndAwait(wr)
}

func useStaleRemoteKey(w *connectedDevice, wrong bool) error {
	a, _ := w.newPair()
	from, to := w.newBuffer(shared), w.newBuffer(shared)
	key := to.mr.RKey()
	must(w.t, to.changeRights())
	wr := to.transferTo(ib.WRRDMAWrite, from)
	if wrong {
		wr.RKey = key
	}
	return a.postAndAwait(wr)
}

func useStaleLocalKey(w *connectedDevice, wrong bool) error {
	a, _ := w.newPair()
	from, to := w.newBuffer(shared), w.newBuffer(shared)
	list := from.fullSGL()
	must(w.t, from.changeRights())
	wr := to.transferTo(ib.WRRDMAWrite, from)
	if wrong {
		wr.SGList = list
	}
	return a.postAndAwait(wr)
}

func postOnlyUnsignaledSends(w *connectedDevice, wrong bool) error {
	a, _ := w.newPair()
	from, to := w.newBuffer(shared), w.newBuffer(shared)
	for i := range 3 * queueDepth {
		wr := to.transferTo(ib.WRRDMAWrite, from)
		signaled := !wrong && i%queueDepth == queueDepth-1
		if !signaled {
			wr.Flags = 0
		}
		if _, err := a.qp.PostSend(wr); err != nil {
			return err
		}
		if signaled {
			w.pollCompletions(a.send, 1)
		}
		if i%queueDepth == queueDepth-1 {
			advancePastDelays() // the device has completed all requests
		}
	}
	return nil
}

func useStaleQPNums(w *connectedDevice, wrong bool) error {
	peers := map[uint32]int{}
	cq := w.newCQ()
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

func reuseSourceEarly(w *connectedDevice, wrong bool) error {
	a, b := w.newPair()
	from := w.newBuffer(shared)
	for i := range queueDepth {
		to := w.newBuffer(shared)
		b.postReceive(uint64(i), to)
		fillBytes(from.b, byte(i+1))
		a.postSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.fullSGL()})
		if !wrong {
			w.pollCompletions(a.send, 1)
		}
		fillBytes(from.b, 0xff)
		if wrong {
			w.pollCompletions(a.send, 1)
		}
		w.pollCompletions(b.recv, 1)
		if to.b[0] != byte(i+1) {
			return fmt.Errorf("message %d arrived as %#x", i+1, to.b[0])
		}
	}
	return nil
}

func reuseDatagramEarly(w *connectedDevice, wrong bool) error {
	cap := ib.QPCap{MaxSendWR: queueDepth, MaxRecvWR: queueDepth, MaxSendSGE: 1, MaxRecvSGE: 1}
	send, recv := w.newCQ(), w.newCQ()
	qp, err := w.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeUD, SendCQ: send, RecvCQ: recv, Cap: cap})
	must(w.t, err)
	w.addCleanup(qp.Destroy)
	here, err := w.dev.Local(1)
	must(w.t, err)
	must(w.t, qp.ConnectDatagram(here, ib.Endpoint{QKey: 1}))
	address := here.AddressTo(here.GID)
	from := w.newBuffer(private)
	for i := range queueDepth {
		to := w.registerBuffer(make([]byte, 40+len(from.b)), private) // the global route header precedes the data
		_, err := qp.PostRecv(ib.RecvWR{SGList: to.fullSGL()})
		must(w.t, err)
		fillBytes(from.b, byte(i+1))
		ah, err := w.pd.CreateAH(&address)
		must(w.t, err)
		_, err = qp.PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.fullSGL(), AH: ah,
			RemoteQPN: qp.Num(), RemoteQKey: 1})
		must(w.t, errors.Join(err, ah.Destroy())) // the post does not retain the address handle
		if !wrong {
			w.pollCompletions(send, 1)
		}
		fillBytes(from.b, 0xff)
		if wrong {
			w.pollCompletions(send, 1)
		}
		w.pollCompletions(recv, 1)
		if to.b[40] != byte(i+1) {
			return fmt.Errorf("datagram %d arrived as %#x", i+1, to.b[40])
		}
	}
	return nil
}

func drainByMarker(w *connectedDevice, wrong bool) error {
	srq, err := w.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: queueDepth, MaxSGE: 1}})
	must(w.t, err)
	w.addCleanup(srq.Destroy)
	last := make(chan int, 1)
	cq := w.newCQ()
	qp, err := w.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: cq, RecvCQ: cq, SRQ: srq,
		Cap: ib.QPCap{MaxSendWR: 1},
		Event: func(_ *ib.QP, e ib.EventType) {
			if e == ib.EventQPLastWQEReached {
				last <- 1
			}
		}})
	must(w.t, err)
	w.addCleanup(qp.Destroy)
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
	w.pollCompletions(cq, 1)
	select {
	case <-last:
		return nil
	case <-time.After(time.Millisecond):
		return errors.New("EventQPLastWQEReached has not been reported")
	}
}

func readTargetEarly(w *connectedDevice, wrong bool) error {
	a, b := w.newPair()
	return w.readReceiveTarget(a, b, w.newBuffer(private), wrong)
}

func readSharedTargetEarly(w *connectedDevice, wrong bool) error {
	a, b := w.newSide(w.newCQ(), w.newCQ()), w.newSide(w.newCQ(), w.newCQ())
	w.connectWithRights(a, b, 0)
	return w.readReceiveTarget(a, b, w.newBuffer(shared), wrong)
}

// racyByte reads memory that the device may write at the same time.
//
//go:norace
func racyByte(b []byte, i int) byte { return b[i] }

func pollLastByteOfWrite(w *connectedDevice, wrong bool) error {
	return pollByteOfWrite(w, wrong, 63, 0)
}

func pollFirstByteOfWrite(w *connectedDevice, wrong bool) error {
	return pollByteOfWrite(w, wrong, 0, 63)
}

func pollHeaderOfWrite(w *connectedDevice, wrong bool) error { return pollByteOfWrite(w, wrong, 0, 24) }

func pollTrailerOfWrite(w *connectedDevice, wrong bool) error {
	return pollByteOfWrite(w, wrong, 63, 40)
}

// racyIncrement adds 1 to a word. racyIncrement hides the data race with the device from the race detector.
//
//go:norace
func racyIncrement(b []byte) { (*[8]byte)(b)[0]++ }

func incrementByProcessor(w *connectedDevice, wrong bool) error {
	a, b := w.newSide(w.newCQ(), w.newCQ()), w.newSide(w.newCQ(), w.newCQ())
	w.connectWithRights(a, b, ib.AccessRemoteAtomic)
	old, word := w.registerBuffer(make([]byte, 8), private), w.registerBuffer(make([]byte, 8),
		ib.AccessLocalWrite|ib.AccessRemoteAtomic)
	const n = 16
	for range n {
		add := word.transferTo(ib.WRAtomicFetchAdd, old)
		add.CompareAdd = 1
		a.postSend(add)
		if wrong {
			advanceBriefly()
			racyIncrement(word.b)
		}
		if wc := w.pollCompletions(a.send, 1)[0]; wc.Status != ib.WCSuccess {
			return fmt.Errorf("atomic: %v", wc.Status)
		}
		if !wrong {
			racyIncrement(word.b)
		}
	}
	if got := racyByte(word.b, 0); got != 2*n {
		return fmt.Errorf("word: got %d, want %d", got, 2*n)
	}
	return nil
}

// advanceBriefly waits for the execution of a request, but less than a step of the device.
func advanceBriefly() { testutil.AdvanceTime(50 * time.Microsecond) }

// pollByteOfWrite polls one byte of the target of WRITEs, and then reads another one.
func pollByteOfWrite(w *connectedDevice, wrong bool, polled, other int) error {
	a, _ := w.newPair()
	from, to := w.newBuffer(shared), w.newBuffer(shared)
	for i := range byte(2 * queueDepth) {
		fillBytes(from.b, i+1)
		a.postSend(to.transferTo(ib.WRRDMAWrite, from))
		early := false
		if wrong && testutil.PollUntil(func() bool { return racyByte(to.b, polled) == i+1 }) {
			early = racyByte(to.b, other) != i+1
		}
		if wc := w.pollCompletions(a.send, 1)[0]; wc.Status != ib.WCSuccess {
			return fmt.Errorf("write: %v", wc.Status)
		}
		if early || bytes.Count(to.b, []byte{i + 1}) != len(to.b) {
			return fmt.Errorf("write %d is not complete", i)
		}
	}
	return nil
}

func freeHandlerStateFirst(w *connectedDevice, wrong bool) error {
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

// TestPendingEventBeginsBeforeEnd tests that a pending event of the device begins before the end of an event function.
func TestPendingEventBeginsBeforeEnd(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			h, core := newWeakFactory(newLoopback, weak.Config{Seed: 1})(t), &ib.Core{}
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

func repostBeforeReadingData(w *connectedDevice, wrong bool) error {
	a, b := w.newPair()
	from, to := w.newBuffer(shared), w.newBuffer(private)
	fillBytes(from.b, 7)
	fillBytes(to.b[32:], 9)
	b.postReceive(1, to)
	short := ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.fullSGL()}
	short.SGList[0].Length = 32
	a.postSend(short)
	w.pollCompletions(a.send, 1)
	w.pollCompletions(b.recv, 1)
	if wrong {
		b.postReceive(2, to)
	}
	if bytes.Count(to.b, []byte{7}) != 32 {
		return errors.New("the message is not there")
	}
	if !wrong {
		b.postReceive(2, to)
	}
	must(w.t, b.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	w.pollCompletions(b.recv, 1)
	if bytes.Count(to.b, []byte{7}) != 32 || bytes.Count(to.b, []byte{9}) != 32 {
		return errors.New("the receive changed memory, and no message arrived")
	}
	return nil
}

// readReceiveTarget reads the target memory of a receive.
func (w *connectedDevice) readReceiveTarget(a, b *qpSide, to *registeredBuffer, wrong bool) error {
	from := w.newBuffer(shared)
	fillBytes(from.b, 7)
	b.postReceive(1, to)
	a.postSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.fullSGL()})
	w.pollCompletions(a.send, 1)
	if !wrong {
		w.pollCompletions(b.recv, 1)
	}
	if !bytes.Equal(to.b, from.b) {
		return errors.New("the message has not arrived")
	}
	w.pollCompletions(b.recv, boolToInt(wrong))
	return nil
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func useReadDataEarly(w *connectedDevice, wrong bool) error {
	a, b := w.newPair()
	remote, target, message := w.newBuffer(shared), w.newBuffer(private), w.newBuffer(shared)
	fillBytes(remote.b, 7)
	a.postReceive(1, message)
	b.postReceive(1, message)
	a.postSend(remote.transferTo(ib.WRRDMARead, target))
	a.postSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: message.fullSGL()})
	w.pollCompletions(b.recv, 1)
	b.postSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: message.fullSGL()})
	w.pollCompletions(a.recv, 1) // the reply
	if !wrong {
		w.pollCompletions(a.send, 1)
	}
	if !bytes.Equal(target.b, remote.b) {
		return errors.New("the data of the READ have not arrived")
	}
	return nil
}

func forwardReadUnfenced(w *connectedDevice, wrong bool) error {
	return forwardReadData(w, wrong, ib.SendSignaled)
}

func forwardUnsignaledReadUnfenced(w *connectedDevice, wrong bool) error {
	return forwardReadData(w, wrong, 0)
}

// forwardReadData writes data to a peer after reading the same data from the peer.
func forwardReadData(w *connectedDevice, wrong bool, read ib.SendFlags) error {
	a, _ := w.newPair()
	remote, buf, to := w.newBuffer(shared), w.newBuffer(private), w.newBuffer(shared)
	fillBytes(remote.b, 7)
	wr := remote.transferTo(ib.WRRDMARead, buf)
	wr.Flags = read
	a.postSend(wr)
	wr = to.transferTo(ib.WRRDMAWrite, buf)
	if !wrong {
		wr.Flags |= ib.SendFence
	}
	a.postSend(wr)
	n := 1
	if read&ib.SendSignaled != 0 {
		n = 2
	}
	for _, wc := range w.pollCompletions(a.send, n) {
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

// replyBehindRead reads the data of a request, and then replies. The peer fills its buffer again when it has received
// the reply.
func replyBehindRead(w *connectedDevice, wrong bool) error {
	a, b := w.newPair()
	remote, target, message := w.newBuffer(shared), w.newBuffer(shared), w.newBuffer(shared)
	for i := range 4 {
		fillBytes(remote.b, byte(i))
		b.postReceive(1, message)
		a.postSend(remote.transferTo(ib.WRRDMARead, target))
		reply := ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: message.fullSGL()}
		if !wrong {
			reply.Flags |= ib.SendFence
		}
		a.postSend(reply)
		w.pollCompletions(b.recv, 1)
		fillBytes(remote.b, 0xff)
		w.pollCompletions(a.send, 2)
		if !bytes.Equal(target.b, bytes.Repeat([]byte{byte(i)}, len(target.b))) {
			return errors.New("the READ has returned the data of the next request")
		}
	}
	return nil
}

// replyBehindManyReads is replyBehindRead for a peer with several buffers.
func replyBehindManyReads(w *connectedDevice, wrong bool) error {
	const depth = queueDepth / 2
	a, b := w.newPair()
	message := w.newBuffer(shared)
	var remote, target [depth]*registeredBuffer
	for i := range depth {
		remote[i], target[i] = w.newBuffer(shared), w.newBuffer(shared)
	}
	var err error
	finished := 0
	finish := func() {
		i := byte(finished / 2)
		if t := target[i%depth]; finished%2 == 0 && t.b[0] != i && err == nil {
			err = fmt.Errorf("READ %d has returned the data of READ %d", i, t.b[0])
		}
		finished++
	}
	for i := range 30 {
		for finished < 2*(i-depth+1) { // room in the queue, and the target's own buffer
			w.pollCompletions(a.send, 1)
			finish()
		}
		fillBytes(remote[i%depth].b, byte(i))
		b.postReceive(1, message)
		a.postSend(remote[i%depth].transferTo(ib.WRRDMARead, target[i%depth]))
		reply := ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: message.fullSGL()}
		if !wrong {
			reply.Flags |= ib.SendFence
		}
		a.postSend(reply)
		w.pollCompletions(b.recv, 1)
		testutil.AdvanceTime(2 * time.Millisecond)
		fillBytes(remote[(i+1)%depth].b, 0xff) // a buffer is free when its reply has arrived
	}
	for finished < 60 {
		w.pollCompletions(a.send, 1)
		finish()
	}
	return err
}

func waitFixedTime(w *connectedDevice, wrong bool) error {
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

// requestCap returns a consumer that needs a capacity. The correct one then tries a smaller one.
func requestCap(c ib.QPCap) func(w *connectedDevice, wrong bool) error {
	return func(w *connectedDevice, wrong bool) error {
		cq := w.newCQ()
		create := func(sges, inline uint32) error {
			qp, err := w.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: cq, RecvCQ: cq, Cap: ib.QPCap{MaxSendWR: 1,
				MaxRecvWR: 1, MaxSendSGE: sges, MaxRecvSGE: 1, MaxInlineData: inline}})
			if err != nil {
				return err
			}
			return qp.Destroy()
		}
		err := create(max(c.MaxSendSGE, 1), c.MaxInlineData)
		if err != nil && !wrong {
			err = create(1, 0)
		}
		return err
	}
}

// requestReads returns a consumer that keeps READs in flight. The correct one needs only one.
func requestReads(n uint8) func(w *connectedDevice, wrong bool) error {
	return func(w *connectedDevice, wrong bool) error {
		p := ib.Path{MaxRdAtomic: 1}
		if wrong {
			p.MaxRdAtomic = n
		}
		a, b := w.newSide(w.newCQ(), w.newCQ()), w.newSide(w.newCQ(), w.newCQ())
		return w.connectWithPaths(a, b, p, p, nil)
	}
}

// readWrittenEarly writes the memory of a peer, which reads it when the requester, or with a message the peer, has a
// completion.
func readWrittenEarly(w *connectedDevice, wrong bool) error {
	a, b := w.newPair()
	from, to := w.newBuffer(shared), w.newBuffer(shared)
	for i := range byte(queueDepth) {
		fillBytes(from.b, i+1)
		if err := a.postAndAwait(to.transferTo(ib.WRRDMAWrite, from)); err != nil {
			return err
		}
		if !wrong {
			b.postReceive(0, w.newBuffer(private))
			a.postSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled})
			b.w.pollCompletions(b.recv, 1)
			w.pollCompletions(a.send, 1)
		}
		if got := racyByte(to.b, 0); got != i+1 {
			return fmt.Errorf("WRITE %d: the target has %d, want %d", i, got, i+1)
		}
	}
	return nil
}

// pollSecondWrite writes data and then a flag. The peer waits for the flag, or for a message.
func pollSecondWrite(w *connectedDevice, wrong bool) error {
	a, b := w.newPair()
	from := w.newBuffer(shared)
	data, flag := w.newBuffer(shared|ib.AccessRelaxedOrdering), w.newBuffer(shared|ib.AccessRelaxedOrdering)
	for i := range byte(queueDepth) {
		fillBytes(from.b, i+1)
		a.postSend(data.transferTo(ib.WRRDMAWrite, from))
		a.postSend(flag.transferTo(ib.WRRDMAWrite, from))
		if !wrong {
			b.postReceive(0, w.newBuffer(private))
			a.postSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled})
			w.pollCompletions(b.recv, 1)
			w.pollCompletions(a.send, 1)
		}
		if !testutil.PollUntil(func() bool { return racyByte(flag.b, 0) == i+1 }) {
			return fmt.Errorf("WRITE %d: the flag did not come", i)
		}
		if got := racyByte(data.b, 0); got != i+1 {
			return fmt.Errorf("WRITE %d: the flag is set, and the data are those of WRITE %d", i, got)
		}
		w.pollCompletions(a.send, 2)
	}
	return nil
}

// innerOf returns the driver with which a choice has an effect.
func innerOf(c weak.Choice) ibtest.NewDevice {
	if weak.Of(weak.LateWrite, weak.OutOfOrder, weak.RelaxedOrder).Has(c) {
		return newRXE
	}
	return newLoopback
}

const litmusSeeds = 5

// TestLitmusProgramsDetectChoices runs the incorrect consumer of each row. The consumer must work on a device without
// the choice and fail on a device with the choice. The correct consumer must work on both devices, and on a device with
// all choices.
func TestLitmusProgramsDetectChoices(t *testing.T) {
	for _, l := range litmusTests {
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
			device := func(seed uint64, set weak.Set) ibtest.NewDevice {
				return newWeakFactory(innerOf(l.choice), weak.Config{Seed: seed, Choices: set})
			}
			for seed := range uint64(litmusSeeds) {
				for _, set := range []weak.Set{weak.Of(l.choice), weak.All} {
					if err := run("right", device(seed, set), false); err != nil {
						t.Errorf("correct consumer with seed %d and choices %b: got %v, want nil", seed, set, err)
					}
				}
				if run("wrong", device(seed, weak.Of(l.choice)), true) != nil {
					failed++
				}
				if err := run("other choices", device(seed, weak.All&^weak.Of(l.choice)), false); err != nil {
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

// faultMisuses lists the wrong consumers of weak.Faults, which TestFaultsFindWrongConsumers of ib/ibtest/schedule runs,
// of weak.ByRules, which TestScenarioReplaysFaults of test/e2e runs, and of weak.SameNumbers, which
// TestWeakDevicesHaveSameNumbers of test/e2e runs.
var faultMisuses = map[weak.Choice]string{
	weak.FailedRequest: "leaves a queue pair in SQE; closes a channel twice; waits for a failed request; " +
		"posts flushed receives again",
	weak.FailedCall:   "destroys no objects when a call of its Add fails",
	weak.FailedDevice: "posts flushed receives again",
	weak.FailedPost:   "counts a refused request as done twice",
	weak.SameNumbers:  "finds the connection of a completion by the number of the queue pair alone, on two devices",
	weak.PacketFault:  "treats the completion of an unreliable WRITE as its delivery",
}

func tooManyReads(w *connectedDevice, wrong bool) error {
	a, b := w.newSide(w.newCQ(), w.newCQ()), w.newSide(w.newCQ(), w.newCQ())
	limit := uint8(1)
	if wrong {
		limit = queueDepth
	}
	err := w.connectWithPaths(a, b, ib.Path{MaxRdAtomic: limit}, ib.Path{Access: ib.AccessRemoteRead}, nil)
	if err != nil {
		return err
	}
	from, to := w.newBuffer(shared), w.newBuffer(private)
	for range 3 {
		a.postSend(from.transferTo(ib.WRRDMARead, to))
	}
	return a.awaitSuccess(3)
}

func otherPSN(w *connectedDevice, wrong bool) error {
	a, b := w.newSide(w.newCQ(), w.newCQ()), w.newSide(w.newCQ(), w.newCQ())
	err := w.connectWithPaths(a, b, ib.Path{}, ib.Path{Access: ib.AccessRemoteWrite}, func(announced *ib.Endpoint) {
		if wrong {
			announced.PSN ^= 1
		}
	})
	if err != nil {
		return err
	}
	from, to := w.newBuffer(shared), w.newBuffer(shared)
	a.postSend(to.transferTo(ib.WRRDMAWrite, from))
	return a.awaitSuccess(1)
}

func otherMTU(w *connectedDevice, wrong bool) error {
	a, b := w.newSide(w.newCQ(), w.newCQ()), w.newSide(w.newCQ(), w.newCQ())
	err := w.connectWithPaths(a, b, ib.Path{}, ib.Path{Access: ib.AccessRemoteWrite}, func(announced *ib.Endpoint) {
		if wrong {
			announced.MTU = ib.MTU256
		}
	})
	if err != nil {
		return err
	}
	from, to := w.registerBuffer(make([]byte, 1000), shared), w.registerBuffer(make([]byte, 1000), shared)
	a.postSend(to.transferTo(ib.WRRDMAWrite, from))
	return a.awaitSuccess(1)
}

// connectWithPaths connects two sides. announce may change the endpoint of a before b uses it.
func (w *connectedDevice) connectWithPaths(a, b *qpSide, pa, pb ib.Path, announce func(*ib.Endpoint)) error {
	here, err := w.dev.Local(1)
	must(w.t, err)
	ea, eb := here.Endpoint(a.qp), here.Endpoint(b.qp)
	announced := ea
	if announce != nil {
		announce(&announced)
	}
	return errors.Join(a.qp.Connect(here, ea, eb, pa), b.qp.Connect(here, eb, announced, pb))
}

// awaitSuccess polls n completions of sends and returns an error unless all requests have succeeded.
func (s *qpSide) awaitSuccess(n int) error {
	for _, wc := range s.w.pollCompletions(s.send, n) {
		if wc.Status != ib.WCSuccess {
			return fmt.Errorf("request: %v", wc.Status)
		}
	}
	return nil
}

// TestTable checks that each row of the table is complete, has a litmus program, and appears in the documentation.
func TestTable(t *testing.T) {
	names := map[string]bool{}
	var b strings.Builder
	b.WriteString("| choice | programs | the device | permitted by | exposes a consumer that " +
		"| litmus: the wrong consumer |\n|---|---|---|---|---|---|\n")
	for i, r := range weak.Choices {
		if r.Choice != weak.Choice(i) || r.Name == "" || names[r.Name] || r.Does == "" || r.Permitted == "" ||
			r.Breaks == "" {
			t.Errorf("row %d: got %+v, want all texts present", i, r)
		}
		names[r.Name] = true
		var misuses []string
		if m := faultMisuses[r.Choice]; m != "" {
			misuses = append(misuses, m)
		}
		for _, l := range litmusTests {
			if l.choice == r.Choice {
				misuses = append(misuses, l.misuse)
			}
		}
		if misuses == nil {
			t.Errorf("litmus program for %s: got none, want one", r.Name)
		}
		programs := "yes"
		if weak.InProcess.Has(r.Choice) {
			programs = "no"
		} else if weak.ByRules.Has(r.Choice) {
			programs = "by fault rules"
		} else if weak.OptIn.Has(r.Choice) {
			programs = "if named"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", r.Name, programs,
			r.Does, r.Permitted, r.Breaks, strings.Join(misuses, "; "))
	}
	gendoc.CheckSection(t, "../../docs/results/weak.md", "weak choices", b.String())
}

// TestReplay checks that the same calls on a device with the same seed have the same results. The test also checks that
// another seed has other results.
func TestReplay(t *testing.T) {
	run := func(seed uint64) (results []string) {
		synctest.Test(t, func(t *testing.T) {
			w := newConnectedDevice(t, newWeakFactory(newLoopback, weak.Config{Seed: seed}))
			a, b := w.newPair()
			from, to := w.newBuffer(shared), w.newBuffer(shared)
			for i := range queueDepth {
				b.postReceive(uint64(i), to)
				a.postSend(ib.SendWR{ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.fullSGL()})
			}
			for range 100 {
				for _, cq := range []*ib.CQ{a.send, b.recv} {
					var wc [1]ib.WC
					n, err := cq.Poll(wc[:])
					results = append(results, fmt.Sprint(n, err, wc[0].ID))
				}
				testutil.AdvanceTime(time.Microsecond)
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

// TestUnsignaledReadHasNoCompletion checks an unsignaled READ with late data. The READ must cause no completion and no
// notification, and occupy no entry of the completion queue.
func TestUnsignaledReadHasNoCompletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newConnectedDevice(t, newWeakFactory(newLoopback, weak.Config{Seed: 1, Choices: weak.Of(weak.LateRead)}))
		calls := make(chan int, queueDepth)
		cq, err := w.dev.CreateCQ(ib.CQInit{Entries: queueDepth, Handler: func(*ib.CQ) { calls <- 1 }})
		must(t, err)
		w.addCleanup(cq.Destroy)
		a, b := w.newSide(cq, w.newCQ()), w.newSide(w.newCQ(), w.newCQ())
		w.connectSides(a, b)
		remote, target := w.newBuffer(shared), w.newBuffer(private)
		fillBytes(remote.b, 7)
		read := remote.transferTo(ib.WRRDMARead, target)
		read.Flags = 0
		arm := func(when string) {
			t.Helper()
			missed, err := cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
			if must(t, err); missed {
				t.Errorf("ReqNotify %s: got missed completions, want none", when)
			}
		}
		a.postSend(read)
		arm("after a READ")
		a.postSend(read)
		advancePastDelays()
		if n := len(calls); n != 0 {
			t.Errorf("calls of the handler: got %d, want 0", n)
		}
		if !bytes.Equal(target.b, make([]byte, len(target.b))) {
			t.Error("data before a completion: got the data of the READ, want zeros")
		}
		a.postSend(w.newBuffer(shared).transferTo(ib.WRRDMAWrite, remote))
		<-calls
		if wc := w.pollCompletions(cq, 1); wc[0].Opcode != ib.WCRDMAWrite {
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
	for _, l := range litmusTests {
		if l.choice == weak.EarlyNumbers { // the driver does not implement ib.NumberReuser
			continue
		}
		t.Run(l.misuse, func(t *testing.T) {
			t.Parallel()
			failed := false
			for seed := range uint64(litmusSeeds) {
				t.Run("wrong", func(t *testing.T) {
					err := l.run(t, newWeakFactory(newRXE, weak.Config{Seed: seed, Choices: weak.Of(l.choice)}), true)
					failed = failed || err != nil
				})
			}
			if !failed {
				t.Error("incorrect consumer: got no failure, want one")
			}
			t.Run("right", func(t *testing.T) {
				if err := l.run(t, newWeakFactory(newRXE, weak.Config{Seed: 1}), false); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
