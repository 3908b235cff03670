package main

import (
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"verbena/roce"
	"verbena/uapi"
)

// device is an open device file.
type device struct {
	fd   int
	mem  []byte // memory for commands, responses and data
	next int
	gid  [16]byte
	maps [][]byte // mapped queues

	offsets []uint64 // offsets of the queues
}

const (
	memSize  = 1 << 20
	respSize = 4096 // the start of mem, where responses are stored
	dataSize = 1 << 16
)

func open(name string) (*device, error) {
	fd, err := syscall.Open("/dev/infiniband/"+name, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	d := &device{fd: fd}
	if d.mem, err = syscall.Mmap(-1, 0, memSize, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON); err != nil {
		return nil, err
	}
	ibdev, err := os.ReadFile("/sys/class/infiniband_verbs/" + name + "/ibdev")
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile("/sys/class/infiniband/" + strings.TrimSpace(string(ibdev)) + "/ports/1/gids/1")
	if err != nil {
		return nil, err
	}
	b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), ":", ""))
	if err != nil || len(b) != 16 {
		return nil, fmt.Errorf("GID %q: %v", text, err)
	}
	copy(d.gid[:], b)
	return d, nil
}

// dataMemory returns the part of mem that commands do not use.
func (d *device) dataMemory() []byte { return d.mem[memSize-dataSize:] }

// writeCommand writes a plain command with the given tail, and returns the response and the driver's part of the
// response.
func writeCommand[Resp, Req any](d *device, cmd uapi.Command, req Req, tail []byte, driver int) (resp Resp, out []byte,
	err error) {
	n := uapi.SizeOf[Resp]()
	core := uapi.AppendTo(nil, &req)
	if hasResponseAddress(cmd) {
		copy(core, uapi.AppendTo(nil, &responseAddress{addressOf(d.mem)}))
	}
	hdr := uapi.CmdHdr{Command: uint32(cmd), InWords: uint16((8 + len(core) + len(tail)) / 4),
		OutWords: uint16((n + driver + 3) / 4)}
	b := d.copyToMemory(slices.Concat(uapi.AppendTo(nil, &hdr), core, tail))
	if _, err := syscall.Write(d.fd, b); err != nil {
		return resp, nil, fmt.Errorf("%v: %w", cmd, err)
	}
	resp, _ = uapi.Decode[Resp](d.mem)
	return resp, slices.Clone(d.mem[n : n+driver]), nil
}

type responseAddress struct{ addr uint64 }

// hasResponseAddress reports whether a command starts with the address of the response.
func hasResponseAddress(cmd uapi.Command) bool {
	switch cmd {
	case uapi.CmdDeallocPD, uapi.CmdDestroyAH, uapi.CmdDeregMR, uapi.CmdDeallocMW, uapi.CmdReqNotifyCQ,
		uapi.CmdAttachMcast,
		uapi.CmdDetachMcast, uapi.CmdModifySRQ, uapi.CmdCloseXRCD, uapi.CmdModifyQP:
		return false
	}
	return true
}

// copyToMemory copies a command to memory with a fixed address.
func (d *device) copyToMemory(b []byte) []byte {
	if d.next += 4096; d.next < respSize || d.next+len(b) > memSize-dataSize {
		d.next = respSize
	}
	return d.mem[d.next : d.next+copy(d.mem[d.next:], b)]
}

type emptyResponse struct{}

// writeCommandNoResponse issues a command without a response.
func writeCommandNoResponse[Req any](d *device, cmd uapi.Command, req Req) error {
	_, _, err := writeCommand[emptyResponse](d, cmd, req, nil, 0)
	return err
}

func (d *device) getContext() (uapi.GetContextResp, error) {
	r, _, err := writeCommand[uapi.GetContextResp](d, uapi.CmdGetContext, uapi.GetContext{}, nil, 0)
	return r, err
}

func (d *device) allocPD() (uint32, error) {
	r, _, err := writeCommand[uapi.AllocPDResp](d, uapi.CmdAllocPD, uapi.AllocPD{}, nil, 0)
	return r.PDHandle, err
}

const allAccess = uapi.AccessLocalWrite | uapi.AccessRemoteRead | uapi.AccessRemoteWrite | uapi.AccessRemoteAtomic

func (d *device) regMR(pd uint32, b []byte) (uapi.RegMRResp, error) {
	r, _, err := writeCommand[uapi.RegMRResp](d, uapi.CmdRegMR,
		uapi.RegMR{Start: addressOf(b), HCAVA: addressOf(b), Length: uint64(len(b)), PDHandle: pd,
			AccessFlags: allAccess}, nil, 0)
	return r, err
}

func (d *device) createChannel() (int, error) {
	r, _, err := writeCommand[uapi.CreateCompChannelResp](d, uapi.CmdCreateCompChannel, uapi.CreateCompChannel{}, nil, 0)
	return int(r.FD), err
}

// mapQueue maps a queue described by the driver.
func (d *device) mapQueue(b []byte) ([]byte, error) {
	mi, _ := uapi.Decode[uapi.MMInfo](b)
	if mi.Size == 0 {
		return nil, nil
	}
	m, err := syscall.Mmap(d.fd, int64(mi.Offset), int(mi.Size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err == nil {
		d.maps, d.offsets = append(d.maps, m), append(d.offsets, mi.Offset)
	}
	return m, err
}

// close ends the context, and unmaps the queues, because mapped queues would keep the file open.
func (d *device) close() {
	for _, m := range d.maps {
		_ = syscall.Munmap(m)
	}
	_ = syscall.Munmap(d.mem)
	_ = syscall.Close(d.fd)
}

func (d *device) createCQ(entries, channel int) (uapi.CreateCQResp, error) {
	r, driver, err := writeCommand[uapi.CreateCQResp](d, uapi.CmdCreateCQ,
		uapi.CreateCQ{CQE: uint32(entries), CompChannel: int32(channel)}, nil, 16)
	if err == nil {
		_, err = d.mapQueue(driver)
	}
	return r, err
}

func (d *device) createQP(pd, cq uint32, t uapi.QPType, depth int) (uapi.CreateQPResp, error) {
	r, driver, err := writeCommand[uapi.CreateQPResp](d, uapi.CmdCreateQP,
		uapi.CreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq,
			MaxSendWR: uint32(depth), MaxRecvWR: uint32(depth), MaxSendSGE: 1, MaxRecvSGE: 1, QPType: t}, nil, 32)
	for i := 0; i < 2 && err == nil; i++ {
		_, err = d.mapQueue(driver[16*i:])
	}
	return r, err
}

// connectQP takes a reliable queue pair to RTS, connected to another queue pair of the same device.
func (d *device) connectQP(qp, peer uint32) error {
	for _, m := range []uapi.ModifyQP{
		{QPState: uapi.QPSInit, PortNum: 1, QPAccessFlags: allAccess,
			AttrMask: uapi.QPAttrState | uapi.QPAttrPort | uapi.QPAttrPKeyIndex | uapi.QPAttrAccessFlags},
		{QPState: uapi.QPSRTR, PathMTU: uint8(roce.MTU1024), DestQPNum: peer, MaxDestRDAtomic: 1, MinRNRTimer: 12,
			Dest: uapi.QPDest{DGID: d.gid, SGIDIndex: 1, HopLimit: 64, IsGlobal: 1, PortNum: 1},
			AttrMask: uapi.QPAttrState | uapi.QPAttrAV | uapi.QPAttrPathMTU | uapi.QPAttrDestQPN | uapi.QPAttrRQPSN |
				uapi.QPAttrMaxDestRDAtomic | uapi.QPAttrMinRNRTimer},
		{QPState: uapi.QPSRTS, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 1,
			AttrMask: uapi.QPAttrState | uapi.QPAttrSQPSN | uapi.QPAttrTimeout | uapi.QPAttrRetryCnt | uapi.QPAttrRNRRetry |
				uapi.QPAttrMaxQPRDAtomic},
	} {
		m.QPHandle = qp
		if err := writeCommandNoResponse(d, uapi.CmdModifyQP, m); err != nil {
			return err
		}
	}
	return nil
}

func (d *device) postWR(cmd uapi.Command, qp uint32, wr []byte, sge uapi.SGE) error {
	req := uapi.PostSend{QPHandle: qp, WRCount: 1, SGECount: 1, WQESize: uint32(len(wr))}
	_, _, err := writeCommand[uapi.PostSendResp](d, cmd, req, slices.Concat(wr, uapi.AppendTo(nil, &sge)), 0)
	return err
}

func (d *device) postSend(qp uint32, w uapi.SendWR, sge uapi.SGE) error {
	w.NumSGE = 1
	return d.postWR(uapi.CmdPostSend, qp, uapi.AppendTo(nil, &w), sge)
}

func (d *device) postRecv(qp uint32, sge uapi.SGE) error {
	return d.postWR(uapi.CmdPostRecv, qp, uapi.AppendTo(nil, &uapi.RecvWR{NumSGE: 1}), sge)
}

// pollCQ takes up to n completions.
func (d *device) pollCQ(cq uint32, n int) ([]uapi.WC, error) {
	size := uapi.SizeOf[uapi.WC]()
	r, b, err := writeCommand[uapi.PollCQResp](d, uapi.CmdPollCQ, uapi.PollCQ{CQHandle: cq, NE: uint32(n)}, nil, n*size)
	var list []uapi.WC
	for i := 0; i < int(r.Count) && err == nil; i++ {
		wc, _ := uapi.Decode[uapi.WC](b[i*size:])
		list = append(list, wc)
	}
	return list, err
}
