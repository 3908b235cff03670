package wrong

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/weak"
)

// Consumer is a mistake of a consumer that a protocol of Linux above the verbs has also made.
type Consumer struct {
	Name    string
	Commit  string // a commit of Linux that fixes such a mistake, or "" if unknown
	Rule    string // the rule of the contract that the consumer violates
	Run     func(s *CheckedSite) error
	Weak    bool // whether the mistake has an effect only on the least convenient device
	Escapes bool // whether neither checked mode nor an error reports the mistake
}

// CheckedSite is the environment of a wrong consumer: a checked core with two devices.
type CheckedSite struct {
	Core    ib.Core
	Handles [2]*ib.DeviceHandle
}

// NewSite registers the devices. report receives the violations. With leastConvenient, NewSite registers the least
// convenient devices.
func NewSite(report func(check.Violation), leastConvenient bool) (*CheckedSite, error) {
	s := &CheckedSite{}
	check.On(&s.Core, check.Config{Report: report, ClientTimeout: 3 * time.Second})
	for i := range s.Handles {
		s.Handles[i] = loopback.New(fmt.Sprintf("loop%d", i), nil).Handle()
		if leastConvenient {
			s.Handles[i].Wrap(func(d ib.Driver) ib.Driver { return weak.New(d, weak.Config{Seed: 1}) })
		}
		if err := s.Core.Register(s.Handles[i]); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Close unregisters the devices.
func (s *CheckedSite) Close() (err error) {
	for _, h := range s.Handles {
		err = errors.Join(err, s.Core.Unregister(h))
	}
	return err
}

// qpPair is a pair of connected queue pairs. The first queue pair belongs to the consumer, and the second queue pair
// belongs to the peer.
type qpPair struct {
	pd   *ib.PD
	cq   *ib.CQ // CQ of both queue pairs
	srq  *ib.SRQ
	mr   *ib.MR
	a, b *ib.QP
}

// qpPairOptions holds the options of a link.
type qpPairOptions struct {
	entries int // number of entries of the CQ
	handler func(*ib.CQ)
	event   func(*ib.QP, ib.EventType)
	cqEvent func(*ib.CQ, ib.EventType)
	srq     bool
	one     bool // whether the link is one queue pair, connected to itself
}

func openQPPair(d *ib.Device, o qpPairOptions) (l *qpPair, err error) {
	l = &qpPair{}
	if l.pd, err = d.AllocPD(); err != nil {
		return nil, err
	}
	if o.entries == 0 {
		o.entries = 64
	}
	if l.cq, err = d.CreateCQ(ib.CQInit{Entries: o.entries, Handler: o.handler, Event: o.cqEvent}); err != nil {
		return nil, err
	}
	if l.mr, err = l.pd.RegBytes(make([]byte, 4096), ib.AccessLocalWrite|ib.AccessRemoteWrite); err != nil {
		return nil, err
	}
	if o.srq {
		if l.srq, err = l.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 8, MaxSGE: 1}}); err != nil {
			return nil, err
		}
	}
	create := func() (*ib.QP, error) {
		return l.pd.CreateQP(ib.QPInitAttr{SendCQ: l.cq, RecvCQ: l.cq, Type: ib.QPTypeRC, SRQ: l.srq, Event: o.event,
			Cap: ib.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}})
	}
	if l.a, err = create(); err != nil {
		return nil, err
	}
	if l.b = l.a; !o.one {
		if l.b, err = create(); err != nil {
			return nil, err
		}
	}
	gid, err := d.QueryGID(1, 0)
	if err != nil {
		return nil, err
	}
	to := func(q, peer *ib.QP) error {
		for _, step := range []struct {
			state ib.QPState
			mask  ib.QPAttrMask
		}{
			{ib.QPInit, ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrAccessFlags},
			{ib.QPRTR,
				ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN | ib.QPAttrMaxDestRdAtomic |
					ib.QPAttrMinRNRTimer},
			{ib.QPRTS, ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrSQPSN | ib.QPAttrMaxRdAtomic},
		} {
			a := ib.QPAttr{State: step.state, Port: 1, AccessFlags: ib.AccessRemoteWrite, PathMTU: ib.MTU1024,
				DestQPN: peer.Num(),
				AH: ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: gid.GID,
					HopLimit: 1}}, Timeout: 14, RetryCnt: 7, RNRRetry: 7}
			if err := q.Modify(a, ib.QPAttrState|step.mask); err != nil {
				return err
			}
		}
		return nil
	}
	if err := to(l.a, l.b); err != nil || o.one {
		return l, err
	}
	return l, to(l.b, l.a)
}

func (l *qpPair) sge() []ib.SGE { return []ib.SGE{{Addr: l.mr.Addr(), Length: 64, LKey: l.mr.LKey()}} }

func (l *qpPair) postRecv(n int) error {
	for i := range n {
		wr := ib.RecvWR{ID: uint64(i), SGList: l.sge()}
		var err error
		if l.srq != nil {
			_, err = l.srq.PostRecv(wr)
		} else {
			_, err = l.b.PostRecv(wr)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *qpPair) postSend(n int, flags ib.SendFlags) error {
	for range n {
		if _, err := l.a.PostSend(ib.SendWR{ID: 100, Opcode: ib.WRSend, Flags: flags, SGList: l.sge()}); err != nil {
			return err
		}
	}
	return nil
}

func (l *qpPair) close() (err error) {
	err = l.a.Destroy()
	if l.b != l.a {
		err = errors.Join(err, l.b.Destroy())
	}
	if l.srq != nil {
		err = errors.Join(err, l.srq.Destroy())
	}
	return errors.Join(err, l.cq.Destroy(), l.mr.Dereg(), l.pd.Dealloc())
}

// drainCQ polls until the CQ is empty.
func drainCQ(cq *ib.CQ) {
	wc := make([]ib.WC, 16)
	for n := 1; n > 0; {
		n, _ = cq.Poll(wc)
	}
}

// exchangeMessages arms the CQ, and exchanges n messages.
func (l *qpPair) exchangeMessages(n int) error {
	if _, err := l.cq.ReqNotify(ib.NotifyNextComp); err != nil {
		return err
	}
	return errors.Join(l.postRecv(n), l.postSend(n, ib.SendSignaled))
}

const handlerDelay = 50 * time.Millisecond // delay after which handlers have run

// Consumers lists the mistakes, each with the consumer that makes it.
var Consumers = slices.Concat(originalConsumers, blindConsumers, initiallyMissedConsumers, weakConsumers)

var originalConsumers = []Consumer{
	{
		// The completion handler calls a function that allocates memory and may sleep.
		Name:   "sleep-in-handler",
		Commit: `5c20311d76cb ("IB/mad: Don't call to function that might sleep while in atomic context")`,
		Rule:   "A callback does not sleep, and calls only functions of the first group",
		Run: func(s *CheckedSite) error {
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{handler: func(cq *ib.CQ) {
				drainCQ(cq)
				if pd, err := cq.Device().AllocPD(); err == nil {
					pd.Dealloc()
				}
			}})
			if err != nil {
				return nil
			}
			l.exchangeMessages(1)
			time.Sleep(handlerDelay)
			l.close()
			return nil
		},
	},
	{
		// The handler acquires a lock that another thread holds while it sleeps.
		Name:   "handler-lock-held-by-sleeper",
		Commit: `65936bf25f90 ("RDMA/ipoib: Fix ABBA deadlock with ipoib_reap_ah()")`,
		Rule:   "A callback does not sleep",
		Run: func(s *CheckedSite) error {
			var mu sync.Mutex
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{handler: func(cq *ib.CQ) {
				mu.Lock()
				defer mu.Unlock()
				drainCQ(cq)
			}})
			if err != nil {
				return nil
			}
			mu.Lock()
			l.exchangeMessages(1)
			time.Sleep(500 * time.Millisecond) // stands for a wait for a timer or a reply
			mu.Unlock()
			time.Sleep(handlerDelay)
			l.close()
			return nil
		},
	},
	{
		// The handler polls once and then arms the CQ. The handler misses a completion that arrives between the two
		// calls.
		Name: "arm-after-poll",
		Rule: "A consumer that has armed a CQ polls once more, or asks by NotifyReportMissed",
		Run: func(s *CheckedSite) error {
			var once sync.Once
			var l *qpPair
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{handler: func(cq *ib.CQ) {
				drainCQ(cq)
				once.Do(func() { l.exchangeOneMessage() })
				cq.ReqNotify(ib.NotifyNextComp)
			}})
			if err != nil {
				return nil
			}
			l.exchangeMessages(1)
			time.Sleep(5 * time.Second) // waits for a call that never comes
			l.close()
			return nil
		},
	},
	{
		// One return path of the handler does not arm the CQ again, so the connection stalls.
		Name:   "not-rearmed",
		Commit: `d455ab64096b ("RDS/IB: always process recv completions")`,
		Rule:   "ReqNotify arms the CQ for one call",
		Run: func(s *CheckedSite) error {
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{handler: drainCQ})
			if err != nil {
				return nil
			}
			l.exchangeMessages(1)
			time.Sleep(handlerDelay)
			l.postRecv(2)
			l.postSend(2, ib.SendSignaled)
			time.Sleep(5 * time.Second) // waits for a completion that never comes
			l.close()
			return nil
		},
	},
	{
		// The consumer destroys the queue pair and frees its requests while the CQ contains flush completions that
		// refer to the requests.
		Name:   "destroy-before-flush",
		Commit: `7dad6b2e440d ("IB/srp: Fix a race condition triggered by destroying a queue pair")`,
		Rule:   "flush not awaited: completions of a queue pair name requests that its consumer has freed",
		Run: func(s *CheckedSite) error {
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{handler: func(*ib.CQ) {}})
			if err != nil {
				return nil
			}
			l.postRecv(4)
			l.b.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)
			err = l.b.Destroy()
			wc := make([]ib.WC, 8)
			l.cq.Poll(wc) // the IDs would be pointers to freed requests
			l.b = l.a
			l.close()
			return err
		},
	},
	{
		// The consumer deregisters a region while a send from the region is pending.
		Name:   "dereg-in-flight",
		Commit: `4af7f7ff92a4 ("nvme-rdma: don't complete requests before a send work request has completed")`,
		Rule:   "flush not awaited before Dereg",
		Run: func(s *CheckedSite) error {
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{})
			if err != nil {
				return nil
			}
			l.postSend(1, ib.SendSignaled) // the send stays pending, because the peer has posted no receive
			if err := l.mr.Dereg(); err != nil {
				return err
			}
			drainCQ(l.cq)
			l.a.Destroy()
			l.b.Destroy()
			l.cq.Destroy()
			l.pd.Dealloc()
			return nil
		},
	},
	{
		// A thread that has waited for space in the send queue posts after the connection was destroyed.
		Name:   "post-after-destroy",
		Commit: `830bb59b6ece ("SVCRDMA: Add check for XPT_CLOSE in svc_rdma_send")`,
		Rule:   "Nobody uses an object that is gone",
		Run: func(s *CheckedSite) error {
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{})
			if err != nil {
				return nil
			}
			old := *l
			if err := l.close(); err != nil {
				return nil
			}
			return old.postSend(1, ib.SendSignaled)
		},
	},
	{
		// The error path of a function destroys the queue pair, and the error path of its caller destroys the queue
		// pair again.
		Name:   "double-destroy",
		Commit: `unconfirmed: "nvme-rdma: fix double freeing of async event data", 2018`,
		Rule:   "Nobody uses an object that is gone",
		Run: func(s *CheckedSite) error {
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{})
			if err != nil {
				return nil
			}
			l.b.Destroy()
			return errors.Join(l.b.Destroy(), l.a.Destroy(), l.cq.Destroy(), l.mr.Dereg(), l.pd.Dealloc())
		},
	},
	{
		// The consumer destroys the CQ before the queue pairs that use it.
		Name: "wrong-order",
		Rule: "What something refers to cannot be destroyed (EBUSY)",
		Run: func(s *CheckedSite) error {
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{})
			if err != nil {
				return nil
			}
			return errors.Join(l.cq.Destroy(), l.a.Destroy(), l.b.Destroy(), l.mr.Dereg(), l.pd.Dealloc(), l.cq.Destroy())
		},
	},
	{
		// Remove frees the state of the client, but its event function stays registered.
		Name: "event-handler-left",
		Rule: "When Remove returns the client has freed everything; the end of an event registration",
		Run: func(s *CheckedSite) error {
			client := &ib.Client{Name: "wrong",
				Add: func(d *ib.Device) (any, error) {
					d.OnEvent(func(ib.Event) {})
					return nil, nil
				},
				Remove: func(*ib.Device, any) {},
			}
			s.Core.RegisterClient(client)
			s.Core.UnregisterClient(client)
			s.Handles[0].DispatchEvent(ib.EventPortActive, 1)
			time.Sleep(handlerDelay)
			return nil
		},
	},
	{
		// Work that Add has queued runs after Remove has returned, and queries the device.
		Name:   "work-after-remove",
		Commit: `b5605148e6ce ("RDMA/srpt: Fix a use-after-free")`,
		Rule:   "Nobody uses a device that is gone",
		Run: func(s *CheckedSite) error {
			var got error
			var wg sync.WaitGroup
			client := &ib.Client{Name: "wrong",
				Add: func(d *ib.Device) (any, error) {
					wg.Go(func() {
						time.Sleep(handlerDelay)
						_, got = d.QueryPort(1)
					})
					return nil, nil
				},
				Remove: func(*ib.Device, any) {},
			}
			s.Core.RegisterClient(client)
			s.Close()
			wg.Wait()
			return got
		},
	},
	{
		// Work of a client continues after Remove of the client has returned. The device stays registered.
		Name:   "work-after-unregister-client",
		Commit: `305d568b72f1 ("RDMA/cma: Ensure rdma_addr_cancel() happens before issuing more requests")`,
		Rule:   "when its Remove returns it has freed everything",
		Run: func(s *CheckedSite) error {
			var wg sync.WaitGroup
			client := &ib.Client{Name: "wrong",
				Add: func(d *ib.Device) (any, error) {
					wg.Go(func() {
						time.Sleep(handlerDelay)
						d.AllocPD()
					})
					return nil, nil
				},
				Remove: func(*ib.Device, any) {},
			}
			s.Core.RegisterClient(client)
			s.Core.UnregisterClient(client)
			wg.Wait()
			return s.Close()
		},
	},
	{
		// The event function of a queue pair destroys the queue pair.
		Name:   "destroy-in-event",
		Commit: `081bdc9fe05b ("RDMA/ib_srp: Fix a deadlock")`,
		Rule:   "It does not destroy what it is the callback of",
		Run: func(s *CheckedSite) error {
			got := make(chan error, 4)
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{srq: true, event: func(q *ib.QP, _ ib.EventType) {
				got <- q.Destroy()
			}})
			if err != nil {
				return nil
			}
			l.b.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)
			select {
			case err := <-got:
				return err
			case <-time.After(8 * time.Second):
				return nil
			}
		},
	},
	{
		// While the consumer destroys a CQ, it holds a lock that the handler acquires.
		Name:   "lock-over-destroy",
		Commit: `691b0480933f ("IB/isert: Fix dead lock in ib_isert")`,
		Rule:   "Destroy waits for the handler: RuleWaitForSelf, in two threads",
		Run: func(s *CheckedSite) error {
			var mu sync.Mutex
			entered := make(chan bool, 4)
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{handler: func(*ib.CQ) {
				entered <- true
				mu.Lock()
				defer mu.Unlock()
			}})
			if err != nil {
				return nil
			}
			mu.Lock()
			l.exchangeMessages(1)
			<-entered
			l.a.Destroy()
			l.b.Destroy()
			go func() {
				defer mu.Unlock()
				l.cq.Destroy()
			}()
			time.Sleep(6 * time.Second)
			return nil
		},
	},
	{
		// The consumer creates an address handle for each answer, and leaks the handle when the post fails.
		Name: "ah-leak",
		Rule: "When Remove returns the client has destroyed all that it made",
		Run: func(s *CheckedSite) error {
			var pd *ib.PD
			client := &ib.Client{Name: "wrong",
				Add: func(d *ib.Device) (any, error) {
					gid, err := d.QueryGID(1, 0)
					if err == nil {
						pd, err = d.AllocPD()
					}
					if err == nil {
						_, err = pd.CreateAH(&ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: gid.GID}})
					}
					return nil, err
				},
				Remove: func(*ib.Device, any) { pd.Dealloc() },
			}
			s.Core.RegisterClient(client)
			s.Core.UnregisterClient(client)
			return nil
		},
	},
	{
		// No send is signaled. On hardware, the send queue thus stays full after the first eight sends.
		Name: "unsignaled-only",
		Rule: "signaling: a slot of the send queue is free again when a later signaled request has been polled",
		Run: func(s *CheckedSite) error {
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{})
			if err != nil {
				return nil
			}
			for range 4 { // posts 32 requests to a queue of 8 entries
				if err := l.postRecv(8); err != nil {
					return err
				}
				if err := l.postSend(8, 0); err != nil {
					return err
				}
				drainCQ(l.cq)
			}
			return l.close()
		},
	},
	{
		// The consumer posts more requests than the CQ has entries.
		Name: "cq-too-small",
		Rule: "a CQ has an entry for each request that may be outstanding",
		Run: func(s *CheckedSite) error {
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{entries: 4})
			if err != nil {
				return nil
			}
			l.postRecv(8)
			l.postSend(8, ib.SendSignaled)
			time.Sleep(handlerDelay)
			return l.close()
		},
	},
	{
		// The consumer keeps the state of a device in one variable. With two devices, each Remove frees the state
		// of the second device.
		Name:   "one-state-for-all-devices",
		Commit: `unconfirmed: "RDMA/cm: Fix memory leak in cm_add/remove_one", 2019`,
		Rule:   "When Remove returns the client has destroyed all that it made",
		Run: func(s *CheckedSite) error {
			var state *qpPair
			client := &ib.Client{Name: "wrong",
				Add: func(d *ib.Device) (_ any, err error) {
					state, err = openQPPair(d, qpPairOptions{})
					return nil, err
				},
				Remove: func(*ib.Device, any) { state.close() },
			}
			s.Core.RegisterClient(client)
			s.Core.Unregister(s.Handles[0])
			return nil
		},
	},
	{
		// The consumer destroys a queue pair with a shared receive queue while the queue pair still uses receives
		// of the queue. It does not wait for the last event.
		Name:   "srq-not-drained",
		Commit: `844bc12e6da3 ("IB/core: add support for draining Shared receive queues")`,
		Rule:   "EventQPLastWQEReached is awaited before the queue pair is destroyed",
		Run: func(s *CheckedSite) error {
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{srq: true})
			if err != nil {
				return nil
			}
			l.postRecv(4)
			l.postSend(2, ib.SendSignaled)
			err = errors.Join(l.b.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState), l.b.Destroy())
			l.b = l.a
			return errors.Join(err, l.close())
		},
	},
	{
		// Remove waits until a user releases an object, which never happens.
		Name:   "remove-waits-for-user",
		Commit: `036b10635739 ("IB/uverbs: Enable device removal when there are active user space applications")`,
		Rule:   "Add and Remove return",
		Run: func(s *CheckedSite) error {
			client := &ib.Client{Name: "wrong",
				Add:    func(*ib.Device) (any, error) { return nil, nil },
				Remove: func(*ib.Device, any) { time.Sleep(7 * time.Second) },
			}
			s.Core.RegisterClient(client)
			s.Core.UnregisterClient(client)
			return nil
		},
	},
	{
		// Two threads disconnect. One of the threads destroys the queue pair while the other thread posts.
		Name:   "destroy-while-posting",
		Commit: `349d43127dac ("net/smc: fix kernel panic caused by race of smc_sock")`,
		Rule:   "No thread is inside a call on an object when it is destroyed",
		Run: func(s *CheckedSite) error {
			for range 200 {
				l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{})
				if err != nil {
					return nil
				}
				var wg sync.WaitGroup
				wg.Go(func() {
					for range 100 {
						l.a.PostSend(ib.SendWR{Opcode: ib.WRRDMAWrite})
					}
				})
				err = l.a.Destroy()
				wg.Wait()
				l.a = l.b
				if err := errors.Join(err, l.close()); err != nil {
					return err
				}
			}
			return nil
		},
	},
}

// exchangeOneMessage exchanges one more message.
func (l *qpPair) exchangeOneMessage() error {
	return errors.Join(l.postRecv(1), l.postSend(1, ib.SendSignaled))
}
