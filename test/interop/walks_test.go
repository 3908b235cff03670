//go:build interop

package interop

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// walkDifferences lists the permitted differences of a walk through librdmacm, each with its reason. An entry
// matches the first line in which the kernel and Verbena differ. The kernel is Linux 6.1.
var walkDifferences = []struct{ kernel, verbena, why string }{
	{`^walk \d+ failed: status`, ``, "the kernel's calls hang, for more than a minute"},
	{` timeout 19 `, ` timeout 17 `, "newer kernels expect packets to live 67 ms, this one 268 ms"},
	{`= EADDRNOTAVAIL$`, ` p0 = 0$`, "the kernel tries few ports of those that are free"},
	{`REJECTED .* status 8 |UNREACHABLE .* status 1 `, ``,
		"a request shortly after its listener has gone waits for the next"},
	{` dst any6 p0 `, ` dst own4 p0 `, "the kernel forgets the address of an ID of the other family"},
	{`accept .* = 0$`, `accept .* = EINVAL$`, "the peer has given up, and said so already"},
	{`destroy_id \d+ (ENOENT|ECONNREFUSED)`, `destroy_id \d+ 0`,
		"the errno of a call that another thread of the library's has made meanwhile"},
}

// testWalks runs random sequences of librdmacm calls (testdata/cmwalk.c) on each side separately. It runs WALKS
// sequences (default 150) from WALK_FIRST (default 1) on. The result of each call and each event must be the same,
// except for walkDifferences.
func testWalks(t *testing.T) {
	count, first := 150, 1
	for name, n := range map[string]*int{"WALKS": &count, "WALK_FIRST": &first} {
		if s := os.Getenv(name); s != "" {
			var err error
			if *n, err = strconv.Atoi(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	const batch = 1000 // walks of one run
	same, reasons := 0, make([]int, len(walkDifferences))
	for at := first; at < first+count; at += batch {
		n := min(batch, first+count-at)
		k, v := runWalks(t, kernelPeer, at, n, 30, "eth0"), runWalks(t, verbenaPeer, at, n, 20, "tap0")
		for seed := at; seed < at+n; seed++ {
			why, how := compareWalks(k[seed], v[seed])
			// On a busy machine a step may end before an answer has arrived. A real difference occurs again.
			for again := 0; again < 2 && why == unexplained; again++ {
				t.Logf("walk %d, again: %s", seed, how)
				why, how = compareWalks(runWalks(t, kernelPeer, seed, 1, 1, "eth0")[seed], runWalks(t, verbenaPeer, seed, 1, 1,
					"tap0")[seed])
			}
			switch why {
			case nothing:
				same++
			case unexplained:
				t.Errorf("walk %d: got an unexpected difference: %s", seed, how)
			default:
				reasons[why]++
			}
		}
	}
	t.Logf("%d walks, %d equal", count, same)
	for i, d := range walkDifferences {
		t.Logf("%d: %s", reasons[i], d.why)
	}
}

const (
	nothing     = -1
	unexplained = -2
)

// compareWalks compares a walk of the kernel with a walk of Verbena. It returns the index of the reason for their
// difference, or a constant for no difference or an unexplained one.
func compareWalks(k, v []string) (why int, how string) {
	k, v = sortEvents(k), sortEvents(v)
	i := 0
	for i < len(k) && i < len(v) && k[i] == v[i] {
		i++
	}
	if len(k) == i && len(v) == i && i > 0 {
		return nothing, ""
	}
	a, b := lineAt(k, i), lineAt(v, i)
	for n, d := range walkDifferences {
		if regexp.MustCompile(d.kernel).MatchString(a) && regexp.MustCompile(d.verbena).MatchString(b) {
			return n, ""
		}
	}
	return unexplained, fmt.Sprintf("line %d\n  kernel  %s\n  Verbena %s\nafter\n%s", i, a, b,
		strings.Join(v[max(0, i-12):min(i, len(v))], "\n"))
}

// sortEvents sorts the events of a step, because events of different IDs are concurrent.
func sortEvents(l []string) []string {
	l = slices.Clone(l)
	for i := 0; i < len(l); i++ {
		n := i
		for n < len(l) && strings.HasPrefix(l[n], "  e") {
			n++
		}
		slices.SortStableFunc(l[i:n], func(a, b string) int {
			return strings.Compare(strings.Fields(a)[0], strings.Fields(b)[0])
		})
		i = max(i, n)
	}
	return l
}

func lineAt(l []string, i int) string {
	if i < len(l) {
		return l[i]
	}
	return "-"
}

// runWalks runs walks on one side, and returns the lines of each.
func runWalks(t *testing.T, p *peer, first, count, workers int, netif string) map[int][]string {
	t.Helper()
	dir := filepath.Join(theLab.dir, fmt.Sprintf("walks-%s-%d", p.name, first))
	script := fmt.Sprintf("mkdir -p %s && %s -w %d %s %s %s %s %d %d && cat %s/* && rm -r %s", dir,
		theLab.programPath("cmwalk"), workers,
		p.ip["IPv4"], p.ip["IPv6"], netif, dir, first, count, dir, dir)
	wait, err := p.startProgram([]string{"sh", "-c", script})
	if err != nil {
		t.Fatal(err)
	}
	status, out, err := wait(2*time.Minute + time.Duration(count)*time.Second)
	if err != nil || status != 0 {
		t.Fatalf("%s: exit status %d, %v: %s", p.name, status, err, lastLines(out))
	}
	walks := map[int][]string{}
	seed := -1
	for s := bufio.NewScanner(strings.NewReader(out)); s.Scan(); {
		if n, ok := strings.CutPrefix(s.Text(), "walk "); ok {
			if seed, err = strconv.Atoi(strings.Fields(n)[0]); err != nil {
				t.Fatal(err)
			}
		}
		walks[seed] = append(walks[seed], s.Text())
	}
	if len(walks) != count {
		t.Fatalf("%s: got %d walks, want %d", p.name, len(walks), count)
	}
	return walks
}
