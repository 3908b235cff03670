package service

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// peer is who is at the other end of a connection, as the kernel knows it (SO_PEERCRED, unix(7)): not what a client
// says of itself.
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
	var cred *unix.Ucred
	err := control(c, func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	if err != nil {
		return peer{}, fmt.Errorf("look up the user of a connection: %w", err)
	}
	return peer{pid: int(cred.Pid), uid: int(cred.Uid)}, nil
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

// own reports whether a user id is this process's own. The number that stands for all ids that a user namespace does
// not know never is: it may be anybody's.
func own(uid int) bool { return uid == os.Geteuid() && !ids().anonymous(uid) }

// idMap is what user ids mean here.
type idMap struct {
	overflow int  // what ids are seen as that are not mapped
	all      bool // all ids are mapped
}

func (m idMap) anonymous(uid int) bool { return !m.all && uid == m.overflow }

// ids is read once: the user namespace of a process with several threads does not change.
var ids = sync.OnceValue(func() idMap {
	m := idMap{overflow: 65534}
	if b, err := os.ReadFile("/proc/sys/kernel/overflowuid"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
			m.overflow = n
		}
	}
	b, err := os.ReadFile("/proc/self/uid_map")
	m.all = err == nil && mapsAll(string(b))
	return m
})

// mapsAll reports whether a uid_map maps every id to itself, as that of the first user namespace does.
func mapsAll(uidMap string) bool {
	f := strings.Fields(uidMap)
	return len(f) == 3 && f[0] == "0" && f[1] == "0" && f[2] == "4294967295"
}

// manages reports whether the peer may do everything: it is root, or the service's own user.
func (p peer) manages() bool { return p.uid == 0 || own(p.uid) }

// public are the requests of users who may use the devices, but not manage the service: those that neither change
// anything for others nor tell of them.
var public = map[Op]bool{OpAttach: true, OpInfo: true, OpLinkShow: true, OpResShow: true, OpStatShow: true, OpDevShow: true}

func (p peer) authorize(op Op) error {
	if p.manages() || public[op] {
		return nil
	}
	return fmt.Errorf("%s: user %d may run programs here, and only root and user %d, whose service it is, may do this: %w",
		clip(string(op)), p.uid, os.Geteuid(), syscall.EPERM)
}

// sees reports whether the peer may know of what a user's programs have: its own.
func (p peer) sees(uid int) bool { return p.manages() || uid == p.uid && !ids().anonymous(uid) }

// visible are the contexts that the peer may know of: its own. Their keys and numbers are nobody else's business.
func (p peer) visible(all []ContextInfo) []ContextInfo {
	own := []ContextInfo{}
	for _, c := range all {
		if p.sees(c.UID) {
			own = append(own, c)
		}
	}
	return own
}

// clip shortens what a client has sent to what is fit for a message.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
