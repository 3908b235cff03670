package main

import (
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"time"

	"verbena/uapi"
)

// hoardObjects makes objects, uses them, and destroys a few, until it is killed. It ignores errors, which come from a
// removed device or from reached limits.
func hoardObjects(seed string) error {
	n, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(n, 1))
	child := os.Getenv("RAWVERBS_CHILD") != ""
	if !child && r.IntN(8) == 0 {
		// A child inherits the first device file as after a fork.
		d, err := open("uverbs0")
		if err != nil {
			return err
		}
		if _, err := d.getContext(); err == nil {
			fds := []uintptr{0, 1, 2, uintptr(d.fd)}
			_, _ = syscall.ForkExec("/proc/self/exe", []string{"rawverbs", "hoard", strconv.FormatUint(r.Uint64(), 10)},
				&syscall.ProcAttr{Env: append(os.Environ(), "RAWVERBS_CHILD=1"), Files: fds})
		}
	}
	for range r.IntN(3) {
		t := rand.New(rand.NewPCG(n, r.Uint64()))
		go runHoardWorker(t)
	}
	return runHoardWorker(r)
}

func runHoardWorker(r *rand.Rand) error {
	for range 1 + r.IntN(3) {
		p, err := newLoopbackPair()
		if err != nil {
			return err
		}
		for range 20 {
			p.doRandomOperation(r)
		}
		if r.IntN(3) == 0 {
			p.close()
		}
	}
	for {
		if p, err := newLoopbackPair(); err == nil {
			for range 10 {
				p.doRandomOperation(r)
			}
			p.close()
		}
		time.Sleep(time.Millisecond)
	}
}

// doRandomOperation performs one random operation.
func (p *loopbackPair) doRandomOperation(r *rand.Rand) {
	switch r.IntN(9) {
	case 0:
		if pd, err := p.allocPD(); err == nil && r.IntN(2) == 0 {
			_ = writeCommandNoResponse(p.device, uapi.CmdDeallocPD, uapi.DeallocPD{PDHandle: pd})
		}
	case 1:
		n := 1 << (4 + r.IntN(13))
		if mr, err := p.regMR(p.pd, p.dataMemory()[:n]); err == nil && r.IntN(3) == 0 {
			_ = writeCommandNoResponse(p.device, uapi.CmdDeregMR, uapi.DeregMR{MRHandle: mr.MRHandle})
		}
	case 2, 3:
		channel := -1
		if r.IntN(2) == 0 {
			channel, _ = p.createChannel()
		}
		if cq, err := p.createCQ(1<<r.IntN(12), channel); err == nil {
			_ = writeCommandNoResponse(p.device, uapi.CmdReqNotifyCQ, uapi.ReqNotifyCQ{CQHandle: cq.CQHandle})
		}
	case 4, 5:
		t := []uapi.QPType{uapi.QPTRC, uapi.QPTUC, uapi.QPTUD}[r.IntN(3)]
		if qp, err := p.createQP(p.pd, p.cq, t, 1<<r.IntN(8)); err == nil && r.IntN(3) == 0 {
			_, _, _ = writeCommand[uapi.DestroyQPResp](p.device, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: qp.QPHandle}, nil,
				0)
		}
	case 6:
		_, _, _ = writeCommand[uapi.CreateAHResp](p.device, uapi.CmdCreateAH, uapi.CreateAH{PDHandle: p.pd,
			Attr: uapi.AHAttr{PortNum: 1, IsGlobal: 1, GRH: uapi.GlobalRoute{DGID: p.gid, SGIDIndex: 1}}}, nil, 8)
	case 7:
		_ = p.exchangeMessage("hoard")
	case 8: // a receive, and a send without a receiver
		_ = p.postRecv(p.qps[0].QPHandle, p.sge(0, 100))
		_ = p.postSend(p.qps[1].QPHandle, uapi.SendWR{Opcode: uapi.WRRDMAWrite}, p.sge(0, 4096))
	}
}
