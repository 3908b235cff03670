package ibtest

import (
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"verbena/ib"
)

// scaleDefects are drivers with faults that need many objects, now or before, or a rare call.
var scaleDefects = []driverDefect{
	{
		defect: "keeps 16 bits of the number of the sender of a datagram",
		break_: func(d *wrongDriver) {
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				n, err := c.CQ.Poll(wc)
				for i := range wc[:n] {
					if wc[i].Flags&ib.WCGRH != 0 {
						wc[i].SrcQP &= 1<<16 - 1
					}
				}
				return n, err
			}
		},
		opts: withBubble,
		by:   "Wrap/Old", says: "source",
	},
	{
		defect: "keeps 1 KiB of each destroyed queue pair",
		break_: func(d *wrongDriver) {
			var mu sync.Mutex
			var kept [][]byte
			d.destroyQP = func(q *wrongQP) error {
				mu.Lock()
				kept = append(kept, make([]byte, 1024))
				mu.Unlock()
				return q.QP.Destroy()
			}
		},
		by: "Wrap/Numbers", says: "bytes stay",
	},
	{
		defect: "notifies the handlers of only 128 completion queues",
		break_: func(d *wrongDriver) {
			d.reqNotify = func(c *wrongCQ, f ib.NotifyFlags) (bool, error) {
				if slices.Index(cloneList(d, &d.cqs), c) >= 128 {
					return false, nil
				}
				return c.CQ.ReqNotify(f)
			}
		},
		by: "Scale/Senders", says: "the handler of queue",
	},
	{
		defect: "delivers a datagram to the first 32 members of a group",
		break_: func(d *wrongDriver) {
			var mu sync.Mutex
			members := map[ib.GID]map[*wrongQP]bool{} // false: without effect
			d.attach = func(q *wrongQP, g ib.GID) error {
				mu.Lock()
				defer mu.Unlock()
				if members[g] == nil {
					members[g] = map[*wrongQP]bool{}
				}
				if len(members[g]) >= 32 {
					members[g][q] = false
					return nil
				}
				err := q.QP.AttachMcast(g, 0)
				if err == nil {
					members[g][q] = true
				}
				return err
			}
			d.detach = func(q *wrongQP, g ib.GID) error {
				mu.Lock()
				defer mu.Unlock()
				attached, found := members[g][q]
				maps.DeleteFunc(members[g], func(o *wrongQP, _ bool) bool { return o == q })
				if found && !attached {
					return nil
				}
				return q.QP.DetachMcast(g, 0)
			}
		},
		by: "Scale/Members", says: "1 completions",
	},
	{
		defect: "rejects an empty list of sends",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if len(wrs) == 0 {
					return 0, syscall.EINVAL
				}
				return q.QP.PostSend(wrs)
			}
		},
		opts: withBubble,
		by:   "Model/Steps", says: "PostSend(): got error",
	},
	{
		defect: "never reports that a send queue is being drained",
		break_: func(d *wrongDriver) {
			d.queried = func(_ *wrongQP, a *ib.QPAttr) { a.SQDraining = false }
		},
		opts: withBubble,
		by:   "Model/Steps", says: "want",
	},
	{
		defect: "sleeps for 20 ms in the resize of a shared receive queue with a lock of post send",
		break_: func(d *wrongDriver) {
			d.modifySRQ = func(s *wrongSRQ, a *ib.SRQAttr, m ib.SRQAttrMask) error {
				d.mu.Lock()
				defer d.mu.Unlock()
				if m&ib.SRQAttrMaxWR != 0 {
					sleepFor(20 * time.Millisecond)
				}
				return s.SRQ.Modify(a, m, nil)
			}
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				d.mu.Lock()
				defer d.mu.Unlock()
				return q.QP.PostSend(wrs)
			}
		},
		by: "Sleep/LockHolders", says: "waits for a lock, while SRQ.Modify sleeps",
	},
}
