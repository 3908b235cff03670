package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/internal/shm"
	"verbena/internal/testutil"
	"verbena/umem"
)

func init() {
	for name, f := range map[string]func([]string){
		"steps":    programTakeStep,
		"victim":   programReplacement,
		"executes": programExecOther,
		"beside":   programBesideExec,
		"secret":   programUntouchedMemory,
		"jailed":   programOtherRoot,
		"readonly": programReadOnly,
		"mainexit": programEndMainThread,
		"dup2":     programDup2Race,
		"ownfiles": programSeparateTable,
		"slow":     programSlowCommand,
		"parallel": programParallelWaits,
		"churn":    programReopenAndClose,
		"closed":   programClosedFD,
		"twice":    programTwoCommands,
	} {
		testPrograms[name] = f
	}
}

// fixedMemory returns memory at the same address in each program that calls it.
func fixedMemory(fill byte) []byte {
	const addr, size = 0x7e0000000000, 1 << 16
	p, _, e := unix.Syscall6(unix.SYS_MMAP, addr, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED, ^uintptr(0), 0)
	panicUnless(e == 0 && p == addr, "mmap: %v", e)
	mem := unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), size)
	for i := range mem {
		mem[i] = fill
	}
	return mem
}

// stepNames lists the steps of programTakeStep. Each step uses only memory of the arena.
var stepNames = []string{"open", "stat", "statx", "readlink", "access", "directory", "file", "openat2", "fstat",
	"increment", "install", "same", "register",
	"dup", "dupfd", "dup2", "exec"}

// The steps must run on the main thread, because its thread ID is the process ID. Only an init function can ensure
// that.
func init() {
	if os.Getenv(programEnvVar) == "steps" {
		runtime.LockOSThread()
	}
}

// programTakeStep opens the device, reports the open, and takes one step after a line of input.
func programTakeStep(args []string) {
	mem := fixedMemory('p')
	at := func(off int) uintptr { return uintptr(unsafe.Pointer(&mem[off])) }
	str := func(off int, s string) uintptr { copy(mem[off:], s+"\x00"); return at(off) }
	step := args[0]
	fd := -1
	if step != "open" && step != "exec" {
		fd = openDevice()
	}
	op := (*fakeOp)(unsafe.Pointer(&mem[4096]))
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
	raw := func(nr uintptr, a ...uintptr) {
		var r [6]uintptr
		copy(r[:], a)
		unix.RawSyscall6(nr, r[0], r[1], r[2], r[3], r[4], r[5])
	}
	cwd := ^uintptr(99)
	switch step {
	case "open":
		raw(unix.SYS_OPENAT, cwd, str(0, deviceFile), unix.O_RDWR)
	case "stat":
		raw(unix.SYS_NEWFSTATAT, cwd, str(0, deviceFile), at(8192), 0)
	case "statx":
		raw(unix.SYS_STATX, cwd, str(0, deviceFile), 0, unix.STATX_BASIC_STATS, at(8192))
	case "readlink":
		raw(unix.SYS_READLINKAT, cwd, str(0, devChar+"192"), at(8192), 100)
	case "access":
		raw(unix.SYS_FACCESSAT, cwd, str(0, deviceFile), 4)
	case "directory":
		raw(unix.SYS_OPENAT, cwd, str(0, ibDir), unix.O_RDONLY|unix.O_DIRECTORY)
	case "file":
		raw(unix.SYS_OPENAT, cwd, str(0, "/proc/../sys/class/infiniband/rxe0/node_guid"), unix.O_RDONLY)
	case "openat2":
		*(*[3]uint64)(unsafe.Pointer(&mem[2048])) = [3]uint64{unix.O_RDWR}
		raw(unix.SYS_OPENAT2, cwd, str(0, deviceFile), at(2048), 24)
	case "fstat":
		raw(unix.SYS_FSTAT, uintptr(fd), at(8192))
	case "increment":
		*op = fakeOp{op: opIncrement, in: 41}
		raw(unix.SYS_IOCTL, uintptr(fd), verbsIoctl, at(4096))
	case "install":
		*op = fakeOp{op: opInstall}
		raw(unix.SYS_IOCTL, uintptr(fd), verbsIoctl, at(4096))
	case "same":
		*op = fakeOp{op: opSameFile, in: 0}
		raw(unix.SYS_IOCTL, uintptr(fd), verbsIoctl, at(4096))
	case "register":
		*op = fakeOp{op: opRegister, in: uint64(at(12288))}
		raw(unix.SYS_IOCTL, uintptr(fd), verbsIoctl, at(4096))
	case "dup":
		raw(unix.SYS_DUP, uintptr(fd))
	case "dupfd":
		raw(unix.SYS_FCNTL, uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	case "dup2":
		raw(unix.SYS_DUP3, 0, uintptr(fd)+5, unix.O_CLOEXEC)
	case "exec":
		*(*uintptr)(unsafe.Pointer(&mem[256])) = str(0, "/bin/true")
		raw(unix.SYS_EXECVE, at(0), at(256), 0)
	}
	fmt.Println("done")
	os.Exit(0)
}

// programReplacement has memory at the same address as programTakeStep. After a line of input, the victim reports
// whether that memory has changed, and which files it has open.
func programReplacement([]string) {
	mem := fixedMemory('v')
	state := func() string {
		var limit unix.Rlimit
		must(0, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
		files := must(filepath.Glob("/proc/self/fd/*"))
		return fmt.Sprintln(limit, len(files), strings.Count(string(mem), "v") == len(mem))
	}
	before := state()
	fmt.Println("ready", os.Getpid())
	bufio.NewReader(os.Stdin).ReadString('\n')
	fmt.Print("same ", state() == before, "\n")
}

// victimScript starts a victim with a process ID that has just become free. A shell has one thread, so the next
// process gets the next ID, unless another program starts a process first.
const victimScript = `
exec 3<&0
i=0
while [ $i -lt 300 ]; do
	i=$((i + 1))
	echo $(($1 - 1)) >/proc/sys/kernel/ns_last_pid || exit 9
	( read me rest </proc/self/stat; [ "$me" = "$1" ] && exec "$0" <&3 ) &
	if [ $! = $1 ]; then wait $!; exit; fi
	wait $!
done
exit 8`

// startReplacement starts a victim with the process ID. It returns a function that queries the victim's state, or nil
// if another process has the ID.
func startReplacement(t *testing.T, pid int) (ask func() string) {
	t.Helper()
	c := exec.Command("/bin/sh", "-c", victimScript, executablePath(t), strconv.Itoa(pid))
	c.Env = append(os.Environ(), programEnvVar+"=victim", "GORACE=atexit_sleep_ms=0")
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(out)
	for {
		line, err := said.ReadString('\n')
		if err != nil {
			t.Logf("no victim got process ID %d: %v", pid, c.Wait())
			return nil
		}
		if line == fmt.Sprintf("ready %d\n", pid) {
			break
		}
	}
	return func() string {
		in.Close()
		line, _ := said.ReadString('\n')
		c.Wait()
		return line
	}
}

// TestReplacedCallerIsNotConfused kills the caller at each pause point of the supervisor, in each kind of call, and
// gives its process ID to another process. That process must stay unchanged.
func TestReplacedCallerIsNotConfused(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to choose the ID of a process")
	steps := stepNames
	if testing.Short() {
		steps = []string{"stat", "increment", "dup2", "exec"} // one step for each kind of call
	}
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			points, _ := replaceAtPoint(t, step, -1)
			if len(points) == 0 && step != "access" {
				t.Error("pause points: got none, want some")
			}
			for i, point := range points {
				t.Run(fmt.Sprint(i, " ", point), func(t *testing.T) {
					for range 10 {
						if _, ok := replaceAtPoint(t, step, i); ok {
							return
						}
					}
					t.Error("process ID of the caller: got another process each time, want the victim")
				})
			}
		})
	}
}

// replaceAtPoint takes one step and replaces the caller at the at-th point, or never if at is -1. It returns the points
// passed. ok is false if the caller's process ID could not be reused.
func replaceAtPoint(t *testing.T, step string, at int) (points []string, ok bool) {
	var mu sync.Mutex
	var pid uint32
	reached, goOn := make(chan struct{}), make(chan struct{})
	w := newFixture(t, func(c *SupervisorConfig) {
		c.pause = func(point string, tid uint32) {
			mu.Lock()
			mine := tid == pid
			if mine {
				points = append(points, point)
			}
			hit := mine && len(points) == at+1
			mu.Unlock()
			if hit {
				close(reached)
				<-goOn
			}
		}
	})
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	r := w.startWithInput(in, []string{programEnvVar + "=steps"}, "/proc/self/exe", step)
	in.Close()
	w.waitForText(r, "ready")
	mu.Lock()
	pid = uint32(r.PID())
	mu.Unlock()
	io.WriteString(out, "\n")
	if at < 0 {
		if code, said := w.waitForExit(r); code != 0 {
			t.Fatalf("exit code: got %d, want 0; printed %s", code, said)
		}
		return points, true
	}
	w.waitForClose("the point", reached)
	r.Signal(unix.SIGKILL)
	r.Wait()
	ask := startReplacement(t, r.PID())
	close(goOn)
	w.waitForClose("the end of the session", r.session.Done())
	if ask == nil {
		w.logs.takeLines()
		return points, false
	}
	if got := ask(); got != "same true\n" {
		t.Errorf("victim: got %q, want no change", got)
	}
	w.srv.mu.Lock()
	files := slices.Clone(w.srv.files)
	w.srv.mu.Unlock()
	for _, f := range files {
		if !f.isClosed() {
			t.Error("device files after the end of the caller: got an open one, want none")
		}
		if r := f.page.Load(); r != nil && r.Check(false) == nil {
			t.Error("region after the end of the caller: got access to memory, want an error")
		}
	}
	for _, l := range w.logs.takeLines() {
		if !strings.Contains(l, errCallerGone.Error()) {
			t.Errorf("log: got %s, want only errGone", l)
		}
	}
	return points, true
}

const verbsIoctl = 0xc0181b01

// programExecOther registers a page, makes a child keep the device, and executes a program in one of several ways,
// or attempts to.
func programExecOther(args []string) {
	how := args[0]
	mem := fixedMemory('r')
	fd := openDevice()
	op := fakeOp{op: opRegister, in: uint64(uintptr(unsafe.Pointer(&mem[0])))}
	panicUnless(issueOp(fd, &op) == 0, "register")
	must(unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0))
	keeper := exec.Command("/bin/sleep", "1000")
	keeper.ExtraFiles = []*os.File{os.NewFile(uintptr(fd), "device")}
	must(0, keeper.Start()) // the fork and exec of another process have no effect on this process
	load := func() uint64 {
		op := fakeOp{op: opLoad}
		panicUnless(issueOp(fd, &op) == 0, "load")
		return op.out
	}
	panicUnless(load() == 0x7272727272727272, "registered page: got %#x, want 0x7272727272727272", load())
	secret := func() error {
		return unix.Exec("/proc/self/exe", []string{"secret", strconv.Itoa(keeper.Process.Pid)},
			append(os.Environ(), programEnvVar+"=secret"))
	}
	switch how {
	case "fails":
		for _, path := range []string{"/nonexistent", "/etc/passwd", "/"} {
			panicUnless(unix.Exec(path, []string{"x"}, nil) != nil, "exec of %s", path)
		}
		panicUnless(load() == 0x7272727272727272, "registered page after a failed exec: got %#x, want 0x7272727272727272",
			load())
		mem[0] = 1
		panicUnless(load()&0xff == 1, "registered page after a failed exec: got other memory, want the program's page")
		again := fakeOp{op: opRegister, in: uint64(uintptr(unsafe.Pointer(&mem[4096])))}
		panicUnless(issueOp(fd, &again) == 0 && load() == 0x7272727272727272, "new registration: got a failure, want success")
		must(0, keeper.Process.Kill())
		fmt.Println("ok")
	case "leader":
		panic(secret())
	case "thread":
		newThread().do(func() { panic(secret()) }) // never the main thread
	case "execveat":
		self := must(unix.Open("/proc/self/exe", unix.O_PATH, 0))
		argv := must(syscall.SlicePtrFromStrings([]string{"secret", strconv.Itoa(keeper.Process.Pid)}))
		envp := must(syscall.SlicePtrFromStrings(append(os.Environ(), programEnvVar+"=secret")))
		empty := must(unix.BytePtrFromString(""))
		_, _, e := unix.Syscall6(unix.SYS_EXECVEAT, uintptr(self), uintptr(unsafe.Pointer(empty)),
			uintptr(unsafe.Pointer(&argv[0])),
			uintptr(unsafe.Pointer(&envp[0])), unix.AT_EMPTY_PATH, 0)
		panic(e)
	}
}

// programUntouchedMemory registers no memory, and checks that its memory stays unchanged.
func programUntouchedMemory(args []string) {
	mem := fixedMemory('s')
	fmt.Println("ready", unix.Getpid(), os.Args[1])
	for range time.Tick(time.Millisecond) {
		if mem[0] != 's' {
			break
		}
	}
	fmt.Println("memory was changed")
}

// TestRegistrationsEndWithExec tests that after an exec, a device kept by a child gives no access to the memory of
// the next program.
func TestRegistrationsEndWithExec(t *testing.T) { testEachAccess(t, testRegistrationsEndWithExec) }

func testRegistrationsEndWithExec(t *testing.T) {
	for _, how := range []string{"leader", "thread", "execveat"} {
		t.Run(how, func(t *testing.T) {
			w := newFixture(t)
			r := w.startSelf("executes", how)
			testutil.Eventually(t, "the program", func() bool { return strings.Contains(r.output.String(), "\n") })
			var pid, keeper int
			if _, err := fmt.Sscanf(r.output.String(), "ready %d %d\n", &pid, &keeper); err != nil || pid != r.PID() {
				t.Fatalf("output of the program: got %q and error %v, want ready", r.output.String(), err)
			}
			w.wantBoundAddressSpaces(r.session, pid)
			region := w.srv.waitForOpen(t, 1).page.Load()
			word := make([]byte, 8)
			if err := region.ReadV([][]byte{word}, region.IOVA()); !errors.Is(err, umem.ErrFault) {
				t.Errorf("read of the page: got %q and error %v, want ErrFault", word, err)
			}
			if err := region.WriteV([][]byte{{1}}, region.IOVA()); !errors.Is(err, umem.ErrFault) {
				t.Errorf("write of the page: got %v, want ErrFault", err)
			}
			for _, pid := range []int{pid, keeper} {
				unix.Kill(pid, unix.SIGKILL)
			}
			if _, out := w.waitForExit(r); strings.Contains(out, "written to") {
				t.Error("memory of the next program: got a change, want none")
			}
		})
	}
}

// wantBoundAddressSpaces makes the test fail unless the former address spaces of a process are bound. Access by process
// ID would reach the memory of the next program.
func (w *fixture) wantBoundAddressSpaces(t *Session, pid int) {
	w.Helper()
	t.processes.mu.Lock()
	defer t.processes.mu.Unlock()
	p := t.processes.all[pid]
	if p == nil || len(p.former) == 0 {
		w.Fatalf("process %d: got %+v, want its former address space", pid, p)
	}
	for _, s := range p.former {
		if !s.Bound() {
			w.Errorf("process %d: got an unbound former address space, want a bound one", pid)
		}
	}
}

// programBesideExec issues a command while another thread executes a missing file.
func programBesideExec([]string) {
	fd := openDevice()
	op := fakeOp{op: opIncrement, in: 1}
	panicUnless(issueOp(fd, &op) == 0, "command before the exec: got a failure, want success")
	in := bufio.NewReader(os.Stdin)
	executed := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		// The program does not use syscall.Exec. Until syscall.Exec returns, the runtime starts no thread, and
		// other goroutines may wait for a thread.
		path, _ := unix.BytePtrFromString("/nonexistent")
		args := []*byte{path, nil}
		_, _, errno := unix.Syscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&args[0])), 0)
		panicUnless(errno == unix.ENOENT, "exec")
		close(executed)
	}()
	must(in.ReadString('\n'))
	panicUnless(issueOp(fd, &op) == 0, "command during the exec: got a failure, want success")
	fmt.Println("done")
	<-executed
	fmt.Println("ok")
}

// TestSpaceIsBoundDuringExec tests that during a thread's exec, the address space that another thread uses is bound.
func TestSpaceIsBoundDuringExec(t *testing.T) {
	reached, goOn := make(chan struct{}), make(chan struct{})
	w := newFixture(t, func(c *SupervisorConfig) {
		var first atomic.Bool
		c.pause = func(point string, _ uint32) {
			if point == "exec" && first.Swap(true) { // the first program is the test program itself
				close(reached)
				<-goOn
			}
		}
	})
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	r := w.startWithInput(in, []string{programEnvVar + "=beside"}, "/proc/self/exe", "beside")
	in.Close()
	w.waitForClose("the exec", reached)
	io.WriteString(out, "\n")
	w.waitForText(r, "done")
	r.session.processes.mu.Lock()
	space := r.session.processes.all[r.PID()].space
	r.session.processes.mu.Unlock()
	if space == nil || !space.Bound() {
		t.Error("address space of a command beside an exec: got an unbound one, want a bound one")
	}
	close(goOn)
	if code, said := w.waitForExit(r); code != 0 || !strings.HasSuffix(said, "ok\n") {
		t.Errorf("exit code and output: got %d and %s, want 0 and ok at the end", code, said)
	}
}

func TestFailedExecKeepsRegistrations(t *testing.T) {
	testEachAccess(t, func(t *testing.T) {
		w := newFixture(t)
		if out := w.mustRunSelf("executes", "fails"); out != "ok" {
			t.Errorf("output: got %q, want ok", out)
		}
	})
}

// testEachAccess runs a test with a supervisor that accesses programs itself, and with a supervisor that uses a helper.
func testEachAccess(t *testing.T, f func(*testing.T)) {
	t.Run("direct", f)
	t.Run("helper", func(t *testing.T) {
		if testing.Short() {
			t.Skip("this test repeats the programs; TestProgramsWithHelper runs some of them")
		}
		askHelper = true
		defer func() { askHelper = false }()
		f(t)
	})
}

// programOtherRoot looks for a path that leads up from the tree's directories.
func programOtherRoot(args []string) {
	if args[0] == "chroot" {
		must(0, unix.Chroot(args[1]))
		must(0, unix.Chdir("/"))
	} else {
		runtime.LockOSThread()
		must(0, unix.Unshare(unix.CLONE_NEWNS))
	}
	fd, err := unix.Open(ibDir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := unix.Openat(fd, "rxe0/node_guid", unix.O_RDONLY, 0); err != nil {
		fmt.Println("node_guid:", err)
	}
	up := fd
	for range 20 {
		up = must(unix.Openat(up, "..", unix.O_RDONLY|unix.O_DIRECTORY, 0))
		if f, err := unix.Openat(up, "etc/passwd", unix.O_RDONLY, 0); err == nil {
			fmt.Println("reached", f)
			return
		}
	}
	if f, err := unix.Openat(fd, "evil", unix.O_CREAT|unix.O_WRONLY, 0o600); err == nil {
		fmt.Println("created", f)
	}
	fmt.Println("climbed", unix.Mkdirat(fd, "evil", 0o700)) // this call is not trapped
}

// TestOtherRootSeesNoPathUp tests programs with a different root directory, or with different mounts. Such a program
// gets no directory, or a directory from which no path leads up to this process's root.
func TestOtherRootSeesNoPathUp(t *testing.T) {
	testutil.SkipUnlessRoot(t, "for chroot")
	jail := t.TempDir()
	for _, how := range []string{"chroot", "unshare"} {
		for _, mounts := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, mounts=%v", how, mounts), func(t *testing.T) {
				w := newFixture(t)
				want := "climbed read-only file system"
				if !mounts {
					w.sup.trees.mounted, want = false, "permission denied"
				} else if !w.sup.trees.mounted {
					t.Fatal("detached mount: got none, want one")
				}
				if got := w.mustRunSelf("jailed", how, jail); got != want {
					t.Errorf("output: got %q, want %q", got, want)
				}
				w.logs.takeLines() // removes the line about the refused directory
			})
		}
	}
}

// TestTreeLinksAreNotFollowed tests that the supervisor does not follow links that a program puts into the tree. A
// program of the service's own user can write to the tree.
func TestTreeLinksAreNotFollowed(t *testing.T) {
	w := newFixture(t)
	w.mustRun("cat", "/sys/class/infiniband/rxe0/node_guid")
	guid := w.sup.own.root + "/sys/devices/virtual/infiniband/rxe0/node_desc"
	if err := errors.Join(os.Remove(guid), os.Symlink("/etc/passwd", guid)); err != nil {
		t.Fatal(err)
	}
	if code, out := w.runShell(
		"cat /sys/class/infiniband/rxe0/node_desc 2>&1; stat -c %F /sys/class/infiniband/rxe0/node_desc"); strings.Contains(
		out, "root:") {
		t.Errorf("replacement of files: got exit code %d, want 0: %s", code, out)
	}
	dir := w.sup.own.root + "/sys/devices/virtual/infiniband/rxe0"
	if err := errors.Join(os.Rename(dir, dir+".moved"), os.Symlink("/etc", dir)); err != nil {
		t.Fatal(err)
	}
	if _, out := w.runShell("ls /sys/class/infiniband/rxe0/ 2>&1"); !strings.HasPrefix(out, "ls: cannot open directory") {
		t.Errorf("ls: got %s, want \"cannot open directory\"", out)
	}
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".moved", dir)); err != nil {
		t.Fatal(err)
	}
}

// TestUserNamespaceGivesNoRights tests that all capabilities in a new user namespace give no rights in the service's
// namespace.
func TestUserNamespaceGivesNoRights(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to become another user")
	w := newFixture(t, func(c *SupervisorConfig) { c.Node = Node{UID: 0, GID: 12345, Mode: 0o660} })
	const open = `test -w /dev/infiniband/uverbs0 && echo yes || echo no; (exec 3<>/dev/infiniband/uverbs0) 2>/dev/null && echo yes || echo no`
	_, got := w.waitForExit(w.startProgram(nil, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "unshare",
		"-Ur", "sh",
		"-c", "id -u; "+open))
	if got != "0\nno\nno\n" {
		t.Errorf("output in a user namespace: got %q, want no rights", got)
	}
	if _, got := w.waitForExit(w.startProgram(nil, "sh", "-c", open)); got != "yes\nyes\n" {
		t.Errorf("output as root: got %q, want both rights", got)
	}
}

func programReadOnly([]string) {
	fd := must(unix.Open(deviceFile, unix.O_RDONLY|unix.O_CLOEXEC, 0))
	_, err := ringDoorbell(fd)
	panicUnless(err == unix.EBADF, "write: %v", err)
	_, err = unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	panicUnless(err == unix.EACCES, "map writable: %v", err)
	op := fakeOp{op: opIncrement, in: 1}
	panicUnless(issueOp(fd, &op) == 0 && op.out == 2, "ioctl") // same result as in the kernel
	d := must(unix.Dup(fd))
	_, err = ringDoorbell(d)
	panicUnless(err == unix.EBADF, "write to a duplicate: got %v, want EBADF", err)
	fmt.Println("ok")
}

func TestReadOnlyDeviceFileIsUsable(t *testing.T) {
	testEachAccess(t, func(t *testing.T) {
		w := newFixture(t, func(c *SupervisorConfig) { c.Node = Node{UID: 0, GID: 0, Mode: 0o644} })
		if out := w.mustRunSelf("readonly"); out != "ok" {
			t.Errorf("output: got %q, want ok", out)
		}
	})
}

// programEndMainThread ends its main thread and continues on another.
func programEndMainThread([]string) {
	go func() {
		runtime.LockOSThread()
		panicUnless(testutil.PollUntil(func() bool {
			b, err := os.ReadFile("/proc/self/stat")
			return err == nil && strings.Contains(string(b), ") Z ")
		}), "main thread: got no zombie, want one")
		fd := openDevice()
		op := fakeOp{op: opIncrement, in: 1}
		panicUnless(issueOp(fd, &op) == 0 && op.out == 2, "increment")
		d := must(unix.Dup(fd))
		panicUnless(issueOp(d, &op) == 0, "increment by a duplicate: got a failure, want success")
		page := make([]byte, 2*os.Getpagesize())
		op = fakeOp{op: opRegister, in: uint64(uintptr(unsafe.Pointer(&page[0])))}
		panicUnless(issueOp(fd, &op) == 0, "register")
		op = fakeOp{op: opStore, in: 77}
		panicUnless(issueOp(fd, &op) == 0 && page[0] == 77, "store")
		fmt.Println("ok")
		os.Exit(0)
	}()
	panicUnless(unix.Gettid() == unix.Getpid(), "thread: got another one, want the main thread")
	unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
}

func init() {
	if os.Getenv(programEnvVar) == "mainexit" {
		runtime.LockOSThread() // locks the main thread
	}
}

func TestProgramRunsAfterMainThreadEnds(t *testing.T) {
	testEachAccess(t, func(t *testing.T) {
		w := newFixture(t)
		if out := w.mustRunSelf("mainexit"); out != "ok" {
			t.Errorf("output: got %q, want ok", out)
		}
	})
}

// programDup2Race duplicates pipes to numbers in the range of device files while another thread opens devices. Neither
// thread may replace the other thread's files.
func programDup2Race([]string) {
	first := openDevice()
	unix.Close(first)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		for !stop.Load() {
			fd := openDevice()
			op := fakeOp{op: opIncrement, in: 1}
			panicUnless(issueOp(fd, &op) == 0, "descriptor %d: got another file, want a device", fd)
			unix.Close(fd)
		}
	})
	var p [2]int
	must(0, unix.Pipe2(p[:], unix.O_CLOEXEC))
	var pipe, st unix.Stat_t
	must(0, unix.Fstat(p[0], &pipe))
	for i := range 300 {
		n := first + 1 + i%3
		must(0, unix.Dup3(p[0], n, unix.O_CLOEXEC))
		must(0, unix.Fstat(n, &st))
		panicUnless(st.Ino == pipe.Ino, "descriptor %d: got another file, want the pipe", n)
		unix.Close(n)
	}
	stop.Store(true)
	wg.Wait()
	fmt.Println("ok")
}

func TestFDNumbersAreAssignedOnce(t *testing.T) {
	w := newFixture(t)
	if out := w.mustRunSelf("dup2"); out != "ok" {
		t.Errorf("output: got %q, want ok", out)
	}
}

// programSlowCommand blocks one thread in a command by write(2), and opens files on another thread.
func programSlowCommand([]string) {
	fd := openDevice()
	done := make(chan bool)
	go func() {
		runtime.LockOSThread()
		must(unix.Write(fd, make([]byte, 100)))
		close(done)
	}()
	longest := time.Duration(0)
	for range 100 {
		start := time.Now()
		must(os.ReadFile("/proc/self/comm"))
		longest = max(longest, time.Since(start))
		time.Sleep(time.Millisecond)
	}
	op := fakeOp{op: opGo}
	panicUnless(issueOp(fd, &op) == 0, "go")
	<-done
	fmt.Println("ok", longest)
}

// TestSlowCommandStopsNoOtherThread blocks a command until after the other thread's calls.
func TestSlowCommandStopsNoOtherThread(t *testing.T) {
	w := newFixture(t)
	if out := w.mustRunSelf("slow"); !strings.HasPrefix(out, "ok ") {
		t.Errorf("output: got %q, want ok and more", out)
	}
}

// programParallelWaits makes several threads wait, each in a command.
func programParallelWaits(args []string) {
	fd := openDevice()
	var wg sync.WaitGroup
	for range must(strconv.Atoi(args[0])) {
		wg.Go(func() {
			op := fakeOp{op: opWait}
			panicUnless(issueOp(fd, &op) == 0, "wait")
		})
	}
	wg.Wait()
	fmt.Println("ran")
	sleepForever()
}

// TestUnneededWorkersEnd tests that unneeded workers end, and that the running workers are charged to the user.
func TestUnneededWorkersEnd(t *testing.T) {
	var limits quota.Limits
	limits[quota.Workers].PerUser = 5
	ledger := quota.New(limits)
	w := newFixture(t, func(c *SupervisorConfig) { c.Quota = ledger })
	user := ledger.User(0)
	const calls = 9
	r := w.startSelf("parallel", strconv.Itoa(calls))
	f := w.srv.waitForOpen(t, 1)
	testutil.Eventually(t, "the calls", func() bool { return f.waiting.Load() >= 4 })
	if n := user.Held(quota.Workers); n > 5 || n < 4 {
		t.Errorf("charged workers: got %d, want 4 or 5", n)
	}
	for range calls {
		f.gate <- struct{}{}
	}
	w.waitForText(r, "ran")
	testutil.Eventually(t, "workers to end", func() bool {
		return user.Held(quota.Workers) <= 2 && r.session.tokens.workers.Load() <= 2
	})
	for _, k := range []quota.ResourceKind{quota.Sessions, quota.Descriptors, quota.RingBytes, quota.Mappings} {
		if user.Held(k) == 0 {
			t.Errorf("charge of %v: got none, want some", k)
		}
	}
	r.Signal(unix.SIGKILL)
	w.waitForExit(r)
	if users, _ := ledger.Usage(); len(users) > 0 {
		t.Errorf("charges at the end: got %+v, want none", users)
	}
}

func TestSessionsPerUserAreLimited(t *testing.T) {
	var limits quota.Limits
	limits[quota.Sessions].PerUser = 1
	ledger := quota.New(limits)
	w := newFixture(t, func(c *SupervisorConfig) { c.Quota = ledger })
	r := w.startSelf("hold")
	w.waitForText(r, "open")
	if _, err := w.tryStart("/bin/true", nil, "true"); !errors.Is(err, unix.EAGAIN) ||
		!strings.Contains(err.Error(), "sessions") {
		t.Errorf("second session: got %v, want EAGAIN", err)
	}
	r.Signal(unix.SIGKILL)
	w.waitForExit(r)
	if code, _ := w.waitForExit(w.startProgram(nil, "true")); code != 0 {
		t.Errorf("exit code of a session after the first: got %d, want 0", code)
	}
	if users, _ := ledger.Usage(); len(users) > 0 {
		t.Errorf("charges at the end: got %+v, want none", users)
	}
}

// programReopenAndClose repeatedly opens the device's file by its link in /proc, which is not trapped, and closes the
// file.
func programReopenAndClose([]string) {
	fd := openDevice()
	link := fmt.Sprintf("fd/%d", fd)
	self := must(unix.Open("/proc/self", unix.O_PATH|unix.O_DIRECTORY, 0))
	for range 5000 {
		unix.Close(must(unix.Openat(self, link, unix.O_RDWR, 0)))
	}
	fmt.Println("ok")
}

// TestLastCloseIsDetectedAfterMany tests that the last close of a file is detected after any number of closes.
func TestLastCloseIsDetectedAfterMany(t *testing.T) {
	w := newFixture(t)
	if out := w.mustRunSelf("churn"); out != "ok" {
		t.Errorf("output: got %q, want ok", out)
	}
	w.waitForClose("the last close", w.srv.files[0].closed)
}

// TestOneCloseCheckAtATime tests that at most one check of a file is pending while its descriptors are closed one after
// another.
func TestOneCloseCheckAtATime(t *testing.T) {
	m, err := shm.Create("queues", quota.RingBytes, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	held, err := m.OpenForProgram(unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	synctest.Test(t, func(t *testing.T) {
		f := &openFile{sup: &Supervisor{}, memory: m}
		for range 5 {
			f.checkAfterClose()
		}
		testutil.AdvanceTime(firstCheckDelay)
		if n := f.sup.looks.Load(); n != 1 {
			t.Errorf("checks of a file after 5 closes: got %d, want 1", n)
		}
		testutil.AdvanceTime(24 * time.Hour) // after the last check, which happens after 4096 ms
		if n := f.sup.looks.Load(); n != 7 {
			t.Errorf("checks of a file in use: got %d, want 7", n)
		}
	})
}

// TestKilledThreadKeepsOthersExec tests that a call of a killed thread does not end the exec of a thread with the same
// thread ID.
func TestKilledThreadKeepsOthersExec(t *testing.T) {
	const tid = 1 << 30
	w := newWorker(&Session{sup: &Supervisor{}, fd: -1})
	w.token.held, w.caller.n.tid = true, tid
	execs := &w.caller.session.processes.execs
	execs.add(tid)
	w.paths.answerPathCall(callOpen)
	if _, there := execs.tids[tid]; !there {
		t.Error("exec of another thread: got its end, want none")
	}
	world := newFixture(t)
	r := world.startProgram(nil, "sh", "-c", "test -e /dev/infiniband/x; echo ready; exec sleep 1000")
	world.waitForText(r, "ready")
	testutil.Eventually(t, "the program to have opened files", func() bool {
		execs := &r.session.processes.execs
		execs.mu.Lock()
		defer execs.mu.Unlock()
		_, there := execs.tids[uint32(r.PID())]
		return !there
	})
	r.Signal(unix.SIGKILL)
	world.waitForExit(r)
}

// TestPathRevealsNoDirectory tests that paths reveal nothing about a directory that the caller may not
// search.
func TestPathRevealsNoDirectory(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to create a directory of another user")
	w := newFixture(t)
	dir := newShmDir(t) // with mode 0700
	if err := unix.Mkdir(dir+"/secret", 0o755); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("/..", strings.Count(dir, "/")+1)
	for _, name := range []string{"/secret", "/none"} {
		for _, caller := range []struct{ setpriv, want string }{
			{"setpriv --reuid=65534 --regid=65534 --clear-groups ", "no\n"},
			{"", map[string]string{"/secret": "yes\n", "/none": "no\n"}[name]},
		} {
			script := caller.setpriv + "test -e " + dir + name + up + "/dev/infiniband/uverbs0 && echo yes || echo no"
			if _, out := w.runShell(script); out != caller.want {
				t.Errorf("%s: got %q, want %q", script, out, caller.want)
			}
		}
	}
	if out := w.mustRun("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "stat", "-c", "%F",
		"/proc/../dev/infiniband/uverbs0"); !strings.HasPrefix(out, "character") {
		t.Errorf("path through a public directory: got %q, want a character device", out)
	}
}

// programSeparateTable duplicates descriptors on a thread with a separate table, including a descriptor opened with
// O_PATH.
func programSeparateTable([]string) {
	device := openDevice()
	low := must(unix.Open("/proc/self/comm", unix.O_RDONLY|unix.O_CLOEXEC, 0))
	var want, st unix.Stat_t
	path := must(unix.Open("/etc", unix.O_PATH|unix.O_CLOEXEC, 0))
	must(0, unix.Fstat(path, &want))
	must(0, unix.Dup3(path, device+1, unix.O_CLOEXEC))
	must(0, unix.Fstat(device+1, &st))
	panicUnless(st.Ino == want.Ino, "duplicate of the path: got another file, want the same")
	unshared, replaced, done := make(chan bool), make(chan bool), make(chan bool)
	th := newThread() // never the main thread
	go th.do(func() {
		defer close(done)
		must(0, unix.Unshare(unix.CLONE_FILES))
		null := must(unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0))
		must(0, unix.Dup3(null, low, unix.O_CLOEXEC))
		close(unshared)
		<-replaced
		must(0, unix.Dup3(low, device+2, unix.O_CLOEXEC))
		must(0, unix.Fstat(device+2, &st))
		panicUnless(st.Mode&unix.S_IFMT == unix.S_IFCHR,
			"duplicate on the thread: got the main thread's file, want the thread's device")
		fd := must(unix.Dup(device))
		op := fakeOp{op: opIncrement, in: 1}
		panicUnless(issueOp(fd, &op) == 0, "ioctl by the duplicate: got a failure, want success")
	})
	<-unshared
	must(0, unix.Dup3(path, device, unix.O_CLOEXEC)) // in the main thread's table
	close(replaced)
	<-done
	fmt.Println("ok")
}

func TestDuplicatesInSeparateTable(t *testing.T) {
	w := newFixture(t)
	if out := w.mustRunSelf("ownfiles"); out != "ok" {
		t.Errorf("output: got %q, want ok", out)
	}
}

// programClosedFD uses the number of a closed descriptor while another descriptor keeps the file open.
func programClosedFD([]string) {
	runtime.LockOSThread() // the number is cached for its thread
	fd := openDevice()
	other := must(unix.Dup(fd))
	op := fakeOp{op: opIncrement, in: 1}
	panicUnless(issueOp(fd, &op) == 0, "ioctl")
	unix.Close(fd)
	e := issueOp(fd, &op)
	panicUnless(e == unix.EBADF, "ioctl of a closed descriptor: got %v, want EBADF", e)
	panicUnless(issueOp(other, &op) == 0, "ioctl of the open descriptor: got a failure, want success")
	fmt.Println("ok")
}

// TestCachedFileOfClosedFD tests that a cached device file suffices for doorbells only.
func TestCachedFileOfClosedFD(t *testing.T) {
	w := newFixture(t)
	if out := w.mustRunSelf("closed"); out != "ok" {
		t.Errorf("output: got %q, want ok", out)
	}
}

// programTwoCommands issues a command, and a second command after a line of input. With an argument, programTwoCommands
// first waits for a line of input.
func programTwoCommands(args []string) {
	runtime.LockOSThread()
	if len(args) > 0 {
		fmt.Println("ready")
		bufio.NewReader(os.Stdin).ReadString('\n')
	}
	fd := openDevice()
	for i := range uint64(2) {
		op := fakeOp{op: opIncrement, in: i}
		panicUnless(issueOp(fd, &op) == 0 && op.out == i+1, "ioctl %d", i)
		fmt.Println("command", i)
		bufio.NewReader(os.Stdin).ReadString('\n')
	}
}

// TestCachedProcessIsNotConfused tests that the cached process of a thread ID is not confused with the process that now
// has the ID.
func TestCachedProcessIsNotConfused(t *testing.T) {
	w := newFixture(t)
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	r := w.startWithInput(in, []string{programEnvVar + "=twice"}, "/proc/self/exe")
	in.Close()
	w.waitForText(r, "command 0")
	own, err := umem.OpenProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	fd, err := unix.PidfdOpen(os.Getpid(), unix.PIDFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	defer pidfd.Close()
	another := &process{pid: os.Getpid(), pidfd: pidfd, space: own}
	if another.conn, err = pidfd.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for i := range r.session.cache {
		if d := r.session.cache[i].Load(); d != nil {
			d.process.Store(another)
			n++
		}
	}
	if n == 0 {
		t.Error("cache: got no process, want one")
	}
	io.WriteString(out, "\n")
	w.waitForText(r, "command 1")
	io.WriteString(out, "\n")
	if code, said := w.waitForExit(r); code != 0 {
		t.Errorf("exit code: got %d, want 0; printed %s", code, said)
	}
}

// TestEndedProcessStateIsNotReused tests that the state of an ended process is not used for the process that now has
// its ID.
func TestEndedProcessStateIsNotReused(t *testing.T) {
	w := newFixture(t)
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	r := w.startWithInput(in, []string{programEnvVar + "=twice"}, "/proc/self/exe", "late")
	in.Close()
	w.waitForText(r, "ready")
	c := exec.Command("/bin/cat")
	if _, err := c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	space, err := umem.OpenProcess(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(c.Process.Pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	ended := &process{pid: r.PID(), pidfd: os.NewFile(uintptr(fd), "pidfd"), space: space}
	if ended.conn, err = ended.pidfd.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	c.Process.Kill()
	c.Wait()
	r.session.processes.mu.Lock()
	r.session.processes.all[r.PID()] = ended
	r.session.processes.mu.Unlock()
	for _, want := range []string{"command 0", "command 1"} {
		io.WriteString(out, "\n")
		w.waitForText(r, want)
	}
	io.WriteString(out, "\n")
	if code, said := w.waitForExit(r); code != 0 {
		t.Errorf("exit code: got %d, want 0; printed %s", code, said)
	}
}
