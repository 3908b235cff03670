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

// couple holds the IDs of both sides of a connection, and their events.
type couple struct {
	a, b   *host
	c, s   *ID // s is nil until the request arrives
	la, lb log
}

// A situation is a state of a connection, with a function that reaches that state.
type situation struct {
	name  string
	space msg.PortSpace
	reach func(t *testing.T, p *couple) // starts from a resolved route; the first situations start from an idle ID
}

// fromIdle is the number of situations before the route is resolved.
const fromIdle = 3

var situations = []situation{
	{"bound", msg.PortSpaceTCP, func(_ *testing.T, p *couple) {
		p.a.must(p.c.Bind(netip.AddrPortFrom(p.a.addr,
			testPort)))
	}},
	{"listening", msg.PortSpaceTCP, func(_ *testing.T, p *couple) {
		p.a.must(p.c.Bind(netip.AddrPortFrom(p.a.addr, testPort)))
		p.a.must(p.c.Listen(0))
	}},
	{"resolving", msg.PortSpaceTCP, func(_ *testing.T, p *couple) {
		p.a.must(p.c.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(p.b.addr, testPort)))
	}},
	{"resolved", msg.PortSpaceTCP, func(*testing.T, *couple) {}},
	{"requested", msg.PortSpaceTCP, func(t *testing.T, p *couple) { // the request does not arrive
		p.a.net.SetLink(p.b.addr, false)
		p.a.must(p.c.Connect(Param{QPN: 1}, nil))
		p.la.expect(t, soon)
		p.a.net.SetLink(p.b.addr, true)
	}},
	{"asked", msg.PortSpaceTCP, ask},
	{"accepted", msg.PortSpaceTCP, accept},
	{"connected", msg.PortSpaceTCP, connect},
	{"disconnecting", msg.PortSpaceTCP, func(t *testing.T, p *couple) {
		connect(t, p)
		p.a.must(p.c.Disconnect())
		p.lb.expect(t, soon, Disconnected)
	}},
	{"disconnected", msg.PortSpaceTCP, func(t *testing.T, p *couple) {
		connect(t, p)
		p.a.must(p.c.Disconnect())
		p.lb.expect(t, soon, Disconnected)
		p.b.must(p.s.Disconnect())
		p.la.expect(t, soon, Disconnected)
	}},
	{"refused", msg.PortSpaceTCP, func(t *testing.T, p *couple) {
		ask(t, p)
		p.b.must(p.s.Reject(msg.ReasonConsumer, nil))
		p.la.expect(t, soon, Rejected)
	}},
	{"datagrams, asked", msg.PortSpaceUDP, ask},
	{"datagrams, answered", msg.PortSpaceUDP, func(t *testing.T, p *couple) {
		ask(t, p)
		p.b.must(p.s.Accept(Param{QPN: 2}, nil))
		p.la.expect(t, soon, Established)
	}},
}

func ask(t *testing.T, p *couple) {
	p.a.must(p.c.Connect(Param{QPN: 1}, nil))
	p.s = p.lb.expect(t, soon, ConnectRequest)[0].New
}

func accept(t *testing.T, p *couple) {
	ask(t, p)
	p.b.must(p.s.Accept(Param{QPN: 2}, nil))
	p.la.expect(t, soon, ConnectResponse)
}

func connect(t *testing.T, p *couple) {
	accept(t, p)
	p.a.must(p.c.Complete())
	p.lb.expect(t, soon, Established)
}

// misfortunes lists events that end a connection.
var misfortunes = []struct {
	name   string
	happen func(p *couple)
}{
	{"its device is unplugged", func(p *couple) { p.a.must(p.a.slot.Unplug()) }},
	{"the peer's device is unplugged", func(p *couple) { p.a.must(p.b.slot.Unplug()) }},
	{"its program ends", func(p *couple) { p.c.Destroy() }},
	{"the peer's program ends", func(p *couple) {
		if p.s != nil {
			p.s.Destroy()
		}
	}},
	{"the peer is lost", func(p *couple) {
		p.a.net.SetLink(p.b.addr, false)
		if v := p.c.View(); v.Routed { // a side that sends messages detects the loss
			p.c.Disconnect()
		}
	}},
	{"its device is reset", func(p *couple) {
		p.a.must(p.a.slot.Unplug())
		p.a.must(p.a.slot.Plug())
	}},
	{"the peer's device is reset", func(p *couple) {
		p.a.must(p.b.slot.Unplug())
		p.a.must(p.b.slot.Plug())
	}},
}

// ends lists the events of both sides within two minutes after each misfortune, in the order of misfortunes. The
// removal of a device sends no messages, so a peer that sends no messages is not notified. An address may or may
// not be resolved before its device is removed.
var ends = map[string][7]string{
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
	for n, at := range situations {
		for i, m := range misfortunes {
			if (n+i)%testutil.Fewer(1, 3) != 0 {
				continue
			}
			t.Run(at.name+"/"+m.name, func(t *testing.T) {
				inWorld(t, nil, func(t *testing.T, a, b *host) {
					p := &couple{a: a, b: b}
					l, err := b.m.NewID(Options{Space: at.space, Type: qpType(at.space), Event: p.lb.add})
					b.must(err)
					b.must(l.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), testPort)))
					b.must(l.Listen(0))
					p.c, err = a.m.NewID(Options{Space: at.space, Type: qpType(at.space), Event: p.la.add})
					a.must(err)
					if n >= fromIdle {
						a.must(p.c.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(b.addr, testPort)))
						p.la.expect(t, soon, AddrResolved)
						a.must(p.c.ResolveRoute())
						p.la.expect(t, soon, RouteResolved)
					}
					at.reach(t, p)
					m.happen(p)
					got := types(p.la.take(2*time.Minute)) + " " + types(p.lb.take(0))
					if want := ends[at.name][i]; !slices.Contains(strings.Split(want, " or "), got) {
						t.Errorf("events: got %s, want %s", got, want)
					}
					for _, id := range []*ID{p.c, p.s, l} {
						if id != nil {
							id.Destroy()
						}
					}
					testutil.Advance(time.Minute)
				})
			})
		}
	}
}

func qpType(s msg.PortSpace) ib.QPType {
	if s == msg.PortSpaceUDP {
		return ib.QPTypeUD
	}
	return ib.QPTypeRC
}
