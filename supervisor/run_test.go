package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/testutil"
)

func TestProgramSeesDeviceFiles(t *testing.T) {
	w := newFixture(t)
	for _, tt := range []struct{ script, want string }{
		{`cat /sys/class/infiniband_verbs/abi_version`, "6\n"},
		{`cat /sys/class/infiniband_verbs/uverbs0/ibdev`, "rxe0\n"},
		{`cat /sys/class/infiniband_verbs/uverbs0/dev`, "231:192\n"},
		{`cat /sys/class/infiniband_verbs/uverbs0/abi_version`, "2\n"},
		{`cat /sys/class/infiniband/rxe0/node_type`, "1: CA\n"},
		{`cat /sys/class/infiniband/rxe0/node_guid`, "0200:0000:0000:0001\n"},
		{`cat /sys/class/infiniband/rxe0/ports/1/state`, "4: ACTIVE\n"},
		{`cat /sys/class/infiniband/rxe0/ports/1/phys_state`, "5: LinkUp\n"},
		{`cat /sys/class/infiniband/rxe0/ports/1/rate`, "2.5 Gb/sec (1X SDR)\n"},
		{`cat /sys/class/infiniband/rxe0/ports/1/link_layer`, "Ethernet\n"},
		{`cat /sys/class/infiniband/rxe0/ports/1/cap_mask`, "0x00010000\n"},
		{`cat /sys/class/infiniband/rxe0/ports/1/pkeys/0`, "0xffff\n"},
		{`cat /sys/class/infiniband/rxe0/ports/1/gids/0`, "fe80:0000:0000:0000:0000:0000:0000:0001\n"},
		{`cat /sys/class/infiniband/rxe0/ports/1/gids/1`, noGID},
		{`cat /sys/class/infiniband/rxe0/ports/1/gids/3`, "0000:0000:0000:0000:0000:ffff:7f00:0001\n"},
		{`cat /sys/class/infiniband/rxe0/ports/1/gid_attrs/types/3`, "RoCE v2\n"},
		{`cat /sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/3`, "lo\n"},
		{`cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts`, "7\n"},
		{`ls /sys/class/infiniband /dev/infiniband /sys/class/infiniband_verbs`,
			"/dev/infiniband:\nuverbs0\n\n/sys/class/infiniband:\nrxe0\n\n/sys/class/infiniband_verbs:\nabi_version\nuverbs0\n"},
		{`ls /sys/class/infiniband/rxe0/ports/1/gids | wc -l`, "8\n"},
		{`cd / && find /sys/class/infiniband/rxe0/ports/1 -name state`, "/sys/class/infiniband/rxe0/ports/1/state\n"},
		{`stat -c '%F %t:%T %a %u:%g' /dev/infiniband/uverbs0`, "character special file e7:c0 666 0:0\n"},
		{`stat -c '%F %t:%T' /dev//infiniband/./../infiniband/uverbs0`, "character special file e7:c0\n"},
		{`stat -c '%F' /proc/../dev/infiniband/uverbs0`, "character special file\n"},
		{`test -e /dev/infiniband/x/../uverbs0; echo $?`, "1\n"},
		{`test -e /dev/infiniband/uverbs0/../uverbs0; echo $?`, "1\n"},
		{`test -e /nonexistent/../dev/infiniband/uverbs0; echo $?`, "1\n"},
		{`test -e /etc/hostname/../../dev/infiniband/uverbs0; echo $?`, "1\n"},
		{`cat /dev/infiniband/uverbs0/ 2>&1`, "cat: /dev/infiniband/uverbs0/: Not a directory\n"},
		{`cat /sys/class/infiniband/rxe0/node_type/. 2>&1`, "cat: /sys/class/infiniband/rxe0/node_type/.: Not a directory\n"},
		{`stat -c %F /dev/char/231:192/ 2>&1`, "stat: cannot statx '/dev/char/231:192/': Not a directory\n"},
		{`stat -c %F /dev/infiniband/ /sys/dev/char/231:192/ /sys/dev/char/231:192/../rxe0 2>&1`,
			"directory\ndirectory\nstat: cannot statx '/sys/dev/char/231:192/../rxe0': No such file or directory\n"},
		{`cat /sys/dev/char/231:192/../uverbs0/ibdev`, "rxe0\n"},
		{`stat -c '%F %N' /dev/char/231:192`, "symbolic link '/dev/char/231:192' -> '../infiniband/uverbs0'\n"},
		{`stat -L -c '%F %t:%T' /dev/char/231:192`, "character special file e7:c0\n"},
		{`cat /sys/dev/char/231:192/ibdev`, "rxe0\n"},
		{`stat -c '%F %a' /sys/class/infiniband/rxe0 /sys/class/infiniband/rxe0/node_guid`,
			"symbolic link 777\nregular file 444\n"},
		{`test -c /dev/infiniband/uverbs0 && test -r /dev/infiniband/uverbs0 && test -w /dev/infiniband/uverbs0; echo $?`,
			"0\n"},
		{`test -x /dev/infiniband/uverbs0; echo $?`, "1\n"},
		{`test -e /dev/infiniband/rdma_cm; echo $?`, "1\n"},
		{`test -e /sys/class/infiniband_mad; echo $?`, "1\n"},
		{`test -e /sys/class/misc/rdma_cm/abi_version; echo $?`, "1\n"},
		{`readlink -f /sys/class/infiniband/rxe0`, "/sys/devices/virtual/infiniband/rxe0\n"},
		{`readlink /sys/class/infiniband/rxe0`, "../../devices/virtual/infiniband/rxe0\n"},
		{`readlink -f /sys/class/infiniband_verbs/uverbs0`, "/sys/devices/virtual/infiniband_verbs/uverbs0\n"},
		{`readlink -f /sys/class/infiniband/rxe0/../..`, "/sys/devices/virtual\n"},
		{`cat /sys/class/infiniband/rxe0/subsystem/rxe0/node_type`, "1: CA\n"},
		{`cat /sys/class/infiniband/rxe0/parent`, "lo\n"},
		{`ls /sys/class/infiniband/rxe0/device /sys/class/infiniband/rxe0/device/net`,
			"/sys/class/infiniband/rxe0/device:\nlocal_cpulist\nlocal_cpus\nnet\nnuma_node\n\n/sys/class/infiniband/rxe0/device/net:\nlo\n"},
		{`cat /sys/class/infiniband/rxe0/device/numa_node`, "-1\n"},
		{`cat /proc/sys/kernel/ostype; cat nosuch 2>/dev/null; echo $?`, "Linux\n1\n"},
		{`echo x 2>&1 >/sys/class/infiniband/rxe0/node_desc || echo refused`, "refused\n"},
		{`cd /tmp && pwd`, "/tmp\n"},
	} {
		code, out := w.runShell("exec 2>&1; " + tt.script)
		if out = strings.ReplaceAll(out,
			"/bin/sh: 1: cannot create /sys/class/infiniband/rxe0/node_desc: Permission denied\n", ""); out != tt.want {
			t.Errorf("%s:\n got %q (exit code %d)\nwant %q", tt.script, out, code, tt.want)
		}
	}
}

// TestRelativePathsReachVirtualDirectories tests paths relative to virtual directories and to the directories above
// them. The directories above must list the virtual directories.
func TestRelativePathsReachVirtualDirectories(t *testing.T) {
	w := newFixture(t)
	python := func(script string) string { return "python3 -c '\nimport os, stat, sys\n" + script + "'" }
	for i, tt := range []struct{ script, want string }{
		{"cd /sys/class && ls infiniband && cat infiniband/rxe0/node_type && cat ./infiniband_verbs/../infiniband/rxe0/node_type",
			"rxe0\n1: CA\n1: CA\n"},
		{"cd / && cat sys/class/infiniband_verbs/uverbs0/ibdev && stat -c %F dev/infiniband/uverbs0",
			"rxe0\ncharacter special file\n"},
		{"cd /dev && ls -d infiniband/uverbs0 && ls -d inf*", "infiniband/uverbs0\ninfiniband\n"},
		{"ls /sys/class | grep ^infiniband; ls /dev | grep infiniband; ls -f /dev/ | grep -c infiniband",
			"infiniband\ninfiniband_verbs\ninfiniband\n1\n"},
		{"ls /sys/class | grep -c -x net; ls /dev | grep -c -x null", "1\n1\n"}, // the directories also list other entries
		{"find /sys/class -maxdepth 1 -name 'infini*' | sort", "/sys/class/infiniband\n/sys/class/infiniband_verbs\n"},
		{"find /sys/class -mindepth 2 -maxdepth 2 -name 'rxe*'; find /dev -path '/dev/inf*' -name 'uverbs*'",
			"/sys/class/infiniband/rxe0\n/dev/infiniband/uverbs0\n"},
		{"find /sys/class/infiniband/ -type l; find /sys/class/infiniband/rxe0/ -maxdepth 1 -name node_type",
			"/sys/class/infiniband/rxe0\n/sys/class/infiniband/rxe0/node_type\n"},
		{"ls -la /sys/class/infiniband | sed 1d | cut -c1-10,40-200 | sed 's/.* \\([^ ]*\\) ->/\\1 ->/' | tail -1",
			"rxe0 -> ../../devices/virtual/infiniband/rxe0\n"},
		{"ls -l /dev/infiniband | sed 1d | cut -c1-10", "crw-rw-rw-\n"},
		{"ulimit -Sn 256; cd /dev && ls -d inf* && stat -c %F infiniband/uverbs0", "infiniband\ncharacter special file\n"},
		{python(`import ctypes
d, call = os.open("/sys/class", os.O_RDONLY), {"x86_64": 217, "aarch64": 61}[os.uname().machine]
print(ctypes.CDLL(None).syscall(call, d, ctypes.c_void_p(8), 32768), os.lseek(d, 0, os.SEEK_CUR), "infiniband" in os.listdir(d))`),
			"-1 0 True\n"}, // getdents64 into unmapped memory
		{python(`d = os.open("/sys/class", os.O_RDONLY)
print(open("infiniband/rxe0/node_type", opener=lambda p, f: os.open(p, f, dir_fd=d)).read(), end="")
print(os.readlink("infiniband/rxe0", dir_fd=d), os.access("infiniband/rxe0", os.R_OK, dir_fd=d), os.stat("infiniband", dir_fd=d).st_mode & 0o777 == 0o755)`),
			"1: CA\n../../devices/virtual/infiniband/rxe0 True True\n"},
		{python(`os.fchdir(os.open("/sys/class/infiniband", os.O_RDONLY))
print(os.getcwd(), os.listdir("."), open("rxe0/node_type").read(), end="")
print(open("../infiniband_verbs/abi_version").read(), open("/sys/class/infiniband/rxe0/ports/1/../../node_type").read(), end="")
print("infiniband" in os.listdir(".."), "net" in os.listdir(".."), os.path.realpath("rxe0"))
os.chdir("rxe0/ports/1")
print(os.getcwd(), open("state").read(), os.stat("gids/3").st_size, open("gid_attrs/types/3").read(), end="")
os.chdir("../../../..")
print(os.getcwd())
os.chdir("/")
print(os.getcwd(), os.path.exists("rxe0"))`),
			"/sys/class/infiniband ['rxe0'] 1: CA\n6\n 1: CA\nTrue True /sys/devices/virtual/infiniband/rxe0\n" +
				"/sys/devices/virtual/infiniband/rxe0/ports/1 4: ACTIVE\n 40 RoCE v2\n/sys/devices/virtual\n/ False\n"},
		{python(`os.fchdir(os.dup(os.open("/dev/infiniband", os.O_RDONLY | os.O_DIRECTORY)))
print(os.getcwd(), stat.S_ISCHR(os.stat("uverbs0").st_mode), stat.S_ISCHR(os.fstat(os.open("./uverbs0", os.O_RDWR)).st_mode), stat.S_ISCHR(os.lstat("../infiniband/uverbs0").st_mode))
sys.stdout.flush()
os.system("pwd; ls; cat ../../sys/class/infiniband/rxe0/node_type")`),
			"/dev/infiniband True True True\n/dev/infiniband\nuverbs0\n1: CA\n"},
	} {
		if testing.Short() && i%3 > 0 {
			continue // each test takes several programs with many trapped system calls
		}
		code, out := w.runShell("exec 2>&1; " + tt.script)
		if out != tt.want {
			t.Errorf("%s\n got %q (exit code %d)\nwant %q", tt.script, out, code, tt.want)
		}
	}
}

// TestGIDFilesAreMadeOnAccess tests that the supervisor makes the files of a GID table when a program accesses them in
// any way.
func TestGIDFilesAreMadeOnAccess(t *testing.T) {
	const gids = "/sys/class/infiniband/rxe0/ports/1/gids"
	for i, tt := range []struct{ script, want string }{
		{"stat -c %F " + gids + "/3", "regular file\n"},
		{"test -r " + gids + "/3; echo $?", "0\n"},
		{"cat " + gids + "/3", "0000:0000:0000:0000:0000:ffff:7f00:0001\n"},
		{"python3 -c 'import os; print(os.fstat(os.open(\"" + gids + "/3\", os.O_PATH)).st_size)'", "40\n"},
		{"python3 -c 'import os; print(open(\"3\", opener=lambda p, f: os.open(p, f, dir_fd=os.open(\"" + gids +
			"\", os.O_RDONLY))).read())'",
			"0000:0000:0000:0000:0000:ffff:7f00:0001\n\n"},
		{"python3 -c 'import os; os.open(\"/dev/infiniband/uverbs0\", os.O_PATH)' 2>&1 | tail -1",
			"OSError: [Errno 95] Operation not supported: '/dev/infiniband/uverbs0'\n"},
		{"python3 -c 'import os; d = os.open(\"" + gids +
			"\", os.O_PATH); print(open(\"7\", opener=lambda p, f: os.open(p, f, dir_fd=d)).read())'", noGID + "\n"},
		{"ls " + gids + " | wc -l", "8\n"},
		{"find /sys/class/infiniband/rxe0/ -name 3 | sort",
			strings.ReplaceAll("P/gid_attrs/ndevs/3\nP/gid_attrs/types/3\nP/gids/3\n", "P", filepath.Dir(gids))},
	} {
		if testing.Short() && i%3 > 0 {
			continue // each test needs a separate service
		}
		w := newFixture(t) // no program has accessed the files before
		if code, out := w.runShell("exec 2>&1; " + tt.script); out != tt.want {
			t.Errorf("%s\n got %q (exit code %d)\nwant %q", tt.script, out, code, tt.want)
		}
	}
}

func TestProgramOpens(t *testing.T) {
	w := newFixture(t)
	port := "/sys/class/infiniband/rxe0/ports/1/"
	got := w.mustRunSelf("opens", port+"gid_attrs/types/0", port+"gid_attrs/types/1", port+"gid_attrs/ndevs/7",
		port+"gids/8", "/sys/class/infiniband/rxe1/node_guid")
	want := strings.ReplaceAll(`P/gid_attrs/types/0: "RoCE v2\n"
P/gid_attrs/types/1: read: invalid argument
P/gid_attrs/ndevs/7: read: invalid argument
P/gids/8: open: no such file or directory
/sys/class/infiniband/rxe1/node_guid: open: no such file or directory`, "P/", port)
	if got != want {
		t.Errorf("opens of the program: got\n%s\nwant\n%s", got, want)
	}
}

// TestOpensSucceedDuringSignals tests that a program's opens return the right file while the answering threads receive
// signals, such as those of Go's runtime.
func TestOpensSucceedDuringSignals(t *testing.T) {
	w := newFixture(t)
	r := w.startSelf("reopens", testutil.FewerIfShort("5000", "1000"))
	for ended := false; !ended; {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range tasks {
			if tid, err := strconv.Atoi(e.Name()); err == nil {
				_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG) // the thread may have ended
			}
		}
		select {
		case <-r.output.end:
			ended = true
		default:
		}
	}
	if code, out := w.waitForExit(r); code != 0 || out != "ok\n" {
		t.Errorf("exit code and output: got %d and %s, want 0 and ok", code, out)
	}
}

func TestPythonUsesDevice(t *testing.T) {
	w := newFixture(t)
	out := w.mustRun("python3", "-c", `
import os, stat, fcntl, struct
fd = os.open("/dev/infiniband/uverbs0", os.O_RDWR)
st = os.fstat(fd)
assert stat.S_ISCHR(st.st_mode) and os.major(st.st_rdev) == 231 and os.minor(st.st_rdev) == 192, st
b = bytearray(struct.pack("QQQ", 0, 41, 0))
fcntl.ioctl(fd, 0xc0181b01, b)
print(struct.unpack("QQQ", b)[2], sorted(os.listdir("/sys/class/infiniband/rxe0/ports/1/gids"), key=int))
`)
	if want := "42 ['0', '1', '2', '3', '4', '5', '6', '7']\n"; out != want {
		t.Errorf("output: got %q, want %q", out, want)
	}
}

// TestWorkAfterTheAnswer tests that the calls of a program are answered while workers are blocked in work after an
// answer.
func TestWorkAfterTheAnswer(t *testing.T) {
	w := newFixture(t)
	if got := w.mustRunSelf("late"); got != "ok" {
		t.Errorf("output: got %q, want ok", got)
	}
}

func TestCommands(t *testing.T) {
	w := newFixture(t)
	fds := countOpenDescriptors(t)
	if got := w.mustRunSelf("commands"); got != "ok" {
		t.Errorf("output: got %q, want ok", got)
	}
	for _, f := range w.srv.files {
		w.waitForClose("the file to be closed", f.closed)
	}
	f := w.srv.files[0]
	if f.uid != os.Geteuid() || f.name != "exe" {
		t.Errorf("opener: got user %d and name %q, want user %d and exe", f.uid, f.name, os.Geteuid())
	}
	if n := f.failed.Load(); n != 1 {
		t.Errorf("fatal events of the device: got %d, want 1, for the panic", n)
	}
	if n := f.rung.Load(); n != 7 {
		t.Errorf("doorbells: got %d, want 7", n)
	}
	var panics int
	for _, l := range w.logs.takeLines() {
		if strings.Contains(l, "panic in ioctl") && strings.Contains(l, "requested by the program") &&
			strings.Contains(l, "fake_test.go") {
			panics++
		} else {
			t.Errorf("log: got %s, want only the panic of the ioctl", l)
		}
	}
	if panics != 1 {
		t.Errorf("logged panics: got %d, want 1", panics)
	}
	testutil.Eventually(t, "descriptors to be closed", func() bool { return countOpenDescriptors(t) <= fds })
}

// TestProgramCanUseHundredsOfFiles tests that a program with hundreds of open files can use all of them, also at
// numbers in the range of device files.
func TestProgramCanUseHundredsOfFiles(t *testing.T) {
	w := newFixture(t)
	if got := w.mustRunSelf("numbers"); got != "ok" {
		t.Errorf("output: got %q, want ok", got)
	}
}

func countOpenDescriptors(t *testing.T) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

func TestNoDescriptorIsLeftOver(t *testing.T) {
	w := newFixture(t)
	w.mustRunSelf("opens", deviceFile)
	before := countOpenDescriptors(t)
	for range 20 {
		if code, out := w.runShell("ls /sys/class/infiniband >/dev/null; cat /sys/class/infiniband/*/ports/1/gid_attrs/types/1 2>&1; exec 3<>/dev/infiniband/uverbs0"); code != 0 {
			t.Fatalf("exit code: got %d, want 0; printed %s", code, out)
		}
	}
	testutil.Eventually(t, "descriptors to be closed", func() bool { return countOpenDescriptors(t) <= before })
}

func TestExitCodes(t *testing.T) {
	w := newFixture(t)
	for _, tt := range []struct {
		script string
		want   int
	}{{"exit 0", 0}, {"exit 3", 3}, {"exit 255", 255}, {"kill -KILL $$", 128 + 9}, {"kill -SEGV $$", 128 + 11}} {
		if code, _ := w.runShell(tt.script); code != tt.want {
			t.Errorf("%s: exit code: got %d, want %d", tt.script, code, tt.want)
		}
	}
}

func TestExecOfScripts(t *testing.T) {
	w := newFixture(t)
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, tt := range []struct {
		path string
		want error
	}{
		{filepath.Join(dir, "nosuch"), syscall.ENOENT},
		{dir, syscall.EACCES},
		{write("data", "x", 0o644), syscall.EACCES},
		{write("script", "#!/no/such/interpreter\n", 0o755), syscall.ENOENT},
	} {
		r, err := w.tryStart(tt.path, nil, tt.path)
		var e *ExecError
		if !errors.Is(err, tt.want) || !errors.As(err, &e) || e.Path != tt.path {
			t.Errorf("Start %s: got %v, want %v", tt.path, err, tt.want)
			continue
		}
		w.waitForClose("the end of the session", r.session.Done())
	}
	// A file without a magic number is a script for the shell.
	script := write("plain", "echo $0 $*\nexit 5\n", 0o755)
	code, out := w.waitForExit(w.startPath(script, nil, "plain", "a", "b"))
	if want := script + " a b\n"; code != 5 || out != want {
		t.Errorf("script: got exit code %d and output %q, want 5 and %q", code, out, want)
	}
}

func TestProgramInheritsAttributes(t *testing.T) {
	w := newFixture(t)
	script := `umask; ulimit -n; ulimit -Hn; pwd; ps -o pgid= -p $$ | tr -d ' '; ps -o sid= -p $$ | tr -d ' '; echo $VERBENA_GUEST_TEST`
	want, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("VERBENA_GUEST_TEST", "environment")
	var soft unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &soft); err != nil {
		t.Fatal(err)
	}
	old := unix.Umask(0o027)
	defer unix.Umask(old)
	code, out := w.runShell(script)
	got := strings.Split(out, "\n")
	if code != 0 || len(got) < 7 {
		t.Fatalf("exit code: got %d, want 0 and at least 7 results; printed %s", code, out)
	}
	sid, err := unix.Getsid(0)
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range []string{"0027", got[1], strconv.FormatUint(soft.Max, 10), want, strconv.Itoa(unix.Getpgrp()),
		strconv.Itoa(sid), "environment"} {
		if got[i] != w {
			t.Errorf("line %d: got %q, want %q", i+1, got[i], w)
		}
	}
}

func TestSignalsArePassedOn(t *testing.T) {
	w := newFixture(t)
	r := w.startSelf("signals")
	w.waitForText(r, "ready")
	for _, tt := range []struct {
		sig  syscall.Signal
		want string
	}{{unix.SIGUSR1, "user defined signal 1"}, {unix.SIGHUP, "hangup"}} {
		if err := unix.Kill(os.Getpid(), tt.sig); err != nil { // this process is the launcher of the program
			t.Fatal(err)
		}
		w.waitForText(r, tt.want)
	}
	if err := r.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, out := w.waitForExit(r); code != 7 {
		t.Errorf("exit code: got %d, want 7; printed %q", code, out)
	}
	if err := r.Signal(unix.SIGTERM); err != os.ErrProcessDone {
		t.Errorf("Signal after the end: got %v, want os.ErrProcessDone", err)
	}
}
