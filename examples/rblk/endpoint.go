package rblk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"verbena/ib"
	"verbena/ib/completion"
	"verbena/umem"
)

// endpoint is one side of a session on a device: a queue pair and its memory. An endpoint exists as long as its
// session.
type endpoint struct {
	dev  *ib.Device
	pd   *ib.PD
	cq   *completion.CQ
	qp   *completion.QP
	mrs  []*ib.MR
	talk *endpointMemory // the login or welcome to send, and later the received one
	said *ib.MR          // region of talk
	done completion.Done

	mu      sync.Mutex // held while posting, never while sleeping, because handlers lock it
	closed  bool       // set once the queue pair may be destroyed
	probing bool       // a probe is in flight
}

// endpointMemory is memory of this process, with the access rights that the peer has.
type endpointMemory struct {
	space  *umem.Local
	addr   uint64
	bytes  []byte
	access ib.AccessFlags
}

func newMemory(n int, access ib.AccessFlags) (*endpointMemory, error) {
	m := &endpointMemory{space: umem.NewLocal(), bytes: make([]byte, n), access: access}
	var err error
	m.addr, err = m.space.Add(m.bytes)
	return m, err
}

// newEndpoint creates the objects on a device. The queues have additional entries for the first messages and for a
// probe. The function handle is called for each completion, one at a time, and may not sleep. After an error
// newEndpoint has destroyed all objects.
func newEndpoint(dev *ib.Device, sendQueue, recvQueue int, handle func(*ib.WC), event func(ib.EventType),
	mem ...*endpointMemory) (_ *endpoint, err error) {
	e := &endpoint{dev: dev}
	e.done = func(wc *ib.WC) {
		if !e.isClosed() { // otherwise the completion is a flush, and the session has ended
			handle(wc)
		}
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", dev.Name(), errors.Join(err, e.close()))
		}
	}()
	if e.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	for _, m := range mem {
		mr, err := e.registerMemory(m)
		if err != nil {
			return nil, err
		}
		e.mrs = append(e.mrs, mr)
	}
	if e.talk, err = newMemory(2*maxHandshakeLen, ib.AccessLocalWrite); err != nil {
		return nil, err
	}
	if e.said, err = e.registerMemory(e.talk); err != nil {
		return nil, err
	}
	if e.cq, err = completion.New(dev, completion.Init{Entries: sendQueue + recvQueue + 3,
		Context: completion.Callback}); err != nil {
		return nil, err
	}
	if e.qp, err = e.cq.CreateQP(e.pd, ib.QPInitAttr{
		Type:  ib.QPTypeRC,
		Cap:   ib.QPCap{MaxSendWR: uint32(sendQueue + 2), MaxRecvWR: uint32(recvQueue + 1), MaxSendSGE: 1, MaxRecvSGE: 1},
		Event: func(_ *ib.QP, t ib.EventType) { event(t) },
	}); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *endpoint) registerMemory(m *endpointMemory) (*ib.MR, error) {
	return e.pd.RegMR(ib.MRInit{Space: m.space, Addr: m.addr, Length: uint64(len(m.bytes)), Access: m.access})
}

// postLoginReceive posts the receive for the peer's login or welcome. This receive must be the first receive.
func (e *endpoint) postLoginReceive() error {
	return e.postRecv(ib.RecvWR{ID: ofHello, SGList: []ib.SGE{{Addr: e.talk.addr + maxHandshakeLen,
		Length: maxHandshakeLen,
		LKey:   e.said.LKey()}}})
}

// receivedHandshakeBytes returns the received login or welcome.
func (e *endpoint) receivedHandshakeBytes(wc *ib.WC) []byte {
	return bytes.Clone(e.talk.bytes[maxHandshakeLen:][:min(wc.ByteLen, maxHandshakeLen)])
}

// sendHandshake sends a login or a welcome. It may be called once.
func (e *endpoint) sendHandshake(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxHandshakeLen {
		return fmt.Errorf("a message of %d bytes: %w", len(b), syscall.EMSGSIZE)
	}
	copy(e.talk.bytes, b)
	return e.postSends(ib.SendWR{
		ID: ofReply, Opcode: ib.WRSend, Flags: ib.SendSignaled,
		SGList: []ib.SGE{{Addr: e.talk.addr, Length: uint32(len(b)), LKey: e.said.LKey()}},
	})
}

func (e *endpoint) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

var errSessionEnded = errors.New("the session has ended")

// postSends posts work requests. Any thread may call it, also after the end of the session.
func (e *endpoint) postSends(wrs ...ib.SendWR) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errSessionEnded
	}
	for _, wr := range wrs {
		done := e.done
		if wr.Flags&ib.SendSignaled == 0 { // a successful probe needs no action
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

// probePeer sends an RDMA WRITE of zero bytes to the peer, unless a probe is in flight. If the probe is lost, the queue
// pair fails, as after any other work request. Any thread may call probe.
func (e *endpoint) probePeer() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.probing {
		return nil
	}
	err := e.qp.PostSend(ib.SendWR{ID: ofReply, Opcode: ib.WRRDMAWrite}, func(wc *ib.WC) {
		e.mu.Lock()
		e.probing = false
		e.mu.Unlock()
		e.done(wc)
	})
	e.probing = err == nil
	return err
}

func (e *endpoint) postRecv(wr ib.RecvWR) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errSessionEnded
	}
	return e.qp.PostRecv(wr, e.done)
}

// close destroys all objects. Once close has returned, no completion is handled, and the peer cannot access the
// memory. It sleeps.
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
	for _, mr := range append(e.mrs, e.said) {
		if mr != nil {
			errs = append(errs, mr.Dereg())
		}
	}
	if e.pd != nil {
		errs = append(errs, e.pd.Dealloc())
	}
	return errors.Join(errs...)
}
