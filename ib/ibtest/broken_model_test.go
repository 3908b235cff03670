package ibtest

import "verbena/ib"

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
}

func inBubble(func() *wrongDriver) []Option { return []Option{Bubble()} }
