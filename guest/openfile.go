package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/shm"
)

// queueSuffix ends the names of the files that programs have in place of device files.
const queueSuffix = ".queues"

// openFile is a device file that a program has open. What the program really has is a descriptor of the queue file,
// which it can map; the calls on that are trapped by its number. It is closed when the program's last descriptor and
// mapping of the queue file have gone.
//
//	open --close--> closing --last call returned--> ended
type openFile struct {
	sup     *Supervisor
	session *Session
	node    node
	file    commandFile
	memory  *shm.File
	inode   inode
	watch   int32

	calls atomic.Int64 // calls that are being answered; with closing added once close was called
	ended chan struct{}
}

const closing = 1 << 62

// newOpenFile opens a device for a process, and returns with it the description for the program, which is to be
// closed here when the program has it. Whatever then ends the description closes the file.
func newOpenFile(t *Session, n *node, p *process) (_ *openFile, description *os.File, err error) {
	s := t.sup
	path := filepath.Join(t.dir, fmt.Sprintf("%s.%d%s", n.device, s.fileCount.Add(1), queueSuffix))
	f := &openFile{sup: s, session: t, node: *n, ended: make(chan struct{})}
	if f.memory, err = shm.Create(path); err != nil {
		return nil, nil, err
	}
	if os.Geteuid() == 0 {
		// The guardian, another process of the user, must reach the queues.
		err = os.Chown(path, p.id.uids.fs, -1)
	}
	if err == nil {
		description, err = f.memory.OpenForProgram()
	}
	if err == nil {
		f.file, err = s.server.open(n.device, p, f.memory)
	}
	if err != nil {
		if description != nil {
			description.Close()
		}
		f.memory.Close()
		return nil, nil, err
	}
	if err := f.register(description, path); err != nil {
		description.Close()
		f.close()
		return nil, nil, err
	}
	return f, description, nil
}

func (f *openFile) register(description *os.File, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(description.Fd()), &st); err != nil {
		return &os.PathError{Op: "fstat", Path: path, Err: err}
	}
	f.inode = inode{uint64(st.Dev), st.Ino}
	s := f.sup
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("open %s: the service is ending: %w", f.node.device, unix.ENODEV)
	}
	wd, err := unix.InotifyAddWatch(s.notifyFD, path, unix.IN_CLOSE_WRITE|unix.IN_CLOSE_NOWRITE)
	if err != nil {
		return fmt.Errorf("watch %s: %w; see /proc/sys/fs/inotify/max_user_watches", path, err)
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

// close ends the file when the calls that are being answered have returned, which ended tells. It may be called
// again.
func (f *openFile) close() {
	for {
		n := f.calls.Load()
		if n >= closing {
			return
		}
		// A call of its own sees to it that there is a last one.
		if f.calls.CompareAndSwap(n, n+1+closing) {
			f.leave()
			return
		}
	}
}

// The kernel tells of a close before it has quite come about: a file that still seems to be in use is looked at again,
// first after firstLook and last after some lastLook.
const (
	firstLook = time.Millisecond
	lastLook  = 5 * time.Second
)

// closeUnlessInUse is called when a descriptor of the queue file was closed. That may have been one made from the
// program's descriptor, by way of /proc/self/fd; then there will be another close.
func (f *openFile) closeUnlessInUse(look time.Duration) {
	switch {
	case f.closed():
	case !f.memory.InUse():
		f.close()
	case look <= lastLook:
		time.AfterFunc(look, func() { f.closeUnlessInUse(4 * look) })
	}
}

func (f *openFile) end() {
	s := f.sup
	s.mu.Lock()
	if s.watches[f.watch] == f {
		delete(s.watches, f.watch)
		_, _ = unix.InotifyRmWatch(s.notifyFD, uint32(f.watch))
	}
	s.mu.Unlock()
	f.file.Close()
	if err := f.memory.Close(); err != nil { // usually the file has closed it
		s.cfg.Logf("guest: %v", err)
	}
	// Until here the session's end waits for it.
	s.mu.Lock()
	if s.files[f.inode] == f {
		delete(s.files, f.inode)
	}
	s.mu.Unlock()
	close(f.ended)
}
