package transport

import (
	"time"

	"verbena/roce"
)

// Recovery decides how many bytes a sender may have in flight, and how long it waits for an acknowledgement before it
// sends again. One belongs to one [Sender], which calls it.
type Recovery interface {
	// Reset returns to the state of a new connection.
	Reset()
	// Window returns the bytes that may be unacknowledged, packets counted with [PacketCost]. One packet is always
	// allowed.
	Window() int
	// Acked notes that so many bytes have been acknowledged.
	Acked(bytes int)
	// Lost notes that packets have been lost, and all that is unacknowledged is about to be sent again. mtu is the path
	// MTU in bytes.
	Lost(mtu int)
	// Timeout returns how long to wait for an acknowledgement, for the local ACK timeout that the consumer asked for,
	// and after how long to probe for it; 0: not at all.
	Timeout(t roce.AckTimeout) (timeout, probe time.Duration)
}

const (
	startWindow = 256 << 10
	maxWindow   = 1 << 20

	// MinTimeout is the floor of the local ACK timeout. Anything below a scheduling delay would report slow threads as
	// lost packets. The kernel's is a jiffy.
	MinTimeout = 4 * time.Millisecond
	// ProbeAfter is when the oldest packet is sent again for the first time; then each time after twice as long.
	ProbeAfter = MinTimeout
	// maxProbeAfter bounds what that time becomes where probes are needless.
	maxProbeAfter = 256 * time.Millisecond
)

// AIMD is a window that grows by a chunk for each window that has been acknowledged, and halves with each loss. Bytes
// is its size.
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

// Unprobed is a policy without probes: nothing is sent again before the timeout.
type Unprobed struct{ Recovery }

// Timeout implements [Recovery].
func (u Unprobed) Timeout(code roce.AckTimeout) (timeout, probe time.Duration) {
	timeout, _ = u.Recovery.Timeout(code)
	return timeout, 0
}

// Timeout implements [Recovery]. There is no probe where the timeout comes soon enough.
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
