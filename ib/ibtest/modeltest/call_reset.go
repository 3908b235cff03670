package modeltest

import (
	"maps"
	"slices"
	"syscall"

	"verbena/ib"
	"verbena/ib/ibtest/model"
)

// reset resets the device; the consumer destroys all objects during the reset. Later objects are created on the
// recovered device.
type reset struct{}

func (c reset) String() string   { return "reset the device" }
func (c reset) uses() []model.ID { return nil }

func (c reset) device(x *runner) got {
	t, err := x.Reset(x.finish)
	if err != nil {
		return got{err: err}
	}
	x.Device, x.Handle, x.GID, x.GIDIndex, x.Port = t.Device, t.Handle, t.GID, t.GIDIndex, t.Port
	if x.attr, err = t.Device.QueryDevice(); err != nil {
		return got{err: err}
	}
	x.bury()
	return got{}
}

func (c reset) expect(x *runner, m *model.Model, g *got) want {
	m.Renew(x.limits())
	return wantErr(0)
}

// gone is memory of an object that existed before the reset.
type gone struct {
	addr       uint64
	lkey, rkey uint32
}

// bury records that all objects belong to the former device.
func (x *runner) bury() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, o := range x.objs {
		o.past, o.lazy = true, false
		o.final = o.calls + len(o.seen)
	}
	for _, id := range slices.Sorted(maps.Keys(x.m.Regions)) {
		r := x.m.Regions[id]
		x.gone = append(x.gone, gone{r.IOVA, r.LKey, r.RKey})
	}
	for _, id := range slices.Sorted(maps.Keys(x.m.Windows)) {
		w := x.m.Windows[id]
		x.gone = append(x.gone, gone{w.First, 0, w.RKey})
	}
	x.order, x.lazy = nil, false
	x.resets++
}

// stale is a call on the recovered device that uses an object of the former device.
type stale struct {
	on, old model.ID
	wr      uint64
}

func (c stale) String() string {
	return sprintf("use object %d of before the reset, with %d", c.old, c.on)
}
func (c stale) uses() []model.ID { return []model.ID{c.on} }

// device makes the call that suits the kinds of the two objects.
func (c stale) device(x *runner) got {
	o, old := x.objs[c.on], x.objs[c.old]
	if old == nil || !old.past {
		return got{err: syscall.EINVAL} // omitted by a shortened run
	}
	var err error
	switch {
	case o.pd != nil && old.cq != nil:
		_, err = o.pd.CreateQP(ib.QPInitAttr{SendCQ: old.cq, RecvCQ: old.cq, Type: ib.QPTypeRC})
	case o.cq != nil && old.pd != nil:
		_, err = old.pd.CreateQP(ib.QPInitAttr{SendCQ: o.cq, RecvCQ: o.cq, Type: ib.QPTypeRC})
	case o.qp != nil && old.ah != nil && o.qp.Type() == ib.QPTypeUD: // other types need none
		_, err = o.qp.PostSend(ib.SendWR{ID: c.wr, Opcode: ib.WRSend, AH: old.ah})
	case o.qp != nil && old.mw != nil:
		_, err = o.qp.PostSend(ib.SendWR{ID: c.wr, Opcode: ib.WRBindMW, Bind: &ib.BindMW{MW: old.mw}})
	case o.qp != nil && old.mr != nil:
		_, err = o.qp.PostSend(ib.SendWR{ID: c.wr, Opcode: ib.WRRegMR,
			Reg: &ib.FastReg{MR: old.mr, Access: ib.AccessLocalWrite}})
	default:
		err = syscall.EINVAL
	}
	return got{err: err}
}

func (c stale) expect(x *runner, m *model.Model, g *got) want {
	w := wantErr(syscall.EINVAL, syscall.ENODEV)
	if m.Dead {
		w.errs = append(w.errs, syscall.EIO)
	}
	return w
}
