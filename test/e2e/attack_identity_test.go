//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"verbena/internal/testutil"
)

// bare is a command prefix that runs a command as user ID 0 without capabilities, as in a container. The prefix pod
// also creates new PID and mount namespaces.
var (
	bare = []string{"setpriv", "--bounding-set=-all", "--inh-caps=-all"}
	pod  = append([]string{"unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"}, bare...)
)

// verbenaCommandVia runs a verbena command with a command prefix.
func (s *attackedService) verbenaCommandVia(prefix []string, args ...string) *exec.Cmd {
	s.t.Helper()
	c := s.verbenaCommand(s.contextWithTimeout(120), args...)
	path, err := exec.LookPath(prefix[0])
	if err != nil {
		s.t.Skip(err)
	}
	c.Path, c.Args = path, append(append([]string{}, prefix...), c.Args...)
	return c
}

// TestAttackRootWithoutCapabilities tests that user ID 0 without capabilities, as in every container, is an ordinary
// user. (N5)
func TestAttackRootWithoutCapabilities(t *testing.T) {
	needRoot(t)
	s := startAttackedService(t)
	keys := s.mustRun("res", "show")
	if !strings.Contains(keys, fmt.Sprint(neighbor)) {
		t.Fatalf("list for root: got no neighbour:\n%s", keys)
	}
	for _, where := range [][]string{bare, pod} {
		for _, args := range [][]string{
			{"stop"}, {"dev", "reset", "rxe0"}, {"dev", "unplug", "rxe0"}, {"dev", "hang", "rxe0"}, {"link", "del", "rxe0"},
			{"link", "add", "rxe7", "--addr", "127.0.0.77"}, {"link", "set", "rxe0", "down"}, {"qp", "show"},
			{"capture", "--count", "1", "--write", os.DevNull},
		} {
			out, err := s.verbenaCommandVia(where, args...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), "operation not permitted") {
				t.Errorf("%s: verbena %s: %v %s", where[0], strings.Join(args, " "), err, out)
			}
		}
		out, err := s.verbenaCommandVia(where, "res", "show").CombinedOutput()
		if err != nil || strings.Contains(string(out), fmt.Sprint(neighbor)) {
			t.Errorf("%s: got the neighbour's objects: %v\n%s", where[0], err, out)
		}
		out, err = s.verbenaCommandVia(where, "run", "--", s.program, "paths", "/dev/infiniband/uverbs0").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "uverbs0: success") {
			t.Errorf("%s: a program: %v %s", where[0], err, out)
		}
		out, err = s.verbenaCommandVia(where, "run", "--", s.program, "tree-climb").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "climb: success\nleave: Permission denied\n") {
			t.Errorf("%s: search for the virtual files of other users: got %v %s", where[0], err, out)
		}
	}
	s.checkServesNewUser()
	s.checkNeighbourProgress()
}

// TestAttackContainersAreTwoUsers tests that two containers count as two users, although both run as user ID 0. No
// container may see the other's objects, and a container at its limits must not affect the other one.
func TestAttackContainersAreTwoUsers(t *testing.T) {
	needRoot(t)
	raw := buildRawverbs(t)
	s := startAttackedService(t, "--limit", "pds=100/1000")
	first := startInteractiveProgram(t, s.verbenaCommandVia(pod, "run", "--", raw, "fill", "pds", "200"))
	first.nextLineWith("has", 20*time.Second)
	if said := strings.Join(first.said, "\n"); !strings.Contains(said, "refused after") {
		t.Errorf("first container: got no refusal: %s", said)
	}
	second := startInteractiveProgram(t, s.verbenaCommandVia(pod, "run", "--", raw, "fill", "pds", "50"))
	if line := second.nextLineWith("has", 20*time.Second); line != "has pds=50" {
		t.Errorf("second container: got %q", line)
	}
	out, err := s.verbenaCommandVia(pod, "res", "show").CombinedOutput()
	if err != nil || strings.Contains(string(out), "rawverbs") {
		t.Errorf("third container: got the others' objects: %v\n%s", err, out)
	}
	if out := s.mustRun("res", "show"); strings.Count(out, "rawverbs") < 2 {
		t.Errorf("list for root: got no container, or one:\n%s", out)
	}
	s.checkNeighbourProgress()
}

// TestAttackSubordinateIDs tests that a user with many subordinate IDs counts as one user. (N7)
func TestAttackSubordinateIDs(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := startAttackedService(t)
	const ids, each, first = 60, 6, 200000 // a child process waits for up to 2 s for each connection
	a := s.startAttackOutside(attacker-7, "subordinate", s.socket, fmt.Sprint(ids), fmt.Sprint(each))
	pid := a.expectLine("")
	for _, m := range []string{"uid_map", "gid_map"} {
		if err := os.WriteFile("/proc/"+pid+"/"+m, fmt.Appendf(nil, "0 %d %d", first, ids), 0); err != nil {
			t.Fatal(err)
		}
	}
	a.sendLine("mapped")
	var served int
	if n, err := fmt.Sscanf(a.nextLineWith("served", 60*time.Second), "served %d", &served); n != 1 || served == 0 ||
		served > 256 {
		t.Errorf("connections: got %d (%v), want at most 256, the limit of one user", served, err)
	}
	s.checkServesNewUser()
	s.checkNeighbourProgress()
}

// TestAttackSetuidSubordinateIDs tests that a user counts as one user, who runs programs with subordinate IDs outside a
// user namespace, by set-uid files.
func TestAttackSetuidSubordinateIDs(t *testing.T) {
	needRoot(t)
	needProgram(t, "util-linux", "unshare", "mount")
	const ids, each, first = 12, 250, 700000
	etc := t.TempDir()
	for file, text := range map[string]string{
		"passwd": "root:x:0:0::/root:/bin/sh\nmallory:x:1313:1313::/:/bin/sh\n",
		"subuid": fmt.Sprintf("mallory:%d:%d\n", first, ids),
	} {
		if err := os.WriteFile(filepath.Join(etc, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w := newTestService(t, testUser{"root", 0}, "")
	w.under = []string{"unshare", "--mount", "--propagation", "private", "sh", "-c", `mount --bind "$0" /etc && exec "$@"`,
		etc}
	w.start("--link", "rxe0="+unusedAddr(), "--mode", "0666")
	os.Chmod(filepath.Dir(w.socket), 0o755)
	s := &attackedService{t: t, program: buildAttackProgram(t, "attack"), testService: w}
	before := s.readLoad()
	for id := range uint32(ids) {
		t.Log(s.startAttackOutside(first+id, "connections", s.socket, fmt.Sprint(each)).nextLineWith("connected",
			30*time.Second))
	}
	more := 0
	testutil.PollUntil(func() bool { // the service must close the connections beyond the limit
		more = s.readLoad().descriptors - before.descriptors
		return more <= 600
	})
	if more < 50 || more > 600 {
		t.Errorf("descriptors of the service: got %d more, want at most two for each of the 256 connections of one user", more)
	}
	s.checkServesNewUser()
}
