package supervisor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// pathCall answers a system call with a path. Most files are not virtual, so their calls continue in the kernel.
//
//verbena:parses
func (w *worker) pathCall(c call) verdict {
	a := &w.n.args
	through := verdict{fate: fateContinued}
	at := 1 // index of the path argument
	switch c {
	case callOpen, callStat, callLstat, callReadlink, callAccess, callGetxattr, callLgetxattr, callListxattr,
		callLlistxattr:
		at = 0
	case callOther:
		return through
	}
	w.session.execs.noteCall(w)
	raw := w.readPath(a[at])
	if len(raw) == 0 {
		if c == callNewfstatat || c == callStatx {
			return w.statEmptyPath(c)
		}
		return through
	}
	dirfd := int32(unix.AT_FDCWD)
	if at == 1 {
		dirfd = int32(a[0])
	}
	may := noDirectory
	if c == callOpen || c == callOpenat {
		may = mayList(a[at+1])
	}
	raw, ok := w.fromRoot(dirfd, raw, may)
	if !ok {
		return through
	}
	path, err := w.clean(raw)
	switch {
	case err == errKernel:
		return through
	case err == nil && !isVirtual(path):
		return w.aboveCall(c, path, may)
	case err != nil:
		return failWith(err)
	}
	var how [openHowSize]byte
	if c == callOpenat2 {
		if a[3] < openHowSize {
			return through // the kernel reports the error
		}
		if n, err := w.session.read(int(w.n.tid), a[2], how[:]); err != nil || n < len(how) {
			return failWith(syscall.EFAULT)
		}
	}
	// The memory that was read belongs to the caller if the caller is still trapped.
	if err := w.checkTrapped(); err != nil {
		return failWith(err)
	}
	if w.trace != nil {
		w.trace.path, w.trace.flags = path, binary.NativeEndian.Uint64(how[:])
	}
	arg := func(i int) uint64 { return uint64(uint32(a[i])) } // an int; the upper half is undefined
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
	case callGetxattr, callListxattr:
		v = w.attributes(c, path, 0)
	case callLgetxattr, callLlistxattr:
		v = w.attributes(c, path, unix.AT_SYMLINK_NOFOLLOW)
	}
	return v
}

// aboveCall answers a call with a path in the file system. Most of these calls continue in the kernel.
func (w *worker) aboveCall(c call, path string, may listing) verdict {
	a := &w.n.args
	stat := func(buf uint64) func(int) verdict {
		return func(fd int) verdict { return w.putStat(fd, fileInfo{}, buf) }
	}
	switch c {
	case callOpen:
		return w.openAbove(path, a[1], may)
	case callOpenat:
		return w.openAbove(path, a[2], may)
	case callStat, callLstat:
		return w.statAbove(path, stat(a[1]))
	case callNewfstatat:
		return w.statAbove(path, stat(a[2]))
	case callStatx:
		return w.statAbove(path, func(fd int) verdict { return w.putStatx(fd, fileInfo{}) })
	case callGetxattr, callLgetxattr, callListxattr, callLlistxattr:
		return w.statAbove(path, func(int) verdict { return noAttributes(c) })
	}
	return verdict{fate: fateContinued}
}

// readPath reads a path up to its end. It returns an empty path if the memory cannot be read, since the kernel will
// fail too. The path is valid until the next call of readPath.
func (w *worker) readPath(addr uint64) []byte {
	const usual = 256
	have := 0
	for _, size := range [...]int{usual, len(w.path)} {
		n, err := w.session.read(int(w.n.tid), addr+uint64(have), w.path[have:size])
		if err != nil {
			if err == unix.EPERM {
				w.session.warn(func() error { return fmt.Errorf("read thread %d: %w", w.n.tid, explainAccess(ptraceScope())) })
			}
			return nil
		}
		if end := bytes.IndexByte(w.path[have:have+n], 0); end >= 0 {
			return w.path[:have+end]
		}
		have += n // after a short read the next read fails, because its page is not mapped
	}
	return nil
}

// errNone is the error for a virtual path without a file.
var errNone error = syscall.ENOENT

// openHowSize is the size of the first version of struct open_how.
const openHowSize = 24

func (w *worker) openat2(path string, how *[openHowSize]byte) verdict {
	if resolve := binary.NativeEndian.Uint64(how[16:]); resolve&(unix.RESOLVE_BENEATH|unix.RESOLVE_IN_ROOT) != 0 {
		return verdict{fate: fateContinued} // the path turned out to be relative or invalid
	}
	return w.open(path, binary.NativeEndian.Uint64(how[:]))
}

// errKernel makes the kernel execute the call and report its error.
var errKernel = errors.New("the path is not virtual")

// clean makes a path absolute, and removes ".", ".." and empty components by the rules of the kernel. If ".."
// follows a virtual file that is not a directory, clean returns the error of the call. clean returns errKernel if
// ".." follows a component in the file system that is not a plain directory. If the last component must be a
// directory, the resulting path ends in a slash.
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

// parent removes the last component of a path, which must be a directory. The component may not be a link to a
// directory, because ".." of the link's target is another directory.
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
	dir, e := w.session.tree.lookup(dir, false)
	switch {
	case e == nil:
		return nil, errNone
	case !e.dir:
		return nil, syscall.ENOTDIR
	}
	parts = strings.Split(dir[1:], "/")
	return parts[:len(parts)-1], nil
}

// isDirectory reports whether a path leads to a directory, for the caller and without links.
func (w *worker) isDirectory(path string) bool {
	w.begin(callOpen) // the file system may be a program of the user (FUSE)
	th, err := w.lookUpThread()
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
		// The lookup uses this process's rights, and must not reveal more than the caller's rights allow.
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

// maySearch reports whether the mode of a directory allows the thread to look up names in the directory.
func (t *procThread) maySearch(dir int) bool { return t.may(dir, mayExecute) }

// may reports whether the mode of a file gives the thread the rights.
func (t *procThread) may(dir int, rights uint32) bool {
	var st unix.Statx_t
	const what = unix.STATX_MODE | unix.STATX_UID | unix.STATX_GID
	if unix.Statx(dir, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, what, &st) != nil {
		return false
	}
	return Node{UID: int(st.Uid), GID: int(st.Gid), Mode: uint32(st.Mode)}.allows(t.id, t.id.uids.fs, t.id.gids.fs, rights)
}

// find returns the entry of a clean path, and the path after following links. With nofollow, the last component is
// not followed. find returns the error of the call if there is no entry, or if the path must be a directory and is
// not.
func (w *worker) find(path string, nofollow bool) (string, *entry, error) {
	plain, slash := strings.CutSuffix(path, "/")
	path, e := w.session.tree.lookup(plain, nofollow && !slash)
	switch {
	case e == nil:
		return path, nil, errNone
	case slash && !e.dir:
		return path, nil, syscall.ENOTDIR
	}
	return path, e, nil
}

func (w *worker) open(path string, flags uint64) verdict {
	tree := w.session.tree
	path, e, err := w.find(path, flags&unix.O_NOFOLLOW != 0)
	creates := flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL
	mode := flags & unix.O_ACCMODE
	onlyPath := flags&unix.O_PATH != 0
	switch {
	case err == errNone && flags&unix.O_CREAT != 0 && !onlyPath:
		return failWith(syscall.EACCES)
	case err != nil:
		return failWith(err)
	case creates && !onlyPath:
		return failWith(syscall.EEXIST)
	case !e.dir && flags&unix.O_DIRECTORY != 0:
		return failWith(syscall.ENOTDIR)
	case e.node != nil && !onlyPath:
		return w.openDevice(e.node, flags)
	case onlyPath && (e.node != nil || e.link != ""):
		return failWith(syscall.EOPNOTSUPP)
	case onlyPath && e.read != nil:
		w.begin(callOpen)
		if err := tree.make(path, e); err != nil {
			return failWith(err)
		}
	case e.dir && !onlyPath && (mode != unix.O_RDONLY || flags&unix.O_CREAT != 0):
		return failWith(syscall.EISDIR)
	case e.dir && (path == ibDir || strings.HasPrefix(path, virtualDir)):
		w.begin(callOpen)
		if err := tree.complete(); err != nil {
			return failWith(err)
		}
	case e.read != nil && (mode != unix.O_RDONLY || flags&unix.O_TRUNC != 0):
		return failWith(syscall.EACCES)
	case e.read != nil:
		w.begin(callOpen)
		if err := tree.refresh(path, e); errors.Is(err, errEmpty) {
			return w.installUnreadable(flags)
		} else if err != nil {
			return failWith(err)
		}
	}
	if e.dir && !w.session.sup.trees.mounted {
		// From a directory, ".." could lead up to the root directory of this process.
		th, err := w.lookUpThread()
		if err != nil {
			return failWith(err)
		}
		elsewhere := th.hasOtherRoot()
		th.close()
		if elsewhere {
			w.session.warn(func() error {
				return fmt.Errorf("%s is not shown to a program with a separate root directory or separate mounts: only a service with CAP_SYS_ADMIN can show it",
					path)
			})
			return failWith(syscall.EACCES)
		}
	}
	// The open does not use O_PATH, because the kernel does not install such descriptors. A readable descriptor
	// serves the same purpose.
	fd, err := tree.open(path, int(flags&(unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_NONBLOCK)))
	if err != nil {
		return failWith(err)
	}
	defer unix.Close(fd)
	if e.dir {
		return w.installDirectory(fd, flags)
	}
	return w.installAnswer(fd, flags)
}

// openDevice opens a device file.
func (w *worker) openDevice(n *node, flags uint64) verdict {
	w.begin(callOpen)
	th, err := w.lookUpThread()
	if err != nil {
		return failWith(err)
	}
	defer th.close()
	id := th.id
	rights := [...]uint32{unix.O_RDONLY: mayRead, unix.O_WRONLY: mayWrite, unix.O_RDWR: mayRead | mayWrite,
		3: mayRead | mayWrite}
	t := w.session
	if !t.sup.cfg.Node.allows(id, id.uids.fs, id.gids.fs, rights[flags&unix.O_ACCMODE]) {
		return failWith(syscall.EACCES)
	}
	p, space, err := w.process(th)
	if err != nil {
		if !errors.Is(err, errGone) {
			t.warn(func() error { return err })
		}
		return failWith(err)
	}
	o := &opener{process: p, session: t, id: id, user: p.user}
	o.nativeDoorbells = !n.cm && w.mayRingNatively(th, space, flags)
	how := int(flags & unix.O_ACCMODE)
	if how == unix.O_ACCMODE { // neither reading nor writing, only ioctl(2)
		how = unix.O_RDONLY
	}
	w.pause("open")
	make := newOpenFile
	if n.cm {
		make, how = newCMFile, how|int(flags&unix.O_NONBLOCK)
	}
	f, description, err := make(t, n, o, how)
	if t.sup.awaitCloses(p.user, err) {
		f, description, err = make(t, n, o, how)
	}
	if err != nil {
		if e := errno(err); e != syscall.ENODEV {
			t.log.Warn("open a device file", "pid", id.pid, "name", id.name, "dev", n.device, "err", err)
		}
		return failWith(err)
	}
	f.opened.Store(true)
	number, err := w.installCommandFile(th, p, int(description.Fd()), 0, f.hasNativeDoorbells(), flags)
	description.Close()
	if err != nil {
		f.opened.Store(false)
		f.close()
		return failWith(err)
	}
	if f.pipe != nil {
		go f.pipe.watch(f.noteLastClose)
	}
	t.log.Debug("device file opened", "pid", id.pid, "name", id.name, "dev", n.device, "fd", number)
	return verdict{val: int64(number)}
}

func (w *worker) readlink(path string, buf, size uint64) verdict {
	_, e, err := w.find(path, true)
	switch {
	case err != nil:
		return failWith(err)
	case e.link == "" || int32(size) <= 0:
		return failWith(syscall.EINVAL)
	}
	target := []byte(e.link)[:min(uint64(len(e.link)), size)]
	if err := w.write(buf, target); err != nil {
		return failWith(err)
	}
	return verdict{val: int64(len(target))}
}

// attributes answers system calls about extended attributes. Files of /sys and /dev have no readable extended
// attributes.
func (w *worker) attributes(c call, path string, flags uint64) verdict {
	if _, _, err := w.findFor(path, flags); err != nil {
		return failWith(err)
	}
	return noAttributes(c)
}

func noAttributes(c call) verdict {
	if c == callGetxattr || c == callLgetxattr {
		return failWith(syscall.EOPNOTSUPP)
	}
	return verdict{}
}

func (w *worker) access(path string, rights, flags uint64) verdict {
	_, e, err := w.findFor(path, flags)
	if err != nil {
		return failWith(err)
	}
	if rights&^(mayRead|mayWrite|mayExecute) != 0 {
		return failWith(syscall.EINVAL)
	}
	th, err := w.lookUpThread()
	if err != nil {
		return failWith(err)
	}
	defer th.close()
	id := th.id
	uid, gid := id.uids.real, id.gids.real
	if flags&unix.AT_EACCESS != 0 {
		uid, gid = id.uids.effective, id.gids.effective
	}
	info := w.session.sup.info(e)
	if !(Node{UID: int(info.uid), GID: int(info.gid), Mode: info.mode}).allows(id, uid, gid, uint32(rights)) {
		return failWith(syscall.EACCES)
	}
	return verdict{}
}
