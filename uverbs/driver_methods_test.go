package uverbs

import (
	"encoding/binary"
	"errors"
	"strings"
	"syscall"
	"testing"

	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/uapi"
	"verbena/uapi/verb"
)

// extendedDriver is a driver with its own methods and sysfs files.
type extendedDriver struct {
	*ibfake.Driver
	methods []ib.DriverMethod
	files   map[string]func() (string, error)
}

func (d *extendedDriver) Methods() []ib.DriverMethod                    { return d.methods }
func (d *extendedDriver) SysfsFiles() map[string]func() (string, error) { return d.files }

const (
	ownMethod = uapi.MethodID(uapi.IDDriverNS + 3)
	ownNumber = uapi.AttrID(uapi.IDDriverNS)
	ownBytes  = uapi.AttrID(uapi.IDDriverNS + 1)
	ownRegion = uapi.AttrID(uapi.IDDriverNS + 2)
	ownAnswer = uapi.AttrID(uapi.IDDriverNS + 3)
)

// newExtendedFixture creates a world with a driver that has one method, MR_ROTATE, with an attribute of each kind.
func newExtendedFixture(t *testing.T, effect verb.Effect, run func(ib.MethodCall) error) *fixture {
	t.Helper()
	d := &extendedDriver{Driver: ibfake.New(), methods: []ib.DriverMethod{{
		Method: verb.Method{Object: uapi.ObjectMR, Method: ownMethod, Attrs: []verb.Attr{
			{ID: ownNumber, Kind: verb.In, Min: 4, Max: 4, Mandatory: true},
			{ID: ownBytes, Kind: verb.In, Min: 9, Max: 64},
			{ID: ownRegion, Kind: verb.Use, Object: uapi.ObjectMR},
			{ID: ownAnswer, Kind: verb.Out, Min: 8, Max: 8},
		}},
		Name: "MR_ROTATE", Effect: effect, Run: run,
	}}}
	return newDeviceFixture(t, ib.NewDevice("rxe0", d, t.Logf), d.Driver)
}

// TestDriverMethod checks that a driver's method receives checked attributes and the driver's side of objects.
func TestDriverMethod(t *testing.T) {
	var seen ib.DriverMR
	w := newExtendedFixture(t, verb.Reads, func(c ib.MethodCall) error {
		b := c.Bytes(ownBytes)
		seen, _ = c.Object(ownRegion).(ib.DriverMR)
		if c.Context() == nil || c.Has(ownBytes) != (b != nil) {
			t.Error("driver's call: got no context, or a wrong result of Has, want both correct")
		}
		switch c.Number(ownNumber) {
		case 1:
			return syscall.ERANGE
		case 2:
			return errors.New("no number")
		}
		c.Output(ownAnswer, binary.NativeEndian.AppendUint64(nil, c.Number(ownNumber)+uint64(len(b))))
		return nil
	})
	p, other := w.startProgram(byIoctl), w.startProgram(byIoctl)
	pd := p.allocPD()
	mr := p.regMR(pd).MRHandle
	foreign := other.regMR(other.allocPD()).MRHandle + 1000

	number := inlineAttr(ownNumber, 4, 7)
	text := inputAttr(ownBytes, make([]byte, 9))
	for _, test := range []struct {
		name  string
		attrs []uapi.Attr
		want  syscall.Errno
		seen  bool
	}{
		{"valid call", []uapi.Attr{number, text, handleAttr(ownRegion, uint64(mr))}, 0, true},
		{"without an optional attribute", []uapi.Attr{number}, 0, false},
		{"without the mandatory attribute", []uapi.Attr{text}, syscall.EINVAL, false},
		{"too short", []uapi.Attr{number, inputAttr(ownBytes, make([]byte, 8))}, syscall.EINVAL, false},
		{"twice", []uapi.Attr{number, number}, syscall.EINVAL, false},
		{"an unknown mandatory attribute", []uapi.Attr{number, {AttrID: 77, Flags: uapi.AttrFMandatory}},
			syscall.EPROTONOSUPPORT, false},
		{"no such object", []uapi.Attr{number, handleAttr(ownRegion, uint64(foreign))}, syscall.ENOENT, false},
		{"another kind of object", []uapi.Attr{number, handleAttr(ownRegion, uint64(pd))}, syscall.EINVAL, false},
		{"an error of the driver", []uapi.Attr{inlineAttr(ownNumber, 4, 1)}, syscall.ERANGE, false},
		{"an error without errno", []uapi.Attr{inlineAttr(ownNumber, 4, 2)}, syscall.EIO, false},
	} {
		seen = nil
		out := p.allocMem(8)[:8]
		_, err := p.callMethod(uapi.ObjectMR, ownMethod, append(test.attrs, outAttr(ownAnswer, out))...)
		wantErrno(t, test.name, err, test.want)
		if err != nil && test.want != syscall.EPROTONOSUPPORT && !strings.Contains(err.Error(), "MR_ROTATE") {
			t.Errorf("%s: got error %[2]v, want it to contain MR_ROTATE", test.name, err)
		}
		if (seen != nil) != test.seen {
			t.Errorf("%s: got region %v in the driver, want a region: %t", test.name, seen, test.seen)
		}
		if n := binary.NativeEndian.Uint64(out); test.seen && n != 7+9 {
			t.Errorf("%s: answer %d, want 16", test.name, n)
		}
	}
	_, err := p.callMethod(uapi.ObjectMR, ownMethod+1, number)
	wantErrno(t, "a method that the driver lacks", err, syscall.EPROTONOSUPPORT)
	_, err = w.open(byIoctl).callMethod(uapi.ObjectMR, ownMethod, number)
	wantErrno(t, "without a context", err, syscall.EINVAL)
}

// TestDriverMethodKeepsObjects checks that the objects of a call are not destroyed before the call has returned.
func TestDriverMethodKeepsObjects(t *testing.T) {
	var p *program
	var mr uint32
	var destroyed error
	w := newExtendedFixture(t, verb.Reads, func(ib.MethodCall) error {
		p.f.life.RUnlock() // the next command takes the lock
		defer p.f.life.RLock()
		destroyed = sendWithoutResponse(p, uapi.CmdDeregMR, uapi.DeregMR{MRHandle: mr})
		return nil
	})
	p = w.startProgram(byWrite)
	mr = p.regMR(p.allocPD()).MRHandle
	_, err := p.callMethod(uapi.ObjectMR, ownMethod, inlineAttr(ownNumber, 4, 7), handleAttr(ownRegion, uint64(mr)))
	must(t, err)
	wantErrno(t, "destroy the region during the call", destroyed, syscall.EBUSY)
	must(t, sendWithoutResponse(p, uapi.CmdDeregMR, uapi.DeregMR{MRHandle: mr}))
}

// TestContextUnlockedDuringRead checks that the context is not locked while the memory of the program, which may block,
// is accessed.
func TestContextUnlockedDuringRead(t *testing.T) {
	w := newExtendedFixture(t, verb.Reads, func(c ib.MethodCall) error {
		if b := c.Bytes(ownBytes); len(b) != 9 || b[8] != 5 {
			t.Errorf("driver's bytes: got %v, want 9 with 5 at the end", b)
		}
		c.Output(ownAnswer, make([]byte, 8))
		return nil
	})
	p := w.startProgram(byIoctl)
	accesses := 0
	c := &observedCaller{program: p, before: func(what string) {
		accesses++
		if !p.f.life.TryLock() {
			t.Errorf("File.life when the thread %s: locked, want it unlocked", what)
			return
		}
		p.f.life.Unlock()
	}}
	attrs := []uapi.Attr{
		inlineAttr(ownNumber, 4, 7), inputAttr(ownBytes, p.storeBytes([]byte{8: 5})), outAttr(ownAnswer, p.allocMem(8)[:8]),
	}
	hdr := uapi.IoctlHdr{
		Length: uint16(ioctlHdrSize + attrSize*len(attrs)), ObjectID: uapi.ObjectMR, MethodID: ownMethod,
		NumAttrs: uint16(len(attrs)),
		DriverID: uapi.DriverRXE,
	}
	b := uapi.AppendTo(nil, &hdr)
	for i := range attrs {
		b = uapi.AppendTo(b, &attrs[i])
	}
	must(t, p.f.Ioctl(c, uapi.VerbsIoctl, addressOf(p.storeBytes(b))))
	if accesses < 3 { // the accesses read the attributes, read the bytes, and write the response
		t.Errorf("accesses to the memory: got %d, want at least 3", accesses)
	}
}

// TestDriverMethodStates checks that a driver's method is called in the states that its effect allows.
func TestDriverMethodStates(t *testing.T) {
	for effect, want := range effectOutcomes {
		called := 0
		w := newExtendedFixture(t, effect, func(ib.MethodCall) error { called++; return nil })
		p := w.startProgram(byIoctl)
		expect := 0
		for state := range 3 {
			switch state {
			case 1:
				w.handle.SetError()
			case 2:
				must(t, w.core.Unregister(w.handle))
			}
			outcome := want[state]
			if outcome == flushes { // a method does not post work requests
				outcome = syscall.EIO
			}
			// the method cannot destroy an object of a zombie either, because a zombie has no objects
			if effect == verb.Destroys && state == 2 {
				outcome = syscall.EIO
			}
			_, err := p.callMethod(uapi.ObjectMR, ownMethod, inlineAttr(ownNumber, 4, 7))
			wantErrno(t, "", err, outcome)
			if outcome == 0 {
				expect++
			}
		}
		if called != expect {
			t.Errorf("effect %d: got %d calls, want %d", effect, called, expect)
		}
	}
}

// TestInvalidDriverMethodsAreRefused checks that programs do not see a device if the methods of its driver are invalid.
func TestInvalidDriverMethodsAreRefused(t *testing.T) {
	good := func() ib.DriverMethod {
		return ib.DriverMethod{Method: verb.Method{Object: uapi.ObjectMR, Method: ownMethod}, Name: "MR_ROTATE",
			Run: func(ib.MethodCall) error { return nil }}
	}
	for _, test := range []struct {
		what  string
		want  string
		spoil func(m *ib.DriverMethod)
	}{
		{"good", "", func(*ib.DriverMethod) {}},
		{"no name", "no name", func(m *ib.DriverMethod) { m.Name = "" }},
		{"no function", "no function", func(m *ib.DriverMethod) { m.Run = nil }},
		{"a number of the core's", "namespace", func(m *ib.DriverMethod) { m.Method.Method = 3 }},
		{"an object that does not exist", "unknown type", func(m *ib.DriverMethod) {
			m.Attrs = []verb.Attr{{ID: 1, Kind: verb.Use, Object: uapi.ObjectFlow}}
		}},
		{"a new object", "creates or destroys", func(m *ib.DriverMethod) { m.Attrs = []verb.Attr{{ID: 1, Kind: verb.New}} }},
	} {
		m := good()
		test.spoil(&m)
		d := &extendedDriver{Driver: ibfake.New(), methods: []ib.DriverMethod{m}}
		_, err := checkedDriverMethods(ib.NewDevice("rxe0", d, t.Logf).Device())
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", test.what, err, test.want)
		}
	}
	d := &extendedDriver{Driver: ibfake.New(), methods: []ib.DriverMethod{good(), good()}}
	if _, err := checkedDriverMethods(ib.NewDevice("rxe0", d, t.Logf).Device()); err == nil ||
		!strings.Contains(err.Error(), "same number") {
		t.Errorf("two methods with one number: got %v, want an error", err)
	}
	if w := newDeviceFixture(t, ib.NewDevice("rxe0", d, t.Logf), d.Driver); len(w.srv.Devices()) != 0 {
		t.Error("device with invalid methods: got it listed, want none")
	}
}

// TestSysfsFilePaths checks that a driver's files must have clean paths below the device's directory.
func TestSysfsFilePaths(t *testing.T) {
	for name, ok := range map[string]bool{"parent": true, "ports/1/hw/state": true, "": false, "../rxe1/x": false,
		"/a": false, "a/": false, "a//b": false, "./a": false} {
		d := &extendedDriver{Driver: ibfake.New(), files: map[string]func() (string, error){name: nil}}
		if files, err := checkedSysfsFiles(ib.NewDevice("rxe0", d, t.Logf).Device()); (err == nil) != ok ||
			ok != (len(files) == 1) {
			t.Errorf("path %q: %v", name, err)
		}
	}
}
