package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"verbena/service"
)

// holdTime is how long a process may keep a device of a service that has ended open, before SIGTERM and again before
// SIGKILL. A program that looks at its completions or events closes the device at once; one that polls memory for a
// message of its peer, or a shared receive queue, would wait without end, since nothing writes there any more.
const holdTime = 5 * time.Second

// queueFiles are the files in a session's directory.
type queueFiles struct {
	dir   string
	mount string // the mount id of dir: in a mount namespace of their own, users can make the same path lead to any file
}

// endHolders ends the processes that keep queue files of a session open. It sleeps.
func endHolders(files queueFiles) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		time.Sleep(holdTime)
		for _, pid := range files.holders() {
			p, err := os.FindProcess(pid) // from here on the number is this process's
			if err != nil || !files.heldBy(pid) {
				continue
			}
			fmt.Fprintf(os.Stderr, "verbena: %s (process %d) still has a device of the ended service open, "+
				"where nothing arrives any more: sending %s; run --outlive prevents that\n", printable(nameOf(pid)), pid, signalName(sig))
			_ = p.Signal(sig) // it may just have ended
		}
	}
}

func signalName(sig syscall.Signal) string {
	if sig == syscall.SIGKILL {
		return "SIGKILL"
	}
	return "SIGTERM"
}

// holders lists the processes that have one of the files open, of those that this user may look at.
func (f queueFiles) holders() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() && f.heldBy(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// heldBy reports whether a process has one of the files open; it may have been removed.
func (f queueFiles) heldBy(pid int) bool {
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err != nil || !strings.HasPrefix(to, f.dir+"/") {
			continue
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, filepath.Base(fd)))
		if err == nil && service.MountID(string(info)) == f.mount {
			return true
		}
	}
	return false
}

// nameOf returns the name of a process's program.
func nameOf(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "a program"
	}
	return strings.TrimSpace(string(b))
}
