package vet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGuardedPackagesExist tests that the packages in guards exist. Otherwise the checks of a renamed package would be
// skipped without an error.
func TestGuardedPackagesExist(t *testing.T) {
	for path, on := range guardedPackages {
		dir := filepath.Join("../..", strings.TrimPrefix(path, module))
		if files, err := filepath.Glob(filepath.Join(dir, "*.go")); err != nil || len(files) == 0 {
			t.Errorf("%s: Glob: got no Go files (error %v), want the files of the package", path, err)
		}
		for check := range on {
			if !allGuards[check] {
				t.Errorf("%s: got check %q, want a check of allGuards", path, check)
			}
		}
	}
	if _, err := os.Stat("testdata/guard"); err != nil {
		t.Error(err)
	}
}
