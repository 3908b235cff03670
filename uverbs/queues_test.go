package uverbs

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/internal/quota"
	"verbena/internal/testutil"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/roce"
	"verbena/uapi"
)

// newRXEFixture returns a server with a device that has real queues.
func newRXEFixture(t *testing.T) *fixture {
	t.Helper()
	checkNoDescriptorLeak(t)
	drv, err := rxe.New(rxe.Config{
		Name:    "rxe0",
		Netdev:  netdev.Interface{Name: "sim0", Index: 1, MTU: 4200, Up: true, Running: true},
		Addrs:   []netip.Addr{netip.MustParseAddr("10.1.0.1")},
		Network: simnet.New(simnet.Config{}),
		Fabric:  &rxe.Fabric{},
		Logf:    t.Logf,
	})
	must(t, err)
	t.Cleanup(func() { must(t, drv.Close()) })
	return newDeviceFixture(t, drv.Handle(), ibfake.New())
}

// createSRQ creates a shared receive queue and also returns the driver's response.
func (p *program) createSRQ(pd uint32, req uapi.CreateXSRQ) (uapi.CreateSRQResp, uapi.RXECreateSRQResp) {
	p.t.Helper()
	req.PDHandle, req.MaxWR, req.MaxSGE = pd, 8, 1
	resp, out, err := sendPlainWith[uapi.CreateSRQResp](p, uapi.CmdCreateXSRQ, req, nil,
		uapi.SizeOf[uapi.RXECreateSRQResp]())
	must(p.t, err)
	drv, ok := uapi.Decode[uapi.RXECreateSRQResp](out)
	if !ok || resp.MaxWR < 8 || resp.MaxSGE < 1 || drv.MI.Size == 0 {
		p.t.Fatalf("%+v, the driver says %+v", resp, drv)
	}
	return resp, drv
}

func (p *program) createRXECQ() uint32 {
	p.t.Helper()
	resp, _, err := sendPlainWith[uapi.CreateCQResp](p, uapi.CmdCreateCQ, uapi.CreateCQ{CQE: 20, CompChannel: -1}, nil, 16)
	must(p.t, err)
	return resp.CQHandle
}

func (p *program) createRXEQP(req uapi.CreateQP) uapi.CreateQPResp {
	p.t.Helper()
	req.MaxSendWR, req.MaxSendSGE = 4, 1
	resp, _, err := sendPlainWith[uapi.CreateQPResp](p, uapi.CmdCreateQP, req, nil, 32)
	must(p.t, err)
	return resp
}

// connectQP moves a queue pair to RTS, connected to another queue pair of the same device.
func (p *program) connectQP(handle, peer uint32, t uapi.QPType) {
	p.t.Helper()
	gid, err := p.w.dev.QueryGID(1, 1)
	must(p.t, err)
	modify := func(m uapi.ModifyQP) {
		p.t.Helper()
		m.QPHandle = handle
		m.AttrMask |= uapi.QPAttrState
		must(p.t, sendWithoutResponse(p, uapi.CmdModifyQP, m))
	}
	modify(uapi.ModifyQP{QPState: uapi.QPSInit, PortNum: 1,
		AttrMask: uapi.QPAttrPort | uapi.QPAttrPKeyIndex | uapi.QPAttrAccessFlags})
	rtr := uapi.ModifyQP{
		QPState: uapi.QPSRTR, PathMTU: uint8(roce.MTU1024), DestQPNum: peer, MaxDestRDAtomic: 1, MinRNRTimer: 1,
		Dest:     uapi.QPDest{DGID: gid.GID, SGIDIndex: 1, IsGlobal: 1, PortNum: 1},
		AttrMask: uapi.QPAttrAV | uapi.QPAttrPathMTU | uapi.QPAttrDestQPN | uapi.QPAttrRQPSN,
	}
	rts := uapi.ModifyQP{QPState: uapi.QPSRTS, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 1,
		AttrMask: uapi.QPAttrSQPSN | uapi.QPAttrTimeout}
	if t != uapi.QPTXRCIni {
		rtr.AttrMask |= uapi.QPAttrMaxDestRDAtomic | uapi.QPAttrMinRNRTimer
	}
	if t != uapi.QPTXRCTgt {
		rts.AttrMask |= uapi.QPAttrRetryCnt | uapi.QPAttrRNRRetry | uapi.QPAttrMaxQPRDAtomic
	}
	modify(rtr)
	modify(rts)
}

// waitWC waits for a completion.
func (p *program) waitWC(cq uint32) uapi.WC {
	p.t.Helper()
	var wc uapi.WC
	testutil.Eventually(p.t, "a completion", func() bool {
		b, _, err := p.sendCommand(rawCommand{number: uint32(uapi.CmdPollCQ), core: encode(uapi.PollCQ{CQHandle: cq,
			NE: 1}), room: 8 +
			48})
		must(p.t, err)
		r, _ := uapi.Decode[uapi.PollCQResp](b)
		if r.Count == 1 {
			wc, _ = uapi.Decode[uapi.WC](b[8:])
		}
		return r.Count == 1
	})
	return wc
}

// expectEvents waits for asynchronous events.
func (p *program) expectEvents(want ...string) {
	p.t.Helper()
	var got []string
	testutil.PollUntil(func() bool {
		more, _ := p.readAsyncEvents(p.async)
		got = append(got, more...)
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		p.t.Errorf("events %v, want %v", got, want)
	}
}

func TestSRQCommands(t *testing.T) {
	testEachForm(t, func(t *testing.T, form commandForm) {
		p := newRXEFixture(t).startProgram(form)
		pd, cq := p.allocPD(), p.createRXECQ()
		mr := p.regMR(pd)
		addr := p.f.objects.find(mr.MRHandle).res.(*mrObject).Region().IOVA()
		srq, drv := p.createSRQ(pd, uapi.CreateXSRQ{UserHandle: 77})
		if srq.SRQN != 0 {
			t.Errorf("number of a basic queue: got %d, want 0", srq.SRQN)
		}
		var qps [2]uapi.CreateQPResp
		for i := range qps {
			qps[i] = p.createRXEQP(uapi.CreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq, QPType: uapi.QPTRC, IsSRQ: 1,
				SRQHandle: srq.SRQHandle})
		}
		for i := range qps {
			p.connectQP(qps[i].QPHandle, qps[1-i].QPN, uapi.QPTRC)
		}
		wantErrno(t, "destroy in use", func() error {
			_, err := sendPlain[uapi.DestroySRQResp](p, uapi.CmdDestroySRQ, uapi.DestroySRQ{SRQHandle: srq.SRQHandle})
			return err
		}(), syscall.EBUSY)

		sge := []uapi.SGE{{Addr: addr, Length: 64, LKey: mr.LKey}}
		for i := range 3 {
			bad, err := postWRs(p, uapi.CmdPostSRQRecv, srq.SRQHandle, []uapi.RecvWR{{WRID: uint64(i), NumSGE: 1}}, sge)
			if err != nil || bad != 0 {
				t.Fatalf("refused %d: %v", bad, err)
			}
		}
		must(t, sendWithoutResponse(p, uapi.CmdModifySRQ, uapi.ModifySRQ{SRQHandle: srq.SRQHandle,
			AttrMask: uapi.SRQAttrLimit,
			SRQLimit: 2}))
		q, err := sendPlain[uapi.QuerySRQResp](p, uapi.CmdQuerySRQ, uapi.QuerySRQ{SRQHandle: srq.SRQHandle})
		must(t, err)
		if q.SRQLimit != 2 || q.MaxWR != srq.MaxWR || q.MaxSGE != srq.MaxSGE {
			t.Errorf("query: got %+v, want limit 2 and the values of the creation", q)
		}
		for i := range 2 { // from either queue pair, to the same SRQ
			wr := uapi.SendWR{WRID: 10, NumSGE: 1, Opcode: uapi.WRSend}
			if bad, err := postWRs(p, uapi.CmdPostSend, qps[i].QPHandle, []uapi.SendWR{wr}, sge); err != nil || bad != 0 {
				t.Fatalf("refused %d: %v", bad, err)
			}
			if wc := p.waitWC(cq); wc.Status != uapi.WCSuccess || wc.WRID != uint64(i) || wc.QPNum != qps[1-i].QPN {
				t.Errorf("message %d: got %+v, want success", i, wc)
			}
		}
		p.expectEvents(fmt.Sprintf("%v:77", uapi.EventSRQLimitReached))

		// The request asks for another capacity, and the driver returns the offset.
		place := p.allocMem(16)[:16]
		_, _, err = sendPlainWith[noResponse](p, uapi.CmdModifySRQ, uapi.ModifySRQ{SRQHandle: srq.SRQHandle,
			AttrMask: uapi.SRQAttrMaxWR,
			MaxWR:    100},
			encode(uapi.RXEModifySRQCmd{MMapInfoAddr: addressOf(place)}), 0)
		must(t, err)
		if mi, _ := uapi.Decode[uapi.MMInfo](place); mi.Size <= drv.MI.Size {
			t.Errorf("queue after the resize: got %+v, want it larger than %+v", mi, drv.MI)
		}
		wantErrno(t, "resize without telling where", sendWithoutResponse(p, uapi.CmdModifySRQ,
			uapi.ModifySRQ{SRQHandle: srq.SRQHandle, AttrMask: uapi.SRQAttrMaxWR, MaxWR: 50}), syscall.EINVAL)
		info := p.f.info()
		if len(info.SRQs) != 1 || info.SRQs[0].MaxWR < 100 || info.SRQs[0].XRC {
			t.Errorf("resources: got %+v, want 1 basic SRQ", info.SRQs)
		}
		if info.SRQs[0].PD != info.PDs[0].Handle {
			t.Errorf("PD of the SRQ: got %d, want %d", info.SRQs[0].PD, info.PDs[0].Handle)
		}
		for _, q := range info.QPs {
			if q.SRQ != info.SRQs[0].Handle {
				t.Errorf("SRQ of QP %d: got %d, want %d", q.Num, q.SRQ, info.SRQs[0].Handle)
			}
		}
		for i := range qps {
			_, err := sendPlain[uapi.DestroyQPResp](p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: qps[i].QPHandle})
			must(t, err)
		}
		r, err := sendPlain[uapi.DestroySRQResp](p, uapi.CmdDestroySRQ, uapi.DestroySRQ{SRQHandle: srq.SRQHandle})
		must(t, err)
		if r.EventsReported != 1 {
			t.Errorf("reported events: got %d, want 1", r.EventsReported)
		}

		for _, bad := range []struct {
			name string
			req  uapi.CreateXSRQ
			want syscall.Errno
		}{
			{"no such domain", uapi.CreateXSRQ{PDHandle: 999, MaxWR: 1}, syscall.ENOENT},
			{"no such type", uapi.CreateXSRQ{PDHandle: pd, MaxWR: 1, SRQType: 9}, syscall.EINVAL},
			{"tag matching", uapi.CreateXSRQ{PDHandle: pd, MaxWR: 1, SRQType: uapi.SRQTTM}, syscall.EOPNOTSUPP},
			{"XRC without domain", uapi.CreateXSRQ{PDHandle: pd, MaxWR: 1, SRQType: uapi.SRQTXRC, CQHandle: cq}, syscall.EINVAL},
			{"no room", uapi.CreateXSRQ{PDHandle: pd}, syscall.EINVAL},
		} {
			_, _, err := sendPlainWith[uapi.CreateSRQResp](p, uapi.CmdCreateXSRQ, bad.req, nil, 32)
			wantErrno(t, bad.name, err, bad.want)
		}
	})
}

// openXRCD opens the XRC domain of a descriptor. -1 means a private domain.
func (p *program) openXRCD(fd, flags int) (uint32, error) {
	r, err := sendPlain[uapi.OpenXRCDResp](p, uapi.CmdOpenXRCD, uapi.OpenXRCD{FD: uint32(fd), OFlags: uint32(flags)})
	return r.XRCDHandle, err
}

// TestXRCCommands tests XRC by commands. One program sends. Another program shares its domain through a file, and
// receives at a target that the first program has created. The rxe provider of libibverbs has no XRC. An unmodified
// program can therefore not test XRC.
func TestXRCCommands(t *testing.T) {
	testEachForm(t, func(t *testing.T, form commandForm) {
		w := newRXEFixture(t)
		a, b := w.startProgram(form), w.startProgram(form)
		name := t.TempDir() + "/domain"
		file, err := os.Create(name)
		must(t, err)
		defer file.Close()
		fd := int(file.Fd())

		_, err = a.openXRCD(fd, 0)
		wantErrno(t, "a file that names nothing", err, syscall.EAGAIN)
		_, err = a.openXRCD(9999, unix.O_CREAT)
		wantErrno(t, "no descriptor", err, syscall.EBADF)
		xa, err := a.openXRCD(fd, unix.O_CREAT)
		must(t, err)
		_, err = b.openXRCD(fd, unix.O_CREAT|unix.O_EXCL)
		wantErrno(t, "a domain that is there, exclusively", err, syscall.EINVAL)
		xb, err := b.openXRCD(fd, unix.O_CREAT)
		must(t, err)
		own, err := b.openXRCD(-1, 0)
		must(t, err)

		tgt, err := sendPlain[uapi.CreateQPResp](a, uapi.CmdCreateQP,
			uapi.CreateQP{PDHandle: xa, QPType: uapi.QPTXRCTgt, UserHandle: 5})
		must(t, err)
		_, err = sendPlain[uapi.CreateQPResp](a, uapi.CmdCreateQP, uapi.CreateQP{PDHandle: 999, QPType: uapi.QPTXRCTgt})
		wantErrno(t, "a target in no domain", err, syscall.EINVAL)
		open := uapi.OpenQP{PDHandle: own, QPN: tgt.QPN, QPType: uapi.QPTXRCTgt, UserHandle: 6}
		_, err = sendPlain[uapi.CreateQPResp](b, uapi.CmdOpenQP, open)
		wantErrno(t, "a target of another domain", err, syscall.EINVAL)
		open.PDHandle = xb
		opened, err := sendPlain[uapi.CreateQPResp](b, uapi.CmdOpenQP, open)
		must(t, err)
		if opened.QPN != tgt.QPN {
			t.Errorf("opened %d, want %d", opened.QPN, tgt.QPN)
		}

		pda, pdb, cqa, cqb := a.allocPD(), b.allocPD(), a.createRXECQ(), b.createRXECQ()
		mra, mrb := a.regMR(pda), b.regMR(pdb)
		ini := a.createRXEQP(uapi.CreateQP{PDHandle: pda, SendCQHandle: cqa, QPType: uapi.QPTXRCIni})
		a.connectQP(ini.QPHandle, tgt.QPN, uapi.QPTXRCIni)
		// a program that has opened the target may also modify it
		b.connectQP(opened.QPHandle, ini.QPN, uapi.QPTXRCTgt)
		// The next send names no queue, because commands have no field for the queue's number. The target moves to the
		// error state, and both programs receive the event.
		srq, drv := b.createSRQ(pdb, uapi.CreateXSRQ{SRQType: uapi.SRQTXRC, XRCDHandle: xb, CQHandle: cqb})
		if srq.SRQN == 0 || srq.SRQN != drv.SRQNum {
			t.Errorf("SRQ numbers: got %d and %d, want equal ones above 0", srq.SRQN, drv.SRQNum)
		}
		wantErrno(t, "close a domain in use", sendWithoutResponse(b, uapi.CmdCloseXRCD, uapi.CloseXRCD{XRCDHandle: xb}),
			syscall.EBUSY)
		region := b.f.objects.find(mrb.MRHandle).res.(*mrObject).Region()
		postWRs(b, uapi.CmdPostSRQRecv, srq.SRQHandle, []uapi.RecvWR{{WRID: 3, NumSGE: 1}},
			[]uapi.SGE{{Addr: region.IOVA(), Length: 64, LKey: mrb.LKey}})
		src := a.f.objects.find(mra.MRHandle).res.(*mrObject).Region()
		send := func(srqn uint32) {
			t.Helper()
			qp := a.f.objects.find(ini.QPHandle).res.(*qpObject)
			_, err := qp.PostSend(ib.SendWR{
				ID: 8, Opcode: ib.WRSend, Flags: ib.SendSignaled, RemoteSRQN: srqn,
				SGList: []ib.SGE{{Addr: src.IOVA(), Length: 20, LKey: mra.LKey}},
			})
			must(t, err)
		}
		send(srq.SRQN)
		if wc := a.waitWC(cqa); wc.Status != uapi.WCSuccess {
			t.Errorf("send: got %+v, want success", wc)
		}
		if wc := b.waitWC(cqb); wc.Status != uapi.WCSuccess || wc.WRID != 3 || wc.ByteLen != 20 || wc.QPNum != tgt.QPN {
			t.Errorf("receive: got %+v, want success, ID 3 and 20 bytes", wc)
		}
		send(0)
		if wc := a.waitWC(cqa); wc.Status != uapi.WCRemInvReqErr {
			t.Errorf("send to an unknown queue: got %+v, want remote invalid request", wc)
		}
		for i, p := range []*program{a, b} {
			p.expectEvents(fmt.Sprintf("%v:%d", uapi.EventQPReqErr, 5+i))
		}
		// The target exists until the last program has closed it.
		r, err := sendPlain[uapi.DestroyQPResp](a, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: tgt.QPHandle})
		must(t, err)
		if r.EventsReported != 1 {
			t.Errorf("reported events: got %d, want 1", r.EventsReported)
		}
		_, err = sendPlain[uapi.QueryQPResp](b, uapi.CmdQueryQP, uapi.QueryQP{QPHandle: opened.QPHandle,
			AttrMask: uapi.QPAttrState})
		must(t, err)
		must(t, sendWithoutResponse(a, uapi.CmdCloseXRCD, uapi.CloseXRCD{XRCDHandle: xa}))
		info := b.f.info()
		if len(info.XRCDs) != 2 || len(info.SRQs) != 1 || !info.SRQs[0].XRC {
			t.Errorf("resources: got %+v, want 2 XRC domains and 1 XRC SRQ", info)
		}
		if n := w.dev.Objects(); n.XRCD != 2 || n.QP != 2 {
			t.Errorf("objects: got %v, want 2 XRC domains and 2 QPs", n)
		}
		b.f.Close() // destroys the rest
		if n := w.dev.Objects(); n.XRCD != 0 || n.SRQ != 0 || n.QP != 1 {
			t.Errorf("objects after the close: got %v, want 1 QP", n)
		}
		_, err = a.openXRCD(fd, 0)
		wantErrno(t, "the file names nothing any more", err, syscall.EAGAIN)
	})
}

func TestMulticastCommands(t *testing.T) {
	testEachForm(t, func(t *testing.T, form commandForm) {
		w := newRXEFixture(t)
		p := w.startProgram(form)
		pd, cq := p.allocPD(), p.createRXECQ()
		ud := p.createRXEQP(uapi.CreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq, QPType: uapi.QPTUD})
		rc := p.createRXEQP(uapi.CreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq, QPType: uapi.QPTRC})
		group := netip.MustParseAddr("239.5.6.7").As16()
		attach := func(qp uint32, gid [16]byte) error {
			return sendWithoutResponse(p, uapi.CmdAttachMcast, uapi.AttachMcast{GID: gid, QPHandle: qp})
		}
		detach := func(qp uint32) error {
			return sendWithoutResponse(p, uapi.CmdDetachMcast, uapi.DetachMcast{GID: group, QPHandle: qp})
		}
		wantErrno(t, "detach before", detach(ud.QPHandle), syscall.EINVAL)
		must(t, attach(ud.QPHandle, group))
		must(t, attach(ud.QPHandle, group)) // the queue pair is already a member
		wantErrno(t, "no group", attach(ud.QPHandle, netip.MustParseAddr("10.0.0.1").As16()), syscall.EINVAL)
		wantErrno(t, "a connected queue pair", attach(rc.QPHandle, group), syscall.EINVAL)
		wantErrno(t, "no queue pair", attach(999, group), syscall.ENOENT)
		_, err := sendPlain[uapi.DestroyQPResp](p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: ud.QPHandle})
		wantErrno(t, "destroy a member", err, syscall.EBUSY)
		must(t, detach(ud.QPHandle))
		wantErrno(t, "detach twice", detach(ud.QPHandle), syscall.EINVAL)
		must(t, attach(ud.QPHandle, group))
		p.f.Close() // the membership does not prevent the close
		if n := w.dev.Objects(); n != (ib.ObjectCounts{}) {
			t.Errorf("remaining objects: got %v, want none", n)
		}
	})
}

// TestMulticastMemberships checks that each membership is charged once, up to the limit of the user. Only a detach with
// the same GID and LID may release the charge.
func TestMulticastMemberships(t *testing.T) {
	w := newRXEFixture(t)
	limits := quota.Limits{}
	limits[quota.Multicast].PerUser = 2
	w.ledger = quota.New(limits)
	p := w.startProgram(byWrite)
	pd, cq := p.allocPD(), p.createRXECQ()
	ud := p.createRXEQP(uapi.CreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq, QPType: uapi.QPTUD})
	for i, step := range []struct {
		cmd   uapi.Command
		group byte
		lid   uint16
		want  syscall.Errno
		text  string
		held  uint64 // after the call
	}{
		{uapi.CmdAttachMcast, 1, 0, 0, "", 1},
		{uapi.CmdAttachMcast, 1, 0, 0, "", 1},
		{uapi.CmdAttachMcast, 2, 0, 0, "", 2},
		{uapi.CmdAttachMcast, 3, 0, syscall.ENOMEM, "multicast", 2},
		{uapi.CmdDetachMcast, 3, 0, syscall.EINVAL, "is not in group", 2},
		{uapi.CmdDetachMcast, 1, 7, syscall.EINVAL, "is not in group", 2},
		{uapi.CmdDetachMcast, 1, 0, 0, "", 1},
		{uapi.CmdDetachMcast, 1, 0, syscall.EINVAL, "is not in group", 1},
		{uapi.CmdAttachMcast, 3, 0, 0, "", 2},
		{uapi.CmdDetachMcast, 2, 0, 0, "", 1},
		{uapi.CmdDetachMcast, 3, 0, 0, "", 0},
	} {
		gid := netip.AddrFrom4([4]byte{239, 5, 6, step.group}).As16()
		err := sendWithoutResponse(p, step.cmd, uapi.AttachMcast{GID: gid, QPHandle: ud.QPHandle, MLID: step.lid})
		name := fmt.Sprintf("step %d: %v of group %d with LID %d", i, step.cmd, step.group, step.lid)
		wantErrno(t, name, err, step.want)
		if err != nil && !strings.Contains(err.Error(), step.text) {
			t.Errorf("%s: got %q, want it to contain %q", name, err, step.text)
		}
		if got := p.User().Held(quota.Multicast); got != step.held {
			t.Errorf("%s: got %d memberships charged, want %d", name, got, step.held)
		}
	}
}
