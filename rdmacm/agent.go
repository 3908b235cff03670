package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"verbena/ib"
	"verbena/ib/completion"
	"verbena/rdmacm/msg"
	"verbena/roce"
)

// agent owns the general services queue pair of a device's port, and exchanges datagrams over it (struct ib_mad_agent).
type agent struct {
	m     *Manager
	dev   *ib.Device
	guid  uint64 // GUID of the node
	delay uint8  // the local ACK delay of the device
	port  int

	pd  *ib.PD
	cq  *completion.CQ
	qp  *completion.QP
	buf []byte // slots, first for receives and then for sends
	mr  *ib.MR

	mu     sync.Mutex
	in     []ib.WC       // completions of received datagrams
	out    []datagram    // datagrams that wait for a slot, oldest first
	free   []int         // free slots for sends
	closed bool          // sending and receiving have ended
	wake   chan struct{} // wakes run
	end    sync.WaitGroup
}

// datagram is an outgoing message.
type datagram struct {
	to  ib.AHAttr
	mad [msg.Len]byte
}

const (
	// maxReceives and maxSends limit the datagrams of the queue pair. A small device supports fewer.
	maxReceives = 256
	maxSends    = 64
	// agentBacklog limits the datagrams that wait to be sent. The agent drops further datagrams, as a network does.
	agentBacklog = 4096

	slotLen = roce.GRHLen + msg.Len
)

// newAgent creates the agent of a device. It may sleep.
func newAgent(m *Manager, dev *ib.Device) (_ *agent, err error) {
	a := &agent{m: m, dev: dev, port: 1, wake: make(chan struct{}, 1)}
	attr, err := dev.QueryDevice()
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", dev.Name(), err)
	}
	a.guid, a.delay = attr.NodeGUID, attr.LocalCAAckDelay
	sends := max(1, min(maxSends, attr.MaxQPWR, attr.MaxCQE/4))
	receives := max(1, min(maxReceives, attr.MaxQPWR, attr.MaxCQE-sends))
	defer func() {
		if err != nil {
			a.close()
			err = fmt.Errorf("connection manager of %s: %w", dev.Name(), err)
		}
	}()
	if a.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	a.buf = make([]byte, (receives+sends)*slotLen)
	if a.mr, err = a.pd.RegBytes(a.buf, ib.AccessLocalWrite); err != nil {
		return nil, err
	}
	// Fail is called in atomic context.
	fail := func(err error) { go m.cfg.Log.Warn("connection manager", "dev", dev.Name(), "err", err) }
	if a.cq, err = completion.New(dev, completion.Init{Entries: receives + sends, Context: completion.Callback,
		Failed: fail}); err != nil {
		return nil, err
	}
	if a.qp, err = a.cq.CreateQP(a.pd, ib.QPInitAttr{
		Type: ib.QPTypeGSI, Port: uint8(a.port),
		Cap: ib.QPCap{MaxSendWR: uint32(sends), MaxRecvWR: uint32(receives), MaxSendSGE: 1, MaxRecvSGE: 1},
	}); err != nil {
		return nil, err
	}
	for _, step := range [...]struct {
		state ib.QPState
		mask  ib.QPAttrMask
	}{{ib.QPInit, ib.QPAttrPKeyIndex | ib.QPAttrQKey}, {ib.QPRTR, 0}, {ib.QPRTS, ib.QPAttrSQPSN}} {
		if err = a.qp.Modify(ib.QPAttr{State: step.state, QKey: roce.GSIQKey}, ib.QPAttrState|step.mask); err != nil {
			return nil, err
		}
	}
	for i := range receives {
		if err = a.postReceive(i); err != nil {
			return nil, err
		}
	}
	for i := range sends {
		a.free = append(a.free, receives+i)
	}
	a.end.Go(a.run)
	return a, nil
}

// close frees all resources. It may sleep. The caller must not hold a lock of the manager.
func (a *agent) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.wakeRunLoop()
	a.end.Wait()
	var errs []error
	if a.qp != nil {
		errs = append(errs, a.qp.Close(context.Background()))
	}
	if a.cq != nil {
		errs = append(errs, a.cq.Destroy())
	}
	if a.mr != nil {
		errs = append(errs, a.mr.Dereg())
	}
	if a.pd != nil {
		errs = append(errs, a.pd.Dealloc())
	}
	if err := errors.Join(errs...); err != nil {
		a.m.cfg.Log.Warn("close the connection manager", "dev", a.dev.Name(), "err", err)
	}
}

func (a *agent) slotBuffer(i int) []byte { return a.buf[i*slotLen:][:slotLen] }

func (a *agent) slotSGL(i, off, n int) []ib.SGE {
	return []ib.SGE{{Addr: a.mr.Addr() + uint64(i*slotLen+off), Length: uint32(n), LKey: a.mr.LKey()}}
}

// postReceive posts the receive of a slot.
func (a *agent) postReceive(i int) error {
	return a.qp.PostRecv(ib.RecvWR{ID: uint64(i), SGList: a.slotSGL(i, 0, slotLen)}, a.handleCompletion)
}

// handleCompletion processes the completion of a datagram. handleCompletion may not sleep. After an error the queue
// pair receives no further datagrams, because its device is about to be removed.
func (a *agent) handleCompletion(wc *ib.WC) {
	if wc.Status == ib.WCWRFlushErr {
		return
	}
	a.mu.Lock()
	if !a.closed {
		a.in = append(a.in, *wc)
	}
	a.mu.Unlock()
	a.wakeRunLoop()
}

func (a *agent) handleDatagram(wc *ib.WC, b []byte) {
	tid, m, err := msg.Parse(b[roce.GRHLen:])
	if err != nil {
		a.m.stats.Malformed.Add(1)
		return
	}
	from, err := a.dev.AddressOfSender(a.port, wc, b)
	if err != nil {
		a.m.stats.Malformed.Add(1)
		return
	}
	a.m.receiveMessage(a, receivedMessage{from: from, tid: tid, m: m})
}

// queueMessage queues a message. queueMessage does not sleep.
func (a *agent) queueMessage(to ib.AHAttr, tid uint64, m msg.Message) {
	d := datagram{to: to}
	msg.Append(d.mad[:0], tid, m)
	a.queueDatagram(&d)
}

// queueDatagram queues a datagram that may have been sent before.
func (a *agent) queueDatagram(d *datagram) {
	a.mu.Lock()
	if !a.closed && len(a.out) < agentBacklog {
		a.out = append(a.out, *d)
	}
	a.mu.Unlock()
	a.wakeRunLoop()
}

func (a *agent) wakeRunLoop() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run processes received datagrams and sends queued ones until the agent is closed. run still sends the datagrams
// queued before the close, such as the messages that end connections.
func (a *agent) run() {
	for {
		a.mu.Lock()
		closed := a.closed
		in := a.in
		a.in = nil
		a.mu.Unlock()
		for i := range in {
			wc := &in[i]
			if wc.Status == ib.WCSuccess && wc.ByteLen == slotLen && !closed {
				a.m.containPanic(func() { a.handleDatagram(wc, a.slotBuffer(int(wc.ID))) })
			}
			_ = a.postReceive(int(wc.ID))
		}
		a.mu.Lock()
		var d datagram
		slot := -1
		if n := len(a.free); n > 0 && len(a.out) > 0 {
			d, a.out = a.out[0], a.out[1:]
			slot, a.free = a.free[n-1], a.free[:n-1]
		}
		if len(a.out) == 0 {
			a.out = nil
		}
		a.mu.Unlock()
		switch {
		case slot >= 0:
			if err := a.postSend(slot, &d); err != nil {
				a.freeSlot(slot)
			}
		case len(in) > 0:
		case closed:
			return
		default:
			<-a.wake
		}
	}
}

// postSend sends a datagram from a slot.
func (a *agent) postSend(slot int, d *datagram) error {
	ah, err := a.pd.CreateAH(&d.to)
	if err != nil {
		return err
	}
	copy(a.slotBuffer(slot), d.mad[:])
	err = a.qp.PostSend(ib.SendWR{
		Opcode: ib.WRSend, SGList: a.slotSGL(slot, 0, msg.Len), AH: ah, RemoteQPN: roce.QPNGSI, RemoteQKey: roce.GSIQKey,
	}, func(*ib.WC) {
		_ = ah.Destroy()
		a.freeSlot(slot)
	})
	if err != nil {
		_ = ah.Destroy()
	}
	return err
}

func (a *agent) freeSlot(slot int) {
	a.mu.Lock()
	a.free = append(a.free, slot)
	a.mu.Unlock()
	a.wakeRunLoop()
}

// gidIndex returns the index of an address in the GID table of the agent's port.
func (a *agent) gidIndex(g ib.GID) (int, error) {
	port, i, err := a.dev.FindGID(g, ib.GIDTypeRoCEv2)
	if err == nil && port != a.port {
		err = syscall.EADDRNOTAVAIL
	}
	return i, err
}
