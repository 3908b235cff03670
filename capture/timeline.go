package capture

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"verbena/internal/perfetto"
	"verbena/roce"
)

// message is a request of a connection, as its packets show it.
type message struct {
	from        int // sending end
	name        string
	first, last roce.PSN
	bytes       int
	packets     int
	again       int // number of packets that were sent again
	waits       int // number of RNR NAKs
	sent        time.Time
	arrival     time.Time // arrival of the last packet; zero if not captured
	begun       time.Time // arrival of its first packet
	whole       bool      // the last packet was seen
	answered    bool      // all of it is acknowledged; a message of UC is, when its last packet was sent
	end         time.Time // arrival of the answer, or the last event of the message
	result      string    // a NAK, or ""
	byData      bool      // a response answers the message, and not an ACK
	headless    bool      // the first packet is not part of the message, because it was lost or sent before the capture
	absorbed    bool      // the message is the end of another one
	notes       []messageNote
}

// messageNote is an event within a message.
type messageNote struct {
	at   time.Time
	text string
}

// maxOpen limits the number of messages of an end that wait for an answer at a time.
const maxOpen = 4096

// requester holds the messages of an end that are not answered.
type requester struct {
	open  []*message // by PSN
	acked roce.PSN   // the last PSN that was answered
	known bool       // acked is valid
}

// messagesOf returns the messages of a connection in the order of their first packets.
func (c *Connection) messagesOf() []*message {
	var all []*message
	var ends [2]requester
	for i := range c.Packets {
		p := &c.Packets[i]
		if !p.isRequest() {
			ends[1-p.From].answer(p)
			continue
		}
		r := &ends[p.From]
		m := r.find(p.PSN)
		switch {
		case m != nil:
		case r.known && !r.acked.Less(p.PSN), p.Again && p.Op.Service() == roce.SRD, p.Again && !p.Op.Has(roce.FlagStarts):
			continue // a part of a message that was answered, or whose begin was not captured
		default:
			m = &message{from: p.From, name: messageName(p.Op), first: p.PSN, last: p.PSN.Add(-1), sent: p.FirstSeen(),
				headless: !p.Op.Has(roce.FlagStarts),
				byData:   p.Op.Has(roce.FlagRead | roce.FlagAtomic | roce.FlagAtomicWrite | roce.FlagFlush)}
			all = append(all, m)
			r.insert(m)
		}
		m.addPacket(p)
		if m.whole && c.Service == roce.UC {
			m.answered, r.open = true, nil
		}
	}
	all = slices.DeleteFunc(all, func(m *message) bool { return m.absorbed })
	slices.SortStableFunc(all, func(a, b *message) int { return a.sent.Compare(b.sent) })
	return all
}

// find returns the message that contains a PSN, or continues with it.
func (r *requester) find(psn roce.PSN) *message {
	for i := len(r.open) - 1; i >= 0; i-- {
		m := r.open[i]
		if psn.Less(m.first) {
			continue
		}
		if m.last.Less(psn) && (m.whole || psn != m.last.Next()) {
			return nil
		}
		if i > 0 && m.headless && !r.open[i-1].whole && r.open[i-1].last.Next() == m.first {
			r.open[i-1].absorb(m)
			r.open = slices.Delete(r.open, i, i+1)
			return r.open[i-1]
		}
		return m
	}
	return nil
}

// absorb adds the end of a message, of which the begin was captured later.
func (m *message) absorb(end *message) {
	end.absorbed = true
	m.last, m.whole, m.packets, m.bytes = end.last, end.whole, m.packets+end.packets, m.bytes+end.bytes
	m.again, m.waits, m.notes = m.again+end.again, m.waits+end.waits, append(end.notes, m.notes...)
	m.sent = end.sent
	if m.end.Before(end.end) {
		m.end = end.end
	}
}

// insert adds a message. Without room, it forgets the oldest one.
func (r *requester) insert(m *message) {
	i := len(r.open)
	for i > 0 && m.first.Less(r.open[i-1].first) {
		i--
	}
	if r.open = slices.Insert(r.open, i, m); len(r.open) > maxOpen {
		r.open = r.open[1:]
	}
}

func (m *message) note(at time.Time, text string) {
	m.notes = append(m.notes, messageNote{at, text})
	if at.After(m.end) {
		m.end = at
	}
}

// addPacket adds a request packet that the message contains, or that continues it.
func (m *message) addPacket(p *packet) {
	if p.FirstSeen().After(m.end) {
		m.end = p.FirstSeen()
	}
	if !p.Arrived.IsZero() {
		if m.begun.IsZero() {
			m.begun = p.Arrived
		}
		m.arrival = p.Arrived
	}
	if p.Again {
		m.again++
		m.note(p.FirstSeen(), "sent again: "+p.describe())
	}
	if p.Lost {
		m.note(p.FirstSeen(), "lost: "+p.describe())
	}
	if p.BadICRC {
		m.note(p.FirstSeen(), "bad ICRC: "+p.describe())
	}
	if m.last.Less(p.PSN) {
		m.packets++
		m.bytes += p.Payload
		m.last = p.PSN
		m.whole = p.Op.Has(roce.FlagEnds)
	}
}

// answer executes a packet of the responder.
func (r *requester) answer(p *packet) {
	at := p.Arrived
	if at.IsZero() {
		at = p.FirstSeen()
	}
	if p.Op.Service() == roce.SRD {
		if !p.Lost {
			r.answerSRD(p, at)
		}
		return
	}
	for !p.Lost && len(r.open) > 0 && !p.PSN.Less(r.open[0].first) {
		m := r.open[0]
		inside := !m.last.Less(p.PSN) || !m.whole
		switch {
		case p.HasSyndrome && p.Syndrome.IsRNR() && inside:
			m.waits++
			m.note(at, "the receiver is not ready")
			return
		case p.HasSyndrome && p.Syndrome.IsNAK() && inside:
			m.note(at, p.Syndrome.String())
			if p.Syndrome != roce.NAKPSNSequenceError {
				m.result = p.Syndrome.String()
				r.finish(at, p.PSN)
			}
			return
		case m.byData && p.Op.Has(roce.FlagReadResponse|roce.FlagAtomicAck):
			m.bytes += p.Payload
			if m.end = at; !p.Op.Has(roce.FlagReadResponse) || p.Op.Has(roce.FlagEnds) {
				r.finish(at, p.PSN)
			}
			return
		case m.byData:
			return // an ACK of earlier requests
		case inside && (p.PSN != m.last || !m.whole):
			m.end = at
			return
		}
		r.finish(at, m.last) // a response to a later request answers this one, too
	}
}

// answerSRD executes a packet of the responder of SRD, where each packet is a message.
func (r *requester) answerSRD(p *packet, at time.Time) {
	answers := func(m *message) bool {
		switch {
		case p.Op == roce.SRDAcknowledge && !m.byData:
			return m.first.Less(p.PSN) || slices.Contains(p.Later, m.first)
		case p.Refused || p.Op.Has(roce.FlagReadResponse):
			return m.first == p.PSN
		}
		return false
	}
	r.open = slices.DeleteFunc(r.open, func(m *message) bool {
		switch {
		case !answers(m):
			return false
		case p.Status == roce.SRDNotReady:
			m.waits++
			m.note(at, "the receiver is not ready")
			return false
		case p.isRefusal(), p.Status == roce.SRDSkipped:
			m.result = p.Status.String()
			m.note(at, m.result)
		case m.byData:
			m.bytes += p.Payload
		}
		m.end, m.answered = at, true
		return true
	})
}

// finish removes the oldest message, which is answered up to a PSN.
func (r *requester) finish(at time.Time, psn roce.PSN) {
	m := r.open[0]
	m.end, m.answered = at, true
	r.open = r.open[1:]
	r.acked, r.known = psn, true
}

// messageName returns the name of the operation of a message that begins with a packet.
func messageName(op roce.Opcode) string {
	name := strings.TrimPrefix(op.String(), op.Service().String()+" ")
	for _, part := range []string{" First", " Middle", " Last", " Only", " Request"} {
		name = strings.Replace(name, part, "", 1)
	}
	return name
}

// WritePerfetto writes a trace for Perfetto's viewer. The trace has a track for each connection. For each end, tracks
// below it show:
//
//   - requests as slices, from the first packet to the answer
//   - retransmissions, refusals and losses as instants
//   - the number of requests without an answer
//   - received messages, with an arrow from each request
func WritePerfetto(w io.Writer, list []*Connection) error {
	t := perfetto.New(w)
	for _, c := range list {
		c.writePerfetto(t)
	}
	if err := t.Err(); err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	return nil
}

func (c *Connection) writePerfetto(t *perfetto.Trace) {
	top := t.Track(perfetto.Track{}, fmt.Sprintf("%v, %v and %v", c.Service, c.Ends[0], c.Ends[1]))
	all := c.messagesOf()
	var requests, arrivals [2]*perfetto.TrackGroup
	var faults, counters [2]perfetto.Track
	for end := range c.Ends {
		requests[end] = t.Group(top, fmt.Sprintf("requests of %v", c.Ends[end]))
		faults[end] = t.Track(top, fmt.Sprintf("faults of %v", c.Ends[end]))
		counters[end] = t.Counter(top, fmt.Sprintf("not answered, of %v", c.Ends[end]), "requests")
		arrivals[end] = t.Group(top, fmt.Sprintf("messages to %v", c.Ends[end]))
	}
	for _, m := range all {
		e := perfetto.Event{Name: m.name, Flows: []perfetto.Flow{t.NewFlow()}, Attrs: m.attrs()}
		requests[m.from].Slice(m.sent, m.end, e)
		for _, n := range m.notes {
			faults[m.from].Instant(n.at, perfetto.Event{Name: n.text, Attrs: e.Attrs[:1]})
		}
		if !m.begun.IsZero() && m.whole && !m.arrival.Before(m.begun) {
			arrivals[1-m.from].Slice(m.begun, m.arrival, e)
		}
	}
	for end := range c.Ends {
		countOpen(all, end, counters[end])
	}
}

func (m *message) attrs() []perfetto.Attr {
	list := []perfetto.Attr{{Name: "PSN", Number: uint64(m.first)}, {Name: "bytes", Number: uint64(m.bytes)},
		{Name: "packets", Number: uint64(m.packets)}}
	switch {
	case m.result != "":
		list = append(list, perfetto.Attr{Name: "result", Text: m.result})
	case !m.answered:
		list = append(list, perfetto.Attr{Name: "result", Text: "no answer in the capture"})
	}
	for _, x := range []struct {
		name string
		n    int
	}{{"packets sent again", m.again}, {"receiver not ready", m.waits}} {
		if x.n > 0 {
			list = append(list, perfetto.Attr{Name: x.name, Number: uint64(x.n)})
		}
	}
	return list
}

// countOpen writes the number of messages of an end that are not answered.
func countOpen(all []*message, end int, counter perfetto.Track) {
	type change struct {
		at time.Time
		by int64
	}
	var changes []change
	for _, m := range all {
		if m.from == end {
			changes = append(changes, change{m.sent, 1})
			if m.answered {
				changes = append(changes, change{m.end, -1})
			}
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return a.at.Compare(b.at) })
	n := int64(0)
	for _, x := range changes {
		n += x.by
		counter.Count(x.at, n)
	}
}
