package engine

import (
	"errors"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/umem"
)

// allocMR allocates a region for work requests, and maps it to the buffer of n.
func (n *node) allocMR(pd *ib.PD) *ib.MR {
	n.t.Helper()
	if pd == nil {
		pd = n.pd
	}
	mr, err := pd.AllocMR(len(n.buf)/int(umem.PageSize) + 2)
	check(n.t, err)
	n.mrs = append(n.mrs, mr)
	n.mapMR(mr)
	return mr
}

func (n *node) mapMR(mr *ib.MR) {
	n.t.Helper()
	check(n.t, mr.Map(n.mem, nil, []umem.Range{{Addr: n.addr, Length: uint64(len(n.buf))}}, n.addr))
}

// fastReg registers a region with all rights, and returns the key.
func (n *node) fastReg(mr *ib.MR) uint32 {
	n.t.Helper()
	mr.UpdateKey(uint8(mr.RKey()) + 1)
	if s := n.status(ib.SendWR{Opcode: ib.WRRegMR, Reg: &ib.FastReg{MR: mr, Key: mr.RKey(),
		Access: bindable}}); s != ib.WCSuccess {
		n.t.Fatalf("registration by a work request: %v", s)
	}
	return mr.RKey()
}

// TestFastReg tests the rules for a fast registration (IBA 10.6.3), and the states of the region.
func TestFastReg(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(b *bench, r *ib.FastReg)
		want   bool
	}{
		{"free", func(b *bench, r *ib.FastReg) {}, true},
		{"the key that it has", func(b *bench, r *ib.FastReg) { r.Key = r.MR.RKey() }, true},
		{"no rights", func(b *bench, r *ib.FastReg) { r.Access = 0 }, true},
		{"valid already", func(b *bench, r *ib.FastReg) { b.b.fastReg(r.MR); r.Key++ }, false},
		{"invalidated", func(b *bench, r *ib.FastReg) {
			if s := b.b.status(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: b.b.fastReg(r.MR)}); s != ib.WCSuccess {
				b.t.Fatal(s)
			}
		}, true},
		{"nothing mapped", func(b *bench, r *ib.FastReg) {
			mr, err := b.b.pd.AllocMR(1)
			check(b.t, err)
			b.b.mrs = append(b.b.mrs, mr)
			*r = ib.FastReg{MR: mr, Key: mr.RKey()}
		}, false},
		{"a key of another index", func(b *bench, r *ib.FastReg) { r.Key += 1 << 8 }, false},
		{"a region of another domain", func(b *bench, r *ib.FastReg) {
			r.MR = b.b.allocMR(b.b.newPD())
			r.Key = r.MR.RKey()
		}, false},
		{"a region of RegMR", func(b *bench, r *ib.FastReg) { r.MR, r.Key = b.b.mr, b.b.mr.RKey() }, false},
		{"remote write without local write", func(b *bench, r *ib.FastReg) { r.Access = ib.AccessRemoteWrite }, false},
		{"zero-based addresses", func(b *bench, r *ib.FastReg) { r.Access |= ib.AccessZeroBased }, false},
		{"persistence", func(b *bench, r *ib.FastReg) { r.Access |= ib.AccessFlushPersistent }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBench(t, setup{shortcut: true})
				b.connect(conn{})
				r := ib.FastReg{MR: b.b.allocMR(nil), Access: allAccess}
				r.Key = r.MR.RKey() + 1
				if got := b.access(ib.WRRDMAWrite, b.b.addr, 8, r.Key); got != ib.WCRemAccessErr {
					t.Errorf("write before the registration: %v", got)
				}
				b.reconnect(conn{})
				c.change(b, &r)
				want := map[bool]ib.WCStatus{true: ib.WCSuccess, false: ib.WCLocQPOpErr}[c.want]
				if got := b.b.status(ib.SendWR{Opcode: ib.WRRegMR, Reg: &r}); got != want {
					t.Fatalf("%v, want %v", got, want)
				}
				if !c.want {
					return
				}
				if err := r.MR.Map(b.b.mem, nil, []umem.Range{{Addr: b.b.addr, Length: 1}}, b.b.addr); !errors.Is(err,
					syscall.EBUSY) {
					t.Errorf("map while it is registered: %v", err)
				}
				want = ib.WCRemAccessErr
				if r.Access&ib.AccessRemoteWrite != 0 {
					want = ib.WCSuccess
				}
				if got := b.access(ib.WRRDMAWrite, b.b.addr, 8, r.Key); got != want {
					t.Errorf("write by the new key: %v, want %v", got, want)
				}
			})
		})
	}
}

// TestFastRegLocal uses the key for the consumer's own memory.
func TestFastRegLocal(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		b := newBench(t, s)
		b.connect(conn{})
		mr := b.a.allocMR(nil)
		fill(b.a.buf, 4)
		// The region is registered, used and invalidated in one list. Each request waits for the earlier ones if
		// necessary.
		mr.UpdateKey(7)
		key := mr.LKey()
		sge := func(off int) []ib.SGE { return []ib.SGE{{Addr: b.a.addr + uint64(off), Length: 9000, LKey: key}} }
		b.a.send(
			ib.SendWR{ID: 1, Opcode: ib.WRRegMR, Flags: ib.SendSignaled, Reg: &ib.FastReg{MR: mr, Key: key, Access: allAccess}},
			ib.SendWR{ID: 2, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: sge(0), RemoteAddr: b.b.addr,
				RKey: b.b.mr.RKey()},
			ib.SendWR{ID: 3, Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGList: sge(20_000), RemoteAddr: b.b.addr,
				RKey: b.b.mr.RKey()},
			ib.SendWR{ID: 4, Opcode: ib.WRLocalInv, Flags: ib.SendSignaled, InvalidateRKey: key},
			ib.SendWR{ID: 5, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: sge(0), RemoteAddr: b.b.addr,
				RKey: b.b.mr.RKey()},
		)
		b.a.expect(ib.WC{ID: 1, Opcode: ib.WCRegMR}, ib.WC{ID: 2, Opcode: ib.WCRDMAWrite}, ib.WC{ID: 3,
			Opcode: ib.WCRDMARead},
			ib.WC{ID: 4, Opcode: ib.WCLocalInv}, ib.WC{ID: 5, Status: ib.WCLocProtErr})
		if !slices.Equal(b.a.buf[:9000], b.a.buf[20_000:29_000]) {
			t.Error("data differ")
		}
	})
}

// TestLocalUnderLoss tests that work requests without packets take effect once and complete in order, while packets
// of other requests are retransmitted.
func TestLocalUnderLoss(t *testing.T) {
	for _, seed := range seeds(20) {
		bubble(t, func(t *testing.T) {
			t.Logf("seed %d", seed)
			b := newBench(t, setup{net: simnet.Config{Latency: 20 * time.Microsecond, Rand: rand.NewPCG(seed, 1)}})
			check(t, b.net.Faults().Add(link.Rule{Drop: 0.05, Duplicate: 0.1, Reorder: 0.05, Behind: 2}))
			b.connect(conn{timeout: 8, access: allAccess | ib.AccessFlushGlobal})
			mr, target := b.b.allocMR(nil), b.a.regMR(nil, allAccess|ib.AccessFlushGlobal)
			mw := b.b.allocMW(nil, ib.MWType2)
			region := b.b.regMR(nil, bindable)
			fill(b.b.buf, seed)
			id := uint64(0)
			var want []ib.WC
			key := mw.RKey()
			post := func(op ib.WCOpcode, wr ib.SendWR) {
				id++
				wr.ID, wr.Flags = id, ib.SendSignaled
				want = append(want, ib.WC{ID: id, Opcode: op})
				b.b.send(wr)
			}
			for range 6 {
				mr.UpdateKey(uint8(mr.RKey()) + 1)
				key = ib.IncRKey(key)
				write := ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: b.b.sge(0, 5000), RemoteAddr: b.a.addr, RKey: target.RKey()}
				write.SGList[0].LKey = mr.LKey()
				read := write
				read.Opcode, read.SGList = ib.WRRDMARead, b.b.sge(30_000, 5000)
				post(ib.WCRegMR, ib.SendWR{Opcode: ib.WRRegMR, Reg: &ib.FastReg{MR: mr, Key: mr.RKey(), Access: allAccess}})
				post(ib.WCRDMAWrite, write)
				post(ib.WCBindMW, ib.SendWR{Opcode: ib.WRBindMW, Bind: &ib.BindMW{MW: mw, MR: region, RKey: key, Addr: b.b.addr,
					Length: 8}})
				post(ib.WCRDMARead, read)
				post(ib.WCLocalInv, ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: key})
				post(ib.WCAtomicWrite, ib.SendWR{Opcode: ib.WRAtomicWrite, Inline: b.b.buf[:8], RemoteAddr: b.a.addr + 40_000,
					RKey: target.RKey()})
				post(ib.WCFlush, ib.SendWR{Opcode: ib.WRFlush, RemoteAddr: b.a.addr, RKey: target.RKey(),
					Flush: ib.Flush{Placement: ib.FlushGlobal, Length: 8}})
				post(ib.WCLocalInv, ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: mr.RKey()})
			}
			b.b.expect(want...)
			if !slices.Equal(b.b.buf[:5000], b.b.buf[30_000:35_000]) || !slices.Equal(b.b.buf[:8], b.a.buf[40_000:40_008]) {
				t.Errorf("seed %d: data differ", seed)
			}
		})
	}
}

// TestInvalidateWaits tests that a request keeps its memory for retransmissions, and that an invalidation waits for
// the request.
func TestInvalidateWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{})
		b.connect(conn{})
		mr := b.a.allocMR(nil)
		key := b.a.fastReg(mr)
		b.net.SetLink(addrB, false)
		wr := ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: b.a.sge(0, 5000),
			RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()}
		wr.SGList[0].LKey = key
		b.a.send(wr, ib.SendWR{ID: 2, Opcode: ib.WRLocalInv, Flags: ib.SendSignaled, InvalidateRKey: key},
			ib.SendWR{ID: 3, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled})
		testutil.AdvanceTime(100 * time.Millisecond)
		b.a.none()
		b.net.SetLink(addrB, true)
		b.a.expect(ib.WC{ID: 1, Opcode: ib.WCRDMAWrite}, ib.WC{ID: 2, Opcode: ib.WCLocalInv}, ib.WC{ID: 3,
			Opcode: ib.WCRDMAWrite})
	})
}

// TestLocalFence tests that a work request without packets, with a fence, waits for the responses to earlier
// requests.
func TestLocalFence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{})
		b.connect(conn{})
		mr := b.a.allocMR(nil)
		b.net.SetLink(addrB, false)
		reg := ib.SendWR{ID: 2, Opcode: ib.WRRegMR, Flags: ib.SendSignaled | ib.SendFence, Reg: &ib.FastReg{MR: mr,
			Key: mr.RKey(), Access: allAccess}}
		b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRRDMARead, SGList: b.a.sge(0, 10), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()},
			reg)
		testutil.AdvanceTime(10 * time.Millisecond)
		if err := mr.Map(b.a.mem, nil, []umem.Range{{Addr: b.a.addr, Length: 10}}, b.a.addr); err != nil {
			t.Errorf("it has been registered before the read is complete: %v", err)
		}
		b.net.SetLink(addrB, true)
		b.a.expect(ib.WC{ID: 2, Opcode: ib.WCRegMR})
	})
}

// TestRereg tests that the keys give the present rights, memory and domain of the region.
func TestRereg(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true})
		b.connect(conn{})
		mr := b.b.regMR(nil, allAccess)
		first := mr.RKey()
		try := func(what string, addr uint64, key uint32, want ib.WCStatus) {
			t.Helper()
			if got := b.access(ib.WRRDMAWrite, addr, 8, key); got != want {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
			b.reconnect(conn{})
		}
		try("before", b.b.addr, first, ib.WCSuccess)
		check(t, mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: ib.AccessLocalWrite | ib.AccessRemoteRead}))
		if mr.RKey() != first {
			t.Errorf("key %#x, was %#x, for the same memory", mr.RKey(), first)
		}
		try("without the right", b.b.addr, first, ib.WCRemAccessErr)
		check(t, mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: allAccess}))
		try("with the right again", b.b.addr, first, ib.WCSuccess)
		pd := b.b.newPD()
		check(t, mr.Rereg(ib.MRChangePD, ib.MRChange{PD: pd}))
		try("of another domain", b.b.addr, first, ib.WCRemAccessErr)
		check(t, mr.Rereg(ib.MRChangePD, ib.MRChange{PD: b.b.pd}))
		other := make([]byte, 100)
		addr, err := b.b.mem.Add(other)
		check(t, err)
		check(t, mr.Rereg(ib.MRChangeTranslation, ib.MRChange{Space: b.b.mem, Addr: addr, Length: 100, IOVA: b.b.addr}))
		if mr.RKey() == first || mr.LKey() == first {
			t.Errorf("the key is still %#x", first)
		}
		try("by the old key", b.b.addr, first, ib.WCRemAccessErr)
		clear(b.b.buf[:8])
		b.a.buf[0] = 42
		try("by the new key", b.b.addr, mr.RKey(), ib.WCSuccess)
		if other[0] != 42 || b.b.buf[0] != 0 {
			t.Error("written to the old memory")
		}
		if err := mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: ib.AccessFlushPersistent}); !errors.Is(err,
			syscall.EOPNOTSUPP) {
			t.Errorf("persistence: %v", err)
		}
		try("after a failure", b.b.addr, mr.RKey(), ib.WCSuccess)
	})
}
