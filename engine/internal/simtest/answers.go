package simtest

import (
	"fmt"

	"verbena/engine/transport"
	"verbena/link/stepnet"
	"verbena/roce"
)

// answers holds the PSNs of the requests of an end that are answered with data. The value reports whether a response
// has been sent.
type answers map[roce.PSN]bool

// watch checks a packet of a reliable connection that leaves a host. An acknowledgement must not cover a request that
// is answered with data, unless its response has been sent before (IBA 9.7.5.1.2).
func (w *world) watch(p *stepnet.Packet) {
	k, err := roce.ParsePacket(p.Data)
	if err != nil || !w.service.reliable() || w.travels() { // messages on the shortcut do not pass here
		return
	}
	psn, dest := k.BTH().PSN(), k.BTH().DestQPN()
	for _, e := range w.ends {
		switch {
		case e.peer.host.addr == p.Dst && e.peer.rqp.Num() == dest && transport.KindOf(k.Flags).Answered():
			n := 1
			if h := k.RETH(); k.Flags&roce.FlagRead != 0 && h != nil {
				n = max(1, (int(h.DMALen())+e.mtu-1)/e.mtu)
			}
			for i := range n {
				if at := psn.Add(i); !e.answers[at] {
					e.answers[at] = false
				}
			}
		case e.host.addr != p.Dst || e.qp.Num() != dest:
		case k.Flags&(roce.FlagReadResponse|roce.FlagAtomicAck) != 0:
			e.answers[psn] = true
		case k.Flags&roce.FlagAck != 0:
			w.acknowledged(e, psn, k.AETH().Syndrome())
		}
	}
}

// acknowledged checks an acknowledgement. A NAK acknowledges the requests before its PSN.
func (w *world) acknowledged(e *end, psn roce.PSN, by roce.Syndrome) {
	if _, answered := e.answers[psn]; answered && by.IsACK() {
		w.broken = fmt.Sprintf("qp %d: an acknowledgement has the PSN %d of a request that is answered with data", e.qp.Num(), psn)
	}
	for at, sent := range e.answers {
		if at.Less(psn) && !sent {
			w.broken = fmt.Sprintf("qp %d: %v with PSN %d acknowledges the request with PSN %d, which has no response",
				e.qp.Num(), by, psn, at)
		}
	}
}
