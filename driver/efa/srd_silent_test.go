package efa_test

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/link/simnet"
	abi "verbena/uapi/efa"
)

const silentFlows = 4

// newSilentFlows makes programs with an established flow each to b. sent returns the number of their packets. silence
// makes the network lose them.
func newSilentFlows(t *testing.T) (list []*program, ah []uint16, b *program, sent func() int, silence func(on bool)) {
	net := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
	b = newProgram(t, net, "10.0.0.99", ib.QPTypeSRD)
	var n atomic.Int32
	var lost atomic.Bool
	net.SetFilter(func(p *simnet.Packet) bool {
		if p.Dst != netip.MustParseAddr("10.0.0.99") {
			return true
		}
		n.Add(1)
		return !lost.Load()
	})
	for i := range silentFlows {
		addr := fmt.Sprintf("10.0.0.%d", 1+i)
		a := newProgram(t, net, addr, ib.QPTypeSRD)
		_, toB := a.newAH("10.0.0.99")
		b.newAH(addr)
		b.recv(0, 0, 100)
		a.send(0, toB, b.qp.Num(), 0, 3, nil)
		a.await(0, abi.IOCompStatusOK)
		b.poll()
		list, ah = append(list, a), append(ah, toB)
	}
	sent = func() int {
		synctest.Wait()
		return int(n.Load())
	}
	return list, ah, b, sent, lost.Store
}

// TestSRDProbesPeerWithoutReceives tests the number of packets that flows send while the peer has no receives: each
// packet once, and in a time t at most 10 + t/102.4 ms probes for each flow. The requests succeed soon after the peer
// has receives again.
func TestSRDProbesPeerWithoutReceives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const period = 3 * time.Second
		list, ah, b, sent, _ := newSilentFlows(t)
		before := sent()
		for i, a := range list {
			for id := range uint16(depth) {
				a.send(id, ah[i], b.qp.Num(), 0, 3, nil)
			}
		}
		time.Sleep(period)
		most := silentFlows * (depth + 10 + int(period/(102400*time.Microsecond)))
		if n := sent() - before; n > most {
			t.Errorf("packets in %v: got %d, want at most %d", period, n, most)
		}
		began := time.Now()
		for i := range silentFlows * depth {
			b.recv(uint16(i), 0, 100)
			b.poll()
		}
		for _, a := range list {
			for range depth {
				if c := a.poll(); c.Common.Status != abi.IOCompStatusOK {
					t.Errorf("SEND: got %+v, want success", c)
				}
			}
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("%d SENDs after the first receive: got %v, want at most 1 s", silentFlows*depth, d)
		}
	})
}

// TestSRDProbesSilentPeer tests the number of packets that flows send to a peer that does not answer. After those of
// the window, a flow sends in a time t at most 8 + t/512 ms probes. The requests end with the same status and after the
// same time as a request of one packet.
func TestSRDProbesSilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const period = 3 * time.Second
		list, ah, b, sent, silence := newSilentFlows(t)
		silence(true)
		began := time.Now()
		for i, a := range list {
			a.rdma(1, ah[i], b.qp.Num(), abi.IORDMAWrite, 0, 250<<10, b.mr.RKey(), b.addr, false)
		}
		time.Sleep(3 * time.Millisecond) // shorter than the first timeout
		window := sent()
		time.Sleep(period)
		if n, most := sent()-window, silentFlows*(8+int(period/(512*time.Millisecond))); n > most {
			t.Errorf("packets in %v after those of the window: got %d, want at most %d", period, n, most)
		}
		for _, a := range list {
			a.await(1, abi.IOCompStatusLocalErrorUnrespRemote)
		}
		if d := time.Since(began); d < 4*time.Second || d > 5*time.Second {
			t.Errorf("end of the requests: got it after %v, want 4 to 5 s", d)
		}
		silence(false)
		for i, a := range list {
			a.rdma(2, ah[i], b.qp.Num(), abi.IORDMAWrite, 0, 250<<10, b.mr.RKey(), b.addr, false)
			a.await(2, abi.IOCompStatusOK)
		}
	})
}

// TestSRDProbeRestoresWindow tests that a flow sends the rest of its window as soon as the peer answers the probe.
func TestSRDProbeRestoresWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list, ah, b, _, silence := newSilentFlows(t)
		silence(true)
		began := time.Now()
		for i, a := range list {
			a.rdma(1, ah[i], b.qp.Num(), abi.IORDMAWrite, 0, 250<<10, b.mr.RKey(), b.addr, false)
		}
		time.Sleep(3 * time.Millisecond)
		silence(false)
		for _, a := range list {
			a.await(1, abi.IOCompStatusOK)
		}
		if d := time.Since(began); d > 20*time.Millisecond {
			t.Errorf("WRITEs after the loss of a window: got %v, want at most 20 ms", d)
		}
	})
}
