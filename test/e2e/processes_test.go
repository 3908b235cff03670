//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const pythonPath = "/usr/bin/python3"

const pythonProcessesScript = `
import multiprocessing as mp, subprocess, sys, threading
import pyverbs.device as d
def use(n):
    with d.Context(name='rxe0') as c:
        return c.query_device().phys_port_cnt
if __name__ == '__main__':
    use(0)
    for how in ['fork', 'spawn', 'forkserver']:
        with mp.get_context(how).Pool(3) as p:
            assert p.map(use, range(6)) == [1] * 6, how
        print('ok')
    ts = [threading.Thread(target=use, args=(0,)) for _ in range(8)]
    [t.start() for t in ts]; [t.join() for t in ts]
    print('ok')
`

// TestForkExecSpawn tests fork, exec, spawn, threads and close in programs that use a device file. One part runs with a
// service that accesses the programs itself, the other part with access through their launchers.
func TestForkExecSpawn(t *testing.T) {
	t.Parallel()
	c, raw := buildStaticC(t, "process"), buildRawverbs(t)
	dir := newScratchDir(t)
	os.Chmod(dir, 0o755)
	script := filepath.Join(dir, "processes.py")
	if err := os.WriteFile(script, []byte(pythonProcessesScript), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []struct {
		name string
		args []string
	}{{"direct", nil}, {"by the launcher", []string{"--ask-launchers"}}} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			w := startService(t, testUsers()[len(testUsers())-1], "", append([]string{"--link", "rxe0=" + unusedAddr()},
				mode.args...)...)
			for _, p := range []struct {
				name string
				argv []string
				oks  int
			}{
				{"static C program", []string{c, "plain"}, 1},
				{"static Go program", []string{raw, "transfer"}, 1},
				{"fork", []string{c, "fork"}, 2},
				{"vfork and exec", []string{c, "vfork"}, 2},
				{"posix_spawn", []string{c, "spawn"}, 4},
				{"threads", []string{c, "threads"}, 1},
				{"exec", []string{c, "exec"}, 1},
				{"exec with the device open", []string{c, "exec-inherit"}, 1},
				{"daemon", []string{"sh", "-c", c + " daemon; sleep 1"}, 1},
				{"close_range", []string{c, "close-range"}, 1},
				{"close of everything", []string{c, "close-all"}, 1},
				{"shell", []string{"sh", "-c", c + " plain & " + raw + " transfer; wait; (" + c + " plain)"}, 3},
				{"Python", []string{pythonPath, script}, 4},
			} {
				t.Run(p.name, func(t *testing.T) {
					if p.argv[0] == pythonPath {
						needCondition(t, exec.Command(pythonPath, "-c", "import pyverbs.device").Run() == nil,
							"apt-get install python3-pyverbs")
					}
					if out := w.mustRun(append([]string{"run", "--"}, p.argv...)...); strings.Count(out, "ok\n") != p.oks ||
						out != strings.Repeat("ok\n", p.oks) {
						t.Errorf("output: got %q, want %d times ok", out, p.oks)
					}
				})
			}
			w.awaitNoProgramObjects()
		})
	}
}

// TestUnprivilegedContainers tests that a program and its service work without privileges that a container may lack.
// Private services start and stop repeatedly at one address.
func TestUnprivilegedContainers(t *testing.T) {
	t.Parallel()
	needRoot(t)
	raw, addr := buildRawverbs(t), unusedAddr()
	nobody := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}
	for _, c := range []struct {
		name string
		argv []string
	}{
		{"root without CAP_SYS_PTRACE", []string{"setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"}},
		{"no capabilities", []string{"setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"}},
		{"user namespace", append(nobody, "unshare", "--user", "--map-root-user")},
		{"user and process namespace", append(nobody, "unshare", "--user", "--map-root-user", "--pid", "--fork",
			"--mount-proc")},
	} {
		t.Run(c.name, func(t *testing.T) {
			needCondition(t, exec.Command(c.argv[0], append(c.argv[1:], "true")...).Run() == nil, strings.Join(c.argv, " "))
			for range 3 {
				out, err := exec.Command(c.argv[0], append(c.argv[1:], verbenaBinary(t), "run", "--private", "--link",
					"rxe0="+addr, "--",
					raw, "transfer")...).CombinedOutput()
				if err != nil || string(out) != "ok\n" {
					t.Errorf("%v: %q", err, out)
				}
			}
		})
	}
}
