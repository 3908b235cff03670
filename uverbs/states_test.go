package uverbs

import (
	"errors"
	goflag "flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/uapi"
	"verbena/uapi/verb"
	"verbena/umem"
)

var updateStates = goflag.Bool("update-states", false, "write docs/results/states.md")

// The tables in this file contain the results of every user command and every midlayer method, in each state of the
// device. The expected results are those of Linux (drivers/infiniband/core: uverbs_cmd.c, rdma_core.c, verbs.c). Where
// Linux leaves a result to drivers, the contract of package ib defines it. The observed results are those of the rxe
// driver. docs/results/states.md is generated from both.

const (
	works = syscall.Errno(0)
	// flushes means that the call succeeds, and that the work request completes with a flush error.
	flushes = syscall.Errno(1 << 16)
	// never means that no object remains on which the method could be called.
	never = syscall.Errno(1 << 17)
)

func outcomeText(e syscall.Errno) string {
	switch e {
	case works:
		return "works"
	case flushes:
		return "flushed"
	case never:
		return "-"
	}
	return unix.ErrnoName(e)
}

func errnoOf(err error) syscall.Errno {
	var e syscall.Errno
	if err == nil || errors.As(err, &e) {
		return e
	}
	return syscall.Errno(1 << 18)
}

// outcomes holds the results of a row in the states active, error, zombie (none for methods) and gone.
type outcomes [4]syscall.Errno

// effectOutcomes maps the effect of a verb to the results of user calls.
var effectOutcomes = map[verb.Effect]outcomes{
	verb.Makes:    {works, syscall.EIO, syscall.EIO, never},
	verb.Reads:    {works, works, syscall.EIO, never},
	verb.Destroys: {works, works, works, never},
	verb.Posts:    {works, flushes, syscall.EIO, never},
	verb.Lists:    {works, works, works, never},
}

// stateProgram is a program with one object of each kind.
type stateProgram struct {
	*program
	core   *ib.Core
	dev    *ib.Device
	handle *ib.DeviceHandle
	leaky  bool // consumers leave objects
	srv    *Server
	gid    ib.GID

	pd, spare, cq, spareCQ, mr, mw, qp, ud, ah, srq, xrcd, spareXRCD uint32

	target   uint32 // number of an XRC target queue pair in xrcd
	onDemand uint32 // key of a region registered on demand
	channel  int
	data     uint64
}

func newStateProgram(t *testing.T) *stateProgram {
	t.Helper()
	addr := netip.MustParseAddr("10.0.0.1")
	dev, err := rxe.New(rxe.Config{
		Name: "rxe0", Addrs: []netip.Addr{addr, netip.MustParseAddr("fd00::1")}, Network: simnet.New(simnet.Config{}),
		Rand:   rand.New(rand.NewPCG(1, 2)),
		Netdev: netdev.Interface{Name: "eth0", Index: 2, MAC: []byte{2, 0, 0, 0, 0, 1}, MTU: 9000, Up: true, Running: true},
	})
	must(t, err)
	x := &stateProgram{core: &ib.Core{}, dev: dev.IB(), handle: dev.Handle(), gid: ib.GIDFromAddr(addr)}
	must(t, x.core.Register(x.handle))
	x.srv, err = NewServer(x.core, ServerOptions{CompVectors: 1, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	must(t, err)
	w := &fixture{t: t, core: x.core, dev: x.dev, handle: x.handle, srv: x.srv}
	x.program = w.startProgram(byWrite)
	x.data = (addressOf(x.allocMem(3*4096)) + 4095) &^ 4095
	t.Cleanup(func() {
		x.f.Close()
		x.srv.Close()
		if x.dev.State() != ib.DeviceGone {
			if err := x.core.Unregister(x.handle); err != nil && !x.leaky {
				t.Error(err)
			}
		}
		must(t, dev.Close())
	})
	x.pd, x.channel = x.allocPD(), x.program.createChannel()
	need := func(err error) { t.Helper(); must(t, err) }
	cq, _, err := sendPlainWith[uapi.CreateCQResp](x.program, uapi.CmdCreateCQ,
		uapi.CreateCQ{CQE: 10, CompChannel: int32(x.channel)}, nil, 16)
	need(err)
	x.cq = cq.CQHandle
	cq, _, err = sendPlainWith[uapi.CreateCQResp](x.program, uapi.CmdCreateCQ, uapi.CreateCQ{CQE: 10, CompChannel: -1},
		nil, 16)
	need(err)
	x.spareCQ, x.spare = cq.CQHandle, x.allocPD()
	mr, err := sendPlain[uapi.RegMRResp](x.program, uapi.CmdRegMR, x.newRegMRRequest())
	need(err)
	x.mr = mr.MRHandle
	mw, err := sendPlain[uapi.AllocMWResp](x.program, uapi.CmdAllocMW, uapi.AllocMW{PDHandle: x.pd, MWType: 1})
	need(err)
	x.mw = mw.MWHandle
	for _, q := range []struct {
		to *uint32
		t  uapi.QPType
	}{{&x.qp, uapi.QPTRC}, {&x.ud, uapi.QPTUD}} {
		r, _, err := sendPlainWith[uapi.CreateQPResp](x.program, uapi.CmdCreateQP, x.newCreateQPRequest(q.t), nil, 32)
		need(err)
		*q.to = r.QPHandle
	}
	for _, m := range connectTransitions(x.qp, 17, x.gid) {
		need(sendWithoutResponse(x.program, uapi.CmdModifyQP, m))
	}
	ah, _, err := sendPlainWith[uapi.CreateAHResp](x.program, uapi.CmdCreateAH, x.newCreateAHRequest(), nil, 8)
	need(err)
	x.ah = ah.AHHandle
	srq, _, err := sendPlainWith[uapi.CreateSRQResp](x.program, uapi.CmdCreateSRQ,
		uapi.CreateSRQ{PDHandle: x.pd, MaxWR: 4, MaxSGE: 1}, nil, 24)
	need(err)
	x.srq = srq.SRQHandle
	x.xrcd, x.spareXRCD = x.openXRCDomain(), x.openXRCDomain()
	tgt, _, err := sendPlainWith[uapi.CreateQPResp](x.program, uapi.CmdCreateQP,
		uapi.CreateQP{PDHandle: x.xrcd, QPType: uapi.QPTXRCTgt}, nil, 32)
	need(err)
	x.target = tgt.QPN
	odp := x.newRegMRRequest()
	odp.AccessFlags |= uapi.AccessOnDemand
	mr, err = sendPlain[uapi.RegMRResp](x.program, uapi.CmdRegMR, odp)
	need(err)
	x.onDemand = mr.LKey
	must(t, sendWithoutResponse(x.program, uapi.CmdAttachMcast, uapi.AttachMcast{GID: multicastGroup(7), QPHandle: x.ud}))
	must(t, sendWithoutResponse(x.program, uapi.CmdDetachMcast, uapi.DetachMcast{GID: multicastGroup(7), QPHandle: x.ud}))
	return x
}

// multicastGroup returns a multicast group.
func multicastGroup(n byte) [16]byte { return [16]byte{0: 0xff, 1: 0x0e, 15: n} }

func (x *stateProgram) newRegMRRequest() uapi.RegMR {
	return uapi.RegMR{Start: x.data, HCAVA: x.data, Length: 4096, PDHandle: x.pd, AccessFlags: uapi.AccessLocalWrite}
}

func (x *stateProgram) newCreateQPRequest(t uapi.QPType) uapi.CreateQP {
	return uapi.CreateQP{PDHandle: x.pd, SendCQHandle: x.cq, RecvCQHandle: x.cq, MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1,
		MaxRecvSGE: 1, QPType: t}
}

func (x *stateProgram) newCreateAHRequest() uapi.CreateAH {
	return uapi.CreateAH{PDHandle: x.pd, Attr: uapi.AHAttr{PortNum: 1, IsGlobal: 1,
		GRH: uapi.GlobalRoute{DGID: x.gid, SGIDIndex: 1}}}
}

// moveToState moves the device to a state.
func (x *stateProgram) moveToState(state int) {
	switch state {
	case 1:
		x.handle.SetError()
	case 2:
		must(x.t, x.core.Unregister(x.handle))
	}
}

// stateRow is a call of a command.
type stateRow struct {
	name   string // empty means the name of the command
	number uint32
	want   outcomes // the zero value means the results of the verb's effect
	run    func(x *stateProgram) error
}

// expectedOutcomes returns the expected results of a call.
func (r *stateRow) expectedOutcomes() outcomes {
	if r.want == (outcomes{}) {
		return effectOutcomes[commands[r.number].spec.Effect]
	}
	return r.want
}

func (r *stateRow) String() string {
	switch {
	case r.name != "":
		return r.name
	case r.number&uapi.CmdFlagExtended != 0:
		return commandName(r.number) + " (extended)"
	}
	return commandName(r.number)
}

func plainRow[Resp, Req any](cmd uapi.Command, req func(x *stateProgram) Req) stateRow {
	return stateRow{number: uint32(cmd), run: func(x *stateProgram) error {
		driver := 0
		if commands[uint32(cmd)].Driver {
			driver = 32
		}
		_, _, err := sendPlainWith[Resp](x.program, cmd, req(x), nil, driver)
		return err
	}}
}

func noResponseRow[Req any](cmd uapi.Command, req func(x *stateProgram) Req) stateRow {
	return stateRow{number: uint32(cmd), run: func(x *stateProgram) error {
		return sendWithoutResponse(x.program, cmd, req(x))
	}}
}

func extendedRow[Resp, Req any](cmd uapi.ExCommand, req func(x *stateProgram) Req) stateRow {
	return stateRow{number: uint32(cmd) | uapi.CmdFlagExtended, run: func(x *stateProgram) error {
		_, _, err := sendExtended[Resp](x.program, cmd, req(x), 32)
		return err
	}}
}

var stateRows = []stateRow{
	{name: "open(2)", want: outcomes{works, works, syscall.ENODEV, syscall.ENODEV}, run: func(x *stateProgram) error {
		f, err := x.srv.Open("uverbs0", x.program, &unmappedMemory{})
		if err == nil {
			f.Close()
		}
		return err
	}},
	{number: uint32(uapi.CmdGetContext), run: func(x *stateProgram) error {
		if !x.f.contextState().CanCreate() {
			_, err := sendPlain[uapi.GetContextResp](x.program, uapi.CmdGetContext, uapi.GetContext{})
			return err
		}
		return x.runOnFreshFile(func() error {
			_, err := sendPlain[uapi.GetContextResp](x.program, uapi.CmdGetContext, uapi.GetContext{})
			return err
		})
	}},
	plainRow[uapi.QueryDeviceResp](uapi.CmdQueryDevice,
		func(*stateProgram) uapi.QueryDevice { return uapi.QueryDevice{} }),
	plainRow[uapi.QueryPortResp](uapi.CmdQueryPort,
		func(*stateProgram) uapi.QueryPort { return uapi.QueryPort{PortNum: 1} }),
	plainRow[uapi.AllocPDResp](uapi.CmdAllocPD, func(*stateProgram) uapi.AllocPD { return uapi.AllocPD{} }),
	{number: uint32(uapi.CmdDeallocPD), run: func(x *stateProgram) error {
		return sendWithoutResponse(x.program, uapi.CmdDeallocPD, uapi.DeallocPD{PDHandle: x.spare})
	}},
	plainRow[uapi.RegMRResp](uapi.CmdRegMR, (*stateProgram).newRegMRRequest),
	plainRow[uapi.ReregMRResp](uapi.CmdReregMR, func(x *stateProgram) uapi.ReregMR {
		return uapi.ReregMR{MRHandle: x.mr, Flags: uapi.ReregMRChangeAccess,
			AccessFlags: uapi.AccessLocalWrite | uapi.AccessRemoteRead}
	}),
	noResponseRow(uapi.CmdDeregMR, func(x *stateProgram) uapi.DeregMR { return uapi.DeregMR{MRHandle: x.mr} }),
	plainRow[uapi.AllocMWResp](uapi.CmdAllocMW, func(x *stateProgram) uapi.AllocMW {
		return uapi.AllocMW{PDHandle: x.pd,
			MWType: 1}
	}),
	noResponseRow(uapi.CmdDeallocMW, func(x *stateProgram) uapi.DeallocMW { return uapi.DeallocMW{MWHandle: x.mw} }),
	plainRow[uapi.CreateAHResp](uapi.CmdCreateAH, (*stateProgram).newCreateAHRequest),
	noResponseRow(uapi.CmdDestroyAH, func(x *stateProgram) uapi.DestroyAH { return uapi.DestroyAH{AHHandle: x.ah} }),
	// The core alone implements channels. Channels exist while there is a context.
	plainRow[uapi.CreateCompChannelResp](uapi.CmdCreateCompChannel,
		func(*stateProgram) uapi.CreateCompChannel { return uapi.CreateCompChannel{} }),
	plainRow[uapi.CreateCQResp](uapi.CmdCreateCQ, func(*stateProgram) uapi.CreateCQ {
		return uapi.CreateCQ{CQE: 4,
			CompChannel: -1}
	}),
	plainRow[uapi.ResizeCQResp](uapi.CmdResizeCQ, func(x *stateProgram) uapi.ResizeCQ {
		return uapi.ResizeCQ{CQHandle: x.cq,
			CQE: 20}
	}),
	plainRow[uapi.PollCQResp](uapi.CmdPollCQ, func(x *stateProgram) uapi.PollCQ {
		return uapi.PollCQ{CQHandle: x.cq,
			NE: 0}
	}),
	noResponseRow(uapi.CmdReqNotifyCQ, func(x *stateProgram) uapi.ReqNotifyCQ { return uapi.ReqNotifyCQ{CQHandle: x.cq} }),
	{number: uint32(uapi.CmdDestroyCQ), run: func(x *stateProgram) error {
		_, err := sendPlain[uapi.DestroyCQResp](x.program, uapi.CmdDestroyCQ, uapi.DestroyCQ{CQHandle: x.spareCQ})
		return err
	}},
	plainRow[uapi.CreateQPResp](uapi.CmdCreateQP,
		func(x *stateProgram) uapi.CreateQP { return x.newCreateQPRequest(uapi.QPTRC) }),
	plainRow[uapi.QueryQPResp](uapi.CmdQueryQP,
		func(x *stateProgram) uapi.QueryQP { return uapi.QueryQP{QPHandle: x.qp} }),
	noResponseRow(uapi.CmdModifyQP, func(x *stateProgram) uapi.ModifyQP {
		return uapi.ModifyQP{QPHandle: x.qp, QPState: uapi.QPSSQD, AttrMask: uapi.QPAttrState}
	}),
	{name: "MODIFY_QP to ERR or RESET", number: uint32(uapi.CmdModifyQP), want: effectOutcomes[verb.Reads],
		run: func(x *stateProgram) error {
			return sendWithoutResponse(x.program, uapi.CmdModifyQP, uapi.ModifyQP{QPHandle: x.qp, QPState: uapi.QPSErr,
				AttrMask: uapi.QPAttrState})
		}},
	plainRow[uapi.DestroyQPResp](uapi.CmdDestroyQP,
		func(x *stateProgram) uapi.DestroyQP { return uapi.DestroyQP{QPHandle: x.qp} }),
	{number: uint32(uapi.CmdPostSend), run: func(x *stateProgram) error { return x.postWR(uapi.CmdPostSend, x.qp) }},
	{number: uint32(uapi.CmdPostRecv), run: func(x *stateProgram) error { return x.postWR(uapi.CmdPostRecv, x.qp) }},
	// Receives of a shared receive queue belong to no queue pair and are not flushed (IBA 10.2.9.3).
	{number: uint32(uapi.CmdPostSRQRecv), run: func(x *stateProgram) error {
		return x.postWR(uapi.CmdPostSRQRecv,
			x.srq)
	}},
	noResponseRow(uapi.CmdAttachMcast, func(x *stateProgram) uapi.AttachMcast {
		return uapi.AttachMcast{GID: multicastGroup(7),
			QPHandle: x.ud}
	}),
	{number: uint32(uapi.CmdDetachMcast), run: func(x *stateProgram) error {
		return sendWithoutResponse(x.program, uapi.CmdDetachMcast, uapi.DetachMcast{GID: multicastGroup(9), QPHandle: x.ud})
	}},
	plainRow[uapi.CreateSRQResp](uapi.CmdCreateSRQ,
		func(x *stateProgram) uapi.CreateSRQ { return uapi.CreateSRQ{PDHandle: x.pd, MaxWR: 4, MaxSGE: 1} }),
	plainRow[uapi.CreateSRQResp](uapi.CmdCreateXSRQ, func(x *stateProgram) uapi.CreateXSRQ {
		return uapi.CreateXSRQ{PDHandle: x.pd, MaxWR: 4, MaxSGE: 1, SRQType: 1, XRCDHandle: x.xrcd, CQHandle: x.cq}
	}),
	noResponseRow(uapi.CmdModifySRQ, func(x *stateProgram) uapi.ModifySRQ {
		return uapi.ModifySRQ{SRQHandle: x.srq, AttrMask: 2, SRQLimit: 1}
	}),
	plainRow[uapi.QuerySRQResp](uapi.CmdQuerySRQ,
		func(x *stateProgram) uapi.QuerySRQ { return uapi.QuerySRQ{SRQHandle: x.srq} }),
	plainRow[uapi.DestroySRQResp](uapi.CmdDestroySRQ,
		func(x *stateProgram) uapi.DestroySRQ { return uapi.DestroySRQ{SRQHandle: x.srq} }),
	plainRow[uapi.OpenXRCDResp](uapi.CmdOpenXRCD, func(*stateProgram) uapi.OpenXRCD {
		return uapi.OpenXRCD{FD: ^uint32(0),
			OFlags: unix.O_CREAT}
	}),
	noResponseRow(uapi.CmdCloseXRCD,
		func(x *stateProgram) uapi.CloseXRCD { return uapi.CloseXRCD{XRCDHandle: x.spareXRCD} }),
	plainRow[uapi.CreateQPResp](uapi.CmdOpenQP, func(x *stateProgram) uapi.OpenQP {
		return uapi.OpenQP{PDHandle: x.xrcd, QPN: x.target, QPType: uapi.QPTXRCTgt}
	}),
	extendedRow[uapi.ExQueryDeviceResp](uapi.ExCmdQueryDevice,
		func(*stateProgram) uapi.ExQueryDevice { return uapi.ExQueryDevice{} }),
	extendedRow[uapi.ExCreateCQResp](uapi.ExCmdCreateCQ, func(*stateProgram) uapi.ExCreateCQ {
		return uapi.ExCreateCQ{CQE: 4,
			CompChannel: -1}
	}),
	extendedRow[uapi.ExCreateQPResp](uapi.ExCmdCreateQP, func(x *stateProgram) uapi.ExCreateQP {
		return uapi.ExCreateQP{PDHandle: x.pd, SendCQHandle: x.cq, RecvCQHandle: x.cq, MaxSendWR: 4, QPType: uapi.QPTRC}
	}),
	extendedRow[uapi.ExModifyQPResp](uapi.ExCmdModifyQP, func(x *stateProgram) uapi.ExModifyQP {
		return uapi.ExModifyQP{Base: uapi.ModifyQP{QPHandle: x.qp, QPState: uapi.QPSSQD, AttrMask: uapi.QPAttrState}}
	}),
}

// postWR posts a work request. postWR returns a special error if the request was flushed.
func (x *stateProgram) postWR(cmd uapi.Command, handle uint32) error {
	size := uapi.SizeOf[uapi.RecvWR]()
	wr := uapi.AppendTo(nil, &uapi.RecvWR{WRID: 77})
	if cmd == uapi.CmdPostSend {
		size = uapi.SizeOf[uapi.SendWR]()
		wr = uapi.AppendTo(nil, &uapi.SendWR{WRID: 77, Opcode: uapi.WRSend, SendFlags: uapi.SendSignaled})
	}
	core := append(uapi.AppendTo(nil, &uapi.PostSend{QPHandle: handle, WRCount: 1, WQESize: uint32(size)}), wr...)
	if _, _, err := x.sendCommand(rawCommand{number: uint32(cmd), core: core, room: 8}); err != nil {
		return err
	}
	var wc [4]ib.WC
	cq := x.f.objects.find(x.cq).res.(*cqObject)
	n, err := cq.Poll(wc[:])
	for _, w := range wc[:n] {
		if w.ID == 77 && w.Status == ib.WCWRFlushErr {
			return flushes
		}
	}
	return err
}

// methodRow is a call of a midlayer method by a consumer in this process.
type methodRow struct {
	name string
	run  func(k *stateConsumer) error
}

// methodOutcomeExceptions holds results that do not follow from the effect of the verb.
var methodOutcomeExceptions = map[string]outcomes{
	"QP.Modify to ERR or RESET": methodOutcomes("QP", verb.Reads),
	// Neither the rxe driver nor the kernel's driver supports this method. In a driver that supports it, it is a normal
	// change.
	"CQ.Moderate": {syscall.EOPNOTSUPP, syscall.EIO, never, never},
}

// methodOutcomes returns the results of a method of an object, by the effect of its verb. There are no zombies in this
// process. The device itself remains after its removal, but its objects do not.
func methodOutcomes(object string, e verb.Effect) outcomes {
	o := outcomes{works, works, never, never}
	switch e {
	case verb.Makes:
		o[1] = syscall.EIO
	case verb.Posts:
		o[1] = flushes
	}
	switch {
	case object != "Device":
	case e == verb.Makes:
		o[3] = syscall.ENODEV
	default:
		o[3] = works
	}
	return o
}

// expectedOutcomes returns the expected results of a call.
func (r *methodRow) expectedOutcomes(t *testing.T) outcomes {
	if o, ok := methodOutcomeExceptions[r.name]; ok {
		return o
	}
	for _, v := range verb.Table {
		if slices.Contains(v.Midlayer, r.name) {
			object, _, _ := strings.Cut(r.name, ".")
			return methodOutcomes(object, v.Effect)
		}
	}
	t.Errorf("table of verbs: got no %s, want one", r.name)
	return outcomes{}
}

type stateConsumer struct {
	dev *ib.Device
	mem *umem.Local
	at  uint64
	gid ib.GID

	pd, spare   *ib.PD
	cq, spareCQ *ib.CQ
	qp, ud      *ib.QP
	mr, fast    *ib.MR
	odp         *ib.MR
	ah          *ib.AH
	srq         *ib.SRQ
	mw          *ib.MW
	xrcd        *ib.XRCD
	sgid        *ib.GIDRef
}

var methodRows = []methodRow{
	{"Device.QueryDevice", func(k *stateConsumer) error { _, err := k.dev.QueryDevice(); return err }},
	{"Device.QueryPort", func(k *stateConsumer) error { _, err := k.dev.QueryPort(1); return err }},
	{"Device.QueryPortSpeed", func(k *stateConsumer) error { _, err := k.dev.QueryPortSpeed(1); return err }},
	{"Device.QueryGID", func(k *stateConsumer) error { _, err := k.dev.QueryGID(1, 0); return err }},
	{"Device.QueryPKey", func(k *stateConsumer) error { _, err := k.dev.QueryPKey(1, 0); return err }},
	{"Device.FindGID", func(k *stateConsumer) error {
		e, err := k.dev.QueryGID(1, 1)
		if err == nil {
			_, _, err = k.dev.FindGID(e.GID, e.Type)
		}
		return err
	}},
	{"Device.GetGID", func(k *stateConsumer) error { _, err := k.dev.GetGID(1, 0); return err }},
	{"Device.Local", func(k *stateConsumer) error { _, err := k.dev.Local(1); return err }},
	{"Device.FindPKey", func(k *stateConsumer) error { _, err := k.dev.FindPKey(1, 0xffff); return err }},
	{"Device.AllocPD", func(k *stateConsumer) error { _, err := k.dev.AllocPD(); return err }},
	{"Device.CreateCQ", func(k *stateConsumer) error {
		_, err := k.dev.CreateCQ(ib.CQInit{Entries: 4})
		return err
	}},
	{"Device.AllocXRCD", func(k *stateConsumer) error { _, err := k.dev.AllocXRCD(); return err }},
	{"PD.RegMR", func(k *stateConsumer) error {
		_, err := k.pd.RegMR(ib.MRInit{Space: k.mem, Addr: k.at, Length: 4096, Access: ib.AccessLocalWrite})
		return err
	}},
	{"PD.RegBytes", func(k *stateConsumer) error {
		_, err := k.pd.RegBytes(make([]byte, 8), ib.AccessLocalWrite)
		return err
	}},
	{"PD.AllocMR", func(k *stateConsumer) error { _, err := k.pd.AllocMR(4); return err }},
	{"PD.AllocMW", func(k *stateConsumer) error { _, err := k.pd.AllocMW(ib.MWType1); return err }},
	{"PD.CreateAH", func(k *stateConsumer) error { _, err := k.pd.CreateAH(k.newAHAttr()); return err }},
	{"PD.CreateQP", func(k *stateConsumer) error { _, err := k.pd.CreateQP(k.newQP(ib.QPTypeRC)); return err }},
	{"PD.CreateSRQ", func(k *stateConsumer) error {
		_, err := k.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}})
		return err
	}},
	{"PD.Dealloc", func(k *stateConsumer) error { return k.spare.Dealloc() }},
	{"PD.AdviseMR", func(k *stateConsumer) error {
		return k.pd.AdviseMR(ib.AdvicePrefetch, 0, []ib.SGE{{Addr: k.at, Length: 8, LKey: k.odp.LKey()}})
	}},
	{"MR.Rereg", func(k *stateConsumer) error {
		return k.mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: ib.AccessLocalWrite | ib.AccessRemoteRead})
	}},
	{"MR.Dereg", func(k *stateConsumer) error { return k.mr.Dereg() }},
	{"MR.Map", func(k *stateConsumer) error {
		return k.fast.Map(k.mem, nil, []umem.Range{{Addr: k.at, Length: 4096}}, k.at)
	}},
	{"MW.Dealloc", func(k *stateConsumer) error { return k.mw.Dealloc() }},
	{"AH.Modify", func(k *stateConsumer) error { return k.ah.Modify(k.newAHAttr()) }},
	{"AH.Query", func(k *stateConsumer) error { _, err := k.ah.Query(); return err }},
	{"AH.Destroy", func(k *stateConsumer) error { return k.ah.Destroy() }},
	{"CQ.Poll", func(k *stateConsumer) error { _, err := k.cq.Poll(make([]ib.WC, 1)); return err }},
	{"CQ.ReqNotify", func(k *stateConsumer) error { _, err := k.cq.ReqNotify(ib.NotifyNextComp); return err }},
	{"CQ.Moderate", func(k *stateConsumer) error { return k.cq.Moderate(2, 0) }},
	{"CQ.Resize", func(k *stateConsumer) error { return k.cq.Resize(20) }},
	{"CQ.Destroy", func(k *stateConsumer) error { return k.spareCQ.Destroy() }},
	{"QP.Modify", func(k *stateConsumer) error {
		return k.qp.Modify(ib.QPAttr{State: ib.QPInit, Port: 1},
			ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags)
	}},
	{"QP.Modify to ERR or RESET", func(k *stateConsumer) error {
		return k.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)
	}},
	{"QP.Prepare", func(k *stateConsumer) error { return k.qp.Prepare(ib.Local{Port: 1}, 0) }},
	{"QP.Connect", func(k *stateConsumer) error {
		here, err := k.dev.Local(1)
		own := here.Endpoint(k.qp)
		return errors.Join(err, k.qp.Connect(here, own, own, ib.Path{}))
	}},
	{"QP.ConnectDatagram", func(k *stateConsumer) error {
		if err := k.ud.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState); err != nil {
			return err
		}
		return k.ud.ConnectDatagram(ib.Local{Port: 1}, ib.Endpoint{QKey: 1})
	}},
	{"QP.Query", func(k *stateConsumer) error { _, _, err := k.qp.Query(ib.QPAttrState); return err }},
	{"QP.PostSend", func(k *stateConsumer) error {
		ah := k.ah
		_, err := k.ud.PostSend(ib.SendWR{ID: 77, Opcode: ib.WRSend, Flags: ib.SendSignaled, AH: ah, RemoteQPN: 1})
		return k.pollForFlush(err)
	}},
	{"QP.PostRecv", func(k *stateConsumer) error {
		_, err := k.ud.PostRecv(ib.RecvWR{ID: 77})
		return k.pollForFlush(err)
	}},
	{"QP.State", func(k *stateConsumer) error { k.qp.State(); return nil }},
	{"QP.AttachMcast", func(k *stateConsumer) error { return k.ud.AttachMcast(multicastGroup(7), 0) }},
	{"QP.DetachMcast", func(k *stateConsumer) error { return k.ud.DetachMcast(multicastGroup(9), 0) }},
	{"QP.Destroy", func(k *stateConsumer) error { return k.qp.Destroy() }},
	{"SRQ.PostRecv", func(k *stateConsumer) error { _, err := k.srq.PostRecv(ib.RecvWR{}); return err }},
	{"SRQ.Modify", func(k *stateConsumer) error { return k.srq.Modify(ib.SRQAttr{Limit: 1}, ib.SRQAttrLimit) }},
	{"SRQ.Query", func(k *stateConsumer) error { _, err := k.srq.Query(); return err }},
	{"SRQ.Destroy", func(k *stateConsumer) error { return k.srq.Destroy() }},
	{"XRCD.Dealloc", func(k *stateConsumer) error { return k.xrcd.Dealloc() }},
	{"GIDRef.Put", func(k *stateConsumer) error { return k.sgid.Put() }},
}

func (k *stateConsumer) newAHAttr() *ib.AHAttr {
	return &ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: k.gid, SGIDIndex: 1}}
}

func (k *stateConsumer) newQP(t ib.QPType) ib.QPInitAttr {
	return ib.QPInitAttr{SendCQ: k.cq, RecvCQ: k.cq, Type: t,
		Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}
}

func (k *stateConsumer) pollForFlush(err error) error {
	if err != nil {
		return err
	}
	var wc [4]ib.WC
	n, err := k.cq.Poll(wc[:])
	if slices.ContainsFunc(wc[:n], func(w ib.WC) bool { return w.ID == 77 && w.Status == ib.WCWRFlushErr }) {
		return flushes
	}
	return err
}

// newStateConsumer creates one object of each kind, which the test does not destroy.
func newStateConsumer(t *testing.T, x *stateProgram) *stateConsumer {
	t.Helper()
	k := &stateConsumer{dev: x.dev, mem: umem.NewLocal(), gid: x.gid}
	var err error
	take := func(e error) { t.Helper(); must(t, e) }
	k.at, err = k.mem.Add(make([]byte, 4096))
	take(err)
	k.pd, err = k.dev.AllocPD()
	take(err)
	k.spare, err = k.dev.AllocPD()
	take(err)
	k.cq, err = k.dev.CreateCQ(ib.CQInit{Entries: 16})
	take(err)
	k.spareCQ, err = k.dev.CreateCQ(ib.CQInit{Entries: 16})
	take(err)
	k.qp, err = k.pd.CreateQP(k.newQP(ib.QPTypeRC))
	take(err)
	k.ud, err = k.pd.CreateQP(k.newQP(ib.QPTypeUD))
	take(err)
	take(k.ud.Modify(ib.QPAttr{State: ib.QPInit, Port: 1}, ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrQKey))
	take(k.ud.Modify(ib.QPAttr{State: ib.QPRTR}, ib.QPAttrState))
	take(k.ud.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState|ib.QPAttrSQPSN))
	k.mr, err = k.pd.RegMR(ib.MRInit{Space: k.mem, Addr: k.at, Length: 4096, Access: ib.AccessLocalWrite})
	take(err)
	k.odp, err = k.pd.RegMR(ib.MRInit{Space: k.mem, Addr: k.at, Length: 4096,
		Access: ib.AccessLocalWrite | ib.AccessOnDemand})
	take(err)
	k.fast, err = k.pd.AllocMR(4)
	take(err)
	take(k.ud.AttachMcast(multicastGroup(9), 0))
	k.mw, err = k.pd.AllocMW(ib.MWType1)
	take(err)
	k.ah, err = k.pd.CreateAH(k.newAHAttr())
	take(err)
	k.srq, err = k.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}})
	take(err)
	k.xrcd, err = k.dev.AllocXRCD()
	take(err)
	k.sgid, err = k.dev.GetGID(1, 0)
	take(err)
	return k
}

const statesIntro = `# Results: commands by state of a device

[states.md](../states.md) has the conclusions. The test TestStates of package uverbs compares this file with what it
sees on the rxe driver; ` + "`go test ./uverbs -run TestStates -update-states`" + ` writes it.

The tables have every user command, in the write form and as a method of RDMA_VERBS_IOCTL, and every method of the
midlayer. The columns are:

- active: the device works;
- error: the device is in error (ib.DeviceHandle.SetError, after the fatal event of a reset);
- zombie: the device of the user context has gone;
- gone: the device has gone.

The expected outcome follows from the effect of each verb in the table of verbs (uapi/verb) and from Linux's
drivers/infiniband/core (uverbs_cmd.c, uverbs_ioctl.c, uverbs_std_types*.c, rdma_core.c, verbs.c). Where Linux leaves an
outcome to drivers, it follows from the contract of package ib.

"flushed": the work request is accepted and completes with IBV_WC_WR_FLUSH_ERR. "-": the combination cannot occur. A
context of a device that has gone is a zombie, and a consumer in this process has destroyed its objects when its Remove
returns. Destroying reports the event counts in every state.
`

// stateIndependentMethods lists the methods that do not depend on the state of the device. The methods return
// parameters of an object, are called by drivers, or are not used by the rxe driver or by this process.
var stateIndependentMethods = map[string]bool{
	"Access": true, "Addr": true, "Device": true, "Entries": true, "Init": true, "LKey": true, "RKey": true, "Num": true,
	"PD":     true,
	"Region": true, "Type": true, "Same": true, "Name": true, "State": true, "Objects": true, "Uses": true, "Peek": true,
	"Attached": true, "ClientData": true, "UpdateKey": true,

	"OnEvent": true, "DestroyContext": true, "DeallocContext": true, "DeregContext": true, "ModifyContext": true,
	"Abandon": true, "AddressOfSender": true,
}

// TestStates checks every entry of the tables. The test also checks that no command or method is missing, and that
// docs/results/states.md contains the observed results.
func TestStates(t *testing.T) {
	var b strings.Builder
	b.WriteString(statesIntro)
	header := func(title, what string) {
		fmt.Fprintf(&b, "\n## %s\n\n| %s | active | error | zombie | gone |\n|---|---|---|---|---|\n", title, what)
	}
	check := func(name string, state int, want, got syscall.Errno) {
		if got != want {
			t.Errorf("%s in state %s: got %s, want %s", name, [...]string{"active", "error", "zombie", "gone"}[state],
				outcomeText(got), outcomeText(want))
		}
	}
	line := func(name string, seen outcomes) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, e := range seen {
			fmt.Fprintf(&b, " %s |", outcomeText(e))
		}
		b.WriteString("\n")
	}
	header("User commands", "command")
	commandSeen := map[uint32]bool{}
	for _, row := range stateRows {
		commandSeen[row.number] = true
		want := row.expectedOutcomes()
		seen := want
		for state := range 4 {
			if want[state] == never {
				continue
			}
			t.Run(fmt.Sprintf("%v/%d", &row, state), func(t *testing.T) {
				x := newStateProgram(t)
				if row.number == uint32(uapi.CmdDetachMcast) {
					must(t, sendWithoutResponse(x.program, uapi.CmdAttachMcast, uapi.AttachMcast{GID: multicastGroup(9),
						QPHandle: x.ud}))
				}
				x.moveToState(min(state, 2))
				seen[state] = errnoOf(row.run(x))
			})
			check(row.String(), state, want[state], seen[state])
		}
		line(row.String(), seen)
	}
	for n, cmd := range commands {
		if !commandSeen[n] {
			t.Errorf("stateRows: got no row for %v, want one", cmd)
		}
	}
	header("Methods of RDMA_VERBS_IOCTL", "method")
	// The row of the invoked command covers INVOKE_WRITE.
	methodSeen := map[methodID]bool{{uapi.ObjectDevice, uapi.MethodInvokeWrite}: true}
	for _, row := range ioctlRows {
		methodSeen[methodID{row.object, row.method}] = true
		want := row.expectedOutcomes()
		seen := want
		for state := range 3 {
			t.Run(fmt.Sprintf("%s/%d", row.name(), state), func(t *testing.T) {
				x := newStateProgram(t)
				x.moveToState(state)
				seen[state] = errnoOf(row.run(x))
			})
			check(row.name(), state, want[state], seen[state])
		}
		line(row.name(), seen)
	}
	for id, m := range methods {
		if !methodSeen[id] {
			t.Errorf("ioctlRows: got no row for %v, want one", m)
		}
	}
	header("Methods of the midlayer", "method")
	for _, row := range methodRows {
		want := row.expectedOutcomes(t)
		seen := want
		for _, state := range []int{0, 1, 3} {
			if want[state] == never {
				continue
			}
			x := newStateProgram(t)
			x.f.Close()
			k := &stateConsumer{dev: x.dev}
			if state != 3 {
				k = newStateConsumer(t, x)
				x.moveToState(state)
			} else {
				x.moveToState(2)
			}
			seen[state] = errnoOf(row.run(k))
			check(row.name, state, want[state], seen[state])
			x.leaky = true
		}
		line(row.name, seen)
	}
	for _, v := range []any{&ib.Device{}, &ib.PD{}, &ib.MR{}, &ib.MW{}, &ib.AH{}, &ib.CQ{}, &ib.QP{}, &ib.SRQ{},
		&ib.XRCD{}, &ib.GIDRef{}} {
		typ := reflect.TypeOf(v)
		for i := range typ.NumMethod() {
			name := typ.Elem().Name() + "." + typ.Method(i).Name
			if !stateIndependentMethods[typ.Method(i).Name] && !stateIndependentMethods[name] &&
				!slices.ContainsFunc(methodRows, func(r methodRow) bool { return r.name == name }) {
				t.Errorf("methodRows: got no row for %s, want one", name)
			}
		}
	}
	const page = "../docs/results/states.md"
	if *updateStates {
		if os.Getenv("CI") == "true" {
			t.Fatalf("-update-states with CI=true would hide an outdated %s", page)
		}
		must(t, os.WriteFile(page, []byte(b.String()), 0o644))
	}
	have, err := os.ReadFile(page)
	must(t, err)
	if string(have) != b.String() {
		t.Errorf("%s is outdated: run go test ./uverbs -run TestStates -update-states", page)
	}
}
