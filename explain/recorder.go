package explain

import (
	"container/list"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"verbena/driver"
	"verbena/ib"
	"verbena/internal/qpinfo"
	"verbena/internal/quota"
	"verbena/uapi"
)

// Limits bounds the memory of a Recorder. A cause takes up to 1 KB, an ended key 100 bytes, and a queue pair up to
// 1.5 KB after its first failure and 350 bytes before. Each limit is one of a user, except Users and Total.
type Limits struct {
	Causes    int // 0 means 1000
	QPs       int // queue pairs that exist; 0 means 65536
	Destroyed int // destroyed queue pairs that had begun to receive; 0 means 4096. A quarter applies to others
	Keys      int // ended keys; 0 means 4096
	Users     int // 0 means 256. The causes of the user whose latest cause is the oldest are discarded
	// Total limits the destroyed queue pairs and ended keys of all users together; 0 means 65536. Beyond it, the user with
	// the most of them loses the oldest ones.
	Total int
}

// Program is the program of a queue pair or a call.
type Program struct {
	User    quota.ID
	PID     int
	Name    string
	Session string // "" for a program that uses a device over the control socket
	// Ending is set while the program's context is being closed, for example at the end of the process.
	Ending bool
}

// Life is the state of a process after it has opened a device.
type Life uint8

// The following constants are the states. Running also stands for an unknown state.
const (
	Running  Life = iota
	Ended         // the process has ended
	Executed      // the process has executed another program (execve(2)), and the address space has ended
)

// Config configures a Recorder.
type Config struct {
	Limits Limits
	// Program returns the program of a context. The Recorder ignores queue pairs without a program. It must not sleep.
	Program func(ib.UserContext) (Program, bool)
	// Life, if not nil, returns the state of the process of a context. It must not sleep.
	Life func(ib.UserContext) Life
	// Found, if not nil, is called with each new cause, in the form for its user. The Recorder is locked: Found must not
	// call it, and must not sleep.
	Found func(*qpinfo.Cause)
}

// Recorder keeps facts and causes. It implements driver.Observer. It is safe for concurrent use. No method sleeps.
type Recorder struct {
	cfg Config

	mu      sync.Mutex
	last    uint64 // ID of the latest cause
	users   map[quota.ID]*userCauses
	qps     map[qpKey]*qpFacts
	devices map[string]*deviceFacts
	byAddr  map[netip.Addr]*deviceFacts
	noQP    map[qpKey]driver.DroppedPackets // latest packets to a number that no queue pair has; at most maxNoQP
	past    int                             // destroyed queue pairs and ended keys of all users

	rejections map[netip.AddrPort]RejectedRequest // by the address of the requester; at most maxRejections
}

const (
	maxNoQP       = 256  // any host can send such packets
	maxRejections = 1024 // each explains the failure of the requester, which follows
)

// New returns an empty Recorder.
func New(cfg Config) *Recorder {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&cfg.Limits.Causes, 1000)
	def(&cfg.Limits.QPs, 65536)
	def(&cfg.Limits.Destroyed, 4096)
	def(&cfg.Limits.Keys, 4096)
	def(&cfg.Limits.Users, 256)
	def(&cfg.Limits.Total, 65536)
	return &Recorder{cfg: cfg, users: map[quota.ID]*userCauses{}, qps: map[qpKey]*qpFacts{},
		devices: map[string]*deviceFacts{}, byAddr: map[netip.Addr]*deviceFacts{}, noQP: map[qpKey]driver.DroppedPackets{},
		rejections: map[netip.AddrPort]RejectedRequest{}}
}

var _ driver.Observer = (*Recorder)(nil)

type qpKey struct {
	device string
	num    uint32
}

// regionKey is a key of a region or a window of a device.
type regionKey struct {
	device string
	key    uint32
}

// endedKey is a key that was taken away from a program.
type endedKey struct {
	program Program
	at      time.Time
	how     driver.KeyEnd
}

// KeyEnded implements driver.Observer.
func (r *Recorder) KeyEnded(f driver.EndedKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.program(f.Context)
	if !ok || p.Ending {
		return
	}
	u := r.user(p.User)
	if u.ended == nil {
		u.ended = map[regionKey]endedKey{}
	}
	k := regionKey{f.Device, f.Key}
	if _, ok := u.ended[k]; !ok {
		u.keys.push(k)
		r.past++
	}
	u.ended[k] = endedKey{p, f.Time, f.How}
	r.limitPast(u)
}

// entry is a cause in the form for its user, and for a user who sees both ends.
type entry struct {
	own    qpinfo.Cause
	full   *qpinfo.Cause // nil: equal to own
	hidden bool          // only for users who see both ends

	sources []netip.Addr // sources of dropped packets, at most maxSources
	more    bool         // there were other sources
}

// qpFacts are the latest facts of a queue pair.
type qpFacts struct {
	ref     driver.QPRef // without the Context, which would keep the context and its objects in memory
	program Program
	changed time.Time // when the state changed
	cause   driver.StateCause
	gone    bool
	left    departure
	ready   time.Time     // when it began to receive, the last time
	starts  int           // times that it has begun to receive
	elem    *list.Element // in userCauses.qps; nil after it was destroyed
	*evidence
}

// departure is the moment at which a queue pair stopped to receive. The first one counts until it receives again.
type departure struct {
	at    time.Time // zero: it receives, or never has
	state ib.QPState
	cause driver.StateCause
}

// receives reports whether a queue pair executes requests in a state.
func receives(s ib.QPState) bool { return s >= ib.QPRTR && s != ib.QPErr }

// noteState keeps the latest state, and the moment at which the queue pair stopped to receive.
func (q *qpFacts) noteState(s *driver.StateChange) {
	q.changed, q.cause, q.gone = s.Time, s.Cause, s.Cause.Reason == driver.ByDestroy
	switch {
	case receives(s.To) && !q.gone:
		if q.left = (departure{}); !receives(s.From) {
			q.ready, q.starts = s.Time, q.starts+1
		}
	case q.left.at.IsZero() && receives(s.From):
		q.left = departure{at: s.Time, state: s.To, cause: s.Cause}
	}
}

// evidence are the failures of a queue pair. A zero Time means that there was none.
type evidence struct {
	refusal  driver.RefusedRequest // without a Context; likewise the other reports
	life     Life                  // state of the process at the latest report of RuleMemory
	waiting  unready
	waitsFor *qpFacts // the responder that has no receive for this queue pair; nil if waiting.id of it is 0
	drop     driver.DroppedPackets
	unsent   driver.UnsentPackets
	impaired []ImpairedPackets // the latest, the oldest first; at most maxImpaired
	primary  *entry            // cause of the present error state; flushed work requests count for it
	why      string            // its Why
	byRow    map[string]*entry
}

// facts returns the facts of a queue pair, which it creates; nil without a program.
//
//verbena:held mu
func (r *Recorder) facts(ref driver.QPRef) *qpFacts {
	k := qpKey{ref.Device, ref.Num}
	q := r.qps[k]
	if q == nil || q.gone {
		p, ok := r.program(ref.Context)
		if !ok {
			return nil
		}
		q = &qpFacts{program: p}
		u := r.user(p.User)
		if u.qps.Len() >= r.cfg.Limits.QPs {
			r.forgetQP(u.qps.Remove(u.qps.Front()).(*qpFacts))
		}
		q.ref = ref
		q.elem = u.qps.PushBack(q)
		r.qps[k] = q
	}
	ref.Context = nil
	if !ref.Peer.IsValid() {
		ref.Local, ref.Peer, ref.DestQPN = q.ref.Local, q.ref.Peer, q.ref.DestQPN
	}
	q.ref = ref
	return q
}

func (r *Recorder) program(c ib.UserContext) (Program, bool) {
	if c == nil || r.cfg.Program == nil {
		return Program{}, false
	}
	return r.cfg.Program(c)
}

// noteLife keeps the state of the process of a context if the memory of the process has refused an access.
func (r *Recorder) noteLife(q *qpFacts, c ib.UserContext, v *driver.Violation) {
	if v.Rule == driver.RuleMemory && r.cfg.Life != nil {
		q.failures().life = r.cfg.Life(c)
	}
}

// failures returns the evidence of the queue pair, which it creates.
func (q *qpFacts) failures() *evidence {
	if q.evidence == nil {
		q.evidence = &evidence{}
	}
	return q.evidence
}

// identify sets the fields of a cause that describe its program.
func identify(c *qpinfo.Cause, p Program, id uint64) {
	c.ID, c.Count = id, 1
	c.PID, c.Process, c.Session, c.UID, c.Container = p.PID, p.Name, p.Session, p.User.UID, p.User.Container
}

// add adds a cause.
//
//verbena:held mu
func (r *Recorder) add(p Program, own qpinfo.Cause, full *qpinfo.Cause) *entry {
	r.last++
	e := r.addAs(p, own, full, r.last)
	r.report(e)
	return e
}

// report calls Config.Found.
func (r *Recorder) report(e *entry) {
	if r.cfg.Found != nil {
		r.cfg.Found(&e.own)
	}
}

// addAs adds a cause with a number, and does not report it.
//
//verbena:held mu
func (r *Recorder) addAs(p Program, own qpinfo.Cause, full *qpinfo.Cause, id uint64) *entry {
	identify(&own, p, id)
	e := &entry{own: own, full: full}
	if full != nil {
		identify(full, p, id)
	}
	u := r.user(p.User)
	u.latest = own.Time
	if len(u.causes) < r.cfg.Limits.Causes {
		u.causes = append(u.causes, e)
	} else {
		u.causes[u.next] = e
		u.next = (u.next + 1) % len(u.causes)
	}
	return e
}

// count counts one more occurrence, or n more flushed work requests, of a cause.
func (e *entry) count(more, flushed int) {
	for _, c := range []*qpinfo.Cause{&e.own, e.full} {
		if c != nil {
			c.Count += more
			c.Flushed += flushed
		}
	}
}

// addFor adds a cause of a queue pair, or counts it with the latest one of the same row if once is set.
//
//verbena:held mu
func (r *Recorder) addFor(q *qpFacts, at time.Time, what string, found, alone verdict, once bool) *entry {
	v := q.failures()
	if e := v.byRow[found.row.Name]; once && e != nil {
		e.count(1, 0)
		return e
	}
	own := q.newCause(at, what, alone)
	var full *qpinfo.Cause
	if found.row != alone.row || found.why != alone.why {
		c := q.newCause(at, what, found)
		full = &c
	}
	e := r.add(q.program, own, full)
	if once {
		q.addByRow(e)
	}
	return e
}

// addByRow makes further failures of the same row count for a cause.
func (q *qpFacts) addByRow(e *entry) {
	v := q.failures()
	if v.byRow == nil {
		v.byRow = map[string]*entry{}
	}
	row := e.own.Row
	if e.full != nil {
		row = e.full.Row
	}
	v.byRow[row] = e
}

// newCause returns a cause of the queue pair.
func (q *qpFacts) newCause(at time.Time, what string, v verdict) qpinfo.Cause {
	c := qpinfo.Cause{
		Time: at, Row: v.row.Name, What: what, Why: v.why, Clause: v.clause, Fault: v.fault, Remedy: v.remedy, Since: v.since,
		Device: q.ref.Device, QP: q.ref.Num,
	}
	if q.ref.Peer.IsValid() {
		c.Peer, c.PeerQP = q.ref.Peer.String(), q.ref.DestQPN
	}
	return c
}

// StateChanged implements driver.Observer.
func (r *Recorder) StateChanged(s driver.StateChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.facts(s.QP)
	if q == nil {
		return
	}
	switch q.noteState(&s); {
	case s.Cause.Reason == driver.BySend && s.Cause.Status == uapi.WCRNRRetryExcErr:
		r.ready(q.responder()) // the failed completion has a cause
	case q.gone || !receives(s.To):
		r.endWaiting(q, s.Time)
	}
	if q.gone {
		if p, ok := r.program(s.QP.Context); ok {
			q.program.Ending = p.Ending
		}
		r.retire(q)
	}
	if q.evidence != nil && (s.To == ib.QPReset || s.To == ib.QPInit) && !q.gone {
		q.evidence = nil // a new connection
	}
}

// RequestRefused implements driver.Observer.
func (r *Recorder) RequestRefused(f driver.RefusedRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.facts(f.QP)
	if q == nil {
		return
	}
	r.noteLife(q, f.QP.Context, &f.Violation)
	f.QP.Context = nil
	v := q.failures()
	v.refusal = f
	if f.Answered && f.Syndrome.IsRNR() {
		r.notReady(q, &f)
		return
	}
	if e := q.byRowOf(q.refusalRow(&f)); e != nil && !f.Answered { // a peer may send many of them
		e.count(1, 0)
		return
	}
	found := r.judgeRefusal(q, &f)
	if !f.Answered {
		what := fmt.Sprintf("QP %d: %s dropped, PSN %d", q.ref.Num, describeRequest(&f), f.PSN)
		r.addFor(q, f.Time, what, found, found, true)
		return
	}
	what := fmt.Sprintf("QP %d refused a request of its peer: %s, PSN %d", q.ref.Num, describeRequest(&f), f.PSN)
	v.primary, v.why = r.addFor(q, f.Time, what, found, found, false), found.why
}

// describeRequest names a refused request. The responder knows no opcode if it has accepted the packet before.
func describeRequest(f *driver.RefusedRequest) string {
	if f.Late {
		return "data could not be stored or read"
	}
	return f.Opcode.String()
}

// byRowOf returns the cause of a row that counts repetitions, or nil.
func (q *qpFacts) byRowOf(row string) *entry {
	if q.evidence == nil {
		return nil
	}
	return q.byRow[row]
}

// TraceQueue implements driver.Observer. The Recorder traces no queue.
func (r *Recorder) TraceQueue(driver.QueueRef) driver.RequestLog { return nil }

// CompletionLost implements driver.Observer.
func (r *Recorder) CompletionLost(f driver.LostCompletion) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.facts(f.QP)
	if q == nil {
		return
	}
	row := "cq-overrun"
	if f.Waiting < f.Entries {
		row = "cq-gone"
	}
	kind := "send"
	if f.Recv {
		kind = "receive"
	}
	found := judge(row, &values{q: q, v: driver.Violation{Limit: uint64(f.Entries)}}, FaultRequester)
	what := fmt.Sprintf("QP %d: a completion was lost: %s work request %d, %v", q.ref.Num, kind, f.WRID, f.Status)
	v := q.failures()
	v.primary, v.why = r.addFor(q, f.Time, what, found, found, false), found.why
}

// CompletionFailed implements driver.Observer.
func (r *Recorder) CompletionFailed(f driver.FailedCompletion) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.facts(f.QP)
	if q == nil {
		return
	}
	r.noteLife(q, f.QP.Context, &f.Violation)
	v := q.failures()
	if f.Status == uapi.WCWRFlushErr {
		if v.primary != nil {
			v.primary.count(0, 1)
			return
		}
		found := r.judgeFlush(q, &f)
		what := fmt.Sprintf("QP %d: work requests flushed", q.ref.Num)
		v.primary, v.why = r.addFor(q, f.Time, what, found, found, false), found.why
		v.primary.count(0, 1)
		return
	}
	what := describeCompletion(q, &f)
	if f.Recv && v.primary != nil && v.refusal.Time.Equal(v.primary.own.Time) && f.Time.Sub(v.refusal.Time) < time.Second {
		// The refusal of the message was reported first. Its cause names the receive.
		for _, c := range []*qpinfo.Cause{&v.primary.own, v.primary.full} {
			if c != nil {
				c.What = what
			}
		}
		return
	}
	found, alone := r.judgeCompletion(q, &f, true), r.judgeCompletion(q, &f, false)
	if f.Status == uapi.WCRNRRetryExcErr {
		r.ready(q.responder())
	}
	v.primary, v.why = r.addFor(q, f.Time, what, found, alone, false), alone.why
}

// describeCompletion returns the text of a failed completion.
func describeCompletion(q *qpFacts, f *driver.FailedCompletion) string {
	s := fmt.Sprintf("QP %d: %v", q.ref.Num, f.Status)
	switch {
	case f.Recv:
		return s + fmt.Sprintf(": receive work request %d", f.WRID)
	case f.Status == uapi.WCRetryExcErr, f.Status == uapi.WCRespTimeoutErr:
		return s + fmt.Sprintf(": PSN %d sent %s in %s without an answer", f.PSN, times(f.Attempts),
			formatDuration(f.Time.Sub(f.Since)))
	case f.Status == uapi.WCRNRRetryExcErr:
		return s + fmt.Sprintf(": PSN %d refused %s in %s with an RNR NAK", f.PSN, times(f.Attempts),
			formatDuration(f.Time.Sub(f.Since)))
	case f.Attempts > 0:
		return s + fmt.Sprintf(": %v of %s, PSN %d", f.Opcode, formatBytes(f.Length), f.PSN)
	}
	return s + fmt.Sprintf(": %v, work request %d", f.Opcode, f.WRID)
}

// Query selects causes.
type Query struct {
	// Sees reports whether the asking user may see the causes of a user. All is set for a user who sees both ends.
	Sees func(quota.ID) bool
	All  bool
	Last int       // at most so many, the latest; 0 means no limit
	Now  time.Time // the time, for causes that last; if it is zero, they are omitted
	// Pending are connection requests without an answer at the time Now. They have the event ConnectionUnreachable.
	Pending []FailedConnection
	QP      uint32 // only of this queue pair; 0 means any
	Session string // only of this session; "" means any
}

// Causes returns causes, the oldest first.
func (r *Recorder) Causes(q Query) []qpinfo.Cause {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := []qpinfo.Cause{}
	add := func(c *qpinfo.Cause) {
		if (q.QP == 0 || c.QP == q.QP) && (q.Session == "" || c.Session == q.Session) {
			list = append(list, *c)
		}
	}
	for id, u := range r.users {
		if !q.Sees(id) {
			continue
		}
		for _, e := range u.causes {
			switch {
			case e.hidden && !q.All:
			case q.All && e.full != nil:
				add(e.full)
			default:
				add(&e.own)
			}
		}
	}
	if !q.Now.IsZero() {
		for _, c := range r.lasting(&q) {
			add(&c)
		}
		for i := range q.Pending {
			if f := &q.Pending[i]; q.Sees(f.Program.User) {
				c, _ := r.judgeConnection(f)
				identify(&c, f.Program, r.last+1+uint64(i))
				c.Lasting = true
				add(&c)
			}
		}
	}
	sortCauses(list)
	if q.Last > 0 && len(list) > q.Last {
		list = list[len(list)-q.Last:]
	}
	return list
}
