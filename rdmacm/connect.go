package rdmacm

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/internal/clock"
	"verbena/rdmacm/conn"
	"verbena/rdmacm/msg"
)

// connection is one side of a connection. connection exists from its first message until no packet of it can be in
// flight, and may outlive its ID.
type connection struct {
	conn.Conn
	agent *agent
	owner *ID // nil after the owner has destroyed its ID
	to    ib.AHAttr

	local, remote uint32 // communication IDs; remote is 0 until it is known
	guid          uint64 // GUID of the peer's node
	space         msg.PortSpace
	tid           uint64
	tidREP        uint64 // transaction ID of the REP, which RTU repeats
	last          datagram
	timer         clock.Timer // nil without a timer
	round         uint64      // number of the timer, to detect a late expiration
	service       uint8       // code of the time requested by an MRA
	slow          bool        // an MRA was sent

	// The following fields are for the queue pair:
	recvPSN, sendPSN uint32 // initial PSNs of incoming packets, chosen by this side, and of outgoing ones
	localQPN         uint32 // 0 until it is known
	remoteQPN        uint32
	mtu              ib.MTU
	ackCode          uint8
	depth, resources uint8
	retry, rnrRetry  uint8
	hops             uint8 // hop limit of the queue pair's packets, as requested by the peer; 0 means that of messages
}

// peerKey returns the map key of a number that the connection's peer has assigned.
func (c *connection) peerKey(number uint32) peerID { return peerID{c.to.GRH.DGID, c.guid, number} }

func errnoOf(err error) int32 {
	var e syscall.Errno
	if errors.As(err, &e) && e != 0 {
		return int32(e)
	}
	return int32(syscall.EIO)
}

// packetLifetimeCode is the code of the packet lifetime. (CMA_IBOE_PACKET_LIFETIME)
const packetLifetimeCode = 16

// ackTimeout returns the local ACK timeout of the ID's connection, 5 bits. (cma_resolve_iboe_route, cm_ack_timeout)
func (id *ID) ackTimeout() uint8 {
	t, delay := uint8(packetLifetimeCode+1), id.at.agent.delay
	if id.ackSet && id.ackCode != 0 {
		t = id.ackCode
	}
	switch {
	case delay >= t:
		t = delay + 1
	case delay+1 >= t:
		t++
	}
	return min(t, 31)
}

func low24Bits(n uint32) uint32 { return n & 0xffffff }

// privateData returns the private data for a message. In port spaces with IP ports, the IP header precedes the user's
// data.
func (id *ID) privateData(user []byte, most int) ([]byte, error) {
	var b []byte
	if !id.ib {
		b = msg.AppendIPHeader(nil, msg.IPHeader{SrcPort: id.src.Port(), Src: id.src.Addr().WithZone(""),
			Dst: id.dst.Addr().WithZone("")})
	}
	if len(b)+len(user) > most {
		return nil, fmt.Errorf("%d bytes of private data exceed %d: %w", len(user), most-len(b), syscall.EINVAL)
	}
	return append(b, user...), nil
}

// Connect requests a connection to the peer, or to the datagram service of the peer. Connect causes ConnectResponse
// or, for a service, Established; otherwise Rejected or Unreachable. (rdma_connect)
func (id *ID) Connect(p Param, user []byte) error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if id.state != idRouteResolved {
		return id.newStateError("connect")
	}
	if id.opts.Type == ib.QPTypeUD {
		return m.sendSIDRREQ(id, p, user)
	}
	d, err := id.privateData(user, msg.MaxREQData)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	to := *m.peerAddressVector(id)
	c := &connection{
		agent: id.at.agent, owner: id, to: to, local: unusedRandomID(m.cfg.Rand, m.conns.isUsed),
		space: id.opts.Space, tid: m.cfg.Rand.Uint64(), recvPSN: low24Bits(m.cfg.Rand.Uint32()), mtu: id.at.mtu,
		ackCode: id.ackTimeout(), depth: p.InitiatorDepth, resources: p.ResponderResources,
		retry: p.RetryCount & 7, rnrRetry: p.RNRRetryCount & 7, localQPN: low24Bits(p.QPN),
	}
	m.conns.add(c)
	id.conn, id.param, id.state, id.begun, id.asked = c, p, idConnected, true, m.cfg.Clock.Now()
	req := &msg.REQ{
		LocalCommID: c.local, ServiceID: msg.MakeServiceID(id.opts.Space, id.dst.Port()), LocalCAGUID: c.agent.guid,
		LocalQPN: c.localQPN, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		RemoteTimeout: m.cfg.Timeout, Transport: transportOf(id.opts.Type), FlowControl: p.FlowControl,
		StartingPSN:  c.recvPSN,
		LocalTimeout: m.cfg.Timeout, RetryCount: c.retry, PKey: defaultPKey, PathMTU: uint8(c.mtu), RNRRetryCount: c.rnrRetry,
		MaxCMRetries: m.cfg.Retries & 15, SRQ: p.SRQ, Primary: msg.Path{
			LocalLID: permissiveLID, RemoteLID: permissiveLID, LocalGID: msg.GID(id.at.gid), RemoteGID: msg.GID(to.GRH.DGID),
			FlowLabel: to.GRH.FlowLabel, TrafficClass: to.GRH.TrafficClass, HopLimit: to.GRH.HopLimit, ACKTimeout: c.ackCode,
			SL: id.class >> 5,
		}, Data: d,
	}
	if req.Transport == msg.TransportExtended {
		req.Extended = msg.ExtendedXRC
	}
	if do, ok := c.Call(conn.SendREQ, m.cfg.Retries); ok {
		m.sendAndStoreMessage(c, c.tid, req)
		m.applyActions(c, do)
	}
	return nil
}

const (
	defaultPKey   = 0xffff
	permissiveLID = 0xffff // the value for all Ethernet devices (IB_LID_PERMISSIVE)
)

func transportOf(t ib.QPType) msg.Transport {
	switch t {
	case ib.QPTypeUC:
		return msg.TransportUC
	case ib.QPTypeXRCInit, ib.QPTypeXRCTgt:
		return msg.TransportExtended
	}
	return msg.TransportRC
}

// Accept accepts a ConnectRequest. The connection is established once Established is reported. If Accept fails,
// the request is rejected if possible. (rdma_accept)
func (id *ID) Accept(p Param, user []byte) error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.accept(id, p, user)
	if err != nil {
		_ = m.reject(id, msg.ReasonConsumer, nil, RejectedByError)
	}
	return err
}

//verbena:held mu
func (m *Manager) accept(id *ID, p Param, user []byte) error {
	if s := id.service; s != nil && s.asked {
		return m.replySIDR(id, msg.SIDRSuccess, p, user)
	}
	c := id.conn
	if id.state != idConnected || c == nil {
		return id.newStateError("accept")
	}
	if len(user) > msg.MaxREPData {
		return fmt.Errorf("accept: %d bytes of private data exceed %d: %w", len(user), msg.MaxREPData, syscall.EINVAL)
	}
	do, ok := c.Call(conn.SendREP, m.cfg.Retries)
	if !ok {
		return id.newStateError("accept")
	}
	id.param = p
	c.depth, c.resources, c.localQPN = p.InitiatorDepth, p.ResponderResources, low24Bits(p.QPN)
	m.sendAndStoreMessage(c, c.tid, &msg.REP{
		LocalCommID: c.local, RemoteCommID: c.remote, LocalQPN: c.localQPN, StartingPSN: c.recvPSN,
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth, TargetACKDelay: c.agent.delay & 31,
		Failover: failoverUnsupported, FlowControl: p.FlowControl, RNRRetryCount: p.RNRRetryCount & 7, SRQ: p.SRQ,
		LocalCAGUID: c.agent.guid,
		Data:        user,
	})
	m.leaveBacklog(id)
	m.applyActions(c, do)
	return nil
}

// failoverUnsupported means that alternate paths are not supported.
const failoverUnsupported = 1

// Complete replies to a ConnectResponse, after the owner has connected its queue pair. Then the connection is
// established. For a datagram service, Complete accepts the request. If Complete fails, the connection is rejected
// if possible. (rdma_accept without parameters)
func (id *ID) Complete() error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.complete(id)
	if err != nil {
		_ = m.reject(id, msg.ReasonConsumer, nil, RejectedByError)
	}
	return err
}

//verbena:held mu
func (m *Manager) complete(id *ID) error {
	if s := id.service; s != nil && s.asked {
		return m.replySIDR(id, msg.SIDRSuccess, Param{}, nil)
	}
	c := id.conn
	if id.state != idConnected || c == nil {
		return id.newStateError("complete")
	}
	do, ok := c.Call(conn.SendRTU, 0)
	if !ok {
		return id.newStateError("complete")
	}
	m.sendAndStoreMessage(c, c.tidREP, &msg.RTU{LocalCommID: c.local, RemoteCommID: c.remote})
	m.applyActions(c, do)
	return nil
}

// Reject rejects a ConnectRequest or a ConnectResponse. The caller must destroy the ID. (rdma_reject)
func (id *ID) Reject(reason msg.RejectReason, user []byte) error {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	return id.m.reject(id, reason, user, RejectedByOwner)
}

//verbena:held mu
func (m *Manager) reject(id *ID, reason msg.RejectReason, user []byte, why RejectionCause) error {
	if s := id.service; s != nil && s.asked {
		if !s.sent {
			m.reportRejection(id, id.dst, why)
		}
		return m.replySIDR(id, msg.SIDRRejected, Param{}, user)
	}
	c := id.conn
	if c == nil {
		return id.newStateError("reject")
	}
	if len(user) > msg.MaxREJData {
		return fmt.Errorf("reject: %d bytes of private data exceed %d: %w", len(user), msg.MaxREJData, syscall.EINVAL)
	}
	of := c.RejectedMessage()
	do, ok := c.Call(conn.SendREJ, 0)
	if !ok {
		return id.newStateError("reject")
	}
	if id.request {
		m.reportRejection(id, id.dst, why)
	}
	do.Send = 0
	m.sendAndStoreMessage(c, c.tid, &msg.REJ{LocalCommID: c.local, RemoteCommID: c.remote, Of: of, Reason: reason,
		Data: user})
	m.leaveBacklog(id)
	m.applyActions(c, do)
	return nil
}

// Disconnect ends a connection, or confirms its end. Disconnect causes Disconnected, unless the peer has ended the
// connection before. (rdma_disconnect)
func (id *ID) Disconnect() error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	c := id.conn
	switch {
	case c != nil:
	case id.begun: // it has ended, is a datagram service, or listens
		return nil
	default:
		return id.newStateError("disconnect")
	}
	if do, ok := c.Call(conn.SendDREQ, m.cfg.Retries); ok {
		m.sendAndStoreMessage(c, c.tid, &msg.DREQ{LocalCommID: c.local, RemoteCommID: c.remote, RemoteQPN: c.remoteQPN})
		do.Send = 0
		m.applyActions(c, do)
	} else if do, ok := c.Call(conn.SendDREP, 0); ok {
		m.applyActions(c, do)
	}
	return nil
}

// Establish reports that data have arrived from the peer before the peer's RTU. (rdma_notify with
// IB_EVENT_COMM_EST)
func (id *ID) Establish() error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	c := id.conn
	if c == nil {
		return id.newStateError("establish")
	}
	if c.State == conn.Established {
		return fmt.Errorf("establish: the connection is established already: %w", syscall.EISCONN)
	}
	do, ok := c.Call(conn.Establish, 0)
	if !ok {
		return id.newStateError("establish")
	}
	m.applyActions(c, do)
	return nil
}

// QPAttr returns the attributes for the queue pair's transition to a state. (rdma_init_qp_attr)
func (id *ID) QPAttr(to ib.QPState) (a ib.QPAttr, mask ib.QPAttrMask, err error) {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	a.State = to
	if id.at.agent == nil || id.state == idRemoved {
		return a, 0, fmt.Errorf("attributes of a queue pair: the ID has no device: %w", syscall.EINVAL)
	}
	port := uint8(id.at.agent.port)
	c := id.conn
	if id.opts.Type == ib.QPTypeUD || !id.begun { // allowed in any state (cma_ib_init_qp_attr)
		a.Port = port
		mask = ib.QPAttrState | ib.QPAttrPKeyIndex | ib.QPAttrPort
		if id.opts.Type == ib.QPTypeUD {
			a.QKey = udpQKey
			return a, mask | ib.QPAttrQKey, nil
		}
		return a, mask | ib.QPAttrAccessFlags, nil
	}
	if c == nil || !c.DeterminesQPAttrs(to == ib.QPInit) {
		return a, 0, id.newStateError("attributes of a queue pair")
	}
	reliable := id.opts.Type != ib.QPTypeUC
	switch to {
	case ib.QPInit:
		a.Port = port
		a.AccessFlags = accessFlagsFor(c.resources)
		return a, ib.QPAttrState | ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrAccessFlags, nil
	case ib.QPRTR:
		a.AH, a.PathMTU, a.DestQPN, a.RQPSN = c.to, c.mtu, c.remoteQPN, c.recvPSN
		a.AH.GRH.HopLimit = cmp.Or(c.hops, a.AH.GRH.HopLimit)
		mask = ib.QPAttrState | ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
		if reliable {
			a.MaxDestRdAtomic = c.resources
			mask |= ib.QPAttrMaxDestRdAtomic | ib.QPAttrMinRNRTimer
		}
		return a, mask, nil
	case ib.QPRTS:
		a.SQPSN = c.sendPSN
		mask = ib.QPAttrState | ib.QPAttrSQPSN
		if reliable {
			a.Timeout, a.RetryCnt, a.RNRRetry, a.MaxRdAtomic = c.ackCode, c.retry, c.rnrRetry, c.depth
			if id.ackSet {
				a.Timeout = id.ackCode
			}
			mask |= ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRdAtomic
		}
		return a, mask, nil
	}
	return a, 0, fmt.Errorf("attributes of a queue pair in state %v: %w", to, syscall.EINVAL)
}

// accessFlagsFor returns the access rights of the peer. (cm_init_qp_init_attr)
func accessFlagsFor(resources uint8) ib.AccessFlags {
	if resources == 0 {
		return ib.AccessRemoteWrite
	}
	return ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic
}

// udpQKey is the Q_Key of datagram services. (RDMA_UDP_QKEY)
const udpQKey = 0x01234567

// sendAndStoreMessage sends a message of a connection, and keeps the message for retransmission.
//
//verbena:held mu
func (m *Manager) sendAndStoreMessage(c *connection, tid uint64, x msg.Message) {
	c.last = datagram{to: c.to}
	msg.Append(c.last.mad[:0], tid, x)
	c.agent.queueDatagram(&c.last)
}

// applyActions executes the actions of a transition.
//
//verbena:held mu
func (m *Manager) applyActions(c *connection, d conn.Actions) {
	switch d.Send {
	case msg.AttrREJ:
		rej := &msg.REJ{LocalCommID: c.local, RemoteCommID: c.remote, Of: d.Of, Reason: d.Reason}
		if d.Reason == msg.ReasonTimeout {
			rej.InfoLength = 8
			for i := range 8 {
				rej.Info[i] = byte(c.agent.guid >> (56 - 8*i))
			}
		}
		m.sendAndStoreMessage(c, c.tid, rej)
	case msg.AttrDREQ:
		m.sendAndStoreMessage(c, c.tid, &msg.DREQ{LocalCommID: c.local, RemoteCommID: c.remote, RemoteQPN: c.remoteQPN})
	case msg.AttrDREP:
		m.sendAndStoreMessage(c, c.tid, &msg.DREP{LocalCommID: c.local, RemoteCommID: c.remote})
	case msg.AttrMRA:
		c.slow = true
		of := msg.OfREQ
		if c.State == conn.MRARepSent {
			of = msg.OfREP
		}
		m.sendAndStoreMessage(c, c.tid, &msg.MRA{LocalCommID: c.local, RemoteCommID: c.remote, Of: of,
			ServiceTimeout: mraTimeout})
	}
	if d.Repeat {
		m.stats.Retries.Add(1)
		c.agent.queueDatagram(&c.last)
	}
	switch d.Timer {
	case conn.Response:
		m.armTimer(c, decodeTimeout(m.cfg.Timeout))
	case conn.Service:
		m.armTimer(c, decodeTimeout(m.cfg.Timeout)+decodeTimeout(c.service))
	case conn.TimewaitTime:
		m.armTimer(c, 2*decodeTimeout(min(c.ackCode, maxTimewait)))
		m.limitEndedConnections(c)
	case conn.Refusal:
		m.conns.removePeerQP(c)
		d := 2*decodeTimeout(m.cfg.Timeout) + time.Second
		if c.slow {
			d += decodeTimeout(mraTimeout)
		}
		m.armTimer(c, d)
		m.limitEndedConnections(c)
	case conn.Stop:
		c.disarmTimer()
	}
	if d.Event != conn.None {
		m.reportConnEvent(c, d.Event)
	}
	if c.State == conn.Idle && c.remote|c.local != 0 {
		m.forgetConnection(c)
	}
}

const (
	// maxTimewait is the code of half the maximum time for which an ended connection is kept, which is 4.3 s.
	// Owners and peers can choose ACK timeouts of hours.
	maxTimewait = 20
	// maxRemembered is the number of connections beyond which ended connections without an owner are dropped at
	// once. Owners and peers can create connections without a rate limit.
	maxRemembered = 16384
)

// limitEndedConnections drops an ended connection if there are too many connections.
//
//verbena:held mu
func (m *Manager) limitEndedConnections(c *connection) {
	if c.owner == nil && len(m.conns.local) > maxRemembered {
		c.State = conn.Idle
		m.forgetConnection(c)
	}
}

// mraTimeout is the code of the time for the owner's response, which is 68 s. (CMA_CM_MRA_SETTING)
const mraTimeout = 24

//verbena:held mu
func (m *Manager) armTimer(c *connection, d time.Duration) {
	c.round++
	round := c.round
	if c.timer != nil {
		c.timer.Stop()
	}
	c.timer = m.cfg.Clock.AfterFunc(d, func() { m.containPanic(func() { m.handleTimeout(c, round) }) })
}

// disarmTimer stops the timer. The caller holds Manager.mu.
func (c *connection) disarmTimer() {
	c.round++
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

func (m *Manager) handleTimeout(c *connection, round uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.round == round && m.conns.local[c.local] == c {
		m.applyActions(c, c.HandleTimeout())
	}
}

// detachConnection separates a connection from its ID. The caller holds Manager.mu.
func (id *ID) detachConnection() {
	id.conn.owner, id.conn = nil, nil
}

// forgetConnection drops a connection.
//
//verbena:held mu
func (m *Manager) forgetConnection(c *connection) {
	c.disarmTimer()
	m.conns.remove(c)
	if c.owner != nil {
		c.owner.detachConnection()
	}
}

// reportConnEvent reports an event of a connection to its ID. (cma_ib_handler)
//
//verbena:held mu
func (m *Manager) reportConnEvent(c *connection, e conn.Event) {
	id := c.owner
	if id == nil {
		return
	}
	if e == conn.TimewaitExit {
		if id.state == idDisconnected {
			m.events.enqueue(id, Event{Type: TimewaitExit})
		}
		return
	}
	if id.state != idConnected {
		return
	}
	switch e {
	case conn.REQError, conn.REPError:
		m.events.enqueue(id, Event{Type: Unreachable, Status: -int32(syscall.ETIMEDOUT)})
	case conn.RTUReceived:
		m.events.enqueue(id, Event{Type: Established})
	case conn.DREQReceived, conn.DREPReceived:
		id.state = idDisconnected
		m.events.enqueue(id, Event{Type: Disconnected})
	case conn.DREQError:
		id.state = idDisconnected
		m.events.enqueue(id, Event{Type: Disconnected, Status: -int32(syscall.ETIMEDOUT)})
	}
}
