package ibtest

import (
	"sync"
	"sync/atomic"

	"verbena/ib"
	"verbena/umem"
)

// isCurrentKey reports whether key is the current key of a region.
func (d *wrongDriver) isCurrentKey(key uint32) bool {
	for _, m := range cloneList(d, &d.mrs) {
		if m.num == key {
			return true
		}
	}
	return false
}

// keyDefects have faults in keys, domains, and rejected calls.
var keyDefects = []driverDefect{
	{
		defect: "looks up the key of an RDMA operation of no bytes",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				wr := wrs[0]
				remote := wr.Opcode == ib.WRRDMAWrite || wr.Opcode == ib.WRRDMAWriteWithImm || wr.Opcode == ib.WRRDMARead
				if !remote || d.isCurrentKey(wr.RKey) || len(wr.SGList) > 0 && wr.SGList[0].Length > 0 {
					return q.QP.PostSend(wrs)
				}
				for _, m := range cloneList(d, &d.mrs) { // the inner driver checks the key if there are data
					if m.pd == q.pd && m.access&ib.AccessLocalWrite != 0 {
						wr.SGList = []ib.SGE{{Addr: m.region.IOVA(), Length: 8, LKey: m.num}}
					}
				}
				return q.QP.PostSend([]ib.SendWR{wr})
			}
		},
		by: "Data/ZeroLength", says: "RC, RDMA WRITE with immediate of no bytes with no key",
	},
	{
		defect: "invalidates a region with a bound window",
		break_: func(d *wrongDriver) {
			var bound sync.Map // keys of regions, by window
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				wr := wrs[0]
				switch {
				case wr.Opcode == ib.WRBindMW && wr.Bind != nil && wr.Bind.MR != nil:
					bound.Store(wr.Bind.MW, wr.Bind.MR.RKey())
				case wr.Opcode == ib.WRLocalInv:
					bound.Range(func(_, key any) bool {
						if key == wr.InvalidateRKey && !d.isCurrentKey(wr.InvalidateRKey) { // a region of AllocMR
							wr = ib.SendWR{ID: wr.ID, Opcode: ib.WRRDMAWrite, Flags: wr.Flags}
						}
						return true
					})
					return q.QP.PostSend([]ib.SendWR{wr})
				}
				return q.QP.PostSend(wrs)
			}
		},
		by: "FastReg/BoundRegion", says: "local invalidation of a region with a window of type 1",
	},
	{
		defect: "accepts memory of any domain for the receives of a shared receive queue",
		break_: func(d *wrongDriver) {
			d.srqPost = func(s *wrongSRQ, wrs []ib.RecvWR) (int, error) {
				for _, wr := range wrs {
					d.grantTemporaryAccess(&wrongQP{pd: s.pd}, wr.SGList, true, 0)
				}
				return s.SRQ.PostRecv(wrs)
			}
		},
		by: "SRQ/Domain", says: "receive into memory of the queue pair's domain",
	},
	{
		defect: "returns one XRC domain to all callers",
		break_: func(d *wrongDriver) {
			d.allocXRCD = sync.OnceValues(func() (ib.DriverXRCD, error) { return d.Device.AllocXRCD(nil) })
		},
		by: "XRC/Domain", says: "for a shared receive queue of another domain",
	},
	{
		defect: "changes the domain of a region before it rejects the rights",
		break_: func(d *wrongDriver) {
			d.rereg = func(m *wrongMR, r *umem.Region, pd ib.DriverPD, access ib.AccessFlags) error {
				inner := m.DriverMR.(ib.ReregMR)
				inner.Rereg(m.region, pd, m.access, nil)
				return inner.Rereg(r, pd, access, nil)
			}
		},
		by: "Data/ReregRefused", says: "write by a queue pair of its domain",
	},
	{
		defect: "adds rights to a region before it rejects the change",
		break_: func(d *wrongDriver) {
			d.rereg = func(m *wrongMR, r *umem.Region, pd ib.DriverPD, access ib.AccessFlags) error {
				inner := m.DriverMR.(ib.ReregMR)
				err := inner.Rereg(r, pd, access, nil)
				if err != nil {
					inner.Rereg(m.region, m.pd, m.access|ib.AccessRemoteRead, nil)
				}
				return err
			}
		},
		by: "Data/ReregRefused", says: "read, for which it has no right",
	},
	{
		defect: "keeps a reference to each rejected queue pair",
		break_: func(d *wrongDriver) {
			var mu sync.Mutex
			var kept []*wrongQP
			d.createQP = func(qp ib.QPHandle, init *ib.DriverQPInit) error {
				if init.Cap.MaxSendSGE > 16 {
					mu.Lock()
					defer mu.Unlock()
					kept = append(kept, &wrongQP{obj: qp})
				}
				return nil
			}
			d.t.Cleanup(func() { mu.Lock(); defer mu.Unlock(); kept = nil })
		},
		by: "Errors/RefusedLeavesNothing", says: "create QP, RC with too many gather elements: refused",
	},
	{
		defect: "leaks a goroutine for each rejected post",
		break_: func(d *wrongDriver) {
			stop := make(chan struct{})
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				n, err := q.QP.PostSend(wrs)
				if err != nil && len(wrs[0].Inline) > 0 {
					go func() { <-stop }()
				}
				return n, err
			}
			d.t.Cleanup(func() { close(stop) })
		},
		by: "Errors/RefusedLeavesNothing", says: "too many bytes inline: refused 600 times, and a goroutine stays",
	},
	{
		defect: "counts rejected queue pairs in its limit",
		break_: func(d *wrongDriver) {
			var n atomic.Int32
			d.createQP = func(_ ib.QPHandle, init *ib.DriverQPInit) error {
				if init.Cap.MaxRecvSGE > 16 {
					n.Add(1)
				}
				if n.Load() > 900 {
					init.Type = 200 // rejected
				}
				return nil
			}
		},
		by: "Errors/RefusedLeavesNothing", says: "create RC QP, after",
	},
}
