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

// forwarder passes on to the program the signals that this process gets.
type forwarder struct {
	c    chan os.Signal
	once sync.Once
	done chan struct{}
}

// forwarded are the signals that are passed on. The terminal sends some of them to the whole foreground process
// group, so that the program has had them already.
var forwarded = map[syscall.Signal]struct{ byTerminal bool }{
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

// catchSignals keeps signals for forward from now on. Signals that this process was started to ignore (nohup) stay
// ignored, here and in the program.
func catchSignals() *forwarder {
	f := &forwarder{c: make(chan os.Signal, 64), done: make(chan struct{})}
	for sig := range forwarded {
		if !signal.Ignored(sig) {
			signal.Notify(f.c, sig)
		}
	}
	return f
}

func (f *forwarder) forward(p *Program) {
	for {
		var sig syscall.Signal
		select {
		case s := <-f.c:
			sig = s.(syscall.Signal)
		case <-f.done:
			return
		}
		if !forwarded[sig].byTerminal || !inForeground() {
			_ = p.Signal(sig) // it may have ended
		}
		if sig == unix.SIGTSTP {
			// Its caller, a shell, expects this process to stop when the program does. Go does not let it do so by
			// SIGTSTP any more.
			_ = unix.Kill(unix.Getpid(), unix.SIGSTOP)
		}
	}
}

func (f *forwarder) stop() {
	f.once.Do(func() {
		signal.Stop(f.c)
		close(f.done)
	})
}

// inForeground reports whether this process is in the foreground process group of its terminal. There it takes it
// that signals from the keyboard came from the keyboard, since it cannot know.
func inForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	pgrp, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && pgrp == unix.Getpgrp()
}

// blockSignals keeps signals from the calling thread, for good. The kernel loses a descriptor that is just being given
// as a call's answer when the thread that gives it gets a signal (kernel/seccomp.c, seccomp_notify_addfd): the call
// then returns 0, which is another descriptor. Go's runtime sends signals whenever it wants a goroutine to
// pause (SIGURG); it manages without. Signals that the thread raises itself still reach it, and so does SIGPROF, for
// profiles of a service, except within withoutSIGPROF.
func blockSignals() error {
	var set unix.Sigset_t
	for i := range set.Val {
		set.Val[i] = ^set.Val[i]
	}
	bits := 1024 / len(set.Val) // of a word
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
