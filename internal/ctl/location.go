package ctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Location is the place at which clients find a service.
type Location struct {
	// Socket is the path of the control socket. Next to the socket is a lock. A service started on demand has a
	// second lock and a log there. The suffixes are .lock, .start and .log.
	Socket string
	// ServiceUser is a user with a trusted service, in addition to root and this user; nil means no such user.
	ServiceUser *int
}

// DefaultLocation returns the location of this user in this network namespace. It is below $XDG_RUNTIME_DIR, or
// else below /tmp. $VERBENA_SOCKET overrides both. DefaultLocation creates the directory, and refuses a directory
// that another user could write to.
func DefaultLocation() (Location, error) {
	if s := os.Getenv("VERBENA_SOCKET"); s != "" {
		return Location{Socket: s}, nil
	}
	dir := os.Getenv("XDG_RUNTIME_DIR")
	if dir != "" && checkOwnDirectory(dir) == nil {
		dir = filepath.Join(dir, "verbena")
	} else {
		dir = filepath.Join("/tmp", fmt.Sprintf("verbena-%d", os.Geteuid()))
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return Location{}, fmt.Errorf("make the directory of the control socket: %w; "+
			"set VERBENA_SOCKET to a path that can be written", err)
	}
	if err := checkOwnDirectory(dir); err != nil {
		return Location{}, err
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &ns); err != nil {
		return Location{}, fmt.Errorf("look up the network namespace: %w", err)
	}
	return Location{Socket: filepath.Join(dir, fmt.Sprintf("net-%d.sock", ns.Ino))}, nil
}

func checkOwnDirectory(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("directory of the control socket: %s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("directory of the control socket: %s is not a directory that only user %d can write to; "+
			"set VERBENA_SOCKET to another path: %w",
			dir, os.Geteuid(), syscall.EPERM)
	}
	return nil
}

// Check returns an error for a path that no socket can have.
func (l Location) Check() error {
	// maxSocketPath is the size of sockaddr_un.sun_path without the NUL.
	const maxSocketPath = 107
	if n := len(l.Socket); n > maxSocketPath {
		return fmt.Errorf("path of the control socket: %d bytes exceed %d; set VERBENA_SOCKET to a shorter path: %w",
			n, maxSocketPath, syscall.ENAMETOOLONG)
	}
	return nil
}

// LogPath returns the path of the log file of a service that was started on demand.
func (l Location) LogPath() string { return l.Socket + ".log" }

// checkTrusted returns an error unless programs may use a service of the given user.
func (l Location) checkTrusted(uid int) error {
	if uid == 0 || OwnIDMap().IsOwn(uid) || l.ServiceUser != nil && uid == *l.ServiceUser {
		return nil
	}
	return fmt.Errorf("the service at %s belongs to user %d, and could access all memory and files of your programs: "+
		"use a service of root, of your own user, or of the user named by --service-user: %w",
		l.Socket, uid, syscall.EPERM)
}
