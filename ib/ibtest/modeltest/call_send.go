package modeltest

import (
	"errors"
	"slices"
	"strings"
	"syscall"

	"verbena/ib"
	"verbena/ib/ibtest/model"
)

// sgElement is an element of a scatter or gather list. Its address is an offset from the start of the region.
type sgElement struct {
	mr  model.ID
	off uint64
	len uint32
	xor uint32 // changes the key, to make it invalid
}

func (e sgElement) String() string {
	s := sprintf("mr%d+%#x:%#x", e.mr, e.off, e.len)
	if e.xor != 0 {
		s += sprintf("^%#x", e.xor)
	}
	return s
}

func (x *modelRunner) resolveSGL(list []sgElement) (l []ib.SGE) {
	for _, e := range list {
		g := ib.SGE{Length: e.len, LKey: e.xor, Addr: e.off}
		if r := x.m.Keys.Regions[e.mr]; r != nil {
			g.LKey ^= r.LKey
			g.Addr += r.IOVA
		}
		l = append(l, g)
	}
	return l
}

// remoteTarget is remote memory, named by the key of a region or a window.
type remoteTarget struct {
	key model.ID
	off uint64
	xor uint32
}

func (t remoteTarget) String() string {
	s := sprintf("%d+%#x", t.key, t.off)
	if t.xor != 0 {
		s += sprintf("^%#x", t.xor)
	}
	return s
}

func (x *modelRunner) resolveTarget(t remoteTarget) (addr uint64, rkey uint32) {
	if r := x.m.Keys.Regions[t.key]; r != nil {
		return r.IOVA + t.off, r.RKey ^ t.xor
	}
	if w := x.m.Keys.Windows[t.key]; w != nil {
		return w.First + t.off, w.RKey ^ t.xor
	}
	return t.off, t.xor
}

// sendRequest is a send work request.
type sendRequest struct {
	id        uint64
	op        ib.WROpcode
	flags     ib.SendFlags
	list      []sgElement
	inline    []byte
	imm       uint32
	to        remoteTarget
	inv       remoteTarget
	add, swap uint64
	ah        model.ID
	dest      model.ID // destination of a datagram
	qkey      uint32
	group     bool     // the datagram is sent to the number of a group
	srq       model.ID // XRC
	bind      *bindArgs
	reg       *regMRArgs
	flush     ib.Flush
}

type bindArgs struct {
	mw, mr   model.ID
	variant  uint8
	off, len uint64
	access   ib.AccessFlags
}

type regMRArgs struct {
	mr     model.ID
	xor    uint32
	access ib.AccessFlags
}

var opcodeNames = map[ib.WROpcode]string{
	ib.WRSend: "SEND", ib.WRSendWithImm: "SEND_IMM", ib.WRSendWithInv: "SEND_INV", ib.WRRDMAWrite: "WRITE",
	ib.WRRDMAWriteWithImm: "WRITE_IMM", ib.WRRDMARead: "READ", ib.WRAtomicCmpAndSwp: "CAS", ib.WRAtomicFetchAdd: "FADD",
	ib.WRLocalInv: "LOCAL_INV", ib.WRBindMW: "BIND_MW", ib.WRRegMR: "REG_MR",
	ib.WRFlush: "FLUSH", ib.WRAtomicWrite: "ATOMIC_WRITE",
}

func (s sendRequest) String() string {
	b := sprintf("%s %#x", opcodeNames[s.op], s.id)
	for _, f := range []struct {
		flag ib.SendFlags
		name string
	}{{ib.SendSignaled, "signaled"}, {ib.SendSolicited, "solicited"}, {ib.SendFence, "fence"}, {ib.SendInline, "inline"}} {
		if s.flags&f.flag != 0 {
			b += " " + f.name
		}
	}
	switch {
	case s.flags&ib.SendInline != 0 || s.op == ib.WRAtomicWrite:
		b += sprintf(" %d bytes", len(s.inline))
	case s.bind == nil && s.reg == nil && s.op != ib.WRLocalInv:
		b += sprintf(" %v", s.list)
	}
	switch s.op {
	case ib.WRSendWithImm, ib.WRRDMAWriteWithImm:
		b += sprintf(" imm %#x", s.imm)
	case ib.WRSendWithInv, ib.WRLocalInv:
		b += sprintf(" key of %v", s.inv)
	}
	switch {
	case s.bind != nil:
		b += sprintf(" mw%d to mr%d+%#x:%#x, access %#x, variant %#x",
			s.bind.mw, s.bind.mr, s.bind.off, s.bind.len, uint32(s.bind.access), s.bind.variant)
	case s.reg != nil:
		b += sprintf(" mr%d access %#x, key ^%#x", s.reg.mr, uint32(s.reg.access), s.reg.xor)
	case usesRemoteMemory(s.op):
		b += sprintf(" to %v", s.to)
	}
	if s.ah != 0 {
		b += sprintf(" to qp%d by ah%d, Q_Key %#x, group %v", s.dest, s.ah, s.qkey, s.group)
	}
	if s.srq != 0 {
		b += sprintf(" for srq%d", s.srq)
	}
	return b
}

func usesRemoteMemory(op ib.WROpcode) bool {
	switch op {
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRRDMARead, ib.WRAtomicCmpAndSwp,
		ib.WRAtomicFetchAdd, ib.WRFlush, ib.WRAtomicWrite:
		return true
	}
	return false
}

// resolveSend returns a request for the model and for the device.
func (x *modelRunner) resolveSend(s *sendRequest) (model.Send, ib.SendWR) {
	m := model.Send{
		ID: s.id, Op: s.op, Flags: s.flags, SGL: x.resolveSGL(s.list), Inline: s.inline, Imm: s.imm,
		CompareAdd: s.add, Swap: s.swap,
		AH: s.ah, QKey: s.qkey, Flush: s.flush,
	}
	m.RemoteAddr, m.RKey = x.resolveTarget(s.to)
	_, m.InvalidateRKey = x.resolveTarget(s.inv)
	if s.op == ib.WRLocalInv && s.inv.key == 0 {
		m.InvalidateRKey = s.inv.xor
	}
	if o := x.objs[s.dest]; o != nil {
		m.QPN = o.qp.Num()
	}
	if s.group {
		m.QPN = 0xffffff
	}
	if o := x.objs[s.srq]; o != nil {
		m.SRQN = o.srq.Num()
	}
	wr := ib.SendWR{
		ID: s.id, Opcode: s.op, Flags: s.flags, SGList: m.SGL, Inline: s.inline, Imm: s.imm,
		InvalidateRKey: m.InvalidateRKey,
		RemoteAddr:     m.RemoteAddr, RKey: m.RKey, CompareAdd: s.add, Swap: s.swap,
		RemoteQPN: m.QPN, RemoteQKey: s.qkey, RemoteSRQN: m.SRQN, Flush: s.flush,
	}
	if o := x.objs[s.ah]; o != nil {
		wr.AH = o.ah
	}
	if b := s.bind; b != nil {
		w := x.m.Keys.Windows[b.mw]
		m.Bind = &model.BindArgs{MW: b.mw, MR: b.mr, RKey: w.RKey&^0xff | uint32(b.variant), Len: b.len, Access: b.access}
		wr.Bind = &ib.BindMW{MW: x.objs[b.mw].mw, RKey: m.Bind.RKey, Length: b.len, Access: b.access}
		if r := x.m.Keys.Regions[b.mr]; r != nil {
			wr.Bind.MR = x.objs[b.mr].mr
			m.Bind.LKey = wr.Bind.MR.LKey() // it may differ from that of the last REG_MR
			m.Bind.Addr = r.IOVA + b.off
			wr.Bind.Addr = m.Bind.Addr
		}
	}
	if b := s.reg; b != nil {
		m.Reg = &model.RegMRArgs{MR: b.mr, Key: x.m.Keys.Regions[b.mr].RKey ^ b.xor, Access: b.access}
		wr.Reg = &ib.FastReg{MR: x.objs[b.mr].mr, Key: m.Reg.Key, Access: b.access}
	}
	return m, wr
}

// postSend posts send work requests.
type postSend struct {
	qp   model.ID
	list []sendRequest
}

func (c postSend) String() string {
	var b strings.Builder
	b.WriteString(sprintf("qp%d.PostSend(", c.qp))
	for i, s := range c.list {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(s.String())
	}
	return b.String() + ")"
}

func (c postSend) usedIDs() []model.ID {
	ids := []model.ID{c.qp}
	for _, s := range c.list {
		if s.ah != 0 {
			ids = append(ids, s.ah)
		}
		if s.bind != nil {
			ids = append(ids, s.bind.mw, s.bind.mr)
		}
		if s.reg != nil {
			ids = append(ids, s.reg.mr)
		}
	}
	return ids
}

func (c postSend) recordIDs(x *modelRunner) {
	for _, s := range c.list {
		x.ids[s.id] = sprintf("qp%d's %s", c.qp, s)
	}
}

func (c postSend) runOnDevice(x *modelRunner) deviceResult {
	wrs := make([]ib.SendWR, len(c.list))
	for i := range c.list {
		_, wrs[i] = x.resolveSend(&c.list[i])
		wrs[i].Inline = slices.Clone(wrs[i].Inline)
	}
	n, err := x.objs[c.qp].qp.PostSend(wrs...)
	for i := range wrs { // the driver must not keep any of it
		wr := &wrs[i]
		for k := range wr.Inline {
			wr.Inline[k] ^= 0xff
		}
		for k := range wr.SGList {
			wr.SGList[k] = ib.SGE{Addr: 0xdead, Length: 0xdead, LKey: 0xdead}
		}
		if wr.Bind != nil {
			*wr.Bind = ib.BindMW{}
		}
		if wr.Reg != nil {
			*wr.Reg = ib.FastReg{}
		}
		*wr = ib.SendWR{ID: 0xdeaddead, Opcode: 0x7f}
	}
	return deviceResult{n: n, err: err}
}

func (c postSend) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	var sends []model.Send
	for i := range c.list {
		s, _ := x.resolveSend(&c.list[i])
		sends = append(sends, s)
	}
	return wantPostResult(m.PostSend(c.qp, sends, postResultOf(g)))
}

func wantPostResult(t model.PostResult) modelResult {
	return modelResult{n: t.N, errs: []syscall.Errno{t.Err}}
}

func postResultOf(g *deviceResult) *model.PostResult {
	if g == nil {
		return nil
	}
	t := &model.PostResult{N: g.n}
	errors.As(g.err, &t.Err)
	return t
}

// recvRequest is a receive work request.
type recvRequest struct {
	id   uint64
	list []sgElement
}

func (r recvRequest) String() string { return sprintf("%#x %v", r.id, r.list) }

// postRecv posts receives to a queue pair, or to a shared receive queue.
type postRecv struct {
	on     model.ID
	shared bool
	list   []recvRequest
}

func (c postRecv) String() string {
	kind := "qp"
	if c.shared {
		kind = "srq"
	}
	return sprintf("%s%d.PostRecv(%v)", kind, c.on, c.list)
}
func (c postRecv) usedIDs() []model.ID { return []model.ID{c.on} }

func (c postRecv) recordIDs(x *modelRunner) {
	for _, r := range c.list {
		x.ids[r.id] = sprintf("the receive %v of %d", r, c.on)
	}
}

func (c postRecv) runOnDevice(x *modelRunner) deviceResult {
	wrs := make([]ib.RecvWR, len(c.list))
	for i, r := range c.list {
		wrs[i] = ib.RecvWR{ID: r.id, SGList: x.resolveSGL(r.list)}
	}
	var g deviceResult
	if o := x.objs[c.on]; c.shared {
		g.n, g.err = o.srq.PostRecv(wrs...)
	} else {
		g.n, g.err = o.qp.PostRecv(wrs...)
	}
	for i := range wrs {
		for k := range wrs[i].SGList {
			wrs[i].SGList[k] = ib.SGE{Addr: 0xdead, Length: 0xdead, LKey: 0xdead}
		}
		wrs[i] = ib.RecvWR{ID: 0xdeaddead}
	}
	return g
}

func (c postRecv) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	var recvs []model.Recv
	for _, r := range c.list {
		recvs = append(recvs, model.Recv{ID: r.id, SGL: x.resolveSGL(r.list)})
	}
	if c.shared {
		return wantPostResult(m.PostSRQ(c.on, recvs, postResultOf(g)))
	}
	return wantPostResult(m.PostRecv(c.on, recvs, postResultOf(g)))
}
