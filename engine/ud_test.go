package engine

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link/simnet"
	"verbena/roce"
)

// TestDatagramRoute tests that the class and the hop limit of the address vector are on the wire and in the header at
// the receiver. An answer to that header arrives.
func TestDatagramRoute(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		s.typ = ib.QPTypeUD
		b := newBench(t, s)
		b.connect(conn{})
		gid, err := ops{b.b.dev}.QueryGID(1, 1)
		check(t, err)
		route := ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: gid.GID, SGIDIndex: 1}}
		for i, x := range []struct{ class, hops, want uint8 }{{0, 0, 64}, {0xb8, 5, 5}, {0x20, 255, 255}, {0x20, 1, 1}} {
			route.GRH.TrafficClass, route.GRH.HopLimit = x.class, x.hops
			ah, err := b.a.pd.CreateAH(&route)
			check(t, err)
			b.b.recv(1, 0, 1000)
			b.a.send(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 50), AH: ah,
				RemoteQPN: b.b.qp.Num(), RemoteQKey: testQKey})
			b.a.poll(1)
			wc := b.b.poll(1)[0]
			h := roce.GRH(b.b.buf[:grhLen])
			if wc.Status != ib.WCSuccess || h.TrafficClass() != x.class || h.HopLimit() != x.want {
				t.Errorf("case %d: class %#x, hop limit %d, want %#x and %d (%v)", i, h.TrafficClass(), h.HopLimit(), x.class,
					x.want, wc.Status)
			}
			check(t, ah.Destroy())

			back, err := b.b.dev.IB().AddressOfSender(1, &wc, b.b.buf[:grhLen])
			check(t, err)
			own, err := ops{b.a.dev}.QueryGID(1, 1)
			check(t, err)
			if back.GRH.DGID != own.GID || back.GRH.SGIDIndex != 1 || back.GRH.TrafficClass != x.class {
				t.Fatalf("address of the sender: %+v", back)
			}
			ah, err = b.b.pd.CreateAH(&back)
			check(t, err)
			b.a.recv(2, 0, 1000)
			b.b.send(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.b.sge(0, 5), AH: ah, RemoteQPN: wc.SrcQP,
				RemoteQKey: testQKey})
			b.b.poll(1)
			if wc := b.a.poll(1)[0]; wc.Status != ib.WCSuccess || wc.ByteLen != grhLen+5 {
				t.Errorf("answer: %+v", wc)
			}
			check(t, ah.Destroy())
		}
		if _, err := b.b.dev.IB().AddressOfSender(1, &ib.WC{}, b.b.buf[:grhLen]); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a completion without header: %v", err)
		}
	})
}

// TestDatagramHeaderType tests that the completion of a datagram reports the type of its network header like mlx5, in
// the low bits of the service level, and that an answer has service level 0.
func TestDatagramHeaderType(t *testing.T) {
	v6 := [2]netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")}
	for _, c := range []struct {
		name  string
		addrs [2]netip.Addr
		want  uint8
	}{{"IPv4", [2]netip.Addr{addrA, addrB}, 2}, {"IPv6", v6, 1}} {
		t.Run(c.name, func(t *testing.T) {
			eachNetwork(t, func(t *testing.T, s setup) {
				s.typ, s.network, s.addrs = ib.QPTypeUD, simnet.New(s.net), c.addrs
				b := newBench(t, s)
				b.connect(conn{})
				ah := newAH(b.a, b.b.dev, 1)
				b.b.recv(1, 0, 100)
				b.a.send(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 5), AH: ah,
					RemoteQPN: b.b.qp.Num(), RemoteQKey: testQKey})
				if wc := b.a.poll(1)[0]; wc.SL != 0 {
					t.Errorf("completion of the send: SL %d, want 0", wc.SL)
				}
				wc := b.b.poll(1)[0]
				if wc.Status != ib.WCSuccess || wc.SL != c.want {
					t.Errorf("completion of the receive: %v, SL %d, want %d", wc.Status, wc.SL, c.want)
				}
				back, err := b.b.dev.IB().AddressOfSender(1, &wc, b.b.buf[:grhLen])
				check(t, err)
				if back.SL != 0 {
					t.Errorf("AddressOfSender: SL %d, want 0", back.SL)
				}
				// Programs copy the SL from the completion (ibv_init_ah_from_wc).
				back.SL = wc.SL
				answer, err := b.b.pd.CreateAH(&back)
				check(t, err)
				b.a.recv(2, 0, 100)
				b.b.send(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.b.sge(0, 5), AH: answer,
					RemoteQPN: wc.SrcQP, RemoteQKey: testQKey})
				b.b.poll(1)
				if wc := b.a.poll(1)[0]; wc.Status != ib.WCSuccess || wc.SL != c.want {
					t.Errorf("completion of the answer: %v, SL %d, want %d", wc.Status, wc.SL, c.want)
				}
				check(t, answer.Destroy())
				check(t, ah.Destroy())
			})
		})
	}
}

// TestViolations tests that packets with a wrong key are counted.
func TestViolations(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{typ: ib.QPTypeUD, shortcut: true})
		b.connect(conn{})
		ah := newAH(b.a, b.b.dev, 1)
		defer func() { check(t, ah.Destroy()) }()
		wr := ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 8), AH: ah, RemoteQPN: b.b.qp.Num(),
			RemoteQKey: 5}
		for range 3 {
			b.a.send(wr)
			b.a.poll(1)
		}
		buf := make([]byte, roce.UDSendOnly.PacketLen(0))
		roce.NewPacket(buf, &roce.BTHFields{Opcode: roce.UDSendOnly, PKey: 0x1234, DestQPN: b.b.qp.Num()}, 0)
		b.b.dev.at.Load().endpoints[0].arrive(addrA, addrB, buf[:len(buf)-roce.ICRCLen])
		testutil.AdvanceTime(time.Millisecond)
		a, err := ops{b.b.dev}.QueryPort(1)
		check(t, err)
		if a.QKeyViolations != 3 || a.BadPKeyCounter != 1 {
			t.Errorf("%d Q_Key and %d P_Key violations, want 3 and 1", a.QKeyViolations, a.BadPKeyCounter)
		}
		// A controlled key in the work request selects the queue pair's own key.
		b.b.recv(1, 0, 100)
		wr.RemoteQKey = 1 << 31
		b.a.send(wr)
		b.a.poll(1)
		b.b.expect(ib.WC{ID: 1, Opcode: ib.WCRecv, ByteLen: grhLen + 8, Flags: ib.WCGRH})
	})
}

// newGSI creates and starts the GSI queue pair of a node. The Q_Key that it sets has no effect, because the queue pair
// has a fixed one.
func newGSI(n *node) *ib.QP {
	n.t.Helper()
	qp, err := n.pd.CreateQP(ib.QPInitAttr{
		Type: ib.QPTypeGSI, Port: 1, SendCQ: n.cq, RecvCQ: n.cq, Cap: ib.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1,
			MaxRecvSGE: 1},
	})
	check(n.t, err)
	for _, a := range []struct {
		s ib.QPState
		m ib.QPAttrMask
	}{{ib.QPInit, ib.QPAttrPKeyIndex | ib.QPAttrQKey}, {ib.QPRTR, 0}, {ib.QPRTS, ib.QPAttrSQPSN}} {
		check(n.t, qp.Modify(ib.QPAttr{State: a.s, QKey: testQKey}, a.m|ib.QPAttrState))
	}
	return qp
}

// TestGSI exchanges datagrams between the queue pairs number 1 of two devices.
func TestGSI(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		b := newBench(t, s)
		init := ib.QPInitAttr{Type: ib.QPTypeGSI, Port: 1, SendCQ: b.a.cq, RecvCQ: b.a.cq}
		a, z := newGSI(b.a), newGSI(b.b)
		if a.Num() != 1 || z.Num() != 1 {
			t.Fatalf("numbers %d and %d", a.Num(), z.Num())
		}
		if attr, _, err := a.Query(ib.QPAttrPort); err != nil || attr.Port != 1 {
			t.Errorf("Query: got port %d, %v, want 1", attr.Port, err)
		}
		if _, err := b.a.pd.CreateQP(init); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("a second one: %v", err)
		}
		if _, err := ibuser.CreateQP(b.a.pd, init, &ib.Udata{Context: newProgram(t)}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("create for a user: %v", err)
		}
		init.Port = 2
		if _, err := b.a.pd.CreateQP(init); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("create on port 2: %v", err)
		}
		init.Type = ib.QPTypeSMI
		if _, err := b.a.pd.CreateQP(init); !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("SMI: %v", err)
		}
		ah := newAH(b.a, b.b.dev, 1)
		fill(b.a.buf[:256], 3)
		for i := range 3 {
			_, err := z.PostRecv(ib.RecvWR{ID: 7, SGList: b.b.sge(0, grhLen+256)})
			check(t, err)
			// The work request's key is replaced by the well-known one.
			_, err = a.PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 256), AH: ah,
				RemoteQPN: 1, RemoteQKey: uint32(i)})
			check(t, err)
			b.a.poll(1)
			wc := b.b.poll(1)[0]
			if wc.Status != ib.WCSuccess || wc.QP != z || wc.SrcQP != 1 || wc.PKeyIndex != 0 || wc.SL != 0 || wc.Port != 1 ||
				!slices.Equal(b.b.buf[grhLen:][:256], b.a.buf[:256]) {
				t.Fatalf("%+v", wc)
			}
		}
		// A datagram queue pair reaches the GSI queue pair only with the key.
		ud := b.a.newQP(setup{typ: ib.QPTypeUD, cap: ib.QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
		toRTR(t, ud, b.b.dev, 0, conn{})
		toRTS(t, ud, conn{})
		_, err := ud.PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 8), AH: ah,
			RemoteQPN: 1, RemoteQKey: testQKey})
		check(t, err)
		b.a.poll(1)
		testutil.AdvanceTime(time.Millisecond)
		if p, _ := (ops{b.b.dev}).QueryPort(1); p.QKeyViolations != 1 {
			t.Errorf("%d violations", p.QKeyViolations)
		}
		check(t, ud.Destroy())
		check(t, ah.Destroy())
		check(t, a.Destroy())
		check(t, z.Destroy())
		check(t, newGSI(b.a).Destroy()) // another one is possible now
	})
}

// TestSourcePorts tests that packets have the source ports that Linux would use.
func TestSourcePorts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{net: simnet.Config{Record: true}})
		b.connect(conn{})
		ud := [2]*ib.QP{b.a.newQP(setup{typ: ib.QPTypeUD, cap: ib.QPCap{MaxSendWR: 4, MaxSendSGE: 1}}),
			b.b.newQP(setup{typ: ib.QPTypeUD, cap: ib.QPCap{MaxRecvWR: 4, MaxRecvSGE: 1}})}
		connectQPs(t, b.a.dev, ud[0], b.b.dev, ud[1], conn{})
		ah := newAH(b.a, b.b.dev, 1)
		b.b.recv(1, 0, 100)
		b.a.send(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 100)})
		_, err := ud[0].PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 8), AH: ah,
			RemoteQPN: ud[1].Num()})
		check(t, err)
		b.a.poll(2)
		b.b.poll(1)
		rc := roce.SourcePortRC(b.a.qp.Num(), b.b.qp.Num())
		want := map[roce.Service]uint16{roce.RC: rc, roce.UD: roce.SourcePortUD(ud[0].Num())}
		seen := 0
		for _, p := range b.net.Packets() {
			if s := roce.BTH(p.Data).Opcode().Service(); p.SPort != want[s] {
				t.Errorf("%v packet from %v leaves from port %#x, want %#x", roce.BTH(p.Data).Opcode(), p.Src, p.SPort, want[s])
			}
			seen++
		}
		if seen != 3 { // a message, its acknowledgement, a datagram
			t.Errorf("%d packets", seen)
		}
		check(t, ah.Destroy())
		check(t, ud[0].Destroy())
		check(t, ud[1].Destroy())
		responder := b.a.newQP(setup{typ: ib.QPTypeRC}) // acknowledges before it reaches RTS
		toInit(t, responder, conn{})
		toRTR(t, responder, b.b.dev, 77, conn{})
		if got, want := qpOf(responder).sport, roce.SourcePortRC(responder.Num(), 77); got != want {
			t.Errorf("port of a queue pair in RTR: got %#x, want %#x", got, want)
		}
		check(t, responder.Destroy())
		// The flow label of a connection's address vector determines the port.
		qp := qpOf(b.a.qp)
		qp.exclusively(func(*pass) {
			qp.attr.AH.GRH.FlowLabel = 0x12345
			qp.sport = sourcePort(qp.num, &qp.attr)
			if qp.sport != roce.SourcePortFlowLabel(0x12345) {
				t.Errorf("port %#x for a flow label", qp.sport)
			}
		})
	})
}

// arrive delivers a packet from the network.
func (e *endpoint) arrive(src, dst netip.Addr, packet []byte) {
	e.Receive(arrival(src, dst, packet))
}
