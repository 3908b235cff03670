package rdmanet

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

// TestFlowInRandomEventOrder applies the events of one direction in a random order that the wire and the devices allow.
// The sender must never overrun a ring or the receives. There must never be more credits in flight than there are
// receives for credits, and the stream must never stall.
func TestFlowInRandomEventOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		own := rapid.IntRange(minRing, 2000).Draw(t, "own")
		peer := rapid.IntRange(minRing, 2000).Draw(t, "peer")
		messages := rapid.IntRange(minMessages, 40).Draw(t, "messages")
		s, r := newFlowSender(own, peer, messages), newFlowReceiver(peer, messages)
		type message struct {
			pos uint64
			n   int
		}
		var (
			wire      []message // messages posted but not yet received
			signaled  []uint64  // to be completed
			done      uint64    // highest position that may complete
			credits   []uint32  // credits sent by the receiver but not yet handled by the sender
			delivered uint64
		)
		steps := map[string]func(*rapid.T) bool{
			"send": func(t *rapid.T) bool {
				room := s.maxNextMessage()
				if room == 0 {
					return false
				}
				n := rapid.IntRange(1, room).Draw(t, "n")
				if at := int(s.sent % s.own); at+n > own {
					t.Fatalf("%d bytes at %d of %d", n, at, own)
				}
				if at := int(s.sent % s.peer); at+n > peer {
					t.Fatalf("message of %d bytes at offset %d: got it past the end of the peer's ring of %d, want it contiguous",
						n, at, peer)
				}
				if s.recordPost(n) {
					signaled = append(signaled, s.sent)
				}
				wire = append(wire, message{s.sent, n})
				return true
			},
			"arrive": func(t *rapid.T) bool {
				if len(wire) == 0 {
					return false
				}
				if err := r.recordArrival(wire[0].n); err != nil {
					t.Fatal(err)
				}
				done = wire[0].pos
				wire = wire[1:]
				return true
			},
			"complete": func(*rapid.T) bool {
				if len(signaled) == 0 || signaled[0] > done {
					return false
				}
				s.recordCompletedUpTo(signaled[0])
				signaled = signaled[1:]
				return true
			},
			"read": func(t *rapid.T) bool {
				if r.unreadBytes() == 0 {
					return false
				}
				from, to := r.nextRange(rapid.IntRange(1, peer).Draw(t, "limit"))
				if uint64(from) != delivered%uint64(peer) || to > peer || to <= from {
					t.Fatalf("next: got the range %d to %d in a ring of %d, want a contiguous one at the read position",
						from, to, peer)
				}
				delivered += uint64(to - from)
				if r.recordConsumedBytes(to - from) {
					credits = append(credits, r.takeCredit())
					if len(credits) > 2*creditFraction {
						t.Fatalf("credits in flight: got %d, want at most 2*fraction", len(credits))
					}
				}
				return true
			},
			"see": func(t *rapid.T) bool {
				if len(credits) == 0 {
					return false
				}
				if _, err := s.handleAck(credits[0]); err != nil {
					t.Fatal(err)
				}
				credits = credits[1:]
				return true
			},
		}
		names := []string{"send", "arrive", "complete", "read", "see"}
		for range 200 {
			steps[rapid.SampledFrom(names).Draw(t, "step")](t)
		}
		// When all events have been handled, there must be space for another message.
		for moved := true; moved; {
			moved = false
			for _, n := range names[1:] {
				moved = steps[n](t) || moved
			}
		}
		if s.maxNextMessage() == 0 {
			t.Fatalf("room with nothing in flight: got 0, want space; sender %+v, receiver %+v", s, r)
		}
		if r.consumed != s.sent {
			t.Fatalf("bytes at the end: sent %d, got %d read, want all", s.sent, r.consumed)
		}
	})
}

func TestFlowRefusesViolations(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name string
		f    func(*flowSender, *flowReceiver) error
		want error
	}{
		{"more than the ring", func(_ *flowSender, r *flowReceiver) error { return r.recordArrival(1001) }, syscall.EPROTO},
		{"the whole ring", func(_ *flowSender, r *flowReceiver) error { return r.recordArrival(1000) }, nil},
		{"a byte too many", func(_ *flowSender, r *flowReceiver) error {
			return errors.Join(r.recordArrival(1000), r.recordArrival(1))
		}, syscall.EPROTO},
		{"a message too many", func(_ *flowSender, r *flowReceiver) error {
			var err error
			for range 5 {
				err = r.recordArrival(1)
			}
			return err
		}, syscall.EPROTO},
		{"a credit of nothing", func(s *flowSender, _ *flowReceiver) error { return applyAck(s, 1) }, syscall.EPROTO},
		{"a credit again", func(s *flowSender, _ *flowReceiver) error {
			s.recordPost(10)
			return errors.Join(applyAck(s, 10), applyAck(s, 10), applyAck(s, 5))
		}, nil},
		{"a credit beyond 2^30", func(*flowSender, *flowReceiver) error {
			const n = 1 << 20
			s, r := newFlowSender(n, n, 4), newFlowReceiver(n, 4)
			for range 5000 { // nearly 5 * 2^30 bytes in total
				s.recordPost(n)
				s.recordCompletedUpTo(s.sent)
				if err := r.recordArrival(n); err != nil {
					return err
				}
				r.recordConsumedBytes(n)
				if _, err := s.handleAck(r.takeCredit()); err != nil {
					return err
				}
			}
			if s.acked != s.sent {
				return fmt.Errorf("acked: got %d, want %d", s.acked, s.sent)
			}
			return nil
		}, nil},
	} {
		s, r := newFlowSender(1000, 1000, 4), newFlowReceiver(1000, 4)
		if err := x.f(&s, &r); !errors.Is(err, x.want) {
			t.Errorf("%s: got %v, want %v", x.name, err, x.want)
		}
	}
}

func applyAck(s *flowSender, imm uint32) error {
	_, err := s.handleAck(imm)
	return err
}
