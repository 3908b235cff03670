package engine

import (
	"fmt"
	"runtime/debug"
	"syscall"
)

// A panic is a bug. It can leave the state of a queue pair half changed. No thread runs that queue pair any more, and
// no state of the device is reliable. With Config.Recover the device fails (ib.DeviceHandle.Fail), and a reset
// replaces the device. Until then, and while its contexts and consumers close, no thread waits for its queue pairs.

// caught recovers a panic of a pass. It must be deferred directly.
func (p *pass) caught() {
	if !p.dev.recovers {
		return
	}
	if r := recover(); r != nil {
		p.panicked(r)
	}
}

// caughtHolding recovers a panic of a pass that holds callbacks, and runs the callbacks. It must be deferred
// directly.
func (p *pass) caughtHolding() {
	if !p.dev.recovers {
		return
	}
	if r := recover(); r != nil {
		p.panicked(r)
		p.letGo()
	}
}

// caughtAs recovers a panic of a pass and stores an error for the method to return. It must be deferred directly.
func (p *pass) caughtAs(err *error) {
	if !p.dev.recovers {
		return
	}
	if r := recover(); r != nil {
		p.panicked(r)
		*err = fmt.Errorf("the device has failed: %w", syscall.EIO)
	}
}

// panicked ends the pass after a panic. The queue pair that the pass ran last keeps its state.
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

// fail ends all waits for queue pairs of the device, and asks the device's owner for a reset.
func (d *Device) fail(why error) {
	if d.broken.Swap(true) {
		return
	}
	d.stopped.Store(true)
	p := d.begin(false)
	for qp := range d.qps.all() {
		qp.lane.stall()
		p.forgiveOne(qp) // its senders, on other devices, continue
	}
	d.workers.start(p.finish)
	d.workers.start(func() { d.obj.Fail(why) }) // Fail writes to the log
}
