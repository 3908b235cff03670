package ibtest

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"

	"verbena/ib"
	"verbena/ib/ibtest/model"
	"verbena/ib/ibtest/modeltest"
)

// Completions: their contents.

var completionChecks = []ruleTest{
	{
		name: "Data/WholeCompletion",
		rule: "a poll writes every field of a completion: nothing stays of what the caller had there",
		test: testCompletionSetsAllFields,
	},
	{
		name: "Errors/FlushOpcode",
		rule: "a flushed completion has the opcode that the work request would have had with success",
		test: testFlushedOpcode,
	},
	{
		name: "CQ/DestroyedQueuePair",
		rule: "completions of a destroyed queue pair have its number and no object on each of its queues; those of others keep theirs",
		test: testPollAfterQPDestroyed,
	},
	{
		name: "Data/Long",
		rule: "a message of more than 16 MiB arrives whole, and its completions tell its length; a request of SRD may fail instead",
		test: testLongMessages, plain: true,
	},
	{
		name: "XRC/DestroyedTarget",
		rule: "what a destroyed XRC target received keeps its number on the shared receive queue's completion queue, without the object",
		test: testPollAfterXRCTargetDestroyed,
	},
}

// skipIfCompletionsPurged skips the check if the destruction of a queue pair removes its completions.
func (e *testEnv) skipIfCompletionsPurged() {
	e.Helper()
	purges, err := modeltest.PurgesCompletions(e.dev, e.cfg.timeout)
	e.must("destroy a queue pair with a completion", err)
	if purges {
		e.Skip("the destruction of a queue pair removes its completions")
	}
}

// newUsedPollArray returns completions as a caller may have left them in its poll array.
func newUsedPollArray(other *ib.QP) []ib.WC {
	wc := ib.WC{
		ID: 0xabababababababab, Status: ib.WCSuccess, Opcode: ib.WCRecvRDMAWithImm, VendorErr: 0xabababab,
		ByteLen: 0xabababab,
		QPNum:   0xababab, QP: other, Imm: 0xabababab, InvalidateRKey: 0xabababab, SrcQP: 0xababab, Flags: ^ib.WCFlags(0),
		PKeyIndex: 0xabab, SLID: 0xabab, SL: 0xab, Port: 0xab,
	}
	failed := wc
	failed.Status, failed.Opcode = ib.WCGeneralErr, ib.WCOpcode(0xabab)
	return []ib.WC{wc, failed}
}

// testCompletionSetsAllFields executes each operation several times, and polls its completions into a fresh entry and
// into used ones.
func testCompletionSetsAllFields(e *testEnv) {
	pd := e.newPD()
	for _, kind := range append(queuePairTypes, ib.QPTypeSRD) {
		p := e.newPairIfSupported(kind, pd)
		if p == nil {
			continue
		}
		other := e.newQP(pd, ib.QPInitAttr{SendCQ: p.cqs[0], RecvCQ: p.cqs[0], Type: kind})
		entries := append([]ib.WC{{}}, newUsedPollArray(other)...)
		ops := p.probeSupportedOperations()
		for _, o := range ops {
			var fresh [2]ib.WC
			for i, entry := range entries {
				if o.receives {
					p.postRecv(1, 1, 0, pairBufferLen)
				}
				p.postSendWR(0, o.wr)
				for side := range fresh {
					if side == 1 && !o.receives {
						continue
					}
					got := entry
					e.pollInto(p.cqs[side], &got)
					if i == 0 {
						fresh[side] = got
					}
					compareUsedAndFreshEntry(e, fmt.Sprintf("%v, %s, side %d", kind, o.what, side), got, fresh[side], entry)
				}
			}
		}
		e.must("modify to ERR", p.qps[0].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
		var fresh [2]ib.WC
		for i, entry := range entries {
			for k, post := range []func(){func() { p.postRecv(0, 2, 0, 8) }, func() { p.postSendWR(0, ops[0].wr) }} {
				post()
				got := entry
				e.pollInto(p.cqs[0], &got)
				if i == 0 {
					fresh[k] = got
				}
				compareUsedAndFreshEntry(e, fmt.Sprintf("%v, flushed", kind), got, fresh[k], entry)
			}
		}
	}
}

// compareUsedAndFreshEntry compares a completion polled into a used entry with the same completion polled into a fresh
// one.
func compareUsedAndFreshEntry(t testing.TB, what string, got, fresh, entry ib.WC) {
	t.Helper()
	if got.VendorErr != entry.VendorErr {
		got.VendorErr = fresh.VendorErr // may have any value except the former one
	}
	if got != fresh {
		t.Errorf("%s: polled into an entry that has been used: got %+v, want %+v, as in a fresh one", what, got, fresh)
	}
}

// queuePairTypes lists the types whose queue pairs have two completion queues.
var queuePairTypes = []ib.QPType{ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD}

// newPairIfSupported creates a pair of a type, or returns nil if the driver does not support the type.
func (e *testEnv) newPairIfSupported(kind ib.QPType, pd *ib.PD) *pair {
	e.Helper()
	if e.newQPOfType(kind, pd, e.newCQ(8, nil)) == nil {
		e.Logf("the driver has no queue pairs of type %v", kind)
		return nil
	}
	return e.newPair(pairConfig{kind: kind, pd: pd})
}

// qpOperation is a work request for side 0.
type qpOperation struct {
	what     string
	wr       ib.SendWR
	want     ib.WCOpcode
	receives bool // the operation consumes a receive of side 1
}

// operationsOfType returns the operations of the pair's type, each with ID 1 and signaled.
func (p *pair) operationsOfType() []qpOperation {
	p.e.Helper()
	rdma := func(op ib.WROpcode) ib.SendWR {
		wr := p.newRDMARequest(1, op, p.buf[0].newSGL(0, 8), 0)
		wr.Imm = 0x05060708
		return wr
	}
	kind := p.qps[0].Type()
	send := ib.SendWR{ID: 1, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8)}
	if kind == ib.QPTypeUD {
		send = p.newDatagramRequest(1, p.e.newAH(p.pd), 8)
	}
	imm := send
	send.Opcode, imm.Opcode, imm.Imm = ib.WRSend, ib.WRSendWithImm, 0x01020304
	ops := []qpOperation{{"SEND with immediate", imm, ib.WCSend, true}, {"SEND", send, ib.WCSend, true}}
	if kind == ib.QPTypeUD {
		return ops
	}
	ops = append(ops, qpOperation{"RDMA WRITE with immediate", rdma(ib.WRRDMAWriteWithImm), ib.WCRDMAWrite, true},
		qpOperation{"RDMA WRITE", rdma(ib.WRRDMAWrite), ib.WCRDMAWrite, false})
	if kind == ib.QPTypeUC {
		return ops
	}
	ops = append(ops, qpOperation{"RDMA READ", rdma(ib.WRRDMARead), ib.WCRDMARead, false})
	if kind == ib.QPTypeSRD {
		d := p.newDatagramRequest(1, p.e.newAH(p.pd), 8)
		for i := range ops {
			ops[i].wr.AH, ops[i].wr.RemoteQPN, ops[i].wr.RemoteQKey = d.AH, d.RemoteQPN, d.RemoteQKey
		}
		return ops
	}
	a, err := p.e.dev.QueryDevice()
	p.e.must("query device", err)
	if a.AtomicCap != ib.AtomicNone {
		ops = append(ops, qpOperation{"fetch and add", rdma(ib.WRAtomicFetchAdd), ib.WCFetchAdd, false},
			qpOperation{"compare and swap", rdma(ib.WRAtomicCmpAndSwp), ib.WCCompSwap, false})
	}
	if a.DeviceCapFlags&ib.DeviceCapAtomicWrite != 0 {
		wr := rdma(ib.WRAtomicWrite)
		wr.SGList, wr.Inline = nil, make([]byte, 8)
		ops = append(ops, qpOperation{"ATOMIC WRITE", wr, ib.WCAtomicWrite, false})
	}
	return ops
}

// probeSupportedOperations executes each operation once, and returns the operations that the driver supports.
func (p *pair) probeSupportedOperations() (ops []qpOperation) {
	e := p.e
	e.Helper()
	for _, o := range p.operationsOfType() {
		if o.receives {
			p.postRecv(1, 1, 0, pairBufferLen)
		}
		n, err := p.qps[0].PostSend(o.wr)
		if n == 0 && (errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS)) {
			e.Logf("the driver has no %s", o.what)
			p.reconnect() // without the receive
			continue
		}
		if n != 1 || err != nil {
			e.Fatalf("post %s: %d taken, %v", o.what, n, err)
		}
		e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
		if o.receives {
			e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
		}
		ops = append(ops, o)
	}
	return ops
}

// testFlushedOpcode flushes each operation in several ways: it waits in SQD while the queue pair moves to ERR, it
// follows a failing request, or it is posted in ERR.
func testFlushedOpcode(e *testEnv) {
	pd := e.newPD()
	for _, kind := range queuePairTypes {
		p := e.newPairIfSupported(kind, pd)
		if p == nil {
			continue
		}
		ops := p.probeSupportedOperations()
		post := func() {
			e.Helper()
			for i, o := range ops {
				o.wr.ID = uint64(i)
				p.postSendWR(0, o.wr)
			}
		}
		flushed := func(when string) {
			e.Helper()
			for i, o := range ops {
				if wc := e.waitOneCompletion(p.cqs[0], uint64(i), ib.WCWRFlushErr); wc.Opcode != o.want {
					e.Errorf("%v, %s %s: flushed with opcode %v, want %v", kind, o.what, when, wc.Opcode, o.want)
				}
			}
		}
		receive := func(when string) {
			e.Helper()
			if wc := e.waitOneCompletion(p.cqs[0], 1<<32, ib.WCWRFlushErr); wc.Opcode != ib.WCRecv {
				e.Errorf("%v, receive %s: flushed with opcode %v, want %v", kind, when, wc.Opcode, ib.WCRecv)
			}
		}
		toErr := func() {
			e.Helper()
			e.must("modify to ERR", p.qps[0].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
		}
		if p.tryHoldInSQD() {
			post()
			toErr()
			flushed("that waited in SQD")
			p.reconnect()
			p.tryHoldInSQD()
			bad := ib.SendWR{ID: 99, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8), AH: ops[0].wr.AH}
			bad.SGList[0].LKey ^= 0x5a5a5a00
			p.postSendWR(0, bad)
			post()
			e.must("modify to RTS", p.qps[0].Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
			e.waitOneCompletion(p.cqs[0], 99, ib.WCLocProtErr)
			flushed("behind one that failed")
			p.reconnect()
		}
		p.postRecv(0, 1<<32, 0, 8)
		toErr()
		receive("that waited")
		post()
		flushed("posted in ERR")
		p.postRecv(0, 1<<32, 0, 8)
		receive("posted in ERR")
	}
}

// tryHoldInSQD moves side 0 to SQD, in which work requests wait. It returns false if the driver does not support SQD.
func (p *pair) tryHoldInSQD() bool {
	e := p.e
	e.Helper()
	err := p.qps[0].Modify(ib.QPAttr{State: ib.QPSQD}, ib.QPAttrState)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		e.Logf("the driver has no state SQD: %v", err)
		return false
	}
	e.must("modify to SQD", err)
	return true
}

// newReportingCQ is a completion queue with a handler that reports an arrival. The completion stays in the queue.
type reportingCQ struct {
	*ib.CQ
	arrived atomic.Bool
}

func newReportingCQ(e *testEnv) *reportingCQ {
	e.Helper()
	b := &reportingCQ{}
	b.CQ = e.newCQ(4, func(*ib.CQ) { b.arrived.Store(true) })
	return b
}

// selfSender sends messages to itself.
type selfSender struct {
	sender, receiver *ib.QP // may be the same
	send             func(id uint64)
}

// sendToSelf sends one message, and waits for its completions, which stay in the queues.
func sendToSelf(r *resultChecker, t selfSender, id uint64, queues ...*reportingCQ) {
	r.Helper()
	for _, b := range queues {
		b.arrived.Store(false)
		_, err := b.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
		r.must("request notify", err)
	}
	t.send(id)
	for _, b := range queues {
		r.eventually("a completion", b.arrived.Load)
	}
}

// destroySelfSenders destroys talkers whose completions are in the queues, before or after those of a remaining talker,
// and then polls. The queues wrap around during the rounds. A new talker is created before the poll, possibly with the
// number of the destroyed one.
func destroySelfSenders(e *testEnv, what string, fresh func() selfSender, send, recv *reportingCQ) {
	e.Helper()
	stays, t := fresh(), fresh()
	for round := range 5 {
		order := []selfSender{t, stays}
		if round%2 == 1 {
			order = []selfSender{stays, t}
		}
		for i, x := range order {
			sendToSelf(e.resultChecker, x, uint64(i), send, recv)
		}
		gone := [2]*ib.QP{t.sender, t.receiver}
		e.destroy(t.sender)
		if t.sender != t.receiver {
			e.destroy(t.receiver)
		}
		t = fresh()
		for side, cq := range []*ib.CQ{send.CQ, recv.CQ} {
			for i, wc := range e.waitCompletions(cq, 2) { // completions of different queue pairs, in any order
				if wc.ID >= uint64(len(order)) {
					e.Fatalf("%s: completion of work request %d, which was not posted", what, wc.ID)
				}
				x := order[wc.ID]
				qp := [2]*ib.QP{x.sender, x.receiver}[side]
				object := qp
				if qp == gone[side] {
					object = nil
				}
				if wc.Status != ib.WCSuccess || wc.QPNum != qp.Num() || wc.QP != object {
					e.Fatalf("%s, %s queue, completion %d of queue pair %d, destroyed: %v: got work request %d, %q, number %d, object %p, want object %p",
						what, [2]string{"send", "receive"}[side], i, qp.Num(), object == nil, wc.ID, wc.Status, wc.QPNum, wc.QP, object)
				}
			}
		}
	}
}

func testPollAfterQPDestroyed(e *testEnv) {
	e.skipIfCompletionsPurged()
	pd := e.newPD()
	buf := e.newBuffer(pd, 256, allAccess)
	for _, kind := range queuePairTypes {
		for _, shared := range []bool{false, true} {
			if e.newQPOfType(kind, pd, e.newCQ(8, nil)) == nil {
				e.Logf("the driver has no queue pairs of type %v", kind)
				continue
			}
			init := ib.QPInitAttr{Type: kind, Cap: ib.QPCap{MaxSendWR: 2, MaxSendSGE: 1, MaxRecvWR: 2, MaxRecvSGE: 1}}
			if shared {
				srq, err := pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}})
				if err != nil {
					e.wantErrno("create srq", err, syscall.EOPNOTSUPP, syscall.ENOSYS)
					continue
				}
				init.SRQ = destroyAtEnd(e, srq, srq.Destroy)
				init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = 0, 0
			}
			send, recv := newReportingCQ(e), newReportingCQ(e)
			init.SendCQ, init.RecvCQ = send.CQ, recv.CQ
			wr := ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: buf.newSGL(0, 16), RemoteQKey: qkey}
			if kind == ib.QPTypeUD {
				wr.AH = e.newAH(pd)
			}
			destroySelfSenders(e, fmt.Sprintf("%v, shared receive queue: %v", kind, shared), func() selfSender {
				qp := e.newQP(pd, init)
				e.connector.moveQPUpTo(qp, qp.Num(), ib.QPRTS)
				return selfSender{qp, qp, func(id uint64) {
					e.Helper()
					post := qp.PostRecv
					if shared {
						post = init.SRQ.PostRecv
					}
					if n, err := post(ib.RecvWR{ID: id, SGList: buf.newSGL(128, 128)}); n != 1 {
						e.Fatalf("post receive: %v", err)
					}
					wr := wr
					wr.ID, wr.RemoteQPN = id, qp.Num()
					if n, err := qp.PostSend(wr); n != 1 {
						e.Fatalf("post send: %v", err)
					}
				}}
			}, send, recv)
		}
	}
}

func testPollAfterXRCTargetDestroyed(e *testEnv) {
	e.skipIfCompletionsPurged()
	x, err := e.dev.AllocXRCD()
	e.requireFeature("XRC domains", err)
	destroyAtEnd(e, x, x.Dealloc)
	pd, send, recv := e.newPD(), newReportingCQ(e), newReportingCQ(e)
	srq := e.newSRQ(pd, ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: x, CQ: recv.CQ, Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}})
	buf := e.newBuffer(pd, 256, allAccess)
	destroySelfSenders(e, "XRC", func() selfSender {
		ini, tgt := e.newXRCPair(pd, x, send.CQ)
		return selfSender{ini, tgt, func(id uint64) {
			e.Helper()
			e.mustPostSRQ(srq, ib.RecvWR{ID: id, SGList: buf.newSGL(128, 128)})
			wr := ib.SendWR{ID: id, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: buf.newSGL(0, 16), RemoteSRQN: srq.Num()}
			if n, err := ini.PostSend(wr); n != 1 {
				e.Fatalf("post send: %v", err)
			}
		}}
	}, send, recv)
	// The target keeps no reference to the shared queues that it has used, and knows all their completion queues.
	other := newReportingCQ(e)
	srqs := []*ib.SRQ{srq, e.newSRQ(pd, ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: x, CQ: other.CQ,
		Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}})}
	ini, tgt := e.newXRCPair(pd, x, send.CQ)
	for _, s := range srqs {
		e.mustPostSRQ(s, ib.RecvWR{ID: 9, SGList: buf.newSGL(128, 128)})
		wr := ib.SendWR{ID: 9, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: buf.newSGL(0, 16), RemoteSRQN: s.Num()}
		if n, err := ini.PostSend(wr); n != 1 {
			e.Fatalf("post send: %v", err)
		}
		e.waitOneCompletion(send.CQ, 9, ib.WCSuccess)
	}
	num := tgt.Num()
	for _, s := range srqs {
		e.destroy(s)
	}
	e.destroy(tgt)
	for _, cq := range []*ib.CQ{recv.CQ, other.CQ} {
		if wc := e.waitOneCompletion(cq, 9, ib.WCSuccess); wc.QPNum != num || wc.QP != nil {
			e.Errorf("target destroyed after its shared receive queues: completion has number %d and object %p, want %d and nil",
				wc.QPNum, wc.QP, num)
		}
	}
}

// newXRCPair returns a connected initiator and target.
func (e *testEnv) newXRCPair(pd *ib.PD, x *ib.XRCD, send *ib.CQ) (ini, tgt *ib.QP) {
	e.Helper()
	ini = e.newQP(pd, ib.QPInitAttr{Type: ib.QPTypeXRCInit, SendCQ: send})
	tgt = e.newQP(pd, ib.QPInitAttr{Type: ib.QPTypeXRCTgt, XRCD: x})
	e.connector.moveQPUpTo(ini, tgt.Num(), ib.QPRTS)
	e.connector.moveQPUpTo(tgt, ini.Num(), ib.QPRTS)
	return ini, tgt
}

// longMessageLengths are the lengths of long messages. A request of SRD that is too long for the device fails, because
// no attribute has the limit.
var longMessageLengths = []int{1<<24 + 5, 1<<22 + 5, 1<<20 + 5, model.SRDRDMASize}

// testLongMessages sends messages of more than 2^24 bytes, if regions may have this length.
func testLongMessages(e *testEnv) {
	most := e.deviceAttr().MaxMRSize
	lengths := longMessageLengths
	for len(lengths) > 1 && uint64(lengths[0]) > most {
		lengths = lengths[1:]
	}
	pd := e.newPD()
	from, to := e.newBuffer(pd, lengths[0], allAccess), e.newBuffer(pd, lengths[0], allAccess)
	tried := 0
	for _, kind := range []ib.QPType{ib.QPTypeRC, ib.QPTypeSRD} {
		if kind != ib.QPTypeSRD && uint64(e.connector.port.MaxMsgSize) < uint64(lengths[0]) {
			e.Logf("the port sends messages of up to %d bytes", e.connector.port.MaxMsgSize)
			continue
		}
		p := e.newPairIfSupported(kind, pd)
		if p == nil {
			continue
		}
		for _, o := range p.operationsOfType() {
			isSend := o.wr.Opcode == ib.WRSend && kind != ib.QPTypeSRD // one packet
			if isSend || o.wr.Opcode == ib.WRRDMAWriteWithImm || o.wr.Opcode == ib.WRRDMARead {
				tried++
				transferLongMessage(p, o, from, to, lengths)
			}
		}
	}
	if tried == 0 {
		e.Skip("the driver has no long messages")
	}
}

// transferLongMessage transfers a message of the first of lengths that the device supports.
func transferLongMessage(p *pair, o qpOperation, from, to *registeredBuffer, lengths []int) {
	e, kind := p.e, p.qps[0].Type()
	e.Helper()
	o.wr.RemoteAddr, o.wr.RKey = to.addr, to.mr.RKey()
	if o.receives {
		e.mustPostRecv(p.qps[1], ib.RecvWR{ID: 1, SGList: to.newSGL(0, len(to.b))})
	}
	for i, n := range lengths {
		what := fmt.Sprintf("%v: %s of %d bytes", kind, o.what, n)
		src, dst := from.b[:n], to.b[:n]
		if o.wr.Opcode == ib.WRRDMARead {
			src, dst = dst, src
		}
		fillPattern(src, i+1)
		clear(dst)
		o.wr.SGList = from.newSGL(0, n)
		shorter := kind == ib.QPTypeSRD && i+1 < len(lengths)
		k, err := p.qps[0].PostSend(o.wr)
		if p.isUnsupportedPost(o.wr.Opcode, err) {
			e.Logf("the driver has no operation with opcode %v", o.wr.Opcode)
			return
		}
		status := ib.WCLocLenErr
		switch {
		case k == 1:
			wc := e.waitAnyCompletion(p.cqs[0])
			if status = wc.Status; status == ib.WCSuccess && o.want == ib.WCRDMARead && int(wc.ByteLen) != n {
				e.Errorf("%s: the completion tells %d", what, wc.ByteLen)
			}
		case shorter:
			e.wantErrno(what, err, syscall.EINVAL)
		default:
			e.Fatalf("%s: post: %v", what, err)
		}
		if shorter && status == ib.WCLocLenErr {
			if !isAllZero(dst) {
				e.Errorf("%s failed, and a part of it arrived", what)
			}
			continue
		}
		if status != ib.WCSuccess {
			e.Fatalf("%s: got %q, want success", what, status)
		}
		if o.receives {
			if wc := e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess); int(wc.ByteLen) != n {
				e.Errorf("%s: the receive tells %d", what, wc.ByteLen)
			}
		}
		if !bytes.Equal(src, dst) {
			e.Errorf("%s arrived changed", what)
		}
		return
	}
}
