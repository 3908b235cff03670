package uverbs

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/internal/quota"
	"verbena/internal/states"
	"verbena/umem"
)

// Process is who opened a file. It may be an ib.LibraryFaulter.
type Process interface {
	PID() int
	Name() string
	UID() int
	// User is whom what the file holds is charged to; nil for nobody.
	User() *quota.User
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

// Departer is implemented by a Memory whose program posts without a call that could fail.
type Departer interface {
	// Depart is called once the device has begun to go, before anything is completed with a flush error for that: what the program posts
	// afterwards may never be completed. It may sleep: the end of this context alone waits for it, and no longer than ServerOptions.Grace.
	Depart()
}

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
	user *quota.User
	mem  Memory

	// life is held for reading while a command is in the midlayer, and for writing to end the context.
	//verbena:program the commands of one context, and its end, which gives up after a time
	life  sync.RWMutex
	state atomic.Int32           // states.Context
	end   atomic.Pointer[ending] // not nil: the context is being ended, or has been
	ends  sync.Mutex             // held while a thread decides to end the context
	open  sync.Mutex             // serialises GET_CONTEXT
	stop  func()                 // ends the device's events; nil: there is no context in the driver; under open or life

	objects table
	events  eventFiles

	bells doorbells

	parting atomic.Bool // the device goes; queues stay as they are

	byIoctl atomic.Bool // commands come by ioctl
	byWrite atomic.Bool // commands other than doorbells come by write
}

func newFile(d *Device, p Process, m Memory) *File {
	f := &File{dev: d, proc: p, user: p.User(), mem: m}
	f.events.user, f.events.kept, f.events.gate = f.user, d.srv.opts.Kept.Of(f.user), d.srv.pipeGate(f.user)
	return f
}

// quotaKinds are how objects are charged.
var quotaKinds = [numKinds]quota.Kind{
	kindQP: quota.QPs, kindAH: quota.AHs, kindMW: quota.MWs, kindMR: quota.MRs, kindSRQ: quota.SRQs, kindCQ: quota.CQs,
	kindXRCD: quota.XRCDs, kindPD: quota.PDs,
}

// charged makes an object that is charged to the user until it is destroyed.
func (f *File) charged(k kind, create func() error) error {
	if err := f.user.Take(quotaKinds[k], 1); err != nil {
		return err
	}
	err := create()
	if err != nil {
		f.user.Give(quotaKinds[k], 1)
	}
	return err
}

// isGone notes that an object has been destroyed.
func (f *File) isGone(o *object) {
	o.gone = true
	f.user.Give(quotaKinds[o.res.kind()], 1)
}

// Device is the device that the file was opened on.
func (f *File) Device() *Device { return f.dev }

// now is where the file stands in its life; see the package comment.
func (f *File) now() states.Context { return states.Context(f.state.Load()) }

// context is nil while objects can be made. (ib_uverbs_get_ucontext_file)
//
//verbena:held life
func (f *File) context() error {
	switch s := f.now(); {
	case s.Makes():
		return nil
	case s == states.ContextZombie:
		return errGone
	case s == states.ContextClosed:
		return errClosed
	}
	return errNoContext
}

// openContext makes the context, which is live when commit is called. (ib_init_ucontext)
//
//verbena:held life
func (f *File) openContext(u *ib.Udata) error {
	f.open.Lock()
	defer f.open.Unlock()
	switch f.now() {
	case states.ContextFresh:
	case states.ContextZombie:
		return errGone
	case states.ContextClosed:
		return errClosed
	default:
		return fmt.Errorf("the file has a context already: %w", syscall.EINVAL)
	}
	if err := f.dev.usable(); err != nil {
		return err
	}
	if err := allocContext(f.dev.ib, u); err != nil {
		return err
	}
	f.stop = f.dev.ib.OnEvent(func(e ib.Event) { f.events.device(e.Port, e.Type) })
	if !states.Step(&f.state, states.Context.Open) {
		f.dealloc() // the device has gone meanwhile
		return errGone
	}
	return nil
}

// commitContext and abortContext end openContext. Called without life.
func (f *File) commitContext() { states.Step(&f.state, states.Context.Commit) }

func (f *File) abortContext() {
	if f.enter() != nil {
		return // who ends the context ends it in the driver too
	}
	defer f.life.RUnlock()
	f.open.Lock()
	defer f.open.Unlock()
	if states.Step(&f.state, states.Context.Abort) {
		f.dealloc()
	}
}

// dealloc ends the context in the driver, if there is one. Its objects are gone.
func (f *File) dealloc() {
	if f.stop == nil {
		return
	}
	f.stop()
	f.stop = nil
	deallocContext(f.dev.ib, userContext{f})
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

// LibraryFault implements ib.LibraryFaulter.
func (c userContext) LibraryFault(fault ib.LibraryFault) {
	if l, ok := c.f.proc.(ib.LibraryFaulter); ok {
		l.LibraryFault(fault)
	}
}

// abortObject destroys an object that could not be announced.
func (f *File) abortObject(o *object) {
	if f.enter() != nil {
		return // who ends the context destroys it
	}
	defer f.life.RUnlock()
	f.destroyNow(o)
	f.objects.remove(o)
}

// destroyObject destroys the object of a handle; also in a zombie, where it has no more to do than to take the handle
// away. (uobj_get_destroy)
//
//verbena:held life
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
		f.isGone(o)
	}
	f.objects.remove(o)
	return o.res, nil
}

// destroyNow destroys an object that cannot be left behind.
func (f *File) destroyNow(o *object) {
	if o.gone {
		return
	}
	if qp, ok := o.res.(*qpObject); ok {
		qp.groups.leaveAll(qp.QP, f.user)
	}
	defer f.isGone(o)
	if err := o.res.destroy(); err != nil {
		f.logf("cannot destroy %v with handle %d: %v", o.res.kind(), o.handle, err)
	}
}

// leave takes everything off the device, in the order of dependency. (uverbs_destroy_ufile_hw)
//
//verbena:held life
func (f *File) leave() {
	if f.stop == nil {
		return
	}
	var objects [numKinds][]*object
	for o := range f.objects.all() {
		objects[o.res.kind()] = append(objects[o.res.kind()], o)
	}
	for _, ofKind := range objects {
		f.destroyEach(ofKind)
	}
	f.dealloc()
}

// destroyPatience is how long destroying one object may take before the next is not kept waiting.
const destroyPatience = 20 * time.Millisecond

// destroyEach destroys objects in their order, and waits until all are destroyed. One that takes long, since a call on it is
// stopped in the memory of a process, is overtaken by the next.
func (f *File) destroyEach(objects []*object) {
	if len(objects) == 0 {
		return
	}
	var next atomic.Int64
	destroyed := make(chan struct{}, len(objects))
	work := func() {
		for {
			i := next.Add(1) - 1
			if i >= int64(len(objects)) {
				return
			}
			f.destroyNow(objects[i])
			destroyed <- struct{}{}
		}
	}
	go work()
	t := time.NewTicker(destroyPatience)
	defer t.Stop()
	for n, last := 0, int64(0); n < len(objects); {
		select {
		case <-destroyed:
			n++
		case <-t.C:
			at := next.Load()
			if at == last && at < int64(len(objects)) {
				go work()
			}
			last = at
		}
	}
}

// flush completes what the program waits for with a flush error: it may poll its queues, which stay mapped, and make no
// call that would tell it that the device has gone.
//
//verbena:held life
func (f *File) flush() {
	if f.stop == nil {
		return
	}
	f.bells.silence() // what rings from now on is refused, and need not be completed
	if disassociateContext(f.dev.ib, userContext{f}) {
		return
	}
	for o := range f.objects.all() {
		if qp, ok := o.res.(*qpObject); ok && !o.gone {
			// A failure has the same cause, and the destruction that follows reports it.
			_ = qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)
		}
	}
}

// ending is the end of a context: of its objects, or of the file.
type ending struct {
	f      *File
	done   chan struct{} // closed when nothing of it is on the device
	gaveUp chan struct{} // closed when that has taken too long to wait for
	once   sync.Once     // closes gaveUp
}

// enter begins a command: life is held for reading when it returns nil. While the context is being ended it waits for that;
// EIO when it takes too long.
func (f *File) enter() error {
	if f.life.TryRLock() {
		return nil
	}
	if e := f.end.Load(); e != nil {
		select {
		case <-e.done:
		case <-e.gaveUp:
			return errGone
		}
	}
	f.life.RLock()
	return nil
}

// begin has a goroutine end the context, by f with life held for writing.
func (f *File) begin(end func()) *ending {
	e := &ending{f: f, done: make(chan struct{}), gaveUp: make(chan struct{})}
	f.end.Store(e) // before the commands have to wait for life
	go func() {
		defer close(e.done)
		f.life.Lock()
		defer f.life.Unlock()
		end()
	}()
	return e
}

// wait waits until the end has come, or else until expired, and reports which of them.
func (e *ending) wait(expired <-chan struct{}) bool {
	select {
	case <-e.done:
		return true
	default:
	}
	select {
	case <-e.done:
		return true
	case <-expired:
		e.once.Do(func() { close(e.gaveUp) })
		return false
	}
}

// expiry returns a channel that is closed when the grace for calls that are stopped is over, unless stop is called before.
func (s *Server) expiry() (expired <-chan struct{}, stop func() bool) {
	c := make(chan struct{})
	return c, time.AfterFunc(s.opts.Grace, func() { close(c) }).Stop
}

// disassociate begins to end the context because the device goes, unless Close has begun to.
func (f *File) disassociate() *ending {
	f.ends.Lock()
	defer f.ends.Unlock()
	if !states.Step(&f.state, states.Context.Disassociate) {
		return f.end.Load()
	}
	return f.begin(func() {
		if d, ok := f.mem.(Departer); ok {
			d.Depart()
		}
		f.flush()
		f.parting.Store(true)
		f.leave()
		f.events.end()
	})
}

// abandon leaves a context behind whose end takes too long: its objects count no more as the device's, and its program hears
// what others hear. They are destroyed when the calls on them return.
func (f *File) abandon() {
	n := 0
	for o := range f.objects.all() {
		o.res.Abandon()
		n++
	}
	f.logf("left behind with %d objects: a call of it has been stopped in the memory of a process for %v", n, f.dev.srv.opts.Grace)
	f.events.end()
}

// Fail is for a caller that has recovered from a panic of one of the file's methods: what the device's locks and tables are
// like is not known, and it is reset. It may not sleep.
func (f *File) Fail(why error) { user.Fail(f.dev.ib, why) }

func (f *File) logf(format string, args ...any) {
	f.dev.srv.opts.Log.Warn(fmt.Sprintf(format, args...),
		"dev", f.dev.Name(), "uid", f.proc.UID(), "pid", f.proc.PID(), "name", f.proc.Name())
}

// Close is the last close of the file: it waits for the commands that are in the midlayer, destroys everything, and
// closes the Memory. What is stopped in the memory of a process it waits for no longer than ServerOptions.Grace; the rest
// follows when the process answers, or has ended. It may sleep. (ib_uverbs_close)
func (f *File) Close() {
	f.ends.Lock()
	if !states.Step(&f.state, states.Context.Close) {
		f.ends.Unlock()
		return
	}
	e := f.begin(func() {
		f.leave()
		f.dev.detach(f)
		f.user.Give(quota.Contexts, 1)
		f.events.close()
		if err := f.mem.Close(); err != nil {
			f.logf("close shared memory: %v", err)
		}
	})
	f.ends.Unlock()
	expired, stop := f.dev.srv.expiry()
	defer stop()
	if !e.wait(expired) {
		f.logf("closed, but a call of it has been stopped in the memory of a process for %v", f.dev.srv.opts.Grace)
	}
}
