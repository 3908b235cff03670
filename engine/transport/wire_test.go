package transport_test

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"verbena/engine/transport"
	"verbena/roce"
)

// wirePacket is a packet in flight, in either direction.
type wirePacket struct {
	at    time.Time
	seq   int
	reply bool
	psn   roce.PSN

	// A request.
	arrival transport.Arrival
	ackReq  bool
	msg     int // number of the request among all
	offset  int
	length  int // length of the data requested by a READ

	// A response.
	op       roce.Operation // Acknowledge, or one of the responses
	syndrome roce.Syndrome
	bytes    int
	addr     uint64
	result   uint64
}

type wire []*wirePacket

func (w wire) Len() int { return len(w) }
func (w wire) Less(i, j int) bool {
	if c := w[i].at.Compare(w[j].at); c != 0 {
		return c < 0
	}
	return w[i].seq < w[j].seq
}
func (w wire) Swap(i, j int) { w[i], w[j] = w[j], w[i] }
func (w *wire) Push(x any)   { *w = append(*w, x.(*wirePacket)) }
func (w *wire) Pop() any {
	old := *w
	x := old[len(old)-1]
	*w = old[:len(old)-1]
	return x
}

// channel loses, duplicates, delays and reorders packets. The number of faults is limited, so that each run ends.
type channel struct {
	rng                     *rand.Rand
	now                     time.Time
	wire                    wire
	seq                     int
	loss, duplicate, delays int // per cent
	faults                  int // number of remaining faults
}

func anyPercent(t *rapid.T, name string) int {
	return rapid.SampledFrom([]int{0, 0, 2, 10, 30}).Draw(t, name)
}

func anyChannel(t *rapid.T) channel {
	return channel{
		now: epoch, rng: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)), faults: rapid.IntRange(0, 200).Draw(t, "faults"),
		loss: anyPercent(t, "loss"), duplicate: anyPercent(t, "duplicates"), delays: anyPercent(t, "delays"),
	}
}

func (c *channel) fault(percent int) bool {
	if c.faults == 0 || c.rng.IntN(100) >= percent {
		return false
	}
	c.faults--
	return true
}

func (c *channel) send(p wirePacket) {
	if c.fault(c.loss) {
		return
	}
	copies := 1
	if c.fault(c.duplicate) {
		copies = 2
	}
	for range copies {
		q := p
		q.at = c.now.Add(100 * time.Microsecond)
		if c.fault(c.delays) {
			q.at = q.at.Add(time.Duration(c.rng.IntN(20_000)) * time.Microsecond)
		}
		c.seq++
		q.seq = c.seq
		heap.Push(&c.wire, &q)
	}
}

// job is a request with its progress.
type job struct {
	transport.Request
	fence    bool
	executed int    // at the responder: bytes received or read for the first time, or number of executions
	result   uint64 // result of an atomic, at the responder
	stored   int    // bytes of the response
	done     bool
}

const smallMTU = 256

// connection is a Sender and a Receiver with a channel between them.
type connection struct {
	*rapid.T
	channel
	snd     transport.Sender
	rec     transport.Recovery
	rcv     transport.Receiver
	first   roce.PSN
	jobs    []job
	posted  int
	done    int
	depth   int   // depth of the send queue
	cost    []int // window bytes by PSN
	asks    []bool
	rnr     int // per cent of RNR NAKs
	arrived int // job that the responder is receiving
	count   uint64
	lazy    int // per cent: answers wait for others
	replies []replyState
}

// replyState is the state of a PSN of a request with a response at the responder.
type replyState uint8

const (
	acknowledged replyState = iota // PSN of another kind of request
	unanswered                     // no response has been sent
	doubtful                       // a response has been sent, but an earlier request has been repeated since
	answered
)

// doubt records the repetition of a SEND or RDMA WRITE. The requester may have lost the responses to later requests,
// unless it has sent more later requests than may be outstanding.
func (c *connection) doubt(again int) {
	end, requests := c.rcv.PSN().Since(c.first), 0
	from, to := 0, 0 // range of the response that is being sent
	if y := c.rcv.Reply(); y != nil {
		to = y.PSN.Since(c.first)
		for from = to; !c.asks[from]; from-- {
		}
	}
	for i := again; i < end; i++ {
		if c.asks[i] {
			requests++
		}
	}
	for i := again; i < end && requests <= c.snd.MaxReads; i++ {
		if c.replies[i] == answered && (i < from || i >= to) {
			c.replies[i] = doubtful
		}
	}
}

// trust records that the requester has sent a request after all requests before end.
func (c *connection) trust(end int) {
	for i, s := range c.replies[:end] {
		if s == doubtful {
			c.replies[i] = answered
		}
	}
}

func (c *connection) check(ok bool, format string, args ...any) {
	if !ok {
		c.Helper()
		c.Fatalf(format, args...)
	}
}

// post pushes requests while there is room.
func (c *connection) post() {
	for c.posted < len(c.jobs) && c.posted-c.done < c.depth {
		j := &c.jobs[c.posted]
		if j.fence && c.snd.Ordered() > 0 {
			return
		}
		if j.fence {
			for i := range c.posted {
				c.check(c.jobs[i].done || !c.jobs[i].Kind.Answered(), "request %d passes the fence before %d", i, c.posted)
			}
		}
		c.posted++
		c.snd.Push(j.Request)
	}
}

// transmit sends all allowed packets.
func (c *connection) transmit() {
	for c.snd.Open() {
		n, ok := c.snd.Current()
		if !ok {
			before := c.posted
			if c.post(); c.posted == before {
				break
			}
			continue
		}
		j := &c.jobs[n]
		if j.Kind == transport.Local {
			if !c.snd.LocalDone() {
				j.executed++
			}
			c.complete(c.snd.SkipLocal())
			continue
		}
		budget := c.rng.IntN(8) // number of packets of a train
		for middles := 0; ; middles-- {
			p, ok := c.snd.Next()
			middle := ok && !p.First && !p.Last && !p.AckReq && j.Kind != transport.Read
			if middles <= 0 {
				m, many := c.snd.NextMiddles(1 + c.rng.IntN(5))
				c.check(many == middle, "NextMiddles: got %+v, %t; Next: %+v, %t", m, many, p, ok)
				if middles = m.Packets; many {
					c.check(m.Index == p.Index && m.PSN == p.PSN && m.Offset == p.Offset && m.Length == m.Packets*smallMTU,
						"NextMiddles: got %+v; Next: %+v", m, p)
				}
			} else {
				c.check(middle, "NextMiddles said that %d more middle packets follow; Next: %+v, %t", middles, p, ok)
			}
			if !ok {
				break
			}
			c.request(int(n), &p, false)
			c.snd.Sent(&p)
			if budget--; budget == 0 {
				break
			}
		}
		done, next := c.snd.Advance()
		c.complete(done)
		if !next && budget != 0 {
			break
		}
	}
	if c.snd.Unarmed() {
		c.snd.Arm(c.now)
	}
	err := c.snd.Verify()
	c.check(err == nil, "Verify: %v", err)
}

// request sends a packet of the n-th job.
func (c *connection) request(n int, p *transport.Packet, probe bool) {
	j := &c.jobs[n]
	if c.snd.Reliable && !probe {
		s := c.snd.Status()
		c.check(p.PSN == s.Place, "PSN: got %#x, want %#x", p.PSN, s.Place)
		from, to := s.Unacknowledged.Since(c.first), p.PSN.Since(c.first)
		out, asks := 0, 0
		for i := from; i < to; i++ {
			out += c.cost[i]
			if c.asks[i] {
				asks++
			}
		}
		var cost int
		for i := range p.Packets {
			cost += c.cost[to+i]
		}
		c.check(out == 0 || out+cost <= s.Window, "outside the window of %d: %d bytes, after %d", s.Window, cost, out)
		if j.Kind.Answered() {
			// The rest of a READ request that begins before una counts as one request.
			if from > 0 && from < to && !c.asks[from] && c.cost[from] != 0 && c.inRead(from) {
				asks++
			}
			c.check(asks < c.snd.MaxReads, "%d are outstanding, and one more is sent", asks)
		}
	}
	w := wirePacket{psn: p.PSN, ackReq: p.AckReq, msg: n, offset: p.Offset}
	w.arrival = transport.Arrival{Kind: j.Kind, Starts: p.First, Ends: p.Last, Length: p.Length}
	switch j.Kind {
	case transport.Read:
		w.length = p.Length
		fallthrough
	case transport.Atomic, transport.Flush:
		w.arrival.Starts, w.arrival.Ends, w.arrival.Length = true, true, 0
	case transport.AtomicWrite:
		w.arrival.Starts, w.arrival.Ends = true, true
	}
	c.send(w)
}

// inRead reports whether a PSN belongs to a READ.
func (c *connection) inRead(i int) bool {
	for n := range c.jobs {
		if k := c.jobs[n].Packets; i >= k {
			i -= k
			continue
		}
		return c.jobs[n].Kind == transport.Read
	}
	return false
}

func (c *connection) complete(n int) {
	for range n {
		j := &c.jobs[c.done]
		want := j.Length
		switch j.Kind {
		case transport.Atomic, transport.Flush, transport.Local:
			want = 1
		}
		c.check(!j.done && (!c.snd.Reliable && j.Kind != transport.Local || j.executed == want),
			"request %d of kind %d is complete, and was executed %d of %d", c.done, j.Kind, j.executed, want)
		c.check(j.Kind != transport.Read || j.stored == j.Length, "request %d: %d of %d bytes stored", c.done, j.stored, j.Length)
		j.done = true
		c.done++
	}
	c.check(int(c.snd.Head()) == c.done, "Head: got %d, want %d", c.snd.Head(), c.done)
}

// receive processes a request packet at the responder.
func (c *connection) receive(p *wirePacket) {
	r := &c.rcv
	a := p.arrival
	j := &c.jobs[p.msg]
	order := r.Arrive(p.psn)
	if order <= transport.Duplicate {
		c.trust(p.psn.Since(c.first))
	}
	if order == transport.Duplicate {
		q := transport.Repeat{PSN: p.psn, Kind: a.Kind}
		if a.Kind == transport.Read {
			q.Addr, q.Key, q.Length = c.addr(p.msg, p.offset), 1, p.length
		}
		r.Duplicate(&q)
		if !a.Kind.Answered() {
			c.doubt(p.psn.Since(c.first))
		}
	}
	if order != transport.Expected {
		return
	}
	for c.arrived < len(c.jobs) && (c.arrived < p.msg) {
		k := &c.jobs[c.arrived]
		c.check(k.Kind == transport.Local || c.taken(c.arrived), "request %d comes before the end of %d", p.msg, c.arrived)
		c.arrived++
	}
	c.check(p.msg == c.arrived, "request %d comes after %d", p.msg, c.arrived)
	c.check(legal(r, &a), "packet %+v is not legal within %v", a, r.Within())
	switch a.Kind {
	case transport.Send, transport.Write:
		if a.Kind == transport.Send && c.fault(c.rnr) {
			r.NotReady(roce.RNRTimer(1 + c.rng.IntN(14)))
			return
		}
		c.check(p.offset == j.executed, "request %d: %d bytes executed, then those at %d", p.msg, j.executed, p.offset)
		if a.Kind == transport.Write {
			if a.Starts {
				r.BeginWrite(c.addr(p.msg, 0), 1, j.Length)
			}
			addr, _, _ := r.Write()
			c.check(addr == c.addr(p.msg, p.offset) && r.WriteFits(a.Length, a.Ends), "write of %d bytes at %#x", a.Length, addr)
			r.Wrote(a.Length)
		}
		j.executed += a.Length
		r.Executed(&a, p.ackReq)
		return
	}
	c.check(r.Admits(), "request %d is not admitted", p.msg)
	y := transport.Answer{Kind: a.Kind, Packets: 1}
	switch a.Kind {
	case transport.Read:
		c.check(p.offset == j.executed, "request %d: %d bytes read, then those at %d", p.msg, j.executed, p.offset)
		y.Packets = packets(p.length, smallMTU)
		y.Addr, y.Key, y.Length = c.addr(p.msg, p.offset), 1, p.length
		j.executed += p.length
	case transport.Atomic:
		c.count++
		j.result, y.Result = c.count, c.count
		j.executed++
	case transport.AtomicWrite:
		j.executed += a.Length
	case transport.Flush:
		j.executed++
	}
	r.Answer(&y)
}

// taken reports whether a request has been executed completely.
func (c *connection) taken(n int) bool {
	j := &c.jobs[n]
	switch j.Kind {
	case transport.Atomic, transport.Flush:
		return j.executed == 1
	}
	return j.executed == j.Length
}

func (c *connection) addr(msg, offset int) uint64 { return uint64(msg+1)<<32 + uint64(offset) }

// answer sends pending answers, at most n packets.
func (c *connection) answer(n int) {
	r := &c.rcv
	for y := r.Reply(); y != nil; y = r.Reply() {
		for middles, done := 0, false; !done; middles, done = middles-1, y.Left == 0 {
			if n--; n < 0 {
				return
			}
			op, size := y.Packet(smallMTU)
			if middles <= 0 {
				middles = y.Middles(smallMTU, 1+c.rng.IntN(5))
			}
			c.check(middles > 0 == (op == roce.RDMAReadResponseMiddle), "%d middle packets follow, but the next is %v", middles, op)
			w := wirePacket{reply: true, psn: y.PSN, op: op, bytes: size, addr: y.Addr, result: y.Result}
			if op != roce.RDMAReadResponseMiddle {
				w.syndrome = roce.ACKUnlimited
			}
			c.replies[y.PSN.Since(c.first)] = answered
			y.Sent(1, size)
			c.send(w)
		}
		r.Replied()
	}
	if a, due := r.Ack(); due {
		r.AckSent()
		c.acknowledges(a)
		c.send(wirePacket{reply: true, psn: a.PSN, op: roce.Acknowledge, syndrome: a.Syndrome})
	}
}

// acknowledges checks that an acknowledgement covers no request that is answered with data.
func (c *connection) acknowledges(a transport.Ack) {
	if !a.Syndrome.IsACK() {
		return
	}
	at := a.PSN.Since(c.first)
	c.check(c.replies[at] == acknowledged, "the acknowledgement %d is of a request that is answered", at)
	for i, s := range c.replies[:at] {
		c.check(s != unanswered && s != doubtful, "the acknowledgement %d stands for %d, whose response is %d", at, i, s)
	}
}

// receiveReply processes an answer at the requester.
func (c *connection) receiveReply(p *wirePacket) {
	s := &c.snd
	if !s.Expects(p.psn) {
		return
	}
	if p.op == roce.Acknowledge {
		c.apply(s.Ack(p.psn, p.syndrome))
		return
	}
	res, to, ok := s.Response(&transport.Response{PSN: p.psn, Op: p.op, Syndrome: p.syndrome, Length: p.bytes})
	if c.apply(res); !ok {
		return
	}
	n := int(s.Head())
	j := &c.jobs[n]
	switch j.Kind {
	case transport.Atomic:
		c.check(to == transport.Store{Last: true} && p.result == j.result, "atomic %d: got %d at %+v, want %d", n, p.result, to, j.result)
	case transport.Read:
		c.check(p.addr == c.addr(n, to.Offset) || p.bytes == 0, "READ %d: the bytes of %#x are stored at %d", n, p.addr, to.Offset)
		c.check(to.Offset == j.stored, "READ %d: %d bytes stored, then those at %d", n, j.stored, to.Offset)
		j.stored += p.bytes
	}
	c.apply(s.Stored())
}

func (c *connection) apply(res transport.Result) {
	c.check(res.Failure == transport.NoFailure, "request %d: failure %v", c.done, res.Failure)
	c.complete(res.Done)
}

func (c *connection) tick() {
	switch c.snd.Tick(c.now) {
	case transport.AckTimeout:
		if res, ok := c.snd.TimedOut(); ok {
			c.apply(res)
		}
	case transport.ProbeDue:
		if p, ok := c.snd.Probe(c.now); ok {
			c.check(p.AckReq && p.PSN == c.snd.Status().Unacknowledged, "probe %+v", p)
			c.request(int(c.snd.Head()), &p, true)
		}
	}
}

// run runs until all requests are complete.
func (c *connection) run() {
	for steps := 0; c.done < len(c.jobs); steps++ {
		c.check(steps < 20_000, "no end: %d of %d are complete; %+v", c.done, len(c.jobs), c.snd.Status())
		c.transmit()
		if c.rng.IntN(100) >= c.lazy {
			c.answer(1 + c.rng.IntN(20))
		}
		if c.done == len(c.jobs) {
			break
		}
		deadline := c.snd.Deadline()
		_, due := c.rcv.Ack()
		switch {
		case len(c.wire) > 0 && (deadline.IsZero() || !deadline.Before(c.wire[0].at)):
			p := heap.Pop(&c.wire).(*wirePacket)
			c.now = p.at
			if p.reply {
				c.receiveReply(p)
			} else {
				c.receive(p)
			}
		case due || c.rcv.Reply() != nil:
			c.answer(1 + c.rng.IntN(20))
		default:
			c.check(!deadline.IsZero(), "stuck: %d of %d are complete; %+v", c.done, len(c.jobs), c.snd.Status())
			c.now = deadline
			c.tick()
		}
	}
	for i := range c.jobs {
		c.check(c.jobs[i].Kind == transport.Local || c.taken(i), "request %d was not executed", i)
	}
	c.check(c.snd.Len() == 0 && c.snd.Ordered() == 0, "in flight at the end: %d, %d ordered", c.snd.Len(), c.snd.Ordered())
	// Packets that are still in flight must not change the state.
	for len(c.wire) > 0 {
		p := heap.Pop(&c.wire).(*wirePacket)
		if p.reply {
			c.check(!c.snd.Expects(p.psn), "a response with PSN %#x is expected at the end", p.psn)
		} else {
			c.check(c.rcv.Arrive(p.psn) == transport.Duplicate, "a request with PSN %#x is no duplicate at the end", p.psn)
		}
	}
	end := c.first.Add(len(c.cost))
	c.check(c.rcv.PSN() == end && c.snd.Place() == end, "PSNs at the end: got %#x and %#x, want %#x", c.rcv.PSN(), c.snd.Place(), end)
}

var anyFirst = rapid.Custom(func(t *rapid.T) roce.PSN {
	if rapid.Bool().Draw(t, "at an edge") {
		edge := rapid.SampledFrom([]uint32{0, 1 << 23, 1 << 24}).Draw(t, "edge")
		return roce.MakePSN(edge - uint32(rapid.IntRange(0, 100).Draw(t, "before")))
	}
	return roce.PSN(rapid.Uint32Range(0, roce.PSNMask).Draw(t, "PSN"))
})

// anyJob draws a request with one of the allowed kinds.
func anyJob(t *rapid.T, kinds []transport.Kind) job {
	j := job{Request: transport.Request{Kind: rapid.SampledFrom(kinds).Draw(t, "kind"), Packets: 1}}
	switch j.Kind {
	case transport.Local:
		j.Packets = 0
	case transport.Atomic, transport.AtomicWrite:
		j.Length = 8
	case transport.Read:
		if rapid.IntRange(0, 15).Draw(t, "long") == 15 {
			chunks := rapid.IntRange(1, 3).Draw(t, "parts")
			j.Length = chunks*transport.ReadChunk + rapid.IntRange(-300, 300).Draw(t, "more")
			j.Packets = packets(j.Length, smallMTU)
			break
		}
		fallthrough
	case transport.Send, transport.Write:
		j.Length = rapid.IntRange(0, 2000).Draw(t, "length")
		j.Packets = packets(j.Length, smallMTU)
	}
	j.fence = rapid.IntRange(0, 9).Draw(t, "fence") == 9
	return j
}

// TestChannel: on any channel, each request is executed once and completes once, in order. READs return the right
// bytes. No packet exceeds the window or the number of outstanding requests.
func TestChannel(t *testing.T) {
	for range 5 {
		rapid.Check(t, func(t *rapid.T) {
			c := connection{T: t, channel: anyChannel(t)}
			c.first = anyFirst.Draw(t, "first")
			c.rnr, c.lazy = anyPercent(t, "not ready"), anyPercent(t, "lazy")
			c.depth = rapid.IntRange(1, 20).Draw(t, "depth")
			reads := rapid.IntRange(1, 5).Draw(t, "reads")
			c.rec = new(transport.AIMD)
			if rapid.Bool().Draw(t, "small window") {
				c.rec = &fixed{window: rapid.IntRange(0, 3000).Draw(t, "window"), probe: time.Duration(rapid.IntRange(0, 1).Draw(t, "probe")) * transport.ProbeAfter}
			}
			c.snd.SenderConfig = transport.SenderConfig{
				Reliable: true, MTU: smallMTU, Timeout: roce.AckTimeout(rapid.IntRange(10, 16).Draw(t, "timeout")),
				RetryCnt: 255, RNRRetry: transport.RNRForever, MaxReads: reads,
			}
			c.snd.Init(c.rec)
			c.snd.Begin(c.first)
			c.snd.SetRetryCnt(255)
			c.snd.SetRNRRetry(transport.RNRForever)
			c.rcv.SetMTU(smallMTU)
			c.rcv.SetDepth(reads)
			c.rcv.Begin(c.first)
			all := []transport.Kind{
				transport.Send, transport.Write, transport.Read, transport.Atomic, transport.AtomicWrite, transport.Flush, transport.Local,
			}
			for range rapid.IntRange(1, 60).Draw(t, "requests") {
				j := anyJob(t, all)
				c.jobs = append(c.jobs, j)
				for i := range j.Packets {
					left := j.Length - i*smallMTU
					c.cost = append(c.cost, transport.PacketCost+min(left, smallMTU))
					chunk := transport.ReadChunk / smallMTU
					c.asks = append(c.asks, j.Kind.Answered() && i%chunk == 0)
					if j.Kind.Answered() {
						c.replies = append(c.replies, unanswered)
					} else {
						c.replies = append(c.replies, acknowledged)
					}
				}
			}
			c.run()
		})
	}
}

// TestUnreliableChannel: on an unreliable connection, a message is delivered if and only if its packets arrive
// consecutively. Each request completes when it is sent.
func TestUnreliableChannel(t *testing.T) {
	for range 5 {
		rapid.Check(t, func(t *rapid.T) {
			c := connection{T: t, channel: anyChannel(t)}
			c.first = anyFirst.Draw(t, "first")
			c.depth = rapid.IntRange(1, 20).Draw(t, "depth")
			c.rec = new(transport.AIMD)
			c.snd.SenderConfig = transport.SenderConfig{MTU: smallMTU}
			c.snd.Init(c.rec)
			c.snd.Begin(c.first)
			c.rcv.SetMTU(smallMTU)
			c.rcv.Begin(c.first)
			for range rapid.IntRange(1, 60).Draw(t, "requests") {
				c.jobs = append(c.jobs, anyJob(t, []transport.Kind{transport.Send, transport.Write, transport.Local}))
			}
			for c.done < len(c.jobs) {
				before := c.done
				c.transmit()
				c.check(c.done > before && c.snd.Deadline().IsZero(), "stuck: %d of %d are complete", c.done, len(c.jobs))
				c.now = c.now.Add(time.Duration(c.rng.IntN(1000)) * time.Microsecond)
			}
			var got, want []int // numbers of messages
			var came []*wirePacket
			for len(c.wire) > 0 {
				p := heap.Pop(&c.wire).(*wirePacket)
				came = append(came, p)
				a := p.arrival
				within := c.rcv.Within()
				if c.rcv.Interrupts(p.psn, a.Starts) {
					c.check(within != transport.None, "a message is interrupted that has not begun")
					within = transport.None
				}
				ok := c.rcv.ArriveUnreliable(p.psn, a.Starts)
				c.check(c.rcv.Within() == within || ok, "within: got %v, want %v", c.rcv.Within(), within)
				if !ok {
					continue
				}
				if !legal(&c.rcv, &a) {
					c.rcv.Abandon(p.psn)
					continue
				}
				if c.rcv.Executed(&a, false); a.Ends {
					got = append(got, p.msg)
				}
			}
			// The packets of a message, from the last one backwards, must be the last received ones.
			for i, p := range came {
				if !p.arrival.Ends {
					continue
				}
				k, q := i, p
				for !q.arrival.Starts && k > 0 && came[k-1].msg == p.msg && came[k-1].psn.Next() == q.psn {
					k--
					q = came[k]
				}
				if q.arrival.Starts {
					want = append(want, p.msg)
				}
			}
			c.check(slices.Equal(got, want), "messages delivered: got %v, want %v", got, want)
			c.check(c.rcv.MSN() == uint32(len(want)), "MSN: got %d, want %d", c.rcv.MSN(), len(want))
			_, due := c.rcv.Ack()
			c.check(!due && c.rcv.Reply() == nil, "an unreliable connection acknowledges")
		})
	}
}
