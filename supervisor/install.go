package supervisor

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// installUnreadableFD gives the program a descriptor on which read(2) fails with EINVAL. The descriptor is a pidfd of
// the program, which holds no resource that the kernel charges to the service.
func (c *caller) installUnreadableFD(flags uint64) callResult {
	th, err := c.lookUpThread()
	if err != nil {
		return failWith(err)
	}
	defer th.close()
	fd, err := unix.PidfdOpen(th.id.pid, 0)
	if err != nil {
		return failWith(c.preferErrCallerGone(err))
	}
	defer unix.Close(fd)
	return c.installAndAnswer(fd, flags)
}

// installAndAnswer gives the program a duplicate of a descriptor, with its number as the call's answer.
func (c *caller) installAndAnswer(fd int, flags uint64) callResult {
	a := addFD{id: c.n.id, flags: unix.SECCOMP_ADDFD_FLAG_SEND, srcFD: uint32(fd),
		newFlags: uint32(flags & unix.O_CLOEXEC)}
	n, err := sendAddFD(c.session.fd, &a)
	if err == nil {
		return callResult{val: int64(n), fate: fateSent}
	}
	if err != unix.EINVAL {
		return failWith(err)
	}
	a.flags = 0 // Linux before 5.14 needs two steps
	n, err = sendAddFD(c.session.fd, &a)
	if err != nil {
		return failWith(err)
	}
	return callResult{val: int64(n)}
}

// installCommandFile gives the program a duplicate of a descriptor of a device file, at a number that the filter traps,
// from least on. A file with native doorbells gets a number without a trap for write(2), if one is free.
func (c *caller) installCommandFile(th *procThread, p *process, fd int, least uint32, rings bool, flags uint64) (int,
	error) {
	t := c.session
	t.opening.Lock()
	defer t.opening.Unlock()
	number := t.numbers.chooseFD(th, least, rings)
	// The number must be below the soft limit only during the install.
	restore, err := c.raiseOpenFileLimit(p, uint64(number)+1)
	if err != nil {
		return -1, err
	}
	defer restore()
	if err = c.installAtFDLocked(fd, number, flags); err == unix.EBADF {
		t.log.Warn("the limit of open files (ulimit -n) is too low, and the service may not raise it", "pid", p.pid, "needs",
			number+1)
		err = syscall.EMFILE
	}
	return int(number), err
}

// installAtLowestFreeFD installs any file at the first free number from least on, within the limit of the program.
func (c *caller) installAtLowestFreeFD(th *procThread, fd int, least uint32, flags uint64) (int, error) {
	c.session.opening.Lock()
	defer c.session.opening.Unlock()
	number := least
	for th.hasDescriptor(number) {
		number++
	}
	return int(number), c.installAtFDLocked(fd, number, flags)
}

// installAtFDLocked installs a duplicate of a descriptor at a number. The caller holds Session.opening.
func (c *caller) installAtFDLocked(fd int, number uint32, flags uint64) error {
	t := c.session
	t.dropCachedFiles(number, number)
	c.pauseForTest("addfd")
	_, err := sendAddFD(t.fd, &addFD{
		id: c.n.id, flags: unix.SECCOMP_ADDFD_FLAG_SETFD,
		srcFD: uint32(fd), newFD: number, newFlags: uint32(flags & unix.O_CLOEXEC),
	})
	return err
}

// raiseOpenFileLimit raises the process's limit of open files to least until the caller calls restore.
// raiseOpenFileLimit returns EMFILE if the hard limit is lower.
func (c *caller) raiseOpenFileLimit(p *process, least uint64) (restore func(), err error) {
	restore = func() {}
	c.pauseForTest("limit")
	var limit unix.Rlimit
	// prlimit(2) takes a process ID. Right before the call, alive shows that the ID still belongs to the process.
	if !p.isAlive() {
		return restore, errCallerGone
	}
	if err := unix.Prlimit(p.pid, unix.RLIMIT_NOFILE, nil, &limit); err != nil || limit.Cur >= least {
		return restore, nil
	}
	raised := unix.Rlimit{Cur: least, Max: limit.Max}
	if raised.Cur > raised.Max {
		c.session.log.Warn("a device file needs a descriptor above the hard limit of open files (ulimit -Hn)",
			"pid", p.pid, "needs", least, "limit", limit.Max)
		return restore, syscall.EMFILE
	}
	if !p.isAlive() {
		return restore, errCallerGone
	}
	if unix.Prlimit(p.pid, unix.RLIMIT_NOFILE, &raised, nil) != nil {
		return restore, nil
	}
	return func() {
		var now unix.Rlimit
		if p.isAlive() && unix.Prlimit(p.pid, unix.RLIMIT_NOFILE, nil, &now) == nil && now == raised && p.isAlive() {
			_ = unix.Prlimit(p.pid, unix.RLIMIT_NOFILE, &limit, nil)
		}
	}, nil
}

// installAtTrappedFD installs a descriptor at a number that the filter traps, from least on. If p is not nil,
// installAtTrappedFD raises the limit of open files if necessary. installAtTrappedFD returns EBADF if the limit
// is too low.
func (c *caller) installAtTrappedFD(th *procThread, p *process, fd int, least uint32, flags uint64) (uint32,
	error) {
	t := c.session
	t.opening.Lock()
	defer t.opening.Unlock()
	number := t.numbers.chooseFD(th, least, false)
	if p != nil {
		restore, err := c.raiseOpenFileLimit(p, uint64(number)+1)
		if err != nil {
			return 0, unix.EBADF
		}
		defer restore()
	}
	return number, c.installAtFDLocked(fd, number, flags)
}
