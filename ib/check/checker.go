package check

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/ib/internal/observe"
)

// checker is checked mode. It knows which thread is inside what: each call that matters pushes a frame on its
// goroutine's stack of frames and pops it on return, and what is pushed is compared with what is there.
type checker struct {
	ending
	cfg Config

	mu      sync.Mutex
	threads map[int64]*thread // by goroutine; only those that are inside something
	live    map[*object]struct{}
	made    uint64 // counts objects

	looking   sync.Mutex // one look at the goroutines at a time
	reporting sync.Mutex
	reported  map[string]bool // under reporting
}

func newChecker(cfg Config) *checker {
	return &checker{
		cfg: cfg, threads: map[int64]*thread{}, live: map[*object]struct{}{}, reported: map[string]bool{},
	}
}

// Enter begins the registration or the end of a client.
func (k *checker) Enter(c *observe.Call) error {
	cl, _ := c.Arg.(*ib.Client)
	return k.begin(c, &frame{kind: inRegister, what: c.What, client: cl, waits: true})
}

// begin enters the frame of a call. EDEADLK: the call could only wait for itself.
func (k *checker) begin(c *observe.Call, f *frame) error {
	c.State = f
	if k.enter(f) {
		return syscall.EDEADLK
	}
	return nil
}

// ending ends calls, in the same way on all subjects.
type ending struct{}

func (ending) Leave(c *observe.Call) {
	f := c.State.(*frame)
	if c.Kind == observe.Handler {
		f.obj.handled(f, c.Returned)
	}
	if f.unregistered {
		f.k.stillInside(f)
	}
	f.leave()
	if f.kind == inCallback && !c.Returned {
		f.k.report(Violation{
			Rule: RuleCallbackReturns, What: f.what + " panicked or ended its goroutine (runtime.Goexit, testing's FailNow)",
			Stacks: append([]Stack{{f.what, trace(callers())}}, f.raisedAt()...),
		}, f.dev, f.entry)
	}
}

// thread is a goroutine that is inside something. All fields are under checker.mu.
type thread struct {
	id     int64
	frames []*frame // innermost last
	seq    uint64   // counts pushes and pops
}

func (th *thread) innermost() *frame {
	if len(th.frames) == 0 {
		return nil
	}
	return th.frames[len(th.frames)-1]
}

// find is the innermost frame that f accepts, nil if there is none.
func (th *thread) find(f func(*frame) bool) *frame {
	for i := len(th.frames) - 1; i >= 0; i-- {
		if f(th.frames[i]) {
			return th.frames[i]
		}
	}
	return nil
}

type frameKind uint8

const (
	inCallback frameKind = iota // a consumer's function, which may not sleep
	inAtomic                    // a method that may not sleep
	inHold                      // between HoldCallbacks and RunCallbacks
	inMethod                    // a method that may sleep
	inRegister                  // Register, Unregister and their like for clients
	inClient                    // a client's Add or Remove
)

// mayNotSleep tells whether everything in a frame of this kind may not sleep.
func (k frameKind) mayNotSleep() bool { return k <= inHold }

// mayWaitForLock tells whether a frame of this kind may be found waiting for a lock that Register or Unregister holds.
func (k frameKind) mayWaitForLock() bool { return k == inMethod || k == inAtomic || k == inClient }

// isCall tells whether a frame of this kind is a call by which nothing else may be called back.
func (k frameKind) isCall() bool { return k == inCallback || k == inAtomic || k == inMethod }

// sleepRule is the rule that sleeping in a frame of this kind breaks.
func (k frameKind) sleepRule() Rule {
	return [...]Rule{inCallback: RuleSleepInCallback, inAtomic: RuleSleepInMethod, inHold: RuleHold}[k]
}

// frame is one call that a thread is in.
type frame struct {
	k      *checker
	kind   frameKind
	what   string     // such as "QP.PostSend"
	dev    *ib.Device // everybody's
	by     *device    // the caller's, of a function of the device
	obj    *object
	client *ib.Client // inClient, and inRegister of a client
	entry  []uintptr
	raised []uintptr // inCallback: where it was raised, if known
	waits  bool      // waits for callbacks of obj, or all of dev
	holder *ib.Hold  // inHold: whose it is, nil for HoldCallbacks; inAtomic: that a doorbell was given
	drop   func()    // inHold: ends it in the midlayer

	unregistered bool // inRegister: it has taken the device from its clients

	// of a completion handler, and its thread
	armings int64     // of the CQ, before
	polled  []uintptr // where it polled the CQ last
	blind   []uintptr // where it armed the CQ last, if it did not ask what it had missed
	batch   bool      // its last poll, since it armed the CQ if it did, was full

	// under checker.mu
	th        *thread
	left      bool
	timer     *time.Timer
	late      *time.Timer // inCallback: it should have returned
	delay     time.Duration
	suspected bool           // the last look found what may be sleep
	waited    int            // looks in a row that found it waiting for a lock
	resting   int            // looks in a row that found it waiting for a lock, and nothing running
	restSince time.Time      // the first of them
	ran       int            // looks in a row that found it running, without a call
	lastSeq   uint64         // of the thread, at the last of these
	blocked   map[*frame]int // inRegister: the same of other threads' calls
}

// enter pushes a frame for the calling goroutine and reports what is wrong with being there. refuse tells that the
// call could only wait for itself.
func (k *checker) enter(f *frame) (refuse bool) {
	f.k = k
	f.entry = callers()
	id := observe.Goroutine()
	k.mu.Lock()
	th := k.threads[id]
	if th == nil {
		th = &thread{id: id}
		k.threads[id] = th
	}
	rule, outer := th.wrong(f)
	refuse = rule == RuleWaitForSelf
	f.th = th
	at := len(th.frames)
	if x := th.doorbell(f); x != nil {
		at = slices.Index(th.frames, x) // the hold outlives the method
	}
	th.frames = slices.Insert(th.frames, at, f)
	th.seq++
	k.watch(f)
	k.mu.Unlock()
	if outer != nil {
		k.reportNested(rule, f, outer)
	}
	return refuse
}

// leave pops the frame.
func (f *frame) leave() {
	k := f.k
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pop(f)
}

//verbena:held mu
func (k *checker) pop(f *frame) {
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

// doorbell is the innermost call of a method if f is a hold that may begin in it, else nil.
func (th *thread) doorbell(f *frame) *frame {
	if f.kind != inHold || f.holder == nil {
		return nil
	}
	if x := th.find(func(x *frame) bool { return x.kind.isCall() }); x != nil && x.holder == f.holder {
		return x
	}
	return nil
}

// wrong is the rule that entering f breaks, and the frame outside of it that makes it so, nil if all is well.
func (th *thread) wrong(f *frame) (Rule, *frame) {
	switch f.kind {
	case inCallback, inHold:
		if x := th.find(func(x *frame) bool { return x.kind.isCall() }); x != nil && x != th.doorbell(f) {
			if f.kind == inHold {
				return RuleHold, x
			}
			return RuleCallchain, x
		}
	case inRegister:
		if x := th.find(func(x *frame) bool {
			return x.kind == inClient && (f.client != nil && x.client == f.client || f.dev != nil && x.dev == f.dev)
		}); x != nil {
			return RuleWaitForSelf, x
		}
		fallthrough
	case inMethod:
		if x := th.find(func(x *frame) bool { return x.kind.mayNotSleep() }); x != nil {
			if f.waitsFor(x) {
				return RuleWaitForSelf, x
			}
			return x.kind.sleepRule(), x
		}
	}
	return 0, nil
}

// waitsFor tells whether f would wait for the end of the callback x that it is called from.
func (f *frame) waitsFor(x *frame) bool {
	if !f.waits || x.kind != inCallback {
		return false
	}
	if f.obj != nil {
		return x.obj == f.obj
	}
	return x.dev == f.dev
}

// reportNested reports that inner was entered inside outer.
func (k *checker) reportNested(rule Rule, inner, outer *frame) {
	var what string
	switch rule {
	case RuleCallchain:
		what = fmt.Sprintf("%s called from the callchain of %s", inner.what, outer.what)
	case RuleWaitForSelf:
		what = fmt.Sprintf("%s waits for the end of %s, which called it", inner.what, outer.what)
	default:
		what = fmt.Sprintf("%s, which may sleep, called in %s", inner.what, outer.what)
	}
	d := inner.dev
	if d == nil {
		d = outer.dev
	}
	if inner.kind == inHold {
		begin, _ := holdCalls(inner.holder)
		what = fmt.Sprintf("%s called in %s", begin, outer.what)
	}
	k.report(Violation{Rule: rule, What: what, Stacks: append([]Stack{
		{inner.what, trace(inner.entry)},
		{"inside of " + outer.what, trace(outer.entry)},
	}, outer.raisedAt()...)}, d, inner.entry)
}

func (f *frame) raisedAt() []Stack {
	if f.raised == nil {
		return nil
	}
	return []Stack{{f.what + " raised at", trace(f.raised)}}
}

// report hands a violation on, unless the same has been reported with the offender at the same place, which is that of
// the call and of the two around it.
//
//verbena:allow nosleep it tells of a defect, in checked mode, and nothing is then as it should be
func (k *checker) report(v Violation, d *ib.Device, at []uintptr) {
	if d != nil {
		v.Device = d.Name()
	}
	key := fmt.Sprint(v.Rule, v.Device, v.What, place(at))
	k.reporting.Lock()
	defer k.reporting.Unlock()
	if k.reported[key] {
		return
	}
	k.reported[key] = true
	k.cfg.Report(v)
}

// holdCalls are the calls that begin and end a hold, by a Hold if it is not nil.
func holdCalls(by *ib.Hold) (begin, end string) {
	if by != nil {
		return "Hold.Add", "Hold.Run"
	}
	return "HoldCallbacks", "RunCallbacks"
}

// hold begins a hold of the calling thread.
func (d *device) hold(by *ib.Hold) {
	begin, _ := holdCalls(by)
	d.k.enter(&frame{kind: inHold, what: "the thread that called " + begin, dev: d.dev, holder: by, drop: d.root.dropHold})
}

// dropHold ends a hold in the midlayer.
func (d *device) dropHold() {
	if start := d.start.Load(); start != nil {
		start.Drop()
	}
}

// wasEarly reports whether a hold may have begun before the checks, and counts it.
func (d *device) wasEarly() bool {
	for n := d.early.Load(); n > 0; n = d.early.Load() {
		if d.early.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

// endHold ends a hold of the calling thread.
func (d *device) endHold(by *ib.Hold) {
	k, id := d.k, observe.Goroutine()
	var held, inside *frame
	k.mu.Lock()
	if th := k.threads[id]; th != nil {
		held = th.find(func(f *frame) bool { return f.kind == inHold && f.dev == d.dev && f.holder == by })
		if held != nil {
			for _, f := range th.frames[slices.Index(th.frames, held):] {
				if f.kind.isCall() {
					inside = f
				}
			}
			k.pop(held)
		}
	}
	k.mu.Unlock()
	if inside == nil && (held != nil || d.wasEarly()) {
		return
	}
	begin, end := holdCalls(by)
	at := callers()
	v := Violation{
		Rule: RuleHold, What: fmt.Sprintf("%s called by a thread that has not called %s", end, begin),
		Stacks: []Stack{{end, trace(at)}},
	}
	if inside != nil {
		v.What = fmt.Sprintf("%s called in %s", end, inside.what)
		v.Stacks = append(v.Stacks, Stack{"inside of " + inside.what, trace(inside.entry)})
	}
	k.report(v, d.dev, at)
}
