package rblk

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"verbena/ib"
	"verbena/umem"
)

// endpoint is one side of a session on a device: a queue pair with its memory. It lives as long as the session.
type endpoint struct {
	dev      *ib.Device
	pd       *ib.PD
	cq       *ib.CQ
	qp       *ib.QP
	mrs      []*ib.MR
	gidIndex uint8
	addr     qpAddr

	mu     sync.Mutex // held while posting, never while sleeping: handlers take it
	closed bool       // the queue pair may be gone
}

// memory is a piece of this process with the rights that a peer shall have.
type memory struct {
	space  *umem.Local
	addr   uint64
	bytes  []byte
	access ib.AccessFlags
}

func newMemory(n int, access ib.AccessFlags) (*memory, error) {
	m := &memory{space: umem.NewLocal(), bytes: make([]byte, n), access: access}
	var err error
	m.addr, err = m.space.Add(m.bytes)
	return m, err
}

// newEndpoint makes everything on a device, up to the queue pair in INIT. handle is called with each completion, one at a
// time, and may not sleep. What failed is undone.
func newEndpoint(dev *ib.Device, psn uint32, sendQueue, recvQueue int, handle func(*ib.WC), event func(ib.EventType), mem ...*memory) (_ *endpoint, err error) {
	e := &endpoint{dev: dev}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", dev.Name(), errors.Join(err, e.close()))
		}
	}()
	port, err := dev.QueryPort(1)
	if err != nil {
		return nil, err
	}
	e.addr = qpAddr{PSN: psn & 0xffffff, MTU: port.ActiveMTU}
	if e.addr.GID, e.gidIndex, err = pickGID(dev, port.GIDTableLen); err != nil {
		return nil, err
	}
	if e.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	for _, m := range mem {
		mr, err := e.pd.RegMR(ib.MRInit{Space: m.space, Addr: m.addr, Length: uint64(len(m.bytes)), Access: m.access})
		if err != nil {
			return nil, err
		}
		e.mrs = append(e.mrs, mr)
	}
	if e.cq, err = dev.CreateCQ(ib.CQInit{Entries: sendQueue + recvQueue, Handler: func(cq *ib.CQ) { drain(cq, handle) }}); err != nil {
		return nil, err
	}
	if e.qp, err = e.pd.CreateQP(ib.QPInitAttr{
		SendCQ: e.cq, RecvCQ: e.cq, Type: ib.QPTypeRC,
		Cap:   ib.QPCap{MaxSendWR: uint32(sendQueue), MaxRecvWR: uint32(recvQueue), MaxSendSGE: 1, MaxRecvSGE: 1},
		Event: func(_ *ib.QP, t ib.EventType) { event(t) },
	}); err != nil {
		return nil, err
	}
	e.addr.QPN = e.qp.Num()
	if err = e.qp.Modify(ib.QPAttr{State: ib.QPInit, Port: 1, AccessFlags: ib.AccessRemoteRead | ib.AccessRemoteWrite},
		ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags); err != nil {
		return nil, err
	}
	// Armed before anything can complete, so that nothing comes unnoticed.
	_, err = e.cq.ReqNotify(ib.NotifyNextComp)
	return e, err
}

// drain polls until the queue is empty and armed.
func drain(cq *ib.CQ, handle func(*ib.WC)) {
	var wc [32]ib.WC
	for {
		n, err := cq.Poll(wc[:])
		if err != nil {
			return
		}
		for i := range wc[:n] {
			handle(&wc[i])
		}
		if n > 0 {
			continue
		}
		if missed, err := cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed); err != nil || !missed {
			return
		}
	}
}

// pickGID is the first address that is not link-local, since a link-local one may need a scope; else the first.
func pickGID(dev *ib.Device, n int) (ib.GID, uint8, error) {
	found := -1
	var gid ib.GID
	for i := range n {
		g, err := dev.QueryGID(1, i)
		if err != nil || g.GID.IsZero() {
			continue
		}
		local := netip.AddrFrom16(g.GID).Unmap().IsLinkLocalUnicast()
		if found < 0 || !local {
			found, gid = i, g.GID
		}
		if !local {
			break
		}
	}
	if found < 0 {
		return gid, 0, errors.New("port 1 has no address")
	}
	return gid, uint8(found), nil
}

// up connects the queue pair.
func (e *endpoint) up(peer qpAddr) error {
	if !peer.MTU.Valid() {
		return fmt.Errorf("MTU %d of the peer: %w", peer.MTU, syscall.EINVAL)
	}
	mtu := min(peer.MTU, e.addr.MTU)
	if err := e.qp.Modify(ib.QPAttr{
		State: ib.QPRTR, PathMTU: mtu, DestQPN: peer.QPN, RQPSN: peer.PSN, MaxDestRdAtomic: 4, MinRNRTimer: 1,
		AH: ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: peer.GID, SGIDIndex: e.gidIndex, HopLimit: 64}},
	}, ib.QPAttrState|ib.QPAttrAV|ib.QPAttrPathMTU|ib.QPAttrDestQPN|ib.QPAttrRQPSN|ib.QPAttrMaxDestRdAtomic|ib.QPAttrMinRNRTimer); err != nil {
		return err
	}
	// 67 ms and seven retries: half a second without an answer is a lost peer. The requests outlive that.
	return e.qp.Modify(ib.QPAttr{State: ib.QPRTS, Timeout: 14, RetryCnt: 7, RNRRetry: 7, SQPSN: e.addr.PSN, MaxRdAtomic: 4},
		ib.QPAttrState|ib.QPAttrTimeout|ib.QPAttrRetryCnt|ib.QPAttrRNRRetry|ib.QPAttrSQPSN|ib.QPAttrMaxRdAtomic)
}

var errEnded = errors.New("the session has ended")

// send posts; it may be called from anywhere, also when the session has ended.
func (e *endpoint) send(wrs ...ib.SendWR) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errEnded
	}
	_, err := e.qp.PostSend(wrs...)
	return err
}

func (e *endpoint) recv(wr ib.RecvWR) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errEnded
	}
	_, err := e.qp.PostRecv(wr)
	return err
}

// close destroys everything. When it returns no completion is handled any more, and no peer reaches the memory. It sleeps.
func (e *endpoint) close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	var errs []error
	if e.qp != nil {
		errs = append(errs, e.qp.Destroy())
	}
	if e.cq != nil {
		errs = append(errs, e.cq.Destroy())
	}
	for _, mr := range e.mrs {
		errs = append(errs, mr.Dereg())
	}
	if e.pd != nil {
		errs = append(errs, e.pd.Dealloc())
	}
	return errors.Join(errs...)
}
