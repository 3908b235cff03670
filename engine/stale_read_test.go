package engine

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
)

// TestStaleRead tests that a connection survives an RDMA READ request that the network has delayed. Meanwhile another
// copy of the request has been answered, and its memory has been invalidated or deregistered.
func TestStaleRead(t *testing.T) {
	for _, how := range []string{"SEND with invalidate", "deregistration"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				network := link.NewFaults(simnet.New(simnet.Config{Latency: 5 * time.Microsecond}), rand.NewPCG(1, 3))
				b := newBenchIn(t, setup{network: network, addrs: [2]netip.Addr{addrA, addrB}, sigAll: true})
				defer b.close()
				b.connect(conn{timeout: 8})
				m := b.b.regMR(nil, bindable)
				key, op := m.RKey(), ib.WRSend
				if how == "SEND with invalidate" {
					key, op = b.b.bind(b.b.allocMW(nil, ib.MWType2), m, 0, 4096, ib.AccessRemoteRead), ib.WRSendWithInv
				}
				for i := range 3 {
					b.b.recv(uint64(10+i), 8000, 100)
				}
				check(t, network.Add(link.Rule{Peer: addrB, Reorder: 1, Behind: 3, Limit: 1, Hold: time.Second}))
				b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRRDMARead, SGList: b.a.sge(0, 8), RemoteAddr: b.b.addr, RKey: key})
				b.a.expect(ib.WC{ID: 1, Opcode: ib.WCRDMARead}) // repeated after a timeout
				b.a.send(ib.SendWR{ID: 2, Opcode: op, SGList: b.a.sge(100, 8), InvalidateRKey: key})
				b.a.expect(ib.WC{ID: 2, Opcode: ib.WCSend})
				if wc := b.b.poll(1)[0]; wc.Status != ib.WCSuccess {
					t.Fatalf("receive: %v", wc.Status)
				}
				if op == ib.WRSend { // the answer shows that the memory is no longer needed
					check(t, m.Dereg())
					b.b.mrs = nil
				}
				for i := range 2 {
					b.a.send(ib.SendWR{ID: uint64(3 + i), Opcode: ib.WRSend, SGList: b.a.sge(100, 8)})
					if wc := b.a.poll(1)[0]; wc.Status != ib.WCSuccess {
						t.Errorf("SEND %d after the stale READ: got %v, want success", i, wc.Status)
					}
					testutil.AdvanceTime(time.Millisecond)
				}
				if events := b.b.raised(); len(events) > 0 {
					t.Errorf("events at the peer: got %v, want none", events)
				}
			})
		})
	}
}
