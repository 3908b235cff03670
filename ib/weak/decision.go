package weak

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A weak device decides at points: a request begins, a completion arrives, a queue is armed. The kind decision has the
// value 0: the device acts like an ordinary one. A Log records the other decisions. A replay takes the decisions of a
// log, and is kind at all other points.

// Object is a kind of object for which a weak device decides.
type Object uint8

// The objects. Objects of a kind have the numbers 1, 2, ... in the order of their creation on the device.
const (
	WholeDevice Object = iota
	ObjectQP
	ObjectCQ
	ObjectMR
	// ObjectResponder is a queue pair that answers requests. The device of its decisions is a fault rule. ObjectQP and
	// ObjectResponder have separate numbers there, in the order of their first packets.
	ObjectResponder
)

// Event is a kind of event of an object at which a weak device decides.
type Event uint8

// The events. Events of a kind have the numbers 1, 2, ... for each object.
const (
	Always      Event = iota // the decision applies to the object as a whole
	EventSend                // a request of the send queue, by its post
	EventRecv                // a receive, by its post; with a shared receive queue by its completion on the queue pair
	EventHold                // a request of the send queue, for a long hold
	EventFlush               // a request of the queue pair that is flushed
	EventAsync               // an asynchronous event
	EventDrain               // a drain of the send queue
	EventPoll                // a call of Poll
	EventAtomic              // an atomic operation on the region
	EventCall                // a call that creates, changes, queries or destroys an object
	EventPost                // a post of any request to the device
	EventWrite               // a store of data of the peer's WRITEs
	// The next events are faults of a packet. Seq is its number among the packets of the object.
	EventDrop
	EventDuplicate
	EventCorrupt
	EventJitter
	EventReorder
	EventRNR // by the number of a message
)

var (
	objectNames = [...]string{"", "qp", "cq", "mr", "responder"}
	eventNames  = [...]string{"", "send", "recv", "hold", "flush", "event", "drain", "poll", "atomic", "call",
		"post", "write", "drop", "duplicate", "corrupt", "jitter", "reorder", "rnr"}
)

// Point is a point at which a device decides.
type Point struct {
	Choice Choice
	Object Object
	Number uint64 // number of the object; 0 for WholeDevice
	Event  Event
	Seq    uint64 // number of the event; 0 for Always
}

// Decision is a decision other than the kind one.
type Decision struct {
	// Device is the name of the device. It has the name of the program, and the number of the device among the devices of
	// programs with this name, such as "client/1".
	Device string
	Point
	Value int    // its meaning depends on the row of Points; not 0
	About string // the request or object for a reader, with its numbers in this run; may be empty
}

// PointKind is a kind of point at which a choice is made.
type PointKind struct {
	Choice Choice
	Object Object
	Event  Event
	// Max is the largest value.
	Max int
	// Effect is the effect of the decision, with %d for the value.
	Effect string
}

// maxSteps is the maximum delay in steps that a log may have. A device draws shorter delays. With a Relay, maxSteps
// takes at least 40 ms.
const maxSteps = 2048

// maxOvertaken limits the number of completions that another one overtakes.
const maxOvertaken = 1 << 16

// Points is the table of all points. A choice without a point in the table applies to the whole device.
var Points = []PointKind{
	{LateCompletion, ObjectQP, EventSend, maxSteps, "its completion was delivered %d steps late"},
	{LateCompletion, ObjectQP, EventRecv, maxSteps, "its completion was delivered %d steps late"},
	{LateCompletion, ObjectQP, EventHold, maxPosts, "its completion was held until %d further requests were posted"},
	{LateCompletion, ObjectCQ, EventPoll, pollAll, "the poll returned one completion (1), or all of them (2): %d"},
	{MissedCompletion, ObjectQP, EventSend, 1, "its completion arrived just before its queue was armed, and caused no event"},
	{MissedCompletion, ObjectQP, EventRecv, 1, "its completion arrived just before its queue was armed, and caused no event"},
	{CrossOrder, ObjectQP, EventSend, maxOvertaken, "its completion was delivered before %d of other queues"},
	{CrossOrder, ObjectQP, EventRecv, maxOvertaken, "its completion was delivered before %d of other queues"},
	{LateFlush, ObjectQP, EventSend, maxSteps, "its flush was reported %d steps late"},
	{LateFlush, ObjectQP, EventRecv, maxSteps, "its flush was reported %d steps late"},
	{PoisonedFields, ObjectQP, EventSend, poisonOther, "the undefined fields had a pattern (1), or the opcode of the other queue (2): %d"},
	{PoisonedFields, ObjectQP, EventRecv, poisonOther, "the undefined fields had a pattern (1), or the opcode of the other queue (2): %d"},
	{LateEvent, ObjectQP, EventAsync, 2 * minEventSteps, "the event was reported %d steps late"},
	{LateEvent, ObjectQP, EventDrain, 1, "the drain of the send queue took longer"},
	{LateSource, ObjectQP, EventSend, maxSteps, "the request was executed %d steps after its post, and other queue pairs did not wait"},
	{LateSource, ObjectQP, EventHold, maxPosts, "the request was executed after %d further posts"},
	{SlowMethods, WholeDevice, EventCall, 1, "the call took 2 ms longer"},
	{WriteOrder, ObjectQP, EventSend, writeOrders*maxSteps - 1, "its data were written in two parts, some steps apart"},
	{SplitAtomic, ObjectQP, EventSend, 3, "its completion was delivered %d steps late"},
	{SplitAtomic, ObjectMR, EventAtomic, 3, "its result was stored %d steps after the word was read"},
	{ReadOrder, ObjectQP, EventSend, 8, "the READ was executed again after a later request, %d steps late"},
	{ReadOrder, ObjectQP, EventHold, maxPosts, "the READ was executed again after %d further posts"},
	{FailedRequest, ObjectQP, EventSend, 255, "the request failed with status %d"},
	{FailedRequest, ObjectQP, EventFlush, flushDelays, "its flush was reported %d steps late"},
	{FailedRequest, ObjectQP, EventRecv, flushDelays, "its flush was reported %d steps late"},
	{RelaxedOrder, ObjectQP, EventWrite, maxSteps, "the data of a WRITE with relaxed ordering were stored %d steps late"},
	{LateWrite, ObjectQP, EventWrite, maxSteps, "the data of a WRITE were stored %d steps late, after its completion"},
	{OutOfOrder, ObjectQP, EventWrite, maxSteps, "the data of a WRITE were stored %d steps late, after those of later WRITEs"},
	{FailedCall, WholeDevice, EventCall, 1, "the call failed"},
	{FailedDevice, WholeDevice, EventPost, 1, "the device failed after the post"},
	{FailedPost, WholeDevice, EventPost, 1, "the post was refused"},
	{PacketFault, ObjectQP, EventDrop, 1, "the packet was lost"},
	{PacketFault, ObjectQP, EventDuplicate, 1, "the packet was sent twice"},
	{PacketFault, ObjectQP, EventCorrupt, 1 << 32, "the bit before number %d was flipped"},
	{PacketFault, ObjectQP, EventJitter, int(time.Minute), "the packet was delayed by %d ns"},
	{PacketFault, ObjectQP, EventReorder, 1, "later packets overtook the packet"},
	{PacketFault, ObjectQP, EventRNR, 1, "the message found no receive"},
	{PacketFault, ObjectResponder, EventDrop, 1, "the response was lost"},
	{PacketFault, ObjectResponder, EventDuplicate, 1, "the response was sent twice"},
	{PacketFault, ObjectResponder, EventCorrupt, 1 << 32, "the bit before number %d of the response was flipped"},
	{PacketFault, ObjectResponder, EventJitter, int(time.Minute), "the response was delayed by %d ns"},
	{PacketFault, ObjectResponder, EventReorder, 1, "later packets overtook the response"},
}

// The values of a decision about a poll.
const (
	pollOne = 1
	pollAll = 2
)

// deviceWide is the set of the choices that apply to a device as a whole.
var deviceWide = func() (s Set) {
	for _, r := range Choices {
		if !slices.ContainsFunc(Points, func(p PointKind) bool { return p.Choice == r.Choice }) {
			s |= Of(r.Choice)
		}
	}
	return s
}()

// kindOf returns the row of a point. It returns false for a point that does not exist.
func kindOf(p Point) (PointKind, bool) {
	if p.Choice >= numChoices {
		return PointKind{}, false
	}
	if deviceWide.Has(p.Choice) {
		row := PointKind{p.Choice, WholeDevice, Always, 1, "the device " + Choices[p.Choice].Does}
		return row, p == Point{Choice: p.Choice}
	}
	i := slices.IndexFunc(Points, func(k PointKind) bool {
		return k.Choice == p.Choice && k.Object == p.Object && k.Event == p.Event
	})
	if i < 0 || (p.Object == WholeDevice) != (p.Number == 0) {
		return PointKind{}, false
	}
	return Points[i], true
}

// Lengthen multiplies the value of a decision about a delay, up to the maximum. It returns false for another decision,
// and at the maximum.
func (d *Decision) Lengthen(factor int) bool {
	k, ok := kindOf(d.Point)
	switch {
	case !ok || factor < 2 || d.Value >= k.Max:
		return false
	case d.Choice == WriteOrder:
		d.Value = min(d.Value+factor*writeOrders, k.Max)
	case k.Max == maxSteps:
		d.Value = min(d.Value*factor, maxSteps)
	default:
		return false
	}
	return true
}

// Effect returns the effect of the decision, in the past tense.
func (d *Decision) Effect() string {
	k, ok := kindOf(d.Point)
	if !ok {
		return ""
	}
	text := k.Effect
	if d.Value == 1 {
		text = strings.NewReplacer("%d steps", "1 step", "%d further posts", "1 further post").Replace(text)
	}
	return strings.ReplaceAll(text, "%d", strconv.Itoa(d.Value))
}

// The next constants are the limits of a log, and the words of its text.
const (
	MaxLogSize   = 2 << 20 // bytes of the text
	MaxDecisions = 1 << 15
	maxDevices   = 256
	maxDevice    = 64 // bytes of a name
	maxLogLine   = 512
	maxAbout     = 200
	logTitle     = "verbena decisions"
	logVersion   = 1
	seedWord     = "seed"
	missingWord  = "missing"
)

// Log is a list of decisions. The text of a log is a line with the version of the format, and then a line for each
// decision:
//
//	verbena decisions 1
//	late-source client/1 qp 3 send 17 = 2 # QP 18, RDMA_WRITE, wr_id 0x5
//
// A line has the name of the choice, the device, the object, the event and the value. The text after # is for readers.
type Log struct {
	Seed      uint64 // seed of the recorded run, for the reader
	Missing   uint64 // number of decisions that were not recorded, because the log had no room
	Decisions []Decision
}

// AppendText appends the line of the decision, with a line break.
func (d *Decision) AppendText(b []byte) []byte {
	b = append(append(append(b, Choices[d.Choice].Name...), ' '), d.Device...)
	if d.Object != WholeDevice {
		b = fmt.Appendf(b, " %s %d", objectNames[d.Object], d.Number)
	}
	if d.Event != Always {
		b = fmt.Appendf(b, " %s %d", eventNames[d.Event], d.Seq)
	}
	b = fmt.Appendf(b, " = %d", d.Value)
	if d.About != "" {
		b = append(append(b, " # "...), d.About...)
	}
	return append(b, '\n')
}

// AppendText appends the text of the log.
func (l *Log) AppendText(b []byte) []byte {
	b = fmt.Appendf(b, "%s %d\n%s %d\n", logTitle, logVersion, seedWord, l.Seed)
	if l.Missing > 0 {
		b = fmt.Appendf(b, "%s %d\n", missingWord, l.Missing)
	}
	for i := range l.Decisions {
		b = l.Decisions[i].AppendText(b)
	}
	return b
}

// ReadLog reads the text of a log, up to its end or the first zero byte. An error names the line, and wraps EINVAL, or
// EFBIG for a log that exceeds the limits. ReadLog may sleep in r.
//
//verbena:parses
func ReadLog(r io.Reader) (*Log, error) {
	text, err := io.ReadAll(io.LimitReader(r, MaxLogSize+1))
	if err != nil {
		return nil, err
	}
	text, _, _ = bytes.Cut(text, []byte{0})
	if len(text) > MaxLogSize {
		return nil, fmt.Errorf("the log is longer than %d bytes: %w", MaxLogSize, syscall.EFBIG)
	}
	p := logParser{log: &Log{}, seen: map[devicePoint]int{}, devices: map[string]string{}}
	for line := range strings.Lines(string(text)) {
		if p.line++; len(line) > maxLogLine {
			return nil, fmt.Errorf("line %d: longer than %d bytes: %w", p.line, maxLogLine, syscall.EINVAL)
		}
		if err := p.readLine(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", p.line, err)
		}
	}
	if !p.titled {
		return nil, fmt.Errorf("the log does not begin with %q: %w", title(), syscall.EINVAL)
	}
	return p.log, nil
}

// title returns the first line of a log.
func title() string { return fmt.Sprintf("%s %d", logTitle, logVersion) }

// devicePoint is a point of one of several devices.
type devicePoint struct {
	device string
	Point
}

// logParser reads the lines of a log.
type logParser struct {
	log     *Log
	line    int
	titled  bool
	seen    map[devicePoint]int // line numbers of the decisions
	devices map[string]string
}

func (p *logParser) readLine(line string) error {
	text, about, _ := strings.Cut(line, "#")
	fields := strings.Fields(text)
	switch {
	case len(fields) == 0:
		return nil
	case !p.titled:
		p.titled = true
		if got := strings.Join(fields, " "); got != title() {
			return fmt.Errorf("got %.40q, want %q: %w", got, title(), syscall.EINVAL)
		}
		return nil
	case len(fields) == 2 && (fields[0] == seedWord || fields[0] == missingWord):
		n, err := strconv.ParseUint(fields[1], 0, 64)
		if err != nil {
			return fmt.Errorf("%s: %.40q is not a number: %w", fields[0], fields[1], syscall.EINVAL)
		}
		if fields[0] == seedWord {
			p.log.Seed = n
		} else {
			p.log.Missing = n
		}
		return nil
	}
	d, err := parseDecision(fields)
	if err != nil {
		return fmt.Errorf("%w: %w", err, syscall.EINVAL)
	}
	if p.devices[d.Device] == "" {
		if len(p.devices) == maxDevices {
			return fmt.Errorf("the log names more than %d devices: %w", maxDevices, syscall.EFBIG)
		}
		p.devices[d.Device] = strings.Clone(d.Device) // the text is longer
	}
	d.Device = p.devices[d.Device]
	d.About = cleanText(strings.TrimSpace(about), maxAbout)
	at := devicePoint{d.Device, d.Point}
	if first := p.seen[at]; first > 0 {
		return fmt.Errorf("line %d has the same decision: %w", first, syscall.EINVAL)
	}
	if p.seen[at] = p.line; len(p.seen) > MaxDecisions {
		return fmt.Errorf("the log has more than %d decisions: %w", MaxDecisions, syscall.EFBIG)
	}
	p.log.Decisions = append(p.log.Decisions, d)
	return nil
}

// parseDecision parses the words of a line.
func parseDecision(words []string) (d Decision, err error) {
	const most = 8 // CHOICE DEVICE OBJECT N EVENT N = VALUE
	n := len(words)
	if n < 4 || n > most || n%2 != 0 || words[n-2] != "=" {
		return d, fmt.Errorf("want CHOICE DEVICE [qp|cq|mr NUMBER] [EVENT NUMBER] = VALUE")
	}
	i := slices.IndexFunc(Choices[:], func(r Row) bool { return r.Name == words[0] })
	if i < 0 {
		return d, fmt.Errorf("no choice of weak devices has the name %.40q", words[0])
	}
	d.Choice = Choices[i].Choice
	if d.Device = words[1]; d.Device != DeviceName(d.Device) {
		return d, fmt.Errorf("%.80q is not the name of a device, such as client/1", d.Device)
	}
	for rest := words[2 : n-2]; len(rest) > 0; rest = rest[2:] {
		count, err := strconv.ParseUint(rest[1], 10, 64)
		if err != nil || count == 0 {
			return d, fmt.Errorf("%s: %.40q is not the number of an object or event", rest[0], rest[1])
		}
		object, event := slices.Index(objectNames[:], rest[0]), slices.Index(eventNames[:], rest[0])
		switch {
		case object > 0 && d.Object == WholeDevice && d.Event == Always:
			d.Object, d.Number = Object(object), count
		case event > 0 && d.Event == Always:
			d.Event, d.Seq = Event(event), count
		default:
			return d, fmt.Errorf("%.40q is not an object or event, or is in the wrong place", rest[0])
		}
	}
	k, ok := kindOf(d.Point)
	if !ok {
		return d, fmt.Errorf("%s does not decide at such an object and event", words[0])
	}
	if d.Value, err = strconv.Atoi(words[n-1]); err != nil || d.Value < 1 || d.Value > k.Max {
		return d, fmt.Errorf("the value must be a number from 1 to %d, not %.40q", k.Max, words[n-1])
	}
	return d, nil
}

// DeviceName returns a name for a device from any text. It replaces characters that a log does not allow.
func DeviceName(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '#' || r == '=' || r == ' ' {
			return '_'
		}
		return r
	}, cleanText(text, maxDevice))
}

// cleanText replaces all characters except printable ones of ASCII, and limits the length in bytes.
func cleanText(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '_'
		}
		return r
	}, s)
	return s[:min(len(s), most)]
}

// DecisionSet holds the decisions that devices take in a replay. A DecisionSet does not change.
type DecisionSet struct{ devices map[string]map[Point]int }

// NewDecisionSet returns the set of decisions.
func NewDecisionSet(decisions []Decision) *DecisionSet {
	r := &DecisionSet{devices: map[string]map[Point]int{}}
	for _, d := range decisions {
		if r.devices[d.Device] == nil {
			r.devices[d.Device] = map[Point]int{}
		}
		r.devices[d.Device][d.Point] = d.Value
	}
	return r
}

// Value returns the value of a device's decision at a point; 0 without one.
func (r *DecisionSet) Value(device string, p Point) int { return r.devices[device][p] }

// choices returns the set of the choices that a device makes.
func (r *DecisionSet) choices(device string) (s Set) {
	for p := range r.devices[device] {
		s |= Of(p.Choice)
	}
	return s
}

// Enabled returns the set of the choices that a device with this configuration makes.
func (c *Config) Enabled() Set {
	switch {
	case c.Decisions != nil:
		return c.Decisions.choices(c.Device)
	case c.Choices == 0:
		return All
	}
	return c.Choices
}

// decide returns the decision at a point: the drawn value, or in a replay the value of the log. decide records the
// decision, unless it is the kind one. about returns Decision.About; it may be nil.
func (d *driver) decide(p Point, drawn int, about func() string) int {
	value := drawn
	if d.Decisions != nil {
		value = d.forced[p]
	}
	d.record(p, value, about)
	return value
}

// record records a decision, unless it is the kind one.
func (d *driver) record(p Point, value int, about func() string) {
	if value == 0 || d.Record == nil || p.Object != WholeDevice && p.Number == 0 || p.Event != Always && p.Seq == 0 {
		return // also for a completion of a request that was not posted through this driver
	}
	x := Decision{Device: d.Device, Point: p, Value: value}
	if about != nil {
		x.About = about()
	}
	d.Record(&x)
}

// recordDeviceWide records the choices that apply to the whole device.
func (d *driver) recordDeviceWide() {
	for _, r := range Choices {
		if deviceWide.Has(r.Choice) && d.hasChoice(r.Choice) {
			d.record(Point{Choice: r.Choice}, 1, nil)
		}
	}
}

// point returns the point of a choice for a request of the queue pair.
func (q *qp) point(c Choice, e Event, seq uint64) Point { return Point{c, ObjectQP, q.ord, e, seq} }

// about describes the queue pair.
func (q *qp) about() string { return fmt.Sprintf("QP %d", q.obj.Num()) }

// about describes a request of the send queue.
func (r *weakRequest) about() string {
	return fmt.Sprintf("QP %d, %v, wr_id %#x", r.qp.obj.Num(), r.wr.Opcode, r.programID)
}

// point returns the point of a choice for a completion.
func (e *windowEntry) point(c Choice) Point {
	event := EventRecv
	if e.send {
		event = EventSend
	}
	return Point{c, ObjectQP, e.qp, event, e.seq}
}

// about describes a completion.
func (e *windowEntry) about() string {
	if e.r != nil && e.r.qp != nil {
		if e.send {
			return e.r.about()
		}
		return fmt.Sprintf("QP %d, receive, wr_id %#x", e.r.qp.obj.Num(), e.r.programID)
	}
	return fmt.Sprintf("QP %d, receive", e.wc.QPNum)
}

// boolValue returns the value of a decision without degrees.
func boolValue(b bool) int {
	if b {
		return 1
	}
	return 0
}
