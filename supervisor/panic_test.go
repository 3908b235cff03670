package supervisor

import (
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/internal/testutil"
)

// TestNetlinkPanicClosesOnlySocket tests that a panic in a netlink request closes only the socket of the request.
func TestNetlinkPanicClosesOnlySocket(t *testing.T) {
	var calls atomic.Int32
	w := newFixture(t, func(c *SupervisorConfig) {
		c.pause = func(point string, _ uint32) {
			if point == "netlink" && calls.Add(1) == 1 {
				panic("a bad request")
			}
		}
	})
	user := quota.New(quota.Limits{}).User(1001)
	open := func() int {
		n, end, err := w.sup.newNetlinkSocket(user, netlinkOpener{uid: 1001}, false, 1)
		if err != nil {
			t.Fatal(err)
		}
		go n.serve()
		if err := unix.SetsockoptTimeval(end, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
			t.Fatal(err)
		}
		return end
	}
	first, second := open(), open()
	buf := make([]byte, 4096)
	unix.Write(first, make([]byte, 16))
	if n, err := unix.Read(first, buf); n != 0 || err != nil {
		t.Errorf("read of the socket with the panic: got %d bytes and error %v, want the end", n, err)
	}
	request := make([]byte, 16)
	request[0], request[4] = 16, 1 // struct nlmsghdr of an unknown kind
	request[6] = 5                 // NLM_F_REQUEST | NLM_F_ACK
	unix.Write(second, request)
	if n, err := unix.Read(second, buf); n <= 0 || err != nil {
		t.Errorf("read of another socket: got %d bytes and error %v, want an answer", n, err)
	}
	unix.Close(first)
	unix.Close(second)
	testutil.Eventually(t, "both sockets to end", func() bool { return user.Held(quota.Descriptors) == 0 })
	if l := w.logs.takeLines(); len(l) != 1 || !strings.Contains(l[0], "a bad request") {
		t.Errorf("log: got %q, want the panic", l)
	}
}

// TestPipeIsUpdatedAfterPanic tests that after a panic in the thread that updates the pipe of a connection manager's
// file, another thread updates the pipe.
func TestPipeIsUpdatedAfterPanic(t *testing.T) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	user := quota.New(quota.Limits{}).User(0)
	p := &cmPipe{end: os.NewFile(uintptr(ends[1]), "pipe"), fd: ends[1], user: chargePipe(t, user)}
	defer p.close()
	p.setter = func(int, bool) bool { panic("a bug") }
	p.setReady(true)
	testutil.Eventually(t, "the panic", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.busy == nil && !p.full && !p.edge
	})
	if n := user.Held(quota.Workers); n != 0 {
		t.Errorf("charged workers: got %d, want 0", n)
	}
	p.mu.Lock()
	p.setter = nil
	p.mu.Unlock()
	p.updatePipe()
	fds := []unix.PollFd{{Fd: int32(ends[0]), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, int(time.Second.Milliseconds())); n != 1 || err != nil {
		t.Errorf("poll of the pipe: got %d and error %v, want a byte", n, err)
	}
}
