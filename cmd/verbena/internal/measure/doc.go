// Package measure exchanges messages between queue pairs of two ends, and takes how long that lasts. The ends agree by
// a stream, a TCP connection or a net.Pipe within one process: the client sends its parameters and endpoints, the
// server makes queue pairs that suit, connects them, and answers with its own endpoints and memory. The client begins
// when it has connected, says when it is done, and the server answers how many messages it has received. Meanwhile each
// says every second that it runs, and, when it fails, why.
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

// The operations. In a ping-pong each side sends, or writes with immediate data, in reply to the other; READ and atomic
// operations need the client alone.
const (
	Send   Op = "send"
	Write  Op = "write"
	Read   Op = "read"
	Atomic Op = "atomic" // FETCH_ADD of 8 bytes
)

// Params are what both ends must agree on. The client has them, and sends them to the server.
type Params struct {
	Type  string `json:"type"` // rc, uc or ud
	Op    Op     `json:"op"`
	Size  int    `json:"size"`            // of a message, in bytes
	Iters int    `json:"iters,omitempty"` // messages of a phase, round trips of a ping-pong; 0: as many as Duration allows
	// Duration is how long a phase lasts if Iters is 0.
	Duration time.Duration `json:"duration_ns,omitempty"`
	QPs      int           `json:"qps"`
	Depth    int           `json:"depth"`         // messages in flight on each queue pair
	MTU      int           `json:"mtu,omitempty"` // in bytes; 0: the largest that both ports take
}

// Local is what one end decides for itself.
type Local struct {
	Port     int  // of the device; 0: 1
	GIDIndex int  // -1: the default GID of the port
	Events   bool // sleep until completions come, rather than poll
	// Progress, if not nil, is called every second of a phase.
	Progress func(phase string, messages int64, elapsed time.Duration)
}

const (
	maxSize  = 64 << 20 // the client of a server decides how much memory that takes
	maxQPs   = 1024
	maxDepth = 4096
	maxIters = 1 << 40
	grhSize  = 40 // that a datagram is received behind
)

// types are the transport services by their names, with the operations that each has.
var types = map[string]struct {
	t   verbs.QPType
	ops []Op
}{
	"rc": {verbs.RC, []Op{Send, Write, Read, Atomic}},
	"uc": {verbs.UC, []Op{Send, Write}},
	"ud": {verbs.UD, []Op{Send}},
}

// Check returns an error if the parameters are of no exchange. It takes the place of sizes that an operation fixes.
func (p *Params) Check() error {
	t, ok := types[p.Type]
	if !ok {
		return fmt.Errorf("type %.20q is none of rc, uc and ud", p.Type)
	}
	if !slices.Contains(t.ops, p.Op) {
		return fmt.Errorf("type %s has no operation %.20q: it has %v", p.Type, p.Op, t.ops)
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
			return fmt.Errorf("%s %d is not within %d to %d", f.name, f.v, f.low, f.top)
		}
	}
	if p.Iters == 0 && p.Duration <= 0 {
		return errors.New("iters 0 and no duration: a phase needs one of them")
	}
	_, err := p.mtu()
	return err
}

// mtu returns the code of the MTU, 0 for the largest.
func (p *Params) mtu() (verbs.MTU, error) {
	if p.MTU == 0 {
		return 0, nil
	}
	for m := verbs.MTU(1); m <= 5; m++ {
		if m.Bytes() == p.MTU {
			return m, nil
		}
	}
	return 0, fmt.Errorf("mtu %d is none of 256, 512, 1024, 2048 and 4096", p.MTU)
}

// receives reports whether messages consume receives of the server.
func (p *Params) receives(pingPong bool) bool {
	return p.Op == Send || p.Op == Write && pingPong
}

// Result is what an end has measured.
type Result struct {
	Device string `json:"device"`
	Params
	Events bool `json:"events"`
	// RoundTrip is of a ping-pong; Latency of single messages, from the post to the completion; Bandwidth of Depth
	// messages in flight.
	RoundTrip *Phase `json:"round_trip,omitempty"`
	Latency   *Phase `json:"latency,omitempty"`
	Bandwidth *Phase `json:"bandwidth,omitempty"`
	// Received is how many messages the server has received; -1 if it need not know.
	Received int64 `json:"received"`
}

// Phase is a part of a measurement.
type Phase struct {
	Messages int64         `json:"messages"` // or round trips
	Elapsed  time.Duration `json:"elapsed_ns"`
	Times    Times         `json:"times_ns"`
	// BytesPerSecond and MessagesPerSecond are of one direction; a round trip counts twice.
	BytesPerSecond    float64 `json:"bytes_per_second"`
	MessagesPerSecond float64 `json:"messages_per_second"`
}

func newPhase(messages int64, each int, elapsed time.Duration, size int, l *latencies) *Phase {
	rate := float64(messages*int64(each)) / max(elapsed, 1).Seconds()
	return &Phase{Messages: messages, Elapsed: elapsed, Times: l.times(), MessagesPerSecond: rate,
		BytesPerSecond: rate * float64(size)}
}

// portOr1 returns the port of the device.
func (l *Local) portOr1() int { return cmp.Or(l.Port, 1) }
