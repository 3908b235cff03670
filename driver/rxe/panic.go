package rxe

import (
	"fmt"
	"runtime/debug"
	"syscall"
)

// A panic is a bug. It may leave the lock of a queue pair locked, and its state half changed: nothing that the device has is
// to be relied on any more. With Config.Recover the device fails (ib.DeviceHandle.Fail), and a reset replaces it. Until then, and
// while its contexts and consumers go, nobody waits for the locks of its queue pairs.

// caught recovers a panic of a pass. It must be deferred directly.
func (p *pass) caught() {
	if !p.dev.recovers {
		return
	}
	if r := recover(); r != nil {
		p.panicked(r)
	}
}

// caughtAs does the same in a method that returns an error.
func (p *pass) caughtAs(err *error) {
	if !p.dev.recovers {
		return
	}
	if r := recover(); r != nil {
		p.panicked(r)
		*err = fmt.Errorf("the device has failed: %w", syscall.EIO)
	}
}

// panicked ends the pass: what it holds is let go, but for the lock of the last queue pair that it has had.
func (p *pass) panicked(r any) {
	why := fmt.Errorf("panic: %v\n%s", r, debug.Stack())
	p.dev.fail(why)
	if qp := p.last; qp != nil && qp.dev != p.dev {
		qp.dev.fail(why)
	}
	if n := p.copies.Load(); n&1 != 0 {
		p.leave()
	}
	p.gather.reset()
	if p.scatter.to != nil {
		p.scatter.to.put()
	}
	takeOver(p.dev, p)
	p.runCallbacks()
}

// fail has nobody wait for locks any more, and the device's owner reset it.
func (d *Device) fail(why error) {
	if d.broken.Swap(true) {
		return
	}
	d.stopped.Store(true)
	for qp := range d.qps.all() {
		qp.lane.stall()
		qp.idle.Broadcast() // Destroy waits no more
	}
	d.obj.Fail(why)
}
