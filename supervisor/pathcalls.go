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

// pathCalls answers calls with a path, one at a time.
type pathCalls struct {
	caller *caller
	token  *tokenHolder
	dirs   *directoryCalls
	path   [unix.PathMax]byte // buffer of readPath
	// followed is set if the last cleanPath has followed a link before a "..".
	followed bool
}

// answerPathCall answers a system call with a path. Most files are not virtual, so their calls continue in the kernel.
//
//verbena:parses
func (pc *pathCalls) answerPathCall(c call) callResult {
	a := &pc.caller.n.args
	through := callResult{fate: fateContinued}
	at := 1 // index of the path argument
	switch c {
	case callOpen, callStat, callLstat, callReadlink, callAccess, callGetxattr, callLgetxattr, callListxattr,
		callLlistxattr:
		at = 0
	case callOther:
		return through
	}
	pc.caller.session.processes.execs.recordCallOfThread(pc.caller)
	raw := pc.readPath(a[at])
	if len(raw) == 0 {
		if c == callNewfstatat || c == callStatx {
			return pc.statEmptyPath(c)
		}
		return through
	}
	dirfd := int32(unix.AT_FDCWD)
	if at == 1 {
		dirfd = int32(a[0])
	}
	may := noDirectory
	if c == callOpen || c == callOpenat {
		may = listPurposeOf(a[at+1])
	}
	raw, ok := pc.dirs.absolutePath(dirfd, raw, may)
	if !ok {
		return through
	}
	path, err := pc.cleanPath(raw)
	switch {
	case err == errNotVirtual:
		return through
	case err == nil && !pc.caller.session.tree.isVirtual(path):
		return pc.answerFileSystemCall(c, path, may)
	case err != nil:
		return failWith(err)
	}
	var how [openHowSize]byte
	if c == callOpenat2 {
		if a[3] < openHowSize {
			return through // the kernel reports the error
		}
		if n, err := pc.caller.readMemory(a[2], how[:]); err != nil || n < len(how) {
			return failWith(syscall.EFAULT)
		}
	}
	// The memory that was read belongs to the caller if the caller is still trapped.
	if err := pc.caller.checkTrapped(); err != nil {
		return failWith(err)
	}
	if pc.caller.trace != nil {
		pc.caller.trace.path, pc.caller.trace.flags = path, binary.NativeEndian.Uint64(how[:])
	}
	arg := func(i int) uint64 { return uint64(uint32(a[i])) } // an int; the upper half is undefined
	var v callResult
	switch c {
	case callOpen:
		v = pc.answerOpen(path, arg(1))
	case callOpenat:
		v = pc.answerOpen(path, arg(2))
	case callOpenat2:
		v = pc.answerOpenat2(path, &how)
	case callStat:
		v = pc.answerStat(path, 0, a[1])
	case callLstat:
		v = pc.answerStat(path, unix.AT_SYMLINK_NOFOLLOW, a[1])
	case callNewfstatat:
		v = pc.answerStat(path, arg(3), a[2])
	case callStatx:
		v = pc.answerStatx(path)
	case callReadlink:
		v = pc.answerReadlink(path, a[1], arg(2))
	case callReadlinkat:
		v = pc.answerReadlink(path, a[2], arg(3))
	case callAccess:
		v = pc.answerAccess(path, arg(1), 0)
	case callFaccessat:
		v = pc.answerAccess(path, arg(2), 0)
	case callFaccessat2:
		v = pc.answerAccess(path, arg(2), arg(3))
	case callGetxattr, callListxattr:
		v = pc.answerXattr(c, path, 0)
	case callLgetxattr, callLlistxattr:
		v = pc.answerXattr(c, path, unix.AT_SYMLINK_NOFOLLOW)
	}
	return v
}

// answerFileSystemCall answers a call with a path in the file system. Most of these calls continue in the kernel.
func (pc *pathCalls) answerFileSystemCall(c call, path string, may listPurpose) callResult {
	a := &pc.caller.n.args
	stat := func(buf uint64) func(int) callResult {
		return func(fd int) callResult { return pc.caller.writeStat(fd, fileInfo{}, buf) }
	}
	switch c {
	case callOpen:
		return pc.dirs.openMergedDirectory(path, a[1], may)
	case callOpenat:
		return pc.dirs.openMergedDirectory(path, a[2], may)
	case callStat, callLstat:
		return pc.dirs.statAboveTree(path, stat(a[1]))
	case callNewfstatat:
		return pc.dirs.statAboveTree(path, stat(a[2]))
	case callStatx:
		return pc.dirs.statAboveTree(path, func(fd int) callResult { return pc.caller.writeStatx(fd, fileInfo{}) })
	case callGetxattr, callLgetxattr, callListxattr, callLlistxattr:
		return pc.dirs.statAboveTree(path, func(int) callResult { return unsupportedXattrResult(c) })
	}
	return callResult{fate: fateContinued}
}

// readPath reads a path up to its end. It returns an empty path if the memory cannot be read, since the kernel will
// fail too. The path is valid until the next call of readPath.
func (pc *pathCalls) readPath(addr uint64) []byte {
	const usual = 256
	have := 0
	for _, size := range [...]int{usual, len(pc.path)} {
		n, err := pc.caller.readMemory(addr+uint64(have), pc.path[have:size])
		if err != nil {
			if err == unix.EPERM {
				pc.caller.session.warnOnce(func() error {
					return fmt.Errorf("read thread %d: %w", pc.caller.n.tid, explainAccess(ptraceScope()))
				})
			}
			return nil
		}
		if end := bytes.IndexByte(pc.path[have:have+n], 0); end >= 0 {
			return pc.path[:have+end]
		}
		have += n // after a short read the next read fails, because its page is not mapped
	}
	return nil
}

// errNoFile is the error for a virtual path without a file.
var errNoFile error = syscall.ENOENT

// openHowSize is the size of the first version of struct open_how.
const openHowSize = 24

// answerOpenat2 answers openat2(2). With RESOLVE_NO_SYMLINKS, a link in the path is an error, unless the call opens the
// link itself.
func (pc *pathCalls) answerOpenat2(path string, how *[openHowSize]byte) callResult {
	resolve := binary.NativeEndian.Uint64(how[16:])
	if resolve&(unix.RESOLVE_BENEATH|unix.RESOLVE_IN_ROOT) != 0 {
		return callResult{fate: fateContinued} // the path turned out to be relative or invalid
	}
	flags := binary.NativeEndian.Uint64(how[:])
	if resolve&unix.RESOLVE_NO_SYMLINKS != 0 {
		plain, slash := strings.CutSuffix(path, "/")
		ofLink := flags&(unix.O_PATH|unix.O_NOFOLLOW) == unix.O_PATH|unix.O_NOFOLLOW && !slash
		if to, _ := pc.caller.session.tree.lookup(plain, ofLink); to != plain || pc.followed {
			return failWith(syscall.ELOOP)
		}
	}
	return pc.answerOpen(path, flags)
}

// errNotVirtual makes the kernel execute the call and report its error.
var errNotVirtual = errors.New("the path is not virtual")

// cleanPath makes a path absolute, and removes ".", ".." and empty components by the rules of the kernel. If ".."
// follows a virtual file that is not a directory, cleanPath returns the error of the call. cleanPath returns
// errNotVirtual if ".." follows a component in the file system that is not a plain directory. If the last component
// must be a directory, the resulting path ends in a slash.
func (pc *pathCalls) cleanPath(raw []byte) (path string, err error) {
	pc.followed = false
	var parts []string
	last := ""
	for part := range strings.SplitSeq(string(raw), "/") {
		last = part
		switch part {
		case "", ".":
		case "..":
			if parts, err = pc.parentPath(parts); err != nil {
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

// parentPath removes the last component of a path, which must be a directory. The component may not be a link to a
// directory, because ".." of the link's target is another directory.
func (pc *pathCalls) parentPath(parts []string) ([]string, error) {
	if len(parts) == 0 {
		return parts, nil
	}
	dir := "/" + strings.Join(parts, "/")
	if !pc.caller.session.tree.isVirtual(dir) {
		if !pc.isDirectory(dir) {
			return nil, errNotVirtual
		}
		return parts[:len(parts)-1], nil
	}
	to, e := pc.caller.session.tree.lookup(dir, false)
	pc.followed = pc.followed || to != dir
	dir = to
	switch {
	case e == nil:
		return nil, errNoFile
	case !e.dir:
		return nil, syscall.ENOTDIR
	}
	parts = strings.Split(dir[1:], "/")
	return parts[:len(parts)-1], nil
}

// isDirectory reports whether a path leads to a directory, for the caller and without links.
func (pc *pathCalls) isDirectory(path string) bool {
	pc.token.beginBusy() // the file system may be a program of the user (FUSE)
	th, err := pc.caller.lookUpThread()
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
func (t *procThread) maySearch(dir int) bool { return t.hasRights(dir, mayExecute) }

// hasRights reports whether the mode of a file gives the thread the rights.
func (t *procThread) hasRights(dir int, rights uint32) bool {
	var st unix.Statx_t
	const what = unix.STATX_MODE | unix.STATX_UID | unix.STATX_GID
	if unix.Statx(dir, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, what, &st) != nil {
		return false
	}
	return Node{UID: int(st.Uid), GID: int(st.Gid), Mode: uint32(st.Mode)}.allows(t.id, t.id.uids.fs, t.id.gids.fs, rights)
}

// findEntry returns the entry of a clean path, and the path after following links. With nofollow, the last component is
// not followed. findEntry returns the error of the call if there is no entry, or if the path must be a directory and is
// not.
func (pc *pathCalls) findEntry(path string, nofollow bool) (string, *treeEntry, error) {
	plain, slash := strings.CutSuffix(path, "/")
	path, e := pc.caller.session.tree.lookup(plain, nofollow && !slash)
	switch {
	case e == nil:
		return path, nil, errNoFile
	case slash && !e.dir:
		return path, nil, syscall.ENOTDIR
	}
	return path, e, nil
}

func (pc *pathCalls) answerOpen(path string, flags uint64) callResult {
	tree := pc.caller.session.tree
	path, e, err := pc.findEntry(path, flags&unix.O_NOFOLLOW != 0)
	creates := flags&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL
	mode := flags & unix.O_ACCMODE
	onlyPath := flags&unix.O_PATH != 0
	switch {
	case err == errNoFile && flags&unix.O_CREAT != 0 && !onlyPath:
		return failWith(syscall.EACCES)
	case err != nil:
		return failWith(err)
	case creates && !onlyPath:
		return failWith(syscall.EEXIST)
	case !e.dir && flags&unix.O_DIRECTORY != 0:
		return failWith(syscall.ENOTDIR)
	case e.node != nil && !onlyPath:
		return pc.openDevice(e.node, flags)
	case onlyPath && (e.node != nil || e.link != ""):
		return failWith(syscall.EOPNOTSUPP)
	case onlyPath && e.read != nil:
		pc.token.beginBusy()
		if err := tree.makeDeferredFile(path, e); err != nil {
			return failWith(err)
		}
	case e.dir && !onlyPath && (mode != unix.O_RDONLY || flags&unix.O_CREAT != 0):
		return failWith(syscall.EISDIR)
	case e.dir && (path == ibDir || strings.HasPrefix(path, sysDevices+"/") || strings.HasPrefix(path, "/sys/bus/")):
		pc.token.beginBusy()
		if err := tree.makeAllDeferredFiles(); err != nil {
			return failWith(err)
		}
	case e.read != nil && (mode != unix.O_RDONLY || flags&unix.O_TRUNC != 0):
		return failWith(syscall.EACCES)
	case e.read != nil:
		pc.token.beginBusy()
		if err := tree.refreshFile(path, e); errors.Is(err, errEmptyGID) {
			return pc.caller.installUnreadableFD(flags)
		} else if err != nil {
			return failWith(err)
		}
	}
	if e.dir && !pc.caller.session.sup.trees.mounted {
		// From a directory, ".." could lead up to the root directory of this process.
		th, err := pc.caller.lookUpThread()
		if err != nil {
			return failWith(err)
		}
		elsewhere := th.hasOtherRoot()
		th.close()
		if elsewhere {
			pc.caller.session.warnOnce(func() error {
				return fmt.Errorf("%s is not shown to a program with a separate root directory or separate mounts: only a service with CAP_SYS_ADMIN can show it",
					path)
			})
			return failWith(syscall.EACCES)
		}
	}
	// The open does not use O_PATH, because the kernel does not install such descriptors. A readable descriptor
	// serves the same purpose.
	fd, err := tree.openPath(path, int(flags&(unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_NONBLOCK)))
	if err != nil {
		return failWith(err)
	}
	defer unix.Close(fd)
	if e.dir {
		return pc.dirs.installDirectory(fd, flags)
	}
	return pc.caller.installAndAnswer(fd, flags)
}

// openDevice opens a device file.
func (pc *pathCalls) openDevice(n *deviceNode, flags uint64) callResult {
	pc.token.beginBusy()
	th, err := pc.caller.lookUpThread()
	if err != nil {
		return failWith(err)
	}
	defer th.close()
	id := th.id
	rights := [...]uint32{unix.O_RDONLY: mayRead, unix.O_WRONLY: mayWrite, unix.O_RDWR: mayRead | mayWrite,
		3: mayRead | mayWrite}
	t := pc.caller.session
	if !t.sup.cfg.Node.allows(id, id.uids.fs, id.gids.fs, rights[flags&unix.O_ACCMODE]) {
		return failWith(syscall.EACCES)
	}
	p, space, err := pc.caller.findOrOpenProcess(th)
	if err != nil {
		if !errors.Is(err, errCallerGone) {
			t.warnOnce(func() error { return err })
		}
		return failWith(err)
	}
	o := &opener{process: p, session: t, opened: space, execsBefore: p.execs.Load(), id: id, user: p.user}
	o.nativeDoorbells = !n.cm && !n.stores && t.info.Checks == 0 && pc.caller.mayRingNatively(th, space, flags)
	how := int(flags & unix.O_ACCMODE)
	if how == unix.O_ACCMODE { // neither reading nor writing, only ioctl(2)
		how = unix.O_RDONLY
	}
	pc.caller.pauseForTest("open")
	make := newOpenFile
	if n.cm {
		make, how = newCMFile, how|int(flags&unix.O_NONBLOCK)
	}
	f, description, err := make(t, n, o, how)
	if t.sup.awaitCloses(p.user, err) {
		f, description, err = make(t, n, o, how)
	}
	if err != nil {
		if e := errnoOf(err); e != syscall.ENODEV {
			t.log.Warn("open a device file", "pid", id.pid, "name", id.name, "dev", n.device, "err", err)
		}
		return failWith(err)
	}
	f.opened.Store(true)
	number, err := pc.caller.installCommandFile(th, p, int(description.Fd()), 0, f.hasNativeDoorbells(), flags)
	description.Close()
	if err != nil {
		f.opened.Store(false)
		f.close()
		return failWith(err)
	}
	if f.pipe != nil {
		go f.pipe.watchReaders(f.noteLastClose)
	}
	t.log.Debug("device file opened", "pid", id.pid, "name", id.name, "dev", n.device, "fd", number)
	return callResult{val: int64(number)}
}

func (pc *pathCalls) answerReadlink(path string, buf, size uint64) callResult {
	_, e, err := pc.findEntry(path, true)
	switch {
	case err != nil:
		return failWith(err)
	case e.link == "" || int32(size) <= 0:
		return failWith(syscall.EINVAL)
	}
	target := []byte(e.link)[:min(uint64(len(e.link)), size)]
	if err := pc.caller.writeMemory(buf, target); err != nil {
		return failWith(err)
	}
	return callResult{val: int64(len(target))}
}

// answerXattr answers system calls about extended attributes. Files of /sys and /dev have no readable extended
// attributes.
func (pc *pathCalls) answerXattr(c call, path string, flags uint64) callResult {
	if _, _, err := pc.findEntryWithFlags(path, flags); err != nil {
		return failWith(err)
	}
	return unsupportedXattrResult(c)
}

func unsupportedXattrResult(c call) callResult {
	if c == callGetxattr || c == callLgetxattr {
		return failWith(syscall.EOPNOTSUPP)
	}
	return callResult{}
}

func (pc *pathCalls) answerAccess(path string, rights, flags uint64) callResult {
	_, e, err := pc.findEntryWithFlags(path, flags)
	if err != nil {
		return failWith(err)
	}
	if rights&^(mayRead|mayWrite|mayExecute) != 0 {
		return failWith(syscall.EINVAL)
	}
	th, err := pc.caller.lookUpThread()
	if err != nil {
		return failWith(err)
	}
	defer th.close()
	id := th.id
	uid, gid := id.uids.real, id.gids.real
	if flags&unix.AT_EACCESS != 0 {
		uid, gid = id.uids.effective, id.gids.effective
	}
	info := pc.caller.session.sup.fileInfoOf(e)
	if !(Node{UID: int(info.uid), GID: int(info.gid), Mode: info.mode}).allows(id, uid, gid, uint32(rights)) {
		return failWith(syscall.EACCES)
	}
	return callResult{}
}
