package check

import (
	"testing"

	"verbena/ib"
)

// endlessUser is a user context that is not ending.
type endlessUser struct{}

func (endlessUser) CheckConfig() *ProgramConfig { return nil }
func (endlessUser) IsEnding() bool              { return false }

// TestSitesOfOneRuleHideNoOther tests that a rule with many sites, all of which may be suppressed, leaves room for the
// others.
func TestSitesOfOneRuleHideNoOther(t *testing.T) {
	rules, err := ParseProgramRules([]string{AllRules})
	if err != nil {
		t.Fatal(err)
	}
	found := map[Rule]int{}
	p := NewProgram(ProgramConfig{Rules: rules, Report: func(v Violation) { found[v.Rule]++ }}, endlessUser{})
	for region := range uint64(2 * maxProgramSites) {
		p.k.report(Violation{Rule: RuleSourceChanged, Requests: []Request{{Opcode: "SEND"}},
			Memory: &ChangedMemory{region: region}}, nil, nil)
	}
	p.k.report(Violation{Rule: RuleKeyRange, Requests: []Request{{Opcode: "SEND"}}}, nil, nil)
	if found[RuleSourceChanged] != maxProgramSites || found[RuleKeyRange] != 1 {
		t.Errorf("reports: got %v, want %d of source-changed and 1 of key-range", found, maxProgramSites)
	}
	p.Close()
}

// sideInInit is the driver's side of a queue pair in INIT.
type sideInInit struct{ ib.DriverQP }

func (sideInInit) State() ib.QPState { return ib.QPInit }

// TestQPInCreationIsLookedAt tests the examination of the mappings of a program while it creates a queue pair. The
// midlayer does not know the driver's side yet.
func TestQPInCreationIsLookedAt(t *testing.T) {
	rules, err := ParseProgramRules([]string{AllRules})
	if err != nil {
		t.Fatal(err)
	}
	p := NewProgram(ProgramConfig{Rules: rules, Report: func(Violation) {}}, endlessUser{})
	defer p.Close()
	q := p.AddQP(&ib.QP{}, sideInInit{}, &ib.DriverQPInit{}, ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1}, nil, nil, nil)
	if p.checkMappings(p.k.trackers()) {
		t.Error("examination without requests: got outstanding ones")
	}
	if r := q.o.work.findOutstandingRequest(func(*trackedRequest) bool { return true }); r != nil {
		t.Errorf("outstanding request: got %v, want none", r)
	}
}
