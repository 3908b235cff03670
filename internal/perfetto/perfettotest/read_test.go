package perfettotest

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"verbena/internal/perfetto"
)

// TestReadRefusesUndefined checks that Read refuses traces that trace_processor would drop or misunderstand.
func TestReadRefusesUndefined(t *testing.T) {
	var whole bytes.Buffer
	w := perfetto.New(&whole)
	top := w.Track(perfetto.Track{}, "QP 1")
	top.Slice(time.Unix(1, 0), time.Unix(2, 0), perfetto.Event{Name: "SEND",
		Attrs: []perfetto.Attr{{Name: "n", Number: 8}}, Flows: []perfetto.Flow{w.NewFlow()}})
	w.Counter(top, "depth", "requests").Count(time.Unix(1, 0), -1)
	tr, err := Read(whole.Bytes())
	if err != nil || len(tr.Slices) != 1 || tr.Slices[0].Attrs["n"] != "8" ||
		!slices.Equal(tr.Values("depth"), []int64{-1}) {
		t.Fatalf("Read: got %v, %v, want a slice and a value", tr, err)
	}
	varint := func(b []byte, n protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
	}
	packet := func(p []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), p)
	}
	sequence := varint(nil, 10, 1)
	field := func(n protowire.Number, m []byte) []byte {
		return packet(protowire.AppendBytes(protowire.AppendTag(slices.Clone(sequence), n, protowire.BytesType), m))
	}
	for _, tt := range []struct {
		name  string
		bytes []byte
		want  string
	}{
		{"undefined field of a packet", packet(varint(slices.Clone(sequence), 9999, 1)), "TracePacket has undefined"},
		{"undefined field of an event", field(11, varint(nil, 40, 1)), "TrackEvent has undefined"},
		{"wrong type on the wire", field(11, protowire.AppendFixed64(protowire.AppendTag(nil, 11, protowire.Fixed64Type), 1)),
			"TrackEvent has undefined"},
		{"undefined type of an event", field(11, varint(nil, 9, 77)), "undefined value 77 of type"},
		{"no sequence", packet(varint(nil, 8, 1)), "without trusted_packet_sequence_id"},
		{"no uuid", field(60, nil), "no uuid"},
		{"track twice", slices.Concat(whole.Bytes(), field(60, varint(nil, 1, 1))), "described twice"},
		{"unknown track", field(11, varint(varint(nil, 9, 3), 11, 7)), "track 7, which is unknown"},
		{"counter event on a track of slices", slices.Concat(whole.Bytes(), field(11, varint(varint(nil, 9, 4), 11, 1))),
			"event of type 4"},
		{"end without begin", slices.Concat(whole.Bytes(), field(11, varint(varint(nil, 9, 2), 11, 1))),
			"without a begin"},
		{"cut", whole.Bytes()[:whole.Len()-1], "invalid wire-format"},
	} {
		if _, err := Read(tt.bytes); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got error %v, want one with %q", tt.name, err, tt.want)
		}
	}
}
