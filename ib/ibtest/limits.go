package ibtest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"verbena/ib"
)

// The reported limits of a device, and the actual capacities of its objects.

var limitChecks = []ruleTest{
	{
		name: "Limits/QueuePair",
		rule: "a queue pair can have as many work requests and elements as the device reports, and no more",
		test: testQueuePairLimits,
	},
	{
		name: "Limits/CompletionQueue",
		rule: "a completion queue can have as many entries as the device reports, made so or resized, and no more",
		test: testCompletionQueueLimits,
	},
	{
		name: "Limits/SharedReceiveQueue",
		rule: "a shared receive queue can have as many work requests and elements as the device reports, made so or modified, and no more",
		test: testSharedReceiveQueueLimits,
	},
	{
		name: "Limits/ReadsAndAtomics",
		rule: "a queue pair can have as many READs and atomics outstanding, and serve as many, as the device reports, and no more",
		test: testReadLimits,
	},
	{
		name: "Limits/Objects",
		rule: "there can be as many objects as the device reports",
		test: testObjectLimits,
	},
	{
		name: "Limits/Ports",
		rule: "the device has the ports from 1 to the number that it reports, and no others",
		test: testPortNumbers,
	},
	{
		name: "Limits/Elements",
		rule: "a work request can have as many elements as its queue was granted, and no more",
		test: testSGELimit,
	},
	{
		name: "Limits/Inline",
		rule: "data can be sent inline up to the length that was granted, and not beyond it",
		test: testInlineLimit,
	},
	{
		name: "Limits/SendQueue",
		rule: "as many send work requests can be outstanding as were granted",
		test: testSendQueueLimit,
	},
	{
		name: "Limits/MemoryRegion",
		rule: "a region can be as long as the device reports, and no longer",
		test: testRegionLimit,
	},
	{
		name: "Limits/MessageSize",
		rule: "a message that is longer than the port allows, or a datagram than the MTU, is refused or a local length error, and nothing of it arrives",
		test: testMessageLimit,
	},
}

// creationLimit is a limit for the creation of an object.
type creationLimit struct {
	name string
	most int
	make func(n int) error // creates and destroys an object of size n
}

// checkCreationLimits fails the test unless an object can be created up to the limit, and not beyond it.
func (r *resultChecker) checkCreationLimits(of string, limits ...creationLimit) {
	r.Helper()
	for _, l := range limits {
		if l.most < 1 {
			r.Errorf("%s: %s is %d", of, l.name, l.most)
			continue
		}
		if err := l.make(l.most); err != nil {
			r.Errorf("%s at the limit, %s %d: %v", of, l.name, l.most, err)
		}
		err := l.make(l.most + 1)
		if err == nil {
			r.Errorf("%s beyond the limit, %s %d, was made", of, l.name, l.most)
			continue
		}
		r.wantErrno(fmt.Sprintf("%s beyond the limit, %s %d", of, l.name, l.most), err, syscall.EINVAL, syscall.ENOMEM)
	}
}

func (e *testEnv) deviceAttr() ib.DeviceAttr {
	e.Helper()
	a, err := e.dev.QueryDevice()
	e.must("query device", err)
	return a
}

// minQPCap returns the minimum capacities of a queue pair of a type: one work request in each queue.
func minQPCap(kind ib.QPType) ib.QPCap {
	c := ib.QPCap{MaxSendWR: 1, MaxSendSGE: 1}
	if kind != ib.QPTypeXRCInit {
		c.MaxRecvWR, c.MaxRecvSGE = 1, 1
	}
	return c
}

// maxInlineData returns the inline capacity that queue pairs can have: most bytes or, if the driver rejects that, a
// half, a quarter and so on. No attribute of a device has this limit.
func (e *testEnv) maxInlineData(pd *ib.PD, kind ib.QPType, most uint32) uint32 {
	e.Helper()
	cq := e.newCQ(2, nil)
	defer e.destroy(cq)
	for ; most > 0; most /= 2 {
		c := minQPCap(kind)
		c.MaxInlineData = most
		qp, err := pd.CreateQP(ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: kind, Cap: c})
		if err == nil {
			e.must("destroy qp", qp.Destroy())
			break
		}
	}
	return most
}

// hasAtLeast reports whether the actual capacities are at least the requested ones.
func hasAtLeast(granted, asked ib.QPCap) bool {
	return granted.MaxSendWR >= asked.MaxSendWR && granted.MaxRecvWR >= asked.MaxRecvWR &&
		granted.MaxSendSGE >= asked.MaxSendSGE &&
		granted.MaxRecvSGE >= asked.MaxRecvSGE && granted.MaxInlineData >= asked.MaxInlineData
}

func testQueuePairLimits(e *testEnv) {
	a := e.deviceAttr()
	pd, cq := e.newPD(), e.newCQ(1, nil)
	for _, kind := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD, ib.QPTypeXRCInit} {
		if !e.supportsType(kind) {
			e.Logf("the driver has no %v queue pairs", kind)
			continue
		}
		with := func(set func(c *ib.QPCap, n uint32)) func(n int) error {
			return func(n int) error {
				init := ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: kind, Cap: minQPCap(kind)}
				if kind == ib.QPTypeXRCInit {
					init.RecvCQ = nil
				}
				set(&init.Cap, uint32(n))
				qp, err := pd.CreateQP(init)
				if err != nil {
					return err
				}
				defer e.destroy(destroyAtEnd(e, qp, qp.Destroy))
				if g := qp.Init().Cap; !hasAtLeast(g, init.Cap) {
					return fmt.Errorf("requested %+v, got %+v", init.Cap, g)
				}
				return nil
			}
		}
		limits := []creationLimit{
			{"MaxQPWR, send", a.MaxQPWR, with(func(c *ib.QPCap, n uint32) { c.MaxSendWR = n })},
			{"MaxSendSGE", a.MaxSendSGE, with(func(c *ib.QPCap, n uint32) { c.MaxSendSGE = n })},
		}
		if kind != ib.QPTypeXRCInit {
			limits = append(limits,
				creationLimit{"MaxQPWR, receive", a.MaxQPWR, with(func(c *ib.QPCap, n uint32) { c.MaxRecvWR = n })},
				creationLimit{"MaxRecvSGE", a.MaxRecvSGE, with(func(c *ib.QPCap, n uint32) { c.MaxRecvSGE = n })},
				creationLimit{"MaxRecvSGE with all of MaxSendSGE", a.MaxRecvSGE, with(func(c *ib.QPCap, n uint32) {
					c.MaxSendSGE, c.MaxRecvSGE = uint32(a.MaxSendSGE), n
				})})
		}
		e.checkCreationLimits(fmt.Sprintf("%v queue pair", kind), limits...)
	}
}

func testCompletionQueueLimits(e *testEnv) {
	a := e.deviceAttr()
	e.checkCreationLimits("completion queue", creationLimit{"MaxCQE", a.MaxCQE, func(n int) error {
		cq, err := e.dev.CreateCQ(ib.CQInit{Entries: n})
		if err != nil {
			return err
		}
		defer e.destroy(destroyAtEnd(e, cq, cq.Destroy))
		if cq.Entries() < n {
			return fmt.Errorf("requested %d entries, got %d", n, cq.Entries())
		}
		return nil
	}})
	small := e.newCQ(3, nil)
	if err := small.Resize(4); errors.Is(err, syscall.EOPNOTSUPP) {
		e.Logf("the driver does not resize completion queues: %v", err)
		return
	}
	e.checkCreationLimits("completion queue that is resized", creationLimit{"MaxCQE", a.MaxCQE, func(n int) error {
		cq := e.newCQ(3, nil)
		defer e.destroy(cq)
		before := cq.Entries()
		if err := cq.Resize(n); err != nil {
			if cq.Entries() != before {
				e.Errorf("the capacity after a Resize that failed is %d, before it %d", cq.Entries(), before)
			}
			return err
		}
		if cq.Entries() < n {
			return fmt.Errorf("requested %d entries, got %d", n, cq.Entries())
		}
		return nil
	}})
}

func testSharedReceiveQueueLimits(e *testEnv) {
	a := e.deviceAttr()
	pd := e.newPD()
	e.destroy(e.newSRQ(pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}}))
	create := func(init ib.SRQInitAttr, wr, sge int) error {
		init.Attr = ib.SRQAttr{MaxWR: uint32(wr), MaxSGE: uint32(sge)}
		srq, err := pd.CreateSRQ(init)
		if err != nil {
			return err
		}
		defer e.destroy(destroyAtEnd(e, srq, srq.Destroy))
		if g := srq.Init().Attr; int(g.MaxWR) < wr || int(g.MaxSGE) < sge {
			return fmt.Errorf("requested %+v, got %+v", init.Attr, g)
		}
		return nil
	}
	limits := func(init ib.SRQInitAttr) []creationLimit {
		return []creationLimit{
			{"MaxSRQWR", a.MaxSRQWR, func(n int) error { return create(init, n, 1) }},
			{"MaxSRQSGE", a.MaxSRQSGE, func(n int) error { return create(init, 1, n) }},
		}
	}
	e.checkCreationLimits("shared receive queue", limits(ib.SRQInitAttr{})...)
	if x, err := e.dev.AllocXRCD(); err == nil {
		destroyAtEnd(e, x, x.Dealloc)
		e.checkCreationLimits("XRC shared receive queue", limits(ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: x, CQ: e.newCQ(1,
			nil)})...)
	}
	srq := e.newSRQ(pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 3, MaxSGE: 1}})
	if err := srq.Modify(ib.SRQAttr{MaxWR: 4}, ib.SRQAttrMaxWR); errors.Is(err, syscall.EOPNOTSUPP) {
		e.Logf("the driver does not resize shared receive queues: %v", err)
		return
	}
	e.checkCreationLimits("shared receive queue that is resized", creationLimit{"MaxSRQWR", a.MaxSRQWR, func(n int) error {
		return srq.Modify(ib.SRQAttr{MaxWR: uint32(n)}, ib.SRQAttrMaxWR)
	}})
}

func testReadLimits(e *testEnv) {
	a := e.deviceAttr()
	pd, cq := e.newPD(), e.newCQ(1, nil)
	try := func(name string, most int, at ib.QPState, set func(a *ib.QPAttr, n uint8)) {
		e.Helper()
		for n := most; n <= most+1 && n <= 255; n++ { // the attributes have 8 bits
			qp := e.newQPOfType(ib.QPTypeRC, pd, cq)
			e.connector.moveQPUpTo(qp, qp.Num(), at-1)
			attr := e.connector.newQPAttr(at, qp.Num())
			set(&attr, uint8(n))
			err := qp.Modify(attr, transitionMask(ib.QPTypeRC, at))
			switch {
			case n == most && err != nil:
				e.Errorf("modify at the limit, %s %d: %v", name, most, err)
			case n > most && err == nil:
				e.Errorf("modify beyond the limit, %s %d, was done", name, most)
			case n > most:
				e.wantErrno(fmt.Sprintf("modify beyond the limit, %s %d", name, most), err, syscall.EINVAL)
			}
			e.destroy(qp)
		}
	}
	if !e.supportsType(ib.QPTypeRC) {
		e.Skip("the driver has no RC queue pairs")
	}
	try("MaxQPRdAtom", a.MaxQPRdAtom, ib.QPRTR, func(a *ib.QPAttr, n uint8) { a.MaxDestRdAtomic = n })
	try("MaxQPInitRdAtom", a.MaxQPInitRdAtom, ib.QPRTS, func(a *ib.QPAttr, n uint8) { a.MaxRdAtomic = n })

	// As many as can be outstanding, and some that must wait.
	out, serve := min(a.MaxQPInitRdAtom, 255), min(a.MaxQPRdAtom, 255)
	most := min(out, serve)
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
	e.connector.resetQPs(p.qps[:]...)
	for s := ib.QPInit; s <= ib.QPRTS; s++ {
		for i, qp := range p.qps {
			attr := e.connector.newQPAttr(s, p.qps[1-i].Num())
			attr.MaxRdAtomic, attr.MaxDestRdAtomic = uint8(most), uint8(most)
			e.must("modify", qp.Modify(attr, transitionMask(ib.QPTypeRC, s)))
		}
	}
	reads := min(most+4, e.queueLen)
	fillPattern(p.buf[1].b, 3)
	for i := range reads {
		n, err := p.qps[0].PostSend(p.newRDMARequest(uint64(i), ib.WRRDMARead, p.buf[0].newSGL(64*i, 64), 64*i))
		if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
			e.Logf("the driver has no RDMA READ: %v", err)
			return
		}
		if n != 1 {
			e.Fatalf("post READ %d of %d: %v", i, reads, err)
		}
	}
	for i := range reads {
		e.waitOneCompletion(p.cqs[0], uint64(i), ib.WCSuccess)
	}
	if !bytes.Equal(p.buf[0].b[:64*reads], p.buf[1].b[:64*reads]) {
		e.Errorf("%d READs at once: the data are not where they should be", reads)
	}
}

// maxCreatedObjects limits the number of objects that a check creates.
const maxCreatedObjects = 1 << 10

func testPortNumbers(e *testEnv) {
	a, err := e.dev.QueryDevice()
	e.must("query device", err)
	if a.PhysPorts < 1 {
		e.Errorf("the device reports %d ports", a.PhysPorts)
	}
	for port := range a.PhysPorts + 2 {
		_, err := e.dev.QueryPort(port)
		if exists := port >= 1 && port <= a.PhysPorts; exists != (err == nil) {
			e.Errorf("query port %d of %d: %v", port, a.PhysPorts, err)
		}
	}
}

func testObjectLimits(e *testEnv) {
	a := e.deviceAttr()
	pd, cq := e.newPD(), e.newCQ(1, nil)
	init := ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC, Cap: minQPCap(ib.QPTypeRC)}
	group := e.mcastAddressFunc()
	var ud *ib.QP
	if kind := ib.QPTypeUD; group != nil {
		ud = e.newQPOfType(kind, pd, cq)
	}
	have := e.dev.Objects()
	attach := func(qp *ib.QP, g ib.GID) (func() error, error) {
		return func() error { return qp.DetachMcast(g, 0) }, qp.AttachMcast(g, 0)
	}
	members := a.MaxMcastQPAttach
	if members > a.MaxQP-int(have.QP) { // more than there can be
		members = 0
	}
	for _, l := range []struct {
		name string
		most int
		have int64 // existing objects
		make func(i int) (destroy func() error, err error)
	}{
		{"MaxPD", a.MaxPD, have.PD, func(int) (func() error,
			error) {
			return destroyMethodOf(e.dev.AllocPD())((*ib.PD).Dealloc)
		}},
		{"MaxCQ", a.MaxCQ, have.CQ, func(int) (func() error, error) {
			return destroyMethodOf(e.dev.CreateCQ(ib.CQInit{Entries: 1}))((*ib.CQ).Destroy)
		}},
		{"MaxQP", a.MaxQP, have.QP, func(int) (func() error,
			error) {
			return destroyMethodOf(pd.CreateQP(init))((*ib.QP).Destroy)
		}},
		{"MaxSRQ", a.MaxSRQ, 0, func(int) (func() error, error) {
			return destroyMethodOf(pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}}))((*ib.SRQ).Destroy)
		}},
		{"MaxMW", a.MaxMW, 0, func(int) (func() error,
			error) {
			return destroyMethodOf(pd.AllocMW(ib.MWType1))((*ib.MW).Dealloc)
		}},
		{"MaxAH", a.MaxAH, 0, func(int) (func() error, error) {
			to := e.connector.ownAddress()
			return destroyMethodOf(pd.CreateAH(&to))((*ib.AH).Destroy)
		}},
		{"MaxMcastGrp", a.MaxMcastGrp, 0, func(i int) (func() error, error) { return attach(ud, group(i)) }},
		{"MaxMcastQPAttach", members, 0, func(int) (func() error, error) {
			qp := e.newQPOfType(ib.QPTypeUD, pd, cq)
			detach, err := attach(qp, group(0))
			return func() error { return errors.Join(detach(), e.tryDestroy(qp)) }, err
		}},
	} {
		switch {
		case l.most == 0, group == nil && strings.HasPrefix(l.name, "MaxMcast"):
			continue // no such objects
		case l.most > maxCreatedObjects:
			e.Logf("%s is %d: not tried", l.name, l.most)
			continue
		}
		var destroy []func() error
		for i := range l.most - int(l.have) {
			d, err := l.make(i)
			if err != nil {
				e.Errorf("object %d of %s %d: %v", int(l.have)+i+1, l.name, l.most, err)
				break
			}
			destroy = append(destroy, d)
		}
		for _, d := range slices.Backward(destroy) {
			e.must("destroy", d())
		}
	}
}

// destroyMethodOf returns the method that destroys the created object.
func destroyMethodOf[T any](x *T, err error) func(destroy func(*T) error) (func() error, error) {
	return func(destroy func(*T) error) (func() error, error) { return func() error { return destroy(x) }, err }
}

// scatteredSGL returns n elements of 8 bytes in a buffer, in reverse order and with gaps.
func (b *registeredBuffer) scatteredSGL(n int) (list []ib.SGE) {
	for i := range n {
		list = append(list, b.newSGE(16*(n-1-i), 8))
	}
	return list
}

// scatteredData returns the data that the elements of pieces gather or scatter.
func (b *registeredBuffer) scatteredData(n int) (data []byte) {
	for i := range n {
		data = append(data, b.b[16*(n-1-i):][:8]...)
	}
	return data
}

func testSGELimit(e *testEnv) {
	a := e.deviceAttr()
	pd := e.newPD()
	var cqs [2]*ib.CQ
	var qps [2]*ib.QP
	var bufs [2]*registeredBuffer
	for _, asked := range []struct{ send, recv int }{{a.MaxSendSGE, a.MaxRecvSGE}, {1, 1}, {2, 3}} {
		if asked.send > a.MaxSendSGE || asked.recv > a.MaxRecvSGE {
			continue
		}
		for i := range qps {
			cqs[i] = e.newCQ(8, nil)
			qps[i] = e.newQP(pd, ib.QPInitAttr{SendCQ: cqs[i], RecvCQ: cqs[i], Type: ib.QPTypeRC,
				Cap: ib.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: uint32(asked.send), MaxRecvSGE: uint32(asked.recv)}})
		}
		send, recv := int(qps[0].Init().Cap.MaxSendSGE), int(qps[1].Init().Cap.MaxRecvSGE)
		for i := range bufs {
			bufs[i] = e.newBuffer(pd, 16*max(send, recv)+16, allAccess)
		}
		p := &pair{e: e, pd: pd, cqs: cqs, qps: qps, buf: bufs}
		for i := range qps {
			e.connector.moveQPUpTo(qps[i], qps[1-i].Num(), ib.QPRTS)
		}
		n, err := qps[1].PostRecv(ib.RecvWR{ID: 9, SGList: bufs[1].scatteredSGL(recv + 1)})
		if n != 0 {
			e.Fatalf("a receive of %d elements was taken by a queue with %d", recv+1, recv)
		}
		e.wantErrno(fmt.Sprintf("receive of %d elements in a queue with %d", recv+1, recv), err, syscall.EINVAL)
		if n, err := qps[1].PostRecv(ib.RecvWR{ID: 1, SGList: bufs[1].scatteredSGL(recv)}); n != 1 {
			e.Fatalf("receive of %d elements: %v", recv, err)
		}
		for _, op := range []ib.WROpcode{ib.WRSend, ib.WRRDMAWrite} {
			wr := p.newRDMARequest(9, op, bufs[0].scatteredSGL(send+1), 0)
			n, err := qps[0].PostSend(wr)
			if n != 0 {
				e.Fatalf("opcode %d of %d elements was taken by a queue with %d", op, send+1, send)
			}
			if !errors.Is(err, syscall.EOPNOTSUPP) && !errors.Is(err, syscall.ENOSYS) {
				e.wantErrno(fmt.Sprintf("opcode %d of %d elements in a queue with %d", op, send+1, send), err, syscall.EINVAL)
			}
		}
		both := min(send, recv) // a message that fills one of the two lists
		fillPattern(bufs[0].b, send)
		if n, err := qps[0].PostSend(ib.SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: append(
			slices.Repeat([]ib.SGE{bufs[0].newSGE(0, 0)}, send-both), bufs[0].scatteredSGL(both)...)}); n != 1 {
			e.Fatalf("send of %d elements: %v", send, err)
		}
		e.waitOneCompletion(cqs[0], 2, ib.WCSuccess)
		if wc := e.waitOneCompletion(cqs[1], 1, ib.WCSuccess); int(wc.ByteLen) != 8*both ||
			!bytes.Equal(bufs[0].scatteredData(both), bufs[1].scatteredData(recv)[:8*both]) {
			e.Errorf("a message of %d elements to a receive of %d: %d bytes, which are not as they were sent", send, recv,
				wc.ByteLen)
		}
		if m := min(send, a.MaxSGERd); m > 0 {
			fillPattern(bufs[1].b, 5)
			if n, err := qps[0].PostSend(p.newRDMARequest(3, ib.WRRDMARead, bufs[0].scatteredSGL(m), 0)); n == 1 {
				e.waitOneCompletion(cqs[0], 3, ib.WCSuccess)
				if !bytes.Equal(bufs[0].scatteredData(m), bufs[1].b[:8*m]) {
					e.Errorf("a READ of %d elements: the data are not where they should be", m)
				}
			} else if !errors.Is(err, syscall.EOPNOTSUPP) && !errors.Is(err, syscall.ENOSYS) {
				e.Errorf("READ of %d elements, MaxSGERd is %d: %v", m, a.MaxSGERd, err)
			}
		}
		e.destroy(qps[0])
		e.destroy(qps[1])
	}
	// The same for shared receive queues.
	for _, asked := range []int{1, a.MaxSRQSGE} {
		if asked < 1 {
			continue
		}
		srq, err := pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 2, MaxSGE: uint32(asked)}})
		if errors.Is(err, syscall.EOPNOTSUPP) {
			break
		}
		e.must("create srq", err)
		destroyAtEnd(e, srq, srq.Destroy)
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd, srq: srq})
		room := int(srq.Init().Attr.MaxSGE)
		n, err := srq.PostRecv(ib.RecvWR{ID: 9, SGList: p.buf[1].scatteredSGL(room + 1)})
		if n != 0 {
			e.Fatalf("a receive of %d elements was taken by a shared queue with %d", room+1, room)
		}
		e.wantErrno(fmt.Sprintf("receive of %d elements in a shared queue with %d", room+1, room), err, syscall.EINVAL)
		if n, err := srq.PostRecv(ib.RecvWR{ID: 1, SGList: p.buf[1].scatteredSGL(room)}); n != 1 {
			e.Fatalf("receive of %d elements in a shared queue: %v", room, err)
		}
		fillPattern(p.buf[0].b, 6)
		p.postSend(0, 2, 8*room)
		e.waitOneCompletion(p.cqs[0], 2, ib.WCSuccess)
		e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
		if !bytes.Equal(p.buf[0].b[:8*room], p.buf[1].scatteredData(room)) {
			e.Errorf("a message to a receive of %d elements of a shared queue: the data are not where they should be", room)
		}
	}
}

func testInlineLimit(e *testEnv) {
	pd := e.newPD()
	for _, kind := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD} {
		if !e.supportsType(kind) {
			e.Logf("the driver has no %v queue pairs", kind)
			continue
		}
		most := e.maxInlineData(pd, kind, 64)
		for _, asked := range []uint32{0, 1, 60, 64} {
			if asked > most {
				e.Logf("%v queue pairs cannot have %d bytes of inline data", kind, asked)
				continue
			}
			sendInlineUpTo(e, e.newPair(pairConfig{kind: kind, pd: pd}), asked)
		}
	}
}

// sendInlineUpTo sends the requested number of inline bytes from a new queue pair to the other side of p.
func sendInlineUpTo(e *testEnv, p *pair, asked uint32) {
	e.Helper()
	kind := p.qps[0].Type()
	c := minQPCap(kind)
	c.MaxSendWR, c.MaxInlineData = 4, asked
	qp := e.newQP(p.pd, ib.QPInitAttr{SendCQ: p.cqs[0], RecvCQ: p.cqs[0], Type: kind, Cap: c})
	e.connector.resetQPs(p.qps[:]...)
	e.connector.moveQPUpTo(p.qps[1], qp.Num(), ib.QPRTS)
	e.connector.moveQPUpTo(qp, p.qps[1].Num(), ib.QPRTS)
	p.qps[0] = qp
	most, grh := int(qp.Init().Cap.MaxInlineData), 0
	ops := []ib.WROpcode{ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm}
	wr := ib.SendWR{RemoteAddr: p.buf[1].addr, RKey: p.buf[1].mr.RKey()}
	var mw *ib.MW
	if kind == ib.QPTypeRC {
		if w, err := p.pd.AllocMW(ib.MWType2); err == nil {
			destroyAtEnd(e, w, w.Dealloc)
			mw, ops = w, append(ops, ib.WRSendWithInv)
		}
	}
	if kind == ib.QPTypeUD {
		ops, grh = ops[:2], grhLen
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = e.newAH(p.pd), p.qps[1].Num(), qkey
	}
	data := make([]byte, most+1)
	for i, op := range ops {
		wr.Opcode, wr.ID, wr.Flags, wr.Inline = op, uint64(i), ib.SendSignaled|ib.SendInline, data
		n, err := qp.PostSend(wr)
		if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
			continue
		}
		if n != 0 {
			e.Fatalf("%v queue pair, opcode %d: %d bytes inline were taken, the limit is %d", kind, op, len(data), most)
		}
		e.wantErrno(fmt.Sprintf("%v queue pair, opcode %d: %d bytes inline, more than the limit of %d", kind, op, len(data), most), err,
			syscall.EINVAL)
		for _, size := range slices.Compact([]int{0, max(0, most-1), most}) {
			fillPattern(data, size+i)
			clear(p.buf[1].b[:grh+size])
			if op != ib.WRRDMAWrite {
				p.postRecv(1, 7, 0, grh+most+8)
			}
			if op == ib.WRSendWithInv {
				p.bindAndWait(ib.BindMW{MW: mw, MR: p.buf[1].mr, RKey: ib.IncRKey(mw.RKey()), Addr: p.buf[1].addr, Length: 8,
					Access: ib.AccessRemoteWrite}, ib.WCSuccess)
				wr.InvalidateRKey = mw.RKey()
			}
			wr.Inline = data[:size]
			p.postSendWR(0, wr)
			e.waitOneCompletion(p.cqs[0], wr.ID, ib.WCSuccess)
			if op == ib.WRRDMAWrite && kind != ib.QPTypeRC {
				// Its completion does not prove that the memory is written, another message does.
				p.postRecv(1, 7, pairBufferLen-8, 8)
				p.postSendWR(0, ib.SendWR{ID: 8, Opcode: ib.WRSend, Flags: ib.SendSignaled})
				e.waitOneCompletion(p.cqs[0], 8, ib.WCSuccess)
			}
			if op != ib.WRRDMAWrite || kind != ib.QPTypeRC {
				e.waitOneCompletion(p.cqs[1], 7, ib.WCSuccess)
			}
			if !bytes.Equal(p.buf[1].b[grh:][:size], data[:size]) {
				e.Errorf("%v queue pair, opcode %d: %d of %d bytes inline did not arrive as they were sent", kind, op, size, most)
			}
		}
	}
}

func testSendQueueLimit(e *testEnv) {
	pd := e.newPD()
	for _, asked := range []uint32{1, 4, uint32(min(50, e.limits.MaxQPWR))} {
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
		c := minQPCap(ib.QPTypeRC)
		c.MaxSendWR = asked
		cq := e.newCQ(200, nil)
		qp := e.newQP(pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC, Cap: c})
		e.connector.resetQPs(p.qps[:]...)
		e.connector.moveQPUpTo(p.qps[1], qp.Num(), ib.QPRTS)
		e.connector.moveQPUpTo(qp, p.qps[1].Num(), ib.QPRTS)
		room := int(qp.Init().Cap.MaxSendWR)
		wrs := make([]ib.SendWR, room+3)
		for i := range wrs {
			wrs[i] = ib.SendWR{ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8)}
		}
		n, err := qp.PostSend(wrs...) // the requests wait for receives
		if n < room || n == len(wrs) {
			e.Fatalf("%d of %d work requests taken, room for %d, error %v", n, len(wrs), room, err)
		}
		e.wantErrno("post to a full send queue", err, syscall.ENOMEM)
		for round := range 2 { // in the second round the queue has wrapped around
			for i := 0; i < n; i += e.queueLen {
				for j := i; j < min(n, i+e.queueLen); j++ {
					p.postRecv(1, uint64(j), 0, 8)
				}
				for j := i; j < min(n, i+e.queueLen); j++ {
					e.waitOneCompletion(cq, uint64(j), ib.WCSuccess)
					e.waitOneCompletion(p.cqs[1], uint64(j), ib.WCSuccess)
				}
			}
			if round == 1 {
				break
			}
			if k, err := qp.PostSend(wrs[:room]...); k != room {
				e.Fatalf("%d of %d work requests taken by a queue that is empty again: %v", k, room, err)
			}
			n = room
		}
	}
}
