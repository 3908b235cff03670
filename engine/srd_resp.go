package engine

import (
	"net/netip"
	"slices"

	"verbena/engine/queue"
	"verbena/engine/transport"
	"verbena/ib"
	"verbena/link"
	"verbena/roce"
	"verbena/uapi"
)

// receiveRequest handles a packet of the requester of a source.
func (s *srd) receiveRequest(p *pass, k *packet) {
	h := k.SRDETH()
	now := s.qp.dev.tick()
	if k.Opcode == roce.SRDFlowOpen {
		s.accept(k, srdOrigin{k.src, k.DETH().SrcQPN(), h.Value()}, now)
		return
	}
	src, status := s.sourceOf(k)
	if src == nil {
		s.qp.dev.counters.add(cntDropDuplicate, 1)
		s.refuseUnknown(k, status)
		return
	}
	s.sources.touch(src, now)
	if k.Opcode == roce.SRDFlowSkip {
		s.settle(p) // the packet may be among those with pending data
		if status, ok := src.rcv.Skip(k.psn); ok {
			s.refuse(src.refusal(k.psn, status))
		}
		return
	}
	switch src.rcv.Arrive(k.psn) {
	case transport.SRDOutside:
		s.qp.dev.counters.add(cntDropGap, 1)
		return
	case transport.SRDAgain:
		s.qp.dev.counters.add(cntDupReq, 1)
		if k.Opcode != roce.SRDRDMAReadRequest {
			s.owe(src)
			return
		}
	}
	switch status, executed := s.execute(p, k, src); {
	case executed && k.Opcode == roce.SRDRDMAReadRequest:
		if src.rcv.Arrive(k.psn) == transport.SRDNew {
			src.rcv.Executed(k.psn)
		}
	case executed:
		s.complete(src, k.psn)
	case status != roce.SRDSuccess:
		s.refuse(src.refusal(k.psn, status))
	}
}

// complete notes that a packet was executed, perhaps twice, and that an acknowledgement is due.
func (s *srd) complete(src *srdSource, psn roce.PSN) {
	if src.rcv.Arrive(psn) == transport.SRDNew {
		src.rcv.Executed(psn)
	}
	s.owe(src)
}

// owe notes that an acknowledgement is due.
func (s *srd) owe(src *srdSource) {
	if !src.due {
		src.due = true
		s.due = append(s.due, src)
	}
}

// refusal returns the refusal of a packet of the source.
func (src *srdSource) refusal(psn roce.PSN, status roce.SRDStatus) srdRefusal {
	return srdRefusal{path: src.path, qpn: src.qpn, id: src.id, psn: psn, status: status}
}

// refuse notes that a refusal is due. Beyond a limit it is lost, and the packet comes again.
func (s *srd) refuse(r srdRefusal) {
	if len(s.refusals) < maxRefusals {
		s.refusals = append(s.refusals, r)
	}
}

// refuseUnknown refuses a packet that belongs to no source.
func (s *srd) refuseUnknown(k *packet, status roce.SRDStatus) {
	if len(s.refusals) >= maxRefusals {
		return
	}
	if to := s.qp.dev.pathBack(k.dst, k.src); to != nil {
		s.refuse(srdRefusal{path: to, qpn: k.DETH().SrcQPN(), id: k.SRDETH().Value(), psn: k.psn, status: status})
	}
}

// pathBack returns a path from an address of the device; nil if the device does not have the address.
func (d *Device) pathBack(from, to netip.Addr) *path {
	for _, e := range d.at.Load().endpoints {
		if e.addr == from {
			return &path{from: e, dst: to}
		}
	}
	return nil
}

// accept handles an Open.
func (s *srd) accept(k *packet, from srdOrigin, now int64) {
	src := s.sources.byOrigin[from]
	if src == nil {
		back := s.qp.dev.pathBack(k.dst, k.src)
		if back == nil {
			return
		}
		if src = s.newSource(from, back, now); src == nil {
			s.qp.dev.counters.add(cntDropStalled, 1)
			return
		}
		src.rcv.Begin(k.psn)
	}
	src.accepts = true
	s.owe(src)
}

// execute executes a request. If it is not executed, status is the reason for a refusal, or SRDSuccess for none.
func (s *srd) execute(p *pass, k *packet, src *srdSource) (status roce.SRDStatus, executed bool) {
	switch k.Opcode {
	case roce.SRDSendOnly, roce.SRDSendOnlyWithImmediate:
		status = s.executeSend(p, k)
	case roce.SRDRDMAWriteOnly, roce.SRDRDMAWriteOnlyWithImmediate:
		return s.executeWrite(p, k, src)
	case roce.SRDRDMAReadRequest:
		if status = s.checkRead(k); status == roce.SRDSuccess && len(s.replies) >= maxReplies {
			return 0, false
		}
		if status == roce.SRDSuccess {
			h := k.RETH()
			s.replies = append(s.replies, srdReply{src, k.psn, h.VA(), h.RKey(), int(h.DMALen())})
		}
	default:
		return 0, false
	}
	return status, status == roce.SRDSuccess
}

// takeReceive takes the receive of a message.
func (s *srd) takeReceive(p *pass, k *packet) roce.SRDStatus {
	switch s.qp.resp.takeRecvFor(p, k) {
	case accepted:
		return roce.SRDSuccess
	case notReady:
		s.qp.dev.counters.add(cntSndRNR, 1)
		return roce.SRDNotReady
	}
	return roce.SRDBadStatus
}

func (s *srd) executeSend(p *pass, k *packet) roce.SRDStatus {
	qp := s.qp
	r := &qp.resp
	s.settle(p)
	if status := s.takeReceive(p, k); status != roce.SRDSuccess {
		return status
	}
	if len(k.Payload) > r.wqe.Length {
		return roce.SRDBadLength
	}
	if !p.store(qp, scatterSend, k.psn, r.wqe.SGEs, 0, k.Payload) || !p.settle(qp) {
		return roce.SRDBadStatus
	}
	s.completeRecv(k, uapi.WC{Opcode: uapi.WCRecv, ByteLen: uint32(len(k.Payload))})
	return roce.SRDSuccess
}

// completeRecv completes the receive of a message, or reports an RDMA WRITE that takes none.
func (s *srd) completeRecv(k *packet, wc uapi.WC) {
	qp := s.qp
	wc.SrcQP = k.DETH().SrcQPN()
	if d := qp.pd.destinations; d != nil {
		wc.SLID = uint16(d.find(k.src))
	}
	if h := k.ImmDt(); h != nil {
		copy(wc.Ex[:], h)
		wc.WCFlags = uapi.WCFlags(uapi.IBVWCWithImm)
	}
	if wc.Opcode != uapi.WCRecvRDMAWithImm || !qp.notifiesWrites {
		qp.resp.completeRecv(&wc, k.BTH().SolicitedEvent())
		return
	}
	qp.trace.note(traceRecvDone, uint32(wc.Status))
	qp.dev.counters.add(cntRDMARecv, 1)
	wc.PortNum, wc.WCFlags = 1, wc.WCFlags|queue.WCUnsolicited
	qp.complete(qp.recvCQ, &wc, k.BTH().SolicitedEvent(), nil)
}

// knows reports whether the domain has an address handle of the requester, which RDMA requires.
func (s *srd) knows(k *packet) bool {
	d := s.qp.pd.destinations
	return d == nil || d.find(k.src) != 0
}

// executeWrite stores the data of an RDMA WRITE later, together with the following, unless it has immediate data.
func (s *srd) executeWrite(p *pass, k *packet, src *srdSource) (status roce.SRDStatus, executed bool) {
	qp, h, takes := s.qp, k.RETH(), k.Flags&roce.FlagCompletesReceive != 0
	switch {
	case !s.knows(k):
		return roce.SRDUnknownPeer, false
	case !qp.resp.permits(h.RKey(), ib.AccessRemoteWrite, h.VA(), len(k.Payload)):
		return roce.SRDBadAddress, false
	}
	if takes {
		if n, sent := h.DMALen(), uint32(len(k.Payload)); n < sent ||
			!qp.resp.permits(h.RKey(), ib.AccessRemoteWrite, h.VA()-uint64(n-sent), int(n)) {
			return roce.SRDBadAddress, false // the length of the message is reported to the program
		}
		s.settle(p)
		if !qp.notifiesWrites {
			if status := s.takeReceive(p, k); status != roce.SRDSuccess {
				return status, false
			}
		}
	}
	if len(k.Payload) > 0 {
		s.settleUnless(p, !takes && p.scatter.joins(scatterWrite, h.RKey(), h.VA(), uint64(len(k.Payload))))
		if src.rcv.Arrive(k.psn) != transport.SRDNew { // another copy has just been stored
			return roce.SRDSuccess, true
		}
		stores := p.storeAt(qp, scatterWrite, k.psn, h.RKey(), ib.AccessRemoteWrite, h.VA(), k.Payload)
		if stores {
			qp.dev.countMessage(cntWriteRecvBytes, len(k.Payload))
		}
		switch {
		case stores && !takes:
			s.storing = append(s.storing, srdStored{psn: k.psn, from: src})
			return roce.SRDSuccess, false // see stored
		case !stores || !p.settle(qp):
			return roce.SRDBadAddress, false
		}
	}
	if takes {
		s.completeRecv(k, uapi.WC{Opcode: uapi.WCRecvRDMAWithImm, ByteLen: h.DMALen()})
	}
	return roce.SRDSuccess, true
}

// checkRead checks a READ request.
func (s *srd) checkRead(k *packet) roce.SRDStatus {
	h := k.RETH()
	switch n := int(h.DMALen()); {
	case !s.knows(k):
		return roce.SRDUnknownPeer
	case n > s.qp.mtu:
		return roce.SRDBadLength
	case !s.qp.resp.permits(h.RKey(), ib.AccessRemoteRead, h.VA(), n):
		return roce.SRDBadAddress
	}
	return roce.SRDSuccess
}

// answer sends the answers that are due, as far as there is room.
func (s *srd) answer(p *pass) {
	s.answerAll(p)
	s.read(p)
	p.build.finish(&s.qp.egress)
}

func (s *srd) answerAll(p *pass) {
	n := 0
	for n < len(s.due) && s.acknowledge(p, s.due[n]) {
		s.due[n].due = false
		n++
	}
	if s.due = s.due[:copy(s.due, s.due[n:])]; len(s.due) > 0 {
		return
	}
	for len(s.refusals) > 0 {
		r := &s.refusals[0]
		if b, _ := s.add(p, &ackPool, r.path, r.qpn, roce.FlowRefuse, r.psn, 0, r.id, uint32(r.status), 0); b.Data == nil {
			return
		}
		s.refusals = s.refusals[:copy(s.refusals, s.refusals[1:])]
	}
	n = 0
	for n < len(s.replies) && s.respond(p, &s.replies[n]) {
		n++
	}
	s.replies = s.replies[:copy(s.replies, s.replies[n:])]
}

// acknowledge sends the Accept or the acknowledgement that is due. It returns false if there is no room.
func (s *srd) acknowledge(p *pass, src *srdSource) bool {
	if src.accepts {
		b, _ := s.add(p, &ackPool, src.path, src.qpn, roce.FlowAccept, src.rcv.PSN(), 0, src.id, src.own, 0)
		if b.Data == nil {
			return false
		}
		if src.accepts = false; !src.used {
			return true
		}
	}
	n := src.rcv.Ack(&s.bitmap)
	b, _ := s.add(p, &ackPool, src.path, src.qpn, roce.Acknowledge, src.rcv.PSN(), n, src.id, src.own, 0)
	if b.Data == nil {
		return false
	}
	copy(b.Payload, s.bitmap[:n])
	return true
}

// respond sends a READ response. It returns false if there is no room.
func (s *srd) respond(p *pass, y *srdReply) bool {
	if len(s.reading) > 0 && !p.gather.continues(y.key, y.addr, uint64(y.length)) {
		s.read(p)
	}
	b, mark := s.add(p, &trainPool, y.to.path, y.to.qpn, roce.RDMAReadResponseOnly, y.psn, y.length, y.to.id, y.to.own,
		y.addr)
	if b.Data == nil {
		return false
	}
	s.qp.dev.countMessage(cntReadRespBytes, y.length)
	if y.length == 0 {
		return true
	}
	s.reading = append(s.reading, srdRead{mark: mark, psn: y.psn, to: y.to})
	s.reply = transport.Reply{Domain: s.qp.pd, Addr: y.addr, Key: y.key}
	if !p.gather.addRemote(s.qp, &s.reply, b.Payload) {
		s.unreadable(p)
	}
	return true
}

// hasSRD reports whether the device has queue pairs of SRD.
func (d *Device) hasSRD() bool { return slices.Contains(d.traits.QPTypes, ib.QPTypeSRD) }

// refusesUnknown answers requests of SRD for a queue pair that does not exist, at most a few.
func (d *Device) refusesUnknown(num uint32, a *link.Arrival, packets [][]byte) {
	if !d.hasSRD() {
		return
	}
	for _, data := range packets[:min(len(packets), maxUnknown)] {
		k, err := roce.ParseBody(data)
		if err != nil || k.SRDETH() == nil || k.Flags&roce.FlagResponse != 0 {
			continue
		}
		back := d.pathBack(a.Dst, a.Src)
		if back == nil {
			return
		}
		var build builder
		op := roce.SRDFlowRefuse
		size := op.PacketLen(0)
		build.start(&ackPool, back, k.DETH().SrcQPN(), size)
		t := build.t
		b := roce.NewPacket(build.add(size, op.HeaderLen(), 0), &roce.BTHFields{
			Opcode: op, MigReq: true, PKey: roce.DefaultPKey, DestQPN: k.DETH().SrcQPN(), PSN: k.BTH().PSN(),
		}, 0)
		b.DETH().Encode(0, num)
		b.SRDETH().Encode(k.SRDETH().Value(), uint32(roce.SRDBadDestQPN))
		t.QP, t.SPort = num, srdPort(num)
		if back.from.ready() && back.from.send(&t.Train) == nil {
			d.countSent(&t.Train, 1)
		}
		t.free()
	}
}

// maxUnknown is the number of packets of one arrival that are answered.
const maxUnknown = 8
