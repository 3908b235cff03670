package modeltest

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/ib/ibtest/model"
)

var sprintf = fmt.Sprintf

// TestedDevice is a device under test.
type TestedDevice struct {
	Device   *ib.Device
	Handle   *ib.DeviceHandle
	GID      ib.GID
	GIDIndex int
	Port     ib.PortAttr
	// Virtual reports whether the run is in a bubble of package testing/synctest.
	Virtual bool
	// Lossy reports whether the network between queue pairs loses packets.
	Lossy bool
	// Roomy reports whether completion queues may hold more completions than they report.
	Roomy bool
	// Abilities is shared by all runs on devices of one driver.
	Abilities *DriverFeatures
	// Shared reports whether other threads use the device.
	Shared bool
	// Thread is the number of the thread among those that use the device. Each has multicast groups of its own.
	Thread int
	// Names holds the numbers and keys of all threads; may be nil.
	Names *IDOwners
	// Reset resets the device, with remove as the consumer's shutdown, and returns the recovered device.
	Reset func(remove func() error) (TestedDevice, error)
	// Timeout is the time to wait for expected results. It is virtual in a bubble.
	Timeout time.Duration
}

// deviceObject is an object of the device.
type deviceObject struct {
	pd  *ib.PD
	mr  *ib.MR
	mw  *ib.MW
	cq  *ib.CQ
	srq *ib.SRQ
	ah  *ib.AH
	qp  *ib.QP
	xrc *ib.XRCD

	groups []ib.GID // for a QP: its groups
	peer   model.ID // for a QP: the future peer
	lazy   bool     // for a CQ: only calls poll it
	dead   bool
	past   bool         // belongs to a device before its reset
	final  int          // callbacks of past objects
	over   func() error // destroys it
	calls  int          // handler calls; under runner.mu
	doubt  bool         // for a CQ: its last request for notification reported a missed completion, without one
	before int          // handler calls before an episode, in which one call may stand for several notifications
	seen   []ib.EventType
}

// modelRunner makes calls on a device and on the model.
type modelRunner struct {
	TestedDevice
	attr   ib.DeviceAttr
	access ib.AccessFlags // all possible rights of regions

	groups4   bool   // multicast groups are IPv4 addresses
	inline    uint32 // bytes of inline data that queue pairs can have, at most maxInlineCap
	m         *model.Model
	space     *sparseSpace
	areas     []memoryArea
	dirty     map[uint64]bool
	objs      map[model.ID]*deviceObject
	order     []model.ID // IDs of objs, in order
	psn       uint32
	lazy      bool              // a lazy queue exists
	ids       map[uint64]string // IDs of posted work requests
	resets    int
	episodes  bool             // the run makes concurrent calls
	searching bool             // searching the order of an episode: nothing is recorded
	gone      []preResetMemory // memory of former devices

	mu sync.Mutex // guards the fields of objs that callbacks write

	trace []string
}

// modelDifference is a difference between device and model.
type modelDifference struct {
	what string
	late bool // the difference may still disappear
}

func newTransientDifference(format string, args ...any) *modelDifference {
	return &modelDifference{sprintf(format, args...), true}
}
func newFinalDifference(format string, args ...any) *modelDifference {
	return &modelDifference{sprintf(format, args...), false}
}

// newModelRunner returns a runner on a device without objects.
func newModelRunner(t TestedDevice) (*modelRunner, error) {
	attr, err := t.Device.QueryDevice()
	if err != nil {
		return nil, err
	}
	x := &modelRunner{
		TestedDevice: t, attr: attr, dirty: map[uint64]bool{},
		objs: map[model.ID]*deviceObject{}, ids: map[uint64]string{}, psn: 0xfffff0,
	}
	x.m = model.New(x.deviceLimits())
	if err := x.allocateAreas(); err != nil {
		return nil, err
	}
	return x, x.probeRegionRights()
}

// deviceLimits returns the limits of the device.
func (x *modelRunner) deviceLimits() model.Limits {
	return model.Limits{
		MaxMsgSize: uint64(x.Port.MaxMsgSize), MTU: x.Port.ActiveMTU.Bytes(), GID: x.GID,
		Lossy: x.Lossy, Roomy: x.Roomy, Blind: !x.Virtual,
		Flush:       x.attr.DeviceCapFlags&ib.DeviceCapFlushGlobal != 0,
		AtomicWrite: x.attr.DeviceCapFlags&ib.DeviceCapAtomicWrite != 0,
		Atomics:     x.attr.AtomicCap != ib.AtomicNone,
		InitReads:   x.attr.MaxQPInitRdAtom,
		RDMASGE:     max(1, x.attr.MaxSGERd),
		Reads:       x.attr.MaxQPRdAtom,
		Purges:      x.m != nil && x.m.Device.Purges,
	}
}

// deviceResult is the result of a call on a device.
type deviceResult struct {
	n      int
	err    error
	missed bool
	attr   ib.QPAttr     // result of a query
	init   ib.QPInitAttr // result of a query
	wcs    []ib.WC       // result of a poll

	lkey, rkey uint32 // keys after a rereg
}

// modelResult is the result of a call on a model.
type modelResult struct {
	n      int
	errs   []syscall.Errno // 0: success
	missed bool
	wrong  string // the difference of a result with several parts; "": none
}

func wantErrnos(e ...syscall.Errno) modelResult { return modelResult{errs: e} }

func wantDifference(format string, args ...any) modelResult {
	return modelResult{wrong: sprintf(format, args...)}
}

// call is a call of the API. It names objects by the calls that created them, so that it keeps its meaning when other
// calls are omitted.
type call interface {
	fmt.Stringer
	// usedIDs returns the objects that must exist.
	usedIDs() []model.ID
	// runOnDevice makes the call on the device.
	runOnDevice(x *modelRunner) deviceResult
	// runOnModel makes the call on a model. A nil g is a dry run.
	runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult
}

// creatingCall is a call that creates an object. Its result depends on the driver, so there is no dry run.
type creatingCall interface{ createdID() model.ID }

// postingCall is a call that posts work requests. name records their IDs.
type postingCall interface{ recordIDs(x *modelRunner) }

// isPossible reports whether a call is possible now and its result is defined.
func (x *modelRunner) isPossible(c call) bool {
	for i, id := range c.usedIDs() {
		if o := x.objs[id]; (id != 0 || i == 0) && (o == nil || o.dead) {
			return false
		}
	}
	if x.Abilities.lacksFeatureFor(c) {
		return false
	}
	if k, ok := c.(creatingCall); ok {
		return x.objs[k.createdID()] == nil
	}
	m := x.m.Clone()
	m.BeginCall()
	c.runOnModel(x, m, nil)
	return m.Call.Open == ""
}

// runCall makes a call and compares the results.
func (x *modelRunner) runCall(c call) (err error) {
	defer func() {
		if r := recover(); r != nil {
			buf := make([]byte, 16<<10)
			err = fmt.Errorf("%v: panic: %v\n%s", c, r, buf[:runtime.Stack(buf, false)])
		}
	}()
	x.trace = append(x.trace, c.String())
	if p, ok := c.(postingCall); ok {
		p.recordIDs(x)
	}
	if _, ok := c.(destroyObject); (ok || mayReplaceKeys(c)) && x.Names != nil {
		x.Names.removeIDsOf(x)
	}
	began := time.Now()
	g := c.runOnDevice(x)
	x.addToTrace("-> %s", formatResult(g))
	if d := time.Since(began); d > 0 && x.Virtual && mayNotSleep(c) {
		return fmt.Errorf("%v: a method that may not sleep took %v of virtual time", c, d)
	}
	x.m.BeginCall()
	w := wantErrnos(0)
	if c := x.Abilities.recordFeatures(c, &g); c != nil {
		w = c.runOnModel(x, x.m, &g)
	}
	if x.m.Call.Open != "" {
		return errUndefinedResult
	}
	if d := compareResult(g, w); d != "" {
		return fmt.Errorf("%v: %s", c, d)
	}
	switch d := x.awaitExpectedState(); {
	case x.m.Call.Open != "": // the retries of a request have ended, with an undefined result
		return errUndefinedResult
	case d != nil:
		return fmt.Errorf("after %v: %s", c, d.what)
	}
	if x.Names != nil {
		return x.Names.addIDsOf(x)
	}
	return nil
}

// mayNotSleep reports whether a call makes only calls of methods that may not sleep.
func mayNotSleep(c call) bool {
	switch c.(type) {
	case postSend, postRecv, pollCQ, armCQ, createAH:
		return true
	}
	return false
}

// mayReplaceKeys reports whether a call may replace keys.
func mayReplaceKeys(c call) bool {
	_, ok := c.(reregMR)
	return ok
}

// errUndefinedResult ends a run without a result. The driver had a choice in a call, for example to accept more
// requests than required, and its choice makes the result undefined.
var errUndefinedResult = errors.New("the result is not defined")

func formatResult(g deviceResult) string {
	s := "ok"
	if g.err != nil {
		s = g.err.Error()
	}
	if g.n != 0 {
		s = sprintf("%d, %s", g.n, s)
	}
	if g.missed {
		s += ", missed"
	}
	return s
}

// addToTrace adds to the log line of the current call.
func (x *modelRunner) addToTrace(format string, args ...any) {
	if x.searching {
		return
	}
	x.trace[len(x.trace)-1] += "\n        " + sprintf(format, args...)
}

func compareResult(g deviceResult, w modelResult) string {
	ok := false
	for _, e := range w.errs {
		ok = ok || e == 0 && g.err == nil || e != 0 && errors.Is(g.err, e) || e == syscall.EINVAL && isUnsupportedError(g.err)
	}
	switch {
	case w.wrong != "":
		return w.wrong
	case !ok:
		return sprintf("got error %v, want %v", g.err, errnoNames(w.errs))
	case g.n != w.n:
		return sprintf("got %d work requests taken, want %d", g.n, w.n)
	case g.missed != w.missed:
		return sprintf("got missed %v, want %v", g.missed, w.missed)
	}
	return ""
}

func errnoNames(errs []syscall.Errno) (list []string) {
	for _, e := range errs {
		if e == 0 {
			list = append(list, "success")
		} else {
			list = append(list, sprintf("%q", e.Error()))
		}
	}
	return list
}

// awaitExpectedState waits until the device has done everything that the model expects.
func (x *modelRunner) awaitExpectedState() *modelDifference {
	if x.lazy { // there is no sign when the device is done
		time.Sleep(10 * time.Second)
	}
	begin := time.Now()
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, x.Timeout/20) {
		if x.Virtual {
			waitBubbleBlocked()
		}
		d := x.compareDevice()
		if d == nil {
			break
		}
		if !d.late || time.Since(begin) > x.Timeout {
			return d
		}
		if !x.Virtual {
			pause = 20 * time.Microsecond
			runtime.Gosched()
		}
		time.Sleep(pause)
	}
	if x.Virtual { // nothing may follow
		time.Sleep(20 * time.Millisecond)
		waitBubbleBlocked()
		return x.compareDevice()
	}
	return nil
}

// waitBubbleBlocked returns when all threads of the bubble are blocked. Unlike synctest.Wait it may be called on
// several threads.
func waitBubbleBlocked() { time.Sleep(time.Nanosecond) }

// compareDevice returns a difference between device and model.
func (x *modelRunner) compareDevice() *modelDifference {
	x.applyRetryLimit()
	for _, f := range []func() *modelDifference{x.compareQueues, x.compareStates, x.compareMemory, x.compareCallbacks} {
		if d := f(); d != nil {
			return d
		}
	}
	return nil
}

// compareQueues polls the queues that are not lazy.
func (x *modelRunner) compareQueues() *modelDifference {
	var first *modelDifference
	for _, id := range x.order {
		o := x.objs[id]
		if o.cq == nil || o.dead || o.lazy {
			continue
		}
		if d := x.pollUntilEmpty(id); d != nil && (first == nil || !d.late) {
			first = d
		}
	}
	return first
}

// pollUntilEmpty polls a queue until it is empty. It returns a missing or a wrong completion.
func (x *modelRunner) pollUntilEmpty(id model.ID) *modelDifference {
	for wc := make([]ib.WC, 16); ; {
		n, d := x.pollOnce(id, wc)
		if d != nil {
			return d
		}
		if n < len(wc) {
			break
		}
	}
	if w := x.m.Completions.CQs[id].Wants; len(w) > 0 {
		return newTransientDifference("cq%d: no completion of %s, want %s", id, x.ids[w[0].WC.ID],
			formatExpectedCompletion(&w[0]))
	}
	return nil
}

// pollOnce polls a queue once and compares the completions.
func (x *modelRunner) pollOnce(id model.ID, wc []ib.WC) (n int, d *modelDifference) {
	n, err := x.pollDevice(id, wc)
	if err != nil {
		return 0, newFinalDifference("%v", err)
	}
	for i := range wc[:n] {
		if d := x.matchCompletion(id, &wc[i]); d != nil {
			return n, d
		}
	}
	return n, nil
}

// noQP is a queue pair that no completion has.
var noQP ib.QP

// pollDevice polls a queue once.
func (x *modelRunner) pollDevice(id model.ID, wc []ib.WC) (int, error) {
	for i := range wc { // a driver writes every field of a completion
		wc[i] = ib.WC{
			ID: 0xa5a5a5a5a5a5a5a5, Status: 99, Opcode: 99, ByteLen: 0xa5a5a5a5, Flags: 0xff, Imm: 0xa5a5a5a5,
			QPNum: 0xa5a5a5, QP: &noQP, InvalidateRKey: 0xa5a5a5a5, SrcQP: 0xa5a5a5, PKeyIndex: 0xa5a5,
		}
	}
	n, err := x.objs[id].cq.Poll(wc)
	if err != nil || n < 0 || n > len(wc) {
		return 0, fmt.Errorf("cq%d: poll: got %d completions, error %v", id, n, err)
	}
	return n, nil
}

// matchCompletion compares a completion with the expectations of its queue.
func (x *modelRunner) matchCompletion(id model.ID, wc *ib.WC) *modelDifference {
	x.addToTrace("cq%d: %s", id, formatCompletion(wc))
	if x.m.Completions.CQs[id].MatchCompletion(wc) < 0 {
		x.applyRetryLimit()
	}
	return x.matchCompletionInModel(x.m, id, wc)
}

// matchCompletionInModel compares a completion with the expectations of a model.
func (x *modelRunner) matchCompletionInModel(m *model.Model, id model.ID, wc *ib.WC) *modelDifference {
	c := m.Completions.CQs[id]
	i := c.MatchCompletion(wc)
	if i < 0 {
		expected := "none"
		if len(c.Wants) > 0 {
			expected = formatExpectedCompletion(&c.Wants[0])
		}
		return newFinalDifference("cq%d: got %s of %s, want %s", id, formatCompletion(wc), x.ids[wc.ID], expected)
	}
	w := m.Completions.RemoveExpectation(id, i)
	x.objs[id].doubt = false
	var qp *ib.QP
	if w.QP != 0 {
		qp = x.objs[w.QP].qp
	}
	if field := w.FirstMismatch(wc, qp); field != "" {
		return newFinalDifference("cq%d: %s of the completion of %s: got %s, want %s", id, field, x.ids[wc.ID],
			formatCompletion(wc), formatExpectedCompletion(&w))
	}
	return nil
}

func formatCompletion(wc *ib.WC) string {
	return sprintf("{ID %#x, %q, opcode %d, %d bytes, flags %#x, imm %#x, inv %#x, QP %#x, src %#x}",
		wc.ID, wc.Status, uint32(wc.Opcode), wc.ByteLen, uint32(wc.Flags), wc.Imm, wc.InvalidateRKey,
		wc.QPNum, wc.SrcQP)
}

func formatExpectedCompletion(w *model.ExpectedCompletion) string {
	s := formatCompletion(&w.WC)
	if len(w.Status) > 1 {
		s += sprintf(" or status %q", w.Status[1:])
	}
	return s
}

// applyRetryLimit updates the model for requests of which the device has exhausted the retries because the peer is in
// INIT.
func (x *modelRunner) applyRetryLimit() (some bool) {
	for id, q := range x.m.Queues.QPs {
		if q.IsWaiting() && x.objs[id].qp.State() == ib.QPErr && x.m.GiveUpWaitingRequest(id) {
			x.addToTrace("qp%d gives up", id)
			some = true
		}
	}
	return some
}

// compareStates compares the states of queue pairs.
func (x *modelRunner) compareStates() *modelDifference {
	for id, q := range x.m.Queues.QPs {
		s := x.objs[id].qp.State()
		if s == q.State {
			continue
		}
		return newTransientDifference("qp%d: got state %v, want %v", id, s, q.State)
	}
	return nil
}

// compareCallbacks compares calls of handlers and events.
func (x *modelRunner) compareCallbacks() *modelDifference {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, c := range x.m.Completions.CQs {
		o := x.objs[id]
		switch {
		case o.calls > c.Calls:
			return newFinalDifference("cq%d: got %d handler calls, want %d", id, o.calls, c.Calls)
		case o.calls < c.Calls && (!x.searching || o.calls == o.before):
			return newTransientDifference("cq%d: got %d handler calls, want %d", id, o.calls, c.Calls)
		}
	}
	events := func(name string, id model.ID, want []ib.EventType) *modelDifference {
		got := removeEventType(x.objs[id].seen, ib.EventCommEst) // optional (11.6.3)
		if q := x.m.Queues.QPs[id]; q != nil && q.Fatal {
			got = removeEventType(got, ib.EventQPFatal)
		}
		if q := x.m.Queues.QPs[id]; q != nil && q.Cut {
			got, want = removeEventType(got, ib.EventQPLastWQEReached), removeEventType(want, ib.EventQPLastWQEReached)
		}
		if slices.Equal(got, want) {
			return nil
		}
		d := newTransientDifference("%s%d: got events %v, want %v", name, id, got, want)
		d.late = len(got) < len(want) && slices.Equal(got, want[:len(got)])
		return d
	}
	for id, o := range x.objs {
		if n := o.calls + len(o.seen); o.past && n != o.final {
			return newFinalDifference("%d callbacks of object %d, which the reset of its device has ended", n-o.final, id)
		}
	}
	for id, c := range x.m.Completions.CQs {
		if d := events("cq", id, c.Events); d != nil {
			return d
		}
	}
	for id, q := range x.m.Queues.QPs {
		if d := events("qp", id, q.Events); d != nil {
			return d
		}
	}
	for id, s := range x.m.Queues.SRQs {
		if d := events("srq", id, s.Events); d != nil {
			return d
		}
	}
	return nil
}

// removeEventType returns events without those of a type.
func removeEventType(list []ib.EventType, e ib.EventType) []ib.EventType {
	return slices.DeleteFunc(slices.Clone(list), func(f ib.EventType) bool { return f == e })
}

// addObject records a new object.
func (x *modelRunner) addObject(id model.ID, o *deviceObject) {
	x.objs[id] = o
	x.order = append(x.order, id)
}

// recordEvent records an event of an object.
func (x *modelRunner) recordEvent(o *deviceObject, e ib.EventType) {
	x.mu.Lock()
	defer x.mu.Unlock()
	o.seen = append(o.seen, e)
}

// destroyAll destroys all objects.
func (x *modelRunner) destroyAll() error {
	if x.Names != nil {
		x.Names.removeIDsOf(x)
	}
	var first error
	for range 3 { // windows before regions, queue pairs before queues
		for _, id := range slices.Backward(x.order) {
			o := x.objs[id]
			if o.dead || o.over == nil {
				continue
			}
			for _, g := range o.groups {
				if err := o.qp.DetachMcast(g, 0); err != nil {
					return fmt.Errorf("detach qp%d from %v: %w", id, g, err)
				}
			}
			o.groups = nil
			if err := o.over(); err != nil {
				first = fmt.Errorf("destroy object %d: %w", id, err)
				continue
			}
			o.dead = true
			first = nil
		}
	}
	return first
}
