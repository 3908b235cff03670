package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Location is where a service and its clients meet.
type Location struct {
	// Socket is the path of the control socket. Beside it lie a lock and, for a service started on demand, a
	// log, with the suffixes .lock and .log.
	Socket string
}

// DefaultLocation is that of this user in this network namespace: below $XDG_RUNTIME_DIR, else below /tmp;
// $VERBENA_SOCKET overrides it. It makes the directory, and refuses one that another user could write to.
func DefaultLocation() (Location, error) {
	if s := os.Getenv("VERBENA_SOCKET"); s != "" {
		return Location{Socket: s}, nil
	}
	dir := os.Getenv("XDG_RUNTIME_DIR")
	if dir != "" && ownDirectory(dir) == nil {
		dir = filepath.Join(dir, "verbena")
	} else {
		dir = filepath.Join("/tmp", fmt.Sprintf("verbena-%d", os.Geteuid()))
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return Location{}, fmt.Errorf("make the directory of the control socket: %w; set VERBENA_SOCKET to a path that can be written", err)
	}
	if err := ownDirectory(dir); err != nil {
		return Location{}, err
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &ns); err != nil {
		return Location{}, fmt.Errorf("look up the network namespace: %w", err)
	}
	return Location{Socket: filepath.Join(dir, fmt.Sprintf("net-%d.sock", ns.Ino))}, nil
}

func ownDirectory(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("directory of the control socket: %s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("directory of the control socket: %s is not a directory that only user %d can write to; set VERBENA_SOCKET to another path: %w",
			dir, os.Geteuid(), syscall.EPERM)
	}
	return nil
}

// Lock is held by the service that listens, and taken by a client while it starts one.
func (l Location) lock() string { return l.Socket + ".lock" }

// Log is where a service that was started on demand writes its messages.
func (l Location) Log() string { return l.Socket + ".log" }

// flock takes an advisory lock on a file that it makes if need be; how is unix.LOCK_EX or LOCK_SH, with LOCK_NB to
// not wait.
func flock(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := ignoringEINTR(func() error { return unix.Flock(int(f.Fd()), how) }); err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return f, nil
}

func ignoringEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// shmRoot is where the directories of services are: queues are mapped from files there.
const shmRoot = "/dev/shm"

// runDir is the service's own directory on /dev/shm: the trees that programs see, and the queue files. The
// service and every guardian hold a shared lock on it; what nobody holds was left behind and is removed by the
// next service.
type runDir struct {
	path string
	hold *os.File
}

const runDirLock = "lock"

func newRunDir() (*runDir, error) {
	sweepRunDirs()
	path, err := os.MkdirTemp(shmRoot, fmt.Sprintf("verbena-%d-", os.Geteuid()))
	if err != nil {
		return nil, fmt.Errorf("make the service's directory: %w; /dev/shm must be a memory file system with room in it", err)
	}
	hold, err := flock(filepath.Join(path, runDirLock), unix.LOCK_SH|unix.LOCK_NB)
	if err != nil {
		os.RemoveAll(path)
		return nil, fmt.Errorf("make the service's directory: %w", err)
	}
	return &runDir{path: path, hold: hold}, nil
}

func (d *runDir) close() {
	d.hold.Close()
	removeIfUnheld(d.path)
}

// removeIfUnheld removes a service's directory when neither service nor guardian holds it.
func removeIfUnheld(dir string) {
	var st unix.Stat_t
	if unix.Lstat(dir, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
		return
	}
	f, err := flock(filepath.Join(dir, runDirLock), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return
	}
	defer f.Close()
	os.RemoveAll(dir)
}

func sweepRunDirs() {
	dirs, _ := filepath.Glob(filepath.Join(shmRoot, fmt.Sprintf("verbena-%d-*", os.Geteuid())))
	for _, d := range dirs {
		removeIfUnheld(d)
	}
}

// HoldRunDir keeps the directory that a session's files are in while its guardian lives. Release removes it when
// the guardian was the last to hold it.
func HoldRunDir(dir string) (release func(), err error) {
	f, err := flock(filepath.Join(dir, runDirLock), unix.LOCK_SH|unix.LOCK_NB)
	if err != nil {
		return nil, err
	}
	return func() {
		f.Close()
		removeIfUnheld(dir)
	}, nil
}
