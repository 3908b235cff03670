//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// runCProgram runs a program of testdata as each user and over both paths.
func runCProgram(t *testing.T, name string, args ...string) {
	t.Parallel()
	program := buildWithLibibverbs(t, name)
	for _, u := range testUsers() {
		t.Run(u.name, func(t *testing.T) {
			w := startService(t, u, "", "--link", "rxe0="+unusedAddr())
			out := w.mustRun(append([]string{"run", "--", program}, args...)...)
			if !strings.HasSuffix(out, "ok\n") {
				t.Errorf("program: got %s, want ok at the end", out)
			}
			w.awaitNoProgramObjects()
		})
	}
}

// TestBlockingEvents tests blocking reads, O_NONBLOCK, poll, select, epoll, several queues on a channel, fork, and
// event counts at destruction.
func TestBlockingEvents(t *testing.T) { runCProgram(t, "events") }

// TestEarlyPostIsRefused tests that a SEND posted in RESET, INIT or RTR is refused and not sent later.
func TestEarlyPostIsRefused(t *testing.T) { runCProgram(t, "early") }

// TestRegistrationRightsAndLimits tests rights and limits of registrations, and registered memory that the program
// unmaps.
func TestRegistrationRightsAndLimits(t *testing.T) { runCProgram(t, "pinning") }

// TestThousandContexts tests a thousand contexts that the program closes, or leaves to the service.
func TestThousandContexts(t *testing.T) {
	t.Run("closed", func(t *testing.T) { runCProgram(t, "contexts", "1000") })
	t.Run("left", func(t *testing.T) { runCProgram(t, "contexts", "1000", "left") })
}

// TestDatagramHeaderType tests that the completion of a datagram reports IPv4 in its service level, and that an
// address handle created from the completion works.
func TestDatagramHeaderType(t *testing.T) { runCProgram(t, "headertype") }

// TestPersistentFlushRights tests that queue pairs, but not memory regions, may have the right to flush to persistent
// memory.
func TestPersistentFlushRights(t *testing.T) { runCProgram(t, "persistence") }

// TestProgramRecoversFromLimit tests a program that was refused an object of any kind. After it has freed its objects,
// it must get the same number again. Objects of other kinds may use the freed resources.
func TestProgramRecoversFromLimit(t *testing.T) {
	t.Parallel()
	program := buildWithLibibverbs(t, "cm_refill")
	args := []string{"--link", "rxe0=" + unusedAddr(), "--limit", "descriptors=100/400", "--limit", "contexts=30/120"}
	for _, kind := range []string{"pds", "mrs", "cqs", "qps", "srqs", "cm-ids"} {
		args = append(args, "--limit", kind+"=50/200")
	}
	w := startService(t, testUsers()[0], "", args...)
	if out := w.mustRun("run", "--", program); out != "ok\n" {
		t.Errorf("refill: got %s, want ok", out)
	}
	w.awaitNoProgramObjects()
}

// TestExtendedCQOvercount tests a program that drains an extended completion queue, for which the providers of
// rdma-core v34 to v54 count one completion too many. A program that waits for events must get each completion once.
// With one of these providers it must also get one notice about the defect.
func TestExtendedCQOvercount(t *testing.T) {
	t.Parallel()
	program := buildWithLibibverbs(t, "drain")
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	for _, c := range []struct {
		args   []string
		want   string
		mended bool // the service corrects the count
	}{{nil, "^ok\n$", true}, {[]string{"busy"}, "^(stale completions\n)?ok\n$", false}} {
		cmd := w.verbenaCommand(w.contextWithTimeout(60), append([]string{"run", "--", program}, c.args...)...)
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil || !regexp.MustCompile(c.want).Match(out) {
			t.Errorf("drain %v: %v, %s%s", c.args, err, out, said.String())
		}
		version := libibverbsVersion(t)
		want := 0
		if version >= 34 && version < 55 && c.mended {
			want = 1
		}
		notice := fmt.Sprintf("rdma-core %d.", version)
		if got := strings.Count(said.String(), "consumed more completions"); got != want ||
			want == 1 && !strings.Contains(said.String(), notice) {
			t.Errorf("drain %v with rdma-core %d: got %d notices, want %d with %q: %s", c.args, version, got, want, notice,
				said.String())
		}
	}
	w.awaitNoProgramObjects()
}

// libibverbsVersion returns the version of the installed libibverbs.
func libibverbsVersion(t *testing.T) int {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/*/libibverbs.so.1.*.*")
	if len(found) != 1 {
		t.Fatalf("libibverbs: found %v", found)
	}
	version := strings.Split(filepath.Base(found[0]), ".")
	n, err := strconv.Atoi(version[len(version)-2])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestBindUsesLowKeyByte tests that a bind uses only the low 8 bits of the requested key.
func TestBindUsesLowKeyByte(t *testing.T) { runCProgram(t, "windows") }

// TestZeroBased tests that addresses in a zero-based region are offsets from its first byte.
func TestZeroBased(t *testing.T) { runCProgram(t, "zerobased") }

// TestDeviceLimits tests that a program can create one object of each kind with the maximum attributes that the
// device reports. The test also tests a service that other users share, and a /dev/shm as small as in a container.
func TestDeviceLimits(t *testing.T) {
	runCProgram(t, "limits")
	program := buildWithLibibverbs(t, "limits")
	t.Run("shared", func(t *testing.T) {
		needRoot(t)
		w := startService(t, testUsers()[0], "", "--mode", "0666", "--link", "rxe0="+unusedAddr())
		if out := w.mustRun("run", "--", program, "longest"); !strings.HasSuffix(out, "ok\n") {
			t.Errorf("limits with a small /dev/shm: got %s, want ok at the end", out)
		}
	})
	t.Run("container", func(t *testing.T) {
		needRoot(t)
		needProgram(t, "util-linux", "unshare", "mount")
		for _, u := range testUsers() {
			w := newTestService(t, u, "")
			script := fmt.Sprintf(`mount -t tmpfs -o size=64m,mode=1777 none /dev/shm &&
				exec setpriv --reuid %d --clear-groups "$0" "$@"`, u.uid)
			cmd := exec.CommandContext(w.contextWithTimeout(60), "unshare", "-m", "sh", "-c", script, verbenaBinary(t), "run",
				"--private",
				"--link", "rxe0="+unusedAddr(), "--", program)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.HasSuffix(string(out), "ok\n") {
				t.Errorf("%s: %v\n%s", u.name, err, out)
			}
		}
	})
}

// TestFailedInvalidationIsNotAcknowledged tests that a SEND with a failing invalidation gets no acknowledgement, and
// that its receive completes with an error.
func TestFailedInvalidationIsNotAcknowledged(t *testing.T) { runCProgram(t, "invalidate") }

// TestResShowPrintsPinnedPages tests that `res show` prints the number of a program's pinned pages.
func TestResShowPrintsPinnedPages(t *testing.T) {
	t.Parallel()
	program := buildWithLibibverbs(t, "pinning")
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	cmd := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", program, "hold")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var word string
	if _, err := fmt.Fscan(stdout, &word); err != nil || word != "ready" {
		t.Fatalf("%q, %v", word, err)
	}
	if out := w.mustRun("res", "show"); !strings.Contains(out, "20 KiB") {
		t.Errorf("res show: got no line with five pinned pages:\n%s", out)
	}
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	cmd.Wait()
	w.awaitNoProgramObjects()
}
