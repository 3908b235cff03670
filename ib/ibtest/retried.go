package ibtest

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"

	"verbena/ib"
)

// Requests that are retried because the receiver was not ready.

var retriedMessageChecks = []ruleTest{
	{
		name: "Data/Retried",
		rule: "a request that has found no receive, once or more often, arrives whole when there is one, behind those before it",
		test: testRetriedMessages,
	},
}

// retriedInlineCap is the inline capacity that the check needs.
const retriedInlineCap = 48

// testRetriedMessages posts messages without receives, and then posts the receives one after the other.
func testRetriedMessages(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	qp, err := p.pd.CreateQP(ib.QPInitAttr{
		SendCQ: p.cqs[0], RecvCQ: p.cqs[0], Type: ib.QPTypeRC,
		Cap: ib.QPCap{MaxSendWR: e.defaultQPCap().MaxSendWR, MaxRecvWR: 1, MaxSendSGE: e.defaultQPCap().MaxSendSGE,
			MaxRecvSGE:    1,
			MaxInlineData: retriedInlineCap},
	})
	inline := err == nil
	if inline {
		destroyAtEnd(e, qp, qp.Destroy)
		e.connector.resetQPs(p.qps[:]...)
		e.connector.moveQPUpTo(qp, p.qps[1].Num(), ib.QPRTS)
		e.connector.moveQPUpTo(p.qps[1], qp.Num(), ib.QPRTS)
		p.qps[0] = qp
	} else {
		e.Logf("the driver has no inline data: %v", err)
	}
	a, b := p.buf[0], p.buf[1]
	fillPattern(a.b, 9)
	// Each WRITE has its own destination, because all packets before the message that needs a receive may be written at
	// any time. The receive buffers follow, each as long as the longest SEND.
	const (
		times = 3       // outstanding messages
		place = 7 << 10 // bytes per destination
		recvs = times * place
		most  = pairBufferLen - recvs
	)
	for _, c := range []struct {
		name   string
		op     ib.WROpcode
		inline bool
		parts  []int
	}{
		{"SEND of one element", ib.WRSend, false, []int{8}},
		{"SEND of two elements", ib.WRSend, false, []int{8, 8}},
		{"SEND of four elements, one of them empty", ib.WRSend, false, []int{1, 0, 299, 50}},
		{"SEND of several packets", ib.WRSend, false, []int{4000, 1, 5000, 1400}},
		{"SEND with immediate of three elements", ib.WRSendWithImm, false, []int{3, 100, 7}},
		{"inline SEND", ib.WRSend, true, []int{31}},
		{"inline SEND with immediate", ib.WRSendWithImm, true, []int{retriedInlineCap}},
		{"RDMA WRITE with immediate", ib.WRRDMAWriteWithImm, false, []int{64}},
		{"RDMA WRITE with immediate of four elements", ib.WRRDMAWriteWithImm, false, []int{9, 100, 17, 3}},
		{"RDMA WRITE with immediate of several packets", ib.WRRDMAWriteWithImm, false, []int{5000, 2, 2000}},
		{"inline RDMA WRITE with immediate", ib.WRRDMAWriteWithImm, true, []int{20}},
	} {
		if c.inline && !inline || len(c.parts) > e.sendSGE {
			continue
		}
		write := c.op == ib.WRRDMAWriteWithImm
		var want [times][]byte
		clear(b.b)
		for i := range want {
			wr := ib.SendWR{
				ID: uint64(i), Opcode: c.op, Flags: ib.SendSignaled, Imm: 0x0a0b0c00 + uint32(i),
				RemoteAddr: b.addr + uint64(place*i), RKey: b.mr.RKey(),
			}
			for k, n := range c.parts {
				off := 6000*k + 100*i
				wr.SGList = append(wr.SGList, a.newSGE(off, n))
				want[i] = append(want[i], a.b[off:off+n]...)
			}
			if c.inline {
				wr.SGList, wr.Inline, wr.Flags = nil, bytes.Clone(want[i]), wr.Flags|ib.SendInline
			}
			n, err := p.qps[0].PostSend(wr)
			if n == 0 && (errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS)) {
				e.Logf("the driver has no %s", c.name)
				break
			}
			if n != 1 {
				e.Fatalf("post %s: %v", c.name, err)
			}
			if c.inline {
				clear(wr.Inline)
			}
			if i < times-1 {
				continue
			}
			e.awaitDueCallbacks() // so that the first has found no receive
			for i, want := range want {
				p.postRecv(1, uint64(i), recvs, most)
				what := fmt.Sprintf("%s, number %d without a receive at first", c.name, i)
				wc := e.waitOneCompletion(p.cqs[1], uint64(i), ib.WCSuccess)
				e.waitOneCompletion(p.cqs[0], uint64(i), ib.WCSuccess)
				got, rest := b.b[recvs:], b.b[:recvs]
				if write {
					got, rest = b.b[place*i:place*(i+1)], b.b[recvs:]
				}
				if int(wc.ByteLen) != len(want) || !bytes.Equal(got[:len(want)], want) || !isAllZero(rest) ||
					!isAllZero(got[len(want):]) {
					e.Fatalf("%s: %d bytes arrived, want %d, the same: %v, nothing elsewhere: %v", what, wc.ByteLen, len(want),
						bytes.Equal(got[:len(want)], want), isAllZero(rest) && isAllZero(got[len(want):]))
				}
				if c.op != ib.WRSend && (wc.Imm != 0x0a0b0c00+uint32(i) || wc.Flags&ib.WCWithImm == 0) {
					e.Fatalf("%s: completed as %+v, want immediate data %#x", what, wc, 0x0a0b0c00+i)
				}
				e.awaitDueCallbacks() // so that the next one has found no receive, again
			}
		}
	}
}
