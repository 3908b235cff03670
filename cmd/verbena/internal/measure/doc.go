// Package measure exchanges messages between the queue pairs of two ends, and measures the time of the exchange.
// The ends negotiate over a stream, which is a TCP connection or a net.Pipe within one process. The client sends
// its parameters and endpoints. The server makes matching queue pairs, connects them, and answers with its own
// endpoints and memory. The client begins after it has connected, and reports when it is done. The server then
// answers with the number of received messages. Each end reports every second that it is alive, and sends the error
// if it fails.
package measure

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"verbena/verbs"
)

// Op is an operation to measure.
type Op string

// The operations. In a ping-pong each side replies to the other by a send, or by a write with immediate data. READ and
// atomic operations involve only the client.
const (
	Send   Op = "send"
	Write  Op = "write"
	Read   Op = "read"
	Atomic Op = "atomic" // FETCH_ADD of 8 bytes
)

// Params holds the parameters common to both ends. The client chooses the parameters and sends them to the server.
type Params struct {
	Type  string `json:"type"` // rc, uc or ud
	Op    Op     `json:"op"`
	Size  int    `json:"size"`            // bytes per message
	Iters int    `json:"iters,omitempty"` // messages of a phase, or round trips of a ping-pong; 0: use Duration
	// Duration is the duration of a phase if Iters is 0.
	Duration time.Duration `json:"duration_ns,omitempty"`
	QPs      int           `json:"qps"`
	Depth    int           `json:"depth"`         // messages in flight on each queue pair
	MTU      int           `json:"mtu,omitempty"` // in bytes; 0: the largest MTU that both ports support
}

// LocalParams holds the parameters of one end.
type LocalParams struct {
	Port     int  // port of the device; 0: 1
	GIDIndex int  // -1: the default GID of the port
	Events   bool // sleep until completions arrive, instead of polling
	// Progress, if not nil, is called every second of a phase.
	Progress func(phase string, messages int64, elapsed time.Duration)
}

const (
	maxSize  = 64 << 20 // bounds the memory that a client can make the server allocate
	maxQPs   = 1024
	maxDepth = 4096
	maxIters = 1 << 40
	grhSize  = 40 // GRH in front of a received datagram
)

// transportOps maps the name of each transport service to its operations.
var transportOps = map[string]struct {
	t   verbs.QPType
	ops []Op
}{
	"rc": {verbs.RC, []Op{Send, Write, Read, Atomic}},
	"uc": {verbs.UC, []Op{Send, Write}},
	"ud": {verbs.UD, []Op{Send}},
}

// Check returns an error if the parameters are invalid. Check also sets sizes that the operation determines.
func (p *Params) Check() error {
	t, ok := transportOps[p.Type]
	if !ok {
		return fmt.Errorf("type %.20q is not rc, uc or ud", p.Type)
	}
	if !slices.Contains(t.ops, p.Op) {
		return fmt.Errorf("type %s has no operation %.20q: its operations are %v", p.Type, p.Op, t.ops)
	}
	if p.Op == Atomic {
		p.Size = 8
	}
	for _, f := range []struct {
		name     string
		v        int
		low, top int
	}{
		{"size", p.Size, 1, maxSize}, {"qps", p.QPs, 1, maxQPs}, {"depth", p.Depth, 1, maxDepth}, {"iters", p.Iters, 0,
			maxIters},
	} {
		if f.v < f.low || f.v > f.top {
			return fmt.Errorf("%s %d is not in the range from %d to %d", f.name, f.v, f.low, f.top)
		}
	}
	if p.Iters == 0 && p.Duration <= 0 {
		return errors.New("iters and duration are both 0: a phase needs one of them")
	}
	_, err := p.mtuCode()
	return err
}

// mtuCode returns the code of the MTU, or 0 for the largest MTU.
func (p *Params) mtuCode() (verbs.MTU, error) {
	if p.MTU == 0 {
		return 0, nil
	}
	for m := verbs.MTU(1); m <= 5; m++ {
		if m.Bytes() == p.MTU {
			return m, nil
		}
	}
	return 0, fmt.Errorf("mtu %d is not 256, 512, 1024, 2048 or 4096", p.MTU)
}

// consumesReceive reports whether a message consumes a receive of the server.
func (p *Params) consumesReceive(pingPong bool) bool {
	return p.Op == Send || p.Op == Write && pingPong
}

// Result holds the measurements of one end.
type Result struct {
	Device string `json:"device"`
	Params
	Events bool `json:"events"`
	// RoundTrip is the phase of a ping-pong. Latency is the phase of single messages, measured from post to
	// completion. Bandwidth is the phase with Depth messages in flight.
	RoundTrip *Phase `json:"round_trip,omitempty"`
	Latency   *Phase `json:"latency,omitempty"`
	Bandwidth *Phase `json:"bandwidth,omitempty"`
	// Received is the number of messages that the server has received; -1 if the server does not count.
	Received int64 `json:"received"`
}

// Phase holds the measurements of a phase.
type Phase struct {
	Messages int64            `json:"messages"` // or number of round trips
	Elapsed  time.Duration    `json:"elapsed_ns"`
	Times    TimeDistribution `json:"times_ns"`
	// BytesPerSecond and MessagesPerSecond count one direction. A round trip counts as two messages.
	BytesPerSecond    float64 `json:"bytes_per_second"`
	MessagesPerSecond float64 `json:"messages_per_second"`
}

func newPhase(messages int64, each int, elapsed time.Duration, size int, l *latencyHistogram) *Phase {
	rate := float64(messages*int64(each)) / max(elapsed, 1).Seconds()
	return &Phase{Messages: messages, Elapsed: elapsed, Times: l.timeDistribution(), MessagesPerSecond: rate,
		BytesPerSecond: rate * float64(size)}
}

// portOrDefault returns the port of the device, or 1 if none is set.
func (l *LocalParams) portOrDefault() int { return cmp.Or(l.Port, 1) }
