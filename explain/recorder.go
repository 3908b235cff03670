package explain

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"verbena/driver"
	"verbena/ib"
	"verbena/internal/qpinfo"
	"verbena/internal/quota"
	"verbena/roce"
	"verbena/uapi"
)

// Limits bounds the memory of a Recorder. A cause takes up to 1 KB, and a queue pair up to 1.5 KB after its
// first failure and 300 bytes before.
type Limits struct {
	Causes int // causes of one user; 0 means 1000
	QPs    int // queue pairs of one user, with destroyed ones; 0 means 4096
	Users  int // 0 means 256. The causes of the user whose latest cause is the oldest are discarded
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

// Config configures a Recorder.
type Config struct {
	Limits Limits
	// Program returns the program of a context. The Recorder ignores queue pairs without a program. It must not sleep.
	Program func(ib.UserContext) (Program, bool)
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

	rejections map[netip.AddrPort]rejection // by the address of the rejected end; at most maxNoQP
}

// maxNoQP bounds Recorder.noQP, because any host can send such packets.
const maxNoQP = 256

// New returns an empty Recorder.
func New(cfg Config) *Recorder {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&cfg.Limits.Causes, 1000)
	def(&cfg.Limits.QPs, 4096)
	def(&cfg.Limits.Users, 256)
	return &Recorder{cfg: cfg, users: map[quota.ID]*userCauses{}, qps: map[qpKey]*qpFacts{},
		devices: map[string]*deviceFacts{}, byAddr: map[netip.Addr]*deviceFacts{}, noQP: map[qpKey]driver.DroppedPackets{},
		rejections: map[netip.AddrPort]rejection{}}
}

var _ driver.Observer = (*Recorder)(nil)

type qpKey struct {
	device string
	num    uint32
}

// userCauses are the causes and queue pairs of a user.
type userCauses struct {
	causes  []*entry   // a ring once it is full
	next    int        // index of the oldest cause in a full ring
	qps     []*qpFacts // in order of their creation
	latest  time.Time
	refused *entry // latest refused call
}

// entry is a cause in the form for its user, and for a user who sees both ends.
type entry struct {
	own  qpinfo.Cause
	full *qpinfo.Cause // nil: equal to own
}

// qpFacts are the latest facts of a queue pair.
type qpFacts struct {
	ref     driver.QPRef
	program Program
	changed time.Time // when the state changed
	cause   driver.StateCause
	gone    bool
	*evidence
}

// evidence are the failures of a queue pair. A zero Time means that there was none.
type evidence struct {
	refusal  driver.RefusedRequest
	notReady struct {
		first time.Time
		n     int
	}
	drop    driver.DroppedPackets
	unsent  driver.UnsentPackets
	lost    LostPackets
	lostN   int
	primary *entry // cause of the present error state; flushed work requests count for it
	why     string // its Why
	byRow   map[string]*entry
}

// deviceFacts are the state of a device.
type deviceFacts struct {
	DeviceState
}

// DeviceState is the state of a device of this service.
type DeviceState struct {
	Name  string
	Addrs []netip.Addr
	// Down is set while the port is down.
	Down bool
	// Lost describes the state in which the device does not work, such as "unplugged"; "" if it works.
	Lost  string
	Since time.Time // when the port went down, or the device was lost
}

// SetDevice reports the state of a device. With remove the device no longer exists.
func (r *Recorder) SetDevice(s DeviceState, remove bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.devices[s.Name]; old != nil {
		for _, a := range old.Addrs {
			if r.byAddr[a] == old {
				delete(r.byAddr, a)
			}
		}
		if s.Down == old.Down && s.Lost == old.Lost {
			s.Since = old.Since
		}
	}
	if remove {
		delete(r.devices, s.Name)
		return
	}
	d := &deviceFacts{s}
	r.devices[s.Name] = d
	for _, a := range s.Addrs {
		r.byAddr[a] = d
	}
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
		q = &qpFacts{ref: ref, program: p}
		u := r.user(p.User)
		if len(u.qps) >= r.cfg.Limits.QPs {
			r.forgetQP(u.qps[0])
			u.qps = append(u.qps[:0], u.qps[1:]...)
		}
		u.qps = append(u.qps, q)
		r.qps[k] = q
	}
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

// failures returns the evidence of the queue pair, which it creates.
func (q *qpFacts) failures() *evidence {
	if q.evidence == nil {
		q.evidence = &evidence{}
	}
	return q.evidence
}

// user returns the causes of a user, which it creates.
//
//verbena:held mu
func (r *Recorder) user(id quota.ID) *userCauses {
	u := r.users[id]
	if u == nil {
		if len(r.users) >= r.cfg.Limits.Users {
			r.forgetUser()
		}
		u = &userCauses{}
		r.users[id] = u
	}
	return u
}

// forgetUser discards the facts of the user whose latest cause is the oldest.
//
//verbena:held mu
func (r *Recorder) forgetUser() {
	var oldest quota.ID
	var found *userCauses
	for id, u := range r.users {
		if found == nil || u.latest.Before(found.latest) {
			oldest, found = id, u
		}
	}
	for _, q := range found.qps {
		r.forgetQP(q)
	}
	delete(r.users, oldest)
}

// forgetQP discards the facts of a queue pair. Its number may belong to a later queue pair, also of another user.
//
//verbena:held mu
func (r *Recorder) forgetQP(q *qpFacts) {
	if k := (qpKey{q.ref.Device, q.ref.Num}); r.qps[k] == q {
		delete(r.qps, k)
	}
}

// add adds a cause.
//
//verbena:held mu
func (r *Recorder) add(p Program, own qpinfo.Cause, full *qpinfo.Cause) *entry {
	r.last++
	identify := func(c *qpinfo.Cause) {
		c.ID, c.Count = r.last, 1
		c.PID, c.Process, c.Session, c.UID, c.Container = p.PID, p.Name, p.Session, p.User.UID, p.User.Container
	}
	identify(&own)
	e := &entry{own: own, full: full}
	if full != nil {
		identify(full)
	}
	u := r.user(p.User)
	u.latest = own.Time
	if len(u.causes) < r.cfg.Limits.Causes {
		u.causes = append(u.causes, e)
	} else {
		u.causes[u.next] = e
		u.next = (u.next + 1) % len(u.causes)
	}
	if r.cfg.Found != nil {
		r.cfg.Found(&e.own)
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
		if v.byRow == nil {
			v.byRow = map[string]*entry{}
		}
		v.byRow[found.row.Name] = e
	}
	return e
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
	q.changed, q.cause, q.gone = s.Time, s.Cause, s.Cause.Reason == driver.ByDestroy
	if q.gone {
		if p, ok := r.program(s.QP.Context); ok {
			q.program.Ending = p.Ending
		}
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
	v := q.failures()
	v.refusal = f
	if f.Answered && f.Syndrome.IsRNR() {
		if v.notReady.n == 0 || f.Time.Sub(v.notReady.first) > notReadyWindow {
			v.notReady.first, v.notReady.n = f.Time, 0
		}
		v.notReady.n++
		return
	}
	if e := q.byRow[q.refusalRow(&f)]; e != nil && !f.Answered { // a peer may send many of them
		e.count(1, 0)
		return
	}
	found := q.judgeRefusal(&f)
	if !f.Answered {
		what := fmt.Sprintf("QP %d: %s dropped, PSN %d", q.ref.Num, f.Opcode, f.PSN)
		r.addFor(q, f.Time, what, found, found, true)
		return
	}
	what := fmt.Sprintf("QP %d refused a request of its peer: %s, PSN %d", q.ref.Num, describeRequest(&f), f.PSN)
	v.primary, v.why = r.addFor(q, f.Time, what, found, found, false), found.why
}

// notReadyWindow is the time after which RNR NAKs are counted anew.
const notReadyWindow = time.Minute

// describeRequest names a refused request. The responder knows no opcode if it has accepted the packet before.
func describeRequest(f *driver.RefusedRequest) string {
	if f.Late {
		return "data could not be stored or read"
	}
	return f.Opcode.String()
}

// PacketsDropped implements driver.Observer.
func (r *Recorder) PacketsDropped(f driver.DroppedPackets) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.Reason == driver.DropNoQP {
		k := qpKey{f.QP.Device, f.QP.Num}
		if _, ok := r.noQP[k]; !ok && len(r.noQP) >= maxNoQP {
			for old := range r.noQP {
				delete(r.noQP, old)
				break
			}
		}
		r.noQP[k] = f
		return
	}
	q := r.facts(f.QP)
	if q == nil {
		return
	}
	q.failures().drop = f
	if f.Opcode.Has(roce.FlagResponse) || q.ref.State == ib.QPErr {
		return // the rest of a connection that has failed
	}
	if e := q.byRow[dropRows[f.Reason]]; e != nil { // a peer may send many of them
		e.count(f.Packets, 0)
		return
	}
	what := fmt.Sprintf("QP %d: packet from %s dropped: %s, PSN %d", q.ref.Num, f.Source, f.Opcode, f.PSN)
	found := judge(dropRows[f.Reason], &values{q: q, device: q.ref.Device}, FaultResponder)
	e := r.addFor(q, f.Time, what, found, found, true)
	e.count(f.Packets-1, 0)
}

// PacketsUnsent implements driver.Observer.
func (r *Recorder) PacketsUnsent(f driver.UnsentPackets) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.facts(f.QP)
	if q == nil {
		return
	}
	q.failures().unsent = f
	if q.ref.Type == ib.QPTypeRC || q.ref.Type == ib.QPTypeXRCInit || q.ref.Type == ib.QPTypeXRCTgt {
		return // the work request fails if no retransmission is sent
	}
	found := r.judgeUnsent(q, &f)
	e := r.addFor(q, f.Time, fmt.Sprintf("QP %d: packets were not sent", q.ref.Num), found, found, true)
	e.count(f.Packets-1, 0)
}

// LostPackets is a run of packets that a fault rule has dropped.
type LostPackets struct {
	Time   time.Time
	Device string
	// QP is the queue pair of the device that sent the packets, or that would have received them.
	QP      uint32
	Packets int
}

// PacketsLost reports packets that a fault rule has dropped.
func (r *Recorder) PacketsLost(f LostPackets) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.qps[qpKey{f.Device, f.QP}]; q != nil {
		v := q.failures()
		v.lost = f
		v.lostN += f.Packets
	}
}

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
	v.primary, v.why = r.addFor(q, f.Time, what, found, alone, false), alone.why
}

// describeCompletion returns the text of a failed completion.
func describeCompletion(q *qpFacts, f *driver.FailedCompletion) string {
	s := fmt.Sprintf("QP %d: %v", q.ref.Num, f.Status)
	switch {
	case f.Recv:
		return s + fmt.Sprintf(": receive work request %d", f.WRID)
	case f.Status == uapi.WCRetryExcErr:
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
	Sees    func(quota.ID) bool
	All     bool
	Last    int    // at most so many, the latest; 0 means no limit
	QP      uint32 // only of this queue pair; 0 means any
	Session string // only of this session; "" means any
}

// Causes returns causes, the oldest first.
func (r *Recorder) Causes(q Query) []qpinfo.Cause {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := []qpinfo.Cause{}
	for id, u := range r.users {
		if !q.Sees(id) {
			continue
		}
		for _, e := range u.causes {
			c := &e.own
			if q.All && e.full != nil {
				c = e.full
			}
			if (q.QP == 0 || c.QP == q.QP) && (q.Session == "" || c.Session == q.Session) {
				list = append(list, *c)
			}
		}
	}
	sortCauses(list)
	if q.Last > 0 && len(list) > q.Last {
		list = list[len(list)-q.Last:]
	}
	return list
}
