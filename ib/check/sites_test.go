package check

import "testing"

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
