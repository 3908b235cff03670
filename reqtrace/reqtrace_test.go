package reqtrace

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/driver"
	"verbena/ib"
	"verbena/internal/perfetto/perfettotest"
	"verbena/internal/quota"
	"verbena/rdmacm"
	"verbena/uapi"
)

// userOf is a context of a user's program.
type userOf int

func (userOf) AllocShared(int) (ib.Shared, error) { return ib.Shared{}, syscall.ENOTSUP }

func newTestRecorder() *Recorder {
	return New(func(c ib.UserContext) (Program, bool) {
		u, ok := c.(userOf)
		return Program{User: quota.ID{UID: int(u)}, PID: 100 + int(u), Name: fmt.Sprintf("program of %d", u)}, ok
	})
}

func begin(t *testing.T, r *Recorder, user int) (*Trace, []byte) {
	t.Helper()
	mem := make([]byte, Size)
	tr, err := r.Begin(quota.ID{UID: user}, func() ([]byte, error) { return mem, nil })
	if err != nil {
		t.Fatal(err)
	}
	return tr, mem
}

func read(t *testing.T, mem []byte) (*perfettotest.Trace, Summary) {
	t.Helper()
	var b bytes.Buffer
	sum, err := Write(&b, bytes.NewReader(mem), time.Unix(10, 0), nil)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := perfettotest.Read(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return tr, sum
}

func qpOf(user int, num uint32) driver.QueueRef {
	return driver.QueueRef{Kind: driver.QueuePair, Time: time.Unix(1, 0),
		QP: driver.QPRef{Device: "rxe0", Num: num, Type: ib.QPTypeRC, State: ib.QPRTS, Context: userOf(user)}}
}

// TestUsersAreSeparate tests that a trace has only queues and events of its user.
func TestUsersAreSeparate(t *testing.T) {
	r := newTestRecorder()
	if log := r.TraceQueue(qpOf(1, 17)); log != nil {
		t.Error("log without a trace: got one, want nil")
	}
	first, mem1 := begin(t, r, 1)
	_, mem2 := begin(t, r, 2)
	mine, other := r.TraceQueue(qpOf(1, 17)), r.TraceQueue(qpOf(2, 18))
	if log := r.TraceQueue(driver.QueueRef{QP: driver.QPRef{Device: "rxe0", Num: 19}}); log != nil {
		t.Error("log of a queue without a program: got one, want nil")
	}
	if log := r.TraceQueue(qpOf(3, 20)); log != nil {
		t.Error("log of a user without a trace: got one, want nil")
	}
	event := func(log driver.RequestLog, wrid uint64) {
		log.Add(&driver.RequestEvent{Kind: driver.RequestDone, Time: 2e9, WRID: wrid, Opcode: uapi.WRSend})
	}
	event(mine, 1)
	event(other, 2)
	for _, num := range []uint32{17, 18, 19} {
		ref := driver.QPRef{Device: "rxe0", Num: num}
		r.PacketsDropped(driver.DroppedPackets{Time: time.Unix(3, 0), QP: ref, Packets: int(num)})
		r.PacketsLost(time.Unix(3, 0), "rxe0", num, int(num))
	}
	first.End()
	event(mine, 3)
	again := qpOf(1, 17)
	again.Log = mine
	if log := r.TraceQueue(again); log != nil {
		t.Error("log after the end of the trace: got one, want nil")
	}
	for i, mem := range [][]byte{mem1, mem2} {
		tr, sum := read(t, mem)
		program := fmt.Sprintf("program of %d[%d]", i+1, 101+i)
		if n := len(tr.Named("", "SEND")); n != 1 || !strings.Contains(tr.Slices[0].Track, program) {
			t.Errorf("trace of user %d: got %d requests, want 1:\n%v", i+1, n, tr)
		}
		if n := len(tr.InstantsNamed("", "packets dropped")); n != 2 || sum.Lost != 0 {
			t.Errorf("trace of user %d: got %d drops, %d lost, want 2 and 0:\n%v", i+1, n, sum.Lost, tr)
		}
	}
}

// TestLimitOfTraces tests that a trace beyond the limit of a user gets no memory, also while another trace begins. A
// trace without memory does not count.
func TestLimitOfTraces(t *testing.T) {
	r := newTestRecorder()
	var latest *Trace
	for range MaxTraces - 1 {
		latest, _ = begin(t, r, 2)
	}
	refused := func(what string) {
		if _, err := r.Begin(quota.ID{UID: 2}, func() ([]byte, error) {
			t.Errorf("%s: got a call for memory, want none", what)
			return make([]byte, Size), nil
		}); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s: got %v, want EBUSY", what, err)
		}
	}
	if _, err := r.Begin(quota.ID{UID: 2}, func() ([]byte, error) {
		refused("trace while the last one is being begun")
		return nil, syscall.ENOMEM
	}); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("trace without memory: got %v, want ENOMEM", err)
	}
	begin(t, r, 2)
	refused("trace beyond the limit")
	begin(t, r, 3)
	latest.End()
	begin(t, r, 2)
}

// TestLostEvents tests that a full trace keeps the latest events, and reports the number of the others.
func TestLostEvents(t *testing.T) {
	r := newTestRecorder()
	_, mem := begin(t, r, 1)
	const more = 1000
	for i := range maxQueues + 9 { // the table of queues is full, too
		log := r.TraceQueue(qpOf(1, uint32(i)))
		if log == nil && i < maxQueues-1 {
			t.Fatalf("queue %d: not traced", i)
		}
	}
	first := r.next(t)
	log := r.TraceQueue(qpOf(1, 5))
	if log != nil {
		t.Error("queue beyond the limit: got a log, want nil")
	}
	log = r.qps[qpKey{"rxe0", 5}]
	for i := range MaxEvents + more {
		log.Add(&driver.RequestEvent{Kind: driver.QueueEvent, Time: int64(i) + 2e9, Count: uint32(ib.EventCommEst)})
	}
	tr, sum := read(t, mem)
	if want := first + more; sum.Lost != want || sum.Events != MaxEvents || sum.Untraced != 11 {
		t.Errorf("got %d events, %d lost, %d queues not traced, want %d, %d, 11", sum.Events, sum.Lost, sum.Untraced,
			MaxEvents, want)
	}
	if n := tr.InstantsNamed("trace", fmt.Sprintf("%d earlier events were dropped", sum.Lost)); len(n) != 1 {
		t.Errorf("instants about lost events: got %v, want one", n)
	}
	if n := tr.InstantsNamed("trace", "11 queues are not in the trace"); len(n) != 1 {
		t.Errorf("instants about queues: got %v, want one", n)
	}
	if n := len(tr.InstantsNamed("QP 5", "event: ")); n != MaxEvents {
		t.Errorf("events: got %d, want %d", n, MaxEvents)
	}
}

// TestConnectionEvents tests the events of the connection manager: their texts, their peers, and their users.
func TestConnectionEvents(t *testing.T) {
	r := newTestRecorder()
	_, mem := begin(t, r, 1)
	if !r.IsTraced(quota.ID{UID: 1}) || r.IsTraced(quota.ID{UID: 2}) {
		t.Error("IsTraced: got the wrong users, want user 1 alone")
	}
	to := "10.0.0.2:7471"
	peer := netip.MustParseAddrPort(to)
	for i, e := range []ConnectionEvent{
		{ID: 5, Type: rdmacm.AddrResolved},
		{ID: 5, Type: rdmacm.Established, Peer: peer, QPN: 17, PeerQPN: 18},
		{ID: 5, Type: rdmacm.Rejected, Status: 28, Peer: peer},
		{ID: 1 << 31, Type: rdmacm.Unreachable, Status: -int32(syscall.ETIMEDOUT)},
	} {
		for user := range 2 {
			e.Time = time.Unix(int64(2+i), 0)
			e.Program = Program{User: quota.ID{UID: user + 1}, PID: 101 + user, Name: "rping"}
			r.ConnectionChanged(e)
		}
	}
	tr, _ := read(t, mem)
	for name, attrs := range map[string]map[string]string{
		"ID 5: address resolved":                           {},
		"ID 5: established":                                {"peer": to, "queue pair": "17", "peer's queue pair": "18"},
		"ID 5: rejected: rejected by the consumer":         {"peer": to},
		"ID 2147483648: unreachable: connection timed out": {},
	} {
		got := tr.InstantsNamed("connection manager", name)
		if len(got) != 1 || !strings.Contains(got[0].Track, "rping[101]") || !maps.Equal(got[0].Attrs, attrs) {
			t.Errorf("%s: got %+v, want one with %v", name, got, attrs)
		}
	}
}

// next returns the number of events of the only trace.
func (r *Recorder) next(t *testing.T) uint64 {
	t.Helper()
	for tr := range r.traces {
		return tr.ring.next.Load()
	}
	t.Fatal("no trace")
	return 0
}

// TestHostileMemory tests that any memory gives an error or a readable trace.
func TestHostileMemory(t *testing.T) {
	zeros := bytes.NewReader(make([]byte, Size))
	if _, err := Write(&bytes.Buffer{}, zeros, time.Now(), nil); !errors.Is(err, errNoTrace) {
		t.Errorf("memory of zeros: got %v, want %v", err, errNoTrace)
	}
	if _, err := Write(&bytes.Buffer{}, bytes.NewReader([]byte(magic)), time.Now(), nil); err == nil {
		t.Error("memory of 8 bytes: got success, want an error")
	}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		mem := make([]byte, Size)
		newRing(mem)
		for i := 1; i < 40; i++ {
			q := mem[headerSize+i*queueSize:][:queueSize]
			for j := range q {
				q[j] = byte(rng.Uint32())
			}
			q[0], q[1] = 1, byte(rng.Uint32N(6))-2 // a used entry, mostly of a known kind
			for _, at := range []int{16, 18, 20} {
				q[at], q[at+1] = byte(rng.Uint32N(50)), 0
			}
		}
		for i := range 4000 {
			e := mem[ringStart+i*eventSize:][:eventSize]
			for j := range e {
				e[j] = byte(rng.Uint32() & rng.Uint32())
			}
			kind := []uint8{uint8(rng.Uint32N(12)), kindState + uint8(rng.Uint32N(8))}[rng.Uint32N(2)]
			head(e, uint64(i+1), int64(rng.Uint64N(1e10)), uint16(rng.Uint32N(45)), uint16(rng.Uint32N(45)), kind,
				byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32()))
		}
		var b bytes.Buffer
		if _, err := Write(&b, bytes.NewReader(mem), time.Unix(20, 0), []Mark{{time.Unix(1, 0), "a\x00\xff"}}); err != nil {
			t.Errorf("seed %d: got %v, want success", seed, err)
		}
		if tr, err := perfettotest.Read(b.Bytes()); err != nil {
			t.Errorf("seed %d: read: got %v, want success", seed, err)
		} else if len(tr.Slices) == 0 {
			t.Errorf("seed %d: got no slices, want some", seed)
		}
	}
}

// TestWriteFails tests that an error of the writer is reported.
func TestWriteFails(t *testing.T) {
	r := newTestRecorder()
	_, mem := begin(t, r, 1)
	r.TraceQueue(qpOf(1, 5))
	if _, err := Write(failing{}, bytes.NewReader(mem), time.Now(), nil); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Write to a full disk: got %v, want ENOSPC", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestAddAllocates tests that an event costs no allocation.
func TestAddAllocates(t *testing.T) {
	r := newTestRecorder()
	begin(t, r, 1)
	log := r.TraceQueue(qpOf(1, 5))
	e := driver.RequestEvent{Kind: driver.RequestDone, CQ: log}
	if n := testing.AllocsPerRun(100, func() { log.Add(&e) }); n != 0 {
		t.Errorf("allocations of an event: got %v, want 0", n)
	}
}

func BenchmarkAdd(b *testing.B) {
	r := newTestRecorder()
	if _, err := r.Begin(quota.ID{UID: 1}, func() ([]byte, error) { return make([]byte, Size), nil }); err != nil {
		b.Fatal(err)
	}
	log := r.TraceQueue(qpOf(1, 5))
	e := driver.RequestEvent{Kind: driver.RequestDone, CQ: log}
	b.ReportAllocs()
	for b.Loop() {
		log.Add(&e)
	}
}
