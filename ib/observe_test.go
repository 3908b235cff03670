package ib

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"

	"verbena/ib/internal/observe"
)

// recordingObserver is an observer that records its calls. The zero value is ready for use.
type recordingObserver struct {
	mu     sync.Mutex
	inside map[*observe.Call]bool
	log    []string
	start  observe.ObservationStart
	refuse map[observe.CallKind]error
}

func (r *recordingObserver) Enter(c *observe.Call) error { return r.recordEntry("core", c) }

func (r *recordingObserver) recordEntry(of string, c *observe.Call) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inside == nil {
		r.inside = map[*observe.Call]bool{}
	}
	r.inside[c] = true
	r.log = append(r.log, of+": "+c.What)
	return r.refuse[c.Kind]
}

func (r *recordingObserver) Leave(c *observe.Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.inside[c] {
		panic("leave without enter, or a second leave")
	}
	delete(r.inside, c)
}

func (r *recordingObserver) ObserveDevice(d *Device, root observe.Subject, cl *Client) observe.Subject {
	if cl == nil {
		return &recordedSubject{r, "device"}
	}
	return &recordedSubject{r, cl.Name}
}

func (r *recordingObserver) ObserveObject(_ any, kind string, by, of observe.Subject) observe.Subject {
	name := kind + " by " + by.(*recordedSubject).name
	if of != nil {
		name += " of a " + of.(*recordedSubject).name
	}
	return &recordedSubject{r, name}
}

func (r *recordingObserver) WrapQueue(s observe.Subject, drv any, m observe.QueueInfo) any {
	r.addLine("%s: %T, %+v", s.(*recordedSubject).name, drv, m)
	return drv
}

func (r *recordingObserver) addLine(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

// checkAllLeft checks that each enter is followed by a leave.
func (r *recordingObserver) checkAllLeft(t testing.TB) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.inside {
		t.Errorf("%s: got no end of the call, want one", c.What)
	}
}

type recordedSubject struct {
	*recordingObserver
	name string
}

func (s *recordedSubject) Enter(c *observe.Call) error { return s.recordEntry(s.name, c) }

func (s *recordedSubject) RecordEvent(e observe.SubjectEvent, arg any) error {
	if e == observe.Started {
		s.start = arg.(observe.ObservationStart)
		arg = s.start.Holds
	}
	s.addLine("%s: %s %v", s.name, [...]string{"born", "died", "abandoned", "started", "removed", "unregistered",
		"hold begins", "hold ends",
		"freed", "completed", "raised"}[e], arg)
	return nil
}

// TestObserverSeesCallsInOrder checks that an observer sees the calls of consumers and the driver in order.
func TestObserverSeesCallsInOrder(t *testing.T) {
	core, rec := &Core{}, &recordingObserver{}
	core.setObserver(rec)
	cl := &Client{Name: "client",
		Add: func(d *Device) (any, error) { return d.AllocPD() },
		Remove: func(_ *Device, data any) {
			must(t, data.(*PD).Dealloc())
		},
	}
	must(t, core.RegisterClient(cl))
	b := newBenchOn(t, core, func(*CQ) {}, nil, nil)
	errorOf(b.cq.ReqNotify(NotifyNextComp))
	b.dev.handle.HoldCallbacks()
	errorOf(b.qp.PostSend(SendWR{}))
	b.dev.handle.RunCallbacks()
	stop := b.dev.OnEvent(func(Event) {})
	QPHandle{qp: b.qp}.Raise(EventCommEst)
	stop()
	wantErrno(t, "Dealloc", b.dev.handle.Dealloc(), syscall.EBUSY)
	b.qp.Abandon()
	b.destroyAll(t)
	rec.checkAllLeft(t)
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

// TestObserverErrorFailsCall checks that a call fails if the observer returns an error.
func TestObserverErrorFailsCall(t *testing.T) {
	core, rec := &Core{}, &recordingObserver{}
	core.setObserver(rec)
	b := newBenchOn(t, core, nil, nil, nil)
	const no = syscall.EPERM
	rec.refuse = map[observe.CallKind]error{observe.Atomic: no, observe.Destroy: no, observe.Register: no}
	calls := b.drv.calls.Load()
	for what, err := range map[string]error{
		"PD.CreateAH": errorOf(b.pd.CreateAH(&AHAttr{})), "QP.Destroy": b.qp.Destroy(), "CQ.Destroy": b.cq.Destroy(),
		"Core.Unregister": core.Unregister(&b.dev.handle),
	} {
		wantErrno(t, what, err, no)
	}
	if n := b.drv.calls.Load(); n != calls {
		t.Errorf("destroy calls in the driver: got %d, want none", n-calls)
	}
	rec.refuse = nil
	b.destroyAll(t)
	rec.checkAllLeft(t)
}

// TestObserverSeesEarlierHolds checks that an observer receives the number of earlier holds, and can end one of them.
func TestObserverSeesEarlierHolds(t *testing.T) {
	core, rec := &Core{}, &recordingObserver{}
	core.setObserver(rec)
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
