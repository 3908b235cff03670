package engine

import (
	"testing"

	ibcheck "verbena/ib/check"
	"verbena/ib/weak"
)

// relayed and relayChecks are nil, or the settings for the programs of tests: those of the weak devices and of the
// checks.
var (
	relayed     *weak.Config
	relayChecks *ibcheck.ProgramConfig
)

// TestUserOverRelay runs tests of user contexts on the queues of package driver/relay. The tests compare all fields of
// completions and their order, so the device makes only choices without an effect on them.
func TestUserOverRelay(t *testing.T) {
	const harmless = weak.Set(1)<<weak.NewKeys | 1<<weak.SlowMethods | 1<<weak.LateSource
	for _, c := range []struct {
		name    string
		test    func(*testing.T)
		choices weak.Set
	}{
		{"UserError", TestUserError, harmless},
		{"UserAbuse", TestUserAbuse, weak.All},
		{"UserLosesLength", TestUserLosesLength, harmless},
		{"UserOverconsumes", TestUserOverconsumes, harmless},
		{"UserScribbles", TestUserScribbles, weak.All},
		{"UserTruncates", TestUserTruncates, weak.All},
		{"UserMemoryErrors", TestUserMemoryErrors, weak.All},
		{"WindowUsers", TestWindowUsers, weak.All},
		{"Silence", TestSilence, harmless},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer func() { relayed, relayChecks = nil, nil }()
			for seed := range uint64(3) {
				relayed = &weak.Config{Seed: seed, Choices: c.choices}
				c.test(t)
			}
			if c.name == "UserLosesLength" {
				return // depends on the slots of the queue, and the checks make capacities exact
			}
			// Most of these programs misuse verbs. The checks must not change the results.
			rules, err := ibcheck.ParseProgramRules([]string{ibcheck.AllRules})
			if err != nil {
				t.Fatal(err)
			}
			relayChecks = &ibcheck.ProgramConfig{Rules: rules, Report: func(v ibcheck.Violation) { t.Log(v.Rule, v.What) }}
			c.test(t)
		})
	}
}
