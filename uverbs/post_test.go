package uverbs

import (
	"slices"
	"syscall"
	"testing"

	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/uapi"
)

// postWRs sends work requests, followed by the elements of all requests. postWRs returns the number of the rejected
// request.
func postWRs[WR any](p *program, cmd uapi.Command, qp uint32, wrs []WR, sges []uapi.SGE) (uint32, error) {
	req := uapi.PostSend{QPHandle: qp, WRCount: uint32(len(wrs)), SGECount: uint32(len(sges)),
		WQESize: uint32(uapi.SizeOf[WR]())}
	b := encode(req)
	for i := range wrs {
		b = uapi.AppendTo(b, &wrs[i])
	}
	for i := range sges {
		b = uapi.AppendTo(b, &sges[i])
	}
	resp, _, err := p.sendCommand(rawCommand{number: uint32(cmd), core: b, room: 4})
	r, _ := uapi.Decode[uapi.PostSendResp](resp)
	return r.BadWR, err
}

func TestPostSend(t *testing.T) {
	testEachForm(t, func(t *testing.T, form commandForm) {
		w := newFixture(t)
		p := w.startProgram(form)
		pd, cq := p.allocPD(), p.createCQ(-1, 0)
		rc := p.createQP(pd, cq, 0, uapi.QPTRC).QPHandle
		write := uapi.SendWR{WRID: 1, NumSGE: 2, Opcode: uapi.WRRDMAWriteWithImm, SendFlags: uapi.SendSignaled,
			Ex: uapi.ImmData{1, 2, 3, 4}}
		*write.RDMA() = uapi.SendWRRDMA{RemoteAddr: 0x1000, RKey: 7}
		atomic := uapi.SendWR{WRID: 2, NumSGE: 1, Opcode: uapi.WRAtomicCmpAndSwp}
		*atomic.Atomic() = uapi.SendWRAtomic{RemoteAddr: 0x2000, CompareAdd: 5, Swap: 6, RKey: 8}
		inv := uapi.SendWR{WRID: 3, Opcode: uapi.WRSendWithInv, Ex: uapi.NewImmRKey(9)}
		sges := []uapi.SGE{{Addr: 1, Length: 2, LKey: 3}, {Addr: 4, Length: 5, LKey: 6}, {Addr: 7, Length: 8, LKey: 9}}
		bad, err := postWRs(p, uapi.CmdPostSend, rc, []uapi.SendWR{write, atomic, inv}, sges)
		if err != nil || bad != 0 {
			t.Fatalf("refused %d: %v", bad, err)
		}
		got := p.fakeQP(rc).SentRequests()
		if len(got) != 3 {
			t.Fatalf("%d posted", len(got))
		}
		if g := got[0]; g.ID != 1 || g.Opcode != ib.WRRDMAWriteWithImm || g.Flags != ib.SendSignaled || g.Imm != 0x01020304 ||
			g.RemoteAddr != 0x1000 || g.RKey != 7 ||
			!slices.Equal(g.SGList, []ib.SGE{{Addr: 1, Length: 2, LKey: 3}, {Addr: 4, Length: 5, LKey: 6}}) {
			t.Errorf("write: got %+v, want the posted values", g)
		}
		if g := got[1]; g.RemoteAddr != 0x2000 || g.CompareAdd != 5 || g.Swap != 6 || g.RKey != 8 || g.SGList[0].Addr != 7 {
			t.Errorf("atomic: got %+v, want the posted values", g)
		}
		if g := got[2]; g.InvalidateRKey != 9 || len(g.SGList) != 0 {
			t.Errorf("send with invalidate: got %+v, want key 9 without elements", g)
		}

		// At this point the queue is full.
		bad, err = postWRs(p, uapi.CmdPostSend, rc, []uapi.SendWR{inv, inv}, nil)
		wantErrno(t, "full queue", err, syscall.ENOMEM)
		if bad != 1 {
			t.Errorf("full queue: got request %d as the rejected one, want 1", bad)
		}

		ud := p.createQP(pd, cq, 0, uapi.QPTUD).QPHandle
		ah := p.createAH(pd)
		send := uapi.SendWR{Opcode: uapi.WRSend}
		*send.UD() = uapi.SendWRUD{AH: ah, RemoteQPN: 0x11, RemoteQKey: 0x22}
		if bad, err := postWRs(p, uapi.CmdPostSend, ud, []uapi.SendWR{send}, nil); err != nil || bad != 0 {
			t.Fatalf("refused %d: %v", bad, err)
		}
		if g := p.fakeQP(ud).SentRequests()[0]; g.AH == nil || g.RemoteQPN != 0x11 || g.RemoteQKey != 0x22 {
			t.Errorf("datagram: got %+v, want QP 0x11 with Q_Key 0x22", g)
		}
		// the address handle is no longer in use
		must(t, sendWithoutResponse(p, uapi.CmdDestroyAH, uapi.DestroyAH{AHHandle: ah}))

		for _, test := range []struct {
			name string
			qp   uint32
			wr   uapi.SendWR
		}{
			{"write on a datagram queue pair", ud, write},
			{"no such operation", rc, uapi.SendWR{Opcode: 99}},
			{"inline data", rc, uapi.SendWR{Opcode: uapi.WRSend, SendFlags: uapi.SendInline}},
			{"elements that are not there", rc, uapi.SendWR{Opcode: uapi.WRSend, NumSGE: 1}},
			{"very many elements", rc, uapi.SendWR{Opcode: uapi.WRSend, NumSGE: 1<<32 - 1}},
		} {
			_, err := postWRs(p, uapi.CmdPostSend, test.qp, []uapi.SendWR{test.wr}, nil)
			wantErrno(t, test.name, err, syscall.EINVAL)
		}
		_, err = postWRs(p, uapi.CmdPostSend, ud, []uapi.SendWR{send}, nil)
		wantErrno(t, "datagram to no address handle", err, syscall.ENOENT)
	})
}

func TestPostRecv(t *testing.T) {
	testEachForm(t, func(t *testing.T, form commandForm) {
		p := newFixture(t).startProgram(form)
		qp := p.createQP(p.allocPD(), p.createCQ(-1, 0), 0, uapi.QPTRC).QPHandle
		wrs := []uapi.RecvWR{{WRID: 1, NumSGE: 1}, {WRID: 2}, {WRID: 3}, {WRID: 4}}
		bad, err := postWRs(p, uapi.CmdPostRecv, qp, wrs, []uapi.SGE{{Addr: 10, Length: 20, LKey: 30}})
		wantErrno(t, "one too many", err, syscall.ENOMEM)
		got := p.fakeQP(qp).ReceiveRequests()
		if bad != 4 || len(got) != 3 || got[0].ID != 1 || got[0].SGList[0] != (ib.SGE{Addr: 10, Length: 20, LKey: 30}) ||
			got[2].ID != 3 {
			t.Errorf("refused %d of %+v", bad, got)
		}
		_, err = postWRs(p, uapi.CmdPostRecv, qp, []uapi.RecvWR{{NumSGE: 2}}, []uapi.SGE{{}})
		wantErrno(t, "elements that are not there", err, syscall.EINVAL)
	})
}

func TestPollCQ(t *testing.T) {
	testEachForm(t, func(t *testing.T, form commandForm) {
		w := newFixture(t)
		p := w.startProgram(form)
		cq := p.createCQ(-1, 0)
		qp := p.createQP(p.allocPD(), cq, 0, uapi.QPTRC)
		fake := p.fakeCQ(cq)
		const waiting = 40
		for i := range uint64(waiting) {
			wc := ib.WC{ID: i, Status: ib.WCRetryExcErr, Opcode: ib.WCRecv, ByteLen: 5, VendorErr: 6, SrcQP: 7, QPNum: qp.QPN,
				Port: 1}
			switch i {
			case 0:
				wc.Flags, wc.Imm = ib.WCWithImm, 0x01020304
			case 1:
				wc.Flags, wc.InvalidateRKey = ib.WCWithInvalidate, 0x55
			}
			fake.Complete(wc)
		}
		poll := func(ne uint32, room int) (got []uapi.WC) {
			t.Helper()
			size := uapi.SizeOf[uapi.WC]()
			resp, _, err := p.sendCommand(rawCommand{number: uint32(uapi.CmdPollCQ), core: encode(uapi.PollCQ{CQHandle: cq,
				NE: ne}),
				room: 8 + room*size})
			must(t, err)
			head, _ := uapi.Decode[uapi.PollCQResp](resp)
			for i := range int(head.Count) {
				wc, _ := uapi.Decode[uapi.WC](resp[8+i*size:])
				got = append(got, wc)
			}
			return got
		}
		got := poll(2, 10)
		if len(got) != 2 || got[0].Ex != (uapi.ImmData{1, 2, 3, 4}) || got[1].Ex.InvalidateRKey() != 0x55 ||
			got[0].Status != uapi.WCRetryExcErr ||
			got[0].Opcode != uapi.WCRecv || got[0].QPNum != qp.QPN || got[0].SrcQP != 7 || got[0].ByteLen != 5 ||
			got[0].PortNum != 1 {
			t.Errorf("got %+v", got)
		}
		// The response must never exceed the buffer, even if the request asks for more.
		if got := poll(1<<32-1, 3); len(got) != 3 || got[0].WRID != 2 {
			t.Errorf("got %d", len(got))
		}
		if got := poll(0, 3); len(got) != 0 {
			t.Errorf("got %d", len(got))
		}
		if got := poll(100, 100); len(got) != waiting-5 || got[len(got)-1].WRID != waiting-1 {
			t.Errorf("got %d", len(got))
		}
		if got := poll(1, 1); len(got) != 0 {
			t.Errorf("got %+v", got)
		}
		w.drv.FailMethod(ibfake.PollCQ, syscall.EIO)
		_, _, err := p.sendCommand(rawCommand{number: uint32(uapi.CmdPollCQ), core: encode(uapi.PollCQ{CQHandle: cq,
			NE: 1}), room: 56})
		wantErrno(t, "driver fails", err, syscall.EIO)
	})
}

// TestModifyChecksPort checks the port of an address. In the transition to RTR it must be the port of INIT, and in SQD
// a new address sets the port.
func TestModifyChecksPort(t *testing.T) {
	for _, test := range []struct {
		name      string
		req       uapi.ModifyQP
		port      uint8
		wantMask  uapi.QPAttrMask
		wantPort  uint8
		wantError bool
	}{
		{"to RTR, the same port", uapi.ModifyQP{AttrMask: uapi.QPAttrState | uapi.QPAttrAV, QPState: uapi.QPSRTR,
			Dest: uapi.QPDest{PortNum: 2}}, 2, uapi.QPAttrState | uapi.QPAttrAV, 0, false},
		{"to RTR, another port", uapi.ModifyQP{AttrMask: uapi.QPAttrState | uapi.QPAttrAV, QPState: uapi.QPSRTR,
			Dest: uapi.QPDest{PortNum: 1}}, 2, 0, 0, true},
		{"in SQD", uapi.ModifyQP{AttrMask: uapi.QPAttrAV, Dest: uapi.QPDest{PortNum: 1}}, 2, uapi.QPAttrAV | uapi.QPAttrPort,
			1, false},
		{"in SQD, with the port", uapi.ModifyQP{AttrMask: uapi.QPAttrAV | uapi.QPAttrPort, PortNum: 1,
			Dest: uapi.QPDest{PortNum: 1}}, 2, uapi.QPAttrAV | uapi.QPAttrPort, 1, false},
		{"in SQD, with another port", uapi.ModifyQP{AttrMask: uapi.QPAttrAV | uapi.QPAttrPort, PortNum: 2,
			Dest: uapi.QPDest{PortNum: 1}}, 2, 0, 0, true},
		{"in SQD, port 0", uapi.ModifyQP{AttrMask: uapi.QPAttrAV, Dest: uapi.QPDest{PortNum: 0}}, 2, 0, 0, true},
		{"in SQD, beyond the last port", uapi.ModifyQP{AttrMask: uapi.QPAttrAV, Dest: uapi.QPDest{PortNum: 3}},
			2, 0, 0, true},
		{"to RTR, beyond the last port", uapi.ModifyQP{AttrMask: uapi.QPAttrState | uapi.QPAttrAV, QPState: uapi.QPSRTR,
			Dest: uapi.QPDest{PortNum: 3}}, 3, 0, 0, true},
		{"RTR without the attribute, another port", uapi.ModifyQP{AttrMask: uapi.QPAttrAV, QPState: uapi.QPSRTR,
			Dest: uapi.QPDest{PortNum: 1}}, 2, uapi.QPAttrAV | uapi.QPAttrPort, 1, false},
		{"last port", uapi.ModifyQP{AttrMask: uapi.QPAttrPort, PortNum: 2}, 0, uapi.QPAttrPort, 2, false},
		{"beyond the last port", uapi.ModifyQP{AttrMask: uapi.QPAttrPort, PortNum: 3}, 0, 0, 0, true},
		{"port 0", uapi.ModifyQP{AttrMask: uapi.QPAttrPort}, 0, 0, 0, true},
		{"last state", uapi.ModifyQP{AttrMask: uapi.QPAttrState, QPState: uapi.QPSErr}, 0, uapi.QPAttrState, 0, false},
		{"beyond the last state", uapi.ModifyQP{AttrMask: uapi.QPAttrState, QPState: uapi.QPSErr + 1}, 0, 0, 0, true},
		{"last current state", uapi.ModifyQP{AttrMask: uapi.QPAttrCurState, CurQPState: uapi.QPSErr},
			0, uapi.QPAttrCurState, 0, false},
		{"beyond the last current state", uapi.ModifyQP{AttrMask: uapi.QPAttrCurState, CurQPState: uapi.QPSErr + 1},
			0, 0, 0, true},
		{"states without their attributes", uapi.ModifyQP{QPState: uapi.QPSErr + 1, CurQPState: uapi.QPSErr + 1},
			0, 0, 0, false},
		{"alternate path", uapi.ModifyQP{AttrMask: uapi.QPAttrAltPath, AltPortNum: 2, AltDest: uapi.QPDest{PortNum: 2}}, 1,
			uapi.QPAttrAltPath, 0, false},
		{"alternate path, another port", uapi.ModifyQP{AttrMask: uapi.QPAttrAltPath, AltPortNum: 2,
			AltDest: uapi.QPDest{PortNum: 1}}, 1, 0, 0, true},
		{"alternate path, no such port", uapi.ModifyQP{AttrMask: uapi.QPAttrAltPath, AltPortNum: 3,
			AltDest: uapi.QPDest{PortNum: 3}}, 1, 0, 0, true},
	} {
		d := &Device{ports: 2}
		err := d.checkModify(&test.req, test.port)
		if test.wantError {
			wantErrno(t, test.name, err, syscall.EINVAL)
			continue
		}
		if err != nil || test.req.AttrMask != test.wantMask || test.req.PortNum != test.wantPort {
			t.Errorf("%s: got mask %v, port %d and error %v, want %v and %d", test.name, test.req.AttrMask,
				test.req.PortNum, err, test.wantMask, test.wantPort)
		}
	}
}

// netRawCaller is a Caller with or without CAP_NET_RAW.
type netRawCaller struct {
	Caller
	raw bool
}

func (c netRawCaller) NetRaw() bool { return c.raw }

// TestControlledQKeyNeedsNetRaw checks that a controlled Q_Key requires CAP_NET_RAW. With the Q_Key of connection
// managers, a program could end the connections of other programs.
func TestControlledQKeyNeedsNetRaw(t *testing.T) {
	for _, test := range []struct {
		name   string
		caller Caller
		mask   uapi.QPAttrMask
		key    uint32
		// ENOENT means that the Q_Key was accepted: the next check fails, because the queue pair does not exist
		want syscall.Errno
	}{
		{"without a capability", netRawCaller{raw: false}, uapi.QPAttrQKey, 0x80010000, syscall.EPERM},
		{"a caller who does not say", struct{ Caller }{}, uapi.QPAttrQKey, 0x80010000, syscall.EPERM},
		{"the least", netRawCaller{raw: false}, uapi.QPAttrQKey | uapi.QPAttrState, 1 << 31, syscall.EPERM},
		{"with the capability", netRawCaller{raw: true}, uapi.QPAttrQKey, 0x80010000, syscall.ENOENT},
		{"a common one", netRawCaller{raw: false}, uapi.QPAttrQKey, 1<<31 - 1, syscall.ENOENT},
		{"not meant", netRawCaller{raw: false}, uapi.QPAttrState, 0x80010000, syscall.ENOENT},
	} {
		c := &call{f: &File{}, caller: test.caller}
		err := c.modifyQP(&uapi.ExModifyQP{Base: uapi.ModifyQP{AttrMask: test.mask, QKey: test.key}}, modifyStandard)
		wantErrno(t, test.name, err, test.want)
	}
}
