// Command rawverbs is an RDMA program without libibverbs and without a C library. Command rawverbs uses the
// kernel's ABI by system calls. The end-to-end tests use rawverbs where a program must start quickly.
//
//	rawverbs transfer         sends a message between two of its queue pairs; prints "ok"
//	rawverbs reveal           makes objects and prints their numbers; sends a message for each line of input
//	rawverbs intrude NUMBERS  tries every operation with another program's numbers; prints the successful ones
//	rawverbs fill KIND N      makes N objects of a kind or of "all", or as many as are permitted; sends a message for
//	                          each line of input
//	rawverbs cm-neighbour P   connects and disconnects by the connection manager at a port for each line of input
//	rawverbs cm-keep PORT     keeps a connection; for each line of input prints its state and sends a message
//	rawverbs cm-stall WHAT F  blocks a call of the service on a page of a file
//	rawverbs cm-fill KIND N   fill, for objects of the connection manager and of netlink
//	rawverbs cm-claim A QPN   connects to an address with the number of a queue pair of another program
//	rawverbs cm-intrude N     tries every operation on the IDs below N; prints the successful ones
//	rawverbs cm-serve PORT    accepts requests of cm-call at a port, and rejects all others
//	rawverbs cm-call ADDR     connects to cm-serve; prints the number of refusals
//	rawverbs cm-give PATH     sends an open rdma_cm to the listener at a path
//	rawverbs cm-use PATH      listens on a path, and issues a command on the received rdma_cm
//	rawverbs cm-exec          executes another program while threads wait for events
//	rawverbs cm-wait N        waits for an event in N threads
//	rawverbs nl-unread N      requests dumps on N netlink sockets, and reads no answer
//	rawverbs nl-change        tries to make and remove devices by netlink
//	rawverbs nl-give PATH     sends a netlink socket to the listener at a path
//	rawverbs hoard SEED       makes objects at random, also in threads and child processes, until it is killed
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"verbena/uapi"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "rawverbs:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "transfer":
		if err := transferMessages(); err != nil {
			return err
		}
		fmt.Println("ok")
		return nil
	case len(args) == 2 && args[0] == "hoard":
		return hoardObjects(args[1])
	case len(args) == 3 && args[0] == "fill":
		return fillObjects(args[1], args[2])
	case len(args) == 1 && args[0] == "reveal":
		return runVictim()
	case len(args) == 2 && args[0] == "intrude":
		return tryForeignObjects(args[1])
	case len(args) == 2 && args[0] == "cm-neighbour":
		return cmReconnect(args[1])
	case len(args) == 2 && args[0] == "cm-keep":
		return cmKeepConnection(args[1])
	case len(args) == 3 && args[0] == "cm-stall":
		return cmStall(args[1], args[2])
	case len(args) == 3 && args[0] == "cm-fill":
		return cmFill(args[1], args[2])
	case len(args) == 3 && args[0] == "cm-claim":
		return cmClaimForeignQP(args[1], args[2])
	case len(args) == 2 && args[0] == "cm-intrude":
		return cmTryForeignIDs(args[1])
	case len(args) == 2 && args[0] == "cm-serve":
		return cmServe(args[1])
	case len(args) == 2 && args[0] == "cm-call":
		return cmConnect(args[1])
	case len(args) == 2 && args[0] == "cm-give":
		return cmSendFile(args[1])
	case len(args) == 2 && args[0] == "cm-use":
		return cmUseReceivedFile(args[1])
	case len(args) == 1 && args[0] == "cm-exec":
		return cmExec()
	case len(args) == 2 && args[0] == "cm-wait":
		return cmWait(args[1])
	case len(args) == 2 && args[0] == "nl-unread":
		return nlLeaveUnread(args[1])
	case len(args) == 2 && args[0] == "nl-give":
		return nlSendSocket(args[1])
	case len(args) == 1 && args[0] == "nl-change":
		return nlChangeDevices()
	}
	return errors.New("usage: rawverbs transfer | fill KIND N | hoard SEED | reveal | intrude NUMBERS; cm- and nl-: see the source")
}

// loopbackPair is a connection of a program to itself.
type loopbackPair struct {
	*device
	pd, cq uint32
	mr     uapi.RegMRResp
	qps    [2]uapi.CreateQPResp

	datagrams uint32 // handle of a datagram queue pair in multicast groups
	groups    int    // number of groups that the queue pair has joined
}

func newLoopbackPair() (*loopbackPair, error) {
	d, err := open("uverbs0")
	if err != nil {
		return nil, err
	}
	p := &loopbackPair{device: d}
	if _, err = d.getContext(); err != nil {
		return nil, err
	}
	if p.pd, err = d.allocPD(); err != nil {
		return nil, err
	}
	if p.mr, err = d.regMR(p.pd, d.dataMemory()); err != nil {
		return nil, err
	}
	cq, err := d.createCQ(16, -1)
	if err != nil {
		return nil, err
	}
	p.cq = cq.CQHandle
	for i := range p.qps {
		if p.qps[i], err = d.createQP(p.pd, p.cq, uapi.QPTRC, 8); err != nil {
			return nil, err
		}
	}
	for i := range p.qps {
		if err := d.connectQP(p.qps[i].QPHandle, p.qps[1-i].QPN); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *loopbackPair) sge(at, n int) uapi.SGE {
	return uapi.SGE{Addr: addressOf(p.dataMemory()) + uint64(at), Length: uint32(n), LKey: p.mr.LKey}
}

// exchangeMessage sends a message from the first queue pair to the second.
func (p *loopbackPair) exchangeMessage(text string) error {
	to := p.dataMemory()[4096:][:len(text)]
	clear(to)
	copy(p.dataMemory(), text)
	if err := p.postRecv(p.qps[1].QPHandle, p.sge(4096, len(text))); err != nil {
		return err
	}
	if err := p.postSend(p.qps[0].QPHandle, uapi.SendWR{Opcode: uapi.WRSend, SendFlags: uapi.SendSignaled},
		p.sge(0, len(text))); err != nil {
		return err
	}
	for got, deadline := 0, time.Now().Add(20*time.Second); got < 2; {
		list, err := p.pollCQ(p.cq, 4)
		if err != nil {
			return err
		}
		for _, wc := range list {
			if wc.Status != uapi.WCSuccess {
				return fmt.Errorf("completion %+v", wc)
			}
		}
		if got += len(list); time.Now().After(deadline) {
			return errors.New("no completion")
		}
	}
	if !bytes.Equal(to, []byte(text)) {
		return fmt.Errorf("received %q", to)
	}
	return nil
}

func transferMessages() error {
	p, err := newLoopbackPair()
	if err != nil {
		return err
	}
	return p.exchangeMessage("a message of no importance")
}
