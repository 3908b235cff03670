package remote

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl/devfile"
	"verbena/umem"
)

// openProcFile opens a file in /proc/self.
func openProcFile(t *testing.T, name string) int {
	t.Helper()
	f, err := os.Open("/proc/self/" + name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return int(f.Fd())
}

// TestOnlyMemoryRequestHasDescriptors checks that only OpMemory accepts descriptors, and only the memory and mappings
// of a process.
func TestOnlyMemoryRequestHasDescriptors(t *testing.T) {
	mem, maps, status := openProcFile(t, "mem"), openProcFile(t, "maps"), openProcFile(t, "status")
	f := &File{}
	for _, tt := range []struct {
		name string
		op   devfile.Op
		fds  []int
		ok   bool
	}{
		{"a command without descriptors", devfile.OpWrite, nil, true},
		{"a command with one descriptor", devfile.OpWrite, []int{mem}, false},
		{"memory", devfile.OpMemory, []int{mem, maps}, true},
		{"memory without its maps", devfile.OpMemory, []int{mem}, false},
		{"memory, maps and another file", devfile.OpMemory, []int{mem, maps, status}, false},
		{"exchanged", devfile.OpMemory, []int{maps, mem}, false},
		{"another file for memory", devfile.OpMemory, []int{status, maps}, false},
		{"another file for maps", devfile.OpMemory, []int{mem, status}, false},
	} {
		fds, err := f.checkDescriptors(devfile.Request{Op: tt.op}, tt.fds)
		if (err == nil) != tt.ok || len(fds) != len(tt.fds) {
			t.Errorf("accept of %s: got %d descriptors and error %v", tt.name, len(fds), err)
		}
	}
}

// TestCloseByClientIsNotLogged tests that the end of a connection is not logged if the client has closed it at any
// point, and is logged after a protocol violation.
func TestCloseByClientIsNotLogged(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{io.EOF, true},
		{io.ErrUnexpectedEOF, false},
		{&net.OpError{Op: "read", Err: os.NewSyscallError("recvmsg", syscall.ECONNRESET)}, true},
		{fmt.Errorf("answer: %w", &net.OpError{Op: "write", Err: os.NewSyscallError("sendmsg", syscall.EPIPE)}), true},
		{fmt.Errorf("answer: %w", os.ErrDeadlineExceeded), false},
		{fmt.Errorf("request 1 came with 2 descriptors: %w", syscall.EINVAL), false},
	} {
		if got := isClosedByClient(tt.err); got != tt.want {
			t.Errorf("isClosedByClient(%v): got %t, want %t", tt.err, got, tt.want)
		}
	}
}

// TestAllocIsLimited checks the limits of buffer allocations.
func TestAllocIsLimited(t *testing.T) {
	f := &File{}
	page := umem.PageSize
	for _, tt := range []struct {
		name    string
		addr, n uint64
		count   int
		want    error
	}{
		{"nothing", page, 0, 0, syscall.EINVAL},
		{"half a page", page, page / 2, 0, syscall.EINVAL},
		{"within a page", page + 8, page, 0, syscall.EINVAL},
		{"across the end of the address space", -page, 2 * page, 0, syscall.EINVAL},
		{"too much", page, 1 << 63, 0, syscall.EINVAL},
		{"too many", page, page, maxWindows, syscall.ENOMEM},
	} {
		f.space.count = tt.count
		if _, err := f.allocShared(tt.addr, tt.n); !errors.Is(err, tt.want) {
			t.Errorf("alloc %s: got %v, want %v", tt.name, err, tt.want)
		}
	}
}

// TestEventFilesAreBounded checks the limit of event files of a client, and that a command returns at most one
// event file.
func TestEventFilesAreBounded(t *testing.T) {
	f := &File{events: map[uint32]eventFileID{}, nextNumber: firstNumber}
	fd := openProcFile(t, "status")
	c := caller{f}
	for i := range maxEvents - 1 {
		f.events[uint32(i)] = eventFileID{}
	}
	if _, err := c.InstallFD(fd, true); err != nil {
		t.Fatal(err)
	}
	f.installed.Close()
	f.installed = nil
	if _, err := c.InstallFD(fd, true); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("InstallFD beyond the limit: got %v, want EMFILE", err)
		f.installed.Close()
	}
	if _, _, err := c.FileInode(firstNumber); err != nil {
		t.Error(err)
	}
	if _, _, err := c.FileInode(-1); !errors.Is(err, unix.EBADF) {
		t.Errorf("SameFile of a negative number: got %v, want EBADF", err)
	}
}

// TestEventFileFDsAreReusedLast tests that numbers of event files are reused only after all other numbers, and are
// valid descriptors for a program.
func TestEventFileFDsAreReusedLast(t *testing.T) {
	const last = 1<<31 - 1
	f := &File{events: map[uint32]eventFileID{firstNumber: {}, firstNumber + 2: {}}, nextNumber: last - 1}
	fd := openProcFile(t, "status")
	for _, want := range []int{last - 1, last, firstNumber + 1, firstNumber + 3} {
		got, err := (caller{f}).InstallFD(fd, true)
		if err != nil {
			t.Fatal(err)
		}
		f.installed.Close()
		f.installed = nil
		if got != want {
			t.Errorf("InstallFD: got number %#x, want %#x", got, want)
		}
	}
}

// TestControlWordKeepsGoneState checks the values of the control word. After the device was removed, the word does not
// change.
func TestControlWordKeepsGoneState(t *testing.T) {
	var word atomic.Uint32
	m := &sharedMemory{control: &word}
	for _, tt := range []struct {
		do   func()
		want uint32
	}{
		{func() { m.setPollerAwake(true) }, devfile.Awake},
		{func() { m.setPollerAwake(false) }, devfile.Asleep},
		{m.Depart, devfile.Gone},
		{func() { m.setPollerAwake(true) }, devfile.Gone},
		{func() { m.setPollerAwake(false) }, devfile.Gone},
	} {
		tt.do()
		if got := word.Load(); got != tt.want {
			t.Errorf("control word: got %d, want %d", got, tt.want)
		}
	}
	m.control = nil // as after a close
	m.setPollerAwake(true)
	m.Depart()
}
