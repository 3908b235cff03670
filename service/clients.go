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

	"verbena/internal/contain"
	"verbena/internal/ctl"
	"verbena/internal/kept"
	"verbena/internal/procfile"
	"verbena/internal/quota"
	"verbena/internal/rights"
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
	var logged time.Time // time of the last log message about failed accepts
	defer s.spare.allocate()()
	for {
		s.spare.refill()
		c, err := l.AcceptUnix()
		if err == nil {
			if !s.admissions.add(s, c) {
				time.Sleep(surplusPause)
			}
			continue
		}
		if s.ended.Err() != nil {
			return nil
		}
		switch {
		case errors.Is(err, syscall.ECONNABORTED):
		case isDescriptorShortage(err):
			s.acceptWithReserve(l, err)
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept clients: %w", err)
		default: // lack of memory or of another resource that the kernel limits
			if now := time.Now(); now.Sub(logged) >= time.Minute {
				logged = now
				s.log.Error("accept failed", "err", err)
			}
			time.Sleep(acceptPause)
		}
	}
}

// acceptPause is the time between two attempts to accept clients after an error.
const acceptPause = 100 * time.Millisecond

const (
	// maxUnheard limits the number of refused clients of one user that have not read the reason. Further refused
	// clients receive no reason.
	maxUnheard = 64
	// maxRefusing limits the number of refused clients that the service waits for at the same time.
	maxRefusing = 64
	// refusalTime limits the time for a refused client to read the answer and close its end.
	refusalTime = time.Second
)

// refuseClient sends the error to a client that is not served, and closes the connection. refuseClient starts a
// goroutine for this and does not sleep.
func (s *Service) refuseClient(uc *net.UnixConn, who peer, err error) {
	user := s.quota.Account(who.Account)
	c := ctl.Conn{UnixConn: uc, Rights: s.rights.QueueOf(user)}
	go func() {
		heard, counted := s.unheard.beginItem(who.Account, maxUnheard)
		if counted {
			contain.RecoverPanic(func() { s.sendRefusal(c, err) }, contain.LogPanic(s.log, "panic while refusing a client",
				uidKey, who.uid))
		}
		s.closeWhenRead(c, user, heard)
	}()
}

// closeWhenRead closes a connection. closeWhenRead calls ended, which ends a charge, when the client has read all data
// or closed its end. Until then the unread data takes memory of the service's control group.
func (s *Service) closeWhenRead(c ctl.Conn, user *quota.User, ended func()) {
	fd, err := rights.Duplicate(c)
	c.DrainAndClose()
	if err != nil {
		ended()
		return
	}
	s.kept.ObjectsOf(user).Keep(kept.UnreadSocket(fd), ended)
}

// sendRefusal sends a refused client the reason, and waits until the client closes its end. If the service closed the
// connection with an unread request, the kernel would reset the connection and discard the answer.
func (s *Service) sendRefusal(c ctl.Conn, why error) {
	c.SetDeadline(time.Now().Add(refusalTime))
	if c.Send(errorResponse(why), nil) != nil {
		return
	}
	select {
	case s.refusing <- struct{}{}:
		defer func() { <-s.refusing }()
	default:
		return
	}
	c.CloseWrite()
	for {
		var r ctl.Request
		fd, err := c.Receive(&r, ctl.Limits{Size: ctl.MaxRequest})
		if err != nil {
			return
		}
		c.Discard(fd)
	}
}

// admissions holds accepted connections until their clients are identified. admissions identifies the clients of a
// user one at a time, at a limited rate. A user who connects in a loop therefore costs the accepting thread only
// one accept(2) for each connection.
//
// The kernel reports the user ID of a client at once. The account of a user ID is known only after one of its
// clients was identified. Before the first identification, few clients of the ID may wait; afterwards its clients
// are queued for the account. For root and the service's own user, add first looks up the pid namespace, so that a
// container with user ID 0 cannot fill the queue of managers.
type admissions struct {
	mu       sync.Mutex
	of       map[quota.ID]*admissionQueue
	accounts map[quota.ID]quota.ID // accounts of user IDMap, where the account has another ID
	total    int                   // number of waiting clients
}

// admissionQueue is the queue of one user's clients.
type admissionQueue struct {
	waiting []*net.UnixConn
	known   bool      // at least one client of the ID was identified
	busy    bool      // a goroutine is identifying clients of this queue
	tokens  float64   // number of clients that can be identified without a pause
	at      time.Time // time of the last change of tokens
}

const (
	// maxAdmissions limits the number of waiting clients of one user; the service disconnects further clients.
	maxAdmissions = 256
	// maxUnknown limits the number of waiting clients of an ID without an identified client.
	maxUnknown = 16
	// maxAllAdmissions limits the number of waiting clients of all users.
	maxAllAdmissions = 2048
	// maxQueues limits the number of remembered users and subordinate IDMap.
	maxQueues = 1 << 16
	// admissionRate is the number of clients identified per second for one user after a burst.
	admissionRate  = 500
	admissionBurst = 1000
	// surplusPause is the time that the accepting thread pauses after a client of a full queue. The thread sleeps
	// for most of that time.
	surplusPause = 200 * time.Microsecond
)

// add queues a client, or disconnects the client and returns false. add does not sleep.
func (a *admissions) add(s *Service, c *net.UnixConn) bool {
	pid, uid, err := ctl.PeerCredentials(c)
	if err != nil {
		s.log.Warn("client", "err", err)
		go c.Close()
		return false
	}
	id := quota.ID{UID: uid}
	privileged := uid == 0 || uid == os.Geteuid()
	closing := s.rights.QueueOf(s.quota.User(uid))
	if privileged && pid != 0 {
		if id.Container, err = s.authority.PIDNamespace(pid); err != nil { // the client's process has ended
			go closing.DrainAndClose(c)
			return false
		}
	}
	privileged = privileged && id.Container == 0 // a client that may be a manager: other users must not fill its queue
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.queueOf(id)
	most := maxUnknown
	if q.known {
		most = maxAdmissions
	}
	if privileged {
		most = maxAdmissions
	}
	if len(q.waiting) >= most || a.total >= maxAllAdmissions && !privileged {
		go closing.DrainAndClose(c)
		return false
	}
	q.waiting = append(q.waiting, c)
	a.total++
	if !q.busy {
		q.busy = true
		go a.serveQueue(s, id, q)
	}
	return true
}

// queueOf returns the queue of a user. queueOf removes idle users if there are too many.
//
//verbena:held mu
func (a *admissions) queueOf(id quota.ID) *admissionQueue {
	if account, ok := a.accounts[id]; ok {
		id = account
	}
	if q := a.of[id]; q != nil {
		return q
	}
	if a.of == nil || len(a.of) >= maxQueues {
		busy := map[quota.ID]*admissionQueue{}
		for id, q := range a.of {
			if q.busy {
				busy[id] = q
			}
		}
		a.of = busy
	}
	q := &admissionQueue{tokens: admissionBurst, at: time.Now()}
	a.of[id] = q
	return q
}

// recordAccount records the account of a user ID.
func (a *admissions) recordAccount(id, account quota.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if account != id {
		if a.accounts == nil || len(a.accounts) >= maxQueues {
			a.accounts = map[quota.ID]quota.ID{}
		}
		a.accounts[id] = account // the queue of the ID remains until its waiting clients were served
	}
	a.queueOf(account).known = true
}

// serveQueue serves the clients of a queue until the queue is empty.
func (a *admissions) serveQueue(s *Service, id quota.ID, q *admissionQueue) {
	for {
		c, pause := a.dequeue(q)
		if c == nil {
			return
		}
		time.Sleep(pause)
		if account, ok := s.admitClient(c); ok {
			a.recordAccount(id, account)
		}
	}
}

// dequeue removes a client from a queue, and returns the time to wait before the client is served. dequeue returns nil
// if the queue is empty.
func (a *admissions) dequeue(q *admissionQueue) (c *net.UnixConn, pause time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(q.waiting) == 0 {
		q.waiting, q.busy = nil, false
		return nil, 0
	}
	c, q.waiting = q.waiting[0], q.waiting[1:]
	a.total--
	now := time.Now()
	q.tokens = min(q.tokens+now.Sub(q.at).Seconds()*admissionRate, admissionBurst) - 1
	q.at = now
	if q.tokens < 0 {
		pause = time.Duration(-q.tokens / admissionRate * float64(time.Second))
	}
	return c, pause
}

// admitClient serves a client if its user may have another connection. admitClient returns the account of the user, if
// known.
func (s *Service) admitClient(c *net.UnixConn) (_ quota.ID, ok bool) {
	who, err := s.peerOf(c)
	if isDescriptorShortage(err) { // the client used the last descriptor
		s.spare.warnShortage(s.log, err)
		s.spare.release()
		who, err = s.peerOf(c)
		s.admitWithReserve(c, who, err)
		return who.Account, err == nil
	}
	if err != nil {
		s.log.Debug("client", uidKey, who.uid, "err", err) // the usual cause is a disconnected client
		s.rights.QueueOf(s.quota.User(who.uid)).DrainAndClose(c)
		return quota.ID{}, false
	}
	s.admitPeer(c, who)
	return who.Account, true
}

func (s *Service) admitPeer(c *net.UnixConn, who peer) {
	user := s.quota.Account(who.Account)
	if err := user.Charge(quota.Connections, 1); err != nil {
		if !who.Manager {
			s.refuseClient(c, who, err)
			return
		}
		user = nil
	}
	go func() {
		account := s.quota.Account(who.Account)
		c := ctl.Conn{UnixConn: c, Rights: s.rights.QueueOf(account)}
		s.answerAll(c, who, s.firstMessage)
		s.closeWhenRead(c, account, func() {
			user.Release(quota.Connections, 1)
			s.spare.refill()
		})
	}()
}

// ServeConn answers a client with known credentials until the client closes the connection.
func (s *Service) ServeConn(c *net.UnixConn) {
	who, err := s.peerOf(c)
	if err != nil {
		s.log.Warn("client", uidKey, who.uid, "err", err)
		c.Close()
		return
	}
	s.serve(ctl.Conn{UnixConn: c, Rights: s.rights.QueueOf(s.quota.Account(who.Account))}, who, 0)
}

// serve answers a client like answerAll, and then closes the connection.
func (s *Service) serve(c ctl.Conn, who peer, within time.Duration) {
	defer c.DrainAndClose()
	s.answerAll(c, who, within)
}

// answerAll answers a client until the client closes the connection. The caller closes the service's end. The first
// request must arrive within the given time, unless the time is 0.
func (s *Service) answerAll(c ctl.Conn, who peer, within time.Duration) {
	defer s.connections.add(c)()
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic in a request; closing the connection",
				uidKey, who.uid, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	for {
		var r ctl.Request
		fd, err := c.Receive(&r, ctl.Limits{Size: ctl.MaxRequest, Whole: within, Rest: s.restOfMessage})
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, net.ErrClosed) {
				s.log.Warn("client", uidKey, who.uid, "err", err)
			}
			return
		}
		within = 0
		if r.Op == ctl.OpAttach && r.Protocol == ctl.ProtocolVersion && fd != nil && r.Attach != nil {
			s.attachProgram(c, who, r.Attach, fd)
			return
		}
		if r.Op == ctl.OpOpen && r.Protocol == ctl.ProtocolVersion && fd == nil {
			strays := s.serveDevice(c, who, r.Name)
			c.CloseRead() // makes a program's wait for an answer to its next request fail
			c.CloseWrite()
			c.Rights.CloseAll(strays)
			return
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

// connections holds the open connections of the control socket.
type connections struct {
	sync.Mutex
	all map[*net.UnixConn]struct{}
}

// add records an open connection until the call of done.
func (o *connections) add(c ctl.Conn) (done func()) {
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
func (o *connections) close() {
	o.Lock()
	defer o.Unlock()
	for c := range o.all {
		go c.Close() // Close can block on files that the client has sent
	}
}

// errorResponse returns the answer for an error.
func errorResponse(err error) *ctl.Response { return ctl.ErrorResponse(err).WithBuild() }

// reply sends an answer to a client.
func (s *Service) reply(c ctl.Conn, a *ctl.Response) error { return s.replyWith(c, a, nil) }

// replyWith sends an answer with a descriptor. The caller keeps the descriptor.
func (s *Service) replyWith(c ctl.Conn, a *ctl.Response, fd *os.File) error {
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
		return &ctl.Response{}, sent, s.capture(r.Capture, fd)
	}
	c.Discard(fd)
	made := func() {}
	if !who.Manager {
		done, ok := s.requests.beginItem(who.Account, maxRequests)
		if !ok {
			return nil, sent, fmt.Errorf("user %v has %d requests in progress, which is the limit: %w", who.Account,
				maxRequests, syscall.EBUSY)
		}
		// The request ends when it was executed and its answer was sent. A request may be executed long after the
		// client received ETIMEDOUT.
		var both atomic.Int32
		made = func() {
			if both.Add(1) == 2 {
				done()
			}
		}
		sent = made
	}
	a, err := s.answerWithTimeout(r, func() (*ctl.Response, error) {
		defer made()
		return s.executeRequest(who, r)
	})
	return a, sent, err
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

// userCount counts items by user.
type userCount struct {
	mu    sync.Mutex
	users map[quota.ID]int
}

// beginItem counts an item of a user until the caller calls done. beginItem returns false if the user already has most
// of them.
func (q *userCount) beginItem(id quota.ID, most int) (done func(), ok bool) {
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
		return nil, r.VersionError()
	}
	switch r.Op {
	case ctl.OpInfo, ctl.OpStop:
		s.programs.Lock()
		defer s.programs.Unlock()
		return &ctl.Response{Info: &ctl.ServiceInfo{PID: os.Getpid(), Programs: s.programs.n, OnDemand: s.opts.OnDemand}}, nil
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
	case ctl.OpProfile:
		if r.Profile == nil {
			break
		}
		b, err := s.collectProfile(*r.Profile)
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
	case ctl.OpAttach, ctl.OpOpen, ctl.OpCapture:
	default:
		return nil, r.VersionError()
	}
	return nil, fmt.Errorf("malformed request %q: %w", ctl.ClipText(string(r.Op)), syscall.EINVAL)
}

// attachProgram supervises a program until all its processes have ended. The launcher detects the end of the service by
// the close of the connection. The program continues if its launcher ends.
func (s *Service) attachProgram(c ctl.Conn, who peer, a *ctl.Attach, listener *os.File) {
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
	launcher := &launcher{c: c}
	info := who.sessionInfo(a, process, launcher)
	info.Notice = launcher.printNotice
	var theirs *os.File // the launcher's end of the trace
	if a.Trace {
		trace, f, end, err := s.startTrace(who)
		if err != nil {
			_ = s.reply(c, errorResponse(fmt.Errorf("attach a program: %w", err)))
			c.Discard(listener)
			return
		}
		defer end()
		defer f.Close()
		theirs, info.Trace = f, trace.sendLine
	}
	session, err := s.guests.Attach(listener, info)
	if err != nil {
		_ = s.reply(c, errorResponse(err))
		c.Discard(listener)
		return
	}
	err = s.replyWith(c,
		&ctl.Response{Attached: &ctl.AttachResult{Dir: session.Name(), Helped: session.UsesHelper(),
			Traced: session.NeedsPtracer()}}, theirs)
	if theirs != nil {
		theirs.Close() // the trace ends when the launcher closes its own end
	}
	if err != nil {
		s.log.Warn("attach a program", uidKey, who.uid, "err", err)
	}
	log := s.log.With(uidKey, who.uid, "pid", who.pid)
	log.Debug("program attached", "args", ctl.TruncateArgs(a.Args))
	began := time.Now()
	<-session.Done()
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
		fail(errEnding)
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
	b, err := procfile.Read("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// sessionInfo describes an attached program. The process and user IDMap come from the kernel. The launcher provides
// only text for display.
func (p peer) sessionInfo(a *ctl.Attach, process *os.File, h supervisor.Helper) supervisor.SessionInfo {
	return supervisor.SessionInfo{LauncherPID: p.pid, UID: p.uid, Account: p.Account, Pidfd: process,
		Args: ctl.TruncateArgs(a.Args), Helper: h}
}
