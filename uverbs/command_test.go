package uverbs

import (
	"bytes"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/roce"
	"verbena/uapi"
	"verbena/uapi/verb"
)

// testEachForm runs a test twice: with commands by write and by ioctl.
func testEachForm(t *testing.T, f func(t *testing.T, form commandForm)) {
	for _, form := range []commandForm{byWrite, byIoctl} {
		t.Run(form.String(), func(t *testing.T) { f(t, form) })
	}
}

// TestPingPongSession runs a complete session of a ping-pong program.
func TestPingPongSession(t *testing.T) {
	testEachForm(t, func(t *testing.T, form commandForm) {
		w := newFixture(t)
		p := w.open(form)
		ctx, err := sendPlain[uapi.GetContextResp](p, uapi.CmdGetContext, uapi.GetContext{})
		must(t, err)
		if ctx.NumCompVectors != 2 {
			t.Errorf("completion vectors: got %d, want 2", ctx.NumCompVectors)
		}
		dev, err := sendPlain[uapi.QueryDeviceResp](p, uapi.CmdQueryDevice, uapi.QueryDevice{})
		must(t, err)
		if dev.NodeGUID != (uapi.BE64{1, 2, 3, 4, 5, 6, 7, 8}) || dev.MaxSGE != 30 || dev.DeviceCapFlags != 2 ||
			dev.PhysPortCnt != 1 {
			t.Errorf("device: got %+v, want the values of the fake device", dev)
		}
		port, err := sendPlain[uapi.QueryPortResp](p, uapi.CmdQueryPort, uapi.QueryPort{PortNum: 1})
		must(t, err)
		if port.State != uapi.PortActive || port.PortCapFlags != uapi.PCFCMSup|uapi.PCFIPBasedGIDs ||
			port.Flags != uapi.QPFGRHRequired || port.LinkLayer != uapi.LinkLayerEthernet {
			t.Errorf("port: got %+v, want the values of the fake port", port)
		}

		pd := p.allocPD()
		mr := p.regMR(pd)
		if mr.LKey != 1 || mr.RKey != 1<<8 || p.acct.Pages() != 1 {
			t.Errorf("region: got %+v and %d charged pages, want keys 1 and 0x100 and 1 page", mr, p.acct.Pages())
		}
		cqResp, mminfo, err := sendPlainWith[uapi.CreateCQResp](p, uapi.CmdCreateCQ, uapi.CreateCQ{CQE: 100, CompChannel: -1},
			[]byte("to the driver..."), 16)
		must(t, err)
		if cqResp.CQE != 101 || string(mminfo) != ibfake.CQResponse || string(w.drv.LastCQUdata()) != "to the driver..." {
			t.Errorf("create cq: got %+v with driver response %q and driver request %q, want 101 entries and the test's data",
				cqResp, mminfo, w.drv.LastCQUdata())
		}
		cq := cqResp.CQHandle
		qpResp, mminfo, err := sendPlainWith[uapi.CreateQPResp](p, uapi.CmdCreateQP, uapi.CreateQP{
			UserHandle: 77, PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq, MaxSendWR: 5, MaxRecvWR: 6, MaxSendSGE: 1,
			MaxRecvSGE:    2,
			MaxInlineData: 64, SQSigAll: 1, QPType: uapi.QPTRC,
		}, nil, 32)
		must(t, err)
		want := uapi.CreateQPResp{QPHandle: qpResp.QPHandle, QPN: 17, MaxSendWR: 6, MaxRecvWR: 6, MaxSendSGE: 1,
			MaxRecvSGE: 2, MaxInlineData: 64}
		if qpResp != want || string(mminfo) != ibfake.QPResponse {
			t.Errorf("create qp: got %+v, want %+v, with driver response %q", qpResp, want, mminfo)
		}
		qp := qpResp.QPHandle

		must(t, sendWithoutResponse(p, uapi.CmdModifyQP, uapi.ModifyQP{QPHandle: qp, QPState: uapi.QPSInit, PortNum: 1,
			PKeyIndex:     3,
			QPAccessFlags: uapi.AccessRemoteRead,
			AttrMask:      uapi.QPAttrState | uapi.QPAttrPort | uapi.QPAttrPKeyIndex | uapi.QPAttrAccessFlags}))
		dest := uapi.QPDest{DGID: [16]uint8{15: 9}, SGIDIndex: 1, HopLimit: 64, TrafficClass: 2, FlowLabel: 3, IsGlobal: 1,
			PortNum: 1, SL: 4, StaticRate: 5}
		toRTR := uapi.ModifyQP{QPHandle: qp, QPState: uapi.QPSRTR, Dest: dest, PathMTU: uint8(roce.MTU1024), DestQPNum: 99,
			RQPSN: 7, MaxDestRDAtomic: 1, MinRNRTimer: 12,
			AttrMask: uapi.QPAttrState | uapi.QPAttrAV | uapi.QPAttrPathMTU | uapi.QPAttrDestQPN | uapi.QPAttrRQPSN |
				uapi.QPAttrMaxDestRDAtomic | uapi.QPAttrMinRNRTimer}
		must(t, sendWithoutResponse(p, uapi.CmdModifyQP, toRTR))
		query, err := sendPlain[uapi.QueryQPResp](p, uapi.CmdQueryQP, uapi.QueryQP{QPHandle: qp, AttrMask: uapi.QPAttrState})
		must(t, err)
		if query.QPState != uapi.QPSRTR || query.Dest != dest || query.DestQPNum != 99 || query.MaxSendWR != 6 ||
			query.SQSigAll != 1 {
			t.Errorf("query qp: got %+v, want the values of the creation", query)
		}

		ah, ahNum, err := sendPlainWith[uapi.CreateAHResp](p, uapi.CmdCreateAH,
			uapi.CreateAH{PDHandle: pd, Attr: uapi.AHAttr{PortNum: 1, IsGlobal: 1, GRH: uapi.GlobalRoute{HopLimit: 3}}}, nil, 8)
		must(t, err)
		if !bytes.Equal(ahNum[:4], []byte{7, 0, 0, 0}) {
			t.Errorf("driver response of create ah: got %x, want 7", ahNum)
		}
		resized, mminfo, err := sendPlainWith[uapi.ResizeCQResp](p, uapi.CmdResizeCQ, uapi.ResizeCQ{CQHandle: cq, CQE: 50},
			nil, 16)
		must(t, err)
		if resized.CQE != 51 || string(mminfo) != ibfake.CQResponse {
			t.Errorf("resize cq: got %+v with driver response %q, want 51 entries", resized, mminfo)
		}

		must(t, sendWithoutResponse(p, uapi.CmdDestroyAH, uapi.DestroyAH(ah)))
		_, err = sendPlain[uapi.DestroyQPResp](p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: qp})
		must(t, err)
		_, err = sendPlain[uapi.DestroyCQResp](p, uapi.CmdDestroyCQ, uapi.DestroyCQ{CQHandle: cq})
		must(t, err)
		must(t, sendWithoutResponse(p, uapi.CmdDeregMR, uapi.DeregMR{MRHandle: mr.MRHandle}))
		must(t, sendWithoutResponse(p, uapi.CmdDeallocPD, uapi.DeallocPD{PDHandle: pd}))
		if got := w.drv.TakeDestroyedKinds(); !slices.Equal(got, []string{"AH", "QP", "CQ", "MR", "PD"}) {
			t.Errorf("destroyed %v", got)
		}
		if left := w.dev.Objects().String(); left != "" {
			t.Errorf("remaining objects: got %s, want none", left)
		}
	})
}

func TestExtendedCommands(t *testing.T) {
	testEachForm(t, func(t *testing.T, form commandForm) {
		w := newFixture(t)
		p := w.startProgram(form)
		dev, _, err := sendExtended[uapi.ExQueryDeviceResp](p, uapi.ExCmdQueryDevice, uapi.ExQueryDevice{}, 0)
		must(t, err)
		if dev.ResponseLength != 304 || dev.Base.VendorID != 0xffffff || dev.DeviceCapFlagsEx != 0x1_0000_0002 {
			t.Errorf("device: got %+v, want the extended values of the fake device", dev)
		}
		// An older library has a shorter buffer and receives the length of the valid part.
		short, _, err := p.sendCommand(rawCommand{extended: true, number: uint32(uapi.ExCmdQueryDevice), core: make([]byte,
			8),
			room: 208})
		must(t, err)
		if length, _ := uapi.DecodePrefix[uapi.ExQueryDeviceResp](short); length.ResponseLength != 208 ||
			length.DeviceCapFlagsEx != 0 {
			t.Errorf("device with a short response: got %+v, want only the fields that fit", length)
		}
		// A newer library has a longer buffer, and the rest of this buffer is cleared.
		long, _, err := p.sendCommand(rawCommand{extended: true, number: uint32(uapi.ExCmdQueryDevice), core: make([]byte,
			16),
			room: 320})
		must(t, err)
		if length, _ := uapi.Decode[uapi.ExQueryDeviceResp](long); length.ResponseLength != 304 ||
			!bytes.Equal(long[304:], make([]byte, 16)) {
			t.Errorf("device with a long response: got length %d and end %x, want zeros at the end", length.ResponseLength,
				long[304:])
		}

		cq, mminfo, err := sendExtended[uapi.ExCreateCQResp](p, uapi.ExCmdCreateCQ,
			uapi.ExCreateCQ{CQE: 10, CompChannel: -1, UserHandle: 5}, 16)
		must(t, err)
		if cq.ResponseLength != 16 || cq.Base.CQE != 11 || string(mminfo) != ibfake.CQResponse {
			t.Errorf("CQ: got %+v with driver response %q, want 11 entries", cq, mminfo)
		}
		pd := p.allocPD()
		qp, _, err := sendExtended[uapi.ExCreateQPResp](p, uapi.ExCmdCreateQP,
			uapi.ExCreateQP{PDHandle: pd, SendCQHandle: cq.Base.CQHandle, RecvCQHandle: cq.Base.CQHandle, QPType: uapi.QPTUD},
			32)
		must(t, err)
		if qp.ResponseLength != 40 || qp.Base.QPN == 0 {
			t.Errorf("QP: got %+v, want a response of 40 bytes with a number", qp)
		}
		// The flags and the subsequent fields are newer than the command.
		_, _, err = p.sendCommand(rawCommand{extended: true, number: uint32(uapi.ExCmdCreateQP), room: 40,
			core: uapi.AppendTo(nil, &uapi.ExCreateQP{PDHandle: pd, SendCQHandle: cq.Base.CQHandle,
				RecvCQHandle: cq.Base.CQHandle, QPType: uapi.QPTRC})[:56]})
		must(t, err)
		mod, _, err := sendExtended[uapi.ExModifyQPResp](p, uapi.ExCmdModifyQP,
			uapi.ExModifyQP{Base: uapi.ModifyQP{QPHandle: qp.Base.QPHandle, QPState: uapi.QPSErr, AttrMask: uapi.QPAttrState}},
			0)
		must(t, err)
		if mod.ResponseLength != 8 {
			t.Errorf("modify: got %+v, want a response of 8 bytes", mod)
		}
	})
}

// Each line is a command that must fail. The objects are those of a session: see the variables.
func TestCommandErrors(t *testing.T) {
	testEachForm(t, func(t *testing.T, form commandForm) {
		w := newFixture(t)
		p := w.startProgram(form)
		pd, cq := p.allocPD(), p.createCQ(-1, 0)
		mr := p.regMR(pd).MRHandle
		qp := p.createQP(pd, cq, 0, uapi.QPTRC).QPHandle
		ah := p.createAH(pd)
		const none = 12345
		addr := addressOf(p.allocMem(4096))
		read, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
		must(t, err)
		defer unix.Munmap(read)

		type ex = uapi.ExCommand
		initMask := uapi.QPAttrState | uapi.QPAttrPort | uapi.QPAttrPKeyIndex | uapi.QPAttrAccessFlags
		for _, test := range []struct {
			name string
			cmd  any
			req  []byte
			room int
			want syscall.Errno
		}{
			{"second context", uapi.CmdGetContext, encode(uapi.GetContext{}), 8, syscall.EINVAL},
			{"port 0", uapi.CmdQueryPort, encode(uapi.QueryPort{PortNum: 0}), 40, syscall.EINVAL},
			{"port 2", uapi.CmdQueryPort, encode(uapi.QueryPort{PortNum: 2}), 40, syscall.EINVAL},
			{"query device, reserved set", ex(uapi.CmdQueryDevice), encode(uapi.ExQueryDevice{Reserved: 1}), 304,
				syscall.EINVAL},
			{"query device, mask set", ex(uapi.CmdQueryDevice), encode(uapi.ExQueryDevice{CompMask: 1}), 304, syscall.EINVAL},

			{"dealloc no pd", uapi.CmdDeallocPD, encode(uapi.DeallocPD{PDHandle: none}), 0, syscall.ENOENT},
			{"dealloc a cq", uapi.CmdDeallocPD, encode(uapi.DeallocPD{PDHandle: cq}), 0, syscall.EINVAL},
			{"dealloc a pd in use", uapi.CmdDeallocPD, encode(uapi.DeallocPD{PDHandle: pd}), 0, syscall.EBUSY},

			{"mr: no pd", uapi.CmdRegMR, encode(uapi.RegMR{Start: addr, HCAVA: addr, Length: 1, PDHandle: none}), 12,
				syscall.ENOENT},
			{"mr: pd is a cq", uapi.CmdRegMR, encode(uapi.RegMR{Start: addr, HCAVA: addr, Length: 1, PDHandle: cq}), 12,
				syscall.EINVAL},
			{"mr: not mapped", uapi.CmdRegMR, encode(uapi.RegMR{Start: 0x1000, HCAVA: 0x1000, Length: 1, PDHandle: pd}), 12,
				syscall.EFAULT},
			{"mr: read-only", uapi.CmdRegMR, encode(uapi.RegMR{Start: addressOf(read), HCAVA: addressOf(read), Length: 1,
				PDHandle: pd, AccessFlags: uapi.AccessLocalWrite}), 12, syscall.EFAULT},
			{"mr: offset in the page differs", uapi.CmdRegMR,
				encode(uapi.RegMR{Start: addr, HCAVA: addr + 1, Length: 1, PDHandle: pd}), 12, syscall.EINVAL},
			{"mr: wraps", uapi.CmdRegMR, encode(uapi.RegMR{Start: addr, HCAVA: addr, Length: 1<<64 - 1, PDHandle: pd}), 12,
				syscall.EINVAL},
			{"mr: remote write only", uapi.CmdRegMR, encode(uapi.RegMR{Start: addr, HCAVA: addr, Length: 1, PDHandle: pd,
				AccessFlags: uapi.AccessRemoteWrite}), 12, syscall.EINVAL},
			{"mr: unknown right", uapi.CmdRegMR, encode(uapi.RegMR{Start: addr, HCAVA: addr, Length: 1, PDHandle: pd,
				AccessFlags: 1 << 31}), 12, syscall.EINVAL},
			{"mr: on demand", uapi.CmdRegMR, encode(uapi.RegMR{Start: addr, HCAVA: addr, Length: 1, PDHandle: pd,
				AccessFlags: uapi.AccessOnDemand}), 12, syscall.EOPNOTSUPP},
			{"dereg no mr", uapi.CmdDeregMR, encode(uapi.DeregMR{MRHandle: none}), 0, syscall.ENOENT},
			{"dereg a qp", uapi.CmdDeregMR, encode(uapi.DeregMR{MRHandle: qp}), 0, syscall.EINVAL},

			{"cq: no entries", uapi.CmdCreateCQ, encode(uapi.CreateCQ{CompChannel: -1}), 8, syscall.EINVAL},
			{"cq: too large", uapi.CmdCreateCQ, encode(uapi.CreateCQ{CompChannel: -1, CQE: ibfake.MaxCQE + 1}), 8,
				syscall.EINVAL},
			{"cq: no such vector", uapi.CmdCreateCQ, encode(uapi.CreateCQ{CompChannel: -1, CQE: 1, CompVector: 2}), 8,
				syscall.EINVAL},
			{"cq: channel is no descriptor", uapi.CmdCreateCQ, encode(uapi.CreateCQ{CompChannel: 9999, CQE: 1}), 8,
				syscall.EBADF},
			{"cq: channel is another file", uapi.CmdCreateCQ, encode(uapi.CreateCQ{CompChannel: int32(p.async), CQE: 1}), 8,
				syscall.EBADF},
			{"cq: mask set", ex(uapi.CmdCreateCQ), encode(uapi.ExCreateCQ{CompChannel: -1, CQE: 1, CompMask: 1}), 16,
				syscall.EINVAL},
			{"cq: reserved set", ex(uapi.CmdCreateCQ), encode(uapi.ExCreateCQ{CompChannel: -1, CQE: 1, Reserved: 1}), 16,
				syscall.EINVAL},
			{"cq: flags that the driver does not support", ex(uapi.CmdCreateCQ),
				encode(uapi.ExCreateCQ{CompChannel: -1, CQE: 1, Flags: 1}), 16, syscall.EOPNOTSUPP},
			{"resize no cq", uapi.CmdResizeCQ, encode(uapi.ResizeCQ{CQHandle: none, CQE: 1}), 8, syscall.ENOENT},
			{"resize too large", uapi.CmdResizeCQ, encode(uapi.ResizeCQ{CQHandle: cq, CQE: ibfake.MaxCQE + 1}), 8,
				syscall.EINVAL},
			{"poll no cq", uapi.CmdPollCQ, encode(uapi.PollCQ{CQHandle: none, NE: 1}), 56, syscall.ENOENT},
			{"notify no cq", uapi.CmdReqNotifyCQ, encode(uapi.ReqNotifyCQ{CQHandle: none}), 0, syscall.ENOENT},
			{"notify a pd", uapi.CmdReqNotifyCQ, encode(uapi.ReqNotifyCQ{CQHandle: pd}), 0, syscall.EINVAL},
			{"destroy no cq", uapi.CmdDestroyCQ, encode(uapi.DestroyCQ{CQHandle: none}), 8, syscall.ENOENT},
			{"destroy a cq in use", uapi.CmdDestroyCQ, encode(uapi.DestroyCQ{CQHandle: cq}), 8, syscall.EBUSY},

			{"qp: no pd", uapi.CmdCreateQP, encode(uapi.CreateQP{PDHandle: none, SendCQHandle: cq, RecvCQHandle: cq,
				QPType: uapi.QPTRC}), 32, syscall.ENOENT},
			{"qp: no send cq", uapi.CmdCreateQP, encode(uapi.CreateQP{PDHandle: pd, SendCQHandle: none, RecvCQHandle: cq,
				QPType: uapi.QPTRC}), 32, syscall.ENOENT},
			{"qp: receive cq is a pd", uapi.CmdCreateQP, encode(uapi.CreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: pd,
				QPType: uapi.QPTRC}), 32, syscall.EINVAL},
			{"qp: no such type", uapi.CmdCreateQP, encode(uapi.CreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq,
				QPType: 7}), 32, syscall.EINVAL},
			{"qp: type that the driver lacks", uapi.CmdCreateQP,
				encode(uapi.CreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq, QPType: uapi.QPTRawPacket}), 32,
				syscall.EOPNOTSUPP},
			{"qp: no xrc domain", uapi.CmdCreateQP, encode(uapi.CreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq,
				QPType: uapi.QPTXRCTgt}), 32, syscall.EINVAL},
			{"qp: no srq", uapi.CmdCreateQP, encode(uapi.CreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq,
				QPType: uapi.QPTRC, IsSRQ: 1}), 32, syscall.ENOENT},
			{"qp: reserved set", ex(uapi.CmdCreateQP), encode(uapi.ExCreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq,
				QPType: uapi.QPTRC, Reserved: 1}), 40, syscall.EINVAL},
			{"qp: unknown mask", ex(uapi.CmdCreateQP), encode(uapi.ExCreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq,
				QPType: uapi.QPTRC, CompMask: 2}), 40, syscall.EINVAL},
			{"qp: no indirection table", ex(uapi.CmdCreateQP),
				encode(uapi.ExCreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq, QPType: uapi.QPTRC, CompMask: 1}), 40,
				syscall.EINVAL},
			{"qp: unknown flags", ex(uapi.CmdCreateQP), encode(uapi.ExCreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq,
				QPType: uapi.QPTRC, CreateFlags: 1 << 31}), 40, syscall.EINVAL},
			{"qp: undefined flags", ex(uapi.CmdCreateQP),
				encode(uapi.ExCreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq, QPType: uapi.QPTRC,
					CreateFlags: uapi.QPCreateScatterFCS}), 40, syscall.EOPNOTSUPP},
			{"query no qp", uapi.CmdQueryQP, encode(uapi.QueryQP{QPHandle: none}), 128, syscall.ENOENT},
			{"destroy no qp", uapi.CmdDestroyQP, encode(uapi.DestroyQP{QPHandle: none}), 4, syscall.ENOENT},
			{"destroy an mr as qp", uapi.CmdDestroyQP, encode(uapi.DestroyQP{QPHandle: mr}), 4, syscall.EINVAL},

			{"modify no qp", uapi.CmdModifyQP, encode(uapi.ModifyQP{QPHandle: none}), 0, syscall.ENOENT},
			{"modify: wrong transition", uapi.CmdModifyQP, encode(uapi.ModifyQP{QPHandle: qp, QPState: uapi.QPSRTS,
				AttrMask: uapi.QPAttrState}), 0, syscall.EINVAL},
			{"modify: no such state", uapi.CmdModifyQP, encode(uapi.ModifyQP{QPHandle: qp, QPState: 7,
				AttrMask: uapi.QPAttrState}),
				0, syscall.EINVAL},
			{"modify: no such current state", uapi.CmdModifyQP,
				encode(uapi.ModifyQP{QPHandle: qp, CurQPState: 7, AttrMask: uapi.QPAttrCurState}), 0, syscall.EINVAL},
			{"modify: no such port", uapi.CmdModifyQP, encode(uapi.ModifyQP{QPHandle: qp, QPState: uapi.QPSInit, PortNum: 2,
				AttrMask: initMask}), 0, syscall.EINVAL},
			{"modify: no such port in the address", uapi.CmdModifyQP,
				encode(uapi.ModifyQP{QPHandle: qp, Dest: uapi.QPDest{PortNum: 2}, AttrMask: uapi.QPAttrAV}), 0, syscall.EINVAL},
			{"modify: ports differ in the alternate path", uapi.CmdModifyQP,
				encode(uapi.ModifyQP{QPHandle: qp, AltPortNum: 1, AttrMask: uapi.QPAttrAltPath}), 0, syscall.EINVAL},
			{"modify: unknown attribute", uapi.CmdModifyQP, encode(uapi.ModifyQP{QPHandle: qp, AttrMask: 1 << 31}), 0,
				syscall.EOPNOTSUPP},
			{"modify: rate limit needs the extended form", uapi.CmdModifyQP,
				encode(uapi.ModifyQP{QPHandle: qp, AttrMask: uapi.QPAttrRateLimit}), 0, syscall.EOPNOTSUPP},
			{"modify, extended: unknown attribute", ex(uapi.CmdModifyQP),
				encode(uapi.ExModifyQP{Base: uapi.ModifyQP{QPHandle: qp, AttrMask: 1 << 31}}), 8, syscall.EOPNOTSUPP},

			{"ah: no pd", uapi.CmdCreateAH, encode(uapi.CreateAH{PDHandle: none, Attr: uapi.AHAttr{PortNum: 1}}), 4,
				syscall.ENOENT},
			{"ah: no port", uapi.CmdCreateAH, encode(uapi.CreateAH{PDHandle: pd}), 4, syscall.EINVAL},
			{"destroy no ah", uapi.CmdDestroyAH, encode(uapi.DestroyAH{AHHandle: none}), 0, syscall.ENOENT},
			{"destroy a pd as ah", uapi.CmdDestroyAH, encode(uapi.DestroyAH{AHHandle: pd}), 0, syscall.EINVAL},

			{"post to no qp", uapi.CmdPostSend, encode(uapi.PostSend{QPHandle: none}), 4, syscall.ENOENT},
			{"post: does not fit", uapi.CmdPostSend, encode(uapi.PostSend{QPHandle: qp, WRCount: 1, WQESize: 56}), 4,
				syscall.ENOSPC},
			{"post: elements do not fit", uapi.CmdPostSend, encode(uapi.PostSend{QPHandle: qp, SGECount: 1 << 31}), 4,
				syscall.ENOSPC},
			{"post: small requests", uapi.CmdPostSend, encode(uapi.PostSend{QPHandle: qp, WRCount: 1, WQESize: 55}), 4,
				syscall.EINVAL},
			{"post receives to no qp", uapi.CmdPostRecv, encode(uapi.PostRecv{QPHandle: none}), 4, syscall.ENOENT},

			{"rereg mr: nothing", uapi.CmdReregMR, encode(uapi.ReregMR{MRHandle: mr}), 8, syscall.EINVAL},
			{"rereg mr: nothing of none", uapi.CmdReregMR, encode(uapi.ReregMR{MRHandle: none}), 8, syscall.EINVAL},
			{"rereg mr: unknown change", uapi.CmdReregMR, encode(uapi.ReregMR{MRHandle: mr, Flags: 8}), 8, syscall.EOPNOTSUPP},
			{"rereg mr: none", uapi.CmdReregMR, encode(uapi.ReregMR{MRHandle: none, Flags: uapi.ReregMRChangeAccess}), 8,
				syscall.ENOENT},
			{"rereg mr: a pd", uapi.CmdReregMR, encode(uapi.ReregMR{MRHandle: pd, Flags: uapi.ReregMRChangeAccess}), 8,
				syscall.EINVAL},
			{"rereg mr: no pd", uapi.CmdReregMR, encode(uapi.ReregMR{MRHandle: mr, PDHandle: none,
				Flags: uapi.ReregMRChangePD}), 8,
				syscall.ENOENT},
			{"rereg mr: remote write only", uapi.CmdReregMR,
				encode(uapi.ReregMR{MRHandle: mr, AccessFlags: uapi.AccessRemoteWrite, Flags: uapi.ReregMRChangeAccess}), 8,
				syscall.EINVAL},
			{"rereg mr: unknown right", uapi.CmdReregMR, encode(uapi.ReregMR{MRHandle: mr, AccessFlags: 1 << 31,
				Flags: uapi.ReregMRChangeAccess}), 8, syscall.EINVAL},
			{"rereg mr: offset in the page differs", uapi.CmdReregMR,
				encode(uapi.ReregMR{MRHandle: mr, Start: addr, HCAVA: addr + 1, Length: 1,
					Flags: uapi.ReregMRChangeTranslation}), 8,
				syscall.EINVAL},
			{"rereg mr: not mapped", uapi.CmdReregMR, encode(uapi.ReregMR{MRHandle: mr, Start: 0x1000, HCAVA: 0x1000, Length: 1,
				Flags: uapi.ReregMRChangeTranslation}), 8, syscall.EFAULT},
			{"alloc mw: no pd", uapi.CmdAllocMW, encode(uapi.AllocMW{PDHandle: none, MWType: uapi.MWType1}), 8, syscall.ENOENT},
			{"alloc mw: no such type", uapi.CmdAllocMW, encode(uapi.AllocMW{PDHandle: pd, MWType: 3}), 8, syscall.EINVAL},
			{"dealloc no mw", uapi.CmdDeallocMW, encode(uapi.DeallocMW{MWHandle: none}), 0, syscall.ENOENT},
			{"dealloc a pd as mw", uapi.CmdDeallocMW, encode(uapi.DeallocMW{MWHandle: pd}), 0, syscall.EINVAL},
			{"create srq", uapi.CmdCreateSRQ, encode(uapi.CreateSRQ{PDHandle: pd}), 16, syscall.EOPNOTSUPP},
			{"open xrcd", uapi.CmdOpenXRCD, encode(uapi.OpenXRCD{FD: ^uint32(0)}), 4, syscall.EOPNOTSUPP},
			{"attach multicast", uapi.CmdAttachMcast, encode(uapi.AttachMcast{QPHandle: qp}), 0, syscall.EOPNOTSUPP},
			{"no such command", uapi.Command(200), encode(uapi.DeallocPD{}), 0, syscall.EOPNOTSUPP},
			{"create flow", uapi.ExCmdCreateFlow, make([]byte, 24), 8, syscall.EOPNOTSUPP},
			{"modify cq", uapi.ExCmdModifyCQ, encode(uapi.ExModifyCQ{CQHandle: cq}), 0, syscall.EOPNOTSUPP},
			{"no such extended command", uapi.ExCommand(200), make([]byte, 8), 0, syscall.EOPNOTSUPP},
		} {
			c := rawCommand{core: test.req, room: test.room}
			switch n := test.cmd.(type) {
			case uapi.Command:
				c.number = uint32(n)
			case uapi.ExCommand:
				c.number, c.extended = uint32(n), true
			}
			_, _, err := p.sendCommand(c)
			wantErrno(t, test.name, err, test.want)
		}
		if got := w.drv.TakeDestroyedKinds(); len(got) != 0 {
			t.Errorf("destroyed %v", got)
		}
		if ah == 0 || w.dev.Objects() != (ib.ObjectCounts{PD: 1, MR: 1, CQ: 1, QP: 1, AH: 1}) {
			t.Errorf("objects: got %v, want one PD, MR, CQ, QP and AH", w.dev.Objects())
		}
	})
}

func encode[T any](v T) []byte { return uapi.AppendTo(nil, &v) }

// TestInvalidCommandSizesAreRefused sends every command with invalid sizes.
func TestInvalidCommandSizesAreRefused(t *testing.T) {
	testEachForm(t, func(t *testing.T, form commandForm) {
		w := newFixture(t)
		p := w.startProgram(form)
		for _, cmd := range commands {
			name, good := cmd.String(), minimalCommand(cmd)
			unit := 4
			if good.extended {
				unit = 8
			}
			short := good
			if short.core = short.core[:(cmd.Request-1)/unit*unit]; len(short.core) > 0 {
				_, _, err := p.sendCommand(short)
				wantErrno(t, name+": short request", err, syscall.ENOSPC)
			}
			if cmd.Response > 0 {
				short := good
				if short.room = (cmd.Response - 1) / unit * unit; short.room > 0 {
					_, _, err := p.sendCommand(short)
					wantErrno(t, name+": little room", err, syscall.ENOSPC)
				}
			}
			if !cmd.Driver || form == byIoctl {
				long := good
				long.core = append(make([]byte, 504), 0, 0, 0, 0, 0, 0, 0, 1)
				_, _, err := p.sendCommand(long)
				wantErrno(t, name+": more than is known", err, syscall.EOPNOTSUPP)
			}
		}
	})
}

// minimalCommand returns a command of zeros with the minimum sizes.
func minimalCommand(c *command) rawCommand {
	extended := c.Number&uapi.CmdFlagExtended != 0
	raw := rawCommand{number: c.Number &^ uapi.CmdFlagExtended, extended: extended, core: make([]byte, c.Request),
		room: c.Response}
	if extended {
		raw.core, raw.room = make([]byte, (c.Request+7)&^7), (c.Response+7)&^7
	}
	return raw
}

// handleFirstCommands lists the commands that look up their object before any other check. Commands that destroy an
// object are not in the list.
var handleFirstCommands = []uint32{
	uint32(uapi.CmdResizeCQ), uint32(uapi.CmdPollCQ), uint32(uapi.CmdReqNotifyCQ), uint32(uapi.CmdQueryQP),
	uint32(uapi.CmdModifyQP),
	uint32(uapi.CmdPostSend), uint32(uapi.CmdPostRecv), uint32(uapi.CmdAttachMcast), uint32(uapi.CmdDetachMcast),
	uint32(uapi.CmdModifySRQ),
	uint32(uapi.CmdQuerySRQ), uint32(uapi.CmdPostSRQRecv), uint32(uapi.ExCmdModifyQP) | uapi.CmdFlagExtended,
}

// TestCommandsFailWithoutContext checks the errors of every command except GET_CONTEXT. The test sends the commands
// before there is a context, and after the file has been closed.
func TestCommandsFailWithoutContext(t *testing.T) {
	testEachForm(t, func(t *testing.T, form commandForm) {
		w := newFixture(t)
		p := w.open(form)
		for _, closed := range []bool{false, true} {
			if closed {
				p.f.Close()
			}
			for n, cmd := range commands {
				if n == uint32(uapi.CmdGetContext) && !closed {
					continue
				}
				want := syscall.EINVAL
				switch {
				case closed:
					want = syscall.EBADF
				case cmd.spec.Effect == verb.Destroys, slices.Contains(handleFirstCommands, n):
					want = syscall.ENOENT
				}
				_, _, err := p.sendCommand(minimalCommand(cmd))
				wantErrno(t, cmd.String(), err, want)
			}
		}
	})
}

// TestInvalidWriteHeaders sends invalid headers with write(2).
func TestInvalidWriteHeaders(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byWrite)
	resp := addressOf(p.allocMem(4096))
	plain := func(command uint32, in, out uint16, body int) []byte {
		hdr := uapi.CmdHdr{Command: command, InWords: in, OutWords: out}
		b := append(uapi.AppendTo(nil, &hdr), make([]byte, body)...)
		if body >= 8 {
			putUint64(b[8:], resp)
		}
		return b
	}
	extended := func(command uint32, in, out uint16, ex uapi.ExCmdHdr, body int) []byte {
		hdr := uapi.CmdHdr{Command: command | uapi.CmdFlagExtended, InWords: in, OutWords: out}
		return append(uapi.AppendTo(uapi.AppendTo(nil, &hdr), &ex), make([]byte, body)...)
	}
	queryDevice, allocPD := uint32(uapi.CmdQueryDevice), uint32(uapi.CmdAllocPD)
	for _, test := range []struct {
		name string
		cmd  []byte
		want syscall.Errno
	}{
		{"nothing", nil, syscall.EINVAL},
		{"half a header", make([]byte, 4), syscall.EINVAL},
		{"too long", make([]byte, maxCommand+4), syscall.EINVAL},
		{"fine", plain(allocPD, 4, 1, 8), 0},
		{"fewer words than bytes", plain(allocPD, 3, 1, 8), syscall.EINVAL},
		{"more words than bytes", plain(allocPD, 5, 1, 8), syscall.EINVAL},
		{"odd number of bytes", plain(allocPD, 4, 1, 9), syscall.EINVAL},
		{"undefined flags", plain(allocPD|1<<30, 4, 1, 8), syscall.EINVAL},
		{"undefined flags, extended", extended(queryDevice|1<<8, 1, 38, uapi.ExCmdHdr{Response: resp}, 8),
			syscall.EINVAL},
		{"no such command", plain(uint32(uapi.CmdQueryAH), 4, 1, 8), syscall.EOPNOTSUPP},
		{"no such command, fewer words than bytes", plain(uint32(uapi.CmdQueryAH), 3, 1, 8), syscall.EINVAL},
		{"beyond the last command, fewer words than bytes", plain(uint32(uapi.CmdOpenQP)+1, 3, 1, 8), syscall.EOPNOTSUPP},
		{"no such extended command", extended(allocPD, 8, 0, uapi.ExCmdHdr{}, 8), syscall.EOPNOTSUPP},
		{"no such extended command, fewer words than bytes", extended(allocPD, 1, 0, uapi.ExCmdHdr{}, 8), syscall.EINVAL},
		{"beyond the last extended command, fewer words than bytes",
			extended(uint32(uapi.ExCmdModifyQP)+1, 1, 0, uapi.ExCmdHdr{}, 8), syscall.EOPNOTSUPP},
		{"extended, fine", extended(queryDevice, 1, 38, uapi.ExCmdHdr{Response: resp}, 8), 0},
		{"extended, half a header", extended(queryDevice, 1, 38, uapi.ExCmdHdr{}, 0)[:20], syscall.EINVAL},
		{"extended, fewer words than bytes", extended(queryDevice, 1, 38, uapi.ExCmdHdr{Response: resp}, 16), syscall.EINVAL},
		{"extended, more words than bytes", extended(queryDevice, 1, 38, uapi.ExCmdHdr{Response: resp, ProviderInWords: 1},
			8), syscall.EINVAL},
		{"extended, reserved set", extended(queryDevice, 1, 38, uapi.ExCmdHdr{Response: resp, CmdHdrReserved: 1}, 8),
			syscall.EINVAL},
		{"extended, response without room", extended(queryDevice, 1, 0, uapi.ExCmdHdr{Response: resp}, 8), syscall.EINVAL},
		{"extended, room without response", extended(queryDevice, 1, 38, uapi.ExCmdHdr{}, 8), syscall.EINVAL},
		{"extended, driver's room without response", extended(queryDevice, 1, 0, uapi.ExCmdHdr{ProviderOutWords: 1}, 8),
			syscall.EINVAL},
		{"extended, no response wanted", extended(queryDevice, 1, 0, uapi.ExCmdHdr{}, 8), 0},
	} {
		wantErrno(t, test.name, p.writeCommand(test.cmd), test.want)
	}
	if _, err := p.f.Write(p, 8, 16); err == nil {
		t.Error("command at an unmapped address: got success, want an error")
	} else {
		wantErrno(t, "command that is not there", err, syscall.EFAULT)
	}
}

// TestUndeliveredResponseDestroysObject checks that an object is destroyed if its response cannot be delivered.
func TestUndeliveredResponseDestroysObject(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byWrite)
	pd, cq := p.allocPD(), p.createCQ(-1, 0)
	addr := addressOf(p.allocMem(4096))
	counts := w.dev.Objects()
	w.drv.TakeDestroyedKinds()
	const nowhere = 0x1000
	send := func(cmd uapi.Command, out int, req []byte) error {
		hdr := uapi.CmdHdr{Command: uint32(cmd), InWords: uint16((8 + len(req)) / 4), OutWords: uint16(out / 4)}
		putUint64(req, nowhere)
		return p.writeCommand(append(uapi.AppendTo(nil, &hdr), req...))
	}
	for _, test := range []struct {
		cmd  uapi.Command
		out  int
		req  []byte
		want []string
	}{
		{uapi.CmdAllocPD, 4, encode(uapi.AllocPD{}), []string{"PD"}},
		{uapi.CmdRegMR, 12, encode(uapi.RegMR{Start: addr, HCAVA: addr, Length: 10, PDHandle: pd}), []string{"MR"}},
		{uapi.CmdCreateCQ, 8, encode(uapi.CreateCQ{CQE: 1, CompChannel: -1}), []string{"CQ"}},
		{uapi.CmdCreateQP, 32, encode(uapi.CreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq, QPType: uapi.QPTRC}),
			[]string{"QP"}},
		{uapi.CmdCreateAH, 4, encode(uapi.CreateAH{PDHandle: pd, Attr: uapi.AHAttr{PortNum: 1}}), []string{"AH"}},
		{uapi.CmdCreateCompChannel, 4, encode(uapi.AllocPD{}), nil},
	} {
		wantErrno(t, test.cmd.String(), send(test.cmd, test.out, test.req), syscall.EFAULT)
		if got := w.drv.TakeDestroyedKinds(); !slices.Equal(got, test.want) {
			t.Errorf("%v: destroyed %v, want %v", test.cmd, got, test.want)
		}
	}
	if w.dev.Objects() != counts || p.acct.Pages() != 0 || len(p.f.doorbells.list) != 0 || len(p.f.events.channels) != 0 {
		t.Errorf("after a failed response: got objects %v, want %v, and %d pages, %d doorbells, %d channels, want none",
			w.dev.Objects(), counts, p.acct.Pages(),
			len(p.f.doorbells.list), len(p.f.events.channels))
	}

	fresh := w.open(byWrite)
	hdr := uapi.CmdHdr{Command: uint32(uapi.CmdGetContext), InWords: 4, OutWords: 2}
	wantErrno(t, "GET_CONTEXT", fresh.writeCommand(append(uapi.AppendTo(nil, &hdr), 0, 16, 0, 0, 0, 0, 0, 0)),
		syscall.EFAULT)
	if w.drv.UserContextCount() != 1 {
		t.Errorf("contexts in the driver: got %d, want 1", w.drv.UserContextCount())
	}
	if _, err := sendPlain[uapi.GetContextResp](fresh, uapi.CmdGetContext, uapi.GetContext{}); err != nil {
		t.Errorf("GET_CONTEXT again: %v", err)
	}
}

// TestHandlesAreNotReusedSoon checks that a handle is not reused soon, and that each context has its own handles.
func TestHandlesAreNotReusedSoon(t *testing.T) {
	w := newFixture(t)
	a, b := w.startProgram(byWrite), w.startProgram(byIoctl)
	first := a.allocPD()
	must(t, sendWithoutResponse(a, uapi.CmdDeallocPD, uapi.DeallocPD{PDHandle: first}))
	second := a.allocPD()
	if second == first || first == 0 {
		t.Errorf("handles: got %d and %d, want different ones above 0", first, second)
	}
	wantErrno(t, "stale handle", sendWithoutResponse(a, uapi.CmdDeallocPD, uapi.DeallocPD{PDHandle: first}),
		syscall.ENOENT)
	b.allocPD()
	wantErrno(t, "handle of another context", sendWithoutResponse(b, uapi.CmdDeallocPD, uapi.DeallocPD{PDHandle: second}),
		syscall.ENOENT)

	var tab objectTable
	tab.last = 1<<31 - 2
	taken := tab.add(&pdObject{})
	if taken.handle != 1<<31-1 {
		t.Errorf("last handle: got %#x, want 0x7fffffff", taken.handle)
	}
	one := tab.add(&pdObject{})
	tab.last = 1<<31 - 2
	if got := tab.add(&pdObject{}).handle; one.handle != 1 || got != 2 {
		t.Errorf("handles after the last one: got %d and %d, want 1 and 2", one.handle, got)
	}
	var order []string
	for o := range tab.all() {
		order = append(order, fmt.Sprint(o.handle))
	}
	if !slices.Equal(order, []string{"2", "1", "2147483647"}) {
		t.Errorf("order from the latest: got %v, want 2, 1, 2147483647", order)
	}
	tab.remove(one)
	if tab.find(1) != nil || tab.first != taken || tab.tail.handle != 2 || tab.tail.prev != taken {
		t.Error("table after a removal from the middle: got wrong links, want the neighbours linked")
	}
	tab.remove(tab.tail)
	tab.remove(taken)
	if tab.first != nil || tab.tail != nil {
		t.Error("table after the last removal: got an object, want an empty table")
	}
}

func TestOpenDevice(t *testing.T) {
	w := newFixture(t)
	m := &unmappedMemory{}
	_, err := w.srv.Open("uverbs1", nil, m)
	wantErrno(t, "open what is not there", err, syscall.ENODEV)
	d := w.srv.Devices()[0]
	if d.Name() != "uverbs0" || d.Minor() != 0 || !d.IB().Same(w.dev) || d.ABIVersion() != 6 || d.DriverABI() != 2 {
		t.Errorf("device: got %s with minor %d and versions %d and %d, want uverbs0 with 0, 6 and 2", d.Name(), d.Minor(),
			d.ABIVersion(), d.DriverABI())
	}
	p := w.open(byWrite)
	if p.f.Device() != d {
		t.Error("not its device")
	}
}

// TestNewDeviceGetsFirstFreeMinor checks that a new device gets the first free number, and that OnChange reports
// changes of the list.
func TestNewDeviceGetsFirstFreeMinor(t *testing.T) {
	w := newFixture(t)
	changes := 0
	w.srv.OnChange(func() { changes++ })
	second, third := ib.NewDevice("rxe1", ibfake.New(), nil), ib.NewDevice("rxe2", ibfake.New(), nil)
	must(t, w.core.Register(second))
	must(t, w.core.Register(third))
	names := func() (s []string) {
		for _, d := range w.srv.Devices() {
			s = append(s, d.Name()+"="+d.IB().Name())
		}
		return s
	}
	if got := names(); !slices.Equal(got, []string{"uverbs0=rxe0", "uverbs1=rxe1", "uverbs2=rxe2"}) {
		t.Errorf("devices %v", got)
	}
	must(t, w.core.Unregister(second))
	again := ib.NewDevice("rxe3", ibfake.New(), nil)
	must(t, w.core.Register(again))
	if got := names(); !slices.Equal(got, []string{"uverbs0=rxe0", "uverbs1=rxe3", "uverbs2=rxe2"}) {
		t.Errorf("devices %v", got)
	}
	if changes != 4 {
		t.Errorf("OnChange: got %d calls, want 4", changes)
	}
	broken := ibfake.New()
	broken.FailMethod(ibfake.QueryDevice, syscall.EIO)
	must(t, w.core.Register(ib.NewDevice("rxe4", broken, nil)))
	if len(w.srv.Devices()) != 3 {
		t.Errorf("devices: got %v, want 3", names())
	}
}

// TestMWAndReregMRCommands checks handles, keys, pages and the order of destruction for memory windows and
// reregistered regions.
func TestMWAndReregMRCommands(t *testing.T) {
	testEachForm(t, func(t *testing.T, form commandForm) {
		w := newFixture(t)
		p := w.startProgram(form)
		pd, other := p.allocPD(), p.allocPD()
		mr := p.regMR(pd)
		var windows []uapi.AllocMWResp
		for _, kind := range []uapi.MWType{uapi.MWType1, uapi.MWType2} {
			mw, err := sendPlain[uapi.AllocMWResp](p, uapi.CmdAllocMW, uapi.AllocMW{PDHandle: pd, MWType: kind})
			must(t, err)
			windows = append(windows, mw)
		}
		if windows[0].RKey != 2<<8 || windows[1].RKey != 3<<8 {
			t.Errorf("windows: got %+v, want keys 0x200 and 0x300", windows)
		}
		info := p.f.info().MWs
		if len(info) != 2 || info[1] != (mwInfo{Handle: windows[1].MWHandle, PD: pd, RKey: 3 << 8, Type: ib.MWType2}) {
			t.Errorf("list of windows: got %+v, want both windows", info)
		}
		must(t, sendWithoutResponse(p, uapi.CmdDeallocMW, uapi.DeallocMW{MWHandle: windows[0].MWHandle}))

		region := p.f.objects.find(mr.MRHandle).res.(*mrObject)
		start := region.Region().Addr()
		rereg := func(change uapi.ReregMR) uapi.ReregMRResp {
			t.Helper()
			change.MRHandle = mr.MRHandle
			resp, err := sendPlain[uapi.ReregMRResp](p, uapi.CmdReregMR, change)
			must(t, err)
			return resp
		}
		all := uapi.ReregMRChangeTranslation | uapi.ReregMRChangePD | uapi.ReregMRChangeAccess
		got := rereg(uapi.ReregMR{Flags: all, Start: start + 8, HCAVA: start + 8, Length: 100, PDHandle: other,
			AccessFlags: uapi.AccessRemoteRead})
		if got.LKey != 4 || got.RKey != 4<<8 || region.Region().Addr() != start+8 || region.Region().Len() != 100 ||
			region.Access() != ib.AccessRemoteRead || region.pd != other || p.acct.Pages() != 1 {
			t.Errorf("reregistration: got %+v, region %+v, access %v, PD %d, %d pages, want the new values",
				got, region.Region(), region.Access(), region.pd,
				p.acct.Pages())
		}
		wantErrno(t, "dealloc the region's domain", sendWithoutResponse(p, uapi.CmdDeallocPD,
			uapi.DeallocPD{PDHandle: other}),
			syscall.EBUSY)
		rereg(uapi.ReregMR{Flags: uapi.ReregMRChangePD, PDHandle: pd})
		must(t, sendWithoutResponse(p, uapi.CmdDeallocPD, uapi.DeallocPD{PDHandle: other}))
		w.drv.FailMethod(ibfake.ReregMR, syscall.EBUSY)
		_, err := sendPlain[uapi.ReregMRResp](p, uapi.CmdReregMR,
			uapi.ReregMR{MRHandle: mr.MRHandle, Flags: uapi.ReregMRChangeTranslation, Start: start, HCAVA: start, Length: 1})
		wantErrno(t, "a driver that refuses", err, syscall.EBUSY)
		if region.Region().Addr() != start+8 || p.acct.Pages() != 1 {
			t.Errorf("region after a failure: got %+v and %d pages, want the former range and 1 page", region.Region(),
				p.acct.Pages())
		}
		w.drv.TakeDestroyedKinds()
		p.f.Close()
		if got := w.drv.TakeDestroyedKinds(); !slices.Equal(got, []string{"MW", "MR", "PD"}) {
			t.Errorf("destroyed %v", got)
		}
	})
}
