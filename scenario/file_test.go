package scenario

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// baseText is a minimal scenario that tests extend.
const baseText = `
name: small
devices: [{name: rxe0, addr: [127.0.0.1]}]
programs:
  - {name: server, run: [server, "${ARG}"]}
  - {name: client, run: [client], start: {listens: 18515, wait: 10ms}}
set: {ARG: first}
`

// parseFile parses a scenario of the current folder.
func parseFile(b []byte, set map[string]string) (*File, error) { return parseFileInDir(".", b, set) }

func mustParse(t testing.TB, text string, set map[string]string) *File {
	t.Helper()
	f, err := parseFile([]byte(text), set)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestParse(t *testing.T) {
	f := mustParse(t, baseText+`
actions:
  - when: {wr: 1000}
    link: {dev: rxe0, state: flap, for: 200ms}
  - name: slow
    when: {output: "^ready", of: server}
    link: {dev: rxe0, shape: {rate: 1.5Gbit, delay: 20us, queue: 256KB, loss: 1%}}
  - when: {done: slow, wait: 1s}
    verb: {verb: create_cq, errno: ENOMEM, nth: 2, process: client}
  - {when: {at: 2s}, signal: {program: client, signal: SIGKILL}}
expect: [{dev: rxe0, counter: sent_pkts, min: 1}, {action: create_cq ENOMEM, counter: hit, is: 1}]
`, map[string]string{"ARG": "second"})
	if f.Seed != 1 || time.Duration(f.Timeout) != DefaultTimeout {
		t.Errorf("defaults: got seed %d and timeout %v, want 1 and DefaultTimeout", f.Seed, time.Duration(f.Timeout))
	}
	if got := f.Programs[0].Run[1]; got != "second" {
		t.Errorf("run: got %q, want the value that was set", got)
	}
	if m := f.Programs[1].Start; m.Listens != 18515 || time.Duration(m.Wait) != 10*time.Millisecond {
		t.Errorf("start: got %v, want port 18515 and a wait of 10 ms", m)
	}
	var names []string
	for _, a := range f.Actions {
		names = append(names, a.Name)
	}
	if got, want := strings.Join(names, "|"), "link rxe0 flap|slow|create_cq ENOMEM|SIGKILL client"; got != want {
		t.Errorf("actions: got %s, want %s", got, want)
	}
	s := f.Actions[1].Link.Shape
	if s.Rate != 1_500_000_000 || s.QueueBytes != 256<<10 || s.Loss != 0.01 || s.Delay != 20*time.Microsecond {
		t.Errorf("shape: got %+v, want the values of the file", s)
	}
}

// TestParseErrors checks that each error names its cause.
func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"not YAML", "name: [", "[1:"},
		{"an unknown field", baseText + "device: []", `unknown field "device"`},
		{"no device", "name: x\nprograms: [{name: a, run: [a]}]", "devices: the list is empty"},
		{"no program", "name: x\ndevices: [{name: rxe0}]", "programs: the list is empty"},
		{"two devices", "name: x\ndevices: [{name: a}, {name: a}]\nprograms: [{name: a, run: [a]}]",
			"two devices have the name a"},
		{"two programs", "name: x\ndevices: [{name: a}]\nprograms: [{name: a, run: [a]}, {name: a, run: [a]}]",
			"two programs have the name a"},
		{"no command", "name: x\ndevices: [{name: a}]\nprograms: [{name: a}]", `missing key "run"`},
		{"an unset value", "name: x\ndevices: [{name: a}]\nprograms: [{name: a, run: ['${B}']}]", "set has no B"},
		{"no action", baseText + "actions: [{name: a}]", "this has none"},
		{"two actions in one", baseText + "actions: [{unplug: rxe0, plug: rxe0}]", "this has unplug rxe0, plug rxe0"},
		{"equal names", baseText + "actions: [{unplug: rxe0}, {unplug: rxe0}]", `two actions have the name "unplug rxe0"`},
		{"an unknown device", baseText + "actions: [{unplug: rxe1}]", `unknown device "rxe1"`},
		{"no value of a counter", baseText + "actions: [{unplug: rxe0, when: {counter: sent_pkts, dev: rxe0}}]",
			`counter: missing key "reaches"`},
		{"two moments", baseText + "actions: [{unplug: rxe0, when: {at: 1s, exit: client}}]", "this has at, exit"},
		{"no moment", baseText + "actions: [{unplug: rxe0, when: {wait: 1s}}]", "this has none"},
		{"an unknown program", baseText + "actions: [{unplug: rxe0, when: {exit: a}}]", `unknown program "a"`},
		{"an unknown action", baseText + "actions: [{unplug: rxe0, when: {done: a}}]", `unknown action "a"`},
		{"output of no program", baseText + "actions: [{unplug: rxe0, when: {output: x}}]", `unknown program ""`},
		{"a wrong expression", baseText + "actions: [{unplug: rxe0, when: {output: '(', of: client}}]", "missing closing"},
		{"an action that follows itself", baseText + "actions: [{name: a, unplug: rxe0, when: {done: a}}]",
			"waits for itself"},
		{"a circle", baseText + "actions: [{name: a, unplug: rxe0, when: {done: b}}, {name: b, plug: rxe0, when: {done: a}}]",
			"waits for itself"},
		{"a counted unplug", baseText + "actions: [{unplug: rxe0, when: {wr: 5}}]", "counted moment"},
		{"up at a work request", baseText + "actions: [{link: {dev: rxe0, state: up}, when: {wr: 5}}]", "counted moment"},
		{"two work requests of a device", baseText +
			"actions: [{link: {dev: rxe0, state: flap}, when: {wr: 5}}, {link: {dev: rxe0, state: down}, when: {packet: 9}}]",
			"also has a counted moment of rxe0"},
		{"a reset at a packet", baseText + "actions: [{reset: {dev: rxe0}, when: {packet: 5}}]", "counted moment"},
		{"a rule at a work request", baseText + "actions: [{fault: {dev: rxe0, drop: 1%}, when: {wr: 5}}]", "skip and limit"},
		{"a verb at a work request", baseText + "actions: [{verb: {verb: reg_mr, errno: EIO}, when: {wr: 5}}]",
			"nth and times"},
		{"a later work request", baseText + "actions: [{reset: {dev: rxe0}, when: {wr: 5, wait: 1s}}]",
			"a delay cannot follow"},
		{"a program at a work request", strings.Replace(baseText, "listens: 18515, wait: 10ms", "wr: 5", 1),
			"cannot start at a counted moment"},
		{"no errno", baseText + "actions: [{verb: {verb: reg_mr}}]", "give an errno"},
		{"no verb", baseText + "actions: [{verb: {errno: EIO}}]", "no verb"},
		{"a wrong errno", baseText + "actions: [{verb: {verb: reg_mr, errno: ENOPE}}]", "errno \"ENOPE\" is unknown"},
		{"a wrong signal", baseText + "actions: [{when: {at: 1s}, signal: {program: client, signal: KILL}}]", "not a signal"},
		{"a wrong state", baseText + "actions: [{link: {dev: rxe0, state: off}}]", "none of up, down and flap"},
		{"down for a time", baseText + "actions: [{link: {dev: rxe0, state: down, for: 1s}}]", "is the duration of a flap"},
		{"no change", baseText + "actions: [{link: {dev: rxe0}}]", "changes nothing"},
		{"a clear of another action", baseText + "actions: [{unplug: rxe0}, {clear: unplug rxe0}]", "no fault or verb"},
		{"a wrong duration", baseText + "timeout: 5", "not a duration"},
		{"a wrong share", baseText + "actions: [{fault: {dev: rxe0, drop: 101%}}]", "not a share"},
		{"a wrong peer", baseText + "actions: [{fault: {dev: rxe0, drop: 1%, peer: 10.0.0}}]", "ParseAddr"},
		{"a wrong rate", baseText + "actions: [{link: {dev: rxe0, shape: {rate: 5}}}]", ""},
		{"a wrong size", baseText + "actions: [{link: {dev: rxe0, shape: {queue: 5p}}}]", "not a number of bytes"},
		{"no bound", baseText + "expect: [{dev: rxe0, counter: a}]", "give is, min or max"},
		{"a counter of a rule", baseText +
			"actions: [{name: f, fault: {dev: rxe0, drop: 1%}}]\nexpect: [{action: f, counter: x, is: 1}]", "seen or hit"},
		{"killed, and an exit code", strings.Replace(baseText, "run: [client]",
			"run: [client], expect: {exit: 1, killed: SIGKILL}", 1), "has no exit code"},
		{"nothing", "", "no scenario"},
		{"a comment", "# nothing\n", "no scenario"},
		{"two scenarios", baseText + "---" + baseText, "second document"},
		{"too much", "# " + strings.Repeat("x", maxFileSize), "exceed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseFile([]byte(c.text), nil)
			if err == nil && c.want != "" {
				t.Fatalf("Parse: got success, want %q", c.want)
			}
			if err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("Parse: got %q, want %q", err, c.want)
			}
		})
	}
	if _, err := parseFile([]byte(baseText), map[string]string{"NOPE": ""}); err == nil ||
		!strings.Contains(err.Error(), "the values are: ARG") {
		t.Errorf("Parse with an unknown value: got %v, want an error", err)
	}
}

// TestLoadErrors checks that errors name the file, and that the size of a file is limited.
func TestLoadErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.yaml")
	if _, err := Load(path, nil); err == nil {
		t.Error("Load of a missing file: got success, want an error")
	}
	if err := os.WriteFile(path, []byte("name: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path, nil); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("Load: got %v, want the path in the error", err)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Skip(err)
	}
	if _, err := Load(path, nil); err == nil || !strings.Contains(err.Error(), "exceed") {
		t.Errorf("Load of a huge file: got %v, want an error about its size", err)
	}
	if _, err := Load("/dev/zero", nil); err == nil || !strings.Contains(err.Error(), "exceed") {
		t.Errorf("Load of a device without an end: got %v, want an error about its size", err)
	}
}

// TestActionAndProgramShareName checks that an action and a program may have the same name, and may follow each other.
func TestActionAndProgramShareName(t *testing.T) {
	mustParse(t, baseText+"actions: [{name: client, unplug: rxe0, when: {exit: client}}]", nil)
	mustParse(t, strings.Replace(baseText, "listens: 18515", "done: client",
		1)+"actions: [{name: client, unplug: rxe0, when: {at: 1s}}]", nil)
}

// TestDocumentMarkersAreAccepted checks that a document may have start and end markers.
func TestDocumentMarkersAreAccepted(t *testing.T) {
	for _, text := range []string{"---" + baseText, baseText + "---\n", baseText + "...\n"} {
		mustParse(t, text, nil)
	}
}

// TestDirVariableIsFolderOfFile checks that ${DIR} is the folder of the file, also in replaceable values.
func TestDirVariableIsFolderOfFile(t *testing.T) {
	text := strings.Replace(baseText, "ARG: first", "ARG: '${DIR}/first'", 1) + "timeout: 1s\n"
	text = strings.Replace(text, "run: [client]", "run: ['${DIR}/client', '${ARG}'], env: {A: '${DIR}'}", 1)
	path := filepath.Join(t.TempDir(), "x.yaml")
	dir := filepath.Dir(path)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(f.Programs[1].Run, " "), dir+"/client "+dir+"/first"; got != want ||
		f.Programs[1].Env["A"] != dir {
		t.Errorf("run: got %s, want %s; env: %v", got, want, f.Programs[1].Env)
	}
	if f, err = Load(path, map[string]string{"ARG": "second"}); err != nil || f.Programs[0].Run[1] != "second" {
		t.Errorf("run with a replaced value: got %v and error %v, want second", f.Programs[0].Run, err)
	}
	if f = mustParse(t, text, nil); f.Programs[1].Run[0] != "./client" {
		t.Errorf("run without a file: got %v, want ./client", f.Programs[1].Run)
	}
}

// FuzzParse checks that parseFile returns a scenario or an error in a short time for each input.
func FuzzParse(f *testing.F) {
	f.Add(baseText)
	f.Add(baseText + "actions: [{when: {wr: 5}, reset: {dev: rxe0, unreachable: 1s}}]")
	f.Add("a: &a [*a]")
	f.Add("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]")
	f.Add("? [")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		if s, err := parseFile([]byte(text), nil); (s == nil) == (err == nil) {
			t.Error("Parse: got neither a scenario nor an error, or both, want one")
		}
	})
}
