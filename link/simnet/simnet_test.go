package simnet_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/roce"
)

const ms = time.Millisecond

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
)

// sink records the packets that arrive, as "psn@time" relative to its start.
type sink struct {
	start   time.Time
	mu      sync.Mutex
	got     []string
	batches []int
	on      func(*link.Arrival)
}

func (s *sink) Receive(a *link.Arrival) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range a.Packets {
		s.got = append(s.got, fmt.Sprintf("%d@%v", roce.BTH(p).PSN(), time.Since(s.start)))
	}
	s.batches = append(s.batches, len(a.Packets))
	if s.on != nil {
		s.on(a)
	}
}

func train(dst netip.Addr, psn, n, size int) *link.Train {
	t := &link.Train{Dst: dst, Size: size, Buf: make([]byte, n*size)}
	for i := range n {
		roce.BTH(t.Packet(i)).Encode(&roce.BTHFields{Opcode: 4, PKey: 0xffff, DestQPN: 17, PSN: roce.PSN(psn + i)})
	}
	return t
}

// listen opens an endpoint until the end of the bubble.
func listen(t *testing.T, n link.Network, addr netip.Addr) (link.Endpoint, *sink) {
	t.Helper()
	s := &sink{start: time.Now()}
	e, err := n.Listen(addr, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e, s
}

func send(t *testing.T, e link.Endpoint, tr *link.Train) {
	t.Helper()
	if err := e.Send(tr); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, s *sink, want ...string) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.got, want) {
		t.Errorf("arrived: %v, want %v", s.got, want)
	}
	s.got = nil
}

func TestLatencyAndBandwidth(t *testing.T) {
	for _, test := range []struct {
		name string
		cfg  simnet.Config
		want []string
	}{
		{"none", simnet.Config{}, []string{"0@0s", "1@0s", "2@0s", "3@0s"}},
		{"latency", simnet.Config{Latency: 3 * ms}, []string{"0@3ms", "1@3ms", "2@3ms", "3@3ms"}},
		{"bandwidth", simnet.Config{Bandwidth: 100_000}, []string{"0@1ms", "1@2ms", "2@3ms", "3@4ms"}},
		{"both", simnet.Config{Latency: 5 * ms, Bandwidth: 50_000}, []string{"0@7ms", "1@9ms", "2@11ms", "3@13ms"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := simnet.New(test.cfg)
				a, _ := listen(t, n, addrA)
				_, b := listen(t, n, addrB)
				send(t, a, train(addrB, 0, 3, 100))
				send(t, a, train(addrB, 3, 1, 100))
				testutil.AdvanceTime(time.Second)
				expect(t, b, test.want...)
			})
		})
	}
}

func TestSendBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Config{Bandwidth: 100_000, SendBuffer: 500})
		a, _ := listen(t, n, addrA)
		_, b := listen(t, n, addrB)
		send(t, a, train(addrB, 0, 4, 100))
		if err := a.Send(train(addrB, 4, 2, 100)); !errors.Is(err, link.ErrAgain) {
			t.Errorf("full: %v, want %v", err, link.ErrAgain)
		}
		testutil.AdvanceTime(ms)
		send(t, a, train(addrB, 4, 2, 100))
		testutil.AdvanceTime(time.Second)
		expect(t, b, "0@1ms", "1@2ms", "2@3ms", "3@4ms", "4@5ms", "5@6ms")
		if s := a.(link.StatsReader).Stats(); s.SendAgain != 1 || s.SentPackets != 6 || s.SentBytes != 600 ||
			s.SentTrains != 2 {
			t.Errorf("counted %+v", s)
		}
	})
}

// TestBatches: packets of one source come in batches, which packets of another source divide.
func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Config{Latency: ms})
		a, _ := listen(t, n, addrA)
		eb, b := listen(t, n, addrB)
		send(t, a, train(addrB, 0, 5, 100))
		send(t, a, train(addrB, 5, 2, 100))
		send(t, eb, train(addrB, 7, 1, 100)) // to itself
		send(t, a, train(addrB, 8, 64, 100))
		send(t, a, train(addrB, 72, 1, 100))
		testutil.AdvanceTime(ms)
		if want := []int{7, 1, 64, 1}; !slices.Equal(b.batches, want) {
			t.Errorf("batches of %v, want %v", b.batches, want)
		}
		if s := eb.(link.StatsReader).Stats(); s.ReceivedPackets != 73 || s.ReceivedBatches != 4 || s.ReceivedBytes != 7300 {
			t.Errorf("counted %+v", s)
		}
	})
}

// TestArrival: the Receiver gets packets without their ICRC. A change of these packets changes nothing else.
func TestArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Config{Record: true})
		a, _ := listen(t, n, addrA)
		_, b := listen(t, n, addrB)
		tr := train(addrB, 0, 2, 100)
		b.on = func(x *link.Arrival) {
			if x.Src != addrA || x.Dst != addrB {
				t.Errorf("from %v to %v", x.Src, x.Dst)
			}
			for i, p := range x.Packets {
				if !slices.Equal(p, tr.Packet(i)[:96]) {
					t.Errorf("packet %d differs from the sent packet", i)
				}
				clear(p)
			}
		}
		tr.TOS = 9
		send(t, a, tr)
		synctest.Wait()
		for i, p := range n.Packets() {
			if p.Src != addrA || p.Dst != addrB || p.ID != uint16(i) || p.TOS != 9 || p.TTL != 64 ||
				p.Fate != simnet.Delivered ||
				!slices.Equal(p.Data, tr.Packet(i)) {
				t.Errorf("recorded: %+v", p)
			}
			ok := roce.NewFlow(netip.AddrPortFrom(addrA, link.Port), netip.AddrPortFrom(addrB, link.Port))
			if id, right := ok.Verify(p.ID, p.Data); !right || id != p.ID {
				t.Errorf("packet %d is not sealed for identification %d", i, p.ID)
			}
		}
	})
}

func TestFates(t *testing.T) {
	nobody := netip.MustParseAddr("10.0.0.9")
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Config{Record: true, Latency: ms})
		a, _ := listen(t, n, addrA)
		eb, b := listen(t, n, addrB)
		n.SetFilter(func(p *simnet.Packet) bool {
			switch roce.BTH(p.Data).PSN() {
			case 1:
				return false
			case 2:
				p.Data[50] ^= 1
			}
			return true
		})
		send(t, a, train(addrB, 0, 3, 100))
		send(t, a, train(nobody, 3, 1, 100))
		testutil.AdvanceTime(ms)
		n.SetFilter(nil)
		n.SetLink(addrB, false)
		send(t, a, train(addrB, 4, 1, 100))
		n.SetLink(addrB, true)
		send(t, a, train(addrB, 5, 1, 100)) // in flight while the link goes down
		n.SetLink(addrA, false)
		testutil.AdvanceTime(ms)
		n.SetLink(addrA, true)
		send(t, a, train(addrB, 1, 1, 100))
		testutil.AdvanceTime(ms)
		send(t, a, train(addrB, 7, 1, 100))
		synctest.Wait()
		eb.Close()
		send(t, a, train(addrB, 8, 1, 100))
		expect(t, b, "0@1ms", "1@3ms")
		want := []simnet.Fate{
			simnet.Delivered, simnet.LostFilter, simnet.LostICRC, simnet.LostNobody, simnet.LostLink, simnet.LostLink,
			simnet.Delivered, simnet.LostClosing, simnet.LostNobody,
		}
		var got []simnet.Fate
		for _, p := range n.Packets() {
			got = append(got, p.Fate)
		}
		if !slices.Equal(got, want) {
			t.Errorf("fates are %v, want %v", got, want)
		}
		if s := eb.(link.StatsReader).Stats(); s.ICRCErrors != 1 || s.ReceivedPackets != 2 {
			t.Errorf("counted %+v", s)
		}
	})
}

func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Config{MaxPacket: 200})
		a, _ := listen(t, n, addrA)
		for _, test := range []struct {
			train *link.Train
			want  error
		}{
			{train(netip.MustParseAddr("fe80::1"), 0, 1, 100), link.ErrNoRoute},
			{train(addrB, 0, 1, 204), link.ErrTooLong},
			{train(addrB, 0, 2, 204), link.ErrTooLong},
			{train(addrB, 0, 2, 200), nil},
		} {
			if err := a.Send(test.train); !errors.Is(err, test.want) {
				t.Errorf("to %v, size %d: %v, want %v", test.train.Dst, test.train.Size, err, test.want)
			}
		}
		for _, bad := range []struct {
			addr netip.Addr
			want error
		}{
			{addrA, syscall.EADDRINUSE}, {netip.Addr{}, syscall.EADDRNOTAVAIL}, {netip.IPv6Unspecified(), syscall.EADDRNOTAVAIL},
		} {
			if _, err := n.Listen(bad.addr, &sink{}); !errors.Is(err, bad.want) {
				t.Errorf("listen on %v: %v, want %v", bad.addr, err, bad.want)
			}
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if err := a.Send(train(addrB, 0, 1, 100)); !errors.Is(err, link.ErrClosed) {
			t.Errorf("Send after Close: %v", err)
		}
		if err := a.Close(); !errors.Is(err, link.ErrClosed) {
			t.Errorf("second Close: %v", err)
		}
		listen(t, n, addrA) // the address is free again
	})
}

func TestMalformedTrainPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := listen(t, simnet.New(simnet.Config{}), addrA)
		defer func() {
			if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), link.ErrTrain.Error()) {
				t.Errorf("panics with %v", r)
			}
		}()
		a.Send(&link.Train{Dst: addrB, Size: 8, Buf: make([]byte, 8)})
	})
}

func TestFateString(t *testing.T) {
	for f := simnet.Delivered; f <= simnet.LostClosing; f++ {
		if s := f.String(); strings.HasPrefix(s, "Fate(") {
			t.Errorf("no name for %d", f)
		}
	}
	if s := simnet.Fate(200).String(); s != "Fate(200)" {
		t.Errorf("unknown fate is %q", s)
	}
}

// TestIPv6: two networks are separate, and IPv6 works.
func TestIPv6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, other := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
		n := simnet.New(simnet.Config{Record: true})
		a, _ := listen(t, n, one)
		_, b := listen(t, n, other)
		_, elsewhere := listen(t, simnet.New(simnet.Config{}), other)
		send(t, a, train(other, 0, 3, 100))
		expect(t, b, "0@0s", "1@0s", "2@0s")
		expect(t, elsewhere)
		for _, p := range n.Packets() {
			if p.ID != 0 {
				t.Errorf("identification %d over IPv6", p.ID)
			}
		}
	})
}
