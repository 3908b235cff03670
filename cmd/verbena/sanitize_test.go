package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/internal/ctl"
)

// TestReportPrinter tests the text, the suppressions, the repetitions and the files of reports.
func TestReportPrinter(t *testing.T) {
	dir := t.TempDir()
	rules := filepath.Join(dir, "suppressions")
	if err := os.WriteFile(rules, []byte("# known\nkey-*:good*\ncq-too-small\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	suppress, err := readSuppressions(rules)
	if err != nil {
		t.Fatal(err)
	}
	found := time.Unix(100, 2e6)
	reports := []ctl.SanitizerReport{
		{Rule: "key-kind", Program: "good", Count: 1},
		{Rule: "cq-too-small", Program: "other", Count: 1},
		{Rule: "source-changed", What: "the text", Program: "other\n", PID: -1, Device: "rxe0", Time: found, Count: 1,
			Requests: []ctl.ReportedRequest{{QPN: 17, Peer: 18, Opcode: "SEND", ID: 0x20, Index: 3, Length: 64,
				Posted: time.Unix(100, 0)}},
			Memory: &ctl.ReportedMemory{Element: 2, Addr: 0x1000, Length: 64, Offset: 5, Changed: 1, Before: []byte{1},
				After: []byte{2}}},
		{Rule: "source-changed", PID: -1, Time: found, Count: 12},
	}
	for _, name := range []string{"out.json", "out.sarif"} {
		var b strings.Builder
		file, err := openResultFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		p := &reportPrinter{flag: &sanitizeFlag{on: true}, suppress: suppress, to: &b, file: file}
		for i := range reports {
			line, err := json.Marshal(&reports[i])
			if err != nil {
				t.Fatal(err)
			}
			p.add(string(line))
		}
		p.add("not JSON")
		if found, err := p.finish(); !found || err != nil {
			t.Errorf("finish: got %v, %v, want reports", found, err)
		}
		for _, want := range []string{
			"sanitizer: source-changed in other", "the text\n", "memory  sg_list[2], 0x1000, 64 bytes; 1 bytes changed, the first at offset 5\n",
			"before  01\n  after   02\n", "SEND on QP 17, peer QP 18, wr_id 0x20, number 3 of its queue, 64 bytes, posted 2ms before",
			"remedy  Poll", "sanitizer: 1 reports", "12 times",
		} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("report: got %s, want %q in it", b.String(), want)
			}
		}
		if strings.Contains(b.String(), "other\n") {
			t.Error("the report has control characters of the program's name")
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		var list []ctl.SanitizerReport
		if name == "out.sarif" {
			var log sarifLog
			if err := json.Unmarshal(text, &log); err != nil || log.Version != "2.1.0" || len(log.Runs) != 1 {
				t.Fatalf("%s: got %s (%v), want one run", name, text, err)
			}
			for _, r := range log.Runs[0].Results {
				list = append(list, r.Properties)
			}
		} else if err := json.Unmarshal(text, &list); err != nil {
			t.Fatal(err)
		}
		if len(list) != 1 || list[0].Rule != "source-changed" || list[0].Count != 12 || list[0].Memory.After[0] != 2 {
			t.Errorf("%s: got %+v, want the report of source-changed with 12 occurrences", name, list)
		}
	}
	if err := os.WriteFile(rules, []byte("[\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readSuppressions(rules); err == nil {
		t.Error("a malformed pattern: got success, want an error")
	}
}

// TestAbortOnlyDescendants tests that a process that is no descendant gets no signal.
func TestAbortOnlyDescendants(t *testing.T) {
	for _, pid := range []int{os.Getpid(), os.Getppid(), 1, 0, -1} {
		if err := abortDescendant(pid); err == nil {
			t.Errorf("abort process %d: got success, want an error", pid)
		}
	}
}

// TestSanitizeInputIsLimited tests that an endless file of suppressions, and too many checks, are errors.
func TestSanitizeInputIsLimited(t *testing.T) {
	if _, err := readSuppressions("/dev/zero"); err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Errorf("endless file of suppressions: got %v, want an error with the limit", err)
	}
	checks := "--sanitize=" + strings.Repeat("key-kind,", maxChecks) + "key-kind"
	if _, err := parse(&cli{}, []string{"run", checks, "--", "true"}); err == nil ||
		!strings.Contains(err.Error(), "more than 256 rules") {
		t.Errorf("%d checks: got %v, want an error with the limit", maxChecks+1, err)
	}
}

// TestResultFileThroughSymbolicLink tests a symbolic link to a file that does not exist yet.
func TestResultFileThroughSymbolicLink(t *testing.T) {
	dir := t.TempDir()
	link, target := filepath.Join(dir, "link"), filepath.Join(dir, "target")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	f, err := openResultFile(link)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString("text")
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(target); err != nil || string(b) != "text" {
		t.Errorf("target of the link: got %q and error %v, want the text", b, err)
	}
}

// TestSuppressionsMatchNames tests names that path.Match treats specially, and rules that do not exist.
func TestSuppressionsMatchNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "suppressions")
	for _, c := range []struct {
		text, program string
		want          bool // the report of source-changed is suppressed
		fails         bool
	}{
		{"source-changed", "io/1", true, false},
		{"source-changed:io/*", "io/1", true, false},
		{"source-changed:*", "a/b/c", true, false},
		{"source-changed:io", "io/1", false, false},
		{"source-*:a:b\r\n", "a:b", true, false},
		{"", "a", false, false},
		{"sorce-changed", "a", false, true},
		{"\ufeffsource-changed", "a", false, true},
		{"source-changed\nkey-kind extra", "a", false, true},
	} {
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := readSuppressions(file)
		if (err != nil) != c.fails {
			t.Errorf("suppressions %q: got error %v, want one: %v", c.text, err, c.fails)
			continue
		}
		r := &ctl.SanitizerReport{Rule: "source-changed", Program: c.program}
		if got := slices.ContainsFunc(list, func(s suppression) bool { return s.matches(r) }); !c.fails && got != c.want {
			t.Errorf("suppressions %q for program %q: got %v, want %v", c.text, c.program, got, c.want)
		}
	}
}

// failingWriter is a file on a full disk.
type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestReportsSurviveFailedTrace tests that the failure of the file of --trace loses no report and no cause.
func TestReportsSurviveFailedTrace(t *testing.T) {
	p := &reportPrinter{flag: &sanitizeFlag{on: true}, to: io.Discard}
	c := &traceCopier{reports: p, lines: make(chan string, 8)}
	line, err := json.Marshal(&ctl.SanitizerReport{Rule: "key-kind", Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	c.lines <- strings.Repeat("x", 1<<16)
	c.lines <- ctl.ReportPrefix + string(line)
	c.lines <- ctl.LostReportsPrefix + "3"
	c.lines <- ctl.CausePrefix + "the cause"
	close(c.lines)
	if err := c.writeQueuedLines(failingWriter{}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("failed trace: got %v, want ENOSPC", err)
	}
	if len(p.reports) != 1 || p.lost != 3 || len(c.causes) != 1 {
		t.Errorf("after a failed trace: got %d reports, %d lost and %d causes, want 1, 3 and 1", len(p.reports), p.lost,
			len(c.causes))
	}
	if found, err := p.finish(); !found || err != nil {
		t.Errorf("finish: got %v, %v, want reports", found, err)
	}
}

// TestResultFileKeepsOutput tests a result that goes to the file of the standard output, behind the output of the
// program.
func TestResultFileKeepsOutput(t *testing.T) {
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	std := os.Stdout
	os.Stdout = out
	defer func() { os.Stdout = std }()
	if _, err := out.WriteString("output of the program\n"); err != nil {
		t.Fatal(err)
	}
	f, err := openResultFile(out.Name())
	if err == nil {
		err = errors.Join(f.clear(), writeAll(f, []byte("result\n")), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(out.Name()); err != nil || string(b) != "output of the program\nresult\n" {
		t.Errorf("file of the output: got %q and error %v, want the output and the result", b, err)
	}
}

// TestCheckDistinctFiles tests flags that name one file.
func TestCheckDistinctFiles(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := errors.Join(os.WriteFile(a, nil, 0o600), os.Link(a, b)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		one, other string
		same       bool
	}{
		{a, a, true}, {a, b, true}, {a, filepath.Join(dir, "c"), false},
		{filepath.Join(dir, "c"), filepath.Join(dir, "d"), false},
		{filepath.Join(dir, "c"), dir + "/./c", true}, {"", "", false}, {"/dev/null", "/dev/null", false}, {a, "", false},
		{filepath.Join(dir, "no", "c"), filepath.Join(dir, "no", "c"), false}, // its open will fail
	} {
		x, y := namedFile{"--x", c.one}, namedFile{"--y", c.other}
		for _, files := range [][2][]namedFile{{{x, y}, nil}, {{x}, {y}}} {
			if err := checkDistinctFiles(files[0], files[1]); (err != nil) != c.same {
				t.Errorf("%s and %s: got %v, want an error: %v", c.one, c.other, err, c.same)
			}
		}
	}
	if err := checkDistinctFiles(nil, []namedFile{{"--x", a}, {"--y", a}}); err != nil {
		t.Errorf("two files that are read: got %v, want success", err)
	}
}
