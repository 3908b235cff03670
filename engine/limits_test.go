package engine

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"verbena/driver/rxe/layout"
	"verbena/ib"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/uapi"
	"verbena/umem"
)

// frugal is a program with a maximum of memory for its queues, in bytes.
type frugal struct {
	*program
	left  uint64
	calls int // number of allocations
	fails int // the allocation that fails, counted from 1; 0: none
}

func (f *frugal) AllocShared(size int) (ib.Shared, error) {
	n := (uint64(size) + umem.PageSize - 1) &^ (umem.PageSize - 1)
	if f.calls++; n > f.left || f.calls == f.fails {
		return ib.Shared{}, fmt.Errorf("%d bytes, %d are left: %w", size, f.left, syscall.ENOMEM)
	}
	s, err := f.program.AllocShared(size)
	if err == nil {
		f.left -= n
		s.Free = func() { f.left += n }
	}
	return s, err
}

// limited is a device with a limit of memory for queues, and a program with exactly that memory.
type limited struct {
	t    *testing.T
	dev  *ib.Device
	pd   *ib.PD
	attr ib.DeviceAttr
	u    ib.Udata
}

func newLimited(t *testing.T, memory uint64) *limited {
	t.Helper()
	d, err := New(Config{
		Layout: layout.Layout{},
		Name:   "rxe0", Addrs: []netip.Addr{addrA}, Network: simnet.New(simnet.Config{}), QueueMemory: memory,
		Netdev: netdev.Interface{Name: "eth0", Index: 2, MTU: 9000, Up: true, Running: true},
	})
	check(t, err)
	var core ib.Core
	check(t, core.Register(d.Handle()))
	left := memory
	if memory == 0 {
		left = 1 << 40
	}
	f := &frugal{program: newProgram(t), left: left}
	l := &limited{t: t, dev: d.IB(), u: ib.Udata{Context: f, Out: make([]byte, 64)}}
	check(t, ops{d}.AllocUserContext(&l.u))
	l.pd, err = ibuser.AllocPD(l.dev, &l.u)
	check(t, err)
	l.attr, err = l.dev.QueryDevice()
	check(t, err)
	t.Cleanup(func() {
		check(t, l.pd.Dealloc())
		ops{d}.DeallocUserContext(l.u.Context)
		check(t, core.Unregister(d.Handle()))
		check(t, d.Close())
	})
	return l
}

// cq creates a completion queue with more entries than the limit.
func (l *limited) cq(more int) (*ib.CQ, error) {
	return ibuser.CreateCQ(l.dev, ib.CQInit{Entries: l.attr.MaxCQE + more}, &l.u)
}

// full returns all limits of a queue pair together.
func (l *limited) full() ib.QPCap {
	a := &l.attr
	return ib.QPCap{
		MaxSendWR: uint32(a.MaxQPWR), MaxRecvWR: uint32(a.MaxQPWR),
		MaxSendSGE: uint32(a.MaxSendSGE), MaxRecvSGE: uint32(a.MaxRecvSGE), MaxInlineData: maxInline,
	}
}

// qp creates a queue pair, with a completion queue at its limits.
func (l *limited) qp(c ib.QPCap) error {
	cq, err := l.cq(0)
	check(l.t, err)
	defer func() { check(l.t, cq.Destroy()) }()
	qp, err := ibuser.CreateQP(l.pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC, Cap: c}, &l.u)
	if err == nil {
		check(l.t, qp.Destroy())
	}
	return err
}

func (l *limited) srq(moreWR, moreSGE int) error {
	srq, err := ibuser.CreateSRQ(l.pd, ib.SRQInitAttr{Attr: ib.SRQAttr{
		MaxWR: uint32(l.attr.MaxSRQWR + moreWR), MaxSGE: uint32(l.attr.MaxSRQSGE + moreSGE),
	}}, &l.u)
	if err == nil {
		check(l.t, srq.Destroy())
	}
	return err
}

// limitTests holds the limits of one object. make creates the object at all its limits, and exceeded beyond the named
// one. The other fields of the attributes count objects, or are 0 for a missing function.
var limitTests = []struct {
	field    string
	make     func(l *limited) error
	exceeded func(l *limited) error // nil: not possible, or there is more room than advertised
}{
	{"MaxMRSize", func(l *limited) error {
		mr, err := ibuser.RegMR(l.pd, ib.MRInit{Space: umem.NewLocal(), Addr: 0, Length: l.attr.MaxMRSize, IOVA: 0, Access: allAccess | ib.AccessOnDemand}, &l.u)
		if err == nil {
			check(l.t, mr.Dereg())
		}
		return err
	}, nil},
	{"MaxQPWR", func(l *limited) error { return l.qp(l.full()) }, func(l *limited) error {
		c := l.full()
		c.MaxSendWR++
		return l.qp(c)
	}},
	{"MaxSendSGE", func(l *limited) error { return l.qp(l.full()) }, func(l *limited) error {
		c := l.full()
		c.MaxSendSGE++
		return l.qp(c)
	}},
	{"MaxRecvSGE", func(l *limited) error { return l.qp(l.full()) }, func(l *limited) error {
		c := l.full()
		c.MaxRecvSGE++
		return l.qp(c)
	}},
	{"MaxSGERd", func(l *limited) error { return l.qp(l.full()) }, nil}, // the same as MaxSendSGE; see below
	{"MaxCQE", func(l *limited) error {
		cq, err := l.cq(0)
		if err == nil {
			check(l.t, cq.Destroy())
		}
		return err
	}, func(l *limited) error { _, err := l.cq(1); return err }},
	{"MaxSRQWR", func(l *limited) error { return l.srq(0, 0) }, func(l *limited) error { return l.srq(1, 0) }},
	{"MaxSRQSGE", func(l *limited) error { return l.srq(0, 0) }, func(l *limited) error { return l.srq(0, 1) }},
	{"MaxQPRdAtom", func(l *limited) error { return l.reads(l.attr.MaxQPRdAtom, 1) },
		func(l *limited) error { return l.reads(l.attr.MaxQPRdAtom+1, 1) }},
	{"MaxQPInitRdAtom", func(l *limited) error { return l.reads(1, l.attr.MaxQPInitRdAtom) },
		func(l *limited) error { return l.reads(1, l.attr.MaxQPInitRdAtom+1) }},
	{"MaxMcastQPAttach", func(l *limited) error { return l.attach(l.attr.MaxMcastQPAttach) }, nil},
}

// reads brings a queue pair to RTS. answers is the maximum of incoming RDMA READs and atomics, and outstanding that
// of outgoing ones.
func (l *limited) reads(answers, outstanding int) error {
	cq, err := ibuser.CreateCQ(l.dev, ib.CQInit{Entries: 4}, &l.u)
	check(l.t, err)
	defer func() { check(l.t, cq.Destroy()) }()
	qp, err := ibuser.CreateQP(l.pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC, Cap: ib.QPCap{MaxSendWR: 1}}, &l.u)
	check(l.t, err)
	defer func() { check(l.t, qp.Destroy()) }()
	toInit(l.t, qp, conn{})
	gid, err := l.dev.QueryGID(1, 1)
	check(l.t, err)
	if err := qp.Modify(ib.QPAttr{
		State: ib.QPRTR, PathMTU: ib.MTU1024, DestQPN: qp.Num(), MaxDestRdAtomic: uint8(answers),
		AH: ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: gid.GID, SGIDIndex: 1}},
	}, ib.QPAttrState|ib.QPAttrAV|ib.QPAttrPathMTU|ib.QPAttrDestQPN|ib.QPAttrRQPSN|ib.QPAttrMaxDestRdAtomic|
		ib.QPAttrMinRNRTimer); err != nil {
		return err
	}
	return qp.Modify(ib.QPAttr{State: ib.QPRTS, MaxRdAtomic: uint8(outstanding)},
		ib.QPAttrState|ib.QPAttrTimeout|ib.QPAttrRetryCnt|ib.QPAttrRNRRetry|ib.QPAttrSQPSN|ib.QPAttrMaxRdAtomic)
}

// attach joins n queue pairs to a multicast group.
func (l *limited) attach(n int) error {
	cq, err := ibuser.CreateCQ(l.dev, ib.CQInit{Entries: 4}, &l.u)
	check(l.t, err)
	defer func() { check(l.t, cq.Destroy()) }()
	group := ib.GIDFromAddr(netip.MustParseAddr("239.1.2.3"))
	for range n {
		qp, err := ibuser.CreateQP(l.pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeUD, Cap: ib.QPCap{MaxRecvWR: 1}}, &l.u)
		check(l.t, err)
		defer func() { check(l.t, qp.Destroy()) }()
		if err := qp.AttachMcast(group, 0); err != nil {
			return err
		}
		defer func() { check(l.t, qp.DetachMcast(group, 0)) }()
	}
	return nil
}

// counts lists the limits of the numbers of objects. Quotas divide these numbers among users.
var counts = []string{
	"MaxQP", "MaxCQ", "MaxMR", "MaxPD", "MaxMW", "MaxAH", "MaxSRQ", "MaxResRdAtom", "MaxMcastGrp", "MaxTotalMcastAtch",
	"MaxPKeys",
}

// TestLimits creates objects at all advertised limits together, and beyond each limit, with several sizes of queue
// memory.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		memory  uint64
		wr, cqe int
	}{
		{0, 1<<16 - 1, 1<<20 - 1},
		{1000 << 20, 1<<16 - 1, 1<<20 - 1},
		{48 << 20, 1<<14 - 1, 1<<15 - 1}, // a service in a container with 64 MB on /dev/shm
		{16 << 20, 1<<12 - 1, 1<<15 - 1}, // a user of a shared one there
		{1 << 20, 1<<7 - 1, 1<<13 - 1},
		{64 << 10, 7, 1<<9 - 1},
		{48 << 10, 7, 1<<8 - 1},
		{32 << 10, 3, 1<<7 - 1},
		{28 << 10, 1, 1<<7 - 1},
		{24 << 10, 1, 1<<7 - 1},
		{20 << 10, 1, 1<<6 - 1},
		{20<<10 - 1, 1, 1<<5 - 1},
		{16 << 10, 1, 1<<5 - 1},
	} {
		t.Run(fmt.Sprintf("%d bytes", c.memory), func(t *testing.T) {
			l := newLimited(t, c.memory)
			if l.attr.MaxQPWR != c.wr || l.attr.MaxSRQWR != c.wr || l.attr.MaxCQE != c.cqe {
				t.Errorf("QueryDevice: %d work requests, %d in shared queues, %d completions, want %d, %[4]d and %[5]d",
					l.attr.MaxQPWR, l.attr.MaxSRQWR, l.attr.MaxCQE, c.wr, c.cqe)
			}
			if l.attr.MaxSGERd > l.attr.MaxSendSGE {
				t.Errorf("QueryDevice: %d elements for an RDMA READ, of %d", l.attr.MaxSGERd, l.attr.MaxSendSGE)
			}
			tested := map[string]bool{}
			for _, x := range limitTests {
				tested[x.field] = true
				if x.field == "MaxMcastQPAttach" && c.memory != 0 && c.memory < 1<<20 {
					continue // it needs as many queue pairs
				}
				if err := x.make(l); err != nil {
					t.Errorf("%s: %v", x.field, err)
				}
				if x.exceeded == nil {
					continue
				}
				if err := x.exceeded(l); !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOMEM) {
					t.Errorf("%s exceeded by one: %v, want EINVAL or ENOMEM", x.field, err)
				}
			}
			for _, f := range counts {
				tested[f] = true
			}
			v := reflect.ValueOf(l.attr)
			for i := range v.NumField() {
				if f := v.Type().Field(i).Name; strings.HasPrefix(f, "Max") && !v.Field(i).IsZero() && !tested[f] {
					t.Errorf("%s is %v, and not tested", f, v.Field(i))
				}
			}
		})
	}
}

// TestTooLittleQueueMemory tests that New fails if the queue memory is too small for one queue pair, and that a queue
// pair is not created with less memory than it needs.
func TestTooLittleQueueMemory(t *testing.T) {
	least := MinQueueMemory(layout.Layout{})
	for memory, want := range map[uint64]error{
		1: syscall.ENOMEM, least - 1: syscall.ENOMEM, least: nil, 0: nil,
	} {
		d, err := New(Config{
			Layout: layout.Layout{},
			Name:   "rxe0", Addrs: []netip.Addr{addrA}, Network: simnet.New(simnet.Config{}), QueueMemory: memory,
			Netdev: netdev.Interface{Name: "eth0", Index: 2, MTU: 9000, Up: true, Running: true},
		})
		if !errors.Is(err, want) {
			t.Errorf("New with %d bytes: got %v, want %v", memory, err, want)
		}
		if err == nil {
			check(t, d.Close())
		}
	}
}

// TestLimitsHold fills a queue pair at its limits with receives and sends, each with all elements.
func TestLimitsHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true, cap: ib.QPCap{
			MaxSendWR: maxQPWR, MaxRecvWR: maxQPWR, MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE, MaxInlineData: maxInline,
		}})
		b.connect(conn{})
		var sgl []ib.SGE
		for i := range maxSGE {
			sgl = append(sgl, b.b.sge(i*8, 8)...)
		}
		if n, err := b.b.qp.PostRecv(slices.Repeat([]ib.RecvWR{{SGList: sgl}}, maxQPWR+1)...); n != maxQPWR || !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("%d receives: %d taken, %v, want %d and ENOMEM", maxQPWR+1, n, err, maxQPWR)
		}
		fill(b.a.buf, 1)
		b.a.send(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled | ib.SendInline, Inline: b.a.buf[:maxSGE*8]})
		b.a.poll(1)
		b.b.poll(1)
		if i := firstDifference(b.a.buf[:maxSGE*8], b.b.buf[:maxSGE*8]); i >= 0 {
			t.Errorf("byte %d differs", i)
		}
	})
}

// TestAddressHandleLimit creates as many address handles as the device advertises, and one more.
func TestAddressHandleLimit(t *testing.T) {
	if raceEnabled {
		t.Skip("one thread makes them; make unit runs it once more without the race detector")
	}
	b := newBench(t, setup{typ: ib.QPTypeUD})
	b.connect(conn{})
	attr, err := b.a.dev.IB().QueryDevice()
	check(t, err)
	var all []*ib.AH
	for range attr.MaxAH {
		all = append(all, newAH(b.a, b.b.dev, 1))
	}
	a, err := all[0].Query()
	check(t, err)
	if _, err := b.a.pd.CreateAH(&a); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("one more than %d: got %v, want %v", attr.MaxAH, err, syscall.ENOMEM)
	}
	for _, ah := range all {
		check(t, ah.Destroy())
	}
}

// TestFailedCallsLeaveNothing makes calls fail at each of their allocations, without a free number, and on objects
// that forbid the change. A failed call must leave no memory, no number and no object.
func TestFailedCallsLeaveNothing(t *testing.T) {
	l := newLimited(t, 0)
	d, f := deviceOf(l.pd), l.u.Context.(*frugal)
	call := func() *ib.Udata { return &ib.Udata{Context: f, In: make([]byte, 64), Out: make([]byte, 64)} }
	cq, err := ibuser.CreateCQ(l.dev, ib.CQInit{Entries: 50}, call())
	check(t, err)
	srq, err := ibuser.CreateSRQ(l.pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 50, MaxSGE: 1}}, call())
	check(t, err)
	defer func() {
		check(t, srq.Destroy())
		check(t, cq.Destroy())
	}()
	for range 20 {
		cqOf(cq).post(&uapi.WC{}, false, nil)
	}
	type objects struct {
		memory    uint64
		counts    [numCounted]uint32
		qps, srqs int
		listed    int // queue pairs in the directory of the program
	}
	present := func() (o objects) {
		o.memory = f.left
		ctx := d.context(&l.u)
		for k := range o.counts {
			o.counts[k] = ctx.counts.now[k].Load()
		}
		for _, qp := range ctx.dir.qps {
			if qp != nil {
				o.listed++
			}
		}
		o.qps, o.srqs = len(slices.Collect(d.qps.all())), len(slices.Collect(d.srqs.all()))
		return o
	}
	for _, c := range []struct {
		name    string
		call    func() (destroy func() error, err error)
		exhaust func() (restore func()) // takes all numbers; nil if the object has none
		fails   bool                    // also without a failed allocation
	}{
		{"create CQ", func() (func() error, error) {
			cq, err := ibuser.CreateCQ(l.dev, ib.CQInit{Entries: 1}, call())
			return func() error { return cq.Destroy() }, err
		}, nil, false},
		{"create QP", func() (func() error, error) {
			qp, err := ibuser.CreateQP(l.pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC, Cap: userCap}, call())
			return func() error { return qp.Destroy() }, err
		}, func() func() { return exhaust(&d.qps) }, false},
		{"create SRQ", func() (func() error, error) {
			srq, err := ibuser.CreateSRQ(l.pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}}, call())
			return func() error { return srq.Destroy() }, err
		}, func() func() { return exhaust(&d.srqs) }, false},
		{"resize CQ below its completions", func() (func() error, error) {
			return nil, ibuser.ResizeCQ(cq, 10, call())
		}, nil, true},
		{"resize SRQ below its limit", func() (func() error, error) {
			return nil, ibuser.ModifySRQ(srq, ib.SRQAttr{MaxWR: 10, Limit: 100}, ib.SRQAttrMaxWR|ib.SRQAttrLimit, call())
		}, nil, true},
	} {
		before := present()
		unchanged := func(how string, err error) {
			t.Helper()
			if now := present(); err == nil || now != before {
				t.Errorf("%s %s: got error %v and %+v, want an error and %+v", c.name, how, err, now, before)
			}
		}
		for n := 1; ; n++ {
			f.calls, f.fails = 0, n
			destroy, err := c.call()
			if f.calls < n { // the call makes fewer allocations
				if f.fails = 0; c.fails {
					unchanged("", err)
					break
				}
				check(t, err)
				check(t, destroy())
				unchanged("and destroy", errUnchanged)
				break
			}
			unchanged(fmt.Sprintf("without allocation %d", n), err)
		}
		if c.exhaust != nil {
			restore := c.exhaust()
			_, err := c.call()
			restore()
			unchanged("without a number", err)
		}
	}
}

var errUnchanged = errors.New("a call has succeeded and has been undone")

// exhaust leaves no free number in a table until restore is called.
func exhaust[T any](of *table[T]) (restore func()) {
	limit, freed, head := of.limit, of.freed, of.head
	of.limit, of.freed, of.head = of.first+of.fresh, nil, 0
	return func() { of.limit, of.freed, of.head = limit, freed, head }
}
