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

// doorbells are the queue pairs of a context whose send queues are shared with the program: it posts into them
// without a call and then rings. Ringing takes no lock that add, remove or silence hold while they change the table, never
// waits for them, and allocates nothing.
type doorbells struct {
	few      atomic.Pointer[[]*qpObject] // all of them, in a slice that is never changed; nil if there are none, or more than maxScan
	byHandle sync.Map                    // uint32 to *qpObject

	mu       sync.Mutex
	list     []*qpObject
	changes  uint64 // of list
	silenced bool
}

// bell is a queue pair's part of doorbells.
type bell struct {
	at int // place in doorbells.list; under doorbells.mu

	ringing sync.RWMutex // held for reading while the queue pair is rung; ringing does not wait for it
	on      bool         // it may be rung; under ringing

	seen atomic.Uint64 // what Posted said when RingPosted last rang, and one; 0: it has not
}

// maxScan is the largest number of queue pairs for which looking at all of them is cheaper than reading from the program's
// memory which one is meant.
const maxScan = 32

// add makes a queue pair known, except after silence. One without a shared queue is ignored.
func (d *doorbells) add(qp *qpObject) {
	if qp.user == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.silenced {
		return
	}
	qp.bell.set(true)
	qp.bell.at = len(d.list)
	d.list = append(d.list, qp)
	d.byHandle.Store(qp.handle, qp)
	d.publish()
}

// remove returns when the queue pair is not being rung, and will not be any more.
func (d *doorbells) remove(qp *qpObject) {
	if qp.user == nil {
		return
	}
	qp.bell.set(false) // before it leaves the list, so that silence waits for it too
	d.mu.Lock()
	defer d.mu.Unlock()
	at, last := qp.bell.at, len(d.list)-1
	if at > last || d.list[at] != qp {
		return
	}
	d.byHandle.Delete(qp.handle)
	d.list[at] = d.list[last]
	d.list[at].bell.at = at
	d.list[last] = nil
	d.list = d.list[:last]
	d.publish()
}

// has reports whether there are queue pairs.
func (d *doorbells) has() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.list) > 0
}

// silence forgets all queue pairs: it returns when none is being rung, and none will be any more.
func (d *doorbells) silence() {
	d.mu.Lock()
	list := d.list
	d.list, d.silenced = nil, true
	d.byHandle.Clear()
	d.publish()
	d.mu.Unlock()
	for _, qp := range list {
		qp.bell.set(false)
	}
}

// publish is called when list has changed.
//
//verbena:held mu
func (d *doorbells) publish() {
	d.changes++
	if n := len(d.list); n == 0 || n > maxScan {
		d.few.Store(nil)
		return
	}
	few := slices.Clone(d.list)
	d.few.Store(&few)
}

// set says whether the queue pair may be rung. It waits while it is being rung.
func (b *bell) set(on bool) {
	b.ringing.Lock()
	defer b.ringing.Unlock()
	b.on = on
}

// holds are for doorbells, which allocate nothing.
var holds = sync.Pool{New: func() any { return new(ib.Hold) }}

// hold has the callbacks that come due run by this thread, when it calls runCallbacks. s, if not nil, is told where
// the doorbell is stopped in the memory of another program.
func (f *File) hold(s ib.Staller) *ib.Hold {
	h := holds.Get().(*ib.Hold)
	f.holdBy(h, s)
	return h
}

func (f *File) holdBy(h *ib.Hold, s ib.Staller) {
	user.HoldCallbacks(f.dev.ib, h)
	if s != nil {
		h.OnStall(s)
	}
}

// staller is the caller, if it can answer sooner.
func staller(c Caller) ib.Staller {
	s, _ := c.(ib.Staller)
	return s
}

// runCallbacks ends a hold, if there is one.
func runCallbacks(h *ib.Hold) {
	if h != nil {
		h.Run()
		holds.Put(h)
	}
}

// ring rings for a queue pair if wanted says so. It reports false if not, and if the queue pair is being removed or has been. The
// first to ring begins the hold.
func (f *File) ring(s ib.Staller, qp *qpObject, wanted func(*qpObject) bool, h **ib.Hold) bool {
	b := &qp.bell
	if !b.ringing.TryRLock() {
		return false
	}
	defer b.ringing.RUnlock()
	if !b.on || !wanted(qp) {
		return false
	}
	if *h == nil {
		*h = f.hold(s)
	}
	qp.user.Doorbell(*h)
	return true
}

func hasPosted(qp *qpObject) bool {
	_, some := qp.user.Posted()
	return some
}

func canSend(qp *qpObject) bool { return qp.State() >= ib.QPRTS }

// ringPosted rings for each queue pair that has something posted, and reports whether there was one.
func (f *File) ringPosted(c Caller) (rang bool) {
	few := f.bells.few.Load()
	if few == nil || !f.now().Makes() {
		return false // the command itself is refused, or says which is meant
	}
	var h *ib.Hold
	defer func() { runCallbacks(h) }()
	for _, qp := range *few {
		if f.ring(staller(c), qp, hasPosted, &h) {
			rang = true
		}
	}
	return rang
}

// ringHandle rings as the doorbell command in b says. It reports false when b is anything else, or wrong, or the
// queue pair cannot send.
func (f *File) ringHandle(c Caller, b []byte) (rang bool) {
	hdr, _ := uapi.Decode[uapi.CmdHdr](b)
	req, ok := uapi.Decode[uapi.PostSend](b[cmdHdrSize:])
	if !ok || !isDoorbell(hdr) || req.WRCount != 0 || req.SGECount != 0 || !f.now().Makes() {
		return false
	}
	qp, ok := f.bells.byHandle.Load(req.QPHandle)
	if !ok {
		return false
	}
	var h *ib.Hold
	defer func() { runCallbacks(h) }()
	return f.ring(staller(c), qp.(*qpObject), canSend, &h)
}

// Scan is how far RingPosted has come with many queue pairs, and which were busy. The zero Scan is at the beginning. It belongs to one
// thread at a time.
type Scan struct {
	next   int // place in doorbells.list
	hot    [8]*qpObject
	oldest int // in hot
	window [maxScan]*qpObject
}

// RingPosted rings for queue pairs in which more has been posted than when it last rang, for a program that announces nothing. Of many
// queue pairs it looks at those that were busy lately and some others, with all at every one; and with all it rings for each that has
// something posted, which may be what it has rung for before. on is told where the memory of a program stops that. It reports whether it has
// found anything new. EIO when the device has gone. It may not sleep.
//
// While on, if it is Patient, reports that nothing else waits for the thread, this goes on for as long as there is something to do.
func (f *File) RingPosted(on ib.Staller, s *Scan, all bool) (found bool, err error) {
	var h *ib.Hold
	defer func() { runCallbacks(h) }()
	found, err = f.ringSome(on, s, all, &h)
	patient, _ := on.(Patient)
	for h != nil && patient != nil {
		h.Keep()
		h.Run()
		rest := h.Rest()
		if rest == nil {
			holds.Put(h)
			h = nil
			break
		}
		f.holdBy(h, on)
		h.Defer(rest)
		if !patient.Idle() {
			break
		}
		_, err = f.ringSome(on, s, false, &h)
	}
	return found, err
}

// Patient is a caller of RingPosted whose thread may have nothing else to do. Idle may not sleep.
type Patient interface {
	ib.Staller
	Idle() bool
}

// HasNew reports whether RingPosted, without all, would find something new. With many queue pairs it may say so wrongly. It may not sleep.
func (f *File) HasNew() bool {
	if !f.now().Makes() {
		return false
	}
	few := f.bells.few.Load()
	if few == nil {
		return f.bells.has()
	}
	for _, qp := range *few {
		if at, some := qp.user.Posted(); some && qp.bell.seen.Load() != uint64(at)+1 {
			return true
		}
	}
	return false
}

// ringSome looks at queue pairs as RingPosted does.
func (f *File) ringSome(on ib.Staller, s *Scan, all bool, h **ib.Hold) (found bool, err error) {
	switch state := f.now(); {
	case state.Makes():
	case state == states.ContextFresh:
		return false, nil
	default:
		return false, errGone
	}
	if few := f.bells.few.Load(); few != nil {
		for _, qp := range *few {
			found = f.ringNew(on, qp, all, h) || found
		}
		return found, nil
	}
	for _, qp := range s.hot {
		if qp != nil {
			found = f.ringNew(on, qp, all, h) || found
		}
	}
	if all {
		s.next = 0
	}
	var before uint64
	for rest, first := true, true; rest; rest, first = rest && all, false {
		var n int
		var changes uint64
		n, changes, rest = f.bells.some(s)
		if first {
			before = changes
		}
		// One that has taken the place of another, which was removed, may not have been looked at: it is to be tried again.
		found = found || all && changes != before
		for _, qp := range s.window[:n] {
			if f.ringNew(on, qp, all, h) {
				found = true
				s.hot[s.oldest] = qp
				s.oldest = (s.oldest + 1) % len(s.hot)
			}
		}
	}
	return found, nil
}

// some puts the next queue pairs into the window, and reports how many, how often the list has changed, and whether there are others before its
// end.
func (d *doorbells) some(s *Scan) (n int, changes uint64, rest bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.next >= len(d.list) {
		s.next = 0
	}
	n = copy(s.window[:], d.list[s.next:])
	s.next += n
	return n, d.changes, s.next < len(d.list)
}

// ringNew rings for a queue pair if it has more posted than the last time, or anything with all. It reports whether there was more.
func (f *File) ringNew(s ib.Staller, qp *qpObject, all bool, h **ib.Hold) (more bool) {
	b := &qp.bell
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
		*h = f.hold(s)
	}
	qp.user.Doorbell(*h)
	return more
}

// Ring is the doorbell of a queue pair, by its handle, for a caller that does not issue system calls: what Write does for a POST_SEND of
// no work requests. It may not sleep.
func (f *File) Ring(c Caller, handle uint32) error {
	switch s := f.now(); {
	case s == states.ContextZombie:
		return errGone
	case s == states.ContextClosed:
		return errClosed
	case !s.Makes():
		return errNoContext
	}
	o, ok := f.bells.byHandle.Load(handle)
	if !ok {
		return fmt.Errorf("no queue pair has the handle %d: %w", handle, syscall.EINVAL)
	}
	qp := o.(*qpObject)
	var h *ib.Hold
	rang := f.ring(staller(c), qp, canSend, &h)
	runCallbacks(h)
	if !rang {
		return fmt.Errorf("queue pair %d is in state %v, it cannot send: %w", qp.Num(), qp.State(), syscall.EINVAL)
	}
	return nil
}

// isDoorbell tells the command that announces send work requests in a shared queue: POST_SEND of none.
func isDoorbell(hdr uapi.CmdHdr) bool {
	return uapi.Command(hdr.Command) == uapi.CmdPostSend && hdr.InWords*4 == doorbellSize && hdr.OutWords > 0
}
