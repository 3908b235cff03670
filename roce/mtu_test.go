package roce_test

import (
	"testing"

	"verbena/roce"
)

func TestMTUBytes(t *testing.T) {
	for m, want := range map[roce.MTU]int{
		0: 0, roce.MTU256: 256, roce.MTU512: 512, roce.MTU1024: 1024, roce.MTU2048: 2048, roce.MTU4096: 4096, 6: 0,
	} {
		if m.Bytes() != want || m.Valid() != (want != 0) {
			t.Errorf("MTU %d: got %d bytes and valid %t, want %d bytes", uint8(m), m.Bytes(), m.Valid(), want)
		}
	}
	if s := roce.MTU1024.String(); s != "1024" {
		t.Errorf("MTU1024 is %q", s)
	}
}

func TestMTUFromLink(t *testing.T) {
	for link, want := range map[int]roce.MTU{
		-1:    0,
		68:    0,
		335:   0,
		336:   roce.MTU256,
		576:   roce.MTU256, // the minimum that IPv4 guarantees
		592:   roce.MTU512,
		1103:  roce.MTU512,
		1104:  roce.MTU1024,
		1280:  roce.MTU1024, // the minimum of IPv6
		1500:  roce.MTU1024, // Ethernet
		2128:  roce.MTU2048,
		4175:  roce.MTU2048,
		4176:  roce.MTU4096,
		9000:  roce.MTU4096,
		65536: roce.MTU4096, // loopback
	} {
		if got := roce.MTUFromLink(link); got != want {
			t.Errorf("MTUFromLink(%d) = %v, want %v", link, got, want)
		}
	}
}

func TestMTUPackets(t *testing.T) {
	for _, c := range []struct {
		m    roce.MTU
		n    uint32
		want int
	}{
		{roce.MTU1024, 0, 1},
		{roce.MTU1024, 1, 1},
		{roce.MTU1024, 1024, 1},
		{roce.MTU1024, 1025, 2},
		{roce.MTU256, 1 << 31, 1 << 23},
		{roce.MTU256, 1<<32 - 1, 1 << 24},
		{roce.MTU4096, 1<<32 - 1, 1 << 20},
	} {
		if got := c.m.Packets(c.n); got != c.want {
			t.Errorf("%d bytes at MTU %v: got %d packets, want %d", c.n, c.m, got, c.want)
		}
	}
}
