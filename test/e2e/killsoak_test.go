//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/internal/testutil"
)

// The kill soak starts programs that create objects, and kills the program, its launcher or both at a random
// moment. After each round no object or file of the program may remain in the service. ROUNDS sets the number of
// rounds. SEED selects the seed of a soak to repeat it.

func soakRounds() int {
	if n, err := strconv.Atoi(os.Getenv("ROUNDS")); err == nil {
		return n
	}
	return 100
}

// killedProgram is a kind of program that the soak kills. Several commands start in sequence.
type killedProgram struct {
	name   string
	weight int
	life   time.Duration // limit of the random time before the kill
	argv   [][]string
}

type killSoak struct {
	*testService
	t       *testing.T
	client  *ctl.Client
	dir     string // directory of the service; queue files have its name as prefix
	victims []killedProgram
	base    footprint
	killed  map[string]int

	contexts, objects int           // contexts and objects at the time of the kill
	longest           time.Duration // time until no object was left
}

// footprint holds the resources that a service uses without running programs.
type footprint struct {
	descriptors int
	queueMaps   int
	bytes       int64 // bytes of the queues
	files       int
}

func TestKillSoak(t *testing.T) {
	t.Parallel()
	raw := buildRawverbs(t)
	w := startService(t, testUsers()[len(testUsers())-1], "", "--link", "rxe0="+unusedAddr())
	s := &killSoak{testService: w, t: t, killed: map[string]int{}}
	var err error
	if s.client, err = ctl.Dial(w.location()); err != nil {
		t.Fatal(err)
	}
	defer s.client.Close()
	// the service listens before it has allocated all of its resources
	if _, err := s.client.Do(&ctl.Request{Op: ctl.OpInfo}); err != nil {
		t.Fatal(err)
	}
	// The programs of killed launchers become children of this process, which must reap them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	s.dir = runDirOf(t, w.serve.Process.Pid)
	s.victims = []killedProgram{{"rawverbs", 90, 60 * time.Millisecond, [][]string{{raw, "hoard", "SEED"}}}}
	add := func(pkg string, v killedProgram) {
		if _, err := exec.LookPath(v.argv[0][0]); err != nil {
			t.Logf("%s is not installed (apt-get install %s)", v.name, pkg)
			return
		}
		s.victims = append(s.victims, v)
	}
	add("ibverbs-utils", killedProgram{"ibv_rc_pingpong", 6, 300 * time.Millisecond, [][]string{
		{"ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "100000000", "-p", "PORT"},
		{"ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "100000000", "-p", "PORT", "127.0.0.1"}}})
	add("perftest", killedProgram{"ib_write_bw", 3, 600 * time.Millisecond, [][]string{
		{"ib_write_bw", "-d", "rxe0", "-x", "1", "-D", "60", "-p", "PORT"},
		{"ib_write_bw", "-d", "rxe0", "-x", "1", "-D", "60", "-p", "PORT", "127.0.0.1"}}})
	if exec.Command("/usr/bin/python3", "-c", "import pyverbs.device").Run() == nil {
		add("python3-pyverbs", killedProgram{"pyverbs", 1, 1500 * time.Millisecond,
			[][]string{{"/usr/bin/python3", "-c", pyverbsHoardScript}}})
	}
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 7))
	began, rounds := time.Now(), soakRounds()
	for i := range rounds {
		if i == 5 { // the service then has allocated its long-lived resources
			s.base = measureRestingFootprint(s.t, s.serve.Process.Pid, s.dir)
		}
		what := s.runRound(r)
		s.awaitEmpty(i, what)
		if i%500 == 499 {
			fmt.Printf("round %d of %d after %v: %v; service: %s\n", i+1, rounds, time.Since(began).Round(time.Second), s.killed,
				describeMemoryOf(w.serve.Process.Pid))
		}
	}
	t.Logf("%d rounds in %v: %v; they had %d contexts with %d objects; no object left after at most %v; service: %s",
		rounds, time.Since(began).Round(time.Second), s.killed, s.contexts, s.objects, s.longest.Round(
			time.Millisecond), describeMemoryOf(w.serve.Process.Pid))
	if s.objects == 0 {
		t.Error("victims: created no object")
	}
}

const pyverbsHoardScript = `
import pyverbs.device as d, pyverbs.pd as p, pyverbs.cq as c, pyverbs.mr as m, time
from pyverbs.qp import QP, QPInitAttr, QPCap
import pyverbs.enums as e
keep = []
ctx = d.Context(name='rxe0')
while True:
    pd = p.PD(ctx); ch = c.CompChannel(ctx); cq = c.CQ(ctx, 10, None, ch, 0)
    keep += [pd, ch, cq, m.MR(pd, 65536, e.IBV_ACCESS_LOCAL_WRITE), QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=8, max_recv_wr=8)))]
    time.sleep(0.01)
`

// runDirOf returns the directory of a service on /dev/shm.
func runDirOf(t *testing.T, pid int) string {
	t.Helper()
	for _, what := range descriptorsOf(pid) {
		if strings.HasPrefix(what, "/dev/shm/verbena-") && strings.HasSuffix(what, "/lock") {
			return filepath.Dir(what)
		}
	}
	t.Fatal("service: got no directory on /dev/shm")
	return ""
}

func descriptorsOf(pid int) (list []string) {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	for _, e := range entries {
		if what, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name())); err == nil {
			list = append(list, what)
		}
	}
	return list
}

// exceeds reports whether any resource of f exceeds that of g.
func (f footprint) exceeds(g footprint) bool {
	return f.descriptors > g.descriptors || f.queueMaps > g.queueMaps || f.bytes > g.bytes || f.files > g.files
}

// measureRestingFootprint returns the smallest footprint of a service within a short time. The service closes a
// connection shortly after its client has ended.
func measureRestingFootprint(t *testing.T, pid int, dir string) footprint {
	t.Helper()
	least := measureFootprint(t, pid, dir)
	for range 50 {
		time.Sleep(10 * time.Millisecond)
		if f := measureFootprint(t, pid, dir); least.exceeds(f) {
			least = f
		}
	}
	return least
}

// measureFootprint returns the footprint of a service. The queue files have the name of the service's directory on
// /dev/shm as prefix.
func measureFootprint(t *testing.T, pid int, dir string) footprint {
	t.Helper()
	var f footprint
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	f.descriptors = len(fds)
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	f.queueMaps = strings.Count(string(maps), "/dev/shm/")
	for _, e := range fds {
		link := fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name())
		var st syscall.Stat_t
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, "/memfd:"+dir) &&
			syscall.Stat(link, &st) == nil {
			f.files++
			f.bytes += st.Blocks * 512
		}
	}
	return f
}

// describeMemoryOf returns a description of a process's memory use for the log, which shows that it does not grow.
func describeMemoryOf(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	var list []string
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "VmRSS:") || strings.HasPrefix(line, "Threads:") {
			list = append(list, strings.Join(strings.Fields(line), " "))
		}
	}
	return strings.Join(list, ", ")
}

// runRound starts a victim, kills it, and waits until its objects are freed.
func (s *killSoak) runRound(r *rand.Rand) string {
	total := 0
	for _, v := range s.victims {
		total += v.weight
	}
	n := r.IntN(total)
	v := &s.victims[0]
	for i := range s.victims {
		if v = &s.victims[i]; n < v.weight {
			break
		}
		n -= v.weight
	}
	port, seed := unusedTCPPort(), r.Uint64()
	var launchers []*exec.Cmd
	for i, argv := range v.argv {
		if i > 0 {
			testutil.PauseRandomly(r, 100*time.Millisecond)
		}
		args := []string{"run", "--"}
		for _, a := range argv {
			args = append(args, strings.NewReplacer("PORT", port, "SEED", fmt.Sprint(seed)).Replace(a))
		}
		c := exec.Command(verbenaBinary(s.t), args...)
		c.Env = append(os.Environ(), "VERBENA_SOCKET="+s.socket)
		c.Dir = "/"
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if os.Getuid() == 0 {
			c.SysProcAttr.Credential = &syscall.Credential{Uid: s.user.uid, Gid: s.user.uid}
		}
		if err := c.Start(); err != nil {
			s.t.Fatal(err)
		}
		launchers = append(launchers, c)
	}
	// A program starts slowly on a busy machine. Half of the victims create objects before their random time
	// begins, unless they end by themselves. A client ends if its server does not listen yet.
	if r.IntN(2) == 0 {
		testutil.Eventually(s.t, v.name+" to create an object, or to end", func() bool {
			_, objects := s.countObjects()
			return objects > 0 || slices.ContainsFunc(launchers, hasEnded)
		})
	}
	testutil.PauseRandomly(r, v.life)
	contexts, objects := s.countObjects()
	s.contexts += contexts
	s.objects += objects
	how := [...]string{"program", "program", "program", "launcher", "all"}[r.IntN(5)]
	for _, c := range launchers {
		switch how {
		case "program":
			for _, pid := range childrenOf(c.Process.Pid) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		case "launcher":
			_ = c.Process.Kill()
		}
	}
	if how != "all" {
		testutil.PauseRandomly(r, 5*time.Millisecond)
	}
	for _, c := range launchers {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // also in forked processes
		_ = c.Wait()
		for {
			if _, err := unix.Wait4(-c.Process.Pid, nil, 0, nil); err != nil && err != unix.EINTR {
				break
			}
		}
	}
	s.killed[v.name]++
	return v.name + ", killed the " + how
}

// countObjects returns the numbers of contexts and objects in the service.
func (s *killSoak) countObjects() (contexts, objects int) {
	res, err := s.client.Do(&ctl.Request{Op: ctl.OpResShow})
	if err != nil {
		return 0, 0
	}
	for _, c := range res.Contexts {
		contexts++
		objects += c.PDs + c.AHs + len(c.MRs) + len(c.CQs) + len(c.QPs)
	}
	return contexts, objects
}

// hasEnded reports whether a child process has ended, without reaping it.
func hasEnded(c *exec.Cmd) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, c.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo == int32(unix.SIGCHLD)
}

func childrenOf(pid int) (list []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range tasks {
		b, _ := os.ReadFile(f)
		for _, w := range strings.Fields(string(b)) {
			list = append(list, atoi(w))
		}
	}
	return list
}

// awaitNoProgramObjects waits until no object or program of a round is left.
func (s *killSoak) awaitEmpty(round int, what string) {
	var contexts, programs int
	var now footprint
	began := time.Now()
	defer func() { s.longest = max(s.longest, time.Since(began)) }()
	isEmpty := func() bool {
		info, err := s.client.Do(&ctl.Request{Op: ctl.OpInfo})
		if err != nil {
			s.t.Fatalf("round %d (%s): %v", round, what, err)
		}
		if programs = info.Info.Programs; programs == 0 {
			res, err := s.client.Do(&ctl.Request{Op: ctl.OpResShow})
			if err != nil {
				s.t.Fatalf("round %d (%s): %v", round, what, err)
			}
			if contexts = len(res.Contexts); contexts == 0 {
				if now = measureFootprint(s.t, s.serve.Process.Pid, s.dir); s.base.descriptors == 0 || !now.exceeds(s.base) {
					return true
				}
			}
		}
		if time.Since(began) > 2*time.Minute {
			s.t.Fatalf("round %d (%s): got %d contexts, %d programs and %+v left; before: %+v\n%v",
				round, what, contexts, programs, now, s.base, descriptorsOf(s.serve.Process.Pid))
		}
		return false
	}
	for !testutil.PollUntil(isEmpty) { // isEmpty ends the test after two minutes
	}
}
