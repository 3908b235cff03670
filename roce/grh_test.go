package roce_test

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"testing"

	"verbena/roce"
)

func gidFromText(s string) roce.GID { return roce.GIDFromAddr(netip.MustParseAddr(s)) }

func TestGRHEncodeDecode(t *testing.T) {
	for _, c := range []struct {
		name    string
		f       roce.GRHFields
		wire    string
		version int
	}{
		{
			"IPv6",
			roce.GRHFields{
				TrafficClass: 0xab, FlowLabel: 0x12345, HopLimit: 64, PacketLen: 300,
				SGID: gidFromText("fe80::5054:ff:fe12:3402"), DGID: gidFromText("fe80::5054:ff:fe12:3403"),
			},
			"6ab12345" + "0134" + "11" + "40" + "fe80000000000000505400fffe123402" + "fe80000000000000505400fffe123403",
			6,
		},
		{ // this IPv4 header is that of scapy's UC packet, except for the type of service
			"IPv4",
			roce.GRHFields{
				TrafficClass: 0x01, FlowLabel: 0x12345, HopLimit: 64, ID: 1144, PacketLen: 36,
				SGID: gidFromText("192.168.0.7"), DGID: gidFromText("192.168.0.7"),
			},
			"0000000000000000000000000000000000000000" + "4501004004784000" + "4011b4d5" + "c0a80007" + "c0a80007",
			4,
		},
		{
			"one end of IPv4 only",
			roce.GRHFields{HopLimit: 1, PacketLen: 16, SGID: gidFromText("::1"), DGID: gidFromText("10.0.0.1")},
			"60000000" + "0018" + "11" + "01" + "00000000000000000000000000000001" + "00000000000000000000ffff0a000001",
			6,
		},
	} {
		want, err := hex.DecodeString(c.wire)
		if err != nil || len(want) != roce.GRHLen {
			t.Fatal(err, len(want))
		}
		h := roce.GRH(bytes.Repeat([]byte{0xff}, roce.GRHLen))
		h.Encode(&c.f)
		if !bytes.Equal(h, want) {
			t.Errorf("%s:\n got %x\nwant %x", c.name, []byte(h), want)
		}
		label := c.f.FlowLabel
		if c.version == 4 {
			label = 0
		}
		if h.Version() != c.version || h.SGID() != c.f.SGID || h.DGID() != c.f.DGID ||
			h.TrafficClass() != c.f.TrafficClass || h.HopLimit() != c.f.HopLimit || h.FlowLabel() != label {
			t.Errorf("%s: got version %d, %v to %v, class %#x, hops %d, flow %#x, want the encoded values",
				c.name, h.Version(), h.SGID(), h.DGID(),
				h.TrafficClass(), h.HopLimit(), h.FlowLabel())
		}
	}
	if v := make(roce.GRH, roce.GRHLen).Version(); v != 0 {
		t.Errorf("version of a header of zeros: got %d, want 0", v)
	}
}
