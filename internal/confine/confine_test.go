package confine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"

	"verbena/internal/gendoc"
	"verbena/internal/procfile"
	"verbena/internal/reopen"
)

// The following constants are the environment variables of the process that confines itself: its act, and the
// omitted rule.
const (
	envAct  = "CONFINE_TEST_ACT"
	envDir  = "CONFINE_TEST_DIR"
	envRule = "CONFINE_TEST_RULE"
	envKind = "CONFINE_TEST_KIND" // kind of the filter: service or launcher
)

func TestMain(m *testing.M) {
	if name := os.Getenv(envAct); name != "" {
		fmt.Println(runConfinedAttempt(name))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runConfinedAttempt runs an act in a process with the filter, and describes the result.
func runConfinedAttempt(name string) string {
	act, ok := ruleAttempts[name]
	if !ok {
		act = furtherAttempts[name]
	}
	try, err := act(os.Getenv(envDir))
	if err != nil {
		return "prepare: " + err.Error()
	}
	if os.Getenv(envKind) == "launcher" {
		rules, calls := rulesWithoutDisabled(launcherRules())
		err = filterEachThread(rules, append(calls, launcherCalls...)...)
	} else {
		rules, calls := rulesWithoutDisabled(serviceRules())
		err = filterProcessWithRules(rules, calls...)
	}
	if err != nil {
		return "confine: " + err.Error()
	}
	return describeError(try())
}

func describeError(err error) string {
	var e syscall.Errno
	switch {
	case err == nil:
		return "success"
	case errors.As(err, &e):
		return unix.ErrnoName(e)
	}
	return err.Error()
}

// rulesWithoutDisabled returns all rules except the rule named in the environment. It also returns the calls of that
// rule.
func rulesWithoutDisabled(rules []rule) (left []rule, calls []string) {
	for _, r := range rules {
		if r.Name == os.Getenv(envRule) {
			calls = r.calls
		} else {
			left = append(left, r)
		}
	}
	return left, calls
}

// prepareAttempt prepares an attempt that a rule refuses, and returns the attempt. Without the rule, each attempt
// succeeds or fails with an error of the kernel other than EPERM, for every user.
type prepareAttempt func(dir string) (try func() error, err error)

func newCallAttempt(nr uintptr, args ...uintptr) prepareAttempt {
	return func(string) (func() error, error) {
		return func() error {
			a := append(args, 0, 0, 0, 0, 0, 0)
			if _, _, e := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
				return e
			}
			return nil
		}, nil
	}
}

var allBitsSet = ^uintptr(0)

// ruleAttempts maps the names of rules to attempts that the rules refuse.
var ruleAttempts = map[string]prepareAttempt{
	"ioctl": func(string) (func() error, error) {
		terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
		return func() error {
			_, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
			return err
		}, err
	},
	"exec":      func(string) (func() error, error) { return execMissingProgram, nil },
	"processes": func(string) (func() error, error) { return forkExitingProcess, nil },
	"code": newCallAttempt(unix.SYS_MMAP, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON,
		allBitsSet),
	"mounts":     newCallAttempt(unix.SYS_FSPICK, allBitsSet, 0, allBitsSet),
	"namespaces": newCallAttempt(unix.SYS_UNSHARE, unix.CLONE_FS),
	"ptrace":     newCallAttempt(unix.SYS_PTRACE, allBitsSet, allBitsSet),
	"kernel":     newCallAttempt(unix.SYS_PERF_EVENT_OPEN, 1),
	"keys":       newCallAttempt(unix.SYS_KEYCTL, allBitsSet),
	"rings":      newCallAttempt(unix.SYS_IO_URING_ENTER, allBitsSet, 0, 0, allBitsSet),
	"identity":   newCallAttempt(unix.SYS_SETRESUID, allBitsSet, allBitsSet, allBitsSet),
	"prctl":      newCallAttempt(unix.SYS_PRCTL, unix.PR_GET_DUMPABLE),
	"nodes":      newCallAttempt(unix.SYS_NAME_TO_HANDLE_AT, allBitsSet, 0, 0, 0, 0),
	"open": func(dir string) (func() error, error) {
		at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return nil, err
		}
		return func() error {
			return closeIfOpened(unix.Openat(at, "link", unix.O_RDONLY, 0))
		}, os.Symlink("/dev/null", filepath.Join(dir, "link"))
	},
	"sockets": newCallAttempt(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0),
	"signals": newCallAttempt(unix.SYS_KILL, uintptr(os.Getppid()), 0),
}

// furtherAttempts contains further attempts. The name of a further attempt begins with the name of a rule.
var furtherAttempts = map[string]prepareAttempt{
	"open read": func(string) (func() error, error) {
		return func() error { return closeIfOpened(unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)) }, nil
	},
	"open write": func(dir string) (func() error, error) {
		path := filepath.Join(dir, "f")
		return func() error { return closeIfOpened(unix.Open(path, unix.O_RDWR, 0)) }, os.WriteFile(path, nil, 0o600)
	},
	"open create": func(dir string) (func() error, error) {
		return func() error {
			return closeIfOpened(unix.Open(filepath.Join(dir, "f"), unix.O_RDONLY|unix.O_CREAT, 0o600))
		}, nil
	},
	"open truncate": func(dir string) (func() error, error) {
		path := filepath.Join(dir, "f")
		return func() error { return closeIfOpened(unix.Open(path, unix.O_RDONLY|unix.O_TRUNC, 0)) }, os.WriteFile(path,
			nil, 0o600)
	},
	"open unnamed": func(dir string) (func() error, error) {
		return func() error { return closeIfOpened(unix.Open(dir, unix.O_RDWR|unix.O_TMPFILE, 0o600)) }, nil
	},
	"open terminal": func(dir string) (func() error, error) {
		at, err := unix.Open("/dev", unix.O_PATH|unix.O_DIRECTORY, 0)
		return func() error { return closeIfOpened(unix.Openat(at, "null", unix.O_RDONLY|unix.O_NOFOLLOW, 0)) }, err
	},
	"processes namespace": newCallAttempt(unix.SYS_CLONE, unix.CLONE_THREAD|unix.CLONE_NEWNET),
	"code change":         newCallAttempt(unix.SYS_MPROTECT, 0, 0, unix.PROT_READ|unix.PROT_EXEC),
	"sockets raw":         newCallAttempt(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_STREAM, 0),
	"sockets sequenced":   newCallAttempt(unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_SEQPACKET, 0),
	"sockets netlink":     newCallAttempt(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC),
	"sockets listen":      newCallAttempt(unix.SYS_LISTEN, allBitsSet),
}

func closeIfOpened(fd int, err error) error {
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// execMissingProgram executes a missing program. The dynamic loader of an existing program could not map its code in a
// confined process.
func execMissingProgram() error { return unix.Exec("/nonexistent", []string{"nothing"}, nil) }

// runAttempt runs an act in a separate process, without a rule, and returns the result.
func runAttempt(t *testing.T, kind, name, rule string) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	dir := t.TempDir() // the filter prevents the process from removing its own directory
	cmd.Env = append(os.Environ(), envAct+"="+name, envDir+"="+dir, envRule+"="+rule, envKind+"="+kind)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("run %s: got %v, want success:\n%s", name, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestEachRuleRefusesItsAttempt tests that each rule refuses its act, and that no other rule refuses it.
func TestEachRuleRefusesItsAttempt(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	for _, r := range serviceRules() {
		if ruleAttempts[r.Name] == nil {
			t.Errorf("act of rule %s: got none, want one", r.Name)
			continue
		}
		names := []string{r.Name}
		for n := range furtherAttempts {
			if strings.HasPrefix(n, r.Name+" ") {
				names = append(names, n)
			}
		}
		for _, name := range names {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				if got := runAttempt(t, "service", name, ""); got != "EPERM" {
					t.Errorf("with the rule: got %s, want EPERM", got)
				}
				if got := runAttempt(t, "service", name, r.Name); got == "EPERM" || strings.Contains(got, ": ") {
					t.Errorf("without the rule: got %s, want another result than EPERM", got)
				}
			})
		}
	}
}

// TestLauncherRules tests that the launcher's filter is also installed on a thread that already has another filter.
func TestLauncherRules(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	if cgo {
		t.Skip("Go cannot install a filter on all threads of a binary with cgo")
	}
	for _, r := range launcherRules() {
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			if got := runAttempt(t, "launcher", r.Name, ""); got != "EPERM" {
				t.Errorf("with the rule: got %s, want EPERM", got)
			}
			if got := runAttempt(t, "launcher", r.Name, r.Name); got == "EPERM" || strings.Contains(got, ": ") {
				t.Errorf("without the rule: got %s, want another result than EPERM", got)
			}
		})
	}
}

// TestDocumentedRulesAreCurrent compares docs/results/confine.md with the rules.
func TestDocumentedRulesAreCurrent(t *testing.T) {
	var b strings.Builder
	b.WriteString("| rule | refuses | to |\n|---|---|---|\n")
	launcher := launcherRules()
	for _, r := range serviceRules() {
		to := "a service"
		if i := slices.IndexFunc(launcher, func(l rule) bool {
			return l.Name == r.Name
		}); i >= 0 && launcher[i].Refuses == r.Refuses {
			to = "both"
			launcher = slices.Delete(launcher, i, i+1)
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r.Name, r.Refuses, to)
	}
	for _, r := range launcher {
		fmt.Fprintf(&b, "| %s | %s | a launcher |\n", r.Name, r.Refuses)
	}
	gendoc.CheckSection(t, "../../docs/results/confine.md", "confine", b.String())
}

// TestRulesNameKnownCalls tests that each name is a system call of a supported architecture.
func TestRulesNameKnownCalls(t *testing.T) {
	known := func(name string) bool {
		return slices.ContainsFunc([]string{"amd64", "arm64"}, func(a string) bool {
			info, err := arch.GetInfo(a)
			if err != nil {
				t.Fatal(err)
			}
			_, ok := info.SyscallNames[name]
			return ok
		})
	}
	names := slices.Concat(allowedCalls, launcherCalls)
	for _, r := range slices.Concat(serviceRules(), launcherRules()) {
		names = append(names, r.calls...)
		for _, e := range r.except {
			if !slices.Contains(r.calls, e.call) {
				t.Errorf("rule %s: got the exception %s for a call that it does not refuse, want none", r.Name, e.call)
			}
		}
	}
	for _, n := range names {
		if !known(n) {
			t.Errorf("system call %s: got no architecture with it, want one", n)
		}
	}
}

func init() {
	furtherAttempts["opener"] = tryOpenByOpener
	furtherAttempts["domain"] = tryOpenInDomain
	furtherAttempts["threads"] = tryThreadsInDomain
	furtherAttempts["default"] = newCallAttempt(unix.SYS_SWAPON, 0)
}

// tryOpenByOpener reopens two kinds of files with the opener: files that a service hands out, and files that a program
// could substitute for them.
func tryOpenByOpener(dir string) (func() error, error) {
	below, beside := filepath.Join(dir, "dir"), filepath.Join(dir, "beside")
	inside := filepath.Join(below, "inside")
	if err := errors.Join(os.Mkdir(below, 0o700), os.WriteFile(beside, nil, 0o600), os.WriteFile(inside, nil, 0o600),
		unix.Mkfifo(filepath.Join(below, "fifo"), 0o600), StartOpener(below)); err != nil {
		return nil, err
	}
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return nil, err
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		return nil, err
	}
	memfd, err := unix.MemfdCreate("test", 0)
	if err != nil {
		return nil, err
	}
	sealed, err := unix.MemfdCreate("test", unix.MFD_ALLOW_SEALING)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(sealed), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	return func() error {
		var wrong []error
		check := func(what string, fd, how int, want error) {
			got, err := reopen.File(fd, how)
			if err == nil {
				unix.Close(got)
			}
			if !errors.Is(err, want) {
				wrong = append(wrong, fmt.Errorf("reopen %s: got %v, want %v", what, err, want))
			}
		}
		path := func(p string) int {
			fd, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				wrong = append(wrong, err)
			}
			return fd
		}
		check("inside", path(inside), unix.O_RDWR, nil)
		check("read inside", path(inside), unix.O_RDONLY, nil)
		check("truncate inside", path(inside), unix.O_RDWR|unix.O_TRUNC, unix.EINVAL)
		check("beside", path(beside), unix.O_RDWR, unix.EACCES)
		check("read beside", path(beside), unix.O_RDONLY, unix.EACCES)
		check("FIFO", path(filepath.Join(below, "fifo")), unix.O_RDWR, unix.EPERM)
		check("terminal", path(fmt.Sprintf("/dev/pts/%d", n)), unix.O_RDONLY, unix.EPERM)
		check("device", path("/dev/null"), unix.O_RDONLY, unix.EPERM)
		check("file of /proc", path("/proc/self/status"), unix.O_RDONLY, unix.EPERM)
		check("memfd", memfd, unix.O_RDWR, nil)
		check("sealed memfd", sealed, unix.O_RDWR, nil)
		return errors.Join(wrong...)
	}, err
}

// tryOpenInDomain opens files on a thread inside the domain, without the opener's check of the file.
func tryOpenInDomain(dir string) (func() error, error) {
	below := filepath.Join(dir, "dir")
	inside, beside, fifo := filepath.Join(below, "inside"), filepath.Join(dir, "beside"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.Mkdir(below, 0o700), os.WriteFile(beside, nil, 0o600), os.WriteFile(inside, nil, 0o600),
		unix.Mkfifo(fifo, 0o600)); err != nil {
		return nil, err
	}
	memfd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	results := make(chan error)
	go func() {
		runtime.LockOSThread() // the lock is permanent
		if err := enterLandlockDomain([]string{below}); err != nil {
			results <- err
			return
		}
		check := func(path string, how int, want error) error {
			fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := closeIfOpened(reopen.FileOnCallingThread(fd, how)); !errors.Is(err, want) {
				return fmt.Errorf("open %s: got %v, want %v", path, err, want)
			}
			return nil
		}
		// a memfd is below no directory, so it needs no rule
		err := closeIfOpened(reopen.FileOnCallingThread(memfd, unix.O_RDWR))
		results <- errors.Join(err,
			check(inside, unix.O_RDWR, nil),
			check(beside, unix.O_RDONLY, unix.EACCES),
			check(beside, unix.O_WRONLY, unix.EACCES),
			check(fifo, unix.O_RDWR|unix.O_NONBLOCK, unix.EACCES),
			check("/dev/null", unix.O_RDONLY, unix.EACCES),
			check("/dev/ptmx", unix.O_RDWR, unix.EACCES),
			check("/proc/self/status", unix.O_RDONLY, unix.EACCES))
	}()
	err = <-results
	return func() error { return err }, nil
}

// TestDomainRefusesFiles tests that the domain itself refuses the files that the opener's check refuses.
func TestDomainRefusesFiles(t *testing.T) {
	skipWithoutLandlock(t)
	if got := runAttempt(t, "service", "domain", ""); got != "success" {
		t.Errorf("domain: got %s, want success", got)
	}
}

func TestOpenerReopensFiles(t *testing.T) {
	skipWithoutLandlock(t)
	if got := runAttempt(t, "service", "opener", ""); got != "success" {
		t.Errorf("opener: got %s, want success", got)
	}
}

func skipWithoutLandlock(t *testing.T) {
	t.Helper()
	if !HasLandlock() {
		t.Skip("needs Landlock")
	}
}

// tryThreadsInDomain tests on many threads whether the thread is in the opener's domain. A thread in the domain cannot
// read the memory of a process outside of the domain.
func tryThreadsInDomain(dir string) (func() error, error) {
	child := exec.Command("sleep", "60")
	if err := errors.Join(child.Start(), StartOpener(dir)); err != nil {
		return nil, err
	}
	return func() error {
		const threads = 64
		done, over := make(chan error, threads), make(chan struct{})
		for range threads {
			go func() {
				runtime.LockOSThread()
				local := [1]unix.Iovec{{Base: new(byte), Len: 1}}
				remote := [1]unix.RemoteIovec{{Base: 0, Len: 1}} // unmapped, but the kernel checks the permission first
				_, err := unix.ProcessVMReadv(child.Process.Pid, local[:], remote[:], 0)
				done <- err
				<-over
			}()
		}
		var wrong error
		for range threads {
			if err := <-done; err != unix.EFAULT {
				wrong = errors.Join(wrong, fmt.Errorf("read: got %v, want EFAULT", err))
			}
		}
		// Every thread has the filter and no_new_privs.
		tasks, err := os.ReadDir("/proc/self/task")
		for _, task := range tasks {
			b, _ := procfile.ReadNoFollow("/proc/self/task/" + task.Name() + "/status")
			if len(b) > 0 && (!strings.Contains(string(b), "\nSeccomp:\t2\n") ||
				!strings.Contains(string(b), "\nNoNewPrivs:\t1\n")) {
				wrong = errors.Join(wrong, fmt.Errorf("thread %s: got no filter, want one", task.Name()))
			}
		}
		if len(tasks) < threads {
			wrong = errors.Join(wrong, fmt.Errorf("threads: got %d, want more", len(tasks)))
		}
		close(over)
		return errors.Join(wrong, err)
	}, nil
}

// TestOnlyOpenerIsInDomain tests that only the opener is in its domain, and that every thread has the filter.
func TestOnlyOpenerIsInDomain(t *testing.T) {
	skipWithoutLandlock(t)
	if got := runAttempt(t, "service", "threads", ""); got != "success" {
		t.Errorf("threads: got %s, want success", got)
	}
}

// TestUnlistedCallIsRefused tests that the filter refuses a call without a rule.
func TestUnlistedCallIsRefused(t *testing.T) {
	if got := runAttempt(t, "service", "default", ""); got != "EPERM" {
		t.Errorf("call without a rule: got %s, want EPERM", got)
	}
}
