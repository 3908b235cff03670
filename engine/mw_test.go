package engine

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/roce"
	"verbena/uapi"
	"verbena/umem"
)

const bindable = allAccess | ib.AccessMWBind

// regMR registers the buffer of n with other rights, in its domain or another.
func (n *node) regMR(pd *ib.PD, access ib.AccessFlags) *ib.MR {
	n.t.Helper()
	if pd == nil {
		pd = n.pd
	}
	mr, err := pd.RegMR(ib.MRInit{Space: n.mem, Addr: n.addr, Length: uint64(len(n.buf)), Access: access})
	check(n.t, err)
	n.mrs = append(n.mrs, mr)
	return mr
}

// newPD allocates another domain.
func (n *node) newPD() *ib.PD {
	n.t.Helper()
	pd, err := n.dev.IB().AllocPD()
	check(n.t, err)
	n.pds = append(n.pds, pd)
	return pd
}

func (n *node) allocMW(pd *ib.PD, kind ib.MWType) *ib.MW {
	n.t.Helper()
	if pd == nil {
		pd = n.pd
	}
	mw, err := pd.AllocMW(kind)
	check(n.t, err)
	n.mws = append(n.mws, mw)
	return mw
}

// status posts a work request and returns the status of its completion.
func (n *node) status(wr ib.SendWR) ib.WCStatus {
	n.t.Helper()
	wr.ID, wr.Flags = 60, wr.Flags|ib.SendSignaled
	n.send(wr)
	wc := n.poll(1)[0]
	if wc.ID != 60 {
		n.t.Fatalf("completion %+v instead of that of the work request", wc)
	}
	return wc.Status
}

// bind binds a window to n bytes at an offset of the buffer, which must succeed, and returns the key.
func (n *node) bind(mw *ib.MW, mr *ib.MR, off, length int, access ib.AccessFlags) uint32 {
	n.t.Helper()
	key := ib.IncRKey(mw.RKey())
	if s := n.status(ib.SendWR{Opcode: ib.WRBindMW, Bind: &ib.BindMW{
		MW: mw, MR: mr, RKey: key, Addr: n.addr + uint64(off), Length: uint64(length), Access: access,
	}}); s != ib.WCSuccess || mw.RKey() != key {
		n.t.Fatalf("bind: %v, key %#x, want %#x", s, mw.RKey(), key)
	}
	return key
}

// access executes an operation of a with a key of b, and returns its status.
func (b *bench) access(op ib.WROpcode, addr uint64, n int, key uint32) ib.WCStatus {
	b.t.Helper()
	wr := ib.SendWR{Opcode: op, RemoteAddr: addr, RKey: key}
	switch op {
	case ib.WRAtomicWrite:
		wr.Inline = make([]byte, 8)
	case ib.WRFlush:
		wr.Flush = ib.Flush{Placement: ib.FlushGlobal, Length: uint32(n)}
	default:
		wr.SGList = b.a.sge(0, n)
	}
	return b.a.status(wr)
}

// TestWindowBind tests the rules for a bind (IBA 10.6.7.2, C10-70 to C10-75, o10-36, o10-37). A refused bind ends
// with a bind error, and changes nothing.
func TestWindowBind(t *testing.T) {
	both := []ib.MWType{ib.MWType1, ib.MWType2}
	for _, c := range []struct {
		name   string
		kinds  []ib.MWType
		region ib.AccessFlags // 0: all
		change func(b *bench, w *ib.BindMW)
		want   bool
	}{
		{"all of the region", both, 0, func(b *bench, w *ib.BindMW) {}, true},
		{"its first byte", both, 0, func(b *bench, w *ib.BindMW) { w.Length = 1 }, true},
		{"its last byte", both, 0, func(b *bench, w *ib.BindMW) { w.Addr += w.Length - 1; w.Length = 1 }, true},
		{"a byte too many", both, 0, func(b *bench, w *ib.BindMW) { w.Length++ }, false},
		{"from a byte before", both, 0, func(b *bench, w *ib.BindMW) { w.Addr--; w.Length = 1 }, false},
		{"around the end of the address space", both, 0, func(b *bench, w *ib.BindMW) {
			w.Addr, w.Length = ^uint64(0),
				w.Addr
		}, false},
		{"no rights", both, 0, func(b *bench, w *ib.BindMW) { w.Access = 0 }, true},
		{"writing, where the region cannot be written", both, ib.AccessMWBind, func(b *bench,
			w *ib.BindMW) {
			w.Access = ib.AccessRemoteWrite
		}, false},
		{"atomics, where the region cannot be written", both, ib.AccessMWBind, func(b *bench,
			w *ib.BindMW) {
			w.Access = ib.AccessRemoteAtomic
		}, false},
		{"reading, where the region has no remote rights", both, ib.AccessMWBind, func(b *bench,
			w *ib.BindMW) {
			w.Access = ib.AccessRemoteRead
		}, true},
		{"a region without the right to bind", both, allAccess, func(b *bench, w *ib.BindMW) {}, false},
		{"a region of another domain", both, 0, func(b *bench, w *ib.BindMW) { w.MR = b.b.regMR(b.b.newPD(), bindable) },
			false},
		{"a window of another domain", both, 0, func(b *bench, w *ib.BindMW) {
			w.MW = b.b.allocMW(b.b.newPD(), w.MW.Type())
			w.RKey = ib.IncRKey(w.MW.RKey())
		}, false},
		{"a key that is another window's", both, 0, func(b *bench, w *ib.BindMW) { w.RKey += 1 << 8 }, true},
		{"the low bits of a key", both, 0, func(b *bench, w *ib.BindMW) { w.RKey &= 0xff }, true},
		{"the key that it has, with other upper bits", []ib.MWType{ib.MWType1}, 0, func(b *bench, w *ib.BindMW) {
			w.RKey = w.MW.RKey() ^ 1<<31
		}, false},
		{"zero based", []ib.MWType{ib.MWType2}, 0, func(b *bench, w *ib.BindMW) { w.Access |= ib.AccessZeroBased }, true},
		{"zero based", []ib.MWType{ib.MWType1}, 0, func(b *bench, w *ib.BindMW) { w.Access |= ib.AccessZeroBased }, false},
		{"zero based, a byte too many", []ib.MWType{ib.MWType2}, 0, func(b *bench, w *ib.BindMW) {
			w.Access |= ib.AccessZeroBased
			w.Addr++
		}, false},
		{"no length", []ib.MWType{ib.MWType1}, 0, func(b *bench, w *ib.BindMW) { w.Length, w.MR = 0, nil }, true},
		{"no length", []ib.MWType{ib.MWType2}, 0, func(b *bench, w *ib.BindMW) { w.Length, w.MR = 0, nil }, false},
		{"the key that it has", []ib.MWType{ib.MWType1}, 0, func(b *bench, w *ib.BindMW) { w.RKey = w.MW.RKey() }, false},
		{"the key that it has", []ib.MWType{ib.MWType2}, 0, func(b *bench, w *ib.BindMW) { w.RKey = w.MW.RKey() }, true},
		{"the right to bind", both, 0, func(b *bench, w *ib.BindMW) { w.Access |= ib.AccessMWBind }, false},
		{"the right to write locally, which means nothing", both, 0, func(b *bench,
			w *ib.BindMW) {
			w.Access |= ib.AccessLocalWrite
		}, true},
	} {
		for _, kind := range c.kinds {
			for _, typ := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC} {
				t.Run(c.name+", type "+string('0'+rune(kind))+" "+typ.String(), func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						b := newBench(t, setup{shortcut: true, typ: typ})
						b.connect(conn{})
						if c.region == 0 {
							c.region = bindable
						}
						mw := b.b.allocMW(nil, kind)
						before := mw.RKey()
						w := ib.BindMW{
							MW: mw, MR: b.b.regMR(nil, c.region), RKey: ib.IncRKey(before),
							Addr: b.b.addr, Length: uint64(len(b.b.buf)),
						}
						if c.region&ib.AccessLocalWrite != 0 {
							w.Access = remoteAccess
						}
						c.change(b, &w)
						want, key := ib.WCSuccess, w.MW.RKey()&^0xff|w.RKey&0xff
						if !c.want {
							want, key = ib.WCMWBindErr, before
						}
						if got := b.b.status(ib.SendWR{Opcode: ib.WRBindMW, Bind: &w}); got != want {
							t.Fatalf("%v, want %v", got, want)
						}
						if mw.RKey() != key {
							t.Errorf("the key is %#x, want %#x", mw.RKey(), key)
						}
						state := map[bool]ib.QPState{true: ib.QPRTS, false: ib.QPErr}[c.want]
						if !c.want && typ == ib.QPTypeUC {
							state = ib.QPSQE
						}
						if got := b.b.qp.State(); got != state {
							t.Errorf("queue pair is in %v, want %v", got, state)
						}
						if !c.want && isBound(mw) {
							t.Error("the window is bound")
						}
					})
				})
			}
		}
	}
}

func isBound(w *ib.MW) bool { return mwOf(w).grant.Load() != nil }

// TestWindowRights tests that a window gives exactly its rights to its range, independently of the region's rights.
func TestWindowRights(t *testing.T) {
	const off, size = 1000, 256
	rights := []ib.AccessFlags{ib.AccessRemoteRead, ib.AccessRemoteWrite, ib.AccessRemoteAtomic}
	need := map[ib.WROpcode]ib.AccessFlags{
		ib.WRRDMARead: ib.AccessRemoteRead, ib.WRRDMAWrite: ib.AccessRemoteWrite, ib.WRAtomicFetchAdd: ib.AccessRemoteAtomic,
		ib.WRAtomicWrite: ib.AccessRemoteWrite, ib.WRFlush: ib.AccessFlushGlobal,
	}
	for _, kind := range []ib.MWType{ib.MWType1, ib.MWType2} {
		for _, zero := range []bool{false, true} {
			if zero && kind == ib.MWType1 {
				continue
			}
			bubble(t, func(t *testing.T) {
				b := newBench(t, setup{shortcut: true})
				c := conn{access: allAccess | ib.AccessFlushGlobal}
				mr := b.b.regMR(nil, bindable|ib.AccessFlushGlobal)
				for have := range 1 << len(rights) {
					access := ib.AccessFlags(0)
					for i, r := range rights {
						if have>>i&1 != 0 {
							access |= r
						}
					}
					base := b.b.addr + off
					if zero {
						access |= ib.AccessZeroBased
						base = 0
					}
					for op, needs := range need {
						for _, at := range []struct {
							off, n int
							within bool
						}{{0, 8, true}, {size - 8, 8, true}, {size, 8, false}, {-8, 8, false}, {size - 8, 16, false}, {0, size, true}} {
							if at.n != 8 && op != ib.WRRDMARead && op != ib.WRRDMAWrite {
								continue
							}
							b.reconnect(c)
							mw, err := b.b.pd.AllocMW(kind)
							check(t, err)
							key := b.b.bind(mw, mr, off, size, access)
							want := ib.WCRemAccessErr
							if at.within && access&needs != 0 {
								want = ib.WCSuccess
							}
							if got := b.access(op, base+uint64(at.off), at.n, key); got != want {
								t.Errorf("type %d, rights %#x, opcode %d of %d bytes at %d: %v, want %v", kind, access, op, at.n, at.off, got,
									want)
							}
							if want != ib.WCSuccess {
								testutil.AdvanceTime(time.Millisecond)
								if e := b.b.raised(); len(e) == 0 || e[len(e)-1] != ib.EventQPAccessErr {
									t.Errorf("events %v", e)
								}
							}
							check(t, mw.Dealloc())
						}
					}
				}
			})
		}
	}
}

// reconnect takes both queue pairs through RESET to RTS.
func (b *bench) reconnect(c conn) {
	b.t.Helper()
	for _, n := range []*node{b.a, b.b} {
		check(b.t, n.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
		for {
			if k, err := n.cq.Poll(make([]ib.WC, 16)); k == 0 || err != nil {
				break
			}
		}
	}
	b.connect(c)
}

// TestWindowData tests that data through a window arrives at its place, also in a zero-based window.
func TestWindowData(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		b := newBench(t, s)
		b.connect(conn{})
		mr := b.b.regMR(nil, bindable)
		for _, zero := range []bool{false, true} {
			kind, access, base := ib.MWType1, remoteAccess, b.b.addr+3000
			if zero {
				kind, access, base = ib.MWType2, access|ib.AccessZeroBased, 0
			}
			key := b.b.bind(b.b.allocMW(nil, kind), mr, 3000, 20_000, access)
			fill(b.a.buf, 1)
			clear(b.b.buf)
			b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 10_000), RemoteAddr: base + 100, RKey: key},
				ib.SendWR{ID: 2, Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGList: b.a.sge(20_000, 10_000),
					RemoteAddr: base + 100, RKey: key})
			b.a.expect(ib.WC{ID: 2, Opcode: ib.WCRDMARead})
			if !slices.Equal(b.b.buf[3100:13100], b.a.buf[:10_000]) || !slices.Equal(b.a.buf[20_000:30_000], b.a.buf[:10_000]) {
				t.Error("data differ")
			}
		}
	})
}

// TestWindowKey tests that only the low 8 bits of the requested key count in a bind. The window's index goes above
// them, instead of the bits of the consumer. No other key gives access, including the former keys.
func TestWindowKey(t *testing.T) {
	for _, kind := range []ib.MWType{ib.MWType1, ib.MWType2} {
		bubble(t, func(t *testing.T) {
			b := newBench(t, setup{shortcut: true})
			b.connect(conn{})
			mr := b.b.regMR(nil, bindable)
			mw, other := b.b.allocMW(nil, kind), b.b.allocMW(nil, kind)
			index, taken := mw.RKey()&^0xff, b.b.bind(other, mr, 0, 64, remoteAccess)
			former := mw.RKey()
			for i, asked := range []uint32{0x12, 0xabcdef34, taken ^ 1, index | 0x56} {
				if got := b.b.status(ib.SendWR{Opcode: ib.WRBindMW, Bind: &ib.BindMW{
					MW: mw, MR: mr, RKey: asked, Addr: b.b.addr, Length: 64, Access: remoteAccess,
				}}); got != ib.WCSuccess {
					t.Fatalf("type %d, bind %d with key %#x: %v, want success", kind, i, asked, got)
				}
				key := index | asked&0xff
				if mw.RKey() != key {
					t.Fatalf("type %d, bind %d with key %#x: key %#x, want %#x", kind, i, asked, mw.RKey(), key)
				}
				if got := b.access(ib.WRRDMAWrite, b.b.addr, 8, key); got != ib.WCSuccess {
					t.Errorf("type %d, write by key %#x: %v, want success", kind, key, got)
				}
				if got := b.access(ib.WRRDMAWrite, b.b.addr, 8, taken); got != ib.WCSuccess {
					t.Errorf("type %d, write by the other window's key %#x: %v, want success", kind, taken, got)
				}
				wrong := []uint32{former, asked}
				for _, k := range wrong {
					if k == key {
						continue
					}
					if got := b.access(ib.WRRDMAWrite, b.b.addr, 8, k); got != ib.WCRemAccessErr {
						t.Errorf("type %d, write by key %#x: %v, want remote access error", kind, k, got)
					}
					b.reconnect(conn{})
				}
				if kind == ib.MWType2 {
					if got := b.b.status(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: key}); got != ib.WCSuccess {
						t.Fatalf("invalidate key %#x: %v", key, got)
					}
				}
				former = key
			}
		})
	}
}

// TestWindowLocal tests that the key of a window is not valid for local memory.
func TestWindowLocal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true})
		b.connect(conn{})
		key := b.a.bind(b.a.allocMW(nil, ib.MWType1), b.a.regMR(nil, bindable), 0, 100, remoteAccess)
		wr := ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 8), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()}
		wr.SGList[0].LKey = key
		if got := b.a.status(wr); got != ib.WCLocProtErr {
			t.Errorf("gather by a window's key: %v", got)
		}
	})
}

// TestWindowUsers tests the users of windows: the peers of all queue pairs of the domain for type 1, and the peer of
// the queue pair that bound the window for type 2.
func TestWindowUsers(t *testing.T) {
	for _, c := range []struct {
		name  string
		kind  ib.MWType
		other bool // another queue pair
		pd    bool // in another domain
		want  ib.WCStatus
	}{
		{"type 1, the same queue pair", ib.MWType1, false, false, ib.WCSuccess},
		{"type 1, another", ib.MWType1, true, false, ib.WCSuccess},
		{"type 1, another of another domain", ib.MWType1, true, true, ib.WCRemAccessErr},
		{"type 2, the same queue pair", ib.MWType2, false, false, ib.WCSuccess},
		{"type 2, another", ib.MWType2, true, false, ib.WCRemAccessErr},
		{"type 2, another of another domain", ib.MWType2, true, true, ib.WCRemAccessErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBench(t, setup{shortcut: true})
				b.connect(conn{})
				key := b.b.bind(b.b.allocMW(nil, c.kind), b.b.regMR(nil, bindable), 0, 100, remoteAccess)
				if c.other {
					pd := b.b.pd
					if c.pd {
						pd = b.b.newPD()
					}
					qp, err := pd.CreateQP(ib.QPInitAttr{SendCQ: b.b.cq, RecvCQ: b.b.cq, Type: ib.QPTypeRC,
						Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1}})
					check(t, err)
					defer func() { check(t, qp.Destroy()) }()
					check(t, b.a.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
					connectQPs(t, b.a.dev, b.a.qp, b.b.dev, qp, conn{})
				}
				if got := b.access(ib.WRRDMAWrite, b.b.addr, 8, key); got != c.want {
					t.Errorf("%v, want %v", got, c.want)
				}
			})
		})
	}
}

// TestInvalidate tests the effect of LOCAL_INV and SEND with invalidate, and its limits (IBA 10.6.3, 10.6.7.2).
func TestInvalidate(t *testing.T) {
	type world struct {
		*bench
		key uint32
	}
	for _, c := range []struct {
		name string
		make func(w *world)
		want bool
	}{
		{"window of type 2", func(w *world) {
			w.key = w.b.bind(w.b.allocMW(nil, ib.MWType2), w.b.regMR(nil, bindable), 0, 100, remoteAccess)
		}, true},
		{"window of type 1", func(w *world) {
			w.key = w.b.bind(w.b.allocMW(nil, ib.MWType1), w.b.regMR(nil, bindable), 0, 100, remoteAccess)
		}, false},
		{"window that is not bound", func(w *world) { w.key = w.b.allocMW(nil, ib.MWType2).RKey() }, false},
		{"window of type 2 of another queue pair", func(w *world) {
			qp := w.b.qp
			w.b.qp = w.b.newQP(setup{typ: ib.QPTypeUC, cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 1}})
			toRTR(w.t, w.b.qp, w.a.dev, w.a.qp.Num(), conn{})
			toRTS(w.t, w.b.qp, conn{})
			w.key = w.b.bind(w.b.allocMW(nil, ib.MWType2), w.b.regMR(nil, bindable), 0, 100, remoteAccess)
			check(w.t, w.b.qp.Destroy())
			w.b.qp = qp
		}, false},
		{"window by an old key", func(w *world) {
			w.key = w.b.bind(w.b.allocMW(nil, ib.MWType2), w.b.regMR(nil, bindable), 0, 100, remoteAccess) - 1
		}, false},
		{"region of a work request", func(w *world) { w.key = w.b.fastReg(w.b.allocMR(nil)) }, true},
		{"region of a work request, by an old key", func(w *world) { w.key = w.b.fastReg(w.b.allocMR(nil)) ^ 1 }, false},
		{"region of a work request with a window on it", func(w *world) {
			mr := w.b.allocMR(nil)
			w.key = w.b.fastReg(mr)
			w.b.bind(w.b.allocMW(nil, ib.MWType1), mr, 0, 100, remoteAccess)
		}, false},
		{"region of a work request that is free", func(w *world) { w.key = w.b.allocMR(nil).RKey() }, false},
		{"region of RegMR", func(w *world) { w.key = w.b.mr.RKey() }, false},
		{"nothing", func(w *world) { w.key = 0x123400 }, false},
		{"zero", func(w *world) {}, false},
	} {
		for _, remote := range []bool{false, true} {
			t.Run(c.name+map[bool]string{false: ", locally", true: ", by the peer"}[remote], func(t *testing.T) {
				eachNetwork(t, func(t *testing.T, s setup) {
					w := &world{bench: newBench(t, s)}
					w.connect(conn{})
					c.make(w)
					fill(w.a.buf, 5)
					if !remote {
						want := map[bool]ib.WCStatus{true: ib.WCSuccess, false: ib.WCLocQPOpErr}[c.want]
						if got := w.b.status(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: w.key}); got != want {
							t.Fatalf("%v, want %v", got, want)
						}
					} else {
						w.b.recv(1, 0, 3000)
						w.a.send(ib.SendWR{ID: 2, Opcode: ib.WRSendWithInv, Flags: ib.SendSignaled, SGList: w.a.sge(0, 3000),
							InvalidateRKey: w.key})
						sent, received := w.a.poll(1)[0], w.b.poll(1)[0]
						if !c.want {
							if sent.Status != ib.WCRetryExcErr || received.Status != ib.WCMWBindErr || w.b.qp.State() != ib.QPErr {
								t.Fatalf("sender %v, receiver %v, %v", sent.Status, received.Status, w.b.qp.State())
							}
							if e := w.b.raised(); len(e) > 0 {
								t.Errorf("events %v, though a receive tells", e)
							}
							return
						}
						if sent.Status != ib.WCSuccess || received.Status != ib.WCSuccess || received.Flags != ib.WCWithInvalidate ||
							received.InvalidateRKey != w.key || received.ByteLen != 3000 || !slices.Equal(w.b.buf[:3000], w.a.buf[:3000]) {
							t.Fatalf("sender %+v, receiver %+v", sent, received)
						}
					}
					if !c.want {
						return
					}
					if got := w.access(ib.WRRDMAWrite, w.b.addr, 8, w.key); got != ib.WCRemAccessErr {
						t.Errorf("write afterwards: %v", got)
					}
				})
			})
		}
	}
}

// TestWindowLifetime tests that a region cannot end or change before its windows, even if the windows have moved.
// Windows of type 2 end with their queue pair.
func TestWindowLifetime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true})
		b.connect(conn{})
		mr, err := b.b.pd.RegMR(ib.MRInit{Space: b.b.mem, Addr: b.b.addr, Length: 1000, Access: bindable})
		check(t, err)
		busy := func(what string) {
			t.Helper()
			if err := mr.Dereg(); !errors.Is(err, syscall.EBUSY) {
				t.Fatalf("dereg with %s: %v, want EBUSY", what, err)
			}
			if err := mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: bindable}); !errors.Is(err, syscall.EBUSY) {
				t.Fatalf("rereg with %s: %v, want EBUSY", what, err)
			}
		}
		one, two := b.b.allocMW(nil, ib.MWType1), b.b.allocMW(nil, ib.MWType2)
		b.b.bind(one, mr, 0, 10, 0)
		busy("a window of type 1")
		key := b.b.bind(two, mr, 0, 10, 0)
		b.b.bind(one, mr, 10, 10, 0) // moves
		busy("both")
		b.b.bind(one, b.b.regMR(nil, bindable), 0, 10, 0) // moves to another region
		busy("a window of type 2")
		if s := b.b.status(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: key}); s != ib.WCSuccess {
			t.Fatal(s)
		}
		check(t, mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: bindable}))
		b.b.bind(one, mr, 0, 10, 0)
		if s := b.b.status(ib.SendWR{Opcode: ib.WRBindMW, Bind: &ib.BindMW{MW: one,
			RKey: ib.IncRKey(one.RKey())}}); s != ib.WCSuccess {
			t.Fatal(s)
		}
		check(t, mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: bindable}))

		qp, cq := b.b.qp, b.b.cq
		b.b.qp = b.b.newQP(setup{typ: ib.QPTypeUC, cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 1}})
		toRTR(t, b.b.qp, b.a.dev, b.a.qp.Num(), conn{})
		toRTS(t, b.b.qp, conn{})
		third, err := b.b.pd.AllocMW(ib.MWType2)
		check(t, err)
		b.b.bind(third, mr, 0, 10, 0)
		check(t, b.b.qp.Destroy())
		b.b.qp, b.b.cq = qp, cq
		check(t, mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: bindable})) // the window is unbound
		b.b.bind(third, mr, 0, 10, 0)
		busy("a window that another queue pair has bound again")
		check(t, third.Dealloc())
		check(t, mr.Dereg())
	})
}

// TestBindAfterEnd binds a window and registers a region after their end, as a late work request would.
func TestBindAfterEnd(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	b.connect(conn{})
	mr, err := b.b.pd.RegMR(ib.MRInit{Space: b.b.mem, Addr: b.b.addr, Length: 1000, Access: bindable})
	check(t, err)
	window, err := b.b.pd.AllocMW(ib.MWType1)
	check(t, err)
	w := mwOf(window)
	check(t, window.Dealloc())
	bind := queue.Bind{Addr: b.b.addr, Length: 10, MRLKey: mr.LKey(), RKey: w.key + 1, Access: ib.AccessRemoteWrite}
	if w.bind(qpOf(b.b.qp), &bind) {
		t.Error("bind after Dealloc: got success, want an error")
	}
	check(t, mr.Dereg()) // no window is bound to it

	fast, err := b.b.pd.AllocMR(1)
	check(t, err)
	check(t, fast.Map(b.b.mem, nil, []umem.Range{{Addr: b.b.addr, Length: 10}}, b.b.addr))
	mrs, index := &b.b.dev.mrs, fast.RKey()>>8
	m := mrs.get(index)
	check(t, fast.Dereg())
	mrs.set(index, m)
	reg := queue.Bind{MRLKey: fast.LKey(), RKey: fast.RKey(), Access: ib.AccessRemoteRead}
	if got := qpOf(b.b.qp).req.fastReg(&reg); got != uapi.WCLocQPOpErr {
		t.Errorf("registration after Dereg: got %v, want %v", got, uapi.WCLocQPOpErr)
	}
	mrs.set(index, nil)
}

// TestKeyGenerationsOfIndexes tests that the generations of neighbouring indexes do not affect each other. A stale key
// of one index must not become valid because of the other index.
func TestKeyGenerationsOfIndexes(t *testing.T) {
	var k keyGenerations
	for _, c := range []struct{ index, neighbour uint32 }{{2, 3}, {3, 2}, {1 << chunkBits, 1<<chunkBits - 1}} {
		k.used(c.index<<8 | 10)
		k.used(c.neighbour<<8 | 9)
		if g := k.take(c.index, 0); g != 11 {
			t.Errorf("index %#x: got generation %d, want 11", c.index, g)
		}
	}
}

// TestWindowKeys tests that the key of a window differs from the last key of the window before it with the same
// index, even if the consumer has chosen that key.
func TestWindowKeys(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true})
		b.connect(conn{})
		b.b.dev.mws.limit = firstMW + 1 // one index
		mr := b.b.regMR(nil, bindable)
		last := uint32(0)
		for i := range 600 {
			mw, err := b.b.pd.AllocMW(ib.MWType2)
			check(t, err)
			if mw.RKey() == last {
				t.Fatalf("round %d: key %#x was that of the last window", i, last)
			}
			if _, err := b.b.pd.AllocMW(ib.MWType1); !errors.Is(err, syscall.ENOMEM) {
				t.Fatalf("more windows than there are indices: %v", err)
			}
			last = mw.RKey()&^0xff | uint32(i*7)&0xff
			if s := b.b.status(ib.SendWR{Opcode: ib.WRBindMW, Bind: &ib.BindMW{
				MW: mw, MR: mr, RKey: last, Addr: b.b.addr, Length: 8,
			}}); s != ib.WCSuccess {
				t.Fatal(s)
			}
			check(t, mw.Dealloc())
		}
	})
}

// TestWindowRace binds, invalidates and deallocates windows while a peer writes by their keys. No write may come
// after the end of the window. The race detector would see such a write too.
func TestWindowRace(t *testing.T) {
	windows := testutil.FewerIfShort(40, 10)
	for _, kind := range []ib.MWType{ib.MWType1, ib.MWType2} {
		// An unreliable connection continues after a write by a wrong key.
		b := newBench(t, setup{shortcut: true, typ: ib.QPTypeUC})
		b.unwatched()
		b.connect(conn{})
		mr := b.b.regMR(nil, bindable)
		begin, err := qpOf(b.a.qp).Query(0)
		check(t, err)
		var key, writes atomic.Uint32
		var stop atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() {
			for !stop.Load() {
				wr := ib.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, Inline: []byte{1}, RemoteAddr: b.b.addr,
					RKey: key.Load()}
				switch _, err := b.a.qp.PostSend(wr); {
				case err == nil:
					writes.Add(1)
				case errors.Is(err, syscall.ENOMEM): // the other thread runs the receiver, and is behind
					runtime.Gosched()
				default:
					t.Error(err)
					return
				}
			}
		})
		// executed waits until the peer has executed the first n writes, of one packet each.
		executed := func(n uint32) {
			for sent := uint32(0); sent < n && !t.Failed(); runtime.Gosched() {
				a, err := qpOf(b.a.qp).Query(0)
				check(t, err)
				sent = (a.SQPSN - begin.SQPSN) & roce.PSNMask
			}
			_, err := qpOf(b.b.qp).Query(0) // follows the sent packets
			check(t, err)
		}
		written := 0
		for range windows {
			mw, err := b.b.pd.AllocMW(kind)
			check(t, err)
			key.Store(b.b.bind(mw, mr, 0, 1, ib.AccessRemoteWrite))
			for before := writes.Load(); writes.Load() < before+2 && !t.Failed(); { // one of them uses this key
				runtime.Gosched()
			}
			executed(writes.Load())
			if kind == ib.MWType2 {
				if s := b.b.status(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: key.Load()}); s != ib.WCSuccess {
					t.Fatal(s)
				}
			} else {
				check(t, mw.Dealloc())
			}
			written += int(b.b.buf[0])
			b.b.buf[0] = 0
			runtime.Gosched()
			if b.b.buf[0] != 0 {
				t.Fatal("written after the window has gone")
			}
			if kind == ib.MWType2 {
				check(t, mw.Dealloc())
			}
		}
		stop.Store(true)
		wg.Wait()
		if written != windows {
			t.Errorf("type %d: %d of %d windows were written through", kind, written, windows)
		}
	}
}
