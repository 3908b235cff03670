package engine

import (
	"bytes"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"verbena/driver"
	"verbena/ib"
	"verbena/internal/perfetto/perfettotest"
	"verbena/internal/quota"
	"verbena/internal/testutil"
	"verbena/link/simnet"
	"verbena/reqtrace"
	"verbena/uapi"
)

// tracedBench is a bench with traces of its work requests.
type tracedBench struct {
	*bench
	rec   *reqtrace.Recorder
	trace *reqtrace.Trace
	mem   []byte
}

// newTracedBench makes a bench in virtual time. All consumers belong to one user.
func newTracedBench(t *testing.T, s setup, c conn) *tracedBench {
	t.Helper()
	x := &tracedBench{mem: make([]byte, reqtrace.Size)}
	x.rec = reqtrace.New(func(ib.UserContext) (reqtrace.Program, bool) {
		return reqtrace.Program{User: quota.ID{UID: 1000}, PID: 42, Name: "program"}, true
	})
	var err error
	x.trace, err = x.rec.Begin(quota.ID{UID: 1000}, func() ([]byte, error) { return x.mem, nil })
	check(t, err)
	s.observer = x.rec
	x.bench = newBenchIn(t, s)
	x.connect(c)
	return x
}

// end ends the trace, and returns its content.
func (x *tracedBench) end(t *testing.T) *perfettotest.Trace {
	t.Helper()
	for _, n := range []*node{x.a, x.b} {
		n.dev.LookAtTraces()
	}
	x.trace.End()
	for _, n := range []*node{x.a, x.b} {
		if !n.dev.RefreshTraces() {
			t.Error("RefreshTraces: got false, want true")
		}
		if qpOf(n.qp).trace != nil {
			t.Error("trace of a queue pair after the end of the trace: got one, want none")
		}
	}
	var b bytes.Buffer
	_, err := reqtrace.Write(&b, bytes.NewReader(x.mem), time.Now(), nil)
	check(t, err)
	tr, err := perfettotest.Read(b.Bytes())
	check(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(tr)
		}
	})
	return tr
}

// wire is a network with a latency, on which each message needs time.
var wire = setup{net: simnet.Config{Latency: 5 * time.Microsecond, Bandwidth: 1 << 30}}

// one returns the only slice whose track and name contain the texts.
func one(t *testing.T, tr *perfettotest.Trace, track, name string) perfettotest.Slice {
	t.Helper()
	list := tr.Named(track, name)
	if len(list) != 1 {
		t.Fatalf("slices %q of %q: got %d, want 1", name, track, len(list))
	}
	return list[0]
}

// inside returns the slice with a name inside of another one.
func inside(t *testing.T, tr *perfettotest.Trace, s perfettotest.Slice, name string) perfettotest.Slice {
	t.Helper()
	for _, x := range tr.Slices {
		if x.ID == s.ID && x.Depth == s.Depth+1 && x.Name == name && x.Begin >= s.Begin && x.End <= s.End {
			return x
		}
	}
	t.Fatalf("slice %q within %q: got none", name, s.Name)
	return perfettotest.Slice{}
}

func (n *node) track() string { return fmt.Sprintf("QP %d of %s", n.qp.Num(), n.dev.name) }

// TestRequestTrace tests the slices of a message, their phases, the arrows and the counters.
func TestRequestTrace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := newTracedBench(t, wire, conn{})
		defer x.close()
		x.b.recv(7, 0, 4096)
		_, err := x.a.cq.ReqNotify(ib.NotifyNextComp)
		check(t, err)
		x.a.send(ib.SendWR{ID: 5, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: x.a.sge(0, 3000)})
		testutil.AdvanceTime(time.Millisecond)
		x.a.expect(ib.WC{ID: 5, Opcode: ib.WCSend})
		testutil.AdvanceTime(time.Millisecond)
		x.b.expect(ib.WC{ID: 7, Opcode: ib.WCRecv, ByteLen: 3000})
		x.a.send(ib.SendWR{ID: 6, Opcode: ib.WRRDMAWrite, SGList: x.a.sge(0, 8), RemoteAddr: x.b.addr, RKey: x.b.mr.RKey()})
		testutil.AdvanceTime(time.Millisecond)
		tr := x.end(t)
		send, recv := one(t, tr, x.a.track(), "SEND"), one(t, tr, x.b.track(), "receive")
		if send.Attrs["wr_id"] != "5" || send.Attrs["bytes"] != "3000" || send.Attrs["packets"] != "3" ||
			recv.Attrs["wr_id"] != "7" {
			t.Errorf("attributes: got %v and %v", send.Attrs, recv.Attrs)
		}
		if d := send.End - send.Begin; d != time.Millisecond {
			t.Errorf("SEND until its poll: got %v, want 1 ms", d)
		}
		if d := recv.End - send.Begin; d != 2*time.Millisecond {
			t.Errorf("receive until its poll, since the post of the SEND: got %v, want 2 ms", d)
		}
		flight, waits := inside(t, tr, send, "in flight"), inside(t, tr, send, "completed, not polled")
		if flight.Begin != send.Begin || flight.End <= recv.Begin || waits.Begin != flight.End || waits.End != send.End {
			t.Errorf("phases of the SEND: got %v and %v", flight, waits)
		}
		if !slices.ContainsFunc(send.Flows, func(f uint64) bool { return slices.Contains(recv.Flows, f) }) {
			t.Errorf("arrows: got %v of the SEND and %v of the receive, want a common one", send.Flows, recv.Flows)
		}
		done := tr.InstantsNamed("CQ", "completion: SEND")
		if len(done) != 1 || !slices.Contains(send.Flows, done[0].Flows[0]) {
			t.Errorf("completion of the SEND: got %v, want one with an arrow from it", done)
		}
		if w := one(t, tr, x.a.track(), "RDMA WRITE"); w.Attrs["result"] != "complete, without a completion (unsignaled)" {
			t.Errorf("unsignaled WRITE: got %v", w.Attrs)
		}
		a, n := tr.InstantsNamed("CQ", "armed"), tr.InstantsNamed("CQ", "notified")
		if len(a) != 1 || a[0].Name != "armed" || len(n) != 1 {
			t.Errorf("arms and notifications: got %v and %v, want one of each", a, n)
		}
		if got := tr.Values(x.a.track() + ", RC/send queue"); !slices.Equal(got, []int64{1, 0, 1, 0}) {
			t.Errorf("send queue: got %v, want 1, 0, 1, 0", got)
		}
		var states []string
		for _, s := range tr.Named(x.a.track()+", RC/state", "") {
			states = append(states, s.Name)
		}
		if !slices.Equal(states, []string{"RESET", "INIT", "RTR", "RTS"}) {
			t.Errorf("states: got %v", states)
		}
	})
}

// TestRequestTraceLostArm shows a program that arms the queue when a completion has arrived already, and then sleeps.
func TestRequestTraceLostArm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := newTracedBench(t, wire, conn{})
		defer x.close()
		x.b.recv(7, 0, 64)
		x.a.send(ib.SendWR{ID: 5, Opcode: ib.WRSend, SGList: x.a.sge(0, 64)})
		testutil.AdvanceTime(time.Millisecond)
		_, err := x.b.cq.ReqNotify(ib.NotifyNextComp)
		check(t, err)
		testutil.AdvanceTime(time.Second)
		tr := x.end(t)
		if a := tr.InstantsNamed("of rxe1", "armed"); len(a) != 1 || a[0].Name != "armed with 1 completions in the queue" {
			t.Errorf("arms: got %v, want one with a completion in the queue", a)
		}
		waits := inside(t, tr, one(t, tr, x.b.track(), "receive"), "completed, never polled")
		if d := waits.End - waits.Begin; d < time.Second {
			t.Errorf("completion that is never polled: got %v, want more than 1 s", d)
		}
		if n := tr.InstantsNamed("of rxe1", "notified"); len(n) != 0 {
			t.Errorf("notifications: got %v, want none", n)
		}
	})
}

// TestRequestTraceUserArm shows a program that polls its queue without a call. The device finds that out when the
// program arms the queue.
func TestRequestTraceUserArm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := newTracedBench(t, wire, conn{})
		defer x.close()
		check(t, x.b.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
		u := openUser(x.bench, userCap)
		defer u.close()
		for id := range uint64(2) {
			x.b.recv(id, 0, 64)
			u.sq.post(u.wqe(id, uapi.WRSend, uapi.SendSignaled, x.a.sge(0, 8)...))
		}
		u.doorbell()
		testutil.AdvanceTime(time.Millisecond)
		if _, ok := u.cqueue.poll(); !ok {
			t.Fatal("poll: got no completion")
		}
		testutil.AdvanceTime(time.Millisecond)
		_, err := u.cq.ReqNotify(ib.NotifyNextComp)
		check(t, err)
		testutil.AdvanceTime(time.Millisecond)
		tr := x.end(t)
		sends := tr.Named(fmt.Sprintf("QP %d of %s", u.qp.Num(), x.a.dev.name), "SEND")
		if len(sends) != 2 {
			t.Fatalf("sends: got %v, want 2", sends)
		}
		if w := inside(t, tr, sends[0], "completed, not polled"); w.End-sends[0].Begin != 2*time.Millisecond {
			t.Errorf("first SEND until its poll: got %v, want 2 ms", w.End-sends[0].Begin)
		}
		inside(t, tr, sends[1], "completed, never polled")
	})
}

// TestRequestTraceReconnect shows a program that resets and reconnects a queue pair, and forgets that the receives are
// lost.
func TestRequestTraceReconnect(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := newTracedBench(t, wire, conn{})
		defer x.close()
		for i := range 4 {
			x.b.recv(uint64(i), 0, 64)
		}
		for _, n := range []*node{x.a, x.b} {
			check(t, n.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
		}
		testutil.AdvanceTime(time.Millisecond)
		x.connect(conn{rnrRetry: 2, rnrTimer: 1, psn: 3})
		x.a.send(ib.SendWR{ID: 5, Opcode: ib.WRSend, SGList: x.a.sge(0, 64)})
		x.a.expect(ib.WC{ID: 5, Status: ib.WCRNRRetryExcErr})
		tr := x.end(t)
		refused := tr.InstantsNamed(x.b.track(), "request refused: no receive is posted")
		resets := tr.Named(x.b.track()+", RC/state", "RESET")
		if len(refused) != 3 || len(resets) != 2 || refused[0].At < resets[1].End {
			t.Errorf("got refusals %v and RESET %v, want 3 refusals after the second RESET", refused, resets)
		}
		if got := tr.Values(x.b.track() + ", RC/receives left"); !slices.Equal(got, []int64{0, 0, 0}) {
			t.Errorf("receives left: got %v, want three times 0", got)
		}
		d := tr.InstantsNamed(x.a.track(), "RNR NAK: sends again after")
		if len(d) != 2 || d[0].Name != "RNR NAK: sends again after 10µs" || d[0].Attrs["PSN"] != "3" {
			t.Errorf("delays: got %v, want 2 of 10 µs with PSN 3", d)
		}
		if s := one(t, tr, x.a.track(), "SEND: "); s.Name != "SEND: RNR retry counter exceeded" {
			t.Errorf("failed request: got %q", s.Name)
		}
	})
}

// TestRequestTraceLateFlush shows a program that resets a queue pair before it has polled the flushed requests.
func TestRequestTraceLateFlush(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := newTracedBench(t, wire, conn{})
		defer x.close()
		x.a.send(ib.SendWR{ID: 5, Opcode: ib.WRSend, SGList: x.a.sge(0, 64)},
			ib.SendWR{ID: 6, Opcode: ib.WRSend, SGList: x.a.sge(0, 64)})
		check(t, x.a.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
		testutil.AdvanceTime(time.Millisecond)
		check(t, x.a.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
		testutil.AdvanceTime(time.Millisecond)
		x.a.poll(2)
		tr := x.end(t)
		flushed := tr.Named(x.a.track(), "SEND: work request flushed")
		resets := tr.Named(x.a.track()+", RC/state", "RESET")
		if len(flushed) != 2 || len(resets) != 2 {
			t.Fatalf("got flushed requests %v, states RESET %v, want two of each", flushed, resets)
		}
		for _, s := range flushed {
			if w := inside(t, tr, s, "completed, not polled"); w.End-resets[1].Begin != time.Millisecond {
				t.Errorf("poll after RESET: got %v, want 1 ms", w.End-resets[1].Begin)
			}
		}
		if e := one(t, tr, x.a.track()+", RC/state", "ERR"); e.Attrs["reason"] != "its program has modified it" {
			t.Errorf("ERR: got reason %q", e.Attrs["reason"])
		}
	})
}

// TestRequestTraceFence shows a SEND that follows a READ without and with a fence.
func TestRequestTraceFence(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			x := newTracedBench(t, wire, conn{})
			defer x.close()
			x.b.recv(7, 0, 64)
			flags := ib.SendSignaled
			if fenced {
				flags |= ib.SendFence
			}
			x.a.send(ib.SendWR{ID: 5, Opcode: ib.WRRDMARead, SGList: x.a.sge(0, 1<<14), RemoteAddr: x.b.addr,
				RKey: x.b.mr.RKey()},
				ib.SendWR{ID: 6, Opcode: ib.WRSend, Flags: flags, SGList: x.a.sge(0, 64)})
			testutil.AdvanceTime(time.Millisecond)
			tr := x.end(t)
			read := inside(t, tr, one(t, tr, x.a.track(), "RDMA READ"), "in flight")
			s := one(t, tr, x.a.track(), "SEND")
			send := inside(t, tr, s, "in flight")
			const attr = "sent before READs and atomics were complete"
			if early := send.Begin < read.End; early == fenced || (s.Attrs[attr] == "1") == fenced ||
				(s.Attrs["fence"] == "yes") != fenced {
				t.Errorf("fence %v: the SEND begins at %v, the READ ends at %v, attributes %v", fenced, send.Begin, read.End,
					s.Attrs)
			}
			if fenced {
				inside(t, tr, s, "waits in the send queue")
			}
		})
	}
}

// TestRequestTraceSRQ shows a shared receive queue that runs empty.
func TestRequestTraceSRQ(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := newTracedBench(t, wire, conn{})
		defer x.close()
		srq, err := x.b.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 8, MaxSGE: 1}})
		check(t, err)
		qp, err := x.b.pd.CreateQP(ib.QPInitAttr{SendCQ: x.b.cq, RecvCQ: x.b.cq, SRQ: srq, Type: ib.QPTypeRC,
			Cap: ib.QPCap{MaxSendWR: 8, MaxSendSGE: 1}})
		check(t, err)
		own := x.b.qp
		x.b.qp = qp
		check(t, x.a.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
		x.connect(conn{rnrTimer: 20})
		for i := range 2 {
			_, err := srq.PostRecv(ib.RecvWR{ID: uint64(i), SGList: x.b.sge(0, 64)})
			check(t, err)
		}
		for i := range 3 {
			x.a.send(ib.SendWR{ID: uint64(i), Opcode: ib.WRSend, SGList: x.a.sge(0, 64)})
		}
		testutil.AdvanceTime(time.Millisecond)
		_, err = srq.PostRecv(ib.RecvWR{ID: 2, SGList: x.b.sge(0, 64)})
		check(t, err)
		x.b.poll(3)
		tr := x.end(t)
		if got := tr.Values("SRQ"); len(got) < 4 || !slices.Equal(got[:3], []int64{1, 0, 0}) || got[len(got)-1] != 0 {
			t.Errorf("receives left: got %v, want 1, 0 and then 0 at each refusal", got)
		}
		if r := tr.InstantsNamed(x.b.track(), "request refused: no receive is posted to SRQ"); len(r) == 0 {
			t.Error("refusals: got none")
		}
		if r := tr.Named(x.b.track(), "receive"); len(r) != 3 || r[2].Begin-r[1].Begin < time.Millisecond {
			t.Errorf("receives: got %v, want 3, the last one 1 ms later", r)
		}
		check(t, qp.Destroy())
		check(t, srq.Destroy())
		x.b.qp = own
	})
}

// TestRequestTracePacing shows a sender that posts bursts, and a receiver that posts one receive each millisecond.
func TestRequestTracePacing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := newTracedBench(t, wire, conn{rnrTimer: 10})
		defer x.close()
		const burst = 8
		for i := range burst {
			x.a.send(ib.SendWR{ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: x.a.sge(0, 64)})
		}
		for i := range burst {
			testutil.AdvanceTime(time.Millisecond)
			x.b.recv(uint64(i), 0, 64)
			x.b.poll(1)
		}
		x.a.poll(burst)
		tr := x.end(t)
		if depth := tr.Values(x.a.track() + ", RC/send queue"); slices.Max(depth) != burst || depth[len(depth)-1] != 0 {
			t.Errorf("send queue: got %v, want up to %d, and 0 in the end", depth, burst)
		}
		if got := tr.InstantsNamed(x.b.track(), "no receive is posted"); len(got) < burst {
			t.Errorf("refusals: got %d, want at least %d", len(got), burst)
		}
		sends := tr.Named(x.a.track(), "SEND")
		if len(sends) != burst || inside(t, tr, sends[burst-1], "in flight").End < (burst-1)*time.Millisecond {
			t.Errorf("sends: got %v, want the last one to take %d ms", sends, burst-1)
		}
	})
}

// TestRequestTraceSlowPoller shows a program that polls a few completions at long intervals.
func TestRequestTraceSlowPoller(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := newTracedBench(t, wire, conn{})
		defer x.close()
		const messages, pause = 6, 10 * time.Millisecond
		for i := range messages {
			x.a.send(ib.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: x.a.sge(0, 64),
				RemoteAddr: x.b.addr, RKey: x.b.mr.RKey()})
		}
		for range messages / 2 {
			testutil.AdvanceTime(pause)
			x.a.poll(2)
		}
		tr := x.end(t)
		if got := slices.Max(tr.Values("of rxe0, 1023 entries/completions in the queue")); got != messages {
			t.Errorf("completions in the queue: got up to %d, want %d", got, messages)
		}
		writes := tr.Named(x.a.track(), "RDMA WRITE")
		for i, s := range writes {
			w := inside(t, tr, s, "completed, not polled")
			if want := pause * time.Duration(i/2+1); w.End-writes[0].Begin != want {
				t.Errorf("poll of completion %d: got %v, want %v", i, w.End-writes[0].Begin, want)
			}
		}
	})
}

// TestRequestTraceLoss shows retransmissions, and a request that is in flight at the end.
func TestRequestTraceLoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x := newTracedBench(t, wire, conn{timeout: 14, retry: 7})
		defer x.close()
		x.net.SetLink(addrB, false)
		x.rec.DeviceChanged(time.Now(), "rxe1", "port down")
		x.a.send(ib.SendWR{ID: 5, Opcode: ib.WRSend, SGList: x.a.sge(0, 64)})
		testutil.AdvanceTime(200 * time.Millisecond)
		tr := x.end(t)
		if r := tr.InstantsNamed(x.a.track(), "retransmission: timeout"); len(r) != 2 || r[0].Attrs["retries left"] != "6" {
			t.Errorf("retransmissions: got %v, want 2", r)
		}
		if r := tr.InstantsNamed(x.a.track(), "retransmission: probe"); len(r) == 0 {
			t.Error("probes: got none, want some")
		}
		s := one(t, tr, x.a.track(), "SEND")
		if s.End-s.Begin != 200*time.Millisecond || s.Attrs["result"] != "not complete at the end of the trace" {
			t.Errorf("request without an answer: got %v", s)
		}
		if d := tr.InstantsNamed("device rxe1", ""); len(d) != 1 || d[0].Name != "port down" {
			t.Errorf("device: got %v, want port down", d)
		}
	})
}

// keptLogs is an observer that chooses a log for each queue, and counts the queues that it knows already.
type keptLogs struct {
	*observed
	fresh, known int
}

func (k *keptLogs) TraceQueue(q driver.QueueRef) driver.RequestLog {
	if q.Log != nil {
		k.known++
		return q.Log
	}
	k.fresh++
	return discardedLog{}
}

type discardedLog struct{}

func (discardedLog) Add(*driver.RequestEvent) {}

// TestRefreshKeepsLogs tests that the observer learns the present log of each queue.
func TestRefreshKeepsLogs(t *testing.T) {
	k := &keptLogs{observed: &observed{}}
	b := newBench(t, setup{shortcut: true, observer: k})
	srq, err := b.a.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 8, MaxSGE: 1}})
	check(t, err)
	if k.fresh, k.known = 0, 0; !b.a.dev.RefreshTraces() || k.fresh != 0 || k.known != 3 {
		t.Errorf("RefreshTraces: got %d new queues and %d known ones, want 0 and 3", k.fresh, k.known)
	}
	check(t, srq.Destroy())
}

// TestLookAtTracesSkipsOtherQueues tests that a look at the traces waits for no untraced completion queue, and for no
// lock of the device, and that the list of traced queues follows the traces.
func TestLookAtTracesSkipsOtherQueues(t *testing.T) {
	var traced atomic.Bool
	traced.Store(true)
	rec := reqtrace.New(func(ib.UserContext) (reqtrace.Program, bool) {
		return reqtrace.Program{User: quota.ID{UID: 1000}}, traced.Load()
	})
	trace, err := rec.Begin(quota.ID{UID: 1000}, func() ([]byte, error) { return make([]byte, reqtrace.Size), nil })
	check(t, err)
	b := newBench(t, setup{observer: rec})
	traced.Store(false)
	other, err := b.a.dev.IB().CreateCQ(ib.CQInit{Entries: 1})
	check(t, err)
	dev := b.a.dev
	look := func() <-chan struct{} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			dev.LookAtTraces()
		}()
		return done
	}
	cqOf(other).mu.Lock()
	dev.cqs.Lock()
	done := look()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("LookAtTraces: still waiting for an untraced queue or the device")
	}
	dev.cqs.Unlock()
	cqOf(other).mu.Unlock()
	<-done
	if n := len(dev.tracedCQs.list()); n != 1 {
		t.Errorf("traced queues: got %d, want 1", n)
	}
	check(t, other.Destroy())
	trace.End()
	dev.RefreshTraces()
	if n := len(dev.tracedCQs.list()); n != 0 {
		t.Errorf("traced queues after the end of the trace: got %d, want 0", n)
	}
}

// traced returns a set-up with traces of all work requests.
func (s setup) traced(t testing.TB) setup {
	r := reqtrace.New(func(ib.UserContext) (reqtrace.Program, bool) { return reqtrace.Program{}, true })
	mem := bytes.Repeat([]byte{1}, reqtrace.Size) // the kernel provides the pages now
	clear(mem)
	_, err := r.Begin(quota.ID{}, func() ([]byte, error) { return mem, nil })
	check(t, err)
	s.observer = r
	return s
}

// TestTracedDataPathAllocates tests that traced messages cost no allocation either.
func TestTracedDataPathAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes sync.Pool drop its buffers")
	}
	for _, s := range []setup{{shortcut: true}, loopback()} {
		p := newPingPong(t, s.traced(t), ib.WRSend, 64)
		p.one(t)
		if n := testing.AllocsPerRun(200, func() { p.one(t) }); n >= 1 {
			t.Errorf("allocations of a message: got %v, want 0", n)
		}
	}
}

// BenchmarkSendTraced is BenchmarkSendShortcut with a trace of the work requests.
func BenchmarkSendTraced(b *testing.B) { benchmarkSend(b, setup{shortcut: true}.traced(b)) }
