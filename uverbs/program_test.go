package uverbs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/internal/leaktest"
	"verbena/internal/quota"
	"verbena/internal/testutil"
	"verbena/uapi"
	"verbena/umem"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fixture is a server with one device.
type fixture struct {
	t      *testing.T
	core   *ib.Core
	drv    *ibfake.Driver
	dev    *ib.Device
	handle *ib.DeviceHandle // handle of dev
	srv    *Server

	ledger *quota.Ledger
}

func newFixture(t *testing.T) *fixture {
	return newFixtureWith(t, ServerOptions{CompVectors: 2, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
}

func newFixtureWith(t *testing.T, opts ServerOptions) *fixture {
	t.Helper()
	checkNoDescriptorLeak(t)
	drv := ibfake.New()
	return newDeviceFixtureWith(t, ib.NewDevice("rxe0", drv, t.Logf), drv, opts)
}

// newDeviceFixture returns a server with a given device.
func newDeviceFixture(t *testing.T, dev *ib.DeviceHandle, drv *ibfake.Driver) *fixture {
	return newDeviceFixtureWith(t, dev, drv, ServerOptions{CompVectors: 2, Log: slog.New(slog.NewTextHandler(t.Output(),
		nil))})
}

func newDeviceFixtureWith(t *testing.T, dev *ib.DeviceHandle, drv *ibfake.Driver, opts ServerOptions) *fixture {
	t.Helper()
	w := &fixture{t: t, core: &ib.Core{}, drv: drv, dev: dev.Device(), handle: dev, ledger: quota.New(quota.Limits{})}
	must(t, w.core.Register(w.handle))
	var err error
	w.srv, err = NewServer(w.core, opts)
	must(t, err)
	t.Cleanup(func() {
		w.srv.Close()
		if w.dev.State() != ib.DeviceGone {
			if err := w.core.Unregister(w.handle); err != nil {
				t.Error(err)
			}
		}
		if w.drv.UserContextCount() != 0 {
			t.Errorf("contexts in the driver: got %d, want 0", w.drv.UserContextCount())
		}
		checkNoCharges(t, w.ledger)
	})
	return w
}

// checkNoCharges checks that no user has charges left. A double release would make the ledger panic.
func checkNoCharges(t testing.TB, l *quota.Ledger) {
	t.Helper()
	var s []string
	_, all := l.Usage()
	for k, n := range all.Held {
		if n != 0 {
			s = append(s, fmt.Sprintf("%d %v", n, quota.ResourceKind(k)))
		}
	}
	if s != nil {
		t.Errorf("charges at the end: got %s, want none", strings.Join(s, ", "))
	}
}

// checkNoDescriptorLeak fails the test if the number of open descriptors has changed at the end of the test.
func checkNoDescriptorLeak(t *testing.T) {
	t.Helper()
	before := listOpenDescriptors(t)
	t.Cleanup(func() {
		var after map[string]string
		testutil.PollUntil(func() bool { // a goroutine may reference a closed file for a moment
			after = listOpenDescriptors(t)
			return len(after) <= len(before)
		})
		for fd, what := range after {
			if before[fd] == "" {
				t.Errorf("descriptor %s at the end: got %s, want none", fd, what)
			}
		}
	})
}

func listOpenDescriptors(t *testing.T) map[string]string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	fds := map[string]string{}
	for _, e := range entries {
		// The runtime opens its own descriptors when it first needs them.
		if what, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && what != "anon_inode:[eventpoll]" &&
			what != "anon_inode:[eventfd]" {
			fds[e.Name()] = what
		}
	}
	return fds
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErrno checks the errno that the program receives.
func wantErrno(t testing.TB, what string, err error, want syscall.Errno) {
	t.Helper()
	if want == 0 && err != nil || want != 0 && !errors.Is(err, want) {
		t.Errorf("%s: %v, want errno %d (%v)", what, err, int(want), want)
	}
}

// unmappedMemory is a Memory without mappings.
type unmappedMemory struct{ closed atomic.Int32 }

func (m *unmappedMemory) Alloc(size int) (ib.Shared, error) {
	return ib.Shared{Mem: make([]byte, size), Free: func() {}}, nil
}

func (m *unmappedMemory) Close() error {
	m.closed.Add(1)
	return nil
}

// program acts as a program: this process with an open file, which it uses like the C library.
type program struct {
	t     *testing.T
	w     *fixture
	f     *File
	mem   *unmappedMemory
	space *umem.Process
	acct  *umem.Account
	form  commandForm

	mu    sync.Mutex
	arena []byte // the memory that the service accesses
	used  int
	fds   []int
	async int
}

// commandForm is the form in which commands are sent.
type commandForm int

const (
	byWrite commandForm = iota
	byIoctl
)

func (f commandForm) String() string { return [...]string{"write", "ioctl"}[f] }

const arenaSize = 4 << 20

// open opens the device. The file is closed at the end of the test.
func (w *fixture) open(form commandForm) *program {
	w.t.Helper()
	p := &program{t: w.t, w: w, mem: &unmappedMemory{}, acct: umem.NewAccount(nil), form: form, async: -1}
	var err error
	p.space, err = umem.OpenProcess(os.Getpid())
	must(w.t, err)
	p.arena, err = unix.Mmap(-1, 0, arenaSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(w.t, err)
	p.f, err = w.srv.Open("uverbs0", p, p.mem)
	must(w.t, err)
	w.t.Cleanup(func() {
		p.f.Close()
		for _, fd := range p.fds {
			unix.Close(fd)
		}
		p.space.Close()
		must(w.t, unix.Munmap(p.arena))
		if n := p.mem.closed.Load(); n != 1 {
			w.t.Errorf("calls of Close of the memory: got %d, want 1", n)
		}
		if n := p.acct.Pages(); n != 0 {
			w.t.Errorf("charged pages at the end: got %d, want 0", n)
		}
	})
	return p
}

// startProgram opens the device and creates the context.
func (w *fixture) startProgram(form commandForm) *program {
	w.t.Helper()
	p := w.open(form)
	resp, err := sendPlain[uapi.GetContextResp](p, uapi.CmdGetContext, uapi.GetContext{})
	must(w.t, err)
	p.async = int(resp.AsyncFD)
	return p
}

func (p *program) PID() int     { return os.Getpid() }
func (p *program) Name() string { return "test" }
func (p *program) UID() int     { return os.Getuid() }
func (p *program) User() *quota.User {
	if p.w == nil {
		return nil
	}
	return p.w.ledger.User(os.Getuid())
}
func (p *program) Space() umem.Space      { return p.space }
func (p *program) Account() *umem.Account { return p.acct }

func (p *program) InstallFD(fd int, cloexec bool) (int, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		p.mu.Lock()
		p.fds = append(p.fds, n)
		p.mu.Unlock()
	}
	return n, err
}

// closeFD closes a descriptor of the program.
func (p *program) closeFD(fd int) {
	p.mu.Lock()
	p.fds = slices.DeleteFunc(p.fds, func(n int) bool { return n == fd })
	p.mu.Unlock()
	must(p.t, unix.Close(fd))
}

func (p *program) FileInode(fd int) (dev, ino uint64, err error) {
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return st.Dev, st.Ino, err
}

// allocMem returns memory of the program.
func (p *program) allocMem(n int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = (n + 15) &^ 15
	if p.used+n > len(p.arena) {
		p.used = 0 // long tests start again at the beginning, because they no longer need small allocations
	}
	b := p.arena[p.used : p.used+n : p.used+n]
	p.used += n
	clear(b)
	return b
}

// storeBytes copies b into memory of the program.
func (p *program) storeBytes(b []byte) []byte {
	m := p.allocMem(len(b))[:len(b)]
	copy(m, b)
	return m
}

// writeCommand writes a command unchanged.
func (p *program) writeCommand(cmd []byte) error {
	n, err := p.f.Write(p, addressOf(p.storeBytes(cmd)), len(cmd))
	if err == nil && n != len(cmd) {
		p.t.Errorf("Write: got %d, want %d", n, len(cmd))
	}
	return err
}

// rawCommand is a command that may have invalid parts.
type rawCommand struct {
	extended  bool
	number    uint32 // without flags
	core      []byte // without the address of the response
	driver    []byte
	room      int // size of the buffer for the core's response
	driverOut int
}

// sendCommand sends the command in the program's form and returns its response.
func (p *program) sendCommand(c rawCommand) (resp, driver []byte, err error) {
	out := p.allocMem(c.room + c.driverOut)[:c.room+c.driverOut]
	for i := range out {
		out[i] = 0xee
	}
	resp, driver = out[:c.room], out[c.room:]
	core := slices.Clone(c.core)
	switch {
	case p.form == byIoctl:
		number := uint64(c.number)
		if c.extended {
			number |= uapi.CmdFlagExtended
		}
		in := p.storeBytes(core)
		attrs := []uapi.Attr{inlineAttr(uapi.AttrWriteCmd, 8, number)}
		if len(core) > 0 {
			attrs = append(attrs, inputAttr(uapi.AttrCoreIn, in))
		}
		if c.room > 0 {
			attrs = append(attrs, uapi.Attr{AttrID: uapi.AttrCoreOut, Len: uint16(c.room), Data: addressOf(resp)})
		}
		if len(c.driver) > 0 {
			attrs = append(attrs, inputAttr(uapi.AttrUHWIn, p.storeBytes(c.driver)))
		}
		if c.driverOut > 0 {
			attrs = append(attrs, uapi.Attr{AttrID: uapi.AttrUHWOut, Len: uint16(c.driverOut), Data: addressOf(driver)})
		}
		_, err = p.callMethod(uapi.ObjectDevice, uapi.MethodInvokeWrite, attrs...)
	case c.extended:
		hdr := uapi.CmdHdr{Command: c.number | uapi.CmdFlagExtended, InWords: uint16(len(core) / 8),
			OutWords: uint16(c.room / 8)}
		ex := uapi.ExCmdHdr{Response: addressOf(out), ProviderInWords: uint16(len(c.driver) / 8),
			ProviderOutWords: uint16(c.driverOut / 8)}
		if len(out) == 0 {
			ex.Response = 0
		}
		b := uapi.AppendTo(uapi.AppendTo(nil, &hdr), &ex)
		err = p.writeCommand(slices.Concat(b, core, c.driver))
	default:
		if cmd := commands[c.number]; cmd != nil && cmd.Answers && len(core) >= 8 {
			putUint64(core, addressOf(out))
		}
		hdr := uapi.CmdHdr{Command: c.number, InWords: uint16((8 + len(core) + len(c.driver)) / 4),
			OutWords: uint16(len(out) / 4)}
		err = p.writeCommand(slices.Concat(uapi.AppendTo(nil, &hdr), core, c.driver))
	}
	return resp, driver, err
}

// inlineAttr returns an attribute that contains its data. inputAttr returns an attribute that points to its data if
// they are too long to be contained.
func inlineAttr(id uapi.AttrID, n int, v uint64) uapi.Attr {
	return uapi.Attr{AttrID: id, Len: uint16(n), Flags: uapi.AttrFMandatory, Data: v}
}

func inputAttr(id uapi.AttrID, b []byte) uapi.Attr {
	a := uapi.Attr{AttrID: id, Len: uint16(len(b)), Flags: uapi.AttrFMandatory, Data: addressOf(b)}
	if len(b) <= 8 {
		a.Data = uint64At(append(slices.Clone(b), make([]byte, 8)...))
	}
	return a
}

// callMethod calls a method and returns the attributes after the call.
func (p *program) callMethod(object uapi.ObjectID, method uapi.MethodID, attrs ...uapi.Attr) ([]uapi.Attr, error) {
	hdr := uapi.IoctlHdr{
		Length:   uint16(ioctlHdrSize + attrSize*len(attrs)),
		ObjectID: object,
		MethodID: method,
		NumAttrs: uint16(len(attrs)),
		DriverID: uapi.DriverRXE,
	}
	return p.callMethodRaw(hdr, attrs)
}

func (p *program) callMethodRaw(hdr uapi.IoctlHdr, attrs []uapi.Attr) ([]uapi.Attr, error) {
	b := uapi.AppendTo(nil, &hdr)
	for i := range attrs {
		b = uapi.AppendTo(b, &attrs[i])
	}
	b = p.storeBytes(b)
	err := p.f.Ioctl(p, uapi.VerbsIoctl, addressOf(b))
	after := make([]uapi.Attr, len(attrs))
	for i := range after {
		after[i], _ = uapi.Decode[uapi.Attr](b[ioctlHdrSize+i*attrSize:])
	}
	return after, err
}

// sendPlain sends a plain command and returns its response.
func sendPlain[Resp, Req any](p *program, cmd uapi.Command, req Req) (Resp, error) {
	resp, _, err := sendPlainWith[Resp](p, cmd, req, nil, 0)
	return resp, err
}

// sendPlainWith sends a plain command with driver-private data and a buffer for the driver's response.
func sendPlainWith[Resp, Req any](p *program, cmd uapi.Command, req Req, driver []byte, driverOut int) (resp Resp,
	out []byte,
	err error) {
	room := 0
	if commands[uint32(cmd)].Answers {
		room = reflectSize(resp)
	}
	b, out, err := p.sendCommand(rawCommand{number: uint32(cmd), core: uapi.AppendTo(nil, &req), driver: driver,
		room:      room,
		driverOut: driverOut})
	if err == nil && room > 0 {
		resp, _ = uapi.Decode[Resp](b)
	}
	return resp, out, err
}

func reflectSize(v any) int { return int(reflect.TypeOf(v).Size()) }

// sendExtended sends an extended command.
func sendExtended[Resp, Req any](p *program, cmd uapi.ExCommand, req Req, driverOut int) (resp Resp, out []byte,
	err error) {
	b, out, err := p.sendCommand(rawCommand{extended: true, number: uint32(cmd), core: uapi.AppendTo(nil, &req),
		room: reflectSize(resp), driverOut: driverOut})
	if err == nil {
		resp, _ = uapi.Decode[Resp](b)
	}
	return resp, out, err
}

// noResponse is the type of an empty response.
type noResponse struct{}

func sendWithoutResponse[Req any](p *program, cmd uapi.Command, req Req) error {
	_, err := sendPlain[noResponse](p, cmd, req)
	return err
}

// The next functions create the usual objects.

func (p *program) allocPD() uint32 {
	p.t.Helper()
	resp, err := sendPlain[uapi.AllocPDResp](p, uapi.CmdAllocPD, uapi.AllocPD{})
	must(p.t, err)
	return resp.PDHandle
}

func (p *program) regMR(pd uint32) uapi.RegMRResp {
	p.t.Helper()
	addr := (addressOf(p.allocMem(8192)) + 4095) &^ 4095
	resp, err := sendPlain[uapi.RegMRResp](p, uapi.CmdRegMR, uapi.RegMR{Start: addr, HCAVA: addr, Length: 4096,
		PDHandle:    pd,
		AccessFlags: uapi.AccessLocalWrite})
	must(p.t, err)
	return resp
}

// createChannel creates a completion channel and returns its descriptor.
func (p *program) createChannel() int {
	p.t.Helper()
	resp, err := sendPlain[uapi.CreateCompChannelResp](p, uapi.CmdCreateCompChannel, uapi.CreateCompChannel{})
	must(p.t, err)
	return int(resp.FD)
}

// createCQ creates a queue. channel is -1 for no channel, and user is the program's handle.
func (p *program) createCQ(channel int, user uint64) uint32 {
	p.t.Helper()
	resp, err := sendPlain[uapi.CreateCQResp](p, uapi.CmdCreateCQ,
		uapi.CreateCQ{UserHandle: user, CQE: 10, CompChannel: int32(channel)})
	must(p.t, err)
	return resp.CQHandle
}

func (p *program) createQP(pd, cq uint32, user uint64, t uapi.QPType) uapi.CreateQPResp {
	p.t.Helper()
	resp, err := sendPlain[uapi.CreateQPResp](p, uapi.CmdCreateQP,
		uapi.CreateQP{UserHandle: user, PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq, MaxSendWR: 5, QPType: t})
	must(p.t, err)
	return resp
}

func (p *program) createAH(pd uint32) uint32 {
	p.t.Helper()
	resp, err := sendPlain[uapi.CreateAHResp](p, uapi.CmdCreateAH, uapi.CreateAH{PDHandle: pd,
		Attr: uapi.AHAttr{PortNum: 1}})
	must(p.t, err)
	return resp.AHHandle
}

// fakeCQ and fakeQP return the driver's sides of objects by handle.
func (p *program) fakeCQ(handle uint32) *ibfake.CQ {
	return p.w.handle.CQ(p.f.objects.find(handle).res.(*cqObject).CQ).(*ibfake.CQ)
}

func (p *program) fakeQP(handle uint32) *ibfake.QP {
	return p.w.handle.QP(p.f.objects.find(handle).res.(*qpObject).QP).(*ibfake.QP)
}

// readEvents reads the events of an event file without waiting. end reports the end of the file.
func (p *program) readEvents(fd, size int) (records [][]byte, end bool) {
	p.t.Helper()
	p.waitForPipeWrites()
	must(p.t, unix.SetNonblock(fd, true))
	defer unix.SetNonblock(fd, false)
	for {
		b := make([]byte, size)
		n, err := unix.Read(fd, b)
		if err == unix.EAGAIN {
			return records, false
		}
		must(p.t, err)
		if n == 0 {
			return records, true
		}
		records = append(records, b[:n])
	}
}

// readCompletions returns the user handles of the completion events that can be read now.
func (p *program) readCompletions(channel int) (users []uint64, end bool) {
	p.t.Helper()
	records, end := p.readEvents(channel, compRecordSize)
	for _, r := range records {
		d, ok := uapi.Decode[uapi.CompEventDesc](r)
		if !ok {
			p.t.Fatalf("event: got %d bytes, want a whole record", len(r))
		}
		users = append(users, d.CQHandle)
	}
	return users, end
}

// waitForPipeWrites waits until the service has written the raised events to the pipes, as far as the pipes have space.
func (p *program) waitForPipeWrites() {
	e := &p.f.events
	e.mu.Lock()
	files := slices.Concat(e.channels, e.async)
	e.mu.Unlock()
	for _, e := range files {
		waitUntilWritten(e)
	}
}

// readAsyncEvents returns the asynchronous events that can be read now, as "type:element".
func (p *program) readAsyncEvents(fd int) (events []string, end bool) {
	p.t.Helper()
	records, end := p.readEvents(fd, asyncRecordSize)
	for _, r := range records {
		d, ok := uapi.Decode[uapi.AsyncEventDesc](r)
		if !ok {
			p.t.Fatalf("event: got %d bytes, want a whole record", len(r))
		}
		events = append(events, fmt.Sprintf("%v:%d", d.EventType, d.Element))
	}
	return events, end
}

// runWithCallbacks runs f and the callbacks that f makes due.
func (w *fixture) runWithCallbacks(f func()) {
	w.handle.HoldCallbacks()
	f()
	w.handle.RunCallbacks()
}
