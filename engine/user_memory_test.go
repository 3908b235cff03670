package engine

import (
	"encoding/binary"
	"testing"

	"verbena/ib"
	"verbena/uapi"
)

// post rings the doorbell for a work request without elements, in the layout of the rxe library. It returns the
// completion.
func (u *user) post(op uapi.WROpcode, data []byte, set func(wr *uapi.RXESendWR)) uapi.WC {
	u.t.Helper()
	h := uapi.RXESendWQE{WR: uapi.RXESendWR{WRID: 9, Opcode: op, SendFlags: uapi.SendSignaled}}
	h.DMA.Length = uint32(len(data))
	set(&h.WR)
	if !u.sq.post(append(uapi.AppendTo(nil, &h), data...)) {
		u.t.Fatal("send queue is full")
	}
	u.doorbell()
	wc := u.poll() // another thread may run the queue pair or its peer
	if wc.WRID != 9 {
		u.t.Fatalf("%v: completion %+v", op, wc)
	}
	// The race detector does not see the order of accesses to memory that is mapped twice. Another thread may have
	// run the peer.
	qpOf(u.b.b.qp).exclusively(func(*pass) {})
	return wc
}

// TestUserMemoryOperations posts all operations on windows and memory through the shared queue.
func TestUserMemoryOperations(t *testing.T) {
	for _, c := range []struct {
		name string
		cap  ib.QPCap
	}{
		{"usual capacities", userCap},
		{"no room for inline data asked for", ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, setup{shortcut: true})
			u := newUser(b, c.cap)
			toPeer := conn{access: allAccess | ib.AccessFlushGlobal}
			check(t, b.b.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
			toRTR(t, b.b.qp, b.a.dev, u.qp.Num(), toPeer)
			toRTS(t, b.b.qp, toPeer)
			mr, target := b.a.regMR(nil, bindable), b.b.regMR(nil, allAccess|ib.AccessFlushGlobal)
			mw := b.a.allocMW(nil, ib.MWType2)
			good := func(op uapi.WROpcode, want uapi.WCOpcode, data []byte, set func(wr *uapi.RXESendWR)) {
				t.Helper()
				if wc := u.post(op, data, set); wc.Status != uapi.WCSuccess || wc.Opcode != want || int(wc.ByteLen) != len(data) {
					t.Fatalf("%v: %+v", op, wc)
				}
			}
			key := mw.RKey() ^ 0x55
			bind := func(wr *uapi.RXESendWR) {
				*wr.MW() = uapi.RXESendWRMW{
					Addr: b.a.addr, Length: 64, MRLKey: mr.LKey(), MWRKey: mw.RKey(), RKey: key, Access: uapi.AccessRemoteWrite,
				}
			}
			good(uapi.WRBindMW, uapi.WCBindMW, nil, bind)
			write := func() ib.WCStatus {
				return b.b.status(ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: b.b.sge(0, 8), RemoteAddr: b.a.addr, RKey: key})
			}
			if s := write(); s != ib.WCSuccess {
				t.Errorf("write by the key as it was posted: %v", s)
			}
			good(uapi.WRLocalInv, uapi.WCLocalInv, nil, func(wr *uapi.RXESendWR) { wr.Ex = uapi.NewImmRKey(key) })
			// A library that does not keep the key refers to the window by its first key.
			key = key&^0xff | uint32(uint8(key)+1)
			good(uapi.WRBindMW, uapi.WCBindMW, nil, bind)
			if s := write(); s != ib.WCSuccess {
				t.Errorf("write by the second key: %v", s)
			}
			data := binary.NativeEndian.AppendUint64(nil, 0x0102030405060708)
			good(uapi.WRAtomicWrite, uapi.WCAtomicWrite, data, func(wr *uapi.RXESendWR) {
				*wr.RDMA() = uapi.RXESendWRRDMA{RemoteAddr: b.b.addr + 16, RKey: target.RKey()}
			})
			if got := binary.NativeEndian.Uint64(b.b.buf[16:]); got != 0x0102030405060708 {
				t.Errorf("atomic write has stored %#x", got)
			}
			good(uapi.WRFlush, uapi.WCFlush, nil, func(wr *uapi.RXESendWR) {
				*wr.Flush() = uapi.RXESendWRFlush{RemoteAddr: b.b.addr, Length: 64, RKey: target.RKey(), Type: uapi.FlushGlobal}
			})
			// Only a consumer of this process may post a fast registration.
			if wc := u.post(wrRegMR, nil, bind); wc.Status != uapi.WCLocQPOpErr {
				t.Errorf("fast registration: %v", wc.Status)
			}
		})
	}
}

// TestUserMemoryErrors posts requests that a library would not post.
func TestUserMemoryErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		op   uapi.WROpcode
		data []byte
		set  func(b *bench, wr *uapi.RXESendWR)
		want uapi.WCStatus
	}{
		{"atomic write of 4 bytes", uapi.WRAtomicWrite, make([]byte, 4), func(b *bench, wr *uapi.RXESendWR) {}, uapi.WCLocLenErr},
		{"atomic write of 16 bytes", uapi.WRAtomicWrite, make([]byte, 16), func(b *bench, wr *uapi.RXESendWR) {}, uapi.WCLocLenErr},
		{"misaligned atomic write", uapi.WRAtomicWrite, make([]byte, 8), func(b *bench, wr *uapi.RXESendWR) { wr.RDMA().RemoteAddr = 4 }, uapi.WCRemInvReqErr},
		{"inline READ", uapi.WRRDMARead, make([]byte, 8), func(b *bench, wr *uapi.RXESendWR) { wr.SendFlags |= uapi.SendInline }, uapi.WCLocQPOpErr},
		{"inline atomic", uapi.WRAtomicFetchAndAdd, make([]byte, 8), func(b *bench, wr *uapi.RXESendWR) { wr.SendFlags |= uapi.SendInline }, uapi.WCLocQPOpErr},
		{"atomic without memory", uapi.WRAtomicFetchAndAdd, nil, func(b *bench, wr *uapi.RXESendWR) { wr.Atomic().RemoteAddr = 4 }, uapi.WCLocLenErr},
		{"flush to nowhere", uapi.WRFlush, nil, func(b *bench, wr *uapi.RXESendWR) {}, uapi.WCLocQPOpErr},
		{"flush of no level", uapi.WRFlush, nil, func(b *bench, wr *uapi.RXESendWR) { wr.Flush().Type, wr.Flush().Level = 1, 200 }, uapi.WCLocQPOpErr},
		{"bind of no window", uapi.WRBindMW, nil, func(b *bench, wr *uapi.RXESendWR) {}, uapi.WCMWBindErr},
		{"bind of a region", uapi.WRBindMW, nil, func(b *bench, wr *uapi.RXESendWR) {
			*wr.MW() = uapi.RXESendWRMW{MWRKey: b.a.mr.RKey(), RKey: b.a.mr.RKey(), MRLKey: b.a.mr.LKey()}
		}, uapi.WCMWBindErr},
		{"window on a window", uapi.WRBindMW, nil, func(b *bench, wr *uapi.RXESendWR) {
			mw := b.a.allocMW(nil, ib.MWType1)
			*wr.MW() = uapi.RXESendWRMW{MWRKey: mw.RKey(), RKey: ib.IncRKey(mw.RKey()), MRLKey: mw.RKey(), Length: 1}
		}, uapi.WCMWBindErr},
		{"invalidation of no key", uapi.WRLocalInv, nil, func(b *bench, wr *uapi.RXESendWR) { wr.Ex = uapi.NewImmRKey(^uint32(0)) }, uapi.WCLocQPOpErr},
		{"read with invalidate", uapi.WRRDMAReadWithInv, nil, func(b *bench, wr *uapi.RXESendWR) {}, uapi.WCLocQPOpErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, setup{shortcut: true})
			u := newUser(b, userCap)
			if wc := u.post(c.op, c.data, func(wr *uapi.RXESendWR) { c.set(b, wr) }); wc.Status != c.want {
				t.Errorf("%v, want %v", wc.Status, c.want)
			}
		})
	}
}
