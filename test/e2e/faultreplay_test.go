//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"verbena/ib/weak"
)

// TestScenarioReplaysFaults runs a scenario with 1 % loss by a fault rule, until a program with a mistake fails. The
// replay of the recorded decisions with another seed fails at the same message, and one without the decisions does not
// fail. The program without the mistake succeeds with the decisions.
func TestScenarioReplaysFaults(t *testing.T) {
	t.Parallel()
	program := buildWithLibibverbs(t, "unreliable")
	scenario := func(form string) string {
		return "programs: [{name: p, run: [" + program + ", " + form + "], expect: {output: [ok]}}]\n" +
			"actions: [{fault: {dev: rxe0, drop: 1%}}]\n"
	}
	log := filepath.Join(newScratchDir(t), "decisions")
	lost := func(out string) string { return regexp.MustCompile(`wrong: message \d+`).FindString(out) }
	code, out := runScenario(t, "127.0.94.3", scenario("wrong"), "--weak-log", log)
	if code != 1 || lost(out) == "" {
		t.Fatalf("scenario with loss: got exit code %d, want 1 and a lost message:\n%s", code, out)
	}
	for range 3 {
		if code, again := runScenario(t, "127.0.94.3", scenario("wrong"), "--seed=4711", "--replay", log); code != 1 ||
			lost(again) != lost(out) {
			t.Errorf("replay: got exit code %d and %q, want %q:\n%s", code, lost(again), lost(out), again)
		}
	}
	if code, out := runScenario(t, "127.0.94.3", scenario("right"), "--replay", log); code != 0 {
		t.Errorf("replay without the mistake: got exit code %d:\n%s", code, out)
	}
	text, err := os.ReadFile(log)
	if err != nil || !strings.Contains(string(text), weak.Choices[weak.PacketFault].Name+" rxe0:rule1 qp ") {
		t.Fatalf("log: got %s (%v), want decisions of rule 1", text, err)
	}
	first, _, _ := strings.Cut(string(text), weak.Choices[weak.PacketFault].Name)
	if err := os.WriteFile(log, []byte(first), 0o666); err != nil {
		t.Fatal(err)
	}
	if code, out := runScenario(t, "127.0.94.3", scenario("wrong"), "--replay", log); code != 0 {
		t.Errorf("replay without decisions: got exit code %d:\n%s", code, out)
	}
}
