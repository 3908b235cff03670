package modeltest

import (
	"slices"

	"verbena/ib"
	"verbena/ib/ibtest/model"
)

// size draws the size of a message.
func (d *drawer) size() uint64 {
	most := uint64(16 << 10)
	if d.plan.large && d.one(2) {
		return min(1<<16+d.Uint64N(1<<18), d.x.m.MaxMsgSize)
	}
	if d.one(8) {
		return 0
	}
	n := d.logSize(most)
	if d.one(3) {
		mtu := uint64(d.mtu().Bytes())
		n = mtu*d.Uint64N(4) + d.Uint64N(3) - 1
		n = min(n, 4*mtu)
	}
	return min(n, d.x.m.MaxMsgSize)
}

// usable returns a region of a domain with a right, mostly one of n bytes or more; 0: none.
func (d *drawer) usable(pd model.ID, n uint64, need ib.AccessFlags) model.ID {
	if d.bad() { // any region so far
		return pick(d, ids(d.x.m.Regions, all))
	}
	good := func(r *model.Region) bool { return r.Valid && !r.Dead && r.PD == pd && r.Access&need == need }
	long := ids(d.x.m.Regions, func(r *model.Region) bool { return good(r) && r.Len >= n })
	if len(long) == 0 {
		long = ids(d.x.m.Regions, good)
	}
	return pick(d, long)
}

// elements draws a list of n bytes.
func (d *drawer) elements(pd model.ID, n uint64, most int, need ib.AccessFlags) (list []element) {
	most = max(most, 1)
	cuts := d.IntN(most)
	if d.one(3) {
		cuts = 0
	}
	if d.bad() {
		cuts = most // one too many
	}
	wrong := d.bad()
	for ; cuts > 0; cuts-- {
		k := d.Uint64N(n + 1)
		if d.one(5) {
			k = 0
		}
		list = append(list, d.drawElement(pd, k, need, wrong))
		n -= k
	}
	if n > 0 || d.one(2) {
		list = append(list, d.drawElement(pd, n, need, wrong))
	}
	return list
}

// drawElement draws n bytes of a region, often at its end, sometimes beyond it.
func (d *drawer) drawElement(pd model.ID, n uint64, need ib.AccessFlags, wrong bool) element {
	if len(d.x.gone) > 0 && d.one(60) { // a key from before the reset
		g := pick(d, d.x.gone)
		return element{off: g.addr, len: uint32(n), xor: g.lkey}
	}
	e := element{mr: d.usable(pd, n, need), len: uint32(n)}
	wrong = wrong && n > 0
	r := d.x.m.Regions[e.mr]
	if r == nil {
		if !d.bad() {
			e.len = 0
		}
		return e
	}
	if n > r.Len && !d.bad() {
		n = r.Len
		e.len = uint32(n)
	}
	if r.Len >= n {
		switch d.IntN(4) {
		case 0:
			e.off = r.Len - n
		case 1:
			e.off = 0
		default:
			if e.off = d.Uint64N(r.Len - n + 1); d.one(2) {
				e.off &^= 7
			}
		}
	}
	if was := d.ranges[e.mr]; was > r.Len && n > 0 && d.one(6) { // partly in its former range only
		e.off = r.Len - n + 1 + d.Uint64N(was-r.Len)
	}
	if n > 0 {
		e.xor = d.staleKey(keyOf{e.mr, true}, 8)
	}
	if wrong && d.one(2) {
		switch d.IntN(4) {
		case 0:
			e.xor = 1 << d.IntN(32)
		case 1:
			e.off = r.Len - n + 1
		case 2:
			e.off = -uint64(d.IntN(64) + 1)
		case 3:
			e.off += 1 << (32 + d.IntN(20))
		}
	}
	return e
}

// staleKey returns the difference between a key and its former value, for one request in n, or 0.
func (d *drawer) staleKey(key keyOf, n int) uint32 {
	if f, ok := d.former[key]; ok && d.one(n) {
		return f ^ d.known[key]
	}
	return 0
}

// target draws up to n bytes of remote memory in the domain of a peer, or of the shared queue of an XRC request.
func (d *drawer) target(p *model.QP, srq model.ID, n uint64, need ib.AccessFlags) (t target, most uint64) {
	pd := model.ID(0)
	if p != nil {
		pd = p.PD
	}
	if s := d.x.m.SRQs[srq]; s != nil {
		pd = s.PD
	}
	if len(d.x.gone) > 0 && d.one(8) { // a key from before the reset
		g := pick(d, d.x.gone)
		return target{off: g.addr, xor: g.rkey}, n
	}
	wrong := d.bad()
	windows := ids(d.x.m.Windows, func(w *model.Window) bool {
		return wrong || w.Bound && !w.Dead && p != nil && w.PD == pd && (w.QP == 0 || w.QP == p.ID || d.one(8)) &&
			w.Access&need == need
	})
	length := uint64(0)
	if len(windows) > 0 && d.one(2) {
		t.key = pick(d, windows)
		length = d.x.m.Windows[t.key].Len
	} else {
		t.key = d.usable(pd, n, need)
		if r := d.x.m.Regions[t.key]; r != nil {
			length = r.Len
		}
	}
	if n > length && !d.bad() {
		n = length
	}
	if length >= n {
		switch d.IntN(4) {
		case 0:
			t.off = length - n
		case 1:
		default:
			if t.off = d.Uint64N(length - n + 1); d.one(2) {
				t.off &^= 7
			}
		}
	}
	t.xor = d.staleKey(keyOf{t.key, false}, 4)
	if was := d.ranges[t.key]; was > length && n > 0 && n <= length && d.one(6) { // partly in its former range only
		t.off = length - n + 1 + d.Uint64N(was-length)
	}
	if wrong {
		switch d.IntN(6) {
		case 0:
			t.xor = 1 << d.IntN(32)
		case 1:
			t.off = length - n + 1
		case 2:
			t.off = -uint64(d.IntN(64) + 1)
		case 3:
			t.off += 1 << (32 + d.IntN(20))
		case 4:
			t.off = length
		}
	}
	return t, n
}

// operation draws an operation that the driver supports.
func (d *drawer) operation(kind ib.QPType) ib.WROpcode {
	ops := supported(d.x.Abilities, d.opcodes(kind), func(op ib.WROpcode) string { return opNames[op] })
	if d.one(2) {
		if list := slices.DeleteFunc(slices.Clone(ops), func(op ib.WROpcode) bool {
			return !slices.Contains(d.plan.favours, op)
		}); len(list) > 0 {
			ops = list
		}
	}
	return pick(d, ops)
}

// opcodes returns the opcodes of a service type.
func (d *drawer) opcodes(kind ib.QPType) []ib.WROpcode {
	ops := []ib.WROpcode{ib.WRSend, ib.WRSend, ib.WRSendWithImm}
	if kind == ib.QPTypeXRCInit {
		ops = append(ops, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRRDMARead)
		if d.x.m.Atomics {
			ops = append(ops, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd)
		}
		return ops
	}
	if kind == ib.QPTypeUD && !d.bad() {
		return ops
	}
	ops = append(ops, ib.WRRDMAWrite, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm)
	if kind == ib.QPTypeUC && !d.bad() {
		return d.withMemory(ops)
	}
	ops = append(ops, ib.WRRDMARead, ib.WRRDMARead)
	if d.bad() {
		ops = append(ops, ib.WRSendWithInv)
	}
	if len(d.destroyedIDs()) > 0 { // seldom, so it is drawn often
		ops = append(ops, ib.WRSendWithInv, ib.WRSendWithInv, ib.WRSendWithInv, ib.WRSendWithInv)
	}
	if d.x.m.Atomics {
		ops = append(ops, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd)
	}
	if d.x.m.Flush {
		ops = append(ops, ib.WRFlush)
	}
	if d.x.m.AtomicWrite {
		ops = append(ops, ib.WRAtomicWrite)
	}
	return d.withMemory(ops)
}

// withMemory adds the operations on existing regions and windows.
func (d *drawer) withMemory(ops []ib.WROpcode) []ib.WROpcode {
	more := 1
	if d.plan.focus == onMemory {
		more = 4
	}
	for range more {
		if len(ids(d.x.m.Windows, func(w *model.Window) bool { return !w.Dead })) > 0 {
			ops = append(ops, ib.WRBindMW)
		}
		if len(d.mapped()) > 0 || d.bad() {
			ops = append(ops, ib.WRRegMR)
		}
	}
	if len(d.destroyedIDs()) > 0 || d.bad() {
		ops = append(ops, ib.WRLocalInv, ib.WRLocalInv)
	}
	return ops
}

// destroyedIDs returns the objects that a request can invalidate.
func (d *drawer) destroyedIDs() []model.ID {
	windows := ids(d.x.m.Windows, func(w *model.Window) bool { return w.Bound && w.QP != 0 })
	regions := ids(d.x.m.Regions, func(r *model.Region) bool { return r.Fast && r.Valid && !r.Dead })
	return append(windows, regions...)
}

// mapped returns the regions that a request can register; if there are none, all that it might register.
func (d *drawer) mapped() []model.ID {
	return ids(d.x.m.Regions, func(r *model.Region) bool { return r.Fast && !r.Dead && !r.Valid && r.Map != nil })
}

// posts draws send work requests.
func (d *drawer) posts() call {
	q := d.qp()
	if q == nil {
		return nil
	}
	c := postSend{qp: q.ID}
	if q.State == ib.QPRTS && q.Type != ib.QPTypeXRCTgt && !d.x.m.Dead && d.one(100) {
		return c // an empty list
	}
	n := 1
	if d.one(3) {
		n += d.IntN(6)
	}
	if d.one(20) {
		n += int(q.Cap.MaxSendWR)
	}
	depth := len(q.Sends) > 0
	for range min(n, 70) {
		s := d.send(q, c.list)
		if s == nil {
			break
		}
		if depth { // READs are not ordered with later requests
			s.flags |= ib.SendFence
		}
		depth = true
		c.list = append(c.list, *s)
	}
	if len(c.list) == 0 {
		return nil
	}
	return c
}

// send draws a send work request. before holds the earlier ones of the same list.
func (d *drawer) send(q *model.QP, before []send) *send {
	s := &send{id: d.wrID(), op: d.operation(q.Type), imm: d.word(), add: d.Uint64(), swap: d.Uint64()}
	if !d.one(3) {
		s.flags |= ib.SendSignaled
	}
	if d.one(3) {
		s.flags |= ib.SendSolicited
	}
	if d.one(6) {
		s.flags |= ib.SendFence
	}
	var p *model.QP
	for _, x := range d.x.m.QPs {
		if x.Num == q.Attr.DestQPN {
			p = x
		}
	}
	if q.Type == ib.QPTypeXRCInit {
		s.srq = pick(d, ids(d.x.m.SRQs, func(r *model.SRQ) bool {
			return r.XRCD != 0 &&
				(p != nil && r.XRCD == p.XRCD || d.bad())
		}))
	}
	n := d.size()
	switch s.op {
	case ib.WRBindMW:
		return d.bind(q, s)
	case ib.WRRegMR:
		fast := d.mapped()
		if len(fast) == 0 || d.bad() {
			fast = ids(d.x.m.Regions, func(r *model.Region) bool { return !r.Dead && r.Fast })
		}
		if len(fast) == 0 {
			return nil
		}
		s.reg = &register{
			mr:     pick(d, fast),
			access: d.region(0, true).access &^ (ib.AccessZeroBased | ib.AccessMWBind | ib.AccessFlushGlobal),
		}
		if d.one(2) {
			s.reg.access = everything | ib.AccessMWBind
		}
		if d.bad() {
			s.reg.xor = 1 << d.IntN(32)
		}
		return s
	case ib.WRLocalInv:
		s.inv = d.invalidated(q)
		return s
	case ib.WRSendWithInv:
		s.inv = d.invalidated(p)
	case ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd, ib.WRAtomicWrite:
		n = 8
	case ib.WRFlush:
		s.flush = ib.Flush{Placement: ib.FlushGlobal, Length: uint32(n)}
		if d.one(3) {
			s.flush.Level = ib.FlushRegion
		}
	}
	if q.Type == ib.QPTypeUD {
		d.datagram(q, s)
		p = d.x.m.QPs[s.dest]
		if n = min(n, uint64(d.x.m.MTU)); d.bad() {
			n = uint64(d.x.m.MTU) + 1 + d.logSize(1<<16)
		}
	}
	if usesRemote(s.op) {
		var most uint64
		if s.to, most = d.target(p, s.srq, n, need[s.op]); n != 8 {
			n = most
		}
		if n == 8 && !d.bad() {
			addr, _ := d.x.remote(s.to)
			if base := addr - s.to.off; d.one(2) {
				s.to.off = -base % 8 // the same word each time
			} else {
				s.to.off -= addr % 8
			}
		}
	} else if room := d.x.firstRecvLen(p, s.srq); room >= 0 && !d.one(d.plan.long) { // mostly at most the receive length
		if q.Type == ib.QPTypeUD {
			room = max(0, room-model.GRHLen)
		}
		if n = min(n, uint64(room)); d.one(4) {
			n = min(uint64(room), 1<<20)
			if q.Type == ib.QPTypeUD {
				n = min(n, uint64(d.x.m.MTU))
			}
		}
	}
	d.data(q, s, n)
	if compare := d.compared(p, s); compare != nil && !d.one(5) {
		if s.add = *compare; d.one(3) {
			s.add ^= 1 << d.IntN(64)
		}
	}
	return s
}

// word returns a value with all bits, often 0 or all ones.
func (d *drawer) word() uint32 {
	v := d.Uint32()
	switch v % 8 {
	case 0:
		return 0
	case 1:
		return 1<<32 - 1
	}
	return v
}

// need maps operations to the right that they need.
var need = map[ib.WROpcode]ib.AccessFlags{
	ib.WRRDMAWrite: ib.AccessRemoteWrite, ib.WRRDMAWriteWithImm: ib.AccessRemoteWrite,
	ib.WRAtomicWrite:     ib.AccessRemoteWrite,
	ib.WRRDMARead:        ib.AccessRemoteRead,
	ib.WRAtomicCmpAndSwp: ib.AccessRemoteAtomic, ib.WRAtomicFetchAdd: ib.AccessRemoteAtomic,
	ib.WRFlush: ib.AccessFlushGlobal,
}

// data draws the source or the destination of a request of n bytes.
func (d *drawer) data(q *model.QP, s *send, n uint64) {
	switch {
	case s.op == ib.WRFlush:
	case s.op != ib.WRAtomicWrite && n != 8 && d.bad() && d.overlong(q, s, n):
	case s.op == ib.WRAtomicWrite:
		s.inline = d.bytes(8)
	case (s.op == ib.WRRDMARead || need[s.op] == ib.AccessRemoteAtomic) && q.Cap.MaxInlineData >= 8 && d.bad():
		s.flags |= ib.SendInline
		s.inline = d.bytes(8)
	case s.op == ib.WRRDMARead || n == 8 && need[s.op] == ib.AccessRemoteAtomic:
		s.list = d.elements(q.PD, n, int(q.Cap.MaxSendSGE), ib.AccessLocalWrite)
	case n <= uint64(q.Cap.MaxInlineData) && d.one(2) || d.bad() && n <= 1024:
		s.flags |= ib.SendInline
		s.inline = d.bytes(int(n))
	default:
		s.list = d.elements(q.PD, n, int(q.Cap.MaxSendSGE), 0)
	}
}

// overlong draws elements of 4 GiB and n bytes: the low 32 bits of the sum are a legal length.
func (d *drawer) overlong(q *model.QP, s *send, n uint64) bool {
	need := ib.AccessFlags(0)
	if s.op == ib.WRRDMARead {
		need = ib.AccessLocalWrite
	}
	large := ids(d.x.m.Regions, func(r *model.Region) bool {
		return r.Valid && !r.Dead && r.PD == q.PD && r.Access&need == need && r.Len >= 1<<32+n
	})
	if len(large) == 0 || q.Cap.MaxSendSGE < 2 || n > 1<<30 {
		return false
	}
	mr := pick(d, large)
	s.list = []element{{mr: mr, len: 1<<32 - 8}, {mr: mr, len: uint32(n + 8)}}
	return true
}

func (d *drawer) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(d.Uint32())
	}
	return b
}

// compared returns the current value at the target of a compare and swap.
func (d *drawer) compared(p *model.QP, s *send) *uint64 {
	if s.op != ib.WRAtomicCmpAndSwp || p == nil {
		return nil
	}
	addr, rkey := d.x.remote(s.to)
	return d.x.m.Word(p, rkey, addr)
}

// firstRecvLen returns the length of the first receive of a queue pair; -1: none.
func (x *runner) firstRecvLen(p *model.QP, srq model.ID) int {
	if p == nil {
		return -1
	}
	return x.m.FirstRecvLen(p, srq)
}

// datagram draws the destination of a datagram.
func (d *drawer) datagram(q *model.QP, s *send) {
	s.dest = d.x.objs[q.ID].peer
	if d.one(10) {
		s.dest = pick(d, ids(d.x.m.QPs, all))
	}
	s.qkey = 0x11223344
	switch {
	case d.bad():
		s.qkey++
	case d.one(8):
		s.qkey = d.Uint32() | 1<<31
	}
	s.ah = pick(d, ids(d.x.m.AHs, func(a *model.AH) bool { return !a.Dead && (a.PD == q.PD || d.bad()) }))
	if s.ah == 0 {
		d.plan1(createAH{id: d.id(), pd: q.PD, hops: 64})
		return
	}
	if d.x.m.AHs[s.ah].Attr.GRH.DGID.Addr().IsMulticast() && !d.bad() {
		s.group = true
	}
}

// invalidated draws a key to invalidate, mostly a valid one.
func (d *drawer) invalidated(q *model.QP) (t target) {
	windows := ids(d.x.m.Windows, func(w *model.Window) bool { return w.Bound && q != nil && w.QP == q.ID })
	regions := ids(d.x.m.Regions, func(r *model.Region) bool { return r.Fast && r.Valid && !r.Dead })
	list := append(windows, regions...)
	if len(list) == 0 || d.bad() {
		list = append(ids(d.x.m.Windows, all), ids(d.x.m.Regions, all)...)
	}
	if t.key = pick(d, list); d.bad() {
		t.xor = 1 << d.IntN(32)
	}
	return t
}

// bind draws a bind.
func (d *drawer) bind(q *model.QP, s *send) *send {
	mw := pick(d, ids(d.x.m.Windows, func(w *model.Window) bool {
		return !w.Dead && (w.Kind == ib.MWType1 || !w.Bound || d.one(4)) // a bound window of type 2 cannot be bound
	}))
	if mw == 0 {
		return nil
	}
	w := d.x.m.Windows[mw]
	b := &bind{
		mw: mw, variant: uint8(w.RKey) + uint8(1+d.IntN(255)),
		access: ib.AccessRemoteRead | ib.AccessRemoteWrite | ib.AccessRemoteAtomic,
	}
	b.mr = pick(d, ids(d.x.m.Regions, func(r *model.Region) bool {
		return !r.Dead && (d.bad() || r.Valid && r.PD == q.PD && r.Access&ib.AccessMWBind != 0)
	}))
	fast := ids(d.x.m.Regions, func(r *model.Region) bool { return r.Fast && r.Valid && !r.Dead && r.PD == q.PD })
	if len(fast) > 0 && d.one(2) {
		b.mr = pick(d, fast)
	}
	if b.mr == 0 {
		return nil
	}
	r := d.x.m.Regions[b.mr]
	b.len = d.logSize(max(r.Len, 1))
	if r.Len > 1<<32 && d.one(2) {
		b.len = 1<<32 + d.Uint64N(r.Len-1<<32)
	}
	b.off = d.Uint64N(r.Len - min(b.len, r.Len) + 1)
	if d.one(4) {
		b.off, b.len = 0, r.Len
	}
	if d.one(3) {
		b.access &^= pick(d, []ib.AccessFlags{ib.AccessRemoteRead, ib.AccessRemoteWrite, ib.AccessRemoteAtomic})
	}
	if w.Kind == ib.MWType2 && d.one(3) || d.bad() {
		b.access |= ib.AccessZeroBased
	}
	switch {
	case d.bad():
		b.off = r.Len - b.len + 1
	case d.bad():
		b.len += 1 << (32 + d.IntN(8))
	case w.Kind == ib.MWType1 && d.one(8):
		b.len = 0
	case d.bad():
		b.variant = uint8(w.RKey)
	}
	s.bind = b
	if w.Kind == ib.MWType2 && len(d.todo) == 0 && !d.x.episodes && d.one(2) {
		d.rebind(q, b)
	}
	return s
}

// rebind plans a second life of a type 2 window: its invalidation, a bind with other options, and accesses by the peer.
func (d *drawer) rebind(q *model.QP, first *bind) {
	b := *first
	b.variant += uint8(1 + d.IntN(100))
	b.access ^= ib.AccessZeroBased
	post := func(on *model.QP, s send) {
		s.id, s.flags = d.wrID(), ib.SendSignaled
		d.plan1(postSend{on.ID, []send{s}})
	}
	post(q, send{op: ib.WRLocalInv, inv: target{key: b.mw}})
	post(q, send{op: ib.WRBindMW, bind: &b})
	p := d.x.m.QPs[d.x.objs[q.ID].peer]
	if p == nil || b.len == 0 {
		return
	}
	for _, op := range []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead} {
		n := min(b.len, 1+d.Uint64N(64))
		post(p, send{op: op, to: target{key: b.mw, off: d.Uint64N(b.len - n + 1)},
			list: d.elements(p.PD, n, int(p.Cap.MaxSendSGE), ib.AccessLocalWrite)})
	}
}

// receives draws receives for a queue pair or a shared queue.
func (d *drawer) receives() call {
	qps := ids(d.x.m.QPs, func(q *model.QP) bool {
		own := q.SRQ == 0 && q.Type != ib.QPTypeXRCInit && q.Type != ib.QPTypeXRCTgt
		return own && q.State != ib.QPReset && q.Recvs() < 8 || q.SRQ == 0 && d.bad()
	})
	srqs := ids(d.x.m.SRQs, all)
	id := pick(d, append(slices.Clone(qps), srqs...))
	if id == 0 {
		return nil
	}
	c := postRecv{on: id, shared: slices.Contains(srqs, id)}
	pd, most, room := model.ID(0), 0, 0
	if c.shared {
		s := d.x.m.SRQs[id]
		pd, most, room = s.PD, s.MaxSGE(), s.Room()
	} else {
		q := d.x.m.QPs[id]
		pd, most, room = q.PD, int(q.Cap.MaxRecvSGE), int(q.Cap.MaxRecvWR)
	}
	n := 1 + d.IntN(4)
	if d.one(20) {
		n = room + 1
	}
	for range min(n, 70) {
		size := d.size()
		if d.one(2) {
			size = max(size, d.size())
		}
		list := d.elements(pd, size, most, ib.AccessLocalWrite)
		if len(list) < most && d.one(6) { // a boundary in or near the header of a datagram
			list = append([]element{d.drawElement(pd, d.Uint64N(model.GRHLen+4), ib.AccessLocalWrite, false)}, list...)
		}
		c.list = append(c.list, recv{d.wrID(), list})
	}
	return c
}
