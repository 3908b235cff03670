package remote_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/internal/testutil"
	"verbena/service/servicetest"
	"verbena/verbs"
	verbsservice "verbena/verbs/service"
)

// newChannel creates a completion channel, and returns it with the descriptor of its reading end.
func newChannel(t *testing.T, d *verbs.Device) (*verbs.Channel, int) {
	t.Helper()
	before := pipeReadEnds()
	ch, err := d.CreateChannel()
	must(t, err)
	fd := -1
	testutil.Eventually(t, "the program alone to have the reading end", func() bool {
		n := 0
		for pipe, fds := range pipeReadEnds() {
			if before[pipe] == nil {
				fd = fds[0]
				n += len(fds)
			}
		}
		return n == 1
	})
	return ch, fd
}

// pipeReadEnds returns the descriptors of the reading ends of this process's pipes, by inode.
func pipeReadEnds() map[string][]int {
	ends := map[string][]int{}
	list, _ := filepath.Glob("/proc/self/fd/*")
	for _, path := range list {
		what, _ := os.Readlink(path)
		fd, _ := strconv.Atoi(filepath.Base(path))
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err == nil && strings.HasPrefix(what, "pipe:") &&
			flags&unix.O_ACCMODE == unix.O_RDONLY {
			ends[what] = append(ends[what], fd)
		}
	}
	return ends
}

// lockPipe makes a thread hold the kernel's lock of a non-empty pipe until release. lockPipe calls splice(2) to a
// full socket, which holds the lock until the socket has room. A read(2) into memory that blocks access holds the
// lock in the same way.
func lockPipe(t *testing.T, fd int) (release func()) {
	t.Helper()
	var s [2]int
	s, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	for buf := make([]byte, 1<<10); ; {
		if err := unix.Sendto(s[0], buf, unix.MSG_DONTWAIT, nil); err != nil {
			break
		}
	}
	done := make(chan struct{})
	testutil.WaitBlocked(t, func() {
		defer close(done)
		_, _ = unix.Splice(fd, nil, s[0], nil, 4096, 0)
	})
	return func() {
		unix.Close(s[1])
		<-done
		unix.Close(s[0])
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connectedQPPair is a pair of connected queue pairs with a completion channel.
type connectedQPPair struct {
	t          *testing.T
	from, to   *verbs.QP
	sent, came *verbs.CQ
	mr         *verbs.MR
}

func connectPair(t *testing.T, d *verbs.Device, ch *verbs.Channel) (w connectedQPPair) {
	t.Helper()
	w.t = t
	pd, err := d.AllocPD()
	must(t, err)
	w.sent, err = d.CreateCQ(16, ch)
	must(t, err)
	w.came, err = d.CreateCQ(16, ch)
	must(t, err)
	w.mr, err = pd.Alloc(4096, verbs.LocalWrite)
	must(t, err)
	w.from, err = pd.CreateQP(verbs.QPInit{SendCQ: w.sent, RecvCQ: w.sent, SendWRs: 16, RecvWRs: 16, Inline: 64})
	must(t, err)
	w.to, err = pd.CreateQP(verbs.QPInit{SendCQ: w.came, RecvCQ: w.came, SendWRs: 16, RecvWRs: 16, Inline: 64})
	must(t, err)
	must(t, verbs.ConnectPair(w.from, w.to))
	return w
}

func (w connectedQPPair) sendMessage() {
	w.t.Helper()
	must(w.t, w.to.PostRecv(&verbs.RecvWR{Local: w.mr.SGE(0, 64)}))
	must(w.t, w.from.PostSend(&verbs.SendWR{Opcode: verbs.Send, Inline: make([]byte, 8)}))
}

// TestLockedPipesDoNotBlock makes programs hold the locks of their completion channels' pipes. A held lock blocks each
// write to the pipe. TestLockedPipesDoNotBlock checks that this does not delay other programs' completions or the reset
// of the device, and costs few threads.
func TestLockedPipesDoNotBlock(t *testing.T) {
	srv, loc := servicetest.Device(t, "127.91.13.2")
	s, err := verbsservice.At(loc.Socket)
	must(t, err)
	open := func() *verbs.Device {
		d, err := s.Open("")
		must(t, err)
		t.Cleanup(func() { d.Close() })
		return d
	}
	victim := connectPair(t, open(), nil)
	works := func() {
		t.Helper()
		victim.sendMessage()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := victim.came.Wait(ctx, make([]verbs.WC, 4)); err != nil {
			t.Fatalf("completion of another program: got %v, want one in 5 s", err)
		}
	}
	works()
	before := countThreads(t)

	d := open()
	var pairs []connectedQPPair
	for range 12 {
		ch, fd := newChannel(t, d)
		for range 5 {
			w := connectPair(t, d, ch)
			must(t, w.sent.Arm(false))
			must(t, w.came.Arm(false))
			pairs = append(pairs, w)
		}
		pairs[len(pairs)-1].sendMessage()
		pfd := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(pfd, 5000); n != 1 {
			t.Fatal("event on the completion channel: got none, want one", err)
		}
		release := lockPipe(t, fd)
		defer release()
	}
	for _, w := range pairs {
		w.sendMessage()
	}
	for range 20 {
		works()
	}
	if n := countThreads(t) - before - 12; n > 12 { // each splice has a thread in this process
		t.Errorf("blocked threads: got %d, want at most 12", n)
	}
	began := time.Now()
	must(t, srv.DevReset(ctl.DevReset{Name: "rxe0"}))
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("duration of DevReset: got %v, want at most 5 s", took)
	}
}
