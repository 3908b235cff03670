//go:build e2e

package e2e

import (
	"path/filepath"
	"testing"

	"verbena/test/abi"
)

// TestCallResultsMatchKernel compares the results of calls on the device file with the results of the kernel in
// test/abi/kernel.txt.
func TestCallResultsMatchKernel(t *testing.T) {
	needProgram(t, "python3", "/usr/bin/python3")
	probe, err := filepath.Abs("../abi/probe")
	if err != nil {
		t.Fatal(err)
	}
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	for _, c := range abi.Device.Mismatches(abi.Parse(w.mustRun("run", "--", probe))) {
		t.Error(c)
	}
	w.awaitNoProgramObjects()
}

// TestDescriptorCallsMatchKernel makes the system calls of test/abi/descriptors.kernel.txt on each file, and compares
// the results with the recorded results of the kernel.
func TestDescriptorCallsMatchKernel(t *testing.T) {
	t.Parallel()
	program := buildWithLibibverbs(t, "cm_descriptors")
	w := startService(t, testUsers()[len(testUsers())-1], "", "--link", "rxe0="+unusedAddr())
	for _, c := range abi.Descriptors.Mismatches(abi.Parse(w.mustRun("run", "--", program))) {
		t.Error(c)
	}
	w.awaitNoCMObjects()
}
