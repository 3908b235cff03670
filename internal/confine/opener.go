package confine

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"syscall"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"verbena/internal/reopen"
)

// landlockABI is the version of Landlock's interface that StartOpener needs for full protection. With versions before 3
// (Linux 6.2), the thread could truncate files.
const landlockABI = 3

// HasLandlock reports whether the kernel has version landlockABI or later.
func HasLandlock() bool {
	v, err := ll.LandlockGetABIVersion()
	return err == nil && v >= landlockABI
}

// landlockOpener is a thread in a separate Landlock domain, which opens files for the other threads.
type landlockOpener struct {
	asked   chan openRequest
	devices []fileSystemID // file systems with allowed files
}

// fileSystemID identifies a file system.
type fileSystemID struct{ major, minor uint32 }

type openRequest struct {
	fd, how int
	answer  chan<- openResult
}

type openResult struct {
	fd  int
	err error
}

// StartOpener starts a thread in a Landlock domain. From then on until the end of the process, package reopen opens
// files on that thread. The thread can open regular files below the directories, and files without a directory,
// such as memfds. The thread cannot open terminals, devices or FIFOs. The error wraps ENOTSUP if the kernel has no
// Landlock.
//
// StartOpener must be called before FilterProcess, since the filter of FilterProcess refuses Landlock's calls. No other
// thread gets the domain, because the Go runtime does not clone a thread that is locked to its goroutine.
func StartOpener(dirs ...string) error {
	fail := func(err error) error { return fmt.Errorf("confine the thread that opens files: %w", err) }
	o := &landlockOpener{asked: make(chan openRequest)}
	if err := o.recordFileSystems(dirs); err != nil {
		return fail(err)
	}
	ready := make(chan error)
	go o.serveRequests(dirs, ready)
	if err := <-ready; err != nil {
		return fail(err)
	}
	reopen.SetOpener(o.open)
	return nil
}

// recordFileSystems records the file systems of the directories and of memfds.
func (o *landlockOpener) recordFileSystems(dirs []string) error {
	memfd, err := unix.MemfdCreate("device", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	defer unix.Close(memfd)
	st, err := statxWithoutSync(memfd, "")
	if err != nil {
		return err
	}
	o.devices = append(o.devices, fileSystemOf(st))
	for _, d := range dirs {
		if st, err = statxWithoutSync(unix.AT_FDCWD, d); err != nil {
			return err
		}
		o.devices = append(o.devices, fileSystemOf(st))
	}
	return nil
}

func statxWithoutSync(dir int, path string) (*unix.Statx_t, error) {
	var st unix.Statx_t
	// No file system queries a server for this statx.
	if err := unix.Statx(dir, path, unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st); err != nil {
		return nil, fmt.Errorf("statx: %w", err)
	}
	return &st, nil
}

func fileSystemOf(st *unix.Statx_t) fileSystemID { return fileSystemID{st.Dev_major, st.Dev_minor} }

// open opens a regular file of one of the allowed file systems on the opener's thread. open returns EPERM for any
// other file. All users share this thread. A program could block it by a FUSE file's permission check, or by the
// lock of a pipe.
func (o *landlockOpener) open(fd, how int) (int, error) {
	st, err := statxWithoutSync(fd, "")
	if err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || !slices.Contains(o.devices, fileSystemOf(st)) {
		return -1, fmt.Errorf("reopen descriptor %d: not an ordinary file in memory: %w", fd, syscall.EPERM)
	}
	answers := make(chan openResult, 1)
	o.asked <- openRequest{fd, how, answers}
	a := <-answers
	return a.fd, a.err
}

func (o *landlockOpener) serveRequests(dirs []string, ready chan<- error) {
	runtime.LockOSThread() // the lock is permanent
	if unix.Gettid() == unix.Getpid() {
		// The process's main thread represents the process in /proc. While this goroutine occupies the main thread,
		// another goroutine runs on a different thread.
		other := make(chan error)
		go o.serveRequests(dirs, other)
		ready <- <-other
		runtime.UnlockOSThread()
		return
	}
	err := enterLandlockDomain(dirs)
	ready <- err
	if err != nil {
		return // the thread ends
	}
	for r := range o.asked {
		fd, err := reopen.FileOnCallingThread(r.fd, r.how)
		r.answer <- openResult{fd, err}
	}
}

// enterLandlockDomain puts the calling thread into a Landlock domain.
func enterLandlockDomain(dirs []string) error {
	rule := landlock.PathAccess(ll.AccessFSReadFile|ll.AccessFSWriteFile, dirs...)
	ruleset, flags, err := landlock.V7.BestEffort().NewRulesetFD(rule)
	switch {
	case err != nil:
		return err
	case ruleset < 0:
		return fmt.Errorf("no Landlock: %w", syscall.ENOTSUP)
	}
	defer unix.Close(ruleset)
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := ll.LandlockRestrictSelf(ruleset, flags); errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("already in too many domains: %w: %w", syscall.ENOTSUP, err)
	} else if err != nil {
		return err
	}
	return nil
}
