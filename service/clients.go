package service

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib/check"
	"verbena/internal/ctl"
	"verbena/internal/procfile"
	"verbena/internal/quota"
	"verbena/remote"
	"verbena/supervisor"
)

const (
	// firstMessage limits the wait for a client's first request. The verbena command sends its first request at
	// once.
	firstMessage = 10 * time.Second
	// restOfMessage limits the time from the first byte of a sent or received message to its last byte.
	restOfMessage = 10 * time.Second
	// requestTimeout limits the time of a request, as described at bounded.
	requestTimeout = CloseTimeout
	// maxRequests limits the number of pending requests of one user. Managers are exempt.
	maxRequests = 8
)

// Serve answers clients of l until Stop, a client's request to stop, or idleness. It closes l.
func (s *Service) Serve(l *Listener) error {
	go func() {
		s.waitForEnd()
		s.stop()
		l.Close()
	}()
	err := s.acceptor.acceptClients(l)
	if s.ended.Err() != nil {
		return nil
	}
	return err
}

// ServeConn answers a client with known credentials until the client closes the connection.
func (s *Service) ServeConn(c *net.UnixConn) {
	who, err := peerOf(c, s.authority)
	if err != nil {
		s.log.Warn("client", uidKey, who.uid, "err", err)
		c.Close()
		return
	}
	s.serveAndClose(ctl.Conn{UnixConn: c, Rights: s.rights.QueueOf(s.quota.Account(who.Account))}, who, 0)
}

// serveAndClose answers a client like answerRequests, and then closes the connection.
func (s *Service) serveAndClose(c ctl.Conn, who peer, within time.Duration) {
	defer c.DrainAndClose()
	s.answerRequests(c, who, within)
}

// answerRequests answers a client until the client closes the connection. The caller closes the service's end. The
// first request must arrive within the given time, unless the time is 0.
func (s *Service) answerRequests(c ctl.Conn, who peer, within time.Duration) {
	defer s.connections.enqueue(c)()
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic in a request; closing the connection",
				uidKey, who.uid, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	var trace *requestTrace
	defer func() { trace.end() }()
	var decisions *decisionMemory
	defer func() { decisions.close() }()
	for {
		var r ctl.Request
		fd, err := c.Receive(&r, ctl.MessageLimits{Size: ctl.MaxRequest, Whole: within, Rest: s.restOfMessage})
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, net.ErrClosed) {
				s.log.Warn("client", uidKey, who.uid, "err", err)
			}
			return
		}
		within = 0
		if r.Op == ctl.OpAttach && r.Protocol == ctl.ProtocolVersion && fd != nil && r.Attach != nil {
			s.attachProgram(c, who, r.Attach, fd, decisions)
			return
		}
		if r.Op == ctl.OpOpen && r.Protocol == ctl.ProtocolVersion && fd == nil {
			strays := s.serveDevice(c, who, r.Name)
			c.CloseRead() // makes a program's wait for an answer to its next request fail
			c.CloseWrite()
			c.Rights.CloseAll(strays)
			return
		}
		var answer func() error // answers a request that changes the state of the connection
		switch known := r.Protocol == ctl.ProtocolVersion && fd == nil; {
		case known && r.Op == ctl.OpRequests && r.Requests != nil:
			answer = func() (err error) {
				trace, err = s.answerTraceRequest(c, who, trace, r.Requests)
				return err
			}
		case known && r.Op == ctl.OpDecisions:
			answer = func() (err error) {
				decisions, err = s.answerDecisionsRequest(c, who, decisions)
				return err
			}
		case known && r.Op == ctl.OpFaultDecisions && r.Weak != nil:
			answer = func() error { return s.reply(c, s.beginFaultDecisions(who, r.Weak, decisions)) }
		}
		if answer != nil {
			if s.answerCounted(c, who, answer) != nil {
				return
			}
			continue
		}
		a, sent, err := s.handleRequest(c, who, &r, fd)
		if err != nil {
			a = errorResponse(err)
		}
		rerr := s.reply(c, a)
		sent()
		if rerr != nil {
			return
		}
		if (r.Op == ctl.OpStop || r.Op == ctl.OpYield) && err == nil {
			s.stop()
		}
	}
}

// controlConnections holds the open connections of the control socket.
type controlConnections struct {
	sync.Mutex
	all map[*net.UnixConn]struct{}
}

// enqueue records an open connection until the call of done.
func (o *controlConnections) enqueue(c ctl.Conn) (done func()) {
	o.Lock()
	defer o.Unlock()
	if o.all == nil {
		o.all = map[*net.UnixConn]struct{}{}
	}
	o.all[c.UnixConn] = struct{}{}
	return func() {
		o.Lock()
		defer o.Unlock()
		delete(o.all, c.UnixConn)
	}
}

// close closes all connections. The kernel would close the connections only at the end of the process. A
// thread that waits for a program's memory can delay that end.
func (o *controlConnections) close() {
	o.Lock()
	defer o.Unlock()
	for c := range o.all {
		go c.Close() // Close can block on files that the client has sent
	}
}

// errorResponse returns the answer for an error.
func errorResponse(err error) *ctl.Response { return ctl.ErrorResponse(err).WithBuild() }

// reply sends an answer to a client.
func (s *Service) reply(c ctl.Conn, a *ctl.Response) error { return s.replyWithFD(c, a, nil) }

// replyWithFD sends an answer with a descriptor. The caller keeps the descriptor.
func (s *Service) replyWithFD(c ctl.Conn, a *ctl.Response, fd *os.File) error {
	c.SetWriteDeadline(time.Now().Add(s.restOfMessage))
	defer c.SetWriteDeadline(time.Time{})
	return c.Send(a, fd)
}

// handleRequest answers every request except the attachment of a program. It closes fd. The caller calls sent after it
// sent the answer or failed to send the answer. Until then the request counts against its user, since the answer
// takes memory.
func (s *Service) handleRequest(c ctl.Conn, who peer, r *ctl.Request, fd *os.File) (_ *ctl.Response, sent func(),
	err error) {
	sent = func() {}
	if err := who.authorize(r.Op); err != nil {
		c.Discard(fd)
		return nil, sent, err
	}
	if r.Op == ctl.OpCapture && r.Protocol == ctl.ProtocolVersion && fd != nil && r.Capture != nil {
		return &ctl.Response{}, sent, s.capturePackets(r.Capture, fd)
	}
	c.Discard(fd)
	done, err := s.countRequest(who)
	if err != nil {
		return nil, sent, err
	}
	// The request ends when it was executed and its answer was sent. A request may be executed long after the
	// client received ETIMEDOUT.
	var both atomic.Int32
	made := func() {
		if both.Add(1) == 2 {
			done()
		}
	}
	a, err := s.answerWithTimeout(r, func() (*ctl.Response, error) {
		defer made()
		return s.executeRequest(who, r)
	})
	return a, made, err
}

// countRequest counts a request of a user until the caller calls done. It returns EBUSY at the limit. Managers are
// exempt.
func (s *Service) countRequest(who peer) (done func(), err error) {
	if who.Manager {
		return func() {}, nil
	}
	done, ok := s.requests.countItem(who.Account, maxRequests)
	if !ok {
		return nil, fmt.Errorf("user %v has %d requests in progress, which is the limit: %w", who.Account, maxRequests,
			syscall.EBUSY)
	}
	return done, nil
}

// answerCounted calls answer, which executes a request and sends the answer, and counts the request until then. Beyond
// the limit it sends the error instead. It returns an error if the answer was not sent.
func (s *Service) answerCounted(c ctl.Conn, who peer, answer func() error) error {
	done, err := s.countRequest(who)
	if err != nil {
		return s.reply(c, errorResponse(err))
	}
	defer done()
	return answer()
}

// Do answers a request with the rights of a manager, such as this process, over the same path as a request that comes
// over the control socket. Requests that come with a descriptor, and requests to stop, have no effect here, and return
// EINVAL. Do may sleep as long as the request takes.
func (s *Service) Do(r *ctl.Request) (*ctl.Response, error) {
	who := peer{Principal: s.authority.InaccessiblePrincipal(os.Geteuid()), pid: os.Getpid(), uid: os.Geteuid()}
	who.Manager = true
	if err := who.authorize(r.Op); err != nil {
		return nil, err
	}
	if r.Op == ctl.OpStop || r.Op == ctl.OpYield {
		return nil, fmt.Errorf("%s: only a client of the control socket can end the service: %w", r.Op, syscall.EINVAL)
	}
	r.Protocol = ctl.ProtocolVersion
	return s.answerWithTimeout(r, func() (*ctl.Response, error) { return s.executeRequest(who, r) })
}

// answerWithTimeout returns the result of f, or ETIMEDOUT after requestTimeout. After a timeout f continues, and may be
// waiting for the memory of a program.
func (s *Service) answerWithTimeout(r *ctl.Request, f func() (*ctl.Response, error)) (*ctl.Response, error) {
	type result struct {
		a   *ctl.Response
		err error
	}
	done := make(chan result, 1)
	go func() {
		var res result
		defer func() {
			if p := recover(); p != nil {
				s.log.Error("panic in a request", "op", r.Op, "panic", p, "stack", string(debug.Stack()))
				res = result{err: fmt.Errorf("%s: internal error; see the log of the service: %w", ctl.ClipText(string(r.Op)),
					syscall.EIO)}
			}
			done <- res
		}()
		res.a, res.err = f()
	}()
	limit := s.requestTimeout
	if r.Reset != nil && r.Reset.Outage > 0 {
		limit += min(r.Reset.Outage, 24*time.Hour)
	}
	if r.Set != nil && r.Set.State == ctl.LinkFlap {
		limit += min(max(r.Set.Down, ctl.DefaultFlap), ctl.MaxFlap)
	}
	if r.Profile != nil {
		limit += min(max(r.Profile.Duration, 0), ctl.MaxProfileTime)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case res := <-done:
		return res.a, res.err
	case <-timer.C:
		return nil, fmt.Errorf("%s: not complete after %v, because access to a program's memory blocks; the request continues, and `verbena dev show` shows its progress: %w",
			ctl.ClipText(string(r.Op)), limit, syscall.ETIMEDOUT)
	}
}

// perUserCounter counts items by user.
type perUserCounter struct {
	mu    sync.Mutex
	users map[quota.ID]int
}

// countItem counts an item of a user until the caller calls done. countItem returns false if the user already has most
// of them.
func (q *perUserCounter) countItem(id quota.ID, most int) (done func(), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.users == nil {
		q.users = map[quota.ID]int{}
	}
	if q.users[id] >= most {
		return func() {}, false
	}
	q.users[id]++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.users[id]--; q.users[id] == 0 {
			delete(q.users, id)
		}
	}, true
}

func (s *Service) executeRequest(who peer, r *ctl.Request) (*ctl.Response, error) {
	if !r.Understood() {
		return nil, r.NewVersionError()
	}
	switch r.Op {
	case ctl.OpInfo, ctl.OpStop:
		s.programs.Lock()
		defer s.programs.Unlock()
		info := ctl.ServiceInfo{PID: os.Getpid(), Programs: s.programs.n, OnDemand: s.opts.OnDemand}
		if who.Manager {
			info.Web = s.opts.Web
		}
		return &ctl.Response{Info: &info}, nil
	case ctl.OpYield:
		return &ctl.Response{}, s.yield()
	case ctl.OpLinkAdd:
		if r.Link == nil {
			break
		}
		return &ctl.Response{}, s.links.createLink(*r.Link)
	case ctl.OpLinkDel:
		return &ctl.Response{}, s.links.deleteLink(r.Name)
	case ctl.OpLinkSet:
		if r.Set == nil {
			break
		}
		return &ctl.Response{}, s.links.changeLink(*r.Set)
	case ctl.OpLinkShow:
		links, err := s.Links()
		return &ctl.Response{Links: links}, err
	case ctl.OpResShow:
		return &ctl.Response{Contexts: s.listContexts(who.SeesAccount), Users: s.Users(who.SeesAccount)}, nil
	case ctl.OpDevReset:
		if r.Reset == nil {
			break
		}
		return &ctl.Response{}, s.DevReset(*r.Reset)
	case ctl.OpDevUnplug:
		return &ctl.Response{}, s.DevUnplug(r.Name)
	case ctl.OpDevPlug:
		return &ctl.Response{}, s.DevPlug(r.Name)
	case ctl.OpDevHang:
		return &ctl.Response{}, s.hangDevice(r.Name)
	case ctl.OpDevEvent:
		if r.Event == nil {
			break
		}
		return &ctl.Response{}, s.raiseDevEvent(*r.Event)
	case ctl.OpDevShow:
		return &ctl.Response{Devs: s.Devs(who.SeesAccount)}, nil
	case ctl.OpStatShow:
		stats, err := s.Stats(r.Name)
		return &ctl.Response{Stats: stats}, err
	case ctl.OpQPShow:
		qps, err := s.listQPs(r.Name)
		return &ctl.Response{QPs: qps}, err
	case ctl.OpQPTrace:
		if r.Trace == nil {
			break
		}
		t, err := s.traceQP(*r.Trace)
		return &ctl.Response{Trace: &t}, err
	case ctl.OpExplain:
		if r.Explain == nil {
			break
		}
		return &ctl.Response{Causes: s.failures.explain(who, *r.Explain)}, nil
	case ctl.OpProfile:
		if r.Profile == nil {
			break
		}
		b, err := collectProfile(s.ended, *r.Profile)
		return &ctl.Response{Profile: b}, err
	case ctl.OpFaultAdd:
		if r.Fault == nil {
			break
		}
		id, err := s.addFault(*r.Fault)
		return &ctl.Response{ID: id}, err
	case ctl.OpFaultShow:
		f, err := s.listFaults(r.Name)
		return &ctl.Response{Faults: f}, err
	case ctl.OpFaultClear:
		return &ctl.Response{}, s.clearFaults(r.Name, r.ID)
	case ctl.OpAttach, ctl.OpOpen, ctl.OpCapture, ctl.OpRequests, ctl.OpDecisions, ctl.OpFaultDecisions:
	default:
		return nil, r.NewVersionError()
	}
	return nil, fmt.Errorf("malformed request %q: %w", ctl.ClipText(string(r.Op)), syscall.EINVAL)
}

// attachProgram supervises a program until all its processes have ended. The launcher detects the end of the service by
// the close of the connection. The program continues if its launcher ends. decisions may be nil.
func (s *Service) attachProgram(c ctl.Conn, who peer, a *ctl.Attach, listener *os.File, decisions *decisionMemory) {
	process, err := who.openPidfd(c.UnixConn)
	if err != nil {
		_ = s.reply(c, errorResponse(fmt.Errorf("attach a program: %w", err)))
		c.Discard(listener)
		return
	}
	defer process.Close()
	done, err := s.programs.attach(s.ended, c)
	if err != nil {
		_ = s.reply(c, errorResponse(err))
		c.Discard(listener)
		return
	}
	defer done()
	launcher := &remoteHelper{c: c}
	info := who.sessionInfo(a, process, launcher)
	info.Notice = launcher.printNotice
	if a.Weak != nil {
		if info.Weak, err = weakConfig(a.Weak, decisions); err != nil {
			_ = s.reply(c, errorResponse(fmt.Errorf("attach a program: %w", err)))
			c.Discard(listener)
			return
		}
	}
	var theirs *os.File // the launcher's end of the trace
	var trace *callTrace
	if a.Sanitize != nil {
		if info.Checks, err = check.ParseProgramRules(a.Sanitize.Rules); err != nil {
			_ = s.reply(c, errorResponse(fmt.Errorf("attach a program: %w", err)))
			c.Discard(listener)
			return
		}
	}
	if a.Trace || a.Explain || a.Sanitize != nil {
		t, f, end, err := s.startTrace(who)
		if err != nil {
			_ = s.reply(c, errorResponse(fmt.Errorf("attach a program: %w", err)))
			c.Discard(listener)
			return
		}
		defer end()
		defer f.Close()
		theirs, trace = f, t
		if a.Trace {
			info.Trace = t.sendLine
		}
		info.Violation = func(pid int, name string, v check.Violation) { t.sendViolation(pid, name, &v) }
	}
	session, err := s.guests.Attach(listener, info)
	if err != nil {
		_ = s.reply(c, errorResponse(err))
		c.Discard(listener)
		return
	}
	err = s.replyWithFD(c,
		&ctl.Response{Attached: &ctl.AttachResult{Dir: session.Name(), Helped: session.UsesHelper(),
			Weak: a.Weak != nil, Sanitize: a.Sanitize != nil, Traced: session.NeedsPtracer()}}, theirs)
	if theirs != nil {
		theirs.Close() // the trace ends when the launcher closes its own end
	}
	if err != nil {
		s.log.Warn("attach a program", uidKey, who.uid, "err", err)
	}
	if a.Trace {
		defer s.failures.traces.add(session.Name(), trace)()
	}
	log := s.log.With(uidKey, who.uid, "pid", who.pid)
	log.Debug("program attached", "args", ctl.TruncateArgs(a.Args))
	began := time.Now()
	<-session.Done()
	if a.Trace {
		s.failures.awaitCauses()
	}
	if a.Explain {
		s.failures.explainSession(who, session.Name(), trace)
	}
	log.Debug("program ended", "args", ctl.TruncateArgs(a.Args), "after", time.Since(began).Round(time.Millisecond))
}

// serveDevice serves a device file to a program until it closes the connection. serveDevice returns descriptors that
// the program has sent, for the caller to close.
func (s *Service) serveDevice(c ctl.Conn, who peer, name string) (strays []int) {
	fail := func(err error) { _ = s.reply(c, errorResponse(err)) }
	process, err := who.openPidfd(c.UnixConn)
	if err != nil {
		fail(fmt.Errorf("open %q: %w", ctl.ClipText(name), err))
		return nil
	}
	done, err := s.programs.attach(s.ended, c)
	if err != nil {
		process.Close()
		fail(err)
		return nil
	}
	defer done()
	if !s.countOpenFile() {
		process.Close()
		fail(errServiceEnding)
		return nil
	}
	defer s.files.Done()
	f, info, err := s.remote.Open(remote.Client{PID: who.pid, UID: who.uid, Principal: who.Principal,
		Name: commandName(who.pid), Process: process}, name)
	if err != nil {
		fail(err)
		return nil
	}
	defer f.Close()
	if err := s.reply(c,
		&ctl.Response{Opened: &ctl.OpenResult{Device: info.Device, Driver: uint32(info.Driver), ABI: info.ABI}}); err != nil {
		return nil
	}
	log := s.log.With(uidKey, who.uid, "pid", who.pid, "dev", info.Device)
	log.Debug("device opened over the socket")
	if err := f.Serve(c.UnixConn); err != nil {
		log.Warn("disconnected a program that used a device over the socket", "err", err)
	}
	log.Debug("device closed over the socket")
	return f.UnexpectedDescriptors()
}

// countOpenFile counts an open file. countOpenFile returns false if the service is ending.
func (s *Service) countOpenFile() bool {
	s.programs.Lock()
	defer s.programs.Unlock()
	if s.ended.Err() != nil {
		return false
	}
	s.files.Add(1)
	return true
}

// commandName returns the command name of a process, for messages.
func commandName(pid int) string {
	b, err := procfile.ReadNoFollow("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// sessionInfo describes an attached program. The process and user IDs come from the kernel. The launcher provides
// only text for display.
func (p peer) sessionInfo(a *ctl.Attach, process *os.File, h supervisor.Helper) supervisor.SessionInfo {
	return supervisor.SessionInfo{LauncherPID: p.pid, UID: p.uid, Account: p.Account, Pidfd: process,
		Args: ctl.TruncateArgs(a.Args), Helper: h}
}
