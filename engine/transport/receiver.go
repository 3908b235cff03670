package transport

import (
	"slices"

	"verbena/roce"
)

// Receiver is the part of a responder that handles the order of requests (IBA 9.7.4, 9.7.5.1, 9.8.2): the next expected
// packet, the pending acknowledgement or response, and the requests that can be repeated. The owner executes the
// requests.
//
// Between messages, a receiver of a reliable service expects the first packet of a message. Within a message, it
// expects a further packet:
//
//	between --first packet--> within --last packet--> between
//	   |  ^                     |  ^
//	   |  +---- only packet     |  +---- middle packet
//	   v                        v
//	silent: a NAK or RNR NAK has requested the expected PSN; newer packets are dropped without a NAK until it arrives
type Receiver struct {
	mtu   int
	depth int // largest number of outstanding requests with a response (max_dest_rd_atomic)

	psn      roce.PSN // next expected PSN
	msn      uint32   // number of completed requests
	silent   bool
	dropping bool // unreliable: the rest of a message is dropped
	kind     Kind // kind of the message in progress; None between messages

	write struct { // the RDMA WRITE in progress
		addr        uint64
		key         uint32
		length, got int
	}

	ack     Ack
	due     bool    // ack must be sent, after all earlier replies
	replies []Reply // in progress, oldest first
	past    []past  // the last requests with a response, for repetitions
	oldest  int     // index of the oldest request in past, once past is full

	missing   int      // number of requests in past whose response was dropped
	forgets   bool     // forgotten is valid
	forgotten roce.PSN // PSN of the newest request removed from past
}

// Ack is an acknowledgement. It covers all earlier requests, so a new acknowledgement replaces a pending one.
type Ack struct {
	Syndrome roce.Syndrome
	PSN      roce.PSN
}

// acknowledges reports whether the acknowledgement acknowledges a PSN. It acknowledges all earlier PSNs. An ACK also
// acknowledges its own PSN.
func (a *Ack) acknowledges(psn roce.PSN) bool {
	return psn.Less(a.PSN) || psn == a.PSN && a.Syndrome.IsACK()
}

// Reply is a pending response, or the rest of one. FLUSH and ATOMIC WRITE are answered like a READ of length 0.
type Reply struct {
	Kind   Kind
	PSN    roce.PSN // PSN of the next packet
	MSN    uint32
	Result uint64 // result of an atomic
	Domain any    // from Answer: the protection domain of Key
	Addr   uint64 // address of the next bytes
	Key    uint32
	Left   int  // remaining bytes
	first  bool // no packet has been sent yet
	repeat bool // the response was given before
}

// past is a request that a requester can repeat (struct resp_res).
type past struct {
	Answer
	psn     roce.PSN
	msn     uint32
	missing bool // the response was dropped before all of it was sent
}

// Answer is an executed request with a response, in contrast to a request that is only acknowledged.
type Answer struct {
	Kind    Kind
	Packets int // number of packets of the response
	Domain  any // protection domain of a READ; copied to Reply
	Addr    uint64
	Key     uint32
	Length  int
	Result  uint64 // value before an atomic
}

// reply returns the complete response to the request.
func (x *past) reply() Reply {
	return Reply{
		Kind: x.Kind, PSN: x.psn, MSN: x.msn, Result: x.Result, Domain: x.Domain, Addr: x.Addr, Key: x.Key, Left: x.Length,
		first: true,
	}
}

// Reset discards all state except the configuration (RESET state).
func (r *Receiver) Reset() {
	*r = Receiver{mtu: r.mtu, depth: r.depth, replies: r.replies[:0], past: r.past[:0]}
}

// Begin sets the first expected PSN (INIT to RTR).
func (r *Receiver) Begin(psn roce.PSN) { r.psn = psn }

// SetMTU sets the path MTU, in bytes.
func (r *Receiver) SetMTU(n int) { r.mtu = n }

// SetDepth sets the largest number of outstanding requests with a response, and discards the past ones.
func (r *Receiver) SetDepth(n int) {
	r.depth, r.past, r.oldest, r.missing, r.forgets = n, nil, 0, 0, false
}

// Len returns the numbers of pending responses and of stored past requests.
func (r *Receiver) Len() (replies, past int) { return len(r.replies), len(r.past) }

// PSN returns the next expected PSN.
func (r *Receiver) PSN() roce.PSN { return r.psn }

// MSN returns the number of completed requests. The packet holds it modulo 2^24.
func (r *Receiver) MSN() uint32 { return r.msn }

// Within returns the kind of the message in progress, or None between messages.
func (r *Receiver) Within() Kind { return r.kind }

// Order is the position of an arriving request relative to the expected one.
type Order uint8

const (
	Expected  Order = iota
	Duplicate       // see Receiver.Duplicate
	Gap             // earlier packets are missing: a NAK is due
	LaterGap        // the same, but a NAK was sent before: the packet is dropped
)

// Arrive compares the PSN of a request of a reliable service with the expected one (IBA 9.7.4.1.1).
func (r *Receiver) Arrive(psn roce.PSN) Order {
	switch ahead := psn.Diff(r.psn); {
	case ahead > 0 && r.silent:
		return LaterGap
	case ahead > 0:
		r.Acknowledge(roce.NAKPSNSequenceError, r.psn)
		r.silent = true
		return Gap
	case ahead < 0:
		return Duplicate
	}
	return Expected
}

// Interrupts reports whether a packet of an unreliable connection interrupts the message in progress: there is a gap,
// or another message starts.
func (r *Receiver) Interrupts(psn roce.PSN, starts bool) bool {
	return r.kind != None && (psn != r.psn || starts)
}

// ArriveUnreliable handles the PSN of a packet of an unreliable connection. A gap interrupts the message in progress,
// and the next message starts anew (IBA 9.8.2). The caller must drop the packet if the result is false.
func (r *Receiver) ArriveUnreliable(psn roce.PSN, starts bool) bool {
	if psn != r.psn || starts {
		r.kind, r.dropping, r.psn = None, !starts, psn
	}
	if r.dropping {
		r.psn = psn.Next()
	}
	return !r.dropping
}

// Abandon gives up the message in progress of an unreliable connection, at the packet with this PSN. The rest of the
// message will be dropped.
func (r *Receiver) Abandon(psn roce.PSN) { r.kind, r.dropping, r.psn = None, true, psn.Next() }

// AbandonRest gives up the message in progress after a packet that has already been counted.
func (r *Receiver) AbandonRest() { r.kind, r.dropping = None, true }

// Arrival is the header of a request packet.
type Arrival struct {
	Kind   Kind
	Starts bool // first packet of its message
	Ends   bool // last packet of its message
	Length int  // bytes of payload
}

// Follows reports whether the opcode of a packet with the expected PSN may follow the previous one (IBA 9.7.4.1.2).
// Otherwise the request is invalid.
func (r *Receiver) Follows(a *Arrival) bool {
	return a.Kind != None && a.Starts == (r.kind == None) && (a.Starts || a.Kind == r.kind)
}

// Fits reports whether the length of a packet of a SEND or RDMA WRITE is valid at its position in the message (IBA
// 9.7.4.1.6): all packets but the last have the path MTU. Otherwise the request is invalid.
func (r *Receiver) Fits(a *Arrival) bool {
	return a.Length <= r.mtu && (a.Ends || a.Length == r.mtu) && (a.Starts || a.Length > 0)
}

// BeginWrite starts an RDMA WRITE to a range of memory.
func (r *Receiver) BeginWrite(addr uint64, key uint32, length int) {
	w := &r.write
	w.addr, w.key, w.length, w.got = addr, key, length, 0
}

// WriteFits reports whether n more bytes fit the announced length of the RDMA WRITE. The last packet must fill this
// length (IBA 9.7.4.1.6).
func (r *Receiver) WriteFits(n int, ends bool) bool {
	n += r.write.got
	return n <= r.write.length && (!ends || n == r.write.length)
}

// Write returns the address and the key for the next bytes of the RDMA WRITE, and its total length.
func (r *Receiver) Write() (addr uint64, key uint32, length int) {
	w := &r.write
	return w.addr + uint64(w.got), w.key, w.length
}

// Wrote records that n bytes of the RDMA WRITE have been accepted.
func (r *Receiver) Wrote(n int) { r.write.got += n }

// Executed records the execution of a packet of a SEND or RDMA WRITE. If acks is set, an acknowledgement is due.
func (r *Receiver) Executed(a *Arrival, acks bool) {
	r.kind = a.Kind
	if a.Ends {
		r.kind = None
		r.msn++
	}
	r.silent = false
	if acks {
		r.Acknowledge(roce.ACKUnlimited, r.psn)
	}
	r.psn = r.psn.Next()
}

// ExecutedAll records the execution of n middle packets with consecutive PSNs. acks applies to the last of them.
func (r *Receiver) ExecutedAll(a *Arrival, n int, acks bool) {
	r.psn = r.psn.Add(n - 1)
	r.Executed(a, acks)
}

// Admits reports whether one more request can be answered without exceeding the depth. For this, it drops a pending
// repetition: the requester must have received that answer before, since it has sent another request.
func (r *Receiver) Admits() bool {
	if len(r.replies) < r.depth {
		return true
	}
	i := slices.IndexFunc(r.replies, func(y Reply) bool { return y.repeat })
	if i >= 0 {
		r.replies = slices.Delete(r.replies, i, i+1)
	}
	return i >= 0
}

// Answer records the execution of a request with a response. The response is due now, and again for each repetition of
// the request.
func (r *Receiver) Answer(a *Answer) {
	r.msn++
	x := past{Answer: *a, psn: r.psn, msn: r.msn}
	r.psn = r.psn.Add(a.Packets)
	r.silent = false
	if len(r.past) < r.depth {
		r.past = append(r.past, x)
	} else {
		r.oldest %= len(r.past)
		r.found(&r.past[r.oldest])
		r.forgets, r.forgotten = true, r.past[r.oldest].psn
		r.past[r.oldest] = x
		r.oldest++
	}
	r.replies = append(r.replies, x.reply())
}

// Repeat is a duplicate request. Addr, Key and Length are set for a READ.
type Repeat struct {
	PSN    roce.PSN
	Kind   Kind
	Addr   uint64
	Key    uint32
	Length int
}

// Duplicate handles a repeated request (IBA 9.7.5.1.1 to 9.7.5.1.5). A SEND or RDMA WRITE is acknowledged again. A
// READ, or a part of it, is read again from memory. The result of an atomic is sent again. Duplicate returns false for
// a request that is no longer stored; the caller must drop it.
func (r *Receiver) Duplicate(q *Repeat) bool {
	if !q.Kind.Answered() {
		if !r.due || r.ack.Syndrome.IsACK() {
			r.Acknowledge(roce.ACKUnlimited, r.acknowledgeable(q.PSN))
		}
		return true
	}
	for i := range r.past {
		// Check the newest request first: an older one, 2^24 PSNs before, can have the same PSN.
		x := r.recent(i)
		at := q.PSN.Diff(x.psn)
		if at < 0 || at >= x.Packets || x.Kind != q.Kind {
			continue
		}
		again := x.reply()
		again.PSN = q.PSN
		if x.Kind == Read {
			off := at * r.mtu
			if q.Key != x.Key || q.Addr != x.Addr+uint64(off) || q.Length > x.Length-off {
				return true // differs from the original request: no answer
			}
			again.Addr, again.Left = q.Addr, q.Length
		}
		// The requester will also repeat the requests of later pending responses.
		for n, y := range r.replies {
			if !y.PSN.Less(q.PSN) {
				r.giveUp(n)
				break
			}
		}
		if len(r.replies) < r.depth {
			again.repeat = !x.missing
			r.replies = append(r.replies, again)
			r.found(x)
		}
		return true
	}
	return false
}

// recent returns the i-th newest request in past.
func (r *Receiver) recent(i int) *past { return &r.past[(r.oldest-1-i+2*len(r.past))%len(r.past)] }

// acknowledgeable returns the newest PSN that an acknowledgement may have when a SEND or RDMA WRITE is repeated. The
// requester may have lost the responses to later requests. An acknowledgement must not cover these requests (IBA
// 9.7.5.1.2), unless their response is still pending. If the requester has sent more later requests than past holds, it
// has received the responses to the earlier ones.
func (r *Receiver) acknowledgeable(again roce.PSN) roce.PSN {
	if r.forgets && again.Less(r.forgotten) && r.forgotten.Less(r.psn) {
		return again
	}
	psn := r.psn.Add(-1)
	for i := range r.past {
		x := r.recent(i)
		if !again.Less(x.psn) || !x.psn.Less(r.psn) {
			break
		}
		if psn.Diff(x.psn) < x.Packets || !slices.ContainsFunc(r.replies, x.has) {
			psn = x.psn.Add(-1)
		}
	}
	return psn
}

// has reports whether the response belongs to the request.
func (x *past) has(y Reply) bool { return y.PSN.In(x.psn, x.Packets) }

// giveUp drops the replies from index n on, since the requester repeats these requests.
func (r *Receiver) giveUp(n int) {
	for i := range r.past {
		x := &r.past[i]
		if !x.missing && slices.ContainsFunc(r.replies[n:], func(y Reply) bool { return !y.repeat && x.has(y) }) {
			x.missing = true
			r.missing++
		}
	}
	r.replies = r.replies[:n]
}

// found records that a response to x is pending, or that x is forgotten.
func (r *Receiver) found(x *past) {
	if x.missing {
		x.missing = false
		r.missing--
	}
}

// unanswered returns the PSN of the oldest request before a given PSN with a dropped response.
func (r *Receiver) unanswered(before roce.PSN) (first roce.PSN, found bool) {
	if r.missing == 0 {
		return 0, false
	}
	for i := range r.past {
		if x := &r.past[i]; x.missing && x.psn.Less(before) && (!found || x.psn.Less(first)) {
			first, found = x.psn, true
		}
	}
	return first, found
}

// Acknowledge makes a positive or negative acknowledgement due, after all earlier replies.
func (r *Receiver) Acknowledge(s roce.Syndrome, psn roce.PSN) {
	r.ack, r.due = Ack{Syndrome: s, PSN: psn}, true
}

// Refuse makes a NAK due for the request with a PSN. It drops the pending responses to later requests, since each of
// these responses would acknowledge the refused request. Dropped responses to earlier requests become due again: the
// NAK acknowledges these requests, and later repetitions of them are not answered.
func (r *Receiver) Refuse(s roce.Syndrome, psn roce.PSN) {
	r.replies = slices.DeleteFunc(r.replies, func(y Reply) bool { return !y.PSN.Less(psn) })
	for first, found := r.unanswered(psn); found; first, found = r.unanswered(psn) {
		x := &r.past[slices.IndexFunc(r.past, func(x past) bool { return x.psn == first && x.missing })]
		r.replies = append(r.replies, x.reply())
		r.found(x)
	}
	slices.SortStableFunc(r.replies, func(a, b Reply) int { return a.PSN.Diff(b.PSN) })
	r.Acknowledge(s, psn)
}

// NotReady answers the expected packet if there is no receive for it (IBA 9.7.5.2.8).
func (r *Receiver) NotReady(t roce.RNRTimer) {
	r.Acknowledge(roce.RNRNAK(t), r.psn)
	r.silent = true
}

// Ack returns the pending acknowledgement. It must not acknowledge a request with a dropped response (IBA 9.7.5.1.2).
// Therefore an ACK is not due until the requester has repeated this request, and a NAK for a later PSN requests this
// PSN instead.
func (r *Receiver) Ack() (a Ack, due bool) {
	if !r.due {
		return r.ack, false
	}
	first, found := r.unanswered(r.ack.PSN)
	switch {
	case !found:
		return r.ack, true
	case r.ack.Syndrome.IsACK():
		return r.ack, false
	case r.ack.Syndrome.IsRNR(), r.ack.Syndrome == roce.NAKPSNSequenceError:
		return Ack{roce.NAKPSNSequenceError, first}, true
	}
	return r.ack, true
}

// AckSent records that the acknowledgement has been sent.
func (r *Receiver) AckSent() { r.due = false }

// Reply returns the oldest pending response, or nil. It is valid until the next call of another method.
func (r *Receiver) Reply() *Reply {
	if len(r.replies) == 0 {
		return nil
	}
	return &r.replies[0]
}

// Packet returns the operation and the number of bytes of the next packet of the response.
func (y *Reply) Packet(mtu int) (op roce.Operation, n int) {
	n = min(mtu, y.Left)
	switch last := n == y.Left; {
	case y.Kind == Atomic:
		return roce.AtomicAcknowledge, 0
	case y.first && last:
		return roce.RDMAReadResponseOnly, n
	case y.first:
		return roce.RDMAReadResponseFirst, n
	case last:
		return roce.RDMAReadResponseLast, n
	}
	return roce.RDMAReadResponseMiddle, n
}

// Middles returns the number of middle packets, of mtu bytes each, that come next in the response; at most most.
func (y *Reply) Middles(mtu, most int) int {
	if y.Kind == Atomic || y.first {
		return 0
	}
	return min(most, (y.Left-1)/mtu)
}

// Sent records the sending of the next packets of the response, with n bytes in total.
func (y *Reply) Sent(packets, n int) {
	y.PSN, y.first = y.PSN.Add(packets), false
	y.Addr += uint64(n)
	y.Left -= n
}

// Repeats reports whether the response was given before, and its request was repeated.
func (y *Reply) Repeats() bool { return y.repeat }

// Replied removes the oldest response after all of it has been sent.
func (r *Receiver) Replied() { r.replies = r.replies[:copy(r.replies, r.replies[1:])] }

// DropReplies drops all pending responses. If the pending acknowledgement covers one of their requests, it drops the
// acknowledgement too (IBA 9.7.5.1.2).
func (r *Receiver) DropReplies() {
	_, found := r.unanswered(r.ack.PSN)
	if found || len(r.replies) > 0 && r.ack.acknowledges(r.replies[0].PSN) {
		r.due = false
	}
	r.replies = r.replies[:0]
}

// Abort discards the message in progress and the stored requests when the queue pair enters the error state. The
// pending acknowledgement stays.
func (r *Receiver) Abort() { r.past, r.oldest, r.missing, r.kind = r.past[:0], 0, 0, None }
