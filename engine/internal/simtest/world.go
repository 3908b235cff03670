package simtest

import (
	"encoding/binary"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"verbena/driver/rxe/layout"
	"verbena/engine"
	"verbena/ib"
	"verbena/internal/clock"
	"verbena/link/stepnet"
	"verbena/netdev"
	"verbena/roce"
	"verbena/umem"
)

// Service is a transport service.
type Service uint8

// The services.
const (
	RC Service = iota
	UC
	UD
	XRC
)

func (s Service) String() string { return [...]string{"RC", "UC", "UD", "XRC"}[s] }

func (s Service) reliable() bool { return s == RC || s == XRC }

// Report holds the results of a schedule.
type Report struct {
	Trace    uint64 // hash of all packets and completions with their times
	Network  string
	Packets  int
	Lost     int
	Statuses map[ib.WCStatus]int // number of work requests by status
	Stats    map[string]uint64   // sums of the counters of both devices
	Virtual  time.Duration
}

// Run plays the schedule of a seed. The error describes the first violated guarantee. If log is not nil, Run writes a
// line to it for each action and event.
func Run(s Service, seed uint64, log io.Writer) (rep Report, err error) {
	w := newWorld(s, seed, log)
	defer w.failed(seed, &err)
	w.build()
	w.play()
	w.finish()
	rep = Report{Trace: w.hash.Sum64(), Network: w.profile.name, Packets: w.net.Sent, Lost: w.lost, Statuses: w.statuses, Virtual: w.now()}
	rep.Stats = map[string]uint64{}
	for _, h := range w.hosts {
		for name, n := range h.dev.Stats() {
			rep.Stats[name] += n
		}
	}
	return rep, nil
}

func newWorld(s Service, seed uint64, log io.Writer) *world {
	return &world{
		service: s, rng: rand.New(rand.NewPCG(seed, uint64(s))), log: log, hash: fnv.New64a(),
		byID: map[uint64]any{}, copies: map[copyKey]int{}, statuses: map[ib.WCStatus]int{},
	}
}

// failed returns the error of a violated guarantee. It must be deferred directly.
func (w *world) failed(seed uint64, err *error) {
	if r := recover(); r != nil {
		f, ok := r.(failure)
		if !ok {
			panic(r)
		}
		*err = fmt.Errorf("%v seed %d at %v: %s (network %s)", w.service, seed, w.now(), string(f), &w.profile)
	}
}

// failure describes a violated guarantee.
type failure string

func (w *world) failf(format string, args ...any) {
	if w.log != nil {
		for i, h := range w.hosts {
			w.note("counters of host %d: %v", i, h.dev.Stats())
		}
		for _, e := range w.ends {
			w.note("qp %d: %v, attributes %+v, events %v", e.qp.Num(), e.qp.State(), e.attributes, e.events)
			w.noteTrace(e)
		}
	}
	panic(failure(fmt.Sprintf(format, args...)))
}

// noteTrace logs the latest protocol events of a queue pair.
func (w *world) noteTrace(e *end) {
	t, err := e.host.dev.QPTrace(e.qp.Num())
	if err != nil {
		w.note("%v", err)
	}
	for _, v := range t.Events {
		w.note("qp %d: trace: %v %v", e.qp.Num(), v.Time.Sub(w.start), v)
	}
}

func (w *world) check(err error) {
	if err != nil {
		w.failf("%v", err)
	}
}

type world struct {
	service Service
	profile profile
	rng     *rand.Rand
	log     io.Writer
	hash    hash.Hash64

	core  ib.Core
	clock *clock.Virtual
	start time.Time
	net   *stepnet.Net
	hosts [2]*host
	ends  []*end
	boxes []*inbox

	byID     map[uint64]any  // *request or *receive
	copies   map[copyKey]int // number of copies of a packet that the network delivers
	last     map[netip.Addr]time.Duration
	lost     int
	broken   string // guarantee that a packet violated during a call of the engine; "": none
	statuses map[ib.WCStatus]int
	final    bool // all planned events have happened; the queue pairs are taken to ERR

	// Only for Travel.
	way    Way
	ways   *rand.Rand
	fabric *engine.Fabric
	out    *Outcome
}

// copyKey identifies a packet by host and queue pair of the destination, and PSN.
type copyKey struct {
	dst      netip.Addr
	qpn, psn uint32
}

// host is a device with its consumer.
type host struct {
	w      *world
	dev    *engine.Device
	addr   netip.Addr
	pd     *ib.PD
	xrcd   *ib.XRCD // XRC
	shares *inbox   // receive queue of all ends; nil: each end has its own
	sendCQ *watched
	recvCQ *watched // may be the same
	arena  []byte
	used   []bool // bytes of arena that belong to a work request
	shared *word  // target of the fetch-and-adds of all queue pairs
	mem    *umem.Local
	base   uint64 // address of arena in mem
	mr     *ib.MR
}

// watched is a completion queue with the actual and the expected calls of its handler.
type watched struct {
	cq       *ib.CQ
	armed    ib.NotifyFlags
	expected int
	calls    int
}

const (
	iova      = 0x10_0000
	guard     = 16
	unused    = 0xa5 // fills memory that belongs to no work request
	givenBack = 0xc3 // fills memory that a consumer reuses after a completion
	grhLen    = 40
	maxInline = 64
	qkey      = 0x01020304
)

// alloc allocates memory for a work request.
func (h *host) alloc(n int) span {
	at := (len(h.arena) + 7) &^ 7
	for len(h.arena) < at+n+guard {
		h.arena = append(h.arena, unused)
		h.used = append(h.used, len(h.used) >= at && len(h.used) < at+n)
	}
	return span{at, n}
}

func (h *host) at(s span) []byte { return h.arena[s.at : s.at+s.n] }

func (h *host) put(at int, v uint64) { binary.NativeEndian.PutUint64(h.arena[at:], v) }

func (h *host) word(at int) uint64 { return binary.NativeEndian.Uint64(h.arena[at:]) }

// giveBack makes the consumer reuse memory.
func (h *host) giveBack(s span) { fillWith(h.at(s), givenBack) }

func fillWith(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// bytes returns random contents of a message.
func (w *world) bytes(n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 8 {
		var v [8]byte
		binary.NativeEndian.PutUint64(v[:], w.rng.Uint64())
		copy(b[i:], v[:])
	}
	return b
}

func (w *world) now() time.Duration { return w.clock.Now().Sub(w.start) }

// note adds a line to the log.
//
//verbena:allow nosleep a simulation has nobody who waits
func (w *world) note(format string, args ...any) {
	if w.log != nil {
		fmt.Fprintf(w.log, "%v "+format+"\n", append([]any{w.now()}, args...)...)
	}
}

func (w *world) trace(v ...uint64) {
	var b [8]byte
	for _, x := range append(v, uint64(w.now())) {
		binary.LittleEndian.PutUint64(b[:], x)
		w.hash.Write(b[:])
	}
}

// build creates the devices and queue pairs, and plans the work requests.
func (w *world) build() {
	w.start = time.Unix(1<<30, 0)
	w.clock = clock.NewVirtual(w.start)
	w.net = stepnet.New(w.clock)
	w.net.Route, w.net.Full = w.route, func(netip.Addr) bool { return w.rng.Float64() < w.profile.full }
	w.last = map[netip.Addr]time.Duration{}
	if w.profile = makeProfile(w.rng); w.travels() {
		w.profile = profile{name: "perfect", latency: w.profile.latency, batch: w.profile.batch, budget: -1}
	}
	addrs := [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	if w.rng.IntN(3) == 0 {
		addrs = [2]netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")}
	}
	for i := range w.hosts {
		w.hosts[i] = w.newHost(i, addrs[i])
	}
	pairs := 1 + w.rng.IntN(3)
	if w.travels() {
		pairs = 1
	}
	for range pairs {
		w.newPair()
	}
	for _, e := range w.ends {
		e.makeRequests(1 + w.rng.IntN(24))
	}
	for _, e := range w.ends {
		if w.rng.IntN(8) == 0 {
			e.breakOne()
		}
	}
	for _, in := range w.boxes {
		in.makeReceives()
	}
	for _, e := range w.ends {
		e.requests[len(e.requests)-1].flags |= ib.SendSignaled
	}
	for _, h := range w.hosts {
		h.register()
	}
	for _, in := range w.boxes {
		in.create()
	}
	for _, e := range w.ends {
		e.create()
	}
	for _, e := range w.ends {
		e.connect()
		e.schedule()
	}
	for _, e := range w.ends {
		e.lend()
	}
	for _, in := range w.boxes {
		in.schedule()
	}
	w.note("network %s", &w.profile)
}

func (w *world) newHost(i int, addr netip.Addr) *host {
	h := &host{w: w, addr: addr}
	h.alloc(0)
	h.shared = &word{at: h.alloc(8).at, shared: true}
	var err error
	h.dev, err = engine.New(engine.Config{
		Layout: layout.Layout{},
		Name:   fmt.Sprintf("rxe%d", i), Addrs: []netip.Addr{addr}, Network: w.net, Clock: w.clock,
		Rand: rand.New(rand.NewPCG(w.rng.Uint64(), 1)), Fabric: w.fabric,
		Netdev: netdev.Interface{Name: "eth0", Index: 2, MAC: []byte{2, 0, 0, 0, 0, byte(i)}, MTU: 9000, Up: true, Running: true},
	})
	w.check(err)
	w.check(w.core.Register(h.dev.Handle()))
	h.pd, err = h.dev.IB().AllocPD()
	w.check(err)
	if w.service == XRC {
		h.xrcd, err = h.dev.IB().AllocXRCD()
		w.check(err)
	}
	if w.rng.IntN(3) == 0 {
		h.shares = w.newInbox(h)
	}
	h.sendCQ = h.newCQ()
	if h.recvCQ = h.sendCQ; w.rng.IntN(2) == 0 {
		h.recvCQ = h.newCQ()
	}
	h.put(h.shared.at, 0)
	return h
}

func (h *host) newCQ() *watched {
	q := &watched{}
	var err error
	q.cq, err = h.dev.IB().CreateCQ(ib.CQInit{Entries: 1000, Handler: func(*ib.CQ) { q.calls++ }})
	h.w.check(err)
	return q
}

// hostAccess holds the access rights to the memory of a host.
const hostAccess = ib.AccessLocalWrite | ib.AccessRemoteRead | ib.AccessRemoteWrite | ib.AccessRemoteAtomic | ib.AccessFlushGlobal | ib.AccessMWBind

func (h *host) register() {
	h.mem = umem.NewLocal()
	var err error
	h.base, err = h.mem.Add(h.arena)
	h.w.check(err)
	h.mr, err = h.pd.RegMR(ib.MRInit{Space: h.mem, Addr: h.base, Length: uint64(len(h.arena)), IOVA: iova, Access: hostAccess})
	h.w.check(err)
}

// route decides the outcome of a packet.
func (w *world) route(p *stepnet.Packet) {
	r, f := w.rng, &w.profile
	bth := roce.BTH(p.Data)
	w.trace(uint64(bth.Opcode())<<56|uint64(bth.PSN())<<32|uint64(bth.DestQPN()), uint64(len(p.Data)))
	if !w.service.reliable() && bth.Opcode().Has(roce.FlagEnds) {
		for _, e := range w.ends {
			if e.peer.rqp.Num() == bth.DestQPN() && e.peer.host.addr == p.Dst {
				e.lasts = append(e.lasts, uint32(bth.PSN()))
			}
		}
	}
	w.watch(p)
	now := w.now()
	lost := r.Float64() < f.drop
	for _, o := range f.outages {
		lost = lost || now >= o.from && now < o.to
	}
	if lost && f.budget != 0 {
		w.note("  lost: %v psn %d to qp %d", bth.Opcode(), bth.PSN(), bth.DestQPN())
		w.lost++
		if f.budget > 0 {
			f.budget--
		}
		return
	}
	w.note("  sent: %v psn %d to qp %d, %d bytes, ackreq %t", bth.Opcode(), bth.PSN(), bth.DestQPN(), len(p.Data), bth.AckReq())
	copies := 1
	for r.Float64() < f.duplicate && copies < 4 {
		copies++
	}
	if bit := r.IntN(8 * len(p.Data)); r.Float64() < f.corrupt {
		p.Data[bit/8] ^= 1 << (bit % 8)
		if bit/8 != 4 { // the ICRC does not cover this byte
			w.note("  damaged: psn %d", bth.PSN())
			w.lost++
			p.Arrive(f.latency)
			return
		}
	}
	w.copies[copyKey{p.Dst, bth.DestQPN(), uint32(bth.PSN())}] += copies
	for range copies {
		at := max(now+f.latency, w.last[p.Dst])
		if r.Float64() >= f.batch {
			at++
		}
		w.last[p.Dst] = at
		if r.Float64() < f.reorder {
			at += time.Duration(r.Int64N(int64(5 * f.latency)))
		}
		if r.Float64() < f.spike {
			at += time.Duration(r.Int64N(int64(30 * time.Millisecond)))
		}
		p.Arrive(at - now)
	}
}

// mostSteps limits the number of steps of a schedule. More steps are a livelock.
const mostSteps = 500_000

// alone calls f, and then runs the callbacks of f on this thread. Otherwise a worker of the midlayer would run them at
// an unspecified time.
func (w *world) alone(f func()) {
	for _, h := range w.hosts {
		h.dev.Handle().HoldCallbacks()
	}
	f()
	if w.broken != "" {
		w.failf("%s", w.broken)
	}
	for _, h := range w.hosts {
		h.dev.Handle().RunCallbacks()
	}
}

// play executes all pending events.
func (w *world) play() {
	more := true
	for step := 0; more; step++ {
		w.alone(func() { more = w.clock.Step() })
		w.poll()
		if step == mostSteps {
			w.failf("there is no end of events")
		}
	}
}

// poll processes the completions, and arms the queues again.
func (w *world) poll() {
	for _, h := range w.hosts {
		h.sendCQ.poll(w)
		if h.recvCQ != h.sendCQ {
			h.recvCQ.poll(w)
		}
	}
	for _, e := range w.ends {
		if e.flushed && !e.broken() {
			w.failf("qp %d flushes without a reason", e.qp.Num())
		}
		e.flushed = false
	}
}

func (q *watched) poll(w *world) {
	var room [16]ib.WC
	wc := room[:]
	if w.travels() {
		wc = room[:1] // see effect
	}
	for {
		n, err := q.cq.Poll(wc)
		w.check(err)
		for i := range wc[:n] {
			solicited := w.completed(&wc[i])
			if q.armed&ib.NotifyNextComp != 0 || q.armed != 0 && (solicited || wc[i].Status != ib.WCSuccess) {
				q.armed = 0
				q.expected++
			}
		}
		if n == 0 {
			break
		}
	}
	if n := q.calls; n != q.expected {
		w.failf("the handler of a completion queue was called %d times instead of %d", n, q.expected)
	}
	if q.armed == 0 && w.rng.IntN(4) == 0 {
		q.armed = []ib.NotifyFlags{ib.NotifyNextComp, ib.NotifySolicited}[w.rng.IntN(2)]
		missed, err := q.cq.ReqNotify(q.armed | ib.NotifyReportMissed)
		w.check(err)
		if missed {
			w.failf("a completion queue that was just emptied is not empty")
		}
	}
}

// finish takes the queue pairs to ERR, and checks the final state.
func (w *world) finish() {
	for _, e := range w.ends {
		e.quiet()
	}
	if w.profile.perfect() && !(w.way == Changing && w.overtakes()) && !slices.ContainsFunc(w.ends, (*end).broken) {
		for _, h := range w.hosts {
			s := h.dev.Stats()
			for _, name := range []string{"duplicate_request", "out_of_seq_request", "rcvd_seq_err", "completer_retry_err", "send_err"} {
				if s[name] != 0 {
					w.failf("%s is %d on a perfect network", name, s[name])
				}
			}
		}
	}
	w.final = true
	for _, e := range w.ends {
		w.alone(e.toErr)
		w.poll()
	}
	w.play()
	for _, e := range w.ends {
		e.over()
	}
	for _, in := range w.boxes {
		in.over()
	}
	for _, h := range w.hosts {
		for i, b := range h.arena {
			if !h.used[i] && b != unused {
				w.failf("byte %d of a host's memory, which belongs to nothing, was written", i)
			}
		}
	}
	for _, e := range w.ends {
		w.check(e.destroy())
	}
	for _, in := range w.boxes {
		if in.srq != nil {
			w.check(in.srq.Destroy())
		}
	}
	for _, h := range w.hosts {
		if h.xrcd != nil {
			w.check(h.xrcd.Dealloc())
		}
		w.check(h.mr.Dereg())
		w.check(h.sendCQ.cq.Destroy())
		if h.recvCQ != h.sendCQ {
			w.check(h.recvCQ.cq.Destroy())
		}
		w.check(h.pd.Dealloc())
		w.check(w.core.Unregister(h.dev.Handle()))
		w.check(h.dev.Close())
	}
}
