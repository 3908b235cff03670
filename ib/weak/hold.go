package weak

import (
	"sync/atomic"

	"verbena/ib"
)

// A consumer may use memory again many requests after a mistake. So one request in about 100 is held for a long time:
// until the consumer has posted a drawn number of further requests to the send queue. The hold also ends if the
// consumer posts nothing. The source, the completion and the second execution of a READ have separate holds.
const (
	firstHeld  = 16 // the first held request is one of this number of requests
	holdPeriod = 64 // between two held requests there are this number to twice this number of others
	maxPosts   = 64 // the largest number of further requests
	// A hold ends after maxIdleSteps steps of stepPeriod without a post, and after maxHoldSteps steps.
	maxIdleSteps = 40
	maxHoldSteps = 400
	// A hold also ends after maxIdlePolls polls without a post, for a consumer in virtual time that polls without a pause.
	maxIdlePolls = 8192
)

// longHold is a long hold of one request. A nil longHold holds nothing.
type longHold struct {
	qp                  *qp
	posts               atomic.Int32 // number of further requests until the end
	idle, polls, lasted atomic.Int32
}

// holdPlan decides which requests of a send queue are held for a choice. It is protected by qp.mu.
type holdPlan struct {
	next uint64 // sequence number from which the next suitable request is held; 0: not drawn yet
	last *longHold
}

// planHold returns the hold of the suitable request r for a choice, or nil if the choice does not hold r.
//
//verbena:held mu
func (q *qp) planHold(c Choice, p *holdPlan, r *weakRequest) *longHold {
	if q.d.Relay != nil || q.sendCQ == nil || !q.d.hasChoice(c) || !hasReliableMessages(q.init.Type) {
		return nil
	}
	const drawn = 1 << 40 // distinguishes the numbers from those for the requests
	if p.next == 0 {
		p.next = 1 + uint64(q.d.drawRandom(c, q.ord, drawn, firstHeld))
	}
	posts := 0
	if r.seq >= p.next && !p.last.isActive() {
		p.next = r.seq + holdPeriod + uint64(q.d.drawRandom(c, q.ord, drawn+r.seq, holdPeriod))
		posts = 1 + q.d.drawRandom(c, q.ord, 2*drawn+r.seq, maxPosts)
	}
	if posts = q.d.decide(q.point(c, EventHold, r.seq), posts, r.about); posts == 0 {
		return nil
	}
	p.last = &longHold{qp: q}
	p.last.posts.Store(int32(posts))
	return p.last
}

// hasReliableMessages reports whether messages of a type of queue pair wait for receives. A consumer of other queue
// pairs may post its receives again after the completions of its replies. A long hold would cause the loss of later
// messages.
func hasReliableMessages(t ib.QPType) bool { return t == ib.QPTypeRC || t == ib.QPTypeXRCInit }

// countHoldPost records that the consumer posts a further request.
//
//verbena:held mu
func (q *qp) countHoldPost() {
	for _, p := range []*holdPlan{&q.sourceHolds, &q.completionHolds, &q.readHolds} {
		if h := p.last; h != nil {
			h.posts.Add(-1)
			h.idle.Store(0)
			h.polls.Store(0)
		}
	}
}

// step records one step of stepPeriod.
func (h *longHold) step() {
	if h != nil {
		h.idle.Add(1)
		h.lasted.Add(1)
	}
}

// poll records one poll of the completion queue.
func (h *longHold) poll() {
	if h != nil {
		h.polls.Add(1)
	}
}

// isActive reports whether the request is still held.
func (h *longHold) isActive() bool {
	return h != nil && h.posts.Load() > 0 && h.idle.Load() < maxIdleSteps && h.lasted.Load() < maxHoldSteps &&
		h.polls.Load() < maxIdlePolls && h.qp.DriverQP.State() == ib.QPRTS
}

// end ends the hold.
func (h *longHold) end() {
	if h != nil {
		h.posts.Store(0)
	}
}

// isHeld reports whether the completion of the request may not be polled yet, for a time without a known end.
func (r *weakRequest) isHeld() bool {
	return r != nil && (r.blocksCompletion() || r.completionHold.isActive())
}

// isBlocked reports whether the completion at an index of the window, or one before it in its queue, is held.
//
//verbena:held mu
func (c *cq) isBlocked(i int) bool {
	for j := range c.held[:i+1] {
		e := &c.held[j]
		if e.qp == c.held[i].qp && e.send == c.held[i].send && e.r.isHeld() {
			return true
		}
	}
	return false
}

// countBlocked returns the number of blocked completions of the window.
//
//verbena:held mu
func (c *cq) countBlocked() (n int) {
	for i := range c.held {
		if c.d.Relay == nil && c.isBlocked(i) {
			n++
		}
	}
	return n
}

// endHolds ends the holds of the window.
//
//verbena:held mu
func (c *cq) endHolds() {
	for _, e := range c.held {
		if e.r != nil {
			e.r.completionHold.end()
			e.r.readHold.end()
		}
	}
}

// hasHolds reports whether a completion of the window is held.
//
//verbena:held mu
func (c *cq) hasHolds() bool {
	for _, e := range c.held {
		if e.r != nil && (e.r.completionHold.isActive() || e.r.readHold != nil && e.r.blocksCompletion()) {
			return true
		}
	}
	return false
}
