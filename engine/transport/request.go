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
	Local       // of this end alone, without packets: bind, register, invalidate
)

// Answered reports whether the peer answers with a response of its own, instead of an acknowledgement that may speak
// for several requests.
func (k Kind) Answered() bool { return k >= Read && k <= Flush }

// KindOf returns the kind of the request that a packet with these flags belongs to, None for a response.
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

// PacketCost is the number of bytes that a packet counts for in a window, beside its payload.
const PacketCost = 64

// ReadChunk is the number of bytes that one RDMA READ request asks for, at most: a longer message is read in parts, so
// that the window bounds the bytes that may arrive at once. The boundaries do not depend on what was lost, so that a
// repeated request stays within the original one.
const ReadChunk = 64 << 10

// Request is a send work request as the protocol sees it.
type Request struct {
	Kind    Kind
	Length  int // bytes of payload; of a READ, of its response
	Packets int // PSNs that it takes; 0 for one that cannot be carried out, and for Local
}

// cost returns what the packets from a to b, b excluded, count for in the window.
func (q *Request) cost(mtu, a, b int) int {
	return (b-a)*PacketCost + min(b*mtu, q.Length) - min(a*mtu, q.Length)
}

// entry is a request in flight.
type entry struct {
	Request
	first roce.PSN
	done  bool // Local: carried out; it completes when everything before it has
}

// flight holds the requests that have been pushed and are not complete, oldest first. Each has a number that counts up.
type flight struct {
	q    []entry // a power of two of them
	head uint32  // number of the oldest
	tail uint32  // number of the next
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

// pop takes the oldest request out, and the local ones behind it that have been carried out, and returns how many.
func (f *flight) pop() (n int) {
	for {
		f.head++
		n++
		if f.len() == 0 || !f.at(f.head).done {
			return n
		}
	}
}
