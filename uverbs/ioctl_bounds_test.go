package uverbs

import (
	"fmt"
	"math"
	"syscall"
	"testing"

	"verbena/uapi"
)

// TestLongestIoctlIsAccepted checks the longest accepted header, and a header with one more attribute.
func TestLongestIoctlIsAccepted(t *testing.T) {
	p := newFixture(t).startProgram(byIoctl)
	const most = (maxIoctl - ioctlHdrSize) / attrSize
	for n, want := range map[int]syscall.Errno{0: 0, most: 0, most + 1: syscall.EINVAL} {
		attrs := make([]uapi.Attr, n)
		for i := range attrs {
			attrs[i].AttrID = 0xfff // unknown and optional
		}
		_, err := p.callMethod(uapi.ObjectDevice, uapi.MethodQueryContext, attrs...)
		wantErrno(t, fmt.Sprintf("%d attributes", n), err, want)
	}
}

// TestCreateQPAttributeBounds checks the attributes of QP_CREATE at and beyond their bounds.
func TestCreateQPAttributeBounds(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byIoctl)
	pd, cq := p.allocPD(), p.createCQ(-1, 0)
	limits := func(n int, last byte) uapi.Attr {
		b := p.allocMem(n + 1)[:n]
		b[n-1] = last
		return inputAttr(uapi.AttrCreateQPCap, b)
	}
	flags := func(n int, v uapi.QPCreateFlags) uapi.Attr { return inlineAttr(uapi.AttrCreateQPFlags, n, uint64(v)) }
	typ := func(v uint64) uapi.Attr { return inlineAttr(uapi.AttrCreateQPType, 8, v) }
	ofPD := func(h uint64) uapi.Attr { return handleAttr(uapi.AttrCreateQPPDHandle, h) }
	const (
		blockLoopback = uapi.QPCreateBlockMulticastLoopback
		scatterFCS    = uapi.QPCreateScatterFCS
		stripping     = uapi.QPCreateCVLANStripping
		padding       = uapi.QPCreatePCIWriteEndPadding
		ok            = 0
		inval         = syscall.EINVAL
		notSup        = syscall.EOPNOTSUPP
	)
	size := uapi.SizeOf[uapi.QPCap]()
	for _, test := range []struct {
		name string
		typ  uapi.QPType
		attr uapi.Attr
		want syscall.Errno
	}{
		{"limits, short", uapi.QPTRC, limits(size-1, 0), inval},
		{"limits", uapi.QPTRC, limits(size, 0), ok},
		{"limits with zeros behind them", uapi.QPTRC, limits(size+8, 0), ok},
		{"limits with a byte behind them", uapi.QPTRC, limits(size+8, 1), notSup},

		{"flags of 3 bytes", uapi.QPTRC, flags(3, 0), inval},
		{"flags of 4 bytes", uapi.QPTRC, flags(4, 0), ok},
		{"flags of 5 bytes", uapi.QPTRC, flags(5, 0), inval},
		{"flags of 7 bytes", uapi.QPTRC, flags(7, 0), inval},
		{"flags of 8 bytes", uapi.QPTRC, flags(8, 0), ok},
		{"flags of 9 bytes", uapi.QPTRC, flags(9, 0), inval},
		{"unknown flag", uapi.QPTUD, flags(8, 1<<31), inval},
		{"all sends signalled", uapi.QPTRC, flags(8, uapi.QPCreateSQSigAll), ok},
		{"RC with an option", uapi.QPTRC, flags(8, blockLoopback), inval},
		{"UC with an option", uapi.QPTUC, flags(8, padding), inval},
		{"UD with a UD option", uapi.QPTUD, flags(8, blockLoopback), notSup},
		{"UD with an option of all datagrams", uapi.QPTUD, flags(8, padding), notSup},
		{"UD with an option of raw packets", uapi.QPTUD, flags(8, scatterFCS), inval},
		{"UD with another option of raw packets", uapi.QPTUD, flags(8, stripping|blockLoopback), inval},
		{"raw packets with their option", uapi.QPTRawPacket, flags(8, scatterFCS|stripping), notSup},
		{"driver's type with an option", uapi.QPTDriver, flags(8, scatterFCS), notSup},
		{"source queue pair number", uapi.QPTUD, inlineAttr(uapi.AttrCreateQPSourceQPN, 4, 1), notSup},

		{"no such type", uapi.QPTRC, typ(uint64(uapi.QPTDriver) - 1), inval},
		{"type beyond 8 bits", uapi.QPTRC, typ(1<<8 + uint64(uapi.QPTRC)), inval},
		{"type beyond 32 bits", uapi.QPTRC, typ(1<<32 + uint64(uapi.QPTRC)), inval},

		{"handle of no object", uapi.QPTRC, ofPD(math.MaxUint32), syscall.ENOENT},
		{"handle beyond 32 bits", uapi.QPTRC, ofPD(1<<32 + uint64(pd)), syscall.ENOENT},
		{"handle of 63 bits", uapi.QPTRC, ofPD(math.MaxInt64), syscall.ENOENT},
		{"handle below zero", uapi.QPTRC, ofPD(1<<63 + uint64(pd)), inval},
	} {
		before := w.dev.Objects().QP
		_, err := p.callMethod(uapi.ObjectQP, uapi.MethodQPCreate, withAttrs(p.createQPAttrs(pd, cq, 0, test.typ),
			test.attr)...)
		wantErrno(t, test.name, err, test.want)
		if made := w.dev.Objects().QP - before; (made == 1) != (test.want == 0) {
			t.Errorf("%s: got %d queue pairs, want 1 if there is no error, else 0", test.name, made)
		}
	}
}

// TestDescriptorAttributeBounds checks descriptors at and beyond their bounds.
func TestDescriptorAttributeBounds(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byIoctl)
	channel := int64(p.createChannel())
	for _, test := range []struct {
		name string
		fd   int64
		want syscall.Errno
	}{
		{"a channel", channel, 0},
		{"another file", int64(p.async), syscall.EBADF},
		{"the last descriptor", math.MaxInt32, syscall.EBADF},
		{"beyond the last descriptor", math.MaxInt32 + 1, syscall.EINVAL},
		{"beyond 32 bits", 1<<32 + channel, syscall.EINVAL},
		{"-1", -1, syscall.EBADF},
		{"the least descriptor", math.MinInt32, syscall.EBADF},
		{"below the least descriptor", math.MinInt32 - 1, syscall.EINVAL},
	} {
		attrs := withAttrs(p.createCQAttrs(0), handleAttr(uapi.AttrCreateCQCompChannel, uint64(test.fd)))
		_, err := p.callMethod(uapi.ObjectCQ, uapi.MethodCQCreate, attrs...)
		wantErrno(t, test.name, err, test.want)
	}
	if n := w.dev.Objects().CQ; n != 1 {
		t.Errorf("completion queues: got %d, want 1", n)
	}
}

// TestFormatAttributes checks that attributes with values in the header are formatted as numbers, and others by their
// length.
func TestFormatAttributes(t *testing.T) {
	var list []attribute
	for i, n := range []uint16{0, 4, 8, 9} {
		list = append(list, attribute{uapi.Attr{AttrID: uapi.AttrID(i), Len: n, Data: 0x70}})
	}
	if got, want := formatAttributes(list), "{0: 0x70, 1: 0x70, 2: 0x70, 3: 9 bytes}"; got != want {
		t.Errorf("formatAttributes: got %s, want %s", got, want)
	}
}
