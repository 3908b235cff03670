package engine

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/engine/queue"
	"verbena/engine/transport"
	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/roce"
	"verbena/umem"
)

const (
	referSize = 600_000 // more than two trains
	old, now  = 0x11, 0xee
)

func newReferBench(t *testing.T, s setup) *bench {
	t.Helper()
	s.shortcut, s.bufLen = true, 1<<20
	b := newBench(t, s)
	b.unwatched()
	b.connect(conn{mtu: ib.MTU4096})
	for range 8 { // which widens the window
		b.a.send(b.write(0, 0, len(b.a.buf)))
		b.a.expect(ib.WC{Opcode: ib.WCRDMAWrite})
	}
	fillWith(b.a.buf, old)
	return b
}

func fillWith(mem []byte, v byte) {
	for i := range mem {
		mem[i] = v
	}
}

// onlyOld checks that no byte has arrived that the consumer stored after a completion.
func (b *bench) onlyOld() {
	b.t.Helper()
	if i := bytes.IndexByte(b.b.buf, now); i >= 0 {
		b.t.Errorf("byte %d was read after its memory was the consumer's again", i)
	}
}

func (b *bench) write(id uint64, off, size int) ib.SendWR {
	return ib.SendWR{
		ID: id, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: b.a.sge(off, size),
		RemoteAddr: b.b.addr + uint64(off), RKey: b.b.mr.RKey(),
	}
}

// built posts work requests, and calls f when their trains have been built and not sent. f must return.
func (b *bench) built(f func(p *pass, from *QP), wrs ...ib.SendWR) {
	b.t.Helper()
	from := qpOf(b.a.qp)
	from.exclusively(func(p *pass) {
		_, err := from.req.postSend(&p.posted, wrs)
		check(b.t, err)
		from.advance(p)
		f(p, from)
	})
}

func referring(e *egress) (n int) {
	for _, t := range e.queue {
		if t.refers() {
			n++
		}
	}
	return n
}

// TestReferOnce tests that the payload of a WRITE between two buffers is in no train, and arrives.
func TestReferOnce(t *testing.T) {
	for _, c := range []struct{ name, wrap string }{
		{name: "both"}, {name: "source elsewhere", wrap: "a"}, {name: "target elsewhere", wrap: "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newReferBench(t, setup{})
			for _, n := range []*node{b.a, b.b} {
				if n == b.a && c.wrap == "a" || n == b.b && c.wrap == "b" { // like memory of a process
					check(t, n.mr.Dereg())
					var err error
					n.mr, err = n.pd.RegMR(ib.MRInit{
						Space: &silentSpace{Local: n.mem}, Addr: n.addr, Length: uint64(len(n.buf)), Access: allAccess,
					})
					check(t, err)
				}
			}
			fill(b.a.buf, 1)
			wr := b.write(1, 3, referSize)
			wr.SGList = slices.Concat(b.a.sge(3, 100_000), b.a.sge(100_003, 77_777), b.a.sge(177_780, referSize-177_777))
			b.built(func(p *pass, from *QP) {
				var trains []*train
				for _, x := range from.egress.queue {
					trains = append(trains, x)
					for i := range x.spans {
						k := &x.spans[i]
						if got, want := k.mem != nil, c.wrap != "a"; got != want && k.packets > 1 {
							t.Errorf("part %d, %d bytes, is in memory: %t, want %t", i, k.end-k.start, got, want)
						}
						fillWith(x.Buf[x.payload(k):][:len(k.mem)], now)
						fillWith(k.mem, 0x77) // not read yet
					}
				}
				p.sendAll(from)
				to := qpOf(b.b.qp)
				if got, want := to.events.any.Load(), c.wrap != ""; got != want {
					t.Errorf("trains wait for the receiver: %t, want %t", got, want)
				}
				for _, x := range trains {
					if x.refers() || slices.ContainsFunc(x.spans[:cap(x.spans)], func(k span) bool { return k.mem != nil }) {
						t.Error("a train refers to memory after it was sent")
					}
				}
				if p.split.payload != nil {
					t.Error("the pass refers to memory after it was stored")
				}
				if p.receiver != nil || to.activity.state.Load() == resting {
					t.Error("the receiver is not in the run queue")
				}
			}, wr)
			b.a.expect(ib.WC{ID: 1, Opcode: ib.WCRDMAWrite})
			if i := firstDifference(b.a.buf[3:][:referSize], b.b.buf[3:][:referSize]); i >= 0 {
				t.Errorf("byte %d differs", i)
			}
			if b.b.buf[2] != 0 || b.b.buf[3+referSize] != 0 {
				t.Error("bytes beside the range have changed")
			}
			within(t, "Dereg", func() { check(t, b.a.mr.Dereg()) })
			var err error
			b.a.mr, err = b.a.pd.RegMR(ib.MRInit{Space: b.a.mem, Addr: b.a.addr, Length: uint64(len(b.a.buf)),
				Access: allAccess})
			check(t, err)
		})
	}
}

// TestReferSend sends a long message from direct memory to memory of a process. The sender's thread must not store to
// that memory.
func TestReferSend(t *testing.T) {
	b := newReferBench(t, setup{})
	check(t, b.b.mr.Dereg())
	var err error
	b.b.mr, err = b.b.pd.RegMR(ib.MRInit{
		Space: &silentSpace{Local: b.b.mem}, Addr: b.b.addr, Length: uint64(len(b.b.buf)), Access: allAccess,
	})
	check(t, err)
	fill(b.a.buf, 1)
	b.b.recv(2, 0, referSize)
	b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, referSize)})
	b.a.expect(ib.WC{ID: 1, Opcode: ib.WCSend})
	b.b.expect(ib.WC{ID: 2, Opcode: ib.WCRecv, ByteLen: referSize})
	if i := firstDifference(b.a.buf[:referSize], b.b.buf[:referSize]); i >= 0 {
		t.Errorf("byte %d differs", i)
	}
}

// TestReferElements sends a WRITE with several elements. Only the packets with bytes of two elements may be copied,
// and little more.
func TestReferElements(t *testing.T) {
	const mtu, elements = 4096, 8
	for _, more := range []int{0, -100, 100, -1, -2, -3, 1, 2, 3} { // with 1 to 3 bytes less, padding would be as long
		size := 12*mtu + more
		b := newReferBench(t, setup{cap: ib.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: elements, MaxRecvSGE: 1}})
		fill(b.a.buf, 1)
		wr := b.write(1, 0, elements*size)
		wr.SGList = nil
		var want []byte
		for i := elements; i > 0; i-- { // in an order in which no element follows the one before in memory
			wr.SGList = append(wr.SGList, b.a.sge(i*size, size)...)
			want = append(want, b.a.buf[i*size:][:size]...)
		}
		b.built(func(p *pass, from *QP) {
			all, copied := 0, 0
			for _, x := range from.egress.queue {
				for i := range x.spans {
					k := &x.spans[i]
					n := k.end - x.payload(k) - link.ICRCLen
					if all += n; k.mem == nil {
						copied += n
					}
				}
			}
			if most := 2*mtu*elements + minRefer*len(from.egress.queue); all < elements*size/2 || copied > most {
				t.Errorf("elements of %d bytes: %d of %d bytes are copied, want at most %d", size, copied, all, most)
			}
			p.sendAll(from)
		}, wr)
		b.a.expect(ib.WC{ID: 1, Opcode: ib.WCRDMAWrite})
		if i := firstDifference(want, b.b.buf[:len(want)]); i >= 0 {
			t.Errorf("elements of %d bytes: byte %d differs", size, i)
		}
	}
}

// TestReferCompletes stores new data after a work request has completed, while trains of the same run have not been
// sent. The new data must not arrive.
func TestReferCompletes(t *testing.T) {
	reuse := func(b *bench, want ib.WCStatus) {
		b.t.Helper()
		wc := make([]ib.WC, 1)
		if n, err := b.a.cq.Poll(wc); n != 1 || err != nil || wc[0].Status != want {
			b.t.Errorf("got %d completions, %v, error %v, want %v", n, wc[0].Status, err, want)
		}
		fillWith(b.a.buf, now)
	}
	t.Run("failed", func(t *testing.T) { // its end cannot be read
		var b *bench
		b = newReferBench(t, setup{observer: &observed{inError: func(uint32) { // after the completion
			if n := referring(&qpOf(b.a.qp).egress); n > 0 {
				t.Errorf("%d trains refer to memory", n)
			}
		}}})
		wr := b.write(1, 0, referSize)
		wr.SGList = append(b.a.sge(0, 300_000), ib.SGE{Addr: b.a.addr, Length: referSize - 300_000, LKey: 0xdead00})
		b.built(func(p *pass, from *QP) {
			if len(from.egress.queue) == 0 {
				t.Error("the egress queue is empty")
			}
			for _, x := range from.egress.queue {
				if slices.ContainsFunc(x.spans[:cap(x.spans)], func(k span) bool { return k.mem != nil }) {
					t.Error("a train refers to memory")
				}
			}
			reuse(b, ib.WCLocProtErr)
			p.sendAll(from)
		}, wr)
		b.onlyOld()
	})
	t.Run("flushed", func(t *testing.T) {
		b := newReferBench(t, setup{})
		b.built(func(p *pass, from *QP) {
			if referring(&from.egress) == 0 {
				t.Error("no train refers to memory")
			}
			from.ringGone()
			from.advance(p)
			reuse(b, ib.WCWRFlushErr)
			p.sendAll(from)
		}, b.write(1, 0, referSize))
		b.onlyOld()
	})
	t.Run("reset", func(t *testing.T) {
		b := newReferBench(t, setup{})
		b.built(func(p *pass, from *QP) {
			from.reset()
			fillWith(b.a.buf, now)
			p.sendAll(from)
			if m := from.dev.grant(b.a.mr.LKey()); !m.inUse.TryLock() {
				t.Error("an access to the memory goes on")
			} else {
				m.inUse.Unlock()
			}
		}, b.write(1, 0, referSize))
		b.onlyOld()
	})
}

// fullOnce is an endpoint with a socket that is full at first.
type fullOnce struct {
	link.Endpoint
	sent bool
}

func (e *fullOnce) Send(t *link.Train) error {
	if !e.sent {
		e.sent = true
		return link.ErrAgain
	}
	return e.Endpoint.Send(t)
}

// TestReferElsewhere tests trains that refer to memory, and then must wait, go to the network, or be tapped. They
// must have a copy.
func TestReferElsewhere(t *testing.T) {
	var seen []byte
	nothing := func() {}
	for _, c := range []struct {
		name  string
		waits bool                                          // the train waits for the receiver
		do    func(b *bench, p *pass, to *QP) (undo func()) // before the train is sent
		end   func(b *bench)
	}{
		{name: "the network", do: func(b *bench, _ *pass, _ *QP) func() {
			b.b.dev.SetShortcut(false)
			return nothing
		}},
		{name: "a tap", waits: true, do: func(b *bench, _ *pass, _ *QP) func() {
			b.a.dev.taps.Add(tapFunc(func(p *link.Tapped) {
				if p.Out {
					seen = append(seen, p.Data[len(p.Data)-20:len(p.Data)-4]...) // ends of payloads
				}
			}))
			return nothing
		}, end: func(b *bench) {
			if len(seen) == 0 || bytes.Count(seen, []byte{old}) != len(seen) {
				t.Error("the tap has not seen the payload")
			}
		}},
		{name: "a receiver that runs", waits: true, do: func(_ *bench, p *pass, to *QP) func() {
			takeRun(to)
			return func() { p.todo = append(p.todo, to) }
		}},
		{name: "a receiver for which something waits", waits: true, do: func(_ *bench, _ *pass, to *QP) func() {
			to.events.add(event{task: &task{qp: to, do: func(*pass) {}, over: make(chan struct{})}})
			return nothing
		}},
		{name: "a slow receiver", waits: true, do: func(_ *bench, _ *pass, to *QP) func() {
			to.lane.stall()
			return func() {
				to.lane.penalty = 0
				to.lane.resume()
			}
		}},
		{name: "a receiver of a program, from a method", waits: true, do: func(b *bench, p *pass, to *QP) func() {
			p.method, to.ctx = qpOf(b.a.qp), &userContext{}
			return func() { p.method, to.ctx = nil, nil }
		}},
		{name: "a device that has failed", waits: true, do: func(_ *bench, _ *pass, to *QP) func() {
			to.dev.broken.Store(true)
			return func() { to.dev.broken.Store(false) }
		}},
		{name: "no receiver", do: func(_ *bench, _ *pass, to *QP) func() {
			to.dev.qps.set(to.num&(maxQPSlot-1), nil)
			return func() { to.dev.qps.set(to.num&(maxQPSlot-1), to) }
		}},
		{name: "a socket that is full", do: func(b *bench, _ *pass, _ *QP) func() {
			qpOf(b.a.qp).timer.block()
			return nothing
		}},
		{name: "a socket that becomes full", do: func(b *bench, _ *pass, _ *QP) func() {
			e := b.a.dev.at.Load().endpoints[0]
			e.wire.Store(&boundEndpoint{Endpoint: &fullOnce{Endpoint: e.wire.Load().Endpoint}})
			b.a.dev.SetShortcut(false)
			return nothing
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newReferBench(t, setup{taps: true})
			to := qpOf(b.b.qp)
			b.built(func(p *pass, from *QP) {
				if n := referring(&from.egress); n < 2 {
					t.Errorf("%d trains refer to memory", n)
				}
				undo := c.do(b, p, to)
				p.sendAll(from)
				if n := referring(&from.egress); n > 0 {
					t.Errorf("%d trains refer to memory after the run", n)
				}
				trains := 0
				for _, e := range to.events.list {
					if e.train != nil && !e.train.refers() {
						trains++
					}
				}
				if (trains > 0) != c.waits {
					t.Errorf("%d trains wait for the receiver", trains)
				}
				undo()
			}, b.write(1, 0, referSize))
			b.a.expect(ib.WC{ID: 1, Opcode: ib.WCRDMAWrite})
			if got := b.b.buf[:referSize]; bytes.Count(got, []byte{old}) != referSize {
				t.Error("not all has arrived")
			}
			if c.end != nil {
				c.end(b)
			}
		})
	}
}

// TestReferBehind tests that a train does not overtake another one that waits for the receiver.
func TestReferBehind(t *testing.T) {
	b := newReferBench(t, setup{})
	to := qpOf(b.b.qp)
	b.built(func(p *pass, from *QP) {
		for i := range 3 {
			if len(from.egress.queue) == 0 {
				from.advance(p)
			}
			if len(from.egress.queue) == 0 {
				t.Errorf("%d trains, want 3", i)
				return
			}
			x := from.egress.queue[0]
			if i == 1 {
				x.fill()
			} else if !x.refers() {
				t.Error("the train does not refer to memory")
			}
			from.egress.cut(1)
			x.QP, x.SPort = from.num, from.sport
			p.send(from, []*train{x})
			if got := len(to.events.list); got != i {
				t.Errorf("%d trains wait after %d were sent, want %d", got, i+1, i)
			}
		}
		p.sendAll(from)
	}, b.write(1, 0, 1<<20))
	b.a.expect(ib.WC{ID: 1, Opcode: ib.WCRDMAWrite})
}

// TestReferEnds tests that a span with a reference to memory gets no more packets.
func TestReferEnds(t *testing.T) {
	b := newReferBench(t, setup{})
	from := qpOf(b.a.qp)
	from.exclusively(func(p *pass) {
		w := sendWQE{kind: transport.Write, Send: queue.Send{RKey: b.b.mr.RKey()}}
		p.build.start(&trainPool, from.path, from.attr.DestQPN, 4096)
		p.build.t.begin(from, &w)
		add := func(off int, place []byte) {
			if !p.gather.add(from, b.a.mr.LKey(), b.a.addr+uint64(off), place) {
				t.Error("the memory cannot be read")
			}
		}
		op := from.wire.Opcode(roce.RDMAWriteMiddle)
		place := p.build.add(op.PacketLen(4096), op.HeaderLen(), b.a.addr)
		roce.NewPacket(place, &roce.BTHFields{Opcode: op}, 4096)
		p.build.added(false)
		add(0, place[op.HeaderLen():][:4096])
		for i := 1; i < 8; i++ {
			payload, ok := p.build.stretch(1, 4096, false)
			if !ok {
				t.Error("a packet does not join the span")
				return
			}
			add(i*4096, payload)
		}
		p.gather.flush(from)
		if !p.build.t.refers() {
			t.Error("the train does not refer to memory")
		}
		if _, ok := p.build.stretch(1, 4096, false); ok {
			t.Error("a packet joins a span that is complete")
		}
		p.build.finish(&from.egress)
		from.egress.drop()
	})
}

// TestReferOrder tests that messages arrive in order, with and without references to memory.
func TestReferOrder(t *testing.T) {
	b := newReferBench(t, setup{})
	fill(b.a.buf, 1)
	elsewhere, err := b.b.pd.RegMR(ib.MRInit{
		Space: &silentSpace{Local: b.b.mem}, Addr: b.b.addr, Length: uint64(len(b.b.buf)), Access: allAccess,
	})
	check(t, err)
	b.b.mrs = append(b.b.mrs, elsewhere)
	var wrs []ib.SendWR
	for i := range 12 {
		wr := b.write(uint64(i), i*70_000, 70_000)
		switch i % 4 {
		case 1:
			wr.Opcode, wr.SGList = ib.WRSend, b.a.sge(i*70_000, 70_000)
			list := b.b.sge(i*70_000, 70_000)
			list[0].LKey = elsewhere.LKey() // the receiver may not store here in the run of the sender
			_, err := b.b.qp.PostRecv(ib.RecvWR{ID: 100, SGList: list})
			check(t, err)
		case 2:
			wr.SGList = b.a.sge(i*70_000, 100)
		case 3:
			wr.Opcode, wr.Imm = ib.WRRDMAWriteWithImm, 7
			b.b.recv(101, 0, 0)
		}
		wrs = append(wrs, wr)
	}
	b.a.send(wrs...)
	for i, wc := range b.a.poll(len(wrs)) {
		if wc.ID != uint64(i) || wc.Status != ib.WCSuccess {
			t.Fatalf("completion %d: %+v", i, wc)
		}
	}
	for i, wc := range b.b.poll(6) {
		if wc.ID != uint64(100+i%2) || wc.Status != ib.WCSuccess {
			t.Fatalf("receive %d: %+v", i, wc)
		}
	}
	for i := range wrs {
		n := int(wrs[i].SGList[0].Length)
		if !bytes.Equal(b.a.buf[i*70_000:][:n], b.b.buf[i*70_000:][:n]) {
			t.Errorf("message %d differs", i)
		}
	}
}

// TestReferLocal binds a window, which may wait for accesses. The requester must hold no memory during the wait.
func TestReferLocal(t *testing.T) {
	b := newReferBench(t, setup{})
	mw, err := b.a.pd.AllocMW(ib.MWType1)
	check(t, err)
	b.a.mws = append(b.a.mws, mw)
	b.built(func(_ *pass, from *QP) {
		if n := referring(&from.egress); n > 0 || len(from.egress.queue) == 0 {
			t.Errorf("%d of %d trains refer to memory", n, len(from.egress.queue))
		}
	}, b.write(1, 0, 100_000), ib.SendWR{ID: 2, Opcode: ib.WRBindMW, Bind: &ib.BindMW{MW: mw, RKey: mw.RKey() + 1}})
	b.a.poll(1)
}

// TestReferStalled blocks a requester in memory. It must hold no other memory at that time.
func TestReferStalled(t *testing.T) {
	b := newReferBench(t, setup{})
	mem := make([]byte, 1<<16)
	space := silentSpace{Local: umem.NewLocal()}
	addr, err := space.Add(mem)
	check(t, err)
	silent, err := b.a.pd.RegMR(ib.MRInit{Space: &space, Addr: addr, Length: uint64(len(mem)), Access: allAccess})
	check(t, err)
	b.a.mrs = append(b.a.mrs, silent)
	t.Cleanup(space.answer) // also after a failure: the cleanup waits for the device
	space.hush()
	second := b.write(2, 100_000, 50_000)
	second.SGList = []ib.SGE{{Addr: addr, Length: 50_000, LKey: silent.LKey()}}
	go b.a.send(b.write(1, 0, 100_000), second)
	testutil.Eventually(t, "a copy waits", func() bool { return space.waiting.Load() > 0 })
	other, err := b.a.pd.RegMR(ib.MRInit{Space: b.a.mem, Addr: b.a.addr, Length: 4096, Access: allAccess})
	check(t, err)
	within(t, "Dereg", func() { check(t, b.a.mr.Dereg()) })
	fillWith(b.a.buf, now)
	space.answer()
	b.a.mr = other
	b.a.poll(2)
	b.onlyOld()
}

// TestReferStalledTarget tests that a sender does not wait for the target memory, and that its own memory is not
// held.
func TestReferStalledTarget(t *testing.T) {
	b := newReferBench(t, setup{})
	b.watched() // the sender may have been woken again, and wait in the run queue of the blocked pass
	x := newSilentProgram(b, ib.QPTypeRC)
	x.space.hush()
	wr := b.write(1, 0, 60_000)
	wr.RemoteAddr, wr.RKey = x.addr, x.mr.RKey()
	go x.peers[0].PostSend(wr)
	testutil.Eventually(t, "a copy waits", func() bool { return x.space.waiting.Load() > 0 })
	within(t, "Query", func() {
		_, _, err := x.peers[0].Query(0)
		check(t, err)
	})
	if wc := make([]ib.WC, 1); true {
		if n, err := x.cq.Poll(wc); n != 0 || err != nil {
			t.Errorf("a completion %v, error %v", wc[0].Status, err)
		}
	}
	within(t, "Dereg", func() { check(t, b.a.mr.Dereg()) })
	x.space.answer()
	n := node{t: t, dev: b.a.dev, cq: x.cq}
	if wc := n.poll(1)[0]; wc.Status != ib.WCSuccess {
		t.Errorf("got %v, want success", wc.Status)
	}
	var err error
	b.a.mr, err = b.a.pd.RegMR(ib.MRInit{Space: b.a.mem, Addr: b.a.addr, Length: 4096, Access: allAccess})
	check(t, err)
}

// TestReferKeyMoves moves a key to memory that may stall, between the check of the key and the store. The store must
// be refused.
func TestReferKeyMoves(t *testing.T) {
	b := newReferBench(t, setup{})
	to := qpOf(b.b.qp)
	space := silentSpace{Local: umem.NewLocal()}
	addr, err := space.Add(make([]byte, 1<<20))
	check(t, err)
	region, err := umem.Get(&space, nil, addr, 1<<20, b.b.addr, true)
	check(t, err)
	space.hush()
	b.built(func(p *pass, from *QP) {
		x := from.egress.queue[0]
		if !to.activity.wake() || !to.storesDirectly(x.key) {
			t.Error("the receiver cannot receive")
		}
		m := b.b.dev.mrs.get(b.b.mr.RKey() >> 8)
		m.grant.Store(m.cover(b.b.mr.RKey(), region, allAccess))
		p.receiver, p.inline = to, true
		within(t, "receiveTrain", func() { to.receiveTrain(p, x) })
		p.inline = false
		from.egress.cut(1)
		p.sendAll(from)
	}, b.write(1, 0, referSize))
	b.a.expect(ib.WC{ID: 1, Status: ib.WCRemAccessErr})
}

// TestReferPanic tests that a panic of the receiver in the run of the sender makes both devices fail, and holds no
// memory.
func TestReferPanic(t *testing.T) {
	b := newReferBench(t, setup{recover: true, observer: &observed{inError: func(uint32) { panic("by the test") }}})
	mr, err := b.a.pd.RegMR(ib.MRInit{Space: b.a.mem, Addr: b.a.addr, Length: uint64(len(b.a.buf)), Access: allAccess})
	check(t, err)
	wr := b.write(1, 0, referSize)
	wr.SGList[0].LKey, wr.RKey = mr.LKey(), wr.RKey^0x100
	if _, err := b.a.qp.PostSend(wr); !errors.Is(err, syscall.EIO) {
		t.Errorf("PostSend: got %v, want EIO", err)
	}
	for _, d := range []*Device{b.a.dev, b.b.dev} {
		testutil.Eventually(t, "the device has failed", d.broken.Load)
	}
	within(t, "Dereg", func() { check(t, mr.Dereg()) })
}

// TestReferStolen tests that the watchdog cannot give a queue pair to another thread while it receives in the run of
// its sender.
func TestReferStolen(t *testing.T) {
	var during atomic.Pointer[pass]
	var to *QP
	looked := false
	b := newReferBench(t, setup{observer: &observed{inError: func(num uint32) {
		if p := during.Load(); p != nil && num == to.num {
			looked = true
			if to.activity.state.Load() == resting || slices.Contains(p.todo[p.done:], to) || p.receiver != to {
				t.Error("another thread could run the receiver")
			}
		}
	}}})
	to = qpOf(b.b.qp)
	wr := b.write(1, 0, referSize)
	wr.RKey ^= 0x100
	b.built(func(p *pass, from *QP) {
		during.Store(p)
		defer during.Store(nil)
		p.sendAll(from)
		if !slices.Contains(p.todo[p.done:], to) {
			t.Error("the receiver is not in the run queue")
		}
	}, wr)
	if wc := b.a.poll(1)[0]; wc.Status != ib.WCRemAccessErr || !looked {
		t.Errorf("got %v, want a remote access error", wc.Status)
	}
}

// reuse is a consumer that may reuse its memory when end has returned.
type reuse struct {
	*bench
	post   chan struct{} // closed after the last post
	posted atomic.Int32  // number of work requests
}

// drain waits until all work requests are complete.
func (r *reuse) drain() {
	<-r.post
	r.a.poll(int(r.posted.Load()))
}

// TestReferReuse checks that memory is not read after its use has ended. WRITEs go both ways, so that some are
// received in the run of the sender and others later. A consumer reuses its memory at the first permitted time.
func TestReferReuse(t *testing.T) {
	const half = 1 << 19 // half of each buffer; one half is written from a to b, the other from b to a
	for _, c := range []struct {
		name string
		end  func(r *reuse)
	}{
		{"completion", func(r *reuse) { r.drain() }},
		{"error", func(r *reuse) {
			check(r.t, r.a.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			r.drain()
		}},
		{"error of the peer", func(r *reuse) {
			check(r.t, r.b.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			check(r.t, r.a.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			r.drain()
		}},
		{"device in error", func(r *reuse) {
			ops{r.a.dev}.EnterError()
			r.drain()
		}},
		{"reset", func(r *reuse) { check(r.t, r.a.qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState)) }},
		{"destroy", func(r *reuse) {
			<-r.post // calls on a destroyed queue pair would be violations
			check(r.t, r.a.qp.Destroy())
			r.a.qp = nil
		}},
		{"dereg", func(r *reuse) {
			check(r.t, r.a.mrs[0].Dereg())
			r.a.mrs = nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(1, 1))
			for stop := time.Now().Add(testutil.FewerIfShort(200*time.Millisecond,
				50*time.Millisecond)); time.Now().Before(stop); {
				s := setup{shortcut: true, bufLen: 2 * half}
				s.cap = ib.QPCap{MaxSendWR: 64, MaxSendSGE: 1, MaxRecvWR: 1, MaxRecvSGE: 1}
				b := newBench(noCleanup{t}, s)
				b.t, b.a.t, b.b.t = t, t, t
				b.connect(conn{mtu: ib.MTU4096})
				fillWith(b.a.buf[:half], old)
				mr, err := b.a.pd.RegMR(ib.MRInit{Space: b.a.mem, Addr: b.a.addr, Length: half, Access: ib.AccessLocalWrite})
				check(t, err)
				b.a.mrs = append(b.a.mrs, mr)
				r := &reuse{bench: b, post: make(chan struct{})}
				qp, write := b.a.qp, b.write(1, 0, half)
				write.SGList[0].LKey = mr.LKey()
				go func() {
					defer close(r.post)
					for range 40 {
						if _, err := qp.PostSend(write); err != nil {
							return
						}
						r.posted.Add(1)
					}
				}()
				back := make(chan struct{})
				go func() {
					defer close(back)
					for range 40 {
						_, _ = b.b.qp.PostSend(ib.SendWR{
							Opcode: ib.WRRDMAWrite, SGList: b.b.sge(half, 50_000), RemoteAddr: b.a.addr + half, RKey: b.a.mr.RKey(),
						})
					}
				}()
				if first := rng.Int32N(40); !testutil.PollUntil(func() bool { return r.posted.Load() >= first }) {
					t.Fatalf("%d work requests were posted, want %d", r.posted.Load(), first)
				}
				c.end(r)
				fillWith(b.a.buf[:half], now)
				<-back
				<-r.post
				if b.a.qp != nil { // end the other work requests
					check(t, b.a.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
				} else {
					b.a.qp = b.a.newQP(setup{typ: ib.QPTypeRC, cap: s.cap})
				}
				_, _, err = b.b.qp.Query(0)
				check(t, err)
				b.onlyOld()
				b.close()
			}
		})
	}
}

// TestReferItself connects a queue pair with itself. It also writes between ranges of one region, which may overlap.
func TestReferItself(t *testing.T) {
	const size = 300_000
	for _, c := range []struct {
		name string
		own  bool
		off  int // distance of the target from the source
	}{{"own", true, size}, {"own, overlapping", true, 10_000}, {"of one region", false, size}, {"overlapping", false,
		10_000}} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, setup{shortcut: true, bufLen: 1 << 20})
			x := conn{mtu: ib.MTU4096}
			if c.own {
				toRTR(t, b.a.qp, b.a.dev, b.a.qp.Num(), x)
				toRTS(t, b.a.qp, x)
			} else {
				other := b.a.newQP(setup{typ: ib.QPTypeRC, cap: userCap})
				defer func() { check(t, other.Destroy()) }()
				connectQPs(t, b.a.dev, b.a.qp, b.a.dev, other, x)
			}
			if c.off < size { // another goroutine would write the memory that this one reads
				b.unwatched()
			}
			fill(b.a.buf, 1)
			wr := b.write(1, 0, size)
			wr.RemoteAddr, wr.RKey = b.a.addr+uint64(c.off), b.a.mr.RKey()
			for range 5 {
				within(t, "the WRITE", func() {
					b.a.send(wr)
					b.a.expect(ib.WC{ID: 1, Opcode: ib.WCRDMAWrite})
				})
			}
			if c.off >= size && !bytes.Equal(b.a.buf[:size], b.a.buf[c.off:][:size]) {
				t.Error("the bytes differ")
			}
			within(t, "Rereg", func() {
				check(t, b.a.mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: ib.AccessLocalWrite}))
			})
		})
	}
}
