package remote

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/umem"
)

// space is the memory that addresses in the commands of a client are of: what it shares with the service and, where it has handed that over,
// its own. (umem.Space)
type space struct {
	windows *umem.Local
	count   int                          // of windows; of the thread that answers
	process atomic.Pointer[umem.Process] // nil: not handed over
}

// Check implements umem.Space.
func (s *space) Check(addr, length uint64, write bool) error {
	err := s.windows.Check(addr, length, write)
	if p := s.process.Load(); err != nil && p != nil {
		return p.Check(addr, length, write)
	}
	return err
}

// ReadV implements umem.Space.
func (s *space) ReadV(dst [][]byte, addr uint64) error {
	err := s.windows.ReadV(dst, addr)
	if p := s.process.Load(); err != nil && p != nil {
		return p.ReadV(dst, addr)
	}
	return err
}

// WriteV implements umem.Space.
func (s *space) WriteV(src [][]byte, addr uint64) error {
	err := s.windows.WriteV(src, addr)
	if p := s.process.Load(); err != nil && p != nil {
		return p.WriteV(src, addr)
	}
	return err
}

func (s *space) close() {
	if p := s.process.Load(); p != nil {
		p.Close()
	}
}

// memoryDescriptors is what the memory of a client costs the service: two files of /proc, and a pidfd.
const memoryDescriptors = 3

// takeMemory makes the client's own memory part of the space. The descriptor is its /proc/self/mem, opened by itself: it reaches no more than
// the client does. The mappings, which say what may be written, the service looks at itself.
func (f *File) takeMemory(fds []int) (err error) {
	fail := func(err error) error { return fmt.Errorf("take over the memory of process %d: %w", f.client.PID, err) }
	if len(fds) != 1 {
		return fail(fmt.Errorf("the descriptor of /proc/self/mem did not come: %w", syscall.EINVAL))
	}
	mem := os.NewFile(uintptr(fds[0]), "mem")
	if f.space.process.Load() != nil {
		mem.Close()
		return nil
	}
	maps, err := os.Open("/proc/" + strconv.Itoa(f.client.PID) + "/maps")
	if err != nil {
		mem.Close()
		return fail(fmt.Errorf("%w; allocate buffers by Device.Alloc or PD.Alloc instead", err))
	}
	pidfd, err := unix.PidfdOpen(f.client.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		mem.Close()
		maps.Close()
		return fail(err)
	}
	if err := f.take(quota.Descriptors, memoryDescriptors); err != nil {
		mem.Close()
		maps.Close()
		unix.Close(pidfd)
		return fail(err)
	}
	var copies *umem.Copies
	if f.srv.cfg.Copies != nil {
		copies = f.srv.cfg.Copies(f.client.UID)
	}
	p, err := umem.NewProcess(umem.ProcessConfig{
		PID: f.client.PID, Pidfd: os.NewFile(uintptr(pidfd), "pidfd"), Mem: mem, Maps: maps, Bound: true, Copies: copies,
	})
	if err != nil {
		return fail(err)
	}
	if exited(f.client.Process) { // the number may have been another's
		p.Close()
		return fail(syscall.ESRCH)
	}
	f.space.process.Store(p)
	return nil
}
