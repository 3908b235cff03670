//go:build interop

package interop

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/internal/testutil"
)

// The following constants are the addresses of the host and of the guest on the TAP device (guest/stage2 has the
// same addresses).
var (
	ourIP   = map[string]string{"IPv4": "10.77.0.1", "IPv6": "fd77::1"}
	guestIP = map[string]string{"IPv4": "10.77.0.2", "IPv6": "fd77::2"}
	ipNames = []string{"IPv4", "IPv6"}
)

// insideEnv marks a process in the network namespace.
const insideEnv = "VERBENA_INTEROP_INSIDE"

// bootTimeout limits the boot of the guest, including retries, on a slow and busy machine.
const bootTimeout = 7 * time.Minute

var (
	verbenaPeer, kernelPeer *peer
	theLab                  *testbed
)

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(insideEnv) == "" {
		os.Exit(enterNetNS())
	}
	l, err := newTestbed()
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
	} else {
		theLab = l
		code = m.Run()
		if err := interopReport.writeResults(l); err != nil {
			fmt.Fprintln(os.Stderr, "interop:", err)
			code = 1
		}
	}
	l.close(code != 0)
	os.Exit(code)
}

// TestInterop runs all tests, in the order of docs/results/interop.md. The capture is checked before the tests that
// corrupt packets.
func TestInterop(t *testing.T) {
	t.Run("operations", testOperations)
	t.Run("errors", testErrors)
	t.Run("wire", testWire)
	t.Run("programs", testPrograms)
	t.Run("cm", testCMPrograms)
	t.Run("cm capture", testCMCapture)
	t.Run("netlink", testNetlink)
	t.Run("walks", testWalks)
	t.Run("verbs", testVerbs)
	t.Run("rdmanet", testRdmanet)
	t.Run("loss", testLoss)
	t.Run("shapes", testShapes)
}

// enterNetNS runs this test again in a new network namespace, which ends with the test.
func enterNetNS() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	err := cmd.Start()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) {
		fmt.Printf(
			"interop: SKIPPED, nothing was tested: a network namespace needs root, or unprivileged user namespaces: %v\n", err)
		if os.Getenv("CI") == "true" {
			return 1
		}
		return 0
	}
	if err == nil {
		err = cmd.Wait()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(1, exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop: run the test in a network namespace:", err)
		return 1
	}
	return 0
}

// testbed holds the network, the service, the guest and the two peers.
type testbed struct {
	dir      string
	env      []string
	verbena  string // path of the binary
	programs []*program
	start    time.Time
	booted   time.Duration
	pcap     string // capture of the guest's network card
}

// program is a process of the lab.
type program struct {
	name string
	cmd  *exec.Cmd
	out  *testutil.Buffer
	done chan struct{}
}

// launch starts a program in a new process group.
func (l *testbed) launch(name string, argv ...string) (*program, error) {
	p := &program{name: name, cmd: exec.Command(argv[0], argv[1:]...), out: &testutil.Buffer{}, done: make(chan struct{})}
	p.cmd.Env = l.env
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	p.cmd.WaitDelay = 5 * time.Second
	started := make(chan error)
	go func() { // Pdeathsig belongs to the thread
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	l.programs = append(l.programs, p)
	return p, nil
}

func (p *program) stop(sig syscall.Signal) {
	select {
	case <-p.done:
		return
	default:
	}
	if sig == syscall.SIGKILL { // includes the program, which the end of a killed launcher does not end
		syscall.Kill(-p.cmd.Process.Pid, sig)
	} else {
		p.cmd.Process.Signal(sig)
	}
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
	}
}

// programPath returns the path of a program that is built from source.
func (l *testbed) programPath(name string) string { return filepath.Join(l.dir, name) }

// runCommand runs a command on the host and waits for it.
func (l *testbed) runCommand(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Env = l.env
	out, err := c.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

func newTestbed() (*testbed, error) {
	l := &testbed{start: time.Now(), verbena: os.Getenv("VERBENA")}
	var err error
	if l.dir, err = os.MkdirTemp("", "verbena-interop-"); err != nil {
		return l, err
	}
	if l.verbena == "" {
		return l, errors.New("VERBENA must be the path of the binary: use make interop")
	}
	l.env = append(os.Environ(), "VERBENA_SOCKET="+filepath.Join(l.dir, "sock"), "PYTHONDONTWRITEBYTECODE=1")
	l.pcap = filepath.Join(l.dir, "wire.pcap")
	for _, c := range []string{
		// The MTU is 4096, and a burst has 1 MB.
		"link set lo up", "tuntap add tap0 mode tap", "link set tap0 mtu 4200 txqueuelen 10000",
		"addr add 10.77.0.1/24 dev tap0", "addr add fd77::1/64 dev tap0 nodad", "link set tap0 up",
	} {
		if _, err := l.runCommand(append([]string{"ip"}, strings.Fields(c)...)...); err != nil {
			return l, fmt.Errorf("make the network: %w", err)
		}
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(ourIP["IPv4"], "0"))
	if err != nil {
		return l, fmt.Errorf("listen for the peers: %w", err)
	}
	defer ln.Close()
	script, err := filepath.Abs("peer.py")
	if err != nil {
		return l, err
	}
	peerArgs := func(name string) []string { return []string{script, ln.Addr().String(), name, "rxe0"} }

	// The guest sees the files that exist when it boots.
	if _, err := l.runCommand("gcc", "-Wall", "-Werror", "-O1", "-o", l.programPath("cmtalk"), "testdata/cmtalk.c",
		"-lrdmacm",
		"-libverbs"); err != nil {
		return l, err
	}
	if _, err := l.runCommand("gcc", "-Wall", "-Werror", "-O1", "-o", l.programPath("cmwalk"), "testdata/cmwalk.c",
		"-lrdmacm",
		"-libverbs", "-lpthread"); err != nil {
		return l, err
	}
	if _, err := l.runCommand("go", "test", "-c", "-tags", "interop", "-o", l.programPath("verbs-suite"),
		"verbena/test/suite"); err != nil {
		return l, err
	}
	if _, err := l.runCommand("go", "test", "-c", "-o", l.programPath("rdmanet-tests"), "verbena/rdmanet"); err != nil {
		return l, err
	}
	guest, err := l.launch("guest", append([]string{"guest/boot", "-v", "-n", "tap0", "-p", l.pcap, "-t", "3000", "--"},
		peerArgs("kernel")...)...)
	if err != nil {
		return l, err
	}
	if kernelPeer, err = acceptPeer(ln, guest, bootTimeout); err != nil {
		return l, err
	}
	kernelPeer.ip, kernelPeer.lab = guestIP, l
	l.booted = time.Since(l.start)

	// The TAP device now has a carrier, and therefore link-local addresses.
	serve, err := l.launch("service", l.verbena, "serve", "--link", "rxe0=tap0", "--no-loopback", "--seed", "1")
	if err != nil {
		return l, err
	}
	if err := l.awaitSocket(serve); err != nil {
		return l, err
	}
	host, err := l.launch("peer", append([]string{l.verbena, "run", "--"}, peerArgs("Verbena")...)...)
	if err != nil {
		return l, err
	}
	if verbenaPeer, err = acceptPeer(ln, host, time.Minute); err != nil {
		return l, err
	}
	verbenaPeer.ip, verbenaPeer.lab = ourIP, l
	return l, nil
}

func (l *testbed) awaitSocket(serve *program) error {
	for range 6000 {
		if c, err := net.Dial("unix", filepath.Join(l.dir, "sock")); err == nil {
			return c.Close()
		}
		select {
		case <-serve.done:
			return fmt.Errorf("the service has ended: %s", serve.out)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fmt.Errorf("the service is not ready: %s", serve.out)
}

func (l *testbed) close(failed bool) {
	for _, p := range []*peer{verbenaPeer, kernelPeer} {
		if p != nil {
			p.conn.Close() // the peer ends, and the guest ends with the peer
		}
	}
	for i := len(l.programs) - 1; i >= 0; i-- {
		p := l.programs[i]
		wait := 10 * time.Second
		if p.name == "service" {
			wait = 0
		}
		select {
		case <-p.done:
		case <-time.After(wait):
			p.stop(syscall.SIGTERM)
		}
		if out := p.out.String(); failed && out != "" {
			lines := strings.Split(out, "\n")
			fmt.Fprintf(os.Stderr, "--- output of %s, the last lines:\n%s\n", p.name,
				strings.Join(lines[max(0, len(lines)-30):], "\n"))
		}
	}
	os.RemoveAll(l.dir)
}
