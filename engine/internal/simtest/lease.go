package simtest

import (
	"verbena/ib"
	"verbena/umem"
)

// lease is memory of the peer's host that an end can write with a key. A work request of the peer has made the key, and
// a SEND with invalidate invalidates it.
type lease struct {
	span   span
	used   int // number of bytes that requests use
	key    uint32
	window *ib.MW // type 2 window, or
	region *ib.MR // region for fast registration
	spent  *request
	over   bool // the key was invalidated, and the memory is reused
}

// makeLeases allocates the memory.
func (e *end) makeLeases() {
	for range e.w.rng.IntN(4) {
		e.leases = append(e.leases, &lease{span: e.peer.host.alloc(1 + e.w.rng.IntN(5*e.mtu))})
	}
}

// lease returns a lease that has not been invalidated, or nil if there is none.
func (e *end) lease() *lease {
	for _, l := range e.leases {
		if l.spent == nil {
			return l
		}
	}
	return nil
}

// spent returns a lease that was invalidated before a request and is large enough for it.
func (e *end) spent(q *request) *lease {
	for _, l := range e.leases {
		if l.spent != nil && l.spent.n < q.n && l.span.n >= q.remote.n {
			return l
		}
	}
	return nil
}

func (l *lease) room() int { return l.span.n - l.used }

func (l *lease) take(n int) span {
	s := span{l.span.at + l.used, n}
	l.used += n
	return s
}

// lend makes the keys for the peer. A target of XRC has no send queue, so it cannot bind a window.
func (e *end) lend() {
	w, h := e.w, e.host
	const access = ib.AccessLocalWrite | ib.AccessRemoteRead | ib.AccessRemoteWrite | ib.AccessRemoteAtomic
	for i, l := range e.peer.leases {
		var err error
		wr := ib.SendWR{Flags: ib.SendSignaled}
		if at, n := uint64(l.span.at), uint64(l.span.n); i%2 == 0 && w.service != XRC {
			l.window, err = h.pd.AllocMW(ib.MWType2)
			w.check(err)
			l.key = ib.IncRKey(l.window.RKey())
			wr.Opcode, wr.Bind = ib.WRBindMW, &ib.BindMW{MW: l.window, MR: h.mr, RKey: l.key, Addr: iova + at, Length: n, Access: access}
		} else {
			l.region, err = h.pd.AllocMR(l.span.n/int(umem.PageSize) + 2)
			w.check(err)
			w.check(l.region.Map(h.mem, nil, []umem.Range{{Addr: h.base + at, Length: n}}, iova+at))
			l.key = l.region.RKey()
			wr.Opcode, wr.Reg = ib.WRRegMR, &ib.FastReg{MR: l.region, Key: l.key, Access: access}
		}
		_, err = e.qp.PostSend(wr)
		w.check(err)
		var wc [2]ib.WC
		if n, err := h.sendCQ.cq.Poll(wc[:]); n != 1 || err != nil || wc[0].Status != ib.WCSuccess {
			w.failf("qp %d: the work request for a key: %d completions, %v, %v", e.qp.Num(), n, wc[0].Status, err)
		}
	}
}

func (l *lease) free() error {
	if l.window != nil {
		return l.window.Dealloc()
	}
	return l.region.Dereg()
}

// takeBack makes the consumer reuse the memory of a lease, after a request of the peer has invalidated it.
func (e *end) takeBack(q *request) {
	l := q.lease
	for _, o := range e.peer.requests[:q.n] {
		if o.lease == l {
			o.seen = true
		}
	}
	l.over = true
	e.host.giveBack(l.span)
}
