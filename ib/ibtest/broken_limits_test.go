package ibtest

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
)

// wrongDriverHooks change attributes that a wrongDriver reports, and attributes that a consumer sets.
type wrongDriverHooks struct {
	limits    func(a *ib.DeviceAttr)         // changes the result of QueryDevice
	port      func(a *ib.PortAttr)           // changes the result of QueryPort
	queried   func(q *wrongQP, a *ib.QPAttr) // changes the result of Query
	createAH  func(a *ib.AHAttr)             // changes the argument of the inner driver
	attach    func(q *wrongQP, g ib.GID) error
	detach    func(q *wrongQP, g ib.GID) error
	createSRQ func(a *ib.SRQAttr) error
	modifySRQ func(s *wrongSRQ, a *ib.SRQAttr, m ib.SRQAttrMask) error
}

func (d *wrongDriver) QueryPort(port int) (ib.PortAttr, error) {
	a, err := d.Device.QueryPort(port)
	if err == nil && d.port != nil {
		d.port(&a)
	}
	return a, err
}

func (q *wrongQP) AttachMcast(g ib.GID, lid uint16) error {
	if q.d.attach != nil {
		return q.d.attach(q, g)
	}
	return q.QP.AttachMcast(g, lid)
}

func (q *wrongQP) DetachMcast(g ib.GID, lid uint16) error {
	if q.d.detach != nil {
		return q.d.detach(q, g)
	}
	return q.QP.DetachMcast(g, lid)
}

func (s *wrongSRQ) Modify(a *ib.SRQAttr, m ib.SRQAttrMask, u *ib.Udata) error {
	if s.d.modifySRQ != nil {
		return s.d.modifySRQ(s, a, m)
	}
	return s.SRQ.Modify(a, m, u)
}

func (q *wrongQP) Query(mask ib.QPAttrMask) (ib.QPAttr, error) {
	a, err := q.QP.Query(mask)
	if err == nil && q.d.queried != nil {
		q.d.queried(q, &a)
	}
	return a, err
}

// attributeDefects have faults in the attributes of queue pairs.
var attributeDefects = []driverDefect{
	{
		defect: "swaps the two numbers of READs and atomics",
		break_: func(d *wrongDriver) {
			d.queried = func(_ *wrongQP, a *ib.QPAttr) {
				a.MaxRdAtomic, a.MaxDestRdAtomic = a.MaxDestRdAtomic, a.MaxRdAtomic
			}
		},
		by: "QueuePair/Attributes", says: "number of outstanding READs and atomics",
	},
	{
		defect: "reports the DSCP of a connection as its traffic class",
		break_: func(d *wrongDriver) {
			d.queried = func(_ *wrongQP, a *ib.QPAttr) { a.AH.GRH.TrafficClass >>= 2 }
		},
		by: "QueuePair/Attributes", says: "address",
	},
	{
		defect: "sets the RNR timer even if Modify does not name it",
		break_: func(d *wrongDriver) {
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				err := q.QP.Modify(a, m, nil)
				if err == nil && q.QP.State() == ib.QPRTS {
					q.QP.Modify(a, ib.QPAttrMinRNRTimer, nil)
				}
				return err
			}
		},
		by: "QueuePair/Attributes", says: "RNR timer",
	},
	{
		defect: "raises the event for a drained send queue at every transition to SQD",
		break_: func(d *wrongDriver) {
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				asked := *a
				if m&ib.QPAttrState != 0 && a.State == ib.QPSQD && q.QP.State() == ib.QPRTS {
					asked.EnSQDAsyncNotify = true
					m |= ib.QPAttrEnSQDAsyncNotify
				}
				return q.QP.Modify(&asked, m, nil)
			}
		},
		by: "SQ/DrainedEvent", says: "events that the send queue is drained, want 0",
	},
	{
		defect: "raises the event for a drained send queue with a message in flight",
		break_: func(d *wrongDriver) {
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				quiet, early := *a, m&ib.QPAttrEnSQDAsyncNotify != 0 && a.EnSQDAsyncNotify
				quiet.EnSQDAsyncNotify = false
				err := q.QP.Modify(&quiet, m, nil)
				if err == nil && early {
					q.obj.Raise(ib.EventSQDrained)
				}
				return err
			}
		},
		by: "SQ/DrainedEvent", says: "while Query reports that it is not",
	},
	{
		defect: "limits the number of senders that wait for a receive, and fails the others",
		break_: func(d *wrongDriver) {
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				given := *a
				if m&ib.QPAttrRNRRetry != 0 && len(cloneList(d, &d.qps)) > 8 {
					given.RNRRetry = 0
				}
				return q.QP.Modify(&given, m, nil)
			}
		},
		by: "Errors/ReceiverNotReady", says: "without a receive",
	},
}

// limitDefects report wrong limits, or create objects with wrong capacities.
var limitDefects = []driverDefect{
	{
		defect: "reports one completion more than its queues can hold",
		break_: func(d *wrongDriver) { d.limits = func(a *ib.DeviceAttr) { a.MaxCQE++ } },
		by:     "Limits/CompletionQueue", says: "completion queue at the limit, MaxCQE",
	},
	{
		defect: "creates queue pairs with more gather elements than its reported limit",
		break_: func(d *wrongDriver) { d.limits = func(a *ib.DeviceAttr) { a.MaxSendSGE-- } },
		by:     "Limits/QueuePair", says: "beyond the limit, MaxSendSGE 15, was made",
	},
	{
		defect: "reports more elements for shared receive queues than possible with its number of work requests",
		break_: func(d *wrongDriver) { d.limits = func(a *ib.DeviceAttr) { a.MaxSRQSGE *= 2 } },
		by:     "Limits/SharedReceiveQueue", says: "shared receive queue at the limit, MaxSRQSGE 32",
	},
	{
		defect: "reports more outstanding READs than possible per queue pair",
		break_: func(d *wrongDriver) { d.limits = func(a *ib.DeviceAttr) { a.MaxQPInitRdAtom = 255 } },
		by:     "Limits/ReadsAndAtomics", says: "modify at the limit, MaxQPInitRdAtom 255",
	},
	{
		defect: "includes its internal queue pairs in the reported limit",
		break_: func(d *wrongDriver) {
			d.limits = func(a *ib.DeviceAttr) { a.MaxQP = 200 }
			d.createQP = func(ib.QPHandle, *ib.DriverQPInit) error {
				if len(cloneList(d, &d.qps)) >= 198 {
					return syscall.ENOMEM
				}
				return nil
			}
		},
		by: "Limits/Objects", says: "object 199 of MaxQP 200",
	},
	{
		defect: "accepts more inline data than granted",
		break_: func(d *wrongDriver) {
			const more = 64
			d.createQP = func(_ ib.QPHandle, init *ib.DriverQPInit) error { init.Cap.MaxInlineData += more; return nil }
			d.afterCreateQP = func(_ ib.QPHandle, init *ib.DriverQPInit) { init.Cap.MaxInlineData -= more }
			d.queried = func(_ *wrongQP, a *ib.QPAttr) { a.Cap.MaxInlineData -= more }
		},
		by: "Limits/Inline", says: "bytes inline were taken",
	},
	{
		defect: "accepts receives with too many elements in a shared queue, and drops the excess elements",
		break_: func(d *wrongDriver) {
			d.srqPost = func(s *wrongSRQ, wrs []ib.RecvWR) (int, error) {
				a, _ := s.SRQ.Query()
				wrs = slices.Clone(wrs)
				for i, wr := range wrs {
					wrs[i].SGList = wr.SGList[:min(len(wr.SGList), int(a.MaxSGE))]
				}
				return s.SRQ.PostRecv(wrs)
			}
		},
		by: "Limits/Elements", says: "was taken by a shared queue",
	},
	{
		defect: "grants one send work request more than its queue can hold",
		break_: func(d *wrongDriver) {
			d.afterCreateQP = func(_ ib.QPHandle, init *ib.DriverQPInit) { init.Cap.MaxSendWR++ }
			d.queried = func(_ *wrongQP, a *ib.QPAttr) { a.Cap.MaxSendWR++ }
		},
		by: "Limits/SendQueue", says: "work requests taken, room for",
	},
	{
		defect: "registers longer regions than its reported limit",
		break_: func(d *wrongDriver) { d.limits = func(a *ib.DeviceAttr) { a.MaxMRSize = 1 << 31 } },
		by:     "Limits/MemoryRegion", says: "was registered, MaxMRSize is",
	},
	{
		defect: "sends longer messages than the limit of its port",
		break_: func(d *wrongDriver) { d.port = func(a *ib.PortAttr) { a.MaxMsgSize = 1 << 20 } },
		by:     "Limits/MessageSize", says: "opcode 2 of 1048577 bytes on a RC queue pair",
	},
	{
		defect: "rejects a message of the maximum length",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if len(wrs) > 0 && len(wrs[0].SGList) > 0 && wrs[0].SGList[0].Length == 1<<30 {
					return 0, syscall.EINVAL
				}
				return q.QP.PostSend(wrs)
			}
		},
		by: "Limits/MessageSize", says: "post opcode",
	},
	{
		defect: "loses every 65536th request for notification of a queue",
		break_: func(d *wrongDriver) {
			var counts sync.Map
			d.reqNotify = func(c *wrongCQ, f ib.NotifyFlags) (bool, error) {
				n, _ := counts.LoadOrStore(c, new(atomic.Uint32))
				if n.(*atomic.Uint32).Add(1)&0xffff == 0 {
					return false, nil
				}
				return c.CQ.ReqNotify(f)
			}
		},
		by: "Wrap/Queues", says: "the call of the handler of queue",
	},
	{
		defect: "refuses to resize a queue to exactly the number of completions in it",
		break_: func(d *wrongDriver) {
			d.resize = func(c *wrongCQ, entries int) error {
				d.mu.Lock()
				defer d.mu.Unlock()
				if c.stashAll(); len(c.stash) >= entries {
					return syscall.EINVAL
				}
				return c.CQ.Resize(entries, nil)
			}
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) { return d.pollStashed(c, wc) }
		},
		by: "CQ/Resize", says: "resize to what is waiting",
	},
	{
		defect: "reports a port that does not exist",
		break_: func(d *wrongDriver) { d.limits = func(a *ib.DeviceAttr) { a.PhysPorts++ } },
		by:     "Limits/Ports", says: "query port 2 of 2",
	},
	{
		defect: "loses the completions that wrap around the ring during a resize",
		break_: func(d *wrongDriver) {
			d.resize = func(c *wrongCQ, entries int) error {
				d.mu.Lock()
				defer d.mu.Unlock()
				if c.stashAll(); len(c.stash) > entries {
					return syscall.EINVAL
				}
				c.stash = c.stash[:min(len(c.stash), c.entries-int(c.n.Load())%c.entries)]
				c.entries = entries
				c.n.Store(0)
				return c.CQ.Resize(entries, nil)
			}
			d.poll = func(c *wrongCQ, wc []ib.WC) (n int, err error) {
				n, err = d.pollStashed(c, wc)
				c.n.Add(int32(n))
				return n, err
			}
		},
		by: "CQ/ResizeKeepsOrder", says: "completion",
	},
	{
		defect: "disarms the limit of a shared receive queue that is resized",
		break_: func(d *wrongDriver) {
			d.modifySRQ = func(s *wrongSRQ, a *ib.SRQAttr, m ib.SRQAttrMask) error {
				err := s.SRQ.Modify(a, m, nil)
				if err == nil && m == ib.SRQAttrMaxWR {
					s.SRQ.Modify(&ib.SRQAttr{}, ib.SRQAttrLimit, nil)
				}
				return err
			}
		},
		by: "SRQ/Resize", says: "after a resize Query reports",
	},
}

// datagramDefects have faults in datagrams, and in windows of a destroyed queue pair.
var datagramDefects = []driverDefect{
	{
		defect: "sends datagrams without the traffic class of the address handle",
		break_: func(d *wrongDriver) { d.createAH = func(a *ib.AHAttr) { a.GRH.TrafficClass = 0 } },
		by:     "Data/DatagramRoute", says: "traffic class",
	},
	{
		defect: "sends the Q_Key of the work request in place of the controlled Q_Key of the queue pair",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				wrs = slices.Clone(wrs)
				for i := range wrs {
					wrs[i].RemoteQKey &^= 1 << 31
				}
				return q.QP.PostSend(wrs)
			}
		},
		by: "Data/DatagramControlledQKey", says: "arrived: false, want true",
	},
	{
		defect: "delivers only to the last attached member of a group",
		break_: func(d *wrongDriver) {
			var mu sync.Mutex
			last, deaf := map[ib.GID]*wrongQP{}, map[*wrongQP]int{}
			d.attach = func(q *wrongQP, g ib.GID) error {
				mu.Lock()
				defer mu.Unlock()
				if err := q.QP.AttachMcast(g, 0); err != nil {
					return err
				}
				if p := last[g]; p != nil {
					p.QP.DetachMcast(g, 0)
					deaf[p]++
				}
				last[g] = q
				return nil
			}
			d.detach = func(q *wrongQP, g ib.GID) error {
				mu.Lock()
				defer mu.Unlock()
				if last[g] != q && deaf[q] > 0 {
					deaf[q]--
					return nil
				}
				delete(last, g)
				return q.QP.DetachMcast(g, 0)
			}
		},
		by: "Mcast/Members", says: "the datagram for receiver 0 of the group",
	},
	{
		defect: "leaves windows bound after the destruction of their queue pair",
		break_: func(d *wrongDriver) {
			var bound sync.Map // keys: *wrongQP
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if b := wrs[0].Bind; b != nil && b.MW != nil && b.MW.Type() == ib.MWType2 {
					bound.Store(q, true)
				}
				return q.QP.PostSend(wrs)
			}
			d.destroyQP = func(q *wrongQP) error {
				if _, ok := bound.Load(q); ok {
					return q.QP.Modify(&ib.QPAttr{State: ib.QPReset}, ib.QPAttrState, nil)
				}
				return q.QP.Destroy()
			}
		},
		by: "MW/QueuePairDestroyed", says: "deregister the region of a window, whose queue pair was destroyed in RTS",
	},
}

// stashAll moves the completions of the queue to the stash. The caller holds the driver's lock.
func (c *wrongCQ) stashAll() {
	all := make([]ib.WC, 1<<10)
	n, _ := c.CQ.Poll(all)
	c.stash = append(c.stash, all[:n]...)
}

// pollStashed polls the stash first.
func (d *wrongDriver) pollStashed(c *wrongCQ, wc []ib.WC) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := copy(wc, c.stash); n > 0 {
		c.stash = c.stash[n:]
		return n, nil
	}
	return c.CQ.Poll(wc)
}
