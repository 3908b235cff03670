package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/driver"
	"verbena/driver/rxe/layout"
	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link/simnet"
	"verbena/netdev"
)

// free destroys the node's objects on the device.
func (n *node) free() {
	n.t.Helper()
	check(n.t, n.qp.Destroy())
	check(n.t, n.mr.Dereg())
	check(n.t, n.cq.Destroy())
	check(n.t, n.pd.Dealloc())
}

// reset resets the device of b.a by hand, and gives b.a objects on the new device.
func (b *bench) reset(s setup) {
	b.t.Helper()
	old := b.a.dev
	hw := old.Hardware()
	check(b.t, hw.Reset(context.Background()))
	old.Handle().SetError()
	b.a.free()
	check(b.t, b.core.Unregister(old.Handle()))
	check(b.t, old.Close())
	d, err := hw.Probe()
	check(b.t, err)
	if s.cap == (ib.QPCap{}) {
		s.cap = ib.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 4, MaxRecvSGE: 4}
	}
	s.typ, s.cqe, s.bufLen, s.access = ib.QPTypeRC, 1000, 1<<16, allAccess
	b.a = b.nodeOn(d.(*Device), s)
}

// TestHardwareStops tests the functions of the adapter in its states, and that every outstanding request is flushed
// in the end, once.
func TestHardwareStops(t *testing.T) {
	for _, fail := range []func(*Hardware){(*Hardware).Hang, (*Hardware).Disconnect} {
		eachNetwork(t, func(t *testing.T, s setup) {
			b := newBenchIn(t, s)
			b.connect(conn{timeout: 10, retry: 7})
			transfer(b, ib.WRRDMAWrite, 1000, 1)
			hw := b.a.dev.Hardware()
			fail(hw)
			copy(b.a.buf, "after")
			b.a.recv(20, 0, 64)
			for i := range 3 {
				b.a.send(ib.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 8), RemoteAddr: b.b.addr,
					RKey: b.b.mr.RKey(), Flags: ib.SendSignaled})
			}
			b.b.send(ib.SendWR{ID: 30, Opcode: ib.WRSend, SGList: b.b.sge(0, 8), Flags: ib.SendSignaled})
			b.b.expect(ib.WC{ID: 30, Status: ib.WCRetryExcErr}) // there is no answer
			testutil.AdvanceTime(time.Hour)
			b.a.none() // neither done nor failed
			if bytes.HasPrefix(b.b.buf, []byte("after")) {
				t.Error("a work request was carried out")
			}
			hw.Return()
			b.a.dev.Handle().SetError()
			b.a.expect(ib.WC{ID: 0, Status: ib.WCWRFlushErr}, ib.WC{ID: 1, Status: ib.WCWRFlushErr},
				ib.WC{ID: 2, Status: ib.WCWRFlushErr}, ib.WC{ID: 20, Status: ib.WCWRFlushErr})
			b.a.none()
			b.reset(s)
			check(t, b.b.qp.Destroy())
			s.typ, s.cap = ib.QPTypeRC, ib.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 4, MaxRecvSGE: 4}
			b.b.qp = b.b.newQP(s)
			b.connect(conn{})
			transfer(b, ib.WRSend, 1000, 2)
			b.close()
		})
	}
}

// TestHardwareSendsNothing tests that stopped hardware sends no packet, not even a waiting one when the driver
// flushes.
func TestHardwareSendsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBenchIn(t, setup{net: simnet.Config{Bandwidth: 1 << 20, SendBuffer: 1 << 17}, bufLen: 1 << 18})
		b.connect(conn{})
		b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 1<<18), RemoteAddr: b.b.addr,
			RKey: b.b.mr.RKey(), Flags: ib.SendSignaled})
		b.a.dev.Hardware().Disconnect()
		sent := b.a.dev.counters[cntSentPkts].n.Load()
		b.a.dev.Handle().SetError()
		b.a.expect(ib.WC{ID: 1, Status: ib.WCWRFlushErr})
		testutil.AdvanceTime(time.Second)
		if n := b.a.dev.counters[cntSentPkts].n.Load(); n != sent || sent == 0 {
			t.Errorf("%d packets were sent before, %d after", sent, n-sent)
		}
		b.close()
	})
}

// TestHardwareStates tests the states of the adapter, and the calls that fail in each.
func TestHardwareStates(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBenchIn(t, setup{})
		hw := b.a.dev.Hardware()
		if _, err := hw.Probe(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("a second device: %v", err)
		}
		hw.Return()
		hw.Hang()
		hw.Return()
		if s := hw.State(); s != driver.Hung {
			t.Errorf("state %v", s)
		}
		check(t, hw.Await(t.Context()))
		hw.Disconnect()
		if err := hw.Reset(t.Context()); !errors.Is(err, syscall.EIO) {
			t.Errorf("reset out of reach: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := hw.Await(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("await: %v", err)
		}
		time.AfterFunc(time.Minute, hw.Return)
		check(t, hw.Await(t.Context()))
		check(t, hw.Reset(t.Context()))
		hw.Die()
		hw.Return()
		hw.Hang()
		for _, err := range []error{hw.Await(t.Context()), hw.Reset(t.Context())} {
			if !errors.Is(err, syscall.EIO) {
				t.Errorf("dead: %v", err)
			}
		}
		b.close()
		if _, err := hw.Probe(); !errors.Is(err, syscall.EIO) || hw.Device() != nil {
			t.Errorf("a device of a dead adapter: %v", err)
		}
		hw = NewHardware(Config{Layout: layout.Layout{}, Name: "rxe0", Addrs: ips("10.0.0.1"), Network: b.net})
		hw.Hang()
		d, err := hw.Probe() // plugged in again
		if err != nil || hw.State() != driver.Running {
			t.Errorf("Probe of a hung adapter: got error %v and state %v, want no error and %v", err, hw.State(), driver.Running)
		} else {
			check(t, d.Close())
		}
	})
}

// TestAtWorkRequest tests that the adapter stops exactly before the chosen work request.
func TestAtWorkRequest(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		const posts = 20
		for n := 1; n <= posts; n += 3 {
			b := newBenchIn(t, s)
			b.connect(conn{})
			clear(b.b.buf)
			for i := range b.a.buf[:8*posts] {
				b.a.buf[i] = 1
			}
			hit := 0
			b.a.dev.Hardware().AtWorkRequest(1, func() { t.Error("stopped at a cancelled work request") })
			b.a.dev.Hardware().AtWorkRequest(0, nil)
			b.a.send(ib.SendWR{Opcode: ib.WRRDMAWrite, RemoteAddr: b.b.addr, RKey: b.b.mr.RKey(), Flags: ib.SendSignaled})
			b.a.expect(ib.WC{Opcode: ib.WCRDMAWrite})
			if !b.a.dev.Hardware().AtWorkRequest(uint64(n), func() { hit++ }) {
				t.Fatal("refused")
			}
			for i := range posts {
				b.a.send(ib.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, SGList: b.a.sge(8*i, 8), RemoteAddr: b.b.addr +
					uint64(8*i), RKey: b.b.mr.RKey(), Flags: ib.SendSignaled})
				testutil.AdvanceTime(time.Second)
			}
			if got := bytes.Count(b.b.buf, []byte{1}) / 8; got != n-1 || hit != 1 {
				t.Errorf("stopped at %d: %d carried out, hit %d times", n, got, hit)
			}
			b.a.dev.Handle().SetError()
			for i, wc := range b.a.poll(posts) {
				if want := i >= n-1; wc.ID != uint64(i) || (wc.Status == ib.WCWRFlushErr) != want {
					t.Errorf("stopped at %d: completion %d is %+v", n, i, wc)
				}
			}
			b.close()
		}
	})
}

// TestAtWorkRequestBehindFence tests that a request that waits at a fence counts once.
func TestAtWorkRequestBehindFence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBenchIn(t, setup{net: simnet.Config{Latency: 5 * time.Microsecond}})
		b.connect(conn{})
		if !b.a.dev.Hardware().AtWorkRequest(3, func() {}) {
			t.Fatal("refused")
		}
		for i, op := range []ib.WROpcode{ib.WRRDMARead, ib.WRRDMAWrite, ib.WRRDMAWrite} {
			b.a.send(ib.SendWR{ID: uint64(i), Opcode: op, SGList: b.a.sge(0, 8), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey(),
				Flags: ib.SendSignaled | ib.SendFence})
		}
		testutil.AdvanceTime(time.Second)
		b.a.expect(ib.WC{ID: 0, Status: ib.WCSuccess, Opcode: ib.WCRDMARead, ByteLen: 8})
		b.a.dev.Handle().SetError()
		// The second request was executed, but the device has not received the response.
		b.a.expect(ib.WC{ID: 1, Status: ib.WCWRFlushErr}, ib.WC{ID: 2, Status: ib.WCWRFlushErr})
		b.close()
	})
}

// TestStaleNumbers tests that numbers from before a reset are invalid afterwards: packets of a peer are dropped, and
// keys give no access.
func TestStaleNumbers(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		b := newBenchIn(t, s)
		seen := map[string]map[uint32]bool{"queue pair": {}, "region": {}, "window": {}, "shared receive queue": {}}
		for i := range 300 {
			mw, err := b.a.pd.AllocMW(ib.MWType1)
			check(t, err)
			xrcd, err := b.a.dev.IB().AllocXRCD()
			check(t, err)
			srq, err := b.a.pd.CreateSRQ(ib.SRQInitAttr{
				Type: ib.SRQXRC, Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}, XRCD: xrcd, CQ: b.a.cq,
			})
			check(t, err)
			for what, n := range map[string]uint32{
				"queue pair": b.a.qp.Num(), "region": b.a.mr.RKey(), "window": mw.RKey(), "shared receive queue": srq.Num(),
			} {
				if seen[what][n] {
					t.Fatalf("after %d resets: %s %#x was there before", i, what, n)
				}
				seen[what][n] = true
			}
			check(t, srq.Destroy())
			check(t, xrcd.Dealloc())
			check(t, mw.Dealloc())
			if i == 299 {
				break
			}
			b.reset(s)
		}
		// The peer is connected to the old queue pair, with the same attributes as in the new connection.
		toRTR(t, b.b.qp, b.a.dev, b.a.qp.Num(), conn{})
		toRTS(t, b.b.qp, conn{timeout: 8, retry: 2})
		old, key := b.a.qp.Num(), b.a.mr.RKey()
		b.reset(s)
		toRTR(t, b.a.qp, b.b.dev, b.b.qp.Num(), conn{})
		toRTS(t, b.a.qp, conn{})
		copy(b.b.buf, "stale")
		b.b.send(ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, SGList: b.b.sge(0, 8), RemoteAddr: b.a.addr, RKey: key,
			Flags: ib.SendSignaled})
		b.b.expect(ib.WC{ID: 1, Status: ib.WCRetryExcErr})
		if bytes.HasPrefix(b.a.buf, []byte("stale")) || b.a.qp.Num() == old || b.a.qp.State() != ib.QPRTS {
			t.Error("the new device took it")
		}
		// Use the old key with the right queue pair.
		check(t, b.b.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
		toRTR(t, b.b.qp, b.a.dev, b.a.qp.Num(), conn{})
		toRTS(t, b.b.qp, conn{})
		b.b.send(ib.SendWR{ID: 2, Opcode: ib.WRRDMAWrite, SGList: b.b.sge(0, 8), RemoteAddr: b.a.addr, RKey: key,
			Flags: ib.SendSignaled})
		b.b.expect(ib.WC{ID: 2, Status: ib.WCRemAccessErr})
		b.close()
	})
}

// TestFollow tests that the next device of an adapter has the interface and the addresses that the former device had
// last. If the interface has no address at the time, the next device has the former addresses.
func TestFollow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hw := NewHardware(Config{
			Layout: layout.Layout{},
			Name:   "rxe0", Network: simnet.New(simnet.Config{}), Fabric: &Fabric{}, Addrs: []netip.Addr{addrA},
			Netdev: netdev.Interface{Name: "sim0", Index: 1, MTU: 1500, Up: true, Running: true},
		})
		next := func() *Device {
			t.Helper()
			_, err := hw.Probe()
			check(t, err)
			return hw.dev.Load()
		}
		d := next()
		ifi := netdev.Interface{Name: "sim1", Index: 2, MTU: 4200, Up: true, Running: true}
		for _, addrs := range [][]netip.Addr{{addrB}, nil} {
			d.SetInterface(ifi, addrs)
			check(t, d.Close())
			d = next()
			at := d.at.Load()
			if got := at.addrs(); !slices.Equal(got, []netip.Addr{addrB}) || at.netdev.Name != ifi.Name {
				t.Errorf("after SetInterface with %v: the next device has %v of %s, want %v of %s", addrs, got, at.netdev.Name,
					addrB, ifi.Name)
			}
		}
		check(t, d.Close())
	})
}

// TestErrorRace creates, connects and uses queue pairs while their device enters the error state. Each call fails, or
// every request completes.
func TestErrorRace(t *testing.T) {
	for round := range 30 {
		b := newBench(t, setup{shortcut: true})
		var wg sync.WaitGroup
		posted := make([]int, 4)
		// steps counts the steps of all queue pairs. The device enters the error state after another step in each
		// round.
		var steps atomic.Int32
		entered := make(chan struct{})
		step := func() {
			if steps.Add(1) == int32(1+round) {
				close(entered)
			}
		}
		nodes := make([]*node, len(posted))
		for i := range posted {
			cq, err := b.a.dev.IB().CreateCQ(ib.CQInit{Entries: 64})
			check(t, err)
			nodes[i] = &node{t: t, dev: b.a.dev, pd: b.a.pd, cq: cq, mem: b.a.mem, buf: b.a.buf, mr: b.a.mr, addr: b.a.addr}
		}
		for i, n := range nodes {
			wg.Go(func() {
				qp, err := n.pd.CreateQP(ib.QPInitAttr{SendCQ: n.cq, RecvCQ: n.cq, Cap: ib.QPCap{MaxRecvWR: 8, MaxRecvSGE: 1},
					Type: ib.QPTypeRC})
				if err != nil {
					return
				}
				n.qp = qp
				step()
				if qp.Modify(ib.QPAttr{State: ib.QPInit, Port: 1},
					ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags) != nil {
					return
				}
				for range 8 {
					step()
					k, _ := qp.PostRecv(ib.RecvWR{SGList: n.sge(0, 8)})
					posted[i] += k
				}
			})
		}
		<-entered
		b.a.dev.Handle().SetError()
		wg.Wait()
		for i, n := range nodes {
			for _, wc := range n.poll(posted[i]) {
				if wc.Status != ib.WCWRFlushErr {
					t.Errorf("completion %+v", wc)
				}
			}
			if n.qp != nil {
				if err := n.qp.Modify(ib.QPAttr{State: ib.QPInit, Port: 1},
					ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags); !errors.Is(err, syscall.EIO) {
					t.Errorf("modify in error: %v", err)
				}
				check(t, n.qp.Destroy())
			}
			check(t, n.cq.Destroy())
		}
		if t.Failed() {
			t.Fatal(fmt.Sprint("round ", round))
		}
	}
}
