package scenario

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"verbena/internal/qpinfo"
)

// Result is the result of a run.
type Result struct {
	Name     string                       `json:"name"`
	Seed     uint64                       `json:"seed"`
	Set      map[string]string            `json:"set,omitempty"`
	Began    time.Time                    `json:"began"`
	Took     time.Duration                `json:"took_ns"`
	Passed   bool                         `json:"passed"`
	Error    string                       `json:"error,omitempty"` // the reason for which the run has failed
	TimedOut bool                         `json:"timed_out,omitempty"`
	Checks   []checkResult                `json:"checks"`
	Programs []programResult              `json:"programs"`
	Actions  []actionResult               `json:"actions"`
	Counters map[string]map[string]uint64 `json:"counters"` // final values of each device's counters
	Events   []deviceEvent                `json:"events,omitempty"`
	Left     []string                     `json:"left,omitempty"` // device files still open after all programs have ended
	Samples  []stateSample                `json:"samples"`
	Causes   []qpinfo.Cause               `json:"causes,omitempty"` // the latest failures, with their reasons
}

// checkResult is a checked expectation.
type checkResult struct {
	Subject string `json:"subject"` // name of a program, an action or a device
	What    string `json:"what"`
	Passed  bool   `json:"passed"`
	Why     string `json:"why,omitempty"` // reason of a failure
}

// programResult is the result of a program. programResult's times count from the start of the programs.
type programResult struct {
	Name    string        `json:"name"`
	Started bool          `json:"started"`
	Start   time.Duration `json:"start_ns"`
	End     time.Duration `json:"end_ns"`
	Exit    *Exit         `json:"exit,omitempty"`   // nil if the program has not ended
	Killed  bool          `json:"killed,omitempty"` // killed at the time limit
	Error   string        `json:"error,omitempty"`  // reason for which the program could not be started
	Lines   []outputLine  `json:"lines"`
	More    int           `json:"more,omitempty"` // number of lines that were not kept
	last    string        // the last line that is not blank, kept or not
}

// outputLine is a line of a program's output.
type outputLine struct {
	At   time.Duration `json:"at_ns"`
	Text string        `json:"text"`
}

// actionResult is the result of an action.
type actionResult struct {
	Name   string        `json:"name"`
	What   string        `json:"what"`
	Moment string        `json:"moment"`
	Out    bool          `json:"left_out,omitempty"` // omitted by File.RemoveAction
	Began  bool          `json:"began"`
	Done   bool          `json:"done"`
	At     time.Duration `json:"at_ns"` // start time; at a counted moment, accurate to lookEvery
	End    time.Duration `json:"end_ns"`
	Error  string        `json:"error,omitempty"`
	Rule   *ruleResult   `json:"rule,omitempty"`
}

// ruleResult holds the statistics of an action's rule.
type ruleResult struct {
	Seen uint64 `json:"seen"`
	Hit  uint64 `json:"hit"`
	// HitAt holds the numbers of the first packets or calls that the rule has hit. The numbers count the packets or
	// calls that the rule has seen, from 1.
	HitAt []uint64 `json:"hit_at,omitempty"`
}

// stateSample is the state of all devices at a time.
type stateSample struct {
	At      time.Duration           `json:"at_ns"`
	Devices map[string]deviceSample `json:"devices"`
}

// deviceSample is the state of a device at a time.
type deviceSample struct {
	State   string `json:"state"`
	Link    string `json:"link,omitempty"`
	Packets uint64 `json:"packets"` // sent packets
	Retries uint64 `json:"retries"`
	Drops   uint64 `json:"drops"`
}

// deviceEvent is an asynchronous event of a device, its port or its queues. It may represent several events of one
// type. At is accurate to sampleEvery.
type deviceEvent struct {
	At    time.Duration `json:"at_ns"`
	Dev   string        `json:"dev"`
	Event string        `json:"event"`
	Times uint64        `json:"times"`
}

func (e *deviceEvent) String() string {
	if e.Times == 1 {
		return e.Event
	}
	return fmt.Sprintf("%s, %d times", e.Event, e.Times)
}

// maxEvents limits the events of a result.
const maxEvents = 1000

// ProgressEvent is an event of a run, for progress reports.
type ProgressEvent struct {
	At      time.Duration
	Kind    ProgressKind
	Subject string
	Text    string
}

// ProgressKind is the kind of a ProgressEvent.
type ProgressKind uint8

// Kinds of marks.
const (
	MarkStart  ProgressKind = iota // a program has started
	MarkLine                       // a program has printed a line
	MarkExit                       // a program has ended
	MarkAction                     // an action is done
	MarkEvent                      // a device has reported an event
)

func newResult(f *File, began time.Time) *Result {
	r := &Result{Name: f.Name, Seed: f.Seed, Set: f.Set, Began: began, Programs: make([]programResult, len(f.Programs)),
		Actions: make([]actionResult, len(f.Actions)), Counters: map[string]map[string]uint64{}}
	for i := range f.Programs {
		r.Programs[i].Name = f.Programs[i].Name
	}
	for i := range f.Actions {
		a := &f.Actions[i]
		what, _ := a.describe()
		r.Actions[i] = actionResult{Name: a.Name, What: what, Moment: a.When.String(), Out: a.out}
	}
	return r
}

// NewFailedResult returns the Result of a scenario that could not be started.
func NewFailedResult(f *File, why error) *Result {
	r := newResult(f, time.Now())
	r.Error = why.Error()
	return r
}

// String describes the moment.
func (m *trigger) String() string {
	if m == nil {
		return "before the programs start"
	}
	var s string
	switch {
	case m.At != nil:
		s = "at " + time.Duration(*m.At).String()
	case m.Output != "":
		s = fmt.Sprintf("when %s prints /%s/", m.Of, m.Output)
	case m.Exit != "":
		s = fmt.Sprintf("when %s has ended", m.Exit)
	case m.Started != "":
		s = fmt.Sprintf("when %s has started", m.Started)
	case m.Listens != 0:
		s = fmt.Sprintf("when port %d is listened on", m.Listens)
	case m.Done != "":
		s = fmt.Sprintf("after %q", m.Done)
	case m.Counter != "":
		s = fmt.Sprintf("when %s of %s reaches %d", m.Counter, m.Dev, m.Reaches)
	case m.WR > 0:
		s = fmt.Sprintf("just before send work request %d", m.WR)
	case m.Packet > 0:
		s = fmt.Sprintf("just before packet %d", m.Packet)
	}
	if m.Wait > 0 {
		s += fmt.Sprintf(", %v later", time.Duration(m.Wait))
	}
	return s
}

// checkExpectations checks the expectations.
func (r *Result) checkExpectations(f *File, took time.Duration, err error) {
	r.Took = took
	if err != nil {
		r.Error = err.Error()
	}
	add := func(subject, what string, ok bool, why string, args ...any) {
		c := checkResult{Subject: subject, What: what, Passed: ok}
		if !ok {
			c.Why = fmt.Sprintf(why, args...)
		}
		r.Checks = append(r.Checks, c)
	}
	for i := range f.Programs {
		r.checkProgram(&f.Programs[i], &r.Programs[i], add)
	}
	for i := range f.Actions {
		a := &r.Actions[i]
		switch {
		case a.Out:
		case a.Error != "":
			add(a.Name, "is done", false, "%s", a.Error)
		default:
			add(a.Name, "is done", a.Done, "its moment was not reached: %s", a.Moment)
		}
	}
	for i := range f.Expect {
		r.checkCounter(&f.Expect[i], add)
	}
	add("service", "nothing is left", len(r.Left) == 0, "open after all programs have ended: %s",
		strings.Join(r.Left, "; "))
	r.Passed = err == nil && !slices.ContainsFunc(r.Checks, func(c checkResult) bool { return !c.Passed })
}

type addCheckFunc func(subject, what string, ok bool, why string, args ...any)

func (r *Result) checkProgram(p *Program, res *programResult, add addCheckFunc) {
	e := &p.Expect
	switch {
	case res.Error != "":
		add(p.Name, "starts", false, "%s", res.Error)
		return
	case !res.Started:
		add(p.Name, "starts", false, "its moment was not reached: %s", p.Start)
		return
	}
	want := Exit{}
	if e.Exit != nil {
		want.Code = *e.Exit
	}
	want.Signal = signalNumber(e.Killed)
	switch {
	case res.Exit == nil || res.Killed:
		add(p.Name, want.String(), false, "the program did not end by itself within %v%s",
			time.Duration(r.runTime(res)).Round(time.Millisecond), res.describeLastLine())
	default:
		add(p.Name, want.String(), *res.Exit == want, "%s%s", *res.Exit, res.describeLastLine())
	}
	if w := time.Duration(e.Within); w > 0 {
		took := res.End - res.Start
		add(p.Name, "within "+w.String(), res.Exit != nil && !res.Killed && took <= w, "it took %v",
			took.Round(time.Millisecond))
	}
	next := 0
	for _, s := range e.Output {
		re := regexp.MustCompile(s)
		at := slices.IndexFunc(res.Lines[min(next, len(res.Lines)):],
			func(l outputLine) bool { return re.MatchString(l.Text) })
		add(p.Name, "prints /"+s+"/", at >= 0, "no such line%s%s", r.outputOrderHint(e, s, next), res.describeLastLine())
		if at >= 0 {
			next += at + 1
		}
	}
	for _, s := range e.Never {
		re := regexp.MustCompile(s)
		at := slices.IndexFunc(res.Lines, func(l outputLine) bool { return re.MatchString(l.Text) })
		why := ""
		if at >= 0 {
			why = res.Lines[at].Text
		}
		add(p.Name, "never prints /"+s+"/", at < 0, "%s", why)
	}
}

func (r *Result) runTime(p *programResult) time.Duration {
	if p.End > p.Start {
		return p.End - p.Start
	}
	return r.Took - p.Start
}

func (r *Result) outputOrderHint(e *expectedOutcome, s string, next int) string {
	if next > 0 && slices.Index(e.Output, s) > 0 {
		return " after what precedes it"
	}
	return ""
}

// describeLastLine describes the program's last line, for failures.
func (p *programResult) describeLastLine() string {
	if s := strings.TrimSpace(p.last); s != "" {
		return "; its last line: " + s
	}
	return "; the program has printed nothing"
}

func (r *Result) checkCounter(c *expectedCounter, add addCheckFunc) {
	subject, what := c.Dev, c.Counter
	var got uint64
	if c.Action != "" {
		subject = c.Action
		for i := range r.Actions {
			if a := &r.Actions[i]; a.Name == c.Action && a.Rule != nil {
				if got = a.Rule.Seen; c.Counter == "hit" {
					got = a.Rule.Hit
				}
			}
		}
	} else {
		m := r.Counters[c.Dev]
		var ok bool
		if got, ok = m[c.Counter]; !ok {
			add(subject, what, false, "unknown counter; the counters are: %s", joinNames(slices.Sorted(maps.Keys(m))))
			return
		}
	}
	if c.Is != nil {
		add(subject, fmt.Sprintf("%s is %d", what, *c.Is), got == *c.Is, "it is %d", got)
	}
	if c.Min != nil {
		add(subject, fmt.Sprintf("%s is at least %d", what, *c.Min), got >= *c.Min, "the value is %d", got)
	}
	if c.Max != nil {
		add(subject, fmt.Sprintf("%s is at most %d", what, *c.Max), got <= *c.Max, "the value is %d", got)
	}
}

// WriteText writes the result as text for readers.
func (r *Result) WriteText(w io.Writer) error {
	var b bytes.Buffer
	failed := 0
	for _, c := range r.Checks {
		if !c.Passed {
			failed++
			fmt.Fprintf(&b, "FAIL  %s: %s: %s\n", c.Subject, c.What, c.Why)
		}
	}
	if r.Error != "" {
		fmt.Fprintf(&b, "FAIL  %s\n", r.Error)
	}
	if !r.Passed {
		for i := range r.Causes {
			fmt.Fprintf(&b, "why   %s\n", r.Causes[i].Advice())
		}
	}
	verdict := "ok"
	if !r.Passed {
		verdict = "FAIL"
	}
	limit := ""
	if r.TimedOut {
		limit = ", the time limit"
	}
	fmt.Fprintf(&b, "%-4s  %s: %d of %d expectations in %v%s, seed %d\n", verdict, r.Name, len(r.Checks)-failed,
		len(r.Checks),
		r.Took.Round(time.Millisecond), limit, r.Seed)
	_, err := w.Write(b.Bytes())
	return err
}

type junitSuites struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Errors   int          `xml:"errors,attr"`
	Time     string       `xml:"time,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Time     string      `xml:"time,attr"`
	Stamp    string      `xml:"timestamp,attr"`
	Cases    []junitCase `xml:"testcase"`
	Out      string      `xml:"system-out,omitempty"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Time    string        `xml:"time,attr"`
	Failure *junitFailure `xml:"failure,omitempty"`
	Error   *junitFailure `xml:"error,omitempty"`
}

type junitFailure struct {
	Message string `xml:"message,attr"`
}

// WriteJUnit writes results in the WriteJUnit format of CI systems. Each scenario is a suite, and each expectation is a
// test case.
func WriteJUnit(w io.Writer, results []*Result) error {
	seconds := func(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
	var all junitSuites
	var total time.Duration
	for _, r := range results {
		s := junitSuite{Name: r.Name, Time: seconds(r.Took), Stamp: r.Began.UTC().Format("2006-01-02T15:04:05")}
		for _, c := range r.Checks {
			x := junitCase{Class: r.Name, Name: c.Subject + ": " + c.What, Time: "0"}
			if !c.Passed {
				x.Failure = &junitFailure{c.Why}
				s.Failures++
			}
			s.Cases = append(s.Cases, x)
		}
		if r.Error != "" {
			s.Cases = append(s.Cases, junitCase{Class: r.Name, Name: "is run", Time: "0", Error: &junitFailure{r.Error}})
			s.Errors++
		}
		s.Tests = len(s.Cases)
		if !r.Passed {
			s.Out = r.FormatEvents()
		}
		all.Suites = append(all.Suites, s)
		all.Tests += s.Tests
		all.Failures += s.Failures
		all.Errors += s.Errors
		total += r.Took
	}
	all.Time = seconds(total)
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(all); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// FormatEvents returns the events in order of time, one a line.
func (r *Result) FormatEvents() string {
	type entry struct {
		at   time.Duration
		text string
	}
	var list []entry
	for _, p := range r.Programs {
		if p.Started {
			list = append(list, entry{p.Start, p.Name + " is started"})
		}
		for _, l := range p.Lines {
			list = append(list, entry{l.At, p.Name + ": " + l.Text})
		}
		if p.Exit != nil {
			list = append(list, entry{p.End, p.Name + ": " + p.Exit.String()})
		}
	}
	for _, a := range r.Actions {
		if a.Began {
			list = append(list, entry{a.At, "action: " + a.Name + strings.Repeat(": "+a.Error, min(1, len(a.Error)))})
		}
	}
	slices.SortStableFunc(list, func(a, b entry) int { return int(a.at - b.at) })
	var b strings.Builder
	for _, e := range list {
		fmt.Fprintf(&b, "%9.3f  %s\n", e.at.Seconds(), e.text)
	}
	return b.String()
}

// Compare compares the run with another run of the same scenario. same contains differences that the seed excludes,
// so it should be empty. free contains differences in times, counters and output, which are permitted.
func (r *Result) Compare(o *Result) (same, free []string) {
	if r.Name != o.Name || r.Seed != o.Seed {
		return []string{fmt.Sprintf("not the same scenario: %s, seed %d, and %s, seed %d", r.Name, r.Seed, o.Name, o.Seed)},
			nil
	}
	for i := range r.Actions {
		a := &r.Actions[i]
		at := slices.IndexFunc(o.Actions, func(b actionResult) bool { return b.Name == a.Name })
		if at < 0 {
			same = append(same, fmt.Sprintf("action %q is in only one run", a.Name))
			continue
		}
		b := &o.Actions[at]
		if a.What != b.What || a.Moment != b.Moment || a.Done != b.Done || a.Out != b.Out {
			same = append(same, fmt.Sprintf("action %q: %s %s (done: %t), and %s %s (done: %t)", a.Name, a.What, a.Moment,
				a.Done, b.What, b.Moment, b.Done))
		}
		if a.Rule != nil && b.Rule != nil {
			if a.Rule.Seen != b.Rule.Seen || a.Rule.Hit != b.Rule.Hit {
				free = append(free, fmt.Sprintf("action %q: its rule has hit %d of %d, and %d of %d", a.Name, a.Rule.Hit,
					a.Rule.Seen, b.Rule.Hit, b.Rule.Seen))
			}
			if a.Rule.Seen == b.Rule.Seen && a.Rule.Hit != b.Rule.Hit {
				same = append(same, fmt.Sprintf("action %q: of %d seen, %d were hit, and %d", a.Name, a.Rule.Seen, a.Rule.Hit,
					b.Rule.Hit))
			} else if n, m, ok := a.Rule.compareHits(b.Rule); !ok {
				same = append(same, fmt.Sprintf("action %q: its rule has hit %s, and %s", a.Name, n, m))
			}
		}
		free = appendTimeDifference(free, fmt.Sprintf("action %q", a.Name), a.At, b.At)
	}
	for i := range min(len(r.Programs), len(o.Programs)) {
		p, q := &r.Programs[i], &o.Programs[i]
		if p.Exit != nil && q.Exit != nil && *p.Exit != *q.Exit {
			free = append(free, fmt.Sprintf("%s: %s, and %s", p.Name, p.Exit, q.Exit))
		}
		free = appendTimeDifference(free, p.Name+" ended", p.End, q.End)
		for j := range max(len(p.Lines), len(q.Lines)) {
			if a, b := p.lineAt(j), q.lineAt(j); a != b {
				free = append(free, fmt.Sprintf("%s: line %d: %q, and %q", p.Name, j+1, a, b))
				break
			}
		}
	}
	for _, dev := range slices.Sorted(maps.Keys(r.Counters)) {
		for _, name := range slices.Sorted(maps.Keys(r.Counters[dev])) {
			if a, b := r.Counters[dev][name], o.Counters[dev][name]; a != b {
				free = append(free, fmt.Sprintf("%s: %s: %d, and %d", dev, name, a, b))
			}
		}
	}
	return same, free
}

// compareHits reports whether two rules have hit the same packets or calls, as far as both have seen them and HitAt
// lists them. If not, mine and others describe the first difference.
func (r *ruleResult) compareHits(o *ruleResult) (mine, others string, ok bool) {
	both := min(r.Seen, o.Seen)
	at := func(r *ruleResult, i int) (uint64, bool) { // the i-th hit seen by both rules, or 0; false if unknown
		if i < len(r.HitAt) {
			if r.HitAt[i] > both {
				return 0, true
			}
			return r.HitAt[i], true
		}
		return 0, uint64(len(r.HitAt)) == r.Hit
	}
	word := func(n uint64) string {
		if n == 0 {
			return "no more"
		}
		return fmt.Sprintf("number %d", n)
	}
	for i := range max(len(r.HitAt), len(o.HitAt)) {
		a, known := at(r, i)
		b, too := at(o, i)
		if known && too && a != b {
			return word(a), word(b), false
		}
	}
	return "", "", true
}

func (p *programResult) lineAt(i int) string {
	if i < len(p.Lines) {
		return p.Lines[i].Text
	}
	return ""
}

// appendTimeDifference appends a message if two times differ by more than a tenth of a second.
func appendTimeDifference(list []string, what string, a, b time.Duration) []string {
	if d := a - b; d.Abs() > 100*time.Millisecond {
		list = append(list, fmt.Sprintf("%s: at %v, and %v", what, a.Round(time.Millisecond), b.Round(time.Millisecond)))
	}
	return list
}
