package rdmanet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"verbena/verbs"
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

// firstDevice is the device of those who name none.
type firstDevice struct {
	//verbena:program those of this program who open its device
	mu    sync.Mutex
	dev   *verbs.Device
	users int
}

var shared firstDevice

// device returns d, or the first device, and how to release it.
func device(d *verbs.Device) (*verbs.Device, func(), error) {
	if d != nil {
		return d, func() {}, nil
	}
	s := &shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == 0 {
		d, err := verbs.Open("")
		if err != nil {
			return nil, nil, err
		}
		s.dev = d
	}
	s.users++
	return s.dev, sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.users--; s.users == 0 {
			_ = s.dev.Close()
			s.dev = nil
		}
	}), nil
}

// Dialer makes connections to Listeners. The zero Dialer is good for most.
type Dialer struct {
	Config
	// TCP makes the connection over which the two ends agree.
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

// DialContext connects to the Listener at a TCP address. The network is "rdma", or, for callers that know no other,
// "tcp", "tcp4" or "tcp6". The connection is a *Conn; it does not end with ctx.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: network, Err: fmt.Errorf("%s: %w", address, err)}
	}
	tcp, err := tcpNetwork(network)
	if err != nil {
		return fail(err)
	}
	cfg, err := d.full()
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.SetupTimeout)
	defer cancel()
	nc, err := d.TCP.DialContext(ctx, tcp, address)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	c, err := Client(ctx, nc, nil, d.Config)
	if err != nil {
		return fail(err)
	}
	return c, nil
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

// ListenConfig makes Listeners. The zero ListenConfig is good for most.
type ListenConfig struct {
	Config
	// TCP makes the listener over which the two ends agree.
	TCP net.ListenConfig
	// Backlog is how many connections are set up, or wait for Accept, at a time; 0: 128.
	Backlog int
	// Failed, if not nil, is called with the reason when a connection could not be set up.
	Failed func(remote net.Addr, err error)
}

const defaultBacklog = 128

// Listen listens at a TCP address with a zero ListenConfig.
func Listen(network, address string) (*Listener, error) {
	return new(ListenConfig).Listen(context.Background(), network, address)
}

// Listen listens at a TCP address. The network is as of Dialer.DialContext.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (*Listener, error) {
	fail := func(err error) (*Listener, error) {
		return nil, &net.OpError{Op: "listen", Net: network, Err: fmt.Errorf("%s: %w", address, err)}
	}
	tcp, err := tcpNetwork(network)
	if err != nil {
		return fail(err)
	}
	if _, err := lc.full(); err != nil {
		return fail(err)
	}
	dev, release, err := device(lc.Device)
	if err != nil {
		return fail(err)
	}
	tl, err := lc.TCP.Listen(ctx, tcp, address)
	if err != nil {
		release()
		return nil, err
	}
	backlog := lc.Backlog
	if backlog <= 0 {
		backlog = defaultBacklog
	}
	l := &Listener{
		tcp: tl, cfg: lc.Config, failed: lc.Failed, release: release,
		conns: make(chan *Conn), slots: make(chan struct{}, backlog),
	}
	l.cfg.Device = dev
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.running.Go(l.accept)
	return l, nil
}

// Listener accepts connections. It implements net.Listener.
type Listener struct {
	tcp     net.Listener
	cfg     Config
	failed  func(net.Addr, error)
	release func()
	ctx     context.Context // ends with the Listener
	cancel  context.CancelCauseFunc
	running sync.WaitGroup
	conns   chan *Conn    // that are set up
	slots   chan struct{} // has an element for each connection that is set up or waits
	once    sync.Once
	err     error // of Close
}

var _ net.Listener = (*Listener)(nil)

// retryAccept is how long accept waits after an error, such as EMFILE.
const retryAccept = 10 * time.Millisecond

// accept sets up connections, each on a goroutine of its own: a peer that is slow delays no other.
func (l *Listener) accept() {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		nc, err := l.tcp.Accept()
		if err != nil {
			<-l.slots
			select {
			case <-time.After(retryAccept):
				continue
			case <-l.ctx.Done():
				return
			}
		}
		l.running.Go(func() {
			defer func() { <-l.slots }()
			c, err := Server(l.ctx, nc, nil, l.cfg)
			nc.Close()
			if err != nil {
				if l.failed != nil && l.ctx.Err() == nil {
					l.failed(nc.RemoteAddr(), err)
				}
				return
			}
			select {
			case l.conns <- c:
			case <-l.ctx.Done():
				_ = c.Close()
			}
		})
	}
}

// Accept waits for the next connection, a *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ctx.Done():
		return nil, &net.OpError{Op: "accept", Net: network, Addr: l.Addr(), Err: net.ErrClosed}
	}
}

// Close ends the listener; goroutines in Accept return net.ErrClosed, and connections that were not accepted are
// closed. It may be called again.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.cancel(net.ErrClosed)
		l.err = l.tcp.Close()
		l.running.Wait()
		l.release()
	})
	return l.err
}

// Addr returns the address that peers dial, a ListenAddr if it is one of TCP.
func (l *Listener) Addr() net.Addr {
	if a, ok := l.tcp.Addr().(*net.TCPAddr); ok {
		return ListenAddr{a.AddrPort()}
	}
	return l.tcp.Addr()
}
