package engine

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/roce"
	"verbena/umem"
)

// stamped is memory of any size that takes no room. Each buffer that is read from it starts with its own address.
// Each store checks that address. Both sides of a message use the same addresses.
type stamped struct {
	t       testing.TB
	next    uint64 // address of the next store
	touched uint64 // stored bytes
}

func (s *stamped) Check(addr, length uint64, write bool) error { return nil }

func (s *stamped) ReadV(dst [][]byte, addr uint64) error {
	for _, b := range dst {
		if len(b) >= 8 {
			binary.NativeEndian.PutUint64(b, addr)
		}
		addr += uint64(len(b))
	}
	return nil
}

func (s *stamped) WriteV(src [][]byte, addr uint64) error {
	for _, b := range src {
		if len(b) >= 8 && binary.NativeEndian.Uint64(b) != addr {
			s.t.Errorf("stored at %#x: got the data of %#x", addr, binary.NativeEndian.Uint64(b))
			return umem.ErrFault
		}
		if addr != s.next {
			s.t.Errorf("stored at %#x, want %#x", addr, s.next)
			return umem.ErrFault
		}
		addr += uint64(len(b))
		s.next, s.touched = addr, s.touched+uint64(len(b))
	}
	return nil
}

// TestLongestMessage moves 2 GiB in one message, and tests that one byte more is refused.
func TestLongestMessage(t *testing.T) {
	const size = maxMsgSize
	for _, c := range []struct {
		op  ib.WROpcode
		mtu ib.MTU
	}{{ib.WRRDMAWrite, ib.MTU4096}, {ib.WRSend, ib.MTU4096}, {ib.WRRDMARead, ib.MTU4096}, {ib.WRRDMAWrite, ib.MTU256}} {
		if raceEnabled && (c.op != ib.WRRDMAWrite || c.mtu != ib.MTU4096) {
			t.Logf("opcode %d with a path MTU of %d: takes too long with the race detector, run it without", c.op, c.mtu.Bytes())
			continue
		}
		op := c.op
		b := newBench(t, setup{shortcut: true})
		b.connect(conn{mtu: c.mtu, psn: 0xfffff0})
		from, to := &stamped{t: t}, &stamped{t: t}
		reg := func(n *node, s *stamped) *ib.MR {
			mr, err := n.pd.RegMR(ib.MRInit{Space: s, Addr: 0, Length: size + 1, Access: allAccess})
			check(t, err)
			n.mrs = append(n.mrs, mr)
			return mr
		}
		mine, peers := from, to
		if op == ib.WRRDMARead {
			mine, peers = to, from
		}
		local, remote := reg(b.a, mine), reg(b.b, peers)
		// Use two elements: the length of one element has 32 bits, more than needed, and the sum is checked.
		sgl := func(n uint32) []ib.SGE {
			return []ib.SGE{{Addr: 0, Length: 1 << 30, LKey: local.LKey()}, {Addr: 1 << 30, Length: n - 1<<30,
				LKey: local.LKey()}}
		}
		wr := ib.SendWR{ID: 1, Opcode: op, Flags: ib.SendSignaled, SGList: sgl(size), RKey: remote.RKey()}
		if op == ib.WRSend {
			_, err := b.b.qp.PostRecv(ib.RecvWR{ID: 2, SGList: []ib.SGE{{Length: size, LKey: remote.LKey()}}})
			check(t, err)
		}
		b.a.send(wr)
		if wc := b.a.poll(1)[0]; wc.Status != ib.WCSuccess || wc.ByteLen != size {
			t.Fatalf("opcode %d: %+v", op, wc)
		}
		if op == ib.WRSend {
			if wc := b.b.poll(1)[0]; wc.Status != ib.WCSuccess || wc.ByteLen != size {
				t.Fatalf("receive: %+v", wc)
			}
		}
		if to.touched != size {
			t.Errorf("opcode %d: %d bytes arrived", op, to.touched)
		}
		wr.SGList = sgl(size + 1)
		b.a.send(wr)
		b.a.expect(ib.WC{ID: 1, Status: ib.WCLocLenErr})
	}
}

// TestManyElements gathers from 32 places and scatters to 32 others, of all lengths, and tests that more are refused.
func TestManyElements(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		for _, typ := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD} {
			s.typ, s.bufLen = typ, maxSGE*(8<<10)
			s.cap = ib.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE}
			b := newBenchIn(t, s)
			b.connect(conn{})
			r := rand.New(rand.NewPCG(1, uint64(typ)))
			for round := range 8 {
				total, skip := 8000, 0
				if typ == ib.QPTypeUD {
					total, skip = 4096, grhLen
				}
				// lay cuts a number of bytes into 32 elements at places of the buffer that do not overlap, in no order.
				lay := func(n *node, bytes int) (list []ib.SGE, at []int) {
					cuts := []int{0, bytes}
					for range maxSGE - 1 {
						cuts = append(cuts, r.IntN(bytes+1))
					}
					slices.Sort(cuts)
					for i, j := range r.Perm(maxSGE) {
						off := j * (len(n.buf) / maxSGE)
						list = append(list, ib.SGE{Addr: n.addr + uint64(off), Length: uint32(cuts[i+1] - cuts[i]), LKey: n.mr.LKey()})
						at = append(at, off)
					}
					return list, at
				}
				src, srcAt := lay(b.a, total)
				fill(b.a.buf, uint64(round))
				var sent []byte
				for i, e := range src {
					sent = append(sent, b.a.buf[srcAt[i]:srcAt[i]+int(e.Length)]...)
				}
				dst, dstAt := lay(b.b, total+skip)
				_, err := b.b.qp.PostRecv(ib.RecvWR{ID: 2, SGList: dst})
				check(t, err)
				wr := ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: src}
				if typ == ib.QPTypeUD {
					wr.AH, wr.RemoteQPN, wr.RemoteQKey = newAH(b.a, b.b.dev, 1), b.b.qp.Num(), testQKey
				}
				b.a.send(wr)
				b.a.expect(ib.WC{ID: 1, Opcode: ib.WCSend})
				wc := b.b.poll(1)[0]
				if wc.Status != ib.WCSuccess || int(wc.ByteLen) != total+skip {
					t.Fatalf("%v: %+v, want %d bytes", typ, wc, total+skip)
				}
				var got []byte
				for i, e := range dst {
					got = append(got, b.b.buf[dstAt[i]:dstAt[i]+int(e.Length)]...)
				}
				if !slices.Equal(got[skip:skip+total], sent) {
					t.Fatalf("%v, round %d: data differ from byte %d on", typ, round, firstDifference(got[skip:skip+total], sent))
				}
				if wr.AH != nil {
					check(t, wr.AH.Destroy())
				}
			}
			for _, cap := range []ib.QPCap{{MaxSendSGE: maxSGE + 1}, {MaxRecvSGE: maxSGE + 1}, {MaxInlineData: maxInline + 1}} {
				cap.MaxSendWR, cap.MaxRecvWR = 1, 1
				if qp, err := b.a.pd.CreateQP(ib.QPInitAttr{SendCQ: b.a.cq, RecvCQ: b.a.cq, Type: typ, Cap: cap}); !errors.Is(err,
					syscall.EINVAL) {
					t.Errorf("capacities %+v: %v, %v", cap, qp, err)
				}
			}
			if n, err := b.a.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: make([]ib.SGE, maxSGE+1)}); n != 0 ||
				!errors.Is(err, syscall.EINVAL) {
				t.Errorf("%d elements: %d taken, %v", maxSGE+1, n, err)
			}
			b.close()
		}
	})
}

// TestInlineLimits sends inline data of every length that a queue pair accepts, and tests that more are refused.
func TestInlineLimits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, c := range []struct{ asked, sges uint32 }{{0, 0}, {1, 0}, {16, 1}, {17, 1}, {100, 4}, {maxInline, 1}, {0,
			maxSGE}} {
			b := newBenchIn(t, setup{shortcut: true, cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: c.sges,
				MaxRecvSGE: 1, MaxInlineData: c.asked}})
			b.connect(conn{mtu: ib.MTU256})
			limit := b.a.qp.Init().Cap.MaxInlineData
			if limit < c.asked || limit > maxInline {
				t.Fatalf("asked for %d bytes inline: got %d", c.asked, limit)
			}
			for n := uint32(0); n <= limit; n += max(1, limit/7) {
				data := make([]byte, n)
				fill(data, uint64(n))
				b.b.recv(2, 0, int(n))
				b.a.send(
					ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendInline | ib.SendSignaled, Inline: data},
					ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendInline | ib.SendSignaled, Inline: data,
						RemoteAddr: b.b.addr + 1000, RKey: b.b.mr.RKey()})
				want := slices.Clone(data)
				clear(data) // it was copied
				b.a.expect(ib.WC{ID: 1, Opcode: ib.WCSend, ByteLen: n}, ib.WC{ID: 1, Opcode: ib.WCRDMAWrite, ByteLen: n})
				b.b.expect(ib.WC{ID: 2, Opcode: ib.WCRecv, ByteLen: n})
				if !slices.Equal(b.b.buf[:n], want) || !slices.Equal(b.b.buf[1000:1000+n], want) {
					t.Errorf("%d bytes of %d: data differ", n, limit)
				}
			}
			if k, err := b.a.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendInline, Inline: make([]byte,
				limit+1)}); k != 0 || !errors.Is(err, syscall.EINVAL) {
				t.Errorf("post %d bytes inline, at most %d: %d taken, %v", limit+1, limit, k, err)
			}
			b.close()
		}
	})
}

// TestFenceAnswered tests that a fence waits for every kind of request with a response, and for no other request.
func TestFenceAnswered(t *testing.T) {
	for _, c := range []struct {
		op    ib.WROpcode
		waits bool
	}{
		{ib.WRRDMARead, true}, {ib.WRAtomicFetchAdd, true}, {ib.WRAtomicCmpAndSwp, true}, {ib.WRAtomicWrite,
			true}, {ib.WRFlush, true},
		{ib.WRRDMAWrite, false}, {ib.WRSend, false},
	} {
		bubble(t, func(t *testing.T) {
			b := newBench(t, setup{})
			b.connect(conn{access: allAccess | ib.AccessFlushGlobal})
			target := b.b.regMR(nil, allAccess|ib.AccessFlushGlobal)
			b.b.recv(1, 0, 100)
			b.net.SetLink(addrB, false)
			wr := ib.SendWR{ID: 1, Opcode: c.op, RemoteAddr: b.b.addr, RKey: target.RKey(), SGList: b.a.sge(0, 8)}
			switch c.op {
			case ib.WRAtomicWrite:
				wr.SGList, wr.Inline = nil, make([]byte, 8)
			case ib.WRFlush:
				wr.SGList, wr.Flush = nil, ib.Flush{Placement: ib.FlushGlobal, Length: 8}
			}
			b.a.send(wr, ib.SendWR{ID: 2, Opcode: ib.WRRDMAWrite, Flags: ib.SendFence | ib.SendSignaled})
			testutil.AdvanceTime(time.Millisecond)
			qp := qpOf(b.a.qp)
			waits := false
			qp.exclusively(func(*pass) { waits = qp.req.snd.Len() == 1 })
			if waits != c.waits {
				t.Errorf("opcode %d: the request behind it waits: %v", c.op, waits)
			}
			b.net.SetLink(addrB, true)
			b.a.expect(ib.WC{ID: 2, Opcode: ib.WCRDMAWrite})
		})
	}
}

// TestRoomForManyUsers creates more queue pairs than the device advertises for a program. Users at their limits must
// leave room for others. The time per queue pair must not grow with their number.
func TestRoomForManyUsers(t *testing.T) {
	if raceEnabled {
		t.Skip("one thread makes them; make unit runs it once more without the race detector")
	}
	if testing.Short() {
		t.Skip("70000 queue pairs take seconds")
	}
	const n = 70_000
	b := newBench(t, setup{})
	p := newProgram(t)
	dev := b.a.dev
	check(t, ops{dev}.AllocUserContext(&ib.Udata{Context: p}))
	defer ops{dev}.DeallocUserContext(p)
	init := ib.QPInitAttr{
		SendCQ: b.a.cq, RecvCQ: b.a.cq, Type: ib.QPTypeRC, Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1,
			MaxRecvSGE: 1},
	}
	attr, err := ops{dev}.QueryDevice()
	check(t, err)
	if attr.MaxQP >= n {
		t.Fatalf("MaxQP: got %d, want less than the %d of this test", attr.MaxQP, n)
	}
	numbers := map[uint32]bool{}
	qps := make([]*ib.QP, 0, n)
	var took [2]time.Duration // for 1000 queue pairs, at the begin and at the end
	for i := range n {
		began := time.Now()
		u := (*ib.Udata)(nil)
		if i%10 == 0 {
			u = &ib.Udata{Context: p, Out: make([]byte, 64)} // its pages are many
		}
		qp, err := ibuser.CreateQP(b.a.pd, init, u)
		check(t, err)
		qps = append(qps, qp)
		if numbers[qp.Num()] || qp.Num() > roce.PSNMask {
			t.Fatalf("number %d of queue pair %d is taken, or too large", qp.Num(), i)
		}
		numbers[qp.Num()] = true
		if i < 1000 {
			took[0] += time.Since(began)
		} else if i >= n-1000 {
			took[1] += time.Since(began)
		}
	}
	t.Logf("1000 queue pairs take %v among few, %v among many", took[0], took[1])
	for _, qp := range qps {
		check(t, qp.Destroy())
	}
}
