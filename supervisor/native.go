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

// Doorbells is how programs ring: announce what they have posted in their queues.
//
// A doorbell is a write(2) of 32 bytes on the command file. Trapped, it takes a change to a thread of this process and
// back, and is answered when the work has been done, for which no other processor is needed. A native one is appended
// to the queue file, to a part that nobody reads, and takes a quarter of that. A thread for all of the user's programs,
// which keeps another processor busy meanwhile, looks at the queues (package poller); while it sleeps, inotify reports
// the write.
//
// That is decided when a device is opened, by the number that the descriptor gets: a filter cannot be changed.
type Doorbells uint8

const (
	// DoorbellsAuto makes them native while there are processors for that: one for each such device file, and one for each
	// user's thread.
	DoorbellsAuto Doorbells = iota
	DoorbellsTrapped
	DoorbellsNative // wherever that is possible
)

// leastProcessors is how many there are for doorbells to be native by themselves.
const leastProcessors = 3

// natives counts the device files that ring natively.
type natives struct {
	mu    sync.Mutex
	all   int
	users map[*quota.User]int
}

// take counts another one, unless there are not processors enough for it. give ends that.
func (n *natives) take(u *quota.User, how Doorbells, processors int) bool {
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

func (n *natives) give(u *quota.User) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all--
	if n.users[u]--; n.users[u] == 0 {
		delete(n.users, u)
	}
}

// bell is what a device file has that rings natively.
type bell struct {
	scratch *shm.Scratch
	polled  *poller.Polled // nil: its queues are not looked at
}

// bellDescriptors is what it costs the service: a descriptor of the queue file, and another watch.
const bellDescriptors = 2

// wantsBell reports whether the caller's doorbells can be native, which takes that
//
//   - the program sends nothing but doorbells by write(2), as its libibverbs tells, and no limit of the size of files makes that a signal;
//   - one of the numbers for that is free, and not beyond what the process has limited itself to;
//   - where Yama restricts ptrace, it lets this process access its memory.
func (w *worker) wantsBell(th *procThread, space *umem.Process, flags uint64) bool {
	t := w.session
	native := t.numbers.native
	if native.first == native.end || !t.sup.cfg.Doorbells.possible(sched.Processors()) ||
		t.helper != nil && space.Bound() || flags&unix.O_ACCMODE != unix.O_RDWR {
		return false
	}
	return th.ringsOnly() && th.limitsLeave(uint64(native.end)) && native.has(t.numbers.choose(th, 0, true))
}

// possible reports whether there is any native doorbell with so many processors.
func (d Doorbells) possible(processors int) bool {
	return d == DoorbellsNative || d == DoorbellsAuto && processors >= leastProcessors
}

// maxLimits bounds what is read of proc_pid_limits(5).
const maxLimits = 64 << 10

// limitsLeave reports whether the process has no limit of the size of files, and a hard one of open files that leaves
// it so many.
func (t *procThread) limitsLeave(files uint64) bool {
	f, err := openAt(t.dir, "limits", unix.O_RDONLY)
	if err != nil {
		return false
	}
	defer f.Close()
	return limitsLeave(io.LimitReader(f, maxLimits), files)
}

func limitsLeave(limits io.Reader, files uint64) bool {
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

// firstRinging is the first version of rdma-core that is known to send no command by write(2) here.
const firstRinging = 34

// ringsOnly reports whether the thread's program has one libibverbs, of a version that sends commands by ioctl(2)
// alone.
func (t *procThread) ringsOnly() bool {
	f, err := openAt(t.dir, "maps", unix.O_RDONLY)
	if err != nil {
		return false
	}
	defer f.Close()
	n, ok := majorOf(rdmaCoreOf(io.LimitReader(f, maxMaps)))
	return ok && n >= firstRinging
}

// nativeMemory is the queues of a file that rings natively.
type nativeMemory struct {
	queueMemory
	f *openFile
}

// Depart lets the program's doorbells fail from now on. (uverbs.Departer)
func (m nativeMemory) Depart() { m.f.bar() }

// openBell opens the program's description for native doorbells, if there may be another file of that kind, and else
// the usual one.
func (f *openFile) openBell() (description *os.File, err error) {
	if description, err = f.newBell(); description != nil {
		return description, nil
	}
	if err != nil {
		f.session.log.Warn("doorbells are trapped", "pid", f.pid, "dev", f.node.device, "err", err)
	}
	return f.memory.OpenForProgram(unix.O_RDWR)
}

// newBell makes what such a file has; nothing, without an error, if there are not processors enough.
func (f *openFile) newBell() (description *os.File, err error) {
	s := f.sup
	if !s.natives.take(f.user, s.cfg.Doorbells, sched.Processors()) {
		return nil, nil
	}
	if err = f.user.Take(quota.Descriptors, bellDescriptors); err == nil {
		b := &bell{}
		if description, b.scratch, err = f.memory.OpenScratch(); err == nil {
			f.bell = b
			return description, nil
		}
		f.user.Give(quota.Descriptors, bellDescriptors)
	}
	s.natives.give(f.user)
	return nil, err
}

// hangBell has the file's queues looked at. Where that cannot be, doorbells are trapped, which finds them as they are.
func (f *openFile) hangBell(file poller.Ringer) {
	if f.bell == nil {
		return
	}
	var err error
	f.bell.polled, err = f.sup.pollers.Add(f.user, poller.Source{
		File: file, Watched: f.bell.scratch.Watch, Due: f.bell.scratch.Due, Tend: f.bell.scratch.Drop,
		Who: []any{"uid", f.session.info.UID, "pid", f.pid, "dev", f.node.device},
	})
	if err != nil {
		f.session.log.Warn("doorbells are trapped", "pid", f.pid, "dev", f.node.device, "err", err)
	}
}

// rings reports whether the file's doorbells are native.
func (f *openFile) rings() bool { return f.bell != nil && f.bell.polled != nil }

// stopBell ends that: the file is about to be closed.
func (f *openFile) stopBell() {
	if f.rings() {
		f.bell.polled.Stop()
	}
}

// closeBell is the end of what openBell has made.
func (f *openFile) closeBell() {
	if f.bell != nil {
		f.bell.scratch.Close()
		f.user.Give(quota.Descriptors, bellDescriptors)
		f.sup.natives.give(f.user)
	}
}

// bar lets the writes of the program's descriptors of the file fail, wherever they are. It may sleep for as long as the
// program likes.
func (f *openFile) bar() {
	if f.bell == nil {
		return
	}
	if err := f.bell.scratch.Bar(); err != nil && !errors.Is(err, os.ErrClosed) {
		f.session.log.Warn("doorbells of a device that has gone do not fail", "pid", f.pid, "dev", f.node.device, "err", err)
	}
}
