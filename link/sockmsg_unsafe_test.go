package link

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestLayouts(t *testing.T) {
	if got := unsafe.Sizeof(mmsghdr{}); got != unix.SizeofMsghdr+8 {
		t.Errorf("mmsghdr has %d bytes", got)
	}
	if cmsgHdr != unix.SizeofCmsghdr || cmsgSpace != unix.CmsgSpace(4) || cmsgSpace != unix.CmsgSpace(2) {
		t.Errorf("cmsghdr has %d bytes and %d with a value; system has %d and %d", cmsgHdr, cmsgSpace, unix.SizeofCmsghdr, unix.CmsgSpace(4))
	}
	if recvControl < 3*cmsgSpace {
		t.Error("no room for the control messages")
	}
}

func TestSockaddr(t *testing.T) {
	for _, text := range []string{"10.1.2.3:4791", "[2001:db8::7]:4791", "[fe80::1]:50000"} {
		a := netip.MustParseAddrPort(text)
		sa, n := makeSockaddr(a, 7)
		s, ok := sa.source(n)
		if !ok || netip.AddrFrom16(s.addr).Unmap() != a.Addr() || s.port != a.Port() {
			t.Errorf("%v comes back as %v port %d (%v)", a, netip.AddrFrom16(s.addr), s.port, ok)
		}
		if _, ok := sa.source(n - 1); ok {
			t.Errorf("%v: a cut off address is taken", a)
		}
		if a.Addr().Is6() {
			raw := (*unix.RawSockaddrInet6)(unsafe.Pointer(&sa))
			if raw.Scope_id != 7 || raw.Addr != a.Addr().As16() || raw.Family != unix.AF_INET6 {
				t.Errorf("%v: system reads %+v", a, raw)
			}
		}
	}
	if _, ok := (&sockaddr{unix.AF_UNIX}).source(28); ok {
		t.Error("an address of another family is taken")
	}
}

func FuzzControls(f *testing.F) {
	var c controls
	c.add(unix.SOL_IP, unix.IP_TTL, 4, 63)
	c.add(unix.SOL_UDP, unix.UDP_GRO, 4, 1052)
	c.add(unix.SOL_IP, unix.IP_TOS, 2, 0xb8)
	if got := parseControls(c.buf[:c.n]); got != (received{size: 1052, tos: 0xb8, ttl: 63}) {
		f.Errorf("read %+v", got)
	}
	f.Add(c.buf[:c.n])
	f.Add(c.buf[:c.n-5])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		got := parseControls(b)
		if got.size < 0 {
			t.Fatalf("negative size %d", got.size)
		}
		// The parser of package unix agrees if it can parse the message.
		msgs, err := unix.ParseSocketControlMessage(b)
		if err != nil {
			return
		}
		want := received{ttl: defaultTTL}
		for _, m := range msgs {
			word := func() uint32 { return binary.NativeEndian.Uint32(m.Data) }
			switch h := m.Header; {
			case h.Level == unix.SOL_IP && h.Type == unix.IP_TOS && len(m.Data) >= 1:
				want.tos = m.Data[0]
			case len(m.Data) < 4:
			case h.Level == unix.SOL_UDP && h.Type == unix.UDP_GRO:
				want.size = max(0, int(int32(word())))
			case h.Level == unix.SOL_IP && h.Type == unix.IP_TTL, h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_HOPLIMIT:
				want.ttl = uint8(word())
			case h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_TCLASS:
				want.tos = uint8(word())
			}
		}
		if got != want {
			t.Fatalf("read %+v, the system's parser says %+v", got, want)
		}
	})
}
