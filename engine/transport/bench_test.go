package transport_test

import (
	"testing"
	"time"

	"verbena/engine/transport"
	"verbena/roce"
)

// oneSend sends a message of several packets and acknowledges it.
func oneSend(s *transport.Sender, now time.Time, length, packets int) {
	s.Push(transport.Request{Kind: transport.Send, Length: length, Packets: packets})
	last := s.Place().Add(packets - 1)
	for done := 0; done == 0; {
		for {
			p, ok := s.Next()
			if !ok {
				break
			}
			s.Sent(&p)
		}
		s.Advance()
		if s.Unarmed() {
			s.Arm(now)
		}
		psn := s.Place().Add(-1)
		if !s.Expects(psn) {
			panic("not expected")
		}
		if done = s.Ack(psn, roce.ACKUnlimited).Done; done != 0 && psn != last {
			panic("complete too early")
		}
	}
}

func newSender() *transport.Sender {
	s := new(transport.Sender)
	s.SenderConfig = transport.SenderConfig{Reliable: true, MTU: 4096, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxReads: 16}
	s.Init(new(transport.AIMD))
	s.Begin(1)
	s.SetRetryCnt(7)
	s.SetRNRRetry(7)
	return s
}

func newReceiver() *transport.Receiver {
	r := new(transport.Receiver)
	r.SetMTU(4096)
	r.SetDepth(16)
	r.Begin(1)
	return r
}

// oneReceive receives a message of several packets and acknowledges it.
func oneReceive(r *transport.Receiver, length, packets int) {
	for i := range packets {
		a := transport.Arrival{Kind: transport.Send, Starts: i == 0, Ends: i == packets-1, Length: min(length, 4096)}
		length -= a.Length
		if r.Arrive(r.PSN()) != transport.Expected || !legal(r, &a) {
			panic("not expected")
		}
		r.Executed(&a, a.Ends)
	}
	if _, due := r.Ack(); !due {
		panic("no acknowledgement")
	}
	r.AckSent()
}

// oneReply receives a READ and an atomic, answers them, and answers their repetitions.
func oneReply(r *transport.Receiver) {
	read := transport.Repeat{PSN: r.PSN(), Kind: transport.Read, Addr: 4096, Key: 1, Length: 10000}
	r.Arrive(r.PSN())
	r.Answer(&transport.Answer{Kind: transport.Read, Packets: 3, Addr: read.Addr, Key: 1, Length: read.Length})
	atomic := transport.Repeat{PSN: r.PSN(), Kind: transport.Atomic}
	r.Arrive(r.PSN())
	r.Answer(&transport.Answer{Kind: transport.Atomic, Packets: 1, Result: 5})
	for range 2 {
		n := 0
		for y := r.Reply(); y != nil; y = r.Reply() {
			_, size := y.Packet(4096)
			y.Sent(1, size)
			n++
			if y.Left == 0 {
				r.Replied()
			}
		}
		if n != 4 {
			panic("not four packets")
		}
		if !r.Duplicate(&read) || !r.Duplicate(&atomic) {
			panic("unknown duplicates")
		}
	}
	for r.Reply() != nil {
		r.Replied()
	}
}

// TestAllocs: a message allocates no memory.
func TestAllocs(t *testing.T) {
	now := epoch
	s, r := newSender(), newReceiver()
	for _, x := range []struct {
		name string
		f    func()
	}{
		{"send of a packet", func() { oneSend(s, now, 64, 1) }},
		{"send of 64 KiB", func() { oneSend(s, now, 64<<10, 16) }},
		{"receive of a packet", func() { oneReceive(r, 64, 1) }},
		{"receive of 64 KiB", func() { oneReceive(r, 64<<10, 16) }},
		{"replies", func() { oneReply(r) }},
	} {
		x.f() // makes the slices grow
		if got := testing.AllocsPerRun(100, x.f); got != 0 {
			t.Errorf("%s: got %v allocations, want 0", x.name, got)
		}
	}
}

func BenchmarkSend(b *testing.B) {
	for _, x := range []struct {
		name            string
		length, packets int
	}{{"64", 64, 1}, {"64K", 64 << 10, 16}} {
		b.Run(x.name, func(b *testing.B) {
			s := newSender()
			b.ReportAllocs()
			for b.Loop() {
				oneSend(s, epoch, x.length, x.packets)
			}
		})
	}
}

func BenchmarkReceive(b *testing.B) {
	for _, x := range []struct {
		name            string
		length, packets int
	}{{"64", 64, 1}, {"64K", 64 << 10, 16}} {
		b.Run(x.name, func(b *testing.B) {
			r := newReceiver()
			b.ReportAllocs()
			for b.Loop() {
				oneReceive(r, x.length, x.packets)
			}
		})
	}
}

func BenchmarkReply(b *testing.B) {
	r := newReceiver()
	b.ReportAllocs()
	for b.Loop() {
		oneReply(r)
	}
}
