package simtest

import (
	"fmt"
	"math/rand/v2"
	"time"

	"verbena/ib"
)

// profile describes the behaviour of the network. Probabilities are per packet.
type profile struct {
	name                                           string
	drop, duplicate, reorder, spike, corrupt, full float64
	batch                                          float64 // probability of arrival together with the previous packet
	latency                                        time.Duration
	budget                                         int // largest number of lost packets; -1: no limit
	outages                                        []outage
}

// outage is a time without any delivery.
type outage struct{ from, to time.Duration }

// keepsOrder reports whether packets arrive in order, each at most once.
func (p *profile) keepsOrder() bool { return p.duplicate == 0 && p.reorder == 0 && p.spike == 0 }

// perfect reports whether every packet arrives.
func (p *profile) perfect() bool {
	return p.keepsOrder() && p.drop == 0 && p.corrupt == 0 && len(p.outages) == 0
}

// makeProfile chooses the behaviour of a network.
func makeProfile(r *rand.Rand) profile {
	p := profile{latency: time.Duration(1+r.IntN(50)) * time.Microsecond, batch: []float64{0, 0.3, 0.9}[r.IntN(3)], budget: -1}
	some := func(most float64) float64 { return most * r.Float64() * r.Float64() }
	switch kind := r.IntN(10); kind {
	case 0:
		p.name = "perfect"
	case 1, 2:
		p.name, p.drop, p.budget = "few losses", []float64{0.05, 0.2, 0.9}[r.IntN(3)], 1+r.IntN(fewLosses)
	case 3:
		p.name, p.drop = "lossy", 0.005+some(0.2)
	case 4:
		p.name, p.duplicate = "duplicates", 0.05+some(0.5)
	case 5:
		p.name, p.reorder = "reorders", 0.02+some(0.3)
	case 6:
		p.name, p.corrupt = "damages", 0.01+some(0.1)
	case 7:
		p.name = "goes down"
		for range 1 + r.IntN(3) {
			from := time.Duration(r.IntN(4000)) * time.Microsecond
			p.outages = append(p.outages, outage{from, from + time.Duration(r.IntN(20_000))*time.Microsecond})
		}
	default:
		p.name, p.drop, p.duplicate, p.reorder, p.corrupt, p.spike = "everything", some(0.05), some(0.2), some(0.1), some(0.05), some(0.02)
	}
	if r.IntN(8) == 0 {
		p.full = 0.1
	}
	return p
}

// fewLosses is a number of losses that a retry count of 7 always tolerates.
const fewLosses = 7

func (p *profile) String() string {
	return fmt.Sprintf("%s (drop %.3f duplicate %.3f reorder %.3f spike %.3f corrupt %.3f full %.2f batch %.1f latency %v budget %d outages %v)",
		p.name, p.drop, p.duplicate, p.reorder, p.spike, p.corrupt, p.full, p.batch, p.latency, p.budget, p.outages)
}

// fault is a fault in a work request.
type fault uint8

const (
	sound        fault = iota
	badKey             // for the remote memory
	badRange           // in the remote memory
	badLocalKey        // for the local memory
	shortReceive       // the receive for the message is too short
	badReceive         // the receive for the message has a wrong key
	spentKey           // for the remote memory; an earlier message has invalidated it
)

func (f fault) String() string {
	return [...]string{"sound", "bad key", "bad range", "bad local key", "short receive", "bad receive", "spent key"}[f]
}

// span is a range of a host's memory.
type span struct{ at, n int }

// request is a send work request with its result.
type request struct {
	n       int // position in the order of posting of its queue pair
	id      uint64
	op      ib.WROpcode
	flags   ib.SendFlags
	imm     uint32
	fault   fault
	local   span
	remote  span
	data    []byte // sent data, or expected data of a READ
	reread  bool   // a later request reads the written memory, which is therefore not given back
	split   int    // number of gather elements
	message int    // position among the messages that complete a receive; -1: none
	lease   *lease // the lease whose key it uses or invalidates
	level   ib.FlushLevel

	word                   *word // target of an atomic
	bit                    uint  // bit set by a fetch-and-add
	compare, swap, want    uint64
	posted, ended, success bool
	status                 ib.WCStatus
	sent                   int  // position among the successful requests
	arrived                int  // number of arrivals
	seen                   bool // the written data were seen, and have been overwritten
}

// completes reports whether the request completes a receive.
func (q *request) completes() bool {
	return q.op == ib.WRSend || q.op == ib.WRSendWithImm || q.op == ib.WRSendWithInv || q.op == ib.WRRDMAWriteWithImm
}

func (q *request) writes() bool {
	return q.op == ib.WRRDMAWrite || q.op == ib.WRRDMAWriteWithImm || q.op == ib.WRAtomicWrite
}

func (q *request) atomic() bool {
	return q.op == ib.WRAtomicCmpAndSwp || q.op == ib.WRAtomicFetchAdd
}

func (q *request) String() string {
	return fmt.Sprintf("request %d (opcode %d, %d bytes, flags %d, %v)", q.n, q.op, len(q.data), q.flags, q.fault)
}

// word is the target of atomics.
type word struct {
	at     int    // in the peer's memory
	value  uint64 // not shared: value after all requests so far
	bits   uint   // number of bits used by fetch-and-adds
	shared bool   // used by several queue pairs
}

// receive is a receive work request.
type receive struct {
	n     int
	id    uint64
	span  span
	fault fault
	ended bool
}

// attributes are the attributes of a queue pair.
type attributes struct {
	timeout, retry, rnrRetry, rnrTimer uint8
	reads                              uint8
	sendDepth, recvDepth               int
	sigAll                             bool
}

func makeAttributes(r *rand.Rand, p *profile) attributes {
	a := attributes{
		timeout: uint8(8 + r.IntN(4)), retry: uint8(r.IntN(8)), rnrRetry: uint8(r.IntN(8)), rnrTimer: uint8(1 + r.IntN(14)),
		reads: uint8(1 + r.IntN(4)), sendDepth: 1 << r.IntN(6), recvDepth: 1 << r.IntN(6), sigAll: r.IntN(3) == 0,
	}
	if r.IntN(3) > 0 || p.budget >= 0 {
		a.retry = 7
	}
	if r.IntN(3) > 0 {
		a.rnrRetry = 7
	}
	return a
}

// sizeOf chooses the length of a message.
func sizeOf(r *rand.Rand, mtu int) int {
	switch r.IntN(8) {
	case 0:
		return r.IntN(9)
	case 1:
		return max(0, mtu*(1+r.IntN(3))+r.IntN(3)-1)
	case 2:
		return r.IntN(20 * mtu)
	case 3:
		return mtu * r.IntN(4)
	}
	return r.IntN(3 * mtu)
}

// makeRequests chooses the requests of an end, and allocates their memory.
func (e *end) makeRequests(n int) {
	w, r := e.w, e.w.rng
	var ops []ib.WROpcode
	switch w.service {
	case RC, XRC:
		ops = []ib.WROpcode{ib.WRSend, ib.WRSendWithImm, ib.WRSendWithInv, ib.WRRDMAWrite, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRRDMARead,
			ib.WRRDMARead, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd, ib.WRAtomicFetchAdd, ib.WRAtomicWrite, ib.WRFlush}
		e.makeLeases()
	case UC:
		ops = []ib.WROpcode{ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm}
	case UD:
		ops = []ib.WROpcode{ib.WRSend, ib.WRSendWithImm}
	}
	cas := &word{at: e.peer.host.alloc(8).at, value: r.Uint64()}
	e.peer.host.put(cas.at, cas.value)
	faa := e.newWord()
	var reads []*request // reads of memory that a later fenced request may write
	for i := range n {
		q := &request{n: i, id: uint64(r.Uint32())<<16 | uint64(i)<<1, op: ops[r.IntN(len(ops))], imm: r.Uint32(), message: -1, split: 1 + r.IntN(3)}
		if r.IntN(2) == 0 {
			q.flags |= ib.SendSignaled
		}
		if r.IntN(4) == 0 {
			q.flags |= ib.SendSolicited
		}
		if w.service.reliable() && r.IntN(8) == 0 {
			q.flags |= ib.SendFence
		}
		l := e.lease()
		if q.op == ib.WRSendWithInv {
			if l == nil {
				q.op = ib.WRSend
			} else {
				q.lease, l.spent = l, q
			}
		}
		size := sizeOf(r, e.mtu)
		if w.travels() && r.IntN(16) == 0 {
			size = r.IntN(longest)
		}
		if w.service == UD {
			size = min(size, e.mtu)
		}
		if q.completes() {
			q.message = e.messages
			e.messages++
		}
		if !w.service.reliable() && size < 8 && q.op == ib.WRSend {
			q.flags &^= ib.SendSolicited // similar messages cannot be told apart on arrival
		}
		if (q.op == ib.WRSend || q.op == ib.WRSendWithInv || q.op == ib.WRRDMAWrite || q.op == ib.WRRDMAWriteWithImm) && size <= maxInline && r.IntN(2) == 0 {
			q.flags |= ib.SendInline
		}
		switch {
		case q.atomic():
			q.data = make([]byte, 8)
			q.local = e.host.alloc(8)
			q.word = faa
			if q.op == ib.WRAtomicCmpAndSwp {
				q.word, q.compare, q.swap, q.want = cas, cas.value, r.Uint64(), cas.value
				if r.IntN(3) == 0 {
					q.compare++
				} else {
					cas.value = q.swap
				}
			} else {
				if r.IntN(2) == 0 && e.peer.host.shared.bits < 64 {
					q.word = e.peer.host.shared
				} else if faa.bits == 64 {
					faa = e.newWord()
					q.word = faa
				}
				q.bit, q.want = q.word.bits, q.word.value
				q.word.bits++
				q.word.value |= 1 << q.bit
			}
			q.remote = span{q.word.at, 8}
		case q.op == ib.WRRDMARead:
			q.local = e.host.alloc(size)
			written := e.written()
			if written != nil && r.IntN(3) == 0 {
				q.remote, q.data, written.reread = written.remote, written.data, true
				q.local = e.host.alloc(len(q.data))
			} else {
				q.remote, q.data = e.peer.host.alloc(size), w.bytes(size)
				copy(e.peer.host.at(q.remote), q.data)
				reads = append(reads, q)
			}
		case q.op == ib.WRAtomicWrite:
			q.data, q.remote = w.bytes(8), e.peer.host.alloc(8)
		case q.op == ib.WRFlush:
			q.level = ib.FlushLevel(r.IntN(2))
			if written := e.written(); written != nil {
				q.remote = written.remote
			} else {
				q.remote = e.peer.host.alloc(8)
			}
		default:
			if q.writes() && l != nil && size <= l.room() && r.IntN(2) == 0 {
				q.lease = l
			}
			q.local, q.data = e.host.alloc(size), w.bytes(size)
			copy(e.host.at(q.local), q.data)
			if q.writes() {
				if q.lease != nil {
					q.remote = l.take(size)
				} else if k := len(reads) - 1; k >= 0 && r.IntN(2) == 0 {
					// The WRITE overwrites memory that an earlier READ reads. The fence separates them.
					q.remote, q.flags = span{reads[k].remote.at, min(size, reads[k].remote.n)}, q.flags|ib.SendFence
					q.local.n, q.data = q.remote.n, q.data[:q.remote.n]
					reads = reads[:k]
				} else {
					q.remote = e.peer.host.alloc(size)
				}
			}
		}
		e.requests = append(e.requests, q)
	}
}

// longest is longer than the longest train.
const longest = 320_000

// newWord allocates a word for the fetch-and-adds of one queue pair.
func (e *end) newWord() *word {
	v := &word{at: e.peer.host.alloc(8).at}
	e.peer.host.put(v.at, 0)
	return v
}

// written returns a WRITE that a READ can check, or nil.
func (e *end) written() *request {
	for i := len(e.requests) - 1; i >= 0; i-- {
		if q := e.requests[i]; q.writes() && q.remote.n > 0 && q.lease == nil {
			return q
		}
	}
	return nil
}

// breakOne puts a fault into one work request or its receive.
func (e *end) breakOne() {
	r := e.w.rng
	q := e.requests[r.IntN(len(e.requests))]
	can := []fault{}
	if e.w.travels() && len(q.data) > 32<<10 {
		return // the number of sent packets before the fault depends on the path
	}
	if q.local.n > 0 && q.flags&ib.SendInline == 0 && q.op != ib.WRRDMARead && !q.atomic() {
		can = append(can, badLocalKey)
	}
	spent := e.spent(q)
	if e.w.service.reliable() {
		if q.remote.n > 0 {
			can = append(can, badKey)
			if q.op != ib.WRFlush || q.level == ib.FlushRange {
				can = append(can, badRange)
			}
			if spent != nil && q.op != ib.WRFlush {
				can = append(can, spentKey, spentKey)
			}
		}
		if q.op != ib.WRRDMAWriteWithImm && q.completes() && len(q.data) > 0 && e.peer.in != e.peer.host.shares {
			can = append(can, shortReceive, badReceive)
		}
	}
	if len(can) > 0 {
		q.fault = can[r.IntN(len(can))]
	}
	if q.fault == spentKey {
		q.lease = spent
	}
}
