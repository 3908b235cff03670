package supervisor

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/internal/quota"
	"verbena/internal/testutil"
	"verbena/rdmacm"
	"verbena/rdmacm/ucma"
)

// trappedCall is a worker of a session without threads. The worker has a call of a thread of this process. The thread
// stays trapped until the test ends. The test chooses the arguments of the call.
type trappedCall struct {
	*fixture
	s      *Session
	w      *worker
	id     uint64 // ID of the notification
	ledger *quota.Ledger
	mem    []byte // memory of the caller

	proofs  int          // number of proofs so far
	failing int          // number of the proof that fails, or 0 for none
	paused  func(string) // called at each point where the worker can pause; may be nil
}

// newTrappedCall traps a thread after the thread has called prepare.
func newTrappedCall(t *testing.T, prepare func(), edit ...func(*SupervisorConfig)) *trappedCall {
	t.Helper()
	c := &trappedCall{ledger: quota.New(quota.Limits{})}
	c.fixture = newFixture(t, append(edit, func(cfg *SupervisorConfig) {
		if cfg.Quota == nil {
			cfg.Quota = c.ledger
		}
		c.ledger = cfg.Quota
		cfg.pause = c.countTrapCheck
	})...)
	th := newThread()
	var fd int
	var err error
	th.do(func() {
		if prepare != nil {
			prepare()
		}
		fd, err = installFilter([]unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_GETPRIORITY, Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		})
	})
	if err != nil {
		th.end()
		t.Fatal(err)
	}
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		th.do(func() { unix.Syscall(unix.SYS_GETPRIORITY, 0, 0, 0) })
	}()
	limit, err := hardFileLimit()
	if err != nil {
		t.Fatal(err)
	}
	c.s = &Session{
		sup: c.sup, fd: fd, log: c.sup.cfg.Log, numbers: commandFDsForHardLimit(limit),
		processes: processTable{all: map[int]*process{}},
		tree:      c.sup.own,
		listener:  os.NewFile(uintptr(fd), "listener"),
	}
	c.w = newWorker(c.s)
	for c.w.caller.n.tid == 0 {
		if err := receiveNotification(fd, &c.w.caller.n); err != nil && err != unix.ENOENT {
			t.Fatal(err)
		}
	}
	c.id, c.w.caller.n.arch = c.w.caller.n.id, nativeArchitecture.audit
	const access = unix.PROT_READ | unix.PROT_WRITE
	if c.mem, err = unix.Mmap(-1, 0, 2*os.Getpagesize(), access, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sendResponse(fd, &notificationResponse{id: c.id})
		<-returned
		th.end()
		c.forgetProcesses()
		c.s.listener.Close()
		unix.Munmap(c.mem)
	})
	return c
}

// countTrapCheck counts the proofs. The failing proof uses a notification that does not exist. All other proofs use the
// notification of the trapped thread.
func (c *trappedCall) countTrapCheck(point string, tid uint32) {
	if c.w == nil || point == "event" || tid != c.w.caller.n.tid { // for a waiting call, on another thread
		return
	}
	c.w.caller.n.id = c.id
	if point == "prove" {
		if c.proofs++; c.proofs == c.failing {
			c.w.caller.n.id = ^c.id
		}
	}
	if c.paused != nil {
		c.paused(point)
	}
}

// forEachFailingTrapCheck calls f once for each proof, with only that proof failing, and a last time without a failing
// proof.
func (c *trappedCall) forEachFailingTrapCheck(f func() string) (got []string) {
	for n := 1; ; n++ {
		c.proofs, c.failing = 0, n
		got = append(got, f())
		c.w.caller.n.id, c.failing = c.id, 0
		if c.proofs < n {
			return got
		}
	}
}

func (c *trappedCall) forgetProcesses() {
	for pid, p := range c.s.processes.all {
		p.closeLocked()
		delete(c.s.processes.all, pid)
	}
}

// lookUpWithoutTrapCheck calls look without a proof.
func (c *trappedCall) lookUpWithoutTrapCheck() *procThread {
	c.Helper()
	dir, err := openProcDir(int(c.w.caller.n.tid))
	if err != nil {
		c.Fatal(err)
	}
	th := &procThread{dir: dir}
	c.Cleanup(th.close)
	if th.id, err = readIdentityAt(dir); err != nil {
		c.Fatal(err)
	}
	return th
}

// memAddr returns an address in the caller's memory.
func (c *trappedCall) memAddr(off int) uint64 { return uint64(uintptr(unsafe.Pointer(&c.mem[off]))) }

// storePath stores a path in the caller's memory and returns its address.
func (c *trappedCall) storePath(s string) uint64 {
	copy(c.mem, s+"\x00")
	return c.memAddr(0)
}

// setArgs sets the arguments of the call.
func (c *trappedCall) setArgs(args ...uint64) {
	c.w.caller.n.args = [6]uint64{}
	copy(c.w.caller.n.args[:], args)
	c.w.devices.known, c.w.devices.desc = callerCache{}, nil
}

// mustProcess returns the caller's process, with its address space.
func (c *trappedCall) mustProcess() *process {
	c.Helper()
	p, _, err := c.w.caller.findOrOpenProcess(c.lookUpWithoutTrapCheck())
	if err != nil {
		c.Fatal(err)
	}
	return p
}

// mustOpen opens the device, or the connection manager's file, for a user. The test closes both files at its end.
func (c *trappedCall) mustOpen(n *deviceNode, user *quota.User, how int) (f *openFile, description *os.File) {
	c.Helper()
	make := newOpenFile
	if n.cm {
		make = newCMFile
	}
	p := c.mustProcess()
	f, description, err := make(c.s, n, &opener{process: p, session: c.s, id: c.lookUpWithoutTrapCheck().id, user: user},
		how)
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() {
		description.Close()
		f.close()
		c.waitForClose("the file's end", f.ended)
	})
	return f, description
}

var (
	verbsNode = &deviceNode{device: "uverbs0", minor: baseMinor}
	cmNode    = &deviceNode{device: cmDevice, minor: cmMinor, cm: true}
)

// withCM gives the supervisor a connection manager without devices.
func withCM(t *testing.T) func(*SupervisorConfig) {
	t.Helper()
	m, err := rdmacm.New(&ib.Core{}, rdmacm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return func(c *SupervisorConfig) { c.CM = ucma.NewServer(m) }
}

// errorText returns the text of an error, or "ok".
func errorText(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, errCallerGone):
		return "gone"
	}
	return err.Error()
}

// String formats the answer to a call, for tests.
func (v callResult) String() string {
	switch {
	case v.fate == fateContinued:
		return "let through"
	case v.err == errCallerGone:
		return "gone"
	case v.err != nil:
		return unix.ErrnoName(errnoOf(v.err))
	}
	return "ok"
}

// TestEachTrapCheckIsNeeded tests each proof that a caller is still trapped separately. If a proof fails, the
// supervisor does not answer the call for the process that now has the caller's ID, and closes the files opened
// meanwhile.
func TestEachTrapCheckIsNeeded(t *testing.T) {
	c := newTrappedCall(t, nil, withCM(t))
	w, s := c.w, c.s
	foreign := c.ledger.User(4711)
	c.srv.queuePair = func(uint32) (*quota.User, bool) { return foreign, true }
	p := c.mustProcess()
	th := c.lookUpWithoutTrapCheck()
	device, deviceFD := c.mustOpen(verbsNode, p.user, unix.O_RDWR)
	cm, cmFD := c.mustOpen(cmNode, p.user, 0)
	netlink, netlinkEnd, err := c.sup.newNetlinkSocket(p.user, netlinkOpener{}, false, 1)
	if err != nil {
		t.Fatal(err)
	}
	go netlink.serve()
	defer unix.Close(netlinkEnd)
	cwd := uint64(1<<64 - 100)
	held := p.user.Held(quota.Descriptors)
	found := func(ok bool) string { return map[bool]string{true: "found", false: "none"}[ok] }
	closing := func(v callResult) callResult {
		if v.err == nil && v.fate == fateAnswered {
			unix.Close(int(v.val))
		}
		return v
	}
	const gone, ok = "gone", "ok"
	for _, tt := range []struct {
		name string
		call func() string
		want []string
	}{
		{"look", func() string {
			th, err := w.caller.lookUpThread()
			if err == nil {
				th.close()
			}
			return errorText(err)
		}, []string{gone, ok}},
		{"a known process", func() string {
			_, _, err := w.caller.findOrOpenProcess(th)
			return errorText(err)
		}, []string{gone, ok}},
		{"a new process", func() string {
			p, err := w.caller.newProcessLocked(th)
			if err == nil {
				p.closeLocked()
			}
			return errorText(err)
		}, []string{gone, ok}},
		{"a new address space", func() string {
			m, err := w.caller.openAddressSpace(th, p, false)
			if err == nil {
				m.Close()
			}
			return errorText(err)
		}, []string{gone, ok}},
		{"memory for one answer", func() string {
			m, err := w.caller.openCallerMemory()
			if err == nil {
				m.Close()
			}
			return errorText(err)
		}, []string{gone, gone, ok}},
		{"a cached process", func() string {
			w.devices.desc = &cachedFile{tid: w.caller.n.tid, fd: int32(deviceFD.Fd()), file: device}
			w.devices.desc.process.Store(p)
			got, _, err := w.devices.findCaller()
			if got != p {
				t.Errorf("process: got %v, want the cached one", got)
			}
			return errorText(err)
		}, []string{gone, ok}},
		{"FileInode", func() string {
			_, _, err := w.devices.FileInode(int(deviceFD.Fd()))
			return errorText(err)
		}, []string{gone, ok}},
		{"descriptor", func() string {
			return found(w.caller.lookUpFile(int32(deviceFD.Fd())) != nil)
		}, []string{"none", "found"}},
		{"a copy of a file", func() string {
			fd, err := w.caller.duplicateDescriptor(th, int32(deviceFD.Fd()))
			if err == nil {
				unix.Close(fd)
			}
			return errorText(err)
		}, []string{gone, ok}},
		{"a new netlink socket", func() string {
			c.setArgs(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA)
			return closing(w.netlink.openNetlink()).String()
		}, []string{gone, gone, gone, ok}},
		{"netlink", func() string {
			return found(w.netlink.netlinkSocketOf(int32(netlinkEnd)) != nil)
		}, []string{"none", "found"}},
		{"bind", func() string {
			netlink.portID = 1
			*(*unix.RawSockaddrNetlink)(unsafe.Pointer(&c.mem[0])) = unix.RawSockaddrNetlink{Family: unix.AF_NETLINK, Pid: 99}
			c.setArgs(uint64(netlinkEnd), c.memAddr(0), netlinkAddrSize)
			return fmt.Sprint(w.netlink.answerNetlinkCall(callBind), " ", netlink.portID)
		}, []string{"let through 1", "gone 1", "ok 99"}},
		{"access", func() string {
			c.setArgs(cwd, c.storePath(deviceFile), unix.R_OK)
			return w.paths.answerPathCall(callFaccessat).String()
		}, []string{gone, gone, ok}},
		{"readlink", func() string {
			c.setArgs(cwd, c.storePath(devChar+"192"), c.memAddr(4096), 100)
			return w.paths.answerPathCall(callReadlinkat).String()
		}, []string{gone, gone, gone, ok}},
		{"an ended exec", func() string {
			s.processes.execs.add(w.caller.n.tid)
			s.processes.execs.recordCallOfThread(&w.caller)
			_, there := s.processes.execs.tids[w.caller.n.tid]
			return fmt.Sprint(there)
		}, []string{"true", "false"}},
		{"another file of the connection manager", func() string {
			f, err := (&cmCaller{by: &w.caller}).CMFile(int(cmFD.Fd()))
			if err == nil && f != cm.cm {
				t.Errorf("CMFile: got %p, want %p", f, cm.cm)
			}
			return errorText(err)
		}, []string{gone, ok}},
		{"a queue pair of another user", func() string { // the service's own user may connect the queue pair
			return fmt.Sprint((&cmCaller{by: &w.caller, user: p.user}).MayConnect(nil, 1))
		}, []string{"false", "false", "true"}},
		{"a wait for an event", func() string {
			c.setGetEvent(cmFD)
			w.devices.known = callerCache{done: true, proc: p, space: p.space}
			cm.beginCall()
			v, waits := w.devices.answerCMCommand(cm)
			if waits {
				cm.cm.Close() // ends the wait
				return "waits"
			}
			cm.endCall()
			return v.String()
		}, []string{gone, gone, gone, "waits"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := c.forEachFailingTrapCheck(tt.call); fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("results of the proofs: got %q, want %q", got, tt.want)
			}
		})
	}
	testutil.Eventually(t, "the charges to return to their values before", func() bool {
		return p.user.Held(quota.Descriptors) == held
	})
}

// setGetEvent makes the call a GET_EVENT on a file of the connection manager.
func (c *trappedCall) setGetEvent(f *os.File) {
	// struct rdma_ucm_cmd_hdr: The command is RDMA_USER_CM_CMD_GET_EVENT, with 8 bytes of input and 512 bytes of
	// output.
	copy(c.mem, []byte{12, 0, 0, 0, 8, 0, 0, 2})
	c.setArgs(uint64(f.Fd()), c.memAddr(0), 16)
}
