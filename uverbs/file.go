package uverbs

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/weak"
	"verbena/internal/quota"
	"verbena/internal/states"
	"verbena/umem"
)

// Process is the process that opened a file. A Process may implement ib.LibraryFaulter, weak.User, Checked and
// Hinter.
type Process interface {
	PID() int
	Name() string
	UID() int
	// User is charged for the objects of the file. nil means no charge.
	User() *quota.User
	// Account is charged for registered pages. nil means no charge.
	Account() *umem.Account
}

// Caller is the issuer of one command. The caller is usually the process that opened the file. The caller may also be a
// child that inherited the file, or a process that received the descriptor. Regions are registered from the memory of
// the Caller and charged to the Caller. A descriptor of another process's file therefore does not give access to the
// memory of that process.
type Caller interface {
	// Space is the address space of addresses in the command. Regions use the address space until they are
	// deregistered.
	Space() umem.Space
	// Account is charged for registered pages. nil means no charge.
	Account() *umem.Account
	// InstallFD duplicates a descriptor of the service into the caller. InstallFD returns the number of the duplicate
	// in the caller. InstallFD may sleep.
	InstallFD(fd int, cloexec bool) (int, error)
	// FileInode returns the identity of the file behind a descriptor of the caller: device and inode number, as reported
	// by fstat(2). The identity is used to find completion channels, because each existing pipe has its own inode
	// number. FileInode may sleep.
	FileInode(fd int) (dev, ino uint64, err error)
}

// Refusal is a command of a device file that fails. The servers of device files report it.
type Refusal struct {
	User    quota.ID // the charged user
	PID     int      // process that opened the file
	Program string   // name of that process, or ""
	Session string   // name of its session, or ""
	Device  string   // name of the file, such as uverbs0
	Err     error    // begins with the name of the command
}

// Memory is a file that the program maps. The file contains the program's queues.
type Memory interface {
	Alloc(size int) (ib.Shared, error)
	Close() error
}

// Departer is implemented by a Memory for programs that post without a call. Such a post cannot return an error.
type Departer interface {
	// Depart is called when the removal of the device has begun, before this removal completes any request with a flush
	// error. Requests that the program posts after Depart may never complete. Depart may sleep. Only the end of this
	// context waits for Depart, at most for ServerOptions.Grace.
	Depart()
}

var (
	errGone      = fmt.Errorf("the device has been removed: %w", syscall.EIO)
	errNoContext = fmt.Errorf("the file has no context, GET_CONTEXT must be the first command: %w", syscall.EINVAL)
)

// File is an open device file, the user context. (struct ib_uverbs_file, struct ib_ucontext)
//
// The methods of a File are safe for concurrent use.
type File struct {
	dev  *Device
	proc Process
	user *quota.User
	mem  Memory

	// life is read-locked while a command is in the midlayer, and write-locked to end the context.
	//verbena:program the commands of one context, and its end, which gives up after a time
	life  sync.RWMutex
	state atomic.Int32               // states.Context
	end   atomic.Pointer[contextEnd] // not nil if the end of the context has begun
	endMu sync.Mutex                 // held while a thread decides whether to end the context
	open  sync.Mutex                 // serialises GET_CONTEXT
	stop  func()                     // stops the device's events; nil if the driver has no context; under open or life

	objects objectTable
	events  eventFiles

	doorbells doorbellTable

	parting atomic.Bool // the device is being removed, and queues must not be changed

	byIoctl atomic.Bool // commands are sent by ioctl
	byWrite atomic.Bool // commands other than doorbells are sent by write
}

func newFile(d *Device, p Process, m Memory) *File {
	f := &File{dev: d, proc: p, user: p.User(), mem: m}
	f.events.proc = p
	f.events.user, f.events.kept, f.events.gate = f.user, d.srv.opts.Kept.ObjectsOf(f.user), d.srv.newUserPipeGate(f.user)
	return f
}

// quotaKinds maps kinds of objects to quota kinds.
var quotaKinds = [numKinds]quota.ResourceKind{
	kindQP: quota.QPs, kindAH: quota.AHs, kindMW: quota.MWs, kindMR: quota.MRs, kindSRQ: quota.SRQs, kindCQ: quota.CQs,
	kindXRCD: quota.XRCDs, kindPD: quota.PDs,
}

// createChargedObject creates an object. The object is charged to the user until it is destroyed.
func (f *File) createChargedObject(k objectKind, create func() error) error {
	if err := f.user.Charge(quotaKinds[k], 1); err != nil {
		return err
	}
	err := create()
	if err != nil {
		f.user.Release(quotaKinds[k], 1)
	}
	return err
}

// recordDestroyedObject records that an object has been destroyed.
func (f *File) recordDestroyedObject(o *object) {
	o.gone = true
	f.user.Release(quotaKinds[o.res.kind()], 1)
}

// Device returns the device on which the file was opened.
func (f *File) Device() *Device { return f.dev }

// contextState returns the state of the file; see the package comment.
func (f *File) contextState() states.Context { return states.Context(f.state.Load()) }

// checkContext returns nil while objects can be created. (ib_uverbs_get_ucontext_file)
//
//verbena:held life
func (f *File) checkContext() error {
	switch s := f.contextState(); {
	case s.CanCreate():
		return nil
	case s == states.ContextZombie:
		return errGone
	case s == states.ContextClosed:
		return errFileClosed
	}
	return errNoContext
}

// openContext creates the context. commitContext makes the context live. (ib_init_ucontext)
//
//verbena:held life
func (f *File) openContext(u *ib.Udata) error {
	f.open.Lock()
	defer f.open.Unlock()
	switch f.contextState() {
	case states.ContextFresh:
	case states.ContextZombie:
		return errGone
	case states.ContextClosed:
		return errFileClosed
	default:
		return fmt.Errorf("the file already has a context: %w", syscall.EINVAL)
	}
	if err := f.dev.checkNotInError(); err != nil {
		return err
	}
	if err := allocContext(f.dev.ib, u); err != nil {
		return err
	}
	f.stop = f.dev.ib.OnEvent(func(e ib.Event) { f.events.raiseDeviceEvent(e.Port, e.Type) })
	if !states.ApplyTransition(&f.state, states.Context.Open) {
		f.endDriverContext() // the device has been removed in the meantime
		return errGone
	}
	return nil
}

// commitContext and abortContext complete openContext. Both are called without the lock life.
func (f *File) commitContext() { states.ApplyTransition(&f.state, states.Context.Commit) }

func (f *File) abortContext() {
	if f.beginCommand() != nil {
		return // the thread that ends the context also ends it in the driver
	}
	defer f.life.RUnlock()
	f.open.Lock()
	defer f.open.Unlock()
	if states.ApplyTransition(&f.state, states.Context.Abort) {
		f.endDriverContext()
	}
}

// endDriverContext ends the context in the driver, if it exists in the driver. All objects of the context must have
// been destroyed.
func (f *File) endDriverContext() {
	if f.stop == nil {
		return
	}
	f.stop()
	f.stop = nil
	deallocContext(f.dev.ib, userContext{f})
}

// userContext is the driver's interface to the file.
type userContext struct{ f *File }

// ProcessOf returns the process that opened the file of a context of this package. ending is set while the file is
// being closed, but not while the device is being removed. ProcessOf may not sleep.
func ProcessOf(c ib.UserContext) (p Process, ending, ok bool) {
	u, ok := c.(userContext)
	if !ok {
		return nil, false, false
	}
	return u.f.proc, u.f.end.Load() != nil && !u.f.parting.Load(), true
}

// AllocShared implements ib.UserContext. The queues of a zombie remain charged until the last close, because the
// program may still poll the last completions.
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

// WeakConfig implements weak.User.
func (c userContext) WeakConfig() *weak.Config {
	if w, ok := c.f.proc.(weak.User); ok {
		return w.WeakConfig()
	}
	return nil
}

// Checked is implemented by a Process that may ask for checks of its use of verbs.
type Checked interface {
	// CheckConfig returns the settings, or nil. CheckConfig may not sleep.
	CheckConfig() *check.ProgramConfig
}

// CheckConfig implements check.User.
func (c userContext) CheckConfig() *check.ProgramConfig {
	if x, ok := c.f.proc.(Checked); ok {
		return x.CheckConfig()
	}
	return nil
}

// Owner implements ib.OwnedContext.
func (c userContext) Owner() any { return c.f.proc.User().ID() }

// IsEnding implements check.User.
func (c userContext) IsEnding() bool { return c.f.end.Load() != nil }

// LibraryFault implements ib.LibraryFaulter.
func (c userContext) LibraryFault(fault ib.LibraryFault) {
	if l, ok := c.f.proc.(ib.LibraryFaulter); ok {
		l.LibraryFault(fault)
	}
}

// destroyUndeliveredObject destroys an object after the delivery of its response has failed.
func (f *File) destroyUndeliveredObject(o *object) {
	if f.beginCommand() != nil {
		return // the thread that ends the context destroys the object
	}
	defer f.life.RUnlock()
	f.destroyAndLog(o)
	f.objects.remove(o)
}

// destroyObject destroys the object of a handle. In a zombie it only removes the handle. (uobj_get_destroy)
//
//verbena:held life
func (f *File) destroyObject(handle uint32, k objectKind) (resource, error) {
	o, err := f.objects.takeForDestroy(handle, k)
	if err != nil {
		return nil, err
	}
	if !o.gone {
		if err := o.res.destroy(); err != nil {
			o.publish()
			return nil, err
		}
		f.recordDestroyedObject(o)
	}
	f.objects.remove(o)
	return o.res, nil
}

// destroyAndLog destroys an object and logs a failure.
func (f *File) destroyAndLog(o *object) {
	if o.gone {
		return
	}
	if qp, ok := o.res.(*qpObject); ok {
		qp.groups.leaveAll(qp.QP, f.user)
	}
	defer f.recordDestroyedObject(o)
	if err := o.res.destroy(); err != nil {
		f.logf("cannot destroy %v with handle %d: %v", o.res.kind(), o.handle, err)
	}
}

// destroyAllObjects destroys all objects on the device, in dependency order. (uverbs_destroy_ufile_hw)
//
//verbena:held life
func (f *File) destroyAllObjects() {
	if f.stop == nil {
		return
	}
	var objects [numKinds][]*object
	for o := range f.objects.all() {
		objects[o.res.kind()] = append(objects[o.res.kind()], o)
	}
	for _, ofKind := range objects {
		f.destroyInOrder(ofKind)
	}
	f.endDriverContext()
}

// destroyTimeout is the maximum wait for the destruction of one object before the next destruction starts.
const destroyTimeout = 20 * time.Millisecond

// destroyInOrder destroys objects in order, and waits for all destructions. If a destruction takes long because a call
// on the object is blocked on the memory of a process, the next destruction starts early.
func (f *File) destroyInOrder(objects []*object) {
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
			f.destroyAndLog(objects[i])
			destroyed <- struct{}{}
		}
	}
	go work()
	t := time.NewTicker(destroyTimeout)
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

// flushQueuePairs completes the program's outstanding requests with a flush error. The program may be polling its
// mapped queues and may make no call that would report the removal of the device.
//
//verbena:held life
func (f *File) flushQueuePairs() {
	if f.stop == nil {
		return
	}
	f.doorbells.removeAll() // later doorbells are rejected and need no completion
	if disassociateContext(f.dev.ib, userContext{f}) {
		return
	}
	for o := range f.objects.all() {
		if qp, ok := o.res.(*qpObject); ok && !o.gone {
			// A failure has the same cause as a failure of the subsequent destruction, which reports the error.
			_ = qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)
		}
	}
}

// contextEnd is the end of a context or of the file.
type contextEnd struct {
	f      *File
	done   chan struct{} // closed when no object of the context is left on the device
	gaveUp chan struct{} // closed when the wait has taken too long
	once   sync.Once     // closes gaveUp
}

// beginCommand begins a command. beginCommand returns nil and holds life read-locked. While the context is being ended,
// beginCommand waits. beginCommand returns EIO if the wait takes too long.
func (f *File) beginCommand() error {
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

// beginContextEnd starts the end of the context on a new goroutine, which calls f with life write-locked.
func (f *File) beginContextEnd(end func()) *contextEnd {
	e := &contextEnd{f: f, done: make(chan struct{}), gaveUp: make(chan struct{})}
	f.end.Store(e) // precedes the time at which commands must wait for life
	go func() {
		defer close(e.done)
		f.life.Lock()
		defer f.life.Unlock()
		end()
	}()
	return e
}

// wait waits until the context has ended or expired is closed. wait returns false if expired is closed first.
func (e *contextEnd) wait(expired <-chan struct{}) bool {
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

// startGraceTimer returns a channel that is closed after the grace period for blocked calls, unless stop is called
// earlier.
func (s *Server) startGraceTimer() (expired <-chan struct{}, stop func() bool) {
	c := make(chan struct{})
	return c, time.AfterFunc(s.opts.Grace, func() { close(c) }).Stop
}

// disassociate begins the end of the context for the removal of the device, unless Close has already begun it.
func (f *File) disassociate() *contextEnd {
	f.endMu.Lock()
	defer f.endMu.Unlock()
	if !states.ApplyTransition(&f.state, states.Context.Disassociate) {
		return f.end.Load()
	}
	return f.beginContextEnd(func() {
		if d, ok := f.mem.(Departer); ok {
			d.Depart()
		}
		f.flushQueuePairs()
		f.parting.Store(true)
		f.destroyAllObjects()
		f.events.endAll()
	})
}

// abandonContext abandons a context that takes too long to end. The objects of the context are no longer counted for
// the device, and the program receives the usual events. The objects are destroyed when the calls on them return.
func (f *File) abandonContext() {
	n := 0
	for o := range f.objects.all() {
		o.res.Abandon()
		n++
	}
	f.logf("left behind with %d objects that could not be destroyed within %v", n, f.dev.srv.opts.Grace)
	f.events.endAll()
}

// FailDevice is called after a method of the file has panicked and the panic was recovered. The state of the device's
// locks and tables is unknown after a panic. The device is therefore reset. FailDevice may not sleep.
func (f *File) FailDevice(why error) { userOps.Fail(f.dev.ib, why) }

func (f *File) logf(format string, args ...any) {
	f.dev.srv.opts.Log.Warn(fmt.Sprintf(format, args...),
		"dev", f.dev.Name(), "uid", f.proc.UID(), "pid", f.proc.PID(), "name", f.proc.Name())
}

// Close implements the last close of the file. Close waits for commands in the midlayer, destroys all objects, and
// closes the Memory. For calls blocked on the memory of a process it waits at most ServerOptions.Grace. The remaining
// work continues when the process responds or ends. Close may sleep. (ib_uverbs_close)
func (f *File) Close() {
	f.endMu.Lock()
	if !states.ApplyTransition(&f.state, states.Context.Close) {
		f.endMu.Unlock()
		return
	}
	e := f.beginContextEnd(func() {
		f.destroyAllObjects()
		f.dev.detachFile(f)
		f.user.Release(quota.Contexts, 1)
		f.events.close()
		if err := f.mem.Close(); err != nil {
			f.logf("close shared memory: %v", err)
		}
	})
	f.endMu.Unlock()
	expired, stop := f.dev.srv.startGraceTimer()
	defer stop()
	if !e.wait(expired) {
		f.logf("closed, but its objects could not be destroyed within %v; the destruction continues", f.dev.srv.opts.Grace)
	}
}
