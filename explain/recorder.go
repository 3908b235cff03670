package explain

import (
	"container/list"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"verbena/driver"
	"verbena/ib"
	"verbena/internal/qpinfo"
	"verbena/internal/quota"
	"verbena/link"
	"verbena/roce"
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

// userCauses are the causes and queue pairs of a user.
type userCauses struct {
	causes  []*entry // a ring once it is full
	next    int      // index of the oldest cause in a full ring
	latest  time.Time
	refused *entry     // latest refused call
	unready []*qpFacts // queue pairs with an unready.id

	// The following lists are in the order in which their elements were added.
	qps    list.List       // *qpFacts of queue pairs that exist
	gone   fifo[*qpFacts]  // destroyed ones that had begun to receive
	unused fifo[*qpFacts]  // destroyed ones that never had
	keys   fifo[regionKey] // keys of ended
	ended  map[regionKey]endedKey
}

// past returns the number of the user's destroyed queue pairs and ended keys.
func (u *userCauses) past() int { return u.gone.len() + u.unused.len() + u.keys.len() }

// fifo is a queue.
type fifo[T any] struct {
	items []T
	head  int // index of the oldest; the items before it are zero
}

func (f *fifo[T]) len() int { return len(f.items) - f.head }

func (f *fifo[T]) push(x T) {
	if len(f.items) == cap(f.items) && f.head > len(f.items)/2 {
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	f.items = append(f.items, x)
}

// pop removes the oldest item. The queue must not be empty.
func (f *fifo[T]) pop() T {
	var zero T
	x := f.items[f.head]
	f.items[f.head] = zero
	f.head++
	return x
}

// retire moves a destroyed queue pair from the existing ones to the past ones.
//
//verbena:held mu
func (r *Recorder) retire(q *qpFacts) {
	if q.elem == nil {
		return
	}
	u := r.user(q.program.User)
	u.qps.Remove(q.elem)
	q.elem = nil
	if q.starts > 0 {
		u.gone.push(q)
	} else {
		u.unused.push(q)
	}
	r.past++
	r.limitPast(u)
}

// limitPast discards the oldest destroyed queue pairs and ended keys beyond the limits. u is the user who got one more.
//
//verbena:held mu
func (r *Recorder) limitPast(u *userCauses) {
	switch l := &r.cfg.Limits; {
	case u.gone.len() > l.Destroyed:
		r.forgetDestroyed(&u.gone)
	case u.unused.len() > max(1, l.Destroyed/4):
		r.forgetDestroyed(&u.unused)
	case u.keys.len() > l.Keys:
		r.forgetKey(u)
	}
	for r.past > r.cfg.Limits.Total {
		most := u
		for _, x := range r.users {
			if x.past() > most.past() {
				most = x
			}
		}
		switch n := most.keys.len(); {
		case most.unused.len() > 0:
			r.forgetDestroyed(&most.unused)
		case n > most.gone.len():
			r.forgetKey(most)
		default:
			r.forgetDestroyed(&most.gone)
		}
	}
}

//verbena:held mu
func (r *Recorder) forgetDestroyed(f *fifo[*qpFacts]) {
	r.forgetQP(f.pop())
	r.past--
}

//verbena:held mu
func (r *Recorder) forgetKey(u *userCauses) {
	delete(u.ended, u.keys.pop())
	r.past--
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
	ref     driver.QPRef
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
	refusal  driver.RefusedRequest
	waiting  unready
	waitsFor *qpFacts // the responder that has no receive for this queue pair; nil if waiting.id of it is 0
	drop     driver.DroppedPackets
	unsent   driver.UnsentPackets
	impaired []ImpairedPackets // the latest, the oldest first; at most maxImpaired
	primary  *entry            // cause of the present error state; flushed work requests count for it
	why      string            // its Why
	byRow    map[string]*entry
}

// deviceFacts are the state of a device, and the last time at which it was lost.
type deviceFacts struct {
	DeviceState
	loss   string // "": it was never lost
	lostAt time.Time
	// The port was down from downAt to upAt because of down; upAt is zero while it is.
	down         string
	downAt, upAt time.Time
	messages     []ImpairedPackets // impaired messages of the connection manager, the oldest first; at most maxMessages
}

// wasDown reports whether the port was down at a time.
func (d *deviceFacts) wasDown(at time.Time) bool {
	return d != nil && d.down != "" && !at.Before(d.downAt) && (d.upAt.IsZero() || at.Before(d.upAt))
}

// DeviceState is the state of a device of this service.
type DeviceState struct {
	Name  string
	Addrs []netip.Addr
	// Down is the name of the device, or of its interface, while it is down; "" if the port is up.
	Down string
	// Lost describes the state in which the device does not work, such as "unplugged"; "" if it works.
	Lost  string
	Since time.Time // when the port went down, or the device was lost
	// Programs are the programs that have opened the device, if it is lost now.
	Programs []Program
}

// SetDevice reports the state of a device. A device that is lost, or removed, has no addresses. SetDevice keeps its
// former ones.
func (r *Recorder) SetDevice(s DeviceState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := &deviceFacts{DeviceState: s}
	if old := r.devices[s.Name]; old != nil {
		for _, a := range old.Addrs {
			if r.byAddr[a] == old {
				delete(r.byAddr, a)
			}
		}
		if s.Lost != "" && len(s.Addrs) == 0 {
			d.Addrs = old.Addrs
		}
		if s.Down == old.Down && s.Lost == old.Lost {
			d.Since = old.Since
		}
		d.loss, d.lostAt = old.loss, old.lostAt
		d.down, d.downAt, d.upAt, d.messages = old.down, old.downAt, old.upAt, old.messages
		if s.Down == "" && old.Down != "" {
			d.upAt = s.Since
		}
		if s.Lost != "" && s.Lost != old.Lost {
			d.loss, d.lostAt = s.Lost, s.Since
			r.deviceLost(d)
		}
	} else if len(r.devices) >= maxDevices {
		r.forgetDevice()
	}
	if d.Down != "" {
		d.down, d.downAt, d.upAt = d.Down, d.Since, time.Time{}
	}
	r.devices[s.Name] = d
	for _, a := range d.Addrs {
		r.byAddr[a] = d
	}
}

// Values of DeviceState.Lost.
const (
	Removed        = "removed"                  // the device no longer exists
	ServiceStopped = "stopped with the service" // the service is ending
)

// maxDevices is the number of devices from which on removed ones are discarded.
const maxDevices = 1024

// forgetDevice discards one removed device.
//
//verbena:held mu
func (r *Recorder) forgetDevice() {
	for name, d := range r.devices {
		if d.Lost == Removed {
			delete(r.devices, name)
			for _, a := range d.Addrs {
				if r.byAddr[a] == d {
					delete(r.byAddr, a)
				}
			}
			return
		}
	}
}

// deviceLost adds a cause for each program that has opened a device that is lost.
//
//verbena:held mu
func (r *Recorder) deviceLost(d *deviceFacts) {
	told := map[Program]bool{}
	for _, p := range d.Programs {
		if told[p] {
			continue
		}
		told[p] = true
		v := judge(lossRow("device-lost", d.loss), &values{device: d.Name, reason: d.loss, since: d.lostAt}, FaultRequester)
		r.add(p, qpinfo.Cause{
			Time: d.lostAt, Row: v.row.Name, What: "device " + d.Name + " lost", Why: v.why, Clause: v.clause, Fault: v.fault,
			Remedy: v.remedy, Since: v.since, Device: d.Name,
		}, nil)
	}
	d.Programs = nil
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
		if u.qps.Len() >= r.cfg.Limits.QPs {
			r.forgetQP(u.qps.Remove(u.qps.Front()).(*qpFacts))
		}
		q.elem = u.qps.PushBack(q)
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
	for e := found.qps.Front(); e != nil; e = e.Next() {
		r.forgetQP(e.Value.(*qpFacts))
	}
	for _, f := range []*fifo[*qpFacts]{&found.gone, &found.unused} {
		for f.len() > 0 {
			r.forgetDestroyed(f)
		}
	}
	r.past -= found.keys.len()
	delete(r.users, oldest)
}

// forgetQP discards the facts of a queue pair. Its number may belong to a later queue pair, also of another user.
//
//verbena:held mu
func (r *Recorder) forgetQP(q *qpFacts) {
	q.elem = nil
	if k := (qpKey{q.ref.Device, q.ref.Num}); r.qps[k] == q {
		delete(r.qps, k)
	}
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
		r.datagramToNoQP(&f)
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
	if e := q.byRowOf(dropRows[f.Reason]); e != nil { // a peer may send many of them
		e.count(f.Packets, 0)
		e.addSource(&f)
		return
	}
	found := judge(dropRows[f.Reason], &values{q: q, device: q.ref.Device}, FaultResponder)
	e := r.addFor(q, f.Time, describeDrop(&f, f.Source.String()), found, found, true)
	e.count(f.Packets-1, 0)
	e.addSource(&f)
}

// maxSources is the number of sources of dropped packets that a cause names.
const maxSources = 8

// describeDrop returns the text of dropped packets.
func describeDrop(f *driver.DroppedPackets, sources string) string {
	return fmt.Sprintf("QP %d: packet from %s dropped: %s, PSN %d", f.QP.Num, sources, f.Opcode, f.PSN)
}

// addSource adds the source of dropped packets to the text of their cause.
func (e *entry) addSource(f *driver.DroppedPackets) {
	if e.more || slices.Contains(e.sources, f.Source) {
		return
	}
	if e.more = len(e.sources) == maxSources; !e.more {
		e.sources = append(e.sources, f.Source)
	}
	if len(e.sources) == 1 {
		return
	}
	var b strings.Builder
	for i, a := range e.sources {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(a.String())
	}
	if e.more {
		b.WriteString(" and others")
	}
	for _, c := range []*qpinfo.Cause{&e.own, e.full} {
		if c != nil {
			c.What = describeDrop(f, b.String())
		}
	}
}

// datagramToNoQP adds a cause for the sender of a datagram, which learns nothing otherwise. The cause is only for users
// who see both ends: others would learn which queue pairs exist.
//
//verbena:held mu
func (r *Recorder) datagramToNoQP(f *driver.DroppedPackets) {
	d := r.byAddr[f.Source]
	if d == nil || f.SourceQP == 0 {
		return
	}
	q := r.qps[qpKey{d.Name, f.SourceQP}]
	if q == nil || q.gone || q.ref.Type != ib.QPTypeUD {
		return
	}
	if e := q.byRowOf("datagram-no-qp"); e != nil {
		e.count(f.Packets, 0)
		return
	}
	x := &values{q: q, device: f.QP.Device, number: f.QP.Num}
	found := judge("datagram-no-qp", x, FaultRequester)
	what := fmt.Sprintf("QP %d: datagram to QP %d of %s dropped: %s, PSN %d", q.ref.Num, f.QP.Num, f.QP.Device, f.Opcode,
		f.PSN)
	e := r.addAs(q.program, q.newCause(f.Time, what, found), nil, r.last+1)
	r.last++
	e.hidden = true
	e.count(f.Packets-1, 0)
	q.addByRow(e)
}

// byRowOf returns the cause of a row that counts repetitions, or nil.
func (q *qpFacts) byRowOf(row string) *entry {
	if q.evidence == nil {
		return nil
	}
	return q.byRow[row]
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

// ImpairedPackets are packets that a fault rule or the shape of a link has dropped, damaged or delayed.
type ImpairedPackets struct {
	Time   time.Time
	Device string
	// QP is the queue pair of the device that sent the packets, or that would have received them.
	link.Impairment
}

// maxImpaired bounds evidence.impaired. A request without an answer is sent 8 times at most.
const maxImpaired = 32

// maxMessages bounds deviceFacts.messages.
const maxMessages = 64

// managerQPN is the number of the queue pair of the connection manager (IBA 3.9.3).
const managerQPN = 1

// PacketsImpaired reports packets that fault rules, or the shape of a link, have impaired.
func (r *Recorder) PacketsImpaired(f ImpairedPackets) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.devices[f.Device]; d != nil && f.QP == managerQPN {
		d.messages = appendLimited(d.messages, f, maxMessages)
		return
	}
	if q := r.qps[qpKey{f.Device, f.QP}]; q != nil {
		v := q.failures()
		v.impaired = appendLimited(v.impaired, f, maxImpaired)
	}
}

// appendLimited appends to a list, which loses its older half first if it has limit items.
func appendLimited(list []ImpairedPackets, f ImpairedPackets, limit int) []ImpairedPackets {
	if len(list) >= limit {
		list = slices.Delete(list, 0, limit/2)
	}
	return append(list, f)
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
