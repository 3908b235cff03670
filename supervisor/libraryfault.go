package supervisor

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"

	"verbena/ib"
	"verbena/internal/procfile"
)

// The following constants are the states of an element of Session.faults.
const (
	faultNotFound = iota
	faultFound    // the user has not received the notice yet
	faultReported
)

// libraryFaults maps the faults to the texts of the notices.
var libraryFaults = [ib.NumLibraryFaults]struct {
	what   string // description of the fault, as a predicate of the program
	mended int    // first version of rdma-core without the fault
	when   string // condition under which the fault occurs, and the remedy
}{
	ib.Overconsumed: {
		"consumed more completions than its completion queue contained; the queue's index was corrected", 55,
		"when a program calls ibv_next_poll until ENOENT: the program may have received old completions again. v55 corrects this, and v59 unlocks such a queue " +
			`only once; see "Stale completions" in docs/troubleshooting.md`,
	},
	ib.LengthLost: {
		"posted a request that has inline data and the length 0; the message is empty", 64,
		`in ibv_wr_set_inline_data_list. v64 corrects it; see "Empty messages" in docs/troubleshooting.md`,
	},
}

// LibraryFault implements ib.LibraryFaulter.
func (o *opener) LibraryFault(fault ib.LibraryFault) {
	o.session.faults[fault].CompareAndSwap(faultNotFound, faultFound)
}

// showLibraryFaults shows the user a notice for each fault of the library that the device has detected, once per
// session. It may sleep. A thread of the program waits for the notice, so the program cannot end before it.
func (f *openFile) showLibraryFaults() {
	t := f.session
	for fault := range ib.NumLibraryFaults {
		state := &t.faults[fault]
		if state.Load() != faultFound || !state.CompareAndSwap(faultFound, faultReported) {
			continue
		}
		text := explainLibraryFault(fault, f.pid, f.program, mappedRDMACoreVersion(f.pid))
		if t.info.Notice == nil || t.info.Notice(text) != nil {
			t.log.Warn(text)
			continue
		}
		t.log.Info(text)
	}
}

// explainLibraryFault returns the text of the notice. version is the version of the library, or "" if unknown.
func explainLibraryFault(fault ib.LibraryFault, pid int, name, version string) string {
	f := libraryFaults[fault]
	text := fmt.Sprintf("%s (process %d) %s", name, pid, f.what)
	n, known := majorVersion(version)
	switch {
	case known && n >= f.mended:
		return text // another part of the program wrote to the queue
	case known:
		return fmt.Sprintf("%s. Its rdma-core %s does that %s", text, version, f.when)
	default:
		return fmt.Sprintf("%s. rdma-core before v%d does that %s", text, f.mended, f.when)
	}
}

// maxMapsSize limits the size of the maps file that is searched for a library.
const maxMapsSize = 16 << 20

// mappedRDMACoreVersion returns the version of rdma-core whose libibverbs a process has mapped, such as 44.0, or "" if
// it is unknown. It may sleep.
func mappedRDMACoreVersion(pid int) string {
	f, err := procfile.OpenNoFollow("/proc/" + strconv.Itoa(pid) + "/maps")
	if err != nil {
		return ""
	}
	defer f.Close()
	return findRDMACoreVersion(io.LimitReader(f, maxMapsSize))
}

// findRDMACoreVersion finds the version in a maps file (proc_pid_maps(5)). findRDMACoreVersion returns "" if there is
// no libibverbs, as in a statically linked program, or more than one, or if the file name does not follow rdma-core's
// convention.
func findRDMACoreVersion(maps io.Reader) string {
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
		// The name ends in 1.14.44.0, which contains the versions of the interface and of the package.
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

// majorVersion returns the first number of a version of rdma-core, and false if the version is unknown.
func majorVersion(version string) (n int, ok bool) {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	return n, err == nil
}
