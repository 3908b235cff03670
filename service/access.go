package service

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
)

// peer is the process and user at the other end of a connection, as the kernel knows them (SO_PEERCRED, unix(7)), not
// as the client states them.
type peer struct {
	pid int // 0: not to be seen from here
	uid int
}

// control calls f with the connection's descriptor.
func control(c *net.UnixConn, f func(fd int) error) error {
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

func peerOf(c *net.UnixConn) (peer, error) {
	pid, uid, err := ctl.PeerCredentials(c)
	return peer{pid: pid, uid: uid}, err
}

// process returns a descriptor of the peer's process, so that its number is known to stay its own. The kernel has kept
// it since the connection was made (SO_PEERPIDFD, Linux 6.5); an older one is asked for the process that has the number
// now, which has to be the peer's user's. EPERM where it has ended or is not to be seen from here.
func (p peer) process(c *net.UnixConn) (*os.File, error) {
	if p.pid == 0 {
		return nil, fmt.Errorf("the process that connects is in another pid namespace, where this service does not see it: run the service in that namespace or in one above it: %w",
			syscall.EPERM)
	}
	pidfd := -1
	err := control(c, func(fd int) (err error) {
		pidfd, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		return err
	})
	switch err {
	case nil:
		unix.CloseOnExec(pidfd)
	case unix.ENOPROTOOPT:
		if pidfd, err = p.openProcess(); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("look up process %d, which connects: %w", p.pid, err)
	}
	f := os.NewFile(uintptr(pidfd), "pidfd")
	if exited(pidfd) {
		f.Close()
		return nil, fmt.Errorf("process %d, which has connected, has ended: %w", p.pid, syscall.EPERM)
	}
	return f, nil
}

// openProcess opens the process that has the peer's number now.
func (p peer) openProcess() (int, error) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return -1, fmt.Errorf("look up process %d, which connects: %w", p.pid, err)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+strconv.Itoa(p.pid), &st); err != nil || int(st.Uid) != p.uid && st.Uid != 0 {
		unix.Close(fd)
		return -1, fmt.Errorf("process %d, which has connected, is not user %d's any more: %w", p.pid, p.uid, syscall.EPERM)
	}
	return fd, nil
}

// exited reports whether the process of a pidfd has ended: then the pidfd is readable.
func exited(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// ids returns what user ids mean here; tests replace it.
var ids = ctl.IDs

// manages reports whether the peer may do everything: it is root, or the service's own user.
func (p peer) manages() bool { return p.uid == 0 || ids().Own(p.uid) }

// public are the requests of users who may use the devices, but not manage the service: those that neither change
// anything for others nor show what they have.
var public = map[ctl.Op]bool{ctl.OpAttach: true, ctl.OpOpen: true, ctl.OpInfo: true, ctl.OpLinkShow: true, ctl.OpResShow: true, ctl.OpStatShow: true, ctl.OpDevShow: true}

func (p peer) authorize(op ctl.Op) error {
	if p.manages() || public[op] {
		return nil
	}
	return fmt.Errorf("%s: user %d may run programs here, and only root and user %d, whose service it is, may do this: %w",
		ctl.Clip(string(op)), p.uid, os.Geteuid(), syscall.EPERM)
}

// sees reports whether the peer may know of what a user's programs have: its own.
func (p peer) sees(uid int) bool { return p.manages() || uid == p.uid && !ids().Anonymous(uid) }

// visible returns the contexts that the peer may know of: its own. Their keys and numbers are not for other users.
func (p peer) visible(all []ctl.ContextInfo) []ctl.ContextInfo {
	own := []ctl.ContextInfo{}
	for _, c := range all {
		if p.sees(c.UID) {
			own = append(own, c)
		}
	}
	return own
}
