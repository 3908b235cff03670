package ucma

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/internal/quota"
	"verbena/rdmacm"
	"verbena/rdmacm/msg"
	"verbena/uapi/ucm"
	"verbena/umem"
)

// Caller is the issuer of one command.
type Caller interface {
	// Space is the address space of addresses in the command.
	Space() umem.Space
	// CMFile returns the file that a descriptor of the caller refers to, or EINVAL if it is not a file of this
	// package. It may sleep.
	CMFile(fd int) (*File, error)
	// MayConnect reports whether the caller may use a queue pair's number for a connection. With the number of
	// another user's queue pair, the caller would end that user's connections, because their peers would consider
	// them stale. It may sleep.
	MayConnect(dev *ib.Device, num uint32) bool
	// MayBindLowPorts reports whether the caller has CAP_NET_BIND_SERVICE. It may sleep.
	MayBindLowPorts() bool
}

// ErrNoEvent is the error of GET_EVENT while there is no event. It wraps EAGAIN.
var ErrNoEvent = fmt.Errorf("no event is queued: %w", syscall.EAGAIN)

// MaxBacklog limits the unread requests of a listener. (net.rdma_ucm.max_backlog)
const MaxBacklog = 1024

// Server holds the IDs of all files.
type Server struct {
	m      *rdmacm.Manager
	onVerb atomic.Pointer[func(VerbCall) error] // nil without a function
	report func(Report)                         // see OnReport

	mu     sync.Mutex
	ids    map[uint32]*idContext
	groups map[uint32]*groupMembership
	next   uint32
}

// NewServer creates a server for a connection manager, which must outlive the server.
func NewServer(m *rdmacm.Manager) *Server {
	return &Server{m: m, ids: map[uint32]*idContext{}, groups: map[uint32]*groupMembership{}}
}

// Config holds the parameters of an open file.
type Config struct {
	// User is charged for the IDs; nil means no charge.
	User *quota.User
	// PID and UID identify the process that opened the file, for display.
	PID, UID int
	// Session is the name of the process's session, or "", for reports of failures.
	Session string
	// Alive reports whether the process that opened the file exists; nil means that this is unknown. Alive must not
	// sleep.
	Alive func() bool
	// Ready is called with true when the first event is queued, and with false when the last event was read. Ready
	// must not sleep, nor call the File.
	Ready func(bool)
}

// File is an open file (struct ucma_file). File's methods are safe for concurrent use.
type File struct {
	srv    *Server
	cfg    Config
	ending atomic.Bool // Close was called

	// Under srv.mu.
	closed  bool
	ids     map[*idContext]struct{}
	events  []*unreadEvent
	waiters []*eventWaiter
}

// idContext is an ID of a program (struct ucma_context).
type idContext struct {
	id   uint32
	user *quota.User
	cm   *rdmacm.ID

	// Under Server.mu.
	file     *File
	uid      uint64 // 0 until the program has received the ID; before that it receives no events
	reported uint32 // number of events that the program has received
	removed  bool   // the device was removed
	gone     bool
	unread   int // number of unread events
	groups   []*groupMembership
}

// groupMembership is a multicast membership of a program (struct ucma_multicast).
type groupMembership struct {
	id       uint32
	uid      uint64
	ctx      *idContext
	member   *rdmacm.Group
	reported uint32
	left     bool
}

// unreadEvent is an unread event of a program (struct ucma_event).
type unreadEvent struct {
	ctx     *idContext
	group   *groupMembership
	request *idContext // for a request, the context of its ID
	resp    ucm.EventResp
}

// IDInfo describes an ID.
type IDInfo struct {
	ID       uint32
	PID, UID int      // IDs of the process that opened the file
	Owner    quota.ID // the user who is charged
	Space    msg.PortSpace
	Type     ib.QPType
	Session  string // Config.Session of the file
	View     rdmacm.View
}

// IDs describes all IDs, sorted by number. It may sleep.
func (s *Server) IDs() (list []IDInfo) {
	s.mu.Lock()
	ids := slices.SortedFunc(maps.Values(s.ids), func(a, b *idContext) int { return cmp.Compare(a.id, b.id) })
	files := make([]*File, len(ids))
	for i, c := range ids {
		files[i] = c.file
	}
	s.mu.Unlock()
	for i, c := range ids {
		list = append(list, IDInfo{
			ID: c.id, PID: files[i].cfg.PID, UID: files[i].cfg.UID, Owner: files[i].cfg.User.ID(),
			Session: files[i].cfg.Session, Space: c.cm.Space(),
			Type: c.cm.Type(), View: c.cm.View(),
		})
	}
	return list
}

// Open opens the file.
func (s *Server) Open(cfg Config) *File {
	return &File{srv: s, cfg: cfg, ids: map[*idContext]struct{}{}}
}

// Close destroys the file's IDs, and notifies the peers. Waiting calls return. Close does not sleep.
func (f *File) Close() {
	s := f.srv
	f.ending.Store(true)
	s.mu.Lock()
	f.closed = true
	ids := slices.Collect(maps.Keys(f.ids))
	s.dropIDs(ids...)
	s.wakeWaiters(f, len(f.waiters))
	s.mu.Unlock()
	for _, c := range ids {
		c.cm.Destroy()
	}
}

// unusedID returns an unused number. (xa_alloc)
//
//verbena:held mu
func (s *Server) unusedID() uint32 {
	for {
		s.next++
		if s.next == 1<<31 {
			s.next = 1
		}
		if s.ids[s.next] == nil && s.groups[s.next] == nil {
			return s.next
		}
	}
}

// addID assigns a number to an ID.
func (s *Server) addID(f *File, cm *rdmacm.ID, uid uint64) (*idContext, error) {
	if err := f.cfg.User.Charge(quota.CMIDs, 1); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.closed {
		f.cfg.User.Release(quota.CMIDs, 1)
		return nil, errFileClosed
	}
	c := &idContext{id: s.unusedID(), user: f.cfg.User, cm: cm, file: f, uid: uid}
	s.ids[c.id] = c
	f.ids[c] = struct{}{}
	return c, nil
}

var errFileClosed = fmt.Errorf("the file is closed: %w", syscall.EIO)

// dropIDs removes IDs from their program, with their unread events, and with requests that the program has not
// received yet. The caller must destroy the IDs of the connection manager. dropIDs visits each event only once for any
// number of IDs.
//
//verbena:held mu
func (s *Server) dropIDs(ids ...*idContext) {
	files := map[*File]struct{}{}
	for _, c := range ids {
		if c.gone {
			continue
		}
		c.gone = true
		files[c.file] = struct{}{}
		delete(s.ids, c.id)
		delete(c.file.ids, c)
		for _, g := range c.groups {
			delete(s.groups, g.id)
		}
		c.user.Release(quota.CMIDs, uint64(1+len(c.groups)))
	}
	var requests []*idContext
	for f := range files {
		f.events = slices.DeleteFunc(f.events, func(e *unreadEvent) bool {
			switch r := e.request; {
			case e.ctx.gone:
				if r != nil && !r.gone {
					requests = append(requests, r)
				}
				return true
			case r != nil && r.gone: // the program has guessed the request's number
				e.ctx.unread--
				return true
			}
			return false
		})
		s.signalReady(f)
	}
	if len(requests) > 0 {
		s.dropIDs(requests...)
		for _, r := range requests {
			r.cm.Destroy()
		}
	}
}

// signalReady reports to Config.Ready whether there are events.
//
//verbena:held mu
func (s *Server) signalReady(f *File) {
	if f.cfg.Ready != nil {
		f.cfg.Ready(len(f.events) > 0)
	}
}

// findID returns the ID with a number, and holds no lock. findID returns ENOENT if there is none, EINVAL if it belongs
// to another file, EIO if its device has gone.
func (f *File) findID(id uint32) (*idContext, error) {
	f.srv.mu.Lock()
	defer f.srv.mu.Unlock()
	return f.lookupID(id)
}

//verbena:held f.srv.mu
func (f *File) lookupID(id uint32) (*idContext, error) {
	c, err := f.lookupAnyID(id)
	if err == nil && c.removed {
		err = fmt.Errorf("ID %d: its device was removed: %w", id, syscall.EIO)
	}
	return c, err
}

//verbena:held f.srv.mu
func (f *File) lookupAnyID(id uint32) (*idContext, error) {
	c := f.srv.ids[id]
	switch {
	case c == nil:
		return nil, fmt.Errorf("ID %d does not exist: %w", id, syscall.ENOENT)
	case c.file != f:
		return nil, fmt.Errorf("ID %d belongs to another file: %w", id, syscall.EINVAL)
	}
	return c, nil
}

// Report is an event of a program's ID, or the rejection of a request of a peer.
type Report struct {
	User quota.ID
	PID  int // process that opened the file
	// Session is Config.Session.
	Session string
	// Event is an event of the ID with this number. View is the view of the ID; for ConnectRequest it is the view of the
	// new ID. They are zero if Rejection is set.
	ID    uint32
	Event rdmacm.Event
	View  rdmacm.View
	// Rejection is the rejected request of a peer, or nil. Ending is set if the file is being closed, for example because
	// its process has ended.
	Rejection *rdmacm.Rejection
	Ending    bool
}

// OnReport sets a function that is called with each event and each rejection. It must be called before the first
// Open. f must not sleep.
func (s *Server) OnReport(f func(Report)) {
	s.report = f
	s.m.OnRejection(func(x rdmacm.Rejection) {
		if o, ok := x.Owner.(*File); ok {
			f(Report{User: o.cfg.User.ID(), PID: o.cfg.PID, Session: o.cfg.Session, Rejection: &x, Ending: o.ending.Load()})
		}
	})
}

// reportEvent reports an event of an ID.
func (s *Server) reportEvent(c *idContext, e *rdmacm.Event) {
	if s.report == nil {
		return
	}
	of := c.cm
	if e.Type == rdmacm.ConnectRequest {
		of = e.New
	}
	s.mu.Lock()
	cfg := &c.file.cfg
	s.mu.Unlock()
	s.report(Report{User: c.user.ID(), PID: cfg.PID, Session: cfg.Session, ID: c.id, Event: *e, View: of.View()})
}

// handleEvent queues an event of an ID. (ucma_event_handler)
func (s *Server) handleEvent(c *idContext, e rdmacm.Event) {
	s.reportEvent(c, &e)
	if e.Type == rdmacm.ConnectRequest {
		s.queueRequest(c, e)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.gone {
		return
	}
	if e.Type == rdmacm.DeviceRemoval {
		c.removed = true
		defer c.cm.Destroy()
	}
	if c.uid == 0 {
		return // the program has not received the ID yet, and receives the error when it accepts
	}
	x := &unreadEvent{ctx: c, resp: ucm.EventResp{UID: c.uid, ID: c.id}}
	if e.Group != nil {
		i := slices.IndexFunc(c.groups, func(g *groupMembership) bool { return g.member == e.Group })
		if i < 0 {
			return // the program has left the group
		}
		x.group = c.groups[i]
		x.resp.UID, x.resp.ID = x.group.uid, x.group.id
	}
	x.encodeEvent(c.cm, &e)
	s.enqueueEvent(c.file, x)
}

// queueRequest queues a connection request, and assigns a number to its ID. (ucma_connect_event_handler)
func (s *Server) queueRequest(l *idContext, e rdmacm.Event) {
	s.mu.Lock()
	f := l.file
	s.mu.Unlock()
	c, err := s.addID(f, e.New, 0)
	if err != nil { // the user has too many IDs
		e.New.Destroy()
		return
	}
	e.New.SetEventFunc(func(_ *rdmacm.ID, e rdmacm.Event) { s.handleEvent(c, e) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.gone || l.removed || c.gone || c.file != l.file {
		s.dropIDs(c)
		c.cm.Destroy()
		return
	}
	x := &unreadEvent{ctx: l, request: c, resp: ucm.EventResp{UID: l.uid, ID: c.id}}
	x.encodeEvent(e.New, &e)
	s.enqueueEvent(l.file, x)
}

//verbena:held mu
func (s *Server) enqueueEvent(f *File, e *unreadEvent) {
	f.events = append(f.events, e)
	e.ctx.unread++
	s.signalReady(f)
	s.wakeWaiters(f, 1)
}

// encodeEvent encodes an event for the program.
func (x *unreadEvent) encodeEvent(id *rdmacm.ID, e *rdmacm.Event) {
	x.resp.Event, x.resp.Status = uint32(e.Type), uint32(e.Status)
	if id.IsDatagram() {
		p := ucm.UDParam{QPNum: e.Param.QPN, QKey: e.Param.QKey, AHAttr: userAHAttr(&e.AH)}
		p.PrivateDataLen = uint8(copy(p.PrivateData[:], e.Data))
		encodeResponse(x.resp.Param[:], &p)
		return
	}
	p := ucm.ConnParam{
		QPNum: e.Param.QPN, QKey: e.Param.QKey, SRQ: boolToUint8(e.Param.SRQ), ResponderResources: e.Param.ResponderResources,
		InitiatorDepth: e.Param.InitiatorDepth, FlowControl: boolToUint8(e.Param.FlowControl), RetryCount: e.Param.RetryCount,
		RNRRetryCount: e.Param.RNRRetryCount,
	}
	p.PrivateDataLen = uint8(copy(p.PrivateData[:], e.Data))
	encodeResponse(x.resp.Param[:], &p)
}

func boolToUint8(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// eventWaiter is a call that waits for an event.
type eventWaiter struct {
	wake func()
}

// AddWaiter registers wake for one call, at the next event or the end of the file. AddWaiter returns nil if the
// file has an event or is closed. wake must not sleep.
func (f *File) AddWaiter(wake func()) *eventWaiter {
	f.srv.mu.Lock()
	defer f.srv.mu.Unlock()
	if len(f.events) > 0 || f.closed {
		return nil
	}
	w := &eventWaiter{wake}
	f.waiters = append(f.waiters, w)
	return w
}

// CancelWait ends a wait. CancelWait returns true if wake will not be called.
func (f *File) CancelWait(w *eventWaiter) bool {
	f.srv.mu.Lock()
	defer f.srv.mu.Unlock()
	i := slices.Index(f.waiters, w)
	if i < 0 {
		return false
	}
	f.waiters = slices.Delete(f.waiters, i, i+1)
	return true
}

//verbena:held mu
func (s *Server) wakeWaiters(f *File, n int) {
	for range min(n, len(f.waiters)) {
		w := f.waiters[0]
		f.waiters = f.waiters[1:]
		w.wake()
	}
}

// TakenEvent is an event that was delivered to a program.
type TakenEvent struct {
	f *File
	e *unreadEvent
}

// takeEvent removes the oldest event from the queue.
func (f *File) takeEvent() (*TakenEvent, error) {
	s := f.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.closed {
		return nil, errFileClosed
	}
	if len(f.events) == 0 {
		return nil, ErrNoEvent
	}
	e := f.events[0]
	f.events = slices.Delete(f.events, 0, 1)
	e.ctx.unread--
	e.ctx.reported++
	if e.group != nil {
		e.group.reported++
	}
	s.signalReady(f)
	return &TakenEvent{f, e}, nil
}

// Requeue returns an event that has not reached the program to the queue, to be delivered again.
func (t *TakenEvent) Requeue() {
	s := t.f.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	e := t.e
	if e.ctx.gone {
		if r := e.request; r != nil && !r.gone {
			s.dropIDs(r)
			r.cm.Destroy()
		}
		return
	}
	e.ctx.reported--
	if e.group != nil {
		e.group.reported--
	}
	if e.group != nil && e.group.left || e.request != nil && e.request.gone {
		return // the program cannot use the event any more
	}
	e.ctx.unread++
	f := e.ctx.file
	f.events = slices.Insert(f.events, 0, e)
	s.signalReady(f)
	s.wakeWaiters(f, 1)
}

// parsePortSpace checks a port space and returns its queue pair type. (ucma_get_qp_type)
func parsePortSpace(ps uint16) (msg.PortSpace, error) {
	switch p := msg.PortSpace(ps); p {
	case msg.PortSpaceTCP, msg.PortSpaceUDP, msg.PortSpaceIPoIB, msg.PortSpaceIB:
		return p, nil
	}
	return 0, fmt.Errorf("port space %#x: %w", ps, syscall.EINVAL)
}
