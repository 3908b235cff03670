package check

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/ib/internal/observe"
)

// checker is the state of checked mode. The checker records the calls in progress on each thread. A relevant call
// pushes a frame on the stack of its goroutine, and pops the frame on return. Each new frame is checked against the
// frames below it.
type checker struct {
	callLeaver
	cfg Config

	mu      sync.Mutex
	threads map[int64]*checkedThread // by goroutine; contains only threads with frames
	live    map[*checkedObject]struct{}
	made    uint64 // number of objects created
	// abandoned contains abandoned objects of clients, except those of user contexts.
	abandoned map[*checkedObject]struct{}

	regions  sync.Map // from regionKey to *region
	landings memoryChanges
	reads    atomic.Int64 // number of outstanding READs and atomic operations

	acrossTime, acrossLooks atomic.Int64 // see across.go

	looking   sync.Mutex // held during an inspection of the goroutines
	reporting sync.Mutex
	sites     map[string]*reportedSite // under reporting
	perRule   [numRules]int            // program: number of sites; under reporting

	program *Program // nil: the checker of consumers in this process
}

// reportedSite is a violation that was reported, with the number of its occurrences.
type reportedSite struct {
	first Violation
	count uint64
}

func newChecker(cfg Config) *checker {
	if cfg.Timeout <= 0 {
		cfg.Timeout = 2 * time.Second
	}
	if cfg.ClientTimeout <= 0 {
		cfg.ClientTimeout = 30 * time.Second
	}
	return &checker{
		cfg: cfg, threads: map[int64]*checkedThread{}, live: map[*checkedObject]struct{}{},
		abandoned: map[*checkedObject]struct{}{},
		sites:     map[string]*reportedSite{},
	}
}

// Enter begins the registration or unregistration of a client.
func (k *checker) Enter(c *observe.Call) error {
	cl, _ := c.Arg.(*ib.Client)
	return k.beginCall(c, &frame{kind: inRegister, what: c.What, client: cl, waits: true})
}

// beginCall enters the frame of a call. beginCall returns EDEADLK if the call would wait for its own end.
func (k *checker) beginCall(c *observe.Call, f *frame) error {
	c.State = f
	if k.pushFrame(f) {
		return syscall.EDEADLK
	}
	return nil
}

// callLeaver implements the end of a call for every kind of subject.
type callLeaver struct{}

func (callLeaver) Leave(c *observe.Call) {
	f := c.State.(*frame)
	switch c.Kind {
	case observe.Handler:
		f.obj.recordHandlerReturn(f, c.Returned)
	case observe.Change:
		f.obj.addRegion()
	case observe.Destroy:
		if f.obj != nil && f.obj.destroyed.Load() == nil {
			f.obj.refused.Store(&f.entry)
		}
	}
	if f.unregistered {
		f.k.reportCallsAtUnregister(f)
	}
	f.k.checkBlockedCallback(f)
	f.popFrame()
	if f.kind == inCallback && !c.Returned {
		f.k.report(Violation{
			Rule: RuleCallbackReturns, What: f.what + " panicked or ended its goroutine (runtime.Goexit, testing's FailNow)",
			Stacks: append([]Stack{{f.what, formatStack(callerPCs())}}, f.raiseStacks()...),
		}, f.dev, f.entry)
	}
}

// checkedThread is a goroutine with frames. All fields are under checker.mu.
type checkedThread struct {
	id     int64
	frames []*frame // innermost last
	seq    uint64   // number of pushes and pops
}

func (th *checkedThread) innermostFrame() *frame {
	if len(th.frames) == 0 {
		return nil
	}
	return th.frames[len(th.frames)-1]
}

// findFrame returns the innermost frame that f accepts, or nil.
func (th *checkedThread) findFrame(f func(*frame) bool) *frame {
	for i := len(th.frames) - 1; i >= 0; i-- {
		if f(th.frames[i]) {
			return th.frames[i]
		}
	}
	return nil
}

type frameKind uint8

const (
	inCallback frameKind = iota // a consumer's function that may not sleep
	inAtomic                    // a method that may not sleep
	inHold                      // between HoldCallbacks and RunCallbacks
	inMethod                    // a method that may sleep
	inRegister                  // Register, Unregister, RegisterClient and UnregisterClient
	inClient                    // a client's Add or Remove
)

// mayNotSleep reports whether sleeping is forbidden in frames of this kind.
func (k frameKind) mayNotSleep() bool { return k <= inHold }

// mayWaitForLock reports whether a frame of this kind can wait for a lock that Register or Unregister holds.
func (k frameKind) mayWaitForLock() bool { return k == inMethod || k == inAtomic || k == inClient }

// forbidsCallbacks reports whether callbacks are forbidden inside frames of this kind.
func (k frameKind) forbidsCallbacks() bool { return k == inCallback || k == inAtomic || k == inMethod }

// ruleForSleep returns the rule that sleeping in frames of this kind violates.
func (k frameKind) ruleForSleep() Rule {
	return [...]Rule{inCallback: RuleSleepInCallback, inAtomic: RuleSleepInMethod, inHold: RuleHold}[k]
}

// frame is a call in progress on a thread.
type frame struct {
	k      *checker
	kind   frameKind
	what   string         // such as "QP.PostSend"
	dev    *ib.Device     // the shared handle
	by     *checkedDevice // the caller's handle, for functions of a device
	obj    *checkedObject
	client *ib.Client // inClient, and inRegister of a client
	entry  []uintptr
	raised []uintptr // inCallback: stack of the call that raised it, if known
	waits  bool      // the call waits for the callbacks of obj, or of dev
	holder *ib.Hold  // inHold: owner, nil for HoldCallbacks; inAtomic: the Hold passed to a doorbell
	drop   func()    // inHold: ends the hold in the midlayer

	userID *uint64 // the program's ID of the posted work request, or nil
	ah     uint32  // number of the program's address handle, or 0
	order  uint64  // number of the program's send

	unregistered bool // inRegister: the clients have been removed from the device

	// The next fields belong to a completion handler and its thread.
	armings int64     // number of ReqNotify calls of the CQ before the handler
	polled  []uintptr // last poll of the CQ by the handler
	blind   []uintptr // last arming of the CQ by the handler without NotifyReportMissed
	batch   bool      // the last poll since arming filled its array

	// The next fields are protected by checker.mu.
	th         *checkedThread
	left       bool
	timer      *time.Timer
	late       *time.Timer // inCallback: reports a late return
	delay      time.Duration
	suspected  bool           // the last inspection may have found the thread asleep
	blockedFor int            // consecutive inspections in which the thread waited for a lock
	resting    int            // consecutive inspections in which the thread waited for a lock while no goroutine ran
	restSince  time.Time      // time of the first inspection that resting counts
	ran        int            // consecutive inspections in which the thread ran without a call
	lastSeq    uint64         // thread.seq at the last inspection that ran counts
	blocked    map[*frame]int // inRegister: inspections in which calls of other threads waited for locks
}

// pushFrame pushes a frame for the calling goroutine and reports violations of the frame. refuse is true if the call
// would wait for its own end.
func (k *checker) pushFrame(f *frame) (refuse bool) {
	f.k = k
	f.entry = callerPCs()
	id := observe.GoroutineID()
	k.mu.Lock()
	th := k.threads[id]
	if th == nil {
		th = &checkedThread{id: id}
		k.threads[id] = th
	}
	rule, outer := th.violatedRule(f)
	refuse = rule == RuleWaitForSelf
	f.th = th
	at := len(th.frames)
	if x := th.enclosingDoorbellFrame(f); x != nil {
		at = slices.Index(th.frames, x) // the hold outlives the method
	}
	th.frames = slices.Insert(th.frames, at, f)
	th.seq++
	k.startWatchTimer(f)
	k.mu.Unlock()
	if outer != nil {
		k.reportNestedCall(rule, f, outer)
	}
	return refuse
}

// popFrame pops the frame.
func (f *frame) popFrame() {
	k := f.k
	k.mu.Lock()
	defer k.mu.Unlock()
	k.removeFrame(f)
}

//verbena:held mu
func (k *checker) removeFrame(f *frame) {
	f.left = true
	if f.timer != nil {
		f.timer.Stop()
	}
	if f.late != nil {
		f.late.Stop()
	}
	th := f.th
	for i, x := range th.frames {
		if x == f {
			th.frames = append(th.frames[:i], th.frames[i+1:]...)
			break
		}
	}
	th.seq++
	if len(th.frames) == 0 {
		delete(k.threads, th.id)
	}
}

// enclosingDoorbellFrame returns the innermost method call if f is a hold that may begin inside this call. Otherwise
// enclosingDoorbellFrame returns nil.
func (th *checkedThread) enclosingDoorbellFrame(f *frame) *frame {
	if f.kind != inHold || f.holder == nil {
		return nil
	}
	if x := th.findFrame(func(x *frame) bool { return x.kind.forbidsCallbacks() }); x != nil && x.holder == f.holder {
		return x
	}
	return nil
}

// violatedRule returns the rule that entering f violates, and the outer frame that conflicts with f. The frame is nil
// if there is no violation.
func (th *checkedThread) violatedRule(f *frame) (Rule, *frame) {
	switch f.kind {
	case inCallback, inHold:
		if x := th.findFrame(func(x *frame) bool { return x.kind.forbidsCallbacks() }); x != nil &&
			x != th.enclosingDoorbellFrame(f) {
			if f.kind == inHold {
				return RuleHold, x
			}
			return RuleCallchain, x
		}
	case inRegister:
		if x := th.findFrame(func(x *frame) bool {
			return x.kind == inClient && (f.client != nil && x.client == f.client || f.dev != nil && x.dev == f.dev)
		}); x != nil {
			return RuleWaitForSelf, x
		}
		fallthrough
	case inMethod:
		if x := th.findFrame(func(x *frame) bool { return x.kind.mayNotSleep() }); x != nil {
			if f.waitsFor(x) {
				return RuleWaitForSelf, x
			}
			return x.kind.ruleForSleep(), x
		}
	}
	return 0, nil
}

// waitsFor reports whether f waits for the end of its caller, the callback x.
func (f *frame) waitsFor(x *frame) bool {
	if !f.waits || x.kind != inCallback {
		return false
	}
	if f.obj != nil {
		return x.obj == f.obj
	}
	return x.dev == f.dev
}

// reportNestedCall reports that inner was entered inside outer.
func (k *checker) reportNestedCall(rule Rule, inner, outer *frame) {
	var what string
	switch rule {
	case RuleCallchain:
		what = fmt.Sprintf("%s called from the callchain of %s", inner.what, outer.what)
	case RuleWaitForSelf:
		what = fmt.Sprintf("%s waits for the end of its caller %s", inner.what, outer.what)
	default:
		what = fmt.Sprintf("%s, which may sleep, called in %s", inner.what, outer.what)
	}
	d := inner.dev
	if d == nil {
		d = outer.dev
	}
	if inner.kind == inHold {
		begin, _ := holdCallNames(inner.holder)
		what = fmt.Sprintf("%s called in %s", begin, outer.what)
	}
	k.report(Violation{Rule: rule, What: what, Stacks: append([]Stack{
		{inner.what, formatStack(inner.entry)},
		{"inside of " + outer.what, formatStack(outer.entry)},
	}, outer.raiseStacks()...)}, d, inner.entry)
}

func (f *frame) raiseStacks() []Stack {
	if f.raised == nil {
		return nil
	}
	return []Stack{{f.what + " raised at", formatStack(f.raised)}}
}

// report calls Config.Report once for each violation and place. A place is the call and its two callers.
//
//verbena:allow nosleep Config.Report may sleep: a defect has been found
func (k *checker) report(v Violation, d *ib.Device, at []uintptr) {
	if d != nil {
		v.Device = d.Name()
	}
	v.Time, v.Count = time.Now(), 1
	key := ""
	if k.program == nil {
		key = fmt.Sprint(v.Rule, v.Device, v.What, callSite(at))
	} else if !k.program.cfg.Rules.Has(v.Rule) || k.program.isEnding() && !v.atEnd {
		return
	} else {
		key = v.programSite()
	}
	k.reporting.Lock()
	defer k.reporting.Unlock()
	if s := k.sites[key]; s != nil {
		s.count++
		return
	}
	if k.program != nil {
		if k.perRule[v.Rule] == maxProgramSites {
			return
		}
		k.perRule[v.Rule]++
	}
	k.sites[key] = &reportedSite{first: v, count: 1}
	k.cfg.Report(v)
}

// holdCallNames returns the names of the calls that begin and end a hold; by is nil for HoldCallbacks.
func holdCallNames(by *ib.Hold) (begin, end string) {
	if by != nil {
		return "Hold.Add", "Hold.Run"
	}
	return "HoldCallbacks", "RunCallbacks"
}

// beginHold begins a hold of the calling thread.
func (d *checkedDevice) beginHold(by *ib.Hold) {
	begin, _ := holdCallNames(by)
	d.k.pushFrame(&frame{kind: inHold, what: "the thread that called " + begin, dev: d.dev, holder: by,
		drop: d.root.endMidlayerHold})
}

// endMidlayerHold ends a hold in the midlayer.
func (d *checkedDevice) endMidlayerHold() {
	if start := d.start.Load(); start != nil {
		start.Drop()
	}
}

// consumeEarlyHold reports whether the hold may have begun before the checks. consumeEarlyHold also counts down the
// number of such holds.
func (d *checkedDevice) consumeEarlyHold() bool {
	for n := d.early.Load(); n > 0; n = d.early.Load() {
		if d.early.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

// endHold ends a hold of the calling thread.
func (d *checkedDevice) endHold(by *ib.Hold) {
	k, id := d.k, observe.GoroutineID()
	var held, inside *frame
	k.mu.Lock()
	if th := k.threads[id]; th != nil {
		held = th.findFrame(func(f *frame) bool { return f.kind == inHold && f.dev == d.dev && f.holder == by })
		if held != nil {
			for _, f := range th.frames[slices.Index(th.frames, held):] {
				if f.kind.forbidsCallbacks() {
					inside = f
				}
			}
			k.removeFrame(held)
		}
	}
	k.mu.Unlock()
	if inside == nil && (held != nil || d.consumeEarlyHold()) {
		return
	}
	begin, end := holdCallNames(by)
	at := callerPCs()
	v := Violation{
		Rule: RuleHold, What: fmt.Sprintf("%s called by a thread that has not called %s", end, begin),
		Stacks: []Stack{{end, formatStack(at)}},
	}
	if inside != nil {
		v.What = fmt.Sprintf("%s called in %s", end, inside.what)
		v.Stacks = append(v.Stacks, Stack{"inside of " + inside.what, formatStack(inside.entry)})
	}
	k.report(v, d.dev, at)
}
