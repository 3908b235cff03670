package relay

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"verbena/driver/loopback"
	"verbena/driver/rxe/layout"
	"verbena/engine/queue"
	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/weak"
	"verbena/internal/gate"
	"verbena/uapi"
	"verbena/umem"
)

var ibuser = ib.ForUser(gate.NewKey())

// guest is a user context.
type guest struct {
	weak   *weak.Config
	checks *check.ProgramConfig
	end    uint64
}

func (g *guest) AllocShared(size int) (ib.Shared, error) {
	page := os.Getpagesize()
	n := (size + page - 1) / page * page
	s := ib.Shared{Mem: make([]byte, n), Offset: g.end, Free: func() {}}
	g.end += uint64(n)
	return s, nil
}

func (g *guest) WeakConfig() *weak.Config { return g.weak }

func (g *guest) data() *ib.Udata { return &ib.Udata{Context: g, Out: make([]byte, 128)} }

// world is a loopback device below a relay, with a program that has two connected queue pairs. The tests use the
// program's side of the queues directly.
type world struct {
	t    testing.TB
	core ib.Core
	dev  *loopback.Device
	g    *guest
	pd   *ib.PD
	cq   *ib.CQ
	qps  [2]*ib.QP
	mr   *ib.MR
	buf  []byte
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var guestCap = ib.QPCap{MaxSendWR: 5, MaxRecvWR: 5, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 32}

func newWorld(t testing.TB, c *weak.Config) *world {
	t.Helper()
	return newWorldOf(t, &guest{weak: c})
}

func newWorldOf(t testing.TB, g *guest) *world {
	t.Helper()
	w := &world{t: t, dev: loopback.New("relay0", nil), g: g, buf: make([]byte, 4096)}
	w.dev.Handle().Wrap(func(d ib.Driver) ib.Driver { return New(d, layout.Layout{}) })
	must(t, w.core.Register(w.dev.Handle()))
	contexts, _ := ib.As[ib.UserContexter](ibuser.Driver(w.dev.IB()))
	must(t, contexts.AllocUserContext(w.g.data()))
	var err error
	w.pd, err = ibuser.AllocPD(w.dev.IB(), w.g.data())
	must(t, err)
	w.cq, err = ibuser.CreateCQ(w.dev.IB(), ib.CQInit{Entries: 40}, w.g.data())
	must(t, err)
	w.mr = w.register()
	for i := range w.qps {
		w.qps[i], err = ibuser.CreateQP(w.pd, ib.QPInitAttr{SendCQ: w.cq, RecvCQ: w.cq, Cap: guestCap, Type: ib.QPTypeRC},
			w.g.data())
		must(t, err)
	}
	w.connect()
	t.Cleanup(func() {
		for _, q := range w.qps {
			must(t, q.Destroy())
		}
		must(t, w.mr.Dereg())
		must(t, w.cq.Destroy())
		must(t, w.pd.Dealloc())
		contexts.DeallocUserContext(w.g)
		must(t, w.core.Unregister(w.dev.Handle()))
	})
	return w
}

func (w *world) connect() {
	w.t.Helper()
	l, err := w.dev.IB().Local(1)
	must(w.t, err)
	must(w.t, ib.ConnectPair(w.qps[0], w.qps[1], l, l, ib.Path{Access: peerAccess}))
}

func (w *world) register() *ib.MR {
	space := umem.NewLocal()
	addr, err := space.Add(w.buf)
	must(w.t, err)
	mr, err := ibuser.RegMR(w.pd, ib.MRInit{
		Space: space, Addr: addr, Length: uint64(len(w.buf)), IOVA: addr, Access: peerAccess | ib.AccessLocalWrite,
	}, w.g.data())
	must(w.t, err)
	return mr
}

const peerAccess = ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic

// side returns the relay's object of a queue pair.
func (w *world) side(i int) *qp {
	q, _ := ib.As[*qp](w.dev.Handle().QP(w.qps[i]))
	return q
}

func (w *world) queue() *cq {
	c, _ := ib.As[*cq](w.dev.Handle().CQ(w.cq))
	return c
}

// send posts a request as the program does, and rings the doorbell.
func (w *world) send(i int, s queue.Send) {
	w.t.Helper()
	if pushed, ok := w.side(i).sq.Push(&s); !pushed || !ok {
		w.t.Fatalf("Push: got %v and %v, want success", pushed, ok)
	}
	w.side(i).Doorbell(nil)
}

func (w *world) recv(i int, id uint64, s ib.SGE) {
	w.t.Helper()
	r := queue.Recv{ID: id, SGEs: []ib.SGE{s}, NumSGE: 1, Length: int(s.Length)}
	if pushed, ok := w.side(i).rq.Push(&r); !pushed || !ok {
		w.t.Fatalf("Push: got %v and %v, want success", pushed, ok)
	}
}

// poll takes the completions from the program's queue until n have come, or the time is over.
func (w *world) poll(n int, within time.Duration) (list []uapi.WC) {
	c := w.queue()
	take := func() (wc uapi.WC, found bool) {
		c.mu.Lock() // Oldest is a method of the producer
		defer c.mu.Unlock()
		at, waiting, _, ok := c.queue.Oldest()
		if !ok || waiting == 0 {
			return wc, false
		}
		c.queue.Fetch(at, 0, &wc)
		c.queue.Consume(at, 1)
		return wc, true
	}
	for end := time.Now().Add(within); len(list) < n && time.Now().Before(end); {
		if wc, found := take(); found {
			list = append(list, wc)
		} else {
			time.Sleep(20 * time.Microsecond)
		}
	}
	return list
}

func (w *world) sge(at, n int) ib.SGE {
	return ib.SGE{Addr: w.mr.Addr() + uint64(at), Length: uint32(n), LKey: w.mr.LKey()}
}

const longest = 10 * time.Second

// TestProgramsExchangeMessages tests SENDs, WRITEs and READs of a program with all choices. Each request completes
// once, the completions of a queue are in order, and the data are right.
func TestProgramsExchangeMessages(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			newWorld(t, &weak.Config{Seed: seed}).exchange(t, 30)
		})
	}
}

// exchange does rounds of a WRITE, a SEND and a READ, and checks the completions and the data.
func (w *world) exchange(t *testing.T, rounds uint64) {
	t.Helper()
	for round := range rounds {
		for i := range 64 {
			w.buf[i] = byte(round) + byte(i)
		}
		w.recv(1, 100+round, w.sge(1024, 64))
		requests := []queue.Send{
			{Opcode: uapi.WRRDMAWrite, RemoteAddr: w.mr.Addr() + 2048, RKey: w.mr.RKey(), SGEs: []ib.SGE{w.sge(0, 64)}},
			{Opcode: uapi.WRSend, SGEs: []ib.SGE{w.sge(0, 64)}},
			{Opcode: uapi.WRRDMARead, RemoteAddr: w.mr.Addr(), RKey: w.mr.RKey(), SGEs: []ib.SGE{w.sge(3072, 64)}},
		}
		for i, r := range requests {
			r.ID, r.Flags, r.NumSGE, r.Length = uint64(i), uapi.SendSignaled, 1, 64
			w.send(0, r)
		}
		next := uint64(0)
		for _, wc := range w.poll(len(requests)+1, longest) {
			want := next
			if wc.Opcode == uapi.WCRecv {
				want = 100 + round
			} else {
				next++
			}
			if wc.WRID != want || wc.Status != uapi.WCSuccess {
				t.Fatalf("round %d: completion: got %+v, want ID %d", round, wc, want)
			}
		}
		if next != 3 {
			t.Fatalf("round %d: got %d completions of sends, want 3", round, next)
		}
		for _, at := range []int{1024, 2048, 3072} {
			if !bytes.Equal(w.buf[at:at+64], w.buf[:64]) {
				t.Fatalf("round %d: the data at %d differ", round, at)
			}
		}
	}
}

// TestReplayTakesTheRecordedDecisions records the decisions about a program, and replays them with and without one of
// them. The texts for readers must have the program's IDs of the requests.
func TestReplayTakesTheRecordedDecisions(t *testing.T) {
	run := func(t *testing.T, c weak.Config) (decisions []weak.Decision, lines []string) {
		var mu sync.Mutex
		c.Device = "test/1"
		c.Record = func(d *weak.Decision) {
			mu.Lock()
			defer mu.Unlock()
			decisions = append(decisions, *d)
		}
		newWorld(t, &c).exchange(t, 30)
		mu.Lock()
		defer mu.Unlock()
		for _, d := range decisions {
			d.About = ""
			if line := string(d.AppendText(nil)); d.Choice != weak.CrossOrder { // depends on the speed of the device
				lines = append(lines, line)
			}
		}
		slices.Sort(lines)
		return decisions, lines
	}
	first, want := run(t, weak.Config{Seed: 5})
	inner := weak.InProcess
	for _, d := range first {
		if inner.Has(d.Choice) {
			t.Errorf("decision for a program: got %s, want none of package weak's InProcess", d.AppendText(nil))
		}
		id := uint64(0)
		if d.Event == weak.EventSend {
			id = (d.Seq - 1) % 3
		} else if id = 99 + d.Seq; d.Event != weak.EventRecv {
			continue
		}
		if suffix := fmt.Sprintf(", wr_id %#x", id); !strings.HasSuffix(d.About, suffix) {
			t.Errorf("text of decision %s: got %q, want the suffix %q", d.AppendText(nil), d.About, suffix)
		}
	}
	if len(want) < 50 {
		t.Fatalf("decisions: got %d, want at least 50", len(want))
	}
	if _, got := run(t, weak.Config{Decisions: weak.NewDecisionSet(first)}); !slices.Equal(got, want) {
		t.Errorf("decisions of the replay: got %d, want %d:\n%v\n%v", len(got), len(want), got, want)
	}
	i := slices.IndexFunc(first, func(d weak.Decision) bool { return d.Choice == weak.LateSource })
	dropped := first[i]
	dropped.About = ""
	want = slices.DeleteFunc(want, func(line string) bool { return line == string(dropped.AppendText(nil)) })
	rest := weak.NewDecisionSet(slices.Delete(slices.Clone(first), i, i+1))
	if _, got := run(t, weak.Config{Decisions: rest}); !slices.Equal(got, want) {
		t.Errorf("decisions of the replay without one: got %d, want %d:\n%v\n%v", len(got), len(want), got, want)
	}
}

// TestCapacityIsExact tests that a program can post as many requests as it has requested, and no more, after a reset
// as well.
func TestCapacityIsExact(t *testing.T) {
	w := newWorld(t, &weak.Config{Seed: 1})
	for _, reset := range []bool{false, true} {
		if reset {
			must(t, w.qps[0].Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
		}
		sends, receives := 0, 0
		for pushed := true; pushed; sends++ {
			pushed, _ = w.side(0).sq.Push(&queue.Send{})
		}
		for pushed := true; pushed; receives++ {
			pushed, _ = w.side(0).rq.Push(&queue.Recv{})
		}
		if sends != int(guestCap.MaxSendWR)+1 || receives != int(guestCap.MaxRecvWR)+1 {
			t.Errorf("reset %v: posted %d sends and %d receives, want %d of each",
				reset, sends-1, receives-1, guestCap.MaxSendWR)
		}
	}
	if c := w.qps[0].Init().Cap; c != guestCap {
		t.Errorf("actual capacities: got %+v, want %+v", c, guestCap)
	}
}

// TestOtherContextsGetInnerObjects tests that consumers of this process, and contexts that do not ask for a weak
// device, get the inner objects.
func TestOtherContextsGetInnerObjects(t *testing.T) {
	w := newWorld(t, nil)
	sides := []any{w.dev.Handle().PD(w.pd), w.dev.Handle().CQ(w.cq), w.dev.Handle().QP(w.qps[0]), w.dev.Handle().MR(w.mr)}
	w.g.weak = &weak.Config{}
	pd, err := w.dev.IB().AllocPD()
	must(t, err)
	sides = append(sides, w.dev.Handle().PD(pd))
	must(t, pd.Dealloc())
	for _, s := range sides {
		if p := reflect.TypeOf(s).Elem().PkgPath(); p != "verbena/driver/loopback" {
			t.Errorf("object of type %T: got package %s, want driver/loopback", s, p)
		}
	}
}

// FuzzRequests posts requests with any fields, as a hostile program can. Another program must not notice, and the
// objects can be destroyed.
func FuzzRequests(f *testing.F) {
	f.Add(uint64(1))
	f.Add(uint64(2))
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(t, &weak.Config{Seed: seed})
		pick := func(usual ...uint64) uint64 {
			if r.IntN(3) > 0 {
				return usual[r.IntN(len(usual))]
			}
			return r.Uint64()
		}
		key := func() uint32 { return uint32(pick(uint64(w.mr.LKey()), uint64(w.mr.RKey()))) }
		element := func() ib.SGE {
			return ib.SGE{Addr: pick(w.mr.Addr(), w.mr.Addr()+4000), Length: uint32(pick(0, 8, 64, 4096)), LKey: key()}
		}
		for range 40 {
			i := r.IntN(2)
			if r.IntN(3) == 0 {
				w.side(i).rq.Push(&queue.Recv{ID: r.Uint64(), SGEs: []ib.SGE{element()}, Length: int(pick(0, 64))})
				w.side(i).Doorbell(nil)
				continue
			}
			s := queue.Send{
				ID: r.Uint64(), Opcode: uapi.WROpcode(pick(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 15)),
				Flags:  uapi.SendFlags(pick(0, 1, 2, 3, 8, 15)),
				Length: pick(0, 8, 32, 64), RemoteAddr: pick(w.mr.Addr(), 0), RKey: key(), CompareAdd: r.Uint64(),
				Bind: queue.Bind{MRLKey: key(), MWRKey: r.Uint32(), Length: pick(0, 8)}, SRQN: r.Uint32(),
			}
			if s.Flags&uapi.SendInline != 0 {
				s.Inline = make([]byte, min(s.Length, uint64(guestCap.MaxInlineData)))
			} else {
				s.SGEs = []ib.SGE{element()}
			}
			w.side(i).sq.Push(&s)
			w.side(i).Doorbell(nil)
			if r.IntN(8) == 0 {
				w.poll(4, time.Millisecond)
			}
		}
		for _, q := range w.qps {
			must(t, q.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
		}
		w.connect()
		w.recv(1, 7, w.sge(0, 8))
		w.send(0, queue.Send{
			ID: 8, Opcode: uapi.WRSend, Flags: uapi.SendSignaled, SGEs: []ib.SGE{w.sge(8, 8)}, NumSGE: 1, Length: 8,
		})
		good := 0
		for end := time.Now().Add(longest); good < 2 && time.Now().Before(end); {
			for _, wc := range w.poll(1, longest) {
				if wc.Status == uapi.WCSuccess && (wc.WRID == 7 && wc.Opcode == uapi.WCRecv || wc.WRID == 8) {
					good++
				}
			}
		}
		if good != 2 {
			t.Error("after a reset the queue pairs do not work")
		}
	})
}
