package supervisor

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/internal/sched"
	"verbena/internal/shm"
	"verbena/umem"
	"verbena/uverbs/poller"
)

// Doorbells selects the kind of doorbells, which are the calls by which programs announce posted requests.
//
// A doorbell is a write(2) of 32 bytes to the command file. A trapped doorbell costs two context switches, to a
// thread of this process and back. The supervisor answers a trapped doorbell after its work is done, so the
// doorbell needs no second processor. A native doorbell appends to the queue file, in a part that is never read,
// and takes a quarter of the time. For native doorbells, a thread per user polls the queues (package poller), which
// keeps another processor busy. While that thread sleeps, inotify reports the write.
//
// The kind of doorbells is chosen by the number of the descriptor when a device is opened, because a filter cannot
// be changed.
type Doorbells uint8

const (
	// DoorbellsAuto makes doorbells native while there are enough processors: one for each native device file, and
	// one for each user's thread.
	DoorbellsAuto Doorbells = iota
	DoorbellsTrapped
	DoorbellsNative // native wherever possible
)

// minProcessors is the minimum number of processors at which DoorbellsAuto selects native doorbells.
const minProcessors = 3

// nativeFileCounter counts the device files with native doorbells.
type nativeFileCounter struct {
	mu    sync.Mutex
	all   int
	users map[*quota.User]int
}

// countFile counts another file, and returns false if there are too few processors. give ends the count of a file.
func (n *nativeFileCounter) countFile(u *quota.User, how Doorbells, processors int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	threads := len(n.users)
	if n.users[u] == 0 {
		threads++
	}
	if how == DoorbellsAuto && n.all+1+threads > processors {
		return false
	}
	n.all++
	n.users[u]++
	return true
}

func (n *nativeFileCounter) uncountFile(u *quota.User) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all--
	if n.users[u]--; n.users[u] == 0 {
		delete(n.users, u)
	}
}

// nativeDoorbells holds the resources for a device file's native doorbells.
type nativeDoorbells struct {
	scratch *shm.Scratch
	polled  *poller.PolledSource // nil if no thread polls the queues
}

// descriptorsPerNativeDoorbell is the number of descriptors charged for native doorbells: a descriptor of the queue
// file, and a second watch.
const descriptorsPerNativeDoorbell = 2

// mayRingNatively reports whether the caller's doorbells can be native. The conditions are:
//
//   - The version of the program's libibverbs shows that it uses write(2) for doorbells only, and no limit of the
//     file size turns a doorbell into a signal.
//   - One of the native numbers is free, and within the limits of the process.
//   - Under Yama, the process allows this one to access its memory.
func (c *caller) mayRingNatively(th *procThread, space *umem.Process, flags uint64) bool {
	t := c.session
	native := t.numbers.native
	if native.first == native.end || !t.sup.cfg.Doorbells.canBeNative(sched.Processors()) ||
		t.helper != nil && space.Bound() || flags&unix.O_ACCMODE != unix.O_RDWR {
		return false
	}
	return th.usesWriteForDoorbellsOnly() && th.limitsAllow(uint64(native.end)) && native.contains(t.numbers.chooseFD(th,
		0, true))
}

// canBeNative reports whether native doorbells are possible with this number of processors.
func (d Doorbells) canBeNative(processors int) bool {
	return d == DoorbellsNative || d == DoorbellsAuto && processors >= minProcessors
}

// maxLimitsSize limits the size of the part of proc_pid_limits(5) that is read.
const maxLimitsSize = 64 << 10

// limitsAllow reports whether the process has no limit of the file size, and a hard limit of open files of at least
// files.
func (t *procThread) limitsAllow(files uint64) bool {
	f, err := openAt(t.dir, "limits", unix.O_RDONLY)
	if err != nil {
		return false
	}
	defer f.Close()
	return limitsAllow(io.LimitReader(f, maxLimitsSize), files)
}

func limitsAllow(limits io.Reader, files uint64) bool {
	const unlimited = "unlimited"
	size, open := false, false
	for lines := bufio.NewScanner(limits); lines.Scan(); {
		// Max open files            1024                 4096                 files
		if rest, ok := strings.CutPrefix(lines.Text(), "Max file size "); ok {
			l := strings.Fields(rest)
			size = len(l) >= 2 && l[0] == unlimited
		} else if rest, ok := strings.CutPrefix(lines.Text(), "Max open files "); ok {
			if l := strings.Fields(rest); len(l) >= 2 {
				hard, err := strconv.ParseUint(l[1], 10, 64)
				open = l[1] == unlimited || err == nil && hard >= files
			}
		}
	}
	return size && open
}

// firstIoctlVersion is the first version of rdma-core that sends no command by write(2).
const firstIoctlVersion = 34

// usesWriteForDoorbellsOnly reports whether the thread's program has exactly one libibverbs, in a version that sends
// commands only by ioctl(2).
func (t *procThread) usesWriteForDoorbellsOnly() bool {
	f, err := openAt(t.dir, "maps", unix.O_RDONLY)
	if err != nil {
		return false
	}
	defer f.Close()
	n, ok := majorVersion(findRDMACoreVersion(io.LimitReader(f, maxMapsSize)))
	return ok && n >= firstIoctlVersion
}

// nativeMemory is the queue memory of a file with native doorbells.
type nativeMemory struct {
	queueMemory
	f *openFile
}

// Depart makes the program's doorbells fail from now on. (uverbs.Departer)
func (m nativeMemory) Depart() { m.f.denyWrites() }

// openNativeDoorbells opens the program's description for native doorbells, if another file with native doorbells
// is possible. Otherwise openNativeDoorbells opens the usual description.
func (f *openFile) openNativeDoorbells() (description *os.File, err error) {
	if description, err = f.newNativeDoorbells(); description != nil {
		return description, nil
	}
	if err != nil {
		f.session.log.Warn("doorbells are trapped", "pid", f.pid, "dev", f.node.device, "err", err)
	}
	return f.memory.OpenForProgram(unix.O_RDWR)
}

// newNativeDoorbells makes the resources for native doorbells. If there are too few processors, it makes no resources
// and returns no error.
func (f *openFile) newNativeDoorbells() (description *os.File, err error) {
	s := f.sup
	if !s.natives.countFile(f.user, s.cfg.Doorbells, sched.Processors()) {
		return nil, nil
	}
	if err = f.user.Charge(quota.Descriptors, descriptorsPerNativeDoorbell); err == nil {
		b := &nativeDoorbells{}
		if description, b.scratch, err = f.memory.OpenScratch(); err == nil {
			f.native = b
			return description, nil
		}
		f.user.Release(quota.Descriptors, descriptorsPerNativeDoorbell)
	}
	s.natives.uncountFile(f.user)
	return nil, err
}

// pollDoorbells registers the file's queues with the poller. If the registration fails, doorbells are trapped.
func (f *openFile) pollDoorbells(file poller.Ringer) {
	if f.native == nil {
		return
	}
	var err error
	f.native.polled, err = f.sup.pollers.Add(f.user, poller.Source{
		File: file, Watched: f.native.scratch.Watch, Due: f.native.scratch.IsFreeDue, Tend: f.native.scratch.FreeWrittenPages,
		Who: []any{"uid", f.session.info.UID, "pid", f.pid, "dev", f.node.device},
	})
	if err != nil {
		f.session.log.Warn("doorbells are trapped", "pid", f.pid, "dev", f.node.device, "err", err)
	}
}

// pollStores registers the queues of a file if its program posts by stores to memory.
func (f *openFile) pollStores(file poller.Ringer) (err error) {
	x, ok := file.(interface{ CanPost() bool })
	if !f.node.stores || !ok {
		return nil
	}
	f.stores, err = f.sup.pollers.Add(f.user, poller.Source{
		File: file, Posts: x.CanPost, Who: []any{"uid", f.session.info.UID, "pid", f.pid, "dev", f.node.device},
	})
	return err
}

// hasNativeDoorbells reports whether the file's doorbells are native.
func (f *openFile) hasNativeDoorbells() bool { return f.native != nil && f.native.polled != nil }

// stopPolling ends the polling before the file is closed.
func (f *openFile) stopPolling() {
	if f.hasNativeDoorbells() {
		f.native.polled.Stop()
	}
	if f.stores != nil {
		f.stores.Stop()
	}
}

// closeNativeDoorbells closes the resources that openNativeDoorbells opened.
func (f *openFile) closeNativeDoorbells() {
	if f.native != nil {
		f.native.scratch.Close()
		f.user.Release(quota.Descriptors, descriptorsPerNativeDoorbell)
		f.sup.natives.uncountFile(f.user)
	}
}

// denyWrites makes programs' writes to all descriptors of the file fail. denyWrites can block as long as the program
// blocks the file.
func (f *openFile) denyWrites() {
	if f.native == nil {
		return
	}
	if err := f.native.scratch.DenyWrites(); err != nil && !errors.Is(err, os.ErrClosed) {
		f.session.log.Warn("doorbells of a removed device succeed", "pid", f.pid, "dev", f.node.device, "err", err)
	}
}
