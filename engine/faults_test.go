package engine

import (
	"net/netip"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
)

// faulty returns a bench with devices that may use the shortcut, and the fault rules of both.
func faulty(t *testing.T) (*bench, *link.Faults) {
	f := link.NewFaults(simnet.New(simnet.Config{Latency: 5 * time.Microsecond}), nil)
	return newBenchIn(t, setup{shortcut: true, network: f, addrs: [2]netip.Addr{addrA, addrB}}), f
}

func (b *bench) rule(f *link.Faults, r link.Rule) {
	b.t.Helper()
	f.Clear()
	check(b.t, f.Add(r))
}

// TestFaultsEndShortcut tests that a rule turns the shortcut off, and that the end of the last rule turns it on.
func TestFaultsEndShortcut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b, f := faulty(t)
		defer b.close()
		b.connect(conn{})
		wired := func() uint64 {
			transfer(b, ib.WRSend, 100, 1)
			return b.a.dev.Endpoints()[0].(link.StatsReader).Stats().SentPackets
		}
		if n := wired(); n != 0 {
			t.Errorf("%d packets through the network without a rule", n)
		}
		b.rule(f, link.Rule{Drop: 1, Limit: 1})
		if wired(); f.List()[0].Dropped != 1 {
			t.Errorf("the rule says %+v", f.List()[0])
		}
		n := wired()
		f.Clear()
		if m := wired(); n == 0 || m != n {
			t.Errorf("through the network went %d packets with a rule, %d after it", n, m)
		}
	})
}

// TestFaultsRNR tests a rule that simulates missing receives. Messages succeed in the end or fail, depending on the
// requester's retry count. Messages without a receive are not affected.
func TestFaultsRNR(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b, f := faulty(t)
		defer b.close()
		b.connect(conn{rnrRetry: 7})
		b.rule(f, link.Rule{RNR: 1, QP: b.b.qp.Num(), Peer: addrA, Limit: 20})
		for _, op := range []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead} {
			transfer(b, op, 3000, 1)
		}
		if s := f.List()[0]; s.Seen != 0 {
			t.Errorf("without receives the rule says %+v", s)
		}
		for _, op := range []ib.WROpcode{ib.WRSend, ib.WRRDMAWriteWithImm} {
			transfer(b, op, 3000, 2)
		}
		if s := f.List()[0]; s.NotReady != 20 || b.b.dev.Stats()["send_rnr_err"] != 20 ||
			b.a.dev.Stats()["rcvd_rnr_err"] != 20 {
			t.Errorf("the rule says %+v, the devices %v and %v", s, b.a.dev.Stats(), b.b.dev.Stats())
		}
	})
	bubble(t, func(t *testing.T) {
		b, f := faulty(t)
		defer b.close()
		b.connect(conn{rnrRetry: 3})
		b.rule(f, link.Rule{RNR: 1})
		b.b.recv(1, 0, 100)
		b.a.send(ib.SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 100)})
		b.a.expect(ib.WC{ID: 2, Status: ib.WCRNRRetryExcErr})
		if s := f.List()[0]; s.NotReady != 4 {
			t.Errorf("the rule says %+v", s)
		}
	})
	bubble(t, func(t *testing.T) {
		f := link.NewFaults(simnet.New(simnet.Config{}), nil)
		b := newBenchIn(t, setup{typ: ib.QPTypeUC, network: f, addrs: [2]netip.Addr{addrA, addrB}})
		defer b.close()
		b.connect(conn{})
		b.rule(f, link.Rule{RNR: 1})
		transfer(b, ib.WRSend, 100, 1) // no NAK could be sent
	})
}

// TestFaultsStop tests that the two ends of a stopped device cannot reach one another.
func TestFaultsStop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b, f := faulty(t)
		defer b.close()
		b.connect(conn{timeout: 10, retry: 2})
		transfer(b, ib.WRSend, 100, 1)
		b.rule(f, link.Rule{Stop: true})
		b.b.recv(1, 0, 100)
		b.a.send(ib.SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 100)})
		b.a.expect(ib.WC{ID: 2, Status: ib.WCRetryExcErr})
		b.b.none()
		if s := f.List()[0]; s.Dropped != 3 {
			t.Errorf("the rule says %+v", s)
		}
	})
}

// TestLinkDownAtWorkRequest takes the link down before a chosen work request, by the shortcut and by packets. The
// earlier requests complete, and the chosen one runs out of retries.
func TestLinkDownAtWorkRequest(t *testing.T) {
	for _, shaped := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			const posts = 10
			for n := 1; n <= posts; n += 3 {
				b, f := faulty(t)
				b.connect(conn{timeout: 10, retry: 2})
				if shaped {
					check(t, f.Shape(link.Shape{Rate: 1e9, Delay: time.Millisecond}))
				}
				hits := 0
				hw := b.a.dev.Hardware()
				hw.BeforeWorkRequest(1, func() { t.Error("called where it was no more to be") })
				hw.BeforeWorkRequest(0, nil)
				if !hw.BeforeWorkRequest(uint64(n), func() { hits++; f.SetLink(false) }) {
					t.Fatal("refused")
				}
				for i := range posts {
					b.a.send(ib.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 8), RemoteAddr: b.b.addr,
						RKey: b.b.mr.RKey(), Flags: ib.SendSignaled})
					testutil.AdvanceTime(time.Second)
				}
				for i, wc := range b.a.poll(posts) {
					want := ib.WCSuccess
					if i == n-1 {
						want = ib.WCRetryExcErr
					} else if i >= n {
						want = ib.WCWRFlushErr
					}
					if wc.ID != uint64(i) || wc.Status != want {
						t.Errorf("down at %d: completion %d is %+v, want %v", n, i, wc, want)
					}
				}
				if hits != 1 {
					t.Errorf("down at %d: called %d times", n, hits)
				}
				b.close()
			}
		})
	}
}
