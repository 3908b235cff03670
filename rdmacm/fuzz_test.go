package rdmacm

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link/simnet"
	"verbena/rdmacm/conn"
	"verbena/rdmacm/msg"
	"verbena/roce"
)

// deliverDatagram passes a datagram with a source address to the host's general services queue pair.
func (h *testHost) deliverDatagram(from netip.Addr, mad []byte) {
	b := make([]byte, slotLen)
	b[20] = 0x45
	src, dst := from.As4(), h.addr.As4()
	copy(b[32:], src[:])
	copy(b[36:], dst[:])
	copy(b[roce.GRHLen:], mad)
	h.m.agents.list[0].handleDatagram(&ib.WC{Flags: ib.WCGRH, ByteLen: slotLen}, b)
}

// fuzzInput is the input of a fuzz target, read byte by byte. After its end it yields zeros.
type fuzzInput []byte

func (s *fuzzInput) nextByte() (b byte) {
	if len(*s) > 0 {
		b, *s = (*s)[0], (*s)[1:]
	}
	return b
}

func (s *fuzzInput) nextChunk(n int) []byte {
	n = min(n, len(*s))
	b := (*s)[:n]
	*s = (*s)[n:]
	return b
}

// pickElement returns an element of a list, or the zero value for an empty list.
func pickElement[T any](s *fuzzInput, list []T) (v T) {
	if n := len(list); n > 0 {
		v = list[int(s.nextByte())%n]
	}
	return v
}

// packetForger sends messages of the script to a manager, and makes calls of its owner.
type packetForger struct {
	*fuzzInput
	t       *testing.T
	h       *testHost
	log     eventLog
	ids     []*ID
	honest  *connection // an established connection with another peer
	victims uint32      // number of the queue pair at the honest peer
}

var forgerAddrs = []netip.Addr{netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.4"),
	netip.MustParseAddr("10.0.0.1")}

// candidateCommIDs returns communication IDs known to the manager, and some unknown IDs.
func (f *packetForger) candidateCommIDs() []uint32 {
	f.h.m.mu.Lock()
	defer f.h.m.mu.Unlock()
	list := []uint32{0, 1, 2, 3}
	for _, n := range slices.Sorted(maps.Keys(f.h.m.conns.local)) {
		list = append(list, n, f.h.m.conns.local[n].remote)
	}
	return append(list, slices.Sorted(maps.Keys(f.h.m.sidr))...)
}

// deliverPacket delivers a message. It is either arbitrary bytes after a header, or a valid message with a few changed
// bytes.
func (f *packetForger) deliverPacket() {
	attr := msg.AttrREQ + msg.Attribute(f.nextByte()%13)
	mad := make([]byte, msg.Len)
	n := f.candidateCommIDs()
	// The source must not be the peer of the honest connection, because that peer may end it.
	from := pickElement(f.fuzzInput, forgerAddrs)
	guid := []uint64{f.honest.guid, 1, 2}
	data := msg.AppendIPHeader(nil, msg.IPHeader{SrcPort: 1, Src: from, Dst: f.h.addr})
	var m msg.Message
	switch attr {
	case msg.AttrREQ:
		m = &msg.REQ{
			LocalCommID: pickElement(f.fuzzInput, n), ServiceID: msg.MakeServiceID(msg.PortSpaceTCP,
				testPort+uint16(f.nextByte()%4)),
			LocalCAGUID: pickElement(f.fuzzInput, guid), LocalQPN: pickElement(f.fuzzInput, []uint32{f.victims, f.victims + 1,
				5}), PathMTU: 3,
			Primary: msg.Path{LocalGID: msg.GID(ib.GIDFromAddr(from))}, Data: data,
		}
	case msg.AttrMRA:
		m = &msg.MRA{
			LocalCommID: pickElement(f.fuzzInput, n), RemoteCommID: pickElement(f.fuzzInput,
				n), Of: msg.AnsweredMessage(f.nextByte() & 3),
			ServiceTimeout: f.nextByte() & 31,
		}
	case msg.AttrREJ:
		m = &msg.REJ{
			LocalCommID: pickElement(f.fuzzInput, n), RemoteCommID: pickElement(f.fuzzInput,
				n), Of: msg.AnsweredMessage(f.nextByte() & 3),
			Reason: msg.RejectReason(f.nextByte() & 63),
		}
	case msg.AttrREP:
		m = &msg.REP{
			LocalCommID: pickElement(f.fuzzInput, n), RemoteCommID: pickElement(f.fuzzInput,
				n), LocalCAGUID: pickElement(f.fuzzInput, guid),
			LocalQPN: pickElement(f.fuzzInput, []uint32{f.victims, f.victims + 1, 5}),
		}
	case msg.AttrRTU:
		m = &msg.RTU{LocalCommID: pickElement(f.fuzzInput, n), RemoteCommID: pickElement(f.fuzzInput, n)}
	case msg.AttrDREQ:
		m = &msg.DREQ{
			LocalCommID: pickElement(f.fuzzInput, n), RemoteCommID: pickElement(f.fuzzInput, n),
			RemoteQPN: pickElement(f.fuzzInput, []uint32{f.victims + 100, 7}),
		}
	case msg.AttrDREP:
		m = &msg.DREP{LocalCommID: pickElement(f.fuzzInput, n), RemoteCommID: pickElement(f.fuzzInput, n)}
	case msg.AttrLAP:
		m = &msg.LAP{LocalCommID: pickElement(f.fuzzInput, n), RemoteCommID: pickElement(f.fuzzInput, n)}
	case msg.AttrSIDRREQ:
		m = &msg.SIDRREQ{
			RequestID: pickElement(f.fuzzInput, n), ServiceID: msg.MakeServiceID(msg.PortSpaceUDP,
				testPort+uint16(f.nextByte()%4)),
			Data: data,
		}
	case msg.AttrSIDRREP:
		m = &msg.SIDRREP{RequestID: pickElement(f.fuzzInput, n), Status: msg.SIDRStatus(f.nextByte() & 3), QPN: 9, QKey: 9}
	default:
		copy(mad, msg.Append(nil, 1, &msg.APR{}))
		binary.BigEndian.PutUint16(mad[16:], uint16(attr))
	}
	if m != nil {
		mad = msg.Append(nil, uint64(f.nextByte()), m)
	}
	switch how := f.nextByte(); how & 3 {
	case 1: // some bytes are changed
		for range how >> 5 {
			mad[f.nextByte()] ^= f.nextByte()
		}
	case 2: // the rest is arbitrary
		copy(mad[24:], f.nextChunk(int(f.nextByte())))
	case 3:
		copy(mad, f.nextChunk(int(f.nextByte())))
	}
	f.h.deliverDatagram(from, mad)
}

// callRandomMethod makes a call of the owner on an ID.
func (f *packetForger) callRandomMethod() {
	for _, e := range f.log.waitEvents(0) {
		if e.New != nil {
			f.ids = append(f.ids, e.New)
		}
	}
	id := pickElement(f.fuzzInput, f.ids)
	what := f.nextByte() % 14
	if id == nil || what == 0 {
		if len(f.ids) < 16 {
			space := pickElement(f.fuzzInput, []msg.PortSpace{msg.PortSpaceTCP, msg.PortSpaceUDP, msg.PortSpaceIB})
			f.ids = append(f.ids, f.h.newTestID(space, &f.log))
		}
		return
	}
	addrs := append(slices.Clone(forgerAddrs), netip.IPv4Unspecified(), netip.IPv6Unspecified())
	at := netip.AddrPortFrom(pickElement(f.fuzzInput, addrs), testPort+uint16(f.nextByte()%4))
	p := Param{QPN: 7, ResponderResources: f.nextByte(), InitiatorDepth: f.nextByte(), RetryCount: 9, RNRRetryCount: 9}
	data := make([]byte, f.nextByte())
	switch what {
	case 1:
		_ = id.Bind(at)
	case 2:
		_ = id.Listen(int(f.nextByte() & 3))
	case 3:
		_ = id.ResolveAddr(netip.AddrPort{}, at)
		synctest.Wait()
	case 4:
		_ = id.ResolveRoute()
	case 5:
		_ = id.Connect(p, data)
	case 6:
		_ = id.Accept(p, data)
	case 7:
		_ = id.Complete()
	case 8:
		_ = id.Reject(msg.RejectReason(f.nextByte()), data)
	case 9:
		_ = id.Disconnect()
	case 10:
		_ = id.Establish()
	case 11:
		_, _, _ = id.QPAttr(ib.QPState(f.nextByte()))
		id.View()
		_ = id.SetOption(Option(f.nextByte()%5), f.nextByte())
	case 12:
		_, _ = id.Join(at.Addr())
		id.LeaveBacklog()
	case 13:
		id.Destroy()
		f.ids = slices.DeleteFunc(f.ids, func(o *ID) bool { return o == id })
	}
}

// FuzzPackets delivers arbitrary messages in any state. The manager must keep working, a connection with another
// peer must stay established, that peer must be able to connect again, and no state may remain at the end.
func FuzzPackets(f *testing.F) {
	// The seed contains a listener, a request, its acceptance, and the end; a connection to an unused address, and
	// its replies; and a datagram service.
	for a := range byte(13) {
		f.Add([]byte{2, 0, 0, 2, 0, 1, 3, 0, 0, 0, 0, 0, 2, 0, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, a, 0, 4, 5, 0, 0,
			0, 3, 1})
	}
	f.Add([]byte{2, 0, 0, 0, 2, 0, 3, 0, 0, 0, 0, 0, 3, 2, 0, 4, 0, 0, 0, 0, 0, 2, 0, 5, 0, 0, 0, 0, 0, 3, 0, 3, 0, 3, 3,
		3, 3, 3, 1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<12 {
			return
		}
		s := fuzzInput(b)
		synctest.Test(t, func(t *testing.T) {
			network := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
			fast := Config{Timeout: 12, Retries: 3}
			// The test does not use checked mode, which takes most of the time and is used by other tests.
			a := &testHost{t: t, net: network, addr: netip.MustParseAddr("10.0.0.1")}
			peer := &testHost{t: t, net: network, addr: netip.MustParseAddr("10.0.0.2")}
			a.plugAndOpenManager(fast)
			peer.plugAndOpenManager(fast)
			defer peer.close()
			defer a.close()
			fz := &packetForger{fuzzInput: &s, t: t, h: a, victims: 0x17}
			var la, lp eventLog
			l := a.newListener(msg.PortSpaceTCP, 2000, &la)
			join := func(qpn uint32) (*ID, *ID) {
				c := peer.newResolvedID(msg.PortSpaceTCP, a, 2000, &lp)
				peer.must(c.Connect(Param{QPN: qpn}, nil))
				r := la.expectEvents(t, eventTimeout, ConnectRequest)[0].New
				a.must(r.Accept(Param{QPN: qpn + 100}, nil))
				lp.expectEvents(t, eventTimeout, ConnectResponse)
				peer.must(c.Complete())
				la.expectEvents(t, eventTimeout, Established)
				return c, r
			}
			c, r := join(fz.victims)
			fz.honest = r.conn
			for range 100 {
				if len(s) == 0 {
					break
				}
				switch s.nextByte() & 3 {
				case 0, 1:
					fz.deliverPacket()
				case 2:
					fz.callRandomMethod()
				case 3:
					testutil.AdvanceTime([]time.Duration{time.Millisecond, 20 * time.Millisecond, time.Second,
						10 * time.Second}[s.nextByte()&3])
				}
				synctest.Wait()
			}
			got := append(la.waitEvents(time.Millisecond), lp.waitEvents(0)...)
			if len(got) > 0 || r.conn != fz.honest || r.conn.State != conn.Established {
				t.Errorf("events of a connection with another peer: got %v, want none", eventTypes(got))
			}
			c2, r2 := join(fz.victims + 1)
			for _, e := range fz.log.waitEvents(0) {
				if e.New != nil {
					fz.ids = append(fz.ids, e.New)
				}
			}
			for _, id := range append(fz.ids, c, r, c2, r2, l) {
				id.Destroy()
			}
			testutil.AdvanceTime(2 * time.Minute) // an MRA requests 68 s, and timewait is 9 s
			left := [...]int{
				len(a.m.ids), len(a.m.conns.local), len(a.m.conns.byPeer), len(a.m.conns.byPeerQP), len(a.m.sidr),
				len(a.m.services), len(a.m.ports), a.m.held,
			}
			if left != [len(left)]int{} {
				t.Errorf("entries of ids, conns, byPeer, byPeerQP, sidr, services, ports and held: got %d, want 0",
					left)
			}
		})
	})
}
