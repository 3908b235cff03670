package supervisor

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// If Yama restricts ptrace to ancestors (ptrace_scope is 1), a process may name another process that may access it
// and its descendants (PR_SET_PTRACER). The kernel stores this permission for the process's main thread, through
// exec, until either process ends. Child processes do not inherit the permission. The permission is lost when
// another thread executes a program, or when the program names another process. In these cases the supervisor uses
// the Helper. (security/yama/yama_lsm.c)
//
// The process itself must make the prctl call, between fork and exec, where a Go program cannot run its own code.
// The launcher therefore first executes itself (ExecTraced).

// Tracer is a supervisor in another process, which a program may allow to access its memory.
type Tracer struct {
	// PID is the process ID of the supervisor, as reported by the kernel (SO_PEERCRED).
	PID int
	// Pidfd was opened by PID. The process has answered since then, which proves that PID was not reused.
	Pidfd *os.File
	// Exec is the path of a program that calls ExecTraced, which is the launcher itself.
	Exec string
}

// execTraced is the first argument that makes a program call ExecTraced.
const execTraced = "exec-traced"

// numTracedArgs is the number of arguments before the program's own arguments: the name, execTraced, the process, two
// descriptors, and the program's path.
const numTracedArgs = 6

// ExecTraced must be the first call in the main function of a launcher, with the launcher's arguments. ExecTraced
// returns unless Start has executed the launcher for this purpose.
func ExecTraced(args []string) {
	if len(args) < numTracedArgs+1 || args[1] != execTraced {
		return
	}
	pid, err := strconv.Atoi(args[2])
	status, err2 := strconv.Atoi(args[3])
	pidfd, err3 := strconv.Atoi(args[4])
	if err != nil || err2 != nil || err3 != nil {
		return
	}
	unix.CloseOnExec(status)
	unix.CloseOnExec(pidfd)
	allowAccess(pid, pidfd, setPtracer)
	path, argv := args[numTracedArgs-1], args[numTracedArgs:]
	err = syscall.Exec(path, argv, os.Environ())
	if errors.Is(err, syscall.ENOEXEC) {
		err = syscall.Exec(shellPath, scriptArgs(path, argv), os.Environ())
	}
	number := syscall.EINVAL
	errors.As(err, &number)
	_, _ = unix.Write(status, binary.LittleEndian.AppendUint32(nil, uint32(number)))
	os.Exit(1)
}

// setCloseOnExec sets or clears FD_CLOEXEC of a descriptor.
func setCloseOnExec(f *os.File, on bool) error {
	flags := 0
	if on {
		flags = unix.FD_CLOEXEC
	}
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, flags)
	return err
}

// allowAccess allows a process to access this process's memory, if the process ID still belongs to the process of the
// pidfd. allowAccess ignores errors, which occur without Yama.
func allowAccess(pid, pidfd int, set func(pid int) error) {
	if set(pid) == nil && hasEnded(pidfd) {
		_ = set(0)
	}
}

// setPtracer names the process that may access this process's memory; 0 names none.
func setPtracer(pid int) error { return unix.Prctl(unix.PR_SET_PTRACER, uintptr(pid), 0, 0, 0) }

// hasEnded reports whether the process of a pidfd has ended. It returns true if the state is unknown.
func hasEnded(pidfd int) bool {
	pfd := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(pfd, 0)
		if err != unix.EINTR {
			return err != nil || n > 0
		}
	}
}

// startTracedProgram starts a program that allows t to access it. The filtered thread calls start. outcome, which must
// be called on another thread, returns the error of the exec.
func (t *Tracer) startTracedProgram(l *Launch, attr *syscall.ProcAttr) (pid int, outcome func() error, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	defer w.Close()
	// The descriptors keep their numbers, which are free in this process. At another number, the program might
	// inherit a descriptor from this process's parent.
	for _, f := range []*os.File{w, t.Pidfd} {
		if err := setCloseOnExec(f, false); err != nil {
			r.Close()
			return 0, nil, err
		}
		defer setCloseOnExec(f, true)
	}
	args := append([]string{l.Args[0], execTraced, strconv.Itoa(t.PID), strconv.Itoa(int(w.Fd())),
		strconv.Itoa(int(t.Pidfd.Fd())), l.Path}, l.Args...)
	if pid, err = syscall.ForkExec(t.Exec, args, attr); err != nil {
		r.Close()
		return 0, nil, err
	}
	return pid, func() error {
		defer r.Close()
		var number [4]byte
		if _, err := io.ReadFull(r, number[:]); err != nil { // the process was executed, or killed before
			return nil
		}
		for {
			if _, err := syscall.Wait4(pid, nil, 0, nil); err != syscall.EINTR {
				return syscall.Errno(binary.LittleEndian.Uint32(number[:]))
			}
		}
	}, nil
}
