package transport

import (
	"slices"

	"verbena/roce"
)

// Receiver is the responder of a queue pair, as far as the order of requests goes (IBA 9.7.4, 9.7.5.1, 9.8.2): which
// packet is expected next, which acknowledgement or response is due, and which requests may come again. The owner
// carries the requests out.
//
// Between messages a receiver of a reliable service expects a packet that starts one; within a message, one that goes
// on:
//
//	between --first packet--> within --last packet--> between
//	   |  ^                     |  ^
//	   |  +---- only packet     |  +---- middle packet
//	   v                        v
//	silent: a NAK or RNR NAK has asked for the expected PSN; anything newer is dropped without another, until it comes
type Receiver struct {
	mtu   int
	depth int // requests that are answered and may be outstanding (max_dest_rd_atomic)

	psn      roce.PSN // expected next
	msn      uint32   // requests completed
	silent   bool
	dropping bool // unreliable: the rest of a message is dropped
	kind     Kind // of the message in progress; None between messages

	write struct { // of an RDMA WRITE
		addr        uint64
		key         uint32
		length, got int
	}

	ack     Ack
	due     bool    // ack is to be sent once the replies before it have been
	replies []Reply // in progress, oldest first
	past    []past  // the last requests with a response of their own, in case they come again
	oldest  int     // in past, once it is full

	missing   int // requests in past whose response was given up
	forgets   bool
	forgotten roce.PSN // of the newest request that was in past
}

// Ack is an acknowledgement. It acknowledges everything before it, so that one that is due replaces another.
type Ack struct {
	Syndrome roce.Syndrome
	PSN      roce.PSN
}

// acknowledges reports whether the acknowledgement acknowledges a PSN. It acknowledges all earlier PSNs. An ACK also
// acknowledges its own PSN.
func (a *Ack) acknowledges(psn roce.PSN) bool {
	return psn.Less(a.PSN) || psn == a.PSN && a.Syndrome.IsACK()
}

// Reply is a response to a request that is answered, or the rest of one. FLUSH and ATOMIC WRITE are answered like a
// READ of no length.
type Reply struct {
	Kind   Kind
	PSN    roce.PSN // of the next packet
	MSN    uint32
	Result uint64 // of an atomic
	Domain any    // the owner's, as in Answer: where Key is looked up
	Addr   uint64 // of the bytes that are next
	Key    uint32
	Left   int  // bytes
	first  bool // nothing of it has been sent yet
	repeat bool // of an answer that was given before
}

// past is a request that a requester may repeat (struct resp_res).
type past struct {
	Answer
	psn     roce.PSN
	msn     uint32
	missing bool // its response was given up before all of it had been sent
}

// Answer is a request that has been carried out and is answered with more than an acknowledgement.
type Answer struct {
	Kind    Kind
	Packets int // of the response
	Domain  any // protection domain of a READ; handed back in Reply
	Addr    uint64
	Key     uint32
	Length  int
	Result  uint64 // of an atomic: the value before it
}

// reply is the response to all of it.
func (x *past) reply() Reply {
	return Reply{
		Kind: x.Kind, PSN: x.psn, MSN: x.msn, Result: x.Result, Domain: x.Domain, Addr: x.Addr, Key: x.Key, Left: x.Length,
		first: true,
	}
}

// Reset forgets everything but the configuration (RESET state).
func (r *Receiver) Reset() {
	*r = Receiver{mtu: r.mtu, depth: r.depth, replies: r.replies[:0], past: r.past[:0]}
}

// Begin sets the PSN that is expected first (INIT to RTR).
func (r *Receiver) Begin(psn roce.PSN) { r.psn = psn }

// SetMTU sets the path MTU, in bytes.
func (r *Receiver) SetMTU(n int) { r.mtu = n }

// SetDepth sets how many requests may be outstanding that are answered; those of the past are forgotten.
func (r *Receiver) SetDepth(n int) {
	r.depth, r.past, r.oldest, r.missing, r.forgets = n, nil, 0, 0, false
}

// Len returns the number of responses that are due, and of past requests that are remembered.
func (r *Receiver) Len() (replies, past int) { return len(r.replies), len(r.past) }

// PSN returns the PSN that is expected next.
func (r *Receiver) PSN() roce.PSN { return r.psn }

// MSN returns the number of requests completed, modulo 2^24 once it is encoded.
func (r *Receiver) MSN() uint32 { return r.msn }

// Within returns the kind of the message in progress, None between messages.
func (r *Receiver) Within() Kind { return r.kind }

// Order is where a request that arrives stands.
type Order uint8

const (
	Expected  Order = iota
	Duplicate       // see Receiver.Duplicate
	Gap             // packets before it are missing, and a NAK is due
	LaterGap        // the same, and the NAK has been given before: the packet is dropped
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

// Interrupts reports whether a packet of an unreliable connection costs the message in progress its end: there is a
// gap, or another message starts.
func (r *Receiver) Interrupts(psn roce.PSN, starts bool) bool {
	return r.kind != None && (psn != r.psn || starts)
}

// ArriveUnreliable handles the PSN of a packet of an unreliable connection: a gap costs the message in progress, and
// the next one begins anew (IBA 9.8.2). False: the packet is to be dropped.
func (r *Receiver) ArriveUnreliable(psn roce.PSN, starts bool) bool {
	if psn != r.psn || starts {
		r.kind, r.dropping, r.psn = None, !starts, psn
	}
	if r.dropping {
		r.psn = psn.Next()
	}
	return !r.dropping
}

// Abandon gives up the message in progress of an unreliable connection, at the packet with this PSN. Its rest will be
// dropped.
func (r *Receiver) Abandon(psn roce.PSN) { r.kind, r.dropping, r.psn = None, true, psn.Next() }

// AbandonRest gives up the message in progress after a packet whose PSN has been counted.
func (r *Receiver) AbandonRest() { r.kind, r.dropping = None, true }

// Arrival is the header of a request packet.
type Arrival struct {
	Kind   Kind
	Starts bool // first packet of its message
	Ends   bool // last packet of its message
	Length int  // bytes of payload
}

// Follows reports whether the opcode of a packet with the expected PSN may follow the one before it (IBA 9.7.4.1.2).
// One that may not is an invalid request.
func (r *Receiver) Follows(a *Arrival) bool {
	return a.Kind != None && a.Starts == (r.kind == None) && (a.Starts || a.Kind == r.kind)
}

// Fits reports whether a packet of a SEND or RDMA WRITE has a length that its place in the message allows (IBA
// 9.7.4.1.6): all but the last have the path MTU. One that has not is an invalid request.
func (r *Receiver) Fits(a *Arrival) bool {
	return a.Length <= r.mtu && (a.Ends || a.Length == r.mtu) && (a.Starts || a.Length > 0)
}

// BeginWrite notes where an RDMA WRITE goes.
func (r *Receiver) BeginWrite(addr uint64, key uint32, length int) {
	w := &r.write
	w.addr, w.key, w.length, w.got = addr, key, length, 0
}

// WriteFits reports whether so many bytes more fit the length that the RDMA WRITE has announced, which a last packet
// must fill (IBA 9.7.4.1.6).
func (r *Receiver) WriteFits(n int, ends bool) bool {
	n += r.write.got
	return n <= r.write.length && (!ends || n == r.write.length)
}

// Write returns where the next bytes of the RDMA WRITE go, and how many it has in all.
func (r *Receiver) Write() (addr uint64, key uint32, length int) {
	w := &r.write
	return w.addr + uint64(w.got), w.key, w.length
}

// Wrote notes that bytes of the RDMA WRITE have been taken.
func (r *Receiver) Wrote(n int) { r.write.got += n }

// Executed notes that a packet of a SEND or RDMA WRITE has been carried out. With acks an acknowledgement is due.
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

// ExecutedAll notes the same of n middle packets with consecutive PSNs, the last of which asks for the acknowledgement.
func (r *Receiver) ExecutedAll(a *Arrival, n int, acks bool) {
	r.psn = r.psn.Add(n - 1)
	r.Executed(a, acks)
}

// Admits reports whether one more request may be answered: as many are outstanding as was agreed on, at most. A
// repetition that still waits is given up for it, since the requester has had that answer before it came to ask for
// more.
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

// Answer notes that a request that is answered has been carried out, and has the response sent: now, and again if the
// request comes again.
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

// Repeat is a duplicate request. Addr, Key and Length are those of a READ.
type Repeat struct {
	PSN    roce.PSN
	Kind   Kind
	Addr   uint64
	Key    uint32
	Length int
}

// Duplicate handles a request that was executed before (IBA 9.7.5.1.1 to 9.7.5.1.5): SEND and RDMA WRITE are
// acknowledged again, a READ is answered again from memory, also a part of it, and of an atomic the result is sent
// again. It returns false for a request of which nothing is known any more, which is dropped.
func (r *Receiver) Duplicate(q *Repeat) bool {
	if !q.Kind.Answered() {
		if !r.due || r.ack.Syndrome.IsACK() {
			r.Acknowledge(roce.ACKUnlimited, r.acknowledgeable(q.PSN))
		}
		return true
	}
	for i := range r.past {
		// One of 2^24 PSNs ago may have the same PSN.
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
				return true // not the same: it gets no answer
			}
			again.Addr, again.Left = q.Addr, q.Length
		}
		// Responses from here on that are still to be sent will be asked for again.
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

// recent returns the requests of the past, the newest first.
func (r *Receiver) recent(i int) *past { return &r.past[(r.oldest-1-i+2*len(r.past))%len(r.past)] }

// acknowledgeable returns the newest PSN that may be acknowledged when the SEND or RDMA WRITE with a PSN has come again. The requester
// may have lost the responses to the requests after it: an acknowledgement stands for none of them (IBA 9.7.5.1.2), unless the response
// is still to be sent. A requester that has gone on to more requests than past holds has had the responses to those before.
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

// giveUp gives up the replies from number n on, since the requester repeats these requests.
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

// found notes that a response to x is due, or that x is forgotten.
func (r *Receiver) found(x *past) {
	if x.missing {
		x.missing = false
		r.missing--
	}
}

// unanswered returns the PSN of the oldest request before a PSN of which the response was given up.
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

// Acknowledge makes an acknowledgement due, positive or negative, after the replies that are due before it.
func (r *Receiver) Acknowledge(s roce.Syndrome, psn roce.PSN) {
	r.ack, r.due = Ack{Syndrome: s, PSN: psn}, true
}

// Refuse makes a NAK due for the request with a PSN. The responses to requests after it, which were accepted before it
// was known to fail, are given up: each would acknowledge it. Responses to requests before it that were given up are
// due again, because the NAK acknowledges these requests, and no repetition of them is answered later.
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

// NotReady answers the packet with the expected PSN, which found no receive (IBA 9.7.5.2.8).
func (r *Receiver) NotReady(t roce.RNRTimer) {
	r.Acknowledge(roce.RNRNAK(t), r.psn)
	r.silent = true
}

// Ack returns the acknowledgement that is due. It acknowledges no request if the response to the request was given up
// (IBA 9.7.5.1.2): an ACK is not due until the requester has repeated that request, and a NAK that would ask for a
// later PSN asks for that request.
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

// AckSent notes that it has been sent.
func (r *Receiver) AckSent() { r.due = false }

// Reply returns the oldest response that is due, nil if there is none. It stays valid until the next call of another
// method.
func (r *Receiver) Reply() *Reply {
	if len(r.replies) == 0 {
		return nil
	}
	return &r.replies[0]
}

// Packet returns the operation of the next packet of the response, and how many bytes it carries.
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

// Middles returns how many of the next packets of the response are middle ones, and so have mtu bytes each, at most most.
func (y *Reply) Middles(mtu, most int) int {
	if y.Kind == Atomic || y.first {
		return 0
	}
	return min(most, (y.Left-1)/mtu)
}

// Sent notes that the next packets of the response, with n bytes together, are going to be sent.
func (y *Reply) Sent(packets, n int) {
	y.PSN, y.first = y.PSN.Add(packets), false
	y.Addr += uint64(n)
	y.Left -= n
}

// Repeats reports whether the response was given before, and the request has come again.
func (y *Reply) Repeats() bool { return y.repeat }

// Replied takes out the oldest response, all of which has been sent.
func (r *Receiver) Replied() { r.replies = r.replies[:copy(r.replies, r.replies[1:])] }

// DropReplies gives up all pending responses. It also withdraws the pending acknowledgement if that acknowledges one of
// their requests (IBA 9.7.5.1.2).
func (r *Receiver) DropReplies() {
	_, found := r.unanswered(r.ack.PSN)
	if found || len(r.replies) > 0 && r.ack.acknowledges(r.replies[0].PSN) {
		r.due = false
	}
	r.replies = r.replies[:0]
}

// Abort forgets the message in progress and what may be repeated, and keeps the acknowledgement that is due: the queue
// pair is in the error state.
func (r *Receiver) Abort() { r.past, r.oldest, r.missing, r.kind = r.past[:0], 0, 0, None }
