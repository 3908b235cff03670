package ibtest

import (
	"fmt"
	"sync/atomic"

	"verbena/ib"
	"verbena/umem"
)

// Memory that can no longer be read or written, as when a process has unmapped it.

var memoryFaultChecks = []ruleTest{
	{
		name: "Errors/MemoryFault",
		rule: "a request whose memory cannot be read or written fails, the requests before it succeed, and the queue pair of the " +
			"side with that memory moves to ERR",
		test: testMemoryFaultFailsRequest,
	},
}

// faultySpace is an address space whose accesses fail once broken is set.
type faultySpace struct {
	umem.Space
	broken atomic.Bool
}

// ReadV implements umem.Space.
func (f *faultySpace) ReadV(dst [][]byte, addr uint64) error {
	if f.broken.Load() {
		return umem.ErrFault
	}
	return f.Space.ReadV(dst, addr)
}

// WriteV implements umem.Space.
func (f *faultySpace) WriteV(src [][]byte, addr uint64) error {
	if f.broken.Load() {
		return umem.ErrFault
	}
	return f.Space.WriteV(src, addr)
}

func testMemoryFaultFailsRequest(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	space := &faultySpace{Space: e.mem} // umem.ErrFault, as of an unmapped page
	b, addr := e.newMemory(64)
	mr, err := p.pd.RegMR(ib.MRInit{Space: space, Addr: addr, IOVA: addr, Length: 64, Access: p.buf[0].mr.Access()})
	e.must("register memory", err)
	destroyAtEnd(e, mr, mr.Dereg)
	reads := p.postIfSupported("RDMA READ", 0, ib.SendWR{Opcode: ib.WRRDMARead, SGList: p.buf[0].newSGL(0, 8),
		RemoteAddr: p.buf[1].addr, RKey: p.buf[1].mr.RKey()})
	bad := (&registeredBuffer{b, addr, mr}).newSGL(0, 8)
	for _, c := range []struct {
		op     ib.WROpcode
		side   int // with the memory that fails
		before int // bytes of the message before that memory
		status []ib.WCStatus
	}{
		{ib.WRSend, 0, 0, []ib.WCStatus{ib.WCLocProtErr}},
		{ib.WRSend, 0, 10_000, []ib.WCStatus{ib.WCLocProtErr}},
		{ib.WRSend, 1, 0, []ib.WCStatus{ib.WCRemOpErr}},
		{ib.WRSend, 1, 10_000, []ib.WCStatus{ib.WCRemOpErr}},
		{ib.WRRDMAWrite, 0, 0, []ib.WCStatus{ib.WCLocProtErr}},
		{ib.WRRDMAWrite, 0, 10_000, []ib.WCStatus{ib.WCLocProtErr}},
		{ib.WRRDMAWrite, 1, 0, []ib.WCStatus{ib.WCRemOpErr, ib.WCRemAccessErr}},
		{ib.WRRDMAWriteWithImm, 1, 0, []ib.WCStatus{ib.WCRemOpErr, ib.WCRemAccessErr}},
		{ib.WRRDMARead, 0, 0, []ib.WCStatus{ib.WCLocProtErr}},
		{ib.WRRDMARead, 0, 10_000, []ib.WCStatus{ib.WCLocProtErr}},
		{ib.WRRDMARead, 1, 0, []ib.WCStatus{ib.WCRemOpErr, ib.WCRemAccessErr}},
		{ib.WRAtomicFetchAdd, 0, 0, []ib.WCStatus{ib.WCLocProtErr}},
		{ib.WRAtomicFetchAdd, 1, 0, []ib.WCStatus{ib.WCRemOpErr, ib.WCRemAccessErr}},
	} {
		if c.before > 0 && min(e.sendSGE, e.recvSGE) < 2 {
			continue
		}
		what := fmt.Sprintf("opcode %v with faulty memory on side %d after %d bytes", c.op, c.side, c.before)
		// A message that cannot be read ends without an answer of the peer, and without the timer of one.
		back := e.connector.disableAckTimeout(c.side == 0 && (c.op == ib.WRSend || c.op == ib.WRRDMAWrite))
		p.reconnect()
		sgls := [2][]ib.SGE{p.buf[0].newSGL(0, c.before+8), p.buf[1].newSGL(0, c.before+8)}
		sgls[c.side] = bad
		if c.before > 0 {
			sgls[c.side] = append(p.buf[c.side].newSGL(0, c.before), bad...)
		}
		wr := ib.SendWR{ID: 1, Opcode: c.op, Flags: ib.SendSignaled, SGList: sgls[0], RemoteAddr: sgls[1][0].Addr,
			RKey: p.buf[1].mr.RKey(), CompareAdd: 1}
		if c.side == 1 {
			wr.RKey = mr.RKey()
		}
		e.mustPostRecv(p.qps[1], ib.RecvWR{ID: 2, SGList: sgls[1]})
		space.broken.Store(true)
		earlier := ib.SendWR{ID: 3, Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(16_000, 8),
			RemoteAddr: p.buf[1].addr, RKey: p.buf[1].mr.RKey()}
		var taken bool
		if c.side == 1 && reads { // the answer to the READ precedes the refusal of the request, in one list
			taken = p.postListIfSupported(what, 0, earlier, wr)
			e.waitOneCompletion(p.cqs[0], 3, ib.WCSuccess)
		} else {
			taken = p.postListIfSupported(what, 0, wr)
		}
		if taken {
			e.wantCompletionStatus(what, p.cqs[0], c.status)
			e.wantQPState(what, p.qps[c.side], ib.QPErr)
		}
		space.broken.Store(false)
		back()
	}
	p.reconnect()
	p.exchangeMessage(0, 1, 8)
	if e.supportsType(ib.QPTypeUD) {
		testMemoryFaultOfDatagram(e, p.pd, space, bad[0])
	}
}

// testMemoryFaultOfDatagram sends datagrams to receives with faulty memory for the header, the data, or both.
func testMemoryFaultOfDatagram(e *testEnv, pd *ib.PD, space *faultySpace, bad ib.SGE) {
	const n = 8
	for _, c := range []struct {
		name   string
		before uint32 // bytes before the faulty memory
		faulty uint32
		after  uint32
	}{{"all", 0, grhLen + n, 0}, {"header", 0, grhLen, n}, {"data", grhLen, n, 0}} {
		if e.recvSGE < 2 && c.faulty < grhLen+n {
			continue
		}
		p := e.newPair(pairConfig{kind: ib.QPTypeUD, pd: pd})
		ah := e.newAH(pd)
		bad.Length = c.faulty
		var sgl []ib.SGE
		if c.before > 0 {
			sgl = append(sgl, p.buf[1].newSGE(0, int(c.before)))
		}
		if sgl = append(sgl, bad); c.after > 0 {
			sgl = append(sgl, p.buf[1].newSGE(0, int(c.after)))
		}
		e.mustPostRecv(p.qps[1], ib.RecvWR{ID: 1, SGList: sgl})
		what := fmt.Sprintf("datagram whose %s is in faulty memory of the receive", c.name)
		space.broken.Store(true)
		p.postSendWR(0, p.newDatagramRequest(1, ah, n))
		e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
		e.wantCompletionStatus(what, p.cqs[1], []ib.WCStatus{ib.WCLocProtErr})
		e.wantQPState(what, p.qps[1], ib.QPErr)
		space.broken.Store(false)
	}
}
