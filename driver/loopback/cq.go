package loopback

import (
	"fmt"
	"sync"
	"syscall"
	"time"

	"verbena/ib"
)

// CQ is a completion queue. It implements ib.DriverCQ.
type CQ struct {
	obj ib.CQHandle

	mu    sync.Mutex
	wcs   ring[ib.WC]
	armed ib.NotifyFlags // 0: not armed
	lost  bool           // an overrun has lost a completion, and no more completions are accepted
	ended bool           // destroyed

	// The next fields are for moderation and are protected by mu.
	count  int
	period time.Duration
	timer  *time.Timer
	due    int // number of completions since the queue was armed that require a notification
}

// completionQueue is the interface through which queue pairs use a completion queue.
type completionQueue interface {
	// addCompletion adds a completion. addCompletion returns false if the queue is full or has overrun.
	addCompletion(wc ib.WC, solicited bool) bool
	// forgetQP removes a queue pair from its completions before the queue pair is destroyed. The completions keep the
	// number of the queue pair.
	forgetQP(qp *ib.QP)
	// isDestroyed reports whether the queue has been destroyed.
	isDestroyed() bool
}

// CreateCQ implements ib.Driver.
func (d *Device) CreateCQ(obj ib.CQHandle, attr ib.CQAttr, u *ib.Udata) (ib.DriverCQ, error) {
	if attr.Flags != 0 {
		return nil, fmt.Errorf("unsupported flags %#x: %w", attr.Flags, syscall.EOPNOTSUPP)
	}
	if attr.Entries > maxCQE {
		return nil, fmt.Errorf("%d entries exceed %d: %w", attr.Entries, maxCQE, syscall.EINVAL)
	}
	return &CQ{obj: obj, wcs: newRing[ib.WC](attr.Entries)}, nil
}

func (c *CQ) addCompletion(wc ib.WC, solicited bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return false
	}
	slot := c.wcs.push()
	if slot == nil {
		c.lost = true
		c.obj.Raise(ib.EventCQErr)
		return false
	}
	*slot = wc
	slot.Solicited = solicited
	if c.armed&ib.NotifyNextComp != 0 || c.armed != 0 && (solicited || wc.Status != ib.WCSuccess) {
		c.notifyOrModerate()
	}
	return true
}

func (c *CQ) forgetQP(qp *ib.QP) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.wcs.n {
		if wc := &c.wcs.slots[(c.wcs.head+i)%len(c.wcs.slots)]; wc.QP == qp {
			wc.QP = nil
		}
	}
}

// notifyOrModerate reports a completion to the midlayer, either now or as moderation requires.
//
//verbena:held mu
func (c *CQ) notifyOrModerate() {
	c.due++
	if c.due < c.count {
		if c.due == 1 && c.period > 0 {
			c.startModerationPeriod()
		}
		return
	}
	c.raiseCompletion()
}

func (c *CQ) raiseCompletion() {
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	c.armed, c.due = 0, 0
	c.obj.Completed()
}

// startModerationPeriod reports the delayed completions when the period has passed, unless they are reported earlier.
//
//verbena:held mu
func (c *CQ) startModerationPeriod() {
	var timer *time.Timer
	timer = time.AfterFunc(c.period, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.timer == timer { // Stop does not wait for a function that has begun
			c.raiseCompletion()
		}
	})
	c.timer = timer
}

// Moderate implements ib.CQModerator.
func (c *CQ) Moderate(count int, period time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count, c.period = count, period
	if c.due > 0 {
		c.raiseCompletion()
	}
	return nil
}

// Poll implements ib.DriverCQ. Poll may not sleep.
func (c *CQ) Poll(wc []ib.WC) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; n < len(wc) && c.wcs.n > 0; n++ {
		wc[n] = *c.wcs.pop()
	}
	return n, nil
}

// Waiting implements ib.CQCounter. Waiting may not sleep.
func (c *CQ) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wcs.n
}

// ReqNotify implements ib.DriverCQ. ReqNotify may not sleep.
func (c *CQ) ReqNotify(flags ib.NotifyFlags) (missed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if flags&ib.NotifyNextComp != 0 {
		c.armed = ib.NotifyNextComp
	} else if c.armed == 0 {
		c.armed = ib.NotifySolicited
	}
	return flags&ib.NotifyReportMissed != 0 && c.wcs.n > 0, nil
}

// Resize implements ib.CQResizer.
func (c *CQ) Resize(entries int, u *ib.Udata) error {
	if entries < 1 || entries > maxCQE {
		return fmt.Errorf("%d entries exceed %d: %w", entries, maxCQE, syscall.EINVAL)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wcs.n > entries {
		return fmt.Errorf("%d completions are waiting: %w", c.wcs.n, syscall.EINVAL)
	}
	r := newRing[ib.WC](entries)
	for c.wcs.n > 0 {
		*r.push() = *c.wcs.pop()
	}
	c.wcs = r
	c.obj.SetEntries(entries)
	return nil
}

// Destroy implements ib.DriverCQ.
func (c *CQ) Destroy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost, c.ended = true, true
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	return nil
}

// isDestroyed implements completionQueue.
func (c *CQ) isDestroyed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}
