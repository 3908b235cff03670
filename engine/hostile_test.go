package engine

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"verbena/driver/rxe/layout"
	"verbena/ib"
	"verbena/internal/clock"
	"verbena/link"
	"verbena/link/stepnet"
	"verbena/netdev"
	"verbena/roce"
	"verbena/umem"
)

// hostile is a device under attack. Its queue pairs of all types are connected with addrC. Only the test uses addrC:
// it sends packets of its own from there, and receives the answers. At the same time, a bystander exchanges messages
// with a friend on another device. Everything runs on the test's thread, on virtual time.
type hostile struct {
	t     testing.TB
	core  ib.Core
	clock *clock.Virtual
	net   *stepnet.Net

	dev     *Device
	pd      *ib.PD
	foreign *ib.PD
	cq      *ib.CQ
	xrcd    *ib.XRCD
	srqs    [2]*ib.SRQ // for rcShared and xrc
	qps     [5]*victim // by rc, uc and so on
	ah      *ib.AH
	arena   []byte
	regions [numRegions]*ib.MR
	window  *ib.MW
	fast    *ib.MR
	lent    [2]lent       // memory of the window and of the fast registration
	spent   uint32        // an invalidated key
	answers []roce.Packet // packets from the device to addrC since the last call of heard

	bystander, friend *node
	runs              uint64 // calls of bystanderWorks
}

// victim is a queue pair under attack, with its posted work requests.
type victim struct {
	*QP
	obj        *ib.QP
	srq        *ib.SRQ // nil: the queue pair has a receive queue of its own
	nextID     uint64
	sent, recv []uint64          // work requests without a completion, oldest first
	inv        map[uint64]uint32 // keys that the LOCAL_INVs among them invalidate
}

const (
	rc = iota
	uc
	ud // in testGroup
	xrc
	rcShared // RC, with a shared receive queue
)

// lent is memory with a key from a work request. A message or a work request may invalidate the key.
type lent struct {
	key    uint32
	at     int
	closed []byte // content at the invalidation of the key; nil: the key is valid
}

var addrC = netip.MustParseAddr("10.0.0.3")

// The arena is memory of the device's consumer. It has regions of regionLen bytes, and guards between them, which
// belong to no region.
const (
	regionOpen     = iota // every right
	regionReadable        // remote READ
	regionLocal           // no remote right: receives at its start, then the data of READs
	regionForeign         // every right, in another protection domain
	regionSpent           // no remote right; an invalidated window covers it
	regionLent            // no remote right; a window covers one half and a fast registration the other
	numRegions

	regionLen  = 4096
	lentLen    = regionLen / 2
	guardLen   = 512
	arenaIOVA  = 0x100000
	arenaLen   = guardLen + numRegions*(regionLen+guardLen)
	recvLen    = 300
	maxRecvs   = 6
	readAt     = maxRecvs * recvLen
	readLen    = 600
	hostileMTU = 256
	hostilePSN = 0xfffffe // close to the wrap
	peerQPN    = 0x123456
	askedReads = 2 // max_dest_rd_atomic
)

func regionAt(i int) int            { return guardLen + i*(regionLen+guardLen) }
func regionVA(i int) uint64         { return arenaIOVA + uint64(regionAt(i)) }
func (h *hostile) key(i int) uint32 { return h.regions[i].LKey() } // R_Key and L_Key are equal

var regionAccess = [numRegions]ib.AccessFlags{
	allAccess | ib.AccessFlushGlobal, ib.AccessLocalWrite | ib.AccessRemoteRead, ib.AccessLocalWrite, allAccess,
	ib.AccessLocalWrite | ib.AccessMWBind, ib.AccessLocalWrite | ib.AccessMWBind,
}

// secret fills the memory that no packet to the attacker may contain: the guards, the foreign and the spent region.
var secret = []byte{0xde, 0xad, 0x5e, 0xc2, 0xe7, 0x0b, 0xad, 0x1d}

// pristine is the initial content of the arena.
var pristine = func() []byte {
	b := bytes.Repeat(secret, arenaLen/len(secret))
	for _, i := range []int{regionOpen, regionReadable, regionLocal, regionLent} {
		clear(b[regionAt(i):][:regionLen])
	}
	return b
}()

func newHostile(t testing.TB) *hostile {
	t.Helper()
	v := clock.NewVirtual(time.Unix(1<<30, 0))
	h := &hostile{t: t, clock: v, net: stepnet.New(v), arena: slices.Clone(pristine)}
	h.net.Route = h.route
	h.dev = h.newDevice("rxe0", addrB)
	peer := h.newDevice("rxe1", addrA)
	var err error
	h.pd, err = h.dev.IB().AllocPD()
	check(t, err)
	h.foreign, err = h.dev.IB().AllocPD()
	check(t, err)
	h.cq, err = h.dev.IB().CreateCQ(ib.CQInit{Entries: 127})
	check(t, err)
	mem := umem.NewLocal()
	base, err := mem.Add(h.arena)
	check(t, err)
	for i := range h.regions {
		pd := h.pd
		if i == regionForeign {
			pd = h.foreign
		}
		h.regions[i], err = pd.RegMR(ib.MRInit{Space: mem, Addr: base + uint64(regionAt(i)), Length: regionLen, IOVA: regionVA(i), Access: regionAccess[i]})
		check(t, err)
	}
	h.ah, err = h.pd.CreateAH(attackerAV())
	check(t, err)
	h.newVictims()
	check(t, h.qps[ud].obj.AttachMcast(testGroup, 0))
	h.lend(mem, base)
	h.bystander, h.friend = h.newBystander(h.dev), h.newBystander(peer)
	connectQPs(t, h.dev, h.bystander.qp, peer, h.friend.qp, conn{mtu: ib.MTU256, psn: hostilePSN, timeout: 10})
	return h
}

func (h *hostile) newVictims() {
	h.t.Helper()
	var err error
	h.xrcd, err = h.dev.IB().AllocXRCD()
	check(h.t, err)
	for i, init := range []ib.SRQInitAttr{{}, {Type: ib.SRQXRC, XRCD: h.xrcd, CQ: h.cq}} {
		init.Attr = ib.SRQAttr{MaxWR: 7, MaxSGE: 2}
		h.srqs[i], err = h.pd.CreateSRQ(init)
		check(h.t, err)
	}
	for i, typ := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD, ib.QPTypeXRCTgt, ib.QPTypeRC} {
		v := &victim{inv: map[uint64]uint32{}}
		init := ib.QPInitAttr{
			SendCQ: h.cq, RecvCQ: h.cq, Type: typ,
			Cap: ib.QPCap{MaxSendWR: 7, MaxRecvWR: 7, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 32},
		}
		switch i {
		case rcShared:
			v.srq, init.SRQ, init.Cap.MaxRecvWR = h.srqs[0], h.srqs[0], 0
		case xrc:
			v.srq, init = h.srqs[1], ib.QPInitAttr{Type: typ, XRCD: h.xrcd}
		}
		v.obj, err = h.pd.CreateQP(init)
		check(h.t, err)
		v.QP = qpOf(v.obj)
		h.qps[i] = v
		h.connect(i)
	}
}

// lend creates the temporary keys.
func (h *hostile) lend(mem *umem.Local, base uint64) {
	h.t.Helper()
	do := func(wr ib.SendWR) {
		wr.Flags = ib.SendSignaled
		_, err := h.qps[rc].obj.PostSend(wr)
		check(h.t, err)
		var wc [2]ib.WC
		if n, err := h.cq.Poll(wc[:]); n != 1 || err != nil || wc[0].Status != ib.WCSuccess {
			h.t.Fatalf("work request %d for a key: %d completions, %v, %v", wr.Opcode, n, wc[0].Status, err)
		}
	}
	var err error
	h.window, err = h.pd.AllocMW(ib.MWType2)
	check(h.t, err)
	bind := func(region, n int) uint32 {
		key := ib.IncRKey(h.window.RKey())
		do(ib.SendWR{Opcode: ib.WRBindMW, Bind: &ib.BindMW{
			MW: h.window, MR: h.regions[region], RKey: key, Addr: regionVA(region), Length: uint64(n), Access: allAccess,
		}})
		return key
	}
	h.spent = bind(regionSpent, regionLen)
	do(ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: h.spent})
	h.lent[0] = lent{key: bind(regionLent, lentLen), at: regionAt(regionLent)}

	h.fast, err = h.pd.AllocMR(3)
	check(h.t, err)
	at := regionAt(regionLent) + lentLen
	check(h.t, h.fast.Map(mem, nil, []umem.Range{{Addr: base + uint64(at), Length: lentLen}}, arenaIOVA+uint64(at)))
	do(ib.SendWR{Opcode: ib.WRRegMR, Reg: &ib.FastReg{MR: h.fast, Key: h.fast.RKey(), Access: allAccess}})
	h.lent[1] = lent{key: h.fast.RKey(), at: at}
}

// takenBack records that a key is invalid. From now on the content of its memory must not change.
func (h *hostile) takenBack(key uint32) {
	h.t.Helper()
	for i := range h.lent {
		l := &h.lent[i]
		if l.key != key {
			continue
		}
		if l.closed != nil {
			h.t.Errorf("key %#x has been taken back twice", key)
		}
		l.closed = slices.Clone(h.arena[l.at:][:lentLen])
		return
	}
	h.t.Errorf("key %#x has been taken back, want a lent key", key)
}

func (h *hostile) newDevice(name string, addr netip.Addr) *Device {
	h.t.Helper()
	d, err := New(Config{
		Layout: layout.Layout{},
		Name:   name, Addrs: []netip.Addr{addr}, Network: h.net, Clock: h.clock,
		Rand:   rand.New(rand.NewPCG(3, uint64(addr.As4()[3]))),
		Netdev: netdev.Interface{Name: "eth0", Index: 2, MAC: []byte{2, 0, 0, 0, 0, addr.As4()[3]}, MTU: 9000, Up: true, Running: true},
	})
	check(h.t, err)
	check(h.t, h.core.Register(d.Handle()))
	return d
}

// newBystander creates a queue pair that has only the device in common with the queue pairs under attack.
func (h *hostile) newBystander(d *Device) *node {
	h.t.Helper()
	n := &node{t: h.t, dev: d, mem: umem.NewLocal(), buf: make([]byte, 2048)}
	var err error
	n.pd, err = d.IB().AllocPD()
	check(h.t, err)
	n.cq, err = d.IB().CreateCQ(ib.CQInit{Entries: 31})
	check(h.t, err)
	n.addr, err = n.mem.Add(n.buf)
	check(h.t, err)
	n.mr, err = n.pd.RegMR(ib.MRInit{Space: n.mem, Addr: n.addr, Length: uint64(len(n.buf)), Access: allAccess})
	check(h.t, err)
	n.qp = n.newQP(setup{typ: ib.QPTypeRC, cap: ib.QPCap{MaxSendWR: 7, MaxRecvWR: 7, MaxSendSGE: 1, MaxRecvSGE: 1}})
	return n
}

func attackerAV() *ib.AHAttr {
	return &ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: ib.GIDFromAddr(addrC), SGIDIndex: 1}}
}

// connect takes a queue pair under attack from RESET to RTS.
func (h *hostile) connect(i int) {
	h.t.Helper()
	v := h.qps[i]
	toInit(h.t, v.obj, conn{access: allAccess | ib.AccessFlushGlobal})
	attr := ib.QPAttr{
		State: ib.QPRTR, PathMTU: ib.MTU256, DestQPN: peerQPN, RQPSN: hostilePSN, MaxDestRdAtomic: askedReads,
		MinRNRTimer: 1, AH: *attackerAV(),
	}
	mask := ib.QPAttrState
	if i != ud {
		mask |= ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
	}
	if services[v.typ].reliable {
		mask |= ib.QPAttrMaxDestRdAtomic | ib.QPAttrMinRNRTimer
	}
	check(h.t, v.obj.Modify(attr, mask))
	toRTS(h.t, v.obj, conn{psn: hostilePSN, timeout: 10, retry: 2, rnrRetry: 2})
	v.sent = nil
	if v.srq == nil {
		v.recv = nil
	}
}

func (h *hostile) close() {
	h.t.Helper()
	check(h.t, h.qps[ud].obj.DetachMcast(testGroup, 0))
	for _, v := range h.qps {
		check(h.t, v.obj.Destroy())
	}
	for _, s := range h.srqs {
		check(h.t, s.Destroy())
	}
	check(h.t, h.xrcd.Dealloc())
	check(h.t, h.ah.Destroy())
	check(h.t, h.window.Dealloc())
	check(h.t, h.fast.Dereg())
	for _, r := range h.regions {
		check(h.t, r.Dereg())
	}
	check(h.t, h.cq.Destroy())
	check(h.t, h.pd.Dealloc())
	check(h.t, h.foreign.Dealloc())
	for _, n := range []*node{h.bystander, h.friend} {
		check(h.t, n.qp.Destroy())
		check(h.t, n.mr.Dereg())
		check(h.t, n.cq.Destroy())
		check(h.t, n.pd.Dealloc())
		check(h.t, h.core.Unregister(n.dev.Handle()))
		check(h.t, n.dev.Close())
	}
}

// route records the packets to the attacker, and checks that they are well-formed and contain no secret.
func (h *hostile) route(p *stepnet.Packet) {
	if p.Dst != addrC {
		p.Arrive(time.Microsecond)
		return
	}
	k, err := roce.ParsePacket(p.Data)
	if err != nil {
		h.t.Errorf("the device sent %x: %v", p.Data, err)
	}
	if bytes.Contains(p.Data, secret) {
		h.t.Errorf("the device sent secret data: %v %x", k.Opcode, k.Payload)
	}
	h.answers = append(h.answers, k)
}

// craft is a packet of the attacker.
type craft struct {
	to       *QP    // destination; nil: the destination is num
	num      uint32 //
	src, dst netip.Addr
	op       roce.Opcode
	psn      int // relative to the expected PSN of requests, or to the oldest unacknowledged PSN
	n        int // bytes of payload, all of them the low byte of the PSN
	ack      bool
	se       bool
	version  uint8
	morePad  int // error of the pad count; may be negative
	pkey     uint16
	va       uint64
	rkey     uint32
	length   uint32
	a, b     uint64 // operands of atomics; a is also the result
	syndrome roce.Syndrome
	qkey     uint32
	srqn     uint32
	flush    roce.FlushType
	level    roce.FlushLevel
	cut      int // bytes removed from the end
	damaged  bool
}

// make returns the bytes of the packet.
func (c *craft) make() []byte {
	header := max(c.op.HeaderLen(), roce.BTHLen)
	pad := roce.PadCount(c.n)
	b := make([]byte, header+c.n+pad+roce.ICRCLen)
	psn := roce.MakePSN(uint32(c.psn))
	num := c.num
	if c.to != nil {
		num = c.to.num
		c.to.exclusively(func(*pass) {
			if c.op.Has(roce.FlagResponse) {
				psn = c.to.req.snd.Status().Unacknowledged.Add(c.psn)
			} else {
				psn = c.to.resp.rcv.PSN().Add(c.psn)
			}
		})
	}
	roce.BTH(b).Encode(&roce.BTHFields{
		Opcode: c.op, PadCount: uint8(pad + c.morePad), PKey: c.pkey, DestQPN: num, PSN: psn, AckReq: c.ack, SolicitedEvent: c.se,
	})
	b[1] |= c.version
	for i := range c.n {
		b[header+i] = byte(psn)
	}
	k := roce.Packet{Opcode: c.op, Data: b}
	if h := k.RETH(); h != nil {
		h.Encode(c.va, c.rkey, c.length)
	}
	if h := k.AtomicETH(); h != nil {
		h.Encode(c.va, c.rkey, c.a, c.b)
	}
	if h := k.AETH(); h != nil {
		h.Encode(c.syndrome, 0)
	}
	if h := k.AtomicAckETH(); h != nil {
		h.Encode(c.a)
	}
	if h := k.DETH(); h != nil {
		h.Encode(c.qkey, 0x17)
	}
	if h := k.XRCETH(); h != nil {
		h.Encode(c.srqn)
	}
	if h := k.FETH(); h != nil {
		h.Encode(c.flush, c.level)
	}
	if h := k.IETH(); h != nil {
		h.Encode(c.rkey)
	}
	if h := k.ImmDt(); h != nil {
		h.Encode(0x1b1b1b1b)
	}
	return b[:max(len(b)-c.cut, 0)]
}

// inject queues packets for the device. They arrive when the clock advances.
func (h *hostile) inject(list ...craft) {
	for _, c := range list {
		if c.pkey == 0 {
			c.pkey = roce.DefaultPKey
		}
		if !c.src.IsValid() {
			c.src = addrC
		}
		if !c.dst.IsValid() {
			c.dst = addrB
		}
		h.injectRaw(c.src, c.dst, c.make(), c.damaged)
	}
}

func (h *hostile) injectRaw(src, dst netip.Addr, b []byte, damaged bool) {
	if len(b) >= roce.BTHLen+link.ICRCLen && len(b) < 1<<16-100 {
		stepnet.Seal(src, dst, b)
		if damaged {
			b[len(b)-1] ^= 1
		}
	}
	h.net.Inject(src, dst, b)
}

// run delivers the injected packets.
func (h *hostile) run() { h.sleep(0) }

// sleep advances the clock by d. It fails after a number of events that has no legitimate cause.
func (h *hostile) sleep(d time.Duration) {
	end := h.clock.Now().Add(d)
	for range 100_000 {
		if at, ok := h.clock.Next(); !ok || at.After(end) {
			h.clock.Sleep(end.Sub(h.clock.Now()))
			return
		}
		h.clock.Step()
	}
	h.t.Fatalf("there is no end of events within %v", d)
}

// postRecv posts a receive, if the local region has room for it.
func (h *hostile) postRecv(i int) {
	v := h.qps[i]
	if len(v.recv) == maxRecvs {
		return
	}
	at := int(v.nextID%maxRecvs) * recvLen
	wr := ib.RecvWR{ID: v.nextID, SGList: []ib.SGE{{Addr: regionVA(regionLocal) + uint64(at), Length: recvLen, LKey: h.key(regionLocal)}}}
	post := v.obj.PostRecv
	if v.srq != nil {
		post = v.srq.PostRecv
	}
	if n, _ := post(wr); n == 1 {
		v.recv = append(v.recv, v.nextID)
		v.nextID++
	}
}

// postSend posts a work request. Response data is stored in the local region.
func (h *hostile) postSend(i int, op ib.WROpcode, length int) {
	v := h.qps[i]
	wr := ib.SendWR{
		ID: v.nextID, Opcode: op, Flags: ib.SendSignaled, RemoteAddr: 0x8000, RKey: 0x777, AH: h.ah, RemoteQPN: peerQPN, RemoteQKey: testQKey,
		SGList: []ib.SGE{{Addr: regionVA(regionLocal) + readAt, Length: uint32(min(length, readLen)), LKey: h.key(regionLocal)}},
	}
	switch op {
	case ib.WRSendWithInv:
		wr.InvalidateRKey = 0x777
	case ib.WRLocalInv:
		wr.SGList, wr.InvalidateRKey = nil, h.lent[length/4%2].key
	case ib.WRAtomicWrite:
		wr.SGList, wr.Inline = nil, make([]byte, 8)
	case ib.WRFlush:
		wr.SGList, wr.Flush = nil, ib.Flush{Placement: ib.FlushGlobal, Length: uint32(length)}
	}
	if n, _ := v.obj.PostSend(wr); n == 1 {
		if op == ib.WRLocalInv {
			v.inv[v.nextID] = wr.InvalidateRKey
		}
		v.sent = append(v.sent, v.nextID)
		v.nextID++
	}
}

// completions polls all completions. It checks that requests complete in order and once, and removes them from the
// lists.
func (h *hostile) completions() (list []ib.WC) {
	h.t.Helper()
	var wc [16]ib.WC
	for {
		n, err := h.cq.Poll(wc[:])
		check(h.t, err)
		if n == 0 {
			return list
		}
		for _, w := range wc[:n] {
			list = append(list, w)
			i := slices.IndexFunc(h.qps[:], func(v *victim) bool { return v.obj == w.QP })
			if i < 0 {
				h.t.Fatalf("completion of an unknown queue pair: %+v", w)
			}
			v := h.qps[i]
			if len(v.sent) > 0 && v.sent[0] == w.ID {
				v.sent = v.sent[1:]
				if key, ok := v.inv[w.ID]; ok && w.Status == ib.WCSuccess {
					h.takenBack(key)
				}
			} else if n := slices.Index(v.recv, w.ID); n == 0 || n > 0 && v.srq != nil { // RESET discards a taken receive
				v.recv = v.recv[n+1:]
				if w.Status == ib.WCSuccess && w.Flags&ib.WCWithInvalidate != 0 {
					h.takenBack(w.InvalidateRKey)
				}
			} else {
				h.t.Fatalf("queue pair %d: completion %d %v; outstanding are sends %d and receives %d", i, w.ID, w.Status, v.sent, v.recv)
			}
		}
	}
}

// checkBounds checks the invariants after each packet: legal states, and bounded queues.
func (h *hostile) checkBounds() {
	h.t.Helper()
	h.completions()
	for i, v := range h.qps {
		switch s := v.QP.State(); s {
		case ib.QPRTS, ib.QPSQD, ib.QPErr, ib.QPReset:
		case ib.QPSQE:
			if services[v.typ].reliable {
				h.t.Errorf("a reliable queue pair is in %v", s)
			}
		default:
			h.t.Errorf("queue pair %d is in %v", i, s)
		}
		if services[v.typ].reliable && v.QP.State() == ib.QPRTS {
			v.verify(h.t)
		}
		v.QP.exclusively(func(*pass) {
			r := &v.resp
			replies, past := r.rcv.Len()
			handed := v.egress.handed.Load()
			if replies > askedReads || past > askedReads || len(v.egress.queue) > 2*maxBacklog || len(v.req.wqes) > 8 ||
				handed != 0 || r.wqe.filled > recvLen {
				h.t.Errorf("queue pair %d: %d replies, %d past requests, %d trains, %d work requests, %d trains handed over, %d bytes received",
					i, replies, past, len(v.egress.queue), len(v.req.wqes), handed, r.wqe.filled)
			}
		})
	}
	if s := h.bystander.qp.State(); s != ib.QPRTS {
		h.t.Errorf("the bystander is in %v", s)
	}
}

// checkMemory checks that no protected memory was written.
func (h *hostile) checkMemory() {
	h.t.Helper()
	at := 0
	clean := func(end int) {
		for ; at < end; at++ {
			if h.arena[at] != pristine[at] {
				h.t.Fatalf("byte %d of the arena was written", at)
			}
		}
	}
	clean(regionAt(regionOpen))
	at += regionLen
	clean(regionAt(regionLocal))
	at += readAt + readLen
	clean(regionAt(regionLent))
	at += regionLen
	clean(arenaLen)
	for _, l := range h.lent {
		if l.closed != nil && !bytes.Equal(l.closed, h.arena[l.at:][:lentLen]) {
			h.t.Fatalf("memory was written after its key %#x had been taken back", l.key)
		}
	}
}

// bystanderWorks exchanges messages between the bystander and its friend, and compares the data.
func (h *hostile) bystanderWorks() {
	h.t.Helper()
	h.runs++
	for i, n := range []*node{h.bystander, h.friend} {
		o := []*node{h.friend, h.bystander}[i]
		fill(n.buf[:1024], h.runs*2+uint64(i))
		o.recv(1, 1024, 512)
		n.send(
			ib.SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: n.sge(0, 512)},
			ib.SendWR{ID: 3, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: n.sge(512, 512), RemoteAddr: o.addr + 1536, RKey: o.mr.RKey()},
		)
		h.sleep(time.Millisecond)
		for who, want := range map[*node][]uint64{n: {2, 3}, o: {1}} {
			var wc [8]ib.WC
			k, err := who.cq.Poll(wc[:])
			check(h.t, err)
			var got []uint64
			for _, w := range wc[:k] {
				if w.Status != ib.WCSuccess {
					h.t.Fatalf("the bystander's exchange: %+v", w)
				}
				got = append(got, w.ID)
			}
			if !slices.Equal(got, want) {
				h.t.Fatalf("the bystander's exchange completed %d, want %d", got, want)
			}
		}
		if !bytes.Equal(n.buf[:1024], o.buf[1024:]) {
			h.t.Fatal("the bystander's exchange: data differ")
		}
	}
}
