package engine

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"verbena/driver/rxe/layout"
	"verbena/ib"
	"verbena/ib/slot"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/umem"
)

// brittleSpace is memory with an access that panics on request.
type brittleSpace struct {
	*umem.Local
	broken atomic.Bool
}

func (s *brittleSpace) ReadV(dst [][]byte, addr uint64) error {
	if s.broken.Load() {
		panic("brittle memory")
	}
	return s.Local.ReadV(dst, addr)
}

func (s *brittleSpace) WriteV(src [][]byte, addr uint64) error {
	if s.broken.Load() {
		panic("brittle memory")
	}
	return s.Local.WriteV(src, addr)
}

// couple is a consumer with two connected queue pairs on one device, for the lifetime of the device.
type couple struct {
	t     *testing.T
	space brittleSpace
	addr  uint64

	dev *Device
	pd  *ib.PD
	cq  *ib.CQ
	mr  *ib.MR
	qps [2]*ib.QP
}

func (c *couple) add(d *ib.Device) (any, error) {
	var err error
	o, _ := ib.As[ops](ibuser.Driver(d))
	c.dev = o.dev
	c.pd, err = d.AllocPD()
	check(c.t, err)
	c.cq, err = d.CreateCQ(ib.CQInit{Entries: 50})
	check(c.t, err)
	c.mr, err = c.pd.RegMR(ib.MRInit{Space: &c.space, Addr: c.addr, Length: 4096, Access: allAccess})
	check(c.t, err)
	for i := range c.qps {
		c.qps[i], err = c.pd.CreateQP(ib.QPInitAttr{SendCQ: c.cq, RecvCQ: c.cq, Cap: userCap, Type: ib.QPTypeRC})
		check(c.t, err)
	}
	connectQPs(c.t, c.dev, c.qps[0], c.dev, c.qps[1], conn{})
	return nil, nil
}

func (c *couple) remove(*ib.Device, any) {
	for _, qp := range c.qps {
		check(c.t, qp.Destroy())
	}
	check(c.t, c.mr.Dereg())
	check(c.t, c.cq.Destroy())
	check(c.t, c.pd.Dealloc())
}

// write writes from the memory of the first queue pair to the memory of the second.
func (c *couple) write() error {
	_, err := c.qps[0].PostSend(ib.SendWR{
		ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: []ib.SGE{{Addr: c.addr, Length: 8, LKey: c.mr.LKey()}},
		RemoteAddr: c.addr + 64, RKey: c.mr.RKey(),
	})
	return err
}

// TestPanic tests that a panic of the engine on any thread makes the device fail. After a reset the device works
// again, even though the lock of a queue pair stays locked.
func TestPanic(t *testing.T) {
	for _, test := range []struct {
		name     string
		shortcut bool
		run      func(c *couple)
	}{
		{"post", true, func(c *couple) {
			c.space.broken.Store(true)
			if err := c.write(); !errors.Is(err, syscall.EIO) {
				t.Errorf("PostSend that panics: got %v, want EIO", err)
			}
		}},
		{"doorbell", true, func(c *couple) {
			qp := qpOf(c.qps[0])
			p := qp.dev.begin(false)
			_, err := qp.req.postSend(&p.posted,
				[]ib.SendWR{{ID: 1, Opcode: ib.WRRDMAWrite, SGList: []ib.SGE{{Addr: c.addr, Length: 8,
					LKey: c.mr.LKey()}}}})
			p.end()
			check(c.t, err)
			c.space.broken.Store(true)
			qp.Doorbell(nil)
		}},
		{"receive", false, func(c *couple) {
			// The data is inline, so that only the receiver accesses memory.
			c.space.broken.Store(true)
			_, err := c.qps[0].PostSend(ib.SendWR{
				ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, Inline: []byte("12345678"), RemoteAddr: c.addr, RKey: c.mr.RKey(),
			})
			check(c.t, err)
		}},
		{"take", false, func(c *couple) { // the same on the sending thread
			c.space.broken.Store(true)
			_, err := c.qps[0].PostSend(ib.SendWR{
				ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, Inline: []byte("12345678"), RemoteAddr: c.addr, RKey: c.mr.RKey(),
			})
			if !errors.Is(err, syscall.EIO) {
				t.Errorf("PostSend that panics: got %v, want EIO", err)
			}
		}},
		{"timer", false, func(c *couple) {
			// Without a receiver there is no answer, and the request is sent again.
			c.dev.qps.set(c.qps[1].Num()&(maxQPSlot-1), nil)
			check(c.t, c.write())
			c.space.broken.Store(true)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var mu sync.Mutex
			var log []string
			logf := func(f string, a ...any) {
				mu.Lock()
				defer mu.Unlock()
				log = append(log, f)
				for _, x := range a {
					if err, ok := x.(error); ok {
						log = append(log, err.Error())
					}
				}
			}
			core := &ib.Core{}
			network, addr := link.Network(simnet.New(simnet.Config{})), addrA
			if test.name == "take" {
				s := loopback()
				network, addr = s.network, s.addrs[0]
			}
			hw := NewHardware(Config{
				Layout: layout.Layout{},
				Name:   "rxe0", Addrs: []netip.Addr{addr}, Network: network, Fabric: &Fabric{}, Recover: true, Logf: logf,
				Netdev: netdev.Interface{Name: "eth0", Index: 2, MAC: []byte{2, 0, 0, 0, 0, 1}, MTU: 9000, Up: true, Running: true},
				Probed: func(d *Device) { d.direct.Store(test.shortcut) },
			})
			c := &couple{t: t}
			c.space.Local = umem.NewLocal()
			buf := make([]byte, 4096)
			var err error
			c.addr, err = c.space.Add(buf)
			check(t, err)
			check(t, core.RegisterClient(&ib.Client{Name: "couple", Add: c.add, Remove: c.remove}))
			s := slot.New(core, "rxe0", hw, t.Logf)
			check(t, s.Plug())
			first := c.dev
			within(t, "the call", func() { test.run(c) })
			testutil.Eventually(t, "the device has failed", first.broken.Load)
			c.space.broken.Store(false)
			testutil.Eventually(t, "the device is reset", func() bool { return s.Status().Resets == 1 })
			check(t, c.write())
			n := node{t: t, dev: c.dev, cq: c.cq}
			if wc := n.poll(1)[0]; wc.Status != ib.WCSuccess {
				t.Errorf("after the reset: got %v, want success", wc.Status)
			}
			within(t, "Close", func() { check(t, s.Close()) })
			mu.Lock()
			defer mu.Unlock()
			all := strings.Join(log, "\n")
			if strings.Count(all, "panic: brittle memory") != 1 || !strings.Contains(all, "panic_test.go") {
				t.Errorf("the log tells the panic and its stack not once: %s", all)
			}
		})
	}
}

// TestPanicWithoutRecover tests that a panic reaches the caller without Config.Recover.
func TestPanicWithoutRecover(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	p := b.a.dev.begin(false)
	defer func() {
		if r := recover(); r != "mine" {
			t.Errorf("recover: got %v, want the panic", r)
		}
		p.end()
	}()
	func() {
		defer p.caught()
		panic("mine")
	}()
}

// TestFailedDeviceFreesSenders tests that a queue pair of another device does not wait for trains that a failed
// device will never receive.
func TestFailedDeviceFreesSenders(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	b.connect(conn{})
	from, to := qpOf(b.a.qp), qpOf(b.b.qp)
	takeRun(to) // the state after a panic
	for i := range maxHanded {
		b.a.send(ib.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, Inline: []byte("1"),
			RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()})
	}
	if n := from.egress.handed.Load(); n != maxHanded {
		t.Fatalf("%d trains are handed over, want %d", n, maxHanded)
	}
	b.b.dev.fail(errors.New("test"))
	for range 2 { // before, and since
		if n := from.egress.handed.Load(); n != 0 {
			t.Errorf("%d trains of the sender count still", n)
		}
		b.a.send(ib.SendWR{ID: 9, Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, Inline: []byte("1"), RemoteAddr: b.b.addr,
			RKey: b.b.mr.RKey()})
	}
}

// TestFailedDeviceDoesNotHang tests that every method of a queue pair returns after its device has failed and left
// locks behind.
func TestFailedDeviceDoesNotHang(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	b.connect(conn{})
	x := newSilentProgram(b, ib.QPTypeRC)
	qp := qpOf(x.qps[0])
	takeRun(qp) // the state after a panic
	done := make(chan struct{})
	testutil.WaitBlocked(t, func() {
		defer close(done)
		_, _ = qp.Query(0)
	})
	b.b.dev.fail(errors.New("test"))
	<-done
	within(t, "methods", func() {
		if _, err := qp.PostSend(nil); !errors.Is(err, syscall.EIO) {
			t.Errorf("PostSend: got %v, want EIO", err)
		}
		qp.Doorbell(nil)
		if err := qp.Modify(&ib.QPAttr{State: ib.QPErr}, ib.QPAttrState, nil); !errors.Is(err, syscall.EIO) {
			t.Errorf("Modify: got %v, want EIO", err)
		}
		ops{b.b.dev}.EnterError()
		ops{b.b.dev}.Disassociate(x.program)
	})
}

// TestPanicEndsAccess panics in a copy of a pass that has begun to gather a message, while a deregistration waits for
// it. The watchdog must not find the pass in the copy, because its run queue belongs to another pass then.
func TestPanicEndsAccess(t *testing.T) {
	b := newBench(t, setup{shortcut: true, recover: true})
	b.connect(conn{})
	mr, err := b.a.pd.RegMR(ib.MRInit{Space: b.a.mem, Addr: b.a.addr, Length: 8, Access: allAccess})
	check(t, err)
	qp := qpOf(b.a.qp)
	p := qp.dev.begin(false)
	if p.gather.from = qp.memory(qp.pd, mr.LKey(), localRead); p.gather.from == nil {
		t.Fatal("the region cannot be read")
	}
	done := make(chan error, 1)
	testutil.WaitBlocked(t, func() { done <- mr.Dereg() })
	b.unwatched()
	p.enter(qp)
	p.panicked("by the test")
	within(t, "Dereg", func() { check(t, <-done) })
	w := &qp.dev.watchdog
	w.find()
	if _, stuck := w.find(); slices.Contains(stuck, p) {
		t.Error("watchdog: got the pass that has panicked in a copy, want none")
	}
	b.watched()
}
