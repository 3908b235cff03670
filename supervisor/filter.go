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

// trapCondition is a condition of the filter in addition to the number of the system call.
type trapCondition uint8

const (
	always            trapCondition = iota
	ifVerbs                         // argument 1 is the request RDMA_VERBS_IOCTL, or argument 0 is a command file's number
	ifFile                          // argument 0 is a command file's number
	ifTrappedDoorbell               // argument 0 is a command file's number with trapped doorbells
	ifTo                            // argument 1 is a command file's number
	ifUpTo                          // argument 1 is a command file's number, or greater
	// argument 0 is a command file's number, or arguments 1 and 2 request a duplicate there
	ifDup
	// argument 0 is a command file's number, or is AT_FDCWD or another negative number, because the path may be absolute
	ifCwdFile
	ifNetlink // arguments 0 and 2 request a NETLINK_RDMA socket
	numConditions
)

// callTable lists the names of the calls, and the conditions under which the filter traps each call.
var callTable = [numCalls]struct {
	name string
	trap trapCondition
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

func (c call) String() string { return callTable[c].name }

// architecture is a system call table.
type architecture struct {
	audit   uint32                          // AUDIT_ARCH_*
	numbers [numCalls]optionalSyscallNumber // numbers of the calls; some calls do not exist on some architectures
	// Programs of this architecture can also make calls of other architectures. The filter traps such a call if it
	// executes a program.
	execs  []uint32 // other numbers of execve in the same table
	compat compatSyscallTable
}

// compatSyscallTable is the system call table of 32-bit programs.
type compatSyscallTable struct {
	audit uint32
	execs []uint32
}

type optionalSyscallNumber struct {
	nr uint32
	ok bool
}

func syscallNumber(nr uint32) optionalSyscallNumber { return optionalSyscallNumber{nr, true} }

// architectures holds the supported architectures, by GOARCH. Newer architectures never had the calls without a
// directory argument.
var architectures = map[string]*architecture{
	"amd64": {
		audit: unix.AUDIT_ARCH_X86_64,
		numbers: [numCalls]optionalSyscallNumber{
			callWrite:       syscallNumber(1),
			callOpen:        syscallNumber(2),
			callClose:       syscallNumber(3),
			callStat:        syscallNumber(4),
			callFstat:       syscallNumber(5),
			callLstat:       syscallNumber(6),
			callLseek:       syscallNumber(8),
			callIoctl:       syscallNumber(16),
			callPread64:     syscallNumber(17),
			callPwrite64:    syscallNumber(18),
			callAccess:      syscallNumber(21),
			callDup:         syscallNumber(32),
			callDup2:        syscallNumber(33),
			callSocket:      syscallNumber(41),
			callBind:        syscallNumber(49),
			callGetsockname: syscallNumber(51),
			callSetsockopt:  syscallNumber(54),
			callExecve:      syscallNumber(59),
			callFcntl:       syscallNumber(72),
			callFsync:       syscallNumber(74),
			callFtruncate:   syscallNumber(77),
			callGetcwd:      syscallNumber(79),
			callFchdir:      syscallNumber(81),
			callReadlink:    syscallNumber(89),
			callGetxattr:    syscallNumber(191),
			callLgetxattr:   syscallNumber(192),
			callListxattr:   syscallNumber(194),
			callLlistxattr:  syscallNumber(195),
			callGetdents64:  syscallNumber(217),
			callOpenat:      syscallNumber(257),
			callNewfstatat:  syscallNumber(262),
			callReadlinkat:  syscallNumber(267),
			callFaccessat:   syscallNumber(269),
			callFallocate:   syscallNumber(285),
			callDup3:        syscallNumber(292),
			callExecveat:    syscallNumber(322),
			callStatx:       syscallNumber(332),
			callCloseRange:  syscallNumber(436),
			callOpenat2:     syscallNumber(437),
			callFaccessat2:  syscallNumber(439),
		},
		execs:  []uint32{x32Flag + 520, x32Flag + 545},
		compat: compatSyscallTable{unix.AUDIT_ARCH_I386, []uint32{11, 358}},
	},
	"arm64": {
		audit: unix.AUDIT_ARCH_AARCH64,
		numbers: [numCalls]optionalSyscallNumber{
			callGetxattr:    syscallNumber(8),
			callLgetxattr:   syscallNumber(9),
			callListxattr:   syscallNumber(11),
			callLlistxattr:  syscallNumber(12),
			callGetcwd:      syscallNumber(17),
			callDup:         syscallNumber(23),
			callDup3:        syscallNumber(24),
			callFcntl:       syscallNumber(25),
			callIoctl:       syscallNumber(29),
			callFtruncate:   syscallNumber(46),
			callFallocate:   syscallNumber(47),
			callFaccessat:   syscallNumber(48),
			callFchdir:      syscallNumber(50),
			callOpenat:      syscallNumber(56),
			callClose:       syscallNumber(57),
			callGetdents64:  syscallNumber(61),
			callLseek:       syscallNumber(62),
			callWrite:       syscallNumber(64),
			callPread64:     syscallNumber(67),
			callPwrite64:    syscallNumber(68),
			callReadlinkat:  syscallNumber(78),
			callNewfstatat:  syscallNumber(79),
			callFstat:       syscallNumber(80),
			callFsync:       syscallNumber(82),
			callSocket:      syscallNumber(198),
			callBind:        syscallNumber(200),
			callGetsockname: syscallNumber(204),
			callSetsockopt:  syscallNumber(208),
			callExecve:      syscallNumber(221),
			callExecveat:    syscallNumber(281),
			callStatx:       syscallNumber(291),
			callCloseRange:  syscallNumber(436),
			callOpenat2:     syscallNumber(437),
			callFaccessat2:  syscallNumber(439),
		},
		compat: compatSyscallTable{unix.AUDIT_ARCH_ARM, []uint32{11, 387}},
	},
}

// x32Flag is the flag in the numbers of calls with 32-bit pointers (x32 ABI). (__X32_SYSCALL_BIT)
const x32Flag = 0x40000000

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

// nativeArchitecture is the entry of this architecture, or the zero value if it is not supported.
var nativeArchitecture = func() architecture {
	if a := architectures[runtime.GOARCH]; a != nil {
		return *a
	}
	return architecture{}
}()

// callOf returns the call of a notification. Every trapped number beyond the table executes a program.
func callOf(n *notification) call {
	switch {
	case n.arch != nativeArchitecture.audit:
		if n.arch == nativeArchitecture.compat.audit && slices.Contains(nativeArchitecture.compat.execs, uint32(n.nr)) {
			return callExecve
		}
	case uint32(n.nr) < uint32(len(callsByNumber)):
		return callsByNumber[n.nr]
	case slices.Contains(nativeArchitecture.execs, uint32(n.nr)):
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

// makeFilter makes the filter for the numbers of command files. The filter allows the calls of programs of another
// architecture (32-bit), except for calls that execute a program. Such programs find no device.
//
//	arch is of 32-bit programs -> trap if nr executes a program, else allow
//	arch is another one        -> allow
//	nr is not of a call        -> allow
//	the condition's block      -> trap if it holds, else allow
func (a *architecture) makeFilter(n commandFDSet) []unix.SockFilter {
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
		ifCwdFile: append([]unix.SockFilter{arg(0), is(jge, math.MaxInt32+1, 1), give(trap)}, file...),
		ifNetlink: {
			arg(0), is(jeq, unix.AF_NETLINK, 3),
			arg(2), is(jeq, unix.NETLINK_RDMA, 1), give(trap),
			give(unix.SECCOMP_RET_ALLOW),
		},
	}
	type row struct {
		nr   uint32
		trap trapCondition
	}
	var table []row
	for c, no := range a.numbers {
		if no.ok {
			table = append(table, row{no.nr, callTable[c].trap})
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
