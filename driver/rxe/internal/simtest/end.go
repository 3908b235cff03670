package simtest

import (
	"time"

	"verbena/ib"
)

// end is one queue pair with its consumer.
type end struct {
	w    *world
	host *host
	peer *end
	qp   *ib.QP
	ah   *ib.AH
	mtu  int
	path ib.MTU
	psn  uint32 // first, of what it sends
	attributes

	requests []*request
	messages int // among them
	posted   int // requests[:posted]
	done     int // requests[:done] are complete
	late     bool
	receives []*receive
	offered  int // receives[:offered] are posted
	taken    int // receives[:taken] are complete
	arrived  int // messages of the peer's that have been received

	failed    bool // a work request of its own has failed
	killed    bool // the consumer took it to ERR
	refused   bool // a receive has failed
	flushed   bool // something was flushed since the last look
	successes int
	lasts     []uint32 // UC, UD: PSNs of the last packets of all messages sent
	drains    int      // times that the send queue was drained, and an event is due
	events    map[ib.EventType]int
}

// newPair plans two queue pairs that are connected, or for datagrams know each other.
func (w *world) newPair() {
	r := w.rng
	path := ib.MTU(1 + r.IntN(5))
	if r.IntN(2) == 0 {
		path = ib.MTU256
	}
	mtu := path.Bytes()
	if w.service == UD {
		mtu = ib.MTU4096.Bytes()
	}
	var pair [2]*end
	for i := range pair {
		e := &end{w: w, host: w.hosts[i], path: path, mtu: mtu, psn: r.Uint32() & 0xffffff, events: map[ib.EventType]int{}}
		if r.IntN(2) == 0 {
			e.psn = 0xffffff - uint32(r.IntN(20))
		}
		e.attributes = makeAttributes(r, &w.profile)
		e.late = r.IntN(3) == 0
		pair[i] = e
	}
	pair[0].peer, pair[1].peer = pair[1], pair[0]
	w.ends = append(w.ends, pair[0], pair[1])
}

// create makes the queue pair.
func (e *end) create() {
	var err error
	e.qp, err = e.host.pd.CreateQP(ib.QPInitAttr{
		SendCQ: e.host.sendCQ.cq, RecvCQ: e.host.recvCQ.cq, Type: e.w.service.qpType(), SigAll: e.sigAll,
		Cap:   ib.QPCap{MaxSendWR: uint32(e.sendDepth), MaxRecvWR: uint32(e.recvDepth), MaxSendSGE: 4, MaxRecvSGE: 2, MaxInlineData: maxInline},
		Event: func(_ *ib.QP, t ib.EventType) { e.events[t]++ },
	}, nil)
	e.w.check(err)
	for _, q := range e.requests {
		e.w.byID[q.id] = q
	}
	for _, v := range e.receives {
		e.w.byID[v.id] = v
	}
	if len(e.receives) > int(e.qp.Init().Cap.MaxRecvWR) {
		e.late = true
	}
}

// connect takes the queue pair to RTS.
func (e *end) connect() {
	w := e.w
	const access = ib.AccessLocalWrite | ib.AccessRemoteRead | ib.AccessRemoteWrite | ib.AccessRemoteAtomic
	mask := ib.QPAttrState | ib.QPAttrPKeyIndex | ib.QPAttrPort
	if w.service == UD {
		mask |= ib.QPAttrQKey
	} else {
		mask |= ib.QPAttrAccessFlags
	}
	w.check(e.qp.Modify(ib.QPAttr{State: ib.QPInit, Port: 1, AccessFlags: access, QKey: qkey}, mask, nil))

	gid, err := e.peer.host.dev.IB().QueryGID(1, 1)
	w.check(err)
	av := ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: gid.GID, SGIDIndex: 1}}
	attr := ib.QPAttr{
		State: ib.QPRTR, PathMTU: e.path, DestQPN: e.peer.qp.Num(), RQPSN: e.peer.psn, MaxDestRdAtomic: e.peer.reads,
		MinRNRTimer: e.rnrTimer, AH: av,
	}
	mask = ib.QPAttrState
	switch w.service {
	case UD:
		e.ah, err = e.host.pd.CreateAH(&av, nil)
		w.check(err)
	case RC:
		mask |= ib.QPAttrMaxDestRdAtomic | ib.QPAttrMinRNRTimer
		fallthrough
	default:
		mask |= ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
	}
	w.check(e.qp.Modify(attr, mask, nil))

	attr = ib.QPAttr{
		State: ib.QPRTS, SQPSN: e.psn, Timeout: e.timeout, RetryCnt: e.retry, RNRRetry: e.rnrRetry, MaxRdAtomic: e.reads,
	}
	mask = ib.QPAttrState | ib.QPAttrSQPSN
	if w.service == RC {
		mask |= ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRdAtomic
	}
	w.check(e.qp.Modify(attr, mask, nil))
}

func (e *end) destroy() error {
	if n := e.events[ib.EventSQDrained]; n < e.drains || n > e.drains+1 {
		e.w.failf("qp %d: %d events say that the send queue is drained, it was %d times", e.qp.Num(), n, e.drains)
	}
	if err := e.qp.Destroy(); err != nil {
		return err
	}
	if e.ah != nil {
		return e.ah.Destroy()
	}
	return nil
}

// schedule plans when things are posted, and what else the consumer does.
func (e *end) schedule() {
	w, r := e.w, e.w.rng
	in := func(most time.Duration) time.Duration { return time.Duration(r.Int64N(int64(most))) }
	at := time.Millisecond
	pace := []time.Duration{time.Microsecond, 100 * time.Microsecond, time.Millisecond}[r.IntN(3)]
	for n := 0; n < len(e.requests); {
		n += 1 + r.IntN(6)
		upTo := min(n, len(e.requests))
		w.clock.AfterFunc(at, func() { e.post(upTo) })
		at += in(pace)
	}
	when := time.Duration(0)
	for n := 0; n < len(e.receives); {
		n = len(e.receives)
		if e.late {
			n = min(len(e.receives), e.offered+1+r.IntN(8))
			when += in(3 * time.Millisecond)
		}
		upTo := n
		e.offered = n // counts here what is planned
		w.clock.AfterFunc(when, func() { e.offer(upTo, 0) })
	}
	e.offered = 0
	if w.service == RC && r.IntN(12) == 0 {
		w.clock.AfterFunc(time.Millisecond+in(3*time.Millisecond), e.kill)
	}
	if r.IntN(8) == 0 {
		w.clock.AfterFunc(time.Millisecond+in(time.Millisecond), e.drain)
	}
}

// kill has the consumer give up the connection.
func (e *end) kill() {
	e.w.note("qp %d is taken to ERR", e.qp.Num())
	e.killed = true
	e.w.check(e.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState, nil))
}

// drain stops the send queue, and starts it again when what was begun has ended.
func (e *end) drain() {
	if e.qp.State() != ib.QPRTS {
		return
	}
	e.w.note("qp %d is drained", e.qp.Num())
	e.w.check(e.qp.Modify(ib.QPAttr{State: ib.QPSQD, EnSQDAsyncNotify: true}, ib.QPAttrState|ib.QPAttrEnSQDAsyncNotify, nil))
	e.w.clock.AfterFunc(200*time.Microsecond, e.undrain)
}

func (e *end) undrain() {
	if e.qp.State() != ib.QPSQD {
		return
	}
	a, _, err := e.qp.Query(ib.QPAttrState)
	e.w.check(err)
	err = e.qp.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState, nil)
	if a.SQDraining != (err != nil) {
		e.w.failf("a send queue that is draining (%t) went back to RTS: %v", a.SQDraining, err)
	}
	if err != nil {
		e.w.clock.AfterFunc(time.Millisecond, e.undrain)
		return
	}
	e.drains++
}

// post posts requests, as far as there is room.
func (e *end) post(upTo int) {
	for e.posted < upTo {
		q := e.requests[e.posted]
		n, err := e.qp.PostSend(e.encode(q))
		if n == 0 {
			e.w.note("qp %d: request %d has to wait: %v", e.qp.Num(), q.n, err)
			e.w.clock.AfterFunc(50*time.Microsecond, func() { e.post(upTo) })
			return
		}
		e.w.note("qp %d: posted %v", e.qp.Num(), q)
		q.posted = true
		e.posted++
	}
}

// offer posts receives, as far as there is room. Where nothing has made room for long, nothing will: those that are left
// are not needed.
func (e *end) offer(upTo, tries int) {
	for e.offered < min(upTo, len(e.receives)) {
		v := e.receives[e.offered]
		wr := ib.RecvWR{ID: v.id, SGList: e.sges(v.span, 1+v.n%2)}
		for i := range wr.SGList {
			if v.fault == badReceive {
				wr.SGList[i].LKey ^= 1 << 10
			}
		}
		if n, err := e.qp.PostRecv(wr); n == 0 {
			if e.offered == e.taken {
				e.w.failf("qp %d: no room in an empty receive queue: %v", e.qp.Num(), err)
			}
			if tries == 100 {
				e.receives = e.receives[:e.offered]
				return
			}
			e.w.clock.AfterFunc(50*time.Microsecond<<min(tries, 8), func() { e.offer(upTo, tries+1) })
			return
		}
		e.w.note("qp %d: receive %d of %d bytes", e.qp.Num(), v.n, v.span.n)
		e.offered++
		tries = 0
	}
}

// sges describes memory of the host in n pieces.
func (e *end) sges(s span, n int) (list []ib.SGE) {
	at := uint64(iova + s.at)
	left := s.n
	for i := n; i > 0; i-- {
		k := left / i
		list = append(list, ib.SGE{Addr: at, Length: uint32(k), LKey: e.host.mr.LKey()})
		at, left = at+uint64(k), left-k
	}
	return list
}

// encode makes the work request.
func (e *end) encode(q *request) ib.SendWR {
	wr := ib.SendWR{
		ID: q.id, Opcode: q.op, Flags: q.flags, Imm: q.imm, RemoteAddr: uint64(iova + q.remote.at), RKey: e.peer.host.mr.RKey(),
		AH: e.ah, RemoteQPN: e.peer.qp.Num(), RemoteQKey: qkey,
	}
	if q.flags&ib.SendInline != 0 {
		wr.Inline = q.data
	} else {
		wr.SGList = e.sges(q.local, q.split)
	}
	if q.op == ib.WRAtomicCmpAndSwp {
		wr.CompareAdd, wr.Swap = q.compare, q.swap
	} else if q.op == ib.WRAtomicFetchAdd {
		wr.CompareAdd = 1 << q.bit
	}
	switch q.fault {
	case badKey:
		wr.RKey ^= 1 << 9
	case badRange:
		wr.RemoteAddr += 1 << 40
	case badLocalKey:
		for i := range wr.SGList {
			wr.SGList[i].LKey ^= 1 << 9
		}
	}
	return wr
}

// recover takes a queue pair whose send queue has failed back to RTS.
func (e *end) recover() {
	if e.qp.State() == ib.QPSQE {
		e.w.note("qp %d goes from SQE to RTS", e.qp.Num())
		e.w.check(e.qp.Modify(ib.QPAttr{State: ib.QPRTS, CurState: ib.QPSQE}, ib.QPAttrState|ib.QPAttrCurState, nil))
		e.failed = false
	}
}
