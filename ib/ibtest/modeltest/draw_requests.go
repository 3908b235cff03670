package modeltest

import (
	"slices"

	"verbena/ib"
	"verbena/ib/ibtest/model"
)

// requestDrawer draws work requests.
type requestDrawer struct {
	*randomSource
	x      *modelRunner
	plan   *runPlan
	calls  *plannedCalls
	memory *memoryDrawer
	seen   uint64 // highest work request ID so far
}

// drawMessageSize draws the size of a message of at most longest bytes.
func (d *requestDrawer) drawMessageSize(longest uint64) uint64 {
	most := uint64(16 << 10)
	if d.plan.large && d.oneInN(2) {
		n := 1<<16 + d.Uint64N(1<<18)
		if d.oneInN(3) { // the low 16 bits are few
			n = n&^0xffff + d.Uint64N(3)
		}
		return min(n, longest)
	}
	if d.oneInN(8) {
		return 0
	}
	n := d.drawLogUniform(most)
	if d.oneInN(3) {
		mtu := uint64(d.x.runMTU().Bytes())
		n = mtu*d.Uint64N(4) + d.Uint64N(3) - 1
		n = min(n, 4*mtu)
	}
	return min(n, longest)
}

// drawOpcode draws an operation that the driver supports.
func (d *requestDrawer) drawOpcode(kind ib.QPType) ib.WROpcode {
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
func (d *requestDrawer) drawableOpcodes(kind ib.QPType) []ib.WROpcode {
	ops := []ib.WROpcode{ib.WRSend, ib.WRSend, ib.WRSendWithImm}
	if kind == ib.QPTypeXRCInit {
		ops = append(ops, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRRDMARead)
		if d.x.m.Device.Atomics {
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
	if kind == ib.QPTypeSRD && !d.shouldBeInvalid() {
		return ops
	}
	if d.shouldBeInvalid() {
		ops = append(ops, ib.WRSendWithInv)
	}
	if len(d.memory.invalidatableIDs()) > 0 { // seldom, so it is drawn often
		ops = append(ops, ib.WRSendWithInv, ib.WRSendWithInv, ib.WRSendWithInv, ib.WRSendWithInv)
	}
	if d.x.m.Device.Atomics {
		ops = append(ops, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd)
	}
	if d.x.m.Device.Flush {
		ops = append(ops, ib.WRFlush)
	}
	if d.x.m.Device.AtomicWrite {
		ops = append(ops, ib.WRAtomicWrite)
	}
	return d.addMemoryOpcodes(ops)
}

// addMemoryOpcodes adds the operations on existing regions and windows.
func (d *requestDrawer) addMemoryOpcodes(ops []ib.WROpcode) []ib.WROpcode {
	more := 1
	if d.plan.focus == onMemory {
		more = 4
	}
	for range more {
		if len(filterIDs(d.x.m.Keys.Windows, func(w *model.Window) bool { return !w.Dead })) > 0 {
			ops = append(ops, ib.WRBindMW)
		}
		if len(d.memory.registrableRegionIDs()) > 0 || d.shouldBeInvalid() {
			ops = append(ops, ib.WRRegMR)
		}
	}
	if len(d.memory.invalidatableIDs()) > 0 || d.shouldBeInvalid() {
		ops = append(ops, ib.WRLocalInv, ib.WRLocalInv)
	}
	return ops
}

// drawPostSend draws send work requests for a queue pair.
func (d *requestDrawer) drawPostSend(q *model.QP) call {
	if q == nil {
		return nil
	}
	c := postSend{qp: q.ID}
	if q.State == ib.QPRTS && q.Type != ib.QPTypeXRCTgt && !d.x.m.Device.Dead && d.oneInN(100) {
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
func (d *requestDrawer) drawSend(q *model.QP, before []sendRequest) *sendRequest {
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
	for _, x := range d.x.m.Queues.QPs {
		if x.Num == q.Attr.DestQPN {
			p = x
		}
	}
	if q.Type == ib.QPTypeXRCInit {
		s.srq = pickOne(d, filterIDs(d.x.m.Queues.SRQs, func(r *model.SRQ) bool {
			return r.XRCD != 0 &&
				(p != nil && r.XRCD == p.XRCD || d.shouldBeInvalid())
		}))
	}
	longest := d.x.m.Device.MaxMsgSize
	if q.Type == ib.QPTypeSRD {
		longest = max(longest, model.SRDRDMASize)
	}
	n := d.drawMessageSize(longest)
	switch s.op {
	case ib.WRBindMW:
		return d.drawBindRequest(q, s)
	case ib.WRRegMR:
		fast := d.memory.registrableRegionIDs()
		if len(fast) == 0 || d.shouldBeInvalid() {
			fast = filterIDs(d.x.m.Keys.Regions, func(r *model.Region) bool { return !r.Dead && r.Fast })
		}
		if len(fast) == 0 {
			return nil
		}
		s.reg = &regMRArgs{
			mr:     pickOne(d, fast),
			access: d.memory.drawRegMR(0, true).access &^ (ib.AccessZeroBased | ib.AccessMWBind | ib.AccessFlushGlobal),
		}
		if d.oneInN(2) {
			s.reg.access = allAccess | ib.AccessMWBind
		}
		if d.shouldBeInvalid() {
			s.reg.xor = 1 << d.IntN(32)
		}
		return s
	case ib.WRLocalInv:
		s.inv = d.memory.drawKeyToInvalidate(q)
		return s
	case ib.WRSendWithInv:
		s.inv = d.memory.drawKeyToInvalidate(p)
	case ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd, ib.WRAtomicWrite:
		if n = 8; d.oneInN(16) {
			n = pickOne(d, []uint64{4, 12, 16})
		}
	case ib.WRFlush:
		s.flush = ib.Flush{Placement: ib.FlushGlobal, Length: uint32(n)}
		if d.oneInN(3) {
			s.flush.Level = ib.FlushRegion
		}
	}
	if isAddressedByRequest(q.Type) {
		d.drawDatagramDestination(q, s)
		p = d.x.m.Queues.QPs[s.dest]
	}
	if q.Type == ib.QPTypeUD || q.Type == ib.QPTypeSRD && !usesRemoteMemory(s.op) {
		if n = min(n, uint64(d.x.m.Device.MTU)); d.shouldBeInvalid() {
			n = uint64(d.x.m.Device.MTU) + 1 + d.drawLogUniform(1<<16)
		}
	}
	if usesRemoteMemory(s.op) {
		var most uint64
		word := n == 8 || neededRights[s.op] == ib.AccessRemoteAtomic
		if s.to, most = d.memory.drawRemoteTarget(p, s.srq, n, neededRights[s.op]); !word {
			n = most
		}
		if word && !d.shouldBeInvalid() {
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
				n = min(n, uint64(d.x.m.Device.MTU))
			}
		}
	}
	if d.drawLocalData(q, s, n); d.oneInN(3) {
		d.useFetchedData(s, before, n)
	}
	if compare := d.currentTargetWord(p, s); compare != nil && !d.oneInN(5) {
		if s.add = *compare; d.oneInN(3) {
			s.add ^= 1 << d.IntN(64)
		}
	}
	return s
}

// drawUint32 returns a value with all bits, often 0 or all ones.
func (r *randomSource) drawUint32() uint32 {
	v := r.Uint32()
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
func (d *requestDrawer) drawLocalData(q *model.QP, s *sendRequest, n uint64) {
	switch {
	case s.op == ib.WRFlush:
	case s.op != ib.WRAtomicWrite && n != 8 && d.shouldBeInvalid() && d.drawOverlongRequest(q, s, n):
	case s.op == ib.WRAtomicWrite:
		s.inline = d.drawInlineBytes(8)
	case (s.op == ib.WRRDMARead || neededRights[s.op] == ib.AccessRemoteAtomic) && q.Cap.MaxInlineData >= 8 &&
		d.shouldBeInvalid():
		s.flags |= ib.SendInline
		s.inline = d.drawInlineBytes(8)
	case s.op == ib.WRRDMARead || neededRights[s.op] == ib.AccessRemoteAtomic:
		s.list = d.memory.drawSGL(q.PD, n, d.drawableElements(q, s), ib.AccessLocalWrite)
	case (q.Type != ib.QPTypeSRD || s.op != ib.WRRDMAWrite && s.op != ib.WRRDMAWriteWithImm || d.shouldBeInvalid()) &&
		(n <= uint64(q.Cap.MaxInlineData) && d.oneInN(2) || d.shouldBeInvalid() && n <= 1024):
		s.flags |= ib.SendInline
		s.inline = d.drawInlineBytes(int(n))
	default:
		s.list = d.memory.drawSGL(q.PD, n, d.drawableElements(q, s), 0)
	}
}

// drawableElements returns the number of elements that a request may have. A driver may refuse longer lists of RDMA
// requests of SRD.
func (d *requestDrawer) drawableElements(q *model.QP, s *sendRequest) int {
	n := int(q.Cap.MaxSendSGE)
	if q.Type == ib.QPTypeSRD && usesRemoteMemory(s.op) && !d.shouldBeInvalid() {
		n = min(n, d.x.m.Device.RDMASGE)
	}
	return n
}

// useFetchedData makes the source of a request the destination of an earlier READ or atomic operation of the same list.
// The request has a fence.
func (d *requestDrawer) useFetchedData(s *sendRequest, before []sendRequest, n uint64) {
	if len(s.list) == 0 || s.op == ib.WRRDMARead || neededRights[s.op] == ib.AccessRemoteAtomic {
		return
	}
	var fetched []sgElement
	for _, b := range before {
		if b.op == ib.WRRDMARead || neededRights[b.op] == ib.AccessRemoteAtomic {
			fetched = append(fetched, b.list...)
		}
	}
	if len(fetched) == 0 {
		return
	}
	e := pickOne(d, fetched)
	e.len = uint32(min(uint64(e.len), n))
	s.list, s.flags = []sgElement{e}, s.flags|ib.SendFence
}

// drawOverlongRequest draws elements of 4 GiB and n bytes: the low 32 bits of the sum are a legal length.
func (d *requestDrawer) drawOverlongRequest(q *model.QP, s *sendRequest, n uint64) bool {
	need := ib.AccessFlags(0)
	if s.op == ib.WRRDMARead {
		need = ib.AccessLocalWrite
	}
	large := filterIDs(d.x.m.Keys.Regions, func(r *model.Region) bool {
		return r.Valid && !r.Dead && r.PD == q.PD && r.Access&need == need && r.Len >= 1<<32+n
	})
	if len(large) == 0 || q.Cap.MaxSendSGE < 2 || n > 1<<30 {
		return false
	}
	mr := pickOne(d, large)
	s.list = []sgElement{{mr: mr, len: 1<<32 - 8}, {mr: mr, len: uint32(n + 8)}}
	return true
}

func (r *randomSource) drawInlineBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// currentTargetWord returns the current value at the target of a compare and swap.
func (d *requestDrawer) currentTargetWord(p *model.QP, s *sendRequest) *uint64 {
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
func (d *requestDrawer) drawDatagramDestination(q *model.QP, s *sendRequest) {
	s.dest = d.x.objs[q.ID].peer
	if d.oneInN(10) {
		s.dest = pickOne(d, filterIDs(d.x.m.Queues.QPs, acceptAnyObject))
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
		d.calls.add(createAH{id: d.calls.nextID(), pd: q.PD, hops: 64})
		return
	}
	if d.x.m.AHs[s.ah].Attr.GRH.DGID.Addr().IsMulticast() && !d.shouldBeInvalid() {
		s.group = true
	}
}

// drawBindRequest draws a bind.
func (d *requestDrawer) drawBindRequest(q *model.QP, s *sendRequest) *sendRequest {
	mw := pickOne(d, filterIDs(d.x.m.Keys.Windows, func(w *model.Window) bool {
		return !w.Dead && (w.Kind == ib.MWType1 || !w.Bound || d.oneInN(4)) // a bound window of type 2 cannot be bound
	}))
	if mw == 0 {
		return nil
	}
	w := d.x.m.Keys.Windows[mw]
	b := &bindArgs{
		mw: mw, variant: uint8(w.RKey) ^ uint8(1+d.IntN(3)), // often an earlier key of the window
		access: ib.AccessRemoteRead | ib.AccessRemoteWrite | ib.AccessRemoteAtomic,
	}
	if d.oneInN(2) {
		b.variant = uint8(w.RKey) + uint8(1+d.IntN(255))
	}
	b.mr = pickOne(d, filterIDs(d.x.m.Keys.Regions, func(r *model.Region) bool {
		return !r.Dead && (d.shouldBeInvalid() || r.Valid && r.PD == q.PD && r.Access&ib.AccessMWBind != 0)
	}))
	fast := filterIDs(d.x.m.Keys.Regions, func(r *model.Region) bool {
		return r.Fast && r.Valid && !r.Dead && r.PD == q.PD
	})
	if len(fast) > 0 && d.oneInN(2) {
		b.mr = pickOne(d, fast)
	}
	if b.mr == 0 {
		return nil
	}
	r := d.x.m.Keys.Regions[b.mr]
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
	if len(d.calls.todo) == 0 && !d.x.episodes && d.oneInN(2) {
		d.planRebind(q, b)
	}
	return s
}

// planRebind plans a second life of a window: the end of its first bind, a bind with other options, and accesses by the
// peer. A window of type 1 is unbound, and may get a key that it has had before.
func (d *requestDrawer) planRebind(q *model.QP, first *bindArgs) {
	b := *first
	post := func(on *model.QP, s sendRequest) {
		s.id, s.flags = d.drawWRID(), ib.SendSignaled
		d.calls.add(postSend{on.ID, []sendRequest{s}})
	}
	if w := d.x.m.Keys.Windows[b.mw]; w.Kind == ib.MWType1 {
		end := bindArgs{mw: b.mw, mr: b.mr, variant: b.variant ^ uint8(1+d.IntN(3))}
		if b.variant = first.variant; d.oneInN(2) {
			b.variant = uint8(w.RKey)
		}
		post(q, sendRequest{op: ib.WRBindMW, bind: &end})
	} else {
		b.variant += uint8(1 + d.IntN(100))
		b.access ^= ib.AccessZeroBased
		post(q, sendRequest{op: ib.WRLocalInv, inv: remoteTarget{key: b.mw}})
	}
	post(q, sendRequest{op: ib.WRBindMW, bind: &b})
	p := d.x.m.Queues.QPs[d.x.objs[q.ID].peer]
	if p == nil || b.len == 0 {
		return
	}
	start := uint64(0) // the address of the window
	if b.access&ib.AccessZeroBased == 0 {
		start = d.x.m.Keys.Regions[b.mr].IOVA + b.off
	}
	// access draws a request of on to the window.
	access := func(on *model.QP, op ib.WROpcode) {
		n := min(b.len, 1+d.Uint64N(64))
		s := sendRequest{op: op, add: d.Uint64(), swap: d.Uint64(), to: remoteTarget{key: b.mw}}
		if s.to.off = d.Uint64N(b.len - n + 1); neededRights[op] == ib.AccessRemoteAtomic {
			n, s.to.off = 8, -start%8+s.to.off&^7
		}
		s.list = d.memory.drawSGL(on.PD, n, int(on.Cap.MaxSendSGE), ib.AccessLocalWrite)
		post(on, s)
	}
	ops := []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead}
	if p.Type == ib.QPTypeRC && d.x.m.Device.Atomics {
		ops = append(ops, ib.WRAtomicFetchAdd, ib.WRAtomicCmpAndSwp)
	}
	for range 2 {
		access(p, pickOne(d, ops))
	}
	if p != q && d.oneInN(2) { // the window is not bound to the peer
		access(q, pickOne(d, ops))
	}
}

// drawPostRecv draws receives for a queue pair or a shared queue.
func (d *requestDrawer) drawPostRecv() call {
	qps := filterIDs(d.x.m.Queues.QPs, func(q *model.QP) bool {
		own := q.SRQ == 0 && q.Type != ib.QPTypeXRCInit && q.Type != ib.QPTypeXRCTgt
		return own && q.State != ib.QPReset && q.RecvCount() < 8 || q.SRQ == 0 && d.shouldBeInvalid()
	})
	srqs := filterIDs(d.x.m.Queues.SRQs, acceptAnyObject)
	id := pickOne(d, append(slices.Clone(qps), srqs...))
	if id == 0 {
		return nil
	}
	c := postRecv{on: id, shared: slices.Contains(srqs, id)}
	pd, most, room := model.ID(0), 0, 0
	if c.shared {
		s := d.x.m.Queues.SRQs[id]
		pd, most, room = s.PD, s.MaxSGE(), s.Capacity()
	} else {
		q := d.x.m.Queues.QPs[id]
		pd, most, room = q.PD, int(q.Cap.MaxRecvSGE), int(q.Cap.MaxRecvWR)
	}
	n := 1 + d.IntN(4)
	if d.oneInN(20) {
		n = room + 1
	}
	for range min(n, 70) {
		size := d.drawMessageSize(d.x.m.Device.MaxMsgSize)
		if d.oneInN(2) {
			size = max(size, d.drawMessageSize(d.x.m.Device.MaxMsgSize))
		}
		list := d.memory.drawSGL(pd, size, most, ib.AccessLocalWrite)
		if len(list) < most && d.oneInN(6) { // a boundary in or near the header of a datagram
			header := d.memory.drawSGElement(pd, d.Uint64N(model.GRHLen+4), ib.AccessLocalWrite, false)
			list = append([]sgElement{header}, list...)
		}
		c.list = append(c.list, recvRequest{d.drawWRID(), list})
	}
	return c
}

// drawWRID returns an unused work request ID. All bits occur, and so do IDs that differ in only one bit.
func (d *requestDrawer) drawWRID() uint64 {
	for {
		v := d.Uint64()
		if d.seen != 0 && d.oneInN(2) {
			v = d.seen ^ 1<<d.IntN(64)
		}
		if d.x.ids[v] == "" {
			d.seen = v
			d.x.ids[v] = "?"
			return v
		}
	}
}
