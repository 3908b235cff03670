// Package perfettotest reads traces of package perfetto, for tests.
package perfettotest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Trace is the content of a trace.
type Trace struct {
	Slices   []Slice   // in order of their begin
	Instants []Instant // in order of their time
	Counts   []Count   // in order of their time
}

// Slice is a slice of a track. Track has the names of the track and of the tracks above it, the top one first,
// separated by slashes. Depth is the number of slices around it.
type Slice struct {
	ID         uint64 // number of the track; the tracks of a group share a name
	Track      string
	Name       string
	Begin, End time.Duration // since the first event of the trace
	Depth      int
	Attrs      map[string]string
	Flows      []uint64
}

// Instant is an event without duration.
type Instant struct {
	Track string
	Name  string
	At    time.Duration
	Attrs map[string]string
	Flows []uint64
}

// Count is a value of a counter.
type Count struct {
	Track string
	At    time.Duration
	Value int64
}

// Named returns the slices whose track contains track, and whose name contains name.
func (t *Trace) Named(track, name string) (list []Slice) {
	for _, s := range t.Slices {
		if strings.Contains(s.Track, track) && strings.Contains(s.Name, name) {
			list = append(list, s)
		}
	}
	return list
}

// InstantsNamed is Named for instants.
func (t *Trace) InstantsNamed(track, name string) (list []Instant) {
	for _, s := range t.Instants {
		if strings.Contains(s.Track, track) && strings.Contains(s.Name, name) {
			list = append(list, s)
		}
	}
	return list
}

// Values returns the values of the counters whose track contains track.
func (t *Trace) Values(track string) (list []int64) {
	for _, c := range t.Counts {
		if strings.Contains(c.Track, track) {
			list = append(list, c.Value)
		}
	}
	return list
}

// String lists the events, for failures of tests.
func (t *Trace) String() string {
	var b strings.Builder
	for _, s := range t.Slices {
		fmt.Fprintf(&b, "%v..%v %s%s: %s %v flows %v\n", s.Begin, s.End, strings.Repeat("  ", s.Depth), s.Track, s.Name,
			s.Attrs, s.Flows)
	}
	for _, i := range t.Instants {
		fmt.Fprintf(&b, "%v %s: %s %v flows %v\n", i.At, i.Track, i.Name, i.Attrs, i.Flows)
	}
	for _, c := range t.Counts {
		fmt.Fprintf(&b, "%v %s = %d\n", c.At, c.Track, c.Value)
	}
	return b.String()
}

// event is a track event as it is in the file.
type event struct {
	at    uint64
	typ   uint64
	track uint64
	name  string
	value int64
	attrs map[string]string
	flows []uint64
}

type track struct {
	name    string
	parent  uint64
	counter bool
}

// Read reads a trace, as trace_processor does: it orders the events by their time, and the end of a slice ends the
// innermost slice of its track. Read returns an error for an undefined field or value, an unknown track, an end without
// a begin, and a packet that trace_processor would drop.
func Read(b []byte) (*Trace, error) {
	m := dynamicpb.NewMessage(traceMessage)
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, err
	}
	whole := message{m}
	if err := whole.check(); err != nil {
		return nil, err
	}
	tracks := map[uint64]track{}
	var events []event
	for _, p := range whole.list("packet") {
		if p.number("trusted_packet_sequence_id") == 0 {
			return nil, errors.New("packet without trusted_packet_sequence_id, which trace_processor drops")
		}
		if d, ok := p.message("track_descriptor"); ok {
			uuid := d.number("uuid")
			if _, again := tracks[uuid]; again || uuid == 0 {
				return nil, fmt.Errorf("track %d: no uuid, or described twice", uuid)
			}
			_, counter := d.message("counter")
			tracks[uuid] = track{name: d.text("name"), parent: d.number("parent_uuid"), counter: counter}
		}
		if e, ok := p.message("track_event"); ok {
			events = append(events, newEvent(p.number("timestamp"), e))
		}
	}
	return build(tracks, events)
}

func build(tracks map[uint64]track, events []event) (*Trace, error) {
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	t := &Trace{}
	open := map[uint64][]int{}
	path := func(id uint64) (string, error) {
		var names []string
		for id != 0 {
			k, ok := tracks[id]
			if !ok || len(names) > len(tracks) {
				return "", fmt.Errorf("event on track %d, which is unknown", id)
			}
			names = append(names, k.name)
			id = k.parent
		}
		slices.Reverse(names)
		return strings.Join(names, "/"), nil
	}
	for _, e := range events {
		name, err := path(e.track)
		if err != nil {
			return nil, err
		}
		if tracks[e.track].counter != (e.typ == 4) {
			return nil, fmt.Errorf("event of type %d on %s, counter: %t", e.typ, name, tracks[e.track].counter)
		}
		at := time.Duration(e.at - events[0].at)
		stack := open[e.track]
		switch e.typ {
		case 1:
			open[e.track] = append(stack, len(t.Slices))
			t.Slices = append(t.Slices, Slice{ID: e.track, Track: name, Name: e.name, Begin: at, Depth: len(stack),
				Attrs: e.attrs, Flows: e.flows})
		case 2:
			if len(stack) == 0 {
				return nil, fmt.Errorf("%v: the end of a slice without a begin on %s", at, name)
			}
			s := &t.Slices[stack[len(stack)-1]]
			s.End = at
			open[e.track] = stack[:len(stack)-1]
		case 3:
			t.Instants = append(t.Instants, Instant{Track: name, Name: e.name, At: at, Attrs: e.attrs, Flows: e.flows})
		case 4:
			t.Counts = append(t.Counts, Count{Track: name, At: at, Value: e.value})
		}
	}
	return t, nil
}

func newEvent(at uint64, m message) event {
	e := event{at: at, typ: m.number("type"), track: m.number("track_uuid"), name: m.text("name"),
		attrs: map[string]string{}, value: int64(m.number("counter_value"))}
	for _, a := range m.list("debug_annotations") {
		if e.attrs[a.text("name")] = a.text("string_value"); a.has("uint_value") {
			e.attrs[a.text("name")] = fmt.Sprint(a.number("uint_value"))
		}
	}
	flows := m.Get(m.field("flow_ids")).List()
	for i := range flows.Len() {
		e.flows = append(e.flows, flows.Get(i).Uint())
	}
	return e
}
