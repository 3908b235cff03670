package layout

import (
	"errors"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/driver/efa/ring"
	"verbena/engine/queue"
	"verbena/ib"
	"verbena/uapi"
	"verbena/uapi/efa"
)

// process is a user context with ordinary memory, and the program that uses it.
type process struct {
	ib.UserContext
	t     testing.TB
	areas map[uint64][]byte // by offset
	end   uint64
	freed int
}

func (p *process) AllocShared(size int) (ib.Shared, error) {
	mem := make([]byte, pages(size))
	p.areas[p.end] = mem
	s := ib.Shared{Mem: mem, Offset: p.end, Free: func() { p.freed++ }}
	p.end += uint64(len(mem))
	return s, nil
}

// mmap returns the memory from an offset on.
func (p *process) mmap(key uint64) []byte {
	for off, mem := range p.areas {
		if key >= off && key < off+uint64(len(mem)) {
			return mem[key-off:]
		}
	}
	p.t.Fatalf("mmap: got offset %#x, want one that AllocShared has returned", key)
	return nil
}

func openProcess(t testing.TB) (*process, queue.Program) {
	t.Helper()
	p := &process{t: t, areas: map[uint64][]byte{}}
	u := &ib.Udata{Context: p, In: uapi.AppendTo(nil, &efa.AllocUcontextCmd{SupportedCaps: 3}), Out: make([]byte, 64)}
	q, err := Layout{}.OpenProgram(u)
	if err != nil {
		t.Fatal(err)
	}
	r, _ := uapi.Decode[efa.AllocUcontextResp](u.Out[:u.N])
	if r.SubCQsPerCQ != 1 || r.MaxLLQSize != maxWR*efa.TXWQESize ||
		r.CmdsSuppUdataMask&efa.UserCmdsSuppUdataCreateAH == 0 {
		t.Errorf("OpenProgram: got response %+v, want one array, %d requests and numbers of address handles", r, maxWR)
	}
	return p, q
}

// pair is a queue pair from the view of its program.
type pair struct {
	*process
	sq       queue.SendQueue
	rq       queue.RecvQueue
	resp     efa.CreateQPResp
	send     []byte
	recv     []byte
	bell     memory
	slot     int // bytes
	cap      ib.QPCap
	posted   uint16 // send requests
	descs    uint16 // receive descriptors
	recvMask uint16
}

var testCap = ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 32}

// newPair makes a queue pair with slots of a size.
func newPair(t testing.TB, slot int, c ib.QPCap) *pair {
	t.Helper()
	p, q := openProcess(t)
	cmd := efa.CreateQP{SQRingSize: c.MaxSendWR * uint32(slot), RQRingSize: c.MaxRecvWR * c.MaxRecvSGE * ring.RXDescSize}
	u := &ib.Udata{Context: p, In: uapi.AppendTo(nil, &cmd), Out: make([]byte, 64)}
	sq, rq, err := q.CreateQP(ib.QPTypeUD, &c, true, u)
	if err != nil {
		t.Fatal(err)
	}
	x := &pair{process: p, sq: sq, rq: rq, slot: slot, cap: c, recvMask: uint16(c.MaxRecvWR*c.MaxRecvSGE) - 1}
	x.resp, _ = uapi.Decode[efa.CreateQPResp](u.Out[:u.N])
	x.send, x.recv = p.mmap(x.resp.LLQDescMmapKey), p.mmap(x.resp.RQMmapKey)
	x.bell = memory{p.mmap(x.resp.SQDBMmapKey)}
	if x.resp.SQDBMmapKey != x.resp.RQDBMmapKey || x.resp.SQDBOffset == x.resp.RQDBOffset {
		t.Errorf("CreateQP: got response %+v, want two counts in one page", x.resp)
	}
	return x
}

// postSend writes a request and, with ring, announces it.
func (x *pair) postSend(m efa.TXMetaDesc, data []byte, ring bool) {
	m.Ctrl1 |= efa.IOTXMetaDescMetaDescMask
	m.Ctrl2 |= efa.IOTXMetaDescFirstMask | efa.IOTXMetaDescLastMask | efa.IOTXMetaDescCompReqMask
	at := int(x.posted) % int(x.cap.MaxSendWR) * x.slot
	clear(x.send[at : at+x.slot])
	uapi.Encode(x.send[at:], &m)
	copy(x.send[at+efa.TXWQEDataOffset:], data)
	x.posted++
	if ring {
		x.bell.store(int(x.resp.SQDBOffset), uint32(x.posted))
	}
}

func (x *pair) postRecv(list ...efa.RXDesc) {
	for _, d := range list {
		uapi.Encode(x.recv[int(x.descs&x.recvMask)*ring.RXDescSize:], &d)
		x.descs++
	}
	x.bell.store(int(x.resp.RQDBOffset), uint32(x.descs))
}

func (x *pair) fetch(n int) (w queue.Send, found, ok bool) {
	found, ok = x.sq.Fetch(n, &w)
	return w, found, ok
}

func buf(addr uint64, n, key uint32) []byte {
	d := efa.TXBufDesc{Length: n, LKey: key | 0xff<<24, BufAddrLo: uint32(addr), BufAddrHi: uint32(addr >> 32)}
	return uapi.AppendTo(nil, &d)
}

// TestSend tests the decoding of send requests, round the queue several times and past the end of the count.
func TestSend(t *testing.T) {
	for _, slot := range []int{efa.TXWQESize, efa.TXWQE128Size} {
		x := newPair(t, slot, testCap)
		if x.sq.Capacity() != 4 {
			t.Errorf("Capacity: got %d, want 4", x.sq.Capacity())
		}
		if _, some := x.sq.Posted(); some {
			t.Error("Posted: got requests in a new queue, want none")
		}
		for i := range 1<<16 + 10 {
			x.postSend(efa.TXMetaDesc{
				ReqID: uint16(i), Ctrl1: efa.IOTXMetaDescHasImmMask, DestQPNum: 7, Length: 2, ImmediateData: 0x01020304, AH: 9,
				QKey: 11,
			}, append(buf(1<<40|5, 100, 3), buf(6, 0, 4)...), true)
			w, found, ok := x.fetch(0)
			want := []ib.SGE{{Addr: 1<<40 | 5, Length: 100, LKey: 3}}
			if !found || !ok || w.ID != uint64(uint16(i)) || w.Opcode != uapi.WRSendWithImm || w.QPN != 7 || w.AH != 9 ||
				w.QKey != 11 || w.NumSGE != 2 || !slices.Equal(w.SGEs, want) || w.Length != 100 ||
				w.Flags != uapi.SendSignaled || w.Imm != uapi.ImmData(uapi.NewBE32(0x01020304)) {
				t.Fatalf("request %d: got %+v, %v, %v", i, w, found, ok)
			}
			if _, some := x.sq.Posted(); !some {
				t.Fatalf("request %d: Posted: got none, want some", i)
			}
			x.sq.Take()
			if _, found, _ := x.fetch(0); found {
				t.Fatalf("request %d: got another one", i)
			}
			x.sq.Complete()
		}
	}
}

// TestInline tests inline data in both sizes of slots.
func TestInline(t *testing.T) {
	for _, c := range []struct{ slot, room int }{{efa.TXWQESize, 32}, {efa.TXWQE128Size, 80}} {
		x := newPair(t, c.slot, testCap)
		data := make([]byte, c.slot-efa.TXWQEDataOffset)
		for i := range data {
			data[i] = byte(i)
		}
		for _, n := range []int{0, 1, c.room, c.room + 1, 65535} {
			x.postSend(efa.TXMetaDesc{Ctrl1: efa.IOTXMetaDescInlineMsgMask, Length: uint16(n)}, data, true)
			w, found, ok := x.fetch(0)
			if !found || !ok || w.Length != uint64(n) || len(w.Inline) != min(n, c.room) ||
				!slices.Equal(w.Inline, data[:min(n, c.room)]) || w.Flags&uapi.SendInline == 0 {
				t.Errorf("slot of %d, %d bytes: got %+v, %v, %v", c.slot, n, w, found, ok)
			}
			x.sq.Take()
			x.sq.Complete()
		}
	}
}

// TestRDMA tests the decoding of RDMA requests.
func TestRDMA(t *testing.T) {
	for _, c := range []struct {
		ctrl uint8
		want uapi.WROpcode
	}{
		{uint8(efa.IORDMARead), uapi.WRRDMARead},
		{uint8(efa.IORDMAWrite), uapi.WRRDMAWrite},
		{uint8(efa.IORDMAWrite) | efa.IOTXMetaDescHasImmMask, uapi.WRRDMAWriteWithImm},
	} {
		x := newPair(t, efa.TXWQESize, testCap)
		remote := uapi.AppendTo(nil, &efa.RemoteMemAddr{Length: 100, RKey: 5, BufAddrLo: 6, BufAddrHi: 7})
		x.postSend(efa.TXMetaDesc{Ctrl1: c.ctrl, Length: 1, AH: 9, QKey: 11}, append(remote, buf(1<<40|5, 100, 3)...), true)
		w, found, ok := x.fetch(0)
		if !found || !ok || w.Opcode != c.want || w.RKey != 5 || w.RemoteAddr != 7<<32|6 || w.AH != 9 || w.QKey != 11 ||
			!slices.Equal(w.SGEs, []ib.SGE{{Addr: 1<<40 | 5, Length: 100, LKey: 3}}) || w.Length != 100 {
			t.Errorf("control %#x: got %+v, %v, %v, want opcode %v", c.ctrl, w, found, ok, c.want)
		}
	}
}

// TestMalformedSend tests that a request that the adapter does not know has an opcode that the engine refuses.
func TestMalformedSend(t *testing.T) {
	for name, change := range map[string]func(m *efa.TXMetaDesc){
		"no metadata":   func(m *efa.TXMetaDesc) { m.Ctrl1 &^= efa.IOTXMetaDescMetaDescMask },
		"extension":     func(m *efa.TXMetaDesc) { m.Ctrl1 |= efa.IOTXMetaDescMetaExtensionMask },
		"not the first": func(m *efa.TXMetaDesc) { m.Ctrl2 &^= efa.IOTXMetaDescFirstMask },
		"not the last":  func(m *efa.TXMetaDesc) { m.Ctrl2 &^= efa.IOTXMetaDescLastMask },
		"RDMA READ with immediate": func(m *efa.TXMetaDesc) {
			m.Ctrl1 |= uint8(efa.IORDMARead) | efa.IOTXMetaDescHasImmMask
		},
		"RDMA READ inline": func(m *efa.TXMetaDesc) {
			m.Ctrl1 |= uint8(efa.IORDMARead) | efa.IOTXMetaDescInlineMsgMask
		},
		"RDMA WRITE inline": func(m *efa.TXMetaDesc) {
			m.Ctrl1 |= uint8(efa.IORDMAWrite) | efa.IOTXMetaDescInlineMsgMask
		},
		"RDMA WRITE of 2 elements": func(m *efa.TXMetaDesc) {
			m.Ctrl1 |= uint8(efa.IORDMAWrite)
			m.Length = 2
		},
		"operation 15": func(m *efa.TXMetaDesc) { m.Ctrl1 |= efa.IOTXMetaDescOpTypeMask },
	} {
		x := newPair(t, efa.TXWQESize, testCap)
		x.postSend(efa.TXMetaDesc{Length: 1}, buf(1, 2, 3), false)
		m, _ := uapi.Decode[efa.TXMetaDesc](x.send)
		change(&m)
		uapi.Encode(x.send, &m)
		x.bell.store(int(x.resp.SQDBOffset), 1)
		if w, found, ok := x.fetch(0); !found || !ok || w.Opcode != noOpcode || len(w.SGEs) != 0 {
			t.Errorf("%s: got %+v, %v, %v, want no opcode and no elements", name, w, found, ok)
		}
	}
}

// TestHostileCount tests that a count beyond the end of the queue is an error, and that a count below it is not.
func TestHostileCount(t *testing.T) {
	for _, c := range []struct {
		count uint32
		ok    bool
		n     uint32
	}{{0, true, 0}, {4, true, 4}, {5, false, 0}, {0xffff, false, 0}, {0x10004, true, 4}, {0xfffffffe, false, 0}} {
		x := newPair(t, efa.TXWQESize, testCap)
		x.bell.store(int(x.resp.SQDBOffset), c.count)
		if n, ok := x.sq.Waiting(); ok != c.ok || n != c.n {
			t.Errorf("count %#x: got %d, %v, want %d, %v", c.count, n, ok, c.n, c.ok)
		}
		if _, found, ok := x.fetch(int(c.n)); found || ok != c.ok {
			t.Errorf("count %#x: request %d: got %v, %v, want none and %v", c.count, c.n, found, ok, c.ok)
		}
	}
}

// TestCountBehindTaken tests that a program that takes its count back behind requests in progress loses its queue.
func TestCountBehindTaken(t *testing.T) {
	x := newPair(t, efa.TXWQESize, testCap)
	for range 3 {
		x.postSend(efa.TXMetaDesc{}, nil, true)
		if _, found, ok := x.fetch(0); !found || !ok {
			t.Fatalf("request: got %v, %v, want one", found, ok)
		}
		x.sq.Take()
	}
	x.bell.store(int(x.resp.SQDBOffset), 1)
	if n, ok := x.sq.Waiting(); n != 0 || ok {
		t.Errorf("count 1 of 3 taken requests: got %d, %v, want 0 and false", n, ok)
	}
	if _, found, ok := x.fetch(0); found || ok {
		t.Errorf("request: got %v, %v, want none", found, ok)
	}
}

// TestTakeBack tests the end of posted requests, and a new beginning after RESET.
func TestTakeBack(t *testing.T) {
	x := newPair(t, efa.TXWQESize, testCap)
	x.postSend(efa.TXMetaDesc{}, nil, true)
	x.sq.TakeBack()
	if _, some := x.sq.Posted(); some {
		t.Error("after TakeBack: got requests, want none")
	}
	x.posted = 0
	x.postSend(efa.TXMetaDesc{}, nil, true)
	x.postRecv(efa.RXDesc{LKeyCtrl: efa.IORXDescFirstMask | efa.IORXDescLastMask})
	if !x.sq.Discard() || !x.rq.Discard() {
		t.Error("Discard: got false, want true")
	}
	x.posted, x.descs = 0, 0
	x.postSend(efa.TXMetaDesc{ReqID: 5}, nil, true)
	if w, found, _ := x.fetch(0); !found || w.ID != 5 {
		t.Errorf("after Discard: got %+v, %v, want request 5", w, found)
	}
}

// TestRecv tests the decoding of receives with one and several descriptors, and of malformed ones.
func TestRecv(t *testing.T) {
	const first, last = efa.IORXDescFirstMask, efa.IORXDescLastMask
	x := newPair(t, efa.TXWQESize, testCap)
	for i := range 1 << 15 {
		x.postRecv(
			efa.RXDesc{ReqID: uint16(i), BufAddrLo: 1, BufAddrHi: 2, Length: 10, LKeyCtrl: 5 | first},
			efa.RXDesc{BufAddrLo: 3, Length: 20, LKeyCtrl: 6 | last},
			efa.RXDesc{ReqID: 77, Length: 0, LKeyCtrl: 7 | first | last},
			efa.RXDesc{ReqID: 78, LKeyCtrl: last}, // malformed
		)
		for k, want := range []queue.Recv{
			{ID: uint64(uint16(i)), NumSGE: 2, Length: 30, SGEs: []ib.SGE{
				{Addr: 2<<32 | 1, Length: 10, LKey: 5}, {Addr: 3, Length: 20, LKey: 6},
			}},
			{ID: 77, NumSGE: 1},
			{ID: 78, NumSGE: ^uint32(0)},
		} {
			var w queue.Recv
			found, ok := x.rq.Fetch(0, &w)
			if !found || !ok || w.ID != want.ID || w.NumSGE != want.NumSGE || w.Length != want.Length ||
				!slices.Equal(w.SGEs, want.SGEs) {
				t.Fatalf("receive %d, %d: got %+v, %v, %v, want %+v", i, k, w, found, ok, want)
			}
			x.rq.Take()
			x.rq.Complete()
		}
		if found, ok := x.rq.Fetch(0, &queue.Recv{}); found || !ok {
			t.Fatalf("receive %d: got another one", i)
		}
	}
	x.postRecv(efa.RXDesc{ReqID: 1, LKeyCtrl: first}, efa.RXDesc{LKeyCtrl: 0},
		efa.RXDesc{ReqID: 2, LKeyCtrl: first | last})
	var w queue.Recv
	if found, ok := x.rq.Fetch(2, &w); !found || !ok || w.ID != 2 {
		t.Errorf("receive behind a malformed one: got %+v, %v, %v, want 2", w, found, ok)
	}
}

// TestCreateQPIsChecked tests the requests that the driver refuses.
func TestCreateQPIsChecked(t *testing.T) {
	good := efa.CreateQP{SQRingSize: 4 * 64, RQRingSize: 8 * 16}
	for name, c := range map[string]struct {
		change func(cmd *efa.CreateQP, c *ib.QPCap)
		want   error
	}{
		"good":           {func(*efa.CreateQP, *ib.QPCap) {}, nil},
		"short ring":     {func(cmd *efa.CreateQP, _ *ib.QPCap) { cmd.SQRingSize = 64 }, syscall.EINVAL},
		"long ring":      {func(cmd *efa.CreateQP, _ *ib.QPCap) { cmd.SQRingSize = 4 * 192 }, syscall.EINVAL},
		"three requests": {func(cmd *efa.CreateQP, c *ib.QPCap) { c.MaxSendWR, cmd.SQRingSize = 3, 192 }, syscall.EINVAL},
		"odd descriptor": {func(cmd *efa.CreateQP, _ *ib.QPCap) { cmd.RQRingSize++ }, syscall.EINVAL},
		"three descs":    {func(cmd *efa.CreateQP, _ *ib.QPCap) { cmd.RQRingSize = 7 * 16 }, syscall.EINVAL},
		"too few descs":  {func(cmd *efa.CreateQP, _ *ib.QPCap) { cmd.RQRingSize = 2 * 16 }, syscall.EINVAL},
		"too many descs": {func(cmd *efa.CreateQP, _ *ib.QPCap) { cmd.RQRingSize = 2 * maxDesc * 16 }, syscall.EINVAL},
		"inline":         {func(_ *efa.CreateQP, c *ib.QPCap) { c.MaxInlineData = 33 }, syscall.EINVAL},
		"unsolicited":    {func(cmd *efa.CreateQP, _ *ib.QPCap) { cmd.Flags = 1 }, syscall.EOPNOTSUPP},
		"comp mask":      {func(cmd *efa.CreateQP, _ *ib.QPCap) { cmd.CompMask = 1 }, syscall.EOPNOTSUPP},
		"reserved":       {func(cmd *efa.CreateQP, _ *ib.QPCap) { cmd.Reserved98[4] = 1 }, syscall.EOPNOTSUPP},
	} {
		p, q := openProcess(t)
		cmd, limits := good, testCap
		c.change(&cmd, &limits)
		u := &ib.Udata{Context: p, In: uapi.AppendTo(nil, &cmd), Out: make([]byte, 64)}
		if _, _, err := q.CreateQP(ib.QPTypeUD, &limits, true, u); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
		if c.want != nil && len(p.areas) != 1 { // that of the directory
			t.Errorf("%s: got %d areas of memory, want none of the queues", name, len(p.areas)-1)
		}
		u = &ib.Udata{Context: p, In: append(uapi.AppendTo(nil, &good), 1), Out: make([]byte, 64)}
		if _, _, err := q.CreateQP(ib.QPTypeUD, &limits, true, u); !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("longer request: got %v, want EOPNOTSUPP", err)
		}
	}
}

// newCQ makes a completion queue with the entries that the program maps.
func newCQ(t *testing.T, cmd efa.CreateCQ, entries int) (queue.CompletionQueue, []byte, memory) {
	t.Helper()
	p, q := openProcess(t)
	u := &ib.Udata{Context: p, In: uapi.AppendTo(nil, &cmd), Out: make([]byte, 64)}
	c, err := q.CreateCQ(entries, u)
	if err != nil {
		t.Fatal(err)
	}
	r, _ := uapi.Decode[efa.CreateCQResp](u.Out[:u.N])
	var bell memory
	if r.CompMask&efa.CreateCQRespDBOff != 0 {
		bell = memory{p.mmap(r.DBMmapKey)[r.DBOff:]}
	}
	return c, p.mmap(r.QMmapKey), bell
}

// TestCompletions reads completions as the library does: by the phase bit, round the array several times.
func TestCompletions(t *testing.T) {
	for _, size := range []int{entrySize, entrySizeEx} {
		q, mem, _ := newCQ(t, efa.CreateCQ{CQEntrySize: uint32(size), NumSubCQs: 1}, 3)
		if q.Capacity() != 4 {
			t.Fatalf("Capacity: got %d, want 4", q.Capacity())
		}
		phase := efa.IOCDescCommonPhaseMask
		for i := range 40 {
			at := mem[i%4*size:][:size]
			if c, _ := uapi.Decode[efa.CDescCommon](at); c.Flags&efa.IOCDescCommonPhaseMask == phase {
				t.Fatalf("entry %d: got the phase of this round before it was written", i)
			}
			wc := uapi.WC{
				WRID: uint64(i), Opcode: uapi.WCRecv, ByteLen: 0xabcd, QPNum: 0x1234, SrcQP: 0x5678, SLID: uint16(i % 2),
				WCFlags: uapi.WCFlags(uapi.IBVWCWithImm), Ex: uapi.ImmData(uapi.NewBE32(99)),
			}
			if i%3 == 0 {
				wc.Opcode, wc.Status = uapi.WCSend, uapi.WCLocProtErr
			}
			if !q.Push(&wc) {
				t.Fatal("Push: got false, want true")
			}
			r, _ := uapi.Decode[efa.RXCDesc](at)
			c := r.Common
			if c.Flags&efa.IOCDescCommonPhaseMask != phase || c.ReqID != uint16(i) || c.QPNum != 0x1234 {
				t.Fatalf("entry %d: got %+v", i, c)
			}
			if i%3 == 0 {
				if c.Flags>>1&3 != efa.IOSendQueue || c.Status != efa.IOCompStatusLocalErrorInvalidLKey {
					t.Errorf("entry %d: got %+v, want a failed send", i, c)
				}
			} else {
				ah := efa.UnknownAH
				if i%2 != 0 {
					ah = 1
				}
				if c.Flags>>1&3 != efa.IORecvQueue || c.Status != 0 || r.Length != 0xabcd || r.SrcQPNum != 0x5678 ||
					r.AH != ah || r.Imm != 99 || c.Flags&efa.IOCDescCommonHasImmMask == 0 {
					t.Errorf("entry %d: got %+v, want a receive from handle %#x", i, r, ah)
				}
			}
			if i%4 == 3 {
				phase ^= efa.IOCDescCommonPhaseMask
			}
		}
	}
}

// TestStatuses tests that each status has a different one of EFA, and that an unknown one is an internal error.
func TestStatuses(t *testing.T) {
	seen := map[efa.CompStatus]bool{}
	for s := uapi.WCSuccess; s <= uapi.WCGeneralErr; s++ {
		c := efa.StatusOf(s)
		if c != efa.IOCompStatusLocalErrorQPInternalError && seen[c] {
			t.Errorf("status %v: got %d, which another status has", s, c)
		}
		seen[c] = true
		if (c == 0) != (s == uapi.WCSuccess) {
			t.Errorf("status %v: got %d", s, c)
		}
	}
}

// TestArmed tests the events of a queue with a completion channel: one for each number.
func TestArmed(t *testing.T) {
	q, _, bell := newCQ(t, efa.CreateCQ{CQEntrySize: entrySize, NumSubCQs: 1, Flags: efa.CreateCQWithCompletionChannel}, 4)
	a := q.(queue.Armer)
	for i := range uint32(9) { // the number has two bits
		bell.store(0, i<<29&efa.RegsCQDBCmdSNMask|efa.RegsCQDBArmMask|5)
		bell.store(0, i<<29&efa.RegsCQDBCmdSNMask|6) // the library has read an entry after it has armed the queue
		for k, want := range []bool{true, false, false} {
			if got := a.Armed(); got != want {
				t.Errorf("event %d, completion %d: got %v, want %v", i, k, got, want)
			}
		}
	}
	q, _, _ = newCQ(t, efa.CreateCQ{CQEntrySize: entrySize, NumSubCQs: 1}, 4)
	if q.(queue.Armer).Armed() {
		t.Error("queue without a channel: got an event, want none")
	}
}

// TestMemoryCovers tests that the largest queues use as much memory as Memory returns.
func TestMemoryCovers(t *testing.T) {
	c := ib.QPCap{MaxSendWR: maxWR, MaxRecvWR: maxWR, MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE}
	x := newPair(t, efa.TXWQE128Size, c)
	context, work, _ := Layout{}.Memory(maxWR, maxCQE)
	if x.end != context+work {
		t.Errorf("queues of %d requests: got %d bytes, want %d", maxWR, x.end, context+work)
	}
	x.sq.Free()
	x.rq.Free()
	if x.freed != 1 {
		t.Errorf("Free: got %d areas, want 1", x.freed)
	}
}

// FuzzRings writes random bytes to the queues. The decoded requests must keep the limits of the queues.
func FuzzRings(f *testing.F) {
	f.Add([]byte{1, 2, 3}, uint32(1), uint32(1))
	f.Add(make([]byte, 256), uint32(4), uint32(8))
	r := rand.New(rand.NewPCG(1, 2))
	for range 4 {
		b := make([]byte, 256)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b, r.Uint32N(5), r.Uint32N(9))
	}
	f.Fuzz(func(t *testing.T, b []byte, sends, recvs uint32) {
		x := newPair(t, efa.TXWQESize, testCap)
		copy(x.send, b)
		copy(x.recv, b)
		x.bell.store(int(x.resp.SQDBOffset), sends)
		x.bell.store(int(x.resp.RQDBOffset), recvs)
		for n := 0; ; n++ {
			w, found, ok := x.fetch(0)
			if !found || !ok {
				break
			}
			if n >= int(x.cap.MaxSendWR) || len(w.SGEs) > maxSGE || len(w.Inline) > 32 || w.QPN > 0xffff || w.AH > 0xffff {
				t.Fatalf("request %d: got %+v", n, w)
			}
			x.sq.Take()
			x.sq.Complete()
		}
		var w queue.Recv
		for n := 0; ; n++ {
			found, ok := x.rq.Fetch(0, &w)
			if !found || !ok {
				break
			}
			if n > int(x.recvMask) || len(w.SGEs) > int(x.cap.MaxRecvSGE) || w.Length > 2*0xffff ||
				w.NumSGE <= x.cap.MaxRecvSGE && w.NumSGE == 0 {
				t.Fatalf("receive %d: got %+v", n, w)
			}
			x.rq.Take()
			x.rq.Complete()
		}
	})
}

// TestMemoryTakenAway tests that accesses to pages that the program has taken away are reported, and end no thread.
func TestMemoryTakenAway(t *testing.T) {
	fd, err := unix.MemfdCreate("queues", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	page := pages(1)
	if err := unix.Ftruncate(fd, int64(page)); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	m := memory{mem}
	c := counts{page: m, slots: 4, record: m}
	sq := &sendQueue{counts: counts{page: m, slots: 4, record: m}, mem: m, size: efa.TXWQESize}
	rq := &recvQueue{counts: counts{page: m, slots: 4, record: m}, mem: m, sges: 1}
	cq := &completionQueue{mem: m, doorbell: m, size: entrySize, slots: 4}
	if n, ok := c.posted(); n != 0 || !ok {
		t.Errorf("posted: got %d, %v, want 0 and true", n, ok)
	}
	if err := unix.Ftruncate(fd, 0); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() bool{
		"posted":       func() bool { _, ok := c.posted(); return ok },
		"discard":      c.discard,
		"send":         func() bool { _, ok := sq.Fetch(0, &queue.Send{}); return ok },
		"waiting":      func() bool { _, ok := sq.Waiting(); return ok },
		"receive":      func() bool { _, ok := rq.Fetch(0, &queue.Recv{}); return ok },
		"a descriptor": func() bool { _, ok := rq.decode(&queue.Recv{}, 0, 1); return ok },
		"completion":   func() bool { return cq.Push(&uapi.WC{}) },
		"event":        cq.Armed,
	} {
		if f() {
			t.Errorf("%s: got success, want failure", name)
		}
	}
	if _, some := sq.Posted(); !some {
		t.Error("Posted: got none, want a look, so that the engine finds the failure")
	}
	sq.TakeBack()
}

// TestCreateCQIsChecked tests the requests for completion queues, and that the queues of a program have different
// numbers.
func TestCreateCQIsChecked(t *testing.T) {
	good := efa.CreateCQ{CQEntrySize: entrySize, NumSubCQs: subCQs}
	p, q := openProcess(t)
	numbers := map[uint16]bool{}
	for name, c := range map[string]struct {
		change func(cmd *efa.CreateCQ)
		want   error
	}{
		"good":       {func(*efa.CreateCQ) {}, nil},
		"good again": {func(*efa.CreateCQ) {}, nil},
		"wide":       {func(cmd *efa.CreateCQ) { cmd.CQEntrySize = entrySizeEx }, nil},
		"entry":      {func(cmd *efa.CreateCQ) { cmd.CQEntrySize++ }, syscall.EINVAL},
		"arrays":     {func(cmd *efa.CreateCQ) { cmd.NumSubCQs++ }, syscall.EINVAL},
		"comp mask":  {func(cmd *efa.CreateCQ) { cmd.CompMask = 1 }, syscall.EOPNOTSUPP},
		"flags":      {func(cmd *efa.CreateCQ) { cmd.Flags = 0x80 }, syscall.EOPNOTSUPP},
		"reserved":   {func(cmd *efa.CreateCQ) { cmd.Reserved58[4] = 1 }, syscall.EOPNOTSUPP},
	} {
		cmd := good
		c.change(&cmd)
		u := &ib.Udata{Context: p, In: uapi.AppendTo(nil, &cmd), Out: make([]byte, 64)}
		cq, err := q.CreateCQ(1, u)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
		if err != nil {
			continue
		}
		r, _ := uapi.Decode[efa.CreateCQResp](u.Out[:u.N])
		if numbers[r.CQIdx] || cq.Capacity() != 1 {
			t.Errorf("%s: got number %d for %d entries, want a new number for 1", name, r.CQIdx, cq.Capacity())
		}
		numbers[r.CQIdx] = true
	}
}

// TestFetchAhead tests that Fetch finds the requests behind the next one, round the queue.
func TestFetchAhead(t *testing.T) {
	x := newPair(t, efa.TXWQESize, testCap)
	for id := range uint16(3) {
		x.postSend(efa.TXMetaDesc{ReqID: id, Length: 1}, buf(0, 8, 1), true)
		x.fetch(0)
		x.sq.Take()
		x.sq.Complete()
	}
	for id := range uint16(4) {
		x.postSend(efa.TXMetaDesc{ReqID: 10 + id, Length: 1}, buf(0, 8, 1), true)
	}
	for n := range 4 {
		if w, found, ok := x.fetch(n); w.ID != uint64(10+n) || !found || !ok {
			t.Errorf("request %d: got identifier %d, found %t, want %d", n, w.ID, found, 10+n)
		}
	}
	if _, found, _ := x.fetch(4); found {
		t.Error("request 4: got one, want none")
	}
}

// TestAttributes tests the attributes that the adapter does not have, or that have one value.
func TestAttributes(t *testing.T) {
	a := ib.DeviceAttr{
		MaxMW: 1, MaxSRQ: 1, MaxSRQWR: 1, MaxSRQSGE: 1, MaxMcastGrp: 1, MaxMcastQPAttach: 1, MaxTotalMcastAtch: 1,
		MaxQPRdAtom: 1, MaxResRdAtom: 1, MaxQPInitRdAtom: 1, LocalCAAckDelay: 1, DeviceCapFlags: 1, AtomicCap: 1,
	}
	attributes(&a)
	want := ib.DeviceAttr{
		VendorID: vendorAmazon, VendorPartID: partEFA2, HWVer: hwVersion, NodeType: ib.NodeUnspecified,
		MaxSGERd: efa.IOTXDescNumRDMABufs,
	}
	if a != want {
		t.Errorf("device: got %+v, want %+v", a, want)
	}
	p := ib.PortAttr{ActiveMTU: 5, LMC: 7, CapFlags: 1, ActiveWidth: 1, ActiveSpeed: 1}
	port(&p)
	if want := (ib.PortAttr{
		ActiveMTU: 5, LMC: 1, LinkLayer: ib.LinkUnspecified, MaxMsgSize: 4096,
		ActiveWidth: uint8(uapi.PortWidth4X), ActiveSpeed: uint16(uapi.PortSpeedEDR),
	}); p != want {
		t.Errorf("port: got %+v, want %+v", p, want)
	}
}

// TestOneSlot tests a send queue of one request with slots of 128 bytes, and a request without a completion.
func TestOneSlot(t *testing.T) {
	c := testCap
	c.MaxSendWR = 1
	x := newPair(t, efa.TXWQE128Size, c)
	for _, signaled := range []bool{true, false} {
		x.postSend(efa.TXMetaDesc{ReqID: 3, Length: 1}, buf(0, 8, 1), false)
		if !signaled {
			m, _ := uapi.Decode[efa.TXMetaDesc](x.send)
			m.Ctrl2 &^= efa.IOTXMetaDescCompReqMask
			uapi.Encode(x.send, &m)
		}
		x.bell.store(int(x.resp.SQDBOffset), uint32(x.posted))
		w, found, ok := x.fetch(0)
		if got := w.Flags&uapi.SendSignaled != 0; !found || !ok || got != signaled {
			t.Errorf("request: got %+v, found %t, want a completion: %t", w, found, signaled)
		}
		x.sq.Take()
		x.sq.Complete()
	}
}
