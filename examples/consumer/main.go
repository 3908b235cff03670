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

// clientSession holds the objects of the client on one device.
type clientSession struct {
	pd  *ib.PD
	mr  *ib.MR
	cq  *completion.CQ
	qp  *completion.QP
	buf []byte // the message, followed by a receive buffer of the same size
}

const messageText = "hello from a consumer"

// receiveResult is the received message, or the first error.
type receiveResult struct {
	text string
	err  error
}

var firstResult = make(chan receiveResult, 1)

// sendResult sends the first result to done, and drops later ones. sendResult never blocks, because the completion
// handler calls it too.
func sendResult(r receiveResult) {
	select {
	case firstResult <- r:
	default:
	}
}

// addDevice is called for each new device. The device is ready for use. It may sleep. If addDevice returns an error, it
// has destroyed all its objects.
func addDevice(d *ib.Device) (any, error) {
	s := &clientSession{buf: make([]byte, 2*len(messageText))}
	if err := s.createObjects(d); err != nil {
		sendResult(receiveResult{err: err})
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// removeDevice is called before the device is unregistered. It may sleep. removeDevice destroys every object that add
// has created.
func removeDevice(_ *ib.Device, data any) {
	if err := data.(*clientSession).close(); err != nil {
		log.Print(err)
	}
}

func (s *clientSession) createObjects(d *ib.Device) (err error) {
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
	n := copy(s.buf, messageText)
	if err := s.qp.PostRecv(ib.RecvWR{SGList: s.sglAt(n, n)}, s.handleReceive); err != nil {
		return err
	}
	return s.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: s.sglAt(0, n)}, func(wc *ib.WC) {
		if wc.Status != ib.WCSuccess {
			sendResult(receiveResult{err: fmt.Errorf("send: %v", wc.Status)})
		}
	})
}

func (s *clientSession) sglAt(at, n int) []ib.SGE {
	return []ib.SGE{{Addr: s.mr.Addr() + uint64(at), Length: uint32(n), LKey: s.mr.LKey()}}
}

// handleReceive runs in the completion handler, so it must not sleep, and therefore not print.
func (s *clientSession) handleReceive(wc *ib.WC) {
	if wc.Status != ib.WCSuccess { // this branch also handles the flush error of a device reset
		sendResult(receiveResult{err: fmt.Errorf("receive: %v", wc.Status)})
		return
	}
	sendResult(receiveResult{text: string(s.buf[len(messageText):][:wc.ByteLen])})
}

// close destroys the objects in the reverse order of creation. Every completion function has run once the queue
// pair's Destroy has returned.
func (s *clientSession) close() (err error) {
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
	client := &ib.Client{Name: "consumer", Add: addDevice, Remove: removeDevice}
	if err := core.RegisterClient(client); err != nil {
		return err
	}
	defer core.UnregisterClient(client)
	d := loopback.New("loop0", log.Printf) // rxe.New would also work: the consumer does not depend on the driver
	if err := core.Register(d.Handle()); err != nil {
		return err
	}
	r := <-firstResult
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
