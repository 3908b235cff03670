package main

import (
	"strings"
	"testing"
	"time"

	"verbena/internal/ctl"
)

// TestParseDevResetFlags tests the parsing of the flags of dev reset.
func TestParseDevResetFlags(t *testing.T) {
	for line, want := range map[string]devResetCmd{
		"rxe0":                         {},
		"rxe0 --unreachable":           {Unreachable: unreachableFlag{set: true}},
		"--unreachable rxe0":           {Unreachable: unreachableFlag{set: true}},
		"rxe0 --unreachable=2s":        {Unreachable: unreachableFlag{true, 2 * time.Second}},
		"rxe0 --unreachable 300ms":     {Unreachable: unreachableFlag{true, 300 * time.Millisecond}},
		"--unreachable .5s rxe0":       {Unreachable: unreachableFlag{true, 500 * time.Millisecond}},
		"rxe0 --unreachable --at-wr=3": {Unreachable: unreachableFlag{set: true}, AtWR: 3},
		"rxe0 --at completion":         {At: resetMomentFlag(ctl.DevCompletion)},
		"rxe0 --at=registration":       {At: resetMomentFlag(ctl.DevRegistration)},
		"rxe0 --cancel":                {Cancel: true},
	} {
		var c cli
		if _, err := newParser(&c).Parse(append([]string{"dev", "reset"}, strings.Fields(line)...)); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if want.Name = "rxe0"; c.Dev.Reset != want {
			t.Errorf("%s: %+v, want %+v", line, c.Dev.Reset, want)
		}
	}
}

// TestPrintableRemovesControls tests that a printed name contains no control sequences for a terminal.
func TestPrintableRemovesControls(t *testing.T) {
	if got := replaceControlChars("a\x1b[2J\r\nb\x7f\u202e\tü "); got != "a?[2J??b???ü " {
		t.Errorf("printable: got %q", got)
	}
}

// TestUsageErrorsNameFault tests that the error for an invalid command line names the fault, and the command that
// prints the help.
func TestUsageErrorsNameFault(t *testing.T) {
	for line, want := range map[string]string{
		"dev reset":                                `dev reset: the NAME of a device is missing; see verbena dev reset --help`,
		"dev reset rxe0 --at-wr 0":                 `dev reset: --at-wr: "0" is not a number from 1 upwards; see verbena dev reset --help`,
		"dev reset rxe0 --at-wr":                   `dev reset: --at-wr: its value is missing; see verbena dev reset --help`,
		"dev reset rxe0 --at noon":                 `dev reset: --at: moment "noon" is not registration or completion; see verbena dev reset --help`,
		"dev reset rxe0 --at completion --at-wr 3": `dev reset: --at-wr and --at can't be used together; see verbena dev reset --help`,
		"dev reset rxe0 --unreachable=5":           `dev reset: --unreachable: "5" is not a duration: write 5s or 300ms; see verbena dev reset --help`,
		"dev reset rxe0 --unreachable 0s":          `dev reset: --unreachable: "0s" is not a duration: write 5s or 300ms; see verbena dev reset --help`,
		"dev rest rxe0":                            `dev: unexpected argument rest; see verbena dev --help`,
		"fault add --drop 200%":                    `fault add: --drop: "200%" is not a share between 0 and 100%; see verbena fault add --help`,
		"nonsense":                                 `unexpected argument nonsense; see verbena --help`,
	} {
		var c cli
		_, err := newParser(&c).Parse(strings.Fields(line))
		if err == nil {
			t.Errorf("%s: accepted", line)
		} else if got := usageError(err); got != want {
			t.Errorf("%s:\n%s, want\n%s", line, got, want)
		}
	}
}

// TestGroupNameRunsShow tests that a group's name alone runs the group's show command, with the flags of that command.
func TestGroupNameRunsShow(t *testing.T) {
	for _, group := range []string{"dev", "link", "res", "stat", "fault"} {
		var c cli
		k, err := newParser(&c).Parse([]string{group, "--json"})
		if err != nil || k.Command() != group+" show" {
			t.Errorf("%s --json: %v", group, err)
		}
	}
}
