package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/cmd/verbena/internal/measure"
	"verbena/verbs"
)

var errNoAddress = error(syscall.EADDRNOTAVAIL)

// exchangeFlags are the common flags of pingpong and perf.
type exchangeFlags struct {
	Server string `arg:"" optional:"" help:"Host of the server; without it this is the server, which serves one client." complete:"none"`
	deviceSelectionFlags
	Port     uint16 `short:"p" help:"TCP port of the negotiation between both ends; default: ${default}." default:"18515" placeholder:"PORT" complete:"none"`
	GIDIndex int    `short:"g" name:"gid-index" help:"Index of the GID to use; default: a GID with an IPv4 address if there is one." default:"-1" placeholder:"N" complete:"none"`
	IBPort   uint8  `name:"ib-port" help:"Port of the device; default: ${default}." default:"1" placeholder:"N" complete:"none"`
	Type     string `help:"Transport service: rc, uc or ud; default: ${default}." enum:"rc,uc,ud" default:"rc" placeholder:"TYPE"`
	Op       string `help:"Operation: send, write, read or atomic; default: ${default}." enum:"send,write,read,atomic" default:"${op}" placeholder:"OP"`
	MTU      int    `short:"m" name:"mtu" help:"Path MTU in bytes; default: the largest MTU that both ports support." placeholder:"BYTES" complete:"none"`
	Events   bool   `short:"e" help:"Sleep until completions arrive, rather than poll: faster if more programs poll than there are processors."`
	JSON     bool   `name:"json" help:"Print JSON."`
}

func (f *exchangeFlags) localParams() measure.LocalParams {
	l := measure.LocalParams{Port: int(f.IBPort), GIDIndex: f.GIDIndex, Events: f.Events}
	if !f.JSON && isTerminal(os.Stderr) {
		l.Progress = func(phase string, messages int64, elapsed time.Duration) {
			fmt.Fprintf(os.Stderr, "\r\033[K%s: %d messages in %v", phase, messages, elapsed.Round(time.Second))
		}
	}
	return l
}

// clearProgressLine erases the progress line of the terminal.
func clearProgressLine(l measure.LocalParams) {
	if l.Progress != nil {
		fmt.Fprint(os.Stderr, "\r\033[K")
	}
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// exchangeSide is one side of an exchange.
type exchangeSide func(ctx context.Context, dev *verbs.Device, conn net.Conn) (*measure.Result, error)

// runExchange runs this side, or both sides with --embedded. runExchange returns the client's result, or the server's
// on a server.
func (f *exchangeFlags) runExchange(
	c *cli, command string, local measure.LocalParams, client, server exchangeSide,
) (*measure.Result,
	error) {
	if f.Embedded && f.Addr.IsValid() {
		return nil, fmt.Errorf("%s: --embedded runs both ends on a device that no other process can reach: omit --addr",
			command)
	}
	if f.Embedded && f.Server != "" {
		return nil, fmt.Errorf("%s: --embedded runs both ends: omit %s", command, f.Server)
	}
	if f.Port == 0 && !f.Embedded {
		return nil, fmt.Errorf("%s: --port 0: the other end cannot know the port; choose a port from 1 to 65535", command)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dev, done, err := f.openDevice(c, command)
	if err != nil {
		return nil, err
	}
	defer done()
	type outcome struct {
		r   *measure.Result
		err error
	}
	run := func(e exchangeSide, conn net.Conn) <-chan outcome { // not on the first thread, to which main is locked
		c := make(chan outcome, 1)
		go func() {
			r, err := e(ctx, dev, conn)
			c <- outcome{r, err}
		}()
		return c
	}
	var o outcome
	switch {
	case f.Embedded:
		here, there := net.Pipe()
		s := run(server, there)
		o = <-run(client, here)
		if so := <-s; so.err != nil && (o.err == nil || errors.Is(o.err, measure.ErrPeer)) {
			o.err = so.err
		}
	case f.Server != "":
		d := net.Dialer{Timeout: 10 * time.Second}
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(f.Server, strconv.Itoa(int(f.Port))))
		if errors.Is(err, syscall.ECONNREFUSED) {
			err = fmt.Errorf("%w; start the server before the client: `verbena %s` without a host", err, command)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", command, err)
		}
		o = <-run(client, conn)
	default:
		if err := local.Check(dev); err != nil {
			return nil, fmt.Errorf("%s: %w", command, err)
		}
		conn, err := acceptClient(ctx, f.Port)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", command, err)
		}
		o = <-run(server, conn)
	}
	if o.err != nil {
		return nil, fmt.Errorf("%s: %w", command, o.err)
	}
	return o.r, nil
}

// acceptClient waits for one client and returns its connection.
func acceptClient(ctx context.Context, port uint16) (net.Conn, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", fmt.Sprint(":", port))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	conn, err := l.Accept()
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return conn, err
}

type pingpongCmd struct {
	exchangeFlags
	Size   byteSize `short:"s" help:"Bytes of a message, such as 4096 or 64K; a datagram is at most one MTU; default: ${default}." default:"4096" placeholder:"BYTES" complete:"none"`
	Iters  int      `short:"n" help:"Round trips; default: ${default}." default:"1000" placeholder:"N" complete:"none"`
	Compat bool     `help:"Exchange messages with ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong at the other end, with the same sizes and counts (rc: -s 4096 -n 1000)."`
}

func (p *pingpongCmd) Help() string {
	return `Sends a message to and fro between two queue pairs and takes the time of each round trip: by SEND, or by RDMA WRITE with
immediate data. READ and atomic operations go one way only. The client's operation, type and sizes hold for both ends.

Examples:
  verbena pingpong --embedded
  verbena run -- verbena pingpong &
  verbena wait --listen 18515
  verbena run -- verbena pingpong 127.0.0.1
  verbena run -- verbena pingpong --compat 10.0.0.2          the server is ibv_rc_pingpong -d rxe0 -g 1`
}

func (p *pingpongCmd) Run(c *cli) error {
	if p.Iters < 1 {
		return fmt.Errorf("pingpong: --iters %d is less than 1", p.Iters)
	}
	l := p.localParams()
	params := measure.Params{Type: p.Type, Op: measure.Op(p.Op), Size: int(p.Size), Iters: p.Iters, MTU: p.MTU}
	client := func(ctx context.Context, dev *verbs.Device, conn net.Conn) (*measure.Result, error) {
		return measure.PingPong(ctx, dev, conn, params, l)
	}
	server := newServerSide(l)
	if p.Compat {
		if params.MTU == 0 {
			params.MTU = 1024 // the default values of rdma-core's programs
		}
		client = func(ctx context.Context, dev *verbs.Device, conn net.Conn) (*measure.Result, error) {
			return measure.CompatPingPong(ctx, dev, conn, true, params, l)
		}
		server = func(ctx context.Context, dev *verbs.Device, conn net.Conn) (*measure.Result, error) {
			return measure.CompatPingPong(ctx, dev, conn, false, params, l)
		}
	}
	r, err := p.runExchange(c, "pingpong", l, client, server)
	clearProgressLine(l)
	if err != nil {
		return err
	}
	return printOutput(p.JSON, r, func(w io.Writer) { printPingPong(w, r) })
}

func newServerSide(l measure.LocalParams) exchangeSide {
	return func(ctx context.Context, dev *verbs.Device, conn net.Conn) (*measure.Result, error) {
		return measure.Serve(ctx, dev, conn, l)
	}
}

// describeWaitMode returns the description of how a side waits for completions.
func describeWaitMode(r *measure.Result) string {
	if r.Events {
		return "events"
	}
	return "polling"
}

// describeMessages returns a description of the messages.
func describeMessages(r *measure.Result) string {
	return fmt.Sprintf("%s %s of %d bytes on %s, %s", r.Type, r.Op, r.Size, r.Device, describeWaitMode(r))
}

func printPingPong(w io.Writer, r *measure.Result) {
	p := r.RoundTrip
	if p == nil {
		printServerResult(w, r)
		return
	}
	each := float64(p.Elapsed.Nanoseconds()) / 1e3 / float64(max(p.Messages, 1))
	fmt.Fprintf(w, "%s: %d round trips in %v, %.2f us each, %s\n",
		describeMessages(r), p.Messages, p.Elapsed.Round(time.Microsecond),
		each, formatBandwidth(p.BytesPerSecond))
	if len(p.Times.Buckets) > 0 {
		t := &p.Times
		fmt.Fprintf(w, "us: min %.2f, p50 %.2f, p90 %.2f, p99 %.2f, p99.9 %.2f, p99.99 %.2f, max %.2f\n",
			toMicroseconds(t.Min),
			toMicroseconds(t.P50), toMicroseconds(t.P90), toMicroseconds(t.P99),
			toMicroseconds(t.P999), toMicroseconds(t.P9999), toMicroseconds(t.Max))
		t.WriteHistogram(w)
	}
}

func printServerResult(w io.Writer, r *measure.Result) {
	fmt.Fprintf(w, "served %s", describeMessages(r))
	if r.Received >= 0 {
		fmt.Fprintf(w, ": %d messages received", r.Received)
	}
	fmt.Fprintln(w)
}

func toMicroseconds(ns int64) float64 { return float64(ns) / 1e3 }

func formatBandwidth(b float64) string {
	switch {
	case b >= 1e9:
		return fmt.Sprintf("%.2f GB/s", b/1e9)
	case b >= 1e6:
		return fmt.Sprintf("%.1f MB/s", b/1e6)
	}
	return fmt.Sprintf("%.1f kB/s", b/1e3)
}

type perfCmd struct {
	exchangeFlags
	Size     byteSize      `short:"s" help:"Bytes of a message, such as 4096 or 64K; a datagram is at most one MTU; default: ${default}." default:"65536" placeholder:"BYTES" complete:"none"`
	Test     string        `help:"Phases to run: latency (one message at a time), bandwidth (--depth messages on each queue pair), or both; default: ${default}." enum:"latency,bandwidth,both" default:"both" placeholder:"TEST"`
	QPs      int           `short:"q" name:"qps" help:"Queue pairs of the bandwidth phase; default: ${default}." default:"1" placeholder:"N" complete:"none"`
	Depth    int           `help:"Messages in flight on each queue pair; default: ${default}." default:"64" placeholder:"N" complete:"none"`
	Duration time.Duration `short:"D" help:"Duration of a phase; default: ${default}." default:"2s" placeholder:"D" complete:"none"`
	Iters    int           `short:"n" help:"Number of messages of a phase; it replaces --duration." placeholder:"N" complete:"none"`
}

func (p *perfCmd) Help() string {
	return `Takes the time of single messages from the post to the completion, then how many pass with many in flight. Only SEND needs the
server's processor; it counts what it has received, since UC and UD messages may be lost. The client's flags hold for both ends.

Examples:
  verbena perf --embedded
  verbena perf --embedded --op send --size 64 --qps 4 --json
  verbena run -- verbena perf &
  verbena wait --listen 18515
  verbena run -- verbena perf --op read --size 1M 127.0.0.1`
}

func (p *perfCmd) Run(c *cli) error {
	if p.Iters < 0 || p.Iters == 0 && p.Duration <= 0 {
		return fmt.Errorf("perf: --iters %d, --duration %v: neither may be negative, and one must be more than 0", p.Iters,
			p.Duration)
	}
	l := p.localParams()
	params := measure.Params{
		Type: p.Type, Op: measure.Op(p.Op), Size: int(
			p.Size), Iters: p.Iters, Duration: p.Duration, QPs: p.QPs, Depth: p.Depth, MTU: p.MTU,
	}
	if p.Iters > 0 {
		params.Duration = 0
	}
	r, err := p.runExchange(c, "perf", l, func(ctx context.Context, dev *verbs.Device, conn net.Conn) (*measure.Result,
		error) {
		return measure.Perf(ctx, dev, conn, params, measure.PerfTest(p.Test), l)
	}, newServerSide(l))
	clearProgressLine(l)
	if err != nil {
		return err
	}
	return printOutput(p.JSON, r, func(w io.Writer) { printPerf(w, r) })
}

func printPerf(w io.Writer, r *measure.Result) {
	if r.Latency == nil && r.Bandwidth == nil {
		printServerResult(w, r)
		return
	}
	fmt.Fprintln(w, describeMessages(r))
	fmt.Fprintln(w, "PHASE\tQPS\tDEPTH\tMESSAGES\tTIME\tBANDWIDTH\tMESSAGES/S\tMIN US\tP50\tP90\tP99\tP99.9\tMAX")
	for _, x := range []struct {
		name       string
		p          *measure.Phase
		qps, depth int
	}{{"latency", r.Latency, 1, 1}, {"bandwidth", r.Bandwidth, r.QPs, r.Depth}} {
		if x.p == nil {
			continue
		}
		t := &x.p.Times
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%v\t%s\t%.0f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\n", x.name, x.qps, x.depth,
			x.p.Messages,
			x.p.Elapsed.Round(time.Millisecond), formatBandwidth(x.p.BytesPerSecond), x.p.MessagesPerSecond,
			toMicroseconds(t.Min),
			toMicroseconds(t.P50), toMicroseconds(
				t.P90), toMicroseconds(t.P99),
			toMicroseconds(t.P999), toMicroseconds(t.Max))
	}
	if sent := cmp.Or(r.Bandwidth, r.Latency); r.Type != "rc" && r.Op == measure.Send && sent != nil {
		fmt.Fprintf(w, "%d messages received by the server, of all phases\n", r.Received)
	}
}
