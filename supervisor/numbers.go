package supervisor

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// span holds the numbers from first up to, but not including, end.
type span struct{ first, end uint32 }

func (s span) has(n uint32) bool { return s.first <= n && n < s.end }

// numbers holds the descriptor numbers of command files in a program. The filter recognises the descriptors that
// it traps by their number. There are two ranges:
//
//   - low ends at the limit of select(2), for event loops with few slots. A program with hundreds of open files also
//     gets numbers of this range for other files. Calls on these are trapped, and continue in the kernel.
//   - high and above. These are for programs with other descriptors near the low range.
type numbers struct {
	low    span
	native span   // the end of low, without traps for write(2): for command files with native doorbells (native.go)
	high   uint32 // low.first if few numbers are available
}

const (
	selectLimit = 1024 // FD_SETSIZE
	usualHigh   = 16384
	leastNative = 4096 // least hard RLIMIT_NOFILE with native numbers
)

// numbersFor returns the numbers for programs with this hard RLIMIT_NOFILE. All numbers are below it.
func numbersFor(hardLimit uint64) numbers {
	end := uint32(min(hardLimit, selectLimit))
	n := numbers{low: span{end / 4 * 3, end}, native: span{end, end}}
	switch {
	case hardLimit >= 2*usualHigh:
		n.high = usualHigh
	case hardLimit > selectLimit:
		n.high = max(uint32(hardLimit/4*3), end)
	default:
		n.high = n.low.first
	}
	if hardLimit >= leastNative {
		n.native.first = end - (end-n.low.first)/4
	}
	return n
}

// has reports whether the filter treats a number as that of a command file.
func (n *numbers) has(fd uint32) bool { return n.low.has(fd) || n.high <= fd && fd <= math.MaxInt32 }

// room is the number of free numbers required below a chosen number of the low range. The kernel gives a new file of
// the program the lowest free number. So other threads would have to open room files before they could take the chosen
// number.
const room = 256

// choose returns a free number for a command file, from least on. If rings is true, it prefers a native number. The
// caller holds Session.opening.
func (n *numbers) choose(th *procThread, least uint32, rings bool) uint32 {
	spans := []span{n.native, {n.low.first, n.native.first}}
	if !rings {
		spans = spans[1:]
	}
	open := th.descriptors(n.low.end)
	for _, s := range spans {
		// The program's other descriptors reach the end last.
		for fd := s.end; fd > max(s.first, least) && fd > open+room; {
			if fd--; !th.hasDescriptor(fd) {
				return fd
			}
		}
	}
	fd := max(n.high, least)
	for th.hasDescriptor(fd) {
		fd++
	}
	return fd
}

// hasDescriptor reports whether the thread has a file under a number.
func (t *procThread) hasDescriptor(fd uint32) bool {
	var st unix.Stat_t
	return unix.Fstatat(t.dir, fmt.Sprintf("fd/%d", fd), &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// descriptors counts the thread's descriptors, up to most.
func (t *procThread) descriptors(most uint32) uint32 {
	fd, err := unix.Openat(t.dir, "fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return most
	}
	dir := os.NewFile(uintptr(fd), "fd")
	defer dir.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Size > 0 { // from Linux 6.2 on (proc_pid_fd(5))
		return uint32(min(st.Size, int64(most)))
	}
	names, err := dir.Readdirnames(int(most))
	if err != nil {
		return most
	}
	return uint32(len(names))
}
