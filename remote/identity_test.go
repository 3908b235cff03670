package remote

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/internal/ctl/devfile"
	"verbena/internal/principal"
	"verbena/internal/quota"
	"verbena/umem"
	"verbena/uverbs"
)

// endedProcessPidfd returns a pidfd of a process that has ended.
func endedProcessPidfd(t *testing.T) *os.File {
	t.Helper()
	c := exec.Command("sleep", "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	f := openPidfd(t, c.Process.Pid)
	_ = c.Process.Kill()
	_ = c.Wait()
	return f
}

func openPidfd(t *testing.T, pid int) *os.File {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	t.Cleanup(func() { f.Close() })
	return f
}

// ownMemoryFDs returns descriptors of this process's memory and mappings, as a client would send them.
func ownMemoryFDs(t *testing.T) []int {
	t.Helper()
	var fds []int
	for _, name := range []string{"mem", "maps"} {
		fd, err := unix.Open("/proc/self/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	return fds
}

// TestMemoryOfReusedPIDIsRefused tests that the service does not accept the memory of a client that has ended when
// another process has the client's ID.
func TestMemoryOfReusedPIDIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		process *os.File
		want    error
	}{"the client": {openPidfd(t, os.Getpid()), nil}, "another": {endedProcessPidfd(t), syscall.ESRCH}} {
		user := quota.New(quota.Limits{}).User(1)
		f := &File{srv: New(Config{}), user: user, client: Client{PID: os.Getpid(), UID: os.Getuid(), Process: tt.process}}
		f.space.windows = umem.NewLocal()
		if err := f.addClientMemory(ownMemoryFDs(t)); !errors.Is(err, tt.want) {
			t.Errorf("addClientMemory %s: got %v, want %v", name, err, tt.want)
		}
		if p := f.space.process.Load(); (p != nil) != (tt.want == nil) {
			t.Errorf("%s: access to the memory: got %v, want the opposite", name, p != nil)
		}
		if held := user.Held(quota.Descriptors); (held != 0) != (tt.want == nil) {
			t.Errorf("%s: charged descriptors: got %d, want some only after success", name, held)
		}
		f.space.close()
	}
}

// TestReusedPIDGivesNoLimit tests that a client that has ended has no limit, and does not get the limit of a
// process with the same ID.
func TestReusedPIDGivesNoLimit(t *testing.T) {
	c := Client{PID: os.Getpid(), UID: os.Getuid(), Process: endedProcessPidfd(t)}
	if l, err := c.memlockLimit(); !errors.Is(err, umem.ErrLimit) {
		t.Errorf("memlockLimit: got %d and error %v, want ErrLimit", l, err)
	}
}

// TestConnectionRefusedAtLimit tests that a connection, and the memory of a client, are rejected at the limit of
// descriptors.
func TestConnectionRefusedAtLimit(t *testing.T) {
	ledger := quota.New(quota.Limits{quota.Descriptors: {PerUser: descriptorsPerConnection +
		descriptorsPerClientMemory - 1}})
	client := Client{PID: os.Getpid(), UID: 4242, Principal: principal.Principal{Account: quota.ID{UID: 4242}}}
	user := ledger.User(client.UID)
	if err := user.Charge(quota.Descriptors, descriptorsPerClientMemory); err != nil {
		t.Fatal(err)
	}
	client.Process = openPidfd(t, os.Getpid())
	if f, _, err := New(Config{Quota: ledger}).Open(client, devfile.ConnectionManager); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("Open: got %v and error %v, want EMFILE", f, err)
	}
	if n := user.Held(quota.Descriptors); n != descriptorsPerClientMemory {
		t.Errorf("charged descriptors after a refusal: got %d, want %d", n, descriptorsPerClientMemory)
	}
	user.Release(quota.Descriptors, descriptorsPerClientMemory)

	f := &File{srv: New(Config{}), user: user, client: client}
	f.client.Process = openPidfd(t, os.Getpid())
	f.space.windows = umem.NewLocal()
	if err := f.chargeQuota(quota.Descriptors, descriptorsPerConnection); err != nil {
		t.Fatal(err)
	}
	if err := f.chargeQuota(quota.Descriptors, descriptorsPerClientMemory); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("take: got %v, want EMFILE", err)
	}
	if err := f.addClientMemory(ownMemoryFDs(t)); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("addClientMemory: got %v, want EMFILE", err)
	}
	if f.space.process.Load() != nil {
		t.Error("memory without a charge: got access to it, want none")
	}
	f.client.Process = nil
	f.freeResources()
	if n := user.Held(quota.Descriptors); n != 0 {
		t.Errorf("charged descriptors at the end: got %d, want 0", n)
	}
}

// TestOpenWithoutCMFails tests that Open fails for the connection manager of a service without one.
func TestOpenWithoutCMFails(t *testing.T) {
	client := Client{PID: os.Getpid(), UID: os.Getuid(), Process: openPidfd(t, os.Getpid())}
	if f, _, err := New(Config{}).Open(client, devfile.ConnectionManager); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("Open: got %v and error %v, want ENODEV", f, err)
	}
}

// newUverbsServer returns a server without devices. The caller must close it.
func newUverbsServer(t *testing.T) *uverbs.Server {
	t.Helper()
	srv, err := uverbs.NewServer(&ib.Core{}, uverbs.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return srv
}

// TestUserCannotConnectUnownedQP tests that an ordinary user cannot connect a queue pair without an owner.
func TestUserCannotConnectUnownedQP(t *testing.T) {
	srv := newUverbsServer(t)
	defer srv.Close()
	user := quota.New(quota.Limits{}).User(4242)
	for _, u := range []*quota.User{user, nil} { // no program owns the queue pair, so no user owns it
		if (cmCaller{&File{srv: New(Config{Uverbs: srv}), user: u, client: Client{UID: 4242}}}).MayConnect(nil, 17) {
			t.Errorf("MayConnect of user %d for a queue pair without an owner: got true, want false", u.ID().UID)
		}
	}
}

// TestUserMayNotBindLowPorts tests that an ordinary user may not bind ports below 1024.
func TestUserMayNotBindLowPorts(t *testing.T) {
	if (cmCaller{&File{client: Client{UID: 4242}}}).MayBindLowPorts() {
		t.Error("MayBindLowPorts of user 4242: got true, want false")
	}
}
