// Package embed makes the devices of this process available to package verbs. A program can thus use a software device
// in its own process, without a service and without kernel support.
//
// [NewSoftware] and [NewEFA] create such devices. [New] uses the devices of an [ib.Core].
//
// Commands of package verbs are function calls of package uverbs, and the queues are memory of this process. The
// behaviour is the same as on a device of the kernel.
package embed

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/internal/quota"
	"verbena/uapi"
	"verbena/umem"
	"verbena/uverbs"
	"verbena/verbs"
	"verbena/verbs/internal/transport"
)

// Stack provides access to the devices of a core.
type Stack struct {
	core *ib.Core
	srv  *uverbs.Server
	own  []func() // functions that close the Stack's own devices
	cm   sharedManager
}

// New creates a Stack on the present and future devices of a core. The caller must close the Stack after closing the
// devices opened on it. New may sleep.
func New(core *ib.Core) (*Stack, error) {
	srv, err := uverbs.NewServer(core, uverbs.ServerOptions{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, fmt.Errorf("verbs: embed: %w", err)
	}
	return &Stack{core: core, srv: srv}, nil
}

// Close removes the devices from programs that have opened them, as if the devices had been unplugged. Close also
// closes the devices of [NewSoftware]. Close may sleep.
func (s *Stack) Close() {
	s.srv.Close()
	for _, end := range s.own {
		end()
	}
	s.own = nil
}

// Devices lists the devices by name.
func (s *Stack) Devices() []verbs.DeviceInfo {
	var list []verbs.DeviceInfo
	for _, d := range s.srv.Devices() {
		list = append(list, s.deviceInfo(d))
	}
	slices.SortFunc(list, func(a, b verbs.DeviceInfo) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func (s *Stack) deviceInfo(d *uverbs.Device) verbs.DeviceInfo {
	name := d.Name()
	return verbs.NewDeviceInfo(verbs.Entry{
		Name: d.IB().Name(), Path: "this process", Driver: d.DriverID(), ABI: d.DriverABI(),
		Open: func() (transport.Transport, error) { return openFile(s.srv, name) },
	})
}

// Open opens a device by name. "" means the first device. Open returns verbs.ErrNoDevice if the device does not exist.
// Open may sleep.
func (s *Stack) Open(name string) (*verbs.Device, error) {
	for _, i := range s.Devices() {
		if name == "" || i.Name == name {
			return i.Open()
		}
	}
	return nil, fmt.Errorf("%w: %q in this process", verbs.ErrNoDevice, name)
}

// deviceFile is an open device.
type deviceFile struct {
	f      *uverbs.File
	arena  *transport.Arena
	space  *umem.Local // contains the commands and responses
	acct   *umem.Account
	queues queueMemory
	self   uverbs.Caller // the caller of all commands that do not register memory

	//verbena:program the calls of one program, in whose memory they are
	mu     sync.RWMutex // read-locked while the file is in use, write-locked to close the file
	closed bool

	shut atomic.Bool // a copy of closed
}

func openFile(srv *uverbs.Server, name string) (transport.Transport, error) {
	t := &deviceFile{space: umem.NewLocal(), acct: umem.NewAccount(nil)}
	t.self = commandCaller{t.space, t.acct}
	t.arena = transport.NewArena(t.allocScratch)
	f, err := srv.Open(name, ownProcess{t.acct}, &t.queues)
	if err != nil {
		return nil, err
	}
	t.f = f
	return t, nil
}

// allocScratch returns memory for commands. The garbage collector frees this memory.
func (t *deviceFile) allocScratch(size int) (transport.Memory, error) {
	b := make([]byte, size)
	_, err := t.space.Add(b)
	return transport.Memory{Mem: b, Free: func() {}}, err
}

func (t *deviceFile) Scratch() *transport.Scratch { return t.arena.Get() }

// beginUse begins a use of the file. t.mu.RUnlock ends the use.
func (t *deviceFile) beginUse() error {
	t.mu.RLock()
	if t.closed {
		t.mu.RUnlock()
		return transport.ErrClosed
	}
	return nil
}

func (t *deviceFile) Write(s *transport.Scratch, n int, mem []byte) error {
	if err := t.beginUse(); err != nil {
		return err
	}
	defer t.mu.RUnlock()
	c := t.self
	if mem != nil {
		own := umem.NewLocal()
		if _, err := own.Add(mem); err != nil {
			return err
		}
		c = commandCaller{registrationSpace{t.space, own}, t.acct}
	}
	_, err := t.f.Write(c, s.Addr, n)
	return err
}

// registrationSpace is the Space of a command that registers memory. The Space contains the command and the registered
// memory.
type registrationSpace struct {
	*umem.Local
	mem *umem.Local
}

// Lasting makes umem use only the registered memory for the registration.
func (r registrationSpace) Lasting() umem.Space { return r.mem }

func (t *deviceFile) Ioctl(s *transport.Scratch) error {
	if err := t.beginUse(); err != nil {
		return err
	}
	defer t.mu.RUnlock()
	return t.f.Ioctl(t.self, uapi.VerbsIoctl, s.Addr)
}

// Doorbell takes no lock, because a waiting command that holds the lock could block the doorbell. A doorbell on a
// closed file fails.
func (t *deviceFile) Doorbell(qp uint32) error {
	if t.shut.Load() {
		return transport.ErrClosed
	}
	return t.f.Ring(t.self, qp)
}

func (t *deviceFile) Map(offset uint64, size int) ([]byte, error) {
	if err := t.beginUse(); err != nil {
		return nil, err
	}
	defer t.mu.RUnlock()
	return t.queues.addUse(offset, size)
}

func (t *deviceFile) Unmap(b []byte) error { return t.queues.removeMapping(b) }

func (t *deviceFile) Alloc(size int) (transport.Memory, error) { return transport.Anonymous(size) }

func (t *deviceFile) Events(fd uint32) (*transport.Events, error) {
	return transport.EventsOf(int(fd), fd)
}

func (t *deviceFile) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	t.shut.Store(true)
	t.arena.Close()
	t.f.Close()
	return nil
}

// ownProcess is the process that opened the file.
type ownProcess struct{ acct *umem.Account }

func (ownProcess) PID() int                 { return os.Getpid() }
func (ownProcess) Name() string             { return "this process" }
func (ownProcess) UID() int                 { return os.Getuid() }
func (ownProcess) User() *quota.User        { return nil }
func (p ownProcess) Account() *umem.Account { return p.acct }

// commandCaller is the issuer of one command.
type commandCaller struct {
	space umem.Space
	acct  *umem.Account
}

func (c commandCaller) Space() umem.Space      { return c.space }
func (c commandCaller) Account() *umem.Account { return c.acct }

// InstallFD duplicates the descriptor, because the server closes the original.
func (c commandCaller) InstallFD(fd int, _ bool) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

func (c commandCaller) FileInode(fd int) (dev, ino uint64, err error) {
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return st.Dev, st.Ino, err
}

// queueMemory contains the memory of the queues, by offset. The memory is on the heap of the garbage collector. The
// race detector can therefore check that posts and polls order the accesses of programs and devices.
type queueMemory struct {
	mu   sync.Mutex
	next uint64
	list map[uint64]*mappedQueue // entries exist while the driver or a mapping uses the queue
}

type mappedQueue struct {
	mem   []byte
	users int // the driver and the mappings
}

// Alloc implements uverbs.Memory.
func (q *queueMemory) Alloc(size int) (ib.Shared, error) {
	page := os.Getpagesize()
	mem := make([]byte, size+page-1)
	mem = mem[-transport.AddressOf(mem)%uint64(page):][:size:size]
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.list == nil {
		q.list = map[uint64]*mappedQueue{}
	}
	off := q.next
	q.next += uint64((size + page - 1) / page * page)
	q.list[off] = &mappedQueue{mem, 1}
	return ib.Shared{Mem: mem, Offset: off, Free: sync.OnceFunc(func() { q.dropUse(off) })}, nil
}

// dropUse ends one use of a queue.
func (q *queueMemory) dropUse(off uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if u := q.list[off]; u != nil {
		if u.users--; u.users == 0 {
			delete(q.list, off)
		}
	}
}

// Close implements uverbs.Memory. Mappings remain valid until Unmap.
func (q *queueMemory) Close() error { return nil }

func (q *queueMemory) addUse(off uint64, size int) ([]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for base, u := range q.list { // a driver may put several queues into one memory
		if off >= base && off-base+uint64(size) <= uint64(len(u.mem)) {
			u.users++
			return u.mem[off-base:][:size], nil
		}
	}
	return nil, fmt.Errorf("map a queue of %d bytes: %w", size, syscall.EINVAL)
}

// removeMapping removes a mapping.
func (q *queueMemory) removeMapping(b []byte) error {
	q.mu.Lock()
	off, found := uint64(0), false
	for o, u := range q.list {
		if at := transport.AddressOf(b) - transport.AddressOf(u.mem); at < uint64(len(u.mem)) {
			off, found = o, true
		}
	}
	q.mu.Unlock()
	if !found {
		return syscall.EINVAL
	}
	q.dropUse(off)
	return nil
}
