package main

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/elastic/go-seccomp-bpf/arch"
	profile "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// dockerProfile compiles Docker's default profile for a container with these capabilities and for the native system
// calls of this machine. The filter refuses the system calls of other architectures.
func dockerProfile(bounding []string) ([]unix.SockFilter, error) {
	p, err := profile.GetDefaultProfile(
		&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: bounding}}})
	if err != nil {
		return nil, err
	}
	a, err := arch.GetInfo(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	deny, err := seccompReturn(p.DefaultAction, p.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	const number, architecture, args = 0, 4, 16 // offsets in seccomp_data
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	jump := func(op uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, Jt: yes, Jf: no, K: k}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	f := []unix.SockFilter{load(architecture), jump(unix.BPF_JEQ, uint32(a.ID), 1, 0), ret(deny)}
	if runtime.GOARCH == "amd64" { // Verbena makes no x32 calls
		const x32 = 0x40000000
		f = append(f, load(number), jump(unix.BPF_JGE, x32, 0, 1), ret(deny))
	}
	for _, rule := range p.Syscalls {
		action, err := seccompReturn(rule.Action, rule.ErrnoRet)
		if err != nil {
			return nil, err
		}
		for _, name := range rule.Names {
			n, ok := a.SyscallNames[name]
			if !ok {
				continue // another architecture, as in libseccomp
			}
			var tests []unix.SockFilter // each test continues with the next test, or jumps past the end
			for _, arg := range rule.Args {
				low, high := uint32(arg.Value), uint32(arg.Value>>32)
				at := uint32(args + 8*arg.Index)
				switch arg.Op {
				case specs.OpEqualTo:
					tests = append(tests, load(at+4), jump(unix.BPF_JEQ, high, 0, jumpPastRule), load(at), jump(unix.BPF_JEQ, low, 0,
						jumpPastRule))
				case specs.OpNotEqual:
					tests = append(tests, load(at+4), jump(unix.BPF_JEQ, high, 0, 2), load(at), jump(unix.BPF_JEQ, low, jumpPastRule,
						0))
				case specs.OpMaskedEqual:
					for i, mask := range []uint32{low, high} {
						want := uint32(arg.ValueTwo >> (32 * i))
						tests = append(tests, load(at+uint32(4*i)),
							unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: mask},
							jump(unix.BPF_JEQ, want, 0, jumpPastRule))
					}
				case specs.OpLessThan:
					tests = append(tests, load(at+4), jump(unix.BPF_JEQ, high, 0, jumpPastRule), load(at), jump(unix.BPF_JGE, low,
						jumpPastRule, 0))
				case specs.OpGreaterThan:
					tests = append(tests, load(at+4), jump(unix.BPF_JEQ, high, 0, jumpPastRule), load(at), jump(unix.BPF_JGT, low, 0,
						jumpPastRule))
				default:
					return nil, fmt.Errorf("%s: unknown operation %s", name, arg.Op)
				}
			}
			body := append(tests, ret(action))
			for i := range tests {
				past := uint8(len(body) - 1 - i)
				if body[i].Jt == jumpPastRule {
					body[i].Jt = past
				}
				if body[i].Jf == jumpPastRule {
					body[i].Jf = past
				}
			}
			f = append(f, load(number), jump(unix.BPF_JEQ, uint32(n), 0, uint8(len(body))))
			f = append(f, body...)
		}
	}
	return append(f, ret(deny)), nil
}

// jumpPastRule is a placeholder for a jump past the rule.
const jumpPastRule = 255

func seccompReturn(a specs.LinuxSeccompAction, errno *uint) (uint32, error) {
	switch a {
	case specs.ActAllow:
		return unix.SECCOMP_RET_ALLOW, nil
	case specs.ActErrno:
		if errno == nil {
			return unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM), nil
		}
		return unix.SECCOMP_RET_ERRNO | uint32(*errno), nil
	}
	return 0, fmt.Errorf("unknown action %s", a)
}

// installFilter installs the filter on this thread. It needs CAP_SYS_ADMIN, and does not set no_new_privs, as with
// Docker.
func installFilter(f []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0,
		uintptr(unsafe.Pointer(&prog))); errno != 0 {
		return errno
	}
	return nil
}
