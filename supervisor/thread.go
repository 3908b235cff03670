package supervisor

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// thread is an operating system thread of its own, whose kernel state may be changed for good: the Go scheduler
// neither runs anything else on it nor clones it, and it ends with end. It is never the process's main thread, which
// could not end.
type thread struct {
	tid  int
	work chan func()
	over chan struct{} // closed as the thread ends
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
		// As long as this goroutine keeps the main thread, another one gets another.
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
	// Returning while locked ends the thread.
}

// do runs f on the thread and waits for it.
func (t *thread) do(f func()) {
	done := make(chan struct{})
	t.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

func (t *thread) end() { close(t.work) }
