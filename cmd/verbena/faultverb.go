package main

import (
	"errors"
	"fmt"
	"strings"

	"verbena/internal/ctl"
	"verbena/service"
)

// verbFaultFlags holds the flags of fault add that apply to verbs.
type verbFaultFlags struct {
	Verb    string         `help:"Affect calls of a verb, such as create_cq, rdma_connect or modify_qp:rtr, instead of packets." placeholder:"VERB" complete:"verb"`
	Errno   string         `help:"Error with which the verb fails, such as ENOMEM." placeholder:"NAME" complete:"errno"`
	Nth     oneBasedNumber `help:"Affect only the N-th call, or with --times that many calls from the N-th on." placeholder:"N" complete:"none"`
	Times   oneBasedNumber `help:"Affect at most N calls." placeholder:"N" complete:"none"`
	Process string         `help:"Affect only calls of this process, given by its number or the name of its program." placeholder:"NAME" complete:"none"`
}

func (f *faultAddCmd) buildVerbRule() (*ctl.FaultRule, error) {
	packets := f.Rule
	packets.Delay = 0
	if packets != (packetRuleFlags{}) {
		return nil, errors.New("--verb can be combined only with --errno, --delay, --nth, --times, --process and --dev")
	}
	v := &ctl.VerbFault{Verb: f.Verb, Errno: f.Errno, Delay: f.Rule.Delay, Process: f.Process, Nth: uint64(f.Nth),
		Times: uint64(f.Times)}
	if v.Nth != 0 && v.Times == 0 {
		v.Times = 1
	}
	return &ctl.FaultRule{Dev: f.Dev, Verb: v}, service.CheckVerbFault(f.Dev, v)
}

// formatVerbRule formats a rule as text.
func formatVerbRule(v *ctl.VerbFault) string {
	w := []string{v.Verb}
	word := func(show bool, format string, arg any) {
		if show {
			w = append(w, fmt.Sprintf(format, arg))
		}
	}
	word(v.Errno != "", "errno %v", v.Errno)
	word(v.Delay > 0, "delay %v", v.Delay)
	word(v.Nth > 1, "from call %d", v.Nth)
	word(v.Times > 0, "for %d", v.Times)
	word(v.Process != "", "process %v", replaceControlChars(v.Process))
	return strings.Join(w, " ")
}
