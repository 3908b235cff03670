package transport_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"verbena/engine/transport"
	"verbena/roce"
)

const mtu = 1024

// firsts are the first PSNs of each row: in the middle, at the wrap, and at the end of a half circle.
var firsts = []roce.PSN{100, 0, 0xffffff, 0xfffffe, 0x7fffff, 0x7ffffe, 0x800000}

// legal makes the checks of the receiver: of the opcode, and of the length of a message.
func legal(r *transport.Receiver, a *transport.Arrival) bool {
	return r.Follows(a) && (a.Kind.Answered() || r.Fits(a))
}

// responder drives a Receiver like a queue pair does. PSNs are relative to the first one.
type responder struct {
	*testing.T
	transport.Receiver
	first    roce.PSN
	executed []int // PSNs of executed packets
}

// readAddr is the start address of all READs, and readKey is their key.
const (
	readAddr = 0x10000
	readKey  = 7
)

var kinds = map[string]transport.Kind{
	"send": transport.Send, "write": transport.Write, "read": transport.Read, "atomic": transport.Atomic,
	"atomicwrite": transport.AtomicWrite, "flush": transport.Flush,
}

// parse parses a packet: "PSN KIND [first|middle|last|only] LENGTH [ack] [total N] [at OFFSET] [key K]". The length of
// a READ is the length of its response. The total is the length in the header of an RDMA WRITE.
func parse(s string) (psn int, a transport.Arrival, length, total, at int, key uint32, ack bool) {
	f := strings.Fields(s)
	fmt.Sscan(f[0], &psn)
	a.Kind = kinds[f[1]]
	a.Starts, a.Ends = true, true
	key, total = readKey, -1
	for i := 2; i < len(f); i++ {
		switch f[i] {
		case "first":
			a.Ends = false
		case "middle":
			a.Starts, a.Ends = false, false
		case "last":
			a.Starts = false
		case "only":
		case "ack":
			ack = true
		case "total":
			i++
			fmt.Sscan(f[i], &total)
		case "at":
			i++
			fmt.Sscan(f[i], &at)
		case "key":
			i++
			fmt.Sscan(f[i], &key)
		default:
			if _, err := fmt.Sscan(f[i], &length); err != nil {
				panic(s)
			}
		}
	}
	if a.Kind == transport.Send || a.Kind == transport.Write || a.Kind == transport.AtomicWrite {
		a.Length = length
	}
	return
}

func (r *responder) psn(n int) roce.PSN { return r.first.Add(n) }

// packets returns the number of PSNs of a READ.
func packets(length, mtu int) int { return max(1, (length+mtu-1)/mtu) }

// takes passes packets to the receiver and compares the outcome of the last one: taken, repeated, unknown (a duplicate
// that is no longer stored), gap, dropped, invalid, refused (too many outstanding requests), or "" for any outcome. The
// earlier packets must be taken.
func (r *responder) takes(want string, packets ...string) {
	r.Helper()
	for i, p := range packets {
		got, want := r.one(p, false), want
		if i < len(packets)-1 {
			want = "taken"
		}
		if want != "" && got != want {
			r.Errorf("packet %q: got %v, want %v", p, got, want)
		}
	}
}

// findsNoReceive passes a packet for which there is no receive.
func (r *responder) findsNoReceive(want, packet string) {
	r.Helper()
	if got := r.one(packet, true); got != want {
		r.Errorf("packet %q: got %v, want %v", packet, got, want)
	}
}

func (r *responder) one(s string, empty bool) string {
	r.Helper()
	n, a, length, total, at, key, ack := parse(s)
	psn := r.psn(n)
	switch r.Arrive(psn) {
	case transport.Gap:
		return "gap"
	case transport.LaterGap:
		return "dropped"
	case transport.Duplicate:
		q := transport.Repeat{PSN: psn, Kind: a.Kind}
		if a.Kind == transport.Read {
			q.Addr, q.Key, q.Length = readAddr+uint64(at), key, length
		}
		if !r.Duplicate(&q) {
			return "unknown"
		}
		return "repeated"
	}
	if !legal(&r.Receiver, &a) {
		r.Refuse(roce.NAKInvalidRequest, psn)
		r.Abort()
		return "invalid"
	}
	if a.Kind.Answered() {
		if !r.Admits() {
			r.Refuse(roce.NAKInvalidRequest, psn)
			r.Abort()
			return "refused"
		}
		y := transport.Answer{Kind: a.Kind, Packets: 1}
		switch a.Kind {
		case transport.Read:
			y.Packets, y.Domain = packets(length, mtu), "pd"
			y.Addr, y.Key, y.Length = readAddr+uint64(at), key, length
		case transport.Atomic:
			y.Result = uint64(1000 + n)
		}
		r.Answer(&y)
		r.executed = append(r.executed, n)
		return "taken"
	}
	if empty {
		r.NotReady(12)
		return "not ready"
	}
	if a.Kind == transport.Write {
		if a.Starts {
			if total < 0 {
				total = a.Length
			}
			r.BeginWrite(0x20000, 9, total)
		}
		if !r.WriteFits(a.Length, a.Ends) {
			r.Refuse(roce.NAKInvalidRequest, psn)
			r.Abort()
			return "too long or short"
		}
		r.Wrote(a.Length)
	}
	r.Executed(&a, ack)
	r.executed = append(r.executed, n)
	return "taken"
}

var operations = map[roce.Operation]string{
	roce.RDMAReadResponseFirst: "first", roce.RDMAReadResponseMiddle: "middle", roce.RDMAReadResponseLast: "last",
	roce.RDMAReadResponseOnly: "only", roce.AtomicAcknowledge: "atomic",
}

// reply sends the next packet of the oldest response: "PSN only LENGTH at OFFSET msn M", "PSN atomic RESULT msn M". The
// result is "" if no response is pending.
func (r *responder) reply() string {
	y := r.Reply()
	if y == nil {
		return ""
	}
	op, n := y.Packet(mtu)
	s := fmt.Sprint(y.PSN.Since(r.first), " ", operations[op], " ")
	if op == roce.AtomicAcknowledge {
		s += fmt.Sprint(y.Result)
	} else {
		s += fmt.Sprint(n)
		if n > 0 {
			s += fmt.Sprint(" at ", y.Addr-readAddr)
			if y.Key != readKey || y.Domain != "pd" {
				r.Errorf("reply: key %d and domain %v, want %d and pd", y.Key, y.Domain, readKey)
			}
		}
	}
	s += fmt.Sprint(" msn ", y.MSN)
	y.Sent(1, n)
	if y.Left == 0 {
		r.Replied()
	}
	return s
}

// ack sends the pending acknowledgement: "ack PSN msn M", "nak PSN", "rnr PSN timer T"; "" if none is pending.
func (r *responder) ack() string {
	a, due := r.Ack()
	if !due {
		return ""
	}
	r.AckSent()
	n := a.PSN.Diff(r.first)
	switch {
	case a.Syndrome == roce.ACKUnlimited:
		return fmt.Sprint("ack ", n, " msn ", r.MSN())
	case a.Syndrome.IsRNR():
		return fmt.Sprint("rnr ", n, " timer ", a.Syndrome.RNRTimer())
	case a.Syndrome == roce.NAKPSNSequenceError:
		return fmt.Sprint("nak ", n)
	}
	return fmt.Sprint(a.Syndrome, " ", n)
}

var msn = regexp.MustCompile(` msn \d+`)

// sends sends all pending answers, responses first, and compares them. MSNs are compared only if want contains MSNs.
func (r *responder) sends(want ...string) {
	r.Helper()
	var all []string
	for s := r.reply(); s != "" && len(all) < 1000; s = r.reply() {
		all = append(all, s)
	}
	if s := r.ack(); s != "" {
		all = append(all, s)
	}
	got, exp := strings.Join(all, "; "), strings.Join(want, "; ")
	if !strings.Contains(exp, "msn") {
		got = msn.ReplaceAllString(got, "")
	}
	if got != exp {
		r.Errorf("sent: got %q, want %q", got, exp)
	}
	if s := r.ack(); s != "" {
		r.Errorf("an acknowledgement is due again: %s", s)
	}
}

func (r *responder) expects(want int) {
	r.Helper()
	if got := r.PSN().Diff(r.first); got != want {
		r.Errorf("expected PSN: got %d, want %d", got, want)
	}
}

func (r *responder) hasMSN(want uint32) {
	r.Helper()
	if got := r.MSN(); got != want {
		r.Errorf("MSN: got %d, want %d", got, want)
	}
}

func (r *responder) within(want transport.Kind) {
	r.Helper()
	if got := r.Within(); got != want {
		r.Errorf("within: got %v, want %v", got, want)
	}
}

// unreliable passes packets to an unreliable connection and compares the outcome of each: taken, dropped, or abandoned
// if the owner finds it illegal. ", interrupts" follows if the packet interrupts the message in progress.
func (r *responder) unreliable(want string, packets ...string) {
	r.Helper()
	for _, p := range packets {
		if got := r.oneUnreliable(p); got != want {
			r.Errorf("packet %q: got %v, want %v", p, got, want)
		}
	}
}

func (r *responder) oneUnreliable(s string) (how string) {
	n, a, _, total, _, _, _ := parse(s)
	psn := r.psn(n)
	ends := ""
	if r.Within() != transport.None && r.Interrupts(psn, a.Starts) {
		ends = ", interrupts"
	}
	if !r.ArriveUnreliable(psn, a.Starts) {
		return "dropped" + ends
	}
	if !legal(&r.Receiver, &a) {
		r.Abandon(psn)
		return "abandoned" + ends
	}
	if a.Kind == transport.Write {
		if a.Starts {
			if total < 0 {
				total = a.Length
			}
			r.BeginWrite(0x20000, 9, total)
		}
		if !r.WriteFits(a.Length, a.Ends) {
			r.Abandon(psn)
			return "abandoned" + ends
		}
		r.Wrote(a.Length)
	}
	r.Executed(&a, false)
	r.executed = append(r.executed, n)
	return "taken" + ends
}

type receiverRule struct {
	clause string // section of IBA, volume 1
	rule   string
	run    func(r *responder)
}

func runReceiver(t *testing.T, rules []receiverRule) {
	seen := map[string]bool{}
	for _, x := range rules {
		if seen[x.rule] {
			t.Errorf("two rules %q", x.rule)
		}
		seen[x.rule] = true
		t.Run(x.clause+" "+x.rule, func(t *testing.T) {
			for _, first := range firsts {
				r := &responder{T: t, first: first}
				r.SetMTU(mtu)
				r.SetDepth(4)
				r.Begin(first)
				x.run(r)
				if t.Failed() {
					t.Fatalf("the first PSN is %#x", first)
				}
			}
		})
	}
}

func TestReceiverOrder(t *testing.T) {
	runReceiver(t, []receiverRule{
		{"9.7.4.1.1", "the PSN of INIT to RTR is expected first", func(r *responder) {
			r.expects(0)
			r.takes("taken", "0 send only 10 ack")
			r.expects(1)
			r.sends("ack 0 msn 1")
		}},
		{"9.7.4.1.1", "each packet of a message has its own PSN", func(r *responder) {
			r.takes("taken", "0 send first 1024", "1 send middle 1024", "2 send last 1 ack", "3 send only 0 ack")
			r.expects(4)
			r.sends("ack 3 msn 2")
		}},
		{"9.7.4.1.1", "the response to a READ takes the PSNs after that of its request", func(r *responder) {
			r.takes("taken", "0 read 3000")
			r.expects(3)
			r.takes("taken", "3 read 0")
			r.expects(4)
			r.takes("taken", "4 read 1024")
			r.expects(5)
			r.takes("taken", "5 read 1025")
			r.expects(7)
		}},
		{"9.7.5.2.4", "a PSN after the expected one is a gap and gives a NAK with the expected PSN", func(r *responder) {
			r.takes("taken", "0 send only 1")
			r.takes("gap", "2 send only 1")
			r.expects(1)
			r.sends("nak 1")
			r.hasMSN(1)
		}},
		{"9.7.5.2.4", "a gap gives one NAK, however many packets follow", func(r *responder) {
			r.takes("gap", "2 send only 1")
			r.sends("nak 0")
			r.takes("dropped", "3 send only 1")
			r.takes("dropped", "1 send only 1")
			r.takes("dropped", "2 send only 1 ack")
			r.sends()
		}},
		{"9.7.5.2.4", "a packet that follows a gap is not executed", func(r *responder) {
			r.takes("gap", "1 write only 1 ack")
			r.takes("dropped", "2 read 10")
			r.hasMSN(0)
			r.sends("nak 0")
		}},
		{"9.7.5.2.4", "after the expected packet has come another gap gives another NAK", func(r *responder) {
			r.takes("gap", "2 send only 1")
			r.sends("nak 0")
			r.takes("taken", "0 send only 1")
			r.takes("gap", "2 send only 1")
			r.sends("nak 1")
			r.takes("dropped", "3 send only 1")
			r.takes("taken", "1 send only 1", "2 send only 1 ack")
			r.sends("ack 2 msn 3")
		}},
		{"9.7.5.2.4", "a duplicate does not end the wait for the expected packet", func(r *responder) {
			r.takes("taken", "0 send only 1 ack")
			r.sends("ack 0 msn 1")
			r.takes("gap", "2 send only 1")
			r.sends("nak 1")
			r.takes("repeated", "0 send only 1")
			r.sends("ack 0 msn 1")
			r.takes("dropped", "2 send only 1")
			r.sends()
		}},
		{"9.7.5.2.4", "a duplicate does not replace a NAK that is due", func(r *responder) {
			r.takes("taken", "0 send only 1")
			r.takes("gap", "2 send only 1")
			r.takes("repeated", "0 send only 1")
			r.sends("nak 1")
		}},
		{"9.7.5.2.4", "a gap within a message gives a NAK, and the message goes on with the missing packet", func(r *responder) {
			r.takes("taken", "0 send first 1024")
			r.takes("gap", "2 send last 3 ack")
			r.sends("nak 1")
			r.within(transport.Send)
			r.takes("taken", "1 send middle 1024", "2 send last 3 ack")
			r.sends("ack 2 msn 1")
		}},
		{"9.7.5.2.4", "after a READ that was missing another gap gives another NAK", func(r *responder) {
			r.takes("gap", "3 send only 1")
			r.sends("nak 0")
			r.takes("taken", "0 read 2000")
			r.takes("gap", "3 send only 1")
			r.sends("0 first 1024 at 0", "1 last 976 at 1024", "nak 2")
		}},
		{"9.7.5.2.4", "a gap after a READ is named by the PSN after its response", func(r *responder) {
			r.takes("taken", "0 read 3000")
			r.takes("gap", "4 send only 1")
			r.sends("0 first 1024 at 0", "1 middle 1024 at 1024", "2 last 952 at 2048", "nak 3")
		}},
		{"9.7.4.1.1", "the newest PSN of the half circle is a gap, the oldest a duplicate", func(r *responder) {
			r.takes("taken", "0 send only 1")
			if got := r.Arrive(r.psn(1 + 1<<23 - 1)); got != transport.Gap {
				r.Errorf("2^23-1 after: got %v, want a gap", got)
			}
			if got := r.Arrive(r.psn(1 - 1<<23)); got != transport.Duplicate {
				r.Errorf("2^23 before: got %v, want a duplicate", got)
			}
			if got := r.Arrive(r.psn(0)); got != transport.Duplicate {
				r.Errorf("1 before: got %v, want a duplicate", got)
			}
			r.takes("taken", "1 send only 1")
		}},
		{"9.7.4.1.1", "PSNs go on after 2^24 packets", func(r *responder) {
			a := transport.Arrival{Kind: transport.Send, Starts: true, Ends: true}
			if r.first != 0xfffffe { // once is sufficient
				return
			}
			for range 1<<24 + 3 {
				r.Arrive(r.PSN())
				r.Executed(&a, false)
			}
			r.expects(3)
			if got := r.MSN() & roce.PSNMask; got != 3 {
				r.Errorf("MSN: got %d, want 3", got)
			}
		}},
	})
}

// TestReceiverOpcodes checks the legal opcodes after each packet (IBA 9.7.4.1.2).
func TestReceiverOpcodes(t *testing.T) {
	var parts []string
	for _, k := range []string{"send", "write"} {
		parts = append(parts, k+" first 1024", k+" middle 1024", k+" last 1", k+" only 1")
	}
	parts = append(parts, "read 8", "atomic", "flush", "atomicwrite 8")
	befores := map[string]string{ // by kind of the message in progress
		"":                            "",
		"send only 1":                 "",
		"read 3000":                   "",
		"send first 1024":             "send",
		"write first 1024 total 9999": "write",
	}
	for before, kind := range befores {
		for _, p := range parts {
			continues := strings.Contains(p, "middle") || strings.Contains(p, "last")
			want := "invalid"
			if kind == "" && !continues || kind != "" && continues && strings.HasPrefix(p, kind) {
				want = "taken"
			}
			t.Run(fmt.Sprintf("9.7.4.1.2 after %q a %q is %s", before, p, want), func(t *testing.T) {
				r := &responder{T: t, first: 0xffffff}
				r.SetMTU(mtu)
				r.SetDepth(4)
				r.Begin(r.first)
				if before != "" {
					r.takes("taken", "0 "+before)
				}
				n := r.PSN().Since(r.first)
				if strings.HasPrefix(p, "write last") {
					a := transport.Arrival{Kind: transport.Write, Ends: true, Length: 1}
					if got := legal(&r.Receiver, &a); got != (want == "taken") {
						t.Errorf("Check: got %v, want %v", got, !got)
					}
					return
				}
				if strings.HasPrefix(p, "write first") {
					p += " total 9999"
				}
				r.takes(want, fmt.Sprint(n, " ", p))
				if want == "invalid" {
					if before == "read 3000" {
						return
					}
					r.sends(fmt.Sprint(roce.NAKInvalidRequest, " ", n))
				}
			})
		}
	}
}

func TestReceiverLengths(t *testing.T) {
	runReceiver(t, []receiverRule{
		{"9.7.4.1.6", "a first packet has the path MTU", func(r *responder) {
			r.takes("invalid", "0 send first 1023")
		}},
		{"9.7.4.1.6", "a first packet has no more than the path MTU", func(r *responder) {
			r.takes("invalid", "0 send first 1025")
		}},
		{"9.7.4.1.6", "an empty first packet is invalid", func(r *responder) {
			r.takes("invalid", "0 write first 0 total 2000")
		}},
		{"9.7.4.1.6", "a middle packet has the path MTU", func(r *responder) {
			r.takes("invalid", "0 send first 1024", "1 send middle 1023")
		}},
		{"9.7.4.1.6", "a middle packet has no more than the path MTU", func(r *responder) {
			r.takes("invalid", "0 write first 1024 total 9999", "1 write middle 1025")
		}},
		{"9.7.4.1.6", "a last packet has at least a byte", func(r *responder) {
			r.takes("invalid", "0 send first 1024", "1 send last 0")
		}},
		{"9.7.4.1.6", "a last packet may have one byte", func(r *responder) {
			r.takes("taken", "0 send first 1024", "1 send last 1")
		}},
		{"9.7.4.1.6", "a last packet may have the path MTU", func(r *responder) {
			r.takes("taken", "0 send first 1024", "1 send last 1024")
		}},
		{"9.7.4.1.6", "a last packet has no more than the path MTU", func(r *responder) {
			r.takes("invalid", "0 send first 1024", "1 send last 1025")
		}},
		{"9.7.4.1.6", "an only packet may be empty", func(r *responder) {
			r.takes("taken", "0 send only 0", "1 write only 0")
		}},
		{"9.7.4.1.6", "an only packet may have the path MTU", func(r *responder) {
			r.takes("taken", "0 send only 1024", "1 write only 1024")
		}},
		{"9.7.4.1.6", "an only packet has no more than the path MTU", func(r *responder) {
			r.takes("invalid", "0 send only 1025")
		}},
		{"9.7.4.1.6", "the path MTU that was set last holds", func(r *responder) {
			r.SetMTU(256)
			r.takes("invalid", "0 send first 1024")
		}},
		{"9.7.4.1.6", "an RDMA WRITE ends with the byte that its header has announced", func(r *responder) {
			r.takes("taken", "0 write first 1024 total 2500", "1 write middle 1024", "2 write last 452 ack")
			r.sends("ack 2 msn 1")
		}},
		{"9.7.4.1.6", "an RDMA WRITE that ends early is invalid", func(r *responder) {
			r.takes("too long or short", "0 write first 1024 total 2500", "1 write middle 1024", "2 write last 451")
		}},
		{"9.7.4.1.6", "an RDMA WRITE with a byte too many is invalid", func(r *responder) {
			r.takes("too long or short", "0 write first 1024 total 2500", "1 write middle 1024", "2 write last 453")
		}},
		{"9.7.4.1.6", "a middle packet beyond the end of an RDMA WRITE is invalid", func(r *responder) {
			r.takes("too long or short", "0 write first 1024 total 2000", "1 write middle 1024")
		}},
		{"9.7.4.1.6", "a first packet beyond the end of an RDMA WRITE is invalid", func(r *responder) {
			r.takes("too long or short", "0 write first 1024 total 1000")
		}},
		{"9.7.4.1.6", "an only packet of an RDMA WRITE has all of it", func(r *responder) {
			r.takes("too long or short", "0 write only 5 total 6")
		}},
		{"9.7.4.1.6", "an only packet of an RDMA WRITE has no more than it", func(r *responder) {
			r.takes("too long or short", "0 write only 6 total 5")
		}},
		{"9.4.3", "an RDMA WRITE advances with each packet", func(r *responder) {
			r.takes("taken", "0 write first 1024 total 3000")
			if addr, key, n := r.Write(); addr != 0x20000+1024 || key != 9 || n != 3000 {
				r.Errorf("Write: got %#x, %d, %d, want %#x, 9, 3000", addr, key, n, 0x20000+1024)
			}
			r.takes("taken", "1 write middle 1024")
			if addr, key, n := r.Write(); addr != 0x20000+2048 || key != 9 || n != 3000 {
				r.Errorf("Write: got %#x, %d, %d, want %#x, 9, 3000", addr, key, n, 0x20000+2048)
			}
		}},
		{"9.7.4.1.6", "an RDMA WRITE may have 2^31 bytes", func(r *responder) {
			r.BeginWrite(0, 1, 1<<31)
			r.Wrote(1<<31 - 1024)
			if !r.WriteFits(1024, true) || r.WriteFits(1023, true) || r.WriteFits(1025, true) || !r.WriteFits(1024, false) {
				r.Errorf("the last packet of 2^31 bytes: not 1024 alone")
			}
		}},
	})
}

func TestReceiverAcks(t *testing.T) {
	runReceiver(t, []receiverRule{
		{"9.7.5.1", "a packet without a request for an acknowledgement makes none due", func(r *responder) {
			r.takes("taken", "0 send only 1", "1 write only 1")
			r.sends()
		}},
		{"9.7.5.1.2", "one acknowledgement stands for all packets before it", func(r *responder) {
			r.takes("taken", "0 send only 1 ack", "1 write only 1 ack", "2 send only 1")
			r.sends("ack 1 msn 3")
		}},
		{"9.7.5.1.2", "the acknowledgement has the PSN of the packet that asked for it", func(r *responder) {
			r.takes("taken", "0 send only 1 ack")
			r.sends("ack 0 msn 1")
			r.takes("taken", "1 send only 1 ack")
			r.sends("ack 1 msn 2")
		}},
		{"9.7.5.1", "a packet within a message is acknowledged if it asks", func(r *responder) {
			r.takes("taken", "0 send first 1024 ack")
			r.sends("ack 0 msn 0")
			r.takes("taken", "1 send middle 1024 ack")
			r.sends("ack 1 msn 0")
			r.takes("taken", "2 send last 1 ack")
			r.sends("ack 2 msn 1")
		}},
		{"9.7.5.2.2", "the MSN counts messages, not packets", func(r *responder) {
			r.takes("taken", "0 send first 1024", "1 send last 1", "2 write only 1")
			r.hasMSN(2)
			r.takes("taken", "3 read 3000")
			r.hasMSN(3)
			r.takes("taken", "6 atomic")
			r.hasMSN(4)
			r.sends("3 first 1024 at 0 msn 3", "4 middle 1024 at 1024 msn 3", "5 last 952 at 2048 msn 3", "6 atomic 1006 msn 4")
		}},
		{"9.7.5.2.2", "a duplicate does not count", func(r *responder) {
			r.takes("taken", "0 send only 1", "1 read 10", "2 atomic")
			r.takes("repeated", "0 send only 1")
			r.takes("repeated", "1 read 10")
			r.takes("repeated", "2 atomic")
			r.hasMSN(3)
		}},
		{"9.7.5.1.2", "an acknowledgement of a duplicate ends before a READ that was answered", func(r *responder) {
			r.takes("taken", "0 write only 8 ack", "1 read 8", "2 read 8")
			r.sends("1 only 8 at 0 msn 2", "2 only 8 at 0 msn 3", "ack 0 msn 3")
			r.takes("repeated", "0 write only 8 ack")
			r.sends("ack 0 msn 3")
		}},
		{"9.7.5.1.2", "an acknowledgement of a duplicate stands for the packets before an atomic", func(r *responder) {
			r.takes("taken", "0 write only 8", "1 send only 8", "2 atomic", "3 write only 8 ack")
			r.sends("2 atomic 1002 msn 3", "ack 3 msn 4")
			r.takes("repeated", "0 write only 8")
			r.sends("ack 1 msn 4")
			r.takes("repeated", "3 write only 8")
			r.sends("ack 3 msn 4")
		}},
		{"9.7.5.1.2", "an acknowledgement that is due ends before a FLUSH that was answered when a SEND comes again", func(r *responder) {
			r.takes("taken", "0 send only 8", "1 flush")
			r.sends("1 only 0 msn 2")
			r.takes("taken", "2 send only 8 ack")
			r.takes("repeated", "0 send only 8")
			r.sends("ack 0 msn 3")
		}},
		{"9.7.5.1.2", "an acknowledgement of a duplicate stands for a READ whose response precedes it", func(r *responder) {
			r.takes("taken", "0 write only 8", "1 read 8", "2 write only 8 ack")
			r.takes("repeated", "0 write only 8")
			r.sends("1 only 8 at 0 msn 2", "ack 2 msn 3")
		}},
		{"9.7.5.1.2", "the last packet to be acknowledged is not that of a READ", func(r *responder) {
			r.takes("taken", "0 write only 8", "1 read 8")
			r.takes("repeated", "0 write only 8")
			r.sends("1 only 8 at 0 msn 2", "ack 0 msn 2")
		}},
		{"9.7.5.1.2", "an acknowledgement waits for a response before it that was given up", func(r *responder) {
			r.takes("taken", "0 read 8", "1 read 8", "2 write only 8 ack")
			r.takes("repeated", "0 read 8")
			r.sends("0 only 8 at 0 msn 1")
			r.takes("repeated", "2 write only 8")
			r.sends()
			r.takes("repeated", "1 read 8")
			r.sends("1 only 8 at 0 msn 2", "ack 2 msn 3")
		}},
		{"9.7.5.1.3", "a duplicate SEND is acknowledged", func(r *responder) {
			r.takes("taken", "0 send only 1 ack")
			r.sends("ack 0 msn 1")
			r.takes("repeated", "0 send only 1")
			r.sends("ack 0 msn 1")
			r.expects(1)
		}},
		{"9.7.5.1.3", "a duplicate RDMA WRITE is acknowledged with the PSN of the newest packet", func(r *responder) {
			r.takes("taken", "0 write only 1", "1 send only 1", "2 send first 1024")
			r.sends()
			r.takes("repeated", "0 write only 1")
			r.sends("ack 2 msn 2")
		}},
		{"9.7.5.1.3", "a duplicate packet within a message is acknowledged, and the message goes on", func(r *responder) {
			r.takes("taken", "0 send first 1024", "1 send middle 1024 ack")
			r.sends("ack 1")
			r.takes("repeated", "0 send first 1024")
			r.sends("ack 1")
			r.within(transport.Send)
			r.takes("taken", "2 send last 1")
		}},
		{"9.7.5.1.3", "the acknowledgement of a duplicate follows the responses before it", func(r *responder) {
			r.takes("taken", "0 send only 1", "1 read 2000", "3 send only 1")
			r.takes("repeated", "0 send only 1")
			r.sends("1 first 1024 at 0", "2 last 976 at 1024", "ack 3")
		}},
		{"9.7.5.1.2", "an acknowledgement waits for the responses before it", func(r *responder) {
			r.takes("taken", "0 read 3000", "3 send only 1 ack")
			r.sends("0 first 1024 at 0", "1 middle 1024 at 1024", "2 last 952 at 2048", "ack 3")
		}},
		{"9.7.5.1.2", "a NAK waits for the responses before it", func(r *responder) {
			r.takes("taken", "0 read 1", "1 atomic")
			r.Arrive(r.psn(2))
			r.Acknowledge(roce.NAKRemoteAccessError, r.psn(2))
			r.sends("0 only 1 at 0", "1 atomic 1001", fmt.Sprint(roce.NAKRemoteAccessError, " 2"))
		}},
		{"9.7.5.1.2", "a response stands for the acknowledgement of what is before it", func(r *responder) {
			r.takes("taken", "0 send only 1 ack", "1 read 1")
			if s := r.reply(); s != "1 only 1 at 0 msn 2" {
				r.Errorf("got %q", s)
			}
			if s := r.ack(); s != "" && s != "ack 0 msn 2" {
				r.Errorf("%q after the response", s)
			}
		}},
		{"9.7.5.2.8", "a packet that finds no receive is answered by an RNR NAK with its PSN", func(r *responder) {
			r.takes("taken", "0 send only 1")
			r.findsNoReceive("not ready", "1 send only 1 ack")
			r.expects(1)
			r.hasMSN(1)
			r.sends("rnr 1 timer 12")
		}},
		{"9.7.5.2.8", "packets after an RNR NAK are dropped without another NAK", func(r *responder) {
			r.findsNoReceive("not ready", "0 send only 1")
			r.sends("rnr 0 timer 12")
			r.takes("dropped", "1 send only 1")
			r.takes("dropped", "2 read 10")
			r.sends()
			r.hasMSN(0)
		}},
		{"9.7.5.2.8", "after an RNR NAK the packet is executed when it comes again", func(r *responder) {
			r.findsNoReceive("not ready", "0 send first 1024")
			r.sends("rnr 0 timer 12")
			r.within(transport.None)
			r.takes("taken", "0 send first 1024", "1 send last 1 ack")
			r.sends("ack 1 msn 1")
		}},
		{"9.7.5.2.8", "a packet that finds no receive again is answered by another RNR NAK", func(r *responder) {
			r.findsNoReceive("not ready", "0 send only 1")
			r.sends("rnr 0 timer 12")
			r.findsNoReceive("not ready", "0 send only 1")
			r.sends("rnr 0 timer 12")
			r.takes("taken", "0 send only 1")
			r.takes("gap", "2 send only 1")
			r.sends("nak 1")
		}},
		{"9.7.5.2.8", "the end of an RDMA WRITE with immediate data may find no receive", func(r *responder) {
			r.takes("taken", "0 write first 1024 total 1025")
			if r.Arrive(r.psn(1)) != transport.Expected || !legal(&r.Receiver, &transport.Arrival{Kind: transport.Write, Ends: true, Length: 1}) {
				r.Error("the last packet is not taken")
			}
			r.NotReady(1)
			r.sends("rnr 1 timer 1")
			r.within(transport.Write)
			r.takes("taken", "1 write last 1 ack")
			r.sends("ack 1 msn 1")
		}},
		{"9.7.5.2.8", "a duplicate does not replace an RNR NAK that is due", func(r *responder) {
			r.takes("taken", "0 send only 1")
			r.findsNoReceive("not ready", "1 send only 1")
			r.takes("repeated", "0 send only 1")
			r.sends("rnr 1 timer 12")
		}},
		{"9.7.5.2.8", "an RNR NAK waits for the responses before it", func(r *responder) {
			r.takes("taken", "0 read 1")
			r.findsNoReceive("not ready", "1 send only 1")
			r.sends("0 only 1 at 0", "rnr 1 timer 12")
		}},
		{"9.9.3", "the NAK of a refused request outlives the error state", func(r *responder) {
			r.takes("taken", "0 send only 1")
			r.takes("invalid", "1 send middle 1024")
			r.Abort()
			r.sends(fmt.Sprint(roce.NAKInvalidRequest, " 1"))
		}},
		{"9.9.3", "in the error state nothing is known of the past", func(r *responder) {
			r.takes("taken", "0 read 10", "1 atomic", "2 send first 1024")
			r.Abort()
			r.within(transport.None)
			if _, past := r.Len(); past != 0 {
				r.Errorf("remembered: got %d, want 0", past)
			}
		}},
		{"10.3.1", "RESET forgets the expected PSN, the MSN, and all that is due", func(r *responder) {
			r.takes("taken", "0 send only 1 ack", "1 read 10", "2 atomic", "3 send first 1024")
			r.takes("gap", "5 send only 1")
			r.Reset()
			r.Begin(r.psn(50))
			r.sends()
			r.expects(50)
			r.hasMSN(0)
			r.within(transport.None)
			if replies, past := r.Len(); replies != 0 || past != 0 {
				r.Errorf("Len: got %d, %d, want 0, 0", replies, past)
			}
			r.takes("gap", "51 send only 1")
			r.sends("nak 50")
			r.takes("unknown", "2 atomic")
			// Reset keeps the configuration.
			r.takes("taken", "50 send first 1024", "51 send last 1", "52 read 1", "53 read 1", "54 read 1", "55 read 1")
			r.takes("refused", "56 read 1")
		}},
	})
}

func TestReceiverResponses(t *testing.T) {
	runReceiver(t, []receiverRule{
		{"9.7.5.1.4", "a READ is answered with packets of the path MTU", func(r *responder) {
			r.takes("taken", "0 read 2048")
			r.sends("0 first 1024 at 0 msn 1", "1 last 1024 at 1024 msn 1")
		}},
		{"9.7.5.1.4", "a READ of one packet is answered with an only", func(r *responder) {
			r.takes("taken", "0 read 1024")
			r.sends("0 only 1024 at 0 msn 1")
		}},
		{"9.7.5.1.4", "a READ of no length is answered with an empty only", func(r *responder) {
			r.takes("taken", "0 read 0", "1 send only 1 ack")
			r.sends("0 only 0 msn 1", "ack 1 msn 2")
		}},
		{"9.7.5.1.4", "responses are in the order of the requests", func(r *responder) {
			r.takes("taken", "0 read 1", "1 atomic", "2 read 2", "3 atomic")
			r.sends("0 only 1 at 0", "1 atomic 1001", "2 only 2 at 0", "3 atomic 1003")
		}},
		{"A19.4.1", "FLUSH and ATOMIC WRITE are answered like a READ of no length", func(r *responder) {
			r.takes("taken", "0 flush", "1 atomicwrite 8", "2 send only 1 ack")
			r.sends("0 only 0 msn 1", "1 only 0 msn 2", "ack 2 msn 3")
		}},
		{"9.7.7.2", "one READ more than agreed on is refused", func(r *responder) {
			r.takes("taken", "0 read 1", "1 atomic", "2 flush", "3 atomicwrite 8")
			r.takes("refused", "4 read 1")
			r.sends("0 only 1 at 0", "1 atomic 1001", "2 only 0", "3 only 0", fmt.Sprint(roce.NAKInvalidRequest, " 4"))
		}},
		{"9.7.7.2", "a READ that has been answered makes place for another", func(r *responder) {
			r.takes("taken", "0 read 1", "1 read 1", "2 read 1", "3 read 2000")
			r.reply()
			r.takes("taken", "5 atomic")
			r.reply()
			r.reply()
			r.reply() // half of the last READ
			r.takes("taken", "6 atomic", "7 atomic")
			if r.Admits() {
				r.Error("a fifth is admitted")
			}
		}},
		{"9.7.7.2", "a responder without resources admits no READ", func(r *responder) {
			r.SetDepth(0)
			r.takes("refused", "0 read 1")
		}},
		{"9.7.7.2", "a SEND is no READ and needs no resource", func(r *responder) {
			r.SetDepth(0)
			r.takes("taken", "0 send only 1 ack")
			r.sends("ack 0")
		}},
		{"9.7.5.1.4", "a duplicate READ is answered again", func(r *responder) {
			r.takes("taken", "0 read 2000", "2 send only 1 ack")
			r.sends("0 first 1024 at 0", "1 last 976 at 1024", "ack 2")
			r.takes("repeated", "0 read 2000")
			r.sends("0 first 1024 at 0", "1 last 976 at 1024")
			r.expects(3)
			r.takes("repeated", "0 read 2000")
			r.sends("0 first 1024 at 0", "1 last 976 at 1024")
		}},
		{"9.7.5.1.4", "the end of a READ is read again from its middle", func(r *responder) {
			r.takes("taken", "0 read 3000")
			r.sends("0 first 1024 at 0", "1 middle 1024 at 1024", "2 last 952 at 2048")
			r.takes("repeated", "1 read 1976 at 1024")
			r.sends("1 first 1024 at 1024", "2 last 952 at 2048")
			r.takes("repeated", "2 read 952 at 2048")
			r.sends("2 only 952 at 2048")
		}},
		{"9.7.5.1.4", "the beginning of a READ is read again", func(r *responder) {
			r.takes("taken", "0 read 3000")
			r.sends("0 first 1024 at 0", "1 middle 1024 at 1024", "2 last 952 at 2048")
			r.takes("repeated", "0 read 1024")
			r.sends("0 only 1024 at 0")
			r.takes("repeated", "1 read 1024 at 1024")
			r.sends("1 only 1024 at 1024")
		}},
		{"9.7.5.1.4", "a duplicate READ of bytes before the original is dropped", func(r *responder) {
			r.takes("taken", "0 read 3000 at 4096")
			r.sends("0 first 1024 at 4096", "1 middle 1024 at 5120", "2 last 952 at 6144")
			r.takes("", "0 read 3000 at 4095")
			r.takes("", "0 read 3000 at 0")
			r.takes("", "1 read 1976 at 4096")
			r.sends()
		}},
		{"9.7.5.1.4", "a duplicate READ of bytes after the original is dropped", func(r *responder) {
			r.takes("taken", "0 read 3000")
			r.sends("0 first 1024 at 0", "1 middle 1024 at 1024", "2 last 952 at 2048")
			r.takes("", "0 read 3001")
			r.takes("", "1 read 1977 at 1024")
			r.takes("", "2 read 953 at 2048")
			r.sends()
		}},
		{"9.7.5.1.4", "a duplicate READ with another key is dropped", func(r *responder) {
			r.takes("taken", "0 read 10")
			r.sends("0 only 10 at 0")
			r.takes("", "0 read 10 key 8")
			r.sends()
		}},
		{"9.7.5.1.4", "a duplicate READ whose address wraps is dropped", func(r *responder) {
			r.takes("taken", "0 read 3000")
			r.sends("0 first 1024 at 0", "1 middle 1024 at 1024", "2 last 952 at 2048")
			r.Duplicate(&transport.Repeat{PSN: r.psn(1), Kind: transport.Read, Addr: 1<<64 - 10, Key: readKey, Length: readAddr + 100})
			r.sends()
		}},
		{"9.7.5.1.4", "a duplicate of a READ of no length is answered", func(r *responder) {
			r.takes("taken", "0 read 0")
			r.sends("0 only 0")
			r.takes("repeated", "0 read 0")
			r.sends("0 only 0")
		}},
		{"9.7.5.1.4", "a duplicate READ that comes while the response is being sent is answered from its own PSN", func(r *responder) {
			r.takes("taken", "0 read 3000")
			r.reply()
			r.takes("repeated", "1 read 1976 at 1024")
			var got []string
			for s := r.reply(); s != ""; s = r.reply() {
				got = append(got, msn.ReplaceAllString(s, ""))
			}
			all := strings.Join(got, "; ")
			if !strings.HasSuffix(all, "1 first 1024 at 1024; 2 last 952 at 2048") && all != "1 middle 1024 at 1024; 2 last 952 at 2048" {
				r.Errorf("got %q", all)
			}
		}},
		{"9.7.5.1.5", "a duplicate atomic is answered with the first result", func(r *responder) {
			r.takes("taken", "0 atomic", "1 atomic")
			r.sends("0 atomic 1000", "1 atomic 1001")
			r.takes("repeated", "0 atomic")
			r.sends("0 atomic 1000")
			r.takes("repeated", "1 atomic")
			r.sends("1 atomic 1001")
			r.takes("repeated", "0 atomic")
			r.takes("repeated", "1 atomic")
			r.sends("0 atomic 1000", "1 atomic 1001")
		}},
		{"9.7.5.1.5", "a duplicate atomic is dropped after as many others as may be outstanding", func(r *responder) {
			r.takes("taken", "0 atomic", "1 atomic", "2 atomic", "3 atomic")
			r.sends("0 atomic 1000", "1 atomic 1001", "2 atomic 1002", "3 atomic 1003")
			r.takes("repeated", "0 atomic")
			r.sends("0 atomic 1000")
			r.takes("taken", "4 read 1")
			r.sends("4 only 1 at 0")
			r.takes("unknown", "0 atomic")
			r.takes("repeated", "1 atomic")
			r.sends("1 atomic 1001")
		}},
		{"9.7.5.1.5", "SENDs do not displace the result of an atomic", func(r *responder) {
			r.takes("taken", "0 atomic")
			r.sends("0 atomic 1000")
			for i := range 100 {
				r.takes("taken", fmt.Sprint(i+1, " send only 1"))
			}
			r.takes("repeated", "0 atomic")
			r.sends("0 atomic 1000")
		}},
		{"9.7.5.1.4", "a duplicate READ is dropped after as many others as may be outstanding", func(r *responder) {
			r.takes("taken", "0 read 2000", "2 atomic", "3 atomic", "4 atomic")
			r.sends("0 first 1024 at 0", "1 last 976 at 1024", "2 atomic 1002", "3 atomic 1003", "4 atomic 1004")
			r.takes("taken", "5 atomic")
			r.sends("5 atomic 1005")
			r.takes("unknown", "0 read 2000")
			r.takes("unknown", "1 read 976 at 1024")
			r.sends()
		}},
		{"9.7.5.1.5", "a duplicate atomic with the PSN of another request is dropped", func(r *responder) {
			r.takes("taken", "0 send only 1", "1 read 2000", "3 atomic")
			r.sends("1 first 1024 at 0", "2 last 976 at 1024", "3 atomic 1003")
			r.takes("unknown", "0 atomic")
			r.takes("unknown", "1 atomic")
			r.takes("unknown", "2 atomic")
			r.sends()
		}},
		{"9.7.5.1.4", "a duplicate READ with the PSN of another request is dropped", func(r *responder) {
			r.takes("taken", "0 send only 1", "1 read 2000", "3 atomic", "4 flush")
			r.sends("1 first 1024 at 0", "2 last 976 at 1024", "3 atomic 1003", "4 only 0")
			r.takes("unknown", "0 read 1")
			r.takes("unknown", "3 read 0")
			r.takes("unknown", "4 read 0")
			r.sends()
		}},
		{"A19.4.1", "a duplicate FLUSH or ATOMIC WRITE is answered again", func(r *responder) {
			r.takes("taken", "0 flush", "1 atomicwrite 8")
			r.sends("0 only 0", "1 only 0")
			r.takes("repeated", "0 flush")
			r.sends("0 only 0")
			r.takes("repeated", "1 atomicwrite 8")
			r.sends("1 only 0")
		}},
		{"9.7.7.2", "a repeated response does not keep a new request out", func(r *responder) {
			r.takes("taken", "0 atomic", "1 atomic", "2 atomic", "3 atomic")
			r.sends("0 atomic 1000", "1 atomic 1001", "2 atomic 1002", "3 atomic 1003")
			for i := range 4 {
				r.takes("repeated", fmt.Sprint(i, " atomic"))
			}
			// The requester has received all four answers, and sends new requests.
			r.takes("taken", "4 atomic", "5 atomic", "6 atomic", "7 atomic")
			r.takes("refused", "8 atomic")
			r.sends("4 atomic 1004", "5 atomic 1005", "6 atomic 1006", "7 atomic 1007", fmt.Sprint(roce.NAKInvalidRequest, " 8"))
		}},
		{"9.7.7.2", "duplicates do not make more responses due than may be outstanding", func(r *responder) {
			r.takes("taken", "0 atomic", "1 atomic", "2 atomic", "3 atomic")
			for range 100 {
				for i := range 4 {
					r.one(fmt.Sprint(i, " atomic"), false)
				}
			}
			if n, _ := r.Len(); n > 2*4+1 {
				r.Errorf("replies: got %d", n)
			}
			for range 100 {
				if r.reply() == "" {
					break
				}
			}
			r.sends()
		}},
		{"9.7.7.2", "parts of a READ that are asked for again do not make more responses due than may be outstanding", func(r *responder) {
			r.SetDepth(2)
			r.takes("taken", "0 read 3000")
			r.sends("0 first 1024 at 0", "1 middle 1024 at 1024", "2 last 952 at 2048")
			r.takes("repeated", "0 read 1024")
			r.takes("repeated", "1 read 1024 at 1024")
			r.takes("repeated", "2 read 952 at 2048")
			r.sends("0 only 1024 at 0", "1 only 1024 at 1024")
		}},
		{"9.7.5.1.4", "a duplicate takes the place of responses after it, which will be asked for again", func(r *responder) {
			r.takes("taken", "0 atomic", "1 read 2000", "3 atomic")
			r.takes("repeated", "1 read 2000")
			r.sends("0 atomic 1000", "1 first 1024 at 0", "2 last 976 at 1024")
			r.takes("repeated", "3 atomic")
			r.sends("3 atomic 1003")
		}},
		{"9.7.5.1.5", "with another number of resources the oldest result is displaced first", func(r *responder) {
			for n := range 5 {
				r.takes("taken", fmt.Sprint(n, " atomic"))
				r.sends(fmt.Sprint(n, " atomic ", 1000+n))
			}
			r.SetDepth(2)
			for n := 5; n < 8; n++ {
				r.takes("taken", fmt.Sprint(n, " atomic"))
				r.sends(fmt.Sprint(n, " atomic ", 1000+n))
			}
			r.takes("unknown", "5 atomic")
			r.takes("repeated", "6 atomic")
			r.sends("6 atomic 1006")
		}},
		{"9.7.5.1.4", "another number of resources forgets the past", func(r *responder) {
			r.takes("taken", "0 atomic")
			r.sends("0 atomic 1000")
			r.SetDepth(2)
			r.takes("unknown", "0 atomic")
			r.takes("taken", "1 atomic", "2 atomic")
			r.takes("refused", "3 atomic")
		}},
		{"9.7.5.1.2", "no response acknowledges an RDMA WRITE before it that turns out to fail", func(r *responder) {
			r.takes("taken", "0 read 1", "1 atomic", "2 write only 64", "3 read 3000", "6 atomic")
			r.Refuse(roce.NAKRemoteAccessError, r.psn(2))
			r.sends("0 only 1 at 0", "1 atomic 1001", fmt.Sprint(roce.NAKRemoteAccessError, " 2"))
		}},
		{"9.7.5.1.2", "the rest of a response that has begun before it is sent", func(r *responder) {
			r.takes("taken", "0 read 3000")
			if got := r.reply(); got != "0 first 1024 at 0 msn 1" {
				t.Errorf("reply: got %q", got)
			}
			r.takes("taken", "3 write only 64", "4 read 1")
			r.Refuse(roce.NAKRemoteAccessError, r.psn(3))
			r.sends("1 middle 1024 at 1024", "2 last 952 at 2048", fmt.Sprint(roce.NAKRemoteAccessError, " 3"))
		}},
		{"9.7.5.1.2", "no acknowledgement stands for a response that was given up with the queue pair", func(r *responder) {
			r.takes("taken", "0 read 3000", "3 write only 64 ack")
			r.DropReplies()
			r.sends()
		}},
		{"9.7.5.1.2", "a refusal sends such a response before those of later requests", func(r *responder) {
			r.takes("taken", "0 read 8", "1 read 8")
			r.takes("repeated", "0 read 8")
			r.takes("taken", "2 read 8")
			r.Refuse(roce.NAKRemoteAccessError, r.psn(3))
			r.sends("0 only 8 at 0", "1 only 8 at 0", "2 only 8 at 0", fmt.Sprint(roce.NAKRemoteAccessError, " 3"))
		}},
		{"9.7.5.1.2", "an acknowledgement that waits for a repetition is not sent in the error state", func(r *responder) {
			r.takes("taken", "0 read 8", "1 read 8", "2 write only 8 ack")
			r.takes("repeated", "0 read 8")
			r.sends("0 only 8 at 0")
			r.takes("repeated", "2 write only 8")
			r.DropReplies()
			r.Abort()
			r.sends()
		}},
		{"9.7.5.1.2", "an acknowledgement of requests before such a response is sent", func(r *responder) {
			r.takes("taken", "0 write only 64 ack", "1 read 3000")
			r.DropReplies()
			r.sends("ack 0 msn 2")
		}},
		{"9.7.5.1.2", "a NAK for a missing packet asks for the request whose response was given up", func(r *responder) {
			r.takes("taken", "0 read 1", "1 read 1", "2 atomic")
			r.takes("repeated", "1 read 1")
			r.takes("gap", "4 write only 64")
			r.sends("0 only 1 at 0", "1 only 1 at 0", "nak 2")
		}},
		{"9.7.5.1.2", "a NAK for want of a receive asks for the request whose response was given up", func(r *responder) {
			r.takes("taken", "0 read 1", "1 read 1", "2 atomic")
			r.takes("repeated", "1 read 1")
			r.findsNoReceive("not ready", "3 send only 64")
			r.sends("0 only 1 at 0", "1 only 1 at 0", "nak 2")
		}},
		{"9.7.5.1.2", "a refusal sends the responses that were given up before its NAK", func(r *responder) {
			r.takes("taken", "0 read 1", "1 read 1", "2 atomic", "3 read 1")
			r.takes("repeated", "1 read 1")
			r.Refuse(roce.NAKRemoteAccessError, r.psn(4))
			r.sends("0 only 1 at 0", "1 only 1 at 0", "2 atomic 1002", "3 only 1 at 0",
				fmt.Sprint(roce.NAKRemoteAccessError, " 4"))
		}},
		{"9.9.3", "responses can be given up, and the acknowledgement is due at once", func(r *responder) {
			r.takes("taken", "0 read 3000")
			r.Acknowledge(roce.NAKRemoteOperationalError, r.psn(0))
			r.DropReplies()
			r.sends(fmt.Sprint(roce.NAKRemoteOperationalError, " 0"))
		}},
	})
}

func TestReceiverUnreliable(t *testing.T) {
	runReceiver(t, []receiverRule{
		{"9.8.2.2", "packets in their order are taken, and none is acknowledged", func(r *responder) {
			r.unreliable("taken", "0 send only 1", "1 send first 1024", "2 send middle 1024", "3 send last 1", "4 write only 0")
			r.sends()
			r.expects(5)
		}},
		{"9.8.2.2.2", "a message may start after a gap", func(r *responder) {
			r.unreliable("taken", "5 send first 1024", "6 send last 1", "9 send only 1")
			r.expects(10)
		}},
		{"9.8.2.2.2", "a message may start with an earlier PSN", func(r *responder) {
			r.unreliable("taken", "5 send only 1", "3 send only 1", "4 send only 1")
			r.expects(5)
		}},
		{"9.8.2.2.3", "a last packet without a first is dropped", func(r *responder) {
			r.unreliable("abandoned", "0 send last 1")
			r.unreliable("taken", "1 send only 1")
		}},
		{"9.8.2.2.3", "a middle packet without a first is dropped, and so is the rest", func(r *responder) {
			r.unreliable("dropped", "1 send middle 1024", "2 send middle 1024", "3 send last 1")
			r.expects(4)
			r.unreliable("taken", "4 send only 1")
		}},
		{"9.8.2.2.2", "a gap within a message costs the message", func(r *responder) {
			r.unreliable("taken", "0 send first 1024")
			r.unreliable("dropped, interrupts", "2 send middle 1024")
			r.within(transport.None)
			r.unreliable("dropped", "3 send last 1")
			r.unreliable("taken", "4 send only 1")
			r.hasMSN(1)
		}},
		{"9.8.2.2.2", "a missing packet that comes late does not mend the message", func(r *responder) {
			r.unreliable("taken", "0 send first 1024")
			r.unreliable("dropped, interrupts", "2 send last 1")
			r.unreliable("dropped", "1 send middle 1024", "2 send last 1")
		}},
		{"9.8.2.2.2", "a repeated packet within a message costs the message", func(r *responder) {
			r.unreliable("taken", "0 send first 1024", "1 send middle 1024")
			r.unreliable("dropped, interrupts", "1 send middle 1024")
			r.unreliable("dropped", "2 send last 1")
		}},
		{"9.8.2.2.2", "after a gap within a message the next one begins anew", func(r *responder) {
			r.unreliable("taken", "0 send first 1024")
			r.unreliable("taken, interrupts", "3 send first 1024")
			r.unreliable("taken", "4 send last 1")
			r.hasMSN(1)
		}},
		{"9.8.2.2.3", "a message that starts within another one ends that", func(r *responder) {
			r.unreliable("taken", "0 send first 1024")
			r.unreliable("taken, interrupts", "1 write first 1024 total 1025")
			r.within(transport.Write)
			r.unreliable("taken", "2 write last 1")
		}},
		{"9.8.2.2.3", "an only packet within a message ends that", func(r *responder) {
			r.unreliable("taken", "0 send first 1024")
			r.unreliable("taken, interrupts", "1 send only 1")
			r.within(transport.None)
			r.unreliable("abandoned", "2 send last 1")
		}},
		{"9.8.2.2.3", "a packet of another kind within a message costs the message", func(r *responder) {
			r.unreliable("taken", "0 send first 1024")
			r.unreliable("abandoned", "1 write middle 1024")
			r.within(transport.None)
			r.unreliable("dropped", "2 write last 1", "3 send last 1")
			r.unreliable("taken", "4 send only 1")
		}},
		{"9.8.2.2.4", "a packet of a wrong length costs the message", func(r *responder) {
			r.unreliable("taken", "0 send first 1024")
			r.unreliable("abandoned", "1 send middle 1023")
			r.unreliable("dropped", "2 send last 1")
			r.unreliable("abandoned", "3 send first 1023")
			r.unreliable("dropped", "4 send last 1")
			r.unreliable("taken", "5 send only 1")
		}},
		{"9.8.2.2.4", "a message that is given up loses its rest and nothing else", func(r *responder) {
			r.unreliable("taken", "0 send first 1024", "1 send middle 1024")
			r.AbandonRest()
			r.within(transport.None)
			r.expects(2)
			r.unreliable("dropped", "2 send middle 1024", "3 send last 1")
			r.unreliable("taken", "4 send first 1024", "5 send last 1")
			r.hasMSN(1)
		}},
		{"9.8.2.2.4", "a message that is given up at a packet loses it", func(r *responder) {
			r.unreliable("taken", "0 send first 1024")
			r.Abandon(r.psn(1))
			r.expects(2)
			r.unreliable("dropped", "2 send last 1")
			r.unreliable("taken", "3 send only 1")
		}},
		{"9.8.2.2.2", "a packet in its order interrupts nothing", func(r *responder) {
			r.unreliable("taken", "0 send first 1024")
			for _, x := range []struct {
				n      int
				starts bool
				want   bool
			}{{1, false, false}, {1, true, true}, {2, false, true}, {2, true, true}, {0, false, true}, {-1, true, true}} {
				if got := r.Interrupts(r.psn(x.n), x.starts); got != x.want {
					r.Errorf("Interrupts(%d, %v): got %v, want %v", x.n, x.starts, got, x.want)
				}
			}
			r.unreliable("taken", "1 send last 1")
		}},
		{"9.8.2.2.2", "between messages nothing is interrupted", func(r *responder) {
			r.unreliable("taken", "0 send only 1")
			for n := range 3 {
				if r.Interrupts(r.psn(n), true) || r.Interrupts(r.psn(n), false) {
					r.Errorf("Interrupts(%d): got true, want false", n)
				}
			}
		}},
	})
}
