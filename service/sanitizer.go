package service

import (
	"encoding/json"

	"verbena/ib/check"
	"verbena/internal/ctl"
)

// sendViolation sends a violation to the launcher. It does not sleep.
func (t *callTrace) sendViolation(pid int, name string, v *check.Violation) {
	r := ctl.SanitizerReport{
		Rule: v.Rule.String(), What: v.What, Program: name, PID: pid, Device: v.Device, Time: v.Time, Count: v.Count,
	}
	for _, x := range v.Requests {
		r.Requests = append(r.Requests, ctl.ReportedRequest(x))
	}
	if m := v.Memory; m != nil {
		r.Memory = &ctl.ReportedMemory{Element: m.Element, Addr: m.Addr, Length: m.Length, Offset: m.Offset,
			Changed: m.Changed, Before: m.Before, After: m.After}
	}
	line, err := json.Marshal(&r)
	if err != nil {
		return
	}
	t.sendReport(ctl.ReportPrefix + string(line))
}
