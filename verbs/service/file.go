package service

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/driver/orphan"
	"verbena/internal/ctl"
	"verbena/internal/ctl/devfile"
	"verbena/internal/shm"
	"verbena/verbs/internal/transport"
)

// errServiceEnded is the error of calls on a device after the end of its service.
var errServiceEnded = fmt.Errorf("the service has ended or has closed the connection, see its log: %w", syscall.EIO)

// errDeviceRemoved is the error of a post to a removed device.
var errDeviceRemoved = fmt.Errorf("the device has been removed: %w", syscall.EIO)

// deviceFile is an open device. (transport.Transport)
type deviceFile struct {
	*session
	queues   *os.File
	doorbell int           // an eventfd
	watched  chan struct{} // closed when watch has returned

	mu      sync.RWMutex // read-locked while the file is in use, write-locked to close the file
	closed  bool
	control *atomic.Uint32 // the control word of package devfile
	page    []byte         // the page that contains control

	events struct {
		sync.Mutex
		byNumber map[uint32]int // received descriptors that Events has not returned yet
	}
	memory sync.Mutex // held while the service is given access to the memory of the program
	handed bool       // the service has access to the memory; under memory
}

func openFile(loc ctl.Location, name string) (_ transport.Transport, err error) {
	x, _, fds, err := dialFile(loc, name, devfile.Opened-devfile.QueueFile)
	if err != nil {
		return nil, err
	}
	f := &deviceFile{session: x, watched: make(chan struct{})}
	f.queues, f.doorbell = os.NewFile(uintptr(fds[0]), "queues"), fds[devfile.Doorbell-devfile.QueueFile]
	f.events.byNumber = map[uint32]int{}
	if f.page, err = unix.Mmap(int(x.buffers.file.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED); err != nil {
		f.queues.Close()
		unix.Close(f.doorbell)
		x.endSession()
		return nil, fmt.Errorf("open %s: map the control page: %w", name, err)
	}
	f.control = shm.FirstWord(f.page)
	go f.watchService()
	return f, nil
}

// watchService waits until the service closes the signal. watchService then completes outstanding requests, because the
// service no longer can.
func (f *deviceFile) watchService() {
	defer close(f.watched)
	var b [64]byte
	var err error
	for err == nil {
		_, err = f.signal.Read(b[:])
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		return // closed by Close
	}
	f.dead.Store(true)
	f.mu.RLock()
	defer f.mu.RUnlock()
	if !f.closed {
		_ = orphan.Flush(f.queues)
	}
}

// beginUse begins a use of the file. f.mu.RUnlock ends the use.
func (f *deviceFile) beginUse() error {
	f.mu.RLock()
	switch {
	case f.closed:
		f.mu.RUnlock()
		return transport.ErrClosed
	case f.dead.Load():
		f.mu.RUnlock()
		return errServiceEnded
	}
	return nil
}

func (f *deviceFile) Write(s *transport.Scratch, n int, mem []byte) error {
	if err := f.beginUse(); err != nil {
		return err
	}
	defer f.mu.RUnlock()
	if len(mem) > 0 && !f.buffers.contains(mem) {
		if err := f.shareMemory(); err != nil {
			return err
		}
	}
	return f.sendCommand(devfile.Request{Op: devfile.OpWrite, Addr: s.Addr, N: uint64(n)})
}

func (f *deviceFile) Ioctl(s *transport.Scratch) error {
	if err := f.beginUse(); err != nil {
		return err
	}
	defer f.mu.RUnlock()
	return f.sendCommand(devfile.Request{Op: devfile.OpIoctl, Addr: s.Addr})
}

// sendCommand sends a request. sendCommand stores the descriptor that arrives with the reply for Events.
func (f *deviceFile) sendCommand(r devfile.Request) error {
	a, fd, err := f.sendRequest(r)
	if fd >= 0 {
		f.events.Lock()
		defer f.events.Unlock()
		f.events.byNumber[a.Number] = fd
	}
	return err
}

// shareMemory gives the service access to the memory of this process, once.
func (f *deviceFile) shareMemory() error {
	f.memory.Lock()
	defer f.memory.Unlock()
	if f.handed {
		return nil
	}
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("give the service access to memory that is not a buffer of the device: %w", err)
	}
	defer mem.Close()
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("give the service access to memory that is not a buffer of the device: %w", err)
	}
	defer maps.Close()
	if _, _, err := f.sendRequest(devfile.Request{Op: devfile.OpMemory}, int(mem.Fd()), int(maps.Fd())); err != nil {
		return err
	}
	f.handed = true
	return nil
}

// Doorbell makes a system call only while the service sleeps.
func (f *deviceFile) Doorbell(uint32) error {
	if err := f.beginUse(); err != nil {
		return err
	}
	defer f.mu.RUnlock()
	switch f.control.Load() {
	case devfile.Awake:
	case devfile.Gone:
		return errDeviceRemoved
	default:
		writeDoorbell(f.doorbell)
	}
	return nil
}

func (f *deviceFile) Map(offset uint64, size int) ([]byte, error) {
	if err := f.beginUse(); err != nil {
		return nil, err
	}
	defer f.mu.RUnlock()
	b, err := unix.Mmap(int(f.queues.Fd()), int64(offset), size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map a queue of %d bytes: %w", size, err)
	}
	return b, nil
}

func (f *deviceFile) Unmap(b []byte) error { return unix.Munmap(b) }

func (f *deviceFile) Alloc(size int) (transport.Memory, error) {
	if err := f.beginUse(); err != nil {
		return transport.Memory{}, err
	}
	defer f.mu.RUnlock()
	return f.buffers.allocMemory(size)
}

func (f *deviceFile) Events(number uint32) (*transport.Events, error) {
	f.events.Lock()
	fd, ok := f.events.byNumber[number]
	delete(f.events.byNumber, number)
	f.events.Unlock()
	if !ok {
		return nil, fmt.Errorf("the reply contains no event file: %w", syscall.EPROTO)
	}
	e, err := transport.EventsOf(fd, number)
	if err == nil {
		e.OnClose(func() { _, _, _ = f.sendRequest(devfile.Request{Op: devfile.OpForget, N: uint64(number)}) })
	}
	return e, err
}

func (f *deviceFile) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil
	}
	f.closed = true
	err := unix.Munmap(f.page)
	f.control, f.page = nil, nil
	f.mu.Unlock()
	f.session.endSession()
	<-f.watched
	f.queues.Close()
	unix.Close(f.doorbell)
	f.events.Lock()
	defer f.events.Unlock()
	for _, fd := range f.events.byNumber {
		unix.Close(fd)
	}
	clear(f.events.byNumber)
	return err
}
