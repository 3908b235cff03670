package supervisor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Launch describes a program to run under supervision.
type Launch struct {
	// Path is the program's file. Start does not search PATH.
	Path string
	// Args is the argument vector, which begins with the program's name. Env is the environment; nil means an empty
	// environment.
	Args, Env []string
	// Dir is the working directory; empty means that of this process.
	Dir string
	// Files become descriptors 0, 1, 2 and so on.
	Files []*os.File
	// AdoptOrphans keeps this process an ancestor of all processes of the program while the program runs, for a
	// Helper. Handover may set AdoptOrphans once it knows the result of Session.UsesHelper.
	AdoptOrphans bool
	// Tracer, which Handover may set, is the supervisor that the program allows to access its memory. Tracer is for
	// systems where Yama restricts ptrace to ancestors.
	Tracer *Tracer
	// Handover passes the listener to the supervisor (Supervisor.Attach, in another process or in this one), and
	// returns after the supervisor has received it. From that time on the supervisor must answer calls. This package
	// closes the file.
	Handover func(listener *os.File) error
	// Lost, which Handover may set, is closed when the supervisor has died. If the supervisor dies before the exec,
	// the program starts without a supervisor. Program.Guard handles a later death of the supervisor.
	Lost <-chan struct{}
}

// ExecError is the error for a program that could not be executed. ExecError wraps an errno.
type ExecError struct {
	Path string
	Err  error
}

func (e *ExecError) Error() string { return "run " + e.Path + ": " + e.Err.Error() }
func (e *ExecError) Unwrap() error { return e.Err }

// Program is a program under supervision, as seen by the process that started it.
type Program struct {
	pid      int
	thread   *thread  // thread with the filter
	listener *os.File // the launcher's descriptor of the listener
	signals  *signalForwarder
	over     chan struct{} // closed when the program has ended
	guards   sync.WaitGroup

	wait sync.Once
	code int

	mu     sync.Mutex
	reaped bool // the kernel may have reused pid
}

// Start runs a program under supervision. The program inherits this process's process group, terminal, umask and
// limits, and its ignored SIGHUP and SIGINT. Until Wait returns, signals sent only to this process are passed on to
// the program: SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP and SIGCONT. Signals that the
// terminal sends to the whole process group are not passed on.
//
// The supervisor should run in another process. The last step, exec, waits for the supervisor's answer. During that
// time this process cannot collect garbage, because a collection would block an answer from this process.
//
// The caller must call Wait. Start returns errNested, ErrUnsupported, an error of Handover, or an *ExecError. It may
// sleep.
func Start(l *Launch) (_ *Program, err error) {
	if len(l.Args) == 0 {
		return nil, &ExecError{l.Path, errors.New("no argument vector")}
	}
	arch := architectures[runtime.GOARCH]
	if arch == nil {
		return nil, fmt.Errorf("%w: not for %s", ErrUnsupported, runtime.GOARCH)
	}
	limit, err := hardFileLimit()
	if err != nil {
		return nil, err
	}
	p := &Program{thread: newThread(), over: make(chan struct{})}
	defer func() {
		if err != nil {
			p.releaseGuards()
		}
	}()
	// A trapped call of the filtered thread would wait for a supervisor that does not serve yet. Operations that
	// may make a trapped call therefore run on other threads. The filter does not trap the calls of the filtered
	// thread before the exec.
	var fd int
	p.thread.do(func() { fd, err = installFilter(arch.makeFilter(commandFDsForHardLimit(limit))) })
	if err != nil {
		return nil, err
	}
	p.listener = os.NewFile(uintptr(fd), "seccomp listener")
	if err := l.Handover(p.listener); err != nil {
		return nil, fmt.Errorf("hand the program over to its supervisor: %w", err)
	}
	attr := &syscall.ProcAttr{Dir: l.Dir, Env: l.Env}
	if l.Env == nil {
		attr.Env = []string{} // nil would mean the environment of this process
	}
	for _, f := range l.Files {
		attr.Files = append(attr.Files, f.Fd())
	}
	var orphans *orphanReaper
	if l.AdoptOrphans {
		if orphans, err = newOrphanReaper(); err != nil {
			return nil, err
		}
	}
	p.signals = catchSignals()
	attended := p.continueUntilGuarded(l.Lost)
	outcome := func() error { return nil }
	p.thread.do(func() { p.pid, outcome, err = forkExec(l, attr) })
	if err == nil {
		err = outcome()
	}
	attended()
	runtime.KeepAlive(l)
	if err != nil {
		p.signals.stop()
		if orphans != nil {
			orphans.close()
		}
		return nil, &ExecError{l.Path, err}
	}
	if orphans != nil {
		p.guards.Go(func() { orphans.run(p) })
	}
	go p.signals.forward(p)
	return p, nil
}

// forkExec starts the program. The filtered thread calls forkExec. Like execvp(3), forkExec runs a file without a
// magic number as a shell script. outcome returns a later error, and must be called on another thread.
func forkExec(l *Launch, attr *syscall.ProcAttr) (pid int, outcome func() error, err error) {
	if l.Tracer != nil {
		if pid, outcome, err = l.Tracer.startTracedProgram(l, attr); err == nil {
			return pid, outcome, nil
		}
	}
	pid, err = syscall.ForkExec(l.Path, l.Args, attr)
	if errors.Is(err, syscall.ENOEXEC) {
		pid, err = syscall.ForkExec(shellPath, scriptArgs(l.Path, l.Args), attr)
	}
	return pid, func() error { return nil }, err
}

const shellPath = "/bin/sh"

// scriptArgs returns the argument vector of the shell for a script with these arguments.
func scriptArgs(path string, args []string) []string {
	return append([]string{shellPath, path}, args[1:]...)
}

// PID returns the program's process ID.
func (p *Program) PID() int { return p.pid }

// Signal sends a signal to the program. Signal returns os.ErrProcessDone when the program has ended.
func (p *Program) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return os.ErrProcessDone
	}
	return syscall.Kill(p.pid, sig)
}

// Wait waits for the end of the program, and returns its exit code in the convention of the shell: 128 + N if
// signal N ended it. Other processes of the program may still run. The other processes stay under supervision, but
// have no guardian any more.
func (p *Program) Wait() (code int) {
	p.wait.Do(func() {
		// The process ID stays reserved while a signal may still be sent to the program.
		for {
			err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			if err != unix.EINTR {
				break
			}
		}
		p.signals.stop()
		p.mu.Lock()
		var status syscall.WaitStatus
		for {
			if _, err := syscall.Wait4(p.pid, &status, 0, nil); err != syscall.EINTR {
				break
			}
		}
		p.reaped = true
		p.mu.Unlock()
		if p.code = status.ExitStatus(); status.Signaled() {
			p.code = 128 + int(status.Signal())
		}
		p.releaseGuards()
	})
	return p.code
}

// releaseGuards ends the guards and the filtered thread, and thereby this process's part in the session.
func (p *Program) releaseGuards() {
	close(p.over)
	p.guards.Wait()
	p.thread.end()
	<-p.thread.over
	if p.listener != nil {
		p.listener.Close()
	}
}
