package ibtest

import (
	"bytes"
	"fmt"
	"syscall"

	"verbena/ib"
)

// Domains: the use of shared receive queues across protection domains.

var domainChecks = []ruleTest{
	{
		name: "SRQ/Domain",
		rule: "the receives of a shared receive queue are in memory of its own domain, not of the queue pair's",
		test: testSRQOfOtherDomain,
	},
	{
		name: "XRC/Domain",
		rule: "an XRC target reaches the shared receive queues of its XRC domain, and no others",
		test: testXRCSRQOfOtherDomain,
	},
}

func testSRQOfOtherDomain(e *testEnv) {
	theirs, mine := e.newPD(), e.newPD() // the domains of the queue pairs and of the shared receive queue
	good, bad := e.newBuffer(mine, 256, allAccess), e.newBuffer(theirs, 256, allAccess)
	for _, kind := range queuePairTypes {
		if e.newQPOfType(kind, theirs, e.newCQ(8, nil)) == nil {
			e.Logf("the driver has no queue pairs of type %v", kind)
			continue
		}
		srq := e.newSRQ(mine, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 8, MaxSGE: 1}})
		// The second element may belong to the other domain.
		for i, c := range []struct {
			what string
			sgl  []ib.SGE
			want ib.WCStatus
		}{
			{"memory of the queue's domain", good.newSGL(0, 128), ib.WCSuccess},
			{"memory of the queue pair's domain", bad.newSGL(0, 128), ib.WCLocProtErr},
			{"memory of the queue's domain, and of the queue pair's", []ib.SGE{good.newSGE(0, 4), bad.newSGE(0, 128)},
				ib.WCLocProtErr},
		} {
			what := fmt.Sprintf("%v, receive into %s", kind, c.what)
			p := e.newPair(pairConfig{kind: kind, pd: theirs, srq: srq})
			wr := ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 64)}
			at := 0
			if kind == ib.QPTypeUD {
				wr, at = p.newDatagramRequest(1, e.newAH(theirs), 64), grhLen
			}
			fillPattern(p.buf[0].b[:64], i)
			clear(good.b)
			if n, err := srq.PostRecv(ib.RecvWR{ID: 1, SGList: c.sgl}); n == 0 && c.want != ib.WCSuccess {
				e.wantErrno(what, err, syscall.EINVAL)
				continue
			} else if n != 1 {
				e.Fatalf("%s: post receive: %v", what, err)
			}
			p.postSendWR(0, wr)
			sent, got := e.waitAnyCompletion(p.cqs[0]), e.waitAnyCompletion(p.cqs[1])
			if got.Status != c.want {
				e.Fatalf("%s: completed with %q, want %q", what, got.Status, c.want)
			}
			if reliable := kind == ib.QPTypeRC; (sent.Status == ib.WCSuccess) != (c.want == ib.WCSuccess || !reliable) {
				e.Errorf("%s: the send completed with %q", what, sent.Status)
			}
			if c.want == ib.WCSuccess && !bytes.Equal(good.b[at:at+64], p.buf[0].b[:64]) {
				e.Errorf("%s: the message arrived changed", what)
			}
			if !isAllZero(bad.b) {
				e.Fatalf("%s: the memory was changed", what)
			}
		}
	}
	// Remote keys must belong to the queue pair's domain, whichever receive is consumed.
	srq := e.newSRQ(mine, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 8, MaxSGE: 1}})
	for _, target := range []*registeredBuffer{bad, good} {
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: theirs, srq: srq})
		e.mustPostSRQ(srq, ib.RecvWR{ID: 2})
		wr := p.newRDMARequest(2, ib.WRRDMAWriteWithImm, p.buf[0].newSGL(0, 8), 0)
		wr.RemoteAddr, wr.RKey = target.addr, target.mr.RKey()
		p.postOrSkip("RDMA WRITE with immediate data", 0, wr)
		want := ib.WCSuccess
		if target == good {
			want = ib.WCRemAccessErr
		}
		if wc := e.waitAnyCompletion(p.cqs[0]); wc.Status != want {
			e.Errorf("RDMA WRITE to memory of the queue pair's domain: %v: completed with %q, want %q", target == bad, wc.Status,
				want)
		}
	}
}

func testXRCSRQOfOtherDomain(e *testEnv) {
	pd, send, buf := e.newPD(), e.newCQ(64, nil), (*registeredBuffer)(nil)
	buf = e.newBuffer(pd, 1024, allAccess)
	type side struct {
		x        *ib.XRCD
		srq      *ib.SRQ
		recv     *ib.CQ
		ini, tgt *ib.QP
	}
	var sides [2]side
	for i := range sides {
		s := &sides[i]
		x, err := e.dev.AllocXRCD()
		e.requireFeature("XRC domains", err)
		s.x = destroyAtEnd(e, x, x.Dealloc)
		s.recv = e.newCQ(16, nil)
		s.srq = e.newSRQ(pd, ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: s.x, CQ: s.recv, Attr: ib.SRQAttr{MaxWR: 8, MaxSGE: 1}})
		s.ini, s.tgt = e.newXRCPair(pd, s.x, send)
	}
	message := func(id uint64, op ib.WROpcode, srqn uint32) ib.SendWR {
		return ib.SendWR{
			ID: id, Opcode: op, Flags: ib.SendSignaled, Imm: 7, SGList: buf.newSGL(0, 16), RemoteSRQN: srqn,
			RemoteAddr: buf.addr + 512, RKey: buf.mr.RKey(),
		}
	}
	post := func(qp *ib.QP, wr ib.SendWR) ib.WC {
		e.Helper()
		if n, err := qp.PostSend(wr); n != 1 {
			e.Fatalf("post send: %v", err)
		}
		return e.waitAnyCompletion(send)
	}
	gone := e.newSRQ(pd, ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: sides[0].x, CQ: sides[0].recv,
		Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}})
	num := gone.Num()
	e.destroy(gone)
	for i := range sides {
		a, b := &sides[i], &sides[1-i]
		for _, op := range []ib.WROpcode{ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWriteWithImm} {
			e.mustPostSRQ(a.srq, ib.RecvWR{ID: 1, SGList: buf.newSGL(128, 16)})
			e.mustPostSRQ(b.srq, ib.RecvWR{ID: 2, SGList: buf.newSGL(256, 16)})
			for what, srqn := range map[string]uint32{"another domain": b.srq.Num(), "none, any more": num} {
				fillPattern(buf.b[:16], int(op))
				clear(buf.b[256:])
				if wc := post(a.ini, message(3, op, srqn)); wc.Status == ib.WCSuccess {
					e.Fatalf("message, opcode %v, for a shared receive queue of %s: completed with %q", op, what, wc.Status)
				}
				if !isAllZero(buf.b[256:]) {
					e.Fatalf("message, opcode %v, for a shared receive queue of %s: memory was changed", op, what)
				}
				e.connector.resetQPs(a.ini, a.tgt)
				e.connector.moveQPUpTo(a.ini, a.tgt.Num(), ib.QPRTS)
				e.connector.moveQPUpTo(a.tgt, a.ini.Num(), ib.QPRTS)
			}
			// The receives are used by messages of their own domain.
			for k, s := range []*side{a, b} {
				if wc := post(s.ini, message(4, op, s.srq.Num())); wc.Status != ib.WCSuccess {
					e.Fatalf("message, opcode %v, for a shared receive queue of the domain: completed with %q", op, wc.Status)
				}
				e.waitOneCompletion(s.recv, uint64(k+1), ib.WCSuccess)
			}
		}
	}
}
