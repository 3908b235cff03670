package simtest

import (
	"time"

	"verbena/ib"
)

// end is a queue pair with its consumer. With XRC, it has an initiator and a target.
type end struct {
	w    *world
	host *host
	peer *end
	qp   *ib.QP // sends
	rqp  *ib.QP // receives; differs from qp only with XRC
	in   *inbox
	ah   *ib.AH
	mtu  int
	path ib.MTU
	psn  uint32 // first PSN of the send queue
	attributes

	requests []*request
	messages int // number of messages in requests
	posted   int // requests[:posted]
	done     int // requests[:done] are complete
	leases   []*lease
	last     int // last completed receive
	arrived  int // number of messages received from the peer

	failed    bool // a work request of this end has failed
	killed    bool // the consumer took it to ERR
	refused   bool // a receive has failed
	flushed   bool // a request was flushed since the last poll
	successes int
	lasts     []uint32 // UC, UD: PSNs of the last packets of all sent messages
	drains    int      // number of drains of the send queue; each causes an event
	events    map[ib.EventType]int
	answers   answers
}

// newPair plans two queue pairs that are connected or, for datagrams, know the address of each other.
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
		e := &end{w: w, host: w.hosts[i], path: path, mtu: mtu, psn: r.Uint32() & 0xffffff, last: -1, events: map[ib.EventType]int{}, answers: answers{}}
		if r.IntN(2) == 0 {
			e.psn = 0xffffff - uint32(r.IntN(20))
		}
		if e.attributes = makeAttributes(r, &w.profile); w.travels() {
			e.retry = 7
		}
		if e.in = e.host.shares; e.in == nil {
			e.in = w.newInbox(e.host)
		}
		e.in.ends = append(e.in.ends, e)
		pair[i] = e
	}
	pair[0].peer, pair[1].peer = pair[1], pair[0]
	w.ends = append(w.ends, pair[0], pair[1])
}

// create creates the queue pair.
func (e *end) create() {
	w := e.w
	init := ib.QPInitAttr{
		SendCQ: e.host.sendCQ.cq, RecvCQ: e.host.recvCQ.cq, SRQ: e.in.srq, SigAll: e.sigAll,
		Type:  map[Service]ib.QPType{RC: ib.QPTypeRC, UC: ib.QPTypeUC, UD: ib.QPTypeUD, XRC: ib.QPTypeXRCInit}[w.service],
		Cap:   ib.QPCap{MaxSendWR: uint32(e.sendDepth), MaxSendSGE: 4, MaxInlineData: maxInline},
		Event: func(_ *ib.QP, t ib.EventType) { e.events[t]++ },
	}
	if e.in.srq == nil {
		init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = uint32(e.in.depth), 2
	}
	if w.service == XRC {
		init.RecvCQ, init.SRQ = nil, nil
	}
	var err error
	e.qp, err = e.host.pd.CreateQP(init)
	w.check(err)
	e.rqp = e.qp
	if w.log != nil {
		w.check(e.host.dev.TraceQP(e.qp.Num(), true))
	}
	if w.service == XRC {
		e.rqp, err = e.host.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeXRCTgt, XRCD: e.host.xrcd})
		w.check(err)
	} else if e.in.srq == nil {
		e.in.depth = int(e.qp.Init().Cap.MaxRecvWR)
		e.in.late = e.in.late || len(e.in.receives) > e.in.depth
	}
	for _, q := range e.requests {
		w.byID[q.id] = q
	}
}

// connect takes the queue pair to RTS.
func (e *end) connect() {
	if e.w.service == UD {
		av := e.toPeer()
		var err error
		e.ah, err = e.host.pd.CreateAH(&av)
		e.w.check(err)
	}
	e.connectQP(e.qp, e.peer.rqp)
	if e.rqp != e.qp {
		e.connectQP(e.rqp, e.peer.qp)
	}
}

// toPeer returns the address vector of the peer's host.
func (e *end) toPeer() ib.AHAttr {
	gid, err := e.peer.host.dev.IB().QueryGID(1, 1)
	e.w.check(err)
	return ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: gid.GID, SGIDIndex: 1}}
}

func (e *end) connectQP(qp, peer *ib.QP) {
	w, t := e.w, qp.Type()
	requests, responds := t == ib.QPTypeRC || t == ib.QPTypeXRCInit, t == ib.QPTypeRC || t == ib.QPTypeXRCTgt

	mask := ib.QPAttrState | ib.QPAttrPKeyIndex | ib.QPAttrPort
	if t == ib.QPTypeUD {
		mask |= ib.QPAttrQKey
	} else {
		mask |= ib.QPAttrAccessFlags
	}
	w.check(qp.Modify(ib.QPAttr{State: ib.QPInit, Port: 1, AccessFlags: hostAccess &^ ib.AccessMWBind, QKey: qkey}, mask))

	mask = ib.QPAttrState
	if t != ib.QPTypeUD {
		mask |= ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
	}
	if responds {
		mask |= ib.QPAttrMaxDestRdAtomic | ib.QPAttrMinRNRTimer
	}
	w.check(qp.Modify(ib.QPAttr{
		State: ib.QPRTR, PathMTU: e.path, DestQPN: peer.Num(), RQPSN: e.peer.psn, MaxDestRdAtomic: e.peer.reads,
		MinRNRTimer: e.rnrTimer, AH: e.toPeer(),
	}, mask))

	mask = ib.QPAttrState | ib.QPAttrSQPSN
	if requests {
		mask |= ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRdAtomic
	}
	if requests || responds {
		mask |= ib.QPAttrTimeout
	}
	w.check(qp.Modify(ib.QPAttr{
		State: ib.QPRTS, SQPSN: e.psn, Timeout: e.timeout, RetryCnt: e.retry, RNRRetry: e.rnrRetry, MaxRdAtomic: e.reads,
	}, mask))
}

func (e *end) toErr() {
	for _, qp := range e.qps() {
		e.w.check(qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	}
}

func (e *end) qps() []*ib.QP {
	if e.rqp == e.qp {
		return []*ib.QP{e.qp}
	}
	return []*ib.QP{e.qp, e.rqp}
}

func (e *end) destroy() error {
	if n := e.events[ib.EventSQDrained]; n < e.drains || n > e.drains+1 {
		e.w.failf("qp %d: %d events say that the send queue is drained, it was %d times", e.qp.Num(), n, e.drains)
	}
	if n := e.events[ib.EventQPLastWQEReached]; e.in.srq != nil && e.rqp == e.qp && n != 1 {
		e.w.failf("qp %d: %d events say that it takes nothing more from the shared receive queue", e.qp.Num(), n)
	}
	for _, qp := range e.qps() {
		if err := qp.Destroy(); err != nil {
			return err
		}
	}
	for _, l := range e.leases {
		if err := l.free(); err != nil {
			return err
		}
	}
	if e.ah != nil {
		return e.ah.Destroy()
	}
	return nil
}

// schedule plans the times of posting, and the other actions of the consumer.
func (e *end) schedule() {
	w, r := e.w, e.w.rng
	in := func(most time.Duration) time.Duration { return time.Duration(r.Int64N(int64(most))) }
	at := time.Millisecond
	if w.travels() && e.disturbed() {
		at += lull
		if e.peer.disturbed() && e.host == w.hosts[1] {
			at += lull
		}
	}
	pace := []time.Duration{time.Microsecond, 100 * time.Microsecond, time.Millisecond}[r.IntN(3)]
	for n := 0; n < len(e.requests); {
		n += 1 + r.IntN(6)
		upTo := min(n, len(e.requests))
		w.clock.AfterFunc(at, func() { e.post(upTo) })
		at += in(pace)
	}
	if w.travels() {
		return
	}
	if w.service.reliable() && r.IntN(12) == 0 {
		w.clock.AfterFunc(time.Millisecond+in(3*time.Millisecond), e.kill)
	}
	if r.IntN(8) == 0 {
		w.clock.AfterFunc(time.Millisecond+in(time.Millisecond), e.drain)
	}
}

// kill makes the consumer give up the connection.
func (e *end) kill() {
	e.w.note("qp %d is taken to ERR", e.qp.Num())
	e.killed = true
	e.toErr()
}

// drain drains the send queue, and restarts it after the end of the started requests.
func (e *end) drain() {
	if e.qp.State() != ib.QPRTS {
		return
	}
	e.w.note("qp %d is drained", e.qp.Num())
	e.w.check(e.qp.Modify(ib.QPAttr{State: ib.QPSQD, EnSQDAsyncNotify: true}, ib.QPAttrState|ib.QPAttrEnSQDAsyncNotify))
	e.w.clock.AfterFunc(200*time.Microsecond, e.undrain)
}

func (e *end) undrain() {
	if e.qp.State() != ib.QPSQD {
		return
	}
	a, _, err := e.qp.Query(ib.QPAttrState)
	e.w.check(err)
	err = e.qp.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState)
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
		e.w.turn()
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

// sges returns n scatter/gather elements for memory of the host.
func (h *host) sges(s span, n int) (list []ib.SGE) {
	at := uint64(iova + s.at)
	left := s.n
	for i := n; i > 0; i-- {
		k := left / i
		list = append(list, ib.SGE{Addr: at, Length: uint32(k), LKey: h.mr.LKey()})
		at, left = at+uint64(k), left-k
	}
	return list
}

// encode encodes a request as a work request.
func (e *end) encode(q *request) ib.SendWR {
	wr := ib.SendWR{
		ID: q.id, Opcode: q.op, Flags: q.flags, Imm: q.imm, RemoteAddr: uint64(iova + q.remote.at), RKey: e.peer.host.mr.RKey(),
		AH: e.ah, RemoteQPN: e.peer.rqp.Num(), RemoteQKey: qkey,
	}
	if e.w.service == XRC {
		wr.RemoteSRQN = e.peer.in.srq.Num()
	}
	switch {
	case q.op == ib.WRSendWithInv:
		wr.InvalidateRKey = q.lease.key
	case q.op == ib.WRFlush:
		wr.Flush = ib.Flush{Placement: ib.FlushGlobal, Level: q.level, Length: uint32(q.remote.n)}
	case q.lease != nil:
		wr.RKey = q.lease.key
	}
	if q.flags&ib.SendInline != 0 || q.op == ib.WRAtomicWrite {
		wr.Inline = q.data
	} else if q.op != ib.WRFlush {
		wr.SGList = e.host.sges(q.local, q.split)
	}
	if q.op == ib.WRAtomicCmpAndSwp {
		wr.CompareAdd, wr.Swap = q.compare, q.swap
	} else if q.op == ib.WRAtomicFetchAdd {
		wr.CompareAdd = 1 << q.bit
	}
	switch q.fault {
	case badKey:
		wr.RKey ^= 1 << 9
	case spentKey:
		wr.RemoteAddr = uint64(iova + q.lease.span.at)
	case badRange:
		wr.RemoteAddr += 1 << 40
	case badLocalKey:
		for i := range wr.SGList {
			wr.SGList[i].LKey ^= 1 << 9
		}
	}
	return wr
}

// recover takes a queue pair from SQE back to RTS.
func (e *end) recover() {
	if e.qp.State() == ib.QPSQE {
		e.w.note("qp %d goes from SQE to RTS", e.qp.Num())
		e.w.check(e.qp.Modify(ib.QPAttr{State: ib.QPRTS, CurState: ib.QPSQE}, ib.QPAttrState|ib.QPAttrCurState))
		e.failed = false
	}
}
