package vet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGuards tests that the packages of the table exist. If a package is renamed and the table is not updated, its
// checks would be skipped silently.
func TestGuards(t *testing.T) {
	for path, on := range guards {
		dir := filepath.Join("../..", strings.TrimPrefix(path, module))
		if files, err := filepath.Glob(filepath.Join(dir, "*.go")); err != nil || len(files) == 0 {
			t.Errorf("%s: got no Go files (%v), want the files of the package", path, err)
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
