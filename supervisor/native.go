package supervisor

import (
	"bufio"
	"fmt"
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
// A doorbell is a write(2) of 32 bytes on the command file. Trapped, it takes a change to a thread of this process and back, which answers when it has
// done what was asked for, and no processor but the program's. Natively it goes to the queue file, to a part that nobody reads, and takes a
// quarter of that; a thread for all of the user's programs, which keeps another processor busy meanwhile, looks at the queues (package poller),
// and when it sleeps, inotify reports the write.
//
// Which of them is decided when a device is opened, by the number that the descriptor gets: a filter cannot be changed.
type Doorbells uint8

const (
	// DoorbellsAuto is natively while there are processors enough: one for each device file of that kind, one for each user's thread.
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
	process *process // that opened it
	scratch *shm.Scratch
	polled  *poller.Polled // nil: its queues are not looked at

	mu     sync.Mutex
	number int32 // of its descriptor there; 0: it has none yet
	barred bool
}

// bellCharges is what it costs: a descriptor of the queue file, another watch, and what the program writes before it is taken away.
var bellCharges = charges{{quota.Descriptors, 2}, {quota.RingBytes, 256 << 10}}

// wantsBell reports whether the caller's doorbells can be native, which takes that
//
//   - the program sends nothing but doorbells by write(2), as its libibverbs tells, and no limit of the size of files makes that a signal;
//   - this process can reach the program's description of the file, so that a write fails once the device has gone.
func (w *worker) wantsBell(th *procThread, p *process, flags uint64) bool {
	t := w.session
	if _, end := nativeFDs(t.firstFD); end == 0 || !t.sup.cfg.Doorbells.possible() || t.helper != nil || flags&unix.O_ACCMODE != unix.O_RDWR {
		return false
	}
	return th.ringsOnly() && w.writesFreely(p) && sharesFiles(th.id.pid, int(w.n.tid)) && p.lendsFiles()
}

// possible reports whether there is any native doorbell.
func (d Doorbells) possible() bool {
	return d == DoorbellsNative || d == DoorbellsAuto && sched.Processors() >= leastProcessors
}

// writesFreely reports whether the process has no limit of the size of files (setrlimit(2), RLIMIT_FSIZE).
func (w *worker) writesFreely(p *process) bool {
	var limit unix.Rlimit
	// prlimit(2) knows processes by number only: a number that is the process's before and after.
	return p.alive() && unix.Prlimit(p.pid, unix.RLIMIT_FSIZE, nil, &limit) == nil && limit.Cur == umem.Unlimited && p.alive()
}

// lendsFiles reports whether this process may take duplicates of the descriptors of the process (pidfd_getfd(2)).
func (p *process) lendsFiles() bool {
	const none = 1<<31 - 1
	var err error
	if cerr := p.conn.Control(func(pidfd uintptr) { _, err = unix.PidfdGetfd(int(pidfd), none, 0) }); cerr != nil {
		return false
	}
	return err == unix.EBADF
}

// firstRinging is the first version of rdma-core that is known to send no command by write(2) here.
const firstRinging = 34

// maxMaps bounds what is read to find a library.
const maxMaps = 16 << 20

// ringsOnly reports whether the thread's program has one libibverbs, of a version that sends commands by ioctl(2) alone.
func (t *procThread) ringsOnly() bool {
	f, err := openAt(t.dir, "maps", unix.O_RDONLY)
	if err != nil {
		return false
	}
	defer f.Close()
	return ringsOnly(io.LimitReader(f, maxMaps))
}

// ringsOnly does the same with proc_pid_maps(5).
func ringsOnly(maps io.Reader) bool {
	const name = "/libibverbs.so."
	found := ""
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		line := lines.Text()
		at := strings.LastIndex(line, name)
		if at < 0 {
			continue
		}
		path := line[strings.IndexByte(line, '/'):]
		if found != "" && found != path {
			return false
		}
		found = path
		// 1.14.44.0: of the interface, and of the package.
		v := strings.Split(line[at+len(name):], ".")
		if len(v) != 4 {
			return false
		}
		if n, err := strconv.Atoi(v[2]); err != nil || n < firstRinging {
			return false
		}
	}
	return found != ""
}

// nativeMemory is the queues of a file that rings natively.
type nativeMemory struct {
	queueMemory
	f *openFile
}

// Depart has the program's doorbells fail from now on. (uverbs.Departer)
func (m nativeMemory) Depart() { m.f.bar() }

// openBell makes what a file has that rings natively, if another may, and opens the program's description for that.
func (f *openFile) openBell(p *process) (description *os.File, err error) {
	s := f.sup
	if !s.natives.take(f.user, s.cfg.Doorbells, sched.Processors()) {
		return f.memory.OpenForProgram(unix.O_RDWR)
	}
	if err = bellCharges.take(f.user); err == nil {
		b := &bell{process: p}
		if description, b.scratch, err = f.memory.OpenScratch(); err == nil {
			f.bell = b
			return description, nil
		}
		bellCharges.give(f.user)
	}
	s.natives.give(f.user)
	f.trapped(err)
	return f.memory.OpenForProgram(unix.O_RDWR)
}

// trapped logs why the file's doorbells are trapped.
func (f *openFile) trapped(why error) {
	f.session.log.Warn("doorbells are trapped", "pid", f.pid, "dev", f.node.device, "err", why)
}

// hangBell has the file's queues looked at. Where that cannot be, doorbells are trapped, which finds them as they are.
func (f *openFile) hangBell(file poller.Ringer) {
	if f.bell == nil {
		return
	}
	var err error
	f.bell.polled, err = f.sup.pollers.Add(f.user, poller.Source{
		File: file, Watched: f.bell.scratch.Watch, Due: func() bool { return true }, Tend: f.bell.scratch.Drop,
		Who: []any{"uid", f.session.info.UID, "pid", f.pid, "dev", f.node.device},
	})
	if err != nil {
		f.trapped(err)
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
		bellCharges.give(f.user)
		f.sup.natives.give(f.user)
	}
}

// given notes under which number the program has the file.
func (f *openFile) given(number int) {
	b := f.bell
	if b == nil {
		return
	}
	b.mu.Lock()
	b.number = int32(number)
	barred := b.barred
	b.mu.Unlock()
	if barred {
		f.bar()
	}
}

// bar has the writes of the program's descriptors of the file fail. It may sleep, for some milliseconds, and for as long as a process that has
// the file executes another program.
func (f *openFile) bar() {
	b := f.bell
	if b == nil {
		return
	}
	b.mu.Lock()
	b.barred = true
	number := b.number
	b.mu.Unlock()
	if number == 0 {
		return // given will see to it
	}
	is := func(i inode) bool { return i == f.inode }
	done := false
	_ = b.process.conn.Control(func(pidfd uintptr) { done = bar(int(pidfd), b.process.pid, number, is) })
	if done {
		return
	}
	// The process has closed it, or has ended, and another one has it.
	for _, pid := range numbers("/proc") {
		if pid != os.Getpid() && barAll(pid, is) {
			return
		}
	}
	f.session.log.Warn("doorbells of a device that has gone do not fail: no process is found that has it open", "pid", f.pid, "dev", f.node.device)
}

// numbers lists the files of a directory in /proc whose names are numbers.
func numbers(dir string) (list []int) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			list = append(list, n)
		}
	}
	return list
}

// BarDoorbells has the writes of a process fail that are native doorbells on some queue files, given by device and inode number: their service
// has ended. It may sleep, for some milliseconds.
func BarDoorbells(pid int, is func(dev, ino uint64) bool) {
	barAll(pid, func(i inode) bool { return is(i.dev, i.ino) })
}

// barAll does so for all descriptors of a process, and reports whether there was one.
func barAll(pid int, is func(inode) bool) (done bool) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(pidfd)
	for _, number := range numbers(fmt.Sprintf("/proc/%d/fd", pid)) {
		done = bar(pidfd, pid, int32(number), is) || done
	}
	return done
}

// bar does so for one descriptor of a process, if it is of such a file. Of other files none is taken: to close it could have effects.
func bar(pidfd, pid int, number int32, is func(inode) bool) bool {
	if i, err := inodeOf(uint32(pid), number); err != nil || !is(i) {
		return false
	}
	fd, err := unix.PidfdGetfd(pidfd, int(number), 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && is(inode{st.Dev, st.Ino}) && shm.Bar(fd)
}
