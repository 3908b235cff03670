package engine

import (
	"fmt"
	"runtime/debug"
	"syscall"
)

// A panic is a bug. It may leave the state of a queue pair half changed, which is run by no thread from then on: nothing that
// the device has is to be relied on any more. With Config.Recover the device fails (ib.DeviceHandle.Fail), and a reset replaces
// it. Until then, and while its contexts and consumers go, no thread waits for its queue pairs.

// caught recovers a panic of a pass. It must be deferred directly.
func (p *pass) caught() {
	if !p.dev.recovers {
		return
	}
	if r := recover(); r != nil {
		p.panicked(r)
	}
}

// caughtHolding does the same for a pass that has callbacks, which it runs. It must be deferred directly.
func (p *pass) caughtHolding() {
	if !p.dev.recovers {
		return
	}
	if r := recover(); r != nil {
		p.panicked(r)
		p.letGo()
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

// panicked ends the pass. The last queue pair that it has run stays as it is.
func (p *pass) panicked(r any) {
	why := fmt.Errorf("panic: %v\n%s", r, debug.Stack())
	p.dev.fail(why)
	if qp := p.last; qp != nil && qp.dev != p.dev {
		qp.dev.fail(why)
	}
	if qp := p.receiver; qp != nil && qp.dev != p.dev {
		qp.dev.fail(why)
	}
	if n := p.copies.Load(); n&1 != 0 {
		p.leave()
	}
	p.gather.reset()
	if p.scatter.to != nil {
		p.scatter.to.put()
	}
	p.yield()
	takeOver(p, p.dev.begin(false))
}

// fail ends all waiting for queue pairs, and asks the device's owner for a reset.
func (d *Device) fail(why error) {
	if d.broken.Swap(true) {
		return
	}
	d.stopped.Store(true)
	p := d.begin(false)
	for qp := range d.qps.all() {
		qp.lane.stall()
		p.forgiveOne(qp) // its senders, on other devices, go on
	}
	d.workers.start(p.finish)
	d.workers.start(func() { d.obj.Fail(why) }) // which writes to the log
}
