package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/supervisor"
)

// Listener is a location that this process has locked for its service. A location has at most one owner, from
// Listen to Release:
//
//	Listen: lock -> no service answers -> socket --Close--> no socket, still locked --Release--> free
type Listener struct {
	*net.UnixListener
	dir    *os.File // directory of the socket
	name   string   // name of the socket in dir
	socket *os.File // the socket; while the file is open, the kernel does not reuse its inode
	lock   *os.File
	once   sync.Once
}

// listenTimeout limits the time that Listen waits for an ending service. listenTimeout exceeds the time that a
// service takes to end.
const listenTimeout = CloseTimeout + 2*time.Second

// Listen acquires the location for this process. Users with write access under shared's owner and mode may connect.
// If shared is nil, only this user and root may connect.
//
// Listen replaces a socket without a listener. Listen leaves any other file unchanged. Listen returns EADDRINUSE if
// a service or another program answers or the lock is held, EEXIST if the path is not a socket, and EPERM if the
// socket belongs to another user or others may rename files in the directory. Listen waits for an ending service.
// It may sleep.
func Listen(loc ctl.Location, shared *supervisor.Node) (_ *Listener, err error) {
	return listenWithTimeout(loc, shared, listenTimeout)
}

func listenWithTimeout(loc ctl.Location, shared *supervisor.Node, timeout time.Duration) (_ *Listener, err error) {
	if err := loc.Check(); err != nil {
		return nil, err
	}
	l := &Listener{name: filepath.Base(loc.Socket)}
	defer func() {
		if err != nil {
			l.closeFiles()
		}
	}()
	if l.dir, err = openDirectory(filepath.Dir(loc.Socket)); err != nil {
		return nil, fmt.Errorf("listen on the control socket: %w", err)
	}
	if err := l.checkTrusted(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		l.lock, err = openLockedFile(lockPath(loc), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock the control socket: %w", err)
		}
		// The holder of the lock serves, is about to serve, or is ending.
		if isListening(loc) || time.Now().After(deadline) {
			return nil, fmt.Errorf("a service is running already at %s: %w", loc.Socket, syscall.EADDRINUSE)
		}
	}
	if err := l.removeDeadSocket(loc); err != nil {
		return nil, err
	}
	if err := l.createSocket(shared); err != nil {
		return nil, fmt.Errorf("listen on the control socket %s: %w", loc.Socket, err)
	}
	return l, nil
}

// checkTrusted returns an error if users other than the directory's owner can rename files in the directory.
func (l *Listener) checkTrusted() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(l.dir.Fd()), &st); err != nil {
		return fmt.Errorf("directory of the control socket: %w", err)
	}
	if st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("directory of the control socket: others can write to %s, which has no sticky bit, and could place their own service there: %w",
			l.dir.Name(), syscall.EPERM)
	}
	return nil
}

// isListening reports whether a process listens on a location.
func isListening(loc ctl.Location) bool {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: loc.Socket, Net: "unix"})
	if err == nil {
		c.Close()
	}
	return err == nil
}

// removeDeadSocket removes a socket without a listener. The caller holds the lock, so no other service is about to
// listen on the socket.
func (l *Listener) removeDeadSocket(loc ctl.Location) error {
	var st unix.Stat_t
	err := unix.Fstatat(int(l.dir.Fd()), l.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return fmt.Errorf("listen on the control socket: %w", &fs.PathError{Op: "stat", Path: loc.Socket, Err: err})
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return fmt.Errorf("%s exists and is not a socket: it is left unchanged; choose another path for the control socket: %w",
			loc.Socket, syscall.EEXIST)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s is a socket of user %d: it is left unchanged; choose another path for the control socket: %w",
			loc.Socket, st.Uid, syscall.EPERM)
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: procPath(l.dir, l.name), Net: "unix"})
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s is in use by another program: it is left unchanged: %w", loc.Socket, syscall.EADDRINUSE)
	}
	if err := unix.Unlinkat(int(l.dir.Fd()), l.name, 0); err != nil {
		return fmt.Errorf("remove the control socket of a service that has ended: %w",
			&fs.PathError{Op: "unlink", Path: loc.Socket, Err: err})
	}
	return nil
}

// createSocket creates the socket. No other user can connect before the socket has its final owner and mode.
func (l *Listener) createSocket(shared *supervisor.Node) error {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		// The new path gets the mode that the socket has at bind(2). (unix_bind_bsd)
		if cerr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); cerr != nil {
			return cerr
		}
		return err
	}}
	nl, err := config.Listen(context.Background(), "unix", procPath(l.dir, l.name))
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return err
	}
	l.UnixListener = nl.(*net.UnixListener)
	l.UnixListener.SetUnlinkOnClose(false)
	fd, err := unix.Openat(int(l.dir.Fd()), l.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	l.socket = os.NewFile(uintptr(fd), l.name)
	if shared == nil {
		return nil
	}
	return l.setSharedMode(shared)
}

// setSharedMode sets the owner and the mode of the socket to those of shared. setSharedMode returns EPERM if another
// file has replaced the socket.
func (l *Listener) setSharedMode(shared *supervisor.Node) error {
	fd := int(l.socket.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("it has been replaced: %w", syscall.EPERM)
	}
	if err := unix.Fchownat(fd, "", shared.UID, shared.GID, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("set the owner: %w", err)
	}
	if err := os.Chmod(procPath(l.socket, ""), os.FileMode(shared.Mode&0o666)); err != nil {
		return fmt.Errorf("set the mode: %w", err)
	}
	return nil
}

// Close removes the socket, if the path still refers to it, and makes Accept return. The location stays locked.
// Close may be called repeatedly.
func (l *Listener) Close() (err error) {
	l.once.Do(func() {
		runWithTimeout(l.removeSocket) // after a timeout, the next service finds a socket that refuses connections
		err = l.UnixListener.Close()
	})
	return err
}

func (l *Listener) removeSocket() {
	var have, made unix.Stat_t
	if unix.Fstatat(int(l.dir.Fd()), l.name, &have, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		unix.Fstat(int(l.socket.Fd()), &made) == nil &&
		have.Dev == made.Dev && have.Ino == made.Ino {
		_ = unix.Unlinkat(int(l.dir.Fd()), l.name, 0)
	}
}

// CloseAndUnlock unlocks the location. The caller must first release all resources that another service would need.
func (l *Listener) CloseAndUnlock() {
	l.Close()
	l.closeFiles()
}

func (l *Listener) closeFiles() {
	if l.UnixListener != nil && l.socket == nil {
		l.UnixListener.Close()
	}
	for _, f := range []*os.File{l.socket, l.dir, l.lock} {
		if f != nil {
			f.Close()
		}
	}
}
