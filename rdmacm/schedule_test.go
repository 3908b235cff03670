package rdmacm

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/rdmacm/msg"
)

var (
	schedules = flag.Int("schedules", 150, "number of random schedules")
	firstSeed = flag.Uint64("seed", 1, "seed of the first schedule")
)

// idHistory records the events of an ID, and the calls of its owner.
type idHistory struct {
	id      *ID
	active  bool
	host    *testHost
	heard   map[EventType]int
	last    EventType
	asked   bool // Connect was called
	done    bool // Complete, Accept or Reject was called, or the owner has ended the connection
	dropped bool
}

// randomSchedule is one run, in which programs connect, accept, reject, wait, disconnect and end at random.
type randomSchedule struct {
	t    *testing.T
	seed uint64
	mu   sync.Mutex
	rand *rand.Rand
	all  []*idHistory
}

func (s *randomSchedule) randomBool(percent int) bool { return s.rand.IntN(100) < percent }

// callLater calls f after a random time, which often is 0.
func (s *randomSchedule) callLater(f func()) {
	d := time.Duration(0)
	switch {
	case s.randomBool(20):
		d = time.Duration(s.rand.IntN(100)) * time.Second
	case s.randomBool(30):
		d = time.Duration(s.rand.IntN(1000)) * time.Millisecond
	}
	time.AfterFunc(d, f)
}

func (s *randomSchedule) errorf(l *idHistory, format string, args ...any) {
	s.t.Errorf("seed %d: %s (active %v, heard %v)", s.seed, fmt.Sprintf(format, args...), l.active, l.heard)
}

func (s *randomSchedule) newHistory(h *testHost, id *ID, active bool) *idHistory {
	l := &idHistory{id: id, active: active, host: h, heard: map[EventType]int{}}
	s.all = append(s.all, l)
	return l
}

// handleEvent processes an event of a life. The caller must not hold s.mu.
func (s *randomSchedule) handleEvent(l *idHistory, e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.dropped {
		return // the event may have been queued already
	}
	l.heard[e.Type]++
	ended := l.heard[Rejected] + l.heard[Unreachable]
	switch {
	case l.heard[DeviceRemoval] > 0 && e.Type != DeviceRemoval:
		s.errorf(l, "event after the removal of the device: got %v, want none", e.Type)
	case e.Type != ConnectRequest && l.heard[e.Type] > 1:
		s.errorf(l, "%v twice", e.Type)
	case ended > 1:
		s.errorf(l, "two ends: %v", e.Type)
	case e.Type == TimewaitExit && l.heard[Disconnected] == 0:
		s.errorf(l, "timewait: got its end before the end of the connection")
	case e.Type == Established && l.heard[Disconnected] > 0:
		s.errorf(l, "established: got it after the disconnection")
	}
	l.last = e.Type
	switch e.Type {
	case ConnectRequest:
		p := s.newHistory(l.host, e.New, false)
		e.New.SetEventFunc(func(_ *ID, e Event) { s.handleEvent(p, e) })
		s.callLater(func() { s.answerRequest(p) })
	case AddrResolved:
		s.callLater(func() { s.callUnlessDropped(l, func() { _ = l.id.ResolveRoute() }) })
	case RouteResolved:
		s.callLater(func() {
			s.callUnlessDropped(l, func() {
				l.asked = true
				_ = l.id.Connect(Param{QPN: s.rand.Uint32N(1 << 24)}, nil)
			})
		})
	case ConnectResponse:
		s.callLater(func() {
			s.callUnlessDropped(l, func() {
				l.done = true
				if s.randomBool(85) {
					_ = l.id.Complete()
				} else {
					_ = l.id.Reject(msg.ReasonConsumer, nil)
				}
			})
		})
	case Disconnected:
		s.callLater(func() { s.callUnlessDropped(l, func() { _ = l.id.Disconnect() }) })
	}
	if s.randomBool(10) {
		s.callLater(func() { s.callUnlessDropped(l, func() { _ = l.id.Disconnect() }) })
	}
	if s.randomBool(5) {
		s.callLater(func() { s.dropID(l) })
	}
}

func (s *randomSchedule) callUnlessDropped(l *idHistory, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !l.dropped {
		f()
	}
}

func (s *randomSchedule) dropID(l *idHistory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !l.dropped {
		l.dropped = true
		l.id.Destroy()
	}
}

func (s *randomSchedule) answerRequest(p *idHistory) {
	s.callUnlessDropped(p, func() {
		p.done = true
		if s.randomBool(85) {
			_ = p.id.Accept(Param{QPN: s.rand.Uint32N(1 << 24)}, nil)
		} else {
			_ = p.id.Reject(msg.ReasonConsumer, nil)
		}
	})
}

// checkFinalState checks the final state.
func (s *randomSchedule) checkFinalState() {
	for _, l := range s.all {
		id := l.id
		over := l.heard[Rejected]+l.heard[Unreachable]+l.heard[Disconnected]+l.heard[DeviceRemoval]+l.heard[AddrError] > 0
		switch {
		case l.dropped, over, id.state == idListening:
		case l.active && !l.asked: // the schedule did not reach the connection
		case l.active && !l.done:
			s.errorf(l, "result of the active side's request: got none, want one")
		case !l.active && !l.done:
			s.errorf(l, "request at the passive side: got none, want one")
		case id.conn == nil:
			// The request was rejected by its own owner.
		case id.conn.Conn.State.String() != "established":
			s.errorf(l, "final state: got %v, want one without a wait", id.conn.Conn.State)
		}
	}
}

func (s *randomSchedule) run(t *testing.T) {
	network := simnet.New(simnet.Config{Latency: 10 * time.Microsecond, Rand: rand.NewPCG(s.seed, 3)})
	if s.randomBool(70) {
		rule := link.Rule{
			Drop: link.Share(0.3 * s.rand.Float64()), Duplicate: link.Share(0.3 * s.rand.Float64()),
			Jitter: time.Duration(s.rand.IntN(3000)) * time.Millisecond,
			Delay:  time.Millisecond, Seed: s.seed,
		}
		if err := network.Faults().Add(rule); err != nil {
			t.Fatal(err)
		}
	}
	a, b := newHost(t, network, "10.0.0.1", Config{}), newHost(t, network, "10.0.0.2", Config{})
	hosts := []*testHost{a, b}
	s.mu.Lock()
	for _, h := range hosts {
		id, err := h.m.NewID(Options{Space: msg.PortSpaceTCP, Type: ib.QPTypeRC})
		h.must(err)
		l := s.newHistory(h, id, false)
		id.SetEventFunc(func(_ *ID, e Event) { s.handleEvent(l, e) })
		h.must(id.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), testPort)))
		h.must(id.Listen(s.rand.IntN(8)))
	}
	for range 1 + s.rand.IntN(8) {
		h := hosts[s.rand.IntN(2)]
		to := hosts[s.rand.IntN(2)] // includes its own host
		s.callLater(func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			id, err := h.m.NewID(Options{Space: msg.PortSpaceTCP, Type: ib.QPTypeRC})
			if err != nil {
				t.Error(err)
				return
			}
			l := s.newHistory(h, id, true)
			id.SetEventFunc(func(_ *ID, e Event) { s.handleEvent(l, e) })
			if err := id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(to.addr, testPort)); err != nil {
				l.heard[AddrError]++ // for the time without a device
			}
		})
	}
	unplug, replug, h := s.randomBool(20), s.randomBool(50), hosts[s.rand.IntN(2)]
	after := time.Duration(s.rand.IntN(100)) * time.Second
	s.mu.Unlock()
	if unplug {
		testutil.AdvanceTime(after)
		h.must(h.slot.Unplug())
		if replug {
			h.must(h.slot.Plug())
		}
	}
	testutil.AdvanceTime(20 * time.Minute)
	s.checkFinalState()
	for _, l := range s.all {
		s.dropID(l)
	}
	testutil.AdvanceTime(10 * time.Minute)
	a.close()
	b.close()
}

// TestSchedules runs random programs over random networks, in virtual time. For many runs, use go test ./rdmacm
// -run Schedules -schedules 10000.
func TestSchedules(t *testing.T) {
	n := *schedules
	if testing.Short() {
		n = min(n, 20)
	}
	for i := range n {
		synctest.Test(t, func(t *testing.T) {
			seed := *firstSeed + uint64(i)
			s := &randomSchedule{t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 1))}
			s.run(t)
		})
		if t.Failed() {
			return
		}
	}
}
