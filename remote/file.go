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

// File is a device file that a client has open. Serve answers the client, and Close ends the file; no other method is called meanwhile.
type File struct {
	srv    *Server
	client Client
	user   *quota.User
	kept   *kept.Kept
	taken  []charge

	acct  *account
	space space

	signal *os.File    // the service's end
	theirs *os.File    // the client's; nil when the client has it
	bell   int         // an eventfd; -1 of the connection manager
	given  []kept.Note // the client's descriptions of those; each is charged as a descriptor

	strays []int // descriptors that the client has sent, and that may take long to be closed

	memory *memory

	// Of a device.
	uverbs *uverbs.File
	polled *poller.Polled

	// Of the connection manager.
	cm       *ucma.File
	cmSignal *eventSignal

	// The event files that the client has, by the numbers that commands have for them.
	events     map[uint32]inode
	nextNumber uint32
	installed  *os.File // by the present command
	number     uint32   // its number
}

type charge struct {
	kind quota.Kind
	n    uint64
}

// inode identifies an event file.
type inode struct{ dev, ino uint64 }

const (
	// firstNumber is the first of an event file: larger than what a program would take for a descriptor of its own.
	firstNumber = 1 << 20
	// maxEvents bounds how many event files a client keeps numbers for, which it is not charged for once it has closed them.
	maxEvents = 1 << 13
	// maxWindows bounds the pieces that the buffers of a client are in.
	maxWindows = 1 << 14
	// maxCommand is the largest that is read of a command.
	maxCommand = 1 << 20
	// sendTimeout is for a client to take an answer, and to send the rest of a request.
	sendTimeout = 10 * time.Second
	// sendBuffer bounds the answers, and the descriptors with them, that a client has not taken.
	sendBuffer = 4 << 10
)

func (f *File) take(k quota.Kind, n uint64) error {
	if err := f.user.Take(k, n); err != nil {
		return err
	}
	f.taken = append(f.taken, charge{k, n})
	return nil
}

// release gives back what the file has itself.
func (f *File) release() {
	for _, x := range []*os.File{f.signal, f.theirs, f.client.Process} {
		if x != nil {
			x.Close()
		}
	}
	if f.bell >= 0 {
		unix.Close(f.bell)
	}
	for _, n := range f.given {
		f.kept.Keep(n, func() { f.user.Give(quota.Descriptors, 1) })
	}
	if f.acct != nil {
		f.acct.put()
	}
	f.space.close()
	for _, c := range f.taken {
		f.user.Give(c.kind, c.n)
	}
	f.taken = nil
}

// makeSignal makes the socket on which the client sees the file's end. Nothing can be sent to this end of it, descriptors above all: they would
// be closed with it.
func (f *File) makeSignal() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a socket pair: %w", err)
	}
	f.signal, f.theirs = os.NewFile(uintptr(fds[0]), "signal"), os.NewFile(uintptr(fds[1]), "signal")
	if err := f.give(fds[1]); err != nil {
		return err
	}
	if err := unix.Shutdown(fds[0], unix.SHUT_RD); err != nil {
		return fmt.Errorf("make a socket pair: shutdown: %w", err)
	}
	return nil
}

// give charges a description that is made for the client, for as long as the client has it.
func (f *File) give(fd int) error {
	if err := f.user.Take(quota.Descriptors, 1); err != nil {
		return err
	}
	n, err := f.kept.Note(fd)
	if err != nil {
		f.user.Give(quota.Descriptors, 1)
		return err
	}
	f.given = append(f.given, n)
	return nil
}

func (f *File) openDevice(d *uverbs.Device) (err error) {
	f.memory = &memory{}
	if f.memory.queues, err = shm.Create("verbena-queues", quota.RingBytes, f.user, f.kept); err != nil {
		return err
	}
	if f.memory.buffers, err = shm.Create("verbena-buffers", quota.BufferBytes, f.user, f.kept); err != nil {
		f.memory.Close()
		return err
	}
	control, err := f.memory.buffers.Alloc(devfile.ControlSize)
	if err != nil {
		f.memory.Close()
		return err
	}
	f.memory.control = shm.Word(control.Mem)
	if f.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		f.memory.Close()
		return fmt.Errorf("make a doorbell: eventfd: %w", err)
	}
	if err = f.give(f.bell); err != nil {
		f.memory.Close()
		return err
	}
	if f.uverbs, err = f.srv.cfg.Uverbs.Open(d.Name(), opener{f}, f.memory); err != nil {
		f.memory.Close()
		return err
	}
	f.polled, err = f.srv.cfg.Pollers.Add(f.user, poller.Source{
		File: f.uverbs, Bell: f.bell, Tell: f.memory.tell, Who: []any{"uid", f.client.UID, "pid", f.client.PID},
	})
	if err != nil {
		f.uverbs.Close()
	}
	return err
}

// Serve answers the client until it closes the connection, or sends what makes no sense: that is the error, and is nil at a proper end. It
// may sleep. Closing the connection ends it.
func (f *File) Serve(nc *net.UnixConn) error {
	if err := f.serve(nc); !closedByClient(err) {
		return err
	}
	return nil
}

// closedByClient reports whether the client has closed its end, with or without waiting for an answer, or Close was called.
func closedByClient(err error) bool {
	for _, e := range []error{io.EOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (f *File) serve(nc *net.UnixConn) error {
	c := devfile.Conn{UnixConn: nc, Rights: f.srv.cfg.Rights.Of(f.user)}
	if err := nc.SetWriteBuffer(sendBuffer); err != nil {
		return err
	}
	if err := f.greet(c); err != nil {
		return err
	}
	for {
		r, fds, err := c.Requested(sendTimeout)
		if err == nil {
			fds, err = f.accept(r, fds)
		}
		if err != nil {
			f.strays = fds
			return err
		}
		a := f.answer(r, fds)
		c.SetWriteDeadline(time.Now().Add(sendTimeout))
		if f.installed != nil {
			err = c.Answer(a, int(f.installed.Fd()))
			f.installed.Close()
			f.installed = nil
		} else {
			err = c.Answer(a)
		}
		if err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
}

// greet sends the descriptors of the file.
func (f *File) greet(c devfile.Conn) error {
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
	err := c.Answer(devfile.Answer{}, fds...)
	f.theirs.Close()
	f.theirs = nil
	if refused := (*quota.Error)(nil); errors.As(err, &refused) { // nothing was sent
		_ = c.Answer(failed(err))
	}
	return err
}

// accept looks at the descriptors that came with a request, and returns them with an error if they are not what it takes. The close of those
// that OpMemory brings waits for nobody.
func (f *File) accept(r devfile.Request, fds []int) (_ []int, err error) {
	switch {
	case r.Op != devfile.OpMemory && len(fds) > 0, r.Op == devfile.OpMemory && len(fds) != devfile.MemoryFiles:
		err = fmt.Errorf("%d descriptors came with request %d: %w", len(fds), r.Op, syscall.EINVAL)
	case r.Op == devfile.OpMemory:
		if err = umem.IsProcMem(fds[0]); err == nil {
			err = umem.IsProcMaps(fds[1])
		}
	}
	return fds, err
}

// Strays returns the descriptors that the client has sent where none belong. The caller closes them, after Close, and bounds how many it closes
// at a time: each close may take as long as the client likes.
func (f *File) Strays() []int { return f.strays }

// Close closes the file. It may sleep.
func (f *File) Close() {
	if f.uverbs != nil {
		f.polled.Stop()
		f.uverbs.Close()
	}
	f.closeCM()
	f.release()
}

// answer does what the client asks for.
func (f *File) answer(r devfile.Request, fds []int) (a devfile.Answer) {
	defer func() {
		if p := recover(); p != nil {
			err := fmt.Errorf("a command made the service panic: %v", p)
			f.srv.cfg.Log.Error(err.Error(), "uid", f.client.UID, "pid", f.client.PID, "stack", string(debug.Stack()))
			if f.uverbs != nil {
				f.uverbs.Fail(err)
			}
			a = failed(fmt.Errorf("the service has failed; see its log: %w", syscall.EIO))
		}
	}()
	n, err := f.do(r, fds)
	if err != nil {
		if f.installed != nil { // the client does not learn its number
			f.installed.Close()
			f.installed = nil
			delete(f.events, f.number)
		}
		return failed(err)
	}
	if f.installed != nil {
		return devfile.Answer{N: n, Number: f.number}
	}
	return devfile.Answer{N: n}
}

func failed(err error) devfile.Answer { return devfile.Answer{Errno: errno(err), Text: err.Error()} }

// do does what the client asks for, and closes the descriptors that came with it, which accept has seen.
//
//verbena:parses
func (f *File) do(r devfile.Request, fds []int) (n uint64, err error) {
	switch r.Op {
	case devfile.OpMemory:
		return 0, f.takeMemory(fds)
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
		return f.alloc(r.Addr, r.N)
	case devfile.OpForget:
		delete(f.events, uint32(r.N))
		return 0, nil
	}
	return 0, fmt.Errorf("request %d is not known: %w", r.Op, syscall.EINVAL)
}

// alloc makes memory that the client maps at an address.
func (f *File) alloc(addr, n uint64) (offset uint64, err error) {
	page := umem.PageSize
	switch {
	case n == 0, n%page != 0, addr%page != 0, n > 1<<62, addr+n < addr:
		return 0, fmt.Errorf("allocate %d bytes for address %#x: both must be multiples of %d: %w", n, addr, page, syscall.EINVAL)
	case f.space.count >= maxWindows:
		return 0, fmt.Errorf("allocate %d bytes: there are %d pieces, which is the limit; allocate larger ones: %w", n, maxWindows, syscall.ENOMEM)
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

// opener is the client as package uverbs knows who opened a file.
type opener struct{ f *File }

func (o opener) PID() int               { return o.f.client.PID }
func (o opener) Name() string           { return o.f.client.Name }
func (o opener) UID() int               { return o.f.client.UID }
func (o opener) User() *quota.User      { return o.f.user }
func (o opener) Account() *umem.Account { return o.f.acct.Account }

// caller is the client as it issues a command. (uverbs.Caller)
type caller struct{ f *File }

func (c caller) Space() umem.Space      { return &c.f.space }
func (c caller) Account() *umem.Account { return c.f.acct.Account }

// InstallFD keeps a duplicate for the answer to the command.
func (c caller) InstallFD(fd int, _ bool) (int, error) {
	f := c.f
	if f.installed != nil || len(f.events) >= maxEvents {
		return 0, fmt.Errorf("%d event files are open, which is the limit: %w", len(f.events), syscall.EMFILE)
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
	f.number = f.unusedNumber()
	f.events[f.number] = inode{st.Dev, st.Ino}
	return int(f.number), nil
}

// unusedNumber returns a number that no event file has. Numbers are descriptors for commands, which are not negative
// as int32.
func (f *File) unusedNumber() uint32 {
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

func (c caller) SameFile(fd int) (dev, ino uint64, err error) {
	i, ok := c.f.events[uint32(fd)]
	if !ok || fd < 0 {
		return 0, 0, syscall.EBADF
	}
	return i.dev, i.ino, nil
}

// memory is what a client maps. (uverbs.Memory)
type memory struct {
	queues, buffers *shm.File

	mu      sync.Mutex
	control *atomic.Uint32 // nil: closed
	gone    bool
}

// Alloc implements uverbs.Memory.
func (m *memory) Alloc(size int) (ib.Shared, error) {
	s, err := m.queues.Alloc(size)
	return ib.Shared(s), err
}

// Depart implements uverbs.Departer.
func (m *memory) Depart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone = true
	if m.control != nil {
		m.control.Store(devfile.Gone)
	}
}

// tell tells the client whether the poller is awake.
func (m *memory) tell(awake bool) {
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

// Close implements uverbs.Memory: no driver touches the memory any more.
func (m *memory) Close() error {
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
