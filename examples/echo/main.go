// Command echo runs an upper-level protocol and its device in one process: a service that answers every datagram,
// and a caller. The example shows how a client follows devices, and which calls docs/contract.md allows in which
// context.
//
//	go run ./examples/echo hello world
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
	"time"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/check"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("echo: ")
	words := os.Args[1:]
	if len(words) == 0 {
		words = []string{"hello"}
	}
	if err := run(words); err != nil {
		log.Fatal(err)
	}
}

// run starts the service, registers a device, calls the service, and unregisters the device.
func run(words []string) error {
	var core ib.Core
	check.On(&core, check.Config{Report: func(v check.Violation) { log.Print(v) }})
	var service Echo
	client := service.Client()
	if err := core.RegisterClient(client); err != nil {
		return err
	}
	defer core.UnregisterClient(client)
	d := loopback.New("loop0", log.Printf)
	if err := core.Register(d.Handle()); err != nil {
		return err
	}
	err := func() error {
		c, err := dial(d.IB(), service.QPN(d.IB().Name()))
		if err != nil {
			return err
		}
		for _, w := range words {
			var answer []byte
			if answer, err = c.call([]byte(w), time.Second); err != nil {
				break
			}
			fmt.Println(string(answer))
		}
		return errors.Join(err, c.close())
	}()
	return errors.Join(err, core.Unregister(d.Handle()))
}

// caller sends messages to a service and waits for the answers, one at a time.
type caller struct {
	*endpoint
	ah      *ib.AH
	qpn     uint32
	answers chan []byte
}

var errNoAnswer = errors.New("time out, because datagrams may be lost")

// dial creates a caller for the queue pair qpn on the same device.
func dial(d *ib.Device, qpn uint32) (*caller, error) {
	c := &caller{qpn: qpn, answers: make(chan []byte, 1)}
	var err error
	if c.endpoint, err = newEndpoint(d); err != nil {
		return nil, err
	}
	to := c.here.AddressTo(c.here.GID)
	if c.ah, err = c.pd.CreateAH(&to); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// handleAnswer runs in the completion handler, so it delivers the reply without waiting (point 4).
func (c *caller) handleAnswer(wc *ib.WC) {
	if wc.Status != ib.WCSuccess {
		return
	}
	select {
	case c.answers <- slices.Clone(c.slotBytes(0)[grhLen:wc.ByteLen]):
	default: // the caller has timed out
	}
}

// call sends a message of at most 1024 bytes, and returns the answer.
func (c *caller) call(message []byte, timeout time.Duration) ([]byte, error) {
	select {
	case <-c.answers: // late answer to the previous call
	default:
	}
	n := copy(c.slotBytes(1)[grhLen:], message)
	if err := c.postReceive(0, c.handleAnswer); err != nil {
		return nil, err
	}
	sent := make(chan struct{})
	if err := c.postSend(1, c.ah, c.qpn, uint32(n), func(*ib.WC) { close(sent) }); err != nil {
		return nil, err
	}
	defer func() { <-sent }() // the answer does not prove that the device no longer reads the message (point 1)
	select {
	case answer := <-c.answers:
		return answer, nil
	case <-time.After(timeout):
		return nil, errNoAnswer
	}
}

func (c *caller) close() error {
	var err error
	if c.ah != nil {
		err = errors.Join(c.qp.Drain(context.Background()), c.ah.Destroy()) // drained: no message uses the address handle
	}
	return errors.Join(err, c.endpoint.close())
}
