package rdmacm

import (
	"net/netip"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/rdmacm/conn"
	"verbena/rdmacm/msg"
)

// newForgedREQ returns a request in which an address claims to be a node with a GUID.
func newForgedREQ(from netip.Addr, to *testHost, guid uint64, commID, qpn uint32) []byte {
	return msg.Append(nil, 1, &msg.REQ{
		LocalCommID: commID, ServiceID: msg.MakeServiceID(msg.PortSpaceTCP, testPort), LocalCAGUID: guid, LocalQPN: qpn,
		PathMTU: 3,
		Primary: msg.Path{LocalGID: msg.GID(ib.GIDFromAddr(from))},
		Data:    msg.AppendIPHeader(nil, msg.IPHeader{SrcPort: 1, Src: from, Dst: to.addr}),
	})
}

// TestImpostorHasNoEffect checks that an address that claims to be another node can neither end that node's connections
// nor occupy its numbers.
func TestImpostorHasNoEffect(t *testing.T) {
	withTwoHosts(t, nil, func(t *testing.T, a, b *testHost) {
		var la, lb eventLog
		b.newListener(msg.PortSpaceTCP, testPort, &lb)
		p := &idPair{a: a, b: b, c: a.newResolvedID(msg.PortSpaceTCP, b, testPort, &la)}
		guid := p.c.View().GUID
		stranger := netip.MustParseAddr("10.0.0.9")
		requests := 0
		for qpn := range uint32(4) {
			b.deliverDatagram(stranger, newForgedREQ(stranger, b, guid, qpn+1, qpn+1))
			requests++
		}
		for _, e := range lb.waitEvents(time.Millisecond) {
			if requests--; e.Type != ConnectRequest {
				t.Errorf("event: got %v, want ConnectRequest", e.Type)
			}
		}
		if requests != 0 {
			t.Errorf("rejected requests of the forger: got %d, want 0", requests)
		}
		// The node itself now uses numbers that the forged packets have used.
		a.must(p.c.Connect(Param{QPN: 2}, nil))
		s := lb.expectEvents(t, eventTimeout, ConnectRequest)[0].New
		b.must(s.Accept(Param{QPN: 3}, nil))
		la.expectEvents(t, eventTimeout, ConnectResponse)
		a.must(p.c.Complete())
		lb.expectEvents(t, eventTimeout, Established)
		// The peer itself has used the number, so its own connection is stale.
		b.deliverDatagram(stranger, newForgedREQ(stranger, b, guid, s.conn.remote, 2))
		b.deliverDatagram(stranger, newForgedREQ(stranger, b, guid, s.conn.remote, 77))
		for _, e := range lb.waitEvents(time.Millisecond) {
			if e.Type != ConnectRequest {
				t.Errorf("event: got %v, want ConnectRequest", e.Type)
			}
		}
		if s.conn == nil || s.conn.State != conn.Established {
			t.Error("connection: got the end, want established")
		}
	})
}

// TestForgedDREQIsIgnored checks that a DREQ ends a connection only if the DREQ names the queue pair. (cm_dreq_handler)
func TestForgedDREQIsIgnored(t *testing.T) {
	withTwoHosts(t, nil, func(t *testing.T, a, b *testHost) {
		var la, lb eventLog
		b.newListener(msg.PortSpaceTCP, testPort, &lb)
		c := a.newResolvedID(msg.PortSpaceTCP, b, testPort, &la)
		a.must(c.Connect(Param{QPN: 2}, nil))
		s := lb.expectEvents(t, eventTimeout, ConnectRequest)[0].New
		b.must(s.Accept(Param{QPN: 3}, nil))
		la.expectEvents(t, eventTimeout, ConnectResponse)
		a.must(c.Complete())
		lb.expectEvents(t, eventTimeout, Established)
		for _, end := range []struct {
			h    *testHost
			from netip.Addr
			qpn  uint32
			of   *connection
			want []EventType
		}{
			{b, a.addr, 2, s.conn, nil}, {a, b.addr, 3, c.conn, nil}, {b, netip.MustParseAddr("10.0.0.9"), 3, s.conn, nil},
			{b, a.addr, 3, s.conn, []EventType{Disconnected}},
		} {
			dreq := &msg.DREQ{LocalCommID: end.of.remote, RemoteCommID: end.of.local, RemoteQPN: end.qpn}
			end.h.deliverDatagram(end.from, msg.Append(nil, 1, dreq))
			lb.expectEvents(t, eventTimeout, end.want...)
			la.expectEvents(t, 0)
		}
	})
}

// TestDestroyOnBothSidesDropsConnection checks that a connection is dropped on both sides when both owners destroy
// their IDs at the same time.
func TestDestroyOnBothSidesDropsConnection(t *testing.T) {
	withTwoHosts(t, nil, func(t *testing.T, a, b *testHost) {
		var la, lb eventLog
		b.newListener(msg.PortSpaceTCP, testPort, &lb)
		c := a.newResolvedID(msg.PortSpaceTCP, b, testPort, &la)
		a.must(c.Connect(Param{QPN: 2}, nil))
		s := lb.expectEvents(t, eventTimeout, ConnectRequest)[0].New
		b.must(s.Accept(Param{QPN: 3}, nil))
		la.expectEvents(t, eventTimeout, ConnectResponse)
		a.must(c.Complete())
		lb.expectEvents(t, eventTimeout, Established)
		c.Destroy()
		s.Destroy()
		testutil.AdvanceTime(10 * time.Minute)
		for _, h := range []*testHost{a, b} {
			if n := h.m.conns.entries(); n > 0 {
				t.Errorf("entries of %v: got %d, want 0", h.addr, n)
			}
		}
	})
}
