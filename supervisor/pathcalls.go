package supervisor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
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
	w.session.execs.over(w)
	raw := w.readPath(a[at])
	if !mayBeVirtual(raw) {
		if len(raw) == 0 && (c == callNewfstatat || c == callStatx) {
			return w.statEmptyPath(c)
		}
		return through
	}
	path, err := w.clean(raw)
	switch {
	case err == errKernel, err == nil && !isVirtual(path):
		return through
	case err != nil:
		return fails(err)
	}
	var how [openHowSize]byte
	if c == callOpenat2 {
		if a[3] < openHowSize {
			return through // the kernel says what is wrong
		}
		if n, err := w.session.read(int(w.n.tid), a[2], how[:]); err != nil || n < len(how) {
			return fails(syscall.EFAULT)
		}
	}
	// The memory that was read is the caller's, if the caller is still there.
	if err := w.prove(); err != nil {
		return fails(err)
	}
	if w.trace != nil {
		w.trace.path, w.trace.flags = path, binary.NativeEndian.Uint64(how[:])
	}
	arg := func(i int) uint64 { return uint64(uint32(a[i])) } // an int: the upper half of the register is no part of it
	var v verdict
	switch c {
	case callOpen:
		v = w.open(path, arg(1))
	case callOpenat:
		v = w.open(path, arg(2))
	case callOpenat2:
		v = w.openat2(path, &how)
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

// openHowSize is that of struct open_how, first version.
const openHowSize = 24

func (w *worker) openat2(path string, how *[openHowSize]byte) verdict {
	if resolve := binary.NativeEndian.Uint64(how[16:]); resolve&(unix.RESOLVE_BENEATH|unix.RESOLVE_IN_ROOT) != 0 {
		return verdict{fate: letThrough} // the path is not absolute after all, or forbidden
	}
	return w.open(path, binary.NativeEndian.Uint64(how[:]))
}

// errKernel: the kernel is to say what is wrong.
var errKernel = errors.New("the path is not virtual")

// clean makes a path absolute without ".", ".." and empty components, as the kernel would. The error is that of the
// call where ".." comes after something virtual that is no directory, and errKernel where it comes after something of
// the file system that is not a plain directory. A path whose last component has to be a directory is left with a slash
// at its end.
func (w *worker) clean(raw []byte) (path string, err error) {
	var parts []string
	last := ""
	for part := range strings.SplitSeq(string(raw), "/") {
		last = part
		switch part {
		case "", ".":
		case "..":
			if parts, err = w.parent(parts); err != nil {
				return "", err
			}
		default:
			parts = append(parts, part)
		}
	}
	path = "/" + strings.Join(parts, "/")
	if (last == "" || last == "." || last == "..") && len(parts) > 0 {
		path += "/"
	}
	return path, nil
}

// parent takes the last of the components away, which must be a directory. After a link to one the way up is another.
func (w *worker) parent(parts []string) ([]string, error) {
	if len(parts) == 0 {
		return parts, nil
	}
	dir := "/" + strings.Join(parts, "/")
	if !isVirtual(dir) {
		if !w.isDirectory(dir) {
			return nil, errKernel
		}
		return parts[:len(parts)-1], nil
	}
	dir, e := w.session.sup.tree.lookup(dir, false)
	switch {
	case e == nil:
		return nil, errNone
	case !e.dir:
		return nil, syscall.ENOTDIR
	}
	parts = strings.Split(dir[1:], "/")
	return parts[:len(parts)-1], nil
}

// isDirectory reports whether a path is a directory to the caller, with no link on the way.
func (w *worker) isDirectory(path string) bool {
	w.begin(callOpen) // its file system may be a program of the user's
	th, err := w.look()
	if err != nil {
		return false
	}
	defer th.close()
	root, err := unix.Openat(th.dir, "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	at := root
	defer func() { unix.Close(at) }()
	for name := range strings.SplitSeq(path[1:], "/") {
		// It is looked up with this process's rights, and the caller is not to learn more than by his own.
		if !th.maySearch(at) {
			return false
		}
		next, err := unix.Openat2(at, name, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
		if err != nil {
			return false
		}
		unix.Close(at)
		at = next
	}
	return th.maySearch(at)
}

// maySearch reports whether the mode of a directory lets the thread look up names in it.
func (t *procThread) maySearch(dir int) bool {
	var st unix.Statx_t
	const what = unix.STATX_MODE | unix.STATX_UID | unix.STATX_GID
	if unix.Statx(dir, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, what, &st) != nil {
		return false
	}
	return Node{UID: int(st.Uid), GID: int(st.Gid), Mode: uint32(st.Mode)}.allows(t.id, t.id.uids.fs, t.id.gids.fs, mayExecute)
}

// find returns the entry of a clean path, and the path after links; the last component is not followed if nofollow. The
// error is that of the call if there is none, or if it should be a directory and is not.
func (w *worker) find(path string, nofollow bool) (string, *entry, error) {
	plain, slash := strings.CutSuffix(path, "/")
	path, e := w.session.sup.tree.lookup(plain, nofollow && !slash)
	switch {
	case e == nil:
		return path, nil, errNone
	case slash && !e.dir:
		return path, nil, syscall.ENOTDIR
	}
	return path, e, nil
}

func (w *worker) open(path string, flags uint64) verdict {
	tree := w.session.sup.tree
	path, e, err := w.find(path, flags&unix.O_NOFOLLOW != 0)
	creates := flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL
	mode := flags & unix.O_ACCMODE
	onlyPath := flags&unix.O_PATH != 0
	switch {
	case err == errNone && flags&unix.O_CREAT != 0 && !onlyPath:
		return fails(syscall.EACCES)
	case err != nil:
		return fails(err)
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
	case e.dir && (path == ibDir || strings.HasPrefix(path, virtualDir)):
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
	if e.dir && tree.mount == nil {
		// From a directory there is a way up, to the root directory of this process.
		th, err := w.look()
		if err != nil {
			return fails(err)
		}
		elsewhere := th.elsewhere()
		th.close()
		if elsewhere {
			w.session.warn(func() error {
				return fmt.Errorf("%s is not shown to a program with a root directory or mounts of its own: that takes a service with CAP_SYS_ADMIN", path)
			})
			return fails(syscall.EACCES)
		}
	}
	// Never with O_PATH: the kernel does not hand such descriptors on. One that can be read does what they do.
	fd, err := tree.open(path, int(flags&(unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_NONBLOCK)))
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
	n, err := sendAddFD(w.session.fd, &a)
	if err == nil {
		return verdict{val: int64(n), fate: sent}
	}
	if err != unix.EINVAL {
		return fails(err)
	}
	a.flags = 0 // before Linux 5.14: in two steps
	n, err = sendAddFD(w.session.fd, &a)
	if err != nil {
		return fails(err)
	}
	return verdict{val: int64(n)}
}

// openDevice opens a device file.
func (w *worker) openDevice(n *node, flags uint64) verdict {
	w.begin(callOpen)
	th, err := w.look()
	if err != nil {
		return fails(err)
	}
	defer th.close()
	id := th.id
	rights := [...]uint32{unix.O_RDONLY: mayRead, unix.O_WRONLY: mayWrite, unix.O_RDWR: mayRead | mayWrite, 3: mayRead | mayWrite}
	t := w.session
	if !t.sup.cfg.Node.allows(id, id.uids.fs, id.gids.fs, rights[flags&unix.O_ACCMODE]) {
		return fails(syscall.EACCES)
	}
	p, space, err := w.process(th)
	if err != nil {
		if !errors.Is(err, errGone) {
			t.warn(func() error { return err })
		}
		return fails(err)
	}
	o := &opener{process: p, session: t, id: id, user: t.sup.cfg.Quota.User(id.uids.real)}
	o.rings = !n.cm && w.wantsBell(th, space, flags)
	how := int(flags & unix.O_ACCMODE)
	if how == unix.O_ACCMODE { // neither: for ioctl(2) alone
		how = unix.O_RDONLY
	}
	w.pause("open")
	make := newOpenFile
	if n.cm {
		make, how = newCMFile, int(flags&unix.O_NONBLOCK)
	}
	f, description, err := make(t, n, o, how)
	if err != nil {
		if e := errno(err); e != syscall.ENODEV {
			t.log.Warn("open a device file", "pid", id.pid, "name", id.name, "dev", n.device, "err", err)
		}
		return fails(err)
	}
	f.opened.Store(true)
	from := t.firstFD
	if f.rings() {
		from, _ = nativeFDs(t.firstFD)
	}
	number, err := w.installCommandFile(th, p, int(description.Fd()), from, f.rings(), flags)
	description.Close()
	if err != nil {
		f.opened.Store(false)
		f.close()
		return fails(err)
	}
	if f.pipe != nil {
		go f.pipe.watch(f.desert)
	}
	t.log.Debug("device file opened", "pid", id.pid, "name", id.name, "dev", n.device, "fd", number)
	return verdict{val: int64(number)}
}

// duplicate answers dup(2), or fcntl(2) with F_DUPFD, of a device file: the new number, too, has to be one that the
// filter traps. A duplicate at a low number of the program's own choice, or one sent over a socket, answers ioctl(2)
// only. Another file is duplicated here if it is to get a number of those that device files get: see duplicateTo.
func (w *worker) duplicate(c call) verdict {
	through := verdict{fate: letThrough}
	t := w.session
	least, flags := uint32(0), uint64(0)
	if c == callFcntl {
		switch uint32(w.n.args[1]) {
		case unix.F_DUPFD_CLOEXEC:
			flags = unix.O_CLOEXEC
		case unix.F_DUPFD:
		default:
			return through
		}
		if least = uint32(w.n.args[2]); least >= math.MaxInt32 {
			return through
		}
	}
	fd := int32(w.n.args[0])
	d := w.descriptor(fd)
	if d == nil && least < t.firstFD {
		return through
	}
	w.begin(callOpen)
	th, err := w.look()
	if err != nil {
		return fails(err)
	}
	defer th.close()
	if d == nil {
		copied, err := w.copyFile(th, fd)
		if err != nil {
			return through // the kernel says what is wrong; or that is not allowed (Yama)
		}
		defer unix.Close(copied)
		number, err := w.installAbove(th, copied, least, flags)
		if err == unix.EBADF { // the limit of open files
			return through
		}
		return verdict{val: int64(number), err: err}
	}
	p, _, err := w.process(th)
	if err != nil {
		return fails(err)
	}
	copied, err := w.copyDevice(th, p, fd, d.file)
	if err != nil {
		t.log.Warn("duplicate a descriptor of a device", "pid", p.pid, "name", p.name, "fd", fd, "err", err)
		return fails(err)
	}
	defer unix.Close(copied)
	number, err := w.installCommandFile(th, p, copied, max(least, t.firstFD), false, flags)
	if err != nil {
		return fails(err)
	}
	return verdict{val: int64(number)}
}

// copyFile returns a descriptor of whatever the caller has open under a number; EPERM for a thread that does not share
// its descriptors with the main thread, whose alone can be had.
func (w *worker) copyFile(th *procThread, fd int32) (copied int, err error) {
	if !sharesFiles(th.id.pid, int(w.n.tid)) {
		return -1, unix.EPERM
	}
	pidfd, err := unix.PidfdOpen(th.id.pid, 0)
	if err != nil {
		return -1, w.goneOr(err)
	}
	defer unix.Close(pidfd)
	if err := w.prove(); err != nil {
		return -1, err
	}
	return unix.PidfdGetfd(pidfd, int(fd), 0)
}

// sharesFiles reports whether two threads have the same table of descriptors; true where that is unknown.
func sharesFiles(a, b int) bool {
	if a == b {
		return true
	}
	const files = 2 // KCMP_FILES
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), files, 0, 0, 0)
	return errno != 0 || r == 0
}

// copyDevice returns a descriptor of what the caller has open under a number, which is a device file.
func (w *worker) copyDevice(th *procThread, p *process, fd int32, f *openFile) (copied int, err error) {
	if err := p.conn.Control(func(pidfd uintptr) { copied, err = unix.PidfdGetfd(int(pidfd), int(fd), 0) }); err != nil {
		return -1, err
	}
	if err != nil || !isFile(copied, f.inode) {
		if err == nil {
			unix.Close(copied)
		}
		// Where that is not allowed (Yama, Docker), or its main thread has ended, or has descriptors of its own,
		// another description does as well. A link to anything else is not opened: that could have effects.
		link := fmt.Sprintf("fd/%d", fd)
		var st unix.Statx_t
		if err := unix.Statx(th.dir, link, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st); err != nil {
			return -1, errGone
		}
		if (inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}) != f.inode {
			return -1, syscall.EBADF
		}
		how := unix.O_RDWR
		if f.readOnly || f.cm != nil {
			how = unix.O_RDONLY
		}
		if copied, err = unix.Openat(th.dir, link, how|unix.O_CLOEXEC, 0); err != nil {
			return -1, fmt.Errorf("duplicate descriptor %d of process %d: %w", fd, p.pid, err)
		}
	}
	if !isFile(copied, f.inode) {
		unix.Close(copied)
		return -1, syscall.EBADF
	}
	return copied, nil
}

// isFile reports whether a descriptor is of a file.
func isFile(fd int, file inode) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && (inode{st.Dev, st.Ino}) == file
}

// duplicateTo answers dup2(2) or dup3(2) to a number of those that device files get. Those are given out here, so that
// two threads of a program do not get the same.
func (w *worker) duplicateTo(c call) verdict {
	through := verdict{fate: letThrough}
	from, to := int32(w.n.args[0]), int32(w.n.args[1])
	flags := uint32(0)
	if c == callDup3 {
		flags = uint32(w.n.args[2])
	}
	if from == to || flags&^unix.O_CLOEXEC != 0 {
		return through // the kernel says what is wrong
	}
	w.begin(callOpen)
	th, err := w.look()
	if err != nil {
		return fails(err)
	}
	defer th.close()
	copied, err := w.copyFile(th, from)
	if err != nil {
		return through // it has none, or that is not allowed (Yama)
	}
	defer unix.Close(copied)
	w.session.opening.Lock()
	defer w.session.opening.Unlock()
	if err := w.installLocked(copied, uint32(to), uint64(flags)); err == unix.EBADF {
		return through // the limit of open files; or one with O_PATH, which is not handed on
	} else if err != nil {
		return fails(err)
	}
	return verdict{val: int64(to)}
}

// installCommandFile gives the program a duplicate of a descriptor of a device file, at a number that the filter traps:
// from, or the next that is free. Only a file that rings natively gets one of those whose writes are not trapped.
func (w *worker) installCommandFile(th *procThread, p *process, fd int, from uint32, rings bool, flags uint64) (int, error) {
	t := w.session
	t.opening.Lock()
	defer t.opening.Unlock()
	number := nextFree(th, from)
	switch first, end := nativeFDs(t.firstFD); {
	case rings && number >= end:
		return -1, fmt.Errorf("%d device files are open in process %d: %w", end-first, p.pid, syscall.EMFILE)
	case !rings && first <= number && number < end:
		number = nextFree(th, end)
	}
	// The number has to be below the soft limit while it is installed, not afterwards.
	restore, err := w.raiseLimit(p, uint64(number)+1)
	if err != nil {
		return -1, err
	}
	defer restore()
	if err = w.installLocked(fd, number, flags); err == unix.EBADF {
		t.log.Warn("the limit of open files (ulimit -n) is too low and may not be raised from here", "pid", p.pid, "needs", number+1)
		err = syscall.EMFILE
	}
	return int(number), err
}

// installAbove installs any file, where the limit is the program's.
func (w *worker) installAbove(th *procThread, fd int, from uint32, flags uint64) (int, error) {
	w.session.opening.Lock()
	defer w.session.opening.Unlock()
	number := nextFree(th, from)
	return int(number), w.installLocked(fd, number, flags)
}

// nextFree finds a number that the thread has nothing under.
func nextFree(th *procThread, from uint32) uint32 {
	for {
		var st unix.Stat_t
		if unix.Fstatat(th.dir, fmt.Sprintf("fd/%d", from), &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			return from
		}
		from++
	}
}

// installLocked puts a duplicate of a descriptor at a number. Session.opening is held.
func (w *worker) installLocked(fd int, number uint32, flags uint64) error {
	t := w.session
	t.forget(int32(number))
	w.pause("addfd")
	_, err := sendAddFD(t.fd, &addFD{
		id: w.n.id, flags: unix.SECCOMP_ADDFD_FLAG_SETFD,
		srcFD: uint32(fd), newFD: number, newFlags: uint32(flags & unix.O_CLOEXEC),
	})
	return err
}

// raiseLimit lets the process have as many descriptors, until restore is called. EMFILE if its hard limit is below
// that.
func (w *worker) raiseLimit(p *process, least uint64) (restore func(), err error) {
	restore = func() {}
	w.pause("limit")
	var limit unix.Rlimit
	// prlimit(2) knows processes by number only: a number that is the process's right before the call.
	if !p.alive() {
		return restore, errGone
	}
	if err := unix.Prlimit(p.pid, unix.RLIMIT_NOFILE, nil, &limit); err != nil || limit.Cur >= least {
		return restore, nil
	}
	raised := unix.Rlimit{Cur: least, Max: limit.Max}
	if raised.Cur > raised.Max {
		w.session.log.Warn("a device file needs a descriptor above the hard limit of open files (ulimit -Hn)",
			"pid", p.pid, "needs", least, "limit", limit.Max)
		return restore, syscall.EMFILE
	}
	if !p.alive() {
		return restore, errGone
	}
	if unix.Prlimit(p.pid, unix.RLIMIT_NOFILE, &raised, nil) != nil {
		return restore, nil
	}
	return func() {
		var now unix.Rlimit
		if p.alive() && unix.Prlimit(p.pid, unix.RLIMIT_NOFILE, nil, &now) == nil && now == raised && p.alive() {
			_ = unix.Prlimit(p.pid, unix.RLIMIT_NOFILE, &limit, nil)
		}
	}, nil
}

// fileInfo is what the stat family shows of an entry beyond what its file in the tree has.
type fileInfo struct {
	mode     uint32
	uid, gid uint32
	major    uint32 // of a device
	minor    uint32
}

func (s *Supervisor) nodeInfo(d *node) fileInfo {
	n := s.cfg.Node
	return fileInfo{mode: unix.S_IFCHR | n.Mode, uid: uint32(n.UID), gid: uint32(n.GID), major: d.major(), minor: d.minor}
}

func (s *Supervisor) info(e *entry) fileInfo {
	switch {
	case e.node != nil:
		return s.nodeInfo(e.node)
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
		st.Rdev, st.Size, st.Blocks = unix.Mkdev(i.major, i.minor), 0, 0
	}
}

func (i fileInfo) applyx(st *unix.Statx_t) {
	st.Mode, st.Uid, st.Gid = uint16(i.mode), i.uid, i.gid
	if i.mode&unix.S_IFMT == unix.S_IFCHR {
		st.Rdev_major, st.Rdev_minor, st.Size, st.Blocks = i.major, i.minor, 0, 0
	}
}

// findFor finds the entry for a call with AT_ flags.
func (w *worker) findFor(path string, flags uint64) (string, *entry, error) {
	return w.find(path, flags&unix.AT_SYMLINK_NOFOLLOW != 0)
}

func (w *worker) stat(path string, flags, buf uint64) verdict {
	fd, info, err := w.openInfo(path, flags)
	if err != nil {
		return fails(err)
	}
	defer unix.Close(fd)
	return w.putStat(fd, info, buf)
}

// openInfo opens what a stat of a virtual path is about, with O_PATH.
func (w *worker) openInfo(path string, flags uint64) (fd int, info fileInfo, err error) {
	s := w.session.sup
	path, e, err := w.findFor(path, flags)
	if err != nil {
		return -1, info, err
	}
	if err := s.tree.make(path, e); err != nil {
		return -1, info, err
	}
	fd, err = s.tree.open(path, unix.O_PATH|unix.O_NOFOLLOW)
	return fd, s.info(e), err
}

func (w *worker) putStat(fd int, info fileInfo, buf uint64) verdict {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fails(err)
	}
	info.apply(&st)
	return fails(w.write(buf, bytesOf(&st)))
}

func (w *worker) statx(path string) verdict {
	fd, info, err := w.openInfo(path, w.n.args[2])
	if err != nil {
		return fails(err)
	}
	defer unix.Close(fd)
	return w.putStatx(fd, info)
}

func (w *worker) putStatx(fd int, info fileInfo) verdict {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, int(uint32(w.n.args[3])), &st); err != nil {
		return fails(err)
	}
	info.applyx(&st)
	return fails(w.write(w.n.args[4], bytesOf(&st)))
}

// statEmptyPath answers a stat whose path may be empty, for the descriptor itself.
func (w *worker) statEmptyPath(c call) verdict {
	flags := w.n.args[3]
	if c == callStatx {
		flags = w.n.args[2]
	}
	if flags&unix.AT_EMPTY_PATH == 0 {
		return verdict{fate: letThrough}
	}
	d := w.descriptor(int32(w.n.args[0]))
	if d == nil {
		return verdict{fate: letThrough}
	}
	return w.withDeviceInfo(d.file, func(fd int, info fileInfo) verdict {
		if c == callStatx {
			return w.putStatx(fd, info)
		}
		return w.putStat(fd, info, w.n.args[2])
	})
}

// statDevice answers fstat of an open device file.
func (w *worker) statDevice(f *openFile) verdict {
	return w.withDeviceInfo(f, func(fd int, info fileInfo) verdict { return w.putStat(fd, info, w.n.args[1]) })
}

// withDeviceInfo answers with what an open device file looks like: as its node does, also when that has gone.
func (w *worker) withDeviceInfo(f *openFile, answer func(fd int, info fileInfo) verdict) verdict {
	s := w.session.sup
	path, info := devDir+"/"+f.node.device, s.nodeInfo(&f.node)
	if _, e := s.tree.lookup(path, false); e != nil && e.node != nil && *e.node == f.node {
		if fd, err := s.tree.open(path, unix.O_PATH|unix.O_NOFOLLOW); err == nil {
			defer unix.Close(fd)
			return answer(fd, info)
		}
	}
	// The file is not to be held while the program's memory is written.
	own := -1
	if f.memory == nil {
		return fails(syscall.EIO)
	}
	if err := f.memory.WithFD(func(fd int) (err error) {
		own, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	}); err != nil {
		return fails(syscall.EIO)
	}
	defer unix.Close(own)
	return answer(own, info)
}

func (w *worker) readlink(path string, buf, size uint64) verdict {
	_, e, err := w.find(path, true)
	switch {
	case err != nil:
		return fails(err)
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
	_, e, err := w.findFor(path, flags)
	if err != nil {
		return fails(err)
	}
	if rights&^(mayRead|mayWrite|mayExecute) != 0 {
		return fails(syscall.EINVAL)
	}
	th, err := w.look()
	if err != nil {
		return fails(err)
	}
	defer th.close()
	id := th.id
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
