package loopback_test

import (
	"testing"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/check"
	"verbena/umem"
)

const grhLen = 40 // length of the header before a datagram in the receive buffer

// connectedPair is a device with a connected queue pair and its peer. Both complete on one queue.
type connectedPair struct {
	core   *ib.Core
	dev    *ib.Device
	handle *ib.DeviceHandle // the handle of dev
	cq     *ib.CQ
	qps    [2]*ib.QP
	sgl    []ib.SGE
	addr   uint64
	to     ib.SendWR      // destination of datagrams
	free   []func() error // called in reverse order
}

// must is called as must(f())(t). must returns the result of f, and fails the test on an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func mustSucceed(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newConnectedPair(t testing.TB, kind ib.QPType, checked bool, size int, handler func(*ib.CQ)) *connectedPair {
	w := &connectedPair{core: &ib.Core{}}
	if checked {
		check.On(w.core, check.Config{Report: func(v check.Violation) { t.Error(v) }})
	}
	w.handle = loopback.New("loop0", nil).Handle()
	w.dev = w.handle.Device()
	mustSucceed(t, w.core.Register(w.handle))
	pd := must(w.dev.AllocPD())(t)
	mem := umem.NewLocal()
	w.addr = must(mem.Add(make([]byte, 2*size+grhLen)))(t)
	const access = ib.AccessLocalWrite | ib.AccessRemoteWrite
	mr := must(pd.RegMR(ib.MRInit{Space: mem, Addr: w.addr, Length: uint64(2*size + grhLen), Access: access}))(t)
	w.sgl = []ib.SGE{{Addr: w.addr, Length: uint32(size), LKey: mr.LKey()}}
	w.cq = must(w.dev.CreateCQ(ib.CQInit{Entries: 64, Handler: handler}))(t)
	w.free = []func() error{func() error { return w.core.Unregister(w.handle) }, pd.Dealloc, mr.Dereg, w.cq.Destroy}
	for i := range w.qps {
		w.qps[i] = must(pd.CreateQP(ib.QPInitAttr{
			SendCQ: w.cq, RecvCQ: w.cq, Type: kind,
			Cap: ib.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1},
		}))(t)
		w.free = append(w.free, w.qps[i].Destroy)
	}
	here := must(w.dev.Local(1))(t)
	if kind == ib.QPTypeRC {
		mustSucceed(t, ib.ConnectPair(w.qps[0], w.qps[1], here, here, ib.Path{Access: access}))
		return w
	}
	to := here.Endpoint(w.qps[1])
	for i, qp := range w.qps {
		mustSucceed(t, qp.ConnectDatagram(here, []ib.Endpoint{here.Endpoint(qp), to}[i]))
	}
	route := here.AddressTo(here.GID)
	ah := must(pd.CreateAH(&route))(t)
	w.free = append(w.free, ah.Destroy)
	w.to = ib.SendWR{AH: ah, RemoteQPN: to.QPN, RemoteQKey: to.QKey}
	return w
}

func (w *connectedPair) close(t testing.TB) {
	for i := len(w.free) - 1; i >= 0; i-- {
		mustSucceed(t, w.free[i]())
	}
}

// exchangeMessage posts a receive and a send, and polls both completions.
func (w *connectedPair) exchangeMessage(t testing.TB, recv []ib.RecvWR, send []ib.SendWR, wc []ib.WC) {
	_, err1 := w.qps[1].PostRecv(recv...)
	_, err2 := w.qps[0].PostSend(send...)
	if n, err3 := w.cq.Poll(wc); n != 2 || err1 != nil || err2 != nil || err3 != nil {
		t.Fatal(n, err1, err2, err3)
	}
}

func (w *connectedPair) newRequests() ([]ib.RecvWR, []ib.SendWR, []ib.WC) {
	send, target := w.to, w.sgl[0]
	send.Opcode, send.Flags, send.SGList = ib.WRSend, ib.SendSignaled, w.sgl
	target.Addr += uint64(target.Length)
	if send.AH != nil {
		target.Length += grhLen
	}
	return []ib.RecvWR{{SGList: []ib.SGE{target}}}, []ib.SendWR{send}, make([]ib.WC, 4)
}

func TestDataPathDoesNotAllocate(t *testing.T) {
	for _, kind := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUD} {
		w := newConnectedPair(t, kind, false, 64, nil)
		recv, send, wc := w.newRequests()
		if n := testing.AllocsPerRun(100, func() { w.exchangeMessage(t, recv, send, wc) }); n != 0 {
			t.Errorf("%v: %v allocations per message", kind, n)
		}
		w.close(t)
	}
}

// BenchmarkMessage measures a SEND of 64 bytes with its receive and both completions.
func BenchmarkMessage(b *testing.B) {
	for _, mode := range []struct {
		name  string
		check bool
	}{{"plain", false}, {"checked", true}} {
		b.Run(mode.name, func(b *testing.B) {
			w := newConnectedPair(b, ib.QPTypeRC, mode.check, 64, nil)
			recv, send, wc := w.newRequests()
			b.ReportAllocs()
			for b.Loop() {
				w.exchangeMessage(b, recv, send, wc)
			}
			w.close(b)
		})
	}
}

// BenchmarkDatagram measures the same for UD. The work requests name an address handle.
func BenchmarkDatagram(b *testing.B) {
	w := newConnectedPair(b, ib.QPTypeUD, false, 64, nil)
	recv, send, wc := w.newRequests()
	b.ReportAllocs()
	for b.Loop() {
		w.exchangeMessage(b, recv, send, wc)
	}
	w.close(b)
}

// BenchmarkCompletionHandler measures the same with a handler that polls and re-arms.
func BenchmarkCompletionHandler(b *testing.B) {
	for _, mode := range []struct {
		name  string
		check bool
	}{{"plain", false}, {"checked", true}} {
		b.Run(mode.name, func(b *testing.B) {
			wc := make([]ib.WC, 4)
			w := newConnectedPair(b, ib.QPTypeRC, mode.check, 64, func(cq *ib.CQ) {
				cq.Poll(wc)
				cq.ReqNotify(ib.NotifyNextComp)
			})
			recv, send, _ := w.newRequests()
			w.cq.ReqNotify(ib.NotifyNextComp)
			b.ReportAllocs()
			for b.Loop() {
				w.handle.HoldCallbacks()
				w.qps[1].PostRecv(recv...)
				w.qps[0].PostSend(send...)
				w.handle.RunCallbacks()
			}
			w.close(b)
		})
	}
}
