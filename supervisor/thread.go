package supervisor

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// thread is a separate operating system thread. Its kernel state may be changed permanently, because the Go
// scheduler runs no other goroutine on it and does not clone it. The thread ends with the call of end. The thread
// is never the process's main thread, because the main thread could not end.
type thread struct {
	tid  int
	work chan func()
	over chan struct{} // closed when the thread ends
}

func newThread() *thread {
	t := &thread{work: make(chan func()), over: make(chan struct{})}
	ready := make(chan struct{})
	go t.run(ready)
	<-ready
	return t
}

func (t *thread) run(ready chan struct{}) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// While this goroutine occupies the main thread, another goroutine runs on a different thread.
		go t.run(ready)
		<-ready
		runtime.UnlockOSThread()
		return
	}
	defer close(t.over)
	t.tid = unix.Gettid()
	close(ready)
	for f := range t.work {
		f()
	}
	// The thread ends because the goroutine returns while it is locked to the thread.
}

// do runs f on the thread and waits until f returns.
func (t *thread) do(f func()) {
	done := make(chan struct{})
	t.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

func (t *thread) end() { close(t.work) }
