package main

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"verbena/ib"
)

const (
	slots   = 64                 // receives that are posted, and answers that can be under way
	slotLen = grhLen + 1024      // bytes: a header, and the longest message
	grhLen  = 40                 // bytes before a datagram's data
	key     = uint32(0x65630001) // the Q_Key of the service
)

// Echo is a client of the midlayer: on every device that comes it answers each datagram with the same data. The rules that
// it keeps are those of docs/contract.md; the numbers in the comments are its points.
type Echo struct {
	mu   sync.Mutex
	qpns map[string]uint32 // device name: the service's queue pair
}

// Client is to be registered.
func (s *Echo) Client() *ib.Client {
	return &ib.Client{Name: "echo", Add: s.add, Remove: s.remove}
}

// QPN is the service's queue pair number on a device, 0 if it is not there.
func (s *Echo) QPN(device string) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.qpns[device]
}

func (s *Echo) set(device string, qpn uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.qpns == nil {
		s.qpns = map[string]uint32{}
	}
	if s.qpns[device] = qpn; qpn == 0 {
		delete(s.qpns, device)
	}
}

// add starts the service on a device, which can be used at once (point 5).
func (s *Echo) add(d *ib.Device) (any, error) {
	e, err := newEndpoint(d, (*endpoint).answer)
	if err != nil {
		return nil, err
	}
	for i := range slots {
		if err := e.post(i); err != nil {
			return nil, errors.Join(err, e.close())
		}
	}
	s.set(d.Name(), e.qp.Num())
	return e, nil
}

// remove leaves nothing behind (point 5).
func (s *Echo) remove(d *ib.Device, data any) {
	s.set(d.Name(), 0)
	if err := data.(*endpoint).close(); err != nil {
		fmt.Println("echo:", err)
	}
}

// answer is called in the completion handler, so it may not sleep (point 4): making an address handle, posting and
// destroying an address handle are all allowed there (point 1).
func (e *endpoint) answer(i int, wc *ib.WC) {
	buf := e.slot(i)
	from := ib.AHAttr{GRH: ib.GlobalRoute{DGID: sender(buf), SGIDIndex: e.gidIndex, HopLimit: 64}, HasGRH: true, Port: 1}
	ah, err := e.pd.CreateAH(&from)
	if err != nil {
		e.post(i) // an address that cannot be answered
		return
	}
	e.handles[i] = ah // until the answer has gone
	err = e.send(i, ah, wc.SrcQP, grhLen, wc.ByteLen-grhLen)
	if err != nil {
		e.sent(i)
	}
}

// endpoint is a datagram queue pair with its slots. It is the service's, and the caller's as well.
type endpoint struct {
	pd       *ib.PD
	cq       *ib.CQ
	qp       *ib.QP
	mr       *ib.MR
	mem      []byte
	gid      ib.GID
	gidIndex uint8
	received func(e *endpoint, i int, wc *ib.WC) // in the completion handler; the slot is the callee's until it calls post

	// mu is taken by the handler, which may not sleep, so nothing that sleeps is done under it.
	mu      sync.Mutex
	closed  bool          // the queue pair is not to be used any more
	handles [slots]*ib.AH // of answers that are under way
}

// newEndpoint makes the queue pair and takes it to RTS.
func newEndpoint(d *ib.Device, received func(e *endpoint, i int, wc *ib.WC)) (_ *endpoint, err error) {
	e := &endpoint{received: received, mem: make([]byte, slots*slotLen)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.gid, e.gidIndex, err = firstGID(d); err != nil {
		return nil, err
	}
	if e.pd, err = d.AllocPD(); err != nil {
		return nil, err
	}
	if e.mr, err = e.pd.RegBytes(e.mem, ib.AccessLocalWrite); err != nil {
		return nil, err
	}
	if e.cq, err = d.CreateCQ(ib.CQInit{Entries: 2 * slots, Handler: e.completed}); err != nil {
		return nil, err
	}
	if e.qp, err = e.pd.CreateQP(ib.QPInitAttr{
		SendCQ: e.cq, RecvCQ: e.cq, Type: ib.QPTypeUD,
		Cap: ib.QPCap{MaxSendWR: slots, MaxRecvWR: slots, MaxSendSGE: 1, MaxRecvSGE: 1},
	}); err != nil {
		return nil, err
	}
	for _, step := range []struct {
		state ib.QPState
		mask  ib.QPAttrMask
	}{
		{ib.QPInit, ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrQKey},
		{ib.QPRTR, 0},
		{ib.QPRTS, ib.QPAttrSQPSN},
	} {
		if err = e.qp.Modify(ib.QPAttr{State: step.state, Port: 1, QKey: key}, ib.QPAttrState|step.mask); err != nil {
			return nil, err
		}
	}
	// Armed before anything is posted, so that no completion comes too early to be reported (point 3).
	_, err = e.cq.ReqNotify(ib.NotifyNextComp)
	return e, err
}

// firstGID is the first address of port 1.
func firstGID(d *ib.Device) (ib.GID, uint8, error) {
	port, err := d.QueryPort(1)
	for i := 0; err == nil && i < port.GIDTableLen; i++ {
		var g ib.GIDEntry
		if g, err = d.QueryGID(1, i); err == nil && !g.GID.IsZero() {
			return g.GID, uint8(i), nil
		}
	}
	return ib.GID{}, 0, errors.Join(err, fmt.Errorf("%s: port 1 has no address", d.Name()))
}

// sender is the source address in the header before a datagram's data, which for IPv4 is in its second half.
func sender(buf []byte) ib.GID {
	if buf[0]>>4 == 6 {
		return ib.GID(buf[8:24])
	}
	return ib.GIDFromAddr(netip.AddrFrom4([4]byte(buf[32:36])))
}

func (e *endpoint) slot(i int) []byte { return e.mem[i*slotLen : (i+1)*slotLen] }

func (e *endpoint) sge(i, off int, n uint32) []ib.SGE {
	return []ib.SGE{{Addr: e.mr.Addr() + uint64(i*slotLen+off), Length: n, LKey: e.mr.LKey()}}
}

// post gives a slot to the receive queue.
func (e *endpoint) post(i int) error {
	_, err := e.qp.PostRecv(ib.RecvWR{ID: uint64(i), SGList: e.sge(i, 0, slotLen)})
	return err
}

// send sends n bytes at an offset of a slot; sent is called when they have gone.
func (e *endpoint) send(i int, ah *ib.AH, qpn uint32, off int, n uint32) error {
	_, err := e.qp.PostSend(ib.SendWR{
		ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: e.sge(i, off, n), AH: ah, RemoteQPN: qpn, RemoteQKey: key,
	})
	return err
}

// completed is the completion handler. One of them runs at a time (point 3).
func (e *endpoint) completed(cq *ib.CQ) {
	var wc [16]ib.WC
	for {
		n, err := cq.Poll(wc[:])
		if err != nil {
			return
		}
		e.mu.Lock()
		for i := range wc[:n] {
			if !e.closed { // else the queue pair may be gone (point 5)
				e.handle(&wc[i])
			}
		}
		e.mu.Unlock()
		if n > 0 {
			continue
		}
		// What came since the last poll is either reported here or by another call (point 3).
		if missed, err := cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed); err != nil || !missed {
			return
		}
	}
}

func (e *endpoint) handle(wc *ib.WC) {
	i := int(wc.ID)
	switch {
	case wc.Opcode == ib.WCSend || wc.Status != ib.WCSuccess && e.handles[i] != nil:
		e.sent(i)
	case wc.Status == ib.WCSuccess:
		e.received(e, i, wc)
	}
}

// sent frees what an answer needed, and receives into the slot again.
func (e *endpoint) sent(i int) {
	if ah := e.handles[i]; ah != nil {
		e.handles[i] = nil
		ah.Destroy()
		e.post(i)
	}
}

// close destroys everything. It sleeps, so it is not called from the handler.
func (e *endpoint) close() error {
	e.mu.Lock() // a handler that is running has finished with the queue pair, or will not begin
	e.closed = true
	e.mu.Unlock()
	var errs []error
	if e.qp != nil {
		errs = append(errs, e.qp.Destroy())
	}
	if e.cq != nil {
		errs = append(errs, e.cq.Destroy()) // no handler runs any more
	}
	for _, ah := range e.handles {
		if ah != nil {
			errs = append(errs, ah.Destroy())
		}
	}
	if e.mr != nil {
		errs = append(errs, e.mr.Dereg())
	}
	if e.pd != nil {
		errs = append(errs, e.pd.Dealloc())
	}
	return errors.Join(errs...)
}
