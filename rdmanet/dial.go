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

// networkName is the name of the network in an Addr.
const networkName = "rdma"

// Addr is the address of one end of a connection.
type Addr struct {
	IP  netip.Addr // the GID
	QPN uint32     // number of the queue pair
}

// Network returns "rdma".
func (Addr) Network() string { return networkName }

// String returns the address and the queue pair number, such as "10.0.0.1:17".
func (a Addr) String() string {
	return net.JoinHostPort(a.IP.String(), strconv.FormatUint(uint64(a.QPN), 10))
}

// ListenAddr is the address of a Listener.
type ListenAddr struct{ netip.AddrPort }

// Network returns "rdma".
func (ListenAddr) Network() string { return networkName }

// Dialer connects to Listeners. The zero Dialer is ready to use.
type Dialer struct {
	Config
	// CM connects over the RDMA connection manager. The Listener must also use the connection manager. Without CM the
	// two ends exchange their parameters over TCP.
	CM bool
	// TCP dials the connection for the exchange of parameters. With CM, only the Resolver of TCP is used.
	TCP net.Dialer
}

// Dial connects to a Listener with the zero Dialer.
func Dial(network, address string) (net.Conn, error) { return new(Dialer).Dial(network, address) }

// DialContext connects to a Listener with the zero Dialer.
func DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return new(Dialer).DialContext(ctx, network, address)
}

// Dial connects to a Listener.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext connects to the Listener at an address. The address is a TCP address, or with CM an address of the
// connection manager. The network is "rdma". DialContext also accepts "tcp", "tcp4" and "tcp6", for callers with a
// fixed network name. The connection is a *Conn. The connection does not end with ctx.
//
// The error is a *net.OpError. The error wraps ECONNREFUSED if the address has no Listener or the Listener refuses the
// connection. If ctx has ended, the error wraps the error and the cause of ctx. After Config.SetupTimeout the error
// wraps context.DeadlineExceeded.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, newSetupOpError("dial", network, address, err)
	}
	return c, nil
}

func (d *Dialer) dial(ctx context.Context, network, address string) (*Conn, error) {
	tcp, err := tcpNetwork(network)
	if err != nil {
		return nil, err
	}
	cfg, err := d.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.SetupTimeout)
	defer cancel()
	if d.CM {
		c, err := dialCM(ctx, d.TCP.Resolver, tcp, address, d.Config)
		if err != nil {
			return nil, newSetupEndError(ctx, err)
		}
		return c, nil
	}
	nc, err := d.TCP.DialContext(ctx, tcp, address)
	if err != nil {
		return nil, newSetupEndError(ctx, err)
	}
	defer nc.Close()
	return Client(ctx, nc, nil, d.Config)
}

func tcpNetwork(n string) (string, error) {
	switch n {
	case networkName:
		return "tcp", nil
	case "tcp", "tcp4", "tcp6":
		return n, nil
	}
	return "", net.UnknownNetworkError(n)
}

// newSetupOpError returns the error of a failed Dial or Listen.
func newSetupOpError(op, network, address string, err error) error {
	var tcp *net.OpError
	if errors.As(err, &tcp) && tcp.Op == op {
		return err // the error already contains the operation and the address
	}
	return &net.OpError{Op: op, Net: network, Err: &setupError{address, err}}
}

// setupError is an error during set-up.
type setupError struct {
	address string
	err     error
}

func (e *setupError) Error() string { return fmt.Sprintf("%s: %v", e.address, e.err) }

func (e *setupError) Unwrap() error { return e.err }

// Timeout reports whether the set-up has timed out.
func (e *setupError) Timeout() bool {
	return errors.Is(e.err, context.DeadlineExceeded) || errors.Is(e.err, os.ErrDeadlineExceeded) ||
		errors.Is(e.err, syscall.ETIMEDOUT)
}

// contextEndError is the error of a set-up that was ended by its context. A contextEndError also wraps the error of the
// context. The error of the context distinguishes a deadline from a cancellation.
type contextEndError struct{ why, end error }

// newSetupEndError returns the error of a set-up that has failed with err. If the end of ctx is the reason, the error
// also wraps the cause of ctx, because package net ignores the cause.
func newSetupEndError(ctx context.Context, err error) error {
	var ne net.Error
	timeout := errors.As(err, &ne) && ne.Timeout()
	if at, ok := ctx.Deadline(); ok && timeout && !time.Now().Before(at) {
		select { // package net has its own timer, which may fire before the timer of ctx
		case <-ctx.Done():
		case <-time.After(time.Second): // for a context that does not end at its deadline
		}
	}
	end, cause := ctx.Err(), context.Cause(ctx)
	switch {
	case end == nil:
		return err
	case reflect.ValueOf(cause).Comparable() && errors.Is(err, cause):
		// errors.Is would panic for a cause that is not comparable.
		return &contextEndError{err, end}
	case timeout, errors.Is(err, end):
		return &contextEndError{cause, end}
	}
	return err
}

func (e *contextEndError) Error() string { return e.why.Error() }

// Unwrap returns both errors.
func (e *contextEndError) Unwrap() []error { return []error{e.why, e.end} }

// Is makes an expired context match os.ErrDeadlineExceeded.
func (e *contextEndError) Is(target error) bool {
	return target == os.ErrDeadlineExceeded && e.end == context.DeadlineExceeded
}
