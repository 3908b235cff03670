package link

import (
	"errors"
	"net/netip"
	"sync/atomic"
)

// Port is the UDP port of RoCEv2.
const Port = 4791

// ErrAgain: the socket has no room now; nothing of the train was sent. Try again a little later.
var ErrAgain = errors.New("socket buffer is full")

// ICRCLen is the room for the ICRC at the end of each packet, in bytes.
const ICRCLen = 4

// MaxTrain is the largest Train.Buf, in bytes, and MaxTrainPackets the largest number of packets in it: limits of
// the kernel's UDP segmentation offload with room for the headers.
const (
	MaxTrain        = 65000
	MaxTrainPackets = 64
)

// Train is a run of packets to one destination.
type Train struct {
	Dst netip.Addr // with zone if link-local
	// Buf holds the packets back to back, each from its BTH through ICRCLen bytes of room for the ICRC. All but
	// the last are Size bytes long; the last is at most that.
	Buf  []byte
	Size int
	TOS  uint8 // DSCP and ECN, 0 usually
	TTL  uint8 // 0: 64
	// SPort is the UDP source port, by which routers spread flows; 0: Port. An endpoint that cannot have it sends from
	// Port.
	SPort uint16
	// QP is the number of the queue pair that sends, 0 if there is none: fault rules and captures ask for it, which a
	// packet does not tell.
	QP uint32
	// SL is the service level of the address vector, for fault rules: a packet of RoCE does not tell it.
	SL uint8
}

// Endpoint is one local address.
type Endpoint interface {
	// Addr is the local address, with zone if link-local.
	Addr() netip.Addr
	// Send fills in the ICRCs and sends the train. It may not sleep and does not keep the buffer. It is safe for
	// concurrent use; trains of one caller leave in order. An error other than ErrAgain says that the train
	// cannot be delivered (no route, too long for the link); it is counted and needs no handling beyond that,
	// since the transport recovers from loss.
	Send(t *Train) error
	// Close stops the receive thread, waits for it, and frees the address. It does not wait for a call of Receive that
	// has not returned for long. It may sleep, and must not be called from the Receiver.
	Close() error
}

// MaxBatch is the largest number of trains that SendSome sends.
const MaxBatch = 4

// BatchSender is an Endpoint that sends several trains to one destination with one system call.
type BatchSender interface {
	Endpoint
	// SendSome sends the first trains of a list like Send, and returns their number. After 0 the caller must use Send
	// for the first one, which returns the reason. It may not sleep, does not keep the buffers, and is safe for
	// concurrent use.
	SendSome(list []*Train) int
}

// Arrival is a batch of packets from one source that came back to back.
type Arrival struct {
	Src, Dst netip.Addr // Dst is the endpoint's address, or a multicast group
	TOS, TTL uint8      // of the IP headers
	// Packets hold each packet from its BTH on, without the ICRC, which was right. They are valid until Receive
	// returns.
	Packets [][]byte
	// Late, which may be nil, becomes true when Receive has taken so long that another thread receives in the place of its
	// own. What is left of the batch is to be dropped: newer packets may have overtaken it.
	Late *atomic.Bool
	// By is what was given to [Turn.Take], nil on a receive thread.
	By any
}

// Dropped reports whether what is left of the batch is to be dropped.
func (a *Arrival) Dropped() bool { return a.Late != nil && a.Late.Load() }

// Receiver takes what arrives.
type Receiver interface {
	// Receive processes a batch. It may not sleep, but for the memory of a process that does not answer: an endpoint does
	// without the thread then. It is called from one thread at a time for the endpoint, and from one for the groups
	// that it has joined, so that packets from one source to one destination stay in order.
	Receive(a *Arrival)
}

// Taker is an Endpoint from which a thread of the same process can receive what it has sent there itself. The host's network
// delivers to its own addresses before the call that sends returns, so nobody else needs to wake for that.
type Taker interface {
	Endpoint
	// Claim has the caller receive from now on, until Yield, which must follow soon: what comes from elsewhere waits
	// too. It returns nil where another thread receives, which will get what is sent next. It may not sleep.
	Claim() Turn
	// Expect announces packets that the caller does not receive itself. Without it, after many claims, they may wait a
	// millisecond for the receive thread. It may not sleep.
	Expect()
}

// Turn is the right to receive from an endpoint. One thread has it; it may not sleep as long as it does, but in Receive.
type Turn interface {
	// Take hands the packets in the socket to the Receiver, on this thread, with Arrival.By, and reports whether there
	// were any. It takes the given number of trains and one more, which shows whether others send too, and may leave the
	// rest.
	Take(by any, trains int) bool
	// Yield gives the turn back. It does nothing where Receive took so long that another thread has it (Arrival.Late).
	Yield()
	// Abandon gives the turn to another, on another thread than that which has it, which is stopped: it finds itself late.
	Abandon()
}

// Network opens endpoints.
type Network interface {
	// Listen claims port 4791 of a local address and starts to receive. It may sleep.
	Listen(addr netip.Addr, r Receiver) (Endpoint, error)
}
