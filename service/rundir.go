package service

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
)

// shmRoot is the parent of the services' directories.
const shmRoot = "/dev/shm"

// runDir is the service's own directory on /dev/shm, which holds the trees that programs see. The service holds a
// shared lock on it. A directory without a lock is stale, and the next service removes that directory.
type runDir struct {
	path string
	hold *os.File
	root *os.Root // root of shmRoot, because a confined process cannot open shmRoot
}

const runDirLock = "lock"

// runDirPrefix returns the prefix of a user's service directories.
func runDirPrefix(uid int) string { return fmt.Sprintf("verbena-%d-", uid) }

func newRunDir() (*runDir, error) {
	type made struct {
		d   *runDir
		err error
	}
	end := make(chan made, 1)
	if !runWithTimeout(func() {
		d, err := makeRunDir()
		end <- made{d, err}
	}) {
		return nil, fmt.Errorf("make the service's directory in %s: not complete after %v: %w; a program may keep the directory locked "+
			"(`fuser -v %[1]s` lists processes that have it open): end that program and start again",
			shmRoot, directoryTimeout, syscall.ETIMEDOUT)
	}
	m := <-end
	return m.d, m.err
}

func makeRunDir() (*runDir, error) {
	root, err := os.OpenRoot(shmRoot)
	if err != nil {
		return nil, fmt.Errorf("make the service's directory: %w", err)
	}
	const attempts = 10 // an attempt fails if a service that starts at the same time sweeps the new directory
	for i := 1; ; i++ {
		path, err := os.MkdirTemp(shmRoot, runDirPrefix(os.Geteuid()))
		if err != nil {
			root.Close()
			return nil, fmt.Errorf("make the service's directory: %w; /dev/shm must be a memory file system with room in it",
				err)
		}
		hold, err := openLockedFile(filepath.Join(path, runDirLock), unix.LOCK_SH|unix.LOCK_NB)
		if err == nil {
			return &runDir{path: path, hold: hold, root: root}, nil
		}
		removeIfUnheld(filepath.Base(path))
		if i == attempts {
			root.Close()
			return nil, fmt.Errorf("make the service's directory: %w", err)
		}
	}
}

// close removes the directory. If a program keeps the directory locked, the next service removes it.
func (d *runDir) close() {
	d.hold.Close()
	runWithTimeout(func() {
		removeIfUnheldIn(d.root, filepath.Base(d.path))
		d.root.Close()
	})
}

// forceRemove removes the directory even if it is locked. forceRemove is for a process that is about to end by force.
func (d *runDir) forceRemove() {
	runWithTimeout(func() { _ = d.root.RemoveAll(filepath.Base(d.path)) })
}

// removeIfUnheld removes a directory of this user's services, by its name in shmRoot, unless a service holds its
// lock.
func removeIfUnheld(name string) {
	if root, err := os.OpenRoot(shmRoot); err == nil {
		defer root.Close()
		removeIfUnheldIn(root, name)
	}
}

// removeIfUnheldIn removes the directory like removeIfUnheld, relative to root.
func removeIfUnheldIn(root *os.Root, name string) {
	if !runDirNames.MatchString(name) || !strings.HasPrefix(name, runDirPrefix(os.Geteuid())) {
		return
	}
	dir, err := openUserDir(nil, filepath.Join(shmRoot, name), os.Geteuid())
	if err != nil {
		return
	}
	defer dir.Close()
	f, err := openLockedFile(procPath(dir, runDirLock), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return
	}
	defer f.Close()
	// The sticky bit of shmRoot prevents other users from reusing the name meanwhile.
	_ = root.RemoveAll(name)
}

// removeStaleDirs removes the directories of services that were killed. A program can block the removing thread in the
// kernel by holding the lock of a directory. Callers must confine the process before sweep, because confinement
// requires every thread to respond.
func (d *runDir) removeStaleDirs() {
	shm, err := d.root.OpenFile(".", os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return
	}
	defer shm.Close()
	names, _ := shm.Readdirnames(-1)
	for _, name := range names {
		removeIfUnheldIn(d.root, name)
	}
}

// The following patterns are the forms of the names of services' directories and sessions.
var (
	runDirNames  = regexp.MustCompile(`^verbena-[0-9]+-[0-9]+$`)
	sessionNames = regexp.MustCompile(`^run/[0-9]+-[0-9]+$`)
)

// SessionName returns the name of a program's session, which is the prefix of its queue files. SessionName returns
// EPERM for a name that no service of its user would choose.
func (c *Client) SessionName(a *ctl.AttachResult) (string, error) {
	return checkSessionName(a.Dir, c.UID())
}

func checkSessionName(name string, uid int) (string, error) {
	below, ok := strings.CutPrefix(name, shmRoot+"/")
	dir, session, _ := strings.Cut(below, "/")
	if !ok || !runDirNames.MatchString(dir) || !strings.HasPrefix(dir, runDirPrefix(uid)) ||
		!sessionNames.MatchString(session) {
		return "", fmt.Errorf("the service of user %d sent the session name %.200q, which is not a name of its sessions: %w", uid, name,
			syscall.EPERM)
	}
	return name, nil
}

// openUserDir opens a directory of a user without following a symbolic link. If at is nil, name is a path.
func openUserDir(at *os.File, name string, uid int) (*os.File, error) {
	fd := unix.AT_FDCWD
	if at != nil {
		fd = int(at.Fd())
	}
	fd, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "fstat", Path: name, Err: err}
	}
	if int(st.Uid) != uid || st.Mode&0o022 != 0 {
		f.Close()
		return nil, fmt.Errorf("directory %s may be writable for users other than %d: %w", name, uid, syscall.EPERM)
	}
	return f, nil
}
