package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"verbena/verbs"
)

// ListenConfig creates Listeners. The zero ListenConfig is ready to use.
type ListenConfig struct {
	Config
	// CM listens for connections over the RDMA connection manager. Without CM the two ends exchange their parameters
	// over TCP.
	CM bool
	// TCP creates the listener for the exchange of parameters.
	TCP net.ListenConfig
	// Backlog limits the number of connections in set-up, and also the number of connections that wait for Accept. 0
	// means 128. A further connection cancels the oldest connection in set-up. Silent peers therefore do not block
	// others.
	Backlog int
	// Failed, if not nil, is called with the reason when the set-up of a connection fails. Calls of Failed may be
	// concurrent.
	Failed func(remote net.Addr, err error)
}

const defaultBacklog = 128

// Listen listens on a TCP address with the zero ListenConfig.
func Listen(network, address string) (*Listener, error) {
	return new(ListenConfig).Listen(context.Background(), network, address)
}

// Listen listens on an address. The address is a TCP address, or with CM an address of the connection manager. The
// networks are those of Dialer.DialContext. ctx applies only until Listen returns.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (*Listener, error) {
	l, err := lc.listen(ctx, network, address)
	if err != nil {
		return nil, newSetupOpError("listen", network, address, err)
	}
	return l, nil
}

func (lc *ListenConfig) listen(ctx context.Context, network, address string) (*Listener, error) {
	tcp, err := tcpNetwork(network)
	if err != nil {
		return nil, err
	}
	cfg, err := lc.withDefaults()
	if err != nil {
		return nil, err
	}
	backlog := lc.Backlog
	if backlog <= 0 {
		backlog = defaultBacklog
	}
	l := &Listener{
		cfg: cfg, failed: lc.Failed, backlog: backlog, conns: make(chan *Conn, backlog),
		slots: make(chan struct{}, 2*backlog),
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	var watched *verbs.Channel
	if cfg.Device != nil {
		if watched, err = cfg.Device.CreateChannel(); err != nil {
			return nil, err
		}
	} else {
		_, release, err := cfg.hostOrDefault().acquireDevice(0)
		if err != nil {
			return nil, err
		}
		release()
	}
	if lc.CM {
		l.from, err = listenCM(ctx, lc.TCP, tcp, address, cfg, backlog)
	} else {
		l.from, err = listenTCP(ctx, lc.TCP, tcp, address)
	}
	if err != nil {
		if watched != nil {
			_ = watched.Close()
		}
		return nil, err
	}
	if watched != nil {
		l.running.Go(func() { l.watchDevice(watched) })
	}
	l.running.Go(l.acceptPeers)
	return l, nil
}

// Listener accepts connections. It implements net.Listener.
type Listener struct {
	from    peerSource
	cfg     Config
	failed  func(net.Addr, error)
	backlog int
	ctx     context.Context // ends with the Listener
	cancel  context.CancelCauseFunc
	running sync.WaitGroup
	conns   chan *Conn    // connections that wait for Accept
	slots   chan struct{} // contains an element for each goroutine that sets up a connection
	once    sync.Once
	err     error // result of Close

	mu      sync.Mutex
	pending []*pendingSetup // oldest first
}

var _ net.Listener = (*Listener)(nil)

// pendingSetup is a connection in set-up.
type pendingSetup struct{ cancel context.CancelCauseFunc }

// peerSource is a source of incoming peers.
type peerSource interface {
	// nextPeer waits for the next peer. Close of the source unblocks nextPeer.
	nextPeer(ctx context.Context) (incomingPeer, error)
	Close() error
	Addr() net.Addr
}

// incomingPeer is a peer that requests a connection.
type incomingPeer interface {
	remoteAddr() net.Addr
	// setUpPeer establishes or refuses the connection. The caller calls setUpPeer exactly once.
	setUpConn(ctx context.Context, cfg Config) (*Conn, error)
}

// acceptRetryDelay is the delay after an error of accept, such as EMFILE.
const acceptRetryDelay = 10 * time.Millisecond

var errBacklogOverflow = fmt.Errorf("cancelled because of newer peers beyond the backlog: %w", syscall.ECONNABORTED)

// acceptPeers sets up each connection on its own goroutine. A slow peer therefore does not delay others.
func (l *Listener) acceptPeers() {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		in, err := l.from.nextPeer(l.ctx)
		if err == nil {
			l.running.Go(func() {
				defer func() { <-l.slots }()
				l.setUpPeer(in)
			})
			continue
		}
		<-l.slots
		if isDeviceGone(err) || errors.Is(err, net.ErrClosed) {
			l.failWithDeviceError(err)
			return
		}
		select {
		case <-time.After(acceptRetryDelay):
		case <-l.ctx.Done():
			return
		}
	}
}

func (l *Listener) setUpPeer(in incomingPeer) {
	ctx, cancel := context.WithCancelCause(l.ctx)
	defer cancel(nil)
	ctx, stop := context.WithTimeout(ctx, l.cfg.SetupTimeout)
	defer stop()
	p := &pendingSetup{cancel}
	l.mu.Lock()
	if len(l.pending) >= l.backlog {
		l.pending[0].cancel(errBacklogOverflow)
		l.pending = slices.Delete(l.pending, 0, 1)
	}
	l.pending = append(l.pending, p)
	l.mu.Unlock()
	c, err := in.setUpConn(ctx, l.cfg)
	if err == nil {
		select {
		case l.conns <- c:
		case <-ctx.Done():
			err = fmt.Errorf("rdmanet: wait for Accept: %w", context.Cause(ctx))
			_ = c.Close()
		}
	}
	l.mu.Lock()
	l.pending = slices.DeleteFunc(l.pending, func(x *pendingSetup) bool { return x == p })
	l.mu.Unlock()
	if err != nil && l.failed != nil && l.ctx.Err() == nil {
		l.failed(in.remoteAddr(), err)
	}
}

// watchDevice fails the listener when the listener's device has been removed.
func (l *Listener) watchDevice(ch *verbs.Channel) {
	_, err := ch.Wait(l.ctx)
	_ = ch.Close()
	if l.ctx.Err() == nil {
		l.failWithDeviceError(newLostDeviceError(l.cfg.Device, err))
	}
}

func (l *Listener) failWithDeviceError(err error) {
	l.cancel(newDeviceError(err))
	_ = l.from.Close()
}

// Accept waits for the next connection and returns it as a *Conn. The error is a *net.OpError. After Close the error
// wraps net.ErrClosed. If Config.Device has been removed, the error wraps a ConnError with ECONNABORTED.
func (l *Listener) Accept() (net.Conn, error) {
	err := context.Cause(l.ctx)
	if err == nil {
		select {
		case c := <-l.conns:
			return c, nil
		case <-l.ctx.Done():
			err = context.Cause(l.ctx)
		}
	}
	return nil, &net.OpError{Op: "accept", Net: networkName, Addr: l.Addr(), Err: err}
}

// Close closes the listener. Blocked calls of Accept return net.ErrClosed. Connections that have not been accepted are
// closed. Close may be called again.
func (l *Listener) Close() error {
	l.once.Do(func() {
		gone := l.ctx.Err() != nil
		l.cancel(net.ErrClosed)
		if l.err = l.from.Close(); gone {
			l.err = nil
		}
		l.running.Wait()
		var closing sync.WaitGroup
		for len(l.conns) > 0 {
			c := <-l.conns
			closing.Go(func() { _ = c.Close() })
		}
		closing.Wait()
	})
	return l.err
}

// Addr returns the address that peers must dial. The address is a ListenAddr if it belongs to TCP or to the connection
// manager.
func (l *Listener) Addr() net.Addr { return l.from.Addr() }

// tcpSource is a source of peers that exchange their parameters over TCP.
type tcpSource struct{ net.Listener }

func listenTCP(ctx context.Context, lc net.ListenConfig, network, address string) (peerSource, error) {
	l, err := lc.Listen(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return tcpSource{l}, nil
}

func (s tcpSource) nextPeer(context.Context) (incomingPeer, error) {
	nc, err := s.Accept()
	if err != nil {
		return nil, err
	}
	return tcpPeer{nc}, nil
}

func (s tcpSource) Addr() net.Addr {
	if a, ok := s.Listener.Addr().(*net.TCPAddr); ok {
		return ListenAddr{a.AddrPort()}
	}
	return s.Listener.Addr()
}

type tcpPeer struct{ net.Conn }

func (p tcpPeer) remoteAddr() net.Addr { return p.RemoteAddr() }

func (p tcpPeer) setUpConn(ctx context.Context, cfg Config) (*Conn, error) {
	defer p.Close()
	return Server(ctx, p.Conn, nil, cfg)
}
