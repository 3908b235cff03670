package rdmanet_test

import (
	"bufio"
	"bytes"
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

	"verbena/internal/testutil"
	"verbena/rdmanet"
	"verbena/verbs"
	"verbena/verbs/cm"
	"verbena/verbs/embed"
)

// childArgEnv is an environment variable. The variable makes the test binary run as one end of a connection. The value
// of the variable contains the action ("wait", "serve", "dial" or "survive"), the kind of set-up ("tcp" or "cm"), and
// the address to listen on or dial. The process uses the service or kernel of VERBS_DEVICE. If it is not set, the
// process creates a device at that address.
const childArgEnv = "RDMANET_CHILD"

func runChild(arg string) error {
	f := strings.Fields(arg)
	if len(f) != 3 {
		return fmt.Errorf("%s is %q", childArgEnv, arg)
	}
	switch f[0] {
	case "dial":
		return dialPeer(f[1] == "cm", f[2])
	case "survive":
		return runThroughReset(f[1] == "cm", f[2])
	}
	host, _, err := net.SplitHostPort(f[2])
	if err != nil {
		return err
	}
	h, _, err := newProcessHost(netip.MustParseAddr(host))
	if err != nil {
		return err
	}
	lc := rdmanet.ListenConfig{Config: rdmanet.Config{Host: h}, CM: f[1] == "cm"}
	l, err := lc.Listen(context.Background(), "rdma", f[2])
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	nc, err := l.Accept()
	if err != nil {
		return err
	}
	c := nc.(*rdmanet.Conn)
	if f[0] == "serve" {
		return servePeer(c)
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		return err
	}
	select {} // the process does not read, so that the peer's Write blocks
}

// exchangeSize is the number of bytes that servePeer and dialPeer exchange. exchangeSize is several times the ring
// size.
const exchangeSize = 1 << 20

// servePeer sends the descriptor of a region, and then echoes the received bytes.
func servePeer(c *rdmanet.Conn) error {
	r, err := c.NewRegion(exchangeSize, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	text, err := r.Descriptor().MarshalBinary()
	if err != nil {
		return err
	}
	if _, err := c.Write(text); err != nil {
		return err
	}
	n, err := io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
	if err != nil || n != exchangeSize {
		return fmt.Errorf("got %d bytes, %w, want %d", n, err, exchangeSize)
	}
	if !bytes.Equal(r.Bytes(), randomBytes(2, exchangeSize)) {
		return errors.New("region: got other bytes, want the bytes that the peer must write")
	}
	return c.Close()
}

// dialPeer is the counterpart of servePeer.
func dialPeer(useCM bool, address string) error {
	d := rdmanet.Dialer{Config: rdmanet.Config{Host: hostOfService()}, CM: useCM}
	var nc net.Conn
	var err error
	testutil.PollUntil(func() bool { // until the peer listens
		nc, err = d.Dial("rdma", address)
		return !errors.Is(err, syscall.ECONNREFUSED)
	})
	if err != nil {
		return err
	}
	c := nc.(*rdmanet.Conn)
	if err := c.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		return err
	}
	var text [rdmanet.DescriptorSize]byte
	if _, err := io.ReadFull(c, text[:]); err != nil {
		return err
	}
	var there rdmanet.Descriptor
	if err := there.UnmarshalBinary(text[:]); err != nil {
		return err
	}
	stream, region := randomBytes(1, exchangeSize), randomBytes(2, exchangeSize)
	m := c.Remote(there)
	if _, err := m.WriteAt(region, 0); err != nil {
		return err
	}
	got := make([]byte, exchangeSize)
	if _, err := m.ReadAt(got, 0); err != nil || !bytes.Equal(got, region) {
		return fmt.Errorf("ReadAt: got %w or other bytes, want the region's bytes", err)
	}
	written := make(chan error, 1)
	go func() {
		_, err := c.Write(stream)
		if err == nil {
			err = c.CloseWrite()
		}
		written <- err
	}()
	echo, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(echo, stream) {
		return fmt.Errorf("echo: got %d bytes and error %w, want the %d written bytes", len(echo), err, exchangeSize)
	}
	if err := <-written; err != nil {
		return err
	}
	return c.Close()
}

// runThroughReset creates a listener and a connection to this listener, and waits until the device is reset.
// runThroughReset then connects to the same listener again. runThroughReset prints a line before and after the reset.
func runThroughReset(useCM bool, address string) error {
	cfg := rdmanet.Config{Host: hostOfService()}
	lc := rdmanet.ListenConfig{Config: cfg, CM: useCM}
	l, err := lc.Listen(context.Background(), "rdma", address)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return err
	}
	d := rdmanet.Dialer{Config: cfg, CM: useCM}
	echo := func() (net.Conn, error) {
		c, err := d.Dial("rdma", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			return nil, err
		}
		if _, err := c.Write([]byte("hello")); err != nil {
			return nil, err
		}
		_, err = io.ReadFull(c, make([]byte, 5))
		return c, err
	}
	c, err := echo()
	if err != nil {
		return err
	}
	fmt.Println("connected")
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNABORTED) {
		return fmt.Errorf("read: got %w, want ECONNABORTED", err)
	}
	if _, err := c.Write(make([]byte, 1)); !errors.Is(err, syscall.ECONNABORTED) {
		return fmt.Errorf("write: got %w, want ECONNABORTED", err)
	}
	if !testutil.PollUntil(func() bool { _, err = echo(); return err == nil }) {
		return err
	}
	fmt.Println("connected again")
	return nil
}

// newProcessHost returns the Host of a process that has a peer in another process. The Host provides VERBS_DEVICE's
// service, or a new device at an address.
func newProcessHost(addr netip.Addr) (h *rdmanet.Host, end func(), err error) {
	if os.Getenv("VERBS_DEVICE") != "" {
		return hostOfService(), func() {}, nil
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

// TestKilledPeerUnblocksCalls checks blocked calls when the peer's process is killed. With the connection manager of a
// service, the calls must return at once. Otherwise they must return after probes.
func TestKilledPeerUnblocksCalls(t *testing.T) {
	t.Parallel()
	service := os.Getenv("VERBS_DEVICE") != ""
	here, there, hows := serviceAddr(), serviceAddr(), []string{"tcp", "cm"}
	if !service { // a connection manager in the killed process cannot report its own end
		at := func(n int) string { return fmt.Sprintf("127.210.%d.%d", os.Getpid()>>7&255, os.Getpid()&127<<1|n) }
		here, there, hows = at(0), at(1), hows[:1]
	}
	for _, how := range hows {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			h, end, err := newProcessHost(netip.MustParseAddr(here))
			must(t, err)
			defer end()
			x := exec.Command(os.Args[0], "-test.run=^$")
			x.Env = append(os.Environ(), childArgEnv+"=wait "+how+" "+net.JoinHostPort(there, "0"))
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
				// A busy machine does not use up the retries. The kernel's rxe retries for ever with 7.
				Path: verbs.Path{Timeout: 33 * time.Millisecond, Retries: 6},
			}
			if how == "cm" {
				cfg.KeepAlive = -1
			}
			d := rdmanet.Dialer{Config: cfg, CM: how == "cm"}
			c, err := d.Dial("rdma", strings.TrimSpace(address))
			must(t, err)
			_, err = io.ReadFull(c, make([]byte, 5))
			must(t, err)
			expectCallsFail(t, []blockingCall{
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
				t.Errorf("Read: got %v, want a ConnError about the peer's end", err)
			}
			start := time.Now()
			_ = c.Close()
			if d := time.Since(start); d > callTimeout {
				t.Errorf("Close took %v", d)
			}
		})
	}
}
