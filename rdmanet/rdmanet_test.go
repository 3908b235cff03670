package rdmanet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/internal/leaktest"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/rdmanet"
	"verbena/verbs"
	"verbena/verbs/embed"
	"verbena/verbs/service"
)

func TestMain(m *testing.M) {
	if arg := os.Getenv(childArgEnv); arg != "" {
		if err := runChild(arg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

// testTimeout is the timeout for operations that should take milliseconds.
const testTimeout = 20 * time.Second

// testbed is a device in this process, with its network.
type testbed struct {
	addr   string
	stack  *embed.Stack
	net    *simnet.Net
	fabric *rxe.Fabric
	core   ib.Core
	hw     *rxe.Hardware
	dev    *rxe.Device
}

// newTestbed creates a device. If fabric is nil, the device sends even packets to itself over the network.
func newTestbed(t testing.TB, fabric *rxe.Fabric) *testbed {
	t.Helper()
	w := &testbed{addr: "127.0.0.80", net: simnet.New(simnet.Config{}), fabric: fabric}
	w.plugAndOpenStack(t)
	return w
}

// newPeerTestbed creates another device on the network of a world, with its own address.
func (w *testbed) newPeerTestbed(t testing.TB) *testbed {
	t.Helper()
	x := &testbed{addr: "127.0.0.81", net: w.net}
	x.plugAndOpenStack(t)
	return x
}

func (w *testbed) plugAndOpenStack(t testing.TB) {
	t.Helper()
	w.plugDevice(t)
	var err error
	w.stack, err = embed.New(&w.core)
	must(t, err)
	t.Cleanup(func() {
		w.stack.Close()
		w.unplugDevice(t)
	})
}

// plugDevice creates the device.
func (w *testbed) plugDevice(t testing.TB) {
	t.Helper()
	w.hw = rxe.NewHardware(rxe.Config{
		Name: "rxe0", Netdev: netdev.Interface{Name: "lo", Index: 1, MTU: 65536, Up: true, Running: true},
		Addrs: []netip.Addr{netip.MustParseAddr(w.addr)}, Network: w.net, Faults: w.net.Faults(), Fabric: w.fabric,
	})
	dev, err := w.hw.Probe()
	must(t, err)
	w.dev = dev.(*rxe.Device)
	must(t, w.core.Register(w.dev.Handle()))
}

// unplugDevice removes the device while it may be in use.
func (w *testbed) unplugDevice(t testing.TB) {
	t.Helper()
	must(t, w.core.Unregister(w.dev.Handle()))
	w.dev.Close()
}

func (w *testbed) openDevice(t testing.TB) *verbs.Device {
	t.Helper()
	d, err := w.stack.Open("")
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

// hostOfService returns the Host of VERBS_DEVICE. The Host is the kernel, the service under which this program runs, or
// the service that listens on VERBS_SERVICE.
func hostOfService() *rdmanet.Host { return hostFromEnv("VERBS_SERVICE") }

// hostFromEnv returns the Host of a service. The environment variable env contains the socket path. If env is empty,
// hostFromEnv returns nil.
func hostFromEnv(env string) *rdmanet.Host {
	socket := os.Getenv(env)
	if socket == "" {
		return nil
	}
	s, err := service.At(socket)
	if err != nil {
		panic(err) // At does not connect, so the path is invalid
	}
	return &rdmanet.Host{Devices: s.Devices, Manager: s.ConnectionManager}
}

// openTestDevice returns the device that VERBS_DEVICE names. If it is not set, openTestDevice returns a device of this
// process.
func openTestDevice(t testing.TB) *verbs.Device {
	t.Helper()
	name := os.Getenv("VERBS_DEVICE")
	if name == "" {
		return newTestbed(t, &rxe.Fabric{}).openDevice(t)
	}
	return openHostDevice(t, hostOfService(), name)
}

// openPeerDevice returns the device with the name of d on the service that VERBS_PEER_SERVICE names. If it is not set,
// openPeerDevice returns another device or d itself.
func openPeerDevice(t testing.TB, d *verbs.Device) *verbs.Device {
	t.Helper()
	if h := hostFromEnv("VERBS_PEER_SERVICE"); h != nil {
		return openHostDevice(t, h, os.Getenv("VERBS_DEVICE"))
	}
	return d
}

// openHostDevice opens the named device of a Host. A nil Host means the devices of this program.
func openHostDevice(t testing.TB, h *rdmanet.Host, name string) *verbs.Device {
	t.Helper()
	list := verbs.Devices
	if h != nil {
		list = h.Devices
	}
	devices, err := list()
	must(t, err)
	for _, i := range devices {
		if i.Name == name {
			d, err := i.Open()
			must(t, err)
			t.Cleanup(func() { must(t, d.Close()) })
			return d
		}
	}
	t.Fatalf("device %s: got none, want one", name)
	return nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connectDevices establishes a connection between two devices.
func connectDevices(t testing.TB, da, db *verbs.Device, ca, cb rdmanet.Config) (a, b *rdmanet.Conn) {
	t.Helper()
	x, y := net.Pipe()
	defer x.Close()
	defer y.Close()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	var wg sync.WaitGroup
	var errA, errB error
	wg.Go(func() { a, errA = rdmanet.Client(ctx, x, da, ca) })
	b, errB = rdmanet.Server(ctx, y, db, cb)
	wg.Wait()
	must(t, errA)
	must(t, errB)
	t.Cleanup(func() {
		_ = a.Close()
		_ = b.Close()
	})
	return a, b
}

// noRNRConfig makes a connection fail if a message arrives without a posted receive. noRNRConfig disables probes,
// because probes could hide a lost wake-up.
var noRNRConfig = rdmanet.Config{Path: verbs.Path{RNRRetries: verbs.Never}, KeepAlive: -1}

// connectNewPair establishes a connection on a new device.
func connectNewPair(t testing.TB, cfg rdmanet.Config) (a, b *rdmanet.Conn) {
	t.Helper()
	d := openTestDevice(t)
	cfg.Path, cfg.KeepAlive = noRNRConfig.Path, noRNRConfig.KeepAlive
	return connectDevices(t, d, d, cfg, cfg)
}

// TestConnPassesNettest runs the common tests for net.Conn implementations.
func TestConnPassesNettest(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name string
		dev  func(testing.TB) *verbs.Device
		cfg  rdmanet.Config
	}{
		{"shortcut", openTestDevice, noRNRConfig},
		{"network", func(t testing.TB) *verbs.Device { return newTestbed(t, nil).openDevice(t) }, noRNRConfig},
		{"tiny", openTestDevice, rdmanet.Config{
			ReadBuffer: 5000, WriteBuffer: 6000, Messages: 4, Path: noRNRConfig.Path, KeepAlive: -1,
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			d := x.dev(t)
			peer := d
			if x.name != "network" { // other networks than "network" are in this process
				peer = openPeerDevice(t, d)
			}
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				a, b := connectDevices(t, d, peer, x.cfg, x.cfg)
				return a, b, func() {
					var wg sync.WaitGroup
					wg.Go(func() { _ = a.Close() })
					_ = b.Close()
					wg.Wait()
				}, nil
			})
		})
	}
}

// checkOpError checks that err is a *net.OpError that wraps all of want.
func checkOpError(t *testing.T, what string, err error, want ...error) {
	t.Helper()
	var op *net.OpError
	if !errors.As(err, &op) {
		t.Fatalf("%s: got %v, want a *net.OpError", what, err)
	}
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: got %v, want %v", what, err, w)
		}
	}
}

func randomBytes(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// exchangeData writes in both directions concurrently, and checks the received data.
func exchangeData(t *testing.T, a, b net.Conn, size int) {
	t.Helper()
	var wg sync.WaitGroup
	for i, x := range []struct{ from, to net.Conn }{{a, b}, {b, a}} {
		want := randomBytes(uint64(i), size)
		wg.Go(func() {
			if n, err := x.from.Write(want); n != size || err != nil {
				t.Errorf("Write: got %d, %v, want %d", n, err, size)
			}
		})
		wg.Go(func() {
			got := make([]byte, size)
			if _, err := io.ReadFull(x.to, got); err != nil {
				t.Errorf("Read: %v", err)
			} else if !bytes.Equal(got, want) {
				t.Error("Read: got other bytes than the written ones, want equal bytes")
			}
		})
	}
	wg.Wait()
}

// TestFlowControlOfManySizes tests rings and message limits of many sizes. The writes are much larger than the rings,
// in both directions at once. A message without a posted receive would break the connection.
func TestFlowControlOfManySizes(t *testing.T) {
	t.Parallel()
	d := openTestDevice(t)
	tiny := rdmanet.Config{ReadBuffer: 256, WriteBuffer: 256, Messages: 4}
	for _, x := range []struct {
		a, b rdmanet.Config
		size int
	}{
		{rdmanet.Config{}, rdmanet.Config{}, 1 << 20},
		{tiny, tiny, 50_000},
		{
			rdmanet.Config{ReadBuffer: 256, WriteBuffer: 1 << 20},
			rdmanet.Config{ReadBuffer: 1 << 20, WriteBuffer: 257}, 50_000,
		},
		{
			rdmanet.Config{ReadBuffer: 1000, WriteBuffer: 999, Messages: 5},
			rdmanet.Config{ReadBuffer: 777, WriteBuffer: 4096, Messages: 500}, 100_000,
		},
		{rdmanet.Config{Messages: 4}, rdmanet.Config{Messages: 4096}, 1 << 20},
	} {
		t.Run(fmt.Sprintf("%d %d %d", x.a.ReadBuffer, x.a.WriteBuffer, x.a.Messages), func(t *testing.T) {
			t.Parallel()
			x.a.Path, x.b.Path, x.a.KeepAlive, x.b.KeepAlive = noRNRConfig.Path, noRNRConfig.Path, -1, -1
			a, b := connectDevices(t, d, d, x.a, x.b)
			exchangeData(t, a, b, x.size)
			// The next part writes one-byte messages, which each end reads early.
			one := make([]byte, 1)
			for i := range 200 {
				for _, c := range []net.Conn{a, b} {
					if _, err := c.Write([]byte{byte(i)}); err != nil {
						t.Fatal(err)
					}
				}
				if i%3 < 2 {
					continue
				}
				for _, c := range []net.Conn{a, b} {
					for j := i - 2; j <= i; j++ {
						if _, err := c.Read(one); err != nil || one[0] != byte(j) {
							t.Fatalf("read %d, %v, want %d", one[0], err, byte(j))
						}
					}
				}
			}
			_, err := io.ReadFull(b, make([]byte, 2))
			must(t, err)
			// The next part uses only one direction. No data message carries credits.
			for i := range 50 {
				_, err := a.Write(one)
				must(t, err)
				if i%2 == 1 {
					_, err = io.ReadFull(b, make([]byte, 2))
					must(t, err)
				}
			}
			// The next part writes small messages that are read late. The message limit applies.
			for _, c := range []net.Conn{a, b} {
				must(t, c.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
			}
			n := 0
			for ; ; n++ {
				if _, err := a.Write([]byte{byte(n)}); err != nil {
					checkOpError(t, "Write", err, os.ErrDeadlineExceeded)
					break
				}
			}
			must(t, a.CloseWrite())
			got, err := io.ReadAll(b)
			must(t, err)
			if len(got) != n || n > 0 && got[n-1] != byte(n-1) {
				t.Errorf("read %d bytes, want %d", len(got), n)
			}
		})
	}
	for _, c := range []rdmanet.Config{
		{ReadBuffer: 255}, {WriteBuffer: 1 << 30}, {Messages: 3}, {Messages: 5000}, {ReadBuffer: -1},
	} {
		x, y := net.Pipe()
		if _, err := rdmanet.Client(context.Background(), x, d, c); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: got %v, want EINVAL", c, err)
		}
		x.Close()
		y.Close()
	}
}

// TestLoss tests a stream in both directions while packets are lost, duplicated and reordered.
func TestLoss(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, nil)
	d := w.openDevice(t)
	a, b := connectDevices(t, d, d, rdmanet.Config{}, rdmanet.Config{})
	must(t, w.net.Faults().Add(link.Rule{Drop: 0.01, Duplicate: 0.01, Reorder: 0.01}))
	exchangeData(t, a, b, 1<<20)
}

func TestDeadlinesEndCalls(t *testing.T) {
	t.Parallel()
	a, b := connectNewPair(t, rdmanet.Config{ReadBuffer: 4096, WriteBuffer: 4096})
	one := make([]byte, 1)
	read := func(want error) {
		t.Helper()
		if _, err := a.Read(one); !errors.Is(err, want) {
			t.Fatalf("Read: got %v, want %v", err, want)
		}
	}
	must(t, a.SetReadDeadline(time.Now().Add(5*time.Millisecond)))
	read(os.ErrDeadlineExceeded)
	read(os.ErrDeadlineExceeded)
	// The expired deadline must still apply when data are available. The Read that has timed out must not have consumed
	// the data.
	_, err := b.Write([]byte("x"))
	must(t, err)
	read(os.ErrDeadlineExceeded)
	if one[0] != 0 {
		t.Errorf("buffer of a Read that has timed out: got %q, want no data", one)
	}
	must(t, a.SetReadDeadline(time.Time{}))
	read(nil)
	// A changed deadline must apply to a blocked Read, whether the new deadline is later or earlier.
	must(t, a.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
	time.AfterFunc(5*time.Millisecond, func() { _ = a.SetReadDeadline(time.Now().Add(time.Hour)) })
	time.AfterFunc(400*time.Millisecond, func() { _, _ = b.Write([]byte("y")) })
	read(nil)
	time.AfterFunc(5*time.Millisecond, func() { _ = a.SetReadDeadline(time.Now()) })
	read(os.ErrDeadlineExceeded)
	must(t, a.SetDeadline(time.Time{}))

	// A Write that times out must have written the reported number of bytes, with their contents at the time of the
	// call.
	data := randomBytes(1, 10_000)
	kept := bytes.Clone(data)
	must(t, a.SetWriteDeadline(time.Now().Add(10*time.Millisecond)))
	n, err := a.Write(data)
	checkOpError(t, "Write", err, os.ErrDeadlineExceeded)
	if n > 8192 {
		t.Errorf("Write to rings of 4096 bytes at both ends: got %d bytes written, want at most 8192", n)
	}
	clear(data)
	must(t, a.SetWriteDeadline(time.Time{}))
	go func() {
		_, err := a.Write(kept[n:])
		if err != nil {
			t.Errorf("Write: %v", err)
		}
		_ = a.CloseWrite()
	}()
	got, err := io.ReadAll(b)
	must(t, err)
	if !bytes.Equal(got, kept) {
		t.Errorf("stream: got %d bytes that differ from the %d written bytes, want equal bytes", len(got), len(kept))
	}
}

// TestCallsReturnIndependently checks that a call returns as soon as its condition holds, even while other calls on the
// connection are blocked.
func TestCallsReturnIndependently(t *testing.T) {
	t.Parallel()
	a, b := connectNewPair(t, rdmanet.Config{ReadBuffer: 4096, WriteBuffer: 4096})
	r, err := b.NewRegion(100, 0)
	must(t, err)
	read, written := make(chan error), make(chan error)
	testutil.WaitBlocked(t, func() { // this Read sleeps on behalf of all waiters
		_, err := a.Read(make([]byte, 1))
		read <- err
	})
	testutil.WaitBlocked(t, func() {
		_, err := a.Write(make([]byte, 10_000))
		written <- err
	})
	_, err = a.Remote(r.Descriptor()).WriteAt(make([]byte, 100), 0)
	must(t, err)
	_, err = io.ReadFull(b, make([]byte, 10_000))
	must(t, err)
	must(t, <-written)
	select {
	case err := <-read:
		t.Errorf("Read before any write: returned %v, want it to block", err)
	default:
	}
	_, err = b.Write(make([]byte, 1))
	must(t, err)
	must(t, <-read)
	must(t, r.Close())
}

func TestCloseWriteKeepsReading(t *testing.T) {
	t.Parallel()
	a, b := connectNewPair(t, rdmanet.Config{})
	_, err := a.Write([]byte("question"))
	must(t, err)
	must(t, a.CloseWrite())
	must(t, a.CloseWrite())
	_, err = a.Write([]byte("more"))
	checkOpError(t, "Write after CloseWrite", err, syscall.EPIPE)
	got, err := io.ReadAll(b)
	must(t, err)
	if string(got) != "question" {
		t.Errorf("got %q", got)
	}
	_, err = b.Write([]byte("answer"))
	must(t, err)
	must(t, b.Close())
	got, err = io.ReadAll(a)
	must(t, err)
	if string(got) != "answer" {
		t.Errorf("got %q", got)
	}
	must(t, a.Close())
	checkOpError(t, "Close again", a.Close(), net.ErrClosed)
	_, err = a.Read(got)
	checkOpError(t, "Read after Close", err, net.ErrClosed)
	_, err = a.Write(got)
	checkOpError(t, "Write after Close", err, net.ErrClosed)
	checkOpError(t, "SetDeadline after Close", a.SetDeadline(time.Time{}), net.ErrClosed)
}

// TestCloseDeliversWrittenData checks that data written before Close can be read after Close. A write to a closed peer
// must fail.
func TestCloseDeliversWrittenData(t *testing.T) {
	t.Parallel()
	a, b := connectNewPair(t, rdmanet.Config{})
	want := randomBytes(1, 200_000)
	_, err := a.Write(want)
	must(t, err)
	must(t, a.Close())
	got := make([]byte, 1000)
	_, err = io.ReadFull(b, got)
	must(t, err)
	_, err = b.Write([]byte("x"))
	checkOpError(t, "Write", err, syscall.EPIPE)
	rest, err := io.ReadAll(b)
	must(t, err)
	if !bytes.Equal(append(got, rest...), want) {
		t.Errorf("read %d bytes, want %d", len(got)+len(rest), len(want))
	}
	start := time.Now()
	must(t, b.Close())
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("Close after the loss of the peer: took %v, want at most 2 s", d)
	}
}

// TestCloseUnblocksCalls checks that Close unblocks all calls, and that CloseWrite unblocks Write.
func TestCloseUnblocksCalls(t *testing.T) {
	t.Parallel()
	a, _ := connectNewPair(t, rdmanet.Config{})
	errs := make(chan error, 5)
	read := func() {
		_, err := a.Read(make([]byte, 1))
		errs <- err
	}
	write := func() {
		_, err := a.Write(make([]byte, 1<<20))
		errs <- err
	}
	testutil.WaitBlocked(t, read, write, read, write)
	must(t, a.CloseWrite())
	for range 2 {
		checkOpError(t, "Write", <-errs, syscall.EPIPE)
	}
	must(t, a.Close())
	for range 2 {
		checkOpError(t, "Read", <-errs, net.ErrClosed)
	}
}

// TestLostPeerReturnsError checks the error when the peer's device disappears.
func TestLostPeerReturnsError(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, &rxe.Fabric{})
	path := verbs.Path{Timeout: 4 * time.Millisecond, Retries: 3}
	cfg := rdmanet.Config{Path: path, KeepAlive: 20 * time.Millisecond}
	for _, who := range []string{"reader", "writer", "closer"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			da, db := w.openDevice(t), w.openDevice(t)
			a, b := connectDevices(t, da, db, cfg, cfg)
			_, err := b.Write([]byte("last words"))
			must(t, err)
			must(t, db.Close())
			_, err = b.Read(make([]byte, 1))
			checkOpError(t, "Read on a closed device", err, verbs.ErrClosed, syscall.ECONNABORTED)
			switch who {
			case "reader":
				got, err := io.ReadAll(a)
				checkOpError(t, "Read", err, verbs.RetryExceeded, syscall.ETIMEDOUT)
				if string(got) != "last words" {
					t.Errorf("got %q", got)
				}
				var ce *rdmanet.ConnError
				var wc *verbs.WCError
				if !errors.As(err, &ce) || !errors.As(err, &wc) || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("error: got %v, want a ConnError with a WCError", err)
				}
			case "writer":
				for err = nil; err == nil; {
					_, err = a.Write(make([]byte, 1000))
				}
				checkOpError(t, "Write", err, verbs.RetryExceeded, syscall.ETIMEDOUT)
			case "closer":
				_, _ = a.Write(make([]byte, 1000))
				checkOpError(t, "Close", a.Close(), verbs.RetryExceeded, syscall.ETIMEDOUT)
			}
		})
	}
}

// TestLostDeviceUnblocksCalls checks blocked calls when the device is removed from both ends.
func TestLostDeviceUnblocksCalls(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, &rxe.Fabric{})
	d := w.openDevice(t)
	a, b := connectDevices(t, d, d, noRNRConfig, noRNRConfig)
	errs := make(chan error, 2)
	testutil.WaitBlocked(t, func() {
		_, err := a.Read(make([]byte, 1))
		errs <- err
	}, func() {
		_, err := b.Write(make([]byte, 10<<20))
		errs <- err
	})
	w.stack.Close()
	for range 2 {
		select {
		case err := <-errs:
			if err != nil { // without an error, Read may have received data
				checkOpError(t, "a call", err)
				var ce *rdmanet.ConnError
				if !errors.As(err, &ce) {
					t.Errorf("got %v, want a ConnError", err)
				}
			}
		case <-time.After(testTimeout):
			t.Fatal("a call still waits")
		}
	}
}

// TestLostDeviceErrorNamesDevice checks the error of a blocked call when its device is reset or closed. The error must
// name the device and the event, but not an internal work request.
func TestLostDeviceErrorNamesDevice(t *testing.T) {
	t.Parallel()
	reset := func(t *testing.T, w *testbed, _ *verbs.Device) {
		w.unplugDevice(t)
		w.plugDevice(t)
	}
	closed := func(t *testing.T, _ *testbed, d *verbs.Device) { must(t, d.Close()) }
	for _, x := range []struct {
		name   string
		writes bool
		end    func(*testing.T, *testbed, *verbs.Device)
		text   string
		want   error
	}{
		{"reset of a reader's", false, reset, "device rxe0 was reset or removed", syscall.EIO},
		{"reset of a writer's", true, reset, "device rxe0 was reset or removed", syscall.EIO},
		{"closed", true, closed, "device rxe0 was closed", verbs.ErrClosed},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			w := newTestbed(t, &rxe.Fabric{})
			d := w.openDevice(t)
			a, b := connectDevices(t, d, d, noRNRConfig, noRNRConfig)
			var list []blockingCall
			for _, c := range []*rdmanet.Conn{a, b} {
				list = append(list, blockingCall{"Read", func() error { _, err := c.Read(make([]byte, 1)); return err }})
			}
			if x.writes {
				list[1] = blockingCall{"Write", func() error { _, err := a.Write(make([]byte, 10<<20)); return err }}
			}
			expectCallsFail(t, list, func() { x.end(t, w, d) }, syscall.ECONNABORTED, x.want)
			for _, c := range list {
				err := c.f()
				text := err.Error()
				if !strings.Contains(text, x.text) || strings.Contains(text, "PD") || errors.Is(err, io.EOF) {
					t.Errorf("%s: got %q, want it to contain %q and no end of the stream", c.name, text, x.text)
				}
			}
		})
	}
}

// TestLingerBoundsClose checks that Close waits at most for Linger.
func TestLingerBoundsClose(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, nil)
	d := w.openDevice(t)
	a, _ := connectDevices(t, d, d, rdmanet.Config{Linger: 20 * time.Millisecond}, rdmanet.Config{Linger: -1})
	must(t, w.net.Faults().Add(link.Rule{Drop: 1}))
	_, err := a.Write([]byte("lost"))
	must(t, err)
	checkOpError(t, "Close", a.Close(), os.ErrDeadlineExceeded)
}

func TestHTTPOverConn(t *testing.T) {
	t.Parallel()
	d := openTestDevice(t)
	lc := rdmanet.ListenConfig{Config: rdmanet.Config{Device: d}}
	l, err := lc.Listen(context.Background(), "rdma", "127.0.0.80:0")
	must(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		_, _ = w.Write(b)
	})}
	var served sync.WaitGroup
	served.Go(func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	defer served.Wait()
	defer srv.Close()
	dialer := rdmanet.Dialer{Config: rdmanet.Config{Device: d}}
	transport := &http.Transport{DialContext: dialer.DialContext}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var clients sync.WaitGroup
	for i := range 4 {
		clients.Go(func() {
			for j := range 5 {
				want := randomBytes(uint64(10*i+j), 100_000*j)
				resp, err := client.Post("http://"+l.Addr().String(), "application/octet-stream", bytes.NewReader(want))
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("got %d bytes, %v, want %d", len(got), err, len(want))
				}
			}
		})
	}
	clients.Wait()
	if resp, err := client.Get("http://" + l.Addr().String()); err != nil {
		t.Error(err)
	} else {
		resp.Body.Close()
	}
}

func TestListenerIgnoresForeignPeers(t *testing.T) {
	t.Parallel()
	d := openTestDevice(t)
	failed := make(chan error, 10)
	lc := rdmanet.ListenConfig{
		Config: rdmanet.Config{Device: d},
		Failed: func(_ net.Addr, err error) { failed <- err },
	}
	l, err := lc.Listen(context.Background(), "rdma", "127.0.0.80:0")
	must(t, err)
	// Neither a silent peer nor a peer with another protocol may block others.
	silent, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer silent.Close()
	loud, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer loud.Close()
	_, err = loud.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	must(t, err)
	dialer := rdmanet.Dialer{Config: rdmanet.Config{Device: d}}
	a, err := dialer.Dial("rdma", l.Addr().String())
	must(t, err)
	b, err := l.Accept()
	must(t, err)
	if a.LocalAddr() != b.RemoteAddr() || a.RemoteAddr() != b.LocalAddr() || a.LocalAddr().Network() != "rdma" {
		t.Errorf("addresses: %v and %v, %v and %v", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(), b.RemoteAddr())
	}
	if _, _, err := net.SplitHostPort(a.LocalAddr().String()); err != nil {
		t.Errorf("address %v: %v", a.LocalAddr(), err)
	}
	exchangeData(t, a, b, 1000)
	must(t, a.Close())
	must(t, b.Close())
	if err := <-failed; !errors.Is(err, syscall.EPROTO) {
		t.Errorf("peer with another protocol: got %v, want EPROTO", err)
	}
	// A connection that has not been accepted must end with the listener.
	c, err := dialer.Dial("tcp", l.Addr().String())
	must(t, err)
	defer c.Close()
	must(t, l.Close())
	must(t, l.Close())
	if _, err := io.ReadAll(c); err != nil {
		t.Errorf("Read: got %v, want EOF", err)
	}
	_, err = l.Accept()
	checkOpError(t, "Accept", err, net.ErrClosed)
	if _, err := dialer.Dial("rdma", l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("Dial: got %v, want ECONNREFUSED", err)
	}
	if _, err := dialer.Dial("udp", l.Addr().String()); !errors.As(err, new(net.UnknownNetworkError)) {
		t.Errorf("Dial udp: got %v, want an UnknownNetworkError", err)
	}
}

// TestSilentPeersDoNotBlockOthers checks that silent peers do not block other peers, even if there are more of them
// than the backlog allows.
func TestSilentPeersDoNotBlockOthers(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, &rxe.Fabric{})
	failed := make(chan error, 100)
	lc := rdmanet.ListenConfig{
		Config: rdmanet.Config{Host: w.newHost(), SetupTimeout: time.Minute}, Backlog: 2,
		Failed: func(_ net.Addr, err error) { failed <- err },
	}
	l, err := lc.Listen(context.Background(), "rdma", "127.0.0.80:0")
	must(t, err)
	for range 10 {
		c, err := net.Dial("tcp", l.Addr().String())
		must(t, err)
		defer c.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	a, err := (&rdmanet.Dialer{Config: rdmanet.Config{Host: w.newHost()}}).DialContext(ctx, "rdma", l.Addr().String())
	must(t, err)
	b, err := l.Accept()
	must(t, err)
	exchangeData(t, a, b, 1000)
	must(t, a.Close())
	must(t, b.Close())
	if err := <-failed; !errors.Is(err, syscall.ECONNABORTED) {
		t.Errorf("silent peer: got %v, want ECONNABORTED", err)
	}
	must(t, l.Close())
}

// TestFailedSetupTellsPeerReason checks that a peer receives the reason for a failed set-up, even if the device of this
// end is the reason. An aborted set-up must not appear as the end of a stream.
func TestFailedSetupTellsPeerReason(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, &rxe.Fabric{})
	d := w.openDevice(t)
	closed := w.openDevice(t)
	must(t, closed.Close())
	x, y := net.Pipe()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	server := make(chan error, 1)
	go func() {
		_, err := rdmanet.Server(ctx, y, closed, rdmanet.Config{})
		server <- err
	}()
	_, err := rdmanet.Client(ctx, x, d, rdmanet.Config{})
	if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "closed") {
		t.Errorf("Client: got %v, want ECONNREFUSED because the peer's device is closed", err)
	}
	if err := <-server; !errors.Is(err, syscall.ECONNABORTED) || !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Server: got %v, want ECONNABORTED and %v", err, verbs.ErrClosed)
	}
	for n := range 2 { // number of messages before one end closes the connection
		x, y := net.Pipe()
		go func() {
			buf := make([]byte, 1000)
			for range n {
				_, _ = y.Read(buf)
			}
			y.Close()
		}()
		if _, err := rdmanet.Client(ctx, x, d, rdmanet.Config{}); !errors.Is(err, syscall.ECONNRESET) ||
			errors.Is(err, io.EOF) {
			t.Errorf("Client after %d messages: got %v, want ECONNRESET", n, err)
		}
	}
}

// TestSetupWithSilentPeerTimesOut checks that the set-up with a silent peer times out.
func TestSetupWithSilentPeerTimesOut(t *testing.T) {
	t.Parallel()
	failed := make(chan error, 1)
	lc := rdmanet.ListenConfig{
		Config: rdmanet.Config{Device: openTestDevice(t), SetupTimeout: 20 * time.Millisecond},
		Failed: func(_ net.Addr, err error) { failed <- err },
	}
	l, err := lc.Listen(context.Background(), "rdma", "127.0.0.80:0")
	must(t, err)
	defer l.Close()
	silent, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer silent.Close()
	if err := <-failed; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
}

// TestSetupEndsWithContext checks that the set-up ends with its context.
func TestSetupEndsWithContext(t *testing.T) {
	t.Parallel()
	d := newTestbed(t, &rxe.Fabric{}).openDevice(t)
	x, y := net.Pipe()
	defer x.Close()
	defer y.Close()
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(5*time.Millisecond, cancel)
	if _, err := rdmanet.Server(ctx, x, d, rdmanet.Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Server: got %v, want %v", err, context.Canceled)
	}
	if _, err := rdmanet.Client(ctx, x, d, rdmanet.Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Client: got %v, want %v", err, context.Canceled)
	}
}

// copyFlippingBit copies bytes from one connection to another, and flips a bit of the byte at position at. With
// position -1, copyFlippingBit changes no byte.
func copyFlippingBit(to, from net.Conn, at int, bit byte) {
	defer to.Close()
	for b, pos := make([]byte, 64), 0; ; {
		n, err := from.Read(b)
		if i := at - pos; i >= 0 && i < n {
			b[i] ^= bit
		}
		pos += n
		if _, e := to.Write(b[:n]); err != nil || e != nil {
			return
		}
	}
}

// TestSetupSurvivesBitFlips flips each bit of the set-up messages, one at a time. Both ends must return in time, either
// with a connection or with an error that explains the problem. Both ends must leave no objects behind.
func TestSetupSurvivesBitFlips(t *testing.T) {
	t.Parallel()
	d := newTestbed(t, &rxe.Fabric{}).openDevice(t)
	cfg := rdmanet.Config{
		SetupTimeout: 100 * time.Millisecond, Linger: 10 * time.Millisecond,
		ReadBuffer: 4096, WriteBuffer: 4096, Messages: 4, Path: verbs.Path{Timeout: time.Millisecond, Retries: 1},
	}
	type setUp func(context.Context, net.Conn, *verbs.Device, rdmanet.Config) (*rdmanet.Conn, error)
	const hello, ready = 64, 8 // sizes in bytes of the client's messages; the server sends only hello
	var all sync.WaitGroup
	for at := 0; at < 2*hello+ready; at += 5 {
		all.Go(func() {
			client, clientPeer := net.Pipe()
			server, serverPeer := net.Pipe()
			ofClient, ofServer := at, -1
			if at >= hello+ready {
				ofClient, ofServer = -1, at-hello-ready
			}
			var ends sync.WaitGroup
			ends.Go(func() { copyFlippingBit(serverPeer, clientPeer, ofClient, 1<<(at%8)) })
			ends.Go(func() { copyFlippingBit(clientPeer, serverPeer, ofServer, 1<<(at%8)) })
			use := func(what string, nc net.Conn, f setUp) {
				defer nc.Close()
				start := time.Now()
				c, err := f(context.Background(), nc, d, cfg)
				if took := time.Since(start); took > testTimeout {
					t.Errorf("byte %d: %s took %v", at, what, took)
				}
				if err != nil {
					if errors.Is(err, io.EOF) {
						t.Errorf("byte %d: %s: got %v, want an error other than io.EOF", at, what, err)
					}
					return
				}
				// With a flipped bit the peer may connect to a wrong queue pair.
				_ = c.SetDeadline(time.Now().Add(20 * time.Millisecond))
				_, _ = c.Write([]byte("hello"))
				_, _ = c.Read(make([]byte, 5))
				_ = c.Close()
			}
			ends.Go(func() { use("Client", client, rdmanet.Client) })
			ends.Go(func() { use("Server", server, rdmanet.Server) })
			ends.Wait()
		})
	}
	all.Wait()
}
