package supervisor

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"

	"verbena/internal/procfile"
)

// States of Session.overconsumed.
const (
	notOverconsumed = iota
	overconsumed    // the user is to be told
	toldOverconsumed
)

// Overconsumed implements ib.Overconsumer.
func (o *opener) Overconsumed() { o.session.overconsumed.CompareAndSwap(notOverconsumed, overconsumed) }

// tellOverconsumed tells the user which library takes too many completions, once for a session. It may sleep: a thread of
// the program waits for it, so that the program does not end before.
func (f *openFile) tellOverconsumed() {
	t := f.session
	if t.overconsumed.Load() != overconsumed || !t.overconsumed.CompareAndSwap(overconsumed, toldOverconsumed) {
		return
	}
	text := explainOverconsumed(f.pid, f.program, mappedRDMACore(f.pid))
	if t.info.Notice == nil || t.info.Notice(text) != nil {
		t.log.Warn(text)
		return
	}
	t.log.Info(text)
}

// mendedRDMACore is the first version of rdma-core whose provider counts rightly, and mendedUnlock the first in which it
// also unlocks a queue once when the end is found.
const (
	mendedRDMACore = 55
	mendedUnlock   = 59
)

// explainOverconsumed is the notice. version is that of the library, "" if it is not known.
func explainOverconsumed(pid int, name, version string) string {
	text := fmt.Sprintf("%s (process %d) took more completions out of a queue than were there; the queue's index was put back", name, pid)
	n, known := majorOf(version)
	switch {
	case known && n >= mendedRDMACore:
		return text // something else has written to it
	case known:
		text += fmt.Sprintf(". Its rdma-core %s does that", version)
	default:
		text += fmt.Sprintf(". rdma-core before v%d does that", mendedRDMACore)
	}
	return text + fmt.Sprintf(" when a program calls ibv_next_poll until ENOENT: it may have seen old completions again. "+
		"v%d mends it, and v%d unlocks such a queue only once; see \"Stale completions\" in docs/troubleshooting.md", mendedRDMACore, mendedUnlock)
}

// maxMaps bounds what is read to find a library.
const maxMaps = 16 << 20

// mappedRDMACore returns the version of rdma-core whose libibverbs a process has mapped, such as 44.0; "" if it is not
// known. It may sleep.
func mappedRDMACore(pid int) string {
	f, err := procfile.Open("/proc/" + strconv.Itoa(pid) + "/maps")
	if err != nil {
		return ""
	}
	defer f.Close()
	return rdmaCoreOf(io.LimitReader(f, maxMaps))
}

// rdmaCoreOf finds the version in a map (proc_pid_maps(5)). It is "" if there is no libibverbs, as in a program that is
// linked statically, or more than one, or the file is not named as rdma-core does.
func rdmaCoreOf(maps io.Reader) string {
	const name = "/libibverbs.so."
	found, version := "", ""
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		line := lines.Text()
		at := strings.LastIndex(line, name)
		if at < 0 {
			continue
		}
		path := line[strings.IndexByte(line, '/'):]
		if found != "" && found != path {
			return ""
		}
		found = path
		// 1.14.44.0: of the interface, and of the package.
		v := strings.Split(line[at+len(name):], ".")
		if len(v) != 4 {
			return ""
		}
		version = v[2] + "." + v[3]
		if _, err := strconv.ParseFloat(version, 64); err != nil {
			return ""
		}
	}
	return version
}

// majorOf returns the first number of a version of rdma-core; false if it is not known.
func majorOf(version string) (n int, ok bool) {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	return n, err == nil
}
