package reqtrace

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"verbena/driver"
	"verbena/ib"
	"verbena/internal/perfetto"
	"verbena/rdmacm"
	"verbena/rdmacm/msg"
	"verbena/roce"
	"verbena/uapi"
)

// Mark is an event that the client adds to a trace, on a track of its own.
type Mark struct {
	Time time.Time
	Text string
}

// Summary describes a written trace.
type Summary struct {
	Events   int    // in the trace
	Lost     uint64 // older events that the trace had no room for
	Untraced uint32 // queues that the trace had no room for
}

// Write reads the memory of a trace, and writes the trace for Perfetto's viewer, one message of the format in each call
// of w. end is the time of the end of the trace. Each program has a track. Below it, tracks show:
//
//   - send work requests and receives as slices, from the post to the poll of the completion, with their phases
//   - the states of queue pairs as slices
//   - retransmissions, refusals, losses and asynchronous events as instants
//   - arms, notifications and completions of completion queues as instants
//   - events of the connection manager as instants
//   - the numbers of requests in the queues
//
// Arrows lead from a message to the receive that took it, and from each request to its completion. The engine sees
// that completions were polled when it next accesses the completion queue; the time of the poll is an upper bound.
// Write accepts any memory.
func Write(w io.Writer, mem io.ReaderAt, end time.Time, marks []Mark) (Summary, error) {
	m, err := readMemory(mem)
	if err != nil {
		return Summary{}, fmt.Errorf("read trace: %w", err)
	}
	x := newWriter(perfetto.New(w), m, end.UnixNano())
	x.writeMarks(marks)
	for i := range m.events {
		x.event(&m.events[i])
	}
	x.finish()
	s := Summary{Events: len(m.events), Lost: m.lost, Untraced: m.untraced}
	if err := x.t.Err(); err != nil {
		return s, fmt.Errorf("write trace: %w", err)
	}
	return s, nil
}

// readMemory reads the table and the events. It omits events that a thread has not written completely.
func readMemory(from io.ReaderAt) (*memory, error) {
	b := make([]byte, Size)
	if n, err := from.ReadAt(b, 0); n < len(b) {
		return nil, err
	}
	if string(b[:len(magic)]) != magic {
		return nil, errNoTrace
	}
	m := &memory{queues: make([]queueEntry, 1), untraced: binary.LittleEndian.Uint32(b[headerUntraced:])}
	for i := 1; i < maxQueues; i++ {
		var q queueEntry
		if !q.decode(b[headerSize+i*queueSize:][:queueSize]) {
			break
		}
		m.queues = append(m.queues, q)
	}
	last := uint64(0)
	for i := range MaxEvents {
		e := b[ringStart+i*eventSize:][:eventSize]
		seq := binary.LittleEndian.Uint64(e)
		if seq == 0 || (seq-1)%MaxEvents != uint64(i) {
			continue
		}
		last = max(last, seq)
		var r record
		if r.decode(e); int(r.queue) < len(m.queues) && int(r.cq) < len(m.queues) && r.queue != 0 {
			m.events = append(m.events, r)
		}
	}
	if last > MaxEvents {
		m.lost = last - MaxEvents
	}
	slices.SortFunc(m.events, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.seq, b.seq))
	})
	return m, nil
}

// request is a send work request or a receive.
type request struct {
	queue      *queueState
	recv       bool
	name       string
	wrid       uint64
	number     uint32
	length     uint32
	psn        uint32
	packets    uint32
	reads      uint8
	flags      uint8
	status     uapi.WCStatus
	posted     int64 // 0: not known
	began      int64 // first packet; 0: none
	done       int64 // 0: not done
	polled     int64 // 0: not polled
	position   uint32
	cq         *queueState
	flows      []perfetto.Flow
	discarded  string // the reason for an end without a completion
	discardedA int64
}

// queueState is a queue while the trace is written.
type queueState struct {
	*queueEntry

	events, stateTrack, completions perfetto.Track
	requests, receives              *perfetto.TrackGroup
	sends, recvs, waiting           perfetto.Track // counters

	open        map[uint32]*request // by number
	announced   uint32              // number behind the last request of RequestsWait
	unsent      []wait
	local, peer netip.Addr
	state       ib.QPState
	since       int64 // begin of the state
	destroyed   int64
	why         string

	pending  []*request // completions that were not polled, by position
	consumed uint32
}

// wait is a number of requests that wait for their first packet.
type wait struct {
	end    uint32 // number behind the last one
	posted int64
}

// messageKey identifies a message on both sides of a connection.
type messageKey struct{ from, to, psn uint32 }

// writer writes a trace.
type writer struct {
	t        *perfetto.Trace
	m        *memory
	first    int64
	end      int64
	queues   []*queueState
	programs map[uint32]perfetto.Track
	requests []*request
	messages map[messageKey][]*request
	cqs      int
}

func newWriter(t *perfetto.Trace, m *memory, end int64) *writer {
	x := &writer{t: t, m: m, end: end, programs: map[uint32]perfetto.Track{}, messages: map[messageKey][]*request{},
		queues: make([]*queueState, len(m.queues))}
	if len(m.events) > 0 {
		x.first = m.events[0].time
		x.end = max(x.end, m.events[len(m.events)-1].time)
	} else {
		x.first = end
	}
	if m.lost > 0 || m.untraced > 0 {
		track := t.Track(perfetto.Track{}, "trace")
		if m.lost > 0 {
			track.Instant(at(x.first), perfetto.Event{Name: fmt.Sprintf(
				"%d earlier events were dropped: the trace holds the latest %d", m.lost, MaxEvents)})
		}
		if m.untraced > 0 {
			track.Instant(at(x.first), perfetto.Event{Name: fmt.Sprintf(
				"%d queues are not in the trace: it holds %d", m.untraced, maxQueues-1)})
		}
	}
	return x
}

func at(ns int64) time.Time { return time.Unix(0, ns) }

func (x *writer) writeMarks(marks []Mark) {
	if len(marks) == 0 {
		return
	}
	track := x.t.Track(perfetto.Track{}, "scenario")
	for _, m := range marks {
		track.Instant(m.Time, perfetto.Event{Name: m.Text})
	}
}

// queue returns the state of a queue, with its tracks.
func (x *writer) queue(id uint16) *queueState {
	if q := x.queues[id]; q != nil {
		return q
	}
	q := &queueState{queueEntry: &x.m.queues[id], open: map[uint32]*request{}}
	x.queues[id] = q
	if q.kind == kindOfDevice {
		q.events = x.t.Track(perfetto.Track{}, "device "+q.device)
		return q
	}
	top, ok := x.programs[q.pid]
	if !ok {
		top = x.t.Track(perfetto.Track{}, fmt.Sprintf("%s[%d]", q.program, q.pid))
		x.programs[q.pid] = top
	}
	if q.kind == kindOfManager {
		q.events = x.t.Track(top, "connection manager")
		return q
	}
	switch driver.QueueKind(q.kind) {
	case driver.CompletionQueue:
		x.cqs++
		track := x.t.Track(top, fmt.Sprintf("CQ %d of %s, %d entries", x.cqs, q.device, q.entries))
		q.events = x.t.Track(track, "arms and events")
		q.completions = x.t.Track(track, "completions")
		q.waiting = x.t.Counter(track, "completions in the queue", "completions")
	case driver.SharedReceiveQueue:
		track := x.t.Track(top, fmt.Sprintf("SRQ %d of %s, %d entries", q.num, q.device, q.entries))
		q.events = x.t.Track(track, "events")
		q.recvs = x.t.Counter(track, "receives left", "receives")
	default:
		track := x.t.Track(top, fmt.Sprintf("QP %d of %s, %v", q.num, q.device, q.typ))
		q.stateTrack = x.t.Track(track, "state")
		q.events = x.t.Track(track, "events")
		q.requests = x.t.Group(track, "send work requests")
		q.receives = x.t.Group(track, "receives")
		q.sends = x.t.Counter(track, "send queue", "requests")
		if q.srq == 0 {
			q.recvs = x.t.Counter(track, "receives left", "receives")
		}
	}
	return q
}

// queueNumbered returns a queue that an entry of the table names, or nil.
func (x *writer) queueNumbered(id uint16) *queueState {
	if id == 0 || int(id) >= len(x.m.queues) {
		return nil
	}
	return x.queue(id)
}

// event writes an event, or adds it to its request.
func (x *writer) event(r *record) {
	q := x.queue(r.queue)
	when := at(r.time)
	qp := q.requests != nil
	switch {
	case r.kind == kindDevice:
		q.events.Instant(when, perfetto.Event{Name: r.text})
		return
	case r.kind == kindConnection:
		q.events.Instant(when, r.connection.event())
		return
	case q.kind == kindOfDevice, q.kind == kindOfManager:
		return
	}
	switch kind := driver.RequestEventKind(r.kind); {
	case kind == driver.QueueArmed, kind == driver.QueuePolled:
		x.consume(q, r.x[xConsumed], r.time)
		if kind == driver.QueueArmed {
			q.events.Instant(when, perfetto.Event{Name: armName(r)})
		}
	case kind == driver.QueueEvent:
		q.events.Instant(when, perfetto.Event{Name: "event: " + ib.EventType(r.x[xCount]).String()})
	case kind == driver.QueueDestroyed:
		q.destroyed = r.time
		q.events.Instant(when, perfetto.Event{Name: "destroyed"})
	case !qp: // the other kinds are of queue pairs
	case r.kind == kindState:
		x.state(q, r)
	case kind == driver.RequestsWait:
		q.announced = r.x[xNumber]
		q.unsent = append(q.unsent, wait{r.x[xNumber], r.began})
		q.sends.Count(when, int64(r.depth))
	case kind == driver.RequestStarted:
		x.started(q, r)
	case kind == driver.RequestDone:
		x.sendDone(q, r)
	case kind == driver.ReceiveDone:
		x.receiveDone(q, r)
	default:
		x.failure(q, r)
	}
}

// armName returns the name of an arm. An arm with completions in the queue notifies only of later completions.
func armName(r *record) string {
	name := "armed"
	if r.flags&driver.FlagSolicited != 0 {
		name = "armed for solicited completions"
	}
	if r.depth > 0 {
		name += fmt.Sprintf(" with %d completions in the queue", r.depth)
	}
	return name
}

// event returns the event for the trace.
func (c *ConnectionEvent) event() perfetto.Event {
	e := perfetto.Event{Name: fmt.Sprintf("ID %d: %v", c.ID, c.Type)}
	switch {
	case c.Type == rdmacm.Rejected:
		e.Name += ": " + msg.RejectReason(c.Status).String()
	case c.Status < 0:
		e.Name += ": " + syscall.Errno(-c.Status).Error()
	case c.Status > 0:
		e.Name += fmt.Sprintf(", status %d", c.Status)
	}
	if a := c.Peer.Addr(); a.IsValid() && !a.IsUnspecified() {
		e.Attrs = append(e.Attrs, perfetto.Attr{Name: "peer", Text: c.Peer.String()})
	}
	if c.QPN != 0 {
		e.Attrs = append(e.Attrs, perfetto.Attr{Name: "queue pair", Number: uint64(c.QPN)})
	}
	if c.PeerQPN != 0 {
		e.Attrs = append(e.Attrs, perfetto.Attr{Name: "peer's queue pair", Number: uint64(c.PeerQPN)})
	}
	return e
}

// Names of the reasons, by their values.
var (
	repeatNames = [driver.NumRepeatCauses]string{
		driver.RepeatNAK: "NAK", driver.RepeatTimeout: "timeout", driver.RepeatProbe: "probe",
	}
	dropNames = [driver.NumDropReasons]string{
		driver.DropMalformed: "malformed", driver.DropNoQP: "no such queue pair", driver.DropService: "other service",
		driver.DropPKey: "wrong partition key", driver.DropState: "the queue pair does not receive in its state",
		driver.DropSource: "not from the peer", driver.DropQKey: "wrong Q_Key", driver.DropPort: "port down",
		driver.DropStalled: "the memory of the program does not respond",
	}
)

// nameOf returns a name of a table, or "unknown".
func nameOf(table []string, i uint8) string {
	if int(i) < len(table) {
		return table[i]
	}
	return "unknown"
}

func (x *writer) failure(q *queueState, r *record) {
	count := r.x[xCount]
	psn := perfetto.Attr{Name: "PSN", Number: uint64(r.x[xPSN])}
	e := perfetto.Event{Attrs: []perfetto.Attr{psn}}
	switch r.kind {
	case uint8(driver.RequestsRepeated):
		e.Name = "retransmission: " + nameOf(repeatNames[:], r.opcode)
		e.Attrs = append(e.Attrs, perfetto.Attr{Name: "retries left", Number: uint64(count)})
	case uint8(driver.RequestsDelayed):
		e.Name = fmt.Sprintf("RNR NAK: sends again after %v", time.Duration(count)*time.Microsecond)
	case kindRefused:
		e.Name = x.refusal(q, r)
	case kindDropped:
		e.Name = fmt.Sprintf("packets dropped: %d, %s", count, nameOf(dropNames[:], r.opcode))
	case kindUnsent:
		e.Name, e.Attrs = fmt.Sprintf("packets not sent: %d", count), nil
	case kindRuled:
		e.Name, e.Attrs = fmt.Sprintf("packets dropped by a fault rule: %d", count), nil
	default:
		return
	}
	q.events.Instant(at(r.time), e)
}

// refusal returns the name of a refused request, and shows an empty receive queue.
func (x *writer) refusal(q *queueState, r *record) string {
	switch driver.Rule(r.opcode) {
	case driver.RuleNoReceive:
		s := x.queueNumbered(q.srq)
		if s == nil {
			q.recvs.Count(at(r.time), 0)
			return "request refused: no receive is posted"
		}
		if driver.QueueKind(s.kind) == driver.SharedReceiveQueue {
			s.recvs.Count(at(r.time), 0)
		}
		return fmt.Sprintf("request refused: no receive is posted to SRQ %d", s.num)
	case driver.RuleInjected:
		return "request refused: a fault rule"
	case driver.RuleReceiveLength:
		return "request refused: the receive is too short"
	}
	if r.x[xCount] == 0 {
		return "request dropped"
	}
	return "request refused: " + roce.Syndrome(r.x[xCount]-1).String()
}

// state ends the slice of the previous state.
func (x *writer) state(q *queueState, r *record) {
	if r.peer.IsValid() && !r.peer.IsUnspecified() {
		q.local, q.peer = r.local, r.peer
	}
	x.endState(q, r.time)
	q.state, q.since = r.to, r.time
	reason := driver.StateCause{Reason: driver.StateReason(r.reason), Status: r.wcStatus()}
	q.why = ""
	if r.from != r.to {
		q.why = reason.String()
	}
	if r.reason == uint8(driver.ByDestroy) {
		q.since, q.destroyed = 0, r.time
		q.events.Instant(at(r.time), perfetto.Event{Name: "destroyed"})
	}
	if r.to == ib.QPReset && r.from != r.to || q.destroyed != 0 {
		what := "discarded by RESET"
		if q.destroyed != 0 {
			what = "discarded: the queue pair was destroyed"
		}
		for _, m := range q.open {
			m.discarded, m.discardedA = what, r.time
		}
		clear(q.open)
		x.endWaits(q, r.time, what)
		q.announced = 0
	}
}

func (x *writer) endState(q *queueState, when int64) {
	if q.since == 0 {
		return
	}
	e := perfetto.Event{Name: q.state.String()}
	if q.why != "" {
		e.Attrs = []perfetto.Attr{{Name: "reason", Text: q.why}}
	}
	q.stateTrack.Slice(at(q.since), at(when), e)
	q.since = 0
}

// endWaits shows the requests that were never sent.
func (x *writer) endWaits(q *queueState, when int64, why string) {
	for _, w := range q.unsent {
		x.requests = append(x.requests, &request{queue: q, name: "work requests that were not sent", number: w.end - 1,
			posted: w.posted, discarded: why, discardedA: when})
	}
	q.unsent = nil
}

// postedAt returns the time of the post of a request, and forgets the waits before it.
func (q *queueState) postedAt(number uint32) (posted int64) {
	for len(q.unsent) > 0 && int32(q.unsent[0].end-number) <= 0 {
		q.unsent = q.unsent[1:]
	}
	if len(q.unsent) == 0 {
		return 0
	}
	posted = q.unsent[0].posted
	if q.unsent[0].end == number+1 {
		q.unsent = q.unsent[1:]
	}
	return posted
}

func (x *writer) started(q *queueState, r *record) {
	number := r.x[xNumber]
	m := &request{queue: q, name: opcodeName(r.opcode), wrid: r.wrid, number: number, length: r.length, psn: r.x[xPSN],
		packets: r.x[xPackets], reads: r.status, flags: r.flags, posted: r.began, began: r.time}
	if p := q.postedAt(number); m.posted == 0 {
		m.posted = cmp.Or(p, r.time)
	}
	q.open[number] = m
	x.requests = append(x.requests, m)
	q.sends.Count(at(r.time), int64(r.depth))
	switch uapi.WROpcode(r.opcode) {
	case uapi.WRSend, uapi.WRSendWithImm, uapi.WRSendWithInv, uapi.WRRDMAWriteWithImm:
		k := messageKey{q.num, r.x[xPeer], (m.psn + m.packets - 1) & roce.PSNMask}
		list := append(x.messages[k], m)
		if len(list) > maxSame {
			list = list[1:]
		}
		x.messages[k] = list
	}
}

// maxSame is the number of messages with the same queue pairs and PSN, on different devices or after 2^24 packets,
// among which a receive finds its own.
const maxSame = 4

func (x *writer) sendDone(q *queueState, r *record) {
	number := r.x[xNumber]
	m := q.open[number]
	if m == nil || number == driver.NoNumber {
		m = &request{queue: q, name: opcodeName(r.opcode), wrid: r.wrid, number: number, length: r.length, posted: r.began,
			began: r.began}
		if number != driver.NoNumber {
			m.posted = cmp.Or(q.postedAt(number), m.posted)
		}
		m.posted = cmp.Or(m.posted, r.time)
		x.requests = append(x.requests, m)
	}
	if number == driver.NoNumber {
		q.unsent = nil // everything that waits is flushed
	}
	delete(q.open, number)
	q.sends.Count(at(r.time), int64(r.depth))
	x.done(m, r)
}

func (x *writer) receiveDone(q *queueState, r *record) {
	m := &request{queue: q, recv: true, name: "receive", wrid: r.wrid, length: r.length, psn: r.x[xPSN], posted: r.began,
		began: r.began}
	if m.posted == 0 {
		m.posted = r.time
	}
	x.requests = append(x.requests, m)
	left := q
	if r.flags&driver.FlagShared != 0 {
		left = x.queueNumbered(q.srq)
	}
	if left != nil && (q.srq == 0 || driver.QueueKind(left.kind) == driver.SharedReceiveQueue) {
		left.recvs.Count(at(r.time), int64(r.depth))
	}
	if s := r.wcStatus(); s == uapi.WCSuccess {
		if from := x.messageTo(q, r); from != nil {
			f := x.t.NewFlow()
			from.flows, m.flows = append(from.flows, f), append(m.flows, f)
		}
	}
	x.done(m, r)
}

// messageTo returns the message that a receive has taken, or nil.
func (x *writer) messageTo(q *queueState, r *record) *request {
	list := x.messages[messageKey{r.x[xSource], q.num, r.x[xPSN]}]
	for i := len(list) - 1; i >= 0; i-- {
		from := list[i].queue
		if q.peer.IsValid() && from.local.IsValid() && (q.peer != from.local || q.local != from.peer) {
			continue
		}
		return list[i]
	}
	return nil
}

// done ends a request, and adds its completion to the completion queue.
func (x *writer) done(m *request, r *record) {
	m.done, m.status = r.time, r.wcStatus()
	m.flags |= r.flags
	cq := x.queueNumbered(r.cq)
	if cq == nil || driver.QueueKind(cq.kind) != driver.CompletionQueue {
		if r.flags&driver.FlagLost != 0 {
			m.discarded, m.discardedA = "the completion was lost", r.time
		}
		return
	}
	x.consume(cq, r.x[xConsumed], r.time)
	m.cq, m.position = cq, r.x[xPosition]
	i := len(cq.pending)
	for i > 0 && int32(m.position-cq.pending[i-1].position) < 0 {
		i--
	}
	cq.pending = slices.Insert(cq.pending, i, m)
	cq.waiting.Count(at(r.time), int64(int32(m.position+1-cq.consumed)))
	f := x.t.NewFlow()
	m.flows = append(m.flows, f)
	cq.completions.Instant(at(r.time), perfetto.Event{Name: "completion: " + m.title(), Flows: []perfetto.Flow{f},
		Attrs: []perfetto.Attr{{Name: "wr_id", Number: m.wrid}, {Name: "queue pair", Number: uint64(m.queue.num)}}})
	if r.flags&driver.FlagNotified != 0 {
		cq.events.Instant(at(r.time), perfetto.Event{Name: "notified"})
	}
}

// consume notes that the completions before a position were polled.
func (x *writer) consume(cq *queueState, consumed uint32, when int64) {
	if int32(consumed-cq.consumed) <= 0 || driver.QueueKind(cq.kind) != driver.CompletionQueue {
		return
	}
	n := 0
	for ; n < len(cq.pending) && int32(cq.pending[n].position-consumed) < 0; n++ {
		cq.pending[n].polled = when
	}
	cq.pending = cq.pending[n:]
	cq.consumed = consumed
	cq.waiting.Count(at(when), int64(len(cq.pending)))
}

func opcodeName(op uint8) string {
	return strings.ReplaceAll(uapi.WROpcode(op).String(), "_", " ")
}

// title returns the name of a slice.
func (m *request) title() string {
	if m.done != 0 && m.status != uapi.WCSuccess {
		return m.name + ": " + m.status.String()
	}
	return m.name
}

// finish writes the slices of requests and states.
func (x *writer) finish() {
	for _, q := range x.queues {
		if q != nil && q.requests != nil {
			x.endState(q, x.end)
			x.endWaits(q, x.end, "not sent at the end of the trace")
		}
	}
	slices.SortStableFunc(x.requests, func(a, b *request) int { return cmp.Compare(a.posted, b.posted) })
	for _, m := range x.requests {
		x.slice(m)
	}
}

// slice writes a request with its phases.
func (x *writer) slice(m *request) {
	end, last := x.end, "completed, never polled"
	switch {
	case m.discarded != "":
		end = m.discardedA
	case m.polled != 0:
		end, last = m.polled, "completed, not polled"
	case m.done != 0 && m.cq == nil:
		end = m.done
	case m.cq != nil && m.cq.destroyed != 0:
		end = m.cq.destroyed
	}
	g := m.queue.requests
	if m.recv {
		g = m.queue.receives
	}
	end = max(end, m.posted)
	track, ok := g.Slice(at(m.posted), at(end), perfetto.Event{Name: m.title(), Attrs: m.attrs(), Flows: m.flows})
	if !ok {
		return
	}
	// The threads' clocks may differ a little: the phases follow one another within the slice.
	from := m.posted
	phase := func(name string, to int64) {
		if to = min(to, end); to > from {
			track.Slice(at(from), at(to), perfetto.Event{Name: name})
			from = to
		}
	}
	switch {
	case m.recv:
		phase("message arrives", m.done)
	default:
		phase("waits in the send queue", cmp.Or(m.began, m.done, end))
		if m.began != 0 {
			phase("in flight", cmp.Or(m.done, end))
		}
	}
	if m.cq != nil {
		phase(last, end)
	}
}

func (m *request) attrs() []perfetto.Attr {
	list := []perfetto.Attr{{Name: "wr_id", Number: m.wrid}, {Name: "bytes", Number: uint64(m.length)}}
	if m.packets > 0 || m.recv {
		list = append(list, perfetto.Attr{Name: "PSN", Number: uint64(m.psn)})
	}
	if m.packets > 1 {
		list = append(list, perfetto.Attr{Name: "packets", Number: uint64(m.packets)})
	}
	if m.flags&driver.FlagFenced != 0 {
		list = append(list, perfetto.Attr{Name: "fence", Text: "yes"})
	}
	if m.reads > 0 {
		list = append(list, perfetto.Attr{Name: "sent before READs and atomics were complete", Number: uint64(m.reads)})
	}
	switch {
	case m.discarded != "":
		list = append(list, perfetto.Attr{Name: "result", Text: m.discarded})
	case m.done == 0:
		list = append(list, perfetto.Attr{Name: "result", Text: "not complete at the end of the trace"})
	case m.status != uapi.WCSuccess:
		list = append(list, perfetto.Attr{Name: "result", Text: m.status.String()})
	case m.cq == nil && m.flags&driver.FlagSignaled == 0 && !m.recv:
		list = append(list, perfetto.Attr{Name: "result", Text: "complete, without a completion (unsignaled)"})
	}
	return list
}
