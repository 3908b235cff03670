package transport

import "verbena/roce"

// Kind is the kind of a request.
type Kind uint8

const (
	None  Kind = iota
	Send       // SEND, all forms
	Write      // RDMA WRITE, with immediate data or without
	Read
	Atomic      // compare and swap, fetch and add
	AtomicWrite // IBA annex A19
	Flush       // IBA annex A19
	Local       // without packets: bind, register, invalidate
)

// Answered reports whether a request of this kind has a response, with data or an outcome of its own. Other requests
// are only acknowledged, and an acknowledgement can cover several of them.
func (k Kind) Answered() bool { return k >= Read && k <= Flush }

// KindOf returns the kind of the request of a packet with these flags, or None for a response.
func KindOf(f roce.Flags) Kind {
	switch {
	case f&roce.FlagSend != 0:
		return Send
	case f&roce.FlagWrite != 0:
		return Write
	case f&roce.FlagRead != 0:
		return Read
	case f&roce.FlagAtomic != 0:
		return Atomic
	case f&roce.FlagAtomicWrite != 0:
		return AtomicWrite
	case f&roce.FlagFlush != 0:
		return Flush
	}
	return None
}

// PacketCost is the number of bytes that a packet takes of the window in addition to its payload.
const PacketCost = 64

// ReadChunk is the largest number of bytes of one RDMA READ request. A longer message is read in parts, so that the
// window limits the number of bytes that can arrive at once. The boundaries of the parts do not depend on losses, so a
// repeated request stays within the original one.
const ReadChunk = 64 << 10

// Request is the protocol's view of a send work request.
type Request struct {
	Kind    Kind
	Length  int // bytes of payload; for a READ, of the response
	Packets int // number of PSNs; 0 for Local, and for a request that cannot be executed
}

// cost returns the number of window bytes of packets a to b-1.
func (q *Request) cost(mtu, a, b int) int {
	return (b-a)*PacketCost + min(b*mtu, q.Length) - min(a*mtu, q.Length)
}

// entry is a request in flight.
type entry struct {
	Request
	first roce.PSN
	done  bool // Local: executed; completes as soon as all earlier requests have completed
}

// flight holds the pushed requests that are not complete, oldest first. Requests are numbered consecutively.
type flight struct {
	q    []entry // the length is a power of two
	head uint32  // number of the oldest request
	tail uint32  // number of the next request
}

func (f *flight) len() int { return int(f.tail - f.head) }

func (f *flight) at(n uint32) *entry { return &f.q[n&uint32(len(f.q)-1)] }

func (f *flight) push(e entry) {
	if f.len() == len(f.q) {
		q := make([]entry, max(4, 2*len(f.q)))
		for n := f.head; n != f.tail; n++ {
			q[n&uint32(len(q)-1)] = *f.at(n)
		}
		f.q = q
	}
	f.tail++
	*f.at(f.tail - 1) = e
}

// pop removes the oldest request and the executed local ones after it, and returns their number.
func (f *flight) pop() (n int) {
	for {
		f.head++
		n++
		if f.len() == 0 || !f.at(f.head).done {
			return n
		}
	}
}
