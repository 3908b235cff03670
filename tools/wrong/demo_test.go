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

// soon bounds the wait for a completion or event that must not arrive.
const soon = 300 * time.Millisecond

// lab is a device with the objects of the consumers in this file.
type lab struct {
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

func newLab(t *testing.T, checked bool) *lab {
	t.Helper()
	l := &lab{t: t, buf: make([]byte, 1<<16)}
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

func (l *lab) qp(kind ib.QPType, change func(*ib.QPInitAttr)) *ib.QP {
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

const rights = ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic

// up changes the state of q to RTS. dest is used only for connections.
func (l *lab) up(q *ib.QP, dest uint32) *ib.QP {
	l.t.Helper()
	l.modify(q, ib.QPInit, dest)
	l.modify(q, ib.QPRTR, dest)
	l.modify(q, ib.QPRTS, dest)
	return q
}

func (l *lab) modify(q *ib.QP, to ib.QPState, dest uint32) {
	l.t.Helper()
	a := ib.QPAttr{State: to, Port: 1, AccessFlags: rights, QKey: 7, PathMTU: ib.MTU1024, DestQPN: dest, AH: l.address(),
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

// pair returns two connected queue pairs.
func (l *lab) pair(change func(*ib.QPInitAttr)) (a, b *ib.QP) {
	l.t.Helper()
	a, b = l.qp(ib.QPTypeRC, change), l.qp(ib.QPTypeRC, change)
	return l.up(a, b.Num()), l.up(b, a.Num())
}

func (l *lab) address() ib.AHAttr {
	return ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: l.gid, HopLimit: 1}}
}

// at returns a part of the registered memory.
func (l *lab) at(off, n uint32) []ib.SGE {
	return []ib.SGE{{Addr: l.mr.Addr() + uint64(off), Length: n, LKey: l.mr.LKey()}}
}

// send posts a request, and fails the test if the device refuses the request.
func (l *lab) send(q *ib.QP, wr ib.SendWR) {
	l.t.Helper()
	if _, err := q.PostSend(wr); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) recv(q interface {
	PostRecv(...ib.RecvWR) (int, error)
}, id uint64) {
	l.t.Helper()
	if _, err := q.PostRecv(ib.RecvWR{ID: id, SGList: l.at(4096, 128)}); err != nil {
		l.t.Fatal(err)
	}
}

// done polls all completions.
func (l *lab) done(cq *ib.CQ) []ib.WC {
	l.t.Helper()
	wc := make([]ib.WC, 64)
	return wc[:must(cq.Poll(wc))(l.t)]
}

// status returns the status of the last completion.
func (l *lab) status(cq *ib.CQ) string {
	l.t.Helper()
	all := l.done(cq)
	if len(all) == 0 {
		return "nothing"
	}
	return all[len(all)-1].Status.String()
}

func (l *lab) want(what string, got, want any) {
	l.t.Helper()
	if got != want {
		l.t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func count[T any](c chan T) (n int) {
	for end := time.After(soon); ; {
		select {
		case <-c:
			n++
		case <-end:
			return n
		}
	}
}

// demos holds consumers that keep the contract. Each shows that a defect violates the contract.
var demos = map[string]func(l *lab){
	"srq-domain": func(l *lab) {
		other := must(l.dev.AllocPD())(l.t)
		mr := must(other.RegBytes(make([]byte, 4096), ib.AccessLocalWrite))(l.t)
		srq := must(other.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}}))(l.t)
		a, _ := l.pair(func(i *ib.QPInitAttr) { i.SRQ = srq })
		must(srq.PostRecv(ib.RecvWR{SGList: []ib.SGE{{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()}}}))(l.t)
		l.send(a, ib.SendWR{Opcode: ib.WRSend, SGList: l.at(0, 8)})
		l.want("status of a send to a buffer of the domain of the SRQ", l.status(l.cq), ib.WCSuccess.String())
	},
	"inline-limit": func(l *lab) {
		a, _ := l.pair(nil)
		n := a.Init().Cap.MaxInlineData
		_, err := a.PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendInline, Inline: make([]byte, n+1)})
		l.want("post of more inline data than granted returns EINVAL", errors.Is(err, syscall.EINVAL), true)
	},
	"rnr-endless": func(l *lab) {
		a, _ := l.pair(nil)
		b, _ := l.pair(nil)
		l.send(a, ib.SendWR{Opcode: ib.WRSend, SGList: l.at(0, 8)})
		l.send(b, ib.SendWR{Opcode: ib.WRSend, SGList: l.at(0, 8)})
		l.want("number of completions of sends that retry without a limit", len(l.done(l.cq)), 0)
	},
	"sq-drained-unasked": func(l *lab) {
		events := make(chan ib.EventType, 8)
		a, _ := l.pair(func(i *ib.QPInitAttr) { i.Event = func(_ *ib.QP, e ib.EventType) { events <- e } })
		l.modify(a, ib.QPSQD, 0)
		l.want("events", count(events), 0)
	},
	"rd-atomic-swapped": func(l *lab) {
		a, _ := l.pair(nil)
		attr, _, err := a.Query(ib.QPAttrMaxRdAtomic | ib.QPAttrMaxDestRdAtomic)
		l.want("error", err, nil)
		l.want("MaxRdAtomic", attr.MaxRdAtomic, uint8(5))
		l.want("MaxDestRdAtomic", attr.MaxDestRdAtomic, uint8(3))
	},
	"qkey-controlled": func(l *lab) {
		a, b := l.up(l.qp(ib.QPTypeUD, nil), 0), l.up(l.qp(ib.QPTypeUD, nil), 0)
		l.recv(b, 1)
		attr := l.address()
		ah := must(l.pd.CreateAH(&attr))(l.t)
		l.send(a, ib.SendWR{Opcode: ib.WRSend, SGList: l.at(0, 8), AH: ah, RemoteQPN: b.Num(), RemoteQKey: 1<<31 | 1})
		l.want("completions", len(l.done(l.cq)), 2)
	},
	"imm-solicited": func(l *lab) {
		called := make(chan bool, 8)
		cq := must(l.dev.CreateCQ(ib.CQInit{Entries: 8, Handler: func(*ib.CQ) { called <- true }}))(l.t)
		a, b := l.pair(func(i *ib.QPInitAttr) { i.RecvCQ = cq })
		l.recv(b, 1)
		must(cq.ReqNotify(ib.NotifySolicited))(l.t)
		l.send(a, ib.SendWR{Opcode: ib.WRRDMAWriteWithImm, Flags: ib.SendSolicited, SGList: l.at(0, 8),
			RemoteAddr: l.mr.Addr(), RKey: l.mr.RKey()})
		l.want("calls", count(called), 1)
	},
	"grh-traffic-class": func(l *lab) {
		a, b := l.up(l.qp(ib.QPTypeUD, nil), 0), l.up(l.qp(ib.QPTypeUD, nil), 0)
		l.recv(b, 1)
		attr := l.address()
		attr.GRH.TrafficClass = 0xab
		ah := must(l.pd.CreateAH(&attr))(l.t)
		l.send(a, ib.SendWR{Opcode: ib.WRSend, SGList: l.at(0, 8), AH: ah, RemoteQPN: b.Num(), RemoteQKey: 7})
		l.want("traffic class", binary.BigEndian.Uint32(l.buf[4096:])>>20&0xff, uint32(0xab))
	},
	"max-cqe": func(l *lab) {
		attr := must(l.dev.QueryDevice())(l.t)
		_, err := l.dev.CreateCQ(ib.CQInit{Entries: attr.MaxCQE})
		l.want("CreateCQ of MaxCQE", err, nil)
	},
	"max-srq-sge": func(l *lab) {
		attr := must(l.dev.QueryDevice())(l.t)
		_, err := l.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: uint32(attr.MaxSRQSGE)}})
		l.want("CreateSRQ with MaxSRQSGE", err, nil)
	},
	"error-spares-init": func(l *lab) {
		q := l.qp(ib.QPTypeRC, nil)
		l.modify(q, ib.QPInit, 0)
		l.recv(q, 1)
		l.h.SetError()
		l.want("completion", l.status(l.cq), ib.WCWRFlushErr.String())
	},
	"srq-shrink": func(l *lab) {
		srq := must(l.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 2}}))(l.t)
		a, _ := l.pair(func(i *ib.QPInitAttr) { i.SRQ = srq })
		var got []uint64
		deliver := func(n int) {
			for range n {
				l.send(a, ib.SendWR{ID: 100, Opcode: ib.WRSend, SGList: l.at(0, 8)})
			}
			for _, wc := range l.done(l.cq) {
				if wc.ID != 100 {
					got = append(got, wc.ID)
				}
			}
		}
		for id := range uint64(4) {
			l.recv(srq, id)
		}
		deliver(2)
		l.recv(srq, 4)
		l.recv(srq, 5)
		if err := srq.Modify(ib.SRQAttr{MaxWR: 8}, ib.SRQAttrMaxWR); err != nil {
			l.t.Fatal(err)
		}
		deliver(4)
		l.want("receives", slices.Equal(got, []uint64{0, 1, 2, 3, 4, 5}), true)
	},
	"mcast-first-only": func(l *lab) {
		group := ib.GID{0: 0xff, 1: 0x0e, 15: 1}
		a := l.up(l.qp(ib.QPTypeUD, nil), 0)
		for i := range 2 {
			q := l.up(l.qp(ib.QPTypeUD, nil), 0)
			if err := q.AttachMcast(group, 0); err != nil {
				l.t.Fatal(err)
			}
			defer q.DetachMcast(group, 0)
			if i == 1 { // the first datagram has no receive
				l.recv(q, 1)
			}
		}
		attr := l.address()
		attr.GRH.DGID = group
		ah := must(l.pd.CreateAH(&attr))(l.t)
		l.send(a, ib.SendWR{Opcode: ib.WRSend, SGList: l.at(0, 8), AH: ah, RemoteQPN: 0xffffff, RemoteQKey: 7})
		l.want("completions", len(l.done(l.cq)), 2)
	},
	"xrc-domain": func(l *lab) {
		mine, other := must(l.dev.AllocXRCD())(l.t), must(l.dev.AllocXRCD())(l.t)
		srq := must(
			l.pd.CreateSRQ(ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: other, CQ: l.cq, Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}}))(l.t)
		l.recv(srq, 1)
		a, _ := l.xrc(mine)
		l.send(a, ib.SendWR{ID: 2, Opcode: ib.WRSend, SGList: l.at(0, 8), RemoteSRQN: srq.Num()})
		l.want("status of a send to an SRQ of another XRC domain", l.status(l.cq), ib.WCRemInvReqErr.String())
	},
	"cq-clean-not-xrc": func(l *lab) {
		x := must(l.dev.AllocXRCD())(l.t)
		cq := must(l.dev.CreateCQ(ib.CQInit{Entries: 8}))(l.t)
		srq := must(l.pd.CreateSRQ(ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: x, CQ: cq, Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}}))(
			l.t)
		l.recv(srq, 1)
		a, b := l.xrc(x)
		l.send(a, ib.SendWR{ID: 2, Opcode: ib.WRSend, SGList: l.at(0, 8), RemoteSRQN: srq.Num()})
		l.want("destroy", b.Destroy(), nil)
		for _, wc := range l.done(cq) {
			l.want("queue pair of the completion", wc.QP, (*ib.QP)(nil))
		}
	},
	"cq-clean-send-only": func(l *lab) {
		cq := must(l.dev.CreateCQ(ib.CQInit{Entries: 8}))(l.t)
		a, b := l.pair(func(i *ib.QPInitAttr) { i.RecvCQ = cq })
		l.recv(b, 1)
		l.send(a, ib.SendWR{Opcode: ib.WRSend, SGList: l.at(0, 8)})
		l.want("destroy", b.Destroy(), nil)
		for _, wc := range l.done(cq) {
			l.want("queue pair of the completion", wc.QP, (*ib.QP)(nil))
		}
	},
	"mw-outlives-qp": func(l *lab) {
		a, _ := l.pair(nil)
		mw := must(l.pd.AllocMW(ib.MWType2))(l.t)
		l.send(a, ib.SendWR{Opcode: ib.WRBindMW, Bind: &ib.BindMW{MW: mw, MR: l.mr, RKey: ib.IncRKey(mw.RKey()),
			Addr: l.mr.Addr(), Length: 64, Access: ib.AccessRemoteRead}})
		l.want("bind", l.status(l.cq), ib.WCSuccess.String())
		l.want("destroy", a.Destroy(), nil)
		l.want("error of Dereg of the region after the destruction of the window's queue pair", l.mr.Dereg(), nil)
	},
	"invalidate-bound": func(l *lab) {
		a, _ := l.pair(nil)
		mr := must(l.pd.AllocMR(4))(l.t)
		mem := umem.NewLocal()
		addr := must(mem.Add(make([]byte, 8192)))(l.t)
		if err := mr.Map(mem, nil, []umem.Range{{Addr: addr, Length: 4096}}, addr); err != nil {
			l.t.Fatal(err)
		}
		l.send(a, ib.SendWR{Opcode: ib.WRRegMR, Reg: &ib.FastReg{MR: mr, Key: mr.RKey(),
			Access: ib.AccessLocalWrite | ib.AccessRemoteRead | ib.AccessMWBind}})
		mw := must(l.pd.AllocMW(ib.MWType2))(l.t)
		l.send(a, ib.SendWR{Opcode: ib.WRBindMW, Bind: &ib.BindMW{MW: mw, MR: mr, RKey: ib.IncRKey(mw.RKey()),
			Addr: mr.Addr(), Length: 64, Access: ib.AccessRemoteRead}})
		l.want("bind", l.status(l.cq), ib.WCSuccess.String())
		l.send(a, ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: mr.RKey()})
		l.want("status of an invalidation of a region with a bound window", l.status(l.cq), ib.WCLocQPOpErr.String())
	},
	"rereg-half": func(l *lab) {
		a, b := l.pair(nil)
		other := must(l.dev.AllocPD())(l.t)
		err := l.mr.Rereg(ib.MRChangePD|ib.MRChangeAccess,
			ib.MRChange{PD: other, Access: ib.AccessFlushPersistent | ib.AccessLocalWrite})
		if err == nil {
			l.t.Fatal("Rereg with wrong access: got no error")
		}
		l.recv(b, 1)
		l.send(a, ib.SendWR{Opcode: ib.WRSend, SGList: l.at(0, 8)})
		l.want("status of a send from the region after the failed Rereg", l.status(l.cq), ib.WCSuccess.String())
	},
	"zero-length-key": func(l *lab) {
		a, _ := l.pair(nil)
		l.send(a, ib.SendWR{Opcode: ib.WRRDMAWrite})
		l.want("status of a write of 0 bytes", l.status(l.cq), ib.WCSuccess.String())
	},
	"ah-late": func(l *lab) {
		a, b := l.up(l.qp(ib.QPTypeUD, nil), 0), l.up(l.qp(ib.QPTypeUD, nil), 0)
		l.recv(b, 1)
		attr := l.address()
		ah := must(l.pd.CreateAH(&attr))(l.t)
		l.modify(a, ib.QPSQD, 0)
		l.send(a, ib.SendWR{Opcode: ib.WRSend, SGList: l.at(0, 8), AH: ah, RemoteQPN: b.Num(), RemoteQKey: 7})
		attr.GRH.DGID = ib.GID{0: 0xfd, 15: 99}
		l.want("modify AH", ah.Modify(&attr), nil)
		l.want("destroy AH", ah.Destroy(), nil)
		if err := a.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState); err != nil {
			l.t.Fatal(err)
		}
		l.want("completions", len(l.done(l.cq)), 2)
	},
	"sleep-create-ah": func(l *lab) {
		least := time.Hour
		attr := l.address()
		for range 50 {
			start := time.Now()
			ah := must(l.pd.CreateAH(&attr))(l.t)
			least = min(least, time.Since(start))
			ah.Destroy()
		}
		l.want("the shortest CreateAH is below 100us", least < 100*time.Microsecond, true)
	},
	"create-qp-leak": func(l *lab) {
		bad := ib.QPInitAttr{SendCQ: l.cq, RecvCQ: l.cq, Type: ib.QPTypeRC, Cap: ib.QPCap{MaxSendWR: 1 << 30, MaxRecvWR: 1}}
		for range 1<<16 + 1 {
			if _, err := l.pd.CreateQP(bad); err == nil {
				l.t.Fatal("CreateQP with wrong capacities: got no error")
			}
		}
		bad.Cap.MaxSendWR = 1
		_, err := l.pd.CreateQP(bad)
		l.want("error of CreateQP after many failed calls", err, nil)
	},
	"cq-overflow-silent": func(l *lab) {
		events := make(chan ib.EventType, 8)
		cq := must(l.dev.CreateCQ(ib.CQInit{Entries: 1, Event: func(_ *ib.CQ, e ib.EventType) { events <- e }}))(l.t)
		a, _ := l.pair(func(i *ib.QPInitAttr) { i.SendCQ = cq })
		for range 2 {
			l.send(a, ib.SendWR{Opcode: ib.WRRDMAWrite})
		}
		l.want("events", count(events), 1)
	},
	"post-flush-race": func(l *lab) {
		cq := must(l.dev.CreateCQ(ib.CQInit{Entries: 1 << 14}))(l.t)
		for range 100 {
			a, b := l.pair(func(i *ib.QPInitAttr) { i.SendCQ, i.Cap.MaxSendWR = cq, 1<<12 })
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
				n = len(l.done(cq))
			}
			if got != posted {
				l.t.Errorf("number of completions: got %v, want %v", got, posted)
				return
			}
			a.Destroy()
			b.Destroy()
		}
	},
	"flush-opcode": func(l *lab) {
		a, _ := l.pair(nil)
		if err := a.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState); err != nil {
			l.t.Fatal(err)
		}
		l.send(a, ib.SendWR{Opcode: ib.WRRDMARead})
		for _, wc := range l.done(l.cq) {
			l.want("opcode", wc.Opcode, ib.WCRDMARead)
		}
	},
	"stale-wc-flags": func(l *lab) {
		a, _ := l.pair(nil)
		l.send(a, ib.SendWR{Opcode: ib.WRRDMAWrite})
		wc := []ib.WC{{Flags: ib.WCWithInvalidate}}
		l.want("completions", must(l.cq.Poll(wc))(l.t), 1)
		l.want("flags", wc[0].Flags, ib.WCFlags(0))
	},
	"upcall-after-destroy": func(l *lab) {
		cq := must(l.dev.CreateCQ(ib.CQInit{Entries: 8, Handler: func(*ib.CQ) {}}))(l.t)
		a, b := l.pair(func(i *ib.QPInitAttr) { i.SendCQ = cq })
		l.want("moderate", cq.Moderate(8, 60*time.Millisecond), nil)
		must(cq.ReqNotify(ib.NotifyNextComp))(l.t)
		l.send(a, ib.SendWR{Opcode: ib.WRRDMAWrite})
		l.want("destroy", errors.Join(a.Destroy(), b.Destroy(), cq.Destroy()), nil)
		time.Sleep(soon)
		if v := l.seen.Load(); v != nil {
			l.t.Errorf("violation: got %v, want none", v)
		}
	},
	"cq-resize-wrap": func(l *lab) {
		cq := must(l.dev.CreateCQ(ib.CQInit{Entries: 4}))(l.t)
		a, _ := l.pair(func(i *ib.QPInitAttr) { i.SendCQ = cq })
		post := func(n int) {
			for range n {
				l.send(a, ib.SendWR{Opcode: ib.WRRDMAWrite})
			}
		}
		post(3)
		l.want("completions", must(cq.Poll(make([]ib.WC, 2)))(l.t), 2)
		post(3)
		l.want("resize", cq.Resize(8), nil)
		l.want("completions", len(l.done(cq)), 4)
	},
}

// xrc returns an initiator and its target.
func (l *lab) xrc(x *ib.XRCD) (a, b *ib.QP) {
	l.t.Helper()
	a = l.qp(ib.QPTypeXRCInit, nil)
	b = l.qp(ib.QPTypeXRCTgt, func(i *ib.QPInitAttr) { *i = ib.QPInitAttr{Type: ib.QPTypeXRCTgt, XRCD: x} })
	return l.up(a, b.Num()), l.up(b, a.Num())
}

// TestDemos passes with the unmodified driver. With a defect, in the build of TestDrivers, the demo of the defect
// fails.
func TestDemos(t *testing.T) {
	for _, d := range Drivers {
		demo := demos[d.Name]
		if demo == nil {
			if d.Escapes {
				t.Errorf("%s: TestContract does not detect the defect, and the defect has no demo", d.Name)
			}
			continue
		}
		if only := os.Getenv(variable); only != "" && only != d.Name {
			continue
		}
		t.Run(d.Name, func(t *testing.T) { demo(newLab(t, d.Name == "upcall-after-destroy")) })
	}
}
