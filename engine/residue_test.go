package engine

import (
	"bytes"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"verbena/ib"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/roce"
)

// poison fills every buffer that the engine takes from a pool from now on with a byte, like the data of another
// program.
func poison(t *testing.T, with byte, devs ...*Device) {
	t.Helper()
	fill := func(b []byte) {
		for i := range b {
			b[i] = with
		}
	}
	poisoned := func(of *sync.Pool, size int) func() any {
		return func() any {
			t := newTrain(of, size)
			fill(t.Buf[:cap(t.Buf)])
			return t
		}
	}
	trainPool.New, ackPool.New = poisoned(&trainPool, link.MaxTrain), poisoned(&ackPool, ackTrain)
	mixedPool.New = poisoned(&mixedPool, mixedTrain)
	t.Cleanup(initTrains)
	for _, d := range devs {
		d.passes.New = func() any {
			p := newPass(d)
			p.posted.Inline = bytes.Repeat([]byte{with}, maxInline)
			fill(p.grh[:])
			return p
		}
	}
	forgetPools()
}

// forgetPools empties all pools.
func forgetPools() {
	runtime.GC()
	runtime.GC() // the second removes the victims of the first
}

// TestNoResidue tests that sent packets and stored data do not depend on the previous content of buffers from the
// pools.
func TestNoResidue(t *testing.T) {
	for _, shortcut := range []bool{false, true} {
		t.Run(fmt.Sprint(shortcut), func(t *testing.T) {
			// On virtual time a packet is sent once, however busy the machine is.
			synctest.Test(t, func(t *testing.T) { testNoResidue(t, shortcut) })
		})
	}
}

func testNoResidue(t *testing.T, shortcut bool) {
	s := setup{net: simnet.Config{Record: true}, shortcut: shortcut, access: allAccess | ib.AccessFlushGlobal}
	rc := newBenchIn(t, s)
	defer rc.close()
	rc.connect(conn{access: allAccess | ib.AccessFlushGlobal})
	ud := rc.a.newQP(setup{typ: ib.QPTypeUD, cap: userCap})
	udTo := rc.b.newQP(setup{typ: ib.QPTypeUD, cap: userCap})
	defer func() { check(t, ud.Destroy()); check(t, udTo.Destroy()) }()
	connectQPs(t, rc.a.dev, ud, rc.b.dev, udTo, conn{})
	ah := newAH(rc.a, rc.b.dev, 1)
	defer func() { check(t, ah.Destroy()) }()
	remote := func(op ib.WROpcode, length int) ib.SendWR {
		return ib.SendWR{Opcode: op, SGList: rc.a.sge(0, length), RemoteAddr: rc.b.addr + 1<<12, RKey: rc.b.mr.RKey()}
	}
	inline := remote(ib.WRRDMAWrite, 0)
	inline.SGList, inline.Flags, inline.Inline = nil, ib.SendInline, []byte("inline")
	atomicWrite := remote(ib.WRAtomicWrite, 0)
	atomicWrite.SGList, atomicWrite.Inline = nil, []byte("8 bytes.")
	flush := remote(ib.WRFlush, 0)
	flush.Flush = ib.Flush{Length: 8, Placement: ib.FlushGlobal, Level: ib.FlushRange}
	imm := remote(ib.WRRDMAWriteWithImm, 5)
	imm.Imm = 0x01020304
	fetch := remote(ib.WRAtomicFetchAdd, 8)
	swap := remote(ib.WRAtomicCmpAndSwp, 8)
	datagram := func(op ib.WROpcode, length int) ib.SendWR {
		return ib.SendWR{Opcode: op, SGList: rc.a.sge(0, length), AH: ah, RemoteQPN: udTo.Num(), RemoteQKey: testQKey, Imm: 7}
	}
	ops := []struct {
		name     string
		qp       *ib.QP
		wr       ib.SendWR
		receives bool
	}{
		{"send of 3", rc.a.qp, remote(ib.WRSend, 3), true},
		{"send of nothing", rc.a.qp, remote(ib.WRSend, 0), true},
		{"send of 2501", rc.a.qp, remote(ib.WRSend, 2501), true},
		{"write of 2", rc.a.qp, remote(ib.WRRDMAWrite, 2), false},
		{"write with immediate", rc.a.qp, imm, true},
		{"inline write", rc.a.qp, inline, false},
		{"read of 1", rc.a.qp, remote(ib.WRRDMARead, 1), false},
		{"read of 2501", rc.a.qp, remote(ib.WRRDMARead, 2501), false},
		{"fetch", rc.a.qp, fetch, false},
		{"swap", rc.a.qp, swap, false},
		{"atomic write", rc.a.qp, atomicWrite, false},
		{"flush", rc.a.qp, flush, false},
		{"datagram of 5", ud, datagram(ib.WRSend, 5), true},
		{"datagram with immediate", ud, datagram(ib.WRSendWithImm, 6), true},
	}
	type seen struct {
		packets [][]byte
		a, b    []byte
		wc      []ib.WC
	}
	run := func(with byte) (all []seen) {
		poison(t, with, rc.a.dev, rc.b.dev)
		for i := range ops {
			o := &ops[i]
			forgetPools()
			clear(rc.a.buf)
			clear(rc.b.buf)
			n := len(rc.net.Packets())
			want := 1
			if o.receives {
				qp := rc.b.qp
				if o.qp == ud {
					qp = udTo
				}
				_, err := qp.PostRecv(ib.RecvWR{ID: 1, SGList: rc.b.sge(0, 4000)})
				check(t, err)
			}
			wr := o.wr
			wr.Flags |= ib.SendSignaled
			_, err := o.qp.PostSend(wr)
			check(t, err)
			s := seen{wc: rc.a.poll(want)}
			if o.receives {
				s.wc = append(s.wc, rc.b.poll(1)...)
			}
			for _, wc := range s.wc {
				if wc.Status != ib.WCSuccess {
					t.Fatalf("%s: %v", o.name, wc.Status)
				}
			}
			s.a, s.b = bytes.Clone(rc.a.buf), bytes.Clone(rc.b.buf)
			for _, p := range rc.net.Packets()[n:] {
				b := bytes.Clone(p.Data)
				clear(b[9:12]) // the PSN and the MSN advance, and so the ICRC changes
				if k, err := roce.ParsePacket(b); err == nil && k.AETH() != nil {
					clear(k.AETH()[1:])
				}
				clear(b[len(b)-link.ICRCLen:])
				s.packets = append(s.packets, b)
			}
			all = append(all, s)
		}
		return all
	}
	first, second := run(0xa5), run(0x5a)
	for i, o := range ops {
		x, y := first[i], second[i]
		if !shortcut && len(x.packets) == 0 || len(x.packets) != len(y.packets) {
			t.Errorf("%s: %d and %d packets", o.name, len(x.packets), len(y.packets))
			continue
		}
		for k := range x.packets {
			if !bytes.Equal(x.packets[k], y.packets[k]) {
				t.Errorf("%s: packet %d holds old data of a buffer:\n%x\n%x", o.name, k, x.packets[k], y.packets[k])
			}
		}
		if !bytes.Equal(x.a, y.a) || !bytes.Equal(x.b, y.b) {
			t.Errorf("%s: the stored data depends on old data of a buffer", o.name)
		}
		if fmt.Sprint(x.wc) != fmt.Sprint(y.wc) {
			t.Errorf("%s: completions %v and %v", o.name, x.wc, y.wc)
		}
	}
}
