package engine

import "verbena/link"

// What is sent to an address of this host is in that socket when the call that has sent it returns. Where the socket is one of
// the Fabric's, the thread that sends receives it too, which spares the wake-up of the receive thread, and on a busy machine
// the wait for a processor. It has the turn of the endpoint while it sends, and until it has received (link.Taker); what it does not
// get to is left to the receive thread.

const (
	maxTakes = 8       // times that a pass receives from an endpoint before it leaves the rest
	maxTaken = 1 << 20 // bytes, as counted in pass.spent, after which it does
)

// delivery is the state of a pass that also receives its own packets: from endpoints, and as the receiver (copy.go).
type delivery struct {
	takes    bool    // the pass may receive its packets from endpoints of the Fabric
	claims   []claim // endpoints from which the pass receives
	urgent   bool    // a program waits for the packets in the egress queue
	receiver *QP     // queue pair that the pass runs as the receiver of its trains
	inline   bool    // the pass runs the receiver: a store must not wait for a program
}

// claim is an endpoint from which the pass receives.
type claim struct {
	to   *endpoint
	turn link.Turn
	sent int // trains, there, after the last Take
}

// claim is called before a train is sent to the network by a path. A pass of a slow program claims nothing: it would be stopped in
// Receive, and others' packets with it.
func (p *pass) claim(by *path) {
	if !p.takes || p.lane != nil {
		return
	}
	to := by.lookUp().to
	if to == nil {
		return
	}
	for i := range p.claims {
		if c := &p.claims[i]; c.to == to {
			c.sent++
			return
		}
	}
	if !p.urgent {
		return
	}
	if w := to.wire.Load(); w != nil && w.taker != nil {
		if turn := w.taker.Claim(); turn != nil {
			p.claims = append(p.claims, claim{to, turn, 1})
		}
	}
}

// take receives what the pass has sent to endpoints of the Fabric. What is received may have more sent.
func (p *pass) take() {
	for i := 0; i < len(p.claims); i++ {
		for n := 0; n < maxTakes && p.claims[i].sent > 0 && p.spent <= maxTaken; n++ {
			trains := p.claims[i].sent
			p.claims[i].sent = 0
			if !p.claims[i].turn.Take(p, trains) {
				break
			}
		}
	}
	p.yield()
}

// yield leaves what has not been received to others.
func (p *pass) yield() {
	for _, c := range p.claims {
		c.turn.Yield()
	}
	clear(p.claims)
	p.claims = p.claims[:0]
}

// abandon leaves the endpoints to others while the pass is stopped.
//
//verbena:held theft
func (p *pass) abandon() {
	for _, c := range p.claims {
		c.turn.Abandon()
	}
}
