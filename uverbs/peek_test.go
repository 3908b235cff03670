package uverbs

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/uapi"
)

// armCall is a REQ_NOTIFY_CQ by ioctl in the form of libibverbs.
type armCall struct {
	hdr   uapi.IoctlHdr
	attrs []uapi.Attr
}

func newArmCall(cq uint32) *armCall {
	return &armCall{
		uapi.IoctlHdr{Length: armIoctlSize, ObjectID: uapi.ObjectDevice, MethodID: uapi.MethodInvokeWrite, NumAttrs: 2,
			DriverID: uapi.DriverRXE},
		[]uapi.Attr{
			{AttrID: uapi.AttrWriteCmd, Len: 8, Flags: uapi.AttrFMandatory, Data: uint64(uapi.CmdReqNotifyCQ)},
			{AttrID: uapi.AttrCoreIn, Len: 8, Flags: uapi.AttrFMandatory, Data: uint64(cq)},
		},
	}
}

func (a *armCall) bytes() []byte {
	b := uapi.AppendTo(nil, &a.hdr)
	for i := range a.attrs {
		b = uapi.AppendTo(b, &a.attrs[i])
	}
	return b
}

// armRaisesEvent reports whether a completion raises an event.
func (p *program) armRaisesEvent(ch int, cq uint32) bool {
	p.w.runWithCallbacks(func() { p.fakeCQ(cq).Complete(ib.WC{}) })
	events, _ := p.readCompletions(ch)
	return len(events) == 1
}

// TestPeekArmsCQ checks that peeking arms a queue if the call has the form of libibverbs. All other calls must have the
// same result as without peeking.
func TestPeekArmsCQ(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(a *armCall, pd uint32)
		reads  bool
		want   error
	}{
		{"as libibverbs does", func(*armCall, uint32) {}, false, nil},
		{"the other way round", func(a *armCall, _ uint32) { slices.Reverse(a.attrs) }, false, nil},
		{"for solicited events", func(a *armCall, _ uint32) { a.attrs[1].Data |= 1 << 32 }, false, nil},
		{"with room for an answer", func(a *armCall, _ uint32) {
			a.hdr.Length, a.hdr.NumAttrs = armIoctlSize+attrSize, 3
			a.attrs = append(a.attrs, uapi.Attr{AttrID: uapi.AttrUHWOut})
		}, true, nil},
		{"no queue", func(a *armCall, _ uint32) { a.attrs[1].Data = 1 << 20 }, true, syscall.ENOENT},
		{"a protection domain", func(a *armCall, pd uint32) { a.attrs[1].Data = uint64(pd) }, true, syscall.EINVAL},
		{"a request that is too short", func(a *armCall, _ uint32) { a.attrs[1].Len = 4 }, true, syscall.ENOSPC},
		{"a request that is elsewhere", func(a *armCall, _ uint32) { a.attrs[1].Len, a.attrs[1].Data = 16, 8 }, true,
			syscall.EFAULT},
		{"no command", func(a *armCall, _ uint32) { a.attrs[0] = a.attrs[1] }, true, syscall.EINVAL},
		{"no request", func(a *armCall, _ uint32) { a.attrs[1] = a.attrs[0] }, true, syscall.EINVAL},
		{"a command that is too short", func(a *armCall, _ uint32) { a.attrs[0].Len = 4 }, true, syscall.EINVAL},
		{"a command in 33 bits", func(a *armCall, _ uint32) { a.attrs[0].Data |= 1 << 32 }, true, syscall.EINVAL},
		{"reserved fields of the command", func(a *armCall, _ uint32) { a.attrs[0].AttrData.ElemID = 1 }, true,
			syscall.EINVAL},
		{"reserved fields of the request", func(a *armCall, _ uint32) { a.attrs[1].AttrData.ElemID = 1 }, true,
			syscall.EINVAL},
		{"reserved field of the header", func(a *armCall, _ uint32) { a.hdr.Reserved1 = 1 }, true, syscall.EPROTONOSUPPORT},
		{"another reserved field of the header", func(a *armCall, _ uint32) { a.hdr.Reserved2 = 1 }, true,
			syscall.EPROTONOSUPPORT},
		{"another method", func(a *armCall, _ uint32) { a.hdr.MethodID = 99 }, true, syscall.EPROTONOSUPPORT},
		{"another object", func(a *armCall, _ uint32) { a.hdr.ObjectID = 99 }, true, syscall.EPROTONOSUPPORT},
		{"a wrong length", func(a *armCall, _ uint32) { a.hdr.Length-- }, true, syscall.EINVAL},
		{"a wrong number of attributes", func(a *armCall, _ uint32) { a.hdr.NumAttrs = 1 }, true, syscall.EINVAL},
		{"another driver", func(a *armCall, _ uint32) { a.hdr.DriverID++ }, true, syscall.EINVAL},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newFixture(t).startProgram(byIoctl)
			pd, ch := p.allocPD(), p.createChannel()
			cq := p.createCQ(ch, 7)
			call := newArmCall(cq)
			test.change(call, pd)
			b := p.storeBytes(append(call.bytes(), make([]byte, 64)...))

			err := p.f.Ioctl(p, uapi.VerbsIoctl, addressOf(b)) // without a Peeker
			if !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
			if armed := p.armRaisesEvent(ch, cq); armed != (test.want == nil) {
				t.Errorf("armed: got %v, want %v", armed, test.want == nil)
			}
			c := &peekingCaller{program: p, seen: slices.Clone(b)}
			if got := p.f.Ioctl(c, uapi.VerbsIoctl, addressOf(b)); !errors.Is(got, test.want) || (got == nil) != (err == nil) {
				t.Errorf("Ioctl: got %v with peeking and %v without, want equal results", got, err)
			}
			if reads := c.reads > 0; reads != test.reads {
				t.Errorf("reads of the caller's memory: got %d, want any: %v", c.reads, test.reads)
			}
			if armed := p.armRaisesEvent(ch, cq); armed != (test.want == nil) {
				t.Errorf("queue armed: got %v, want %v", armed, test.want == nil)
			}
		})
	}
}

func TestNotifyFlags(t *testing.T) {
	for solicited, want := range map[uint32]ib.NotifyFlags{0: ib.NotifyNextComp, 1: ib.NotifySolicited,
		1 << 31: ib.NotifySolicited} {
		call := newArmCall(3)
		call.attrs[1].Data |= uint64(solicited) << 32
		req, ok := parseArmIoctl(call.bytes())
		if got := notifyFlags(req); !ok || got != want {
			t.Errorf("solicited_only %d: %v, want %v", solicited, got, want)
		}
	}
}

// TestForeignPeekArmsOnlyOwnCQ checks peeked data that belong to another program. Such data may arm at most a queue of
// this file, and a zombie must return its usual errors.
func TestForeignPeekArmsOnlyOwnCQ(t *testing.T) {
	p := newFixture(t).startProgram(byIoctl)
	ch := p.createChannel()
	cq := p.createCQ(ch, 7)
	b := p.storeBytes(newArmCall(cq).bytes())
	for name, seen := range map[string][]byte{
		"nothing": nil, "zeros": make([]byte, armIoctlSize), "another file's queue": newArmCall(1 << 20).bytes(),
		"a doorbell": append(doorbellCommand(cq), make([]byte, armIoctlSize)...)[:armIoctlSize],
	} {
		if err := p.f.Ioctl(&peekingCaller{program: p, seen: seen}, uapi.VerbsIoctl, addressOf(b)); err != nil {
			t.Errorf("%s is seen: %v", name, err)
		}
		if !p.armRaisesEvent(ch, cq) {
			t.Errorf("%s: got a queue that is not armed, want an armed queue", name)
		}
	}
	must(t, p.w.core.Unregister(p.w.handle))
	if err := p.f.Ioctl(&peekingCaller{program: p, seen: b}, uapi.VerbsIoctl, addressOf(b)); !errors.Is(err, syscall.EIO) {
		t.Errorf("Ioctl on a zombie: got %v, want EIO", err)
	}
}

// TestPeekedArmReturnsDriverError checks that the program receives the driver's error.
func TestPeekedArmReturnsDriverError(t *testing.T) {
	p := newFixture(t).startProgram(byIoctl)
	cq := p.createCQ(p.createChannel(), 7)
	b := p.storeBytes(newArmCall(cq).bytes())
	p.w.drv.FailMethod(ibfake.ReqNotifyCQ, syscall.ENOMEM)
	if err := p.f.Ioctl(&peekingCaller{program: p, seen: b}, uapi.VerbsIoctl, addressOf(b)); !errors.Is(err,
		syscall.ENOMEM) {
		t.Errorf("%v, want ENOMEM", err)
	}
}
