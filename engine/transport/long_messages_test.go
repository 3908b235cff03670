package transport_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"verbena/engine/transport"
	"verbena/roce"
)

// TestLongMessages sends two messages of 2^23 packets, the maximum, followed by short ones. Together they have more
// packets than there are PSNs. The test calls NextMiddles with different limits, and loses some of the packets.
func TestLongMessages(t *testing.T) {
	for _, reliable := range []bool{true, false} {
		x := newLongTransfer(t, reliable)
		for turns := 0; x.completed < len(x.lengths); turns++ {
			if turns == 1<<20 {
				t.Fatalf("reliable %t: %d of %d messages complete after %d turns", reliable, x.completed, len(x.lengths), turns)
			}
			x.send()
			if reliable {
				x.answer()
			}
		}
		if x.arrived != len(x.lengths) {
			t.Errorf("reliable %t: got %d messages, want %d", reliable, x.arrived, len(x.lengths))
		}
	}
}

// longTransfer is a sender with a model of its peer.
type longTransfer struct {
	*testing.T
	r       *rand.Rand
	s       transport.Sender
	now     time.Time
	lengths []int // by message

	completed int // completed messages at the sender

	expected roce.PSN // PSN expected by the peer
	arrived  int      // completed messages at the peer
	bytes    int      // received bytes of the next message
	asked    bool     // an acknowledgement is due
}

const longMTU = 256

func newLongTransfer(t *testing.T, reliable bool) *longTransfer {
	x := &longTransfer{
		T: t, r: rand.New(rand.NewPCG(1, 2)), now: time.Unix(1, 0), expected: 0xfffff0,
		lengths: []int{1 << 31, 3*longMTU + 1, 1 << 31, 0},
	}
	x.s.SenderConfig = transport.SenderConfig{Reliable: reliable, MTU: longMTU, MaxReads: 1, Timeout: 14}
	x.s.Init(new(transport.AIMD))
	x.s.SetRetryCnt(7)
	x.s.Begin(x.expected)
	for _, n := range x.lengths {
		x.s.Push(transport.Request{Kind: transport.Write, Length: n, Packets: packetsOf(n)})
	}
	return x
}

func packetsOf(length int) int { return max(1, (length+longMTU-1)/longMTU) }

// send sends packets until the window is full.
func (x *longTransfer) send() {
	for {
		n, ok := x.s.Current()
		if !ok {
			return
		}
		p, ok := x.s.NextMiddles(x.r.IntN(1000))
		if ok && (p.First || p.Last || p.Index+p.Packets >= packetsOf(x.lengths[n])) {
			x.Fatalf("NextMiddles: got %+v, want middle packets", p)
		}
		if !ok {
			if p, ok = x.s.Next(); !ok {
				return
			}
		}
		x.s.Sent(&p)
		if lost := x.s.Reliable && x.r.IntN(300) == 0; !lost {
			x.receive(&p)
		}
		done, _ := x.s.Advance()
		x.completed += done
	}
}

// receive models the peer: it accepts only the expected packets.
func (x *longTransfer) receive(p *transport.Packet) {
	if p.PSN != x.expected {
		return
	}
	if p.Offset != x.bytes {
		x.Fatalf("message %d: got bytes from %d on, want %d", x.arrived, p.Offset, x.bytes)
	}
	x.expected = x.expected.Add(p.Packets)
	if x.bytes += p.Length; x.bytes == x.lengths[x.arrived] {
		x.arrived, x.bytes = x.arrived+1, 0
	}
	x.asked = x.asked || p.AckReq
}

// answer passes the answer of the peer to the sender: an acknowledgement if one was requested, or a NAK if a packet is
// missing. If neither is possible because all packets were lost, the sender times out.
func (x *longTransfer) answer() {
	var res transport.Result
	switch last := x.expected.Add(-1); {
	case x.asked && x.s.Expects(last):
		res = x.s.Ack(last, roce.ACKUnlimited)
	case x.s.Expects(x.expected):
		res = x.s.Ack(x.expected, roce.NAKPSNSequenceError)
	default:
		if x.s.Unarmed() {
			x.s.Arm(x.now)
		}
		res, _ = x.s.TimedOut()
	}
	x.asked = false
	x.completed += res.Done
	if res.Failure != transport.NoFailure {
		x.Fatalf("got %+v, want no failure", res)
	}
}
