package cm

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/verbs"
	"verbena/verbs/internal/cmid"
)

// Manager is a connection manager. All methods of a Manager are safe for concurrent use.
type Manager struct {
	b cmid.Backend

	mu     sync.Mutex
	closed bool
	open   map[closable]struct{} // the Conns and Listeners that have not ended
}

// closable is a Conn or a Listener.
type closable interface{ endWith(why error) }

// New creates a Manager on a backend. New is for packages that implement a backend.
func New(b cmid.Backend) *Manager { return &Manager{b: b, open: map[closable]struct{}{}} }

// Close closes the manager together with its connections and listeners. Close may be called again, and may sleep.
func (m *Manager) Close() error {
	m.mu.Lock()
	closed := m.closed
	m.closed = true
	left := m.open
	m.open = map[closable]struct{}{}
	m.mu.Unlock()
	if closed {
		return nil
	}
	for e := range left {
		e.endWith(errManager)
	}
	return m.b.Close()
}

// register registers a Conn or a Listener. unregister ends the registration.
func (m *Manager) register(e closable) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errManager
	}
	m.open[e] = struct{}{}
	return nil
}

func (m *Manager) unregister(e closable) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, e)
}

// ErrDisconnected is the error of a connection that one of the two sides has disconnected.
var ErrDisconnected = fmt.Errorf("verbs/cm: the connection has been disconnected: %w", syscall.ECONNRESET)

// errLocalClose: Close was called.
var errLocalClose = fmt.Errorf("verbs/cm: the connection has been closed: %w", syscall.ECONNABORTED)

var (
	errDeviceGone = fmt.Errorf("verbs/cm: the device has been removed: %w", syscall.ENODEV)
	errManager    = fmt.Errorf("verbs/cm: the manager has been closed: %w", verbs.ErrClosed)
)

// RefusedError is the error of a connection that its peer has rejected. It wraps ECONNREFUSED.
type RefusedError struct {
	Reason int    // reason code (IBA 12.6.7.2); 28: rejected by the program, 8: no listener
	Data   []byte // private data: the peer's data, padded with zeros to the length of the message's field
}

func (e *RefusedError) Error() string {
	switch e.Reason {
	case 28:
		return "verbs/cm: the peer has rejected the connection"
	case 8:
		return "verbs/cm: the peer has rejected the connection: nothing listens on the port"
	}
	return fmt.Sprintf("verbs/cm: the peer has rejected the connection, reason %d", e.Reason)
}

// Unwrap returns ECONNREFUSED.
func (e *RefusedError) Unwrap() error { return syscall.ECONNREFUSED }

// Param holds the parameters of a connection. The zero Param suits most connections. (struct rdma_conn_param)
type Param struct {
	// Reads is the maximum number of READs and atomic operations in flight in each direction. 0 means the device's
	// limit, up to 16.
	Reads int
	// Retries and RNRRetries have the same meaning as in [verbs.Path].
	Retries, RNRRetries int
}

// completeParam completes the parameters for a queue pair.
func (p Param) completeParam(qp *verbs.QP) (cmid.Param, error) {
	reads := p.Reads
	if reads == 0 {
		d, err := qp.Device().Query()
		if err != nil {
			return cmid.Param{}, err
		}
		reads = min(16, d.MaxQPReads, d.MaxQPInitReads)
	}
	if reads < 0 || reads > 255 {
		return cmid.Param{}, fmt.Errorf("verbs/cm: %d READs in flight are not within 0 to 255: %w", reads, syscall.EINVAL)
	}
	return cmid.Param{
		QPN: qp.Num(), ResponderResources: uint8(reads), InitiatorDepth: uint8(reads), RetryCount: retryCount(p.Retries),
		RNRRetryCount: retryCount(p.RNRRetries), SRQ: qp.Init().SRQ != nil,
	}, nil
}

func retryCount(n int) uint8 {
	switch {
	case n == 0:
		return 7
	case n < 0:
		return 0
	}
	return uint8(min(n, 7))
}

// Conn is one side of a connection. A Conn exists from address resolution on.
//
//	active:   Resolve - create a queue pair - Init - post receives - Connect - use it
//	passive:  Listener.Accept - create a queue pair - Request.Init - post receives - Request.Accept - use it
//	end:      Done - close the queue pair - Close
type Conn struct {
	m     *Manager
	id    cmid.ID
	steps chan cmid.Event // events for Resolve and Connect

	local, remote netip.AddrPort // set before a caller receives the Conn or the Request

	established chan struct{}
	done        chan struct{} // closed when the connection has ended

	mu  sync.Mutex
	up  bool  // established is closed
	err error // reason of the end; nil if the connection has not ended
}

func newConn(m *Manager) *Conn {
	return &Conn{m: m, steps: make(chan cmid.Event, 8), established: make(chan struct{}), done: make(chan struct{})}
}

// handleEvent processes an event of the ID.
func (c *Conn) handleEvent(e cmid.Event) {
	switch e.Type {
	case cmid.Established:
		c.markEstablished()
	case cmid.Disconnected:
		c.endWith(ErrDisconnected)
		go c.id.Disconnect() // replies to the peer; not allowed in an event function
	case cmid.DeviceRemoval:
		c.endWith(errDeviceGone)
	case cmid.TimewaitExit, cmid.AddrChange:
	case cmid.Unreachable, cmid.Rejected, cmid.ConnectError:
		c.mu.Lock()
		up := c.up
		c.mu.Unlock()
		if up {
			c.endWith(ErrDisconnected)
			return
		}
		c.endWith(eventError(e))
	default:
		select {
		case c.steps <- e:
		default: // there are more events than a connection can have
		}
	}
}

// eventError returns the error for an event that ends a connection attempt.
func eventError(e cmid.Event) error {
	switch {
	case e.Type == cmid.Rejected:
		return &RefusedError{Reason: int(e.Status), Data: e.Data}
	case e.Status < 0:
		return fmt.Errorf("verbs/cm: %w", syscall.Errno(-e.Status))
	}
	operation, event := "connect", fmt.Sprint(uint32(e.Type))
	switch e.Type {
	case cmid.AddrError:
		operation, event = "resolve address", "address error"
	case cmid.RouteError:
		operation, event = "resolve route", "route error"
	case cmid.ConnectError:
		event = "connect error"
	case cmid.Unreachable:
		event = "unreachable"
	}
	return fmt.Errorf("verbs/cm: %s: event %s with status %d: %w", operation, event, e.Status, syscall.EHOSTUNREACH)
}

func (c *Conn) markEstablished() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.up {
		c.up = true
		close(c.established)
	}
}

func (c *Conn) endWith(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = why
		close(c.done)
	}
}

// awaitEvent waits for an event or for the end of the connection.
func (c *Conn) awaitEvent(ctx context.Context, want, wrong cmid.Type) (cmid.Event, error) {
	for {
		select {
		case e := <-c.steps:
			switch e.Type {
			case want:
				return e, nil
			case wrong:
				return e, eventError(e)
			}
		case <-c.done:
			return cmid.Event{}, c.Err()
		case <-ctx.Done():
			return cmid.Event{}, context.Cause(ctx)
		}
	}
}

// Target is the destination of a connection.
type Target struct {
	Addr   netip.AddrPort
	Source netip.AddrPort // local address; zero: any address that reaches the destination
}

// Resolve resolves the addresses and the device of a connection. The caller must close the returned Conn. Resolve may
// sleep. (rdma_resolve_addr, rdma_resolve_route)
func (m *Manager) Resolve(ctx context.Context, to Target) (_ *Conn, err error) {
	c := newConn(m)
	if err := m.register(c); err != nil {
		return nil, err
	}
	if c.id, err = m.b.NewID(c.handleEvent); err != nil {
		m.unregister(c)
		return nil, err
	}
	defer func() {
		if err != nil {
			c.Close()
			err = fmt.Errorf("verbs/cm: resolve %v: %w", to.Addr, err)
		}
	}()
	if err := c.id.ResolveAddr(unmapAddrPort(to.Source), unmapAddrPort(to.Addr)); err != nil {
		return nil, err
	}
	if _, err := c.awaitEvent(ctx, cmid.AddrResolved, cmid.AddrError); err != nil {
		return nil, err
	}
	if err := c.id.ResolveRoute(); err != nil {
		return nil, err
	}
	if _, err := c.awaitEvent(ctx, cmid.RouteResolved, cmid.RouteError); err != nil {
		return nil, err
	}
	if err := c.storeAddresses(); err != nil {
		return nil, err
	}
	return c, nil
}

// storeAddresses stores the addresses of the ID, because the Conn needs them after the end of the ID.
func (c *Conn) storeAddresses() error {
	v, err := c.id.View()
	c.local, c.remote = v.Local, v.Remote
	return err
}

// unmapAddrPort unmaps an IPv4-mapped address.
func unmapAddrPort(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// NodeGUID returns the node GUID of the connection's device: see [verbs.DeviceAttr]. NodeGUID may sleep.
func (c *Conn) NodeGUID() (uint64, error) {
	v, err := c.id.View()
	return v.NodeGUID, err
}

// LocalAddr returns the local address. LocalAddr may be called after Close.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr returns the address of the peer. RemoteAddr may be called after Close.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// Init moves a queue pair of type RC from RESET to INIT. In INIT receives can be posted. Init may sleep.
func (c *Conn) Init(qp *verbs.QP) error {
	guid, err := c.NodeGUID()
	if err != nil {
		return err
	}
	d, err := qp.Device().Query()
	if err != nil {
		return err
	}
	if d.NodeGUID != guid {
		return fmt.Errorf("verbs/cm: QP %d is on %s, want the connection's device with node GUID %016x: %w", qp.Num(),
			qp.Device().Name(), guid, syscall.EINVAL)
	}
	return c.modifyQP(qp, verbs.Init, cmid.Param{}, false)
}

// modifyQP moves the queue pair to a state. p holds the local parameters, which the connection manager does not receive
// before Accept. (ucma_modify_qp_rtr, ucma_modify_qp_rts)
func (c *Conn) modifyQP(qp *verbs.QP, to verbs.QPState, p cmid.Param, accepts bool) error {
	a, mask, err := c.id.QPAttr(to)
	if err != nil {
		return err
	}
	a.State = to
	switch to {
	case verbs.Init:
		mask |= verbs.AttrAccess
		if a.Access = verbs.LocalWrite | verbs.RemoteWrite; p.ResponderResources > 0 {
			a.Access |= verbs.RemoteRead | verbs.RemoteAtomic
		}
	case verbs.RTR:
		if accepts {
			a.MaxPeerReads = p.ResponderResources
		}
	case verbs.RTS:
		if accepts {
			a.MaxReads = p.InitiatorDepth
		}
	}
	return qp.Modify(a, mask|verbs.AttrState)
}

// moveToRTS moves the queue pair from INIT to RTS. moveToRTS repeats the transition to INIT, because the peer's access
// rights were unknown before.
func (c *Conn) moveToRTS(qp *verbs.QP, p cmid.Param, accepts bool) error {
	for _, s := range []verbs.QPState{verbs.Init, verbs.RTR, verbs.RTS} {
		if err := c.modifyQP(qp, s, p, accepts); err != nil {
			return err
		}
	}
	return nil
}

// Connect establishes the connection and moves the queue pair to RTS. data, at most 56 bytes, is sent to the peer as
// private data. The result is the peer's private data. Connect returns a *RefusedError if the peer rejects the
// connection, and ETIMEDOUT if the peer does not respond. If ctx ends first, Connect returns and the attempt continues
// until Close. Connect may sleep. (rdma_connect)
func (c *Conn) Connect(ctx context.Context, qp *verbs.QP, p Param, data []byte) ([]byte, error) {
	param, err := p.completeParam(qp)
	if err != nil {
		return nil, err
	}
	if err := c.id.Connect(param, data); err != nil {
		return nil, err
	}
	e, err := c.awaitEvent(ctx, cmid.ConnectResponse, cmid.ConnectError)
	if err != nil {
		return nil, err
	}
	if err := c.moveToRTS(qp, param, false); err != nil {
		_ = c.id.Reject(nil)
		return nil, err
	}
	if err := c.id.Complete(); err != nil {
		return nil, err
	}
	c.markEstablished()
	return e.Data, nil
}

// Established waits until the connection is established. On the passive side, the connection is established after
// Accept, when the peer confirms it or sends the first message. Established may sleep.
func (c *Conn) Established(ctx context.Context) error {
	select {
	case <-c.established:
		return nil
	case <-c.done:
		return c.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Done returns a channel that is closed when the connection has ended or was rejected, or when its device has been
// removed. Err then returns the reason.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns the reason for the end of the connection. Err returns nil before the end.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Disconnect ends the connection. The owner must move the queue pair to the error state, or close the queue pair.
// Disconnect may sleep. (rdma_disconnect)
func (c *Conn) Disconnect() error { return c.id.Disconnect() }

// Close ends the connection and frees its resources. Close may be called again, and may sleep. (rdma_destroy_id)
func (c *Conn) Close() error {
	c.endWith(errLocalClose)
	c.m.unregister(c)
	c.id.Destroy()
	return nil
}

// Listener receives connection requests.
type Listener struct {
	m        *Manager
	id       cmid.ID
	addr     netip.AddrPort // set by Listen, because Addr may be called after the end of the ID
	requests chan *Request
	done     chan struct{}

	mu  sync.Mutex
	err error
}

// defaultBacklog is the default limit of requests that have not been accepted yet.
const defaultBacklog = 128

// Listen listens on an address and a port. The address may be unspecified, and port 0 means any free port. backlog
// limits the requests that Accept has not returned yet; 0 means 128. Listen may sleep. (rdma_bind_addr, rdma_listen)
func (m *Manager) Listen(at netip.AddrPort, backlog int) (*Listener, error) {
	fail := func(err error) (*Listener, error) { return nil, fmt.Errorf("verbs/cm: listen on %v: %w", at, err) }
	if backlog <= 0 {
		backlog = defaultBacklog
	}
	l := &Listener{m: m, requests: make(chan *Request, backlog), done: make(chan struct{})}
	if err := m.register(l); err != nil {
		return fail(err)
	}
	id, err := m.b.NewID(l.handleEvent)
	if err != nil {
		m.unregister(l)
		return fail(err)
	}
	l.id = id
	if err = l.bindAddr(at); err == nil {
		err = id.Listen(backlog)
	}
	if err != nil {
		m.unregister(l)
		id.Destroy()
		return fail(err)
	}
	return l, nil
}

// bindAddr binds the ID, and stores the resulting address and port.
func (l *Listener) bindAddr(at netip.AddrPort) error {
	if err := l.id.Bind(unmapAddrPort(at)); err != nil {
		return err
	}
	v, err := l.id.View()
	l.addr = v.Local
	return err
}

func (l *Listener) handleEvent(e cmid.Event) {
	switch e.Type {
	case cmid.ConnectRequest:
		r := &Request{Data: e.Data, peer: e.Param, conn: newConn(l.m)}
		r.conn.id = e.New
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.err == nil && l.m.register(r.conn) == nil {
			select {
			case l.requests <- r:
				return
			default:
			}
		}
		go r.Reject(nil) // not allowed in an event function
	case cmid.DeviceRemoval:
		l.endWith(errDeviceGone)
	}
}

func (l *Listener) endWith(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = why
		close(l.done)
	}
}

// Addr returns the address of the Listener. Addr may be called after Close.
func (l *Listener) Addr() netip.AddrPort { return l.addr }

// Accept waits for a connection request. The error is the cause of ctx, ErrClosed of package verbs, or ENODEV if the
// device of the listener has been removed. Accept may sleep.
func (l *Listener) Accept(ctx context.Context) (*Request, error) {
	select {
	case r := <-l.requests:
		if err := r.conn.storeAddresses(); err != nil {
			_ = r.Reject(nil)
			return nil, fmt.Errorf("verbs/cm: accept at %v: %w", l.addr, err)
		}
		return r, nil
	case <-l.done:
		return nil, l.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close closes the listener, and rejects the remaining requests. Close may be called again, and may sleep.
func (l *Listener) Close() error {
	l.endWith(errManager)
	l.m.unregister(l)
	for {
		select {
		case r := <-l.requests:
			r.Reject(nil)
		default:
			l.id.Destroy()
			return nil
		}
	}
}

// Request is a connection request. A Request must be accepted or rejected.
type Request struct {
	Data []byte // private data: the peer's data, padded with zeros to the length of the message's field
	peer cmid.Param
	conn *Conn

	answered atomic.Bool // set by Accept and Reject
}

// beginAnswer records that the request is being answered. beginAnswer returns EINVAL if the request has already been
// answered.
func (r *Request) beginAnswer() error {
	if r.answered.Swap(true) {
		return fmt.Errorf("verbs/cm: the request has already been answered: %w", syscall.EINVAL)
	}
	return nil
}

// NodeGUID returns the node GUID of the device that received the request. NodeGUID may sleep.
func (r *Request) NodeGUID() (uint64, error) { return r.conn.NodeGUID() }

// RemoteAddr returns the address of the peer. RemoteAddr may be called after Accept or Reject.
func (r *Request) RemoteAddr() netip.AddrPort { return r.conn.RemoteAddr() }

// Init moves a queue pair of type RC from RESET to INIT. In INIT receives can be posted. Init may sleep.
func (r *Request) Init(qp *verbs.QP) error { return r.conn.Init(qp) }

// Accept accepts the request and moves the queue pair to RTS. data, at most 196 bytes, is sent to the peer as private
// data. The connection is established when Conn.Established returns. The peer may send earlier. If Accept fails, the
// request is rejected. Accept returns EINVAL if the request has already been answered. Accept may sleep. (rdma_accept)
func (r *Request) Accept(qp *verbs.QP, p Param, data []byte) (*Conn, error) {
	if err := r.beginAnswer(); err != nil {
		return nil, err
	}
	c := r.conn
	param, err := p.completeParam(qp)
	if err == nil {
		// The value must not exceed the peer's request. (rdma_accept)
		param.ResponderResources = min(param.ResponderResources, r.peer.InitiatorDepth)
		param.InitiatorDepth = min(param.InitiatorDepth, r.peer.ResponderResources)
		c.id.Adopt(c.handleEvent)
		err = c.moveToRTS(qp, param, true)
	}
	if err == nil {
		err = c.id.Accept(param, data)
	}
	if err != nil {
		_ = r.rejectRequest(nil)
		return nil, err
	}
	return c, nil
}

// Reject rejects the request. data, at most 148 bytes, is sent to the peer as private data. Reject returns EINVAL if
// the request has already been answered. Reject may sleep. (rdma_reject)
func (r *Request) Reject(data []byte) error {
	if err := r.beginAnswer(); err != nil {
		return err
	}
	return r.rejectRequest(data)
}

func (r *Request) rejectRequest(data []byte) error {
	err := r.conn.id.Reject(data)
	r.conn.Close()
	return err
}
