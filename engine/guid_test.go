package engine

import (
	"net"
	"net/netip"
	"testing"

	"verbena/netdev"
)

// TestNodeGUID tests that devices of the loopback interface have different GUIDs, and that others use their MAC
// address.
func TestNodeGUID(t *testing.T) {
	for _, c := range []struct {
		mac  net.HardwareAddr
		addr string
		want uint64
	}{
		{net.HardwareAddr{2, 1, 2, 3, 4, 5}, "10.0.0.1", 0x000102fffe030405},
		{nil, "127.0.0.1", 0x02007ffffe000001},
		{make(net.HardwareAddr, 6), "127.0.0.2", 0x02007ffffe000002},
		{nil, "::1", 0x020000fffe000001},
	} {
		got := nodeGUID(&Config{Netdev: netdev.Interface{MAC: c.mac}, Addrs: []netip.Addr{netip.MustParseAddr(c.addr)}})
		if got != c.want {
			t.Errorf("%v %s: got %016x, want %016x", c.mac, c.addr, got, c.want)
		}
	}
}
