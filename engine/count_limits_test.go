package engine

import (
	"errors"
	"syscall"
	"testing"

	"verbena/ib"
)

// TestCountLimits tests that each program can create as many objects of a kind as the device reports, and no more. The
// end of an object makes room for another one. Programs at their limits leave objects for other programs.
func TestCountLimits(t *testing.T) {
	const most = 5
	small := ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	for _, c := range []struct {
		name     string
		kind     counted
		reported func(a *ib.DeviceAttr) int
		make     func(n *node, cq *ib.CQ, u *ib.Udata) (destroy func() error, err error)
	}{
		{"MaxPD", countPD, func(a *ib.DeviceAttr) int { return a.MaxPD },
			func(n *node, _ *ib.CQ, u *ib.Udata) (func() error, error) {
				pd, err := ibuser.AllocPD(n.dev.IB(), u)
				return func() error { return pd.Dealloc() }, err
			}},
		{"MaxCQ", countCQ, func(a *ib.DeviceAttr) int { return a.MaxCQ },
			func(n *node, _ *ib.CQ, u *ib.Udata) (func() error, error) {
				cq, err := ibuser.CreateCQ(n.dev.IB(), ib.CQInit{Entries: 1}, u)
				return func() error { return cq.Destroy() }, err
			}},
		{"MaxQP", countQP, func(a *ib.DeviceAttr) int { return a.MaxQP },
			func(n *node, cq *ib.CQ, u *ib.Udata) (func() error, error) {
				qp, err := ibuser.CreateQP(n.pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC, Cap: small}, u)
				return func() error { return qp.Destroy() }, err
			}},
		{"MaxSRQ", countSRQ, func(a *ib.DeviceAttr) int { return a.MaxSRQ },
			func(n *node, _ *ib.CQ, u *ib.Udata) (func() error, error) {
				srq, err := ibuser.CreateSRQ(n.pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}}, u)
				return func() error { return srq.Destroy() }, err
			}},
		{"MaxAH", countAH, func(a *ib.DeviceAttr) int { return a.MaxAH },
			func(n *node, _ *ib.CQ, u *ib.Udata) (func() error, error) {
				gid, err := n.dev.IB().QueryGID(1, 1)
				check(n.t, err)
				to := ib.AHAttr{Port: 1, HasGRH: true, GRH: ib.GlobalRoute{DGID: gid.GID, SGIDIndex: 1}}
				ah, err := ibuser.CreateAH(n.pd, &to, u)
				return func() error { return ah.Destroy() }, err
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, setup{shortcut: true})
			n := b.a
			before, err := n.dev.IB().QueryDevice()
			check(t, err)
			n.dev.most[c.kind] = n.dev.own.now[c.kind].Load() + most
			after, err := n.dev.IB().QueryDevice()
			check(t, err)
			if c.reported(&after) >= c.reported(&before) {
				t.Errorf("QueryDevice: got %d, want less than %d", c.reported(&after), c.reported(&before))
			}
			callers := []*ib.Udata{nil}
			for range 2 {
				p := newProgram(t)
				check(t, ops{n.dev}.AllocUserContext(&ib.Udata{Context: p}))
				defer ops{n.dev}.DeallocUserContext(p)
				callers = append(callers, &ib.Udata{Context: p})
			}
			for i, u := range callers { // each has all of its objects while the callers before have theirs
				room := int(n.dev.most[c.kind])
				if u == nil {
					room = most
				}
				var destroy []func() error
				try := func() (func() error, error) {
					if u != nil {
						u.Out = make([]byte, 64)
					}
					return c.make(n, n.cq, u)
				}
				more := func() {
					t.Helper()
					d, err := try()
					check(t, err)
					destroy = append(destroy, d)
				}
				full := func() {
					t.Helper()
					if d, err := try(); !errors.Is(err, syscall.ENOMEM) {
						t.Errorf("caller %d, one more than %s: got %v, want ENOMEM", i, c.name, err)
						if err == nil {
							check(t, d())
						}
					}
				}
				for range room {
					more()
				}
				full()
				for range 3 {
					check(t, destroy[0]())
					destroy = destroy[1:]
					more()
					full()
				}
				defer func() {
					for _, d := range destroy {
						check(t, d())
					}
				}()
			}
		})
	}
}
