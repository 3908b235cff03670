package ibtest

import (
	"slices"
	"sync"
	"time"

	"verbena/ib"
)

// timerDefects act late, or not at all.
var timerDefects = []driverDefect{
	{
		defect: "does not stop the timer of a moderated queue at its destruction",
		break_: func(d *wrongDriver) {
			var periods sync.Map
			d.moderate = func(c *wrongCQ, count int, period time.Duration) error {
				periods.Store(c, period)
				return c.CQ.Moderate(count, period)
			}
			d.destroyCQ = func(c *wrongCQ) error {
				if p, ok := periods.Load(c); ok && p.(time.Duration) > 0 {
					time.AfterFunc(p.(time.Duration), c.obj.Completed)
				}
				return c.CQ.Destroy()
			}
		},
		by: "CQ/TimersEnd", says: "rule use-after-destroy",
	},
	{
		defect: "completes a work request from a timer after the destruction of its queue pair",
		break_: func(d *wrongDriver) {
			d.destroyQP = func(q *wrongQP) error {
				if q.sendCQ != nil && q.QP.State() == ib.QPRTS {
					late := ib.WC{Status: ib.WCRetryExcErr, QPNum: q.obj.Num()}
					time.AfterFunc(time.Millisecond, func() {
						d.withLock(func() { q.sendCQ.stash = append(q.sendCQ.stash, late) })
					})
				}
				return q.QP.Destroy()
			}
			d.poll = func(c *wrongCQ, wc []ib.WC) (n int, err error) {
				d.withLock(func() {
					n = copy(wc, c.stash)
					c.stash = c.stash[n:]
				})
				if n > 0 {
					return n, nil
				}
				return c.CQ.Poll(wc)
			}
		},
		by: "Errors/DestroyedWhileWaiting", says: "which had been destroyed",
	},
	{
		defect: "reads the address handle of a datagram at the transmission in place of the post",
		break_: func(d *wrongDriver) {
			held := map[*wrongQP][]ib.SendWR{} // under mu
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if wrs[0].AH == nil || q.QP.State() != ib.QPSQD {
					return q.QP.PostSend(wrs)
				}
				d.mu.Lock()
				defer d.mu.Unlock()
				for _, wr := range wrs {
					wr.SGList = slices.Clone(wr.SGList)
					held[q] = append(held[q], wr)
				}
				return len(wrs), nil
			}
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				err := q.QP.Modify(a, m, nil)
				if err == nil && q.QP.State() != ib.QPSQD {
					d.mu.Lock()
					defer d.mu.Unlock()
					q.QP.PostSend(held[q])
					delete(held, q)
				}
				return err
			}
		},
		by: "Data/AddressOfPost", says: "timed out after 2s",
	},
	{
		defect: "keeps a region that is deregistered while a queue pair is in SQD",
		break_: func(d *wrongDriver) {
			d.dereg = func(m ib.DriverMR) error {
				for _, q := range cloneList(d, &d.qps) {
					if q.QP.State() == ib.QPSQD {
						return nil
					}
				}
				return m.Dereg()
			}
		},
		by: "Errors/MemoryEndsWhileWaiting", says: `with "success", want 1 with`,
	},
}
