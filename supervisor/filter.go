package supervisor

import (
	"math"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"verbena/uapi"
)

// call is a system call that the filter knows, by what the supervisor does about it. The order is that of the tests on
// the way through the filter; the kernel remembers for itself which system calls are always allowed (since 5.11), so
// that these cost nothing.
type call uint8

const (
	callOther call = iota
	callWrite
	callIoctl
	callOpenat
	callNewfstatat
	callFstat
	callStatx
	callFcntl
	callReadlinkat
	callFaccessat
	callFaccessat2
	callOpenat2
	callSocket
	callBind
	callGetsockname
	callSetsockopt
	callDup
	callDup2
	callDup3
	callExecve
	callExecveat
	callOpen // and the other old forms, without a directory
	callStat
	callLstat
	callReadlink
	callAccess
	numCalls
)

// condition is what a filter looks at beyond the number of the system call.
type condition uint8

const (
	always    condition = iota
	ifVerbs             // argument 1 is the request RDMA_VERBS_IOCTL
	ifHigh              // argument 0 is a descriptor of the command files' range
	ifBell              // it is one, and not of those that ring natively
	ifToHigh            // argument 1 is one
	ifDup               // argument 0 is one, or arguments 1 and 2 ask for a duplicate that is one
	ifCwd               // argument 0 is AT_FDCWD: the path may be absolute
	ifCwdHigh           // either
	ifNetlink           // arguments 0 and 2 ask for a NETLINK_RDMA socket
	numConditions
)

// calls lists when each of them is trapped.
var calls = [numCalls]struct {
	name string
	trap condition
}{
	callOther:       {"other", always},
	callWrite:       {"write", ifBell},
	callIoctl:       {"ioctl", ifVerbs},
	callOpenat:      {"openat", ifCwd},
	callNewfstatat:  {"newfstatat", ifCwdHigh},
	callFstat:       {"fstat", ifHigh},
	callStatx:       {"statx", ifCwdHigh},
	callFcntl:       {"fcntl", ifDup},
	callReadlinkat:  {"readlinkat", ifCwd},
	callFaccessat:   {"faccessat", ifCwd},
	callFaccessat2:  {"faccessat2", ifCwd},
	callOpenat2:     {"openat2", ifCwd},
	callSocket:      {"socket", ifNetlink},
	callBind:        {"bind", ifHigh},
	callGetsockname: {"getsockname", ifHigh},
	callSetsockopt:  {"setsockopt", ifHigh},
	callDup:         {"dup", ifHigh},
	callDup2:        {"dup2", ifToHigh},
	callDup3:        {"dup3", ifToHigh},
	callExecve:      {"execve", always},
	callExecveat:    {"execveat", always},
	callOpen:        {"open", always},
	callStat:        {"stat", always},
	callLstat:       {"lstat", always},
	callReadlink:    {"readlink", always},
	callAccess:      {"access", always},
}

func (c call) String() string { return calls[c].name }

// architecture is a system call table.
type architecture struct {
	audit   uint32           // AUDIT_ARCH_*
	numbers [numCalls]number // of the calls that it has
	// Programs of this architecture can also make calls of others, and of those to execute a program is trapped.
	execs  []uint32 // other numbers for it, in the same table
	compat compat
}

// compat is the system call table of 32-bit programs.
type compat struct {
	audit uint32
	execs []uint32
}

type number struct {
	nr uint32
	ok bool
}

func no(nr uint32) number { return number{nr, true} }

// architectures are those that can be supervised, by GOARCH. Newer ones never had the calls without a directory.
var architectures = map[string]*architecture{
	"amd64": {
		audit: unix.AUDIT_ARCH_X86_64,
		numbers: [numCalls]number{
			callWrite:       no(1),
			callOpen:        no(2),
			callStat:        no(4),
			callFstat:       no(5),
			callLstat:       no(6),
			callIoctl:       no(16),
			callAccess:      no(21),
			callDup:         no(32),
			callDup2:        no(33),
			callSocket:      no(41),
			callBind:        no(49),
			callGetsockname: no(51),
			callSetsockopt:  no(54),
			callExecve:      no(59),
			callFcntl:       no(72),
			callReadlink:    no(89),
			callOpenat:      no(257),
			callNewfstatat:  no(262),
			callReadlinkat:  no(267),
			callFaccessat:   no(269),
			callDup3:        no(292),
			callExecveat:    no(322),
			callStatx:       no(332),
			callOpenat2:     no(437),
			callFaccessat2:  no(439),
		},
		execs:  []uint32{x32 + 520, x32 + 545},
		compat: compat{unix.AUDIT_ARCH_I386, []uint32{11, 358}},
	},
	"arm64": {
		audit: unix.AUDIT_ARCH_AARCH64,
		numbers: [numCalls]number{
			callDup:         no(23),
			callDup3:        no(24),
			callFcntl:       no(25),
			callIoctl:       no(29),
			callFaccessat:   no(48),
			callOpenat:      no(56),
			callWrite:       no(64),
			callReadlinkat:  no(78),
			callNewfstatat:  no(79),
			callFstat:       no(80),
			callSocket:      no(198),
			callBind:        no(200),
			callGetsockname: no(204),
			callSetsockopt:  no(208),
			callExecve:      no(221),
			callExecveat:    no(281),
			callStatx:       no(291),
			callOpenat2:     no(437),
			callFaccessat2:  no(439),
		},
		compat: compat{unix.AUDIT_ARCH_ARM, []uint32{11, 387}},
	},
}

// x32 is added to the numbers of calls with 32-bit pointers. (__X32_SYSCALL_BIT)
const x32 = 0x40000000

// byNumber finds the call of a system call number of this architecture.
var byNumber = func() (t [512]call) {
	if a := architectures[runtime.GOARCH]; a != nil {
		for c, n := range a.numbers {
			if n.ok {
				t[n.nr] = call(c)
			}
		}
	}
	return t
}()

// native is this architecture; the zero one where programs cannot be supervised.
var native = func() architecture {
	if a := architectures[runtime.GOARCH]; a != nil {
		return *a
	}
	return architecture{}
}()

// callOf finds the call of a notification. Beyond the table is only what executes a program.
func callOf(n *notification) call {
	switch {
	case n.arch != native.audit:
		if n.arch == native.compat.audit && slices.Contains(native.compat.execs, uint32(n.nr)) {
			return callExecve
		}
	case uint32(n.nr) < uint32(len(byNumber)):
		return byNumber[n.nr]
	case slices.Contains(native.execs, uint32(n.nr)):
		return callExecve
	}
	return callOther
}

// FirstFD returns the first number that a command file's descriptor may get in a program. The filter recognises the
// descriptors that it traps by their number, so it has to be above what a program uses otherwise, and below the hard
// RLIMIT_NOFILE that the program will have.
func FirstFD(hardLimit uint64) uint32 {
	if hardLimit >= 2*usualFD {
		return usualFD
	}
	return uint32(hardLimit / 4 * 3)
}

// nativeFDs is the range of numbers among those from FirstFD on whose write(2) is not trapped: command files get them that ring natively
// (native.go). There are none, and end is 0, where few numbers are to be had.
func nativeFDs(firstFD uint32) (first, end uint32) {
	if firstFD < leastNativeFD {
		return 0, 0
	}
	there := firstFD / 3 // at least: see FirstFD
	return firstFD + there/3, firstFD + 2*(there/3)
}

const (
	usualFD       = 16384
	leastNativeFD = 3072
)

// Offsets in struct seccomp_data; arguments are 64 bits wide, and their low halves come first here.
const (
	offNr   = 0
	offArch = 4
	offArgs = 16
)

// filter makes the filter for command files at firstFD and above. Programs of another architecture (32-bit) are let
// through, but for what executes a program, and find no device.
//
//	arch is of 32-bit programs -> trap if nr executes a program, else allow
//	arch is another one        -> allow
//	nr is not of a call        -> allow
//	the condition's block      -> trap if it holds, else allow
func (a *architecture) filter(firstFD uint32) []unix.SockFilter {
	const (
		ld   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		jge  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		ret  = unix.BPF_RET | unix.BPF_K
		trap = unix.SECCOMP_RET_USER_NOTIF
	)
	load := func(off uint32) unix.SockFilter { return unix.SockFilter{Code: ld, K: off} }
	arg := func(i uint32) unix.SockFilter { return load(offArgs + 8*i) }
	give := func(v uint32) unix.SockFilter { return unix.SockFilter{Code: ret, K: v} }
	// is goes on if the accumulator is (at least) k, and else skips the next n instructions.
	is := func(op uint16, k uint32, n uint8) unix.SockFilter { return unix.SockFilter{Code: op, K: k, Jf: n} }
	cwd := int32(unix.AT_FDCWD)
	high := []unix.SockFilter{
		is(jge, firstFD, 2),
		{Code: jge, K: math.MaxInt32 + 1, Jt: 1}, // a negative number is no descriptor
		give(trap),
		give(unix.SECCOMP_RET_ALLOW),
	}
	nativeFirst, nativeEnd := nativeFDs(firstFD)
	blocks := [numConditions][]unix.SockFilter{
		always:  {give(trap)},
		ifVerbs: {arg(1), is(jeq, uapi.VerbsIoctl, 1), give(trap), give(unix.SECCOMP_RET_ALLOW)},
		ifHigh:  append([]unix.SockFilter{arg(0)}, high...),
		ifBell: append([]unix.SockFilter{
			arg(0), is(jge, nativeFirst, 2), {Code: jge, K: nativeEnd, Jt: 1}, give(unix.SECCOMP_RET_ALLOW),
		}, high...),
		ifToHigh: append([]unix.SockFilter{arg(1)}, high...),
		ifDup: append([]unix.SockFilter{
			arg(0), is(jge, firstFD, 2), {Code: jge, K: math.MaxInt32 + 1, Jt: 1}, give(trap),
			arg(1), {Code: jeq, K: unix.F_DUPFD, Jt: 1}, is(jeq, unix.F_DUPFD_CLOEXEC, 5),
			arg(2),
		}, high...),
		ifCwd:     {arg(0), is(jeq, uint32(cwd), 1), give(trap), give(unix.SECCOMP_RET_ALLOW)},
		ifCwdHigh: append([]unix.SockFilter{arg(0), is(jeq, uint32(cwd), 1), give(trap)}, high...),
		ifNetlink: {
			arg(0), is(jeq, unix.AF_NETLINK, 3),
			arg(2), is(jeq, unix.NETLINK_RDMA, 1), give(trap),
			give(unix.SECCOMP_RET_ALLOW),
		},
	}
	type row struct {
		nr   uint32
		trap condition
	}
	var table []row
	for c, n := range a.numbers {
		if n.ok {
			table = append(table, row{n.nr, calls[c].trap})
		}
	}
	for _, nr := range a.execs {
		table = append(table, row{nr, always})
	}
	prog := []unix.SockFilter{load(offArch), is(jeq, a.compat.audit, uint8(3+len(a.compat.execs))), load(offNr)}
	for i, nr := range a.compat.execs {
		prog = append(prog, unix.SockFilter{Code: jeq, K: nr, Jt: uint8(len(a.compat.execs) - i)})
	}
	prog = append(prog, give(unix.SECCOMP_RET_ALLOW), give(trap),
		is(jeq, a.audit, uint8(1+len(table))), load(offNr))
	var start [numConditions]int
	at := len(prog) + len(table) + 1
	for c, b := range blocks {
		start[c] = at
		at += len(b)
	}
	for _, r := range table {
		prog = append(prog, unix.SockFilter{Code: jeq, K: r.nr, Jt: uint8(start[r.trap] - len(prog) - 1)})
	}
	prog = append(prog, give(unix.SECCOMP_RET_ALLOW))
	for _, b := range blocks {
		prog = append(prog, b...)
	}
	return prog
}
