package ibtest

import (
	"fmt"
	"syscall"

	"verbena/ib"
)

// incompleteChecks post requests that the type of queue pair does not support, or that lack a field.
var incompleteChecks = []ruleTest{
	{
		name: "Errors/IncompleteRC",
		rule: "a request without a required field is refused, or fails, and changes nothing",
		test: func(e *testEnv) { testIncompleteRequests(e, ib.QPTypeRC) },
	},
	{
		name: "Errors/IncompleteUC",
		rule: "that holds for an unreliable connection, too, and for operations that only a reliable one has",
		test: func(e *testEnv) { testIncompleteRequests(e, ib.QPTypeUC) },
	},
	{
		name: "Errors/IncompleteUD",
		rule: "that holds for datagrams, too, and for operations that only a connection has",
		test: func(e *testEnv) { testIncompleteRequests(e, ib.QPTypeUD) },
	},
}

// testIncompleteRequests posts each wrong request to a pair of its own, because a failed request stops a queue pair.
func testIncompleteRequests(e *testEnv, kind ib.QPType) {
	for i := 0; ; i++ {
		pd := e.newPD()
		p := e.newPair(pairConfig{kind: kind, pd: pd})
		for j := range p.buf[0].b {
			p.buf[0].b[j] = 0xa5
		}
		list := incompleteRequests(p, kind)
		if i == len(list) {
			return
		}
		wr := list[i].wr
		what := fmt.Sprintf("post to a %v queue pair: %s", kind, list[i].what)
		wr.ID, wr.Flags = 7, wr.Flags|ib.SendSignaled
		if n, err := p.qps[0].PostSend(wr); err != nil {
			if n != 0 {
				e.Errorf("%s: refused, and %d requests are taken", what, n)
			}
			e.wantErrno(what, err, syscall.EINVAL, syscall.EOPNOTSUPP)
		} else if wc := e.waitAnyCompletion(p.cqs[0]); wc.ID != 7 || wc.Status == ib.WCSuccess {
			e.Errorf("%s: got completion %d with %q, want 7 with an error", what, wc.ID, wc.Status)
		}
		if !isAllZero(p.buf[1].b) {
			e.Errorf("%s: memory of the peer was changed", what)
		}
		for _, o := range []any{p.qps[0], p.qps[1]} {
			e.destroy(o)
		}
	}
}

// incompleteRequest is a request that must not succeed.
type incompleteRequest struct {
	what string
	wr   ib.SendWR
}

// incompleteRequests returns requests that a pair must not execute.
func incompleteRequests(p *pair, kind ib.QPType) []incompleteRequest {
	list := []incompleteRequest{
		{"an opcode that does not exist", ib.SendWR{Opcode: 0x7e}},
		{"a bind without parameters", ib.SendWR{Opcode: ib.WRBindMW}},
		{"a bind without a window", ib.SendWR{Opcode: ib.WRBindMW,
			Bind: &ib.BindMW{MR: p.buf[0].mr, Addr: p.buf[0].addr, Length: 8}}},
		{"a registration without parameters", ib.SendWR{Opcode: ib.WRRegMR}},
		{"a registration without a region", ib.SendWR{Opcode: ib.WRRegMR, Reg: &ib.FastReg{Key: 1}}},
		{"an atomic WRITE of 4 bytes", ib.SendWR{Opcode: ib.WRAtomicWrite, Inline: make([]byte, 4), Flags: ib.SendInline,
			RemoteAddr: p.buf[1].addr, RKey: p.buf[1].mr.RKey()}},
	}
	lacking := func(what string, op ib.WROpcode) {
		wr := p.newRDMARequest(0, op, p.buf[0].newSGL(0, 8), 0)
		wr.Flush = ib.Flush{Placement: ib.FlushGlobal, Length: 8}
		wr.CompareAdd = 1
		list = append(list, incompleteRequest{what, wr})
	}
	if kind != ib.QPTypeRC {
		lacking("a READ", ib.WRRDMARead)
		lacking("a fetch and add", ib.WRAtomicFetchAdd)
		lacking("a compare and swap", ib.WRAtomicCmpAndSwp)
		lacking("a FLUSH", ib.WRFlush)
	}
	if kind == ib.QPTypeUD {
		list = append(list,
			incompleteRequest{"a SEND without an address", ib.SendWR{Opcode: ib.WRSend, SGList: p.buf[0].newSGL(0, 8)}},
			incompleteRequest{"a SEND with immediate data, without an address",
				ib.SendWR{Opcode: ib.WRSendWithImm, SGList: p.buf[0].newSGL(0, 8)}})
		lacking("a WRITE", ib.WRRDMAWrite)
		lacking("a WRITE with immediate data", ib.WRRDMAWriteWithImm)
		if mw, err := p.pd.AllocMW(ib.MWType2); err == nil {
			destroyAtEnd(p.e, mw, mw.Dealloc)
			bind := &ib.BindMW{MW: mw, MR: p.buf[0].mr, RKey: ib.IncRKey(mw.RKey()), Addr: p.buf[0].addr, Length: 8,
				Access: ib.AccessRemoteWrite}
			list = append(list, incompleteRequest{"a bind", ib.SendWR{Opcode: ib.WRBindMW, Bind: bind}})
		}
	}
	return list
}
