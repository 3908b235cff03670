package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"verbena/uapi"
)

// objectIDs holds the numbers of one program's objects, which another program tries to use.
type objectIDs struct {
	PID                int
	PD, CQ, MR, AH     uint32
	QPs                [2]uint32
	QPNs               [2]uint32
	LKey, RKey         uint32
	Addr               uint64
	FD, AsyncFD, Chan  int
	Queues             []uint64 // offsets for mmap
	ChannelCQ          uint32
	QPNOfDatagrams     uint32
	QueuePairDatagrams uint32
}

// runVictim makes objects, prints their numbers, and exchanges a message for each line of input.
func runVictim() error {
	p, err := newLoopbackPair()
	if err != nil {
		return err
	}
	b := objectIDs{PID: os.Getpid(), PD: p.pd, CQ: p.cq, MR: p.mr.MRHandle, LKey: p.mr.LKey, RKey: p.mr.RKey,
		Addr: addressOf(p.dataMemory()), FD: p.fd, Queues: p.offsets}
	for i, qp := range p.qps {
		b.QPs[i], b.QPNs[i] = qp.QPHandle, qp.QPN
	}
	if b.Chan, err = p.createChannel(); err != nil {
		return err
	}
	cq, err := p.createCQ(4, b.Chan)
	if err != nil {
		return err
	}
	b.ChannelCQ = cq.CQHandle
	qp, err := p.createQP(p.pd, p.cq, uapi.QPTUD, 4)
	if err != nil {
		return err
	}
	b.QPNOfDatagrams, b.QueuePairDatagrams = qp.QPN, qp.QPHandle
	ah, _, err := writeCommand[uapi.CreateAHResp](p.device, uapi.CmdCreateAH, uapi.CreateAH{PDHandle: p.pd,
		Attr: uapi.AHAttr{PortNum: 1, IsGlobal: 1, GRH: uapi.GlobalRoute{DGID: p.gid, SGIDIndex: 1}}}, nil, 8)
	if err != nil {
		return err
	}
	b.AH = ah.AHHandle
	line, err := json.Marshal(&b)
	if err != nil {
		return err
	}
	fmt.Println(string(line))
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if err := p.exchangeMessage(in.Text()); err != nil {
			return err
		}
		for i, c := range p.dataMemory() {
			if c != 0 && (i >= len(in.Text()) && i < 4096 || i >= 4096+len(in.Text())) {
				return fmt.Errorf("byte %d of the memory: got %#x, want no change", i, c)
			}
		}
		fmt.Println("ok")
	}
	return nil
}

// tryForeignObjects tries every operation with the numbers of another program's objects, and prints the operations that
// succeeded.
func tryForeignObjects(text string) error {
	var b objectIDs
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		return err
	}
	d, err := open("uverbs0")
	if err != nil {
		return err
	}
	if _, err := d.getContext(); err != nil {
		return err
	}
	tried := 0
	try := func(what string, err error) {
		tried++
		if err == nil {
			fmt.Println("succeeded:", what)
		}
	}
	// The following attempts use the handles with a context that has no objects.
	for _, h := range []uint32{b.PD, b.CQ, b.MR, b.AH, b.QPs[0], b.QPs[1], b.ChannelCQ, b.QueuePairDatagrams} {
		name := func(s string) string { return fmt.Sprintf("%s of handle %d", s, h) }
		try(name("DEALLOC_PD"), writeCommandNoResponse(d, uapi.CmdDeallocPD, uapi.DeallocPD{PDHandle: h}))
		try(name("DEREG_MR"), writeCommandNoResponse(d, uapi.CmdDeregMR, uapi.DeregMR{MRHandle: h}))
		try(name("DEALLOC_MW"), writeCommandNoResponse(d, uapi.CmdDeallocMW, uapi.DeallocMW{MWHandle: h}))
		try(name("DESTROY_AH"), writeCommandNoResponse(d, uapi.CmdDestroyAH, uapi.DestroyAH{AHHandle: h}))
		try(name("REQ_NOTIFY_CQ"), writeCommandNoResponse(d, uapi.CmdReqNotifyCQ, uapi.ReqNotifyCQ{CQHandle: h}))
		try(name("CLOSE_XRCD"), writeCommandNoResponse(d, uapi.CmdCloseXRCD, uapi.CloseXRCD{XRCDHandle: h}))
		try(name("MODIFY_QP"), writeCommandNoResponse(d, uapi.CmdModifyQP,
			uapi.ModifyQP{QPHandle: h, AttrMask: uapi.QPAttrState, QPState: uapi.QPSErr}))
		try(name("MODIFY_SRQ"), writeCommandNoResponse(d, uapi.CmdModifySRQ, uapi.ModifySRQ{SRQHandle: h,
			AttrMask: uapi.SRQAttrLimit}))
		try(name("ATTACH_MCAST"), writeCommandNoResponse(d, uapi.CmdAttachMcast,
			uapi.AttachMcast{QPHandle: h, GID: [16]byte{0: 0xff, 1: 0x0e, 15: 1}}))
		_, err := d.regMR(h, d.dataMemory())
		try(name("REG_MR"), err)
		_, _, err = writeCommand[uapi.ReregMRResp](d, uapi.CmdReregMR, uapi.ReregMR{MRHandle: h,
			Flags: uapi.ReregMRChangeAccess},
			nil, 0)
		try(name("REREG_MR"), err)
		_, _, err = writeCommand[uapi.AllocMWResp](d, uapi.CmdAllocMW, uapi.AllocMW{PDHandle: h, MWType: uapi.MWType1}, nil,
			0)
		try(name("ALLOC_MW"), err)
		_, _, err = writeCommand[uapi.CreateAHResp](d, uapi.CmdCreateAH, uapi.CreateAH{PDHandle: h,
			Attr: uapi.AHAttr{PortNum: 1, IsGlobal: 1, GRH: uapi.GlobalRoute{DGID: d.gid, SGIDIndex: 1}}}, nil, 8)
		try(name("CREATE_AH"), err)
		_, _, err = writeCommand[uapi.ResizeCQResp](d, uapi.CmdResizeCQ, uapi.ResizeCQ{CQHandle: h, CQE: 100}, nil, 16)
		try(name("RESIZE_CQ"), err)
		_, err = d.pollCQ(h, 4)
		try(name("POLL_CQ"), err)
		_, _, err = writeCommand[uapi.DestroyCQResp](d, uapi.CmdDestroyCQ, uapi.DestroyCQ{CQHandle: h}, nil, 0)
		try(name("DESTROY_CQ"), err)
		_, _, err = writeCommand[uapi.QueryQPResp](d, uapi.CmdQueryQP, uapi.QueryQP{QPHandle: h}, nil, 0)
		try(name("QUERY_QP"), err)
		_, _, err = writeCommand[uapi.DestroyQPResp](d, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: h}, nil, 0)
		try(name("DESTROY_QP"), err)
		try(name("POST_SEND"), d.postSend(h, uapi.SendWR{Opcode: uapi.WRSend},
			uapi.SGE{Addr: b.Addr, Length: 8, LKey: b.LKey}))
		try(name("POST_RECV"), d.postRecv(h, uapi.SGE{Addr: b.Addr, Length: 8, LKey: b.LKey}))
		_, _, err = writeCommand[uapi.PostSendResp](d, uapi.CmdPostSend, uapi.PostSend{QPHandle: h}, nil, 0)
		try(name("doorbell"), err)
		_, _, err = writeCommand[uapi.CreateSRQResp](d, uapi.CmdCreateSRQ, uapi.CreateSRQ{PDHandle: h, MaxWR: 1, MaxSGE: 1},
			nil,
			24)
		try(name("CREATE_SRQ"), err)
		_, _, err = writeCommand[uapi.QuerySRQResp](d, uapi.CmdQuerySRQ, uapi.QuerySRQ{SRQHandle: h}, nil, 0)
		try(name("QUERY_SRQ"), err)
		_, _, err = writeCommand[uapi.DestroySRQResp](d, uapi.CmdDestroySRQ, uapi.DestroySRQ{SRQHandle: h}, nil, 0)
		try(name("DESTROY_SRQ"), err)
	}
	for _, n := range b.QPNs {
		_, _, err := writeCommand[uapi.CreateQPResp](d, uapi.CmdOpenQP, uapi.OpenQP{QPN: n, QPType: uapi.QPTXRCTgt}, nil, 32)
		try(fmt.Sprintf("OPEN_QP of number %d", n), err)
	}
	// The following attempts use descriptors with numbers that belong to this program or are unused.
	for _, fd := range []int{b.Chan, b.FD + 1000} {
		_, err := d.createCQ(4, fd)
		try(fmt.Sprintf("CREATE_CQ with channel %d", fd), err)
	}
	for _, offset := range b.Queues {
		if m, err := d.mapQueue(uapi.AppendTo(nil, &uapi.MMInfo{Offset: offset, Size: 4096})); err == nil {
			// The offset maps a file of this program, or no memory.
			try(fmt.Sprintf("mmap at %#x with content", offset), checkMapping(m))
		}
	}
	// The following attempts bypass the device and access the other process's memory and files.
	if fd, err := syscall.Open(fmt.Sprintf("/proc/%d/fd/%d", b.PID, b.FD), syscall.O_RDWR, 0); err == nil {
		try("open of their device through /proc", nil)
		syscall.Close(fd)
	}
	_, err = os.ReadFile(fmt.Sprintf("/proc/%d/maps", b.PID))
	try("maps of their process", err)
	d.close()

	if err := tryForeignKeys(&b, try); err != nil {
		return err
	}
	fmt.Printf("tried %d\n", tried)
	return nil
}

// checkMapping checks whether a mapping contains any data, and whether there is any memory behind the mapping.
func checkMapping(m []byte) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("no memory behind the mapping")
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for _, c := range m {
		if c != 0 {
			return nil
		}
	}
	return errors.New("nothing there")
}

// tryForeignKeys uses the other program's keys and queue pair numbers in its own work requests, first connected to
// itself and then to the other program.
func tryForeignKeys(b *objectIDs, try func(string, error)) error {
	for _, key := range []uint32{b.LKey, b.RKey} {
		for _, op := range []uapi.WROpcode{uapi.WRSend, uapi.WRRDMAWrite, uapi.WRRDMARead, uapi.WRAtomicFetchAndAdd} {
			for _, local := range []bool{true, false} {
				p, err := newLoopbackPair()
				if err != nil {
					return err
				}
				if err := p.postRecv(p.qps[1].QPHandle, p.sge(0, 64)); err != nil {
					return err
				}
				sge := p.sge(0, 8)
				w := uapi.SendWR{Opcode: op, SendFlags: uapi.SendSignaled}
				r := w.RDMA()
				r.RemoteAddr, r.RKey = addressOf(p.dataMemory()), p.mr.RKey
				if op == uapi.WRAtomicFetchAndAdd {
					a := w.Atomic()
					a.RemoteAddr, a.RKey = addressOf(p.dataMemory()), p.mr.RKey
				}
				if local {
					sge = uapi.SGE{Addr: b.Addr, Length: 8, LKey: key}
				} else if op == uapi.WRSend {
					p.close()
					continue
				} else if op == uapi.WRAtomicFetchAndAdd {
					a := w.Atomic()
					a.RemoteAddr, a.RKey = b.Addr, key
				} else {
					r.RemoteAddr, r.RKey = b.Addr, key
				}
				try(fmt.Sprintf("%v with key %#x, local %v", op, key, local), p.postAndWait(w, sge))
				p.close()
			}
		}
	}
	for i, n := range b.QPNs {
		p, err := newLoopbackPair()
		if err != nil {
			return err
		}
		mine, err := p.createQP(p.pd, p.cq, uapi.QPTRC, 4)
		if err != nil {
			return err
		}
		p.qps[0] = mine
		if err := p.connectQP(mine.QPHandle, n); err != nil {
			return err
		}
		w := uapi.SendWR{Opcode: []uapi.WROpcode{uapi.WRSend, uapi.WRRDMAWrite}[i], SendFlags: uapi.SendSignaled}
		r := w.RDMA()
		r.RemoteAddr, r.RKey = b.Addr, b.RKey
		try(fmt.Sprintf("%v to queue pair %d", w.Opcode, n), p.postAndWait(w, p.sge(0, 8)))
		p.close()
	}
	return nil
}

// postAndWait posts a send work request and returns its result.
func (p *loopbackPair) postAndWait(w uapi.SendWR, sge uapi.SGE) error {
	if err := p.postSend(p.qps[0].QPHandle, w, sge); err != nil {
		return err
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		list, err := p.pollCQ(p.cq, 4)
		if err != nil {
			return err
		}
		for _, wc := range list {
			if wc.QPNum != p.qps[0].QPN {
				continue
			}
			if wc.Status != uapi.WCSuccess {
				return fmt.Errorf("%v", wc.Status)
			}
			return nil
		}
	}
	return errors.New("no completion")
}
