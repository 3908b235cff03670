package capture

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"verbena/roce"
)

// rxePackets returns valid IP packets that were sent by Linux's rxe.
func rxePackets(t testing.TB) [][]byte {
	t.Helper()
	f, err := os.Open("../roce/testdata/rxe-6.1.hex")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list [][]byte
	for s := bufio.NewScanner(f); s.Scan(); {
		if line := s.Text(); !strings.HasPrefix(line, "#") && line != "" {
			b, err := hex.DecodeString(line)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, b)
		}
	}
	if len(list) < 4 {
		t.Fatalf("known packets: got %d, want at least 4", len(list))
	}
	return list
}

func rxePacketOfVersion(t testing.TB, v byte) []byte {
	t.Helper()
	list := rxePackets(t)
	i := slices.IndexFunc(list, func(p []byte) bool { return p[0]>>4 == v })
	if i < 0 {
		t.Fatalf("known packets of IPv%d: got none, want one", v)
	}
	return list[i]
}

// corruptPacket returns p with its last payload bit before the ICRC flipped.
func corruptPacket(p []byte) []byte {
	p = bytes.Clone(p)
	p[len(p)-5] ^= 1
	return p
}

// modifiedCopy returns a copy of p, modified by f.
func modifiedCopy(p []byte, f func([]byte)) []byte {
	p = bytes.Clone(p)
	f(p)
	return p
}

func etherTypeOf(p []byte) uint16 {
	if p[0]>>4 == 6 {
		return 0x86dd
	}
	return 0x0800
}

// addLinkHeader returns an IP packet in a frame of a link type. Ethernet frames may have VLAN tags.
func addLinkHeader(l layers.LinkType, p []byte, tags ...uint16) []byte {
	var b []byte
	switch l {
	case layers.LinkTypeEthernet:
		b = make([]byte, 12)
		for _, t := range tags {
			b = binary.BigEndian.AppendUint16(b, t)
			b = append(b, 0, 5)
		}
		b = binary.BigEndian.AppendUint16(b, etherTypeOf(p))
	case layers.LinkTypeLinuxSLL:
		b = binary.BigEndian.AppendUint16(make([]byte, 14), etherTypeOf(p))
	case layers.LinkTypeLinuxSLL2:
		b = append(binary.BigEndian.AppendUint16(nil, etherTypeOf(p)), make([]byte, 18)...)
	}
	return append(b, p...)
}

// buildCaptureFile returns a capture file. The recorded length of each frame exceeds the captured length by cut bytes.
func buildCaptureFile(t testing.TB, ng bool, l layers.LinkType, cut int, frames ...[]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var write func(gopacket.CaptureInfo, []byte) error
	flush := func() error { return nil }
	if ng {
		w, err := pcapgo.NewNgWriter(&b, l)
		if err != nil {
			t.Fatal(err)
		}
		write, flush = w.WritePacket, w.Flush
	} else {
		w := pcapgo.NewWriter(&b)
		if err := w.WriteFileHeader(1<<16, l); err != nil {
			t.Fatal(err)
		}
		write = w.WritePacket
	}
	for _, f := range frames {
		if err := write(gopacket.CaptureInfo{CaptureLength: len(f), Length: len(f) + cut}, f); err != nil {
			t.Fatal(err)
		}
	}
	if err := flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const packetsPerBatch = 7

// newUnsegmentedBatch returns an unsegmented batch of packets of 200 bytes, of which the last has 40. If bad is not 0,
// the packet with that index is damaged, or the last packet if there is none.
func newUnsegmentedBatch(version byte, bad int) []byte {
	return newUnsegmentedBatchOfSize(200, version, bad)
}

// newUnsegmentedBatchOfSize is like segmented, with another packet size.
func newUnsegmentedBatchOfSize(size int, version byte, bad int) []byte {
	data := make([]byte, (packetsPerBatch-1)*size+40)
	n := uint16(8 + len(data))
	src, dst := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	ip := []byte{0x45, 0, 0, 0, 0xff, 0xfe, 0x40, 0, 64, 17, 0, 0}
	binary.BigEndian.PutUint16(ip[2:], 20+n)
	id := uint16(0xfffe)
	if version == 6 {
		src, dst, id = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), 0
		ip = []byte{0x60, 0, 0, 0, 0, 0, 17, 64}
		binary.BigEndian.PutUint16(ip[4:], n)
	}
	ip = append(append(ip, src.AsSlice()...), dst.AsSlice()...)
	ip = append(ip, 0x12, 0xb7, 0x12, 0xb7, byte(n>>8), byte(n), 0, 0)
	flow := roce.NewFlow(netip.AddrPortFrom(src, 4791), netip.AddrPortFrom(dst, 4791))
	for i := range packetsPerBatch {
		p := data[i*size : min((i+1)*size, len(data))]
		for k := range p {
			p[k] = byte(i*31 + k)
		}
		flow.Seal(id+uint16(i), p)
		if bad > 0 && i == min(bad, packetsPerBatch-1) {
			p[20] ^= 8
		}
	}
	return append(ip, data...)
}

func TestVerifyCountsPackets(t *testing.T) {
	v4, v6 := rxePacketOfVersion(t, 4), rxePacketOfVersion(t, 6)
	const eth = layers.LinkTypeEthernet
	tcp := modifiedCopy(v4, func(p []byte) { p[9] = 6 })
	dns := modifiedCopy(v4, func(p []byte) { p[22], p[23] = 0, 53 })
	firstFrag := modifiedCopy(v4, func(p []byte) { p[6] = 0x20 })
	lastFrag := modifiedCopy(v4, func(p []byte) { p[6], p[7] = 0, 100 })
	arp := append(append(make([]byte, 12), 8, 6), make([]byte, 28)...)
	for _, test := range []struct {
		name   string
		link   layers.LinkType
		cut    int
		frames [][]byte
		want   Verification
	}{
		{"Ethernet", eth, 0, [][]byte{addLinkHeader(eth, v4), addLinkHeader(eth, v6)}, Verification{Good: 2}},
		{"Ethernet with a VLAN tag", eth, 0, [][]byte{addLinkHeader(eth, v4, 0x8100), addLinkHeader(eth, v6, 0x8100)},
			Verification{Good: 2}},
		{"Ethernet with two VLAN tags", eth, 0, [][]byte{addLinkHeader(eth, v4, 0x88a8, 0x8100)}, Verification{Good: 1}},
		{"Ethernet with padding", eth, 0, [][]byte{append(addLinkHeader(eth, v4), 0, 0, 0, 0, 0)}, Verification{Good: 1}},
		{"raw", layers.LinkTypeRaw, 0, [][]byte{v4, v6}, Verification{Good: 2}},
		{"raw IPv4", layers.LinkTypeIPv4, 0, [][]byte{v4}, Verification{Good: 1}},
		{"raw IPv6", layers.LinkTypeIPv6, 0, [][]byte{v6}, Verification{Good: 1}},
		{"raw of BSD", 12, 0, [][]byte{v4}, Verification{Good: 1}},
		{"cooked", layers.LinkTypeLinuxSLL, 0, [][]byte{addLinkHeader(113, v4), addLinkHeader(113, v6)},
			Verification{Good: 2}},
		{"cooked 2", layers.LinkTypeLinuxSLL2, 0, [][]byte{addLinkHeader(276, v4), addLinkHeader(276, v6)},
			Verification{Good: 2}},
		{"all known", layers.LinkTypeRaw, 0, rxePackets(t), Verification{Good: len(rxePackets(t))}},
		{
			"bad ones", layers.LinkTypeRaw, 0, [][]byte{v4, corruptPacket(v4), v6, corruptPacket(v6)},
			Verification{Good: 2, Bad: 2, BadFrames: []int{2, 4}},
		},
		{
			"many bad packets", layers.LinkTypeRaw, 0, slices.Repeat([][]byte{corruptPacket(v4)}, 12),
			Verification{Bad: 12, BadFrames: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		},
		{"not RoCEv2", layers.LinkTypeRaw, 0, [][]byte{tcp, dns, {}, {0x45}, v4[:27]}, Verification{}},
		{"not IP", eth, 0, [][]byte{arp, {}, arp[:13]}, Verification{}},
		{"cut short by the capture", layers.LinkTypeRaw, 10, [][]byte{v4[:len(v4)-10], v6[:len(v6)-10]},
			Verification{Unchecked: 2}},
		{"cut after the packet", layers.LinkTypeRaw, 10, [][]byte{v4}, Verification{Good: 1}},
		{"shorter than the length in its IP header", layers.LinkTypeRaw, 0, [][]byte{v4[:len(v4)-10]},
			Verification{Bad: 1, BadFrames: []int{1}}},
		{"fragments", layers.LinkTypeRaw, 0, [][]byte{firstFrag, lastFrag}, Verification{Unchecked: 1}},
		{"before segmentation", layers.LinkTypeRaw, 0, [][]byte{newUnsegmentedBatch(4, 0), v4, newUnsegmentedBatch(6, 0)},
			Verification{Good: 2*packetsPerBatch + 1}},
		{
			"before segmentation, with bad packets", layers.LinkTypeRaw, 0,
			[][]byte{newUnsegmentedBatch(4, 1), newUnsegmentedBatch(6, 2), newUnsegmentedBatch(4, packetsPerBatch)},
			Verification{Good: 3 * (packetsPerBatch - 1), Bad: 3, BadFrames: []int{1, 2, 3}},
		},
		{"before segmentation, cut", layers.LinkTypeRaw, 50, [][]byte{newUnsegmentedBatch(4, 0)[:900]},
			Verification{Unchecked: 1}},
		{"empty", eth, 0, nil, Verification{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, ng := range []bool{false, true} {
				b := buildCaptureFile(t, ng, test.link, test.cut, test.frames...)
				var zipped bytes.Buffer
				z := gzip.NewWriter(&zipped)
				z.Write(b)
				z.Close()
				for form, b := range map[string][]byte{"plain": b, "gzip": zipped.Bytes()} {
					got, err := Verify(bytes.NewReader(b))
					if err != nil {
						t.Fatalf("pcapng %v, %s: got %v, want success", ng, form, err)
					}
					if got.Good != test.want.Good || got.Bad != test.want.Bad || got.Unchecked != test.want.Unchecked ||
						!slices.Equal(got.BadFrames, test.want.BadFrames) {
						t.Errorf("pcapng %v, %s: got %+v, want %+v", ng, form, got, test.want)
					}
				}
			}
		})
	}
}

// TestVerifyAcceptsMixedLinkTypes checks a pcapng file with interfaces of several link types.
func TestVerifyAcceptsMixedLinkTypes(t *testing.T) {
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriter(&b, layers.LinkTypeEthernet)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := w.AddInterface(pcapgo.NgInterface{LinkType: layers.LinkTypeRaw})
	if err != nil {
		t.Fatal(err)
	}
	v4, v6 := rxePacketOfVersion(t, 4), rxePacketOfVersion(t, 6)
	for _, x := range []struct {
		on    int
		frame []byte
	}{{0, addLinkHeader(layers.LinkTypeEthernet, v4)}, {raw, v6}, {raw, corruptPacket(v4)}, {0,
		addLinkHeader(layers.LinkTypeEthernet, v6)}} {
		ci := gopacket.CaptureInfo{CaptureLength: len(x.frame), Length: len(x.frame), InterfaceIndex: x.on}
		if err := w.WritePacket(ci, x.frame); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	got, err := Verify(&b)
	if err != nil || got.Good != 3 || got.Bad != 1 || !slices.Equal(got.BadFrames, []int{3}) {
		t.Errorf("Verify: got %+v and error %v, want 3 good packets and bad frame 3", got, err)
	}
}

// TestVerifyAcceptsTruncatedFile checks that a truncated file, such as a stopped program leaves, is valid up to the
// truncated frame.
func TestVerifyAcceptsTruncatedFile(t *testing.T) {
	v4 := rxePacketOfVersion(t, 4)
	for _, ng := range []bool{false, true} {
		b := buildCaptureFile(t, ng, layers.LinkTypeRaw, 0, v4, v4, v4)
		for _, n := range []int{1, len(v4) / 2, len(v4)} {
			got, err := Verify(bytes.NewReader(b[:len(b)-n]))
			if err != nil || got.Good != 2 || got.Bad != 0 {
				t.Errorf("pcapng %v, without the last %d bytes: got %+v and error %v, want 2 good packets", ng, n, got, err)
			}
		}
	}
}

func TestVerifyRejectsInvalidFiles(t *testing.T) {
	for name, b := range map[string][]byte{
		"empty":     {},
		"text":      []byte("certainly not a capture of anything"),
		"header":    buildCaptureFile(t, false, layers.LinkTypeRaw, 0)[:20],
		"ng header": buildCaptureFile(t, true, layers.LinkTypeRaw, 0)[:20],
		"gzip":      {0x1f, 0x8b, 0, 0, 0},
	} {
		if got, err := Verify(bytes.NewReader(b)); err == nil {
			t.Errorf("Verify of %s: got %+v, want an error", name, got)
		}
	}
	v4 := rxePacketOfVersion(t, 4)
	if _, err := Verify(bytes.NewReader(buildCaptureFile(t, false, layers.LinkTypePPP, 0, v4))); !errors.Is(err,
		errLinkType) {
		t.Errorf("Verify of link type PPP: got %v, want %v", err, errLinkType)
	}
}

func TestVerificationOKAndString(t *testing.T) {
	for _, test := range []struct {
		r    Verification
		ok   bool
		text string
	}{
		{Verification{}, false, "icrc good 0 bad 0"},
		{Verification{Good: 3}, true, "icrc good 3 bad 0"},
		{Verification{Good: 3, Bad: 1}, false, "icrc good 3 bad 1"},
		{Verification{Unchecked: 3}, false, "icrc good 0 bad 0"},
	} {
		if test.r.OK() != test.ok || test.r.String() != test.text {
			t.Errorf("%+v: got OK %v and text %q", test.r, test.r.OK(), test.r)
		}
	}
	sum := Verification{Good: 1, Bad: 2, Unchecked: 3}
	sum.Add(Verification{Good: 10, Bad: 20, Unchecked: 30})
	if sum.Good != 11 || sum.Bad != 22 || sum.Unchecked != 33 {
		t.Errorf("sum: got %+v, want 11, 22 and 33", sum)
	}
}

// TestVerifyLimitsSegmentSizes checks that Verify splits batches only into segments of the sizes of RoCEv2 packets.
func TestVerifyLimitsSegmentSizes(t *testing.T) {
	for size, want := range map[int]string{
		64: "icrc good 7 bad 0", 4096 + 48: "icrc good 7 bad 0", 4096 + 52: "icrc good 0 bad 1", 9000: "icrc good 0 bad 1",
	} {
		for _, version := range []byte{4, 6} {
			p := newUnsegmentedBatchOfSize(size, version, 0)
			res, err := Verify(bytes.NewReader(buildCaptureFile(t, false, layers.LinkTypeRaw, 0, p)))
			if err != nil || res.String() != want {
				t.Errorf("packets of %d bytes over IPv%d: got %v, %v, want %s", size, version, res, err, want)
			}
		}
	}
}

// BenchmarkVerifyUnsplittableBatches verifies packets of 64 KiB that are not a batch of any segment size.
func BenchmarkVerifyUnsplittableBatches(b *testing.B) {
	p := newUnsegmentedBatchOfSize(9000, 4, 0)
	p[60] ^= 1 // damages the first packet
	f := buildCaptureFile(b, false, layers.LinkTypeRaw, 0, p)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		if res, err := Verify(bytes.NewReader(f)); err != nil || res.Bad != 1 {
			b.Fatalf("got %v, %v, want one bad packet", res, err)
		}
	}
}

func FuzzVerify(f *testing.F) {
	v4, v6 := rxePacketOfVersion(f, 4), rxePacketOfVersion(f, 6)
	f.Add(buildCaptureFile(f, false, layers.LinkTypeRaw, 0, v4, v6))
	f.Add(buildCaptureFile(f, true, layers.LinkTypeEthernet, 3, addLinkHeader(layers.LinkTypeEthernet, v4, 0x8100),
		addLinkHeader(layers.LinkTypeEthernet, v6)))
	f.Add(buildCaptureFile(f, true, layers.LinkTypeLinuxSLL2, 0, addLinkHeader(276, v4)))
	f.Fuzz(func(t *testing.T, b []byte) {
		res, err := Verify(bytes.NewReader(b))
		if res.Good < 0 || res.Bad < len(res.BadFrames) || len(res.BadFrames) > maxBadFrames {
			t.Errorf("Verify: got %+v and error %v, want consistent counts", res, err)
		}
	})
}
