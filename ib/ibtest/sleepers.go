package ibtest

import (
	"errors"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/umem"
)

// sleepingCall is a call, or a pair of calls, of methods that may sleep.
type sleepingCall struct {
	methods []string // methods of package ib, as Type.Method
	call    func() error
}

// sleepingCalls returns calls of all driver methods that may sleep (package verb, TestSleepers), on objects of a pair.
// Methods that the driver does not support return EOPNOTSUPP.
func (e *testEnv) sleepingCalls(p *pair) []sleepingCall {
	e.Helper()
	b, addr := e.newMemory(64)
	region := func() (*ib.MR, error) {
		return p.pd.RegMR(ib.MRInit{Space: e.mem, Addr: addr, Length: uint64(len(b)), Access: ib.AccessLocalWrite})
	}
	srq, noSRQ := p.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}})
	if noSRQ == nil {
		destroyAtEnd(e, srq, srq.Destroy)
	}
	onSRQ := func(f func() error) func() error {
		return func() error {
			if noSRQ != nil {
				return syscall.EOPNOTSUPP
			}
			return f()
		}
	}
	group := e.mcastAddressFunc()
	var member *ib.QP
	if group != nil {
		member = e.newQPOfType(ib.QPTypeUD, p.pd, p.cqs[0])
	}
	changed, err := region()
	e.must("register memory", err)
	destroyAtEnd(e, changed, changed.Dereg)
	rooms := atomic.Uint32{}
	return []sleepingCall{
		{[]string{"Device.QueryDevice"}, func() error { return errorOf(e.dev.QueryDevice()) }},
		{[]string{"Device.QueryPort"}, func() error { return errorOf(e.dev.QueryPort(1)) }},
		{[]string{"Device.QueryPortSpeed"}, func() error {
			_, err := e.dev.QueryPortSpeed(1)
			if errors.Is(err, syscall.EOPNOTSUPP) {
				return nil // the driver does not report it
			}
			return err
		}},
		{[]string{"Device.QueryGID"}, func() error { return errorOf(e.dev.QueryGID(1, e.connector.gidIndex)) }},
		{[]string{"Device.QueryPKey"}, func() error { return errorOf(e.dev.QueryPKey(1, 0)) }},
		{[]string{"Device.AllocPD", "PD.Dealloc"}, func() error {
			return destroyCreated(e.dev.AllocPD())((*ib.PD).Dealloc)
		}},
		{[]string{"PD.RegMR", "MR.Dereg"}, func() error { return destroyCreated(region())((*ib.MR).Dereg) }},
		{[]string{"MR.Rereg"}, func() error {
			return changed.Rereg(ib.MRChangeAccess, ib.MRChange{Access: ib.AccessLocalWrite | ib.AccessRemoteRead})
		}},
		{[]string{"PD.AdviseMR"}, func() error {
			err := p.pd.AdviseMR(ib.AdvicePrefetch, 0, []ib.SGE{{Addr: changed.Addr(), Length: 8, LKey: changed.LKey()}})
			if errors.Is(err, syscall.EINVAL) { // the region is not on demand
				return nil
			}
			return err
		}},
		{[]string{"PD.AllocMR", "MR.Map"}, func() error {
			mr, err := p.pd.AllocMR(2)
			if err != nil {
				return err
			}
			return errors.Join(mr.Map(e.mem, nil, []umem.Range{{Addr: addr, Length: 64}}, addr), mr.Dereg())
		}},
		{[]string{"PD.AllocMW", "MW.Dealloc"},
			func() error { return destroyCreated(p.pd.AllocMW(ib.MWType1))((*ib.MW).Dealloc) }},
		{[]string{"Device.CreateCQ", "CQ.Destroy"}, func() error {
			return destroyCreated(e.dev.CreateCQ(ib.CQInit{Entries: 4}))((*ib.CQ).Destroy)
		}},
		{[]string{"CQ.Resize"}, func() error { return p.cqs[0].Resize(3 * e.queueLen) }},
		{[]string{"CQ.Moderate"}, func() error { // often while completions wait for the end of a period
			if rooms.Add(1)%2 == 0 {
				return p.cqs[0].Moderate(1, time.Microsecond)
			}
			return p.cqs[0].Moderate(30, 5*time.Millisecond)
		}},
		{[]string{"PD.CreateQP", "QP.Destroy"}, func() error {
			return destroyCreated(p.pd.CreateQP(ib.QPInitAttr{SendCQ: p.cqs[0], RecvCQ: p.cqs[0], Type: ib.QPTypeRC,
				Cap: minScaleCap}))(
				(*ib.QP).Destroy)
		}},
		{[]string{"QP.Modify"}, func() error {
			return p.qps[0].Modify(ib.QPAttr{State: ib.QPRTS, AccessFlags: remote}, ib.QPAttrState|ib.QPAttrAccessFlags)
		}},
		{[]string{"QP.Query"}, func() error { _, _, err := p.qps[0].Query(0); return err }},
		{[]string{"PD.CreateSRQ", "SRQ.Destroy"}, func() error {
			return destroyCreated(p.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}}))((*ib.SRQ).Destroy)
		}},
		{[]string{"SRQ.Modify"}, onSRQ(func() error {
			return srq.Modify(ib.SRQAttr{MaxWR: 4 + rooms.Add(1)%2}, ib.SRQAttrMaxWR)
		})},
		{[]string{"SRQ.Query"}, onSRQ(func() error { return errorOf(srq.Query()) })},
		{[]string{"QP.AttachMcast", "QP.DetachMcast"}, func() error {
			if group == nil {
				return syscall.EOPNOTSUPP
			}
			return errors.Join(member.AttachMcast(group(1), 0), member.DetachMcast(group(1), 0))
		}},
		{[]string{"Device.AllocXRCD", "XRCD.Dealloc"}, func() error {
			return destroyCreated(e.dev.AllocXRCD())((*ib.XRCD).Dealloc)
		}},
	}
}

// destroyCreated destroys a new object.
func destroyCreated[T any](x *T, err error) func(destroy func(*T) error) error {
	return func(destroy func(*T) error) error {
		d, err := destroyMethodOf(x, err)(destroy)
		if err != nil {
			return err
		}
		return d()
	}
}
