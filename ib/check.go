package ib

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// checker is checked mode. It knows which thread is inside what: each call that matters pushes a frame on its
// goroutine's stack of frames and pops it on return, and what is pushed is compared with what is there.
type checker struct {
	cfg CheckConfig

	mu      sync.Mutex
	threads map[int64]*thread // by goroutine; only those that are inside something
	live    map[*objectCheck]struct{}

	looking   sync.Mutex // one look at the goroutines at a time
	reporting sync.Mutex
	reported  map[string]bool // under reporting
}

func newChecker(cfg CheckConfig) *checker {
	return &checker{
		cfg: cfg, threads: map[int64]*thread{}, live: map[*objectCheck]struct{}{}, reported: map[string]bool{},
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
	what   string // such as "QP.PostSend"
	dev    *Device
	obj    *objectCheck
	client *Client // inClient, and inRegister of a client
	entry  []uintptr
	raised []uintptr // inCallback: where it was raised, if known
	waits  bool      // waits for callbacks of obj or listener, or all of dev
	holder *Hold     // inHold: whose it is, nil for HoldCallbacks; inAtomic: that a doorbell was given

	listener *eventHandler // whose function it is, or whose end
	polled   []uintptr     // where a completion handler polled its CQ last; of its thread
	blind    []uintptr     // where it armed the CQ last, if it did not ask what it had missed; of its thread
	batch    bool          // its last poll, since it armed the CQ if it did, was full; of its thread

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
	f.entry = callers(2)
	id := goid()
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

// leave pops the frame. A nil frame is that of a call without a checker.
func (f *frame) leave() {
	if f == nil {
		return
	}
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
	if f.listener != nil {
		return x.listener == f.listener
	}
	return x.dev == f.dev
}

// callback runs a consumer's function in the frame, and reports one that does not return: it panics, or ends the goroutine.
func (f *frame) callback(run func()) {
	f.k.enter(f)
	returned := false
	defer func() {
		f.leave()
		if !returned {
			f.k.report(Violation{
				Rule: RuleCallbackReturns, What: f.what + " panicked or ended its goroutine (runtime.Goexit, testing's FailNow)",
				Stacks: append([]Stack{{f.what, trace(callers(1))}}, f.raisedAt()...),
			}, f.dev, f.entry)
		}
	}()
	run()
	returned = true
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
func (k *checker) report(v Violation, d *Device, place []uintptr) {
	if d != nil {
		v.Device = d.name
	}
	key := fmt.Sprint(v.Rule, v.Device, v.What, place[:min(3, len(place))])
	k.reporting.Lock()
	defer k.reporting.Unlock()
	if k.reported[key] {
		return
	}
	k.reported[key] = true
	k.cfg.Report(v)
}

// holdCalls are the calls that begin and end a hold, by a Hold if it is not nil.
func holdCalls(by *Hold) (begin, end string) {
	if by != nil {
		return "Hold.Add", "Hold.Run"
	}
	return "HoldCallbacks", "RunCallbacks"
}

// hold and endHold are the checked parts of HoldCallbacks and RunCallbacks, and with by those of a Hold.
func (k *checker) hold(d *Device, by *Hold) {
	begin, _ := holdCalls(by)
	k.enter(&frame{kind: inHold, what: "the thread that called " + begin, dev: d, holder: by})
}

// startChecks begins the checks of a device. Packets may arrive before, and the threads of those that end a hold afterwards have begun it unseen:
// so many as there are holds now are let off.
func (d *Device) startChecks(k *checker) {
	const many = 1 << 30 // until it is known
	d.early.Store(many)
	d.check.Store(k)
	n := int64(d.callbacks.holds.Load())
	d.early.Store(n)
}

// wasEarly reports whether a hold may have begun before the checks, and counts it.
func (d *Device) wasEarly() bool {
	for n := d.early.Load(); n > 0; n = d.early.Load() {
		if d.early.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

func (k *checker) endHold(d *Device, by *Hold) {
	id := goid()
	var held, inside *frame
	k.mu.Lock()
	if th := k.threads[id]; th != nil {
		held = th.find(func(f *frame) bool { return f.kind == inHold && f.dev == d && f.holder == by })
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
	place := callers(2)
	v := Violation{
		Rule: RuleHold, What: fmt.Sprintf("%s called by a thread that has not called %s", end, begin),
		Stacks: []Stack{{end, trace(place)}},
	}
	if inside != nil {
		v.What = fmt.Sprintf("%s called in %s", end, inside.what)
		v.Stacks = append(v.Stacks, Stack{"inside of " + inside.what, trace(inside.entry)})
	}
	k.report(v, d, place)
}

// objectCheck is what checked mode knows of an object.
type objectCheck struct {
	k     *checker
	dev   *Device // everybody's
	by    *Device // by which it was made
	kind  objectKind
	owner *Client // of that Device, or in whose Add or Remove it, or what it is made of, was made; nil if that is not known
	made  []uintptr

	destroyed atomic.Pointer[[]uintptr] // where, once it is
	ending    atomic.Pointer[[]uintptr] // where that was called for
	abandoned atomic.Bool               // may be used after Unregister, to end
	// of a CQ
	requests atomic.Int64          // by ReqNotify, less the answers
	armings  atomic.Int64          // calls of ReqNotify
	probed   atomic.Pointer[rearm] // checked mode has armed the queue, the consumer has not
	rearm    atomic.Pointer[time.Timer]
	answers  atomic.Int64 // calls of Completed
	polls    atomic.Int64
	user     bool         // of a user context, which may poll without a call
	pending  atomic.Int64 // work requests that may complete on it
	polling  atomic.Int32 // calls of Poll
	broken   atomic.Bool  // completions may have been lost

	mayOverrun bool // CQIgnoreOverrun
	deadMu     sync.Mutex
	dead       map[uint32]*work // by number: queue pairs that were destroyed, of which completions may be in it

	// of a QP or SRQ
	work    *work // nil: its work requests are not followed
	armed   atomic.Pointer[time.Timer]
	probing sync.Mutex // held while expectPoll asks the driver, and while the driver destroys the queue
	raised  atomic.Pointer[[]uintptr]
	handler atomic.Pointer[frame] // that runs now
}

// newObject notes where an object is made, and by whom. of is what it is made of, nil for nothing.
func (k *checker) newObject(d *Device, kind objectKind, of *objectCheck) *objectCheck {
	oc := &objectCheck{k: k, dev: d.root, by: d, kind: kind, made: callers(2), owner: d.client}
	if of != nil && oc.owner == nil {
		oc.owner = of.owner
	}
	if oc.owner == nil {
		oc.owner = k.owner(d)
	}
	return oc
}

// owner is the client in whose Add or Remove of d the calling thread is, nil if it is in none.
func (k *checker) owner(d *Device) *Client {
	id := goid()
	k.mu.Lock()
	defer k.mu.Unlock()
	if th := k.threads[id]; th != nil {
		if f := th.find(func(f *frame) bool { return f.kind == inClient }); f != nil && f.dev == d.root {
			return f.client
		}
	}
	return nil
}

// goid is the number of the calling goroutine. Only checked mode needs it.
func goid() int64 {
	var buf [64]byte
	b := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	n, _, _ := bytes.Cut(b, []byte(" "))
	id, err := strconv.ParseInt(string(n), 10, 64)
	if err != nil {
		panic("ib: runtime.Stack begins with " + strconv.Quote(string(b)))
	}
	return id
}
