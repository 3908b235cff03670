package link

import (
	"errors"
	"net/netip"
	"sync/atomic"
)

// Port is the UDP port of RoCEv2.
const Port = 4791

// ErrAgain reports that the socket has no room and that no packet of the train was sent. The caller can retry a little
// later.
var ErrAgain = errors.New("socket buffer is full")

// ICRCLen is the room for the ICRC at the end of each packet, in bytes.
const ICRCLen = 4

// MaxTrain is the largest Train.Buf, in bytes. MaxTrainPackets is the largest number of packets in it. They are the
// limits of the kernel's UDP segmentation offload, less room for the headers.
const (
	MaxTrain        = 65000
	MaxTrainPackets = 64
)

// Train is a sequence of packets to one destination.
type Train struct {
	Dst netip.Addr // with zone if link-local
	// Buf holds the packets back to back, each from its BTH to ICRCLen bytes of room for the ICRC. All packets but the
	// last are Size bytes long. The last is at most Size bytes long.
	Buf  []byte
	Size int
	TOS  uint8 // DSCP and ECN, usually 0
	TTL  uint8 // 0: 64
	// SPort is the UDP source port, by which routers spread flows; 0: Port. If the port is not available, the endpoint
	// sends from Port.
	SPort uint16
	// QP is the number of the sending queue pair, or 0 if there is none. Fault rules and captures use it; the packets
	// do not contain it.
	QP uint32
	// SL is the service level of the address vector, for fault rules. RoCE packets do not contain it.
	SL uint8
}

// Endpoint is a local address that sends and receives packets.
type Endpoint interface {
	// Addr returns the local address, with zone if link-local.
	Addr() netip.Addr
	// Send fills in the ICRCs and sends the train. It may not sleep and does not keep the buffer. It is safe for
	// concurrent use. Trains of one caller leave in order. An error other than ErrAgain means that the train cannot be
	// delivered (no route, too long for the link). The endpoint counts the error. The caller need not handle it, since
	// the transport recovers from loss.
	Send(t *Train) error
	// Close stops the receive thread, waits for its end, and frees the address. It does not wait for a call of Receive
	// that has been blocked for long. It may sleep, and must not be called from the Receiver.
	Close() error
}

// MaxBatch is the largest number of trains that SendSome sends.
const MaxBatch = 4

// BatchSender is an Endpoint that sends several trains to one destination with one system call.
type BatchSender interface {
	Endpoint
	// SendSome sends the first trains of a list like Send, and returns the number of sent trains. If it returns 0, the
	// caller must use Send for the first train; Send returns the reason. SendSome may not sleep, does not keep the
	// buffers, and is safe for concurrent use.
	SendSome(list []*Train) int
}

// Arrival is a batch of consecutive packets from one source.
type Arrival struct {
	Src, Dst netip.Addr // Dst is the endpoint's address, or a multicast group
	TOS, TTL uint8      // in the IP headers
	// Packets holds each packet from its BTH to the end, without the ICRC, which was correct. The slices are valid
	// until Receive returns.
	Packets [][]byte
	// Late, which may be nil, becomes true when Receive has taken so long that another thread receives instead. The
	// Receiver must drop the rest of the batch, since newer packets can have overtaken it.
	Late *atomic.Bool
	// By is the value passed to [Turn.Take], or nil on a receive thread.
	By any
}

// Dropped reports whether the Receiver must drop the rest of the batch.
func (a *Arrival) Dropped() bool { return a.Late != nil && a.Late.Load() }

// Receiver processes the received packets of an endpoint.
type Receiver interface {
	// Receive processes a batch. It may not sleep, except for an access to the memory of an unresponsive process: the
	// endpoint then replaces the thread. One thread at a time calls Receive for the endpoint, and one for its multicast
	// groups. Thus packets from one source to one destination stay in order.
	Receive(a *Arrival)
}

// Taker is an Endpoint from which a sending thread of the same process can receive its own packets. The network of the
// host delivers packets to a local address before the send returns, so no other thread need wake for them.
type Taker interface {
	Endpoint
	// Claim gives the receive token to the caller until Yield, which must follow soon. Packets from other senders wait
	// meanwhile. Claim returns nil if another thread holds the token; that thread will receive the next packets. It may
	// not sleep.
	Claim() Turn
	// Expect announces packets that the caller does not receive itself. Without Expect, after many claims, these
	// packets can wait a millisecond for the receive thread. Expect may not sleep.
	Expect()
}

// Turn is the receive token of an endpoint: the right to receive from it. One thread holds the token. The holder may
// not sleep, except in Receive.
type Turn interface {
	// Take passes the packets in the socket to the Receiver, on this thread, with the given Arrival.By. It reports
	// whether there were any. It receives at most one train more than the given number, and may leave the rest. The
	// additional train shows whether others also send.
	Take(by any, trains int) bool
	// Yield returns the token. It does nothing if the holder has lost the token in a slow call of Receive
	// (Arrival.Late).
	Yield()
	// Abandon takes the token from a blocked holder, which becomes late. It is called on another thread than that of
	// the holder.
	Abandon()
}

// Network opens endpoints.
type Network interface {
	// Listen claims port 4791 of a local address and starts to receive. It may sleep.
	Listen(addr netip.Addr, r Receiver) (Endpoint, error)
}
