//go:build e2e

package e2e

import (
	"regexp"
	"slices"
	"testing"
)

// tools lists the tested tools of docs/tools.md. faults contains a pattern of the report for each fault of
// testdata/tools.c that the tool finds.
var tools = []struct {
	name   string
	pkg    string   // Debian package of the tool; empty: the program is compiled with flags
	flags  []string // compiler flags
	argv   []string // before the program
	faults map[string]string
	right  string // also in the output for the program without a fault
}{
	{name: "AddressSanitizer", flags: []string{"-fsanitize=address"}, faults: map[string]string{
		"overflow": `AddressSanitizer: heap-buffer-overflow`,
		"freed":    `AddressSanitizer: heap-use-after-free`,
		"leak":     `LeakSanitizer: detected memory leaks(?s:.*)Direct leak of 77 byte`,
	}},
	{name: "ThreadSanitizer", flags: []string{"-fsanitize=thread"}, faults: map[string]string{
		"race": `ThreadSanitizer: data race`,
	}},
	{name: "LeakSanitizer", flags: []string{"-fsanitize=leak"}, faults: map[string]string{
		"leak": `LeakSanitizer: detected memory leaks(?s:.*)Direct leak of 77 byte`,
	}},
	{name: "valgrind", pkg: "valgrind", argv: []string{"valgrind", "--leak-check=full"}, faults: map[string]string{
		"overflow":  `Invalid write of size 1`,
		"freed":     `Invalid read of size 1`,
		"undefined": `Conditional jump or move depends on uninitialised value`,
		"leak":      `77 bytes in 1 blocks are definitely lost`,
	}, right: `ERROR SUMMARY: \d+ errors`},
	{name: "gdb", pkg: "gdb", argv: []string{"gdb", "-q", "-batch", "-ex", "break ibv_destroy_qp", "-ex", "run", "-ex",
		"info symbol $pc", "-ex", "continue", "--args"}, right: `(?s)ibv_destroy_qp.*exited normally`},
	{name: "strace", pkg: "strace", argv: []string{"strace", "-f", "-e", "trace=ioctl"},
		right: `RDMA_VERBS_IOCTL, .*\) = 0`},
}

// TestTools tests that the tools of docs/tools.md work below `verbena run`: they find the faults of a program that uses
// RDMA, and report nothing about the program without a fault.
func TestTools(t *testing.T) {
	t.Parallel()
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	reports := regexp.MustCompile(`Sanitizer|Invalid (read|write)|uninitialised|are definitely lost`)
	for _, tool := range tools {
		t.Run(tool.name, func(t *testing.T) {
			needProgram(t, "gcc libc6-dev libibverbs-dev", "gcc")
			if tool.pkg != "" {
				needProgram(t, tool.pkg, tool.argv[0])
			}
			program := buildProgram(t, "tools-"+tool.name, func(path string) []string {
				return append(append([]string{"gcc", "-Wall", "-g", "-O1", "-Wno-use-after-free"}, tool.flags...),
					"-o", path, "testdata/tools.c", "-libverbs", "-pthread")
			})
			run := func(fault string) (out string, err error) {
				args := slices.Concat([]string{"run", "--"}, tool.argv, []string{program, fault})
				b, err := w.verbenaCommand(w.contextWithTimeout(60), args...).CombinedOutput()
				return string(b), err
			}
			out, err := run("right")
			if err != nil || !regexp.MustCompile(`(?m)^done$`).MatchString(out) {
				t.Errorf("the program without a fault: got error %v and\n%s", err, out)
			}
			if report := reports.FindString(out); report != "" {
				t.Errorf("the program without a fault: got the report %q in\n%s", report, out)
			}
			if !regexp.MustCompile(tool.right).MatchString(out) {
				t.Errorf("the program without a fault: got no match of %q in\n%s", tool.right, out)
			}
			for fault, want := range tool.faults {
				if out, _ := run(fault); !regexp.MustCompile(want).MatchString(out) {
					t.Errorf("the fault %s: got no match of %q in\n%s", fault, want, out)
				}
			}
		})
	}
}
