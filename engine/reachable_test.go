package engine

import (
	"runtime"
	"testing"
	"weak"

	"verbena/explain"
	"verbena/ib"
	"verbena/internal/quota"
	"verbena/internal/testutil"
	"verbena/uapi"
)

// plainContext is a user context that only the device and its observer reference.
type plainContext struct{ *program }

// TestRecorderKeepsNoObjects tests that a destroyed queue pair and a closed context are unreachable while the recorder
// of causes remembers the queue pair, its failures and its key.
func TestRecorderKeepsNoObjects(t *testing.T) {
	rec := explain.New(explain.Config{Program: func(ib.UserContext) (explain.Program, bool) {
		return explain.Program{User: quota.ID{UID: 1000}, PID: 42}, true
	}})
	b := newBench(t, setup{observer: rec})
	p := newProgram(t)
	qp, context := failAndClose(t, b, p)
	testutil.Eventually(t, "the queue pair and the context to be unreachable", func() bool {
		runtime.GC()
		return qp.Value() == nil && context.Value() == nil
	})
	if list := rec.Causes(explain.Query{Sees: func(quota.ID) bool { return true }}); len(list) == 0 {
		t.Error("causes after the end of the context: got none, want the failed request")
	}
}

// failAndClose opens a context, makes a request of a queue pair fail, and closes the context.
func failAndClose(t *testing.T, b *bench, p *program) (weak.Pointer[QP], weak.Pointer[plainContext]) {
	c := &plainContext{p}
	dev := b.a.dev
	check(t, contexter(dev).AllocUserContext(&ib.Udata{Context: c}))
	cq, err := ibuser.CreateCQ(dev.IB(), ib.CQInit{Entries: 50, Event: func(*ib.CQ, ib.EventType) {}},
		&ib.Udata{Context: c, Out: make([]byte, 64)})
	check(t, err)
	data := &ib.Udata{Context: c, Out: make([]byte, 64)}
	handle, err := ibuser.CreateQP(b.a.pd, ib.QPInitAttr{
		SendCQ: cq, RecvCQ: cq, Cap: ib.QPCap{MaxSendWR: 64, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
		Type: ib.QPTypeRC, Event: func(*ib.QP, ib.EventType) {},
	}, data)
	check(t, err)
	resp, _ := uapi.Decode[uapi.RXECreateQPResp](data.Out[:data.N])
	u := &user{program: p, b: b, cq: cq, qp: handle, sq: userRing{p.mmap(resp.SQMI)}}
	connectQPs(t, dev, handle, b.b.dev, b.b.qp, conn{})
	qp := qpOf(handle)
	for i := range uint64(8) { // the first one fails; the others are in flight, or flushed
		u.sq.post(u.wqe(i, uapi.WRRDMAWrite, uapi.SendSignaled, ib.SGE{Addr: b.a.addr, Length: 8, LKey: b.a.mr.LKey() + 1}))
	}
	u.doorbell()
	testutil.Eventually(t, "the error state", func() bool { return qp.State() == ib.QPErr })
	check(t, handle.Destroy())
	if qp.req.wqes != nil {
		t.Errorf("requests of a destroyed queue pair: got room for %d, want none", len(qp.req.wqes))
	}
	check(t, cq.Destroy())
	contexter(dev).DeallocUserContext(c)
	return weak.Make(qp), weak.Make(c)
}
