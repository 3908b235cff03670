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

	"verbena/internal/testutil"
)

// soakRoundsOr returns the number of rounds of a soak. The number is ROUNDS, or the short count.
func soakRoundsOr(short int) int {
	if n, err := strconv.Atoi(os.Getenv("ROUNDS")); err == nil {
		return n
	}
	return short
}

// TestSoakUsers stops and kills programs of two users, or their launchers, at random moments. In every round the
// neighbour must continue, and no object of the programs may be left after the round. SEED selects the seed of a
// soak to repeat it.
func TestSoakUsers(t *testing.T) {
	t.Parallel()
	raw := buildRawverbs(t)
	s := startAttackedService(t)
	// The programs of killed launchers become children of this process, which must reap them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	dir := runDirOf(t, s.serve.Process.Pid)
	var base footprint
	var threads int
	done := map[string]int{}
	longest := time.Duration(0)
	const often = 100 // number of rounds between reports and measurements
	var undisturbed float64
	var control *attackedService // this pair shares only the machine with the programs of s
	if soakRoundsOr(12) >= often {
		needProgram(t, "perftest", "ib_send_lat")
		s.withNeighbourStopped(func() { undisturbed = s.measureRoundTripP99() })
		t.Logf("undisturbed: p99 %.1f us", undisturbed)
		control = startAttackedService(t)
		control.stopNeighbour()
	}
	for i := range soakRoundsOr(12) {
		if i == 5 { // the service then has allocated its long-lived resources
			base, threads = measureRestingFootprint(t, s.serve.Process.Pid, dir), s.readLoad().threads
		}
		what := s.runKillRound(r, raw)
		done[what]++
		began := time.Now()
		s.checkNeighbourProgress()
		s.awaitOnlyNeighbour()
		testutil.PollUntil(func() bool {
			now := measureFootprint(t, s.serve.Process.Pid, dir)
			if base.descriptors == 0 || !now.exceeds(base) && s.readLoad().threads <= threads+32 {
				return true
			}
			if time.Since(began) > 15*time.Second {
				t.Fatalf("round %d (%s): got %+v and %d threads left; before: %+v and %d\n%q", i, what, now, s.readLoad().threads,
					base,
					threads,
					descriptorsOf(s.serve.Process.Pid))
			}
			return false
		})
		longest = max(longest, time.Since(began))
		if t.Failed() {
			t.Fatalf("round %d: %s", i, what)
		}
		if i%often == often-1 {
			var p99, elsewhere float64
			var rounds int
			s.withNeighbourStopped(func() {
				p99, rounds = s.measureP99Beside(func() { s.runKillRound(r, raw) })
				elsewhere, _ = s.measureP99Beside(func() { control.runKillRound(r, raw) })
			})
			fmt.Printf(
				"round %d: %v; service: %+v; beside %d more rounds p99 is %.1f us, %.2f times; beside rounds of another service %.2f times\n",
				i+1, done, s.readLoad(), rounds, p99, p99/undisturbed, elsewhere/undisturbed)
		}
	}
	t.Logf("%v; no object left after at most %v; service: %+v", done, longest.Round(time.Millisecond), s.readLoad())
}

// withNeighbourStopped calls f while the neighbour is stopped.
func (s *attackedService) withNeighbourStopped(f func()) {
	s.t.Helper()
	s.stopNeighbour()
	f()
	_ = syscall.Kill(-s.neighbour.cmd.Process.Pid, syscall.SIGCONT)
	// the next answer must cover only the operations after this one
	s.neighbour.sendLine("what was the longest operation?")
	s.neighbour.nextLine(3 * time.Second)
}

func (s *attackedService) stopNeighbour() {
	_ = syscall.Kill(-s.neighbour.cmd.Process.Pid, syscall.SIGSTOP)
}

// measureP99Beside measures p99 while it calls the function other repeatedly. measureP99Beside also returns the number
// of calls.
func (s *attackedService) measureP99Beside(other func()) (p99 float64, times int) {
	s.t.Helper()
	measured := make(chan struct{})
	go func() {
		defer close(measured)
		p99 = s.measureRoundTripP99()
	}()
	for {
		select {
		case <-measured:
			return p99, times
		default:
			other()
			times++
		}
	}
}

// runKillRound starts programs of one or both users, and kills or terminates them.
func (s *attackedService) runKillRound(r *rand.Rand, raw string) string {
	var launchers []*exec.Cmd
	for _, uid := range [][]uint32{{attacker}, {stranger}, {attacker, stranger}}[r.IntN(3)] {
		c := s.plainCommand(uid, verbenaBinary(s.t), "run", "--", raw, "hoard", fmt.Sprint(r.Uint64()))
		if err := c.Start(); err != nil {
			s.t.Fatal(err)
		}
		launchers = append(launchers, c)
	}
	testutil.PauseRandomly(r, 120*time.Millisecond)
	how := [...]string{"program killed", "launcher killed", "both killed", "program stopped, then killed",
		"launcher stopped, then killed",
		"program stopped, launcher killed", "terminated"}[r.IntN(7)]
	for _, c := range launchers {
		programs, launcher := childrenOf(c.Process.Pid), c.Process.Pid
		signal := func(pids []int, sig syscall.Signal) {
			for _, pid := range pids {
				_ = syscall.Kill(pid, sig)
			}
		}
		pause := func() { testutil.PauseRandomly(r, 30*time.Millisecond) }
		switch how {
		case "program killed":
			signal(programs, syscall.SIGKILL)
		case "launcher killed":
			signal([]int{launcher}, syscall.SIGKILL)
		case "program stopped, then killed":
			signal(programs, syscall.SIGSTOP)
			pause()
			signal(programs, syscall.SIGKILL)
		case "launcher stopped, then killed":
			signal([]int{launcher}, syscall.SIGSTOP)
			pause()
			signal([]int{launcher}, syscall.SIGKILL)
		case "program stopped, launcher killed":
			signal(programs, syscall.SIGSTOP)
			signal([]int{launcher}, syscall.SIGKILL)
			pause()
		case "terminated":
			signal([]int{launcher}, syscall.SIGTERM)
		}
		pause()
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
	return how
}

// TestProgramsFailAfterServiceKill tests that each program gets an error within two seconds after the kill of its
// service, in every kind of wait.
func TestProgramsFailAfterServiceKill(t *testing.T) {
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	raw := buildRawverbs(t)
	s := startAttackedService(t)
	idle := startInteractiveProgram(t, s.asUser(stranger).verbenaCommand(s.contextWithTimeout(60), "run", "--", raw,
		"fill", "all",
		"100"))
	idle.nextLineWith("has", 20*time.Second)
	port := unusedTCPPort()
	server := s.asUser(stranger).verbenaCommand(s.contextWithTimeout(60), "run", "--", "ibv_rc_pingpong", "-d", "rxe0",
		"-g", "1", "-n",
		"100000000", "-e", "-p", port)
	waiting := startInteractiveProgram(t, server) // waits for a client that does not connect
	s.mustRun("wait", "--listen", port)
	began := time.Now()
	if err := s.serve.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// One program polls its completion queue, and the other makes further calls. A call that the service had
	// received but not answered becomes a call on an ordinary file, which returns EINVAL.
	said := strings.Join(s.neighbour.lastLines(2*time.Second), "\n")
	if !strings.Contains(said, "failed") && !strings.Contains(said, "Input/output error") &&
		!strings.Contains(said, "Invalid argument") {
		t.Errorf("polling program: got no error: %s", said)
	}
	idle.sendLine("a message")
	idle.nextLineWith("rawverbs:", 2*time.Second)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("programs: got their errors after %v", took)
	}
	syscall.Kill(server.Process.Pid, syscall.SIGTERM)
	waiting.lastLines(2 * time.Second)
}

// TestCallsWaitWhileServiceIsStopped tests that calls and commands wait while the service is stopped, and complete
// after the service continues.
func TestCallsWaitWhileServiceIsStopped(t *testing.T) {
	t.Parallel()
	raw := buildRawverbs(t)
	s := startAttackedService(t)
	a := startInteractiveProgram(t, s.asUser(stranger).verbenaCommand(s.contextWithTimeout(60), "run", "--", raw, "fill",
		"all",
		"100"))
	a.nextLineWith("has", 20*time.Second)
	pid := s.serve.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := true
	defer func() {
		if stopped {
			syscall.Kill(pid, syscall.SIGCONT)
		}
	}()
	testutil.Eventually(t, "the service to stop", func() bool { // each thread of the service must be stopped
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		if err != nil || len(threads) == 0 {
			t.Fatalf("threads of the service: got %v and error %v, want some", threads, err)
		}
		return !slices.ContainsFunc(threads, func(status string) bool {
			b, err := os.ReadFile(status)
			return err == nil && !strings.Contains(string(b), "State:\tT")
		})
	})
	a.sendLine("a message")
	newcomer := startInteractiveProgram(t, s.asUser(attacker).verbenaCommand(s.contextWithTimeout(60), "run", "--",
		s.program,
		"paths", "/dev/infiniband/uverbs0"))
	command := startInteractiveProgram(t, s.verbenaCommand(s.contextWithTimeout(60), "link", "show"))
	if line, ok := a.nextLine(time.Duration(shortOrFullCount(2, 10)) * time.Second); ok {
		t.Errorf("program of a stopped service: got output %q, want none", line)
	}
	syscall.Kill(pid, syscall.SIGCONT)
	stopped = false
	a.nextLineWith("ok", 5*time.Second)
	newcomer.nextLineWith("/dev/infiniband/uverbs0: success", 5*time.Second)
	command.nextLineWith("rxe0", 5*time.Second)
	s.neighbour.sendLine("how is it?")
	s.neighbour.nextLineWith("", 5*time.Second)
	s.checkNeighbourProgress()
}

// TestErrorNamesReachedLimit tests that the error of the command, or the service's log, names a limit that was reached.
func TestErrorNamesReachedLimit(t *testing.T) {
	t.Parallel()
	raw := buildRawverbs(t)
	t.Run("descriptors of the service", func(t *testing.T) {
		s := startAttackedService(t)
		few := unix.Rlimit{Cur: uint64(s.readLoad().descriptors) + 12, Max: 2048}
		if err := unix.Prlimit(s.serve.Process.Pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
			t.Fatal(err)
		}
		out, err := s.asUser(attacker).verbenaCommand(s.contextWithTimeout(20), "run", "--", raw, "fill", "contexts",
			"50").CombinedOutput()
		t.Logf("%v: %s", err, out)
		testutil.Eventually(t, "the limit to be named", func() bool {
			return strings.Contains(strings.ToLower(string(out)+s.log.String()), "too many open files")
		})
		s.checkNeighbourProgress()
		few = unix.Rlimit{Cur: 2048, Max: 2048}
		if err := unix.Prlimit(s.serve.Process.Pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
			t.Fatal(err)
		}
		s.checkServesNewUser()
	})
	t.Run("memory of queues", func(t *testing.T) {
		s := startAttackedService(t, "--limit", "ring-bytes=2M/16M")
		out, _ := s.asUser(attacker).verbenaCommand(s.contextWithTimeout(20), "run", "--", raw, "fill", "qps",
			"1000").CombinedOutput()
		if !strings.Contains(string(out), "qps refused after") {
			t.Errorf("fill qps: got %s, want a refusal", out)
		}
		testutil.Eventually(t, "the log to name the limit", func() bool {
			return strings.Contains(s.log.String(), "--limit ring-bytes=")
		})
	})
	t.Run("no room on /dev/shm", func(t *testing.T) {
		needRoot(t)
		w := newTestService(t, testUsers()[0], "")
		script := `mount -t tmpfs -o nr_inodes=2 tmpfs /dev/shm && exec "$0" run --private --link rxe0=` + unusedAddr() +
			` -- true`
		c := exec.CommandContext(w.contextWithTimeout(20), "unshare", "-m", "sh", "-c", script, verbenaBinary(t))
		out, err := c.CombinedOutput()
		if exitCode(err) != 125 || !strings.Contains(string(out), "/dev/shm") ||
			!strings.Contains(string(out), "no space left") {
			t.Errorf("exit code %d, want 125: %s", exitCode(err), out)
		}
	})
	t.Run("locked memory", func(t *testing.T) {
		s := startAttackedService(t)
		script := "ulimit -l 64; exec " + s.program + " user-namespace pin 1048576"
		out, _ := s.asUser(attacker).verbenaCommand(s.contextWithTimeout(20), "run", "--", "sh", "-c",
			script).CombinedOutput()
		if !strings.Contains(string(out), "pin: Cannot allocate memory") {
			t.Errorf("pin: got %s, want ENOMEM", out)
		}
		testutil.Eventually(t, "the log to name the limit", func() bool {
			return strings.Contains(s.log.String(), "RLIMIT_MEMLOCK")
		})
	})
	t.Run("address space of the program", func(t *testing.T) {
		s := startAttackedService(t)
		// An error from the program's own limit must not affect the service or other programs.
		script := "ulimit -v 20000; exec " + s.program + " neighbour"
		out, err := s.asUser(attacker).verbenaCommand(s.contextWithTimeout(5), "run", "--", "sh", "-c",
			script+" </dev/null").CombinedOutput()
		t.Logf("%v: %s", err, out)
		s.checkNeighbourProgress()
		s.awaitOnlyNeighbour()
	})
	t.Run("disk", func(t *testing.T) {
		needRoot(t)
		s := startAttackedService(t)
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4k"); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(dir, unix.MNT_DETACH)
		out, err := s.verbenaCommand(s.contextWithTimeout(20), "run", "--capture", filepath.Join(dir, "x"), "--", raw,
			"fill", "all",
			"50").CombinedOutput()
		if !strings.Contains(string(out), "no space left") || !strings.Contains(string(out), dir) {
			t.Errorf("%v: %s", err, out)
		}
		s.checkNeighbourProgress()
	})
}
