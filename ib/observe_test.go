package ib

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"

	"verbena/ib/internal/observe"
)

// recording is an observer that records its calls. The zero value is ready for use.
type recording struct {
	mu     sync.Mutex
	inside map[*observe.Call]bool
	log    []string
	start  observe.Start
	refuse map[observe.Kind]error
}

func (r *recording) Enter(c *observe.Call) error { return r.enter("core", c) }

func (r *recording) enter(of string, c *observe.Call) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inside == nil {
		r.inside = map[*observe.Call]bool{}
	}
	r.inside[c] = true
	r.log = append(r.log, of+": "+c.What)
	return r.refuse[c.Kind]
}

func (r *recording) Leave(c *observe.Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.inside[c] {
		panic("leave without enter, or a second leave")
	}
	delete(r.inside, c)
}

func (r *recording) Device(d *Device, root observe.Subject, cl *Client) observe.Subject {
	if cl == nil {
		return &recorded{r, "device"}
	}
	return &recorded{r, cl.Name}
}

func (r *recording) Object(_ any, kind string, by, of observe.Subject) observe.Subject {
	name := kind + " by " + by.(*recorded).name
	if of != nil {
		name += " of a " + of.(*recorded).name
	}
	return &recorded{r, name}
}

func (r *recording) Queue(s observe.Subject, drv any, m observe.Made) any {
	r.add("%s: %T, %+v", s.(*recorded).name, drv, m)
	return drv
}

func (r *recording) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

// left checks that each enter is followed by a leave.
func (r *recording) left(t testing.TB) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.inside {
		t.Errorf("%s: got no end of the call, want one", c.What)
	}
}

type recorded struct {
	*recording
	name string
}

func (s *recorded) Enter(c *observe.Call) error { return s.enter(s.name, c) }

func (s *recorded) Note(e observe.Event, arg any) error {
	if e == observe.Started {
		s.start = arg.(observe.Start)
		arg = s.start.Holds
	}
	s.add("%s: %s %v", s.name, [...]string{"born", "died", "abandoned", "started", "removed", "unregistered",
		"hold begins", "hold ends",
		"freed", "completed", "raised"}[e], arg)
	return nil
}

// TestObserver checks that an observer sees the calls of consumers and the driver in order.
func TestObserver(t *testing.T) {
	core, rec := &Core{}, &recording{}
	core.observe(rec)
	cl := &Client{Name: "client",
		Add: func(d *Device) (any, error) { return d.AllocPD() },
		Remove: func(_ *Device, data any) {
			must(t, data.(*PD).Dealloc())
		},
	}
	must(t, core.RegisterClient(cl))
	b := newBenchOn(t, core, func(*CQ) {}, nil, nil)
	second(b.cq.ReqNotify(NotifyNextComp))
	b.dev.handle.HoldCallbacks()
	second(b.qp.PostSend(SendWR{}))
	b.dev.handle.RunCallbacks()
	stop := b.dev.OnEvent(func(Event) {})
	QPHandle{qp: b.qp}.Raise(EventCommEst)
	stop()
	wantErr(t, "Dealloc", b.dev.handle.Dealloc(), syscall.EBUSY)
	b.qp.Abandon()
	b.free(t)
	rec.left(t)
	want := []string{
		"core: Core.RegisterClient",
		"device: Core.Register", "device: started 0",
		"client: Add", "client: Device.AllocPD", "PD by client: born <nil>",
		"device: Device.AllocPD", "PD by device: born <nil>",
		"device: Device.CreateCQ", "CQ by device: *ib.fakeCQ, {User:false Overruns:false}", "CQ by device: born <nil>",
		"PD by device: PD.CreateQP", "QP by device of a PD by device: *ib.fakeQP, {User:false Overruns:false}",
		"QP by device of a PD by device: born <nil>",
		"device: hold begins <nil>", "CQ by device: completed <nil>", "device: hold ends <nil>",
		"CQ by device: the completion handler",
		"device: Device.OnEvent", "event function by device: born <nil>",
		"QP by device of a PD by device: raised <nil>",
		"event function by device: the end of Device.OnEvent", "event function by device: died <nil>",
		"device: freed <nil>",
		"QP by device of a PD by device: abandoned <nil>",
		"QP by device of a PD by device: QP.Destroy", "QP by device of a PD by device: died <nil>",
		"CQ by device: CQ.Destroy", "CQ by device: died <nil>",
		"PD by device: PD.Dealloc", "PD by device: died <nil>",
		"device: Core.Unregister", "client: Remove", "PD by client: PD.Dealloc", "PD by client: died <nil>",
		"client: removed Remove",
		"device: unregistered <nil>",
	}
	if !slices.Equal(rec.log, want) {
		t.Errorf("got\n%q, want\n%q", rec.log, want)
	}
}

// TestObserverRefuses checks that a call fails if the observer returns an error.
func TestObserverRefuses(t *testing.T) {
	core, rec := &Core{}, &recording{}
	core.observe(rec)
	b := newBenchOn(t, core, nil, nil, nil)
	const no = syscall.EPERM
	rec.refuse = map[observe.Kind]error{observe.Atomic: no, observe.Destroy: no, observe.Register: no}
	calls := b.drv.calls.Load()
	for what, err := range map[string]error{
		"PD.CreateAH": second(b.pd.CreateAH(&AHAttr{})), "QP.Destroy": b.qp.Destroy(), "CQ.Destroy": b.cq.Destroy(),
		"Core.Unregister": core.Unregister(&b.dev.handle),
	} {
		wantErr(t, what, err, no)
	}
	if n := b.drv.calls.Load(); n != calls {
		t.Errorf("destroy calls in the driver: got %d, want none", n-calls)
	}
	rec.refuse = nil
	b.free(t)
	rec.left(t)
}

// TestObserverOfHolds checks that an observer receives the number of earlier holds, and can end one of them.
func TestObserverOfHolds(t *testing.T) {
	core, rec := &Core{}, &recording{}
	core.observe(rec)
	d, _ := newDevice("fake0")
	d.handle.HoldCallbacks()
	d.handle.HoldCallbacks()
	must(t, core.Register(&d.handle))
	if rec.start.Holds != 2 {
		t.Errorf("holds at the start: got %d, want 2", rec.start.Holds)
	}
	d.handle.RunCallbacks()
	rec.start.Drop()
	if n := d.callbacks.holds.Load(); n != 0 {
		t.Errorf("holds: got %d, want 0", n)
	}
	must(t, core.Unregister(&d.handle))
}
