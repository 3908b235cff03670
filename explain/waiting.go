package explain

import (
	"fmt"
	"slices"
	"time"

	"verbena/driver"
	"verbena/internal/qpinfo"
	"verbena/roce"
)

// unready describes the request for which a queue pair has no receive, while its peer sends the request again.
type unready struct {
	psn         roce.PSN
	naks        int // RNR NAKs of this request
	first, last time.Time
	row         string
	// id and peerID are the numbers of the causes for this end and for the requester; 0 until the condition has lasted
	// for unreadyAfter.
	id, peerID uint64
	requester  *qpFacts // nil if it is not here
}

const (
	// unreadyAfter is the time after which missing receives are a cause although the requester has not failed.
	unreadyAfter = time.Second
	// unreadyFor is the time after the latest RNR NAK for which the condition lasts. A requester waits at most 0.66 s
	// before it sends again (IBA 9.7.5.2.8).
	unreadyFor = 2 * time.Second
)

// notReady notes an RNR NAK.
//
//verbena:held mu
func (r *Recorder) notReady(q *qpFacts, f *driver.RefusedRequest) {
	v := q.failures()
	w := &v.waiting
	if w.naks == 0 || w.psn != f.PSN || f.Time.Sub(w.last) > unreadyFor {
		r.ready(q)
		*w = unready{psn: f.PSN, first: f.Time}
	}
	w.naks, w.last = w.naks+1, f.Time
	if w.id != 0 || f.Time.Sub(w.first) < unreadyAfter {
		return
	}
	w.row = "no-receive-yet"
	if f.Violation.Rule == driver.RuleInjected {
		w.row = ruleRows[driver.RuleInjected]
	}
	r.last += 2
	w.id, w.peerID = r.last-1, r.last
	u := r.user(q.program.User)
	u.unready = append(u.unready, q)
	if d := r.byAddr[q.ref.Peer]; d != nil {
		if p := r.qps[qpKey{d.Name, q.ref.DestQPN}]; p != nil && !p.gone {
			w.requester = p
			p.failures().waitsFor = q
		}
	}
}

// ready ends the condition of notReady without a cause.
//
//verbena:held mu
func (r *Recorder) ready(q *qpFacts) {
	if q == nil || q.evidence == nil || q.waiting.id == 0 {
		return
	}
	if p := q.waiting.requester; p != nil && p.evidence != nil && p.waitsFor == q {
		p.waitsFor = nil
	}
	if u := r.users[q.program.User]; u != nil {
		u.unready = slices.DeleteFunc(u.unready, func(o *qpFacts) bool { return o == q })
	}
	q.waiting = unready{}
}

// endWaiting ends the condition of a queue pair that no longer receives or sends. If the condition lasted until then,
// the causes remain.
//
//verbena:held mu
func (r *Recorder) endWaiting(q *qpFacts, at time.Time) {
	responder := q.responder()
	if responder == nil {
		return
	}
	w := responder.waiting
	r.ready(responder)
	if w.id == 0 || at.Sub(w.last) > unreadyFor {
		return
	}
	r.report(r.addAs(responder.program, w.cause(responder, at), nil, w.id))
	if w.requester != nil {
		r.report(r.addAs(w.requester.program, w.peerCause(at), nil, w.peerID))
	}
}

// responder returns the end without a receive of the connection, or nil.
func (q *qpFacts) responder() *qpFacts {
	switch {
	case q.evidence == nil:
		return nil
	case q.waitsFor != nil && q.waitsFor.evidence != nil:
		return q.waitsFor
	}
	return q
}

// cause returns the cause for the end without a receive.
func (w *unready) cause(q *qpFacts, at time.Time) qpinfo.Cause {
	x := &values{q: q, at: at, since: w.first, count: w.naks}
	what := fmt.Sprintf("QP %d refuses a request of its peer with RNR NAKs for %s, PSN %d", q.ref.Num,
		formatDuration(w.last.Sub(w.first)), w.psn)
	return q.newCause(at, what, judge(w.row, x, FaultResponder))
}

// peerCause returns the cause for the requester. It has no fact that the RNR NAKs do not contain.
func (w *unready) peerCause(at time.Time) qpinfo.Cause {
	p := w.requester
	x := &values{q: p, at: at, since: w.first, count: w.naks}
	what := fmt.Sprintf("QP %d waits: PSN %d refused for %s with RNR NAKs", p.ref.Num, w.psn,
		formatDuration(w.last.Sub(w.first)))
	return p.newCause(at, what, judge(w.row, x, FaultRequester))
}

// lasting returns the causes that last at a time and concern a selected user.
//
//verbena:held mu
func (r *Recorder) lasting(q *Query) (list []qpinfo.Cause) {
	add := func(p Program, id uint64, c qpinfo.Cause) {
		identify(&c, p, id)
		c.Lasting = true
		list = append(list, c)
	}
	for _, u := range r.users {
		for _, o := range u.unready {
			w := &o.waiting
			if q.Now.Sub(w.last) > unreadyFor {
				continue
			}
			if q.Sees(o.program.User) {
				add(o.program, w.id, w.cause(o, q.Now))
			}
			if p := w.requester; p != nil && q.Sees(p.program.User) {
				add(p.program, w.peerID, w.peerCause(q.Now))
			}
		}
	}
	return list
}
