package wrong

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"verbena/ib"
)

// weakConsumers lists mistakes that have no effect on a convenient device, or rarely have one.
var weakConsumers = []Consumer{
	{
		// The consumer drains the queue pair by a marker only on its send queue, and only logs the event.
		Name:   "last-event-not-awaited",
		Commit: `844bc12e6da3 ("IB/core: add support for draining Shared receive queues")`,
		Rule:   "One with a shared receive queue is destroyed when EventQPLastWQEReached has come",
		Weak:   true,
		Run: func(s *CheckedSite) error {
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{srq: true, one: true, event: func(*ib.QP,
				ib.EventType) {
			}})
			if err != nil {
				return err
			}
			if err := errors.Join(l.postRecv(4), l.a.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState),
				l.postSend(1, ib.SendSignaled)); err != nil {
				return err
			}
			if _, err := l.awaitCompletions(1); err != nil {
				return err
			}
			return l.close()
		},
	},
	{
		// The consumer reads the remote key once, but reregisters the region with other rights for each request.
		Name: "key-of-before-rereg",
		Rule: "Rereg: the keys may be others afterwards",
		Weak: true,
		Run: func(s *CheckedSite) error {
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{})
			if err != nil {
				return err
			}
			key := l.mr.RKey()
			for _, access := range []ib.AccessFlags{ib.AccessLocalWrite, ib.AccessLocalWrite | ib.AccessRemoteWrite} {
				if err := l.mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: access}); err != nil {
					return err
				}
			}
			if _, err := l.a.PostSend(ib.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: l.sge(),
				RemoteAddr: l.mr.Addr(), RKey: key}); err != nil {
				return err
			}
			wcs, err := l.awaitCompletions(1)
			if err == nil && wcs[0].Status != ib.WCSuccess {
				err = fmt.Errorf("RDMA WRITE: got status %v", wcs[0].Status)
			}
			return errors.Join(err, l.close())
		},
	},
	{
		// The consumer writes the next datagram into the buffer as soon as it has posted the previous datagram.
		Name: "datagram-buffer-reused",
		Rule: "The memory of a work request belongs to the device until its completion",
		Weak: true,
		Run: func(s *CheckedSite) error {
			const n, room = 8, 64
			d := s.Handles[0].Device()
			buf := make([]byte, (n+1)*room)
			send, err1 := d.CreateCQ(ib.CQInit{Entries: n})
			recv, err2 := d.CreateCQ(ib.CQInit{Entries: n})
			pd, err3 := d.AllocPD()
			here, err4 := d.Local(1)
			if err := errors.Join(err1, err2, err3, err4); err != nil {
				return err
			}
			mr, err := pd.RegBytes(buf, ib.AccessLocalWrite)
			if err != nil {
				return err
			}
			qp, err := pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeUD, SendCQ: send, RecvCQ: recv,
				Cap: ib.QPCap{MaxSendWR: n, MaxRecvWR: n, MaxSendSGE: 1, MaxRecvSGE: 1}})
			if err != nil {
				return err
			}
			address := here.AddressTo(here.GID)
			ah, err := pd.CreateAH(&address)
			if err != nil {
				return err
			}
			if err := qp.ConnectDatagram(here, ib.Endpoint{QKey: 1}); err != nil {
				return err
			}
			at := func(i, length int) []ib.SGE {
				return []ib.SGE{{Addr: mr.Addr() + uint64(i*room), Length: uint32(length), LKey: mr.LKey()}}
			}
			for i := range n {
				if _, err := qp.PostRecv(ib.RecvWR{ID: uint64(i), SGList: at(1+i, room)}); err != nil {
					return err
				}
			}
			for i := range n {
				buf[0] = byte(i + 1)
				wr := ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: at(0, 8), AH: ah, RemoteQPN: qp.Num(),
					RemoteQKey: 1}
				if _, err := qp.PostSend(wr); err != nil {
					return err
				}
			}
			wcs, err := awaitCompletions(recv, n)
			for i, wc := range wcs {
				if got := buf[(1+int(wc.ID))*room+40]; got != byte(i+1) { // the datagram follows the global route header
					err = errors.Join(err, fmt.Errorf("datagram %d: got content %d", i+1, got))
				}
			}
			_, err1 = awaitCompletions(send, n)
			return errors.Join(err, err1, ah.Destroy(), qp.Destroy(), send.Destroy(), recv.Destroy(), mr.Dereg(), pd.Dealloc())
		},
	},
	{
		// The receiver waits for the last byte of a SEND in memory, as for an RDMA WRITE.
		Name: "receive-read-before-completion",
		Rule: "The memory of a work request belongs to the device until its completion",
		Weak: true,
		Run: func(s *CheckedSite) error {
			d := s.Handles[0].Device()
			buf := make([]byte, 128)
			cq, err1 := d.CreateCQ(ib.CQInit{Entries: 8})
			done, err2 := d.CreateCQ(ib.CQInit{Entries: 8})
			pd, err3 := d.AllocPD()
			here, err4 := d.Local(1)
			if err := errors.Join(err1, err2, err3, err4); err != nil {
				return err
			}
			mr, err := pd.RegBytes(buf, ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessRemoteRead)
			if err != nil {
				return err
			}
			qp, err := pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: done, RecvCQ: cq,
				Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
			if err != nil {
				return err
			}
			self := here.Endpoint(qp)
			if err := qp.Connect(here, self, self, ib.Path{}); err != nil {
				return err
			}
			buf[64+7] = 1
			_, err1 = qp.PostRecv(ib.RecvWR{SGList: []ib.SGE{{Addr: mr.Addr(), Length: 8, LKey: mr.LKey()}}})
			_, err2 = qp.PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled,
				SGList: []ib.SGE{{Addr: mr.Addr() + 64, Length: 8, LKey: mr.LKey()}}})
			_, err3 = awaitCompletions(done, 1)
			if buf[7] != 1 {
				err = errors.New("wait for the message: got none")
			}
			_, err4 = awaitCompletions(cq, 1)
			return errors.Join(err, err1, err2, err3, err4, qp.Destroy(), cq.Destroy(), done.Destroy(), mr.Dereg(), pd.Dealloc())
		},
	},
	{
		// Remove requests the end of a thread, but does not wait for the end.
		Name: "call-inside-remove",
		Rule: "A client does not use its device when its Remove has returned",
		Weak: true,
		Run: func(s *CheckedSite) error {
			var wg sync.WaitGroup
			client := &ib.Client{Name: "wrong",
				Add: func(d *ib.Device) (any, error) {
					stop := make(chan struct{})
					wg.Go(func() {
						for {
							select {
							case <-stop:
								return
							default:
								d.QueryPort(1)
							}
						}
					})
					return stop, nil
				},
				Remove: func(_ *ib.Device, stop any) { close(stop.(chan struct{})) },
			}
			if err := s.Core.RegisterClient(client); err != nil {
				return err
			}
			time.Sleep(handlerDelay)
			s.Core.UnregisterClient(client)
			wg.Wait()
			return nil
		},
	},
	{
		// The consumer posts the receive again, and then reads the message from its memory.
		Name: "receive-reposted-first",
		Rule: "The memory of a work request belongs to the device until its completion",
		Weak: true,
		Run: func(s *CheckedSite) error {
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{})
			if err != nil {
				return err
			}
			buf := make([]byte, 64)
			mr, err := l.pd.RegBytes(buf, ib.AccessLocalWrite)
			if err != nil {
				return err
			}
			wr := ib.RecvWR{SGList: []ib.SGE{{Addr: mr.Addr(), Length: uint32(len(buf)), LKey: mr.LKey()}}}
			if _, err := l.b.PostRecv(wr); err != nil {
				return err
			}
			if err := l.postSend(1, ib.SendSignaled); err != nil {
				return err
			}
			if _, err = l.awaitCompletions(2); err != nil {
				return err
			}
			if _, err = l.b.PostRecv(wr); err == nil && buf[0] != 0 {
				err = fmt.Errorf("message: got byte %#x, want 0", buf[0])
			}
			err = errors.Join(err, l.b.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			_, err1 := l.awaitCompletions(1)
			return errors.Join(err, err1, l.a.Destroy(), l.b.Destroy(), l.cq.Destroy(), mr.Dereg(), l.mr.Dereg(), l.pd.Dealloc())
		},
	},
	{
		// The consumer frees the state of its handler before it destroys the queue.
		Name: "handler-state-freed",
		Rule: "Once Destroy has returned, no handler of the object runs",
		Weak: true,
		Run: func(s *CheckedSite) error {
			var freed, used atomic.Bool
			cq, err := s.Handles[0].Device().CreateCQ(ib.CQInit{Entries: 4, Handler: func(*ib.CQ) {
				if freed.Load() {
					used.Store(true)
				}
			}})
			if err != nil {
				return err
			}
			if _, err := cq.ReqNotify(ib.NotifyNextComp); err != nil {
				return err
			}
			freed.Store(true)
			if err = cq.Destroy(); used.Load() {
				err = errors.Join(err, errors.New("the handler used freed state"))
			}
			return err
		},
	},
	{
		// The consumer destroys a queue with the lock held that its handler takes.
		Name: "destroy-with-lock",
		Rule: "The caller of Destroy must not hold a lock that the handler takes",
		Weak: true,
		Run: func(s *CheckedSite) error {
			var mu sync.Mutex
			cq, err := s.Handles[0].Device().CreateCQ(ib.CQInit{Entries: 4, Handler: func(*ib.CQ) {
				mu.Lock()
				defer mu.Unlock()
			}})
			if err != nil {
				return err
			}
			if _, err := cq.ReqNotify(ib.NotifyNextComp); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			return cq.Destroy()
		},
	},
	{
		// The consumer ends its event function with the lock held that the function takes. An event is pending.
		Name: "event-function-ended-with-lock",
		Rule: "The caller of stop must not hold a lock that the event function takes",
		Weak: true,
		Run: func(s *CheckedSite) error {
			var mu sync.Mutex
			stop := s.Handles[0].Device().OnEvent(func(ib.Event) {
				mu.Lock()
				defer mu.Unlock()
			})
			mu.Lock()
			defer mu.Unlock()
			s.Handles[0].DispatchEvent(ib.EventGIDChange, 1)
			stop()
			return nil
		},
	},
	{
		// The consumer polls the last byte of a peer's WRITE, and then uses all bytes.
		Name: "last-byte-polled",
		Rule: "Data are guaranteed to be present only after a completion",
		Weak: true,
		Run: func(s *CheckedSite) error {
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{})
			if err != nil {
				return err
			}
			buf := make([]byte, 128)
			mr, err := l.pd.RegBytes(buf, ib.AccessLocalWrite|ib.AccessRemoteWrite)
			if err != nil {
				return err
			}
			from, to := buf[:64], buf[64:]
			for i := byte(1); i <= 16 && err == nil; i++ {
				for k := range from {
					from[k] = i
				}
				if _, err := l.a.PostSend(ib.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled,
					SGList:     []ib.SGE{{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()}},
					RemoteAddr: mr.Addr() + 64, RKey: mr.RKey()}); err != nil {
					return err
				}
				for end := time.Now().Add(time.Second); to[63] != i && time.Now().Before(end); {
					time.Sleep(10 * time.Microsecond)
				}
				if to[0] != i {
					err = fmt.Errorf("write %d: got first byte %d", i, to[0])
				}
				_, err1 := l.awaitCompletions(1)
				err = errors.Join(err, err1)
			}
			return errors.Join(err, l.a.Destroy(), l.b.Destroy(), l.cq.Destroy(), mr.Dereg(), l.mr.Dereg(), l.pd.Dealloc())
		},
	},
}

// awaitCompletions polls until n completions have arrived.
func awaitCompletions(cq *ib.CQ, n int) (all []ib.WC, err error) {
	for end := time.Now().Add(5 * time.Second); len(all) < n; time.Sleep(100 * time.Microsecond) {
		var wc [8]ib.WC
		k, err := cq.Poll(wc[:min(len(wc), n-len(all))])
		all = append(all, wc[:k]...)
		if err != nil {
			return all, err
		}
		if time.Now().After(end) {
			return all, fmt.Errorf("await: got %d completions, want %d", len(all), n)
		}
	}
	return all, nil
}

func (l *qpPair) awaitCompletions(n int) ([]ib.WC, error) { return awaitCompletions(l.cq, n) }
