package main

import (
	"errors"

	"verbena/internal/ctl"
	"verbena/internal/fault"
	"verbena/service"
)

// verbRuleFlags is a fault.VerbRule without its Validate method, which kong would also call for rules about packets.
type verbRuleFlags fault.VerbRule

func (f *faultAddCmd) buildVerbRule() (*ctl.FaultRule, error) {
	packets := f.Rule
	packets.Delay = 0
	if packets != (packetRuleFlags{}) {
		return nil, errors.New("--verb can be combined only with --errno, --delay, --nth, --times, --process and --dev")
	}
	v := fault.VerbRule(f.Verb).WithDefaults()
	v.Delay = f.Rule.Delay
	return &ctl.FaultRule{Dev: f.Dev, Verb: &v}, service.CheckVerbFault(f.Dev, &v)
}

// formatVerbRule formats a rule as text. The name of the process comes from another client.
func formatVerbRule(v fault.VerbRule) string {
	v.Process = replaceControlChars(v.Process)
	return v.String()
}
