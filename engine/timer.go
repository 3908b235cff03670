package engine

import (
	"sync/atomic"
	"time"

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

// egressRetry is when to try again after the socket was full. It drains in well less than that.
const egressRetry = 100 * time.Microsecond
