// Package page is a minimal upper-level protocol, short enough for one page of source. Clients of the protocol draw
// numbered tickets from a counter with RDMA atomics.
//
// On each device, a client has a counter in registered memory, and a queue pair that is connected to itself. On a
// network the peer would be on another host. FETCH AND ADD draws a ticket without executing code at the counter's
// owner. The counter outlives the device: after a reset or an unplug the numbers continue, and no number is drawn
// twice.
//
// Numbers in brackets are points of docs/contract.md.
package page

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/ib/completion"
)

// Tickets is a client of the midlayer. The zero Tickets is ready for use: register its Client.
type Tickets struct{ counters sync.Map } // a *counter by device name

// Client returns the ib.Client to register.
func (t *Tickets) Client() *ib.Client {
	return &ib.Client{Name: "tickets", Add: t.add, Remove: t.remove}
}

// counter persists when the device with its name is removed.
type counter struct {
	drawing sync.Mutex              // held while a ticket is drawn, which may sleep
	mem     []byte                  // 8 bytes for the counter, and 8 for the result
	s       atomic.Pointer[session] // nil while no device is registered
}

// session holds the client's objects on a device, from Add to Remove.
type session struct {
	mr   *ib.MR
	qp   *completion.QP
	undo []func() error // destroys the objects in reverse order of creation
}

func (t *Tickets) counter(device string) *counter {
	c, _ := t.counters.LoadOrStore(device, &counter{mem: make([]byte, 16)})
	return c.(*counter)
}

// Next draws a ticket. Next returns ENODEV without such a device, ESHUTDOWN if the device is being removed, and EIO
// if the device fails meanwhile. After EIO a number may be lost. It may sleep.
func (t *Tickets) Next(device string) (ticket uint64, err error) {
	c := t.counter(device)
	c.drawing.Lock()
	defer c.drawing.Unlock()
	s, status := c.s.Load(), make(chan ib.WCStatus, 1) // buffered, so the callback does not block [4]
	if s == nil {
		return 0, fmt.Errorf("draw a ticket on %s: %w", device, syscall.ENODEV)
	}
	wr := ib.SendWR{Opcode: ib.WRAtomicFetchAdd, RemoteAddr: s.mr.Addr(), RKey: s.mr.RKey(), CompareAdd: 1,
		SGList: []ib.SGE{{Addr: s.mr.Addr() + 8, Length: 8, LKey: s.mr.LKey()}}}
	// PostSend returns ESHUTDOWN if the device is being removed.
	if err := s.qp.PostSend(wr, func(wc *ib.WC) { status <- wc.Status }); err != nil {
		return 0, fmt.Errorf("draw a ticket on %s: %w", device, err)
	}
	if st := <-status; st != ib.WCSuccess { // also sent if remove flushes the request
		return 0, fmt.Errorf("draw a ticket on %s: %v: %w", device, st, syscall.EIO)
	}
	return binary.NativeEndian.Uint64(c.mem[8:]), nil
}

// add is called for each new device. If add returns an error, it has destroyed all its objects [5].
func (t *Tickets) add(d *ib.Device) (any, error) {
	c, s := t.counter(d.Name()), &session{}
	if err := s.createObjects(d, c.mem); err != nil {
		return nil, errors.Join(err, s.close())
	}
	c.s.Store(s)
	return s, nil
}

// remove is called before a device is unregistered. remove flushes the requests in flight.
func (t *Tickets) remove(d *ib.Device, data any) {
	t.counter(d.Name()).s.Store(nil)
	if err := data.(*session).close(); err != nil {
		log.Print(err)
	}
}

func (s *session) createObjects(d *ib.Device, mem []byte) error {
	here, err := d.Local(1)
	if err != nil {
		return err
	}
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	s.undo = append(s.undo, pd.Dealloc)
	if s.mr, err = pd.RegBytes(mem, ib.AccessLocalWrite|ib.AccessRemoteAtomic); err != nil {
		return err
	}
	s.undo = append(s.undo, s.mr.Dereg)
	cq, err := completion.New(d, completion.Init{Entries: 1, Context: completion.Callback})
	if err != nil {
		return err
	}
	s.undo = append(s.undo, cq.Destroy)
	init := ib.QPInitAttr{Type: ib.QPTypeRC, Cap: ib.QPCap{MaxSendWR: 1, MaxSendSGE: 1}}
	if s.qp, err = cq.CreateQP(pd, init); err != nil {
		return err
	}
	s.undo = append(s.undo, s.qp.Destroy) // returns after the completion functions of all requests in flight have returned
	self := here.Endpoint(s.qp.QP)
	return s.qp.Connect(here, self, self, ib.Path{Access: ib.AccessRemoteAtomic})
}

func (s *session) close() (err error) {
	for i := len(s.undo) - 1; i >= 0; i-- {
		err = errors.Join(err, s.undo[i]())
	}
	return err
}
