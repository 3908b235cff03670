package supervisor

import (
	"math"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"verbena/uapi"
)

// call is a kind of system call, by which the supervisor selects the handler. The filter tests the calls in this
// order. Since Linux 5.11 the kernel caches the system calls that are always allowed, so the filter does not run
// for these calls.
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
	callClose
	callCloseRange
	callLseek
	callPread64
	callPwrite64
	callFtruncate
	callFallocate
	callFsync
	callGetdents64
	callFchdir
	callGetcwd
	callExecve
	callExecveat
	callOpen // and other calls without a directory argument
	callStat
	callLstat
	callReadlink
	callAccess
	callGetxattr
	callLgetxattr
	callListxattr
	callLlistxattr
	numCalls
)

// condition is a condition of the filter in addition to the number of the system call.
type condition uint8

const (
	always            condition = iota
	ifVerbs                     // argument 1 is the request RDMA_VERBS_IOCTL, or argument 0 is a command file's number
	ifFile                      // argument 0 is a command file's number
	ifTrappedDoorbell           // argument 0 is a command file's number with trapped doorbells
	ifTo                        // argument 1 is a command file's number
	ifUpTo                      // argument 1 is a command file's number, or greater
	ifDup                       // argument 0 is a command file's number, or arguments 1 and 2 request a duplicate there
	ifCwdFile                   // argument 0 is a command file's number, or AT_FDCWD because the path may be absolute
	ifNetlink                   // arguments 0 and 2 request a NETLINK_RDMA socket
	numConditions
)

// calls lists the names of the calls, and the conditions under which the filter traps each call.
var calls = [numCalls]struct {
	name string
	trap condition
}{
	callOther:       {"other", always},
	callWrite:       {"write", ifTrappedDoorbell},
	callIoctl:       {"ioctl", ifVerbs},
	callOpenat:      {"openat", ifCwdFile},
	callNewfstatat:  {"newfstatat", ifCwdFile},
	callFstat:       {"fstat", ifFile},
	callStatx:       {"statx", ifCwdFile},
	callFcntl:       {"fcntl", ifDup},
	callReadlinkat:  {"readlinkat", ifCwdFile},
	callFaccessat:   {"faccessat", ifCwdFile},
	callFaccessat2:  {"faccessat2", ifCwdFile},
	callOpenat2:     {"openat2", ifCwdFile},
	callSocket:      {"socket", ifNetlink},
	callBind:        {"bind", ifFile},
	callGetsockname: {"getsockname", ifFile},
	callSetsockopt:  {"setsockopt", ifFile},
	callDup:         {"dup", ifFile},
	callDup2:        {"dup2", ifTo},
	callDup3:        {"dup3", ifTo},
	callClose:       {"close", ifFile},
	callCloseRange:  {"close_range", ifUpTo},
	callLseek:       {"lseek", ifFile},
	callPread64:     {"pread64", ifFile},
	callPwrite64:    {"pwrite64", ifFile},
	callFtruncate:   {"ftruncate", ifFile},
	callFallocate:   {"fallocate", ifFile},
	callFsync:       {"fsync", ifFile},
	callGetdents64:  {"getdents64", ifFile},
	callFchdir:      {"fchdir", ifFile},
	callGetcwd:      {"getcwd", always},
	callExecve:      {"execve", always},
	callExecveat:    {"execveat", always},
	callOpen:        {"open", always},
	callStat:        {"stat", always},
	callLstat:       {"lstat", always},
	callReadlink:    {"readlink", always},
	callAccess:      {"access", always},
	callGetxattr:    {"getxattr", always},
	callLgetxattr:   {"lgetxattr", always},
	callListxattr:   {"listxattr", always},
	callLlistxattr:  {"llistxattr", always},
}

func (c call) String() string { return calls[c].name }

// architecture is a system call table.
type architecture struct {
	audit   uint32           // AUDIT_ARCH_*
	numbers [numCalls]number // numbers of the calls; some calls do not exist on some architectures
	// Programs of this architecture can also make calls of other architectures. The filter traps such a call if it
	// executes a program.
	execs  []uint32 // other numbers of execve in the same table
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

// architectures holds the supported architectures, by GOARCH. Newer architectures never had the calls without a
// directory argument.
var architectures = map[string]*architecture{
	"amd64": {
		audit: unix.AUDIT_ARCH_X86_64,
		numbers: [numCalls]number{
			callWrite:       no(1),
			callOpen:        no(2),
			callClose:       no(3),
			callStat:        no(4),
			callFstat:       no(5),
			callLstat:       no(6),
			callLseek:       no(8),
			callIoctl:       no(16),
			callPread64:     no(17),
			callPwrite64:    no(18),
			callAccess:      no(21),
			callDup:         no(32),
			callDup2:        no(33),
			callSocket:      no(41),
			callBind:        no(49),
			callGetsockname: no(51),
			callSetsockopt:  no(54),
			callExecve:      no(59),
			callFcntl:       no(72),
			callFsync:       no(74),
			callFtruncate:   no(77),
			callGetcwd:      no(79),
			callFchdir:      no(81),
			callReadlink:    no(89),
			callGetxattr:    no(191),
			callLgetxattr:   no(192),
			callListxattr:   no(194),
			callLlistxattr:  no(195),
			callGetdents64:  no(217),
			callOpenat:      no(257),
			callNewfstatat:  no(262),
			callReadlinkat:  no(267),
			callFaccessat:   no(269),
			callFallocate:   no(285),
			callDup3:        no(292),
			callExecveat:    no(322),
			callStatx:       no(332),
			callCloseRange:  no(436),
			callOpenat2:     no(437),
			callFaccessat2:  no(439),
		},
		execs:  []uint32{x32 + 520, x32 + 545},
		compat: compat{unix.AUDIT_ARCH_I386, []uint32{11, 358}},
	},
	"arm64": {
		audit: unix.AUDIT_ARCH_AARCH64,
		numbers: [numCalls]number{
			callGetxattr:    no(8),
			callLgetxattr:   no(9),
			callListxattr:   no(11),
			callLlistxattr:  no(12),
			callGetcwd:      no(17),
			callDup:         no(23),
			callDup3:        no(24),
			callFcntl:       no(25),
			callIoctl:       no(29),
			callFtruncate:   no(46),
			callFallocate:   no(47),
			callFaccessat:   no(48),
			callFchdir:      no(50),
			callOpenat:      no(56),
			callClose:       no(57),
			callGetdents64:  no(61),
			callLseek:       no(62),
			callWrite:       no(64),
			callPread64:     no(67),
			callPwrite64:    no(68),
			callReadlinkat:  no(78),
			callNewfstatat:  no(79),
			callFstat:       no(80),
			callFsync:       no(82),
			callSocket:      no(198),
			callBind:        no(200),
			callGetsockname: no(204),
			callSetsockopt:  no(208),
			callExecve:      no(221),
			callExecveat:    no(281),
			callStatx:       no(291),
			callCloseRange:  no(436),
			callOpenat2:     no(437),
			callFaccessat2:  no(439),
		},
		compat: compat{unix.AUDIT_ARCH_ARM, []uint32{11, 387}},
	},
}

// x32 is the flag in the numbers of calls with 32-bit pointers (x32 ABI). (__X32_SYSCALL_BIT)
const x32 = 0x40000000

// callsByNumber maps system call numbers of this architecture to calls.
var callsByNumber = func() (t [512]call) {
	if a := architectures[runtime.GOARCH]; a != nil {
		for c, n := range a.numbers {
			if n.ok {
				t[n.nr] = call(c)
			}
		}
	}
	return t
}()

// native is the entry of this architecture, or the zero value if it is not supported.
var native = func() architecture {
	if a := architectures[runtime.GOARCH]; a != nil {
		return *a
	}
	return architecture{}
}()

// callOf returns the call of a notification. Every trapped number beyond the table executes a program.
func callOf(n *notification) call {
	switch {
	case n.arch != native.audit:
		if n.arch == native.compat.audit && slices.Contains(native.compat.execs, uint32(n.nr)) {
			return callExecve
		}
	case uint32(n.nr) < uint32(len(callsByNumber)):
		return callsByNumber[n.nr]
	case slices.Contains(native.execs, uint32(n.nr)):
		return callExecve
	}
	return callOther
}

// The following constants are the offsets in struct seccomp_data. Arguments are 64 bits wide. On these
// architectures the low half of an argument comes first.
const (
	offNr   = 0
	offArch = 4
	offArgs = 16
)

// filter makes the filter for the numbers of command files. The filter allows the calls of programs of another
// architecture (32-bit), except for calls that execute a program. Such programs find no device.
//
//	arch is of 32-bit programs -> trap if nr executes a program, else allow
//	arch is another one        -> allow
//	nr is not of a call        -> allow
//	the condition's block      -> trap if it holds, else allow
func (a *architecture) filter(n numbers) []unix.SockFilter {
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
	// is continues if the accumulator equals (or is at least) k, and otherwise skips the next n instructions.
	is := func(op uint16, k uint32, n uint8) unix.SockFilter { return unix.SockFilter{Code: op, K: k, Jf: n} }
	cwd := int32(unix.AT_FDCWD)
	// The block begins with the comparison that excludes most descriptors.
	file := []unix.SockFilter{
		is(jge, n.low.first, 4),
		is(jge, n.low.end, 2),
		is(jge, n.high, 2),
		{Code: jge, K: math.MaxInt32 + 1, Jt: 1}, // a negative number is not a descriptor
		give(trap),
		give(unix.SECCOMP_RET_ALLOW),
	}
	blocks := [numConditions][]unix.SockFilter{
		always:  {give(trap)},
		ifVerbs: append([]unix.SockFilter{arg(1), is(jeq, uapi.VerbsIoctl, 1), give(trap), arg(0)}, file...),
		ifFile:  append([]unix.SockFilter{arg(0)}, file...),
		ifTrappedDoorbell: {
			arg(0),
			is(jge, n.low.first, 5),
			is(jge, n.native.first, 3),
			is(jge, n.low.end, 3), // end of the native numbers
			is(jge, n.high, 2),
			{Code: jge, K: math.MaxInt32 + 1, Jt: 1},
			give(trap),
			give(unix.SECCOMP_RET_ALLOW),
		},
		ifTo:   append([]unix.SockFilter{arg(1)}, file...),
		ifUpTo: {arg(1), is(jge, n.low.first, 1), give(trap), give(unix.SECCOMP_RET_ALLOW)},
		ifDup: append([]unix.SockFilter{
			arg(0), is(jge, n.low.first, 4), is(jge, n.low.end, 2), is(jge, n.high, 2), {Code: jge, K: math.MaxInt32 + 1,
				Jt: 1}, give(trap),
			arg(1), {Code: jeq, K: unix.F_DUPFD, Jt: 1}, is(jeq, unix.F_DUPFD_CLOEXEC, 7),
			arg(2),
		}, file...),
		ifCwdFile: append([]unix.SockFilter{arg(0), is(jeq, uint32(cwd), 1), give(trap)}, file...),
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
	for c, no := range a.numbers {
		if no.ok {
			table = append(table, row{no.nr, calls[c].trap})
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
