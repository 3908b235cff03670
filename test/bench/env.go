package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Env holds the resources of measurements: the binary, the floors, and services. Each service starts at its first
// use.
type Env struct {
	Verbena string        // the binary to measure
	Dir     string        // directory for sockets and built programs; the path must be short for sockets
	Scale   float64       // factor for the number of messages
	Limit   time.Duration // time limit for one measurement
	Inside  []string      // prefix of commands for the service and its programs, or empty
	Subnet  int           // part of the services' addresses, 127.9.Subnet.0

	services  map[string]*service
	link      *vethPair // nil until created
	base      map[exchange]cpuCost
	port      int
	kernelDev bool // kernelAddr has created a device
}

type service struct {
	socket string
	inside []string // prefix of commands for the service's environment
	cmd    *exec.Cmd
	log    bytes.Buffer
	ended  chan struct{}
}

// The following constants are the paths of a service between two programs.
const (
	shortcut = "shortcut"
	wire     = "wire"
	launcher = "launcher" // the service accesses programs through their launchers, as required under Yama
	// The following constants select two services, one for each program, over the loopback interface and over a
	// veth pair.
	between     = "wire, two services"
	betweenVeth = "wire, two services, veth"
)

// GetOrStartService returns the service of the path, with the devices rxe0 and rxe1.
func (e *Env) GetOrStartService(ctx context.Context, path string) (*service, error) {
	return e.getOrStartServiceAt(ctx, path, path, e.Inside, "")
}

// getOrStartServiceAt returns the service of a name and path, started with the prefix inside. The devices of the
// service have addresses of the loopback interface, or rxe0 has addr.
func (e *Env) getOrStartServiceAt(ctx context.Context, name, path string, inside []string, addr string) (*service,
	error) {
	if s := e.services[name]; s != nil {
		select {
		case <-s.ended:
			return nil, fmt.Errorf("service %s has ended: %s", name, lastLines(s.log.String()))
		default:
			return s, nil
		}
	}
	number := len(e.services)*2 + 1
	var flags []string
	switch path {
	case wire, between, betweenVeth:
		flags = []string{"--wire"}
	case launcher:
		flags = []string{"--ask-launchers"}
	}
	if addr != "" {
		flags = append(flags, "--link", "rxe0="+addr)
	} else {
		for i := range 2 {
			flags = append(flags, "--link", fmt.Sprintf("rxe%d=127.9.%d.%d", i, e.Subnet, number+i))
		}
	}
	s, err := e.startService(ctx, inside, filepath.Join(e.Dir, fmt.Sprintf("%d-%d", e.Subnet, number)), flags)
	if err != nil {
		return nil, err
	}
	if e.services == nil {
		e.services = map[string]*service{}
	}
	e.services[name] = s
	return s, nil
}

// sideEnv is the environment of one of the two programs of a measurement.
type sideEnv struct {
	*service
	addr string // address to connect to
}

// sideEnvs returns the sides of the server and the client.
func (e *Env) sideEnvs(ctx context.Context, path string) (server, client sideEnv, err error) {
	switch path {
	case between:
		server.addr, client.addr = "127.0.0.1", "127.0.0.1"
		if server.service, err = e.getOrStartServiceAt(ctx, path+", server", path, e.Inside, ""); err == nil {
			client.service, err = e.getOrStartServiceAt(ctx, path+", client", path, e.Inside, "")
		}
	case betweenVeth:
		if e.link == nil {
			if e.link, err = e.newVethPair(ctx); err != nil {
				return sideEnv{}, sideEnv{}, fmt.Errorf("make a veth pair (are user namespaces allowed?): %w", err)
			}
		}
		server.addr, client.addr = vethAddrs[0], vethAddrs[1]
		if server.service, err = e.getOrStartServiceAt(ctx, path+", server", path, e.link.inside[0],
			vethAddrs[0]); err == nil {
			client.service, err = e.getOrStartServiceAt(ctx, path+", client", path, e.link.inside[1], vethAddrs[1])
		}
	default:
		server.addr = "127.0.0.1"
		server.service, err = e.GetOrStartService(ctx, path)
		client = server
	}
	return server, client, err
}

// vethPair is a pair of network namespaces connected by a veth pair, in a separate user namespace. The namespaces exist
// as long as the processes that hold them.
type vethPair struct {
	holders [2]*exec.Cmd
	inside  [2][]string // prefixes of commands for the namespaces
}

var vethAddrs = [2]string{"10.99.0.1", "10.99.0.2"}

func (e *Env) newVethPair(ctx context.Context) (v *vethPair, err error) {
	v = new(vethPair)
	defer func() {
		if err != nil {
			v.close()
		}
	}()
	for i, argv := range [2][]string{{"unshare", "--user", "--map-root-user", "--net"}, {"unshare", "--net"}} {
		if i == 1 {
			argv = append(slices.Clone(v.inside[0]), argv...)
		}
		c := e.newCommand(context.WithoutCancel(ctx), append(argv, "sleep", "1d")...)
		if err := c.Start(); err != nil {
			return v, err
		}
		v.holders[i] = c
		pid := fmt.Sprint(c.Process.Pid)
		v.inside[i] = []string{"nsenter", "--target", pid, "--user", "--preserve-credentials", "--net", "--"}
		// The loop waits until the process sleeps, which means that it is in its namespaces.
		for ctx.Err() == nil {
			if b, _ := os.ReadFile("/proc/" + pid + "/comm"); strings.TrimSpace(string(b)) == "sleep" {
				break
			}
			sleepBetweenPolls(ctx)
		}
	}
	there := fmt.Sprint(v.holders[1].Process.Pid)
	up := func(i int, name string) bool {
		out, err := e.commandOutput(ctx, concat(v.inside[i], []string{"ip", "link", "show", "dev", name})...)
		return err == nil && strings.Contains(out, "state UP")
	}
	for _, argv := range [][]string{
		concat(v.inside[0], []string{"ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", there}),
		concat(v.inside[0], []string{"ip", "addr", "add", vethAddrs[0] + "/24", "dev", "v0"}),
		concat(v.inside[0], []string{"ip", "link", "set", "v0", "mtu", "4200", "up"}),
		concat(v.inside[1], []string{"ip", "addr", "add", vethAddrs[1] + "/24", "dev", "v1"}),
		concat(v.inside[1], []string{"ip", "link", "set", "v1", "mtu", "4200", "up"}),
	} {
		if _, err := e.commandOutput(ctx, argv...); err != nil {
			return v, err
		}
	}
	for ctx.Err() == nil && !(up(0, "v0") && up(1, "v1")) {
		sleepBetweenPolls(ctx)
	}
	return v, context.Cause(ctx)
}

func (v *vethPair) close() {
	for _, c := range v.holders {
		if c != nil {
			c.Process.Kill()
			c.Wait()
		}
	}
}

// startService starts a separate service, which the caller ends with stop.
func (e *Env) startService(ctx context.Context, inside []string, socket string, flags []string) (*service, error) {
	argv := append([]string{e.Verbena, "serve", "--socket", socket}, flags...)
	s := &service{socket: socket, inside: inside, ended: make(chan struct{})}
	// The service is not bound to the context of the measurement, because it outlives the measurement.
	s.cmd = e.newCommand(context.WithoutCancel(ctx), concat(inside, argv)...)
	s.cmd.Stderr = &s.log
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the service: %w", err)
	}
	go func() {
		s.cmd.Wait()
		close(s.ended)
	}()
	for ctx.Err() == nil {
		if e.newCommand(ctx, concat(inside, []string{e.Verbena, "link", "show", "--socket", socket})...).Run() == nil {
			return s, nil
		}
		select {
		case <-s.ended:
			return nil, fmt.Errorf("the service does not start: %s", lastLines(s.log.String()))
		case <-time.After(10 * time.Millisecond):
		}
	}
	s.stop()
	return nil, fmt.Errorf("the service does not answer: %w", context.Cause(ctx))
}

func (s *service) pid() int { return s.cmd.Process.Pid }

// stop ends the service with SIGTERM, and after 10 seconds with SIGKILL.
func (s *service) stop() {
	s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.ended:
	case <-time.After(10 * time.Second):
		s.cmd.Process.Kill()
		<-s.ended
	}
}

// Close ends the services.
func (e *Env) Close() {
	for _, s := range e.services {
		s.stop()
	}
	e.services = nil
	if e.link != nil {
		e.link.close()
		e.link = nil
	}
}

// operationsToMeasure returns the number of operations to measure, if each operation takes about `each` microseconds.
func (e *Env) operationsToMeasure(each float64) int {
	const exchange = 200_000 // in microseconds
	return max(20, int(exchange/each*e.Scale))
}

// newCommand returns a command in a separate process group. When the context ends, the whole group is killed.
func (e *Env) newCommand(ctx context.Context, argv ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 2 * time.Second
	return c
}

// commandOutput runs a command to its end and returns its standard output.
func (e *Env) commandOutput(ctx context.Context, argv ...string) (string, error) {
	c := e.newCommand(ctx, argv...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, lastLines(string(out)+stderr.String()))
	}
	return string(out), nil
}

// cpuCost is the processor time of an exchange.
type cpuCost struct {
	service, client, server time.Duration
	sent, short             float64 // packets of all devices, and how many of them took the shortcut
}

// runPair runs server and client of a program, each under a separate `verbena run`, or both on the kernel's devices if
// path is "". It returns the output of the client. The program expects its port after portFlag, and the client also
// expects the address.
func (e *Env) runPair(ctx context.Context, path, portFlag string, serverArgs, clientArgs []string) (string, cpuCost,
	error) {
	return e.runPairWith(ctx, path, func(s sideEnv) []string { return e.runPrefix(s) }, portFlag, serverArgs, clientArgs)
}

// runPairWith is like pair, but for programs that `verbena run` does not start.
func (e *Env) runPairWith(ctx context.Context, path string, by func(sideEnv) []string, portFlag string, serverArgs,
	clientArgs []string) (string, cpuCost, error) {
	var c cpuCost
	var at, from sideEnv
	var serverRun, clientRun []string
	var before resourceUsage
	addr := "127.0.0.1"
	if path != "" {
		var err error
		if at, from, err = e.sideEnvs(ctx, path); err != nil {
			return "", c, err
		}
		addr = at.addr
		serverRun, clientRun = by(at), by(from)
		if before, err = e.readUsage(ctx, at, from); err != nil {
			return "", c, err
		}
	}
	port, err := e.freePort()
	if err != nil {
		return "", c, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	where := []string{portFlag, fmt.Sprint(port)}
	server := e.newCommand(ctx, concat(serverRun, serverArgs, where)...)
	client := e.newCommand(ctx, concat(clientRun, clientArgs, where, []string{addr})...)
	var sout, cout, cerr bytes.Buffer
	server.Stdout, server.Stderr = &sout, &sout
	client.Stdout, client.Stderr = &cout, &cerr
	if err := server.Start(); err != nil {
		return "", c, err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	for !isListening(server.Process.Pid, port) && len(ended) == 0 && ctx.Err() == nil {
		sleepBetweenPolls(ctx)
	}
	err = client.Run()
	if err != nil {
		err = fmt.Errorf("client: %w", err)
		select { // normally the server has ended before and reports the reason
		case <-time.After(200 * time.Millisecond):
			cancel()
			<-ended
		case serr := <-ended:
			err = errors.Join(serr, err)
		}
	} else if err = <-ended; err != nil {
		err = fmt.Errorf("server: %w", err)
	}
	if err != nil {
		return "", c, fmt.Errorf("%s: %w\nserver: %s\nclient: %s%s", strings.Join(clientArgs, " "), err,
			lastLines(sout.String()),
			lastLines(cout.String()), lastLines(cerr.String()))
	}
	if path != "" {
		after, err := e.readUsage(ctx, at, from)
		if err != nil {
			return "", c, err
		}
		c.service, c.sent, c.short = after.cpu-before.cpu, after.sent-before.sent, after.short-before.short
	}
	c.client, c.server = usedCPUTime(client), usedCPUTime(server)
	return cout.String(), c, nil
}

// socketPrefix returns the prefix of a command that accesses a side's service over its socket.
func (e *Env) socketPrefix(s sideEnv) []string {
	return concat(s.inside, []string{"env", "VERBENA_SOCKET=" + s.socket})
}

// runPrefix returns the prefix of a command that runs a program on a side's service, with further flags.
func (e *Env) runPrefix(s sideEnv, flags ...string) []string {
	return concat(s.inside, []string{e.Verbena, "run", "--socket", s.socket}, flags, []string{"--"})
}

// resourceUsage is the resource usage of services since their start.
type resourceUsage struct {
	cpu         time.Duration
	sent, short float64 // as described at cost
}

func (e *Env) readUsage(ctx context.Context, sides ...sideEnv) (u resourceUsage, err error) {
	var seen []*service
	for _, s := range sides {
		if slices.Contains(seen, s.service) {
			continue
		}
		seen = append(seen, s.service)
		sent, short, err := e.readPacketCounts(ctx, s.service)
		if err != nil {
			return u, err
		}
		cpu, err := processCPUTime(s.pid())
		if err != nil {
			return u, err
		}
		u.sent, u.short, u.cpu = u.sent+sent, u.short+short, u.cpu+cpu
	}
	return u, nil
}

// readPacketCounts returns the number of packets that the devices of a service have sent, and how many of them took the
// shortcut.
func (e *Env) readPacketCounts(ctx context.Context, s *service) (sent, short float64, err error) {
	out, err := e.commandOutput(ctx, concat(s.inside, []string{e.Verbena, "stat", "show", "--json", "--socket",
		s.socket})...)
	if err != nil {
		return 0, 0, err
	}
	var devs []struct{ Counters map[string]float64 }
	if err := json.Unmarshal([]byte(out), &devs); err != nil {
		return 0, 0, fmt.Errorf("read the counters of the service: %w", err)
	}
	for _, d := range devs {
		sent += d.Counters["sent_pkts"]
		short += d.Counters["sent_shortcut_pkts"]
	}
	return sent, short, nil
}

func concat(parts ...[]string) []string {
	var all []string
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// usedCPUTime returns the processor time of an ended command and its children.
func usedCPUTime(c *exec.Cmd) time.Duration {
	return c.ProcessState.UserTime() + c.ProcessState.SystemTime()
}

// processCPUTime returns the processor time of a process so far, including its ended threads.
func processCPUTime(pid int) (time.Duration, error) {
	const scheduler = 2 // CPUCLOCK_SCHED; the clock of a process is ^pid<<3 | CPUCLOCK_SCHED
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduler), &ts); err != nil {
		return 0, fmt.Errorf("read the processor clock of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// freePort returns a port without a listener, and returns each port only once.
func (e *Env) freePort() (int, error) {
	for range 1000 {
		if e.port == 0 {
			e.port = 19200 + 1000*e.Subnet
		}
		e.port++
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", e.port))
		if err == nil {
			l.Close()
			return e.port, nil
		}
	}
	return 0, fmt.Errorf("no free port up to %d", e.port)
}

// isListening reports whether a port has a listener in the network namespace of the process.
func isListening(pid, port int) bool {
	for _, f := range []string{"tcp", "tcp6"} {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, f))
		for l := range strings.Lines(string(b)) {
			if w := strings.Fields(l); len(w) > 3 && strings.HasSuffix(w[1], fmt.Sprintf(":%04X", port)) && w[3] == "0A" {
				return true
			}
		}
	}
	return false
}

// lastLines returns the last lines of a program's output, for an error message.
func lastLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-6):], "\n")
}
