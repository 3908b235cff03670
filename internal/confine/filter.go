package confine

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"syscall"
	"time"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// newPolicy makes a filter from rules, and from calls that are allowed in addition.
func newPolicy(rules []rule, more ...string) (*seccomp.Policy, error) {
	info, err := arch.GetInfo("")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", syscall.ENOTSUP, err)
	}
	var frequent, rest seccomp.SyscallGroup
	frequent.Action, rest.Action = seccomp.ActionAllow, seccomp.ActionAllow
	ruled := map[string]bool{}
	for _, r := range rules {
		for _, c := range r.calls {
			ruled[c] = true
		}
		for _, e := range r.except {
			if _, ok := info.SyscallNames[e.call]; !ok {
				continue
			}
			group := &rest
			if e.call == "ioctl" { // a service makes this call, and therefore executes the filter, for every call of a program
				group = &frequent
			}
			group.NamesWithCondtions = append(group.NamesWithCondtions,
				seccomp.NameWithConditions{Name: e.call, Conditions: e.conditions})
		}
	}
	for _, c := range slices.Concat(allowedCalls, more) {
		if _, ok := info.SyscallNames[c]; ok && !ruled[c] && !slices.Contains(rest.Names, c) {
			rest.Names = append(rest.Names, c)
		}
	}
	// The C library makes threads by clone(2) if clone3(2) is missing. The flags of clone3 are in memory, which a
	// filter cannot read.
	unknown := seccomp.SyscallGroup{Names: []string{"clone3"}, Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS)}
	return &seccomp.Policy{DefaultAction: seccomp.ActionErrno, Syscalls: []seccomp.SyscallGroup{frequent, rest, unknown}},
		nil
}

// threadEndPause is the time in which a thread with a different filter can end.
const threadEndPause = 10 * time.Millisecond

// FilterProcess permanently installs a filter of the service's rules on all present and future threads of the process.
// The error wraps ENOTSUP if the kernel, a container's policy or this architecture does not support filters.
//
// FilterProcess fails while a thread has a different filter, such as one of Probe of package supervisor. FilterProcess
// waits up to a second for the end of such threads.
func FilterProcess() error { return filterProcessWithRules(serviceRules()) }

func filterProcessWithRules(rules []rule, more ...string) error {
	p, err := newPolicy(rules, more...)
	if err != nil {
		return fmt.Errorf("confine the process: %w", err)
	}
	initLazyState()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Before Linux 5.16, a filter enables mitigations against speculation unless SPEC_ALLOW is set. The mitigations
	// slow the process down. The mitigations isolate parts of a process from one another, and this process has only
	// one part.
	const flags = seccomp.FilterFlagTSync | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
	filter := seccomp.Filter{NoNewPrivs: true, Flag: flags, Policy: *p}
	for deadline := time.Now().Add(time.Second); ; time.Sleep(threadEndPause) {
		err = seccomp.LoadFilter(filter)
		if !errors.Is(err, unix.ESRCH) || time.Now().After(deadline) {
			break
		}
	}
	if isFilterUnavailable(err) {
		err = fmt.Errorf("%w: %w", syscall.ENOTSUP, err)
	}
	if err != nil {
		return fmt.Errorf("confine the process: %w", err)
	}
	return nil
}

// isFilterUnavailable reports whether the kernel does not support filters, or a container's policy forbids them.
func isFilterUnavailable(err error) bool {
	return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) ||
		errors.Is(err, unix.EACCES)
}

// FilterThreads installs a filter of the launcher's rules on all threads of the process, one after another, because one
// of them may already have a filter with a listener. In a binary with cgo, Go cannot reach all threads, and the
// error wraps ENOTSUP.
func FilterThreads() error { return filterEachThread(launcherRules(), launcherCalls...) }

func filterEachThread(rules []rule, more ...string) error {
	p, err := newPolicy(rules, more...)
	var program []bpf.Instruction
	if err == nil {
		program, err = p.Assemble()
	}
	var raw []bpf.RawInstruction
	if err == nil {
		raw, err = bpf.Assemble(program)
	}
	if err == nil {
		err = installOnEachThread(raw)
	}
	if isFilterUnavailable(err) {
		err = fmt.Errorf("%w: %w", syscall.ENOTSUP, err)
	}
	if err != nil {
		return fmt.Errorf("confine the launcher: %w", err)
	}
	return nil
}

// initLazyState makes the standard library initialise state that it determines at first use, and could not determine
// under the filter. This state is the availability of IPv4 and IPv6, for which package net makes TCP sockets, and the
// time zone.
func initLazyState() {
	if c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); err == nil {
		c.Close()
	}
	_, _ = time.Now().Zone()
}
