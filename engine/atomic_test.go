package engine

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"verbena/ib"
	"verbena/link"
	"verbena/link/simnet"
)

// TestAtomicsTogether tests that fetch-and-adds of several queue pairs on one counter are executed exactly once each.
func TestAtomicsTogether(t *testing.T) {
	n := uint64(3)
	if raceEnabled {
		n = 1
	}
	for l := range numLosses {
		for seed := range n {
			bubble(t, func(t *testing.T) { atomicsTogether(t, wayWire, l, seed) })
			if l == lossNone {
				bubble(t, func(t *testing.T) { atomicsTogether(t, wayShortcut, l, seed) })
			}
		}
	}
}

const (
	counterPairs = 4
	counterAdds  = 60 // per queue pair
	counterAt    = 8
)

func atomicsTogether(t *testing.T, w way, l loss, seed uint64) {
	inner := simnet.New(simnet.Config{Latency: 3 * time.Microsecond, Bandwidth: 1 << 30, Rand: rand.NewPCG(seed, 2)})
	network := link.NewFaults(inner, rand.NewPCG(seed, 3))
	s := setup{shortcut: w != wayWire, network: network, addrs: [2]netip.Addr{addrA, addrB}, sigAll: true}
	b := newBenchIn(t, s)
	defer b.close()
	s.typ, s.cap = ib.QPTypeRC, ib.QPCap{MaxSendWR: 64, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}
	var qps [counterPairs]*ib.QP
	for i := range qps {
		from, to := b.a.newQP(s), b.b.newQP(s)
		defer func() {
			check(t, from.Destroy())
			check(t, to.Destroy())
		}()
		connectQPs(t, b.a.dev, from, b.b.dev, to, conn{
			mtu: ib.MTU256, psn: uint32(1<<24 - 20*(i+1)), rdAtomic: 1 + i, destRdAtomic: 1 + i, timeout: 9,
		})
		qps[i] = from
	}
	if l != lossNone {
		check(t, network.Add(l.rule()))
	}
	var wg sync.WaitGroup
	for i, qp := range qps {
		wg.Go(func() {
			for k := range counterAdds {
				id := i*counterAdds + k
				if _, err := qp.PostSend(ib.SendWR{
					ID: uint64(id), Opcode: ib.WRAtomicFetchAdd, SGList: b.a.sge(8*id, 8),
					RemoteAddr: b.b.addr + counterAt, RKey: b.b.mr.RKey(), CompareAdd: 1,
				}); err != nil {
					t.Error(err)
				}
				if k%7 == i {
					time.Sleep(time.Microsecond)
				}
			}
		})
	}
	wg.Wait()
	for _, wc := range b.a.poll(counterPairs * counterAdds) {
		if wc.Status != ib.WCSuccess {
			t.Fatalf("%v, losses %v: operation %d: %v", w, l, wc.ID, wc.Status)
		}
	}
	checkCounter(t, b, fmt.Sprintf("%v, losses %v, seed %d", w, l, seed))
}

// checkCounter checks that each addition has returned another value, and that the values of one queue pair ascend.
func checkCounter(t *testing.T, b *bench, name string) {
	const total = counterPairs * counterAdds
	var seen [total]bool
	for id := range total {
		v := binary.NativeEndian.Uint64(b.a.buf[8*id:])
		if v >= total || seen[v] {
			t.Fatalf("%s: operation %d: got %d again, or out of range", name, id, v)
		}
		seen[v] = true
		if id%counterAdds > 0 && v < binary.NativeEndian.Uint64(b.a.buf[8*(id-1):]) {
			t.Fatalf("%s: operation %d: got %d, less than the one before", name, id, v)
		}
	}
	if v := binary.NativeEndian.Uint64(b.b.buf[counterAt:]); v != total {
		t.Fatalf("%s: counter: got %d, want %d", name, v, total)
	}
}
