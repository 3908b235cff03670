package rdmacm

import (
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/rdmacm/conn"
	"verbena/rdmacm/msg"
)

// idState is the state of an ID (enum rdma_cm_state).
//
//	idle -Bind-> bound -Listen-> listening
//	              | ResolveAddr
//	              v
//	         addrQuery -> addrResolved -ResolveRoute-> routeResolved -Connect-> connected -> disconnected
//	                                                             a request -----^
//	any of them, when the device goes: removed
type idState uint8

const (
	idIdle idState = iota
	idBound
	idListening
	idAddrQuery
	idAddrResolved
	idRouteResolved
	idConnected // or about to be connected
	idDisconnected
	idRemoved
)

// Options holds the parameters of a new ID.
type Options struct {
	Space msg.PortSpace
	// Type is the type of the queue pair, which is a connected type or UD.
	Type ib.QPType
	// MayUseLowPorts means that the owner may bind ports below 1024.
	MayUseLowPorts bool
	// Device is the device for resolving addresses; nil means the device of the local address for the peer.
	Device *ib.Device
	// Listens reports whether the owner may listen again. While Listens returns true, a request that arrives
	// shortly after a listener was destroyed waits for the next listener. If Listens is nil, the request is
	// rejected. Listens must not sleep, nor call the manager.
	Listens func() bool
	// Owner identifies the owner in reports of rejections, also for the requests of a listener. See Manager.OnRejection.
	Owner any
	// Event is called for the events of the ID, one at a time. Event must not sleep for long, because all IDs share
	// a goroutine.
	Event func(*ID, Event)

	closed func(error) // called if the manager is closed before the ID is destroyed; see own
}

// ID is one side of a connection, a listener, or a datagram service (struct rdma_cm_id).
type ID struct {
	m    *Manager
	opts Options
	made uint64 // its number in creation order

	reporting sync.Mutex // held while an event function runs
	handler   func(*ID, Event)
	dead      bool

	// Under m.mu.
	state     idState
	gone      bool
	src, dst  netip.AddrPort // the zero value means unknown
	loopback  bool           // bound to a loopback address that no device has; src is the device's address, if any
	ib        bool           // the addresses are GIDs (AF_IB)
	port      portKey        // key in m.ports; port 0 means none
	at        gidSource
	reuseAddr bool
	afOnly    bool
	tos       uint8
	class     uint8 // traffic class of packets: tos at the resolution of the route, or that of the request
	ackCode   uint8 // RDMA_OPTION_ID_ACK_TIMEOUT, if ackSet is true
	ackSet    bool
	asked     time.Time // when Connect was called
	request   bool      // a peer has requested the connection
	begun     bool      // a request was sent or received, or the ID listens on its device (cm_id.ib is set)
	backlog   int       // for a listener, number of requests that are not accepted yet
	pending   int
	listener  *ID // for a request, its listener until the request is accepted or rejected
	conn      *connection
	service   *serviceRequest // set for the ID of a datagram service
	param     Param           // parameters requested by the owner
	groups    []*Group
}

// NewID creates an ID. (rdma_create_id)
func (m *Manager) NewID(o Options) (*ID, error) {
	switch o.Space {
	case msg.PortSpaceTCP, msg.PortSpaceIB:
		if o.Type != ib.QPTypeRC && o.Type != ib.QPTypeUC && o.Type != ib.QPTypeUD && o.Type != ib.QPTypeXRCInit &&
			o.Type != ib.QPTypeXRCTgt {
			return nil, fmt.Errorf("ID with queue pairs of type %v: %w", o.Type, syscall.EINVAL)
		}
	case msg.PortSpaceUDP, msg.PortSpaceIPoIB:
		o.Type = ib.QPTypeUD
	default:
		return nil, fmt.Errorf("ID in %v: %w", o.Space, syscall.EINVAL)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errManagerClosed
	}
	return m.newID(o), nil
}

var errManagerClosed = fmt.Errorf("the connection manager was closed: %w", syscall.ENODEV)

//verbena:held mu
func (m *Manager) newID(o Options) *ID {
	m.made++
	id := &ID{m: m, opts: o, made: m.made, handler: o.Event}
	m.ids[id] = struct{}{}
	return id
}

// SetEventFunc sets a new event function, which receives events from the next event on.
func (id *ID) SetEventFunc(f func(*ID, Event)) {
	id.reporting.Lock()
	defer id.reporting.Unlock()
	id.handler = f
}

// takeOwnership makes this package the owner of a request. closed is called when the manager is closed.
func (id *ID) takeOwnership(f func(*ID, Event), closed func(error)) {
	id.SetEventFunc(f)
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if id.opts.closed = closed; id.gone {
		closed(errManagerClosed)
	}
}

// reportEvent calls the event function.
func (id *ID) reportEvent(e Event) {
	id.reporting.Lock()
	f, dead := id.handler, id.dead
	id.reporting.Unlock()
	if dead || f == nil {
		if e.New != nil {
			e.New.Destroy()
		}
		return
	}
	f(id, e)
}

// Destroy destroys an ID. Destroy disconnects or rejects a connection, and notifies the peer. No further event is
// reported, but the event function may still be running. Destroy does not sleep. (rdma_destroy_id)
func (id *ID) Destroy() {
	id.reporting.Lock()
	id.dead = true
	id.reporting.Unlock()
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	id.m.destroy(id)
}

//verbena:held mu
func (m *Manager) destroy(id *ID) {
	if id.gone {
		return
	}
	id.gone = true
	if id.state == idListening && id.opts.Listens != nil {
		m.recordFormerListener(id)
	}
	m.releaseDevice(id, RejectedByDestroy)
	m.leaveBacklog(id)
	m.ports.removeOwner(id)
	delete(m.ids, id)
}

// formerListener is a destroyed listener.
type formerListener struct {
	gone    time.Time
	listens func() bool // reports whether its owner may listen again
}

// recordFormerListener records that a listener was destroyed. holdRequestForListener reads the record. If there are
// many records, recordFormerListener drops old records.
//
//verbena:held mu
func (m *Manager) recordFormerListener(id *ID) {
	now := m.cfg.Clock.Now()
	if len(m.lately) >= maxFormerListeners {
		for p, l := range m.lately {
			if now.Sub(l.gone) > holdAfter {
				delete(m.lately, p)
			}
		}
	}
	if len(m.lately) < maxFormerListeners {
		m.lately[id.port.port] = formerListener{now, id.opts.Listens}
	}
}

const maxFormerListeners = 1024

// releaseDevice ends the ID's use of its device and of the network. why is the cause of a rejection.
//
//verbena:held mu
func (m *Manager) releaseDevice(id *ID, why RejectionCause) {
	id.groups = nil
	if c := id.conn; c != nil {
		id.detachConnection()
		if d, ok := c.Call(conn.Drop, m.cfg.Retries); ok {
			if id.request && d.Send == msg.AttrREJ {
				m.reportRejection(id, id.dst, why)
			}
			m.applyActions(c, d)
		}
		if c.State == conn.Timewait || c.State == conn.Refused {
			m.limitEndedConnections(c)
		}
	}
	if s := id.service; s != nil && s.asked && !s.sent {
		m.reportRejection(id, id.dst, why)
	}
	m.endServiceRequests(id)
}

// LeaveBacklog removes a request from the backlog of its listener, because its owner has received the request.
func (id *ID) LeaveBacklog() {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	id.m.leaveBacklog(id)
}

// leaveBacklog removes a request from the number of requests that are not accepted yet.
//
//verbena:held mu
func (m *Manager) leaveBacklog(id *ID) {
	if id.listener != nil {
		id.listener.pending--
		id.listener = nil
	}
}

// state errors

func (id *ID) newStateError(what string) error {
	return fmt.Errorf("%s: not allowed in this state of the ID: %w", what, syscall.EINVAL)
}

// SetOption sets an option of an ID. AFOnly, and ReuseAddr to 0, may be set before the ID is bound. ReuseAddr may
// be set to 1 until the ID listens. TOS, and ACKTimeout of an ID with reliable connections, may be set at any time.
// (rdma_set_service_type, rdma_set_reuseaddr, rdma_set_afonly, rdma_set_ack_timeout)
func (id *ID) SetOption(o Option, v uint8) error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	switch o {
	case TOS:
		id.tos = v
	case ACKTimeout:
		if id.opts.Type != ib.QPTypeRC && id.opts.Type != ib.QPTypeXRCInit {
			return fmt.Errorf("set the ACK timeout: the type of the queue pair is %v, not RC or XRC_INI: %w", id.opts.Type,
				syscall.EINVAL)
		}
		id.ackCode, id.ackSet = v, true
	case ReuseAddr:
		if v == 0 && id.state != idIdle {
			return id.newStateError("clear the option for address reuse")
		}
		if id.state == idListening {
			return id.newStateError("set the option for address reuse")
		}
		id.reuseAddr = v != 0
	case AFOnly:
		if id.state != idIdle && id.state != idBound {
			return id.newStateError("set the option for one address family")
		}
		id.afOnly = v != 0
	default:
		return fmt.Errorf("option %d: %w", o, syscall.ENOSYS)
	}
	return nil
}

// Option is an option of an ID (RDMA_OPTION_ID_*).
type Option uint32

const (
	TOS Option = iota
	ReuseAddr
	AFOnly
	ACKTimeout
)

// Bind binds an ID to a local address, which may be unspecified, and a port; port 0 means any free port. Bind
// returns EADDRNOTAVAIL if no device has the address, or if the port conflicts with one that is bound for all
// addresses, EADDRINUSE if the port is in use, and EACCES for ports below 1024. (rdma_bind_addr)
func (id *ID) Bind(a netip.AddrPort) error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bind(id, a)
}

//verbena:held mu
func (m *Manager) bind(id *ID, a netip.AddrPort) error {
	if id.state != idIdle {
		return id.newStateError("bind")
	}
	if lacksZone(a.Addr()) {
		return fmt.Errorf("bind %v: a link-local address needs a scope: %w", a, syscall.EINVAL)
	}
	at, err := gidSource{}, error(nil)
	if !a.Addr().IsUnspecified() {
		at, err = m.agents.findSourceForID(id, a.Addr())
	}
	loopback := isLoopback(a.Addr()) && !m.agents.hasAddr(a.Addr())
	if err != nil && !(loopback && m.cfg.NoLoopback) {
		return fmt.Errorf("bind: %w", err)
	}
	if loopback {
		a = netip.AddrPortFrom(deviceAddress(at, a.Addr()), a.Port())
	}
	if a.Addr().Is4() {
		id.afOnly = true
	}
	id.src, id.loopback = a, loopback
	if err := m.ports.assignPort(id, a.Port(), &m.cfg); err != nil {
		id.src = netip.AddrPort{}
		return fmt.Errorf("bind %v: %w", a, err)
	}
	id.src = netip.AddrPortFrom(a.Addr(), id.port.port)
	id.dst = netip.AddrPortFrom(unspecifiedAddrLike(a.Addr()), 0) // to fix the ID's address family
	id.at = at
	id.state = idBound
	return nil
}

// BindGID binds an ID to an InfiniBand address (AF_IB). On Ethernet only the unspecified address is valid, and
// BindGID returns ENODEV for all others. librdmacm uses this call to test for the commands that accept addresses of
// any family.
func (id *ID) BindGID(g ib.GID) error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if id.state != idIdle {
		return id.newStateError("bind")
	}
	if !g.IsZero() {
		return fmt.Errorf("bind: no InfiniBand subnet has %v: %w", g, syscall.ENODEV)
	}
	id.ib, id.state = true, idBound
	return nil
}

// unmapAddrPort unmaps an IPv4-mapped address, because no local interface has such an address. (rdma_translate_ip)
func unmapAddrPort(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// lacksZone reports whether an address is link-local and does not name its link. (cma_check_linklocal)
func lacksZone(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "" }

// usesAnyAddress reports whether an ID has its port at all addresses. Such an ID is bound to an unspecified address,
// or to a loopback address that no device has. (cma_any_addr)
//
//verbena:held m.mu
func (id *ID) usesAnyAddress() bool { return id.loopback || id.src.Addr().IsUnspecified() }

// Listen makes the ID receive requests for its port. backlog limits the requests that are neither accepted nor
// rejected; 0 means 1024. An unbound ID is bound to a free port of all addresses. (rdma_listen)
func (id *ID) Listen(backlog int) error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if id.state == idIdle {
		if err := m.bind(id, netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); err != nil {
			return err
		}
	}
	if id.state != idBound || id.ib {
		return id.newStateError("listen")
	}
	if err := m.ports.checkNoConflict(id, id.port, false); err != nil {
		return fmt.Errorf("listen on %v: %w", id.src, err)
	}
	if backlog <= 0 {
		backlog = defaultBacklog
	}
	id.backlog, id.state, id.reuseAddr = backlog, idListening, false
	id.begun = id.at.agent != nil
	return nil
}

const defaultBacklog = 1024

// ResolveAddr resolves the device and the local address for a peer, and causes AddrResolved or AddrError. If there
// is no route, ResolveAddr returns an error, such as ENETUNREACH, and the ID is bound. src may be the zero
// AddrPort, or have an unspecified address. It may sleep. (rdma_resolve_addr)
func (id *ID) ResolveAddr(src, dst netip.AddrPort) error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if !dst.Addr().IsValid() {
		return fmt.Errorf("resolve: no address: %w", syscall.EINVAL)
	}
	if id.state == idIdle {
		if !src.Addr().IsValid() {
			src = netip.AddrPortFrom(unspecifiedAddrLike(dst.Addr()).WithZone(dst.Addr().Zone()), src.Port())
		}
		if err := m.bind(id, src); err != nil {
			return err
		}
	}
	if id.state != idBound || id.ib {
		return id.newStateError("resolve an address")
	}
	if id.src.Addr().Is4() != dst.Addr().Is4() {
		id.dst = dst
		return fmt.Errorf("resolve %v from %v: the address families differ: %w", dst, id.src, syscall.EINVAL)
	}
	if dst.Addr().IsUnspecified() { // means the local host (cma_resolve_loopback)
		dst = netip.AddrPortFrom(loopbackAddrLike(dst.Addr()), dst.Port())
	}
	id.state, id.dst = idAddrQuery, dst
	from, dev := id.src.Addr(), id.opts.Device
	switch {
	case dev != nil && from.IsUnspecified():
		at, err := m.agents.findSourceOnDevice(dev, dst.Addr())
		m.finishResolve(id, at, netip.AddrFrom16(at.gid).Unmap(), err)
		return nil
	case m.agents.hasAddr(dst.Addr()): // the local host
		if from.IsUnspecified() {
			from = dst.Addr() // as in the kernel's routing
		}
	case from.IsUnspecified() || from.Is6(): // an interface reaches all IPv4 addresses with its own routes
		m.mu.Unlock()
		way, err := m.cfg.Source(dst.Addr())
		m.mu.Lock()
		if id.gone || id.state != idAddrQuery {
			return nil
		}
		if err == nil && way.Is4() != dst.Addr().Is4() {
			err = fmt.Errorf("no local address of its family reaches it: %w", syscall.ENETUNREACH)
		}
		if err != nil {
			id.state = idBound
			return fmt.Errorf("resolve %v: %w", dst, err)
		}
		if from.IsUnspecified() {
			from = way
		}
	}
	at, err := m.agents.sourceFor(id, from, dst.Addr())
	m.finishResolve(id, at, from, err)
	return nil
}

func unspecifiedAddrLike(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func loopbackAddrLike(like netip.Addr) netip.Addr {
	if like.Is4() {
		return localhostIPv4
	}
	return netip.IPv6Loopback()
}

// finishResolve reports the result of resolving an address.
//
//verbena:held mu
func (m *Manager) finishResolve(id *ID, at gidSource, from netip.Addr, err error) {
	if err == nil && id.opts.Device != nil && !at.agent.dev.Same(id.opts.Device) {
		err = syscall.ENODEV
	}
	if err != nil {
		id.state = idBound
		m.events.enqueue(id, Event{Type: AddrError, Status: -errnoOf(err), err: err})
		return
	}
	id.state, id.at = idAddrResolved, at
	id.src = netip.AddrPortFrom(from, id.src.Port())
	m.events.enqueue(id, Event{Type: AddrResolved})
}

// ResolveRoute causes RouteResolved. Over Ethernet, the route is known with the address. (rdma_resolve_route)
func (id *ID) ResolveRoute() error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if id.state != idAddrResolved {
		return id.newStateError("resolve a route")
	}
	id.state, id.class = idRouteResolved, id.tos // (cma_resolve_iboe_route)
	m.events.enqueue(id, Event{Type: RouteResolved})
	return nil
}

// View holds the addresses and the route of an ID.
type View struct {
	Src, Dst     netip.AddrPort
	Device       *ib.Device // nil if unknown
	GUID         uint64     // GUID of the node
	Port         int
	SGID, DGID   ib.GID
	GIDIndex     int
	MTU          ib.MTU
	TrafficClass uint8
	FlowLabel    uint32
	Routed       bool      // the route is known
	State        uint8     // enum rdma_cm_state
	Asked        time.Time // when Connect was called; zero if it was not
	Unanswered   bool      // the peer has not answered the request of Connect yet
	QPN          uint32    // number of the owner's queue pair, after Connect or Accept; 0 if unknown
}

// linuxStates maps states to the numbers of enum rdma_cm_state.
var linuxStates = [...]uint8{
	idIdle: 0, idBound: 7, idListening: 8, idAddrQuery: 1, idAddrResolved: 2, idRouteResolved: 4, idConnected: 5,
	idDisconnected: 6,
	idRemoved:      9,
}

// View returns the addresses and the route. It may sleep.
func (id *ID) View() View {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	v := View{Src: id.src, Dst: id.dst, TrafficClass: id.class, State: linuxStates[id.state], QPN: id.param.QPN,
		Asked: id.asked}
	if a := id.at.agent; a != nil && id.state != idRemoved {
		v.Device, v.GUID, v.Port, v.SGID, v.GIDIndex, v.MTU = a.dev, a.guid, a.port, id.at.gid, id.at.gidIndex, id.at.mtu
		if to := m.peerAddressVector(id); to != nil {
			v.DGID, v.TrafficClass, v.FlowLabel = to.GRH.DGID, to.GRH.TrafficClass, to.GRH.FlowLabel
		}
	}
	switch c, s := id.conn, id.service; {
	case c != nil:
		v.Unanswered = c.State == conn.ReqSent
	case s != nil:
		v.Unanswered = !s.asked && !s.silent
	}
	switch id.state {
	case idRouteResolved, idConnected, idDisconnected:
		v.Routed = id.service == nil || !id.service.asked
	}
	return v
}

// peerAddressVector returns the address vector of the peer, or nil if it is unknown.
//
//verbena:held mu
func (m *Manager) peerAddressVector(id *ID) *ib.AHAttr {
	switch {
	case id.conn != nil:
		return &id.conn.to
	case id.service != nil && !id.service.asked:
		return &id.service.to
	case id.at.agent == nil || !id.dst.IsValid():
		return nil
	}
	return &ib.AHAttr{HasGRH: true, Port: uint8(id.at.agent.port), GRH: ib.GlobalRoute{
		DGID: m.agents.peerGID(id.at, id.dst.Addr()), SGIDIndex: uint8(id.at.gidIndex), HopLimit: hopLimit,
		TrafficClass: id.class,
		FlowLabel:    flowLabel(id.src.Port(), id.dst.Port()),
	}}
}

const hopLimit = 64

// flowLabel returns the flow label of a connection, which networks use to balance load.
// (cma_get_roce_udp_flow_label)
func flowLabel(src, dst uint16) uint32 { return (uint32(src)*31 + uint32(dst)) & 0xfffff }

// Device returns the shared [ib.Device] of the ID's device, or nil if it is unknown or was removed. A client of the
// core creates its objects on its own Device, for which Same returns true.
func (id *ID) Device() *ib.Device {
	id.m.mu.Lock()
	a := id.at.agent
	if id.state == idRemoved {
		a = nil
	}
	id.m.mu.Unlock()
	if a == nil {
		return nil
	}
	for _, d := range id.m.core.Devices() {
		if d.Same(a.dev) {
			return d
		}
	}
	return nil
}

// Space returns the port space.
func (id *ID) Space() msg.PortSpace { return id.opts.Space }

// IsDatagram reports whether the ID belongs to a datagram service.
func (id *ID) IsDatagram() bool { return id.opts.Type == ib.QPTypeUD }

// Type returns the type of the queue pair.
func (id *ID) Type() ib.QPType { return id.opts.Type }
