package uverbs

import (
	"bytes"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/uapi"
)

func outAttr(id uapi.AttrID, b []byte) uapi.Attr {
	return uapi.Attr{AttrID: id, Len: uint16(len(b)), Flags: uapi.AttrFMandatory, Data: addressOf(b)}
}

func TestIoctlHeader(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byIoctl)
	good := uapi.IoctlHdr{Length: ioctlHdrSize, ObjectID: uapi.ObjectDevice, MethodID: uapi.MethodQueryContext,
		DriverID: uapi.DriverRXE}
	for _, test := range []struct {
		name   string
		change func(h *uapi.IoctlHdr)
		want   syscall.Errno
	}{
		{"fine", func(*uapi.IoctlHdr) {}, 0},
		{"length without the attributes", func(h *uapi.IoctlHdr) { h.NumAttrs = 1 }, syscall.EINVAL},
		{"length without attributes", func(h *uapi.IoctlHdr) { h.Length += 16 }, syscall.EINVAL},
		{"no length", func(h *uapi.IoctlHdr) { h.Length = 0 }, syscall.EINVAL},
		{"more than a page", func(h *uapi.IoctlHdr) { h.NumAttrs = 255; h.Length = 24 + 255*16 }, syscall.EINVAL},
		{"reserved 1", func(h *uapi.IoctlHdr) { h.Reserved1 = 1 }, syscall.EPROTONOSUPPORT},
		{"reserved 2", func(h *uapi.IoctlHdr) { h.Reserved2 = 1 }, syscall.EPROTONOSUPPORT},
		{"another driver", func(h *uapi.IoctlHdr) { h.DriverID = uapi.DriverMLX5 }, syscall.EINVAL},
		{"no such method", func(h *uapi.IoctlHdr) { h.MethodID = 99 }, syscall.EPROTONOSUPPORT},
		{"no such object", func(h *uapi.IoctlHdr) { h.ObjectID = 99 }, syscall.EPROTONOSUPPORT},
		{"a method of an unknown object type", func(h *uapi.IoctlHdr) {
			h.ObjectID, h.MethodID = uapi.ObjectDM,
				uapi.MethodDMAlloc
		}, syscall.EPROTONOSUPPORT},
		{"a method of the driver", func(h *uapi.IoctlHdr) { h.MethodID = uapi.IDDriverNS }, syscall.EPROTONOSUPPORT},
	} {
		h := good
		test.change(&h)
		_, err := p.callMethodRaw(h, nil)
		wantErrno(t, test.name, err, test.want)
	}
	wantErrno(t, "another request", p.f.Ioctl(p, 0x5401, 0), syscall.ENOTTY)
	wantErrno(t, "not mapped", p.f.Ioctl(p, uapi.VerbsIoctl, 8), syscall.EFAULT)
}

// TestIoctlAtTheEndOfMemory checks arguments at the end of a mapping, including a long argument.
func TestIoctlAtTheEndOfMemory(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byIoctl)
	mem, err := unix.Mmap(-1, 0, 2*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	defer unix.Munmap(mem)
	must(t, unix.Mprotect(mem[4096:], unix.PROT_NONE))
	for _, attrs := range []int{0, 1, 2, 8, 9, 40, 200} {
		hdr := uapi.IoctlHdr{Length: uint16(ioctlHdrSize + attrs*attrSize), ObjectID: uapi.ObjectDevice,
			MethodID: uapi.MethodQueryContext, NumAttrs: uint16(attrs), DriverID: uapi.DriverRXE}
		b := uapi.AppendTo(nil, &hdr)
		for range attrs {
			a := uapi.Attr{AttrID: 0xfff} // unknown and optional
			b = uapi.AppendTo(b, &a)
		}
		at := mem[4096-len(b) : 4096]
		copy(at, b)
		if err := p.f.Ioctl(p, uapi.VerbsIoctl, addressOf(at)); err != nil {
			t.Errorf("ioctl with %d attributes at the end of memory: got %v, want nil", attrs, err)
		}
		cut := mem[4096-len(b)+8 : 4096]
		copy(cut, b)
		wantErrno(t, "the end is cut off", p.f.Ioctl(p, uapi.VerbsIoctl, addressOf(cut)), syscall.EFAULT)
		clear(mem[:4096])
	}
}

func TestIoctlAttributes(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byIoctl)
	room := p.allocMem(64)
	port := inlineAttr(uapi.AttrQueryPortPortNum, 8, 1)
	resp := outAttr(uapi.AttrQueryPortResp, room[:48])
	for _, test := range []struct {
		name  string
		attrs []uapi.Attr
		want  syscall.Errno
	}{
		{"fine", []uapi.Attr{port, resp}, 0},
		{"in any order", []uapi.Attr{resp, port}, 0},
		{"without a mandatory attribute", []uapi.Attr{port}, syscall.EINVAL},
		{"twice", []uapi.Attr{port, port, resp}, syscall.EINVAL},
		{"unknown", []uapi.Attr{port, resp, {AttrID: 77}}, 0},
		{"unknown and mandatory", []uapi.Attr{port, resp, {AttrID: 77, Flags: uapi.AttrFMandatory}}, syscall.EPROTONOSUPPORT},
		{"number of 4 bytes", []uapi.Attr{inlineAttr(uapi.AttrQueryPortPortNum, 4, 1), resp}, syscall.EINVAL},
		{"number of 16 bytes", []uapi.Attr{inlineAttr(uapi.AttrQueryPortPortNum, 16, 1), resp}, syscall.EINVAL},
		{"number that is too large", []uapi.Attr{inlineAttr(uapi.AttrQueryPortPortNum, 8, 257), resp}, syscall.EINVAL},
		{"reserved set", []uapi.Attr{{AttrID: uapi.AttrQueryPortPortNum, Len: 8, Data: 1,
			AttrData: uapi.AttrEnumData{Reserved: 1}}, resp}, syscall.EINVAL},
		{"enumeration element in another attribute", []uapi.Attr{{AttrID: uapi.AttrQueryPortPortNum, Len: 8, Data: 1,
			AttrData: uapi.AttrEnumData{ElemID: 1}}, resp}, syscall.EINVAL},
		{"little room", []uapi.Attr{port, outAttr(uapi.AttrQueryPortResp, room[:40])}, syscall.EINVAL},
		{"larger buffer than needed", []uapi.Attr{port, outAttr(uapi.AttrQueryPortResp, room[:64])}, 0},
		{"unmapped buffer", []uapi.Attr{port, {AttrID: uapi.AttrQueryPortResp, Len: 48, Data: 0x1000}},
			syscall.EFAULT},
		{"no such port", []uapi.Attr{inlineAttr(uapi.AttrQueryPortPortNum, 8, 2), resp}, syscall.EINVAL},
	} {
		for i := range room {
			room[i] = 0xee
		}
		after, err := p.callMethod(uapi.ObjectDevice, uapi.MethodQueryPort, test.attrs...)
		wantErrno(t, test.name, err, test.want)
		for i, a := range after {
			valid := a.Flags&uapi.AttrFValidOutput != 0
			if want := test.want == 0 && a.AttrID == uapi.AttrQueryPortResp; valid != want {
				t.Errorf("%s: attribute %d: got valid output %v, want %v", test.name, i, valid, want)
			}
			if a.Data != test.attrs[i].Data || a.Len != test.attrs[i].Len {
				t.Errorf("%s: attribute %d: got %+v, want no change", test.name, i, a)
			}
		}
		if test.want == 0 {
			r, _ := uapi.Decode[uapi.QueryPortRespEx](room)
			if r.LegacyResp.State != uapi.PortActive {
				t.Errorf("%s: got %+v, want an active port", test.name, r)
			}
		}
	}
	if !bytes.Equal(room, bytes.Repeat([]byte{0xee}, 64)) {
		t.Errorf("failed call: got the output %x, want none", room)
	}
	_, err := p.callMethod(uapi.ObjectDevice, uapi.MethodQueryPort, port, outAttr(uapi.AttrQueryPortResp, room[:64]))
	must(t, err)
	if !bytes.Equal(room[48:], make([]byte, 16)) {
		t.Errorf("bytes after the answer: got %x, want zeros", room[48:])
	}
}

func TestInvokeWriteAttributes(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byIoctl)
	number := inlineAttr(uapi.AttrWriteCmd, 8, uint64(uapi.CmdAllocPD))
	resp := p.allocMem(16)
	core := uapi.Attr{AttrID: uapi.AttrCoreIn, Len: 8} // the attribute itself contains these bytes
	for _, test := range []struct {
		name  string
		attrs []uapi.Attr
		want  syscall.Errno
	}{
		{"nothing", nil, syscall.EINVAL},
		{"the C library's probe", []uapi.Attr{inlineAttr(uapi.AttrWriteCmd, 8, uint64(uapi.CmdQueryDevice))}, syscall.ENOSPC},
		{"fine", []uapi.Attr{number, core, outAttr(uapi.AttrCoreOut, resp[:4])}, 0},
		{"no request", []uapi.Attr{number, outAttr(uapi.AttrCoreOut, resp[:4])}, syscall.ENOSPC},
		{"no room", []uapi.Attr{number, core}, syscall.ENOSPC},
		{"request of 3 bytes", []uapi.Attr{number, {AttrID: uapi.AttrCoreIn, Len: 3}, outAttr(uapi.AttrCoreOut, resp[:4])},
			syscall.EINVAL},
		{"unmapped request", []uapi.Attr{number, {AttrID: uapi.AttrCoreIn, Len: 16, Data: 0x1000},
			outAttr(uapi.AttrCoreOut, resp[:4])}, syscall.EFAULT},
		{"driver's data that is not mapped", []uapi.Attr{number, core, outAttr(uapi.AttrCoreOut, resp[:4]),
			{AttrID: uapi.AttrUHWIn, Len: 16, Data: 0x1000}}, syscall.EFAULT},
		{"very long request", []uapi.Attr{number, {AttrID: uapi.AttrCoreIn, Len: maxCommand + 8, Data: addressOf(p.arena)},
			outAttr(uapi.AttrCoreOut, resp[:4])}, syscall.EINVAL},
		{"no such command", []uapi.Attr{inlineAttr(uapi.AttrWriteCmd, 8, 255)}, syscall.EOPNOTSUPP},
		{"flags", []uapi.Attr{inlineAttr(uapi.AttrWriteCmd, 8, 1<<30)}, syscall.EINVAL},
		{"command beyond 32 bits", []uapi.Attr{inlineAttr(uapi.AttrWriteCmd, 8, 1<<32)}, syscall.EINVAL},
		{"response that is not mapped", []uapi.Attr{number, core, {AttrID: uapi.AttrCoreOut, Len: 4, Data: 0x1000}},
			syscall.EFAULT},
	} {
		before := w.dev.Objects().PD
		_, err := p.callMethod(uapi.ObjectDevice, uapi.MethodInvokeWrite, test.attrs...)
		wantErrno(t, test.name, err, test.want)
		if made := w.dev.Objects().PD - before; (made == 1) != (test.want == 0) {
			t.Errorf("%s: got %d PDs, want 1 if there is no error, else 0", test.name, made)
		}
	}
}

// TestContextWithoutAsyncFile creates a context like newer libraries: by methods of the context, and without an
// asynchronous event file.
func TestContextWithoutAsyncFile(t *testing.T) {
	w := newFixture(t)
	p := w.open(byIoctl)
	vectors, support := p.allocMem(4)[:4], p.allocMem(8)[:8]
	_, err := p.callMethod(uapi.ObjectDevice, uapi.MethodQueryContext)
	wantErrno(t, "query before get", err, syscall.EINVAL)
	_, err = p.callMethod(uapi.ObjectDevice, uapi.MethodGetContext,
		uapi.Attr{AttrID: uapi.AttrGetContextCoreSupport, Len: 8, Data: 0x1000})
	wantErrno(t, "answer faults", err, syscall.EFAULT)
	if w.drv.UserContextCount() != 0 {
		t.Errorf("contexts in the driver: got %d, want 0", w.drv.UserContextCount())
	}
	w.drv.FailMethod(ibfake.AllocUserContext, syscall.ENOMEM)
	_, err = p.callMethod(uapi.ObjectDevice, uapi.MethodGetContext)
	wantErrno(t, "driver refuses", err, syscall.ENOMEM)
	w.drv.FailMethod(ibfake.AllocUserContext, nil)
	_, err = p.callMethod(uapi.ObjectDevice, uapi.MethodGetContext, outAttr(uapi.AttrGetContextNumCompVectors, vectors),
		outAttr(uapi.AttrGetContextCoreSupport, support))
	must(t, err)
	if v, s := uint64At(append(slices.Clone(vectors), 0, 0, 0, 0)), uint64At(support); v != 2 ||
		s != uint64(uapi.CoreSupportOptionalMRAccess) {
		t.Errorf("context: got %d vectors and support %#x, want the values of the fake device", v, s)
	}
	_, err = p.callMethod(uapi.ObjectDevice, uapi.MethodGetContext)
	wantErrno(t, "twice", err, syscall.EINVAL)
	clear(vectors)
	_, err = p.callMethod(uapi.ObjectDevice, uapi.MethodQueryContext, outAttr(uapi.AttrQueryContextNumCompVectors,
		vectors))
	must(t, err)
	if vectors[0] != 2 {
		t.Errorf("completion vectors: got %v, want 2", vectors)
	}
	attrs, err := p.callMethod(uapi.ObjectAsyncEvent, uapi.MethodAsyncEventAlloc, uapi.Attr{Flags: uapi.AttrFMandatory})
	must(t, err)
	w.runWithCallbacks(func() { w.handle.DispatchEvent(ib.EventPortActive, 1) })
	if events, _ := p.readAsyncEvents(int(int64(attrs[0].Data))); len(events) != 1 {
		t.Errorf("events: got %v, want 1", events)
	}
	_, err = p.callMethod(uapi.ObjectAsyncEvent, uapi.MethodAsyncEventAlloc, uapi.Attr{Len: 4})
	wantErrno(t, "a descriptor has no length", err, syscall.EINVAL)
	p.allocPD()
}

func TestQueryGIDs(t *testing.T) {
	w := newFixture(t)
	link, v4 := ib.GID{0: 0xfe, 1: 0x80, 15: 1}, ib.GID{10: 0xff, 11: 0xff, 12: 127, 15: 1}
	w.drv.ChangeQueryResults(func(a *ibfake.QueryResults) {
		a.GIDs = []ib.GIDEntry{{GID: link, Type: ib.GIDTypeRoCEv2, Netdev: "lo", IfIndex: 1}, {},
			{GID: v4, Type: ib.GIDTypeRoCEv2, IfIndex: 7}, {}}
	})
	p := w.startProgram(byIoctl)
	want := []uapi.GIDEntry{
		{GID: link, GIDIndex: 0, PortNum: 1, GIDType: uapi.GIDTypeRoCEV2, NetdevIfindex: 1},
		{GID: v4, GIDIndex: 2, PortNum: 1, GIDType: uapi.GIDTypeRoCEV2, NetdevIfindex: 7},
	}
	size := uapi.SizeOf[uapi.GIDEntry]()
	count := p.allocMem(8)[:8]
	table := func(entrySize, room int) ([]uapi.GIDEntry, []byte, error) {
		b := p.allocMem(room + 1)[:room]
		for i := range b {
			b[i] = 0xee
		}
		_, err := p.callMethod(uapi.ObjectDevice, uapi.MethodQueryGIDTable,
			inlineAttr(uapi.AttrQueryGIDTableEntrySize, 8, uint64(entrySize)),
			inlineAttr(uapi.AttrQueryGIDTableFlags, 4, 0), outAttr(uapi.AttrQueryGIDTableRespEntries, b),
			outAttr(uapi.AttrQueryGIDTableRespNumEntries, count))
		var entries []uapi.GIDEntry
		for i := 0; err == nil && i < int(uint64At(count)); i++ {
			e, _ := uapi.DecodePrefix[uapi.GIDEntry](b[i*entrySize : min((i+1)*entrySize, i*entrySize+size)])
			entries = append(entries, e)
		}
		return entries, b, err
	}
	for _, test := range []struct {
		name            string
		entrySize, room int
		want            syscall.Errno
	}{
		{"fine", size, 4 * size, 0},
		{"just enough", size, 2 * size, 0},
		{"room for one", size, size, syscall.EINVAL},
		{"no room", size, 0, syscall.EINVAL},
		{"not a multiple", size, 2*size + 1, syscall.EINVAL},
		{"entries of nothing", 0, 2 * size, syscall.EINVAL},
		{"longer entries", size + 8, 3 * (size + 8), 0},
	} {
		got, b, err := table(test.entrySize, test.room)
		wantErrno(t, test.name, err, test.want)
		if test.want == 0 && !slices.Equal(got, want) {
			t.Errorf("%s: %+v", test.name, got)
		}
		if test.name == "longer entries" && !bytes.Equal(b[size:size+8], make([]byte, 8)) {
			t.Errorf("longer part of an entry: got %x, want zeros", b[size:size+8])
		}
	}
	short, _, err := table(20, 100)
	must(t, err)
	if len(short) != 2 || short[1].GID != want[1].GID || short[1].GIDIndex != 2 || short[1].PortNum != 0 {
		t.Errorf("shorter entries: got %+v, want 2 without the port", short)
	}

	resp := p.allocMem(size)[:size]
	entry := func(port, index uint64, flags uint64) error {
		_, err := p.callMethod(uapi.ObjectDevice, uapi.MethodQueryGIDEntry, inlineAttr(uapi.AttrQueryGIDEntryPort, 8, port),
			inlineAttr(uapi.AttrQueryGIDEntryGIDIndex, 8, index), inlineAttr(uapi.AttrQueryGIDEntryFlags, 4, flags),
			outAttr(uapi.AttrQueryGIDEntryRespEntry, resp))
		return err
	}
	must(t, entry(1, 2, 0))
	if got, _ := uapi.Decode[uapi.GIDEntry](resp); got != want[1] {
		t.Errorf("entry 2: %+v", got)
	}
	wantErrno(t, "empty entry", entry(1, 1, 0), syscall.ENODATA)
	wantErrno(t, "beyond the table", entry(1, 4, 0), syscall.EINVAL)
	wantErrno(t, "no such port", entry(2, 0, 0), syscall.EINVAL)
	wantErrno(t, "flags", entry(1, 0, 1), syscall.EINVAL)
	if err := entry(1, 0, 1<<32); err != nil {
		t.Errorf("query of a GID entry with flags of 4 bytes: got %v, want nil", err)
	}
}

func TestInfoHandles(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byIoctl)
	a, cq, b := p.allocPD(), p.createCQ(-1, 0), p.allocPD()
	list, total := p.allocMem(16)[:16], p.allocMem(4)[:4]
	info := func(object uapi.ObjectID, room int) error {
		clear(list)
		_, err := p.callMethod(uapi.ObjectDevice, uapi.MethodInfoHandles, inlineAttr(uapi.AttrInfoObjectID, 8,
			uint64(object)),
			outAttr(uapi.AttrInfoHandlesList, list[:room]), outAttr(uapi.AttrInfoTotalHandles, total))
		return err
	}
	must(t, info(uapi.ObjectPD, 16))
	if !bytes.Equal(list, slices.Concat(uint32Bytes(b), uint32Bytes(a), make([]byte, 8))) || total[0] != 2 {
		t.Errorf("handles of PDs: got %v with total %v, want both, the latest first", list, total)
	}
	must(t, info(uapi.ObjectCQ, 4))
	if !bytes.Equal(list[:4], uint32Bytes(cq)) || total[0] != 1 {
		t.Errorf("handles of CQs: got %v with total %v, want one", list, total)
	}
	must(t, info(uapi.ObjectPD, 4))
	if total[0] != 1 {
		t.Errorf("handles in a short buffer: got %v, want 1", total)
	}
	wantErrno(t, "no such objects", info(uapi.ObjectFlow, 16), syscall.ENOENT)
	wantErrno(t, "room for half a handle", info(uapi.ObjectPD, 6), syscall.EINVAL)
}
