package main

import (
	"fmt"
	"testing"

	"verbena/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// TestCallersReceiveOwnReplies checks that each caller receives the reply to its own call.
func TestCallersReceiveOwnReplies(t *testing.T) {
	answers, err := run()
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if want := fmt.Sprint("CALL ", i); a != want {
			t.Errorf("reply: got %q, want %q", a, want)
		}
	}
}
