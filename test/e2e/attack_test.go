//go:build e2e

package e2e

import (
	"bufio"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"verbena/internal/ctl"
	"verbena/internal/quota"
	"verbena/service"
)

// The tests in the files attack_*.go attack a root service shared by several users. Unprivileged users run the
// programs of testdata/attack, while another user, the neighbour, transfers data. Each test states the attacker's
// goal, checks that the attack fails, and checks that the neighbour continues. Tests listed in test/pending.txt are
// known to fail; see tools/verdict.
const (
	attacker = 65534
	neighbor = 65533
	stranger = 65532
)

// fullAttacks reports whether the attacks run with full counts.
var fullAttacks = os.Getenv("ATTACK_FULL") != ""

// shortOrFullCount returns the full count with ATTACK_FULL, and otherwise the short count.
func shortOrFullCount(short, full int) int {
	if fullAttacks {
		return full
	}
	return short
}

// objectLimitDivisor divides the default object limits in services of the attacks on tables. The time to reach the
// limits is proportional to the limits.
var objectLimitDivisor = shortOrFullCount(8, 1)

// fewObjectsArgs returns the arguments of a shared service with the default object limits divided by
// objectLimitDivisor.
func fewObjectsArgs() (args []string) {
	limits := service.DefaultLimits(true)
	for _, k := range []quota.ResourceKind{quota.PDs, quota.MRs, quota.MWs, quota.AHs, quota.CQs, quota.QPs, quota.SRQs,
		quota.XRCDs, quota.CMIDs} {
		l, share := limits[k], uint64(objectLimitDivisor)
		args = append(args, "--limit", fmt.Sprintf("%v=%d/%d", k, l.PerUser/share, l.Total/share))
	}
	return args
}

// attackedService is a service under attack.
type attackedService struct {
	*testService
	t         *testing.T
	program   string
	neighbour *interactiveProgram
	own       uint32   // if not 0, the service and all programs belong to this user
	run       []string // the flags of the attacks' verbena run
}

// startAttackedService starts a shared service, with a neighbour that transfers data.
func startAttackedService(t *testing.T, args ...string) *attackedService {
	t.Helper()
	return sharedConfig.startWithNeighbour(t, args...)
}

// serviceConfig describes the user, the privileges and the container of a service.
type serviceConfig struct {
	name string
	user testUser
	// prepare sets the fields under and clone of the world. The function prepare may be nil.
	prepare func(t *testing.T, w *testService)
	args    []string
}

// sharedConfig is a root service for all users.
var sharedConfig = serviceConfig{name: "root's", args: []string{"--mode", "0666"}}

// serviceConfigs lists the surroundings for attacks on the service process.
var serviceConfigs = []serviceConfig{
	sharedConfig,
	// This entry starts the service like packaging/verbena.service, as far as possible without systemd.
	{name: "unit", args: sharedConfig.args, prepare: func(t *testing.T, w *testService) {
		needProgram(t, "util-linux", "setpriv")
		w.under = []string{"setpriv", "--no-new-privs", "--inh-caps=-all",
			"--bounding-set=-all,+chown,+dac_override,+sys_ptrace,+sys_resource,+net_admin,+lease,+setpcap,+sys_admin"}
	}},
	// A user is a trust domain. In this entry the attacker is a program of the same user. The attacker may allocate
	// up to the user's limits, but it can neither stop the service nor prevent the service from freeing these
	// resources.
	{name: "user's", user: testUser{"owner", 4711}},
	{name: "container", args: sharedConfig.args, prepare: func(t *testing.T, w *testService) {
		needProgram(t, "util-linux", "nsenter")
		w.clone = syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS
		w.under = []string{"sh", "-c", `mount --make-rprivate / && mount -t proc proc /proc && exec "$@"`, "sh"}
		script := `exec "$@"`
		for _, d := range newCgroup(t, 1<<30, 900) {
			script = "echo 0 >" + d + "/cgroup.procs && " + script
		}
		w.under = append([]string{"sh", "-c", script, "sh"}, w.under...)
	}},
}

// fullCountOnce returns n, or a smaller count if the test runs the full count in other surroundings.
func (e *serviceConfig) fullCountOnce(n int) int {
	if e.name == sharedConfig.name {
		return n
	}
	return (n + 9) / 10
}

// startWithNeighbour starts a service with a neighbour that transfers data.
func (e *serviceConfig) startWithNeighbour(t *testing.T, args ...string) *attackedService {
	t.Helper()
	needRoot(t)
	w := newTestService(t, e.user, "")
	if e.prepare != nil {
		e.prepare(t, w)
	}
	w.start(append(append([]string{"--link", "rxe0=" + unusedAddr()}, e.args...), args...)...)
	os.Chmod(filepath.Dir(w.socket), 0o755)
	s := &attackedService{t: t, program: buildAttackProgram(t, "attack"), testService: w, own: e.user.uid}
	s.neighbour = startInteractiveProgram(t, s.asUser(neighbor).verbenaCommand(s.contextWithTimeout(12*3600), "run", "--",
		s.program, "neighbour", "atomics"))
	s.neighbour.expectLine("ready")
	return s
}

// forEachServiceConfig runs a test in all surroundings.
func forEachServiceConfig(t *testing.T, test func(t *testing.T, e *serviceConfig)) {
	for _, e := range serviceConfigs {
		t.Run(e.name, func(t *testing.T) { test(t, &e) })
	}
}

// asUser returns the same service for another user. A service of an ordinary user keeps its user.
func (s *attackedService) asUser(uid uint32, groups ...uint32) *testService {
	return s.testService.asUser(s.mappedUID(uid), groups...)
}

// mappedUID returns the user ID that represents a user in these surroundings.
func (s *attackedService) mappedUID(uid uint32) uint32 {
	if s.own != 0 && uid != 0 {
		return s.own
	}
	return uid
}

// startAttack starts an attack program under `verbena run`.
func (s *attackedService) startAttack(uid uint32, args ...string) *interactiveProgram {
	s.t.Helper()
	return startInteractiveProgram(s.t, s.asUser(uid).verbenaCommand(s.contextWithTimeout(shortOrFullCount(120, 1800)),
		slices.Concat([]string{"run"}, s.run, []string{"--", s.program}, args)...))
}

// startAttackOutside starts an attack program that does not run under `verbena run`.
func (s *attackedService) startAttackOutside(uid uint32, args ...string) *interactiveProgram {
	s.t.Helper()
	return startInteractiveProgram(s.t, s.plainCommand(uid, s.program, args...))
}

func (s *attackedService) plainCommand(uid uint32, program string, args ...string) *exec.Cmd {
	c := exec.CommandContext(s.contextWithTimeout(120), program, args...)
	c.Env = append(os.Environ(), "VERBENA_SOCKET="+s.socket, "HOME=/nonexistent")
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if uid = s.mappedUID(uid); s.runsInContainer() {
		s.enterContainer(c, uid)
	} else {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	}
	c.WaitDelay = 5 * time.Second
	s.t.Cleanup(func() {
		if c.Process != nil {
			syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		}
	})
	return c
}

// checkNeighbourProgress waits while the neighbour runs, and fails the test unless the neighbour makes progress. Each
// operation must take less than a second.
func (s *attackedService) checkNeighbourProgress() {
	s.t.Helper()
	s.neighbour.sendLine("how is it?")
	if _, ok := s.neighbour.nextLine(3 * time.Second); !ok {
		s.t.Errorf("neighbour: got no answer")
		return
	}
	// The attacker is not responsible for a busy machine, so the neighbour gets additional time for its operations.
	done := 0
	for range 10 {
		time.Sleep(300 * time.Millisecond)
		s.neighbour.sendLine("and now?")
		line, ok := s.neighbour.nextLine(3 * time.Second)
		var count, longest int
		if n, _ := fmt.Sscan(line, &count, &longest); !ok || n != 2 || longest > 1000 {
			s.t.Errorf("neighbour: got %q, want operations of at most 1000 ms each", line)
			return
		}
		if done += count; done >= 10 {
			return
		}
	}
	s.t.Errorf("neighbour: got %d operations in 3 s, want at least some hundred", done)
}

// checkServiceAndNeighbour checks the service and the neighbour during an attack that allocates all resources up to one
// user's limits.
func (s *attackedService) checkServiceAndNeighbour() {
	s.t.Helper()
	if s.own == 0 {
		s.checkServesNewUser()
		s.checkNeighbourProgress()
	}
}

// mustRunAsRoot runs a command as root, which must return in time.
func (s *attackedService) mustRunAsRoot(within time.Duration, args ...string) string {
	s.t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	b, err := s.verbenaCommand(ctx, args...).CombinedOutput()
	if err != nil {
		s.t.Errorf("verbena %s: %v after %v: %s", strings.Join(args, " "), err, time.Since(began).Round(time.Millisecond), b)
	}
	return string(b)
}

// checkServesNewUser fails the test unless the service answers and serves a new user.
func (s *attackedService) checkServesNewUser() {
	s.t.Helper()
	s.mustRunAsRoot(5*time.Second, "link", "show")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	b, err := s.asUser(stranger).verbenaCommand(ctx, "run", "--", s.program, "paths",
		"/dev/infiniband/uverbs0").CombinedOutput()
	if err != nil || !strings.Contains(string(b), "uverbs0: success") {
		s.t.Errorf("another user's program: %v %q", err, b)
	}
}

// serviceLoad holds the kernel's figures about the service process.
type serviceLoad struct {
	threads, descriptors, mappings int
	rss                            int           // resident memory in MiB
	cpu                            time.Duration // total processor time
}

func (s *attackedService) readLoad() (l serviceLoad) {
	s.t.Helper()
	pid := s.serve.Process.Pid
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		s.t.Fatalf("read the load of the service: %v\n%s", err, lastLines(s.log.String(), 30))
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		switch f[0] {
		case "Threads:":
			l.threads = atoi(f[1])
		case "VmRSS:":
			l.rss = atoi(f[1]) >> 10
		}
	}
	fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	l.descriptors = len(fds)
	b, _ = os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	l.mappings = strings.Count(string(b), "\n")
	b, _ = os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if i := strings.LastIndexByte(string(b), ')'); i > 0 {
		f := strings.Fields(string(b[i+1:]))
		l.cpu = time.Duration(atoi(f[11])+atoi(f[12])) * 10 * time.Millisecond
	}
	return l
}

// countGoroutines returns the number of goroutines of the service, from its profile. A leak of ended sessions shows in
// this number, not in the number of threads, because the Go runtime keeps idle threads.
func (s *attackedService) countGoroutines() (n int) {
	s.t.Helper()
	z, err := gzip.NewReader(strings.NewReader(s.mustRun("debug", "pprof", "goroutine")))
	if err != nil {
		s.t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		s.t.Fatal(err)
	}
	// The constants are numbers of fields in the messages Profile and Sample of pprof's profile.proto.
	const profileSample, sampleValue = 2, 2
	eachField(s.t, b, profileSample, func(sample []byte) {
		eachField(s.t, sample, sampleValue, func(value []byte) {
			v, _ := protowire.ConsumeVarint(value)
			n += int(v)
		})
	})
	if n == 0 {
		s.t.Fatal("the profile of the service has no goroutines")
	}
	return n
}

// eachField calls f with the value of each field num of a message. The value of a field of bytes is without its length.
func eachField(t *testing.T, b []byte, num protowire.Number, f func([]byte)) {
	t.Helper()
	for len(b) > 0 {
		got, typ, n := protowire.ConsumeTag(b)
		size := protowire.ConsumeFieldValue(got, typ, b[max(n, 0):])
		if n < 0 || size < 0 {
			t.Fatalf("a profile of the service ends in a field: %v", protowire.ParseError(min(n, size)))
		}
		v := b[n : n+size]
		if typ == protowire.BytesType {
			v, _ = protowire.ConsumeBytes(v)
		}
		if got == num {
			f(v)
		}
		b = b[n+size:]
	}
}

// attachMessage returns a request to supervise a program, in the protocol of the service.
func (s *attackedService) attachMessage(pid int) string {
	return fmt.Sprintf(`{"Protocol":%d,"Op":"attach","Attach":{"PID":%d,"Args":["x"]}}`, ctl.ProtocolVersion, pid)
}

// interactiveProgram is a program that exchanges lines with the test.
type interactiveProgram struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	said  []string
	over  chan struct{} // closed after the program has ended
	end   error         // result of Wait; valid once over is closed
}

func startInteractiveProgram(t *testing.T, c *exec.Cmd) *interactiveProgram {
	t.Helper()
	d := &interactiveProgram{t: t, cmd: c, lines: make(chan string, 10000), over: make(chan struct{})}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout, c.Stderr = w, w
	if d.in, err = c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	err = c.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(d.over)
		d.end = c.Wait()
	}()
	go func() {
		defer r.Close()
		defer close(d.lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			d.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		d.in.Close()
		select {
		case <-d.over:
		// the program may wait for a file that does not answer until the file system is aborted
		case <-time.After(time.Second):
		}
	})
	return d
}

func (d *interactiveProgram) sendLine(line string) { fmt.Fprintln(d.in, line) }

// nextLine returns the next line, or false if no line arrives in time.
func (d *interactiveProgram) nextLine(within time.Duration) (string, bool) {
	select {
	case l, ok := <-d.lines:
		if ok {
			d.said = append(d.said, l)
		}
		return l, ok
	case <-time.After(within):
		return "", false
	}
}

// nextLineWith returns the next line with the given prefix. nextLineWith fails the test if the program ends, or prints
// no such line in time.
func (d *interactiveProgram) nextLineWith(prefix string, within time.Duration) string {
	d.t.Helper()
	for deadline := time.Now().Add(within); ; {
		l, ok := d.nextLine(time.Until(deadline))
		if strings.HasPrefix(l, prefix) && ok {
			return l
		}
		if !ok {
			select {
			case <-d.over:
				d.t.Fatalf("line %q: the program has ended: %v; it printed %q", prefix, d.end, d.said)
			case <-time.After(10 * time.Millisecond):
				d.t.Fatalf("line %q: timed out after %v; the program printed %q", prefix, within, d.said)
			}
		}
	}
}

func (d *interactiveProgram) expectLine(prefix string) string {
	d.t.Helper()
	return d.nextLineWith(prefix, 10*time.Second)
}

// lastLines returns all lines until the program ends or the time is over.
func (d *interactiveProgram) lastLines(within time.Duration) []string {
	for deadline := time.Now().Add(within); ; {
		if _, ok := d.nextLine(time.Until(deadline)); !ok {
			return d.said
		}
	}
}

func (d *interactiveProgram) kill() { syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL) }
