package engine

import (
	"encoding/binary"
	"maps"
	"slices"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/roce"
)

// TestDropCounters drops a packet for each reason. Only the counter of the reason must change.
func TestDropCounters(t *testing.T) {
	key := func(d *dialogue) uint32 { return d.b.mr.RKey() }
	for _, c := range []struct {
		name string
		typ  ib.QPType
		op   roce.Opcode
		n    int                           // bytes of payload
		make func(d *dialogue, k []byte)   // changes the packet
		prep func(d *dialogue)             // runs before the packet
		send func(d *dialogue, pkt []byte) // replaces the arrival of one packet
		want string
	}{
		{name: "rest of a BTH", op: roce.RCSendOnly, send: func(d *dialogue, pkt []byte) { d.arrives(pkt[:roce.BTHLen-4]) }, want: "drop_short"},
		{name: "unknown opcode", op: roce.RCSendOnly, make: func(_ *dialogue, k []byte) { k[0] = 0x1f }, want: "drop_unknown_opcode"},
		{name: "odd length", op: roce.RCSendOnly, n: 8, send: func(d *dialogue, pkt []byte) { d.arrives(pkt[:len(pkt)-3]) }, want: "drop_unaligned"},
		{name: "unknown version", op: roce.RCSendOnly, make: func(_ *dialogue, k []byte) { k[1] |= 3 }, want: "drop_wrong_version"},
		{name: "no such queue pair", op: roce.RCSendOnly, make: func(_ *dialogue, k []byte) { k[5] ^= 0x55 }, want: "drop_unknown_qp"},
		{name: "another service", op: roce.UCSendOnly, want: "drop_wrong_service"},
		{name: "another partition", op: roce.RCSendOnly, make: func(_ *dialogue, k []byte) { k[2] = 0x12 }, want: "drop_wrong_pkey"},
		{name: "wrong Q_Key", typ: ib.QPTypeUD, op: roce.UDSendOnly, want: "drop_wrong_qkey"},
		{name: "not receiving", op: roce.RCSendOnly, prep: func(d *dialogue) {
			check(d.t, d.b.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
		}, want: "drop_wrong_state"},
		{name: "answer before there are requests", op: roce.RCAcknowledge, prep: func(d *dialogue) {
			check(d.t, d.b.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
			toRTR(d.t, d.b.qp, d.a.dev, d.a.qp.Num(), conn{})
		}, want: "drop_wrong_state"},
		{name: "another host", op: roce.RCSendOnly, send: func(d *dialogue, pkt []byte) {
			d.b.dev.at.Load().endpoints[0].arrive(addrB, addrB, pkt)
		}, want: "drop_wrong_source"},
		{name: "port down", op: roce.RCSendOnly, prep: func(d *dialogue) {
			i := d.b.dev.at.Load().netdev
			i.Running = false
			d.b.dev.SetInterface(i, ips(addrB.String()))
		}, want: "drop_port_down"},
		{name: "datagram without receive", typ: ib.QPTypeUD, op: roce.UDSendOnly, make: qkey, want: "drop_unreliable"},
		{name: "UC without receive", typ: ib.QPTypeUC, op: roce.UCSendOnly, want: "drop_unreliable"},
		{name: "datagram longer than its receive", typ: ib.QPTypeUD, op: roce.UDSendOnly, n: 64, make: qkey, prep: func(d *dialogue) { d.b.recv(1, 0, 50) }, want: "drop_unreliable"},
		{name: "rest of a message", typ: ib.QPTypeUC, op: roce.UCSendLast, n: 4, make: func(_ *dialogue, k []byte) { k[11] = 3 }, want: "drop_unreliable"},
		{name: "behind a gap", op: roce.RCSendOnly, prep: func(d *dialogue) { d.say(request{op: roce.RCSendOnly, psn: 5}) },
			make: func(_ *dialogue, k []byte) { k[11] = 6 }, want: "drop_after_gap"},
		{name: "repeated, but never seen", op: roce.RCRDMAReadRequest, make: func(_ *dialogue, k []byte) { k[9], k[10], k[11] = 0xff, 0xff, 0xf0 }, want: "drop_forgotten_duplicate"},
		{name: "answer to nothing", op: roce.RCAcknowledge, want: "drop_stale_response"},
		{name: "wrong key on UC", typ: ib.QPTypeUC, op: roce.UCRDMAWriteOnly, n: 8, make: func(d *dialogue, k []byte) { reth(k, d.b.addr, key(d)^0x100, 8) }, want: "drop_unreliable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				if c.typ == 0 {
					c.typ = ib.QPTypeRC
				}
				d := newDialogue(t, c.typ, conn{})
				pkt := make([]byte, c.op.PacketLen(c.n))
				roce.NewPacket(pkt, &roce.BTHFields{Opcode: c.op, PKey: roce.DefaultPKey, DestQPN: d.b.qp.Num()}, c.n)
				pkt = pkt[:len(pkt)-roce.ICRCLen]
				if c.make != nil {
					c.make(d, pkt)
				}
				if c.prep != nil {
					c.prep(d)
				}
				before := d.b.dev.Stats()
				if c.send != nil {
					c.send(d, pkt)
				} else {
					d.arrives(pkt)
				}
				after := d.b.dev.Stats()
				// Omit the counters that do not depend on the packet.
				for _, name := range []string{"rcvd_pkts", "sent_pkts", "duplicate_request"} {
					delete(after, name)
				}
				for _, name := range slices.Sorted(maps.Keys(after)) {
					want := uint64(0)
					if name == c.want {
						want = 1
					}
					if n := after[name] - before[name]; n != want {
						t.Errorf("%s moved by %d, want %d", name, n, want)
					}
				}
			})
		})
	}
}

func (d *dialogue) arrives(pkt []byte) {
	d.b.dev.at.Load().endpoints[0].arrive(addrA, addrB, pkt)
}

func qkey(_ *dialogue, k []byte) { binary.BigEndian.PutUint32(k[roce.BTHLen:], testQKey) }

func reth(k []byte, va uint64, rkey uint32, n int) {
	binary.BigEndian.PutUint64(k[roce.BTHLen:], va)
	binary.BigEndian.PutUint32(k[roce.BTHLen+8:], rkey)
	binary.BigEndian.PutUint32(k[roce.BTHLen+12:], uint32(n))
}

// TestRepeatCounters repeats requests for each reason. The counters of the requester and the responder must change by
// these numbers, and the others not at all.
func TestRepeatCounters(t *testing.T) {
	for _, c := range []struct {
		name string
		conn conn
		prep func(b *bench)
		want ib.WCStatus
		a, b map[string]uint64
	}{
		{name: "no receive", conn: conn{rnrRetry: 2, rnrTimer: 1}, want: ib.WCRNRRetryExcErr,
			a: map[string]uint64{"sent_pkts": 3, "rcvd_pkts": 3, "rcvd_rnr_err": 3, "retry_rnr_exceeded_err": 1},
			b: map[string]uint64{"rcvd_pkts": 3, "sent_pkts": 3, "send_rnr_err": 3}},
		{name: "no answer", conn: conn{retry: 2}, want: ib.WCRetryExcErr,
			prep: func(b *bench) { b.net.SetLink(addrB, false) },
			// completer_retry_err includes the last timeout.
			a: map[string]uint64{"sent_pkts": 15, "sent_probe_pkts": 12, "completer_retry_err": 3, "retry_exceeded_err": 1}},
		{name: "loss", prep: func(b *bench) {
			b.b.recv(1, 0, 64)
			check(b.t, b.net.Faults().Add(link.Rule{Drop: 1, Limit: 1}))
			b.a.send(ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 8), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()})
		},
			a: map[string]uint64{"sent_pkts": 4, "rcvd_pkts": 3, "rcvd_seq_err": 1, "completer_retry_err": 1, "rdma_sends": 2},
			b: map[string]uint64{"rcvd_pkts": 3, "sent_pkts": 3, "out_of_seq_request": 1, "rdma_recvs": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBenchIn(t, wire)
				defer b.close()
				b.connect(c.conn)
				if c.prep != nil {
					c.prep(b)
				}
				b.a.send(ib.SendWR{ID: 9, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 8)})
				b.a.expect(ib.WC{ID: 9, Status: c.want})
				testutil.AdvanceTime(time.Millisecond)
				for _, x := range []struct {
					n    *node
					want map[string]uint64
				}{{b.a, c.a}, {b.b, c.b}} {
					got := x.n.dev.Stats()
					maps.DeleteFunc(got, func(_ string, n uint64) bool { return n == 0 })
					if !maps.Equal(got, x.want) {
						t.Errorf("counters of %s: got %v, want %v", x.n.dev.name, got, x.want)
					}
				}
			})
		})
	}
}

// TestSendErrors tests that send_err counts packets, independently of the trains.
func TestSendErrors(t *testing.T) {
	for _, shortcut := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			b := newBenchIn(t, setup{shortcut: shortcut, typ: ib.QPTypeUC})
			defer b.close()
			b.connect(conn{mtu: ib.MTU1024})
			i := b.a.dev.at.Load().netdev
			i.Running = false
			b.a.dev.SetInterface(i, ips(addrA.String()))
			b.a.send(ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 5000), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()})
			if n := b.a.dev.Stats()["send_err"]; n != 5 {
				t.Errorf("shortcut %t: send_err: got %d, want 5", shortcut, n)
			}
		})
	}
}

// TestStatsNames tests that the kernel's counters have their names, and that no two counters have the same name.
func TestStatsNames(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{})
		s := b.a.dev.Stats()
		for _, name := range []string{
			"sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err", "rcvd_seq_err",
			"ack_deferred", "retry_exceeded_err", "retry_rnr_exceeded_err", "completer_retry_err", "send_err", "link_downed",
			"rdma_sends", "rdma_recvs",
		} {
			if _, ok := s[name]; !ok {
				t.Errorf("no counter %s", name)
			}
		}
		if want := int(cntTxBytes) + len(wireCounters); len(s) != want {
			t.Errorf("%d counters have different names, of %d", len(s), want)
		}
	})
}

// TestStatsEndpoints tests that the counts of an endpoint remain when its address goes.
func TestStatsEndpoints(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBenchIn(t, setup{})
		defer b.close()
		b.connect(conn{})
		check(t, b.net.Faults().Add(link.Rule{Corrupt: 1, Limit: 2}))
		transfer(b, ib.WRSend, 5000, 1)
		before := b.b.dev.Stats()
		if before["drop_icrc"] != 2 {
			t.Errorf("%d ICRC errors, want 2", before["drop_icrc"])
		}
		i := b.b.dev.at.Load().netdev
		b.b.dev.SetInterface(i, nil)
		gone := b.b.dev.Stats()
		b.b.dev.SetInterface(i, ips(addrB.String()))
		if back := b.b.dev.Stats(); !maps.Equal(before, gone) || !maps.Equal(before, back) {
			t.Errorf("counters before, without the address, and after:\n%v\n%v\n%v", before, gone, back)
		}
	})
}
