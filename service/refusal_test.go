package service

import (
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/internal/testutil"
)

// listenOnSharedSocket returns a listener on a socket that all users may connect to.
func listenOnSharedSocket(t *testing.T) (*Listener, ctl.Location) {
	t.Helper()
	dir := t.TempDir()
	testutil.MakeSearchable(t, dir)
	loc := ctl.Location{Socket: filepath.Join(dir, "sock")}
	l, err := Listen(loc, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); l.CloseAndUnlock() })
	if err := os.Chmod(loc.Socket, 0o666); err != nil {
		t.Fatal(err)
	}
	return l, loc
}

// TestOnlyManagerSeesOthersDevices tests that users see their own open devices, and that managers see the open devices
// of all users.
func TestOnlyManagerSeesOthersDevices(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to act as several users")
	s, err := newService(Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.8.36"}}}})
	if err != nil {
		t.Fatal(err)
	}
	l, loc := listenOnSharedSocket(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		s.Close()
	}()
	dial := func(uid int) (c *ctl.Client) {
		t.Helper()
		testutil.RunAsUser(t, uid, func() {
			var err error
			if c, err = ctl.Dial(loc); err != nil {
				t.Error(err)
			}
		})
		if c == nil {
			t.FailNow()
		}
		return c
	}
	const owner, other = 65532, 65533
	_, device, err := dial(owner).Open("rxe0")
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	for uid, want := range map[int]int{owner: 1, other: 0, 0: 1} {
		c := dial(uid)
		for _, op := range []ctl.Op{ctl.OpResShow, ctl.OpDevShow} {
			r, err := c.Do(&ctl.Request{Op: op})
			if err != nil {
				t.Fatal(err)
			}
			got := len(r.Contexts)
			if op == ctl.OpDevShow {
				got = r.Devs[0].Contexts
			}
			if got != want {
				t.Errorf("%s of user %d: got %d contexts, want %d", op, uid, got, want)
			}
		}
		c.Close()
	}
}

// TestSpareDescriptorsAreForManagers tests that a user who is not a manager gets an error, and no other answer, when
// no descriptor is free.
func TestSpareDescriptorsAreForManagers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to act as another user")
	}
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.31"}})
	l, loc := listenOnSharedSocket(t)
	ask := func() (err error) {
		var c *ctl.Client
		if c, err = ctl.Dial(loc); err != nil {
			return err
		}
		defer c.Close()
		accepted := make(chan struct{})
		go func() { // this goroutine runs on a thread of the service's user
			defer close(accepted)
			s.acceptor.acceptWithReserve(l, syscall.EMFILE)
		}()
		<-accepted
		_, err = c.Do(&ctl.Request{Op: ctl.OpInfo})
		return err
	}
	if err := ask(); err != nil {
		t.Errorf("manager: got %v, want success", err)
	}
	var err error
	testutil.RunAsUser(t, 65533, func() { err = ask() })
	if !errors.Is(err, syscall.EMFILE) {
		t.Errorf("client of another user: got %v, want EMFILE", err)
	}
}

// TestLateHelpAnswerIsRefused tests that after a missing or malformed answer of a launcher, the service accepts no
// later answer, since it could belong to another request.
func TestLateHelpAnswerIsRefused(t *testing.T) {
	ends := testutil.NewUnixPair(t)
	l := &remoteHelper{c: ctl.Conn{UnixConn: ends[0]}}
	go func() {
		io.ReadFull(ends[1], make([]byte, 4))
		ends[1].Write(binary.LittleEndian.AppendUint32(nil, ctl.MaxHelpAnswer+1))
	}()
	if _, err := l.OpenMem(1); err == nil {
		t.Fatal("a malformed answer: got success, want an error")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := (ctl.Conn{UnixConn: ends[1]}).Send(&ctl.HelpAnswer{}, null); err != nil {
		t.Fatal(err)
	}
	if f, err := l.OpenMem(2); err == nil {
		t.Errorf("a late answer: got file %s, want an error", f.Name())
		f.Close()
	}
	if err := l.printNotice("text"); err == nil {
		t.Error("notice after a malformed answer: got success, want an error")
	}
	// The descriptor of the late answer is still unread in the socket.
	if f, err := (ctl.Conn{UnixConn: ends[0]}).Receive(new(ctl.HelpAnswer),
		ctl.MessageLimits{Size: ctl.MaxHelpAnswer}); err == nil && f != nil {
		f.Close()
	}
}

// TestIdleClientsAreDisconnected tests that the service disconnects clients that send no request or read no answers.
func TestIdleClientsAreDisconnected(t *testing.T) {
	t.Parallel()
	s, err := newService(Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.8.32"}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if testing.Short() {
		s.firstMessage, s.restOfMessage = time.Second, time.Second
	}
	least, most := s.firstMessage/2, s.firstMessage+s.restOfMessage+5*time.Second
	ends, silent := testutil.NewUnixPair(t), testutil.NewUnixPair(t)
	began := time.Now()
	s.acceptor.admitPeer(silent[0], peer{uid: 4242})
	ends[0].SetWriteBuffer(1)
	ends[1].SetReadBuffer(1)
	go s.serveAndClose(ctl.Conn{UnixConn: ends[0]}, peer{uid: 4242}, 0)
	ended := make(chan error, 1)
	go func() {
		ask := encodeMessage(t, &ctl.Request{Protocol: ctl.ProtocolVersion, Op: ctl.OpLinkShow})
		ends[1].SetWriteDeadline(began.Add(most))
		for {
			if _, err := ends[1].Write(ask); err != nil {
				ended <- err
				return
			}
		}
	}()
	silent[1].SetReadDeadline(began.Add(most))
	if n, err := silent[1].Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) &&
		!errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("client without a request: got %d bytes and error %v, want the end of the connection", n, err)
	} else if d := time.Since(began); d < least {
		t.Errorf("silent client: got a disconnection after %v, want at least %v", d, least)
	}
	if err := <-ended; !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("client that reads no answers: got %v, want the end of the connection", err)
	}
}

// TestReusedPIDNeedsSameUser tests that on Linux before 6.5 the process with the peer's process ID is accepted only
// if it belongs to the peer's user or to root.
func TestReusedPIDNeedsSameUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to act as another user")
	}
	child, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"},
		&os.ProcAttr{Sys: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65533, Gid: 65533}}})
	if err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Kill()
	for uid, ok := range map[int]bool{65533: true, 65532: false, 0: false} {
		fd, err := (peer{pid: child.Pid, uid: uid}).openPidfdByPID()
		if (err == nil) != ok || err != nil && !errors.Is(err, syscall.EPERM) {
			t.Errorf("process of the peer of user %d: got %v, want success: %v", uid, err, ok)
		}
		if err == nil {
			unix.Close(fd)
		}
	}
}

// TestHelpAnswerNeedsDescriptor tests that an answer without a descriptor is an error.
func TestHelpAnswerNeedsDescriptor(t *testing.T) {
	ends := testutil.NewUnixPair(t)
	go func(c *net.UnixConn) {
		var h ctl.HelpRequest
		if _, err := (ctl.Conn{UnixConn: c}).Receive(&h, ctl.MessageLimits{Size: ctl.MaxRequest}); err == nil {
			_ = ctl.Conn{UnixConn: c}.Send(&ctl.HelpAnswer{}, nil)
		}
	}(ends[1])
	if f, err := (&remoteHelper{c: ctl.Conn{UnixConn: ends[0]}}).OpenMem(1); err == nil ||
		!strings.Contains(err.Error(), "without a descriptor") {
		t.Errorf("launcher's answer without a descriptor: got %v, %v, want an error", f, err)
	}
}

// TestAcceptResumesAfterErrors tests that the service accepts clients again after accept(2) has failed for some time.
func TestAcceptResumesAfterErrors(t *testing.T) {
	var log testutil.Buffer
	s, err := newService(Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, loc := listenOnSharedSocket(t)
	l.SetDeadline(time.Unix(0, 1)) // each accept fails
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	testutil.Eventually(t, "an accept to fail", func() bool {
		return strings.Contains(log.String(), "accept failed")
	})
	l.SetDeadline(time.Time{})
	c, err := ctl.Dial(loc)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answered := make(chan error, 1)
	go func() {
		_, err := c.Do(&ctl.Request{Op: ctl.OpResShow})
		answered <- err
	}()
	select {
	case err = <-answered:
		if err != nil {
			t.Errorf("client after the failed accepts: got %v, want success", err)
		}
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	case err := <-served:
		t.Errorf("Serve: got a return with %v, want none before Stop", err)
	}
}
