package capture

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"verbena/roce"
)

// describe returns a message in one line, with times in milliseconds since the first packet.
func (m *message) describe(c *Connection) string {
	first := c.firstPacketTime()
	s := fmt.Sprintf("%d: %s psn %d-%d, %d bytes, %d..%d ms", m.from, m.name, m.first, m.last, m.bytes,
		m.sent.Sub(first).Milliseconds(), m.end.Sub(first).Milliseconds())
	switch {
	case m.result != "":
		s += ", " + m.result
	case !m.answered:
		s += ", open"
	}
	for _, n := range m.notes {
		s += fmt.Sprintf("; %d: %s", n.at.Sub(first).Milliseconds(), n.text)
	}
	return s
}

// TestMessages checks that the packets of a connection give its messages, with their answers and faults.
func TestMessages(t *testing.T) {
	const lost = false
	for _, c := range []struct {
		name   string
		record func(w *recordedPair)
		want   []string
	}{
		{"several packets, one answer for two messages", func(w *recordedPair) {
			w.recordPacket(0, roce.RCSendFirst, 5, 1024, 0, true, true)
			w.recordPacket(0, roce.RCSendMiddle, 6, 1024, 0, true, true)
			w.recordPacket(0, roce.RCSendLast, 7, 10, 0, true, true)
			w.recordPacket(0, roce.RCRDMAWriteOnly, 8, 64, 0, true, true)
			w.recordPacket(1, roce.RCAcknowledge, 8, 0, roce.ACK(31), true, true)
		}, []string{"0: SEND psn 5-7, 2058 bytes, 0..4 ms", "0: RDMA WRITE psn 8-8, 64 bytes, 3..4 ms"}},
		{"an answer to a part", func(w *recordedPair) {
			w.recordPacket(0, roce.RCSendFirst, 5, 1024, 0, true, true)
			w.recordPacket(1, roce.RCAcknowledge, 5, 0, roce.ACK(31), true, true)
			w.recordPacket(0, roce.RCSendLast, 6, 1, 0, true, true)
			w.recordPacket(1, roce.RCAcknowledge, 6, 0, roce.ACK(31), true, true)
		}, []string{"0: SEND psn 5-6, 1025 bytes, 0..3 ms"}},
		{"lost, and sent again after a NAK", func(w *recordedPair) {
			w.recordPacket(0, roce.RCSendOnly, 6, 64, 0, true, lost)
			w.recordPacket(0, roce.RCSendOnly, 7, 64, 0, true, true)
			w.recordPacket(1, roce.RCAcknowledge, 6, 0, roce.NAKPSNSequenceError, true, true)
			w.recordPacket(0, roce.RCSendOnly, 6, 64, 0, true, true)
			w.recordPacket(0, roce.RCSendOnly, 7, 64, 0, true, true)
			w.recordPacket(1, roce.RCAcknowledge, 7, 0, roce.ACK(31), true, true)
		}, []string{
			"0: SEND psn 6-6, 64 bytes, 0..5 ms; 0: lost: SEND Only psn 6, 64 bytes; 2: NAK PSN Sequence Error; " +
				"3: sent again: SEND Only psn 6, 64 bytes",
			"0: SEND psn 7-7, 64 bytes, 1..5 ms; 4: sent again: SEND Only psn 7, 64 bytes"}},
		{"a receiver that is not ready, a refused request, and one without an answer", func(w *recordedPair) {
			w.recordPacket(0, roce.RCSendOnly, 6, 1, 0, true, true)
			w.recordPacket(1, roce.RCAcknowledge, 6, 0, roce.RNRNAK(1), true, true)
			w.recordPacket(0, roce.RCSendOnly, 6, 1, 0, true, true)
			w.recordPacket(1, roce.RCAcknowledge, 6, 0, roce.ACK(31), true, true)
			w.recordPacket(0, roce.RCRDMAWriteOnly, 7, 1, 0, true, true)
			w.recordPacket(1, roce.RCAcknowledge, 7, 0, roce.NAKRemoteAccessError, true, true)
			w.recordPacket(0, roce.RCSendOnly, 8, 1, 0, true, true)
		}, []string{
			"0: SEND psn 6-6, 1 bytes, 0..3 ms; 1: the receiver is not ready; 2: sent again: SEND Only psn 6, 1 bytes",
			"0: RDMA WRITE psn 7-7, 1 bytes, 4..5 ms, NAK Remote Access Error; 5: NAK Remote Access Error",
			"0: SEND psn 8-8, 1 bytes, 6..6 ms, open"}},
		{"READ, atomic, and a WRITE that the response of the READ acknowledges", func(w *recordedPair) {
			w.recordPacket(1, roce.RCRDMAWriteOnly, 9, 3, 0, true, true)
			w.recordPacket(1, roce.RCRDMAReadRequest, 10, 0, 0, true, true)
			w.recordPacket(1, roce.RCFetchAdd, 12, 0, 0, true, true)
			w.recordPacket(0, roce.RCRDMAReadResponseFirst, 10, 1024, roce.ACK(31), true, true)
			w.recordPacket(0, roce.RCRDMAReadResponseLast, 11, 6, roce.ACK(31), true, true)
			w.recordPacket(0, roce.RCAtomicAcknowledge, 12, 0, roce.ACK(31), true, true)
		}, []string{"0: RDMA WRITE psn 9-9, 3 bytes, 0..3 ms", "0: RDMA READ psn 10-10, 1030 bytes, 1..4 ms",
			"0: FetchAdd psn 12-12, 0 bytes, 2..5 ms"}},
		{"dropped before the capture, and sent again", func(w *recordedPair) {
			w.recordPacket(0, roce.RCSendFirst, 6, 64, 0, true, true)
			w.recordPacket(0, roce.RCSendOnly, 9, 64, 0, true, true)
			w.recordPacket(1, roce.RCAcknowledge, 7, 0, roce.NAKPSNSequenceError, true, true)
			w.recordPacket(0, roce.RCSendLast, 7, 1, 0, true, true)
			w.recordPacket(0, roce.RCSendOnly, 8, 64, 0, true, true)
			w.recordPacket(0, roce.RCSendOnly, 9, 64, 0, true, true)
			w.recordPacket(1, roce.RCAcknowledge, 9, 0, roce.ACK(31), true, true)
			w.recordPacket(0, roce.RCSendOnly, 9, 64, 0, true, true) // the answer was late
			w.recordPacket(1, roce.RCAcknowledge, 9, 0, roce.ACK(31), true, true)
		}, []string{
			"0: SEND psn 6-7, 65 bytes, 0..6 ms; 2: NAK PSN Sequence Error; 3: sent again: SEND Last psn 7, 1 bytes",
			"0: SEND psn 9-9, 64 bytes, 1..6 ms; 5: sent again: SEND Only psn 9, 64 bytes",
			"0: SEND psn 8-8, 64 bytes, 4..6 ms; 4: sent again: SEND Only psn 8, 64 bytes"}},
		{"the begin dropped before the capture, and sent again", func(w *recordedPair) {
			w.recordPacket(0, roce.RCSendOnly, 5, 64, 0, true, true)
			w.recordPacket(0, roce.RCSendLast, 8, 1, 0, true, true)
			w.recordPacket(1, roce.RCAcknowledge, 6, 0, roce.NAKPSNSequenceError, true, true)
			w.recordPacket(0, roce.RCSendFirst, 6, 64, 0, true, true)
			w.recordPacket(0, roce.RCSendMiddle, 7, 64, 0, true, true)
			w.recordPacket(0, roce.RCSendLast, 8, 1, 0, true, true)
			w.recordPacket(1, roce.RCAcknowledge, 8, 0, roce.ACK(31), true, true)
		}, []string{"0: SEND psn 5-5, 64 bytes, 0..2 ms",
			"0: SEND psn 6-8, 129 bytes, 1..6 ms; 3: sent again: SEND First psn 6, 64 bytes; " +
				"4: sent again: SEND Middle psn 7, 64 bytes; 5: sent again: SEND Last psn 8, 1 bytes"}},
		{"both directions", func(w *recordedPair) {
			w.recordPacket(0, roce.RCSendOnly, 5, 1, 0, true, true)
			w.recordPacket(1, roce.RCSendOnly, 5, 2, 0, true, true)
			w.recordPacket(0, roce.RCAcknowledge, 5, 0, roce.ACK(31), true, true)
			w.recordPacket(1, roce.RCAcknowledge, 5, 0, roce.ACK(31), true, true)
		}, []string{"0: SEND psn 5-5, 1 bytes, 0..3 ms", "1: SEND psn 5-5, 2 bytes, 1..2 ms"}},
		{"UC", func(w *recordedPair) {
			w.recordPacket(0, roce.UCSendFirst, 5, 1024, 0, true, true)
			w.recordPacket(0, roce.UCSendLast, 6, 2, 0, true, true)
		}, []string{"0: SEND psn 5-6, 1026 bytes, 0..1 ms"}},
		{"a capture that begins within a message", func(w *recordedPair) {
			w.recordPacket(0, roce.RCSendMiddle, 5, 1024, 0, true, true)
			w.recordPacket(0, roce.RCSendLast, 6, 2, 0, true, true)
			w.recordPacket(1, roce.RCAcknowledge, 6, 0, roce.ACK(31), true, true)
		}, []string{"0: SEND psn 5-6, 1026 bytes, 0..2 ms"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newRecordedPair(t)
			c.record(w)
			list := w.parseConnections()
			if len(list) != 1 {
				t.Fatalf("got %d connections, want 1", len(list))
			}
			var got []string
			for _, m := range list[0].messagesOf() {
				got = append(got, m.describe(list[0]))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// traceStats counts the events of a trace.
type traceStats struct {
	tracks map[uint64]string
	begins, ends, instants,
	counts, flows int
}

// readTrace counts the events of a trace, and checks that each slice ends on its track.
func readTrace(t *testing.T, b []byte) *traceStats {
	t.Helper()
	fields := func(b []byte, f func(n protowire.Number, v []byte, i uint64)) {
		for len(b) > 0 {
			n, typ, k := protowire.ConsumeTag(b)
			if k < 0 {
				t.Fatal(protowire.ParseError(k))
			}
			b = b[k:]
			var v []byte
			var i uint64
			switch typ {
			case protowire.VarintType:
				i, k = protowire.ConsumeVarint(b)
			case protowire.Fixed64Type:
				i, k = protowire.ConsumeFixed64(b)
			default:
				v, k = protowire.ConsumeBytes(b)
			}
			if k < 0 {
				t.Fatal(protowire.ParseError(k))
			}
			b = b[k:]
			f(n, v, i)
		}
	}
	s := &traceStats{tracks: map[uint64]string{}}
	open := map[uint64]int{}
	fields(b, func(_ protowire.Number, packet []byte, _ uint64) {
		fields(packet, func(n protowire.Number, v []byte, _ uint64) {
			var typ, track uint64
			name := ""
			fields(v, func(m protowire.Number, v []byte, i uint64) {
				switch {
				case n == 60 && m == 1 || n == 11 && m == 11:
					track = i
				case n == 60 && m == 2 || n == 11 && m == 23:
					name = string(v)
				case n == 11 && m == 9:
					typ = i
				case n == 11 && m == 47:
					s.flows++
				}
			})
			switch {
			case n == 60:
				s.tracks[track] = name
			case n == 11 && s.tracks[track] == "":
				t.Errorf("an event on track %d, which does not exist", track)
			}
			switch typ {
			case 1:
				s.begins, open[track] = s.begins+1, open[track]+1
			case 2:
				s.ends, open[track] = s.ends+1, open[track]-1
			case 3:
				s.instants++
			case 4:
				s.counts++
			}
		})
	})
	for track, n := range open {
		if n != 0 {
			t.Errorf("track %q: %d slices do not end", s.tracks[track], n)
		}
	}
	return s
}

// TestPerfetto checks the numbers of events in a trace, and that messages that overlap are on different tracks.
func TestPerfetto(t *testing.T) {
	w := newRecordedPair(t)
	w.recordPacket(0, roce.RCSendOnly, 5, 1, 0, true, true)
	w.recordPacket(0, roce.RCSendOnly, 6, 1, 0, true, false)
	w.recordPacket(1, roce.RCAcknowledge, 5, 0, roce.ACK(31), true, true)
	w.recordPacket(0, roce.RCSendOnly, 6, 1, 0, true, true)
	w.recordPacket(1, roce.RCAcknowledge, 6, 0, roce.ACK(31), true, true)
	list := w.parseConnections()
	var b bytes.Buffer
	if err := WritePerfetto(&b, list); err != nil {
		t.Fatal(err)
	}
	s := readTrace(t, b.Bytes())
	requests := 0
	for _, name := range s.tracks {
		if name == "requests of 10.0.0.1 QP 17" {
			requests++
		}
	}
	// each message is a request and an arrival; the notes are "lost" and "sent again"
	if requests != 2 || s.begins != 4 || s.ends != 4 || s.flows != 4 || s.instants != 2 || s.counts != 4 {
		t.Errorf("got %d tracks of requests and %+v, want 2 tracks, 4 slices with a flow each, 2 instants and 4 counts",
			requests, *s)
	}
	if err := WritePerfetto(failingWriter{}, list); !errors.Is(err, errWriteFailed) {
		t.Errorf("a writer that fails: got error %v, want %v", err, errWriteFailed)
	}
}

// TestSRDRequests checks the requests of a conversation of SRD.
func TestSRDRequests(t *testing.T) {
	w := newRecordedPair(t)
	w.recordSRDConversation()
	var got []string
	for _, m := range w.parseConnections()[0].messagesOf() {
		got = append(got, fmt.Sprintf("%s psn %d from %d: %d bytes, again %d, waits %d, answered %t, %q", m.name, m.first,
			m.from, m.bytes, m.again, m.waits, m.answered, m.result))
	}
	want := []string{
		`SEND psn 5 from 0: 8 bytes, again 1, waits 0, answered true, ""`,
		`RDMA WRITE psn 6 from 0: 64 bytes, again 0, waits 0, answered true, "bad address"`,
		`RDMA READ psn 7 from 0: 32 bytes, again 0, waits 0, answered true, ""`,
		`SEND with Immediate psn 8 from 0: 16 bytes, again 0, waits 1, answered false, ""`,
		`SEND psn 900 from 1: 4 bytes, again 0, waits 0, answered true, ""`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("requests: got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
