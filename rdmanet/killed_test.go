package rdmanet_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/rdmanet"
	"verbena/verbs"
	"verbena/verbs/cm"
	"verbena/verbs/embed"
)

// A process with childEnv is the other end of a connection, until it is killed: "tcp" or "cm", and the address of a
// device of its own, if it is not VERBS_DEVICE's service that has one.
const childEnv = "RDMANET_CHILD"

// processHost is the Host of a process that talks to others: VERBS_DEVICE's service, or a device of its own at an
// address.
func processHost(addr netip.Addr) (h *rdmanet.Host, end func(), err error) {
	if os.Getenv("VERBS_DEVICE") != "" {
		return nil, func() {}, nil
	}
	s, err := embed.NewSoftware(embed.Software{Addr: addr})
	if err != nil {
		return nil, nil, err
	}
	return &rdmanet.Host{
		Devices: func() ([]verbs.DeviceInfo, error) { return s.Devices(), nil },
		Manager: func() (*cm.Manager, error) { return s.ConnectionManager(nil) },
	}, s.Close, nil
}

// child accepts a connection, prints what has come, and waits to be killed.
func child(arg string) error {
	how, addr, _ := strings.Cut(arg, " ")
	h, _, err := processHost(netip.MustParseAddr(addr))
	if err != nil {
		return err
	}
	lc := rdmanet.ListenConfig{Config: rdmanet.Config{Host: h}, CM: how == "cm"}
	l, err := lc.Listen(context.Background(), "rdma", net.JoinHostPort(addr, "0"))
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	c, err := l.Accept()
	if err != nil {
		return err
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, c)
	return fmt.Errorf("nothing has killed the process: %w", err)
}

// TestKilledPeer: the peer's process is killed while calls wait. With the connection manager, of a service, they end at
// once, else by probes.
func TestKilledPeer(t *testing.T) {
	t.Parallel()
	for i, how := range []string{"tcp", "cm"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			service := os.Getenv("VERBS_DEVICE") != ""
			here, there := "127.0.0.1", "127.0.0.1"
			if !service {
				at := func(n int) string {
					return fmt.Sprintf("127.%d.%d.%d", 210+i, os.Getpid()>>7&255, os.Getpid()&127<<1|n)
				}
				here, there = at(0), at(1)
			}
			h, end, err := processHost(netip.MustParseAddr(here))
			must(t, err)
			defer end()
			x := exec.Command(os.Args[0], "-test.run=^$")
			x.Env = append(os.Environ(), childEnv+"="+how+" "+there)
			x.Stderr = os.Stderr
			out, err := x.StdoutPipe()
			must(t, err)
			must(t, x.Start())
			defer func() {
				_ = x.Process.Kill()
				_ = x.Wait()
			}()
			address, err := bufio.NewReader(out).ReadString('\n')
			must(t, err)
			cfg := rdmanet.Config{
				Host: h, KeepAlive: 50 * time.Millisecond, Linger: 100 * time.Millisecond,
				Path: verbs.Path{Timeout: 4 * time.Millisecond, Retries: 3},
			}
			if how == "cm" {
				cfg.KeepAlive = -1
			}
			d := rdmanet.Dialer{Config: cfg, CM: how == "cm"}
			c, err := d.Dial("rdma", strings.TrimSpace(address))
			must(t, err)
			_, err = io.ReadFull(c, make([]byte, 5))
			must(t, err)
			all(t, []call{
				{"Read", func() error { _, err := c.Read(make([]byte, 1)); return err }},
				{"Write", func() error {
					for {
						if _, err := c.Write(make([]byte, 1<<20)); err != nil {
							return err
						}
					}
				}},
			}, func() { must(t, x.Process.Signal(syscall.SIGKILL)) })
			_, err = c.Read(make([]byte, 1))
			var ce *rdmanet.ConnError
			if !errors.As(err, &ce) || ce.Errno == syscall.ECONNABORTED {
				t.Errorf("Read: got %v, want a ConnError of the peer's end", err)
			}
			start := time.Now()
			_ = c.Close()
			if d := time.Since(start); d > bound {
				t.Errorf("Close took %v", d)
			}
		})
	}
}
