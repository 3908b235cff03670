package ibtest

import (
	"sync/atomic"
	"syscall"

	"verbena/ib"
)

// Disassociate implements ib.Disassociator.
func (d *wrongDriver) Disassociate(c ib.UserContext) {
	if d.disassociate != nil {
		d.disassociate(c)
		return
	}
	d.Device.Disassociate(c)
}

// sharedQP is a queue pair that shares one page with the process as its send queue, and ignores the contents.
type sharedQP struct {
	*wrongQP
	shared ib.Shared
}

func newSharedQP(q *wrongQP, c ib.UserContext) (ib.DriverQP, error) {
	s, err := c.AllocShared(4096)
	return &sharedQP{q, s}, err
}

func (q *sharedQP) Doorbell(h *ib.Hold)    { q.d.doorbell(q.shared.Mem, h) }
func (q *sharedQP) Posted() (uint32, bool) { return 0, true }
func (q *sharedQP) TakeBack()              {}

func (q *sharedQP) Destroy() error {
	q.shared.Free()
	return q.wrongQP.Destroy()
}

// disassociateDefects violate the contract of ib.Disassociator.
var disassociateDefects = []driverDefect{
	{
		defect: "has a disassociate hook that does nothing",
		break_: func(d *wrongDriver) { d.disassociate = func(ib.UserContext) {} },
		by:     "Disassociate/Flush", says: "timed out",
	},
	{
		defect: "disassociates every context in place of one",
		break_: func(d *wrongDriver) { d.disassociate = func(ib.UserContext) { d.Device.EnterError() } },
		by:     "Disassociate/Flush", says: "completion of work request 8 with \"work request flushed\"",
	},
	{
		defect: "waits in its disassociate hook until the process has destroyed all objects",
		break_: func(d *wrongDriver) {
			d.disassociate = func(ib.UserContext) {
				select {}
			}
		},
		by: "Disassociate/Flush", says: "Disassociate has not returned",
	},
	{
		defect: "flushes work requests in its disassociate hook and again in poll",
		break_: func(d *wrongDriver) {
			var cut, again atomic.Bool
			d.disassociate = func(c ib.UserContext) {
				d.Device.Disassociate(c)
				cut.Store(true)
			}
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				n, err := c.CQ.Poll(wc)
				switch {
				case n > 0 && wc[n-1].Status == ib.WCWRFlushErr:
					c.last = wc[n-1]
				case n == 0 && c.last.QP != nil && cut.Load() && !again.Swap(true):
					wc[0] = c.last
					return 1, nil
				}
				return n, err
			}
		},
		by: "Disassociate/Flush", says: "has completed twice",
	},
	{
		defect: "refuses to destroy the objects of a disassociated context",
		break_: func(d *wrongDriver) {
			var refuse atomic.Bool
			d.disassociate = func(c ib.UserContext) {
				d.Device.Disassociate(c)
				refuse.Store(true)
			}
			d.destroyQP = func(q *wrongQP) error {
				if refuse.Swap(false) {
					return syscall.EIO
				}
				return q.QP.Destroy()
			}
		},
		by: "Disassociate/Flush", says: "destroy *ib.QP",
	},
	{
		defect: "continues to read work requests from a disassociated process's memory, and moves the queue's index there",
		break_: func(d *wrongDriver) { d.doorbell = func(shared []byte, _ *ib.Hold) { shared[128]++ } },
		by:     "Disassociate/Harmless", says: "the driver wrote into region 0",
	},
	{
		defect: "runs callbacks in the doorbell",
		break_: func(d *wrongDriver) {
			d.doorbell = func(_ []byte, h *ib.Hold) {
				if h != nil {
					h.Run()
					h.Add(d.dev)
				}
			}
		},
		by: "Disassociate/Harmless", says: "rule hold",
	},
}
