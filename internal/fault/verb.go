package fault

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// VerbRule makes a control verb wait or fail before it has any effect. The tags are those of [Rule]. On the command
// line, the flag of [Rule] gives Delay.
type VerbRule struct {
	// Verb is the name of the verb. It is the name of its C function without ibv_, such as create_cq, or the full
	// name for the connection manager, such as rdma_connect. modify_qp may be followed by the requested state:
	// modify_qp:rtr.
	Verb string `json:"verb" yaml:"verb" help:"Affect calls of a verb, such as create_cq, rdma_connect or modify_qp:rtr, instead of packets." placeholder:"VERB" complete:"verb"`
	// Errno is the name of the error, such as ENOMEM; with an empty Errno the verb does not fail.
	Errno string `json:"errno,omitempty" yaml:"errno" help:"Error with which the verb fails, such as ENOMEM." placeholder:"NAME" complete:"errno"`
	// Delay is the time for which the verb first waits, at most a minute.
	Delay time.Duration `json:"delay_ns,omitempty" yaml:"delay" kong:"-"`
	// Process is the name or the ID of the process that opened the device; empty means any process.
	Process string `json:"process,omitempty" yaml:"process" help:"Affect only calls of this process, given by its number or the name of its program." placeholder:"NAME" complete:"none"`
	// Nth is the first matching call that the rule acts on (0 means the first), and Times is the number of calls (0
	// means unlimited).
	Nth   uint64 `json:"nth,omitempty" yaml:"nth" type:"from1" help:"Affect only the N-th call, or with --times that many calls from the N-th on." placeholder:"N" complete:"none"`
	Times uint64 `json:"times,omitempty" yaml:"times" type:"from1" help:"Affect at most N calls." placeholder:"N" complete:"none"`
}

// maxProcessName limits the length of VerbRule.Process, in bytes.
const maxProcessName = 64

// Validate returns an error for invalid values, which wraps EINVAL. Validate does not check the name of the verb.
func (r *VerbRule) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), syscall.EINVAL)
	}
	switch {
	case r.Verb == "":
		return bad("the rule has no verb")
	case r.Delay < 0 || r.Delay > maxDelay:
		return bad("a delay of %v is not from 0 to %v", r.Delay, maxDelay)
	case r.Errno == "" && r.Delay == 0:
		return bad("the rule has no effect: give an errno, a delay or both")
	case len(r.Process) > maxProcessName:
		return bad("process name of %d bytes is too long", len(r.Process))
	}
	if _, ok := r.ErrnoNumber(); !ok {
		return bad("errno %.64q is unknown; use a name of errno(3), such as ENOMEM or EIO", r.Errno)
	}
	return nil
}

// WithDefaults returns the rule as users write it: a rule for the N-th call acts once, unless it has a number of calls.
func (r VerbRule) WithDefaults() VerbRule {
	if r.Nth != 0 && r.Times == 0 {
		r.Times = 1
	}
	return r
}

// String formats the rule, for example as "create_cq errno ENOMEM from call 2 for 1".
func (r VerbRule) String() string {
	w := []string{r.Verb}
	word := func(show bool, format string, arg any) {
		if show {
			w = append(w, fmt.Sprintf(format, arg))
		}
	}
	word(r.Errno != "", "errno %v", r.Errno)
	word(r.Delay > 0, "delay %v", r.Delay)
	word(r.Nth > 1, "from call %d", r.Nth)
	word(r.Times > 0, "for %d", r.Times)
	word(r.Process != "", "process %v", r.Process)
	return strings.Join(w, " ")
}

const lastErrno = 133 // the number of EHWPOISON

// ErrnoNumber returns the number of Errno, or 0 for an empty Errno. It returns false for an unknown name.
func (r *VerbRule) ErrnoNumber() (syscall.Errno, bool) {
	if r.Errno == "" {
		return 0, true
	}
	for e := syscall.Errno(1); e <= lastErrno; e++ {
		if unix.ErrnoName(e) == r.Errno {
			return e, true
		}
	}
	return 0, false
}

// ErrnoNames returns the names of errors, ordered by number.
func ErrnoNames() (names []string) {
	for e := syscall.Errno(1); e <= lastErrno; e++ {
		if name := unix.ErrnoName(e); name != "" {
			names = append(names, name)
		}
	}
	return names
}
