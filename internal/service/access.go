package service

import (
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// peer is who is at the other end of a connection, as the kernel knows it (SO_PEERCRED, unix(7)): not what a client
// says of itself.
type peer struct {
	pid int // 0: not to be seen from here
	uid int
}

func peerOf(c *net.UnixConn) (p peer, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return p, err
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if cerr != nil {
		err = cerr
	}
	if err != nil {
		return p, fmt.Errorf("find out who connects: %w", err)
	}
	return peer{pid: int(cred.Pid), uid: int(cred.Uid)}, nil
}

// manages reports whether the peer may do everything: it is root, or the service's own user.
func (p peer) manages() bool { return p.uid == 0 || p.uid == os.Geteuid() }

// public are the requests of users who may use the devices, but not manage the service: those that neither change
// anything for others nor tell of them.
var public = map[Op]bool{OpAttach: true, OpInfo: true, OpLinkShow: true, OpResShow: true, OpStatShow: true, OpDevShow: true}

func (p peer) authorize(op Op) error {
	if p.manages() || public[op] {
		return nil
	}
	return fmt.Errorf("%s: user %d may run programs here, and only root and user %d, whose service it is, may do this: %w",
		op, p.uid, os.Geteuid(), syscall.EPERM)
}

// sees reports whether the peer may know of what a user's programs have: its own.
func (p peer) sees(uid int) bool { return p.manages() || uid == p.uid }

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
