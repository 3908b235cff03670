package supervisor

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/uapi"
)

// TestClosingFileRefusesCalls tests that a closing file accepts no further call, and that it ends once, with its last
// call.
func TestClosingFileRefusesCalls(t *testing.T) {
	c := newTrappedCall(t, nil)
	f, _ := c.mustOpen(verbsNode, nil, unix.O_RDWR)
	if !f.beginCall() || f.isClosed() {
		t.Error("enter of an open file: got false, want true")
	}
	for range 2 {
		f.close()
		if f.beginCall() || !f.isClosed() {
			t.Error("enter of a closing file: got true, want false")
		}
		select {
		case <-f.ended:
			t.Error("end of the file: got it before the last call, want it afterwards")
		default:
		}
	}
	f.endCall()
	select {
	case <-f.ended:
	case <-time.After(10 * time.Second):
		t.Fatal("end of the file: got none after the last call, want one")
	}
	f.close()
	if f.beginCall() {
		t.Error("enter of an ended file: got true, want false")
	}
}

// TestOpenForAnotherUser tests that without root, the queue file stays owned by the service's user, whichever user
// opens the device.
func TestOpenForAnotherUser(t *testing.T) {
	c := newTrappedCall(t, nil)
	id := *c.lookUpWithoutTrapCheck().id
	id.uids.fs = 1
	f, description, err := newOpenFile(c.s, verbsNode, &opener{process: &process{}, session: c.s, id: &id}, unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	defer description.Close()
	want := uint32(os.Geteuid())
	if want == 0 {
		want = 1
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(description.Fd()), &st); err != nil || st.Uid != want {
		t.Errorf("owner of the file: got %d and error %v, want %d", st.Uid, err, want)
	}
}

// TestOtherUsersProcessIsNotCached tests that the process of a thread is cached with a descriptor only if the process
// exists and belongs to the user who opened the file.
func TestOtherUsersProcessIsNotCached(t *testing.T) {
	c := newTrappedCall(t, nil)
	p := c.mustProcess()
	ended := endedProcess(t)
	ended.user = p.user
	own, ownFD := c.mustOpen(verbsNode, p.user, unix.O_RDWR)
	others, othersFD := c.mustOpen(verbsNode, c.ledger.User(4711), unix.O_RDWR)
	for _, tt := range []struct {
		name       string
		file       *openFile
		fd         *os.File
		remembered *process
		want       *process
	}{
		{"its own", own, ownFD, p, p},
		{"another user's", others, othersFD, p, nil},
		{"its own, of a process that has ended", own, ownFD, ended, nil},
	} {
		fd := int32(tt.fd.Fd())
		old := &cachedFile{tid: c.w.caller.n.tid, fd: fd, file: tt.file}
		old.process.Store(tt.remembered)
		c.s.cache[cacheSlot(c.w.caller.n.tid, fd)].Store(old) // an expired cache entry
		d := c.w.caller.lookUpFile(fd)
		if d == nil || d == old || d.file != tt.file || d.process.Load() != tt.want {
			t.Errorf("%s: cached descriptor: got %+v, want a new one with process %v", tt.name, d, tt.want)
		}
	}
	// Facts about the caller are cached under the same condition.
	for _, tt := range []struct {
		name  string
		file  *openFile
		fd    int32
		want  *process
		stale bool
	}{
		{"its own", own, int32(ownFD.Fd()), p, false},
		{"another user's", others, int32(othersFD.Fd()), nil, false},
		{"replaced by another file", own, 0, nil, true},
		{"closed", own, 1 << 20, nil, true},
	} {
		c.setArgs()
		c.w.devices.desc = &cachedFile{tid: c.w.caller.n.tid, fd: tt.fd, file: tt.file}
		_, _, err := c.w.devices.findCaller()
		if got := c.w.devices.desc.process.Load(); got != tt.want || c.w.devices.known.stale != tt.stale ||
			(err == errCallerGone) != tt.stale {
			t.Errorf("%s: got process %v, stale %v, error %v, want %v, stale %v",
				tt.name, got, c.w.devices.known.stale, err, tt.want, tt.stale)
		}
	}
	c.setArgs()
	c.w.devices.desc = &cachedFile{tid: c.w.caller.n.tid, fd: int32(othersFD.Fd()), file: others}
	if _, _, err := c.w.devices.cachedCaller(); !errors.Is(err, errOtherUser) {
		t.Errorf("command on a file of another user: got %v, want %v", err, errOtherUser)
	}
}

// TestCommandOnClosingFileFails tests that a command on a closing file fails with EIO, or with EBADF if the program has
// closed the file.
func TestCommandOnClosingFileFails(t *testing.T) {
	c := newTrappedCall(t, nil)
	f, description := c.mustOpen(verbsNode, c.mustProcess().user, unix.O_RDWR)
	ioctl := func() string {
		c.setArgs(uint64(description.Fd()), uapi.VerbsIoctl, c.memAddr(0))
		c.w.caller.n.nr = int32(nativeArchitecture.numbers[callIoctl].nr)
		return c.w.handleCall().String()
	}
	if got := ioctl(); got != "ok" {
		t.Errorf("command: got %s, want ok", got)
	}
	f.beginCall()
	f.close()
	if got := ioctl(); got != "EIO" {
		t.Errorf("command on a closing file: got %s, want EIO", got)
	}
	f.abandon()
	if got := ioctl(); got != "EBADF" {
		t.Errorf("command on a closing file without descriptors: got %s, want EBADF", got)
	}
	f.endCall()
}
