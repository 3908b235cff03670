package rdmacm

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"verbena/ib"
	"verbena/rdmacm/msg"
)

// Conn is one side of a connection for a consumer in this process, with an RC queue pair. Conn manages the states
// of an [ID] and of the consumer's queue pair. The consumer creates the queue pair on the Conn's device, and
// destroys it:
//
//	active:   Resolve - create a queue pair - Init - post receives - Connect - use it
//	passive:  Listener.Accept - create a queue pair - Request.Init - post receives - Request.Accept - use it
//	end:      Done - destroy the queue pair - Close
//
// All methods are safe for concurrent use. None may be called in atomic context, because they take the manager's
// lock.
type Conn struct {
	id    *ID
	steps chan Event // events for Resolve and Connect

	established chan struct{}

	mu   sync.Mutex
	done chan struct{} // closed when the connection has ended
	err  error         // reason for the end
	up   bool          // established is closed
}

// errDisconnected is the error after either side has ended the connection.
var errDisconnected = fmt.Errorf("the connection was disconnected: %w", syscall.ECONNRESET)

// errLocalClosed: Close was called.
var errLocalClosed = fmt.Errorf("the connection was closed: %w", syscall.ECONNABORTED)

// RefusedError is the error of a connection that its peer has rejected. It wraps ECONNREFUSED.
type RefusedError struct {
	Reason msg.RejectReason
	// Data is the private data of the rejection, with the length of the message's field. It contains the peer's
	// data, then zeros.
	Data []byte
}

func (e *RefusedError) Error() string {
	switch e.Reason {
	case msg.ReasonConsumer:
		return "the peer rejected the connection"
	case msg.ReasonInvalidServiceID:
		return "the peer rejected the connection: no listener on the port"
	}
	return fmt.Sprintf("the peer rejected the connection: %v", e.Reason)
}

func (e *RefusedError) Unwrap() error { return syscall.ECONNREFUSED }

// Target is the destination of a connection.
type Target struct {
	// Addr is the address of the peer. 127.0.0.1 and ::1 refer to the device itself, unless a device has that
	// address.
	Addr netip.AddrPort
	// Source is the local address. The zero value means an address that reaches Addr, or an address of Device.
	Source netip.AddrPort
	// Device is the device to use; nil means the device of the source address.
	Device *ib.Device
	// ACKTimeout is the code of the local ACK timeout, 4.096 us * 2^ACKTimeout, for both sides of the connection. 0
	// means 17, which is 0.5 s.
	ACKTimeout uint8
}

// Resolve resolves the device and the addresses of a connection. Resolve returns ENODEV if there is no such device,
// EADDRNOTAVAIL if no device has the source address, or the error of the route. The caller must close the returned
// Conn. Resolve may sleep. (rdma_resolve_addr, rdma_resolve_route)
func (m *Manager) Resolve(ctx context.Context, to Target) (_ *Conn, err error) {
	c := newConn()
	if c.id, err = m.NewID(Options{Space: msg.PortSpaceTCP, Type: ib.QPTypeRC, Device: to.Device, Event: c.handleEvent,
		closed: c.recordEndReason}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.Close()
			err = fmt.Errorf("resolve %v: %w", to.Addr, err)
		}
	}()
	if err = c.id.SetOption(ACKTimeout, to.ACKTimeout); err != nil {
		return nil, err
	}
	if err = c.id.ResolveAddr(unmapAddrPort(to.Source), unmapAddrPort(to.Addr)); err != nil {
		return nil, err
	}
	if _, err = c.awaitEvent(ctx, AddrResolved); err != nil {
		return nil, err
	}
	if err = c.id.ResolveRoute(); err != nil {
		return nil, err
	}
	if _, err = c.awaitEvent(ctx, RouteResolved); err != nil {
		return nil, err
	}
	return c, nil
}

func newConn() *Conn {
	// Each event is received before the next call, so only a few events can be pending.
	return &Conn{steps: make(chan Event, 4), established: make(chan struct{}), done: make(chan struct{})}
}

// handleEvent processes an event of the ID.
func (c *Conn) handleEvent(_ *ID, e Event) {
	switch e.Type {
	case AddrResolved, RouteResolved, ConnectResponse:
		select {
		case c.steps <- e:
		default:
		}
	case Established:
		c.markEstablished()
	case TimewaitExit:
	case Rejected:
		c.recordEndReason(&RefusedError{Reason: msg.RejectReason(e.Status), Data: e.Data})
	case Disconnected:
		c.recordEndReason(errDisconnected)
	case DeviceRemoval:
		c.recordEndReason(fmt.Errorf("the device was removed: %w", syscall.ENODEV))
	case Unreachable:
		c.recordEndReason(fmt.Errorf("the peer does not respond: %w", syscall.Errno(-e.Status)))
	case AddrError:
		c.recordEndReason(e.err)
	default:
		c.recordEndReason(fmt.Errorf("%v: %w", e.Type, syscall.Errno(-e.Status)))
	}
}

func (c *Conn) markEstablished() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.up {
		c.up = true
		close(c.established)
	}
}

// recordEndReason records the first reason for the end of the connection.
func (c *Conn) recordEndReason(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = why
		close(c.done)
	}
}

// awaitEvent waits for the expected event and returns it.
func (c *Conn) awaitEvent(ctx context.Context, step EventType) (Event, error) {
	for {
		select {
		case e := <-c.steps:
			if e.Type == step {
				return e, nil
			}
		case <-c.done:
			return Event{}, c.Err()
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}

// Device returns the shared Device on which the queue pair must be created, or nil after the device was removed. A
// client of the core creates the queue pair on its own Device, for which Same returns true.
func (c *Conn) Device() *ib.Device { return c.id.Device() }

// LocalAddr returns the local address.
func (c *Conn) LocalAddr() netip.AddrPort { return c.id.View().Src }

// RemoteAddr returns the address of the peer.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.id.View().Dst }

// Init moves a queue pair from RESET to INIT. In INIT, receives can be posted. Init may sleep.
func (c *Conn) Init(qp *ib.QP) error {
	a, mask, err := c.id.QPAttr(ib.QPInit)
	if err != nil {
		return err
	}
	return qp.Modify(a, mask)
}

// moveToRTS moves a queue pair from INIT to RTS. If param is not nil, it holds the accepted parameters.
// (cma_modify_qp_rtr, cma_modify_qp_rts)
func (c *Conn) moveToRTS(qp *ib.QP, param *Param) error {
	// The transition to INIT is repeated, because the peer's access rights become known only now.
	for _, s := range [...]ib.QPState{ib.QPInit, ib.QPRTR, ib.QPRTS} {
		a, mask, err := c.id.QPAttr(s)
		if err != nil {
			return err
		}
		if param != nil {
			a.MaxDestRdAtomic, a.MaxRdAtomic = param.ResponderResources, param.InitiatorDepth
			a.AccessFlags = accessFlagsFor(param.ResponderResources)
		}
		if err := qp.Modify(a, mask); err != nil {
			return err
		}
	}
	return nil
}

// Connect connects a queue pair in state INIT. Connect returns the peer's parameters and private data once the
// queue pair is usable. data is private data of at most 56 bytes; QPN of Param is the queue pair's number. Connect
// returns a *[RefusedError] if the peer rejects the connection, ETIMEDOUT if the peer does not respond, ENODEV if
// the device is removed meanwhile. After an error the caller must close the connection. It may sleep.
// (rdma_connect)
func (c *Conn) Connect(ctx context.Context, qp *ib.QP, p Param, data []byte) (Param, []byte, error) {
	p.QPN = qp.Num()
	if err := c.id.Connect(p, data); err != nil {
		return Param{}, nil, err
	}
	answer, err := c.awaitEvent(ctx, ConnectResponse)
	if err != nil {
		return Param{}, nil, fmt.Errorf("connect to %v: %w", c.RemoteAddr(), err)
	}
	if err := c.moveToRTS(qp, nil); err != nil {
		c.id.Reject(msg.ReasonConsumer, nil) // unless the connection has ended by itself
		return Param{}, nil, fmt.Errorf("connect to %v: %w", c.RemoteAddr(), err)
	}
	if err := c.id.Complete(); err != nil {
		return Param{}, nil, fmt.Errorf("connect to %v: %w", c.RemoteAddr(), err)
	}
	c.markEstablished()
	return answer.Param, answer.Data, nil
}

// Establish reports that data have arrived from the peer over an accepted connection, because the peer's RTU may
// have been lost. It may sleep. (rdma_notify with IB_EVENT_COMM_EST)
func (c *Conn) Establish() {
	if c.id.Establish() == nil {
		c.markEstablished()
	}
}

// AwaitEstablished waits until the peer has confirmed an accepted connection. It returns Err if the connection ends
// before. It may sleep.
func (c *Conn) AwaitEstablished(ctx context.Context) error {
	select {
	case <-c.established:
		return nil
	case <-c.done:
		return c.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Done returns a channel that is closed when the connection has ended or has failed. The cause is the peer,
// Disconnect, Close, or the removal of the device. The Conn does not detect the loss of a peer. The queue pair
// detects the loss when it sends.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns the reason for the end of the connection, or nil before the end. The reason is [errDisconnected],
// *[RefusedError], ETIMEDOUT or ENODEV.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Disconnect ends the connection on both sides. Done is closed when the peer has confirmed the end, or has not
// responded. Disconnect does not change the queue pair. It may sleep. (rdma_disconnect)
func (c *Conn) Disconnect() error { return c.id.Disconnect() }

// Close ends the connection and notifies the peer, without waiting for the peer. Close does not change the queue
// pair. (rdma_destroy_id)
func (c *Conn) Close() {
	c.id.Destroy()
	c.recordEndReason(errLocalClosed)
}

// Listener receives connection requests.
type Listener struct {
	id       *ID
	requests chan *Request // has the capacity of the backlog

	mu   sync.Mutex
	done chan struct{}
	err  error
}

// Listen listens on a port; 0 means any free port. With an unspecified address, Listen listens on all devices,
// including future devices. backlog limits the requests that Accept has not returned or that are neither accepted
// nor rejected; 0 means 1024. Listen returns the errors of [ID.Bind], such as EADDRINUSE. The manager's
// owner may use ports below 1024. (rdma_bind_addr, rdma_listen)
func (m *Manager) Listen(at netip.AddrPort, backlog int) (_ *Listener, err error) {
	if backlog <= 0 {
		backlog = defaultBacklog
	}
	l := &Listener{requests: make(chan *Request, backlog), done: make(chan struct{})}
	l.id, err = m.NewID(Options{Space: msg.PortSpaceTCP, Type: ib.QPTypeRC, MayUseLowPorts: true, Event: l.handleEvent,
		closed: l.recordEndReason})
	if err != nil {
		return nil, err
	}
	if err = l.id.Bind(unmapAddrPort(at)); err == nil {
		err = l.id.Listen(backlog)
	}
	if err != nil {
		l.id.Destroy()
		return nil, fmt.Errorf("listen on %v: %w", at, err)
	}
	return l, nil
}

// handleEvent processes an event of the listener.
func (l *Listener) handleEvent(_ *ID, e Event) {
	switch e.Type {
	case ConnectRequest:
		r := &Request{conn: newConn(), Param: e.Param, Data: e.Data}
		r.conn.id = e.New
		e.New.takeOwnership(r.conn.handleEvent, r.conn.recordEndReason)
		l.mu.Lock()
		closed := l.err != nil
		if !closed {
			select {
			case l.requests <- r:
			default:
				closed = true
			}
		}
		l.mu.Unlock()
		if closed {
			r.conn.Close()
		}
	case DeviceRemoval:
		l.recordEndReason(fmt.Errorf("the device with the listener's address was removed: %w", syscall.ENODEV))
	}
}

func (l *Listener) recordEndReason(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = why
		close(l.done)
	}
}

// Addr returns the address and the port.
func (l *Listener) Addr() netip.AddrPort { return l.id.View().Src }

// Accept returns the next request. Accept returns ECONNABORTED after Close, ENODEV if the device with the
// listener's address has gone. It may sleep.
func (l *Listener) Accept(ctx context.Context) (*Request, error) {
	select {
	case r := <-l.requests:
		return r, nil
	case <-l.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return nil, l.err
}

// Close closes the listener. Close rejects requests that Accept has not returned. It may sleep.
func (l *Listener) Close() {
	l.id.Destroy()
	l.recordEndReason(fmt.Errorf("the listener was closed: %w", syscall.ECONNABORTED))
	for {
		select {
		case r := <-l.requests:
			r.conn.Close()
		default:
			return
		}
	}
}

// Request is a connection request, which must be accepted or rejected.
type Request struct {
	conn *Conn
	// Param holds the parameters that the peer requests, from this side's point of view.
	Param Param
	// Data is the peer's private data, with the length of the message's field, 56 bytes. It contains the peer's
	// data, then zeros.
	Data []byte
}

// Device is [Conn.Device].
func (r *Request) Device() *ib.Device { return r.conn.Device() }

// RemoteAddr returns the address of the peer.
func (r *Request) RemoteAddr() netip.AddrPort { return r.conn.RemoteAddr() }

// Init moves a queue pair from RESET to INIT. In INIT, receives can be posted. Init may sleep.
func (r *Request) Init(qp *ib.QP) error { return r.conn.Init(qp) }

// Accept moves a queue pair from INIT to RTS, and accepts the request. The resulting connection can send at once,
// and must be closed. [Conn.AwaitEstablished] waits for the peer. data is private data of at most 196 bytes. QPN of
// Param is the queue pair's number. After an error the request is rejected. It may sleep. (rdma_accept)
func (r *Request) Accept(qp *ib.QP, p Param, data []byte) (*Conn, error) {
	c := r.conn
	p.QPN = qp.Num()
	err := c.moveToRTS(qp, &p)
	if err == nil {
		err = c.id.Accept(p, data)
	}
	if err != nil {
		err = fmt.Errorf("accept from %v: %w", c.RemoteAddr(), err)
		r.Reject(nil)
		return nil, err
	}
	return c, nil
}

// Reject rejects the request with private data, which is truncated to 148 bytes. It may sleep. (rdma_reject)
func (r *Request) Reject(data []byte) {
	r.conn.id.Reject(msg.ReasonConsumer, data[:min(len(data), msg.MaxREJData)]) // no effect after its end
	r.conn.Close()
}
