package modeltest

import (
	"time"

	"verbena/ib"
	"verbena/ib/ibtest/model"
)

// createCQ creates a completion queue. Only calls of pollCQ poll a lazy queue.
type createCQ struct {
	id      model.ID
	entries int
	lazy    bool
}

func (c createCQ) String() string {
	return sprintf("cq%d = CreateCQ(%d entries, lazy %v)", c.id, c.entries, c.lazy)
}
func (c createCQ) createdID() model.ID { return c.id }
func (c createCQ) usedIDs() []model.ID { return nil }

func (c createCQ) runOnDevice(x *modelRunner) deviceResult {
	o := &deviceObject{lazy: c.lazy}
	cq, err := x.Device.CreateCQ(ib.CQInit{
		Entries: c.entries,
		Handler: func(*ib.CQ) {
			x.mu.Lock()
			defer x.mu.Unlock()
			o.calls++
		},
		Event: func(_ *ib.CQ, e ib.EventType) { x.recordEvent(o, e) },
	})
	if err == nil {
		o.cq, o.over = cq, cq.Destroy
		x.lazy = x.lazy || c.lazy
		x.addObject(c.id, o)
	}
	return deviceResult{err: err}
}

func (c createCQ) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	cq := model.CQ{ID: c.id, Lazy: c.lazy}
	if o := x.objs[c.id]; o != nil {
		cq.Entries = o.cq.Entries()
		x.addToTrace("%d entries", cq.Entries)
		if cq.Entries < c.entries {
			return wantDifference("got %d entries, want %d at least", cq.Entries, c.entries)
		}
	}
	return wantErrnos(m.Completions.CreateCQ(cq))
}

// resizeCQ changes the capacity of a queue.
type resizeCQ struct {
	cq      model.ID
	entries int
}

func (c resizeCQ) String() string      { return sprintf("cq%d.Resize(%d)", c.cq, c.entries) }
func (c resizeCQ) usedIDs() []model.ID { return []model.ID{c.cq} }

func (c resizeCQ) runOnDevice(x *modelRunner) deviceResult {
	return deviceResult{err: x.objs[c.cq].cq.Resize(c.entries)}
}

func (c resizeCQ) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	e := m.Completions.ResizeCQ(c.cq, c.entries)
	n := x.objs[c.cq].cq.Entries()
	if g != nil && g.err == nil && n >= c.entries && n >= len(m.Completions.CQs[c.cq].Wants) && !m.Device.Dead {
		e = 0 // rounded up to the number of completions
	}
	if e == 0 && g != nil {
		m.Completions.RecordResize(c.cq, x.objs[c.cq].cq.Entries())
	}
	return wantErrnos(e)
}

// pollCQ polls a lazy queue.
type pollCQ struct {
	cq model.ID
	n  int
}

func (c pollCQ) String() string      { return sprintf("cq%d.Poll(%d)", c.cq, c.n) }
func (c pollCQ) usedIDs() []model.ID { return []model.ID{c.cq} }

// maxPolls limits the polls for completions of requests that the device has executed. A poll may show the device that
// it has to finish an earlier completion first.
const maxPolls = 8

func (c pollCQ) runOnDevice(x *modelRunner) deviceResult {
	wanted, got := min(c.n, len(x.m.Completions.CQs[c.cq].Wants)), 0
	for i := 0; i == 0 || i < maxPolls && got < wanted; i++ {
		n, d := x.pollOnce(c.cq, make([]ib.WC, c.n-got))
		if d != nil {
			return deviceResult{err: errorString(d.what)}
		}
		got += n
	}
	return deviceResult{missed: got != wanted}
}

type errorString string

func (e errorString) Error() string { return string(e) }

func (c pollCQ) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	return wantErrnos(0)
}

// armCQ requests a notification.
type armCQ struct {
	cq    model.ID
	flags ib.NotifyFlags
}

func (c armCQ) String() string      { return sprintf("cq%d.ReqNotify(%d)", c.cq, c.flags) }
func (c armCQ) usedIDs() []model.ID { return []model.ID{c.cq} }

func (c armCQ) runOnDevice(x *modelRunner) deviceResult {
	missed, err := x.objs[c.cq].cq.ReqNotify(c.flags)
	return deviceResult{missed: missed, err: err}
}

func (c armCQ) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	w := wantErrnos(0)
	w.missed = m.Completions.ArmCQ(c.cq, c.flags)
	if g == nil || w.missed {
		return w
	}
	// A device may report a missed completion of an empty queue, but not in two requests one after the other: the
	// consumer polls the queue and arms it again (ib_req_notify_cq).
	o := x.objs[c.cq]
	if c.flags&ib.NotifyReportMissed == 0 {
		o.doubt = false
		return w
	}
	w.missed = g.missed && (x.searching || !o.doubt)
	o.doubt = w.missed && !x.searching
	return w
}

// moderateCQ delays notifications. A period ends before the next call.
type moderateCQ struct {
	cq     model.ID
	count  int
	period time.Duration
}

func (c moderateCQ) String() string      { return sprintf("cq%d.Moderate(%d, %v)", c.cq, c.count, c.period) }
func (c moderateCQ) usedIDs() []model.ID { return []model.ID{c.cq} }

func (c moderateCQ) runOnDevice(x *modelRunner) deviceResult {
	return deviceResult{err: x.objs[c.cq].cq.Moderate(c.count, c.period)}
}

func (c moderateCQ) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	return wantErrnos(m.Completions.ModerateCQ(c.cq, c.count, c.period))
}

// createSRQ creates a shared receive queue, of type XRC if it has an XRC domain.
type createSRQ struct {
	id, pd   model.ID
	room     uint32
	elements uint32
	xrcd, cq model.ID
}

func (c createSRQ) String() string {
	return sprintf("srq%d = pd%d.CreateSRQ(%d receives of %d elements, xrcd%d, cq%d)", c.id, c.pd, c.room, c.elements,
		c.xrcd, c.cq)
}
func (c createSRQ) createdID() model.ID { return c.id }
func (c createSRQ) usedIDs() []model.ID { return []model.ID{c.pd, c.xrcd, c.cq} }

func (c createSRQ) runOnDevice(x *modelRunner) deviceResult {
	o := &deviceObject{}
	init := ib.SRQInitAttr{
		Attr:  ib.SRQAttr{MaxWR: c.room, MaxSGE: c.elements},
		Event: func(_ *ib.SRQ, e ib.EventType) { x.recordEvent(o, e) },
	}
	if c.xrcd != 0 {
		init.Type, init.XRCD, init.CQ = ib.SRQXRC, x.objs[c.xrcd].xrc, x.objs[c.cq].cq
	}
	srq, err := x.objs[c.pd].pd.CreateSRQ(init)
	if err == nil {
		o.srq, o.over = srq, srq.Destroy
		x.addObject(c.id, o)
	}
	return deviceResult{err: err}
}

func (c createSRQ) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	var granted ib.SRQAttr
	s := model.SRQ{ID: c.id, PD: c.pd, XRCD: c.xrcd, CQ: c.cq}
	if o := x.objs[c.id]; o != nil {
		granted, s.Num = o.srq.Init().Attr, o.srq.Num()
		for _, other := range m.Queues.SRQs {
			if c.xrcd != 0 && other.XRCD != 0 && other.Num == s.Num {
				return wantDifference("got number %#x, which is that of srq%d, want a new one", s.Num, other.ID)
			}
		}
		if granted.MaxWR < c.room || granted.MaxSGE < c.elements {
			return wantDifference("got %+v, want the requested capacities at least", granted)
		}
	}
	return wantErrnos(m.CreateSRQ(s, granted))
}

// modifySRQ changes the capacity or the limit of a shared receive queue.
type modifySRQ struct {
	srq  model.ID
	attr ib.SRQAttr
	mask ib.SRQAttrMask
}

func (c modifySRQ) String() string {
	return sprintf("srq%d.Modify(%+v, mask %#x)", c.srq, c.attr, uint32(c.mask))
}
func (c modifySRQ) usedIDs() []model.ID { return []model.ID{c.srq} }

func (c modifySRQ) runOnDevice(x *modelRunner) deviceResult {
	return deviceResult{err: x.objs[c.srq].srq.Modify(c.attr, c.mask)}
}

func (c modifySRQ) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	s := m.Queues.SRQs[c.srq]
	if room := c.attr.MaxWR; g != nil && g.err == nil && c.mask == ib.SRQAttrMaxWR && room > 0 && int(room) < s.Len() {
		// The device may have rounded the capacity up to the number of receives.
		if a, err := x.objs[c.srq].srq.Query(); err == nil && int(a.MaxWR) >= s.Len() {
			m.RecordSRQResize(c.srq, int(a.MaxWR))
			return wantErrnos(0)
		}
	}
	e := m.ModifySRQ(c.srq, c.attr, c.mask)
	if g == nil || e != 0 || g.err != nil || x.searching {
		return wantErrnos(e)
	}
	a, err := x.objs[c.srq].srq.Query()
	if err != nil || int(a.MaxWR) < s.Capacity() || a.Limit != s.Limit {
		return wantDifference("Query: got %+v, %v, want limit %d and room for %d at least", a, err, s.Limit, s.Capacity())
	}
	m.RecordSRQResize(c.srq, int(a.MaxWR))
	return wantErrnos(0)
}

// setError moves the device to the error state.
type setError struct{}

func (c setError) String() string      { return "SetError()" }
func (c setError) usedIDs() []model.ID { return nil }

func (c setError) runOnDevice(x *modelRunner) deviceResult {
	x.Handle.SetError()
	return deviceResult{}
}

func (c setError) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	m.SetError()
	return wantErrnos(0)
}
