package ibtest

import (
	"slices"
	"sync"
	"syscall"

	"verbena/ib"
)

// rejectionDefects change state before they reject a call, or before a request is retried.
var rejectionDefects = []driverDefect{
	{
		defect: "keeps the memory of the queue pairs that it rejects",
		break_: func(d *wrongDriver) {
			var kept [][]byte
			d.createQP = func(_ ib.QPHandle, init *ib.DriverQPInit) error {
				if init.Type != ib.QPTypeUC || init.Cap.MaxRecvWR <= 1<<14 {
					return nil
				}
				d.withLock(func() { kept = append(kept, make([]byte, 8<<20)) })
				return syscall.EINVAL
			}
		},
		by: "Errors/RefusedLeavesNothing", says: "create QP, UC with too many receive work requests: refused",
	},
	{
		defect: "reports the attributes before RESET in RESET",
		break_: func(d *wrongDriver) {
			var last sync.Map
			d.queried = func(q *wrongQP, a *ib.QPAttr) {
				if a.State != ib.QPReset {
					last.Store(q, *a)
				} else if old, ok := last.Load(q); ok {
					*a = old.(ib.QPAttr)
					a.State, a.CurState = ib.QPReset, ib.QPReset
				}
			}
		},
		by: "QueuePair/Attributes", says: "queue pair after RESET",
	},
	{
		defect: "invalidates before it compares the lengths of the message and the receive",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if wr := wrs[0]; wr.Opcode == ib.WRSendWithInv && sglLength(wr.SGList) > 8 {
					d.peerOf(q).QP.PostSend([]ib.SendWR{{Opcode: ib.WRLocalInv, InvalidateRKey: wr.InvalidateRKey}})
				}
				return q.QP.PostSend(wrs)
			}
		},
		by: "MW/InvalidateRefused", says: "SEND with invalidate of a window, of 9 bytes, too long for the receive of 8",
	},
	{
		defect: "invalidates a region before it checks for a receive",
		break_: func(d *wrongDriver) {
			var posted sync.Map // queue pairs that have had a receive
			d.postRecv = func(q *wrongQP, wrs []ib.RecvWR) (int, error) {
				posted.Store(q, true)
				return q.QP.PostRecv(wrs)
			}
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if wr := wrs[0]; wr.Opcode == ib.WRSendWithInv {
					if _, ok := posted.Load(d.peerOf(q)); !ok {
						d.peerOf(q).QP.PostSend([]ib.SendWR{{Opcode: ib.WRLocalInv, InvalidateRKey: wr.InvalidateRKey}})
					}
				}
				return q.QP.PostSend(wrs)
			}
		},
		by: "FastReg/InvalidateRefused", says: "while a SEND with invalidate waits for a receive",
	},
	{
		defect: "counts a region as bound after a rejected bind of a window of another domain",
		break_: func(d *wrongDriver) {
			var bound sync.Map // by inner region
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if b := wrs[0].Bind; b != nil {
					if m, ok := ib.As[*wrongMR](d.dev.MR(b.MR)); ok && m.pd != q.pd {
						bound.Store(m.DriverMR, true)
					}
				}
				return q.QP.PostSend(wrs)
			}
			d.dereg = func(m ib.DriverMR) error {
				if _, ok := bound.LoadAndDelete(m); ok {
					return syscall.EBUSY
				}
				return m.Dereg()
			}
		},
		by: "MW/BindRefused", says: "to a region of another domain: was refused, and the region cannot be deregistered",
	},
	{
		defect: "takes a bind without a window, and forgets it",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if wrs[0].Opcode == ib.WRBindMW && wrs[0].Bind == nil {
					return len(wrs), nil
				}
				return q.QP.PostSend(wrs)
			}
		},
		by: "Errors/IncompleteRC", says: "timed out",
	},
	{
		defect: "unbinds a window before it checks the new bind",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if b := wrs[0].Bind; b != nil && b.MW != nil && b.MW.Type() == ib.MWType1 &&
					b.Access&ib.AccessRemoteAtomic != 0 && b.Length > 0 {
					unbind := *b
					unbind.Length, unbind.RKey = 0, b.MW.RKey()^0x80
					q.QP.PostSend([]ib.SendWR{{Opcode: ib.WRBindMW, Bind: &unbind}})
				}
				return q.QP.PostSend(wrs)
			}
		},
		by: "MW/BindRefused", says: "bind of a type 1 window, bound: false, to the right to atomics",
	},
	{
		defect: "omits the first element of a retransmitted message",
		break_: func(d *wrongDriver) {
			var mu sync.Mutex
			receives := map[*wrongQP]int{}
			d.postRecv = func(q *wrongQP, wrs []ib.RecvWR) (int, error) {
				mu.Lock()
				receives[q] += len(wrs)
				mu.Unlock()
				return q.QP.PostRecv(wrs)
			}
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				mu.Lock()
				wr := wrs[0]
				if p := d.peerOf(q); p != nil && wr.Opcode != ib.WRRDMAWrite && wr.Opcode != ib.WRRDMARead {
					if receives[p]--; receives[p] < 0 && len(wr.SGList) > 1 {
						wrs = slices.Clone(wrs)
						wrs[0].SGList = wr.SGList[1:]
					}
				}
				mu.Unlock()
				return q.QP.PostSend(wrs)
			}
		},
		by: "Data/Retried", says: "SEND of two elements, number 0 without a receive at first",
	},
	{
		defect: "flushes sends posted in ERR to the receive queue's completion queue",
		break_: func(d *wrongDriver) {
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				d.mu.Lock()
				defer d.mu.Unlock()
				if n := copy(wc, c.stash); n > 0 {
					c.stash = c.stash[n:]
					return n, nil
				}
				n, err := c.CQ.Poll(wc)
				keep := wc[:0]
				for _, w := range wc[:max(n, 0)] {
					q, send := d.qpByNumber(w.QPNum), w.Status == ib.WCWRFlushErr && w.Opcode != ib.WCRecv
					if q != nil && send && q.recvCQ != nil && q.recvCQ != c {
						q.recvCQ.stash = append(q.recvCQ.stash, w)
						continue
					}
					keep = append(keep, w)
				}
				return len(keep), err
			}
		},
		by: "Errors/FlushQueues", says: "on the completion queue of side 1",
	},
	{
		defect: "reports the last requested state",
		break_: func(d *wrongDriver) {
			var asked sync.Map
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				err := q.QP.Modify(a, m, nil)
				if err == nil && m&ib.QPAttrState != 0 {
					asked.Store(q.obj.Num(), a.State)
				}
				return err
			}
			d.queried = func(q *wrongQP, a *ib.QPAttr) {
				if s, ok := asked.Load(q.obj.Num()); ok {
					a.State = s.(ib.QPState)
				}
			}
		},
		by: "QueuePair/QueryFailed", says: "Query shows state RTS (<nil>), want ERR, as State does",
	},
	{
		defect: "uses 11 bits for the number of a region",
		break_: func(d *wrongDriver) {
			d.regMR = func(mr ib.MRHandle, m *wrongMR) error {
				if m.num > 0x7ffff {
					mr.SetKeys(m.num&0x7ffff, m.num&0x7ffff)
				}
				return nil
			}
		},
		by: "Load/ManyRegistrations", says: "are those of another region, too",
	},
	{
		defect: "does not arm a limit above the number of receives",
		break_: func(d *wrongDriver) {
			var mu sync.Mutex
			posted := map[*wrongSRQ]int{} // since its creation
			d.srqPost = func(s *wrongSRQ, wrs []ib.RecvWR) (int, error) {
				mu.Lock()
				posted[s] += len(wrs)
				mu.Unlock()
				return s.SRQ.PostRecv(wrs)
			}
			d.modifySRQ = func(s *wrongSRQ, a *ib.SRQAttr, m ib.SRQAttrMask) error {
				mu.Lock()
				below := m == ib.SRQAttrLimit && posted[s] < int(a.Limit)
				mu.Unlock()
				if below {
					return nil
				}
				return s.SRQ.Modify(a, m, nil)
			}
		},
		by: "SRQ/LimitBelow", says: "the event when a receive has been taken",
	},
}

func sglLength(sgl []ib.SGE) (n uint32) {
	for _, s := range sgl {
		n += s.Length
	}
	return n
}

// qpByNumber returns the queue pair with a number, or nil.
func (d *wrongDriver) qpByNumber(num uint32) *wrongQP {
	for _, q := range cloneList(d, &d.qps) {
		if q.obj.Num() == num {
			return q
		}
	}
	return nil
}

// peerOf returns the peer of q, or nil.
func (d *wrongDriver) peerOf(q *wrongQP) *wrongQP { return d.qpByNumber(q.dest) }
