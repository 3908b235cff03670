package service

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"verbena/internal/ctl"
	"verbena/internal/quota"
	"verbena/internal/testutil"
)

// TestClientReplacesOtherVersion tests that a client replaces a service of another protocol version if that service
// yields. If the service does not yield, the client receives the refusal.
func TestClientReplacesOtherVersion(t *testing.T) {
	for name, yields := range map[string]bool{"idle": true, "in use": false} {
		t.Run(name, func(t *testing.T) {
			loc := ctl.Location{Socket: filepath.Join(t.TempDir(), "socket")}
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: loc.Socket, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				nc, err := l.AcceptUnix()
				if err != nil {
					return
				}
				defer nc.Close()
				c := ctl.Conn{UnixConn: nc}
				for {
					var r ctl.Request
					if _, err := c.Receive(&r, ctl.MessageLimits{Size: ctl.MaxRequest}); err != nil {
						return
					}
					a := ctl.ErrorResponse(r.NewVersionError()).WithBuild()
					if r.Op == ctl.OpYield {
						if a = ctl.ErrorResponse(syscall.EBUSY); yields {
							a = &ctl.Response{}
						}
					}
					if c.Send(a, nil) != nil || r.Op == ctl.OpYield && yields {
						return
					}
				}
			}()
			c, err := dialSameVersion(loc)
			if want := map[bool]error{true: ctl.ErrNotRunning, false: syscall.EPROTO}[yields]; c != nil ||
				!errors.Is(err, want) {
				t.Errorf("dialSameVersion: got %v, %v, want %v", c, err, want)
			}
		})
	}
	if _, err := dialSameVersion(ctl.Location{Socket: filepath.Join(os.TempDir(),
		"no-such-socket-of-verbena")}); !errors.Is(err,
		ctl.ErrNotRunning) {
		t.Errorf("dialSameVersion without a service: got %v, want ErrNotRunning", err)
	}
}

// TestDaemonLeavesOtherUsersService tests that StartDaemon starts no service at the location of another user's service,
// and does not ask that service to yield.
func TestDaemonLeavesOtherUsersService(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to act as another user")
	dir := t.TempDir()
	testutil.MakeSearchable(t, dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	uid := 65533
	loc := ctl.Location{Socket: filepath.Join(dir, "sock"), ServiceUser: &uid}
	var l *net.UnixListener
	testutil.RunAsUser(t, uid, func() {
		var err error
		if l, err = net.ListenUnix("unix", &net.UnixAddr{Name: loc.Socket, Net: "unix"}); err != nil {
			t.Error(err)
		}
	})
	if l == nil {
		t.FailNow()
	}
	asked := make(chan int)
	go func() {
		n := 0
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				asked <- n
				return
			}
			b, _ := io.ReadAll(c)
			n += len(b)
			c.Close()
		}
	}()
	c, err := StartDaemon(loc, "/bin/false")
	const want = "user 65533's service is running already at "
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Daemon: got %v, %v, want EADDRINUSE and %q", c, err, want)
	}
	l.Close()
	if n := <-asked; n != 0 {
		t.Errorf("bytes received by the service of another user: got %d, want none", n)
	}
}

// TestStartReturnsRefusalReason tests that Start returns the reason of the refusal to a user with too many connections.
func TestStartReturnsRefusalReason(t *testing.T) {
	loc := ctl.Location{Socket: filepath.Join(t.TempDir(), "sock")}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: loc.Socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	why := &quota.LimitError{Kind: quota.Connections, User: quota.ID{UID: 7}, Asked: 1, Held: 256, Limit: 256}
	refused := make(chan error, 1)
	go func() {
		c, err := l.AcceptUnix()
		if err == nil {
			err = ctl.Conn{UnixConn: c}.Send(ctl.ErrorResponse(why), nil)
			c.CloseWrite()
			_, _ = io.Copy(io.Discard, c)
			c.Close()
		}
		refused <- err
	}()
	c, err := Start(loc, "/bin/false")
	if c != nil {
		c.Close()
		t.Error("Start: got a client, want an error")
	}
	if !errors.Is(err, syscall.EAGAIN) || !strings.Contains(err.Error(), "holds 256 connections") {
		t.Errorf("Start: got %v, want the reason of the refusal", err)
	}
	if err := <-refused; err != nil {
		t.Error(err)
	}
}
