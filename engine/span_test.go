package engine

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/roce"
)

// TestSpansApart tests that the packets from spans are equal to the packets that the network would get.
func TestSpansApart(t *testing.T) {
	for _, typ := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC} {
		built := func(shortcut bool) (packets [][]byte, parts int) {
			b := newBench(t, setup{typ: typ, shortcut: shortcut, bufLen: 1 << 20})
			b.connect(conn{mtu: ib.MTU1024, psn: 0xfffff8})
			fill(b.a.buf, 1)
			qp := qpOf(b.a.qp)
			qp.exclusively(func(p *pass) {
				_, err := qp.req.postSend(&p.posted, []ib.SendWR{
					{ID: 1, Opcode: ib.WRSend, SGList: b.a.sge(0, 700_001)},
					{ID: 2, Opcode: ib.WRSend, SGList: append(b.a.sge(0, 1500), b.a.sge(9, 9500)...)},
				})
				check(t, err)
				for n := 0; len(packets) > n || n == 0; {
					n = len(packets)
					qp.advance(p)
					for _, x := range qp.egress.queue {
						if !x.mixed {
							for i := range x.packets {
								packets = append(packets, slices.Clone(x.Packet(i)))
							}
							continue
						}
						parts += len(x.spans)
						x.each(0, func(x *link.Train) bool {
							packets = append(packets, slices.Clone(x.Buf))
							return true
						})
					}
					qp.egress.drop()
				}
			})
			for _, k := range packets {
				clear(k[len(k)-link.ICRCLen:])
				clear(k[5:8]) // the destination's number
			}
			return packets, parts
		}
		got, parts := built(true)
		want, _ := built(false)
		if n := len(want); parts == 0 || parts > n/4 || len(got) != n || n < 200 {
			t.Fatalf("%v: %d packets in %d parts, want %d in far fewer", typ, len(got), parts, n)
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				g, w := roce.BTH(got[i]), roce.BTH(want[i])
				t.Fatalf("%v: packet %d is %v %d, %t, %d bytes, want %v %d, %t, %d bytes", typ, i,
					g.Opcode(), g.PSN(), g.AckReq(), len(got[i]), w.Opcode(), w.PSN(), w.AckReq(), len(want[i]))
			}
		}
	}
}

// TestSpansRefused tests that a message with a refused packet in the middle ends the same over the shortcut and over
// the network: with the same completions, states, counters and stored bytes.
func TestSpansRefused(t *testing.T) {
	const size = 20_000 // 20 packets
	type outcome struct {
		sent, received []string
		states         [2]ib.QPState
		memory         []byte
		counters       map[string]uint64
	}
	bad := func(n *node, parts ...int) (list []ib.SGE) { // the last element has an invalid key
		at := 0
		for i, k := range parts {
			s := n.sge(at, k)
			if i == len(parts)-1 {
				s[0].LKey = 0xdead00
			}
			list, at = append(list, s...), at+k
		}
		return list
	}
	for _, c := range []struct {
		name string
		op   ib.WROpcode
		recv func(b *bench) []ib.SGE
		wr   func(b *bench, wr *ib.SendWR)
	}{
		{name: "a receive that is too small", op: ib.WRSend, recv: func(b *bench) []ib.SGE { return b.b.sge(0, 7500) }},
		{name: "a receive in pieces", op: ib.WRSend, recv: func(b *bench) []ib.SGE {
			return slices.Concat(b.b.sge(100, 3000), b.b.sge(4000, 7777), b.b.sge(20_000, 15_000))
		}},
		{name: "a piece of the receive without memory", op: ib.WRSend, recv: func(b *bench) []ib.SGE {
			return bad(b.b, 5000,
				15_000)
		}},
		{name: "a piece without memory at a packet's end", op: ib.WRSend, recv: func(b *bench) []ib.SGE {
			return bad(b.b,
				5*1024, 15_000)
		}},
		{name: "a piece without memory at the first packet's end", op: ib.WRSend,
			recv: func(b *bench) []ib.SGE { return bad(b.b, 1024, 19_000) }},
		{name: "no receive", op: ib.WRSend},
		{name: "a piece of the message without memory", op: ib.WRSend, recv: func(b *bench) []ib.SGE {
			return b.b.sge(0,
				size)
		},
			wr: func(b *bench, wr *ib.SendWR) { wr.SGList = bad(b.a, 9000, 11_000) }},
		{name: "a WRITE beyond the region", op: ib.WRRDMAWrite,
			wr: func(b *bench, wr *ib.SendWR) { wr.RemoteAddr += uint64(len(b.b.buf)) - 10_000 }},
		{name: "a WRITE by another key", op: ib.WRRDMAWrite, wr: func(b *bench, wr *ib.SendWR) { wr.RKey ^= 0x100 }},
		{name: "a WRITE", op: ib.WRRDMAWrite},
		{name: "a READ into pieces", op: ib.WRRDMARead, wr: func(b *bench, wr *ib.SendWR) {
			wr.SGList = slices.Concat(b.a.sge(100, 3000), b.a.sge(4000, 7777), b.a.sge(20_000, 9000))
		}},
		{name: "a READ, a piece without memory", op: ib.WRRDMARead, wr: func(b *bench, wr *ib.SendWR) {
			wr.SGList = bad(b.a,
				9000, 11_000)
		}},
	} {
		for _, typ := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC} {
			if typ == ib.QPTypeUC && c.op == ib.WRRDMARead {
				continue
			}
			t.Run(fmt.Sprint(c.name, "/", typ), func(t *testing.T) {
				got := map[bool]outcome{}
				for _, shortcut := range []bool{true, false} {
					bubble(t, func(t *testing.T) {
						b := newBench(t, setup{typ: typ, shortcut: shortcut})
						b.connect(conn{mtu: ib.MTU1024, retry: 1, rnrRetry: 1, psn: 0xfffffa})
						fill(b.a.buf, 1)
						fill(b.b.buf, 2)
						if c.recv != nil {
							_, err := b.b.qp.PostRecv(ib.RecvWR{ID: 7, SGList: c.recv(b)})
							check(t, err)
						}
						wr := ib.SendWR{
							ID: 1, Opcode: c.op, Flags: ib.SendSignaled, SGList: b.a.sge(0, size), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey(),
						}
						if c.wr != nil {
							c.wr(b, &wr)
						}
						small := wr
						small.ID, small.SGList, small.RemoteAddr = 2, b.a.sge(0, 10), b.b.addr
						b.a.send(wr, small)
						testutil.AdvanceTime(time.Second)
						completions := func(n *node) (list []string) {
							wc := make([]ib.WC, 10)
							k, err := n.cq.Poll(wc)
							check(t, err)
							for _, w := range wc[:k] {
								list = append(list, fmt.Sprint(w.ID, w.Status, w.ByteLen))
							}
							return list
						}
						o := outcome{
							sent: completions(b.a), received: completions(b.b), states: [2]ib.QPState{b.a.qp.State(), b.b.qp.State()},
							memory: slices.Concat(b.a.buf, b.b.buf), counters: map[string]uint64{},
						}
						// Numbers of packets include acknowledgements, which differ.
						way := func(name string, v uint64) bool {
							return v == 0 || slices.Contains([]string{"sent_pkts", "rcvd_pkts", "sent_shortcut_pkts"}, name) ||
								strings.HasPrefix(name, "wire_")
						}
						for _, n := range []*node{b.a, b.b} {
							for name, v := range n.dev.Stats() {
								if !way(name, v) {
									o.counters[n.dev.name+" "+name] = v
								}
							}
						}
						got[shortcut] = o
					})
				}
				s, w := got[true], got[false]
				if !slices.Equal(s.sent, w.sent) || !slices.Equal(s.received, w.received) || s.states != w.states {
					t.Errorf("got %v, %v, %v by the shortcut, want %v, %v, %v", s.sent, s.received, s.states, w.sent, w.received,
						w.states)
				}
				if i := firstDifference(s.memory, w.memory); i >= 0 {
					t.Errorf("byte %d of memory differs", i)
				}
				if !maps.Equal(s.counters, w.counters) {
					t.Errorf("counters: got %v, want %v", s.counters, w.counters)
				}
			})
		}
	}
}

// TestSpansAligned tests that payload in the form of the network has the same offset in a cache line as in its
// memory.
func TestSpansAligned(t *testing.T) {
	const size = 300_000
	// places returns the address and the length of each part's payload in the form of the network.
	type payload struct{ place, length uint64 }
	places := func(qp *QP) (list []payload) {
		for _, x := range qp.egress.queue {
			for i, k := range x.spans {
				header := roce.BTH(x.span(i)).Opcode().HeaderLen()
				list = append(list, payload{
					place:  uint64(reflect.ValueOf(x.Buf).Pointer()) + uint64(k.start) + uint64(header),
					length: uint64(k.end - k.start - header - link.ICRCLen),
				})
			}
		}
		return list
	}
	aligned := func(t *testing.T, list []payload, source uint64) {
		t.Helper()
		if len(list) < 2 {
			t.Errorf("%d parts", len(list))
		}
		for i, p := range list {
			if p.place%64 != source%64 {
				t.Errorf("payload %d from %#x begins at %d of a cache line, want %d", i, source,
					p.place%64, source%64)
			}
			source += p.length
		}
	}
	for _, off := range []int{0, 1, 52, 63} {
		bubble(t, func(t *testing.T) {
			b := newBench(t, setup{shortcut: true, bufLen: 1 << 20})
			b.connect(conn{mtu: ib.MTU4096})
			from, to := qpOf(b.a.qp), qpOf(b.b.qp)
			source := b.a.sge(off, size)
			var sent []payload
			from.exclusively(func(p *pass) {
				_, err := from.req.postSend(&p.posted, []ib.SendWR{
					{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: source, RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()},
				})
				if err != nil {
					t.Error(err)
				}
				from.advance(p)
				sent = places(from)
			})
			aligned(t, sent, source[0].Addr)
			b.a.poll(1)

			// Another goroutine may still run the queue pair of the completion. It would take the request, too.
			synctest.Wait()
			remote := b.b.addr + uint64(off)
			to.exclusively(func(p *pass) {
				b.a.send(ib.SendWR{ID: 2, Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGList: b.a.sge(0, size),
					RemoteAddr: remote, RKey: b.b.mr.RKey()})
				for _, e := range to.events.take() {
					to.receiveTrain(p, e.train)
				}
				to.advance(p)
				sent = places(to)
			})
			aligned(t, sent, remote)
			b.a.poll(1)
		})
	}
}

// TestSpansTraced tests that the trace of a queue pair has each packet of a span.
func TestSpansTraced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true})
		b.connect(conn{mtu: ib.MTU1024})
		check(t, b.b.dev.TraceQP(b.b.qp.Num(), true))
		transfer(b, ib.WRSend, 10_000, 1)
		tr, err := b.b.dev.QPTrace(b.b.qp.Num())
		check(t, err)
		n := 0
		for _, e := range tr.Events {
			if e.Event == "receive" {
				n++
			}
		}
		if n != 10 {
			t.Errorf("%d packets in the trace, want 10", n)
		}
	})
}
