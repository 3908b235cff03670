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

// Launch describes a program that is to run under supervision.
type Launch struct {
	// Path is the program's file; it is not looked for in PATH.
	Path string
	// Args is its argument vector, with the name it is called by first. Env is its environment; nil stands for none.
	Args, Env []string
	// Dir is its working directory; empty for this process's.
	Dir string
	// Files become its descriptors 0, 1, 2 and so on.
	Files []*os.File
	// AdoptOrphans keeps this process an ancestor of all that the program starts, while it runs: for a Helper. Handover
	// may set it, when it has learnt whether there will be one (Session.Helped).
	AdoptOrphans bool
	// Tracer, which Handover may set, is the supervisor that the program lets access its memory: of use where Yama
	// restricts ptrace to ancestors.
	Tracer *Tracer
	// Handover gives the listener to the supervisor (Supervisor.Attach, in another process or in this one) and returns
	// when that has taken it up: from then on it must answer. The file is this package's to close.
	Handover func(listener *os.File) error
	// Lost, which Handover may set, is closed when the supervisor has died: then the program starts without one. (From
	// then on, see Program.Guard.)
	Lost <-chan struct{}
}

// ExecError says that the program could not be executed; it wraps an errno.
type ExecError struct {
	Path string
	Err  error
}

func (e *ExecError) Error() string { return "run " + e.Path + ": " + e.Err.Error() }
func (e *ExecError) Unwrap() error { return e.Err }

// Program is a program under supervision, seen from the process that started it.
type Program struct {
	pid      int
	thread   *thread  // the one with the filter
	listener *os.File // the launcher's copy
	signals  *forwarder
	over     chan struct{} // closed when the program has ended
	guards   sync.WaitGroup

	wait sync.Once
	code int

	mu     sync.Mutex
	reaped bool // pid is not ours any more
}

// Start runs a program under supervision. It passes on what this process has: process group, terminal, umask,
// limits, ignored SIGHUP and SIGINT. Until Wait returns, signals that reach this process alone are passed on to the
// program: SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP and SIGCONT, except those that the
// terminal has sent to the whole process group.
//
// The supervisor should be in another process: the last step, exec, waits for its answer, and while it does this
// process cannot collect garbage, which would stop it.
//
// The caller must Wait. Errors: ErrNested, ErrUnsupported, what Handover says, *ExecError. It may sleep.
func Start(l *Launch) (_ *Program, err error) {
	if len(l.Args) == 0 {
		return nil, &ExecError{l.Path, errors.New("no argument vector")}
	}
	arch := architectures[runtime.GOARCH]
	if arch == nil {
		return nil, fmt.Errorf("%w: not for %s", ErrUnsupported, runtime.GOARCH)
	}
	limit, err := hardLimit()
	if err != nil {
		return nil, err
	}
	p := &Program{thread: newThread(), over: make(chan struct{})}
	defer func() {
		if err != nil {
			p.release()
		}
	}()
	// A trapped call of the filtered thread would wait for a supervisor that does not serve yet: whatever may make one
	// happens on other threads, and what this one does until the exec is not trapped.
	var fd int
	p.thread.do(func() { fd, err = install(arch.filter(numbersFor(limit))) })
	if err != nil {
		return nil, err
	}
	p.listener = os.NewFile(uintptr(fd), "seccomp listener")
	if err := l.Handover(p.listener); err != nil {
		return nil, fmt.Errorf("hand the program over to its supervisor: %w", err)
	}
	attr := &syscall.ProcAttr{Dir: l.Dir, Env: l.Env}
	if l.Env == nil {
		attr.Env = []string{} // nil would be this process's
	}
	for _, f := range l.Files {
		attr.Files = append(attr.Files, f.Fd())
	}
	var orphans *orphanage
	if l.AdoptOrphans {
		if orphans, err = openOrphanage(); err != nil {
			return nil, err
		}
	}
	p.signals = catchSignals()
	attended := p.attend(l.Lost)
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

// forkExec starts the program; it is called on the filtered thread. A file without a magic number is a shell script, as
// execvp(3) has it. outcome returns an error that comes later, and is called on another thread.
func forkExec(l *Launch, attr *syscall.ProcAttr) (pid int, outcome func() error, err error) {
	if l.Tracer != nil {
		if pid, outcome, err = l.Tracer.start(l, attr); err == nil {
			return pid, outcome, nil
		}
	}
	pid, err = syscall.ForkExec(l.Path, l.Args, attr)
	if errors.Is(err, syscall.ENOEXEC) {
		pid, err = syscall.ForkExec(shell, scriptArgs(l.Path, l.Args), attr)
	}
	return pid, func() error { return nil }, err
}

const shell = "/bin/sh"

// scriptArgs returns the argument vector of the shell for a script with these.
func scriptArgs(path string, args []string) []string {
	return append([]string{shell, path}, args[1:]...)
}

// PID returns the program's process id.
func (p *Program) PID() int { return p.pid }

// Signal sends the program a signal; os.ErrProcessDone when it has ended.
func (p *Program) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return os.ErrProcessDone
	}
	return syscall.Kill(p.pid, sig)
}

// Wait returns when the program has ended, with its exit code as a shell has it: 128 + N if signal N ended it. What
// the program has started may still run; it stays under supervision, but is not guarded any more.
func (p *Program) Wait() (code int) {
	p.wait.Do(func() {
		// The number stays taken while a signal may still be sent to it.
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
		p.release()
	})
	return p.code
}

// release ends the guards, the filtered thread and with it this process's part in the session.
func (p *Program) release() {
	close(p.over)
	p.guards.Wait()
	p.thread.end()
	<-p.thread.over
	if p.listener != nil {
		p.listener.Close()
	}
}
