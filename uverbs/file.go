package uverbs

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/umem"
	"verbena/uverbs/abi"
)

// Process is who opened a file.
type Process interface {
	PID() int
	Name() string
	UID() int
	// Account is what pages that it registers are charged to; nil for nobody.
	Account() *umem.Account
}

// Caller is who issues one command: usually the process that opened the file, but also a child that inherited it, or
// whoever was sent its descriptor. Regions are registered from its memory, and charged to it: to have a file of another's
// opens no way into the other's memory.
type Caller interface {
	// Space is where the addresses in the command point. Regions use it as long as they exist.
	Space() umem.Space
	// Account is what registered pages are charged to; nil for nobody.
	Account() *umem.Account
	// InstallFD duplicates a descriptor of the service into the caller and returns its number there. It may sleep.
	InstallFD(fd int, cloexec bool) (int, error)
	// SameFile identifies the file that the caller has under a descriptor, by device and inode number as fstat(2)
	// tells them: it finds a completion channel again. Pipes have inode numbers of their own while they exist. It
	// may sleep.
	SameFile(fd int) (dev, ino uint64, err error)
}

// Memory is where the program's queues are made: a file that the program maps.
type Memory interface {
	Alloc(size int) (ib.Shared, error)
	Close() error
}

// contextState is where a file stands in its life; see the package comment.
//
//	contextFresh -> contextOpening -> contextLive -> contextZombie -> contextClosed
//	     ^                |
//	     +-- no answer ---+            (from any state: contextZombie, contextClosed)
type contextState = int32

const (
	contextFresh   contextState = iota
	contextOpening              // GET_CONTEXT has not been answered yet
	contextLive
	contextZombie
	contextClosed
)

var (
	errGone      = fmt.Errorf("the device is gone: %w", syscall.EIO)
	errNoContext = fmt.Errorf("no context: GET_CONTEXT comes first: %w", syscall.EINVAL)
)

// File is an open device file, the user's context. (struct ib_uverbs_file, struct ib_ucontext)
//
// Its methods are safe for concurrent use.
type File struct {
	dev  *Device
	proc Process
	mem  Memory

	// life is held for reading while a command is in the midlayer, and for writing to end the context.
	life  sync.RWMutex
	state atomic.Int32 // contextState
	open  sync.Mutex   // serialises GET_CONTEXT
	stop  func()       // ends the device's events; while there is a context

	objects table
	events  eventFiles

	bells doorbells

	parting atomic.Bool // the device goes; queues stay as they are

	byIoctl atomic.Bool // commands come by ioctl
	byWrite atomic.Bool // commands other than doorbells come by write
}

func newFile(d *Device, p Process, m Memory) *File { return &File{dev: d, proc: p, mem: m} }

// Device is the device that the file was opened on.
func (f *File) Device() *Device { return f.dev }

// context is nil while objects can be made. Called with life held. (ib_uverbs_get_ucontext_file)
func (f *File) context() error {
	switch f.state.Load() {
	case contextLive:
		return nil
	case contextZombie:
		return errGone
	case contextClosed:
		return errClosed
	}
	return errNoContext
}

// openContext makes the context, which is live when commit is called. Called with life held for reading.
// (ib_init_ucontext)
func (f *File) openContext(u *ib.Udata) error {
	f.open.Lock()
	defer f.open.Unlock()
	switch f.state.Load() {
	case contextFresh:
	case contextZombie:
		return errGone
	case contextClosed:
		return errClosed
	default:
		return fmt.Errorf("the file has a context already: %w", syscall.EINVAL)
	}
	if err := f.dev.usable(); err != nil {
		return err
	}
	if d, ok := f.dev.ib.Driver().(ib.UserContexter); ok {
		if err := d.AllocUserContext(u); err != nil {
			return err
		}
	}
	f.stop = f.dev.ib.OnEvent(func(e ib.Event) { f.events.device(e.Port, abi.EventType(e.Type)) })
	f.state.Store(contextOpening)
	return nil
}

// commitContext and abortContext end openContext. Called without life.
func (f *File) commitContext() { f.state.CompareAndSwap(contextOpening, contextLive) }

func (f *File) abortContext() {
	f.life.RLock()
	defer f.life.RUnlock()
	f.open.Lock()
	defer f.open.Unlock()
	if f.state.Load() == contextOpening {
		f.dealloc()
		f.state.Store(contextFresh)
	}
}

// dealloc ends the context in the driver. Its objects are gone.
func (f *File) dealloc() {
	f.stop()
	if d, ok := f.dev.ib.Driver().(ib.UserContexter); ok {
		d.DeallocUserContext(userContext{f})
	}
}

// userContext is the file as the driver sees it.
type userContext struct{ f *File }

// AllocShared implements ib.UserContext. What a zombie's queues hold stays until the last close: the program may still
// have to find the last completions there.
func (c userContext) AllocShared(size int) (ib.Shared, error) {
	m, err := c.f.mem.Alloc(size)
	if err != nil {
		return m, err
	}
	free := m.Free
	m.Free = func() {
		if !c.f.parting.Load() {
			free()
		}
	}
	return m, nil
}

// abortObject destroys an object that could not be announced.
func (f *File) abortObject(o *object) {
	f.life.RLock()
	defer f.life.RUnlock()
	f.destroyNow(o)
	f.objects.remove(o)
}

// destroyObject destroys the object of a handle; also in a zombie, where it has no more to do than to take the
// handle away. Called with life held for reading. (uobj_get_destroy)
func (f *File) destroyObject(handle uint32, k kind) (resource, error) {
	o, err := f.objects.take(handle, k)
	if err != nil {
		return nil, err
	}
	if !o.gone {
		if err := o.res.destroy(); err != nil {
			o.publish()
			return nil, err
		}
		o.gone = true
	}
	f.objects.remove(o)
	return o.res, nil
}

// destroyNow destroys an object that cannot be left behind.
func (f *File) destroyNow(o *object) {
	if o.gone {
		return
	}
	o.gone = true
	if qp, ok := o.res.(*qpObject); ok {
		qp.groups.leaveAll(qp.QP)
	}
	if err := o.res.destroy(); err != nil {
		f.dev.srv.opts.Logf("%s: process %d (%s): cannot destroy %v with handle %d: %v",
			f.dev.Name(), f.proc.PID(), f.proc.Name(), o.res.kind(), o.handle, err)
	}
}

// leave takes everything off the device, in the order of dependency. Called with life held for writing.
// (uverbs_destroy_ufile_hw)
func (f *File) leave() {
	if s := f.state.Load(); s != contextOpening && s != contextLive {
		return
	}
	var objects [numKinds][]*object
	for o := range f.objects.all() {
		objects[o.res.kind()] = append(objects[o.res.kind()], o)
	}
	for _, ofKind := range objects {
		for _, o := range ofKind {
			f.destroyNow(o)
		}
	}
	f.dealloc()
}

// flush completes what the program waits for with a flush error: it may poll its queues, which stay mapped, and make
// no call that would tell it that the device has gone. Called with life held for writing.
func (f *File) flush() {
	if s := f.state.Load(); s != contextOpening && s != contextLive {
		return
	}
	f.bells.silence() // what rings from now on is refused, and need not be completed
	if d, ok := f.dev.ib.Driver().(ib.Disassociator); ok {
		d.Disassociate(userContext{f})
		return
	}
	for o := range f.objects.all() {
		if qp, ok := o.res.(*qpObject); ok && !o.gone {
			// A failure has the same cause, and the destruction that follows reports it.
			_ = qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState, nil)
		}
	}
}

// disassociate ends the context because the device goes.
func (f *File) disassociate() {
	f.life.Lock()
	defer f.life.Unlock()
	if f.state.Load() == contextClosed {
		return
	}
	f.flush()
	f.parting.Store(true)
	f.leave()
	f.state.Store(contextZombie)
	f.events.end()
}

// Close is the last close of the file: it waits for the commands that are in the midlayer, destroys everything, and
// closes the Memory. It may sleep. (ib_uverbs_close)
func (f *File) Close() {
	f.life.Lock()
	if f.state.Load() == contextClosed {
		f.life.Unlock()
		return
	}
	f.leave()
	f.state.Store(contextClosed)
	f.life.Unlock()
	f.dev.detach(f)
	f.events.close()
	if err := f.mem.Close(); err != nil {
		f.dev.srv.opts.Logf("%s: process %d (%s): close shared memory: %v", f.dev.Name(), f.proc.PID(), f.proc.Name(), err)
	}
}
