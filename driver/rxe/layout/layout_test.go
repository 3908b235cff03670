package layout

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/internal/queuedir"
	"verbena/uapi"
)

// memory is a user context with ordinary memory as its shared memory.
type memory struct {
	ib.UserContext
	offset uint64
	freed  int
	full   bool
}

func (m *memory) AllocShared(size int) (ib.Shared, error) {
	if m.full {
		return ib.Shared{}, syscall.ENOMEM
	}
	m.offset += 1 << 20
	return ib.Shared{Mem: make([]byte, size), Offset: m.offset, Free: func() { m.freed++ }}, nil
}

func openProgram(t *testing.T) (*memory, queue.Program) {
	t.Helper()
	m := &memory{}
	p, err := Layout{}.OpenProgram(&ib.Udata{Context: m})
	if err != nil {
		t.Fatal(err)
	}
	return m, p
}

// randomSGEs returns up to most elements, some of them empty.
func randomSGEs(r *rand.Rand, most int) (list []ib.SGE, num uint32) {
	n := r.IntN(most + 1)
	for range n {
		list = queue.AppendSGE(list, ib.SGE{Addr: r.Uint64(), Length: uint32(r.IntN(3)) * r.Uint32() >> 8, LKey: r.Uint32()})
	}
	return list, uint32(len(list))
}

// randomSend returns a request of a queue pair of a type, as the engine describes requests of consumers.
func randomSend(r *rand.Rand, typ ib.QPType) queue.Send {
	w := queue.Send{ID: r.Uint64(), Flags: uapi.SendFlags(r.Uint32()) &^ uapi.SendInline}
	if typ == ib.QPTypeUD {
		w.Opcode = []uapi.WROpcode{uapi.WRSend, uapi.WRSendWithImm}[r.IntN(2)]
		w.QPN, w.QKey, w.AH = r.Uint32(), r.Uint32(), 1+r.Uint32N(100)
	} else {
		w.SRQN = r.Uint32()
		w.RKey = r.Uint32()
		w.RemoteAddr = r.Uint64()
		w.Opcode = []uapi.WROpcode{
			uapi.WRSend, uapi.WRSendWithInv, uapi.WRRDMAWrite, uapi.WRRDMAWriteWithImm, uapi.WRRDMARead,
			uapi.WRAtomicCmpAndSwp, uapi.WRAtomicFetchAndAdd, uapi.WRBindMW, uapi.WRFlush, uapi.WRAtomicWrite,
		}[r.IntN(10)]
	}
	r.Uint32()
	w.Imm = uapi.NewImmRKey(r.Uint32())
	switch w.Opcode {
	case uapi.WRAtomicCmpAndSwp, uapi.WRAtomicFetchAndAdd:
		w.CompareAdd, w.Swap = r.Uint64(), r.Uint64()
	case uapi.WRBindMW:
		w.RemoteAddr, w.RKey = 0, 0
		w.Bind = queue.Bind{
			Addr: r.Uint64(), Length: r.Uint64(), MRLKey: r.Uint32(), MWRKey: r.Uint32(), RKey: r.Uint32(), Access: 1,
		}
		return w
	case uapi.WRFlush:
		w.Flush = queue.Flush{Length: r.Uint32(), Type: 1, Level: 1}
		return w
	case uapi.WRAtomicWrite:
		w.Length, w.Inline = atomicLen, []byte("12345678")
		return w
	}
	if canBeInline(w.Opcode) && r.IntN(3) == 0 {
		w.Flags |= uapi.SendInline
		w.Inline = slices.Repeat([]byte{byte(r.Uint32())}, 1+r.IntN(60))
		w.Length = uint64(len(w.Inline))
		return w
	}
	w.SGEs, w.NumSGE = randomSGEs(r, 4)
	w.Length = uint64(queue.Length(w.SGEs))
	if w.Length != uint64(uint32(w.Length)) { // the field in the ring has 32 bits
		w.SGEs, w.NumSGE, w.Length = nil, 0, 0
	}
	return w
}

// TestSendQueuesAgree drives a ring and a queue in the memory of this process with the same calls. A request passes
// through both unchanged.
func TestSendQueuesAgree(t *testing.T) {
	for _, typ := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUD} {
		for seed := range uint64(50) {
			r := rand.New(rand.NewPCG(seed, uint64(typ)))
			c := ib.QPCap{MaxSendWR: 7, MaxSendSGE: 4, MaxInlineData: 64}
			_, p := openProgram(t)
			shared, _, err := p.CreateQP(typ, &c, false, &ib.Udata{Out: make([]byte, 64)})
			if err != nil {
				t.Fatal(err)
			}
			queues := []queue.SendQueue{queue.NewSend(&c), shared}
			taken := 0
			for step := range 400 {
				var results [2][]any
				op, w, n := r.IntN(12), randomSend(r, typ), r.IntN(3)
				for i, q := range queues {
					note := func(v ...any) { results[i] = append(results[i], v...) }
					switch {
					case op < 5:
						note(q.Push(&w))
					case op < 8:
						var got queue.Send
						found, ok := q.Fetch(n, &got)
						note(found, ok, comparable(got))
					case op < 9 && taken > 0:
						note(q.Complete())
					case op == 9:
						var got queue.Send
						if found, _ := q.Fetch(0, &got); found {
							q.Take()
							note(true)
						}
					case op == 10 && n == 0:
						q.TakeBack()
					case op == 11 && n == 0:
						note(q.Discard())
					}
					_, some := q.Posted()
					waiting, ok := q.Waiting()
					note(some, waiting, ok, q.Capacity())
				}
				if !reflect.DeepEqual(results[0], results[1]) {
					t.Fatalf("%v, seed %d, step %d, operation %d: this process: %+v\nring: %+v", typ, seed, step, op, results[0], results[1])
				}
				switch {
				case op < 9 && op >= 8 && taken > 0:
					taken--
				case op == 9 && len(results[0]) == 5:
					taken++
				case op == 11 && n == 0:
					taken = 0
				}
			}
		}
	}
}

// comparable returns a request with nil in place of empty slices.
func comparable(w queue.Send) queue.Send {
	w.SGEs, w.Inline = append([]ib.SGE(nil), w.SGEs...), append([]byte(nil), w.Inline...)
	w.LengthLost = false
	return w
}

// TestRecvQueuesAgree is TestSendQueuesAgree for receives, including a move to a larger queue.
func TestRecvQueuesAgree(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		_, p := openProgram(t)
		create := func(local bool, entries int) queue.RecvQueue {
			if local {
				return queue.NewReceive(entries, 4)
			}
			q, err := p.CreateRecv(entries, 4)
			if err != nil {
				t.Fatal(err)
			}
			return q
		}
		queues := []queue.RecvQueue{create(true, 7), create(false, 7)}
		for step := range 400 {
			var results [2][]any
			op, w, n := r.IntN(10), queue.Recv{ID: r.Uint64()}, r.IntN(3)
			w.SGEs, w.NumSGE = randomSGEs(r, 4)
			w.Length = queue.Length(w.SGEs)
			for i := range queues {
				q := queues[i]
				note := func(v ...any) { results[i] = append(results[i], v...) }
				var got queue.Recv
				switch {
				case op < 5:
					note(q.Push(&w))
				case op < 7:
					found, ok := q.Fetch(n, &got)
					note(found, ok, got.ID, got.Length, got.NumSGE, slices.Clone(got.SGEs))
				case op < 9:
					if found, _ := q.Fetch(0, &got); found {
						q.Take()
						note(q.Complete())
					}
				default:
					larger := create(i == 0, 15)
					note(q.MoveTo(larger))
					queues[i] = larger
				}
				waiting, ok := queues[i].Waiting()
				note(waiting, ok, queues[i].Capacity())
			}
			if !reflect.DeepEqual(results[0], results[1]) {
				t.Fatalf("seed %d, step %d, operation %d: this process: %+v\nring: %+v", seed, step, op, results[0], results[1])
			}
			if op == 9 {
				queues = []queue.RecvQueue{create(true, 7), create(false, 7)}
			}
		}
	}
}

// TestCompletionQueuesAgree is TestSendQueuesAgree for completions.
func TestCompletionQueuesAgree(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		_, p := openProgram(t)
		shared, err := p.CreateCQ(7, &ib.Udata{Out: make([]byte, 64)})
		if err != nil {
			t.Fatal(err)
		}
		queues := []queue.CompletionQueue{queue.NewCompletion(7), shared}
		for step := range 400 {
			var results [2][]any
			op, n := r.IntN(3), uint32(r.IntN(4))
			wc := uapi.WC{
				WRID: r.Uint64(), Status: uapi.WCStatus(r.IntN(9)), Opcode: 1, VendorErr: 2, ByteLen: r.Uint32(), QPNum: 3,
				SrcQP: 4, WCFlags: 1, PKeyIndex: 5, SLID: 6, SL: 7, PortNum: 1,
			}
			for i, q := range queues {
				note := func(v ...any) { results[i] = append(results[i], v...) }
				at, waiting, repaired, ok := q.Oldest()
				note(waiting, repaired, ok, q.Capacity())
				switch {
				case op == 0 && int(waiting) < q.Capacity():
					note(q.Push(&wc))
				case op == 1:
					var got uapi.WC
					found, ok := q.Fetch(at, n, &got)
					note(found, ok, got)
				case op == 2:
					note(q.Consume(at, min(n, waiting)))
				}
			}
			if !reflect.DeepEqual(results[0], results[1]) {
				t.Fatalf("seed %d, step %d, operation %d: this process: %+v\nring: %+v", seed, step, op, results[0], results[1])
			}
		}
	}
}

// TestNoRoom tests that nothing is allocated if a response has no room for the location of a queue, and that nothing
// remains if the memory is exhausted.
func TestNoRoom(t *testing.T) {
	m, p := openProgram(t)
	at := m.offset
	short := &ib.Udata{Out: make([]byte, 4)}
	c := ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1}
	_, _, err := p.CreateQP(ib.QPTypeRC, &c, true, short)
	_, errCQ := p.CreateCQ(1, short)
	for _, err := range []error{err, errCQ, p.HasRoomForSRQ(short)} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a response without room: got %v, want EINVAL", err)
		}
	}
	if _, err := p.ResizedSRQ(&ib.Udata{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a resize without an address: got %v, want EINVAL", err)
	}
	if m.offset != at {
		t.Error("memory was allocated")
	}
	m.full = true
	if _, _, err := p.CreateQP(ib.QPTypeRC, &c, true, &ib.Udata{Out: make([]byte, 64)}); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("without memory: got %v, want ENOMEM", err)
	}
	m.full = false
	if _, _, err := p.CreateQP(ib.QPTypeRC, &ib.QPCap{MaxSendWR: 1 << 26, MaxRecvWR: 1}, true, &ib.Udata{
		Out: make([]byte, 64),
	}); !errors.Is(err, syscall.ENOMEM) || m.freed != 1 {
		t.Errorf("a send queue without memory: got %v and %d frees, want ENOMEM and 1, of the receive queue", err, m.freed)
	}
}

// TestForeignQueuesHaveNoLocation tests that a queue pair with a queue of another layout is listed without it.
func TestForeignQueuesHaveNoLocation(t *testing.T) {
	_, p := openProgram(t)
	c := ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1}
	sq, _, err := p.CreateQP(ib.QPTypeRC, &c, true, &ib.Udata{Out: make([]byte, 64)})
	if err != nil {
		t.Fatal(err)
	}
	e := entry(&queue.Queues{QPN: 7, Send: sq, Recv: queue.NewReceive(1, 1), SendCQ: queue.NewCompletion(1)})
	if e.QPN != 7 || e.SQ == (queuedir.Location{}) || e.RQ != (queuedir.Location{}) || e.SendCQ != (queuedir.Location{}) ||
		e.RecvCQ != (queuedir.Location{}) {
		t.Errorf("entry: got %+v, want only the location of the send queue", e)
	}
}

// TestSendCapacities tests that a send queue has at least the requested room, and that the elements and the inline data
// share the same memory.
func TestSendCapacities(t *testing.T) {
	_, p := openProgram(t)
	for asked := range uint32(100) {
		for _, c := range []ib.QPCap{{MaxSendWR: 1, MaxInlineData: asked}, {MaxSendWR: 1, MaxSendSGE: asked}} {
			got := c
			if _, _, err := p.CreateQP(ib.QPTypeRC, &got, false, &ib.Udata{Out: make([]byte, 64)}); err != nil {
				t.Fatal(err)
			}
			least := max(c.MaxInlineData, c.MaxSendSGE*sgeSize)
			if got.MaxInlineData < least || got.MaxInlineData >= least+sgeSize+1 || got.MaxSendSGE*sgeSize != got.MaxInlineData {
				t.Errorf("CreateQP with %+v: got %+v", c, got)
			}
		}
	}
}
