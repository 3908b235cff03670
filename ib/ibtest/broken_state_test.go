package ibtest

import (
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
)

// yieldRepeatedly yields to other threads, to widen a race window.
func yieldRepeatedly() {
	for range 300 {
		runtime.Gosched()
	}
}

// spinBriefly delays without yielding, for less than the limit for spinning.
func (d *wrongDriver) spinBriefly() {
	for began := time.Now(); time.Since(began) < 100*time.Microsecond; {
	}
}

// moveToErr moves queue pairs to ERR.
func moveToErr(qps []*wrongQP) {
	for _, q := range qps {
		q.QP.Modify(&ib.QPAttr{State: ib.QPErr}, ib.QPAttrState, nil)
	}
}

// stopNotifications stops the notifications of a queue.
func (c *wrongCQ) stopNotifications() { c.CQ.Moderate(1<<30, 0) }

// flushDefects mishandle outstanding requests at the end of a queue pair, a device or a context.
var flushDefects = []driverDefect{
	{
		defect: "flushes in EnterError without notifying armed queues",
		break_: func(d *wrongDriver) {
			d.enterError = func() {
				for _, c := range cloneList(d, &d.cqs) {
					c.stopNotifications()
				}
				d.Device.EnterError()
			}
		},
		by: "Callback/ArmedFlushOnError", says: "a call of the handler of an armed queue for the flush",
	},
	{
		defect: "flushes only the queue pairs in RTS in EnterError",
		break_: func(d *wrongDriver) {
			d.enterError = func() {
				moveToErr(slices.DeleteFunc(cloneList(d, &d.qps), func(q *wrongQP) bool { return q.QP.State() != ib.QPRTS }))
			}
		},
		by: "DeviceError/EveryState", says: "queue pair that was in INIT",
	},
	{
		defect: "flushes only the queue pairs in RTS in its disassociate hook",
		break_: func(d *wrongDriver) {
			d.disassociate = func(c ib.UserContext) {
				moveToErr(slices.DeleteFunc(cloneList(d, &d.qps), func(q *wrongQP) bool {
					return q.user != c ||
						q.QP.State() != ib.QPRTS
				}))
			}
		},
		by: "Disassociate/EveryState", says: "queue pair that was in INIT",
	},
	{
		defect: "loses a receive posted during the flush of the queue pair",
		break_: func(d *wrongDriver) {
			d.postRecv = func(q *wrongQP, wrs []ib.RecvWR) (int, error) {
				before := q.QP.State()
				d.spinBriefly()
				if before != ib.QPErr && q.QP.State() == ib.QPErr {
					return len(wrs), nil
				}
				return q.QP.PostRecv(wrs)
			}
		},
		by: "Errors/PostDuringModifyToErr", says: "while the queue pair went to ERR",
	},
	{
		defect: "loses a receive posted during the device's transition to the error state",
		break_: func(d *wrongDriver) {
			var failed atomic.Bool
			d.enterError = func() {
				failed.Store(true)
				d.Device.EnterError()
			}
			d.postRecv = func(q *wrongQP, wrs []ib.RecvWR) (int, error) {
				before := failed.Load()
				d.spinBriefly()
				if !before && failed.Load() {
					return len(wrs), nil
				}
				return q.QP.PostRecv(wrs)
			}
		},
		by: "DeviceError/PostDuringError", says: "while the device went into error",
	},
	{
		defect: "leaves a queue pair working that leaves RESET during the device's transition to the error state",
		break_: func(d *wrongDriver) {
			d.enterError = func() {
				moveToErr(slices.DeleteFunc(cloneList(d, &d.qps), func(q *wrongQP) bool { return q.QP.State() == ib.QPReset }))
			}
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				if q.QP.State() == ib.QPReset {
					yieldRepeatedly()
				}
				return q.QP.Modify(a, m, nil)
			}
		},
		by: "DeviceError/CreateDuringError", says: "made, or changed its state, while the device went into error",
	},
	{
		defect: "accepts a transition out of RESET that arrives after EnterError",
		break_: func(d *wrongDriver) {
			d.enterError = func() {
				moveToErr(slices.DeleteFunc(cloneList(d, &d.qps), func(q *wrongQP) bool { return q.QP.State() == ib.QPReset }))
			}
		},
		by: "DeviceError/LateCalls", says: "reached the driver after the device went into error",
	},
	{
		defect: "raises no event after a peer's request without access rights",
		break_: func(d *wrongDriver) {
			const mark = 1 << 62
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if len(wrs) != 1 || wrs[0].Opcode != ib.WRRDMAWrite || len(wrs[0].SGList) == 0 || wrs[0].SGList[0].Length == 0 ||
					slices.ContainsFunc(cloneList(d, &d.mrs), func(m *wrongMR) bool { return m.num == wrs[0].RKey }) {
					return q.QP.PostSend(wrs)
				}
				moveToErr(slices.DeleteFunc(cloneList(d, &d.qps), func(p *wrongQP) bool {
					return p.obj.Num() != q.dest &&
						p != q
				}))
				wr := wrs[0]
				wr.ID |= mark
				return q.QP.PostSend([]ib.SendWR{wr})
			}
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				n, err := c.CQ.Poll(wc)
				for i := range wc[:n] {
					if wc[i].ID&mark != 0 {
						wc[i].ID, wc[i].Status = wc[i].ID&^mark, ib.WCRemAccessErr
					}
				}
				return n, err
			}
		},
		by: "Errors/AsyncEvents", says: "an event of the responder's queue pair",
	},
	{
		defect: "dispatches an event after Unregister",
		opts: func(d func() *wrongDriver) []Option {
			return []Option{Unplug(func(core *ib.Core, dev *ib.DeviceHandle) error {
				err := core.Unregister(dev)
				dev.DispatchEvent(ib.EventPortErr, 1) // later the consumer may have removed its event function
				return err
			})}
		},
		says: "rule use-after-unregister",
	},
}

// cqDefects have faults in completion queues.
var cqDefects = []driverDefect{
	{
		defect: "disarms a queue during a resize",
		break_: func(d *wrongDriver) {
			d.resize = func(c *wrongCQ, entries int) error {
				err := c.CQ.Resize(entries, nil)
				c.stopNotifications()
				return err
			}
			d.reqNotify = func(c *wrongCQ, f ib.NotifyFlags) (bool, error) {
				c.CQ.Moderate(0, 0)
				return c.CQ.ReqNotify(f)
			}
		},
		by: "CQ/ResizeKeepsArmed", says: "a queue that was armed before Resize",
	},
	{
		defect: "loses completions that arrive during a resize",
		break_: func(d *wrongDriver) {
			drain := func(c *wrongCQ) (all []ib.WC) {
				var wc [16]ib.WC
				for {
					n, _ := c.CQ.Poll(wc[:])
					if n == 0 {
						return all
					}
					all = append(all, wc[:n]...)
				}
			}
			d.resize = func(c *wrongCQ, entries int) error {
				d.mu.Lock()
				defer d.mu.Unlock()
				c.stash = append(c.stash, drain(c)...)
				if len(c.stash) > entries {
					return syscall.EINVAL
				}
				yieldRepeatedly()
				drain(c)
				return c.CQ.Resize(entries, nil)
			}
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				d.mu.Lock()
				defer d.mu.Unlock()
				if n := copy(wc, c.stash); n > 0 {
					c.stash = c.stash[n:]
					return n, nil
				}
				return c.CQ.Poll(wc)
			}
		},
		by: "CQ/ResizeUnderTraffic", says: "is lost",
	},
	{
		defect: "drops completions of a full queue silently",
		break_: func(d *wrongDriver) {
			d.moreCQEs = 1000
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				d.mu.Lock()
				defer d.mu.Unlock()
				var all [1100]ib.WC
				n, err := c.CQ.Poll(all[:])
				c.stash = append(c.stash, all[:min(n, c.entries-len(c.stash))]...)
				n = copy(wc, c.stash)
				c.stash = c.stash[n:]
				return n, err
			}
		},
		by: "CQ/Overrun", says: "EventCQErr",
	},
	{
		defect: "does not report a solicited completion as missed",
		break_: func(d *wrongDriver) {
			d.reqNotify = func(c *wrongCQ, f ib.NotifyFlags) (bool, error) {
				if f&ib.NotifyNextComp == 0 {
					f &^= ib.NotifyReportMissed
				}
				return c.CQ.ReqNotify(f)
			}
		},
		by: "Callback/MissedSolicited", says: "was not reported as missed",
	},
	{
		defect: "ignores the solicited flag of RDMA WRITE with immediate data",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				wrs = slices.Clone(wrs)
				for i := range wrs {
					if wrs[i].Opcode == ib.WRRDMAWriteWithImm {
						wrs[i].Flags &^= ib.SendSolicited
					}
				}
				return q.QP.PostSend(wrs)
			}
		},
		by: "Callback/SolicitedOperations", says: "RDMA WRITE with immediate that is solicited",
	},
}

// grantTemporaryAccess moves the regions of a list to a domain and adds rights. undo reverts that.
func (d *wrongDriver) grantTemporaryAccess(q *wrongQP, sgl []ib.SGE, alien bool, more ib.AccessFlags) (undo func()) {
	var undos []func()
	for _, s := range sgl {
		m := d.regionAt(s.Addr)
		if m == nil || m.num != s.LKey {
			continue
		}
		pd := m.pd
		if alien {
			pd = q.pd
		}
		m.setAccess(pd, m.access|more)
		undos = append(undos, func() { m.setAccess(m.pd, m.access) })
	}
	return func() {
		for _, f := range undos {
			f()
		}
	}
}

// memoryDefects have faults in memory and its keys.
var memoryDefects = []driverDefect{
	{
		defect: "accepts local keys of another domain",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				defer d.grantTemporaryAccess(q, wrs[0].SGList, true, 0)()
				return q.QP.PostSend(wrs)
			}
		},
		by: "Data/LocalRights", says: "send from a region of another domain",
	},
	{
		defect: "receives into a region without the local right to write",
		break_: func(d *wrongDriver) {
			d.postRecv = func(q *wrongQP, wrs []ib.RecvWR) (int, error) {
				d.grantTemporaryAccess(q, wrs[0].SGList, false, ib.AccessLocalWrite)
				return q.QP.PostRecv(wrs)
			}
		},
		by: "Data/LocalRights", says: "receive into a region without the local right to write",
	},
	{
		defect: "reads into a region without the local right to write",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if wrs[0].Opcode == ib.WRRDMARead {
					defer d.grantTemporaryAccess(q, wrs[0].SGList, false, ib.AccessLocalWrite)()
				}
				return q.QP.PostSend(wrs)
			}
		},
		by: "Data/LocalRights", says: "read into a region without the local right to write",
	},
	{
		defect: "reuses the key of a deregistered region for the next one",
		break_: func(d *wrongDriver) {
			var free atomic.Pointer[wrongMR]
			d.regMR = func(mr ib.MRHandle, m *wrongMR) error {
				if old := free.Swap(nil); old != nil { // its key is the same
					old.region, old.pd, old.access = m.region, m.pd, m.access
					old.setAccess(m.pd, m.access)
					mr.SetKeys(old.num, old.num)
				}
				return nil
			}
			d.dereg = func(inner ib.DriverMR) error {
				for _, m := range cloneList(d, &d.dead) {
					if m.DriverMR == inner {
						fresh, _ := d.Device.AllocPD(nil)
						m.setAccess(fresh, 0)
						free.Store(m)
					}
				}
				return nil
			}
		},
		by: "Data/KeyReuse", says: "which was deregistered",
	},
	{
		defect: "writes to memory shortly after the destruction of the queue pair",
		break_: func(d *wrongDriver) {
			late := rememberReceives(d)
			d.destroyQP = func(q *wrongQP) error {
				err := q.QP.Destroy()
				if s := late.Swap(nil); s != nil {
					if m := d.regionAt(s.Addr); m != nil {
						time.AfterFunc(200*time.Microsecond, func() { m.region.WriteV([][]byte{make([]byte, s.Length)}, s.Addr) })
					}
				}
				return err
			}
		},
		by: "Data/NothingAfterDestroy", says: "memory was written",
	},
	{
		defect: "writes to the memory of a receive shortly after the queue pair went to RESET",
		break_: func(d *wrongDriver) {
			late := rememberReceives(d)
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				err := q.QP.Modify(a, m, nil)
				if s := late.Load(); s != nil && m&ib.QPAttrState != 0 && a.State == ib.QPReset {
					if m := d.regionAt(s.Addr); m != nil {
						time.AfterFunc(200*time.Microsecond, func() { m.region.WriteV([][]byte{make([]byte, s.Length)}, s.Addr) })
					}
				}
				return err
			}
		},
		by: "Data/NothingAfterDestroy", says: "memory was written when the queue pair was in RESET",
	},
	{
		defect: "sends the data of a request shortly after its queue pair went to RESET",
		break_: func(d *wrongDriver) {
			to := rememberReceives(d)
			var from atomic.Pointer[ib.SGE]
			var sender atomic.Pointer[wrongQP]
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if wrs[0].Opcode == ib.WRSend && len(wrs[0].SGList) > 0 {
					from.Store(&wrs[0].SGList[0])
					sender.Store(q)
				}
				return q.QP.PostSend(wrs)
			}
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				err := q.QP.Modify(a, m, nil)
				s, t := from.Load(), to.Load()
				if q == sender.Load() && t != nil && m&ib.QPAttrState != 0 && a.State == ib.QPReset {
					if source, target := d.regionAt(s.Addr), d.regionAt(t.Addr); source != nil && target != nil {
						time.AfterFunc(100*time.Microsecond, func() {
							b := make([]byte, min(s.Length, t.Length))
							if source.region.ReadV([][]byte{b}, s.Addr) == nil {
								target.region.WriteV([][]byte{b}, t.Addr)
							}
						})
					}
				}
				return err
			}
		},
		by: "Data/NothingAfterDestroy", says: "memory was read when the queue pair was in RESET",
	},
	{
		defect: "continues accesses through a key after the deregistration of its region",
		break_: func(d *wrongDriver) {
			var last atomic.Pointer[ib.SendWR]
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if wrs[0].Opcode == ib.WRRDMAWrite && len(wrs[0].SGList) > 0 {
					wr := wrs[0]
					last.Store(&wr)
				}
				return q.QP.PostSend(wrs)
			}
			d.dereg = func(inner ib.DriverMR) error {
				wr := last.Load()
				for _, m := range cloneList(d, &d.dead) {
					if m.DriverMR == inner && wr != nil && wr.RKey == m.num {
						time.AfterFunc(200*time.Microsecond, func() { m.region.WriteV([][]byte{make([]byte, 8)}, wr.RemoteAddr) })
					}
				}
				return inner.Dereg()
			}
		},
		by: "Data/DeregUnderTraffic", says: "memory was written",
	},
}

// rememberReceives makes the driver remember the memory of the latest receive.
func rememberReceives(d *wrongDriver) *atomic.Pointer[ib.SGE] {
	late := &atomic.Pointer[ib.SGE]{}
	d.postRecv = func(q *wrongQP, wrs []ib.RecvWR) (int, error) {
		if len(wrs[0].SGList) > 0 {
			late.Store(&wrs[0].SGList[0])
		}
		return q.QP.PostRecv(wrs)
	}
	return late
}
