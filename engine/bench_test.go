package engine

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"

	"verbena/ib"
	"verbena/link"
)

// pingPong is a message from a to b over the shortcut: post, deliver, poll on both sides.
type pingPong struct {
	b      *bench
	recvWR []ib.RecvWR
	sendWR []ib.SendWR
	wc     []ib.WC
}

func newPingPong(t testing.TB, s setup, op ib.WROpcode, size int) *pingPong {
	s.bufLen = 1 << 21
	b := newBench(t, s)
	b.connect(conn{mtu: ib.MTU4096})
	return &pingPong{
		b:      b,
		recvWR: []ib.RecvWR{{ID: 1, SGList: b.b.sge(0, size)}},
		sendWR: []ib.SendWR{{
			ID: 2, Opcode: op, Flags: ib.SendSignaled, SGList: b.a.sge(0, size), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey(),
		}},
		wc: make([]ib.WC, 4),
	}
}

func (p *pingPong) one(t testing.TB) {
	receives := p.sendWR[0].Opcode == ib.WRSend
	if receives {
		if _, err := qpOf(p.b.b.qp).PostRecv(p.recvWR); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := qpOf(p.b.a.qp).PostSend(p.sendWR); err != nil {
		t.Fatal(err)
	}
	for n := 0; n == 0; {
		n, _ = p.b.a.cq.Poll(p.wc)
		if n > 0 && p.wc[0].Status != ib.WCSuccess {
			t.Fatal(p.wc[0].Status)
		}
	}
	for n := 0; n == 0 && receives; {
		n, _ = p.b.b.cq.Poll(p.wc)
	}
}

// BenchmarkSendShortcut sends one message at a time between two devices of a Fabric.
func BenchmarkSendShortcut(b *testing.B) { benchmarkSend(b, setup{shortcut: true}) }

// BenchmarkSendUDP sends one message at a time through the host's loopback interface.
func BenchmarkSendUDP(b *testing.B) { benchmarkSend(b, loopback()) }

func loopback() setup {
	r := rand.Uint32()
	at := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{127, byte(r>>8)&0x7f + 64, byte(r), last}) }
	return setup{network: link.UDP(link.UDPOptions{}), addrs: [2]netip.Addr{at(1), at(2)}}
}

// BenchmarkStreamUDP sends writes of 64 KB, 32 of them in flight, through the host's loopback interface.
func BenchmarkStreamUDP(b *testing.B) { benchmarkStream(b, loopback()) }

// BenchmarkStreamShortcut sends writes of 64 KB, 32 of them in flight, between two devices of a Fabric.
func BenchmarkStreamShortcut(b *testing.B) { benchmarkStream(b, setup{shortcut: true}) }

func benchmarkStream(b *testing.B, s setup) {
	const size, depth = 64 << 10, 32
	p := newPingPong(b, s, ib.WRRDMAWrite, size)
	b.SetBytes(size)
	posted, done := 0, 0
	for b.Loop() {
		for posted-done >= depth {
			n, _ := p.b.a.cq.Poll(p.wc)
			if done += n; n == 0 {
				runtime.Gosched()
			} else if p.wc[0].Status != ib.WCSuccess {
				b.Fatal(p.wc[0].Status)
			}
		}
		if _, err := qpOf(p.b.a.qp).PostSend(p.sendWR); err != nil {
			b.Fatal(err)
		}
		posted++
	}
	for done < posted {
		n, _ := p.b.a.cq.Poll(p.wc)
		done += n
	}
	stats := p.b.a.dev.Stats()
	b.ReportMetric(float64(stats["completer_retry_err"]), "retries")
}

func benchmarkSend(b *testing.B, s setup) {
	for _, size := range []int{64, 4 << 10, 64 << 10, 1 << 20} {
		for op, name := range map[ib.WROpcode]string{ib.WRSend: "send", ib.WRRDMAWrite: "write", ib.WRRDMARead: "read"} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				p := newPingPong(b, s, op, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					p.one(b)
				}
			})
		}
	}
}

// TestDataPathAllocates tests that messages cost no allocation.
func TestDataPathAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes sync.Pool drop its buffers")
	}
	for _, op := range []ib.WROpcode{ib.WRSend, ib.WRRDMAWrite, ib.WRRDMARead} {
		for _, size := range []int{64, 100_000} {
			p := newPingPong(t, setup{shortcut: true}, op, size)
			for range 100 {
				p.one(t)
			}
			if n := testing.AllocsPerRun(500, func() { p.one(t) }); n != 0 {
				t.Errorf("opcode %d, %d bytes: %v allocations", op, size, n)
			}
		}
	}
}
