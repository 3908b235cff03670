package rdmacm

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/rdmacm/msg"
)

// idPair holds the IDs of both sides of a connection, and their events.
type idPair struct {
	a, b   *testHost
	c, s   *ID // s is nil until the request arrives
	la, lb eventLog
}

// A reachableState is a state of a connection, with a function that reaches that state.
type reachableState struct {
	name  string
	space msg.PortSpace
	reach func(t *testing.T, p *idPair) // starts from a resolved route; the first situations start from an idle ID
}

// numUnresolvedStates is the number of situations before the route is resolved.
const numUnresolvedStates = 3

var reachableStates = []reachableState{
	{"bound", msg.PortSpaceTCP, func(_ *testing.T, p *idPair) {
		p.a.must(p.c.Bind(netip.AddrPortFrom(p.a.addr,
			testPort)))
	}},
	{"listening", msg.PortSpaceTCP, func(_ *testing.T, p *idPair) {
		p.a.must(p.c.Bind(netip.AddrPortFrom(p.a.addr, testPort)))
		p.a.must(p.c.Listen(0))
	}},
	{"resolving", msg.PortSpaceTCP, func(_ *testing.T, p *idPair) {
		p.a.must(p.c.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(p.b.addr, testPort)))
	}},
	{"resolved", msg.PortSpaceTCP, func(*testing.T, *idPair) {}},
	{"requested", msg.PortSpaceTCP, func(t *testing.T, p *idPair) { // the request does not arrive
		p.a.net.SetLink(p.b.addr, false)
		p.a.must(p.c.Connect(Param{QPN: 1}, nil))
		p.la.expectEvents(t, eventTimeout)
		p.a.net.SetLink(p.b.addr, true)
	}},
	{"asked", msg.PortSpaceTCP, sendRequest},
	{"accepted", msg.PortSpaceTCP, acceptRequest},
	{"connected", msg.PortSpaceTCP, connectPair},
	{"disconnecting", msg.PortSpaceTCP, func(t *testing.T, p *idPair) {
		connectPair(t, p)
		p.a.must(p.c.Disconnect())
		p.lb.expectEvents(t, eventTimeout, Disconnected)
	}},
	{"disconnected", msg.PortSpaceTCP, func(t *testing.T, p *idPair) {
		connectPair(t, p)
		p.a.must(p.c.Disconnect())
		p.lb.expectEvents(t, eventTimeout, Disconnected)
		p.b.must(p.s.Disconnect())
		p.la.expectEvents(t, eventTimeout, Disconnected)
	}},
	{"refused", msg.PortSpaceTCP, func(t *testing.T, p *idPair) {
		sendRequest(t, p)
		p.b.must(p.s.Reject(msg.ReasonConsumer, nil))
		p.la.expectEvents(t, eventTimeout, Rejected)
	}},
	{"datagrams, asked", msg.PortSpaceUDP, sendRequest},
	{"datagrams, answered", msg.PortSpaceUDP, func(t *testing.T, p *idPair) {
		sendRequest(t, p)
		p.b.must(p.s.Accept(Param{QPN: 2}, nil))
		p.la.expectEvents(t, eventTimeout, Established)
	}},
}

func sendRequest(t *testing.T, p *idPair) {
	p.a.must(p.c.Connect(Param{QPN: 1}, nil))
	p.s = p.lb.expectEvents(t, eventTimeout, ConnectRequest)[0].New
}

func acceptRequest(t *testing.T, p *idPair) {
	sendRequest(t, p)
	p.b.must(p.s.Accept(Param{QPN: 2}, nil))
	p.la.expectEvents(t, eventTimeout, ConnectResponse)
}

func connectPair(t *testing.T, p *idPair) {
	acceptRequest(t, p)
	p.a.must(p.c.Complete())
	p.lb.expectEvents(t, eventTimeout, Established)
}

// connectionEndCauses lists events that end a connection.
var connectionEndCauses = []struct {
	name   string
	happen func(p *idPair)
}{
	{"its device is unplugged", func(p *idPair) { p.a.must(p.a.slot.Unplug()) }},
	{"the peer's device is unplugged", func(p *idPair) { p.a.must(p.b.slot.Unplug()) }},
	{"its program ends", func(p *idPair) { p.c.Destroy() }},
	{"the peer's program ends", func(p *idPair) {
		if p.s != nil {
			p.s.Destroy()
		}
	}},
	{"the peer is lost", func(p *idPair) {
		p.a.net.SetLink(p.b.addr, false)
		if v := p.c.View(); v.Routed { // a side that sends messages detects the loss
			p.c.Disconnect()
		}
	}},
	{"its device is reset", func(p *idPair) {
		p.a.must(p.a.slot.Unplug())
		p.a.must(p.a.slot.Plug())
	}},
	{"the peer's device is reset", func(p *idPair) {
		p.a.must(p.b.slot.Unplug())
		p.a.must(p.b.slot.Plug())
	}},
}

// expectedEndEvents lists the events of both sides within two minutes after each misfortune, in the order of
// misfortunes. The removal of a device sends no messages, so a peer that sends no messages is not notified. An address
// may or may not be resolved before its device is removed.
var expectedEndEvents = map[string][7]string{
	"bound":     {"[device removal] []", "[] []", "[] []", "[] []", "[] []", "[device removal] []", "[] []"},
	"listening": {"[device removal] []", "[] []", "[] []", "[] []", "[] []", "[device removal] []", "[] []"},
	"resolving": {
		"[address error -19] [] or [address resolved device removal] []", "[address resolved] []",
		"[] [] or [address resolved] []", "[address resolved] []",
		"[address resolved] []", "[address error -19] [] or [address resolved device removal] [] or [address resolved] []",
		"[address resolved] []",
	},
	"resolved": {
		"[device removal] []", "[] []", "[] []", "[] []", "[] []",
		"[device removal] []", "[] []",
	},
	"requested": {
		"[device removal] []", "[unreachable -110] []", "[] []", "[] [connect request]", "[unreachable -110] []",
		"[device removal] []", "[] [connect request]",
	},
	"asked": {
		"[device removal] []", "[unreachable -110] [device removal]", "[] [rejected 4]",
		"[rejected 28] []", "[unreachable -110] []",
		"[device removal] []", "[] [device removal connect request]",
	},
	"accepted": {
		"[device removal] [unreachable -110]", "[] [device removal]", "[] [rejected 28]",
		"[rejected 28] []", "[] [unreachable -110]",
		"[device removal] [unreachable -110]", "[] [device removal]",
	},
	"connected": {
		"[device removal] []", "[] [device removal]", "[] [disconnected]",
		"[disconnected] []", "[disconnected -110 timewait exit] []",
		"[device removal] []", "[] [device removal]",
	},
	"disconnecting": {
		"[device removal] []", "[disconnected -110 timewait exit] [device removal]", "[] []",
		"[disconnected timewait exit] []", "[disconnected -110 timewait exit] []",
		"[device removal] []", "[disconnected timewait exit] [device removal]",
	},
	"disconnected": {
		"[device removal] [timewait exit]", "[timewait exit] [device removal]", "[] [timewait exit]",
		"[timewait exit] []", "[timewait exit] [timewait exit]",
		"[device removal] [timewait exit]", "[timewait exit] [device removal]",
	},
	"refused": {
		"[device removal] []", "[] [device removal]", "[] []", "[] []", "[] []",
		"[device removal] []", "[] [device removal]",
	},
	"datagrams, asked": {
		"[device removal] []", "[unreachable -110] [device removal]", "[] []",
		"[unreachable 2] []", "[unreachable -110] []",
		"[device removal] []", "[unreachable -110] [device removal connect request]",
	},
	"datagrams, answered": {
		"[device removal] []", "[] [device removal]", "[] []", "[] []", "[] []",
		"[device removal] []", "[] [device removal]",
	},
}

// TestEnds checks for each state of a connection and each misfortune that both sides are notified where required, and
// that no state remains.
func TestEnds(t *testing.T) {
	for n, at := range reachableStates {
		for i, m := range connectionEndCauses {
			if (n+i)%testutil.FewerIfShort(1, 3) != 0 {
				continue
			}
			t.Run(at.name+"/"+m.name, func(t *testing.T) {
				withTwoHosts(t, nil, func(t *testing.T, a, b *testHost) {
					p := &idPair{a: a, b: b}
					l, err := b.m.NewID(Options{Space: at.space, Type: qpTypeFor(at.space), Event: p.lb.recordEvent})
					b.must(err)
					b.must(l.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), testPort)))
					b.must(l.Listen(0))
					p.c, err = a.m.NewID(Options{Space: at.space, Type: qpTypeFor(at.space), Event: p.la.recordEvent})
					a.must(err)
					if n >= numUnresolvedStates {
						a.must(p.c.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(b.addr, testPort)))
						p.la.expectEvents(t, eventTimeout, AddrResolved)
						a.must(p.c.ResolveRoute())
						p.la.expectEvents(t, eventTimeout, RouteResolved)
					}
					at.reach(t, p)
					m.happen(p)
					got := eventTypes(p.la.waitEvents(2*time.Minute)) + " " + eventTypes(p.lb.waitEvents(0))
					if want := expectedEndEvents[at.name][i]; !slices.Contains(strings.Split(want, " or "), got) {
						t.Errorf("events: got %s, want %s", got, want)
					}
					for _, id := range []*ID{p.c, p.s, l} {
						if id != nil {
							id.Destroy()
						}
					}
					testutil.AdvanceTime(time.Minute)
				})
			})
		}
	}
}

func qpTypeFor(s msg.PortSpace) ib.QPType {
	if s == msg.PortSpaceUDP {
		return ib.QPTypeUD
	}
	return ib.QPTypeRC
}
