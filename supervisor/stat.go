package supervisor

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// fileInfo holds the attributes of an entry that calls of the stat family return instead of the attributes of the
// entry's file in the tree. The zero value leaves the attributes of the file unchanged.
type fileInfo struct {
	mode     uint32
	uid, gid uint32
	major    uint32 // device number
	minor    uint32
}

func (s *Supervisor) nodeInfo(d *deviceNode) fileInfo {
	n := s.cfg.Node
	return fileInfo{mode: unix.S_IFCHR | n.Mode, uid: uint32(n.UID), gid: uint32(n.GID), major: d.major(), minor: d.minor}
}

func (s *Supervisor) fileInfoOf(e *treeEntry) fileInfo {
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

func (i fileInfo) applyToStat(st *unix.Stat_t) {
	if i == (fileInfo{}) {
		return
	}
	st.Mode, st.Uid, st.Gid = i.mode, i.uid, i.gid
	if i.mode&unix.S_IFMT == unix.S_IFCHR {
		st.Rdev, st.Size, st.Blocks = unix.Mkdev(i.major, i.minor), 0, 0
	}
}

func (i fileInfo) applyToStatx(st *unix.Statx_t) {
	if i == (fileInfo{}) {
		return
	}
	st.Mode, st.Uid, st.Gid = uint16(i.mode), i.uid, i.gid
	if i.mode&unix.S_IFMT == unix.S_IFCHR {
		st.Rdev_major, st.Rdev_minor, st.Size, st.Blocks = i.major, i.minor, 0, 0
	}
}

// findEntryWithFlags returns the entry for a call with AT_ flags.
func (pc *pathCalls) findEntryWithFlags(path string, flags uint64) (string, *treeEntry, error) {
	return pc.findEntry(path, flags&unix.AT_SYMLINK_NOFOLLOW != 0)
}

func (pc *pathCalls) answerStat(path string, flags, buf uint64) callResult {
	fd, info, err := pc.openVirtualPathForStat(path, flags)
	if err != nil {
		return failWith(err)
	}
	defer unix.Close(fd)
	return pc.caller.writeStat(fd, info, buf)
}

// openVirtualPathForStat opens the file of a virtual path with O_PATH, for a stat.
func (pc *pathCalls) openVirtualPathForStat(path string, flags uint64) (fd int, info fileInfo, err error) {
	s := pc.caller.session.sup
	path, e, err := pc.findEntryWithFlags(path, flags)
	if err != nil {
		return -1, info, err
	}
	if err := pc.caller.session.tree.makeDeferredFile(path, e); err != nil {
		return -1, info, err
	}
	fd, err = pc.caller.session.tree.openPath(path, unix.O_PATH|unix.O_NOFOLLOW)
	return fd, s.fileInfoOf(e), err
}

func (c *caller) writeStat(fd int, info fileInfo, buf uint64) callResult {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return failWith(err)
	}
	info.applyToStat(&st)
	return failWith(c.writeMemory(buf, bytesOf(&st)))
}

func (pc *pathCalls) answerStatx(path string) callResult {
	fd, info, err := pc.openVirtualPathForStat(path, pc.caller.n.args[2])
	if err != nil {
		return failWith(err)
	}
	defer unix.Close(fd)
	return pc.caller.writeStatx(fd, info)
}

func (c *caller) writeStatx(fd int, info fileInfo) callResult {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, int(uint32(c.n.args[3])), &st); err != nil {
		return failWith(err)
	}
	info.applyToStatx(&st)
	return failWith(c.writeMemory(c.n.args[4], bytesOf(&st)))
}

// statEmptyPath answers a stat with an empty path, which refers to the descriptor itself.
func (pc *pathCalls) statEmptyPath(c call) callResult {
	flags := pc.caller.n.args[3]
	if c == callStatx {
		flags = pc.caller.n.args[2]
	}
	if flags&unix.AT_EMPTY_PATH == 0 {
		return callResult{fate: fateContinued}
	}
	d := pc.caller.lookUpFile(int32(pc.caller.n.args[0]))
	if d == nil {
		return callResult{fate: fateContinued}
	}
	return pc.caller.withDeviceInfo(d.file, func(fd int, info fileInfo) callResult {
		if c == callStatx {
			return pc.caller.writeStatx(fd, info)
		}
		return pc.caller.writeStat(fd, info, pc.caller.n.args[2])
	})
}

// statDevice answers fstat of an open device file.
func (c *caller) statDevice(f *openFile) callResult {
	return c.withDeviceInfo(f, func(fd int, info fileInfo) callResult { return c.writeStat(fd, info, c.n.args[1]) })
}

// withDeviceInfo calls answer with the attributes of an open device file. The attributes equal those of the file's
// device node, even after the node was removed.
func (c *caller) withDeviceInfo(f *openFile, answer func(fd int, info fileInfo) callResult) callResult {
	s := c.session.sup
	path, info := devDir+"/"+f.node.device, s.nodeInfo(&f.node)
	if _, e := c.session.tree.lookup(path, false); e != nil && e.node != nil && *e.node == f.node {
		if fd, err := c.session.tree.openPath(path, unix.O_PATH|unix.O_NOFOLLOW); err == nil {
			defer unix.Close(fd)
			return answer(fd, info)
		}
	}
	// The file must be released before the write to the program's memory.
	own := -1
	if f.memory == nil {
		return failWith(syscall.EIO)
	}
	if err := f.memory.WithFD(func(fd int) (err error) {
		own, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	}); err != nil {
		return failWith(syscall.EIO)
	}
	defer unix.Close(own)
	return answer(own, info)
}
