package engine

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"verbena/engine/transport"
	"verbena/internal/clock"
	"verbena/roce"
)

// newTestSRD makes the protocol of a queue pair. flows limits the flows of its program.
func newTestSRD(flows uint32) *srd {
	dev := &Device{hw: &Hardware{}}
	dev.hw.numbers.rand.Rand = rand.New(rand.NewPCG(1, 1))
	counts := &objectCounts{most: &[numCounted]uint32{countFlow: flows}}
	return &srd{
		qp: &QP{dev: dev, mtu: 1024, counts: counts}, byPeer: map[srdPeer]*srdFlow{}, sources: newSRDSources(),
	}
}

// srdPacket returns a received packet of SRD.
func srdPacket(op roce.Opcode, src netip.Addr, qpn, to, value uint32) *packet {
	k := &packet{packets: 1, src: src, dst: addrB}
	k.Packet = roce.NewPacket(make([]byte, op.PacketLen(0)), &roce.BTHFields{Opcode: op, PKey: roce.DefaultPKey}, 0)
	k.DETH().Encode(testQKey, qpn)
	k.SRDETH().Encode(to, value)
	k.psn = k.BTH().PSN()
	return k
}

// TestSRDFlows asks for flows to more peers than a program may have flows. An idle flow leads to another peer then,
// and a flow with requests keeps its peer.
func TestSRDFlows(t *testing.T) {
	const most, peers = 4, 7
	s := newTestSRD(most)
	r := rand.New(rand.NewPCG(1, 3))
	busy := map[uint32]*srdFlow{}
	refused := 0
	for range 300 {
		qpn := uint32(r.IntN(peers))
		want := srdPeer{addrA, qpn, testQKey}
		f := s.flowTo(&path{dst: addrA}, qpn, testQKey)
		switch {
		case f == nil && (len(busy) < most || busy[qpn] != nil):
			t.Fatalf("flow to peer %d, with %d flows in use: got none, want one", qpn, len(busy))
		case f == nil:
			refused++
		case f.srdPeer != want || busy[qpn] != nil && f != busy[qpn]:
			t.Fatalf("flow to peer %d: got %+v, want %+v", qpn, f.srdPeer, want)
		case busy[qpn] == nil && r.IntN(2) == 0:
			f.snd.Push(1, transport.SRDRequest{Kind: transport.Send})
			busy[qpn] = f
		}
		if n := uint32(r.IntN(peers)); busy[n] != nil && r.IntN(2) == 0 {
			busy[n].snd.Fail(roce.SRDAborted)
			delete(busy, n)
		}
		if len(s.byPeer) != len(s.flows) || len(s.flows) > most {
			t.Fatalf("got %d flows by their peers and %d in the list, want the same of at most %d", len(s.byPeer),
				len(s.flows), most)
		}
		for peer, f := range s.byPeer {
			if i := int(f.id & (maxFlows - 1)); f.srdPeer != peer || s.flows[i] != f {
				t.Fatalf("flow to %+v: got one to %+v with the index %d", peer, f.srdPeer, i)
			}
		}
	}
	if refused == 0 {
		t.Error("got a flow in each case, want none while all are in use")
	}
}

// TestSRDResponseIdentifiers sends responses to a flow. Only the response with the identifier, from the peer, has an
// effect.
func TestSRDResponseIdentifiers(t *testing.T) {
	for name, change := range map[string]func(to, qpn *uint32, src *netip.Addr){
		"of the flow":      func(*uint32, *uint32, *netip.Addr) {},
		"of no flow":       func(to, _ *uint32, _ *netip.Addr) { *to++ },
		"beyond":           func(to, _ *uint32, _ *netip.Addr) { *to |= maxFlows - 1 },
		"random part":      func(to, _ *uint32, _ *netip.Addr) { *to ^= maxFlows },
		"other queue pair": func(_, qpn *uint32, _ *netip.Addr) { *qpn++ },
		"other host":       func(_, _ *uint32, src *netip.Addr) { *src = addrB },
	} {
		s := newTestSRD(10)
		f := s.flowTo(&path{dst: addrA}, 5, testQKey)
		f.snd.Push(0, transport.SRDRequest{Kind: transport.Send})
		to, qpn, src, want := f.id, uint32(5), addrA, transport.SRDOpening
		if change(&to, &qpn, &src); name == "of the flow" {
			want = transport.SRDEstablished
		}
		s.receiveResponse(nil, srdPacket(roce.SRDFlowAccept, src, qpn, to, 77))
		if got := f.snd.State(); got != want {
			t.Errorf("Accept, %s: got state %d, want %d", name, got, want)
		}
		if got := s.qp.dev.counters[cntDropResponse].n.Load(); (got == 0) != (want == transport.SRDEstablished) {
			t.Errorf("Accept, %s: got %d dropped responses", name, got)
		}
	}
}

// TestSRDSourceOf tests the status that a requester gets for a packet of no source.
func TestSRDSourceOf(t *testing.T) {
	const id, evicted = 0x7000, 0x9000
	for _, c := range []struct {
		name    string
		to      uint32
		evicted uint32
		change  func(src *srdSource, k *packet)
		want    roce.SRDStatus
	}{
		{name: "its own", to: id, want: roce.SRDSuccess},
		{name: "its own, after a replacement", to: id, evicted: evicted, want: roce.SRDSuccess},
		{name: "of the replaced source", to: evicted, evicted: evicted, want: roce.SRDAborted},
		{name: "none", to: 0, want: roce.SRDForgotten},
		{name: "none, after a replacement", to: 0, evicted: evicted, want: roce.SRDForgotten},
		{name: "other", to: evicted, want: roce.SRDForgotten},
		{name: "other index", to: id + 1, want: roce.SRDForgotten},
		{name: "given up", to: id, change: func(src *srdSource, _ *packet) { src.over = true }, want: roce.SRDForgotten},
		{name: "other host", to: id, change: func(_ *srdSource, k *packet) { k.src = addrB }, want: roce.SRDForgotten},
		{name: "other queue pair", to: id, change: func(src *srdSource, _ *packet) { src.qpn = 6 }, want: roce.SRDForgotten},
		{name: "other flow", to: id, change: func(src *srdSource, _ *packet) { src.id = 4 }, want: roce.SRDForgotten},
	} {
		s := newTestSRD(10)
		src := &srdSource{srdOrigin: srdOrigin{addrA, 5, 3}, own: id, evicted: c.evicted, path: &path{from: &endpoint{}}}
		s.sources.put(0, src)
		k := srdPacket(roce.SRDSendOnly, addrA, 5, c.to, 3)
		if c.change != nil {
			c.change(src, k)
		}
		got, status := s.sourceOf(k)
		if status != c.want || (got == src) != (c.want == roce.SRDSuccess) {
			t.Errorf("identifier, %s: got %+v with status %d, want status %d", c.name, got, status, c.want)
		}
	}
}

// TestSRDRefusals tests that the number of refusals that wait to be sent is limited.
func TestSRDRefusals(t *testing.T) {
	s := newTestSRD(10)
	s.qp.dev.at.Store(&addressing{endpoints: []*endpoint{{addr: addrB}}})
	for i := range maxRefusals + 1 {
		if i%2 == 0 {
			s.refuse(srdRefusal{})
		} else {
			s.refuseUnknown(srdPacket(roce.SRDSendOnly, addrA, 5, 1, 3), roce.SRDForgotten)
		}
		if got, want := len(s.refusals), min(i+1, maxRefusals); got != want {
			t.Fatalf("after %d refusals: got %d, want %d", i+1, got, want)
		}
	}
}

// TestSRDTimers tests that the timers of flows fire at the deadlines, for the flows that are due only.
func TestSRDTimers(t *testing.T) {
	const flows = 100
	s := newTestSRD(flows)
	for i := range uint32(flows) {
		f := s.flowTo(&path{dst: addrA}, i, testQKey)
		f.snd.Push(i, transport.SRDRequest{Kind: transport.Send})
		p, _ := f.snd.Next()
		f.snd.Sent(&p, int64((i*37)%flows)*1e6+1)
		s.timers.set(f)
		s.timers.set(f)
	}
	if len(s.timers) != flows {
		t.Fatalf("timers: got %d, want %d", len(s.timers), flows)
	}
	for range 50 {
		want := int64(0)
		for _, f := range s.flows {
			if d := f.snd.Deadline(); d != 0 && (want == 0 || d < want) {
				want = d
			}
		}
		if got := s.timers.next(); got != want {
			t.Fatalf("earliest timer: got %d, want %d", got, want)
		}
		f := s.timers[0]
		s.expire(want)
		p, ok := f.snd.Next()
		if !ok || p.Op != transport.SRDOpOpen {
			t.Fatalf("flow after its deadline: got %+v, %t, want an Open", p, ok)
		}
		f.snd.Sent(&p, want)
		s.timers.set(f)
	}
	for i, f := range s.timers {
		if f.at != i+1 {
			t.Errorf("timer %d: got the index %d", i, f.at-1)
		}
	}
	s.closeFlows()
	if s.timers.next() != 0 {
		t.Errorf("timer without a flow in use: got one at %d, want none", s.timers.next())
	}
}

// TestSRDProbesOfUser tests the number of packets of the flows of a user to peers that do not answer. With n flows of
// the user, each sends at most 4 packets and, in a time t, one more for each n*probeInterval.
func TestSRDProbesOfUser(t *testing.T) {
	const flows, others, period = 100, 4900, 4e9
	s := newTestSRD(flows)
	s.qp.dev.flows = userShares{room: allFlows}
	for range others {
		if err := s.qp.dev.flows.add(s.qp.owner); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint32(flows) {
		s.flowTo(&path{dst: addrA}, i, testQKey).snd.Push(i, transport.SRDRequest{Kind: transport.Send})
	}
	sent := 0
	for now := int64(1); now < period; now = s.timers.next() {
		s.expire(now)
		for _, f := range s.flows {
			for p, ok := f.snd.Next(); ok; p, ok = f.snd.Next() {
				f.snd.Sent(&p, now)
				sent++
			}
			s.timers.set(f)
		}
	}
	if most := flows * (4 + int(period/((flows+others)*probeInterval))); sent > most {
		t.Errorf("packets of %d flows in 4 s: got %d, want at most %d", flows, sent, most)
	}
}

// TestSRDResponseLength tests that a READ response of another length than the request has no effect.
func TestSRDResponseLength(t *testing.T) {
	s := newTestSRD(10)
	s.qp.dev.clock = clock.System
	s.requests = []*srdRequest{{used: true}}
	f := s.flowTo(&path{dst: addrA}, 5, testQKey)
	f.snd.Push(0, transport.SRDRequest{Kind: transport.Read, Length: 8})
	for range 2 { // the Open and the request
		p, _ := f.snd.Next()
		f.snd.Sent(&p, 1)
		f.snd.Accepted()
	}
	s.receiveResponse(nil, srdPacket(roce.SRDRDMAReadResponseOnly, addrA, 5, f.id, 0))
	if got := s.qp.dev.counters[cntDropResponse].n.Load(); got != 1 || f.snd.Len() != 1 || len(s.storing) != 0 {
		t.Errorf("response of 0 bytes for 8: got %d dropped, %d outstanding, %d stored, want 1, 1 and 0", got, f.snd.Len(),
			len(s.storing))
	}
}
