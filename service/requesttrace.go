package service

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/driver"
	"verbena/internal/ctl"
	"verbena/internal/quota"
	"verbena/internal/shm"
	"verbena/reqtrace"
)

// requestTrace is the trace of work requests that a connection has begun.
type requestTrace struct {
	s     *Service
	trace *reqtrace.Trace
	mem   *shm.File
}

// traceLookInterval is the interval in which the completion queues of all traces are looked at. Programs poll them
// without a call.
const traceLookInterval = 10 * time.Millisecond

// traceLooks is the goroutine that looks at the completion queues of all traces.
type traceLooks struct {
	mu     sync.Mutex
	traces int
	stop   chan struct{} // ends the goroutine; under mu
}

// answerTraceRequest begins or ends the trace of a connection, and answers the client. It returns the trace of the
// connection afterwards, which may be nil.
func (s *Service) answerTraceRequest(c ctl.Conn, who peer, t *requestTrace, r *ctl.RequestTrace) (*requestTrace,
	error) {
	var theirs *os.File
	var err error
	switch {
	case r.End:
		t.end()
		t = nil
	case t != nil:
		err = fmt.Errorf("trace work requests: the connection has a trace: %w", syscall.EBUSY)
	default:
		t, theirs, err = s.traceRequests(who)
	}
	a := &ctl.Response{}
	if err != nil {
		a = errorResponse(err)
	}
	err = s.replyWithFD(c, a, theirs)
	if theirs != nil {
		theirs.Close()
	}
	return t, err
}

// traceRequests begins a trace of the work requests of a user's programs. theirs is the memory for the client.
func (s *Service) traceRequests(who peer) (t *requestTrace, theirs *os.File, err error) {
	t = &requestTrace{s: s}
	t.trace, err = s.links.requests.Begin(who.Account, func() (b []byte, err error) {
		t.mem, theirs, b, err = s.newTraceMemory(who)
		return b, err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("trace work requests: %w", err)
	}
	s.links.refreshTraces()
	s.traceLooks.begin(&s.links)
	return t, theirs, nil
}

// newTraceMemory allocates the memory of a trace. The kernel provides each page at the first event in it.
func (s *Service) newTraceMemory(who peer) (mem *shm.File, theirs *os.File, b []byte, err error) {
	user := s.quota.Account(who.Account)
	if mem, err = shm.Create("verbena-requests", quota.BufferBytes, user, s.kept.ObjectsOf(user)); err != nil {
		return nil, nil, nil, err
	}
	mem.KeepPagesOnClose() // the client reads them
	region, err := mem.Alloc(reqtrace.Size)
	if err == nil {
		theirs, err = mem.OpenForProgram(unix.O_RDONLY)
	}
	if err != nil {
		mem.Close()
		return nil, nil, nil, err
	}
	return mem, theirs, region.Mem, nil
}

// begin counts one more trace. The first one starts the goroutine.
func (l *traceLooks) begin(links *linkTable) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.traces++; l.traces == 1 {
		l.stop = make(chan struct{})
		go links.lookAtTraces(l.stop)
	}
}

// end counts one trace less. The last one ends the goroutine.
func (l *traceLooks) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.traces--; l.traces == 0 {
		close(l.stop)
	}
}

// lookAtTraces looks at the completion queues of all traces until stop is closed.
func (t *linkTable) lookAtTraces(stop <-chan struct{}) {
	tick := time.NewTicker(traceLookInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			t.eachDevice(driver.Device.LookAtTraces)
		case <-stop:
			return
		}
	}
}

// end ends the trace. It does nothing without a trace.
func (t *requestTrace) end() {
	if t == nil {
		return
	}
	t.s.traceLooks.end()
	t.s.links.eachDevice(driver.Device.LookAtTraces)
	t.trace.End()
	if t.s.links.refreshTraces() {
		t.mem.Close()
		return
	}
	go func() { // a thread that is stopped in the memory of a program may still have the log
		for !t.s.links.refreshTraces() {
			time.Sleep(traceRefreshInterval)
		}
		t.mem.Close()
	}()
}

// traceRefreshInterval is the interval of the attempts to end a trace while the memory of a program does not respond.
const traceRefreshInterval = time.Second

// eachDevice calls f with each present device. f must not block.
func (t *linkTable) eachDevice(f func(driver.Device)) {
	for _, l := range t.all() {
		if d := t.currentDevice(l); d != nil {
			f(d)
		}
	}
}

// refreshTraces makes all devices ask again which queues are traced. It returns false if some could not.
func (t *linkTable) refreshTraces() (complete bool) {
	complete = true
	t.eachDevice(func(d driver.Device) { complete = d.RefreshTraces() && complete })
	return complete
}
