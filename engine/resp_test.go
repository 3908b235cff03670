package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"verbena/engine/transport"
	"verbena/ib"
	"verbena/link/simnet"
	"verbena/roce"
)

// dialogue is a test that plays the part of a with packets of its own, and checks the answers of b's queue pair.
type dialogue struct {
	*bench
	seen int // number of checked packets of b
}

func newDialogue(t *testing.T, typ ib.QPType, c conn) *dialogue {
	t.Helper()
	d := &dialogue{bench: newBench(t, setup{typ: typ, net: simnet.Config{Record: true}})}
	d.connect(c)
	return d
}

// request is a packet to b.
type request struct {
	op   roce.Opcode
	psn  roce.PSN
	n    int  // bytes of payload, all of them the low byte of the PSN
	ack  bool // asks for an acknowledgement
	va   uint64
	rkey uint32
	len  int // length of the message
	add  uint64

	flush roce.FlushType
	level roce.FlushLevel
}

// say delivers packets together.
func (d *dialogue) say(list ...request) {
	d.t.Helper()
	var packets [][]byte
	for _, r := range list {
		buf := make([]byte, r.op.PacketLen(r.n))
		k := roce.NewPacket(buf, &roce.BTHFields{
			Opcode: r.op, PKey: roce.DefaultPKey, DestQPN: d.b.qp.Num(), PSN: r.psn, AckReq: r.ack,
		}, r.n)
		for i := range k.Payload {
			k.Payload[i] = byte(r.psn)
		}
		if h := k.DETH(); h != nil {
			h.Encode(testQKey, d.a.qp.Num())
		}
		if h := k.RETH(); h != nil {
			h.Encode(r.va, r.rkey, uint32(r.len))
		}
		if h := k.FETH(); h != nil {
			h.Encode(r.flush, r.level)
		}
		if h := k.AtomicETH(); h != nil {
			h.Encode(r.va, r.rkey, r.add, 0)
		}
		packets = append(packets, k.Data[:len(buf)-roce.ICRCLen])
	}
	p := d.b.dev.begin(true)
	p.receive(d.b.dev, arrival(addrA, addrB, packets...))
	p.end()
	synctest.Wait()
}

// hears checks the packets of b since the last call: opcode, PSN, syndrome of an acknowledgement, bytes of payload.
func (d *dialogue) hears(want ...string) {
	d.t.Helper()
	synctest.Wait()
	var got []string
	packets := d.net.Packets()
	for _, p := range packets[d.seen:] {
		k, err := roce.ParsePacket(p.Data)
		if err != nil {
			d.t.Fatal(err)
		}
		s := strings.TrimPrefix(k.Opcode.String(), "RC ")
		if k.Opcode == roce.RCAcknowledge {
			s = k.AETH().Syndrome().String()
		}
		s = fmt.Sprintf("%s %d", s, k.BTH().PSN())
		if n := len(k.Payload); n > 0 {
			s += fmt.Sprintf(" (%d)", n)
		}
		got = append(got, s)
	}
	d.seen = len(packets)
	if !slices.Equal(got, want) {
		d.t.Fatalf("b answers %q, want %q", got, want)
	}
}

// TestRequester plays the responder's part.
func TestRequester(t *testing.T) {
	const mtu = 256
	ack := func(d *dialogue, psn roce.PSN, s roce.Syndrome) {
		buf := make([]byte, roce.RCAcknowledge.PacketLen(0))
		k := roce.NewPacket(buf, &roce.BTHFields{Opcode: roce.RCAcknowledge, PKey: roce.DefaultPKey, DestQPN: d.b.qp.Num(), PSN: psn}, 0)
		k.AETH().Encode(s, 0)
		p := d.b.dev.begin(true)
		p.receive(d.b.dev, arrival(addrA, addrB, k.Data[:len(buf)-roce.ICRCLen]))
		p.end()
	}
	window := func(d *dialogue, packets int) {
		qp := qpOf(d.b.qp)
		qp.exclusively(func(*pass) { qp.req.aimd.Bytes = packets * (mtu + transport.PacketCost) })
	}
	for _, c := range []struct {
		name  string
		bytes int
		play  func(d *dialogue)
	}{
		{"the window opens with acknowledgements", 4 * mtu, func(d *dialogue) {
			d.hears("SEND First 0 (256)", "SEND Middle 1 (256)")
			ack(d, 0, roce.ACKUnlimited)
			window(d, 2)
			d.hears("SEND Middle 2 (256)", "SEND Last 3 (256)")
		}},
		{"what had arrived after all is not sent again", 8 * mtu, func(d *dialogue) {
			d.hears("SEND First 0 (256)", "SEND Middle 1 (256)")
			window(d, 100)
			ack(d, 0, roce.ACKUnlimited)
			d.hears("SEND Middle 2 (256)", "SEND Middle 3 (256)", "SEND Middle 4 (256)", "SEND Middle 5 (256)", "SEND Middle 6 (256)", "SEND Last 7 (256)")
			window(d, 2)
			ack(d, 1, roce.NAKPSNSequenceError) // halves the window
			d.hears("SEND Middle 1 (256)")
			ack(d, 5, roce.ACKUnlimited)
			d.hears("SEND Middle 6 (256)", "SEND Last 7 (256)")
			ack(d, 7, roce.ACKUnlimited)
			d.hears()
			d.b.expect(ib.WC{ID: 1, Opcode: ib.WCSend})
		}},
		{"acknowledgements of nothing", mtu, func(d *dialogue) {
			d.hears("SEND Only 0 (256)")
			ack(d, 1, roce.ACKUnlimited)             // not sent
			ack(d, 1<<23, roce.ACKUnlimited)         // far away
			ack(d, 0xffffff, roce.ACKUnlimited)      // before the first
			ack(d, 0xffffff, roce.NAKInvalidRequest) // the same
			ack(d, 0, roce.Syndrome(0xff))           // reserved
			ack(d, 1, roce.NAKRemoteAccessError)     // not sent
			d.hears()
			d.b.none()
			ack(d, 0, roce.ACKUnlimited)
			d.b.expect(ib.WC{ID: 1, Opcode: ib.WCSend})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				d := newDialogue(t, ib.QPTypeRC, conn{mtu: ib.MTU256})
				d.net.SetLink(addrA, false)
				window(d, 2)
				d.b.send(ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: d.b.sge(0, c.bytes)})
				c.play(d)
			})
		})
	}
}

// TestResponder runs dialogues, packet by packet.
func TestResponder(t *testing.T) {
	const mtu = 256
	var (
		first = func(psn roce.PSN) request { return request{op: roce.RCSendFirst, psn: psn, n: mtu} }
		last  = func(psn roce.PSN) request { return request{op: roce.RCSendLast, psn: psn, n: 10, ack: true} }
		only  = func(psn roce.PSN) request { return request{op: roce.RCSendOnly, psn: psn, n: 10, ack: true} }
	)
	for _, c := range []struct {
		name string
		conn conn
		recv int // receives of 1000 bytes
		play func(d *dialogue)
	}{
		{"one acknowledgement for what arrives together", conn{}, 3, func(d *dialogue) {
			d.say(only(0), only(1), first(2), last(3))
			d.hears("ACK 3")
		}},
		{"no acknowledgement without a request for one", conn{}, 1, func(d *dialogue) {
			d.say(first(0))
			d.hears()
		}},
		{"a gap is reported once", conn{}, 3, func(d *dialogue) {
			d.say(only(0), only(2))
			d.hears("NAK PSN Sequence Error 1")
			d.say(only(3))
			d.hears()
			d.say(only(1))
			d.hears("ACK 1")
			d.say(only(4))
			d.hears("NAK PSN Sequence Error 2")
		}},
		{"duplicates are acknowledged again, and not executed", conn{}, 3, func(d *dialogue) {
			d.say(only(0), only(1))
			d.hears("ACK 1")
			d.say(only(0))
			d.hears("ACK 1")
			d.b.expect(ib.WC{ID: 0, Opcode: ib.WCRecv, ByteLen: 10}, ib.WC{ID: 1, Opcode: ib.WCRecv, ByteLen: 10})
			d.b.none()
		}},
		{"after an RNR NAK there is silence until the PSN comes again", conn{rnrTimer: 1}, 0, func(d *dialogue) {
			d.say(only(0), only(1))
			d.hears("RNR NAK 10µs 0")
			d.say(only(1))
			d.hears()
			d.say(only(0))
			d.hears("RNR NAK 10µs 0")
			d.b.recv(0, 0, 1000)
			d.say(only(0))
			d.hears("ACK 0")
		}},
		{"first packet shorter than the path MTU", conn{}, 1, func(d *dialogue) {
			d.say(request{op: roce.RCSendFirst, n: mtu - 4})
			d.hears("NAK Invalid Request 0")
		}},
		{"packet longer than the path MTU", conn{}, 1, func(d *dialogue) {
			d.say(request{op: roce.RCSendOnly, n: mtu + 4})
			d.hears("NAK Invalid Request 0")
		}},
		{"empty last packet", conn{}, 1, func(d *dialogue) {
			d.say(first(0), request{op: roce.RCSendLast, psn: 1})
			d.hears("NAK Invalid Request 1")
			d.b.expect(ib.WC{Status: ib.WCRemInvReqErr})
		}},
		{"last packet without a first", conn{}, 1, func(d *dialogue) {
			d.say(last(0))
			d.hears("NAK Invalid Request 0")
		}},
		{"message within a message", conn{}, 1, func(d *dialogue) {
			d.say(first(0), only(1))
			d.hears("NAK Invalid Request 1")
		}},
		{"write within a send", conn{}, 1, func(d *dialogue) {
			d.say(first(0), request{op: roce.RCRDMAWriteLast, psn: 1, n: 10})
			d.hears("NAK Invalid Request 1")
		}},
		{"send with invalidate of a key that is none", conn{}, 2, func(d *dialogue) {
			d.say(only(0), request{op: roce.RCSendOnlyWithInvalidate, psn: 1, n: 10})
			d.hears("ACK 0") // neither an ACK nor a NAK for the failed request
			d.b.expect(ib.WC{Opcode: ib.WCRecv}, ib.WC{ID: 1, Status: ib.WCMWBindErr})
			d.say(request{op: roce.RCSendOnlyWithInvalidate, psn: 1, n: 10})
			d.hears()
		}},
		{"write with more data than it said", conn{}, 1, func(d *dialogue) {
			d.say(request{op: roce.RCRDMAWriteOnly, n: 12, va: d.b.addr, rkey: d.b.mr.RKey(), len: 8})
			d.hears("NAK Invalid Request 0")
		}},
		{"write with less data than it said", conn{}, 1, func(d *dialogue) {
			d.say(request{op: roce.RCRDMAWriteFirst, n: mtu, va: d.b.addr, rkey: d.b.mr.RKey(), len: mtu + 12},
				request{op: roce.RCRDMAWriteLast, psn: 1, n: 8})
			d.hears("NAK Invalid Request 1")
		}},
		{"read takes the PSNs of its responses", conn{}, 2, func(d *dialogue) {
			read := request{op: roce.RCRDMAReadRequest, psn: 1, va: d.b.addr, rkey: d.b.mr.RKey(), len: 2*mtu + 4}
			d.say(only(0), read, only(4))
			d.hears("RDMA READ response First 1 (256)", "RDMA READ response Middle 2 (256)", "RDMA READ response Last 3 (4)", "ACK 4")
		}},
		{"a read again, whole and in part", conn{}, 1, func(d *dialogue) {
			read := request{op: roce.RCRDMAReadRequest, va: d.b.addr, rkey: d.b.mr.RKey(), len: 3 * mtu}
			d.say(read)
			d.hears("RDMA READ response First 0 (256)", "RDMA READ response Middle 1 (256)", "RDMA READ response Last 2 (256)")
			d.say(read)
			d.hears("RDMA READ response First 0 (256)", "RDMA READ response Middle 1 (256)", "RDMA READ response Last 2 (256)")
			part := read
			part.psn, part.va, part.len = 2, read.va+2*mtu, mtu
			d.say(part)
			d.hears("RDMA READ response Only 2 (256)")
			for _, wrong := range []func(*request){
				func(r *request) { r.rkey++ },
				func(r *request) { r.va++ },
				func(r *request) { r.va, r.len = r.va-mtu, r.len+mtu },
				func(r *request) { r.len++ },
			} {
				other := part
				wrong(&other)
				d.say(other)
				d.hears()
			}
		}},
		{"an atomic again is not executed again", conn{}, 0, func(d *dialogue) {
			add := request{op: roce.RCFetchAdd, va: d.b.addr, rkey: d.b.mr.RKey(), add: 5}
			d.say(add)
			d.hears("ATOMIC Acknowledge 0")
			d.say(add)
			d.hears("ATOMIC Acknowledge 0")
			if d.b.buf[0] != 5 {
				d.t.Errorf("the counter is %d", d.b.buf[0])
			}
		}},
		{"an atomic finds what was written before it", conn{}, 0, func(d *dialogue) {
			d.say(request{op: roce.RCRDMAWriteOnly, psn: 0, n: 8, va: d.b.addr, rkey: d.b.mr.RKey(), len: 8},
				request{op: roce.RCRDMAWriteOnly, psn: 1, n: 8, va: d.b.addr, rkey: d.b.mr.RKey(), len: 8},
				request{op: roce.RCFetchAdd, psn: 2, va: d.b.addr, rkey: d.b.mr.RKey(), add: 5})
			d.hears("ATOMIC Acknowledge 2")
			if d.b.buf[0] != 6 {
				d.t.Errorf("the counter is %d", d.b.buf[0])
			}
		}},
		{"a repeated read whose answer is still waiting makes room for the next", conn{destRdAtomic: 1}, 0, func(d *dialogue) {
			read := request{op: roce.RCRDMAReadRequest, va: d.b.addr, rkey: d.b.mr.RKey(), len: 4}
			d.say(read)
			d.hears("RDMA READ response Only 0 (4)")
			block := func(on bool) {
				qp := qpOf(d.b.qp)
				qp.exclusively(func(*pass) { qp.egress.blocked = on })
			}
			block(true)
			d.say(read)
			// Meanwhile the first answer has arrived, and the requester continues.
			next := read
			next.psn = 1
			d.say(next)
			block(false)
			qpOf(d.b.qp).Doorbell(nil)
			d.hears("RDMA READ response Only 1 (4)")
		}},
		{"an old read of which nothing is known is dropped", conn{destRdAtomic: 1}, 0, func(d *dialogue) {
			read := request{op: roce.RCRDMAReadRequest, va: d.b.addr, rkey: d.b.mr.RKey(), len: 4}
			d.say(read)
			d.hears("RDMA READ response Only 0 (4)")
			next := read
			next.psn = 1
			d.say(next)
			d.hears("RDMA READ response Only 1 (4)")
			d.say(read)
			d.hears()
		}},
		{"what was asked for before a bad request is answered before the NAK", conn{}, 0, func(d *dialogue) {
			read := request{op: roce.RCRDMAReadRequest, va: d.b.addr, rkey: d.b.mr.RKey(), len: mtu + 4}
			bad := read
			bad.psn, bad.rkey = 2, 0x12345600
			d.say(read, bad)
			d.hears("RDMA READ response First 0 (256)", "RDMA READ response Last 1 (4)", "NAK Remote Access Error 2")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c.conn.mtu = ib.MTU256
				d := newDialogue(t, ib.QPTypeRC, c.conn)
				for i := range c.recv {
					d.b.recv(uint64(i), 1000*i, 1000)
				}
				c.play(d)
			})
		})
	}
}
