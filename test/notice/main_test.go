package main

import (
	"os"
	"strings"
	"testing"
)

// TestNoticeMatchesDependencies tests that NOTICE matches the dependencies.
func TestNoticeMatchesDependencies(t *testing.T) {
	want, err := generateNotice()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../packaging/NOTICE")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("NOTICE: got an outdated file, want the current dependencies: go run ./test/notice > packaging/NOTICE")
	}
	for _, m := range []string{"github.com/alecthomas/kong", "golang.org/x/sys", "Redistribution and use"} {
		if !strings.Contains(want, m) {
			t.Errorf("NOTICE: got no %q, want it", m)
		}
	}
}
