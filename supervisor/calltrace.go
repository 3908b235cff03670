package supervisor

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"verbena/uverbs"
)

// maxTraceLine limits the length of a line of a trace, in bytes.
const maxTraceLine = 2048

// callTrace is the trace record of a call.
type callTrace struct {
	command uverbs.CommandTrace
	path    string // cleaned virtual path; empty for a call without a path
	flags   uint64 // open flags, for openat2
	later   bool   // a later answer also traces the call
}

// formatArgs formats the arguments of the call. device is the device of its file, or empty.
func (t *callTrace) formatArgs(n *notification, device string) string {
	a, c := &n.args, callOf(n)
	fd := fmt.Sprint(int32(a[0]))
	if device != "" {
		fd += "<" + device + ">"
	}
	path := fmt.Sprintf("%q", t.path)
	switch c {
	case callWrite:
		if t.command.Name != "" {
			return fmt.Sprintf("%s, %s%s, %d", fd, t.command.Name, t.command.Request, a[2])
		}
		return fmt.Sprintf("%s, %#x, %d", fd, a[1], a[2])
	case callIoctl:
		if t.command.Name != "" {
			return fmt.Sprintf("%s, %s%s", fd, t.command.Name, t.command.Request)
		}
		return fmt.Sprintf("%s, %#x, %#x", fd, uint32(a[1]), a[2])
	case callFstat, callDup, callBind, callGetsockname:
		return fd
	case callSocket:
		return fmt.Sprintf("AF_NETLINK, %s, NETLINK_RDMA", formatSocketType(a[1]))
	case callSetsockopt:
		return fmt.Sprintf("%s, %d, %d", fd, int32(a[1]), int32(a[2]))
	case callDup2:
		return fmt.Sprintf("%s, %d", fd, int32(a[1]))
	case callDup3:
		return fmt.Sprintf("%s, %d, %s", fd, int32(a[1]), formatOpenFlags(a[2]&unix.O_CLOEXEC))
	case callFcntl:
		return fmt.Sprintf("%s, %d, %d", fd, int32(a[1]), int32(a[2]))
	case callOpen:
		return fmt.Sprintf("%s, %s", path, formatOpenFlags(a[1]))
	case callOpenat:
		return fmt.Sprintf("AT_FDCWD, %s, %s", path, formatOpenFlags(a[2]))
	case callOpenat2:
		return fmt.Sprintf("AT_FDCWD, %s, %s", path, formatOpenFlags(t.flags))
	case callAccess:
		return fmt.Sprintf("%s, %#o", path, uint32(a[1]))
	case callFaccessat, callFaccessat2:
		return fmt.Sprintf("AT_FDCWD, %s, %#o", path, uint32(a[2]))
	case callStat, callLstat, callReadlink:
		return path
	case callNewfstatat, callStatx:
		if t.path == "" {
			return fd + `, ""`
		}
	case callExecve, callExecveat:
		return ""
	}
	return "AT_FDCWD, " + path
}

// formatResult formats the result of the call.
func (t *callTrace) formatResult(v callResult) string {
	if v.err != nil {
		return fmt.Sprintf("-1 %s (%v)", unix.ErrnoName(errnoOf(v.err)), v.err)
	}
	if r := t.command.Response; r != "" {
		return fmt.Sprintf("%d %s", v.val, r)
	}
	return fmt.Sprint(v.val)
}

// namedFlag is a bit of a call's argument, and the name of its C constant.
type namedFlag struct {
	bit  uint64
	name string
}

// formatOpenFlags formats the flags of open(2).
func formatOpenFlags(flags uint64) string {
	flags &= 1<<32 - 1
	mode := [...]string{unix.O_RDONLY: "O_RDONLY", unix.O_WRONLY: "O_WRONLY", unix.O_RDWR: "O_RDWR",
		3: "O_ACCMODE"}[flags&unix.O_ACCMODE]
	return appendFlags(mode, flags&^unix.O_ACCMODE, []namedFlag{
		{unix.O_CLOEXEC, "O_CLOEXEC"}, {unix.O_NONBLOCK, "O_NONBLOCK"}, {unix.O_DIRECTORY, "O_DIRECTORY"}, {unix.O_NOFOLLOW,
			"O_NOFOLLOW"},
		{unix.O_PATH, "O_PATH"}, {unix.O_CREAT, "O_CREAT"}, {unix.O_EXCL, "O_EXCL"}, {unix.O_TRUNC, "O_TRUNC"},
	})
}

// formatSocketType formats the type of a netlink socket(2), with names for SOCK_RAW and SOCK_DGRAM.
func formatSocketType(typ uint64) string {
	flags := typ & (unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK)
	name := fmt.Sprint(uint32(typ &^ flags))
	switch uint32(typ &^ flags) {
	case unix.SOCK_RAW:
		name = "SOCK_RAW"
	case unix.SOCK_DGRAM:
		name = "SOCK_DGRAM"
	}
	return appendFlags(name, flags, []namedFlag{{unix.SOCK_CLOEXEC, "SOCK_CLOEXEC"}, {unix.SOCK_NONBLOCK,
		"SOCK_NONBLOCK"}})
}

// appendFlags appends the names of the flags to s, and unknown flags as a number.
func appendFlags(s string, flags uint64, names []namedFlag) string {
	for _, f := range names {
		if flags&f.bit != 0 {
			s += "|" + f.name
			flags &^= f.bit
		}
	}
	if flags != 0 {
		s += fmt.Sprintf("|%#x", flags)
	}
	return strings.TrimPrefix(s, "|")
}
