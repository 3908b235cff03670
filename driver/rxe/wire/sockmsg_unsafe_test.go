package wire

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
	if recvControl < cmsgSpace {
		t.Error("no room for a control message")
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

func FuzzSegmentSize(f *testing.F) {
	var c controls
	c.add(unix.SOL_IP, unix.IP_TTL, 4, 64)
	c.add(unix.SOL_UDP, unix.UDP_GRO, 4, 1052)
	if got := segmentSize(c.buf[:c.n]); got != 1052 {
		f.Errorf("size is %d, want 1052", got)
	}
	f.Add(c.buf[:c.n])
	f.Add(c.buf[:c.n-5])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		got := segmentSize(b)
		if got < 0 {
			t.Fatalf("negative size %d", got)
		}
		// The system's own parser agrees wherever it parses.
		msgs, err := unix.ParseSocketControlMessage(b)
		if err != nil {
			return
		}
		want := 0
		for _, m := range msgs {
			if m.Header.Level == unix.SOL_UDP && m.Header.Type == unix.UDP_GRO && len(m.Data) >= 4 {
				want = max(0, int(int32(binary.NativeEndian.Uint32(m.Data))))
				break
			}
		}
		if got != want {
			t.Fatalf("size %d, the system's parser says %d", got, want)
		}
	})
}
