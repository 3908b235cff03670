package roce_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"

	"verbena/roce"
)

// rxeFrames reads the IP packets that Linux's rdma_rxe has sent.
func rxeFrames(t testing.TB) [][]byte {
	t.Helper()
	f, err := os.Open("testdata/rxe-6.1.hex")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var frames [][]byte
	for s := bufio.NewScanner(f); s.Scan(); {
		if line := s.Text(); !strings.HasPrefix(line, "#") {
			frames = append(frames, decodeHex(t, line))
		}
	}
	if len(frames) != 17 {
		t.Fatalf("%d frames, want 17", len(frames))
	}
	return frames
}

func decodeHex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// scapyFrames returns the IP packets of scapy's test/contrib/roce.uts with a known
// ICRC: its UC packet and the CNP captured on a ConnectX-4 Lx.
func scapyFrames(t testing.TB) [][]byte {
	return [][]byte{
		decodeHex(t, "45010040 04784000 4011b4d5 c0a80007 c0a80007 c00012b7 002caca2"+
			"2460ffff 000000d3 00cf1710 4630818b e28935d9 0e9a9550 5401be88 5e500000 78f353f3"),
		decodeHex(t, "45c2003c 718c4000 40119161 0a001101 0a001201 000012b7 00280000"+
			"8100ffff 40000118 00000000 00000000 00000000 00000000 00000000 82fd002a"),
	}
}

// splitIPPacket divides an IP packet into the parts that a receiver on a UDP socket has, which are the flow and the UDP
// payload, and the identification, which it does not have.
func splitIPPacket(ip []byte) (f roce.Flow, id uint16, pkt []byte) {
	var src, dst netip.Addr
	if ip[0]>>4 == 4 {
		id = binary.BigEndian.Uint16(ip[4:])
		src, dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		ip = ip[20:]
	} else {
		src, dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		ip = ip[40:]
	}
	f = roce.NewFlow(netip.AddrPortFrom(src, binary.BigEndian.Uint16(ip)),
		netip.AddrPortFrom(dst, binary.BigEndian.Uint16(ip[2:])))
	return f, id, ip[8:]
}

func TestICRCOfKnownFrames(t *testing.T) {
	opcodes := map[roce.Opcode]bool{}
	for _, ip := range append(rxeFrames(t), scapyFrames(t)...) {
		f, id, pkt := splitIPPacket(ip)
		p, err := roce.ParsePacket(pkt)
		if err != nil {
			t.Errorf("%x: %v", ip, err)
			continue
		}
		opcodes[p.Opcode] = true
		if got := f.ICRC(id, pkt); got != p.ICRC() {
			t.Errorf("%v: ICRC %#x, want %#x", p.Opcode, got, p.ICRC())
		}
		for _, guess := range []uint16{id, 0, id - 1, ^id} {
			if got, ok := f.Verify(guess, pkt); !ok || got != id && ip[0]>>4 == 4 {
				t.Errorf("Verify of %v: got %t with identification %d from guess %d, want identification %d",
					p.Opcode, ok, got, guess, id)
			}
		}
		if ok, isRoCE := roce.CheckIP(ip); !ok || !isRoCE {
			t.Errorf("%v: CheckIP = %t, %t", p.Opcode, ok, isRoCE)
		}
	}
	for _, op := range []roce.Opcode{
		roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLast, roce.RCSendOnly, roce.UCSendOnly, roce.UDSendOnly,
		roce.RCRDMAWriteFirst, roce.RCRDMAReadRequest, roce.RCRDMAReadResponseLast, roce.RCAcknowledge,
		roce.RCFetchAdd, roce.RCAtomicAcknowledge, roce.CNP,
	} {
		if !opcodes[op] {
			t.Errorf("frames with %v: got none, want at least 1", op)
		}
	}
}

// buildIP builds an IP packet without package roce. buildIP writes each header field, and computes the ICRC over a
// masked copy of the headers.
func buildIP(src, dst netip.AddrPort, id uint16, pkt []byte) []byte {
	var ip []byte
	be := binary.BigEndian
	if src.Addr().Is4() {
		ip = append(ip, 0x45, 0)
		ip = be.AppendUint16(ip, uint16(28+len(pkt)))
		ip = be.AppendUint16(ip, id)
		ip = append(ip, 0x40, 0, 64, 17, 0, 0)
	} else {
		ip = append(ip, 0x60, 0, 0, 0)
		ip = be.AppendUint16(ip, uint16(8+len(pkt)))
		ip = append(ip, 17, 64)
	}
	ip = append(append(ip, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
	ip = be.AppendUint16(ip, src.Port())
	ip = be.AppendUint16(ip, dst.Port())
	ip = be.AppendUint16(ip, uint16(8+len(pkt)))
	ip = append(ip, 0, 0)
	ip = append(ip, pkt...)
	sealIP(ip)
	return ip
}

// sealIP computes the ICRC of an IP packet with a header of 20 or 40 bytes. The packet ends with the UDP datagram.
func sealIP(ip []byte) {
	udp, mask := 20, []int{1, 8, 10, 11}
	m := append([]byte(nil), ip...)
	if ip[0]>>4 == 6 {
		udp, mask = 40, []int{1, 2, 3, 7}
		m[0] |= 0xf
	}
	for _, i := range append(mask, udp+6, udp+7, udp+8+4) {
		m[i] = 0xff
	}
	end := udp + int(binary.BigEndian.Uint16(ip[udp+4:])) - 4
	m = append(bytes.Repeat([]byte{0xff}, 8), m[:end]...)
	binary.LittleEndian.PutUint32(ip[end:], crc32.ChecksumIEEE(m))
}

func randomAddr(rnd *rand.Rand, v6 bool) netip.AddrPort {
	var a [16]byte
	for i := range a {
		a[i] = byte(rnd.Uint32())
	}
	a[0] = 0x20
	addr := netip.AddrFrom16(a)
	if !v6 {
		addr = netip.AddrFrom4([4]byte(a[:]))
	}
	return netip.AddrPortFrom(addr, uint16(rnd.Uint32()))
}

func TestICRCCoversWholePacket(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	sizes := []int{16, 17, 18, 19, 20, 23, 24, 63, 64, 255, 256, 4112, 65507}
	for range 200 {
		sizes = append(sizes, 16+rnd.IntN(5000))
	}
	for _, n := range sizes {
		for _, v6 := range []bool{false, true} {
			src, dst, id := randomAddr(rnd, v6), randomAddr(rnd, v6), uint16(rnd.Uint32())
			dst = netip.AddrPortFrom(dst.Addr(), roce.UDPPort)
			pkt := make([]byte, n)
			for i := range pkt {
				pkt[i] = byte(rnd.Uint32())
			}
			f := roce.NewFlow(src, dst)
			f.Seal(id, pkt)
			ip := buildIP(src, dst, id, pkt)
			if want := ip[len(ip)-n:]; !bytes.Equal(pkt, want) {
				t.Fatalf("%v to %v, id %d, %d bytes: got ICRC %x, want %x", src, dst, id, n, pkt[n-4:], want[n-4:])
			}
			if ok, isRoCE := roce.CheckIP(ip); !ok || !isRoCE {
				t.Fatalf("%v to %v, %d bytes: CheckIP = %t, %t", src, dst, n, ok, isRoCE)
			}
			guess := uint16(rnd.Uint32())
			if got, ok := f.Verify(guess, pkt); !ok || !v6 && got != id {
				t.Fatalf("%v to %v, %d bytes: got verified %t and id %d from guess %d, want id %d", src, dst, n, ok, got, guess, id)
			}
		}
	}
}

func TestVerifyRecoversAnyIdentification(t *testing.T) {
	f := roce.NewFlow(netip.MustParseAddrPort("10.77.0.2:49458"), netip.MustParseAddrPort("10.77.0.3:4791"))
	pkt := make([]byte, 20)
	for id := range 1 << 16 {
		f.Seal(uint16(id), pkt)
		if got, ok := f.Verify(0x1234, pkt); !ok || got != uint16(id) {
			t.Fatalf("identification %d: solved %d, %t", id, got, ok)
		}
	}
}

// TestVerifyDetectsFlippedBit flips each bit of a packet. Verify must reject each packet, unless the bit is outside the
// ICRC.
func TestVerifyDetectsFlippedBit(t *testing.T) {
	for _, ip := range rxeFrames(t) {
		f, id, pkt := splitIPPacket(ip)
		if len(pkt) > 600 {
			continue
		}
		for i := range pkt {
			for bit := range 8 {
				pkt[i] ^= 1 << bit
				_, ok := f.Verify(id, pkt)
				if masked := i == 4; ok != masked {
					t.Errorf("Verify of %v with bit %d of byte %d flipped: got %t, want false inside the ICRC",
						roce.BTH(pkt).Opcode(), bit, i, ok)
				}
				if okIP, _ := roce.CheckIP(ip); ok != okIP {
					t.Errorf("%v with bit %d of byte %d flipped: got Verify %t and CheckIP %t, want equal results",
						roce.BTH(pkt).Opcode(), bit, i, ok, okIP)
				}
				pkt[i] ^= 1 << bit
			}
		}
	}
}

func TestVerifyRefusesInvalidPackets(t *testing.T) {
	v4 := roce.NewFlow(netip.MustParseAddrPort("10.0.0.1:49152"), netip.MustParseAddrPort("10.0.0.2:4791"))
	v6 := roce.NewFlow(netip.MustParseAddrPort("[fe80::1]:49152"), netip.MustParseAddrPort("[fe80::2]:4791"))
	for n := range 16 {
		if _, ok := v4.Verify(0, make([]byte, n)); ok {
			t.Errorf("accepts %d bytes", n)
		}
	}
	for _, c := range []struct {
		f   roce.Flow
		max int
	}{{v4, 65507}, {v6, 65527}} {
		if c.f.MaxPacket() != c.max {
			t.Errorf("largest packet: got %d bytes, want %d", c.f.MaxPacket(), c.max)
		}
		pkt := make([]byte, c.max)
		c.f.Seal(7, pkt)
		if _, ok := c.f.Verify(0, pkt); !ok {
			t.Errorf("refuses %d bytes", c.max)
		}
		if _, ok := c.f.Verify(0, make([]byte, c.max+1)); ok {
			t.Errorf("accepts %d bytes", c.max+1)
		}
	}

	src, dst := netip.MustParseAddrPort("10.0.0.1:49152"), netip.MustParseAddrPort("10.0.0.3:4791")
	if _, ok := v4.Verify(9, buildIP(src, dst, 9, make([]byte, 64))[28:]); ok {
		t.Error("Verify of a packet of another flow: got true, want false")
	}
}

func TestICRCPanicsOnImpossibleLength(t *testing.T) {
	f := roce.NewFlow(netip.MustParseAddrPort("10.0.0.1:49152"), netip.MustParseAddrPort("10.0.0.2:4791"))
	for _, n := range []int{4, 15, f.MaxPacket() + 1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d bytes: no panic", n)
				}
			}()
			f.Seal(0, make([]byte, n))
		}()
	}
}

// TestVerifyRecoversOnlyIdentification: Verify accepts any identification, but no other flags and no other
// fragment offset. CheckIP receives the header and rejects all of these packets.
func TestVerifyRecoversOnlyIdentification(t *testing.T) {
	src, dst := netip.MustParseAddrPort("10.0.0.1:49152"), netip.MustParseAddrPort("10.0.0.3:4791")
	f := roce.NewFlow(src, dst)
	for bit := range 32 {
		ip := buildIP(src, dst, 9, make([]byte, 64))
		ip[4+bit/8] ^= 1 << (bit % 8)
		sealIP(ip)
		if id, ok := f.Verify(0, ip[28:]); ok != (bit < 16) || ok && id != binary.BigEndian.Uint16(ip[4:]) {
			t.Errorf("Verify with header bytes %x: got %t with identification %d, want only identifications accepted",
				ip[4:8], ok, id)
		}
	}
	ip := buildIP(src, dst, 9, make([]byte, 64))
	ip[6] = 0
	sealIP(ip)
	if ok, isRoCE := roce.CheckIP(ip); !ok || !isRoCE {
		t.Errorf("CheckIP without DF = %t, %t", ok, isRoCE)
	}
}

func TestNewFlowNormalisesAddresses(t *testing.T) {
	a := roce.NewFlow(netip.MustParseAddrPort("10.0.0.1:49152"), netip.MustParseAddrPort("10.0.0.2:4791"))
	b := roce.NewFlow(
		netip.MustParseAddrPort("[::ffff:10.0.0.1]:49152"),
		netip.MustParseAddrPort("[::ffff:10.0.0.2]:4791"),
	)
	if a != b {
		t.Errorf("%+v and %+v", a, b)
	}
	c := roce.NewFlow(netip.MustParseAddrPort("[fe80::1%eth0]:49152"), netip.MustParseAddrPort("[fe80::2%eth0]:4791"))
	d := roce.NewFlow(netip.MustParseAddrPort("[fe80::1]:49152"), netip.MustParseAddrPort("[fe80::2]:4791"))
	if c != d {
		t.Errorf("%+v and %+v", c, d)
	}
}

func TestCheckIP(t *testing.T) {
	v4 := scapyFrames(t)[0]
	v6 := buildIP(
		netip.MustParseAddrPort("[fe80::1]:49152"),
		netip.MustParseAddrPort("[fe80::2]:4791"),
		0,
		make([]byte, 40),
	)
	edit := func(b []byte, change func(b []byte)) []byte {
		b = append([]byte(nil), b...)
		change(b)
		return b
	}
	// This IP packet continues for four bytes after the datagram.
	longer := edit(append(append([]byte(nil), v4...), 0, 0, 0, 0), func(b []byte) { b[3] += 4; sealIP(b) })
	for _, c := range []struct {
		name       string
		ip         []byte
		ok, isRoCE bool
	}{
		{"IPv4", v4, true, true},
		{"IP longer than UDP", longer, true, true},
		{"IP longer than UDP, cut short", longer[:len(longer)-1], false, true},
		{"IPv6", v6, true, true},
		{"with trailing bytes", append(append([]byte(nil), v4...), 0, 0, 0), true, true},
		{"other ToS, TTL and checksum", edit(v4, func(b []byte) { b[1], b[8], b[10], b[11], b[26] = 1, 2, 3, 4, 5 }), true,
			true},
		{"other class, flow label and hop limit", edit(v6,
			func(b []byte) { b[0], b[1], b[2], b[3], b[7] = 0x6f, 2, 3, 4, 5 }), true, true},
		{"other identification", edit(v4, func(b []byte) { b[5]++ }), false, true},
		{"other address", edit(v6, func(b []byte) { b[39]++ }), false, true},
		{"cut short", v4[:len(v4)-1], false, true},
		{"IPv6 cut short", v6[:len(v6)-1], false, true},
		{"UDP longer than IP", edit(v4, func(b []byte) { b[25] += 4 }), false, true},
		{"UDP without a BTH", edit(v4, func(b []byte) { b[25] = 8 + 15 }), false, true},
		{"another port", edit(v4, func(b []byte) { b[23]++ }), false, false},
		{"TCP", edit(v4, func(b []byte) { b[9] = 6 }), false, false},
		{"TCP over IPv6", edit(v6, func(b []byte) { b[6] = 6 }), false, false},
		{"first fragment", edit(v4, func(b []byte) { b[6] |= 0x20 }), false, false},
		{"later fragment", edit(v4, func(b []byte) { b[7] = 1 }), false, false},
		{"bad header length", edit(v4, func(b []byte) { b[0], b[18], b[19] = 0x44, 0x12, 0xb7 }), false, false},
		{"options beyond the end", edit(v4[:40], func(b []byte) { b[0] = 0x4f }), false, false},
		{"IPv5", edit(v4, func(b []byte) { b[0] = 0x55 }), false, false},
		{"nothing", nil, false, false},
	} {
		before := append([]byte(nil), c.ip...)
		if ok, isRoCE := roce.CheckIP(c.ip); ok != c.ok || isRoCE != c.isRoCE {
			t.Errorf("%s: %t, %t; want %t, %t", c.name, ok, isRoCE, c.ok, c.isRoCE)
		}
		if !bytes.Equal(before, c.ip) {
			t.Errorf("%s: packet after CheckIP: got it changed, want it unchanged", c.name)
		}
	}
}

func TestDataPathDoesNotAllocate(t *testing.T) {
	src, dst := netip.MustParseAddrPort("10.77.0.2:49458"), netip.MustParseAddrPort("10.77.0.3:4791")
	f4 := roce.NewFlow(src, dst)
	f6 := roce.NewFlow(netip.MustParseAddrPort("[fe80::1%lo]:49458"), netip.MustParseAddrPort("[fe80::2%lo]:4791"))
	ip := buildIP(src, dst, 99, make([]byte, 1056))
	buf := make([]byte, 1056)
	grh := make([]byte, roce.GRHLen)
	var sink int
	for name, fn := range map[string]func(){
		"NewFlow":       func() { sink += roce.NewFlow(src, dst).MaxPacket() },
		"Seal":          func() { f4.Seal(1, buf) },
		"Seal IPv6":     func() { f6.Seal(1, buf) },
		"Verify":        func() { f4.Verify(1, buf) },
		"Verify solves": func() { f4.Verify(0, ip[28:]) },
		"CheckIP":       func() { roce.CheckIP(ip) },
		"GRH":           func() { roce.GRH(grh).Encode(&roce.GRHFields{PacketLen: 20}) },
		"a packet there and back": func() {
			p := roce.NewPacket(buf, &roce.BTHFields{Opcode: roce.RCRDMAWriteOnly, PKey: 0xffff}, 1001)
			p.RETH().Encode(1, 2, 1001)
			f4.Seal(5, p.Data)
			q, err := roce.ParsePacket(p.Data)
			if id, ok := f4.Verify(0, q.Data); err != nil || !ok || id != 5 || q.RETH().DMALen() != 1001 {
				sink = -1 << 60
			}
		},
		"drops": func() {
			for n := range 20 {
				if _, err := roce.ParsePacket(buf[:n]); err == roce.DropTooShort {
					sink++
				}
			}
		},
	} {
		if n := testing.AllocsPerRun(100, fn); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if sink < 0 {
		t.Error("benchmark: got no packet back, want one")
	}
}

func FuzzVerify(f *testing.F) {
	for _, ip := range append(scapyFrames(f), rxeFrames(f)[0]) {
		_, id, pkt := splitIPPacket(ip)
		f.Add(pkt, uint32(0x0a000001), uint32(0x0a000002), uint16(0xc132), id, uint16(0), false, uint16(3))
		f.Add(pkt, uint32(0x0a000001), uint32(0x0a000002), uint16(0xc132), id, uint16(0), true, uint16(0))
	}
	f.Fuzz(func(t *testing.T, pkt []byte, src, dst uint32, port, id, guess uint16, v6 bool, damage uint16) {
		addr := func(v uint32) netip.Addr {
			if !v6 {
				return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, v)))
			}
			return netip.AddrFrom16(
				[16]byte{0: 0xfe, 1: 0x80, 12: byte(v >> 24), 13: byte(v >> 16), 14: byte(v >> 8), 15: byte(v)},
			)
		}
		from, to := netip.AddrPortFrom(addr(src), port), netip.AddrPortFrom(addr(dst), roce.UDPPort)
		flow := roce.NewFlow(from, to)
		if len(pkt) < roce.BTHLen+roce.ICRCLen || len(pkt) > flow.MaxPacket() {
			if _, ok := flow.Verify(guess, pkt); ok {
				t.Fatalf("accepts %d bytes", len(pkt))
			}
			return
		}
		pkt = append([]byte(nil), pkt...)

		// An accepted packet must have the ICRC for the returned identification.
		if got, ok := flow.Verify(guess, pkt); ok && flow.ICRC(got, pkt) != binary.LittleEndian.Uint32(pkt[len(pkt)-4:]) {
			t.Fatalf("identification of an accepted packet: got %d, want one that matches the ICRC", got)
		}

		flow.Seal(id, pkt)
		got, ok := flow.Verify(guess, pkt)
		if !ok || !v6 && got != id {
			t.Fatalf("verified %t, identification %d, want %d", ok, got, id)
		}
		if ip := buildIP(from, to, id, pkt); !bytes.Equal(ip[len(ip)-len(pkt):], pkt) {
			t.Fatalf("ICRC %x, want %x", pkt[len(pkt)-4:], ip[len(ip)-4:])
		}

		// If the identification is known, one damaged bit must always be found. (If it is unknown, the damage may be
		// equivalent to a different identification.)
		i := int(damage) / 8 % len(pkt)
		if i == 4 {
			return
		}
		pkt[i] ^= 1 << (damage % 8)
		if got, ok := flow.Verify(id, pkt); ok && (v6 || got == id) {
			t.Fatalf("Verify with bit %d of byte %d flipped: got true, want false", damage%8, i)
		}
	})
}

func FuzzCheckIP(f *testing.F) {
	for _, ip := range scapyFrames(f) {
		f.Add(ip)
	}
	f.Add(
		buildIP(netip.MustParseAddrPort("[fe80::1]:49152"), netip.MustParseAddrPort("[fe80::2]:4791"), 0, make([]byte, 24)),
	)
	f.Fuzz(func(t *testing.T, ip []byte) {
		ok, isRoCE := roce.CheckIP(ip)
		if ok && !isRoCE {
			t.Fatal("CheckIP: got a valid ICRC of a packet that is not RoCE")
		}
		// A receiver on a UDP socket must get the same result.
		if ok && (ip[0] == 0x45 && ip[6] == 0x40 && ip[7] == 0 &&
			int(binary.BigEndian.Uint16(ip[2:])) == 20+int(binary.BigEndian.Uint16(ip[24:])) ||
			ip[0]>>4 == 6 && bytes.Equal(ip[4:6], ip[44:46])) {
			flow, id, _ := splitIPPacket(ip)
			udp := ip[20:]
			if ip[0]>>4 == 6 {
				udp = ip[40:]
			}
			pkt := udp[8:binary.BigEndian.Uint16(udp[4:])]
			if got, ok := flow.Verify(id, pkt); !ok || ip[0]>>4 == 4 && got != id {
				t.Fatalf("Verify of a packet that CheckIP accepts: got %t, %d, want true with the same identification", ok, got)
			}
		}
	})
}
