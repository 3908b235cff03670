package uverbs

import (
	"encoding/binary"
	"slices"
	"syscall"
	"testing"

	"verbena/ib"
	"verbena/uapi"
)

func handleAttr(id uapi.AttrID, handle uint64) uapi.Attr {
	return uapi.Attr{AttrID: id, Flags: uapi.AttrFMandatory, Data: handle}
}

// withoutAttr removes the attribute with the given number. with replaces or adds it.
func withoutAttr(attrs []uapi.Attr, id uapi.AttrID) []uapi.Attr {
	return slices.DeleteFunc(slices.Clone(attrs), func(a uapi.Attr) bool { return a.AttrID == id })
}

func withAttrs(attrs []uapi.Attr, changed ...uapi.Attr) []uapi.Attr {
	for _, c := range changed {
		attrs = append(withoutAttr(attrs, c.AttrID), c)
	}
	return attrs
}

func attrDataOf(attrs []uapi.Attr, id uapi.AttrID) uint64 {
	return attrs[slices.IndexFunc(attrs, func(a uapi.Attr) bool { return a.AttrID == id })].Data
}

func (p *program) createCQAttrs(user uint64) []uapi.Attr {
	return []uapi.Attr{
		handleAttr(uapi.AttrCreateCQHandle, 0), inlineAttr(uapi.AttrCreateCQCQE, 4, 10),
		inlineAttr(uapi.AttrCreateCQUserHandle, 8, user),
		inlineAttr(uapi.AttrCreateCQCompVector, 4, 0), outAttr(uapi.AttrCreateCQRespCQE, p.allocMem(8)[:4]),
		outAttr(uapi.AttrUHWOut, p.allocMem(16)[:16]),
	}
}

func (p *program) createQPAttrs(pd, cq uint32, user uint64, t uapi.QPType) []uapi.Attr {
	limits := uapi.QPCap{MaxSendWR: 5, MaxRecvWR: 6}
	return []uapi.Attr{
		handleAttr(uapi.AttrCreateQPHandle, 0), handleAttr(uapi.AttrCreateQPPDHandle, uint64(pd)),
		handleAttr(uapi.AttrCreateQPSendCQHandle, uint64(cq)), handleAttr(uapi.AttrCreateQPRecvCQHandle, uint64(cq)),
		inlineAttr(uapi.AttrCreateQPUserHandle, 8, user), inputAttr(uapi.AttrCreateQPCap, p.storeBytes(uapi.AppendTo(nil,
			&limits))),
		inlineAttr(uapi.AttrCreateQPType, 8, uint64(t)), outAttr(uapi.AttrCreateQPRespCap, p.allocMem(20)[:20]),
		outAttr(uapi.AttrCreateQPRespQPNum, p.allocMem(8)[:4]), outAttr(uapi.AttrUHWOut, p.allocMem(32)[:32]),
	}
}

// TestIoctlMethodsHandleAllObjects creates and destroys all objects by methods, like newer libraries. Events must be
// delivered to the event files that the methods name.
func TestIoctlMethodsHandleAllObjects(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byIoctl)
	pd, channel := p.allocPD(), p.createChannel()
	after, err := p.callMethod(uapi.ObjectAsyncEvent, uapi.MethodAsyncEventAlloc, handleAttr(0, 0))
	must(t, err)
	events := int(int64(after[0].Data))

	cqAttrs := withAttrs(p.createCQAttrs(11), handleAttr(uapi.AttrCreateCQCompChannel, uint64(channel)),
		handleAttr(uapi.AttrCreateCQEventFD, uint64(events)))
	after, err = p.callMethod(uapi.ObjectCQ, uapi.MethodCQCreate, cqAttrs...)
	must(t, err)
	cq := uint32(attrDataOf(after, uapi.AttrCreateCQHandle))
	after, err = p.callMethod(uapi.ObjectQP, uapi.MethodQPCreate,
		withAttrs(p.createQPAttrs(pd, cq, 12, uapi.QPTRC), handleAttr(uapi.AttrCreateQPEventFD, uint64(events)))...)
	must(t, err)
	qp := uint32(attrDataOf(after, uapi.AttrCreateQPHandle))
	// The driver's capacities exceed the requested ones by one.
	if g := p.fakeQP(qp).QP().Init().Cap; g.MaxRecvWR != 6 || g.MaxSendWR != 6 {
		t.Errorf("capacities: got %+v", g)
	}

	must(t, sendWithoutResponse(p, uapi.CmdReqNotifyCQ, uapi.ReqNotifyCQ{CQHandle: cq}))
	w.runWithCallbacks(func() { p.fakeCQ(cq).Complete(ib.WC{}) })
	w.runWithCallbacks(func() { p.fakeQP(qp).Raise(ib.EventQPFatal) })
	if users, _ := p.readCompletions(channel); !slices.Equal(users, []uint64{11}) {
		t.Errorf("completion events: got user handles %v, want 11", users)
	}
	if got, _ := p.readAsyncEvents(events); len(got) != 1 {
		t.Errorf("asynchronous events %v", got)
	}

	_, err = p.callMethod(uapi.ObjectCQ, uapi.MethodCQDestroy, handleAttr(uapi.AttrDestroyCQHandle, uint64(cq)),
		outAttr(uapi.AttrDestroyCQResp, p.allocMem(8)[:8]))
	wantErrno(t, "destroy a queue in use", err, syscall.EBUSY)
	reported := p.allocMem(8)[:8]
	_, err = p.callMethod(uapi.ObjectQP, uapi.MethodQPDestroy, handleAttr(uapi.AttrDestroyQPHandle, uint64(qp)),
		outAttr(uapi.AttrDestroyQPResp, reported[:4]))
	must(t, err)
	if n := binary.NativeEndian.Uint32(reported); n != 1 {
		t.Errorf("reported events of the queue pair: got %d, want 1", n)
	}
	_, err = p.callMethod(uapi.ObjectCQ, uapi.MethodCQDestroy, handleAttr(uapi.AttrDestroyCQHandle, uint64(cq)),
		outAttr(uapi.AttrDestroyCQResp, reported))
	must(t, err)
	if n := binary.NativeEndian.Uint32(reported); n != 1 {
		t.Errorf("reported completion events: got %d, want 1", n)
	}
	_, err = p.callMethod(uapi.ObjectPD, uapi.MethodPDDestroy, handleAttr(uapi.AttrDestroyPDHandle, uint64(pd)))
	must(t, err)
	if n := w.dev.Objects(); n.PD+n.CQ+n.QP != 0 {
		t.Errorf("remaining objects: got %+v, want no PD, CQ or QP", n)
	}
}

// TestUndeliveredObjectIsDestroyed checks that an object is destroyed if the delivery of its response fails.
func TestUndeliveredObjectIsDestroyed(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byIoctl)
	pd, cq := p.allocPD(), p.createCQ(-1, 0)
	before := w.dev.Objects()
	nowhere := uapi.Attr{Len: 4, Flags: uapi.AttrFMandatory, Data: 0x1000}
	at := func(id uapi.AttrID) uapi.Attr { nowhere.AttrID = id; return nowhere }
	addr := (addressOf(p.allocMem(8192)) + 4095) &^ 4095
	for _, test := range []struct {
		name   string
		object uapi.ObjectID
		method uapi.MethodID
		attrs  []uapi.Attr
	}{
		{"CQ", uapi.ObjectCQ, uapi.MethodCQCreate, withAttrs(p.createCQAttrs(1), at(uapi.AttrCreateCQRespCQE))},
		{"QP", uapi.ObjectQP, uapi.MethodQPCreate, withAttrs(p.createQPAttrs(pd, cq, 1, uapi.QPTRC),
			at(uapi.AttrCreateQPRespQPNum))},
		{"MR", uapi.ObjectMR, uapi.MethodRegMR, withAttrs(regMRAttrs(p, pd, addr, 100), at(uapi.AttrRegMRRespRKey))},
	} {
		_, err := p.callMethod(test.object, test.method, test.attrs...)
		wantErrno(t, test.name, err, syscall.EFAULT)
	}
	if after := w.dev.Objects(); after != before {
		t.Errorf("objects: got %+v, want %+v", after, before)
	}
}

func regMRAttrs(p *program, pd uint32, addr, length uint64) []uapi.Attr {
	return []uapi.Attr{
		handleAttr(uapi.AttrRegMRHandle, 0), handleAttr(uapi.AttrRegMRPDHandle, uint64(pd)),
		inlineAttr(uapi.AttrRegMRIOVA, 8, addr),
		inlineAttr(uapi.AttrRegMRAddr, 8, addr), inlineAttr(uapi.AttrRegMRLength, 8, length),
		inlineAttr(uapi.AttrRegMRAccessFlags, 4, uint64(uapi.AccessLocalWrite)),
		outAttr(uapi.AttrRegMRRespLKey, p.allocMem(8)[:4]), outAttr(uapi.AttrRegMRRespRKey, p.allocMem(8)[:4]),
	}
}

func TestRegMRByMethod(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byIoctl)
	pd := p.allocPD()
	addr := (addressOf(p.allocMem(8192)) + 4095) &^ 4095
	good := regMRAttrs(p, pd, addr, 4096)
	fd, offset := inlineAttr(uapi.AttrRegMRFD, 4, 0), inlineAttr(uapi.AttrRegMRFDOffset, 8, 0)
	for _, test := range []struct {
		name  string
		attrs []uapi.Attr
		want  syscall.Errno
	}{
		{"fine", good, 0},
		{"neither address nor descriptor", withoutAttr(good, uapi.AttrRegMRAddr), syscall.EINVAL},
		{"address and descriptor", withAttrs(good, fd, offset), syscall.EINVAL},
		{"address and offset", withAttrs(good, offset), syscall.EINVAL},
		{"descriptor without offset", withAttrs(withoutAttr(good, uapi.AttrRegMRAddr), fd), syscall.EINVAL},
		{"descriptor", withAttrs(withoutAttr(good, uapi.AttrRegMRAddr), fd, offset), syscall.EOPNOTSUPP},
		{"unknown rights", withAttrs(good, inlineAttr(uapi.AttrRegMRAccessFlags, 4, 1<<12)), syscall.EINVAL},
		{"no such PD", withAttrs(good, handleAttr(uapi.AttrRegMRPDHandle, 99)), syscall.ENOENT},
		{"another place in the page", withAttrs(good, inlineAttr(uapi.AttrRegMRIOVA, 8, addr+1)), syscall.EINVAL},
	} {
		_, err := p.callMethod(uapi.ObjectMR, uapi.MethodRegMR, test.attrs...)
		wantErrno(t, test.name, err, test.want)
	}
	after, err := p.callMethod(uapi.ObjectMR, uapi.MethodRegMR, good...)
	must(t, err)
	mr := attrDataOf(after, uapi.AttrRegMRHandle)
	length, iova := p.allocMem(8)[:8], p.allocMem(8)[:8]
	_, err = p.callMethod(uapi.ObjectMR, uapi.MethodQueryMR, handleAttr(uapi.AttrQueryMRHandle, mr),
		outAttr(uapi.AttrQueryMRRespLKey, p.allocMem(8)[:4]),
		outAttr(uapi.AttrQueryMRRespRKey, p.allocMem(8)[:4]), outAttr(uapi.AttrQueryMRRespLength, length),
		outAttr(uapi.AttrQueryMRRespIOVA, iova))
	must(t, err)
	if l, a := uint64At(length), uint64At(iova); l != 4096 || a != addr {
		t.Errorf("query: got %d bytes at %#x, want 4096 at %#x", l, a, addr)
	}
	sge := uapi.SGE{Addr: addr, Length: 1}
	list := inputAttr(uapi.AttrAdviseMRSGEList, p.storeBytes(uapi.AppendTo(nil, &sge)))
	advise := []uapi.Attr{handleAttr(uapi.AttrAdviseMRPDHandle, uint64(pd)), inlineAttr(uapi.AttrAdviseMRAdvice, 8, 0),
		inlineAttr(uapi.AttrAdviseMRFlags, 4, 1), list}
	_, err = p.callMethod(uapi.ObjectMR, uapi.MethodAdviseMR, advise...)
	wantErrno(t, "advice to a driver that takes none", err, syscall.EOPNOTSUPP)
	list.Len++
	_, err = p.callMethod(uapi.ObjectMR, uapi.MethodAdviseMR, withAttrs(advise, list)...)
	wantErrno(t, "advice with half an element", err, syscall.EINVAL)
	_, err = p.callMethod(uapi.ObjectMR, uapi.MethodAdviseMR, withAttrs(advise, inlineAttr(uapi.AttrAdviseMRFlags, 4,
		2))...)
	wantErrno(t, "advice with an unknown flag", err, syscall.EINVAL)
}

// TestZombieAllowsOnlyDestroyMethods checks methods after the removal of the device. Methods that destroy must succeed,
// and all others must fail.
func TestZombieAllowsOnlyDestroyMethods(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byIoctl)
	pd, cq := p.allocPD(), p.createCQ(-1, 0)
	mr := p.regMR(pd)
	w.srv.Close()
	for _, test := range []struct {
		name   string
		object uapi.ObjectID
		method uapi.MethodID
		attrs  []uapi.Attr
		want   syscall.Errno
	}{
		{"make a CQ", uapi.ObjectCQ, uapi.MethodCQCreate, p.createCQAttrs(1), syscall.EIO},
		{"make a QP", uapi.ObjectQP, uapi.MethodQPCreate, p.createQPAttrs(pd, cq, 1, uapi.QPTRC), syscall.EIO},
		{"query the port", uapi.ObjectDevice, uapi.MethodQueryPort,
			[]uapi.Attr{inlineAttr(0, 8, 1), outAttr(1, p.allocMem(48)[:48])}, syscall.EIO},
		{"destroy the MR", uapi.ObjectMR, uapi.MethodMRDestroy, []uapi.Attr{handleAttr(0, uint64(mr.MRHandle))}, 0},
		{"destroy the CQ", uapi.ObjectCQ, uapi.MethodCQDestroy,
			[]uapi.Attr{handleAttr(0, uint64(cq)), outAttr(1, p.allocMem(8)[:8])}, 0},
		{"destroy it again", uapi.ObjectCQ, uapi.MethodCQDestroy,
			[]uapi.Attr{handleAttr(0, uint64(cq)), outAttr(1, p.allocMem(8)[:8])}, syscall.ENOENT},
	} {
		_, err := p.callMethod(test.object, test.method, test.attrs...)
		wantErrno(t, test.name, err, test.want)
	}
}
