package engine

import (
	"testing"

	"verbena/ib/weak"
)

// relayed is nil, or the settings of the weak devices that the programs of tests ask for.
var relayed *weak.Config

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
			defer func() { relayed = nil }()
			for seed := range uint64(3) {
				relayed = &weak.Config{Seed: seed, Choices: c.choices}
				c.test(t)
			}
		})
	}
}
