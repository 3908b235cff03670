package transport

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"verbena/roce"
)

// srdLink is a flow with a network in between that loses, repeats and reorders packets, on virtual time.
type srdLink struct {
	t      *testing.T
	rand   *rand.Rand
	now    int64
	snd    SRDSender
	rcv    SRDReceiver
	flying []srdFlying

	loss, duplicate float64
	jitter          int64 // ns
	refuse          func(p *SRDPacket) roce.SRDStatus
	dead            bool
	forgets         bool // the receiver forgets the flow once

	requests map[uint32]SRDRequest
	executed map[uint32][]int // offsets, by request
	order    []uint32         // requests in the order of the execution of their last packets
	ended    map[uint32]roce.SRDStatus
}

type srdFlying struct {
	at int64
	do func()
}

const srdTestMTU = 1024

func newSRDLink(t *testing.T, seed uint64) *srdLink {
	l := &srdLink{t: t, rand: rand.New(rand.NewPCG(seed, 1)), now: 1, requests: map[uint32]SRDRequest{},
		executed: map[uint32][]int{}, ended: map[uint32]roce.SRDStatus{}}
	l.snd.Init(srdTestMTU, l.rand.Uint32())
	l.snd.RNRRetry = RNRForever
	return l
}

func (l *srdLink) post(id uint32, q SRDRequest) {
	l.requests[id] = q
	l.snd.Push(id, q)
}

// travel delivers a packet later, perhaps never or twice.
func (l *srdLink) travel(do func()) {
	if l.dead || l.rand.Float64() < l.loss {
		return
	}
	copies := 1
	if l.rand.Float64() < l.duplicate {
		copies = 2
	}
	for range copies {
		l.flying = append(l.flying, srdFlying{l.now + 1000 + l.rand.Int64N(l.jitter+1), do})
	}
}

func (l *srdLink) ack() {
	var b [SRDBitmapLen]byte
	n := l.rcv.Ack(&b)
	base, bits := l.rcv.PSN(), slices.Clone(b[:n])
	l.travel(func() { l.snd.Acked(base, bits, l.now) })
}

// arrive passes a packet to the receiver.
func (l *srdLink) arrive(p SRDPacket, incarnation bool) {
	if l.forgets && incarnation {
		l.travel(func() { l.snd.Refused(p.PSN, roce.SRDForgotten, l.now) })
		return
	}
	if p.Op == SRDOpOpen {
		if l.forgets || l.rcv == (SRDReceiver{}) {
			l.rcv.Begin(p.PSN)
			l.forgets = false
		}
		l.travel(func() { l.snd.Accepted() })
		return
	}
	if p.Op == SRDOpSkip {
		if status, ok := l.rcv.Skip(p.PSN); ok {
			l.travel(func() { l.snd.Refused(p.PSN, status, l.now) })
		}
		return
	}
	place := l.rcv.Arrive(p.PSN)
	read := p.Op == SRDOpData && l.requests[p.ID].Kind == Read
	switch {
	case place == SRDOutside:
		return
	case place == SRDNew:
		if l.refuse != nil {
			if status := l.refuse(&p); status != roce.SRDSuccess {
				l.travel(func() { l.snd.Refused(p.PSN, status, l.now) })
				return
			}
		}
		l.executed[p.ID] = append(l.executed[p.ID], p.Offset)
		q := l.requests[p.ID]
		if p.Last {
			l.order = append(l.order, p.ID)
			if whole := (max(q.Length, 1) + srdTestMTU - 1) / srdTestMTU; q.Imm && q.Kind == Write &&
				len(l.executed[p.ID]) != whole {
				l.t.Errorf("WRITE with immediate %d: got its last packet after %d, want all %d before", p.ID,
					len(l.executed[p.ID])-1, whole-1)
			}
		}
		l.rcv.Executed(p.PSN)
	}
	if read {
		l.travel(func() {
			if at, ok := l.snd.Response(p.PSN); ok {
				if at.ID != p.ID || at.Offset != p.Offset || at.Length != p.Length {
					l.t.Errorf("response: got the place %+v, want that of %+v", at, p)
				}
				l.snd.Responded(p.PSN, l.now)
			}
		})
		return
	}
	l.ack()
}

// run runs until all requests have ended, or for a time.
func (l *srdLink) run(limit time.Duration) {
	l.t.Helper()
	for l.snd.Len() > 0 && l.now < int64(limit) {
		for {
			p, ok := l.snd.Next()
			if !ok {
				break
			}
			l.snd.Sent(&p, l.now)
			l.travel(func() { l.arrive(p, p.Op != SRDOpOpen) })
		}
		if una, next := l.snd.PSNs(); next.Diff(una) > SRDWindow {
			l.t.Fatalf("window: got %d PSNs, want at most %d", next.Diff(una), SRDWindow)
		}
		at := l.snd.Deadline()
		first := -1
		for i, x := range l.flying {
			if at == 0 || x.at < at {
				at, first = x.at, i
			}
		}
		if at == 0 {
			l.t.Fatalf("%d requests have not ended, and nothing is due", l.snd.Len())
		}
		l.now = max(l.now, at)
		if first >= 0 {
			do := l.flying[first].do
			l.flying = slices.Delete(l.flying, first, first+1)
			do()
		} else {
			l.snd.Expire(l.now)
		}
		for _, r := range l.snd.Results() {
			if status, again := l.ended[r.ID]; again {
				l.t.Errorf("request %d: got ends %v and %v, want one", r.ID, status, r.Status)
			}
			l.ended[r.ID] = r.Status
		}
	}
	if l.snd.Len() > 0 {
		l.t.Fatalf("%d requests have not ended after %v", l.snd.Len(), limit)
	}
}

// checkSuccess checks that all requests have succeeded, with each packet executed once.
func (l *srdLink) checkSuccess() {
	l.t.Helper()
	for id, q := range l.requests {
		if status, ok := l.ended[id]; !ok || status != roce.SRDSuccess {
			l.t.Errorf("request %d: got %v (ended: %t), want success", id, status, ok)
		}
		packets := (max(q.Length, 1) + srdTestMTU - 1) / srdTestMTU
		slices.Sort(l.executed[id])
		for i := range packets {
			if len(l.executed[id]) != packets || l.executed[id][i] != i*srdTestMTU {
				l.t.Errorf("request %d of %d packets: got offsets %v, want each once", id, packets, l.executed[id])
				break
			}
		}
	}
}

// TestSRDSchedules runs random requests over random networks. Each request succeeds, and each packet is executed once.
func TestSRDSchedules(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			l := newSRDLink(t, seed)
			l.loss, l.duplicate = 0.2*l.rand.Float64(), 0.2*l.rand.Float64()
			l.jitter = l.rand.Int64N(int64(3 * time.Millisecond))
			ready := l.rand.Float64()
			if seed%3 == 0 {
				l.refuse = func(*SRDPacket) roce.SRDStatus {
					if l.rand.Float64() > max(ready, 0.3) {
						return roce.SRDNotReady
					}
					return roce.SRDSuccess
				}
			}
			for id := range uint32(l.rand.IntN(400)) {
				q := SRDRequest{Kind: []Kind{Send, Write, Read}[l.rand.IntN(3)]}
				q.Imm = l.rand.IntN(2) == 0 && q.Kind == Write
				if q.Length = l.rand.IntN(srdTestMTU + 1); q.Kind != Send && l.rand.IntN(3) == 0 {
					q.Length = l.rand.IntN(40 * srdTestMTU)
				}
				l.post(id, q)
			}
			l.run(10 * time.Minute)
			l.checkSuccess()
		})
	}
}

// TestSRDFailedAndDelivered tests that a failed SEND is not delivered before or after its end, even by late copies of
// its packet, and that a successful one is delivered once.
func TestSRDFailedAndDelivered(t *testing.T) {
	failed := 0
	for seed := range uint64(400) {
		l := newSRDLink(t, seed)
		l.loss, l.duplicate, l.jitter = 0.1, 0.2, int64(5*time.Millisecond)
		l.snd.RNRRetry = uint8(seed % 4)
		l.refuse = func(*SRDPacket) roce.SRDStatus {
			if l.rand.IntN(2) == 0 {
				return roce.SRDNotReady
			}
			return roce.SRDSuccess
		}
		for id := range uint32(20) {
			l.post(id, SRDRequest{Kind: Send, Length: 8})
		}
		l.run(time.Minute)
		for len(l.flying) > 0 { // late copies
			do := l.flying[0].do
			l.flying = l.flying[1:]
			do()
		}
		for id, status := range l.ended {
			want := 1
			if status != roce.SRDSuccess {
				want = 0
				failed++
			}
			if n := len(l.executed[id]); n != want {
				t.Errorf("seed %d: request %d with %v: got %d deliveries, want %d", seed, id, status, n, want)
			}
		}
	}
	if failed == 0 {
		t.Error("got no failed request")
	}
}

// TestSRDOrder tests that a short message overtakes a long one, and that the seed determines the order.
func TestSRDOrder(t *testing.T) {
	orderOf := func(seed uint64) []uint32 {
		l := newSRDLink(t, seed)
		l.post(0, SRDRequest{Kind: Write, Length: 1 << 20})
		for id := uint32(1); id < 9; id++ {
			l.post(id, SRDRequest{Kind: Send, Length: 8})
		}
		l.run(time.Minute)
		l.checkSuccess()
		return l.order
	}
	a, b := orderOf(1), orderOf(1)
	if !slices.Equal(a, b) {
		t.Errorf("order with one seed: got %v and %v, want the same", a, b)
	}
	if a[len(a)-1] != 0 {
		t.Errorf("order: got %v, want the long request last", a)
	}
	if slices.IsSorted(a[:8]) && slices.IsSorted(orderOf(2)[:8]) {
		t.Errorf("order: got %v, want another order than that of posting", a)
	}
}

// TestSRDFailures tests the statuses of requests that fail, and of the requests behind them.
func TestSRDFailures(t *testing.T) {
	refuses := func(status roce.SRDStatus) func(l *srdLink) {
		return func(l *srdLink) {
			l.refuse = func(p *SRDPacket) roce.SRDStatus {
				if p.ID == 1 {
					return status
				}
				return roce.SRDSuccess
			}
		}
	}
	for name, c := range map[string]struct {
		prepare     func(l *srdLink)
		first, rest roce.SRDStatus
	}{
		"bad address":  {refuses(roce.SRDBadAddress), roce.SRDBadAddress, roce.SRDSuccess},
		"bad length":   {refuses(roce.SRDBadLength), roce.SRDBadLength, roce.SRDSuccess},
		"unknown peer": {refuses(roce.SRDUnknownPeer), roce.SRDUnknownPeer, roce.SRDSuccess},
		"not ready": {func(l *srdLink) {
			refuses(roce.SRDNotReady)(l)
			l.snd.RNRRetry = 3
		}, roce.SRDNotReady, roce.SRDSuccess},
		"no queue pair": {refuses(roce.SRDBadDestQPN), roce.SRDBadDestQPN, roce.SRDBadDestQPN},
		"aborted":       {refuses(roce.SRDAborted), roce.SRDAborted, roce.SRDAborted},
		"never answers": {func(l *srdLink) { l.dead = true }, roce.SRDUnreachable, roce.SRDUnreachable},
		"dies": {func(l *srdLink) {
			l.refuse = func(*SRDPacket) roce.SRDStatus {
				l.dead = true
				return roce.SRDSuccess
			}
		}, roce.SRDUnresponsive, roce.SRDUnresponsive},
		"forgets": {func(l *srdLink) { l.rcv, l.forgets = SRDReceiver{base: 9}, true }, roce.SRDSuccess, roce.SRDSuccess},
	} {
		t.Run(name, func(t *testing.T) {
			l := newSRDLink(t, 1)
			c.prepare(l)
			for id := uint32(1); id < 4; id++ {
				l.post(id, SRDRequest{Kind: Write, Length: 5 * srdTestMTU})
			}
			l.run(time.Minute)
			for id := uint32(1); id < 4; id++ {
				want := c.rest
				if id == 1 {
					want = c.first
				}
				if l.ended[id] != want && name != "dies" ||
					name == "dies" && l.ended[id] != want && l.ended[id] != roce.SRDSuccess {
					t.Errorf("request %d: got %v, want %v", id, l.ended[id], want)
				}
			}
			if name == "not ready" && l.now > int64(100*time.Millisecond) {
				t.Errorf("3 retransmissions: got %v, want at most 100 ms", time.Duration(l.now))
			}
			l.refuse, l.dead = nil, false
			if l.snd.State() == SRDClosed { // the next Open has another identifier
				l.rcv, l.flying = SRDReceiver{}, nil
			}
			l.post(9, SRDRequest{Kind: Send, Length: 1})
			l.run(2 * time.Minute)
			if l.ended[9] != roce.SRDSuccess {
				t.Errorf("later request: got %v, want success", l.ended[9])
			}
		})
	}
}

// FuzzSRDSender calls the sender with answers of any content. See playSRD.
func FuzzSRDSender(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07"))
	f.Add([]byte{0, 4, 200, 1, 1, 2, 0, 1, 255, 3, 0, 5, 4, 0, 2, 5, 0, 0, 1, 6, 9, 9})
	f.Fuzz(playSRD)
}

// TestSRDAnswers is FuzzSRDSender with random input.
func TestSRDAnswers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		in := make([]byte, r.IntN(300))
		for i := range in {
			in[i] = byte(r.Uint32())
		}
		if len(in) > 6 && r.IntN(4) > 0 { // an established flow with packets in flight
			copy(in, []byte{byte(r.IntN(3)) * 8, 255, 1, 1, 2, 1, 255})
		}
		playSRD(t, in)
	}
}

// playSRD calls the sender with answers of any content. The sender keeps its bounds and its counts, and its requests
// end when it fails. A response belongs to a READ that has had none. The failure of a request keeps the packets of
// other requests as they are.
func playSRD(t *testing.T, in []byte) {
	var s SRDSender
	s.Init(256, 1)
	s.RNRRetry = 2
	now := int64(1)
	var kinds []Kind // by the id of the request
	ended := map[uint32]bool{}
	responded := map[roce.PSN]bool{}
	next := func() (b byte) {
		if len(in) > 0 {
			b, in = in[0], in[1:]
		}
		return b
	}
	psn := func() roce.PSN {
		una, _ := s.PSNs()
		return una.Add(int(int8(next())))
	}
	end := func() {
		for _, r := range s.Results() {
			if ended[r.ID] {
				t.Fatalf("request %d: got two ends, want one", r.ID)
			}
			ended[r.ID] = true
		}
	}
	for steps := 0; len(in) > 0 && steps < 500; steps++ {
		switch op := next(); op % 8 {
		case 0:
			kind := []Kind{Send, Write, Read}[op/8%3]
			s.Push(uint32(len(kinds)), SRDRequest{Kind: kind, Length: int(next()) * 8, Imm: op&64 != 0})
			kinds = append(kinds, kind)
		case 1:
			for range next() {
				if p, ok := s.Next(); ok {
					s.Sent(&p, now)
				}
			}
		case 2:
			s.Accepted()
		case 3:
			at := psn()
			n := min(int(next())%(SRDBitmapLen+4), len(in))
			s.Acked(at, in[:n], now)
		case 4:
			s.Refused(psn(), roce.SRDStatus(next()%16), now)
		case 5:
			now += int64(next()) * int64(time.Millisecond)
			s.Expire(now)
		case 6:
			at := psn()
			if p, ok := s.Response(at); ok {
				if p.Op != SRDOpData || kinds[p.ID] != Read || responded[at] {
					t.Fatalf("response to PSN %v: got the place %+v of a %v, want one of a READ without a response", at, p,
						kinds[p.ID])
				}
				if op&8 == 0 {
					responded[at] = true
					s.Responded(at, now)
				}
			}
		case 7:
			failPacket(t, &s, psn())
		}
		end()
		una, last := s.PSNs()
		if n := last.Diff(una); n < 0 || n > SRDWindow || s.Len() != len(kinds)-len(ended) {
			t.Fatalf("got %d PSNs and %d requests, want at most %d and %d", n, s.Len(), SRDWindow, len(kinds)-len(ended))
		}
		checkSRDCounts(t, &s)
	}
	s.Fail(roce.SRDAborted)
	if end(); len(ended) != len(kinds) || !s.Idle() {
		t.Fatalf("got %d ends of %d requests", len(ended), len(kinds))
	}
	checkSRDCounts(t, &s)
}

// failPacket calls FailPacket, and checks that the packets of other requests keep their states.
func failPacket(t *testing.T, s *SRDSender, psn roce.PSN) {
	before := slices.Clone(s.slots)
	s.FailPacket(psn)
	for at := s.una; at != s.next; at = at.Next() {
		i := uint32(at) & uint32(len(before)-1)
		if k := s.slot(at); k.msg != s.slot(psn).msg && *k != before[i] {
			t.Fatalf("packet %v of another request than the failed one: got %+v, want %+v", at, *k, before[i])
		}
	}
}

// checkSRDCounts compares the counts of the sender with its slots.
func checkSRDCounts(t *testing.T, s *SRDSender) {
	t.Helper()
	out, due, waiting := 0, 0, 0
	open := make([]int32, len(s.msgs))
	for psn := s.una; psn != s.next; psn = psn.Next() {
		k := s.slot(psn)
		switch k.state {
		case srdInFlight:
			out += s.cost(k)
		case srdDue:
			due++
		case srdWaiting:
			waiting++
		}
		if k.msg != noMessage && k.state != srdAcked {
			open[k.msg]++
		}
	}
	if got, _ := s.InFlight(); got != out || s.due != due {
		t.Fatalf("got %d bytes in flight and %d packets to send again, want %d and %d", got, s.due, out, due)
	}
	if s.waiting != waiting || waiting > 0 && s.retryAt == 0 && !s.pending {
		t.Fatalf("got %d waiting packets, with a probe at %d, want %d and a probe", s.waiting, s.retryAt, waiting)
	}
	for i := range s.msgs {
		if m := &s.msgs[i]; m.used && m.open != open[i] {
			t.Fatalf("request %d: got %d packets without an acknowledgement, want %d", m.id, m.open, open[i])
		}
	}
}

// TestSRDMeasure tests the smoothed time until an acknowledgement and its variation.
func TestSRDMeasure(t *testing.T) {
	var s SRDSender
	for i, x := range []struct{ sample, rtt, rttvar int64 }{
		{800, 800, 400}, {1600, 900, 500}, {500, 850, 475}, {850, 850, 357},
	} {
		if s.measure(x.sample); s.rtt != x.rtt || s.rttvar != x.rttvar {
			t.Errorf("sample %d: got %d and %d, want %d and %d", i, s.rtt, s.rttvar, x.rtt, x.rttvar)
		}
	}
}

// TestRandom compares the sequence of a seed with that of the published algorithm.
func TestRandom(t *testing.T) {
	r := NewRandom(1)
	for i, want := range []uint32{270369, 67634689, 2647435461, 307599695} {
		if got := r.Next(); got != want {
			t.Errorf("number %d: got %d, want %d", i, got, want)
		}
	}
}

// TestSRDTrim tests that a flow whose memory was freed works, and that results have the time of the first packet.
func TestSRDTrim(t *testing.T) {
	var s SRDSender
	s.Init(srdTestMTU, 1)
	for i := range uint32(3) {
		s.Push(i, SRDRequest{Kind: Send, Length: 8})
		now := int64(i+1) * int64(time.Second)
		for {
			p, ok := s.Next()
			if !ok {
				break
			}
			s.Sent(&p, now)
			if p.Op == SRDOpOpen {
				s.Accepted()
			}
		}
		_, next := s.PSNs()
		s.Acked(next, nil, now+1)
		if r := s.Results(); len(r) != 1 || r[0].ID != i || r[0].Status != roce.SRDSuccess || r[0].Began != now {
			t.Errorf("request %d: got %+v, want success with the begin %d", i, r, now)
		}
		if !s.Idle() {
			t.Errorf("after request %d: got a flow in use, want an idle one", i)
		}
		s.Trim()
	}
}

// TestSRDRetriesTogether tests that messages to a peer without receives fail together, after the time that the retries
// of a single message take, and that the flow sends one probe for all of them.
func TestSRDRetriesTogether(t *testing.T) {
	const messages, retries = 20, 3
	l := newSRDLink(t, 1)
	l.snd.RNRRetry = retries
	data := 0
	l.refuse = func(p *SRDPacket) roce.SRDStatus {
		data++
		return roce.SRDNotReady
	}
	for id := range uint32(messages) {
		l.post(id, SRDRequest{Kind: Send, Length: 8})
	}
	l.run(time.Second)
	for id, status := range l.ended {
		if status != roce.SRDNotReady {
			t.Errorf("message %d: got %v, want %v", id, status, roce.SRDNotReady)
		}
	}
	if data != messages+retries {
		t.Errorf("packets with data: got %d, want %d", data, messages+retries)
	}
	if least := srdRNRWait * (1<<retries - 1); l.now < least || l.now > least+srdRNRWait {
		t.Errorf("end of the messages: got it after %v, want %v", time.Duration(l.now), time.Duration(least))
	}
}

// TestSRDReleasesWaiting tests that each message that a peer executes sends two waiting ones, and that a peer with few
// receives refuses few packets.
func TestSRDReleasesWaiting(t *testing.T) {
	const messages = 200
	l := newSRDLink(t, 1)
	receives, refused := 0, 0
	l.refuse = func(p *SRDPacket) roce.SRDStatus {
		if receives == 0 {
			refused++
			return roce.SRDNotReady
		}
		receives--
		return roce.SRDSuccess
	}
	for id := range uint32(messages) {
		l.post(id, SRDRequest{Kind: Send, Length: 8})
	}
	post := func(at time.Duration, n int) {
		l.flying = append(l.flying, srdFlying{int64(at), func() { receives += n }})
	}
	for i := range 10 {
		post(time.Duration(i+1)*100*time.Millisecond, 5)
	}
	post(2*time.Second, messages)
	l.run(3 * time.Second)
	l.checkSuccess()
	// n executed messages release 2n others. The peer executes n of them and of the first probe, and refuses n+1.
	if most := messages + 10*(5+1+srdRNRDoublings+1); refused > most {
		t.Errorf("refused packets: got %d, want at most %d", refused, most)
	}
	if end := time.Duration(l.now); end > 2*time.Second+150*time.Millisecond {
		t.Errorf("end of the messages: got it after %v, want 2.15 s", end)
	}
}

// TestSRDProbeGap tests the number of packets to a peer that does not answer, with and without a gap between probes.
// The gap applies after srdEager timeouts, or at once if the peer counted as dead before. The requests end with the
// same status after the same time.
func TestSRDProbeGap(t *testing.T) {
	const gap = srdMaxGap / 2
	for _, c := range []struct {
		gap           int64
		first, second int // packets of the requests, which are posted one after the other
	}{
		{0, srdTimeouts + 1, srdTimeouts + 1},
		{srdMinTimeout, srdTimeouts + 1, srdTimeouts + 1},
		{gap, 1 + srdEager + 3, 1 + 4},
		{4 * srdMaxGap, 1 + srdEager + 2, 1 + 2},
	} {
		for _, established := range []bool{false, true} {
			var s SRDSender
			s.Init(srdTestMTU, 1)
			s.ProbeGap = c.gap
			now := int64(1)
			if established {
				s.Push(0, SRDRequest{Kind: Send})
				for range 2 {
					p, _ := s.Next()
					s.Sent(&p, now)
					s.Accepted()
				}
				s.Acked(s.next, nil, now)
				s.Results()
			}
			for i, want := range []int{c.first, c.second} {
				began, sent := now, 0
				var r []SRDResult
				for s.Push(1, SRDRequest{Kind: Send}); len(r) == 0; r = s.Results() {
					for p, ok := s.Next(); ok; p, ok = s.Next() {
						s.Sent(&p, now)
						sent++
					}
					now = s.Deadline()
					s.Expire(now)
				}
				if sent != want || r[0].Attempts != want {
					t.Errorf("request %d, gap %v, established %t: got %d packets and %d attempts, want %d", i+1,
						time.Duration(c.gap), established, sent, r[0].Attempts, want)
				}
				status := roce.SRDUnreachable
				if established {
					status = roce.SRDUnresponsive
				}
				if d := time.Duration(now - began); r[0].Status != status || d != 4604*time.Millisecond {
					t.Errorf("request %d, gap %v: got %v after %v, want %v after 4.604 s", i+1, time.Duration(c.gap),
						r[0].Status, d, status)
				}
			}
			s.Push(2, SRDRequest{Kind: Send})
			p, _ := s.Next()
			s.Sent(&p, now)
			if s.Accepted(); s.dead {
				t.Error("peer after an Accept: got a dead one")
			}
		}
	}
}

// newOpenFlow returns a flow that the peer has accepted, with SENDs of 100 bytes that were not sent.
func newOpenFlow(sends uint32) *SRDSender {
	s := &SRDSender{}
	s.Init(srdTestMTU, 1)
	s.RNRRetry = RNRForever
	for id := range sends {
		s.Push(id, SRDRequest{Kind: Send, Length: 100})
	}
	if p, ok := s.Next(); ok {
		s.Sent(&p, 1)
		s.Accepted()
	}
	return s
}

// sendNext sends the next packet of a flow, which must have one.
func sendNext(t *testing.T, s *SRDSender, now int64) SRDPacket {
	t.Helper()
	p, ok := s.Next()
	if !ok {
		t.Fatal("Next: got no packet, want one")
	}
	s.Sent(&p, now)
	return p
}

// TestSRDWindow tests that a flow sends packets without an acknowledgement until its window is full.
func TestSRDWindow(t *testing.T) {
	const cost = PacketCost + 100
	s := newOpenFlow(SRDWindow)
	n := 0
	for p, ok := s.Next(); ok; p, ok = s.Next() {
		s.Sent(&p, 1)
		n++
	}
	if bytes, window := s.InFlight(); bytes != n*cost || n != min(window/cost, SRDWindow) || n < 2 {
		t.Errorf("packets without an acknowledgement: got %d of %d bytes, want a window of %d bytes", n, bytes, window)
	}
}

// TestSRDTimesOutAlone tests that a timeout concerns the packets that were sent long enough ago only.
func TestSRDTimesOutAlone(t *testing.T) {
	s := newOpenFlow(2)
	first := sendNext(t, s, 1)
	sendNext(t, s, 1+srdMinTimeout/2)
	if !s.Expire(1 + srdMinTimeout) {
		t.Error("Expire: got no timeout, want one")
	}
	if bytes, _ := s.InFlight(); bytes != PacketCost+100 {
		t.Errorf("in flight: got %d bytes, want those of the second packet", bytes)
	}
	if p := sendNext(t, s, 1+srdMinTimeout); p.PSN != first.PSN || !p.Again {
		t.Errorf("packet after the timeout: got %+v, want the first one again", p)
	}
}

// TestSRDOutside tests which PSNs a receiver takes for new ones, for copies, and for those of no sender.
func TestSRDOutside(t *testing.T) {
	const base = 1000
	var r SRDReceiver
	r.Begin(base)
	for d, want := range map[int]SRDArrival{
		0: SRDNew, SRDWindow - 1: SRDNew, SRDWindow: SRDOutside,
		-1: SRDAgain, -SRDWindow: SRDAgain, -SRDWindow - 1: SRDOutside,
	} {
		if got := r.Arrive(roce.PSN(base).Add(d)); got != want {
			t.Errorf("PSN %+d: got %d, want %d", d, got, want)
		}
	}
}

// TestSRDFailedEarly tests that a request that fails before its last packet sends only Skips for the packets that were
// sent.
func TestSRDFailedEarly(t *testing.T) {
	s := newOpenFlow(0)
	s.Push(0, SRDRequest{Kind: Write, Length: 10 * srdTestMTU})
	p := sendNext(t, s, 1) // the Open
	s.Accepted()
	if p.Op != SRDOpOpen {
		t.Fatalf("first packet: got %+v, want an Open", p)
	}
	first, second := sendNext(t, s, 1), sendNext(t, s, 1)
	s.Refused(first.PSN, roce.SRDBadAddress, 1)
	for _, psn := range []roce.PSN{first.PSN, second.PSN} {
		if p := sendNext(t, s, 1); p.Op != SRDOpSkip || p.PSN != psn {
			t.Errorf("packet after the refusal: got %+v, want a Skip of %d", p, psn)
		}
	}
	if p, ok := s.Next(); ok {
		t.Errorf("packet after the Skips: got %+v, want none", p)
	}
}

// TestSRDTakesReceive tests which packets take a receive.
func TestSRDTakesReceive(t *testing.T) {
	for i, c := range []struct {
		q     SRDRequest
		index int32
		want  bool
	}{
		{SRDRequest{Kind: Send}, 0, true}, {SRDRequest{Kind: Read}, 2, false}, {SRDRequest{Kind: Write}, 2, false},
		{SRDRequest{Kind: Write, Imm: true}, 1, false}, {SRDRequest{Kind: Write, Imm: true}, 2, true},
	} {
		m := srdMessage{SRDRequest: c.q, packets: 3}
		if got := m.takesReceive(c.index); got != c.want {
			t.Errorf("case %d: got %t, want %t", i, got, c.want)
		}
	}
}

// TestSRDAnswered tests that an answer ends the count of timeouts, and that the timeout follows the round-trip time.
func TestSRDAnswered(t *testing.T) {
	s := newOpenFlow(1)
	sendNext(t, s, 1)
	s.silent, s.skipped, s.repeated = 3, 2, 5
	s.Acked(s.next, nil, 1+10*srdMinTimeout)
	if s.silent != 0 || s.skipped != 0 || s.repeated != 0 {
		t.Errorf("after an answer: got %d timeouts, %d skipped, and a probe at %d, want none", s.silent, s.skipped, s.repeated)
	}
	if want := 10*srdMinTimeout + 4*5*srdMinTimeout; s.timeout != want { // the deviation is half of the first sample
		t.Errorf("timeout: got %v, want %v", time.Duration(s.timeout), time.Duration(want))
	}
}

// TestSRDResendsBefore tests that a packet is sent again when a packet srdGap later is acknowledged, and not before.
func TestSRDResendsBefore(t *testing.T) {
	for later, want := range map[int]bool{srdGap - 1: false, srdGap: true} {
		s := newOpenFlow(SRDWindow)
		first := sendNext(t, s, 1)
		for range later {
			sendNext(t, s, 1)
		}
		var bitmap [SRDBitmapLen]byte
		bitmap[(later-1)/8] = 1 << ((later - 1) % 8)
		s.Acked(first.PSN, bitmap[:], 1)
		p, ok := s.Next()
		if got := ok && p.Again && p.PSN == first.PSN; got != want {
			t.Errorf("acknowledgement of the packet %d later: got %+v, want the first packet again: %t", later, p, want)
		}
	}
}

// TestSRDProbeStaysPending tests that the acknowledgement of another packet does not end the probe.
func TestSRDProbeStaysPending(t *testing.T) {
	s := newOpenFlow(2)
	first := sendNext(t, s, 1)
	sendNext(t, s, 1)
	s.Refused(first.PSN, roce.SRDNotReady, 1)
	now := s.retryAt
	s.Expire(now)
	if p := sendNext(t, s, now); p.PSN != first.PSN {
		t.Fatalf("probe: got %+v, want the refused packet", p)
	}
	s.Acked(first.PSN, []byte{1}, now)
	if !s.pending {
		t.Error("probe after the acknowledgement of another packet: got none, want one")
	}
}
