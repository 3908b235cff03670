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

// runC runs a program of testdata to its end, as each user and over both paths.
func runC(t *testing.T, name string, args ...string) {
	t.Parallel()
	program := compile(t, name)
	for _, u := range users() {
		t.Run(u.name, func(t *testing.T) {
			w := startService(t, u, "", "--link", "rxe0="+loopback())
			out := w.out(append([]string{"run", "--", program}, args...)...)
			if !strings.HasSuffix(out, "ok\n") {
				t.Errorf("%s", out)
			}
			w.empty()
		})
	}
}

// TestEvents: blocking read, O_NONBLOCK, poll, select, epoll, several queues on a channel, fork, counts at destruction.
func TestEvents(t *testing.T) { runC(t, "events") }

// TestEarlyPost: a SEND posted in RESET, INIT or RTR is refused, and is not sent later.
func TestEarlyPost(t *testing.T) { runC(t, "early") }

// TestPinning: rights and limits of registrations, and memory that is unmapped behind them.
func TestPinning(t *testing.T) { runC(t, "pinning") }

// TestContexts: a thousand of them, closed or left to the service.
func TestContexts(t *testing.T) {
	t.Run("closed", func(t *testing.T) { runC(t, "contexts", "1000") })
	t.Run("left", func(t *testing.T) { runC(t, "contexts", "1000", "left") })
}

// TestDatagramHeaderType: a datagram's completion reports IPv4 in its SL, and an address handle made of it works.
func TestDatagramHeaderType(t *testing.T) { runC(t, "headertype") }

// TestPersistence: queue pairs may have the right to flush to persistent memory, regions not.
func TestPersistence(t *testing.T) { runC(t, "persistence") }

// TestRefill: a program that has been refused an object of any kind, and frees what it has, gets as many objects again.
// What one kind holds no more is free for the others.
func TestRefill(t *testing.T) {
	t.Parallel()
	program := compile(t, "cm_refill")
	args := []string{"--link", "rxe0=" + loopback(), "--limit", "descriptors=100/400", "--limit", "contexts=30/120"}
	for _, kind := range []string{"pds", "mrs", "cqs", "qps", "srqs", "cm-ids"} {
		args = append(args, "--limit", kind+"=50/200")
	}
	w := startService(t, users()[0], "", args...)
	if out := w.out("run", "--", program); out != "ok\n" {
		t.Errorf("%s", out)
	}
	w.empty()
}

// TestDrain: a program that drains an extended completion queue to its end, as the providers of rdma-core v34 to v54
// count wrongly. Waiting for events it gets each completion once, and with one of these it is told of the fault, once.
func TestDrain(t *testing.T) {
	t.Parallel()
	program := compile(t, "drain")
	w := startService(t, users()[0], "", "--link", "rxe0="+loopback())
	for _, c := range []struct {
		args   []string
		want   string
		mended bool // by the device
	}{{nil, "^ok\n$", true}, {[]string{"busy"}, "^(stale completions\n)?ok\n$", false}} {
		cmd := w.cmd(w.deadline(60), append([]string{"run", "--", program}, c.args...)...)
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil || !regexp.MustCompile(c.want).Match(out) {
			t.Errorf("drain %v: %v, %s%s", c.args, err, out, said.String())
		}
		version := providerVersion(t)
		want := 0
		if version >= 34 && version < 55 && c.mended {
			want = 1
		}
		notice := fmt.Sprintf("rdma-core %d.", version)
		if got := strings.Count(said.String(), "took more completions"); got != want ||
			want == 1 && !strings.Contains(said.String(), notice) {
			t.Errorf("drain %v with rdma-core %d: %d notices, want %d with %q: %s", c.args, version, got, want, notice,
				said.String())
		}
	}
	w.empty()
}

// providerVersion returns the version of the libibverbs that programs of this machine use.
func providerVersion(t *testing.T) int {
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

// TestWindowKeys: of the key that a program asks for in a bind, the low 8 bits count.
func TestWindowKeys(t *testing.T) { runC(t, "windows") }

// TestZeroBased: addresses in a zero-based region count from its first byte.
func TestZeroBased(t *testing.T) { runC(t, "zerobased") }

// TestDeviceLimits: a program gets one of each object with all that the device says one can have; also from a service
// that it shares with other users, and where /dev/shm is as small as in a container.
func TestDeviceLimits(t *testing.T) {
	runC(t, "limits")
	program := compile(t, "limits")
	t.Run("shared", func(t *testing.T) {
		needRoot(t)
		w := startService(t, users()[0], "", "--mode", "0666", "--link", "rxe0="+loopback())
		if out := w.out("run", "--", program, "longest"); !strings.HasSuffix(out, "ok\n") {
			t.Errorf("%s", out)
		}
	})
	t.Run("container", func(t *testing.T) {
		needRoot(t)
		needProgram(t, "util-linux", "unshare", "mount")
		for _, u := range users() {
			w := newWorld(t, u, "")
			script := fmt.Sprintf(`mount -t tmpfs -o size=64m,mode=1777 none /dev/shm &&
				exec setpriv --reuid %d --clear-groups "$0" "$@"`, u.uid)
			cmd := exec.CommandContext(w.deadline(60), "unshare", "-m", "sh", "-c", script, binary(t), "run", "--private",
				"--link", "rxe0="+loopback(), "--", program)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.HasSuffix(string(out), "ok\n") {
				t.Errorf("%s: %v\n%s", u.name, err, out)
			}
		}
	})
}

// TestInvalidationFails: a SEND with an invalidation that fails is not answered, and the receive completes with an
// error.
func TestInvalidationFails(t *testing.T) { runC(t, "invalidate") }

// TestPinnedPages: `res show` tells what a program holds.
func TestPinnedPages(t *testing.T) {
	t.Parallel()
	program := compile(t, "pinning")
	w := startService(t, users()[0], "", "--link", "rxe0="+loopback())
	cmd := w.cmd(w.deadline(60), "run", "--", program, "hold")
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
	if out := w.out("res", "show"); !strings.Contains(out, "20 KiB") {
		t.Errorf("five pages are not told of:\n%s", out)
	}
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	cmd.Wait()
	w.empty()
}
