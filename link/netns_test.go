package link

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/testutil"
	"verbena/roce"
)

// The tests in this file run in a separate network namespace. Its only interface is a TUN device. The test reads each
// IP packet of the kernel unchanged, and acts as the peer. No privilege is needed, but user namespaces and
// /dev/net/tun.

const inNetns = "VERBENA_TEST_NETNS"

// netns runs the rest of the test in a namespace, in a second process. It returns false in the first process.
func netns(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inNetns) == t.Name() {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=30s")
	cmd.Env = append(os.Environ(), inNetns+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil && cmd.ProcessState == nil:
		t.Skipf("no namespaces here: %v", err)
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP: "+t.Name())):
		t.Skipf("in a namespace:\n%s", out)
	}
	return false
}

// tun is the wire. Its host has the addresses 10.9.0.1, fd09::1 and fe80::9. The addresses in 10.9.0.0/24, fd09::/64
// and fe80::/64 are behind the wire.
type tun struct {
	t    *testing.T
	file *os.File
}

const tunMTU = 4300

func newTUN(t *testing.T) *tun {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no TUN device: %v", err)
	}
	ifr, err := unix.NewIfreq("tun0")
	if err != nil {
		t.Fatal(err)
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		t.Skipf("no TUN device: %v", err)
	}
	w := &tun{t, os.NewFile(uintptr(fd), "tun0")}
	t.Cleanup(func() { w.file.Close() })
	for _, line := range []string{
		"link set lo up",
		fmt.Sprintf("link set tun0 mtu %d up", tunMTU),
		"addr add 10.9.0.1/24 dev tun0",
		"addr add fd09::1/64 dev tun0 nodad",
		"addr add fe80::9/64 dev tun0 nodad",
	} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Skipf("ip %s: %v %s", line, err, out)
		}
	}
	// The kernel activates an IPv6 address with a delay.
	testutil.Eventually(t, "the IPv6 addresses to work", func() bool {
		out, err := exec.Command("ip", "-6", "route", "show", "table", "local").CombinedOutput()
		if err != nil {
			t.Skipf("ip route: %v %s", err, out)
		}
		return bytes.Contains(out, []byte("local fd09::1 ")) && bytes.Contains(out, []byte("local fe80::9 "))
	})
	return w
}

// packet is an IP packet with a UDP payload.
type packet struct {
	raw      []byte
	src, dst netip.AddrPort
	id       uint16
	df       bool
	tos, ttl uint8
	checksum uint16
	data     []byte
}

// read returns the next UDP packet of the host.
func (w *tun) read() packet {
	w.t.Helper()
	for {
		b := make([]byte, 1<<16)
		n, err := w.file.Read(b)
		if err != nil {
			w.t.Fatal(err)
		}
		b = b[:n]
		p := packet{raw: b}
		var src, dst netip.Addr
		switch {
		case b[0]>>4 == 4 && b[9] == unix.IPPROTO_UDP:
			p.tos, p.ttl, p.id, p.df = b[1], b[8], binary.BigEndian.Uint16(b[4:]), b[6]&0x40 != 0
			src, dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
			b = b[20:]
		case b[0]>>4 == 6 && b[6] == unix.IPPROTO_UDP:
			p.tos, p.ttl = b[0]<<4|b[1]>>4, b[7]
			src, dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
			b = b[40:]
		default:
			continue // neighbour discovery, for example
		}
		p.src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
		p.dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
		p.checksum, p.data = binary.BigEndian.Uint16(b[6:]), b[8:]
		return p
	}
}

// write sends data like Linux's rxe: with UDP checksum 0, and sealed for the identification.
func (w *tun) write(src, dst netip.AddrPort, id uint16, data []byte) {
	w.t.Helper()
	roce.NewFlow(src, dst).Seal(id, data)
	w.writeRaw(src, dst, id, data)
}

func (w *tun) writeRaw(src, dst netip.AddrPort, id uint16, data []byte) {
	w.t.Helper()
	n := 8 + len(data)
	var b []byte
	if src.Addr().Is4() {
		b = []byte{0x45, 0, byte((20 + n) >> 8), byte(20 + n), byte(id >> 8), byte(id), 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0}
	} else {
		b = []byte{0x60, 0, 0, 0, byte(n >> 8), byte(n), unix.IPPROTO_UDP, 64}
	}
	b = append(b, src.Addr().AsSlice()...)
	b = append(b, dst.Addr().AsSlice()...)
	if src.Addr().Is4() {
		var sum uint32
		for i := 0; i < 20; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		sum = sum>>16 + sum&0xffff
		binary.BigEndian.PutUint16(b[10:], ^uint16(sum+sum>>16))
	}
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = append(b, byte(n>>8), byte(n), 0, 0)
	b = append(b, data...)
	if _, err := w.file.Write(b); err != nil {
		w.t.Fatal(err)
	}
}

// TestWireSend: packets on the wire are correct RoCEv2. The TUN device does not segment, so the kernel segments.
func TestWireSend(t *testing.T) {
	if !netns(t) {
		return
	}
	w := newTUN(t)
	for _, ends := range [][2]string{
		{"10.9.0.1", "10.9.0.2"}, {"fd09::1", "fd09::2"}, {"fe80::9%tun0", "fe80::a%tun0"}, {"fe80::9%tun0", "fe80::a"},
		{"fd09::1", "fe80::a%tun0"},
	} {
		src, dst := netip.MustParseAddr(ends[0]), netip.MustParseAddr(ends[1])
		e := listen(t, UDP(UDPOptions{}), src, newCollector())
		if e.Addr() != src {
			t.Errorf("address is %v, want %v", e.Addr(), src)
		}
		for _, shape := range [][3]int{{1, 300, 300}, {15, 4124, 4124}, {15, 4124, 40}, {61, 1052, 16}, {64, 16, 16}, {2, 280, 280}} {
			tr := makeTrain(dst, shape[0], shape[1], shape[2], 0)
			tr.TOS, tr.TTL = uint8(shape[0]), uint8(shape[0]%3)*100
			if err := e.Send(tr); err != nil {
				t.Fatalf("%v to %v, %v: %v", src, dst, shape, err)
			}
			for i := range shape[0] {
				p := w.read()
				if ok, is := roce.CheckIP(p.raw); !ok || !is {
					t.Fatalf("%v to %v, %v, packet %d: ICRC wrong", src, dst, shape, i)
				}
				ttl := tr.TTL
				if ttl == 0 {
					ttl = 64
				}
				if p.src != netip.AddrPortFrom(src.WithZone(""), Port) || p.dst != netip.AddrPortFrom(dst.WithZone(""), Port) ||
					p.tos != tr.TOS || p.ttl != ttl || !bytes.Equal(p.data, tr.Packet(i)) {
					t.Fatalf("%v to %v, %v, packet %d: header or content wrong: %+v", src, dst, shape, i, p)
				}
				if src.Is4() && (p.id != uint16(i) || !p.df) {
					t.Fatalf("packet %d of a train: identification %d, don't fragment %v", i, p.id, p.df)
				}
			}
		}
		if s := stats(t, e); s.SentSingly != 0 || s.SentTrains != 6 {
			t.Errorf("%v: counted %+v", src, s)
		}

		// Too long for the link, as one packet and segmented. Afterwards the destination works as before.
		for n := 1; n <= 3; n += 2 {
			if err := e.Send(makeTrain(dst, n, tunMTU, tunMTU, 0)); err != ErrTooLong {
				t.Errorf("%v: %d packets of %d bytes on a link of MTU %d: %v", src, n, tunMTU, tunMTU, err)
			}
		}
		if s := stats(t, e); s.SendTooLong != 2 || s.SentTrains != 6 {
			t.Errorf("%v: counted %+v", src, s)
		}
		// Each raw packet has identification 0 and is unchanged.
		tr := makeTrain(dst, 3, 100, 100, 0)
		raw := e.(RawEndpoint)
		if err := raw.Seal(tr); err != nil {
			t.Fatal(err)
		}
		tr.Packet(1)[60] ^= 1
		if err := raw.SendRaw(tr); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			p := w.read()
			if ok, _ := roce.CheckIP(p.raw); ok != (i != 1) || p.id != 0 {
				t.Errorf("raw packet %d: ICRC right is %v, identification %d", i, ok, p.id)
			}
		}
		e.Close()
	}
}

func TestWireNoRoute(t *testing.T) {
	if !netns(t) {
		return
	}
	newTUN(t)
	four := listen(t, UDP(UDPOptions{}), netip.MustParseAddr("10.9.0.1"), newCollector())
	global := listen(t, UDP(UDPOptions{}), netip.MustParseAddr("fd09::1"), newCollector())
	local := listen(t, UDP(UDPOptions{}), netip.MustParseAddr("fe80::9%tun0"), newCollector())
	for _, test := range []struct {
		e   Endpoint
		dst string
	}{
		{four, "203.0.113.1"}, {global, "2001:db8::1"}, {local, "fe80::1%lo"}, {global, "fe80::1%eth7"}, {local, "10.9.0.2"},
	} {
		if err := test.e.Send(makeTrain(netip.MustParseAddr(test.dst), 2, 100, 100, 0)); err != ErrNoRoute {
			t.Errorf("from %v to %s: %v, want %v", test.e.Addr(), test.dst, err, ErrNoRoute)
		}
	}
}

// TestWireReceive: packets of a peer like Linux's rxe arrive. Such a peer has its own source ports, identifications
// that count up from any number, and no UDP checksums.
func TestWireReceive(t *testing.T) {
	if !netns(t) {
		return
	}
	w := newTUN(t)
	for _, ends := range [][2]string{
		{"10.9.0.1", "10.9.0.2"}, {"fd09::1", "fd09::2"}, {"fe80::9%tun0", "fe80::a%tun0"},
	} {
		here, there := netip.MustParseAddr(ends[0]), netip.MustParseAddr(ends[1])
		c := newCollector()
		e := listen(t, UDP(UDPOptions{}), here, c)
		tr := makeTrain(there, 1, 140, 140, 0)
		to := netip.AddrPortFrom(here.WithZone(""), Port)
		from := func(qp int) netip.AddrPort { return netip.AddrPortFrom(there.WithZone(""), uint16(0xc000+qp)) }
		id := uint16(65500)
		const n = 200
		for i := range n {
			w.write(from(i%7), to, id, tr.Buf)
			id++
			if i%10 == 9 {
				id += 50 // counted for other packets, or a clock tick
			}
			// There is no UDP checksum: only the ICRC detects the damage.
			tr.Packet(0)[100] ^= 0x10
			w.writeRaw(from(0), to, id, tr.Buf)
			tr.Packet(0)[100] ^= 0x10
			roce.BTH(tr.Buf).SetPSN(roce.PSN(i + 1))
		}
		for i, p := range c.wait(n) {
			if psn := roce.BTH(p).PSN(); psn != roce.PSN(i) {
				t.Fatalf("%v: packet %d arrived as the %d-th", here, psn, i)
			}
		}
		for _, src := range c.sources() {
			if src != there {
				t.Fatalf("came from %v, want %v", src, there)
			}
		}
		// The last damaged packet came after the last good packet.
		w.write(from(1), to, id, tr.Buf)
		c.wait(n + 1)
		if s := stats(t, e); s.ICRCErrors != n || s.ReceivedPackets != n+1 {
			t.Errorf("%v: counted %d ICRC errors and %d packets, want %d and %d", here, s.ICRCErrors, s.ReceivedPackets, n, n+1)
		}
		e.Close()
	}
	runtime.KeepAlive(w)
}
