package ibtest

import (
	"slices"
	"sync"
	"syscall"

	"verbena/driver/loopback"
	"verbena/ib"
)

// limitToSendAndReceive reduces the driver to SEND and receive. The postSend of a defect runs after that of
// limitToSendAndReceive.
func limitToSendAndReceive(d *wrongDriver) {
	d.sendOnly = true
	d.limits = func(a *ib.DeviceAttr) {
		a.AtomicCap = ib.AtomicNone
		a.DeviceCapFlags = 0
	}
	d.allocXRCD = func() (ib.DriverXRCD, error) { return nil, syscall.EOPNOTSUPP }
	next := d.postSend
	if next == nil {
		next = func(q *wrongQP, wrs []ib.SendWR) (int, error) { return q.QP.PostSend(wrs) }
	}
	d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
		for i, wr := range wrs {
			if wr.Opcode != ib.WRSend && wr.Opcode != ib.WRSendWithImm {
				n, err := next(q, wrs[:i])
				if err == nil {
					err = syscall.EOPNOTSUPP
				}
				return n, err
			}
		}
		return next(q, wrs)
	}
}

func (d *wrongDriver) AllocMW(mw ib.MWHandle, pd ib.DriverPD, kind ib.MWType, u *ib.Udata) (ib.DriverMW, error) {
	if d.sendOnly {
		return nil, syscall.EOPNOTSUPP
	}
	return d.Device.AllocMW(mw, pd, kind, u)
}

func (d *wrongDriver) AllocMR(mr ib.MRHandle, pd ib.DriverPD, maxPages int) (ib.DriverMR, error) {
	if d.sendOnly {
		return nil, syscall.EOPNOTSUPP
	}
	return d.Device.AllocMR(mr, pd, maxPages)
}

// currentPeer returns the queue pair that q sends to, or nil.
func (q *wrongQP) currentPeer() *wrongQP {
	for _, p := range cloneList(q.d, &q.d.qps) {
		if p.obj.Num() == q.dest {
			return p
		}
	}
	return nil
}

// sendDefects have faults that SEND and receive expose.
var sendDefects = []driverDefect{
	{
		defect: "has SEND only, and in poll releases its lock between copying completions and removing them",
		break_: func(d *wrongDriver) {
			limitToSendAndReceive(d)
			d.poll = func(c *wrongCQ, wc []ib.WC) (n int, err error) {
				d.withLock(func() {
					if missing := len(wc) - len(c.stash); missing > 0 {
						more := make([]ib.WC, missing)
						n, err = c.CQ.Poll(more)
						c.stash = append(c.stash, more[:n]...)
					}
					n = copy(wc, c.stash)
				})
				d.spinBriefly()
				d.withLock(func() { c.stash = c.stash[min(n, len(c.stash)):] })
				return n, err
			}
		},
		by: "Reentrant/ConcurrentPoll", says: "was seen twice",
	},
	{
		defect: "has SEND only, and continues to work with the device in error",
		break_: func(d *wrongDriver) {
			limitToSendAndReceive(d)
			d.enterError = func() {}
		},
		by: "DeviceError/NoNewWork", says: "want 1 with \"work request flushed\"",
	},
	{
		defect: "rejects a work request, and reports that it accepted none before it",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				n, err := q.QP.PostSend(wrs)
				if err != nil {
					n = 0
				}
				return n, err
			}
			limitToSendAndReceive(d)
		},
		by: "Errors/PostStopsAtError", says: "0 work requests taken, want 2",
	},
	{
		defect: "leaves the local key of a deregistered region valid",
		break_: func(d *wrongDriver) {
			d.dereg = func(m ib.DriverMR) error {
				for _, w := range cloneList(d, &d.dead) {
					if w.DriverMR == m {
						w.setAccess(w.pd, ib.AccessLocalWrite)
					}
				}
				return nil
			}
		},
		by: "Data/DeregisteredMemory", says: "receive to deregistered memory",
	},
	{
		defect: "keeps the caller's scatter lists until a message arrives",
		break_: func(d *wrongDriver) {
			type kept struct {
				q  *wrongQP
				wr ib.RecvWR
			}
			var mu sync.Mutex
			var receives []kept
			late := func() {
				mu.Lock()
				defer mu.Unlock()
				for _, k := range receives {
					k.q.QP.PostRecv([]ib.RecvWR{k.wr})
				}
				receives = nil
			}
			d.postRecv = func(q *wrongQP, wrs []ib.RecvWR) (int, error) {
				if p := q.currentPeer(); p == nil || p.QP.State() != ib.QPRTS || q.QP.State() != ib.QPRTS {
					return q.QP.PostRecv(wrs)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, wr := range wrs {
					receives = append(receives, kept{q, wr})
				}
				return len(wrs), nil
			}
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) { late(); return q.QP.PostSend(wrs) }
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) { late(); return c.CQ.Poll(wc) }
		},
		by: "Data/NothingKept", says: "completion of work request",
	},
	{
		defect: "fails at once if the peer is in INIT",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				n, err := q.QP.PostSend(wrs)
				if p := q.currentPeer(); err == nil && p != nil && p.QP.State() == ib.QPInit {
					q.QP.Modify(&ib.QPAttr{State: ib.QPErr}, ib.QPAttrState, nil)
				}
				return n, err
			}
		},
		by: "Errors/PeerInInit", says: "to a queue pair in INIT: completed with",
	},
	{
		defect: "completes requests successfully without an answer of the peer",
		break_: func(d *wrongDriver) {
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				n, err := c.CQ.Poll(wc)
				for i := range wc[:n] {
					if wc[i].Status == ib.WCRetryExcErr {
						wc[i].Status = ib.WCSuccess
					}
				}
				return n, err
			}
		},
		by: "Errors/PeerGone", says: "to a peer that is in RESET",
	},
	{
		defect: "delivers a message to the queue pair with the number, even if it is not connected with the sender",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if p := q.currentPeer(); p != nil && p.QP.State() == ib.QPRTS && p.dest != q.obj.Num() &&
					wrs[0].Opcode == ib.WRSend {
					if owner := p.currentPeer(); owner != nil && owner.dest == p.obj.Num() {
						silent := slices.Clone(wrs[:1])
						silent[0].Flags = 0
						owner.QP.PostSend(silent)
					}
				}
				return q.QP.PostSend(wrs)
			}
		},
		by: "Errors/PeerGone", says: "the receive of the other's message has completed",
	},
	{
		defect: "does not complete waiting senders after the destruction of their peer",
		break_: func(d *wrongDriver) {
			var waits sync.Map // by number
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if p := q.currentPeer(); p != nil && p.QP.State() == ib.QPRTS && p.dest == q.obj.Num() {
					waits.Store(q.obj.Num(), true)
				}
				return q.QP.PostSend(wrs)
			}
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				n, err := c.CQ.Poll(wc)
				kept := slices.DeleteFunc(wc[:n], func(w ib.WC) bool {
					_, waited := waits.Load(w.QPNum)
					return waited && w.Status == ib.WCRetryExcErr
				})
				return len(kept), err
			}
		},
		by: "Errors/PeerGoesWhileWaiting", says: "a sender that waits for a receive of a peer that goes to ERR",
	},
	{
		defect: "does not go to ERR at a lost receive completion if its sends have a separate completion queue",
		break_: func(d *wrongDriver) {
			var shadows sync.Map // *loopback.CQ with entries for all completions, by *wrongCQ that is only for receives
			drain := func(c *wrongCQ, shadow *loopback.CQ) {
				more := make([]ib.WC, 1000)
				n, _ := shadow.Poll(more)
				if c.stash = append(c.stash, more[:n]...); len(c.stash) > c.entries {
					c.stash = c.stash[:c.entries]
					c.obj.Raise(ib.EventCQErr)
				}
			}
			d.createQP = func(_ ib.QPHandle, init *ib.DriverQPInit) error {
				send, _ := init.SendCQ.(*wrongCQ)
				recv, _ := init.RecvCQ.(*wrongCQ)
				if send == nil || recv == nil || send == recv || init.Cap.MaxRecvWR <= uint32(recv.entries) {
					return nil
				}
				shadow, err := d.Device.CreateCQ(recv.obj, ib.CQAttr{Entries: 1000}, nil)
				if err == nil {
					shadows.Store(recv, shadow)
					init.RecvCQ = shadow
				}
				return err
			}
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				n, err := q.QP.PostSend(wrs)
				d.withLock(func() {
					shadows.Range(func(c, shadow any) bool { drain(c.(*wrongCQ), shadow.(*loopback.CQ)); return true })
				})
				return n, err
			}
			d.resize = func(c *wrongCQ, entries int) (err error) {
				if shadow, ok := shadows.Load(c); ok {
					d.withLock(func() {
						if drain(c, shadow.(*loopback.CQ)); len(c.stash) > entries {
							err = syscall.EINVAL
							return
						}
						c.entries = entries
					})
				}
				if err != nil {
					return err
				}
				return c.CQ.Resize(entries, nil)
			}
			d.poll = func(c *wrongCQ, wc []ib.WC) (n int, err error) {
				shadow, ok := shadows.Load(c)
				if !ok {
					return c.CQ.Poll(wc)
				}
				d.withLock(func() {
					drain(c, shadow.(*loopback.CQ))
					n = copy(wc, c.stash)
					c.stash = c.stash[n:]
				})
				return n, nil
			}
		},
		by: "CQ/OverrunOneQueue", says: "ERR of the queue pair that has lost the completion of its RC receive",
	},
	{
		defect: "flushes later sends before the send in progress, if a queue pair is its own peer",
		break_: func(d *wrongDriver) {
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				if len(wc) > 1 {
					return c.CQ.Poll(wc)
				}
				d.mu.Lock()
				defer d.mu.Unlock()
				if len(c.stash) > 0 {
					n := copy(wc, c.stash)
					c.stash = c.stash[n:]
					return n, nil
				}
				var next [1]ib.WC
				n, err := c.CQ.Poll(wc)
				if n == 1 && wc[0].Status == ib.WCWRFlushErr && wc[0].Opcode == ib.WCSend && isConnectedToItself(d, wc[0].QPNum) {
					if k, _ := c.CQ.Poll(next[:]); k == 1 {
						c.stash = append(c.stash, wc[0])
						wc[0] = next[0]
					}
				}
				return n, err
			}
		},
		by: "Reentrant/OwnPeer", says: "completion of work request",
	},
}

// isConnectedToItself reports whether a queue pair is connected to itself.
func isConnectedToItself(d *wrongDriver, num uint32) bool {
	return slices.ContainsFunc(cloneList(d, &d.qps), func(q *wrongQP) bool {
		return q.obj.Num() == num &&
			q.dest == num
	})
}
