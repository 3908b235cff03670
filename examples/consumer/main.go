// Consumer is a complete client of the midlayer. On each new device the consumer sends a message to itself, and
// destroys all its objects at the end. docs/contract.md explains its rules.
package main

import (
	"errors"
	"fmt"
	"log"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/completion"
)

// session holds the objects of the client on one device.
type session struct {
	pd  *ib.PD
	mr  *ib.MR
	cq  *completion.CQ
	qp  *completion.QP
	buf []byte // the message, followed by a receive buffer of the same size
}

const text = "hello from a consumer"

// result is the received message, or the first error.
type result struct {
	text string
	err  error
}

var done = make(chan result, 1)

// report sends the first result to done, and drops later ones. report never blocks, because the completion handler
// calls it too.
func report(r result) {
	select {
	case done <- r:
	default:
	}
}

// add is called for each new device. The device is ready for use. It may sleep. If add returns an error, it has
// destroyed all its objects.
func add(d *ib.Device) (any, error) {
	s := &session{buf: make([]byte, 2*len(text))}
	if err := s.open(d); err != nil {
		report(result{err: err})
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// remove is called before the device is unregistered. It may sleep. remove destroys every object that add has
// created.
func remove(_ *ib.Device, data any) {
	if err := data.(*session).close(); err != nil {
		log.Print(err)
	}
}

func (s *session) open(d *ib.Device) (err error) {
	here, err := d.Local(1)
	if err != nil {
		return err
	}
	if s.pd, err = d.AllocPD(); err != nil {
		return err
	}
	if s.mr, err = s.pd.RegBytes(s.buf, ib.AccessLocalWrite); err != nil {
		return err
	}
	if s.cq, err = completion.New(d, completion.Init{Entries: 4, Context: completion.Callback}); err != nil {
		return err
	}
	if s.qp, err = s.cq.CreateQP(s.pd, ib.QPInitAttr{Type: ib.QPTypeRC,
		Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}); err != nil {
		return err
	}
	self := here.Endpoint(s.qp.QP) // a peer on another host would send its own endpoint
	if err := s.qp.Connect(here, self, self, ib.Path{}); err != nil {
		return err
	}
	n := copy(s.buf, text)
	if err := s.qp.PostRecv(ib.RecvWR{SGList: s.sgl(n, n)}, s.received); err != nil {
		return err
	}
	return s.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: s.sgl(0, n)}, func(wc *ib.WC) {
		if wc.Status != ib.WCSuccess {
			report(result{err: fmt.Errorf("send: %v", wc.Status)})
		}
	})
}

func (s *session) sgl(at, n int) []ib.SGE {
	return []ib.SGE{{Addr: s.mr.Addr() + uint64(at), Length: uint32(n), LKey: s.mr.LKey()}}
}

// received runs in the completion handler, so it must not sleep, and therefore not print.
func (s *session) received(wc *ib.WC) {
	if wc.Status != ib.WCSuccess { // this branch also handles the flush error of a device reset
		report(result{err: fmt.Errorf("receive: %v", wc.Status)})
		return
	}
	report(result{text: string(s.buf[len(text):][:wc.ByteLen])})
}

// close destroys the objects in the reverse order of creation. Every completion function has run once the queue
// pair's Destroy has returned.
func (s *session) close() (err error) {
	if s.qp != nil {
		err = errors.Join(err, s.qp.Destroy())
	}
	if s.cq != nil {
		err = errors.Join(err, s.cq.Destroy())
	}
	if s.mr != nil {
		err = errors.Join(err, s.mr.Dereg())
	}
	if s.pd != nil {
		err = errors.Join(err, s.pd.Dealloc())
	}
	return err
}

func run() error {
	var core ib.Core
	check.On(&core, check.Config{Report: func(v check.Violation) { log.Fatal(v) }})
	client := &ib.Client{Name: "consumer", Add: add, Remove: remove}
	if err := core.RegisterClient(client); err != nil {
		return err
	}
	defer core.UnregisterClient(client)
	d := loopback.New("loop0", log.Printf) // rxe.New would also work: the consumer does not depend on the driver
	if err := core.Register(d.Handle()); err != nil {
		return err
	}
	r := <-done
	if r.err == nil {
		fmt.Println(r.text)
	}
	return errors.Join(r.err, core.Unregister(d.Handle()))
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
