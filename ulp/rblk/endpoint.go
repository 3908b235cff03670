package rblk

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"verbena/ib"
	"verbena/ib/completion"
	"verbena/umem"
)

// endpoint is one side of a session on a device: a queue pair with its memory. It lives as long as the session.
type endpoint struct {
	dev  *ib.Device
	here ib.Local
	pd   *ib.PD
	cq   *completion.CQ
	qp   *completion.QP
	mrs  []*ib.MR
	addr qpAddr
	done completion.Done

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
func newEndpoint(dev *ib.Device, sendQueue, recvQueue int, handle func(*ib.WC), event func(ib.EventType), mem ...*memory) (_ *endpoint, err error) {
	e := &endpoint{dev: dev}
	e.done = func(wc *ib.WC) {
		if !e.isClosed() { // else it is flushed, and the session has ended
			handle(wc)
		}
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", dev.Name(), errors.Join(err, e.close()))
		}
	}()
	if e.here, err = dev.Local(1); err != nil {
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
	if e.cq, err = completion.New(dev, completion.Init{Entries: sendQueue + recvQueue, Context: completion.Callback}); err != nil {
		return nil, err
	}
	if e.qp, err = e.cq.CreateQP(e.pd, ib.QPInitAttr{
		Type:  ib.QPTypeRC,
		Cap:   ib.QPCap{MaxSendWR: uint32(sendQueue), MaxRecvWR: uint32(recvQueue), MaxSendSGE: 1, MaxRecvSGE: 1},
		Event: func(_ *ib.QP, t ib.EventType) { event(t) },
	}); err != nil {
		return nil, err
	}
	own := e.here.Endpoint(e.qp.QP)
	e.addr = qpAddr{GID: own.GID, QPN: own.QPN, PSN: own.PSN, MTU: own.MTU}
	if err = e.qp.Prepare(e.here, ib.AccessRemoteRead|ib.AccessRemoteWrite); err != nil {
		return nil, err
	}
	return e, nil
}

func (a qpAddr) endpoint() ib.Endpoint {
	return ib.Endpoint{GID: a.GID, QPN: a.QPN, PSN: a.PSN, MTU: a.MTU}
}

// up connects the queue pair.
func (e *endpoint) up(peer qpAddr) error {
	if !peer.MTU.Valid() {
		return fmt.Errorf("MTU %d of the peer: %w", peer.MTU, syscall.EINVAL)
	}
	// Seven retries of 67 ms: half a second without an answer is a lost peer. The requests outlive that.
	return e.qp.Connect(e.here, e.addr.endpoint(), peer.endpoint(), ib.Path{MaxRdAtomic: 4, Timeout: 14, RetryCnt: 7})
}

func (e *endpoint) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

var errEnded = errors.New("the session has ended")

// send posts; it may be called from anywhere, also when the session has ended.
func (e *endpoint) send(wrs ...ib.SendWR) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errEnded
	}
	for _, wr := range wrs {
		done := e.done
		if wr.Flags&ib.SendSignaled == 0 { // only a failure is of interest
			done = func(wc *ib.WC) {
				if wc.Status != ib.WCSuccess {
					e.done(wc)
				}
			}
		}
		if err := e.qp.PostSend(wr, done); err != nil {
			return err
		}
	}
	return nil
}

func (e *endpoint) recv(wr ib.RecvWR) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errEnded
	}
	return e.qp.PostRecv(wr, e.done)
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
