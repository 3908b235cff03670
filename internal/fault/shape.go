package fault

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Rate is a number of bits per second.
type Rate uint64

// Size is a number of bytes.
type Size uint64

// Shape describes how the link of a device limits and delays sent packets. Packets to all addresses of the device
// wait in one queue until the rate allows them to leave, and then for the delay. The zero Shape has no effect.
//
// The tags are the names of the fields in the control protocol (json), in scenario files (yaml) and on the command
// line.
type Shape struct {
	// Rate limits the sent packets, counted with their IP headers; 0 means no limit.
	Rate Rate `json:"rate_bps,omitempty" yaml:"rate" help:"Limit of the rate of sent packets, such as 100Mbit; none removes the limit." placeholder:"RATE" complete:"none"`
	// Delay is the transmission delay of each packet. Jitter is an additional random time of up to its value.
	// Jitter makes packets overtake each other.
	Delay  time.Duration `json:"delay_ns,omitempty" yaml:"delay" help:"Delay of each packet on the link, such as 20us." placeholder:"D" complete:"none"`
	Jitter time.Duration `json:"jitter_ns,omitempty" yaml:"jitter" help:"Additional random delay, up to this time; packets may overtake each other." placeholder:"D" complete:"none"`
	// QueueBytes and QueuePackets limit the packets that wait for the rate. Further packets are dropped. 0 means no
	// limit of this kind. If both are 0, the limit is [DefaultQueue].
	QueueBytes   Size   `json:"queue_bytes,omitempty" yaml:"queue" kong:"-"`
	QueuePackets uint64 `json:"queue_packets,omitempty" yaml:"packets" kong:"-"`
	// ECN is the length of the queue above which packets of an ECN-capable transport (ECT) are marked with
	// congestion experienced; 0 means never.
	ECN Size `json:"ecn_bytes,omitempty" yaml:"ecn" name:"ecn-threshold" help:"Mark packets of an ECN-capable transport with congestion experienced while more bytes than this wait." placeholder:"BYTES" complete:"none"`
	// Loss is the probability that a packet is lost in transit.
	Loss Share `json:"loss,omitempty" yaml:"loss" help:"Share of packets lost on the link, such as 1% or 0.01." placeholder:"P" complete:"none"`
	// Seed seeds the random numbers of Jitter and Loss. 0 means a different seed each time. A scenario has one seed
	// for all random numbers.
	Seed uint64 `json:"seed,omitempty" yaml:"-" help:"Seed of jitter and loss; default: a different seed each time." placeholder:"N" complete:"none"`
}

// The following constants are the limits of a Shape.
const (
	MinRate         = 1_000             // a kilobit per second
	MaxRate         = 1_000_000_000_000 // a terabit per second
	DefaultQueue    = 4 << 20           // bytes: four windows of a queue pair of driver/rxe
	MaxQueue        = 64 << 20          // bytes
	MaxQueuePackets = 1 << 16
)

// ErrShape is wrapped by the errors of [Shape.Validate].
var ErrShape = errors.New("bad shape of the link")

// Validate returns an error for invalid values. Validate's error wraps [ErrShape].
func (s *Shape) Validate() error {
	switch {
	case s.Rate != 0 && (s.Rate < MinRate || s.Rate > MaxRate):
		return fmt.Errorf("%w: rate of %d bit/s is not from %d to %d", ErrShape, s.Rate, uint64(MinRate), uint64(MaxRate))
	case s.Delay < 0 || s.Delay > maxDelay:
		return fmt.Errorf("%w: delay %v is not from 0 to %v", ErrShape, s.Delay, maxDelay)
	case s.Jitter < 0 || s.Jitter > maxDelay:
		return fmt.Errorf("%w: jitter %v is not from 0 to %v", ErrShape, s.Jitter, maxDelay)
	case s.QueueBytes > MaxQueue:
		return fmt.Errorf("%w: queue of %d bytes exceeds %d", ErrShape, s.QueueBytes, MaxQueue)
	case s.QueuePackets > MaxQueuePackets:
		return fmt.Errorf("%w: queue of %d packets exceeds %d", ErrShape, s.QueuePackets, MaxQueuePackets)
	case s.ECN > MaxQueue:
		return fmt.Errorf("%w: ecn threshold of %d bytes exceeds %d", ErrShape, s.ECN, MaxQueue)
	case s.Rate == 0 && (s.QueueBytes != 0 || s.QueuePackets != 0 || s.ECN != 0):
		return fmt.Errorf("%w: a queue and an ecn threshold need a rate, for which packets wait", ErrShape)
	case !(s.Loss >= 0 && s.Loss <= 1):
		return fmt.Errorf("%w: loss %v is not a probability from 0 to 1", ErrShape, s.Loss)
	case s.Seed != 0 && s.Jitter == 0 && s.Loss == 0:
		return fmt.Errorf("%w: a seed is for jitter and loss", ErrShape)
	}
	return nil
}

// HasEffect reports whether the Shape has any effect.
func (s *Shape) HasEffect() bool { return s.Rate > 0 || s.Delay > 0 || s.Jitter > 0 || s.Loss > 0 }

// String formats the shape, for example as "rate 10Gbit delay 20µs", or as "" without an effect.
func (s Shape) String() string {
	var w []string
	word := func(show bool, format string, args ...any) {
		if show {
			w = append(w, fmt.Sprintf(format, args...))
		}
	}
	word(s.Rate > 0, "rate %v", s.Rate)
	word(s.Delay > 0, "delay %v", s.Delay)
	word(s.Jitter > 0, "jitter %v", s.Jitter)
	word(s.QueueBytes > 0, "queue %d bytes", s.QueueBytes)
	word(s.QueuePackets > 0, "queue %d packets", s.QueuePackets)
	word(s.ECN > 0, "ecn above %d bytes", s.ECN)
	word(s.Loss > 0, "loss %v", s.Loss)
	word(s.Seed > 0, "seed %d", s.Seed)
	return strings.Join(w, " ")
}

// String formats the rate in the style of tc(8): "100Mbit".
func (r Rate) String() string {
	for _, u := range []struct {
		n    Rate
		name string
	}{{1e12, "Tbit"}, {1e9, "Gbit"}, {1e6, "Mbit"}, {1e3, "Kbit"}} {
		if r >= u.n && r%(u.n/1000) == 0 {
			return strconv.FormatFloat(float64(r)/float64(u.n), 'f', -1, 64) + u.name
		}
	}
	return fmt.Sprintf("%dbit", uint64(r))
}
