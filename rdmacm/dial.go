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

// Conn is an end of a connection of a consumer in this process, by an RC queue pair. It carries an [ID] through its states, and the consumer's
// queue pair with it. The consumer makes the queue pair, on the Conn's device, and destroys it:
//
//	active:   Resolve - make a queue pair - Init - post receives - Connect - use it
//	passive:  Listener.Accept - make a queue pair - Request.Init - post receives - Request.Accept - use it
//	end:      Done - destroy the queue pair - Close
//
// All methods are safe for concurrent use, and none may be called in an atomic context: they take the manager's lock.
type Conn struct {
	id    *ID
	steps chan Event // what Resolve and Connect wait for

	established chan struct{}

	mu   sync.Mutex
	done chan struct{} // closed when the connection has ended
	err  error         // why
	up   bool          // established is closed
}

// ErrDisconnected: a connection has been ended, by either side.
var ErrDisconnected = fmt.Errorf("the connection has been ended: %w", syscall.ECONNRESET)

// errOwnEnd: Close was called.
var errOwnEnd = fmt.Errorf("the connection has been closed: %w", syscall.ECONNABORTED)

// RefusedError is the error of a connection that its peer has refused. It wraps ECONNREFUSED.
type RefusedError struct {
	Reason msg.Reason
	// Data is the private data of the refusal, as long as the message's field: what the peer sent, and then zeros.
	Data []byte
}

func (e *RefusedError) Error() string {
	switch e.Reason {
	case msg.ReasonConsumer:
		return "the peer refuses the connection"
	case msg.ReasonInvalidServiceID:
		return "the peer refuses the connection: nothing listens at the port"
	}
	return fmt.Sprintf("the peer refuses the connection: %v", e.Reason)
}

func (e *RefusedError) Unwrap() error { return syscall.ECONNREFUSED }

// Target is where a connection leads.
type Target struct {
	// Addr is the peer's. 127.0.0.1 and ::1 are the device itself, unless a device has that address.
	Addr netip.AddrPort
	// Source is the address of this host to begin from; zero: one that leads to Addr, or one of Device's.
	Source netip.AddrPort
	// Device is the device to use; nil: that of the source address.
	Device *ib.Device
	// ACKTimeout is the code of the time in which the peer acknowledges a packet, 4.096 us * 2^ACKTimeout, for both ends
	// of the connection; 0: 17, 0.5 s.
	ACKTimeout uint8
}

// Resolve finds the device and the addresses of a connection. ENODEV if there is no such device, EADDRNOTAVAIL if no
// device has the source address, or the error of the route. The result is to be closed. It may sleep. (rdma_resolve_addr,
// rdma_resolve_route)
func (m *Manager) Resolve(ctx context.Context, to Target) (_ *Conn, err error) {
	c := newConn()
	if c.id, err = m.NewID(Options{Space: msg.PortSpaceTCP, Type: ib.QPTypeRC, Device: to.Device, Event: c.event, closed: c.end}); err != nil {
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
	if err = c.id.ResolveAddr(plain(to.Source), plain(to.Addr)); err != nil {
		return nil, err
	}
	if _, err = c.await(ctx, AddrResolved); err != nil {
		return nil, err
	}
	if err = c.id.ResolveRoute(); err != nil {
		return nil, err
	}
	if _, err = c.await(ctx, RouteResolved); err != nil {
		return nil, err
	}
	return c, nil
}

func newConn() *Conn {
	// Each step is waited for before the next one begins, so that there are few that nobody has taken.
	return &Conn{steps: make(chan Event, 4), established: make(chan struct{}), done: make(chan struct{})}
}

// event takes the ID's events.
func (c *Conn) event(_ *ID, e Event) {
	switch e.Type {
	case AddrResolved, RouteResolved, ConnectResponse:
		select {
		case c.steps <- e:
		default:
		}
	case Established:
		c.nowUp()
	case TimewaitExit:
	case Rejected:
		c.end(&RefusedError{Reason: msg.Reason(e.Status), Data: e.Data})
	case Disconnected:
		c.end(ErrDisconnected)
	case DeviceRemoval:
		c.end(fmt.Errorf("the device has gone: %w", syscall.ENODEV))
	case Unreachable:
		c.end(fmt.Errorf("the peer does not answer: %w", syscall.Errno(-e.Status)))
	case AddrError:
		c.end(e.err)
	default:
		c.end(fmt.Errorf("%v: %w", e.Type, syscall.Errno(-e.Status)))
	}
}

func (c *Conn) nowUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.up {
		c.up = true
		close(c.established)
	}
}

// end notes the first reason for which the connection has ended.
func (c *Conn) end(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = why
		close(c.done)
	}
}

// await returns the event of a step.
func (c *Conn) await(ctx context.Context, step EventType) (Event, error) {
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

// Device returns everybody's Device of that on which the queue pair is to be made, nil if it has gone. A client of the core
// makes it on its own Device, which is the Same.
func (c *Conn) Device() *ib.Device { return c.id.Device() }

// LocalAddr is the address of this end.
func (c *Conn) LocalAddr() netip.AddrPort { return c.id.View().Src }

// RemoteAddr is the address of the peer.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.id.View().Dst }

// Init takes a queue pair from RESET to INIT, in which receives can be posted. It may sleep.
func (c *Conn) Init(qp *ib.QP) error {
	a, mask, err := c.id.QPAttr(ib.QPInit)
	if err != nil {
		return err
	}
	return qp.Modify(a, mask)
}

// bring takes a queue pair in INIT to RTS. param, if there is one, says what this end accepts. (cma_modify_qp_rtr,
// cma_modify_qp_rts)
func (c *Conn) bring(qp *ib.QP, param *Param) error {
	// Once more to INIT: what the peer may do is known only now.
	for _, s := range [...]ib.QPState{ib.QPInit, ib.QPRTR, ib.QPRTS} {
		a, mask, err := c.id.QPAttr(s)
		if err != nil {
			return err
		}
		if param != nil {
			a.MaxDestRdAtomic, a.MaxRdAtomic = param.ResponderResources, param.InitiatorDepth
			a.AccessFlags = accessFor(param.ResponderResources)
		}
		if err := qp.Modify(a, mask); err != nil {
			return err
		}
	}
	return nil
}

// Connect connects a queue pair, which is in INIT, and returns what the peer has answered when the queue pair can be used.
// Data is private data, 56 bytes at most, QPN of Param is the queue pair's. A *[RefusedError], ETIMEDOUT if the peer does
// not answer, ENODEV if the device goes meanwhile. After an error the connection is to be closed. It may sleep.
// (rdma_connect)
func (c *Conn) Connect(ctx context.Context, qp *ib.QP, p Param, data []byte) (Param, []byte, error) {
	p.QPN = qp.Num()
	if err := c.id.Connect(p, data); err != nil {
		return Param{}, nil, err
	}
	answer, err := c.await(ctx, ConnectResponse)
	if err != nil {
		return Param{}, nil, fmt.Errorf("connect to %v: %w", c.RemoteAddr(), err)
	}
	if err := c.bring(qp, nil); err != nil {
		c.id.Reject(msg.ReasonConsumer, nil) // or it has ended by itself
		return Param{}, nil, fmt.Errorf("connect to %v: %w", c.RemoteAddr(), err)
	}
	if err := c.id.Complete(); err != nil {
		return Param{}, nil, fmt.Errorf("connect to %v: %w", c.RemoteAddr(), err)
	}
	c.nowUp()
	return answer.Param, answer.Data, nil
}

// Establish says that data has come from the peer, for a connection that was accepted: the message that says so may have
// been lost. It may sleep. (rdma_notify with IB_EVENT_COMM_EST)
func (c *Conn) Establish() {
	if c.id.Establish() == nil {
		c.nowUp()
	}
}

// Established returns when the peer knows that it was accepted, or Err if the connection has ended before. It may sleep.
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

// Done is closed when the connection has ended, or cannot be established any more: by the peer, by Disconnect or Close, or
// because the device has gone. A peer that is lost without a word is not noticed here, but by the queue pair when it sends.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is why the connection has ended; nil: it has not. [ErrDisconnected], *[RefusedError], ETIMEDOUT, ENODEV.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Disconnect ends the connection at both ends. Done is closed when the peer has agreed, or has not answered. The queue pair
// is left as it is. It may sleep. (rdma_disconnect)
func (c *Conn) Disconnect() error { return c.id.Disconnect() }

// Close gives the connection up, and the peer is told. The queue pair is left as it is. It does not wait for the peer.
// (rdma_destroy_id)
func (c *Conn) Close() {
	c.id.Destroy()
	c.end(errOwnEnd)
}

// Listener takes requests for connections.
type Listener struct {
	id       *ID
	requests chan *Request // room for the backlog

	mu   sync.Mutex
	done chan struct{}
	err  error
}

// Listen takes requests at a port: 0 for any that is free; of an unspecified address, for all devices, also those that come
// later. backlog bounds requests that Accept has not returned, or that are neither accepted nor rejected; 0 stands for 1024.
// EADDRINUSE and its like as [ID.Bind]. The manager's owner may use ports below 1024. (rdma_bind_addr, rdma_listen)
func (m *Manager) Listen(at netip.AddrPort, backlog int) (_ *Listener, err error) {
	if backlog <= 0 {
		backlog = defaultBacklog
	}
	l := &Listener{requests: make(chan *Request, backlog), done: make(chan struct{})}
	l.id, err = m.NewID(Options{Space: msg.PortSpaceTCP, Type: ib.QPTypeRC, MayUseLowPorts: true, Event: l.event, closed: l.end})
	if err != nil {
		return nil, err
	}
	if err = l.id.Bind(plain(at)); err == nil {
		err = l.id.Listen(backlog)
	}
	if err != nil {
		l.id.Destroy()
		return nil, fmt.Errorf("listen at %v: %w", at, err)
	}
	return l, nil
}

// event takes the listener's events.
func (l *Listener) event(_ *ID, e Event) {
	switch e.Type {
	case ConnectRequest:
		r := &Request{conn: newConn(), Param: e.Param, Data: e.Data}
		r.conn.id = e.New
		e.New.own(r.conn.event, r.conn.end)
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
		l.end(fmt.Errorf("the device with the listener's address has gone: %w", syscall.ENODEV))
	}
}

func (l *Listener) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = why
		close(l.done)
	}
}

// Addr is the address and the port.
func (l *Listener) Addr() netip.AddrPort { return l.id.View().Src }

// Accept returns the next request. ECONNABORTED once Close was called, ENODEV when the device has gone whose address the
// listener has. It may sleep.
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

// Close ends the listener. Requests that Accept has not returned are refused. It may sleep.
func (l *Listener) Close() {
	l.id.Destroy()
	l.end(fmt.Errorf("the listener has been closed: %w", syscall.ECONNABORTED))
	for {
		select {
		case r := <-l.requests:
			r.conn.Close()
		default:
			return
		}
	}
}

// Request is a request for a connection. It is to be accepted or rejected.
type Request struct {
	conn *Conn
	// Param is what the peer asks for, as this end is to set it.
	Param Param
	// Data is the peer's private data, as long as the message's field, 56 bytes: what the peer sent, and then zeros.
	Data []byte
}

// Device is [Conn.Device].
func (r *Request) Device() *ib.Device { return r.conn.Device() }

// RemoteAddr is the address of the peer.
func (r *Request) RemoteAddr() netip.AddrPort { return r.conn.RemoteAddr() }

// Init takes a queue pair from RESET to INIT, in which receives can be posted. It may sleep.
func (r *Request) Init(qp *ib.QP) error { return r.conn.Init(qp) }

// Accept takes a queue pair, which is in INIT, to RTS, and tells the peer. The result can send at once, and is to be closed;
// [Conn.Established] waits for the peer. Data is private data, 196 bytes at most, QPN of Param is the queue pair's. After an
// error the request is rejected. It may sleep. (rdma_accept)
func (r *Request) Accept(qp *ib.QP, p Param, data []byte) (*Conn, error) {
	c := r.conn
	p.QPN = qp.Num()
	err := c.bring(qp, &p)
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

// Reject refuses the request with private data of 148 bytes at most, of which what is more is left out. It may sleep.
// (rdma_reject)
func (r *Request) Reject(data []byte) {
	r.conn.id.Reject(msg.ReasonConsumer, data[:min(len(data), msg.MaxREJData)]) // unless it has ended by itself
	r.conn.Close()
}
