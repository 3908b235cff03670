package engine

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/driver/rxe/layout"
	"verbena/engine/transport"
	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/roce"
)

// TestGIDTable tests the order of the table: the default GID, then IPv4, then IPv6. An address that is also the
// default GID has only one entry.
func TestGIDTable(t *testing.T) {
	net := simnet.New(simnet.Config{})
	addr := netip.MustParseAddr
	for _, c := range []struct {
		mac   []byte
		addrs []netip.Addr
		want  []string
	}{
		{nil, []netip.Addr{addr("127.0.0.1")}, []string{
			"fe80:0000:0000:0000:0200:00ff:fe00:0000", "0000:0000:0000:0000:0000:ffff:7f00:0001",
		}},
		{[]byte{0x52, 0x54, 0, 0x12, 0x34, 0x56}, []netip.Addr{addr("fd00::5"), addr("10.77.0.2"),
			addr("fe80::5054:ff:fe12:3456%eth1")}, []string{
			"fe80:0000:0000:0000:5054:00ff:fe12:3456", "0000:0000:0000:0000:0000:ffff:0a4d:0002",
			"fd00:0000:0000:0000:0000:0000:0000:0005",
		}},
	} {
		d, err := New(Config{
			Layout: layout.Layout{}, Name: "rxe0", Addrs: c.addrs, Network: net, Netdev: netdev.Interface{Name: "eth1", Index: 7,
				MAC: c.mac}})
		check(t, err)
		for i := range gidTableLen {
			want := "0000:0000:0000:0000:0000:0000:0000:0000"
			if i < len(c.want) {
				want = c.want[i]
			}
			g, err := ops{d}.QueryGID(1, i)
			if err != nil || g.GID.String() != want {
				t.Fatalf("GID %d is %v, %v, want %v", i, g.GID, err, want)
			}
			if i < len(c.want) && (g.Type != ib.GIDTypeRoCEv2 || g.Netdev != "eth1" || g.IfIndex != 7) {
				t.Errorf("entry %d is %+v", i, g)
			}
		}
		for _, at := range [][2]int{{1, gidTableLen}, {1, -1}, {2, 0}, {0, 0}} {
			if _, err := (ops{d}).QueryGID(at[0], at[1]); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("GID %d of port %d: %v", at[1], at[0], err)
			}
		}
		check(t, d.Close())
	}
}

func TestPort(t *testing.T) {
	net := simnet.New(simnet.Config{})
	for _, c := range []struct {
		mtu         int
		up, running bool
		active      ib.MTU
		state       ib.PortState
	}{
		{65536, true, true, ib.MTU4096, ib.PortActive},
		{1500, true, true, ib.MTU1024, ib.PortActive},
		{1400, true, true, ib.MTU1024, ib.PortActive},
		{9000, true, false, ib.MTU4096, ib.PortDown},
		{300, false, false, ib.MTU256, ib.PortDown},
	} {
		d, err := New(Config{
			Layout: layout.Layout{},
			Name:   "rxe0", Addrs: []netip.Addr{addrA}, Network: net,
			Netdev: netdev.Interface{Name: "eth0", MTU: c.mtu, Up: c.up, Running: c.running},
		})
		check(t, err)
		p, err := (ops{d}).QueryPort(1)
		if err != nil || p.ActiveMTU != c.active || p.State != c.state || p.LinkLayer != ib.LinkEthernet ||
			p.GIDTableLen != 1024 || p.PKeyTableLen != 1 {
			t.Errorf("%+v: %+v, %v", c, p, err)
		}
		if _, err := (ops{d}).QueryPort(2); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("port 2: %v", err)
		}
		if k, err := (ops{d}).QueryPKey(1, 0); k != 0xffff || err != nil {
			t.Errorf("P_Key 0 is %#x, %v", k, err)
		}
		check(t, d.Close())
	}
}

// TestNewErrors makes New fail for each reason, and tests that a failed New leaves nothing behind.
func TestNewErrors(t *testing.T) {
	net := simnet.New(simnet.Config{})
	fabric := &Fabric{}
	good := Config{Layout: layout.Layout{}, Name: "rxe0", Addrs: []netip.Addr{addrA, addrB}, Network: net, Fabric: fabric,
		Netdev: netdev.Interface{Up: true, Running: true}}
	for _, c := range []struct {
		name string
		cfg  func(*Config)
		errn syscall.Errno
	}{
		{"no address", func(c *Config) { c.Addrs = nil }, syscall.EADDRNOTAVAIL},
		{"no network", func(c *Config) { c.Network = nil }, syscall.EINVAL},
		{"an address twice", func(c *Config) { c.Addrs = []netip.Addr{addrA, addrA} }, syscall.EADDRINUSE},
	} {
		cfg := good
		c.cfg(&cfg)
		if _, err := New(cfg); !errors.Is(err, c.errn) {
			t.Errorf("%s: %v, want %v", c.name, err, c.errn)
		}
	}
	d, err := New(good)
	check(t, err)
	if _, err := New(good); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second device: %v", err)
	}
	if fabric.load().byAddr[addrA] != d {
		t.Error("the failure took the first device out of the fabric")
	}
	check(t, d.Close())
	check(t, d.Close())
	if fabric.load().byAddr[addrA] != nil {
		t.Error("the device is still in the fabric")
	}
}

// TestModifyErrors passes invalid values to Modify, and tests that a failed Modify changes nothing.
func TestModifyErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true})
		toInit(t, b.a.qp, conn{})
		gid, _ := ops{b.b.dev}.QueryGID(1, 1)
		good := ib.QPAttr{
			State: ib.QPRTR, PathMTU: ib.MTU1024, DestQPN: 5, MaxDestRdAtomic: 1, MinRNRTimer: 1,
			AH: ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: gid.GID, SGIDIndex: 1}},
		}
		const mask = ib.QPAttrState | ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN |
			ib.QPAttrMaxDestRdAtomic | ib.QPAttrMinRNRTimer
		for _, c := range []struct {
			name string
			set  func(*ib.QPAttr)
		}{
			{"path MTU 0", func(a *ib.QPAttr) { a.PathMTU = 0 }},
			{"path MTU 6", func(a *ib.QPAttr) { a.PathMTU = 6 }},
			{"queue pair number", func(a *ib.QPAttr) { a.DestQPN = 1 << 24 }},
			{"incoming reads", func(a *ib.QPAttr) { a.MaxDestRdAtomic = 129 }},
			{"RNR timer", func(a *ib.QPAttr) { a.MinRNRTimer = 32 }},
			{"source GID", func(a *ib.QPAttr) { a.AH.GRH.SGIDIndex = 2 }},
			{"destination GID", func(a *ib.QPAttr) { a.AH.GRH.DGID = ib.GID{} }},
		} {
			a := good
			c.set(&a)
			if err := b.a.qp.Modify(a, mask); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		if s := b.a.qp.State(); s != ib.QPInit {
			t.Fatalf("state is %v", s)
		}
		check(t, b.a.qp.Modify(good, mask))
		for _, c := range []struct {
			name string
			a    ib.QPAttr
		}{
			{"timeout", ib.QPAttr{Timeout: 32}}, {"retries", ib.QPAttr{RetryCnt: 8}}, {"RNR retries", ib.QPAttr{RNRRetry: 8}},
			{"outgoing reads", ib.QPAttr{MaxRdAtomic: 129}},
		} {
			c.a.State = ib.QPRTS
			if err := b.a.qp.Modify(c.a,
				ib.QPAttrState|ib.QPAttrSQPSN|ib.QPAttrTimeout|ib.QPAttrRetryCnt|
					ib.QPAttrRNRRetry|ib.QPAttrMaxRdAtomic); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		toRTS(t, b.a.qp, conn{psn: 99, timeout: 5, rdAtomic: 3})
		got, init, err := b.a.qp.Query(0)
		check(t, err)
		if got.State != ib.QPRTS || got.SQPSN != 99 || got.Timeout != 5 || got.MaxRdAtomic != 3 || got.DestQPN != 5 ||
			got.PathMTU != ib.MTU1024 || got.AH != good.AH || got.Cap != init.Cap {
			t.Errorf("query: %+v", got)
		}
	})
}

func TestCreateQPErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true})
		for _, c := range []struct {
			name string
			typ  ib.QPType
			cap  ib.QPCap
			errn syscall.Errno
		}{
			{"type", ib.QPTypeRaw, ib.QPCap{}, syscall.EOPNOTSUPP},
			{"sends", ib.QPTypeRC, ib.QPCap{MaxSendWR: maxQPWR + 1}, syscall.EINVAL},
			{"receives", ib.QPTypeRC, ib.QPCap{MaxRecvWR: maxQPWR + 1}, syscall.EINVAL},
			{"gather", ib.QPTypeRC, ib.QPCap{MaxSendSGE: maxSGE + 1}, syscall.EINVAL},
			{"scatter", ib.QPTypeRC, ib.QPCap{MaxRecvSGE: maxSGE + 1}, syscall.EINVAL},
			{"inline", ib.QPTypeRC, ib.QPCap{MaxInlineData: maxInline + 1}, syscall.EINVAL},
		} {
			if _, err := b.a.pd.CreateQP(ib.QPInitAttr{SendCQ: b.a.cq, RecvCQ: b.a.cq, Type: c.typ,
				Cap: c.cap}); !errors.Is(err, c.errn) {
				t.Errorf("%s: %v, want %v", c.name, err, c.errn)
			}
		}
		if _, err := b.a.dev.IB().CreateCQ(ib.CQInit{Entries: maxCQE + 1}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("completion queue: %v", err)
		}
		if _, err := b.a.dev.IB().CreateCQ(ib.CQInit{Entries: 1, Flags: 1}); !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("completion queue with timestamps: %v", err)
		}
	})
}

// TestDrain tests SQD: requests in flight complete, later ones wait, and the consumer gets an event in between.
func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{net: simnet.Config{Latency: time.Millisecond}})
		b.connect(conn{})
		wr := ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: b.a.sge(0, 100),
			RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()}
		b.a.send(wr)
		check(t, b.a.qp.Modify(ib.QPAttr{State: ib.QPSQD, EnSQDAsyncNotify: true}, ib.QPAttrState|ib.QPAttrEnSQDAsyncNotify))
		wr.ID = 2
		b.a.send(wr)
		if a, _, _ := b.a.qp.Query(0); a.State != ib.QPSQD || !a.SQDraining {
			t.Errorf("query: state %v, draining %v", a.State, a.SQDraining)
		}
		if err := b.a.qp.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("to RTS while draining: %v", err)
		}
		b.a.expect(ib.WC{ID: 1, Opcode: ib.WCRDMAWrite})
		testutil.AdvanceTime(time.Second)
		b.a.none()
		if got := b.a.raised(); !slices.Equal(got, []ib.EventType{ib.EventSQDrained}) {
			t.Errorf("events are %v", got)
		}
		check(t, b.a.qp.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
		b.a.expect(ib.WC{ID: 2, Opcode: ib.WCRDMAWrite})
	})
}

// TestFence tests that a fenced request is not sent before the responses to earlier RDMA READs have arrived. Without
// a fence it is.
func TestFence(t *testing.T) {
	for _, fence := range []ib.SendFlags{0, ib.SendFence} {
		bubble(t, func(t *testing.T) {
			b := newBench(t, setup{net: simnet.Config{Latency: time.Millisecond, Record: true}})
			b.connect(conn{})
			b.a.send(
				ib.SendWR{ID: 1, Opcode: ib.WRRDMARead, SGList: b.a.sge(0, 100), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()},
				ib.SendWR{ID: 2, Opcode: ib.WRRDMAWrite, Flags: fence | ib.SendSignaled},
			)
			b.a.expect(ib.WC{ID: 2, Opcode: ib.WCRDMAWrite})
			var sent []time.Time
			for _, p := range b.net.Packets() {
				if p.Src == addrA {
					sent = append(sent, p.Sent)
				}
			}
			if len(sent) != 2 {
				t.Fatalf("%d packets", len(sent))
			}
			if d := sent[1].Sub(sent[0]); (d >= 2*time.Millisecond) != (fence != 0) {
				t.Errorf("fence %v: %v between the requests", fence != 0, d)
			}
		})
	}
}

// TestReadLimit tests that no more RDMA READ requests are in flight than allowed, and that a long READ is split.
func TestReadLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{bufLen: 1 << 20, net: simnet.Config{Latency: time.Millisecond, Record: true}})
		b.connect(conn{mtu: ib.MTU1024, rdAtomic: 2})
		b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGList: b.a.sge(0, 5*transport.ReadChunk),
			RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()})
		b.a.expect(ib.WC{ID: 1, Opcode: ib.WCRDMARead})
		outstanding, most, requests := 0, 0, 0
		for _, p := range b.net.Packets() {
			switch op := roce.BTH(p.Data).Opcode(); {
			case op == roce.RCRDMAReadRequest:
				requests++
				outstanding++
				most = max(most, outstanding)
			case op.Has(roce.FlagReadResponse) && op.Has(roce.FlagEnds):
				outstanding--
			}
		}
		if requests != 5 || most != 2 {
			t.Errorf("%d requests, %d of them outstanding", requests, most)
		}
	})
}

// TestSocketFull tests that a socket without room only causes a delay.
func TestSocketFull(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{bufLen: 1 << 20, net: simnet.Config{Bandwidth: 100 << 20, SendBuffer: 70_000}})
		b.connect(conn{mtu: ib.MTU4096})
		for i, op := range []ib.WROpcode{ib.WRSend, ib.WRRDMAWrite, ib.WRRDMARead} {
			transfer(b, op, 1<<20-64, uint64(i))
		}
		full := uint64(0)
		for _, d := range []*Device{b.a.dev, b.b.dev} {
			full += d.Endpoints()[0].(link.StatsReader).Stats().SendAgain
			if n := d.Stats()["completer_retry_err"]; n != 0 {
				t.Errorf("%d retries", n)
			}
		}
		if full == 0 {
			t.Error("the socket was never full")
		}
	})
}

// TestLastAnswer destroys a queue pair as soon as its consumer sees the receive complete, before the acknowledgement
// has been sent. The acknowledgement must be sent nevertheless, because the peer's last request would fail. Stopped
// hardware sends nothing.
func TestLastAnswer(t *testing.T) {
	for _, c := range []struct {
		hang    bool
		timeout uint8
		want    ib.WC
	}{
		{false, 20, ib.WC{ID: 2, Opcode: ib.WCSend}},
		{true, 8, ib.WC{ID: 2, Status: ib.WCRetryExcErr}},
	} {
		b := newBench(t, setup{shortcut: true})
		b.connect(conn{timeout: c.timeout, retry: 1})
		qp := b.b.dev.qp(b.b.qp.Num())
		takeRun(qp) // this thread runs the queue pair, and has not sent the answer when the consumer destroys it
		b.b.recv(1, 0, 100)
		b.a.send(ib.SendWR{ID: 2, Opcode: ib.WRSend, SGList: b.a.sge(0, 60), Flags: ib.SendSignaled})
		p := b.b.dev.begin(true)
		for _, e := range qp.events.take() {
			p.taken(e.train)
			qp.receiveTrain(p, e.train)
		}
		b.b.expect(ib.WC{ID: 1, Opcode: ib.WCRecv, ByteLen: 60})
		if c.hang {
			b.b.dev.Hardware().Hang()
		}
		result := make(chan error)
		go func() { result <- b.b.qp.Destroy() }()
		testutil.Eventually(t, "Destroy waits for the queue pair", qp.events.any.Load)
		qp.advance(p) // the rest of the run
		p.sendAll(qp)
		select {
		case err := <-result:
			t.Fatalf("Destroy returned %v while a thread ran the queue pair", err)
		default:
		}
		p.todo = append(p.todo, qp)
		p.end()
		check(t, <-result)
		b.a.expect(c.want)
		b.b.qp = b.b.newQP(setup{typ: ib.QPTypeRC}) // for close
	}
}

// TestStale tests that packets from a wrong address, of another partition, or for a queue pair that is not ready are
// dropped.
func TestStale(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{})
		b.connect(conn{})
		b.b.recv(1, 0, 100)
		deliver := func(src, dst netip.Addr, pkey uint16, op roce.Opcode) {
			buf := make([]byte, op.PacketLen(4))
			k := roce.NewPacket(buf, &roce.BTHFields{Opcode: op, PKey: pkey, DestQPN: b.b.qp.Num()}, 4)
			p := b.b.dev.begin(true)
			p.receive(b.b.dev, arrival(src, dst, k.Data[:len(buf)-roce.ICRCLen]))
			p.end()
			synctest.Wait()
		}
		other := netip.MustParseAddr("10.0.0.9")
		deliver(other, addrB, roce.DefaultPKey, roce.RCSendOnly)
		deliver(addrA, other, roce.DefaultPKey, roce.RCSendOnly)
		deliver(addrA, addrB, 0x1234, roce.RCSendOnly)
		deliver(addrA, addrB, roce.DefaultPKey, roce.UCSendOnly)
		b.b.none()
		deliver(addrA, addrB, 0x7fff, roce.RCSendOnly) // a limited member of the partition
		b.b.expect(ib.WC{ID: 1, Opcode: ib.WCRecv, ByteLen: 4})
		check(t, b.b.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
		deliver(addrA, addrB, roce.DefaultPKey, roce.RCSendOnly)
		b.b.none()
	})
}

// TestNumbersVary tests that a reused number or key differs from the earlier one.
func TestNumbersVary(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true})
		qpns, keys := map[uint32]bool{}, map[uint32]bool{}
		for range 400 {
			qp := b.a.newQP(setup{typ: ib.QPTypeRC, cap: userCap})
			mr, err := b.a.pd.RegMR(ib.MRInit{Space: b.a.mem, Addr: b.a.addr, Length: 8, Access: allAccess})
			check(t, err)
			if qpns[qp.Num()] || keys[mr.LKey()] || qp.Num() < 2 || qp.Num() > roce.PSNMask {
				t.Fatalf("queue pair %#x or key %#x again", qp.Num(), mr.LKey())
			}
			qpns[qp.Num()], keys[mr.LKey()] = true, true
			check(t, qp.Destroy())
			check(t, mr.Dereg())
		}
		if n := int(b.a.dev.qps.fresh - b.a.dev.qps.first); n > 200 {
			t.Errorf("%d places for one queue pair at a time", n)
		}
	})
}

// TestPeek compares the state, the peer and the next PSNs from Peek with those from Query.
func TestPeek(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	b.connect(conn{})
	b.neighbours(5)
	for _, n := range []*node{b.a, b.b} {
		got := n.qp.Peek()
		want, _, err := n.qp.Query(0)
		check(t, err)
		if got.State != want.State || got.DestQPN != want.DestQPN || got.RQPSN != want.RQPSN || got.SQPSN != want.SQPSN {
			t.Errorf("Peek: got %v, peer %d, PSNs %d and %d, want %v, %d, %d and %d", got.State, got.DestQPN, got.RQPSN,
				got.SQPSN,
				want.State, want.DestQPN, want.RQPSN, want.SQPSN)
		}
	}
}
