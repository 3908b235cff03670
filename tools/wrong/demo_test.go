package wrong

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/check"
	"verbena/umem"
)

// noEventTimeout bounds the wait for a completion or event that must not arrive.
const noEventTimeout = 300 * time.Millisecond

// testbed is a device with the objects of the consumers in this file.
type testbed struct {
	t    *testing.T
	h    *ib.DeviceHandle
	dev  *ib.Device
	pd   *ib.PD
	cq   *ib.CQ
	mr   *ib.MR
	buf  []byte
	gid  ib.GID
	seen atomic.Pointer[check.Violation]
}

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newTestbed(t *testing.T, checked bool) *testbed {
	t.Helper()
	l := &testbed{t: t, buf: make([]byte, 1<<16)}
	var core ib.Core
	if checked {
		check.On(&core, check.Config{Report: func(v check.Violation) { l.seen.CompareAndSwap(nil, &v) }})
	}
	l.h = loopback.New("loop0", nil).Handle()
	if err := core.Register(l.h); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { core.Unregister(l.h) }) // remaining objects do not matter here
	l.dev = l.h.Device()
	l.gid = must(l.dev.QueryGID(1, 0))(t).GID
	l.pd = must(l.dev.AllocPD())(t)
	l.cq = must(l.dev.CreateCQ(ib.CQInit{Entries: 64}))(t)
	l.mr = must(
		l.pd.RegBytes(l.buf,
			ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessRemoteRead|ib.AccessRemoteAtomic|ib.AccessMWBind))(t)
	return l
}

func (l *testbed) newQP(kind ib.QPType, change func(*ib.QPInitAttr)) *ib.QP {
	l.t.Helper()
	init := ib.QPInitAttr{SendCQ: l.cq, RecvCQ: l.cq, Type: kind, SigAll: true,
		Cap: ib.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 2, MaxRecvSGE: 2}}
	if kind == ib.QPTypeXRCInit {
		init.RecvCQ, init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = nil, 0, 0
	}
	if change != nil {
		change(&init)
	}
	return must(l.pd.CreateQP(init))(l.t)
}

const remoteRights = ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic

// moveToRTS changes the state of q to RTS. dest is used only for connections.
func (l *testbed) moveToRTS(q *ib.QP, dest uint32) *ib.QP {
	l.t.Helper()
	l.modifyQP(q, ib.QPInit, dest)
	l.modifyQP(q, ib.QPRTR, dest)
	l.modifyQP(q, ib.QPRTS, dest)
	return q
}

func (l *testbed) modifyQP(q *ib.QP, to ib.QPState, dest uint32) {
	l.t.Helper()
	a := ib.QPAttr{State: to, Port: 1, AccessFlags: remoteRights, QKey: 7, PathMTU: ib.MTU1024, DestQPN: dest,
		AH:              l.ahAttr(),
		MaxDestRdAtomic: 3, MaxRdAtomic: 5, Timeout: 14, RetryCnt: 7, RNRRetry: 7}
	mask := ib.QPAttrState
	ud, ini, tgt := q.Type() == ib.QPTypeUD, q.Type() == ib.QPTypeXRCInit, q.Type() == ib.QPTypeXRCTgt
	switch {
	case to == ib.QPInit && ud:
		mask |= ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrQKey
	case to == ib.QPInit:
		mask |= ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrAccessFlags
	case to == ib.QPRTR && !ud:
		mask |= ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
		if !ini {
			mask |= ib.QPAttrMaxDestRdAtomic | ib.QPAttrMinRNRTimer
		}
	case to == ib.QPRTS:
		mask |= ib.QPAttrSQPSN
		if !ud {
			mask |= ib.QPAttrTimeout
		}
		if !ud && !tgt {
			mask |= ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRdAtomic
		}
	}
	if err := q.Modify(a, mask); err != nil {
		l.t.Fatalf("Modify to %v: %v", to, err)
	}
}

// newConnectedPair returns two connected queue pairs.
func (l *testbed) newConnectedPair(change func(*ib.QPInitAttr)) (a, b *ib.QP) {
	l.t.Helper()
	a, b = l.newQP(ib.QPTypeRC, change), l.newQP(ib.QPTypeRC, change)
	return l.moveToRTS(a, b.Num()), l.moveToRTS(b, a.Num())
}

func (l *testbed) ahAttr() ib.AHAttr {
	return ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: l.gid, HopLimit: 1}}
}

// sgeAt returns a part of the registered memory.
func (l *testbed) sgeAt(off, n uint32) []ib.SGE {
	return []ib.SGE{{Addr: l.mr.Addr() + uint64(off), Length: n, LKey: l.mr.LKey()}}
}

// postSend posts a request, and fails the test if the device refuses the request.
func (l *testbed) postSend(q *ib.QP, wr ib.SendWR) {
	l.t.Helper()
	if _, err := q.PostSend(wr); err != nil {
		l.t.Fatal(err)
	}
}

func (l *testbed) postRecv(q interface {
	PostRecv(...ib.RecvWR) (int, error)
}, id uint64) {
	l.t.Helper()
	if _, err := q.PostRecv(ib.RecvWR{ID: id, SGList: l.sgeAt(4096, 128)}); err != nil {
		l.t.Fatal(err)
	}
}

// pollAll polls all completions.
func (l *testbed) pollAll(cq *ib.CQ) []ib.WC {
	l.t.Helper()
	wc := make([]ib.WC, 64)
	return wc[:must(cq.Poll(wc))(l.t)]
}

// lastStatus returns the status of the last completion.
func (l *testbed) lastStatus(cq *ib.CQ) string {
	l.t.Helper()
	all := l.pollAll(cq)
	if len(all) == 0 {
		return "nothing"
	}
	return all[len(all)-1].Status.String()
}

func (l *testbed) wantEqual(what string, got, want any) {
	l.t.Helper()
	if got != want {
		l.t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func countQueued[T any](c chan T) (n int) {
	for end := time.After(noEventTimeout); ; {
		select {
		case <-c:
			n++
		case <-end:
			return n
		}
	}
}

// demos holds consumers that keep the contract. Each shows that a defect violates the contract.
var demos = map[string]func(l *testbed){
	"srq-domain": func(l *testbed) {
		other := must(l.dev.AllocPD())(l.t)
		mr := must(other.RegBytes(make([]byte, 4096), ib.AccessLocalWrite))(l.t)
		srq := must(other.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}}))(l.t)
		a, _ := l.newConnectedPair(func(i *ib.QPInitAttr) { i.SRQ = srq })
		must(srq.PostRecv(ib.RecvWR{SGList: []ib.SGE{{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()}}}))(l.t)
		l.postSend(a, ib.SendWR{Opcode: ib.WRSend, SGList: l.sgeAt(0, 8)})
		l.wantEqual("status of a send to a buffer of the domain of the SRQ", l.lastStatus(l.cq), ib.WCSuccess.String())
	},
	"inline-limit": func(l *testbed) {
		a, _ := l.newConnectedPair(nil)
		n := a.Init().Cap.MaxInlineData
		_, err := a.PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendInline, Inline: make([]byte, n+1)})
		l.wantEqual("post of more inline data than granted returns EINVAL", errors.Is(err, syscall.EINVAL), true)
	},
	"rnr-endless": func(l *testbed) {
		a, _ := l.newConnectedPair(nil)
		b, _ := l.newConnectedPair(nil)
		l.postSend(a, ib.SendWR{Opcode: ib.WRSend, SGList: l.sgeAt(0, 8)})
		l.postSend(b, ib.SendWR{Opcode: ib.WRSend, SGList: l.sgeAt(0, 8)})
		l.wantEqual("number of completions of sends that retry without a limit", len(l.pollAll(l.cq)), 0)
	},
	"sq-drained-unasked": func(l *testbed) {
		events := make(chan ib.EventType, 8)
		a, _ := l.newConnectedPair(func(i *ib.QPInitAttr) { i.Event = func(_ *ib.QP, e ib.EventType) { events <- e } })
		l.modifyQP(a, ib.QPSQD, 0)
		l.wantEqual("events", countQueued(events), 0)
	},
	"rd-atomic-swapped": func(l *testbed) {
		a, _ := l.newConnectedPair(nil)
		attr, _, err := a.Query(ib.QPAttrMaxRdAtomic | ib.QPAttrMaxDestRdAtomic)
		l.wantEqual("error", err, nil)
		l.wantEqual("MaxRdAtomic", attr.MaxRdAtomic, uint8(5))
		l.wantEqual("MaxDestRdAtomic", attr.MaxDestRdAtomic, uint8(3))
	},
	"qkey-controlled": func(l *testbed) {
		a, b := l.moveToRTS(l.newQP(ib.QPTypeUD, nil), 0), l.moveToRTS(l.newQP(ib.QPTypeUD, nil), 0)
		l.postRecv(b, 1)
		attr := l.ahAttr()
		ah := must(l.pd.CreateAH(&attr))(l.t)
		l.postSend(a, ib.SendWR{Opcode: ib.WRSend, SGList: l.sgeAt(0, 8), AH: ah, RemoteQPN: b.Num(), RemoteQKey: 1<<31 | 1})
		l.wantEqual("completions", len(l.pollAll(l.cq)), 2)
	},
	"imm-solicited": func(l *testbed) {
		called := make(chan bool, 8)
		cq := must(l.dev.CreateCQ(ib.CQInit{Entries: 8, Handler: func(*ib.CQ) { called <- true }}))(l.t)
		a, b := l.newConnectedPair(func(i *ib.QPInitAttr) { i.RecvCQ = cq })
		l.postRecv(b, 1)
		must(cq.ReqNotify(ib.NotifySolicited))(l.t)
		l.postSend(a, ib.SendWR{Opcode: ib.WRRDMAWriteWithImm, Flags: ib.SendSolicited, SGList: l.sgeAt(0, 8),
			RemoteAddr: l.mr.Addr(), RKey: l.mr.RKey()})
		l.wantEqual("calls", countQueued(called), 1)
	},
	"grh-traffic-class": func(l *testbed) {
		a, b := l.moveToRTS(l.newQP(ib.QPTypeUD, nil), 0), l.moveToRTS(l.newQP(ib.QPTypeUD, nil), 0)
		l.postRecv(b, 1)
		attr := l.ahAttr()
		attr.GRH.TrafficClass = 0xab
		ah := must(l.pd.CreateAH(&attr))(l.t)
		l.postSend(a, ib.SendWR{Opcode: ib.WRSend, SGList: l.sgeAt(0, 8), AH: ah, RemoteQPN: b.Num(), RemoteQKey: 7})
		l.wantEqual("traffic class", binary.BigEndian.Uint32(l.buf[4096:])>>20&0xff, uint32(0xab))
	},
	"max-cqe": func(l *testbed) {
		attr := must(l.dev.QueryDevice())(l.t)
		_, err := l.dev.CreateCQ(ib.CQInit{Entries: attr.MaxCQE})
		l.wantEqual("CreateCQ of MaxCQE", err, nil)
	},
	"max-srq-sge": func(l *testbed) {
		attr := must(l.dev.QueryDevice())(l.t)
		_, err := l.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: uint32(attr.MaxSRQSGE)}})
		l.wantEqual("CreateSRQ with MaxSRQSGE", err, nil)
	},
	"error-spares-init": func(l *testbed) {
		q := l.newQP(ib.QPTypeRC, nil)
		l.modifyQP(q, ib.QPInit, 0)
		l.postRecv(q, 1)
		l.h.SetError()
		l.wantEqual("completion", l.lastStatus(l.cq), ib.WCWRFlushErr.String())
	},
	"srq-shrink": func(l *testbed) {
		srq := must(l.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 2}}))(l.t)
		a, _ := l.newConnectedPair(func(i *ib.QPInitAttr) { i.SRQ = srq })
		var got []uint64
		deliver := func(n int) {
			for range n {
				l.postSend(a, ib.SendWR{ID: 100, Opcode: ib.WRSend, SGList: l.sgeAt(0, 8)})
			}
			for _, wc := range l.pollAll(l.cq) {
				if wc.ID != 100 {
					got = append(got, wc.ID)
				}
			}
		}
		for id := range uint64(4) {
			l.postRecv(srq, id)
		}
		deliver(2)
		l.postRecv(srq, 4)
		l.postRecv(srq, 5)
		if err := srq.Modify(ib.SRQAttr{MaxWR: 8}, ib.SRQAttrMaxWR); err != nil {
			l.t.Fatal(err)
		}
		deliver(4)
		l.wantEqual("receives", slices.Equal(got, []uint64{0, 1, 2, 3, 4, 5}), true)
	},
	"mcast-first-only": func(l *testbed) {
		group := ib.GID{0: 0xff, 1: 0x0e, 15: 1}
		a := l.moveToRTS(l.newQP(ib.QPTypeUD, nil), 0)
		for i := range 2 {
			q := l.moveToRTS(l.newQP(ib.QPTypeUD, nil), 0)
			if err := q.AttachMcast(group, 0); err != nil {
				l.t.Fatal(err)
			}
			defer q.DetachMcast(group, 0)
			if i == 1 { // the first datagram has no receive
				l.postRecv(q, 1)
			}
		}
		attr := l.ahAttr()
		attr.GRH.DGID = group
		ah := must(l.pd.CreateAH(&attr))(l.t)
		l.postSend(a, ib.SendWR{Opcode: ib.WRSend, SGList: l.sgeAt(0, 8), AH: ah, RemoteQPN: 0xffffff, RemoteQKey: 7})
		l.wantEqual("completions", len(l.pollAll(l.cq)), 2)
	},
	"xrc-domain": func(l *testbed) {
		mine, other := must(l.dev.AllocXRCD())(l.t), must(l.dev.AllocXRCD())(l.t)
		srq := must(
			l.pd.CreateSRQ(ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: other, CQ: l.cq, Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}}))(l.t)
		l.postRecv(srq, 1)
		a, _ := l.newXRCPair(mine)
		l.postSend(a, ib.SendWR{ID: 2, Opcode: ib.WRSend, SGList: l.sgeAt(0, 8), RemoteSRQN: srq.Num()})
		l.wantEqual("status of a send to an SRQ of another XRC domain", l.lastStatus(l.cq), ib.WCRemInvReqErr.String())
	},
	"cq-clean-not-xrc": func(l *testbed) {
		x := must(l.dev.AllocXRCD())(l.t)
		cq := must(l.dev.CreateCQ(ib.CQInit{Entries: 8}))(l.t)
		srq := must(l.pd.CreateSRQ(ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: x, CQ: cq, Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}}))(
			l.t)
		l.postRecv(srq, 1)
		a, b := l.newXRCPair(x)
		l.postSend(a, ib.SendWR{ID: 2, Opcode: ib.WRSend, SGList: l.sgeAt(0, 8), RemoteSRQN: srq.Num()})
		l.wantEqual("destroy", b.Destroy(), nil)
		for _, wc := range l.pollAll(cq) {
			l.wantEqual("queue pair of the completion", wc.QP, (*ib.QP)(nil))
		}
	},
	"cq-clean-send-only": func(l *testbed) {
		cq := must(l.dev.CreateCQ(ib.CQInit{Entries: 8}))(l.t)
		a, b := l.newConnectedPair(func(i *ib.QPInitAttr) { i.RecvCQ = cq })
		l.postRecv(b, 1)
		l.postSend(a, ib.SendWR{Opcode: ib.WRSend, SGList: l.sgeAt(0, 8)})
		l.wantEqual("destroy", b.Destroy(), nil)
		for _, wc := range l.pollAll(cq) {
			l.wantEqual("queue pair of the completion", wc.QP, (*ib.QP)(nil))
		}
	},
	"mw-outlives-qp": func(l *testbed) {
		a, _ := l.newConnectedPair(nil)
		mw := must(l.pd.AllocMW(ib.MWType2))(l.t)
		l.postSend(a, ib.SendWR{Opcode: ib.WRBindMW, Bind: &ib.BindMW{MW: mw, MR: l.mr, RKey: ib.IncRKey(mw.RKey()),
			Addr: l.mr.Addr(), Length: 64, Access: ib.AccessRemoteRead}})
		l.wantEqual("bind", l.lastStatus(l.cq), ib.WCSuccess.String())
		l.wantEqual("destroy", a.Destroy(), nil)
		l.wantEqual("error of Dereg of the region after the destruction of the window's queue pair", l.mr.Dereg(), nil)
	},
	"invalidate-bound": func(l *testbed) {
		a, _ := l.newConnectedPair(nil)
		mr := must(l.pd.AllocMR(4))(l.t)
		mem := umem.NewLocal()
		addr := must(mem.Add(make([]byte, 8192)))(l.t)
		if err := mr.Map(mem, nil, []umem.Range{{Addr: addr, Length: 4096}}, addr); err != nil {
			l.t.Fatal(err)
		}
		l.postSend(a, ib.SendWR{Opcode: ib.WRRegMR, Reg: &ib.FastReg{MR: mr, Key: mr.RKey(),
			Access: ib.AccessLocalWrite | ib.AccessRemoteRead | ib.AccessMWBind}})
		mw := must(l.pd.AllocMW(ib.MWType2))(l.t)
		l.postSend(a, ib.SendWR{Opcode: ib.WRBindMW, Bind: &ib.BindMW{MW: mw, MR: mr, RKey: ib.IncRKey(mw.RKey()),
			Addr: mr.Addr(), Length: 64, Access: ib.AccessRemoteRead}})
		l.wantEqual("bind", l.lastStatus(l.cq), ib.WCSuccess.String())
		l.postSend(a, ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: mr.RKey()})
		l.wantEqual("status of an invalidation of a region with a bound window", l.lastStatus(l.cq), ib.WCLocQPOpErr.String())
	},
	"rereg-half": func(l *testbed) {
		a, b := l.newConnectedPair(nil)
		other := must(l.dev.AllocPD())(l.t)
		err := l.mr.Rereg(ib.MRChangePD|ib.MRChangeAccess,
			ib.MRChange{PD: other, Access: ib.AccessFlushPersistent | ib.AccessLocalWrite})
		if err == nil {
			l.t.Fatal("Rereg with wrong access: got no error")
		}
		l.postRecv(b, 1)
		l.postSend(a, ib.SendWR{Opcode: ib.WRSend, SGList: l.sgeAt(0, 8)})
		l.wantEqual("status of a send from the region after the failed Rereg", l.lastStatus(l.cq), ib.WCSuccess.String())
	},
	"zero-length-key": func(l *testbed) {
		a, _ := l.newConnectedPair(nil)
		l.postSend(a, ib.SendWR{Opcode: ib.WRRDMAWrite})
		l.wantEqual("status of a write of 0 bytes", l.lastStatus(l.cq), ib.WCSuccess.String())
	},
	"ah-late": func(l *testbed) {
		a, b := l.moveToRTS(l.newQP(ib.QPTypeUD, nil), 0), l.moveToRTS(l.newQP(ib.QPTypeUD, nil), 0)
		l.postRecv(b, 1)
		attr := l.ahAttr()
		ah := must(l.pd.CreateAH(&attr))(l.t)
		l.modifyQP(a, ib.QPSQD, 0)
		l.postSend(a, ib.SendWR{Opcode: ib.WRSend, SGList: l.sgeAt(0, 8), AH: ah, RemoteQPN: b.Num(), RemoteQKey: 7})
		attr.GRH.DGID = ib.GID{0: 0xfd, 15: 99}
		l.wantEqual("modify AH", ah.Modify(&attr), nil)
		l.wantEqual("destroy AH", ah.Destroy(), nil)
		if err := a.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState); err != nil {
			l.t.Fatal(err)
		}
		l.wantEqual("completions", len(l.pollAll(l.cq)), 2)
	},
	"sleep-create-ah": func(l *testbed) {
		least := time.Hour
		attr := l.ahAttr()
		for range 50 {
			start := time.Now()
			ah := must(l.pd.CreateAH(&attr))(l.t)
			least = min(least, time.Since(start))
			ah.Destroy()
		}
		l.wantEqual("the shortest CreateAH is below 100us", least < 100*time.Microsecond, true)
	},
	"create-qp-leak": func(l *testbed) {
		bad := ib.QPInitAttr{SendCQ: l.cq, RecvCQ: l.cq, Type: ib.QPTypeRC, Cap: ib.QPCap{MaxSendWR: 1 << 30, MaxRecvWR: 1}}
		for range 1<<16 + 1 {
			if _, err := l.pd.CreateQP(bad); err == nil {
				l.t.Fatal("CreateQP with wrong capacities: got no error")
			}
		}
		bad.Cap.MaxSendWR = 1
		_, err := l.pd.CreateQP(bad)
		l.wantEqual("error of CreateQP after many failed calls", err, nil)
	},
	"cq-overflow-silent": func(l *testbed) {
		events := make(chan ib.EventType, 8)
		cq := must(l.dev.CreateCQ(ib.CQInit{Entries: 1, Event: func(_ *ib.CQ, e ib.EventType) { events <- e }}))(l.t)
		a, _ := l.newConnectedPair(func(i *ib.QPInitAttr) { i.SendCQ = cq })
		for range 2 {
			l.postSend(a, ib.SendWR{Opcode: ib.WRRDMAWrite})
		}
		l.wantEqual("events", countQueued(events), 1)
	},
	"post-flush-race": func(l *testbed) {
		cq := must(l.dev.CreateCQ(ib.CQInit{Entries: 1 << 14}))(l.t)
		for range 100 {
			a, b := l.newConnectedPair(func(i *ib.QPInitAttr) { i.SendCQ, i.Cap.MaxSendWR = cq, 1<<12 })
			var wg sync.WaitGroup
			var end atomic.Bool
			posted, got := 0, 0
			wg.Go(func() {
				for posted < 1<<12 && !end.Load() {
					if _, err := a.PostSend(ib.SendWR{Opcode: ib.WRRDMAWrite}); err == nil {
						posted++
					}
				}
			})
			runtime.Gosched()
			if err := a.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState); err != nil {
				l.t.Fatal(err)
			}
			end.Store(true)
			wg.Wait()
			for n := 1; n > 0; got += n {
				n = len(l.pollAll(cq))
			}
			if got != posted {
				l.t.Errorf("number of completions: got %v, want %v", got, posted)
				return
			}
			a.Destroy()
			b.Destroy()
		}
	},
	"flush-opcode": func(l *testbed) {
		a, _ := l.newConnectedPair(nil)
		if err := a.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState); err != nil {
			l.t.Fatal(err)
		}
		l.postSend(a, ib.SendWR{Opcode: ib.WRRDMARead})
		for _, wc := range l.pollAll(l.cq) {
			l.wantEqual("opcode", wc.Opcode, ib.WCRDMARead)
		}
	},
	"stale-wc-flags": func(l *testbed) {
		a, _ := l.newConnectedPair(nil)
		l.postSend(a, ib.SendWR{Opcode: ib.WRRDMAWrite})
		wc := []ib.WC{{Flags: ib.WCWithInvalidate}}
		l.wantEqual("completions", must(l.cq.Poll(wc))(l.t), 1)
		l.wantEqual("flags", wc[0].Flags, ib.WCFlags(0))
	},
	"upcall-after-destroy": func(l *testbed) {
		cq := must(l.dev.CreateCQ(ib.CQInit{Entries: 8, Handler: func(*ib.CQ) {}}))(l.t)
		a, b := l.newConnectedPair(func(i *ib.QPInitAttr) { i.SendCQ = cq })
		l.wantEqual("moderate", cq.Moderate(8, 60*time.Millisecond), nil)
		must(cq.ReqNotify(ib.NotifyNextComp))(l.t)
		l.postSend(a, ib.SendWR{Opcode: ib.WRRDMAWrite})
		l.wantEqual("destroy", errors.Join(a.Destroy(), b.Destroy(), cq.Destroy()), nil)
		time.Sleep(noEventTimeout)
		if v := l.seen.Load(); v != nil {
			l.t.Errorf("violation: got %v, want none", v)
		}
	},
	"cq-resize-wrap": func(l *testbed) {
		cq := must(l.dev.CreateCQ(ib.CQInit{Entries: 4}))(l.t)
		a, _ := l.newConnectedPair(func(i *ib.QPInitAttr) { i.SendCQ = cq })
		post := func(n int) {
			for range n {
				l.postSend(a, ib.SendWR{Opcode: ib.WRRDMAWrite})
			}
		}
		post(3)
		l.wantEqual("completions", must(cq.Poll(make([]ib.WC, 2)))(l.t), 2)
		post(3)
		l.wantEqual("resize", cq.Resize(8), nil)
		l.wantEqual("completions", len(l.pollAll(cq)), 4)
	},
}

// newXRCPair returns an initiator and its target.
func (l *testbed) newXRCPair(x *ib.XRCD) (a, b *ib.QP) {
	l.t.Helper()
	a = l.newQP(ib.QPTypeXRCInit, nil)
	b = l.newQP(ib.QPTypeXRCTgt, func(i *ib.QPInitAttr) { *i = ib.QPInitAttr{Type: ib.QPTypeXRCTgt, XRCD: x} })
	return l.moveToRTS(a, b.Num()), l.moveToRTS(b, a.Num())
}

// TestDemos passes with the unmodified driver. With a defect, in the build of TestDrivers, the demo of the defect
// fails.
func TestDemos(t *testing.T) {
	for _, d := range DriverDefects {
		demo := demos[d.Name]
		if demo == nil {
			if d.Escapes {
				t.Errorf("%s: TestContract does not detect the defect, and the defect has no demo", d.Name)
			}
			continue
		}
		if only := os.Getenv(defectEnv); only != "" && only != d.Name {
			continue
		}
		t.Run(d.Name, func(t *testing.T) { demo(newTestbed(t, d.Name == "upcall-after-destroy")) })
	}
}
