package ibtest

import (
	"slices"

	"verbena/ib"
)

// changeSRDRequests applies a change to the requests of SRD before their post. The request is dropped if change returns
// false.
func (d *wrongDriver) changeSRDRequests(change func(q *wrongQP, wr *ib.SendWR) bool) {
	d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
		if q.obj.QP().Type() != ib.QPTypeSRD {
			return q.QP.PostSend(wrs)
		}
		for i := range wrs {
			if wr := wrs[i]; change(q, &wr) {
				if _, err := q.QP.PostSend([]ib.SendWR{wr}); err != nil {
					return i, err
				}
			}
		}
		return len(wrs), nil
	}
}

// srdDefects have faults in SRD.
var srdDefects = []driverDefect{
	{
		defect: "sends only the first MiB of an RDMA WRITE of SRD",
		break_: func(d *wrongDriver) {
			d.changeSRDRequests(func(q *wrongQP, wr *ib.SendWR) bool {
				if wr.Opcode == ib.WRRDMAWriteWithImm && len(wr.SGList) == 1 {
					wr.SGList = slices.Clone(wr.SGList)
					wr.SGList[0].Length = min(wr.SGList[0].Length, 1<<20)
				}
				return true
			})
		},
		by: "Data/Long", says: "16777221 bytes: the receive tells 1048576",
	},
	{
		defect: "delivers a SEND of SRD of 64 bytes or more twice",
		break_: func(d *wrongDriver) {
			d.changeSRDRequests(func(q *wrongQP, wr *ib.SendWR) bool {
				if wr.Opcode == ib.WRSend && len(wr.SGList) > 0 && wr.SGList[0].Length >= 64 {
					again := *wr
					again.Flags = 0
					_, _ = q.QP.PostSend([]ib.SendWR{again})
				}
				return true
			})
		},
		by: "SRD/Messages", says: "1 completions",
	},
	{
		defect: "exchanges the data of two messages of SRD that were posted at once by different queue pairs",
		break_: func(d *wrongDriver) {
			var last ib.SendWR
			n := 0
			d.changeSRDRequests(func(q *wrongQP, wr *ib.SendWR) bool {
				d.withLock(func() {
					if n++; n%7 == 0 && len(last.SGList) > 0 && wr.Opcode == ib.WRSend &&
						last.SGList[0].Length == wr.SGList[0].Length {
						wr.SGList = slices.Clone(last.SGList)
					}
					last = *wr
					last.SGList = slices.Clone(wr.SGList)
				})
				return true
			})
		},
		by: "SRD/EachOnce", says: "want each once",
	},
	{
		defect: "sometimes reports the immediate data of an RDMA WRITE of SRD before the last bytes",
		break_: func(d *wrongDriver) {
			long := 0
			d.changeSRDRequests(func(q *wrongQP, wr *ib.SendWR) bool {
				e := &wr.SGList[0]
				if wr.Opcode != ib.WRRDMAWriteWithImm || e.Length < pairBufferLen/2 {
					return true
				}
				if long++; long <= 3 { // sometimes
					return true
				}
				// The last bytes are wrong when the receive completes.
				wr.SGList = []ib.SGE{{Addr: e.Addr, Length: e.Length - 8, LKey: e.LKey}, {Addr: e.Addr, Length: 8, LKey: e.LKey}}
				return true
			})
		},
		by: "SRD/ImmediateLast", says: "got its receive before all",
	},
	{
		defect: "moves a queue pair of SRD to ERR when a request fails",
		break_: func(d *wrongDriver) {
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				n, err := c.CQ.Poll(wc)
				for _, q := range cloneList(d, &d.qps) {
					if q.obj.QP().Type() == ib.QPTypeSRD && slices.ContainsFunc(wc[:n], func(x ib.WC) bool {
						return x.QP == q.obj.QP() && x.Status != ib.WCSuccess
					}) {
						_ = q.QP.Modify(&ib.QPAttr{State: ib.QPErr}, ib.QPAttrState, nil)
					}
				}
				return n, err
			}
		},
		by: "SRD/FailureOfRequest", says: "got state ERR, want RTS",
	},
	{
		defect: "executes the requests of SRD one after the other, also those to different queue pairs",
		break_: func(d *wrongDriver) {
			busy, waiting := map[*ib.QP]bool{}, map[*ib.QP][]ib.SendWR{}
			d.changeSRDRequests(func(q *wrongQP, wr *ib.SendWR) (posts bool) {
				d.withLock(func() {
					if posts = !busy[q.obj.QP()]; posts {
						busy[q.obj.QP()] = true
					} else {
						waiting[q.obj.QP()] = append(waiting[q.obj.QP()], *wr)
					}
				})
				return posts
			})
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				n, err := c.CQ.Poll(wc)
				for _, q := range cloneList(d, &d.qps) {
					done := slices.ContainsFunc(wc[:n], func(x ib.WC) bool {
						return x.QP == q.obj.QP() && x.Opcode&ib.WCRecv == 0
					})
					d.withLock(func() {
						if list := waiting[q.obj.QP()]; done && len(list) > 0 {
							_, _ = q.QP.PostSend(list[:1])
							waiting[q.obj.QP()] = list[1:]
						} else if done {
							busy[q.obj.QP()] = false
						}
					})
				}
				return n, err
			}
		},
		by: "SRD/WaitsAlone", says: "2 completions",
	},
	{
		defect: "drops requests of SRD without an address handle, and reports success",
		break_: func(d *wrongDriver) {
			d.changeSRDRequests(func(_ *wrongQP, wr *ib.SendWR) bool { return wr.AH != nil })
		},
		by: "SRD/Refused", says: "SEND without address handle: got 1 taken",
	},
	{
		defect: "ignores the Q_Keys of SRD",
		break_: func(d *wrongDriver) {
			d.changeSRDRequests(func(_ *wrongQP, wr *ib.SendWR) bool {
				wr.RemoteQKey = 1 << 31
				return true
			})
		},
		by: "SRD/QKey", says: "want an error",
	},
	{
		defect: "keeps 31 bits of the immediate data of SRD",
		break_: func(d *wrongDriver) {
			d.changeSRDRequests(func(_ *wrongQP, wr *ib.SendWR) bool {
				wr.Imm &= 1<<31 - 1
				return true
			})
		},
		opts: withBubble,
		by:   "Model/Steps", says: "immediate data of the completion",
	},
	{
		defect: "executes an RDMA READ of SRD with several elements for the first two of them only",
		break_: func(d *wrongDriver) {
			d.changeSRDRequests(func(_ *wrongQP, wr *ib.SendWR) bool {
				if wr.Opcode == ib.WRRDMARead && len(wr.SGList) > 2 {
					wr.SGList = wr.SGList[:2]
				}
				return true
			})
		},
		opts: withBubble,
		by:   "Model/Steps", says: "cq",
	},
}
