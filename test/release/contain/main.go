// Command contain runs a program in the same way as a container runtime: with a directory as its root, and with
// separate namespaces, /dev and /proc. With -docker the command applies Docker's defaults: 14 capabilities, the
// default seccomp profile, and 64 MB of /dev/shm.
//
//	contain -root DIR [-docker] [-user UID] [-cap SYS_PTRACE] [-drop ALL] [-net host] [-pid host] [-env NAME=VALUE]
//	        [-bind FROM:TO[:ro]] -- PROGRAM [ARGS]
//
// The exit code is that of the program, or 125 if the program could not be started.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

type settings struct {
	root, net, pid, dir, shmSize string
	user                         int
	docker                       bool
	caps, drop, env, bind        stringList
}

type stringList []string

func (l *stringList) String() string     { return strings.Join(*l, " ") }
func (l *stringList) Set(s string) error { *l = append(*l, s); return nil }

const insideEnv = "VERBENA_CONTAIN_INSIDE" // set in the process inside the namespaces

func main() {
	var s settings
	flag.StringVar(&s.root, "root", "", "root directory of the program")
	flag.IntVar(&s.user, "user", 0, "user ID and group ID")
	flag.BoolVar(&s.docker, "docker", false, "use Docker's default capabilities and seccomp profile")
	flag.StringVar(&s.net, "net", "none",
		"network namespace: none (only lo), host, or a name of `ip netns`")
	flag.StringVar(&s.pid, "pid", "own", "process ID namespace: own, or host for that of this process")
	flag.StringVar(&s.dir, "dir", "/", "working directory")
	flag.StringVar(&s.shmSize, "shm-size", "64m", "use this size for /dev/shm")
	flag.Var(&s.caps, "cap", "add a capability, such as SYS_PTRACE")
	flag.Var(&s.drop, "drop", "drop a capability, or ALL")
	flag.Var(&s.env, "env", "NAME=VALUE")
	flag.Var(&s.bind, "bind", "mount a directory or file, as FROM:TO or FROM:TO:ro")
	flag.Parse()
	var err error
	if os.Getenv(insideEnv) == "" {
		err = enterNamespaces(&s)
	} else {
		runtime.LockOSThread() // capabilities and the filter belong to this thread
		err = s.runProgram(flag.Args())
	}
	var code *exec.ExitError
	if errors.As(err, &code) && code.ExitCode() >= 0 {
		os.Exit(code.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "contain:", err)
		os.Exit(125)
	}
}

// enterNamespaces runs this program again in new namespaces.
func enterNamespaces(s *settings) error {
	if flag.NArg() == 0 || s.root == "" {
		return errors.New("usage: contain -root DIR [FLAGS] -- PROGRAM [ARGS]")
	}
	flags := uintptr(unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS)
	if s.pid != "host" {
		flags |= unix.CLONE_NEWPID
	}
	if s.net == "none" {
		flags |= unix.CLONE_NEWNET
	}
	argv := append([]string{"/proc/self/exe"}, os.Args[1:]...)
	if s.net != "none" && s.net != "host" {
		argv = append([]string{"ip", "netns", "exec", s.net}, argv...)
		self, err := os.Executable()
		if err != nil {
			return err
		}
		argv[4] = self
	}
	c := exec.Command(argv[0], argv[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), insideEnv+"=1")
	// The kernel kills the program together with this process, because the program is the init process of its
	// namespace.
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig belongs to the thread
	return c.Run()
}

// runProgram executes the program.
func (s *settings) runProgram(argv []string) error {
	if err := s.mountFileSystems(); err != nil {
		return err
	}
	if s.net == "none" {
		if err := activateLoopback(); err != nil {
			return fmt.Errorf("set lo up: %w", err)
		}
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := os.Chdir(s.dir); err != nil {
		return err
	}
	unix.Umask(0o022)
	bounding := s.boundingSet()
	var filter []unix.SockFilter
	if s.docker {
		var err error
		if filter, err = dockerProfile(bounding); err != nil {
			return fmt.Errorf("compile the default profile: %w", err)
		}
		if err := limitCapabilities(bounding); err != nil {
			return fmt.Errorf("limit the capabilities: %w", err)
		}
	}
	env := append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C"},
		s.env...)
	if s.user != 0 {
		env = append(env, "HOME=/tmp")
	}
	os.Clearenv()
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		os.Setenv(name, value)
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	return execAsUser(path, argv, env, filter, bounding, s.user)
}

// mountFileSystems mounts the file systems of the program.
func (s *settings) mountFileSystems() error {
	root, err := filepath.Abs(s.root)
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", root, err)
	}
	for _, m := range []struct {
		to, kind, data string
		flags          uintptr
	}{
		{"proc", "proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"sys", "sysfs", "", unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"dev", "tmpfs", "mode=755,size=64k", unix.MS_NOSUID},
		{"dev/shm", "tmpfs", "mode=1777,size=" + s.shmSize, unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"dev/pts", "devpts", "newinstance,ptmxmode=0666,mode=0620", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"tmp", "tmpfs", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
	} {
		to := filepath.Join(root, m.to)
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		err := unix.Mount(m.kind, to, m.kind, m.flags, m.data)
		if err != nil && m.kind == "sysfs" { // the network namespace belongs to another user namespace
			err = unix.Mount("/sys", to, "", unix.MS_BIND|unix.MS_REC, "")
		}
		if err != nil {
			return fmt.Errorf("mount %s: %w", to, err)
		}
	}
	for _, dev := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if err := bindMount("/dev/"+dev, filepath.Join(root, "dev", dev)); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0",
		"stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(to, filepath.Join(root, "dev", name)); err != nil {
			return err
		}
	}
	for _, b := range s.bind {
		from, to, _ := strings.Cut(b, ":")
		to, readOnly := strings.CutSuffix(to, ":ro")
		to = filepath.Join(root, to)
		if err := bindMount(from, to); err != nil {
			return err
		}
		if readOnly {
			if err := unix.Mount("", to, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
				return fmt.Errorf("mount %s read-only: %w", to, err)
			}
		}
	}
	return os.Chdir(root)
}

// bindMount mounts a file or directory.
func bindMount(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(to, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(to), 0o755); err == nil {
		var f *os.File
		if f, err = os.OpenFile(to, os.O_CREATE, 0o644); err == nil {
			f.Close()
		}
	}
	if err == nil {
		err = unix.Mount(from, to, "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w", from, to, err)
	}
	return nil
}

// activateLoopback activates the interface lo.
func activateLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
}

// dockerCapabilities lists Docker's default capabilities.
var dockerCapabilities = []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD",
	"CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE"}

var capabilityNumbers = map[string]uint{"CAP_CHOWN": unix.CAP_CHOWN, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE,
	"CAP_FSETID": unix.CAP_FSETID,
	"CAP_FOWNER": unix.CAP_FOWNER, "CAP_MKNOD": unix.CAP_MKNOD, "CAP_NET_RAW": unix.CAP_NET_RAW,
	"CAP_SETGID": unix.CAP_SETGID,
	"CAP_SETUID": unix.CAP_SETUID, "CAP_SETFCAP": unix.CAP_SETFCAP, "CAP_SETPCAP": unix.CAP_SETPCAP,
	"CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "CAP_SYS_CHROOT": unix.CAP_SYS_CHROOT, "CAP_KILL": unix.CAP_KILL,
	"CAP_AUDIT_WRITE": unix.CAP_AUDIT_WRITE, "CAP_SYS_PTRACE": unix.CAP_SYS_PTRACE,
	"CAP_SYS_RESOURCE": unix.CAP_SYS_RESOURCE,
	"CAP_SYS_ADMIN":    unix.CAP_SYS_ADMIN, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_IPC_LOCK": unix.CAP_IPC_LOCK,
	"CAP_LEASE": unix.CAP_LEASE}

func (s *settings) boundingSet() []string {
	all := slices.DeleteFunc(slices.Clone(dockerCapabilities), func(name string) bool {
		return slices.Contains(s.drop, "ALL") || slices.Contains(s.drop, strings.TrimPrefix(name, "CAP_"))
	})
	for _, c := range s.caps {
		all = append(all, "CAP_"+c)
	}
	return all
}

// limitCapabilities removes all other capabilities from the bounding set.
func limitCapabilities(keep []string) error {
	for c := uint(0); c <= unix.CAP_LAST_CAP; c++ {
		if !slices.ContainsFunc(keep, func(name string) bool { return capabilityNumbers[name] == c }) {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL {
				return err
			}
		}
	}
	return nil
}

// execAsUser changes to the user, with the filter and at most the given capabilities, and executes the program in this
// process. The process is the first process of its namespace, and therefore receives no signals without a handler.
// The filter is installed before the capabilities are dropped, because no_new_privs is not set, as with Docker.
func execAsUser(path string, argv, env []string, filter []unix.SockFilter, bounding []string, user int) error {
	if filter != nil {
		if err := installFilter(filter); err != nil {
			return fmt.Errorf("seccomp: %w", err)
		}
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var own, set [2]unix.CapUserData
		if err := unix.Capget(&header, &own[0]); err != nil {
			return fmt.Errorf("capget: %w", err)
		}
		for _, name := range bounding {
			if user == 0 {
				n := capabilityNumbers[name]
				set[n/32].Effective |= 1 << (n % 32)
				set[n/32].Permitted |= 1 << (n % 32)
			}
		}
		if user != 0 {
			// The change of the user needs the current capabilities.
			for _, n := range []uint{unix.CAP_SETUID, unix.CAP_SETGID} {
				set[0].Effective |= 1 << n
				set[0].Permitted |= 1 << n
			}
		}
		for i := range set { // root in a virtual machine may lack some capabilities
			set[i].Effective &= own[i].Permitted
			set[i].Permitted &= own[i].Permitted
		}
		if err := unix.Capset(&header, &set[0]); err != nil {
			return fmt.Errorf("capset: %w", err)
		}
	}
	if user != 0 {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
			return fmt.Errorf("setgroups: %w", errno)
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(user), uintptr(user), uintptr(user)); errno != 0 {
			return fmt.Errorf("setresgid: %w", errno)
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(user), uintptr(user), uintptr(user)); errno != 0 {
			return fmt.Errorf("setresuid: %w", errno)
		}
	}
	return unix.Exec(path, argv, env)
}
