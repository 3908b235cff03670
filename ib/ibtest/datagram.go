package ibtest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"verbena/ib"
	"verbena/roce"
)

// Datagrams: their routes, their keys, and groups.

var datagramChecks = []ruleTest{
	{
		name: "Data/DatagramRoute",
		rule: "the global route header before a datagram is that of its address handle as it was when it was posted, and leads back to the sender",
		test: testDatagramRoute,
	},
	{
		name: "Data/DatagramControlledQKey",
		rule: "a Q_Key with the high bit in a work request stands for that of the sending queue pair; any other is the one that is sent",
		test: testControlledQKey,
	},
	{
		name: "Mcast/Members",
		rule: "each member of a group receives what is sent to it, whatever keeps others from receiving it",
		test: testMcastReachesMembers,
	},
}

func testDatagramRoute(e *testEnv) {
	p, _ := e.newDatagramPair()
	var ahs []*ib.AH
	var attrs []ib.AHAttr
	for i, r := range []ib.GlobalRoute{
		{TrafficClass: 0, HopLimit: 64}, {TrafficClass: 0x20, HopLimit: 1, FlowLabel: 1},
		{TrafficClass: 0xb8, HopLimit: 255, FlowLabel: 0xfffff},
		{TrafficClass: 0xfc, HopLimit: 2, FlowLabel: 0x54321},
	} {
		a := e.connector.ownAddress()
		a.SL, a.GRH.TrafficClass, a.GRH.HopLimit, a.GRH.FlowLabel = uint8(i), r.TrafficClass, r.HopLimit, r.FlowLabel
		a.StaticRate = uint8(i) + 2 // different valid rates (enum ib_rate)
		ah, err := p.pd.CreateAH(&a)
		e.must("create ah", err)
		ahs, attrs = append(ahs, destroyAtEnd(e, ah, ah.Destroy)), append(attrs, a)
	}
	const each = 128 // bytes of the buffer for each receive
	exchange := func(what string) {
		e.Helper()
		var wrs []ib.SendWR
		for i, ah := range ahs {
			p.postRecv(1, uint64(i), each*i, each)
			wrs = append(wrs, p.newDatagramRequest(uint64(i), ah, 8))
		}
		if n, err := p.qps[0].PostSend(wrs...); n != len(wrs) {
			e.Fatalf("post send: %d taken, %v", n, err)
		}
		for i := range ahs {
			e.waitOneCompletion(p.cqs[0], uint64(i), ib.WCSuccess)
			e.waitOneCompletion(p.cqs[1], uint64(i), ib.WCSuccess)
			e.connector.checkDatagramRoute(fmt.Sprintf("%s, datagram %d", what, i), p.buf[1].b[each*i:], attrs[i])
			if got, err := ahs[i].Query(); err != nil || got != attrs[i] {
				e.Errorf("%s: address handle %d: got %+v (%v), want %+v", what, i, got, err, attrs[i])
			}
		}
	}
	exchange("new address handles")
	for i, ah := range ahs { // each receives the attributes of the next
		bad := attrs[i]
		bad.Port = 0
		e.wantErrno("modify an address handle to no port", ah.Modify(&bad), syscall.EINVAL)
	}
	exchange("address handles whose Modify has failed")
	attrs = append(attrs[1:], attrs[0])
	for i, ah := range ahs {
		e.must("modify ah", ah.Modify(&attrs[i]))
	}
	exchange("address handles that were modified")

	// Reply to the sender.
	p.postRecv(1, 1, 0, each)
	p.postSendWR(0, p.newDatagramRequest(1, ahs[1], 8))
	e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
	wc := e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
	a, err := e.dev.AddressOfSender(1, &wc, p.buf[1].b)
	e.must("find the address of the sender", err)
	back, err := p.pd.CreateAH(&a)
	e.must("create ah of the sender", err)
	destroyAtEnd(e, back, back.Destroy)
	p.postRecv(0, 2, pairBufferLen-each, each)
	p.postSendWR(1, ib.SendWR{ID: 3, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[1].newSGL(pairBufferLen-8,
		8), AH: back,
		RemoteQPN: wc.SrcQP, RemoteQKey: qkey})
	e.waitOneCompletion(p.cqs[1], 3, ib.WCSuccess)
	e.waitOneCompletion(p.cqs[0], 2, ib.WCSuccess)
	e.connector.checkDatagramRoute("the answer", p.buf[0].b[pairBufferLen-each:], a)
}

func testControlledQKey(e *testEnv) {
	p, ah := e.newDatagramPair()
	const high = 1 << 31
	receives := 0
	for i, c := range []struct {
		sender, receiver, sent uint32
		arrives                bool
	}{
		{1, 1, high, true},
		{1, 1, high | 1, true},
		{1, 1, high | 0x1234, true},
		{1, 1, 0xffffffff, true},
		{1, 2, high | 2, false},
		{1, 2, 2, true}, // the key of the request, independent of the sender's own key
		{2, 1, 2, false},
		{1, 0, high, false},
		{high | 1, high | 1, high, true},
		{1, high | 1, high | 1, false},
		{high | 1, 1, high, false},
		{high | 1, 1, 1, true},
	} {
		for ; receives < 2; receives++ {
			p.postRecv(1, 1, 0, 100)
		}
		send := func(sender, sent uint32, size int) {
			e.Helper()
			e.must("modify the Q_Key", p.qps[0].Modify(ib.QPAttr{QKey: sender}, ib.QPAttrQKey))
			wr := p.newDatagramRequest(2, ah, size)
			wr.RemoteQKey = sent
			p.postSendWR(0, wr)
			e.waitOneCompletion(p.cqs[0], 2, ib.WCSuccess)
		}
		next := func() int {
			e.Helper()
			receives--
			return int(e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess).ByteLen) - grhLen
		}
		e.must("modify the Q_Key", p.qps[1].Modify(ib.QPAttr{QKey: c.receiver}, ib.QPAttrQKey))
		send(c.sender, c.sent, 8)
		const last = 5 // the length of a datagram that arrives, to detect the end
		send(c.receiver, c.receiver, last)
		arrived := next() != last
		if arrived {
			next()
		}
		if arrived != c.arrives {
			e.Errorf("datagram %d, with Q_Key %#x, the sender's %#x, the receiver's %#x: arrived: %v, want %v",
				i, c.sent, c.sender, c.receiver, arrived, c.arrives)
		}
	}
}

// mcastAddressFunc returns multicast addresses of the device's address family, or nil if it does not support multicast.
func (e *testEnv) mcastAddressFunc() func(i int) ib.GID {
	e.Helper()
	if !e.supportsType(ib.QPTypeUD) {
		return nil
	}
	qp := e.newQPOfType(ib.QPTypeUD, e.newPD(), e.newCQ(1, nil))
	defer e.destroy(qp)
	for _, group := range []func(i int) ib.GID{
		func(i int) ib.GID { return ib.GID{0: 0xff, 1: 0x0e, 14: byte(i >> 8), 15: byte(i)} },
		func(i int) ib.GID { return ib.GID{10: 0xff, 11: 0xff, 12: 239, 13: 1, 14: byte(i >> 8), 15: byte(i)} },
	} {
		err := qp.AttachMcast(group(1), 0)
		if err == nil {
			e.must("detach", qp.DetachMcast(group(1), 0))
			return group
		}
		if !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.EOPNOTSUPP) {
			e.Fatalf("attach to a group: %v", err)
		}
	}
	return nil
}

// groupMember is a member of a group, with posted receives.
type groupMember struct {
	qp  *ib.QP
	cq  *ib.CQ
	buf *registeredBuffer
}

func (e *testEnv) newGroupMember(pd *ib.PD) *groupMember {
	e.Helper()
	cq := e.newCQ(e.queueLen, nil)
	m := &groupMember{e.newQP(pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeUD}), cq, e.newBuffer(pd, 256,
		allAccess)}
	e.connector.moveQPUpTo(m.qp, 0, ib.QPRTS)
	return m
}

func (m *groupMember) checkMemberReceived(e *testEnv, id uint64, n int) {
	e.Helper()
	if k, err := m.qp.PostRecv(ib.RecvWR{ID: id, SGList: m.buf.newSGL(0, n)}); k != 1 {
		e.Fatalf("post receive: %v", err)
	}
}

func testMcastReachesMembers(e *testEnv) {
	group := e.mcastAddressFunc()
	if group == nil {
		e.Skip("the driver has no multicast")
	}
	if n := e.deviceAttr().MaxMcastQPAttach; n < 3 {
		e.Skipf("the device has groups of %d members, and the check needs 3", n)
	}
	p, _ := e.newDatagramPair()
	good := []*groupMember{e.newGroupMember(p.pd), e.newGroupMember(p.pd)}
	to := map[ib.GID]*ib.AH{}
	for i := range 2 {
		a := e.connector.ownAddress()
		a.GRH.DGID = group(i)
		ah, err := p.pd.CreateAH(&a)
		e.must("create ah", err)
		to[group(i)] = destroyAtEnd(e, ah, ah.Destroy)
	}
	id := uint64(100)
	// deliver sends to a group. Some of the members must receive the message.
	deliver := func(what string, g ib.GID, receivers ...*groupMember) {
		e.Helper()
		id++
		fillPattern(p.buf[0].b[:16], int(id))
		for _, m := range receivers {
			clear(m.buf.b)
			m.checkMemberReceived(e, id, 100)
		}
		wr := p.newDatagramRequest(id, to[g], 16)
		wr.RemoteQPN = 0xffffff
		p.postSendWR(0, wr)
		e.waitOneCompletion(p.cqs[0], id, ib.WCSuccess)
		for i, m := range receivers {
			e.eventually(fmt.Sprintf("%s: the datagram for receiver %d of the group", what, i), func() bool {
				var wc [1]ib.WC
				n, err := m.cq.Poll(wc[:])
				e.must("poll", err)
				if n > 0 && (wc[0].ID != id || wc[0].Status != ib.WCSuccess || wc[0].SrcQP != p.qps[0].Num()) {
					e.Fatalf("%s: receiver %d of the group: %+v", what, i, wc[0])
				}
				return n > 0
			})
			if !bytes.Equal(m.buf.b[grhLen:][:16], p.buf[0].b[:16]) {
				e.Errorf("%s: the datagram for receiver %d of the group arrived changed", what, i)
			}
			if h := roce.GRH(m.buf.b[:roce.GRHLen]); h.DGID() != g {
				e.Errorf("%s: the header names %v, want the group %v", what, h.DGID(), g)
			}
		}
	}
	for _, c := range []struct {
		what string
		make func(m *groupMember)
	}{
		{"a member without a receive", func(m *groupMember) {}},
		{"a member with another Q_Key", func(m *groupMember) {
			m.checkMemberReceived(e, 1, 100)
			e.must("modify the Q_Key", m.qp.Modify(ib.QPAttr{QKey: qkey + 1}, ib.QPAttrQKey))
		}},
		{"a member whose receive is too short", func(m *groupMember) { m.checkMemberReceived(e, 1, 50) }},
		{"a member in INIT", func(m *groupMember) {
			e.connector.resetQPs(m.qp)
			e.connector.moveQPUpTo(m.qp, 0, ib.QPInit)
			m.checkMemberReceived(e, 1, 100)
		}},
		{"a member in ERR", func(m *groupMember) {
			e.must("modify to ERR", m.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
		}},
		{"a member that receives, too", nil},
	} {
		for place := range 3 {
			what := fmt.Sprintf("%s, attached as number %d", c.what, place)
			bad, receivers := e.newGroupMember(p.pd), good
			members := slices.Insert([]*ib.QP{good[0].qp, good[1].qp}, place, bad.qp)
			for _, qp := range members {
				e.must("attach", qp.AttachMcast(group(0), 0))
			}
			if c.make != nil {
				c.make(bad)
			} else {
				receivers = append(slices.Clone(good), bad)
			}
			deliver(what, group(0), receivers...)
			e.must("detach", bad.qp.DetachMcast(group(0), 0))
			e.destroy(bad.qp)
			deliver(what+", and gone", group(0), good...)
			for _, m := range good {
				e.must("detach", m.qp.DetachMcast(group(0), 0))
			}
		}
	}
	// Groups with other members.
	e.must("attach", good[0].qp.AttachMcast(group(0), 0))
	e.must("attach", good[1].qp.AttachMcast(group(0), 0))
	e.must("attach", good[1].qp.AttachMcast(group(1), 0))
	good[0].checkMemberReceived(e, id+2, 100) // for the second datagram after this one
	deliver("another group", group(1), good[1])
	deliver("both", group(0), good[1])
	e.waitOneCompletion(good[0].cq, id, ib.WCSuccess)
	e.must("detach", good[0].qp.DetachMcast(group(0), 0))
	deliver("the first has left", group(0), good[1])
	e.must("detach", good[1].qp.DetachMcast(group(0), 0))
	deliver("in another group still", group(1), good[1])
	e.must("detach", good[1].qp.DetachMcast(group(1), 0))
}
