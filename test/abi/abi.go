// Package abi compares what programs are answered with the kernel's answers. The program probe asks a device file several hundred
// commands and methods, right and wrong; the C program cm_descriptors (test/e2e/testdata) makes other system calls on each of the files
// of verbs. Both print the answers. The files kernel.txt and descriptors.kernel.txt are what rdma_rxe answers in a guest; `make abi`
// records them. The files differs.txt and descriptors.differs.txt are where Verbena answers otherwise, and why. Tests in test/e2e run
// the programs; docs/results/verbs.md lists the commands and methods.
package abi

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

// Answers are those of the kernel to the questions of a program, and Verbena's where they differ.
type Answers struct{ kernel, differs string }

var (
	//go:embed kernel.txt
	kernel string
	//go:embed differs.txt
	differs string
	//go:embed descriptors.kernel.txt
	descriptorsKernel string
	//go:embed descriptors.differs.txt
	descriptorsDiffer string
)

var (
	// Device is what probe asks.
	Device = Answers{kernel, differs}
	// Descriptors is what cm_descriptors asks.
	Descriptors = Answers{descriptorsKernel, descriptorsDiffer}
)

// Kernel are the answers of the kernel's rxe by question, and the kernel that gave them.
func (a Answers) Kernel() (answers map[string]string, version string) {
	version, _, _ = strings.Cut(a.kernel, "\n")
	return Parse(a.kernel), strings.TrimPrefix(version, "# ")
}

// Parse reads what a program prints: lines "question: answer". A question that comes again gets "again" at its end.
func Parse(text string) map[string]string {
	answers := map[string]string{}
	for line := range strings.Lines(text) {
		i := strings.LastIndex(line, ": ")
		if i < 0 || line[0] == '#' {
			continue
		}
		question := line[:i]
		for _, asked := answers[question]; asked; _, asked = answers[question] {
			question += " again"
		}
		answers[question] = strings.TrimSpace(line[i+2:])
	}
	return answers
}

// Complaints are the answers that are neither the kernel's nor Verbena's known ones.
func (a Answers) Complaints(got map[string]string) (complaints []string) {
	want, _ := a.Kernel()
	for line := range strings.Lines(a.differs) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		for question, answer := range Parse(line) {
			if want[question] == answer {
				complaints = append(complaints, fmt.Sprintf("%q is no difference", question))
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
			complaints = append(complaints, fmt.Sprintf("%s: the kernel was not asked", question))
		}
	}
	slices.Sort(complaints)
	return complaints
}
