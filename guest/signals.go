package guest

import (
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
	done chan struct{}

	mu      sync.Mutex
	stopped bool
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

// catchSignals keeps signals for forward from now on. What this process was started to ignore (nohup) stays so, here
// and in the program.
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
			f.suspend()
		}
	}
}

// suspend stops this process in the way that its caller, a shell, expects of the program.
func (f *forwarder) suspend() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signal.Reset(unix.SIGTSTP)
	// To this thread, so that the process has stopped, and goes on, before the next line.
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGTSTP)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stopped {
		signal.Notify(f.c, unix.SIGTSTP)
	}
}

func (f *forwarder) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stopped {
		f.stopped = true
		signal.Stop(f.c)
		close(f.done)
	}
}

// inForeground reports whether this process is in the foreground process group of its terminal. There it takes it
// that signals from the keyboard came from the keyboard, since it cannot tell.
func inForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	pgrp, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && pgrp == unix.Getpgrp()
}
