package supervisor

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// span is the numbers from first on, without end.
type span struct{ first, end uint32 }

func (s span) has(n uint32) bool { return s.first <= n && n < s.end }

// numbers are the descriptor numbers that command files get in a program. The filter recognises the descriptors that
// it traps by their number. There are two ranges:
//
//   - low ends where select(2) ends, for event loops with few slots. A program that has hundreds of files open gets
//     numbers of it for other files too. Calls on these are trapped and let through.
//   - high and above. These are for programs whose own descriptors come near the low range.
type numbers struct {
	low    span
	native span   // the end of low, whose write(2) is not trapped: for command files that ring natively (native.go)
	high   uint32 // low.first if few numbers are to be had
}

const (
	selectLimit = 1024 // FD_SETSIZE
	usualHigh   = 16384
	leastNative = 4096 // the least hard RLIMIT_NOFILE with native numbers
)

// numbersFor returns the numbers in programs with this hard RLIMIT_NOFILE. All numbers are below it.
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

// has reports whether the filter takes a number for that of a command file.
func (n *numbers) has(fd uint32) bool { return n.low.has(fd) || n.high <= fd && fd <= math.MaxInt32 }

// room is how many numbers must be free below one of the low range that is given out. The kernel gives a new file of
// the program the lowest free number, so other threads of the program would have to open as many files before the
// number is taken.
const room = 256

// choose finds a free number for a command file, from least on. One that rings natively gets a native number, if one
// is free. Session.opening is held.
func (n *numbers) choose(th *procThread, least uint32, rings bool) uint32 {
	spans := []span{n.native, {n.low.first, n.native.first}}
	if !rings {
		spans = spans[1:]
	}
	open := th.descriptors(n.low.end)
	for _, s := range spans {
		// From the end, which the program's own descriptors reach last.
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
