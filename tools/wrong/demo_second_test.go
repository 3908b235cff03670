package wrong

import (
	"maps"
	"testing"

	"verbena/ib"
	"verbena/umem"
)

func init() { maps.Copy(demos, blindDefectDemos) }

// blindDefectDemos holds the demos of the entries of blindDefects.
var blindDefectDemos = map[string]func(l *testbed){
	"invalidate-before-check": func(l *testbed) {
		a, b := l.newConnectedPair(nil)
		c, _ := l.newConnectedPair(nil)
		mr := must(l.pd.AllocMR(4))(l.t)
		mem := umem.NewLocal()
		addr := must(mem.Add(make([]byte, 8192)))(l.t)
		l.wantEqual("map", mr.Map(mem, nil, []umem.Range{{Addr: addr, Length: 4096}}, addr), nil)
		l.postSend(b, ib.SendWR{Opcode: ib.WRRegMR, Reg: &ib.FastReg{MR: mr, Key: mr.RKey(),
			Access: ib.AccessLocalWrite | ib.AccessRemoteWrite}})
		l.wantEqual("register", l.lastStatus(l.cq), ib.WCSuccess.String())
		l.postRecv(b, 1) // 128 bytes
		l.postSend(a, ib.SendWR{Opcode: ib.WRSendWithInv, SGList: l.sgeAt(0, 256), InvalidateRKey: mr.RKey()})
		l.wantEqual("status of a send that is longer than the receive", l.pollAll(l.cq)[0].Status, ib.WCLocLenErr)
		l.postSend(c, ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: l.sgeAt(0, 8), RemoteAddr: mr.Addr(), RKey: mr.RKey()})
		l.wantEqual("status of a write to the region that was not invalidated", l.lastStatus(l.cq), ib.WCSuccess.String())
	},
	"retry-list-lost": func(l *testbed) {
		a, b := l.newConnectedPair(nil)
		copy(l.buf, "first___second__")
		l.postSend(a, ib.SendWR{Opcode: ib.WRSend, SGList: append(l.sgeAt(0, 8), l.sgeAt(8, 8)...)})
		l.wantEqual("number of completions without a receive", len(l.pollAll(l.cq)), 0)
		l.postRecv(b, 1)
		for _, wc := range l.pollAll(l.cq) {
			if wc.Opcode == ib.WCRecv {
				l.wantEqual("bytes received", wc.ByteLen, uint32(16))
			}
		}
		l.wantEqual("message", string(l.buf[4096:4112]), "first___second__")
	},
	"key-wrap": func(l *testbed) {
		a, _ := l.newConnectedPair(nil)
		b := make([]byte, 64)
		for range 1 << 16 {
			l.wantEqual("dereg", must(l.pd.RegBytes(b, ib.AccessLocalWrite))(l.t).Dereg(), nil)
		}
		mr := must(l.pd.RegBytes(b, ib.AccessLocalWrite|ib.AccessRemoteWrite))(l.t)
		l.postSend(a, ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: l.sgeAt(0, 8), RemoteAddr: mr.Addr(), RKey: mr.RKey()})
		l.wantEqual("status of a write to the region after 65536 other regions", l.lastStatus(l.cq), ib.WCSuccess.String())
	},
	"flush-other-cq": func(l *testbed) {
		cq := must(l.dev.CreateCQ(ib.CQInit{Entries: 8}))(l.t)
		a, _ := l.newConnectedPair(func(i *ib.QPInitAttr) { i.SendCQ = cq })
		l.wantEqual("modify", a.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState), nil)
		l.postSend(a, ib.SendWR{Opcode: ib.WRRDMAWrite})
		l.wantEqual("number of completions of the receive CQ", len(l.pollAll(l.cq)), 0)
		l.wantEqual("number of completions of the send CQ", len(l.pollAll(cq)), 1)
	},
	"srq-arm-below": func(l *testbed) {
		events := make(chan ib.EventType, 8)
		srq := must(l.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1},
			Event: func(_ *ib.SRQ, e ib.EventType) { events <- e }}))(l.t)
		l.postRecv(srq, 1)
		l.wantEqual("modify", srq.Modify(ib.SRQAttr{Limit: 3}, ib.SRQAttrLimit), nil)
		l.wantEqual("events", countQueued(events), 1)
	},
	"poll-cached-qp": func(l *testbed) {
		a, _ := l.newConnectedPair(nil)
		b, _ := l.newConnectedPair(nil)
		l.postSend(a, ib.SendWR{Opcode: ib.WRRDMAWrite})
		l.postSend(b, ib.SendWR{Opcode: ib.WRRDMAWrite})
		all := l.pollAll(l.cq)
		l.wantEqual("completions", len(all), 2)
		for i, q := range []*ib.QP{a, b} {
			l.wantEqual("number of the queue pair of the completion", all[i].QPNum, q.Num())
			l.wantEqual("completion names the queue pair with this number", all[i].QP == q, true)
		}
	},
	"bind-error-leak": func(l *testbed) {
		a, _ := l.newConnectedPair(nil)
		mw := must(l.pd.AllocMW(ib.MWType2))(l.t)
		l.postSend(a, ib.SendWR{Opcode: ib.WRBindMW, Bind: &ib.BindMW{MW: mw, MR: l.mr, RKey: ib.IncRKey(mw.RKey()),
			Addr: l.mr.Addr(), Length: 64, Access: ib.AccessRemoteRead | ib.AccessLocalWrite}})
		l.wantEqual("status of a bind with a right that windows do not support", l.lastStatus(l.cq), ib.WCMWBindErr.String())
		l.wantEqual("error of Dealloc of the window", mw.Dealloc(), nil)
		l.wantEqual("error of Dereg of a region without a bound window", l.mr.Dereg(), nil)
	},
	"cur-state-unnamed": func(l *testbed) {
		a, _ := l.newConnectedPair(nil)
		attr, _, err := a.Query(ib.QPAttrState)
		l.wantEqual("query", err, nil)
		attr.State = ib.QPSQD
		l.wantEqual("modify to SQD", a.Modify(attr, ib.QPAttrState), nil)
		attr.State = ib.QPRTS // CurState is RTS, as returned by the query
		l.wantEqual("modify to RTS", a.Modify(attr, ib.QPAttrState), nil)
	},
	"list-error-stalls": func(l *testbed) {
		a, _ := l.newConnectedPair(nil)
		n, err := a.PostSend(ib.SendWR{Opcode: ib.WRRDMAWrite}, ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: make([]ib.SGE, 17)})
		l.wantEqual("taken", n, 1)
		l.wantEqual("refused", err != nil, true)
		l.wantEqual("completions", len(l.pollAll(l.cq)), 1)
	},
	"query-asked-state": func(l *testbed) {
		a, b := l.newConnectedPair(nil)
		l.postSend(a, ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: l.sgeAt(0, 8), RemoteAddr: l.mr.Addr(), RKey: ^l.mr.RKey()})
		l.wantEqual("status of a write with a wrong key", l.lastStatus(l.cq), ib.WCRemAccessErr.String())
		for _, q := range []*ib.QP{a, b} {
			attr, _, err := q.Query(ib.QPAttrState)
			l.wantEqual("query", err, nil)
			l.wantEqual("state", attr.State, ib.QPErr)
		}
	},
}

// TestBlindDefectsHaveDemos tests that each entry of blindDefects has a demo.
func TestBlindDefectsHaveDemos(t *testing.T) {
	for _, d := range blindDefects {
		if demos[d.Name] == nil {
			t.Errorf("%s: got no demo", d.Name)
		}
	}
}
