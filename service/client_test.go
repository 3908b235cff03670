package service

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"verbena/internal/ctl"
)

// TestReplacesOtherVersion: a service of another version of the protocol makes way if it yields; else the client gets its refusal.
func TestReplacesOtherVersion(t *testing.T) {
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
					if _, err := c.Receive(&r, ctl.Limits{Size: ctl.MaxRequest}); err != nil {
						return
					}
					a := ctl.Failure(r.Refuse()).Named()
					if r.Op == ctl.OpYield {
						if a = ctl.Failure(syscall.EBUSY); yields {
							a = &ctl.Response{}
						}
					}
					if c.Send(a, nil) != nil || r.Op == ctl.OpYield && yields {
						return
					}
				}
			}()
			c, err := dialSame(loc)
			if want := map[bool]error{true: ctl.ErrNotRunning, false: syscall.EPROTO}[yields]; c != nil || !errors.Is(err, want) {
				t.Errorf("got %v, %v, want %v", c, err, want)
			}
		})
	}
	if _, err := dialSame(ctl.Location{Socket: filepath.Join(os.TempDir(), "no-such-socket-of-verbena")}); !errors.Is(err, ctl.ErrNotRunning) {
		t.Errorf("without a service: %v", err)
	}
}
