// Package perfettotest reads traces of package perfetto, for tests.
package perfettotest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
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
	name   string
	parent uint64
}

// Read reads a trace, as trace_processor does: it orders the events by their time, and the end of a slice ends the
// innermost slice of its track. Read returns an error for a message that is not complete, for an event on an unknown
// track, and for an end without a begin.
func Read(b []byte) (*Trace, error) {
	tracks := map[uint64]track{}
	var events []event
	if err := fields(b, func(n protowire.Number, v uint64, msg []byte) error {
		if n != 1 {
			return fmt.Errorf("field %d of Trace, want 1", n)
		}
		var e event
		is := false
		if err := fields(msg, func(n protowire.Number, v uint64, msg []byte) (err error) {
			switch n {
			case 8:
				e.at = v
			case 11:
				is = true
				err = e.read(msg)
			case 60:
				var uuid uint64
				var k track
				err = fields(msg, func(n protowire.Number, v uint64, msg []byte) error {
					switch n {
					case 1:
						uuid = v
					case 2:
						k.name = string(msg)
					case 5:
						k.parent = v
					}
					return nil
				})
				tracks[uuid] = k
			}
			return err
		}); err != nil {
			return err
		}
		if is {
			events = append(events, e)
		}
		return nil
	}); err != nil {
		return nil, err
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

func (e *event) read(b []byte) error {
	e.attrs = map[string]string{}
	return fields(b, func(n protowire.Number, v uint64, msg []byte) error {
		switch n {
		case 4:
			var name, value string
			if err := fields(msg, func(n protowire.Number, v uint64, msg []byte) error {
				switch n {
				case 3:
					value = fmt.Sprint(v)
				case 6:
					value = string(msg)
				case 10:
					name = string(msg)
				}
				return nil
			}); err != nil {
				return err
			}
			e.attrs[name] = value
		case 9:
			e.typ = v
		case 11:
			e.track = v
		case 23:
			e.name = string(msg)
		case 30:
			e.value = int64(v)
		case 47:
			e.flows = append(e.flows, v)
		}
		return nil
	})
}

// fields calls f for each field of a message: with the value of a number, or with the bytes of a string or a message.
func fields(b []byte, f func(n protowire.Number, v uint64, msg []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		var v uint64
		var msg []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			v, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			msg, n = protowire.ConsumeBytes(b)
		default:
			return fmt.Errorf("field %d has wire type %d", num, typ)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := f(num, v, msg); err != nil {
			return err
		}
	}
	return nil
}
