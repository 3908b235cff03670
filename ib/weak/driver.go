package weak

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
)

// Config holds the settings of a weak device.
type Config struct {
	Seed uint64
	// Choices is the set of enabled choices. 0 means All.
	Choices Set
	// Fail moves the device to the error state, for FailedDevice. Fail is called on a goroutine.
	Fail func()
	// CallFailed is called on the thread of a call that FailedCall makes fail. CallFailed may be nil.
	CallFailed func()
	// Relay is nil, or the settings for a wrapper that passes the completions on to queues of its own.
	Relay *Relay
	// Device is the name of the device in decisions, which [DeviceName] has returned.
	Device string
	// Record is called for each decision of the device. Record may not sleep, and may not keep its argument. Record may be
	// nil.
	Record func(*Decision)
	// Decisions is nil, or has the decisions that the device takes. Seed and Choices are then not used.
	Decisions *DecisionSet
}

// Relay adapts a weak device to a wrapper that posts the requests of a program and passes the completions on. The
// queues report each completion at once, without ReqNotify. The wrapper then polls. Only some requests are delayed,
// except the first requests of a queue. A delay is counted in periods of relayStep and not in polls. With a driver that
// supports [ib.SendQueuer], requests are only queued, and the wrapper calls UserQP.Doorbell.
type Relay struct{ Group *Group }

// User is implemented by an ib.UserContext whose program may ask for a weak device.
type User interface {
	// WeakConfig returns the settings, or nil if the program did not ask. Fail, CallFailed and Relay are not used.
	// WeakConfig may not sleep.
	WeakConfig() *Config
}

// Completions is implemented by the completion queues of a device with a [Relay].
type Completions interface {
	// Rearm enables the next report. It returns true if the caller must poll again. Rearm may not sleep.
	Rearm() (missed bool, err error)
	// EndDelays makes all completions due that the device has reported. EndDelays may not sleep.
	EndDelays()
}

// Sends is implemented by the queue pairs of a device with a [Relay].
type Sends interface {
	// EndDelays posts the delayed requests. EndDelays may not sleep.
	EndDelays()
	// SetNextID sets the ID that the program has given to the request that is posted next to the send queue, or to the
	// receive queue, for Decision.About. The caller serialises the posts of a queue.
	SetNextID(send bool, id uint64)
}

// Group holds weak devices on one inner driver. Their queue pairs can be connected to one another. The zero Group is
// empty.
type Group struct {
	mu      sync.Mutex
	devices map[*driver]struct{}
}

// add adds a device.
func (g *Group) add(d *driver) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.devices == nil {
		g.devices = map[*driver]struct{}{}
	}
	g.devices[d] = struct{}{}
}

// Remove removes a device of New. Remove may not sleep.
func (g *Group) Remove(d ib.Driver) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w, ok := d.(*driver); ok {
		delete(g.devices, w)
	}
}

// members returns the devices on the inner driver of d, including d.
func (d *driver) members() []*driver {
	if d.Relay == nil || d.Relay.Group == nil {
		return []*driver{d}
	}
	g := d.Relay.Group
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Keys(g.devices))
}

// The next constants apply to a device with a Relay.
const (
	relayStep     = 20 * time.Microsecond // minimum duration of a step; the thread of the steps may be late
	alwaysDelayed = 32                    // the first requests of a queue are delayed like those of other devices
	rareDelays    = 32                    // a delay occurs for one in so many later requests
)

// isSpared reports whether a choice does not apply to a request because too many requests would be delayed.
func (d *driver) isSpared(c Choice, qp, request uint64) bool {
	const second = 1 << 20 // queue number for this decision
	return d.Relay != nil && request > alwaysDelayed && d.drawRandom(c, qp^second, request, rareDelays) != 0
}

// drawDelay returns the delay of a request in steps, below n.
func (d *driver) drawDelay(c Choice, qp, request uint64, n uint64) int {
	if d.isSpared(c, qp, request) {
		return 0
	}
	return d.drawRandom(c, qp, request, n)
}

// stepPeriod is the period that counts as one step while no poll occurs.
const stepPeriod = 200 * time.Microsecond

// driver wraps another driver and applies the choices.
type driver struct {
	ib.Driver
	Config

	ordinal    uint32        // number of weak devices created before; 0 with a Relay, whose devices have a Seed each
	forced     map[Point]int // this device's part of Decisions
	registered atomic.Bool   // the device has had a region
	heldBytes  atomic.Int64  // bytes of WRITEs that queue pairs hold

	// mu protects the tables. No function of the inner driver is called with mu held.
	mu     sync.Mutex
	made   uint64 // number of queue pairs created
	queues uint64 // number of completion queues created
	// regions is the number of regions with an atomicSpace.
	regions   uint64
	last      uint64 // last request number
	reqs      map[uint64]*weakRequest
	qps       map[*ib.QP]*qp
	later     map[*qp]struct{} // queue pairs with delayed sends
	repeating map[*qp]struct{} // queue pairs that wait to execute a READ again
	cqs       map[*cq]struct{}
	mrs       map[uint32]*mr       // by the inner driver's local keys
	holds     map[requestKind]bool // kinds of requests that the inner driver has accepted
	slept     uint64               // number of calls of delayCall
	calls     uint64               // number of calls of failCall
	refused   uint64               // number of calls of failPost
	posts     uint64               // number of posted requests, for FailedDevice
	sent      uint64               // number of sends that may fail, for FailedRequest

	timer   sync.Mutex // taken under the inner driver's locks
	ticking bool
	waiting []*qp // queue pairs with delayed events
}

// devices counts the weak devices.
var devices atomic.Uint32

// New returns a driver that wraps d. The device must not have been registered.
func New(d ib.Driver, c Config) ib.Driver {
	if c.Relay == nil || c.Decisions == nil { // the wrapper has called Enabled
		c.Choices = c.Enabled()
	}
	w := &driver{
		Driver: d, Config: c,
		reqs: map[uint64]*weakRequest{}, qps: map[*ib.QP]*qp{}, later: map[*qp]struct{}{},
		repeating: map[*qp]struct{}{},
		cqs:       map[*cq]struct{}{},
		mrs:       map[uint32]*mr{}, holds: map[requestKind]bool{},
	}
	if c.Relay == nil {
		w.ordinal = devices.Add(1) - 1
	}
	if c.Decisions != nil {
		w.forced = c.Decisions.devices[c.Device]
	}
	w.recordDeviceWide()
	if r, ok := ib.As[ib.NumberReuser](d); ok && c.Choices.Has(EarlyNumbers) {
		r.ReuseNumbers()
	}
	if c.Relay != nil && c.Relay.Group != nil {
		c.Relay.Group.add(w)
	}
	return w
}

// Unwrap gives access to the optional interfaces of the inner driver.
func (d *driver) Unwrap() ib.Driver { return d.Driver }

func (d *driver) hasChoice(c Choice) bool { return d.Choices.Has(c) }

// fillsReceivesLate reports whether the memory of receives is filled late.
func (d *driver) fillsReceivesLate() bool { return d.Choices&Of(LateTarget, PoisonedTarget) != 0 }

// Each method that may sleep calls delayCall. delayCall delays only one call in eight, to limit the duration of tests
// with many calls.
func (d *driver) delayCall() {
	if !d.hasChoice(SlowMethods) {
		return
	}
	d.mu.Lock()
	d.slept++
	n := d.slept
	d.mu.Unlock()
	slow := d.drawRandom(SlowMethods, 0, n, 8) == 0
	if d.decide(Point{Choice: SlowMethods, Event: EventCall, Seq: n}, boolValue(slow), nil) != 0 {
		time.Sleep(10 * stepPeriod)
	}
}

// RaiseLastCallbacks makes pending events begin before an event function of the device ends.
func (d *driver) RaiseLastCallbacks() bool { return d.hasChoice(LastCallback) }

// QueryDevice implements ib.Driver.
func (d *driver) QueryDevice() (ib.DeviceAttr, error) {
	d.delayCall()
	return d.Driver.QueryDevice()
}

// QueryPort implements ib.Driver.
func (d *driver) QueryPort(port int) (ib.PortAttr, error) {
	d.delayCall()
	return d.Driver.QueryPort(port)
}

// QueryGID implements ib.Driver.
func (d *driver) QueryGID(port, index int) (ib.GIDEntry, error) {
	d.delayCall()
	return d.Driver.QueryGID(port, index)
}

// QueryPKey implements ib.Driver.
func (d *driver) QueryPKey(port, index int) (uint16, error) {
	d.delayCall()
	return d.Driver.QueryPKey(port, index)
}

// EnterError implements ib.Driver. Delayed requests are flushed later.
func (d *driver) EnterError() {
	d.Driver.EnterError()
	executeAllWrites()
	d.scheduleDelayStep()
}

// weakRequest is a work request. The inner driver receives num as its ID.
type weakRequest struct {
	id uint64 // the consumer's ID
	// programID is the program's ID with a Relay, and id otherwise.
	programID uint64
	num       uint64 // the ID in the inner driver
	qp        *qp    // nil for a receive of a shared receive queue
	srq       *srq   // the shared receive queue, or nil
	send      bool
	signaled  bool
	seq       uint64 // number of the request in its queue
	targets   []fillTarget
	landed    atomic.Bool
	// unsignaled, but signaled in the inner driver; the consumer sees the completion only if the request fails
	hidden  bool
	arrived bool // a hidden request has completed in the inner driver; under cq.mu

	// half is the number in the inner driver of the part of a WRITE that is posted first, or 0.
	half              uint64
	cut               uint64 // length of the first part until one part is posted; 0: the parts are not separate
	split             int    // the decision on the parts, or 0
	halfDone, halfBad bool   // whether that part has succeeded or failed; under cq.mu
	done              bool   // the window has had the completion; under cq.mu

	sourceHold, completionHold, readHold *longHold

	repeat     repeatState // used for a READ; under cq.mu
	repeatWait int         // remaining steps in which the READ may be executed again; under cq.mu
	// repeatDelay is the number of steps before the READ is executed again; 0 with a readHold
	repeatDelay int
	original    *weakRequest // the READ that this request executes again, or nil
	second      *weakRequest // the request that executes this READ again, if it was posted; under cq.mu

	fails ib.WCStatus // status with which the device makes the request fail, or WCSuccess
	wr    ib.SendWR   // the work request of a delayed send
	ownAH bool        // the address handle of wr is a copy
	wait  int         // remaining steps before the request is posted
}

// assignRequestID assigns a number to a request.
func (d *driver) assignRequestID(r *weakRequest) *weakRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last++
	r.num = d.last
	d.reqs[r.num] = r
	return r
}

//verbena:held mu
func (d *driver) removeRequest(r *weakRequest) {
	delete(d.reqs, r.num)
	delete(d.reqs, r.half)
}

// dropRequests removes requests that will not complete.
func (d *driver) dropRequests(rs ...*weakRequest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range rs {
		d.removeRequest(r)
	}
}

// scheduleDelayStep schedules runDelayStep after a step.
func (d *driver) scheduleDelayStep() {
	d.timer.Lock()
	defer d.timer.Unlock()
	d.startStepTimer()
}

//verbena:held timer
func (d *driver) startStepTimer() {
	if d.ticking {
		return
	}
	d.ticking = true
	if d.Relay == nil {
		time.AfterFunc(stepPeriod, d.runDelayStep)
	} else {
		go d.advanceRelay()
	}
}

// advanceRelay executes a step after relayStep. The timers of the runtime can be late by a millisecond.
func (d *driver) advanceRelay() {
	wait := syscall.NsecToTimespec(int64(relayStep))
	_ = syscall.Nanosleep(&wait, nil)
	d.runDelayStep()
}

// scheduleEvents schedules runDelayStep for the events of a queue pair.
func (d *driver) scheduleEvents(q *qp) {
	d.timer.Lock()
	defer d.timer.Unlock()
	if !slices.Contains(d.waiting, q) {
		d.waiting = append(d.waiting, q)
	}
	d.startStepTimer()
}

// runDelayStep executes one step for all delayed requests, completions and events.
func (d *driver) runDelayStep() {
	d.timer.Lock()
	d.ticking = false
	waiting := d.waiting
	d.waiting = nil
	d.timer.Unlock()
	d.mu.Lock()
	var qps []*qp
	for q := range d.later {
		qps = append(qps, q)
	}
	var cqs []*cq
	for c := range d.cqs {
		cqs = append(cqs, c)
	}
	d.mu.Unlock()
	more := d.stepDelayedWrites()
	more = d.stepWrites() || more
	more = d.runRepeatSteps() || more
	for _, q := range qps {
		more = q.runSendStep(false) || more
	}
	for _, c := range cqs {
		more = c.runCQStep() || more
	}
	for _, q := range waiting {
		if q.events.runStep() {
			d.scheduleEvents(q)
		}
	}
	if more {
		d.scheduleDelayStep()
	}
}
