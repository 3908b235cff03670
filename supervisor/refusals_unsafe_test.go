package supervisor

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"verbena/internal/principal"
	"verbena/internal/quota"
	"verbena/internal/testutil"
)

// becomeNobody switches the calling thread to another user, without capabilities.
func becomeNobody() {
	must(0, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	for _, nr := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
		if _, _, e := unix.RawSyscall(nr, 65534, 65534, 65534); e != 0 {
			panic(e)
		}
	}
}

// TestPathErrorsMatchKernel tests that calls with a virtual path fail with the same errno as in the kernel.
func TestPathErrorsMatchKernel(t *testing.T) {
	c := newTrappedCall(t, nil)
	const (
		guid = "/sys/class/infiniband/rxe0/node_guid"
		link = devChar + "192"
	)
	cwd := uint64(1<<64 - 100)
	open := func(path string, flags uint64) func() callResult {
		return func() callResult {
			c.setArgs(cwd, c.storePath(path), flags|unix.O_CLOEXEC)
			return c.w.paths.answerPathCall(callOpenat)
		}
	}
	stat := func(path string) func() callResult {
		return func() callResult {
			c.setArgs(cwd, c.storePath(path), c.memAddr(4096), 0)
			return c.w.paths.answerPathCall(callNewfstatat)
		}
	}
	access := func(path string, rights uint64) func() callResult {
		return func() callResult {
			c.setArgs(cwd, c.storePath(path), rights)
			return c.w.paths.answerPathCall(callFaccessat)
		}
	}
	readlink := func(path string, size uint64) func() callResult {
		return func() callResult {
			c.setArgs(cwd, c.storePath(path), c.memAddr(4096), size)
			return c.w.paths.answerPathCall(callReadlinkat)
		}
	}
	end := len(c.mem)
	openat2 := func(at int, size uint64) func() callResult {
		return func() callResult {
			c.setArgs(cwd, c.storePath(deviceFile), c.memAddr(0)+uint64(at), size)
			v := c.w.paths.answerPathCall(callOpenat2)
			if v.fate == fateAnswered && v.err == nil {
				unix.Close(int(v.val))
			}
			return v
		}
	}
	withoutLinks := func(path string, flags uint64) func() callResult {
		return func() callResult {
			how := c.mem[1024 : 1024+openHowSize]
			binary.NativeEndian.PutUint64(how, flags|unix.O_CLOEXEC)
			binary.NativeEndian.PutUint64(how[16:], unix.RESOLVE_NO_SYMLINKS)
			c.setArgs(cwd, c.storePath(path), c.memAddr(1024), openHowSize)
			v := c.w.paths.answerPathCall(callOpenat2)
			if v.fate == fateAnswered && v.err == nil {
				unix.Close(int(v.val))
			}
			return v
		}
	}
	if err := unix.Mprotect(c.mem[end/2:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{2048, end/2 - 8} {
		*(*uint64)(unsafe.Pointer(&c.mem[at])) = unix.O_RDWR | unix.O_CLOEXEC
	}
	for _, tt := range []struct {
		name string
		call func() callResult
		want string
	}{
		{"no virtual path", stat("/tmp/infiniband"), "let through"},
		{"nothing there", stat("/dev/infiniband/none"), "ENOENT"},
		{"a file as a directory", stat(deviceFile + "/"), "ENOTDIR"},
		{"parent of a missing file", stat("/dev/infiniband/none/../uverbs0"), "ENOENT"},
		{"parent of a file", stat("/dev/infiniband/uverbs0/../uverbs0"), "ENOTDIR"},
		{"parent of a link of the file system", stat("/proc/self/../dev/infiniband/uverbs0"), "let through"},
		{"create a missing file", open("/dev/infiniband/none", unix.O_CREAT), "EACCES"},
		{"create an existing file", open(deviceFile, unix.O_CREAT|unix.O_EXCL), "EEXIST"},
		{"open a device as a directory", open(deviceFile, unix.O_DIRECTORY), "ENOTDIR"},
		{"open a file as a directory", open(guid, unix.O_DIRECTORY), "ENOTDIR"},
		{"the path of a device", open(deviceFile, unix.O_PATH), "ENOTSUP"},
		{"the path of a link", open(link, unix.O_PATH|unix.O_NOFOLLOW), "ENOTSUP"},
		{"write a directory", open(ibDir, unix.O_WRONLY), "EISDIR"},
		{"read and write a directory", open(ibDir, unix.O_RDWR), "EISDIR"},
		{"create a directory", open(ibDir, unix.O_CREAT), "EISDIR"},
		{"write an attribute", open(guid, unix.O_WRONLY), "EACCES"},
		{"truncate an attribute", open(guid, unix.O_TRUNC), "EACCES"},
		{"openat2", openat2(2048, openHowSize), "ok"},
		{"openat2 with a small structure", openat2(0, openHowSize-1), "let through"},
		{"openat2 with half a structure", openat2(end/2-8, openHowSize), "EFAULT"},
		{"openat2 without a structure", openat2(end/2, openHowSize), "EFAULT"},
		{"a link without following links", withoutLinks(link, 0), "ELOOP"},
		{"below a link without following links", withoutLinks(link+"/none", 0), "ELOOP"},
		{"parent of a link without following links", withoutLinks("/sys/class/infiniband/rxe0/../rxe0", 0), "ELOOP"},
		{"a directory behind a link", withoutLinks(link+"/", unix.O_PATH|unix.O_NOFOLLOW), "ELOOP"},
		{"the path of a link without following links", withoutLinks(link, unix.O_PATH|unix.O_NOFOLLOW), "ENOTSUP"},
		{"a device file without following links", withoutLinks(deviceFile, 0), "ok"},
		{"an attribute behind a link", withoutLinks(guid, 0), "ELOOP"},
		{"readlink of a file", readlink(guid, 100), "EINVAL"},
		{"readlink into an empty buffer", readlink(link, 0), "EINVAL"},
		{"readlink of a negative size", readlink(link, 1<<31), "EINVAL"},
		{"access with unknown rights", access(deviceFile, 8), "EINVAL"},
		{"access to write an attribute", access(guid, unix.X_OK), "EACCES"},
	} {
		if got := tt.call().String(); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestParentPathNeedsSearchRight tests that ".." leads up through a directory only if the caller may search that
// directory and all directories above it.
func TestParentPathNeedsSearchRight(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to create directories of another user")
	c := newTrappedCall(t, becomeNobody)
	dir := newShmDir(t)
	for _, d := range []struct {
		name string
		mode os.FileMode
	}{{"", 0o755}, {"open", 0o755}, {"closed", 0o700}, {"closed/inner", 0o755}} {
		path := filepath.Join(dir, d.name)
		if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, d.mode)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]bool{
		"": true, "open": true, "closed": false, "closed/inner": false, "none": false,
	} {
		if got := c.w.paths.isDirectory(filepath.Join(dir, name)); got != want {
			t.Errorf("isDirectory of %q: got %v, want %v", name, got, want)
		}
	}
}

// TestMalformedNetlinkCallsChangeNothing tests that malformed calls on a netlink socket fail with the kernel's errors
// and change nothing.
func TestMalformedNetlinkCallsChangeNothing(t *testing.T) {
	c := newTrappedCall(t, nil)
	n, end, err := c.sup.newNetlinkSocket(c.ledger.User(1), netlinkOpener{}, false, 7)
	if err != nil {
		t.Fatal(err)
	}
	go n.serve()
	defer unix.Close(end)
	half := len(c.mem) / 2
	if err := unix.Mprotect(c.mem[half:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	address := func(at int, family uint16) uint64 {
		*(*uint16)(unsafe.Pointer(&c.mem[at])) = family
		return c.memAddr(0) + uint64(at)
	}
	room := func(at int, size int32) uint64 {
		*(*int32)(unsafe.Pointer(&c.mem[at])) = size
		return c.memAddr(at)
	}
	beyond := c.memAddr(0) + uint64(half)
	*(*uint16)(unsafe.Pointer(&c.mem[half-2])) = netlinkAddrSize
	fd := uint64(end)
	for _, tt := range []struct {
		name string
		c    call
		args []uint64
		want string
	}{
		{"socket of a stream", callSocket, []uint64{unix.AF_NETLINK, unix.SOCK_STREAM, unix.NETLINK_RDMA}, "ESOCKTNOSUPPORT"},
		{"bind to a short address", callBind, []uint64{fd, address(0, unix.AF_NETLINK), netlinkAddrSize - 1}, "EINVAL"},
		{"bind to another family", callBind, []uint64{fd, address(32, unix.AF_INET), netlinkAddrSize}, "EINVAL"},
		{"bind to half an address", callBind, []uint64{fd, address(half-4, unix.AF_NETLINK), netlinkAddrSize}, "EFAULT"},
		{"bind to no address", callBind, []uint64{fd, beyond, netlinkAddrSize}, "EFAULT"},
		{"getsockname into a negative size", callGetsockname, []uint64{fd, c.memAddr(128), room(64, -1)}, "EINVAL"},
		{"getsockname into half a size", callGetsockname, []uint64{fd, c.memAddr(128), beyond - 2}, "EFAULT"},
		{"getsockname into no size", callGetsockname, []uint64{fd, c.memAddr(128), beyond}, "EFAULT"},
		{"getsockname", callGetsockname, []uint64{fd, c.memAddr(128), room(96, netlinkAddrSize)}, "ok"},
		{"an option", callSetsockopt, []uint64{fd, unix.SOL_NETLINK}, "ok"},
		{"an option of another protocol", callSetsockopt, []uint64{fd, unix.SOL_SOCKET}, "let through"},
		{"a call on another file", callBind, []uint64{0, address(0, unix.AF_NETLINK), netlinkAddrSize}, "let through"},
	} {
		c.setArgs(tt.args...)
		var v callResult
		if tt.c == callSocket {
			v = c.w.netlink.openNetlink()
		} else {
			v = c.w.netlink.answerNetlinkCall(tt.c)
		}
		if got := v.String(); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
		if n.portID != 7 {
			t.Errorf("%s: port ID: got %d, want 7", tt.name, n.portID)
		}
		if written := c.mem[128] == unix.AF_NETLINK; written != (tt.name == "getsockname") {
			t.Errorf("%s: write of the address: got %v, want only for getsockname", tt.name, written)
		}
		c.mem[128] = 0
	}
}

// TestCMQueriesCheckCaller tests that queries of the connection manager about a caller are answered only for that
// caller.
func TestCMQueriesCheckCaller(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to become another user")
	authority, err := principal.New(nil, 65534)
	if err != nil {
		t.Fatal(err)
	}
	c := newTrappedCall(t, becomeNobody, withCM(t), func(cfg *SupervisorConfig) { cfg.Authority = authority })
	p := c.mustProcess()
	opener, foreign := c.ledger.User(1001), c.ledger.User(1002)
	const own, openers, others, none = 1, 2, 3, 4
	c.srv.queuePair = func(num uint32) (*quota.User, bool) {
		u := map[uint32]*quota.User{own: p.user, openers: opener, others: foreign}[num]
		return u, u != nil
	}
	caller := &cmCaller{by: &c.w.caller, user: opener}
	for num, want := range map[uint32]bool{own: true, openers: true, others: false, none: false} {
		if got := caller.MayConnect(nil, num); got != want {
			t.Errorf("MayConnect of queue pair %d: got %v, want %v", num, got, want)
		}
	}
	later := &cmCaller{user: opener}
	if later.MayConnect(nil, openers) || later.MayBindLowPorts() {
		t.Error("caller after its worker took another call: got rights, want none")
	}
	if caller.MayBindLowPorts() {
		t.Error("MayBindLowPorts without CAP_NET_BIND_SERVICE: got true, want false")
	}
	if c.w.devices.NetRaw() {
		t.Error("NetRaw without CAP_NET_RAW: got true, want false")
	}
	_, cm := c.mustOpen(cmNode, p.user, 0)
	_, device := c.mustOpen(verbsNode, p.user, unix.O_RDWR)
	for _, tt := range []struct {
		name string
		c    *cmCaller
		fd   uintptr
		want error
	}{
		{"a file of the connection manager", caller, cm.Fd(), nil},
		{"without a worker", later, cm.Fd(), unix.EINVAL},
		{"no descriptor", caller, 1 << 20, unix.ENOENT},
		{"a device file", caller, device.Fd(), unix.EINVAL},
		{"another file", caller, 0, unix.EINVAL},
	} {
		if f, err := tt.c.CMFile(int(tt.fd)); !errors.Is(err, tt.want) || (f == nil) != (tt.want != nil) {
			t.Errorf("CMFile of %s: got %v, %v, want %v", tt.name, f, err, tt.want)
		}
	}
}

// newGetEventCall returns a trapped GET_EVENT on a new file without events.
func newGetEventCall(t *testing.T) (c *trappedCall, f *openFile, description *os.File) {
	c = newTrappedCall(t, nil, withCM(t))
	p := c.mustProcess()
	f, description = c.mustOpen(cmNode, p.user, 0)
	c.setGetEvent(description)
	c.w.devices.known = callerCache{done: true, proc: p, space: p.space}
	return c, f, description
}

// TestGetEventWaitsForEvent tests GET_EVENT on a file without an event. With O_NONBLOCK, GET_EVENT fails with EAGAIN.
// Otherwise it waits. A waiting GET_EVENT ends when its thread has ended, and continues after a spurious wakeup.
func TestGetEventWaitsForEvent(t *testing.T) {
	c, f, description := newGetEventCall(t)
	if err := unix.SetNonblock(int(description.Fd()), true); err != nil {
		t.Fatal(err)
	}
	f.beginCall()
	if v, waits := c.w.devices.answerCMCommand(f); v.String() != "EAGAIN" || waits {
		t.Errorf("GET_EVENT with O_NONBLOCK: got %v and waits %v, want EAGAIN", v, waits)
	}
	// The program replaces the file during the check.
	number := c.w.caller.n.args[0]
	null, err := os.OpenFile(os.DevNull, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	c.w.caller.n.args[0] = uint64(null.Fd())
	if got, err := c.w.devices.isNonBlocking(f); got || err != nil {
		t.Errorf("nonBlocking of another file: got %v and error %v, want false", got, err)
	}
	c.w.caller.n.args[0] = number
	d := &deferredGetEvent{session: c.s, n: c.w.caller.n, f: f, caller: &cmCaller{space: c.w.devices.Space()}}
	if d.tryGetEvent() {
		t.Error("spurious wakeup of a trapped thread: got the end of the call, want none")
	}
	d.n.id = ^c.id
	if !d.tryGetEvent() {
		t.Error("wakeup of an ended thread: got no end of the call, want one")
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		d.awaitEvent()
	}()
	select {
	case <-over:
	case <-time.After(10 * time.Second):
		t.Error("wait of an ended thread: got no end after 10 s, want one")
		f.cm.Close()
		<-over
	}
}

// TestWaitOutlivesLastDescriptor tests that GET_EVENT waits until its thread has ended if another thread closes the
// last descriptor after the call has begun. rping(1) closes its channel while a thread waits.
func TestWaitOutlivesLastDescriptor(t *testing.T) {
	c, f, _ := newGetEventCall(t)
	if !f.beginCall() {
		t.Fatal("begin of a call: got false, want true")
	}
	f.noteLastClose()
	if v, waits := c.w.devices.answerCMCommand(f); !waits {
		t.Fatalf("GET_EVENT on a file without descriptors: got %v, want a wait", v)
	}
	// The kernel holds the thread, so the wait runs in real time.
	testutil.Consistently(t, 3*firstSignalLook, "a wait on a file without descriptors", func() bool {
		return !f.isClosed() && checkStillTrapped(c.s.fd, c.id) == nil
	})
	if !f.beginCall() {
		t.Error("begin of another call: got false, want true")
	}
	f.endCall()
	f.cm.Close() // ends the wait
	testutil.Eventually(t, "the file to be closed", f.isClosed)
	<-f.ended
}

// TestGetEventPanicFailsCall tests that a panic in a call that waits for an event makes the call fail with EIO and
// closes only its file.
func TestGetEventPanicFailsCall(t *testing.T) {
	c, f, _ := newGetEventCall(t)
	other, _ := c.mustOpen(cmNode, f.user, 0)
	c.sup.cfg.pause = func(point string, tid uint32) {
		if point == "event" {
			panic("a bad event")
		}
		c.countTrapCheck(point, tid)
	}
	if !f.beginCall() {
		t.Fatal("enter of the open file: got false, want true")
	}
	if v, waits := c.w.devices.answerCMCommand(f); !waits {
		t.Fatalf("GET_EVENT without an event: got %v, want a wait", v)
	}
	f.cm.Close() // wakes the call
	testutil.Eventually(t, "the answer", func() bool { return checkStillTrapped(c.s.fd, c.id) != nil })
	testutil.Eventually(t, "the file to be closed", func() bool { return f.calls.Load() >= closingFlag })
	if !other.beginCall() {
		t.Error("enter of another file of the program: got false, want true")
	} else {
		other.endCall()
	}
	if l := c.logs.takeLines(); len(l) != 1 || !strings.Contains(l[0], "a bad event") ||
		!strings.Contains(l[0], "waits for events") {
		t.Errorf("log: got %q, want the panic", l)
	}
}

// TestDuplicateGetsCommandFD tests that the duplicate of a device gets a number in the range of device files. The
// supervisor duplicates another file only if the duplicate needs such a number. The kernel handles an invalid
// number.
func TestDuplicateGetsCommandFD(t *testing.T) {
	c := newTrappedCall(t, nil)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	_, device := c.mustOpen(verbsNode, c.mustProcess().user, unix.O_RDWR)
	raiseFileLimit(t)
	for _, tt := range []struct {
		name  string
		f     *os.File
		least uint64
		want  string
	}{
		{"a file below the first number", null, uint64(c.s.numbers.low.first) - 1, "let through"},
		{"a file at the first number", null, uint64(c.s.numbers.low.first), "let through"},
		{"a file between the ranges", null, uint64(c.s.numbers.low.end), "let through"},
		{"a file at a high number", null, uint64(c.s.numbers.high), "ok"},
		{"a file at the greatest number", null, 1<<31 - 1, "let through"},
		{"a device at a low number", device, 3, "ok"},
		{"a device above the low range", device, uint64(c.s.numbers.low.end), "ok"},
		{"a device at the greatest number", device, 1<<31 - 1, "let through"},
		{"a device at a negative number", device, 1<<32 - 1, "let through"},
	} {
		c.setArgs(uint64(tt.f.Fd()), unix.F_DUPFD_CLOEXEC, tt.least)
		v := c.w.descriptors.answerDup(callFcntl)
		if got := v.String(); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
		if v.fate == fateAnswered && v.err == nil {
			if n := uint32(v.val); !c.s.numbers.contains(n) || uint64(n) < tt.least {
				t.Errorf("%s: got number %d, want one of %v from %d on", tt.name, n, c.s.numbers, tt.least)
			}
			unix.Close(int(v.val))
		}
	}
	refused := errors.New("refused")
	th := c.lookUpWithoutTrapCheck()
	var st unix.Stat_t
	if err := unix.Fstat(int(null.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	refuse := func(int) (int, error) { return -1, refused }
	_, err = c.w.caller.reopenFile(th, int32(null.Fd()), inode{st.Dev, st.Ino}, refuse)
	if !errors.Is(err, refused) {
		t.Errorf("reopen: got %v, want the error of the open", err)
	}
	tries := 0
	got, err := c.w.caller.reopenFile(th, int32(null.Fd()), inode{st.Dev, st.Ino}, func(int) (int, error) {
		if tries++; tries < 3 {
			return -1, &os.PathError{Op: "reopen", Err: unix.EAGAIN}
		}
		return 7, nil
	})
	if got != 7 || err != nil {
		t.Errorf("reopen of a file with a short lease: got %d and error %v, want 7", got, err)
	}
	if _, err := c.w.caller.reopenFile(th, 1<<20, inode{}, refuse); err != errCallerGone {
		t.Errorf("reopen of a closed descriptor: got %v, want %v", err, errCallerGone)
	}
}

// raiseFileLimit raises this process's limit of open files above the numbers of device files, during the test.
func raiseFileLimit(t *testing.T) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: before.Max, Max: before.Max}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Prlimit(0, unix.RLIMIT_NOFILE, &before, nil) })
}

// TestFileGetsLastFreeLowFD tests that a file gets the last free number of the low range, as long as the program's
// other descriptors leave room below it.
func TestFileGetsLastFreeLowFD(t *testing.T) {
	c := newTrappedCall(t, nil)
	th := c.lookUpWithoutTrapCheck()
	raiseFileLimit(t)
	n := commandFDSet{low: fdRange{768, 1024}, native: fdRange{960, 1024}, high: 1500}
	occupy := func(first, end int) {
		t.Helper()
		for fd := first; fd < end; fd++ {
			if c.lookUpWithoutTrapCheck().hasDescriptor(uint32(fd)) {
				continue
			}
			if err := unix.Dup3(0, fd, unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Close(fd) })
		}
	}
	check := func(name string, want [3]uint32) {
		t.Helper()
		if got := [3]uint32{n.chooseFD(th, 0, false), n.chooseFD(th, 0, true), n.chooseFD(th, 900,
			false)}; got != want {
			t.Errorf("choose with %s: got %d, want %d", name, got, want)
		}
	}
	check("few descriptors", [3]uint32{959, 1023, 959})
	occupy(955, 960)
	occupy(1023, 1024)
	check("some in the range", [3]uint32{954, 1022, 954})
	occupy(900, 960)
	check("the end in use", [3]uint32{899, 1022, 1500})
	occupy(960, 1024)
	check("no native number", [3]uint32{899, 899, 1500})
	if got := n.chooseFD(th, 2000, true); got != 2000 {
		t.Errorf("choose from 2000 on: got %d, want 2000", got)
	}
	occupy(1500, 1502)
	occupy(0, 600)
	check("no room", [3]uint32{1502, 1502, 1502})
	n.native, n.high = fdRange{1024, 1024}, 768
	check("no room, and no other numbers", [3]uint32{768, 768, 1024})
}

// TestDescriptorsAreCounted tests that descriptors are counted as in the kernel's directory /proc/TID/fd, up to a
// limit.
func TestDescriptorsAreCounted(t *testing.T) {
	c := newTrappedCall(t, nil)
	th := c.lookUpWithoutTrapCheck()
	before := th.countDescriptors(1000)
	for range 10 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	if got := th.countDescriptors(1000); got < before+5 || got > before+15 { // other goroutines also open descriptors
		t.Errorf("count of descriptors: got %d, want about %d", got, before+10)
	}
	if got := th.countDescriptors(3); got != 3 {
		t.Errorf("count of descriptors up to 3: got %d, want 3", got)
	}
}

// helperFunc implements Helper by a function.
type helperFunc func(tid int) (*os.File, error)

func (f helperFunc) OpenMem(tid int) (*os.File, error) { return f(tid) }

// TestHelperIsNotTrusted tests that the supervisor reads and writes only a memory file returned by a helper, and
// not beyond the end of that file.
func TestHelperIsNotTrusted(t *testing.T) {
	var logs logRecorder
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("no memory"), 0o600); err != nil {
		t.Fatal(err)
	}
	word := []byte("a word")
	at := uint64(uintptr(unsafe.Pointer(&word[0])))
	for _, tt := range []struct {
		name string
		file string
		addr uint64
		n    int
		want error
	}{
		{"memory", "/proc/self/mem", at, len(word), nil},
		{"unmapped memory", "/proc/self/mem", 0, 0, unix.EFAULT},
		{"another file", path, 0, 0, unix.EINVAL},
	} {
		helper := helperFunc(func(int) (*os.File, error) { return os.Open(tt.file) })
		s := &Session{sup: &Supervisor{}, log: logs.logger(), asksOnly: true, helper: helper}
		got := make([]byte, len(word))
		if n, err := s.readThreadMemory(os.Getpid(), tt.addr, got); n != tt.n || !errors.Is(err, tt.want) {
			t.Errorf("read of %s: got %d bytes and error %v, want %d and %v", tt.name, n, err, tt.n, tt.want)
		}
	}
	if l := logs.takeLines(); len(l) != 1 || !strings.Contains(l[0], "open /proc/PID/mem: got the file") {
		t.Errorf("log: got %q, want the name of the other file", l)
	}
}
