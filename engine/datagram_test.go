package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/roce"
	"verbena/uapi"
)

// newAH creates an address handle of n for peer.
func newAH(n *node, peer *Device, sgid uint8) *ib.AH {
	n.t.Helper()
	gid, err := peer.IB().QueryGID(1, int(sgid))
	check(n.t, err)
	ah, err := n.pd.CreateAH(&ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: gid.GID, SGIDIndex: sgid}})
	check(n.t, err)
	return ah
}

// TestDatagram sends datagrams, and checks the data and the header before it.
func TestDatagram(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		s.typ = ib.QPTypeUD
		b := newBench(t, s)
		b.connect(conn{})
		for sgid := range uint8(2) { // the default GID is also valid
			ah := newAH(b.a, b.b.dev, sgid)
			for _, size := range []int{0, 1, 100, 4096} {
				fill(b.a.buf, uint64(size))
				b.b.recv(5, 0, grhLen+size)
				b.a.send(ib.SendWR{
					ID: 3, Opcode: ib.WRSendWithImm, Flags: ib.SendSignaled, SGList: b.a.sge(0, size), Imm: 77,
					AH: ah, RemoteQPN: b.b.qp.Num(), RemoteQKey: testQKey,
				})
				b.a.expect(ib.WC{ID: 3, Opcode: ib.WCSend})
				wc := b.b.poll(1)[0]
				if wc.Status != ib.WCSuccess || wc.ID != 5 || int(wc.ByteLen) != grhLen+size || wc.SrcQP != b.a.qp.Num() ||
					wc.Flags != ib.WCGRH|ib.WCWithImm || wc.Imm != 77 {
					t.Fatalf("%d bytes: completion %+v", size, wc)
				}
				if !bytes.Equal(b.a.buf[:size], b.b.buf[grhLen:grhLen+size]) {
					t.Fatalf("%d bytes: data differ", size)
				}
				checkGRH(t, b.b.buf[:grhLen], size)
			}
			check(t, ah.Destroy())
		}
	})
}

// TestDatagramVector sends datagrams like the provider of rdma-core before v39: with the address vector in the work
// request, and without an address handle.
func TestDatagramVector(t *testing.T) {
	b := newBench(t, setup{typ: ib.QPTypeUD, shortcut: true})
	u := newUser(b, userCap)
	payload := []byte("a datagram")
	for sgid := range uint8(2) {
		gid, err := b.b.dev.IB().QueryGID(1, int(sgid))
		check(t, err)
		good := uapi.RXEAV{PortNum: 1, GRH: uapi.RXEGlobalRoute{DGID: gid.GID, SGIDIndex: sgid, HopLimit: 1}}
		for range 2 {
			b.b.recv(5, 0, grhLen+len(payload))
			wc := u.post(uapi.WRSend, payload, func(wr *uapi.RXESendWR) {
				wr.SendFlags |= uapi.SendInline
				*wr.UD() = uapi.RXESendWRUD{RemoteQPN: b.b.qp.Num(), RemoteQKey: testQKey, AV: good}
			})
			if wc.Status != uapi.WCSuccess {
				t.Fatalf("GID %d: status %v, want success", sgid, wc.Status)
			}
			got := b.b.poll(1)[0]
			if got.Status != ib.WCSuccess || !bytes.Equal(b.b.buf[grhLen:grhLen+len(payload)], payload) {
				t.Fatalf("GID %d: completion %+v", sgid, got)
			}
		}
	}
	route := func(port uint8, g ib.GlobalRoute) ib.AHAttr { return ib.AHAttr{Port: port, HasGRH: true, GRH: g} }
	dgid := ib.GIDFromAddr(netip.MustParseAddr("127.0.0.1"))
	for name, av := range map[string]ib.AHAttr{
		"no port":        route(2, ib.GlobalRoute{DGID: dgid, SGIDIndex: 1}),
		"no such source": route(1, ib.GlobalRoute{DGID: dgid, SGIDIndex: 200}),
		"no destination": route(1, ib.GlobalRoute{SGIDIndex: 1}),
	} {
		w := sendWQE{Send: queue.Send{QPN: b.b.qp.Num(), QKey: testQKey, Vector: av}}
		var status uapi.WCStatus
		qpOf(u.qp).exclusively(func(*pass) { status = qpOf(u.qp).req.checkUD(&w) })
		if status != uapi.WCLocQPOpErr {
			t.Errorf("%s: status %v, want %v", name, status, uapi.WCLocQPOpErr)
		}
	}
}

// checkGRH checks the header before a datagram from a to b: 20 zero bytes and an IPv4 header.
func checkGRH(t *testing.T, h []byte, size int) {
	t.Helper()
	ip := h[20:]
	if !bytes.Equal(h[:20], make([]byte, 20)) || ip[0] != 0x45 || ip[9] != 17 {
		t.Fatalf("header % x", h)
	}
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	if sum = sum&0xffff + sum>>16; sum != 0xffff {
		t.Fatalf("checksum is %#x", sum)
	}
	if a, z := addrA.As4(), addrB.As4(); !bytes.Equal(ip[12:16], a[:]) || !bytes.Equal(ip[16:], z[:]) {
		t.Fatalf("addresses % x", ip[12:])
	}
	if n := int(binary.BigEndian.Uint16(ip[2:])); n != 20+8+roce.UDSendOnlyWithImmediate.PacketLen(size) {
		t.Fatalf("length is %d", n)
	}
}

// TestDatagramDropped tests that a datagram that cannot be received is lost without any effect.
func TestDatagramDropped(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		s.typ = ib.QPTypeUD
		b := newBench(t, s)
		b.connect(conn{})
		ah := newAH(b.a, b.b.dev, 1)
		good := ib.SendWR{
			Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0,
				100), AH: ah, RemoteQPN: b.b.qp.Num(), RemoteQKey: testQKey,
		}
		send := func(wr ib.SendWR) {
			b.a.send(wr)
			b.a.expect(ib.WC{Opcode: ib.WCSend})
			testutil.AdvanceTime(time.Millisecond)
			b.b.none()
		}
		send(good) // no receive
		b.b.recv(1, 0, grhLen+99)
		send(good)                   // the receive is too small
		good.SGList = b.a.sge(0, 99) // the small receive is still in the queue
		wr := good
		wr.RemoteQKey++
		send(wr)
		wr = good
		wr.RemoteQPN += 1 << qpSlotBits // an earlier generation of the queue pair number
		send(wr)
		b.a.send(good)
		b.b.expect(ib.WC{ID: 1, Opcode: ib.WCRecv, ByteLen: grhLen + 99, Flags: ib.WCGRH})
		check(t, ah.Destroy())
	})
}

// TestDatagramErrors tests that a failure moves the send queue to SQE, and that the queue pair can return to RTS.
func TestDatagramErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true, typ: ib.QPTypeUD})
		b.connect(conn{})
		ah := newAH(b.a, b.b.dev, 1)
		defer func() { check(t, ah.Destroy()) }()
		wr := ib.SendWR{Opcode: ib.WRSend, SGList: b.a.sge(0, 8000), AH: ah, RemoteQPN: b.b.qp.Num(), RemoteQKey: testQKey}
		if _, err := b.a.qp.PostSend(ib.SendWR{Opcode: ib.WRSend}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("without address handle: %v", err)
		}
		if _, err := b.a.qp.PostSend(ib.SendWR{Opcode: ib.WRRDMAWrite, AH: ah}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("RDMA WRITE: %v", err)
		}
		wr.ID = 1
		b.a.send(wr)
		b.a.expect(ib.WC{ID: 1, Status: ib.WCLocLenErr})
		if s := b.a.qp.State(); s != ib.QPSQE {
			t.Fatalf("state is %v", s)
		}
		b.a.send(ib.SendWR{ID: 2, Opcode: ib.WRSend, AH: ah})
		b.a.expect(ib.WC{ID: 2, Status: ib.WCWRFlushErr})
		b.a.recv(3, 0, 100)
		b.a.none()
		check(t, b.a.qp.Modify(ib.QPAttr{State: ib.QPRTS, CurState: ib.QPSQE}, ib.QPAttrState|ib.QPAttrCurState))
		b.b.recv(4, 0, 1000)
		wr.SGList = b.a.sge(0, 100)
		b.a.send(wr)
		b.b.expect(ib.WC{ID: 4, Opcode: ib.WCRecv, ByteLen: 140, Flags: ib.WCGRH})
	})
}

// TestAddressHandleDomain tests that only queue pairs of its domain can use an address handle (IBA 11.6.2).
func TestAddressHandleDomain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true, typ: ib.QPTypeUD})
		b.connect(conn{})
		mine := b.a.pd
		b.a.pd = b.a.newPD()
		ah := newAH(b.a, b.b.dev, 1)
		b.a.pd = mine
		b.b.recv(2, 0, 1000)
		b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend, SGList: b.a.sge(0, 8), AH: ah, RemoteQPN: b.b.qp.Num(),
			RemoteQKey: testQKey})
		b.a.expect(ib.WC{ID: 1, Status: ib.WCLocQPOpErr})
		b.b.none()
		check(t, ah.Destroy())
	})
}

func TestAddressHandle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true, typ: ib.QPTypeUD})
		gid, _ := ops{b.b.dev}.QueryGID(1, 1)
		good := ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: gid.GID, SGIDIndex: 1, HopLimit: 9,
			TrafficClass: 4}}
		for _, c := range []struct {
			name string
			attr func(*ib.AHAttr)
			errn syscall.Errno
		}{
			{"port", func(a *ib.AHAttr) { a.Port = 2 }, syscall.EINVAL},
			{"no route", func(a *ib.AHAttr) { a.HasGRH = false }, syscall.EINVAL},
			{"empty source", func(a *ib.AHAttr) { a.GRH.SGIDIndex = 9 }, syscall.EINVAL},
			{"no destination", func(a *ib.AHAttr) { a.GRH.DGID = ib.GID{} }, syscall.EINVAL},
			{"group of another family", func(a *ib.AHAttr) { a.GRH.DGID = ib.GID{0xff, 2} }, syscall.ENETUNREACH},
			{"another family", func(a *ib.AHAttr) { a.GRH.DGID = ib.GID{0x20, 1} }, syscall.ENETUNREACH},
		} {
			a := good
			c.attr(&a)
			if _, err := b.a.pd.CreateAH(&a); !errors.Is(err, c.errn) {
				t.Errorf("%s: %v, want %v", c.name, err, c.errn)
			}
		}
		ah, err := b.a.pd.CreateAH(&good)
		check(t, err)
		if got, err := ah.Query(); err != nil || got != good {
			t.Errorf("query: %+v, %v", got, err)
		}
		good.GRH.HopLimit = 3
		check(t, ah.Modify(&good))
		if got, _ := ah.Query(); got != good {
			t.Errorf("query after modify: %+v", got)
		}
		check(t, ah.Destroy())
	})
}

// TestUnreliable moves messages over an unreliable connection.
func TestUnreliable(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		s.typ, s.bufLen = ib.QPTypeUC, 1<<20+64
		b := newBench(t, s)
		b.connect(conn{mtu: ib.MTU1024, psn: 0xfffffe})
		for i, size := range transferSizes {
			for _, op := range []ib.WROpcode{ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWriteWithImm} {
				transfer(b, op, size, uint64(i))
			}
		}
	})
}

// TestUnreliableLoss tests that a lost packet costs only its message.
func TestUnreliableLoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{typ: ib.QPTypeUC})
		b.connect(conn{mtu: ib.MTU1024})
		for id := range uint64(6) {
			b.b.recv(id, int(id)*5000, 5000)
		}
		for i, skip := range []uint64{0, 2, 4} { // the first, a middle, the last packet
			b.net.Faults().Clear()
			check(t, b.net.Faults().Add(link.Rule{Skip: skip, Limit: 1, Drop: 1}))
			fill(b.a.buf[:5000], uint64(i))
			lost := ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 5000)}
			good := lost
			good.SGList = b.a.sge(0, 4000)
			b.a.send(lost, good)
			b.a.expect(ib.WC{ID: 1, Opcode: ib.WCSend}, ib.WC{ID: 1, Opcode: ib.WCSend})
			b.b.expect(ib.WC{ID: uint64(i), Opcode: ib.WCRecv, ByteLen: 4000})
			if !bytes.Equal(b.a.buf[:4000], b.b.buf[5000*i:5000*i+4000]) {
				t.Errorf("packet %d lost: data of the next message differ", skip)
			}
		}
		b.b.none()
	})
}

// TestUnreliableTooLong tests that a message that exceeds its receive is lost, and that the next one uses the
// receive.
func TestUnreliableTooLong(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		s.typ = ib.QPTypeUC
		b := newBench(t, s)
		b.connect(conn{mtu: ib.MTU1024})
		b.b.recv(1, 0, 4500)
		fill(b.a.buf, 1)
		b.a.send(ib.SendWR{Opcode: ib.WRSend, SGList: b.a.sge(0, 5000)},
			ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(1000, 4500)})
		b.a.expect(ib.WC{Opcode: ib.WCSend})
		b.b.expect(ib.WC{ID: 1, Opcode: ib.WCRecv, ByteLen: 4500})
		if !bytes.Equal(b.a.buf[1000:5500], b.b.buf[:4500]) {
			t.Error("data differ")
		}
	})
}

// TestDatagramsOfOneHandle posts datagrams with one address handle together. Each must reach the queue pair that it
// names.
func TestDatagramsOfOneHandle(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		b := newBench(t, s)
		b.connect(conn{})
		from := b.a.newQP(setup{typ: ib.QPTypeUD, cap: userCap})
		to := [3]*ib.QP{}
		for i := range to {
			to[i] = b.b.newQP(setup{typ: ib.QPTypeUD, cap: userCap})
			toRTR(t, to[i], b.a.dev, from.Num(), conn{})
		}
		toRTR(t, from, b.b.dev, to[0].Num(), conn{})
		toRTS(t, from, conn{})
		ah := newAH(b.a, b.b.dev, 1)
		var wrs []ib.SendWR
		for i := range 2 * len(to) {
			qp := to[i%len(to)]
			_, err := qp.PostRecv(ib.RecvWR{ID: uint64(i), SGList: b.b.sge(1000*i, 100)})
			check(t, err)
			wrs = append(wrs, ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled | ib.SendInline, Inline: []byte{byte(i)},
				AH:        ah,
				RemoteQPN: qp.Num(), RemoteQKey: testQKey})
		}
		_, err := from.PostSend(wrs...)
		check(t, err)
		b.a.poll(len(wrs))
		for _, wc := range b.b.poll(len(wrs)) {
			if i := int(wc.ID); wc.QPNum != to[i%len(to)].Num() || b.b.buf[1000*i+grhLen] != byte(i) {
				t.Errorf("receive %d of queue pair %d: got datagram %d on %d", i, to[i%len(to)].Num(), b.b.buf[1000*i+grhLen],
					wc.QPNum)
			}
		}
		check(t, ah.Destroy())
		for _, qp := range append(to[:], from) {
			check(t, qp.Destroy())
		}
	})
}
