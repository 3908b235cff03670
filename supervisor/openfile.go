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
)

// queueSuffix ends the names of the files that programs have in place of device files. Session.Name begins them.
const queueSuffix = ".queues"

// openFile is a device file that a program has open. The program's descriptor is one of the queue file, which it
// can map; the calls on that are trapped by its number. It is closed when the program's last descriptor and
// mapping of the queue file have gone.
//
//	open --close--> closing --last call returned--> ended
type openFile struct {
	sup     *Supervisor
	session *Session
	node    node
	file    commandFile
	memory  *shm.File  // nil: it has no queues
	bell    *bell      // nil: its doorbells are trapped
	cm      *ucma.File // of rdma_cm; else nil
	pipe    *cmPipe    // with cm
	waits   cmWaits    // with cm
	user    *quota.User
	inode   inode
	watch   int32
	access  int         // O_RDONLY, O_WRONLY or O_RDWR; write(2) fails with the first
	pid     int         // of the process that opened it
	program string      // its name
	opened  atomic.Bool // the program has it, or is about to get it

	look struct { // for the last close
		sync.Mutex
		timer *time.Timer   // of the pending look; nil: there is none
		next  time.Duration // after which it comes
	}

	calls atomic.Int64 // calls that are being answered; with closing added once close was called
	ended chan struct{}
}

const closing = 1 << 62

// newOpenFile opens a device for a process, and returns with it the description for the program, which is to be closed
// here when the program has it; how is the access mode of that. Whatever then ends the description closes the file.
func newOpenFile(t *Session, n *node, p *opener, how int) (_ *openFile, description *os.File, err error) {
	s := t.sup
	f := &openFile{
		sup: s, session: t, node: *n, user: p.user, pid: p.id.pid, program: p.id.name, access: how & unix.O_ACCMODE, ended: make(chan struct{}),
	}
	if err := f.user.Take(quota.Descriptors, fileDescriptors); err != nil {
		return nil, nil, err
	}
	fail := func(err error) (*openFile, *os.File, error) {
		if description != nil {
			description.Close()
		}
		f.closeBell()
		if f.memory != nil {
			f.memory.Close()
		}
		f.user.Give(quota.Descriptors, fileDescriptors)
		return nil, nil, err
	}
	name := fmt.Sprintf("%s/%s.%d%s", t.name, n.device, s.fileCount.Add(1), queueSuffix)
	if f.memory, err = shm.Create(name, quota.RingBytes, p.user, s.cfg.Kept.Of(p.user)); err != nil {
		return fail(err)
	}
	f.memory.LeavePages()
	if p.rings {
		description, err = f.openBell()
	} else {
		description, err = f.memory.OpenForProgram(how)
	}
	if err != nil {
		return fail(err)
	}
	if os.Geteuid() == 0 {
		// The guardian, another process of the user, must reach the queues.
		if err := f.memory.Chown(p.id.uids.fs); err != nil {
			return fail(err)
		}
	}
	var memory uverbs.Memory = queueMemory{f.memory}
	if f.bell != nil {
		memory = nativeMemory{queueMemory{f.memory}, f}
	}
	file, err := s.server.open(n.device, p, memory)
	if err != nil {
		return fail(err)
	}
	f.file = file
	f.hangBell(file)
	if err := f.register(); err != nil {
		description.Close()
		f.close()
		return nil, nil, err
	}
	return f, description, nil
}

// queueMemory is the file's queues as package uverbs takes them.
type queueMemory struct{ *shm.File }

func (m queueMemory) Alloc(size int) (ib.Shared, error) {
	s, err := m.File.Alloc(size)
	return ib.Shared(s), err
}

// fileDescriptors is what an open device file costs the service beside its queue file: a watch.
const fileDescriptors = 1

func (f *openFile) register() error {
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

// enter begins a call on the file, false if it is closed. leave ends it.
func (f *openFile) enter() bool {
	for {
		n := f.calls.Load()
		if n >= closing {
			return false
		}
		if f.calls.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (f *openFile) leave() {
	if f.calls.Add(-1) == closing {
		f.end()
	}
}

// closed reports whether close was called.
func (f *openFile) closed() bool { return f.calls.Load() >= closing }

// close ends the file when the calls that are being answered have returned, and closes f.ended then. It may be called
// again.
func (f *openFile) close() {
	for {
		n := f.calls.Load()
		if n >= closing {
			return
		}
		// A call of its own sees to it that there is a last one.
		if f.calls.CompareAndSwap(n, n+1+closing) {
			if f.cm != nil {
				f.cm.Close() // calls that wait for events return
			}
			f.leave()
			return
		}
	}
}

// The kernel reports a close before it is complete: a file that still seems to be in use is looked at again,
// first after firstLook and last after some lastLook.
const (
	firstLook = time.Millisecond
	lastLook  = 5 * time.Second
)

// closedOne looks whether the file is still in use, when a descriptor of the queue file was closed. That may have been
// one made from the program's descriptor, by way of /proc/self/fd; then there will be another close. However many
// closes there are, one look is pending at a time.
func (f *openFile) closedOne() {
	if f.memory == nil {
		return // the pipe tells
	}
	f.look.Lock()
	defer f.look.Unlock()
	f.look.next = firstLook
	if f.look.timer == nil {
		f.look.timer = time.AfterFunc(firstLook, f.lookAgain)
	}
}

func (f *openFile) lookAgain() {
	f.sup.looks.Add(1)
	inUse := !f.closed() && f.memory.InUse()
	if !inUse {
		f.close()
	}
	f.look.Lock()
	defer f.look.Unlock()
	f.look.timer = nil
	if f.look.next *= 4; inUse && f.look.next <= lastLook {
		f.look.timer = time.AfterFunc(f.look.next, f.lookAgain)
	}
}

// endQueues is the end of a file with queues.
func (f *openFile) endQueues() {
	f.stopBell()
	f.file.Close()
	f.closeBell()
	f.memory.Close() // usually the file has closed it
	f.user.Give(quota.Descriptors, fileDescriptors)
}

func (f *openFile) end() {
	s := f.sup
	s.mu.Lock()
	if s.watches[f.watch] == f {
		delete(s.watches, f.watch)
		_, _ = unix.InotifyRmWatch(s.notifyFD, uint32(f.watch))
	}
	s.mu.Unlock()
	if f.cm != nil {
		f.endCM()
	} else {
		f.endQueues()
	}
	// Until here the session's end waits for it.
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
