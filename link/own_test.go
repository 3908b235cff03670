package link

import (
	"net/netip"
	"testing"

	"verbena/internal/testutil"
	"verbena/roce"
)

// TestForged: packets of foreign sockets from an address of this process are dropped and counted, whatever their port.
// Packets of the endpoint itself, from any of its ports, and packets of other hosts arrive.
func TestForged(t *testing.T) {
	src, dst, foreign := loopback(), loopback(), loopback()
	c := newCollector()
	network := UDP(UDPOptions{Taps: &Taps{}})
	from, to := pair(t, network, src, dst, c)
	send := func(sport uint16, psn uint32) *Train {
		t.Helper()
		tr := makeTrain(dst, 1, 100, 100, psn)
		tr.SPort = sport
		if err := from.Send(tr); err != nil {
			t.Fatal(err)
		}
		return tr
	}
	forge := func(addr netip.Addr, port uint16, packets uint32) (sent []*Train) {
		t.Helper()
		raw := rawPeer(t, addr, port)
		defer raw.Close()
		for psn := range packets {
			tr := makeTrain(dst, 1, 100, 100, psn)
			roce.NewFlow(netip.AddrPortFrom(addr, port), netip.AddrPortFrom(dst, Port)).Seal(0, tr.Buf)
			if _, err := raw.WriteToUDPAddrPort(tr.Buf, netip.AddrPortFrom(dst, Port)); err != nil {
				t.Fatal(err)
			}
			sent = append(sent, tr)
		}
		return sent
	}
	dropped := func(n uint64) {
		t.Helper()
		testutil.Eventually(t, "forged packets to be dropped", func() bool { return stats(t, to).Forged == n })
	}
	forge(src, 0xc100, 50)
	forge(dst, 0xc100, 20) // the address of the receiver
	dropped(70)
	good := []*Train{send(0, 1)}
	c.wait(1)
	good = append(good, send(0xc101, 2))
	c.wait(2)
	// A former port of the endpoint, which is free again, is not genuine.
	ForgetPort(from, 0xc101)
	good = append(good, send(0, 3))
	c.wait(3)
	testutil.Eventually(t, "the port to be closed", func() bool { return portClosed(t, src, 0xc101) })
	forge(src, 0xc101, 10)
	dropped(80)
	good = append(good, forge(foreign, 0xc101, 1)...)
	checkPackets(t, c.wait(4), good...)
	// After the close of an endpoint, any socket can use its address.
	if err := from.Close(); err != nil {
		t.Fatal(err)
	}
	good = append(good, forge(src, 0xc102, 1)...)
	checkPackets(t, c.wait(5), good...)
	if s := stats(t, to); s.Forged != 80 || s.ReceivedPackets != 5 {
		t.Errorf("counted %d forged and %d received packets, want 80 and 5", s.Forged, s.ReceivedPackets)
	}
}
