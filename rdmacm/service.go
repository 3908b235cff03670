package rdmacm

import (
	"fmt"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/internal/clock"
	"verbena/rdmacm/msg"
)

// serviceRequest is a request for a datagram service, on either side (IBA 12.11).
type serviceRequest struct {
	asked bool // the request came from the peer
	to    ib.AHAttr
	tid   uint64
	id    uint32 // chosen by the requesting side
	sid   msg.ServiceID

	last   datagram // the last sent message; if answered is true, the reply
	sent   bool
	timer  clock.Timer
	left   uint8
	silent bool // the request was answered
}

// sidrTimeout is the time for a peer's response. After it, the request is retransmitted. (CMA_SIDR_... of
// cma_resolve_ib_udp)
const sidrTimeout = 4096 * time.Millisecond

// sendSIDRREQ sends the request of an ID. (cma_resolve_ib_udp)
//
//verbena:held mu
func (m *Manager) sendSIDRREQ(id *ID, p Param, user []byte) error {
	d, err := id.privateData(user, msg.MaxSIDRREQData)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	s := &serviceRequest{
		to: *m.peerAddressVector(id), tid: m.cfg.Rand.Uint64(),
		id:  unusedRandomID(m.cfg.Rand, func(n uint32) bool { return m.sidr[n] != nil }),
		sid: msg.MakeServiceID(id.opts.Space, id.dst.Port()), left: m.cfg.Retries,
	}
	m.sidr[s.id] = id
	id.service, id.state, id.param, id.begun, id.asked = s, idConnected, p, true, m.cfg.Clock.Now()
	s.last = datagram{to: s.to}
	msg.Append(s.last.mad[:0], s.tid, &msg.SIDRREQ{RequestID: s.id, PKey: defaultPKey, ServiceID: s.sid, Data: d})
	id.at.agent.queueDatagram(&s.last)
	m.armServiceTimer(id)
	return nil
}

// sidrRetransmitTime returns sidrTimeout, or the manager's timeout if that is shorter.
func (m *Manager) sidrRetransmitTime() time.Duration {
	return min(sidrTimeout, decodeTimeout(m.cfg.Timeout))
}

//verbena:held mu
func (m *Manager) armServiceTimer(id *ID) {
	s := id.service
	s.timer = m.cfg.Clock.AfterFunc(m.sidrRetransmitTime(), func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if id.service != s || s.silent || id.gone || id.state != idConnected {
			return
		}
		if s.left == 0 {
			m.endServiceRequests(id)
			m.events.enqueue(id, Event{Type: Unreachable, Status: -int32(syscall.ETIMEDOUT)})
			return
		}
		s.left--
		m.stats.Retries.Add(1)
		id.at.agent.queueDatagram(&s.last)
		m.armServiceTimer(id)
	})
}

// endServiceRequests ends the requests of an ID.
//
//verbena:held mu
func (m *Manager) endServiceRequests(id *ID) {
	s := id.service
	if s == nil {
		return
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.asked {
		if !s.sent && id.at.agent != nil && id.state != idRemoved {
			_ = m.replySIDR(id, msg.SIDRRejected, Param{}, nil)
		}
		delete(m.services, serviceKey{s.to.GRH.DGID, s.id})
	} else if m.sidr[s.id] == id {
		delete(m.sidr, s.id)
	}
	id.service = nil
}

// replySIDR replies to a request. (cma_send_sidr_rep)
//
//verbena:held mu
func (m *Manager) replySIDR(id *ID, status msg.SIDRStatus, p Param, user []byte) error {
	s := id.service
	switch {
	case s.sent:
		return id.newStateError("answer")
	case len(user) > msg.MaxSIDRREPData:
		return fmt.Errorf("answer: %d bytes of private data exceed %d: %w", len(user), msg.MaxSIDRREPData, syscall.EINVAL)
	}
	rep := &msg.SIDRREP{RequestID: s.id, Status: status, ServiceID: s.sid, Data: user}
	if status == msg.SIDRSuccess {
		rep.QPN, rep.QKey = low24Bits(p.QPN), p.QKey
		if p.QKey == 0 {
			rep.QKey = udpQKey
		}
	}
	s.sent = true
	s.last = datagram{to: s.to}
	msg.Append(s.last.mad[:0], s.tid, rep)
	id.at.agent.queueDatagram(&s.last)
	m.leaveBacklog(id)
	return nil
}

// receiveSIDRREQ processes a request of a peer. (cm_sidr_req_handler)
//
//verbena:held mu
func (m *Manager) receiveSIDRREQ(a *agent, r *receivedMessage, x *msg.SIDRREQ) {
	key := serviceKey{r.from.GRH.DGID, x.RequestID}
	if id := m.services[key]; id != nil {
		m.stats.Duplicates.Add(1)
		if s := id.service; s.sent && id.at.agent == a {
			m.stats.Retries.Add(1)
			a.queueDatagram(&s.last)
		}
		return
	}
	refuse := func(why msg.SIDRStatus) {
		m.stats.Refused.Add(1)
		a.queueMessage(r.from, r.tid, &msg.SIDRREP{RequestID: x.RequestID, Status: why, ServiceID: x.ServiceID})
	}
	l, src, dst, data := m.listenerFor(a, r, x.ServiceID, x.Data)
	if l == nil && len(m.listenersOf(x.ServiceID)) > 0 {
		m.reportNoRoom(nil, x.ServiceID, x.Data)
		refuse(msg.SIDRRejected)
		return
	}
	if l == nil && m.holdRequestForListener(a, r, x.ServiceID) {
		return
	}
	if l == nil || l.opts.Type != ib.QPTypeUD {
		refuse(msg.SIDRUnsupported)
		return
	}
	id := m.newRequestID(l, a, r, src, dst)
	if id == nil {
		m.reportNoRoom(l, x.ServiceID, x.Data)
		refuse(msg.SIDRRejected)
		return
	}
	id.service = &serviceRequest{asked: true, to: r.from, tid: r.tid, id: x.RequestID, sid: x.ServiceID}
	id.state, id.begun = idConnected, true
	m.services[key] = id
	m.events.enqueue(l, Event{Type: ConnectRequest, New: id, Data: data})
}

// handleSIDRReply processes a reply of a peer. (cm_sidr_rep_handler, cma_sidr_rep_handler)
//
//verbena:held mu
func (m *Manager) handleSIDRReply(a *agent, r *receivedMessage, x *msg.SIDRREP) {
	id := m.sidr[x.RequestID]
	if id == nil || id.at.agent != a || id.service.to.GRH.DGID != r.from.GRH.DGID || id.service.silent {
		m.stats.Unknown.Add(1)
		return
	}
	s := id.service
	s.silent = true
	if s.timer != nil {
		s.timer.Stop()
	}
	if x.Status != msg.SIDRSuccess {
		m.events.enqueue(id, Event{Type: Unreachable, Status: int32(x.Status), Data: x.Data})
		return
	}
	m.events.enqueue(id, Event{Type: Established, Data: x.Data, AH: s.to, Param: Param{QPN: x.QPN, QKey: x.QKey}})
}
