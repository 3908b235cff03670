package ibtest

import (
	"sync"

	"verbena/ib"
)

// changePolledCompletions makes Poll change each completion of the inner driver. had is the caller's former array
// entry.
func (d *wrongDriver) changePolledCompletions(change func(c *wrongCQ, wc *ib.WC, had ib.WC)) {
	d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
		into := make([]ib.WC, len(wc))
		n, err := c.CQ.Poll(into)
		for i := range into[:n] {
			change(c, &into[i], wc[i])
		}
		copy(wc, into[:n])
		return n, err
	}
}

// keepDestroyedQP makes the completions selected by which keep the object of a destroyed queue pair.
func (d *wrongDriver) keepDestroyedQP(which func(c *wrongCQ, q *wrongQP) bool) {
	var gone sync.Map // by number
	d.destroyQP = func(q *wrongQP) error {
		gone.Store(q.obj.Num(), q)
		return q.QP.Destroy()
	}
	d.changePolledCompletions(func(c *wrongCQ, wc *ib.WC, _ ib.WC) {
		if q, ok := gone.Load(wc.QPNum); ok && which(c, q.(*wrongQP)) {
			wc.QP = q.(*wrongQP).obj.QP()
		}
	})
}

// completionDefects report wrong contents of completions.
var completionDefects = []driverDefect{
	{
		defect: "adds its flags to the previous flags of the caller's completion",
		break_: func(d *wrongDriver) {
			d.changePolledCompletions(func(_ *wrongCQ, wc *ib.WC, had ib.WC) { wc.Flags |= had.Flags })
		},
		by: "Data/WholeCompletion", says: "polled into an entry that has been used",
	},
	{
		defect: "keeps the previous immediate data in a completion without immediate data",
		break_: func(d *wrongDriver) {
			d.changePolledCompletions(func(_ *wrongCQ, wc *ib.WC, had ib.WC) {
				if wc.Flags&ib.WCWithImm == 0 {
					wc.Imm = had.Imm
				}
			})
		},
		by: "Data/WholeCompletion", says: "polled into an entry that has been used",
	},
	{
		defect: "flushes each send with the opcode of a SEND",
		break_: func(d *wrongDriver) {
			d.changePolledCompletions(func(_ *wrongCQ, wc *ib.WC, _ ib.WC) {
				if wc.Status == ib.WCWRFlushErr && wc.Opcode&ib.WCRecv == 0 {
					wc.Opcode = ib.WCSend
				}
			})
		},
		by: "Errors/FlushOpcode", says: "flushed with opcode SEND, want RDMA_WRITE",
	},
	{
		defect: "flushes receives without an opcode",
		break_: func(d *wrongDriver) {
			d.changePolledCompletions(func(_ *wrongCQ, wc *ib.WC, _ ib.WC) {
				if wc.Status == ib.WCWRFlushErr {
					wc.Opcode &^= ib.WCRecv
				}
			})
		},
		by: "Errors/FlushOpcode", says: "flushed with opcode SEND, want RECV",
	},
	{
		defect: "leaves a destroyed queue pair in the completions of its receives if these have a separate queue",
		break_: func(d *wrongDriver) {
			d.keepDestroyedQP(func(c *wrongCQ, q *wrongQP) bool { return q.sendCQ != nil && c != q.sendCQ })
		},
		by: "CQ/DestroyedQueuePair", says: "RC, shared receive queue: false, receive queue",
	},
	{
		defect: "names another queue pair of the same queue in the completions of a destroyed one",
		break_: func(d *wrongDriver) {
			d.changePolledCompletions(func(c *wrongCQ, wc *ib.WC, _ ib.WC) {
				for _, q := range cloneList(d, &d.qps) {
					if wc.QP == nil && q.sendCQ == c && q.recvCQ != c {
						wc.QP = q.obj.QP()
					}
				}
			})
		},
		by: "CQ/DestroyedQueuePair", says: "RC, shared receive queue: false, send queue",
	},
	{
		defect: "leaves a destroyed XRC target in the completions of a shared receive queue",
		break_: func(d *wrongDriver) {
			d.keepDestroyedQP(func(_ *wrongCQ, q *wrongQP) bool { return q.sendCQ == nil })
		},
		by: "XRC/DestroyedTarget", says: "XRC, receive queue",
	},
}
