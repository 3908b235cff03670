package supervisor

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/internal/quota"
	"verbena/internal/shm"
	"verbena/rdmacm/ucma"
	"verbena/uverbs"
	"verbena/uverbs/poller"
)

// queueSuffix is the suffix of the names of the queue files, to which programs' descriptors of device files refer.
// Session.Name is the prefix of these names.
const queueSuffix = ".queues"

// openFile is a device file that a program has open. The program's descriptor refers to the queue file, which the
// program can map. The filter traps calls on that descriptor by its number. The file ends when the last descriptor
// and mapping of the queue file are closed.
//
//	open --------------------------close---------------------> closing --last call returned--> ended
//	open --abandon--> abandoned --close, last call returned--> closing
type openFile struct {
	sup     *Supervisor
	session *Session
	node    deviceNode
	file    commandFile
	memory  *shm.File            // nil for a file without queues
	native  *nativeDoorbells     // nil for trapped doorbells
	stores  *poller.PolledSource // nil unless the program posts by stores to memory
	cm      *ucma.File           // set for rdma_cm, otherwise nil
	pipe    *cmPipe              // set if cm is set
	waits   cmWaits              // used if cm is set
	user    *quota.User
	inode   inode
	watch   int32
	access  int         // O_RDONLY, O_WRONLY or O_RDWR; write(2) fails with O_RDONLY
	pid     int         // process that opened the file
	program string      // name of that process
	opened  atomic.Bool // the program has a descriptor, or is about to receive one

	look struct { // checks for the last close
		sync.Mutex
		timer *time.Timer   // starts the pending check; nil without a pending check
		next  time.Duration // delay before the next check
	}

	calls atomic.Int64 // number of calls in progress, and the flags below
	ended chan struct{}
}

const (
	closingFlag = 1 << 62
	// abandonedFlag is set after the program has closed its last descriptor. A call holds a reference to its file, as
	// in the kernel. The last call therefore closes an abandoned file.
	abandonedFlag = 1 << 61
)

// newOpenFile opens a device for a process. newOpenFile also returns the description for the program. The caller
// closes the description after the program has received it. how is the access mode of the description. When the
// description is closed, the file ends.
func newOpenFile(t *Session, n *deviceNode, p *opener, how int) (_ *openFile, description *os.File, err error) {
	s := t.sup
	f := &openFile{
		sup: s, session: t, node: *n, user: p.user, pid: p.id.pid, program: p.id.name, access: how & unix.O_ACCMODE,
		ended: make(chan struct{}),
	}
	if err := f.user.Charge(quota.Descriptors, descriptorsPerOpenFile); err != nil {
		return nil, nil, err
	}
	fail := func(err error) (*openFile, *os.File, error) {
		if description != nil {
			description.Close()
		}
		f.closeNativeDoorbells()
		if f.memory != nil {
			f.memory.Close()
		}
		f.user.Release(quota.Descriptors, descriptorsPerOpenFile)
		return nil, nil, err
	}
	name := fmt.Sprintf("%s/%s.%d%s", t.name, n.device, s.fileCount.Add(1), queueSuffix)
	if f.memory, err = shm.Create(name, quota.RingBytes, p.user, s.cfg.Kept.ObjectsOf(p.user)); err != nil {
		return fail(err)
	}
	f.memory.KeepPagesOnClose()
	if p.nativeDoorbells {
		description, err = f.openNativeDoorbells()
	} else {
		description, err = f.memory.OpenForProgram(how)
	}
	if err != nil {
		return fail(err)
	}
	if os.Geteuid() == 0 {
		// The guardian, another process of the user, must be able to open the queue file.
		if err := f.memory.Chown(p.id.uids.fs); err != nil {
			return fail(err)
		}
	}
	var memory uverbs.Memory = queueMemory{f.memory}
	if f.native != nil {
		memory = nativeMemory{queueMemory{f.memory}, f}
	}
	file, err := s.server.open(n.device, p, memory)
	if err != nil {
		return fail(err)
	}
	f.file = file
	f.pollDoorbells(file)
	if err := f.pollStores(file); err != nil {
		file.Close()
		return fail(err)
	}
	if err := f.registerFile(); err != nil {
		description.Close()
		f.close()
		return nil, nil, err
	}
	return f, description, nil
}

// queueMemory adapts the file's queues to package uverbs.
type queueMemory struct{ *shm.File }

func (m queueMemory) Alloc(size int) (ib.Shared, error) {
	s, err := m.File.Alloc(size)
	return ib.Shared(s), err
}

// descriptorsPerOpenFile is the charge for an open device file in addition to its queue file: one watch.
const descriptorsPerOpenFile = 1

func (f *openFile) registerFile() error {
	var st unix.Stat_t
	if err := f.memory.Stat(&st); err != nil {
		return fmt.Errorf("open %s: %w", f.node.device, err)
	}
	f.inode = inode{st.Dev, st.Ino}
	s := f.sup
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("open %s: the service is ending: %w", f.node.device, unix.ENODEV)
	}
	wd, err := f.memory.Watch(s.notifyFD, unix.IN_CLOSE_WRITE|unix.IN_CLOSE_NOWRITE)
	if err != nil {
		return fmt.Errorf("watch %s: %w; see /proc/sys/fs/inotify/max_user_watches", f.memory.Name(), err)
	}
	f.watch = int32(wd)
	s.watches[f.watch] = f
	s.files[f.inode] = f
	return nil
}

// beginCall begins a call on the file. It returns false if the file is closed. endCall ends the call.
func (f *openFile) beginCall() bool {
	for {
		n := f.calls.Load()
		if n >= closingFlag {
			return false
		}
		if f.calls.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (f *openFile) endCall() {
	switch f.calls.Add(-1) {
	case closingFlag, closingFlag | abandonedFlag:
		f.releaseFile()
	case abandonedFlag:
		f.close()
	}
}

// abandon closes the file after the calls in progress have returned. The program has closed its last descriptor.
func (f *openFile) abandon() {
	if f.calls.Or(abandonedFlag) == 0 {
		f.close()
	}
}

// isAbandoned reports whether abandon was called.
func (f *openFile) isAbandoned() bool { return f.calls.Load()&abandonedFlag != 0 }

// isClosed reports whether close was called.
func (f *openFile) isClosed() bool { return f.calls.Load() >= closingFlag }

// close ends the file, and closes f.ended, after the calls in progress have returned. close may be called
// repeatedly.
func (f *openFile) close() {
	for {
		n := f.calls.Load()
		if n >= closingFlag {
			return
		}
		// Counting one more call ensures that there is a last call to return.
		if f.calls.CompareAndSwap(n, n+1+closingFlag) {
			if f.cm != nil {
				f.cm.Close() // wakes the calls that wait for events
			}
			f.endCall()
			return
		}
	}
}

// The kernel reports a close before the close is complete. A file that still seems to be in use is therefore
// checked again, first after firstCheckDelay and last after about lastCheckDelay.
const (
	firstCheckDelay = time.Millisecond
	lastCheckDelay  = 5 * time.Second
)

// checkAfterClose checks whether the file is still in use after a descriptor of the queue file was closed. A program
// may have opened the closed descriptor through /proc/self/fd. In that case another close will follow. At most one
// check is pending, regardless of the number of closed descriptors.
func (f *openFile) checkAfterClose() {
	if f.memory == nil {
		return // the pipe reports its own close
	}
	f.look.Lock()
	defer f.look.Unlock()
	f.look.next = firstCheckDelay
	if f.look.timer == nil {
		f.look.timer = time.AfterFunc(firstCheckDelay, f.closeIfUnused)
	}
}

func (f *openFile) closeIfUnused() {
	f.sup.looks.Add(1)
	inUse := !f.isClosed() && f.memory.InUse()
	if !inUse {
		f.close()
	}
	f.look.Lock()
	defer f.look.Unlock()
	f.look.timer = nil
	if f.look.next *= 4; inUse && f.look.next <= lastCheckDelay {
		f.look.timer = time.AfterFunc(f.look.next, f.closeIfUnused)
	}
}

// releaseQueueFile ends a file that has queues.
func (f *openFile) releaseQueueFile() {
	f.stopPolling()
	f.file.Close()
	f.closeNativeDoorbells()
	f.memory.Close() // the file has usually closed its memory already
	f.user.Release(quota.Descriptors, descriptorsPerOpenFile)
}

func (f *openFile) releaseFile() {
	s := f.sup
	s.mu.Lock()
	if s.watches[f.watch] == f {
		delete(s.watches, f.watch)
		_, _ = unix.InotifyRmWatch(s.notifyFD, uint32(f.watch))
	}
	s.mu.Unlock()
	if f.cm != nil {
		f.closeCMFile()
	} else {
		f.releaseQueueFile()
	}
	// Until this point the session waits for the file.
	s.mu.Lock()
	if s.files[f.inode] == f {
		delete(s.files, f.inode)
	}
	s.mu.Unlock()
	if f.opened.Load() {
		f.session.log.Debug("device file closed", "pid", f.pid, "dev", f.node.device)
	}
	close(f.ended)
}
