package perfetto

import (
	"io"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// The numbers of the fields, by message.
const (
	tracePacket protowire.Number = 1

	packetTimestamp       protowire.Number = 8
	packetSequence        protowire.Number = 10 // trusted_packet_sequence_id
	packetTrackEvent      protowire.Number = 11
	packetTrackDescriptor protowire.Number = 60

	trackUUID         protowire.Number = 1
	trackName         protowire.Number = 2
	trackParent       protowire.Number = 5
	trackCounter      protowire.Number = 8
	trackChildOrder   protowire.Number = 11
	trackSiblingOrder protowire.Number = 12

	counterUnit protowire.Number = 6 // unit_name

	eventAnnotation protowire.Number = 4
	eventType       protowire.Number = 9
	eventTrack      protowire.Number = 11
	eventName       protowire.Number = 23
	eventCounter    protowire.Number = 30 // counter_value
	eventFlow       protowire.Number = 47 // flow_ids

	annotationUint   protowire.Number = 3
	annotationString protowire.Number = 6
	annotationName   protowire.Number = 10
)

// Values of TrackEvent.Type.
const (
	typeSliceBegin = 1
	typeSliceEnd   = 2
	typeInstant    = 3
	typeCounter    = 4
)

// explicitOrder is the value of TrackDescriptor.ChildTracksOrdering by which children have the order of their creation.
const explicitOrder = 3

// sequence is the number of the only writer of a trace.
const sequence = 1

// Trace is a trace that is being written.
type Trace struct {
	w        io.Writer
	err      error
	tracks   uint64
	children map[uint64]uint64 // number of tracks below a track
	flows    uint64

	event, attr, packet, whole []byte // reused
}

// New returns a trace that is written to w. The caller buffers w.
func New(w io.Writer) *Trace { return &Trace{w: w, children: map[uint64]uint64{}} }

// Err returns the first error of the writer. After an error nothing more is written.
func (t *Trace) Err() error { return t.err }

// Flow is the number of an arrow between slices of a trace.
type Flow uint64

// NewFlow returns the number of an arrow. The arrow connects the slices with this number, in the order of their begin.
func (t *Trace) NewFlow() Flow {
	t.flows++
	return Flow(t.flows)
}

// Track is a row of the viewer. The zero Track ignores its events.
type Track struct {
	t  *Trace
	id uint64
}

// Track adds a track below another one. The zero Track as parent means the top level. Tracks of one parent are shown in
// the order of the calls.
func (t *Trace) Track(parent Track, name string) Track { return t.newTrack(parent, name, nil) }

// Counter adds a track with the values of a counter in a unit, such as "requests".
func (t *Trace) Counter(parent Track, name, unit string) Track {
	return t.newTrack(parent, name, appendString(nil, counterUnit, unit))
}

func (t *Trace) newTrack(parent Track, name string, counter []byte) Track {
	t.tracks++
	track := Track{t, t.tracks}
	var d []byte
	d = appendVarint(d, trackUUID, track.id)
	d = appendString(d, trackName, name)
	if parent.id != 0 {
		d = appendVarint(d, trackParent, parent.id)
		d = appendVarint(d, trackSiblingOrder, t.children[parent.id])
		t.children[parent.id]++
	}
	if counter != nil {
		d = appendBytes(d, trackCounter, counter)
	}
	d = appendVarint(d, trackChildOrder, explicitOrder)
	t.write(appendBytes(nil, packetTrackDescriptor, d))
	return track
}

// Attr is a named value of an event: a string, or an unsigned number.
type Attr struct {
	Name   string
	Text   string
	Number uint64 // if Text is empty
}

// Event is the content of a slice or an instant.
type Event struct {
	Name  string
	Attrs []Attr
	Flows []Flow
}

// Slice adds a slice. Slices of one track must not overlap, unless one contains the other. Slices that begin or end at
// one time must be added in their order. An end before the begin counts as the begin.
func (k Track) Slice(from, to time.Time, e Event) {
	if to.Before(from) {
		to = from
	}
	k.write(from, typeSliceBegin, &e, nil)
	k.write(to, typeSliceEnd, nil, nil)
}

// Instant adds an event without duration.
func (k Track) Instant(at time.Time, e Event) { k.write(at, typeInstant, &e, nil) }

// Count adds a value of a counter, which holds until the next one.
func (k Track) Count(at time.Time, value int64) {
	k.write(at, typeCounter, nil, appendVarint(nil, eventCounter, uint64(value)))
}

func (k Track) write(at time.Time, typ uint64, e *Event, more []byte) {
	if k.t == nil {
		return
	}
	b := appendVarint(k.t.event[:0], eventType, typ)
	b = appendVarint(b, eventTrack, k.id)
	if e != nil {
		b = appendString(b, eventName, e.Name)
		for _, a := range e.Attrs {
			v := appendString(k.t.attr[:0], annotationName, a.Name)
			if a.Text != "" {
				v = appendString(v, annotationString, a.Text)
			} else {
				v = appendVarint(v, annotationUint, a.Number)
			}
			k.t.attr = v
			b = appendBytes(b, eventAnnotation, v)
		}
		for _, f := range e.Flows {
			b = protowire.AppendTag(b, eventFlow, protowire.Fixed64Type)
			b = protowire.AppendFixed64(b, uint64(f))
		}
	}
	k.t.event = append(b, more...)
	p := appendVarint(k.t.packet[:0], packetTimestamp, uint64(at.UnixNano()))
	k.t.packet = appendBytes(p, packetTrackEvent, k.t.event)
	k.t.write(k.t.packet)
}

// write writes a TracePacket, in one call of the writer.
func (t *Trace) write(packet []byte) {
	if t.err != nil {
		return
	}
	packet = appendVarint(packet, packetSequence, sequence)
	t.whole = appendBytes(t.whole[:0], tracePacket, packet)
	_, t.err = t.w.Write(t.whole)
}

// TrackGroup is a group of tracks with one name, for slices that overlap.
type TrackGroup struct {
	parent Track
	name   string
	all    []groupTrack
}

type groupTrack struct {
	Track
	free time.Time // end of its last slice
}

// Group returns a group below a track. The group creates a track when a slice needs it.
func (t *Trace) Group(parent Track, name string) *TrackGroup {
	return &TrackGroup{parent: parent, name: name}
}

// maxGroupTracks limits the tracks of a group.
const maxGroupTracks = 256

// Slice adds a slice on a track without a slice at that time. Slices are added in the order of their begins. Slice
// returns the track, for slices within the slice. If 256 slices overlap, the next one becomes an instant, and ok is
// false.
func (g *TrackGroup) Slice(from, to time.Time, e Event) (on Track, ok bool) {
	at := -1
	for i := range g.all {
		if !g.all[i].free.After(from) {
			at = i
			break
		}
	}
	if at < 0 && len(g.all) == maxGroupTracks {
		g.all[0].Instant(from, e)
		return Track{}, false
	}
	if at < 0 {
		at = len(g.all)
		g.all = append(g.all, groupTrack{Track: g.parent.t.Track(g.parent, g.name)})
	}
	g.all[at].Track.Slice(from, to, e)
	g.all[at].free = to
	return g.all[at].Track, true
}

func appendVarint(b []byte, n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}

func appendString(b []byte, n protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
}

func appendBytes(b []byte, n protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
}
