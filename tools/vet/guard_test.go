package vet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGuards tests that the packages of the table exist. The name of a missing package would silently disable its
// checks.
func TestGuards(t *testing.T) {
	for path, on := range guards {
		dir := filepath.Join("../..", strings.TrimPrefix(path, module))
		if files, err := filepath.Glob(filepath.Join(dir, "*.go")); err != nil || len(files) == 0 {
			t.Errorf("%s: no such package (%v)", path, err)
		}
		for check := range on {
			if !allGuards[check] {
				t.Errorf("%s: no check %q", path, check)
			}
		}
	}
	if _, err := os.Stat("testdata/guard"); err != nil {
		t.Error(err)
	}
}
