package service

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/internal/principal"
)

// peer is the process and user at the other end of a connection, as reported by the kernel (SO_PEERCRED, unix(7)) and
// not by the client.
type peer struct {
	principal.Principal
	pid int // 0 if the process is not visible in this pid namespace
	uid int
}

// withDescriptor calls f with the connection's descriptor.
func withDescriptor(c *net.UnixConn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) { err = f(int(fd)) })
	if cerr != nil {
		return cerr
	}
	return err
}

// peerOf looks up the peer of a connection. peerOf returns EPERM if the process has ended, since its container is
// then unknown.
func peerOf(c *net.UnixConn, authority *principal.Authority) (p peer, err error) {
	if p.pid, p.uid, err = ctl.PeerCredentials(c); err != nil {
		return p, err
	}
	if p.pid == 0 {
		p.Principal = authority.InaccessiblePrincipal(p.uid)
		return p, nil
	}
	process, err := p.openPidfd(c)
	if err != nil {
		return p, err
	}
	defer process.Close()
	dir, err := p.openProcDir(process)
	if err != nil {
		return p, err
	}
	defer unix.Close(dir)
	p.Principal, err = authority.PrincipalOf(dir, p.uid, p.uid)
	return p, err
}

// openProcDir opens the /proc directory of the peer's process. openProcDir returns EPERM if the process has ended,
// since the kernel may have reused its number.
func (p peer) openProcDir(process *os.File) (int, error) {
	dir, err := unix.Open("/proc/"+strconv.Itoa(p.pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("look up connecting process %d: %w", p.pid, err)
	}
	if hasExited(int(process.Fd())) {
		unix.Close(dir)
		return -1, fmt.Errorf("connecting process %d has ended: %w", p.pid, syscall.EPERM)
	}
	return dir, nil
}

// openPidfd returns a pidfd of the peer's process. While the process runs, its number is not reused. Linux 6.5 and
// later keep a pidfd from the time of the connection (SO_PEERPIDFD). On older kernels, process opens the current
// process of that number and requires it to belong to the peer's user. openPidfd returns EPERM if the process has
// ended or is not visible in this pid namespace.
func (p peer) openPidfd(c *net.UnixConn) (*os.File, error) {
	if p.pid == 0 {
		return nil, fmt.Errorf("the connecting process is in a pid namespace that this service cannot see: run the service in that namespace or in one above it: %w",
			syscall.EPERM)
	}
	pidfd := -1
	err := withDescriptor(c, func(fd int) (err error) {
		pidfd, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		return err
	})
	switch err {
	case nil:
		unix.CloseOnExec(pidfd)
	case unix.ENOPROTOOPT:
		if pidfd, err = p.openPidfdByPID(); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("look up connecting process %d: %w", p.pid, err)
	}
	f := os.NewFile(uintptr(pidfd), "pidfd")
	if hasExited(pidfd) {
		f.Close()
		return nil, fmt.Errorf("connecting process %d has ended: %w", p.pid, syscall.EPERM)
	}
	return f, nil
}

// openPidfdByPID opens a pidfd of the process that has the peer's number now.
func (p peer) openPidfdByPID() (int, error) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return -1, fmt.Errorf("look up connecting process %d: %w", p.pid, err)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+strconv.Itoa(p.pid), &st); err != nil || int(st.Uid) != p.uid && st.Uid != 0 {
		unix.Close(fd)
		return -1, fmt.Errorf("connecting process %d no longer belongs to user %d: %w", p.pid, p.uid, syscall.EPERM)
	}
	return fd, nil
}

// hasExited reports whether the process of a pidfd has ended. A pidfd becomes readable when its process ends.
func hasExited(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// unprivilegedOps lists the requests that users without the right to manage the service may send. These requests
// neither affect other users nor show their objects.
var unprivilegedOps = map[ctl.Op]bool{ctl.OpAttach: true, ctl.OpOpen: true, ctl.OpInfo: true, ctl.OpLinkShow: true,
	ctl.OpResShow: true, ctl.OpStatShow: true, ctl.OpDevShow: true,
	ctl.OpExplain: true, ctl.OpRequests: true, ctl.OpDecisions: true}

func (p peer) authorize(op ctl.Op) error {
	if p.Manager || unprivilegedOps[op] {
		return nil
	}
	return fmt.Errorf("%s: user %v may run programs here, but only root with CAP_SYS_ADMIN or CAP_NET_ADMIN, user %d, the owner of the service, "+
		"and users of `verbena serve --manager-uid` may do this: %w", ctl.ClipText(string(op)), p.Account, os.Geteuid(),
		syscall.EPERM)
}
