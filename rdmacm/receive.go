package rdmacm

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"verbena/ib"
	"verbena/rdmacm/conn"
	"verbena/rdmacm/msg"
)

// receivedMessage is a message with its source.
type receivedMessage struct {
	from ib.AHAttr
	tid  uint64
	m    msg.Message
}

// receiveMessage processes a message of a peer.
func (m *Manager) receiveMessage(a *agent, r receivedMessage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.handleMessage(a, r)
}

//verbena:held mu
func (m *Manager) handleMessage(a *agent, r receivedMessage) {
	if m.closed {
		return
	}
	switch x := r.m.(type) {
	case *msg.REQ:
		m.receiveREQ(a, &r, x)
	case *msg.MRA:
		if c := m.lookUpConnection(a, &r, x.RemoteCommID, x.LocalCommID); c != nil {
			c.service = x.ServiceTimeout
			m.applyActions(c, c.Receive(msg.AttrMRA, x.Of, 0))
		}
	case *msg.REP:
		m.receiveREP(a, &r, x)
	case *msg.RTU:
		if c := m.lookUpConnection(a, &r, x.RemoteCommID, x.LocalCommID); c != nil {
			d := c.Receive(msg.AttrRTU, 0, 0)
			if d.Event == conn.None {
				m.stats.Duplicates.Add(1)
			}
			m.applyActions(c, d)
		}
	case *msg.REJ:
		m.receiveREJ(a, &r, x)
	case *msg.DREQ:
		c := m.lookUpConnection(a, &r, x.RemoteCommID, x.LocalCommID)
		if c == nil { // the connection was dropped, and the peer repeats the DREQ (cm_issue_drep)
			a.queueMessage(r.from, r.tid, &msg.DREP{LocalCommID: x.RemoteCommID, RemoteCommID: x.LocalCommID})
			return
		}
		if x.RemoteQPN != c.localQPN { // (cm_dreq_handler)
			m.stats.Unknown.Add(1)
			return
		}
		d := c.Receive(msg.AttrDREQ, 0, 0)
		if d.Event == conn.None {
			m.stats.Duplicates.Add(1)
		} else {
			c.tid = r.tid
		}
		m.applyActions(c, d)
		if c.owner == nil { // both owners have destroyed their IDs at the same time, so no owner can confirm the end
			if d, ok := c.Call(conn.SendDREP, 0); ok {
				m.applyActions(c, d)
			}
		}
	case *msg.DREP:
		if c := m.lookUpConnection(a, &r, x.RemoteCommID, x.LocalCommID); c != nil {
			m.applyActions(c, c.Receive(msg.AttrDREP, 0, 0))
		}
	case *msg.LAP: // alternate paths are not supported
		if c := m.lookUpConnection(a, &r, x.RemoteCommID, x.LocalCommID); c != nil {
			a.queueMessage(r.from, r.tid, &msg.APR{LocalCommID: c.local, RemoteCommID: c.remote,
				Status: alternatePathUnsupported})
		}
	case *msg.SIDRREQ:
		m.receiveSIDRREQ(a, &r, x)
	case *msg.SIDRREP:
		m.handleSIDRReply(a, &r, x)
	}
}

const alternatePathUnsupported = 2 // IB_CM_APR_...: IBA table 117

// lookUpConnection returns the connection of a message, or nil.
//
//verbena:held mu
func (m *Manager) lookUpConnection(a *agent, r *receivedMessage, local, remote uint32) *connection {
	c := m.conns.lookUp(a, r.from.GRH.DGID, local, remote)
	if c == nil {
		m.stats.Unknown.Add(1)
	}
	return c
}

// rejectREQ rejects a REQ without a connection.
func (m *Manager) rejectREQ(a *agent, r *receivedMessage, req *msg.REQ, why msg.RejectReason) {
	m.stats.Refused.Add(1)
	a.queueMessage(r.from, r.tid, &msg.REJ{RemoteCommID: req.LocalCommID, Of: msg.OfREQ, Reason: why})
}

//verbena:held mu
func (m *Manager) receiveREQ(a *agent, r *receivedMessage, x *msg.REQ) {
	key := peerID{r.from.GRH.DGID, x.LocalCAGUID, x.LocalCommID}
	if c := m.conns.byPeer[key]; c != nil {
		m.stats.Duplicates.Add(1)
		if c.agent == a {
			m.applyActions(c, c.Receive(msg.AttrREQ, 0, 0))
		}
		return
	}
	old := m.conns.byPeerQP[peerID{key.from, key.guid, x.LocalQPN}]
	if old != nil && x.Transport != msg.TransportExtended {
		if old.agent == a {
			m.endStaleConnection(old)
		}
		m.rejectREQ(a, r, x, msg.ReasonStaleConnection)
		return
	}
	if x.Primary.LocalGID != msg.GID(r.from.GRH.DGID) {
		m.rejectREQ(a, r, x, msg.ReasonInvalidGID)
		return
	}
	t, ok := qpTypeOfREQ(x)
	if !ok {
		m.rejectREQ(a, r, x, msg.ReasonInvalidTransport)
		return
	}
	l, src, dst, data := m.listenerFor(a, r, x.ServiceID, x.Data)
	if l == nil && len(m.listenersOf(x.ServiceID)) > 0 {
		m.reportNoRoom(nil, x.ServiceID, x.Data)
		m.rejectREQ(a, r, x, msg.ReasonConsumer)
		return
	}
	if l == nil && m.holdRequestForListener(a, r, x.ServiceID) {
		return
	}
	if l == nil || l.opts.Type != t {
		m.rejectREQ(a, r, x, msg.ReasonInvalidServiceID)
		return
	}
	mtu := ib.MTU(x.PathMTU)
	if !mtu.Valid() {
		m.rejectREQ(a, r, x, msg.ReasonInvalidMTU)
		return
	}
	id := m.newRequestID(l, a, r, src, dst)
	if id == nil {
		m.reportNoRoom(l, x.ServiceID, x.Data)
		m.rejectREQ(a, r, x, msg.ReasonConsumer)
		return
	}
	c := &connection{
		agent: a, owner: id, to: r.from, local: unusedRandomID(m.cfg.Rand, m.conns.isUsed), remote: x.LocalCommID,
		guid: x.LocalCAGUID, space: l.opts.Space, tid: r.tid, recvPSN: low24Bits(m.cfg.Rand.Uint32()),
		sendPSN:   x.StartingPSN,
		remoteQPN: x.LocalQPN, mtu: min(mtu, id.at.mtu), ackCode: x.Primary.ACKTimeout, retry: x.RetryCount,
		rnrRetry:  x.RNRRetryCount,
		resources: x.InitiatorDepth, depth: x.ResponderResources,
	}
	c.to.GRH.TrafficClass, c.to.GRH.FlowLabel, c.hops = x.Primary.TrafficClass, x.Primary.FlowLabel, x.Primary.HopLimit
	c.Receive(msg.AttrREQ, 0, 0)
	m.conns.add(c)
	m.conns.addPeer(c, x.Transport != msg.TransportExtended)
	id.conn, id.state, id.begun = c, idConnected, true
	m.events.enqueue(l, Event{Type: ConnectRequest, New: id, Data: data, Param: Param{
		QPN: x.LocalQPN, ResponderResources: x.InitiatorDepth, InitiatorDepth: x.ResponderResources,
		FlowControl: x.FlowControl,
		RetryCount:  x.RetryCount, RNRRetryCount: x.RNRRetryCount, SRQ: x.SRQ,
	}})
}

// A server that creates a listener for each connection, such as perftest with -R, closes its listener after a
// request and creates the next one. A Linux client resolves addresses so slowly that the next listener exists when
// its request arrives. This package resolves addresses faster. Therefore a request that arrives shortly after a
// listener was closed is held back until holdAfter has passed, or the owner of the listener has ended. perftest
// calibrates its clock between two listeners. The calibration takes 0.5 s, and 1.6 s if four programs share two
// cores. A peer retransmits its request after 4.3 s (CMA_CM_RESPONSE_TIMEOUT).
const (
	holdAfter = 4 * time.Second
	holdPause = 20 * time.Millisecond
	maxHeld   = 64
)

// holdRequestForListener reports whether it has held back a request without a listener. The request will be processed
// again.
//
//verbena:held mu
func (m *Manager) holdRequestForListener(a *agent, r *receivedMessage, s msg.ServiceID) bool {
	_, k, _ := s.Port() // the next listener may be in another port space
	l, ok := m.lately[k]
	if ok && (m.cfg.Clock.Now().Sub(l.gone) > holdAfter || !l.listens()) {
		delete(m.lately, k)
		ok = false
	}
	if !ok || m.held >= maxHeld {
		return false
	}
	again := *r
	m.held++
	m.cfg.Clock.AfterFunc(holdPause, func() {
		m.containPanic(func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.held--
			if slices.Contains(m.agents.list, a) {
				m.handleMessage(a, again)
			}
		})
	})
	return true
}

func qpTypeOfREQ(x *msg.REQ) (ib.QPType, bool) {
	switch {
	case x.Transport == msg.TransportRC:
		return ib.QPTypeRC, true
	case x.Transport == msg.TransportUC:
		return ib.QPTypeUC, true
	case x.Transport == msg.TransportExtended && x.Extended == msg.ExtendedXRC:
		return ib.QPTypeXRCTgt, true
	}
	return 0, false
}

// endStaleConnection ends a connection that is unknown to its peer. (cm_match_req)
//
//verbena:held mu
func (m *Manager) endStaleConnection(c *connection) {
	if do, ok := c.Call(conn.SendDREQ, m.cfg.Retries); ok {
		m.sendAndStoreMessage(c, c.tid, &msg.DREQ{LocalCommID: c.local, RemoteCommID: c.remote, RemoteQPN: c.remoteQPN})
		do.Send = 0
		m.applyActions(c, do)
	}
}

// listenerFor returns the listener for a service, with the addresses and the user's part of the private data, or nil.
// (cma_find_listener)
//
//verbena:held mu
func (m *Manager) listenerFor(a *agent, r *receivedMessage, service msg.ServiceID, data []byte) (l *ID, src,
	dst netip.AddrPort, user []byte) {
	space, port, ok := service.Port()
	if !ok {
		return nil, src, dst, nil
	}
	h, err := msg.ParseIPHeader(data)
	if err != nil {
		return nil, src, dst, nil
	}
	// The destination in the header must be an address of the device that received the packet. It may also be an
	// address that represents a device, if the source is the same.
	own, err := a.dev.QueryGID(a.port, int(r.from.GRH.SGIDIndex))
	if err != nil {
		return nil, src, dst, nil
	}
	if g := ib.GIDFromAddr(h.Dst); g != own.GID {
		if _, err := a.gidIndex(g); err != nil && !m.agents.representsDevice(h.Dst) {
			return nil, src, dst, nil
		}
	}
	for _, o := range m.ports[portKey{space, port}] {
		if o.state == idListening && o.matchesAddress(h.Dst) {
			l = o
			break
		}
	}
	return l, netip.AddrPortFrom(h.Src, h.SrcPort), netip.AddrPortFrom(h.Dst, port), data[msg.IPHeaderLen:]
}

// matchesAddress reports whether a listener matches requests for an address.
//
//verbena:held m.mu
func (id *ID) matchesAddress(a netip.Addr) bool {
	at := id.src.Addr()
	if id.usesAnyAddress() {
		return at.Is4() == a.Is4() || at.Is6() && !id.afOnly
	}
	return at.WithZone("") == a
}

// listenersOf returns the listeners for a service at any address. If there is one, requests to other addresses are
// rejected, and not reported as unknown. (cm_find_listen, cma_ib_id_from_event)
//
//verbena:held mu
func (m *Manager) listenersOf(service msg.ServiceID) (list []*ID) {
	space, port, ok := service.Port()
	if !ok {
		return nil
	}
	for _, o := range m.ports[portKey{space, port}] {
		if o.state == idListening {
			list = append(list, o)
		}
	}
	return list
}

// newRequestID creates the ID of a request. newRequestID returns nil if the listener has too many requests that are not
// accepted yet.
//
//verbena:held mu
func (m *Manager) newRequestID(l *ID, a *agent, r *receivedMessage, src, dst netip.AddrPort) *ID {
	if l.pending >= l.backlog {
		return nil
	}
	own, err := a.dev.QueryGID(a.port, int(r.from.GRH.SGIDIndex))
	if err != nil {
		return nil
	}
	at, err := a.newGIDSource(int(r.from.GRH.SGIDIndex), own.GID)
	if err != nil {
		return nil
	}
	id := m.newID(Options{Space: l.opts.Space, Type: l.opts.Type, Owner: l.opts.Owner})
	id.request = true
	id.src, id.dst, id.at, id.class, id.afOnly = dst, src, at, r.from.GRH.TrafficClass, l.afOnly
	id.listener = l
	l.pending++
	return id
}

//verbena:held mu
func (m *Manager) receiveREP(a *agent, r *receivedMessage, x *msg.REP) {
	c := m.lookUpConnection(a, r, x.RemoteCommID, x.LocalCommID)
	if c == nil {
		return
	}
	if c.State != conn.ReqSent && c.State != conn.MRAReqRcvd {
		m.stats.Duplicates.Add(1)
		m.applyActions(c, c.Receive(msg.AttrREP, 0, 0))
		return
	}
	from := c.to.GRH.DGID
	if m.conns.byPeerQP[peerID{from, x.LocalCAGUID, x.LocalQPN}] != nil ||
		m.conns.byPeer[peerID{from, x.LocalCAGUID, x.LocalCommID}] != nil {
		a.queueMessage(r.from, r.tid, &msg.REJ{LocalCommID: c.local, RemoteCommID: x.LocalCommID, Of: msg.OfREP,
			Reason: msg.ReasonStaleConnection})
		return
	}
	c.remote, c.guid, c.remoteQPN, c.sendPSN, c.tidREP = x.LocalCommID, x.LocalCAGUID, x.LocalQPN, x.StartingPSN, r.tid
	c.depth, c.resources = x.ResponderResources, x.InitiatorDepth
	c.rnrRetry = x.RNRRetryCount
	m.conns.addPeer(c, c.owner != nil && c.owner.opts.Type != ib.QPTypeXRCInit)
	d := c.Receive(msg.AttrREP, 0, 0)
	d.Event = conn.None
	if c.owner != nil {
		m.events.enqueue(c.owner, Event{Type: ConnectResponse, Data: x.Data, Param: Param{
			QPN: x.LocalQPN, ResponderResources: x.InitiatorDepth, InitiatorDepth: x.ResponderResources,
			FlowControl:   x.FlowControl,
			RNRRetryCount: x.RNRRetryCount, SRQ: x.SRQ,
		}})
	}
	m.applyActions(c, d)
}

// receiveREJ processes a rejection, or the end of a request that its sender has cancelled. (cm_rej_handler,
// cm_acquire_rejected_id)
//
//verbena:held mu
func (m *Manager) receiveREJ(a *agent, r *receivedMessage, x *msg.REJ) {
	var c *connection
	switch {
	case x.Reason == msg.ReasonTimeout && x.InfoLength == 8:
		c = m.conns.byPeer[peerID{r.from.GRH.DGID, binary.BigEndian.Uint64(x.Info[:8]), x.LocalCommID}]
		if c != nil && c.agent != a {
			c = nil
		}
	case x.Of == msg.OfREQ && x.LocalCommID == 0:
		c = m.lookUpConnection(a, r, x.RemoteCommID, 0)
		if c != nil && c.State != conn.ReqSent && c.State != conn.MRAReqRcvd {
			c = nil
		}
	default:
		c = m.lookUpConnection(a, r, x.RemoteCommID, x.LocalCommID)
	}
	if c == nil {
		return
	}
	d := c.Receive(msg.AttrREJ, 0, x.Reason)
	if d.Event == conn.REJReceived {
		d.Event = conn.None
		if id := c.owner; id != nil && id.state == idConnected {
			m.events.enqueue(id, Event{Type: Rejected, Status: int32(x.Reason), Data: x.Data})
		}
	}
	m.applyActions(c, d)
}
