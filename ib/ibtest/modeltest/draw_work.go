package modeltest

import (
	"slices"

	"verbena/ib"
	"verbena/ib/ibtest/model"
)

// drawMessageSize draws the size of a message.
func (d *callDrawer) drawMessageSize() uint64 {
	most := uint64(16 << 10)
	if d.plan.large && d.oneInN(2) {
		return min(1<<16+d.Uint64N(1<<18), d.x.m.MaxMsgSize)
	}
	if d.oneInN(8) {
		return 0
	}
	n := d.drawLogUniform(most)
	if d.oneInN(3) {
		mtu := uint64(d.runMTU().Bytes())
		n = mtu*d.Uint64N(4) + d.Uint64N(3) - 1
		n = min(n, 4*mtu)
	}
	return min(n, d.x.m.MaxMsgSize)
}

// pickRegion returns a region of a domain with a right, mostly one of n bytes or more; 0: none.
func (d *callDrawer) pickRegion(pd model.ID, n uint64, need ib.AccessFlags) model.ID {
	if d.shouldBeInvalid() { // any region so far
		return pickOne(d, filterIDs(d.x.m.Regions, acceptAnyObject))
	}
	good := func(r *model.Region) bool { return r.Valid && !r.Dead && r.PD == pd && r.Access&need == need }
	long := filterIDs(d.x.m.Regions, func(r *model.Region) bool { return good(r) && r.Len >= n })
	if len(long) == 0 {
		long = filterIDs(d.x.m.Regions, good)
	}
	return pickOne(d, long)
}

// drawSGL draws a list of n bytes.
func (d *callDrawer) drawSGL(pd model.ID, n uint64, most int, need ib.AccessFlags) (list []sgElement) {
	most = max(most, 1)
	cuts := d.IntN(most)
	if d.oneInN(3) {
		cuts = 0
	}
	if d.shouldBeInvalid() {
		cuts = most // one too many
	}
	wrong := d.shouldBeInvalid()
	for ; cuts > 0; cuts-- {
		k := d.Uint64N(n + 1)
		if d.oneInN(5) {
			k = 0
		}
		list = append(list, d.drawSGElement(pd, k, need, wrong))
		n -= k
	}
	if n > 0 || d.oneInN(2) {
		list = append(list, d.drawSGElement(pd, n, need, wrong))
	}
	return list
}

// drawSGElement draws n bytes of a region, often at its end, sometimes beyond it.
func (d *callDrawer) drawSGElement(pd model.ID, n uint64, need ib.AccessFlags, wrong bool) sgElement {
	if len(d.x.gone) > 0 && d.oneInN(60) { // a key from before the reset
		g := pickOne(d, d.x.gone)
		return sgElement{off: g.addr, len: uint32(n), xor: g.lkey}
	}
	e := sgElement{mr: d.pickRegion(pd, n, need), len: uint32(n)}
	wrong = wrong && n > 0
	r := d.x.m.Regions[e.mr]
	if r == nil {
		if !d.shouldBeInvalid() {
			e.len = 0
		}
		return e
	}
	if n > r.Len && !d.shouldBeInvalid() {
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
			if e.off = d.Uint64N(r.Len - n + 1); d.oneInN(2) {
				e.off &^= 7
			}
		}
	}
	if was := d.ranges[e.mr]; was > r.Len && n > 0 && d.oneInN(6) { // partly in its former range only
		e.off = r.Len - n + 1 + d.Uint64N(was-r.Len)
	}
	if n > 0 {
		e.xor = d.drawStaleKey(keyID{e.mr, true}, 8)
	}
	if wrong && d.oneInN(2) {
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

// drawStaleKey returns the difference between a key and its former value, for one request in n, or 0.
func (d *callDrawer) drawStaleKey(key keyID, n int) uint32 {
	if f, ok := d.former[key]; ok && d.oneInN(n) {
		return f ^ d.known[key]
	}
	return 0
}

// drawRemoteTarget draws up to n bytes of remote memory in the domain of a peer, or of the shared queue of an XRC
// request.
func (d *callDrawer) drawRemoteTarget(p *model.QP, srq model.ID, n uint64, need ib.AccessFlags) (t remoteTarget,
	most uint64) {
	pd := model.ID(0)
	if p != nil {
		pd = p.PD
	}
	if s := d.x.m.SRQs[srq]; s != nil {
		pd = s.PD
	}
	if len(d.x.gone) > 0 && d.oneInN(8) { // a key from before the reset
		g := pickOne(d, d.x.gone)
		return remoteTarget{off: g.addr, xor: g.rkey}, n
	}
	wrong := d.shouldBeInvalid()
	windows := filterIDs(d.x.m.Windows, func(w *model.Window) bool {
		return wrong || w.Bound && !w.Dead && p != nil && w.PD == pd && (w.QP == 0 || w.QP == p.ID || d.oneInN(8)) &&
			w.Access&need == need
	})
	length := uint64(0)
	if len(windows) > 0 && d.oneInN(2) {
		t.key = pickOne(d, windows)
		length = d.x.m.Windows[t.key].Len
	} else {
		t.key = d.pickRegion(pd, n, need)
		if r := d.x.m.Regions[t.key]; r != nil {
			length = r.Len
		}
	}
	if n > length && !d.shouldBeInvalid() {
		n = length
	}
	if length >= n {
		switch d.IntN(4) {
		case 0:
			t.off = length - n
		case 1:
		default:
			if t.off = d.Uint64N(length - n + 1); d.oneInN(2) {
				t.off &^= 7
			}
		}
	}
	t.xor = d.drawStaleKey(keyID{t.key, false}, 4)
	if was := d.ranges[t.key]; was > length && n > 0 && n <= length && d.oneInN(6) { // partly in its former range only
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

// drawOpcode draws an operation that the driver supports.
func (d *callDrawer) drawOpcode(kind ib.QPType) ib.WROpcode {
	ops := filterSupported(d.x.Abilities, d.drawableOpcodes(kind), func(op ib.WROpcode) string { return opcodeNames[op] })
	if d.oneInN(2) {
		if list := slices.DeleteFunc(slices.Clone(ops), func(op ib.WROpcode) bool {
			return !slices.Contains(d.plan.favours, op)
		}); len(list) > 0 {
			ops = list
		}
	}
	return pickOne(d, ops)
}

// drawableOpcodes returns the opcodes of a service type.
func (d *callDrawer) drawableOpcodes(kind ib.QPType) []ib.WROpcode {
	ops := []ib.WROpcode{ib.WRSend, ib.WRSend, ib.WRSendWithImm}
	if kind == ib.QPTypeXRCInit {
		ops = append(ops, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRRDMARead)
		if d.x.m.Atomics {
			ops = append(ops, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd)
		}
		return ops
	}
	if kind == ib.QPTypeUD && !d.shouldBeInvalid() {
		return ops
	}
	ops = append(ops, ib.WRRDMAWrite, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm)
	if kind == ib.QPTypeUC && !d.shouldBeInvalid() {
		return d.addMemoryOpcodes(ops)
	}
	ops = append(ops, ib.WRRDMARead, ib.WRRDMARead)
	if d.shouldBeInvalid() {
		ops = append(ops, ib.WRSendWithInv)
	}
	if len(d.invalidatableIDs()) > 0 { // seldom, so it is drawn often
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
	return d.addMemoryOpcodes(ops)
}

// addMemoryOpcodes adds the operations on existing regions and windows.
func (d *callDrawer) addMemoryOpcodes(ops []ib.WROpcode) []ib.WROpcode {
	more := 1
	if d.plan.focus == onMemory {
		more = 4
	}
	for range more {
		if len(filterIDs(d.x.m.Windows, func(w *model.Window) bool { return !w.Dead })) > 0 {
			ops = append(ops, ib.WRBindMW)
		}
		if len(d.registrableRegionIDs()) > 0 || d.shouldBeInvalid() {
			ops = append(ops, ib.WRRegMR)
		}
	}
	if len(d.invalidatableIDs()) > 0 || d.shouldBeInvalid() {
		ops = append(ops, ib.WRLocalInv, ib.WRLocalInv)
	}
	return ops
}

// invalidatableIDs returns the objects that a request can invalidate.
func (d *callDrawer) invalidatableIDs() []model.ID {
	windows := filterIDs(d.x.m.Windows, func(w *model.Window) bool { return w.Bound && w.QP != 0 })
	regions := filterIDs(d.x.m.Regions, func(r *model.Region) bool { return r.Fast && r.Valid && !r.Dead })
	return append(windows, regions...)
}

// registrableRegionIDs returns the regions that a request can register; if there are none, all that it might register.
func (d *callDrawer) registrableRegionIDs() []model.ID {
	return filterIDs(d.x.m.Regions, func(r *model.Region) bool { return r.Fast && !r.Dead && !r.Valid && r.Map != nil })
}

// drawPostSend draws send work requests.
func (d *callDrawer) drawPostSend() call {
	q := d.pickQP()
	if q == nil {
		return nil
	}
	c := postSend{qp: q.ID}
	if q.State == ib.QPRTS && q.Type != ib.QPTypeXRCTgt && !d.x.m.Dead && d.oneInN(100) {
		return c // an empty list
	}
	n := 1
	if d.oneInN(3) {
		n += d.IntN(6)
	}
	if d.oneInN(20) {
		n += int(q.Cap.MaxSendWR)
	}
	depth := len(q.Sends) > 0
	for range min(n, 70) {
		s := d.drawSend(q, c.list)
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

// drawSend draws a send work request. before holds the earlier ones of the same list.
func (d *callDrawer) drawSend(q *model.QP, before []sendRequest) *sendRequest {
	s := &sendRequest{id: d.drawWRID(), op: d.drawOpcode(q.Type), imm: d.drawUint32(), add: d.Uint64(), swap: d.Uint64()}
	if !d.oneInN(3) {
		s.flags |= ib.SendSignaled
	}
	if d.oneInN(3) {
		s.flags |= ib.SendSolicited
	}
	if d.oneInN(6) {
		s.flags |= ib.SendFence
	}
	var p *model.QP
	for _, x := range d.x.m.QPs {
		if x.Num == q.Attr.DestQPN {
			p = x
		}
	}
	if q.Type == ib.QPTypeXRCInit {
		s.srq = pickOne(d, filterIDs(d.x.m.SRQs, func(r *model.SRQ) bool {
			return r.XRCD != 0 &&
				(p != nil && r.XRCD == p.XRCD || d.shouldBeInvalid())
		}))
	}
	n := d.drawMessageSize()
	switch s.op {
	case ib.WRBindMW:
		return d.drawBindRequest(q, s)
	case ib.WRRegMR:
		fast := d.registrableRegionIDs()
		if len(fast) == 0 || d.shouldBeInvalid() {
			fast = filterIDs(d.x.m.Regions, func(r *model.Region) bool { return !r.Dead && r.Fast })
		}
		if len(fast) == 0 {
			return nil
		}
		s.reg = &regMRArgs{
			mr:     pickOne(d, fast),
			access: d.drawRegMR(0, true).access &^ (ib.AccessZeroBased | ib.AccessMWBind | ib.AccessFlushGlobal),
		}
		if d.oneInN(2) {
			s.reg.access = allAccess | ib.AccessMWBind
		}
		if d.shouldBeInvalid() {
			s.reg.xor = 1 << d.IntN(32)
		}
		return s
	case ib.WRLocalInv:
		s.inv = d.drawKeyToInvalidate(q)
		return s
	case ib.WRSendWithInv:
		s.inv = d.drawKeyToInvalidate(p)
	case ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd, ib.WRAtomicWrite:
		n = 8
	case ib.WRFlush:
		s.flush = ib.Flush{Placement: ib.FlushGlobal, Length: uint32(n)}
		if d.oneInN(3) {
			s.flush.Level = ib.FlushRegion
		}
	}
	if q.Type == ib.QPTypeUD {
		d.drawDatagramDestination(q, s)
		p = d.x.m.QPs[s.dest]
		if n = min(n, uint64(d.x.m.MTU)); d.shouldBeInvalid() {
			n = uint64(d.x.m.MTU) + 1 + d.drawLogUniform(1<<16)
		}
	}
	if usesRemoteMemory(s.op) {
		var most uint64
		if s.to, most = d.drawRemoteTarget(p, s.srq, n, neededRights[s.op]); n != 8 {
			n = most
		}
		if n == 8 && !d.shouldBeInvalid() {
			addr, _ := d.x.resolveTarget(s.to)
			if base := addr - s.to.off; d.oneInN(2) {
				s.to.off = -base % 8 // the same word each time
			} else {
				s.to.off -= addr % 8
			}
		}
		// mostly at most the receive length
	} else if room := d.x.firstRecvLen(p, s.srq); room >= 0 && !d.oneInN(d.plan.long) {
		if q.Type == ib.QPTypeUD {
			room = max(0, room-model.GRHLen)
		}
		if n = min(n, uint64(room)); d.oneInN(4) {
			n = min(uint64(room), 1<<20)
			if q.Type == ib.QPTypeUD {
				n = min(n, uint64(d.x.m.MTU))
			}
		}
	}
	d.drawLocalData(q, s, n)
	if compare := d.currentTargetWord(p, s); compare != nil && !d.oneInN(5) {
		if s.add = *compare; d.oneInN(3) {
			s.add ^= 1 << d.IntN(64)
		}
	}
	return s
}

// drawUint32 returns a value with all bits, often 0 or all ones.
func (d *callDrawer) drawUint32() uint32 {
	v := d.Uint32()
	switch v % 8 {
	case 0:
		return 0
	case 1:
		return 1<<32 - 1
	}
	return v
}

// neededRights maps operations to the right that they need.
var neededRights = map[ib.WROpcode]ib.AccessFlags{
	ib.WRRDMAWrite: ib.AccessRemoteWrite, ib.WRRDMAWriteWithImm: ib.AccessRemoteWrite,
	ib.WRAtomicWrite:     ib.AccessRemoteWrite,
	ib.WRRDMARead:        ib.AccessRemoteRead,
	ib.WRAtomicCmpAndSwp: ib.AccessRemoteAtomic, ib.WRAtomicFetchAdd: ib.AccessRemoteAtomic,
	ib.WRFlush: ib.AccessFlushGlobal,
}

// drawLocalData draws the source or the destination of a request of n bytes.
func (d *callDrawer) drawLocalData(q *model.QP, s *sendRequest, n uint64) {
	switch {
	case s.op == ib.WRFlush:
	case s.op != ib.WRAtomicWrite && n != 8 && d.shouldBeInvalid() && d.drawOverlongRequest(q, s, n):
	case s.op == ib.WRAtomicWrite:
		s.inline = d.drawInlineBytes(8)
	case (s.op == ib.WRRDMARead || neededRights[s.op] == ib.AccessRemoteAtomic) && q.Cap.MaxInlineData >= 8 &&
		d.shouldBeInvalid():
		s.flags |= ib.SendInline
		s.inline = d.drawInlineBytes(8)
	case s.op == ib.WRRDMARead || n == 8 && neededRights[s.op] == ib.AccessRemoteAtomic:
		s.list = d.drawSGL(q.PD, n, int(q.Cap.MaxSendSGE), ib.AccessLocalWrite)
	case n <= uint64(q.Cap.MaxInlineData) && d.oneInN(2) || d.shouldBeInvalid() && n <= 1024:
		s.flags |= ib.SendInline
		s.inline = d.drawInlineBytes(int(n))
	default:
		s.list = d.drawSGL(q.PD, n, int(q.Cap.MaxSendSGE), 0)
	}
}

// drawOverlongRequest draws elements of 4 GiB and n bytes: the low 32 bits of the sum are a legal length.
func (d *callDrawer) drawOverlongRequest(q *model.QP, s *sendRequest, n uint64) bool {
	need := ib.AccessFlags(0)
	if s.op == ib.WRRDMARead {
		need = ib.AccessLocalWrite
	}
	large := filterIDs(d.x.m.Regions, func(r *model.Region) bool {
		return r.Valid && !r.Dead && r.PD == q.PD && r.Access&need == need && r.Len >= 1<<32+n
	})
	if len(large) == 0 || q.Cap.MaxSendSGE < 2 || n > 1<<30 {
		return false
	}
	mr := pickOne(d, large)
	s.list = []sgElement{{mr: mr, len: 1<<32 - 8}, {mr: mr, len: uint32(n + 8)}}
	return true
}

func (d *callDrawer) drawInlineBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(d.Uint32())
	}
	return b
}

// currentTargetWord returns the current value at the target of a compare and swap.
func (d *callDrawer) currentTargetWord(p *model.QP, s *sendRequest) *uint64 {
	if s.op != ib.WRAtomicCmpAndSwp || p == nil {
		return nil
	}
	addr, rkey := d.x.resolveTarget(s.to)
	return d.x.m.ReadRemoteWord(p, rkey, addr)
}

// firstRecvLen returns the length of the first receive of a queue pair; -1: none.
func (x *modelRunner) firstRecvLen(p *model.QP, srq model.ID) int {
	if p == nil {
		return -1
	}
	return x.m.FirstRecvLen(p, srq)
}

// drawDatagramDestination draws the destination of a datagram.
func (d *callDrawer) drawDatagramDestination(q *model.QP, s *sendRequest) {
	s.dest = d.x.objs[q.ID].peer
	if d.oneInN(10) {
		s.dest = pickOne(d, filterIDs(d.x.m.QPs, acceptAnyObject))
	}
	s.qkey = 0x11223344
	switch {
	case d.shouldBeInvalid():
		s.qkey++
	case d.oneInN(8):
		s.qkey = d.Uint32() | 1<<31
	}
	s.ah = pickOne(d, filterIDs(d.x.m.AHs, func(a *model.AH) bool {
		return !a.Dead && (a.PD == q.PD ||
			d.shouldBeInvalid())
	}))
	if s.ah == 0 {
		d.addPlannedCall(createAH{id: d.nextID(), pd: q.PD, hops: 64})
		return
	}
	if d.x.m.AHs[s.ah].Attr.GRH.DGID.Addr().IsMulticast() && !d.shouldBeInvalid() {
		s.group = true
	}
}

// drawKeyToInvalidate draws a key to invalidate, mostly a valid one.
func (d *callDrawer) drawKeyToInvalidate(q *model.QP) (t remoteTarget) {
	windows := filterIDs(d.x.m.Windows, func(w *model.Window) bool { return w.Bound && q != nil && w.QP == q.ID })
	regions := filterIDs(d.x.m.Regions, func(r *model.Region) bool { return r.Fast && r.Valid && !r.Dead })
	list := append(windows, regions...)
	if len(list) == 0 || d.shouldBeInvalid() {
		list = append(filterIDs(d.x.m.Windows, acceptAnyObject), filterIDs(d.x.m.Regions, acceptAnyObject)...)
	}
	if t.key = pickOne(d, list); d.shouldBeInvalid() {
		t.xor = 1 << d.IntN(32)
	}
	return t
}

// drawBindRequest draws a bind.
func (d *callDrawer) drawBindRequest(q *model.QP, s *sendRequest) *sendRequest {
	mw := pickOne(d, filterIDs(d.x.m.Windows, func(w *model.Window) bool {
		return !w.Dead && (w.Kind == ib.MWType1 || !w.Bound || d.oneInN(4)) // a bound window of type 2 cannot be bound
	}))
	if mw == 0 {
		return nil
	}
	w := d.x.m.Windows[mw]
	b := &bindArgs{
		mw: mw, variant: uint8(w.RKey) + uint8(1+d.IntN(255)),
		access: ib.AccessRemoteRead | ib.AccessRemoteWrite | ib.AccessRemoteAtomic,
	}
	b.mr = pickOne(d, filterIDs(d.x.m.Regions, func(r *model.Region) bool {
		return !r.Dead && (d.shouldBeInvalid() || r.Valid && r.PD == q.PD && r.Access&ib.AccessMWBind != 0)
	}))
	fast := filterIDs(d.x.m.Regions, func(r *model.Region) bool { return r.Fast && r.Valid && !r.Dead && r.PD == q.PD })
	if len(fast) > 0 && d.oneInN(2) {
		b.mr = pickOne(d, fast)
	}
	if b.mr == 0 {
		return nil
	}
	r := d.x.m.Regions[b.mr]
	b.len = d.drawLogUniform(max(r.Len, 1))
	if r.Len > 1<<32 && d.oneInN(2) {
		b.len = 1<<32 + d.Uint64N(r.Len-1<<32)
	}
	b.off = d.Uint64N(r.Len - min(b.len, r.Len) + 1)
	if d.oneInN(4) {
		b.off, b.len = 0, r.Len
	}
	if d.oneInN(3) {
		b.access &^= pickOne(d, []ib.AccessFlags{ib.AccessRemoteRead, ib.AccessRemoteWrite, ib.AccessRemoteAtomic})
	}
	if w.Kind == ib.MWType2 && d.oneInN(3) || d.shouldBeInvalid() {
		b.access |= ib.AccessZeroBased
	}
	switch {
	case d.shouldBeInvalid():
		b.off = r.Len - b.len + 1
	case d.shouldBeInvalid():
		b.len += 1 << (32 + d.IntN(8))
	case w.Kind == ib.MWType1 && d.oneInN(8):
		b.len = 0
	case d.shouldBeInvalid():
		b.variant = uint8(w.RKey)
	}
	s.bind = b
	if w.Kind == ib.MWType2 && len(d.todo) == 0 && !d.x.episodes && d.oneInN(2) {
		d.planRebind(q, b)
	}
	return s
}

// planRebind plans a second life of a type 2 window: its invalidation, a bind with other options, and accesses by the
// peer.
func (d *callDrawer) planRebind(q *model.QP, first *bindArgs) {
	b := *first
	b.variant += uint8(1 + d.IntN(100))
	b.access ^= ib.AccessZeroBased
	post := func(on *model.QP, s sendRequest) {
		s.id, s.flags = d.drawWRID(), ib.SendSignaled
		d.addPlannedCall(postSend{on.ID, []sendRequest{s}})
	}
	post(q, sendRequest{op: ib.WRLocalInv, inv: remoteTarget{key: b.mw}})
	post(q, sendRequest{op: ib.WRBindMW, bind: &b})
	p := d.x.m.QPs[d.x.objs[q.ID].peer]
	if p == nil || b.len == 0 {
		return
	}
	for _, op := range []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead} {
		n := min(b.len, 1+d.Uint64N(64))
		post(p, sendRequest{op: op, to: remoteTarget{key: b.mw, off: d.Uint64N(b.len - n + 1)},
			list: d.drawSGL(p.PD, n, int(p.Cap.MaxSendSGE), ib.AccessLocalWrite)})
	}
}

// drawPostRecv draws receives for a queue pair or a shared queue.
func (d *callDrawer) drawPostRecv() call {
	qps := filterIDs(d.x.m.QPs, func(q *model.QP) bool {
		own := q.SRQ == 0 && q.Type != ib.QPTypeXRCInit && q.Type != ib.QPTypeXRCTgt
		return own && q.State != ib.QPReset && q.RecvCount() < 8 || q.SRQ == 0 && d.shouldBeInvalid()
	})
	srqs := filterIDs(d.x.m.SRQs, acceptAnyObject)
	id := pickOne(d, append(slices.Clone(qps), srqs...))
	if id == 0 {
		return nil
	}
	c := postRecv{on: id, shared: slices.Contains(srqs, id)}
	pd, most, room := model.ID(0), 0, 0
	if c.shared {
		s := d.x.m.SRQs[id]
		pd, most, room = s.PD, s.MaxSGE(), s.Capacity()
	} else {
		q := d.x.m.QPs[id]
		pd, most, room = q.PD, int(q.Cap.MaxRecvSGE), int(q.Cap.MaxRecvWR)
	}
	n := 1 + d.IntN(4)
	if d.oneInN(20) {
		n = room + 1
	}
	for range min(n, 70) {
		size := d.drawMessageSize()
		if d.oneInN(2) {
			size = max(size, d.drawMessageSize())
		}
		list := d.drawSGL(pd, size, most, ib.AccessLocalWrite)
		if len(list) < most && d.oneInN(6) { // a boundary in or near the header of a datagram
			list = append([]sgElement{d.drawSGElement(pd, d.Uint64N(model.GRHLen+4), ib.AccessLocalWrite, false)}, list...)
		}
		c.list = append(c.list, recvRequest{d.drawWRID(), list})
	}
	return c
}
