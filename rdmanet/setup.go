package rdmanet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"verbena/verbs"
)

// Config holds the parameters of connections. The zero Config has usable defaults.
type Config struct {
	// Device is the device of the connection. The caller must close the device only after the connection. nil means the
	// first device of Host, or the device over which the connection manager reaches the peer. In this case the device
	// remains open while connections use it.
	Device *verbs.Device
	// Host provides devices and the connection manager. nil means the machine, or the service under which the program
	// runs.
	Host *Host
	// PD is the protection domain of the connection. PD must belong to Device. Regions of a domain, and the rings of
	// the streams, are accessible over all connections of the domain. Keys can be guessed. The peers of a domain must
	// therefore trust each other. nil means that each connection has its own domain.
	PD *verbs.PD
	// Path contains the parameters for the connection of queue pairs. With the connection manager only Reads, Retries
	// and RNRRetries of Path are used.
	Path verbs.Path
	// ReadBuffer limits the bytes that the peer has sent and this end has not read. WriteBuffer limits the bytes that
	// this end has written and the peer's device has not acknowledged. The range is 256 bytes to 256 MB. 0 means 256
	// KB. Both buffers are registered memory.
	ReadBuffer, WriteBuffer int
	// Messages limits the messages in flight in each direction. The range is 4 to 4096. 0 means 128. A Write sends one
	// message per 64 KB.
	Messages int
	// SetupTimeout limits the set-up time of a connection. 0 means 10 s.
	SetupTimeout time.Duration
	// Linger limits the time that Close waits until the peer's device has received the written data. 0 means 3 s. A
	// negative value means that Close does not wait.
	Linger time.Duration
	// KeepAlive is the interval of the probes to a silent peer. 0 means 15 s, and a negative value means no probes.
	// Without probes, a Read without a deadline detects neither a lost peer nor a device that has stopped working.
	KeepAlive time.Duration
}

const (
	defaultRing      = 256 << 10
	defaultMessages  = 128
	maxMessages      = 4096
	defaultSetup     = 10 * time.Second
	defaultLinger    = 3 * time.Second
	defaultKeepAlive = 15 * time.Second
	// minStall exceeds the total retry time of all devices with default timeouts. With another timeout, stallFactor
	// times Path.Timeout exceeds the total retry time.
	minStall    = time.Minute
	stallFactor = 64
	// rnrRetries limits retransmits to a peer without a posted receive. A correct peer always has a posted receive,
	// because of the credits.
	rnrRetries = 6
)

// withDefaults returns a copy of the Config with all defaults set.
func (c Config) withDefaults() (Config, error) {
	for _, v := range []struct {
		name                string
		p                   *int
		standard, low, high int
	}{
		{"ReadBuffer", &c.ReadBuffer, defaultRing, minRing, maxRing},
		{"WriteBuffer", &c.WriteBuffer, defaultRing, minRing, maxRing},
		{"Messages", &c.Messages, defaultMessages, minMessages, maxMessages},
	} {
		if *v.p == 0 {
			*v.p = v.standard
		}
		if *v.p < v.low || *v.p > v.high {
			return c, fmt.Errorf("rdmanet: Config.%s is %d, want %d to %d: %w",
				v.name, *v.p, v.low, v.high, syscall.EINVAL)
		}
	}
	for _, v := range []struct {
		p        *time.Duration
		standard time.Duration
	}{{&c.SetupTimeout, defaultSetup}, {&c.Linger, defaultLinger}, {&c.KeepAlive, defaultKeepAlive}} {
		if *v.p == 0 {
			*v.p = v.standard
		}
		*v.p = max(*v.p, 0)
	}
	if c.Path.RNRRetries == 0 {
		c.Path.RNRRetries = rnrRetries
	}
	return c, nil
}

// hostOrDefault returns the field Host, or the default Host if it is nil.
func (c Config) hostOrDefault() *Host {
	if c.Host == nil {
		return &defaultHost
	}
	return c.Host
}

// Exchange connects a queue pair to a queue pair of a peer, and exchanges the parameters of the two ends. Client and
// Server use an Exchange over a net.Conn. With CM, Dialer and Listener use an Exchange over the RDMA connection
// manager.
type Exchange interface {
	// Connect moves qp to RTS. The caller has already moved qp to INIT and posted its receives. Connect sends private,
	// which has at most PrivateSize bytes, to the peer. Connect returns the private data of the peer and the addresses
	// of both ends. When Connect returns, the peer's queue pair can receive.
	Connect(ctx context.Context, qp *verbs.QP, path verbs.Path, private []byte) (
		peer []byte, local, remote Addr, err error)
}

// PrivateSize is the length in bytes of the private data of an Exchange. The data fit into the private data of the RDMA
// connection manager.
const PrivateSize = 24

// protocolVersion is the version of the set-up protocol.
const protocolVersion = 1

// setupParams contains the parameters that a peer needs to send. The parameters are the private data of an Exchange.
type setupParams struct {
	addr     uint64 // address of the ring
	ring     uint32 // length of the ring
	rkey     uint32
	messages uint16 // number of posted receives, excluding spareReceives
}

func (p setupParams) appendTo(b []byte) []byte {
	b = append(b, protocolVersion, 0)
	b = binary.BigEndian.AppendUint16(b, p.messages)
	b = binary.BigEndian.AppendUint32(b, p.ring)
	b = binary.BigEndian.AppendUint64(b, p.addr)
	b = binary.BigEndian.AppendUint32(b, p.rkey)
	return append(b, 0, 0, 0, 0)
}

func newVersionError(v byte) error {
	return fmt.Errorf("the peer uses protocol version %d, want version %d: %w", v, protocolVersion,
		syscall.EPROTONOSUPPORT)
}

// parseParams decodes and checks private data.
func parseParams(b []byte) (setupParams, error) {
	if len(b) < PrivateSize { // a connection manager may append zeros
		return setupParams{}, fmt.Errorf("private data of the peer have %d bytes, want %d: %w",
			len(b), PrivateSize, syscall.EPROTO)
	}
	if b[0] != protocolVersion {
		return setupParams{}, newVersionError(b[0])
	}
	p := setupParams{
		messages: binary.BigEndian.Uint16(b[2:]), ring: binary.BigEndian.Uint32(b[4:]),
		addr: binary.BigEndian.Uint64(b[8:]), rkey: binary.BigEndian.Uint32(b[16:]),
	}
	switch {
	case p.ring < minRing || p.ring > maxRing:
		return setupParams{}, fmt.Errorf("the peer's ring has %d bytes, want %d to %d: %w",
			p.ring, minRing, maxRing, syscall.EPROTO)
	case p.messages < minMessages || p.messages > maxMessages:
		return setupParams{}, fmt.Errorf("the peer accepts %d messages, want %d to %d: %w",
			p.messages, minMessages, maxMessages, syscall.EPROTO)
	case p.addr+uint64(p.ring) < p.addr:
		return setupParams{}, fmt.Errorf("the peer's ring of %d bytes at %#x exceeds the address space: %w",
			p.ring, p.addr, syscall.EPROTO)
	}
	return p, nil
}

// New establishes a connection by means of an Exchange. The caller ends the connection with Conn.Close.
func New(ctx context.Context, x Exchange, cfg Config) (*Conn, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.SetupTimeout)
	defer cancel()
	dev, release := cfg.Device, func() {}
	if dev == nil {
		if dev, release, err = cfg.hostOrDefault().acquireDevice(0); err != nil {
			return nil, err
		}
	}
	c := &Conn{
		linger: cfg.Linger, probes: cfg.KeepAlive, stall: max(minStall, stallFactor*cfg.Path.Timeout), pd: cfg.PD,
		ended: release,
	}
	if err := c.connectQP(ctx, x, dev, cfg); err != nil {
		c.reportSetupFailure()
		_ = c.closeVerbsObjects()
		if isDeviceGone(err) {
			err = newDeviceError(err)
		}
		return nil, err
	}
	if l, ok := x.(connLink); ok {
		c.link = l
		go c.watchLink()
	}
	return c, nil
}

// connLink is an Exchange that lasts as long as the connection. When the link ends, the connection ends.
type connLink interface {
	Done() <-chan struct{}
	Err() error
	Close() error
}

// watchLink fails the connection when its link ends. watchLink also wakes blocked calls.
func (c *Conn) watchLink() {
	<-c.link.Done()
	c.mu.Lock()
	c.pollCompletions() // handles earlier messages of the peer
	// A connection that Close is closing must not fail. Close still waits for acknowledgements of the peer's device,
	// even after the peer has closed its end. Close has its own time limit.
	over := c.gone || c.closed || c.err != nil
	if err := c.link.Err(); !over && isDeviceGone(err) {
		c.recordFailure(newDeviceError(err))
	} else if !over {
		c.recordFailure(&ConnError{syscall.ECONNRESET, err})
	}
	c.waiting.wakeReadyWaiters()
	c.mu.Unlock()
	if !over {
		_ = c.qp.Modify(verbs.QPAttr{State: verbs.Error}, verbs.AttrState)
	}
}

// setupFailureTimeout limits the wait in leave.
const setupFailureTimeout = 200 * time.Millisecond

// reportSetupFailure reports to the peer that the set-up has failed. The peer's end may already be connected.
func (c *Conn) reportSetupFailure() {
	if c.qp == nil {
		return
	}
	if a, err := c.qp.Query(); err != nil || a.State != verbs.RTS {
		return
	}
	c.scratch = verbs.SendWR{ID: kindControl, Opcode: verbs.WriteWithImm, Flags: verbs.Signaled, Imm: immFin | immClose}
	if c.qp.PostSend(&c.scratch) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), setupFailureTimeout)
	defer cancel()
	_, _ = c.cq.Wait(ctx, c.wcs[:])
}

func (c *Conn) connectQP(ctx context.Context, x Exchange, dev *verbs.Device, cfg Config) (err error) {
	if c.pd == nil {
		if c.pd, err = dev.AllocPD(); err != nil {
			return err
		}
		c.ownPD = true
	}
	receives, sends := cfg.Messages+spareReceives, cfg.Messages+maxControls+2+opSlots
	if c.cq, err = dev.CreateCQ(receives+sends, nil); err != nil {
		return err
	}
	if c.qp, err = c.pd.CreateQP(verbs.QPInit{SendCQ: c.cq, SendWRs: sends, RecvWRs: receives}); err != nil {
		return err
	}
	if c.ring, err = c.pd.Alloc(cfg.ReadBuffer, verbs.LocalWrite|verbs.RemoteWrite); err != nil {
		return err
	}
	if c.send, err = c.pd.Alloc(cfg.WriteBuffer, 0); err != nil {
		return err
	}
	if err := c.qp.Prepare(cfg.Path); err != nil {
		return err
	}
	for range receives {
		if err := c.qp.PostRecv(&c.recv); err != nil {
			return err
		}
	}
	own := setupParams{addr: c.ring.Addr(), ring: uint32(c.ring.Len()), rkey: c.ring.RKey(),
		messages: uint16(cfg.Messages)}
	private, local, remote, err := x.Connect(ctx, c.qp, cfg.Path, own.appendTo(nil))
	if err != nil {
		return fmt.Errorf("rdmanet: connect: %w", newSetupEndError(ctx, err))
	}
	peer, err := parseParams(private)
	if err != nil {
		return fmt.Errorf("rdmanet: connect to %v: %w", remote, err)
	}
	c.local, c.remote = local, remote
	c.startStream(own, peer)
	return nil
}

// Client establishes a connection on dev with a peer that runs Server at the other end of nc. The two ends exchange
// their parameters over nc. The caller remains the owner of nc, and may close nc when Client has returned. If Client
// succeeds, both ends have read all bytes of the exchange, and nc can be used for other data. A nil dev means
// Config.Device.
func Client(ctx context.Context, nc net.Conn, dev *verbs.Device, cfg Config) (*Conn, error) {
	if dev != nil {
		cfg.Device = dev
	}
	return New(ctx, &connExchange{nc: nc}, cfg)
}

// Server is the counterpart of Client. Server allocates nothing before the peer has sent hello.
func Server(ctx context.Context, nc net.Conn, dev *verbs.Device, cfg Config) (*Conn, error) {
	if dev != nil {
		cfg.Device = dev
	}
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, full.SetupTimeout)
	defer cancel()
	o := &connExchange{nc: nc, server: true}
	if err := o.receiveHello(ctx); err != nil {
		return nil, fmt.Errorf("rdmanet: connect: %w", err)
	}
	c, err := New(ctx, o, cfg)
	if err != nil && !o.answered {
		stop := interruptOnDone(ctx, nc)
		defer stop()
		_ = o.sendRefusal(err)
	}
	return c, err
}

// connExchange is an Exchange over a net.Conn.
//
//	client                 server
//	hello  ------------->          its queue pair goes to RTS
//	       <------------- hello
//	ready  ------------->          both may send
//
// Instead of a message, either end may send a refusal.
type connExchange struct {
	nc       net.Conn
	server   bool
	hello    setupMessage // the client's hello, which the server has read
	answered bool         // the server has sent hello or a refusal
}

// callWithContext calls f. When ctx ends, during interrupts the reads and writes of f.
func (o *connExchange) callWithContext(ctx context.Context, f func() error) error {
	stop := interruptOnDone(ctx, o.nc)
	err := f()
	stop()
	var lost *exchangeError
	if errors.As(err, &lost) && ctx.Err() != nil {
		err = &contextEndError{context.Cause(ctx), ctx.Err()}
	}
	return err
}

// receiveHello reads the client's hello.
func (o *connExchange) receiveHello(ctx context.Context) error {
	return o.callWithContext(ctx, func() (err error) {
		if o.hello, err = o.readHello(); err != nil {
			return o.sendRefusal(err)
		}
		return nil
	})
}

// readHello reads and checks the peer's hello.
func (o *connExchange) readHello() (setupMessage, error) {
	m, err := o.readMessage(kindHello)
	if err == nil {
		_, err = parseParams(m.private)
	}
	return m, err
}

// Connect implements Exchange.
func (o *connExchange) Connect(ctx context.Context, qp *verbs.QP, path verbs.Path, private []byte) (
	peer []byte, local, remote Addr, err error) {
	here, err := qp.LocalVia(path)
	if err != nil {
		return nil, local, remote, err
	}
	err = o.callWithContext(ctx, func() error {
		return o.exchangeMessages(qp, path,
			setupMessage{kind: kindHello, endpoint: here, private: private})
	})
	there := o.hello.endpoint
	return o.hello.private, Addr{here.GID.Addr(), here.QPN}, Addr{there.GID.Addr(), there.QPN}, err
}

func (o *connExchange) exchangeMessages(qp *verbs.QP, path verbs.Path, hello setupMessage) (err error) {
	if !o.server {
		if err := o.writeMessage(hello); err != nil {
			return err
		}
		if o.hello, err = o.readHello(); err != nil {
			return o.sendRefusal(err)
		}
	}
	if err := qp.ConnectVia(o.hello.endpoint, path); err != nil {
		return o.sendRefusal(err)
	}
	if !o.server {
		return o.writeMessage(setupMessage{kind: kindReady})
	}
	o.answered = true
	if err := o.writeMessage(hello); err != nil {
		return err
	}
	_, err = o.readMessage(kindReady)
	return err
}

// interruptOnDone makes reads and writes of nc fail when ctx ends. stop cancels this and clears the deadlines of nc.
func interruptOnDone(ctx context.Context, nc net.Conn) (stop func()) {
	done := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(done)
		if nc.SetDeadline(time.Unix(1, 0)) != nil {
			_ = nc.Close()
		}
	})
	return func() {
		if !cancel() {
			<-done
			_ = nc.SetDeadline(time.Time{})
		}
	}
}

// sendRefusal sends err to the peer as the reason of a refusal. sendRefusal sends nothing if err is the peer's own
// refusal or an error of nc.
func (o *connExchange) sendRefusal(err error) error {
	var lost *exchangeError
	o.answered = true
	if !errors.Is(err, errRefused) && !errors.As(err, &lost) {
		text := err.Error()
		_ = o.writeMessage(setupMessage{kind: kindRefusal, text: text[:min(len(text), maxText)]})
	}
	return err
}

func (o *connExchange) writeMessage(m setupMessage) error {
	if _, err := o.nc.Write(m.appendEncoded(nil)); err != nil {
		return newExchangeError(err)
	}
	return nil
}

// exchangeError is an error of the connection over which the parameters are exchanged.
type exchangeError struct{ error }

func (e *exchangeError) Unwrap() error { return e.error }

// newExchangeError returns an exchangeError. newExchangeError replaces io.EOF, because the end of the set-up connection
// is not the end of a stream.
func newExchangeError(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF || err == io.ErrClosedPipe {
		err = fmt.Errorf("the peer has ended the set-up: %w", syscall.ECONNRESET)
	}
	return &exchangeError{err}
}

// readMessage reads a message of the given kind. If the message is a refusal, readMessage returns it as an error.
func (o *connExchange) readMessage(kind byte) (setupMessage, error) {
	b := make([]byte, headerSize, headerSize+maxBody)
	if _, err := io.ReadFull(o.nc, b); err != nil {
		return setupMessage{}, newExchangeError(err)
	}
	n, err := parseBodySize(b)
	if err != nil {
		return setupMessage{}, err
	}
	b = b[:headerSize+n]
	if _, err := io.ReadFull(o.nc, b[headerSize:]); err != nil {
		return setupMessage{}, newExchangeError(err)
	}
	m, err := parseMessage(b)
	switch {
	case err != nil:
		return setupMessage{}, err
	case m.kind == kindRefusal:
		return setupMessage{}, fmt.Errorf("%w: %q", errRefused, m.text)
	case m.kind != kind:
		return setupMessage{}, fmt.Errorf("message of kind %d, want kind %d: %w", m.kind, kind, syscall.EPROTO)
	}
	return m, nil
}

var errRefused = fmt.Errorf("the peer refuses: %w", syscall.ECONNREFUSED)

// The next constants are the kinds of set-up messages.
const (
	kindHello = iota + 1
	kindReady
	kindRefusal
)

const (
	magic      = "RNET"
	headerSize = 8 // magic, version, kind, length of the body
	maxText    = 200
	maxBody    = maxText
	helloSize  = verbs.EndpointSize + PrivateSize
)

// setupMessage is a set-up message.
type setupMessage struct {
	kind     byte
	endpoint verbs.Endpoint // in hello
	private  []byte         // in hello
	text     string         // in refusal
}

func (m setupMessage) appendEncoded(b []byte) []byte {
	b = append(b, magic...)
	b = append(b, protocolVersion, m.kind)
	switch m.kind {
	case kindHello:
		b = binary.BigEndian.AppendUint16(b, helloSize)
		b, _ = m.endpoint.AppendBinary(b)
		return append(b, m.private...)
	case kindRefusal:
		b = binary.BigEndian.AppendUint16(b, uint16(len(m.text)))
		return append(b, m.text...)
	}
	return append(b, 0, 0)
}

// parseBodySize checks the header of a message and returns the length of the message's body.
func parseBodySize(b []byte) (int, error) {
	if len(b) < headerSize || string(b[:4]) != magic {
		return 0, fmt.Errorf("the peer does not use the rdmanet protocol: %w", syscall.EPROTO)
	}
	if b[4] != protocolVersion {
		return 0, newVersionError(b[4])
	}
	n, kind := int(binary.BigEndian.Uint16(b[6:])), b[5]
	if kind == kindHello && n == helloSize || kind == kindReady && n == 0 || kind == kindRefusal && n <= maxText {
		return n, nil
	}
	return 0, fmt.Errorf("message of kind %d has an invalid length of %d bytes: %w", kind, n, syscall.EPROTO)
}

// parseMessage decodes and checks a message.
func parseMessage(b []byte) (m setupMessage, err error) {
	n, err := parseBodySize(b)
	if err != nil {
		return m, err
	}
	body := b[headerSize:]
	if len(body) != n {
		return m, fmt.Errorf("message body has %d bytes, want %d: %w", len(body), n, syscall.EPROTO)
	}
	m.kind = b[5]
	switch m.kind {
	case kindRefusal:
		m.text = string(body)
	case kindHello:
		if err := m.endpoint.UnmarshalBinary(body[:verbs.EndpointSize]); err != nil {
			return m, err
		}
		m.private = body[verbs.EndpointSize:]
		e := &m.endpoint
		if e.GID == (verbs.GID{}) || e.QPN == 0 || e.QPN > 0xffffff || e.PSN > 0xffffff || e.MTU < 1 || e.MTU > 5 {
			return m, fmt.Errorf("endpoint %+v: %w", *e, syscall.EPROTO)
		}
	}
	return m, nil
}
