package ib_test

import (
	"errors"
	"syscall"
	"testing"

	"verbena/driver/loopback"
	"verbena/ib"
)

// qpDependencies holds the objects that a queue pair needs.
type qpDependencies struct {
	dev *ib.Device
	at  ib.Local
	pd  *ib.PD
	cq  *ib.CQ
}

func newQPDependencies(t testing.TB) qpDependencies {
	core := &ib.Core{}
	d := loopback.New("lo0", nil)
	p := qpDependencies{dev: d.IB()}
	err := core.Register(d.Handle())
	var e [3]error
	p.at, e[0] = p.dev.Local(1)
	p.pd, e[1] = p.dev.AllocPD()
	p.cq, e[2] = p.dev.CreateCQ(ib.CQInit{Entries: 16})
	if err := errors.Join(err, e[0], e[1], e[2]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.cq.Destroy(), p.pd.Dealloc(), core.Unregister(d.Handle())); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p qpDependencies) newQP(t testing.TB, kind ib.QPType) *ib.QP {
	qp, err := p.pd.CreateQP(ib.QPInitAttr{Type: kind, SendCQ: p.cq, RecvCQ: p.cq,
		Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := qp.Destroy(); err != nil {
			t.Error(err)
		}
	})
	return qp
}

func TestConnectReachesRTS(t *testing.T) {
	p := newQPDependencies(t)
	for _, kind := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC} {
		a, b := p.newQP(t, kind), p.newQP(t, kind)
		x, y := p.at.Endpoint(a), p.at.Endpoint(b)
		y.MTU = ib.MTU512
		path := ib.Path{Access: ib.AccessRemoteRead, MaxRdAtomic: 3, Timeout: 17, RetryCnt: 2}
		if err := errors.Join(a.Connect(p.at, x, y, path), b.Connect(p.at, y, x, path)); err != nil {
			t.Fatalf("%v: %v", kind, err)
		}
		attr, _, err := a.Query(0)
		if err != nil {
			t.Fatal(err)
		}
		if attr.State != ib.QPRTS || attr.PathMTU != ib.MTU512 || attr.DestQPN != b.Num() || attr.SQPSN != x.PSN ||
			attr.RQPSN != y.PSN ||
			attr.AccessFlags != ib.AccessRemoteRead || attr.AH.GRH.DGID != y.GID {
			t.Errorf("%v: got %+v", kind, attr)
		}
		if kind == ib.QPTypeRC && (attr.MaxRdAtomic != 3 || attr.MaxDestRdAtomic != 3 || attr.Timeout != 17 ||
			attr.RetryCnt != 2 || attr.RNRRetry != 7) {
			t.Errorf("%v: got %+v", kind, attr)
		}
	}
	early := p.newQP(t, ib.QPTypeRC)
	own := p.at.Endpoint(early)
	err := early.Prepare(p.at, ib.AccessRemoteWrite)
	_, posted := early.PostRecv(ib.RecvWR{})
	if err := errors.Join(err, posted, early.Connect(p.at, own, own, ib.Path{})); err != nil {
		t.Error(err)
	}
	if attr, _, err := early.Query(0); err != nil || attr.AccessFlags != ib.AccessRemoteWrite {
		t.Errorf("got %+v, %v", attr, err)
	}
	ud := p.newQP(t, ib.QPTypeUD)
	if err := ud.ConnectDatagram(p.at, ib.Endpoint{QKey: 5}); err != nil {
		t.Error(err)
	}
	if ud.State() != ib.QPRTS {
		t.Errorf("got %v, want RTS", ud.State())
	}
}

func TestConnectRejectsBadArguments(t *testing.T) {
	p := newQPDependencies(t)
	rc, ud := p.newQP(t, ib.QPTypeRC), p.newQP(t, ib.QPTypeUD)
	own := p.at.Endpoint(rc)
	small := own
	small.MTU = 77
	for what, err := range map[string]error{
		"a datagram queue pair":               ud.Connect(p.at, p.at.Endpoint(ud), own, ib.Path{}),
		"the endpoint of another queue pair":  rc.Connect(p.at, p.at.Endpoint(ud), own, ib.Path{}),
		"an MTU that does not exist":          rc.Connect(p.at, small, own, ib.Path{}),
		"datagrams of a connected queue pair": rc.ConnectDatagram(p.at, own),
	} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: got %v, want EINVAL", what, err)
		}
	}
	if rc.State() != ib.QPReset {
		t.Errorf("state after a failed Connect: got %v, want RESET", rc.State())
	}
	if err := rc.Connect(p.at, own, own, ib.Path{}); err != nil { // connect to itself
		t.Error(err)
	}
	if err := rc.Connect(p.at, own, own, ib.Path{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Connect of a connected queue pair: got %v, want EINVAL", err)
	}
	if _, err := p.dev.Local(2); err == nil {
		t.Error("Local of a port that does not exist: got nil, want an error")
	}
}
