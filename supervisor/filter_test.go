package supervisor

import (
	"encoding/binary"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"verbena/uapi"
)

const (
	allow = uint32(unix.SECCOMP_RET_ALLOW)
	trap  = uint32(unix.SECCOMP_RET_USER_NOTIF)
)

// filterVerdict runs a filter on a system call. It uses an interpreter of BPF for packets, which reads big-endian
// words.
func filterVerdict(t *testing.T, filter []unix.SockFilter, arch, nr uint32, args ...uint64) uint32 {
	t.Helper()
	var prog []bpf.Instruction
	for _, ins := range filter {
		prog = append(prog, bpf.RawInstruction{Op: ins.Code, Jt: ins.Jt, Jf: ins.Jf, K: ins.K}.Disassemble())
	}
	vm, err := bpf.NewVM(prog)
	if err != nil {
		t.Fatal(err)
	}
	words := []uint32{nr, arch, 0, 0}
	for i := range 6 {
		var a uint64
		if i < len(args) {
			a = args[i]
		}
		words = append(words, uint32(a), uint32(a>>32))
	}
	var data []byte
	for _, w := range words {
		data = binary.BigEndian.AppendUint32(data, w)
	}
	v, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(v)
}

// TestFilterOfNativeDoorbells tests that for native numbers, write(2) is not trapped and all other calls are.
func TestFilterOfNativeDoorbells(t *testing.T) {
	n := commandFDsForHardLimit(1 << 20)
	first, end := n.native.first, n.native.end
	for name, arch := range architectures {
		prog := arch.makeFilter(n)
		for _, tt := range []struct {
			call call
			fd   uint32
			want uint32
		}{
			{callWrite, 3, allow}, {callWrite, n.low.first - 1, allow}, {callWrite, n.low.first, trap}, {callWrite, first - 1,
				trap},
			{callWrite, first, allow}, {callWrite, end - 1, allow}, {callWrite, end, allow}, {callWrite, n.high - 1, allow},
			{callWrite, n.high, trap}, {callWrite, math.MaxInt32, trap},
			{callWrite, math.MaxUint32, allow}, {callFstat, first, trap}, {callFstat, end - 1, trap}, {callDup, first,
				trap}, {callBind, first, trap},
		} {
			if nr := arch.numbers[tt.call]; nr.ok {
				if got := filterVerdict(t, prog, arch.audit, nr.nr, uint64(tt.fd)); got != tt.want {
					t.Errorf("%s: verdict of %v of %d: got %#x, want %#x", name, tt.call, tt.fd, got, tt.want)
				}
			}
		}
	}
}

func TestFilterVerdicts(t *testing.T) {
	n := commandFDSet{low: fdRange{700, 900}, native: fdRange{800, 900}, high: 1000}
	const low, native, lowEnd, first = 700, 800, 900, 1000
	const cwd = uint64(1<<64 - 100) // AT_FDCWD as an int, sign-extended to a register
	const cwd32 = uint64(1<<32 - 100)
	tests := []struct {
		call call
		args []uint64
		want uint32
	}{
		{callWrite, []uint64{0}, allow},
		{callWrite, []uint64{first - 1}, allow},
		{callWrite, []uint64{first}, trap},
		{callWrite, []uint64{math.MaxInt32}, trap},
		{callWrite, []uint64{1<<64 - 1}, allow}, // the kernel returns EBADF
		{callWrite, []uint64{1<<32 - 1}, allow},
		{callWrite, []uint64{low - 1}, allow},
		{callWrite, []uint64{low}, trap},
		{callWrite, []uint64{native - 1}, trap},
		{callWrite, []uint64{native}, allow},
		{callWrite, []uint64{lowEnd}, allow},
		{callWrite, []uint64{1<<32 | low}, trap}, // the kernel uses the lower half
		{callIoctl, []uint64{3, uapi.VerbsIoctl}, trap},
		{callIoctl, []uint64{first, uapi.VerbsIoctl}, trap},
		{callIoctl, []uint64{first, uapi.VerbsIoctl + 1}, trap},
		{callIoctl, []uint64{low, unix.TIOCGWINSZ}, trap},
		{callIoctl, []uint64{low - 1, unix.TIOCGWINSZ}, allow},
		{callLseek, []uint64{3}, allow},
		{callLseek, []uint64{low}, trap},
		{callPread64, []uint64{3}, allow},
		{callPread64, []uint64{low}, trap},
		{callPwrite64, []uint64{3}, allow},
		{callPwrite64, []uint64{native}, trap},
		{callFtruncate, []uint64{3}, allow},
		{callFtruncate, []uint64{low}, trap},
		{callFallocate, []uint64{3}, allow},
		{callFallocate, []uint64{low}, trap},
		{callFsync, []uint64{3}, allow},
		{callFsync, []uint64{first}, trap},
		{callIoctl, []uint64{3, unix.TIOCGWINSZ}, allow},
		{callFstat, []uint64{3}, allow},
		{callFstat, []uint64{first}, trap},
		{callFstat, []uint64{1<<64 - 1}, allow},
		{callFstat, []uint64{low - 1}, allow},
		{callFstat, []uint64{low}, trap},
		{callFstat, []uint64{native}, trap},
		{callFstat, []uint64{lowEnd - 1}, trap},
		{callFstat, []uint64{lowEnd}, allow},
		{callFstat, []uint64{first - 1}, allow},
		{callClose, []uint64{3}, allow},
		{callClose, []uint64{low}, trap},
		{callClose, []uint64{native}, trap},
		{callClose, []uint64{lowEnd}, allow},
		{callClose, []uint64{first}, trap},
		{callClose, []uint64{1<<64 - 1}, allow},
		{callCloseRange, []uint64{3, low - 1}, allow},
		{callCloseRange, []uint64{3, low}, trap},
		{callCloseRange, []uint64{lowEnd, lowEnd}, trap},
		{callCloseRange, []uint64{3, math.MaxUint32}, trap},
		{callDup, []uint64{3}, allow},
		{callDup, []uint64{first}, trap},
		{callDup2, []uint64{first, 3}, allow},
		{callDup2, []uint64{3, first}, trap},
		{callDup3, []uint64{first, first - 1, 0}, allow},
		{callDup3, []uint64{3, first + 7, unix.O_CLOEXEC}, trap},
		{callDup3, []uint64{3, 1<<64 - 1, 0}, allow},
		{callExecve, nil, trap},
		{callExecveat, []uint64{3}, trap},
		{callFcntl, []uint64{3, unix.F_DUPFD_CLOEXEC}, allow},
		{callFcntl, []uint64{first, unix.F_DUPFD_CLOEXEC}, trap},
		{callFcntl, []uint64{first, unix.F_GETFD}, trap},
		{callFcntl, []uint64{3, unix.F_DUPFD, first - 1}, allow},
		{callFcntl, []uint64{3, unix.F_DUPFD, first}, trap},
		{callFcntl, []uint64{3, unix.F_DUPFD_CLOEXEC, first + 1}, trap},
		{callFcntl, []uint64{3, unix.F_DUPFD, 1<<32 - 1}, allow},
		{callFcntl, []uint64{3, unix.F_DUPFD, low - 1}, allow},
		{callFcntl, []uint64{3, unix.F_DUPFD, low}, trap},
		{callFcntl, []uint64{3, unix.F_DUPFD, lowEnd}, allow},
		{callFcntl, []uint64{low, unix.F_GETFD}, trap},
		{callFcntl, []uint64{lowEnd, unix.F_GETFD}, allow},
		{callFcntl, []uint64{3, unix.F_SETFL, first}, allow},
		{callFcntl, []uint64{1<<64 - 1, unix.F_DUPFD, 3}, allow},
		{callOpenat, []uint64{cwd}, trap},
		{callOpenat, []uint64{cwd32}, trap},
		{callOpenat, []uint64{1<<64 - 1}, trap}, // hwloc passes -1 with an absolute path
		{callOpenat, []uint64{1<<32 - 1}, trap},
		{callOpenat, []uint64{math.MaxInt32 + 1}, trap},
		{callOpenat, []uint64{3}, allow},
		{callOpenat, []uint64{first}, trap},
		{callGetdents64, []uint64{3}, allow},
		{callGetdents64, []uint64{low}, trap},
		{callFchdir, []uint64{3}, allow},
		{callFchdir, []uint64{low}, trap},
		{callGetcwd, nil, trap},
		{callOpenat2, []uint64{cwd}, trap},
		{callOpenat2, []uint64{3}, allow},
		{callNewfstatat, []uint64{cwd}, trap},
		{callNewfstatat, []uint64{3}, allow},
		{callNewfstatat, []uint64{first}, trap}, // AT_EMPTY_PATH
		{callStatx, []uint64{cwd}, trap},
		{callStatx, []uint64{first}, trap},
		{callStatx, []uint64{3}, allow},
		{callReadlinkat, []uint64{cwd}, trap},
		{callReadlinkat, []uint64{first}, trap},
		{callReadlinkat, []uint64{3}, allow},
		{callFaccessat, []uint64{cwd}, trap},
		{callFaccessat, []uint64{first}, trap},
		{callFaccessat, []uint64{3}, allow},
		{callFaccessat2, []uint64{cwd}, trap},
		{callFaccessat2, []uint64{3}, allow},
		{callSocket, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_RDMA}, trap},
		{callSocket, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, allow},
		{callSocket, []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.NETLINK_RDMA}, allow},
		{callBind, []uint64{3}, allow},
		{callBind, []uint64{first}, trap},
		{callGetsockname, []uint64{3}, allow},
		{callGetsockname, []uint64{first}, trap},
		{callSetsockopt, []uint64{3}, allow},
		{callSetsockopt, []uint64{first}, trap},
		{callOpen, nil, trap},
		{callStat, nil, trap},
		{callLstat, nil, trap},
		{callReadlink, nil, trap},
		{callAccess, nil, trap},
		{callGetxattr, nil, trap},
		{callLgetxattr, nil, trap},
		{callListxattr, nil, trap},
		{callLlistxattr, nil, trap},
	}
	seen := make(map[call]bool)
	for _, tt := range tests {
		seen[tt.call] = true
	}
	for c := callOther + 1; c < numCalls; c++ {
		if !seen[c] {
			t.Errorf("tests of %v: got none, want one", c)
		}
	}
	// The numbers below are execve and execveat in the kernel's system call tables, for each architecture that a
	// program can switch to.
	for _, tt := range []struct {
		name  string
		audit uint32
		nr    uint32
	}{
		{"amd64", unix.AUDIT_ARCH_X86_64, 59}, {"amd64", unix.AUDIT_ARCH_X86_64, 322},
		{"amd64", unix.AUDIT_ARCH_X86_64, 1<<30 + 520}, {"amd64", unix.AUDIT_ARCH_X86_64, 1<<30 + 545},
		{"amd64", unix.AUDIT_ARCH_I386, 11}, {"amd64", unix.AUDIT_ARCH_I386, 358},
		{"arm64", unix.AUDIT_ARCH_AARCH64, 221}, {"arm64", unix.AUDIT_ARCH_AARCH64, 281},
		{"arm64", unix.AUDIT_ARCH_ARM, 11}, {"arm64", unix.AUDIT_ARCH_ARM, 387},
	} {
		if got := filterVerdict(t, architectures[tt.name].makeFilter(n), tt.audit, tt.nr); got != trap {
			t.Errorf("%s: verdict of number %#x of architecture %#x, which executes a program: got %#x, want a trap", tt.name,
				tt.nr, tt.audit, got)
		}
	}
	for name, a := range architectures {
		filter := a.makeFilter(n)
		for _, tt := range tests {
			n := a.numbers[tt.call]
			if !n.ok {
				continue
			}
			if got := filterVerdict(t, filter, a.audit, n.nr, tt.args...); got != tt.want {
				t.Errorf("%s: verdict of %v%x: got %#x, want %#x", name, tt.call, tt.args, got, tt.want)
			}
			for _, audit := range []uint32{a.compat.audit, unix.AUDIT_ARCH_PPC} {
				if audit == a.compat.audit && slices.Contains(a.compat.execs, n.nr) {
					continue
				}
				if got := filterVerdict(t, filter, audit, n.nr, tt.args...); got != allow {
					t.Errorf("%s: verdict of %v of architecture %#x: got %#x, want allow", name, tt.call, audit, got)
				}
			}
		}
		// The filter traps each call that executes a program, also with the numbers of 32-bit programs.
		for nr := range uint32(600) {
			want := allow
			if slices.Contains(a.compat.execs, nr) {
				want = trap
			}
			if got := filterVerdict(t, filter, a.compat.audit, nr); got != want {
				t.Errorf("%s: verdict of system call %d of a 32-bit program: got %#x, want %#x", name, nr, got, want)
			}
			want = allow
			if slices.Contains(a.execs, x32Flag+nr) {
				want = trap
			}
			if got := filterVerdict(t, filter, a.audit, x32Flag+nr); got != want {
				t.Errorf("%s: verdict of system call %d with 32-bit pointers: got %#x, want %#x", name, nr, got, want)
			}
		}
		trapped := make(map[uint32]bool)
		for _, n := range a.numbers {
			trapped[n.nr] = trapped[n.nr] || n.ok
		}
		for nr := range uint32(600) {
			if trapped[nr] {
				continue
			}
			if got := filterVerdict(t, filter, a.audit, nr, cwd, uapi.VerbsIoctl); got != allow {
				t.Errorf("%s: verdict of system call %d: got %#x, want allow", name, nr, got)
			}
		}
	}
}

// TestSystemCallNumbers compares the tables with golang.org/x/sys/unix, for all architectures.
func TestSystemCallNumbers(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Skipf("found no sources of golang.org/x/sys: %v", err)
	}
	for arch, a := range architectures {
		want := parseConstants(t, filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+arch+".go"))
		for c := callOther + 1; c < numCalls; c++ {
			n, have := a.numbers[c], want["SYS_"+strings.ToUpper(c.String())]
			if n.ok != (have != 0) || n.nr != have {
				t.Errorf("%s: number of %v: got %v, want %d", arch, c, n, have)
			}
		}
	}
	for c, n := range nativeArchitecture.numbers {
		if got := callOf(&notification{arch: nativeArchitecture.audit, nr: int32(n.nr)}); n.ok && got != call(c) {
			t.Errorf("callOf number %d: got %v, want %v", n.nr, got, call(c))
		}
	}
	for _, nr := range []int32{-1, math.MinInt32, 600, math.MaxInt32} {
		if got := callOf(&notification{arch: nativeArchitecture.audit, nr: nr}); got != callOther {
			t.Errorf("callOf number %d: got %v, want callOther", nr, got)
		}
	}
	for _, nr := range nativeArchitecture.compat.execs {
		if got := callOf(&notification{arch: nativeArchitecture.compat.audit, nr: int32(nr)}); got != callExecve {
			t.Errorf("callOf number %d of a 32-bit program: got %v, want callExecve", nr, got)
		}
	}
	for _, nr := range nativeArchitecture.execs {
		if got := callOf(&notification{arch: nativeArchitecture.audit, nr: int32(nr)}); got != callExecve {
			t.Errorf("callOf number %#x: got %v, want callExecve", nr, got)
		}
	}
}

func parseConstants(t *testing.T, file string) map[string]uint32 {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := parser.ParseFile(token.NewFileSet(), file, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]uint32)
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			for i, name := range v.Names {
				lit, ok := v.Values[i].(*ast.BasicLit)
				if !ok {
					continue
				}
				if u, exact := constant.Uint64Val(constant.MakeFromLiteral(lit.Value, lit.Kind, 0)); exact {
					m[name.Name] = uint32(u)
				}
			}
		}
		return true
	})
	return m
}

func TestCommandFDsForHardLimit(t *testing.T) {
	for _, tt := range []struct {
		hard uint64
		want commandFDSet
	}{
		{256, commandFDSet{fdRange{192, 256}, fdRange{256, 256}, 192}},
		{1024, commandFDSet{fdRange{768, 1024}, fdRange{1024, 1024}, 768}},
		{1100, commandFDSet{fdRange{768, 1024}, fdRange{1024, 1024}, 1024}},
		{2048, commandFDSet{fdRange{768, 1024}, fdRange{1024, 1024}, 1536}},
		{4096, commandFDSet{fdRange{768, 1024}, fdRange{960, 1024}, 3072}},
		{20000, commandFDSet{fdRange{768, 1024}, fdRange{960, 1024}, 15000}},
		{32767, commandFDSet{fdRange{768, 1024}, fdRange{960, 1024}, 24573}},
		{32768, commandFDSet{fdRange{768, 1024}, fdRange{960, 1024}, 16384}},
		{1 << 20, commandFDSet{fdRange{768, 1024}, fdRange{960, 1024}, 16384}},
		{math.MaxUint64, commandFDSet{fdRange{768, 1024}, fdRange{960, 1024}, 16384}},
	} {
		got := commandFDsForHardLimit(tt.hard)
		if got != tt.want {
			t.Errorf("numbers for a limit of %d: got %v, want %v", tt.hard, got, tt.want)
		}
		// The filter and the supervisor must use the same numbers.
		for name, arch := range architectures {
			for _, fd := range []uint32{0, 191, 192, 255, 256, 767, 768, 1023, 1024, 1535, 1536, 3072, 14999, 15000, 16383,
				16384, 24573, 1<<31 - 1, 1 << 31} {
				trapped := filterVerdict(t, arch.makeFilter(got), arch.audit, arch.numbers[callFstat].nr, uint64(fd)) == trap
				if trapped != got.contains(fd) {
					t.Errorf("%s with a limit of %d: fstat of %d: got trapped %v, want %v", name, tt.hard, fd, trapped,
						got.contains(fd))
				}
			}
		}
	}
}
