package ibtest

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"verbena/ib"
	"verbena/umem"
)

// valueDefects are drivers with faults that show only with the values of the model's calls.
var valueDefects = []driverDefect{
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
		opts: withBubble,
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
		opts: withBubble,
		by:   "Model/Steps", says: "length of the completion",
	},
	{
		defect: "stores the data of a READ again, long after the destruction of the last queue pair",
		break_: func(d *wrongDriver) {
			var late atomic.Pointer[ib.SGE]
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				for _, wr := range wrs {
					if wr.Opcode == ib.WRRDMARead && len(wr.SGList) > 0 {
						late.Store(&wr.SGList[0])
					}
				}
				return q.QP.PostSend(wrs)
			}
			d.destroyQP = func(q *wrongQP) error {
				if s := late.Load(); s != nil {
					if m := d.regionAt(s.Addr); m != nil {
						time.AfterFunc(time.Second, func() {
							if len(cloneList(d, &d.qps)) == 0 {
								m.region.WriteV([][]byte{{0x5a}}, s.Addr)
							}
						})
					}
				}
				return q.QP.Destroy()
			}
		},
		opts: withManySeeds,
		by:   "Model/Destroyed", says: "when all objects had been destroyed",
	},
	{
		defect: "keeps the regions of the device across a reset, so old keys remain valid",
		break_: func(d *wrongDriver) {
			d.dereg = func(m ib.DriverMR) error {
				if d.dev.Device().State() == ib.DeviceError {
					for _, r := range cloneList(d, &d.dead) {
						keptRegions.Store(r.num, r.region)
					}
				}
				return m.Dereg()
			}
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				for _, wr := range wrs {
					present := slices.ContainsFunc(cloneList(d, &d.mrs), func(m *wrongMR) bool { return m.num == wr.RKey })
					if r, ok := keptRegions.Load(wr.RKey); ok && !present {
						r.(*umem.Region).WriteV([][]byte{{0x5a}}, wr.RemoteAddr)
					}
				}
				return q.QP.PostSend(wrs)
			}
		},
		opts: withManySeeds,
		by:   "Model/Steps", says: "memory: byte at",
	},
	{
		defect: "executes work requests of the device in error on the recovered device",
		break_: func(d *wrongDriver) {
			keep := func(sgl []ib.SGE) {
				if d.dev.Device().State() == ib.DeviceError && len(sgl) > 0 {
					keptRequests.Store(sgl[0].Addr, d.regionAt(sgl[0].Addr))
				}
			}
			d.postRecv = func(q *wrongQP, wrs []ib.RecvWR) (int, error) {
				for _, wr := range wrs {
					keep(wr.SGList)
				}
				return q.QP.PostRecv(wrs)
			}
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				for _, wr := range wrs {
					keep(wr.SGList)
				}
				return q.QP.PostSend(wrs)
			}
			d.createQP = func(ib.QPHandle, *ib.DriverQPInit) error {
				keptRequests.Range(func(addr, m any) bool {
					if r := m.(*wrongMR); r != nil {
						r.region.WriteV([][]byte{{0x5a}}, addr.(uint64))
					}
					return true
				})
				keptRequests.Clear()
				return nil
			}
		},
		opts: withManySeeds,
		by:   "Model/Steps", says: "memory: byte at",
	},
	{
		defect: "removes a queue pair from all its multicast groups at the first detach",
		break_: func(d *wrongDriver) {
			d.detach = func(q *wrongQP, group ib.GID) error {
				if err := q.QP.DetachMcast(group, 0); err != nil {
					return err
				}
				for i := 2; i < len(group); i++ { // the addresses of the groups differ in one byte
					for n := range byte(4) {
						other := group
						other[i] = n
						_ = q.QP.DetachMcast(other, 0)
					}
				}
				return nil
			}
		},
		opts: withManySeeds,
		by:   "Model/Steps", says: "invalid argument",
	},
	{
		defect: "keeps a notification delayed after a moderation request with unchanged values",
		break_: func(d *wrongDriver) {
			type setting struct {
				count  int
				period time.Duration
			}
			var present sync.Map // by queue
			d.moderate = func(c *wrongCQ, count int, period time.Duration) error {
				s := setting{count, period}
				if was, ok := present.Swap(c, s); ok && was == s {
					return nil
				}
				return c.CQ.Moderate(count, period)
			}
		},
		opts: withManySeeds,
		by:   "Model/Steps", says: "handler calls",
	},
	{
		defect: "checks a transition before it takes its lock, so two concurrent transitions both succeed",
		break_: func(d *wrongDriver) {
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				was := q.QP.State()
				_, refused := ib.NextState(was, q.obj.QP().Type(), a, m)
				for range 4 {
					runtime.Gosched()
				}
				changed := q.QP.State() != was
				if err := q.QP.Modify(a, m, nil); refused != nil || !changed {
					return err
				}
				return nil
			}
		},
		opts: withManySeeds,
		by:   "Model/Shared", says: "no order of",
	},
	{
		defect: "drops one of two concurrently posted receives, and returns success",
		break_: func(d *wrongDriver) {
			var posting sync.Map // by queue pair
			d.postRecv = func(q *wrongQP, wrs []ib.RecvWR) (int, error) {
				if _, ok := posting.LoadOrStore(q, true); ok {
					return len(wrs), nil
				}
				defer posting.Delete(q)
				for range 4 {
					runtime.Gosched()
				}
				return q.QP.PostRecv(wrs)
			}
		},
		opts: withManySeeds,
		by:   "Model/Shared", says: "no order of",
	},
}

// keptRegions and keptRequests hold the objects that a wrong driver keeps across a reset.
var keptRegions, keptRequests sync.Map

func withManySeeds(func() *wrongDriver) []Option { return []Option{Bubble(), Seeds(1600)} }

func withBubble(func() *wrongDriver) []Option { return []Option{Bubble()} }
