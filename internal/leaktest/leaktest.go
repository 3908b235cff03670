// Package leaktest fails the tests of a package that leave goroutines, descriptors or shared mappings behind.
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

// patience bounds the wait for descriptors that are closed in the background.
const patience = 3 * time.Second

// Main is for TestMain. It runs the tests of m and ends the process: with m's exit code, or with 1 if they have passed
// and left goroutines, descriptors or mappings of shared memory behind.
func Main(m goleak.TestingM) {
	// The runtime's poller has descriptors of its own from its first use on.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	before := descriptors()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if left := leftOver(before, patience); code == 0 && len(left) > 0 {
			fmt.Fprintf(os.Stderr, "leaktest: the tests have left %d descriptors and mappings:\n%s\n", len(left),
				strings.Join(left, "\n"))
			code = 1
		}
		os.Exit(code)
	}))
}

// leftOver lists the descriptors that are open beyond those of before, as soon as there are none, or when the time is
// over.
func leftOver(before map[string]string, wait time.Duration) []string {
	for deadline := time.Now().Add(wait); ; time.Sleep(10 * time.Millisecond) {
		now := descriptors()
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

// descriptors lists what this process has open, by number, and the files that it has mapped shared, by address.
func descriptors() map[string]string {
	list := map[string]string{}
	maps, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); len(f) > 5 && strings.HasSuffix(f[1], "s") { // address perms offset dev inode path
			list[f[0]] = strings.Join(f[5:], " ")
		}
	}
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		// The listing's own descriptor has gone by now.
		if what, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			list[e.Name()] = what
		}
	}
	return list
}
