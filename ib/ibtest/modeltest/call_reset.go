package modeltest

import (
	"maps"
	"slices"
	"syscall"

	"verbena/ib"
	"verbena/ib/ibtest/model"
)

// resetDevice resets the device; the consumer destroys all objects during the reset. Later objects are created on the
// recovered device.
type resetDevice struct{}

func (c resetDevice) String() string      { return "reset the device" }
func (c resetDevice) usedIDs() []model.ID { return nil }

func (c resetDevice) runOnDevice(x *modelRunner) deviceResult {
	t, err := x.Reset(x.destroyAll)
	if err != nil {
		return deviceResult{err: err}
	}
	x.Device, x.Handle, x.GID, x.GIDIndex, x.Port = t.Device, t.Handle, t.GID, t.GIDIndex, t.Port
	if x.attr, err = t.Device.QueryDevice(); err != nil {
		return deviceResult{err: err}
	}
	x.markObjectsStale()
	return deviceResult{}
}

func (c resetDevice) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	m.ReplaceDevice(x.deviceLimits())
	return wantErrnos(0)
}

// preResetMemory is memory of an object that existed before the reset.
type preResetMemory struct {
	addr       uint64
	lkey, rkey uint32
}

// markObjectsStale records that all objects belong to the former device.
func (x *modelRunner) markObjectsStale() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, o := range x.objs {
		o.past, o.lazy = true, false
		o.final = o.calls + len(o.seen)
	}
	for _, id := range slices.Sorted(maps.Keys(x.m.Keys.Regions)) {
		r := x.m.Keys.Regions[id]
		x.gone = append(x.gone, preResetMemory{r.IOVA, r.LKey, r.RKey})
	}
	for _, id := range slices.Sorted(maps.Keys(x.m.Keys.Windows)) {
		w := x.m.Keys.Windows[id]
		x.gone = append(x.gone, preResetMemory{w.First, 0, w.RKey})
	}
	x.order, x.lazy = nil, false
	x.resets++
}

// useStaleObject is a call on the recovered device that uses an object of the former device.
type useStaleObject struct {
	on, old model.ID
	wr      uint64
}

func (c useStaleObject) String() string {
	return sprintf("use object %d of before the reset, with %d", c.old, c.on)
}
func (c useStaleObject) usedIDs() []model.ID { return []model.ID{c.on} }

// runOnDevice makes the call that suits the kinds of the two objects.
func (c useStaleObject) runOnDevice(x *modelRunner) deviceResult {
	o, old := x.objs[c.on], x.objs[c.old]
	if old == nil || !old.past {
		return deviceResult{err: syscall.EINVAL} // omitted by a shortened run
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
	return deviceResult{err: err}
}

func (c useStaleObject) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	w := wantErrnos(syscall.EINVAL, syscall.ENODEV)
	if m.Device.Dead {
		w.errs = append(w.errs, syscall.EIO)
	}
	return w
}
