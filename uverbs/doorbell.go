package uverbs

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/internal/states"
	"verbena/uapi"
)

// doorbellTable holds the queue pairs of a context that share their send queues with the program. The program posts to
// these queues without a call and then rings the doorbell. A ring takes no lock that add, remove or silence hold while
// they change the table. A ring does not wait for these functions, and does not allocate.
type doorbellTable struct {
	// few contains all queue pairs in an immutable slice. few is nil if there are none, or more than maxScannedQPs.
	few      atomic.Pointer[[]*qpObject]
	byHandle sync.Map // uint32 to *qpObject

	mu       sync.Mutex
	list     []*qpObject
	changes  uint64 // number of changes of list
	silenced bool
}

// doorbell is the doorbell state of a queue pair.
type doorbell struct {
	at int // index in doorbells.list; under doorbells.mu

	ringing sync.RWMutex // read-locked during a ring; a ring does not wait for this lock
	on      bool         // the doorbell may be rung; under ringing

	seen atomic.Uint64 // result of Posted at the last ring by RingPosted, plus one; 0 means none
}

// maxScannedQPs is the maximum number of queue pairs for which checking all queue pairs replaces reading the command
// from the program's memory. With more queue pairs, reading the command is cheaper.
const maxScannedQPs = 32

// add adds a queue pair, unless silence has been called. add ignores queue pairs without a shared queue.
func (d *doorbellTable) add(qp *qpObject) {
	if qp.user == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.silenced {
		return
	}
	qp.doorbell.allowRings(true)
	qp.doorbell.at = len(d.list)
	d.list = append(d.list, qp)
	d.byHandle.Store(qp.handle, qp)
	d.publishList()
}

// remove removes a queue pair. When remove has returned, the doorbell is not being rung and will not be rung again.
func (d *doorbellTable) remove(qp *qpObject) {
	if qp.user == nil {
		return
	}
	qp.doorbell.allowRings(false) // precedes the removal from the list, so that silence also waits for this doorbell
	d.mu.Lock()
	defer d.mu.Unlock()
	at, last := qp.doorbell.at, len(d.list)-1
	if at > last || d.list[at] != qp {
		return
	}
	d.byHandle.Delete(qp.handle)
	d.list[at] = d.list[last]
	d.list[at].doorbell.at = at
	d.list[last] = nil
	d.list = d.list[:last]
	d.publishList()
}

// hasQueuePairs reports whether the table contains queue pairs.
func (d *doorbellTable) hasQueuePairs() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.list) > 0
}

// removeAll removes all queue pairs. When removeAll has returned, no doorbell is being rung or will be rung again.
func (d *doorbellTable) removeAll() {
	d.mu.Lock()
	list := d.list
	d.list, d.silenced = nil, true
	d.byHandle.Clear()
	d.publishList()
	d.mu.Unlock()
	for _, qp := range list {
		qp.doorbell.allowRings(false)
	}
}

// publishList must be called after each change of list.
//
//verbena:held mu
func (d *doorbellTable) publishList() {
	d.changes++
	if n := len(d.list); n == 0 || n > maxScannedQPs {
		d.few.Store(nil)
		return
	}
	few := slices.Clone(d.list)
	d.few.Store(&few)
}

// allowRings allows or forbids rings of the doorbell. allowRings waits for the end of a ring in progress.
func (b *doorbell) allowRings(on bool) {
	b.ringing.Lock()
	defer b.ringing.Unlock()
	b.on = on
}

// holdPool is a pool of Holds for doorbells, which must not allocate.
var holdPool = sync.Pool{New: func() any { return new(ib.Hold) }}

// newHold returns a Hold. With this Hold the thread runs the device's callbacks in runCallbacks. If s is not nil, s is
// called when the doorbell blocks on the memory of another program.
func (f *File) newHold(s ib.Staller) *ib.Hold {
	h := holdPool.Get().(*ib.Hold)
	f.beginHold(h, s)
	return h
}

func (f *File) beginHold(h *ib.Hold, s ib.Staller) {
	userOps.HoldCallbacks(f.dev.ib, h)
	if s != nil {
		h.OnStall(s)
	}
}

// stallerOf returns the caller as an ib.Staller, or nil.
func stallerOf(c Caller) ib.Staller {
	s, _ := c.(ib.Staller)
	return s
}

// LateWorker is a Caller that can run work after its call has been answered. w may block for ever, while programs with
// descriptors of the process of do not answer. RunLater therefore returns false unless that process and the caller
// belong together. RunLater may not sleep.
type LateWorker interface {
	RunLater(w ib.LateWork, of Process) bool
}

// runCallbacks ends the Hold h for the caller c, whose answer stores nothing in memory. h may be nil. Events of
// processes that belong to c are written after the answer. c may be nil.
func runCallbacks(h *ib.Hold, c any) {
	if h != nil {
		runHold(h, c)
		holdPool.Put(h)
	}
}

func runHold(h *ib.Hold, c any) {
	defer h.TakeLater(func(w ib.LateWork) { runLater(w, c) })
	h.Run()
}

// runLater makes the caller c run w after the answer, or starts a goroutine for it.
func runLater(w ib.LateWork, c any) {
	e := w.(*eventFile)
	if late, ok := c.(LateWorker); !ok || !late.RunLater(e, e.proc) {
		go e.run()
	}
}

// ringIfWanted rings the doorbell of a queue pair if wanted returns true, and then returns true. Otherwise, and also if
// the queue pair is being removed or has been removed, ringIfWanted returns false. The first ringIfWanted begins the
// hold.
func (f *File) ringIfWanted(s ib.Staller, qp *qpObject, wanted func(*qpObject) bool, h **ib.Hold) bool {
	b := &qp.doorbell
	if !b.ringing.TryRLock() {
		return false
	}
	defer b.ringing.RUnlock()
	if !b.on || !wanted(qp) {
		return false
	}
	if *h == nil {
		*h = f.newHold(s)
	}
	qp.user.Doorbell(*h)
	return true
}

func hasPosted(qp *qpObject) bool {
	_, some := qp.user.Posted()
	return some
}

func canSend(qp *qpObject) bool { return qp.State() >= ib.QPRTS }

// ringAllPosted rings the doorbell of each queue pair with posted requests. ringAllPosted reports whether such a queue
// pair was found.
func (f *File) ringAllPosted(c Caller) (rang bool) {
	few := f.doorbells.few.Load()
	if few == nil || !f.contextState().CanCreate() {
		return false // the command is rejected, or names the queue pair
	}
	var h *ib.Hold
	defer func() { runCallbacks(h, c) }()
	for _, qp := range *few {
		if f.ringIfWanted(stallerOf(c), qp, hasPosted, &h) {
			rang = true
		}
	}
	return rang
}

// executeDoorbell executes the doorbell command in b. executeDoorbell returns false if b is invalid or not a doorbell,
// or if the queue pair cannot send.
func (f *File) executeDoorbell(c Caller, b []byte) (rang bool) {
	hdr, _ := uapi.Decode[uapi.CmdHdr](b)
	req, ok := uapi.Decode[uapi.PostSend](b[cmdHdrSize:])
	if !ok || !isDoorbell(hdr) || req.WRCount != 0 || req.SGECount != 0 || !f.contextState().CanCreate() {
		return false
	}
	qp, ok := f.doorbells.byHandle.Load(req.QPHandle)
	if !ok {
		return false
	}
	var h *ib.Hold
	defer func() { runCallbacks(h, c) }()
	return f.ringIfWanted(stallerOf(c), qp.(*qpObject), canSend, &h)
}

// RingScan is the position of RingPosted in a long list of queue pairs, together with the set of recently busy queue
// pairs. The zero RingScan starts at the beginning of the list. Only one thread may use a RingScan at a time.
type RingScan struct {
	next   int // index in doorbells.list
	hot    [8]*qpObject
	oldest int // index in hot
	window [maxScannedQPs]*qpObject
}

// RingPosted rings the doorbell of each queue pair with requests posted since the last ring. RingPosted is for a
// program that does not announce its posts. In a long list, RingPosted checks recently busy queue pairs and a few
// others. If all is set, it checks every queue pair, and also rings for requests for which it has rung before. on is
// called when the doorbell blocks on the memory of a program. RingPosted reports whether it has found new requests.
// RingPosted returns EIO after the device has been removed. RingPosted may not sleep.
//
// If on is an [IdleReporter] and reports that the thread has no other work, RingPosted continues while there are
// requests.
func (f *File) RingPosted(on ib.Staller, s *RingScan, all bool) (found bool, err error) {
	var h *ib.Hold
	defer func() { runCallbacks(h, nil) }()
	found, err = f.ringSome(on, s, all, &h)
	patient, _ := on.(IdleReporter)
	for h != nil && patient != nil {
		h.Keep()
		runHold(h, nil)
		rest := h.Rest()
		if rest == nil {
			holdPool.Put(h)
			h = nil
			break
		}
		f.beginHold(h, on)
		h.Defer(rest)
		if !patient.Idle() {
			break
		}
		_, err = f.ringSome(on, s, false, &h)
	}
	return found, err
}

// IdleReporter is a caller of RingPosted. Idle reports whether its thread has no other work. Idle may not sleep.
type IdleReporter interface {
	ib.Staller
	Idle() bool
}

// HasNewRequests reports whether RingPosted, without all, would find new requests. With many queue pairs it may return
// true although there are none. HasNewRequests may not sleep.
func (f *File) HasNewRequests() bool {
	if !f.contextState().CanCreate() {
		return false
	}
	few := f.doorbells.few.Load()
	if few == nil {
		return f.doorbells.hasQueuePairs()
	}
	for _, qp := range *few {
		if at, some := qp.user.Posted(); some && qp.doorbell.seen.Load() != uint64(at)+1 {
			return true
		}
	}
	return false
}

// CanPost reports whether a queue pair may send requests that the program posts. CanPost may not sleep.
func (f *File) CanPost() bool {
	if !f.contextState().CanCreate() {
		return false
	}
	few := f.doorbells.few.Load()
	if few == nil {
		return f.doorbells.hasQueuePairs()
	}
	return slices.ContainsFunc(*few, func(qp *qpObject) bool {
		s := qp.State()
		return s == ib.QPRTS || s == ib.QPSQD
	})
}

// ringSome checks queue pairs as described at RingPosted.
func (f *File) ringSome(on ib.Staller, s *RingScan, all bool, h **ib.Hold) (found bool, err error) {
	switch state := f.contextState(); {
	case state.CanCreate():
	case state == states.ContextFresh:
		return false, nil
	default:
		return false, errGone
	}
	if few := f.doorbells.few.Load(); few != nil {
		for _, qp := range *few {
			found = f.ringIfNew(on, qp, all, h) || found
		}
		return found, nil
	}
	for _, qp := range s.hot {
		if qp != nil {
			found = f.ringIfNew(on, qp, all, h) || found
		}
	}
	if all {
		s.next = 0
	}
	var before uint64
	for rest, first := true, true; rest; rest, first = rest && all, false {
		var n int
		var changes uint64
		n, changes, rest = f.doorbells.nextScanWindow(s)
		if first {
			before = changes
		}
		// The scan may have missed a queue pair that moved to the index of a removed queue pair. In this case the
		// caller must try again.
		found = found || all && changes != before
		for _, qp := range s.window[:n] {
			if f.ringIfNew(on, qp, all, h) {
				found = true
				s.hot[s.oldest] = qp
				s.oldest = (s.oldest + 1) % len(s.hot)
			}
		}
	}
	return found, nil
}

// nextScanWindow copies the next queue pairs of the list to the window. nextScanWindow returns their number, the change
// count of the list, and whether the list continues.
func (d *doorbellTable) nextScanWindow(s *RingScan) (n int, changes uint64, rest bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.next >= len(d.list) {
		s.next = 0
	}
	n = copy(s.window[:], d.list[s.next:])
	s.next += n
	return n, d.changes, s.next < len(d.list)
}

// ringIfNew rings the doorbell of a queue pair if the queue pair has new requests. If all is set, it also rings if
// there are only older requests. ringIfNew reports whether there were new requests.
func (f *File) ringIfNew(s ib.Staller, qp *qpObject, all bool, h **ib.Hold) (more bool) {
	b := &qp.doorbell
	if !b.ringing.TryRLock() {
		return false
	}
	defer b.ringing.RUnlock()
	if !b.on {
		return false
	}
	at, some := qp.user.Posted()
	if !some {
		return false
	}
	if now := uint64(at) + 1; b.seen.Load() != now {
		b.seen.Store(now)
		more = true
	}
	if !more && !all {
		return false
	}
	if *h == nil {
		*h = f.newHold(s)
	}
	qp.user.Doorbell(*h)
	return more
}

// Ring rings the doorbell of a queue pair by its handle, for a caller that does not issue system calls. Ring is
// equivalent to Write of a POST_SEND without work requests. Ring may not sleep.
func (f *File) Ring(c Caller, handle uint32) error {
	switch s := f.contextState(); {
	case s == states.ContextZombie:
		return errGone
	case s == states.ContextClosed:
		return errFileClosed
	case !s.CanCreate():
		return errNoContext
	}
	o, ok := f.doorbells.byHandle.Load(handle)
	if !ok {
		return fmt.Errorf("no queue pair has the handle %d: %w", handle, syscall.EINVAL)
	}
	qp := o.(*qpObject)
	var h *ib.Hold
	rang := f.ringIfWanted(stallerOf(c), qp, canSend, &h)
	runCallbacks(h, c)
	if !rang {
		return &QPError{f.dev.ib.Name(), qp.Num(),
			fmt.Errorf("queue pair %d cannot send in state %v: %w", qp.Num(), qp.State(), syscall.EINVAL)}
	}
	return nil
}

// isDoorbell reports whether the command is a doorbell: a POST_SEND without work requests, which announces requests in
// a shared queue.
func isDoorbell(hdr uapi.CmdHdr) bool {
	return uapi.Command(hdr.Command) == uapi.CmdPostSend && hdr.InWords*4 == doorbellSize && hdr.OutWords > 0
}
