package supervisor

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// signalForwarder passes signals of this process on to the program.
type signalForwarder struct {
	c    chan os.Signal
	once sync.Once
	done chan struct{}
}

// forwardedSignals lists the signals to pass on. The terminal sends some of these signals to the whole foreground
// process group, so the program has received them already.
var forwardedSignals = map[syscall.Signal]struct{ byTerminal bool }{
	unix.SIGINT:   {true},
	unix.SIGQUIT:  {true},
	unix.SIGTSTP:  {true},
	unix.SIGWINCH: {true},
	unix.SIGTERM:  {},
	unix.SIGHUP:   {},
	unix.SIGUSR1:  {},
	unix.SIGUSR2:  {},
	unix.SIGCONT:  {},
}

// catchSignals catches signals for forward from the call on. Signals that were ignored at the start of this process
// (nohup) stay ignored in this process and in the program.
func catchSignals() *signalForwarder {
	f := &signalForwarder{c: make(chan os.Signal, 64), done: make(chan struct{})}
	for sig := range forwardedSignals {
		if !signal.Ignored(sig) {
			signal.Notify(f.c, sig)
		}
	}
	return f
}

func (f *signalForwarder) forward(p *Program) {
	for {
		var sig syscall.Signal
		select {
		case s := <-f.c:
			sig = s.(syscall.Signal)
		case <-f.done:
			return
		}
		if !forwardedSignals[sig].byTerminal || !isInForeground() {
			_ = p.Signal(sig) // the program may have ended
		}
		if sig == unix.SIGTSTP {
			// The caller of this process, a shell, expects it to stop when the program stops. Under Go's runtime,
			// SIGTSTP does not stop the process.
			_ = unix.Kill(unix.Getpid(), unix.SIGSTOP)
		}
	}
}

func (f *signalForwarder) stop() {
	f.once.Do(func() {
		signal.Stop(f.c)
		close(f.done)
	})
}

// isInForeground reports whether this process is in the foreground process group of its terminal. If this process is
// in the foreground, keyboard signals are assumed to come from the keyboard.
func isInForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	pgrp, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && pgrp == unix.Getpgrp()
}

// blockSignals permanently blocks signals on the calling thread. If a thread receives a signal while it installs a
// descriptor as a call's answer, the kernel loses the descriptor (kernel/seccomp.c, seccomp_notify_addfd). The call
// then returns 0, which is the number of another descriptor. Go's runtime sends SIGURG to preempt a goroutine, and
// also works without it. The thread still receives the signals that it raises itself. It also receives SIGPROF, for
// profiles of a service, except within withoutSIGPROF.
func blockSignals() error {
	var set unix.Sigset_t
	for i := range set.Val {
		set.Val[i] = ^set.Val[i]
	}
	bits := 1024 / len(set.Val) // bits in a word
	for _, sig := range [...]unix.Signal{unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP, unix.SIGSYS,
		unix.SIGPROF} {
		set.Val[(int(sig)-1)/bits] &^= 1 << ((int(sig) - 1) % bits)
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil); err != nil {
		return fmt.Errorf("block signals: %w", err)
	}
	return nil
}

// withoutSIGPROF calls f with SIGPROF blocked on the calling thread, and restores the thread's mask.
func withoutSIGPROF(f func()) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var profile, before unix.Sigset_t
	profile.Val[0] = 1 << (unix.SIGPROF - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &profile, &before); err != nil {
		return fmt.Errorf("block SIGPROF: %w", err)
	}
	f()
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); err != nil {
		return fmt.Errorf("restore the signal mask: %w", err)
	}
	return nil
}
