package uverbs

import (
	"encoding/binary"
	"slices"
	"syscall"
	"testing"

	"verbena/ib"
	"verbena/uverbs/abi"
)

func handleAttr(id abi.AttrID, handle uint64) abi.Attr {
	return abi.Attr{AttrID: id, Flags: abi.AttrFMandatory, Data: handle}
}

// without drops the attribute of a number, with replaces it, or adds it.
func without(attrs []abi.Attr, id abi.AttrID) []abi.Attr {
	return slices.DeleteFunc(slices.Clone(attrs), func(a abi.Attr) bool { return a.AttrID == id })
}

func with(attrs []abi.Attr, changed ...abi.Attr) []abi.Attr {
	for _, c := range changed {
		attrs = append(without(attrs, c.AttrID), c)
	}
	return attrs
}

func dataOf(attrs []abi.Attr, id abi.AttrID) uint64 {
	return attrs[slices.IndexFunc(attrs, func(a abi.Attr) bool { return a.AttrID == id })].Data
}

func (p *program) cqAttrs(user uint64) []abi.Attr {
	return []abi.Attr{
		handleAttr(abi.AttrCreateCQHandle, 0), inline(abi.AttrCreateCQCQE, 4, 10), inline(abi.AttrCreateCQUserHandle, 8, user),
		inline(abi.AttrCreateCQCompVector, 4, 0), outAttr(abi.AttrCreateCQRespCQE, p.alloc(8)[:4]), outAttr(abi.AttrUHWOut, p.alloc(16)[:16]),
	}
}

func (p *program) qpAttrs(pd, cq uint32, user uint64, t abi.QPType) []abi.Attr {
	limits := abi.QPCap{MaxSendWR: 5, MaxRecvWR: 6}
	return []abi.Attr{
		handleAttr(abi.AttrCreateQPHandle, 0), handleAttr(abi.AttrCreateQPPDHandle, uint64(pd)),
		handleAttr(abi.AttrCreateQPSendCQHandle, uint64(cq)), handleAttr(abi.AttrCreateQPRecvCQHandle, uint64(cq)),
		inline(abi.AttrCreateQPUserHandle, 8, user), input(abi.AttrCreateQPCap, p.store(abi.AppendTo(nil, &limits))),
		inline(abi.AttrCreateQPType, 8, uint64(t)), outAttr(abi.AttrCreateQPRespCap, p.alloc(20)[:20]),
		outAttr(abi.AttrCreateQPRespQPNum, p.alloc(8)[:4]), outAttr(abi.AttrUHWOut, p.alloc(32)[:32]),
	}
}

// A program that makes and destroys everything by methods, as newer libraries do. Its events go to the event files that
// it names.
func TestObjectsByMethods(t *testing.T) {
	w := newWorld(t)
	p := w.start(byIoctl)
	pd, channel := p.allocPD(), p.channel()
	after, err := p.ioctl(abi.ObjectAsyncEvent, abi.MethodAsyncEventAlloc, handleAttr(0, 0))
	must(t, err)
	events := int(int64(after[0].Data))

	cqAttrs := with(p.cqAttrs(11), handleAttr(abi.AttrCreateCQCompChannel, uint64(channel)), handleAttr(abi.AttrCreateCQEventFD, uint64(events)))
	after, err = p.ioctl(abi.ObjectCQ, abi.MethodCQCreate, cqAttrs...)
	must(t, err)
	cq := uint32(dataOf(after, abi.AttrCreateCQHandle))
	after, err = p.ioctl(abi.ObjectQP, abi.MethodQPCreate, with(p.qpAttrs(pd, cq, 12, abi.QPTRC), handleAttr(abi.AttrCreateQPEventFD, uint64(events)))...)
	must(t, err)
	qp := uint32(dataOf(after, abi.AttrCreateQPHandle))
	if g := p.fakeQP(qp).qp.Init().Cap; g.MaxRecvWR != 6 || g.MaxSendWR != 6 { // the driver gives one more than is asked for
		t.Errorf("granted %+v", g)
	}

	must(t, silently(p, abi.CmdReqNotifyCQ, abi.ReqNotifyCQ{CQHandle: cq}))
	w.now(func() { p.fakeCQ(cq).complete(ib.WC{}) })
	w.now(func() { p.fakeQP(qp).qp.Raise(ib.EventQPFatal) })
	if users, _ := p.completions(channel); !slices.Equal(users, []uint64{11}) {
		t.Errorf("completion events of %v", users)
	}
	if got, _ := p.asyncEvents(events); len(got) != 1 {
		t.Errorf("asynchronous events %v", got)
	}

	_, err = p.ioctl(abi.ObjectCQ, abi.MethodCQDestroy, handleAttr(abi.AttrDestroyCQHandle, uint64(cq)), outAttr(abi.AttrDestroyCQResp, p.alloc(8)[:8]))
	wantErrno(t, "destroy a queue in use", err, syscall.EBUSY)
	reported := p.alloc(8)[:8]
	_, err = p.ioctl(abi.ObjectQP, abi.MethodQPDestroy, handleAttr(abi.AttrDestroyQPHandle, uint64(qp)), outAttr(abi.AttrDestroyQPResp, reported[:4]))
	must(t, err)
	if n := binary.NativeEndian.Uint32(reported); n != 1 {
		t.Errorf("%d events of the queue pair reported", n)
	}
	_, err = p.ioctl(abi.ObjectCQ, abi.MethodCQDestroy, handleAttr(abi.AttrDestroyCQHandle, uint64(cq)), outAttr(abi.AttrDestroyCQResp, reported))
	must(t, err)
	if n := binary.NativeEndian.Uint32(reported); n != 1 {
		t.Errorf("%d completion events reported", n)
	}
	_, err = p.ioctl(abi.ObjectPD, abi.MethodPDDestroy, handleAttr(abi.AttrDestroyPDHandle, uint64(pd)))
	must(t, err)
	if n := w.dev.Objects(); n.PD+n.CQ+n.QP != 0 {
		t.Errorf("left: %+v", n)
	}
}

// What cannot be announced is not made.
func TestMethodsUndone(t *testing.T) {
	w := newWorld(t)
	p := w.start(byIoctl)
	pd, cq := p.allocPD(), p.createCQ(-1, 0)
	before := w.dev.Objects()
	nowhere := abi.Attr{Len: 4, Flags: abi.AttrFMandatory, Data: 0x1000}
	at := func(id abi.AttrID) abi.Attr { nowhere.AttrID = id; return nowhere }
	addr := (addressOf(p.alloc(8192)) + 4095) &^ 4095
	for _, test := range []struct {
		name   string
		object abi.ObjectID
		method abi.MethodID
		attrs  []abi.Attr
	}{
		{"CQ", abi.ObjectCQ, abi.MethodCQCreate, with(p.cqAttrs(1), at(abi.AttrCreateCQRespCQE))},
		{"QP", abi.ObjectQP, abi.MethodQPCreate, with(p.qpAttrs(pd, cq, 1, abi.QPTRC), at(abi.AttrCreateQPRespQPNum))},
		{"MR", abi.ObjectMR, abi.MethodRegMR, with(mrAttrs(p, pd, addr, 100), at(abi.AttrRegMRRespRKey))},
	} {
		_, err := p.ioctl(test.object, test.method, test.attrs...)
		wantErrno(t, test.name, err, syscall.EFAULT)
	}
	if after := w.dev.Objects(); after != before {
		t.Errorf("objects %+v, were %+v", after, before)
	}
}

func mrAttrs(p *program, pd uint32, addr, length uint64) []abi.Attr {
	return []abi.Attr{
		handleAttr(abi.AttrRegMRHandle, 0), handleAttr(abi.AttrRegMRPDHandle, uint64(pd)), inline(abi.AttrRegMRIOVA, 8, addr),
		inline(abi.AttrRegMRAddr, 8, addr), inline(abi.AttrRegMRLength, 8, length), inline(abi.AttrRegMRAccessFlags, 4, uint64(abi.AccessLocalWrite)),
		outAttr(abi.AttrRegMRRespLKey, p.alloc(8)[:4]), outAttr(abi.AttrRegMRRespRKey, p.alloc(8)[:4]),
	}
}

func TestRegMRByMethod(t *testing.T) {
	w := newWorld(t)
	p := w.start(byIoctl)
	pd := p.allocPD()
	addr := (addressOf(p.alloc(8192)) + 4095) &^ 4095
	good := mrAttrs(p, pd, addr, 4096)
	fd, offset := inline(abi.AttrRegMRFD, 4, 0), inline(abi.AttrRegMRFDOffset, 8, 0)
	for _, test := range []struct {
		name  string
		attrs []abi.Attr
		want  syscall.Errno
	}{
		{"fine", good, 0},
		{"neither address nor descriptor", without(good, abi.AttrRegMRAddr), syscall.EINVAL},
		{"address and descriptor", with(good, fd, offset), syscall.EINVAL},
		{"address and offset", with(good, offset), syscall.EINVAL},
		{"descriptor without offset", with(without(good, abi.AttrRegMRAddr), fd), syscall.EINVAL},
		{"descriptor", with(without(good, abi.AttrRegMRAddr), fd, offset), syscall.EOPNOTSUPP},
		{"unknown rights", with(good, inline(abi.AttrRegMRAccessFlags, 4, 1<<12)), syscall.EINVAL},
		{"no such PD", with(good, handleAttr(abi.AttrRegMRPDHandle, 99)), syscall.ENOENT},
		{"another place in the page", with(good, inline(abi.AttrRegMRIOVA, 8, addr+1)), syscall.EINVAL},
	} {
		_, err := p.ioctl(abi.ObjectMR, abi.MethodRegMR, test.attrs...)
		wantErrno(t, test.name, err, test.want)
	}
	after, err := p.ioctl(abi.ObjectMR, abi.MethodRegMR, good...)
	must(t, err)
	mr := dataOf(after, abi.AttrRegMRHandle)
	length, iova := p.alloc(8)[:8], p.alloc(8)[:8]
	_, err = p.ioctl(abi.ObjectMR, abi.MethodQueryMR, handleAttr(abi.AttrQueryMRHandle, mr), outAttr(abi.AttrQueryMRRespLKey, p.alloc(8)[:4]),
		outAttr(abi.AttrQueryMRRespRKey, p.alloc(8)[:4]), outAttr(abi.AttrQueryMRRespLength, length), outAttr(abi.AttrQueryMRRespIOVA, iova))
	must(t, err)
	if l, a := uint64At(length), uint64At(iova); l != 4096 || a != addr {
		t.Errorf("query: %d bytes at %#x", l, a)
	}
	sge := abi.SGE{Addr: addr, Length: 1}
	list := input(abi.AttrAdviseMRSGEList, p.store(abi.AppendTo(nil, &sge)))
	advise := []abi.Attr{handleAttr(abi.AttrAdviseMRPDHandle, uint64(pd)), inline(abi.AttrAdviseMRAdvice, 8, 0), inline(abi.AttrAdviseMRFlags, 4, 1), list}
	_, err = p.ioctl(abi.ObjectMR, abi.MethodAdviseMR, advise...)
	wantErrno(t, "advice to a driver that takes none", err, syscall.EOPNOTSUPP)
	list.Len++
	_, err = p.ioctl(abi.ObjectMR, abi.MethodAdviseMR, with(advise, list)...)
	wantErrno(t, "advice with half an element", err, syscall.EINVAL)
	_, err = p.ioctl(abi.ObjectMR, abi.MethodAdviseMR, with(advise, inline(abi.AttrAdviseMRFlags, 4, 2))...)
	wantErrno(t, "advice with an unknown flag", err, syscall.EINVAL)
}

// When the device has gone, destroying succeeds, everything else does not.
func TestMethodsOfZombie(t *testing.T) {
	w := newWorld(t)
	p := w.start(byIoctl)
	pd, cq := p.allocPD(), p.createCQ(-1, 0)
	mr := p.regMR(pd)
	w.srv.Close()
	for _, test := range []struct {
		name   string
		object abi.ObjectID
		method abi.MethodID
		attrs  []abi.Attr
		want   syscall.Errno
	}{
		{"make a CQ", abi.ObjectCQ, abi.MethodCQCreate, p.cqAttrs(1), syscall.EIO},
		{"make a QP", abi.ObjectQP, abi.MethodQPCreate, p.qpAttrs(pd, cq, 1, abi.QPTRC), syscall.EIO},
		{"query the port", abi.ObjectDevice, abi.MethodQueryPort, []abi.Attr{inline(0, 8, 1), outAttr(1, p.alloc(48)[:48])}, syscall.EIO},
		{"destroy the MR", abi.ObjectMR, abi.MethodMRDestroy, []abi.Attr{handleAttr(0, uint64(mr.MRHandle))}, 0},
		{"destroy the CQ", abi.ObjectCQ, abi.MethodCQDestroy, []abi.Attr{handleAttr(0, uint64(cq)), outAttr(1, p.alloc(8)[:8])}, 0},
		{"destroy it again", abi.ObjectCQ, abi.MethodCQDestroy, []abi.Attr{handleAttr(0, uint64(cq)), outAttr(1, p.alloc(8)[:8])}, syscall.ENOENT},
	} {
		_, err := p.ioctl(test.object, test.method, test.attrs...)
		wantErrno(t, test.name, err, test.want)
	}
}
