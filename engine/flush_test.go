package engine

import (
	"encoding/binary"
	"errors"
	"syscall"
	"testing"

	"verbena/ib"
	"verbena/roce"
)

// TestFlush tests placements, levels, rights and ranges (IBA A19.4).
func TestFlush(t *testing.T) {
	const rights = allAccess | ib.AccessFlushGlobal
	const persistent = rights | ib.AccessFlushPersistent
	for _, c := range []struct {
		name   string
		qp, mr ib.AccessFlags
		flush  ib.Flush
		off    int
		want   ib.WCStatus
	}{
		{"range", rights, rights, ib.Flush{Placement: ib.FlushGlobal, Length: 100}, 0, ib.WCSuccess},
		{"range to the end", rights, rights, ib.Flush{Placement: ib.FlushGlobal, Length: 1 << 16}, 0, ib.WCSuccess},
		{"range past the end", rights, rights, ib.Flush{Placement: ib.FlushGlobal, Length: 1<<16 + 1}, 0, ib.WCRemAccessErr},
		{"range outside", rights, rights, ib.Flush{Placement: ib.FlushGlobal, Length: 1}, -1, ib.WCRemAccessErr},
		{"region, wherever the address is", rights, rights, ib.Flush{Placement: ib.FlushGlobal, Level: ib.FlushRegion}, -1, ib.WCSuccess},
		{"queue pair without the right", allAccess, rights, ib.Flush{Placement: ib.FlushGlobal, Length: 100}, 0, ib.WCRemInvReqErr},
		{"region without the right", rights, allAccess, ib.Flush{Placement: ib.FlushGlobal, Length: 100}, 0, ib.WCRemAccessErr},
		{"right to flush alone", ib.AccessFlushGlobal, ib.AccessFlushGlobal, ib.Flush{Placement: ib.FlushGlobal, Length: 100}, 0, ib.WCSuccess},
		{"to persistent memory, with the queue pair's right", persistent, rights,
			ib.Flush{Placement: ib.FlushPersistent, Length: 100}, 0, ib.WCRemAccessErr},
		{"to both, with the queue pair's rights", persistent, rights,
			ib.Flush{Placement: ib.FlushGlobal | ib.FlushPersistent, Length: 100}, 0, ib.WCRemAccessErr},
		{"of the region to persistent memory", persistent, rights,
			ib.Flush{Placement: ib.FlushPersistent, Level: ib.FlushRegion}, 0, ib.WCRemAccessErr},
		{"to visibility, with all rights", persistent, rights,
			ib.Flush{Placement: ib.FlushGlobal, Length: 100}, 0, ib.WCSuccess},
		{"to persistent memory", rights, rights, ib.Flush{Placement: ib.FlushPersistent, Length: 100}, 0, ib.WCRemInvReqErr},
		{"to both", rights, rights, ib.Flush{Placement: ib.FlushGlobal | ib.FlushPersistent, Length: 100}, 0, ib.WCRemInvReqErr},
		{"nowhere", rights, rights, ib.Flush{Length: 100}, 0, ib.WCLocQPOpErr},
		{"unknown placement", rights, rights, ib.Flush{Placement: 4}, 0, ib.WCLocQPOpErr},
		{"unknown level", rights, rights, ib.Flush{Placement: ib.FlushGlobal, Level: 2}, 0, ib.WCLocQPOpErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachNetwork(t, func(t *testing.T, s setup) {
				b := newBench(t, s)
				b.connect(conn{access: c.qp})
				got := b.a.status(ib.SendWR{Opcode: ib.WRFlush, RemoteAddr: b.b.addr + uint64(c.off), RKey: b.b.regMR(nil, c.mr).RKey(), Flush: c.flush})
				if got != c.want {
					t.Errorf("%v, want %v", got, c.want)
				}
			})
		})
	}
}

// TestPersistenceRefused tests that no region gets the right to a placement that the device does not offer. A queue
// pair may have the right, without effect.
func TestPersistenceRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true})
		attr, err := ops{b.a.dev}.QueryDevice()
		check(t, err)
		if attr.DeviceCapFlags&(1<<39) != 0 || attr.DeviceCapFlags&(1<<38) == 0 || attr.DeviceCapFlags&(1<<40) == 0 {
			t.Errorf("capabilities %#x", attr.DeviceCapFlags)
		}
		_, err = b.a.pd.RegMR(ib.MRInit{Space: b.a.mem, Addr: b.a.addr, Length: 8, Access: ib.AccessFlushPersistent})
		if !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("region: %v", err)
		}
		check(t, b.a.qp.Modify(ib.QPAttr{State: ib.QPInit, Port: 1, AccessFlags: ib.AccessFlushPersistent},
			ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags))
		if a, _, err := b.a.qp.Query(ib.QPAttrAccessFlags); err != nil || a.AccessFlags != ib.AccessFlushPersistent {
			t.Errorf("Query: access flags %v, error %v", a.AccessFlags, err)
		}
	})
}

// TestFlushOrder tests that a FLUSH completes after the earlier writes are in memory, even if all other packets are
// lost.
func TestFlushOrder(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		b := newBench(t, s)
		b.connect(conn{access: allAccess | ib.AccessFlushGlobal})
		mr := b.b.regMR(nil, allAccess|ib.AccessFlushGlobal)
		fill(b.a.buf, 8)
		b.a.send(
			ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 30_000), RemoteAddr: b.b.addr, RKey: mr.RKey()},
			ib.SendWR{ID: 2, Opcode: ib.WRFlush, Flags: ib.SendSignaled, RemoteAddr: b.b.addr, RKey: mr.RKey(), Flush: ib.Flush{Placement: ib.FlushGlobal, Length: 30_000}})
		b.a.expect(ib.WC{ID: 2, Opcode: ib.WCFlush})
		if i := firstDifference(b.a.buf[:30_000], b.b.buf[:30_000]); i >= 0 {
			t.Errorf("byte %d was not written yet", i)
		}
	})
}

// TestAtomicWrite writes 8 bytes, at multiples of 8 and elsewhere, with and without the right to write (IBA A19).
func TestAtomicWrite(t *testing.T) {
	for _, c := range []struct {
		name   string
		qp, mr ib.AccessFlags
		off    int
		key    uint32
		want   ib.WCStatus
	}{
		{"first word", allAccess, allAccess, 0, 0, ib.WCSuccess},
		{"last word", allAccess, allAccess, 1<<16 - 8, 0, ib.WCSuccess},
		{"past the end", allAccess, allAccess, 1 << 16, 0, ib.WCRemAccessErr},
		{"wrong key", allAccess, allAccess, 0, 1 << 8, ib.WCRemAccessErr},
		{"queue pair without the right", allAccess &^ ib.AccessRemoteWrite, allAccess, 0, 0, ib.WCRemInvReqErr},
		{"region without the right", allAccess, allAccess &^ ib.AccessRemoteWrite, 0, 0, ib.WCRemAccessErr},
		{"without the right to other atomics", allAccess &^ ib.AccessRemoteAtomic, allAccess &^ ib.AccessRemoteAtomic, 0, 0, ib.WCSuccess},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachNetwork(t, func(t *testing.T, s setup) {
				b := newBench(t, s)
				b.connect(conn{access: c.qp})
				data := []byte{1, 2, 3, 4, 5, 6, 7, 8}
				got := b.a.status(ib.SendWR{Opcode: ib.WRAtomicWrite, Inline: data, RemoteAddr: b.b.addr + uint64(c.off), RKey: b.b.regMR(nil, c.mr).RKey() + c.key})
				if got != c.want {
					t.Fatalf("%v, want %v", got, c.want)
				}
				if got == ib.WCSuccess && binary.NativeEndian.Uint64(b.b.buf[c.off:]) != binary.NativeEndian.Uint64(data) {
					t.Errorf("memory holds %x", b.b.buf[c.off:c.off+8])
				}
			})
		})
	}
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true})
		b.connect(conn{})
		for _, wr := range []ib.SendWR{
			{Opcode: ib.WRAtomicWrite, Inline: make([]byte, 7), RemoteAddr: b.b.addr},
			{Opcode: ib.WRAtomicWrite, Inline: make([]byte, 9), RemoteAddr: b.b.addr},
		} {
			if _, err := b.a.qp.PostSend(wr); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%d bytes at %#x: %v", len(wr.Inline), wr.RemoteAddr, err)
			}
		}
	})
}

// TestSingleRequests sends requests of one packet to the responder in every form, and repeats them.
func TestSingleRequests(t *testing.T) {
	const mtu = 256
	c := conn{mtu: ib.MTU256, access: allAccess | ib.AccessFlushGlobal}
	atomicWrite := func(d *dialogue, psn roce.PSN) request {
		return request{op: roce.RCAtomicWrite, psn: psn, n: 8, len: 8, va: d.b.addr, rkey: d.b.mr.RKey()}
	}
	flush := func(d *dialogue, psn roce.PSN) request {
		return request{op: roce.RCFlush, psn: psn, len: 100, va: d.b.addr, rkey: d.b.mr.RKey(), flush: roce.FlushGlobal}
	}
	for _, test := range []struct {
		name string
		conn conn
		play func(d *dialogue)
	}{
		{"atomic write", c, func(d *dialogue) {
			d.say(atomicWrite(d, 0))
			d.hears("RDMA READ response Only 0")
		}},
		{"atomic write that comes again is not done again", c, func(d *dialogue) {
			d.say(atomicWrite(d, 0))
			d.hears("RDMA READ response Only 0")
			d.b.buf[0] = 77
			d.say(atomicWrite(d, 0))
			d.hears("RDMA READ response Only 0")
			if d.b.buf[0] != 77 {
				d.t.Error("it was done again")
			}
		}},
		{"of another kind with the same PSN", c, func(d *dialogue) {
			d.say(atomicWrite(d, 0))
			d.hears("RDMA READ response Only 0")
			d.say(flush(d, 0))
			d.hears()
		}},
		{"atomic write of 4 bytes", c, func(d *dialogue) {
			r := atomicWrite(d, 0)
			r.n = 4
			d.say(r)
			d.hears("NAK Invalid Request 0")
		}},
		{"atomic write that says it has 16 bytes", c, func(d *dialogue) {
			r := atomicWrite(d, 0)
			r.len = 16
			d.say(r)
			d.hears("NAK Invalid Request 0")
		}},
		{"misaligned atomic write", c, func(d *dialogue) {
			r := atomicWrite(d, 0)
			r.va += 4
			d.say(r)
			d.hears("NAK Invalid Request 0")
		}},
		{"within a message", c, func(d *dialogue) {
			d.b.recv(1, 0, 1000)
			d.say(request{op: roce.RCSendFirst, n: mtu}, atomicWrite(d, 1))
			d.hears("NAK Invalid Request 1")
		}},
		{"without resources", conn{mtu: ib.MTU256, destRdAtomic: -1}, func(d *dialogue) {
			d.say(atomicWrite(d, 0))
			d.hears("NAK Invalid Request 0")
		}},
		{"flush", c, func(d *dialogue) {
			d.say(flush(d, 0), flush(d, 1))
			d.hears("RDMA READ response Only 0", "RDMA READ response Only 1")
		}},
		{"flush that comes again", c, func(d *dialogue) {
			d.say(flush(d, 0))
			d.say(flush(d, 0))
			d.hears("RDMA READ response Only 0", "RDMA READ response Only 0")
		}},
		{"flush to persistent memory", c, func(d *dialogue) {
			r := flush(d, 0)
			r.flush = roce.FlushPersistent
			d.say(r)
			d.hears("NAK Invalid Request 0")
		}},
		{"flush to nowhere", c, func(d *dialogue) {
			r := flush(d, 0)
			r.flush = 0
			d.say(r)
			d.hears("NAK Invalid Request 0")
		}},
		{"flush of a reserved level", c, func(d *dialogue) {
			r := flush(d, 0)
			r.level = 2
			d.say(r)
			d.hears("NAK Invalid Request 0")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				d := newDialogue(t, ib.QPTypeRC, test.conn)
				mr := d.b.mr
				d.b.mr = d.b.regMR(nil, allAccess|ib.AccessFlushGlobal)
				defer func() { d.b.mr = mr }()
				test.play(d)
			})
		})
	}
}

// TestXRCMemory tests that requests of an extended reliable connection use the domain of the named queue.
func TestXRCMemory(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		x := newXRC(t, s, conn{access: allAccess | ib.AccessFlushGlobal})
		defer x.done()
		mr, err := x.pd[0].RegMR(ib.MRInit{Space: x.b.mem, Addr: x.b.addr, Length: uint64(len(x.b.buf)), Access: allAccess | ib.AccessFlushGlobal})
		check(t, err)
		defer func() { check(t, mr.Dereg()) }()
		for _, c := range []struct {
			wr   ib.SendWR
			want ib.WCOpcode
		}{
			{ib.SendWR{Opcode: ib.WRAtomicWrite, Inline: []byte("12345678"), RemoteAddr: x.b.addr, RKey: mr.RKey()}, ib.WCAtomicWrite},
			{ib.SendWR{Opcode: ib.WRFlush, RemoteAddr: x.b.addr, RKey: mr.RKey(), Flush: ib.Flush{Placement: ib.FlushGlobal, Length: 8}}, ib.WCFlush},
		} {
			x.post(0, c.wr)
			x.a.expect(ib.WC{Opcode: c.want})
			x.post(1, c.wr) // the domain of queue 1 has no such key
			x.a.expect(ib.WC{Status: ib.WCRemAccessErr})
			x.up(conn{access: allAccess | ib.AccessFlushGlobal})
		}
		if string(x.b.buf[:8]) != "12345678" {
			t.Errorf("memory holds %q", x.b.buf[:8])
		}
	})
}
