package supervisor

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// fdRange is the range of numbers from first up to, but not including, end.
type fdRange struct{ first, end uint32 }

func (s fdRange) contains(n uint32) bool { return s.first <= n && n < s.end }

// commandFDSet is the set of descriptor numbers of command files in a program. The filter recognises the descriptors
// that it traps by their number. There are two ranges of numbers:
//
//   - low ends at the limit of select(2), for event loops with few slots. A program with hundreds of open files also
//     gets numbers of this range for other files. Calls on these are trapped, and continue in the kernel.
//   - high and above. These are for programs with other descriptors near the low range.
type commandFDSet struct {
	low fdRange
	// the end of low, for command files with native doorbells, on which write(2) is not trapped (native.go)
	native fdRange
	high   uint32 // equals low.first if few numbers are available
}

const (
	selectLimit = 1024 // FD_SETSIZE
	usualHigh   = 16384
	leastNative = 4096 // minimum hard RLIMIT_NOFILE for native numbers
)

// commandFDsForHardLimit returns the numbers for programs with this hard RLIMIT_NOFILE. All these numbers are below the
// limit.
func commandFDsForHardLimit(hardLimit uint64) commandFDSet {
	end := uint32(min(hardLimit, selectLimit))
	n := commandFDSet{low: fdRange{end / 4 * 3, end}, native: fdRange{end, end}}
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

// contains reports whether the filter treats a number as a command file's number.
func (n *commandFDSet) contains(fd uint32) bool {
	return n.low.contains(fd) || n.high <= fd && fd <= math.MaxInt32
}

// minFreeFDsBelow is the number of free numbers required below a chosen number of the low range. The kernel gives a
// new file of the program the lowest free number. Other threads would therefore have to open minFreeFDsBelow files
// before they could get the chosen number.
const minFreeFDsBelow = 256

// chooseFD returns a free number for a command file, from least on. If rings is true, choose prefers a native
// number. The caller holds Session.opening.
func (n *commandFDSet) chooseFD(th *procThread, least uint32, rings bool) uint32 {
	spans := []fdRange{n.native, {n.low.first, n.native.first}}
	if !rings {
		spans = spans[1:]
	}
	open := th.countDescriptors(n.low.end)
	for _, s := range spans {
		// The program's other descriptors reach the end of the range last.
		for fd := s.end; fd > max(s.first, least) && fd > open+minFreeFDsBelow; {
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

// hasDescriptor reports whether the thread has an open file at a number.
func (t *procThread) hasDescriptor(fd uint32) bool {
	var st unix.Stat_t
	return unix.Fstatat(t.dir, fmt.Sprintf("fd/%d", fd), &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// countDescriptors counts the thread's descriptors, up to the number most.
func (t *procThread) countDescriptors(most uint32) uint32 {
	fd, err := unix.Openat(t.dir, "fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return most
	}
	dir := os.NewFile(uintptr(fd), "fd")
	defer dir.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Size > 0 { // supported since Linux 6.2 (proc_pid_fd(5))
		return uint32(min(st.Size, int64(most)))
	}
	names, err := dir.Readdirnames(int(most))
	if err != nil {
		return most
	}
	return uint32(len(names))
}
