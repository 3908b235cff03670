package service

import (
	"fmt"
	"os"
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
	stop  chan struct{} // ends the looks
}

// traceLookInterval is the interval in which the completion queues of a trace are looked at. Programs poll them
// without a call.
const traceLookInterval = 10 * time.Millisecond

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
	fail := func(err error) (*requestTrace, *os.File, error) {
		return nil, nil, fmt.Errorf("trace work requests: %w", err)
	}
	user := s.quota.Account(who.Account)
	mem, err := shm.Create("verbena-requests", quota.BufferBytes, user, s.kept.ObjectsOf(user))
	if err != nil {
		return fail(err)
	}
	mem.KeepPagesOnClose() // the client reads them
	defer func() {
		if err != nil {
			mem.Close()
		}
	}()
	region, err := mem.Alloc(reqtrace.Size)
	if err != nil {
		return fail(err)
	}
	// The threads of the engine should meet no page faults. Linux before 5.14 does not support this.
	_ = unix.Madvise(region.Mem, unix.MADV_POPULATE_WRITE)
	if theirs, err = mem.OpenForProgram(unix.O_RDONLY); err != nil {
		return fail(err)
	}
	trace, err := s.links.requests.Begin(who.Account, region.Mem)
	if err != nil {
		theirs.Close()
		return fail(err)
	}
	t = &requestTrace{s: s, trace: trace, mem: mem, stop: make(chan struct{})}
	s.links.refreshTraces()
	go t.look()
	return t, theirs, nil
}

// look looks at the completion queues until the end of the trace.
func (t *requestTrace) look() {
	tick := time.NewTicker(traceLookInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			t.s.links.eachDevice(driver.Device.LookAtTraces)
		case <-t.stop:
			return
		}
	}
}

// end ends the trace. It does nothing without a trace.
func (t *requestTrace) end() {
	if t == nil {
		return
	}
	close(t.stop)
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
