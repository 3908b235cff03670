//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/internal/testutil"
)

// TestAttackUnusualDescriptorCalls tests operations on a device's descriptor that no library performs. These operations
// must not affect others, and the device must be closed with the last descriptor.
func TestAttackUnusualDescriptorCalls(t *testing.T) {
	s := startAttackedService(t)
	out := s.startAttack(attacker, "descriptors").lastLines(15 * time.Second)
	t.Logf("%q", out)
	if len(out) == 0 || out[len(out)-1] != "done" {
		t.Errorf("attacker: did not finish: %q", out)
	}
	// Each of these operations would create or change files in the service's directories.
	for _, must := range []string{"create beside", "move the directory away", "rename the directory",
		"replace the directory",
		"remove the directory", "hard link to the queue file"} {
		if slices.Contains(out, must+": success") {
			t.Errorf("%s: got success, want an error", must)
		}
	}
	for _, line := range []string{"command to /dev/null: success, and it answers", "command to what is closed: success"} {
		if slices.Contains(out, line) {
			t.Errorf("attacker: got %s, want a refusal", line)
		}
	}
	for _, must := range []string{"dup2", "dup3", "F_DUPFD", "command to the duplicate", "query in the child",
		"pidfd_getfd"} {
		if !slices.Contains(out, must+": success") {
			t.Errorf("%s: got an error, want success", must)
		}
	}
	s.checkNeighbourProgress()
	s.awaitOnlyNeighbour()
	s.checkServesNewUser()
}

// awaitOnlyNeighbour waits until only the neighbour's program has objects.
func (s *attackedService) awaitOnlyNeighbour() {
	s.t.Helper()
	if !testutil.PollUntil(func() bool { return len(s.listOpenContexts()) == 1 }) {
		s.t.Errorf("remaining objects: %v", s.listOpenContexts())
	}
}

// TestAttackDeviceTree tests that a user cannot change the files in /dev and /sys that the programs of another user's
// service see. A user owns the files of their own service, and this service must follow no link placed among them.
func TestAttackDeviceTree(t *testing.T) {
	needRoot(t)
	program := buildAttackProgram(t, "attack")
	for _, who := range []struct {
		name    string
		service testUser
	}{{"another user", testUser{"root", 0}}, {"own service", testUser{"nobody", attacker}}} {
		t.Run(who.name, func(t *testing.T) {
			w := startService(t, who.service, "", "--link", "rxe0="+unusedAddr(), "--mode", "0666")
			os.Chmod(filepath.Dir(w.socket), 0o755)
			dir := runDirOf(t, w.serve.Process.Pid)
			// The attacker's tree exists until the last of the attacker's programs ends.
			startInteractiveProgram(t, w.asUser(attacker).verbenaCommand(w.contextWithTimeout(60), "run", "--", "sh", "-c",
				"echo there; sleep 60")).expectLine("there")
			before := listTree(t, dir)
			args := []string{"run", "--", program, "tree-writes"}
			if who.service.uid != attacker {
				args = append(args, "rename")
			}
			out := w.asUser(attacker).mustRun(args...)
			if strings.Contains(out, "planted: root:") {
				t.Error("tree: the service followed a link of a program")
			}
			if who.service.uid == attacker {
				return
			}
			after := listTree(t, dir)
			for line := range strings.Lines(before) {
				if !strings.Contains(after, line) {
					t.Errorf("tree: lost %s", line)
				}
			}
			for line := range strings.Lines(after) {
				if strings.Contains(line, "evil") || strings.Contains(line, "rxe9") {
					t.Errorf("tree: got a new file %s", line)
				}
			}
			for line := range strings.Lines(out) {
				if strings.HasSuffix(line, ": success\n") {
					t.Errorf("attacker: got %s, want a failure", line)
				}
			}
		})
	}
}

// listTree lists the virtual files of all users in a service's directory, with modes and link targets.
func listTree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(filepath.Join(dir, "trees"), func(path string, i os.FileInfo, err error) error {
		if err != nil || strings.Contains(path, "/.common/") {
			return err
		}
		target, _ := os.Readlink(path)
		fmt.Fprintln(&b, strings.TrimPrefix(path, dir), i.Mode(), target)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestAttackForkStorm tests thousands of short-lived processes during commands of the service.
func TestAttackForkStorm(t *testing.T) {
	s := startAttackedService(t)
	before, goroutines := s.readLoad(), s.countGoroutines()
	script := fmt.Sprintf("for i in $(seq %d); do %s paths /dev/infiniband/uverbs0 >/dev/null & :; [ $((i %% 16)) = 0 ] && wait; done; wait; echo done",
		shortOrFullCount(200, 5000), s.program)
	out := startInteractiveProgram(t, s.asUser(attacker).verbenaCommand(s.contextWithTimeout(120), "run", "--", "sh", "-c",
		script)).lastLines(60 * time.Second)
	if !slices.Equal(out, []string{"done"}) {
		t.Errorf("%.1000q", out)
	}
	s.checkNeighbourProgress()
	s.awaitOnlyNeighbour()
	s.checkLoadBounded(before, 100)
	testutil.Eventually(t, "descriptors to be closed and goroutines to end", func() bool {
		return s.readLoad().descriptors <= before.descriptors+20 && s.countGoroutines() <= goroutines+10
	})
}

// TestAttackSetuid tests that a set-uid program in a user's session has no privilege, or is out of the user's
// reach.
func TestAttackSetuid(t *testing.T) {
	s := startAttackedService(t)
	suid := makeSetuidCopy(t, s.program)
	out := s.asUser(attacker).mustRun("run", "--", suid, "victim", "0.1")
	if !strings.Contains(out, "unharmed") || strings.Contains(out, "user 0") {
		t.Errorf("set-uid program under a user's launcher: got %s", out)
	}
}

// TestAttackStoppedProgram tests that a stopped program or launcher does not block other programs.
func TestAttackStoppedProgram(t *testing.T) {
	raw := buildRawverbs(t)
	s := startAttackedService(t)
	for _, what := range []string{"program", "launcher", "both"} {
		t.Run(what, func(t *testing.T) {
			a := startInteractiveProgram(t, s.asUser(attacker).verbenaCommand(s.contextWithTimeout(60), "run", "--", raw,
				"fill", "all",
				"200"))
			a.nextLineWith("has", 20*time.Second)
			pids := map[string][]int{"program": {programPID(t, a.cmd)}, "launcher": {a.cmd.Process.Pid},
				"both": {programPID(t, a.cmd), a.cmd.Process.Pid}}[what]
			for _, pid := range pids {
				syscall.Kill(pid, syscall.SIGSTOP)
			}
			s.checkNeighbourProgress()
			s.checkServesNewUser()
			s.mustRunAsRoot(5*time.Second, "res", "show")
			for _, pid := range pids {
				syscall.Kill(pid, syscall.SIGCONT)
			}
			a.sendLine("a message")
			a.expectLine("ok")
		})
	}
}

// TestAttackProcessName tests that the name of a process, which its user chooses, cannot send control sequences to a
// terminal on which verbena prints it.
func TestAttackProcessName(t *testing.T) {
	s := startAttackedService(t)
	a := s.startAttack(attacker, "names")
	a.expectLine("ready")
	for _, args := range [][]string{{"res", "show"}, {"dev", "show"}, {"stat", "show"}, {"link", "show"}} {
		if out := s.mustRun(args...); strings.ContainsFunc(out, func(r rune) bool {
			return r < ' ' && r != '\n' ||
				r == 0x7f
		}) {
			t.Errorf("verbena %v: %q", args, out)
		}
	}
	a.kill()
	s.awaitOnlyNeighbour()
	if strings.ContainsFunc(s.log.String(), func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f }) {
		t.Errorf("log: got control characters: %q", s.log)
	}
}

// TestAttackAnsweringOwnCalls tests a program that answers its own notifications through a listener that it passes to
// the service twice.
func TestAttackAnsweringOwnCalls(t *testing.T) {
	s := startAttackedService(t)
	before := s.readLoad()
	out := s.startAttackOutside(attacker, "own-answers", s.socket, s.attachMessage(1),
		fmt.Sprint(shortOrFullCount(2000, 100000))).lastLines(30 * time.Second)
	t.Logf("%q", out)
	if len(out) == 0 || out[len(out)-1] != "done" {
		t.Errorf("own-answers: got %q, want done at the end", out)
	}
	s.checkNeighbourProgress()
	s.awaitOnlyNeighbour()
	s.checkServesNewUser()
	s.checkLoadBounded(before, 50)
	testutil.Eventually(t, "descriptors to be closed", func() bool {
		return s.readLoad().descriptors <= before.descriptors+20
	})
}

// TestAttackThreadsOfOtherUser tests that each thread has the rights of its own user, as with a kernel's device file.
func TestAttackThreadsOfOtherUser(t *testing.T) {
	program := buildAttackProgram(t, "attack")
	w := startSharedService(t, "--mode", "0660")
	want := "open as another user: Permission denied\naccess as another user: Permission denied\nopen as root: success\n"
	if out := w.mustRun("run", "--", program, "thread-user"); out != want {
		t.Errorf("thread-user: got %q, want %q", out, want)
	}
}

// TestAttackFlippedPaths tests a path that changes while the supervisor resolves it. The supervisor must not open a
// file that the program itself could not open.
func TestAttackFlippedPaths(t *testing.T) {
	s := startAttackedService(t)
	out := s.startAttack(attacker, "flip-paths", fmt.Sprint(shortOrFullCount(20000, 2000000))).lastLines(60 * time.Second)
	if !slices.Equal(out, []string{"done"}) {
		t.Errorf("flip-paths: got %q, want only done", out)
	}
	s.checkNeighbourProgress()
	s.awaitOnlyNeighbour()
}

// TestAttackDescriptorLimit tests that the supervisor does not change the program's own limit of descriptors.
func TestAttackDescriptorLimit(t *testing.T) {
	program := buildAttackProgram(t, "attack")
	// For programs of other users the service would need CAP_SYS_RESOURCE, which is missing in containers.
	w := startService(t, testUsers()[len(testUsers())-1], "", "--link", "rxe0="+unusedAddr())
	if out := w.mustRun("run", "--", program, "limits"); out != "done\n" {
		t.Errorf("%.500q", out)
	}
}

// TestAttackSquattedSocketDirectory tests that a user who creates the directory of another user's control socket can
// cause only a clear error.
func TestAttackSquattedSocketDirectory(t *testing.T) {
	needRoot(t)
	const user = 64123 // a user without processes
	dir := fmt.Sprintf("/tmp/verbena-%d", user)
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(dir)
	os.Chown(dir, attacker, attacker)
	s := &attackedService{testService: newTestService(t, testUsers()[0], ""), t: t, program: buildAttackProgram(t,
		"attack")}
	c := s.plainCommand(user, verbenaBinary(t), "run", "--", "true")
	c.Env = []string{"PATH=" + os.Getenv("PATH")}
	out, err := c.CombinedOutput()
	if exitCode(err) != 125 || !strings.Contains(string(out), dir) || !strings.Contains(string(out), "VERBENA_SOCKET") {
		t.Errorf("exit code %d, want 125: %s", exitCode(err), out)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("files left: %v", left)
	}
}

// TestAttackChildPIDNamespace tests that the service serves a program in a separate PID namespace, and reports the
// PIDs of the service's namespace.
func TestAttackChildPIDNamespace(t *testing.T) {
	s := startAttackedService(t)
	out, err := s.verbenaCommand(s.contextWithTimeout(20), "run", "--", "unshare", "--pid", "--fork", "--mount-proc",
		"setpriv",
		fmt.Sprint("--reuid=", attacker),
		fmt.Sprint("--regid=", attacker), "--clear-groups", s.program, "hidden-execs", "vfork", "none").CombinedOutput()
	if err != nil || string(out) != "write: success: still written\n" {
		t.Errorf("%v: %s", err, out)
	}
	s.checkNeighbourProgress()
}
