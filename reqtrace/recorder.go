package reqtrace

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/driver"
	"verbena/ib"
	"verbena/internal/quota"
)

// Program is the program of a queue.
type Program struct {
	User quota.ID
	PID  int
	Name string
}

// Recorder records the events of traced queues. It implements driver.Observer. It is safe for concurrent use. No
// method sleeps.
type Recorder struct {
	program func(ib.UserContext) (Program, bool)
	any     atomic.Bool // there is a trace

	mu     sync.Mutex
	traces map[*Trace]struct{}
	counts map[quota.ID]int    // traces by user, including the unfinished calls of Begin
	qps    map[qpKey]*queueLog // traced queue pairs that exist
}

var _ driver.Observer = (*Recorder)(nil)

type qpKey struct {
	device string
	num    uint32
}

// New returns a Recorder without a trace. program returns the program of a context; queues without a program are not
// traced. program must not sleep.
func New(program func(ib.UserContext) (Program, bool)) *Recorder {
	return &Recorder{program: program, traces: map[*Trace]struct{}{}, counts: map[quota.ID]int{},
		qps: map[qpKey]*queueLog{}}
}

// Trace is a trace in progress.
type Trace struct {
	r    *Recorder
	user quota.ID
	ring *ring
}

// MaxTraces is the number of traces of one user at a time.
const MaxTraces = 4

// Begin begins a trace of a user's programs. alloc returns zeroed memory of Size bytes. The caller then refreshes the
// traces of each device (driver.Device.RefreshTraces). The memory must stay valid until the traces of each device
// were refreshed after End. Begin returns EBUSY, without a call of alloc, if the user has MaxTraces traces.
func (r *Recorder) Begin(user quota.ID, alloc func() ([]byte, error)) (_ *Trace, err error) {
	if err := r.count(user); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.uncount(user)
		}
	}()
	mem, err := alloc()
	if err != nil {
		return nil, err
	}
	if len(mem) < Size {
		return nil, fmt.Errorf("trace of %d bytes, must be %d: %w", len(mem), Size, syscall.EINVAL)
	}
	t := &Trace{r: r, user: user, ring: newRing(mem)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.traces[t] = struct{}{}
	r.any.Store(true)
	return t, nil
}

// count counts a trace of a user. It returns EBUSY at the limit.
func (r *Recorder) count(user quota.ID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.counts[user]; n >= MaxTraces {
		return fmt.Errorf("user %v has %d traces of requests, which is the limit: %w", user, n, syscall.EBUSY)
	}
	r.counts[user]++
	return nil
}

// uncount undoes count.
//
//verbena:held mu
func (r *Recorder) uncount(user quota.ID) {
	if r.counts[user]--; r.counts[user] == 0 {
		delete(r.counts, user)
	}
}

// End ends the trace: events are no longer recorded. A thread may still be writing an event until the traces of each
// device were refreshed.
func (t *Trace) End() {
	t.ring.off.Store(true)
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	delete(t.r.traces, t)
	t.r.uncount(t.user)
	t.r.any.Store(len(t.r.traces) > 0)
}

// queueLog is the log of a queue: its numbers in the rings of the traces.
type queueLog struct{ in []ringQueue }

type ringQueue struct {
	ring *ring
	id   uint16
}

// idIn returns the number of the queue in a ring, or 0.
func (l *queueLog) idIn(r *ring) uint16 {
	if l != nil {
		for i := range l.in {
			if l.in[i].ring == r {
				return l.in[i].id
			}
		}
	}
	return 0
}

// Add implements driver.RequestLog.
func (l *queueLog) Add(e *driver.RequestEvent) {
	for i := range l.in {
		x := &l.in[i]
		cq := uint16(0)
		if e.CQ != nil {
			c, _ := e.CQ.(*queueLog)
			cq = c.idIn(x.ring)
		}
		x.ring.add(x.id, cq, e)
	}
}

// TraceQueue implements driver.Observer.
func (r *Recorder) TraceQueue(q driver.QueueRef) driver.RequestLog {
	if !r.any.Load() {
		r.forget(q)
		return nil
	}
	p, ok := r.program(q.QP.Context)
	if !ok {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	old, _ := q.Log.(*queueLog)
	l := &queueLog{}
	for t := range r.traces {
		if t.user != p.User {
			continue
		}
		id := old.idIn(t.ring)
		if id == 0 {
			of := func(log driver.RequestLog) uint16 {
				c, _ := log.(*queueLog)
				return c.idIn(t.ring)
			}
			id = t.ring.addQueue(&queueEntry{
				kind: uint8(q.Kind), typ: q.QP.Type, num: q.QP.Num, pid: uint32(p.PID), entries: uint32(q.Entries),
				sendCQ: of(q.SendCQ), recvCQ: of(q.RecvCQ), srq: of(q.SRQ), device: q.QP.Device, program: p.Name,
			})
			if id != 0 && q.Kind == driver.QueuePair {
				t.ring.addState(id, &driver.StateChange{Time: q.Time, QP: q.QP, From: q.QP.State, To: q.QP.State})
			}
		}
		if id != 0 {
			l.in = append(l.in, ringQueue{t.ring, id})
		}
	}
	if len(l.in) == 0 {
		if old != nil && q.Kind == driver.QueuePair {
			delete(r.qps, qpKey{q.QP.Device, q.QP.Num})
		}
		return nil
	}
	if q.Kind == driver.QueuePair {
		r.qps[qpKey{q.QP.Device, q.QP.Num}] = l
	}
	return l
}

// forget removes a queue pair that is no longer traced.
func (r *Recorder) forget(q driver.QueueRef) {
	if q.Log == nil || q.Kind != driver.QueuePair {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.qps, qpKey{q.QP.Device, q.QP.Num})
}

// each calls f for each ring with a queue pair.
func (r *Recorder) each(device string, num uint32, f func(ring *ring, id uint16)) {
	if !r.any.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.qps[qpKey{device, num}]; l != nil {
		for i := range l.in {
			f(l.in[i].ring, l.in[i].id)
		}
	}
}

// StateChanged implements driver.Observer.
func (r *Recorder) StateChanged(s driver.StateChange) {
	r.each(s.QP.Device, s.QP.Num, func(ring *ring, id uint16) { ring.addState(id, &s) })
	if s.Cause.Reason == driver.ByDestroy && r.any.Load() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.qps, qpKey{s.QP.Device, s.QP.Num})
	}
}

// CompletionFailed implements driver.Observer. The event of the request has the status.
func (r *Recorder) CompletionFailed(driver.FailedCompletion) {}

// CompletionLost implements driver.Observer. The event of the request has FlagLost.
func (r *Recorder) CompletionLost(driver.LostCompletion) {}

// KeyEnded implements driver.Observer.
func (r *Recorder) KeyEnded(driver.EndedKey) {}

// RequestRefused implements driver.Observer.
func (r *Recorder) RequestRefused(f driver.RefusedRequest) {
	syndrome := uint32(0)
	if f.Answered {
		syndrome = uint32(f.Syndrome) + 1
	}
	r.each(f.QP.Device, f.QP.Num, func(ring *ring, id uint16) {
		ring.addFailure(id, f.Time.UnixNano(), kindRefused, uint8(f.Violation.Rule), syndrome, uint32(f.PSN))
	})
}

// PacketsDropped implements driver.Observer.
func (r *Recorder) PacketsDropped(f driver.DroppedPackets) {
	r.each(f.QP.Device, f.QP.Num, func(ring *ring, id uint16) {
		ring.addFailure(id, f.Time.UnixNano(), kindDropped, uint8(f.Reason), uint32(f.Packets), uint32(f.PSN))
	})
}

// PacketsUnsent implements driver.Observer.
func (r *Recorder) PacketsUnsent(f driver.UnsentPackets) {
	r.each(f.QP.Device, f.QP.Num, func(ring *ring, id uint16) {
		ring.addFailure(id, f.Time.UnixNano(), kindUnsent, 0, uint32(f.Packets), 0)
	})
}

// PacketsLost reports packets that a fault rule has dropped, by the queue pair of the device that sent them, or that
// would have received them.
func (r *Recorder) PacketsLost(at time.Time, device string, num uint32, packets int) {
	r.each(device, num, func(ring *ring, id uint16) {
		ring.addFailure(id, at.UnixNano(), kindRuled, 0, uint32(packets), 0)
	})
}

// DeviceChanged reports the state of a device, such as "port down", to all traces. A text has at most 40 bytes.
func (r *Recorder) DeviceChanged(at time.Time, device, text string) {
	if !r.any.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for t := range r.traces {
		if id := t.ring.addOther(&queueEntry{kind: kindOfDevice, device: device}); id != 0 {
			t.ring.addText(id, at.UnixNano(), text)
		}
	}
}

// IsTraced reports whether a user has a trace.
func (r *Recorder) IsTraced(user quota.ID) bool {
	if !r.any.Load() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for t := range r.traces {
		if t.user == user {
			return true
		}
	}
	return false
}

// ConnectionChanged reports an event of the connection manager to the traces of the program's user.
func (r *Recorder) ConnectionChanged(c ConnectionEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for t := range r.traces {
		if t.user != c.Program.User {
			continue
		}
		q := &queueEntry{kind: kindOfManager, pid: uint32(c.Program.PID), program: c.Program.Name}
		if id := t.ring.addOther(q); id != 0 {
			t.ring.addConnection(id, &c)
		}
	}
}
