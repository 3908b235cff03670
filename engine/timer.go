package engine

import (
	"sync/atomic"
	"time"

	"verbena/engine/transport"
	"verbena/ib"
	"verbena/internal/clock"
)

// timer is the one timer of a queue pair. Deadlines are only written down; the timer is set when it is not, or
// would be late, and where it then fires early it is set again. So the data path does not touch it.
type timer struct {
	qp      *QP
	t       clock.Timer
	fired   atomic.Bool // since it was last looked at
	at      time.Time   // when it fires; noTime: it is not set
	unblock time.Time   // the egress queue is to be tried again
	reflush time.Time   // the rings of a queue pair in error are to be looked at again
	quiet   int         // times in a row that there was nothing in them
}

var noTime time.Time

// A queue pair in error looks for work that a user posted without a doorbell: every reflushPeriod, and half as often each time that
// it finds nothing, but every 2^reflushPatience periods, 1.28 s. A program may leave any number of them behind.
const (
	reflushPeriod   = 10 * time.Millisecond
	reflushPatience = 7
)

func (t *timer) init(qp *QP) {
	t.qp = qp
	t.t = qp.dev.clock.AfterFunc(time.Hour, t.expire)
	t.t.Stop()
}

func (t *timer) stop() { t.t.Stop() }

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// rearm sets the timer for the earliest deadline.
func (t *timer) rearm() {
	qp := t.qp
	if qp.state == ib.QPErr && qp.ctx != nil && qp.life == whole {
		if t.reflush.IsZero() {
			t.reflush = qp.dev.clock.Now().Add(reflushPeriod << min(t.quiet, reflushPatience))
		}
	} else {
		t.reflush, t.quiet = noTime, 0
	}
	at := earliest(qp.req.snd.Deadline(), earliest(t.unblock, t.reflush))
	if at.IsZero() || !t.at.IsZero() && !at.Before(t.at) {
		return
	}
	t.at = at
	t.t.Reset(at.Sub(qp.dev.clock.Now()))
}

// block has the egress queue wait a little.
func (t *timer) block() {
	qp := t.qp
	qp.egress.blocked = true
	t.unblock = qp.dev.clock.Now().Add(egressRetry)
	if qp.life != destroyed {
		t.rearm()
	}
}

// expire runs when the timer fires.
func (t *timer) expire() {
	t.fired.Store(true)
	p := t.qp.dev.begin(true)
	defer p.caughtHolding()
	p.wake(t.qp)
	p.end()
}

// expired does what is due when the timer has fired. The pass runs the queue pair.
func (t *timer) expired(p *pass) {
	qp := t.qp
	t.fired.Store(false)
	t.at = noTime
	if qp.life >= detached || qp.dev.stopped.Load() && qp.state != ib.QPErr {
		return
	}
	now := qp.dev.clock.Now()
	due := func(at *time.Time) bool {
		if at.IsZero() || now.Before(*at) {
			return false
		}
		*at = noTime
		return true
	}
	if due(&t.unblock) {
		qp.egress.blocked = false
	}
	if due(&t.reflush) {
		t.quiet++
	}
	switch qp.req.snd.Tick(now) {
	case transport.AckTimeout:
		qp.req.timedOut()
	case transport.ProbeDue:
		qp.req.probe(p)
	}
}

// egressRetry is when to try again after the socket was full. It drains in well less than that.
const egressRetry = 100 * time.Microsecond
