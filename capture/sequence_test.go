package capture

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"verbena/link"
	"verbena/roce"
)

// recordedPair records packets of queue pair 17 at 10.0.0.1 and queue pair 18 at 10.0.0.2, like a capture of the
// devices.
type recordedPair struct {
	t    *testing.T
	buf  bytes.Buffer
	rec  *Recorder
	taps [2]link.Tap
	at   time.Time
}

var pairAddrs = [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}

func newRecordedPair(t *testing.T) *recordedPair {
	w := &recordedPair{t: t, at: time.Unix(1700000000, 0)}
	w.rec = New(&w.buf, Options{})
	w.taps = [2]link.Tap{w.rec.NewInterfaceTap("rxe0", ""), w.rec.NewInterfaceTap("rxe1", "")}
	return w
}

// recordPacket records a packet from an end. leaves and arrives select the records at that end and at the opposite end.
func (w *recordedPair) recordPacket(from int, op roce.Opcode, psn roce.PSN, payload int, syndrome roce.Syndrome, leaves,
	arrives bool) {
	w.t.Helper()
	buf := make([]byte, 8192)
	p := roce.NewPacket(buf, &roce.BTHFields{Opcode: op, DestQPN: uint32(18 - from), PSN: psn, PKey: 0xffff}, payload)
	if h := p.AETH(); h != nil {
		h.Encode(syndrome, 1)
	}
	w.recordData(from, p.Data, leaves, arrives)
}

func (w *recordedPair) recordData(from int, data []byte, leaves, arrives bool) {
	w.t.Helper()
	w.at = w.at.Add(time.Millisecond)
	tapped := link.Tapped{Time: w.at, Src: netip.AddrPortFrom(pairAddrs[from], 50000),
		Dst: netip.AddrPortFrom(pairAddrs[1-from], roce.UDPPort), Data: data, Unsealed: true, TTL: 64}
	for i, on := range []bool{leaves, arrives} {
		if on {
			tapped.Out = i == 0
			w.taps[from^i].Packet(&tapped)
		}
	}
}

// recordSRD records a packet of SRD, with a value in its SRDETH and a payload.
func (w *recordedPair) recordSRD(from int, op roce.Opcode, psn roce.PSN, value uint32, payload []byte, arrives bool) {
	w.t.Helper()
	h := roce.BTHFields{Opcode: op, DestQPN: uint32(18 - from), PSN: psn, PKey: 0xffff}
	p := roce.NewPacket(make([]byte, 8192), &h, len(payload))
	p.DETH().Encode(0, uint32(17+from))
	p.SRDETH().Encode(7, value)
	copy(p.Payload, payload)
	w.recordData(from, p.Data, true, arrives)
}

func (w *recordedPair) parseConnections() []*Connection {
	w.t.Helper()
	if _, err := w.rec.Close(); err != nil {
		w.t.Fatal(err)
	}
	list, err := Connections(&w.buf)
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

// TestReadResponsesAreNotRequests checks that the packets of a response, which have the PSNs of the requester, are
// neither sent again nor behind a gap.
func TestReadResponsesAreNotRequests(t *testing.T) {
	w := newRecordedPair(t)
	w.recordPacket(0, roce.RCRDMAReadRequest, 10, 0, 0, true, true)
	for i, op := range []roce.Opcode{roce.RCRDMAReadResponseFirst, roce.RCRDMAReadResponseMiddle,
		roce.RCRDMAReadResponseMiddle, roce.RCRDMAReadResponseLast} {
		w.recordPacket(1, op, roce.PSN(10).Add(i), 64, roce.ACK(31), true, true)
	}
	w.recordPacket(1, roce.RCSendOnly, 900, 1, 0, true, true)
	w.recordPacket(0, roce.RCAcknowledge, 900, 0, roce.ACK(31), true, true)
	if c := w.parseConnections()[0]; c.HasFault() {
		t.Errorf("got faults in %s, want none", c.Summary())
	}
}

// TestConnectionsMergeBothEnds checks that the packets of both directions form one connection without duplicates, with
// a note on each fault.
func TestConnectionsMergeBothEnds(t *testing.T) {
	w := newRecordedPair(t)
	w.recordPacket(0, roce.RCSendOnly, 5, 64, 0, true, true)
	w.recordPacket(1, roce.RCAcknowledge, 5, 0, roce.ACK(31), true, true)
	w.recordPacket(0, roce.RCSendOnly, 6, 64, 0, true, false) // lost in transit
	w.recordPacket(0, roce.RCSendOnly, 7, 64, 0, true, true)
	w.recordPacket(1, roce.RCAcknowledge, 6, 0, roce.NAKPSNSequenceError, true, true)
	w.recordPacket(0, roce.RCSendOnly, 6, 64, 0, true, true)
	w.recordPacket(0, roce.RCSendOnly, 7, 64, 0, true, true)
	w.recordPacket(0, roce.RCSendOnly, 9, 64, 0, true, true) // PSN 8 was not sent
	w.recordPacket(0, roce.RCRDMAReadRequest, 10, 0, 0, true, true)
	w.recordPacket(1, roce.RCRDMAReadResponseOnly, 10, 4, roce.ACK(31), true, true)
	w.recordPacket(0, roce.RCSendOnly, 13, 0, 0, true, true) // the READ used three PSNs
	w.recordPacket(1, roce.RCAcknowledge, 13, 0, roce.RNRNAK(1), true, true)
	list := w.parseConnections()
	if len(list) != 1 {
		t.Fatalf("connections: got %d, want 1", len(list))
	}
	c := list[0]
	if c.Ends != [2]endpoint{{pairAddrs[0], 17}, {pairAddrs[1], 18}} || c.Service != roce.RC || !c.HasQP(17) ||
		!c.HasQP(18) ||
		c.HasQP(19) {
		t.Errorf("connection: got ends %v and service %v, want QPs 17 and 18 of RC", c.Ends, c.Service)
	}
	var notes []string
	for i := range c.Packets {
		notes = append(notes, c.Packets[i].describeFaults())
	}
	if got, want := strings.Join(notes, "|"), "||lost||NAK|again|again|after a gap||||not ready"; got != want {
		t.Errorf("notes: got %s, want %s", got, want)
	}
	if p := c.Packets[0]; p.From != 0 || p.Sent.IsZero() || p.Arrived.IsZero() || p.Payload != 64 || p.BadICRC ||
		p.Frame != 1 {
		t.Errorf("first packet: got %+v, want 64 bytes sent and arrived from end 0", p)
	}
	if c.Packets[1].From != 1 {
		t.Error("sender of the acknowledgement: got end 0, want end 1")
	}
	for _, s := range []string{"12 packets", "2 sent again", "2 refused (NAK)", "1 lost"} {
		if !strings.Contains(c.Summary(), s) {
			t.Errorf("summary: got no %q, want it: %s", s, c.Summary())
		}
	}
}

// recordSRDConversation records a SEND that is sent again, a WRITE that is refused, a READ, a SEND without a receive,
// and a message in the opposite direction.
func (w *recordedPair) recordSRDConversation() {
	w.recordSRD(0, roce.SRDFlowOpen, 5, 9, nil, true)
	w.recordSRD(1, roce.SRDFlowAccept, 5, 3, nil, true)
	w.recordSRD(0, roce.SRDSendOnly, 5, 9, make([]byte, 8), false)
	w.recordSRD(0, roce.SRDRDMAWriteOnly, 6, 9, make([]byte, 64), true)
	w.recordSRD(0, roce.SRDRDMAReadRequest, 7, 9, nil, true)
	w.recordSRD(0, roce.SRDSendOnlyWithImmediate, 8, 9, make([]byte, 16), true)
	w.recordSRD(1, roce.SRDRDMAReadResponseOnly, 7, 3, make([]byte, 32), true)
	w.recordSRD(1, roce.SRDAcknowledge, 5, 3, []byte{0b010}, true)
	w.recordSRD(1, roce.SRDFlowRefuse, 8, uint32(roce.SRDNotReady), nil, true)
	w.recordSRD(1, roce.SRDFlowRefuse, 6, uint32(roce.SRDBadAddress), nil, true)
	w.recordSRD(0, roce.SRDSendOnly, 5, 9, make([]byte, 8), true)
	w.recordSRD(0, roce.SRDFlowSkip, 6, 9, nil, true)
	w.recordSRD(1, roce.SRDFlowRefuse, 6, uint32(roce.SRDSkipped), nil, true)
	w.recordSRD(1, roce.SRDAcknowledge, 8, 3, nil, true)
	w.recordSRD(1, roce.SRDSendOnly, 900, 4, make([]byte, 4), true)
	w.recordSRD(0, roce.SRDAcknowledge, 901, 9, nil, true)
}

// TestSRDText compares the text of a conversation of SRD.
func TestSRDText(t *testing.T) {
	w := newRecordedPair(t)
	w.recordSRDConversation()
	list := w.parseConnections()
	if len(list) != 1 {
		t.Fatalf("connections: got %d, want 1", len(list))
	}
	var b bytes.Buffer
	b.WriteString(list[0].Summary() + "\n")
	if err := list[0].WriteText(&b, 0, false); err != nil {
		t.Fatal(err)
	}
	const want = `SRD, 10.0.0.1 QP 17 and 10.0.0.2 QP 18: 16 packets, 1 sent again, 2 refused (NAK), 1 lost
       seconds  10.0.0.1 QP 17                                  10.0.0.2 QP 18
      0.000000  Flow Open psn 5                            --> 
      0.001000                                             <-- Flow Accept psn 5
      0.002000  SEND Only psn 5, 8 bytes                   --x   ! lost
      0.003000  RDMA WRITE Only psn 6, 64 bytes            --> 
      0.004000  RDMA READ Request psn 7                    --> 
      0.005000  SEND Only with Immediate psn 8, 16 bytes   --> 
      0.006000                                             <-- RDMA READ response Only psn 7, 32 bytes
      0.007000                                             <-- Acknowledge psn 5, 1 later
      0.008000                                             <-- Flow Refuse psn 8, not ready  ! not ready
      0.009000                                             <-- Flow Refuse psn 6, bad address  ! refused
      0.010000  SEND Only psn 5, 8 bytes                   -->   ! again
      0.011000  Flow Skip psn 6                            --> 
      0.012000                                             <-- Flow Refuse psn 6, skipped
      0.013000                                             <-- Acknowledge psn 8
      0.014000                                             <-- SEND Only psn 900, 4 bytes
      0.015000  Acknowledge psn 901                        --> 
`
	if b.String() != want {
		t.Errorf("text: got\n%s\nwant\n%s", b.String(), want)
	}
}

// TestTextAndSVGShowPackets checks that the text has a line for each shown packet, and that the picture is well-formed.
func TestTextAndSVGShowPackets(t *testing.T) {
	w := newRecordedPair(t)
	for i := range roce.PSN(20) {
		w.recordPacket(0, roce.RCSendOnly, i, 64, 0, true, i != 12)
	}
	c := w.parseConnections()[0]
	for _, x := range []struct {
		limit   int
		trouble bool
		lines   int
	}{{0, false, 21}, {5, false, 7}, {0, true, 15}, {3, true, 5}} {
		var b bytes.Buffer
		if err := c.WriteText(&b, x.limit, x.trouble); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(b.String(), "\n"); n != x.lines {
			t.Errorf("limit %d, trouble %t: got %d lines, want %d:\n%s", x.limit, x.trouble, n, x.lines, b.String())
		}
		var svg bytes.Buffer
		if err := c.WriteSVG(&svg, x.limit, x.trouble); err != nil {
			t.Fatal(err)
		}
		for d := xml.NewDecoder(&svg); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	if !c.HasFault() {
		t.Error("Trouble for a lost packet: got false, want true")
	}
}

// TestOneEndedCaptureReportsNoLoss checks that in a capture of one device, packets are not marked as lost because the
// opposite end was not captured.
func TestOneEndedCaptureReportsNoLoss(t *testing.T) {
	w := newRecordedPair(t)
	w.recordPacket(0, roce.RCSendOnly, 1, 64, 0, true, false)
	w.recordPacket(1, roce.RCAcknowledge, 1, 0, roce.ACK(31), false, true)
	list := w.parseConnections()
	if len(list) != 1 || len(list[0].Packets) != 2 || list[0].HasFault() {
		t.Errorf("connections: got %d, want 1 with 2 packets without a fault: %s", len(list), list[0].Summary())
	}
}

// FuzzConnections checks that any file is parsed in a short time without a panic, and that the result can be shown.
func FuzzConnections(f *testing.F) {
	t := &testing.T{}
	w := newRecordedPair(t)
	w.recordPacket(0, roce.RCSendOnly, 1, 64, 0, true, true)
	w.recordPacket(1, roce.RCAcknowledge, 1, 0, roce.ACK(31), true, true)
	w.rec.Close()
	f.Add(w.buf.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := Connections(bytes.NewReader(b))
		if err != nil {
			return
		}
		for _, c := range list {
			_ = c.Summary()
			if c.WriteText(io.Discard, 50, false) != nil || c.WriteSVG(io.Discard, 50, true) != nil {
				t.Error("Text or SVG: got an error, want success")
			}
		}
		if err := WritePerfetto(io.Discard, list); err != nil {
			t.Errorf("WritePerfetto: got error %v, want success", err)
		}
	})
}
