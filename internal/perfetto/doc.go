// Package perfetto writes traces for the viewer Perfetto (ui.perfetto.dev) and its trace_processor.
//
// A trace has tracks, which form a tree. A track holds slices, instants, or the values of a counter:
//
//	Trace.Track -----> Track.Slice, Track.Instant
//	Trace.Counter ---> Track.Count
//	Trace.Group -----> TrackGroup.Slice   slices that overlap, on different tracks
//
// The format is the message perfetto.protos.Trace of Perfetto's protos/perfetto/trace. The package writes only these
// messages: TracePacket, TrackDescriptor, CounterDescriptor, TrackEvent, DebugAnnotation. Their fields have the same
// numbers in all versions of Perfetto. Names are stored in full, so each packet can be read alone.
//
// A Trace stores nothing but its tracks: the events go to the writer at once, in any order of time.
package perfetto
