package ibtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"syscall"

	"verbena/ib"
	"verbena/ib/check"
)

// Data: the effects of work requests.

var dataChecks = []ruleTest{
	{
		name: "Data/NothingKept",
		rule: "what a posting refers to, but for the memory of its regions, is the caller's again when it returns",
		test: testPostKeepsNoReference,
	},
	{
		name: "Data/SendReceive",
		rule: "messages of all lengths arrive whole and in order",
		test: testSendReceive,
	},
	{
		name: "Data/ScatterGather",
		rule: "a message is gathered from several places and scattered to others",
		test: testScatterGather,
	},
	{
		name: "Data/Unsignaled",
		rule: "a send that is not signaled completes without a word, unless it fails or the queue pair signals all",
		test: testUnsignaledSendHasNoCompletion,
	},
	{
		name: "Data/Immediate",
		rule: "immediate data come with a SEND and with an RDMA WRITE, which consumes a receive",
		test: testImmediateData,
	},
	{
		name: "Data/Write",
		rule: "RDMA WRITE stores into the peer's memory without a completion there",
		test: testRDMAWrite,
	},
	{
		name: "Data/Read",
		rule: "RDMA READ fetches the peer's memory",
		test: testRDMARead,
	},
	{
		name: "Data/Atomics",
		rule: "compare and swap, and fetch and add, return the old value and change the new one",
		test: testAtomics,
	},
	{
		name: "Data/AtomicWrite",
		rule: "ATOMIC WRITE stores 8 bytes at a multiple of 8",
		test: testAtomicWrite,
	},
	{
		name: "Data/Flush",
		rule: "FLUSH completes when what was written is there, and needs the right for its placement, of queue pair and region",
		test: testFlushOperation,
	},
	{
		name: "Data/Rereg",
		rule: "a region changes its memory, its rights and its domain without being deregistered",
		test: testReregChangesRegion,
	},
	{
		name: "Data/ZeroBased",
		rule: "in a zero-based region, addresses count from its first byte",
		test: testZeroBasedRegion,
	},
	{
		name: "Data/AccessRights",
		rule: "a key gives only the rights, the range and the domain that it was made with",
		test: testAccessRightsEnforced,
	},
	{
		name: "Data/DeregisteredMemory",
		rule: "when Dereg has returned nobody reaches the memory",
		test: testDeregisteredMemory,
	},
	{
		name: "Data/ReceiveTooShort",
		rule: "a message that is longer than the receive fails on both sides",
		test: testTooShortReceiveFails,
	},
	{
		name: "Data/LocalKey",
		rule: "a wrong local key fails the work request and flushes what comes after",
		test: testWrongLocalKeyFails,
	},
	{
		name: "Data/Unreliable",
		rule: "an unreliable connection delivers messages, and the sender does not learn of a missing receive",
		test: testUnreliableConnection,
	},
	{
		name: "Data/Datagram",
		rule: "a datagram arrives after 40 bytes of header, with its sender's number",
		test: testDatagramHeader,
	},
	{
		name: "Data/DatagramQKey",
		rule: "a datagram with a wrong Q_Key, or for nobody, is dropped",
		test: testBadDatagramDropped,
	},
}

func testSendReceive(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	for i, n := range []int{0, 1, 3, 8, 255, 256, 257, 1024, 4095, 4096, 4097, 10000, pairBufferLen} {
		p.exchangeMessage(i%2, uint64(i), n)
	}
	n := min(20, e.queueLen) // one after the other
	for i := range n {
		p.postRecv(1, uint64(i), 64*i, 64)
	}
	fillPattern(p.buf[0].b[:64], 1)
	clear(p.buf[1].b)
	for i := range n {
		p.postSend(0, uint64(i), i)
	}
	for i := range n {
		e.waitOneCompletion(p.cqs[0], uint64(i), ib.WCSuccess)
		wc := e.waitOneCompletion(p.cqs[1], uint64(i), ib.WCSuccess)
		if int(wc.ByteLen) != i || wc.Opcode != ib.WCRecv || wc.QP != p.qps[1] || wc.QPNum != p.qps[1].Num() {
			e.Errorf("message %d: %+v", i, wc)
		}
		if got := p.buf[1].b[64*i : 64*(i+1)]; !bytes.Equal(got[:i], p.buf[0].b[:i]) || !isAllZero(got[i:]) {
			e.Errorf("message %d arrived as %x", i, got)
		}
	}
}

func isAllZero(b []byte) bool { return bytes.Count(b, []byte{0}) == len(b) }

func testScatterGather(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	a, b := p.buf[0], p.buf[1]
	fillPattern(a.b[:1000], 3)
	clear(b.b)
	type element struct{ off, n int }
	// Use the last elements of lists with the maximum length.
	scatter := []element{{0, 100}, {600, 7}, {500, 0}, {1000, 2000}}
	gather := []element{{0, 1}, {900, 50}, {1, 299}}
	scatter, gather = scatter[max(0, len(scatter)-e.recvSGE):], gather[max(0, len(gather)-e.sendSGE):]
	var recv, send []ib.SGE
	for _, x := range scatter {
		recv = append(recv, b.newSGE(x.off, x.n))
	}
	var sent []byte
	for _, x := range gather {
		send = append(send, a.newSGE(x.off, x.n))
		sent = append(sent, a.b[x.off:x.off+x.n]...)
	}
	if n, err := p.qps[1].PostRecv(ib.RecvWR{ID: 1, SGList: recv}); n != 1 {
		e.Fatalf("post receive: %v", err)
	}
	p.postSendWR(0, ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: send})
	e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
	e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
	want := make([]byte, len(b.b))
	for _, x := range scatter {
		sent = sent[copy(want[x.off:x.off+x.n], sent):]
	}
	if !bytes.Equal(b.b, want) {
		e.Error("the message arrived changed, or in the wrong place")
	}
}

func testPostKeepsNoReference(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	const n = 10
	recvs := make([]ib.RecvWR, n)
	sends := make([]ib.SendWR, n)
	send := func() {
		e.Helper()
		if k, err := p.qps[0].PostSend(sends...); k != n {
			e.Fatalf("post send: %d, %v", k, err)
		}
		for i := range sends {
			sends[i].SGList[0] = ib.SGE{}
			sends[i] = ib.SendWR{ID: 1 << 40}
		}
	}
	receive := func() {
		e.Helper()
		if k, err := p.qps[1].PostRecv(recvs...); k != n {
			e.Fatalf("post receive: %d, %v", k, err)
		}
		for i := range recvs {
			recvs[i].SGList[0] = ib.SGE{}
			recvs[i] = ib.RecvWR{ID: 1 << 40}
		}
	}
	// One of the messages waits for the other, so that data kept by reference would be used late.
	for round, post := range [][]func(){{send, receive}, {receive, send}} {
		for i := range n {
			recvs[i] = ib.RecvWR{ID: uint64(i), SGList: p.buf[1].newSGL(8*i, 8)}
			sends[i] = ib.SendWR{ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(8*i, 8)}
		}
		fillPattern(p.buf[0].b, 5+round)
		clear(p.buf[1].b)
		for _, f := range post {
			f()
		}
		for i := range n {
			e.waitOneCompletion(p.cqs[0], uint64(i), ib.WCSuccess)
			e.waitOneCompletion(p.cqs[1], uint64(i), ib.WCSuccess)
		}
		if !bytes.Equal(p.buf[0].b[:8*n], p.buf[1].b[:8*n]) {
			e.Error("the messages arrived changed")
		}
	}
	p.checkInlineDataCopied()
}

// checkInlineDataCopied sends inline data that change after the post.
func (p *pair) checkInlineDataCopied() {
	e := p.e
	most := e.maxInlineData(p.pd, ib.QPTypeRC, 32)
	if most == 0 {
		e.Log("queue pairs cannot have inline data")
		return
	}
	qp := e.newQP(p.pd, ib.QPInitAttr{
		SendCQ: p.cqs[0], RecvCQ: p.cqs[0], Type: ib.QPTypeRC,
		Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: most},
	})
	e.connector.resetQPs(p.qps[:]...)
	e.connector.moveQPUpTo(qp, p.qps[1].Num(), ib.QPRTS)
	e.connector.moveQPUpTo(p.qps[1], qp.Num(), ib.QPRTS)
	data := []byte("inline data are copied")
	data = data[:min(len(data), int(most))]
	want := bytes.Clone(data)
	if n, err := qp.PostSend(ib.SendWR{ID: 9, Opcode: ib.WRSend, Flags: ib.SendSignaled | ib.SendInline,
		Inline: data}); n != 1 {
		e.Fatalf("post send inline: %v", err)
	}
	clear(data)
	p.postRecv(1, 9, 0, 100)
	e.waitOneCompletion(p.cqs[0], 9, ib.WCSuccess)
	if wc := e.waitOneCompletion(p.cqs[1], 9, ib.WCSuccess); !bytes.Equal(p.buf[1].b[:wc.ByteLen], want) {
		e.Errorf("inline data arrived as %q", p.buf[1].b[:wc.ByteLen])
	}
}

func testUnsignaledSendHasNoCompletion(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	p.postRecv(1, 1, 0, 8)
	p.postSendWR(0, ib.SendWR{ID: 1, Opcode: ib.WRSend, SGList: p.buf[0].newSGL(0, 8)})
	e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
	p.postRecv(1, 2, 0, 8)
	p.postSend(0, 2, 8)
	e.waitOneCompletion(p.cqs[0], 2, ib.WCSuccess) // the first of them
	all := e.newPair(pairConfig{kind: ib.QPTypeRC, sigAll: true})
	all.postRecv(1, 3, 0, 8)
	all.postSendWR(0, ib.SendWR{ID: 3, Opcode: ib.WRSend, SGList: all.buf[0].newSGL(0, 8)})
	e.waitOneCompletion(all.cqs[0], 3, ib.WCSuccess)
}

func testImmediateData(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	if !e.supportsOperation(ib.QPTypeRC, ib.WRSendWithImm) {
		e.Skip("the driver has no SEND with immediate data")
	}
	p.postRecv(1, 1, 0, 8)
	p.postSendWR(0, ib.SendWR{ID: 1, Opcode: ib.WRSendWithImm, Imm: 0x01020304, SGList: p.buf[0].newSGL(0, 8),
		Flags: ib.SendSignaled})
	e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess) // until then the driver may read the sent data again
	if wc := e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess); wc.Imm != 0x01020304 || wc.Flags&ib.WCWithImm == 0 ||
		wc.Opcode != ib.WCRecv {
		e.Errorf("send with immediate: %+v", wc)
	}
	p.postRecv(1, 2, 0, 8)
	fillPattern(p.buf[0].b[:100], 7)
	clear(p.buf[1].b)
	if !p.postIfSupported("RDMA WRITE", 0, ib.SendWR{
		ID: 2, Opcode: ib.WRRDMAWriteWithImm, Imm: 0xfffefdfc, SGList: p.buf[0].newSGL(0, 100), Flags: ib.SendSignaled,
		RemoteAddr: p.buf[1].addr + 200, RKey: p.buf[1].mr.RKey(),
	}) {
		e.Log("the driver has no RDMA WRITE with immediate data")
		return
	}
	wc := e.waitOneCompletion(p.cqs[1], 2, ib.WCSuccess)
	if wc.Imm != 0xfffefdfc || wc.Flags&ib.WCWithImm == 0 || wc.Opcode != ib.WCRecvRDMAWithImm || wc.ByteLen != 100 {
		e.Errorf("write with immediate: %+v", wc)
	}
	if !bytes.Equal(p.buf[0].b[:100], p.buf[1].b[200:300]) || !isAllZero(p.buf[1].b[:200]) {
		e.Error("write with immediate: the data are not where they should be")
	}
}

// postOrSkip is post, but skips the test if the driver does not support the operation.
func (p *pair) postOrSkip(ability string, side int, wr ib.SendWR) {
	p.e.Helper()
	if !p.postIfSupported(ability, side, wr) {
		p.e.Skipf("the driver has no %s", ability)
	}
}

// requireRDMAWrite skips a test of remote keys if the driver does not support RDMA WRITE.
func (p *pair) requireRDMAWrite() {
	p.e.Helper()
	p.postOrSkip("RDMA WRITE", 0, p.newRDMARequest(0, ib.WRRDMAWrite, nil, 0))
	p.e.waitOneCompletion(p.cqs[0], 0, ib.WCSuccess)
}

func (p *pair) newRDMARequest(id uint64, op ib.WROpcode, sgl []ib.SGE, off int) ib.SendWR {
	return ib.SendWR{
		ID: id, Opcode: op, Flags: ib.SendSignaled, SGList: sgl,
		RemoteAddr: p.buf[1].addr + uint64(off), RKey: p.buf[1].mr.RKey(),
	}
}

func testRDMAWrite(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	for i, n := range []int{1, 0, 4096, 4097, pairBufferLen} {
		fillPattern(p.buf[0].b, i)
		clear(p.buf[1].b)
		p.postOrSkip("RDMA WRITE", 0, p.newRDMARequest(uint64(i), ib.WRRDMAWrite, p.buf[0].newSGL(0, n), pairBufferLen-n))
		if wc := e.waitOneCompletion(p.cqs[0], uint64(i), ib.WCSuccess); wc.Opcode != ib.WCRDMAWrite {
			e.Errorf("%+v", wc)
		}
		if !bytes.Equal(p.buf[0].b[:n], p.buf[1].b[pairBufferLen-n:]) || !isAllZero(p.buf[1].b[:pairBufferLen-n]) {
			e.Errorf("write of %d bytes: the data are not where they should be", n)
		}
	}
	if n, _ := p.cqs[1].Poll(make([]ib.WC, 1)); n != 0 {
		e.Error("the peer got a completion for an RDMA WRITE")
	}
}

func testRDMARead(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	fillPattern(p.buf[1].b, 1) // once: the response to a retransmitted request may arrive after the completion
	for i, n := range []int{1, 4096, 4097, pairBufferLen} {
		clear(p.buf[0].b)
		p.postOrSkip("RDMA READ", 0, p.newRDMARequest(uint64(i), ib.WRRDMARead, p.buf[0].newSGL(pairBufferLen-n, n), 0))
		if wc := e.waitOneCompletion(p.cqs[0], uint64(i), ib.WCSuccess); wc.Opcode != ib.WCRDMARead {
			e.Errorf("%+v", wc)
		}
		if !bytes.Equal(p.buf[1].b[:n], p.buf[0].b[pairBufferLen-n:]) || !isAllZero(p.buf[0].b[:pairBufferLen-n]) {
			e.Errorf("read of %d bytes: the data are not where they should be", n)
		}
	}
}

func testAtomics(e *testEnv) {
	a, err := e.dev.QueryDevice()
	e.must("query device", err)
	if a.AtomicCap == ib.AtomicNone {
		e.Skip("the driver has no atomics: AtomicCap is none")
	}
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	value := func() uint64 { return binary.NativeEndian.Uint64(p.buf[1].b[16:]) }
	binary.NativeEndian.PutUint64(p.buf[1].b[16:], 100)
	do := func(op ib.WROpcode, add, swap, old, fresh uint64, wcop ib.WCOpcode) {
		e.Helper()
		wr := p.newRDMARequest(1, op, p.buf[0].newSGL(0, 8), 16)
		wr.CompareAdd, wr.Swap = add, swap
		p.postOrSkip("atomics", 0, wr)
		if wc := e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess); wc.Opcode != wcop {
			e.Errorf("%+v", wc)
		}
		if got := binary.NativeEndian.Uint64(p.buf[0].b); got != old || value() != fresh {
			e.Errorf("atomic %d: old value %d, want %d; new value %d, want %d", op, got, old, value(), fresh)
		}
	}
	do(ib.WRAtomicFetchAdd, 5, 0, 100, 105, ib.WCFetchAdd)
	do(ib.WRAtomicFetchAdd, ^uint64(0), 0, 105, 104, ib.WCFetchAdd)
	do(ib.WRAtomicCmpAndSwp, 104, 7, 104, 7, ib.WCCompSwap)
	do(ib.WRAtomicCmpAndSwp, 104, 9, 7, 7, ib.WCCompSwap)
	n, err := p.qps[0].PostSend(p.newRDMARequest(2, ib.WRAtomicFetchAdd, p.buf[0].newSGL(0, 8), 17)) // not aligned
	if n == 1 {
		e.waitOneCompletion(p.cqs[0], 2, ib.WCRemInvReqErr)
	} else {
		e.wantErrno("post an atomic that is not aligned", err, syscall.EINVAL)
	}
}

func testAccessRightsEnforced(e *testEnv) {
	pd := e.newPD()
	other := e.newPD()
	for _, test := range []struct {
		name   string
		access ib.AccessFlags
		op     ib.WROpcode
		off    int // offset of the remote address
		shift  uint32
		alien  bool // the key belongs to another domain
	}{
		{name: "write to read-only memory", access: ib.AccessLocalWrite | ib.AccessRemoteRead, op: ib.WRRDMAWrite},
		{name: "read from memory that is for writing", access: ib.AccessLocalWrite | ib.AccessRemoteWrite, op: ib.WRRDMARead},
		{name: "write behind the end", access: allAccess, op: ib.WRRDMAWrite, off: 1},
		{name: "write before the beginning", access: allAccess, op: ib.WRRDMAWrite, off: -1},
		{name: "write with a wrong key", access: allAccess, op: ib.WRRDMAWrite, shift: 1},
		{name: "write with another domain's key", access: allAccess, op: ib.WRRDMAWrite, alien: true},
	} {
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
		mrPD := pd
		if test.alien {
			mrPD = other
		}
		target := e.newBuffer(mrPD, 64, test.access)
		wr := ib.SendWR{
			ID: 1, Opcode: test.op, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 64),
			RemoteAddr: target.addr + uint64(test.off), RKey: target.mr.RKey() + test.shift,
		}
		fillPattern(p.buf[0].b, 1)
		if n, err := p.qps[0].PostSend(wr); n == 0 && errors.Is(err, syscall.EOPNOTSUPP) {
			e.Logf("%s: the driver cannot: %v", test.name, err)
			continue
		} else if n != 1 {
			e.Fatalf("%s: post: %v", test.name, err)
		}
		wc := e.waitAnyCompletion(p.cqs[0])
		if wc.Status != ib.WCRemAccessErr {
			e.Errorf("%s: completed with %q, want %q", test.name, wc.Status, ib.WCRemAccessErr)
		}
		if !isAllZero(target.b) {
			e.Errorf("%s: the memory was changed", test.name)
		}
		e.eventually("both ends in ERR after "+test.name, func() bool {
			return p.qps[0].State() == ib.QPErr && p.qps[1].State() == ib.QPErr
		})
	}
	// An operation that the queue pair does not allow is an invalid request for any key (IBA 9.9.3).
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
	p.requireRDMAWrite()
	fillPattern(p.buf[0].b, 1)
	e.must("modify", p.qps[1].Modify(ib.QPAttr{}, ib.QPAttrAccessFlags))
	p.postSendWR(0, p.newRDMARequest(1, ib.WRRDMAWrite, p.buf[0].newSGL(0, 8), 0))
	if wc := e.waitAnyCompletion(p.cqs[0]); wc.Status != ib.WCRemInvReqErr {
		e.Errorf("write to a queue pair that does not allow it: %q", wc.Status)
	}
	if !isAllZero(p.buf[1].b) {
		e.Error("write to a queue pair that does not allow it: the memory was changed")
	}
}

func testDeregisteredMemory(e *testEnv) {
	e.allowViolation(check.RuleInFlight) // an earlier receive
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	target := e.newBuffer(p.pd, 64, allAccess)
	wr := ib.SendWR{
		ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 64), RemoteAddr: target.addr,
		RKey: target.mr.RKey(),
	}
	fillPattern(p.buf[0].b, 1)
	if p.postIfSupported("RDMA WRITE", 0, wr) {
		e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
		e.destroy(target.mr)
		clear(target.b)
		wr.ID = 2
		p.postSendWR(0, wr)
		if wc := e.waitAnyCompletion(p.cqs[0]); wc.Status != ib.WCRemAccessErr || !isAllZero(target.b) {
			e.Errorf("write to deregistered memory: %q, memory changed: %v", wc.Status, !isAllZero(target.b))
		}
	}
	checkDeregisteredLocalMemory(e, p.pd)
}

// checkDeregisteredLocalMemory receives to, and sends from, deregistered memory, also with requests posted before the
// deregistration.
func checkDeregisteredLocalMemory(e *testEnv, pd *ib.PD) {
	e.Helper()
	for _, late := range []bool{false, true} {
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
		target := e.newBuffer(pd, 64, allAccess)
		receive := ib.RecvWR{ID: 1, SGList: target.newSGL(0, 64)}
		post := func() {
			e.Helper()
			if n, err := p.qps[1].PostRecv(receive); n != 1 {
				e.Fatalf("post receive: %v", err)
			}
		}
		fillPattern(p.buf[0].b, 1)
		post()
		p.postSend(0, 1, 64) // while it is registered
		e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
		e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
		if late {
			post()
		}
		e.destroy(target.mr)
		clear(target.b)
		if !late {
			post()
		}
		p.postSend(0, 2, 64)
		if wc := e.waitAnyCompletion(p.cqs[1]); wc.Status != ib.WCLocProtErr || !isAllZero(target.b) {
			e.Fatalf("receive to deregistered memory, posted before that: %v: completed with %q, want %q; memory changed: %v",
				late, wc.Status, ib.WCLocProtErr, !isAllZero(target.b))
		}
		if wc := e.waitAnyCompletion(p.cqs[0]); wc.Status != ib.WCRemOpErr {
			e.Errorf("send to a receive in deregistered memory completed with %q, want %q", wc.Status, ib.WCRemOpErr)
		}
	}
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
	source := e.newBuffer(pd, 64, allAccess)
	sgl := source.newSGL(0, 64)
	fillPattern(source.b, 2)
	clear(p.buf[1].b)
	p.postRecv(1, 1, 0, 64)
	e.destroy(source.mr)
	p.postSendWR(0, ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: sgl})
	if wc := e.waitAnyCompletion(p.cqs[0]); wc.Status != ib.WCLocProtErr {
		e.Errorf("send from deregistered memory completed with %q, want %q", wc.Status, ib.WCLocProtErr)
	}
	if !isAllZero(p.buf[1].b[:64]) {
		e.Error("send from deregistered memory: it has arrived")
	}
}

func testTooShortReceiveFails(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	p.postRecv(1, 1, 0, 99)
	p.postRecv(1, 2, 0, 99)
	clear(p.buf[1].b)
	p.postSend(0, 1, 100)
	e.waitOneCompletion(p.cqs[1], 1, ib.WCLocLenErr)
	e.waitOneCompletion(p.cqs[1], 2, ib.WCWRFlushErr)
	e.waitOneCompletion(p.cqs[0], 1, ib.WCRemInvReqErr)
}

func testWrongLocalKeyFails(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	p.postRecv(1, 1, 0, 8)
	bad := p.buf[0].newSGE(0, 8)
	bad.LKey++
	n, err := p.qps[0].PostSend(
		ib.SendWR{ID: 1, Opcode: ib.WRSend, SGList: []ib.SGE{bad}}, // not signaled
		ib.SendWR{ID: 2, Opcode: ib.WRSend, SGList: p.buf[0].newSGL(0, 8)},
	)
	if n == 0 {
		e.Fatalf("post send: %v", err)
	}
	e.waitOneCompletion(p.cqs[0], 1, ib.WCLocProtErr)
	if n == 2 {
		e.waitOneCompletion(p.cqs[0], 2, ib.WCWRFlushErr)
	}
	if s := p.qps[0].State(); s != ib.QPErr {
		e.Errorf("state is %v", s)
	}
}

func testUnreliableConnection(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeUC})
	p.exchangeMessage(0, 1, 5000)
	p.exchangeMessage(1, 2, 10)
	p.postSend(0, 3, 11) // no receive matches it, unless it is slow
	e.waitOneCompletion(p.cqs[0], 3, ib.WCSuccess)
	p.postRecv(1, 1, 0, 100)
	p.postRecv(1, 2, 0, 100)
	p.postSend(0, 4, 12)
	e.waitOneCompletion(p.cqs[0], 4, ib.WCSuccess)
	for {
		if wc := e.waitAnyCompletion(p.cqs[1]); wc.Status != ib.WCSuccess {
			e.Fatalf("completion with %q", wc.Status)
		} else if wc.ByteLen == 12 {
			return
		}
	}
}

const grhLen = 40

// newDatagramPair returns two datagram queue pairs with an address handle to the device itself.
func (e *testEnv) newDatagramPair() (*pair, *ib.AH) {
	p := e.newPair(pairConfig{kind: ib.QPTypeUD})
	return p, e.newAH(p.pd)
}

func (p *pair) newDatagramRequest(id uint64, ah *ib.AH, n int) ib.SendWR {
	return ib.SendWR{
		ID: id, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, n),
		AH: ah, RemoteQPN: p.qps[1].Num(), RemoteQKey: qkey,
	}
}

func testDatagramHeader(e *testEnv) {
	p, ah := e.newDatagramPair()
	for i, n := range []int{1, 0, 100, e.connector.port.ActiveMTU.Bytes()} {
		fillPattern(p.buf[0].b, i)
		clear(p.buf[1].b)
		p.postRecv(1, uint64(i), 0, pairBufferLen)
		p.postSendWR(0, p.newDatagramRequest(uint64(i), ah, n))
		e.waitOneCompletion(p.cqs[0], uint64(i), ib.WCSuccess)
		wc := e.waitOneCompletion(p.cqs[1], uint64(i), ib.WCSuccess)
		if int(wc.ByteLen) != grhLen+n || wc.SrcQP != p.qps[0].Num() || wc.Flags&ib.WCGRH == 0 {
			e.Errorf("datagram of %d bytes: %+v", n, wc)
		}
		if !bytes.Equal(p.buf[1].b[grhLen:grhLen+n], p.buf[0].b[:n]) {
			e.Errorf("datagram of %d bytes arrived changed", n)
		}
	}
	const n = 100
	var header []byte
	for _, k := range []int{0, 1, 20, 39, 40, 41, 60} { // a boundary between elements in and near the header
		if k > 0 && e.recvSGE < 2 {
			break
		}
		fillPattern(p.buf[0].b[:n], k)
		clear(p.buf[1].b)
		sgl := []ib.SGE{p.buf[1].newSGE(k, grhLen+n-k)}
		if k > 0 {
			sgl = append([]ib.SGE{p.buf[1].newSGE(0, k)}, sgl...)
		}
		e.mustPostRecv(p.qps[1], ib.RecvWR{ID: 8, SGList: sgl})
		p.postSendWR(0, p.newDatagramRequest(8, ah, n))
		e.waitOneCompletion(p.cqs[0], 8, ib.WCSuccess)
		e.waitOneCompletion(p.cqs[1], 8, ib.WCSuccess)
		if k == 0 {
			header = bytes.Clone(p.buf[1].b[:grhLen])
		}
		if !bytes.Equal(p.buf[1].b[:grhLen], header) || !bytes.Equal(p.buf[1].b[grhLen:][:n], p.buf[0].b[:n]) {
			e.Errorf("datagram of %d bytes, received in elements of %d bytes and the rest: it arrived changed", n, k)
		}
	}
	wr := p.newDatagramRequest(9, ah, 4)
	wr.Opcode, wr.Imm = ib.WRSendWithImm, 0xabcd
	p.postRecv(1, 9, 0, pairBufferLen)
	p.postSendWR(0, wr)
	if wc := e.waitOneCompletion(p.cqs[1], 9, ib.WCSuccess); wc.Imm != 0xabcd || wc.Flags&ib.WCWithImm == 0 {
		e.Errorf("datagram with immediate: %+v", wc)
	}
}

func testBadDatagramDropped(e *testEnv) {
	p, ah := e.newDatagramPair()
	p.postRecv(1, 1, 0, pairBufferLen)
	bad := p.newDatagramRequest(1, ah, 8)
	bad.RemoteQKey++
	p.postSendWR(0, bad)
	e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
	bad = p.newDatagramRequest(2, ah, 8)
	bad.RemoteQPN = 0xfffff0
	p.postSendWR(0, bad)
	e.waitOneCompletion(p.cqs[0], 2, ib.WCSuccess)
	fillPattern(p.buf[0].b, 6)
	p.postSendWR(0, p.newDatagramRequest(3, ah, 8))
	e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess) // the receive is still available for the valid message
	if !bytes.Equal(p.buf[1].b[grhLen:grhLen+8], p.buf[0].b[:8]) {
		e.Error("a datagram that should have been dropped has arrived")
	}
}
