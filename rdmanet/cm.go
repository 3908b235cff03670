package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"verbena/verbs"
	"verbena/verbs/cm"
)

// newCMData returns the private data of a message of the connection manager. The data consist of the header and body.
func newCMData(kind byte, body []byte) []byte {
	return append(append([]byte(magic), protocolVersion, kind), body...)
}

// parseCMBody checks the header of private data and returns the remaining bytes. The remaining bytes may end with
// padding zeros.
func parseCMBody(b []byte, kind byte) ([]byte, error) {
	switch {
	case len(b) < cmHeader || string(b[:4]) != magic:
		return nil, fmt.Errorf("the peer does not use the rdmanet protocol: %w", syscall.EPROTO)
	case b[4] != protocolVersion:
		return nil, newVersionError(b[4])
	case b[5] != kind:
		return nil, fmt.Errorf("message of kind %d, want kind %d: %w", b[5], kind, syscall.EPROTO)
	}
	return b[cmHeader:], nil
}

const (
	cmHeader = 6 // magic, version, kind
	// cmText is the maximum length in bytes of the reason in a refusal. The reason fits into the 148 bytes of private
	// data of a REJ.
	cmText = 140
)

// addCMReason adds the peer's reason to err, if the peer's REJ contains a reason.
func addCMReason(err error) error {
	var refused *cm.RefusedError
	if errors.As(err, &refused) {
		if b, e := parseCMBody(refused.Data, kindRefusal); e == nil {
			return fmt.Errorf("%w: %q", err, strings.TrimRight(string(b), "\x00"))
		}
	}
	return err
}

func encodeCMRefusal(err error) []byte {
	text := err.Error()
	return newCMData(kindRefusal, []byte(text[:min(len(text), cmText)]))
}

// cmExchange is an Exchange over the connection manager. Both ends use it. The link ends when the manager's connection
// ends.
type cmExchange struct {
	conn    *cm.Conn
	req     *cm.Request // the request at the passive end, until it is accepted or rejected
	release func()      // releases the reference to the manager
}

// Connect implements Exchange.
func (x *cmExchange) Connect(ctx context.Context, qp *verbs.QP, path verbs.Path, private []byte) (
	_ []byte, local, remote Addr, err error) {
	p := cm.Param{Reads: path.Reads, Retries: path.Retries, RNRRetries: path.RNRRetries}
	data := newCMData(kindHello, private)
	var got []byte
	if r := x.req; r != nil {
		if err := r.Init(qp); err != nil {
			return nil, local, remote, err
		}
		got, x.req = r.Data, nil
		if x.conn, err = r.Accept(qp, p, data); err == nil {
			err = x.conn.Established(ctx)
		}
	} else if err = x.conn.Init(qp); err == nil {
		got, err = x.conn.Connect(ctx, qp, p, data)
	}
	if err != nil {
		return nil, local, remote, addCMReason(err)
	}
	if got, err = parseCMBody(got, kindHello); err != nil {
		return nil, local, remote, err
	}
	a, err := qp.Query()
	if err != nil {
		return nil, local, remote, err
	}
	local = Addr{x.conn.LocalAddr().Addr(), qp.Num()}
	remote = Addr{x.conn.RemoteAddr().Addr(), a.DestQPN}
	return got, local, remote, nil
}

// Done returns a channel that is closed when the connection has ended.
func (x *cmExchange) Done() <-chan struct{} { return x.conn.Done() }

// Err returns the reason for the end of the connection.
func (x *cmExchange) Err() error { return x.conn.Err() }

// Close ends the connection. Close rejects the request if it is still pending.
func (x *cmExchange) Close() error {
	if x.req != nil {
		_ = x.req.Reject(nil)
	}
	if x.conn != nil {
		_ = x.conn.Close()
	}
	x.release()
	return nil
}

// dialCM connects over the connection manager. dialCM tries the addresses of the host name one after another.
func dialCM(ctx context.Context, r *net.Resolver, network, address string, cfg Config) (*Conn, error) {
	list, err := lookupAddrs(ctx, r, network, address, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	if err != nil {
		return nil, err
	}
	var first error
	for _, a := range list {
		c, err := dialCMAddr(ctx, a, cfg)
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

func dialCMAddr(ctx context.Context, a netip.AddrPort, cfg Config) (*Conn, error) {
	host := cfg.hostOrDefault()
	m, release, err := host.acquireManager()
	if err != nil {
		return nil, err
	}
	id, err := m.Resolve(ctx, cm.Target{Addr: a})
	if err != nil {
		host.forgetManager(m, err)
		release()
		return nil, err
	}
	x := &cmExchange{conn: id, release: release}
	guid, err := id.NodeGUID()
	if err != nil {
		_ = x.Close()
		return nil, err
	}
	return newConnOnDevice(ctx, x, guid, cfg)
}

// newConnOnDevice calls New with the device that has the given node GUID. On an error it rejects the request and closes
// x.
func newConnOnDevice(ctx context.Context, x *cmExchange, guid uint64, cfg Config) (*Conn, error) {
	done := func() {}
	if cfg.Device == nil {
		var err error
		if cfg.Device, done, err = cfg.hostOrDefault().acquireDevice(guid); err != nil {
			return nil, x.refuseAndClose(err)
		}
	}
	release := x.release
	x.release = func() {
		release()
		done() // called after the connection has ended
	}
	c, err := New(ctx, x, cfg)
	if err != nil {
		return nil, x.refuseAndClose(err)
	}
	return c, nil
}

// cmSource is a source of peers that connect over the connection manager.
type cmSource struct {
	l       *cm.Listener
	host    *Host
	release func()
}

func listenCM(ctx context.Context, lc net.ListenConfig, network, address string, cfg Config, backlog int) (peerSource,
	error) {
	any := netip.IPv6Unspecified()
	if network == "tcp4" {
		any = netip.IPv4Unspecified()
	}
	list, err := lookupAddrs(ctx, nil, network, address, any)
	if err != nil {
		return nil, err
	}
	host := cfg.hostOrDefault()
	m, release, err := host.acquireManager()
	if err != nil {
		return nil, err
	}
	l, err := m.Listen(list[0], backlog)
	if err != nil {
		host.forgetManager(m, err)
		release()
		return nil, err
	}
	return &cmSource{l, host, release}, nil
}

func (s *cmSource) nextPeer(ctx context.Context) (incomingPeer, error) {
	r, err := s.l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	// The connection references the manager until the connection ends.
	_, release, err := s.host.acquireManager()
	if err != nil {
		_ = r.Reject(encodeCMRefusal(err))
		return nil, err
	}
	return &cmPeer{r, release}, nil
}

func (s *cmSource) Close() error {
	err := s.l.Close()
	s.release()
	return err
}

func (s *cmSource) Addr() net.Addr { return ListenAddr{s.l.Addr()} }

type cmPeer struct {
	r       *cm.Request
	release func()
}

func (p *cmPeer) remoteAddr() net.Addr { return ListenAddr{p.r.RemoteAddr()} }

func (p *cmPeer) setUpConn(ctx context.Context, cfg Config) (*Conn, error) {
	x := &cmExchange{req: p.r, release: p.release}
	b, err := parseCMBody(p.r.Data, kindHello)
	if err == nil {
		_, err = parseParams(b)
	}
	var guid uint64
	if err == nil {
		guid, err = p.r.NodeGUID()
	}
	if err != nil {
		return nil, x.refuseAndClose(err)
	}
	return newConnOnDevice(ctx, x, guid, cfg)
}

// refuseAndClose rejects a pending request with err as the reason, and closes the link.
func (x *cmExchange) refuseAndClose(err error) error {
	if x.req != nil {
		_ = x.req.Reject(encodeCMRefusal(err))
		x.req = nil
	}
	_ = x.Close()
	return err
}

// lookupAddrs resolves an address. For an empty host it returns the address any.
func lookupAddrs(ctx context.Context, r *net.Resolver, network, address string, any netip.Addr) ([]netip.AddrPort,
	error) {
	if r == nil {
		r = net.DefaultResolver
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := r.LookupPort(ctx, network, service)
	if err != nil {
		return nil, err
	}
	ips := []netip.Addr{any}
	if host != "" {
		if ips, err = r.LookupNetIP(ctx, "ip"+strings.TrimPrefix(network, "tcp"), host); err != nil {
			return nil, err
		}
	}
	var list []netip.AddrPort
	for _, ip := range ips {
		list = append(list, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return list, nil
}
