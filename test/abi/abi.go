// Package abi compares the user ABI with the kernel's. The program probe asks a device file several hundred things, right
// and wrong, and prints the answers; kernel.txt is what rdma_rxe answers in a guest; differs.txt is where Verbena answers
// otherwise, and why. A test in test/e2e runs it; docs/verbs.md says what there is.
package abi

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

var (
	//go:embed kernel.txt
	kernel string
	//go:embed differs.txt
	differs string
)

// Kernel are the answers of the kernel's rxe by question, and the kernel that gave them.
func Kernel() (answers map[string]string, version string) {
	version, _, _ = strings.Cut(kernel, "\n")
	return Parse(kernel), strings.TrimPrefix(version, "# ")
}

// Parse reads what probe prints: lines "question: answer".
func Parse(text string) map[string]string {
	answers := map[string]string{}
	for line := range strings.Lines(text) {
		if i := strings.LastIndex(line, ": "); i >= 0 && line[0] != '#' {
			answers[line[:i]] = strings.TrimSpace(line[i+2:])
		}
	}
	return answers
}

// Complaints are the answers that are neither the kernel's nor those of differs.txt.
func Complaints(got map[string]string) (complaints []string) {
	want, _ := Kernel()
	for line := range strings.Lines(differs) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		for question, answer := range Parse(line) {
			if want[question] == answer {
				complaints = append(complaints, fmt.Sprintf("differs.txt: %q is no difference", question))
			}
			want[question] = answer
		}
	}
	for question, answer := range want {
		if got[question] != answer {
			complaints = append(complaints, fmt.Sprintf("%s: %s, want %s", question, got[question], answer))
		}
	}
	for question := range got {
		if _, ok := want[question]; !ok {
			complaints = append(complaints, fmt.Sprintf("%s: not in kernel.txt", question))
		}
	}
	slices.Sort(complaints)
	return complaints
}
