package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/roce"
)

// xrcBench is an initiator on a, and a target on b with two receive queues of its domain. The receive queues have
// protection domains of their own.
type xrcBench struct {
	*bench
	xrcd     *ib.XRCD
	ini, tgt *ib.QP
	srq      [2]*ib.SRQ
	pd       [2]*ib.PD
	mr       [2]*ib.MR // all of b's memory, in each domain
}

func newXRC(t *testing.T, s setup, c conn) *xrcBench {
	t.Helper()
	x := &xrcBench{bench: newBench(t, s)}
	var err error
	x.xrcd, err = x.b.dev.IB().AllocXRCD()
	check(t, err)
	for i := range x.srq {
		x.pd[i], err = x.b.dev.IB().AllocPD()
		check(t, err)
		x.mr[i], err = x.pd[i].RegMR(ib.MRInit{Space: x.b.mem, Addr: x.b.addr, Length: uint64(len(x.b.buf)),
			Access: allAccess})
		check(t, err)
		x.srq[i], err = x.pd[i].CreateSRQ(ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: x.xrcd, CQ: x.b.cq,
			Attr: ib.SRQAttr{MaxWR: 20, MaxSGE: 1}})
		check(t, err)
	}
	x.ini, err = x.a.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeXRCInit, SendCQ: x.a.cq, Cap: ib.QPCap{MaxSendWR: 20,
		MaxSendSGE: 1}})
	check(t, err)
	x.tgt, err = x.b.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeXRCTgt, XRCD: x.xrcd, Event: func(_ *ib.QP,
		e ib.EventType) {
		x.b.event(e)
	}})
	check(t, err)
	x.up(c)
	return x
}

// up connects initiator and target.
func (x *xrcBench) up(c conn) {
	x.t.Helper()
	for _, qp := range []*ib.QP{x.ini, x.tgt} {
		check(x.t, qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
	}
	connectQPs(x.t, x.a.dev, x.ini, x.b.dev, x.tgt, c)
}

func (x *xrcBench) done() {
	check(x.t, x.ini.Destroy())
	check(x.t, x.tgt.Destroy())
	for i := range x.srq {
		check(x.t, x.srq[i].Destroy())
		check(x.t, x.mr[i].Dereg())
		check(x.t, x.pd[i].Dealloc())
	}
	check(x.t, x.xrcd.Dealloc())
}

func (x *xrcBench) recv(q int, id uint64, off, n int) {
	x.t.Helper()
	_, err := x.srq[q].PostRecv(ib.RecvWR{ID: id, SGList: []ib.SGE{{Addr: x.b.addr + uint64(off), Length: uint32(n),
		LKey: x.mr[q].LKey()}}})
	check(x.t, err)
}

func (x *xrcBench) post(q int, wr ib.SendWR) {
	x.t.Helper()
	wr.Flags, wr.RemoteSRQN = ib.SendSignaled, x.srq[q].Num()
	_, err := x.ini.PostSend(wr)
	check(x.t, err)
}

// TestXRC sends every operation to each queue, by every path, with loss on the wire.
func TestXRC(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		x := newXRC(t, s, conn{mtu: ib.MTU1024, psn: 0xfffffd})
		defer x.done()
		if !s.shortcut {
			check(t, x.net.Faults().Add(link.Rule{Drop: 0.05, Duplicate: 0.05}))
		}
		fill(x.a.buf, 1)
		const at = 20000 // offset for RDMA in the memory of b
		for i := range 12 {
			q, n := i%2, 1+i*700
			id := uint64(i)
			x.recv(q, id, 0, 10000)
			op := []ib.WROpcode{ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWriteWithImm}[i%3]
			x.post(q, ib.SendWR{ID: id, Opcode: op, Imm: 7, SGList: x.a.sge(i, n), RemoteAddr: x.b.addr, RKey: x.mr[q].RKey()})
			x.a.expect(ib.WC{ID: id, Opcode: map[bool]ib.WCOpcode{true: ib.WCRDMAWrite}[op == ib.WRRDMAWriteWithImm]})
			wc := x.b.poll(1)[0]
			if wc.ID != id || wc.Status != ib.WCSuccess || int(wc.ByteLen) != n || wc.QP != x.tgt ||
				wc.Flags&ib.WCWithImm == 0 != (op == ib.WRSend) {
				t.Fatalf("message %d: %+v", i, wc)
			}
			if !bytes.Equal(x.b.buf[:n], x.a.buf[i:i+n]) {
				t.Fatalf("message %d arrived changed", i)
			}

			x.post(q, ib.SendWR{ID: 50, Opcode: ib.WRRDMAWrite, SGList: x.a.sge(0, n), RemoteAddr: x.b.addr + at,
				RKey: x.mr[q].RKey()})
			x.post(q, ib.SendWR{ID: 51, Opcode: ib.WRRDMARead, SGList: x.a.sge(30000, n), RemoteAddr: x.b.addr + at,
				RKey: x.mr[q].RKey()})
			x.a.expect(ib.WC{ID: 50, Opcode: ib.WCRDMAWrite}, ib.WC{ID: 51, Opcode: ib.WCRDMARead})
			if !bytes.Equal(x.a.buf[30000:30000+n], x.a.buf[:n]) {
				t.Fatalf("read %d differs from the written data", i)
			}
			binary.NativeEndian.PutUint64(x.b.buf[at:], 40)
			x.post(q, ib.SendWR{ID: 52, Opcode: ib.WRAtomicFetchAdd, SGList: x.a.sge(40000, 8), RemoteAddr: x.b.addr + at,
				RKey: x.mr[q].RKey(), CompareAdd: 2})
			x.post(q, ib.SendWR{ID: 53, Opcode: ib.WRAtomicCmpAndSwp, SGList: x.a.sge(40008, 8), RemoteAddr: x.b.addr + at,
				RKey: x.mr[q].RKey(), CompareAdd: 42, Swap: 9})
			x.a.expect(ib.WC{ID: 52, Opcode: ib.WCFetchAdd}, ib.WC{ID: 53, Opcode: ib.WCCompSwap})
			got := []uint64{binary.NativeEndian.Uint64(x.a.buf[40000:]), binary.NativeEndian.Uint64(x.a.buf[40008:]),
				binary.NativeEndian.Uint64(x.b.buf[at:])}
			if !slices.Equal(got, []uint64{40, 42, 9}) {
				t.Fatalf("atomics: %v", got)
			}
		}
		x.b.none()
	})
}

// TestXRCRefused tests that a forbidden request ends the connection, and that the initiator gets the reason.
func TestXRCRefused(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		x := newXRC(t, s, conn{})
		defer x.done()
		other, err := x.b.dev.IB().AllocXRCD()
		check(t, err)
		stranger, err := x.b.pd.CreateSRQ(ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: other, CQ: x.b.cq,
			Attr: ib.SRQAttr{MaxWR: 1}})
		check(t, err)
		basic, err := x.b.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1}})
		check(t, err)
		write := func(num, key uint32) ib.SendWR {
			return ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: x.a.sge(0, 8), RemoteAddr: x.b.addr, RKey: key, RemoteSRQN: num}
		}
		for _, c := range []struct {
			name string
			wr   ib.SendWR
			want ib.WCStatus
		}{
			{"no such queue", write(77, x.mr[0].RKey()), ib.WCRemInvReqErr},
			{"a queue of another domain", write(stranger.Num(), x.b.mr.RKey()), ib.WCRemInvReqErr},
			{"a queue that is not for XRC", write(basic.Num(), x.b.mr.RKey()), ib.WCRemInvReqErr},
			{"memory of another queue's domain", write(x.srq[1].Num(), x.mr[0].RKey()), ib.WCRemAccessErr},
			{"memory of the target's domain", write(x.srq[1].Num(), x.b.mr.RKey()), ib.WCRemAccessErr},
		} {
			c.wr.Flags = ib.SendSignaled
			_, err := x.ini.PostSend(c.wr)
			check(t, err)
			if wc := x.a.poll(1)[0]; wc.Status != c.want {
				t.Errorf("%s: %v, want %v", c.name, wc.Status, c.want)
			}
			if s := x.tgt.State(); s != ib.QPErr {
				t.Errorf("%s: the target is in state %v", c.name, s)
			}
			x.up(conn{})
		}
		// A receive with wrong memory is a fault of the receiver, and completes with that error.
		_, err = x.srq[0].PostRecv(ib.RecvWR{ID: 4, SGList: []ib.SGE{{Addr: x.b.addr, Length: 8, LKey: x.mr[1].LKey()}}})
		check(t, err)
		x.post(0, ib.SendWR{Opcode: ib.WRSend, SGList: x.a.sge(0, 8)})
		x.a.expect(ib.WC{Status: ib.WCRemOpErr})
		x.b.expect(ib.WC{ID: 4, Status: ib.WCLocProtErr})
		x.up(conn{})
		if _, err := x.tgt.PostSend(ib.SendWR{Opcode: ib.WRSend}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a target sends: %v", err)
		}
		for _, qp := range []*ib.QP{x.ini, x.tgt} {
			if _, err := qp.PostRecv(ib.RecvWR{}); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%v takes receives: %v", qp.Type(), err)
			}
		}
		check(t, basic.Destroy())
		check(t, stranger.Destroy())
		check(t, other.Dealloc())
	})
}

// TestXRCQueueGone destroys a queue while a message for it is in flight. No state may be left behind.
func TestXRCQueueGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := newXRC(t, setup{}, conn{mtu: ib.MTU256, retry: 1})
		defer x.done()
		srq, err := x.pd[0].CreateSRQ(ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: x.xrcd, CQ: x.b.cq, Attr: ib.SRQAttr{MaxWR: 1,
			MaxSGE: 1}})
		check(t, err)
		_, err = srq.PostRecv(ib.RecvWR{ID: 9, SGList: []ib.SGE{{Addr: x.b.addr, Length: 1000, LKey: x.mr[0].LKey()}}})
		check(t, err)
		// The rest of the message arrives after the end of the queue.
		check(t, x.net.Faults().Add(link.Rule{Skip: 1, Delay: time.Millisecond}))
		_, err = x.ini.PostSend(ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: x.a.sge(0, 600),
			RemoteSRQN: srq.Num()})
		check(t, err)
		testutil.AdvanceTime(100 * time.Microsecond)
		check(t, srq.Destroy())
		x.a.expect(ib.WC{ID: 1, Status: ib.WCRemInvReqErr})
		if wc := x.b.poll(1)[0]; wc.ID != 9 || wc.Status == ib.WCSuccess {
			t.Errorf("the receive that was taken: %+v", wc)
		}
	})
}

// TestXRCOpcodes tests that the wire has the opcodes of XRC, and that each request names its queue.
func TestXRCOpcodes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := setup{}
		s.net.Record = true
		x := newXRC(t, s, conn{mtu: ib.MTU256})
		defer x.done()
		x.recv(1, 1, 0, 1000)
		x.post(1, ib.SendWR{Opcode: ib.WRSend, SGList: x.a.sge(0, 600)})
		x.a.poll(1)
		x.b.poll(1)
		x.post(1, ib.SendWR{Opcode: ib.WRRDMARead, SGList: x.a.sge(0, 8), RemoteAddr: x.b.addr, RKey: x.mr[1].RKey()})
		x.a.poll(1)
		var got []roce.Opcode
		for _, p := range x.net.Packets() {
			k, err := roce.ParsePacket(p.Data)
			check(t, err)
			got = append(got, k.Opcode)
			if h := k.XRCETH(); (h != nil) != (p.Src == addrA) || h != nil && h.SRQN() != x.srq[1].Num() {
				t.Errorf("%v names % x", k.Opcode, h)
			}
		}
		want := []roce.Opcode{0xa0, 0xa1, 0xa2, 0xb1, 0xac, 0xb0}
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// TestXRCInitiatorReceives checks packets for an initiator, which has no responder.
func TestXRCInitiatorReceives(t *testing.T) {
	x := newXRC(t, setup{}, conn{})
	defer x.done()
	ini := qpOf(x.ini)
	for op, want := range map[roce.Opcode]counter{
		roce.XRCSendOnly: cntDropService, roce.XRCRDMAReadRequest: cntDropService, roce.XRCAcknowledge: accept,
	} {
		b := (&craft{op: op, to: ini, pkey: roce.DefaultPKey}).make()
		k := packet{src: ini.path.dst, dst: ini.path.from.addr}
		if got := ini.parse(&k, b[:len(b)-link.ICRCLen]); got != accept {
			t.Fatalf("parse %v: got %v, want a well-formed packet", op, got)
		}
		if got := ini.check(&k); got != want {
			t.Errorf("check %v: got %v, want %v", op, got, want)
		}
	}
}
