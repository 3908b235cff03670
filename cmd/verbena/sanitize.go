package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	"verbena/ib/check"
	"verbena/internal/ctl"
	"verbena/supervisor"
)

// sanitizeFlag is the value of --sanitize or --sanitize=CHECKS.
type sanitizeFlag struct {
	on    bool
	log   bool     // do not change the exit code
	abort bool     // end the program with SIGABRT at the first report
	rules []string // as for check.ParseProgramRules
}

// The names in CHECKS that select no rule.
const (
	sanitizeLog   = "log"
	sanitizeAbort = "abort"
)

// maxChecks limits the rules in CHECKS, so that the request for them is not too long for the service.
const maxChecks = 256

// IsBool implements kong.BoolMapperValue: the value is optional.
func (*sanitizeFlag) IsBool() bool { return true }

// Decode implements kong.MapperValue.
func (s *sanitizeFlag) Decode(ctx *kong.DecodeContext) error {
	s.on = true
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		return nil
	}
	for name := range strings.SplitSeq(fmt.Sprint(ctx.Scan.Pop().Value), ",") {
		switch name {
		case sanitizeLog:
			s.log = true
		case sanitizeAbort:
			s.abort = true
		default:
			if n := len(s.rules); n == maxChecks {
				return fmt.Errorf("--sanitize: more than %d rules", n)
			}
			s.rules = append(s.rules, name)
		}
	}
	if _, err := check.ParseProgramRules(s.rules); err != nil {
		return fmt.Errorf("--sanitize: %w; docs/sanitizer.md lists the rules", err)
	}
	return nil
}

// listOffRules returns the names of the rules that --sanitize without CHECKS leaves off.
func listOffRules() string {
	var names []string
	for _, r := range check.ProgramRules {
		if r.Off {
			names = append(names, r.Rule.String())
		}
	}
	return strings.Join(names, ", ")
}

// request returns the request for checks, or nil.
func (s *sanitizeFlag) request() *ctl.Sanitize {
	if !s.on {
		return nil
	}
	return &ctl.Sanitize{Rules: s.rules}
}

// sanitizeExitCode is the exit code of run after a report.
const sanitizeExitCode = 66

// reportPrinter prints the reports of the sanitizer.
type reportPrinter struct {
	flag     *sanitizeFlag
	suppress []suppression
	to       io.Writer
	file     *resultFile // destination of JSON or SARIF, or nil

	mu       sync.Mutex
	reports  []ctl.SanitizerReport // without repetitions
	repeated []ctl.SanitizerReport
	lost     uint64 // number of reports that the service could not send
	foreign  bool   // the service is in another PID namespace, and its process numbers mean other processes here
}

// suppression is a line of the file of --sanitize-suppressions.
type suppression struct{ rule, program string }

func (s suppression) matches(r *ctl.SanitizerReport) bool {
	return matchesName(s.rule, r.Rule) && matchesName(s.program, r.Program)
}

// matchesName reports whether a pattern of path.Match matches a name. A slash in a name is an ordinary character.
func matchesName(pattern, name string) bool {
	const slash = "\x00"
	ok, _ := path.Match(strings.ReplaceAll(pattern, "/", slash), strings.ReplaceAll(name, "/", slash))
	return ok
}

// maxSuppressions limits the bytes of a file of suppressions.
const maxSuppressions = 1 << 20

// readSuppressions reads lines of the form RULE or RULE:PROGRAM, in which both parts are patterns of path.Match.
func readSuppressions(name string) (list []suppression, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("run --sanitize-suppressions: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSuppressions+1))
	if err != nil {
		return nil, fmt.Errorf("run --sanitize-suppressions: %w", err)
	}
	if len(b) > maxSuppressions {
		return nil, fmt.Errorf("run --sanitize-suppressions: %s has more than %d bytes", name, maxSuppressions)
	}
	for n, line := range strings.Split(string(b), "\n") {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		rule, program, ok := strings.Cut(line, ":")
		if !ok {
			program = "*"
		}
		for _, pattern := range []string{rule, program} {
			if _, err := path.Match(pattern, ""); err != nil {
				return nil, fmt.Errorf("run --sanitize-suppressions: %s, line %d: %w", name, n+1, err)
			}
		}
		if !slices.ContainsFunc(check.ProgramRules, func(r check.ProgramRule) bool {
			return matchesName(rule, r.Rule.String())
		}) {
			return nil, fmt.Errorf("run --sanitize-suppressions: %s, line %d: no rule has the name %.40q; docs/sanitizer.md lists the rules",
				name, n+1, rule)
		}
		list = append(list, suppression{rule, program})
	}
	return list, nil
}

// newReportPrinter returns the printer of a command, or nil without --sanitize.
func (r *runCmd) newReportPrinter() (*reportPrinter, error) {
	if !r.Sanitize.on {
		if r.SanitizeReport != "" || r.SanitizeSuppressions != "" {
			return nil, fmt.Errorf("run: --sanitize-report and --sanitize-suppressions need --sanitize")
		}
		return nil, nil
	}
	p := &reportPrinter{flag: &r.Sanitize, to: os.Stderr}
	if r.SanitizeSuppressions != "" {
		var err error
		if p.suppress, err = readSuppressions(r.SanitizeSuppressions); err != nil {
			return nil, err
		}
	}
	if r.SanitizeReport != "" {
		var err error
		if p.file, err = openResultFile(r.SanitizeReport); err != nil {
			return nil, fmt.Errorf("run --sanitize-report: %w", err)
		}
	}
	return p, nil
}

// abandon is for a program that was not started.
func (p *reportPrinter) abandon() {
	if p != nil && p.file != nil {
		p.file.abandon()
	}
}

// add adds a line of the service.
func (p *reportPrinter) add(line string) {
	var r ctl.SanitizerReport
	if json.Unmarshal([]byte(line), &r) != nil {
		return
	}
	if slices.ContainsFunc(p.suppress, func(s suppression) bool { return s.matches(&r) }) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Count > 1 {
		p.repeated = append(p.repeated, r)
		return
	}
	p.reports = append(p.reports, r)
	writeReport(p.to, &r)
	if p.flag.abort {
		err := errForeignPIDs
		if !p.foreign {
			err = abortDescendant(r.PID)
		}
		if err != nil {
			fmt.Fprintf(p.to, "verbena: sanitizer: the program continues, although --sanitize has \"abort\": %v\n", err)
		}
	}
}

// addLost adds a number of lost reports.
func (p *reportPrinter) addLost(count string) {
	n, err := strconv.ParseUint(count, 10, 64)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost += n
}

var errForeignPIDs = errors.New("the service is in another PID namespace")

// abortDescendant sends SIGABRT to a descendant of this process.
func abortDescendant(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := supervisor.CheckDescendant(pid); err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGABRT, nil, 0); err != nil {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}

// finish prints the summary, and reports whether there were reports.
func (p *reportPrinter) finish() (found bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	type site struct {
		time int64
		rule string
		pid  int
	}
	counts := map[site]uint64{}
	for _, x := range p.repeated {
		counts[site{x.Time.UnixNano(), x.Rule, x.PID}] = x.Count
	}
	for i := range p.reports {
		r := &p.reports[i]
		if n := counts[site{r.Time.UnixNano(), r.Rule, r.PID}]; n > 0 {
			r.Count = n
		}
	}
	if len(p.reports) > 0 {
		fmt.Fprintf(p.to, "verbena: sanitizer: %d reports:\n", len(p.reports))
		for i := range p.reports {
			r := &p.reports[i]
			fmt.Fprintf(p.to, "  %-18s %d times, %s (process %d)\n", r.Rule, r.Count, replaceControlChars(r.Program), r.PID)
		}
	}
	if p.lost > 0 {
		fmt.Fprintf(p.to, "verbena: sanitizer: %d further reports were lost: they came faster than they were read\n", p.lost)
	}
	if p.file != nil {
		if err = errors.Join(writeReports(p.file, p.reports), p.file.Close()); err != nil {
			err = fmt.Errorf("sanitizer reports: %w", err)
		}
	}
	return len(p.reports) > 0 || p.lost > 0, err
}

// writeReport prints a report in several lines.
func writeReport(to io.Writer, r *ctl.SanitizerReport) {
	w := bufio.NewWriter(to)
	defer w.Flush()
	fmt.Fprintf(w, "==%d==verbena: sanitizer: %s in %s on %s\n", r.PID, r.Rule, replaceControlChars(r.Program), r.Device)
	fmt.Fprintf(w, "  %s\n", r.What)
	if m := r.Memory; m != nil {
		fmt.Fprintf(w, "  memory  sg_list[%d], %#x, %d bytes; %d bytes changed, the first at offset %d\n", m.Element, m.Addr,
			m.Length, m.Changed, m.Offset)
		fmt.Fprintf(w, "  before  % x\n  after   % x\n", m.Before, m.After)
	}
	for i, x := range r.Requests {
		title := "request"
		if i > 0 {
			title = "earlier"
		}
		fmt.Fprintf(w, "  %s ", title)
		if x.Opcode != "" {
			fmt.Fprintf(w, " %s", x.Opcode)
		}
		if x.QPN != 0 {
			fmt.Fprintf(w, " on QP %d", x.QPN)
		}
		if x.Peer != 0 {
			fmt.Fprintf(w, ", peer QP %d", x.Peer)
		}
		if !x.Posted.IsZero() {
			fmt.Fprintf(w, ", wr_id %#x, number %d of its queue, %d bytes, posted %v before", x.ID, x.Index, x.Length,
				r.Time.Sub(x.Posted).Round(time.Microsecond))
		}
		fmt.Fprintln(w)
	}
	if row := ruleRow(r.Rule); row != nil {
		fmt.Fprintf(w, "  clause  %s\n  remedy  %s\n", row.Clause, row.Remedy)
	}
}

// ruleRow returns the row of a rule, or nil.
func ruleRow(name string) *check.ProgramRule {
	i := slices.IndexFunc(check.ProgramRules, func(r check.ProgramRule) bool { return r.Rule.String() == name })
	if i < 0 {
		return nil
	}
	return &check.ProgramRules[i]
}
