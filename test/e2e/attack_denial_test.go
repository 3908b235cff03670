//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/internal/testutil"
)

// These constants bound the resources of a root service under attack. The bounds are far above the needs of the
// service and far below the fatal limits: 10000 threads in the Go runtime, vm.max_map_count (65530) and the usual
// hard limit of descriptors.
const (
	maxThreads     = 1500
	maxMappings    = 49152
	maxDescriptors = 16384
)

// checkLoadBounded fails the test if a resource of the service exceeds its bound.
func (s *attackedService) checkLoadBounded(before serviceLoad, rss int) {
	s.t.Helper()
	l := s.readLoad()
	s.t.Logf("load of the service: %+v before, %+v now", before, l)
	if l.threads > maxThreads || l.mappings > maxMappings || l.descriptors > maxDescriptors || l.rss > before.rss+rss {
		s.t.Errorf("load of the service: got %+v, want at most %d threads, %d mappings, %d descriptors and %d MiB more than before, %d MiB",
			l, maxThreads, maxMappings, maxDescriptors, rss, before.rss)
	}
}

// TestAttackThreadExhaustion tests that the service refuses further sessions of a user with unfinished calls before the
// calls exhaust its threads. (B1)
func TestAttackThreadExhaustion(t *testing.T) {
	t.Parallel()
	s := startAttackedService(t)
	before, goroutines := s.readLoad(), s.countGoroutines()
	fs := newStallFS(t, attacker, fuseRead)
	a := s.startAttackOutside(attacker, "sessions", s.socket, s.attachMessage(1),
		fmt.Sprint(shortOrFullCount(110, 680)), "16", fs.pagePath())
	t.Log(a.nextLineWith("attached", 30*time.Second))
	s.checkLoadBounded(before, 500)
	s.checkNeighbourProgress()
	s.checkServesNewUser()
	attacked := s.countGoroutines()
	fs.abort()
	a.kill()
	testutil.Eventually(t, "goroutines and descriptors to end with the attacker", func() bool {
		return s.countGoroutines() <= goroutines+10 && s.readLoad().descriptors <= before.descriptors+10
	})
	if attacked < goroutines+20 {
		t.Errorf("%d goroutines before the attack and %d during it, which is too few for the attacker's sessions",
			goroutines, attacked)
	}
	s.checkServesNewUser()
}

// TestAttackManyQueuePairs tests that a third user can create ten thousand queue pairs while two users are at their
// limits. (B2)
func TestAttackManyQueuePairs(t *testing.T) {
	t.Parallel()
	raw := buildRawverbs(t)
	s := startAttackedService(t, fewObjectsArgs()...)
	before := s.readLoad()
	for _, uid := range []uint32{attacker, stranger} {
		a := startInteractiveProgram(t, s.asUser(uid).verbenaCommand(s.contextWithTimeout(120), "run", "--", raw, "fill",
			"qps",
			fmt.Sprint(33000/objectLimitDivisor)))
		t.Log(a.nextLineWith("has", 60*time.Second))
	}
	third := startInteractiveProgram(t, s.asUser(1001).verbenaCommand(s.contextWithTimeout(120), "run", "--", raw,
		"fill", "qps",
		fmt.Sprint(10000/objectLimitDivisor)))
	if line := third.nextLineWith("has", 60*time.Second); line != fmt.Sprintf("has qps=%d", 10000/objectLimitDivisor) {
		t.Errorf("third user: got %s: %q", line, third.said)
	}
	s.checkLoadBounded(before, 2000)
	third.sendLine("a message")
	third.expectLine("ok")
	s.checkNeighbourProgress()
	s.checkServesNewUser()
}

// TestAttackRandomObjects tests that a user who allocates every kind of object up to the limit does not affect
// another user. (B2, B5)
func TestAttackRandomObjects(t *testing.T) {
	t.Parallel()
	raw := buildRawverbs(t)
	s := startAttackedService(t)
	before := s.readLoad()
	a := startInteractiveProgram(t, s.asUser(attacker).verbenaCommand(s.contextWithTimeout(120), "run", "--", raw,
		"fill", "all",
		fmt.Sprint(shortOrFullCount(20000, 1000000))))
	t.Log(a.nextLineWith("has", 60*time.Second))
	t.Logf("%q", a.said)
	s.checkLoadBounded(before, 1500)
	b := startInteractiveProgram(t, s.asUser(stranger).verbenaCommand(s.contextWithTimeout(60), "run", "--", raw, "fill",
		"all",
		"500"))
	if line := b.nextLineWith("has", 30*time.Second); len(b.said) != 1 {
		t.Errorf("another user: got %s: %q", line, b.said)
	}
	b.sendLine("a message")
	b.expectLine("ok")
	s.checkNeighbourProgress()
	s.checkServesNewUser()
}

// TestAttackObjectLimits tests that a user at the limit for a kind of object leaves objects of this kind for other
// users. (B5)
func TestAttackObjectLimits(t *testing.T) {
	t.Parallel()
	raw := buildRawverbs(t)
	s := startAttackedService(t, fewObjectsArgs()...)
	before := s.readLoad()
	for _, c := range []struct {
		kind      string
		all, some int
	}{
		{"ahs", 33000 / objectLimitDivisor, 100}, {"srqs", 33000 / objectLimitDivisor, 100}, {"channels", 4000,
			100}, {"contexts", 1000,
			20},
		{"pds", 40000 / objectLimitDivisor, 100}, {"mws", 33000 / objectLimitDivisor, 100}, {"cqs",
			33000 / objectLimitDivisor, 100},
	} {
		t.Run(c.kind, func(t *testing.T) {
			s.testService.t, s.t = t, t
			a := startInteractiveProgram(t, s.asUser(attacker).verbenaCommand(s.contextWithTimeout(60), "run", "--", raw,
				"fill", c.kind,
				fmt.Sprint(c.all)))
			t.Log(a.nextLineWith("has", 40*time.Second), a.said[0])
			b := startInteractiveProgram(t, s.asUser(stranger).verbenaCommand(s.contextWithTimeout(60), "run", "--", raw,
				"fill", c.kind,
				fmt.Sprint(c.some)))
			if line := b.nextLineWith("has", 20*time.Second); len(b.said) != 1 {
				t.Errorf("another user: got %s: %q", line, b.said)
			}
			s.checkLoadBounded(before, 1500)
		})
	}
	s.testService.t, s.t = t, t
	s.checkNeighbourProgress()
}

// TestAttackRingMemory tests that a user can allocate only a limited part of the shared memory for queues, even
// with a limit of 0 for locked memory. (B5)
func TestAttackRingMemory(t *testing.T) {
	raw := buildRawverbs(t)
	s := startAttackedService(t, "--limit", "ring-bytes=64M/256M")
	var fs unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &fs); err != nil {
		t.Fatal(err)
	}
	a := startInteractiveProgram(t, s.asUser(attacker).verbenaCommand(s.contextWithTimeout(60), "run", "--", "sh", "-c",
		"ulimit -l 64; exec "+raw+" fill big-qps 40"))
	a.nextLineWith("has", 20*time.Second)
	var now unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &now); err != nil {
		t.Fatal(err)
	}
	// Other users use little memory meanwhile.
	if used := (int64(fs.Bfree) - int64(now.Bfree)) * fs.Bsize; used > 96<<20 || len(a.said) != 2 {
		t.Errorf("shared memory of one user: got %d MiB, want at most 64 MiB: %q", used>>20, a.said)
	}
	s.checkNeighbourProgress()
	s.checkServesNewUser()
}

// startBlockingAttack starts an attack that blocks a call of the service on memory that does not answer.
func (s *attackedService) startBlockingAttack(t *testing.T, fs *stallFS, attack ...string) *interactiveProgram {
	t.Helper()
	a := s.startAttack(attacker, append([]string{attack[0], fs.pagePath()}, attack[1:]...)...)
	a.awaitBlockedPost()
	return a
}

// awaitBlockedPost waits until the program has posted a request, and its memory blocks the service.
func (p *interactiveProgram) awaitBlockedPost() {
	p.expectLine("posted")
	time.Sleep(200 * time.Millisecond)
}

// testStalledMemory tests that the calls of all users, and root's commands, return in time while memory does not
// answer.
func testStalledMemory(t *testing.T, serve, run []string, attack ...string) {
	t.Parallel()
	s := startAttackedService(t, serve...)
	s.run = run
	var a *interactiveProgram
	if attack[0] == "stall-userfault" {
		device := filepath.Join(filepath.Dir(s.socket), "userfaultfd")
		var st unix.Stat_t
		err := unix.Stat("/dev/userfaultfd", &st) // available since Linux 6.1
		needCondition(t, err == nil, fmt.Sprintf("/dev/userfaultfd: %v", err))
		if err := unix.Mknod(device, unix.S_IFCHR|0o666, int(st.Rdev)); err != nil {
			t.Fatal(err)
		}
		os.Chmod(device, 0o666)
		a = s.startAttack(attacker, attack[0], device, attack[1])
		a.awaitBlockedPost()
	} else {
		a = s.startBlockingAttack(t, newStallFS(t, attacker, fuseRead), attack...)
		// The sender may be another process.
		if line := a.nextLineWith("doorbell", 10*time.Second); line != "doorbell: returned" {
			t.Errorf("sender: got %q, want the end of its doorbell", line)
		}
	}
	for _, step := range []func(){
		s.checkNeighbourProgress,
		func() { s.mustRunAsRoot(5*time.Second, "res", "show") },
		func() { s.mustRunAsRoot(5*time.Second, "dev", "show") },
		a.kill,
		s.checkNeighbourProgress,
		func() { s.mustRunAsRoot(5*time.Second, "res", "show") },
		func() { s.mustRunAsRoot(10*time.Second, "dev", "reset", "rxe0") },
		s.checkServesNewUser,
	} {
		if step(); t.Failed() { // without ATTACK_FULL, skip the other steps to save time
			return
		}
	}
	s.checkServiceStops()
}

// checkServiceStops fails the test unless the service ends in time.
func (s *attackedService) checkServiceStops() {
	t := s.t
	t.Helper()
	began := time.Now()
	s.mustRunAsRoot(15*time.Second, "stop")
	testutil.PollUntil(func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.serve.Process.Pid))
		return err != nil || strings.Contains(string(b), ") Z ")
	})
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("stop of the service: took %v", took)
	}
}

// TestAttackStalledMemory tests that registered memory that does not answer blocks only its own program, over both
// paths. (B3)
func TestAttackStalledMemory(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"shortcut", "wire"} {
		var serve []string
		if path == "wire" {
			serve = []string{"--wire"}
		}
		for _, op := range []string{"write", "read", "atomic"} {
			// An atomic operation is a read and a write, so only `make attack` tests all operations.
			if op == "atomic" && path == "wire" && shortOrFullCount(0, 1) == 0 ||
				op == "read" && path == "shortcut" && shortOrFullCount(0, 1) == 0 {
				continue
			}
			t.Run(path+"/"+op, func(t *testing.T) { testStalledMemory(t, serve, nil, "stall-region", op) })
		}
		t.Run(path+"/userfaultfd", func(t *testing.T) { testStalledMemory(t, serve, nil, "stall-userfault", "write") })
	}
}

// TestAttackRemappedMemory tests memory that the owner remaps after registration while a peer writes to it.
func TestAttackRemappedMemory(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"shortcut", "wire"} {
		var serve []string
		if path == "wire" {
			serve = []string{"--wire"}
		}
		t.Run(path, func(t *testing.T) { testStalledMemory(t, serve, nil, "remap") })
	}
	// The device holds the data of WRITEs, and stores them later.
	held := []string{"--weak=1", "--weak-choices=late-write"}
	t.Run("late-write", func(t *testing.T) { testStalledMemory(t, nil, held, "remap") })
}

// TestAttackIdleConnections tests that the service limits idle connections, and closes them. (B4)
func TestAttackIdleConnections(t *testing.T) {
	s := startAttackedService(t)
	few := unix.Rlimit{Cur: 2048, Max: 2048}
	if err := unix.Prlimit(s.serve.Process.Pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	a := s.startAttackOutside(attacker, "connections", s.socket, "3000")
	t.Log(a.expectLine("connected"))
	s.checkServesNewUser()
	s.checkNeighbourProgress()
	if l := s.readLoad(); l.descriptors > 1900 {
		t.Errorf("descriptors of the service: got %d, want at most 1900", l.descriptors)
	}
}

// TestAttackLongMessages tests that the service limits the length of messages from unknown clients. (B4)
func TestAttackLongMessages(t *testing.T) {
	s := startAttackedService(t)
	before := s.readLoad()
	a := s.startAttackOutside(attacker, "unfinished", s.socket, "6", fmt.Sprint(64<<20))
	t.Log(a.nextLineWith("sent", 60*time.Second))
	s.checkLoadBounded(before, 100)
	s.checkNeighbourProgress()
	s.checkServesNewUser()
}

// TestAttackInvalidMessages tests that invalid messages neither end the service nor fill its log. (B4)
func TestAttackInvalidMessages(t *testing.T) {
	s := startAttackedService(t)
	before := s.readLoad()
	for _, text := range []string{strings.Repeat("x", 900_000), strings.Repeat(`\u0000`, 100_000)} {
		if out := s.startAttackOutside(attacker, "attach", s.socket,
			fmt.Sprintf(`{"Protocol":%d,"Op":"%s"}`, ctl.ProtocolVersion, text[:100_000])).lastLines(5 * time.Second); len(
			fmt.Sprint(out)) > 10_000 {
			t.Errorf("invalid message: got an answer of %d bytes", len(fmt.Sprint(out)))
		}
	}
	a := s.startAttackOutside(attacker, "garbage", s.socket, fmt.Sprint(shortOrFullCount(2, 30)))
	t.Log(a.nextLineWith("connections", 60*time.Second))
	s.checkNeighbourProgress()
	s.checkServesNewUser()
	s.checkLoadBounded(before, 150)
	if n := strings.Count(s.log.String(), "\n"); n > 300 {
		t.Errorf("log: got %d lines of %d bytes", n, len(s.log.String()))
	}
	testutil.Eventually(t, "descriptors to be closed", func() bool {
		return s.readLoad().descriptors <= before.descriptors+100
	})
}

// TestAttackCloseStorm tests that a program that opens and closes a file as fast as possible uses little processor
// time of the service. (B6)
func TestAttackCloseStorm(t *testing.T) {
	s := startAttackedService(t)
	before := s.readLoad()
	began := time.Now()
	out := s.startAttack(attacker, "close-storm", "2").lastLines(20 * time.Second)
	took, after := time.Since(began), s.readLoad()
	t.Logf("attacker: got %q; the service used %v of processor time in %v", out, after.cpu-before.cpu, took)
	if used := after.cpu - before.cpu; used > took*7/10 {
		t.Errorf("processor time of the service: got %v in %v", used, took)
	}
	s.checkLoadBounded(before, 40)
	if out[len(out)-1] != "query: success" {
		t.Errorf("the device afterwards: %q", out)
	}
	s.checkNeighbourProgress()
}

// TestAttackLockedDirectories tests a program that lists directories into memory that does not answer, and so keeps
// the kernel's locks of these directories. The program must not block the devices, lookups by other users, or the
// end of the service. (A1)
func TestAttackLockedDirectories(t *testing.T) {
	t.Parallel()
	s := startAttackedService(t)
	before := s.readLoad()
	fs := newStallFS(t, attacker, fuseRead)
	a := s.startBlockingAttack(t, fs, "lock-directories", filepath.Dir(s.socket))
	look := func(script, want string) func() {
		return func() {
			t.Helper()
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			b, err := s.asUser(stranger).verbenaCommand(ctx, "run", "--", "sh", "-c", script).CombinedOutput()
			if got := strings.TrimSpace(string(b)); err != nil || got != want {
				t.Errorf("%s: got %q, %v, want %q", script, got, err, want)
			}
		}
	}
	for _, step := range []func(){
		s.checkServesNewUser,
		s.checkNeighbourProgress,
		look("ls /sys/class/infiniband/rxe0/ports/1/gids | wc -l", "1024"),
		func() { s.mustRunAsRoot(5*time.Second, "link", "add", "rxe7", "--addr", "127.0.0.7") },
		look("cat /sys/class/infiniband/rxe7/node_desc; ls /dev/infiniband", "rxe7\nrdma_cm\nuverbs0\nuverbs1"),
		func() { s.mustRunAsRoot(5*time.Second, "link", "del", "rxe7") },
		look("ls /sys/class/infiniband", "rxe0"),
		func() { // further programs of the attacker wait or are refused
			s.asUser(attacker).verbenaCommand(s.contextWithTimeout(1), "run", "--", "ls", "/sys/class/infiniband").Run()
		},
		s.checkNeighbourProgress,
		func() { s.checkLoadBounded(before, 40) },
		func() { s.mustRunAsRoot(10*time.Second, "dev", "reset", "rxe0") },
		s.checkServesNewUser,
		a.kill,
		s.checkServesNewUser,
		s.checkServiceStops,
	} {
		if step(); t.Failed() { // without ATTACK_FULL, skip the other steps to save time
			return
		}
	}
}

// TestAttackLeftoverLockedDirectories tests that directories that a program keeps locked after the end of the service
// do not block the start or the end of the next service.
func TestAttackLeftoverLockedDirectories(t *testing.T) {
	t.Parallel()
	needRoot(t)
	// With a separate /dev/shm, services of other tests do not find these directories.
	shm := t.TempDir()
	if err := unix.Mount("tmpfs", shm, "tmpfs", 0, "mode=1777"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(shm, unix.MNT_DETACH) })
	inside := serviceConfig{args: sharedConfig.args, prepare: func(_ *testing.T, w *testService) {
		w.under = []string{"sh", "-c", `exec unshare -m sh -c 'mount --bind "$0" /dev/shm && exec "$@"' "$@"`, "sh", shm}
	}}
	s := inside.startWithNeighbour(t)
	a := s.startBlockingAttack(t, newStallFS(t, attacker, fuseRead), "lock-directories", filepath.Dir(s.socket))
	s.checkServiceStops()
	for range 2 {
		left, _ := filepath.Glob(filepath.Join(shm, "verbena-*"))
		if len(left) == 0 {
			t.Fatal("directories after the end of the service: got none, want a locked one")
		}
		began := time.Now()
		next := inside.startWithNeighbour(t)
		// The directory is locked until a.kill. A service that waited for it would not start before.
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("start of the service: took %v", took)
		}
		next.checkServesNewUser()
		next.checkNeighbourProgress()
		next.checkServiceStops()
	}
	a.kill()
}

// TestAttackStalledDescriptors tests descriptors on which close(2) or stat(2) does not return. (B7)
func TestAttackStalledDescriptors(t *testing.T) {
	t.Parallel()
	t.Run("close", func(t *testing.T) {
		s := startAttackedService(t)
		before := s.readLoad()
		fs := newStallFS(t, attacker, fuseFlush)
		for _, message := range []string{fmt.Sprintf(`{"Protocol":%d,"Op":"info"}`, ctl.ProtocolVersion),
			s.attachMessage(1)} {
			t.Log(s.startAttackOutside(attacker, "stall-close", s.socket, message,
				fmt.Sprint(shortOrFullCount(200, 2000)), fs.pagePath()).nextLineWith("sent",
				60*time.Second))
		}
		time.Sleep(500 * time.Millisecond)
		s.checkServesNewUser()
		s.checkNeighbourProgress()
		// A thread for each descriptor would add 400 threads. The Go runtime starts some additional threads on a
		// busy machine, and keeps them.
		if l := s.readLoad(); l.threads > before.threads+250 {
			t.Errorf("threads of the service: %d before, %d now", before.threads, l.threads)
		}
	})
	t.Run("stat", func(t *testing.T) {
		s := startAttackedService(t)
		before := s.readLoad()
		fs := newStallFS(t, attacker, fuseGetattr)
		a := s.startAttack(attacker, "stall-stat", fs.pagePath(), fmt.Sprint(firstCommandFile()), "30")
		if _, ok := a.nextLine(5 * time.Second); !ok {
			t.Error("attacker: its own calls do not return")
		}
		s.checkServesNewUser()
		s.checkNeighbourProgress()
		if l := s.readLoad(); l.threads > before.threads+100 {
			t.Errorf("threads of the service: %d before, %d now", before.threads, l.threads)
		}
	})
}

// firstCommandFile returns the first descriptor number of a device file in this process.
func firstCommandFile() int {
	var l unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
	if l.Max >= 2*16384 {
		return 16384
	}
	return int(l.Max / 4 * 3)
}

// TestAttackSlowCommand tests that a command of one thread does not block the calls of another thread. (C1)
func TestAttackSlowCommand(t *testing.T) {
	s := startAttackedService(t)
	fs := newStallFS(t, attacker, fuseRead)
	a := s.startAttack(attacker, "slow-open", fs.pagePath())
	fs.awaitRequest("read")
	time.AfterFunc(2*time.Second, func() { fs.releaseHeld(nil) })
	for _, what := range []string{"open took", "command took"} {
		line := a.expectLine(what)
		if ms := atoi(strings.Fields(line)[2]); ms > 200 {
			t.Errorf("calls of another thread during a blocked command: took %s ms", line)
		}
	}
	s.checkNeighbourProgress()
}

// TestAttackMainThreadEnds tests that a program can use RDMA after its main thread has ended. (C2)
func TestAttackMainThreadEnds(t *testing.T) {
	s := startAttackedService(t)
	out := strings.Join(s.startAttack(attacker, "main-exit").lastLines(10*time.Second), "\n")
	if out != "open: success\nwrite: text" {
		t.Errorf("main-exit: got %s, want an open and a write with success", out)
	}
}

// TestAttackFullDisk tests that a capture to a full disk fails. (C4)
func TestAttackFullDisk(t *testing.T) {
	needRoot(t)
	raw := buildRawverbs(t)
	w := startSharedService(t)
	dir, err := os.MkdirTemp("", "verbena-full-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(dir)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8k"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	for i, argv := range [][]string{{"true"}, {raw, "transfer"}, {raw, "fill", "pds", "10"}} {
		out, err := w.verbenaCommand(w.contextWithTimeout(20), append([]string{"run", "--capture", filepath.Join(dir,
			fmt.Sprint("x", i)), "--"},
			argv...)...).CombinedOutput()
		if i == 0 && err != nil {
			t.Errorf("capture with enough space: %v: %s", err, out)
		}
	}
	filler := filepath.Join(dir, "filler")
	os.WriteFile(filler, make([]byte, 16<<10), 0o600)
	out, err := w.verbenaCommand(w.contextWithTimeout(20), "run", "--capture", filepath.Join(dir, "full"), "--", raw,
		"transfer").CombinedOutput()
	if exitCode(err) != 125 || !strings.Contains(string(out), "no space left") {
		t.Errorf("exit code %d, want 125: %s", exitCode(err), out)
	}
	out, err = w.verbenaCommand(w.contextWithTimeout(20), "run", "--capture", "/dev/full", "--", raw,
		"transfer").CombinedOutput()
	if exitCode(err) != 125 {
		t.Errorf("capture to /dev/full: got exit code %d, want 125: %s", exitCode(err), out)
	}
}

// TestAttackDescriptorNumberRace tests that a descriptor that a program creates while it opens a device keeps its file.
// (C6)
func TestAttackDescriptorNumberRace(t *testing.T) {
	s := startAttackedService(t)
	out := s.startAttack(attacker, "number-race", fmt.Sprint(firstCommandFile()),
		fmt.Sprint(shortOrFullCount(1500, 50000))).lastLines(time.Duration(shortOrFullCount(30, 600)) * time.Second)
	if len(out) != 1 || !strings.HasPrefix(out[0], "opened ") || out[0] == "opened 0" {
		t.Errorf("%.1000q", out)
	}
	s.checkNeighbourProgress()
}

// TestAttackClientInOtherPIDNamespace tests a client in another PID namespace. The PID of the client is not visible to
// the service. The service must not accept the PID in the client's message. (C7)
func TestAttackClientInOtherPIDNamespace(t *testing.T) {
	needRoot(t)
	program := buildAttackProgram(t, "attack")
	w := newTestService(t, testUser{"root", 0}, "")
	os.Chmod(filepath.Dir(w.socket), 0o755)
	serve := exec.Command("unshare", "--pid", "--fork", "--mount-proc", verbenaBinary(t), "serve", "--socket", w.socket,
		"--mode",
		"0666", "--link", "rxe0="+unusedAddr())
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		for _, pid := range childrenOf(serve.Process.Pid) {
			syscall.Kill(pid, syscall.SIGTERM)
		}
		_ = serve.Wait()
	}()
	testutil.Eventually(t, "the service to answer", func() bool {
		return w.verbenaCommand(w.contextWithTimeout(5), "link", "show").Run() == nil
	})
	s := &attackedService{testService: w, t: t, program: program}
	if out := s.startAttackOutside(attacker, "attach", w.socket,
		s.attachMessage(1)).expectLine("answer"); !strings.Contains(out,
		"Error") {
		t.Errorf("client that claims to be process 1: got %s", out)
	}
}

// TestAttackAlternativePaths tests that alternative paths to the device work in the same way as for a kernel device.
// (C8)
func TestAttackAlternativePaths(t *testing.T) {
	s := startAttackedService(t)
	for path, want := range map[string]string{
		"/dev/infiniband/uverbs0":                    "success",
		"//dev///infiniband/./uverbs0":               "success",
		"/dev/infiniband/uverbs0/":                   "Not a directory",
		"/dev/infiniband/uverbs0/.":                  "Not a directory",
		"/dev/infiniband/uverbs0/..":                 "Not a directory",
		"/dev/infiniband/uverbs0/../uverbs0":         "Not a directory",
		"/nonexistent/../dev/infiniband/uverbs0":     "No such file or directory",
		"/etc/hostname/../../dev/infiniband/uverbs0": "Not a directory",
		"/dev/infiniband/nonexistent/../uverbs0":     "No such file or directory",
		"/dev/infiniband/../infiniband/uverbs0":      "success",
		"/dev/infiniband/uverbs0\x01":                "No such file or directory",
	} {
		if out := s.startAttack(attacker, "paths", path).lastLines(5 * time.Second); len(out) != 1 ||
			out[0] != path+": "+want {
			t.Errorf("open: got %.200q, want %q", out, want)
		}
	}
}
