package ibtest

import (
	"sync/atomic"
	"time"

	"verbena/ib"
)

// wrongValues are drivers whose faults show with values that only the model's calls have.
var wrongValues = []wrong{
	{
		defect: "keeps 32 bits of the ID of a work request",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				for i := range wrs {
					wrs[i].ID &= 1<<32 - 1
				}
				return q.QP.PostSend(wrs)
			}
		},
		opts: inBubble,
		by:   "Model/Steps", says: "want {ID",
	},
	{
		defect: "keeps 16 bits of the length of a message",
		break_: func(d *wrongDriver) {
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				n, err := c.CQ.Poll(wc)
				for i := range wc[:n] {
					wc[i].ByteLen &= 1<<16 - 1
				}
				return n, err
			}
		},
		opts: inBubble,
		by:   "Model/Steps", says: "length of the completion",
	},
	{
		defect: "stores the data of a READ once more, long after the last queue pair has been destroyed",
		break_: func(d *wrongDriver) {
			var late atomic.Pointer[ib.SGE]
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				for _, wr := range wrs {
					if wr.Opcode == ib.WRRDMARead && len(wr.SGList) > 0 {
						late.Store(&wr.SGList[0])
					}
				}
				return q.QP.PostSend(wrs)
			}
			d.destroyQP = func(q *wrongQP) error {
				if s := late.Load(); s != nil {
					if m := d.regionAt(s.Addr); m != nil {
						time.AfterFunc(time.Second, func() {
							if len(each(d, &d.qps)) == 0 {
								m.region.WriteV([][]byte{{0x5a}}, s.Addr)
							}
						})
					}
				}
				return q.QP.Destroy()
			}
		},
		opts: func(func() *wrongDriver) []Option { return []Option{Bubble(), Seeds(400)} },
		by:   "Model/Destroyed", says: "when all objects had been destroyed",
	},
}

func inBubble(func() *wrongDriver) []Option { return []Option{Bubble()} }
