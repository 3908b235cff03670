package supervisor

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A relative path starts at the working directory or at the directory of a descriptor. If that directory is
// virtual, or a directory of the file system above virtual files, the supervisor completes the path and answers it
// like an absolute path. The supervisor identifies the directory by its inode. Calls that are not trapped, and
// paths that leave the tree, continue in the kernel. In the tree, these calls and paths reach the real files of the
// tree.
//
// Descriptors of these directories get numbers that the filter traps, as device files do. A directory above virtual
// files can therefore list the virtual files, and opens relative to it are trapped. A program can use fchdir(2) to
// enter a virtual directory natively. chdir(2) fails, because no process can change the working directory of
// another process.

// baseDirectories holds the directories that a path can be relative to, by inode.
type baseDirectories struct {
	inside    map[inode]string          // directories in the tree
	above     map[inode]string          // directories of the file system
	names     map[string][]virtualChild // virtual entries by the path of the directory above them
	ancestors []string                  // the paths in the field above
}

// virtualChild is a virtual entry of a directory of the file system.
type virtualChild struct {
	name  string
	entry *treeEntry
}

// findBaseDirectories returns the places for a set of entries.
func (t *tree) findBaseDirectories(all treeEntries) *baseDirectories {
	p := &baseDirectories{
		inside: make(map[inode]string), above: make(map[inode]string), names: make(map[string][]virtualChild),
	}
	for path, e := range all {
		if e.dir {
			if i, ok := directoryInodeAt(t.realPath(path)); ok {
				p.inside[i] = path
			}
		}
		up := filepath.Dir(path)
		if all.isVirtual(path) && !all.isVirtual(up) {
			p.names[up] = append(p.names[up], virtualChild{filepath.Base(path), e})
		}
	}
	for path := range p.names {
		slices.SortFunc(p.names[path], func(a, b virtualChild) int { return strings.Compare(a.name, b.name) })
		for ; ; path = filepath.Dir(path) {
			if i, ok := directoryInodeAt(path); ok {
				p.above[i] = path
				p.ancestors = append(p.ancestors, path)
			}
			if path == "/" {
				break
			}
		}
	}
	return p
}

// directoryInodeAt returns the inode of a directory of this process's file system.
func directoryInodeAt(path string) (inode, bool) {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	return inode{st.Dev, st.Ino}, err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// directoryCalls answers calls on directories, one at a time, and completes relative paths.
type directoryCalls struct {
	caller *caller
	token  *tokenHolder
}

// directoryOfLink returns the path of the directory that a link in the caller's directory in /proc refers to. ok is
// false if paths relative to that directory are not completed.
func (dirs *directoryCalls) directoryOfLink(link string) (path string, ok bool) {
	i, err := inodeAt(dirs.caller.n.tid, link)
	if err != nil {
		return "", false
	}
	p := dirs.caller.session.tree.places.Load()
	if path, ok = p.inside[i]; !ok {
		path, ok = p.above[i]
	}
	return path, ok && dirs.caller.checkTrapped() == nil
}

// workingDirectoryLink is the name of the link to the working directory in /proc/TID.
const workingDirectoryLink = "cwd"

// listPurpose is the purpose for which a call may open a directory.
type listPurpose uint8

const (
	noDirectory listPurpose = iota
	anyFile                 // opens a file of any kind for reading
	directory
)

// listPurposeOf derives the listing from the flags of open(2).
func listPurposeOf(flags uint64) listPurpose {
	const may = unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_NOCTTY | unix.O_NOATIME |
		oLargeFile
	switch {
	case uint32(flags)&^may != 0:
		return noDirectory
	case flags&unix.O_DIRECTORY != 0:
		return directory
	}
	return anyFile
}

// absolutePath makes a raw path absolute if it may refer to virtual files, which is rare. A relative path may refer to
// a virtual file if it contains one of virtualWords or opens a directory. Any relative path may refer to a virtual
// file if the working directory is virtual.
func (dirs *directoryCalls) absolutePath(dirfd int32, raw []byte, may listPurpose) (path []byte, ok bool) {
	link := workingDirectoryLink
	switch {
	case raw[0] == '/':
		return raw, hasVirtualWord(raw) || may != noDirectory && dirs.hasVirtualEntries(raw)
	case dirfd != unix.AT_FDCWD:
		link = fdLink(dirfd)
	case !dirs.caller.session.entered.Load() && may != directory && !hasVirtualWord(raw):
		return nil, false
	}
	dir, ok := dirs.directoryOfLink(link)
	return []byte(dir + "/" + string(raw)), ok
}

// hasVirtualEntries reports whether a path names a directory of the file system with virtual entries.
func (dirs *directoryCalls) hasVirtualEntries(path []byte) bool {
	return len(dirs.caller.session.tree.places.Load().names[string(bytes.TrimRight(path, "/"))]) > 0
}

// openMergedDirectory opens a directory of the file system with virtual entries. The program receives a descriptor that
// also lists the virtual entries. The kernel handles all other opens. openMergedDirectory opens only directories known
// to the supervisor, with the rights of the caller.
func (dirs *directoryCalls) openMergedDirectory(path string, flags uint64, may listPurpose) callResult {
	through := callResult{fate: fateContinued}
	path = filepath.Clean(path)
	if may == noDirectory || !dirs.hasVirtualEntries([]byte(path)) {
		return through
	}
	dirs.token.beginBusy()
	th, err := dirs.caller.lookUpThread()
	if err != nil {
		return failWith(err)
	}
	defer th.close()
	if th.hasOtherRoot() {
		return through
	}
	fd, err := unix.Openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return through
	}
	defer unix.Close(fd)
	if !th.hasRights(fd, mayRead) {
		return through
	}
	return dirs.installDirectoryFrom(th, fd, 0, flags)
}

// statAboveTree answers a stat of a directory above the tree, reached by ".." from a virtual directory. The kernel
// would not find that directory.
func (dirs *directoryCalls) statAboveTree(path string, answer func(fd int) callResult) callResult {
	through := callResult{fate: fateContinued}
	path = filepath.Clean(path)
	if !slices.Contains(dirs.caller.session.tree.places.Load().ancestors, path) {
		return through
	}
	dirs.token.beginBusy()
	th, err := dirs.caller.lookUpThread()
	if err != nil {
		return failWith(err)
	}
	elsewhere := th.hasOtherRoot()
	th.close()
	if elsewhere {
		return through
	}
	fd, err := unix.Openat(unix.AT_FDCWD, path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return through
	}
	defer unix.Close(fd)
	return answer(fd)
}

// installDirectory gives the program a descriptor of a directory of the tree as the call's answer.
func (dirs *directoryCalls) installDirectory(fd int, flags uint64) callResult {
	th, err := dirs.caller.lookUpThread()
	if err != nil {
		return failWith(err)
	}
	defer th.close()
	return dirs.installDirectoryFrom(th, fd, 0, flags)
}

// installDirectoryFrom gives the program such a descriptor at a number that the filter traps, from least on. If the
// limit of the program may not be raised, installDirectoryFrom uses any number.
func (dirs *directoryCalls) installDirectoryFrom(th *procThread, fd int, least uint32, flags uint64) callResult {
	number, err := dirs.caller.installAtTrappedFD(th, nil, fd, least, flags)
	if err == unix.EBADF { // the soft limit of open files is too low
		if p, _, perr := dirs.caller.findOrOpenProcess(th); perr == nil {
			number, err = dirs.caller.installAtTrappedFD(th, p, fd, least, flags)
		}
	}
	switch {
	case err == nil:
		return callResult{val: int64(number)}
	case err == unix.EBADF && least == 0:
		return dirs.caller.installAndAnswer(fd, flags)
	case err == unix.EBADF:
		return callResult{fate: fateContinued}
	}
	return failWith(err)
}

// answerFchdir answers fchdir(2), which afterwards continues in the kernel.
func (dirs *directoryCalls) answerFchdir() callResult {
	if _, ok := dirs.directoryOfLink(fdLink(int32(dirs.caller.n.args[0]))); ok {
		dirs.caller.session.entered.Store(true)
	}
	return callResult{fate: fateContinued}
}

// answerGetcwd answers getcwd(2) in a directory of the tree. The returned length includes the zero byte.
func (dirs *directoryCalls) answerGetcwd() callResult {
	through := callResult{fate: fateContinued}
	if !dirs.caller.session.entered.Load() {
		return through
	}
	i, err := inodeAt(dirs.caller.n.tid, workingDirectoryLink)
	if err != nil || dirs.caller.checkTrapped() != nil {
		return through
	}
	path, ok := dirs.caller.session.tree.places.Load().inside[i]
	if !ok {
		return through
	}
	b := append([]byte(path), 0)
	if uint64(len(b)) > dirs.caller.n.args[1] {
		return failWith(syscall.ERANGE)
	}
	if err := dirs.caller.writeMemory(dirs.caller.n.args[0], b); err != nil {
		return failWith(err)
	}
	return callResult{val: int64(len(b))}
}

const (
	// maxListing limits the size of a single read of a directory.
	maxListing = 64 << 10
	// maxRecord exceeds the length of the longest record of a directory (struct linux_dirent64).
	maxRecord    = 288
	recordHeader = 19
)

// answerGetdents answers getdents64(2) of a directory with virtual entries. The first answer includes the virtual
// entries.
func (dirs *directoryCalls) answerGetdents() callResult {
	through := callResult{fate: fateContinued}
	fd := int32(dirs.caller.n.args[0])
	path, ok := dirs.directoryOfLink(fdLink(fd))
	if !ok || len(dirs.caller.session.tree.places.Load().names[path]) == 0 {
		return through
	}
	dirs.token.beginBusy()
	th, err := dirs.caller.lookUpThread()
	if err != nil {
		return failWith(err)
	}
	defer th.close()
	copied, err := dirs.caller.duplicateDescriptor(th, fd)
	if err != nil {
		return through // access is denied (Yama, Docker)
	}
	defer unix.Close(copied)
	if i, ok := directoryInodeOf(copied); !ok || dirs.caller.session.tree.places.Load().above[i] != path {
		return through
	}
	if at, err := unix.Seek(copied, 0, unix.SEEK_CUR); err != nil || at != 0 {
		return through
	}
	records := dirs.caller.session.tree.virtualDirents(copied, path)
	room := int(min(uint64(uint32(dirs.caller.n.args[2])), maxListing)) - len(records)
	if room < maxRecord {
		return through
	}
	buf := make([]byte, room)
	n, err := unix.Getdents(copied, buf)
	if err != nil {
		return failWith(err)
	}
	listing := mergeDirents(buf[:n], records)
	if err := dirs.caller.writeMemory(dirs.caller.n.args[1], listing); err != nil {
		_, _ = unix.Seek(copied, 0, unix.SEEK_SET) // the caller has received no entry
		return failWith(err)
	}
	return callResult{val: int64(len(listing))}
}

func directoryInodeOf(fd int) (inode, bool) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return inode{st.Dev, st.Ino}, err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// virtualDirents returns the virtual entries of a directory of the file system, without names that exist in the file
// system.
func (t *tree) virtualDirents(dir int, path string) (b []byte) {
	for _, c := range t.places.Load().names[path] {
		var st unix.Stat_t
		if unix.Fstatat(dir, c.name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil ||
			unix.Lstat(t.realPath(filepath.Join(path, c.name)), &st) != nil {
			continue
		}
		kind := byte(unix.DT_REG)
		switch {
		case c.entry.dir:
			kind = unix.DT_DIR
		case c.entry.link != "":
			kind = unix.DT_LNK
		case c.entry.node != nil:
			kind = unix.DT_CHR
		}
		size := (recordHeader + len(c.name) + 1 + 7) &^ 7
		r := make([]byte, size)
		binary.NativeEndian.PutUint64(r, st.Ino)
		binary.NativeEndian.PutUint16(r[16:], uint16(size))
		r[18] = kind
		copy(r[recordHeader:], c.name)
		b = append(b, r...)
	}
	return b
}

// mergeDirents returns the records "." and "..", then the virtual records, then all others. A program that walks a
// tree therefore enters the virtual directories while it still has the descriptor of the listing. A program that
// seeks to a virtual record continues after "..".
func mergeDirents(kernel, records []byte) []byte {
	var off uint64
	at := 0
	for b := kernel; len(b) > recordHeader && b[recordHeader] == '.'; b = kernel[at:] {
		off = binary.NativeEndian.Uint64(b[8:])
		at += int(binary.NativeEndian.Uint16(b[16:]))
	}
	for b := records; len(b) > 0; b = b[binary.NativeEndian.Uint16(b[16:]):] {
		binary.NativeEndian.PutUint64(b[8:], off)
	}
	return slices.Concat(kernel[:at], records, kernel[at:])
}
