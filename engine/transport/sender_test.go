package transport_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"verbena/engine/transport"
	"verbena/roce"
)

// fixed is a Recovery with a constant window.
type fixed struct {
	window      int
	probe       time.Duration
	acked, lost int // bytes, calls
}

func (f *fixed) Reset()          { f.acked, f.lost = 0, 0 }
func (f *fixed) Window() int     { return f.window }
func (f *fixed) Acked(bytes int) { f.acked += bytes }
func (f *fixed) Lost(int)        { f.lost++ }
func (f *fixed) Timeout(t roce.AckTimeout) (timeout, probe time.Duration) {
	return t.Duration(), f.probe
}

var epoch = time.Unix(1_000_000, 0)

// requester drives a Sender like a queue pair does. PSNs are relative to the first one, and requests are numbered from
// 0.
type requester struct {
	*testing.T
	transport.Sender
	rec   *fixed
	first roce.PSN
	now   time.Time
	reqs  []transport.Request
	head  int // index in reqs of the oldest incomplete request
	local int // number of executed local requests
	base  uint32
	dead  bool
	most  int // largest number of middle packets to send at once; 0: one by one
}

func newRequester(t *testing.T, first roce.PSN) *requester {
	r := &requester{T: t, first: first, now: epoch, rec: &fixed{window: 1 << 40}}
	r.SenderConfig = transport.SenderConfig{
		Reliable: true, MTU: mtu, Timeout: 14, RetryCnt: 3, RNRRetry: 2, MaxReads: 4,
	}
	r.Init(r.rec)
	r.SetRetryCnt(3)
	r.SetRNRRetry(2)
	r.Begin(first)
	r.SetNumber(-uint32(first & 3)) // wraps in many rows
	r.base = r.Tail()
	return r
}

// push posts requests: "send 3000", "read 10", "atomic", "local".
func (r *requester) push(all ...string) {
	r.Helper()
	for _, s := range all {
		f := strings.Fields(s)
		q := transport.Request{Kind: kinds[f[0]], Packets: 1}
		switch {
		case f[0] == "local":
			q.Kind, q.Packets = transport.Local, 0
		case len(f) > 1:
			fmt.Sscan(f[1], &q.Length)
			q.Packets = packets(q.Length, r.MTU)
		case q.Kind == transport.Atomic:
			q.Length = 8
		}
		if n := int(r.Tail() - r.base); n != len(r.reqs) {
			r.Errorf("Tail: got %d, want %d", n, len(r.reqs))
		}
		r.reqs = append(r.reqs, q)
		r.Push(q)
	}
	r.verify()
}

func (r *requester) verify() {
	r.Helper()
	if err := r.Verify(); err != nil {
		r.Errorf("Verify: %v", err)
	}
	if n := int(r.Head() - r.base); !r.dead && n != r.head {
		r.Errorf("Head: got %d, want %d", n, r.head)
	}
	if n := len(r.reqs) - r.head; !r.dead && r.Len() != n {
		r.Errorf("Len: got %d, want %d", r.Len(), n)
	}
}

// transmit sends all allowed packets and returns them: "0 first", "1 middle", "2 last ack", "3 read 3000 at 0 ack".
func (r *requester) transmit() (all []string) {
	r.Helper()
	for range 1 << 20 {
		if !r.Open() {
			break
		}
		n, ok := r.Current()
		if !ok {
			break
		}
		q := r.reqs[n-r.base]
		if q.Packets == 0 && q.Kind != transport.Local {
			break // completes when it is the oldest request
		}
		if q.Kind == transport.Local {
			if !r.LocalDone() {
				r.local++
				all = append(all, "local")
			}
			r.head += r.SkipLocal()
			continue
		}
		for {
			p, ok := r.NextMiddles(r.most)
			if !ok {
				if p, ok = r.Next(); !ok {
					break
				}
				all = append(all, r.describe(q, &p))
			} else {
				one := p
				for one.Packets, one.Length = 1, r.MTU; one.Index < p.Index+p.Packets; one.Index++ {
					all = append(all, r.describe(q, &one))
					one.PSN, one.Offset = one.PSN.Next(), one.Offset+r.MTU
				}
			}
			r.Sent(&p)
		}
		done, next := r.Advance()
		r.head += done
		if !next {
			break
		}
	}
	if r.Unarmed() {
		r.Arm(r.now)
	}
	r.verify()
	return all
}

func (r *requester) describe(q transport.Request, p *transport.Packet) string {
	r.Helper()
	s := fmt.Sprint(p.PSN.Since(r.first), " ")
	switch {
	case q.Kind == transport.Read:
		s += fmt.Sprint("read ", p.Length, " at ", p.Offset)
		if want := packets(p.Length, r.MTU); p.Packets != want {
			r.Errorf("packet %s: got %d PSNs, want %d", s, p.Packets, want)
		}
	case p.First && p.Last:
		s += "only"
	case p.First:
		s += "first"
	case p.Last:
		s += "last"
	default:
		s += "middle"
	}
	if q.Kind == transport.Send || q.Kind == transport.Write {
		if p.Offset != p.Index*r.MTU || p.Length != min(q.Length-p.Offset, r.MTU) || p.Last != (p.Index == q.Packets-1) || p.Packets != 1 {
			r.Errorf("packet %s: got %d bytes at %d, %d PSNs, of %d", s, p.Length, p.Offset, p.Packets, q.Length)
		}
	}
	if p.AckReq {
		s += " ack"
	}
	return s
}

// sends sends all allowed packets and compares them. Requests for acknowledgements are compared only if want contains
// some.
func (r *requester) sends(want ...string) {
	r.Helper()
	got, exp := strings.Join(r.transmit(), ", "), strings.Join(want, ", ")
	if !strings.Contains(exp, "ack") {
		got = strings.ReplaceAll(got, " ack", "")
	}
	if got != exp {
		r.Errorf("sent: got %q, want %q", got, exp)
	}
}

var failures = [...]string{
	transport.RemoteInvalid: "invalid", transport.RemoteAccess: "access", transport.RemoteOperation: "operation",
	transport.RetryExceeded: "retries", transport.RNRExceeded: "rnr", transport.BadResponse: "bad response",
}

// apply applies a result and describes it: "done 2", "retransmits", "wait 10ms", "2 fails: access".
func (r *requester) apply(res transport.Result) (all []string) {
	r.head += res.Done
	if res.Done > 0 {
		all = append(all, fmt.Sprint("done ", res.Done))
	}
	if res.Retransmits && res.Failure == transport.NoFailure {
		all = append(all, "retransmits")
	}
	if res.Wait != 0 {
		all = append(all, fmt.Sprint("wait ", res.Wait))
	}
	if r.Unarmed() {
		r.Arm(r.now)
	}
	r.verify()
	if res.Failure != transport.NoFailure {
		all = append(all, fmt.Sprint(r.head, " fails: ", failures[res.Failure]))
		r.dead = true
		if r.Len() > 0 {
			r.Drop()
		}
		r.Stop()
		for r.Len() > 0 {
			r.Drop()
		}
		if !r.Sender.Deadline().IsZero() {
			r.Errorf("Deadline in the error state: got %v, want none", r.Sender.Deadline())
		}
	}
	return all
}

func (r *requester) compare(what, want string, got []string) {
	r.Helper()
	if s := strings.Join(got, ", "); s != want {
		r.Errorf("%s: got %q, want %q", what, s, want)
	}
}

// syndrome passes an acknowledgement to the sender. The outcome "ghost" means that it is not expected.
func (r *requester) syndrome(psn int, s roce.Syndrome, want string) {
	r.Helper()
	var got []string
	if !r.Expects(r.first.Add(psn)) {
		got = []string{"ghost"}
	} else {
		got = r.apply(r.Ack(r.first.Add(psn), s))
	}
	if want != "any" {
		r.compare(fmt.Sprint(s, " ", psn), want, got)
	}
}

func (r *requester) ack(psn int, want string) {
	r.Helper()
	r.syndrome(psn, roce.ACKUnlimited, want)
}

func (r *requester) nak(psn int, want string) {
	r.Helper()
	r.syndrome(psn, roce.NAKPSNSequenceError, want)
}

func (r *requester) rnr(psn int, want string) {
	r.Helper()
	r.syndrome(psn, roce.RNRNAK(14), want)
}

// rnr14 is the time of RNR timer code 14.
var rnr14 = roce.RNRTimer(14).Duration()

var responses = map[string]roce.Operation{
	"first": roce.RDMAReadResponseFirst, "middle": roce.RDMAReadResponseMiddle, "last": roce.RDMAReadResponseLast,
	"only": roce.RDMAReadResponseOnly, "atomic": roce.AtomicAcknowledge,
}

// gets passes a response to the sender: "PSN first|middle|last|only LENGTH", "PSN atomic". The outcome contains the
// place of the payload as "at OFFSET", and " last" at the end of the response.
func (r *requester) gets(response, want string) {
	r.Helper()
	f := strings.Fields(response)
	var n int
	fmt.Sscan(f[0], &n)
	x := transport.Response{PSN: r.first.Add(n), Op: responses[f[1]]}
	if f[1] != "middle" {
		x.Syndrome = roce.ACKUnlimited
	}
	if len(f) > 2 {
		fmt.Sscan(f[2], &x.Length)
	}
	r.getsResponse(&x, response, want)
}

func (r *requester) getsResponse(x *transport.Response, response, want string) {
	r.Helper()
	var got []string
	if !r.Expects(x.PSN) {
		got = []string{"ghost"}
	} else {
		res, to, ok := r.Response(x)
		got = r.apply(res)
		if ok {
			s := fmt.Sprint("at ", to.Offset)
			if to.Last {
				s += " last"
			}
			got = append(got, s)
			got = append(got, r.apply(r.Stored())...)
		}
	}
	if want != "any" {
		r.compare("response "+response, want, got)
	}
}

// reads passes the complete response to a READ, from one packet to another.
func (r *requester) reads(psn, from, length int) {
	r.Helper()
	n := packets(length, r.MTU)
	for i := range n {
		op, size := "middle", r.MTU
		switch {
		case n == 1:
			op, size = "only", length
		case i == 0:
			op = "first"
		case i == n-1:
			op, size = "last", length-i*r.MTU
		}
		want := "any"
		if i < n-1 {
			want = fmt.Sprint("at ", from+i*r.MTU)
		}
		r.gets(fmt.Sprint(psn+i, " ", op, " ", size), want)
	}
}

func (r *requester) after(d time.Duration) { r.now = r.now.Add(d) }

// tick checks the deadline: "", "timeout", "probe". It also handles a timeout.
func (r *requester) tick(want string) {
	r.Helper()
	var got []string
	switch r.Tick(r.now) {
	case transport.AckTimeout:
		got = append(got, "timeout")
		if res, ok := r.TimedOut(); ok {
			got = append(got, r.apply(res)...)
		}
	case transport.ProbeDue:
		if p, ok := r.Probe(r.now); ok {
			got = append(got, "probe", r.describe(r.reqs[r.Head()-r.base], &p))
		}
	}
	r.compare("tick", want, got)
	if !r.dead {
		r.verify()
	}
}

// deadline compares the time until the deadline; 0: none.
func (r *requester) deadline(want time.Duration) {
	r.Helper()
	got := time.Duration(0)
	if d := r.Sender.Deadline(); !d.IsZero() {
		got = d.Sub(r.now)
	}
	if got != want {
		r.Errorf("deadline: got %v, want %v", got, want)
	}
}

func (r *requester) retries(want, wantRNR uint8) {
	r.Helper()
	if s := r.Status(); s.Retries != want || s.RNRRetries != wantRNR {
		r.Errorf("retries: got %d and %d, want %d and %d", s.Retries, s.RNRRetries, want, wantRNR)
	}
}

// unacked compares the oldest unacknowledged PSN and the PSN of the next packet.
func (r *requester) unacked(una, place int) {
	r.Helper()
	s := r.Status()
	if got := s.Unacknowledged.Since(r.first); got != una {
		r.Errorf("unacknowledged: got %d, want %d", got, una)
	}
	if got := s.Place.Since(r.first); got != place || r.Place() != s.Place {
		r.Errorf("place: got %d and %d, want %d", got, r.Place().Since(r.first), place)
	}
}

type senderRule struct {
	clause string // section of IBA, volume 1
	rule   string
	run    func(r *requester)
}

func runSender(t *testing.T, rules []senderRule) {
	seen := map[string]bool{}
	for _, x := range rules {
		if seen[x.rule] {
			t.Errorf("two rules %q", x.rule)
		}
		seen[x.rule] = true
		t.Run(x.clause+" "+x.rule, func(t *testing.T) {
			for _, first := range firsts {
				for _, most := range []int{0, 2, 1 << 20} {
					r := newRequester(t, first)
					r.most = most
					x.run(r)
					if t.Failed() {
						t.Fatalf("the first PSN is %#x; at most %d middle packets together", first, most)
					}
				}
			}
		})
	}
}

func init() { kinds["local"] = transport.Local }

func TestSenderPackets(t *testing.T) {
	runSender(t, []senderRule{
		{"9.7.2", "a message is cut into packets of the path MTU", func(r *requester) {
			r.push("send 3000", "write 2048")
			r.sends("0 first", "1 middle", "2 last", "3 first", "4 last")
		}},
		{"9.7.2", "a message of one MTU is one packet", func(r *requester) {
			r.push("send 1024", "write 1025")
			r.sends("0 only", "1 first", "2 last")
		}},
		{"9.7.2", "a message of no length is one packet", func(r *requester) {
			r.push("send 0", "write 0", "send 1")
			r.sends("0 only", "1 only", "2 only")
		}},
		{"9.7.2", "a READ takes the PSNs of its response", func(r *requester) {
			r.push("read 3000", "read 0", "read 1024", "send 1")
			r.sends("0 read 3000 at 0", "3 read 0 at 0", "4 read 1024 at 0", "5 only")
			r.unacked(0, 6)
		}},
		{"9.7.2", "a long READ is asked for in parts", func(r *requester) {
			r.push("read 65546", "send 1")
			r.sends("0 read 65536 at 0", "64 read 10 at 65536", "65 only")
		}},
		{"9.7.2", "a READ of one part is not cut", func(r *requester) {
			r.push("read 65536", "send 1")
			r.sends("0 read 65536 at 0", "64 only")
		}},
		{"9.7.2", "an atomic, a FLUSH and an ATOMIC WRITE take one PSN", func(r *requester) {
			r.push("atomic", "flush", "atomicwrite 8", "send 1")
			r.sends("0 only", "1 only", "2 only", "3 only")
		}},
		{"9.7.5.1", "the last packet of the last message asks for an acknowledgement", func(r *requester) {
			r.push("send 2000")
			if all := r.transmit(); len(all) != 2 || all[1] != "1 last ack" {
				r.Errorf("got %q", all)
			}
		}},
		{"9.7.5.1", "the packet that fills the window asks for an acknowledgement", func(r *requester) {
			r.rec.window = 3 * (mtu + transport.PacketCost)
			r.push("send 10000")
			if all := r.transmit(); len(all) != 3 || all[2] != "2 middle ack" {
				r.Errorf("got %q", all)
			}
		}},
		{"9.7.5.1", "the only packet that a small window allows asks for an acknowledgement", func(r *requester) {
			r.rec.window = 1
			r.push("send 10000")
			for i := range 10 {
				if all := r.transmit(); len(all) != 1 || !strings.HasSuffix(all[0], " ack") {
					r.Errorf("packet %d: got %q", i, all)
				}
				if i < 9 {
					r.ack(i, "")
				}
			}
			r.ack(9, "done 1")
		}},
		{"9.7.5.1", "half a window without a request for an acknowledgement ends with one", func(r *requester) {
			r.rec.window = 10 * (mtu + transport.PacketCost)
			r.push("send 20000")
			r.sends("0 first", "1 middle", "2 middle", "3 middle", "4 middle ack", "5 middle", "6 middle", "7 middle", "8 middle", "9 middle ack")
		}},
		{"9.7.5.1", "packets within a message that the window allows ask for nothing", func(r *requester) {
			r.push("send 5000", "send 3000")
			r.sends("0 first", "1 middle", "2 middle", "3 middle", "4 last ack", "5 first", "6 middle", "7 last ack")
		}},
		{"9.7.7", "a window bounds what is unacknowledged", func(r *requester) {
			r.rec.window = 2 * (mtu + transport.PacketCost)
			r.push("send 5000")
			r.sends("0 first", "1 middle")
			r.sends()
			r.ack(0, "")
			r.sends("2 middle")
			r.ack(2, "")
			r.sends("3 middle", "4 last")
			r.ack(4, "done 1")
		}},
		{"9.7.7", "a window bounds small messages by their packets", func(r *requester) {
			r.rec.window = 3 * (transport.PacketCost + 1)
			r.push("send 1", "send 1", "send 1", "send 1")
			r.sends("0 only", "1 only", "2 only")
			r.ack(0, "done 1")
			r.sends("3 only")
		}},
		{"9.7.7", "a window bounds what READs bring", func(r *requester) {
			r.rec.window = 3*(mtu+transport.PacketCost) + 100
			r.push("read 2048", "read 2048", "send 50")
			r.sends("0 read 2048 at 0")
			r.gets("0 first 1024", "at 0")
			r.sends("2 read 2048 at 0")
			r.reads(1, 1024, 1024)
		}},
		{"9.7.7", "one packet is sent whatever the window", func(r *requester) {
			r.rec.window = 0
			r.push("send 1", "read 65536", "send 1")
			r.sends("0 only")
			r.ack(0, "done 1")
			r.sends("1 read 65536 at 0")
			r.sends()
		}},
		{"9.7.7", "a window that shrinks below what is unacknowledged waits", func(r *requester) {
			r.push("send 3000")
			r.sends("0 first", "1 middle", "2 last")
			r.rec.window = 1
			r.push("send 1")
			r.sends()
			r.ack(1, "")
			r.sends()
			r.ack(2, "done 1")
			r.sends("3 only")
		}},
		{"9.7.7", "the window gets back the bytes that are acknowledged", func(r *requester) {
			r.push("send 3000", "read 2000", "send 0")
			r.sends("0 first", "1 middle", "2 last", "3 read 2000 at 0", "5 only")
			r.ack(1, "")
			if want := 2 * (mtu + transport.PacketCost); r.rec.acked != want {
				r.Errorf("acknowledged: got %d bytes, want %d", r.rec.acked, want)
			}
			r.gets("3 first 1024", "done 1, at 0")
			r.gets("4 last 976", "at 1024 last, done 1")
			r.ack(5, "done 1")
			if want := 5000 + 6*transport.PacketCost; r.rec.acked != want {
				r.Errorf("acknowledged: got %d bytes, want %d", r.rec.acked, want)
			}
		}},
		{"9.7.3", "PSNs go on across the wrap", func(r *requester) {
			for i := range 40 {
				r.push("send 1")
				r.sends(fmt.Sprint(i, " only"))
				r.ack(i, "done 1")
			}
			if got, want := r.Place(), r.first.Add(40); got != want {
				r.Errorf("Place: got %#x, want %#x", got, want)
			}
		}},
	})
}

func TestSenderAcks(t *testing.T) {
	runSender(t, []senderRule{
		{"9.7.5.1.2", "an ACK acknowledges its packet and all before it", func(r *requester) {
			r.push("send 1", "write 1", "send 1", "send 1")
			r.sends("0 only", "1 only", "2 only", "3 only")
			r.ack(0, "done 1")
			r.ack(2, "done 2")
			r.ack(3, "done 1")
			r.unacked(4, 4)
		}},
		{"9.7.5.1.2", "an ACK within a message completes nothing", func(r *requester) {
			r.push("send 3000")
			r.sends("0 first", "1 middle", "2 last")
			r.ack(1, "")
			r.unacked(2, 3)
			r.ack(2, "done 1")
		}},
		{"9.7.5.1.2", "an ACK within a message completes those before it", func(r *requester) {
			r.push("send 1", "send 3000")
			r.sends("0 only", "1 first", "2 middle", "3 last")
			r.ack(2, "done 1")
			r.ack(3, "done 1")
		}},
		{"9.7.5.1.2", "an ACK of a packet that was never sent is a ghost", func(r *requester) {
			r.ack(0, "ghost")
			r.ack(-1, "ghost")
			r.push("send 1")
			r.ack(0, "ghost")
			r.sends("0 only")
			r.ack(1, "ghost")
			r.ack(1<<23-1, "ghost")
			r.ack(-1<<23, "ghost")
			r.ack(0, "done 1")
		}},
		{"9.7.5.1.2", "responses to PSNs that were never sent are counted, until the oldest PSN is acknowledged", func(r *requester) {
			foreign := func(want int, of roce.PSN) {
				r.Helper()
				if psn, n := r.Foreign(); n != want || psn != of {
					r.Errorf("foreign responses: got %d, the last of PSN %d; want %d, PSN %d", n, psn, want, of)
				}
			}
			r.push("send 1", "send 1")
			r.sends("0 only", "1 only")
			r.ack(0, "done 1")
			r.Stale(r.first) // already acknowledged
			foreign(0, 0)
			r.Stale(r.first.Add(2))
			r.Stale(r.first.Add(-1))
			foreign(2, r.first.Add(-1))
			r.ack(1, "done 1")
			foreign(0, 0)
		}},
		{"9.7.5.1.2", "an ACK within the message of a packet that waits for the window is a ghost", func(r *requester) {
			r.rec.window = 1
			r.push("send 3000")
			r.sends("0 first")
			r.ack(1, "ghost")
			r.nak(2, "ghost")
			r.ack(0, "")
			r.sends("1 middle")
		}},
		{"9.7.5.1.2", "an ACK of a packet that is acknowledged is stale", func(r *requester) {
			r.push("send 1", "send 1")
			r.sends("0 only", "1 only")
			r.ack(0, "done 1")
			r.ack(0, "ghost")
			r.nak(0, "ghost")
			r.rnr(0, "ghost")
			r.syndrome(0, roce.NAKRemoteAccessError, "ghost")
			r.ack(1, "done 1")
			r.ack(1, "ghost")
			r.gets("1 only 1", "ghost")
		}},
		{"9.7.5.1.2", "an ACK may come for packets that are to be sent again", func(r *requester) {
			r.push("send 1", "send 1", "send 1")
			r.sends("0 only", "1 only", "2 only")
			r.nak(0, "retransmits")
			r.ack(1, "done 2")
			r.sends("2 only")
			r.ack(2, "done 1")
		}},
		{"9.7.5.1.2", "an ACK for the first transmission comes after some were sent again", func(r *requester) {
			r.push("send 1", "send 3000")
			r.sends("0 only", "1 first", "2 middle", "3 last")
			r.nak(0, "retransmits")
			r.rec.window = 1
			r.sends("0 only")
			r.ack(2, "done 1")
			r.sends("3 last")
			r.ack(3, "done 1")
			r.sends()
		}},
		{"9.7.5.1.2", "an ACK for all that is to be sent again leaves nothing to send", func(r *requester) {
			r.push("send 3000", "send 1")
			r.sends("0 first", "1 middle", "2 last", "3 only")
			r.nak(1, "retransmits")
			r.ack(3, "done 2")
			r.sends()
			r.push("send 1")
			r.sends("4 only")
		}},
		{"9.7.7.1", "an ACK with any credit count is an ACK", func(r *requester) {
			r.push("send 1", "send 1", "send 1")
			r.sends("0 only", "1 only", "2 only")
			r.syndrome(0, roce.ACK(0), "done 1")
			r.syndrome(1, roce.ACK(32768), "done 1")
			r.syndrome(2, 0x1e, "done 1")
		}},
		{"9.7.5.2.1", "a reserved syndrome is ignored", func(r *requester) {
			r.push("send 1", "send 1")
			r.sends("0 only", "1 only")
			for _, s := range []roce.Syndrome{0x40, 0x5f, 0x80, 0x9f, 0xa0, 0xc0, 0xe0, 0xff} {
				r.syndrome(1, s, "")
			}
			r.unacked(0, 2)
			r.ack(1, "done 2")
		}},
		{"9.7.5.1.2", "an ACK beyond a READ without its response asks for the response again", func(r *requester) {
			r.push("send 1", "read 3000", "send 1")
			r.sends("0 only", "1 read 3000 at 0", "4 only")
			r.ack(4, "done 1, retransmits")
			r.sends("1 read 3000 at 0", "4 only")
			r.reads(1, 0, 3000)
			r.ack(4, "done 1")
		}},
		{"9.7.5.1.2", "an ACK beyond a READ with a part of its response asks for the rest", func(r *requester) {
			r.push("read 3000", "send 1")
			r.sends("0 read 3000 at 0", "3 only")
			r.gets("0 first 1024", "at 0")
			r.ack(3, "retransmits")
			r.sends("1 read 1976 at 1024", "3 only")
			r.gets("1 first 1024", "at 1024")
			r.gets("2 last 952", "at 2048 last, done 1")
			r.ack(3, "done 1")
		}},
		{"9.7.5.1.2", "an ACK beyond an atomic without its response asks for it again", func(r *requester) {
			for i, kind := range []string{"atomic", "flush", "atomicwrite 8"} {
				r.push(kind, "send 1")
				r.sends(fmt.Sprint(2*i, " only"), fmt.Sprint(2*i+1, " only"))
				r.ack(2*i+1, "retransmits")
				r.sends(fmt.Sprint(2*i, " only"), fmt.Sprint(2*i+1, " only"))
				op := " only 0"
				if kind == "atomic" {
					op = " atomic"
				}
				r.gets(fmt.Sprint(2*i, op), "at 0 last, done 1")
				r.ack(2*i+1, "done 1")
			}
		}},
		{"9.7.5.1.2", "an ACK does not complete the READ whose PSN it has", func(r *requester) {
			r.push("send 1", "read 10")
			r.sends("0 only", "1 read 10 at 0")
			r.ack(1, "any")
			if r.head != 1 {
				r.Errorf("complete: got %d, want 1", r.head)
			}
		}},
		{"9.7.5.1.2", "an ACK before a READ leaves the READ alone", func(r *requester) {
			r.push("send 1", "read 10", "send 1")
			r.sends("0 only", "1 read 10 at 0", "2 only")
			r.ack(0, "done 1")
			r.sends()
			r.retries(3, 2)
			r.gets("1 only 10", "at 0 last, done 1")
			r.ack(2, "done 1")
		}},
		{"9.7.5.1.2", "a late response is taken although it was asked for again", func(r *requester) {
			r.push("read 10", "send 1")
			r.sends("0 read 10 at 0", "1 only")
			r.ack(1, "retransmits")
			r.gets("0 only 10", "at 0 last, done 1")
			r.sends("1 only")
			r.ack(1, "done 1")
		}},
		{"9.7.6.1.2", "several ACKs beyond a READ before it is asked for again are one loss", func(r *requester) {
			r.push("read 10", "send 1", "send 1", "send 1", "send 1", "send 1")
			r.sends("0 read 10 at 0", "1 only", "2 only", "3 only", "4 only", "5 only")
			for psn := 1; psn <= 5; psn++ {
				r.ack(psn, "any")
			}
			if r.dead {
				r.Errorf("the requester has failed")
				return
			}
			r.retries(2, 2)
		}},
	})
}

func TestSenderNAKs(t *testing.T) {
	runSender(t, []senderRule{
		{"9.7.5.2.4", "a NAK acknowledges everything before its PSN and asks for the rest", func(r *requester) {
			r.push("send 1", "send 1", "send 1")
			r.sends("0 only", "1 only", "2 only")
			r.nak(1, "done 1, retransmits")
			r.unacked(1, 1)
			r.sends("1 only", "2 only")
			r.ack(2, "done 2")
		}},
		{"9.7.5.2.4", "a NAK of the oldest packet acknowledges nothing", func(r *requester) {
			r.push("send 1", "write 1")
			r.sends("0 only", "1 only")
			r.nak(0, "retransmits")
			r.sends("0 only", "1 only")
		}},
		{"9.7.5.2.4", "a NAK within a message asks for the message from there", func(r *requester) {
			r.push("send 1", "write 4000", "send 1")
			r.sends("0 only", "1 first", "2 middle", "3 middle", "4 last", "5 only")
			r.nak(3, "done 1, retransmits")
			r.sends("3 middle", "4 last", "5 only")
			r.ack(5, "done 2")
		}},
		{"9.7.5.2.4", "a NAK of a packet that was never sent is a ghost", func(r *requester) {
			r.push("send 1")
			r.sends("0 only")
			r.nak(1, "ghost")
			r.nak(-1, "ghost")
			r.sends()
			r.retries(3, 2)
		}},
		{"9.7.5.1.2", "a NAK does not acknowledge a READ whose response is missing", func(r *requester) {
			r.push("send 1", "read 2000", "send 1", "send 1")
			r.sends("0 only", "1 read 2000 at 0", "3 only", "4 only")
			r.nak(4, "done 1, retransmits")
			r.sends("1 read 2000 at 0", "3 only", "4 only")
			r.reads(1, 0, 2000)
			r.ack(4, "done 2")
		}},
		{"9.7.5.1.2", "a NAK does not acknowledge a READ of whose response a part is missing", func(r *requester) {
			r.push("read 2000", "send 1")
			r.sends("0 read 2000 at 0", "2 only")
			r.gets("0 first 1024", "at 0")
			r.nak(2, "retransmits")
			r.sends("1 read 976 at 1024", "2 only")
			r.gets("1 only 976", "at 1024 last, done 1")
			r.ack(2, "done 1")
		}},
		{"9.7.5.2.4", "a NAK of a READ asks for the READ", func(r *requester) {
			r.push("send 1", "read 2000", "send 1")
			r.sends("0 only", "1 read 2000 at 0", "3 only")
			r.nak(1, "done 1, retransmits")
			r.sends("1 read 2000 at 0", "3 only")
		}},
		{"9.7.6.1.2", "packets are sent again RetryCnt times", func(r *requester) {
			r.push("send 1", "send 1")
			r.sends("0 only", "1 only")
			for i := range 3 {
				r.nak(0, "retransmits")
				r.sends("0 only", "1 only")
				r.retries(uint8(2-i), 2)
			}
			r.nak(0, "0 fails: retries")
		}},
		{"9.7.6.1.2", "with RetryCnt 0 nothing is sent again", func(r *requester) {
			r.RetryCnt = 0
			r.SetRetryCnt(0)
			r.push("send 1", "send 1")
			r.sends("0 only", "1 only")
			r.nak(1, "done 1, 1 fails: retries")
		}},
		{"9.7.6.1.2", "an ACK begins to count retransmissions anew", func(r *requester) {
			r.push("send 1", "send 3000", "send 1")
			r.sends("0 only", "1 first", "2 middle", "3 last", "4 only")
			for range 3 {
				r.nak(0, "retransmits")
				r.transmit()
			}
			r.ack(1, "done 1") // in the middle of a message
			r.retries(3, 2)
			for range 3 {
				r.nak(2, "retransmits")
				r.transmit()
			}
			r.nak(2, "1 fails: retries")
		}},
		{"9.7.6.1.2", "a NAK that acknowledges something begins to count anew", func(r *requester) {
			for range 10 {
				r.push("send 1")
			}
			r.transmit()
			for psn := 1; psn < 10; psn++ {
				r.nak(psn, "done 1, retransmits")
				r.transmit()
			}
			r.ack(9, "done 1")
		}},
		{"9.7.6.1.2", "a READ response begins to count anew", func(r *requester) {
			r.push("read 3000")
			r.transmit()
			for range 3 {
				r.nak(0, "retransmits")
				r.transmit()
			}
			r.gets("0 first 1024", "at 0")
			r.retries(3, 2)
		}},
		{"9.9.2.1", "fatal NAKs end the request whose PSN they have", func(r *requester) {
			for _, x := range []struct {
				s    roce.Syndrome
				want string
			}{
				{roce.NAKInvalidRequest, "invalid"}, {roce.NAKRemoteAccessError, "access"},
				{roce.NAKRemoteOperationalError, "operation"}, {roce.NAKInvalidRDRequest, "operation"}, {0x70, "operation"}, {0x7f, "operation"},
			} {
				r := newRequester(r.T, r.first)
				r.push("send 1", "write 1", "send 3000", "send 1")
				r.transmit()
				r.syndrome(3, x.s, "done 2, 2 fails: "+x.want)
			}
		}},
		{"9.9.2.1", "a fatal NAK ends a READ, an atomic", func(r *requester) {
			r.push("send 1", "read 2000")
			r.transmit()
			r.syndrome(1, roce.NAKRemoteAccessError, "done 1, 1 fails: access")
			r = newRequester(r.T, r.first)
			r.push("atomic", "atomic")
			r.transmit()
			r.gets("0 atomic", "at 0 last, done 1")
			r.syndrome(1, roce.NAKRemoteAccessError, "1 fails: access")
		}},
		{"9.7.5.1.2", "a fatal NAK does not complete a READ whose response is missing", func(r *requester) {
			r.push("read 2000", "send 1")
			r.transmit()
			r.syndrome(2, roce.NAKRemoteAccessError, "any")
			if r.head != 0 {
				r.Errorf("complete: got %d, want 0", r.head)
			}
		}},
		{"9.7.5.2.8", "an RNR NAK acknowledges everything before its PSN, and the rest waits", func(r *requester) {
			r.push("send 1", "send 1", "send 1")
			r.sends("0 only", "1 only", "2 only")
			r.rnr(1, fmt.Sprint("done 1, wait ", rnr14))
			if r.Open() {
				r.Error("Open: got true, want false")
			}
			r.sends()
			r.deadline(rnr14)
			r.after(rnr14 - 1)
			r.tick("")
			r.sends()
			r.after(1)
			r.tick("")
			r.sends("1 only", "2 only")
			r.ack(2, "done 2")
		}},
		{"9.7.5.2.8", "an RNR NAK within a message sends the message from there", func(r *requester) {
			r.push("write 3000")
			r.transmit()
			r.rnr(2, fmt.Sprint("wait ", rnr14))
			r.after(rnr14)
			r.tick("")
			r.sends("2 last")
		}},
		{"9.7.5.2.8", "an RNR NAK says how long to wait", func(r *requester) {
			for code := range roce.RNRTimer(32) {
				r := newRequester(r.T, r.first)
				r.push("send 1")
				r.transmit()
				r.syndrome(0, roce.RNRNAK(code), fmt.Sprint("wait ", code.Duration()))
				r.deadline(code.Duration())
			}
		}},
		{"9.7.6.1.2", "packets are sent again RNRRetry times", func(r *requester) {
			r.push("send 1")
			r.transmit()
			for i := range 2 {
				r.rnr(0, fmt.Sprint("wait ", rnr14))
				r.retries(3, uint8(1-i))
				r.after(rnr14)
				r.tick("")
				r.sends("0 only")
			}
			r.rnr(0, "0 fails: rnr")
		}},
		{"9.7.6.1.2", "with RNRRetry 0 nothing is sent again", func(r *requester) {
			r.RNRRetry = 0
			r.SetRNRRetry(0)
			r.push("send 1", "send 1")
			r.transmit()
			r.rnr(1, "done 1, 1 fails: rnr")
		}},
		{"9.7.5.2.8", "with RNRRetry 7 there is no limit", func(r *requester) {
			r.RNRRetry = 7
			r.SetRNRRetry(7)
			r.push("send 1")
			r.transmit()
			for range 1000 {
				r.rnr(0, fmt.Sprint("wait ", rnr14))
				r.after(rnr14)
				r.tick("")
				r.sends("0 only")
			}
			r.retries(3, 7)
			r.ack(0, "done 1")
		}},
		{"9.7.6.1.2", "an ACK begins to count RNR NAKs anew", func(r *requester) {
			r.push("send 1", "send 1")
			r.transmit()
			for psn := range 2 {
				for range 2 {
					r.rnr(psn, fmt.Sprint("wait ", rnr14))
					r.after(rnr14)
					r.tick("")
					r.transmit()
				}
				r.ack(psn, "done 1")
				r.retries(3, 2)
			}
		}},
		{"9.7.6.1.2", "an RNR NAK that acknowledges something begins to count anew", func(r *requester) {
			for range 10 {
				r.push("send 1")
			}
			r.transmit()
			for psn := 1; psn < 10; psn++ {
				r.rnr(psn, fmt.Sprint("done 1, wait ", rnr14))
				r.after(rnr14)
				r.tick("")
				r.transmit()
			}
		}},
		{"9.7.6.1.2", "the two counters are independent", func(r *requester) {
			r.push("send 1")
			r.transmit()
			r.nak(0, "retransmits")
			r.transmit()
			r.rnr(0, fmt.Sprint("wait ", rnr14))
			r.retries(2, 1)
		}},
		{"9.7.5.2.8", "an RNR NAK does not acknowledge a READ whose response is missing", func(r *requester) {
			r.push("send 1", "read 10", "send 1")
			r.transmit()
			r.rnr(2, "any")
			if r.head != 1 {
				r.Errorf("complete: got %d, want 1", r.head)
			}
			r.after(rnr14)
			r.tick("")
			r.sends("1 read 10 at 0", "2 only")
		}},
		{"9.7.5.2.8", "while the peer is not ready there is no timeout", func(r *requester) {
			r.Timeout = 8 // 1.05 ms
			r.push("send 1")
			r.transmit()
			r.syndrome(0, roce.RNRNAK(0), "wait 655.36ms")
			r.deadline(655360 * time.Microsecond)
			r.after(655359 * time.Microsecond)
			r.tick("")
			if r.Open() {
				r.Error("Open: got true, want false")
			}
			r.after(time.Millisecond)
			r.tick("")
			r.sends("0 only")
			r.retries(3, 1)
		}},
		{"9.7.5.2.8", "an RNR NAK that is repeated while the peer is not ready counts once", func(r *requester) {
			r.push("send 1", "send 1")
			r.transmit()
			r.rnr(0, fmt.Sprint("wait ", rnr14))
			r.after(rnr14 / 2)
			r.rnr(0, "")
			r.retries(3, 1)
			r.deadline(rnr14 - rnr14/2)
		}},
		{"9.7.5.2.8", "a NAK does not end the wait for a peer that is not ready", func(r *requester) {
			r.push("send 1", "send 1")
			r.transmit()
			r.rnr(0, fmt.Sprint("wait ", rnr14))
			r.nak(0, "")
			r.sends()
			r.retries(3, 1)
			r.deadline(rnr14)
		}},
		{"9.7.5.2.8", "an ACK beyond a READ does not end the wait for a peer that is not ready", func(r *requester) {
			r.push("send 1", "read 10", "send 1")
			r.transmit()
			r.rnr(0, fmt.Sprint("wait ", rnr14))
			r.ack(2, "done 1")
			r.sends()
			r.deadline(rnr14)
			r.after(rnr14)
			r.tick("")
			r.sends("1 read 10 at 0", "2 only")
		}},
		{"9.7.5.2.8", "a new request waits while the peer is not ready", func(r *requester) {
			r.push("send 1")
			r.transmit()
			r.rnr(0, fmt.Sprint("wait ", rnr14))
			r.push("send 1", "read 10")
			r.sends()
			r.after(rnr14)
			r.tick("")
			r.sends("0 only", "1 only", "2 read 10 at 0")
		}},
		{"11.2.5.2", "a new limit begins to count anew", func(r *requester) {
			r.push("send 1")
			r.transmit()
			r.nak(0, "retransmits")
			r.transmit()
			r.rnr(0, fmt.Sprint("wait ", rnr14))
			r.RetryCnt, r.RNRRetry = 5, 6
			r.SetRetryCnt(5)
			r.SetRNRRetry(6)
			r.retries(5, 6)
		}},
		{"9.7.6", "a loss is reported to the recovery once, an RNR NAK is none", func(r *requester) {
			r.push("send 1", "send 1")
			r.transmit()
			r.rnr(0, fmt.Sprint("wait ", rnr14))
			if r.rec.lost != 0 {
				r.Errorf("losses: got %d, want 0", r.rec.lost)
			}
			r.after(rnr14)
			r.tick("")
			r.transmit()
			r.nak(1, "done 1, retransmits")
			if r.rec.lost != 1 {
				r.Errorf("losses: got %d, want 1", r.rec.lost)
			}
		}},
	})
}

func TestSenderResponses(t *testing.T) {
	rules := []senderRule{
		{"9.7.5.1.4", "a READ is complete when its last response is stored", func(r *requester) {
			r.push("read 3000")
			r.transmit()
			r.gets("0 first 1024", "at 0")
			r.gets("1 middle 1024", "at 1024")
			r.gets("2 last 952", "at 2048 last, done 1")
			r.unacked(3, 3)
		}},
		{"9.7.5.1.4", "a READ of one packet is complete with an only", func(r *requester) {
			r.push("read 1024", "read 0", "read 1")
			r.transmit()
			r.gets("0 only 1024", "at 0 last, done 1")
			r.gets("1 only 0", "at 0 last, done 1")
			r.gets("2 only 1", "at 0 last, done 1")
		}},
		{"9.7.5.1.4", "a response is not acknowledged before it is stored", func(r *requester) {
			r.push("read 1", "send 1")
			r.transmit()
			x := transport.Response{PSN: r.first, Op: roce.RDMAReadResponseOnly, Syndrome: roce.ACKUnlimited, Length: 1}
			if _, _, ok := r.Response(&x); !ok || r.Len() != 2 || !r.Expects(r.first) {
				r.Errorf("Response: got %v, %d in flight", ok, r.Len())
			}
			if res := r.Stored(); res.Done != 1 {
				r.Errorf("Stored: got %+v, want 1 done", res)
			}
		}},
		{"9.7.5.1.2", "a response acknowledges everything before it", func(r *requester) {
			r.push("send 1", "write 2000", "read 2000", "atomic")
			r.transmit()
			r.gets("3 first 1024", "done 2, at 0")
			r.gets("4 last 976", "at 1024 last, done 1")
			r.gets("5 atomic", "at 0 last, done 1")
		}},
		{"9.7.5.1.4", "the parts of a long READ follow one another", func(r *requester) {
			r.push("read 65546", "send 1")
			r.transmit()
			r.reads(0, 0, 65536)
			r.gets("64 only 10", "at 65536 last, done 1")
			r.ack(65, "done 1")
		}},
		{"9.7.5.1.2", "a gap among the responses asks for the rest", func(r *requester) {
			r.push("read 4000", "send 1")
			r.transmit()
			r.gets("0 first 1024", "at 0")
			r.gets("2 middle 1024", "retransmits")
			r.unacked(1, 1)
			r.sends("1 read 2976 at 1024", "4 only")
			r.gets("1 first 1024", "at 1024")
			r.gets("2 middle 1024", "at 2048")
			r.gets("3 last 928", "at 3072 last, done 1")
			r.ack(4, "done 1")
		}},
		{"9.7.5.1.2", "a lost first response asks for all", func(r *requester) {
			r.push("send 1", "read 3000")
			r.transmit()
			r.gets("2 middle 1024", "done 1, retransmits")
			r.sends("1 read 3000 at 0")
			r.reads(1, 0, 3000)
		}},
		{"9.7.5.1.2", "a lost last response asks for it alone", func(r *requester) {
			r.push("read 3000", "atomic")
			r.transmit()
			r.gets("0 first 1024", "at 0")
			r.gets("1 middle 1024", "at 1024")
			r.gets("3 atomic", "retransmits")
			r.sends("2 read 952 at 2048", "3 only")
			r.gets("2 only 952", "at 2048 last, done 1")
			r.gets("3 atomic", "at 0 last, done 1")
		}},
		{"9.7.5.1.2", "a lost response to a whole READ asks for it and those after it", func(r *requester) {
			r.push("read 10", "read 20")
			r.transmit()
			r.gets("1 only 20", "retransmits")
			r.sends("0 read 10 at 0", "1 read 20 at 0")
		}},
		{"9.7.5.1.2", "a gap between the parts of a long READ asks for it from there", func(r *requester) {
			r.push("read 65546")
			r.transmit()
			for i := range 63 {
				op := "middle"
				if i == 0 {
					op = "first"
				}
				r.gets(fmt.Sprint(i, " ", op, " 1024"), fmt.Sprint("at ", i*1024))
			}
			r.gets("64 only 10", "retransmits")
			r.sends("63 read 1024 at 64512", "64 read 10 at 65536")
			r.gets("63 only 1024", "at 64512")
			r.gets("64 only 10", "at 65536 last, done 1")
		}},
		{"9.7.5.1.2", "a late response of the first transmission is no failure", func(r *requester) {
			r.push("read 3000")
			r.transmit()
			r.gets("0 first 1024", "at 0")
			r.gets("2 last 952", "retransmits")
			r.sends("1 read 1976 at 1024")
			r.gets("1 middle 1024", "any")
			if r.dead {
				r.Error("the requester has failed")
			}
		}},
		{"9.7.6.1.2", "several responses after a gap are one loss", func(r *requester) {
			r.push("read 8192")
			r.transmit()
			r.gets("0 first 1024", "at 0")
			for i := 2; i < 7; i++ {
				r.gets(fmt.Sprint(i, " middle 1024"), "any")
			}
			r.gets("7 last 1024", "any")
			if r.dead {
				r.Error("the requester has failed")
				return
			}
			r.retries(2, 2)
		}},
		{"9.7.6.1.2", "after a timeout a gap among the responses is another loss", func(r *requester) {
			r.push("read 4000")
			r.transmit()
			r.gets("0 first 1024", "at 0")
			r.gets("2 middle 1024", "retransmits")
			r.sends("1 read 2976 at 1024")
			r.after(roce.AckTimeout(14).Duration())
			r.tick("timeout, retransmits")
			r.sends("1 read 2976 at 1024")
			r.gets("2 middle 1024", "retransmits")
		}},
		{"9.7.6.1.2", "after the missing response has come a gap is another loss", func(r *requester) {
			r.push("read 8192")
			r.transmit()
			r.gets("0 first 1024", "at 0")
			r.gets("2 middle 1024", "retransmits")
			r.transmit()
			for i := 1; i < 4; i++ {
				r.gets(fmt.Sprint(i, " middle 1024"), fmt.Sprint("at ", i*1024))
			}
			r.gets("5 middle 1024", "retransmits")
			r.sends("4 read 4096 at 4096")
		}},
		{"9.7.5.1.2", "a response that has been taken is stale", func(r *requester) {
			r.push("read 3000")
			r.transmit()
			r.gets("0 first 1024", "at 0")
			r.gets("0 first 1024", "ghost")
			r.gets("1 middle 1024", "at 1024")
			r.gets("0 first 1024", "ghost")
			r.gets("2 last 952", "at 2048 last, done 1")
			r.gets("2 last 952", "ghost")
		}},
		{"9.7.5.1.2", "a response beyond what was sent is a ghost", func(r *requester) {
			r.push("read 3000", "send 1")
			r.transmit()
			r.gets("4 only 1", "ghost")
			r.gets("-1 only 1", "ghost")
		}},
		{"9.7.7.3", "as many as agreed on are outstanding", func(r *requester) {
			r.MaxReads = 2
			r.push("read 10", "atomic", "flush", "send 1")
			r.sends("0 read 10 at 0", "1 only")
			r.sends()
			r.gets("0 only 10", "at 0 last, done 1")
			r.sends("2 only", "3 only")
		}},
		{"9.7.7.3", "a SEND does not overtake a READ that has to wait", func(r *requester) {
			r.MaxReads = 1
			r.push("read 10", "read 10", "send 1")
			r.sends("0 read 10 at 0")
			r.gets("0 only 10", "at 0 last, done 1")
			r.sends("1 read 10 at 0", "2 only")
		}},
		{"9.7.7.3", "a SEND between READs needs no resource", func(r *requester) {
			r.MaxReads = 1
			r.push("read 10", "send 1", "write 3000", "atomic", "send 1")
			r.sends("0 read 10 at 0", "1 only", "2 first", "3 middle", "4 last")
		}},
		{"9.7.7.3", "each part of a long READ is one of those outstanding", func(r *requester) {
			r.MaxReads = 2
			r.push("read 196608", "send 1")
			r.sends("0 read 65536 at 0", "64 read 65536 at 65536")
			for i := range 63 {
				op := "middle"
				if i == 0 {
					op = "first"
				}
				r.gets(fmt.Sprint(i, " ", op, " 1024"), fmt.Sprint("at ", i*1024))
				r.sends()
			}
			r.gets("63 last 1024", "at 64512")
			r.sends("128 read 65536 at 131072", "192 only")
		}},
		{"9.7.7.3", "a READ that is sent again is not counted twice", func(r *requester) {
			r.MaxReads = 2
			r.push("read 3000", "atomic", "read 5", "read 5")
			r.sends("0 read 3000 at 0", "3 only")
			r.nak(0, "retransmits")
			r.sends("0 read 3000 at 0", "3 only")
			r.gets("0 first 1024", "at 0")
			r.nak(3, "retransmits")
			r.sends("1 read 1976 at 1024", "3 only")
			r.reads(1, 1024, 1976)
			r.sends("4 read 5 at 0")
			r.gets("3 atomic", "at 0 last, done 1")
			r.sends("5 read 5 at 0")
		}},
		{"9.7.7.3", "without resources no READ is sent", func(r *requester) {
			r.MaxReads = 0
			r.push("send 1", "read 10")
			r.sends("0 only")
			r.ack(0, "done 1")
			r.sends()
			r.deadline(0)
		}},
		{"10.8.3.3", "a fence waits for the requests that are answered", func(r *requester) {
			for _, x := range []struct {
				push string
				want int
			}{{"send 1", 0}, {"read 10", 1}, {"write 1", 1}, {"atomic", 2}, {"flush", 3}, {"local", 3}, {"atomicwrite 8", 4}} {
				r.push(x.push)
				r.transmit()
				if got := r.Ordered(); got != x.want {
					r.Errorf("Ordered after %s: got %d, want %d", x.push, got, x.want)
				}
			}
			r.gets("1 only 10", "done 1, at 0 last, done 1")
			r.nak(3, "done 1, retransmits")
			if got := r.Ordered(); got != 3 {
				r.Errorf("Ordered: got %d, want 3", got)
			}
			r.transmit()
			r.gets("3 atomic", "at 0 last, done 1")
			r.gets("4 only 0", "at 0 last, done 2")
			r.gets("5 only 0", "at 0 last, done 1")
			if got := r.Ordered(); got != 0 {
				r.Errorf("Ordered: got %d, want 0", got)
			}
		}},
		{"10.8.3.3", "a READ that waits is one that a fence waits for", func(r *requester) {
			r.MaxReads = 1
			r.push("atomic", "read 10")
			r.transmit()
			if got := r.Ordered(); got != 2 {
				r.Errorf("Ordered: got %d, want 2", got)
			}
		}},
	}
	// Responses that do not fit: after setup, the last response makes request n fail.
	for _, x := range []struct {
		rule, push string
		good       []string
		bad        string
		fails      int
	}{
		{"an only with all of a READ of several packets", "read 3000", nil, "0 only 3000", 0},
		{"a first that is short", "read 3000", nil, "0 first 1023", 0},
		{"a first that is long", "read 3000", nil, "0 first 1025", 0},
		{"an empty first", "read 3000", nil, "0 first 0", 0},
		{"a middle that is short", "read 3000", []string{"0 first 1024"}, "1 middle 1023", 0},
		{"a middle that is long", "read 3000", []string{"0 first 1024"}, "1 middle 1025", 0},
		{"a last that is short", "read 3000", []string{"0 first 1024", "1 middle 1024"}, "2 last 951", 0},
		{"a last that is long", "read 3000", []string{"0 first 1024", "1 middle 1024"}, "2 last 953", 0},
		{"an empty last", "read 3000", []string{"0 first 1024", "1 middle 1024"}, "2 last 0", 0},
		{"an only that is short", "read 10", nil, "0 only 9", 0},
		{"an only that is long", "read 10", nil, "0 only 11", 0},
		{"an only with bytes to a READ of none", "read 0", nil, "0 only 1", 0},
		{"an empty only to a READ of some bytes", "read 1", nil, "0 only 0", 0},
		{"a READ response with bytes to a FLUSH", "flush", nil, "0 only 1", 0},
		{"a READ response with bytes to an ATOMIC WRITE", "atomicwrite 8", nil, "0 only 8", 0},
	} {
		rules = append(rules, senderRule{"9.7.4.2", x.rule + " is a bad response", func(r *requester) {
			r.push(strings.Split(x.push, ", ")...)
			r.transmit()
			for i, s := range x.good {
				r.gets(s, fmt.Sprint("at ", i*1024))
			}
			want := fmt.Sprint(x.fails, " fails: bad response")
			if x.fails > 0 {
				want = fmt.Sprint("done ", x.fails, ", ", want)
			}
			r.gets(x.bad, want)
		}})
	}
	rules = append(rules, senderRule{"9.7.4.2", "a response to a SEND is not stored", func(r *requester) {
		r.push("send 1")
		r.transmit()
		_, _, ok := r.Response(&transport.Response{PSN: r.first, Op: roce.RDMAReadResponseOnly, Syndrome: roce.ACKUnlimited, Length: 1})
		if ok {
			r.Error("it is stored")
		}
	}}, senderRule{"9.7.5.2.1", "a response with the syndrome of a NAK is not stored", func(r *requester) {
		for _, s := range []roce.Syndrome{roce.NAKRemoteAccessError, roce.RNRNAK(3), 0x40, 0x80} {
			r := newRequester(r.T, r.first)
			r.push("read 1")
			r.transmit()
			_, _, ok := r.Response(&transport.Response{PSN: r.first, Op: roce.RDMAReadResponseOnly, Syndrome: s, Length: 1})
			if ok {
				r.Errorf("syndrome %#x: it is stored", uint8(s))
			}
		}
	}})
	runSender(t, rules)
}

func TestSenderTime(t *testing.T) {
	timeout := roce.AckTimeout(14).Duration()
	runSender(t, []senderRule{
		{"9.7.6.1.3", "an idle requester has no deadline", func(r *requester) {
			r.deadline(0)
			r.push("send 1")
			r.deadline(0)
			r.sends("0 only")
			r.deadline(timeout)
			r.ack(0, "done 1")
			r.deadline(0)
			r.after(time.Hour)
			r.tick("")
		}},
		{"9.7.6.1.3", "without an acknowledgement in time everything is sent again", func(r *requester) {
			r.push("send 1", "write 2000", "read 10")
			r.sends("0 only", "1 first", "2 last", "3 read 10 at 0")
			r.after(timeout - 1)
			r.tick("")
			r.after(1)
			r.tick("timeout, retransmits")
			r.sends("0 only", "1 first", "2 last", "3 read 10 at 0")
			r.deadline(timeout)
			r.retries(2, 2)
		}},
		{"9.7.6.1.3", "only what is unacknowledged is sent again", func(r *requester) {
			r.push("send 1", "write 3000", "read 3000")
			r.transmit()
			r.ack(1, "done 1")
			r.after(timeout)
			r.tick("timeout, retransmits")
			r.sends("2 middle", "3 last", "4 read 3000 at 0")
			r.gets("4 first 1024", "done 1, at 0")
			r.after(timeout)
			r.tick("timeout, retransmits")
			r.sends("5 read 1976 at 1024")
			r.gets("5 first 1024", "at 1024")
			r.gets("6 last 952", "at 2048 last, done 1")
		}},
		{"9.7.6.1.3", "the requester gives up after RetryCnt timeouts", func(r *requester) {
			r.push("send 1", "send 1")
			r.transmit()
			for range 3 {
				r.after(timeout)
				r.tick("timeout, retransmits")
				r.sends("0 only", "1 only")
			}
			r.after(timeout)
			r.tick("timeout, 0 fails: retries")
		}},
		{"9.7.6.1.3", "an acknowledgement begins the wait anew", func(r *requester) {
			r.push("send 1", "send 3000")
			r.transmit()
			r.after(timeout / 2)
			r.ack(0, "done 1")
			r.deadline(timeout)
			r.after(timeout / 2)
			r.ack(1, "")
			r.deadline(timeout)
			r.after(timeout - 1)
			r.tick("")
			r.after(1)
			r.tick("timeout, retransmits")
			r.sends("2 middle", "3 last")
		}},
		{"9.7.6.1.3", "a response begins the wait anew", func(r *requester) {
			r.push("read 3000")
			r.transmit()
			r.after(timeout / 2)
			r.gets("0 first 1024", "at 0")
			r.deadline(timeout)
			r.after(timeout / 2)
			r.gets("1 middle 1024", "at 1024")
			r.deadline(timeout)
		}},
		{"9.7.6.1.3", "progress begins to count timeouts anew", func(r *requester) {
			r.push("send 5000")
			r.transmit()
			for psn := range 4 {
				for range 3 {
					r.after(timeout)
					r.tick("timeout, retransmits")
					r.transmit()
				}
				r.ack(psn, "")
			}
			r.ack(4, "done 1")
		}},
		{"9.7.6.1.3", "sending more does not put the timeout off", func(r *requester) {
			r.push("send 1")
			r.transmit()
			for i := range 4 {
				r.after(timeout / 4)
				if i < 3 {
					r.tick("")
					r.push("send 1")
					r.transmit()
				}
			}
			r.tick("timeout, retransmits")
			r.sends("0 only", "1 only", "2 only", "3 only")
		}},
		{"9.7.6.1.3", "the timeout code 0 waits for ever", func(r *requester) {
			r.Timeout = 0
			r.push("send 1")
			r.transmit()
			r.deadline(0)
			r.after(1000 * time.Hour)
			r.tick("")
			r.ack(0, "done 1")
		}},
		{"9.7.6.1.3", "an acknowledgement between the deadline and its handling ends the wait", func(r *requester) {
			r.push("send 1")
			r.transmit()
			r.after(timeout)
			if got := r.Tick(r.now); got != transport.AckTimeout {
				r.Errorf("Tick: got %v, want a timeout", got)
			}
			r.ack(0, "done 1")
			if res, ok := r.TimedOut(); ok {
				r.Errorf("TimedOut: got %+v, want nothing", res)
			}
			r.retries(3, 2)
		}},
		{"9.7.6.1.3", "a new wait is as long as the code says then", func(r *requester) {
			r.push("send 1", "send 1")
			r.transmit()
			r.Timeout = 16
			r.ack(0, "done 1")
			r.deadline(4 * timeout)
		}},
		{"9.7.6.1.3", "a NAK begins the wait when the packets are sent again", func(r *requester) {
			r.push("send 1", "send 1")
			r.transmit()
			r.after(timeout / 2)
			r.nak(1, "done 1, retransmits")
			r.sends("1 only")
			r.deadline(timeout)
			r.after(timeout / 2)
			r.nak(1, "retransmits")
			r.sends("1 only")
			r.deadline(timeout)
		}},
		{"9.7.6.1.3", "timeouts and NAKs are counted together", func(r *requester) {
			r.push("send 1")
			r.transmit()
			r.nak(0, "retransmits")
			r.transmit()
			r.after(timeout)
			r.tick("timeout, retransmits")
			r.transmit()
			r.nak(0, "retransmits")
			r.transmit()
			r.after(timeout)
			r.tick("timeout, 0 fails: retries")
		}},
		{"9.7.5.1.1", "the oldest packet is probed for, and nothing else is sent again", func(r *requester) {
			r.rec.probe = 4 * time.Millisecond
			r.push("send 1", "send 2000")
			r.transmit()
			r.deadline(4 * time.Millisecond)
			r.after(4*time.Millisecond - 1)
			r.tick("")
			r.after(1)
			r.tick("probe, 0 only ack")
			r.sends()
			r.unacked(0, 3)
			r.retries(3, 2)
			r.ack(0, "done 1")
			r.after(4 * time.Millisecond)
			r.tick("probe, 1 first ack")
			r.ack(2, "done 1")
			r.after(time.Hour)
			r.tick("")
		}},
		{"9.7.5.1.1", "probes come after twice as long each time, and the timeout runs on", func(r *requester) {
			r.rec.probe = 4 * time.Millisecond
			r.push("send 1")
			r.transmit()
			start := r.now
			var probes []time.Duration
			for range 20 {
				r.now = r.Sender.Deadline()
				if r.Tick(r.now) == transport.AckTimeout {
					break
				}
				if _, ok := r.Probe(r.now); ok {
					probes = append(probes, r.now.Sub(start))
				}
			}
			ms := time.Millisecond
			if got, want := fmt.Sprint(probes), fmt.Sprint([]time.Duration{4 * ms, 12 * ms, 28 * ms, 60 * ms}); got != want {
				r.Errorf("probes: got %v, want %v", got, want)
			}
			if got := r.now.Sub(start); got != timeout {
				r.Errorf("timeout: got %v, want %v", got, timeout)
			}
		}},
		{"9.7.5.1.1", "where acknowledgements take long, probes that were needless come later; soon again where they do not", func(r *requester) {
			r.rec.probe = 4 * time.Millisecond
			psn := 0
			probes := func(wait time.Duration) (n int) {
				r.push("send 1")
				r.transmit()
				end := r.now.Add(wait)
				for at := r.Sender.Deadline(); !at.After(end); at = r.Sender.Deadline() {
					r.now = at
					if r.Tick(at) != transport.ProbeDue {
						r.Fatalf("not a probe after %v", wait)
					}
					if _, ok := r.Probe(at); ok {
						n++
					}
				}
				r.now = end
				r.ack(psn, "done 1")
				psn++
				for range n { // the peer has answered these as duplicates
					r.Stale(roce.PSN(psn - 1))
				}
				r.Stale(roce.PSN(psn)) // a response to another packet
				return n
			}
			const slow = 30 * time.Millisecond
			if n := probes(slow); n != 3 {
				r.Errorf("at first: %d probes, want 3", n)
			}
			sum := 0
			for range 200 {
				sum += probes(slow)
			}
			if sum == 0 || sum > 30 {
				r.Errorf("then: %d probes in 200 rounds, want some, but 30 at most", sum)
			}
			for range 100 {
				probes(0)
			}
			if n := probes(slow); n != 3 {
				r.Errorf("after a time without delay: %d probes, want 3", n)
			}
			for range 100 {
				probes(0)
			}
			sum = 0
			for range 200 { // one needless probe is sufficient
				sum += probes(6 * time.Millisecond)
			}
			if sum == 0 || sum > 30 {
				r.Errorf("with a shorter delay: got %d probes in 200 rounds, want some, but 30 at most", sum)
			}
		}},
		{"9.7.5.1.1", "a probe for the middle of a message is its packet", func(r *requester) {
			r.rec.probe = 4 * time.Millisecond
			r.push("write 3000")
			r.transmit()
			r.ack(0, "")
			r.after(4 * time.Millisecond)
			r.tick("probe, 1 middle ack")
			r.ack(1, "")
			r.after(4 * time.Millisecond)
			r.tick("probe, 2 last ack")
		}},
		{"9.7.5.1.1", "progress begins the back-off of probes anew", func(r *requester) {
			r.rec.probe = 4 * time.Millisecond
			r.push("send 1", "send 1")
			r.transmit()
			r.after(4 * time.Millisecond)
			r.tick("probe, 0 only ack")
			r.deadline(8 * time.Millisecond)
			r.ack(0, "done 1")
			r.deadline(4 * time.Millisecond)
		}},
		{"9.7.5.1.1", "while the peer is not ready nothing is probed for", func(r *requester) {
			r.rec.probe = time.Microsecond
			r.push("send 1")
			r.transmit()
			r.rnr(0, fmt.Sprint("wait ", rnr14))
			r.deadline(rnr14)
			r.after(rnr14 / 2)
			r.tick("")
			r.after(rnr14 / 2)
			r.tick("")
			r.sends("0 only")
			r.deadline(time.Microsecond)
		}},
		{"9.9.2.1", "in the error state nothing has a deadline", func(r *requester) {
			r.rec.probe = time.Millisecond
			r.push("send 1")
			r.transmit()
			r.Stop()
			r.deadline(0)
			r.after(time.Hour)
			r.tick("")
		}},
		{"9.9.2.1", "in the error state the wait for a peer that is not ready ends", func(r *requester) {
			r.push("send 1")
			r.transmit()
			r.rnr(0, fmt.Sprint("wait ", rnr14))
			r.Stop()
			r.deadline(0)
		}},
	})
}

func TestSenderRequests(t *testing.T) {
	runSender(t, []senderRule{
		{"10.8.3", "a local operation takes no PSN", func(r *requester) {
			r.push("send 1", "local", "send 1")
			r.sends("0 only", "local", "1 only")
		}},
		{"10.8.3", "a local operation with nothing before it is complete at once", func(r *requester) {
			r.push("local", "local")
			r.sends("local", "local")
			if r.head != 2 {
				r.Errorf("complete: got %d, want 2", r.head)
			}
			r.deadline(0)
		}},
		{"10.8.3", "a local operation is complete with what is before it", func(r *requester) {
			r.push("send 1", "local", "local", "send 1", "local")
			r.transmit()
			r.ack(0, "done 3")
			r.ack(1, "done 2")
		}},
		{"10.8.3", "a local operation is complete with a READ before it", func(r *requester) {
			r.push("read 10", "local", "send 1")
			r.transmit()
			r.gets("0 only 10", "at 0 last, done 2")
			r.ack(1, "done 1")
		}},
		{"10.8.3", "a local operation is carried out once", func(r *requester) {
			r.push("send 1", "local", "send 1")
			r.sends("0 only", "local", "1 only")
			r.nak(0, "retransmits")
			r.sends("0 only", "1 only")
			r.nak(1, "done 2, retransmits")
			r.sends("1 only")
			if r.local != 1 {
				r.Errorf("carried out: got %d times, want 1", r.local)
			}
		}},
		{"10.8.3", "a local operation that has not been reached is not acknowledged", func(r *requester) {
			r.rec.window = 1
			r.push("send 1", "send 1", "local", "send 1")
			r.sends("0 only")
			r.ack(0, "done 1")
			r.sends("1 only", "local")
			r.ack(1, "done 2")
			r.sends("2 only")
			r.ack(2, "done 1")
		}},
		{"10.8.3", "a NAK of the packet after a local operation completes it", func(r *requester) {
			r.push("send 1", "local", "send 1")
			r.transmit()
			r.nak(1, "done 2, retransmits")
		}},
		{"9.8.2.1", "a request of an unreliable service is complete when it is sent", func(r *requester) {
			r.Reliable = false
			r.push("send 3000", "local", "write 0", "send 1")
			r.sends("0 first", "1 middle", "2 last", "local", "3 only", "4 only")
			if r.head != 4 || r.Len() != 0 {
				r.Errorf("complete: got %d, %d in flight, want 4, 0", r.head, r.Len())
			}
			r.deadline(0)
			r.ack(0, "ghost")
			r.nak(4, "ghost")
		}},
		{"9.8.2.1", "an unreliable service asks for no acknowledgement", func(r *requester) {
			r.Reliable = false
			r.push("send 3000")
			for _, s := range r.transmit() {
				if strings.HasSuffix(s, "ack") {
					r.Errorf("got %q", s)
				}
			}
		}},
		{"9.8.2.1", "an unreliable service has no window", func(r *requester) {
			r.Reliable = false
			r.rec.window = 1
			r.push("send 3000", "send 1")
			r.sends("0 first", "1 middle", "2 last", "3 only")
		}},
		{"9.7.5.1.2", "packets that could not be built are taken back, and those before them are acknowledged", func(r *requester) {
			r.push("send 1", "send 3000")
			r.rec.window = 2*transport.PacketCost + mtu + 1
			r.sends("0 only", "1 first")
			r.rec.window = 1 << 20
			for range 2 {
				p, _ := r.Next()
				r.Sent(&p)
			}
			r.unacked(0, 4)
			r.Unsend(1)
			r.unacked(0, 2)
			r.ack(2, "ghost")
			if !r.Expects(r.first.Add(1)) {
				r.Error("the acknowledgement of a packet that was sent is a ghost")
			}
			if res := r.Ack(r.first.Add(1), roce.ACKUnlimited); res != (transport.Result{Done: 1}) {
				r.Errorf("Ack: got %+v, want 1 done", res)
			}
			r.Drop()
			r.Rewind()
			if r.Len() != 0 {
				r.Errorf("after Drop: got %d in flight, want 0", r.Len())
			}
		}},
		{"9.7.5.1.2", "packets that could not be built when they were to be sent again are still acknowledged", func(r *requester) {
			r.push("send 3000")
			r.transmit()
			r.nak(0, "retransmits")
			for range 3 {
				p, _ := r.Next()
				r.Sent(&p)
			}
			r.Unsend(0)
			r.unacked(0, 0)
			r.ack(2, "done 1")
		}},
		{"10.8.3", "a request that cannot be carried out ends when it is the oldest", func(r *requester) {
			for _, reliable := range []bool{true, false} {
				r := newRequester(r.T, r.first)
				r.Reliable = reliable
				r.push("send 1")
				r.reqs = append(r.reqs, transport.Request{Kind: transport.Send, Length: 5})
				r.Push(transport.Request{Kind: transport.Send, Length: 5})
				r.sends("0 only")
				if n, ok := r.Current(); !ok || n != r.base+1 {
					r.Errorf("Current: got %d, %v, want 1", n-r.base, ok)
				}
				if reliable {
					r.ack(0, "done 1")
				}
				r.Drop()
				r.Rewind()
				r.head++
				r.verify()
				r.push("send 1")
				r.sends("1 only")
				if reliable {
					r.ack(1, "done 1")
				}
				if r.head != 3 || r.Len() != 0 {
					r.Errorf("complete: got %d, %d in flight, want 3, 0", r.head, r.Len())
				}
			}
		}},
		{"10.3.1", "RESET forgets requests and PSNs, and keeps the configuration", func(r *requester) {
			r.push("send 1", "read 3000", "local", "send 3000")
			r.transmit()
			r.nak(0, "retransmits")
			r.rnr(0, fmt.Sprint("wait ", rnr14))
			r.Reset()
			if r.Len() != 0 || !r.Open() || r.Ordered() != 0 {
				r.Errorf("Len, Open, Ordered: got %d, %v, %d, want 0, true, 0", r.Len(), r.Open(), r.Ordered())
			}
			r.deadline(0)
			r.first = r.first.Add(1000)
			r.Begin(r.first)
			r.SetRetryCnt(3)
			r.SetRNRRetry(2)
			r.base, r.reqs, r.head = r.Tail(), nil, 0
			r.ack(0, "ghost")
			r.push("read 2000", "send 1")
			r.sends("0 read 2000 at 0", "2 only")
			r.retries(3, 2)
			r.reads(0, 0, 2000)
			r.ack(2, "done 1")
		}},
		{"10.8.2", "the flight grows with requests of which old ones are complete", func(r *requester) {
			psn, acked := 0, 0
			for i := range 300 {
				for range i % 7 {
					r.push("send 1")
					r.sends(fmt.Sprint(psn, " only"))
					psn++
				}
				if i%3 == 0 && acked < psn {
					r.ack(acked, "done 1")
					acked++
				}
			}
			r.nak(acked, "retransmits")
			if got := len(r.transmit()); got != psn-acked {
				r.Errorf("sent again: got %d, want %d", got, psn-acked)
			}
			r.ack(psn-1, fmt.Sprint("done ", psn-acked))
		}},
		{"10.8.2", "requests that wait are sent in their order", func(r *requester) {
			r.rec.window = 1
			for i := range 100 {
				r.push(fmt.Sprint("send ", i%3))
			}
			for i := range 100 {
				r.sends(fmt.Sprint(i, " only"))
				if n, ok := r.Current(); ok && n != r.base+uint32(i)+1 {
					r.Errorf("Current: got %d, want %d", n-r.base, i+1)
				}
				r.ack(i, "done 1")
			}
		}},
	})
}

func TestAIMD(t *testing.T) {
	var w transport.AIMD
	w.Reset()
	start := w.Window()
	if start < mtu {
		t.Fatalf("first window: got %d", start)
	}
	for acked := 0; acked < start; acked += 1000 {
		w.Acked(1000)
	}
	grown := w.Window()
	if got := grown - start; got < transport.ReadChunk*9/10 || got > transport.ReadChunk*11/10 {
		t.Errorf("after a window has been acknowledged: got %d bytes more, want about %d", got, transport.ReadChunk)
	}
	if w.Acked(1); w.Window() <= grown {
		t.Errorf("after a byte has been acknowledged: got %d, want more than %d", w.Window(), grown)
	}
	grown = w.Window()
	w.Lost(mtu)
	if got, want := w.Window(), grown/2; got != want {
		t.Errorf("after a loss: got %d, want %d", got, want)
	}
	for range 100 {
		w.Lost(mtu)
	}
	if got, want := w.Window(), mtu+transport.PacketCost; got != want {
		t.Errorf("after many losses: got %d, want %d", got, want)
	}
	w.Reset()
	if got := w.Window(); got != start {
		t.Errorf("after Reset: got %d, want %d", got, start)
	}
	for range 1_000_000 {
		w.Acked(w.Window())
	}
	if got := w.Window(); got < start || got > 1<<30 {
		t.Errorf("after many acknowledgements: got %d", got)
	}
	for code := range roce.AckTimeout(32) {
		timeout, probe := w.Timeout(code)
		want := max(code.Duration(), transport.MinTimeout)
		if code == 0 {
			want = 0
		}
		if timeout != want {
			t.Errorf("Timeout(%d): got %v, want %v", code, timeout, want)
		}
		if probe != 0 && timeout != 0 && probe >= timeout {
			t.Errorf("Timeout(%d): got a probe after %v, and the timeout after %v", code, probe, timeout)
		}
		if probe != 0 && probe != transport.ProbeAfter || (probe == 0) != (timeout < 2*transport.ProbeAfter) {
			t.Errorf("Timeout(%d): got a probe after %v", code, probe)
		}
	}
}

func TestKindOf(t *testing.T) {
	for op, want := range map[roce.Opcode]transport.Kind{
		roce.RCSendFirst: transport.Send, roce.RCSendLastWithInvalidate: transport.Send, roce.UDSendOnlyWithImmediate: transport.Send,
		roce.UCRDMAWriteMiddle: transport.Write, roce.RCRDMAWriteOnlyWithImmediate: transport.Write,
		roce.RCRDMAReadRequest: transport.Read, roce.XRCCmpSwap: transport.Atomic, roce.RCFetchAdd: transport.Atomic,
		roce.RCAtomicWrite: transport.AtomicWrite, roce.RCFlush: transport.Flush,
		roce.RCAcknowledge: transport.None, roce.RCAtomicAcknowledge: transport.None, roce.RCRDMAReadResponseOnly: transport.None,
	} {
		if got := transport.KindOf(op.Flags()); got != want {
			t.Errorf("KindOf(%v): got %v, want %v", op, got, want)
		}
	}
}

func TestAnswered(t *testing.T) {
	for _, k := range []transport.Kind{transport.Read, transport.Atomic, transport.AtomicWrite, transport.Flush} {
		if !k.Answered() {
			t.Errorf("Answered of %v: got false, want true", k)
		}
	}
	for _, k := range []transport.Kind{transport.None, transport.Send, transport.Write, transport.Local} {
		if k.Answered() {
			t.Errorf("Answered of %v: got true, want false", k)
		}
	}
}
