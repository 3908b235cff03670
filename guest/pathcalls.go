package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// pathCall answers a system call that names a file. Most name one that is not virtual, and are let through at once.
func (w *worker) pathCall(c call) verdict {
	a := &w.n.args
	through := verdict{fate: letThrough}
	at := 1 // where the path is
	switch c {
	case callOpen, callStat, callLstat, callReadlink, callAccess:
		at = 0
	case callOther:
		return through
	}
	raw := w.readPath(a[at])
	if !mayBeVirtual(raw) {
		if len(raw) == 0 && (c == callNewfstatat || c == callStatx) {
			return w.statEmptyPath(c)
		}
		return through
	}
	path := filepath.Clean(string(raw))
	if !isVirtual(path) {
		return through
	}
	arg := func(i int) uint64 { return uint64(uint32(a[i])) } // an int: the upper half of the register is no part of it
	var v verdict
	switch c {
	case callOpen:
		v = w.open(path, arg(1))
	case callOpenat:
		v = w.open(path, arg(2))
	case callOpenat2:
		v = w.openat2(path)
	case callStat:
		v = w.stat(path, 0, a[1])
	case callLstat:
		v = w.stat(path, unix.AT_SYMLINK_NOFOLLOW, a[1])
	case callNewfstatat:
		v = w.stat(path, arg(3), a[2])
	case callStatx:
		v = w.statx(path)
	case callReadlink:
		v = w.readlink(path, a[1], arg(2))
	case callReadlinkat:
		v = w.readlink(path, a[2], arg(3))
	case callAccess:
		v = w.access(path, arg(1), 0)
	case callFaccessat:
		v = w.access(path, arg(2), 0)
	case callFaccessat2:
		v = w.access(path, arg(2), arg(3))
	}
	if t := w.session.sup.cfg.Trace; t != nil {
		t("%d %v(%q) = %d %v", w.n.tid, c, path, v.val, v.err)
	}
	return v
}

// readPath reads a path up to its end. It is empty if that cannot be read, which the kernel will find out as well.
// It is valid until the next call.
func (w *worker) readPath(addr uint64) []byte {
	const usual = 256
	have := 0
	for _, size := range [...]int{usual, len(w.path)} {
		n, err := w.session.read(int(w.n.tid), addr+uint64(have), w.path[have:size])
		if err != nil {
			if err == unix.EPERM {
				w.session.warn(func() error { return fmt.Errorf("thread %d: %w", w.n.tid, explainAccess()) })
			}
			return nil
		}
		if end := bytes.IndexByte(w.path[have:have+n], 0); end >= 0 {
			return w.path[:have+end]
		}
		if have += n; have < size {
			return nil
		}
	}
	return nil
}

// errNone: the path is virtual, but there is nothing.
var errNone error = syscall.ENOENT

func (w *worker) openat2(path string) verdict {
	var how [24]byte // struct open_how, first version
	if w.n.args[3] < uint64(len(how)) {
		return verdict{fate: letThrough} // the kernel says what is wrong
	}
	if n, err := w.session.read(int(w.n.tid), w.n.args[2], how[:]); err != nil || n < len(how) {
		return fails(syscall.EFAULT)
	}
	if resolve := binary.NativeEndian.Uint64(how[16:]); resolve&(unix.RESOLVE_BENEATH|unix.RESOLVE_IN_ROOT) != 0 {
		return verdict{fate: letThrough} // the path is not absolute after all, or forbidden
	}
	return w.open(path, binary.NativeEndian.Uint64(how[:]))
}

func (w *worker) open(path string, flags uint64) verdict {
	tree := w.session.sup.tree
	path, e := tree.lookup(path, flags&unix.O_NOFOLLOW != 0)
	creates := flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL
	mode := flags & unix.O_ACCMODE
	onlyPath := flags&unix.O_PATH != 0
	switch {
	case e == nil && flags&unix.O_CREAT != 0 && !onlyPath:
		return fails(syscall.EACCES)
	case e == nil:
		return fails(errNone)
	case creates && !onlyPath:
		return fails(syscall.EEXIST)
	case !e.dir && flags&unix.O_DIRECTORY != 0:
		return fails(syscall.ENOTDIR)
	case e.node != nil && !onlyPath:
		return w.openDevice(e.node, flags)
	case onlyPath && (e.node != nil || e.link != ""):
		return fails(syscall.EOPNOTSUPP)
	case onlyPath && e.read != nil:
		w.begin(callOpen)
		if err := tree.make(path, e); err != nil {
			return fails(err)
		}
	case e.dir && !onlyPath && (mode != unix.O_RDONLY || flags&unix.O_CREAT != 0):
		return fails(syscall.EISDIR)
	case e.dir && (path == ibDir || strings.HasPrefix(path, ibDir+"/")):
		w.begin(callOpen)
		if err := tree.complete(); err != nil {
			return fails(err)
		}
	case e.read != nil && (mode != unix.O_RDONLY || flags&unix.O_TRUNC != 0):
		return fails(syscall.EACCES)
	case e.read != nil:
		w.begin(callOpen)
		if err := tree.refresh(path, e); errors.Is(err, errEmpty) {
			return w.installUnreadable(flags)
		} else if err != nil {
			return fails(err)
		}
	}
	// Never with O_PATH: the kernel does not hand such descriptors on. One that can be read does what they do.
	fd, err := unix.Open(tree.real(path), int(flags&(unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_NONBLOCK))|unix.O_CLOEXEC, 0)
	if err != nil {
		return fails(err)
	}
	defer unix.Close(fd)
	return w.installAnswer(fd, flags)
}

// installUnreadable gives the program a descriptor whose read(2) fails with EINVAL.
func (w *worker) installUnreadable(flags uint64) verdict {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fails(err)
	}
	defer unix.Close(fd)
	return w.installAnswer(fd, flags)
}

// installAnswer gives the program a duplicate of a descriptor as the call's answer.
func (w *worker) installAnswer(fd int, flags uint64) verdict {
	a := addFD{id: w.n.id, flags: unix.SECCOMP_ADDFD_FLAG_SEND, srcFD: uint32(fd), newFlags: uint32(flags & unix.O_CLOEXEC)}
	_, err := sendAddFD(w.session.fd, &a)
	if err == nil {
		return verdict{fate: sent}
	}
	if err != unix.EINVAL {
		return fails(err)
	}
	a.flags = 0 // before Linux 5.14: in two steps
	n, err := sendAddFD(w.session.fd, &a)
	if err != nil {
		return fails(err)
	}
	return verdict{val: int64(n)}
}

// openDevice opens a device file.
func (w *worker) openDevice(n *node, flags uint64) verdict {
	id, err := identify(int(w.n.tid))
	if err != nil {
		return fails(err)
	}
	rights := [...]uint32{unix.O_RDONLY: mayRead, unix.O_WRONLY: mayWrite, unix.O_RDWR: mayRead | mayWrite, 3: mayRead | mayWrite}
	t := w.session
	if !t.sup.cfg.Node.allows(id, id.uids.fs, id.gids.fs, rights[flags&unix.O_ACCMODE]) {
		return fails(syscall.EACCES)
	}
	w.begin(callOpen)
	p, err := t.process(id)
	if err != nil {
		t.warn(func() error { return err })
		return fails(err)
	}
	f, description, err := newOpenFile(t, n, p)
	if err != nil {
		if e := errno(err); e != syscall.ENODEV {
			t.sup.cfg.Logf("guest: process %d (%s): open %s: %v", id.pid, id.name, n.device, err)
		}
		return fails(err)
	}
	number, err := w.installCommandFile(id.pid, int(description.Fd()), t.firstFD, flags)
	description.Close()
	if err != nil {
		f.close()
		return fails(err)
	}
	return verdict{val: int64(number)}
}

// duplicate is dup(2), or fcntl(2) with F_DUPFD, of a device file: the new number, too, has to be one that the filter
// traps. What is duplicated to a number of the program's own choice, or sent over a socket, answers ioctl(2) only.
func (w *worker) duplicate(c call) verdict {
	through := verdict{fate: letThrough}
	t := w.session
	from, flags := uint64(t.firstFD), uint64(0)
	if c == callFcntl {
		switch uint32(w.n.args[1]) {
		case unix.F_DUPFD_CLOEXEC:
			flags = unix.O_CLOEXEC
		case unix.F_DUPFD:
		default:
			return through
		}
		if from = max(from, w.n.args[2]); from >= math.MaxInt32 {
			return through
		}
	}
	fd := int32(w.n.args[0])
	if t.descriptor(w.n.tid, fd) == nil {
		return through
	}
	w.begin(callOpen)
	id, err := identify(int(w.n.tid))
	if err != nil {
		return fails(err)
	}
	copied, err := t.takeDescriptor(id.pid, int(fd))
	if err != nil {
		t.sup.cfg.Logf("guest: process %d (%s): duplicate descriptor %d of a device: %v", id.pid, id.name, fd, err)
		return fails(err)
	}
	defer unix.Close(copied)
	number, err := w.installCommandFile(id.pid, copied, uint32(from), flags)
	if err != nil {
		return fails(err)
	}
	return verdict{val: int64(number)}
}

// takeDescriptor duplicates a descriptor of another process into this one.
func takeDescriptor(pid, fd int) (int, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, fmt.Errorf("pidfd_open: %w", err)
	}
	defer unix.Close(pidfd)
	copied, err := unix.PidfdGetfd(pidfd, fd, 0)
	if err != nil {
		return -1, fmt.Errorf("pidfd_getfd: %w", err)
	}
	return copied, nil
}

// installCommandFile gives the program a duplicate of a descriptor, at a number that the filter traps: from, or the
// next that is free.
func (w *worker) installCommandFile(pid, fd int, from uint32, flags uint64) (int, error) {
	t := w.session
	t.opening.Lock()
	defer t.opening.Unlock()
	number := from
	for {
		var st unix.Stat_t
		if unix.Lstat(fdPath(w.n.tid, int32(number)), &st) != nil {
			break
		}
		number++
	}
	// The number has to be below the soft limit while it is installed, not afterwards.
	var limit unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit); err == nil && limit.Cur <= uint64(number) {
		raised := unix.Rlimit{Cur: uint64(number) + 1, Max: limit.Max}
		if raised.Cur > raised.Max {
			return -1, syscall.EMFILE
		}
		if unix.Prlimit(pid, unix.RLIMIT_NOFILE, &raised, nil) == nil {
			defer func() {
				var now unix.Rlimit
				if unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &now) == nil && now == raised {
					_ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil)
				}
			}()
		}
	}
	t.forget(int32(number))
	a := addFD{
		id: w.n.id, flags: unix.SECCOMP_ADDFD_FLAG_SETFD,
		srcFD: uint32(fd), newFD: number, newFlags: uint32(flags & unix.O_CLOEXEC),
	}
	_, err := sendAddFD(t.fd, &a)
	if err == unix.EBADF {
		t.sup.cfg.Logf("guest: process %d: the limit of open files is below %d and may not be raised from here", pid, number+1)
		err = syscall.EMFILE
	}
	return int(number), err
}

// fileInfo is what the stat family shows of an entry beyond what its file in the tree has.
type fileInfo struct {
	mode     uint32
	uid, gid uint32
	minor    uint32 // of a device
}

func (s *Supervisor) nodeInfo(minor uint32) fileInfo {
	n := s.cfg.Node
	return fileInfo{mode: unix.S_IFCHR | n.Mode, uid: uint32(n.UID), gid: uint32(n.GID), minor: minor}
}

func (s *Supervisor) info(e *entry) fileInfo {
	switch {
	case e.node != nil:
		return s.nodeInfo(e.node.minor)
	case e.dir:
		return fileInfo{mode: unix.S_IFDIR | 0o755}
	case e.link != "":
		return fileInfo{mode: unix.S_IFLNK | 0o777}
	}
	return fileInfo{mode: unix.S_IFREG | 0o444}
}

func (i fileInfo) apply(st *unix.Stat_t) {
	st.Mode, st.Uid, st.Gid = i.mode, i.uid, i.gid
	if i.mode&unix.S_IFMT == unix.S_IFCHR {
		st.Rdev, st.Size, st.Blocks = unix.Mkdev(verbsMajor, i.minor), 0, 0
	}
}

func (i fileInfo) applyx(st *unix.Statx_t) {
	st.Mode, st.Uid, st.Gid = uint16(i.mode), i.uid, i.gid
	if i.mode&unix.S_IFMT == unix.S_IFCHR {
		st.Rdev_major, st.Rdev_minor, st.Size, st.Blocks = verbsMajor, i.minor, 0, 0
	}
}

// lookupFor finds the entry for a call with AT_ flags.
func (w *worker) lookupFor(path string, flags uint64) (string, *entry) {
	return w.session.sup.tree.lookup(path, flags&unix.AT_SYMLINK_NOFOLLOW != 0)
}

func (w *worker) stat(path string, flags, buf uint64) verdict {
	path, e := w.lookupFor(path, flags)
	if e == nil {
		return fails(errNone)
	}
	if err := w.session.sup.tree.make(path, e); err != nil {
		return fails(err)
	}
	return w.putStat(w.session.sup.tree.real(path), w.session.sup.info(e), buf)
}

func (w *worker) putStat(real string, info fileInfo, buf uint64) verdict {
	var st unix.Stat_t
	if err := unix.Lstat(real, &st); err != nil {
		return fails(err)
	}
	info.apply(&st)
	return fails(w.write(buf, bytesOf(&st)))
}

func (w *worker) statx(path string) verdict {
	path, e := w.lookupFor(path, w.n.args[2])
	if e == nil {
		return fails(errNone)
	}
	if err := w.session.sup.tree.make(path, e); err != nil {
		return fails(err)
	}
	return w.putStatx(w.session.sup.tree.real(path), w.session.sup.info(e))
}

func (w *worker) putStatx(real string, info fileInfo) verdict {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, real, unix.AT_SYMLINK_NOFOLLOW, int(uint32(w.n.args[3])), &st); err != nil {
		return fails(err)
	}
	info.applyx(&st)
	return fails(w.write(w.n.args[4], bytesOf(&st)))
}

// statEmptyPath is a stat of the descriptor itself, or not.
func (w *worker) statEmptyPath(c call) verdict {
	flags := w.n.args[3]
	if c == callStatx {
		flags = w.n.args[2]
	}
	if flags&unix.AT_EMPTY_PATH == 0 {
		return verdict{fate: letThrough}
	}
	d := w.session.descriptor(w.n.tid, int32(w.n.args[0]))
	if d == nil {
		return verdict{fate: letThrough}
	}
	real, info := w.session.sup.deviceInfo(d.file)
	if c == callStatx {
		return w.putStatx(real, info)
	}
	return w.putStat(real, info, w.n.args[2])
}

// statDevice is fstat of an open device file.
func (w *worker) statDevice(f *openFile) verdict {
	real, info := w.session.sup.deviceInfo(f)
	return w.putStat(real, info, w.n.args[1])
}

// deviceInfo is what an open device file looks like: as its node does, also when that has gone.
func (s *Supervisor) deviceInfo(f *openFile) (real string, info fileInfo) {
	path := devDir + "/" + f.node.device
	real = f.memory.Path()
	if _, e := s.tree.lookup(path, false); e != nil && e.node != nil && *e.node == f.node {
		real = s.tree.real(path)
	}
	return real, s.nodeInfo(f.node.minor)
}

func (w *worker) readlink(path string, buf, size uint64) verdict {
	_, e := w.session.sup.tree.lookup(path, true)
	switch {
	case e == nil:
		return fails(errNone)
	case e.link == "" || int32(size) <= 0:
		return fails(syscall.EINVAL)
	}
	target := []byte(e.link)[:min(uint64(len(e.link)), size)]
	if err := w.write(buf, target); err != nil {
		return fails(err)
	}
	return verdict{val: int64(len(target))}
}

func (w *worker) access(path string, rights, flags uint64) verdict {
	_, e := w.lookupFor(path, flags)
	if e == nil {
		return fails(errNone)
	}
	if rights&^(mayRead|mayWrite|mayExecute) != 0 {
		return fails(syscall.EINVAL)
	}
	id, err := identify(int(w.n.tid))
	if err != nil {
		return fails(err)
	}
	uid, gid := id.uids.real, id.gids.real
	if flags&unix.AT_EACCESS != 0 {
		uid, gid = id.uids.effective, id.gids.effective
	}
	info := w.session.sup.info(e)
	if !(Node{UID: int(info.uid), GID: int(info.gid), Mode: info.mode}).allows(id, uid, gid, uint32(rights)) {
		return fails(syscall.EACCES)
	}
	return verdict{}
}
