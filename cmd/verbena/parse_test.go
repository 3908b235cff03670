package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// TestParseAgreesWithFullParser tests that a command line means the same to parse, which builds one command where it
// can, and to the parser of all commands. Each command occurs with unsuitable arguments, and with a flag alone.
func TestParseAgreesWithFullParser(t *testing.T) {
	lines := append([]string{
		"run -- true", "run true -x", "run --socket /s --private --link rxe0=127.0.0.1 -- prog --help", "--socket run run -- true",
		"--socket=/s run --trace -- true", "--socket run stat", "run --capture", "run --no-such-flag -- true", "nothing",
		"--socket /s", "serve --link rxe0=lo --doorbells native", "serve --limit qps=1/2", "--service-user 0 dev reset rxe0",
		"qp", "qp trace 17", "show-version", "version", "fault", "fault show --json", "capture", "capture x.pcapng",
	}, faultCommandLines...)
	var collect func(n *kong.Node)
	collect = func(n *kong.Node) {
		if path := strings.TrimPrefix(n.FullPath(), "verbena "); n.Type == kong.CommandNode {
			lines = append(lines, path+" a b c", "--socket /s "+path+" --json")
		}
		for _, c := range n.Children {
			collect(c)
		}
	}
	collect(newParser(&cli{}).Model.Node)
	if len(lines) < 100 {
		t.Fatalf("%d command lines", len(lines))
	}
	for _, line := range lines {
		var c, full cli
		got, err := parse(&c, strings.Fields(line))
		want, wantErr := newParser(&full).Parse(strings.Fields(line))
		if err != nil || wantErr != nil {
			if err == nil || wantErr == nil || usageError(err) != usageError(wantErr) {
				t.Errorf("%s: got error %v, want %v", line, err, wantErr)
			}
			continue
		}
		if got.Command() != want.Command() {
			t.Errorf("%s: got command %q, want %q", line, got.Command(), want.Command())
		}
		if !reflect.DeepEqual(got.Selected().Target.Interface(), want.Selected().Target.Interface()) {
			t.Errorf("%s: got %+v, want %+v", line, got.Selected().Target, want.Selected().Target)
		}
		if c.Socket != full.Socket || c.Service != full.Service {
			t.Errorf("%s: got --socket %q and --service-user %q, want %q and %q", line, c.Socket, c.Service, full.Socket,
				full.Service)
		}
	}
}

// TestParseBuildsOneCommand tests that the parser of a valid command line has no other command, because each one takes
// time at every start.
func TestParseBuildsOneCommand(t *testing.T) {
	for _, line := range []string{"run -- true", "--socket /s wait --active rxe0", "stat show"} {
		k, err := parse(&cli{}, strings.Fields(line))
		if err != nil {
			t.Fatal(err)
		}
		if n := len(k.Model.Children); n != 1 {
			t.Errorf("%s: got a parser of %d commands, want 1", line, n)
		}
	}
}
