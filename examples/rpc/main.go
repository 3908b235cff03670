// Command rpc implements remote procedure calls by SEND: each call is a message, and each reply is another one. The
// ID of a receive identifies its memory. The immediate data of a request and of its reply identifies the call, so
// several calls can be in flight.
//
//	go run ./examples/rpc
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"sync"

	"verbena/verbs"
	"verbena/verbs/embed"
)

const (
	messageSize = 1024
	calls       = 8 // number of calls in flight
)

// conn is one side of a connection, with memory for each received and each sent message.
type conn struct {
	qp       *verbs.QP
	cq       *verbs.CQ
	in, out  *verbs.MR
	received func(id uint32, message []byte) // must not retain message: its memory receives again
}

func newConn(dev *verbs.Device) (*conn, error) {
	c := &conn{}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	if c.cq, err = dev.CreateCQ(4*calls, nil); err != nil {
		return nil, err
	}
	if c.in, err = pd.Alloc(calls*messageSize, verbs.LocalWrite); err != nil {
		return nil, err
	}
	if c.out, err = pd.Alloc(calls*messageSize, 0); err != nil {
		return nil, err
	}
	if c.qp, err = pd.CreateQP(verbs.QPInit{SendCQ: c.cq, SendWRs: 2 * calls, RecvWRs: calls}); err != nil {
		return nil, err
	}
	if err := c.qp.Prepare(verbs.Path{}); err != nil { // the receives are posted before the peer can send
		return nil, err
	}
	for i := range calls {
		if err := c.postReceive(uint64(i)); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *conn) postReceive(slot uint64) error {
	return c.qp.PostRecv(&verbs.RecvWR{ID: slot, Local: c.in.SGE(int(slot)*messageSize, messageSize)})
}

// send sends the message of a call. The memory of the message can be reused once the reply has arrived, which is
// later than the completion.
func (c *conn) send(id uint32, message []byte) error {
	if len(message) > messageSize {
		return fmt.Errorf("message of %d bytes exceeds %d bytes", len(message), messageSize)
	}
	at := int(id) * messageSize
	copy(c.out.Bytes()[at:], message)
	return c.qp.PostSend(&verbs.SendWR{Opcode: verbs.SendWithImm, Flags: verbs.Signaled, Imm: id,
		Local: c.out.SGE(at, len(message))})
}

// deliverMessages delivers received messages until the context is cancelled, and then returns nil. After a failed work
// request it returns the error.
func (c *conn) deliverMessages(ctx context.Context) error {
	for wc, err := range c.cq.Completions(ctx) {
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		if wc.Opcode != verbs.WCReceive {
			continue
		}
		at := int(wc.ID) * messageSize
		c.received(wc.Imm, c.in.Bytes()[at:at+int(wc.ByteLen)])
		if err := c.postReceive(wc.ID); err != nil {
			return err
		}
	}
	return nil
}

// client matches replies with the numbers of their calls.
type client struct {
	*conn
	free    chan uint32 // numbers that no call in flight uses
	answers [calls]chan []byte
}

func newClient(c *conn) *client {
	cl := &client{conn: c, free: make(chan uint32, calls)}
	for i := range cl.answers {
		cl.answers[i] = make(chan []byte, 1)
		cl.free <- uint32(i)
	}
	c.received = func(id uint32, message []byte) { cl.answers[id] <- bytes.Clone(message) }
	return cl
}

// call sends a request, and waits for the reply, without a timeout. It first waits while all numbers are in use.
func (cl *client) call(request []byte) ([]byte, error) {
	id := <-cl.free
	defer func() { cl.free <- id }()
	if err := cl.send(id, request); err != nil {
		return nil, err
	}
	return <-cl.answers[id], nil
}

// run creates both sides, and calls the server from many goroutines.
func run() (answers []string, err error) {
	stack, err := embed.NewSoftware()
	if err != nil {
		return nil, err
	}
	defer stack.Close()
	dev, err := stack.Open("")
	if err != nil {
		return nil, err
	}
	defer dev.Close() // Close also destroys all objects of the device
	here, err := newConn(dev)
	if err != nil {
		return nil, err
	}
	there, err := newConn(dev)
	if err != nil {
		return nil, err
	}
	there.received = func(id uint32, request []byte) {
		if err := there.send(id, bytes.ToUpper(request)); err != nil {
			log.Print(err)
		}
	}
	if err := verbs.ConnectPair(here.qp, there.qp); err != nil {
		return nil, err
	}
	cl := newClient(here)
	ctx, cancel := context.WithCancel(context.Background())
	var loops, callers sync.WaitGroup
	loops.Go(func() { logError(here.deliverMessages(ctx)) })
	loops.Go(func() { logError(there.deliverMessages(ctx)) })
	answers = make([]string, 20)
	errs := make([]error, len(answers))
	for i := range answers {
		callers.Go(func() {
			answer, err := cl.call(fmt.Appendf(nil, "call %d", i))
			answers[i], errs[i] = string(answer), err
		})
	}
	callers.Wait()
	cancel()
	loops.Wait()
	return answers, errors.Join(errs...)
}

func logError(err error) {
	if err != nil {
		log.Print(err)
	}
}

func main() {
	answers, err := run()
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range answers {
		fmt.Println(a)
	}
}
