package engine

import (
	"encoding/binary"
	"runtime"
	"slices"
	"testing"
	"time"

	"verbena/ib"
	"verbena/roce"
)

// FuzzReceive attacks a device (hostile). Packets of every kind arrive from the network at queue pairs of every type.
// At the same time, the consumer of the queue pairs posts work requests, and the clock advances.
//
// The input is a list of steps. Each has one byte for its kind, and then its arguments. Most packets are given as the
// difference from a correct packet, so that few changes lead far into the protocol. Other packets are given as raw
// bytes.
func FuzzReceive(f *testing.F) {
	for _, s := range fuzzSeeds() {
		f.Add(s)
	}
	goroutines := runtime.NumGoroutine()
	f.Fuzz(func(t *testing.T, in []byte) {
		h := newHostile(t)
		for i := range h.qps {
			h.postRecv(i)
		}
		s := fuzzInput{in}
		for steps := 0; len(s.b) > 0 && steps < 200; steps++ {
			s.step(h)
			h.checkBounds()
		}
		h.run()
		h.checkBounds()
		h.bystanderWorks()
		h.checkMemory()
		// Every outstanding work request completes, once.
		for i, v := range h.qps {
			if v.QP.State() != ib.QPReset {
				check(t, v.obj.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			}
			h.completions()
			if v.srq != nil {
				v.recv = nil // the receives stay in the SRQ
			}
			if len(v.sent)+len(v.recv) > 0 {
				t.Errorf("queue pair %d: no completion of sends %d and receives %d", i, v.sent, v.recv)
			}
		}
		h.close()
		if n := runtime.NumGoroutine(); n > goroutines+20 {
			t.Fatalf("%d goroutines, %d at the start", n, goroutines)
		}
	})
}

type fuzzInput struct{ b []byte }

func (s *fuzzInput) byte() byte {
	if len(s.b) == 0 {
		return 0
	}
	b := s.b[0]
	s.b = s.b[1:]
	return b
}

const (
	stepRaw = 8 + iota // smaller kinds are packets
	stepTime
	stepRecv
	stepSend
	stepModify
	stepArrive
)

var fuzzOps = []ib.WROpcode{
	ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRSend, ib.WRSendWithImm, ib.WRRDMARead, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd,
	ib.WRLocalInv, ib.WRSendWithInv, ib.WRFlush, ib.WRAtomicWrite,
}

// step executes one step.
func (s *fuzzInput) step(h *hostile) {
	what := s.byte()
	i := int(what>>4) % len(h.qps)
	v := h.qps[i]
	switch what & 15 {
	default:
		c := s.craft(h)
		c.to = v.QP
		if what&15 == 1 {
			c.to, c.num, c.src = nil, h.bystander.qp.Num(), addrC // not the address of the friend
		}
		if what&15 == 2 {
			c.to, c.num, c.dst = nil, roce.QPNMulticast, testGroup.Addr()
		}
		h.inject(c)
	case stepRaw:
		n := min(int(s.byte()), len(s.b))
		b := slices.Clone(s.b[:n])
		s.b = s.b[n:]
		if n >= roce.BTHLen {
			fixed := binary.BigEndian.Uint32(b[4:])&0xff000000 | v.num
			binary.BigEndian.PutUint32(b[4:], fixed)
		}
		h.injectRaw(addrC, addrB, b, what&0x80 != 0)
	case stepTime:
		h.sleep(time.Microsecond << (s.byte() % 22))
	case stepRecv:
		h.postRecv(i)
	case stepSend:
		op := s.byte()
		h.postSend(i, fuzzOps[int(op)%len(fuzzOps)], int(s.byte())*4)
	case stepModify:
		s.modify(h, i)
	case stepArrive:
		h.run()
	}
}

// craft decodes a packet from ten bytes, most of them differences from a correct packet.
func (s *fuzzInput) craft(h *hostile) craft {
	c := craft{op: roce.Opcode(s.byte()), psn: int(int8(s.byte()))}
	flags, n, key, size := s.byte(), int(s.byte()), s.byte(), int(s.byte())
	c.ack, c.damaged = flags&1 == 0, flags&2 != 0
	if flags&4 != 0 {
		c.src = addrA
	}
	c.n = n + int(flags>>3&1)*hostileMTU
	if n > 250 {
		c.n = hostileMTU
	}
	c.length = uint32(size)
	switch key & 7 {
	case 1:
		c.length = uint32(c.n)
	case 2:
		c.length = uint32(size) << 8
	case 3:
		c.length = uint32(size) << 24
	}
	switch which := int(key >> 3 & 7); which {
	case 4:
		c.rkey, c.va = 0x12345600, regionVA(0)
	case 5:
		c.rkey, c.va = h.spent, regionVA(regionSpent)
	case 6, 7:
		l := &h.lent[which-6]
		c.rkey, c.va = l.key, arenaIOVA+uint64(l.at)
	default:
		c.rkey, c.va = h.key(which), regionVA(which)
	}
	if key&0x80 != 0 {
		c.rkey ^= 1
	}
	c.va += uint64(int64(int8(s.byte())) << 5)
	extra := s.byte()
	c.syndrome, c.qkey, c.a, c.b = roce.Syndrome(extra), testQKey, uint64(extra), 0
	c.flush, c.level, c.srqn = roce.FlushType(extra&3^1), roce.FlushLevel(extra>>4), h.srqs[1].Num()
	if flags&0x10 != 0 {
		c.qkey++
	}
	switch flags >> 5 {
	case 1:
		c.version = extra & 15
	case 2:
		c.morePad = int(extra & 3)
	case 3:
		c.pkey = uint16(extra)
	case 4:
		c.cut = int(extra)
	case 5:
		c.se = true
	case 6:
		c.va |= 1
	case 7:
		c.srqn = h.srqs[0].Num() + uint32(extra)
	}
	return c
}

// modify changes the state of a queue pair, as its consumer might do at any time.
func (s *fuzzInput) modify(h *hostile, i int) {
	v := h.qps[i]
	to := []ib.QPState{ib.QPErr, ib.QPSQD, ib.QPRTS, ib.QPReset}[s.byte()&3]
	if to == ib.QPRTS || to == ib.QPSQD {
		v.obj.Modify(ib.QPAttr{State: to}, ib.QPAttrState) // if the state allows it
		return
	}
	check(h.t, v.obj.Modify(ib.QPAttr{State: to}, ib.QPAttrState))
	h.completions()
	if to == ib.QPReset {
		h.connect(i)
	}
}

// fuzzSeeds returns short exchanges, most of them correct.
func fuzzSeeds() [][]byte {
	packet := func(qp int, op roce.Opcode, psn int8, n, key, size byte, more ...byte) []byte {
		b := append([]byte{byte(qp) << 4, byte(op), byte(psn), 0, n, key, size}, more...)
		return append(b, make([]byte, 9-len(b))...)
	}
	send := func(qp int, op ib.WROpcode, n byte) []byte { return []byte{byte(qp)<<4 | stepSend, byte(op), n} }
	arrive := []byte{stepArrive}
	sleep := func(log byte) []byte { return []byte{stepTime, log} }
	recv := func(qp int) []byte { return []byte{byte(qp)<<4 | stepRecv} }
	modify := func(qp int, to byte) []byte { return []byte{byte(qp)<<4 | stepModify, to} }
	full := byte(255) // a packet of the MTU
	open, readable, local, foreign := byte(0<<3|1), byte(1<<3|1), byte(2<<3|1), byte(3<<3|1)
	long := func(key byte) byte { return key + 1 } // the length in units of 256 bytes
	var seeds [][]byte
	add := func(parts ...[]byte) { seeds = append(seeds, slices.Concat(parts...)) }

	add(packet(rc, roce.RCSendFirst, 0, full, 0, 0), packet(rc, roce.RCSendLast, 1, 7, 0, 0), arrive)
	add(packet(rc, roce.RCSendOnly, 0, 40, 0, 0), packet(rc, roce.RCSendOnly, 1, 40, 0, 0), packet(rc, roce.RCSendOnly, 0, 40, 0, 0), sleep(6),
		recv(rc), packet(rc, roce.RCSendOnlyWithImmediate, 0, 9, 0, 0), arrive)
	add(packet(rc, roce.RCRDMAWriteFirst, 0, full, long(open), 2), packet(rc, roce.RCRDMAWriteLast, 1, full, 0, 0), arrive)
	add(packet(rc, roce.RCRDMAWriteOnly, 0, 40, open, 0), packet(rc, roce.RCRDMAWriteOnlyWithImmediate, 1, 4, open, 0), arrive,
		packet(rc, roce.RCRDMAWriteOnly, 0, 40, readable, 0), arrive)
	add(packet(rc, roce.RCRDMAReadRequest, 0, 0, long(readable), 3), packet(rc, roce.RCRDMAReadRequest, 3, 0, long(open), 3), arrive,
		packet(rc, roce.RCRDMAReadRequest, -3, 0, long(open), 3), arrive)
	add(packet(rc, roce.RCFetchAdd, 0, 0, open, 0, 0, 5), packet(rc, roce.RCFetchAdd, 0, 0, open, 0, 0, 5), packet(rc, roce.RCCmpSwap, 1, 0, open, 0, 0, 5),
		packet(rc, roce.RCFetchAdd, 2, 0, readable, 0), arrive)
	add(packet(rc, roce.RCRDMAWriteOnly, 0, 40, foreign, 0), arrive, packet(rc, roce.RCSendOnly, 0, 1, 0, 0), arrive, modify(rc, 3))
	add(packet(rc, roce.RCSendOnlyWithInvalidate, 0, 9, open, 0), arrive)
	add(packet(rc, roce.RCAtomicWrite, 0, 8, open, 0), packet(rc, roce.RCFlush, 1, 0, open, 0), arrive)
	add(packet(rc, roce.RCSendOnly, 5, 40, 0, 0), packet(rc, roce.RCSendOnly, 6, 40, 0, 0), packet(rc, roce.RCRDMAReadRequest, -100, 0, local, 1), arrive)
	ack := func(psn int8, op roce.Opcode, s roce.Syndrome, n byte) []byte {
		return packet(rc, op, psn, n, 0, 0, 0, byte(s))
	}
	add(send(rc, ib.WRSend, 200), send(rc, ib.WRRDMAWrite, 100), ack(1, roce.RCAcknowledge, roce.ACKUnlimited, 0), ack(3, roce.RCAcknowledge, roce.ACKUnlimited, 0), arrive, sleep(20))
	add(send(rc, ib.WRRDMARead, 150), ack(0, roce.RCRDMAReadResponseFirst, roce.ACKUnlimited, full), ack(1, roce.RCRDMAReadResponseMiddle, 0, full),
		ack(2, roce.RCRDMAReadResponseLast, roce.ACKUnlimited, 88), arrive)
	add(send(rc, ib.WRRDMARead, 150), send(rc, ib.WRSend, 1), ack(2, roce.RCRDMAReadResponseLast, roce.ACKUnlimited, 88), ack(3, roce.RCAcknowledge, roce.ACKUnlimited, 0), arrive)
	add(send(rc, ib.WRAtomicFetchAdd, 2), ack(0, roce.RCAtomicAcknowledge, roce.ACKUnlimited, 0), arrive)
	for _, nak := range []roce.Syndrome{roce.NAKPSNSequenceError, roce.NAKInvalidRequest, roce.NAKRemoteAccessError, roce.NAKRemoteOperationalError, roce.NAKInvalidRDRequest, roce.RNRNAK(1), 0xff} {
		add(send(rc, ib.WRSend, 200), send(rc, ib.WRRDMARead, 20), ack(1, roce.RCAcknowledge, nak, 0), arrive, sleep(16), ack(0, roce.RCAcknowledge, nak, 0), arrive)
	}
	add(send(rc, ib.WRSend, 1), sleep(21), sleep(21))
	add(send(rc, ib.WRSend, 1), modify(rc, 1), ack(0, roce.RCAcknowledge, roce.ACKUnlimited, 0), arrive, modify(rc, 2))
	add(packet(uc, roce.UCSendFirst, 0, full, 0, 0), packet(uc, roce.UCSendLast, 1, 7, 0, 0), packet(uc, roce.UCSendFirst, 2, full, 0, 0), packet(uc, roce.UCSendLast, 4, 7, 0, 0), arrive, recv(uc),
		packet(uc, roce.UCSendOnlyWithImmediate, 6, 7, 0, 0), arrive)
	add(packet(uc, roce.UCRDMAWriteFirst, 0, full, long(open), 2), packet(uc, roce.UCRDMAWriteLast, 1, full, 0, 0), packet(uc, roce.UCRDMAWriteOnly, 1, 9, foreign, 0), arrive, send(uc, ib.WRRDMAWrite, 200))
	add(packet(ud, roce.UDSendOnly, 0, 40, 0, 0), recv(ud), packet(ud, roce.UDSendOnlyWithImmediate, 77, full, 0, 0), arrive, send(ud, ib.WRSend, 60), send(ud, ib.WRSendWithImm, 60))
	group := func(op roce.Opcode, n byte) []byte { return append([]byte{2}, packet(ud, op, 0, n, 0, 0)[1:]...) }
	add(group(roce.UDSendOnly, 40), group(roce.UDSendOnlyWithImmediate, full), group(roce.RCSendOnly, 8), arrive)
	for _, qp := range []int{xrc, rcShared} {
		op := func(o roce.Operation) roce.Opcode {
			if qp == xrc {
				return roce.XRC.Opcode(o)
			}
			return roce.RC.Opcode(o)
		}
		add(packet(qp, op(roce.SendFirst), 0, full, 0, 0), packet(qp, op(roce.SendLast), 1, 7, 0, 0), packet(qp, op(roce.SendOnlyWithImmediate), 2, 7, 0, 0), arrive,
			recv(qp), packet(qp, op(roce.SendFirst), 0, full, 0, 0), arrive, modify(qp, 0), modify(qp, 3), packet(qp, op(roce.SendOnly), 0, 9, 0, 0), arrive)
		add(packet(qp, op(roce.RDMAWriteFirst), 0, full, long(open), 2), packet(qp, op(roce.RDMAWriteLast), 1, full, 0, 0), packet(qp, op(roce.RDMAReadRequest), 2, 0, long(readable), 3),
			packet(qp, op(roce.FetchAdd), 5, 0, open, 0, 0, 5), packet(qp, op(roce.AtomicWrite), 6, 8, open, 0), packet(qp, op(roce.Flush), 7, 0, open, 0), arrive)
	}
	spent, window, fast := byte(5<<3|1), byte(6<<3|1), byte(7<<3|1)
	for _, key := range []byte{window, fast} {
		add(packet(rc, roce.RCRDMAWriteOnly, 0, 40, key, 0), packet(rc, roce.RCSendOnlyWithInvalidate, 1, 9, key, 0), arrive, packet(rc, roce.RCRDMAWriteOnly, 0, 40, key, 0), arrive)
		add(packet(rc, roce.RCRDMAReadRequest, 0, 0, key, 40), send(rc, 7, key&1), arrive, packet(rcShared, roce.RCSendOnlyWithInvalidate, 0, 9, key, 0), packet(xrc, roce.XRC.Opcode(roce.SendOnlyWithInvalidate), 0, 9, key, 0), arrive)
		add(send(rc, 7, key>>3&1), arrive, packet(rc, roce.RCRDMAWriteOnly, 0, 40, key, 0), arrive)
	}
	add(packet(rc, roce.RCRDMAWriteOnly, 0, 40, spent, 0), packet(rc, roce.RCRDMAReadRequest, 0, 0, spent, 40), arrive)
	add(send(rc, 9, 20), send(rc, 10, 2), ack(0, roce.RCRDMAReadResponseOnly, roce.ACKUnlimited, 0), arrive, send(rcShared, 8, 20), ack(1, roce.RCRDMAReadResponseOnly, roce.ACKUnlimited, 0), arrive)
	add(packet(ud, roce.RCSendOnly, 0, 40, 0, 0), packet(rc, roce.UDSendOnly, 0, 40, 0, 0), packet(uc, roce.RCSendOnly, 0, 40, 0, 0), packet(rc, roce.CNP, 0, 0, 0, 0), arrive)
	raw := (&craft{op: roce.RCRDMAWriteOnly, pkey: roce.DefaultPKey, n: 8, va: regionVA(regionOpen), length: 8}).make()
	add([]byte{stepRaw, byte(len(raw))}, raw, arrive)
	add([]byte{1}, packet(rc, roce.RCSendOnly, -2, 40, 0, 0)[1:], []byte{1}, packet(rc, roce.RCAcknowledge, 0, 0, 0, 0)[1:], arrive)
	return seeds
}
