package service

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"verbena/internal/quota"
	"verbena/supervisor"
)

const (
	// firstMessage bounds the wait for a client's first request, which verbena sends at once.
	firstMessage = 10 * time.Second
	// restOfMessage bounds the time from the beginning of a message to its end, for what is received and sent.
	restOfMessage = 10 * time.Second
	// requestTimeout bounds what a request may take; see bounded.
	requestTimeout = CloseTimeout
	// maxRequests is how many requests of one user are being answered at a time, managers excepted.
	maxRequests = 8
	// maxArgs is how much of a program's arguments is kept, for people to read.
	maxArgs = 4096
)

// Serve answers clients of l until Stop, a client's request to stop, or idleness. It closes l.
func (s *Service) Serve(l *Listener) error {
	go func() {
		s.waitUntilOver()
		s.stop()
		l.Close()
	}()
	var spare spare
	var logged time.Time // that there are no descriptors
	defer spare.release()
	for {
		spare.fill()
		c, err := l.AcceptUnix()
		if err == nil {
			s.admit(c)
			continue
		}
		if s.ended.Err() != nil {
			return nil
		}
		switch {
		case errors.Is(err, syscall.ECONNABORTED):
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
			if now := time.Now(); now.Sub(logged) >= time.Minute {
				logged = now
				s.log.Warn("only managers are served", "err", err)
			}
			s.acceptWithSpare(l, &spare)
		default:
			return fmt.Errorf("accept clients: %w", err)
		}
	}
}

// spare are descriptors for managers, when there are no others.
type spare struct{ files []*os.File }

const spareDescriptors = 16

func (p *spare) fill() {
	for len(p.files) < spareDescriptors {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return
		}
		p.files = append(p.files, f)
	}
}

func (p *spare) release() {
	for _, f := range p.files {
		f.Close()
	}
	p.files = nil
}

// acceptWithSpare answers one client without descriptors to spare: a manager as ever, and others that they are to come
// again. It takes some time, so that the caller does not spin.
func (s *Service) acceptWithSpare(l *Listener, p *spare) {
	const pause = 50 * time.Millisecond
	p.release()
	l.SetDeadline(time.Now().Add(pause)) // there may be no client
	defer l.SetDeadline(time.Time{})
	c, err := l.AcceptUnix()
	if err != nil {
		time.Sleep(pause) // or no descriptor has come free
		return
	}
	if who, err := peerOf(c); err == nil && who.manages() {
		s.admit(c)
		return
	}
	refuse(c, fmt.Errorf("the service has no file descriptor left (RLIMIT_NOFILE): %w", syscall.EMFILE))
}

// refuse answers a client that gets no more.
func refuse(c *net.UnixConn, err error) {
	defer c.Close()
	c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)) // it fits into the socket's buffer
	_ = conn{UnixConn: c}.send(failure(err), nil)
}

// admit serves a client, as far as its user may have another connection.
func (s *Service) admit(c *net.UnixConn) {
	who, err := peerOf(c)
	if err != nil {
		s.log.Warn("client", "err", err)
		c.Close()
		return
	}
	s.admitPeer(c, who)
}

func (s *Service) admitPeer(c *net.UnixConn, who peer) {
	user := s.quota.User(who.uid)
	if err := user.Take(quota.Connections, 1); err != nil {
		if !who.manages() {
			refuse(c, err)
			return
		}
		user = nil
	}
	go func() {
		defer user.Give(quota.Connections, 1)
		s.serve(conn{UnixConn: c, closing: s.requests.closing(who.uid)}, who, firstMessage)
	}()
}

// ServeConn answers one client, which is known, until it closes the connection.
func (s *Service) ServeConn(c *net.UnixConn) {
	who, err := peerOf(c)
	if err != nil {
		s.log.Warn("client", "err", err)
		c.Close()
		return
	}
	s.serve(conn{UnixConn: c}, who, 0)
}

// serve answers a client until it closes the connection. Its first request has to come within the time, if that is not
// 0.
func (s *Service) serve(c conn, who peer, within time.Duration) {
	defer c.Close()
	defer s.connected(c)()
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("a request made the service panic; the connection is closed",
				uidKey, who.uid, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	for {
		var r Request
		fd, err := c.receiveWithin(&r, maxRequest, within, restOfMessage)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, net.ErrClosed) {
				s.log.Warn("client", uidKey, who.uid, "err", err)
			}
			return
		}
		within = 0
		if r.Op == OpAttach && r.Protocol == protocol && fd != nil && r.Attach != nil {
			s.attach(c, who, r.Attach, fd)
			return
		}
		a, err := s.request(c, who, &r, fd)
		if err != nil {
			a = failure(err)
		}
		if err := s.reply(c, a); err != nil {
			return
		}
		if (r.Op == OpStop || r.Op == OpYield) && err == nil {
			s.stop()
		}
	}
}

// connected notes a connection, until done.
func (s *Service) connected(c conn) (done func()) {
	s.connections.Lock()
	defer s.connections.Unlock()
	if s.connections.all == nil {
		s.connections.all = map[*net.UnixConn]struct{}{}
	}
	s.connections.all[c.UnixConn] = struct{}{}
	return func() {
		s.connections.Lock()
		defer s.connections.Unlock()
		delete(s.connections.all, c.UnixConn)
	}
}

// disconnect closes every connection. The kernel does so only when the process has ended, which a thread that waits for a
// program's memory can hold up.
func (s *Service) disconnect() {
	s.connections.Lock()
	defer s.connections.Unlock()
	for c := range s.connections.all {
		c.Close()
	}
}

// reply sends an answer to a client, which may not read it.
func (s *Service) reply(c conn, a *Response) error { return s.replyWith(c, a, nil) }

// replyWith does so, with a descriptor, which stays the caller's.
func (s *Service) replyWith(c conn, a *Response, fd *os.File) error {
	c.SetWriteDeadline(time.Now().Add(restOfMessage))
	defer c.SetWriteDeadline(time.Time{})
	return c.send(a, fd)
}

// request answers what is not the attachment of a program. It closes fd.
func (s *Service) request(c conn, who peer, r *Request, fd *os.File) (*Response, error) {
	if err := who.authorize(r.Op); err != nil {
		c.closing.close(fd)
		return nil, err
	}
	if r.Op == OpCapture && r.Protocol == protocol && fd != nil && r.Capture != nil {
		return &Response{}, s.Capture(r.Capture, fd)
	}
	c.closing.close(fd)
	if !who.manages() {
		done, err := s.requests.begin(who.uid)
		if err != nil {
			return nil, err
		}
		return s.bounded(r, func() (*Response, error) {
			defer done()
			return s.answer(who, r)
		})
	}
	return s.bounded(r, func() (*Response, error) { return s.answer(who, r) })
}

// bounded returns what f does, or ETIMEDOUT after requestTimeout: f, which a program's memory may hold up, then goes
// on.
func (s *Service) bounded(r *Request, f func() (*Response, error)) (*Response, error) {
	type result struct {
		a   *Response
		err error
	}
	done := make(chan result, 1)
	go func() {
		var res result
		defer func() {
			if p := recover(); p != nil {
				s.log.Error("a request made the service panic", "op", r.Op, "panic", p, "stack", string(debug.Stack()))
				res = result{err: fmt.Errorf("%s: the service has failed; its log says how: %w", clip(string(r.Op)), syscall.EIO)}
			}
			done <- res
		}()
		res.a, res.err = f()
	}()
	limit := s.requestTimeout
	if r.Reset != nil && r.Reset.Outage > 0 {
		limit += min(r.Reset.Outage, 24*time.Hour)
	}
	if r.Profile != nil {
		limit += min(max(r.Profile.Duration, 0), MaxProfileTime)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case res := <-done:
		return res.a, res.err
	case <-timer.C:
		return nil, fmt.Errorf("%s: not done after %v, since a program's memory does not answer; it goes on, and `verbena dev show` tells how far it is: %w",
			clip(string(r.Op)), limit, syscall.ETIMEDOUT)
	}
}

// requestCount counts the requests of users that are being answered, and bounds how many descriptors are being closed.
type requestCount struct {
	mu       sync.Mutex
	users    map[int]int
	closings map[int]closing // of all users that have connected
}

// closing returns what bounds a user's descriptors.
func (q *requestCount) closing(uid int) closing {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closings == nil {
		q.closings = map[int]closing{}
	}
	c := q.closings[uid]
	if c == nil {
		c = make(closing, maxClosing)
		q.closings[uid] = c
	}
	return c
}

// begin counts one more, until done; EBUSY if the user has too many.
func (q *requestCount) begin(uid int) (done func(), err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.users == nil {
		q.users = map[int]int{}
	}
	if n := q.users[uid]; n >= maxRequests {
		return nil, fmt.Errorf("%d requests of user %d are being answered, which is the limit: %w", n, uid, syscall.EBUSY)
	}
	q.users[uid]++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.users[uid]--; q.users[uid] == 0 {
			delete(q.users, uid)
		}
	}, nil
}

func (s *Service) answer(who peer, r *Request) (*Response, error) {
	if r.Protocol != protocol && r.Op != OpStop { // which has always been the same, and is the way out
		return nil, fmt.Errorf("the running service speaks protocol %d, this command %d: they are of different versions; end the service with `verbena stop`, or kill process %d: %w",
			protocol, r.Protocol, os.Getpid(), syscall.EPROTO)
	}
	switch r.Op {
	case OpInfo, OpStop:
		s.programs.Lock()
		defer s.programs.Unlock()
		return &Response{Info: &Info{PID: os.Getpid(), Programs: s.programs.n, OnDemand: s.opts.OnDemand}}, nil
	case OpYield:
		return &Response{}, s.yield()
	case OpLinkAdd:
		if r.Link == nil {
			break
		}
		return &Response{}, s.LinkAdd(*r.Link)
	case OpLinkDel:
		return &Response{}, s.LinkDel(r.Name)
	case OpLinkShow:
		links, err := s.Links()
		return &Response{Links: links}, err
	case OpResShow:
		return &Response{Contexts: who.visible(s.Resources()), Users: s.Users(who.sees)}, nil
	case OpDevReset:
		if r.Reset == nil {
			break
		}
		return &Response{}, s.DevReset(*r.Reset)
	case OpDevUnplug:
		return &Response{}, s.DevUnplug(r.Name)
	case OpDevPlug:
		return &Response{}, s.DevPlug(r.Name)
	case OpDevHang:
		return &Response{}, s.DevHang(r.Name)
	case OpDevShow:
		return &Response{Devs: s.Devs(who.sees)}, nil
	case OpStatShow:
		stats, err := s.Stats(r.Name)
		return &Response{Stats: stats}, err
	case OpQPShow:
		qps, err := s.QPs(r.Name)
		return &Response{QPs: qps}, err
	case OpQPTrace:
		if r.Trace == nil {
			break
		}
		t, err := s.QPTrace(*r.Trace)
		return &Response{Trace: &t}, err
	case OpProfile:
		if r.Profile == nil {
			break
		}
		b, err := s.Profile(*r.Profile)
		return &Response{Profile: b}, err
	case OpFaultAdd:
		if r.Fault == nil {
			break
		}
		id, err := s.FaultAdd(*r.Fault)
		return &Response{ID: id}, err
	case OpFaultShow:
		f, err := s.Faults(r.Name)
		return &Response{Faults: f}, err
	case OpFaultClear:
		return &Response{}, s.FaultClear(r.Name, r.ID)
	}
	return nil, fmt.Errorf("malformed request %q: %w", clip(string(r.Op)), syscall.EINVAL)
}

// attach supervises a program until all its processes have ended. The connection only tells the launcher that
// the service lives; a launcher that dies does not end its program.
func (s *Service) attach(c conn, who peer, a *Attach, listener *os.File) {
	process, err := who.process(c.UnixConn)
	if err != nil {
		_ = s.reply(c, failure(fmt.Errorf("attach a program: %w", err)))
		c.closing.close(listener)
		return
	}
	defer process.Close()
	done, err := s.attached(c)
	if err != nil {
		_ = s.reply(c, failure(err))
		c.closing.close(listener)
		return
	}
	defer done()
	info := who.session(a, process, &launcher{c: c})
	var theirs *os.File // of the trace
	if a.Trace {
		trace, f, end, err := s.startTrace(who)
		if err != nil {
			_ = s.reply(c, failure(fmt.Errorf("attach a program: %w", err)))
			c.closing.close(listener)
			return
		}
		defer end()
		defer f.Close()
		theirs, info.Trace = f, trace.line
	}
	session, err := s.guests.Attach(listener, info)
	if err != nil {
		_ = s.reply(c, failure(err))
		c.closing.close(listener)
		return
	}
	err = s.replyWith(c, &Response{Attached: &Attached{Dir: session.Dir(), Helped: session.Helped()}}, theirs)
	if theirs != nil {
		theirs.Close() // so that the trace ends when the launcher closes its end
	}
	if err != nil {
		s.log.Warn("attach a program", uidKey, who.uid, "err", err)
	}
	log := s.log.With(uidKey, who.uid, "pid", who.pid)
	log.Debug("program attached", "args", cutArgs(a.Args))
	began := time.Now()
	<-session.Done()
	log.Debug("program ended", "args", cutArgs(a.Args), "after", time.Since(began).Round(time.Millisecond))
}

// session describes a program that the peer hands over: by what the kernel says of the peer, and its own words only for
// what people read.
func (p peer) session(a *Attach, process *os.File, h supervisor.Helper) supervisor.SessionInfo {
	return supervisor.SessionInfo{LauncherPID: p.pid, UID: p.uid, Pidfd: process, Args: cutArgs(a.Args), Helper: h}
}

// cutArgs leaves so much of an argument vector as is fit for messages.
func cutArgs(args []string) []string {
	var short []string
	left := maxArgs
	for _, a := range args {
		if len(a)+1 > left {
			return append(short, strings.ToValidUTF8(a[:max(left-1, 0)], "")+"...")
		}
		short = append(short, a)
		left -= len(a) + 1
	}
	return short
}
