package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"verbena/uapi"
)

// objectMaker creates one more object of a kind.
type objectMaker struct {
	kind string
	make func(*loopbackPair) error
}

var objectMakers = []objectMaker{
	{"contexts", func(p *loopbackPair) error {
		d, err := open("uverbs0")
		if err == nil {
			if _, err = d.getContext(); err != nil {
				d.close()
			}
		}
		if err == nil { // the new context needs no memory for commands
			err = syscall.Munmap(d.mem)
		}
		return err
	}},
	{"pds", func(p *loopbackPair) error {
		_, err := p.allocPD()
		return err
	}},
	{"mrs", func(p *loopbackPair) error {
		_, err := p.regMR(p.pd, p.dataMemory()[:8])
		return err
	}},
	{"mws", func(p *loopbackPair) error {
		_, _, err := writeCommand[uapi.AllocMWResp](p.device, uapi.CmdAllocMW, uapi.AllocMW{PDHandle: p.pd,
			MWType: uapi.MWType1},
			nil, 0)
		return err
	}},
	{"ahs", func(p *loopbackPair) error {
		_, _, err := writeCommand[uapi.CreateAHResp](p.device, uapi.CmdCreateAH, uapi.CreateAH{PDHandle: p.pd,
			Attr: uapi.AHAttr{PortNum: 1, IsGlobal: 1, GRH: uapi.GlobalRoute{DGID: p.gid, SGIDIndex: 1}}}, nil, 8)
		return err
	}},
	{"cqs", func(p *loopbackPair) error {
		_, _, err := writeCommand[uapi.CreateCQResp](p.device, uapi.CmdCreateCQ, uapi.CreateCQ{CQE: 1, CompChannel: -1},
			nil, 16)
		return err
	}},
	{"qps", func(p *loopbackPair) error { return p.createQueuePair(uapi.QPTRC, 1) }},
	{"big-qps", func(p *loopbackPair) error { return p.createQueuePair(uapi.QPTRC, 1<<14) }},
	{"srqs", func(p *loopbackPair) error {
		_, _, err := writeCommand[uapi.CreateSRQResp](p.device, uapi.CmdCreateSRQ,
			uapi.CreateSRQ{PDHandle: p.pd, MaxWR: 1, MaxSGE: 1}, nil, 24)
		return err
	}},
	{"groups", (*loopbackPair).joinGroup},
	{"channels", func(p *loopbackPair) error {
		_, err := p.createChannel()
		return err
	}},
}

// createQueuePair makes a queue pair without mapping its queues.
func (p *loopbackPair) createQueuePair(t uapi.QPType, depth uint32) error {
	_, err := p.createUnmappedQP(t, depth)
	return err
}

func (p *loopbackPair) createUnmappedQP(t uapi.QPType, depth uint32) (uapi.CreateQPResp, error) {
	r, _, err := writeCommand[uapi.CreateQPResp](p.device, uapi.CmdCreateQP,
		uapi.CreateQP{PDHandle: p.pd, SendCQHandle: p.cq, RecvCQHandle: p.cq,
			MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1, QPType: t}, nil, 32)
	return r, err
}

// joinGroup attaches a datagram queue pair to a new multicast group.
func (p *loopbackPair) joinGroup() error {
	if p.groups == 0 {
		qp, err := p.createUnmappedQP(uapi.QPTUD, 1)
		if err != nil {
			return err
		}
		p.datagrams = qp.QPHandle
	}
	p.groups++
	gid := [16]byte{10: 0xff, 11: 0xff, 12: 239, 13: 7, 14: byte(p.groups >> 8), 15: byte(p.groups)}
	return writeCommandNoResponse(p.device, uapi.CmdAttachMcast, uapi.AttachMcast{QPHandle: p.datagrams, GID: gid})
}

// fillObjects makes objects of a kind until it is refused an object or has made the given number. "all" makes objects
// of all kinds in random order until each kind is refused. It prints the counts, and keeps the objects until its input
// ends.
func fillObjects(kind, number string) error {
	n, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err == nil {
		l.Cur = l.Max
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l)
	}
	p, err := newLoopbackPair()
	if err != nil {
		return err
	}
	left := slices.Clone(objectMakers)
	if kind != "all" {
		if left = slices.DeleteFunc(left, func(m objectMaker) bool { return m.kind != kind }); len(left) == 0 {
			return fmt.Errorf("unknown kind %q", kind)
		}
	}
	have := map[string]int{}
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for made := 0; made < n && len(left) > 0; {
		i := r.IntN(len(left))
		m := left[i]
		if err := m.make(p); err != nil {
			fmt.Printf("%s refused after %d: %v\n", m.kind, have[m.kind], err)
			left = slices.Delete(left, i, i+1)
			continue
		}
		have[m.kind]++
		made++
	}
	var list []string
	for _, m := range objectMakers {
		if have[m.kind] > 0 {
			list = append(list, fmt.Sprintf("%s=%d", m.kind, have[m.kind]))
		}
	}
	fmt.Println("has", strings.Join(list, " "))
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if err := p.exchangeMessage(in.Text()); err != nil {
			return err
		}
		fmt.Println("ok")
	}
	return nil
}
