package service

import (
	"errors"
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

// shmRoot is where the directories of services are: queues are mapped from files there.
const shmRoot = "/dev/shm"

// runDir is the service's own directory on /dev/shm: the trees that programs see, and the queue files. The service, and
// each guardian of the same user, holds a shared lock on it; a directory without a lock was left behind and is removed
// by the next service.
type runDir struct {
	path string
	hold *os.File
	root *os.Root // shmRoot, which a confined process cannot open
}

const runDirLock = "lock"

// runDirPrefix begins the names of a user's service directories.
func runDirPrefix(uid int) string { return fmt.Sprintf("verbena-%d-", uid) }

func newRunDir() (*runDir, error) {
	sweepRunDirs()
	root, err := os.OpenRoot(shmRoot)
	if err != nil {
		return nil, fmt.Errorf("make the service's directory: %w", err)
	}
	const attempts = 10 // each one lost to the sweep of a service that starts at the same time
	for i := 1; ; i++ {
		path, err := os.MkdirTemp(shmRoot, runDirPrefix(os.Geteuid()))
		if err != nil {
			root.Close()
			return nil, fmt.Errorf("make the service's directory: %w; /dev/shm must be a memory file system with room in it", err)
		}
		hold, err := flock(filepath.Join(path, runDirLock), unix.LOCK_SH|unix.LOCK_NB)
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

func (d *runDir) close() {
	d.hold.Close()
	removeIfUnheldIn(d.root, filepath.Base(d.path))
	d.root.Close()
}

// remove removes the directory even if it is locked: for a process that is about to end by force.
func (d *runDir) remove() {
	_ = d.root.RemoveAll(filepath.Base(d.path))
}

// removeIfUnheld removes a directory of this user's services, by its name in shmRoot, when neither service nor guardian
// holds it.
func removeIfUnheld(name string) {
	if root, err := os.OpenRoot(shmRoot); err == nil {
		defer root.Close()
		removeIfUnheldIn(root, name)
	}
}

// removeIfUnheldIn does so by shmRoot, which is open.
func removeIfUnheldIn(root *os.Root, name string) {
	if !runDirNames.MatchString(name) || !strings.HasPrefix(name, runDirPrefix(os.Geteuid())) {
		return
	}
	dir, err := openBelow(nil, filepath.Join(shmRoot, name), os.Geteuid())
	if err != nil {
		return
	}
	defer dir.Close()
	f, err := flock(procPath(dir, runDirLock), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return
	}
	defer f.Close()
	// The sticky bit of shmRoot keeps others from giving the name to something else meanwhile.
	_ = root.RemoveAll(name)
}

func sweepRunDirs() {
	entries, _ := os.ReadDir(shmRoot)
	for _, e := range entries {
		removeIfUnheld(e.Name())
	}
}

// The names that services give their directories and those of sessions.
var (
	runDirNames     = regexp.MustCompile(`^verbena-[0-9]+-[0-9]+$`)
	sessionDirNames = regexp.MustCompile(`^[0-9]+-[0-9]+$`)
)

// SessionDir is the directory of a session's queue files, as its launcher has it.
type SessionDir struct {
	service *os.File // the service's directory
	dir     *os.File
	uid     int // of the service
}

// OpenSessionDir opens the directory that the service has named, if it is one that a service makes: below shmRoot, by
// names of the usual form, each step a directory of the service's own that others cannot write to. Nothing is looked up
// by path afterwards. EPERM for any other.
func (c *Client) OpenSessionDir(a *ctl.Attached) (*SessionDir, error) {
	return openSessionDir(a.Dir, c.UID())
}

func openSessionDir(path string, uid int) (_ *SessionDir, err error) {
	names := strings.Split(strings.TrimPrefix(path, shmRoot+"/"), "/")
	if !strings.HasPrefix(path, shmRoot+"/") || len(names) != 3 ||
		!runDirNames.MatchString(names[0]) || !strings.HasPrefix(names[0], runDirPrefix(uid)) || names[1] != "run" ||
		!sessionDirNames.MatchString(names[2]) {
		return nil, fmt.Errorf("the service of user %d names the directory %.200q, which is none of a session: %w",
			uid, path, syscall.EPERM)
	}
	d := &SessionDir{uid: uid}
	if d.service, err = openBelow(nil, filepath.Join(shmRoot, names[0]), uid); err != nil {
		return nil, err
	}
	run, err := openBelow(d.service, names[1], uid)
	if err == nil {
		d.dir, err = openBelow(run, names[2], uid)
		run.Close()
	}
	if err != nil {
		d.service.Close()
		return nil, err
	}
	return d, nil
}

// openBelow opens a directory of a user's, without following a symbolic link; at is nil for a path.
func openBelow(at *os.File, name string, uid int) (*os.File, error) {
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
		return nil, fmt.Errorf("directory %s is not one that only user %d can write to: %w", name, uid, syscall.EPERM)
	}
	return f, nil
}

// Hold keeps the service's directory while the guardian lives, where the service is this user's own; that of another
// user's goes when a next service of that user starts. release removes the directory if the guardian was the last to
// hold it.
func (d *SessionDir) Hold() (release func()) {
	if d.uid != os.Geteuid() {
		return func() {}
	}
	f, err := flock(procPath(d.service, runDirLock), unix.LOCK_SH|unix.LOCK_NB)
	if err != nil {
		return func() {}
	}
	name := filepath.Base(d.service.Name())
	return func() {
		f.Close()
		removeIfUnheld(name)
	}
}

// Queues opens the queue files that are there: ordinary files of this user's, or any user's where the service is root's
// and so is this process. The caller closes them.
func (d *SessionDir) Queues() (files []*os.File, err error) {
	entries, err := os.ReadDir(procPath(d.dir, ""))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // an orderly end has completed and removed everything
	}
	if err != nil {
		return nil, fmt.Errorf("list the queues of a session: %w", err)
	}
	var errs []error
	for _, e := range entries {
		fd, err := unix.Openat(int(d.dir.Fd()), e.Name(), unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, &fs.PathError{Op: "open", Path: e.Name(), Err: err})
			continue
		}
		f := os.NewFile(uintptr(fd), e.Name())
		if err := d.owns(f); err != nil {
			f.Close()
			errs = append(errs, err)
			continue
		}
		files = append(files, f)
	}
	return files, errors.Join(errs...)
}

// Mount returns the id of the mount that the directory is on, as MountID finds it.
func (d *SessionDir) Mount() (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", d.dir.Fd()))
	if err != nil {
		return "", fmt.Errorf("look up the mount of a session's directory: %w", err)
	}
	id := MountID(string(b))
	if id == "" {
		return "", fmt.Errorf("look up the mount of a session's directory: no mnt_id in its fdinfo: %w", syscall.ENOTSUP)
	}
	return id, nil
}

// MountID returns the mount id in the text of /proc/PID/fdinfo/FD (proc_pid_fdinfo(5)), "" if there is none.
func MountID(fdinfo string) string {
	for line := range strings.Lines(fdinfo) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strings.TrimSpace(id)
		}
	}
	return ""
}

// owns reports an error unless the file is a program's queue file.
func (d *SessionDir) owns(f *os.File) error {
	if os.Geteuid() != 0 || d.uid != 0 {
		return ordinary(f)
	}
	// A program that root has started may have become another user since; and no other user can name files here.
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("%s is not an ordinary file: %w", f.Name(), syscall.EPERM)
	}
	return err
}

// Close closes the directory.
func (d *SessionDir) Close() {
	d.dir.Close()
	d.service.Close()
}
