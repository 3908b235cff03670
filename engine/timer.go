package engine

import (
	"sync/atomic"
	"time"

	"verbena/internal/clock"
)

// timer is the one timer of a queue pair. A new deadline is only stored. The clock's timer is set only if it is not
// set or would fire too late; after an early expiry it is set again. So the data path does not touch the clock's
// timer.
type timer struct {
	qp      *QP
	t       clock.Timer
	fired   atomic.Bool // since the last check
	at      time.Time   // the time of expiry; noTime: not set
	unblock time.Time   // the time of the next attempt to send the egress queue
	reflush time.Time   // the time of the next check of the rings in the error state
	quiet   int         // number of consecutive checks without work
}

var noTime time.Time

// A queue pair in the error state looks for work that a program posted without a doorbell. The period starts at
// reflushPeriod, and doubles after each check without work, up to 2^reflushPatience periods, 1.28 s. A program may
// leave any number of such queue pairs.
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

// block pauses the egress queue for egressRetry.
func (t *timer) block() {
	qp := t.qp
	qp.egress.blocked = true
	t.unblock = qp.dev.clock.Now().Add(egressRetry)
	if qp.life != destroyed {
		t.rearm()
	}
}

// expire runs the queue pair when the timer fires.
func (t *timer) expire() {
	t.fired.Store(true)
	p := t.qp.dev.begin(true)
	defer p.caughtHolding()
	p.wake(t.qp)
	p.end()
}

// egressRetry is the delay before the next attempt after the socket was full. A full socket drains in much less time.
const egressRetry = 100 * time.Microsecond
