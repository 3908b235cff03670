//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/internal/testutil"
	"verbena/test/trace"
)

// TestTrace runs programs from start to end with a service traced by strace, and checks each thread of the service
// with package trace.
func TestTrace(t *testing.T) {
	t.Parallel()
	needRoot(t)
	needProgram(t, "strace", "strace")
	program, raw := buildAttackProgram(t, "attack"), buildRawverbs(t)
	w := newTestService(t, testUser{"root", 0}, "")
	os.Chmod(filepath.Dir(w.socket), 0o755)
	dir := t.TempDir()
	const calls = "trace=%file,%process,ioctl,ppoll,prlimit64,process_vm_readv,process_vm_writev,kill,tkill,tgkill,pidfd_open," +
		"pidfd_getfd,inotify_add_watch,openat,openat2,unlinkat,statx,newfstatat,readlinkat"
	c := exec.Command("strace", "-ff", "-s", "256", "-o", filepath.Join(dir, "thread"), "-e", calls, "-e", "signal=none",
		verbenaBinary(t), "serve", "--socket", w.socket, "--mode", "0666", "--wire", "--link", "rxe0="+unusedAddr())
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = c.Wait()
	}()
	t.Cleanup(func() {
		syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		<-over
	})
	testutil.Eventually(t, "the service to answer", func() bool {
		return w.verbenaCommand(w.contextWithTimeout(5), "link", "show").Run() == nil
	})
	user := w.asUser(attacker)
	for _, argv := range [][]string{{raw, "transfer"}, {program, "hidden-execs", "vfork", "none"},
		{program, "hidden-execs", "failed", "none"},
		{program, "exec-region", "pinned", program, "victim", "0.2"}, {program, "main-exit"}, {program,
			"descriptors"}, {program, "limits"},
		{"cat", "/sys/class/infiniband/rxe0/node_guid"}, {"ls", "-l", "/sys/class/infiniband/rxe0", "/dev/infiniband"},
		{program, "paths", "/dev/infiniband/uverbs0", "/etc/hostname"}} {
		if out, err := user.verbenaCommand(w.contextWithTimeout(20), append([]string{"run", "--"},
			argv...)...).CombinedOutput(); err != nil {
			t.Logf("%v: %v: %s", argv, err, out)
		}
	}
	w.mustRun("stop")
	select {
	case <-over:
	case <-time.After(20 * time.Second):
		t.Fatal("service: did not end")
	}
	files, _ := filepath.Glob(filepath.Join(dir, "thread.*"))
	if len(files) < 5 {
		t.Fatalf("trace: got only %d threads", len(files))
	}
	// The first thread of the process is the thread that executed the service's program. This thread may not have
	// the lowest number, because thread numbers wrap around.
	self := 0
	traces := make([]string, len(files))
	for i, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		traces[i] = string(b)
		if call, _, _ := strings.Cut(traces[i], "\n"); strings.HasPrefix(call, "execve(") &&
			strings.Contains(call, `"serve"`) {
			self, _ = strconv.Atoi(filepath.Ext(f)[1:])
		}
	}
	if self == 0 {
		t.Fatal("trace: got no thread that executes the service")
	}
	found := map[trace.Rule][]trace.Violation{}
	proofs := 0
	for _, b := range traces {
		proofs += strings.Count(b, "SECCOMP_IOCTL_NOTIF_ID_VALID")
		for _, v := range trace.Check(self, strings.Split(b, "\n")) {
			found[v.Rule] = append(found[v.Rule], v)
		}
	}
	if proofs < 20 {
		t.Fatalf("trace: got only %d checks of a caller, want at least 20", proofs)
	}
	for _, rule := range []trace.Rule{trace.Paths, trace.Numbers, trace.Changes, trace.Memory} {
		t.Run(string(rule), func(t *testing.T) {
			list := found[rule]
			for _, v := range list[:min(len(list), 12)] {
				t.Errorf("%.300v", v)
			}
			if len(list) > 12 {
				t.Errorf("and %d more violations", len(list)-12)
			}
		})
	}
}
