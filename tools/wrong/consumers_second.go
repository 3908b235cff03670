package wrong

import (
	"fmt"
	"sync"
	"sync/atomic"

	"verbena/ib"
)

// blindConsumers lists mistakes that were written without knowledge of the reports of checked mode.
var blindConsumers = []Consumer{
	{
		// The handler polls until the CQ is empty, and posts the next work request for each completion.
		Name:   "poll-without-budget",
		Commit: `"xprtrdma: Limit work done by completion handler", 2014`,
		Rule:   "It returns: it neither panics nor ends its goroutine, nor computes without end",
		Run: func(s *CheckedSite) error {
			var a atomic.Pointer[ib.QP]
			idle := make(chan bool, 1)
			wr := ib.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled}
			l, err := openQPPair(s.Handles[0].Device(), qpPairOptions{handler: func(cq *ib.CQ) {
				wc := make([]ib.WC, 4)
				for n, _ := cq.Poll(wc); n > 0; n, _ = cq.Poll(wc) {
					for range n {
						a.Load().PostSend(wr)
					}
				}
				idle <- true
			}})
			if err != nil {
				return err
			}
			a.Store(l.a)
			if _, err := l.cq.ReqNotify(ib.NotifyNextComp); err != nil {
				return err
			}
			if _, err := l.a.PostSend(wr); err != nil {
				return err
			}
			<-idle
			return l.close()
		},
	},
	{
		// If the creation of objects for the second port fails, the consumer leaks the objects of the first port.
		Name:   "add-fails-leaves",
		Commit: `"IB/srpt: Fix memory leak in srpt_add_one", 2020`,
		Rule:   "When Remove (or a failing Add) returns the client has destroyed all that it made",
		Run: func(s *CheckedSite) error {
			client := &ib.Client{Name: "wrong",
				Add: func(d *ib.Device) (any, error) {
					var pds []*ib.PD
					for port := 1; port <= 2; port++ {
						if _, err := d.QueryPort(port); err != nil {
							return nil, fmt.Errorf("port %d: %w", port, err)
						}
						pd, err := d.AllocPD()
						if err != nil {
							return nil, err
						}
						pds = append(pds, pd)
					}
					return pds, nil
				},
				Remove: func(_ *ib.Device, data any) {
					for _, pd := range data.([]*ib.PD) {
						pd.Dealloc()
					}
				}}
			if err := s.Core.RegisterClient(client); err != nil {
				return err
			}
			s.Core.UnregisterClient(client)
			return nil
		},
	},
	{
		// The end of the event registration waits for the event function, which waits for a lock of the caller.
		Name:   "lock-over-stop",
		Commit: "2f76e82947b9",
		Rule:   "It must not be called by f, nor with a lock that f takes",
		Run: func(s *CheckedSite) error {
			var mu sync.Mutex
			began := make(chan bool, 1)
			stop := s.Handles[0].Device().OnEvent(func(ib.Event) {
				began <- true
				mu.Lock()
				defer mu.Unlock()
			})
			mu.Lock()
			defer mu.Unlock()
			s.Handles[0].DispatchEvent(ib.EventClientReregister, 1)
			<-began
			stop()
			return nil
		},
	},
	{
		// The device refuses the last request of a list, but the consumer waits for the completion of the request.
		Name:   "post-error-awaited",
		Commit: `"RDMA/srp: Propagate ib_post_send() failures to the SCSI mid-layer", 2019`,
		Rule:   "Posting returns how many work requests were taken, and an error exactly if that is not all; Remove returns",
		Run: func(s *CheckedSite) error {
			more := make(chan bool, 1)
			client := &ib.Client{Name: "wrong",
				Add: func(d *ib.Device) (any, error) {
					return openQPPair(d, qpPairOptions{handler: func(*ib.CQ) {
						select {
						case more <- true:
						default:
						}
					}})
				},
				Remove: func(_ *ib.Device, data any) {
					l := data.(*qpPair)
					wrs := make([]ib.RecvWR, l.a.Init().Cap.MaxRecvWR+1)
					l.a.PostRecv(wrs...)
					l.a.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)
					for left, wc := len(wrs), make([]ib.WC, 4); left > 0; {
						n, _ := l.cq.Poll(wc)
						if left -= n; n > 0 {
							continue
						}
						if missed, _ := l.cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed); !missed {
							<-more
						}
					}
					l.close()
				}}
			if err := s.Core.RegisterClient(client); err != nil {
				return err
			}
			s.Core.UnregisterClient(client)
			return nil
		},
	},
	{
		// One return path of the function does not put the reference to the GID.
		Name:   "gid-leak",
		Commit: `"RDMA/cm: Fix leaking the multicast GID table reference", 2025`,
		Rule:   "GetGID refers to a GID, which must be put before the client's Remove returns",
		Run: func(s *CheckedSite) error {
			join := func(d *ib.Device, mtu ib.MTU) error {
				ref, err := d.GetGID(1, 0)
				if err != nil {
					return err
				}
				if port, err := d.QueryPort(1); err != nil || port.ActiveMTU < mtu {
					return fmt.Errorf("join the group with MTU %v: %v", mtu, err)
				}
				return ref.Put()
			}
			client := &ib.Client{Name: "wrong",
				Add: func(d *ib.Device) (any, error) {
					join(d, ib.MTU4096+1) // the error is not fatal, and the client continues without the group
					return nil, nil
				},
				Remove: func(*ib.Device, any) {}}
			if err := s.Core.RegisterClient(client); err != nil {
				return err
			}
			s.Core.UnregisterClient(client)
			return nil
		},
	},
}
