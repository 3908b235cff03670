package rxe

import (
	"fmt"
	"math/rand/v2"

	"verbena/driver/rxe/transport"
	"verbena/ib"
	"verbena/link"
)

// messageCase is a case of TestRandomMessages: what one end sends to the other, the way that the packets take, and what
// goes wrong. All of it follows from the seed. (The moments at which threads run do not.)
type messageCase struct {
	seed    uint64
	typ     ib.QPType // RC or UC
	mtu     ib.MTU
	psn     uint32 // mostly wraps in the middle of the messages
	reads   int    // max_rd_atomic
	timeout uint8  // local ACK timeout
	rnr     uint8  // RNR NAK timer
	way     way
	loss    loss
	direct  [2]bool // the memory of an end is in this process, see umem.Region.Direct
	late    bool    // receives are posted when messages already arrive

	messages []*message
	bufLen   int
	fault    fault
	victim   int     // the message with the fault
	gone     [2]int  // from, to: bytes of the buffer that are unmapped, for faultHole
	tapped   [2]bool // by a capture, on wayWatched
	traced   [2]bool // the same
}

// message is a work request. Its bytes have the same place in the buffers of both ends.
type message struct {
	op          ib.WROpcode
	at, size    int
	elements    []element // of the work request
	receive     []element // of the receive, if it takes one
	region      int       // at the target of an RDMA operation
	badRKey     bool
	fence       bool
	inline      bool
	deliverable int // bytes that can be transferred before the fault; size: all
}

// element is a part of the buffer, in one of the regions that overlap there.
type element struct {
	at, size int
	region   int
	badKey   bool
}

const (
	victimRegion   = 3 // for the victim alone, so that deregistering it concerns no other message
	numCaseRegions = 4

	messageGuard    = 64 // bytes between two messages, which nothing may change
	maxCaseMessages = 12
	maxCaseBytes    = 3 << 20 // of all messages of a case
)

// takesReceive reports whether the message takes a receive.
func (m *message) takesReceive() bool {
	return m.op == ib.WRSend || m.op == ib.WRSendWithImm || m.op == ib.WRRDMAWriteWithImm
}

// scatters reports whether the receive says where the message goes.
func (m *message) scatters() bool { return m.op == ib.WRSend || m.op == ib.WRSendWithImm }

// fails reports whether the fault is certain to make the message fail.
func (m *message) fails() bool { return m.deliverable < m.size }

// way is how packets travel.
type way int

const (
	wayShortcut way = iota
	wayWatched      // the shortcut, with captures and traces, which need each packet by itself
	wayWire
)

func (w way) String() string { return [...]string{"shortcut", "watched", "wire"}[w] }

// loss is what the network does wrong; only the wire has any.
type loss int

const (
	lossNone loss = iota
	lossDrop
	lossDuplicate
	lossReorder
	lossMixed
	lossRNR
	numLosses
)

func (l loss) String() string {
	return [...]string{"none", "drops", "duplicates", "reorders", "mixed", "RNR NAKs"}[l]
}

func (l loss) rule() link.Rule {
	return [...]link.Rule{
		lossDrop:      {Drop: 0.02},
		lossDuplicate: {Duplicate: 0.2},
		lossReorder:   {Reorder: 0.02, Behind: 3},
		lossMixed:     {Drop: 0.005, Corrupt: 0.005, Duplicate: 0.02},
		lossRNR:       {RNR: 0.3, Limit: 20},
	}[l]
}

// fault is what goes wrong, and at which end: 0 is the requester, 1 its peer.
type fault struct {
	kind faultKind
	end  int
}

type faultKind int

const (
	faultNone    faultKind = iota
	faultLKey              // of an element of the victim
	faultRKey              // of the victim
	faultReceive           // for the victim
	faultHole              // a part of the victim's memory is unmapped
	faultDereg             // the victim's region, at a random moment
	faultError             // Modify, at a random moment
	faultDrain             // Modify to SQD and back, three times
	faultWay               // taps, traces, rules and the shortcut come and go
	faultDestroy           // the queue pair, at a random moment
)

// messageFaults are the faults of cases, each as likely as another.
var messageFaults = []fault{
	{faultNone, 0}, {faultLKey, 0}, {faultRKey, 1}, {faultReceive, 1}, {faultHole, 0}, {faultHole, 1}, {faultDereg, 0},
	{faultDereg, 1}, {faultError, 0}, {faultError, 1}, {faultDrain, 0}, {faultWay, 1}, {faultDestroy, 0},
}

func (f fault) String() string {
	return [...]string{
		"none", "bad L_Key", "bad R_Key", "short receive", "hole", "deregistration", "ERR", "SQD", "change of way",
		"destruction",
	}[f.kind] + [2]string{" at the requester", " at the peer"}[f.end]
}

func (c *messageCase) String() string {
	return fmt.Sprintf("seed %d: %v, MTU %d, %v, losses %v, direct %v, %d messages, fault %v (message %d)",
		c.seed, c.typ, c.mtu.Bytes(), c.way, c.loss, c.direct, len(c.messages), c.fault, c.victim)
}

func (c *messageCase) reliable() bool { return c.typ == ib.QPTypeRC }

// delivers reports whether a message that succeeds must have arrived. UC loses messages without notice.
func (c *messageCase) delivers() bool {
	return c.reliable() || c.loss == lossNone && c.fault.end == 0
}

// random returns a source of random numbers for one purpose.
func (c *messageCase) random(purpose uint64) *rand.Rand {
	return rand.New(rand.NewPCG(c.seed, purpose))
}

// newMessageCase makes the case of a seed.
func newMessageCase(seed uint64) *messageCase {
	c := &messageCase{seed: seed, typ: ib.QPTypeRC}
	r := c.random(0)
	if r.IntN(6) == 0 {
		c.typ = ib.QPTypeUC
	}
	c.mtu = ib.MTU256 + ib.MTU(r.IntN(5))
	c.reads, c.timeout, c.rnr = 1+r.IntN(5), uint8(8+r.IntN(7)), uint8(1+r.IntN(12))
	c.way = []way{wayShortcut, wayShortcut, wayWatched, wayWire}[r.IntN(4)]
	if c.way == wayWire && r.IntN(2) == 0 {
		c.loss = loss(r.IntN(int(numLosses)))
	}
	for end := range 2 {
		c.direct[end] = r.IntN(2) == 0
		c.tapped[end] = c.way == wayWatched && r.IntN(2) == 0
		c.traced[end] = c.way == wayWatched && r.IntN(2) == 0
	}
	c.late = c.reliable() && r.IntN(3) == 0
	c.fault = messageFaults[r.IntN(len(messageFaults))]
	c.addMessages(r)
	c.chooseVictim(r)
	c.suitVictim(r)
	for i, m := range c.messages {
		c.addElements(r, m, i == c.victim)
	}
	c.addFault(r, c.messages[c.victim])
	return c
}

// addMessages chooses operations and sizes.
func (c *messageCase) addMessages(r *rand.Rand) {
	ops := []ib.WROpcode{
		ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm,
		ib.WRRDMARead, ib.WRRDMARead,
	}
	if !c.reliable() {
		ops = ops[:5]
	}
	at, bytes, packets := messageGuard, 0, 0
	short := r.IntN(2) == 0 // many of them are on their way at once
	for range 1 + r.IntN(maxCaseMessages) {
		m := &message{op: ops[r.IntN(len(ops))], size: randomSize(r, c.mtu.Bytes())}
		if short {
			m.size %= 3 * c.mtu.Bytes()
		}
		if bytes += m.size; bytes > maxCaseBytes {
			break
		}
		m.at = at + r.IntN(5) // any alignment
		m.deliverable = m.size
		at = m.at + m.size + messageGuard
		packets += c.mtu.Packets(uint32(m.size))
		c.messages = append(c.messages, m)
	}
	c.bufLen = at + messageGuard
	c.psn = uint32(1<<24-r.IntN(2*packets+2)) & (1<<24 - 1)
}

// randomSize returns the size of a message: often next to a multiple of the path MTU, or of the length of a READ request.
func randomSize(r *rand.Rand, mtu int) int {
	switch r.IntN(8) {
	case 0:
		return r.IntN(2)
	case 1, 2, 3:
		return (1+r.IntN(6))*mtu + r.IntN(3) - 1
	case 4:
		return (1+r.IntN(3))*transport.ReadChunk + (r.IntN(3)-1)*(1+r.IntN(mtu))
	case 5, 6:
		return r.IntN(100_000)
	}
	return r.IntN(1_300_000)
}

// chooseVictim chooses any message, or the longest one, whose middle takes most of the time.
func (c *messageCase) chooseVictim(r *rand.Rand) {
	c.victim = r.IntN(len(c.messages))
	if r.IntN(2) == 0 {
		return
	}
	for i, m := range c.messages {
		if m.size > c.messages[c.victim].size {
			c.victim = i
		}
	}
}

// suitVictim gives the victim an operation that can have the fault.
func (c *messageCase) suitVictim(r *rand.Rand) {
	rest := c.messages[c.victim:]
	switch m := rest[0]; {
	case c.fault.kind == faultReceive:
		m.op = []ib.WROpcode{ib.WRSend, ib.WRSendWithImm}[r.IntN(2)]
	case c.fault.kind == faultRKey && m.scatters():
		m.op = ib.WRRDMAWrite
	case c.fault == fault{faultHole, 1} && c.reliable() && len(rest) > 1 && r.IntN(2) == 0:
		// The READ may be accepted before the WRITE is stored.
		m.op, rest[1].op = ib.WRRDMAWrite, ib.WRRDMARead
	}
}

// addElements chooses the regions and elements of a message.
func (c *messageCase) addElements(r *rand.Rand, m *message, victim bool) {
	region := func() int {
		if victim {
			return victimRegion
		}
		return r.IntN(victimRegion)
	}
	m.region = region()
	m.elements = c.split(r, m.at, m.size, region)
	if m.scatters() {
		m.receive = c.split(r, m.at, m.size, region)
	}
	m.fence = c.reliable() && r.IntN(8) == 0
	m.inline = !victim && m.op != ib.WRRDMARead && m.size <= inlineBytes && r.IntN(3) == 0
}

const (
	maxCaseElements = 32
	inlineBytes     = 512
)

// split returns the first bytes of a message in elements: some are empty, some end where a packet does, or a few bytes beside
// that, within what padding may be mistaken for.
func (c *messageCase) split(r *rand.Rand, at, size int, region func() int) (list []element) {
	n, mtu := 0, c.mtu.Bytes()
	if r.IntN(3) > 0 {
		n = r.IntN(maxCaseElements)
	}
	for begin := at; len(list) < n; {
		k := 0
		switch r.IntN(4) {
		case 0:
			k = min(size, max(0, mtu-(at-begin)%mtu+mtu*r.IntN(1<<r.IntN(7))+r.IntN(9)-4))
		case 1:
			k = r.IntN(min(size, 2*mtu) + 1)
		case 2:
			k = r.IntN(size + 1)
		}
		list = append(list, element{at: at, size: k, region: region()})
		at, size = at+k, size-k
	}
	return append(list, element{at: at, size: size, region: region()})
}

// addFault adds the faults that a victim has from the start. Where it cannot have one, such as a bad key if the element
// is empty, nothing goes wrong.
func (c *messageCase) addFault(r *rand.Rand, m *message) {
	if m.size == 0 {
		return
	}
	switch c.fault.kind {
	case faultLKey:
		if e := &m.elements[r.IntN(len(m.elements))]; e.size > 0 {
			e.badKey = true
			m.deliverable = e.at - m.at
		}
	case faultRKey:
		m.refuse()
	case faultReceive:
		m.deliverable = r.IntN(m.size)
		m.receive = c.split(r, m.at, m.deliverable, func() int { return victimRegion })
	case faultHole:
		if c.fault.end == 1 && c.victim+1 < len(c.messages) && r.IntN(2) == 0 {
			c.messages[c.victim+1].refuse() // at once: the peer may not know yet that it cannot store the victim
		}
		m.deliverable = r.IntN(m.size)
		from := m.at + m.deliverable
		c.gone = [2]int{from, from + 1 + r.IntN(m.size-m.deliverable)}
	}
}

// refuse makes the peer refuse an RDMA operation by its key.
func (m *message) refuse() {
	if m.size > 0 && !m.scatters() {
		m.badRKey = true
		m.deliverable = 0
	}
}

// outcome returns the statuses with which the first work request that fails may complete; success: none fails. If
// certain is set it is the victim.
func (c *messageCase) outcome() (statuses []ib.WCStatus, certain bool) {
	m := c.messages[c.victim]
	success, here := []ib.WCStatus{ib.WCSuccess}, c.fault.end == 0
	switch kind := c.fault.kind; {
	case (kind == faultLKey || kind == faultHole && here) && m.fails():
		return []ib.WCStatus{ib.WCLocProtErr}, true
	case !c.reliable() && !here:
		return success, false // UC has no NAK
	case kind == faultHole && m.fails() && m.scatters():
		statuses, certain = []ib.WCStatus{ib.WCRemOpErr}, true
	case (kind == faultHole || kind == faultRKey) && m.fails():
		statuses, certain = []ib.WCStatus{ib.WCRemAccessErr}, true
	case kind == faultReceive && m.fails():
		statuses, certain = []ib.WCStatus{ib.WCRemInvReqErr}, true
	case kind == faultDereg && here:
		return append(success, ib.WCLocProtErr), false
	case kind == faultDereg:
		statuses = append(success, ib.WCRemAccessErr, ib.WCRemOpErr)
	case kind == faultError && here:
		return append(success, ib.WCWRFlushErr), false
	case kind == faultError:
		return append(success, ib.WCRetryExcErr), false
	default:
		return success, false
	}
	if c.loss != lossNone {
		// The NAK is sent once. If it is lost, the peer, now in ERR, answers nothing.
		statuses = append(statuses, ib.WCRetryExcErr)
	}
	return statuses, certain
}
