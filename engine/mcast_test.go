package engine

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/roce"
)

var testGroup = ib.GIDFromAddr(netip.MustParseAddr("239.1.2.3"))

// party is a datagram queue pair with a completion queue of its own.
type party struct {
	n  *node
	cq *ib.CQ
	qp *ib.QP
}

func newParty(n *node) *party {
	n.t.Helper()
	x := &party{n: n}
	var err error
	x.cq, err = n.dev.IB().CreateCQ(ib.CQInit{Entries: 100})
	check(n.t, err)
	x.qp, err = n.pd.CreateQP(ib.QPInitAttr{
		Type: ib.QPTypeUD, SendCQ: x.cq, RecvCQ: x.cq, Cap: ib.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1,
			MaxRecvSGE: 1},
	})
	check(n.t, err)
	toRTR(n.t, x.qp, n.dev, 0, conn{})
	toRTS(n.t, x.qp, conn{})
	return x
}

func (x *party) recv(id uint64, off int) {
	x.n.t.Helper()
	_, err := x.qp.PostRecv(ib.RecvWR{ID: id, SGList: x.n.sge(off, 1000)})
	check(x.n.t, err)
}

// got returns the IDs of the completed receives.
func (x *party) got() (ids []uint64) {
	x.n.t.Helper()
	wc := make([]ib.WC, 16)
	n, err := x.cq.Poll(wc)
	check(x.n.t, err)
	for _, c := range wc[:n] {
		if c.Status != ib.WCSuccess {
			x.n.t.Errorf("%+v", c)
		}
		if c.Opcode == ib.WCRecv {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

func (x *party) destroy() {
	check(x.n.t, x.qp.Destroy())
	check(x.n.t, x.cq.Destroy())
}

// TestMulticast tests that a datagram for a group reaches every queue pair in it except the sender, on every device,
// once, with and without the shortcut.
func TestMulticast(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		s.typ = ib.QPTypeUD
		b := newBench(t, s)
		parties := []*party{newParty(b.a), newParty(b.a), newParty(b.b), newParty(b.b), newParty(b.b)}
		in := []int{0, 1, 2, 3} // the last stays out
		for _, i := range in {
			check(t, parties[i].qp.AttachMcast(testGroup, 0))
		}
		if err := parties[0].qp.AttachMcast(testGroup, 0); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("attach twice: %v", err)
		}
		if err := parties[0].qp.Destroy(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("destroy a member: %v", err)
		}
		ah, err := b.a.pd.CreateAH(&ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: testGroup, SGIDIndex: 1,
			HopLimit: 3}})
		check(t, err)
		fill(b.a.buf[:100], 9)
		send := func(key uint32) {
			t.Helper()
			for i, x := range parties {
				x.recv(uint64(i), 2000+1000*i)
			}
			_, err := parties[0].qp.PostSend(ib.SendWR{
				Opcode: ib.WRSend, SGList: b.a.sge(0, 100), AH: ah, RemoteQPN: roce.QPNMulticast, RemoteQKey: key,
			})
			check(t, err)
			testutil.AdvanceTime(10 * time.Millisecond)
		}
		expect := func(want ...int) {
			t.Helper()
			for i, x := range parties {
				got := x.got()
				if n := map[bool]int{true: 1}[slices.Contains(want, i)]; len(got) != n {
					t.Errorf("queue pair %d got %d datagrams, want %d", i, len(got), n)
				} else if n == 1 {
					buf := x.n.buf[2000+1000*int(got[0]):]
					if h := roce.GRH(buf[:grhLen]); h.DGID() != testGroup || h.HopLimit() != 3 || !bytes.Equal(buf[grhLen:][:100],
						b.a.buf[:100]) {
						t.Errorf("queue pair %d: header or data are wrong: % x", i, buf[:grhLen])
					}
				}
			}
		}
		send(testQKey)
		expect(1, 2, 3)
		send(testQKey + 1)
		expect()
		// An address that goes and returns joins the groups again.
		ifi := b.b.dev.at.Load().netdev
		b.b.dev.SetInterface(ifi, nil)
		send(testQKey)
		expect(1)
		b.b.dev.SetInterface(ifi, []netip.Addr{addrB})
		send(testQKey)
		expect(1, 2, 3)
		check(t, parties[2].qp.DetachMcast(testGroup, 0))
		send(testQKey)
		expect(1, 3)
		// Packets for the group's address with a queue pair's number, or for the number of groups with a queue pair's
		// address, are dropped.
		for _, x := range []struct {
			num uint32
			dst netip.Addr
		}{{parties[3].qp.Num(), testGroup.Addr()}, {roce.QPNMulticast, addrB}} {
			buf := make([]byte, roce.UDSendOnly.PacketLen(0))
			k := roce.NewPacket(buf, &roce.BTHFields{Opcode: roce.UDSendOnly, PKey: roce.DefaultPKey, DestQPN: x.num}, 0)
			k.DETH().Encode(testQKey, 77)
			b.b.dev.at.Load().endpoints[0].arrive(addrA, x.dst, buf[:len(buf)-roce.ICRCLen])
		}
		expect()
		for _, i := range []int{0, 1, 3} {
			check(t, parties[i].qp.DetachMcast(testGroup, 0))
		}
		if err := parties[3].qp.DetachMcast(testGroup, 0); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("detach twice: %v", err)
		}
		send(testQKey)
		expect()
		check(t, ah.Destroy())
		for _, x := range parties {
			x.destroy()
		}
	})
}

// TestMulticastAddresses tests that a device with several addresses receives a group datagram once, also after
// changes of addresses.
func TestMulticastAddresses(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		s.typ = ib.QPTypeUD
		b := newBench(t, s)
		from, to := newParty(b.a), newParty(b.b)
		second := netip.MustParseAddr("10.0.0.77")
		ifi := b.b.dev.at.Load().netdev
		ah, err := b.a.pd.CreateAH(&ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: testGroup, SGIDIndex: 1,
			HopLimit: 3}})
		check(t, err)
		to.recv(0, 2000) // for a second copy
		b.b.dev.SetInterface(ifi, []netip.Addr{addrB, second})
		check(t, to.qp.AttachMcast(testGroup, 0))
		for _, addrs := range [][]netip.Addr{{addrB, second}, {addrB}, {second, addrB}, {second}, {}, {second}, {addrB}} {
			b.b.dev.SetInterface(ifi, addrs)
			to.recv(1, 2000)
			_, err := from.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: b.a.sge(0, 100), AH: ah,
				RemoteQPN: roce.QPNMulticast, RemoteQKey: testQKey})
			check(t, err)
			testutil.AdvanceTime(10 * time.Millisecond)
			if got, want := len(to.got()), min(len(addrs), 1); got != want {
				t.Errorf("addresses %v: got %d datagrams, want %d", addrs, got, want)
			}
			from.got()
		}
		check(t, to.qp.DetachMcast(testGroup, 0))
		check(t, ah.Destroy())
		from.destroy()
		to.destroy()
	})
}

// TestMulticastLimits tests the numbers and the kinds of groups.
func TestMulticastLimits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{typ: ib.QPTypeUD})
		x := newParty(b.a)
		defer x.destroy()
		if err := x.qp.AttachMcast(ib.GID{0: 0xff, 1: 0xe, 15: 1}, 0); !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("a group of a family that the device has no address of: %v", err)
		}
		group := func(i int) ib.GID {
			return ib.GIDFromAddr(netip.AddrFrom4([4]byte{239, 0, byte(i >> 8), byte(i)}))
		}
		for i := range maxGroups {
			check(t, x.qp.AttachMcast(group(i), 0))
		}
		if err := x.qp.AttachMcast(group(maxGroups), 0); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("one group too many: %v", err)
		}
		for i := range maxGroups {
			check(t, x.qp.DetachMcast(group(i), 0))
		}
		var members []*ib.QP
		for range maxMembers {
			qp := b.a.newQP(setup{typ: ib.QPTypeUD})
			check(t, qp.AttachMcast(testGroup, 0))
			members = append(members, qp)
		}
		if err := x.qp.AttachMcast(testGroup, 0); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("one queue pair too many: %v", err)
		}
		for _, qp := range members {
			check(t, qp.DetachMcast(testGroup, 0))
			check(t, qp.Destroy())
		}
		rc := b.a.newQP(setup{typ: ib.QPTypeRC})
		if err := rc.AttachMcast(testGroup, 0); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a connected queue pair: %v", err)
		}
		check(t, rc.Destroy())
	})
}

// arrival returns an arrival of packets from the network.
func arrival(src, dst netip.Addr, packets ...[]byte) *link.Arrival {
	return &link.Arrival{Src: src, Dst: dst, TTL: 64, Packets: packets}
}
