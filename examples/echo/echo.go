package main

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"verbena/ib"
	"verbena/ib/completion"
)

const (
	slots   = 64                 // number of posted receives, and of replies in flight
	slotLen = grhLen + 1024      // in bytes, for the header and the longest message
	grhLen  = 40                 // length of the GRH before a datagram's data
	key     = uint32(0x65630001) // Q_Key of the service
)

// Echo is a client of the midlayer. On every device it answers each datagram with the same data. Echo follows the
// rules of docs/contract.md; the numbers in the comments are points of this page.
type Echo struct {
	mu   sync.Mutex
	qpns map[string]uint32 // the service's queue pair by device name
}

// Client returns the ib.Client to register.
func (s *Echo) Client() *ib.Client {
	return &ib.Client{Name: "echo", Add: s.addDevice, Remove: s.removeDevice}
}

// QPN returns the number of the service's queue pair on a device, or 0.
func (s *Echo) QPN(device string) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.qpns[device]
}

func (s *Echo) setQPN(device string, qpn uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.qpns == nil {
		s.qpns = map[string]uint32{}
	}
	if s.qpns[device] = qpn; qpn == 0 {
		delete(s.qpns, device)
	}
}

// addDevice starts the service on a device, which is ready for use (point 5).
func (s *Echo) addDevice(d *ib.Device) (any, error) {
	e, err := newEndpoint(d)
	if err != nil {
		return nil, err
	}
	for i := range slots {
		if err := e.serve(i); err != nil {
			return nil, errors.Join(err, e.close())
		}
	}
	s.setQPN(d.Name(), e.qp.Num())
	return e, nil
}

// removeDevice destroys every object of the service (point 5).
func (s *Echo) removeDevice(d *ib.Device, data any) {
	s.setQPN(d.Name(), 0)
	if err := data.(*endpoint).close(); err != nil {
		fmt.Println("echo:", err)
	}
}

// serve receives a message to a slot, replies from the slot, and repeats. The completion functions are called in
// the completion handler, so they may not sleep (point 4). Completion functions may create and destroy address
// handles, and post (point 1).
func (e *endpoint) serve(i int) error {
	return e.postReceive(i, func(wc *ib.WC) {
		if wc.Status != ib.WCSuccess {
			return // the queue pair is being closed
		}
		from := e.here.AddressTo(senderGID(e.slotBytes(i)))
		ah, err := e.pd.CreateAH(&from)
		if err != nil {
			e.serve(i) // the reply address is invalid
			return
		}
		sent := func(*ib.WC) {
			ah.Destroy()
			e.serve(i)
		}
		if e.postSend(i, ah, wc.SrcQP, wc.ByteLen-grhLen, sent) != nil {
			sent(nil)
		}
	})
}

// endpoint is a datagram queue pair with its slots, for the service and for the caller.
type endpoint struct {
	here ib.Local
	pd   *ib.PD
	mr   *ib.MR
	cq   *completion.CQ
	qp   *completion.QP
	mem  []byte
}

// newEndpoint creates the queue pair and moves it to RTS.
func newEndpoint(d *ib.Device) (_ *endpoint, err error) {
	e := &endpoint{mem: make([]byte, slots*slotLen)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.here, err = d.Local(1); err != nil {
		return nil, err
	}
	if e.pd, err = d.AllocPD(); err != nil {
		return nil, err
	}
	if e.mr, err = e.pd.RegBytes(e.mem, ib.AccessLocalWrite); err != nil {
		return nil, err
	}
	if e.cq, err = completion.New(d, completion.Init{Entries: 2 * slots, Context: completion.Callback}); err != nil {
		return nil, err
	}
	if e.qp, err = e.cq.CreateQP(e.pd, ib.QPInitAttr{Type: ib.QPTypeUD,
		Cap: ib.QPCap{MaxSendWR: slots, MaxRecvWR: slots, MaxSendSGE: 1, MaxRecvSGE: 1}}); err != nil {
		return nil, err
	}
	if err = e.qp.ConnectDatagram(e.here, ib.Endpoint{QKey: key}); err != nil {
		return nil, err
	}
	return e, nil
}

// senderGID returns the source address in the header of a datagram. The header of an IPv4 datagram is in the second
// half of the GRH.
func senderGID(buf []byte) ib.GID {
	if buf[0]>>4 == 6 {
		return ib.GID(buf[8:24])
	}
	return ib.GIDFromAddr(netip.AddrFrom4([4]byte(buf[32:36])))
}

func (e *endpoint) slotBytes(i int) []byte { return e.mem[i*slotLen : (i+1)*slotLen] }

func (e *endpoint) slotSGL(i, off int, n uint32) []ib.SGE {
	return []ib.SGE{{Addr: e.mr.Addr() + uint64(i*slotLen+off), Length: n, LKey: e.mr.LKey()}}
}

// postReceive posts a receive to a slot.
func (e *endpoint) postReceive(i int, done completion.Done) error {
	return e.qp.PostRecv(ib.RecvWR{SGList: e.slotSGL(i, 0, slotLen)}, done)
}

// postSend sends n bytes of a slot's data.
func (e *endpoint) postSend(i int, ah *ib.AH, qpn, n uint32, done completion.Done) error {
	return e.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: e.slotSGL(i, grhLen, n), AH: ah, RemoteQPN: qpn,
		RemoteQKey: key}, done)
}

// close destroys all objects. close may sleep, so completion functions must not call it.
func (e *endpoint) close() (err error) {
	if e.qp != nil {
		err = errors.Join(err, e.qp.Destroy()) // all completion functions have returned
	}
	if e.cq != nil {
		err = errors.Join(err, e.cq.Destroy())
	}
	if e.mr != nil {
		err = errors.Join(err, e.mr.Dereg())
	}
	if e.pd != nil {
		err = errors.Join(err, e.pd.Dealloc())
	}
	return err
}
