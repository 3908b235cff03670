package rdmanet

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

// TestFlowRandom applies the events of one direction in any order that the wire and the devices allow. The sender must
// never overrun a ring or the receives. There must never be more credits in flight than receives for them, and the
// stream must never stall.
func TestFlowRandom(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		own := rapid.IntRange(minRing, 2000).Draw(t, "own")
		peer := rapid.IntRange(minRing, 2000).Draw(t, "peer")
		messages := rapid.IntRange(minMessages, 40).Draw(t, "messages")
		s, r := newSender(own, peer, messages), newReceiver(peer, messages)
		type message struct {
			pos uint64
			n   int
		}
		var (
			wire      []message // posted, not yet received
			signaled  []uint64  // to be completed
			done      uint64    // highest position that may complete
			credits   []uint32  // sent by the receiver, not yet handled by the sender
			delivered uint64
		)
		steps := map[string]func(*rapid.T) bool{
			"send": func(t *rapid.T) bool {
				room := s.room()
				if room == 0 {
					return false
				}
				n := rapid.IntRange(1, room).Draw(t, "n")
				if at := int(s.sent % s.own); at+n > own {
					t.Fatalf("%d bytes at %d of %d", n, at, own)
				}
				if at := int(s.sent % s.peer); at+n > peer {
					t.Fatalf("%d bytes at %d of the peer's %d", n, at, peer)
				}
				if s.post(n) {
					signaled = append(signaled, s.sent)
				}
				wire = append(wire, message{s.sent, n})
				return true
			},
			"arrive": func(t *rapid.T) bool {
				if len(wire) == 0 {
					return false
				}
				if err := r.arrive(wire[0].n); err != nil {
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
				s.complete(signaled[0])
				signaled = signaled[1:]
				return true
			},
			"read": func(t *rapid.T) bool {
				if r.available() == 0 {
					return false
				}
				from, to := r.next(rapid.IntRange(1, peer).Draw(t, "limit"))
				if uint64(from) != delivered%uint64(peer) || to > peer || to <= from {
					t.Fatalf("next: got %d to %d of %d", from, to, peer)
				}
				delivered += uint64(to - from)
				if r.consume(to - from) {
					credits = append(credits, r.credit())
					if len(credits) > 2*fraction {
						t.Fatalf("%d credits are in flight", len(credits))
					}
				}
				return true
			},
			"see": func(t *rapid.T) bool {
				if len(credits) == 0 {
					return false
				}
				if _, err := s.ack(credits[0]); err != nil {
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
		// When all events were handled, there must be room.
		for moved := true; moved; {
			moved = false
			for _, n := range names[1:] {
				moved = steps[n](t) || moved
			}
		}
		if s.room() == 0 {
			t.Fatalf("nothing is in flight, and there is no room: %+v, %+v", s, r)
		}
		if r.consumed != s.sent {
			t.Fatalf("%d bytes were sent, %d read", s.sent, r.consumed)
		}
	})
}

func TestFlowRefuses(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name string
		f    func(*sender, *receiver) error
		want error
	}{
		{"more than the ring", func(_ *sender, r *receiver) error { return r.arrive(1001) }, syscall.EPROTO},
		{"the whole ring", func(_ *sender, r *receiver) error { return r.arrive(1000) }, nil},
		{"a byte too many", func(_ *sender, r *receiver) error {
			return errors.Join(r.arrive(1000), r.arrive(1))
		}, syscall.EPROTO},
		{"a message too many", func(_ *sender, r *receiver) error {
			var err error
			for range 5 {
				err = r.arrive(1)
			}
			return err
		}, syscall.EPROTO},
		{"a credit of nothing", func(s *sender, _ *receiver) error { return ack(s, 1) }, syscall.EPROTO},
		{"a credit again", func(s *sender, _ *receiver) error {
			s.post(10)
			return errors.Join(ack(s, 10), ack(s, 10), ack(s, 5))
		}, nil},
		{"a credit beyond 2^30", func(*sender, *receiver) error {
			const n = 1 << 20
			s, r := newSender(n, n, 4), newReceiver(n, 4)
			for range 5000 { // nearly 5 * 2^30 bytes
				s.post(n)
				s.complete(s.sent)
				if err := r.arrive(n); err != nil {
					return err
				}
				r.consume(n)
				if _, err := s.ack(r.credit()); err != nil {
					return err
				}
			}
			if s.acked != s.sent {
				return fmt.Errorf("acked: got %d, want %d", s.acked, s.sent)
			}
			return nil
		}, nil},
	} {
		s, r := newSender(1000, 1000, 4), newReceiver(1000, 4)
		if err := x.f(&s, &r); !errors.Is(err, x.want) {
			t.Errorf("%s: got %v, want %v", x.name, err, x.want)
		}
	}
}

func ack(s *sender, imm uint32) error {
	_, err := s.ack(imm)
	return err
}
