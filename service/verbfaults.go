package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/fault"
	"verbena/internal/procfile"
	"verbena/rdmacm/ucma"
	"verbena/uverbs"
)

// maxFaultRules limits the number of fault rules for verbs of a service, and the number of rules for packets of a
// device. Each rule costs time for each call or packet.
const maxFaultRules = 1024

// cmVerbPrefix is the prefix of the connection manager's verbs, which do not belong to a device.
const cmVerbPrefix = "rdma_"

// VerbNames returns the names of verbs for fault rules. These are the names of libibverbs without ibv_, and the
// names of the connection manager with rdma_.
func VerbNames() []string { return append(uverbs.Verbs(), ucma.Verbs()...) }

// verbFaults is the set of fault rules for verbs.
type verbFaults struct {
	ids    *atomic.Int64 // numbers the rules
	uverbs *uverbs.Server
	cm     *ucma.Server
	ended  context.Context // done when the service begins to stop

	mu    sync.Mutex
	rules []*verbRule
}

// verbRule is a fault rule for a verb that is in effect.
type verbRule struct {
	fault.VerbRule
	id    int
	dev   string
	verb  string // name of the verb as announced by the server
	state string // state for modify_qp; empty for any state
	errno syscall.Errno
	pid   int           // Process, if it is a number
	ended chan struct{} // closed when the rule was removed

	seen, hit uint64
}

// newVerbRule checks a rule. newVerbRule's errors wrap EINVAL.
func newVerbRule(dev string, f *fault.VerbRule) (*verbRule, error) {
	r := &verbRule{VerbRule: *f, dev: dev, ended: make(chan struct{})}
	name, state, stated := strings.Cut(strings.TrimPrefix(f.Verb, "ibv_"), ":")
	var ok bool
	if r.verb, ok = uverbs.CanonicalVerb(name); !ok {
		r.verb, ok = name, slices.Contains(ucma.Verbs(), name)
	}
	bad := func(format string, args ...any) (*verbRule, error) {
		return nil, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), syscall.EINVAL)
	}
	states := []string{"reset", "init", "rtr", "rts", "sqd", "sqe", "err"}
	switch r.state = state; {
	case !ok:
		return bad("verb %q; there are: %s", ctl.ClipText(name), strings.Join(VerbNames(), ", "))
	case stated && r.verb != "modify_qp":
		return bad("verb %q: modify_qp alone has a state", ctl.ClipText(f.Verb))
	case stated && !slices.Contains(states, state):
		return bad("verb %q: unknown state %q; there are: %s", name, ctl.ClipText(state), strings.Join(states, ", "))
	case dev != "" && strings.HasPrefix(r.verb, cmVerbPrefix):
		return bad("verb %s does not belong to a device: omit the device", r.verb)
	}
	if err := f.Validate(); err != nil {
		return nil, err
	}
	r.errno, _ = f.ErrnoNumber()
	if pid, err := strconv.Atoi(f.Process); err == nil {
		r.pid = pid
	}
	r.Nth = max(r.Nth, 1)
	return r, nil
}

// CheckVerbFault returns an error if a rule for a verb is invalid. The error wraps EINVAL.
func CheckVerbFault(dev string, f *fault.VerbRule) error {
	_, err := newVerbRule(dev, f)
	return err
}

// matchesCall reports whether the rule matches a call.
func (r *verbRule) matchesCall(c *uverbs.VerbCall) bool {
	return r.verb == c.Verb && (r.state == "" || r.state == c.State) && (r.dev == "" || r.dev == c.Device) &&
		(r.Process == "" || r.Process == c.Process || r.pid != 0 && r.pid == c.PID)
}

// countAndMatchRules counts a call, and returns the rules that apply to it, up to the first rule that makes it fail.
func (v *verbFaults) countAndMatchRules(c *uverbs.VerbCall) (act []*verbRule) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, r := range v.rules {
		if !r.matchesCall(c) {
			continue
		}
		r.seen++
		if n := r.seen - r.Nth; r.seen < r.Nth || r.Times != 0 && n >= r.Times {
			continue
		}
		r.hit++
		if act = append(act, r); r.errno != 0 {
			break
		}
	}
	return act
}

// processCheckInterval is the interval at which a delayed call checks whether its process still exists.
const processCheckInterval = 100 * time.Millisecond

// waitForDelay waits for the delay of the rule. waitForDelay returns early if the rule, the service or the process
// ends; pid is 0 if unknown.
func (r *verbRule) waitForDelay(pid int, ended context.Context) {
	over := time.NewTimer(r.Delay)
	defer over.Stop()
	look := time.NewTicker(processCheckInterval)
	defer look.Stop()
	for {
		select {
		case <-over.C:
			return
		case <-r.ended:
			return
		case <-ended.Done():
			return
		case <-look.C:
			if pid != 0 && isGoneOrZombie(pid) {
				return
			}
		}
	}
}

// isGoneOrZombie reports whether the process does not exist, or is a zombie.
func isGoneOrZombie(pid int) bool {
	b, err := procfile.ReadNoFollow("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
	}
	_, rest, _ := strings.Cut(string(b[bytes.LastIndexByte(b, ')')+1:]), " ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

// applyFaults applies the matching rules to a call. applyFaults delays the call and returns the error to inject.
func (v *verbFaults) applyFaults(c *uverbs.VerbCall, ended context.Context) error {
	for _, r := range v.countAndMatchRules(c) {
		if r.Delay > 0 {
			r.waitForDelay(c.PID, ended)
		}
		if r.errno != 0 {
			return &ruleError{r.id, r.errno}
		}
	}
	return nil
}

// ruleError is the error that a rule injects.
type ruleError struct {
	rule  int
	errno syscall.Errno
}

func (e *ruleError) Error() string { return fmt.Sprintf("fault rule %d: %v", e.rule, e.errno) }
func (e *ruleError) Unwrap() error { return e.errno }

func (v *verbFaults) listRules() []ctl.FaultRuleState {
	v.mu.Lock()
	defer v.mu.Unlock()
	var list []ctl.FaultRuleState
	for _, r := range v.rules {
		f := r.VerbRule
		list = append(list, ctl.FaultRuleState{Dev: r.dev, ID: r.id, Verb: &f,
			RuleCounts: fault.RuleCounts{Seen: r.seen, Hit: r.hit}})
	}
	return list
}

// updateAnnouncements makes the servers announce verbs while fault rules exist.
//
//verbena:held v.mu
func (v *verbFaults) updateAnnouncements() {
	if len(v.rules) == 0 {
		v.uverbs.OnVerb(nil)
		v.cm.OnVerb(nil)
		return
	}
	v.uverbs.OnVerb(func(c uverbs.VerbCall) error { return v.applyFaults(&c, v.ended) })
	v.cm.OnVerb(func(c ucma.VerbCall) error {
		return v.applyFaults(&uverbs.VerbCall{Verb: c.Verb, PID: c.PID, Process: commandName(c.PID)}, v.ended)
	})
}

// addRule puts a rule into effect.
func (v *verbFaults) addRule(dev string, f *fault.VerbRule) (id int, err error) {
	r, err := newVerbRule(dev, f)
	if err != nil {
		return 0, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.rules) >= maxFaultRules {
		return 0, errTooManyRules
	}
	r.id = int(v.ids.Add(1))
	v.rules = append(v.rules, r)
	v.updateAnnouncements()
	return r.id, nil
}

var errTooManyRules = fmt.Errorf("there are %d rules, which is the limit; verbena fault clear removes them: %w",
	maxFaultRules, syscall.ENOSPC)

// clearRules removes the rule with an ID, or all rules if the ID is 0. It considers the rules of one device,
// or of all devices if dev is empty. clearRules reports whether it removed a rule. Calls that a removed rule
// was delaying continue at once.
func (v *verbFaults) clearRules(dev string, id int) (removed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.rules = slices.DeleteFunc(v.rules, func(r *verbRule) bool {
		gone := (dev == "" || r.dev == dev) && (id == 0 || r.id == id)
		if gone {
			close(r.ended)
			removed = true
		}
		return gone
	})
	v.updateAnnouncements()
	return removed
}
