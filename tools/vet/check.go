package vet

import (
	"fmt"
	"go/token"
	"maps"
	"slices"
	"strings"
)

// The following constants are the checks, with their names in reports and escapes.
const (
	NoSleep  = "nosleep"
	Copy     = "copy"
	Serial   = "serial"
	Callback = "callback"
	Hotplug  = "hotplug"
	Held     = "held"
	Session  = "session"
	Event    = "event"
	Release  = "release"
	Keep     = "keep"
	Status   = "status"
	Arm      = "arm"
	Order    = "order"
	Panic    = "panic"
	Life     = "life"

	program = "program" // not a check: a directive that exempts a lock
)

// Report is a violation of a rule.
type Report struct {
	Check string
	Pos   token.Pos
	Text  string
	Path  []PathStep // call path from the outermost function to the violation
}

// PathStep is a position on a call path.
type PathStep struct {
	Pos  token.Pos
	In   string
	What string
}

// Check applies all checks and returns the violations.
func (p *Program) Check() []Report {
	callers := p.callers(NoSleep)
	sleep := p.newEffect(NoSleep)
	for _, f := range p.order {
		for i := range f.ops {
			if o := &f.ops[i]; o.kind == opSleep && p.escapes.escapeAt(p.Fset, o.pos, NoSleep) == nil {
				sleep.addCause(f, &effectCause{at: o.at, pos: o.pos, what: o.what})
			}
		}
	}
	p.propagateEffect(sleep, callers)
	p.findSleepyLocks(sleep, callers)
	p.sleep = sleep

	reports := slices.Clone(p.problems)
	reports = append(reports, p.checkNoSleep(sleep)...)
	reports = append(reports, p.checkCopies(p.callers(Copy))...)
	reports = append(reports, p.checkSerial()...)
	reports = append(reports, p.checkHolds()...)
	reports = append(reports, p.checkCallbacks()...)
	reports = append(reports, p.checkOwnDrains()...)
	reports = append(reports, p.checkHotplug(p.callers(Hotplug))...)
	reports = append(reports, p.checkSessions()...)
	reports = append(reports, p.checkEvents()...)
	reports = append(reports, p.checkReleases()...)
	reports = append(reports, p.checkKept()...)
	reports = append(reports, p.checkStatus()...)
	reports = append(reports, p.checkArms()...)
	reports = append(reports, p.checkOrder()...)
	reports = append(reports, p.checkPanics()...)
	reports = append(reports, p.checkHeld()...)
	reports = append(reports, p.checkGuards()...)
	reports = append(reports, p.checkEscapes()...)
	slices.SortStableFunc(reports, func(a, b Report) int {
		x, y := p.Fset.Position(a.Pos), p.Fset.Position(b.Pos)
		if x.Filename != y.Filename {
			return strings.Compare(x.Filename, y.Filename)
		}
		return x.Line - y.Line
	})
	said := map[sourceLine]string{}
	return slices.DeleteFunc(reports, func(r Report) bool { // one report of each kind is sufficient for a line
		at := p.Fset.Position(r.Pos)
		l := sourceLine{at.Filename, at.Line}
		again := strings.Contains(said[l], r.Check+" ")
		said[l] += r.Check + " "
		return again
	})
}

// escapableChecks lists the checks that an escape may name.
var escapableChecks = []string{NoSleep, Serial, Callback, Hotplug, Held, Session, Event, Release, Keep, Status, Arm,
	Order, Panic, Life, program, Open, Restat, Receive, Close, Recover}

// checkEscapes finds escapes without a reason.
func (ds *directives) checkEscapes() (reports []Report) {
	for _, x := range ds.all {
		switch {
		case x.Check == Copy:
			reports = append(reports, Report{"directive", x.Pos, "a copy with a lock held cannot be excused", nil})
		case !slices.Contains(escapableChecks, x.Check):
			reports = append(reports, Report{"directive", x.Pos, fmt.Sprintf("unknown check %q", x.Check), nil})
		case len(strings.Fields(x.Reason)) < 3:
			reports = append(reports, Report{"directive", x.Pos, "an escape needs a reason of at least three words", nil})
		}
	}
	return reports
}

// UnusedEscapes returns a report for each escape of the module that none of the checked programs uses.
func UnusedEscapes(programs []*Program) (reports []Report) {
	used := map[token.Pos]bool{}
	for _, p := range programs {
		for _, x := range p.all {
			used[x.Pos] = used[x.Pos] || x.Used || !slices.Contains(escapableChecks, x.Check) ||
				!p.main[p.Fset.Position(x.Pos).Filename]
		}
	}
	for _, pos := range slices.Sorted(maps.Keys(used)) {
		if !used[pos] {
			reports = append(reports, Report{"directive", pos, "unused escape: the check reports nothing here", nil})
		}
	}
	return reports
}
