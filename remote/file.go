package remote

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/internal/ctl/devfile"
	"verbena/internal/kept"
	"verbena/internal/quota"
	"verbena/internal/shm"
	"verbena/rdmacm/ucma"
	"verbena/uapi"
	"verbena/umem"
	"verbena/uverbs"
	"verbena/uverbs/poller"
)

// File is a device file that a client has opened. Serve handles the client's requests, and Close closes the file.
// No other method may be called concurrently with Serve.
type File struct {
	srv    *Server
	client Client
	user   *quota.User
	kept   *kept.UserObjects
	taken  []quotaCharge

	acct  *processAccount
	space clientSpace

	signal *os.File        // the service's end
	theirs *os.File        // the client's end, or nil once it was sent
	bell   int             // an eventfd, or -1 for the connection manager
	given  []kept.FileNote // the file descriptions sent to the client, each charged as a descriptor

	strays []int // unexpected descriptors from the client; closing them may block

	memory *sharedMemory

	// For a device.
	uverbs *uverbs.File
	polled *poller.PolledSource

	// The following fields are for the connection manager.
	cm       *ucma.File
	cmSignal *eventSignal

	// The following map holds the event files of the client, by their numbers in commands.
	events     map[uint32]eventFileID
	nextNumber uint32
	installed  *os.File // event file that the current command created
	number     uint32   // number of the installed event file
}

type quotaCharge struct {
	kind quota.ResourceKind
	n    uint64
}

// eventFileID identifies an event file.
type eventFileID struct{ dev, ino uint64 }

const (
	// firstNumber is the first number of an event file. firstNumber exceeds the numbers that a program takes for
	// its own descriptors.
	firstNumber = 1 << 20
	// maxEvents limits the number of event files of a client that have numbers. After the client has closed the
	// files, they are not charged to the client.
	maxEvents = 1 << 13
	// maxWindows limits the number of buffer mappings per client.
	maxWindows = 1 << 14
	// maxCommand limits the size of a command.
	maxCommand = 1 << 20
	// sendTimeout limits the time in which a client must read a reply, and send the rest of a request.
	sendTimeout = 10 * time.Second
	// sendBuffer limits the unread replies of a client, and thus the descriptors in them.
	sendBuffer = 4 << 10
)

func (f *File) chargeQuota(k quota.ResourceKind, n uint64) error {
	if err := f.user.Charge(k, n); err != nil {
		return err
	}
	f.taken = append(f.taken, quotaCharge{k, n})
	return nil
}

// freeResources frees the resources of the file itself.
func (f *File) freeResources() {
	for _, x := range []*os.File{f.signal, f.theirs, f.client.Process} {
		if x != nil {
			x.Close()
		}
	}
	if f.bell >= 0 {
		unix.Close(f.bell)
	}
	for _, n := range f.given {
		f.kept.Keep(n, func() { f.user.Release(quota.Descriptors, 1) })
	}
	if f.acct != nil {
		f.acct.release()
	}
	f.space.close()
	for _, c := range f.taken {
		f.user.Release(c.kind, c.n)
	}
	f.taken = nil
}

// makeEndSignal creates the socket pair that shows the client the end of the file. makeEndSignal shuts down reading at
// the service's end, so the client cannot send to it. Otherwise close would also close descriptors in unread
// messages, and these closes may block.
func (f *File) makeEndSignal() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a socket pair: %w", err)
	}
	f.signal, f.theirs = os.NewFile(uintptr(fds[0]), "signal"), os.NewFile(uintptr(fds[1]), "signal")
	if err := f.chargeDescriptor(fds[1]); err != nil {
		return err
	}
	if err := unix.Shutdown(fds[0], unix.SHUT_RD); err != nil {
		return fmt.Errorf("make a socket pair: shutdown: %w", err)
	}
	return nil
}

// chargeDescriptor charges the client's user for a file description, for as long as the client has the description.
func (f *File) chargeDescriptor(fd int) error {
	if err := f.user.Charge(quota.Descriptors, 1); err != nil {
		return err
	}
	n, err := f.kept.NoteFile(fd)
	if err != nil {
		f.user.Release(quota.Descriptors, 1)
		return err
	}
	f.given = append(f.given, n)
	return nil
}

func (f *File) openDevice(d *uverbs.Device) (err error) {
	f.memory = &sharedMemory{}
	if f.memory.queues, err = shm.Create("verbena-queues", quota.RingBytes, f.user, f.kept); err != nil {
		return err
	}
	if f.memory.buffers, err = shm.Create("verbena-buffers", quota.BufferBytes, f.user, f.kept); err != nil {
		f.memory.Close()
		return err
	}
	control, err := f.memory.buffers.Alloc(devfile.ControlAreaSize)
	if err != nil {
		f.memory.Close()
		return err
	}
	f.memory.control = shm.FirstWord(control.Mem)
	if f.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		f.memory.Close()
		return fmt.Errorf("make a doorbell: eventfd: %w", err)
	}
	if err = f.chargeDescriptor(f.bell); err != nil {
		f.memory.Close()
		return err
	}
	if f.uverbs, err = f.srv.cfg.Uverbs.Open(d.Name(), opener{f}, f.memory); err != nil {
		f.memory.Close()
		return err
	}
	f.polled, err = f.srv.cfg.Pollers.Add(f.user, poller.Source{
		File: f.uverbs, Doorbell: f.bell, Tell: f.memory.setPollerAwake, Who: []any{"uid", f.client.UID, "pid", f.client.PID},
	})
	if err != nil {
		f.uverbs.Close()
	}
	return err
}

// Serve handles requests until the client closes the connection or violates the protocol. Serve returns nil if the
// client has closed its end, else the error. It may sleep. A close of nc ends Serve.
func (f *File) Serve(nc *net.UnixConn) error {
	if err := f.serveRequests(nc); !isClosedByClient(err) {
		return err
	}
	return nil
}

// isClosedByClient reports whether the client has closed its end, with or without waiting for a reply, or whether
// Close was called.
func isClosedByClient(err error) bool {
	for _, e := range []error{io.EOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (f *File) serveRequests(nc *net.UnixConn) error {
	c := devfile.Conn{UnixConn: nc, Rights: f.srv.cfg.Rights.QueueOf(f.user)}
	if err := nc.SetWriteBuffer(sendBuffer); err != nil {
		return err
	}
	if err := f.sendDescriptors(c); err != nil {
		return err
	}
	for {
		r, fds, err := c.ReceiveRequest(sendTimeout)
		if err == nil {
			fds, err = f.checkDescriptors(r, fds)
		}
		if err != nil {
			f.strays = fds
			return err
		}
		a := f.answerRequest(r, fds)
		c.SetWriteDeadline(time.Now().Add(sendTimeout))
		if f.installed != nil {
			err = c.SendAnswer(a, int(f.installed.Fd()))
			f.installed.Close()
			f.installed = nil
		} else {
			err = c.SendAnswer(a)
		}
		if err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
}

// sendDescriptors sends the descriptors of the file to the client.
func (f *File) sendDescriptors(c devfile.Conn) error {
	fds := []int{int(f.theirs.Fd())}
	for _, m := range []*shm.File{f.memory.buffers, f.memory.queues} {
		if m == nil {
			continue
		}
		d, err := m.OpenForProgram(unix.O_RDWR)
		if err != nil {
			return err
		}
		defer d.Close()
		fds = append(fds, int(d.Fd()))
	}
	if f.bell >= 0 {
		fds = append(fds, f.bell)
	}
	c.SetWriteDeadline(time.Now().Add(sendTimeout))
	err := c.SendAnswer(devfile.Answer{}, fds...)
	f.theirs.Close()
	f.theirs = nil
	if refused := (*quota.LimitError)(nil); errors.As(err, &refused) { // no reply was sent
		_ = c.SendAnswer(errorAnswer(err))
	}
	return err
}

// checkDescriptors checks the descriptors of a request. It returns unexpected descriptors with an error. The close of
// accepted descriptors never blocks.
func (f *File) checkDescriptors(r devfile.Request, fds []int) (_ []int, err error) {
	switch {
	case r.Op != devfile.OpMemory && len(fds) > 0, r.Op == devfile.OpMemory && len(fds) != devfile.NumMemoryFiles:
		err = fmt.Errorf("request %d came with %d descriptors: %w", r.Op, len(fds), syscall.EINVAL)
	case r.Op == devfile.OpMemory:
		if err = umem.CheckProcMem(fds[0]); err == nil {
			err = umem.CheckProcMaps(fds[1])
		}
	}
	return fds, err
}

// UnexpectedDescriptors returns the unexpected descriptors that the client has sent. The caller must close them after
// Close, and must limit the number of concurrent closes, because the client can delay each close without limit.
func (f *File) UnexpectedDescriptors() []int { return f.strays }

// Close closes the file. It may sleep.
func (f *File) Close() {
	if f.uverbs != nil {
		f.polled.Stop()
		f.uverbs.Close()
	}
	f.closeCM()
	f.freeResources()
}

// answerRequest executes a request. answerRequest converts a panic to an error.
func (f *File) answerRequest(r devfile.Request, fds []int) (a devfile.Answer) {
	defer func() {
		if p := recover(); p != nil {
			err := fmt.Errorf("panic in a command: %v", p)
			f.srv.cfg.Log.Error(err.Error(), "uid", f.client.UID, "pid", f.client.PID, "stack", string(debug.Stack()))
			if f.uverbs != nil {
				f.uverbs.FailDevice(err)
			}
			a = errorAnswer(fmt.Errorf("internal error; see the log of the service: %w", syscall.EIO))
		}
	}()
	n, err := f.executeRequest(r, fds)
	if err != nil {
		f.reportRefusal(err)
		if f.installed != nil { // the client does not receive the number
			f.installed.Close()
			f.installed = nil
			delete(f.events, f.number)
		}
		return errorAnswer(err)
	}
	if f.installed != nil {
		return devfile.Answer{N: n, Number: f.number}
	}
	return devfile.Answer{N: n}
}

// reportRefusal reports a request that fails.
func (f *File) reportRefusal(err error) {
	refused := f.srv.cfg.Refused
	if refused == nil {
		return
	}
	device := "rdma_cm"
	if f.uverbs != nil {
		device = f.uverbs.Device().Name()
	}
	refused(uverbs.Refusal{User: f.user.ID(), PID: f.client.PID, Program: f.client.Name, Device: device, Err: err})
}

func errorAnswer(err error) devfile.Answer {
	return devfile.Answer{Errno: errnoOf(err), Text: err.Error()}
}

// executeRequest executes a request. executeRequest owns the descriptors of the request, which accept has checked.
//
//verbena:parses
func (f *File) executeRequest(r devfile.Request, fds []int) (n uint64, err error) {
	switch r.Op {
	case devfile.OpMemory:
		return 0, f.addClientMemory(fds)
	case devfile.OpWrite:
		size := int(min(r.N, maxCommand))
		if f.cm != nil {
			return f.writeCM(r.Addr, size)
		}
		n, err := f.uverbs.Write(caller{f}, r.Addr, size)
		return uint64(n), err
	case devfile.OpIoctl:
		if f.uverbs == nil {
			return 0, syscall.ENOTTY
		}
		return 0, f.uverbs.Ioctl(caller{f}, uapi.VerbsIoctl, r.Addr)
	case devfile.OpAlloc:
		return f.allocShared(r.Addr, r.N)
	case devfile.OpForget:
		delete(f.events, uint32(r.N))
		return 0, nil
	}
	return 0, fmt.Errorf("request %d is unknown: %w", r.Op, syscall.EINVAL)
}

// allocShared allocates shared memory that the client maps at addr, and returns the offset of the memory in the buffer
// file.
func (f *File) allocShared(addr, n uint64) (offset uint64, err error) {
	page := umem.PageSize
	switch {
	case n == 0, n%page != 0, addr%page != 0, n > 1<<62, addr+n < addr:
		return 0, fmt.Errorf("allocate %d bytes for address %#x: both must be multiples of %d: %w", n, addr, page,
			syscall.EINVAL)
	case f.space.count >= maxWindows:
		return 0, fmt.Errorf("allocate %d bytes: the client has %d buffer mappings, which is the limit; allocate larger buffers: %w",
			n, maxWindows, syscall.ENOMEM)
	}
	s, err := f.memory.buffers.Alloc(int(n))
	if err != nil {
		return 0, err
	}
	if err := f.space.windows.AddAt(addr, s.Mem[:n]); err != nil {
		s.Free()
		return 0, err
	}
	f.space.count++
	return s.Offset, nil
}

// opener describes the client to package uverbs.
type opener struct{ f *File }

func (o opener) PID() int               { return o.f.client.PID }
func (o opener) Name() string           { return o.f.client.Name }
func (o opener) UID() int               { return o.f.client.UID }
func (o opener) User() *quota.User      { return o.f.user }
func (o opener) Account() *umem.Account { return o.f.acct.Account }

// caller implements uverbs.Caller for the client.
type caller struct{ f *File }

func (c caller) Space() umem.Space      { return &c.f.space }
func (c caller) Account() *umem.Account { return c.f.acct.Account }

// InstallFD duplicates fd for the reply to the current command, and returns its number.
func (c caller) InstallFD(fd int, _ bool) (int, error) {
	f := c.f
	if f.installed != nil || len(f.events) >= maxEvents {
		return 0, fmt.Errorf("create an event file: %d are open, which is the limit: %w", len(f.events), syscall.EMFILE)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	f.installed = os.NewFile(uintptr(dup), "events")
	f.number = f.unusedEventFileFD()
	f.events[f.number] = eventFileID{st.Dev, st.Ino}
	return int(f.number), nil
}

// unusedEventFileFD returns a number that no event file has. The number is non-negative as int32, because commands
// use it as a descriptor.
func (f *File) unusedEventFileFD() uint32 {
	for {
		n := f.nextNumber
		if f.nextNumber++; f.nextNumber > math.MaxInt32 {
			f.nextNumber = firstNumber
		}
		if _, used := f.events[n]; !used {
			return n
		}
	}
}

func (c caller) FileInode(fd int) (dev, ino uint64, err error) {
	i, ok := c.f.events[uint32(fd)]
	if !ok || fd < 0 {
		return 0, 0, syscall.EBADF
	}
	return i.dev, i.ino, nil
}

// sharedMemory holds the shared memory of a client. It implements uverbs.Memory.
type sharedMemory struct {
	queues, buffers *shm.File

	mu      sync.Mutex
	control *atomic.Uint32 // nil once closed
	gone    bool
}

// Alloc implements uverbs.Memory.
func (m *sharedMemory) Alloc(size int) (ib.Shared, error) {
	s, err := m.queues.Alloc(size)
	return ib.Shared(s), err
}

// Depart implements uverbs.Departer.
func (m *sharedMemory) Depart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone = true
	if m.control != nil {
		m.control.Store(devfile.Gone)
	}
}

// setPollerAwake writes to the control word whether the poller is awake.
func (m *sharedMemory) setPollerAwake(awake bool) {
	state := devfile.Asleep
	if awake {
		state = devfile.Awake
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.control != nil && !m.gone {
		m.control.Store(state)
	}
}

// Close implements uverbs.Memory. After this call, the driver must not access the memory.
func (m *sharedMemory) Close() error {
	m.mu.Lock()
	m.control = nil
	m.mu.Unlock()
	var errs []error
	for _, f := range []*shm.File{m.queues, m.buffers} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
