package transport

import (
	"time"

	"verbena/roce"
)

// Recovery determines the number of bytes that a sender may have in flight, and the time it waits for an
// acknowledgement before it retransmits. It belongs to one [Sender], which calls it.
type Recovery interface {
	// Reset returns to the state of a new connection.
	Reset()
	// Window returns the largest number of unacknowledged bytes, including [PacketCost] for each packet. One packet is
	// always allowed.
	Window() int
	// Acked reports newly acknowledged bytes.
	Acked(bytes int)
	// Lost reports a loss, before the sender retransmits all unacknowledged packets. mtu is the path MTU in bytes.
	Lost(mtu int)
	// Timeout returns the time to wait for an acknowledgement, for the requested local ACK timeout, and the time before
	// a probe; 0: no timeout, or no probe.
	Timeout(t roce.AckTimeout) (timeout, probe time.Duration)
}

const (
	startWindow = 256 << 10
	maxWindow   = 1 << 20

	// MinTimeout is the floor of the local ACK timeout. A timeout below a scheduling delay would report slow threads as
	// lost packets. The floor in the kernel is a jiffy.
	MinTimeout = 4 * time.Millisecond
	// ProbeAfter is the time until the first probe with the oldest packet. The time doubles for each further probe.
	ProbeAfter = MinTimeout
	// maxProbeAfter limits this time after needless probes.
	maxProbeAfter = 256 * time.Millisecond
)

// AIMD is a window that grows by a chunk for each acknowledged window, and halves at each loss. Bytes is the size of
// the window.
type AIMD struct{ Bytes int }

// Reset implements [Recovery].
func (w *AIMD) Reset() { w.Bytes = startWindow }

// Window implements [Recovery].
func (w *AIMD) Window() int { return w.Bytes }

// Acked implements [Recovery].
func (w *AIMD) Acked(bytes int) {
	w.Bytes = min(w.Bytes+max(1, ReadChunk*bytes/w.Bytes), maxWindow)
}

// Lost implements [Recovery].
func (w *AIMD) Lost(mtu int) { w.Bytes = max(w.Bytes/2, mtu+PacketCost) }

// Unprobed disables the probes of a Recovery: it retransmits only after the timeout.
type Unprobed struct{ Recovery }

// Timeout implements [Recovery].
func (u Unprobed) Timeout(code roce.AckTimeout) (timeout, probe time.Duration) {
	timeout, _ = u.Recovery.Timeout(code)
	return timeout, 0
}

// Timeout implements [Recovery]. A short timeout has no probe.
func (*AIMD) Timeout(code roce.AckTimeout) (timeout, probe time.Duration) {
	t := code.Duration()
	switch {
	case t == 0:
		return 0, 0
	case t < 2*ProbeAfter:
		return max(t, MinTimeout), 0
	}
	return max(t, MinTimeout), ProbeAfter
}
