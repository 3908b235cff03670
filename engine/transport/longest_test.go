package transport

import (
	"fmt"
	"testing"

	"verbena/roce"
)

// TestLongestMessage: 2 GiB at the smallest path MTU are 2^23 packets, half of all PSNs. For an acknowledgement or a
// response at any point of such a message, the sender identifies the right packet.
func TestLongestMessage(t *testing.T) {
	const size, mtu = 1 << 31, 256
	const packets = size / mtu
	for _, first := range []roce.PSN{0, 1, 1 << 23, 0xffffff, 0x800001} {
		for _, kind := range []Kind{Write, Read} {
			for _, at := range []int{1, 2, packets/2 - 1, packets / 2, packets - 1, packets} {
				t.Run(fmt.Sprintf("first %#x, kind %d, %d of %d", first, kind, at, packets), func(t *testing.T) {
					var s Sender
					s.SenderConfig = SenderConfig{Reliable: true, MTU: mtu, MaxReads: 1, RetryCnt: 7}
					s.Init(new(AIMD))
					s.Begin(first)
					s.Push(Request{Kind: kind, Length: size, Packets: packets})
					if s.next != first.Add(packets) {
						t.Fatalf("next PSN: got %#x, want %#x", s.next, first.Add(packets))
					}
					e := s.flight.at(s.flight.head)
					// All packets before the place are acknowledged, except the last one.
					s.una, s.sent = first.Add(at-1), first.Add(at)
					s.Rewind()
					if s.pkt != at-1 {
						t.Errorf("Rewind: got packet %d, want %d", s.pkt, at-1)
					}
					s.out, s.pkt = e.cost(mtu, at-1, at), at
					if at == packets {
						s.at, s.pkt = s.flight.tail, 0
					}
					psn, done := first.Add(at-1), 0
					if !s.Expects(psn) || s.Expects(psn.Next()) || s.Expects(psn.Add(-1)) {
						t.Error("Expects: not that PSN alone")
					}
					if kind == Read {
						s.reads = 1
						r := Response{PSN: psn, Op: roce.RDMAReadResponseMiddle, Length: mtu}
						if at == packets || at%s.chunk() == 0 {
							r.Op, r.Syndrome = roce.RDMAReadResponseLast, roce.ACKUnlimited
						}
						res, to, ok := s.Response(&r)
						if !ok || to.Offset != (at-1)*mtu || to.Last != (at == packets) || res != (Result{}) {
							t.Fatalf("Response: got %+v, %+v, %v", res, to, ok)
						}
						done = s.Stored().Done
					} else {
						done = s.Ack(psn, roce.ACKUnlimited).Done
					}
					if want := at / packets; done != want || s.Len() != 1-want {
						t.Errorf("got %d complete, %d in flight, want %d complete", done, s.Len(), want)
					}
					if s.una != first.Add(at) || s.out != 0 {
						t.Errorf("una: got %#x, want %#x; %d bytes out", s.una, first.Add(at), s.out)
					}
				})
			}
		}
	}
}
