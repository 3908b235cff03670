package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/fault"
	"verbena/uverbs"
)

func mustVerbRule(t *testing.T, dev string, f fault.VerbRule) *verbRule {
	t.Helper()
	r, err := newVerbRule(dev, &f)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestVerbRuleMatchesCalls tests which calls a fault rule applies to.
func TestVerbRuleMatchesCalls(t *testing.T) {
	call := uverbs.VerbCall{Verb: "create_cq", Device: "rxe0", PID: 17, Process: "server"}
	rtr := uverbs.VerbCall{Verb: "modify_qp", State: "rtr", Device: "rxe0"}
	for name, c := range map[string]struct {
		dev  string
		rule fault.VerbRule
		call uverbs.VerbCall
		hits []int // numbers of the calls, from 1 to 10, that the rule affects
	}{
		"all":               {"", fault.VerbRule{Verb: "create_cq"}, call, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		"second name":       {"", fault.VerbRule{Verb: "create_cq_ex", Times: 1}, call, []int{1}},
		"other verb":        {"", fault.VerbRule{Verb: "create_qp"}, call, nil},
		"nth":               {"", fault.VerbRule{Verb: "create_cq", Nth: 4, Times: 1}, call, []int{4}},
		"from nth":          {"", fault.VerbRule{Verb: "create_cq", Nth: 9}, call, []int{9, 10}},
		"times":             {"", fault.VerbRule{Verb: "create_cq", Nth: 2, Times: 3}, call, []int{2, 3, 4}},
		"huge":              {"", fault.VerbRule{Verb: "create_cq", Nth: 1<<64 - 1, Times: 1<<64 - 1}, call, nil},
		"times without end": {"", fault.VerbRule{Verb: "create_cq", Nth: 10, Times: 1<<64 - 1}, call, []int{10}},
		"device":            {"rxe0", fault.VerbRule{Verb: "create_cq", Times: 1}, call, []int{1}},
		"other device":      {"rxe1", fault.VerbRule{Verb: "create_cq"}, call, nil},
		"process":           {"", fault.VerbRule{Verb: "create_cq", Process: "server", Times: 1}, call, []int{1}},
		"pid":               {"", fault.VerbRule{Verb: "create_cq", Process: "17", Times: 1}, call, []int{1}},
		"other process":     {"", fault.VerbRule{Verb: "create_cq", Process: "client"}, call, nil},
		"other pid":         {"", fault.VerbRule{Verb: "create_cq", Process: "18"}, call, nil},
		"state":             {"", fault.VerbRule{Verb: "modify_qp:rtr", Times: 1}, rtr, []int{1}},
		"any state":         {"", fault.VerbRule{Verb: "modify_qp", Times: 1}, rtr, []int{1}},
		"other state":       {"", fault.VerbRule{Verb: "modify_qp:rts"}, rtr, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.rule.Errno = "ENOMEM"
			v := verbFaults{rules: []*verbRule{mustVerbRule(t, c.dev, c.rule)}}
			var hits []int
			for i := range 10 {
				if err := v.applyFaults(&c.call, t.Context()); errors.Is(err, syscall.ENOMEM) {
					hits = append(hits, i+1)
				} else if err != nil {
					t.Error(err)
				}
			}
			if fmt.Sprint(hits) != fmt.Sprint(c.hits) {
				t.Errorf("affected calls: got %v, want %v", hits, c.hits)
			}
			if l := v.listRules(); int(l[0].Hit) != len(c.hits) {
				t.Errorf("hits: got %d, want %d", l[0].Hit, len(c.hits))
			}
		})
	}
}

// TestVerbDelayEnds tests that a call is delayed for the time of the rule, or until the rule or the service ends, and
// that other calls are not delayed.
func TestVerbDelayEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := uverbs.VerbCall{Verb: "reg_mr"}
		ctx, cancel := context.WithCancel(t.Context())
		r := mustVerbRule(t, "", fault.VerbRule{Verb: "reg_mr", Delay: time.Minute})
		v := verbFaults{rules: []*verbRule{r, mustVerbRule(t, "", fault.VerbRule{Verb: "reg_mr", Errno: "EIO", Nth: 2})}}
		start := time.Now()
		took := func(want time.Duration, errno error) {
			t.Helper()
			if err := v.applyFaults(&slow, ctx); !errors.Is(err, errno) {
				t.Errorf("delayed call: got %v, want %v", err, errno)
			}
			if got := time.Since(start); got != want {
				t.Errorf("duration of the delayed call: got %v, want %v", got, want)
			}
			start = time.Now()
		}
		took(time.Minute, nil)
		took(time.Minute, syscall.EIO)
		time.AfterFunc(time.Second, func() { close(r.ended) })
		took(time.Second, syscall.EIO)
		v.rules[0] = mustVerbRule(t, "", fault.VerbRule{Verb: "reg_mr", Delay: time.Minute})
		go func() {
			if err := v.applyFaults(&uverbs.VerbCall{Verb: "alloc_pd"}, ctx); err != nil || time.Since(start) > 0 {
				t.Error("call of another verb: got a delay, want none")
			}
			time.AfterFunc(time.Second, cancel)
		}()
		took(time.Second, syscall.EIO)
	})
}

// TestInvalidVerbFaultIsRefused tests that invalid rules are refused, and that the error lists the valid values.
func TestInvalidVerbFaultIsRefused(t *testing.T) {
	s, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.0.30.1"}})
	for _, x := range []struct {
		dev  string
		rule fault.Rule
		f    fault.VerbRule
		want syscall.Errno
		says string
	}{
		{"", fault.Rule{}, fault.VerbRule{Verb: "make_cq", Errno: "ENOMEM"}, syscall.EINVAL, "create_cq, create_qp"},
		{"", fault.Rule{}, fault.VerbRule{Verb: "post_send", Errno: "ENOMEM"}, syscall.EINVAL, "there are"},
		{"", fault.Rule{}, fault.VerbRule{Verb: "create_cq"}, syscall.EINVAL, "no effect"},
		{"", fault.Rule{}, fault.VerbRule{Verb: "create_cq", Errno: "ENOSENSE"}, syscall.EINVAL, "ENOSENSE"},
		{"", fault.Rule{}, fault.VerbRule{Verb: "create_cq:rtr", Errno: "EIO"}, syscall.EINVAL, "modify_qp alone"},
		{"", fault.Rule{}, fault.VerbRule{Verb: "modify_qp:ready", Errno: "EIO"}, syscall.EINVAL, "init, rtr, rts"},
		{"", fault.Rule{}, fault.VerbRule{Verb: "create_cq", Delay: -1}, syscall.EINVAL, "from 0 to 1m"},
		{"", fault.Rule{}, fault.VerbRule{Verb: "create_cq", Delay: 1 << 62}, syscall.EINVAL, "from 0 to 1m"},
		{"", fault.Rule{}, fault.VerbRule{Verb: "create_cq", Errno: "EIO", Process: strings.Repeat("x", 65)}, syscall.EINVAL,
			"65 bytes"},
		{"rxe0", fault.Rule{}, fault.VerbRule{Verb: "rdma_connect", Errno: "EIO"}, syscall.EINVAL,
			"does not belong to a device"},
		{"rxe9", fault.Rule{}, fault.VerbRule{Verb: "create_cq", Errno: "EIO"}, syscall.ENODEV, "there are: rxe0"},
		{"rxe0", fault.Rule{Drop: 1}, fault.VerbRule{Verb: "create_cq", Errno: "EIO"}, syscall.EINVAL, "for packets"},
	} {
		_, err := c.Do(&ctl.Request{Op: ctl.OpFaultAdd, Fault: &ctl.FaultRule{Dev: x.dev, Rule: x.rule, Verb: &x.f}})
		if !errors.Is(err, x.want) || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%+v: got %v, want %v and %q", x.f, err, x.want, x.says)
		}
	}
	if list, err := s.listFaults(""); err != nil || len(list) != 0 {
		t.Errorf("rules: got %+v and error %v, want none", list, err)
	}
}

// TestVerbAndPacketRulesAreListedTogether tests that rules for verbs and packets are listed and cleared together, and
// that their number is limited.
func TestVerbAndPacketRulesAreListedTogether(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.0.30.1"}})
	add := func(r ctl.FaultRule) int {
		t.Helper()
		id, err := s.addFault(r)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	verb := &fault.VerbRule{Verb: "create_cq", Errno: "ENOMEM"}
	any := add(ctl.FaultRule{Verb: verb})
	of0 := add(ctl.FaultRule{Dev: "rxe0", Verb: verb})
	packets := add(ctl.FaultRule{Dev: "rxe0", Rule: fault.Rule{Drop: 1}})
	if list, err := s.listFaults("rxe0"); err != nil || len(list) != 3 || any == of0 || of0 == packets {
		t.Errorf("rules: got %v and error %v, want 3 with different IDs", list, err)
	}
	for _, id := range []int{of0, packets} {
		if err := s.clearFaults("rxe0", id); err != nil {
			t.Error(err)
		}
	}
	if err := s.clearFaults("rxe0", any); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("clear a rule of all devices by device rxe0: got %v, want ENOENT", err)
	}
	if list, _ := s.listFaults(""); len(list) != 1 || list[0].ID != any {
		t.Errorf("rules: got %v, want only the first", list)
	}
	if err := s.yield(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("yield of a service with rules: got %v, want EBUSY", err)
	}
	for range maxFaultRules - 1 {
		add(ctl.FaultRule{Verb: verb})
	}
	if _, err := s.addFault(ctl.FaultRule{Verb: verb}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("rule for verbs beyond the limit: got %v, want ENOSPC", err)
	}
	for range maxFaultRules {
		add(ctl.FaultRule{Dev: "rxe0", Rule: fault.Rule{Drop: 1}})
	}
	if _, err := s.addFault(ctl.FaultRule{Dev: "rxe0", Rule: fault.Rule{Drop: 1}}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("rule for packets beyond the limit: got %v, want ENOSPC", err)
	}
	if err := s.clearFaults("", 0); err != nil {
		t.Fatal(err)
	}
	if list, _ := s.listFaults(""); len(list) != 0 {
		t.Errorf("rules: got %d, want none", len(list))
	}
}

// TestVerbDelayEndsWithProcess tests that the delay of a call ends with its process.
func TestVerbDelayEndsWithProcess(t *testing.T) {
	if isGoneOrZombie(os.Getpid()) {
		t.Fatal("hasEnded of this process: got true, want false")
	}
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	const delay = 15 * time.Second
	v := verbFaults{rules: []*verbRule{mustVerbRule(t, "", fault.VerbRule{Verb: "reg_mr", Delay: delay, Times: 2})}}
	start := time.Now()
	for range 2 { // before and after the parent waits for the process
		if err := v.applyFaults(&uverbs.VerbCall{Verb: "reg_mr", PID: cmd.Process.Pid}, t.Context()); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
			t.Error(err)
		}
	}
	if d := time.Since(start); d > delay*2/3 {
		t.Errorf("delay of the call: got %v", d)
	}
}
