package transport_test

import (
	"testing"

	"verbena/engine/transport"
	"verbena/roce"
)

// TestOldAnswerIsNotRepeated: if two stored requests have the same PSN, the newer one is repeated (IBA 9.7.5.1.5).
func TestOldAnswerIsNotRepeated(t *testing.T) {
	var r transport.Receiver
	r.SetMTU(256)
	r.SetDepth(4)
	r.Begin(0)
	atomic := transport.Answer{Kind: transport.Atomic, Packets: 1, Result: 1000}
	r.Answer(&atomic)
	r.Replied()
	send := transport.Arrival{Kind: transport.Send, Starts: true, Ends: true}
	for range 1<<24 - 1 {
		r.Executed(&send, false)
	}
	atomic.Result = 77
	r.Answer(&atomic)
	r.Replied()
	if !r.Duplicate(&transport.Repeat{PSN: 0, Kind: transport.Atomic}) {
		t.Fatal("Duplicate: got false, want true")
	}
	if y := r.Reply(); y == nil || y.Result != 77 {
		t.Errorf("Reply: got %+v, want the result 77", y)
	}
}

// TestNAKOutlivesGap: packets 0, 2 and 1 arrive before any answer is sent. The NAK stays due, because packet 2 was
// dropped: without the NAK, only a timeout would cause its retransmission. The NAK also acknowledges packet 0 (IBA
// 9.7.5.2.4).
func TestNAKOutlivesGap(t *testing.T) {
	var r transport.Receiver
	r.SetMTU(256)
	only := transport.Arrival{Kind: transport.Send, Starts: true, Ends: true}
	r.Executed(&only, true)
	if got := r.Arrive(2); got != transport.Gap {
		t.Fatalf("Arrive: got %v, want Gap", got)
	}
	r.Executed(&only, false)
	want := transport.Ack{Syndrome: roce.NAKPSNSequenceError, PSN: 1}
	if a, due := r.Ack(); !due || a != want {
		t.Errorf("Ack: got %v, due %v, want %v", a, due, want)
	}
}

// TestUnsend: the packets of a message before index have been sent. An acknowledgement of these packets also
// acknowledges older requests (IBA 9.7.5.1.2).
func TestUnsend(t *testing.T) {
	var s transport.Sender
	s.SenderConfig = transport.SenderConfig{Reliable: true, MTU: 1024, MaxReads: 1}
	s.Init(new(transport.AIMD))
	s.Push(transport.Request{Kind: transport.Send, Length: 1, Packets: 1})
	s.Push(transport.Request{Kind: transport.Send, Length: 3000, Packets: 3})
	for range 3 {
		p, ok := s.Next()
		if !ok {
			t.Fatal("Next: got false")
		}
		s.Sent(&p)
		if p.Last {
			s.Advance()
		}
	}
	s.Unsend(1)
	if err := s.Verify(); err != nil {
		t.Error(err)
	}
	if !s.Expects(1) || s.Expects(2) {
		t.Fatalf("Expects: got %v for 1 and %v for 2, want true and false", s.Expects(1), s.Expects(2))
	}
	if res := s.Ack(1, roce.ACKUnlimited); res.Done != 1 {
		t.Errorf("Ack: got %+v, want 1 done", res)
	}
}

// TestResponseOpcodes: a response with an impossible opcode for its PSN is a bad response (IBA 9.9.2.1). A response for
// another kind of request is ignored.
func TestResponseOpcodes(t *testing.T) {
	const mtu, ack = 1024, roce.ACKUnlimited
	read := func(n int) transport.Request {
		return transport.Request{Kind: transport.Read, Length: n, Packets: (n + mtu - 1) / mtu}
	}
	atomic := transport.Request{Kind: transport.Atomic, Length: 8, Packets: 1}
	flush := transport.Request{Kind: transport.Flush, Packets: 1}
	for _, c := range []struct {
		name string
		q    transport.Request
		op   roce.Operation
		n    int
		want string
	}{
		{"the first of three", read(3000), roce.RDMAReadResponseFirst, mtu, "taken"},
		{"only, of three", read(3000), roce.RDMAReadResponseOnly, mtu, "bad"},
		{"last, where more must follow", read(3000), roce.RDMAReadResponseLast, mtu, "bad"},
		{"the only one", read(mtu), roce.RDMAReadResponseOnly, mtu, "taken"},
		{"first, at the end", read(mtu), roce.RDMAReadResponseFirst, mtu, "bad"},
		{"middle, at the end", read(mtu), roce.RDMAReadResponseMiddle, mtu, "bad"},
		{"an atomic's, for a READ", read(3000), roce.AtomicAcknowledge, 0, "ignored"},
		{"an atomic's", atomic, roce.AtomicAcknowledge, 0, "taken"},
		{"a READ's, for an atomic", atomic, roce.RDMAReadResponseOnly, 8, "ignored"},
		{"a FLUSH's", flush, roce.RDMAReadResponseOnly, 0, "taken"},
		{"first, for a FLUSH", flush, roce.RDMAReadResponseFirst, 0, "bad"},
		{"an atomic's, for a FLUSH", flush, roce.AtomicAcknowledge, 0, "ignored"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s transport.Sender
			s.SenderConfig = transport.SenderConfig{Reliable: true, MTU: mtu, MaxReads: 1}
			s.Init(new(transport.AIMD))
			s.Push(c.q)
			p, _ := s.Next()
			s.Sent(&p)
			s.Advance()
			res, _, ok := s.Response(&transport.Response{PSN: 0, Op: c.op, Syndrome: ack, Length: c.n})
			got := "ignored"
			switch {
			case ok:
				got = "taken"
			case res.Failure == transport.BadResponse:
				got = "bad"
			}
			if got != c.want {
				t.Errorf("Response: got %s, want %s", got, c.want)
			}
		})
	}
}
