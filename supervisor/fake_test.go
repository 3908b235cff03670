package supervisor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/internal/quota"
	"verbena/internal/shm"
	"verbena/internal/testutil"
	"verbena/umem"
	"verbena/uverbs"
)

// newFakeDriver returns a driver with the attributes shown in sysfs.
func newFakeDriver() *ibfake.Driver {
	d := ibfake.New()
	d.ChangeQueryResults(func(a *ibfake.QueryResults) {
		a.Device = ib.DeviceAttr{NodeGUID: 0x0200000000000001, SysImageGUID: 0x0200000000000001, PhysPorts: 1}
		a.Port.Netdev = "lo"
		a.GIDs = make([]ib.GIDEntry, 8)
		a.GIDs[0] = ib.GIDEntry{GID: ib.GID{0xfe, 0x80, 15: 1}, Type: ib.GIDTypeRoCEv2, Netdev: "lo", IfIndex: 1}
		a.GIDs[3] = ib.GIDEntry{GID: ib.GID{10: 0xff, 0xff, 127, 0, 0, 1}, Type: ib.GIDTypeRoCEv2, Netdev: "lo", IfIndex: 1}
	})
	return d
}

// fakeCounters is the set of counters of each fake device.
type fakeCounters struct{}

func (fakeCounters) Stats() map[string]uint64 { return map[string]uint64{"sent_pkts": 7} }

// fakeServer has one device, uverbs0 on rxe0. The commands of its files are values of fakeOp, passed to ioctl.
type fakeServer struct {
	driver *ibfake.Driver

	mu      sync.Mutex
	devs    []device
	changed []func()
	files   []*fakeFile

	// The server reports these objects for all programs; nil for none.
	queuePair func(num uint32) (*quota.User, bool)
	contexts  []uverbs.ContextInfo
}

func newFakeServer() *fakeServer {
	s := &fakeServer{driver: newFakeDriver()}
	s.plug("uverbs0", 0, "rxe0")
	return s
}

func (s *fakeServer) plug(name string, minor int, ibName string) {
	d := device{name: name, minor: minor, ib: ib.NewDevice(ibName, s.driver, nil).Device(), counters: fakeCounters{},
		driverABI: 2, identity: new(int)}
	s.changeDevices(func() { s.devs = append(s.devs, d) })
}

func (s *fakeServer) unplug() { s.changeDevices(func() { s.devs = s.devs[:len(s.devs)-1] }) }

func (s *fakeServer) changeDevices(f func()) {
	s.mu.Lock()
	f()
	fs := s.changed
	s.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

func (s *fakeServer) devices() []device {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]device(nil), s.devs...)
}

func (s *fakeServer) queuePairUser(_ *ib.Device, num uint32) (*quota.User, bool) {
	if s.queuePair == nil {
		return nil, false
	}
	return s.queuePair(num)
}

func (s *fakeServer) resources() []uverbs.ContextInfo { return s.contexts }

func (s *fakeServer) onChange(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = append(s.changed, f)
}

func (s *fakeServer) open(name string, p uverbs.Process, m uverbs.Memory) (uverbsFile, error) {
	for _, d := range s.devices() {
		if d.name != name {
			continue
		}
		r, err := m.Alloc(1)
		if err != nil {
			return nil, err
		}
		f := &fakeFile{by: p, name: p.Name(), uid: p.UID(), pid: p.PID(), mem: m, region: r, closed: make(chan struct{}),
			gate: make(chan struct{}, 1)}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.files = append(s.files, f)
		return f, nil
	}
	return nil, syscall.ENODEV
}

// releaseWaits ends the waits of commands on all files, including commands that arrive within a second.
func (s *fakeServer) releaseWaits() {
	for range 100 {
		s.mu.Lock()
		for _, f := range s.files {
			select {
			case f.gate <- struct{}{}:
			default:
			}
		}
		s.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
}

// waitForOpen waits until the n-th file is opened.
func (s *fakeServer) waitForOpen(t *testing.T, n int) *fakeFile {
	t.Helper()
	var f *fakeFile
	testutil.Eventually(t, fmt.Sprintf("file %d to be opened", n), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.files) < n {
			return false
		}
		f = s.files[n-1]
		return true
	})
	return f
}

type fakeFile struct {
	by       uverbs.Process
	name     string
	uid, pid int
	mem      uverbs.Memory
	region   ib.Shared
	rung     atomic.Int64
	polled   int64        // number of posts that RingPosted has seen, guarded by ringing
	waiting  atomic.Int64 // number of calls in opWait
	closed   chan struct{}
	gate     chan struct{} // opWait receives from gate, and opGo sends to it
	page     atomic.Pointer[umem.Region]
	failed   atomic.Int64
	ringing  sync.Mutex
}

// fakeOp is the argument of an ioctl, which has three words.
type fakeOp struct{ op, in, out uint64 }

const (
	opIncrement = iota // out = in + 1
	opInstall          // out = descriptor of the reading end of a pipe with the data "hello"
	opBusy
	opPanic
	opWait
	opGo
	opSameFile // out = inode number of descriptor in
	opUnset    // fails without an errno
	opRegister // registers the page at address in
	opLoad     // out = first word of the registered page
	opStore    // stores in into that word
	opLate     // leaves work that receives from gate for after the answer; out = 1 if it runs then
)

func (f *fakeFile) Write(c uverbs.Caller, addr uint64, n int) (int, error) {
	if n > 32 { // a waiting command
		f.waiting.Add(1)
		<-f.gate
		return n, nil
	}
	f.ringing.Lock()
	defer f.ringing.Unlock()
	shm.FirstWord(f.region.Mem[8:]).Store(uint32(f.rung.Add(1)))
	return n, nil
}

func (f *fakeFile) Ioctl(c uverbs.Caller, request uint32, arg uint64) error {
	b := make([]byte, 24)
	if err := c.Space().ReadV([][]byte{b}, arg); err != nil {
		return err
	}
	in := binary.NativeEndian.Uint64(b[8:])
	var out uint64
	switch binary.NativeEndian.Uint64(b) {
	case opIncrement:
		out = in + 1
	case opInstall:
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer r.Close()
		io.WriteString(w, "hello")
		w.Close()
		n, err := c.InstallFD(int(r.Fd()), in != 0)
		if err != nil {
			return err
		}
		out = uint64(n)
	case opBusy:
		return fmt.Errorf("the object is in use: %w", syscall.EBUSY)
	case opPanic:
		panic("requested by the program")
	case opWait:
		f.waiting.Add(1)
		<-f.gate
	case opGo:
		f.gate <- struct{}{}
	case opLate:
		if c.(uverbs.LateWorker).RunLater(lateWork{f}, f.by) {
			out = 1
		}
	case opSameFile:
		_, ino, err := c.FileInode(int(in))
		if err != nil {
			return err
		}
		out = ino
	case opUnset:
		return errors.New("an error without an errno")
	case opRegister:
		r, err := umem.Get(c.Space(), c.Account(), in, umem.PageSize, in, true)
		if err != nil {
			return err
		}
		f.page.Store(r)
	case opLoad:
		var word [8]byte
		r := f.page.Load()
		if err := r.ReadV([][]byte{word[:]}, r.IOVA()); err != nil {
			return err
		}
		out = binary.NativeEndian.Uint64(word[:])
	case opStore:
		r := f.page.Load()
		if err := r.WriteV([][]byte{binary.NativeEndian.AppendUint64(nil, in)}, r.IOVA()); err != nil {
			return err
		}
	}
	binary.NativeEndian.PutUint64(b, out)
	return c.Space().WriteV([][]byte{b[:8]}, arg+16)
}

// lateWork is work that blocks until a program executes opGo.
type lateWork struct{ f *fakeFile }

func (w lateWork) RunLate() {
	w.f.waiting.Add(1)
	<-w.f.gate
}

func (f *fakeFile) HasNewRequests() bool { return true }

// RingPosted reads the number of posts from the third word of the region. RingPosted stores the number that it has
// seen in the second word.
func (f *fakeFile) RingPosted(ib.Staller, *uverbs.RingScan, bool) (found bool, err error) {
	f.ringing.Lock()
	defer f.ringing.Unlock()
	if f.isClosed() {
		return false, syscall.EIO
	}
	posted := shm.FirstWord(f.region.Mem[16:]).Load()
	n := int64(posted) - f.polled
	if n == 0 {
		return false, nil
	}
	f.polled = int64(posted)
	shm.FirstWord(f.region.Mem[8:]).Store(uint32(f.rung.Add(n))) // trapped doorbells are counted too
	return true, nil
}

func (f *fakeFile) FailDevice(why error) { f.failed.Add(1) }

func (f *fakeFile) Close() {
	f.ringing.Lock() // waits for callers that ring, like package uverbs
	defer f.ringing.Unlock()
	f.mem.Close()
	close(f.closed)
}

func (f *fakeFile) isClosed() bool {
	select {
	case <-f.closed:
		return true
	default:
		return false
	}
}

// fixture is a supervisor with a fake server in this process.
type fixture struct {
	testing.TB
	srv  *fakeServer
	sup  *Supervisor
	dir  string
	logs logRecorder

	trace func(line string) // trace function of the sessions started in the test
}

type logRecorder struct {
	mu    sync.Mutex
	lines []string
}

func (l *logRecorder) logf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

// logger returns a logger that records all lines of level Info and above.
func (l *logRecorder) logger() *slog.Logger { return l.loggerAt(slog.LevelInfo) }

func (l *logRecorder) loggerAt(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: level}))
}

// Write records one line of a logger.
func (l *logRecorder) Write(line []byte) (int, error) {
	l.logf("%s", line)
	return len(line), nil
}

func (l *logRecorder) takeLines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

func newShmDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "verbena-supervisor-test-")
	if err != nil {
		t.Skipf("no /dev/shm: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// askHelper makes supervisors access programs only by the Helper. tracer makes programs start in the same way as
// under Yama.
var (
	askHelper bool
	tracer    *Tracer
)

func newFixture(t testing.TB, edit ...func(*SupervisorConfig)) *fixture {
	t.Helper()
	if err := Probe(); err != nil {
		t.Skip(err)
	}
	w := &fixture{TB: t, srv: newFakeServer(), dir: newShmDir(t)}
	cfg := SupervisorConfig{Dir: w.dir, AskHelper: askHelper, Log: w.logs.logger()}
	for _, f := range edit {
		f(&cfg)
	}
	var err error
	if w.sup, err = newSupervisor(cfg, w.srv); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.sup.Close()
		for _, l := range w.logs.takeLines() {
			t.Errorf("log: got %s, want no lines", l)
		}
		if left, _ := filepath.Glob(filepath.Join(w.dir, "run", "*")); len(left) > 0 {
			t.Errorf("remaining files: got %q, want none", left)
		}
	})
	return w
}

// runningProgram is a running program.
type runningProgram struct {
	*Program
	session *Session
	output  *programOutput
}

// programOutput collects the standard output and error of a program.
type programOutput struct {
	mu   sync.Mutex
	text []byte
	end  chan struct{}
}

func (o *programOutput) copyFrom(r *os.File) {
	defer close(o.end)
	defer r.Close()
	var b [4096]byte
	for {
		n, err := r.Read(b[:])
		o.mu.Lock()
		o.text = append(o.text, b[:n]...)
		o.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (o *programOutput) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}

// waitForText waits until the program has written a given text.
func (w *fixture) waitForText(r *runningProgram, text string) {
	w.Helper()
	testutil.Eventually(w.TB, fmt.Sprintf("%q to be printed", text), func() bool {
		return strings.Contains(r.output.String(), text)
	})
}

// startProgram starts a program. env is added to the environment.
func (w *fixture) startProgram(env []string, args ...string) *runningProgram {
	w.Helper()
	path, err := exec.LookPath(args[0])
	if err != nil {
		w.Fatal(err)
	}
	return w.startPath(path, env, args...)
}

func (w *fixture) startPath(path string, env []string, args ...string) *runningProgram {
	w.Helper()
	r, err := w.tryStart(path, env, args...)
	if err != nil {
		w.Fatal(err)
	}
	return r
}

func (w *fixture) tryStart(path string, env []string, args ...string) (*runningProgram, error) {
	w.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		w.Fatal(err)
	}
	defer null.Close()
	return w.tryStartWithInput(null, path, env, args...)
}

// startWithInput starts this test binary as a program with in as standard input.
func (w *fixture) startWithInput(in *os.File, env []string, args ...string) *runningProgram {
	w.Helper()
	r, err := w.tryStartWithInput(in, args[0], env, args...)
	if err != nil {
		w.Fatal(err)
	}
	return r
}

func (w *fixture) tryStartWithInput(in *os.File, path string, env []string, args ...string) (*runningProgram, error) {
	w.Helper()
	rd, wr, err := os.Pipe()
	if err != nil {
		w.Fatal(err)
	}
	defer wr.Close()
	r := &runningProgram{output: &programOutput{end: make(chan struct{})}}
	go r.output.copyFrom(rd)
	// The supervisor runs in this process, and could not answer if a garbage collection waited for the fork.
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	r.Program, err = Start(&Launch{
		AdoptOrphans: askHelper, Tracer: tracer,
		Path: path, Args: args, Env: append(append(os.Environ(), "GORACE=atexit_sleep_ms=0"), env...), Files: []*os.File{in,
			wr, wr},
		Handover: func(listener *os.File) error {
			fd, err := unix.FcntlInt(listener.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return err
			}
			l := os.NewFile(uintptr(fd), "listener")
			if r.session, err = w.sup.Attach(l, SessionInfo{LauncherPID: os.Getpid(), Args: args, Helper: Ancestor{},
				Trace: w.trace}); err != nil {
				l.Close()
			}
			return err
		},
	})
	return r, err
}

// programTimeout limits the time for which a test waits for the end of its program. Each system call of the program
// may wait for the supervisor, and each thread of the supervisor may wait for a processor.
const programTimeout = 2 * testutil.Timeout

// waitForExit waits for the end of a program and its session, and returns its exit code and output.
func (w *fixture) waitForExit(r *runningProgram) (code int, out string) {
	w.Helper()
	stuck := time.AfterFunc(programTimeout, func() {
		w.Errorf("program: got no exit after %v, want one", programTimeout)
		r.Signal(unix.SIGKILL)
		w.srv.releaseWaits()
	})
	code = r.Wait()
	stuck.Stop()
	w.waitForClose("the end of the output", r.output.end)
	w.waitForClose("the end of the session", r.session.Done())
	return code, r.output.String()
}

func (w *fixture) waitForClose(what string, c <-chan struct{}) {
	w.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		w.Fatalf("wait for %s: got none in 20 s, want it", what)
	}
}

// mustRun runs a program that must succeed, and returns its output.
func (w *fixture) mustRun(args ...string) string {
	w.Helper()
	code, out := w.waitForExit(w.startProgram(nil, args...))
	if code != 0 {
		w.Fatalf("%q: exit code: got %d, want 0; output:\n%s", args, code, out)
	}
	return out
}

// runShell runs a shell script.
func (w *fixture) runShell(script string) (code int, out string) {
	w.Helper()
	return w.waitForExit(w.startProgram(nil, "/bin/sh", "-c", script))
}

// programEnvVar is the environment variable that selects the function of this test binary to run as a program (see
// TestMain).
const programEnvVar = "VERBENA_GUEST_TEST_PROGRAM"

// startSelf starts one of the programs of programs_test.go.
func (w *fixture) startSelf(program string, args ...string) *runningProgram {
	w.Helper()
	return w.startPath("/proc/self/exe", []string{programEnvVar + "=" + program}, append([]string{program}, args...)...)
}

func (w *fixture) mustRunSelf(program string, args ...string) string {
	w.Helper()
	code, out := w.waitForExit(w.startSelf(program, args...))
	if code != 0 {
		w.Fatalf("program %s%q: exit code: got %d, want 0; output:\n%s", program, args, code, out)
	}
	return strings.TrimSpace(out)
}
