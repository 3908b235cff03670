package rights

import (
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/leaktest"
	"verbena/internal/quota"
	"verbena/internal/testutil"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// newUserSocketPair makes two ends of a socket. The first one belongs to a user.
func newUserSocketPair(t *testing.T, kind int) (user int, own *os.File, raw syscall.RawConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fds[1], true); err != nil {
		t.Fatal(err)
	}
	own = os.NewFile(uintptr(fds[1]), "own")
	t.Cleanup(func() {
		unix.Close(fds[0])
		own.Close()
	})
	if raw, err = own.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	return fds[0], own, raw
}

// newLingeringSocket returns a descriptor with a close that takes a number of seconds, since its peer does not read.
// end ends the wait.
func newLingeringSocket(t *testing.T, seconds int32) (fd int, end func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	fd, err = unix.Dup(int(f.Fd()))
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	unix.SetNonblock(fd, true)
	for b := make([]byte, 1<<20); ; {
		if _, err := unix.Write(fd, b); err != nil {
			break
		}
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER,
		&unix.Linger{Onoff: 1, Linger: seconds}); err != nil {
		t.Fatal(err)
	}
	unix.SetNonblock(fd, false)
	return fd, func() { peer.Close() }
}

func sendFiles(t *testing.T, to int, text string, fds ...int) {
	t.Helper()
	if err := unix.Sendmsg(to, []byte(text), unix.UnixRights(fds...), nil, 0); err != nil {
		t.Fatal(err)
	}
}

// newPipeDescriptors returns n descriptors that are close-on-exec, and a function that reports whether all of them are
// closed.
func newPipeDescriptors(t *testing.T, n int) (fds []int, closed func() bool) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]) })
	for range n - 1 {
		fd, err := unix.FcntlInt(uintptr(p[1]), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	return append(fds, p[1]), func() bool {
		n, err := unix.Read(p[0], make([]byte, 1))
		return n == 0 && err == nil
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// TestReceiveReturnsRequested tests that Receive returns the requested descriptors, close-on-exec, and closes all
// others.
func TestReceiveReturnsRequested(t *testing.T) {
	for _, tt := range []struct{ sent, most, files, surplus int }{
		{0, 1, 0, 0}, {1, 1, 1, 0}, {1, 0, 0, 1}, {4, 2, 2, 2}, {maxDescriptors, 1, 1, maxDescriptors - 1},
	} {
		var queues Queues
		user, _, raw := newUserSocketPair(t, unix.SOCK_STREAM)
		var closed func() bool
		if tt.sent > 0 {
			var fds []int
			fds, closed = newPipeDescriptors(t, tt.sent)
			sendFiles(t, user, "x", fds...)
			closeAll(fds)
		} else if _, err := unix.Write(user, []byte("x")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 8)
		m, err := queues.QueueOf(nil).Receive(raw, b, tt.most)
		if err != nil || m.N != 1 || b[0] != 'x' || len(m.Files) != tt.files || m.Surplus != tt.surplus ||
			m.Control != (tt.sent > 0) {
			t.Fatalf("Receive %+v: got %+v and error %v, want one byte", tt, m, err)
		}
		for _, fd := range m.Files {
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("%+v: flags of descriptor %d: got %#x and error %v, want FD_CLOEXEC", tt, fd, flags, err)
			}
		}
		if closed != nil && len(m.Files) > 0 && closed() {
			t.Errorf("%+v: requested descriptors: got closed ones, want them open", tt)
		}
		closeAll(m.Files)
		if closed != nil && !closed() {
			t.Errorf("%+v: surplus descriptors: got an open one, want them closed", tt)
		}
	}
}

// TestReaderClosesDescriptors tests that Reader closes descriptors in the middle of a stream, and returns all bytes of
// the stream.
func TestReaderClosesDescriptors(t *testing.T) {
	var queues Queues
	user, _, raw := newUserSocketPair(t, unix.SOCK_STREAM)
	fds, closed := newPipeDescriptors(t, 3)
	unix.Write(user, []byte("ab"))
	sendFiles(t, user, "cd", fds...)
	closeAll(fds)
	unix.Write(user, []byte("ef"))
	unix.Shutdown(user, unix.SHUT_WR)
	got, err := io.ReadAll(queues.QueueOf(nil).Reader(raw))
	if err != nil || string(got) != "abcdef" {
		t.Errorf("stream: got %q and error %v, want abcdef", got, err)
	}
	if !closed() {
		t.Error("descriptors of the stream: got an open one, want them closed")
	}
}

func countThreads(t *testing.T) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestLingeringSocketsDoNotBlock tests that received sockets with SO_LINGER are closed at once, without blocking a
// thread.
func TestLingeringSocketsDoNotBlock(t *testing.T) {
	ledger := quota.New(quota.Limits{})
	var queues Queues
	sender := ledger.User(1)
	const senders = 40
	before := countThreads(t)
	var receivers sync.WaitGroup
	for range senders {
		user, _, raw := newUserSocketPair(t, unix.SOCK_STREAM)
		fd, end := newLingeringSocket(t, 8)
		defer end()
		sendFiles(t, user, "x", fd)
		unix.Close(fd)
		receivers.Go(func() {
			if m, err := queues.QueueOf(sender).Receive(raw, make([]byte, 1), 0); err != nil || m.Surplus != 1 {
				t.Errorf("Receive: got %+v and error %v, want 1 surplus descriptor", m, err)
			}
		})
	}
	began := time.Now()
	receivers.Wait()
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("duration of the close: got %v, want at most 5s", d)
	}
	if n := countThreads(t) - before; n > maxClosing+8 {
		t.Errorf("additional threads: got %d, want about %d", n, maxClosing)
	}
	if n := sender.Held(quota.Workers); n != 0 {
		t.Errorf("charged workers: got %d, want 0", n)
	}
}

// TestReceivedDescriptorsAreLimited tests that no more descriptors of a user reach the service while the service cannot
// close that user's earlier descriptors. Later messages stay in their sockets.
func TestReceivedDescriptorsAreLimited(t *testing.T) {
	var l quota.Limits
	l[quota.Workers].PerUser = 1
	user := quota.New(l).User(1)
	if err := user.Charge(quota.Workers, 1); err != nil {
		t.Fatal(err)
	}
	var queues Queues
	q := queues.QueueOf(user)
	var own []*os.File
	var received sync.WaitGroup
	var receive []func()
	for range maxReceiving + 1 {
		to, f, raw := newUserSocketPair(t, unix.SOCK_SEQPACKET)
		fds, _ := newPipeDescriptors(t, 1)
		sendFiles(t, to, "x", fds...)
		closeAll(fds)
		own = append(own, f)
		received.Add(1)
		receive = append(receive, func() {
			defer received.Done()
			if m, err := q.Receive(raw, make([]byte, 1), 0); err != nil || m.Surplus != 1 {
				t.Errorf("Receive: got %+v and error %v, want one surplus descriptor", m, err)
			}
		})
	}
	testutil.WaitBlocked(t, receive...)
	unread := func() (n int) {
		for _, f := range own {
			fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
			if ready, _ := unix.Poll(fds, 0); ready > 0 {
				n++
			}
		}
		return n
	}
	if n := unread(); n != 1 {
		t.Fatalf("unread messages: got %d, want 1", n)
	}
	user.Release(quota.Workers, 1)
	received.Wait()
	if n := unread(); n != 0 {
		t.Errorf("unread messages after the descriptors could be closed: got %d, want 0", n)
	}
}

// TestCloseEndsReceive tests that the close of the socket ends a Receive, including a Receive that waits for the
// close of descriptors.
func TestCloseEndsReceive(t *testing.T) {
	var queues Queues
	q := queues.QueueOf(nil)
	for range maxReceiving {
		q.beginReceiving()
	}
	_, own, raw := newUserSocketPair(t, unix.SOCK_SEQPACKET)
	result := make(chan error, 1)
	testutil.WaitBlocked(t, func() {
		_, err := q.Receive(raw, make([]byte, 1), 0)
		result <- err
	})
	own.Close()
	select {
	case err := <-result:
		if err == nil {
			t.Error("Receive from a closed socket: got a message, want an error")
		}
	case <-time.After(5 * time.Second):
		t.Error("Receive from a closed socket: got no return, want one")
	}
}

// TestRefuseDescriptorsFailsSender tests that a sender of a descriptor to a refusing socket gets EPERM, if the kernel
// supports the refusal.
func TestRefuseDescriptorsFailsSender(t *testing.T) {
	user, own, _ := newUserSocketPair(t, unix.SOCK_SEQPACKET)
	err := RefuseDescriptors(int(own.Fd()))
	if errors.Is(err, unix.ENOPROTOOPT) {
		t.Skip("needs Linux 6.16")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendmsg(user, []byte("x"), unix.UnixRights(0), nil, 0); err != unix.EPERM {
		t.Errorf("send of a descriptor: got %v, want EPERM", err)
	}
	if err := unix.Sendmsg(user, []byte("x"), nil, nil, 0); err != nil {
		t.Error(err)
	}
}

// TestReceiveReportsSender tests that Receive reports the sender of a message on a socket with SO_PASSCRED.
func TestReceiveReportsSender(t *testing.T) {
	var queues Queues
	user, own, raw := newUserSocketPair(t, unix.SOCK_SEQPACKET)
	if err := unix.SetsockoptInt(int(own.Fd()), unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		t.Fatal(err)
	}
	sendFiles(t, user, "x", 0)
	m, err := queues.QueueOf(nil).Receive(raw, make([]byte, 1), 0)
	if err != nil || m.Sender == nil || *m.Sender != (Sender{os.Getpid(), os.Getuid()}) || m.Surplus != 1 {
		t.Errorf("Receive: got %+v and error %v, want this process as the sender", m, err)
	}
}

// TestConcurrentClosesAreLimited tests that a limited number of closes of a user run at the same time, that each counts
// as a worker, and that a close waits if the user has no worker left.
func TestConcurrentClosesAreLimited(t *testing.T) {
	var l quota.Limits
	l[quota.Workers].PerUser = 3 * maxClosing
	ledger := quota.New(l)
	var queues Queues
	user := ledger.User(1)
	q := queues.QueueOf(user)
	if queues.QueueOf(user) != q || queues.QueueOf(ledger.User(2)) == q {
		t.Fatal("queues of two users: got one queue, want two")
	}
	var mu sync.Mutex
	now, most := 0, 0
	count := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		now += n
		most = max(most, now)
	}
	var all sync.WaitGroup
	begin := make(chan struct{})
	do := slices.Repeat([]func(){func() {
		defer all.Done()
		q.RunClose(func() {
			count(1)
			<-begin
			count(-1)
		})
	}}, 5*maxClosing)
	all.Add(len(do))
	testutil.WaitBlocked(t, do...)
	close(begin)
	all.Wait()
	if most != maxClosing || user.Held(quota.Workers) != 0 {
		t.Errorf("got %d closes at the same time and %d charged workers afterwards, want %d and 0", most,
			user.Held(quota.Workers),
			maxClosing)
	}
	if err := user.Charge(quota.Workers, 3*maxClosing); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.RunClose(func() {})
	}()
	select {
	case <-done:
		t.Error("Do without a worker: got a call, want none")
	case <-time.After(20 * time.Millisecond):
	}
	user.Release(quota.Workers, 1)
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("Do with a free worker: got no call, want one")
	}
}

// TestDatagramWithoutCredentialsHasNoSender tests that a datagram without credentials, or with other control data, has
// no sender.
func TestDatagramWithoutCredentialsHasNoSender(t *testing.T) {
	fds, closed := newPipeDescriptors(t, 1)
	for name, oob := range map[string][]byte{"none": nil, "cut": {1, 2, 3}, "descriptors": unix.UnixRights(fds[0])} {
		var m receivedMessage
		if err := m.parseControlData(oob); m.Sender != nil {
			t.Errorf("%s: got sender %+v and error %v, want no sender", name, m.Sender, err)
		}
	}
	var m receivedMessage
	if err := m.parseControlData(unix.UnixCredentials(&unix.Ucred{Pid: 17, Uid: 4242})); err != nil || m.Sender == nil ||
		*m.Sender != (Sender{17, 4242}) {
		t.Errorf("credentials: got sender %+v and error %v, want process 17", m.Sender, err)
	}
	closeAll(fds)
	closed()
}

// TestDrainAndCloseDoesNotBlock tests that DrainAndClose closes a socket with unread messages at once, even if
// descriptors in the messages have SO_LINGER.
func TestDrainAndCloseDoesNotBlock(t *testing.T) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
		ledger := quota.New(quota.Limits{})
		var queues Queues
		user, own, _ := newUserSocketPair(t, kind)
		fds, closed := newPipeDescriptors(t, 5)
		sendFiles(t, user, "x", fds...)
		closeAll(fds)
		for range 20 {
			fd, end := newLingeringSocket(t, 8)
			defer end()
			sendFiles(t, user, "y", fd)
			unix.Close(fd)
		}
		began := time.Now()
		queues.QueueOf(ledger.User(1)).DrainAndClose(own)
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("kind %d: duration of End: got %v, want at most 5s", kind, d)
		}
		if !closed() {
			t.Errorf("kind %d: descriptor after End: got an open one, want it closed", kind)
		}
		if err := unix.Sendmsg(user, []byte("z"), nil, nil, unix.MSG_NOSIGNAL); err != unix.EPIPE && err != unix.ECONNRESET {
			t.Errorf("kind %d: send after End: got %v, want EPIPE", kind, err)
		}
	}
}

// TestManyReceiversMakeProgress tests that many threads with pending messages make progress, although few messages are
// held at the same time.
func TestManyReceiversMakeProgress(t *testing.T) {
	for round := 0; round < testutil.FewerIfShort(4, 1) && !t.Failed(); round++ {
		receiveOnManySockets(t)
	}
}

func receiveOnManySockets(t *testing.T) {
	const sockets, messages = 400, 50
	q := (&Queues{}).QueueOf(nil)
	var wg sync.WaitGroup
	var users []int
	for range sockets {
		user, own, raw := newUserSocketPair(t, unix.SOCK_SEQPACKET)
		users = append(users, user)
		defer own.Close()
		wg.Go(func() {
			for n := 0; ; n++ {
				m, err := q.Receive(raw, make([]byte, 8), 0)
				if err != nil {
					t.Error(err)
				}
				if m.N == 0 {
					if n != messages {
						t.Errorf("received messages: got %d, want %d", n, messages)
					}
					return
				}
			}
		})
	}
	for n := range messages {
		for _, user := range users {
			if err := unix.Sendto(user, []byte{1}, 0, nil); err != nil {
				t.Fatal(err)
			}
			if n == messages-1 {
				unix.Shutdown(user, unix.SHUT_WR)
			}
		}
		time.Sleep(time.Millisecond)
	}
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(8 * time.Second):
		t.Fatal("receiving threads: got no progress, want some")
	}
}
