package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"reflect"
	"strconv"
	"syscall"
	"time"
)

// network is the name of the network of an Addr.
const network = "rdma"

// Addr is the address of an end of a connection.
type Addr struct {
	IP  netip.Addr // the GID
	QPN uint32     // of the queue pair
}

// Network returns "rdma".
func (Addr) Network() string { return network }

// String returns the address and the number of the queue pair, such as "10.0.0.1:17".
func (a Addr) String() string {
	return net.JoinHostPort(a.IP.String(), strconv.FormatUint(uint64(a.QPN), 10))
}

// ListenAddr is the address of a Listener.
type ListenAddr struct{ netip.AddrPort }

// Network returns "rdma".
func (ListenAddr) Network() string { return network }

// Dialer makes connections to Listeners. The zero Dialer is good for most.
type Dialer struct {
	Config
	// CM makes connections by the RDMA connection manager; the Listener must, too. Otherwise the two ends agree over TCP.
	CM bool
	// TCP makes the connection over which the two ends agree. With CM its Resolver alone is used.
	TCP net.Dialer
}

// Dial connects to a Listener with a zero Dialer.
func Dial(network, address string) (net.Conn, error) { return new(Dialer).Dial(network, address) }

// DialContext connects to a Listener with a zero Dialer.
func DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return new(Dialer).DialContext(ctx, network, address)
}

// Dial connects to a Listener.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext connects to the Listener at an address: of TCP, or with CM of the connection manager. The network is
// "rdma", or, for callers that know no other, "tcp", "tcp4" or "tcp6". The connection is a *Conn; it does not end with
// ctx. The error is a *net.OpError, which wraps ECONNREFUSED if nothing listens there or the Listener refuses, the
// error and the cause of ctx when that has ended, and context.DeadlineExceeded after Config.SetupTimeout.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, setupFailed("dial", network, address, err)
	}
	return c, nil
}

func (d *Dialer) dial(ctx context.Context, network, address string) (*Conn, error) {
	tcp, err := tcpNetwork(network)
	if err != nil {
		return nil, err
	}
	cfg, err := d.full()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.SetupTimeout)
	defer cancel()
	if d.CM {
		c, err := dialCM(ctx, d.TCP.Resolver, tcp, address, d.Config)
		if err != nil {
			return nil, ended(ctx, err)
		}
		return c, nil
	}
	nc, err := d.TCP.DialContext(ctx, tcp, address)
	if err != nil {
		return nil, ended(ctx, err)
	}
	defer nc.Close()
	return Client(ctx, nc, nil, d.Config)
}

func tcpNetwork(n string) (string, error) {
	switch n {
	case network:
		return "tcp", nil
	case "tcp", "tcp4", "tcp6":
		return n, nil
	}
	return "", net.UnknownNetworkError(n)
}

// setupFailed makes the error of Dial or Listen.
func setupFailed(op, network, address string, err error) error {
	var tcp *net.OpError
	if errors.As(err, &tcp) && tcp.Op == op {
		return err // it says all of that
	}
	return &net.OpError{Op: op, Net: network, Err: &setupError{address, err}}
}

// setupError is an error of set-up.
type setupError struct {
	address string
	err     error
}

func (e *setupError) Error() string { return fmt.Sprintf("%s: %v", e.address, e.err) }

func (e *setupError) Unwrap() error { return e.err }

// Timeout reports whether the time was over.
func (e *setupError) Timeout() bool {
	return errors.Is(e.err, context.DeadlineExceeded) || errors.Is(e.err, os.ErrDeadlineExceeded) ||
		errors.Is(e.err, syscall.ETIMEDOUT)
}

// contextError is the error of a set-up that has ended with its context. It wraps the context's own error, too, which
// tells a deadline from other ends.
type contextError struct{ why, end error }

// ended returns the error of a set-up that has failed with err: if that is due to the end of ctx, it wraps the cause of
// ctx. Package net does not know causes.
func ended(ctx context.Context, err error) error {
	var ne net.Error
	timeout := errors.As(err, &ne) && ne.Timeout()
	if at, ok := ctx.Deadline(); ok && timeout && !time.Now().Before(at) {
		select { // package net has a timer of its own, which may be first
		case <-ctx.Done():
		case <-time.After(time.Second): // a context that does not keep its deadline
		}
	}
	end, cause := ctx.Err(), context.Cause(ctx)
	switch {
	case end == nil:
		return err
	case reflect.ValueOf(cause).Comparable() && errors.Is(err, cause): // errors.Is panics for others
		return &contextError{err, end}
	case timeout, errors.Is(err, end):
		return &contextError{cause, end}
	}
	return err
}

func (e *contextError) Error() string { return e.why.Error() }

// Unwrap returns both errors.
func (e *contextError) Unwrap() []error { return []error{e.why, e.end} }

// Is makes a deadline of a context one of a connection, too.
func (e *contextError) Is(target error) bool {
	return target == os.ErrDeadlineExceeded && e.end == context.DeadlineExceeded
}
