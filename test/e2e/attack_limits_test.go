//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"verbena/internal/ctl"
	"verbena/internal/quota"
	"verbena/internal/testutil"

	"golang.org/x/sys/unix"
)

// newCgroup creates a control group with limits below the root of the visible hierarchy, and removes it at the end of
// the test. newCgroup returns the directories of the group: one for each controller in version 1.
func newCgroup(t *testing.T, memory, tasks uint64) (dirs []string) {
	t.Helper()
	needRoot(t)
	name := "verbena-e2e-" + strconv.Itoa(os.Getpid()) + "-" + unusedTCPPort()
	limits := map[string]map[string]string{ // one directory for each hierarchy
		"/sys/fs/cgroup/memory": {"memory.limit_in_bytes": fmt.Sprint(memory)},
		"/sys/fs/cgroup/pids":   {"pids.max": fmt.Sprint(tasks)},
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory/memory.stat"); err != nil {
		limits = map[string]map[string]string{
			"/sys/fs/cgroup": {"memory.max": fmt.Sprint(memory), "memory.swap.max": "0", "pids.max": fmt.Sprint(tasks)},
		}
	}
	for root, files := range limits {
		dir := filepath.Join(root, name)
		needCondition(t, os.Mkdir(dir, 0o755) == nil, "the right to make control groups")
		t.Cleanup(func() {
			testutil.Eventually(t, "the control group to be empty: "+dir, func() bool { return os.Remove(dir) == nil })
		})
		for file, value := range files {
			err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644)
			needCondition(t, err == nil || file == "memory.swap.max", "controllers memory and pids of control groups")
		}
		dirs = append(dirs, dir)
	}
	return dirs
}

// startInCgroup returns a siege of a shared service in a control group.
func startInCgroup(t *testing.T, memory, tasks uint64, args ...string) *attackedService {
	t.Helper()
	dirs := newCgroup(t, memory, tasks)
	w := newTestService(t, testUser{"root", 0}, "")
	script := "exec \"$@\""
	for _, d := range dirs {
		script = "echo $$ >" + d + "/cgroup.procs && " + script
	}
	w.under = []string{"sh", "-c", script, "sh"}
	w.start(append([]string{"--link", "rxe0=" + unusedAddr(), "--mode", "0666"}, args...)...)
	os.Chmod(w.socket[:strings.LastIndex(w.socket, "/")], 0o755)
	return &attackedService{t: t, program: buildAttackProgram(t, "attack"), testService: w}
}

// TestAttackContainerMemory tests containers of 1 GiB and less with users who allocate buffers and queues up to
// their limits. The kernel must not kill the service, and another user must still get a device.
func TestAttackContainerMemory(t *testing.T) {
	t.Parallel()
	program := buildProgram(t, "buffers", func(path string) []string {
		return []string{"go", "build", "-trimpath", "-o", path, "./testdata/buffers"}
	})
	raw := buildRawverbs(t)
	for _, size := range []uint64{1 << 30, 256 << 20} {
		t.Run(fmt.Sprint(size>>20, " MiB"), func(t *testing.T) {
			s := startInCgroup(t, size, 2000)
			for uid := range uint32(4) {
				d := startInteractiveProgram(t, s.plainCommand(attacker-10-uid, program))
				t.Log(d.nextLineWith("allocated ", 60*time.Second))
			}
			for uid := range uint32(2) {
				a := startInteractiveProgram(t, s.asUser(attacker-20-uid).verbenaCommand(s.contextWithTimeout(120), "run", "--",
					raw,
					"fill", "qps", "33000"))
				t.Log(a.nextLineWith("has", 60*time.Second))
			}
			s.checkServesNewUser()
			if l := s.readLoad(); uint64(l.rss)<<20 > size {
				t.Errorf("memory of the service: got %d MiB, which exceeds the limit of the group", l.rss)
			}
			s.mustRunAsRoot(5*time.Second, "res", "show")
		})
	}
}

// TestAttackContainerThreads tests that users who cause as many threads as possible cannot end the service in a
// container with a pids.max of 900.
func TestAttackContainerThreads(t *testing.T) {
	t.Parallel()
	s := startInCgroup(t, 1<<30, 900)
	for uid := uint32(attacker); uid > attacker-4; uid-- {
		fs := newStallFS(t, uid, fuseRead)
		a := s.startAttackOutside(uid, "sessions", s.socket, s.attachMessage(1), "680", "16", fs.pagePath())
		t.Log(a.nextLineWith("attached", 30*time.Second))
	}
	l := s.readLoad()
	t.Logf("load of the service: %+v", l)
	if l.threads > 450 {
		t.Errorf("threads of the service: got %d, want at most half of 900", l.threads)
	}
	b, err := s.asUser(1001).verbenaCommand(s.contextWithTimeout(10), "run", "--", s.program, "paths",
		"/dev/infiniband/uverbs0").CombinedOutput()
	if err != nil || !strings.Contains(string(b), "uverbs0: success") {
		t.Errorf("another user's program: %v %q", err, b)
	}
	s.mustRunAsRoot(5*time.Second, "link", "show")
}

// TestAttackContainerMulticastGroups tests a container with a pids.max of 60, and a user who joins as many multicast
// groups as possible. The joins must start no threads of the service, and leaving the groups must free their resources.
func TestAttackContainerMulticastGroups(t *testing.T) {
	raw := buildRawverbs(t)
	s := startInCgroup(t, 1<<30, 60)
	before := s.readLoad()
	a := startInteractiveProgram(t, s.asUser(attacker).verbenaCommand(s.contextWithTimeout(120), "run", "--", raw, "fill",
		"groups", "1000"))
	if refusal := a.nextLineWith("groups refused", 30*time.Second); !strings.Contains(refusal, "cannot allocate memory") {
		t.Errorf("joins beyond the limit: got %s", refusal)
	}
	t.Log(a.nextLineWith("has", 30*time.Second))
	l := s.readLoad()
	t.Logf("load of the service: %+v before, %+v now", before, l)
	if n := l.threads - before.threads; n > 12 {
		t.Errorf("threads of the service: got %d more", n)
	}
	s.checkServesNewUser()
	a.kill()
	s.mustRunAsRoot(5*time.Second, "link", "show")
}

// TestAttackInotifyInstances tests that the native doorbells of 40 users share a few inotify instances of root's
// account, independent of the number of users.
func TestAttackInotifyInstances(t *testing.T) {
	t.Parallel()
	w := startSharedService(t, "--mode", "0666", "--doorbells", "native")
	s := &attackedService{t: t, program: buildAttackProgram(t, "attack"), testService: w}
	for uid := range uint32(40) {
		a := startInteractiveProgram(t, s.asUser(7100+uid).verbenaCommand(s.contextWithTimeout(120), "run", "--", s.program,
			"neighbour", "atomics"))
		a.nextLineWith("ready", 30*time.Second)
	}
	dir := fmt.Sprintf("/proc/%d/fd", w.serve.Process.Pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		if to, _ := os.Readlink(filepath.Join(dir, e.Name())); to == "anon_inode:inotify" {
			n++
		}
	}
	if n < 2 || n > 20 {
		t.Errorf("inotify instances of the service: got %d for 40 users, want 2 to 20, including those of pollers", n)
	}
	s.checkServesNewUser()
}

// TestAttackReadOnlyMount tests a pod with user ID 0 without capabilities, and with the socket's directory mounted
// read-only. The pod can connect to the service, but can neither replace the socket nor create files beside it.
func TestAttackReadOnlyMount(t *testing.T) {
	needRoot(t)
	needProgram(t, "util-linux", "unshare", "setpriv", "mount")
	w := startSharedService(t, "--mode", "0666")
	dir := filepath.Dir(w.socket)
	pod := func(options, script string) (string, error) {
		c := w.verbenaCommand(w.contextWithTimeout(20), "version")
		c.Path, c.Args = "/bin/sh", []string{"sh", "-c", "exec unshare --mount --propagation private sh -c '" +
			`mount --bind "$0" "$0" && ` + options +
			` exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs sh -c "$1" "$0"' "$0" "$1"`,
			dir, script}
		c.Env = append(c.Env, "BINARY="+verbenaBinary(t))
		b, err := c.CombinedOutput()
		return strings.TrimSpace(string(b)), err
	}
	readOnly := `mount -o remount,bind,ro "$0" && `
	if out, err := pod(readOnly, `"$BINARY" link show`); err != nil || !strings.Contains(out, "rxe0") {
		t.Errorf("link show: %v: %s", err, out)
	}
	if out, err := pod(readOnly, `"$BINARY" run -- cat /sys/class/infiniband/rxe0/node_guid`); err != nil {
		t.Errorf("run: %v: %s", err, out)
	}
	var before, after unix.Stat_t
	if err := unix.Stat(w.socket, &before); err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{`rm -f "$VERBENA_SOCKET"`, `mv "$VERBENA_SOCKET" "$VERBENA_SOCKET.old"`,
		`ln "$VERBENA_SOCKET" "$VERBENA_SOCKET.new"`,
		`touch "$VERBENA_SOCKET.new"`, `chmod 0600 "$VERBENA_SOCKET"`, `touch "$VERBENA_SOCKET"`,
		`mount -o remount,bind,rw "$(dirname "$VERBENA_SOCKET")"`} {
		if out, err := pod(readOnly, script); err == nil {
			t.Errorf("%s: got success, want an error: %s", script, out)
		}
	}
	if err := unix.Stat(w.socket, &after); err != nil || after.Ino != before.Ino || after.Mode != before.Mode ||
		after.Nlink != 1 {
		t.Errorf("socket: had %+v, got %+v, %v, want no change", before, after, err)
	}
	// On a writable mount the same commands succeed, so the test can detect a difference.
	if out, err := pod("", `touch "$VERBENA_SOCKET.new"`); err != nil {
		t.Errorf("on a writable mount: %v: %s", err, out)
	}
	if err := syscall.Unlink(w.socket + ".new"); err != nil {
		t.Error(err)
	}
}

// TestAttackKeptDescriptors tests that kernel resources count against the limits of a user whose programs keep
// descriptors created by the service, or leave answers unread. The limits must hold even after the device files and
// connections were closed. The kernel charges the resources to the service's control group.
func TestAttackKeptDescriptors(t *testing.T) {
	t.Parallel()
	seconds := fmt.Sprint(shortOrFullCount(4, 60))
	open := fmt.Sprintf(`{"Protocol":%d,"Op":"open","Name":"rxe0"}`, ctl.ProtocolVersion)
	show := fmt.Sprintf(`{"Protocol":%d,"Op":"stat show"}`, ctl.ProtocolVersion)
	s := startInCgroup(t, 128<<20, 900, "--limit", "descriptors=200", "--limit", "connections=16")
	for _, c := range []struct {
		name  string
		kind  quota.ResourceKind
		limit int
		start func() *interactiveProgram
	}{
		{"descriptors of device files", quota.Descriptors, 200, func() *interactiveProgram {
			return s.startAttackOutside(attacker, "kept", s.socket, "device", seconds, open)
		}},
		{"unread answers", quota.Connections, 16 + 64, // also for refused clients, which get an answer with the reason
			func() *interactiveProgram {
				return s.startAttackOutside(attacker, "kept", s.socket, "answer", seconds, show)
			}},
		{"channels", quota.Descriptors, 200, func() *interactiveProgram {
			return s.startAttack(attacker, "kept-channels",
				seconds)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := s.countHeldObjects(c.kind.String())
			d := c.start()
			line := d.nextLineWith("kept", 2*time.Minute)
			t.Log(line)
			var kept, asked int
			if n, err := fmt.Sscanf(line, "kept %d of %d", &kept, &asked); n != 2 || kept == 0 || kept > c.limit {
				t.Errorf("attacker: got %q (%v), want 1 to %d", line, err, c.limit)
			}
			s.checkServesNewUser()
			d.kill()
			<-d.over
			testutil.Eventually(t, "the attacker's descriptors to be released", func() bool {
				return s.countHeldObjects(c.kind.String()) <= before
			})
		})
	}
}
