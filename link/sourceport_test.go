package link

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/testutil"
)

// spy opens a plain socket instead of an endpoint. next returns the source port of the next packet.
func spy(t *testing.T, addr netip.Addr) (next func() (n int, port int)) {
	t.Helper()
	family := unix.AF_INET6
	if addr.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, socketAddress(addr, Port, 0))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	tv := unix.Timeval{Sec: 5}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		t.Fatal(err)
	}
	return func() (int, int) {
		t.Helper()
		n, from, err := unix.Recvfrom(fd, make([]byte, 1<<16), 0)
		if err != nil {
			t.Fatal(err)
		}
		if sa, ok := from.(*unix.SockaddrInet4); ok {
			return n, sa.Port
		}
		return n, from.(*unix.SockaddrInet6).Port
	}
}

// TestSourcePort: a train leaves from its source port, or from Port if another socket has the port.
func TestSourcePort(t *testing.T) {
	src, dst := loopback(), loopback()
	from := listen(t, NewFaults(UDP(UDPOptions{}), nil), src, receiverFunc(func(*Arrival) {}))
	next := spy(t, dst)
	send := func(port uint16, want int) {
		t.Helper()
		tr := makeTrain(dst, 1, 100, 100, 0)
		tr.SPort = port
		if err := from.Send(tr); err != nil {
			t.Fatal(err)
		}
		if _, got := next(); got != want {
			t.Errorf("a train for port %#x leaves from %#x, want %#x", port, got, want)
		}
	}
	taken, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(taken, socketAddress(src, 0xc777, 0))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(taken)
	for range 2 {
		send(0, Port)
		send(0xc001, 0xc001)
		send(0xffff, 0xffff)
		send(0xc777, Port)
	}
	if s := stats(t, from); s.SourcePortFallbacks != 1 {
		t.Errorf("%d fallbacks counted, want 1", s.SourcePortFallbacks)
	}
	ForgetPort(from, 0xc001)
	send(0xc001, 0xc001) // the port is no longer forgotten
	ForgetPort(from, 0xffff)
	testutil.Eventually(t, "a port that was forgotten later to be closed", func() bool { return portClosed(t, src, 0xffff) })
	if portClosed(t, src, 0xc001) {
		t.Error("a port that is used again was closed")
	}
	ForgetPort(from, 0xc001)
	ForgetPort(from, 0xc001)
	if portClosed(t, src, 0xc001) {
		t.Error("a port was closed while its packets may be on the way")
	}
	testutil.Eventually(t, "a port that was forgotten to be closed", func() bool { return portClosed(t, src, 0xc001) })
	send(0xc001, 0xc001) // opens the socket again
	send(0xffff, 0xffff)
	for i := range maxSourcePorts {
		send(uint16(0xd000+i), map[bool]int{true: 0xd000 + i, false: Port}[i < maxSourcePorts-2])
	}
}

// portClosed reports whether no socket is bound to a port of an address of this host.
func portClosed(t *testing.T, addr netip.Addr, port uint16) bool {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	return unix.Bind(fd, socketAddress(addr, port, 0)) == nil
}

// TestSourcePortReceived: the ICRC covers the source port of a received packet.
func TestSourcePortReceived(t *testing.T) {
	families(t, func(t *testing.T, src, dst netip.Addr) {
		c := newCollector()
		from, to := pair(t, UDP(UDPOptions{}), src, dst, c)
		var trains []*Train
		for i := range 20 {
			tr := makeTrain(dst, 10, 300, 200, uint32(10*i))
			tr.SPort = uint16(0xe000 + i%4)
			if err := from.Send(tr); err != nil {
				t.Fatal(err)
			}
			trains = append(trains, tr)
			c.wait(10 * (i + 1)) // only packets from one port are in order
		}
		checkPackets(t, c.wait(200), trains...)
		if s := stats(t, to); s.ICRCErrors != 0 {
			t.Errorf("%d ICRC errors", s.ICRCErrors)
		}
	})
}
