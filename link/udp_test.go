package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/leaktest"

	"verbena/internal/testutil"
	"verbena/roce"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var testHosts atomic.Uint32

// loopback returns an IPv4 loopback address that no other test of this or another process uses.
func loopback() netip.Addr {
	pid, n := os.Getpid(), testHosts.Add(1)
	return netip.AddrFrom4([4]byte{127, byte(pid>>8) | 64, byte(pid), byte(n)})
}

// collector is a Receiver that keeps copies of packets.
type collector struct {
	mu      sync.Mutex
	more    sync.Cond
	srcs    []netip.Addr
	dsts    []netip.Addr
	tos     []uint8
	ttl     []uint8
	packets [][]byte
	batches []int
}

func newCollector() *collector {
	c := new(collector)
	c.more.L = &c.mu
	return c
}

func (c *collector) Receive(a *Arrival) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range a.Packets {
		c.packets = append(c.packets, bytes.Clone(p))
		c.srcs = append(c.srcs, a.Src)
		c.dsts = append(c.dsts, a.Dst)
		c.tos, c.ttl = append(c.tos, a.TOS), append(c.ttl, a.TTL)
	}
	c.batches = append(c.batches, len(a.Packets))
	c.more.Broadcast()
}

// wait returns the packets once there are n. It panics after a minute.
func (c *collector) wait(n int) [][]byte {
	late := false
	defer time.AfterFunc(time.Minute, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		late = true
		c.more.Broadcast()
	}).Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.packets) < n {
		if late {
			panic(fmt.Sprintf("%d of %d packets have arrived", len(c.packets), n))
		}
		c.more.Wait()
	}
	return slices.Clone(c.packets)
}

// sources returns the source addresses of the packets.
func (c *collector) sources() []netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.srcs)
}

func (c *collector) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.packets)
}

type receiverFunc func(*Arrival)

func (f receiverFunc) Receive(a *Arrival) { f(a) }

func listen(t testing.TB, n Network, addr netip.Addr, r Receiver) Endpoint {
	t.Helper()
	var e Endpoint
	var err error
	testutil.PollUntil(func() bool { // all processes share one ::1
		e, err = n.Listen(addr, r)
		return !addr.Is6() || !errors.Is(err, unix.EADDRINUSE)
	})
	if err != nil {
		if addr.Is6() && (errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err,
			unix.EAFNOSUPPORT)) {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil && !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
	return e
}

func stats(t testing.TB, e Endpoint) Stats {
	t.Helper()
	return e.(StatsReader).Stats()
}

// makeTrain returns a train of n packets to queue pair 17, with PSNs from psn on and with different payloads. The
// packets are size bytes long, and the last packet last bytes.
func makeTrain(dst netip.Addr, n, size, last int, psn uint32) *Train {
	t := &Train{Dst: dst, Size: size, Buf: make([]byte, (n-1)*size+last)}
	for i := range n {
		p := t.Packet(i)
		for k := range p {
			p[k] = byte(k*7 + i + int(psn))
		}
		h := roce.BTH(p)
		h.Encode(&roce.BTHFields{Opcode: 4, PKey: 0xffff, DestQPN: 17})
		h.SetPSN(roce.PSN(psn + uint32(i)))
	}
	return t
}

// checkPackets compares received packets with the packets of trains, in order.
func checkPackets(t *testing.T, got [][]byte, trains ...*Train) {
	t.Helper()
	var want [][]byte
	for _, tr := range trains {
		for i := range tr.NumPackets() {
			p := tr.Packet(i)
			want = append(want, p[:len(p)-ICRCLen])
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d packets arrived, want %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("packet %d differs from the sent packet", i)
		}
	}
}

// families runs a test over IPv4 between two addresses, and over IPv6 from ::1 to itself.
func families(t *testing.T, f func(t *testing.T, src, dst netip.Addr)) {
	t.Run("IPv4", func(t *testing.T) { f(t, loopback(), loopback()) })
	t.Run("IPv6", func(t *testing.T) { f(t, netip.IPv6Loopback(), netip.IPv6Loopback()) })
}

// pair opens two endpoints, or one if the addresses are the same. r receives the packets at dst.
func pair(t testing.TB, n Network, src, dst netip.Addr, r Receiver) (from, to Endpoint) {
	to = listen(t, n, dst, r)
	if src == dst {
		return to, to
	}
	return listen(t, n, src, receiverFunc(func(*Arrival) {})), to
}

// TestSendSome tests that several trains of one call arrive in order, that the call ends before a train that needs
// another call, and that fault rules get single trains.
func TestSendSome(t *testing.T) {
	families(t, func(t *testing.T, src, dst netip.Addr) {
		c := newCollector()
		f := NewFaults(UDP(UDPOptions{}), nil)
		from, to := pair(t, f, src, dst, c)
		long, short := makeTrain(dst, 15, 1000, 500, 100), makeTrain(dst, 1, 1024, 1024, 1)
		elsewhere := makeTrain(dst, 1, 100, 100, 1)
		elsewhere.SPort = 50000
		var want []*Train
		for _, tt := range []struct {
			list []*Train
			sent int
		}{
			{[]*Train{short, long}, 2},
			{[]*Train{long, long, short, long, short}, MaxBatch},
			{[]*Train{long, short, elsewhere}, 2},
			{[]*Train{short, elsewhere}, 0},
			{[]*Train{short, {Dst: dst}}, 0},
			{[]*Train{{}, short}, 0},
			{[]*Train{short}, 0},
		} {
			if got := from.(BatchSender).SendSome(tt.list); got != tt.sent {
				t.Fatalf("SendSome of %d trains: got %d, want %d", len(tt.list), got, tt.sent)
			}
			want = append(want, tt.list[:tt.sent]...)
		}
		n := 0
		for _, tr := range want {
			n += tr.NumPackets()
		}
		checkPackets(t, c.wait(n), want...)
		if s := from.(StatsReader).Stats(); s.SentTrains != uint64(len(want)) || s.SentPackets != uint64(n) {
			t.Errorf("counted: got %d trains and %d packets, want %d and %d", s.SentTrains, s.SentPackets, len(want), n)
		}
		if err := f.Add(Rule{Drop: 1}); err != nil {
			t.Fatal(err)
		}
		if got := from.(BatchSender).SendSome([]*Train{long, short}); got != 0 {
			t.Errorf("SendSome with a rule: got %d, want 0", got)
		}
		if err := to.Close(); err != nil {
			t.Error(err)
		}
		if from.Close(); from.(BatchSender).SendSome([]*Train{long, short}) != 0 {
			t.Error("SendSome of a closed endpoint: got trains sent, want 0")
		}
	})
}

func TestUDPTrains(t *testing.T) {
	families(t, func(t *testing.T, src, dst netip.Addr) {
		c := newCollector()
		from, to := pair(t, UDP(UDPOptions{}), src, dst, c)
		var trains []*Train
		n := 0
		for _, mtu := range []int{256, 512, 1024, 2048, 4096} {
			size := roce.BTHLen + 16 + mtu + ICRCLen
			most := min(MaxTrainPackets, MaxTrain/size)
			for _, shape := range [][2]int{{1, size}, {2, size}, {2, 16}, {most, size}, {most, size - 100}} {
				tr := makeTrain(dst, shape[0], size, shape[1], uint32(n))
				if err := from.Send(tr); err != nil {
					t.Fatalf("MTU %d, %d packets: %v", mtu, shape[0], err)
				}
				trains = append(trains, tr)
				n += shape[0]
				c.wait(n) // the socket has room for this train
			}
		}
		for range 3 { // 64 of the shortest packets
			tr := makeTrain(dst, MaxTrainPackets, minPacket, minPacket, uint32(n))
			if err := from.Send(tr); err != nil {
				t.Fatal(err)
			}
			trains = append(trains, tr)
			n += MaxTrainPackets
		}
		checkPackets(t, c.wait(n), trains...)
		for i := range c.srcs {
			if c.srcs[i] != src || c.dsts[i] != dst {
				t.Fatalf("packet %d came from %v to %v", i, c.srcs[i], c.dsts[i])
			}
		}
		tx, rx := stats(t, from), stats(t, to)
		var sum uint64
		for _, tr := range trains {
			sum += uint64(len(tr.Buf))
		}
		if tx.SentTrains != uint64(len(trains)) || tx.SentPackets != uint64(n) || tx.SentBytes != sum || tx.SentSingly != 0 {
			t.Errorf("sender counts %+v, want %d trains, %d packets, %d bytes, none singly", tx, len(trains), n, sum)
		}
		if rx.ReceivedPackets != uint64(n) || rx.ReceivedBytes != sum || rx.ICRCErrors != 0 || rx.Malformed != 0 ||
			rx.Overflows != 0 {
			t.Errorf("receiver counts %+v, want %d packets, %d bytes, no errors", rx, n, sum)
		}
	})
}

// TestUDPUnsegmented: trains that the kernel does not segment leave packet by packet, sealed again for identification
// 0.
func TestUDPUnsegmented(t *testing.T) {
	families(t, func(t *testing.T, src, dst netip.Addr) {
		c := newCollector()
		from, to := pair(t, UDP(UDPOptions{}), src, dst, c)
		// Without checksums, the kernel refuses to segment.
		fd := from.(*UDPEndpoint).fd
		level, opt := unix.SOL_SOCKET, unix.SO_NO_CHECK
		if src.Is6() {
			level, opt = unix.SOL_UDP, unix.UDP_NO_CHECK6_TX
		}
		if err := unix.SetsockoptInt(fd, level, opt, 1); err != nil {
			t.Fatal(err)
		}
		a := makeTrain(dst, 12, 4128, 100, 0)
		b := makeTrain(dst, 61, 1052, 1052, 12)
		for _, tr := range []*Train{a, b} {
			if err := from.Send(tr); err != nil {
				t.Fatal(err)
			}
		}
		checkPackets(t, c.wait(73), a, b)
		if s := stats(t, from); s.SentSingly != 2 || s.SentTrains != 2 || s.SentPackets != 73 {
			t.Errorf("sender counts %+v, want 2 trains of 73 packets, sent singly", s)
		}
		if s := stats(t, to); s.ICRCErrors != 0 {
			t.Errorf("%d ICRC errors", s.ICRCErrors)
		}
		p, err := from.(*UDPEndpoint).peer(dst, 0)
		if err != nil || !p.noSplit.Load() {
			t.Errorf("that segmentation is refused is not remembered (%v)", err)
		}
	})
}

func TestUDPTypeOfService(t *testing.T) {
	families(t, func(t *testing.T, src, dst netip.Addr) {
		c := newCollector()
		from, _ := pair(t, UDP(UDPOptions{}), src, dst, c)
		var trains []*Train
		for i, x := range []struct{ tos, ttl uint8 }{{0, 0}, {0xb8, 0}, {0, 64}, {0, 3}, {0x6a, 255}} {
			tr := makeTrain(dst, 5, 300, 300, uint32(i*5))
			tr.TOS, tr.TTL = x.tos, x.ttl
			if err := from.Send(tr); err != nil {
				t.Fatalf("TOS %#x TTL %d: %v", x.tos, x.ttl, err)
			}
			trains = append(trains, tr)
		}
		checkPackets(t, c.wait(25), trains...)
		for i := range 25 {
			tr := trains[i/5]
			if c.tos[i] != tr.TOS || c.ttl[i] != max(tr.TTL, 1) && (tr.TTL != 0 || c.ttl[i] != defaultTTL) {
				t.Errorf("packet %d: TOS %#x TTL %d, sent with %#x and %d", i, c.tos[i], c.ttl[i], tr.TOS, tr.TTL)
			}
		}
	})
}

func TestUDPSendErrors(t *testing.T) {
	nobody := loopback()
	for _, test := range []struct {
		name  string
		train *Train
		want  error
		count func(*Stats) uint64
	}{
		{"empty", &Train{Dst: nobody, Size: 100}, ErrTrain, func(s *Stats) uint64 { return s.SendInvalid }},
		{"no destination", &Train{Size: 100, Buf: make([]byte, 100)}, ErrTrain,
			func(s *Stats) uint64 { return s.SendInvalid }},
		{"other family", makeTrain(netip.IPv6Loopback(), 1, 100, 100, 0), ErrNoRoute,
			func(s *Stats) uint64 { return s.SendNoRoute }},
		{"unspecified", makeTrain(netip.IPv4Unspecified(), 1, 100, 100, 0), ErrNoRoute,
			func(s *Stats) uint64 { return s.SendNoRoute }},
		// Broadcasting needs SO_BROADCAST.
		{"broadcast", makeTrain(netip.MustParseAddr("255.255.255.255"), 1, 100, 100, 0), nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := listen(t, UDP(UDPOptions{}), loopback(), newCollector())
			err := e.Send(test.train)
			if err == nil || test.want != nil && !errors.Is(err, test.want) {
				t.Fatalf("got %v, want %v", err, test.want)
			}
			if s := stats(t, e); test.count != nil && test.count(&s) != 1 || s.SentTrains != 0 {
				t.Errorf("counters are %+v", s)
			}
		})
	}
}

// TestUDPNobodyListens: if the other end has no socket, each packet causes an ICMP message, and no packet an error.
func TestUDPNobodyListens(t *testing.T) {
	c := newCollector()
	addr, nobody := loopback(), loopback()
	e := listen(t, UDP(UDPOptions{}), addr, c)
	for i := range 100 {
		if err := e.Send(makeTrain(nobody, 3, 200, 200, uint32(i))); err != nil {
			t.Fatal(err)
		}
	}
	// The endpoint still receives its own packets.
	tr := makeTrain(addr, 2, 100, 100, 0)
	if err := e.Send(tr); err != nil {
		t.Fatal(err)
	}
	checkPackets(t, c.wait(2), tr)
	if s := stats(t, e); s.ReceiveErrors != 0 {
		t.Errorf("%d receive errors", s.ReceiveErrors)
	}
}

func TestUDPListenErrors(t *testing.T) {
	used := loopback()
	listen(t, UDP(UDPOptions{}), used, newCollector())
	for _, test := range []struct {
		addr string
		want error
		text string
	}{
		{used.String(), unix.EADDRINUSE, "rdma_rxe"},
		{used.String(), unix.EADDRINUSE, "4791"},
		{used.String(), unix.EADDRINUSE, used.String()},
		{"192.0.2.254", unix.EADDRNOTAVAIL, "192.0.2.254"},
		{"0.0.0.0", unix.EADDRNOTAVAIL, "0.0.0.0"},
		{"::", unix.EADDRNOTAVAIL, "::"},
		{"224.0.0.1", unix.EADDRNOTAVAIL, "224.0.0.1"},
		{"fe80::1", unix.EADDRNOTAVAIL, "%eth0"},
		{"fe80::1%nonesuch", unix.EADDRNOTAVAIL, "nonesuch"},
	} {
		_, err := UDP(UDPOptions{}).Listen(netip.MustParseAddr(test.addr), newCollector())
		if !errors.Is(err, test.want) || !strings.Contains(fmt.Sprint(err), test.text) {
			t.Errorf("listen on %s: error %v, want %v mentioning %q", test.addr, err, test.want, test.text)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("error has several lines: %v", err)
		}
	}
	if _, err := UDP(UDPOptions{}).Listen(netip.Addr{}, newCollector()); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("listen on no address: %v", err)
	}
}

// TestUDPClose: an address can be opened again after Close, and calls of a closed endpoint fail.
func TestUDPClose(t *testing.T) {
	addr := loopback()
	n := UDP(UDPOptions{Spin: -1})
	for range 20 {
		e, err := n.Listen(addr, newCollector())
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); !errors.Is(err, ErrClosed) {
			t.Errorf("second Close: %v", err)
		}
		if err := e.Send(makeTrain(addr, 1, 100, 100, 0)); !errors.Is(err, ErrClosed) {
			t.Errorf("Send after Close: %v", err)
		}
		e.(*UDPEndpoint).Stats()
		if r, s := e.(*UDPEndpoint).Buffers(); r != 0 || s != 0 {
			t.Error("a closed endpoint has buffers")
		}
	}
}

// TestUDPCloseBusy: Close works while other threads send through the endpoint and to it.
func TestUDPCloseBusy(t *testing.T) {
	n := UDP(UDPOptions{stop: time.Hour}) // Close also waits for a thread without a processor
	c := newCollector()
	addr := loopback()
	e := listen(t, n, addr, c)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			tr := makeTrain(addr, 10, 100, 100, 0)
			for {
				switch err := e.Send(tr); {
				case errors.Is(err, ErrClosed):
					return
				case err != nil:
					t.Error(err)
					return
				}
			}
		})
	}
	c.wait(1000)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	after := c.count()
	if s := stats(t, e); s.ReceivedPackets != uint64(after) {
		t.Errorf("%d packets counted, %d handed over", s.ReceivedPackets, after)
	}
}

// rawPeer returns an ordinary socket, which can send malformed packets.
func rawPeer(t *testing.T, addr netip.Addr, port uint16) *net.UDPConn {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, port)))
	if err != nil {
		t.Fatal(err)
	}
	rc, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if addr.Is4() {
		rc.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		})
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestUDPReceiveWrong: packets from other source ports arrive; wrong packets are dropped and counted.
func TestUDPReceiveWrong(t *testing.T) {
	families(t, func(t *testing.T, src, dst netip.Addr) {
		c := newCollector()
		e := listen(t, UDP(UDPOptions{}), dst, c)
		peer := rawPeer(t, src, 0xc123)
		to := netip.AddrPortFrom(dst, Port)
		flow := roce.NewFlow(netip.AddrPortFrom(src, 0xc123), to)
		good := makeTrain(dst, 1, 120, 120, 0)
		flow.Seal(0, good.Buf)
		bad := bytes.Clone(good.Buf)
		bad[50] ^= 4
		for _, p := range [][]byte{{}, {1, 2, 3}, good.Buf[:15], bad, good.Buf[:16], good.Buf} {
			if _, err := peer.WriteToUDPAddrPort(p, to); err != nil {
				t.Fatal(err)
			}
		}
		if src == dst { // the address belongs to this process, but the port does not
			testutil.Eventually(t, "forged packets to be dropped", func() bool { return stats(t, e).Forged == 5 })
			if n := c.count(); n != 0 {
				t.Errorf("%d forged packets were received", n)
			}
			return
		}
		checkPackets(t, c.wait(1), good)
		if s := stats(t, e); s.Malformed != 3 || s.ICRCErrors != 2 || s.ReceivedPackets != 1 {
			t.Errorf("counted %d malformed, %d ICRC errors, %d good; want 3, 2, 1", s.Malformed, s.ICRCErrors, s.ReceivedPackets)
		}
	})
}

// TestUDPConcurrentSenders: the packets of each sending thread arrive in order.
func TestUDPConcurrentSenders(t *testing.T) {
	const senders, each = 4, 200
	c := newCollector()
	dst := loopback()
	from, _ := pair(t, UDP(UDPOptions{}), loopback(), dst, c)
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for i := range each {
				tr := makeTrain(dst, 2, 64, 64, uint32(2*i))
				for k := range 2 {
					binary.BigEndian.PutUint32(tr.Packet(k)[12:], uint32(s))
				}
				if err := from.Send(tr); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var next [senders]roce.PSN
	for _, p := range c.wait(senders * each * 2) {
		s := binary.BigEndian.Uint32(p[12:])
		if psn := roce.BTH(p).PSN(); psn != next[s] {
			t.Fatalf("sender %d: packet %d, want %d", s, psn, next[s])
		}
		next[s]++
	}
}

// TestUDPAllocs: the data path allocates no memory, at either end.
func TestUDPAllocs(t *testing.T) {
	var packets atomic.Uint64
	src, dst := loopback(), loopback()
	n := UDP(UDPOptions{})
	to := listen(t, n, dst, receiverFunc(func(a *Arrival) { packets.Add(uint64(len(a.Packets))) }))
	from := listen(t, n, src, receiverFunc(func(*Arrival) {}))
	single := makeTrain(dst, 1, 1000, 1000, 0)
	train := makeTrain(dst, 10, 1000, 1000, 0)
	train.TOS, train.TTL = 8, 9
	bad := &Train{Dst: netip.IPv6Loopback(), Size: 100, Buf: make([]byte, 100)}
	want := packets.Load()
	send := func(tr *Train) {
		if err := from.Send(tr); err != nil {
			t.Error(err)
		}
		want += uint64(tr.NumPackets())
		for packets.Load() < want {
			runtime.Gosched()
		}
	}
	raw := from.(RawEndpoint)
	faulty := listen(t, NewFaults(n, nil), loopback(), receiverFunc(func(*Arrival) {}))
	for name, f := range map[string]func(){
		"single packet": func() { send(single) },
		"train":         func() { send(train) },
		"error":         func() { from.Send(bad) },
		"no faults": func() {
			if err := faulty.Send(train); err != nil {
				t.Error(err)
			}
			want += uint64(train.NumPackets())
			for packets.Load() < want {
				runtime.Gosched()
			}
		},
		"raw": func() {
			raw.Seal(train)
			raw.SendRaw(train)
			want += uint64(train.NumPackets())
			for packets.Load() < want {
				runtime.Gosched()
			}
		},
	} {
		if got := testing.AllocsPerRun(200, f); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
	if s := stats(t, to); s.ICRCErrors != 0 {
		t.Errorf("%d ICRC errors", s.ICRCErrors)
	}
}

// TestReceiverThatDoesNotReturn: a call of Receive that does not return loses its own batch. Another thread receives
// later packets, and Close does not wait for the call.
func TestReceiverThatDoesNotReturn(t *testing.T) {
	families(t, func(t *testing.T, src, dst netip.Addr) {
		c := newCollector()
		hold, stopped := make(chan struct{}), make(chan *Arrival, 10)
		var stop atomic.Bool
		stop.Store(true)
		var wg sync.WaitGroup
		from, to := pair(t, UDP(UDPOptions{}), src, dst, receiverFunc(func(a *Arrival) {
			if stop.Swap(false) {
				wg.Add(1)
				defer wg.Done()
				stopped <- a
				<-hold
				if !a.Dropped() {
					t.Error("Arrival.Dropped after another thread has taken over: got false, want true")
				}
				return
			}
			c.Receive(a)
		}))
		release := sync.OnceFunc(func() { close(hold) })
		defer release()
		send := func(psn uint32) *Train {
			tr := makeTrain(dst, 3, 100, 100, psn)
			if err := from.Send(tr); err != nil {
				t.Fatal(err)
			}
			return tr
		}
		send(1)
		if a := <-stopped; a.Dropped() {
			t.Error("Arrival.Dropped at once: got true, want false")
		}
		want := []*Train{send(10), send(20)}
		checkPackets(t, c.wait(6), want...)
		stop.Store(true) // once more
		send(30)
		<-stopped
		want = append(want, send(40))
		checkPackets(t, c.wait(9), want...)
		closed := make(chan error)
		go func() { closed <- to.Close() }()
		select {
		case err := <-closed:
			if err != nil {
				t.Errorf("Close: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("Close has not returned after 20 s")
		}
		release()
		wg.Wait()
		checkPackets(t, c.wait(9), want...)
	})
}

// TestCloseDuringReceive: Close also ends if a call of Receive has only just blocked.
func TestCloseDuringReceive(t *testing.T) {
	hold, stopped := make(chan struct{}), make(chan struct{})
	defer close(hold)
	from, to := pair(t, UDP(UDPOptions{}), loopback(), loopback(), receiverFunc(func(*Arrival) {
		close(stopped)
		<-hold
	}))
	if err := from.Send(makeTrain(to.Addr(), 1, 100, 100, 1)); err != nil {
		t.Fatal(err)
	}
	<-stopped
	closed := make(chan error)
	go func() { closed <- to.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Errorf("Close: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("Close has not returned after 20 s")
	}
}
