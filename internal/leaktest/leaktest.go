// Package leaktest makes the tests of a package fail if they leak goroutines, descriptors or shared mappings.
package leaktest

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"go.uber.org/goleak"
)

// closeTimeout limits the wait for descriptors that are closed in the background.
const closeTimeout = 3 * time.Second

// Main is the body of a TestMain function. Main runs the tests of m and ends the process with m's exit code, or
// with 1 if the tests passed but leaked goroutines, descriptors or mappings of shared memory.
func Main(m goleak.TestingM) {
	// The runtime's poller opens its descriptors at its first use.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	before := openDescriptors()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if left := unclosedDescriptors(before, closeTimeout); code == 0 && len(left) > 0 {
			fmt.Fprintf(os.Stderr, "leaktest: the tests leaked %d descriptors and mappings:\n%s\n", len(left),
				strings.Join(left, "\n"))
			code = 1
		}
		os.Exit(code)
	}))
}

// unclosedDescriptors lists the open descriptors that were not open before. It returns when there are none, or after
// the timeout.
func unclosedDescriptors(before map[string]string, wait time.Duration) []string {
	for deadline := time.Now().Add(wait); ; time.Sleep(10 * time.Millisecond) {
		now := openDescriptors()
		maps.DeleteFunc(now, func(fd, _ string) bool { return before[fd] != "" })
		if len(now) == 0 || time.Now().After(deadline) {
			var list []string
			for fd, what := range now {
				list = append(list, fd+" "+what)
			}
			slices.Sort(list)
			return list
		}
	}
}

// openDescriptors lists the open descriptors of this process by number, and its shared mappings of files by address.
func openDescriptors() map[string]string {
	list := map[string]string{}
	maps, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); len(f) > 5 && strings.HasSuffix(f[1], "s") { // address perms offset dev inode path
			list[f[0]] = strings.Join(f[5:], " ")
		}
	}
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		// The descriptor of the directory listing is already closed.
		if what, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			list[e.Name()] = what
		}
	}
	return list
}
