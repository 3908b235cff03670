// Package abi compares answers of Verbena to programs with those of the kernel. The program probe sends several
// hundred valid and invalid commands and methods to a device file. The C program cm_descriptors (test/e2e/testdata)
// makes other system calls on each file of verbs. Both programs print the answers. The files kernel.txt and
// descriptors.kernel.txt hold the answers of rdma_rxe in a guest, which `make abi` records. The files differs.txt
// and descriptors.differs.txt list the deviations of Verbena, with reasons. Tests in test/e2e run the programs.
// docs/results/verbs.md lists the commands and methods.
package abi

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

// Answers holds the kernel's answers to the questions of a program, and the deviations of Verbena.
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
	// Device holds the answers to probe.
	Device = Answers{kernel, differs}
	// Descriptors holds the answers to cm_descriptors.
	Descriptors = Answers{descriptorsKernel, descriptorsDiffer}
)

// Kernel returns the answers of the kernel's rxe by question, and the version of that kernel.
func (a Answers) Kernel() (answers map[string]string, version string) {
	version, _, _ = strings.Cut(a.kernel, "\n")
	return Parse(a.kernel), strings.TrimPrefix(version, "# ")
}

// Parse parses the output of a program, which has lines of the form "question: answer". Parse appends "again" to a
// repeated question.
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

// Mismatches returns the answers that are neither the kernel's answers nor known deviations.
func (a Answers) Mismatches(got map[string]string) (complaints []string) {
	want, _ := a.Kernel()
	for line := range strings.Lines(a.differs) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		for question, answer := range Parse(line) {
			if want[question] == answer {
				complaints = append(complaints, fmt.Sprintf("%q is not a deviation", question))
			}
			want[question] = answer
		}
	}
	for question, answer := range want {
		if got[question] != answer {
			complaints = append(complaints, fmt.Sprintf("%s: got %s, want %s", question, got[question], answer))
		}
	}
	for question := range got {
		if _, ok := want[question]; !ok {
			complaints = append(complaints, fmt.Sprintf("%s: no answer of the kernel", question))
		}
	}
	slices.Sort(complaints)
	return complaints
}
