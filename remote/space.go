package remote

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/umem"
)

// clientSpace is the memory that a client's commands can address. It is the shared memory and, once passed to the
// service, the client's own memory. It implements umem.Space.
type clientSpace struct {
	windows *umem.Local
	count   int                          // number of windows; only the serving goroutine uses it
	process atomic.Pointer[umem.Process] // nil until the client has passed its memory
}

// Check implements umem.Space.
func (s *clientSpace) Check(addr, length uint64, write bool) error {
	err := s.windows.Check(addr, length, write)
	if p := s.process.Load(); err != nil && p != nil {
		return p.Check(addr, length, write)
	}
	return err
}

// Windows returns the memory that the client shares with the service, as described at umem.Region.Direct.
func (s *clientSpace) Windows() *umem.Local { return s.windows }

// ReadV implements umem.Space.
func (s *clientSpace) ReadV(dst [][]byte, addr uint64) error {
	err := s.windows.ReadV(dst, addr)
	if p := s.process.Load(); err != nil && p != nil {
		return p.ReadV(dst, addr)
	}
	return err
}

// WriteV implements umem.Space.
func (s *clientSpace) WriteV(src [][]byte, addr uint64) error {
	err := s.windows.WriteV(src, addr)
	if p := s.process.Load(); err != nil && p != nil {
		return p.WriteV(src, addr)
	}
	return err
}

func (s *clientSpace) close() {
	if p := s.process.Load(); p != nil {
		p.Close()
	}
}

// descriptorsPerClientMemory is the number of descriptors for the memory of a client: two files of /proc, and a pidfd.
const descriptorsPerClientMemory = 3

// addClientMemory adds the client's own memory to the space. The descriptors are /proc/self/mem and /proc/self/maps,
// opened by the client, so they give no access beyond the client's own. The service must not open these files by
// process ID. If the process executed a set-uid program in between, they would show the mappings of that program.
//
//verbena:allow close both were found to be files of /proc, whose close does not wait
func (f *File) addClientMemory(fds []int) (err error) {
	mem, maps := os.NewFile(uintptr(fds[0]), "mem"), os.NewFile(uintptr(fds[1]), "maps")
	pidfd := -1
	fail := func(err error) error {
		mem.Close()
		maps.Close()
		if pidfd >= 0 {
			unix.Close(pidfd)
		}
		return fmt.Errorf("access the memory of process %d: %w", f.client.PID, err)
	}
	if f.space.process.Load() != nil {
		mem.Close()
		maps.Close()
		return nil
	}
	if pidfd, err = unix.PidfdOpen(f.client.PID, unix.PIDFD_NONBLOCK); err != nil {
		return fail(err)
	}
	if hasExited(f.client.Process) { // the process ID may have been reused
		return fail(syscall.ESRCH)
	}
	if err := f.user.Charge(quota.Descriptors, descriptorsPerClientMemory); err != nil {
		return fail(err)
	}
	var copies *umem.Copies
	if f.srv.cfg.Copies != nil {
		copies = f.srv.cfg.Copies(f.user)
	}
	p, err := umem.NewProcess(umem.ProcessConfig{
		PID: f.client.PID, Pidfd: os.NewFile(uintptr(pidfd), "pidfd"), Mem: mem, Maps: maps, Bound: true, Copies: copies,
	})
	if err != nil {
		f.user.Release(quota.Descriptors, descriptorsPerClientMemory)
		return err
	}
	f.taken = append(f.taken, quotaCharge{quota.Descriptors, descriptorsPerClientMemory})
	f.space.process.Store(p)
	return nil
}
