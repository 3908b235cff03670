package rxe

import (
	"errors"
	"syscall"
	"testing"

	"verbena/ib"
)

// TestCountLimits tests that a program has as many objects of a kind as the device reports, and no more, and that the
// end of an object makes room for another one. Queue pairs and shared receive queues count for each program.
func TestCountLimits(t *testing.T) {
	const most = 5
	small := ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	for _, c := range []struct {
		name     string
		reported func(a *ib.DeviceAttr) int
		restrict func(d *Device)
		make     func(n *node, cq *ib.CQ, u *ib.Udata) (destroy func() error, err error)
	}{
		{"MaxPD", func(a *ib.DeviceAttr) int { return a.MaxPD }, func(d *Device) { d.pds.most = d.pds.now.Load() + most },
			func(n *node, _ *ib.CQ, _ *ib.Udata) (func() error, error) {
				pd, err := n.dev.IB().AllocPD()
				return func() error { return pd.Dealloc() }, err
			}},
		{"MaxCQ", func(a *ib.DeviceAttr) int { return a.MaxCQ }, func(d *Device) { d.cqs.most = d.cqs.now.Load() + most },
			func(n *node, _ *ib.CQ, _ *ib.Udata) (func() error, error) {
				cq, err := n.dev.IB().CreateCQ(ib.CQInit{Entries: 1})
				return func() error { return cq.Destroy() }, err
			}},
		{"MaxQP", func(a *ib.DeviceAttr) int { return a.MaxQP }, func(d *Device) { d.mostQPs = most },
			func(n *node, cq *ib.CQ, u *ib.Udata) (func() error, error) {
				qp, err := ibuser.CreateQP(n.pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC, Cap: small}, u)
				return func() error { return qp.Destroy() }, err
			}},
		{"MaxSRQ", func(a *ib.DeviceAttr) int { return a.MaxSRQ }, func(d *Device) { d.mostSRQs = most },
			func(n *node, _ *ib.CQ, u *ib.Udata) (func() error, error) {
				srq, err := ibuser.CreateSRQ(n.pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}}, u)
				return func() error { return srq.Destroy() }, err
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, setup{shortcut: true})
			n := b.a
			before, err := n.dev.IB().QueryDevice()
			check(t, err)
			c.restrict(n.dev)
			after, err := n.dev.IB().QueryDevice()
			check(t, err)
			if c.reported(&after) >= c.reported(&before) {
				t.Errorf("QueryDevice: got %d, want less than %d", c.reported(&after), c.reported(&before))
			}
			p := newProgram(t)
			check(t, ops{n.dev}.AllocUserContext(&ib.Udata{Context: p}))
			defer ops{n.dev}.DeallocUserContext(p)
			var destroy []func() error
			more := func() {
				t.Helper()
				d, err := c.make(n, n.cq, &ib.Udata{Context: p, Out: make([]byte, 64)})
				check(t, err)
				destroy = append(destroy, d)
			}
			full := func() {
				t.Helper()
				if d, err := c.make(n, n.cq, &ib.Udata{Context: p, Out: make([]byte, 64)}); !errors.Is(err, syscall.ENOMEM) {
					t.Errorf("one more than %s: got %v, want ENOMEM", c.name, err)
					if err == nil {
						check(t, d())
					}
				}
			}
			for range most {
				more()
			}
			full()
			for range 3 {
				check(t, destroy[0]())
				destroy = destroy[1:]
				more()
				full()
			}
			for _, d := range destroy {
				check(t, d())
			}
		})
	}
}
