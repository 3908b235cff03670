package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"verbena/internal/shm"
	"verbena/supervisor"
)

// holdTimeout is the time that a process may keep a device of an ended service open before it gets SIGTERM. SIGKILL
// follows after another holdTimeout. A program that polls its completions or events closes the device soon after the
// service ends. A program that polls a shared receive queue, or memory for a message of its peer, would wait for
// ever, since no thread writes to its memory any more.
const holdTimeout = 5 * time.Second

// queueFilePattern is a pattern that matches the names of a session's queue files. A program can give a memfd any such
// name, and pass the memfd to another process.
type queueFilePattern struct{ session string }

// open opens the matching files that this user may open.
func (f queueFilePattern) open() (files []*os.File) {
	seen := map[uint64]bool{} // indexed by inode
	for _, pid := range listProcesses() {
		f.forEachOpenFile(pid, func(file *os.File, st *syscall.Stat_t) {
			if !seen[st.Ino] {
				seen[st.Ino] = true
				files = append(files, file)
			} else {
				file.Close()
			}
		})
	}
	return files
}

// forEachOpenFile calls use with each matching file that a process has open. The function use must close the file.
func (f queueFilePattern) forEachOpenFile(pid int, use func(*os.File, *syscall.Stat_t)) {
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return
	}
	for _, link := range links {
		file, err := shm.OpenLink(link, f.session+"/")
		if err != nil {
			continue
		}
		fi, err := file.Stat()
		if err != nil {
			file.Close()
			continue
		}
		use(file, fi.Sys().(*syscall.Stat_t))
	}
}

// endHolders ends the processes that keep queue files of a session open. It sleeps.
func endHolders(files queueFilePattern) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		time.Sleep(holdTimeout)
		for _, pid := range files.holderPIDs() {
			p, err := os.FindProcess(pid) // the kernel cannot reuse the process number while the pidfd is open
			if err != nil || !files.isHeldBy(pid) {
				continue
			}
			fmt.Fprintf(os.Stderr, "verbena: %s (process %d) still has a device of the ended service open, "+
				"where nothing arrives any more: sending %s; run --outlive prevents that\n", replaceControlChars(processName(pid)), pid,
				signalName(sig))
			_ = p.Signal(sig) // The process may have ended since it was listed.
		}
	}
}

func signalName(sig syscall.Signal) string {
	if sig == syscall.SIGKILL {
		return "SIGKILL"
	}
	return "SIGTERM"
}

// listProcesses lists all processes except this one.
func listProcesses() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// holderPIDs lists the processes for which isHeldBy is true.
func (f queueFilePattern) holderPIDs() (pids []int) {
	for _, pid := range listProcesses() {
		if f.isHeldBy(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// isHeldBy reports whether a process has one of the files open, and belongs to the owner of the file. A process of
// another user may have inherited the descriptor, and must not be killed. A daemon of root must not be killed
// either: a program may have passed a device to the daemon before the program changed its user. Therefore isHeldBy
// matches only descendants of this process among root's processes.
func (f queueFilePattern) isHeldBy(pid int) (held bool) {
	f.forEachOpenFile(pid, func(file *os.File, st *syscall.Stat_t) {
		file.Close()
		held = held || allIDsAre(pid, int(st.Uid)) && (st.Uid != 0 || supervisor.CheckDescendant(pid) == nil)
	})
	return held
}

// allIDsAre reports whether the real, effective, saved and file system IDs of a process are all those of one user.
// (proc_pid_status(5))
func allIDsAre(pid, uid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		ids, ok := strings.CutPrefix(line, "Uid:")
		if !ok {
			continue
		}
		list := strings.Fields(ids)
		for _, id := range list {
			if id != strconv.Itoa(uid) {
				return false
			}
		}
		return len(list) == 4
	}
	return false
}

// processName returns the name of the program that a process runs.
func processName(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "a program"
	}
	return strings.TrimSpace(string(b))
}
