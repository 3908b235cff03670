package minimal

import (
	"fmt"
	"slices"
	"syscall"

	"verbena/ib"
)

// completionQueue is a completion queue.
type completionQueue struct {
	d   *Device
	h   ib.CQHandle
	max int

	// guarded by Device.mu
	wcs     []ib.WC
	armed   ib.NotifyFlags // not armed: 0
	overrun bool           // set when a completion was lost
}

// CreateCQ implements ib.Driver.
func (d *Device) CreateCQ(h ib.CQHandle, attr ib.CQAttr, _ *ib.Udata) (ib.DriverCQ, error) {
	if attr.Entries < 1 || attr.Entries > maxCQE {
		return nil, fmt.Errorf("%d entries, not 1 to %d: %w", attr.Entries, maxCQE, syscall.EINVAL)
	}
	if attr.Flags != 0 {
		return nil, fmt.Errorf("flags %v: %w", attr.Flags, syscall.EOPNOTSUPP)
	}
	h.SetEntries(attr.Entries)
	return &completionQueue{d: d, h: h, max: attr.Entries}, nil
}

// Poll implements ib.DriverCQ. Poll may not sleep.
func (c *completionQueue) Poll(wc []ib.WC) (int, error) {
	c.d.mu.Lock()
	defer c.d.unlock()
	n := copy(wc, c.wcs)
	c.wcs = slices.Delete(c.wcs, 0, n)
	return n, nil
}

// ReqNotify implements ib.DriverCQ. ReqNotify may not sleep.
func (c *completionQueue) ReqNotify(flags ib.NotifyFlags) (missed bool, err error) {
	c.d.mu.Lock()
	defer c.d.unlock()
	c.armed |= flags & (ib.NotifySolicited | ib.NotifyNextComp)
	return flags&ib.NotifyReportMissed != 0 && len(c.wcs) > 0, nil
}

// Destroy implements ib.DriverCQ. No queue pair uses the queue at this point.
func (c *completionQueue) Destroy() error { return nil }

// addCompletion adds a completion. addCompletion returns false if the queue is full, or has lost a completion.
func (c *completionQueue) addCompletion(wc ib.WC, solicited bool) bool {
	if c.overrun {
		return false
	}
	if len(c.wcs) == c.max {
		c.overrun = true
		c.h.Raise(ib.EventCQErr)
		return false
	}
	c.wcs = append(c.wcs, wc)
	if c.armed&ib.NotifyNextComp != 0 || c.armed != 0 && (solicited || wc.Status != ib.WCSuccess) {
		c.armed = 0
		c.h.Completed()
	}
	return true
}

// forgetQP clears a queue pair that is being destroyed in its completions, which keep the queue pair's number.
func (c *completionQueue) forgetQP(qp *ib.QP) {
	for i := range c.wcs {
		if c.wcs[i].QP == qp {
			c.wcs[i].QP = nil
		}
	}
}
