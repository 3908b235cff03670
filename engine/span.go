package engine

import (
	"cmp"

	"verbena/engine/transport"
	"verbena/ib"
	"verbena/link"
	"verbena/roce"
)

// Between devices of a Fabric the middle packets of a message need no headers: they follow each other, each as long as the path MTU,
// with consecutive PSNs. So a train has them as a span, one header and the payload of all, and the receiver stores it at once
// where each of its packets would be accepted. Everything else that may become of a packet (it has no memory, it is not the one
// that is expected, somebody traces or captures, it has to go to the network after all) becomes of each packet of the span by
// itself, through the code that handles packets from the network.

// span is consecutive middle packets of a message.
type span struct {
	header  [roce.BTHLen + roce.XRCETHLen]byte // of the next packet
	len     int                                // of header
	payload []byte
	size    int // of each packet's payload
	first   roce.PSN
	ask     bool // the last packet asks for an acknowledgement
	packets int
}

// spanOf returns the span that b, without room for the ICRC, is: its header has the first PSN, and asks for an acknowledgement if
// the last packet does. One packet is a span, too, but of no use.
func spanOf(b []byte, packets int) (s span) {
	h := roce.BTH(b)
	s.len = h.Opcode().HeaderLen()
	if packets == 1 {
		return s
	}
	copy(s.header[:], b[:s.len])
	s.payload = b[s.len:]
	s.size = len(s.payload) / packets
	s.first, s.ask, s.packets = h.PSN(), h.AckReq(), packets
	return s
}

// packet returns the header, which is good until the next call, and the payload of the i-th packet.
func (s *span) packet(i int) (header, payload []byte) {
	h := roce.BTH(s.header[:])
	h.SetPSN(s.first.Add(i))
	h.SetAckReq(s.ask && i == s.packets-1)
	return s.header[:s.len], s.payload[i*s.size : (i+1)*s.size]
}

// receiveParts handles the packets of a train from a device of the Fabric.
func (qp *QP) receiveParts(p *pass, t *train) {
	if qp.dev.stopped.Load() {
		return
	}
	for i, part := range t.parts {
		b := t.part(i)
		b = b[:len(b)-link.ICRCLen]
		k := packet{src: t.path.from.addr, dst: t.Dst, tos: t.TOS, ttl: cmp.Or(t.TTL, defaultTTL)}
		why := qp.parse(&k, b)
		if part.mem != nil {
			k.Payload = part.mem
		}
		if part.packets == 1 || why != accept {
			if why == accept {
				why = qp.check(&k)
			}
			qp.take(p, &k, b, why)
			continue
		}
		p.span = spanOf(b, part.packets)
		if part.mem != nil {
			p.span.payload = part.mem
		}
		s, n := &p.span, 0
		if qp.trace == nil && qp.check(&k) == accept {
			if k.Flags&roce.FlagResponse == 0 {
				n = qp.resp.receiveSpan(p, &k, s)
			} else {
				n = qp.req.receiveSpan(p, &k, s)
			}
		}
		for ; n < s.packets; n++ {
			k.Data, k.Payload = s.packet(n)
			k.psn = k.BTH().PSN()
			qp.take(p, &k, k.Data, qp.check(&k))
		}
	}
	p.settle(qp)
	p.span.payload = nil // which may have been in memory that goes away
}

// receiveSpan handles a span of a SEND or RDMA WRITE at once, if each of its packets has only to be stored. It returns how many
// packets it has dealt with: all; the first alone, if the memory has refused it; or none, if they are to be looked at one by one.
func (r *responder) receiveSpan(p *pass, k *packet, s *span) int {
	qp, rcv, w := r.qp, &r.rcv, &r.wqe
	one := transport.Arrival{Kind: transport.KindOf(k.Flags), Length: s.size}
	if qp.typ != ib.QPTypeRC && qp.typ != ib.QPTypeUC || k.psn != rcv.PSN() || !rcv.Follows(&one) || !rcv.Fits(&one) {
		return 0
	}
	n, stored := len(s.payload), false
	switch one.Kind {
	case transport.Send:
		i, at := sgeAt(w.SGEs, w.filled)
		if i == len(w.SGEs) || at+n > int(w.SGEs[i].Length) {
			return 0
		}
		if stored = p.store(qp, scatterSend, k.psn, w.SGEs, w.filled, s.payload); stored {
			w.filled += n
		}
	case transport.Write:
		addr, key, _ := rcv.Write()
		if !rcv.WriteFits(n, false) {
			return 0
		}
		if stored = p.storeAt(qp, scatterWrite, k.psn, key, ib.AccessRemoteWrite, addr, s.payload); stored {
			rcv.Wrote(n)
		}
	default:
		return 0
	}
	if stored {
		rcv.ExecutedAll(&one, s.packets, s.ask && reliable(qp.typ))
		return s.packets
	}
	if !reliable(qp.typ) {
		r.abandon(k.psn)
	}
	return 1
}

// receiveSpan does the same with responses to an RDMA READ.
func (r *requester) receiveSpan(p *pass, k *packet, s *span) int {
	off, ok := r.snd.Responses(k.psn, s.packets, s.size)
	if !ok {
		return 0
	}
	w, n := r.wqe(r.snd.Head()), len(s.payload)
	if i, at := sgeAt(w.SGEs, off); i == len(w.SGEs) || at+n > int(w.SGEs[i].Length) {
		return 0
	}
	if !p.store(r.qp, scatterRead, k.psn, w.SGEs, off, s.payload) {
		return 1
	}
	r.snd.StoredAll(s.packets)
	return s.packets
}
