package uverbs

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"verbena/uapi"
)

// hasHandleField reports whether a request names an object by handle.
func hasHandleField(t reflect.Type) bool {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Type.Kind() == reflect.Struct && hasHandleField(f.Type) || numberKindsByField[f.Name] != poolNone {
			return true
		}
	}
	return false
}

// TestOtherContextsHandlesAreRefused checks every command that names an object of another context, in each form. The
// command must fail and must not affect that context. The intruder has no objects: handles are local to a context, and
// the intruder could therefore reach its own objects.
func TestOtherContextsHandlesAreRefused(t *testing.T) {
	w := newSessionFixture(t)
	p := w.open(t)
	defer p.close(t)
	mustCommand[uapi.GetContextResp](t, p, uapi.CmdGetContext, uapi.GetContext{}, nil, 0)
	info := w.other.file.info()
	var handles []uint32
	for _, o := range info.PDs {
		handles = append(handles, o.Handle)
	}
	for _, o := range info.MRs {
		handles = append(handles, o.Handle)
	}
	for _, o := range info.CQs {
		handles = append(handles, o.Handle)
	}
	for _, o := range info.QPs {
		handles = append(handles, o.Handle)
	}
	if len(handles) != 5 {
		t.Fatalf("objects of the other context: got %+v, want 5", info)
	}
	x := &fuzzSession{t: t, w: w, p: p, s: new(fuzzScript)}
	tried := 0
	for _, h := range handles {
		for i := range p.handles {
			p.handles[i] = []uint32{h}
		}
		p.qpns = []uint32{w.other.qps[0].QPN}
		for i := range sessionCommands {
			c := &sessionCommands[i]
			if !hasHandleField(reflect.TypeOf(c.req)) {
				continue
			}
			for _, form := range []string{"write", "ioctl"} {
				req := reflect.New(reflect.TypeOf(c.req)).Elem()
				x.fillRequest(req)
				core, driverRoom := encodeValue(req), c.driver
				if c.extended {
					driverRoom = (driverRoom + 7) &^ 7
				}
				var err error
				if form == "write" {
					_, err = p.sendCommand(c.number, c.extended, core, nil, c.resp, driverRoom)
				} else {
					_, err = x.sendByInvokeWrite(c.number, c.extended, core, nil, c.resp, driverRoom)
				}
				tried++
				if err == nil {
					t.Errorf("%s of %s with handle %d of another context: got success, want an error", form,
						strings.TrimPrefix(fmt.Sprintf("%T", c.req), "abi."), h)
				}
			}
		}
		for id, m := range methods {
			var attrs []uapi.Attr
			for _, s := range m.Attrs {
				attrs = append(attrs, uapi.Attr{AttrID: s.ID, Len: uint16(s.Min), Data: uint64(h)})
			}
			x.checkErrno(x.callIoctl(id.object, id.method, attrs))
			tried++
		}
		x.ringRandomDoorbell()
		for _, cmd := range []uapi.Command{uapi.CmdPostSend, uapi.CmdPostRecv, uapi.CmdPostSRQRecv} {
			core := uapi.AppendTo(nil, &uapi.PostSend{Response: sessionResponse, QPHandle: h})
			if _, err := p.sendCommand(uint32(cmd), false, core, nil, 8, 0); err == nil {
				t.Errorf("%v with handle %d of another context: got success, want an error", cmd, h)
			}
		}
	}
	t.Logf("tried %d", tried)
	w.other.checkUnchanged(t)
	if now := p.file.info(); len(now.PDs)+len(now.MRs)+len(now.CQs)+len(now.QPs)+len(now.AHs) != 0 {
		t.Errorf("objects of the intruder: got %+v, want none", now)
	}
}

// TestOtherContextsKeysAreUseless checks that a queue pair of one context cannot use another context's region with any
// key, and cannot send into the other context's connections.
func TestOtherContextsKeysAreUseless(t *testing.T) {
	w := newSessionFixture(t)
	p := w.open(t)
	defer p.close(t)
	mustCommand[uapi.GetContextResp](t, p, uapi.CmdGetContext, uapi.GetContext{}, nil, 0)
	pd := mustCommand[uapi.AllocPDResp](t, p, uapi.CmdAllocPD, uapi.AllocPD{}, nil, 0).PDHandle
	own := mustCommand[uapi.RegMRResp](t, p, uapi.CmdRegMR, uapi.RegMR{Start: sessionData, HCAVA: sessionData,
		Length:      0x4000,
		PDHandle:    pd,
		AccessFlags: uapi.AccessLocalWrite | uapi.AccessRemoteWrite | uapi.AccessRemoteRead | uapi.AccessRemoteAtomic}, nil,
		0)
	for _, c := range []struct {
		name       string
		op         uapi.WROpcode
		lkey, rkey uint32
		peer       uint32 // 0 means the program's other QP
		want       uapi.WCStatus
	}{
		{"own keys", uapi.WRRDMAWrite, own.LKey, own.RKey, 0, uapi.WCSuccess},
		{"their local key, to send from", uapi.WRSend, w.other.mr.LKey, 0, 0, uapi.WCLocProtErr},
		{"their local key, to read to", uapi.WRRDMARead, w.other.mr.LKey, own.RKey, 0, uapi.WCLocProtErr},
		{"their remote key, to write to", uapi.WRRDMAWrite, own.LKey, w.other.mr.RKey, 0, uapi.WCRemAccessErr},
		{"their remote key, to read from", uapi.WRRDMARead, own.LKey, w.other.mr.RKey, 0, uapi.WCRemAccessErr},
		{"their remote key, to add to", uapi.WRAtomicFetchAndAdd, own.LKey, w.other.mr.RKey, 0, uapi.WCRemAccessErr},
		{"their connection, to send into", uapi.WRSend, own.LKey, 0, w.other.qps[0].QPN, uapi.WCRetryExcErr},
		{"their connection, to write by", uapi.WRRDMAWrite, own.LKey, w.other.mr.RKey, w.other.qps[1].QPN,
			uapi.WCRetryExcErr},
		{"their connection, to read by", uapi.WRRDMARead, own.LKey, w.other.mr.RKey, w.other.qps[1].QPN, uapi.WCRetryExcErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			cq := mustCommand[uapi.CreateCQResp](t, p, uapi.CmdCreateCQ, uapi.CreateCQ{CQE: 16, CompChannel: -1}, nil,
				16).CQHandle
			var qps [2]uapi.CreateQPResp
			for i := range qps {
				qps[i] = mustCommand[uapi.CreateQPResp](t, p, uapi.CmdCreateQP,
					uapi.CreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq,
						MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, QPType: uapi.QPTRC}, nil, 32)
			}
			for i := range qps {
				peer := qps[1-i].QPN
				if i == 0 && c.peer != 0 {
					peer = c.peer
				}
				for _, m := range connectTransitions(qps[i].QPHandle, peer, w.gid) {
					mustCommand[noResponse](t, p, uapi.CmdModifyQP, m, nil, 0)
				}
			}
			wr := uapi.SendWR{WRID: 1, NumSGE: 1, Opcode: c.op, SendFlags: uapi.SendSignaled}
			if r := wr.RDMA(); c.op != uapi.WRAtomicFetchAndAdd {
				r.RemoteAddr, r.RKey = sessionData, c.rkey
			} else {
				a := wr.Atomic()
				a.RemoteAddr, a.RKey, a.CompareAdd = sessionData, c.rkey, 1
			}
			mustCommand[uapi.PostSendResp](t, p, uapi.CmdPostSend,
				uapi.PostSend{QPHandle: qps[0].QPHandle, WRCount: 1, SGECount: 1, WQESize: uint32(uapi.SizeOf[uapi.SendWR]())},
				encodePair(wr, uapi.SGE{Addr: sessionData, Length: 8, LKey: c.lkey}), 0)
			if got := p.awaitCompletion(t, cq, 1); got.Status != c.want {
				t.Errorf("status %v, want %v", got.Status, c.want)
			}
			for i := range qps {
				mustCommand[uapi.DestroyQPResp](t, p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: qps[i].QPHandle}, nil, 0)
			}
			mustCommand[uapi.DestroyCQResp](t, p, uapi.CmdDestroyCQ, uapi.DestroyCQ{CQHandle: cq}, nil, 0)
			w.other.checkUnchanged(t)
		})
	}
}
